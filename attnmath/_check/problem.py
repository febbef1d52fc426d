"""A function at a point: its derivatives by the complex step, how sure they are, and what a rule returned."""

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from numbers import Real
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj

from attnmath._words.complex_step import (
    as_vector,
    check_argument,
    check_shape,
    complex_if_torch,
    complex_step,
    is_real,
    numpy_of,
    off_by_a_rounding,
    own_numbers,
    random_like,
    units,
    without_infinities,
)
from attnmath._words.named_tuples import (
    all_leaves,
    each_part,
    flat_parts,
    has_fields_of,
    names_of_outputs,
    on_leaves,
    outputs,
)
from attnmath._words.tolerance import CENTRAL_STEP, REACTION, SIDE, UNSEEN


class FunctionAtPoint:
    """A function f, its arguments x and constants, and who asks."""

    def __init__(self, caller: str, f: Callable, x: tuple, constants: dict):
        self.caller, self.whole, self.constants = caller, x, constants
        self.parameters, self.arguments = names_of(f, len(x))
        self.f = on_leaves(f, *x)
        self.names, parts_of_x = all_leaves(self.arguments, x, x)
        self.x = x = tuple(parts_of_x)
        for name, argument in zip(self.names, x):
            if argument is not None:
                check_argument(caller, name, argument)
        self.Y = self.run("f", self.f, self.names, x)
        if not all(y is None or is_real(y) for y in flat_parts(self.Y)):
            raise TypeError(f"{caller}: f returns something else than real numbers")
        if np.isnan(as_vector(self.Y)).any():
            raise ValueError(f"{caller}: f returns NaN")
        self.jacobian, self.wobble = cache(self._jacobian), cache(self._wobble)

    def check_entries(self) -> None:
        """A TypeError if there is nothing to check."""
        if not as_vector(self.x).size:
            raise TypeError(f"{self.caller}: no argument has entries: there is nothing to check")

    def run(self, what: str, function: Callable, names: list, arguments: tuple) -> Any:
        """function(*arguments), which must leave its arguments as they are."""
        private = [each_part(own_numbers, argument) for argument in arguments]
        out = function(*private, **self.constants)
        for name, a, b in zip(names, private, arguments):
            if not np.array_equal(as_vector(a), as_vector(b), equal_nan=True):
                raise AssertionError(f"{what} modifies its argument {name}")
        return out

    def at(self, k: int, x: tuple) -> Callable:
        """f as a function of argument k; the others stay."""
        return lambda xk: self.f(*x[:k], xk, *x[k + 1 :], **self.constants)

    def _jacobian(self, k: int, x: tuple | None = None) -> np.ndarray:
        """Every output, along the rows, by every entry of argument k."""
        x = x or self.x
        f = self.at(k, tuple(map(complex_if_torch, x)))
        columns = [as_vector(complex_step(f, x[k], unit)) for unit in units(x[k])]
        J = np.array(columns).reshape(len(columns), as_vector(self.Y).size).T
        if not np.isfinite(J).all():
            said = f"f returns NaN or infinity when {self.names[k]} is complex"
            raise ValueError(f"{self.caller}: {said}")
        return J

    def _wobble(self, k: int) -> np.ndarray:
        """How much the Jacobian changes when every input is off by one rounding."""
        rng = np.random.default_rng(0)
        points = [tuple(each_part(lambda a: off_by_a_rounding(a, rng), a) for a in self.x) for _ in "ab"]
        changes = [abs(self._jacobian(k, x) - self.jacobian(k)) for x in points]
        return np.maximum(*changes)

    def cotangent(self, dY: Any, seed: int) -> Any:
        """dY as given, if it fits the outputs, or a random one."""
        if dY is None:
            rng = np.random.default_rng(seed)
            return each_part(lambda y: random_like(y, rng), self.Y)
        is_tuple, several = isinstance(dY, tuple), isinstance(self.Y, tuple)
        count = len(self.Y) if several else 1
        if is_tuple != several or several and len(dY) != count:
            needs = f"one entry for each output of f, {count}, in a tuple"
            raise ValueError(f"{self.caller}: dY needs {needs} if f returns a tuple")
        for y, dy in zip(*(x if several else (x,) for x in (self.Y, dY))):
            if not has_fields_of(dy, y):
                needs = f"the fields of f's output, {', '.join(y._fields)}"
                raise ValueError(f"{self.caller}: dY needs {needs}")
        for y, dy in zip(flat_parts(self.Y), outputs(dY, self.Y)[1]):
            if dy is not None:
                check_argument(self.caller, "dY", dy)
                check_shape(self.caller, "dY", dy, np.shape(y), "f's output")
        if not as_vector(dY).any():
            raise ValueError(f"{self.caller}: dY is zero, so that every gradient is zero")
        return dY

    def cotangent_vector(self, dY: Any) -> np.ndarray:
        """dY in one vector; zeros for an output without a gradient."""
        pairs = zip(flat_parts(self.Y), outputs(dY, self.Y)[1])
        return as_vector(tuple(0 * as_vector(y) if dy is None else dy for y, dy in pairs if y is not None))

    def tangents(self, x_dot: Any, seed: int) -> list:
        """x_dot as given, if it fits the arguments, or random ones."""
        if x_dot is None:
            rng = np.random.default_rng(seed)
            return [each_part(lambda a: random_like(a, rng), a) for a in self.x]
        if not isinstance(x_dot, tuple | list) or len(x_dot) != len(self.whole):
            needs = f"a tangent for each of the {len(self.whole)} arguments, in a tuple"
            raise ValueError(f"{self.caller}: x_dot needs {needs}")
        for name, x, dot in zip(self.arguments, self.whole, x_dot):
            if not has_fields_of(dot, x):
                needs = f"the fields of {name}, {', '.join(x._fields)}"
                raise ValueError(f"{self.caller}: {name}_dot needs {needs}")
        x_dot = all_leaves(self.arguments, x_dot, self.whole)[1]
        for name, a, dot in zip(self.names, self.x, x_dot):
            if dot is not None:
                check_argument(self.caller, name + "_dot", dot)
                check_shape(self.caller, name + "_dot", dot, np.shape(a), name)
        if not as_vector(tuple(x_dot)).any():
            said = "x_dot is zero, so that every tangent is zero"
            raise ValueError(f"{self.caller}: {said}")
        return x_dot

    def height(self, k: int) -> float:
        """The size of argument k: of its largest entry, and 1 at least."""
        return float(max(1.0, abs(without_infinities(as_vector(self.x[k]))).max(initial=0.0)))

    def check_analytic(self, k: int) -> None:
        """The complex step sees what a finite difference sees, up to rounding and curvature."""
        direction, J = random_like(self.x[k], np.random.default_rng(1)), self.jacobian(k)
        seen, nearer = (self.central(k, direction, step) for step in (CENTRAL_STEP, CENTRAL_STEP / 8))
        unseen = np.maximum(abs(seen - J @ as_vector(direction)) - 4 * abs(seen - nearer), 0) * CENTRAL_STEP
        level = REACTION * abs(without_infinities(as_vector(self.Y))).max(initial=0)
        share = UNSEEN * CENTRAL_STEP * (abs(J) @ abs(as_vector(direction))).max(initial=0)
        if unseen.max(initial=0) > level + share:
            self.refuse_real(k)

    def check_side(self, k: int, w: np.ndarray, j: int, got: float, want: float) -> None:
        """No finite difference takes the side of what the complex step refuses."""
        seen = w @ self.central(k, list(units(self.x[k]))[j])
        if abs(seen - got) < SIDE * abs(seen - want):
            self.refuse_real(k)

    def refuse_real(self, k: int) -> None:
        said = (
            f"f loses the imaginary part of {self.names[k]}, as a cast to real or an"
            " absolute value does: a finite difference sees a derivative that the"
            " complex step does not see"
        )
        raise ValueError(f"{self.caller}: {said}")

    def central(self, k: int, direction: Any, step: float = CENTRAL_STEP) -> np.ndarray:
        """The central difference of the outputs along a direction of argument k."""
        h, f = step * self.height(k), self.at(k, self.x)
        ahead, behind = (as_vector(f(self.x[k] + s * direction)) for s in (h, -h))
        return (without_infinities(ahead) - without_infinities(behind)) / (2 * h)


def takes_each(f_vjp: Callable, f: Callable, x: Sequence, dY: Any) -> bool:
    """Whether f_vjp takes the gradients of several outputs one by one, not in a tuple."""
    if not isinstance(dY, tuple) or len(dY) == 1:
        return False
    return names_of(f_vjp, 0)[0] == len(dY) + max(names_of(f, 0)[0], len(x))


def parameters_of(f: Callable) -> list[inspect.Parameter]:
    """The parameters of f; none if f does not tell."""
    try:
        return list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        return []


def names_of(f: Callable, count: int) -> tuple[int, list[str]]:
    """How many positional parameters f has, and the names of `count` arguments."""
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [p.name for p in parameters_of(f) if p.kind in positional]
    return len(names), [*names[:count], *(f"x{i}" for i in range(len(names), count))]


def each_output_tangent(Y: Any, Y_dot: Any) -> tuple[list, list]:
    """The parts of Y_dot, with the names of those of Y."""
    wants, found = (x if isinstance(x, tuple) else (x,) for x in (Y, Y_dot))
    if len(found) != len(wants):
        counts = f"{counted(len(found), 'tangent')} for {counted(len(wants), 'output')}"
        raise AssertionError(f"f_jvp returns {counts}")
    for name, y, y_dot in zip(names_of_outputs(Y), wants, found):
        if not has_fields_of(y_dot, y):
            needs = f"it needs the fields {', '.join(y._fields)}"
            raise AssertionError(f"{name}_dot is a {type(y_dot).__name__}; {needs}")
    return outputs(found if isinstance(Y, tuple) else found[0], Y)


def each_tangent(problem: FunctionAtPoint, Y_dot: Any, along: str) -> list:
    """Name, values and place of each part of Y_dot, and of the whole output that it is in."""
    out, start = [], 0
    names, found = each_output_tangent(problem.Y, Y_dot)
    for name, y, y_dot in zip(names, flat_parts(problem.Y), found):
        if y is not None:
            got = returned_numbers(f"{name}_dot{along}", y_dot, np.shape(y), name)
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


def off_by(name: str, error: np.ndarray, shape: tuple, allowed: float) -> str:
    """Which entry is off by how much, and what would have been allowed."""
    j = int(error.argmax())
    entry = tuple(int(i) for i in np.unravel_index(j, shape))
    where = f"the largest error is {error[j]:.1e} at entry {entry}"
    where = where if entry else f"the error is {error[j]:.1e}"
    return f"{name}: {where}; allowed {allowed:.1e}"


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" + "s" * (number != 1)


def each_gradient(problem: FunctionAtPoint, found: Any) -> zip:
    """One gradient for each argument, field by field; of those left out, more."""
    names = getattr(found, "_fields", ["d" + name for name in problem.arguments])
    found = found if isinstance(found, tuple | list) else (found,)
    x, count = len(problem.whole), len(found)
    if not x <= count <= max(x, problem.parameters):
        counts = f"{counted(count, 'gradient')} for {counted(x, 'argument')}"
        raise AssertionError(f"f_vjp returns {counts} ({', '.join(problem.arguments)})")
    for name, argument, dx in zip(names, problem.whole, found):
        if not has_fields_of(dx, argument):
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


def returned_numbers(name: str, y: Any, shape: tuple, of: str) -> np.ndarray:
    """A returned derivative as numbers of NumPy, if it is one and has this shape."""
    if not (isinstance(y, Real) or is_array_api_obj(y)):
        raise AssertionError(f"{name} is a {type(y).__name__}; it needs to be an array")
    found = numpy_of(y)
    if found.shape != tuple(shape):
        needs = f"it needs {tuple(shape)}, the shape of {of}"
        raise AssertionError(f"{name} has shape {found.shape}; {needs}")
    if found.dtype.kind not in "fiu":
        raise AssertionError(f"{name} has dtype {found.dtype}; it needs real numbers")
    if not np.isfinite(found).all():
        bad = tuple(int(i) for i in np.argwhere(~np.isfinite(found))[0])
        raise AssertionError(f"{name} is {found[bad]} at entry {bad}")
    return found.astype(float)
