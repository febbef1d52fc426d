"""Every one-symbol misprint of a display, as edits of its LaTeX.

Reorderings that cannot change a value (the sides of ∘ and of ⟨ , ⟩) are not misprints and
are not made; nor is a weakened relation, which stays true.
"""

import re
from collections.abc import Iterator

from attnmath.page._cast import Cast
from attnmath.page._edits import EDITS, Misprint
from attnmath.page._nodes import Node, Statement

STRONGER = {"=": ["\\ne", "<"], "\\le": ["=", "\\ge", "<"], "\\ge": ["=", "\\le", ">"],
            "\\leq": ["=", "\\ge", "<"], "\\geq": ["=", "\\le", ">"], "<": [">"],
            ">": ["<"], "\\approx": ["="]}  # fmt: skip
T = "^{\\mathsf T}"


def misprints(text: str, statements: tuple[Statement, ...], cast: Cast) -> Iterator[Misprint]:
    """All misprints of a display, each text once."""
    seen = {_squeezed(text)}
    for misprint in _all(text, statements, cast):
        changed = _squeezed(misprint.apply(text))
        if changed not in seen:
            seen.add(changed)
            yield misprint


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def squeezed(text: str) -> str:
    """One line, one blank at a time."""
    return re.sub(r"\s+", " ", text).strip()


def _lost_pairs(text: str) -> Iterator[Misprint]:
    """Parentheses, and the braces of a script, left out."""
    for pattern in (r"[_^](\{)([^{}]+)(\})", r"(\()([^()]*)(\))"):
        for found in re.finditer(pattern, text):
            if not text[: found.start(1)].rstrip().endswith(("}", "big", "Big", "exp", "log")):
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
