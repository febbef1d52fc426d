"""What exact arithmetic may say: a proof, an operation that it does not have, or that another point is needed."""

import math
import sys
from fractions import Fraction
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from attnmath._exact.primes import BITS, CHOICE

SKIPPED_MODULES = ("attnmath._exact.", "attnmath._check.", "attnmath._words.", "numpy", "array_api_compat")
TRUSTED = ("attnmath", "numpy", "array_api_compat")  # catch errors only where it is the same with letters
AT_EACH_SIGN = 35  # times 2 to the number of such roots: points where their signs are drawn anew
RUNS: list[list["Left"]] = []  # of the run, the errors by which numbers left the algebra in it


class Proof(NamedTuple):
    """What was compared: entries, the degree of their differences, the points drawn.

    error bounds the probability that a statement which is false passes: points * degree
    / p for the smallest of the primes, and degree * 64 / 2^112 that the largest one,
    drawn among more than 2^112, divides all coefficients of a difference. Where the
    signs of some roots are drawn anew at every point, so many that a statement which is
    false for some of them passes with e^-35. decimals are the floats that were read as what
    they show: 0.1 as 1/10.
    """

    entries: int
    degree: int
    points: int
    signs: int = 0
    decimals: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        at_points = Fraction(self.points * self.degree, 2 ** (BITS - 1))
        return float(at_points + Fraction(64 * self.degree, CHOICE)) + (self.signs > 0) * math.exp(-AT_EACH_SIGN)

    def __str__(self) -> str:
        said = (
            f"proved: {self.entries} entries agree; a false one of degree"
            f" {self.degree} passes with a probability below {self.error:.0e}"
        )
        read = ", ".join(f"{x} is read as {Fraction(x)}" for x in self.decimals)
        return f"{said}; {read}" if read else said


class SidesDiffer(AssertionError):
    """The sides differ; is_small if float64 shows no difference at a point of real numbers."""

    def __init__(self, wrong: str, is_small: bool = False) -> None:
        super().__init__(f"refuted: {wrong}")
        self.is_small = is_small


class Left(Exception):
    """An error that ends a run, also where the function that is run has caught it."""

    def __init__(self, *said: object) -> None:
        super().__init__(*said)
        for run in RUNS:
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


def not_algebraic(operation: str, why: str = "") -> NotAlgebraic:
    """The error for an operation, with the line outside of this engine that asked for it."""
    return NotAlgebraic(leaving(operation, why))


def leaving(operation: str, why: str = "") -> str:
    """The sentence of this error."""
    because = f" {why}" if why else ""
    return f"{operation} leaves the algebra{because}, at {caller()}"


def caller() -> str:
    """File, line and function of the innermost frame that is neither NumPy's nor the engine's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not module_of(frame).startswith(SKIPPED_MODULES):
            return line_of(frame)
        frame = frame.f_back
    return "an unknown place"


def module_of(frame: FrameType) -> str:
    """The name of the module that a frame runs in."""
    return frame.f_globals.get("__name__", "")


def is_trusted(frame: FrameType) -> bool:
    """Whether errors may be caught there."""
    return module_of(frame).partition(".")[0] in TRUSTED


def line_of(frame: FrameType) -> str:
    """File, line and function of a frame."""
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno} ({code.co_name})"


def line_of_error(error: Exception) -> str:
    """The same of the innermost frame of an error that is not trusted."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return next((line_of(frame) for frame in reversed(frames) if not is_trusted(frame)), "an unknown place")
