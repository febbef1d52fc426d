"""What all entries of exact arrays have in common: copies, and what is known of them; infinity beside numbers."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import inf
from typing import Any, Protocol, Self, TypeVar

from attnmath._exact.outcomes import not_algebraic

AnyEntry = TypeVar("AnyEntry", bound="ExactEntry")


class Ground(Protocol):
    """The constants of a point, for its entries."""

    zero: "ExactEntry"
    one: "ExactEntry"
    minus_one: "ExactEntry"


class ExactEntry:
    """A number at a point, or infinity; it is immutable, and its copies are it."""

    __slots__ = ()
    shape, ndim, size = (), 0, 1

    point: Ground
    slopes: Sequence[tuple["ExactEntry", "ExactEntry"]] | None  # (what it was made of, derivative); or a constant
    sign: int  # 2 if surely positive, 1 if not negative, 0 if not known, -1, -2
    sure: int  # 2 if it has its value for all letters but single ones, and is 0 at single ones only;
    # 1 if it may be 0 at many, as a maximum; 0 if it is not known to have a value

    @property
    def real(self) -> Self:
        """The number itself, as for real numbers."""
        return self

    @property
    def imag(self) -> "ExactEntry":
        return self.point.zero

    def conjugate(self) -> Self:
        return self

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: dict) -> Self:
        return self

    def __reduce_ex__(self, _: Any) -> Any:
        raise not_algebraic("pickling a letter")

    def bare(self) -> Self:
        """The same as a constant, which derivatives do not pass."""
        return self if self.slopes is None else self.remade(None, self.sign, self.sure)

    def tracked(self) -> Self:
        """The same as something of its own, by which others can be differentiated."""
        return self.remade([] if self.slopes is None else [(self, self.point.one)], self.sign, self.sure)

    def as_sure_as(self, *others: "ExactEntry") -> Self:
        """The same, which has a value only where the others have one."""
        return self.known_as(self.sign, min(x.sure for x in others))

    def known_as(self, sign: int, sure: int) -> Self:
        """The same, of which this is known: the same number may have come up as something else."""
        if self.sign == sign and self.sure == sure:
            return self
        return self.remade(None if self.slopes is None else [(self, self.point.one)], sign, sure)

    def remade(self, slopes: Any, sign: int, sure: int) -> Self:
        """The same, made of others in this way, and known in this way; each kind of entry says how."""
        raise TypeError(f"{type(self).__name__} is no kind of entry")


class Home(Ground, Protocol[AnyEntry]):
    """The point of a number: its primes, constants, and functions."""

    q: int
    p: int
    o: int
    zero: AnyEntry
    one: AnyEntry
    minus_one: AnyEntry

    def constant(self, x: int | Fraction) -> AnyEntry: ...
    def other(self, x: Any, operation: str) -> Any: ...
    def letter(self) -> AnyEntry: ...
    def maximum(self, row: Any) -> Any: ...
    def rational(self, x: Any) -> Fraction | None: ...
    def look(self, x: AnyEntry, y: AnyEntry) -> None: ...
    def compare(self, x: AnyEntry, other: Any, sign: str, holds: Callable) -> Any: ...
    def exp(self, x: AnyEntry) -> AnyEntry: ...
    def log(self, x: AnyEntry) -> AnyEntry: ...
    def sqrt(self, x: AnyEntry) -> AnyEntry: ...
    def circle(self, x: AnyEntry) -> tuple[AnyEntry, AnyEntry]: ...
    def joined_factors(self, a: AnyEntry, b: AnyEntry, sign: int) -> AnyEntry: ...
    def multiply_factor(self, product: AnyEntry, a: AnyEntry, b: AnyEntry) -> None: ...


def sign_of_sum(first: int, second: int, is_second: bool) -> int:
    """What is surely known of the sign of a sum, from those of the terms; whether it is the second term."""
    if first > 0 and second > 0:
        return max(first, second)
    if first < 0 and second < 0:
        return min(first, second)
    return second if is_second else 0


def sign_of_product(first: int, second: int) -> int:
    """The same of a product."""
    size = min(abs(first), abs(second))
    return size if (first > 0) == (second > 0) else -size


def check_sure(*entries: ExactEntry) -> None:
    """Refuses to say whether a number is finite, where it may be nan or infinite for some letters."""
    if not all(x.sure for x in entries):
        why = "(it may be nan: a root, logarithm or quotient is in it, of what may be negative or 0)"
        raise not_algebraic("undecided: whether a number is finite", why)


class Infinite(ExactEntry):
    """-inf or +inf, to which letters may be added; exp makes 0 of -inf, which does not move."""

    __slots__ = ("point", "sign", "slopes", "sure")
    point: Home

    def __init__(self, point: Home, sign: int, slopes: Any = None, sure: int = 2) -> None:
        self.point, self.sign, self.slopes, self.sure = point, sign, slopes, sure

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
        has_value = abs(other.sign) == 2 or other.sure == 2  # else 0 times infinity, where other is 0
        found = self if other.sign > 0 else -self
        return found.known_as(found.sign, min(self.sure, other.sure) * has_value)

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
        """What tells different entries apart, for those who keep them."""
        return self.sign * inf

    @property
    def _real(self) -> float:
        return self.sign * inf

    def remade(self, slopes: Any, sign: int, sure: int) -> "Infinite":
        return Infinite(self.point, sign, slopes, sure)

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: Any) -> Any:
        other = self.point.other(other, "==")
        if other is NotImplemented:
            return other
        check_sure(self, other)
        return isinstance(other, Infinite) and other.sign == self.sign

    __hash__ = None  # type: ignore[assignment]  # as Python has it for what is not hashable

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
