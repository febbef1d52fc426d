"""Letters with their subscripts, sums over indices, and derivatives by entries: a frame says what an index is."""

import operator
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from attnmath.page.language.nodes import Misfit, Name, Node, PageError
from attnmath.page.scenes import values as v
from attnmath.page.scenes.values import Value, magnitude


def name_value(frame: Any, node: Node) -> Value:
    prefix, letter = node.args
    if node.args in frame.locals:
        return _local(frame, node, ())
    if prefix == "":
        if letter in frame.index:
            return frame.constant(float(frame.index[letter]))
        if letter in frame.scene.sizes:
            return frame.constant(float(frame.scene.sizes[letter]))
    if letter in frame.scene.cast.rows:
        raise PageError("index", f"{letter} is a row: it needs its index", node.start)
    array, size = frame.scene.seen(prefix, letter)
    if frame.scene.axes_of(letter, array)[1]:
        raise PageError("index", f"{letter} is a family: it needs its index", node.start)
    return Value(array, np.full(array.shape[-2:], size))


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
    array, size = frame.scene.seen(*base.args)
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
    return _take(Value(array, np.full(array.shape[-2:], size)), indices, node)


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
    return v.scaled(first, frame.constant(0.0))


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
    heads, groups = scene.sizes.get("H"), scene.sizes.get("G")
    if not heads or not groups:
        raise PageError("index", "this cast has no groups of heads")
    return (h - 1) * groups // heads + 1


COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "!=": operator.ne,
}


# ---- derivatives: ∂ above / ∂ below, entries of the one by those of the other ---------------------


def loss_gradient(node: Node, loss: str) -> Node | None:
    """The name that ∂ loss / ∂ letter has elsewhere in the book: d and the letter."""
    if node.kind != "partial" or not loss or node.args[0].args != ("", loss):
        return None
    below = node.args[1]
    if below.base.kind != "name" or below.base.args[0]:
        raise PageError("letter", "only a letter can stand below", below.start)
    name = replace(below.base, args=("d", below.base.args[1]))
    return replace(below, args=(name, below.subs)) if below.subs else name


def partial_value(frame: Any, node: Node) -> Value:
    """∂ numerator / ∂ letter: entries of the numerator by entries of the letter."""
    gradient = loss_gradient(node, frame.scene.cast.loss)
    return frame.scene.slope(frame, node) if gradient is None else frame.evaluate(gradient)


def slope_value(scene: Any, frame: Any, node: Node) -> Value:
    """∂ numerator / ∂ letter, by the derivatives of the scene."""
    numerator, denominator = node.args
    is_late = _is_late(scene, frame, numerator)
    if scene.is_view or scene.is_moved or is_late and not scene.cast.has_second:
        raise PageError("grammar", "the derivative of a derivative is not read")
    name, entries, below = _entries_below(scene, frame, denominator, is_late)
    find = scene.second_slopes if is_late else scene.slopes
    slopes = find(frame, numerator, name if is_late else name[1], entries)  # entries × rows × columns
    above = slopes.shape[1:]
    shape = slope_shape(above, below)
    x = slopes.reshape((len(entries), -1)).T.reshape(shape)
    return Value(scene.array(x), np.full(shape, magnitude(x)))


def _is_late(scene: Any, frame: Any, node: Node) -> bool:
    """Whether a gradient or a tangent stands in what is differentiated, or in what that is made of."""
    for name in node.names:
        local, definition = frame.locals.get(name), scene.definitions.get(name[1])
        if local and _is_late(scene, frame, local.body) or not local and name[0]:
            return True
        if definition and definition.is_late:
            return True
    return False


def _entries_below(scene: Any, frame: Any, node: Node, is_late: bool) -> tuple[Name, list[tuple], tuple[int, int]]:
    """The letter of a denominator, with its prefix; its entries (from 0); the shape they form."""
    if node.kind == "func" and node.args[0] == "vec":
        name, entries, _ = _entries_below(scene, frame, node.args[1][0], is_late)
        return name, entries, (len(entries), 1)
    base, subs = node.base, node.subs
    name = base.args if base.kind == "name" else ("?", "")
    letter = scene.cast.rows.get(name[1], name[1])
    if name[1] in scene.cast.rows and not subs:
        raise PageError("index", f"{name[1]} is a row: it needs its index", node.start)
    given = is_late and (letter in scene.outputs if name[0] == "d" else not name[0] and letter in scene.primals)
    if is_late and not given:
        raise PageError("letter", "a gradient is differentiated by what is given alone", node.start)
    if not given and (name[0] or letter not in scene.env):
        raise PageError("letter", "only a letter can stand below", node.start)
    shape = scene.shape(letter)
    fixed = list(map(frame.integer, subs))
    spans: list = []
    for length, axis in zip(shape, scene.cast.letters[letter].axes):
        take = fixed.pop(0) - 1 if fixed and axis != "1" else None
        if take is not None and not 0 <= take < length:
            raise Misfit("index", f"index {take + 1} of {length}", node.start)
        spans.append(range(length) if take is None else (take,))
    rows, columns = map(len, spans[-2:])
    return (name[0], letter), list(product(*spans)), (rows, columns)


def slope_shape(above: tuple, below: tuple) -> tuple:
    """The shape of ∂ above / ∂ below: entries of the one by entries of the other.

    A number by a matrix has the matrix's shape; a row by a row, or a column by a column,
    has a row for each entry above.
    """
    if below == (1, 1):
        return above
    if above == (1, 1):
        return below
    if above[0] == below[0] == 1 or above[1] == below[1] == 1:
        return (max(above), max(below))
    raise PageError("shape", "a row by a row, a column by a column; a matrix needs vec")
