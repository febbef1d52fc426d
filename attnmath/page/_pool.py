"""Work on the displays of a book, side by side.

On Linux the processes are forked from this one, which has read the book and imported torch;
elsewhere each does so for itself.
"""

import gc
import importlib
import os
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from attnmath.page._book import Book
from attnmath.page._chapter import Display
from attnmath.page._nodes import PageError

FORKS = sys.platform == "linux"  # elsewhere a system's libraries do not survive it


def each_display(work: Callable, root: Path, displays: list[Display]) -> list:
    """`work(book, display)` for each display, in their order."""
    tasks = [(work, [display.label]) for display in displays]
    return [result for (result,) in _run(Book.at(root) if FORKS else None, root, tasks)]


def each_cast(work: Callable, book: Book, root: Path, displays: list[Display]) -> list:
    """The same, with all displays of a cast in one process: its gradients are found once."""
    groups: dict[str, list[Display]] = {}
    for display in displays:
        groups.setdefault(_cast_name(book, display), []).append(display)
    tasks = [(work, [d.label for d in group]) for group in groups.values()]
    tasks.sort(key=lambda task: -len(task[1]))  # what takes longest comes first
    if FORKS:
        importlib.import_module("torch")
    found = {}
    for (_, labels), results in zip(tasks, _run(book, root, tasks)):
        found.update(zip(labels, results))
    return [found[display.label] for display in displays]


def _cast_name(book: Book, display: Display) -> str:
    try:
        return book.cast_of(display).name
    except PageError:
        return ""


def _run(book: Book | None, root: Path, tasks: list[tuple]) -> list:
    context = get_context("fork" if FORKS else "spawn")
    settings = dict(mp_context=context, initializer=_open, initargs=(book if FORKS else None, root))
    with ProcessPoolExecutor(os.cpu_count(), **settings) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 sees OpenBLAS's sleeping threads
        return list(pool.map(_do, tasks))


_BOOK: Book | None = None


def _open(book: Book | None, root: Path) -> None:
    global _BOOK
    _BOOK = book or Book.at(root)
    gc.set_threshold(100_000)  # there is little garbage, and many nodes and values to look through


def _do(task: tuple) -> list:
    work, labels = task
    return [work(_BOOK, _BOOK.displays.get(label) or _BOOK.relations[label]) for label in labels]
