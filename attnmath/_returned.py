"""What a derivative has returned: its parts with their names, and sentences about them."""

from numbers import Real
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj

from attnmath._leaves import all_leaves, fits, names_of_outputs, outputs
from attnmath._problem import Problem
from attnmath._step import numpy_of, parts


def tangents(Y: Any, Y_dot: Any) -> tuple[list, list]:
    """The parts of Y_dot, with the names of those of Y."""
    wants, found = (x if isinstance(x, tuple) else (x,) for x in (Y, Y_dot))
    if len(found) != len(wants):
        counts = f"{counted(len(found), 'tangent')} for {counted(len(wants), 'output')}"
        raise AssertionError(f"f_jvp returns {counts}")
    for name, y, y_dot in zip(names_of_outputs(Y), wants, found):
        if not fits(y_dot, y):
            needs = f"it needs the fields {', '.join(y._fields)}"
            raise AssertionError(f"{name}_dot is a {type(y_dot).__name__}; {needs}")
    return outputs(found if isinstance(Y, tuple) else found[0], Y)


def each_tangent(problem: Problem, Y_dot: Any, along: str) -> list:
    """Name, values and place of each part of Y_dot, and of the whole output that it is in."""
    out, start = [], 0
    names, found = tangents(problem.Y, Y_dot)
    for name, y, y_dot in zip(names, parts(problem.Y), found):
        if y is not None:
            got = values(f"{name}_dot{along}", y_dot, np.shape(y), name)
            out.append((name, got, slice(start, start + got.size)))
            start += got.size
    wholes: dict = {}
    for name, _, part in out:
        first = wholes.get(output_of(name), part)
        wholes[output_of(name)] = slice(first.start, part.stop)
    return [(f"{name}_dot{along}", got, part, wholes[output_of(name)]) for name, got, part in out]


def output_of(name: str) -> str:
    """The name of the output that a field is in: dW of dW.b_K."""
    return name.partition(".")[0]


def sentence(name: str, error: np.ndarray, shape: tuple, allowed: float) -> str:
    """Which entry is off by how much, and what would have been allowed."""
    j = int(error.argmax())
    entry = tuple(int(i) for i in np.unravel_index(j, shape))
    where = f"the largest error is {error[j]:.1e} at entry {entry}"
    where = where if entry else f"the error is {error[j]:.1e}"
    return f"{name}: {where}; allowed {allowed:.1e}"


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" + "s" * (number != 1)


def gradients(problem: Problem, found: Any) -> zip:
    """One gradient for each argument, field by field; of those left out, more."""
    names = getattr(found, "_fields", ["d" + name for name in problem.arguments])
    found = found if isinstance(found, tuple | list) else (found,)
    x, count = len(problem.whole), len(found)
    if not x <= count <= max(x, problem.parameters):
        counts = f"{counted(count, 'gradient')} for {counted(x, 'argument')}"
        raise AssertionError(f"f_vjp returns {counts} ({', '.join(problem.arguments)})")
    for name, argument, dx in zip(names, problem.whole, found):
        if not fits(dx, argument):
            needs = f"it needs the fields {', '.join(argument._fields)}"
            raise AssertionError(f"{name} is a {type(dx).__name__}; {needs}")
    return zip(*all_leaves(names, found, problem.whole))


def is_due(name: str, dx: Any, argument: str, x: Any) -> bool:
    """Whether a gradient is there to be checked, as it must be beside an argument."""
    if x is None and dx is not None and np.shape(dx) != ():
        said = f"but {argument} is None; {name} needs to be None"
        raise AssertionError(f"{name} has shape {tuple(np.shape(dx))}, {said}")
    if x is not None and dx is None:
        said = f"{argument} has a gradient of shape {tuple(np.shape(x))}"
        raise AssertionError(f"{name} is None; {said}")
    return x is not None


def values(name: str, y: Any, shape: tuple, of: str) -> np.ndarray:
    """A returned derivative as numbers of NumPy, if it is one and has this shape."""
    if not (isinstance(y, Real) or is_array_api_obj(y)):
        raise AssertionError(f"{name} is a {type(y).__name__}; it needs to be an array")
    values = numpy_of(y)
    if values.shape != tuple(shape):
        needs = f"it needs {tuple(shape)}, the shape of {of}"
        raise AssertionError(f"{name} has shape {values.shape}; {needs}")
    if values.dtype.kind not in "fiu":
        raise AssertionError(f"{name} has dtype {values.dtype}; it needs real numbers")
    if not np.isfinite(values).all():
        bad = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise AssertionError(f"{name} is {values[bad]} at entry {bad}")
    return values.astype(float)
