"""Functions called so that what one call does is not seen by another: copies, order, chance."""

import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from attnmath._algebraic import NotAlgebraic, whole
from attnmath._exact_arrays import ExactArray
from attnmath._infinity import Infinite
from attnmath._leaves import is_branch
from attnmath._numbers import Number

NUMBERS = (Number, Infinite, bool, int, float, Fraction, np.generic)


def called(sides: dict[str, tuple]) -> list:
    """What each (function, arguments, constants) returns; all are run twice, in both orders.

    Raises NotAlgebraic where the runs of one differ, or draw from a global generator.
    """
    names, state = [*sides], generators()
    found = {name: _returned(name, *sides[name]) for name in names}
    again = {name: _returned(name, *sides[name]) for name in reversed(names)}
    for name in names:
        check_same(name, found[name], again[name])
    check_generators(state)
    return [found[name] for name in names]


def check_same(name: str, first: Any, second: Any) -> None:
    """NotAlgebraic if two runs with the same arguments returned different things."""
    if not same(first, second):
        said = "returns something else when it is run again"
        raise NotAlgebraic(f"{name} {said}; it needs to be a function")


def check_generators(state: str) -> None:
    """NotAlgebraic if the global generators have moved on."""
    if generators() != state:
        said = "draws from the global generator of random or np.random"
        raise NotAlgebraic(f"a side {said}; it needs to be a function")


def copied(x: Any) -> Any:
    """A copy of an argument, field by field."""
    if is_branch(x):
        return type(x)(*map(copied, x))
    return x.copy() if isinstance(x, np.ndarray) else x


def _returned(name: str, function: Callable, x: list, constants: dict) -> Any:
    """A copy of what the function returns, which gets arguments of its own."""
    own = {k: copied(part) for k, part in constants.items()}
    return kept(whole(function, *map(copied, x), **own), name)


def kept(y: Any, name: str) -> Any:
    """A copy of what was returned: None, numbers, arrays, and tuples and lists of these."""
    if y is None or type(y) in NUMBERS or isinstance(y, np.generic):
        return y
    if type(y) in (np.ndarray, ExactArray):
        return y.copy()
    if is_branch(y):
        return type(y)(*(kept(part, name) for part in y))
    if type(y) in (tuple, list):
        return type(y)(kept(part, name) for part in y)
    raise TypeError(f"{name} returns a {type(y).__name__}; it needs to be an array, a number, or a tuple of these")


def same(x: Any, y: Any) -> bool:
    """Whether two results are the same, number by number."""
    if isinstance(x, tuple | list):
        return type(x) is type(y) and len(x) == len(y) and all(map(same, x, y))
    if isinstance(x, np.ndarray):
        return np.shape(x) == np.shape(y) and all(map(same, x.flat, np.asarray(y).flat))
    if isinstance(x, Number | Infinite):
        return type(x) is type(y) and x.key == y.key
    return type(x) is type(y) and (x == y or x != x)


def generators() -> str:
    """The state of the global generators."""
    return repr(random.getstate()) + repr(np.random.get_state(legacy=False))
