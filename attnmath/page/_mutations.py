"""Every small misprint of a display, as edits of its LaTeX.

One symbol changes, or one thing that a reader may get wrong as a whole: an index of one side, a
condition, a bound, a line. Reorderings that cannot change a value (the sides of ∘ and of ⟨ , ⟩)
are not misprints and are not made; nor is a weakened relation, which stays true.
"""

import re
from collections.abc import Iterator
from itertools import chain, combinations

from attnmath.page._cast import Cast
from attnmath.page._conditions import bounds, conditions
from attnmath.page._edits import EDITS, Misprint
from attnmath.page._nodes import Node, Statement
from attnmath.page._syntax import plain

STRONGER = {"=": ["\\ne", "<"], "\\le": ["=", "\\ge", "<"], "\\ge": ["=", "\\le", ">"],
            "\\leq": ["=", "\\ge", "<"], "\\geq": ["=", "\\le", ">"], "<": [">"],
            ">": ["<"], "\\approx": ["="]}  # fmt: skip
T = "^{\\mathsf T}"


def misprints(
    text: str, statements: tuple[Statement, ...], cast: Cast, is_rule: bool = False
) -> Iterator[Misprint]:
    """All misprints of a display, each text once; of a rule every line is needed."""
    seen = {_squeezed(text)}
    lost = _lost_lines(text, statements) if is_rule else ()
    for misprint in chain(_all(text, statements, cast), lost):
        changed = _squeezed(misprint.apply(text))
        if changed not in seen:
            seen.add(changed)
            yield misprint


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def unset(text: str) -> str:
    """A statement without what breaks and aligns its lines."""
    return re.sub(r"\\q?quad|\\\\|[&\s]", "", plain(text))


def squeezed(text: str) -> str:
    """One line, one blank at a time."""
    return re.sub(r"\s+", " ", text).strip()


def _lost_pairs(text: str) -> Iterator[Misprint]:
    """Parentheses, and the braces of a script, left out."""
    for pattern in (r"[_^](\{)([^{}]+)(\})", r"(\()([^()]*)(\))"):
        for found in re.finditer(pattern, text):
            if not text[: found.start(1)].rstrip().endswith(("}", "exp", "log")):
                yield Misprint("pair lost", found.start(1), found.end(3), f" {found.group(2)} ")


def _all(text: str, statements: tuple, cast: Cast) -> Iterator[Misprint]:
    yield from _lost_pairs(text)
    indices = sorted(_index_letters(statements, cast))
    for statement in statements:
        yield from _relations(text, statement)
        roots = list(statement.members[1:] if statement.is_local else statement.members)
        for root in roots:
            yield Misprint("sign", root.start, root.start, "-")
        for word, members, _, start, end in statement.conditions:
            yield Misprint("condition lost", start, end, " ")
            if word != "within":
                roots += members
                yield from _reversed(text, members)
        for root in roots:
            yield from _of_tree(text, root, cast, indices)
        yield from _indices(text, statement, indices)
        yield from _shapes(text, statement, cast)
        yield from conditions(text, statement, cast)
        yield from bounds(text, statement)


def _shapes(text: str, statement: Statement, cast: Cast) -> Iterator[Misprint]:
    """Another size in a shape."""
    for size in statement.shape:
        yield from (Misprint("size", size.start, size.end, other) for other in (*cast.sizes, "1"))


def _indices(text: str, statement: Statement, indices: list) -> Iterator[Misprint]:
    """On one side: a free index made constant, or two exchanged."""
    sides = list(statement.members[statement.is_local :])
    for condition in statement.conditions:
        sides += condition[1]
    for side in sides:
        summed = {name for n in side.walk() if n.kind == "big" for name in n.args[1]}
        places = {i: [n for n in side.walk() if n.kind == "name" and n.args == ("", i)] for i in indices}
        free = {i: nodes for i, nodes in places.items() if nodes and i not in summed}
        for i, nodes in free.items():
            if any(_speaks_of(other, i) for other in sides if other is not side):  # else a special case
                yield from (_replaced(text, side, [(node, k) for node in nodes]) for k in "12")
            if len(nodes) > 1:
                yield from (Misprint("index", node.start, node.end, "1") for node in nodes)
        for i, j in combinations(free, 2):
            yield _replaced(text, side, [(n, j) for n in free[i]] + [(n, i) for n in free[j]])


def _speaks_of(side: Node, index: str) -> bool:
    return any(n.kind == "name" and n.args == ("", index) for n in side.walk())


def _replaced(text: str, side: Node, changes: list) -> Misprint:
    """A side with other text in the places of some of its nodes."""
    whole = text[side.start : side.end]
    for node, new in sorted(changes, key=lambda change: -change[0].start):
        whole = whole[: node.start - side.start] + new + whole[node.end - side.start :]
    return Misprint("index", side.start, side.end, whole)


def _lost_lines(text: str, statements: tuple) -> Iterator[Misprint]:
    """A line of a rule deleted, with what parts it from the next or from the one before."""
    for k, statement in enumerate(statements):
        if k + 1 < len(statements):
            yield Misprint("line lost", statement.start, statements[k + 1].start, "")
        elif k:
            yield Misprint("line lost", statements[k - 1].stop, statement.stop, " ")


def _index_letters(statements: tuple, cast: Cast) -> set[str]:
    letters = set()
    for node in (n for s in statements for n in s.nodes()):
        if node.kind == "index":
            letters |= {n.args[1] for sub in node.args[1] for n in sub.walk() if n.kind == "name"}
        elif node.kind == "big":
            letters |= set(node.args[1])
    return letters - set(cast.sizes)


def _relations(text: str, statement: Statement) -> Iterator[Misprint]:
    for a, b in zip(statement.members, statement.members[1:]):
        between = text[a.end : b.start]
        found = re.search(r"\\(?:[lg]eq?|approx|neq?)(?![A-Za-z])|[<=>]", between)
        for new in STRONGER.get(found.group(), []) if found else ():
            if ":=" not in between:
                start = a.end + found.start()
                yield Misprint("relation", start, a.end + found.end(), f" {new} ")


REVERSED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}


def _reversed(text: str, members: tuple) -> Iterator[Misprint]:
    """The order in a condition, turned round."""
    for a, b in zip(members, members[1:]):
        found = re.search(r"\\[lg]e(?![A-Za-z])|[<>]", text[a.end : b.start])
        if found:
            start = a.end + found.start()
            new = f" {REVERSED[found.group()]} "
            yield Misprint("relation", start, a.end + found.end(), new)


def _of_tree(text: str, root: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    yield from _of_node(text, root, cast, indices)
    for arg in root.args:
        for part in arg if isinstance(arg, tuple) else (arg,):
            if isinstance(part, Node):
                yield from _of_tree(text, part, cast, indices)


def _of_node(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    if node.kind in EDITS:
        yield from EDITS[node.kind](text, node, cast, indices)
    if node.kind in ("name", "index", "one", "had", "prod", "inverse") and _ends(node, text):
        whole = text[node.start : node.end]
        closed = node.kind not in ("had", "prod") or whole.startswith("(")
        new = whole + T if closed else f"({whole}){T}"
        yield Misprint("transpose gained", node.start, node.end, new)


def inverses(text: str, statements: tuple[Statement, ...]) -> Iterator[Misprint]:
    """An inverse gained: what a published formula may have lost."""
    for statement in statements:
        for member in statement.members:
            for node in member.walk():
                if node.kind in ("name", "index", "func") and _ends(node, text):
                    whole = text[node.start : node.end]
                    yield Misprint("inverse gained", node.start, node.end, whole + "^{-1}")


def _ends(node: Node, text: str) -> bool:
    """No script follows, so that a transpose sign can."""
    following = text[node.end : node.end + 14].lstrip()
    return not following.startswith(("^", "_"))
