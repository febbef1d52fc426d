"""A function named on the command line: module:function, or path/to/file.py:function."""

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


class Unusable(Exception):
    """What was asked for cannot be done; the message is one clear line."""


def load(target: str) -> Callable:
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
            raise Unusable(f"{place} has no {name!r}{_near(part, dir(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise Unusable(f"{target} is {type(found).__name__}; it needs to be callable")
    return found


def _module(place: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    is_file = place.endswith(".py") or os.sep in place
    if is_file and not Path(place).is_file():
        raise Unusable(f"there is no file {place}")
    try:
        return _from_file(Path(place)) if is_file else importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = error.name or place
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


def _from_file(path: Path) -> ModuleType:
    """The module that a file is; sys.modules holds it, as if it had been imported."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = path.stem if path.stem not in sys.modules else f"examined_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _near(word: str, there: list[str]) -> str:
    near = difflib.get_close_matches(word, there, 1)
    return f"; did you mean {near[0]}?" if near else ""
