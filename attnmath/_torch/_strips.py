"""Attention and its derivatives to second order, strip by strip of the queries' rows.

A strip has its whole rows of P at once: the softmax needs no second pass, and nothing is
carried from one strip to the next but the sums on the keys' side. Tensors: Q (..., n,
d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m) floating or boolean (true: may
attend) or None; leading axes broadcast. The letters are those of chapters/second.md.
Here q, k, v and their like are a group of heads, (h, n, .) or (h, m, .); what lies on
the keys' side of a product, and the sums there, are (h, ., m).
"""

import torch

from attnmath._torch._tiles import Work
from attnmath._torch._zeros import beside, columns, flat, gather, like, rows, scaled, sides, turned


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
            dA = softmax_back(P, dP, out=dP)[0]
            gather(rows(dQ, i), (dA, k[:, j]))
            gather(columns(dK, j), (qi.mT, dA))
            strip.give(totals[3], dA)
    if needs[0]:
        totals[0] *= how.scale
    return like(totals, inputs)


def jvp(Q_dot, K_dot, V_dot, B_dot, Q, K, V, B, how):
    """The output of a head and its tangent; a tangent of None is 0.  -> O, O_dot"""
    work = Work(how, Q, K, V, B, Q_dot, K_dot, V_dot, B_dot, arrays=3)
    totals = work.output(V), work.output(V)
    for heads in work.heads():
        q, k, v, q_dot, k_dot, v_dot = heads.take(Q, K, V, Q_dot, K_dot, V_dot)
        O, O_dot = heads.add(*totals)
        kT, keys = sides(q_dot, k, k_dot)
        values = v if v_dot is None else torch.cat([v, v_dot], -1)
        for strip in heads.strips():
            i, j = strip.rows, strip.keys
            qi, qi_dot = how.scale * q[:, i], scaled(rows(q_dot, i), how)
            P = strip.weights(qi, kT[..., j], B)
            A_dot = strip.product(strip.arrays[2], beside(qi_dot, qi, k_dot), columns(keys, j), B_dot)
            both = strip.drop(P) @ values[:, j]  # P V and, if V moves, P V_dot
            O[:, i] += both[..., : v.shape[-1]]
            if v_dot is not None:
                O_dot[:, i] += both[..., v.shape[-1] :]
            if A_dot is not None:
                mu = A_dot.mul_(P).sum(-1, keepdim=True)
                gather(O_dot[:, i], (strip.drop_(A_dot), v[:, j]))
                O_dot[:, i] -= mu * O[:, i]
    return like(totals, (Q, Q))


def second(dO_dot, Q_dot, K_dot, V_dot, B_dot, dO, Q, K, V, B, how, *, needs=(True,) * 5):
    """The tangents of the output and of its gradients; a tangent of None is 0.

    They are the gradients of <dO_dot, O> + <Q_dot, dQ> + <K_dot, dK> + ... in dO, Q, K,
    V, B as well: what a second backward pass wants.
    -> O_dot, dQ_dot, dK_dot, dV_dot, dB_dot, None where not needed
    """
    work = Work(how, Q, K, V, B, dO, dO_dot, Q_dot, K_dot, V_dot, B_dot, arrays=5)
    inputs = dO, Q, K, V, B
    totals = [None if x is None else work.result(x, need) for x, need in zip(inputs, needs)]
    for heads in work.heads():
        q, k, v, do = heads.take(Q, K, V, dO)
        q_dot, k_dot, v_dot, do_dot = heads.take(Q_dot, K_dot, V_dot, dO_dot)
        (O_dot, dQ_dot), (dK_dot, dV_dot) = heads.add(*totals[:2]), heads.across(*totals[2:4])
        (kT, keys), (vT, values) = sides(q_dot, k, k_dot), sides(do_dot, v, v_dot)
        for strip in heads.strips():
            i, j = strip.rows, strip.keys
            qi, qi_dot = how.scale * q[:, i], scaled(rows(q_dot, i), how)
            dOi, dOi_dot = do[:, i], rows(do_dot, i)

            P = strip.weights(qi, kT[..., j], B)
            P_dot = strip.product(strip.arrays[2], beside(qi_dot, qi, k_dot), columns(keys, j), B_dot)
            P_dot = softmax_tangent(P, P_dot)
            PR = strip.drop(P)
            gather(rows(O_dot, i), (PR, rows(v_dot, j)))
            gather(columns(dV_dot, j), (turned(dOi_dot), PR))
            if P_dot is not None:
                PR_dot = strip.drop(P_dot)
                gather(rows(O_dot, i), (PR_dot, v[:, j]))
                gather(columns(dV_dot, j), (dOi.mT, PR_dot))

            if needs[1] or needs[2] or needs[4]:
                dP = strip.drop_(torch.bmm(dOi, vT[..., j], out=strip.arrays[0]))
                dP_dot = strip.product(strip.arrays[3], beside(dOi_dot, dOi, v_dot), columns(values, j))
                dA, D = softmax_back(P, dP, out=strip.arrays[4])
                dA_dot = tangent_of_back(P, P_dot, dP.sub_(D), strip.drop_(dP_dot))
                gather(rows(dQ_dot, i), (dA_dot, k[:, j]), (dA, rows(k_dot, j)))
                gather(columns(dK_dot, j), (qi.mT, dA_dot), (turned(qi_dot), dA))
                strip.give(totals[4], dA_dot)
    if needs[1]:
        totals[1] *= how.scale
    return like(totals, inputs)


def softmax_back(P, dP, out):
    """dA = P (dP - D), D = rowsum(P dP).  -> dA, D"""
    dA = torch.mul(P, dP, out=out)
    D = dA.sum(-1, keepdim=True)
    return dA.addcmul_(P, D, value=-1), D


def softmax_tangent(P, A_dot):
    """P_dot = P (A_dot - rowsum(P A_dot)), in the place of A_dot."""
    if A_dot is None:
        return None
    mu = A_dot.mul_(P).sum(-1, keepdim=True)
    return A_dot.addcmul_(P, mu, value=-1)


def tangent_of_back(P, P_dot, dP_less_D, dP_dot):
    """dA_dot = P_dot (dP - D) + P (dP_dot - D_dot); as its rows sum to 0, D_dot is known."""
    if P_dot is None and dP_dot is None:
        return None
    if P_dot is None:
        dA_dot = dP_dot.mul_(P)
    else:
        dA_dot = dP_less_D.mul_(P_dot)
        if dP_dot is not None:
            dA_dot.addcmul_(P, dP_dot)
    D_dot = dA_dot.sum(-1, keepdim=True)
    return dA_dot.addcmul_(P, D_dot, value=-1)
