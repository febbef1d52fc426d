"""Work on the displays of a book, side by side; each process reads the book for itself."""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from attnmath.page._book import Book
from attnmath.page._chapter import Display
from attnmath.page._nodes import PageError


def each_display(work: Callable, root: Path, displays: list[Display]) -> list:
    """`work(book, display)` for each display, in their order."""
    tasks = [(work, [display.label]) for display in displays]
    return [result for (result,) in _run(root, tasks)]


def each_cast(work: Callable, book: Book, root: Path, displays: list[Display]) -> list:
    """The same, with all displays of a cast in one process: its gradients are found once."""
    groups: dict[str, list[Display]] = {}
    for display in displays:
        groups.setdefault(_cast_name(book, display), []).append(display)
    tasks = [(work, [d.label for d in group]) for group in groups.values()]
    found = {}
    for (_, labels), results in zip(tasks, _run(root, tasks)):
        found.update(zip(labels, results))
    return [found[display.label] for display in displays]


def _cast_name(book: Book, display: Display) -> str:
    try:
        return book.cast_of(display).name
    except PageError:
        return ""


def _run(root: Path, tasks: list[tuple]) -> list:
    with ProcessPoolExecutor(os.cpu_count(), initializer=_open, initargs=(root,)) as pool:
        return list(pool.map(_do, tasks))


_BOOK: Book | None = None


def _open(root: Path) -> None:
    global _BOOK
    _BOOK = Book.at(root)


def _do(task: tuple) -> list:
    work, labels = task
    return [work(_BOOK, _BOOK.displays[label]) for label in labels]
