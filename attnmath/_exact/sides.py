"""Two sides of a statement: run so that no call sees what another did, and compared at a point."""

import math
import random
import sys
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from types import FrameType
from typing import Any

import numpy as np

from attnmath._exact.arrays import ExactArray, exact
from attnmath._exact.entries import Infinite
from attnmath._exact.numbers import Number
from attnmath._exact.outcomes import (
    RUNS,
    Left,
    NotAlgebraic,
    OtherPoint,
    Proof,
    SidesDiffer,
    Unrelated,
    is_trusted,
    line_of,
    module_of,
)
from attnmath._exact.point import Point
from attnmath._words.named_tuples import is_branch
from attnmath._words.tolerance import CLOSE

ENDS = (StopIteration, StopAsyncIteration, GeneratorExit)  # no errors
SCALARS = (Number, Infinite, bool, int, float, Fraction, np.generic)
HIGHEST = 2**60  # degree; the primes have 127 bits
_runs_alone = threading.Lock()


def run_twice(sides: dict[str, tuple]) -> list:
    """What each (function, arguments, constants) returns; all are run twice, in both orders.

    Raises NotAlgebraic where the runs of one differ, or draw from a global generator.
    """
    names, state = [*sides], generators()
    found = {name: _own_run(name, *sides[name]) for name in names}
    again = {name: _own_run(name, *sides[name]) for name in reversed(names)}
    for name in names:
        check_same(name, found[name], again[name])
    check_generators(state)
    return [found[name] for name in names]


def check_same(name: str, first: Any, second: Any) -> None:
    """NotAlgebraic if two runs with the same arguments returned different things."""
    if not same_result(first, second):
        said = "returns something else when it is run again"
        raise NotAlgebraic(f"{name} {said}; it needs to be a function")


def check_generators(state: str) -> None:
    """NotAlgebraic if the global generators have moved on."""
    if generators() != state:
        said = "draws from the global generator of random or np.random"
        raise NotAlgebraic(f"a side {said}; it needs to be a function")


def own_copy(x: Any) -> Any:
    """A copy of an argument, field by field."""
    if is_branch(x):
        return type(x)(*map(own_copy, x))
    return x.copy() if isinstance(x, np.ndarray) else x


def _own_run(name: str, function: Callable, x: list, constants: dict) -> Any:
    """A copy of what the function returns, which gets arguments of its own."""
    own = {k: own_copy(part) for k, part in constants.items()}
    return checked_copy(run_algebraic(function, *map(own_copy, x), **own), name)


def checked_copy(y: Any, name: str) -> Any:
    """A copy of what was returned: None, numbers, arrays, and tuples and lists of these."""
    if y is None or type(y) in SCALARS or isinstance(y, np.generic):
        return y
    if type(y) in (np.ndarray, ExactArray):
        return y.copy()
    if is_branch(y):
        return type(y)(*(checked_copy(part, name) for part in y))
    if type(y) in (tuple, list):
        return type(y)(checked_copy(part, name) for part in y)
    raise TypeError(f"{name} returns a {type(y).__name__}; it needs to be an array, a number, or a tuple of these")


def same_result(x: Any, y: Any) -> bool:
    """Whether two results are the same, number by number."""
    if isinstance(x, tuple | list):
        return type(x) is type(y) and len(x) == len(y) and all(map(same_result, x, y))
    if isinstance(x, np.ndarray):
        return np.shape(x) == np.shape(y) and all(map(same_result, x.flat, np.asarray(y).flat))
    if isinstance(x, Number | Infinite):
        return type(x) is type(y) and x.key == y.key
    return type(x) is type(y) and (x == y or x != x)


def generators() -> str:
    """The state of the global generators."""
    return repr(random.getstate()) + repr(np.random.get_state(legacy=False))


def run_algebraic(function: Callable, *x: object, **named: object) -> object:
    """function(*x, **named); the first error by which a number left the algebra, if one did.

    Any other error that the function goes on after may be due to letters: NotAlgebraic as well.
    """
    if not _runs_alone.acquire(blocking=False):
        raise NotAlgebraic("undecided: a proof inside of another one, or beside it in another thread")
    left: list[Left] = []
    caught: list[str] = []
    RUNS.append(left)
    before = sys.gettrace(), threading.gettrace()
    tracer = partial(_traced, caught, before[0])
    try:
        threading.settrace(tracer)
        sys.settrace(tracer)
        found = function(*x, **named)
        if sys.gettrace() is not tracer:
            raise NotAlgebraic("undecided: a side sets the tracer, by which errors are seen")
    except Exception as error:
        raise (left[0] if left else error) from None
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])
        RUNS.remove(left)
        _runs_alone.release()
    if left:
        raise left[0]
    if caught:
        raise NotAlgebraic(f"undecided: a side goes on after an error, which may be due to letters: {caught[0]}")
    return found


def _traced(caught: list, outer: Any, frame: FrameType, event: str, error: Any) -> Any:
    """Notes the errors in frames that are not trusted; what sys.settrace calls, before an outer tracer."""
    outer = outer and outer(frame, event, error)
    if event == "call" and is_trusted(frame):
        return outer
    if event == "exception" and not issubclass(error[0], ENDS) and not _is_importing(frame):
        caught.append(f"{error[0].__name__}: {error[1]}, at {line_of(frame)}")
    frame.f_trace_lines = outer is not None
    return partial(_traced, caught, outer)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is imported there."""
    while frame is not None:
        if module_of(frame).startswith("importlib."):
            return True
        frame = frame.f_back
    return False


def compared_at(run: Callable, point: Point) -> Proof:
    """The proof that two sides are equal at a point; an AssertionError where they are not.

    Where they differ, and a constant stands for a maximum, the largest entry at a point
    of real numbers takes its place.
    """
    pairs = list(pairs_of(*run(point)))
    looked = point.looked  # at whether two letters are equal
    wrong = first_difference(pairs, point)
    if point.maxima and (wrong or looked):
        with point.taking_entries():
            also = first_difference(list(pairs_of(*run(point))), point)
        if wrong and not also:
            raise NotAlgebraic("undecided: the sides differ by what depends on a maximum")
        wrong = also
    seen = wrong and _differ_in_floats(pairs, point)  # whether they differ at a point of real numbers
    if wrong and point.has_logs and not seen:
        raise Unrelated(wrong)
    if wrong:
        raise SidesDiffer(wrong, is_small=seen is False)
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


def pairs_of(left: Any, right: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The parts of both sides that belong together, with their names."""
    if not isinstance(left, tuple) and not isinstance(right, tuple):
        if np.shape(left) != np.shape(right):
            shapes = f"shapes {np.shape(left)} and {np.shape(right)}"
            raise SidesDiffer(f"{name or 'the sides'}: {shapes}")
        yield name, left, right
        return
    counts = [len(side) if isinstance(side, tuple) else 1 for side in (left, right)]
    if not isinstance(left, tuple) or not isinstance(right, tuple) or counts[0] != counts[1]:
        raise SidesDiffer(f"the sides have {counts[0]} and {counts[1]} parts")
    fields = getattr(left, "_fields", range(len(left)))
    for field, a, b in zip(fields, left, right):
        if (a is None) != (b is None):
            raise SidesDiffer(f"{field} is None on one side")
        if a is not None:
            yield from pairs_of(a, b, f"{name}.{field}" if name else str(field))


def first_difference(pairs: list, point: Point) -> str:
    """Where, and in how many entries, the first parts that differ do so."""
    for name, a, b in pairs:
        found = differing(exact(a, point), exact(b, point))
        if found.any():
            return _sentence(name, found)
    return ""


def _differ_in_floats(pairs: list, point: Point) -> bool | None:
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
    x, y = np.broadcast_arrays(a, b)
    found = np.array([_unlike(*pair) for pair in zip(x.flat, y.flat)], dtype=bool).reshape(x.shape)
    for place in map(tuple, np.argwhere(found)):
        found[place] = not _same_exponential(x[place], y[place])
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


def degree(x: Any, y: Any) -> int:
    """The degree of the numerator of x - y."""
    is_infinite = not hasattr(x, "value") or not hasattr(y, "value")
    return 0 if is_infinite else max(x.top + y.bottom, y.top + x.bottom)


def _sentence(name: str, found: np.ndarray) -> str:
    entry = tuple(int(i) for i in np.argwhere(found)[0])
    where = f"{name or 'the sides'} differ" + ("s" if name else "")
    count = f", in {int(found.sum())} of {found.size} entries" if found.size > 1 else ""
    at = f" at entry {entry}" if entry else ""
    return f"{where}{at}{count}"
