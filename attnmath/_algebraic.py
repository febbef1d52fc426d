"""What exact arithmetic says of an operation that it does not have, and of a point."""

import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ENGINE = {"_algebraic", "_arrays", "_calls", "_compare", "_entries", "_exact_arrays", "_exact_check",
          "_exact_functions", "_exact_linalg", "_graph", "_infinity", "_numbers", "_point", "_prove",
          "_radicands", "_reals", "_unknowns"}  # fmt: skip


TRUSTED = ("attnmath", "numpy", "array_api_compat")  # catch errors only where it is the same with letters
ENDS = (StopIteration, StopAsyncIteration, GeneratorExit)  # no errors

_runs: list[list] = []  # of the run, the errors by which numbers left the algebra in it
_runs_alone = threading.Lock()


class Left(Exception):
    """An error that ends a run, also where the function that is run has caught it."""

    def __init__(self, *said: object) -> None:
        super().__init__(*said)
        for run in _runs:
            run.append(self)


class NotAlgebraic(Left):
    """An operation that exact arithmetic does not have, and where it was asked for.

    Derived in chapters/proved.md.
    """


class NoValue(NotAlgebraic, ZeroDivisionError):
    """A division by 0, or the logarithm of 0."""


class Unrelated(NotAlgebraic):
    """The sides differ by logarithms, which may have relations: where they do."""

    def __init__(self, wrong: str) -> None:
        super().__init__("undecided: the sides differ by logarithms whose relation is not known")
        self.wrong = wrong


class OtherPoint(Left):
    """Another point is needed: with more primes, with a root of -1, or drawn again."""


class Redraw(OtherPoint):
    """A root that is not there at this point, but is at others: the how many-th, if it counts."""

    def __init__(self, which: int = 0) -> None:
        super().__init__(which)
        self.which = which


class OtherPrimes(OtherPoint):
    """A whole number without a root modulo these primes."""


class Deeper(OtherPoint):
    """An exponential inside of more exponentials than there are primes for."""


class Circles(OtherPoint):
    """A sine or a cosine where -1 has no root."""


def whole(function: Callable, *x: object, **named: object) -> object:
    """function(*x, **named); the first error by which a number left the algebra, if one did.

    Any other error that the function goes on after may be due to letters: NotAlgebraic as well.
    """
    if not _runs_alone.acquire(blocking=False):
        raise NotAlgebraic("undecided: a proof inside of another one, or beside it in another thread")
    left: list = []
    caught: list[str] = []
    _runs.append(left)
    before = sys.gettrace(), threading.gettrace()
    tracer = partial(_traced, caught, before[0])
    try:
        threading.settrace(tracer)
        sys.settrace(tracer)
        found = function(*x, **named)
        if sys.gettrace() is not tracer:
            raise NotAlgebraic("undecided: a side sets the tracer, by which errors are seen")
    except Exception as error:
        raise (left or [error])[0] from None
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])
        _runs.remove(left)
        _runs_alone.release()
    if left:
        raise left[0]
    if caught:
        raise NotAlgebraic(f"undecided: a side goes on after an error, which may be due to letters: {caught[0]}")
    return found


def _traced(caught: list, outer: Any, frame: Any, event: str, error: Any) -> Any:
    """Notes the errors in frames that are not trusted; what sys.settrace calls, before an outer tracer."""
    outer = outer and outer(frame, event, error)
    if event == "call" and is_trusted(frame):
        return outer
    if event == "exception" and not issubclass(error[0], ENDS) and not _imports(frame):
        caught.append(f"{error[0].__name__}: {error[1]}, at {place(frame)}")
    frame.f_trace_lines = outer is not None
    return partial(_traced, caught, outer)


def is_trusted(frame: Any) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in TRUSTED


def _imports(frame: Any) -> bool:
    """Whether a module is imported there."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("importlib."):
            return True
        frame = frame.f_back
    return False


def not_algebraic(operation: str, why: str = "") -> NotAlgebraic:
    """The error for an operation, with the line outside of this engine that asked for it."""
    return NotAlgebraic(leaves(operation, why))


def leaves(operation: str, why: str = "") -> str:
    """The sentence of this error."""
    because = f" {why}" if why else ""
    return f"{operation} leaves the algebra{because}, at {caller()}"


def caller() -> str:
    """File, line and function of the innermost frame that is neither NumPy's nor the engine's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        package, _, module = name.rpartition(".")
        is_engine = package == "attnmath" and module in ENGINE
        if not is_engine and name.partition(".")[0] not in ("numpy", "array_api_compat"):
            return place(frame)
        frame = frame.f_back
    return "an unknown place"


def place(frame: Any) -> str:
    """File, line and function of a frame."""
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno} ({code.co_name})"


def place_of(error: Exception) -> str:
    """The same of the innermost frame of an error that is not trusted."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return next((place(frame) for frame in reversed(frames) if not is_trusted(frame)), "an unknown place")
