"""Parts of the matrix of scores: strips, which have all keys of some queries, and their tiles."""

from math import prod

import torch


class Tile:
    """Some rows of the queries against some keys: arrays (h, rows, keys).

    The arrays lie in the scratch of the whole call; the next tile writes over them,
    but for those that are kept until the strip is done.
    """

    def __init__(self, heads, rows, keys, arrays, R=None, spare=None, two=None):
        self.heads, self.rows, self.keys = heads, rows, keys
        self.shape = heads.count, rows.stop - rows.start, keys.stop - keys.start
        self.arrays, self.R, self.spare = arrays, R, spare
        if two is not None:  # arrays one above the other: (h, 2 rows, keys)
            self.two, (self.upper, self.lower) = two, two.chunk(2, -2)

    def part(self, B):
        """What B (..., n, m) says about the tile; its axes of size 1 stay."""
        B = self.heads.own(B)
        rows = self.rows if B.shape[-2] > 1 else slice(None)
        return B[..., rows, self.keys if B.shape[-1] > 1 else slice(None)]

    def as_scores(self, x):
        """An array of the tile with the leading axes of the heads."""
        return x.view(*self.heads.shape, *self.shape[1:])

    def scores(self, q, k, B):
        """q k + B, and -inf above the diagonal if the head is causal; the second array is used."""
        A, room = self.arrays[:2]
        torch.bmm(q, k, out=A)
        if B is not None:
            self.as_scores(A).add_(bias(self.part(B), room))
        if self.heads.work.how.causal and self.keys.stop > self.rows.start:
            last = A[..., max(self.rows.start - self.keys.start, 0) :]  # before, all keys are earlier ones
            start = max(self.keys.start - self.rows.start, 0)
            last += self.heads.work.corner[: last.shape[1], start : start + last.shape[2]]
        return A

    def product(self, out, left, right, B=None):
        """left right + B, where any of None is 0; None if all are."""
        if left is None and B is None:
            return None
        torch.bmm(left, right, out=out) if left is not None else out.zero_()
        if B is not None:
            self.as_scores(out).add_(self.part(B))
        return out

    def drop(self, x):
        """x times the factors of dropout, in one array for all."""
        return x if x is None or self.R is None else torch.mul(x, self.R, out=self.spare)

    def drop_(self, x):
        """The same in the place of x."""
        return x if x is None or self.R is None else x.mul_(self.R)

    def give(self, total, dA):
        """Adds dA to the tile's part of the gradient of B."""
        if total is not None and dA is not None:
            part = self.part(total)
            part += self.as_scores(dA).sum_to_size(part.shape)


class Strip(Tile):
    """Rows of the queries against all the keys that they may see."""

    def __init__(self, heads, block, rows, keys):
        self.work = work = heads.work
        shape = heads.count, rows.stop - rows.start, keys.stop
        size, R, spare = prod(shape), None, None
        if work.draws:
            R = work.factors[:size].view(shape)
            work.draws.fill(R, heads, block)
            spare = None if work.tiled else work.spare[:size].view(shape)
        arrays = [] if work.tiled else [x[:size].view(shape) for x in work.scratch]
        super().__init__(heads, rows, keys, arrays, R, spare)

    def weights(self, q, k, B):
        """The softmax of the scores q k; a row that may attend to nothing has weights 0."""
        A = self.scores(q, k, B)
        P = torch.softmax(A, -1, out=self.arrays[1])
        if B is not None:
            empty = A.amax(-1, keepdim=True) == -torch.inf
            if empty.any():
                P.masked_fill_(empty, 0)
        return P

    def tiles(self):
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
            yield Tile(self.heads, self.rows, keys, arrays, R, spare, two)


def bias(B, room):
    """0 where a boolean B is true, -inf where it is false; other B are a bias already."""
    if B.dtype != torch.bool:
        return B
    numbers = room.view(-1)[: B.numel()].view(B.shape).copy_(B)
    return numbers.reciprocal_().neg_().add_(1)  # 1 - 1/1 or 1 - 1/0
