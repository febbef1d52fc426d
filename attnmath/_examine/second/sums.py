"""Mistakes of running sums that are kept from tile to tile, and of a double backward by the chain rule.

By the chain rule the double backward goes back through the backward: into P comes dO V_dot^T + A_dot o (dP - D)
- mu dP, and dA_dot is what softmax makes of that. What is taken for a constant there loses other terms than
what stands still in a tangent.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import StepChanges, bind
from attnmath._words.arrays import T, rowsum

Change = Callable[[Case, Conventions], StepChanges]
TILES = 16, 32, 64, 128
TIMES = {"is missing": 0.0, "is doubled": 2.0, "is halved": 0.5, "has the wrong sign": -1.0}


class SecondEdit(NamedTuple):
    """A mistake: its name, its sentence, the steps that differ in a problem, and how D_dot is found."""

    name: str
    title: str
    change: Change
    way: tuple[StepChanges, ...] = ()

    def __hash__(self) -> int:
        return hash((self.name, self.title))

    def changes(self, case: Case, means: Conventions) -> tuple[StepChanges, ...]:
        """The steps that differ; none where there is nothing to change."""
        change = self.change(case, means)
        return (*self.way, change) if change else ()


def grown_by(s: Any, t: int) -> np.ndarray:
    """For each weight by how much a sum is too large that is not rescaled after its tile of t keys."""
    shown = s.P_t > 0
    A = np.where(shown, s.A_t, -np.inf)
    top = np.maximum.accumulate(A, -1)
    m = A.shape[-1]
    ends = np.minimum((np.arange(m) // t + 1) * t, m) - 1
    return np.where(shown, np.exp(np.where(shown, top[..., -1:] - top[..., ends], 0.0)), 1.0)


SUMS = {"l": "the sum of the weights", "r": "the sum of P o A_dot", "acc": "the sum of P V",
        "A": "the sum of P V_dot", "H": "the sum of (P o A_dot) V"}


def _with_sums(s: Any, x: Any, i: int, t: int, which: tuple[str, ...]) -> Any:
    """One of the two terms of the tangent of the output, and the output, with sums that are not rescaled."""
    w = {x: grown_by(s, t) if x in which else 1.0 for x in SUMS}
    l, H = rowsum(s.P_t * w["l"]), s.P_t * s.A_dot  # noqa: E741
    r, acc = rowsum(H * w["r"]) / l, ((s.P_t * w["acc"] * s.R_P) @ s.values_t) / l
    PVdot = ((s.P_t * w["A"] * s.R_V) @ s.values_dot) / l
    return (((H * w["H"] * s.R_P) @ s.values_t) / l - r * acc, PVdot, acc)[i]


def unrescaled() -> Iterator[SecondEdit]:
    """A running sum, or several, that are not rescaled when the largest score grows."""
    sets = [x for k in (1, 2, 3, 4) for x in combinations(SUMS, k)]
    for t in TILES:
        for which in sets:
            def change(case: Case, means: Conventions, t: int = t, which: tuple = which) -> StepChanges:
                letters = ("PdotV", "PVdot", "O") if case.K.shape[2] > t else ()
                return {x: bind(_with_sums, i, t, which) for i, x in enumerate(letters)}
            said = " and ".join(SUMS[x] for x in which)
            are = "are" if len(which) > 1 else "is"
            yield SecondEdit(f"{'+'.join(which)} not rescaled, tiles of {t}",
                             f"{said} {are} not rescaled when the largest score grows (tiles of {t} keys)", change)


# ---- back through the backward ------------------------------------------------------------------

CHAIN = {"V": "the term dO V_dot^T", "A": "the term A_dot o (dP - D)", "D": "D in the term A_dot o (dP - D)",
         "mu": "the term mu dP", "row": "the row sum of P o dP_dot"}
AT = "of what comes into P, on the way back through the backward,"
HELD = {"D": "D is taken for a constant", "O": "the O of D is taken for a constant",
        "L": "the log-sum-exp is taken for a constant"}


def _scores_back(s: Any, x: Any, **times: float) -> Any:
    """dA_dot, each part of it so many times."""
    c = dict.fromkeys(CHAIN, 1.0) | times
    into = c["V"] * s.dP_dot + c["A"] * s.A_dot * (s.dP - c["D"] * s.D) - c["mu"] * s.dP * s.mu
    return s.shown(s.P_t * (into - c["row"] * rowsum(s.P_t * into)))


def _frozen(held: tuple[str, ...]) -> StepChanges:
    """The steps that differ where these are constants to autograd."""
    without = {"mu": 0.0} if {"D", "O"} & set(held) else {}
    without |= {"row": 0.0} if "L" in held else {}
    found: dict[str, Any] = {"dA_dot": lambda s, x: _scores_back(s, x, **without)}
    if "mu" in without:
        found["dvalues_dot"] = lambda s, x: T(s.P_t * s.A_dot * s.R_dV) @ s.dO
    if "D" in held:
        found["PdotV"] = lambda s, x: (s.P_t * s.A_dot * s.R_P) @ s.values_t
    return found


def reverse() -> Iterator[SecondEdit]:
    """A part of what comes into P is missing, or is not one of it; statistics that are constants."""
    def always(change: StepChanges) -> Change:
        return lambda case, means: change

    for part, words in CHAIN.items():
        for said, c in TIMES.items():
            def change(s: Any, x: Any, part: str = part, c: float = c) -> Any:
                return _scores_back(s, x, **{part: c})
            if (part, c) != ("row", 0.0):  # which is the constant log-sum-exp
                yield SecondEdit(f"into P {part} {said}", f"{words} {AT} {said}", always({"dA_dot": change}))
    for held in (("D",), ("O",), ("L",), ("D", "L"), ("O", "L")):
        title = " and ".join(HELD[x] for x in held)
        yield SecondEdit(f"{'+'.join(held)} constant", f"{title} in the backward", always(_frozen(held)))
