"""Evaluates the nodes of a display in a scene: a cast with values for its letters.

Nothing here knows a formula. The scene has the letters, the sizes and the derivatives;
everything else is arithmetic.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace

import attnmath
from attnmath._algebraic import NotAlgebraic
from attnmath._arrays import real
from attnmath.page import _values as v
from attnmath.page._blocks import block_value
from attnmath.page._indexing import big_value, index_value, name_value
from attnmath.page._nodes import Inexact, Node, PageError
from attnmath.page._slopes import partial
from attnmath.page._values import Value
from attnmath.page._vocabulary import TAKES_SIZES, VOCABULARY, call, is_rule

# What arithmetic raises where an expression has no value: a singular matrix, a function
# with too many arguments, a result that is not a matrix.
NO_VALUE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Local:
    """`x_i := body`, for this display only."""

    parameters: tuple[str, ...]
    body: Node
    ranges: dict  # of the indices in its body


@dataclass(frozen=True)
class Frame:
    """What names mean while a node is evaluated."""

    scene: Any
    ranges: dict  # index letter -> how many values it takes
    locals: dict = field(default_factory=dict)  # (prefix, letter) -> Local
    index: dict = field(default_factory=dict)  # index letter -> its value, from 1
    memo: dict = field(default_factory=dict)  # what was found, for other indices than these as well

    def at(self, **index: int) -> "Frame":
        return Frame(self.scene, self.ranges, self.locals, {**self.index, **index}, self.memo)

    def elsewhere(self, scene: Any, letter: str) -> "Frame":
        """The same frame in the scene where this letter moves."""
        memo = self.memo.setdefault(letter, {})
        return Frame(scene, self.ranges, self.locals, self.index, memo)

    def evaluate(self, node: Node) -> Value:
        key = self.key(node)
        found = self.memo.get(key)
        if found is None:  # the node is kept too, so that no other gets its id
            found = self.memo[key] = (self._evaluate(node), node)
        return found[0]

    def key(self, node: Node) -> tuple:
        """Two frames with one memo and one key give the node one value."""
        return (id(node), id(self.ranges), *map(self.index.get, node.plain))

    def _evaluate(self, node: Node) -> Value:
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
        """An index expression: letters bound to values, sizes, whole numbers, + and -."""
        if node.kind == "number" and node.args[0].is_integer():
            return int(node.args[0])
        if node.kind == "name" and node.args[0] == "":
            name = node.args[1]
            if name in self.index:
                return self.index[name]
            if self.scene.size(name) is not None:
                return self.scene.size(name)
        if node.kind == "sum":
            values = map(self.integer, node.args[1])
            return sum(x if s == "+" else -x for s, x in zip(node.args[0], values))
        raise PageError("index", "not an index", node.start)

    def constant(self, number: float) -> Value:
        return Value(self.scene.array([[number]]), np.array([[abs(number)]]))


def _number(frame: Frame, node: Node) -> Value:
    return frame.constant(node.args[0])


def _one(frame: Frame, node: Node) -> Value:
    if node.args[0] is None:
        return replace(frame.constant(1.0), free=(True, False))
    return frame.constant(1.0).grown((frame.integer(node.args[0]), 1))


def _identity(frame: Frame, node: Node) -> Value:
    eye = np.eye(frame.integer(node.args[0]))
    return Value(frame.scene.array(eye), eye)


def _delta(frame: Frame, node: Node) -> Value:
    a, b = map(frame.integer, node.args)
    return frame.constant(float(a == b))


def _dots(frame: Frame, node: Node) -> Value:
    raise PageError("grammar", "dots stand between two members of a block", node.start)


def _infinity(frame: Frame, node: Node) -> Value:
    return Value(frame.scene.array([[np.inf]]), np.zeros((1, 1)))


def _transpose(frame: Frame, node: Node) -> Value:
    value = frame.evaluate(node.args[0])
    if value.is_number:
        raise PageError("shape", "the transpose of a number", node.start)
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
    if value.is_number:
        return v.divide(frame.constant(1.0), value)
    return v.inverse(value)


def _sum(frame: Frame, node: Node) -> Value:
    out = None
    for sign, term in zip(*node.args):
        value = frame.evaluate(term)
        if out is None:
            out = value if sign == "+" else v.negative(value)
        else:
            out = v.add(out, value, sign)
    return out


def _prod(frame: Frame, node: Node) -> Value:
    values = [frame.evaluate(factor) for factor in node.args[0]]
    out = values[0]
    for value in values[1:]:
        out = v.multiply(out, value)
    return out


def _binary(operation: Callable) -> Callable:
    def evaluate(frame: Frame, node: Node) -> Value:
        return operation(*map(frame.evaluate, node.args))

    return evaluate


def _sqrt(frame: Frame, node: Node) -> Value:
    return v.apply("sqrt", frame.evaluate(node.args[0]))


def _norm(frame: Frame, node: Node) -> Value:
    value = frame.evaluate(node.args[0])
    if node.args[1] == "F" or 1 in value.shape:
        return v.frobenius(value)
    return v.spectral(value)


def _abs(frame: Frame, node: Node) -> Value:
    value = frame.evaluate(node.args[0])
    sign = array_namespace(value.x).sign(real(value.x))
    return Value(value.x * sign, value.m, value.free)


def _func(frame: Frame, node: Node) -> Value:
    name, args = node.args
    values = [frame.evaluate(arg) for arg in args]
    if name in VOCABULARY:
        if name in TAKES_SIZES:
            return VOCABULARY[name](frame, *(frame.integer(arg) for arg in args))
        return VOCABULARY[name](*values)
    if not is_rule(name):
        raise PageError("letter", f"no function {name}", node.start)
    return call(getattr(attnmath, name), values)


EVALUATE = {
    "number": _number, "one": _one, "identity": _identity, "delta": _delta, "name": name_value,
    "infinity": _infinity, "dots": _dots, "index": index_value, "transpose": _transpose, "power": _power,
    "inverse": _inverse, "sum": _sum, "prod": _prod, "had": _binary(v.hadamard),
    "dot": _binary(v.multiply), "kron": _binary(v.kronecker), "div": _binary(v.divide),
    "inner": _binary(v.inner), "sqrt": _sqrt, "norm": _norm, "abs": _abs, "big": big_value,
    "func": _func, "block": block_value, "partial": lambda frame, node: partial(frame.scene, frame, node),
}  # fmt: skip
