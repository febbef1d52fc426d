"""Two sides at one point: where they differ, and of what degree their difference is."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from attnmath._algebraic import NotAlgebraic, OtherPoint, Unrelated
from attnmath._exact_arrays import ExactArray, exact
from attnmath._numbers import Number
from attnmath._point import Point
from attnmath._proof import Proof
from attnmath._tolerance import CLOSE

HIGHEST = 2**60  # degree; the primes have 127 bits


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
    seen = wrong and _seen(pairs, point)  # whether they differ at a point of real numbers
    if wrong and point.has_logs and not seen:
        raise Unrelated(wrong)
    if wrong:
        error = AssertionError(f"refuted: {wrong}")
        error.is_small = seen is False
        raise error
    if looked:
        raise NotAlgebraic("undecided: a side asks whether letters are equal, or 0")
    sides = [(exact(a, point), exact(b, point)) for _, a, b in pairs]
    degrees = [degree(x, y) for a, b in sides for x, y in zip(np.ravel(a), np.ravel(b))]
    if not any(_has_letters(entry) for side in sides for part in side for entry in np.ravel(part)):
        raise NotAlgebraic("undecided: there is nothing to prove, as no letter is in what the sides return")
    degrees.append(point.inside)
    if max(degrees) > HIGHEST:
        raise NotAlgebraic("undecided: the degree of the sides is so high that one point shows nothing")
    return Proof(len(degrees) - 1, max(degrees), 1, decimals=tuple(sorted(point.decimals)))


def _has_letters(x: Any) -> bool:
    return isinstance(x, Number) and bool(x.top or x.bottom)


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


def _seen(pairs: list, point: Point) -> bool | None:
    """Whether the sides differ at a point of real numbers, as far as float64 shows; None if nothing does."""
    sides = [(exact(a, point), exact(b, point)) for _, a, b in pairs]
    reals = [(x._real, y._real) for a, b in sides for x, y in zip(np.ravel(a), np.ravel(b))]
    unlike = [(x, y) for x, y in reals if x != y]
    there = [(x, y) for x, y in unlike if abs(x) + abs(y) < math.inf]
    if any(abs(x - y) > CLOSE * (1 + abs(x) + abs(y)) for x, y in there):
        return True
    return False if len(there) == len(unlike) else None


def differing(a: ExactArray, b: ExactArray) -> np.ndarray:
    """Where two arrays of one shape differ."""
    a, b = np.broadcast_arrays(a, b)
    found = np.array([_unlike(x, y) for x, y in zip(a.flat, b.flat)], dtype=bool).reshape(a.shape)
    for place in map(tuple, np.argwhere(found)):
        found[place] = not _same_exponential(a[place], b[place])
    return found


def _unlike(x: Any, y: Any) -> bool:
    return x.key != y.key if hasattr(x, "key") and hasattr(y, "key") else bool(x != y)


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
