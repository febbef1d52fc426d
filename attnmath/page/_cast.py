"""The cast: every letter with its shape, and how the page itself defines it.

Primals are drawn at random; the other letters follow from the definitions that the
displays give.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from attnmath.page._evaluate import Frame, Local
from attnmath.page._nodes import Node, PageError, Statement
from attnmath.page._scope import scope

PRIMAL = ("random", "positive", "count", "mask")


class Letter(NamedTuple):
    """Axes from the left (the last two are the matrix), and where the value comes from.

    `origin` is random, positive (random, for what must not be negative), count (a whole
    number from 1), mask (0 or 1, as a setting has it), or a label.
    """

    axes: tuple[str, ...]
    origin: str = "random"

    @property
    def is_primal(self) -> bool:
        return self.origin in PRIMAL


@dataclass(frozen=True)
class Setting:
    """One way to fill a cast: a seed, sizes of its own, a change of the primals."""

    name: str
    seed: int
    sizes: dict = field(default_factory=dict)
    change: Callable[[dict, dict], None] = lambda values, sizes: None


@dataclass(frozen=True)
class Cast:
    """Letters with their origin; outputs carry a random cotangent each."""

    name: str
    sizes: dict
    letters: dict
    outputs: tuple
    settings: tuple
    rows: dict = field(default_factory=dict)  # q -> Q: q_i is row i of Q
    names: dict = field(default_factory=dict)  # letter -> its name in the code, if another
    constants: tuple = ()  # letters that never move: no tangent, no gradient
    readings: tuple = ()  # sizes that equal another one in a setting: a letter read in two ways
    loss: str = ""  # a name for the loss, where derivatives are written with ∂
    has_second: bool = False  # the tangents of gradients are letters of this cast
    moving: tuple = ()  # outputs whose gradients move; those of the others are held still

    def knows(self, letter: str) -> bool:
        return letter in self.letters or letter in self.rows or letter == self.loss != ""

    def moves(self, letter: str) -> bool:
        """Whether the gradient of a letter has a tangent."""
        return self.has_second and (letter in self.moving or letter not in self.outputs)

    def axes(self, prefix: str, letter: str, at: int | None = None) -> tuple:
        """The axes that a letter's subscripts consume, from the left."""
        if prefix == "" and letter in (*self.sizes, self.loss):
            return ()
        spec = self.letters.get(self.rows.get(letter, letter))
        if spec is None:
            raise PageError("letter", f"{letter} is not in the cast {self.name!r}", at)
        if prefix and self.rows.get(letter, letter) in self.constants:
            raise PageError("letter", f"{letter} is a constant: it has no derivative", at)
        if prefix == "dotd" and not self.moves(self.rows.get(letter, letter)):
            raise PageError("letter", f"the tangent of d{letter} is not in the cast {self.name!r}", at)
        return tuple(axis for axis in spec.axes if axis != "1")


@dataclass(frozen=True)
class Definition:
    """`letter_{indices} := body`, as a display of the page gives it."""

    indices: tuple
    body: Node
    ranges: dict  # index -> axis name
    is_grouped: bool = False  # g is the group of h

    @cached_property
    def is_late(self) -> bool:
        """It speaks of gradients or derivatives: found after them, not differentiated."""
        nodes = list(self.body.walk())
        return any(n.kind == "partial" or n.kind == "name" and n.args[0] for n in nodes)

    @cached_property
    def names(self) -> set:
        return {n.args for n in self.body.walk() if n.kind == "name"}


def define(cast: Cast, letter: str, statements: tuple[Statement, ...]) -> Definition | None:
    """The first statement whose left side is the letter, or its entries or rows."""
    for statement in statements:
        left = statement.members[0]
        base, subs = left.args if left.kind == "index" else (left, ())
        if base.kind != "name" or base.args[0] or statement.relations[0] != "=":
            continue
        if any(sub.kind != "name" or sub.args[0] for sub in subs):
            continue
        if cast.rows.get(base.args[1], base.args[1]) == letter:
            grouped = [c[2] for c in statement.conditions] == [("in",)]
            if statement.conditions and not grouped:
                raise PageError("value", "a definition has no condition", left.start)
            found = scope(statement, cast, {})
            names = tuple(sub.args[1] for sub in subs)
            return Definition(names, statement.members[1], found.axis, grouped)
    return None


def locals_of(statements, cast: Cast, scene: Any) -> tuple[dict, dict]:
    """The local definitions of a display, and the axes of each for its subscripts."""
    locals_: dict = {}
    measured: dict = {}  # the same in the scene where all sizes are distinct
    axes: dict = {}
    for statement in statements:
        if not statement.is_local:
            continue
        left, body = statement.members[0], statement.members[1]
        base, subs = left.args if left.kind == "index" else (left, ())
        if base.kind != "name":
            raise PageError("letter", "':=' names a letter", left.start)
        if cast.knows(base.args[1]) or base.args[1] in cast.sizes or base.args in locals_:
            message = f"{base.args[1]} has a meaning already"
            raise PageError("letter", message, left.start)
        found = scope(statement, cast, axes)
        ranges = {i: scene.sizes[a] for i, a in found.axis.items()}
        names = tuple(sub.args[1] for sub in subs)
        locals_[base.args] = Local(names, body, ranges)
        pattern = scene.pattern.paired(scene.outputs)
        spans = {i: pattern.sizes[a] for i, a in found.axis.items()}
        measured[base.args] = Local(names, body, spans)
        first = {i: 1 for i in names}
        shape = Frame(pattern, spans, measured, first).evaluate(body).shape
        known = {size: axis for axis, size in pattern.sizes.items()}
        rest = tuple(known.get(s, "?") for s in shape if s != 1)
        axes[base.args] = tuple(found.axis[i] for i in names) + rest
    return locals_, axes
