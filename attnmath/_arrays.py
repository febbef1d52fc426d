"""The words of the formulas, the same for NumPy, torch and any array-API library.

Formulas call these and each other, nothing else. What depends on the kind of number is
decided here: the real part of a complex score, a score of -inf, a row without a key.
"""

from contextlib import nullcontext
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_numpy_array

Array = Any  # an array of any library that array-api-compat knows
Scalar = Any  # a number, or an array of one library with the others


def exp(A: Array) -> Array:
    return array_namespace(A).exp(A)


def log(A: Array) -> Array:
    return array_namespace(A).log(A)


def transpose(A: Array) -> Array:
    """The last two axes exchanged."""
    return array_namespace(A).matrix_transpose(A)


def rowsum(A: Array) -> Array:
    """The sum of each row, as a column."""
    return array_namespace(A).sum(A, axis=-1, keepdims=True)


def rowmax(A: Array) -> Array:
    """The largest real part in each row, as a column; 0 for a row of nothing but -inf."""
    xp = array_namespace(A)
    A = real(A)
    if A.shape[-1] == 0:
        return xp.sum(A, axis=-1, keepdims=True)
    top = xp.max(A, axis=-1, keepdims=True)
    return xp.where(top == -xp.inf, xp.zeros_like(top), top)


def shifted(A: Array, c: Array) -> Array:
    """A - c, where a difference beyond the largest number is -inf and no mishap."""
    with np.errstate(over="ignore") if is_numpy_array(A) else nullcontext():
        return A - c


def nonzero(c: Array) -> Array:
    """c with 1 in the place of 0: what an empty row is divided by."""
    xp = array_namespace(c)
    return xp.where(c == 0, xp.ones_like(c), c)


def empty_rows(A: Array) -> Array:
    """A column: -inf for a row that is -inf everywhere, 0 for the others."""
    xp = array_namespace(A)
    nothing = xp.all(real(A) == -xp.inf, axis=-1, keepdims=True)
    zero = xp.sum(xp.zeros_like(A), axis=-1, keepdims=True)
    return xp.where(nothing, zero - xp.inf, zero)


def live(A: Array) -> Array:
    """A column: 0 for a row that is -inf everywhere, 1 for the others."""
    return exp(empty_rows(real(A)))


def finite(A: Array) -> Array:
    """A with 0 in the place of -inf: such a score has the weight 0."""
    xp = array_namespace(A)
    return xp.where(real(A) == -xp.inf, xp.zeros_like(A), A)


def over(A: Array, tau: Scalar) -> Array:
    """A / tau; a score of -inf stays what it is, also beside complex numbers."""
    xp = array_namespace(A)
    S = finite(A) / tau
    return xp.where(real(A) == -xp.inf, xp.zeros_like(S) - xp.inf, S)


def column(x: Array) -> Array:
    """(..., n) as (..., n, 1)."""
    return x[..., None]


def row(x: Array) -> Array:
    """(..., n) as (..., 1, n)."""
    return x[..., None, :]


def flat(c: Array) -> Array:
    """A column (..., n, 1) as (..., n)."""
    return c[..., 0]


def diag(p: Array) -> Array:
    """(..., m) as (..., m, m), with p on the diagonal and 0 beside it."""
    xp = array_namespace(p)
    m = p.shape[-1]
    k = xp.arange(m, device=p.device)
    same = k[:, None] == k[None, :]
    return xp.where(same, p[..., None], xp.zeros_like(p[..., None]))


def real(A: Array) -> Array:
    xp = array_namespace(A)
    return xp.real(A) if xp.isdtype(A.dtype, "complex floating") else A


def sum_to(dY: Array, x: Scalar) -> Array:
    """dY summed over the axes along which x was broadcast; of x's shape (a number's is ())."""
    xp = array_namespace(dY)
    shape = tuple(getattr(x, "shape", ()))
    new = tuple(range(dY.ndim - len(shape)))
    if new:
        dY = xp.sum(dY, axis=new)
    ones = tuple(k for k, size in enumerate(shape) if size == 1 and dY.shape[k] != 1)
    return xp.sum(dY, axis=ones, keepdims=True) if ones else dY


def spread(x: Array, like: Array) -> Array:
    """x broadcast against the shape of `like`, so that sums over it count every place."""
    return x + array_namespace(like).zeros_like(like)


def still(x_dot: Array | None, x: Array | None) -> Array | float:
    """The tangent x_dot; zero if it is None."""
    if x_dot is not None:
        return x_dot
    return array_namespace(x).zeros_like(x) if hasattr(x, "shape") else 0.0


def plus(A: Array, B: Array | None) -> Array:
    """A + B, where no B is a B of zeros."""
    return A if B is None else A + B
