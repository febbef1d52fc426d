"""Heads that round like real programs: one keeps its sums wide, one rounds every step; and their tangents.

They are correct, and only for measuring: what they compute lies inside of the bounds. They
add one term after the other, so that they round alike on every machine.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attnmath._formulas.attention import AttentionGradients
from attnmath.rounding.formats import nearest


def fused_head(dO, Q, K, V, B, gamma, dtype, tile=16, D_from="O", turned=False):
    """A fast kernel: tiles of keys, sums in float32; P, dA and results stored in dtype.

    dO (n, d_v), Q (n, d_k), K (m, d_k), V (m, d_v), B (n, m), gamma ()
    -> O (n, d_v), L (n,), and dQ, dK, dV, dB as gradients

    The way back finds the weights again from L. D_from says where D comes from: "O", the
    row sum of dO times the stored output; "P", that of the weights times dP; or "mean",
    the same divided by the sum of these weights, which is 1 up to rounding. If it is turned,
    the way forward takes the features of queries and keys in the other order, so that the
    scores of the two passes are rounded differently.
    """
    side = slice(None, None, -1 if turned else 1)

    def stored(x):
        return nearest(x, dtype).astype(np.float32)

    dO, Q, K, V, B = (np.asarray(x, np.float32) for x in (dO, Q, K, V, B))
    gamma = np.float32(gamma)
    top, total = np.full((len(Q), 1), -np.inf, np.float32), np.float32(0)
    N = np.zeros((len(Q), V.shape[1]), np.float32)
    for t in _tiles(len(K), tile):
        A = gamma * _single(Q[:, side], K[t, side].T) + B[:, t]
        new = np.maximum(top, A.max(1, keepdims=True))
        E, fade = _exp(A - _live(new)), _exp(top - _live(new))
        total = fade * total + E.sum(1, keepdims=True)
        N, top = fade * N + _single(stored(E), V[t]), new
    live = np.where(total == 0, 1, total)
    O, L = stored(N / live), _live(top) + np.log(live.astype(float)).astype(np.float32)
    D = (dO * O).sum(1, keepdims=True)
    back = []
    for t in _tiles(len(K), tile):
        P = _exp(gamma * _single(Q, K[t].T) + B[:, t] - L)
        back.append((t, P, _single(dO, V[t].T)))
    if D_from != "O":
        D = sum((P * dP).sum(1, keepdims=True) for _, P, dP in back)
    if D_from == "mean":
        D = D / np.where(D == 0, np.float32(1), sum(P.sum(1, keepdims=True) for _, P, _ in back))
    dQ, dK, dV, dB = map(np.zeros_like, (Q, K, V, B))
    for t, P, dP in back:
        dA = dB[:, t] = stored(P * (dP - D))
        dQ = dQ + _single(dA, K[t])
        dK[t], dV[t] = stored(gamma * _single(dA.T, Q)), stored(_single(stored(P).T, dO))
    L = np.where(np.isinf(top), -np.inf, L)[:, 0]
    return O, L, AttentionGradients(stored(gamma * dQ), dK, dV, dB, None)


class StepwiseHead(NamedTuple):
    """What a head computes in which every step is rounded."""

    O: np.ndarray
    L: np.ndarray
    dP: np.ndarray
    D: np.ndarray  # a column
    back: AttentionGradients
    P: np.ndarray
    theta: np.ndarray  # by how much the exponents of the weights are off; 0 where a score is -inf


def stepwise_head(dO, Q, K, V, B, gamma, dtype, order=None):
    """Every single operation rounded to dtype, sums one term after the other.

    dO (n, d_v), Q (n, d_k), K (m, d_k), V (m, d_v), B (n, m), gamma () -> StepwiseHead

    The order is a permutation of the keys, in which sums over them are taken.
    """
    order = np.arange(len(K)) if order is None else order

    def r(x):
        return nearest(x, dtype)

    def product(X, Y):
        return _stepwise(X, Y, dtype, order if X.shape[1] == len(K) else None)

    ones = np.ones((B.shape[1], 1))
    QK, top, total, P, E = _stepwise_weights(Q, K, B, gamma, r, product)
    O = product(P, V)
    with np.errstate(divide="ignore"):
        L = r(top + r(np.log(total)))[:, 0]
    dP = product(dO, V.T)
    D = product(r(P * dP), ones)
    dA = r(P * r(dP - D))
    dQ, dK = r(gamma * product(dA, K)), r(gamma * product(dA.T, Q))
    dgamma = product(np.ones((1, len(Q))), product(r(dA * QK), ones)).item()
    back = AttentionGradients(dQ, dK, product(P.T, dO), dA, dgamma)
    with np.errstate(divide="ignore", invalid="ignore"):
        theta = np.where(E > 0, np.log(E) - (gamma * (Q @ K.T) + B - _live(top)), 0)
    return StepwiseHead(O, L, dP, D, back, P, theta)


def stepwise_jvp(Q_dot, K_dot, V_dot, B_dot, gamma_dot, Q, K, V, B, gamma, dtype):
    """Tangents of which every single operation is rounded to dtype, those of the weights first.

    Q_dot (n, d_k), K_dot (m, d_k), V_dot (m, d_v), B_dot (n, m), gamma_dot (), Q (n, d_k), K (m, d_k),
    V (m, d_v), B (n, m), gamma () -> A_dot (n, m), mu (n, 1), P_dot (n, m), O_dot (n, d_v)
    """

    def r(x):
        return nearest(x, dtype)

    def product(X, Y):
        return _stepwise(X, Y, dtype)

    QK, _, _, P, _ = _stepwise_weights(Q, K, B, gamma, r, product)
    moved = r(gamma * r(product(Q_dot, K.T) + product(Q, K_dot.T)))
    A_dot = r(r(moved + r(gamma_dot * QK)) + B_dot)
    mu = product(r(P * A_dot), np.ones((len(K), 1)))
    P_dot = r(P * r(A_dot - mu))
    return A_dot, mu, P_dot, r(product(P_dot, V) + product(P, V_dot))


def fused_jvp(Q_dot, K_dot, V_dot, B_dot, gamma_dot, Q, K, V, B, gamma, dtype, tile=16):
    """A fast kernel's O_dot: one pass over tiles of keys, four sums in float32 that are faded together.

    Q_dot (n, d_k), K_dot (m, d_k), V_dot (m, d_v), B_dot (n, m), gamma_dot (), Q (n, d_k), K (m, d_k),
    V (m, d_v), B (n, m), gamma () -> O_dot (n, d_v)
    """

    def stored(x):
        return nearest(x, dtype).astype(np.float32)

    given = Q_dot, K_dot, V_dot, B_dot, Q, K, V, B
    Q_dot, K_dot, V_dot, B_dot, Q, K, V, B = (np.asarray(x, np.float32) for x in given)
    gamma, gamma_dot = np.float32(gamma), np.float32(gamma_dot)
    top, total, mu = np.full((len(Q), 1), -np.inf, np.float32), np.float32(0), np.float32(0)
    N = U = np.zeros((len(Q), V.shape[1]), np.float32)
    for t in _tiles(len(K), tile):
        QK = _single(Q, K[t].T)
        A = gamma * QK + B[:, t]
        A_dot = gamma * (_single(Q_dot, K[t].T) + _single(Q, K_dot[t].T)) + gamma_dot * QK + B_dot[:, t]
        new = np.maximum(top, A.max(1, keepdims=True))
        E, fade = _exp(A - _live(new)), _exp(top - _live(new))
        W = E * A_dot
        total, mu = fade * total + E.sum(1, keepdims=True), fade * mu + W.sum(1, keepdims=True)
        N = fade * N + _single(stored(E), V[t])
        U = fade * U + _single(stored(W), V[t]) + _single(stored(E), V_dot[t])
        top = new
    live = np.where(total == 0, 1, total)
    return stored(U / live - mu / live * (N / live))


def cut_off(X, Y, group=4):
    """X Y in float32 as tensor cores do it: so many products are aligned with their sum, the rest is lost."""
    out = np.zeros((len(X), Y.shape[1]))
    for k in range(0, X.shape[1], group):
        terms = [out, *(X[:, i, None].astype(float) * Y[i] for i in range(k, min(k + group, X.shape[1])))]
        out = _cut(sum(_cut(a, np.abs(terms).max(0)) for a in terms))
    return out.astype(np.float32)


def _cut(x, like=None):
    """x without the digits below the 24 of like."""
    step = 2.0 ** (np.frexp(x if like is None else like)[1] - 24)
    return np.trunc(x / step) * step


def _tiles(m: int, tile: int) -> Iterator[slice]:
    return (slice(k, min(k + tile, m)) for k in range(0, m, tile))


def _stepwise(X: np.ndarray, Y: np.ndarray, dtype: str, order: np.ndarray | None = None) -> np.ndarray:
    """The product X Y, each operation rounded, the terms of its sums one after the other."""
    out = np.zeros((len(X), Y.shape[1]))
    for k in range(X.shape[1]) if order is None else order:
        out = nearest(out + nearest(X[:, k, None] * Y[k], dtype), dtype)
    return out


def _stepwise_weights(Q, K, B, gamma, r, product):
    """Products of queries and keys, largest scores and sums of rows, weights and their numerators; r rounds."""
    QK = product(Q, K.T)
    A = r(r(gamma * QK) + B)
    top = A.max(1, keepdims=True)
    E = r(np.exp(r(A - _live(top))))
    total = product(E, np.ones((len(K), 1)))
    return QK, top, total, r(E / np.where(total == 0, 1, total)), E


def _single(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The product X Y, summed in float32."""
    return np.multiply(X[:, :, None], Y, order="C").sum(1)


def _exp(x: np.ndarray) -> np.ndarray:
    return np.exp(x.astype(float)).astype(np.float32)


def _live(top: np.ndarray) -> np.ndarray:
    """The largest score, or 0 in a row that has none."""
    return np.where(np.isinf(top), 0, top).astype(top.dtype)
