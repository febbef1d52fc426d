"""Somebody's function: found by its name, with the libraries that its code names; what it may do wrong."""

import difflib
import functools
import importlib
import importlib.util
import inspect
import itertools
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from attnmath._words.extras import EXTRAS, absent

LIBRARY_ROOTS = dict(torch="torch", transformers="torch", jax="jax", jaxlib="jax", flax="jax", numpy="numpy")
LIBRARY_ROOTS |= dict(array_api_compat="any")
HERE = str(Path(__file__).parent.parent)


class Unusable(Exception):
    """What was asked for cannot be done; the message is one clear line."""


def load_function(target: str) -> Callable:
    """The function that "module:function" or "path/to/file.py:function" names.

    The current folder can be imported from, as with python -m; a file's own folder too.
    Raises Unusable where there is no such module or function, or its import fails.
    """
    place, colon, name = target.rpartition(":")
    if not (place and name):
        where = place or name or "module"
        raise Unusable(f"{target!r} names no function; write {where}:function")
    found: Any = _module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise Unusable(f"{place} has no {name!r}{_suggested(part, dir(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise Unusable(f"{target} is {type(found).__name__}; it needs to be callable")
    return found


def _module(place: str) -> types.ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    is_file = place.endswith(".py") or os.sep in place
    if place.startswith(".") and not is_file:
        raise Unusable(f"{place!r} is no module; write its name from the current folder, or its path")
    if is_file and not Path(place).is_file():
        raise Unusable(f"{place} is a folder" if Path(place).is_dir() else f"there is no file {place}")
    try:
        return _from_file(Path(place)) if is_file else importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = error.name or place
        library = missing.partition(".")[0]
        if library in EXTRAS and find_spec(library) is None:
            raise Unusable(f"{place}: {absent(library)}") from error
        if not is_file and (place == missing or place.startswith(missing + ".")):
            raise Unusable(f"there is no module {place}; the current folder was searched too") from error
        raise Unusable(f"{place} needs {missing}, which is not installed") from error
    except SyntaxError as error:
        line = f"{error.filename}, line {error.lineno}"
        raise Unusable(f"{place} could not be imported: {error.msg} ({line})") from error
    except SystemExit as error:
        raise Unusable(f"{place} ends the program when it is imported") from error
    except Exception as error:
        said = " ".join(str(error).split())
        raise Unusable(f"{place} could not be imported: {type(error).__name__}: {said}") from error


def _from_file(path: Path) -> types.ModuleType:
    """The module that a file is; sys.modules holds it, as if it had been imported."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = path.stem if path.stem not in sys.modules else f"examined_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ImportError("it is no file of Python")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _suggested(word: str, there: list[str]) -> str:
    alike = difflib.get_close_matches(word, there, 1)
    return f"; did you mean {alike[0]}?" if alike else ""


def name_of(fn: Any) -> str:
    """The name of a function, or of the class of what is called like one."""
    fn = fn.func if isinstance(fn, functools.partial) else fn
    name = attribute(fn, "__name__")
    return name if isinstance(name, str) else type(fn).__name__


def attribute(x: Any, name: str, default: Any = None) -> Any:
    """An attribute of an object, or the default, also where its own __getattr__ raises whatever."""
    try:
        return getattr(x, name, default)
    except BaseException:
        return default


def parameters(fn: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function or of a module by their names; none where they cannot be known."""
    try:
        return inspect.signature(attribute(fn, "forward", fn)).parameters
    except BaseException:  # what is written in C may have none; what is found may raise
        return {}


def library_of(x: Any) -> str | None:
    """The library that an object belongs to, by its module's name."""
    module = x.__name__ if isinstance(x, types.ModuleType) else attribute(x, "__module__")
    return LIBRARY_ROOTS.get(module.partition(".")[0]) if isinstance(module, str) else None


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
        found.update(filter(None, [library_of(x), *(library_of(parent) for parent in parents)]))
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
                look(attribute(part, "__func__", part), depth + 1)
        elif callable(x):
            look(type(x), depth)
        look(attribute(x, "__wrapped__"), depth)

    look(fn, 0)
    return [name for name in ("torch", "jax", "numpy", "any") if name in found]


def libraries_in_order(fn: Callable, backward: Callable | None) -> list[str]:
    """The libraries that a candidate may be for: the one that its code names, or those to try."""
    names = guess(fn) + (guess(backward) if backward is not None else [])
    for name in ("torch", "jax"):
        if name in names and not {"torch", "jax", "any"} - {name} & set(names):
            return [name]
    numpy_first = backward is not None or "numpy" in names and "any" not in names
    found = ["numpy", "torch", "jax"] if numpy_first else ["torch", "jax", "numpy"]
    if "jax" not in sys.modules and not any(imports(f, "jax") for f in (fn, backward)):
        found.remove("jax")  # nobody has loaded it: to load it for a guess would start its threads
    return found


def imports(fn: Any, library: str) -> bool:
    """Whether a function's code imports a library, or a part of it, when it is called."""
    code = attribute(fn, "__code__")
    return isinstance(code, types.CodeType) and any(
        name.partition(".")[0] == library for part in codes(code) for name in part.co_names
    )


# ---- what may go wrong when it is called --------------------------------------------------------


class Fault(NamedTuple):
    """Something that a candidate did and must not do: its name, and a sentence to print."""

    name: str
    sentence: str


class BadDevice(ValueError):
    """A device that is not there."""


class Broken(Exception):
    """A call that has no result; its one argument is the fault."""

    @property
    def fault(self) -> Fault:
        return self.args[0]


class Stop(BaseException):
    """Raised inside a call that takes too long."""


def message(error: BaseException, length: int = 200) -> str:
    """An exception in one short line."""
    try:
        lines = str(error).encode("utf-8", "replace").decode().strip().splitlines()
    except BaseException:  # its own __str__ raises
        lines = []
    text = f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
    return text if len(text) <= length else text[: length - 3] + "..."


def failure_of(error: BaseException) -> str:
    """That the examination itself failed, and where: no word on what is examined."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(HERE)]
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"the examination itself failed: {message(error)}{place}"


def whole_numbers(x: Any, depth: int) -> Iterator[int]:
    """The whole numbers that a function's code names, and those that it, its object or its modules keep."""
    if isinstance(x, int) and not isinstance(x, bool):
        yield x
    elif isinstance(x, functools.partial):
        for part in (x.func, *x.args, *x.keywords.values()):
            yield from whole_numbers(part, depth)
    elif isinstance(x, types.MethodType):
        yield from whole_numbers(x.__self__, depth)
        yield from whole_numbers(x.__func__, depth)
    elif isinstance(x, types.FunctionType) and depth < 3:
        kept = (*used(x), *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values())
        named = itertools.chain.from_iterable(code.co_consts for code in codes(x.__code__))
        for part in (*kept, *named):
            yield from whole_numbers(part, depth + 1)
    elif callable(x) and not isinstance(x, type) and depth < 3:
        for part in (*getattr(x, "__dict__", {}).values(), type(x).__dict__.get("forward"), type(x).__call__):
            yield from whole_numbers(part, depth + 1)
    elif isinstance(x, tuple | list) and len(x) < 8:
        for part in x:
            yield from whole_numbers(part, depth)
