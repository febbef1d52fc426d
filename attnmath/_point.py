"""A random point of finite fields, at which letters and their exponentials have values."""

from collections.abc import Callable
from fractions import Fraction
from math import inf
from random import Random
from typing import Any

import numpy as np

from attnmath._algebraic import Circles, Deeper, Redraw, not_algebraic
from attnmath._infinity import Infinite
from attnmath._numbers import Number
from attnmath._primes import chain, element

SIGNIFICANT = 32  # bits of a float that is taken as the fraction it is: 0.5, but not 0.1
SMALL = 2**40  # a number without letters is the fraction of terms below this with its residue
TERMS = 64  # of an exponent: so many scores and constants of rows are added up at most


class Point:
    """The primes, the letters drawn so far, and the functions that are new unknowns.

    depth is how often an exponential may stand inside of another one, at most 2.
    """

    def __init__(
        self, seed: int = 0, attempt: int = 0, depth: int = 1, has_i: bool = False
    ) -> None:
        primes = (1, 1, *chain(seed, depth + 1, has_i))
        self.o, self.p, self.q = primes[-3:]
        self.depth, self.has_i = depth, has_i
        self.rng = Random(f"letters {seed} {attempt}")
        self.of_unknowns = Random(f"logarithms and maxima {seed} {attempt}")
        self.g = element(self.p, self.q, self.rng)
        self.h = element(self.o, self.p, self.rng) if depth > 1 else 1
        self.turned = self.rng.randrange(1, self.p)  # cos and sin: exp with this much more
        self.zero, self.one, self.minus_one = map(self.constant, (0, 1, -1))
        self.logs: dict[int, Number] = {}  # of what is no product: an unknown each
        self.exponents: dict[int, Number] = {}  # what exp has been taken of, by its value
        self.maxima: dict[Any, Number] = {}  # a constant for each row, in place of its maximum
        self.takes_entries = False  # of the rows as their maxima
        self.start = self.rng.getstate()

    def again(self, entries: bool = False) -> "Point":
        """The point from its first letter on; with entries of the rows as their maxima."""
        self.rng.setstate(self.start)
        self.takes_entries = entries
        return self

    # ---- numbers -------------------------------------------------------------------------

    def letter(self) -> Number:
        """A new unknown."""
        return self._drawn(self.rng)

    def _drawn(self, rng: Random) -> Number:
        second = rng.randrange(self.o) if self.depth > 1 else None
        return Number(self, rng.randrange(self.q), rng.randrange(self.p), second, 1)

    def constant(self, x: int | Fraction) -> Number:
        """A whole number or a fraction."""
        x, primes = Fraction(x), (self.q, self.p, self.o)
        residues = [x.numerator * pow(x.denominator, -1, p) % p for p in primes]
        if self.depth < 2:
            residues[2] = None
        return Number(self, *residues)

    def other(self, x: Any, operation: str) -> Any:
        """The other side of an operation as a number; NotImplemented for arrays."""
        if isinstance(x, Number | Infinite):
            if x.point is not self:
                raise not_algebraic(f"{operation} of letters of two different points")
            return x
        if isinstance(x, np.generic):
            x = x.item()
        if isinstance(x, int | Fraction):
            return self.constant(x)
        if isinstance(x, float):
            return self._of_float(x, operation)
        if isinstance(x, complex):
            raise not_algebraic(f"{operation} with the complex number {x}")
        return NotImplemented

    def _of_float(self, x: float, operation: str) -> Any:
        if abs(x) == inf:
            return Infinite(self, 1 if x > 0 else -1)
        if x != x:
            raise not_algebraic(f"{operation} with nan")
        fraction = Fraction(x)
        if fraction.numerator.bit_length() > SIGNIFICANT:
            why = "(a float that is rounded: give a Fraction, or an argument of the function)"
            raise not_algebraic(f"{operation} with {x!r}", why)
        return self.constant(fraction)

    def rational(self, x: Any) -> Fraction | None:
        """The whole number or small fraction that x is; None if it is none."""
        if not isinstance(x, Number):
            x = self.other(x, "**")
        if not isinstance(x, Number) or x.top or x.bottom:
            return None
        return reconstructed(x.value, self.q)

    def compare(self, x: Number, other: Any, sign: str, holds: Callable) -> Any:
        """Whether x < y, for two constants or beside infinity."""
        y = self.other(other, sign)
        if y is NotImplemented:
            return y
        if isinstance(y, Infinite):
            return holds(0, y.sign)
        sides = self.rational(x), self.rational(y)
        if None in sides:
            raise not_algebraic(f"'{sign}' of letters")
        return holds(*sides)

    # ---- functions that are unknowns -----------------------------------------------------

    def exp(self, x: Number) -> Number:
        """g to the power x, times what x is a logarithm of."""
        self._needs(x.exponent, "exp")
        if x.value == 0 and not (x.top or x.bottom):
            return self.one
        second = None
        if self.depth > 1 and x.second is not None:
            self._needs(x.second, "exp")
            second = pow(self.h, x.second, self.p)
        e = Number(self, pow(self.g, x.exponent, self.q), second, None, TERMS, TERMS)
        if x.factor is not None:
            e = e.times(x.factor)
        e.log_of = ("is", x, None)
        self.exponents[e.value] = x.bare()
        if x.slopes is not None:
            e.slopes = [(x, e.bare())]
        return e

    def turn(self, x: Number) -> tuple[Number, Number]:
        """exp(i x), and i."""
        if not self.has_i:
            raise Circles
        self._needs(x.exponent, "sin or cos")
        if x.factor is not None:
            raise not_algebraic("sin or cos of a logarithm")
        value = pow(self.g, self.turned * x.exponent, self.q)
        w = Number(self, value, None, None, TERMS, TERMS)
        i = Number(self, pow(2, (self.q - 1) // 4, self.q), None, None)  # 2 is no square
        if x.slopes is not None:
            w.slopes = [(x, w.bare().times(i))]
        return w, i

    def _needs(self, exponent: Any, function: str) -> None:
        if exponent is None:
            raise Deeper(str(not_algebraic(f"{function} of what contains exp so many times")))
        if exponent != exponent:
            raise Redraw

    def log(self, x: Number) -> Number:
        """An unknown whose exponential is x; sums and differences where x is made by exp, *, /."""
        if x.value == 0:
            raise ZeroDivisionError("exact arithmetic: the logarithm of 0")
        if x.value == 1 and not (x.top or x.bottom):
            return self.zero
        if x.log_of is None:
            return self._unknown_log(x)
        made, a, b = x.log_of
        if made == "is":
            return a
        if made == "half":
            return self.log(a) / 2
        return self.log(a) + self.log(b) if made == "+" else self.log(a) - self.log(b)

    def _unknown_log(self, x: Number) -> Number:
        found = self._known_log(x.value)
        if found is None:
            found = self.logs[x.value] = self._drawn(self.of_unknowns)
            found.exponent, found.second, found.factor = 0, found.second and 0, x.bare()
        if x.slopes is None:
            return found
        y = found.tracked()
        y.slopes = [(x, x.bare().inverse())]
        return y

    def _known_log(self, value: int) -> Number | None:
        """The logarithm of what was met before, or of it times an exponential."""
        if value in self.logs:
            return self.logs[value]
        for known, found in self.logs.items():
            ratio = value * pow(known, -1, self.q) % self.q
            if ratio in self.exponents:
                return found + self.exponents[ratio]
            ratio = pow(ratio, -1, self.q)
            if ratio in self.exponents:
                return found - self.exponents[ratio]
        return None

    def multiply_factor(self, product: Number, a: Number, b: Number) -> None:
        """exp of n log s is s^n; of another multiple of a logarithm it is not known."""
        a, b = (a, b) if a.factor is not None else (b, a)
        power = self.rational(b)
        if power is None or power.denominator > 2:
            product.exponent = product.second = None
        else:
            product.factor = a.factor**power

    def maximum(self, row: Any) -> Any:
        """A constant of its own for each row that has letters: what a maximum may be as well.

        Or one of the row's entries, since each is the largest for some values of the letters.
        """
        finite = [x for x in row if not isinstance(x, Infinite) or x.sign > 0]
        if not finite:
            return row[0]
        constants = [self.rational(x) if isinstance(x, Number) else None for x in finite]
        if None not in constants:
            return max(finite, key=self.rational)
        key = tuple(hash(x) for x in row)
        if key not in self.maxima:
            c = self.maxima[key] = self._drawn(self.of_unknowns)
            self.exp(c)  # so that the logarithm of exp(c) s is known from that of s
        if not self.takes_entries:
            return self.maxima[key]
        entry = finite[Random(f"{key} {self.p}").randrange(len(finite))]
        self.exp((self.maxima[key] - entry).bare())
        return entry


def reconstructed(value: int, q: int) -> Fraction | None:
    """The fraction of two terms below SMALL whose residue modulo q is value."""
    a, b, x, y = q, value, 0, 1
    while b >= SMALL:
        a, b, x, y = b, a % b, y, x - a // b * y
    return Fraction(b, y) if 0 < abs(y) < SMALL else None
