"""Proves displays: their sides at random points of finite fields, in every setting of the cast.

What a finite field does not have (inequalities, bounds, rounding) stays measured, with the reason.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from attnmath._exact.outcomes import NotAlgebraic, OtherPoint, Proof
from attnmath._exact.point import Point
from attnmath._exact.prove import at_points
from attnmath.page.language.chapter import Display
from attnmath.page.language.nodes import Inexact, Node, PageError, claims, steps
from attnmath.page.scenes.cast import Cast
from attnmath.page.scenes.evaluate import Frame
from attnmath.page.scenes.oracles import ExactScene, roomy
from attnmath.page.scenes.scene import Scene
from attnmath.page.scenes.settings import Setting
from attnmath.page.scenes.values import Value
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.promise import check_function
from attnmath.page.verdicts.published import in_scene, refuted
from attnmath.page.verdicts.trial import Trial, compare, fitted, inequality

MOST_POINTS, MOST_ROOTS = 192, 5  # drawn, and taken, at most for a display in a setting


class Wrong(AssertionError):
    """A display that does not hold at a point: its argument is the fault of the page."""


DECIDED = ("=", "!=")  # of letters; what is less or more is no question in a finite field
FUNCTION = "function"  # the step from the display to the function that its label promises


@dataclass(frozen=True)
class Exact:
    """What was proved of a display, and what was not."""

    display: Display
    proved: int  # steps (relations between neighbours, and the function) exact in every setting
    measured: dict[str, int]  # reason -> how many steps it leaves
    shapes: int  # settings with different sizes in which a step was proved
    proof: Proof  # all comparisons together
    is_nested: bool = False  # an exponential stands inside of another
    partly: int = 0  # steps that are exact in some settings only
    is_argued: bool = False  # the page derives the inequality

    @property
    def word(self) -> str:
        """proved, argued, measured, or both; of a published formula that fails, refuted."""
        if not self.measured:
            return "refuted" if self.display.kind == "err" else "proved"
        if self.is_argued:
            return "argued"
        return "both" if self.proved or self.partly else "measured"


class Exactly:
    """A book in exact arithmetic.

    Its scenes are kept, but for those whose point has met another root: which roots it has
    met decides what can be proved, and that must not depend on what was proved before.
    """

    def __init__(self, book: Book):
        self.book = book
        self._points: dict[tuple, Point] = {}
        self._made: dict[Point, ExactScene | Exception] = {}

    def at(self, cast: Cast, setting: Setting, run: Callable) -> tuple:
        """What run(scene) finds at a point with the roots and primes it needs, and how many count."""

        def judge(point: Point) -> tuple:
            scene = self._scene(cast, setting, point)
            met = _roots(point)
            try:
                return run(scene), scene
            except PageError as error:
                if isinstance(error, Inexact):
                    raise
                self._look_at_maxima(cast, setting, point, run, error)
                raise Wrong(error) from None
            finally:
                if _roots(point) != met:
                    del self._made[point]

        try:
            return at_points(judge, setting.seed, partial(self._point, cast, setting), MOST_POINTS, MOST_ROOTS)
        except NotAlgebraic as error:
            raise Inexact("algebra", str(error)) from None
        except Wrong as wrong:
            raise wrong.args[0] from None

    def _look_at_maxima(self, cast: Cast, setting: Setting, point: Point, run: Callable, error: PageError) -> None:
        """Inexact, if what fails with a constant for a maximum holds with the largest entry."""
        if not point.maxima:
            return
        with point.taking_entries():
            try:
                run(self._make(cast, setting, point))
            except PageError:
                return
        raise Inexact("algebra", "it depends on which entry is the largest", error.start)

    def _point(self, cast: Cast, setting: Setting, seed: int, attempt: int, *how: Any) -> Point:
        """A point for the setting; all settings have the same four pairs of primes."""
        key = (cast.name, setting.name, attempt, *how)
        if self._points.get(key) not in self._made:
            depth, has_i, primes = how
            self._points[key] = Point(seed, attempt, depth, has_i, primes - seed + seed % 4)
        return self._points[key]

    def _scene(self, cast: Cast, setting: Setting, point: Point) -> ExactScene:
        if point not in self._made:
            try:
                self._made[point] = self._make(cast, setting, point)
            except (OtherPoint, Inexact) as error:
                self._made[point] = error
        found = self._made[point]
        if isinstance(found, Exception):
            raise found
        return found

    def _make(self, cast: Cast, setting: Setting, point: Point) -> ExactScene:
        scene = ExactScene(cast, roomy(cast, setting), self.book.definitions(cast), point)
        return scene.but(pattern=self.book.scenes(cast)[0])

    def proof(self, display: Display) -> Exact:
        """What can be proved of a display; a PageError if it is false."""
        with np.errstate(all="ignore"):
            if display.kind == "err":
                return self._refuted(display)
            return self.statements(display, display.statements, display.kind == "eq")

    def statements(self, display: Display, statements: tuple, has_function: bool = False) -> Exact:
        """The same of these statements, in the casts that know the display."""
        found: dict = {}
        points, signs, comparisons, depth = 1, 0, 0, 1
        sizes: set[tuple] = set()
        every: list = [*steps(statements), *[FUNCTION] * has_function]

        def run(scene: ExactScene) -> list:
            function = display.name * has_function
            return list(_each_step(statements, self.book.paired(statements, scene), function))

        for cast in self.book.casts_of(display):
            for setting, plain in zip(cast.settings, self.book.scenes(cast), strict=True):
                name = f"{cast.name}, {setting.name}"
                met = _met(statements, self.book.paired(statements, plain))
                asked = [step for step in every if step == FUNCTION or step[0] in met]
                try:
                    (results, scene), count, doubtful = self.at(cast, setting, run)
                except Inexact as error:
                    results = [(step, error) for step in asked]
                else:
                    points, signs = max(points, count), max(signs, doubtful)
                    depth = max(depth, scene.point.depth)
                    unmet = Inexact("algebra", "its condition is not met exactly")
                    results += [(step, unmet) for step in asked if step not in dict(results)]
                for step, result in results:
                    found.setdefault(step, {}).setdefault(name, []).append(result)
                    if not isinstance(result, Inexact):
                        comparisons += 1
                        sizes.add(tuple(scene.sizes.items()))
        total = Proof(comparisons, 0, points, signs)
        told = _told(display, every, found, len(sizes), total)
        return replace(told, is_nested=depth > 1, is_argued=self.book.derivation(display) is not None)

    def _refuted(self, display: Display) -> Exact:
        """A published formula, which fails exactly as it does in float64."""
        cast, points = self.book.cast_of(display), 1
        results, sizes = [], set()
        measured: Counter[str] = Counter()
        for setting in cast.settings:
            try:
                run = partial(in_scene, self.book, display.statements)
                (result, scene), count, _ = self.at(cast, setting, run)
            except Inexact as error:
                measured[error.message] += 1
                continue
            results.append((scene, result))
            sizes.add(tuple(scene.sizes.items()))
            points = max(points, count)
        if not results:
            return Exact(display, 0, dict(measured), 0, Proof(0, 0, 1))
        one = refuted(display, results)
        proof = Proof(one.comparisons, 0, points)
        reasons = {f"in {k} of {len(cast.settings)} settings: {text}": k for text, k in measured.items()}
        return Exact(display, one.settings + one.met, reasons, len(sizes), proof)


def _roots(point: Point) -> tuple:
    return point.radicands.count, len(point.primes_with_roots)


def _each_step(statements: tuple, scene: Scene, function: str) -> Iterator[tuple]:
    """(statement, relation) of every comparison, and its degree or why it is not exact."""
    trial = Trial(statements, scene)
    met: dict[int, float] = {}
    for k, statement in claims(statements):
        exact = [i for i, relation in enumerate(statement.relations) if relation in DECIDED]
        equal = {*exact, *(i + 1 for i in exact)}  # no other member needs a value
        try:
            for frame in trial.frames(statement):
                met[k] = 1.0
                values = [_value(frame, one) if i in equal else None for i, one in enumerate(statement.members)]
                for i, relation in enumerate(statement.relations):
                    try:
                        yield (k, i), _degree(values[i : i + 2], statement.members[i : i + 2], relation)
                    except PageError:
                        if trial.assumed is None:
                            raise
                        yield (k, i), trial.assumed
        except Inexact as error:  # of a condition
            for i in range(len(statement.relations)):
                yield (k, i), error
    if function:
        try:
            check_function(function, statements, scene, met)
            yield FUNCTION, 0
        except Inexact as error:
            yield FUNCTION, error


def _value(frame: Frame, member: Node) -> Value | Inexact:
    try:
        return frame.evaluate(member)
    except Inexact as error:
        return error


def _degree(pair: list, members: tuple, relation: str) -> int | Inexact:
    """The degree of a comparison, or why it is not exact; a PageError if it does not hold."""
    if relation not in DECIDED:
        return inequality(relation)
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


def _met(statements: tuple, scene: Scene) -> set:
    """The statements whose conditions a setting meets, in float64."""
    trial = Trial(statements, scene)
    return {k for k, s in claims(statements) if not s.conditions or next(trial.frames(s), None)}


def _told(display: Display, asked: list, found: dict, shapes: int, proof: Proof) -> Exact:
    """The steps that are exact in every setting that meets them, and the reasons of the others."""
    proved, partly, degree = 0, 0, 0
    reasons: Counter[str] = Counter()
    for step in asked:
        results = found.get(step, {})
        errors = {name: error for name, several in results.items()
                  for error in several if isinstance(error, Inexact)}
        degrees = [d for several in results.values() for d in several if not isinstance(d, Inexact)]
        degree = max([degree, *degrees])
        if degrees and not errors:
            proved += 1
        elif not errors:
            reasons["no exact setting meets the condition"] += 1
        else:
            partly += bool(degrees)
            where = f"in {len(errors)} of {len(results)} settings: " if len(errors) < len(results) else ""
            reasons[where + next(iter(errors.values())).message] += 1
    return Exact(display, proved, dict(reasons), shapes, proof._replace(degree=degree), partly=partly)


@lru_cache(maxsize=1)
def exactly(book: Book) -> Exactly:
    """The book in exact arithmetic, made once in each process."""
    return Exactly(book)


def prove_display(book: Book, display: Display) -> Exact:
    """The work of one process for one display."""
    return exactly(book).proof(display)
