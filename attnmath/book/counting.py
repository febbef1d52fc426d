"""Arrays that count: what is multiplied and exponentiated, what goes to slow memory and comes from it.

A program is given its arrays in slow memory, loads rows of them, x[I], computes, and stores rows,
x[I] = y. With plain arrays it computes; with these it computes and counts.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnmath._words.arrays import Array, room_like

STATISTIC = 4  # bytes of a number that is kept for each row, and of one that is added to


@dataclass
class Counter:
    """What a program does: multiply-adds of matrix products, exponentials, bytes read and written.

    largest: for each array in slow memory the bytes of the largest part of it that was loaded;
    sums: the bytes of the sums that stay in fast memory while a loop runs.
    """

    itemsize: int = 2
    products: int = 0
    exponentials: int = 0
    read: int = 0
    written: int = 0
    sums: int = 0
    largest: dict[int, int] = field(default_factory=dict)

    def given(self, *arrays: np.ndarray) -> list["Slow"]:
        """These arrays in slow memory, in the short format."""
        return [Slow(x, self, self.itemsize) for x in arrays]

    def kept(self, *arrays: np.ndarray) -> list["Slow"]:
        """Statistics of rows in slow memory, in float32."""
        return [Slow(x, self, STATISTIC) for x in arrays]

    @property
    def bytes(self) -> int:
        return self.read + self.written

    def working_set(self, tiles: int, tile: tuple[int, int]) -> int:
        """Bytes in fast memory: a part of each array, the sums, and so many tiles of scores."""
        return sum(self.largest.values()) + self.sums + STATISTIC * tiles * tile[0] * tile[1]


class Slow:
    """An array in slow memory: its rows are loaded and stored."""

    def __init__(self, x: np.ndarray, counter: Counter, itemsize: int) -> None:
        self.x, self.counter, self.itemsize, self.shape = x, counter, itemsize, x.shape
        self.number = len(counter.largest)
        counter.largest[self.number] = 0

    def __getitem__(self, I: slice) -> "Fast":
        found = self.x[I].copy()
        size = self.itemsize * found.size
        self.counter.read += size
        self.counter.largest[self.number] = max(size, self.counter.largest[self.number])
        return fast(found, self.counter)

    def __setitem__(self, I: slice, x: np.ndarray) -> None:
        self.counter.written += self.itemsize * x.size
        self.x[I] = x

    def result(self, rows: int, width: int, is_statistic: bool) -> "Slow":
        room = np.empty((rows, width))
        return Slow(room, self.counter, STATISTIC if is_statistic else self.itemsize)


class Fast(np.ndarray):
    """An array in fast memory, whose products and exponentials are counted."""

    counter: Counter

    def __array_finalize__(self, made_from: Any) -> None:
        self.counter = getattr(made_from, "counter", None)  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: Any, method: str, *x: Any, out: Any = None, **options: Any) -> Any:
        counter = next(a.counter for a in x if isinstance(a, Fast))
        if out is not None:
            options["out"] = plain(out)
        found = getattr(ufunc, method)(*plain(x), **options)
        if ufunc is np.matmul:
            counter.products += found.size * x[0].shape[-1]
        if ufunc is np.exp:
            counter.exponentials += found.size
        return fast(found, counter)

    def __array_function__(self, function: Any, types: Any, x: Any, options: Any) -> Any:
        found = super().__array_function__(function, types, x, options)
        return fast(found, self.counter) if isinstance(found, np.ndarray) else found


def plain(arrays: tuple) -> tuple:
    """The same numbers, which nobody counts."""
    return tuple(a.view(np.ndarray) if isinstance(a, Fast) else a for a in arrays)


def fast(x: np.ndarray, counter: Counter) -> Fast:
    """x in fast memory."""
    found = np.asarray(x).view(Fast)
    found.counter = counter
    return found


# ---- what a program asks for, whatever its arrays are ----------------------------------------------


def result(like: Array, rows: int, width: int, *, is_statistic: bool = False) -> Array:
    """Room for a result (rows, width) in slow memory."""
    if isinstance(like, Slow):
        return like.result(rows, width, is_statistic)
    return room_like(like, (rows, width))


def sums(like: Array, *widths: int) -> list[Array]:
    """Sums that are 0 so far, in fast memory, with as many rows as `like`, and so wide."""
    made = []
    for width in widths:
        x = room_like(like, (like.shape[0], width))
        x[...] = 0
        made.append(x)
    if isinstance(like, Fast):
        counter = like.counter
        counter.sums = max(counter.sums, STATISTIC * sum(x.size for x in made))
        return [fast(x, counter) for x in made]
    return made
