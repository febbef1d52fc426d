"""Numbers of exact arithmetic: letters at a random point of a finite field.

A number has its value modulo a large prime q. Made of letters by + - * / alone, it has one
modulo a prime p below q too, which is the exponent that exp raises a g of order p to: so
exp(x + y) = exp(x) exp(y) by construction, and exp(x) is a new unknown, since a letter modulo p
and modulo q are independent. It counts its degree, and keeps its derivatives.
"""

from typing import Any

from attnmath._algebraic import NoValue, caller, not_algebraic
from attnmath._entries import Entry
from attnmath._primes import inverse

SIGN = {2: 2, 1: 2, 0: 0, -1: -2, -2: -2}  # of 1 / x, where it has a value
LONGEST = 64  # sum of exponentials whose logarithm is known from those of others


class Number(Entry):
    """A rational function of letters and their exponentials, at a random point."""

    __slots__ = ("point", "value", "exponent", "second", "_real", "top", "bottom", "factor",
                 "log_of", "terms", "slopes", "sign", "sure")  # fmt: skip
    shape, ndim, size = (), 0, 1

    def __init__(self, point, value, exponent, second, real, top=0, bottom=0,
                 factor=None, log_of=None, terms=None, slopes=None, sign=0, sure=0) -> None:  # fmt: skip
        self.point = point
        self.value = value  # modulo q
        self.exponent = exponent  # modulo p; None after exp, nan where a root is missing
        self.second = second  # modulo a prime below p, for exp of exp; or None
        self._real = real  # at a point of real numbers, to see which of several is the largest
        self.top, self.bottom = top, bottom  # degrees of numerator and denominator
        self.factor = factor  # a number that exp multiplies by: exp(x + log s) = exp(x) s
        self.log_of = log_of  # how its logarithm is made of others
        self.terms = terms  # exponentials, if it is a sum of some
        self.slopes = slopes  # (what it was made of, derivative); None for a constant
        self.sign = sign  # 2 if surely positive, 1 if not negative, 0 if not known, -1, -2
        self.sure = sure  # 2 if it has a finite value for all letters but single ones, and is 0 at single
        # ones only; 1 if it may be 0 at many, as a maximum; 0 if it is not known to have a value

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
        known = a.exponent is not None and b.exponent is not None
        known_twice = a.second is not None and b.second is not None
        x = Number(
            point,
            (a.value + sign * b.value) % point.q,
            (a.exponent + sign * b.exponent) % point.p if known else None,
            (a.second + sign * b.second) % point.o if known_twice else None,
            a._real + sign * b._real, top, bottom, None, None, None, None, sign_of_sum(a, b, sign),
            a.sure if a.sure < b.sure else b.sure,
        )  # fmt: skip
        if a.factor is not None or b.factor is not None:
            x.factor = point.joined_factors(a, b, sign)
        if sign == 1 and a.terms is not None and b.terms is not None and len(a.terms + b.terms) <= LONGEST:
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
        known = a.exponent is not None and b.exponent is not None
        known_twice = a.second is not None and b.second is not None
        x = Number(
            point,
            a.value * b.value % point.q,
            a.exponent * b.exponent % point.p if known else None,
            a.second * b.second % point.o if known_twice else None,
            a._real * b._real, a.top + b.top, a.bottom + b.bottom, None, ("+", a, b),
            None, None, sign_of_product(a, b),
            a.sure if a.sure < b.sure else b.sure,
        )  # fmt: skip
        if a.factor is not None or b.factor is not None:
            point.multiply_factor(x, a, b)
        if a.terms is not None and b.terms is not None and len(a.terms) * len(b.terms) <= LONGEST:
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
        x = Number(point, inverse(self.value, point.q), inverse(self.exponent, point.p) if known else None,
                   inverse(self.second, point.o) if known else None, 1 / (self._real or 1e-300),
                   self.bottom, self.top, None, ("-", point.one, self), None, None, SIGN[self.sign],
                   self.sure if self.sure == 2 or abs(self.sign) == 2 else 0)  # fmt: skip
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

    def bare(self) -> "Number":
        """The number as a constant, which derivatives do not pass."""
        return self if self.slopes is None else self._with_slopes(None)

    def tracked(self) -> "Number":
        """The number as something of its own, by which others can be differentiated."""
        return self._with_slopes([] if self.slopes is None else [(self, self.point.one)])

    def as_sure_as(self, *others: Any) -> "Number":
        """The number, which has a value only where the others have one."""
        return self.known_as(self.sign, min(x.sure for x in others))

    def known_as(self, sign: int, sure: int) -> "Number":
        """The number, of which this is known: the same number may have come up as something else."""
        if self.sign == sign and self.sure == sure:
            return self
        x = self._with_slopes(None if self.slopes is None else [(self, self.point.one)])
        x.sign, x.sure = sign, sure
        return x

    def _with_slopes(self, slopes: list | None) -> "Number":
        return Number(self.point, self.value, self.exponent, self.second, self._real, self.top, self.bottom,
                      self.factor, self.log_of, self.terms, slopes, self.sign, self.sure)  # fmt: skip

    @property
    def is_zero(self) -> bool:
        """Whether it is the constant 0, which nothing moves."""
        return self.value == 0 and self.top == self.bottom == 0 and self.slopes is None

    @property
    def key(self) -> int:
        """What tells different numbers apart, for those who keep them."""
        return self.value


def sign_of_sum(a: Number, b: Number, sign: int) -> int:
    """What is surely known of the sign of a + b or a - b."""
    first, second = a.sign, sign * b.sign
    if first > 0 and second > 0:
        return max(first, second)
    if first < 0 and second < 0:
        return min(first, second)
    return second if a.is_zero else 0


def sign_of_product(a: Number, b: Number) -> int:
    """The same of a * b: a square is not negative."""
    if a.sign and b.sign:
        size = min(abs(a.sign), abs(b.sign))
        return size if (a.sign > 0) == (b.sign > 0) else -size
    is_square = a.value == b.value and a.exponent == b.exponent and a._real.__class__ is float
    return int(is_square)
