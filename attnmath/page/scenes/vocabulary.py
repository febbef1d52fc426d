"""What an operator name of the page means: a few words of the page, and every public function."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import attnmath
from attnmath._exact.outcomes import NotAlgebraic
from attnmath._words.arrays import is_exact, namespace
from attnmath.page.language.nodes import Inexact, Misfit, PageError
from attnmath.page.scenes import values as v
from attnmath.page.scenes.values import Value, detached


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


def _diag(a: Value) -> Value:
    if 1 not in a.shape or any(a.free):
        raise PageError("shape", "diag needs a row or a column")
    eye = np.eye(max(a.shape))
    return Value(_column(a.x) * eye_like(a.x, eye), _column(a.m) * eye)


def _column(x: Any) -> Any:
    return x.reshape((*x.shape[:-2], -1, 1))


def eye_like(x: Any, eye: np.ndarray) -> Any:
    return x.new_tensor(eye) if hasattr(x, "new_tensor") else eye


def _trace(a: Value) -> Value:
    v.known(a, "tr")
    if a.shape[0] != a.shape[1]:
        raise Misfit("shape", f"no trace of a {a} matrix")
    return v.entry_sum(Value(a.x * eye_like(a.x, np.eye(a.shape[0])), a.m * np.eye(a.shape[0])))


def _vec(a: Value) -> Value:
    v.known(a, "vec")
    return Value(_column(a.x), _column(a.m))


def _rank(a: Value) -> Value:
    v.known(a, "rank")
    if is_exact(a.x):
        raise Inexact("algebra", "a rank at a random point is that of almost all matrices only")
    rank = float(np.linalg.matrix_rank(detached(a.x)))
    return Value(a.x[:1, :1] * 0 + rank, np.array([[rank]]))


def _det(a: Value) -> Value:
    v.known(a, "det")
    if a.shape[0] != a.shape[1]:
        raise Misfit("shape", f"no determinant of a {a} matrix")
    x = namespace(a.x).linalg.det(a.x)[..., None, None]
    return Value(x, np.prod(a.m.sum(1)).reshape((1, 1)))


def _entropy(a: Value) -> Value:
    return v.negative(v.entry_sum(v.hadamard(a, v.entrywise("log", a))))


def _commutation(rows: int, columns: int) -> np.ndarray:
    """The permutation with commutation(r, c) vec(X) = vec(X^T) for X of r×c."""
    eye = np.eye(rows * columns).reshape(rows, columns, rows, columns)
    return eye.transpose(1, 0, 2, 3).reshape(rows * columns, rows * columns)


OPERATOR_NAMES: dict[str, Callable[..., Value]] = {
    "rowsum": v.rowsum, "diag": _diag, "tr": _trace, "vec": _vec, "rank": _rank,
    "det": _det, "entropy": _entropy, **{name: partial(v.entrywise, name) for name in ("exp", "log", "tanh")},
}
OF_SIZES: dict[str, Callable[..., np.ndarray]] = {"commutation": _commutation}
