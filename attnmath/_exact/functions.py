"""NumPy's functions that need words of their own for exact numbers; linear algebra, by elimination."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnmath._exact.arrays import ExactArray, as_objects, each_entry, exact, letters, point_of, stands_for
from attnmath._exact.outcomes import not_algebraic


@stands_for(np.where)
def exact_where(condition: Any, *choices: Any) -> Any:
    if isinstance(condition, ExactArray):
        condition = np.asarray(condition).astype(bool)
    if not choices:
        return np.where(condition)
    point = point_of(choices)
    x, y = (as_objects(choice, point, "where") for choice in choices)
    x, y = (_boxed(choice) for choice in (x, y))
    return exact(np.where(condition, x, y), point)


def _boxed(x: Any) -> np.ndarray:
    box = np.empty(np.shape(x), dtype=object)
    box[...] = x
    return box


@stands_for(np.max)
def exact_max(x: Any, axis: Any = None, keepdims: bool = False, **others: Any) -> Any:
    refuse_others("max", others)
    if axis is None:
        rows, shape = np.asarray(x).reshape(1, -1), (1,) * x.ndim if keepdims else ()
    else:
        if not isinstance(axis, int | np.integer):
            raise not_algebraic("a maximum over several axes")
        rows = np.moveaxis(np.asarray(x), axis, -1)
        shape = rows.shape[:-1]
    found = np.empty(rows.shape[:-1], dtype=object)
    for place in np.ndindex(found.shape):
        found[place] = row_maximum(rows[place], x)
    if axis is None and not keepdims:
        return found.item()
    found = found.reshape(shape).view(ExactArray)
    return np.expand_dims(found, axis) if keepdims and axis is not None else found


@stands_for(np.maximum)
def exact_larger(x: Any, y: Any) -> Any:
    a, b = np.broadcast_arrays(x, y)
    found = np.empty(a.size, dtype=object)
    found[:] = [row_maximum(pair, x, y) for pair in zip(a.flat, b.flat)]
    return exact(found.reshape(a.shape), point_of((x, y)))


def row_maximum(row: Any, *x: Any) -> Any:
    """The maximum of a row, of entries of x."""
    point = point_of(x)
    if point is None:
        raise not_algebraic("a maximum of what has no letters")
    return point.maximum(row)


@stands_for(np.hypot)
def exact_hypot(x: Any, y: Any) -> Any:
    return np.sqrt(x * x + y * y)


@stands_for(np.logaddexp)
def exact_logaddexp(x: Any, y: Any) -> Any:
    return np.log(np.exp(x) + np.exp(y))


@stands_for(np.mean)
def exact_mean(x: Any, axis: Any = None, keepdims: bool = False, **others: Any) -> Any:
    refuse_others("mean", others)
    count = x.size if axis is None else np.prod([x.shape[k] for k in np.atleast_1d(axis)])
    return np.sum(x, axis=axis, keepdims=keepdims) / int(count)


@stands_for(np.zeros_like)
def exact_zeros_like(x: Any, dtype: Any = None, shape: Any = None, **_: Any) -> Any:
    return _constant_like(0, x, dtype, shape)


@stands_for(np.ones_like)
def exact_ones_like(x: Any, dtype: Any = None, shape: Any = None, **_: Any) -> Any:
    return _constant_like(1, x, dtype, shape)


def _constant_like(number: int, x: Any, dtype: Any, shape: Any) -> Any:
    """The number everywhere: exact, unless another type is asked for."""
    found = np.full(np.shape(x) if shape is None else shape, number)
    return exact(found, x.point) if dtype in (None, object) else found.astype(dtype)


def refuse_others(name: str, others: dict) -> None:
    """An error for what these words do not take: where, initial, out."""
    for option, given in others.items():
        if given is not None and given is not np._NoValue:
            raise not_algebraic(f"np.{name} with {option}=")


@stands_for(np.empty_like)
def exact_empty_like(x: Any, shape: Any = None, **_: Any) -> Any:
    found = letters(x.point, np.shape(x) if shape is None else shape)  # anything, also nan
    return each_entry(lambda letter: letter.known_as(0, 0), found)


@stands_for(np.any)
def exact_any(x: Any, axis: Any = None, keepdims: bool = False, **others: Any) -> Any:
    refuse_others("any", others)
    return np.any(np.asarray(x != 0, dtype=bool), axis=axis, keepdims=keepdims)


@stands_for(np.all)
def exact_all(x: Any, axis: Any = None, keepdims: bool = False, **others: Any) -> Any:
    refuse_others("all", others)
    return np.all(np.asarray(x != 0, dtype=bool), axis=axis, keepdims=keepdims)


@stands_for(np.isneginf)
def exact_isneginf(x: Any, **others: Any) -> Any:
    refuse_others("isneginf", others)
    return np.asarray(x == -np.inf, dtype=bool)


@stands_for(np.isposinf)
def exact_isposinf(x: Any, **others: Any) -> Any:
    refuse_others("isposinf", others)
    return np.asarray(x == np.inf, dtype=bool)


@stands_for(np.linalg.norm)
def exact_norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    is_matrix = np.ndim(x) > 1 and not isinstance(axis, int)
    if ord not in ((None, "fro") if is_matrix else (None, 2)):
        raise not_algebraic(f"np.linalg.norm with ord={ord!r}")
    return np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims))


def echelon(x: Any, count: int) -> tuple[np.ndarray, Any, int]:
    """x with the first `count` columns reduced; the product of the pivots, signed; the rank."""
    rows, product, rank = np.array(x, dtype=object), 1, 0
    for column in range(count):
        pivots = [i for i in range(rank, len(rows)) if not _is_zero(rows[i, column])]
        if not pivots:
            continue
        if pivots[0] != rank:
            rows[[rank, pivots[0]]], product = rows[[pivots[0], rank]], -product
        product = product * rows[rank, column]
        rows[rank] = rows[rank] / rows[rank, column]
        for i in range(len(rows)):
            if i != rank:
                rows[i] = rows[i] - rows[i, column] * rows[rank]
        rank += 1
    return rows, product, rank


def _is_zero(x: Any) -> bool:
    """Whether a pivot is 0 at a random point."""
    return x.value == 0 if hasattr(x, "value") else x == 0


def _each_matrix(function: Callable, x: Any) -> np.ndarray:
    """The function of every matrix in the last two axes."""
    x = np.asarray(x)
    if not x.size:
        raise not_algebraic("linear algebra of matrices without entries")
    found = [function(x[place]) for place in np.ndindex(x.shape[:-2])]
    return np.array(found, dtype=object).reshape((*x.shape[:-2], *np.shape(found[0])))


@stands_for(np.linalg.inv)
def matrix_inverse(x: Any) -> ExactArray:
    def one(a: np.ndarray) -> np.ndarray:
        n = len(a)
        rows, _, rank = echelon(np.concatenate([a, np.eye(n, dtype=int)], 1), n)
        if rank < n:
            raise np.linalg.LinAlgError("Singular matrix")
        return rows[:, n:]

    return exact(_each_matrix(one, x), x.point)


@stands_for(np.linalg.solve)
def solve(a: Any, b: Any) -> ExactArray:
    return exact(np.linalg.inv(exact(a, (a if isinstance(a, ExactArray) else b).point)) @ b, None)


@stands_for(np.linalg.det)
def determinant(x: Any) -> ExactArray:
    def one(a: np.ndarray) -> Any:
        _, product, rank = echelon(a, len(a))
        return product if rank == len(a) else 0

    return exact(_each_matrix(one, x), x.point)


@stands_for(np.linalg.matrix_rank)
def rank(x: Any, *tolerance: Any) -> int:
    if tolerance:
        raise not_algebraic("a rank with a tolerance")
    for entry in np.ravel(x):
        x.point.look(entry, x.point.zero)
    return echelon(x, x.shape[1])[2]
