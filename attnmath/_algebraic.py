"""What exact arithmetic says of an operation that it does not have, and of a point."""

import sys
from collections.abc import Callable
from pathlib import Path

ENGINE = {"_algebraic", "_arrays", "_calls", "_compare", "_entries", "_exact_arrays", "_exact_check",
          "_exact_functions", "_exact_linalg", "_graph", "_infinity", "_numbers", "_point", "_prove",
          "_radicands", "_reals", "_unknowns"}  # fmt: skip


_runs: list[list] = []  # of each run, the errors by which numbers left the algebra in it


class Left(Exception):
    """An error that ends a run, also where the function that is run has caught it."""

    def __init__(self, *said: object) -> None:
        super().__init__(*said)
        if _runs:
            _runs[-1].append(self)


class NotAlgebraic(Left):
    """An operation that exact arithmetic does not have, and where it was asked for.

    Derived in chapters/proved.md.
    """


class NoValue(Left, ZeroDivisionError):
    """A division by 0, or the logarithm of 0."""


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
    """function(*x, **named); the first error by which a number left the algebra, if one did."""
    left: list = []
    _runs.append(left)
    try:
        found = function(*x, **named)
    except Exception as error:
        raise (left or [error])[0] from None
    finally:
        _runs.pop()
    if left:
        raise left[0]
    return found


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
            code = frame.f_code
            return f"{Path(code.co_filename).name}:{frame.f_lineno} ({code.co_name})"
        frame = frame.f_back
    return "an unknown place"
