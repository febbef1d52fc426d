"""A head, step by step, forward and back; any step can be put in place of another.

A mistake is a step that differs. Each letter is computed when it is asked for, from the
letters that its step names; what the way back uses is a letter of its own (P_back, keys_back,
...), so that a mistake of the way back alone can be said.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from attnmath._examine._case import Answer, Case, Conventions

Step = Callable[["Steps"], Any]
Change = Mapping[str, Callable[["Steps", Any], Any]]  # letter: from the right value to the wrong one


def T(x: np.ndarray) -> np.ndarray:
    """The matrices transposed."""
    return np.swapaxes(x, -1, -2)


def rowsum(x: np.ndarray) -> np.ndarray:
    """The sum of each row, as a column."""
    return x.sum(-1, keepdims=True)


def softmax(A: np.ndarray) -> np.ndarray:
    """Softmax of every row; zero where a row is -inf everywhere."""
    top = A.max(-1, keepdims=True, initial=-np.inf)
    E = np.exp(A - np.where(np.isneginf(top), 0.0, top))
    total = rowsum(E)
    return E / np.where(total == 0, 1.0, total)


def grouped(x: np.ndarray, owner: np.ndarray, G: int) -> np.ndarray:
    """The sum over the query heads that read the same head of keys and values."""
    out = np.zeros((x.shape[0], G, *x.shape[2:]))
    for h, g in enumerate(owner):
        out[:, g] += x[:, h]
    return out


def summed_to(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The sum over the axes along which like was broadcast."""
    shape = (1,) * (x.ndim - like.ndim) + like.shape
    axes = tuple(i for i, (a, b) in enumerate(zip(x.shape, shape)) if b == 1 != a)
    return x.sum(axes, keepdims=True).reshape(like.shape)


STEPS: dict[str, Step] = {
    # what is given
    "Q": lambda s: s.case.Q,
    "K": lambda s: s.case.K,
    "V": lambda s: s.case.V,
    "dO": lambda s: s.case.dO,
    "R": lambda s: np.ones_like(s.A) if s.case.R is None else s.case.R,
    "gamma": lambda s: np.float64(s.case.gamma(s.means)),  # that of NumPy can be divided by when it is 0
    "owner": lambda s: s.case.owner(s.means),
    "seen": lambda s: s.case.seen(s.means),
    "bias": lambda s: 0.0 if s.case.bias is None else s.case.bias,
    "B": lambda s: np.where(s.seen, s.bias, -np.inf),
    # the way forward
    "keys": lambda s: s.K[:, s.owner],
    "values": lambda s: s.V[:, s.owner],
    "QK": lambda s: s.Q @ T(s.keys),
    "A": lambda s: s.gamma * s.QK + s.B,
    "P": lambda s: softmax(s.A),
    "O": lambda s: (s.P * s.R) @ s.values,
    # the way back
    "gamma_back": lambda s: s.gamma,
    "owner_back": lambda s: s.owner,
    "B_back": lambda s: s.B,
    "keys_back": lambda s: s.K[:, s.owner_back],
    "values_back": lambda s: s.V[:, s.owner_back],
    "A_back": lambda s: s.gamma * (s.Q @ T(s.keys_back)) + s.B_back,
    "P_back": lambda s: softmax(s.A_back),
    "R_back": lambda s: s.R,
    "PR_back": lambda s: s.P_back * s.R_back,
    "dP": lambda s: (s.dO @ T(s.values_back)) * s.R_back,
    "D": lambda s: rowsum(s.P_back * s.dP),
    "dA": lambda s: s.P_back * (s.dP - s.D),
    "dQ": lambda s: s.gamma_back * s.dA @ s.keys_back,
    "dkeys": lambda s: s.gamma_back * T(s.dA) @ s.Q,
    "dvalues": lambda s: T(s.PR_back) @ s.dO,
    "dK": lambda s: grouped(s.dkeys, s.owner_back, s.K.shape[1]),
    "dV": lambda s: grouped(s.dvalues, s.owner_back, s.V.shape[1]),
    "dB": lambda s: None if s.case.bias is None else summed_to(s.dA, s.case.bias),
}


class Steps:
    """The letters of a head for one case; each is computed once, by its step."""

    table: Mapping[str, Step] = STEPS

    def __init__(
        self, case: Case, means: Conventions | None = None, changes: Iterable[Change] = ()
    ) -> None:
        self.case, self.means, self.changes = case, means or Conventions(), tuple(changes)

    def __getattr__(self, letter: str) -> Any:
        if letter not in self.table:
            raise AttributeError(letter)
        with np.errstate(all="ignore"):
            value = self.table[letter](self)
            for change in self.changes:
                if letter in change:
                    value = change[letter](self, value)
        self.__dict__[letter] = value
        return value

    def answer(self) -> Answer:
        """The output and all gradients."""
        return Answer(self.O, self.dQ, self.dK, self.dV, self.dB)
