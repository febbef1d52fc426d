"""Proves displays: their sides at random points of finite fields, in every setting of the cast.

What a finite field does not have (inequalities, bounds, rounding) stays measured, with the reason.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attnmath._algebraic import NotAlgebraic, OtherPoint
from attnmath._point import Point
from attnmath._proof import Proof
from attnmath._prove import at_points
from attnmath.page._book import Book
from attnmath.page._cast import Cast, Setting
from attnmath.page._chapter import Display, Fault
from attnmath.page._exact import ExactScene, roomy
from attnmath.page._nodes import Inexact, PageError
from attnmath.page._promise import check_function
from attnmath.page._published import in_scene, summary
from attnmath.page._trial import Trial, compare, fitted

POINTS, ROOTS = 192, 5  # drawn, and taken, at most for a display in a setting


class Wrong(AssertionError):
    """A display that does not hold at a point, with the fault of the page."""

    def __init__(self, error: PageError):
        super().__init__(error.message)
        self.error = error


FUNCTION = "function"  # the step from the display to the function that its label promises


@dataclass(frozen=True)
class Exact:
    """What was proved of a display, and what was not."""

    display: Display
    proved: int  # steps: relations between neighbours, and the function
    measured: dict[str, int]  # reason -> how many steps it leaves
    shapes: int  # settings with different sizes in which a step was proved
    proof: Proof  # all comparisons together
    is_nested: bool = False  # an exponential stands inside of another

    @property
    def word(self) -> str:
        """proved, measured, or both; of a published formula that fails, refuted."""
        if not self.proved:
            return "measured"
        if self.measured:
            return "both"
        return "refuted" if self.display.kind == "err" else "proved"


class Exactly:
    """A book in exact arithmetic: its scenes, each made once."""

    def __init__(self, book: Book):
        self.book, self._made, self._points = book, {}, {}

    def at(self, cast: Cast, setting: Setting, run: Callable) -> tuple:
        """What run(scene) finds at a point with the roots and primes it needs, and how many count."""

        def judge(point: Point) -> tuple:
            scene = self._scene(cast, setting, point)
            try:
                return run(scene), scene
            except PageError as error:
                if isinstance(error, Inexact):
                    raise
                self._look_at_maxima(cast, setting, point, run, error)
                raise Wrong(error) from None

        try:
            return at_points(judge, setting.seed, partial(self._point, cast, setting), POINTS, ROOTS)
        except NotAlgebraic as error:
            raise Inexact("algebra", str(error)) from None
        except Wrong as wrong:
            raise wrong.error from None

    def _look_at_maxima(
        self, cast: Cast, setting: Setting, point: Point, run: Callable, error: PageError
    ) -> None:
        """Inexact, if what fails with a constant for a maximum holds with the largest entry."""
        if not point.maxima:
            return
        try:
            scene = self._make(cast, setting, point.again(entries=True))
            run(scene)
        except PageError:
            return
        finally:
            point.again()
        raise Inexact("algebra", "it depends on which entry is the largest", error.start)

    def _point(self, cast: Cast, setting: Setting, seed: int, attempt: int, *how: Any) -> Point:
        """A point for the setting; all settings have the same four pairs of primes."""
        key = (cast.name, setting.name, attempt, *how)
        if key not in self._points:
            depth, has_i, primes = how
            self._points[key] = Point(seed, attempt, depth, has_i, primes - seed + seed % 4)
        return self._points[key]

    def _scene(self, cast: Cast, setting: Setting, point: Point) -> ExactScene:
        key = (cast.name, setting.name, point.drawn[1:])
        if key not in self._made:
            self._made[key] = self._make(cast, setting, point)
        if isinstance(self._made[key], Exception):
            raise self._made[key]
        return self._made[key]

    def _make(self, cast: Cast, setting: Setting, point: Point) -> ExactScene | Exception:
        try:
            scene = ExactScene(cast, roomy(cast, setting), self.book.definitions(cast), point)
        except (OtherPoint, Inexact) as error:
            return error
        scene.pattern = self.book.scenes(cast)[0]
        return scene

    def proof(self, display: Display) -> Exact:
        """What can be proved of a display; a PageError if it is false."""
        with np.errstate(all="ignore"):
            if display.kind == "err":
                return self._refuted(display)
            return self.statements(display, display.statements, display.label.startswith("eq:"))

    def statements(self, display: Display, statements: tuple, has_function: bool = False) -> Exact:
        """The same of these statements, in the cast of the display."""
        cast = self.book.cast_of(display)
        found: dict = {}
        points, signs, comparisons, depth, sizes = 1, 0, 0, 1, set()

        def run(scene: ExactScene) -> list:
            scene = self.book.paired(statements, scene)
            name = display.name if has_function else ""
            return list(_steps(statements, scene, name))

        for setting in cast.settings:
            try:
                (steps, scene), count, doubtful = self.at(cast, setting, run)
            except Inexact as error:
                found.setdefault(None, []).append(error)
                continue
            points, signs = max(points, count), max(signs, doubtful)
            depth = max(depth, scene.point.depth)
            for step, result in steps:
                found.setdefault(step, []).append(result)
                comparisons += not isinstance(result, Inexact)
                if not isinstance(result, Inexact):
                    sizes.add(tuple(scene.sizes.items()))
        total = Proof(comparisons, 0, points, signs)
        told = _told(display, statements, has_function, found, len(sizes), total)
        return replace(told, is_nested=depth > 1)

    def _refuted(self, display: Display) -> Exact:
        """A published formula, which fails exactly as it does in float64."""
        cast, results, sizes, measured = self.book.cast_of(display), [], set(), Counter()
        points = 1
        for setting in cast.settings:
            try:
                (result, scene), count, _ = self.at(
                    cast, setting, lambda scene: in_scene(self.book, display.statements, scene)
                )
            except Inexact as error:
                measured[error.message] += 1
                continue
            results.append((scene, result))
            sizes.add(tuple(scene.sizes.items()))
            points = max(points, count)
        if not results:
            return Exact(display, 0, dict(measured), 0, Proof(0, 0, 1))
        one = summary(display, cast, results)
        return Exact(display, one.settings + one.met, {}, len(sizes), Proof(one.comparisons, 0, points))


def _steps(statements: tuple, scene: ExactScene, function: str) -> Iterator[tuple]:
    """(statement, relation) of every comparison, and its degree or why it is not exact."""
    trial, met = Trial(statements, scene), {}
    for k, statement in enumerate(statements):
        if statement.is_local:
            continue
        try:
            for frame in trial.frames(statement):
                met[k] = 1.0
                values = [_value(frame, member) for member in statement.members]
                for i, relation in enumerate(statement.relations):
                    try:
                        found = _degree(values[i : i + 2], statement.members[i : i + 2], relation)
                    except PageError:
                        if trial.assumed is None:
                            raise
                        found = trial.assumed
                    yield (k, i), found
        except Inexact as error:  # of a condition
            for i in range(len(statement.relations)):
                yield (k, i), error
    if function:
        try:
            check_function(function, statements, scene, met)
            yield FUNCTION, 0
        except Inexact as error:
            yield FUNCTION, error


def _value(frame, member):
    try:
        return frame.evaluate(member)
    except Inexact as error:
        return error


def _degree(pair: list, members: tuple, relation: str) -> int | Inexact:
    """The degree of a comparison, or why it is not exact; a PageError if it does not hold."""
    for value in pair:
        if isinstance(value, Inexact):
            return value
    try:
        a, b = fitted(pair, members)
        return compare(a, relation, b).degree
    except Inexact as error:
        return error
    except PageError as error:
        error.start = members[1].start
        raise


def _told(
    display: Display, statements: tuple, has_function: bool, found: dict, shapes: int, proof: Proof
) -> Exact:
    """The steps that were compared at least once, and the reasons of the others."""
    steps = [(k, i) for k, s in enumerate(statements) if not s.is_local for i in range(len(s.relations))]
    proved, degree, reasons = 0, 0, Counter()
    for step in [*steps, *([FUNCTION] if has_function else [])]:
        results = found.get(step, [])
        degrees = [d for d in results if not isinstance(d, Inexact)]
        if degrees:
            proved, degree = proved + 1, max(degree, *degrees)
        else:
            others = [*results, *found.get(None, [])]
            reasons[others[0].message if others else "no exact setting meets the condition"] += 1
    return Exact(display, proved, dict(reasons), shapes, proof._replace(degree=degree))


def exactly(book: Book) -> Exactly:
    """The book in exact arithmetic, made once in each process."""
    if "exactly" not in vars(book):
        book.exactly = Exactly(book)
    return book.exactly


def proof_or_fault(book: Book, display: Display) -> Exact | Fault:
    """The work of one process for one display."""
    try:
        return exactly(book).proof(display)
    except PageError as error:
        return display.fault(error)
