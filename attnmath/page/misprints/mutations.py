"""Every small misprint of a display, as edits of its LaTeX.

One symbol changes, or one thing that a reader may get wrong as a whole: an index of one side, a
condition, a bound, a line. Reorderings that cannot change a value (the sides of ∘ and of ⟨ , ⟩)
are not misprints and are not made; nor is a weakened relation, which stays true, nor a bound on less.
"""

import re
from collections.abc import Iterator
from itertools import chain, combinations

from attnmath.page.language.nodes import Node, PageError, Statement
from attnmath.page.misprints.edits import EDITS, Misprint
from attnmath.page.scenes.cast import Cast
from attnmath.page.verdicts.trial import is_constant

RELATION = re.compile(r"\\(?:[lg]eq?|approx|neq?)(?![A-Za-z])|[<=>]")
RELATED = {"=": ["\\ne", "<"], "\\le": ["=", "\\ge", "<"], "\\ge": ["=", "\\le", ">"],
          "\\leq": ["=", "\\ge", "<"], "\\geq": ["=", "\\le", ">"], "<": [">"],
          ">": ["<"], "\\approx": ["="]}
REVERSED = {"<": [">"], ">": ["<"], "\\le": ["\\ge"], "\\ge": ["\\le"]}
WEAKER = {"<": ["\\le"], ">": ["\\ge"]}
STRONGER = {"\\le": ["<", "="], "\\ge": [">", "="], "\\ne": ["<", ">"]}
STRENGTHENED = "condition stronger"  # true where the display is; some setting has to tell them apart
ONES = r"\mathbf 1 \mathbf 1^{\mathsf T}"
LOW = "-10"  # finite, and small for a score or a bias
TRANSPOSED = "^{\\mathsf T}"


def misprints(text: str, statements: tuple, cast: Cast, is_rule: bool = False) -> Iterator[Misprint]:
    """All misprints of a display, each text once; of a rule every line is needed."""
    seen = {"".join(text.split())}
    lost = _lost_lines(text, statements) if is_rule else ()
    for misprint in chain(_all(text, statements, cast), lost):
        changed = "".join(misprint.apply(text).split())
        if changed not in seen:
            seen.add(changed)
            yield misprint


def _lost_pairs(text: str) -> Iterator[Misprint]:
    """Parentheses, and the braces of a script, left out."""
    for pattern in (r"[_^](\{)([^{}]+)(\})", r"(\()([^()]*)(\))"):
        for found in re.finditer(pattern, text):
            if not text[: found.start(1)].rstrip().endswith(("}", "exp", "log")):
                yield Misprint("pair lost", found.start(1), found.end(3), f" {found.group(2)} ")


def _all(text: str, statements: tuple, cast: Cast) -> Iterator[Misprint]:
    yield from _lost_pairs(text)
    subscripted = {index for statement in statements for part in _indices(statement) for index in part}
    indices = sorted(subscripted - set(cast.sizes))
    for statement in statements:
        if not statement.is_local:
            yield from _replaced_relations(text, statement.members, RELATED)
        roots = list(statement.members[1:] if statement.is_local else statement.members)
        weak = _weak_sides(statement)
        for root in roots:
            if id(root) not in weak:
                yield Misprint("sign", root.start, root.start, "-")
        for word, members, _, start, end in statement.conditions:
            yield Misprint("condition lost", start, end, " ")
            if word != "within":
                roots += members
                yield from _replaced_relations(text, members, REVERSED)
        for root in roots:
            nodes = root.args[0].walk() if id(root) in weak else root.walk()
            yield from (one for node in nodes for one in _of_node(text, node, cast, indices))
        yield from _other_indices(text, statement, indices)
        for size in statement.shape:
            yield from (Misprint("size", size.start, size.end, other) for other in (*cast.sizes, "1"))
        yield from _supposed(text, statement, cast)
        yield from _bounds(text, statement)


def _weak_sides(statement: Statement) -> set[int]:
    """The sizes that are the smaller side alone: what is bounded remains so without its bars, or with a minus."""
    low: list[int] = []
    other: list[int] = []
    for a, relation, b in zip(statement.members, statement.relations, statement.members[1:]):
        below, above = (b, a) if relation in (">=", ">") else (a, b)
        other.append(id(above))
        (low if relation in ("<=", "<", ">=", ">") else other).append(id(below))
    return {id(node) for node in statement.members if node.kind == "abs"} & ({*low} - {*other})


def _other_indices(text: str, statement: Statement, indices: list) -> Iterator[Misprint]:
    """On one side: a free index made constant, or two exchanged."""
    sides = statement.sides[statement.is_local :]
    for side in sides:
        summed = {name for n in side.walk() if n.kind == "big" for name in n.args[1]}
        places = {i: [n for n in side.walk() if n.kind == "name" and n.args == ("", i)] for i in indices}
        free = {i: nodes for i, nodes in places.items() if nodes and i not in summed}
        for i, nodes in free.items():
            if any(("", i) in other.names for other in sides if other is not side):  # else a special case
                yield from (_replaced(text, side, [(node, k) for node in nodes]) for k in "12")
            if len(nodes) > 1:
                yield from (Misprint("index", node.start, node.end, "1") for node in nodes)
        for i, j in combinations(free, 2):
            yield _replaced(text, side, [(n, j) for n in free[i]] + [(n, i) for n in free[j]])


def _replaced(text: str, side: Node, changes: list) -> Misprint:
    """A side with other text in the places of some of its nodes."""
    whole = side.said(text)
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


def _indices(statement: Statement) -> tuple[set[str], set[str]]:
    """The letters in its subscripts, and those that are summed over."""
    nodes = list(statement.nodes())
    entries = {letter for node in nodes for sub in node.subs for _, letter in sub.names}
    return entries, {letter for node in nodes if node.kind == "big" for letter in node.args[1]}


def _replaced_relations(text: str, members: tuple, others: dict[str, list[str]]) -> Iterator[Misprint]:
    """Another relation between neighbours."""
    for _, _, found in _found(text, members):
        yield from (Misprint("relation", *found.span(), f" {new} ") for new in others.get(found[0], ()))


def _found(text: str, members: tuple) -> Iterator[tuple[Node, Node, re.Match]]:
    """Neighbours, and the relation between them in the text."""
    for a, b in zip(members, members[1:]):
        if found := RELATION.search(text, a.end, b.start):
            yield a, b, found


def _of_node(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    if node.kind in EDITS:
        yield from EDITS[node.kind](text, node, cast, indices)
    if node.kind in ("name", "index", "one", "had", "prod", "inverse") and _ends(node, text):
        whole = node.said(text)
        closed = node.kind not in ("had", "prod") or whole.startswith("(")
        new = whole + TRANSPOSED if closed else f"({whole}){TRANSPOSED}"
        yield Misprint("transpose gained", node.start, node.end, new)


def inverses(text: str, statements: tuple[Statement, ...]) -> Iterator[Misprint]:
    """An inverse gained: what a published formula may have lost."""
    for node in (node for statement in statements for member in statement.members for node in member.walk()):
        if node.kind in ("name", "index", "func") and _ends(node, text):
            yield Misprint("inverse gained", node.start, node.end, node.said(text) + "^{-1}")


def _ends(node: Node, text: str) -> bool:
    """No script follows, so that a transpose sign can."""
    return not text[node.end : node.end + 14].lstrip().startswith(("^", "_"))


# ---- of what a display supposes, and of how much it allows -----------------------------------------
#
# A weaker condition, or quite another one, is met where the display says nothing: only a setting in which
# the statement fails there shows that the condition is needed.


def _supposed(text: str, statement: Statement, cast: Cast) -> Iterator[Misprint]:
    """Each condition a little weaker, or a little stronger."""
    for word, members, relations, _, _ in statement.conditions:
        if word == "within" or relations == ("in",):
            continue
        for a, b, found in _found(text, members):
            if b.kind == "infinity" or b.kind == "sum" and b.args[1][0].kind == "infinity":
                if found.group() == "=":
                    yield Misprint("condition weaker", found.start(), b.end, f" < {LOW}")
                continue  # nothing is beyond it
            is_letter = {"name", "index"} >= {n.kind for n in (a, b) if not is_constant(n)}
            if found.group() == "=" and not is_letter and "1" not in (n.said(text).strip() for n in (a, b)):
                first = " = ".join(_first_row(n.said(text)) for n in (a, b) if not is_constant(n))
                yield Misprint("condition weaker", a.start, b.end, first + " = 0" * is_constant(b))
            for kind, others in (("condition weaker", WEAKER), (STRENGTHENED, STRONGER)):
                yield from (Misprint(kind, *found.span(), f" {new} ") for new in others.get(found[0], ()))
        for member in members:
            yield from _one_or_all(text, member, cast)
        yield from _another(text, statement, cast)


def _first_row(side: str) -> str:
    return side.replace(ONES, "\\mathbf 1^{\\mathsf T}") if ONES in side else f"({side})_{{1}}"


def _another(text: str, statement: Statement, cast: Cast) -> Iterator[Misprint]:
    """Quite another condition, on the free indices or on the sizes."""
    start, end = statement.conditions[0].start, statement.conditions[-1].end
    sizes = [size for size in ("n", "m") if size in cast.sizes]
    entries, summed = _indices(statement)
    free = sorted(entries - summed - {"n", "m"})
    others = [f"{i} = {size}" for i in free for size in sizes] + [f"{i} > 2" for i in free]
    others += [f"{i} < {j}" for i in free for j in free if i != j]
    if cast.knows("B") and cast.axes("", "B") == ("n", "m"):
        others += [f"B_{{{i} 1}} {low}" for i in free for low in ("= -\\infty", f"< {LOW}")]
    word = "if" if free else "when"
    if not free:
        others = [f"{a} {relation} {b}" for a, b in zip(sizes, sizes[1:]) for relation in ("<", "=", "\\ge")]
    for other in others:
        yield Misprint("another condition", start, end, rf" \quad \text{{{word} }} {other}")


def _one_or_all(text: str, member: Node, cast: Cast) -> Iterator[Misprint]:
    """One entry in the place of all, or all in the place of one."""
    base, subs = member.base, member.subs
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


def _bounds(text: str, statement: Statement) -> Iterator[Misprint]:
    """A tenth of a bound, which holds where the bound is slack."""
    for a, relation, b in zip(statement.members, statement.relations, statement.members[1:]):
        low, high = (a, b) if relation in ("<=", "<") else (b, a)
        if relation in ("<=", "<", ">=", ">") and not is_constant(low) and not is_constant(high):
            bound = low if low.kind == "sum" and low.args[0] == ("-",) else high
            yield Misprint("a tenth", bound.start, bound.end, rf"\frac{{1}}{{10}} ({bound.said(text)})")
    for word, members, _, _, _ in statement.conditions:
        if word == "within" and members[0].kind == "number":
            value = f"{members[0].args[0] / 10:.12f}".rstrip("0")
            yield Misprint("a tenth", members[0].start, members[0].end, value)
