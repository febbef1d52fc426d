"""Which library a function computes with, by what it and its code name; nothing is called here."""

import functools
import types
from collections.abc import Iterator
from typing import Any

ROOTS = dict(torch="torch", transformers="torch", jax="jax", jaxlib="jax", flax="jax", numpy="numpy")
ROOTS |= dict(array_api_compat="any")


def named(x: Any) -> str | None:
    """The library that an object belongs to, by its module's name."""
    module = x.__name__ if isinstance(x, types.ModuleType) else getattr(x, "__module__", None)
    return ROOTS.get(module.partition(".")[0]) if isinstance(module, str) else None


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def used(fn: types.FunctionType) -> Iterator[Any]:
    """The objects that a function's code names, and those that it encloses."""
    for code in codes(fn.__code__):
        yield from (fn.__globals__[name] for name in code.co_names if name in fn.__globals__)
    for cell in fn.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet bound
            continue


def guess(fn: Any) -> list[str]:
    """The libraries that fn names, the most telling first; none where nothing is told."""
    found: set[str] = set()
    seen: set[int] = set()

    def look(x: Any, depth: int) -> None:
        if id(x) in seen or depth > 4:
            return
        seen.add(id(x))
        parents = x.__mro__ if isinstance(x, type) else type(x).__mro__
        found.update(filter(None, [named(x), *(named(parent) for parent in parents)]))
        if isinstance(x, functools.partial):
            for part in (x.func, *x.args, *x.keywords.values()):
                look(part, depth)
        elif isinstance(x, types.MethodType):
            look(x.__self__, depth)
            look(x.__func__, depth)
        elif isinstance(x, types.FunctionType):
            for part in used(x):
                look(part, depth + 1)
        elif isinstance(x, type):
            for part in vars(x).values():
                look(getattr(part, "__func__", part), depth + 1)
        elif callable(x):
            look(type(x), depth)
        look(getattr(x, "__wrapped__", None), depth)

    look(fn, 0)
    return [name for name in ("torch", "jax", "numpy", "any") if name in found]
