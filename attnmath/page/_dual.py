"""Arrays of numbers x + ε y with ε² = 0: a value and its tangent, carried through together.

They are a library of the array API, as far as formulas go, so that the page's definitions run
on them unchanged. Their parts are NumPy's arrays: complex ones, whose imaginary parts are small
steps in another direction, or exact ones.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace


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

    shape, ndim, dtype = (property(lambda self, k=k: getattr(self.x, k)) for k in ("shape", "ndim", "dtype"))
    mT, imag = (property(lambda self, k=k: Dual(getattr(self.x, k), getattr(self.y, k))) for k in ("mT", "imag"))
    device, T = "cpu", mT

    @property
    def is_exact(self) -> bool:
        return getattr(self.x, "is_exact", False)

    def number(self, x: int) -> Any:
        return self.x.number(x)

    # ---- arithmetic ----------------------------------------------------------------------

    def __add__(self, other: Any) -> "Dual":
        x, y = parts(other)
        return Dual(self.x + x, self.y + y)

    def __sub__(self, other: Any) -> "Dual":
        x, y = parts(other)
        return Dual(self.x - x, self.y - y)

    def __mul__(self, other: Any) -> "Dual":
        x, y = parts(other)
        return Dual(self.x * x, self.y * x + self.x * y)

    def __matmul__(self, other: Any) -> "Dual":
        if not isinstance(other, Dual):
            return Dual(self.x @ other, self.y @ other)
        return Dual(self.x @ other.x, self.y @ other.x + self.x @ other.y)

    def __rmatmul__(self, other: Any) -> "Dual":
        return Dual(other @ self.x, other @ self.y)

    def __truediv__(self, other: Any) -> "Dual":
        x, y = parts(other)
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

    # ---- comparisons, which look at the value alone ------------------------------------------

    def _comparison(compare: Callable) -> Callable:
        return lambda self, other: compare(self.x, parts(other)[0])

    __eq__, __ne__ = _comparison(operator.eq), _comparison(operator.ne)
    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)
    __hash__ = None

    # ---- shapes ----------------------------------------------------------------------------

    def __getitem__(self, place: Any) -> "Dual":
        return Dual(self.x[place], self.y[place])

    def reshape(self, *shape: Any) -> "Dual":
        return Dual(self.x.reshape(*shape), self.y.reshape(*shape))

    def sum(self, axis: Any = None, keepdims: bool = False) -> "Dual":
        return Dual(*(np.sum(part, axis=axis, keepdims=keepdims) for part in (self.x, self.y)))


def parts(x: Any) -> tuple:
    """The value and the tangent of x; a number or an array that is no Dual does not move."""
    return (x.x, x.y) if isinstance(x, Dual) else (x, 0)


def each(function: Callable, x: Any, *others: Any, **options: Any) -> Any:
    """The function of an array, or of both parts of a Dual."""
    if isinstance(x, Dual):
        return Dual(function(x.x, *others, **options), function(x.y, *others, **options))
    return function(x, *others, **options)


def together(function: Callable, arrays: list, **options: Any) -> Any:
    """np.stack or np.concatenate of arrays, of which some may be Duals."""
    if not any(isinstance(x, Dual) for x in arrays):
        return function(arrays, **options)
    still = [x if isinstance(x, Dual) else Dual(x, 0 * x) for x in arrays]
    return Dual(*(function([getattr(x, k) for x in still], **options) for k in "xy"))


def _linear(function: Callable) -> Callable:
    return staticmethod(lambda x, *others, **options: each(function, x, *others, **options))


class Duals:
    """The functions of the array API for Duals; what is linear acts on both parts alike."""

    inf, bool = np.inf, np.bool_
    isdtype = staticmethod(array_namespace(np.zeros(1)).isdtype)
    finfo = staticmethod(np.finfo)
    matrix_transpose = staticmethod(lambda x: x.mT)
    broadcast_to, expand_dims, squeeze, sum, mean, reshape = map(
        _linear, (np.broadcast_to, np.expand_dims, np.squeeze, np.sum, np.mean, np.reshape)
    )
    eye = staticmethod(lambda n, dtype=None, device=None: np.eye(n, dtype=dtype))

    @staticmethod
    def exp(x: Dual) -> Dual:
        y = np.exp(x.x)
        return Dual(y, y * x.y)

    @staticmethod
    def log(x: Dual) -> Dual:
        return Dual(np.log(x.x), x.y / x.x)

    @staticmethod
    def sqrt(x: Dual) -> Dual:
        y = np.sqrt(x.x)
        return Dual(y, x.y / (2 * y))

    @staticmethod
    def tanh(x: Dual) -> Dual:
        y = np.tanh(x.x)
        return Dual(y, (1 - y * y) * x.y)

    @staticmethod
    def where(condition: Any, x: Any, y: Any) -> Dual:
        (a, b), (c, d) = parts(x), parts(y)
        return Dual(np.where(condition, a, c), np.where(condition, b, d))

    @staticmethod
    def real(x: Dual) -> np.ndarray:
        """The real part, which does not move."""
        return np.real(x.x)

    @staticmethod
    def max(x: Dual, axis: Any = None, keepdims: bool = False) -> np.ndarray:
        """The largest entry, which does not move: what subtracts it adds it again."""
        return np.max(x.x, axis=axis, keepdims=keepdims)

    @staticmethod
    def concat(arrays: list, axis: int = 0) -> Any:
        return together(np.concatenate, arrays, axis=axis)

    class linalg:
        @staticmethod
        def inv(x: Dual) -> Dual:
            y = np.linalg.inv(x.x)
            return Dual(y, -y @ x.y @ y)
