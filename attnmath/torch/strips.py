"""Attention and its derivatives to second order, strip by strip of the queries' rows.

A strip has its whole rows of P, at once or tile by tile, and nothing is carried from one
strip to the next but the sums on the keys' side. Tensors: Q (..., n, d_k), K (..., m,
d_k), V (..., m, d_v), B (..., n, m) floating or boolean (true: may attend) or None,
S (..., 1, 2), slope and sink of each head, or None; leading axes broadcast. The letters
are those of chapters/second.md. Here q, k, v and their like are a group of heads,
(h, n, .) or (h, m, .), s (h, 1, 2); what lies on the keys' side of a product, and the
sums there, are (h, ., m).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnmath.torch.how import How
from attnmath.torch.products import (
    Derivatives,
    Running,
    above,
    add_products,
    before_cap,
    columns_of,
    in_types_of,
    left_factor,
    mT,
    right_factors,
    rows_of,
    softmax_back,
    softmax_tangent,
    tangent_of_back,
    times_scale,
    transposed,
)
from attnmath.torch.scores import Strip
from attnmath.torch.tiles import Work


def forward(Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, how: How) -> Tensor:
    """The output of a head.  -> O (..., n, d_v)"""
    work = Work(how, Q, K, V, B, S, arrays=2)
    total = work.output(V)
    for heads in work.heads():
        q, k, v, s = heads.take(Q, K, V, S)
        (O,) = heads.add(total)
        kT = transposed(k)
        for strip in heads.strips():
            i, j = strip.rows, strip.keys
            P, _ = strip.softmax(how.scale * q[:, i], kT[..., j], B, s)
            add_products(O[:, i], (strip.drop_(P), v[:, j]))
    return total.to(Q.dtype)


def vjp(
    dO: Tensor, Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, how: How,
    *, needs: Sequence[bool] = (True,) * 5,
) -> Derivatives:
    """The gradients of a head; None where not needed.  -> dQ, dK, dV, dB, dS"""
    work = Work(how, Q, K, V, B, S, dO, arrays=2, bends=True)
    inputs = Q, K, V, B, S
    totals = [*map(work.result, inputs, needs)]
    for heads in work.heads():
        q, k, v, s, do = heads.take(Q, K, V, S, dO)
        (dQ, ds), (dK, dV) = heads.add(totals[0], totals[4]), heads.across(*totals[1:3])
        kT, vT = transposed(k), transposed(v)
        for strip in heads.strips():
            i, j = strip.rows, strip.keys
            qi, dOi = how.scale * q[:, i], do[:, i]
            P, p_0 = strip.softmax(qi, kT[..., j], B, s)
            add_products(columns_of(dV, j), (dOi.mT, strip.drop(P)))
            dP = strip.drop_(torch.bmm(dOi, vT[..., j], out=strip.arrays[0]))
            dA, D = softmax_back(P, dP, out=dP)
            strip.give(totals[3], ds, dA)
            if ds is not None:
                ds[..., 1:] -= (p_0 * D).sum(-2, keepdim=True)
            if strip.bend is not None:
                dA.mul_(strip.bend)
            add_products(rows_of(dQ, i), (dA, k[:, j]))
            add_products(columns_of(dK, j), (qi.mT, dA))
    if needs[0]:
        totals[0] *= how.scale
    return in_types_of(inputs, totals)


def jvp(
    Q_dot: Tensor | None, K_dot: Tensor | None, V_dot: Tensor | None, B_dot: Tensor | None, S_dot: Tensor | None,
    Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, how: How,
) -> Derivatives:
    """The output of a head and its tangent; a tangent of None is 0.  -> O, O_dot"""
    work = Work(how, Q, K, V, B, S, Q_dot, K_dot, V_dot, B_dot, S_dot, arrays=2, tiled=True, bends=True)
    totals, d = (work.output(V), work.output(V)), V.shape[-1]
    for heads in work.heads():
        q, k, v, s = heads.take(Q, K, V, S)
        q_dot, k_dot, v_dot, s_dot = heads.take(Q_dot, K_dot, V_dot, S_dot)
        O, O_dot = heads.add(*totals)
        kT, keys = right_factors(q_dot, k, k_dot)
        values = v if v_dot is None else torch.cat([v, v_dot], -1)
        for strip in heads.strips():
            i = strip.rows
            qi, qi_dot = how.scale * q[:, i], times_scale(rows_of(q_dot, i), how)
            query = left_factor(qi_dot, qi, k_dot)
            run = Running(strip, values.shape[-1], d, 1, S=s)
            N, U, mu = run.sums
            sink_moves(mu, run, s_dot)
            for tile in strip.tiles():
                j = tile.keys
                E = run.exponentials(tile.scores(qi, kT[..., j], B, s))
                add_products(N, (tile.drop(E), values[:, j]))  # E V and, if V moves, E V_dot
                A_dot = tile.tangent(tile.arrays[1], query, columns_of(keys, j), B_dot, s_dot)
                if A_dot is not None:
                    mu += A_dot.mul_(E).sum(-1, keepdim=True)
                    add_products(U, (tile.drop_(A_dot), v[:, j]))
            run.close()
            O[:, i] = N[..., :d]
            O_dot[:, i] = U - mu * O[:, i]
            if v_dot is not None:
                O_dot[:, i] += N[..., d:]
    return in_types_of((Q, Q), totals)


def second(
    dO_dot: Tensor | None, Q_dot: Tensor | None, K_dot: Tensor | None, V_dot: Tensor | None,
    B_dot: Tensor | None, S_dot: Tensor | None, dO: Tensor, Q: Tensor, K: Tensor, V: Tensor,
    B: Tensor | None, S: Tensor | None, how: How, *, needs: Sequence[bool] = (True,) * 6,
) -> Derivatives:
    """The tangents of the output and of its gradients; a tangent of None is 0.

    They are the gradients of <dO_dot, O> + <Q_dot, dQ> + <K_dot, dK> + ... in dO, Q, K,
    V, B, S as well: what a second backward pass wants. Three passes over the tiles of a
    strip, so that each sum over a row is there, and taken away, before anything is
    multiplied by the result: dA and its tangent then have rows of sum 0 up to rounding.
    -> O_dot, dQ_dot, dK_dot, dV_dot, dB_dot, dS_dot, None where not needed
    """
    dots = dO_dot, Q_dot, K_dot, V_dot, B_dot, S_dot
    work = Work(how, Q, K, V, B, S, dO, *dots, arrays=2, tiled=True, kept=True, bends=True)
    inputs, back = (dO, Q, K, V, B, S), any(needs[i] for i in (1, 2, 4, 5))
    totals = [*map(work.result, inputs, needs)]
    for heads in work.heads():
        q, k, v, s, do = heads.take(Q, K, V, S, dO)
        q_dot, k_dot, v_dot, s_dot, do_dot = heads.take(Q_dot, K_dot, V_dot, S_dot, dO_dot)
        (O_dot, dQ_dot, ds_dot), (dK_dot, dV_dot) = heads.add(*totals[:2], totals[5]), heads.across(*totals[2:4])
        (kT, keys), (vT, values) = right_factors(q_dot, k, k_dot), right_factors(do_dot, v, v_dot)
        for strip in heads.strips():
            i = strip.rows
            qi, qi_dot = how.scale * q[:, i], times_scale(rows_of(q_dot, i), how)
            dOi, dOi_dot = do[:, i], rows_of(do_dot, i)
            query, queries = left_factor(qi_dot, qi, k_dot), above(qi, qi_dot).mT
            cotangent = left_factor(dOi_dot, dOi, v_dot)
            scores, moving = (qi, kT, B, s), (query, keys, B_dot, s_dot)
            scores_move = any(x is not None for x in (query, B_dot, s_dot))
            run = mu_and_D(strip, scores, moving, (dOi, vT) if back else None)
            mu, D = run.sums
            p_0, p_0_dot = run.sinks(s_dot, mu)
            D_dot = -p_0_dot * D  # the sink's part

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

            if back:
                results = rows_of(dQ_dot, i), dK_dot, totals[4], ds_dot
                back_to_inputs(strip, D_dot, scores, moving, (queries, q_dot, k, k_dot), results)
            if ds_dot is not None:
                ds_dot[..., 1:] -= (p_0_dot * D + p_0 * D_dot).sum(-2, keepdim=True)
    if needs[1]:
        totals[1] *= how.scale
    return in_types_of(inputs, totals)


def mu_and_D(strip: Strip, scores: tuple, moving: tuple, back: tuple | None) -> Running:
    """The first pass of `second`: two sums over the keys. E, A_dot E and dP stay with their tiles."""
    (qi, kT, B, s), (query, keys, B_dot, s_dot) = scores, moving
    run = Running(strip, 1, 1, S=s)
    mu, D = run.sums
    sink_moves(mu, run, s_dot)
    for tile in strip.tiles():
        j = tile.keys
        E = run.exponentials(tile.scores(qi, kT[..., j], B, s))
        A_dot = tile.tangent(tile.upper, query, columns_of(keys, j), B_dot, s_dot)
        if A_dot is not None:
            mu += A_dot.mul_(E).sum(-1, keepdim=True)
        if back is not None:
            dP = tile.drop_(torch.bmm(back[0], back[1][..., j], out=tile.lower))
            D += torch.mul(E, dP, out=tile.arrays[1]).sum(-1, keepdim=True)
    run.close()
    return run


def back_to_inputs(
    strip: Strip, D_dot: Tensor, scores: tuple, moving: tuple, factors: tuple, results: tuple
) -> None:
    """The third pass of `second`: P D_dot is taken away, and what is left goes to the inputs of the scores."""
    (qi, kT, *_), (query, keys, *_), softcap = scores, moving, strip.work.how.softcap
    queries, q_dot, k, k_dot = factors
    dQ_dot, dK_dot, dB_dot, ds_dot = results
    for tile in strip.tiles():
        j = tile.keys
        tile.upper.addcmul_(tile.arrays[0], D_dot, value=-1)
        tile.give(dB_dot, ds_dot, tile.upper)
        if softcap is not None:
            before_cap(tile, (qi, kT[..., j]), (query, columns_of(keys, j)), softcap)
        dA_dot, dA = tile.upper, tile.lower
        add_products(dQ_dot, (dA_dot, k[:, j]), (dA, rows_of(k_dot, j)))
        add_products(columns_of(dK_dot, j), (queries, tile.two if q_dot is not None else dA_dot))


def sink_moves(mu: Tensor, run: Running, s_dot: Tensor | None) -> None:
    """The sink's part of mu, the mean of the scores' tangent."""
    if s_dot is not None:
        mu += s_dot[..., 1:] * run.s
