"""One strip of the matrix of scores: some rows of the queries, the keys they may see."""

from math import prod

import torch


class Strip:
    """Rows of the queries against the keys that they may see: arrays (h, rows, keys).

    Its arrays lie in the scratch of the whole call; the next strip writes over them.
    """

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
        """The softmax of the scores q k; a row that may attend to nothing has weights 0."""
        A, P = self.arrays[:2]
        torch.bmm(q, k, out=A)
        if B is not None:
            self.as_scores(A).add_(bias(self.part(B), P))
        if self.heads.work.how.causal:
            last = A[..., self.rows.start :]  # before them, every key is an earlier one
            last += self.heads.work.corner[: last.shape[1], : last.shape[2]]
        torch.softmax(A, -1, out=P)
        if B is not None:
            empty = A.amax(-1, keepdim=True) == -torch.inf
            if empty.any():
                P.masked_fill_(empty, 0)
        return P

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
        return x if self.R is None else torch.mul(x, self.R, out=self.spare)

    def drop_(self, x):
        """The same in the place of x."""
        return x if x is None or self.R is None else x.mul_(self.R)

    def give(self, total, dA):
        """Adds dA to the strip's part of the gradient of B."""
        if total is not None and dA is not None:
            part = self.part(total)
            part += self.as_scores(dA).sum_to_size(part.shape)


def bias(B, room):
    """0 where a boolean B is true, -inf where it is false; other B are a bias already."""
    if B.dtype != torch.bool:
        return B
    numbers = room.view(-1)[: B.numel()].view(B.shape).copy_(B)
    return numbers.reciprocal_().neg_().add_(1)  # 1 - 1/1 or 1 - 1/0
