"""What NumPy asks of an entry of an array: functions by name, comparisons, conversions."""

from fractions import Fraction
from typing import Any

from attnmath._algebraic import not_algebraic


def check_sure(*numbers: Any) -> None:
    """Refuses to say whether a number is finite, where it may be nan or infinite for some letters."""
    if not all(x.sure for x in numbers):
        why = "(it may be nan: a root, logarithm or quotient is in it, of what may be negative or 0)"
        raise not_algebraic("undecided: whether a number is finite", why)


class Immutable:
    """What a real number and its copies have in common."""

    __slots__ = ()

    @property
    def real(self) -> Any:
        """The number itself, as for real numbers."""
        return self

    @property
    def imag(self) -> Any:
        return self.point.zero

    def conjugate(self) -> Any:
        return self

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, _: dict) -> Any:
        return self

    def __reduce_ex__(self, _: Any) -> Any:
        raise not_algebraic("pickling a letter")


class Entry(Immutable):
    """A number whose functions and comparisons are those of its point."""

    __slots__ = ()
    shape, ndim, size = (), 0, 1

    def exp(self) -> "Entry":
        return self.point.exp(self)

    def log(self) -> "Entry":
        return self.point.log(self)

    def sqrt(self) -> "Entry":
        return self.point.sqrt(self)

    def log1p(self) -> "Entry":
        return (1 + self).log()

    def expm1(self) -> "Entry":
        return self.exp() - 1

    def tanh(self) -> "Entry":
        twice = (self + self).exp()
        return (twice - 1) / (twice + 1)

    def sinh(self) -> "Entry":
        e = self.exp()
        return (e - e.inverse()) / 2

    def cosh(self) -> "Entry":
        e = self.exp()
        return (e + e.inverse()) / 2

    def sin(self) -> "Entry":
        return self.point.circle(self)[1]

    def cos(self) -> "Entry":
        return self.point.circle(self)[0]

    def tan(self) -> "Entry":
        cos, sin = self.point.circle(self)
        return sin / cos

    def log2(self) -> "Entry":
        return self.log() / self.point.constant(2).log()

    def log10(self) -> "Entry":
        return self.log() / self.point.constant(10).log()

    def square(self) -> "Entry":
        return self * self

    def reciprocal(self) -> "Entry":
        return self.inverse()

    def __bool__(self) -> bool:
        return self != 0

    def __eq__(self, other: Any) -> Any:
        if other.__class__ is not self.__class__:
            other = self.point.other(other, "==")
            if other.__class__ is not self.__class__:
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

    def __lt__(self, other: Any) -> Any:
        return self.point.compare(self, other, "<", lambda x, y: x < y)

    def __le__(self, other: Any) -> Any:
        return self.point.compare(self, other, "<=", lambda x, y: x <= y)

    def __gt__(self, other: Any) -> Any:
        return self.point.compare(self, other, ">", lambda x, y: x > y)

    def __ge__(self, other: Any) -> Any:
        return self.point.compare(self, other, ">=", lambda x, y: x >= y)

    def __abs__(self) -> "Entry":
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
