"""Statements with the local definitions (`:=`) of their display put in, and summed indices numbered."""

from dataclasses import replace
from itertools import combinations, count

from attnmath.page._nodes import Node, Statement

Definitions = dict[tuple, tuple[tuple, Node]]  # (prefix, letter) -> its indices, what it is


def inserted(statements: tuple[Statement, ...]) -> list[Statement]:
    """What a display states, without a letter of its own; no two sums share an index."""
    known: Definitions = {}
    found = []
    for statement in statements:
        if statement.is_local:
            left, body = statement.members
            base, subs = left.args if left.kind == "index" else (left, ())
            known[base.args] = (tuple(sub.args[1] for sub in subs), put(body, known))
            continue
        members = tuple(fresh(put(member, known)) for member in statement.members)
        conditions = tuple((word, tuple(fresh(put(side, known)) for side in sides), *rest)
                           for word, sides, *rest in statement.conditions)  # fmt: skip
        found.append(Statement(members, statement.relations, conditions, statement.start, statement.end))
    return found


def numbered(statements: tuple[Statement, ...]) -> list[Statement]:
    """The same, with the indices of sums numbered in each side: sides that say the same are equal."""
    return [
        replace(one, members=tuple(map(plain, one.members)),
                conditions=tuple((word, tuple(map(plain, sides)), *rest) for word, sides, *rest in one.conditions))
        for one in inserted(statements)
    ]  # fmt: skip


def put(node: Node, known: Definitions) -> Node:
    """A node with definitions put in."""
    if node.kind == "index" and node.args[0].kind == "name" and node.args[0].args in known:
        indices, body = known[node.args[0].args]
        subs = tuple(put(sub, known) for sub in node.args[1])
        body = named(fresh(body), dict(zip(indices, subs)))
        rest = subs[len(indices) :]
        return Node("index", (body, rest), node.start, node.end) if rest else body
    if node.kind == "name" and node.args in known and not known[node.args][0]:
        return known[node.args][1]
    return changed(node, lambda part: put(part, known))


def changed(node: Node, change) -> Node:
    """A node with its parts changed."""
    args = tuple(_part(arg, change) for arg in node.args)
    return Node(node.kind, args, node.start, node.end, node.parts)


def _part(arg, change):
    if isinstance(arg, tuple):
        return tuple(_part(part, change) for part in arg)
    return change(arg) if isinstance(arg, Node) else arg


def named(node: Node, by: dict[str, Node]) -> Node:
    """A node with other nodes for some of its indices."""
    if node.kind == "name" and not node.args[0] and node.args[1] in by:
        return by[node.args[1]]
    if node.kind == "big":
        by = {name: new for name, new in by.items() if name not in node.args[1]}
    return changed(node, lambda part: named(part, by))


def fresh(node: Node, numbers=None) -> Node:
    """A node whose summed indices have names that occur nowhere else."""
    numbers = numbers or NEVER
    if node.kind != "big":
        return changed(node, lambda part: fresh(part, numbers))
    operation, names, *rest = node.args
    new = {name: Node("name", ("", f"{next(numbers)}")) for name in names}
    inner = named(Node("rest", tuple(rest)), new)
    inner = changed(inner, lambda part: fresh(part, numbers))
    args = (operation, tuple(x.args[1] for x in new.values()), *inner.args)
    return Node("big", args, node.start, node.end, node.parts)


NEVER = count()  # no index is a number


def plain(node: Node) -> Node:
    """A node whose summed indices are numbered from its left."""
    return fresh(node, count())


LESS, MORE = {"<", "<="}, {">", ">="}


def bounds(statements: tuple[Statement, ...], chained: bool = False) -> list[tuple]:
    """(smaller, larger, whether strictly, conditions) of neighbours, or also of what a chain puts together."""
    found = []
    for statement in numbered(statements):
        conditions = tuple((sides, relations) for _, sides, relations, *_ in statement.conditions)
        for i, j in combinations(range(len(statement.members)), 2):
            between = set(statement.relations[i:j])
            a, b = statement.members[i], statement.members[j]
            if (chained or j == i + 1) and between & LESS and between <= LESS | {"="}:
                found.append((a, b, "<" in between, conditions))
            if (chained or j == i + 1) and between & MORE and between <= MORE | {"="}:
                found.append((b, a, ">" in between, conditions))
    return found
