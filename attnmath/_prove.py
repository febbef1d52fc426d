"""Is it true for all real numbers? Both sides at a random point of a finite field decide."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import is_array_api_obj

import attnmath._exact_functions
import attnmath._exact_linalg  # noqa: F401 both write what NumPy's functions do
from attnmath._algebraic import Circles, Deeper, NotAlgebraic, OtherPoint, OtherPrimes, Redraw
from attnmath._exact_arrays import ExactArray, exact, letters
from attnmath._leaves import is_branch
from attnmath._numbers import Number
from attnmath._point import Point
from attnmath._primes import BITS, CHOICE
from attnmath._step import numpy_of

POINTS = 2000  # drawn at most, until all roots are there: half of all numbers have one
ROOTS = 9  # of letters at most
FEW = 20  # points with all roots after which it is likely that a root is of a square
SIGNS = 35  # times 2 to the number of such roots: points where their signs are drawn anew
UNKNOWN = "undecided: the sign of a root is not known (is it of a square, or of a negative number?)"
CLOSE = 1e-12  # of two real numbers with logarithms in them that may be one
DEPTH = 2  # exponentials inside of each other


class Proof(NamedTuple):
    """What was compared: entries, the degree of their differences, the points drawn.

    error bounds the probability that a statement which is false passes: points * degree
    / p for the smallest of the primes, and degree * 64 / 2^112 that the largest one,
    drawn among more than 2^112, divides all coefficients of a difference. Where the
    signs of some roots are drawn anew at every point, so many that a statement which is
    false for some of them passes with e^-35.
    """

    entries: int
    degree: int
    points: int
    signs: int = 0

    @property
    def error(self) -> float:
        at_points = Fraction(self.points * self.degree, 2 ** (BITS - 1))
        return float(at_points + Fraction(64 * self.degree, CHOICE)) + (self.signs > 0) * math.exp(-SIGNS)

    def __str__(self) -> str:
        return (
            f"proved: {self.entries} entries agree; a false one of degree"
            f" {self.degree} passes with a probability below {self.error:.0e}"
        )


def prove(lhs: Callable, rhs: Callable, *x: Any, seed: int = 0, **constants: Any) -> Proof:
    """Both sides are the same function of all real numbers in arrays of these shapes.

    lhs(*x, **constants) -> Y, rhs(*x, **constants) -> Y, of any shape, or a tuple

    An argument is a shape, or what gives one: an array of float64, a number, or a named
    tuple of these. Floats become letters, even 2.0; -inf stays, and so do integers,
    fractions, booleans and None, and zeros in the constants. The sides are computed at
    a random point of a finite field, without rounding; where they agree they are equal
    wherever both have a value, but for single points and for a probability that the
    result bounds. A row maximum is an arbitrary constant of its row. Raises
    AssertionError where the sides differ, TypeError for what is no argument,
    NotAlgebraic for what such a field does not have: comparisons of letters, rounded
    constants, a sign of a root that is not known.
    Derived in chapters/proved.md.
    """

    def run(point: Point) -> tuple:
        given, named = at_point(point, x, constants)
        own = ({k: copied(part) for k, part in named.items()} for _ in "lr")
        return tuple(side(*map(copied, given), **constants) for side, constants in zip((lhs, rhs), own))

    return proved(run, seed)


def proved(run: Callable, seed: int) -> Proof:
    """The proof that the two sides which `run` makes at a point are equal."""
    found, points, signs = at_points(lambda point: compared(run, point), seed)
    return found._replace(points=points, signs=signs)


def at_points(
    judge: Callable, seed: int, draw: Callable = Point, limit: int = POINTS, most: int = ROOTS
) -> tuple[Any, int, int]:
    """What `judge` finds at a point that has the roots and primes it needs; how many points
    count; how many roots have signs that are not known.

    Where roots are taken, each one has to be missing somewhere: then it is of no square,
    and all signs are alike. Else both signs come up: all points have to agree.
    """
    depth, has_i, primes = 1, False, seed
    missing: set[int] = set()
    outcomes: list = []
    roots = 0
    for attempt in range(limit):
        point = draw(seed, attempt, depth, has_i, primes)
        try:
            outcomes.append(judge(point))
        except Redraw as error:
            missing.add(error.which)
        except AssertionError as error:
            outcomes.append(error)
        except OtherPoint as error:
            if isinstance(error, Deeper) and depth == DEPTH:
                raise NotAlgebraic(str(error)) from None
            depth += isinstance(error, Deeper)
            primes += isinstance(error, OtherPrimes)
            has_i |= isinstance(error, Circles)
            missing, outcomes, roots = set(), [], 0
        roots = max(roots, point.radicands.count)
        if roots > most:
            said = f"undecided: there are more than {most} roots, whose signs have to be known"
            raise NotAlgebraic(f"{said}; take smaller shapes, or fewer rows")
        doubtful = len(set(range(1, roots + 1)) - missing)
        if len(outcomes) >= (SIGNS << doubtful if doubtful else 1):  # (1 - 2^-k)^(35 2^k) < e^-35
            return _answer(outcomes), (attempt + 1) * 2**roots, doubtful
        if len(outcomes) > FEW and (SIGNS << doubtful > limit or _refuted(outcomes) not in (0, len(outcomes))):
            break
        primes += len(outcomes) > FEW and point.roots_of_numbers  # only these change their signs
    raise NotAlgebraic(UNKNOWN)


def _answer(outcomes: list) -> Any:
    """What was found at all points alike."""
    if _refuted(outcomes) not in (0, len(outcomes)):
        raise NotAlgebraic(UNKNOWN)
    if isinstance(outcomes[0], AssertionError):
        raise outcomes[0]
    return outcomes[0]


def _refuted(outcomes: list) -> int:
    return sum(isinstance(one, AssertionError) for one in outcomes)


def at_point(point: Point, x: tuple, constants: dict) -> tuple[list, dict]:
    """Arguments and constants with letters in the place of numbers."""
    given = [as_letters(point, part) for part in x]
    return given, {k: _constant(point, part, zeros=True) for k, part in constants.items()}


def as_letters(point: Point, x: Any) -> Any:
    """A letter for each entry of x, or of the shape x; -inf and whole numbers stay."""
    if is_branch(x):
        return type(x)(*(as_letters(point, part) for part in x))
    if isinstance(x, tuple) and all(isinstance(size, int | np.integer) for size in x):
        return letters(point, x)
    if isinstance(x, str | list | tuple):
        raise TypeError(f"an argument is {x!r}; it needs to be an array, a number or a shape")
    return _constant(point, x)


def _constant(point: Point, x: Any, zeros: bool = False) -> Any:
    """The same for what is no argument: there a tuple is no shape, and zeros stay."""
    if isinstance(x, Fraction):
        return exact(x, point)
    if isinstance(x, ExactArray) or not (is_array_api_obj(x) or isinstance(x, float)):
        return x
    values = numpy_of(x)
    if values.dtype.kind != "f":
        return values
    stays = ~np.isfinite(values) | (values == 0) if zeros else ~np.isfinite(values)
    drawn = letters(point, values.shape)
    return np.where(stays, np.where(stays, values, 0), drawn) if stays.any() else drawn


def copied(x: Any) -> Any:
    """A copy of an argument, field by field."""
    if is_branch(x):
        return type(x)(*map(copied, x))
    return x.copy() if isinstance(x, np.ndarray) else x


def compared(run: Callable, point: Point) -> Proof:
    """The proof that two sides are equal at a point; an AssertionError where they are not.

    Where they differ, and a constant stands for a maximum, the largest entry at a point
    of real numbers takes its place.
    """
    pairs = list(pairs_of(*run(point)))
    looked = point.looked  # at whether two letters are equal
    wrong = first_difference(pairs, point)
    if point.maxima and (wrong or looked):
        try:
            also = first_difference(list(pairs_of(*run(point.again(entries=True)))), point)
        finally:
            point.again()
        if wrong and not also:
            raise NotAlgebraic("undecided: the sides differ by what depends on a maximum")
        wrong = also
    if wrong and point.has_logs and _same_reals(pairs, point):
        raise NotAlgebraic("undecided: the sides differ by logarithms whose relation is not known")
    if wrong:
        raise AssertionError(f"refuted: {wrong}")
    sides = [(exact(a, point), exact(b, point)) for _, a, b in pairs]
    degrees = [degree(x, y) for a, b in sides for x, y in zip(np.ravel(a), np.ravel(b))]
    return Proof(len(degrees), max(degrees, default=0), 1)


def pairs_of(left: Any, right: Any, name: str = "") -> Any:
    """The parts of both sides that belong together, with their names."""
    if not isinstance(left, tuple) and not isinstance(right, tuple):
        if np.shape(left) != np.shape(right):
            shapes = f"shapes {np.shape(left)} and {np.shape(right)}"
            raise AssertionError(f"refuted: {name or 'the sides'}: {shapes}")
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
        found = differing(exact(a, point), exact(b, point))
        if found.any():
            return _sentence(name, found)
    return ""


def _same_reals(pairs: list, point: Point) -> bool:
    """Whether the sides agree at a point of real numbers, as far as float64 shows."""
    sides = [(exact(a, point), exact(b, point)) for _, a, b in pairs]
    reals = [(x.real, y.real) for a, b in sides for x, y in zip(np.ravel(a), np.ravel(b))]
    finite = (x == y or abs(x) + abs(y) < math.inf for x, y in reals)
    return all(finite) and all(abs(x - y) <= CLOSE * (1 + abs(x) + abs(y)) for x, y in reals if x != y)


def differing(a: ExactArray, b: ExactArray) -> np.ndarray:
    """Where two arrays of one shape differ."""
    found, a, b = np.asarray(a != b, dtype=bool), np.asarray(a), np.asarray(b)
    for place in map(tuple, np.argwhere(found)):
        found[place] = not _same_exponential(a[place], b[place])
    return found


def _same_exponential(x: Any, y: Any) -> bool:
    """Whether two numbers with logarithms in them are equal since their exponentials are."""
    if not isinstance(x, Number) or not isinstance(y, Number) or x.factor is None and y.factor is None:
        return False
    try:
        return (x.bare() - y.bare()).exp() == 1
    except OtherPoint:
        return False


def is_infinite(x: Any) -> bool:
    return not hasattr(x, "value")


def degree(x: Any, y: Any) -> int:
    """The degree of the numerator of x - y."""
    return 0 if is_infinite(x) or is_infinite(y) else max(x.top + y.bottom, y.top + x.bottom)


def _sentence(name: str, found: np.ndarray) -> str:
    entry = tuple(int(i) for i in np.argwhere(found)[0])
    where = f"{name or 'the sides'} differ" + ("s" if name else "")
    count = f", in {int(found.sum())} of {found.size} entries" if found.size > 1 else ""
    at = f" at entry {entry}" if entry else ""
    return f"{where}{at}{count}"
