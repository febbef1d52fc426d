"""The keywords that a function has by its signature: which could be options, and which are not there."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# Keywords that sound like something that an attention does; others, as a block size, are its own affair.
SOUNDS_LIKE_AN_OPTION = re.compile(
    r"mask|bias|causal|scal(e|ing)|temperature|dropout|gqa|group|window|soft_?cap|logit_cap|alibi|slope|sink"
    r"|rope|rotary|seq_?len|segment|padding|position"
)


def own_keywords(fn: Callable[..., Any]) -> tuple[list[str], bool] | None:
    """Its keywords behind q, k and v, and whether it takes any other; None where nothing tells."""
    try:
        called = fn.forward if hasattr(fn, "named_parameters") and hasattr(fn, "forward") else fn  # of a module
        known = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # what is written in C tells in the first line of its words
        told = re.match(r"\s*\w+\((.*?)\)\s*(->|$)", (getattr(fn, "__doc__", None) or "").replace("\n", " "))
        names = re.findall(r"(\w+)\s*=", told[1]) if told else []
        return (names, True) if names else None
    except Exception:  # its own attributes raise
        return None
    places = [p for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = [*places[3:], *(p for p in known if p.kind is p.KEYWORD_ONLY)]
    return [p.name for p in named], any(p.kind is p.VAR_KEYWORD for p in known)


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
                called = getattr(fn, "__name__", type(fn).__name__)
                return f"options says {word}={name!r}, and {called} has no such keyword{has}"
    return None
