"""What a call is cut into: groups of heads, and strips of their queries' rows."""

from itertools import product
from math import ceil, prod

import torch

from attnmath._torch._draws import Draws
from attnmath._torch._scores import Strip

ELEMENTS = {"cpu": 2**20}  # numbers in one strip: its arrays stay in the cache
KEPT = {"cpu": 2**21}  # the same, of arrays that are written and read tile by tile
TILE = {"cpu": 2**19}  # numbers in one tile: its arrays stay in a nearer cache
ELSEWHERE = 2**24  # on other devices: enough work for one launch
ROWS = 32  # no fewer: a product of few rows is slow
TALL = 64  # the same, of arrays that are kept tile by tile
ENOUGH = 1024  # and no more: a product of these is as fast as one of many
STAIRS = 128  # fewer, under a causal mask: finer steps save few keys


def leading(*tensors):
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

    def __init__(self, how, Q, K, V, B, *others, arrays, share=1, tiled=False, kept=False):
        self.how, self.n, self.m = how, Q.shape[-2], K.shape[-2]
        self.tiled, self.kept = tiled, kept
        self.lead = leading(Q, K, V, B, *others)
        self.dtype = torch.promote_types(Q.dtype, torch.float32)
        self.device = Q.device
        strip, tile, whole = (x.get(Q.device.type, ELSEWHERE) for x in (ELEMENTS, TILE, KEPT))
        fewest, numbers = ROWS, strip // (1 if how.dropout else share)
        if tiled and not how.dropout:
            fewest, numbers = (TALL, whole) if kept else (ENOUGH, 0)
        most = min(ENOUGH, max(STAIRS, self.n // 8)) if how.causal else ENOUGH
        self.rows = max(1, min(self.n, most, max(fewest, numbers // max(self.m, 1))))
        self.columns = max(1, min(self.m, tile // self.rows)) if tiled else self.m
        one = max(self.rows * self.columns, 1)
        self.steps = together(self.lead, (tile if tiled else numbers) // one)
        self.draws = None
        count = prod(self.steps) * self.rows
        size, least = count * self.m, count * self.columns  # of a strip, of a tile
        first = size if kept or not tiled else least
        self.scratch = [self.empty(least if tiled and i else first) for i in range(arrays)]
        self.two = self.empty(2 * size) if kept else None
        if how.dropout:
            self.draws = Draws(how, leading(Q, K), ceil(self.n / self.rows), Q.device)
            self.factors, self.spare = self.empty(size), self.empty(least)
        if how.causal:
            key = torch.arange(self.rows, device=Q.device)
            zeros = Q.new_zeros(self.rows, self.rows, dtype=self.dtype)
            self.corner = zeros.masked_fill_(key > key[:, None], -torch.inf)

    def empty(self, size):
        return torch.empty(size, dtype=self.dtype, device=self.device)

    def result(self, like, needed=True):
        """Zeros of the shape of a tensor, to be added to; None where not needed."""
        return torch.zeros(like.shape, dtype=self.dtype, device=self.device) if needed else None

    def output(self, V):
        """Zeros of the shape of the output."""
        return V.new_zeros(*self.lead, self.n, V.shape[-1], dtype=self.dtype)

    def heads(self):
        """Group after group: its sums are added to the results when it is done."""
        starts = [range(0, axis, step) for axis, step in zip(self.lead, self.steps)]
        for start in product(*starts):
            stops = map(min, zip(map(sum, zip(start, self.steps)), self.lead))
            heads = Heads(self, tuple(map(slice, start, stops)))
            yield heads
            heads.close()


def together(lead, count):
    """How many neighbours of each leading axis make a group: the last axes first."""
    steps = []
    for axis in reversed(lead):
        step = max(1, min(axis, count))
        steps.insert(0, step)
        count = count // step if step == axis else 1
    return steps


class Heads:
    """Some neighbouring heads, as one array (h, rows, columns) for each tensor."""

    def __init__(self, work, box):
        self.work, self.box, self.sums = work, box, []
        self.shape = tuple(s.stop - s.start for s in box)
        self.count = prod(self.shape)

    def own(self, x):
        """Their part of x (..., r, s), a view; an axis of size 1 is everyone's."""
        x = x[(None,) * (len(self.box) + 2 - x.ndim)]
        return x[tuple(s if size > 1 else slice(None) for s, size in zip(self.box, x.shape))]

    def take(self, *tensors):
        """Their parts (h, r, s) of tensors (..., r, s), for reading; None for None."""
        return [None if x is None else self.read(x) for x in tensors]

    def read(self, x):
        x = self.own(x).to(self.work.dtype)
        return x.expand(*self.shape, *x.shape[-2:]).reshape(self.count, *x.shape[-2:]).contiguous()

    def add(self, *totals):
        """Arrays (h, r, s) to add to, for totals (..., r, s); None for None."""
        return [None if x is None else self.sum(x) for x in totals]

    def sum(self, total):
        part = self.own(total)
        if part.shape[:-2] == self.shape:
            return part.view(self.count, *part.shape[-2:])
        return self.later(part, total.new_zeros(self.count, *part.shape[-2:]))

    def across(self, *totals):
        """The same as (h, s, r): a sum over many strips is faster on rows this long."""
        parts = [None if x is None else self.own(x) for x in totals]
        zeros = (x if x is None else x.new_zeros(self.count, x.shape[-1], x.shape[-2]) for x in parts)
        return [x if x is None else self.later(part, x.mT).mT for part, x in zip(parts, zeros)]

    def later(self, part, own):
        """A sum of their own, to be added to their part of the total at the end."""
        self.sums.append((part, own))
        return own

    def close(self):
        for part, own in self.sums:
            part += own.unflatten(0, self.shape).sum_to_size(part.shape)

    def strips(self):
        n, m, step = self.work.n, self.work.m, self.work.rows
        for block, i in enumerate(range(0, n if m else 0, step)):
            stop = min(i + step, n)
            keys = min(stop, m) if self.work.how.causal else m
            yield Strip(self, block, slice(i, stop), slice(0, keys))
