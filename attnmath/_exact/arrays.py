"""NumPy arrays of exact numbers, on which formulas run unchanged, and their derivatives.

Arithmetic and functions are those of the entries; what looks at the size of a letter, or
rounds, is refused by name. Each number knows what it was made of, and its derivative by that.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from attnmath._exact.entries import ExactEntry, Home, Infinite, check_sure
from attnmath._exact.numbers import Number
from attnmath._exact.outcomes import not_algebraic

UNDECIDED = ("minimum", "fmax", "fmin", "sign", "floor", "ceil", "rint",
             "trunc", "heaviside", "signbit", "arctan2", "float_power")
ARRAY_OPERATORS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "power": "**", "matmul": "@"}
IS_FINITE = {"isnan": lambda x: False, "isinf": lambda x: isinstance(x, Infinite),
             "isfinite": lambda x: not isinstance(x, Infinite)}
REFUSED = {np.allclose: "it has a tolerance; == is exact", np.nan_to_num: "it asks which numbers are finite",
           np.flatnonzero: "it asks which letters are 0", np.argwhere: "it asks which letters are 0"}
WRITTEN: dict[Callable, Callable] = {}  # NumPy's functions that need words of their own, by themselves


class ExactArray(np.ndarray):
    """An array of Number and Infinite; `point` is where its letters are."""

    __array_priority__ = 1000
    is_exact = True
    _point: Home[Number] | None

    def __array_finalize__(self, other: Any) -> None:
        self._point = getattr(other, "_point", None)  # also of an array without entries

    @property
    def point(self) -> Home[Number] | None:
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
        is_written = method == "__call__" and (ufunc in WRITTEN or ufunc.__name__ in IS_FINITE)
        if is_written and (out is not None or options):
            raise not_algebraic(f"np.{ufunc.__name__} with out= or where=")
        if is_written and ufunc.__name__ in IS_FINITE:
            check_sure(*np.asarray(inputs[0]).flat)
            found = [IS_FINITE[ufunc.__name__](x) for x in np.asarray(inputs[0]).flat]
            return np.array(found, dtype=bool).reshape(np.shape(inputs[0]))
        if is_written:
            return WRITTEN[ufunc](*(exact(x, point) for x in inputs))
        name = ARRAY_OPERATORS.get(ufunc.__name__, f"np.{ufunc.__name__}")
        if out is not None and "where" in options:
            options["out"] = as_objects(out[0].copy(), point, name)
        try:
            with np.errstate(all="ignore"):  # of residues that are not there, and of real numbers
                result = getattr(ufunc, method)(*(as_objects(x, point, name) for x in inputs), **options)
        except TypeError as error:
            if "no callable" in str(error) or "not supported for the input types" in str(error):
                raise not_algebraic(f"np.{ufunc.__name__}") from None
            raise
        result = exact(result, point)
        if out is not None:
            out[0][...] = result
            return out[0]
        return result

    def __array_function__(
        self, function: Callable, types: Iterable[type], inputs: Iterable, options: Mapping[str, Any]
    ) -> Any:
        if function in WRITTEN:
            return WRITTEN[function](*inputs, **options)
        if function in REFUSED:
            raise not_algebraic(f"np.{function.__name__}", f"({REFUSED[function]})")
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

    def max(self, *axis: Any, **options: Any) -> Any:
        return np.max(self, *axis, **options)

    def mean(self, *axis: Any, **options: Any) -> Any:
        return np.mean(self, *axis, **options)

    def _refused(self, *_: Any, **__: Any) -> Any:
        raise not_algebraic("what looks at the size of letters, or rounds (min, argmax, sort, round, clip)")

    min = argmax = argmin = sort = argsort = round = clip = _refused

    def _kept(self, *_: Any, **__: Any) -> Any:
        raise not_algebraic("writing letters to a file or to bytes")

    tobytes = tofile = dump = dumps = __reduce__ = __reduce_ex__ = _kept

    def astype(self, *dtype: Any, **options: Any) -> Any:
        found = np.asarray(self).astype(*dtype, **options)
        return self.copy() if found.dtype == object else found

    def __bool__(self) -> bool:
        return bool(np.asarray(self).item()) if self.size == 1 else bool(np.asarray(self))


def exact(x: Any, point: Home[Number] | None) -> Any:
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
    return as_exact(out, point)


def as_exact(objects: np.ndarray, point: Home[Number] | None) -> ExactArray:
    """An array of exact numbers as what it is."""
    found = objects.view(ExactArray)
    found._point = point
    return found


def each_entry(function: Callable, x: Any) -> ExactArray:
    """The function of every entry."""
    out = np.empty(np.shape(x), dtype=object)
    for place in np.ndindex(out.shape):
        out[place] = function(np.asarray(x)[place])
    return as_exact(out, getattr(x, "_point", None))


def letters(point: Home[Number], shape: tuple) -> ExactArray:
    """An array of new unknowns."""
    return as_exact(each_entry(lambda _: point.letter(), np.zeros(shape)), point)


def point_of(inputs: Any) -> Home[Number] | None:
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


def as_objects(x: Any, point: Home[Number] | None, name: str) -> Any:
    """An input of a ufunc as NumPy's own array of objects, all of them exact."""
    if isinstance(x, ExactArray):
        return x.view(np.ndarray)
    if isinstance(x, np.ndarray) and x.dtype != bool and point is not None:
        return exact(x, point).view(np.ndarray)
    if isinstance(x, float) and point is not None:
        return point.other(x, name)
    return x


def stands_for(function: Callable) -> Callable:
    """The decorator of what a function of NumPy does with exact arrays."""
    return lambda ours: WRITTEN.setdefault(function, ours)


def tracked(x: Any) -> Any:
    """An array of the same numbers, by which others can be differentiated."""
    return each_entry(lambda entry: entry.tracked(), x)


def bare(x: Any) -> Any:
    """An array of the same numbers, as constants."""
    return each_entry(lambda entry: entry.bare(), x)


def made_of(roots: Iterable[ExactEntry]) -> list[ExactEntry]:
    """All that the roots are made of, and they themselves: what is made of others comes later."""
    order: list[ExactEntry] = []
    seen: set[int] = set()
    stack: list[tuple[ExactEntry, bool]] = [(x, False) for x in roots]
    while stack:
        x, is_done = stack.pop()
        if is_done:
            order.append(x)
        elif id(x) not in seen and x.slopes is not None:
            seen.add(id(x))
            stack.append((x, True))
            stack += [(part, False) for part, _ in x.slopes]
    return order


def gradient_of(outputs: Any, weights: Any, by: Any) -> Any:
    """The derivative of the sum of weight * output by each entry of `by`."""
    pairs = [(y, w) for y, w in zip(_flat_entries(outputs), _flat_entries(weights)) if y.slopes is not None]
    found = pull_back(pairs, made_of(y for y, _ in pairs))
    return each_entry(lambda x: found.get(id(x), x.point.zero), by)


def pull_back(pairs: list, order: list) -> dict[int, Number]:
    """The derivative of the sum of weight * output by everything in `order`."""
    found: dict[int, Number] = {}
    for y, w in pairs:
        found[id(y)] = found[id(y)] + w if id(y) in found else w
    for x in reversed(order):
        slope = found.get(id(x))
        if slope is None:
            continue
        for part, derivative in x.slopes:
            if part.slopes is not None:
                term = slope.times(derivative)
                found[id(part)] = found[id(part)] + term if id(part) in found else term
    return found


def push_forward(order: list, tangents: dict[int, Number]) -> dict[int, Number]:
    """The tangent of everything in `order`, from those of some of it."""
    found = dict(tangents)
    for x in order:
        for part, derivative in x.slopes:
            if id(part) in found:
                term = found[id(part)].times(derivative)
                found[id(x)] = found[id(x)] + term if id(x) in found else term
    return found


def tangent_of(outputs: Any, moving: list[tuple]) -> Any:
    """The tangents of the outputs, where each pair in `moving` is an array and its tangent."""
    seeds = {id(x): dot for whole, dots in moving for x, dot in zip(_flat_entries(whole), _flat_entries(dots))}
    found = push_forward(made_of(y for y in _flat_entries(outputs) if y.slopes is not None), seeds)
    return each_entry(lambda y: found.get(id(y), y.point.zero), outputs)


def _flat_entries(x: Any) -> list:
    return [entry for entry in np.asarray(x).ravel() if entry.__class__ in (Number, Infinite)]
