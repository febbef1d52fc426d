"""What a call is cut into: groups of heads, strips of their queries' rows, and tiles of the strips."""

from collections.abc import Iterator
from itertools import product
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor

from attnmath.torch.how import Draws, How

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


class Work:
    """All strips of one call: group after group of heads, strip after strip of rows.

    Rows and draws depend on how, and on the shapes of Q and K, so that with dropout every
    pass over the same head has the same strips and the same factors. Without it, who
    needs many arrays at a time may ask for strips of a share of the numbers, and who goes
    tile by tile gets taller ones. If the weights are kept, the first array and two more,
    one above the other, have room for all tiles of a strip.
    """

    def __init__(
        self, how: How, Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, *others: Tensor | None,
        arrays: int, share: int = 1, tiled: bool = False, kept: bool = False,
    ) -> None:
        self.how, self.n, self.m = how, Q.shape[-2], K.shape[-2]
        self.tiled, self.kept = tiled, kept
        self.lead = broadcast_leading(Q, K, V, B, *others)
        self.dtype = torch.promote_types(Q.dtype, torch.float32)
        self.device = Q.device
        strip, tile, whole = (x.get(Q.device.type, ELSEWHERE) for x in (STRIP_NUMBERS, TILE_NUMBERS, KEPT_NUMBERS))
        fewest, numbers = FEWEST_ROWS, strip // (1 if how.dropout else share)
        if tiled and not how.dropout:
            fewest, numbers = (FEWEST_KEPT_ROWS, whole) if kept else (MOST_ROWS, 0)
        most = min(MOST_ROWS, max(MOST_CAUSAL_ROWS, self.n // 8)) if how.causal else MOST_ROWS
        self.rows = max(1, min(self.n, most, max(fewest, numbers // max(self.m, 1))))
        self.columns = max(1, min(self.m, tile // self.rows)) if tiled else self.m
        one = max(self.rows * self.columns, 1)
        self.steps = group_steps(self.lead, (tile if tiled else numbers) // one)
        self.draws = None
        count = prod(self.steps) * self.rows
        size, least = count * self.m, count * self.columns  # of a strip, of a tile
        first = size if kept or not tiled else least
        self.scratch = [self.empty(least if tiled and i else first) for i in range(arrays)]
        self.two: Any = self.empty(2 * size) if kept else None
        if how.dropout:
            self.draws = Draws(how, broadcast_leading(Q, K), ceil(self.n / self.rows), Q.device)
            self.factors, self.spare = self.empty(size), self.empty(least)
        if how.causal:
            key = torch.arange(self.rows, device=Q.device)
            zeros = Q.new_zeros(self.rows, self.rows, dtype=self.dtype)
            self.corner = zeros.masked_fill_(key > key[:, None], -torch.inf)

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
        for block, i in enumerate(range(0, n if m else 0, step)):
            stop = min(i + step, n)
            keys = min(stop, m) if self.work.how.causal else m
            yield Strip(self, block, slice(i, stop), slice(0, keys))


class ScoreTile:
    """Some rows of the queries against some keys: arrays (h, rows, keys).

    The arrays lie in the scratch of the whole call; the next tile writes over them,
    but for those that are kept until the strip is done.
    """

    def __init__(
        self, heads: HeadGroup, rows: slice, keys: slice, arrays: list[Tensor],
        R: Tensor | None = None, spare: Tensor | None = None, two: Tensor | None = None,
    ) -> None:
        self.heads, self.rows, self.keys = heads, rows, keys
        self.shape = heads.count, rows.stop - rows.start, keys.stop - keys.start
        self.arrays, self.R, self.spare = arrays, R, spare
        if two is not None:  # arrays one above the other: (h, 2 rows, keys)
            self.two, (self.upper, self.lower) = two, two.chunk(2, -2)

    def part(self, B: Tensor) -> Tensor:
        """What B (..., n, m) says about the tile; its axes of size 1 stay."""
        B = self.heads.own(B)
        rows = self.rows if B.shape[-2] > 1 else slice(None)
        return B[..., rows, self.keys if B.shape[-1] > 1 else slice(None)]

    def as_scores(self, x: Tensor) -> Tensor:
        """An array of the tile with the leading axes of the heads."""
        return x.view(*self.heads.shape, *self.shape[1:])

    def scores(self, q: Tensor, k: Tensor, B: Tensor | None) -> Tensor:
        """q k + B, and -inf above the diagonal if the head is causal; the second array is used."""
        A, room = self.arrays[:2]
        torch.bmm(q, k, out=A)
        if B is not None:
            self.as_scores(A).add_(mask_as_numbers(self.part(B), room))
        if self.heads.work.how.causal and self.keys.stop > self.rows.start:
            last = A[..., max(self.rows.start - self.keys.start, 0) :]  # before, all keys are earlier ones
            start = max(self.keys.start - self.rows.start, 0)
            last += self.heads.work.corner[: last.shape[1], start : start + last.shape[2]]
        return A

    def product(
        self, out: Tensor, left: Tensor | None, right: Tensor, B: Tensor | None = None
    ) -> Tensor | None:
        """left right + B, where any of None is 0; None if all are."""
        if left is None and B is None:
            return None
        torch.bmm(left, right, out=out) if left is not None else out.zero_()
        if B is not None:
            self.as_scores(out).add_(self.part(B))
        return out

    def drop(self, x: Tensor | None) -> Any:
        """x times the factors of dropout, in one array for all."""
        return x if x is None or self.R is None else torch.mul(x, self.R, out=self.spare)

    def drop_(self, x: Tensor | None) -> Any:
        """The same in the place of x."""
        return x if x is None or self.R is None else x.mul_(self.R)

    def give(self, total: Tensor | None, dA: Tensor | None) -> None:
        """Adds dA to the tile's part of the gradient of B."""
        if total is not None and dA is not None:
            part = self.part(total)
            part += self.as_scores(dA).sum_to_size(part.shape)


class Strip(ScoreTile):
    """Rows of the queries against all the keys that they may see."""

    def __init__(self, heads: HeadGroup, block: int, rows: slice, keys: slice) -> None:
        self.work = work = heads.work
        shape = heads.count, rows.stop - rows.start, keys.stop
        size, R, spare = prod(shape), None, None
        if work.draws:
            R = work.factors[:size].view(shape)
            work.draws.fill(R, heads, block)
            spare = None if work.tiled else work.spare[:size].view(shape)
        arrays = [] if work.tiled else [x[:size].view(shape) for x in work.scratch]
        super().__init__(heads, rows, keys, arrays, R, spare)

    def softmax(self, q: Tensor, k: Tensor, B: Tensor | None) -> Tensor:
        """The softmax of the scores q k; a row that may attend to nothing has weights 0."""
        A = self.scores(q, k, B)
        P = torch.softmax(A, -1, out=self.arrays[1])
        if B is not None:
            empty = A.amax(-1, keepdim=True) == -torch.inf
            if empty.any():
                P.masked_fill_(empty, 0)
        return P

    def tiles(self) -> Iterator[ScoreTile]:
        """The strip, some keys after the other; what is kept has a place of its own."""
        work, (h, r, m) = self.work, self.shape
        for start in range(0, m, work.columns):
            keys = slice(start, min(start + work.columns, m))
            shape = h, r, keys.stop - start
            size, first, two = prod(shape), 0, None
            if work.kept:
                first = h * r * start
                two = work.two[2 * first : 2 * (first + size)].view(h, 2 * r, shape[-1])
            A, *others = work.scratch
            arrays = [A[first : first + size].view(shape), *(x[:size].view(shape) for x in others)]
            R = None if self.R is None else self.R[..., keys]
            spare = None if R is None else work.spare[:size].view(shape)
            yield ScoreTile(self.heads, self.rows, keys, arrays, R, spare, two)


def mask_as_numbers(B: Tensor, room: Tensor) -> Tensor:
    """0 where a boolean B is true, -inf where it is false; other B are a bias already."""
    if B.dtype != torch.bool:
        return B
    numbers = room.view(-1)[: B.numel()].view(B.shape).copy_(B)
    return numbers.reciprocal_().neg_().add_(1)  # 1 - 1/1 or 1 - 1/0
