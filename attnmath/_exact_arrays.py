"""NumPy arrays of exact numbers, on which formulas run unchanged.

Arithmetic and functions are those of the entries; what looks at the size of a letter, or
rounds, is refused by name.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnmath._algebraic import not_algebraic
from attnmath._entries import check_sure
from attnmath._infinity import Infinite
from attnmath._numbers import Number
from attnmath._point import Point

UNDECIDED = ("minimum", "fmax", "fmin", "sign", "floor", "ceil", "rint",
             "trunc", "heaviside", "signbit", "arctan2", "float_power")  # fmt: skip
OPERATORS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "power": "**", "matmul": "@"}
FINITE = {"isnan": lambda x: False, "isinf": lambda x: isinstance(x, Infinite),
          "isfinite": lambda x: not isinstance(x, Infinite)}  # fmt: skip
WRITTEN = {}  # NumPy's functions that need words of their own, by themselves


class ExactArray(np.ndarray):
    """An array of Number and Infinite; `point` is where its letters are."""

    __array_priority__ = 1000
    is_exact = True

    def __array_finalize__(self, other: Any) -> None:
        self._point = getattr(other, "_point", None)  # also of an array without entries

    @property
    def point(self) -> Point | None:
        """The point of its letters."""
        return self._point or next((x.point for x in self.flat if hasattr(x, "point")), None)

    def number(self, x: int) -> "ExactArray":
        """x as an array without axes."""
        return exact(x, self.point)

    def zeros(self) -> np.ndarray:
        """Where entries are 0 for all letters."""
        return np.array([x.key == 0 for x in self.flat], dtype=bool).reshape(self.shape)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        point = point_of(inputs)
        if ufunc.__name__ in UNDECIDED:
            raise not_algebraic(f"np.{ufunc.__name__}")
        is_written = method == "__call__" and (ufunc in WRITTEN or ufunc.__name__ in FINITE)
        if is_written and (out is not None or options):
            raise not_algebraic(f"np.{ufunc.__name__} with out= or where=")
        if is_written and ufunc.__name__ in FINITE:
            check_sure(*np.asarray(inputs[0]).flat)
            found = [FINITE[ufunc.__name__](x) for x in np.asarray(inputs[0]).flat]
            return np.array(found, dtype=bool).reshape(np.shape(inputs[0]))
        if is_written:
            return WRITTEN[ufunc](*(exact(x, point) for x in inputs))
        name = OPERATORS.get(ufunc.__name__, f"np.{ufunc.__name__}")
        inputs = [plain(x, point, name) for x in inputs]
        if out is not None and "where" in options:
            options["out"] = plain(out[0].copy(), point, name)
        try:
            with np.errstate(all="ignore"):  # of residues that are not there, and of real numbers
                result = getattr(ufunc, method)(*inputs, **options)
        except TypeError as error:
            if "no callable" in str(error) or "not supported for the input types" in str(error):
                raise not_algebraic(f"np.{ufunc.__name__}") from None
            raise
        result = exact(result, point)
        if out is not None:
            out[0][...] = result
            return out[0]
        return result

    def __array_function__(self, function: Callable, types: Any, inputs: tuple, options: dict) -> Any:
        if function in WRITTEN:
            return WRITTEN[function](*inputs, **options)
        if function.__module__ == "numpy.linalg":
            raise not_algebraic(f"np.linalg.{function.__name__}")
        result = super().__array_function__(function, types, inputs, options)
        return exact(result, self.point) if isinstance(result, np.ndarray | Number) else result

    def __setitem__(self, place: Any, value: Any) -> None:
        value = exact(value, self.point)
        super().__setitem__(place, value.item() if np.shape(value) == () and np.size(value) else value)

    # As entries of another array.

    def exp(self) -> Any:
        return np.exp(self)

    def log(self) -> Any:
        return np.log(self)

    def sqrt(self) -> Any:
        return np.sqrt(self)

    # What NumPy's methods do in their own way.

    def max(self, axis: Any = None, **options: Any) -> Any:
        return np.max(self, axis=axis, **options)

    def _refused(self, *_: Any, **__: Any) -> Any:
        raise not_algebraic("what looks at the size of letters, or rounds (min, argmax, sort, round, clip)")

    min = argmax = argmin = sort = argsort = round = clip = _refused

    def _kept(self, *_: Any, **__: Any) -> Any:
        raise not_algebraic("writing letters to a file or to bytes")

    tobytes = tofile = dump = dumps = __reduce__ = __reduce_ex__ = _kept

    def mean(self, axis: Any = None, **options: Any) -> Any:
        return np.mean(self, axis=axis, **options)

    def astype(self, dtype: Any, **options: Any) -> Any:
        if np.dtype(dtype) == object:
            return self.copy()
        return np.asarray(self).astype(dtype, **options)

    def __bool__(self) -> bool:
        return bool(np.asarray(self).item()) if self.size == 1 else bool(np.asarray(self))


def exact(x: Any, point: Point | None) -> Any:
    """x as an array of exact numbers; booleans and what has no point stay as they are."""
    if point is None or np.asarray(x).dtype.kind == "b":
        return x
    out = np.empty(np.shape(x), dtype=object)
    out[...] = x
    for place in np.ndindex(out.shape):
        entry = out[place]
        if not isinstance(entry, Number | Infinite):
            if isinstance(entry, bool | np.bool_):  # an array of truths
                return x
            entry = entry.item() if isinstance(entry, ExactArray) and entry.ndim == 0 else entry
            out[place] = number = point.other(entry, "an array")
            if number is NotImplemented:
                raise not_algebraic(f"an array with {entry!r}")
    out = out.view(ExactArray)
    out._point = point
    return out


def each(function: Callable, x: Any) -> Any:
    """The function of every entry."""
    out = np.empty(np.shape(x), dtype=object)
    for place in np.ndindex(out.shape):
        out[place] = function(np.asarray(x)[place])
    out = out.view(ExactArray)
    out._point = getattr(x, "_point", None)
    return out


def letters(point: Point, shape: tuple) -> ExactArray:
    """An array of new unknowns."""
    drawn = each(lambda _: point.letter(), np.zeros(shape))
    drawn._point = point
    return drawn


def point_of(inputs: Any) -> Point | None:
    for x in inputs:
        if isinstance(x, Number | Infinite):
            return x.point
        if isinstance(x, ExactArray) and x.point:
            return x.point
        if isinstance(x, list | tuple):
            found = point_of(x)
            if found is not None:
                return found
    return None


def plain(x: Any, point: Point | None, name: str) -> Any:
    """An input of a ufunc as NumPy's own array of objects, all of them exact."""
    if isinstance(x, ExactArray):
        return x.view(np.ndarray)
    if isinstance(x, np.ndarray) and x.dtype != bool and point is not None:
        return exact(x, point).view(np.ndarray)
    if isinstance(x, float) and point is not None:
        return point.other(x, name)
    return x


def written(function: Callable) -> Callable:
    """The decorator of what a function of NumPy does with exact arrays."""
    return lambda ours: WRITTEN.setdefault(function, ours)
