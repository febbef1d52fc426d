"""Matrices with the magnitude that was summed up to make them.

Every value of the page is a matrix: a number is 1×1, a row 1×m, a column n×1. Beside its
entries `x` it carries `m`: the same expression with every term taken by its size. Rounding
moves an entry of `x` by a small multiple of u·m, so `m` is what a tolerance is relative to.
A vector of ones has a free length until a neighbour fixes it.

The matrix is the last two axes of `x`: an oracle may put one more in front of them, with
many points at once; `m` is of no use to it then.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attnmath._words.arrays import is_exact, namespace, real
from attnmath.page.language.nodes import Inexact, Misfit, PageError


def magnitude(x: Any) -> float:
    """The largest finite size in x: what an entry of a given letter may be off by."""
    size = sizes(x)
    return float(size[np.isfinite(size)].max(initial=0.0))


def detached(x: Any) -> np.ndarray:
    """x as a NumPy array, cut off from any graph."""
    return x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)


def sizes(x: Any) -> np.ndarray:
    """The size of every entry; 1 for exact numbers, which have none and are not rounded."""
    return np.ones(x.shape) if is_exact(x) else np.abs(detached(x))


def largest_gap(x: np.ndarray, y: np.ndarray) -> float:
    """The largest difference of two entries; equal infinities do not differ."""
    return float(np.abs(np.where(x == y, 0.0, x - y)).max(initial=0.0))


@dataclass(frozen=True)
class Value:
    """Entries x (r×c, NumPy or torch), magnitudes m (NumPy), free lengths."""

    x: Any
    m: np.ndarray
    free: tuple[bool, bool] = (False, False)

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.x.shape[-2:]
        return rows, columns

    def __str__(self) -> str:
        return "×".join("?" if free else str(length) for length, free in zip(self.shape, self.free))

    @property
    def is_number(self) -> bool:
        return self.shape == (1, 1) and not any(self.free)

    @property
    def T(self) -> "Value":
        return Value(self.x.mT, self.m.mT, (self.free[1], self.free[0]))

    def grown(self, shape: tuple[int, ...]) -> "Value":
        """The same value with its free lengths made those of `shape`."""
        if self.shape == shape:
            return self
        xp, m = namespace(self.x), self.m
        x = xp.broadcast_to(self.x, (*self.x.shape[:-2], *shape))
        return Value(x, np.broadcast_to(m, (*m.shape[:-2], *shape)))

    def number(self) -> float:
        if not self.is_number:
            raise PageError("shape", f"a number is needed here, not a {self} matrix")
        return float(np.real(detached(self.x)).item())


SPREADS = ("'+'", "'-'", "'∘'")  # to which others give a row or a column that meets a matrix


def _spread(a: Value, b: Value) -> bool:
    """Whether one could be repeated to the other's shape; this page writes 1 b for it."""
    return all(s == t or 1 in (s, t) for s, t in zip(a.shape, b.shape))


def match(a: Value, b: Value, what: str) -> tuple[Value, Value]:
    """Both grown to one shape; nothing else broadcasts."""
    if a.free == b.free and a.shape == b.shape:
        return a, b
    for s, t, f, g in zip(a.shape, b.shape, a.free, b.free):
        if s != t and not f and not g:
            kind = PageError if what in SPREADS and _spread(a, b) else Misfit
            raise kind("shape", f"{what} needs equal shapes, not {a} and {b}")
        if f != g and s == t == 1:
            raise PageError("shape", f"{what}: the length of 1 is not fixed by its neighbours")
    shape = max(a.shape[0], b.shape[0]), max(a.shape[1], b.shape[1])
    free = a.free[0] and b.free[0], a.free[1] and b.free[1]
    a, b = a.grown(shape), b.grown(shape)
    return Value(a.x, a.m, free), Value(b.x, b.m, free)


def add(a: Value, b: Value, sign: str) -> Value:
    a, b = match(a, b, f"'{sign}'")
    return Value(a.x + b.x if sign == "+" else a.x - b.x, a.m + b.m, a.free)


def negative(a: Value) -> Value:
    return Value(-a.x, a.m, a.free)


def scaled(a: Value, b: Value) -> Value:
    return Value(a.x * b.x, a.m * b.m, (a.free[0] or b.free[0], a.free[1] or b.free[1]))


def hadamard(a: Value, b: Value) -> Value:
    a, b = match(a, b, "'∘'")
    return Value(a.x * b.x, a.m * b.m, a.free)


def multiply(a: Value, b: Value) -> Value:
    """Juxtaposition: scaling if a side is 1×1, else the matrix product."""
    if a.is_number or b.is_number:
        return scaled(a, b)
    rows, columns = a.shape[1], b.shape[0]
    if a.free[1] and b.free[0]:
        raise PageError("shape", "the length of 1 is not fixed by its neighbours")
    if a.free[1]:
        a = replace(a.grown((a.shape[0], columns)), free=a.free)
    elif b.free[0]:
        b = replace(b.grown((rows, b.shape[1])), free=b.free)
    elif rows != columns:
        raise Misfit("shape", f"no product of {a} and {b}")
    return Value(a.x @ b.x, a.m @ b.m, (a.free[0], b.free[1]))


def divide(a: Value, b: Value) -> Value:
    if not b.is_number:
        raise PageError("shape", f"cannot divide by a {b} matrix")
    size = sizes(b.x)
    return Value(a.x / b.x, (a.m + sizes(a.x) * b.m / size) / size, a.free)


def kronecker(a: Value, b: Value) -> Value:
    if any(a.free + b.free):
        raise PageError("shape", "'⊗' needs known lengths: write 1_n")
    (r, c), (s, d) = a.shape, b.shape
    product = a.x[..., :, None, :, None] * b.x[..., None, :, None, :]
    return Value(product.reshape((*product.shape[:-4], r * s, c * d)), np.kron(a.m, b.m))


def power(a: Value, exponent: Value) -> Value:
    if not a.is_number or not exponent.is_number:
        raise PageError("shape", f"no power of a {a} matrix to a {exponent} one")
    if is_exact(a.x):
        return Value(a.x**exponent.x, a.m)
    e, size = np.real(detached(exponent.x)), sizes(a.x)
    out = size**e
    moved = np.abs(e) * size ** (e - 1) * a.m + out * np.abs(np.log(size)) * exponent.m
    return Value(a.x**exponent.x, out + np.where((size > 0) & (out > 0), moved, 0.0))


def inverse(a: Value) -> Value:
    square(a, "an inverse", "inverse")
    x = namespace(a.x).linalg.inv(a.x)
    size = sizes(x)
    return Value(x, size @ a.m @ size)


def entry_sum(a: Value) -> Value:
    known(a, "a sum over entries")
    return Value(a.x.sum((-2, -1))[..., None, None], a.m.sum((-2, -1))[..., None, None])


def rowsum(a: Value) -> Value:
    known(a, "rowsum")
    return Value(a.x.sum(-1)[..., None], a.m.sum(-1)[..., None])


def extreme(a: Value, b: Value, op: str) -> Value:
    """The larger (max) or the smaller (min) of two numbers, chosen by the real part."""
    for number in (a, b):
        if not number.is_number:
            raise PageError("shape", f"{op} is of numbers, not of a {number} matrix")
    if is_exact(a.x):
        return Value(np.maximum(a.x, b.x) if op == "max" else -np.maximum(-a.x, -b.x), a.m)
    later = real(b.x) > real(a.x) if op == "max" else real(b.x) < real(a.x)
    return Value(namespace(a.x).where(later, b.x, a.x), np.where(detached(later), b.m, a.m))


def inner(a: Value, b: Value) -> Value:
    return entry_sum(hadamard(*match(a, b, "⟨ , ⟩")))


def known(a: Value, what: str) -> None:
    if any(a.free):
        raise PageError("shape", f"{what} needs known lengths: write 1_n")


def square(a: Value, what: str, name: str) -> None:
    """A PageError, unless it has as many rows as columns."""
    known(a, what)
    if a.shape[0] != a.shape[1]:
        raise Misfit("shape", f"no {name} of a {a} matrix")


SLOPES: dict[str, Callable[[Any, Any], Any]] = {  # from the sizes of the argument, and of the value
    "exp": lambda x, y: y, "log": lambda x, y: 1 / x, "sqrt": lambda x, y: 0.5 / np.maximum(y, 1e-300),
    **{name: lambda x, y: np.ones_like(y) for name in ("tanh", "cos", "sin")},
}


def entrywise(name: str, a: Value) -> Value:
    """exp, log, tanh, cos, sin, sqrt, entrywise, with the condition of each."""
    y = getattr(namespace(a.x), name)(a.x)
    out = sizes(y)
    moved = np.where(out == 0, 0.0, a.m * SLOPES[name](sizes(a.x), out))
    return Value(y, out + moved, a.free)


def frobenius(a: Value) -> Value:
    known(a, "a norm")
    x = ((a.x * a.x).sum((-2, -1)) ** 0.5)[..., None, None]
    return Value(x, ((a.m * a.m).sum() ** 0.5)[None, None])


def spectral(a: Value) -> Value:
    known(a, "a norm")
    if not np.isfinite(a.x if is_exact(a.x) else detached(a.x)).all():  # LAPACK would print that it may not see it
        raise PageError("value", "a norm of what is not finite")
    xp = np if is_exact(a.x) else namespace(a.x)
    return Value(xp.linalg.svdvals(a.x).max().reshape((1, 1)), ((a.m * a.m).sum() ** 0.5)[None, None])


# ---- operators that the page writes by name ----------------------------------------------------


def diag(a: Value) -> Value:
    if 1 not in a.shape or any(a.free):
        raise PageError("shape", "diag needs a row or a column")
    eye = np.eye(max(a.shape))
    return Value(_column(a.x) * eye_like(a.x, eye), _column(a.m) * eye)


def _column(x: Any) -> Any:
    return x.reshape((*x.shape[:-2], -1, 1))


def eye_like(x: Any, eye: np.ndarray) -> Any:
    return x.new_tensor(eye) if hasattr(x, "new_tensor") else eye


def trace(a: Value) -> Value:
    square(a, "tr", "trace")
    return entry_sum(Value(a.x * eye_like(a.x, np.eye(a.shape[0])), a.m * np.eye(a.shape[0])))


def vec(a: Value) -> Value:
    known(a, "vec")
    return Value(_column(a.x), _column(a.m))


def rank(a: Value) -> Value:
    known(a, "rank")
    if is_exact(a.x):
        raise Inexact("algebra", "a rank at a random point is that of almost all matrices only")
    rank = float(np.linalg.matrix_rank(detached(a.x)))
    return Value(a.x[:1, :1] * 0 + rank, np.array([[rank]]))


def det(a: Value) -> Value:
    square(a, "det", "determinant")
    x = namespace(a.x).linalg.det(a.x)[..., None, None]
    return Value(x, np.prod(a.m.sum(1)).reshape((1, 1)))


def entropy(a: Value) -> Value:
    return negative(entry_sum(hadamard(a, entrywise("log", a))))


def commutation(rows: int, columns: int) -> np.ndarray:
    """The permutation with commutation(r, c) vec(X) = vec(X^T) for X of r×c."""
    eye = np.eye(rows * columns).reshape(rows, columns, rows, columns)
    return eye.transpose(1, 0, 2, 3).reshape(rows * columns, rows * columns)


OPERATORS: dict[str, Callable[..., Value]] = {
    "rowsum": rowsum, "diag": diag, "tr": trace, "vec": vec, "rank": rank, "det": det, "entropy": entropy,
    **{name: partial(entrywise, name) for name in ("exp", "log", "tanh", "cos", "sin")},
}
