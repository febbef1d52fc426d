"""Mistakes of masks, of the bias, of causal alignment and of groups."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from attnmath._examine._case import Case, Conventions
from attnmath._examine._mistake import Forms
from attnmath._examine._steps import Change, Steps, grouped


def other(case: Case, **changes: object) -> Callable[[Steps], np.ndarray]:
    return lambda s: replace(case, **changes).B(s.means)


def mask_forgotten(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    for word, change in (
        ("", dict(keep=None, causal=False)), ("the causal mask", dict(causal=False)),
        ("the mask that is given", dict(keep=None)),
    ):  # fmt: skip
        if any(getattr(case, k) is not None and getattr(case, k) is not False for k in change):
            B = other(case, **change)
            yield word, {"B_back": lambda s, x, B=B: B(s)}
    if case.bias is not None and np.isneginf(case.bias).any():
        yield "", {"B_back": lambda s, x: np.zeros_like(x)}


def ignored(letter: str, **change: object) -> Forms:
    def forms(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
        other = replace(case, **change)
        if any(getattr(case, k) is not None and getattr(case, k) is not False for k in change):
            yield "", {letter: lambda s, x: getattr(Steps(other, s.means), letter)}

    return forms


def turned(case: Case, means: Conventions) -> Conventions:
    other = "upper_left" if means.causal != "upper_left" else "lower_right"
    return means.told(causal=other)


def aligned(*letters: str) -> Forms:
    def forms(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
        if case.causal:
            other = turned(case, means)
            yield "", {x: lambda s, y, x=x: getattr(Steps(case, other), x) for x in letters}

    return forms


def causal_shifted(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    n, m = case.Q.shape[2], case.K.shape[2]
    for word, by in (("a query does not see its own place", -1), ("a query sees one place too many", 1)):
        if case.causal:
            start = 0 if means.causal == "upper_left" else m - n
            seen = np.arange(m) <= np.arange(n)[:, None] + start + by
            if case.keep is not None:
                seen = seen & case.keep
            yield word, {"seen": lambda s, x, seen=seen: np.broadcast_to(seen, x.shape)}


def inverted(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    if case.keep is not None:
        other = replace(case, keep=~case.keep)
        yield "", {"seen": lambda s, x: other.seen(s.means)}


def finite_mask(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    for number in (-1.0, -10.0, -50.0, -100.0):
        yield f"{number:g} is added", {"B": lambda s, x, c=number: s.bias + np.where(s.seen, 0.0, c)}
        yield f"{number:g} in place of the score", {
            "A": lambda s, x, c=number: np.where(s.seen, x, c),
            "A_back": lambda s, x, c=number: np.where(s.seen, x, c),
            "dA": lambda s, x: np.where(s.seen, x, 0.0),
        }


def mask_by_zero(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    def scores(s: Steps) -> np.ndarray:
        return np.where(s.seen, s.gamma * s.QK + s.bias, 0.0)

    if not case.seen(means).all():
        yield "", {"A": lambda s, x: scores(s), "A_back": lambda s, x: scores(s),
                   "dA": lambda s, x: np.where(s.seen, x, 0.0)}  # fmt: skip


def map(case: Case, means: Conventions) -> np.ndarray:
    return case.owner(means.told(groups="blocks" if means.groups == "interleaved" else "interleaved"))


def mapped(letter: str) -> Forms:
    return lambda case, means: iter([("", {letter: lambda s, x: map(case, means)})])


def group(pick: Callable[[np.ndarray], float]) -> Change:
    """Sums over groups in which each member has the weight that pick gives."""

    def over(x: np.ndarray, s: Steps) -> np.ndarray:
        weight = np.zeros(len(s.owner_back))
        for g in range(s.K.shape[1]):
            weight[s.owner_back == g] = pick(np.flatnonzero(s.owner_back == g))
        return grouped(x * weight[:, None, None], s.owner_back, s.K.shape[1])

    return {"dK": lambda s, x: over(s.dkeys, s), "dV": lambda s, x: over(s.dvalues, s)}
