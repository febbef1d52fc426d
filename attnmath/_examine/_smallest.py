"""The smallest case that still fails, as lines to paste; hypothesis looks for it."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from attnmath._examine._candidate import Candidate
from attnmath._examine._case import Case, Conventions
from attnmath._examine._lines import lines
from attnmath._examine._settings import SHAPES
from attnmath._examine._sketch import Sketch, case_of

SECONDS = 15.0  # for the search, while another case may still be tried
CALLS = 600  # of the candidate at most, so that a quick machine does not find another case
FEW = 60  # cases that are tiny, or without mask, bias and the like, before others are tried too
LISTED = 24  # numbers that are worth writing down one by one
MISSING = "hypothesis would find the smallest case that fails: pip install 'attnmath[examine]'"
TINY = dict(b=2, G=2, r=2, n=3, m=3, d_k=2, d_v=2)  # first: JAX compiles anew for each new shape
LARGEST = dict(b=2, G=2, r=3, n=70, m=70, d_k=6, d_v=6)
NUMBERS = "quarters", "normal", "large", "small", "far below"


def smallest(
    candidate: Candidate,
    means: Conventions,
    options: Collection[str],
    dtype: str,
    fails: Callable[[Case], bool],
    start: Case | None = None,
    seconds: float = SECONDS,
) -> str | None:
    """Lines that show the smallest case that fails; None if none is found in time.

    Nothing is tried that is larger than start, a case that fails, or has what it lacks.
    Without hypothesis the line says what to install.
    """
    try:
        from hypothesis import strategies as st
    except ImportError:
        return f"# {MISSING}"
    together = candidate.options.get("mask") == candidate.options.get("bias")

    def bad(x: Sketch) -> bool:
        return not (together and x.mask and x.bias) and fails(case_of(x, dtype))

    search, now = _Search(bad), time.monotonic()
    layout = candidate.layout or means.layout or "bhsd"
    for sizes, examples, share in ((TINY, FEW, 0.5), (LARGEST, CALLS, 1.0)):
        search.end = now + share * seconds
        choices = _choices(means, options, layout, start, sizes)
        drawn = {name: st.sampled_from(x) for name, x in choices.items()}
        plain = {name: drawn[name] for name in (*sizes, "numbers", "seed")}
        if search.run(st.builds(Sketch, **plain), FEW) or search.run(st.builds(Sketch, **drawn), examples):
            search.end = now + seconds
            search.run(_with_numbers(search.found[-1], st), CALLS)
            return lines(search.found[-1], candidate, means, dtype)
    return None


class _Late(BaseException):
    """The time is over; hypothesis lets it through."""


class _Search:
    """hypothesis' search, for a limited time; each sketch is tried once."""

    def __init__(self, fails: Callable[[Sketch], bool]) -> None:
        self.fails, self.end, self.known = fails, 0.0, {}
        self.found: list[Sketch] = []

    def run(self, drawn: Any, examples: int) -> bool:
        """Append to found the simplest of what is drawn that fails, if there is one."""
        from random import Random

        from hypothesis import Phase, find, settings
        from hypothesis.errors import HypothesisException

        how = settings(database=None, max_examples=examples, phases=[Phase.generate, Phase.shrink], deadline=None)
        before = set(self.known)
        try:
            self.found.append(find(drawn, self._tried, settings=how, random=Random(0)))
        except _Late:
            self.found += sorted((x for x, bad in self.known.items() if bad and x not in before), key=_size)[:1]
        except HypothesisException:
            return False
        return bool(self.found)

    def _tried(self, sketch: Sketch) -> bool:
        if sketch not in self.known:
            if time.monotonic() > self.end or len(self.known) >= 2 * CALLS:
                raise _Late
            self.known[sketch] = self.fails(sketch)
        return self.known[sketch]


def _size(x: Sketch) -> tuple:
    """What is simpler comes first."""
    ingredients = sum(map(bool, (x.mask, x.causal, x.bias, x.scale, x.dropped, x.memory)))
    numbers = x.b * x.G * (x.d_k + x.d_v) * (x.r * x.n + x.m)
    return ingredients, numbers, NUMBERS.index(x.numbers), sum(map(abs, x.listed or ()))


def _choices(
    means: Conventions, options: Collection[str], layout: str, start: Case | None, sizes: dict[str, int]
) -> dict[str, Sequence]:
    """What each part of a sketch may be, the simplest first."""
    top, may = dict(sizes), set(options)
    if start is not None:
        s = start.sizes
        top = {k: min(size, s["H"] // s["G"] if k == "r" else s[k]) for k, size in sizes.items()}
        has = dict(mask=start.keep, bias=start.bias, causal=start.causal or None, scale=start.scale,
                   dropout_mask=start.R)  # fmt: skip
        may -= {word for word, x in has.items() if x is None}
    top |= {"b": 1} if "b" not in layout else {}
    top |= {"G": 1, "r": 1} if "h" not in layout else {}
    top |= {"r": 1} if "groups" not in options else {}
    memory = [None, *(kind for kind in ("strided", "broadcast") if not start or f"{kind} dO" in start.traits)]
    empty = ["empty"] if means.empty in (None, "zero") and (not start or "empty row" in start.traits) else []
    kinds = ["shared", "heads", "batch", "all"]
    assert set(kinds) == set(SHAPES)
    return dict(
        mask=[None, *(kinds + empty if "mask" in may else [])],
        causal=[False, True] if "causal" in may else [False],
        bias=[None, *(kinds if "bias" in may else [])],
        scale=[None, *([0.5, 2.0] if "scale" in may else [])],
        dropped=[False, True] if "dropout_mask" in may else [False],
        memory=memory, **{name: range(1, size + 1) for name, size in top.items()},
        numbers=NUMBERS, seed=range(8),
    )  # fmt: skip


def _with_numbers(sketch: Sketch, st: Any) -> Any:
    """The same sketch with its numbers one by one, where they are few."""
    x, H = sketch, sketch.G * sketch.r
    count = x.b * (H * x.n * (x.d_k + x.d_v) + x.G * x.m * (x.d_k + x.d_v))
    if count > LISTED:
        return st.just(sketch)
    numbers = st.tuples(*[st.integers(-2, 2)] * count)
    return st.builds(lambda listed: replace(sketch, listed=listed), numbers)
