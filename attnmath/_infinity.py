"""Infinity beside exact numbers: the score of a key that a query may not attend to."""

from math import inf
from typing import Any

from attnmath._algebraic import not_algebraic
from attnmath._entries import Immutable


class Infinite(Immutable):
    """-inf or +inf, to which letters may be added; exp makes 0 of -inf, which does not move."""

    __slots__ = ("point", "sign", "slopes")
    shape, ndim, size = (), 0, 1

    def __init__(self, point: Any, sign: int, slopes: list | None = None) -> None:
        self.point, self.sign, self.slopes = point, sign, slopes

    def __add__(self, other: Any) -> Any:
        other = self.point.other(other, "+")
        if other is NotImplemented:
            return other
        if isinstance(other, Infinite) and other.sign != self.sign:
            raise not_algebraic("inf - inf")
        moving = [(x, self.point.one) for x in (self, other) if x.slopes is not None]
        return Infinite(self.point, self.sign, moving or None)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        other = self.point.other(other, "-")
        return other if other is NotImplemented else self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> "Infinite":
        moving = None if self.slopes is None else [(self, self.point.minus_one)]
        return Infinite(self.point, -self.sign, moving)

    def __mul__(self, other: Any) -> Any:
        other = self.point.other(other, "*")
        if other is NotImplemented:
            return other
        if isinstance(other, Infinite):
            return Infinite(self.point, self.sign * other.sign)
        if other.value == 0:
            raise not_algebraic("infinity times 0")
        if other.sign == 0:
            raise not_algebraic("infinity times a letter", "(its sign is not known)")
        return self if other.sign > 0 else -self

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        other = self.point.other(other, "/")
        return other if other is NotImplemented else self * other.inverse()

    def __rtruediv__(self, other: Any) -> Any:
        other = self.point.other(other, "/")
        return other if other is NotImplemented else self.inverse() * other

    def inverse(self) -> Any:
        return self.point.zero

    def exp(self) -> Any:
        return self.point.zero if self.sign < 0 else self

    def tanh(self) -> Any:
        return self.point.constant(self.sign)

    @property
    def key(self) -> float:
        return self.sign * inf

    @property
    def _real(self) -> float:
        return self.sign * inf

    def bare(self) -> "Infinite":
        return Infinite(self.point, self.sign)

    def tracked(self) -> "Infinite":
        return Infinite(self.point, self.sign, [] if self.slopes is None else [(self, self.point.one)])

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: Any) -> Any:
        other = self.point.other(other, "==")
        if other is NotImplemented:
            return other
        return isinstance(other, Infinite) and other.sign == self.sign

    __hash__ = None

    def __lt__(self, other: Any) -> bool:
        return self.sign < 0 and not self == other

    def __gt__(self, other: Any) -> bool:
        return self.sign > 0 and not self == other

    def __le__(self, other: Any) -> bool:
        return self.sign < 0 or self == other

    def __ge__(self, other: Any) -> bool:
        return self.sign > 0 or self == other

    def __float__(self) -> float:
        return self.sign * inf

    def __repr__(self) -> str:
        return "-inf" if self.sign < 0 else "inf"
