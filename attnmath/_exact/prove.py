"""Is it true for all real numbers? Both sides at a random point of a finite field decide."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj

import attnmath._exact.functions  # noqa: F401  which says what NumPy's functions do
from attnmath._exact.arrays import ExactArray, exact, letters
from attnmath._exact.floats import Reals, directions, drawings
from attnmath._exact.outcomes import (
    AT_EACH_SIGN,
    Circles,
    Deeper,
    NotAlgebraic,
    OtherPoint,
    OtherPrimes,
    Proof,
    Redraw,
    SidesDiffer,
    Unrelated,
    line_of_error,
)
from attnmath._exact.point import Point
from attnmath._exact.primes import SQUARES, root
from attnmath._exact.sides import compared_at, run_twice
from attnmath._words.complex_step import check_functions, numpy_of
from attnmath._words.named_tuples import is_branch

MOST_POINTS = 2000  # drawn at most, until all roots are there: half of all numbers have one
MOST_ROOTS = 9  # of letters at most
CONVINCING = 20  # points with all roots after which it is likely that a root is of a square
UNKNOWN = "undecided: the sign of a root is not known (is it of a square, or of a negative number?)"
DEPTH = 2  # exponentials inside of each other


def prove(lhs: Callable[..., Any], rhs: Callable[..., Any], *x: Any, seed: int = 0, **constants: Any) -> Proof:
    """Both sides are the same function of all real numbers in arrays of these shapes.

    lhs(*x, **constants) -> Y, rhs(*x, **constants) -> Y, of any shape, or a tuple

    An argument is a shape, or what gives one: an array of float64, a number, or a named
    tuple of these. Floats become letters, even 2.0; -inf stays, and so do integers,
    fractions, booleans and None, and zeros in the constants. The sides are computed at
    a random point of a finite field, without rounding; where they agree they are equal
    wherever both have a value, but for single points and for a probability that the
    result bounds. A row maximum is an arbitrary constant of its row. A float of at most
    12 digits is the decimal that it shows, and the result says so. Both sides are run
    twice, in both orders, on copies, and in float64 as well. Raises AssertionError where
    the sides differ, TypeError for what is no argument, has no entries or no letters,
    NotAlgebraic for what such a field does not have and wherever it cannot be decided:
    comparisons of letters, rounded constants, a sign of a root that is not known.

    >>> import numpy as np
    >>> from attnmath import prove, softmax
    >>> print(prove(lambda A: softmax(A - 1), softmax, (2, 3)))
    proved: 6 entries agree; a false one of degree 512 passes with a probability below 6e-30

    Derived in chapters/proved.md.
    """

    def run(point: Point) -> list:
        given, named = at_point(point, x, constants)
        return run_twice({"the left side": (lhs, given, named), "the right side": (rhs, given, named)})

    def floats() -> Reals:
        rays = [[filled_in(draw, x, constants) for draw in ray] for ray in directions(seed)]
        return Reals(lhs, rhs, [filled_in(draw, x, constants) for draw in drawings(seed)], rays)

    check_functions("prove", seed, lhs=lhs, rhs=rhs)
    check_letters(x)
    found, points, signs = beside_floats(lambda: at_points(partial(compared_at, run), seed), floats)
    floats().confirm()
    return found._replace(points=points, signs=signs)


def beside_floats(decide: Callable, floats: Callable) -> Any:
    """decide(); NotAlgebraic where it fails with letters, and floats() run or agree all the same."""
    try:
        return decide()
    except Unrelated as error:
        if floats().differ():
            raise SidesDiffer(error.wrong) from None
        raise
    except NotAlgebraic:
        raise
    except AssertionError as error:
        if not (isinstance(error, SidesDiffer) and error.is_small) and floats().agree():
            said = "the sides differ for letters, and agree in float64 at all real numbers that were tried"
            raise NotAlgebraic(f"undecided: {said}") from None
        raise
    except Exception as error:
        if floats().run():
            said = f"{type(error).__name__}: {error}, at {line_of_error(error)}"
            raise NotAlgebraic(f"undecided: numbers have this, and letters do not: {said}") from error
        raise


def at_points(
    judge: Callable, seed: int, draw: Callable = Point, limit: int = MOST_POINTS, most: int = MOST_ROOTS
) -> tuple[Any, int, int]:
    """What `judge` finds at a point that has the roots and primes it needs; how many points
    count; how many roots have signs that are not known.

    Where roots are taken, each one has to be missing somewhere: then it is of no square,
    and all signs are alike. Else both signs come up: all points have to agree.
    """
    depth, has_i, primes = 1, False, seed
    missing: set[int] = set()
    numbers = {*SQUARES}  # of which roots are taken
    outcomes: list = []
    roots = 0
    for attempt in range(limit):
        point = draw(seed, attempt, depth, has_i, primes)
        primes += bool(roots) or numbers > {*SQUARES}  # else a sign might be the same at all points
        if any(root(n, point.q) != root(n, point.q) for n in numbers.difference(SQUARES)):
            continue
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
        if not point.primes_with_roots <= numbers:  # they have to be there wherever another one is missing
            numbers |= point.primes_with_roots
            missing, outcomes = set(), []
        roots = max(roots, point.radicands.count)
        if roots > most:
            said = f"undecided: there are more than {most} roots, whose signs have to be known"
            raise NotAlgebraic(f"{said}; take smaller shapes, or fewer rows")
        doubtful = len(set(range(1, roots + 1)) - missing)
        if len(outcomes) >= (AT_EACH_SIGN << doubtful if doubtful else 1):  # (1 - 2^-k)^(35 2^k) < e^-35
            return _answer(outcomes), (attempt + 1) * 2**roots, doubtful
        differ = _refuted(outcomes) not in (0, len(outcomes))
        if len(outcomes) > CONVINCING and (differ or AT_EACH_SIGN << doubtful > limit):
            break
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


def check_letters(x: tuple) -> None:
    """A TypeError unless there are letters, each argument that has a shape has entries."""
    shapes: list = []

    def draw(shape: tuple) -> Any:
        shapes.append(tuple(shape))
        return np.ones(())

    for k, part in enumerate(x):
        as_letters(draw, part)
        if any(size < 1 for shape in shapes for size in shape):
            said = "it needs entries: without any there is nothing to prove"
            raise TypeError(f"argument {k} has shape {shapes[-1]}; {said}")
    if not shapes:
        said = ", ".join(f"{type(part).__name__} of shape {np.shape(part)}" for part in x) or "there is none"
        raise TypeError(f"no argument has letters ({said}); one needs to be a shape or an array of float64")


def at_point(point: Point, x: tuple, constants: dict) -> tuple[list, dict]:
    """Arguments and constants with letters in the place of numbers."""
    return filled_in(partial(letters, point), x, constants, partial(exact, point=point))


def filled_in(draw: Callable, x: tuple, constants: dict, fraction: Callable = float) -> tuple[list, dict]:
    """Arguments and constants with draw(shape) in the place of the numbers that become letters."""
    given = [as_letters(draw, part, fraction) for part in x]
    return given, {k: _constant(draw, part, fraction, zeros=True) for k, part in constants.items()}


def as_letters(draw: Callable, x: Any, fraction: Callable = float) -> Any:
    """draw(shape) for x, or for the shape x; -inf and whole numbers stay."""
    if is_branch(x):
        return type(x)(*(as_letters(draw, part, fraction) for part in x))
    if isinstance(x, tuple) and all(isinstance(size, int | np.integer) for size in x):
        return draw(x)
    if isinstance(x, str | list | tuple):
        raise TypeError(f"an argument is {x!r}; it needs to be an array, a number or a shape")
    return _constant(draw, x, fraction)


def _constant(draw: Callable, x: Any, fraction: Callable, zeros: bool = False) -> Any:
    """The same for what is no argument: there a tuple is no shape, and zeros stay."""
    if isinstance(x, Fraction):
        return fraction(x)
    if isinstance(x, ExactArray) or not (is_array_api_obj(x) or isinstance(x, float)):
        return x
    values = numpy_of(x)
    if values.dtype.kind != "f":
        return values
    stays = ~np.isfinite(values) | (values == 0) if zeros else ~np.isfinite(values)
    found = draw(values.shape)
    return np.where(stays, np.where(stays, values, 0), found) if stays.any() else found
