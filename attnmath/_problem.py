"""A function at a point: its derivatives by the complex step, and how sure they are."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from attnmath._leaves import all_leaves, fits, on_leaves, outputs
from attnmath._step import (
    check_argument,
    check_shape,
    complex_if_torch,
    complex_step,
    copied,
    each,
    finite,
    flat,
    is_real,
    parts,
    random_like,
    rounded,
    units,
)
from attnmath._tolerance import REACTION, SIDE, STEP, UNSEEN


class Problem:
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
        if not all(y is None or is_real(y) for y in parts(self.Y)):
            raise TypeError(f"{caller}: f returns something else than real numbers")
        if np.isnan(flat(self.Y)).any():
            raise ValueError(f"{caller}: f returns NaN")
        self.jacobian, self.wobble = cache(self._jacobian), cache(self._wobble)

    def run(self, what: str, function: Callable, names: list, arguments: tuple) -> Any:
        """function(*arguments), which must leave its arguments as they are."""
        private = [each(copied, argument) for argument in arguments]
        out = function(*private, **self.constants)
        for name, a, b in zip(names, private, arguments):
            if not np.array_equal(flat(a), flat(b), equal_nan=True):
                raise AssertionError(f"{what} modifies its argument {name}")
        return out

    def at(self, k: int, x: tuple) -> Callable:
        """f as a function of argument k; the others stay."""
        return lambda xk: self.f(*x[:k], xk, *x[k + 1 :], **self.constants)

    def _jacobian(self, k: int, x: tuple | None = None) -> np.ndarray:
        """Every output, along the rows, by every entry of argument k."""
        x = x or self.x
        f = self.at(k, tuple(map(complex_if_torch, x)))
        columns = [flat(complex_step(f, x[k], unit)) for unit in units(x[k])]
        J = np.array(columns).reshape(len(columns), flat(self.Y).size).T
        if not np.isfinite(J).all():
            said = f"f returns NaN or infinity when {self.names[k]} is complex"
            raise ValueError(f"{self.caller}: {said}")
        return J

    def _wobble(self, k: int) -> np.ndarray:
        """How much the Jacobian changes when every input is off by one rounding."""
        rng = np.random.default_rng(0)
        points = [
            tuple(each(lambda a: rounded(a, rng), a) for a in self.x) for _ in "ab"
        ]
        changes = [abs(self._jacobian(k, x) - self.jacobian(k)) for x in points]
        return np.maximum(*changes)

    def cotangent(self, dY: Any, seed: int) -> Any:
        """dY as given, if it fits the outputs, or a random one."""
        if dY is None:
            rng = np.random.default_rng(seed)
            return each(lambda y: random_like(y, rng), self.Y)
        is_tuple, several = isinstance(dY, tuple), isinstance(self.Y, tuple)
        count = len(self.Y) if several else 1
        if is_tuple != several or several and len(dY) != count:
            needs = f"one entry for each output of f, {count}, in a tuple"
            raise ValueError(f"{self.caller}: dY needs {needs} if f returns a tuple")
        for y, dy in zip(*(x if several else (x,) for x in (self.Y, dY))):
            if not fits(dy, y):
                needs = f"the fields of f's output, {', '.join(y._fields)}"
                raise ValueError(f"{self.caller}: dY needs {needs}")
        for y, dy in zip(parts(self.Y), outputs(dY, self.Y)[1]):
            if dy is not None:
                check_argument(self.caller, "dY", dy)
                check_shape(self.caller, "dY", dy, np.shape(y), "f's output")
        if not flat(dY).any():
            raise ValueError(
                f"{self.caller}: dY is zero, so that every gradient is zero"
            )
        return dY

    def weights(self, dY: Any) -> np.ndarray:
        """dY in one vector; zeros for an output without a gradient."""
        pairs = zip(parts(self.Y), outputs(dY, self.Y)[1])
        pairs = [(y, dy) for y, dy in pairs if y is not None]
        return flat(tuple(0 * flat(y) if dy is None else dy for y, dy in pairs))

    def tangents(self, x_dot: Any, seed: int) -> list:
        """x_dot as given, if it fits the arguments, or random ones."""
        if x_dot is None:
            rng = np.random.default_rng(seed)
            return [each(lambda a: random_like(a, rng), a) for a in self.x]
        if not isinstance(x_dot, tuple | list) or len(x_dot) != len(self.whole):
            needs = f"a tangent for each of the {len(self.whole)} arguments, in a tuple"
            raise ValueError(f"{self.caller}: x_dot needs {needs}")
        for name, x, dot in zip(self.arguments, self.whole, x_dot):
            if not fits(dot, x):
                needs = f"the fields of {name}, {', '.join(x._fields)}"
                raise ValueError(f"{self.caller}: {name}_dot needs {needs}")
        x_dot = all_leaves(self.arguments, x_dot, self.whole)[1]
        for name, a, dot in zip(self.names, self.x, x_dot):
            if dot is not None:
                check_argument(self.caller, name + "_dot", dot)
                check_shape(self.caller, name + "_dot", dot, np.shape(a), name)
        if not flat(tuple(x_dot)).any():
            said = "x_dot is zero, so that every tangent is zero"
            raise ValueError(f"{self.caller}: {said}")
        return x_dot

    def height(self, k: int) -> float:
        """The size of argument k: of its largest entry, and 1 at least."""
        return float(max(1.0, abs(finite(flat(self.x[k]))).max(initial=0.0)))

    def check_analytic(self, k: int) -> None:
        """The complex step sees what a finite difference sees, up to rounding and curvature."""
        direction, J = random_like(self.x[k], np.random.default_rng(1)), self.jacobian(k)
        seen, nearer = (self.central(k, direction, step) for step in (STEP, STEP / 8))
        unseen = np.maximum(abs(seen - J @ flat(direction)) - 4 * abs(seen - nearer), 0) * STEP
        level = REACTION * abs(finite(flat(self.Y))).max(initial=0)
        share = UNSEEN * STEP * (abs(J) @ abs(flat(direction))).max(initial=0)
        if unseen.max(initial=0) > level + share:
            self.refuse_real(k)

    def check_side(
        self, k: int, w: np.ndarray, j: int, got: float, want: float
    ) -> None:
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

    def central(self, k: int, direction: Any, step: float = STEP) -> np.ndarray:
        """The central difference of the outputs along a direction of argument k."""
        h, f = step * self.height(k), self.at(k, self.x)
        ahead, behind = (flat(f(self.x[k] + s * direction)) for s in (h, -h))
        return (finite(ahead) - finite(behind)) / (2 * h)


def takes_each(f_vjp: Callable, f: Callable, x: tuple, dY: Any) -> bool:
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
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    names = [p.name for p in parameters_of(f) if p.kind in positional]
    return len(names), [*names[:count], *(f"x{i}" for i in range(len(names), count))]
