"""How far a right answer may be off, and whether what came is within it."""

from typing import NamedTuple

import numpy as np

from attnmath._examine._bounds import bounds
from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._steps import Change, Steps, grouped, summed_to

__all__ = ["CONSTANT", "Judged", "bounds", "judge", "right"]

# Errors are counted in bounds. The bound is a theorem (chapters/rounding.md), so 1 is enough.
CONSTANT = 1.0


class Judged(NamedTuple):
    """What came for one letter, beside what is right."""

    ratio: float  # the largest error, in units of its bound
    where: tuple[int, ...] | None  # the entry that has it
    wrong: np.ndarray  # the entries that are off by more than the constant
    aggregate: float = 0.0  # the largest of the tests over many entries, in units of its limit

    @property
    def passed(self) -> bool:
        """Whether no entry is wrong."""
        return not self.wrong.any()


def right(case: Case, means: Conventions) -> Answer:
    """The right answer in float64; empty rows as the conventions say."""
    answer = Steps(case, means, _EMPTY.get(means.empty, ())).answer()
    return answer if means.empty != "nan" else _with_nan(case, means, answer)


def judge(got: Answer, want: Answer, off: Answer, dtype: str | None) -> dict[str, Judged]:
    """Each letter that is wanted, entry by entry; with dtype=None every bit has to be right.

    An entry whose bound is NaN is left out. NaN matches nothing else, infinity itself only.
    """
    judged = {}
    for letter, x in want._asdict().items():
        if x is not None:
            judged[letter] = _entries(getattr(got, letter), x, getattr(off, letter))
    return judged


def _entries(got: np.ndarray | None, want: np.ndarray, off: np.ndarray) -> Judged:
    if got is None or got.shape != want.shape:
        return Judged(np.inf, None, np.ones(want.shape, bool))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.where(got == want, 0.0, np.abs(got - want))
        ratio = np.where(error == 0, 0.0, error / off)
    ratio = np.where(np.isnan(off), 0.0, np.where(np.isnan(ratio), np.inf, ratio))
    if not ratio.size:
        return Judged(0.0, None, ratio > CONSTANT)
    where = np.unravel_index(ratio.argmax(), ratio.shape)
    return Judged(float(ratio[where]), tuple(map(int, where)), ratio > CONSTANT)


def _empty(s: Steps) -> np.ndarray:
    """The rows of queries that may attend to nothing, as a column."""
    return np.isneginf(s.A).all(-1, keepdims=True)


def _mean(s: Steps, P: np.ndarray) -> np.ndarray:
    return np.where(_empty(s), 1 / P.shape[-1], P)


_MEAN: Change = {"P": _mean, "P_back": _mean}
_EMPTY: dict[str | None, tuple[Change, ...]] = {
    "uniform": (_MEAN, {"dA": lambda s, dA: np.where(_empty(s), 0.0, dA)}),
    "uniform with gradient": (_MEAN,),
}


def _with_nan(case: Case, means: Conventions, answer: Answer) -> Answer:
    """The answer of a program whose empty rows are NaN, and all that they touch."""
    s = Steps(case, means)
    rows = np.where(_empty(s), np.nan, 0.0)
    keys = grouped(rows.sum(-2, keepdims=True), s.owner, case.K.shape[1])
    scores = None if case.bias is None else summed_to(rows + np.zeros_like(s.P), case.bias)
    more = rows, rows, keys, keys, scores
    return Answer(*(None if x is None else x + y for x, y in zip(answer, more)))
