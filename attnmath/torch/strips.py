"""Attention and its derivatives to second order, strip by strip of the queries' rows.

A strip has its whole rows of P, at once or tile by tile, and nothing is carried from one
strip to the next but the sums on the keys' side. Tensors: Q (..., n, d_k), K (..., m,
d_k), V (..., m, d_v), B (..., n, m) floating or boolean (true: may attend) or None;
leading axes broadcast. The letters are those of chapters/second.md. Here q, k, v and
their like are a group of heads, (h, n, .) or (h, m, .); what lies on the keys' side of a
product, and the sums there, are (h, ., m).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnmath.torch.how import How
from attnmath.torch.tiles import Strip, Work

Derivatives = tuple[Tensor | None, ...]


class Running:
    """Sums over the keys so far, each times exp(-c): c is the largest score of a row so far.

    The last sum is s, that of the weights E; the others have the widths that are asked
    for. A row that is -inf so far has the least number there is for c, and sums of 0.
    """

    def __init__(self, strip: Strip, *widths: int) -> None:
        work, (h, r, _) = strip.heads.work, strip.shape
        self.past: list[Tensor] = []
        self.c = torch.full((h, r, 1), torch.finfo(work.dtype).min, dtype=work.dtype, device=work.device)
        self.total = torch.zeros(h, r, sum(widths) + 1, dtype=work.dtype, device=work.device)
        *self.sums, self.s = self.total.split([*widths, 1], -1)

    def exponentials(self, A: Tensor) -> Tensor:
        """E = exp(A - c), in the place of A; c and the sums are brought up to date."""
        c = torch.maximum(self.c, A.amax(-1, keepdim=True))
        self.total *= self.c.sub_(c).exp_()
        self.c = c
        self.past.append(c.clone())
        E = A.sub_(c).exp_()
        self.s += E.sum(-1, keepdim=True)
        return E

    def close(self, B: Tensor | None) -> None:
        """Divides the sums by s; in a row that B hides they stay 0."""
        if B is not None:
            self.s.masked_fill_(self.s == 0, 1)
        self.total[..., :-1] /= self.s

    def share(self, c: Tensor) -> Tensor:
        """What makes P of the weights of a tile, which had this c."""
        return (c - self.c).exp_().div_(self.s)


def forward(Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, how: How) -> Tensor:
    """The output of a head.  -> O (..., n, d_v)"""
    work = Work(how, Q, K, V, B, arrays=2)
    total = work.output(V)
    for heads in work.heads():
        q, k, v = heads.take(Q, K, V)
        (O,) = heads.add(total)
        kT = transposed(k)
        for strip in heads.strips():
            i, j = strip.rows, strip.keys
            P = strip.softmax(how.scale * q[:, i], kT[..., j], B)
            add_products(O[:, i], (strip.drop_(P), v[:, j]))
    return total.to(Q.dtype)


def vjp(
    dO: Tensor, Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, how: How,
    *, needs: Sequence[bool] = (True,) * 4,
) -> Derivatives:
    """The gradients of a head; None where not needed.  -> dQ, dK, dV, dB"""
    work = Work(how, Q, K, V, B, dO, arrays=2)
    inputs = Q, K, V, B
    totals = [*map(work.result, inputs, needs)]
    for heads in work.heads():
        q, k, v, do = heads.take(Q, K, V, dO)
        (dQ,), (dK, dV) = heads.add(totals[0]), heads.across(*totals[1:3])
        kT, vT = transposed(k), transposed(v)
        for strip in heads.strips():
            i, j = strip.rows, strip.keys
            qi, dOi = how.scale * q[:, i], do[:, i]
            P = strip.softmax(qi, kT[..., j], B)
            add_products(columns_of(dV, j), (dOi.mT, strip.drop(P)))
            dP = strip.drop_(torch.bmm(dOi, vT[..., j], out=strip.arrays[0]))
            dA = softmax_back(P, dP, out=dP)
            add_products(rows_of(dQ, i), (dA, k[:, j]))
            add_products(columns_of(dK, j), (qi.mT, dA))
            strip.give(totals[3], dA)
    if needs[0]:
        totals[0] *= how.scale
    return in_types_of(inputs, totals)


def jvp(
    Q_dot: Tensor | None, K_dot: Tensor | None, V_dot: Tensor | None, B_dot: Tensor | None,
    Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, how: How,
) -> Derivatives:
    """The output of a head and its tangent; a tangent of None is 0.  -> O, O_dot"""
    work = Work(how, Q, K, V, B, Q_dot, K_dot, V_dot, B_dot, arrays=2, tiled=True)
    totals, d = (work.output(V), work.output(V)), V.shape[-1]
    for heads in work.heads():
        q, k, v, q_dot, k_dot, v_dot = heads.take(Q, K, V, Q_dot, K_dot, V_dot)
        O, O_dot = heads.add(*totals)
        kT, keys = right_factors(q_dot, k, k_dot)
        values = v if v_dot is None else torch.cat([v, v_dot], -1)
        for strip in heads.strips():
            i = strip.rows
            qi, qi_dot = how.scale * q[:, i], times_scale(rows_of(q_dot, i), how)
            query = left_factor(qi_dot, qi, k_dot)
            run = Running(strip, values.shape[-1], d, 1)
            N, U, mu = run.sums
            for tile in strip.tiles():
                j = tile.keys
                E = run.exponentials(tile.scores(qi, kT[..., j], B))
                add_products(N, (tile.drop(E), values[:, j]))  # E V and, if V moves, E V_dot
                A_dot = tile.product(tile.arrays[1], query, columns_of(keys, j), B_dot)
                if A_dot is not None:
                    mu += A_dot.mul_(E).sum(-1, keepdim=True)
                    add_products(U, (tile.drop_(A_dot), v[:, j]))
            run.close(B)
            O[:, i] = N[..., :d]
            O_dot[:, i] = U - mu * O[:, i]
            if v_dot is not None:
                O_dot[:, i] += N[..., d:]
    return in_types_of((Q, Q), totals)


def second(
    dO_dot: Tensor | None, Q_dot: Tensor | None, K_dot: Tensor | None, V_dot: Tensor | None,
    B_dot: Tensor | None, dO: Tensor, Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, how: How,
    *, needs: Sequence[bool] = (True,) * 5,
) -> Derivatives:
    """The tangents of the output and of its gradients; a tangent of None is 0.

    They are the gradients of <dO_dot, O> + <Q_dot, dQ> + <K_dot, dK> + ... in dO, Q, K,
    V, B as well: what a second backward pass wants. Three passes over the tiles of a
    strip, so that each sum over a row is there, and taken away, before anything is
    multiplied by the result: dA and its tangent then have rows of sum 0 up to rounding.
    -> O_dot, dQ_dot, dK_dot, dV_dot, dB_dot, None where not needed
    """
    dots = dO_dot, Q_dot, K_dot, V_dot, B_dot
    work = Work(how, Q, K, V, B, dO, *dots, arrays=2, tiled=True, kept=True)
    inputs, back = (dO, Q, K, V, B), needs[1] or needs[2] or needs[4]
    totals = [*map(work.result, inputs, needs)]
    for heads in work.heads():
        q, k, v, do = heads.take(Q, K, V, dO)
        q_dot, k_dot, v_dot, do_dot = heads.take(Q_dot, K_dot, V_dot, dO_dot)
        (O_dot, dQ_dot), (dK_dot, dV_dot) = heads.add(*totals[:2]), heads.across(*totals[2:4])
        (kT, keys), (vT, values) = right_factors(q_dot, k, k_dot), right_factors(do_dot, v, v_dot)
        for strip in heads.strips():
            i = strip.rows
            qi, qi_dot = how.scale * q[:, i], times_scale(rows_of(q_dot, i), how)
            dOi, dOi_dot = do[:, i], rows_of(do_dot, i)
            query, queries = left_factor(qi_dot, qi, k_dot), above(qi, qi_dot).mT
            cotangent, scores_move = left_factor(dOi_dot, dOi, v_dot), query is not None or B_dot is not None
            run = mu_and_D(strip, (qi, kT, B), (query, keys, B_dot), (dOi, vT) if back else None)
            mu, D = run.sums
            D_dot: Any = 0

            for tile, c in zip(strip.tiles(), run.past):
                j, share = tile.keys, run.share(c)
                P = tile.arrays[0].mul_(share)
                P_dot = softmax_tangent(P, tile.upper.mul_(share), mu) if scores_move else None
                PR = tile.drop(P)
                add_products(rows_of(O_dot, i), (PR, rows_of(v_dot, j)))
                add_products(columns_of(dV_dot, j), (mT(dOi_dot), PR))
                PR_dot = tile.drop(P_dot)
                add_products(rows_of(O_dot, i), (PR_dot, v[:, j]))
                add_products(columns_of(dV_dot, j), (dOi.mT, PR_dot))
                if back:
                    dP_dot = tile.product(tile.arrays[1], cotangent, columns_of(values, j))
                    dP, dP_dot = tile.lower.sub_(D), tile.drop_(dP_dot)
                    dA_dot = tangent_of_back(P, P_dot, dP, dP_dot, out=tile.upper)
                    D_dot = D_dot + dA_dot.sum(-1, keepdim=True)
                    dP *= P

            for tile in strip.tiles() if back else ():
                j, dA = tile.keys, tile.lower
                dA_dot = tile.upper.addcmul_(tile.arrays[0], D_dot, value=-1)
                add_products(rows_of(dQ_dot, i), (dA_dot, k[:, j]), (dA, rows_of(k_dot, j)))
                add_products(columns_of(dK_dot, j), (queries, tile.two if q_dot is not None else dA_dot))
                tile.give(totals[4], dA_dot)
    if needs[1]:
        totals[1] *= how.scale
    return in_types_of(inputs, totals)


def mu_and_D(strip: Strip, scores: tuple, moving: tuple, back: tuple | None) -> Running:
    """The first pass of `second`: two sums over the keys. E, A_dot E and dP stay with their tiles."""
    (qi, kT, B), (query, keys, B_dot) = scores, moving
    run = Running(strip, 1, 1)
    mu, D = run.sums
    for tile in strip.tiles():
        j = tile.keys
        E = run.exponentials(tile.scores(qi, kT[..., j], B))
        A_dot = tile.product(tile.upper, query, columns_of(keys, j), B_dot)
        if A_dot is not None:
            mu += A_dot.mul_(E).sum(-1, keepdim=True)
        if back is not None:
            dP = tile.drop_(torch.bmm(back[0], back[1][..., j], out=tile.lower))
            D += torch.mul(E, dP, out=tile.arrays[1]).sum(-1, keepdim=True)
    run.close(B)
    return run


def softmax_back(P: Tensor, dP: Tensor, out: Tensor) -> Tensor:
    """dA = P (dP - D), D = rowsum(P dP)."""
    dA = torch.mul(P, dP, out=out)
    D = dA.sum(-1, keepdim=True)
    return dA.addcmul_(P, D, value=-1)


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
