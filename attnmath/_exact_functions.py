"""NumPy's functions that need words of their own for exact numbers."""

from typing import Any

import numpy as np

from attnmath._algebraic import not_algebraic
from attnmath._exact_arrays import ExactArray, each, exact, letters, plain, point_of, written


@written(np.where)
def _where(condition: Any, *choices: Any) -> Any:
    if isinstance(condition, ExactArray):
        condition = np.asarray(condition).astype(bool)
    if not choices:
        return np.where(condition)
    point = point_of(choices)
    x, y = (plain(choice, point, "where") for choice in choices)
    x, y = (_boxed(choice) for choice in (x, y))
    return exact(np.where(condition, x, y), point)


def _boxed(x: Any) -> np.ndarray:
    box = np.empty(np.shape(x), dtype=object)
    box[...] = x
    return box


@written(np.max)
def _max(x: Any, axis: Any = None, keepdims: bool = False, **others: Any) -> Any:
    refuse_others("max", others)
    if axis is None:
        rows, shape = np.asarray(x).reshape(1, -1), (1,) * x.ndim if keepdims else ()
    else:
        if not isinstance(axis, int | np.integer):
            raise not_algebraic("a maximum over several axes")
        rows = np.moveaxis(np.asarray(x), axis, -1)
        shape = rows.shape[:-1]
    point = point_of((x,))
    found = np.empty(rows.shape[:-1], dtype=object)
    for place in np.ndindex(found.shape):
        found[place] = point.maximum(rows[place])
    if axis is None and not keepdims:
        return found.item()
    found = found.reshape(shape).view(ExactArray)
    return np.expand_dims(found, axis) if keepdims and axis is not None else found


@written(np.maximum)
def _larger(x: Any, y: Any) -> Any:
    point, (x, y) = point_of((x, y)), np.broadcast_arrays(x, y)
    found = [point.maximum(pair) for pair in zip(x.flat, y.flat)]
    box = np.empty(len(found), dtype=object)
    box[:] = found
    return exact(box.reshape(x.shape), point)


@written(np.hypot)
def _hypot(x: Any, y: Any) -> Any:
    return np.sqrt(x * x + y * y)


@written(np.logaddexp)
def _logaddexp(x: Any, y: Any) -> Any:
    return np.log(np.exp(x) + np.exp(y))


@written(np.mean)
def _mean(x: Any, axis: Any = None, keepdims: bool = False, **others: Any) -> Any:
    refuse_others("mean", others)
    count = x.size if axis is None else np.prod([x.shape[k] for k in np.atleast_1d(axis)])
    return np.sum(x, axis=axis, keepdims=keepdims) / int(count)


@written(np.allclose)
def _allclose(*_: Any, **__: Any) -> Any:
    raise not_algebraic("np.allclose", "(it has a tolerance; == is exact)")


@written(np.zeros_like)
def _zeros_like(x: Any, dtype: Any = None, shape: Any = None, **_: Any) -> Any:
    return _filled(0, x, dtype, shape)


@written(np.ones_like)
def _ones_like(x: Any, dtype: Any = None, shape: Any = None, **_: Any) -> Any:
    return _filled(1, x, dtype, shape)


def _filled(number: int, x: Any, dtype: Any, shape: Any) -> Any:
    """The number everywhere: exact, unless another type is asked for."""
    found = np.full(np.shape(x) if shape is None else shape, number)
    return exact(found, x.point) if dtype in (None, object) else found.astype(dtype)


def refuse_others(name: str, others: dict) -> None:
    """An error for what these words do not take: where, initial, out."""
    for option, given in others.items():
        if given is not None and given is not np._NoValue:
            raise not_algebraic(f"np.{name} with {option}=")


@written(np.empty_like)
def _empty_like(x: Any, shape: Any = None, **_: Any) -> Any:
    found = letters(x.point, np.shape(x) if shape is None else shape)  # anything, also nan
    return each(lambda letter: letter.known_as(0, 0), found)


@written(np.any)
def _any(x: Any, axis: Any = None, keepdims: bool = False, **others: Any) -> Any:
    refuse_others("any", others)
    return np.any(np.asarray(x != 0, dtype=bool), axis=axis, keepdims=keepdims)


@written(np.all)
def _all(x: Any, axis: Any = None, keepdims: bool = False, **others: Any) -> Any:
    refuse_others("all", others)
    return np.all(np.asarray(x != 0, dtype=bool), axis=axis, keepdims=keepdims)


@written(np.isneginf)
def _isneginf(x: Any, **others: Any) -> Any:
    refuse_others("isneginf", others)
    return np.asarray(x == -np.inf, dtype=bool)


@written(np.isposinf)
def _isposinf(x: Any, **others: Any) -> Any:
    refuse_others("isposinf", others)
    return np.asarray(x == np.inf, dtype=bool)


@written(np.nan_to_num)
def _nan_to_num(*_: Any, **__: Any) -> Any:
    raise not_algebraic("np.nan_to_num", "(it asks which numbers are finite)")


@written(np.flatnonzero)
def _flatnonzero(_: Any) -> Any:
    raise not_algebraic("np.flatnonzero", "(it asks which letters are 0)")


@written(np.argwhere)
def _argwhere(_: Any) -> Any:
    raise not_algebraic("np.argwhere", "(it asks which letters are 0)")


@written(np.linalg.norm)
def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    is_matrix = np.ndim(x) > 1 and not isinstance(axis, int)
    if ord not in ((None, "fro") if is_matrix else (None, 2)):
        raise not_algebraic(f"np.linalg.norm with ord={ord!r}")
    return np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims))
