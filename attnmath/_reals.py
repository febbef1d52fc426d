"""Both sides once more in float64: what was run with letters has to be what runs with numbers."""

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import numpy as np

from attnmath._algebraic import NotAlgebraic
from attnmath._calls import copied, kept
from attnmath._compare import pairs_of

POINTS = 4  # of each kind
NEAR, ZERO = 1e-4, 1e-9  # of the largest entry, and of 1: far above rounding, far below most mistakes

LARGE = 1e10  # what is larger may be rounding, of the inverse of a singular matrix say


def confirm(lhs: Callable, rhs: Callable, points: list[tuple]) -> None:
    """The sides agree in float64 where both have values, and both have some.

    Each point is (arguments, constants). One side is run at all points before the other is,
    in a thread of its own.
    """
    with ThreadPoolExecutor(1, initializer=np.seterr, initargs=("ignore",)) as pool:
        left = [_at(pool, lhs, *point) for point in points]
        right = [_at(pool, rhs, *point) for point in reversed(points)][::-1]
    met = False
    for sides in zip(left, right):
        if not any(isinstance(side, Exception) for side in sides):
            met |= _agree(*sides)
    if not met:
        failed = next((side for side in chain(left, right) if isinstance(side, Exception)), None)
        why = f" ({type(failed).__name__}: {failed})" if failed else ""
        raise NotAlgebraic(f"undecided: no real numbers were found where both sides have finite values{why}")


def drawings(seed: int) -> list[Callable]:
    """What draws arrays of a shape: normal, positive, between 0 and 1, small whole numbers."""
    rng = np.random.default_rng(seed)
    return POINTS * [
        lambda shape: np.asarray(rng.standard_normal(shape)),
        lambda shape: np.exp(rng.standard_normal(shape) / 2),
        lambda shape: np.asarray(rng.uniform(0.05, 0.95, shape)),
        lambda shape: np.asarray(rng.integers(-2, 4, shape), dtype=float),
    ]


def _at(pool: ThreadPoolExecutor, side: Callable, given: list, named: dict) -> Any:
    """What a side returns, or raises, at copies of these arguments."""
    own = {k: copied(part) for k, part in named.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return kept(pool.submit(side, *map(copied, given), **own).result(), "a side")
    except Exception as error:  # also where a function takes letters alone
        return error


def _agree(left: Any, right: Any) -> bool:
    """Whether there are values to compare; NotAlgebraic where they differ."""
    met = False
    try:
        pairs = [[np.asarray(part).astype(float) for part in pair[1:]] for pair in pairs_of(left, right)]
    except (AssertionError, TypeError, ValueError):
        raise NotAlgebraic("undecided: in float64 the sides do not return the same arrays") from None
    for a, b in pairs:
        both = (abs(a) < LARGE) & (abs(b) < LARGE)
        met |= bool(both.any())
        largest = np.maximum(abs(a), abs(b))[both].max(initial=0.0)
        if (abs(a[both] - b[both]) > NEAR * largest + ZERO).any():
            raise NotAlgebraic("undecided: the sides agree for letters, and differ in float64 at real numbers")
    return met
