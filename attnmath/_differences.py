"""Derivatives beside central differences in float64: for functions that lose imaginary parts."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnmath._leaves import all_leaves, is_branch
from attnmath._problem import takes_each
from attnmath._step import each, flat, is_real

H = 1e-6
NEAR, ZERO = 1e-4, 1e-9  # of what is summed up and of the output: far above the error of a difference


def agrees(along: Callable, rule: Callable, f: Callable, given: list, named: dict, seed: int) -> bool | None:
    """Whether a rule agrees with differences of f at a point; None where there is nothing finite."""
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        got, want, allowed = along(rule, f, given, named, rng)
    finite = np.isfinite(want) & np.isfinite(allowed)
    return bool((abs(got - want)[finite] <= allowed[finite]).all()) if finite.any() else None


def vjp_along(f_vjp: Callable, f: Callable, given: list, named: dict, rng: Any) -> tuple:
    """The change of a random weighted sum of outputs: by the gradients, by differences, what is allowed."""
    v = [_direction(part, rng) for part in given]
    Y, Y_dot = _slope(f, given, named, v)
    dY = each(lambda y: rng.standard_normal(np.shape(y)), Y)
    found = f_vjp(*(dY if takes_each(f_vjp, f, given, dY) else (dY,)), *given, **named)
    found = found if isinstance(found, tuple | list) else (found,)
    names = [*map(str, range(len(given)))]
    pairs = zip(all_leaves(names, found, given)[1], all_leaves(names, v, given)[1])
    terms = np.concatenate([np.ravel(dx * part) for dx, part in pairs if part is not None])
    weighted = np.where(np.isfinite(flat(Y)), flat(dY) * Y_dot, 0)
    size = abs(terms).sum() + abs(weighted).sum()
    level = abs(flat(dY) * flat(Y))[np.isfinite(flat(Y))].sum()
    return tuple(np.array([number]) for number in (terms.sum(), weighted.sum(), NEAR * size + ZERO * (1 + level)))


def jvp_along(
    f_jvp: Callable, f: Callable, given: list, named: dict, rng: Any, left_out: tuple, dots: Any
) -> tuple:
    """The tangents along a random direction: those returned, by differences, what is allowed."""
    v = [None if dot is None else _direction(part, rng) for part, dot in zip(given, dots)]
    Y, want = _slope(f, given, named, v)
    got = flat(f_jvp(*v, *left_out, *given, **named))
    largest = np.maximum(abs(got), abs(want))[np.isfinite(want)].max(initial=0.0)
    return got, want, NEAR * largest + ZERO * (1 + abs(flat(Y)))


def _direction(x: Any, rng: Any) -> Any:
    """Normally distributed numbers in the shape of an argument; None for what has no derivative."""
    if is_branch(x):
        return type(x)(*(_direction(part, rng) for part in x))
    return np.where(np.isfinite(x), rng.standard_normal(np.shape(x)), 0) if is_real(x) else None


def _slope(f: Callable, given: list, named: dict, v: list) -> tuple:
    """What f returns, and its central differences along v."""
    ends = [flat(f(*(_moved(*pair, h) for pair in zip(given, v)), **named)) for h in (H, -H)]
    return f(*given, **named), (ends[0] - ends[1]) / (2 * H)


def _moved(x: Any, v: Any, h: float) -> Any:
    if is_branch(x) and v is not None:
        return type(x)(*(_moved(*pair, h) for pair in zip(x, v)))
    return x if v is None else x + h * v
