"""Programs that round every step to a format: how far what they return is off, for the lines of arrows."""

from collections.abc import Callable

import numpy as np

from attnmath.page.scenes.settings import Change, Setting, divided, filling, setting
from attnmath.rounding import nearest, unit_roundoff


@filling
def rounded(values: dict, sizes: dict, dtype: str, inputs: str, off: Callable) -> None:
    """Inputs in the format, its unit roundoff, and by how much the program is off, and how far it may be.

    They are off(values, a rounding, what so many roundings make of 1).
    """

    def r(x: np.ndarray) -> np.ndarray:
        return nearest(x, dtype)

    for letter in inputs.split(", "):
        values[letter] = r(values[letter])
    u = unit_roundoff(dtype) + 2.0**-53
    values["u"] = np.array([[u]])
    values |= off(values, r, lambda steps: np.expm1(steps * u))


def row_sums(x: np.ndarray, r: Callable) -> np.ndarray:
    """The sums of rows, one term after the other."""
    total = np.zeros((len(x), 1))
    for column in x.T:
        total = r(total + column[:, None])
    return total


# ---- errors that are a part of what is allowed ---------------------------------------------------


def nothing(values: dict, sizes: dict) -> None:
    """No other change."""


def allowed(seed: int, *parts: str, bounds: Change = nothing, small: Change = nothing, limit: Change = nothing,
            **sizes: int) -> tuple[Setting, ...]:
    """Errors that are some part of the largest; in these sizes errors at the limit, small ones and large ones."""
    little, most = divided(512, "u"), (at_the_limit(*parts), limit)
    return (
        setting("a part of what is allowed", seed, little, divided(8, *parts), small, bounds),
        setting("all that is allowed", seed + 1, little, *most, small, bounds, **sizes),
        setting("all that is allowed, and much", seed + 1, divided(64, "u"), rolled, *most, bounds, **sizes),
    )


def rolled(values: dict, sizes: dict) -> None:
    """The last rows and columns first, so that no row is the smallest in both settings, and none the largest."""
    for name, x in values.items():
        values[name] = np.roll(x, 1, axis=tuple(range(x.ndim)))


@filling
def at_the_limit(values: dict, sizes: dict, *parts: str) -> None:
    """All errors as large as they may be, and what is multiplied of one sign: bounds are reached."""
    for name in parts:
        values[name] = values[name] * 0 + 1
    for name in ("Q", "K", "V", "B", "gamma", "dO"):
        for letter in (name, f"dot {name}"):
            if letter in values and letter != "B":
                values[letter] = values[letter] * values[letter] / 4


@filling
def turned(values: dict, sizes: dict, letter: str) -> None:
    """A letter of the other sign."""
    values[letter] = -values[letter]


def still(values: dict, sizes: dict) -> None:
    """Nothing moves."""
    values |= {name: 0 * x for name, x in values.items() if name.startswith("dot ")}


def both_sides(seed: int, letter: str) -> tuple[Setting, ...]:
    """Errors of a difference at their limit, where its sides have other signs: above 0, and below."""
    little = divided(512, "u"), at_the_limit("phi", "chi", "tau", "kappa", "psi", "omega")
    return (
        setting("a first key above the mean", seed, *little, turned("omega"), first_key(letter, 1)),
        setting("a first key below the mean", seed, *little, turned("psi"), first_key(letter, -1)),
    )


@filling
def first_key(values: dict, sizes: dict, letter: str, sign: int) -> None:
    """What the first key has is on one side of 0, and the mean of all keys on the other."""
    side = sign * np.where(np.arange(sizes["m"]) == 0, 1.0, -9.0)
    values[letter] = (1 + abs(values[letter])) * (side[:, None] if letter == "V" else side)
