"""Both sides once more in float64: what was run with letters has to be what runs with numbers."""

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

from attnmath._exact.outcomes import NotAlgebraic
from attnmath._exact.sides import checked_copy, own_copy, pairs_of
from attnmath._words.tolerance import CLEARLY, CLOSE, NEARLY_ZERO

OF_EACH_KIND = 4  # points
HUGE = 1e10  # of whole numbers it may be rounding, as of the inverse of a singular matrix
STRETCHES = [1.7**k for k in range(19)]  # up to 14,000; on the way rounding grows step by step
DIFFER = "undecided: the sides agree for letters, and differ in float64 at real numbers"


class Reals:
    """What both sides return at points, and at points further and further out along rays.

    Each point is (arguments, constants). One side is run at all of them before the other is,
    in a thread of its own.
    """

    def __init__(self, lhs: Callable, rhs: Callable, points: list[tuple], rays: list[list[tuple]]) -> None:
        sides = lhs, rhs
        with ThreadPoolExecutor(1) as pool:
            at = [[_result(pool, side, point) for point in points] for side in sides]
            far = [[_outward(pool, side, ray) for ray in rays] for side in sides]
        self.failed = [side for side in (*at[0], *at[1]) if isinstance(side, Exception)]
        self.pairs = [*zip(at[0], at[1])]
        self.rays = [[*zip(*ray)] for ray in zip(far[0], far[1])]

    def run(self) -> bool:
        """Whether both sides return something somewhere."""
        return any(map(_is_there, self.pairs))

    def agree(self) -> bool:
        """Whether they agree, up to their last digits, wherever they return something."""
        try:
            found = [_both_agree(pair, CLOSE, 0) for pair in self.pairs if _is_there(pair)]
        except NotAlgebraic:
            return False
        return True in found and False not in found

    def differ(self) -> bool:
        """Whether they differ clearly where both return something, at other than whole numbers."""
        there = [pair for k, pair in enumerate(self.pairs) if k % 4 < 3 and _is_there(pair)]
        try:
            return any(_both_agree(pair) is False for pair in there)
        except NotAlgebraic:
            return False

    def confirm(self) -> None:
        """NotAlgebraic unless the sides agree where both have values, and both have some."""
        most = [np.inf, np.inf, np.inf, HUGE] * OF_EACH_KIND  # the kinds of drawings
        found = [_both_agree(pair, most=size) for pair, size in zip(self.pairs, most) if _is_there(pair)]
        if False in found or any(map(_is_torn, self.rays)):
            raise NotAlgebraic(DIFFER)
        if True not in found:
            why = f" ({type(self.failed[0]).__name__}: {self.failed[0]})" if self.failed else ""
            said = "undecided: no real numbers were found where both sides have finite values"
            raise NotAlgebraic(said + why)


def drawings(seed: int) -> list[Callable]:
    """What draws arrays of a shape: normal, positive, between 0 and 1, small whole numbers."""
    rng = np.random.default_rng(seed)
    return OF_EACH_KIND * [
        lambda shape: np.asarray(rng.standard_normal(shape)),
        lambda shape: np.exp(rng.standard_normal(shape) / 2),
        lambda shape: np.asarray(rng.uniform(0.05, 0.95, shape)),
        lambda shape: np.asarray(rng.integers(-2, 4, shape), dtype=float),
    ]


def directions(seed: int) -> list[list[Callable]]:
    """The same for two rays: multiples of a normal array, and of its negative."""

    def outward(size: float) -> Callable:
        rng = np.random.default_rng([seed, 1])
        return lambda shape: size * np.asarray(rng.standard_normal(shape))

    return [[outward(sign * size) for size in STRETCHES] for sign in (1, -1)]


def _result(
    pool: ThreadPoolExecutor, side: Callable, point: tuple, errors: Literal["ignore", "raise"] = "ignore"
) -> Any:
    """What a side returns, or raises, at copies of these arguments."""
    given, named = point
    own = {k: own_copy(part) for k, part in named.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return checked_copy(pool.submit(_under, errors, side, [*map(own_copy, given)], own).result(), "a side")
    except Exception as error:  # also where a function takes letters alone
        return error


def _under(errors: Literal["ignore", "raise"], side: Callable, given: list, named: dict) -> Any:
    with np.errstate(all=errors):
        return side(*given, **named)


def _outward(pool: ThreadPoolExecutor, side: Callable, ray: list) -> list:
    """The same at points of a ray, up to the first one where a number is too large or too small."""
    found: list = []
    for point in ray:
        found.append(_result(pool, side, point, "raise"))
        if isinstance(found[-1], Exception):
            break
    return found


def _is_there(pair: tuple) -> bool:
    return not any(isinstance(side, Exception) for side in pair)


def _is_torn(ray: list) -> bool:
    """Whether a part of sides that agrees in nearly all digits differs one step further out."""
    gaps = [[_gap(a, b) for a, b in _float_pairs(*pair)] for pair in ray if _is_there(pair)]
    steps = [step for here, there in zip(gaps, gaps[1:]) for step in zip(here, there)]
    return any(here <= CLOSE and there > CLEARLY for here, there in steps)


def _gap(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference, relative to the largest entry; nan where that may be rounding itself."""
    with np.errstate(all="ignore"):
        size = np.maximum(abs(a), abs(b)).max(initial=0.0)
        return abs(a - b).max() / size if CLEARLY < size < np.inf else np.nan


def _both_agree(
    pair: tuple[Any, Any], near: float = CLEARLY, zero: float = NEARLY_ZERO, most: float = np.inf
) -> bool | None:
    """Whether the sides agree where both are finite; None where nothing is.

    What is large is compared entry by entry, unless it is more than `most`.
    """
    met, agree = False, True
    with np.errstate(all="ignore"):
        for a, b in _float_pairs(*pair):
            error, size = abs(a - b), np.maximum(abs(a), abs(b))
            usual, large = size < HUGE, (size >= HUGE) & (size <= most) & np.isfinite(a) & np.isfinite(b)
            met |= bool(usual.any() or large.any())
            agree &= not (error[usual] > near * size[usual].max(initial=0.0) + zero).any()
            agree &= not (error[large] > near * size[large]).any()
    return agree if met else None


def _float_pairs(left: Any, right: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """The parts of both sides in pairs, as arrays."""
    try:
        return [(np.asarray(a).astype(float), np.asarray(b).astype(float)) for _, a, b in pairs_of(left, right)]
    except (AssertionError, TypeError, ValueError):
        raise NotAlgebraic("undecided: in float64 the sides do not return the same arrays") from None
