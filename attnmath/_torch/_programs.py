"""The derivatives of one strip in plain torch operations, which autograd differentiates.

The letters are those of chapters/second.md; a tangent of None is 0. Arrays (h, rows, .)
of the queries and (h, keys, .) of the keys; B and its tangents (..., rows, keys) with
their own axes of size 1.
"""

import torch


def second(strip, dO_dot, Q_dot, K_dot, V_dot, B_dot, dO, Q, K, V, B):
    """-> O_dot, dQ_dot, dK_dot, dV_dot, dB_dot (None without numbers in B)"""
    scale = strip.heads.work.how.scale
    P, R = weights(strip, Q, K, B)
    A_dot = scores(strip, (Q_dot, K), (Q, K_dot), B=B_dot)
    P_dot = P * (A_dot - total(P * A_dot))
    O_dot = (P_dot * R) @ V + dot(P * R, V_dot)
    dP = R * (dO @ V.mT)
    dP_dot = R * (dot(dO_dot, mT(V)) + dot(dO, mT(V_dot)))
    dP, dP_dot = dP - total(P * dP), dP_dot - total(P_dot * dP + P * dP_dot)
    dA, dA_dot = P * dP, P_dot * dP + P * dP_dot
    dQ_dot = scale * (dA_dot @ K + dot(dA, K_dot))
    dK_dot = scale * (dA_dot.mT @ Q + dot(dA.mT, Q_dot))
    dV_dot = (P_dot * R).mT @ dO + dot((P * R).mT, dO_dot)
    dB_dot = None
    if B is not None and B.dtype != torch.bool:
        dB_dot = leading(strip, dA_dot).sum_to_size(B.shape)
    return O_dot, dQ_dot, dK_dot, dV_dot, dB_dot


def mixed(strip, Q_, K_, V_, B_, Q_1, K_1, V_1, B_1, Q_2, K_2, V_2, B_2, Q, K, V, B):
    """The tangents along 1 of O and of its tangent along 2, which itself moves along _."""
    P, R = weights(strip, Q, K, B)
    A_1 = scores(strip, (Q_1, K), (Q, K_1), B=B_1)
    A_2 = scores(strip, (Q_2, K), (Q, K_2), B=B_2)
    A_12 = scores(strip, (Q_, K), (Q, K_), (Q_1, K_2), (Q_2, K_1), B=B_)
    C_1, C_2 = A_1 - total(P * A_1), A_2 - total(P * A_2)
    P_1, P_2 = P * C_1, P * C_2
    P_12 = P_1 * C_2 + P * (A_12 - total(P_1 * A_2 + P * A_12))
    O_1 = (P_1 * R) @ V + dot(P * R, V_1)
    O_12 = (P_12 * R) @ V + dot(P_1 * R, V_2) + dot(P_2 * R, V_1) + dot(P * R, V_)
    return O_1, O_12


def weights(strip, Q, K, B):
    """-> P, 0 in a row that may attend to nothing, and the factors R of dropout"""
    if B is None or B.dtype != torch.bool:
        A = scores(strip, (Q, K), B=B)
    else:
        A = scores(strip, (Q, K)).masked_fill(~flat(strip, B), -torch.inf)
    if strip.heads.work.how.causal:
        i = torch.arange(strip.rows.start, strip.rows.stop, device=A.device)
        j = torch.arange(strip.keys.stop, device=A.device)
        A = A.masked_fill(j > i[:, None], -torch.inf)
    empty = (A == -torch.inf).all(-1, keepdim=True)
    P = torch.softmax(A.masked_fill(empty, 0), -1).masked_fill(empty, 0)
    return P, 1 if strip.R is None else strip.R


def scores(strip, *pairs, B=None):
    """The sum of the products of queries with keys, scaled, and of B; 0 for None."""
    A = strip.heads.work.how.scale * sum(dot(q, mT(k)) for q, k in pairs)
    return A if B is None else A + flat(strip, B)


def dot(a, b):
    return 0 if a is None or b is None else a @ b


def mT(x):
    return x if x is None else x.mT


def total(x):
    """The sums of the rows, as a column."""
    return x.sum(-1, keepdim=True)


def leading(strip, x):
    """An array (h, rows, keys) with the leading axes of the strip's heads."""
    return x.reshape(*strip.heads.shape, *x.shape[1:])


def flat(strip, x):
    """The other way, with all its entries."""
    return x.expand(*strip.heads.shape, *strip.shape[1:]).reshape(strip.shape)
