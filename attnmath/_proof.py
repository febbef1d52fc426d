"""What a proof in exact arithmetic says: what was compared, and the chance of an error."""

import math
from fractions import Fraction
from typing import NamedTuple

from attnmath._primes import BITS, CHOICE

SIGNS = 35  # times 2 to the number of such roots: points where their signs are drawn anew


class Proof(NamedTuple):
    """What was compared: entries, the degree of their differences, the points drawn.

    error bounds the probability that a statement which is false passes: points * degree
    / p for the smallest of the primes, and degree * 64 / 2^112 that the largest one,
    drawn among more than 2^112, divides all coefficients of a difference. Where the
    signs of some roots are drawn anew at every point, so many that a statement which is
    false for some of them passes with e^-35. decimals are the floats that were read as what
    they show: 0.1 as 1/10.
    """

    entries: int
    degree: int
    points: int
    signs: int = 0
    decimals: tuple = ()

    @property
    def error(self) -> float:
        at_points = Fraction(self.points * self.degree, 2 ** (BITS - 1))
        return float(at_points + Fraction(64 * self.degree, CHOICE)) + (self.signs > 0) * math.exp(-SIGNS)

    def __str__(self) -> str:
        said = (
            f"proved: {self.entries} entries agree; a false one of degree"
            f" {self.degree} passes with a probability below {self.error:.0e}"
        )
        read = ", ".join(f"{x} is read as {Fraction(x)}" for x in self.decimals)
        return f"{said}; {read}" if read else said
