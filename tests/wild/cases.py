"""What a case of the collections is: a function or a module as somebody wrote it, and what it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

FORMATS = ("float64", "float32", "bfloat16")


@dataclass(frozen=True)
class Case:
    """One candidate: how to make it, and what its author says of it."""

    name: str
    make: Callable[[], Any]  # the function, (function, backward), or the module
    about: str  # what it is; for a mistake, what is wrong
    kind: str  # "attention", "other" (a function of its own, not softmax attention), "layer"
    options: Mapping[str, str]  # as for examine(options=): {"mask": "attn_mask", "causal": "is_causal"}
    further: Mapping[str, Any]  # more that a user would say to examine or examine_layer
    formats: tuple[str, ...]
    source: str  # the public code or thread whose style or mistake it has; "" for one thought up


def collection() -> tuple[list[Case], Callable[..., Callable[[Callable[[], Any]], Callable[[], Any]]]]:
    """An empty list of cases, and the decorator that puts one into it."""
    cases: list[Case] = []

    def case(kind: str = "attention", *, options: Mapping[str, str] | None = None, source: str = "",
             formats: tuple[str, ...] = FORMATS, **further: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        def put(make: Callable[[], Any]) -> Callable[[], Any]:
            about = " ".join((make.__doc__ or "").split())
            cases.append(Case(make.__name__, make, about, kind, options or {}, further, formats, source))
            return make
        return put

    return cases, case
