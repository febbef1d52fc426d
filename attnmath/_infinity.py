"""Infinity beside exact numbers: the score of a key that a query may not attend to."""

from math import inf
from typing import Any

from attnmath._algebraic import not_algebraic
from attnmath._entries import Immutable, check_sure


class Infinite(Immutable):
    """-inf or +inf, to which letters may be added; exp makes 0 of -inf, which does not move."""

    __slots__ = ("point", "sign", "slopes", "sure")
    shape, ndim, size = (), 0, 1

    def __init__(self, point: Any, sign: int, slopes: list | None = None, sure: int = 2) -> None:
        self.point, self.sign, self.slopes = point, sign, slopes
        self.sure = sure  # 2 if it is infinite for all letters but single ones, 0 if it may have no value

    def as_sure_as(self, *others: Any) -> "Infinite":
        """The same, which is infinite only where the others have a value."""
        found = Infinite(self.point, self.sign, None if self.slopes is None else [(self, self.point.one)])
        found.sure = min(x.sure for x in others)
        return found

    def __add__(self, other: Any) -> Any:
        other = self.point.other(other, "+")
        if other is NotImplemented:
            return other
        if isinstance(other, Infinite) and other.sign != self.sign:
            raise not_algebraic("inf - inf")
        moving = [(x, self.point.one) for x in (self, other) if x.slopes is not None]
        return Infinite(self.point, self.sign, moving or None, min(self.sure, other.sure))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        other = self.point.other(other, "-")
        return other if other is NotImplemented else self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> "Infinite":
        moving = None if self.slopes is None else [(self, self.point.minus_one)]
        return Infinite(self.point, -self.sign, moving, self.sure)

    def __mul__(self, other: Any) -> Any:
        other = self.point.other(other, "*")
        if other is NotImplemented:
            return other
        if isinstance(other, Infinite):
            return Infinite(self.point, self.sign * other.sign, None, min(self.sure, other.sure))
        if other.value == 0:
            raise not_algebraic("infinity times 0")
        if other.sign == 0:
            raise not_algebraic("infinity times a letter", "(its sign is not known)")
        found = (self if other.sign > 0 else -self).as_sure_as(self, other)
        found.sure *= abs(other.sign) == 2 or other.sure == 2  # else 0 times infinity, where other is 0
        return found

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        other = self.point.other(other, "/")
        return other if other is NotImplemented else self * other.inverse()

    def __rtruediv__(self, other: Any) -> Any:
        other = self.point.other(other, "/")
        return other if other is NotImplemented else self.inverse() * other

    def inverse(self) -> Any:
        return self.point.zero.as_sure_as(self)

    def exp(self) -> Any:
        return self.point.zero.as_sure_as(self) if self.sign < 0 else self

    def tanh(self) -> Any:
        return self.point.constant(self.sign).as_sure_as(self)

    def __abs__(self) -> "Infinite":
        return self if self.sign > 0 else -self

    def __pow__(self, _: Any) -> Any:
        raise not_algebraic("a power of infinity")

    @property
    def key(self) -> float:
        return self.sign * inf

    @property
    def _real(self) -> float:
        return self.sign * inf

    def bare(self) -> "Infinite":
        return Infinite(self.point, self.sign, None, self.sure)

    def tracked(self) -> "Infinite":
        return Infinite(self.point, self.sign, [] if self.slopes is None else [(self, self.point.one)], self.sure)

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: Any) -> Any:
        other = self.point.other(other, "==")
        if other is NotImplemented:
            return other
        check_sure(self, other)
        return isinstance(other, Infinite) and other.sign == self.sign

    __hash__ = None

    def __lt__(self, other: Any) -> bool:
        return not self == other and self.sign < 0

    def __gt__(self, other: Any) -> bool:
        return not self == other and self.sign > 0

    def __le__(self, other: Any) -> bool:
        return self == other or self.sign < 0

    def __ge__(self, other: Any) -> bool:
        return self == other or self.sign > 0

    def __float__(self) -> float:
        check_sure(self)
        return self.sign * inf

    def __repr__(self) -> str:
        return "-inf" if self.sign < 0 else "inf"
