"""What is a new unknown at a point: exponentials, sines, roots, logarithms, maxima."""

import math
from fractions import Fraction
from typing import Any

from attnmath._algebraic import Circles, Deeper, NotAlgebraic, OtherPrimes, Redraw, not_algebraic
from attnmath._infinity import Infinite
from attnmath._numbers import Number
from attnmath._primes import SMALL, is_square, root, root_of_minus_one

TERMS = 64  # of an exponent: so many scores and constants of rows are added up at most


class Unknowns:
    """The functions of a point: each is a new letter, with the laws that it obeys."""

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
