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
    joined,
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
    totals = work.output(V), work.output(V)
    for heads in work.heads():
        q, k, v, q_dot, k_dot, v_dot = heads.take(Q, K, V, Q_dot, K_dot, V_dot)
        O, O_dot = heads.add(*totals)
        (kT, keys), right = sides(q_dot, k, k_dot), joined(v, v_dot)
        for strip in heads.strips():
            i = strip.rows
            qi, qi_dot = how.scale * q[:, i], scaled(rows(q_dot, i), how)
            query, run = beside(qi_dot, qi, k_dot), Running(strip, v, right)
            for tile in strip.tiles():
                E = run.weights(tile.scores(qi, kT[..., tile.keys], B))
                A_dot = tile.product(tile.arrays[1], query, columns(keys, tile.keys), B_dot)
                run.add(tile, E, A_dot)
            O[:, i], O_dot[:, i] = run.close(B)
    return like(totals, (Q, Q))


def second(dO_dot, Q_dot, K_dot, V_dot, B_dot, dO, Q, K, V, B, how, *, O=None, needs=(True,) * 5):
    """The tangents of the output and of its gradients; a tangent of None is 0.

    They are the gradients of <dO_dot, O> + <Q_dot, dQ> + <K_dot, dK> + ... in dO, Q, K,
    V, B as well: what a second backward pass wants. The output O is not made again where
    it is given with all its digits.
    -> O_dot, dQ_dot, dK_dot, dV_dot, dB_dot, None where not needed
    """
    dots = dO_dot, Q_dot, K_dot, V_dot, B_dot
    work = Work(how, Q, K, V, B, dO, *dots, arrays=2, tiled=True, kept=True)
    inputs = dO, Q, K, V, B
    totals = [None if x is None else work.result(x, need) for x, need in zip(inputs, needs)]
    O = O if O is not None and O.dtype == work.dtype else None
    for heads in work.heads():
        q, k, v, do, o = heads.take(Q, K, V, dO, O)
        q_dot, k_dot, v_dot, do_dot = heads.take(Q_dot, K_dot, V_dot, dO_dot)
        (O_dot, dQ_dot), (dK_dot, dV_dot) = heads.add(*totals[:2]), heads.across(*totals[2:4])
        (kT, keys), (vT, values) = sides(q_dot, k, k_dot), sides(do_dot, v, v_dot)
        right = joined(v if o is None else None, v_dot)
        for strip in heads.strips():
            i = strip.rows
            qi, qi_dot = how.scale * q[:, i], scaled(rows(q_dot, i), how)
            dOi, dOi_dot = do[:, i], rows(do_dot, i)

            query, run = beside(qi_dot, qi, k_dot), Running(strip, v, right, rows(o, i))
            for tile in strip.tiles():
                E = run.weights(tile.scores(qi, kT[..., tile.keys], B))
                A_dot = tile.product(tile.arrays[1], query, columns(keys, tile.keys), B_dot)
                run.add(tile, E, A_dot)
            Oi, Oi_dot = run.close(B)
            D, D_dot = row_statistic(dOi, dOi_dot, Oi, Oi_dot)
            if O_dot is not None:
                O_dot[:, i] += Oi_dot

            cotangent, queries = beside(dOi_dot, dOi, v_dot), above(qi, qi_dot).mT
            for tile, c in zip(strip.tiles(), run.past):
                j = tile.keys
                P, P_dot = run.softmax(tile, c)
                gather(columns(dV_dot, j), (turned(dOi_dot), tile.drop(P)))
                gather(columns(dV_dot, j), (dOi.mT, tile.drop(P_dot)))
                if needs[1] or needs[2] or needs[4]:
                    dP = tile.drop_(torch.bmm(dOi, vT[..., j], out=tile.lower))
                    dP_dot = tile.drop_(tile.product(tile.upper, cotangent, columns(values, j)))
                    dA_dot, dA = back_jvp(P, P_dot, dP, dP_dot, D, D_dot, out=tile.upper)
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


def row_statistic(dO, dO_dot, O, O_dot):
    """D = rowsum(dO O), and its tangent."""
    D, D_dot = ((dO * x).sum(-1, keepdim=True) for x in (O, O_dot))
    return D, D_dot if dO_dot is None else D_dot + (dO_dot * O).sum(-1, keepdim=True)


def back_jvp(P, P_dot, dP, dP_dot, D, D_dot, out):
    """P_dot (dP - D) + P (dP_dot - D_dot); P (dP - D) in the place of dP.  -> dA_dot, dA"""
    dP -= D
    dA_dot = torch.mul(P, -D_dot, out=out) if dP_dot is None else dP_dot.sub_(D_dot).mul_(P)
    if P_dot is not None:
        dA_dot.addcmul_(P_dot, dP)
    return dA_dot, dP.mul_(P)
