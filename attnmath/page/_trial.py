"""Compares the sides of the statements of one display in one scene."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from attnmath._tolerance import PAGE
from attnmath.page import _values as v
from attnmath.page._cast import locals_of
from attnmath.page._evaluate import COMPARE, Frame
from attnmath.page._nodes import Node, PageError, Statement
from attnmath.page._scene import Scene
from attnmath.page._scope import scope
from attnmath.page._values import Value, plain

DISTINCT = 1e-6  # what '≠' must show, relative to the magnitude: far above rounding


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
