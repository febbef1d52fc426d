"""The smallest case that still fails, for the same reason: problems that failed, made smaller step by step.

The lines that make a case's numbers also make the case itself, so that who pastes them has the same
numbers; and they are run before they are shown.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.diagnosis.paste import fails_when_run, lines_of_case
from attnmath._examine.problems.case import Case, Conventions, Draft
from attnmath.rounding.formats import nearest

MOST_CALLS = 300  # of the candidate; a number, so that a quick machine does not find another case
MOST_STARTS = 6  # problems that failed, with each of the kinds of numbers
MOST_SHOWN = 5  # cases whose lines are run, the smallest first
MOST_LISTED = 24  # numbers that are worth writing down one by one
SEEDS = 3  # numbers are drawn anew where they show nothing
SIZES = ("b",), ("G",), ("r",), ("n", "m"), ("n",), ("m",), ("d_k", "d_v"), ("d_k",), ("d_v",)  # together, alone
KINDS_OF_NUMBERS = "quarters", "normal", "large", "small", "far below"
DRAWN = {  # all but "normal" are numbers of every format
    "quarters": "rng.integers(-8, 9, {}) / 4",
    "normal": "nearest(rng.normal(size={}), {dtype!r})",
    "large": "rng.integers(-8, 9, {}) * 2.0",
    "small": "rng.integers(-8, 9, {}) / 1024",
}
BELOW = {"Q": "rng.integers(8, 17, {}) * 1.0", "K": "rng.integers(-16, -7, {}) * 1.0"}
MEMORY = "strided dO", "broadcast dO", "contiguous rows", "strided inputs"
Wrong = Mapping[str, np.ndarray]  # for each output that is wrong, which of its entries


@dataclass(frozen=True)
class Recipe:
    """What a case is made from; its numbers follow from it. The simplest choice is the first."""

    mask: str | None = None  # a key of SHAPES, or "empty"
    causal: bool = False
    bias: str | None = None  # a key of SHAPES
    scale: float | None = None
    dropped: bool = False
    memory: str | None = None  # a trait of MEMORY
    b: int = 1
    G: int = 1
    r: int = 1  # query heads for each head of keys and values
    n: int = 1
    m: int = 1
    d_k: int = 1
    d_v: int = 1
    numbers: str = "quarters"
    seed: int = 0
    listed: tuple[float, ...] | None = None  # the numbers one by one, in place of a seed


def input_lines(x: Recipe, dtype: str) -> list[str]:
    """Lines that make Q, K, V, dO, and keep, bias and R where there are such."""
    setting = Draft("smallest", (x.b, x.G * x.r, x.G, x.n, x.m, x.d_k, x.d_v))
    found, given = [], list(x.listed or ())
    for name, shape in zip(("Q", "K", "V", "dO"), setting.shapes):
        count = int(np.prod(shape))
        first, given = given[:count], given[count:]
        if x.memory == "broadcast dO" and name == "dO":
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
    memory = (x.memory, "strided inputs") if x.memory == "contiguous rows" else (x.memory,)
    traits = frozenset(trait for trait in memory if trait)
    return Case(Q, K, V, dO, keep, bias, x.causal, x.scale, R, "smallest", traits)


def recipe_of(case: Case, layout: str) -> Recipe:
    """A case like this one, with other numbers."""
    def kind(x: np.ndarray | None) -> str | None:
        shape = (1, 1, 1, 1, *(() if x is None else x.shape))[-4:]
        own = {(True, True): "all", (False, True): "heads", (True, False): "batch"}
        return None if x is None else own.get((shape[0] > 1, shape[1] > 1), "shared")

    s, memory = case.sizes, [trait for trait in MEMORY if trait in case.traits]
    hides = case.keep is not None and not case.keep.any(-1).all()
    G, r = (s["G"], s["H"] // s["G"]) if "h" in layout else (1, 1)
    return Recipe(
        "empty" if hides else kind(case.keep), case.causal, kind(case.bias), case.scale, case.R is not None,
        memory[0] if memory else None, s["b"] if "b" in layout else 1, G, r, s["n"], s["m"], s["d_k"], s["d_v"],
    )


def smallest(
    candidate: Candidate, means: Conventions, dtype: str, judge: Callable[[Case], Wrong],
    failed: Sequence[tuple[Case, Wrong]], lines: Callable[..., str] | None = None,
) -> str | None:
    """Lines that show a small case that fails as those did that failed; None if none is found.

    judge: what is wrong in the candidate's answer to a case. The outputs that are wrong are those
    that are wrong in the cases that failed. The lines are run first, and fail when they are run.
    lines: from a recipe to its text, where that is not pasted_recipe.
    """
    search = _Search(candidate, means, dtype, judge, [frozenset(wrong) for _, wrong in failed])
    cases = sorted((case for case, _ in failed), key=lambda x: (len(x.needs), x.Q.size * x.K.shape[2]))
    layout = candidate.layout or means.layout or "bhsd"
    starts = [x for case in cases for x in _alternatives(recipe_of(case, layout), candidate)]
    starts = list(dict.fromkeys(starts))[:MOST_STARTS]
    for kind, seed, x in product(KINDS_OF_NUMBERS, range(2), starts):
        if search.fails(replace(x, numbers=kind, seed=seed)):
            search.shrink()
            break
    written = lines or pasted_recipe
    shown = (written(x, candidate, means, dtype, w) for x, w in reversed(search.found[-MOST_SHOWN:]))
    return next((text for text in shown if fails_when_run(text, candidate)), None)


def _alternatives(x: Recipe, candidate: Candidate) -> Iterator[Recipe]:
    """The recipes that can be said in lines: without drawn dropout, a mask and a bias in two arguments."""
    if "dropout_mask" not in candidate.options:
        x = replace(x, dropped=False)
    if x.mask and x.bias and candidate.options.get("mask") == candidate.options.get("bias"):
        yield replace(x, bias=None)
        x = replace(x, mask=None)
    yield x


def pasted_recipe(
    x: Recipe, candidate: Candidate, means: Conventions, dtype: str, wrong: Wrong | None = None
) -> str:
    """The case as lines to paste."""
    return lines_of_case(case_of(x, dtype), input_lines(x, dtype), candidate, means, dtype, wrong)


class _Search:
    """Recipes that fail for the same reason, each simpler than the one before."""

    def __init__(
        self, candidate: Candidate, means: Conventions, dtype: str, judge: Callable[[Case], Wrong],
        seen: Sequence[frozenset[str]],
    ) -> None:
        self.candidate, self.means, self.dtype, self.judge = candidate, means, dtype, judge
        self.seen, self.always = {*seen}, frozenset.intersection(*seen) if seen else frozenset()
        self.ever = frozenset().union(*seen)
        self.known: dict[Recipe, bool] = {}
        self.found: list[tuple[Recipe, Wrong]] = []

    def fails(self, x: Recipe) -> bool:
        """Whether it fails as those before it; then it is the last that was found."""
        if x not in self.known and len(self.known) < MOST_CALLS:
            case = case_of(x, self.dtype)
            wrong = self.judge(case) if self._can_be_said(case) else {}
            letters = frozenset(wrong)
            alike = letters in self.seen or self.always and self.always <= letters <= self.ever
            self.known[x] = bool(letters and alike)
            self.found += [(x, wrong)] if self.known[x] else []
        return self.known.get(x, False)

    def _can_be_said(self, case: Case) -> bool:
        """Whether the right answer can be said in a line: an empty row gives 0."""
        always = self.candidate.options.get("causal") is True
        rows = replace(case, causal=case.causal or always).seen(self.means).any(-1)
        return bool(rows.all()) or self.means.empty in (None, "zero")

    def drawn_anew(self, **fewer: Any) -> bool:
        """Whether the last recipe still fails with these changes, and with numbers of some seed."""
        x = replace(self.found[-1][0], **fewer)
        return any(self.fails(replace(x, seed=seed)) for seed in dict.fromkeys([x.seed, *range(SEEDS)]))

    def shrink(self) -> None:
        """Fewer ingredients, smaller sizes, simpler numbers, until nothing helps."""
        before, none = None, Recipe()
        while before != self.found[-1][0]:
            before = self.found[-1][0]
            for name in ("mask", "bias", "memory", "scale", "dropped", "causal"):
                simpler = getattr(none, name), {"mask": "shared", "bias": "shared", "scale": 0.5}.get(name)
                if getattr(before, name) not in simpler:
                    any(self.drawn_anew(**{name: x}) for x in simpler[: 2 if simpler[1] else 1])
                elif getattr(before, name) != simpler[0]:
                    self.drawn_anew(**{name: simpler[0]})
            for names in SIZES:
                self._smaller(names)
        self._simpler_numbers()

    def _smaller(self, names: tuple[str, ...]) -> None:
        """One size, or two that are equal, as small as may be: 1, or by halving."""
        x = self.found[-1][0]
        high, low = getattr(x, names[0]), 0
        if any(getattr(x, name) != high for name in names):
            return
        while high - low > 1:
            middle = (low + high) // 2 if low else 1
            low, high = (low, middle) if self.drawn_anew(**dict.fromkeys(names, middle)) else (middle, high)

    def _simpler_numbers(self) -> None:
        """The numbers one by one, where they are few: 0, 1, -1 or 2 in place of another."""
        x = self.found[-1][0]
        case = case_of(x, self.dtype)
        numbers = [float(y) for z in (case.Q, case.K, case.V, case.dO) for y in z.flat]
        if len(numbers) > MOST_LISTED or not self.fails(replace(x, listed=tuple(numbers))):
            return
        simple = (0.0, 1.0, -1.0, 2.0)
        for i, y in enumerate(numbers):
            for z in simple[: simple.index(y) if y in simple else None]:
                other = (*numbers[:i], z, *numbers[i + 1 :])
                if self.fails(replace(x, listed=other)):
                    numbers[i] = z
                    break
