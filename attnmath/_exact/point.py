"""A random point of finite fields, at which letters and their functions have values.

What is no rational function of letters is a new unknown: exponentials, sines, roots, logarithms, maxima.
"""

import cmath
import math
from fractions import Fraction
from typing import Any

from attnmath._exact.entries import Infinite
from attnmath._exact.field import FiniteField
from attnmath._exact.numbers import Number
from attnmath._exact.outcomes import (
    Circles,
    Deeper,
    NotAlgebraic,
    NoValue,
    OtherPrimes,
    Redraw,
    caller,
    leaving,
    not_algebraic,
)
from attnmath._exact.primes import SMALL, Residue, is_square, root, root_of_minus_one, square_part
from attnmath._words.tolerance import CLOSE

SUMMANDS = 64  # of an exponent: so many scores and constants of rows are added up at most


class Point(FiniteField):
    """A field and its functions: each is a new letter, with the laws that it obeys."""

    def exp(self, x: Number) -> Number:
        """g to the power x, times what x is a logarithm of."""
        exponent, second = self._needed(x.exponent, "exp"), None
        if x.value == 0 and not (x.top or x.bottom) and x.slopes is None:
            return self.one.as_sure_as(x)
        if self.depth > 1 and x.second is not None:
            second = pow(self.h, self._needed(x.second, "exp"), self.p)
        real = math.exp(max(-700.0, min(_real(x), 700.0)))
        value = pow(self.g, exponent, self.q)
        e = Number(self, value, second, None, real, SUMMANDS, SUMMANDS, sign=2, sure=x.sure)
        if x.factor is not None:
            e = e.times(x.factor)
            e._real, e.sign, e.sure = real, 2, x.sure
        e.log_of, e.terms = ("is", x, x), (e,)
        self.logs.setdefault(e.value, x.bare().known_as(0, 0))
        if x.slopes is not None:
            e.slopes = [(x, e.bare())]
        return e

    def circle(self, x: Number) -> tuple[Number, Number]:
        """cos x and sin x, from exp(i x)."""
        if not self.has_i:
            raise Circles
        exponent = self._needed(x.exponent, "sin or cos")
        if x.factor is not None:
            raise not_algebraic("sin or cos of a logarithm")
        second, lower, at = None, None, _real(x)
        if self.depth > 1:
            second = pow(self.h, self.turned[1] * self._needed(x.second, "sin or cos"), self.p)
            lower = root_of_minus_one(self.p)
        value = pow(self.g, self.turned[0] * exponent, self.q)
        real = cmath.exp(1j * at) if math.isfinite(at) else math.nan
        w = Number(self, value, second, None, real, SUMMANDS, SUMMANDS)
        i = Number(self, root_of_minus_one(self.q), lower, None, 1j)
        if x.slopes is not None:
            w.slopes = [(x, w.bare().times(i))]
        cos, sin = (w + w.inverse()) / 2, (w - w.inverse()) / (2 * i)
        cos._real, sin._real = (f(at) if math.isfinite(at) else math.nan for f in (math.cos, math.sin))
        cos.sure = sin.sure = x.sure
        return cos, sin

    def _needed(self, exponent: Residue, function: str) -> int:
        """The exponent, if there is one."""
        if exponent is None:
            said = "of what contains so many exponentials or unusual multiples of logarithms"
            raise Deeper(leaving(f"{function} {said}", "(exp(n log x) is x**n, for multiples n of 1/2)"))
        if not isinstance(exponent, int):
            raise Redraw
        return exponent

    def sqrt(self, x: Number) -> Number:
        """The positive root: what is known of it, or a new unknown of odd order."""
        if x.value == 0 and x.slopes is not None:
            raise not_algebraic("the derivative of the root of 0")
        if x.value == 0:
            return self.zero.as_sure_as(x)
        y = self._sqrt(x.bare())
        if y.top or y.bottom:
            y = y.known_as(y.sign, min(x.sure, 1) if x.sign > 0 else 0)
        if x.slopes is not None:
            y = y.remade([(x, (y * 2).inverse())], y.sign, y.sure)
        return y

    def _sqrt(self, x: Number) -> Number:
        """The same without derivatives; roots of factors where these are positive."""
        constant = self.rational(x)
        if constant is not None:
            return self.root_of_number(constant)
        made, a, b = x.log_of or ("", x, x)
        if made == "is":
            return self.exp(a.bare() / 2)
        if made == "+" and a.value == b.value and a.sign:
            return a.bare() if a.sign > 0 else -b.bare()
        if made == "+" and 2 in (a.sign, b.sign):
            return self._sqrt(a.bare()) * self._sqrt(b.bare())
        if made == "-":
            return self._sqrt(a.bare()) / self._sqrt(b.bare())
        return self._root(x)

    def root_of_number(self, x: Fraction) -> Number:
        """The product of the roots of the primes in a fraction."""
        if x < 0:
            raise not_algebraic(f"the root of {x}")
        if x.denominator > 1:
            return self.root_of_number(Fraction(x.numerator)) / self.root_of_number(Fraction(x.denominator))
        whole, primes = square_part(x.numerator)
        y = self.constant(whole)
        for prime in primes:
            y = y * self._root_of_prime(prime)
        return y

    def _root_of_prime(self, prime: int) -> Number:
        self.primes_with_roots.add(prime)
        value, exponent = root(prime, self.q), root(prime, self.p)
        second = root(prime, self.o) if self.depth > 1 else None
        if not isinstance(value, int) or exponent != exponent or second != second:
            raise OtherPrimes
        half = "half", self.constant(prime), self.constant(prime)
        return Number(self, value, exponent, second, math.sqrt(prime), log_of=half, sign=2, sure=2)

    def _root(self, x: Number) -> Number:
        """The root of odd order; times that of a number, if it follows from earlier ones."""
        which, number = self.radicands.number(x.value)
        if number != 1:
            rest = x / self.constant(number)
            return self.root_of_number(number) * self._root_of_odd_order(rest, which)
        return self._root_of_odd_order(x, which)

    def _root_of_odd_order(self, x: Number, which: int) -> Number:
        value, exponent, second = root(x.value, self.q), root(x.exponent, self.p), root(x.second, self.o)
        if not isinstance(value, int):  # only what is no square shows that its roots are alike
            raise Redraw(0 if is_square(x.value, self.q) else which)
        if x.factor is not None:  # the exponent is that of exp without its factor
            exponent = second = None
        real = math.sqrt(_real(x)) if _real(x) > 0 else math.nan
        return Number(self, value, exponent, second, real, x.top, x.bottom, None, ("half", x, x),
                      sign=2 if x.sign == 2 else 1)

    def log(self, x: Number) -> Number:
        """An unknown whose exponential is x; it moves with x, whatever it is made of."""
        made, exponent, _ = x.log_of or ("", x, x)
        if made == "is" and x.slopes is None:
            return exponent.bare()
        if made == "is" and x.slopes and x.slopes[0][0] is exponent:
            return exponent
        y = self._log(x.bare())
        y = y.known_as(y.sign, min(x.sure, 1) if x.sign == 2 else 0)
        return y if x.slopes is None else y.remade([(x, x.bare().inverse())], y.sign, y.sure)

    def _log(self, x: Number) -> Number:
        """The same without derivatives; sums and differences where x is made by exp, *, /."""
        if x.value == 0:
            raise NoValue(f"undecided: the logarithm of 0, at {caller()}")
        if x.value not in self.logs:
            self.logs[x.value] = self._new_log(x)
        return self.logs[x.value]

    def _new_log(self, x: Number) -> Number:
        constant = self.rational(x)
        if constant is not None:
            return self._log_of_constant(constant)
        if x.terms:
            return self._log_of_terms(x, x.terms)
        made, a, b = x.log_of or ("", x, x)
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

    def _log_of_terms(self, x: Number, terms: tuple[Number, ...]) -> Number:
        """log(e^a + e^b + ...) = a + log(1 + e^(b-a) + ...), for the term where this is smallest.

        So it is the same unknown when all of a, b, ... are shifted, or change places.
        """
        if len(terms) == 1 and terms[0].value == x.value:
            return self._product_log(terms[0])
        shares = [(x.bare().times(term.bare().inverse()), term) for term in terms]
        share, term = min(shares, key=lambda pair: pair[0].value)
        found = self._product_log(term) + self._known_log(share)
        found._real = _real_log(x)  # of terms of a cosine, which are not real, as well
        return found

    def _product_log(self, x: Number) -> Number:
        """The logarithm of a product of exponentials."""
        made, a, b = x.log_of or ("", x, x)
        if made == "is":
            return a.bare()
        if made in ("+", "-"):
            return self._log(a.bare())._sum(self._log(b.bare()), 1 if made == "+" else -1)
        return self.zero  # of 1 itself

    def _known_log(self, x: Number) -> Number:
        """The logarithm of what was met before, or a new unknown."""
        if x.value not in self.logs:
            real = _real_log(x)
            self.has_logs = True
            self.inside = max(self.inside, 2 * (x.top + x.bottom))
            found = self.logs[x.value] = self._drawn(self.of_unknowns, real)
            found.exponent, found.second, found.factor = 0, found.second and 0, x
        return self.logs[x.value]

    def joined_factors(self, a: Number, b: Number, sign: int) -> Number:
        """What exp(a + b) or exp(a - b) is multiplied by."""
        first, second = (self.one if x.factor is None else x.factor for x in (a, b))
        return first.times(second if sign == 1 else second.inverse())

    def multiply_factor(self, product: Number, a: Number, b: Number) -> None:
        """exp of n log s is s^n; of another multiple of a logarithm it is not known."""
        factor, power = (b.factor, self.rational(a)) if a.factor is None else (a.factor, self.rational(b))
        if factor is None or power is None or power.denominator > 2:
            product.exponent = product.second = None
        else:
            product.factor = factor**power

    def maximum(self, row: Any) -> Any:
        """A constant of its own for each row that has letters: what a maximum may be as well.

        Or the entry that is the largest at a point of real numbers, as it is near that point.
        """
        finite = [x for x in row if not isinstance(x, Infinite) or x.sign > 0]
        found = self._largest(finite) if finite else row[0]
        return found.as_sure_as(found, *row)

    def _largest(self, row: list) -> Any:
        by_key = {x.key: x for x in row}
        if len(by_key) == 1:
            return row[0]
        constants = [None if isinstance(x, Infinite) else self.rational(x) for x in row]
        known = [(constant, -k) for k, constant in enumerate(constants) if constant is not None]
        if len(known) == len(row):
            return row[-max(known)[1]]
        key = tuple(sorted(by_key))
        if key not in self.maxima:
            self.maxima[key] = self._drawn(self.of_unknowns, max(map(_real, row)))
            degrees = [x.top + x.bottom for x in row if isinstance(x, Number)]
            self.inside = max(self.inside, 2 * max(degrees, default=0))
        if not self.takes_entries:
            signs = [x.sign for x in row]
            sign = max(signs) if max(signs) > 0 or min(signs) < 0 and 0 not in signs else 0
            return self.maxima[key].known_as(sign, 1)
        if any(_real(x) != _real(x) for x in row):
            raise NotAlgebraic("undecided: a maximum, where no point of real numbers is at hand")
        second, largest = sorted(by_key.values(), key=_real)[-2:]
        if _real(largest) - _real(second) <= CLOSE * abs(_real(largest)):
            raise NotAlgebraic("undecided: a maximum of two numbers that float64 hardly tells apart")
        return largest


def _real(x: Number | Infinite) -> float:
    """Its value at the point of real numbers; nan for a part of a cosine, which is not real there."""
    at = x._real
    if not isinstance(at, complex):
        return at
    return at.real if abs(at.imag) <= CLOSE * abs(at) else math.nan  # of the slope of a cosine


def _real_log(x: Number) -> float:
    return math.log(_real(x)) if _real(x) > 0 else math.nan
