"""Queries that may attend to nothing: what the conventions make of them."""

import numpy as np

from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._steps import Change, Steps, grouped, summed_to


def empty_rows(s: Steps) -> np.ndarray:
    """The rows of queries that may attend to nothing, as a column."""
    return np.isneginf(s.A).all(-1, keepdims=True)


def _mean(s: Steps, P: np.ndarray) -> np.ndarray:
    return np.where(empty_rows(s), 1 / P.shape[-1], P)


def _still(s: Steps, dA: np.ndarray) -> np.ndarray:
    return np.where(empty_rows(s), 0.0, dA)


def changes(means: Conventions) -> tuple[Change, ...]:
    """The steps that differ from those of rows that are zero."""
    mean = {"P": _mean, "P_back": _mean}
    return {"uniform": (mean | {"dA": _still},), "uniform with gradient": (mean,)}.get(means.empty, ())


def nan_where_touched(case: Case, means: Conventions) -> Answer:
    """NaN in empty rows and in all that they touch, 0 elsewhere."""
    s = Steps(case, means)
    rows = np.where(empty_rows(s), np.nan, 0.0)
    keys = grouped(rows.sum(-2, keepdims=True), s.owner, case.K.shape[1])
    scores = None if case.bias is None else summed_to(rows + np.zeros_like(s.P), case.bias)
    return Answer(rows, rows, keys, keys, scores)


def plus(x: Answer, y: Answer) -> Answer:
    """The sum, letter by letter."""
    return Answer(*(None if a is None else a + b for a, b in zip(x, y)))
