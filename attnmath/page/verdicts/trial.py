"""Compares the sides of the statements of one display in one scene."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from attnmath._exact.outcomes import NotAlgebraic
from attnmath._exact.sides import degree, differing
from attnmath._words.arrays import is_exact
from attnmath._words.tolerance import PAGE
from attnmath.page.language.nodes import Condition, Inexact, Name, Node, PageError, Statement
from attnmath.page.scenes import values as v
from attnmath.page.scenes.cast import Cast, scope
from attnmath.page.scenes.evaluate import Frame, Local
from attnmath.page.scenes.indexing import COMPARE, group_of
from attnmath.page.scenes.scene import Scene
from attnmath.page.scenes.values import Value, detached

# Rounding of such terms would hide an error of 1e-8: no display of the book is near it.
TOO_LARGE = 1e6
# Two statements that differ do so by about 1 at random matrices that obey no fact.
TOO_LARGE_FREE = 1e9
DISTINCT = 1e-6  # what '≠' must show, relative to the magnitude: far above rounding


@dataclass(frozen=True)
class Sides:
    """Both sides as numbers, what lies between them, and the magnitude that was summed up."""

    x: np.ndarray
    y: np.ndarray
    gap: np.ndarray
    magnitude: float


@dataclass(frozen=True)
class Comparison:
    error: float  # relative to the magnitude
    magnitude: float
    degree: int = 0  # of what is 0, where it is exact
    tells: bool = True  # a side is not zero


class Trial:
    """The statements of one display in one scene; what is as in another trial, `like`, is not found again."""

    def __init__(self, statements: tuple, scene: Scene, like: "Trial | None" = None):
        self.statements, self.scene = statements, scene
        like = like if like and like.scene.outputs == scene.outputs else None
        others = other_names(statements, like.statements) if like else frozenset()
        known = {name: one for name, one in like.named.items() if name not in others} if like else None
        self.named: dict[Name, Named] = locals_of(statements, scene.cast, scene, known)
        self.locals = {name: one.local for name, one in self.named.items()}
        self.axes = {name: one.axes for name, one in self.named.items()}
        self.memos: dict = {}  # how far the indices run -> these, and the values of nodes
        if like and scene.cache is like.scene.cache:
            for key, (ranges, memo) in like.memos.items():
                values = {at: one for at, one in memo.items() if isinstance(one, tuple)}  # of this scene
                kept = {at: one for at, one in values.items() if one[1].names.isdisjoint(others)}
                self.memos[key] = ranges, kept
        self.assumed: PageError | None = None  # a condition that exact numbers cannot decide

    def run(self, only: tuple | None = None, ignore: bool = False) -> Iterator[tuple]:
        """Compares side by side; a PageError where a statement fails.

        `only` restricts it to some statements, `ignore` drops their conditions.
        """
        for k, statement in enumerate(self.statements):
            if not statement.is_local and only is not None and k not in only:
                continue
            for frame in self.frames(statement, ignore):
                self.check_shape(frame, statement)
                if statement.is_local:
                    continue
                bound = self.bound(frame, statement)
                for a, relation, b in self.pairs(frame, statement.members, statement.relations):
                    try:
                        yield k, compare(a, relation, b[0], bound)
                    except PageError as error:
                        error.start = b[1].start
                        raise

    def check_shape(self, frame: Frame, statement: Statement) -> None:
        """The shape that the page writes beside a statement is that of its sides."""
        if statement.shape:
            shape = tuple(frame.evaluate(statement.members[0]).shape)
            if shape != tuple(size(frame, side) for side in statement.shape):
                text = f"the left side has the shape {shape[0]} × {shape[1]} here"
                raise PageError("shape", text, statement.shape[0].start)

    def frames(self, statement: Statement, ignore: bool = False) -> Iterator[Frame]:
        """One frame for each value of the free indices at which the conditions hold."""
        found = scope(statement, self.scene.cast, self.axes)
        ranges = {i: self.scene.sizes[a] for i, a in found.axis.items() if a != "?"}
        ranges, memo = self.memos.setdefault(tuple(ranges.items()), (ranges, {}))
        frame = Frame(self.scene, ranges, self.locals, memo=memo)
        for values in product(*(range(1, ranges[i] + 1) for i in found.free)):
            at = frame.at(**dict(zip(found.free, values)))
            if ignore or all(self.holds(at, c) for c in statement.conditions):
                yield at

    def pairs(self, frame: Frame, members: tuple, relations: tuple) -> Iterator[tuple]:
        """(value, relation, (value, node)) side by side; 0 and ±∞ in their neighbour's shape."""
        values = [frame.evaluate(member) for member in members]
        for i, relation in enumerate(relations):
            a, b = fitted(values[i : i + 2], members[i : i + 2])
            yield a, relation, (b, members[i + 1])

    def holds(self, frame: Frame, condition: Condition) -> bool:
        """Whether a condition is met, up to rounding, at every entry."""
        word, members, relations, start, _ = condition
        if word == "within":
            return True
        if not relations:
            raise PageError("grammar", f"'{word}' needs a relation", start)
        if relations == ("in",):
            h, g = map(frame.integer, members)
            return g == group_of(frame.scene, h)
        for a, relation, (b, _) in self.pairs(frame, members, relations):
            v.match(a, b, "a condition")
            try:
                compare(a, relation, b)
            except Inexact as error:
                if not holds_at_reals(a, relation, b):
                    return False
                self.assumed = error
            except PageError as error:
                if error.kind != "value":
                    raise
                return False
        return True

    def bound(self, frame: Frame, statement: Statement) -> float | None:
        """How far the sides of ≈ may be apart, relative to the right side."""
        found = [c for c in statement.conditions if c.word == "within"]
        if not found:
            return None
        _, members, relations, start, _ = found[0]
        bound = frame.evaluate(members[0]).number()
        if len(found) > 1 or relations or not 0 < bound < 1:
            raise PageError("grammar", "'within' needs one number between 0 and 1", start)
        if "~" not in statement.relations:
            raise PageError("grammar", "'within' belongs to '≈'", start)
        return bound


class Named(NamedTuple):
    """One local definition of a display."""

    local: Local
    measured: Local  # the same in the scene where all sizes are distinct
    axes: tuple[str, ...]  # for its subscripts


def other_names(statements: tuple, before: tuple) -> frozenset[Name]:
    """The letters whose definitions are not the very same as before, or speak of such letters."""
    both = statements, before
    ours, theirs = ({one.members[0].base.args: one for one in said if one.is_local} for said in both)
    others = {name for name in ours.keys() | theirs.keys() if ours.get(name) is not theirs.get(name)}
    for name, one in ours.items():
        if not one.members[1].names.isdisjoint(others):
            others.add(name)
    return frozenset(others)


def locals_of(
    statements: tuple, cast: Cast, scene: Any, before: Mapping[Name, Named] | None = None
) -> dict[Name, Named]:
    """The local definitions of a display; some are known before."""
    found: dict[Name, Named] = {}
    for statement in statements:
        if not statement.is_local:
            continue
        left = statement.members[0]
        if left.base.kind != "name":
            raise PageError("letter", "':=' names a letter", left.start)
        name, letter = left.base.args, left.base.args[1]
        if cast.knows(letter) or letter in cast.sizes or name in found:
            raise PageError("letter", f"{letter} has a meaning already", left.start)
        known = before.get(name) if before else None
        found[name] = known or _named(statement, found, cast, scene)
    return found


def _named(statement: Statement, found: dict[Name, Named], cast: Cast, scene: Any) -> Named:
    left, body = statement.members
    axes = scope(statement, cast, {name: one.axes for name, one in found.items()}).axis
    indices = tuple(sub.args[1] for sub in left.subs)
    pattern = scene.pattern.paired(scene.outputs)
    local, measured = (Local(indices, body, {i: of.sizes[a] for i, a in axes.items()}) for of in (scene, pattern))
    others = {name: one.measured for name, one in found.items()} | {left.base.args: measured}
    shape = Frame(pattern, measured.ranges, others, {i: 1 for i in indices}).evaluate(body).shape
    axis_of = {size: axis for axis, size in pattern.sizes.items()}
    rest = tuple(axis_of.get(s, "?") for s in shape if s != 1)
    return Named(local, measured, tuple(axes[i] for i in indices) + rest)


def size(frame: Frame, node: Node) -> int:
    """A side of a shape: a size, or a product of sizes."""
    factors = node.args[0] if node.kind == "prod" else (node,)
    return math.prod(map(frame.integer, factors))


def fitted(pair: list[Value], members: tuple) -> tuple[Value, Value]:
    """Two neighbours; 0 and ±∞ in the other's shape."""
    a, b = pair
    if is_constant(members[0]):
        return a.grown(b.shape), b
    return a, b.grown(a.shape) if is_constant(members[1]) else b


def is_constant(node: Node) -> bool:
    """0 and ±∞ stand for a matrix of any shape beside a relation."""
    if node.kind == "sum" and len(node.args[1]) == 1:
        node = node.args[1][0]
    return node.kind == "infinity" or node.kind == "number" and node.args[0] == 0


def sides_of(a: Value, relation: str, b: Value) -> Sides:
    """The sides of a relation; a PageError if their shapes do not fit."""
    a, b = v.match(a, b, f"'{relation}'")
    x, y = detached(a.x), detached(b.x)
    magnitude = float(max(a.m.max(initial=0.0), b.m.max(initial=0.0)))
    return Sides(x, y, np.where(x == y, 0.0, x - y), magnitude)


def compare_exactly(a: Value, b: Value, relation: str) -> int:
    """The degree of the sides' differences; a PageError if the relation does not hold."""
    if relation not in ("=", "!="):
        return _compare_constants(a, b, relation)
    differ = differing(a.x, b.x)
    if differ.any() == (relation == "="):
        count = f"in {int(differ.sum())} of {differ.size} entries"
        raise PageError("value", f"the sides of '{relation}' differ exactly, {count}")
    return max((degree(x, y) for x, y in zip(a.x.flat, b.x.flat)), default=0)


def _compare_constants(a: Value, b: Value, relation: str) -> int:
    """An inequality of indices or sizes; of letters there is none in a finite field."""
    try:
        if np.all(COMPARE[relation](a.x, b.x)):
            return 0
    except (KeyError, NotAlgebraic):
        raise inequality(relation) from None
    raise PageError("value", f"the sides of '{relation}' are the other way round")


def inequality(relation: str, start: int | None = None) -> Inexact:
    """Why exact numbers do not decide a relation."""
    return Inexact("algebra", "≈ has a bound" if relation == "~" else f"'{relation}' is an inequality", start)


def holds_at_reals(a: Value, relation: str, b: Value) -> bool:
    """Whether an inequality holds, clearly, at the point of real numbers beside a random one."""
    x, y = (np.array([entry._real for entry in side.x.flat]) for side in v.match(a, b, "a condition"))
    gap = {"<": y - x, "<=": y - x, ">": x - y, ">=": x - y}[relation]
    return bool(np.all(gap > DISTINCT * (np.abs(x) + np.abs(y))))


def compare(
    a: Value, relation: str, b: Value, bound: float | None = None, largest: float = TOO_LARGE
) -> Comparison:
    """The largest error of `a relation b`; a PageError of kind value if it does not hold."""
    if is_exact(a.x):
        return Comparison(0.0, 1.0, compare_exactly(*v.match(a, b, f"'{relation}'"), relation))
    both = sides_of(a, relation, b)
    gap, magnitude = both.gap, both.magnitude
    if not np.isfinite(magnitude) or np.isnan(gap).any():
        raise PageError("value", "a side is not a number here")
    if magnitude > largest:
        raise PageError("value", "terms so large that an error would not show")
    error = float(np.abs(gap).max(initial=0.0))
    relative = error / magnitude if magnitude else error
    slack = PAGE * magnitude
    if relation == "~" and bound is None:
        raise PageError("grammar", "'≈' needs a bound: \\text{within} and a number")
    match relation:
        case "=":
            holds = relative <= PAGE
        case "!=":
            holds = relative > DISTINCT
        case "~":
            holds = bool(error <= (bound or 0.0) * np.abs(both.y).max(initial=0.0))
        case _:  # what is strict holds beyond rounding
            holds = bool(np.all(COMPARE[relation](gap, slack if relation in ("<=", ">") else -slack)))
    if not holds:
        raise PageError("value", f"the sides of '{relation}' differ by {error:.1e}")
    size = np.abs([both.x, both.y]).max(initial=0.0)
    return Comparison(relative if relation == "=" else 0.0, magnitude, tells=bool(size > slack))
