"""Programs that round every step to a format: how far what they return is off, for the lines of arrows."""

from collections.abc import Callable

import numpy as np

from attnmath.page.scenes.settings import filling
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
