"""The smallest case that still fails; hypothesis looks for it among cases that are made from a few choices.

The lines that make a case's numbers also make the case itself, so that who pastes them has the same numbers.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.diagnosis.paste import lines_of_case
from attnmath._examine.problems.case import SHAPES, Case, Conventions, Draft
from attnmath._words.extras import install
from attnmath.rounding.formats import nearest

SECONDS = 15.0  # for the search, while another case may still be tried
MOST_CALLS = 600  # of the candidate at most, so that a quick machine does not find another case
FEW_CALLS = 60  # cases that are tiny, or without mask, bias and the like, before others are tried too
MOST_LISTED = 24  # numbers that are worth writing down one by one
MISSING = f"hypothesis would find the smallest case that fails: {install('hypothesis')}"
FIRST = dict(b=2, G=2, r=2, n=3, m=3, d_k=2, d_v=2)  # JAX compiles anew for each new shape
LAST = dict(b=2, G=2, r=3, n=70, m=70, d_k=6, d_v=6)
KINDS_OF_NUMBERS = "quarters", "normal", "large", "small", "far below"
DRAWN = {  # all but "normal" are numbers of every format
    "quarters": "rng.integers(-8, 9, {}) / 4",
    "normal": "nearest(rng.normal(size={}), {dtype!r})",
    "large": "rng.integers(-8, 9, {}) * 2.0",
    "small": "rng.integers(-8, 9, {}) / 1024",
}
BELOW = {"Q": "rng.integers(8, 17, {}) * 1.0", "K": "rng.integers(-16, -7, {}) * 1.0"}


@dataclass(frozen=True)
class Recipe:
    """What a case is made from; its numbers follow from it. The simplest choice comes first."""

    mask: str | None = None  # a key of SHAPES, or "empty"
    causal: bool = False
    bias: str | None = None  # a key of SHAPES
    scale: float | None = None
    dropped: bool = False
    memory: str | None = None  # of dO: "strided" or "broadcast"
    b: int = 1
    G: int = 1
    r: int = 1  # query heads for each head of keys and values
    n: int = 1
    m: int = 1
    d_k: int = 1
    d_v: int = 1
    numbers: str = "quarters"
    seed: int = 0
    listed: tuple[int, ...] | None = None  # the numbers one by one, in place of a seed


def input_lines(x: Recipe, dtype: str) -> list[str]:
    """Lines that make Q, K, V, dO, and keep, bias and R where there are such."""
    setting = Draft("smallest", (x.b, x.G * x.r, x.G, x.n, x.m, x.d_k, x.d_v))
    found, given = [], list(x.listed or ())
    for name, shape in zip(("Q", "K", "V", "dO"), setting.shapes):
        count = int(np.prod(shape))
        first, given = given[:count], given[count:]
        if x.memory == "broadcast" and name == "dO":
            found.append(f"dO = np.ones({shape})")
        elif x.listed is not None:
            found.append(f"{name} = np.array({np.array(first, float).reshape(shape).tolist()})")
        else:
            kind = BELOW.get(name, DRAWN["quarters"]) if x.numbers == "far below" else DRAWN[x.numbers]
            found.append(f"{name} = {kind.format(shape, dtype=dtype)}")
    if x.mask:
        seen = setting.shape_of("shared" if x.mask == "empty" else x.mask)
        found += [f"keep = rng.random({seen}) < 0.5", "keep[..., 0] |= ~keep.any(-1)"]
    if x.mask == "empty":
        found.append("keep[..., 0, :] = False")
    if x.bias:
        found.append(f"bias = rng.integers(-8, 9, {setting.shape_of(x.bias)}) / 4")
    if x.dropped:
        found.append(f"R = rng.integers(0, 2, {setting.shape_of('all')}) * 2.0")
    if any("rng." in line for line in found):
        found.insert(0, f"rng = np.random.default_rng({x.seed})")
    return found if x.listed is None else _written_out(found)


def _written_out(given: list[str]) -> list[str]:
    """The same arrays, number by number."""
    arrays = {k: x for k, x in _made(given).items() if isinstance(x, np.ndarray)}
    return [f"{name} = np.array({x.tolist()})" for name, x in arrays.items()]


def _made(given: list[str]) -> dict[str, Any]:
    names: dict[str, Any] = {"np": np, "nearest": nearest}
    exec("\n".join(given), names)  # our own lines
    return names


def case_of(x: Recipe, dtype: str) -> Case:
    """The case that the lines describe."""
    names = _made(input_lines(x, dtype))
    Q, K, V, dO = (names[name] for name in ("Q", "K", "V", "dO"))
    keep, bias, R = (names.get(name) for name in ("keep", "bias", "R"))
    traits = frozenset({f"{x.memory} dO"} if x.memory else ())
    return Case(Q, K, V, dO, keep, bias, x.causal, x.scale, R, "smallest", traits)


def smallest(
    candidate: Candidate, means: Conventions, options: Collection[str], dtype: str, fails: Callable[[Case], bool],
    start: Case | None = None, seconds: float = SECONDS,
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

    def bad(x: Recipe) -> bool:
        return not (together and x.mask and x.bias) and fails(case_of(x, dtype))

    search, now = _Search(bad), time.monotonic()
    layout = candidate.layout or means.layout or "bhsd"
    for sizes, examples, share in ((FIRST, FEW_CALLS, 0.5), (LAST, MOST_CALLS, 1.0)):
        search.end = now + share * seconds
        choices = _possible_choices(means, options, layout, start, sizes)
        drawn = {name: st.sampled_from(x) for name, x in choices.items()}
        plain = {name: drawn[name] for name in (*sizes, "numbers", "seed")}
        if search.run(st.builds(Recipe, **plain), FEW_CALLS) or search.run(st.builds(Recipe, **drawn), examples):
            search.end = now + seconds
            search.run(_with_numbers(search.found[-1], st), MOST_CALLS)
            return pasted_recipe(search.found[-1], candidate, means, dtype)
    return None


def pasted_recipe(x: Recipe, candidate: Candidate, means: Conventions, dtype: str) -> str:
    """The case as lines to paste."""
    return lines_of_case(case_of(x, dtype), input_lines(x, dtype), candidate, means, dtype)


class _Late(BaseException):
    """The time is over; hypothesis lets it through."""


class _Search:
    """hypothesis' search, for a limited time; each recipe is tried once."""

    def __init__(self, fails: Callable[[Recipe], bool]) -> None:
        self.fails, self.end = fails, 0.0
        self.known: dict[Recipe, bool] = {}
        self.found: list[Recipe] = []

    def run(self, drawn: Any, examples: int) -> bool:
        """Append to found the simplest of what is drawn that fails, if there is one."""
        from random import Random

        from hypothesis import Phase, find, settings
        from hypothesis.errors import HypothesisException

        phases = [Phase.generate, Phase.shrink]
        rules = settings(database=None, max_examples=examples, phases=phases, deadline=None)
        before = set(self.known)
        try:
            self.found.append(find(drawn, self._tried, settings=rules, random=Random(0)))
        except _Late:
            self.found += sorted((x for x, bad in self.known.items() if bad and x not in before), key=_size)[:1]
        except HypothesisException:
            return False
        return bool(self.found)

    def _tried(self, recipe: Recipe) -> bool:
        if recipe not in self.known:
            if time.monotonic() > self.end or len(self.known) >= 2 * MOST_CALLS:
                raise _Late
            self.known[recipe] = self.fails(recipe)
        return self.known[recipe]


def _size(x: Recipe) -> tuple:
    """What is simpler comes first."""
    ingredients = sum(map(bool, (x.mask, x.causal, x.bias, x.scale, x.dropped, x.memory)))
    numbers = x.b * x.G * (x.d_k + x.d_v) * (x.r * x.n + x.m)
    return ingredients, numbers, KINDS_OF_NUMBERS.index(x.numbers), sum(map(abs, x.listed or ()))


def _possible_choices(
    means: Conventions, options: Collection[str], layout: str, start: Case | None, sizes: dict[str, int]
) -> dict[str, Sequence]:
    """What each part of a recipe may be, the simplest first."""
    top, may = dict(sizes), set(options)
    if start is not None:
        s = start.sizes
        top = {k: min(size, s["H"] // s["G"] if k == "r" else s[k]) for k, size in sizes.items()}
        may &= {*start.needs, *(["dropout_mask"] if start.has("R") else [])}
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
        numbers=KINDS_OF_NUMBERS, seed=range(8),
    )


def _with_numbers(recipe: Recipe, st: Any) -> Any:
    """The same recipe with its numbers one by one, where they are few."""
    x, H = recipe, recipe.G * recipe.r
    count = x.b * (H * x.n * (x.d_k + x.d_v) + x.G * x.m * (x.d_k + x.d_v))
    if count > MOST_LISTED:
        return st.just(recipe)
    numbers = st.tuples(*[st.integers(-2, 2)] * count)
    return st.builds(lambda listed: replace(recipe, listed=listed), numbers)
