"""Sums over the keys, products and their factors: what the passes over strips are made of."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnmath.torch.how import How
from attnmath.torch.scores import ScoreTile, Strip, bent

Derivatives = tuple[Tensor | None, ...]


class Running:
    """Sums over the keys so far, each times exp(-c): c is the largest score of a row so far.

    The last sum is s, that of the weights E; the others have the widths that are asked
    for. A row that is -inf so far has the least number there is for c, and sums of 0. A sink
    is there from the beginning, as a key that has value 0.
    """

    def __init__(self, strip: Strip, *widths: int, S: Tensor | None = None) -> None:
        work, (h, r, _) = strip.heads.work, strip.shape
        self.past: list[Tensor] = []
        self.c = torch.full((h, r, 1), torch.finfo(work.dtype).min, dtype=work.dtype, device=work.device)
        self.total = torch.zeros(h, r, sum(widths) + 1, dtype=work.dtype, device=work.device)
        *self.sums, self.s = self.total.split([*widths, 1], -1)
        self.sink = None if S is None else S[..., 1:]
        if self.sink is not None:
            self.c = torch.maximum(self.c, self.sink)
            self.s += (self.sink - self.c).exp_()

    def exponentials(self, A: Tensor) -> Tensor:
        """E = exp(A - c), in the place of A; c and the sums are brought up to date."""
        c = torch.maximum(self.c, A.amax(-1, keepdim=True))
        self.total *= self.c.sub_(c).exp_()
        self.c = c
        self.past.append(c.clone())
        E = A.sub_(c).exp_()
        self.s += E.sum(-1, keepdim=True)
        return E

    def close(self) -> None:
        """Divides the sums by s; in a row that may attend to nothing they stay 0."""
        self.s.masked_fill_(self.s == 0, 1)
        self.total[..., :-1] /= self.s

    def share(self, c: Tensor) -> Tensor:
        """What makes P of the weights of a tile, which had this c."""
        return (c - self.c).exp_().div_(self.s)

    def sinks(self, S_dot: Tensor | None, mu: Tensor) -> tuple[Any, Any]:
        """The weights p_0 of the sink and their tangent; 0 without one."""
        if self.sink is None:
            return 0, 0
        p_0 = self.share(self.sink)
        return p_0, p_0 * ((0 if S_dot is None else S_dot[..., 1:]) - mu)


def softmax_back(P: Tensor, dP: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """dA = P (dP - D), D = rowsum(P dP).  -> dA, D"""
    dA = torch.mul(P, dP, out=out)
    D = dA.sum(-1, keepdim=True)
    return dA.addcmul_(P, D, value=-1), D


def softmax_tangent(P: Tensor, F: Tensor, mu: Tensor) -> Tensor:
    """P_dot = P (A_dot - mu), in the place of F = P A_dot."""
    return F.addcmul_(P, mu, value=-1)


def tangent_of_back(
    P: Tensor, P_dot: Tensor | None, dP_less_D: Tensor, dP_dot: Tensor | None, out: Tensor
) -> Tensor:
    """P_dot (dP - D) + P dP_dot, to which P D_dot is missing; in the place of P_dot."""
    dA_dot = out.zero_() if P_dot is None else P_dot.mul_(dP_less_D)
    return dA_dot if dP_dot is None else dA_dot.addcmul_(P, dP_dot)


def add_products(total: Tensor | None, *pairs: tuple[Tensor | None, Tensor | None]) -> None:
    """Adds the product of each pair to a sum."""
    for left, right in pairs:
        if total is not None and left is not None and right is not None:
            total.baddbmm_(left, right)


def transposed(x: Tensor) -> Tensor:
    """x (h, m, s) as (h, s, m), the faster side of a product."""
    return x.mT.contiguous()


def right_factors(a_dot: Tensor | None, b: Tensor, b_dot: Tensor | None) -> tuple[Tensor, Tensor]:
    """b^T, and the right factor of a_dot b^T + a b_dot^T as one product."""
    if a_dot is None or b_dot is None:
        bT = transposed(b)
        return bT, bT if b_dot is None else transposed(b_dot)
    both = torch.cat([b.mT, b_dot.mT], -2)
    return both[:, : b.shape[-1]], both


def left_factor(a_dot: Tensor | None, a: Tensor, b_dot: Tensor | None) -> Tensor | None:
    """The left factor of a_dot b^T + a b_dot^T as one product."""
    if a_dot is None or b_dot is None:
        return a_dot if b_dot is None else a
    return torch.cat([a_dot, a], -1)


def before_cap(tile: ScoreTile, scores: tuple, moving: tuple, softcap: float) -> None:
    """Makes of dA and its tangent what goes to q k, where the scores have a cap: each times the bend."""
    (q, k), (left, right) = scores, moving
    T = torch.bmm(q, k, out=tile.bend).div_(softcap).tanh_()
    X_dot = tile.product(tile.arrays[1], left, right)
    if X_dot is not None:
        tile.upper.addcmul_(X_dot.mul_(T), tile.lower, value=-2 / softcap)
    bend = bent(T.square_())
    tile.upper.mul_(bend)
    tile.lower.mul_(bend)


def above(a: Tensor, b: Tensor | None) -> Tensor:
    """Rows of a, then those of b."""
    return a if b is None else torch.cat([a, b], -2)


def rows_of(x: Tensor | None, i: slice) -> Tensor | None:
    return None if x is None else x[:, i]


def columns_of(x: Any, j: slice) -> Any:
    return None if x is None else x[..., j]


def mT(x: Any) -> Any:
    return None if x is None else x.mT


def times_scale(x: Tensor | None, how: How) -> Tensor | None:
    return None if x is None else how.scale * x


def in_types_of(inputs: Sequence, results: Sequence) -> Derivatives:
    """The results in the types of their inputs."""
    return tuple(None if y is None else y.to(x.dtype) for y, x in zip(results, inputs))
