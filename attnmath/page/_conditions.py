"""Misprints of what a display supposes and of how much it allows: conditions and bounds."""

import re
from collections.abc import Iterator

from attnmath.page._cast import Cast
from attnmath.page._edits import Misprint
from attnmath.page._nodes import Node, PageError, Statement
from attnmath.page._trial import is_constant

RELATION = re.compile(r"\\(?:[lg]eq?|neq?)(?![A-Za-z])|[<=>]")
WEAKER = {"<": ["\\le"], ">": ["\\ge"]}
STRONGER = {"\\le": ["<", "="], "\\ge": [">", "="], "\\ne": ["<", ">"]}
STRENGTHENED = "condition stronger"  # true where the display is; some setting has to tell them apart


def conditions(text: str, statement: Statement, cast: Cast) -> Iterator[Misprint]:
    """Each condition a little weaker, or a little stronger."""
    for word, members, relations, _, _ in statement.conditions:
        if word == "within" or relations == ("in",):
            continue
        for a, b in zip(members, members[1:]):
            if b.kind == "infinity" or b.kind == "sum" and b.args[1][0].kind == "infinity":
                continue  # nothing is beyond it
            found = RELATION.search(text, a.end, b.start)
            for kind, others in (("condition weaker", WEAKER), (STRENGTHENED, STRONGER)):
                for new in others.get(found.group(), ()):
                    yield Misprint(kind, found.start(), found.end(), f" {new} ")
        for member in members:
            yield from _entries(text, member, cast)


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
