"""Arrays of floating-point numbers, of one library and one precision."""

import math
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj

from attnmath._given.arguments import Argument
from attnmath._given.letters import all_finite, below_inf
from attnmath._words.arrays import is_number, namespace, number_type

PYTHON_NUMBERS = int, float, complex
ACCEPTED: set[type] = set()  # types of arrays: asking anew takes longer than computing with a small one


def alike(function: str, letters: list[tuple[int, Argument]], x: list) -> Any:
    """The first array, if any; all others are like it, or a sentence says which is not."""
    first = kind = None
    mixed = False
    for k, letter in letters:
        one = x[k]
        if one is None and letter.optional:
            continue
        own = number_type(one) if type(one) in ACCEPTED else None
        if own is None or not own.is_floating:
            one = x[k] = ready(function, letter, one, letters[0][1].name)
            if type(one) in PYTHON_NUMBERS:
                mixed = mixed or type(one) is complex
                continue
            own = number_type(one)
        if first is None:
            first, kind = (letter.name, one), own
        elif own is not kind:
            x[k] = same_kind(function, letter.name, one, *first)
            mixed = True
    if mixed:
        make_complex([k for k, _ in letters], x)
    return x[letters[0][0]] if letters else None


def ready(function: str, letter: Argument, x: Any, first: str) -> Any:
    """An array of floating-point numbers, or a finite number where one may stand."""
    name, number = letter.name, letter.number
    if isinstance(x, np.generic):
        x = x.item() if number else np.asarray(x)
    if number and type(x) in PYTHON_NUMBERS and (number is complex or type(x) is not complex):
        if not abs(x) < math.inf:
            fails = [c for c in letter.conditions if c is not all_finite and not c.holds(x.real)]
            says = fails[0].refusal(name, x) if fails else f"{name} is {x}; it needs to be a finite number"
            raise ValueError(f"{function}: {says}")
        return x
    if letter.shape.spreads and below_inf in letter.conditions and is_array_api_obj(x) and is_boolean(x):
        raise TypeError(
            f"{function}: {name} is boolean; it needs numbers that are added to the scores: 0 where a"
            f" query may look and -inf where not, as in bias(mask, like={first})"
        )
    kind = "an array or a number" if number else "an array"
    needs = "a real number" if number is float else f"{kind} (of NumPy, torch or another array-API library)"
    if not is_array_api_obj(x) or isinstance(x, np.matrix | np.ma.MaskedArray):
        raise TypeError(f"{function}: {name} is a {type(x).__name__}; it needs to be {needs}")
    if not number_type(x).is_floating:
        raise TypeError(f"{function}: {name} {what(x)}; it needs floating-point numbers")
    ACCEPTED.add(type(x))
    return x


def same_kind(function: str, name: str, x: Any, first: str, other: Any) -> Any:
    """x, if it is of the library and the precision of another array."""
    if namespace(x) is not namespace(other):
        raise TypeError(
            f"{function}: {name} is an array of {library(x)}, but {first} is one of {library(other)};"
            " all need to be of one library"
        )
    if getattr(x, "weak_type", False):  # a number that JAX traces adapts itself
        x = x.astype(namespace(x).result_type(x, other))
    if number_type(x).eps != number_type(other).eps:
        raise TypeError(
            f"{function}: {name} has dtype {dtype(x)}; it needs that of {first}, {dtype(other)}"
        )
    return x


def make_complex(places: list[int], x: list) -> None:
    """All arrays complex if one or a number is: torch multiplies no mixture."""
    arrays = [k for k in places if x[k] is not None and not is_number(x[k])]
    kinds = [x[k].dtype for k in arrays] + [x[k] for k in places if isinstance(x[k], complex)]
    if any(kind != kinds[0] for kind in kinds):
        xp = namespace(x[arrays[0]])
        both = xp.result_type(*kinds)
        for k in arrays:
            x[k] = xp.astype(x[k], both)


def is_boolean(x: Any) -> bool:
    """Whether x is an array of booleans."""
    return namespace(x).isdtype(x.dtype, "bool")


def what(x: Any) -> str:
    """The class of x, or the dtype of an array."""
    return f"has dtype {dtype(x)}" if is_array_api_obj(x) else f"is a {type(x).__name__}"


def dtype(x: Any) -> str:
    """The name of the dtype of x."""
    return str(x.dtype).rpartition(".")[2]


def library(x: Any) -> str:
    """The name of the library of x."""
    return type(x).__module__.partition(".")[0]
