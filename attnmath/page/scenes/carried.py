"""Numbers x + ε y with ε² = 0, a value and its tangent carried through together; scenes of them, on NumPy.

Arrays of such numbers are a library of the array API, as far as formulas go, so that the page's definitions
run on them unchanged. Their parts are NumPy's arrays: complex ones, whose imaginary parts are small
steps in another direction, or exact ones.
"""

import builtins
import operator
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from attnmath._words.arrays import namespace
from attnmath._words.complex_step import COMPLEX_STEP
from attnmath.page.language.nodes import Node
from attnmath.page.scenes.evaluate import Frame
from attnmath.page.scenes.scene import Env, Scene


def _of_value(name: str) -> property:
    return property(lambda self: getattr(self.x, name))


def _of_both(name: str) -> property:
    return property(lambda self: Dual(getattr(self.x, name), getattr(self.y, name)))


def _comparison(compare: Callable) -> Callable:
    """It looks at the value alone."""
    return lambda self, other: compare(self.x, value_and_tangent(other)[0])


class Dual:
    """A value x and its tangent y, of one shape."""

    __array_ufunc__ = None  # the operators of NumPy's arrays leave it to these

    def __init__(self, x: Any, y: Any) -> None:
        self.x = x
        self.y = y if y.shape == x.shape else np.broadcast_to(y, x.shape)

    def __array_namespace__(self, api_version: Any = None) -> type:
        return Duals

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.x, dtype)

    shape, ndim, dtype = map(_of_value, ("shape", "ndim", "dtype"))
    mT, imag = map(_of_both, ("mT", "imag"))
    device, T = "cpu", mT

    @property
    def is_exact(self) -> bool:
        return getattr(self.x, "is_exact", False)

    def number(self, x: int) -> Any:
        return self.x.number(x)

    def __add__(self, other: Any) -> "Dual":
        x, y = value_and_tangent(other)
        return Dual(self.x + x, self.y + y)

    def __sub__(self, other: Any) -> "Dual":
        x, y = value_and_tangent(other)
        return Dual(self.x - x, self.y - y)

    def __mul__(self, other: Any) -> "Dual":
        x, y = value_and_tangent(other)
        return Dual(self.x * x, self.y * x + self.x * y)

    def __matmul__(self, other: Any) -> "Dual":
        if not isinstance(other, Dual):
            return Dual(self.x @ other, self.y @ other)
        return Dual(self.x @ other.x, self.y @ other.x + self.x @ other.y)

    def __rmatmul__(self, other: Any) -> "Dual":
        return Dual(other @ self.x, other @ self.y)

    def __truediv__(self, other: Any) -> "Dual":
        x, y = value_and_tangent(other)
        ratio = self.x / x
        return Dual(ratio, (self.y - ratio * y) / x)

    def __rtruediv__(self, other: Any) -> "Dual":
        ratio = other / self.x
        return Dual(ratio, -ratio * self.y / self.x)

    def __pow__(self, power: Any) -> "Dual":
        return Dual(self.x**power, power * self.x ** (power - 1) * self.y)

    def __neg__(self) -> "Dual":
        return Dual(-self.x, -self.y)

    def __rsub__(self, other: Any) -> "Dual":
        return -self + other

    __radd__, __rmul__ = __add__, __mul__

    __eq__, __ne__ = _comparison(operator.eq), _comparison(operator.ne)
    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)

    def __getitem__(self, place: Any) -> "Dual":
        return Dual(self.x[place], self.y[place])

    def reshape(self, *shape: Any) -> "Dual":
        return Dual(self.x.reshape(*shape), self.y.reshape(*shape))

    def sum(self, axis: Any = None, keepdims: bool = False) -> "Dual":
        return Dual(*(np.sum(part, axis=axis, keepdims=keepdims) for part in (self.x, self.y)))


def value_and_tangent(x: Any) -> tuple:
    """The value and the tangent of x; a number or an array that is no Dual does not move."""
    return (x.x, x.y) if isinstance(x, Dual) else (x, 0)


def both(function: Callable, x: Any, *others: Any, **options: Any) -> Any:
    """The function of an array, or of both parts of a Dual."""
    if isinstance(x, Dual):
        return Dual(function(x.x, *others, **options), function(x.y, *others, **options))
    return function(x, *others, **options)


def combined(function: Callable, arrays: list, **options: Any) -> Any:
    """np.stack or np.concatenate of arrays, of which some may be Duals."""
    if not any(isinstance(x, Dual) for x in arrays):
        return function(arrays, **options)
    still = [x if isinstance(x, Dual) else Dual(x, 0 * x) for x in arrays]
    return Dual(*(function([getattr(x, k) for x in still], **options) for k in "xy"))


def _linear(function: Callable[..., Any]) -> Any:
    return staticmethod(lambda x, *others, **options: both(function, x, *others, **options))


def _entrywise(function: Callable[[Any], Any], slope: Callable[[Any, Any], Any]) -> Any:
    """A function of each entry; its slope at x, where it has the value y."""

    def of(x: Dual) -> Dual:
        y = function(x.x)
        return Dual(y, slope(x.x, y) * x.y)

    return staticmethod(of)


class Duals:
    """The functions of the array API for Duals; what is linear acts on both parts alike."""

    inf, bool = np.inf, np.bool_
    isdtype = staticmethod(namespace(np.zeros(1)).isdtype)
    finfo = staticmethod(np.finfo)
    matrix_transpose = staticmethod(lambda x: x.mT)
    broadcast_to, expand_dims, squeeze = _linear(np.broadcast_to), _linear(np.expand_dims), _linear(np.squeeze)
    sum, mean, reshape = _linear(np.sum), _linear(np.mean), _linear(np.reshape)
    eye = staticmethod(lambda n, dtype=None, device=None: np.eye(n, dtype=dtype))

    exp = _entrywise(np.exp, lambda x, y: y)
    log = _entrywise(np.log, lambda x, y: 1 / x)
    sqrt = _entrywise(np.sqrt, lambda x, y: 1 / (2 * y))
    tanh = _entrywise(np.tanh, lambda x, y: 1 - y * y)
    cos = _entrywise(np.cos, lambda x, y: -np.sin(x))
    sin = _entrywise(np.sin, lambda x, y: np.cos(x))

    @staticmethod
    def where(condition: Any, x: Any, y: Any) -> Dual:
        (a, b), (c, d) = value_and_tangent(x), value_and_tangent(y)
        return Dual(np.where(condition, a, c), np.where(condition, b, d))

    @staticmethod
    def real(x: Dual) -> np.ndarray:
        """The real part, which does not move."""
        return np.real(x.x)

    @staticmethod
    def max(x: Dual, axis: Any = None, keepdims: builtins.bool = False) -> np.ndarray:
        """The largest entry, which does not move: what subtracts it adds it again."""
        return np.max(x.x, axis=axis, keepdims=keepdims)

    @staticmethod
    def concat(arrays: list, axis: int = 0) -> Any:
        return combined(np.concatenate, arrays, axis=axis)

    class linalg:
        @staticmethod
        def inv(x: Dual) -> Dual:
            y = np.linalg.inv(x.x)
            return Dual(y, -y @ x.y @ y)


class Carried(Scene):
    """A scene that differentiates its own gradients."""

    def second(self, prefix: str, letter: str) -> Any:
        moved = self.moved("all", self.tangents, self.turns)
        return self.moving_part(moved.letter(prefix, letter), self.shape(letter))

    def second_slopes(self, frame: Frame, numerator: Node, name: tuple, entries: list) -> Any:
        """The numerator's derivative by each of these entries of a letter, or of its gradient."""
        found = []
        for entry in entries:
            unit = np.zeros(self.shape(name[1]))
            unit[entry] = 1.0
            units = {name[1]: unit}
            moved = self.moved((name, entry), *(({}, units) if name[0] else (units, {})))
            value = frame.elsewhere(moved, (name, entry)).evaluate(numerator)
            found.append(self.moving_part(value.x, value.shape))
        return self.array(np.stack([np.asarray(x) for x in found]))

    def moved(self, name: Any, tangents: dict, turns: dict) -> "Carried":
        """The scene along tangents of what is drawn: of the primals, and of the cotangents."""
        key = ("moved", name)
        if key not in self.cache:
            given, turned = self._carrying(self.primals, tangents), self._carrying(self.cotangents, turns)
            scene = self.but(cache={}, env={}, is_moved=True, primals=given, cotangents=turned)
            self.cache[key] = scene.but(env=scene.run(given))
        return self.cache[key].paired(self.outputs)

    def _carrying(self, given: dict, tangents: dict) -> dict:
        still = {k: np.zeros(self.shape(k)) for k in given}
        return {k: Dual(self.array(x), self.array((still | tangents)[k])) for k, x in given.items()}

    def moving_part(self, x: Any, shape: tuple) -> Any:
        return self.array(x.y if isinstance(x, Dual) else np.zeros(shape))


class NumPyScene(Carried):
    """Derivatives by the complex step: Im f(x + ih e) / h; those of gradients by tangents beside."""

    def array(self, x: Any) -> Any:
        return x if isinstance(x, Dual) else np.asarray(x, dtype=float)

    def stack(self, parts: list) -> Any:
        if any(isinstance(part, Dual) for part in parts):
            return combined(np.stack, parts, axis=-3)
        return np.stack(np.broadcast_arrays(*parts), axis=-3)

    def bumped(self, letter: str) -> Env:
        """All letters where one entry of `letter` is bumped: a point for each of its entries."""
        shape = self.shape(letter)
        points = np.eye(prod(shape)).reshape((-1, *shape))
        return self.once(("bump", letter), lambda: self.run(self.primals, (letter, 1j * COMPLEX_STEP * points)))

    def gradient(self, letter: str) -> np.ndarray:
        env = self.bumped(letter)
        out = np.zeros(prod(self.shape(letter)))
        for output in self.outputs:
            moved = env[output].imag * self.cotangents[output]
            axes = tuple(range(-self.cotangents[output].ndim, 0))
            out = out + moved.sum(axis=axes) / COMPLEX_STEP
        return out.reshape(self.shape(letter))

    def tangent(self, letter: str) -> np.ndarray:
        def moved() -> Env:
            return self.run({k: x + 1j * COMPLEX_STEP * self.tangents[k] for k, x in self.primals.items()})

        return self.once(("tangents",), moved)[letter].imag / COMPLEX_STEP

    def slopes(self, frame: Frame, numerator: Node, letter: str, entries: list) -> np.ndarray:
        view = self.view(self.bumped(letter))
        moved = frame.elsewhere(view, letter).evaluate(numerator)
        x = np.broadcast_to(moved.x, (prod(self.shape(letter)), *moved.shape))
        at = [np.ravel_multi_index(entry, self.shape(letter)) for entry in entries]
        return x[at].imag / COMPLEX_STEP
