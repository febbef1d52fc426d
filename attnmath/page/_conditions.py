"""Misprints of what a display supposes and of how much it allows: conditions and bounds.

A weaker condition, or quite another one, is met where the display says nothing: only a setting in
which the statement fails there shows that the condition is needed.
"""

import re
from collections.abc import Iterator

from attnmath.page._cast import Cast
from attnmath.page._edits import Misprint
from attnmath.page._nodes import Node, PageError, Statement
from attnmath.page._trial import is_constant

RELATION = re.compile(r"\\(?:[lg]eq?|neq?)(?![A-Za-z])|[<=>]")
WEAKER = {"<": ["\\le"], ">": ["\\ge"]}
STRONGER = {"\\le": ["<", "="], "\\ge": [">", "="], "\\ne": ["<", ">"]}
ONES = r"\mathbf 1 \mathbf 1^{\mathsf T}"
LOW = "-10"  # finite, and small for a score or a bias
STRENGTHENED = "condition stronger"  # true where the display is; some setting has to tell them apart


def conditions(text: str, statement: Statement, cast: Cast) -> Iterator[Misprint]:
    """Each condition a little weaker, or a little stronger."""
    for word, members, relations, _, _ in statement.conditions:
        if word == "within" or relations == ("in",):
            continue
        for a, b in zip(members, members[1:]):
            found = RELATION.search(text, a.end, b.start)
            if b.kind == "infinity" or b.kind == "sum" and b.args[1][0].kind == "infinity":
                if found.group() == "=":
                    yield Misprint("condition weaker", found.start(), b.end, f" < {LOW}")
                continue  # nothing is beyond it
            plain = {"name", "index"} >= {n.kind for n in (a, b) if not is_constant(n)}
            if found.group() == "=" and not plain and "1" not in (text[n.start : n.end].strip() for n in (a, b)):
                first = " = ".join(_first_row(text[n.start : n.end]) for n in (a, b) if not is_constant(n))
                yield Misprint("condition weaker", a.start, b.end, first + " = 0" * is_constant(b))
            for kind, others in (("condition weaker", WEAKER), (STRENGTHENED, STRONGER)):
                for new in others.get(found.group(), ()):
                    yield Misprint(kind, found.start(), found.end(), f" {new} ")
        for member in members:
            yield from _entries(text, member, cast)
        yield from _exchanged(text, statement, cast)


def _first_row(side: str) -> str:
    if ONES in side:
        return side.replace(ONES, "\\mathbf 1^{\\mathsf T}")
    return f"({side})_{{1}}"


def _exchanged(text: str, statement: Statement, cast: Cast) -> Iterator[Misprint]:
    """Quite another condition, on the free indices or on the sizes."""
    start, end = statement.conditions[0][3], statement.conditions[-1][4]
    sizes = [size for size in ("n", "m") if size in cast.sizes]
    free = sorted(_free(statement))
    others = [f"{i} = {size}" for i in free for size in sizes] + [f"{i} > 2" for i in free]
    others += [f"{i} < {j}" for i in free for j in free if i != j]
    if cast.knows("B") and cast.axes("", "B") == ("n", "m"):
        others += [f"B_{{{i} 1}} {low}" for i in free for low in ("= -\\infty", f"< {LOW}")]
    word = "if" if free else "when"
    if not free:
        others = [f"{a} {relation} {b}" for a, b in zip(sizes, sizes[1:]) for relation in ("<", "=", "\\ge")]
    for other in others:
        yield Misprint("another condition", start, end, rf" \quad \text{{{word} }} {other}")


def _free(statement: Statement) -> set[str]:
    """The letters of single entries that are not summed over."""
    names, summed = set(), set()
    for node in statement.nodes():
        if node.kind == "index":
            names |= {n.args[1] for sub in node.args[1] for n in sub.walk() if n.kind == "name"}
        elif node.kind == "big":
            summed |= set(node.args[1])
    return names - summed - {"n", "m"}


def _entries(text: str, member: Node, cast: Cast) -> Iterator[Misprint]:
    """One entry in the place of all, or all in the place of one."""
    base, subs = member.args if member.kind == "index" else (member, ())
    if base.kind != "name" or not cast.knows(base.args[1]):
        return
    try:
        axes = cast.axes(*base.args)
    except PageError:
        return
    if subs:
        yield Misprint(STRENGTHENED, base.end, member.end, "")
        inner = text[subs[0].start : subs[-1].end]
        if len(subs) > 1:
            kept = text[subs[0].start : subs[-2].end]
            yield Misprint(STRENGTHENED, base.end, member.end, f"_{{{kept}}}")
        if len(subs) < len(axes):
            yield Misprint("condition weaker", base.end, member.end, f"_{{{inner} 1}}")
    elif axes:
        yield Misprint("condition weaker", base.end, base.end, "_1")


def bounds(text: str, statement: Statement) -> Iterator[Misprint]:
    """A tenth of a bound, which holds where the bound is slack."""
    for a, relation, b in zip(statement.members, statement.relations, statement.members[1:]):
        low, high = (a, b) if relation in ("<=", "<") else (b, a)
        if relation in ("<=", "<", ">=", ">") and not is_constant(low) and not is_constant(high):
            bound = low if low.kind == "sum" and low.args[0] == ("-",) else high
            inner = text[bound.start : bound.end]
            yield Misprint("a tenth", bound.start, bound.end, rf"\frac{{1}}{{10}} ({inner})")
    for word, members, _, _, _ in statement.conditions:
        if word == "within" and members[0].kind == "number":
            value = f"{members[0].args[0] / 10:.12f}".rstrip("0")
            yield Misprint("a tenth", members[0].start, members[0].end, value)
