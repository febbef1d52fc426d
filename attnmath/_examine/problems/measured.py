"""How far a right answer with pieces may be off: measured, several times what roundings of all letters move."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.pieces import collected
from attnmath._examine.problems.steps import StepChanges, Steps
from attnmath.rounding.formats import FORMATS, unit_roundoff

Program = Callable[[Conventions, Sequence[StepChanges]], Any]  # to an answer, by these conventions and changes
SEVERAL = 8.0  # times the error that was measured
DRAWS = 3  # of roundings
SHAKEN = ("Q", "K", "V", "dO", "QK", "A", "P", "O", "X_back", "A_back", "P_back", "dP", "D", "dC", "dA",
          "dQ", "dkeys", "dvalues", "dK", "dV", "dQ_normed", "dK_normed", "dQ_left", "dK_left")


def measured_bounds(program: Program, means: Conventions, dtype: str, shaken: Sequence[str] = SHAKEN) -> Any:
    """A right answer, and by how much it moves when every letter is off by a rounding: alike in all an output."""
    u = unit_roundoff(dtype)
    u = max(u, unit_roundoff("float32")) if means.pieces.float32 else u
    right, least = program(means, ()), 2.0 ** FORMATS[dtype].low
    moved = [program(*_moved(means, u, least, np.random.default_rng(seed), shaken)) for seed in range(DRAWS)]
    there = {letter: x for letter, x in right._asdict().items() if x is not None}
    return right, right._replace(**several_times(there, [other._asdict() for other in moved], u))


def several_times(
    right: Mapping[str, np.ndarray], moved: Sequence[Mapping[str, np.ndarray]], u: float
) -> dict[str, np.ndarray]:
    """For each letter, several times the largest distance from what moved, for all entries alike."""
    allowed = {}
    for letter, x in right.items():
        errors = [abs(y - x) for other in moved if (y := other.get(letter)) is not None]
        largest = max(float(size[np.isfinite(size)].max(initial=0.0)) for size in (*errors, u * abs(x)))
        allowed[letter] = np.where(np.isfinite(x), SEVERAL * largest + np.finfo(float).tiny, np.nan)
    return allowed


def _moved(
    means: Conventions, u: float, least: float, rng: np.random.Generator, shaken: Sequence[str]
) -> tuple[Conventions, tuple[StepChanges, ...]]:
    """Each letter off by u of it, up or down; weights lose what is below the least number too."""

    def signs(x: np.ndarray) -> np.ndarray:
        return rng.choice([-1.0, 1.0], x.shape)

    def shake(_: Steps, x: np.ndarray | None) -> np.ndarray | None:
        return None if x is None else x * (1 + u * signs(x))

    def lose(s: Steps, x: np.ndarray) -> np.ndarray:
        return x * (1 + u * signs(x)) - np.minimum(x, least)

    def straighten(_: Steps, x: np.ndarray) -> np.ndarray:
        return x + 2 * u * signs(x)  # 1 - tanh^2, near 0

    def unproject(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
        sizes = np.sqrt((dy * dy).mean(means.pieces.axes, keepdims=True))  # a part of it cancels
        return 2 * u * sizes / means.pieces.root(x) * signs(x)

    angle = rng.choice([-4.0, 4.0]) * min(u, unit_roundoff("float32"))
    changes: StepChanges = dict.fromkeys(shaken, shake) | {"P": lose, "P_back": lose}
    if means.pieces.cap is not None:
        changes = {**changes, "bend": straighten}
    if means.pieces.norm is not None:
        changes = {**changes, "dQ_left": lambda s, x: x + unproject(s.dQ_normed * s.gain_Q, s.Q_in),
                   "dK_left": lambda s, x: x + unproject(s.dK_normed * s.gain_K, s.K_in)}
    if means.pieces.latent is not None:
        changes = {**changes, **means.pieces.latent.moving(u, signs)}
    if "table" in means.pieces.learned:  # each pair of a bucket may be added to a sum that is rounded
        changes = {**changes, "dtable": lambda s, x: x * (1 + u * signs(x)) + u * signs(x) * np.sqrt(
            collected(s, np.ones_like(s.dC)) * collected(s, s.dC**2))}
    return replace(means, pieces=means.pieces.shaken(angle, rng)), (changes,)
