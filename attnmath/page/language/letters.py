"""The tables that have the shapes of a page's letters.

They stand in the notation, and at the end of a chapter. A letter with an index h, g, s or t is a family: its
line says the shape of one member.
"""

import re
from typing import NamedTuple

from attnmath.page.language.nodes import Node
from attnmath.page.language.syntax import readable

LETTERS = "\n## Letters of this chapter\n"  # opens the tables at a chapter's end
FORMULA = re.compile(r"\$([^$]+)\$")
NUMBER = ("1", "1")
# An index in the tables, and the size that it runs over; any other is that of a row or an entry.
FAMILY_INDICES = (("g", "G"), ("h", "H"), ("s", "batch"), ("t", "T"), ("t", "layers"))


class Line(NamedTuple):
    """The index of a family, and the shape of its members: their axes, or a letter of the same shape."""

    member: str = ""
    axes: tuple[str, ...] = ()
    like: str = ""


Table = dict[str, list[Line]]


def tables_of(stem: str, text: str) -> str:
    """The part of a chapter that has tables of letters."""
    return text if stem == "notation" else text.partition(LETTERS)[2]


def near(stem: str, text: str) -> list[str]:
    """The chapters whose tables have a chapter's letters: its own, the notation, those that it names there."""
    named = re.findall(r"\{doc\}`(?:[^`<]*<)?(\w+)>?`", text.partition(LETTERS)[2])
    return list(dict.fromkeys((stem, "notation", *named)))


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
        if index in ("", *dict(FAMILY_INDICES)):
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
