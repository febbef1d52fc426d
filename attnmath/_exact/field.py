"""Finite fields with letters drawn at random, and the numbers that are read into them."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any, Self

import numpy as np

from attnmath._exact.entries import Home, Infinite, check_sure
from attnmath._exact.numbers import Number
from attnmath._exact.outcomes import not_algebraic
from attnmath._exact.primes import Radicands, chain, element, reconstructed

SIGNIFICANT = 32  # bits of a float that is taken as the fraction it is, as 0.5
MOST_DIGITS = 12  # of a float that is read as the decimal it shows, as 0.1
SHORT = 8  # the same for float16 and float32


class FiniteField(Home[Number]):
    """The primes, the letters drawn so far, and what the constants are.

    depth is how often an exponential may stand inside of another one, at most 2.
    """

    def __init__(
        self, seed: int = 0, attempt: int = 0, depth: int = 1, has_i: bool = False, primes: int = 0
    ) -> None:
        self.o, self.p, self.q = (1, 1, *chain(primes, depth + 1, has_i))[-3:]
        self.depth, self.has_i = depth, has_i
        self.rng = Random(f"letters {seed} {attempt}")
        self.of_reals = Random(f"reals {seed}")
        self.of_unknowns = Random(f"logarithms and maxima {seed} {attempt}")
        self.g = element(self.p, self.q, self.rng)
        self.h = element(self.o, self.p, self.rng) if depth > 1 else 1
        self.turned = [self.rng.randrange(1, self.p) for _ in "gh"]  # cos and sin: exp with this
        self.constants: dict[Any, Number] = {}
        self.zero, self.one, self.minus_one = map(self.constant, (0, 1, -1))
        self.radicands = Radicands(self.q)
        self.logs: dict[int, Number] = {}  # by the value of what they are of
        self.has_logs = False  # which are unknowns
        self.maxima: dict[Any, Number] = {}  # a constant for each row, in place of its maximum
        self.takes_entries = False  # of the rows as their maxima
        self.primes_with_roots: set[int] = set()  # those whose roots were taken
        self.decimals: set[str] = set()  # floats that were read as decimals
        self.looked = False  # whether letters are equal, or 0
        self.inside = 0  # the degree of what logarithms and maxima are of, by which they are told apart
        self.start = self.rng.getstate(), self.of_reals.getstate()

    def again(self) -> Self:
        """The point from its first letter on."""
        for rng, state in zip((self.rng, self.of_reals), self.start):
            rng.setstate(state)
        return self

    @contextmanager
    def taking_entries(self) -> Iterator[None]:
        """The point from its first letter on, with entries of the rows as their maxima."""
        self.again().takes_entries = True
        try:
            yield
        finally:
            self.again().takes_entries = False

    def look(self, x: Number, y: Number) -> None:
        """Remember that x == y was asked of letters, unless x is surely not y = 0."""
        is_known = x.sure and y.sure and not (x.top or y.top or x.bottom or y.bottom)
        if not is_known and not (y.is_zero and y.sure and (x.terms or abs(x.sign) == 2)):
            self.looked = True

    # ---- numbers -------------------------------------------------------------------------

    def letter(self) -> Number:
        """A new unknown."""
        return self._drawn(self.rng, self.of_reals.gauss(0, 1))

    def _drawn(self, rng: Random, real: float) -> Number:
        second = rng.randrange(self.o) if self.depth > 1 else None
        return Number(self, rng.randrange(self.q), rng.randrange(self.p), second, real, 1, sure=2)

    def positive(self) -> Number:
        """A new unknown that has a root."""
        x = self.letter() ** (8 if self.has_i else 2)
        x.sign = 2
        self.radicands.take_square(x.value * x.value % self.q)
        return x

    def constant(self, x: int | Fraction) -> Number:
        """A whole number or a fraction."""
        if x not in self.constants:
            fraction, primes = Fraction(x), (self.q, self.p, self.o)
            value, exponent, second = (fraction.numerator * pow(fraction.denominator, -1, p) % p for p in primes)
            sign = 1 if fraction == 0 else 2 if fraction > 0 else -2
            number = Number(self, value, exponent, second if self.depth > 1 else None, _float(fraction),
                            sign=sign, sure=2)
            number.terms = () if x == 0 else (number,) if x == 1 else None
            self.constants[x] = number
        return self.constants[x]

    def other(self, x: Any, operation: str) -> Any:
        """The other side of an operation as a number; NotImplemented for arrays."""
        if isinstance(x, Number | Infinite):
            if x.point is not self:
                raise not_algebraic(f"{operation} of letters of two different points")
            return x
        is_short = isinstance(x, np.float16 | np.float32)
        if isinstance(x, np.generic):
            x = x.item()
        if isinstance(x, int | Fraction):
            return self.constant(x)
        if isinstance(x, float):
            return self._of_float(x, operation, SHORT if is_short else SIGNIFICANT)
        if isinstance(x, complex):
            raise not_algebraic(f"{operation} with the complex number {x}")
        return NotImplemented

    def _of_float(self, x: float, operation: str, bits: int) -> Any:
        if abs(x) == math.inf:
            return Infinite(self, 1 if x > 0 else -1)
        if x != x:
            raise not_algebraic(f"{operation} with nan")
        fraction = Fraction(x)
        if fraction.numerator.bit_length() <= bits:
            return self.constant(fraction)
        written = repr(float(x))
        if bits == SHORT or len(Decimal(written).normalize().as_tuple().digits) > MOST_DIGITS:
            why = ("(a float that is rounded: give a Fraction, an argument of the function, or sizes"
                   " whose roots are whole)")
            raise not_algebraic(f"undecided: {operation} with {x!r}", why)
        self.decimals.add(written)
        return self.constant(Fraction(written))

    def rational(self, x: Any) -> Fraction | None:
        """The whole number or small fraction that x is; None if it is none."""
        if not isinstance(x, Number):
            x = self.other(x, "**")
        if not isinstance(x, Number) or x.top or x.bottom or not x.sure:
            return None
        return reconstructed(x.value, self.q)

    def compare(self, x: Number, other: Any, sign: str, holds: Callable) -> Any:
        """Whether x < y, for two constants or beside infinity."""
        y = self.other(other, sign)
        if y is NotImplemented:
            return y
        if isinstance(y, Infinite):
            check_sure(x, y)
            return holds(0, y.sign)
        sides = self.rational(x), self.rational(y)
        if None in sides:
            raise not_algebraic(f"'{sign}' of letters")
        return holds(*sides)


def _float(x: Fraction) -> float:
    """The fraction, or infinity, in float64."""
    is_large = x.numerator.bit_length() - x.denominator.bit_length() > 1022
    if is_large:
        return math.inf if x > 0 else -math.inf
    return float(x)
