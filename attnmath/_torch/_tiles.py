"""Where a strip stands: some heads, some rows of their queries, the keys they may see."""

from itertools import product
from math import prod

import torch

from attnmath._torch._draws import Draws

ELEMENTS = {"cpu": 2**19}  # numbers in one strip: its arrays stay in the cache
ELSEWHERE = 2**24  # on other devices: enough work for one launch
ROWS = 32  # no fewer: a product of few rows is slow


class Work:
    """All strips of one call: group after group of heads, strip after strip of rows.

    Rows and draws depend on how, and on the shapes of Q and K, so that every pass over
    the same head has the same strips and the same factors of dropout.
    """

    def __init__(self, how, Q, K, V, B, *others, arrays):
        self.how, self.n, self.m = how, Q.shape[-2], K.shape[-2]
        self.lead = torch.broadcast_shapes(
            *(x.shape[:-2] for x in (Q, K, V, B, *others) if x is not None)
        )
        self.dtype = torch.promote_types(Q.dtype, torch.float32)
        self.device = Q.device
        self.elements = ELEMENTS.get(Q.device.type, ELSEWHERE)
        rows = min(self.n, max(ROWS, self.elements // max(self.m, 1)))
        self.rows = min(rows, max(ROWS, self.n // 8)) if how.causal else rows
        self.steps = together(self.lead, self.elements // max(self.rows * self.m, 1))
        self.draws = Draws(how, Q, K, -(-self.n // max(self.rows, 1))) if how.dropout else None
        size = prod(self.steps) * self.rows * self.m
        arrays = arrays + (2 if how.dropout else 0)
        self.scratch = [Q.new_empty(size, dtype=self.dtype) for _ in range(arrays)]

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
        self.sums.append((total.new_zeros(self.count, *part.shape[-2:]), part))
        return self.sums[-1][0]

    def close(self):
        for own, part in self.sums:
            part += own.view(*self.shape, *own.shape[-2:]).sum_to_size(part.shape)

    def strips(self):
        n, m, step = self.work.n, self.work.m, self.work.rows
        for block, i in enumerate(range(0, n if m else 0, max(step, 1))):
            stop = min(i + step, n)
            yield Strip(self, block, slice(i, stop), slice(min(stop, m) if self.work.how.causal else m))


class Strip:
    """Rows of the queries against the keys that they may see: arrays (h, rows, keys)."""

    def __init__(self, heads, block, rows, keys):
        self.heads, self.rows, self.keys = heads, rows, keys
        self.shape = heads.count, rows.stop - rows.start, keys.stop
        self.arrays = [x[: prod(self.shape)].view(self.shape) for x in heads.work.scratch]
        self.R = None
        if heads.work.draws:
            *self.arrays, self.spare, self.R = self.arrays
            heads.work.draws.fill(self.R, heads, block)

    def part(self, B):
        """What B (..., n, m) says about the strip; its axes of size 1 stay."""
        B = self.heads.own(B)
        rows = self.rows if B.shape[-2] > 1 else slice(None)
        return B[..., rows, self.keys if B.shape[-1] > 1 else slice(None)]

    def as_scores(self, x):
        """An array of the strip with the leading axes of the heads."""
        return x.view(*self.heads.shape, *self.shape[1:])

    def weights(self, q, k, B):
        """The softmax of the scores; a row that may attend to nothing has weights 0."""
        A, P = self.arrays[:2]
        torch.bmm(q, k.mT, out=A)
        if B is not None:
            add(self.as_scores(A), self.part(B))
        if self.heads.work.how.causal:
            corner = A[..., self.rows.start :]  # before it, every key is an earlier one
            later = torch.ones(corner.shape[1:], dtype=torch.bool, device=A.device).triu(1)
            corner.masked_fill_(later, -torch.inf)
        torch.softmax(A, -1, out=P)
        if B is not None:
            empty = A.amax(-1, keepdim=True) == -torch.inf
            if empty.any():
                P.masked_fill_(empty, 0)
        return P

    def scores(self, out, left, right, B=None):
        """left right^T + B, where any is None 0; None if all are."""
        if left is None and B is None:
            return None
        torch.bmm(left, right.mT, out=out) if left is not None else out.zero_()
        if B is not None:
            add(self.as_scores(out), self.part(B))
        return out

    def drop(self, x):
        """x times the factors of dropout, entry by entry."""
        return x if x is None or self.R is None else torch.mul(x, self.R, out=self.spare)

    def drop_(self, x):
        return x if x is None or self.R is None else x.mul_(self.R)

    def bias(self, total, dA):
        """Adds dA to the strip's part of the gradient of B."""
        if total is not None and dA is not None:
            part = self.part(total)
            part += self.as_scores(dA).sum_to_size(part.shape)


def add(A, B):
    """A + B in place; where a boolean B is false, -inf."""
    if B.dtype == torch.bool:
        A.masked_fill_(~B, -torch.inf)
    else:
        A += B
