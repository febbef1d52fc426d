"""The letters of a page: the tables that have their shapes, and which of them is an index and runs over what.

The tables stand in the notation, and at the end of a chapter. A letter with an index h, g, s or t is a family:
its line says the shape of one member. An index takes its range from the axes that it subscripts. It may not run
over two different axes, nor be summed and free in one statement.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from attnmath.page.language.nodes import Misfit, Name, Node, PageError, Statement
from attnmath.page.language.syntax import readable

LETTERS = "\n## Letters of this chapter\n"  # opens the tables at a chapter's end
FORMULA = re.compile(r"\$([^$]+)\$")
NUMBER = ("1", "1")
# An index in the tables, and the size that it runs over; any other is that of a row or an entry.
FAMILIES = (("g", "G"), ("h", "H"), ("s", "batch"), ("t", "T"), ("t", "layers"))


class Line(NamedTuple):
    """The index of a family, and the shape of its members: their axes, or a letter of the same shape."""

    member: str = ""
    axes: tuple[str, ...] = ()
    like: str = ""


Table = dict[str, list[Line]]


def tables_of(stem: str, text: str) -> str:
    """The part of a chapter that has tables of letters."""
    return text if stem == "notation" else text.partition(LETTERS)[2]


def beside(text: str) -> list[str]:
    """The chapters whose letters a chapter has as well."""
    named = re.findall(r"\{doc\}`(?:[^`<]*<)?(\w+)>?`", text.partition(LETTERS)[2])
    return [stem for stem in named if stem != "notation"]


def letters_in(text: str) -> set[str]:
    """The letters, and their indices, in the first cells of all tables."""
    cells = re.findall(r"^\s*\|([^|]*)\|", text, re.M)
    formulas = ",".join(one for cell in cells for one in FORMULA.findall(cell)).split(",")
    return {node.args[1] for one in map(_read, formulas) if one for node in one.walk() if node.kind == "name"}


def shapes_in(text: str) -> Table:
    """What the tables with a column of shapes say of each letter; no shape where that cannot be read."""
    found: Table = {}
    for table in re.findall(r"^\| letter \| shape \|.*\n\|[- |]*\n((?:\|.*\n?)*)", text, re.M):
        for row in table.splitlines():
            first, cell = row.split("|")[1:3]
            letters = FORMULA.findall(first)
            said = _shapes(cell.partition(";")[0].strip())
            said = said * len(letters) if len(said) == 1 else said
            for letter, line in zip(letters, said if len(said) == len(letters) else [Line()] * len(letters)):
                _enter(found, _read(letter), line)
    return found


def _read(text: str) -> Node | None:
    return next((one.members[0] for one in readable(f"{text} = 0")), None)


def _enter(table: Table, node: Node | None, line: Line) -> None:
    if node and node.base.kind == "name":
        index = ",".join(sub.args[1] if sub.kind == "name" else "?" for sub in node.subs)
        if index in ("", *dict(FAMILIES)):
            table.setdefault(node.base.args[1], []).append(line._replace(member=index))


def _shapes(cell: str) -> list[Line]:
    """`$n \\times d$, number`, or `as $Q$, $K$`; what is neither has no shape."""
    is_like, parts = cell.startswith("as "), cell.removeprefix("as ").split(",")
    return [_shape(part.strip(), is_like) for part in parts]


def _shape(part: str, is_like: bool) -> Line:
    formula = FORMULA.fullmatch(part)
    if part == "number":
        return Line(axes=NUMBER)
    if formula is None:
        return Line()
    if is_like:
        node = _read(formula[1])
        return Line(like=node.base.args[1]) if node and node.base.kind == "name" else Line()
    factors = formula[1].split(r"\times")
    return Line(axes=tuple("*".join(factor.split()) for factor in factors) if len(factors) > 1 else ())


# ---- the free and the summed indices of a statement ----------------------------------------------


class CastLike(Protocol):
    """What a cast says of its letters."""

    @property
    def sizes(self) -> Collection[str]: ...
    @property
    def letters(self) -> Collection[str]: ...
    def axes(self, prefix: str, letter: str, at: int | None = None) -> tuple[str, ...]: ...


def scope(statement: Statement, cast: CastLike, locals_: Mapping[Name, tuple[str, ...]]) -> "Scope":
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

    cast: CastLike
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
