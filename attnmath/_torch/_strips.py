"""Attention and its derivatives to second order, strip by strip of the queries' rows.

A strip has its whole rows of P, at once or tile by tile, and nothing is carried from one
strip to the next but the sums on the keys' side. Tensors: Q (..., n, d_k), K (..., m,
d_k), V (..., m, d_v), B (..., n, m) floating or boolean (true: may attend) or None;
leading axes broadcast. The letters are those of chapters/second.md. Here q, k, v and
their like are a group of heads, (h, n, .) or (h, m, .); what lies on the keys' side of a
product, and the sums there, are (h, ., m).
"""

import torch

from attnmath._torch._running import Running
from attnmath._torch._tiles import Work
from attnmath._torch._zeros import (
    above,
    beside,
    columns,
    flat,
    gather,
    like,
    rows,
    scaled,
    sides,
    turned,
)


def forward(Q, K, V, B, how):
    """The output of a head.  -> O (..., n, d_v)"""
    work = Work(how, Q, K, V, B, arrays=2)
    total = work.output(V)
    for heads in work.heads():
        q, k, v = heads.take(Q, K, V)
        (O,) = heads.add(total)
        kT = flat(k)
        for strip in heads.strips():
            i, j = strip.rows, strip.keys
            P = strip.weights(how.scale * q[:, i], kT[..., j], B)
            gather(O[:, i], (strip.drop_(P), v[:, j]))
    return total.to(Q.dtype)


def vjp(dO, Q, K, V, B, how, *, needs=(True, True, True, True)):
    """The gradients of a head; None where not needed.  -> dQ, dK, dV, dB"""
    work = Work(how, Q, K, V, B, dO, arrays=2)
    inputs = Q, K, V, B
    totals = [None if x is None else work.result(x, need) for x, need in zip(inputs, needs)]
    for heads in work.heads():
        q, k, v, do = heads.take(Q, K, V, dO)
        (dQ,), (dK, dV) = heads.add(totals[0]), heads.across(*totals[1:3])
        kT, vT = flat(k), flat(v)
        for strip in heads.strips():
            i, j = strip.rows, strip.keys
            qi, dOi = how.scale * q[:, i], do[:, i]
            P = strip.weights(qi, kT[..., j], B)
            gather(columns(dV, j), (dOi.mT, strip.drop(P)))
            dP = strip.drop_(torch.bmm(dOi, vT[..., j], out=strip.arrays[0]))
            dA = softmax_back(P, dP, out=dP)
            gather(rows(dQ, i), (dA, k[:, j]))
            gather(columns(dK, j), (qi.mT, dA))
            strip.give(totals[3], dA)
    if needs[0]:
        totals[0] *= how.scale
    return like(totals, inputs)


def jvp(Q_dot, K_dot, V_dot, B_dot, Q, K, V, B, how):
    """The output of a head and its tangent; a tangent of None is 0.  -> O, O_dot"""
    work = Work(how, Q, K, V, B, Q_dot, K_dot, V_dot, B_dot, arrays=2, tiled=True)
    totals, d = (work.output(V), work.output(V)), V.shape[-1]
    for heads in work.heads():
        q, k, v, q_dot, k_dot, v_dot = heads.take(Q, K, V, Q_dot, K_dot, V_dot)
        O, O_dot = heads.add(*totals)
        kT, keys = sides(q_dot, k, k_dot)
        values = v if v_dot is None else torch.cat([v, v_dot], -1)
        for strip in heads.strips():
            i = strip.rows
            qi, qi_dot = how.scale * q[:, i], scaled(rows(q_dot, i), how)
            query = beside(qi_dot, qi, k_dot)
            run = Running(strip, values.shape[-1], d, 1)
            N, U, mu = run.sums
            for tile in strip.tiles():
                j = tile.keys
                E = run.weights(tile.scores(qi, kT[..., j], B))
                gather(N, (tile.drop(E), values[:, j]))  # E V and, if V moves, E V_dot
                A_dot = tile.product(tile.arrays[1], query, columns(keys, j), B_dot)
                if A_dot is not None:
                    mu += A_dot.mul_(E).sum(-1, keepdim=True)
                    gather(U, (tile.drop_(A_dot), v[:, j]))
            run.close(B)
            O[:, i] = N[..., :d]
            O_dot[:, i] = U - mu * O[:, i]
            if v_dot is not None:
                O_dot[:, i] += N[..., d:]
    return like(totals, (Q, Q))


def second(dO_dot, Q_dot, K_dot, V_dot, B_dot, dO, Q, K, V, B, how, *, needs=(True,) * 5):
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
    totals = [None if x is None else work.result(x, need) for x, need in zip(inputs, needs)]
    for heads in work.heads():
        q, k, v, do = heads.take(Q, K, V, dO)
        q_dot, k_dot, v_dot, do_dot = heads.take(Q_dot, K_dot, V_dot, dO_dot)
        (O_dot, dQ_dot), (dK_dot, dV_dot) = heads.add(*totals[:2]), heads.across(*totals[2:4])
        (kT, keys), (vT, values) = sides(q_dot, k, k_dot), sides(do_dot, v, v_dot)
        for strip in heads.strips():
            i = strip.rows
            qi, qi_dot = how.scale * q[:, i], scaled(rows(q_dot, i), how)
            dOi, dOi_dot = do[:, i], rows(do_dot, i)
            query, queries = beside(qi_dot, qi, k_dot), above(qi, qi_dot).mT
            cotangent = beside(dOi_dot, dOi, v_dot)

            run = Running(strip, 1, 1)
            (mu, D), D_dot = run.sums, 0
            for tile in strip.tiles():
                j = tile.keys
                E = run.weights(tile.scores(qi, kT[..., j], B))
                A_dot = tile.product(tile.upper, query, columns(keys, j), B_dot)
                if A_dot is not None:
                    mu += A_dot.mul_(E).sum(-1, keepdim=True)
                if back:
                    dP = tile.drop_(torch.bmm(dOi, vT[..., j], out=tile.lower))
                    D += torch.mul(E, dP, out=tile.arrays[1]).sum(-1, keepdim=True)
            run.close(B)

            for tile, c in zip(strip.tiles(), run.past):
                j, share = tile.keys, run.share(c)
                P = tile.arrays[0].mul_(share)
                P_dot = softmax_tangent(P, tile.upper.mul_(share), mu) if A_dot is not None else None
                PR = tile.drop(P)
                gather(rows(O_dot, i), (PR, rows(v_dot, j)))
                gather(columns(dV_dot, j), (turned(dOi_dot), PR))
                PR_dot = tile.drop(P_dot)
                gather(rows(O_dot, i), (PR_dot, v[:, j]))
                gather(columns(dV_dot, j), (dOi.mT, PR_dot))
                if back:
                    dP_dot = tile.product(tile.arrays[1], cotangent, columns(values, j))
                    dP, dP_dot = tile.lower.sub_(D), tile.drop_(dP_dot)
                    dA_dot = tangent_of_back(P, P_dot, dP, dP_dot, out=tile.upper)
                    D_dot = D_dot + dA_dot.sum(-1, keepdim=True)
                    dP *= P

            for tile in strip.tiles() if back else ():
                j, dA = tile.keys, tile.lower
                dA_dot = tile.upper.addcmul_(tile.arrays[0], D_dot, value=-1)
                gather(rows(dQ_dot, i), (dA_dot, k[:, j]), (dA, rows(k_dot, j)))
                gather(columns(dK_dot, j), (queries, tile.two if q_dot is not None else dA_dot))
                tile.give(totals[4], dA_dot)
    if needs[1]:
        totals[1] *= how.scale
    return like(totals, inputs)


def softmax_back(P, dP, out):
    """dA = P (dP - D), D = rowsum(P dP)."""
    dA = torch.mul(P, dP, out=out)
    D = dA.sum(-1, keepdim=True)
    return dA.addcmul_(P, D, value=-1)


def softmax_tangent(P, F, mu):
    """P_dot = P (A_dot - mu), in the place of F = P A_dot."""
    return F.addcmul_(P, mu, value=-1)


def tangent_of_back(P, P_dot, dP_less_D, dP_dot, out):
    """P_dot (dP - D) + P dP_dot, to which P D_dot is missing; in the place of P_dot."""
    dA_dot = out.zero_() if P_dot is None else P_dot.mul_(dP_less_D)
    return dA_dot if dP_dot is None else dA_dot.addcmul_(P, dP_dot)
