"""How far a right answer may be off, and whether what came is within it."""

import math
from typing import NamedTuple

import numpy as np

from attnmath._examine._bounds import Bounds, bounds, right, right_and_bounds
from attnmath._examine._case import Answer
from attnmath._roundoff import unit_roundoff
from attnmath._tolerance import ALIKE, CONSTANT, DEVIATIONS

__all__ = ["CONSTANT", "Bounds", "Judged", "bounds", "judge", "right", "right_and_bounds"]


class Judged(NamedTuple):
    """What came for one letter, beside what is right."""

    ratio: float  # the largest error, in units of its bound
    where: tuple[int, ...] | None  # the entry that has it
    wrong: np.ndarray  # the entries that are off by more than the constant, or whose sum is
    aggregate: float = 0.0  # the largest result of the tests over many entries, in units of its limit

    @property
    def passed(self) -> bool:
        """Whether no entry is wrong."""
        return not self.wrong.any()


def judge(got: Answer, want: Answer, off: Answer, dtype: str | None) -> dict[str, Judged]:
    """Each letter that is wanted, entry by entry, and in a short format over many entries.

    An entry whose bound is NaN is left out. NaN matches nothing else, infinity itself only.
    With bounds that are not from bounds(), or with dtype=None, single entries count alone.
    """
    scatter = off.typical if isinstance(off, Bounds) and dtype else None
    judged = {}
    for letter, x in want._asdict().items():
        if x is None:
            continue
        mine, bound = getattr(got, letter), getattr(off, letter)
        judged[letter] = _entries(mine, x, bound)
        if scatter is not None and judged[letter].where is not None:
            error = np.where(np.isnan(bound), 0.0, mine - x)
            wrong, u = judged[letter].wrong, unit_roundoff(dtype)
            ratio, wrong = _many(wrong, error, x, getattr(scatter, letter), u, want.O.shape)
            judged[letter] = judged[letter]._replace(aggregate=ratio, wrong=wrong)
    return judged


def _entries(got: np.ndarray | None, want: np.ndarray, off: np.ndarray) -> Judged:
    if got is None or got.shape != want.shape:
        return Judged(np.inf, None, np.ones(want.shape, bool))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio = np.asarray(got - want)
        np.abs(ratio, out=ratio)
        ratio /= off
    if not np.isfinite(ratio).all():
        ratio = np.where((got == want) | np.isnan(off), 0.0, np.where(np.isnan(ratio), np.inf, ratio))
    if not ratio.size:
        return Judged(0.0, None, ratio > CONSTANT)
    where = np.unravel_index(ratio.argmax(), ratio.shape)
    return Judged(float(ratio[where]), tuple(map(int, where)), ratio > CONSTANT)


def _many(
    wrong: np.ndarray, error: np.ndarray, want: np.ndarray, scatter: np.ndarray, u: float, queries: tuple
) -> tuple[float, np.ndarray]:  # fmt: skip
    """The largest of the tests over many entries, in units of its limit; what is wrong, with theirs.

    The sum of its weights gives all that comes from a query an error in common, so that a factor
    is known no better than from as many numbers as there are queries.
    """
    counts = np.isfinite(error) & np.isfinite(want) & (scatter > 0)
    unit = np.where(counts, scatter, 1.0)
    z, w = (np.where(counts, x, 0.0) / unit for x in (error, want))
    rows = np.sqrt((z * z).mean(-1, keepdims=True)) / DEVIATIONS
    largest, wrong = float(rows.max()), wrong | (rows > 1)
    for axes in ((-2, -1), (0, 1, -2, -1)):
        size = np.sqrt((w * w).sum(axes, keepdims=True))  # the factor has the deviation 1 / size
        factor = (z * w).sum(axes, keepdims=True) / np.where(size == 0, 1.0, size)
        beyond = np.maximum(abs(factor) - ALIKE * u * size, 0.0) / DEVIATIONS
        entries = math.prod(want.shape[axis] for axis in axes)
        beyond *= min(1.0, math.prod(queries[axis] for axis in (*axes[:-2], -2)) / entries) ** 0.5
        largest = max(largest, float(beyond.max()))
        wrong = wrong | ((beyond > 1) & ~wrong.any(axes, keepdims=True))  # where nothing smaller is
    return largest, wrong
