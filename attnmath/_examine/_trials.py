"""What single problems and laws see of the dictionary's mistakes, for chapters/examine.md."""

from collections.abc import Iterable

import numpy as np

from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._families import made
from attnmath._examine._mistakes import MISTAKES
from attnmath._examine._settings import Setting
from attnmath._examine._steps import Change, Steps, T, grouped
from attnmath._examine._yardstick import bounds, judge, right
from attnmath._rounded_heads import fused_head
from attnmath._roundoff import nearest

USUAL = Conventions(causal="lower_right")
KNOWN = {m.name: m for m in reversed(MISTAKES)}  # the first form of each
EXACT = 1e-12  # of the sizes that are summed up: some dozen roundings


def problem(sizes: tuple, family: str = "gaussian", dtype: str = "float64", **kind: object) -> Case:
    """A problem of the sizes b, H, G, n, m, d_k, d_v."""
    return made(Setting(family, sizes, **kind), dtype, np.random.default_rng(3))


def wrong(case: Case, mistake: str | Change, dtype: str = "float64") -> Answer | None:
    """What a program with this mistake returns; None where the problem has no room for it."""
    change = mistake
    if isinstance(mistake, str):
        _, change = next(KNOWN[mistake].forms(case, USUAL), (None, None))
    if change is None:
        return None
    answer = Steps(case, USUAL, [change]).answer()
    return Answer(*(None if x is None else nearest(x, dtype) for x in answer))


def kernel(case: Case, dtype: str) -> Answer:
    """What a right kernel with tiles returns that rounds every operation, head by head."""
    gamma, B = case.gamma(USUAL), np.zeros((case.Q.shape[2], case.K.shape[2]))
    answers = []
    for x in zip(case.dO[0], case.Q[0], case.K[0], case.V[0]):
        O, _, back = fused_head(*x, B, gamma, dtype)
        answers.append((O, *back[:3]))
    return Answer(*(np.stack(x)[None] for x in zip(*answers)))


def worst(case: Case, got: Answer, dtype: str = "float64") -> float:
    """The largest error of an entry, in units of its bound."""
    found = judge(got, right(case, USUAL), bounds(case, USUAL, dtype), None)
    return max(letter.ratio for letter in found.values())


def seen(case: Case, names: Iterable[str]) -> set[str]:
    """Those of the mistakes whose answer is outside of the bounds."""
    want, off = right(case, USUAL), bounds(case, USUAL, "float64")
    answers = {name: wrong(case, name) for name in names}
    return {name for name, got in answers.items() if got is not None
            and not all(x.passed for x in judge(got, want, off, None).values())}  # fmt: skip


def lawful(case: Case, a: Answer) -> bool:
    """Whether four laws hold: of the keys, queries with keys, values with outputs, rows of dB."""
    G, owner = case.K.shape[1], Steps(case, USUAL).owner
    pairs = [
        (a.dK.sum(2), abs(a.dK).sum(2)),
        (grouped(T(case.Q) @ a.dQ, owner, G) - T(T(case.K) @ a.dK), T(abs(case.K)) @ abs(a.dK)),
        (T(case.V) @ a.dV - grouped(T(a.O) @ case.dO, owner, G), T(abs(case.V)) @ abs(a.dV)),
        (a.dB.sum(-1), abs(a.dB).sum(-1)),
    ]
    return all(abs(x).max() < EXACT * size.max() for x, size in pairs)
