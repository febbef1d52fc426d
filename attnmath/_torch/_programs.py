"""The derivatives of one strip in plain torch operations, which autograd differentiates.

The letters are those of chapters/second.md. Arrays (h, rows, .) of the queries and (h,
keys, .) of the keys; B (..., rows, keys) with its own axes of size 1.
"""

import torch


def both(strip, Q_dot, K_dot, V_dot, B_dot, Q, K, V, B):
    """-> O, O_dot; a tangent of None is 0."""
    Q_dot, K_dot, V_dot = zeros((Q_dot, K_dot, V_dot), (Q, K, V))
    P, R = weights(strip, Q, K, B)
    P_dot = weights_tangent(strip, P, Q_dot, K_dot, B_dot, Q, K)
    return (P * R) @ V, (P_dot * R) @ V + (P * R) @ V_dot


def second(strip, dO_dot, Q_dot, K_dot, V_dot, B_dot, dO, Q, K, V, B):
    """-> O_dot, dQ_dot, dK_dot, dV_dot, dB_dot (None without numbers in B)"""
    dO_dot, Q_dot, K_dot, V_dot = zeros((dO_dot, Q_dot, K_dot, V_dot), (dO, Q, K, V))
    scale = strip.heads.work.how.scale
    P, R = weights(strip, Q, K, B)
    P_dot = weights_tangent(strip, P, Q_dot, K_dot, B_dot, Q, K)
    O_dot = (P_dot * R) @ V + (P * R) @ V_dot
    dP = R * (dO @ V.mT)
    dP_dot = R * (dO_dot @ V.mT + dO @ V_dot.mT)
    dP, dP_dot = dP - total(P * dP), dP_dot - total(P_dot * dP + P * dP_dot)
    dA, dA_dot = P * dP, P_dot * dP + P * dP_dot
    dQ_dot = scale * (dA_dot @ K + dA @ K_dot)
    dK_dot = scale * (dA_dot.mT @ Q + dA.mT @ Q_dot)
    dV_dot = (P_dot * R).mT @ dO + (P * R).mT @ dO_dot
    dB_dot = None
    if B is not None and B.dtype != torch.bool:
        dB_dot = leading(strip, dA_dot).sum_to_size(B.shape)
    return O_dot, dQ_dot, dK_dot, dV_dot, dB_dot


def weights(strip, Q, K, B):
    """-> P, 0 in a row that may attend to nothing, and the factors R of dropout"""
    how = strip.heads.work.how
    A = how.scale * (Q @ K.mT)
    if B is not None and B.dtype == torch.bool:
        A = leading(strip, A).masked_fill(~B, -torch.inf).reshape(A.shape)
    elif B is not None:
        A = (leading(strip, A) + B).reshape(A.shape)
    if how.causal:
        i = torch.arange(strip.rows.start, strip.rows.stop, device=A.device)
        j = torch.arange(strip.keys.stop, device=A.device)
        A = A.masked_fill(j > i[:, None], -torch.inf)
    empty = (A == -torch.inf).all(-1, keepdim=True)
    P = torch.softmax(A.masked_fill(empty, 0), -1).masked_fill(empty, 0)
    return P, 1 if strip.R is None else strip.R


def weights_tangent(strip, P, Q_dot, K_dot, B_dot, Q, K):
    A_dot = strip.heads.work.how.scale * (Q_dot @ K.mT + Q @ K_dot.mT)
    if B_dot is not None:
        A_dot = (leading(strip, A_dot) + B_dot).reshape(A_dot.shape)
    return P * (A_dot - total(P * A_dot))


def zeros(tangents, inputs):
    return [torch.zeros_like(x) if x_dot is None else x_dot for x_dot, x in zip(tangents, inputs)]


def total(x):
    """The sums of the rows, as a column."""
    return x.sum(-1, keepdim=True)


def leading(strip, x):
    """An array (h, rows, keys) with the leading axes of the strip's heads."""
    return x.reshape(*strip.heads.shape, *x.shape[1:])
