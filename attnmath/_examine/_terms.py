"""Which multiples of the separate terms of a gradient are what was given? Least squares."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._steps import Steps, T, grouped, summed_to


class Fit(NamedTuple):
    """Coefficients of the terms with dP and of those with D, one for each member of a group."""

    dP: np.ndarray
    D: np.ndarray | None
    off: float  # how far a coefficient may be off

    def all(self, c: float) -> bool:
        """Whether every coefficient is c."""
        both = self.dP if self.D is None else np.concatenate([self.dP, self.D])
        return self.near(both, c)

    def near(self, x: np.ndarray, c: float | np.ndarray) -> bool:
        """Whether coefficients are c, up to rounding."""
        return bool(np.all(np.abs(x - c) <= self.off * (1 + np.abs(c))))


def terms(case: Case, means: Conventions) -> dict[str, tuple[list[np.ndarray], list[np.ndarray]]]:
    """For each output the terms with dP, and those with D with their sign."""
    s = Steps(case, means)
    through, row = s.P * s.dP, -s.P * s.D
    G = s.K.shape[1]
    place = np.array([np.sum(s.owner[:h] == g) for h, g in enumerate(s.owner)])  # in its group

    def members(x: np.ndarray) -> list[np.ndarray]:
        return [grouped(x * (place == j)[:, None, None], s.owner, G) for j in range(place.max() + 1)]

    found = {
        "O": ([s.O], []),
        "dQ": ([s.gamma * through @ s.keys], [s.gamma * row @ s.keys]),
        "dK": (members(s.gamma * T(through) @ s.Q), members(s.gamma * T(row) @ s.Q)),
        "dV": (members(T(s.P * s.R) @ s.dO), []),
    }
    if case.bias is not None:
        found["dB"] = ([summed_to(through, case.bias)], [summed_to(row, case.bias)])
    return found


def fits(case: Case, means: Conventions, got: Answer, off: Answer) -> Iterator[tuple[str, Fit]]:
    """For each output that is a sum of multiples of its terms, up to rounding: the multiples."""
    for letter, (dP, D) in terms(case, means).items():
        x, bound = getattr(got, letter), getattr(off, letter)
        if x is None or not np.isfinite(x).all():
            continue
        every = np.stack([t.ravel() for t in (*dP, *D)], 1)
        size = np.abs(every).sum(1)
        least = bound.ravel() + 1e-15 * size
        if not (np.isfinite(every).all() and np.isfinite(least).all()):
            continue
        weigh = 1 / np.where(least > 0, least, max(least.max(initial=0.0), 1e-300))
        c, _, rank, sizes = np.linalg.lstsq(every * weigh[:, None], x.ravel() * weigh, rcond=None)
        if rank < every.shape[1] or every.shape[0] < 2 * every.shape[1]:
            continue
        error = np.abs(x.ravel() - every @ c)
        if np.all(error <= 2 * (1 + np.abs(c).max()) * least):
            n = len(dP)
            yield letter, Fit(c[:n], c[n:] if D else None, 4 / sizes.min())

