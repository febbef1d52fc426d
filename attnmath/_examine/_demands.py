"""What a caller of examine may say: what is demanded of the candidate, and how to tell the progress."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from numbers import Integral

from attnmath._examine._case import SCALES, Conventions, constant

TOLD = {
    "layout": ("bhsd", "bshd", "sbhd", "bsd", "hsd", "shd", "sd"),
    "mask": ("keep", "drop", "add"),
    "causal": ("upper_left", "lower_right"),
    "groups": ("blocks", "interleaved", "none"),
    "scale": tuple(SCALES),
    "empty": ("zero", "uniform", "uniform with gradient", "nan"),
    "inside": ("float32", "float64"),
}


def demanded(conventions: Mapping[str, str] | None, layout: str | None) -> Conventions:
    """What is demanded, if it is something that can be."""
    demands = dict(conventions or {}) | ({} if layout is None else {"layout": layout})
    names = [f.name for f in fields(Conventions)]
    for name, value in demands.items():
        if name not in names:
            raise ValueError(f"examine: conventions has {name!r}; it can have {', '.join(names)}")
        if value not in TOLD[name] and not (name == "scale" and _number(value)):
            values = ", ".join(map(repr, TOLD[name]))
            raise ValueError(f"examine: conventions has {name}={value!r}; it needs one of {values}")
    return Conventions(**{k: x if isinstance(x, str) else str(x) for k, x in demands.items()})


def _number(x: object) -> bool:
    """Whether it is a number, or one in words."""
    try:
        return math.isfinite(constant(str(x)))
    except (ValueError, ZeroDivisionError):
        return False


def voice(progress: bool | Callable[[str], None] | None, began: float) -> Callable[[str], None]:
    """Tells on one line of the terminal how far it is, once it has taken a second and a half."""
    if callable(progress):
        return progress
    if progress is False or (progress is None and not sys.stderr.isatty()):
        return lambda text: None

    def say(text: str) -> None:
        if time.perf_counter() - began > 1.5:
            print(f"\r\x1b[K{text and 'examine: '}{text}", end="", file=sys.stderr, flush=True)

    return say


def whole_number(seed: object) -> int:
    """The seed, if it is one."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"examine: seed is {seed!r}; it needs to be a whole number from 0")
    return int(seed)
