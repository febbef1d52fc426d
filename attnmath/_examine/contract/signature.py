"""The keywords that a function has by its signature: which could be options, and which are not there."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attnmath._examine.contract.functions import attribute, name_of

OPTION_WORDS = ("mask", "bias", "causal", "scale", "groups", "dropout", "dropout_mask", "seed")

# Keywords that sound like something that an attention does; others, as a block size, are its own affair.
SOUNDS_LIKE_AN_OPTION = re.compile(
    r"mask|bias|causal|scal(e|ing)|temperature|dropout|gqa|group|window|soft_?cap|logit_cap|alibi|slope|sink"
    r"|rope|rotary|seq_?len|segment|padding|position"
)


def own_keywords(fn: Callable[..., Any]) -> tuple[list[str], bool] | None:
    """Its keywords behind q, k and v, and whether it takes any other; None where nothing tells."""
    module = attribute(fn, "named_parameters") is not None
    try:
        known = list(inspect.signature(attribute(fn, "forward", fn) if module else fn).parameters.values())
    except BaseException:  # its own attributes may raise whatever
        known = []
    if not known:  # what is written in C tells in the first line of its words
        told = re.match(r"\s*\w+\((.*?)\)\s*(->|$)", str(attribute(fn, "__doc__") or "").replace("\n", " "))
        names = re.findall(r"(\w+)\s*=", told[1]) if told else []
        return (names, True) if names else None
    places = [p for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = [*places[3:], *(p for p in known if p.kind is p.KEYWORD_ONLY)]
    return [p.name for p in named], any(p.kind is p.VAR_KEYWORD for p in known)


def lacks(fn: Callable[..., Any], keyword: str) -> bool:
    """Whether it is known to have no such keyword."""
    names, any_other = own_keywords(fn) or ([], True)
    return keyword not in names and not any_other


def checked_options(fn: Callable[..., Any], options: Mapping | Iterable | None) -> dict:
    """The options as a dictionary from our words to the candidate's own."""
    if isinstance(options, str) or not isinstance(options, Iterable | None):
        raise TypeError(f"options must be a dictionary or a set of words, not {options!r}")
    options = dict(options) if isinstance(options, Mapping) else {word: word for word in options or ()}
    for word, name in options.items():
        if word not in OPTION_WORDS:
            raise ValueError(f"options: {word!r} is unknown; the words are {', '.join(OPTION_WORDS)}")
        if not (isinstance(name, str) and name.isidentifier() or name is None and word == "groups"
                or name is True and word == "causal"):
            raise ValueError(f"options: {word!r} needs the name of a keyword, not {name!r}")
    if options.get("groups") == "groups" and lacks(fn, "groups"):
        options["groups"] = None  # it takes fewer heads without being told
    return options


def not_tried(fn: Callable[..., Any], options: Mapping[str, Any], without: Iterable[str]) -> list[str]:
    """Its keywords that look like options, and that nobody spoke of."""
    names, _ = own_keywords(fn) or ([], True)
    said = {*options.values(), *without}
    return [name for name in names if name not in said and SOUNDS_LIKE_AN_OPTION.search(name.lower())]


def misspelt(functions: Iterable[Callable[..., Any] | None], options: Mapping[str, Any]) -> str | None:
    """That one of the functions has no keyword of this name; None where all have all, or nothing tells."""
    for fn in functions:
        names, others = (None if fn is None else own_keywords(fn)) or ([], True)
        for word, name in options.items():
            if isinstance(name, str) and name not in names and not others:
                has = f"; it has {', '.join(names)}" if names else ""
                called = name_of(fn)
                return f"options says {word}={name!r}, and {called} has no such keyword{has}"
    return None
