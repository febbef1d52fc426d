"""Judges displays: every statement of every display, in every scene of its cast."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

import attnmath
from attnmath._tolerance import PAGE
from attnmath.page import _values as v
from attnmath.page._cast import (
    Cast,
    Independent,
    NumPyScene,
    Scene,
    TorchScene,
    define,
    locals_of,
)
from attnmath.page._chapter import Chapter, Display, Fault, read
from attnmath.page._evaluate import COMPARE, Frame
from attnmath.page._scope import scope
from attnmath.page._syntax import Node, PageError, Statement
from attnmath.page._values import Value, plain

DISTINCT = 1e-6  # what '≠' must show, relative to the magnitude: far above rounding


@dataclass(frozen=True)
class Verdict:
    """A display that holds: where it was run, its largest error, what it rests on."""

    display: Display
    cast: str
    scenes: int
    comparisons: int
    error: float  # relative to the magnitude that was summed up
    facts: int  # steps that hold for the letters of the cast only
    algebra: int  # steps that hold for any matrices of these shapes


class Book:
    """All chapters, and the scenes in which their displays are run."""

    def __init__(self, chapters: list[Chapter], casts: dict[str, tuple[Cast, ...]]):
        self.chapters, self.casts = chapters, casts
        self.displays = {d.label: d for c in chapters for d in c.displays}
        self._scenes: dict = {}

    @classmethod
    def at(cls, root: Path) -> "Book":
        from attnmath.page._casts import CHAPTERS

        paths = sorted((root / "chapters").glob("[!_]*.md"))
        return cls([read(path, root) for path in paths], CHAPTERS)

    def scenes(self, cast: Cast, kind: type = NumPyScene) -> tuple[Scene, ...]:
        """The cast in all its settings, on NumPy or on torch; or once, with free letters."""
        key = (cast.name, kind)
        if key not in self._scenes:
            self._scenes[key] = self._fill(cast, kind)
        return self._scenes[key]

    def _fill(self, cast: Cast, kind: type) -> tuple[Scene, ...]:
        definitions = {}
        for letter, spec in cast.letters.items():
            if spec.origin == "random":
                continue
            display = self.displays.get(spec.origin)
            found = define(cast, letter, display.statements) if display else None
            if found is None:
                message = f"{spec.origin} defines {letter} of the cast {cast.name!r}; it is missing"
                raise PageError("letter", message)
            definitions[letter] = found
        settings = cast.settings[:1] if kind is Independent else cast.settings
        with np.errstate(all="ignore"):
            return tuple(kind(cast, setting, definitions) for setting in settings)

    def cast_of(self, display: Display) -> Cast:
        """The first cast of the chapter that has all letters of the display."""
        casts = self.casts.get(Path(display.path).stem)
        if not casts:
            raise PageError("letter", "this chapter has no cast")
        first = None
        for cast in casts:
            try:
                self.check_names(display.statements, cast)
                return cast
            except PageError as error:
                first = first or error
        raise first

    def check_names(self, statements: tuple, cast: Cast) -> None:
        axes = locals_of(statements, cast, self.scenes(cast)[0].paired(()))[1]
        for statement in statements:
            if not statement.is_local:
                scope(statement, cast, axes)

    def paired(self, statements: tuple, scene: Scene) -> Scene:
        """The loss of a display pairs the outputs whose cotangents stand in it."""
        rows = scene.cast.rows
        names = {n.args for s in statements for n in s.nodes() if n.kind == "name"}
        named = {rows.get(letter, letter) for prefix, letter in names if prefix == "d"}
        return scene.paired(tuple(o for o in scene.cast.outputs if o in named))


def judge(book: Book, display: Display) -> Verdict:
    """The verdict on a display that holds; a Fault at its place for one that does not."""
    try:
        with np.errstate(all="ignore"):
            return _judge(book, display)
    except PageError as error:
        raise display.fault(error) from None


def _judge(book: Book, display: Display) -> Verdict:
    statements = display.statements
    cast = book.cast_of(display)
    _refuse_idle(statements)
    scenes = book.scenes(cast) + book.scenes(cast, TorchScene)
    comparisons, worst = 0, 0.0
    met: dict[int, list[Scene]] = {}
    for scene in scenes:
        scene = book.paired(statements, scene)
        largest: dict = {}
        for k, compared in Trial(statements, scene).run():
            comparisons, worst = comparisons + 1, max(worst, compared.error)
            met.setdefault(k, []).append(scene)
            largest[k] = max(largest.get(k, 0.0), compared.magnitude)
        if display.kind == "eq":
            worst = max(worst, check_function(display, scene, largest))
    _refuse_unmet(statements, met)
    facts, algebra = steps(book, statements, cast)
    return Verdict(display, cast.name, len(scenes), comparisons, worst, facts, algebra)


def _refuse_idle(statements: tuple) -> None:
    for statement in statements:
        for a, b in zip(statement.members, statement.members[1:]):
            if a == b:
                raise PageError("value", "the sides are identical", b.start)


def _refuse_unmet(statements: tuple, met: dict) -> None:
    for k, statement in enumerate(statements):
        if statement.is_local or not statement.conditions:
            continue
        start = statement.conditions[0][3]
        if k not in met:
            raise PageError("value", "no setting of the cast meets the condition", start)
        names = {n.args[1] for c in statement.conditions for m in c[1] for n in m.walk()
                 if n.kind == "name"}  # fmt: skip
        if all(scene.zeros() - names for scene in met[k]):
            raise PageError("value", "only a degenerate setting meets the condition", start)


@dataclass(frozen=True)
class Compared:
    error: float  # relative to the magnitude
    magnitude: float


class Trial:
    """The statements of one display in one scene."""

    def __init__(self, statements: tuple, scene: Scene):
        self.statements, self.scene = statements, scene
        self.locals, self.axes = locals_of(statements, scene.cast, scene)

    def run(self, only: tuple | None = None, ignore: bool = False) -> Iterator[tuple]:
        """Compares side by side; a PageError where a statement fails.

        `only` restricts it to some statements, `ignore` drops their conditions.
        """
        for k, statement in enumerate(self.statements):
            if statement.is_local or only is not None and k not in only:
                continue
            for frame in self.frames(statement, ignore):
                values = [self.member(frame, member) for member in statement.members]
                for i, relation in enumerate(statement.relations):
                    bound = self.bound(frame, statement)
                    try:
                        yield k, compare(values[i], relation, values[i + 1], bound)
                    except PageError as error:
                        error.start = statement.members[i + 1].start
                        raise

    def frames(self, statement: Statement, ignore: bool) -> Iterator[Frame]:
        """One frame for each value of the free indices at which the conditions hold."""
        found = scope(statement, self.scene.cast, self.axes)
        ranges = {i: self.scene.sizes[a] for i, a in found.axis.items() if a != "?"}
        frame = Frame(self.scene, ranges, self.locals)
        for values in product(*(range(1, ranges[i] + 1) for i in found.free)):
            at = frame.at(**dict(zip(found.free, values)))
            if ignore or all(self.holds(at, c) for c in statement.conditions):
                yield at

    def member(self, frame: Frame, node: Node) -> Value:
        value = frame.evaluate(node)
        if _is_constant(node):
            return Value(value.x, value.m, (True, True))
        return value

    def holds(self, frame: Frame, condition: tuple) -> bool:
        word, members, relations, start, _ = condition
        if word == "within":
            return True
        if not relations:
            raise PageError("grammar", f"'{word}' needs a relation", start)
        values = [self.member(frame, member) for member in members]
        return all(
            _meets(a, relation, b) for a, relation, b in zip(values, relations, values[1:])
        )

    def bound(self, frame: Frame, statement: Statement) -> float | None:
        for word, members, *_ in statement.conditions:
            if word == "within":
                return frame.evaluate(members[0]).number()
        return None


def _meets(a: Value, relation: str, b: Value) -> bool:
    """Whether a condition holds: '=' up to rounding, an order at every entry."""
    a, b = v.match(a, b, "a condition")
    if relation == "=":
        try:
            compare(a, "=", b)
            return True
        except PageError:
            return False
    return bool(np.all(COMPARE[relation](plain(a.x), plain(b.x))))


def _is_constant(node: Node) -> bool:
    """0 and ±∞ stand for a matrix of any shape beside a relation."""
    if node.kind == "sum" and len(node.args[1]) == 1:
        node = node.args[1][0]
    return node.kind == "infinity" or node.kind == "number" and node.args[0] == 0


def compare(a: Value, relation: str, b: Value, bound: float | None = None) -> Compared:
    """The largest error of `a relation b`; a PageError of kind value if it does not hold."""
    a, b = v.match(a, b, f"'{relation}'")
    x, y = plain(a.x), plain(b.x)
    magnitude = float(max(a.m.max(initial=0.0), b.m.max(initial=0.0)))
    if not np.isfinite(magnitude) or np.isnan(x).any() or np.isnan(y).any():
        raise PageError("value", "a side is not a number here")
    gap = np.where(x == y, 0.0, x - y)
    error = float(np.abs(gap).max(initial=0.0))
    relative = error / magnitude if magnitude else error
    if relation == "=":
        holds = relative <= PAGE
    elif relation == "!=":
        holds, relative = relative > DISTINCT, 0.0
    elif relation == "~":
        if bound is None:
            raise PageError("grammar", "'≈' needs a bound: \\text{within} and a number")
        holds = error <= bound * np.abs(y).max(initial=0.0)
        relative = 0.0
    else:
        slack = PAGE * magnitude if relation in ("<=", ">=") else 0.0
        holds = bool(np.all(gap <= slack if relation[0] == "<" else gap >= -slack))
        holds = holds and (relation in ("<=", ">=") or bool(np.all(gap != 0)))
        relative = 0.0
    if not holds:
        raise PageError("value", f"the sides of '{relation}' differ by {error:.1e}")
    return Compared(relative, magnitude)


def code_name(prefix: str, letter: str) -> str:
    """How the code writes a letter of the page: dO, Q_dot, gamma, dgamma."""
    letter = letter.replace("^", "_")
    return {"": letter, "d": "d" + letter, "dot": letter + "_dot"}[prefix]


def check_function(display: Display, scene: Scene, magnitudes: dict) -> float:
    """`attnmath.name` on the letters of the cast returns the display's left sides.

    `magnitudes` are those of the statements whose conditions this scene meets: what the
    others give is not compared here.
    """
    name = display.name
    if name not in attnmath.__all__:
        raise PageError("label", f"attnmath has no function {name}")
    function = getattr(attnmath, name)
    names = {code_name(p, k): (p, k) for p in ("", "d", "dot") for k in scene.cast.letters}
    parameters = inspect.signature(function).parameters
    unknown = [p for p in parameters if p not in names]
    if unknown:
        raise PageError("label", f"parameter {unknown[0]} of {name} is not in the cast")
    out = function(**{p: natural(scene, *names[p]) for p in parameters})
    lefts = left_sides(display.statements, scene)
    results = out._asdict() if hasattr(out, "_asdict") else {code_name(*list(lefts)[-1]): out}
    worst = 0.0
    for key, result in results.items():
        if names.get(key) not in lefts:
            raise PageError("label", f"{name} returns {key}; no line of the display gives it")
        run = [magnitudes[k] for k in lefts[names[key]] if k in magnitudes]
        if run:
            want = natural(scene, *names[key])
            worst = max(worst, _returned(name, key, plain(result), plain(want), max(run)))
    return worst


def left_sides(statements: tuple, scene: Scene) -> dict:
    """(prefix, letter) of each left side -> the statements that give it, in order."""
    lefts: dict = {}
    for k, statement in enumerate(statements):
        left = statement.members[0]
        left = left.args[0] if left.kind == "index" else left
        if not statement.is_local and left.kind == "name":
            letter = scene.cast.rows.get(left.args[1], left.args[1])
            lefts.setdefault((left.args[0], letter), []).append(k)
    return lefts


def _returned(name: str, key: str, got: np.ndarray, want: np.ndarray, magnitude: float) -> float:
    if got.shape != want.shape:
        raise PageError("label", f"{name} returns {key} of shape {got.shape}, not {want.shape}")
    gap = np.where(got == want, 0.0, got - want)
    error = float(np.abs(gap).max(initial=0.0)) / (magnitude or 1.0)
    if not error <= PAGE:
        raise PageError("label", f"{key} of {name} is off by {error:.1e} of the magnitude")
    return error


def natural(scene: Scene, prefix: str, letter: str):
    """A letter as code has it: without the axes that only make it a matrix."""
    array = scene.letter(prefix, letter)
    axes = scene.cast.letters[letter].axes
    return array.reshape(tuple(s for s, a in zip(array.shape, axes) if a != "1"))


def steps(book: Book, statements: tuple, cast: Cast) -> tuple[int, int]:
    """How many steps need a fact, and how many hold for any matrices (algebra)."""
    scene = book.scenes(cast, Independent)[0]
    facts = algebra = 0
    for k, statement in enumerate(statements):
        if statement.is_local:
            continue
        for i in range(len(statement.relations)):
            if _is_free(statements, k, i, scene):
                algebra += 1
            else:
                facts += 1
    return facts, algebra


def _is_free(statements: tuple, k: int, i: int, scene: Scene) -> bool:
    statement = statements[k]
    step = Statement(
        statement.members[i : i + 2], statement.relations[i : i + 1], (), 0, 0
    )
    try:
        for _ in Trial((*statements[:k], step), scene).run(only=(k,), ignore=True):
            pass
        return True
    except PageError:
        return False


def check_book(book: Book, root: Path | None = None) -> tuple[list[Verdict], list[Fault]]:
    """Every display of every chapter; labels with their functions, listings and tests."""
    from attnmath.page._labels import label_faults

    verdicts: list[Verdict] = []
    faults = [fault for chapter in book.chapters for fault in chapter.faults]
    faults += label_faults(book, root)
    for chapter in book.chapters:
        for display in chapter.displays:
            try:
                verdicts.append(judge(book, display))
            except Fault as fault:
                faults.append(fault)
    return verdicts, faults
