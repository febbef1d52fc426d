"""Displays that say less than they seem to: a tautology, a condition that does nothing or says it all."""

from collections.abc import Callable, Iterator

import numpy as np

from attnmath.page._insert import changed, inserted, numbered
from attnmath.page._nodes import Node, PageError, Statement
from attnmath.page._scene import Scene
from attnmath.page._trial import Trial, is_constant

NUMBER = Node("number", (2.5,))
CHANGES = (  # under which what is zero stays zero
    lambda x: Node("prod", ((NUMBER, x),), x.start, x.end),
    lambda x: Node("had", (Node("had", (x, x), x.start, x.end), x), x.start, x.end),
)


def refuse_vacuous(statements: tuple, scenes: tuple) -> None:
    """A PageError for what holds by itself, or has a part that makes no difference."""
    stated = [statement for statement in statements if not statement.is_local]
    for statement, plain, whole in zip(stated, numbered(statements), inserted(statements), strict=True):
        pairs = list(_pairs(plain.members, plain.relations))
        for number, (a, _, b) in enumerate(pairs, 1):
            if a == b:
                start = statement.members[number].start
                raise PageError("value", "the sides are the same, with what they are defined to be", start)
        for word, sides, relations, start, _ in plain.conditions:
            if word != "within" and any(_same(one, other) for one in _pairs(sides, relations) for other in pairs):
                raise PageError("value", "the condition is what the statement says", start)
        refuse_idle_parts(statements, statement, scenes)
        if statement.conditions and not any(map(is_constant, statement.members)):
            refuse_unmoved(whole, scenes)


def _pairs(sides: tuple, relations: tuple) -> Iterator[tuple]:
    return zip(sides, relations, sides[1:])


def _same(one: tuple, other: tuple) -> bool:
    turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(one[1], one[1])
    return other in (one, (one[2], turned, one[0]))


def refuse_idle_parts(statements: tuple, statement: Statement, scenes: tuple) -> None:
    """A part of a condition without which the same indices of the same settings meet it."""
    parts = [(c, i) for c in statement.conditions if c[0] != "within" for i in range(len(c[2]))]
    if len(parts) < 2:
        return
    met = {None: [], **{part: [] for part in range(len(parts))}}
    for scene in scenes:
        trial = Trial(statements, scene)
        for frame in trial.frames(statement, ignore=True):
            held = [trial.holds(frame, _only(c, i)) for c, i in parts]
            met[None].append(all(held))
            for part in range(len(parts)):
                met[part].append(all(held[:part] + held[part + 1 :]))
    for part, (condition, i) in enumerate(parts):
        if met[part] == met[None]:
            message = "without this part of its condition it says the same in every setting: delete it"
            raise PageError("value", message, condition[1][i].start)


def _only(condition: tuple, i: int) -> tuple:
    word, sides, relations, *place = condition
    return (word, sides[i : i + 2], relations[i : i + 1], *place)


def refuse_unmoved(statement: Statement, scenes: tuple) -> None:
    """A letter that moves no side where the condition is met, as what is zero there."""
    cast = scenes[0].cast
    names = {n.args for member in statement.members for n in _outside(member) if cast.knows(n.args[1])}
    for name in sorted(names):
        moved = [tuple(_moved(member, name, change) for member in statement.members) for change in CHANGES]
        if not any(_differ(statement, members, scene) for members in moved for scene in scenes):
            message = f"where the condition is met, {''.join(name)} makes no difference to any side"
            raise PageError("value", message, statement.conditions[0][3])


def _outside(node: Node) -> Iterator[Node]:
    """The names in a node, but for those of derivatives."""
    if node.kind == "name":
        yield node
    elif node.kind != "partial":
        parts = [x for arg in node.args for x in (arg if isinstance(arg, tuple) else (arg,))]
        for part in parts:
            if isinstance(part, Node):
                yield from _outside(part)


def _moved(node: Node, name: tuple, change: Callable) -> Node:
    """A node with another value for a letter."""
    base = node.args[0] if node.kind == "index" else node
    if base.kind == "name":
        return change(node) if base.args == name else node
    if node.kind == "index":
        return Node("index", (_moved(base, name, change), node.args[1]), node.start, node.end)
    return node if node.kind == "partial" else changed(node, lambda part: _moved(part, name, change))


def _differ(statement: Statement, moved: tuple, scene: Scene) -> bool:
    """Whether a side changes at some indices that meet the condition."""
    return any(
        a != b and not np.array_equal(frame.evaluate(a).x, frame.evaluate(b).x)
        for frame in Trial((statement,), scene).frames(statement)
        for a, b in zip(statement.members, moved)
    )
