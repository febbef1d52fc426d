"""Letters with their subscripts, and sums over indices: a frame says what an index is."""

from dataclasses import replace
from itertools import product
from typing import Any

from attnmath.page import _values as v
from attnmath.page._nodes import Misfit, Node, PageError
from attnmath.page._values import Value


def name_value(frame: Any, node: Node) -> Value:
    prefix, letter = node.args
    if node.args in frame.locals:
        return _local(frame, node, ())
    if prefix == "":
        if letter in frame.index:
            return frame.constant(float(frame.index[letter]))
        size = frame.scene.size(letter)
        if size is not None:
            return frame.constant(float(size))
    if letter in frame.scene.cast.rows:
        raise PageError("index", f"{letter} is a row: it needs its index", node.start)
    array = frame.scene.seen(prefix, letter)
    if frame.scene.axes_of(letter, array)[1]:
        raise PageError("index", f"{letter} is a family: it needs its index", node.start)
    return Value(array, frame.scene.magnitude(array, array.shape[-2:]))


def _local(frame: Any, node: Node, indices: tuple) -> Value:
    local = frame.locals[node.args]
    count = len(local.parameters)
    if len(indices) < count:
        raise PageError("index", f"{node.args[1]} was defined with {count} indices", node.start)
    inner = replace(frame, index=dict(zip(local.parameters, indices)), ranges=local.ranges)
    return _take(inner.evaluate(local.body), indices[count:], node)


def index_value(frame: Any, node: Node) -> Value:
    try:
        return _entry(frame, node)
    except Misfit as error:
        if error.kind == "index" and any(sub.kind == "sum" for sub in node.args[1]):
            # x_{i-1} has no first one: a formula may mean only those that there are
            raise PageError("index", error.message, error.start) from None
        raise


def _entry(frame: Any, node: Node) -> Value:
    base, subs = node.args
    indices = tuple(map(frame.integer, subs))
    if base.kind != "name":
        value = frame.evaluate(base)
        _check_ranges(frame, subs, value)
        return _take(value, indices, node)
    if base.args in frame.locals:
        return _local(frame, base, indices)
    whole = array = frame.scene.seen(*base.args)
    points, family = frame.scene.axes_of(base.args[1], array)
    for _ in range(family):
        if not indices:
            raise PageError("index", f"{base.args[1]} needs its index", node.start)
        _inside(indices[0], array.shape[points], node)
        array = array[:, indices[0] - 1] if points else array[indices[0] - 1]
        indices = indices[1:]
    if len(indices) == 2 and 1 not in array.shape[-2:]:
        (i, j), (rows, columns) = indices, array.shape[-2:]
        _inside(i, rows, node)
        _inside(j, columns, node)
        array, indices = array[..., i - 1 : i, j - 1 : j], ()
    size = frame.scene.magnitude(whole, array.shape[-2:])
    return _take(Value(array, size), indices, node)


def _check_ranges(frame: Any, subs: tuple, value: Value) -> None:
    """An index of an expression runs over its whole axis, or the statement says less."""
    for sub, length in zip(subs, (size for size in value.shape if size > 1)):
        if sub.kind == "name" and frame.ranges.get(sub.args[1], length) != length:
            runs = f"{sub.args[1]} runs to {frame.ranges[sub.args[1]]}"
            raise Misfit("index", f"{runs}, but this axis has {length}", sub.start)


def _take(value: Value, indices: tuple, node: Node) -> Value:
    """Subscripts consume the axes from the left: a row, then its entry."""
    for i in indices:
        if value.is_number or any(value.free):
            raise PageError("index", "an index too many", node.start)
        axis = 1 if value.shape[0] == 1 else 0
        _inside(i, value.shape[axis], node)
        cut = (slice(None), slice(i - 1, i)) if axis else (slice(i - 1, i), slice(None))
        value = Value(value.x[(..., *cut)], value.m[(..., *cut)])
    return value


def _inside(i: int, length: int, node: Node) -> None:
    if not 1 <= i <= length:
        raise Misfit("index", f"index {i} of {length}", node.start)


def big_value(frame: Any, node: Node) -> Value:
    """Sum, product, maximum or minimum over the bound indices, looping over small sizes."""
    op, names, _, _, _, body = node.args
    out = None
    for values in bound_values(frame, node):
        value = frame.at(**dict(zip(names, values))).evaluate(body)
        if out is None:
            out = value
        elif op == "sum":
            out = v.add(out, value, "+")
        elif op == "prod":
            out = v.hadamard(out, value)
        else:
            out = v.extreme(out, value, op)
    if out is not None:
        return out
    if op != "sum":
        raise PageError("index", f"{op} over nothing", node.start)
    first = frame.at(**{name: 1 for name in names}).evaluate(body)
    return v.scale(first, frame.constant(0.0))


def bound_values(frame: Any, node: Node) -> list[tuple]:
    """The values that the indices below a big operator take, its bounds respected."""
    _, names, relations, bounds, upper, _ = node.args
    if upper is not None:  # \sum_{j=1}^{m}
        low, high = frame.integer(bounds[0]), frame.integer(upper)
        return [(j,) for j in range(low, high + 1)]
    missing = [name for name in names if name not in frame.ranges]
    if missing:
        raise PageError("index", f"no letter says how far {missing[0]} runs", node.start)
    spaces = [range(1, frame.ranges[name] + 1) for name in names]
    kept = []
    for values in product(*spaces):
        inside = frame.at(**dict(zip(names, values)))
        chain = [values[-1], *map(inside.integer, bounds)]
        if relations == ("in",):
            keep = chain[1] == group_of(frame.scene, chain[0])
        else:
            keep = all(COMPARE[r](a, b) for a, r, b in zip(chain, relations, chain[1:]))
        if keep:
            kept.append(values)
    return kept


def group_of(scene: Any, h: int) -> int:
    """The group of head h, both from 1: H / G heads that follow each other share a group."""
    heads, groups = scene.size("H"), scene.size("G")
    if not heads or not groups:
        raise PageError("index", "this cast has no groups of heads")
    return (h - 1) * groups // heads + 1


COMPARE = {
    "=": lambda a, b: a == b, "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b, ">": lambda a, b: a > b, "!=": lambda a, b: a != b,
}  # fmt: skip
