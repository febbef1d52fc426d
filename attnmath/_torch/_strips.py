"""Attention and its derivatives to second order, strip by strip of the queries' rows.

A strip has its whole rows of P at once: the softmax needs no second pass, and no number
is carried from one strip to the next but the sums on the keys' side. Tensors: Q (..., n,
d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m) floating or boolean (true: may
attend) or None; leading axes broadcast. The letters are those of chapters/second.md.
"""

import torch

from attnmath._torch._tiles import Work


def forward(Q, K, V, B, how):
    """The output of a head.  -> O (..., n, d_v)"""
    work = Work(how, Q, K, V, B, arrays=2)
    total = work.output(V)
    for heads in work.heads():
        q, k, v = heads.take(Q, K, V)
        (O,) = heads.add(total)
        for strip in heads.strips():
            i, j = strip.rows, strip.keys
            P = strip.weights(how.scale * q[:, i], k[:, j], B)
            gather(O[:, i], (strip.drop_(P), v[:, j]))
    return total.to(Q.dtype)


def vjp(dO, Q, K, V, B, how, *, needs=(True, True, True, True)):
    """The gradients of a head; None where not needed.  -> dQ, dK, dV, dB"""
    work = Work(how, Q, K, V, B, dO, arrays=2)
    totals = [None if x is None else work.result(x, need) for x, need in zip((Q, K, V, B), needs)]
    for heads in work.heads():
        q, k, v, do = heads.take(Q, K, V, dO)
        dQ, dK, dV = heads.add(*totals[:3])
        for strip in heads.strips():
            i, j = strip.rows, strip.keys
            qi, dOi = how.scale * q[:, i], do[:, i]
            P = strip.weights(qi, k[:, j], B)
            gather(at(dV, j), (strip.drop(P).mT, dOi))
            dA = strip.drop_(torch.bmm(dOi, v[:, j].mT, out=strip.arrays[0])).mul_(P)
            D = dA.sum(-1, keepdim=True)
            dA.addcmul_(P, D, value=-1)
            gather(at(dQ, i), (dA, k[:, j]))
            gather(at(dK, j), (dA.mT, qi))
            strip.bias(totals[3], dA)
    rescale(totals[0], how)
    return like(totals, (Q, K, V, B))


def jvp(Q_dot, K_dot, V_dot, B_dot, Q, K, V, B, how):
    """The output of a head and its tangent; a tangent of None is 0.  -> O, O_dot"""
    work = Work(how, Q, K, V, B, Q_dot, K_dot, V_dot, B_dot, arrays=3)
    totals = work.output(V), work.output(V)
    for heads in work.heads():
        q, k, v, q_dot, k_dot, v_dot = heads.take(Q, K, V, Q_dot, K_dot, V_dot)
        O, O_dot = heads.add(*totals)
        keys = right(q_dot, q, k, k_dot)
        for strip in heads.strips():
            i, j = strip.rows, strip.keys
            qi, qi_dot = how.scale * q[:, i], scaled(at(q_dot, i), how)
            P = strip.weights(qi, k[:, j], B)
            A_dot = strip.scores(strip.arrays[2], left(qi_dot, qi, k, k_dot), at(keys, j), B_dot)
            P_dot = softmax_tangent(P, A_dot)
            PR = strip.drop(P)
            gather(O[:, i], (PR, v[:, j]))
            gather(O_dot[:, i], (PR, at(v_dot, j)))
            gather(O_dot[:, i], (strip.drop_(P_dot), v[:, j]))
    return like(totals, (Q, Q))


def second(dO_dot, Q_dot, K_dot, V_dot, B_dot, dO, Q, K, V, B, how, *, needs=(True,) * 5):
    """The tangents of the output and of its gradients; a tangent of None is 0.

    The gradients of <dO_dot, dO> + <Q_dot, dQ> + ... in dO, Q, K, V, B: what a second
    backward pass wants.  -> O_dot, dQ_dot, dK_dot, dV_dot, dB_dot, None where not needed
    """
    work = Work(how, Q, K, V, B, dO, dO_dot, Q_dot, K_dot, V_dot, B_dot, arrays=5)
    inputs = dO, Q, K, V, B
    totals = [None if x is None else work.result(x, need) for x, need in zip(inputs, needs)]
    for heads in work.heads():
        q, k, v, do = heads.take(Q, K, V, dO)
        q_dot, k_dot, v_dot, do_dot = heads.take(Q_dot, K_dot, V_dot, dO_dot)
        O_dot, dQ_dot, dK_dot, dV_dot = heads.add(*totals[:4])
        keys, values = right(q_dot, q, k, k_dot), right(do_dot, do, v, v_dot)
        for strip in heads.strips():
            i, j = strip.rows, strip.keys
            qi, qi_dot = how.scale * q[:, i], scaled(at(q_dot, i), how)
            dOi, dOi_dot = do[:, i], at(do_dot, i)
            P = strip.weights(qi, k[:, j], B)
            A_dot = strip.scores(strip.arrays[2], left(qi_dot, qi, k, k_dot), at(keys, j), B_dot)
            P_dot = softmax_tangent(P, A_dot)
            PR = strip.drop(P)
            gather(at(O_dot, i), (PR, at(v_dot, j)))
            gather(at(dV_dot, j), (None if dOi_dot is None else PR.mT, dOi_dot))
            if P_dot is not None:
                PR_dot = strip.drop(P_dot)
                gather(at(O_dot, i), (PR_dot, v[:, j]))
                gather(at(dV_dot, j), (PR_dot.mT, dOi))
            if not any(needs[i] for i in (1, 2, 4)):
                continue
            dP = strip.drop_(torch.bmm(dOi, v[:, j].mT, out=strip.arrays[0]))
            dP_dot = strip.scores(strip.arrays[3], left(dOi_dot, dOi, v, v_dot), at(values, j))
            dA = torch.mul(P, dP, out=strip.arrays[4])
            D = dA.sum(-1, keepdim=True)
            dA.addcmul_(P, D, value=-1)
            dA_dot = tangent_of_gradient(P, P_dot, dP.sub_(D), strip.drop_(dP_dot))
            gather(at(dQ_dot, i), (dA_dot, k[:, j]), (dA, at(k_dot, j)))
            gather(at(dK_dot, j), (None if dA_dot is None else dA_dot.mT, qi), (dA.mT, qi_dot))
            strip.bias(totals[4], dA_dot)
    rescale(totals[1], how)
    return like(totals, inputs)


def softmax_tangent(P, A_dot):
    """P_dot = P (A_dot - rowsum(P A_dot)), in the place of A_dot."""
    if A_dot is None:
        return None
    mu = A_dot.mul_(P).sum(-1, keepdim=True)
    return A_dot.addcmul_(P, mu, value=-1)


def tangent_of_gradient(P, P_dot, dP_less_D, dP_dot):
    """dA_dot = P_dot (dP - D) + P (dP_dot - D_dot); its rows sum to 0, which is D_dot."""
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


def gather(total, *pairs):
    """Adds the product of each pair to a sum; what is None is 0."""
    for a, b in pairs:
        if total is not None and a is not None and b is not None:
            total.baddbmm_(a, b)


def left(a_dot, a, b, b_dot):
    """The first factor of a_dot b^T + a b_dot^T, as one product; None if it is 0."""
    return beside(a_dot, None if b_dot is None else a)


def right(a_dot, a, b, b_dot):
    """Its second factor, not transposed."""
    return beside(None if a_dot is None else b, b_dot)


def beside(*parts):
    parts = [x for x in parts if x is not None]
    return torch.cat(parts, -1) if len(parts) == 2 else parts[0] if parts else None


def at(x, where):
    """Some rows of x (h, r, s); None for None."""
    return None if x is None else x[:, where]


def scaled(x, how):
    return None if x is None else how.scale * x


def rescale(x, how):
    if x is not None:
        x *= how.scale


def like(results, inputs):
    return tuple(None if y is None else y.to(x.dtype) for y, x in zip(results, inputs))
