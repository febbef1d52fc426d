"""Edits of the program, from a few operators: what a step is given, in another form or in exchange.

Each place of the program (a step, and one of the letters that it names; or a letter, for all that name
it) is combined with each operator that fits: left out, its sign turned, used twice, transposed, that of
the first head, another letter in its stead.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.mistakes.along import OF_BIAS, POWERS, Operator, kept
from attnmath._examine.problems.case import Case
from attnmath._examine.problems.steps import ATTENTION, BACK, StepChanges, Steps, log_sum_exp
from attnmath._words.arrays import T, rowsum

FORMULAS = {  # of each step, as the book has it
    "A": "gamma Q K^T + B", "P": "softmax(A)", "O": "(P o R) V", "L": "log(rowsum(exp(A)))", "QK": "Q K^T",
    "dP": "R o (dO V^T)", "D": "rowsum(P o dP)", "dA": "P o (dP - D)", "PR_back": "P o R",
    "dQ": "gamma dA K", "dkeys": "gamma dA^T Q", "dvalues": "(P o R)^T dO", "dB": "dA, summed",
    "dK": "dK of each query head, summed over the group", "dV": "dV of each query head, summed over the group",
}
NAMES = {"keys": "K", "keys_back": "K", "values": "V", "values_back": "V", "dkeys": "dK", "dvalues": "dV",
         "PR_back": "P o R", "seen": "the mask", "bias": "the bias", "QK": "Q K^T",
         "D": "the row term D", "gamma_back": "the scale gamma", "gamma": "the scale gamma"}
SIZES = {  # of each letter
    **dict.fromkeys(("Q", "dQ"), "b H n d_k"), **dict.fromkeys(("dO", "O"), "b H n d_v"),
    **dict.fromkeys(("keys", "keys_back", "dkeys"), "b H m d_k"), "K": "b G m d_k", "dK": "b G m d_k",
    **dict.fromkeys(("values", "values_back", "dvalues"), "b H m d_v"), "V": "b G m d_v", "dV": "b G m d_v",
    **dict.fromkeys("QK A P R B seen bias A_back P_back R_back PR_back B_back dP dA".split(), "b H n m"),
    **dict.fromkeys(("L", "D"), "b H n 1"),
}
ADDED = {("dA", "D"), ("A", "B"), ("A_back", "B_back"), ("B", "bias")}  # what is added; all else is multiplied
FACTORS = {("dA", "P_back"), ("dP", "R_back"), ("PR_back", "R_back"), ("PR_back", "P_back"), ("O", "R"),
           ("D", "P_back")}
PRODUCTS = {("QK", "Q"), ("QK", "keys"), ("O", "values"), ("dP", "dO"), ("dP", "values_back"), ("dQ", "dA"),
            ("dQ", "keys_back"), ("dkeys", "dA"), ("dkeys", "Q"), ("dvalues", "PR_back"), ("dvalues", "dO")}
EXCHANGED = *sorted(PRODUCTS | FACTORS), ("O", "P"), ("D", "dP"), ("dA", "dP")
POOL = (  # what may stand in another's place: forward, back
    ("Q", "keys", "values"),
    ("Q", "keys_back", "values_back", "dO", "O", "P_back", "PR_back", "dP", "dA", "R_back", "A_back"))


class Given:
    """The letters as one step is given them: one of them in another form."""

    def __init__(self, s: Steps, letter: str, operator: Operator) -> None:
        self.s, self.letter, self.operator = s, letter, operator

    def __getattr__(self, letter: str) -> Any:
        x = getattr(self.s, letter)
        return self.operator(self.s, x) if letter == self.letter else x


class Place(NamedTuple):
    """Where a letter is used: in one step, or in all."""

    step: str  # "" in all
    letter: str

    def change(self, operator: Operator) -> StepChanges:
        """The step that differs, where the letter is given to it in another form."""
        if not self.step:
            return {self.letter: operator}
        step, letter = self.step, self.letter
        return {step: lambda s, x: s.table[step](Given(s, letter, operator))}

    @property
    def words(self) -> str:
        """Its formula."""
        x = self.step or self.letter
        if x == "PR_back":
            return f"dV = {FORMULAS['dvalues']}"
        name = said(x).removeprefix("the row term ")
        return name if FORMULAS.get(x, name) == name else f"{name} = {FORMULAS[x]}"

    @property
    def formula(self) -> str:
        """Where it stands in the book."""
        return ATTENTION if (self.step or self.letter) in ("QK", "A", "P", "O", "L", "B") else BACK


def said(letter: str) -> str:
    """A letter as the book has it."""
    return NAMES.get(letter, letter.removesuffix("_back"))


def shape(letter: str, case: Case) -> tuple[int, ...]:
    """Of a letter in a problem."""
    sizes: dict[str, int] = {**case.sizes, "1": 1}
    return tuple(sizes[x] for x in SIZES[letter].split())


# ---- operators ----------------------------------------------------------------------------------


def untransposed(x: np.ndarray) -> np.ndarray:
    """(n, m) where its transpose belongs: the same numbers, read in rows of the other length."""
    return x.reshape(*x.shape[:-2], *x.shape[:-3:-1])


def misread_transpose(x: np.ndarray) -> np.ndarray:
    """The transpose where x (n, m) belongs, read in rows of the other length."""
    return untransposed(T(x).copy())


def batch_for_heads(s: Steps, x: np.ndarray) -> np.ndarray:
    """Batch elements and heads in the order of each other."""
    b, H = x.shape[:2]
    return x.reshape(H, b, *x.shape[2:]).swapaxes(0, 1)


def heads_fastest(s: Steps, x: np.ndarray) -> np.ndarray:
    """(b, H, n, d), put together as (b, n, d, H), and read as (b, n, H, d)."""
    b, H, n, d = x.shape
    return x.transpose(0, 2, 3, 1).reshape(b, n, H, d).swapaxes(1, 2)


def log2_of_sum(s: Steps, L: np.ndarray) -> np.ndarray:
    """The maximum of a row, and the logarithm in base 2 of its sum."""
    top = s.A.max(-1, keepdims=True)
    return np.where(np.isfinite(L), top + (L - top) / np.log(2), L)


def viewed(s: Steps, x: np.ndarray) -> np.ndarray:
    """(b, H, n, d), whose memory is read as (b, n, H, d)."""
    b, H, n, d = x.shape
    return x.reshape(b, n, H, d).swapaxes(1, 2)


def other(letter: str) -> Operator:
    return lambda s, x: getattr(s, letter)


def unnormalised(s: Steps, P: np.ndarray) -> np.ndarray:
    """exp(A - the row's maximum), not divided by its sum."""
    top = s.A.max(-1, keepdims=True)
    return P * rowsum(np.exp(s.A - np.where(np.isneginf(top), 0.0, top)))


MINUS: dict[str, Operator] = {"has the wrong sign": lambda s, x: -x}
RELU: dict[str, Operator] = {"is set to zero where it is negative": lambda s, x: np.maximum(x, 0)}
ZERO: dict[str, Operator] = {"is zero": lambda s, x: np.zeros_like(x)}
ONES: dict[str, Operator] = {"is taken to be all ones": lambda s, x: np.ones_like(x)}
LN_2: dict[str, Operator] = {
    "is multiplied by ln 2": lambda s, x: x * np.log(2), "is multiplied by log2(e)": lambda s, x: x / np.log(2),
}
GAMMA: dict[str, Operator] = {
    "is multiplied by gamma": lambda s, x: x * s.gamma, "is divided by gamma": lambda s, x: x / s.gamma,
}
DROPPED: dict[str, Operator] = {"is zero where a weight is dropped": lambda s, x: x * (s.R_back > 0)}
OF_ADDED: dict[str, Operator] = {"is missing": lambda s, x: np.zeros_like(x)}
OF_FACTORS: dict[str, Operator] = {"is missing": lambda s, x: np.ones_like(x), "is used twice": lambda s, x: x * x}
def usual_scale(s: Steps, gamma: Any) -> Any:
    """That of a call that gives none."""
    return np.float64(s.case.without("scale").gamma(s.means))


OF_GAMMA: dict[str, Operator] = {
    **OF_FACTORS, **LN_2, "is the usual one, where another is given": usual_scale,
    "divides instead of multiplying": lambda s, x: 1 / x, "is its root": lambda s, x: abs(x) ** 0.5,
}


def _kept_as(number: Callable[[float], float]) -> Operator:
    """What is kept is multiplied by a number that depends on rho, the share that is dropped."""
    return lambda s, x: (x > 0) * number(1 - 1 / max(x.max(), 1.0))


OF_R: dict[str, Operator] = {
    **OF_FACTORS, "lacks the factor 1/(1 - rho)": _kept_as(lambda rho: 1.0),
    "has the factor 1 - rho in place of 1/(1 - rho)": _kept_as(lambda rho: 1 - rho),
    "has the factor rho in place of 1/(1 - rho)": _kept_as(lambda rho: rho),
    "has the factor 1/rho in place of 1/(1 - rho)": _kept_as(lambda rho: 1 / rho if rho else 1.0),
}
FIRST: dict[str, Callable[[int], int]] = {
    "half of the": lambda d: d // 2, "three quarters of the": lambda d: 3 * d // 4,
    **{f"{t}": partial(min, t) for t in POWERS},
}


def _over_first(cut: Callable[[int], int]) -> Operator:
    return lambda s, x: rowsum((s.dO * s.O)[..., : cut(s.O.shape[-1])])


OF_D: dict[str, Operator] = {
    "is halved": lambda s, x: x / 2, "is a mean over the keys instead of a sum": lambda s, x: x / s.K.shape[2],
    "is summed over the queries instead of the keys": lambda s, x: (s.P_back * s.dP).sum(-2, keepdims=True),
    "is taken without the dropout mask": lambda s, x: rowsum(s.P_back * (s.dO @ T(s.values_back))),
    **{f"is summed over the first {words} columns of dO o O": _over_first(cut) for words, cut in FIRST.items()},
}
OF_WEIGHTS: dict[str, Operator] = {
    "is not divided by the sum of its row": unnormalised,
    "is taken to be 1/m": lambda s, x: np.ones_like(x) / x.shape[-1],
}
OF_ROWS: dict[str, Operator] = {
    **{f"is cut to {t} columns": kept(3, lambda i, k, t=t: i < t)  # type: ignore[misc]
       for t in POWERS[:5]},
    **{f"is cut to whole groups of {t} columns":
       kept(3, lambda i, k, t=t: i < max(k // t * t, min(t, k)))  # type: ignore[misc]
       for t in POWERS},
}
OF_VALUES: dict[str, Operator] = {
    "is cut to the columns of Q and K": lambda s, x: kept(3, lambda i, k: i < s.case.sizes["d_k"])(s, x),
}
OF_READ: dict[str, Operator] = {
    "is read with its axes exchanged": lambda s, x: T(untransposed(x)),
    "is transposed, where it should not be": lambda s, x: misread_transpose(x),
}
OF_READ_TRANSPOSED: dict[str, Operator] = dict(zip(  # where the formula has the transpose
    ("is reshaped, where it should be transposed", "is not transposed"), OF_READ.values()))
TRANSPOSED = {("dkeys", "dA"), ("dvalues", "PR_back"), ("QK", "keys"), ("dP", "values_back")}


def _before_last(t: int) -> Operator:
    return lambda s, x: log_sum_exp(s.A[..., : (s.A.shape[-1] - 1) // t * t or None])


OF_L: dict[str, Operator] = {
    "has log2 in place of log": log2_of_sum,
    **{f"lacks the last tile of {t} keys": _before_last(t) for t in POWERS},
}
OF_ORDER: dict[str, Operator] = {
    "holds the sum of each head of each batch element and those before it":
        lambda s, x: x.reshape(-1, *x.shape[2:]).cumsum(0).reshape(x.shape),
    "has batch elements and heads in the order of each other": batch_for_heads,
    "is read in the order of another layout": viewed,
    "is put together with the heads as its last axis": heads_fastest,
}


OF_OTHERS: dict[str, Operator] = {  # of a mask or a bias: batch elements and heads are mixed up
    "is that of batch element h mod b for head h": lambda s, x: np.broadcast_to(
        x[np.arange(x.shape[1]) % len(x), np.arange(x.shape[1])], x.shape),
    "is that of batch element g mod b for the heads that read head g": lambda s, x: np.broadcast_to(
        x[s.owner % len(x), np.arange(x.shape[1])], x.shape),
    "is that of head b mod H for batch element b": lambda s, x: np.broadcast_to(
        x[np.arange(len(x)), np.arange(len(x)) % x.shape[1]][:, None], x.shape),
}


def fitting(place: Place) -> Iterator[dict[str, Operator]]:
    """The operators that fit a place, beside those along an axis and other letters."""
    at, letter, everywhere = (place.step, place.letter), place.letter, not place.step
    sizes = SIZES.get(letter, "")
    if letter in ("gamma_back", "gamma"):
        yield OF_GAMMA
        return
    if letter in ("R", "R_back"):
        yield from (OF_R, OF_READ)
        return
    if letter == "seen":
        yield from (OF_ORDER, OF_OTHERS, OF_READ)
        return
    fits: list[tuple[bool, dict[str, Operator]]] = [
        (everywhere and letter in ("dQ", "dkeys", "dvalues", "dB", "dA"), ZERO), (at == ("", "D"), OF_D),
        (at in FACTORS, OF_FACTORS), (at in ADDED or at == ("", "bias"), OF_ADDED),
        (at in PRODUCTS or at == ("", "dO"), ONES), (letter in ("A", "bias", "B", "L"), LN_2),
        (letter in ("A", "bias", "B", "L", "dB"), GAMMA), (letter == "P_back" or at == ("O", "P"), OF_WEIGHTS),
        (True, MINUS), ("P" not in letter.replace("dP", "") and letter != "dB", RELU),
        (sizes[-1:] in "kv" and (at in PRODUCTS or letter == "dO"), OF_ROWS),
        (sizes[-1:] == "v" and (at in PRODUCTS or letter == "dO"), OF_VALUES), (at == ("dB", "dA"), OF_BIAS),
        (at in TRANSPOSED, OF_READ_TRANSPOSED),
        (at not in TRANSPOSED and (at in PRODUCTS or letter in ("dP", "dA")), OF_READ),
        (sizes[:3] == "b H" and sizes[-1] != "1" and everywhere, OF_ORDER),
        (at in (("dB", "dA"), ("", "bias")), OF_READ), (at == ("", "dA"), DROPPED), (at == ("", "L"), OF_L),
        (at == ("A", "B"), OF_OTHERS),
    ]
    yield from (some for fit, some in fits if fit)
