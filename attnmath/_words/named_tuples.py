"""Arguments that are named tuples: taken apart into their fields, and put together."""

from collections.abc import Callable, Sequence
from typing import Any


def is_branch(x: Any) -> bool:
    """Whether x is a named tuple."""
    return isinstance(x, tuple) and hasattr(x, "_fields")


def has_fields_of(x: Any, like: Any) -> bool:
    """Whether x has the fields of `like`, or is None."""
    if not is_branch(like) or x is None:
        return True
    own = getattr(x, "_fields", None)
    return own == like._fields and all(map(has_fields_of, x, like))


def leaves(name: str, x: Any, like: Any) -> list:
    """The parts of x, field by field as in `like`, each with its name."""
    if not is_branch(like):
        return [(name, x)]
    parts = like._make([None] * len(like)) if x is None else x
    names = [f"{name}.{field}" for field in like._fields]
    return [leaf for fields in zip(names, parts, like) for leaf in leaves(*fields)]


def all_leaves(names: Sequence, x: Sequence, likes: Sequence) -> tuple[list, list]:
    """The names and the parts of several arguments."""
    found = [leaf for one in zip(names, x, likes) for leaf in leaves(*one)]
    return [name for name, part in found], [part for name, part in found]


def outputs(found: Any, Y: Any) -> tuple[list, list]:
    """The parts of what belongs to the outputs Y of a function, with the names of those."""
    if not isinstance(Y, tuple):
        return ["Y"], [found]
    return all_leaves(names_of_outputs(Y), found, Y)


def names_of_outputs(Y: Any) -> list:
    """The names of the parts of Y, or one."""
    if not isinstance(Y, tuple):
        return ["Y"]
    return list(getattr(Y, "_fields", [f"Y{i}" for i in range(len(Y))]))


def put_together(parts: Sequence, likes: Sequence) -> list:
    """The parts as the fields of what they were taken from."""
    left = iter(parts)

    def fold(like: Any) -> Any:
        return like._make(map(fold, like)) if is_branch(like) else next(left)

    return [fold(like) for like in likes]


def each_part(function: Callable, x: Any, *others: Any) -> Any:
    """function(x), or of each part of a tuple, in such a tuple, with what others have there; None for None."""
    if not isinstance(x, tuple):
        return None if x is None else function(x, *others)
    made = [each_part(function, *parts) for parts in zip(x, *others)]
    return type(x)(*made) if is_branch(x) else tuple(made)


def flat_parts(y: Any) -> tuple:
    """The outputs of a function, one or several, also those in a tuple inside."""
    if not isinstance(y, tuple):
        return (y,)
    return tuple(inside for part in y for inside in flat_parts(part))


def on_leaves(f: Callable, *likes: Any) -> Callable:
    """f as a function of the parts of its arguments, which are like these."""
    return lambda *parts, **constants: f(*put_together(parts, likes), **constants)
