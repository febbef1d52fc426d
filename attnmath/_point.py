"""A random point of finite fields, at which letters and their exponentials have values."""

import math
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np

from attnmath._algebraic import Circles, Deeper, NotAlgebraic, OtherPrimes, Redraw, not_algebraic
from attnmath._infinity import Infinite
from attnmath._numbers import Number
from attnmath._primes import SMALL, chain, element, is_square, root, root_of_minus_one
from attnmath._radicands import Radicands, reconstructed

SIGNIFICANT = 32  # bits of a float that is taken as the fraction it is: 0.5, but not 0.1
SHORT = 8  # the same for float16 and float32
TERMS = 64  # of an exponent: so many scores and constants of rows are added up at most


class Point:
    """The primes, the letters drawn so far, and the functions that are new unknowns.

    depth is how often an exponential may stand inside of another one, at most 2.
    """

    def __init__(
        self, seed: int = 0, attempt: int = 0, depth: int = 1, has_i: bool = False, primes: int = 0
    ) -> None:
        self.drawn = seed, attempt, depth, has_i, primes
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
        self.roots_of_numbers = False  # whether some were taken
        self.looked = False  # whether letters are equal, or 0
        self.start = self.rng.getstate(), self.of_reals.getstate()

    def again(self, entries: bool = False) -> "Point":
        """The point from its first letter on; with entries of the rows as their maxima."""
        for rng, state in zip((self.rng, self.of_reals), self.start):
            rng.setstate(state)
        self.takes_entries = entries
        return self

    def look(self, x: Number, y: Number) -> None:
        """Remember that x == y was asked, unless a sum of exponentials is beside 0: it is positive."""
        if (x.top or y.top) and not (x.terms and y.is_zero):
            self.looked = True

    # ---- numbers -------------------------------------------------------------------------

    def letter(self) -> Number:
        """A new unknown."""
        return self._drawn(self.rng, self.of_reals.gauss(0, 1))

    def _drawn(self, rng: Random, real: float) -> Number:
        second = rng.randrange(self.o) if self.depth > 1 else None
        return Number(self, rng.randrange(self.q), rng.randrange(self.p), second, real, 1)

    def positive(self) -> Number:
        """A new unknown that has a root."""
        x = self.letter() ** (8 if self.has_i else 2)
        self.radicands.take_square(x.value * x.value % self.q)
        return x

    def constant(self, x: int | Fraction) -> Number:
        """A whole number or a fraction."""
        if x not in self.constants:
            fraction, primes = Fraction(x), (self.q, self.p, self.o)
            residues = [fraction.numerator * pow(fraction.denominator, -1, p) % p for p in primes]
            residues[2] = residues[2] if self.depth > 1 else None
            self.constants[x] = number = Number(self, *residues, float(fraction))
            number.terms = {0: (), 1: (number,)}.get(x)
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
        if fraction.numerator.bit_length() > bits:
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
        real = math.exp(max(-700, min(x.real, 700)))
        e = Number(self, pow(self.g, x.exponent, self.q), second, None, real, TERMS, TERMS)
        if x.factor is not None:
            e = e.times(x.factor)
            e.real = real
        e.log_of, e.terms = ("is", x, None), (e,)
        self.logs.setdefault(e.value, x.bare())
        if x.slopes is not None:
            e.slopes = [(x, e.bare())]
        return e

    def circle(self, x: Number) -> tuple[Number, Number]:
        """cos x and sin x, from exp(i x)."""
        if not self.has_i:
            raise Circles
        self._needs(x.exponent, "sin or cos")
        if x.factor is not None:
            raise not_algebraic("sin or cos of a logarithm")
        second, lower = None, None
        if self.depth > 1:
            self._needs(x.second, "sin or cos")
            second = pow(self.h, self.turned[1] * x.second, self.p)
            lower = root_of_minus_one(self.p)
        value = pow(self.g, self.turned[0] * x.exponent, self.q)
        w = Number(self, value, second, None, 1.0, TERMS, TERMS)
        i = Number(self, root_of_minus_one(self.q), lower, None, 1.0)
        if x.slopes is not None:
            w.slopes = [(x, w.bare().times(i))]
        cos, sin = (w + w.inverse()) / 2, (w - w.inverse()) / (2 * i)
        cos.real, sin.real = math.cos(x.real), math.sin(x.real)
        return cos, sin

    def _needs(self, exponent: Any, function: str) -> None:
        if exponent is None:
            raise Deeper(str(not_algebraic(f"{function} of what contains exp so many times")))
        if exponent != exponent:
            raise Redraw

    def sqrt(self, x: Number) -> Number:
        """The root of odd order, which takes the place of the positive one."""
        constant = self.rational(x)
        if constant is not None and constant >= 0:
            roots = math.isqrt(constant.numerator), math.isqrt(constant.denominator)
            if roots[0] ** 2 == constant.numerator and roots[1] ** 2 == constant.denominator:
                return self.constant(Fraction(*roots))
        found = root(x.value, self.q), root(x.exponent, self.p), root(x.second, self.o)
        if x.value == 0:
            return self.zero if x.slopes is None else self._refuse_slope()
        if x.log_of is not None and x.log_of[0] == "is":
            y = self.exp(x.log_of[1].bare() / 2)
        else:
            y = self._root(x, found, constant is not None)
        if x.slopes is not None:
            y.slopes = [(x, (y.bare() * 2).inverse())]
        return y

    def _root(self, x: Number, found: tuple, is_constant: bool) -> Number:
        which = 0 if is_constant else self.radicands.number(x.value)
        self.roots_of_numbers |= is_constant
        if is_constant and any(part != part for part in found):
            raise OtherPrimes
        if found[0] != found[0]:  # only what is no square shows that its roots are alike
            raise Redraw(0 if is_square(x.value, self.q) else which)
        if x.factor is not None:  # the exponent is that of exp without its factor
            found = found[0], None, None
        real = x.real**0.5 if x.real > 0 else math.nan
        return Number(self, *found, real, x.top, x.bottom, None, ("half", x, None))

    def _refuse_slope(self) -> Number:
        raise not_algebraic("the derivative of the root of 0")

    def log(self, x: Number) -> Number:
        """An unknown whose exponential is x; it moves with x, whatever it is made of."""
        if x.slopes is None:
            return self._log(x)
        if x.log_of is not None and x.log_of[0] == "is" and x.slopes and x.slopes[0][0] is x.log_of[1]:
            return x.log_of[1]
        return self._log(x.bare())._with_slopes([(x, x.bare().inverse())])

    def _log(self, x: Number) -> Number:
        """The same without derivatives; sums and differences where x is made by exp, *, /."""
        if x.value == 0:
            raise ZeroDivisionError("exact arithmetic: the logarithm of 0")
        if x.value not in self.logs:
            self.logs[x.value] = self._new_log(x)
        return self.logs[x.value]

    def _new_log(self, x: Number) -> Number:
        constant = self.rational(x)
        if constant is not None:
            return self._log_of_constant(constant)
        if x.terms:
            return self._log_of_terms(x)
        made, a, b = x.log_of or ("", None, None)
        if made == "":
            return self._known_log(x)
        if made == "is":
            return a.bare()
        if made == "half":
            return self._log(a.bare()) / 2
        return self._log(a.bare())._sum(self._log(b.bare()), 1 if made == "+" else -1)

    def _log_of_constant(self, x: Fraction) -> Number:
        """The sum of the logarithms of its small factors, and of the rest."""
        found, rest = self.zero, x
        for factor in SMALL:
            while rest.numerator % factor == 0:
                found, rest = found + self._known_log(self.constant(factor)), rest / factor
            while rest.denominator % factor == 0:
                found, rest = found - self._known_log(self.constant(factor)), rest * factor
        return found if rest == 1 else found + self._known_log(self.constant(rest))

    def _log_of_terms(self, x: Number) -> Number:
        """log(e^a + e^b + ...) = a + log(1 + e^(b-a) + ...), for the term where this is smallest.

        So it is the same unknown when all of a, b, ... are shifted, or change places.
        """
        if len(x.terms) == 1 and x.terms[0].value == x.value:
            return self._product_log(x.terms[0])
        shares = [(x.bare().times(term.bare().inverse()), term) for term in x.terms]
        share, term = min(shares, key=lambda pair: pair[0].value)
        return self._product_log(term) + self._known_log(share)

    def _product_log(self, x: Number) -> Number:
        """The logarithm of a product of exponentials."""
        made, a, b = x.log_of or ("", None, None)
        if made == "is":
            return a.bare()
        if made in ("+", "-"):
            return self._log(a.bare())._sum(self._log(b.bare()), 1 if made == "+" else -1)
        return self.zero  # of 1 itself

    def _known_log(self, x: Number) -> Number:
        """The logarithm of what was met before, or a new unknown."""
        if x.value not in self.logs:
            real = math.log(x.real) if x.real > 0 else math.nan
            self.has_logs = True
            found = self.logs[x.value] = self._drawn(self.of_unknowns, real)
            found.exponent, found.second, found.factor = 0, found.second and 0, x
        return self.logs[x.value]

    def joined_factors(self, a: Number, b: Number, sign: int) -> Number:
        """What exp(a + b) or exp(a - b) is multiplied by."""
        first, second = (x.factor or self.one for x in (a, b))
        return first.times(second if sign == 1 else second.inverse())

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

        Or the entry that is the largest at a point of real numbers, as it is near that point.
        """
        finite = [x for x in row if not isinstance(x, Infinite) or x.sign > 0]
        if not finite:
            return row[0]
        if len({hash(x) for x in finite}) == 1:
            return finite[0]
        if all(isinstance(x, Number) and self.rational(x) is not None for x in finite):
            return max(finite, key=self.rational)
        key = tuple(sorted(hash(x) for x in finite))
        if key not in self.maxima:
            self.maxima[key] = self._drawn(self.of_unknowns, max(x.real for x in finite))
        if not self.takes_entries:
            return self.maxima[key]
        if any(x.real != x.real for x in finite):
            raise NotAlgebraic("undecided: a maximum, where no point of real numbers is at hand")
        return max(finite, key=lambda x: x.real)
