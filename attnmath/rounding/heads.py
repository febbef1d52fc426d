"""Two heads that round like real programs: one keeps its sums wide, one rounds every step.

They are correct, and only for measuring: what they compute lies inside of the bounds. They
add one term after the other, so that they round alike on every machine.
"""

from collections.abc import Iterator

import numpy as np

from attnmath._formulas.attention import AttentionGradients
from attnmath.rounding.formats import nearest


def fused_head(dO, Q, K, V, B, gamma, dtype, tile=16, D_from="O", turned=False):
    """A fast kernel: tiles of keys, sums in float32; P, dA and results stored in dtype.

    dO (n, d_v), Q (n, d_k), K (m, d_k), V (m, d_v), B (n, m), gamma ()
    -> O (n, d_v), L (n,), and dQ, dK, dV, dB as gradients

    The way back finds the weights again from L. D_from says where D comes from: "O", the
    row sum of dO times the stored output, or "P", that of the weights times dP. If it is
    turned, the way forward takes the features of queries and keys in the other order, so
    that the scores of the two passes are rounded differently.
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
    if D_from == "P":
        D = sum((P * dP).sum(1, keepdims=True) for _, P, dP in back)
    dQ, dK, dV, dB = map(np.zeros_like, (Q, K, V, B))
    for t, P, dP in back:
        dA = dB[:, t] = stored(P * (dP - D))
        dQ = dQ + _single(dA, K[t])
        dK[t], dV[t] = stored(gamma * _single(dA.T, Q)), stored(_single(stored(P).T, dO))
    L = np.where(np.isinf(top), -np.inf, L)[:, 0]
    return O, L, AttentionGradients(stored(gamma * dQ), dK, dV, dB, None)


def stepwise_head(dO, Q, K, V, B, gamma, dtype, order=None):
    """Every single operation rounded to dtype, sums one term after the other.

    dO (n, d_v), Q (n, d_k), K (m, d_k), V (m, d_v), B (n, m), gamma ()
    -> O (n, d_v), L (n,), and dQ, dK, dV, dB as gradients

    The order is a permutation of the keys, in which sums over them are taken.
    """
    order = np.arange(len(K)) if order is None else order

    def r(x):
        return nearest(x, dtype)

    def product(X, Y):
        out = np.zeros((len(X), Y.shape[1]))
        for k in order if X.shape[1] == len(K) else range(X.shape[1]):
            out = r(out + r(X[:, k, None] * Y[k]))
        return out

    ones = np.ones((B.shape[1], 1))
    A = r(r(gamma * product(Q, K.T)) + B)
    top = A.max(1, keepdims=True)
    E = r(np.exp(r(A - _live(top))))
    total = product(E, ones)
    P = r(E / np.where(total == 0, 1, total))
    O = product(P, V)
    with np.errstate(divide="ignore"):
        L = r(top + r(np.log(total)))[:, 0]
    dP = product(dO, V.T)
    dA = r(P * r(dP - product(r(P * dP), ones)))
    dQ, dK = r(gamma * product(dA, K)), r(gamma * product(dA.T, Q))
    return O, L, AttentionGradients(dQ, dK, product(P.T, dO), dA, None)


def _tiles(m: int, tile: int) -> Iterator[slice]:
    return (slice(k, min(k + tile, m)) for k in range(0, m, tile))


def _single(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The product X Y, summed in float32."""
    return np.multiply(X[:, :, None], Y, order="C").sum(1)


def _exp(x: np.ndarray) -> np.ndarray:
    return np.exp(x.astype(float)).astype(np.float32)


def _live(top: np.ndarray) -> np.ndarray:
    """The largest score, or 0 in a row that has none."""
    return np.where(np.isinf(top), 0, top).astype(top.dtype)
