"""The cast: every letter with its shape, and where its value comes from; and which letter is an index.

Primals are drawn at random; the other letters follow from the definitions that the
displays give. A file of casts says neither the shapes that the tables of letters have nor the
displays of its own page: `casts.py` finds both.

An index takes its range from the axes that it subscripts. It may not run over two different axes, nor be summed
and free in one statement.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from attnmath.page.language.letters import NUMBER
from attnmath.page.language.nodes import Misfit, Name, Node, PageError, Statement

PRIMAL = ("random", "positive", "count", "mask")


class Letter(NamedTuple):
    """Axes from the left (the last two are the matrix), and where the value comes from.

    `origin` is random, positive (random, for what must not be negative), count (a whole
    number from 1), mask (0 or 1, as a setting has it), or the label of a display. Until they
    are found in the tables of letters and on the page, axes are empty, and the origin is what
    all letters of one display have in common: their names.
    """

    axes: tuple[str, ...]
    origin: str = "random"

    @property
    def is_primal(self) -> bool:
        return self.origin in PRIMAL


@dataclass(frozen=True)
class Cast:
    """Letters with their origin; outputs carry a random cotangent each."""

    name: str
    sizes: dict
    letters: dict[str, Letter]
    settings: tuple
    outputs: tuple = ()
    rows: dict = field(default_factory=dict)  # q -> Q: q_i is row i of Q
    names: dict = field(default_factory=dict)  # letter -> its name in the code, if another
    constants: tuple = ()  # letters that never move: no tangent, no gradient
    readings: tuple = ()  # sizes that equal another one in a setting: a letter read in two ways
    loss: str = ""  # a name for the loss, where derivatives are written with ∂
    has_second: bool = False  # the tangents of gradients are letters of this cast
    moving: tuple = ()  # outputs whose gradients move; those of the others are held still
    about: str = ""  # a letter without which a display has nothing to say here, such as a unit roundoff
    same: dict = field(default_factory=dict)  # m -> n: where the tables say m, here it is n
    tables: str = ""  # the chapter whose tables have the shapes, if not its own
    file: str = ""  # where it is written

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
            place = f"; {self.file} has the letters: drawn, or made(...) by a display" if self.file else ""
            raise PageError("letter", f"{letter} is not in the cast {self.name!r}{place}", at)
        if prefix and self.rows.get(letter, letter) in self.constants:
            raise PageError("letter", f"{letter} is a constant: it has no derivative", at)
        if prefix == "dotd" and not self.moves(self.rows.get(letter, letter)):
            raise PageError("letter", f"the tangent of d{letter} is not in the cast {self.name!r}", at)
        return tuple(axis for axis in spec.axes if axis != "1")

    def plus(self, letters: dict[str, Letter], **changes: Any) -> "Cast":
        """With more letters, of which those that are drawn come first, and other changes."""
        both = self.letters | letters
        made = {k: one for k, one in both.items() if not one.is_primal}
        return replace(self, letters={k: one for k, one in both.items() if one.is_primal} | made, **changes)

    def without(self, names: str, **changes: Any) -> "Cast":
        """Without some letters and their rows, and with other changes."""
        lost = {*_names(names)}
        letters = {k: one for k, one in self.letters.items() if k not in lost}
        rows = {row: k for row, k in self.rows.items() if k not in lost}
        return replace(self, letters=letters, rows=rows, **changes)


# ---- how a file of casts says it -----------------------------------------------------------------


def drawn(names: str, origin: str = "random") -> dict[str, Letter]:
    """Letters whose values are drawn: "Q, K, E: d_k d_k, c: number", each with a shape if no table has it."""
    found = {}
    for one in names.split(","):
        name, _, shape = map(str.strip, one.partition(":"))
        found[name] = Letter(NUMBER if shape == "number" else tuple(shape.split()), origin)
    return found


positive = partial(drawn, origin="positive")  # from what is not negative
counts = partial(drawn, origin="count")  # whole numbers from 1
masks = partial(drawn, origin="mask")  # 0 or 1, as a setting has it


def made(names: str, label: str = "") -> dict[str, Letter]:
    """Letters that one display defines: the first of the chapter's page that does, or that with this label."""
    return drawn(names, label or ", ".join(drawn(names)))


def rows(names: str) -> dict[str, str]:
    """Letters of rows: "q, hat p" are those of Q and of hat P."""
    matrices = (name.rpartition(" ") for name in _names(names))
    return {"".join(one): "".join((*one[:2], one[2].upper())) for one in matrices}


def _names(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


# ---- the free and the summed indices of a statement ----------------------------------------------


def scope(statement: Statement, cast: Cast, locals_: Mapping[Name, tuple[str, ...]]) -> "Scope":
    """The scope of a statement; `locals_` has the axes of the letters that its display defines."""
    found = Scope(cast, locals_)
    sides = statement.sides[statement.is_local :]
    if statement.is_local:
        for sub in statement.members[0].subs:
            if sub.kind != "name" or sub.args[0]:
                raise PageError("index", "':=' needs index letters", sub.start)
            found.free.append(sub.args[1])
    for side in sides:
        found.visit(side, ())
    for side in sides:
        found.check_names(side)
    _check_groups(statement, sides)
    both = found.summed & set(found.free)
    if both:
        raise PageError("index", f"index {min(both)} is both summed and free", statement.start)
    lost = [i for i in found.free if i not in found.axis]
    if lost:
        raise PageError("index", f"no letter says how far {lost[0]} runs", statement.start)
    return found


@dataclass
class Scope:
    """The indices of a statement, whose sides it goes through."""

    cast: Cast
    locals: Mapping[Name, tuple[str, ...]]
    axis: dict[str, str] = field(default_factory=dict)  # index letter -> axis name
    free: list[str] = field(default_factory=list)  # those that mean 'for all', in order
    summed: set[str] = field(default_factory=set)

    def visit(self, node: Node, bound: tuple[str, ...]) -> None:
        if node.kind == "index":
            axes: Iterable[str | None] = (None,) * len(node.subs)
            if node.base.kind == "name":
                axes = self._axes(node)
            else:
                self.visit(node.base, bound)
            for sub, axis in zip(node.subs, axes):
                self.mark(sub, axis, bound)
            return
        if node.kind == "delta":
            for sub in node.args:
                self.mark(sub, None, bound)
            return
        if node.kind == "big":
            _, names, relations, bounds, _, _ = node.args
            if "in" in relations:
                if "G" not in self.cast.sizes:
                    raise PageError("index", "this cast has no groups of heads", node.start)
                self.mark(bounds[0], "G", bound)
            for name in names:
                if name in bound:
                    raise PageError("index", f"index {name} is summed twice", node.start)
            self.summed.update(names)
            bound += names
        for part in node.children:
            self.visit(part, bound)

    def _axes(self, node: Node) -> tuple[str, ...]:
        """The axes of a letter that has subscripts."""
        prefix, letter = node.base.args
        axes = self.locals.get((prefix, letter))
        axes = self.cast.axes(prefix, letter, at=node.base.start) if axes is None else axes
        if len(node.subs) > len(axes):
            raise PageError("index", f"{letter} has {len(axes)} axes", node.start)
        return axes

    def mark(self, sub: Node, axis: str | None, bound: tuple[str, ...]) -> None:
        """A subscript: an index that runs over an axis, if it is one."""
        if sub.kind == "sum":
            for term in sub.args[1]:
                self.mark(term, axis, bound)
            return
        if sub.kind == "index":  # an entry of a letter of whole numbers
            self.visit(sub, bound)
            return
        if sub.kind != "name" or sub.args[0] or sub.args[1] in self.cast.sizes:
            return
        letter = sub.args[1]
        if letter in self.cast.letters:
            raise PageError("index", f"{letter} is a letter of the cast, no index", sub.start)
        if letter not in bound and letter not in self.free:
            self.free.append(letter)
        if axis is None:
            return
        for name, over, what in (("h", "H", "heads"), ("g", "G", "groups"), ("s", "batch", "batch")):
            if (letter == name) != (axis == over):
                raise PageError("index", f"{name} runs over the {what}, and {letter} over {axis}", sub.start)
        if (known := self.axis.setdefault(letter, axis)) != axis:
            raise Misfit("index", f"index {letter} runs over {known} and over {axis}", sub.start)

    def check_names(self, side: Node) -> None:
        """A name is an index in use, a size, a local or a letter of the cast."""
        used = {*self.free, *self.summed}
        for node in side.walk():
            for factor in node.args[0] if node.kind == "prod" else ():
                if factor.kind == "name" and factor.args[1] in used:
                    raise PageError("index", f"the index {factor.args[1]} stands as a factor", factor.start)
            if node.kind == "name" and node.args not in self.locals:
                prefix, letter = node.args
                if prefix or letter not in used:
                    self.cast.axes(prefix, letter, at=node.start)


def _check_groups(statement: Statement, sides: tuple[Node, ...]) -> None:
    """`\\in` says which head belongs to which group, below a sum or in a condition."""
    for _, members, relations, start, _ in statement.conditions:
        if "in" in relations:
            names = tuple(side.args[1] if side.kind == "name" else "" for side in members)
            if relations != ("in",) or names != ("h", "g"):
                raise PageError("index", "'\\in' is written h \\in g", start)
    for node in (n for side in sides for n in side.walk() if n.kind == "big" and "in" in n.args[2]):
        if node.args[1] != ("h",) or [b.args for b in node.args[3]] != [("", "g")]:
            raise PageError("index", "'\\in' is written h \\in g", node.start)
    if "in" in statement.relations:
        raise PageError("grammar", "'\\in' stands below a sum or in a condition", statement.start)
