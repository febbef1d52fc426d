"""What a call is cut into: groups of heads, strips of their queries' rows, and tiles of the strips."""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from attnmath.torch.how import How
from attnmath.torch.philox import Draws
from attnmath.torch.scores import Strip

STRIP_NUMBERS = {"cpu": 2**20}  # numbers in one strip: its arrays stay in the cache
KEPT_NUMBERS = {"cpu": 2**21}  # the same, of arrays that are written and read tile by tile
TILE_NUMBERS = {"cpu": 2**19}  # numbers in one tile: its arrays stay in a nearer cache
ELSEWHERE = 2**24  # on other devices: enough work for one launch
FEWEST_ROWS = 32  # no fewer: a product of few rows is slow
FEWEST_KEPT_ROWS = 64  # the same, of arrays that are kept tile by tile
MOST_ROWS = 1024  # and no more: a product of these is as fast as one of many
MOST_CAUSAL_ROWS = 128  # fewer, under a causal mask: finer steps save few keys


def broadcast_leading(*tensors: Tensor | None) -> tuple:
    """The leading axes of the tensors that are not None, broadcast."""
    shapes = [x.shape[:-2] for x in tensors if x is not None]
    axes = max(map(len, shapes))
    columns = zip(*((1,) * (axes - len(shape)) + tuple(shape) for shape in shapes))
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in columns)


def edges(how: How, n: int, m: int) -> tuple[int | None, int | None]:
    """Row i sees the keys from i + first to i + last; None where nothing is hidden on that side.

    A causal head counts from the upper left, a window from where a query stands, the last
    one at the last key.
    """
    first = None if how.left is None else m - n - how.left
    last = None if how.right is None else m - n + how.right
    return first, (0 if last is None else min(0, last)) if how.causal else last


class Work:
    """All strips of one call: group after group of heads, strip after strip of rows.

    Who needs many arrays at a time may ask for strips of a share of the numbers, and who
    goes tile by tile gets taller ones. If the weights are kept, the first array and two
    more, one above the other, have room for all tiles of a strip, and so has that of the
    factors of dropout. With bends, there is room for the derivative of the cap. Row i sees
    the keys from i + first to i + last; None: from the beginning, to the end. Where both
    are there, strips have few keys.
    """

    def __init__(
        self, how: How, Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, *others: Tensor | None,
        arrays: int, share: int = 1, tiled: bool = False, kept: bool = False, bends: bool = False,
    ) -> None:
        self.how, self.n, self.m = how, Q.shape[-2], K.shape[-2]
        self.first, self.last = edges(how, self.n, self.m)
        self.tiled, self.kept = tiled, kept
        self.lead = broadcast_leading(Q, K, V, B, *others)
        self.dtype = torch.promote_types(Q.dtype, torch.float32)
        self.device = Q.device
        strip, tile, whole = (x.get(Q.device.type, ELSEWHERE) for x in (STRIP_NUMBERS, TILE_NUMBERS, KEPT_NUMBERS))
        fewest, numbers = FEWEST_ROWS, strip // share
        if tiled:
            fewest, numbers = (FEWEST_KEPT_ROWS, whole) if kept else (MOST_ROWS, 0)
        most, keys = min(MOST_ROWS, self.n), self.m
        if self.last is not None:
            most = min(most, max(MOST_CAUSAL_ROWS, self.n // 8))
        if self.last is not None and self.first is not None:
            seen = max(self.last - self.first + 1, 1)  # by one row
            most = min(most, max(MOST_CAUSAL_ROWS, seen // 8))
            keys = min(keys, most + seen)
        self.rows = max(1, min(most, max(fewest, numbers // max(keys, 1))))
        self.columns = max(1, min(keys, tile // self.rows)) if tiled else keys
        one = max(self.rows * self.columns, 1)
        self.steps = group_steps(self.lead, (tile if tiled else numbers) // one)
        self.draws = None
        count = prod(self.steps) * self.rows
        size, least = count * keys, count * self.columns  # of a strip, of a tile
        first = size if kept or not tiled else least
        self.scratch = [self.empty(least if tiled and i else first) for i in range(arrays)]
        self.two: Any = self.empty(2 * size) if kept else None
        if how.dropout:
            self.draws = Draws(how, broadcast_leading(Q, K), self.n, self.m, Q.device)
            self.factors, self.spare = self.empty(first), self.empty(least)
        self.bends = self.empty(least) if bends and how.softcap is not None else None
        self.may_hide_all = self.first is not None or self.last not in (None, 0)
        self.hide_and_place(Q)

    def hide_and_place(self, Q: Tensor) -> None:
        """What hides keys in a square of as many rows as a strip has, and where keys and queries stand."""
        if self.last is not None or self.first is not None:
            key = torch.arange(self.rows, device=Q.device)
            zeros = Q.new_zeros(self.rows, self.rows, dtype=self.dtype)
            self.later = zeros.masked_fill_(key > key[:, None], -torch.inf)
            self.earlier = self.later.mT
        if self.how.slopes:
            self.distances = self.empty(self.rows * self.columns)
            self.places = torch.arange(self.m, dtype=self.dtype, device=Q.device)
            self.own_places = torch.arange(self.n, dtype=self.dtype, device=Q.device) + (self.m - self.n)

    def empty(self, size: int) -> Tensor:
        return torch.empty(size, dtype=self.dtype, device=self.device)

    def result(self, like: Tensor | None, needed: bool = True) -> Any:
        """Zeros of the shape of a tensor, to be added to; None for None, and where not needed."""
        if like is None or not needed:
            return None
        return torch.zeros(like.shape, dtype=self.dtype, device=self.device)

    def output(self, V: Tensor) -> Tensor:
        """Zeros of the shape of the output."""
        return V.new_zeros(*self.lead, self.n, V.shape[-1], dtype=self.dtype)

    def heads(self) -> "Iterator[HeadGroup]":
        """Group after group: its sums are added to the results when it is done."""
        starts = [range(0, axis, step) for axis, step in zip(self.lead, self.steps)]
        for start in product(*starts):
            stops = map(min, zip(map(sum, zip(start, self.steps)), self.lead))
            heads = HeadGroup(self, tuple(map(slice, start, stops)))
            yield heads
            heads.close()


def group_steps(lead: tuple, count: int) -> list[int]:
    """How many neighbours of each leading axis make a group: the last axes first."""
    steps: list[int] = []
    for axis in reversed(lead):
        step = max(1, min(axis, count))
        steps.insert(0, step)
        count = count // step if step == axis else 1
    return steps


class HeadGroup:
    """Some neighbouring heads, as one array (h, rows, columns) for each tensor."""

    def __init__(self, work: Work, box: tuple[slice, ...]) -> None:
        self.work, self.box = work, box
        self.sums: list[tuple[Tensor, Tensor]] = []
        self.shape = tuple(s.stop - s.start for s in box)
        self.count = prod(self.shape)

    def own(self, x: Tensor) -> Tensor:
        """Their part of x (..., r, s), a view; an axis of size 1 is everyone's."""
        x = x[(None,) * (len(self.box) + 2 - x.ndim)]
        return x[tuple(s if size > 1 else slice(None) for s, size in zip(self.box, x.shape))]

    def take(self, *tensors: Tensor | None) -> list:
        """Their parts (h, r, s) of tensors (..., r, s), for reading; None for None."""
        return [None if x is None else self.read(x) for x in tensors]

    def read(self, x: Tensor) -> Tensor:
        x = self.own(x).to(self.work.dtype)
        return x.expand(*self.shape, *x.shape[-2:]).reshape(self.count, *x.shape[-2:]).contiguous()

    def add(self, *totals: Tensor | None) -> list:
        """Arrays (h, r, s) to add to, for totals (..., r, s); None for None."""
        return [None if x is None else self.sum(x) for x in totals]

    def sum(self, total: Tensor) -> Tensor:
        part = self.own(total)
        if part.shape[:-2] == self.shape:
            return part.view(self.count, *part.shape[-2:])
        return self.later(part, total.new_zeros(self.count, *part.shape[-2:]))

    def across(self, *totals: Tensor | None) -> list:
        """The same as (h, s, r): a sum over many strips is faster on rows this long."""
        parts = [None if x is None else self.own(x) for x in totals]
        return [
            None if x is None else self.later(x, x.new_zeros(self.count, x.shape[-1], x.shape[-2]).mT).mT
            for x in parts
        ]

    def later(self, part: Tensor, own: Tensor) -> Tensor:
        """A sum of their own, to be added to their part of the total at the end."""
        self.sums.append((part, own))
        return own

    def close(self) -> None:
        for part, own in self.sums:
            part += own.unflatten(0, self.shape).sum_to_size(part.shape)

    def strips(self) -> "Iterator[Strip]":
        n, m, step = self.work.n, self.work.m, self.work.rows
        for i in range(0, n if m else 0, step):
            stop = min(i + step, n)
            first, last = self.work.first, self.work.last
            start = 0 if first is None else max(i + first, 0)
            end = m if last is None else min(stop + last, m)
            if start < end:
                yield Strip(self, slice(i, stop), slice(start, end))
