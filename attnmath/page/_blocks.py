"""Blocks: `[a, b; c, d]` sets matrices side by side and below each other.

Between two members, `\\dots` stands for those whose index lies in between.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from attnmath.page import _values as v
from attnmath.page._nodes import Misfit, Node, PageError
from attnmath.page._values import Value


def block_value(frame: Any, node: Node) -> Value:
    if len(node.args) == len(node.args[0]) == 1:
        raise PageError("grammar", "a block has two members at least", node.start)
    rows = _filled(frame, [[*row] for row in node.args])
    return _joined([_joined([frame.evaluate(n) for n in row], 1) for row in rows], 0)


def _filled(frame: Any, rows: list[list[Node]]) -> list[list[Node]]:
    """The rows without dots: a row that is dots alone stands for rows of one member."""
    rows = [_between(frame, row) if len(row) > 1 else row for row in rows]
    if not any(row[0].kind == "dots" for row in rows):
        return rows
    if any(len(row) > 1 for row in rows):
        raise PageError("grammar", "dots between rows need rows of one member", rows[0][0].start)
    return [[member] for member in _between(frame, [row[0] for row in rows])]


def _between(frame: Any, members: list[Node]) -> list[Node]:
    out: list[Node] = []
    for k, member in enumerate(members):
        if member.kind != "dots":
            out.append(member)
            continue
        if not 0 < k < len(members) - 1 or "dots" in (members[k - 1].kind, members[k + 1].kind):
            raise PageError("grammar", "dots stand between two members", member.start)
        out += _steps(frame, members[k - 1], members[k + 1])
    return out


def _steps(frame: Any, first: Node, last: Node) -> list[Node]:
    """The members between: `first` with its index one larger each time, up to `last`."""
    pairs = set(_differences(first, last))
    if len(pairs) != 1:
        raise PageError("index", "dots need members that differ in one index", first.start)
    low, high = next(iter(pairs))
    values = range(frame.integer(low) + 1, frame.integer(high))
    if frame.integer(low) != 1 or high.kind == "number":
        raise PageError("index", "dots lead from index 1 to a size", first.start)
    numbers = [Node("number", (float(value),)) for value in values]
    return [_with(first, last, number) for number in numbers]


def _differences(a: Any, b: Any) -> list[tuple[Node, Node]]:
    """The places in which two trees differ; a whole tree where their forms do."""
    if a == b:
        return []
    if isinstance(a, Node) and isinstance(b, Node):
        if a.kind == b.kind != "name" and a.kind != "number" and len(a.args) == len(b.args):
            return [pair for x, y in zip(a.args, b.args) for pair in _differences(x, y)]
        return [(a, b)]
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return [pair for x, y in zip(a, b) for pair in _differences(x, y)]
    raise PageError("index", "dots need members that differ in one index")


def _with(a: Any, b: Any, new: Node) -> Any:
    """a, with `new` where it differs from b."""
    if a == b:
        return a
    if isinstance(a, tuple):
        return tuple(_with(x, y, new) for x, y in zip(a, b))
    if a.kind == b.kind != "name" and a.kind != "number":
        return replace(a, args=_with(a.args, b.args, new))
    return new


def _joined(parts: list[Value], axis: int) -> Value:
    """The parts side by side (axis 1) or below each other (axis 0)."""
    other = 1 - axis
    lengths = {part.shape[other] for part in parts if not part.free[other]}
    if len(lengths) != 1 or any(part.free[axis] for part in parts):
        shapes = ", ".join(map(v.text, parts))
        raise Misfit("shape", f"a block needs members that fit, not {shapes}")
    (length,) = lengths
    parts = [p.grown((length, p.shape[1]) if axis else (p.shape[0], length)) for p in parts]
    xp, points = v.library(parts[0].x), np.broadcast_shapes(*(p.x.shape[:-2] for p in parts))
    x = xp.concat([xp.broadcast_to(p.x, (*points, *p.shape)) for p in parts], axis=axis - 2)
    return Value(x, np.concatenate([np.broadcast_to(p.m, p.shape) for p in parts], axis))
