"""Is it true for all real numbers? Both sides at a random point of a finite field decide."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import is_array_api_obj

import attnmath._exact_linalg  # noqa: F401 what it writes for np.linalg
from attnmath._algebraic import Circles, Deeper, NotAlgebraic, Redraw
from attnmath._exact_arrays import ExactArray, exact, letters
from attnmath._leaves import is_branch
from attnmath._point import Point
from attnmath._primes import BITS
from attnmath._step import numpy_of

POINTS = 2000  # drawn at most, until all roots are there: half of all numbers have one
DEPTH = 2  # the most primes below the largest


class Proof(NamedTuple):
    """What was compared: entries, the degree of their differences, the points drawn.

    error bounds the probability that a statement which is false passes.
    """

    entries: int
    degree: int
    points: int

    @property
    def error(self) -> float:
        """points * degree / p, for the smallest of the primes."""
        return float(Fraction(self.points * self.degree, 2 ** (BITS - 1)))

    def __str__(self) -> str:
        return (
            f"proved: {self.entries} entries agree; a false one of degree"
            f" {self.degree} passes with a probability below {self.error:.0e}"
        )


def prove(lhs: Callable, rhs: Callable, *x: Any, seed: int = 0, **constants: Any) -> Proof:
    """Both sides are the same function of all real numbers in arrays of these shapes.

    lhs(*x, **constants) -> Y, rhs(*x, **constants) -> Y, of any shape, or a tuple

    An argument is a shape, or what gives one: an array of float64, a number, or a named
    tuple of these. Its entries become letters; those of -inf stay, and so do whole
    numbers, booleans and None. The sides are computed at a random point of a finite
    field, without rounding; where they agree they are equal, but for a probability that
    the result bounds. A row maximum is an arbitrary constant of its row. Raises
    AssertionError where the sides differ, NotAlgebraic for what such a field does not
    have: comparisons of letters, rounded constants.
    Derived in chapters/proved.md.
    """

    def run(point: Point) -> tuple:
        given, named = at_point(point, x, constants)
        return lhs(*given, **named), rhs(*given, **named)

    (left, right), point, count = at_points(run, seed)
    return compare(left, right, point, count, lambda: run(point.again(entries=True)))


def at_points(run: Callable, seed: int) -> tuple[Any, Point, int]:
    """What `run` finds at a point that has the roots and primes it needs."""
    depth, has_i = 1, False
    for attempt in range(POINTS):
        point = Point(seed, attempt, depth, has_i)
        try:
            return run(point), point, attempt + 1
        except Redraw:
            continue
        except Circles:
            has_i = True
        except Deeper as error:
            if depth == DEPTH:
                raise NotAlgebraic(str(error)) from None
            depth += 1
    raise NotAlgebraic(f"a root was missing at each of {POINTS} points: is it one of a negative number?")


def at_point(point: Point, x: tuple, constants: dict) -> tuple[list, dict]:
    """Arguments and constants with letters in the place of numbers."""
    given = [as_letters(point, part) for part in x]
    return given, {k: _constant(point, part) for k, part in constants.items()}


def as_letters(point: Point, x: Any) -> Any:
    """A letter for each entry of x, or of the shape x; -inf and whole numbers stay."""
    if is_branch(x):
        return type(x)(*(as_letters(point, part) for part in x))
    if isinstance(x, tuple) and all(isinstance(size, int | np.integer) for size in x):
        return letters(point, x)
    if isinstance(x, float):
        return letters(point, ())
    return _constant(point, x)


def _constant(point: Point, x: Any) -> Any:
    """The same for what is no argument: a tuple stays one."""
    if isinstance(x, ExactArray) or not (is_array_api_obj(x) or isinstance(x, float)):
        return x
    values = numpy_of(x)
    if values.dtype.kind != "f":
        return values
    infinite = ~np.isfinite(values)
    drawn = letters(point, values.shape)
    return np.where(infinite, np.where(infinite, values, 0), drawn) if infinite.any() else drawn


def compare(left: Any, right: Any, point: Point, count: int, again: Callable) -> Proof:
    """The proof that two sides are equal; an AssertionError where they are not.

    Where they differ, and a constant stands for a maximum, an entry of the row takes its
    place: `again` computes both sides with it.
    """
    pairs = list(pairs_of(left, right))
    wrong = first_difference(pairs, point)
    if wrong and point.maxima:
        wrong = first_difference(list(pairs_of(*again())), point)
        if not wrong:
            raise NotAlgebraic("undecided: the sides differ by what depends on a maximum")
    if wrong:
        raise AssertionError(f"refuted: {wrong}")
    sides = [(exact(a, point), exact(b, point)) for _, a, b in pairs]
    degrees = [_degree(x, y) for a, b in sides for x, y in zip(a.flat, b.flat)]
    return Proof(len(degrees), max(degrees, default=0), count)


def pairs_of(left: Any, right: Any, name: str = "") -> Any:
    """The parts of both sides that belong together, with their names."""
    if not isinstance(left, tuple) and not isinstance(right, tuple):
        if np.shape(left) != np.shape(right):
            raise AssertionError(f"refuted: {name or 'the sides'}: shapes {np.shape(left)} and {np.shape(right)}")
        yield name, left, right
        return
    counts = [len(side) if isinstance(side, tuple) else 1 for side in (left, right)]
    if not isinstance(left, tuple) or not isinstance(right, tuple) or counts[0] != counts[1]:
        raise AssertionError(f"refuted: the sides have {counts[0]} and {counts[1]} parts")
    fields = getattr(left, "_fields", range(len(left)))
    for field, a, b in zip(fields, left, right):
        if (a is None) != (b is None):
            raise AssertionError(f"refuted: {field} is None on one side")
        if a is not None:
            yield from pairs_of(a, b, f"{name}.{field}" if name else str(field))


def first_difference(pairs: list, point: Point) -> str:
    """Where, and in how many entries, the first parts that differ do so."""
    for name, a, b in pairs:
        found = np.asarray(exact(a, point) != exact(b, point), dtype=bool)
        if found.any():
            return _sentence(name, found)
    return ""


def _infinite(x: Any) -> bool:
    return not hasattr(x, "value")


def _degree(x: Any, y: Any) -> int:
    """The degree of the numerator of x - y."""
    return 0 if _infinite(x) or _infinite(y) else max(x.top + y.bottom, y.top + x.bottom)


def _sentence(name: str, found: np.ndarray) -> str:
    entry = tuple(int(i) for i in np.argwhere(found)[0])
    where = f"{name or 'the sides'} differ" + ("s" if name else "")
    count = f", in {int(found.sum())} of {found.size} entries" if found.size > 1 else ""
    at = f" at entry {entry}" if entry else ""
    return f"{where}{at}{count}"
