"""What a mistake is, and what the way back may start from."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from attnmath._examine._case import Case, Conventions
from attnmath._examine._steps import Change, Steps, rowsum

Forms = Callable[[Case, Conventions], Iterator[tuple[str, Change]]]


class Mistake(NamedTuple):
    """A name, a sentence, the steps that differ, the formula that they break, and the cure.

    forms gives the changes, with a word on each where there are several, such as the tile.
    """

    name: str
    title: str
    forms: Forms
    formula: str
    cure: str


def one(change: Change) -> Forms:
    return lambda case, means: iter([("", change)])


def times(*letters: str, by: Callable[[Steps], float]) -> Change:
    return {letter: lambda s, x: None if x is None else by(s) * x for letter in letters}


def log_sum_exp(s: Steps) -> np.ndarray:
    top = s.A.max(-1, keepdims=True)
    top = np.where(np.isneginf(top), 0.0, top)
    return top + np.log(rowsum(np.exp(s.A - top)))


FROM_O: Change = {"D": lambda s, D: rowsum(s.dO * s.O)}
FROM_L: Change = {"P_back": lambda s, P: np.exp(s.A_back - log_sum_exp(s))}
# D and P are the same in right code however they are found; in wrong code they are not.
WAYS: tuple[tuple[Change, ...], ...] = ((), (FROM_O,), (FROM_L,), (FROM_L, FROM_O))


# ---- the formulas that are broken ---------------------------------------------------------------

ATTENTION = "chapters/attention_map.md, eq:attention_map"
BACK = "chapters/attention.md, eq:attention_vjp"
DROPOUT = "chapters/dropout.md, eq:dropout_attention_vjp"
GROUPS = "chapters/heads.md, eq:multihead_vjp"
JACOBIAN = "chapters/softmax.md, eq:softmax_vjp"
MASKS = "chapters/masks.md, eq:causal_mask"
SOFTMAX = "chapters/softmax.md, eq:softmax"
