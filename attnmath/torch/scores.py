"""A tile of the scores, and a strip of whole rows: what is capped, added, hidden and dropped there."""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor


class ScoreTile:
    """Some rows of the queries against some keys: arrays (h, rows, keys).

    The arrays lie in the scratch of the whole call; the next tile writes over them,
    but for those that are kept until the strip is done. bend is the derivative of the
    cap, where that is asked for.
    """

    def __init__(
        self, heads: Any, rows: slice, keys: slice, arrays: list[Tensor],
        R: Tensor | None = None, spare: Tensor | None = None, two: Tensor | None = None,
    ) -> None:
        self.heads, self.rows, self.keys = heads, rows, keys
        self.shape = heads.count, rows.stop - rows.start, keys.stop - keys.start
        self.arrays, self.R, self.spare = arrays, R, spare
        if two is not None:  # arrays one above the other: (h, 2 rows, keys)
            self.two, (self.upper, self.lower) = two, two.chunk(2, -2)
        bends, size = heads.work.bends, prod(self.shape)
        self.bend = bends[:size].view(self.shape) if bends is not None and size <= bends.numel() else None

    def part(self, B: Tensor) -> Tensor:
        """What B (..., n, m) says about the tile; its axes of size 1 stay."""
        B = self.heads.own(B)
        rows = self.rows if B.shape[-2] > 1 else slice(None)
        return B[..., rows, self.keys if B.shape[-1] > 1 else slice(None)]

    def as_scores(self, x: Tensor) -> Tensor:
        """An array of the tile with the leading axes of the heads."""
        return x.view(*self.heads.shape, *self.shape[1:])

    def scores(self, q: Tensor, k: Tensor, B: Tensor | None, S: Tensor | None = None) -> Tensor:
        """cap(q k) - slope distance + B, and -inf where a key is not seen; the second array is used."""
        A, room = self.arrays[:2]
        how = self.heads.work.how
        torch.bmm(q, k, out=A)
        if how.softcap is not None:
            A.div_(how.softcap).tanh_()
            if self.bend is not None:
                bent(torch.mul(A, A, out=self.bend))
            A.mul_(how.softcap)
        if S is not None and how.slopes:
            A.addcmul_(self.distance(), S[..., :1], value=-1)
        if B is not None:
            self.as_scores(A).add_(mask_as_numbers(self.part(B), room))
        self.hide(A)
        return A

    def hide(self, A: Tensor) -> None:
        """-inf beyond the last key that a row may see, and before the first."""
        work = self.heads.work
        if work.last is not None and self.keys.stop > self.rows.start + work.last:
            edge = self.rows.start + work.last  # of the first row
            last = A[..., max(edge - self.keys.start, 0) :]  # before, each row sees all keys
            start = max(self.keys.start - edge, 0)
            last += work.later[: last.shape[1], start : start + last.shape[2]]
        if work.first is not None and self.keys.start < self.rows.stop - 1 + work.first:
            edge = self.rows.start + work.first
            first = A[..., : self.rows.stop - 1 + work.first - self.keys.start]  # the others each row sees
            start = self.keys.start - edge
            first += work.earlier[: first.shape[1], start : start + first.shape[2]]

    def distance(self) -> Tensor:
        """How far each key is from where the query stands, the last query at the last key."""
        work = self.heads.work
        shape = self.shape[1:]
        out = work.distances[: prod(shape)].view(shape)
        return torch.sub(work.places[self.keys], work.own_places[self.rows, None], out=out).abs_()

    def product(self, out: Tensor, left: Tensor | None, right: Tensor) -> Tensor | None:
        """left right; None if left is None, which is 0."""
        return None if left is None else torch.bmm(left, right, out=out)

    def tangent(
        self, out: Tensor, left: Tensor | None, right: Tensor, B: Tensor | None, S: Tensor | None
    ) -> Tensor | None:
        """The tangent of the scores, where left right is that of q k; any of None is 0; None if all are."""
        A_dot = self.product(out, left, right)
        if A_dot is None and B is None and S is None:
            return None
        if A_dot is None:
            out.zero_()
        elif self.bend is not None:
            out.mul_(self.bend)
        if S is not None and self.heads.work.how.slopes:
            out.addcmul_(self.distance(), S[..., :1], value=-1)
        if B is not None:
            self.as_scores(out).add_(self.part(B))
        return out

    def drop(self, x: Tensor | None) -> Any:
        """x times the factors of dropout, in one array for all."""
        return x if x is None or self.R is None else torch.mul(x, self.R, out=self.spare)

    def drop_(self, x: Tensor | None) -> Any:
        """The same in the place of x."""
        return x if x is None or self.R is None else x.mul_(self.R)

    def give(self, B: Tensor | None, S: Tensor | None, dA: Tensor) -> None:
        """Adds what dA says to the tile's part of the gradient of B, and to that of the slopes."""
        if B is not None:
            part = self.part(B)
            part += self.as_scores(dA).sum_to_size(part.shape)
        if S is not None and self.heads.work.how.slopes:
            S[:, 0, 0] -= dA.flatten(1) @ self.distance().flatten()


class Strip(ScoreTile):
    """Rows of the queries against all the keys that they may see."""

    def __init__(self, heads: Any, rows: slice, keys: slice) -> None:
        self.work = work = heads.work
        shape = heads.count, rows.stop - rows.start, keys.stop - keys.start
        size, R, spare = prod(shape), None, None
        self.draws_tiles = work.draws and work.tiled and not work.kept  # each tile draws its own, once
        if work.draws and not self.draws_tiles:
            R = work.factors[:size].view(shape)
            work.draws.fill(R, heads, rows, keys)
            spare = None if work.tiled else work.spare[:size].view(shape)
        arrays = [] if work.tiled else [x[:size].view(shape) for x in work.scratch]
        super().__init__(heads, rows, keys, arrays, R, spare)

    def softmax(self, q: Tensor, k: Tensor, B: Tensor | None, S: Tensor | None = None) -> tuple[Tensor, Any]:
        """The weights of the scores q k, and of the sink or 0; a row that may attend to nothing has 0."""
        A, out = self.scores(q, k, B, S), self.arrays[1]
        if S is None:
            P = torch.softmax(A, -1, out=out)
            if B is not None or self.work.may_hide_all:
                empty = A.amax(-1, keepdim=True) == -torch.inf
                if empty.any():
                    P.masked_fill_(empty, 0)
            return P, 0
        sink = S[..., 1:]
        c = torch.maximum(A.amax(-1, keepdim=True), sink.clamp_min(torch.finfo(A.dtype).min))
        E, p_0 = torch.sub(A, c, out=out).exp_(), (sink - c).exp_()
        s = E.sum(-1, keepdim=True) + p_0
        s.masked_fill_(s == 0, 1)
        return E.div_(s), p_0.div_(s)

    def tiles(self) -> Iterator[ScoreTile]:
        """The strip, some keys after the other; what is kept has a place of its own."""
        work, (h, r, m) = self.work, self.shape
        for start in range(0, m, work.columns):
            some = slice(start, min(start + work.columns, m))
            shape = h, r, some.stop - start
            size, first, two = prod(shape), 0, None
            if work.kept:
                first = h * r * start
                two = work.two[2 * first : 2 * (first + size)].view(h, 2 * r, shape[-1])
            A, *others = work.scratch
            arrays = [A[first : first + size].view(shape), *(x[:size].view(shape) for x in others)]
            keys = slice(self.keys.start + start, self.keys.start + some.stop)
            R = None if self.R is None else self.R[..., some]
            if self.draws_tiles:
                R = work.factors[:size].view(shape)
                work.draws.fill(R, self.heads, self.rows, keys)
            spare = None if R is None else work.spare[:size].view(shape)
            yield ScoreTile(self.heads, self.rows, keys, arrays, R, spare, two)


def bent(square: Tensor) -> Tensor:
    """1 - tanh^2, in the place of the square: the derivative of the cap."""
    return square.neg_().add_(1)


def mask_as_numbers(B: Tensor, room: Tensor) -> Tensor:
    """0 where a boolean B is true, -inf where it is false; other B are a bias already."""
    if B.dtype != torch.bool:
        return B
    numbers = room.view(-1)[: B.numel()].view(B.shape).copy_(B)
    return numbers.reciprocal_().neg_().add_(1)  # 1 - 1/1 or 1 - 1/0
