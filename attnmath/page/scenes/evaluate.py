"""Evaluates the nodes of a display in a scene: a cast with values for its letters.

Nothing here knows a formula. The scene has the letters, the sizes and the derivatives;
everything else is arithmetic. Between two members of a block, `\\dots` stands for those whose index lies in
between.
"""

import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np

import attnmath
from attnmath._exact.outcomes import NotAlgebraic
from attnmath._words.arrays import namespace, real
from attnmath.page.language.nodes import Inexact, Misfit, Name, Node, PageError
from attnmath.page.scenes import values as v
from attnmath.page.scenes.indexing import big_value, index_value, name_value, partial_value
from attnmath.page.scenes.values import Value

# What arithmetic raises where an expression has no value: a singular matrix, a function
# with too many arguments, a result that is not a matrix.
NO_VALUE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Local:
    """`x_i := body`, for this display only."""

    parameters: tuple[str, ...]
    body: Node
    ranges: dict[str, int]  # of the indices in its body


@dataclass(frozen=True)
class Frame:
    """What names mean while a node is evaluated."""

    scene: Any
    ranges: dict[str, int]  # index letter -> how many values it takes
    locals: dict[Name, Local] = field(default_factory=dict)
    index: dict[str, int] = field(default_factory=dict)  # index letter -> its value, from 1
    memo: dict[Any, Any] = field(default_factory=dict)  # what was found, for other indices than these as well

    def at(self, **index: int) -> "Frame":
        return Frame(self.scene, self.ranges, self.locals, {**self.index, **index}, self.memo)

    def elsewhere(self, scene: Any, moving: Any) -> "Frame":
        """The same frame in the scene where this letter, or what it is, moves."""
        memo = self.memo.setdefault(moving, {})
        return Frame(scene, self.ranges, self.locals, self.index, memo)

    def evaluate(self, node: Node) -> Value:
        key = self.key(node)
        found = self.memo.get(key)
        if found is None:  # the node is kept too, so that no other gets its id
            found = self.memo[key] = (self._evaluate(node), node)
        return found[0]

    def key(self, node: Node) -> tuple:
        """Two frames with one memo and one key give the node one value."""
        return (id(node), id(self.ranges), *map(self.index.get, node.bare))

    def _evaluate(self, node: Node) -> Value:
        if node.kind == "dots":
            raise PageError("grammar", "dots stand between two members of a block", node.start)
        try:
            return EVALUATE[node.kind](self, node)
        except PageError as error:
            if error.start is None:
                error.start = node.start
            raise
        except NotAlgebraic as error:
            raise Inexact("algebra", str(error), node.start) from None
        except NO_VALUE as error:
            raise PageError("value", f"this has no value: {error}", node.start) from error

    def integer(self, node: Node) -> int:
        """An index expression: letters bound to values, sizes, whole numbers, entries of counts, + and -."""
        if node.kind == "number" and node.args[0].is_integer():
            return int(node.args[0])
        if node.kind == "name" and node.args[0] == "":
            name = node.args[1]
            if name in self.index:
                return self.index[name]
            if name in self.scene.sizes:
                return self.scene.sizes[name]
        if node.kind == "index" and self.scene.is_count(node.base):
            return int(self.evaluate(node).number())
        if node.kind == "sum":
            values = map(self.integer, node.args[1])
            return sum(x if s == "+" else -x for s, x in zip(node.args[0], values))
        raise PageError("index", "not an index", node.start)

    def constant(self, x: Any) -> Value:
        """A number, or a matrix of numbers."""
        return Value(self.scene.array(np.atleast_2d(x)), np.abs(np.atleast_2d(x)))


def _one(frame: Frame, node: Node) -> Value:
    if node.args[0] is None:
        return replace(frame.constant(1.0), free=(True, False))
    return frame.constant(1.0).grown((frame.integer(node.args[0]), 1))


def _transposed(value: Value) -> Value:
    if value.is_number:
        raise PageError("shape", "the transpose of a number")
    return value.T


def _power(frame: Frame, node: Node) -> Value:
    base, power = node.args
    if base.kind == "norm" and power.kind == "number" and power.args[0] == 2:
        value = frame.evaluate(base.args[0])
        if base.args[1] == "F" or 1 in value.shape:  # the square of a length needs no root
            return v.inner(value, value)
    return v.power(*map(frame.evaluate, node.args))


def _inverse(frame: Frame, node: Node) -> Value:
    value = frame.evaluate(node.args[0])
    return v.divide(frame.constant(1.0), value) if value.is_number else v.inverse(value)


def _sum(frame: Frame, node: Node) -> Value:
    (sign, *signs), (term, *terms) = node.args
    first = frame.evaluate(term)
    out = first if sign == "+" else v.negative(first)
    for sign, term in zip(signs, terms):
        out = v.add(out, frame.evaluate(term), sign)
    return out


def _of_values(operation: Callable[..., Value]) -> Callable[[Frame, Node], Value]:
    return lambda frame, node: operation(*map(frame.evaluate, node.args))


def _norm(frame: Frame, node: Node) -> Value:
    value = frame.evaluate(node.args[0])
    return v.frobenius(value) if node.args[1] == "F" or 1 in value.shape else v.spectral(value)


def _size(value: Value) -> Value:
    sign = namespace(value.x).sign(real(value.x))
    return Value(value.x * sign, value.m, value.free)


def _func(frame: Frame, node: Node) -> Value:
    name, args = node.args
    values = [frame.evaluate(arg) for arg in args]
    if name == "commutation":
        return frame.constant(v.commutation(*map(frame.integer, args)))
    if name in v.OPERATORS:
        return v.OPERATORS[name](*values)
    if not is_rule(name):
        raise PageError("letter", f"no function {name}", node.start)
    return call(getattr(attnmath, name), values)


def is_rule(name: str) -> bool:
    """Whether a public name of attnmath is a function of the mathematics."""
    value = getattr(attnmath, name, None) if name in attnmath.__all__ else None
    return inspect.isfunction(value) and value.__module__.startswith("attnmath._formulas.")


ROWWISE = ("softmax", "log_softmax", "logsumexp")  # of the rows of one matrix


def call(function: Callable, values: list[Value]) -> Value:
    """A public function of attnmath on the values; numbers are passed as numbers."""
    if any(any(value.free) for value in values):
        raise PageError("shape", "an argument's length is not known: write 1_n")
    try:
        points = max(value.x.shape[:-2] for value in values)
        if not points or function.__name__ in ROWWISE and len(values) == 1:
            out = _matrix(function(*(_argument(value.x) for value in values)), len(points))
        else:
            out = np.stack([_at_point(function, values, k) for k in range(points[0])])
    except NotAlgebraic:
        raise
    except TypeError as error:  # as for another number of arguments
        raise PageError("shape", str(error)) from None
    except (ValueError, IndexError) as error:
        raise Misfit("shape", str(error)) from None
    largest = 1 + max(float(value.m.max()) for value in values)
    return Value(out, np.full(out.shape, v.magnitude(out) * largest))


def _argument(x: Any) -> Any:
    return x[..., 0, 0] if tuple(x.shape[-2:]) == (1, 1) else x


def _at_point(function: Callable, values: list[Value], k: int) -> Any:
    """What the function returns at the k-th of many points."""
    return _matrix(function(*(_argument(x[k] if x.ndim > 2 else x) for x in (a.x for a in values))), 0)


def _matrix(out: Any, leading: int) -> Any:
    """The result, as a matrix: a vector is a column, a number 1×1."""
    if not hasattr(out, "ndim") or out.ndim > 2 + leading:
        raise PageError("shape", "this function's result is not one matrix")
    return out if out.ndim == 2 + leading else out.reshape((*out.shape[:leading], -1, 1))


# ---- blocks: `[a, b; c, d]` sets matrices side by side and below each other ------------------------


def _block(frame: Frame, node: Node) -> Value:
    if len(node.args) == len(node.args[0]) == 1:
        raise PageError("grammar", "a block has two members at least", node.start)
    rows = _without_dots(frame, [[*row] for row in node.args])
    return _joined([_joined([frame.evaluate(n) for n in row], 1) for row in rows], 0)


def _without_dots(frame: Frame, rows: list[list[Node]]) -> list[list[Node]]:
    """The rows without dots: a row that is dots alone stands for rows of one member."""
    rows = [_between(frame, row) if len(row) > 1 else row for row in rows]
    if not any(row[0].kind == "dots" for row in rows):
        return rows
    if any(len(row) > 1 for row in rows):
        raise PageError("grammar", "dots between rows need rows of one member", rows[0][0].start)
    return [[member] for member in _between(frame, [row[0] for row in rows])]


def _between(frame: Frame, members: list[Node]) -> list[Node]:
    out: list[Node] = []
    for k, member in enumerate(members):
        if member.kind != "dots":
            out.append(member)
            continue
        if not 0 < k < len(members) - 1 or "dots" in (members[k - 1].kind, members[k + 1].kind):
            raise PageError("grammar", "dots stand between two members", member.start)
        out += _members_between(frame, members[k - 1], members[k + 1])
    return out


def _members_between(frame: Frame, first: Node, last: Node) -> list[Node]:
    """The members between: `first` with its index one larger each time, up to `last`."""
    pairs = _differences(first, last)
    if len(set(pairs)) != 1:
        raise PageError("index", "dots need members that differ in one index", first.start)
    low, high = pairs[0]
    values = range(frame.integer(low) + 1, frame.integer(high))
    if frame.integer(low) != 1 or high.kind == "number":
        raise PageError("index", "dots lead from index 1 to a size", first.start)
    places = [id(place) for place, _ in pairs]
    return [_stepped(first, places, Node("number", (float(value),))) for value in values]


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


def _stepped(node: Node, places: list[int], new: Node) -> Node:
    """The node with `new` in some places."""
    return new if id(node) in places else node.changed(lambda part: _stepped(part, places, new))


def _joined(parts: list[Value], axis: int) -> Value:
    """The parts side by side (axis 1) or below each other (axis 0)."""
    other = 1 - axis
    lengths = {part.shape[other] for part in parts if not part.free[other]}
    if len(lengths) != 1 or any(part.free[axis] for part in parts):
        shapes = ", ".join(map(str, parts))
        raise Misfit("shape", f"a block needs members that fit, not {shapes}")
    (length,) = lengths
    parts = [p.grown((length, p.shape[1]) if axis else (p.shape[0], length)) for p in parts]
    xp, points = namespace(parts[0].x), np.broadcast_shapes(*(p.x.shape[:-2] for p in parts))
    x = xp.concat([xp.broadcast_to(p.x, (*points, *p.shape)) for p in parts], axis=axis - 2)
    return Value(x, np.concatenate([np.broadcast_to(p.m, p.shape) for p in parts], axis))


EVALUATE: dict[str, Callable[[Frame, Node], Value]] = {
    "number": lambda frame, node: frame.constant(node.args[0]),
    "identity": lambda frame, node: frame.constant(np.eye(frame.integer(node.args[0]))),
    "delta": lambda frame, node: frame.constant(float(operator.eq(*map(frame.integer, node.args)))),
    "infinity": lambda frame, node: Value(frame.scene.array([[np.inf]]), np.zeros((1, 1))), "one": _one,
    "name": name_value, "index": index_value, "big": big_value, "partial": partial_value,
    "prod": lambda frame, node: reduce(v.multiply, map(frame.evaluate, node.args[0])),
    "power": _power, "inverse": _inverse, "sum": _sum, "norm": _norm, "func": _func,
    "block": _block, "transpose": _of_values(_transposed), "sqrt": _of_values(lambda a: v.entrywise("sqrt", a)),
    "abs": _of_values(_size), "had": _of_values(v.hadamard), "dot": _of_values(v.multiply),
    "kron": _of_values(v.kronecker), "div": _of_values(v.divide), "inner": _of_values(v.inner),
}
