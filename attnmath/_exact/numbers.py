"""Numbers of exact arithmetic: letters at a random point of a finite field.

A number has its value modulo a large prime q. Made of letters by + - * / alone, it has one
modulo a prime p below q too, which is the exponent that exp raises a g of order p to: so
exp(x + y) = exp(x) exp(y) by construction, and exp(x) is a new unknown, since a letter modulo p
and modulo q are independent. It counts its degree, and keeps its derivatives.
"""

import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

from attnmath._exact.entries import ExactEntry, Home, check_sure, sign_of_product, sign_of_sum
from attnmath._exact.outcomes import NoValue, caller, not_algebraic
from attnmath._exact.primes import Residue, inverse_mod

SIGN = {2: 2, 1: 2, 0: 0, -1: -2, -2: -2}  # of 1 / x, where it has a value
MOST_TERMS = 64  # of a sum of exponentials whose logarithm is known from those of others
Slopes: TypeAlias = Sequence[tuple[ExactEntry, "Number"]] | None


def _comparison(sign: str, holds: Callable) -> Callable[["Number", Any], Any]:
    return lambda x, other: x.point.compare(x, other, sign, holds)


class Number(ExactEntry):
    """A rational function of letters and their exponentials, at a random point."""

    __slots__ = ("point", "value", "exponent", "second", "_real", "top", "bottom", "factor",
                 "log_of", "terms", "slopes", "sign", "sure")
    point: Home["Number"]
    slopes: Slopes

    def __init__(
        self, point: Home["Number"], value: int, exponent: Residue, second: Residue, real: complex, top: int = 0,
        bottom: int = 0, factor: "Number | None" = None,
        log_of: "tuple[str, Number, Number] | None" = None, terms: "tuple[Number, ...] | None" = None,
        slopes: Slopes = None, sign: int = 0, sure: int = 0,
    ) -> None:
        self.point = point
        self.value = value  # modulo q
        self.exponent = exponent  # modulo p; None after exp, nan where a root is missing
        self.second = second  # modulo a prime below p, for exp of exp; or None
        self._real = real  # at a point of real numbers, to see which of several is the largest
        self.top, self.bottom = top, bottom  # degrees of numerator and denominator
        self.factor = factor  # a number that exp multiplies by: exp(x + log s) = exp(x) s
        self.log_of = log_of  # how its logarithm is made of others
        self.terms = terms  # exponentials, if it is a sum of some
        self.slopes, self.sign, self.sure = slopes, sign, sure

    # ---- arithmetic ----------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        if other.__class__ is not Number:
            other = self.point.other(other, "+")
            if other.__class__ is not Number:
                return other if other is NotImplemented else other + self
        return self._sum(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if other.__class__ is not Number:
            other = self.point.other(other, "-")
            if other.__class__ is not Number:
                return other if other is NotImplemented else -other + self
        return self._sum(other, -1)

    def __rsub__(self, other: Any) -> Any:
        other = self.point.other(other, "-")
        return other if other is NotImplemented else other - self

    def _sum(a, b: "Number", sign: int) -> "Number":
        point = a.point
        if b.is_zero and (b.sure or not a.sure):
            return a
        if a.is_zero and sign == 1 and (a.sure or not b.sure):
            return b
        if a.bottom or b.bottom:
            top, bottom = max(a.top + b.bottom, b.top + a.bottom), a.bottom + b.bottom
        else:
            top, bottom = (a.top if a.top > b.top else b.top), 0
        x = Number(
            point,
            (a.value + sign * b.value) % point.q,
            None if a.exponent is None or b.exponent is None else (a.exponent + sign * b.exponent) % point.p,
            None if a.second is None or b.second is None else (a.second + sign * b.second) % point.o,
            a._real + sign * b._real, top, bottom, sign=sign_of_sum(a.sign, sign * b.sign, a.is_zero),
            sure=a.sure if a.sure < b.sure else b.sure,
        )
        if a.factor is not None or b.factor is not None:
            x.factor = point.joined_factors(a, b, sign)
        if sign == 1 and a.terms is not None and b.terms is not None and len(a.terms + b.terms) <= MOST_TERMS:
            x.terms = a.terms + b.terms
        if a.slopes is not None or b.slopes is not None:
            x.slopes = [(a, point.one), (b, point.one if sign == 1 else point.minus_one)]
        return x

    def __neg__(self) -> "Number":
        return self.point.zero._sum(self, -1)

    def __pos__(self) -> "Number":
        return self

    def __mul__(self, other: Any) -> Any:
        if other.__class__ is not Number:
            other = self.point.other(other, "*")
            if other.__class__ is not Number:
                return other if other is NotImplemented else other * self
        x = self.times(other)
        if (self.slopes is not None or other.slopes is not None) and not (self.is_zero or other.is_zero):
            x.slopes = [(self, other.bare()), (other, self.bare())]
        return x

    __rmul__ = __mul__

    def times(a, b: "Number") -> "Number":
        """The product, without its derivatives."""
        point = a.point
        if a.is_zero or b.is_zero:
            return point.zero.as_sure_as(a, b)
        is_square = a.value == b.value and a.exponent == b.exponent and a._real.__class__ is float
        x = Number(
            point,
            a.value * b.value % point.q,
            None if a.exponent is None or b.exponent is None else a.exponent * b.exponent % point.p,
            None if a.second is None or b.second is None else a.second * b.second % point.o,
            a._real * b._real, a.top + b.top, a.bottom + b.bottom, log_of=("+", a, b),
            sign=sign_of_product(a.sign, b.sign) or int(is_square),
            sure=a.sure if a.sure < b.sure else b.sure,
        )
        if a.factor is not None or b.factor is not None:
            point.multiply_factor(x, a, b)
        if a.terms is not None and b.terms is not None and len(a.terms) * len(b.terms) <= MOST_TERMS:
            is_one = len(a.terms) == len(b.terms) == 1
            x.terms = (x,) if is_one else tuple(s.times(t) for s in a.terms for t in b.terms)
        return x

    def __truediv__(self, other: Any) -> Any:
        other = other if other.__class__ is Number else self.point.other(other, "/")
        if other is NotImplemented:
            return other
        return self * other.inverse()

    def __rtruediv__(self, other: Any) -> Any:
        other = self.point.other(other, "/")
        return other if other is NotImplemented else other * self.inverse()

    def inverse(self) -> "Number":
        """1 / x."""
        point = self.point
        if self.value == 0:
            raise NoValue(f"undecided: a division by 0, at {caller()}")
        known = self.factor is None  # else the exponent is that of exp without its factor
        x = Number(point, pow(self.value, -1, point.q), inverse_mod(self.exponent, point.p) if known else None,
                   inverse_mod(self.second, point.o) if known else None, 1 / (self._real or 1e-300),
                   self.bottom, self.top, None, ("-", point.one, self), None, None, SIGN[self.sign],
                   self.sure if self.sure == 2 or abs(self.sign) == 2 else 0)
        if self.slopes is not None:
            bare = x.bare()
            x.slopes = [(self, point.zero._sum(bare.times(bare), -1))]
        return x

    def __pow__(self, other: Any) -> Any:
        power = self.point.rational(other)
        if power is None or power.denominator > 2:
            if self.log_of is not None and self.log_of[0] == "is":  # exp(x) ** y
                return (self.log() * other).exp()
            raise not_algebraic("** with a power that is no multiple of 1/2, or not below 2**40")
        if power.denominator == 2:
            return self.sqrt() ** power.numerator
        x = self.point.one
        for bit in bin(abs(power.numerator))[2:]:
            x = x * x * self if bit == "1" else x * x
        return x if power >= 0 else x.inverse()

    def __rpow__(self, other: Any) -> Any:
        raise not_algebraic("** with a letter in the power")

    def _rounds(self, *_: Any) -> Any:
        raise not_algebraic("rounding (//, %, round)")

    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __divmod__ = __round__ = rint = _rounds

    # ---- what is known of a number -------------------------------------------------------

    def remade(self, slopes: Any, sign: int, sure: int) -> "Number":
        return Number(self.point, self.value, self.exponent, self.second, self._real, self.top, self.bottom,
                      self.factor, self.log_of, self.terms, slopes, sign, sure)

    @property
    def is_zero(self) -> bool:
        """Whether it is the constant 0, which nothing moves."""
        return self.value == 0 and self.top == self.bottom == 0 and self.slopes is None

    @property
    def key(self) -> int:
        """What tells different numbers apart, for those who keep them."""
        return self.value

    # ---- functions, comparisons and conversions, as NumPy asks for them -----------------

    def exp(self) -> "Number":
        return self.point.exp(self)

    def log(self) -> "Number":
        return self.point.log(self)

    def sqrt(self) -> "Number":
        return self.point.sqrt(self)

    def log1p(self) -> "Number":
        return (1 + self).log()

    def expm1(self) -> "Number":
        return self.exp() - 1

    def tanh(self) -> "Number":
        twice = (self + self).exp()
        return (twice - 1) / (twice + 1)

    def sinh(self) -> "Number":
        e = self.exp()
        return (e - e.inverse()) / 2

    def cosh(self) -> "Number":
        e = self.exp()
        return (e + e.inverse()) / 2

    def sin(self) -> "Number":
        return self.point.circle(self)[1]

    def cos(self) -> "Number":
        return self.point.circle(self)[0]

    def tan(self) -> "Number":
        cos, sin = self.point.circle(self)
        return sin / cos

    def log2(self) -> "Number":
        return self.log() / self.point.constant(2).log()

    def log10(self) -> "Number":
        return self.log() / self.point.constant(10).log()

    def square(self) -> "Number":
        return self * self

    def reciprocal(self) -> "Number":
        return self.inverse()

    def __bool__(self) -> bool:
        return self != 0

    def __eq__(self, other: Any) -> Any:
        if other.__class__ is not Number:
            other = self.point.other(other, "==")
            if other.__class__ is not Number:
                if other is not NotImplemented:
                    check_sure(self, other)
                return other if other is NotImplemented else False
        self.point.look(self, other)
        return self.value == other.value

    def __ne__(self, other: Any) -> Any:
        same = self == other
        return same if same is NotImplemented else not same

    def __hash__(self) -> int:
        return hash(self._constant("hash"))

    __lt__, __le__ = _comparison("<", operator.lt), _comparison("<=", operator.le)
    __gt__, __ge__ = _comparison(">", operator.gt), _comparison(">=", operator.ge)

    def __abs__(self) -> "Number":
        if self.sign:
            return self if self.sign > 0 else -self
        return self.point.sqrt(self * self)

    def __float__(self) -> float:
        return float(self._constant("float"))

    def __int__(self) -> int:
        return int(self._constant("int"))

    def __complex__(self) -> complex:
        return complex(float(self))

    def __repr__(self) -> str:
        return str(self._constant("str"))

    def __format__(self, how: str) -> str:
        return format(float(self), how) if how else str(self)

    def _constant(self, what: str) -> Fraction:
        constant = self.point.rational(self)
        if constant is None:
            raise not_algebraic(f"{what}() of a letter")
        return constant
