"""The vocabulary of the formulas, for NumPy, torch and every array-API library.

Formulas call these words and each other, nothing else. A score of -inf is decided here:
its weight is 0 and it does not move, and a row that holds nothing else is empty.
"""

import math
import sys
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device, is_jax_array, is_numpy_array, is_torch_array

Array = Any  # an array of any library that array-api-compat knows
Scalar = Any  # a number, or an array that broadcasts
ALL = slice(None)  # of an axis


class NumberType(NamedTuple):
    """What a dtype is, and the distance from 1 to its next number, if it has one."""

    is_floating: bool
    is_complex: bool
    eps: float | None


EXACT = NumberType(is_floating=True, is_complex=False, eps=0.0)  # letters, which do not round
_NAMESPACES: dict[type, Any] = {}  # of each type of arrays, and all its dtypes met so far:
_NUMBER_TYPES: dict[tuple, NumberType] = {}  # asking takes longer than computing with a small array


def namespace(x: Array) -> Any:
    """The functions of the library that x is an array of, as array-api-compat has it."""
    if type(x) not in _NAMESPACES:
        _NAMESPACES[type(x)] = array_namespace(x)
    return _NAMESPACES[type(x)]


def number_type(x: Array) -> NumberType:
    """The kind and the precision of the entries of x."""
    if is_exact(x):
        return EXACT
    known = _NUMBER_TYPES.get((type(x), x.dtype))
    if known is None:
        xp = namespace(x)
        is_complex = xp.isdtype(x.dtype, "complex floating")
        is_floating = is_complex or xp.isdtype(x.dtype, "real floating")
        eps = float(xp.finfo(x.dtype).eps) if is_floating else None
        known = _NUMBER_TYPES[type(x), x.dtype] = NumberType(is_floating, is_complex, eps)
    return known


def is_exact(x: Array) -> bool:
    """Whether the entries of x are letters of exact arithmetic, or made of them."""
    return getattr(x, "is_exact", False)


def exp(x: Array) -> Array:
    """The exponential; exactly 0 where x is -inf."""
    xp = namespace(x)
    if not is_complex(x):  # then arithmetic itself does the right thing with -inf
        return xp.exp(x)
    return xp.where(is_hidden(x), 0, xp.exp(finite(x)))


def log(x: Array) -> Array:
    """The logarithm; -inf where x is 0."""
    xp = namespace(x)
    return xp.where(x == 0, -xp.inf, xp.log(xp.where(x == 0, 1, x)))


def sqrt(x: Array) -> Array:
    """The square root, entry by entry."""
    return namespace(x).sqrt(x)


def default_scale(d_k: int, x: Array) -> Scalar:
    """1 / sqrt(d_k), as a number that x may be multiplied by."""
    return 1 / sqrt(x.number(d_k)) if is_exact(x) else 1 / math.sqrt(d_k)


def tanh(x: Array) -> Array:
    """The hyperbolic tangent, entry by entry."""
    return namespace(x).tanh(x)


def divide(x: Array, y: Scalar) -> Array:
    """x / y; 0 / 0 is 0, and -inf stays -inf."""
    if is_number(y) and y == 1:
        return x
    return hide(finite(x) / (y if is_number(y) else nonzero(y)), x)


def nonzero(x: Array) -> Array:
    """x with 1 in the place of 0, so that 0 / 0 is 0."""
    return namespace(x).where(zeros(x), 1, x)


def zeros(x: Array) -> Array:
    """Where x is 0; of letters, where they are 0 for all numbers."""
    return x.zeros() if hasattr(x, "zeros") else x == 0


def shift(x: Array, c: Array) -> Array:
    """x - c; -inf stays -inf, and a difference that overflows is -inf as well."""
    with nullcontext() if is_torch_array(x) else np.errstate(over="ignore"):
        if not is_complex(x):
            return x - finite(c)
        return hide(finite(x) - c, x)


def rowsum(x: Array) -> Array:
    """The sum of each row, as a column: (..., m) -> (..., 1)."""
    if type(x) is np.ndarray:  # the same, without the steps in between
        return np.add.reduce(x, axis=-1, keepdims=True)
    return namespace(x).sum(x, axis=-1, keepdims=True)


def rowmean(x: Array) -> Array:
    """The mean of each row, as a column: (..., m) -> (..., 1)."""
    return namespace(x).mean(x, axis=-1, keepdims=True)


def rowmax(x: Array) -> Array:
    """The largest real part in each row, as a column, a constant; 0 for an empty row.

    What subtracts it adds it again, or divides by the same power: its tangent cancels.
    """
    x = constant(real(x))
    if x.shape[-1] == 0:
        return rowsum(x)
    return finite(namespace(x).max(x, axis=-1, keepdims=True))


def constant(x: Array) -> Array:
    """x, through which automatic differentiation does not pass."""
    if is_torch_array(x):
        return x.detach()
    return sys.modules["jax"].lax.stop_gradient(x) if is_jax_array(x) else x


def inner(x: Array, y: Array) -> Array:
    """The pairing: the sum of all x * y, where 0 times -inf is 0."""
    xp = namespace(x)
    return xp.sum(x * xp.where(zeros(x), 0, y))


def T(x: Array) -> Array:
    """The last two axes exchanged."""
    return x.mT


def column(x: Array) -> Array:
    """(..., m) -> (..., m, 1)."""
    return namespace(x).expand_dims(x, axis=-1)


def row(x: Scalar) -> Scalar:
    """(..., m) -> (..., 1, m); what has no axes is left alone."""
    return x if shape(x) == () else namespace(x).expand_dims(x, axis=-2)


def flat(x: Array) -> Array:
    """A column without its last axis: (..., 1) -> (...)."""
    return namespace(x).squeeze(x, axis=-1)


def diag(x: Array) -> Array:
    """Each row on the diagonal of a square: (..., m) -> (..., m, m)."""
    xp = namespace(x)
    ones = xp.eye(x.shape[-1], dtype=xp.bool, device=device(x))
    return xp.where(ones, column(x), 0)


def finite(x: Array) -> Array:
    """x with 0 in the place of -inf."""
    return visible(x, x)


def visible(x: Array, A: Array) -> Array:
    """x with 0 where A is -inf."""
    return namespace(A).where(is_hidden(A), 0, x)


def hide(x: Array, A: Array) -> Array:
    """x with -inf where A is -inf, which does not move."""
    xp = namespace(A)
    return xp.where(is_hidden(A), -xp.inf, x)


def forbid(B: Array, *masks: Array) -> Array:
    """B with -inf where one of the masks is True."""
    xp = namespace(B)
    for mask in masks:
        B = xp.where(mask, -xp.inf, B)
    return B


def counting(m: int, like: Array) -> Array:
    """0, 1, 2, ..., so many, in the library and on the device of another array."""
    return namespace(like).arange(m, device=device(like))


def is_hidden(A: Array) -> Array:
    """Where A is -inf."""
    return real(A) == -namespace(A).inf


def real(x: Array) -> Array:
    """The real part."""
    return namespace(x).real(x) if is_complex(x) else x


def is_complex(x: Array) -> bool:
    """Whether the entries of x are complex numbers."""
    return number_type(x).is_complex


def plus(x: Array, B: Array | None) -> Array:
    """x + B, or x if B is None. (In torch, complex x + -inf is NaN, -inf + x not.)"""
    return x if B is None else B + x


def sum_to(x: Array, like: Scalar | None) -> Array | None:
    """x summed over the axes along which `like` was broadcast; None for None."""
    if like is None:
        return None
    xp, new = namespace(x), x.ndim - len(shape(like))
    x = xp.sum(x, axis=tuple(range(new)))
    if is_number(like):
        return x
    spread = tuple(k for k, size in enumerate(shape(like)) if size != x.shape[k])
    return xp.sum(x, axis=spread, keepdims=True)


def summed(x: Array, like: Scalar | None) -> Array | None:
    """sum_to, but x itself where nothing is to be summed."""
    return x if like is not None and x.shape == shape(like) else sum_to(x, like)


def times(x: Array, R: Array | None) -> Array:
    """x * R, or x if R is None."""
    return x if R is None else x * R


def shape(x: Scalar) -> tuple:
    """The shape of an array; () for a number."""
    return () if is_number(x) else tuple(x.shape)


def is_writable(x: Array) -> bool:
    """Whether arrays like x may be written into, unseen: not where PyTorch records."""
    return is_numpy_array(x) or is_torch_array(x) and not x.requires_grad


def room_like(x: Array, shape: tuple) -> Array:
    """An array of this shape and of the number type of x, to be written into."""
    if is_torch_array(x):
        return x.new_empty(shape)
    if is_exact(x):
        return np.empty_like(x, shape=shape)
    return namespace(x).empty(shape, dtype=x.dtype, device=device(x))


def is_number(x: Scalar) -> bool:
    """Whether x is a Python number."""
    return isinstance(x, int | float | complex)


def reached(x: Array, c: Scalar) -> Array:
    """1 where x is c or more, 0 elsewhere, as numbers of the type of x."""
    return namespace(x).astype(x >= c, x.dtype)


def ahead(x: Array) -> Array:
    """(..., m, k) -> (..., 1, m, k): the same matrix for each row of another."""
    return namespace(x).expand_dims(x, axis=-3)


def identity(x: Array) -> Array:
    """The identity that may stand to the right of x: (..., m, k) -> (..., k, k)."""
    xp, (*leading, _, k) = namespace(x), x.shape
    return diag(xp.ones((*leading, k), dtype=x.dtype, device=device(x)))


def kron(x: Array, y: Array) -> Array:
    """x_ij y_ab with four axes: (..., n, m), (..., k, l) -> (..., n, k, m, l)."""
    return column(row(x)) * row(ahead(y))


def blocks(x: Array) -> Array:
    """The blocks x_i on a diagonal, 0 elsewhere: (..., n, k, l) -> (..., n, k, n, l)."""
    xp, n = namespace(x), x.shape[-3]
    own = xp.eye(n, dtype=xp.bool, device=device(x))
    return xp.where(column(row(own)), row(x), 0)
