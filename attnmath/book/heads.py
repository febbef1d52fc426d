"""Heads: what attention is compared with, how much a head can lengthen a change, what its output hangs on.

Derived in chapters/comparisons.md, chapters/source_sdpa.md (additive attention), chapters/lipschitz.md and
chapters/reading_heads.md.
"""

from typing import NamedTuple

import numpy as np
from numpy import ndarray

from attnmath._formulas.attention import attention_map
from attnmath._formulas.heads import MultiheadMap
from attnmath._formulas.projections import linear, linear_vjp
from attnmath._formulas.softmax import softmax, softmax_vjp
from attnmath._words.arrays import (
    Array,
    T,
    ahead,
    column,
    exp,
    flat,
    namespace,
    nonzero,
    real,
    row,
    rowsum,
    shift,
    sqrt,
    tanh,
)
from attnmath._words.layers import over_tokens, to_heads


class AdditiveMap(NamedTuple):
    """What the head computes: the hidden units of each pair, scores, weights, output."""

    T: Array
    A: Array
    P: Array
    O: Array


class AdditiveGradients(NamedTuple):
    """The gradients of additive attention, each of its argument's shape."""

    dQ: Array
    dK: Array
    dV: Array
    dW: Array
    dU: Array
    dw: Array


def additive_map(
    Q: Array, K: Array, V: Array, W: Array, U: Array, w: Array
) -> AdditiveMap:
    """A head whose scores are a network with one hidden layer of each query and key.

    Q (n, d_k), K (m, d_k), V (m, d_v), W (d_k, d_a), U (d_k, d_a), w (d_a,)
    -> T (n, m, d_a), A (n, m), P (n, m), O (n, d_v)

    Derived in chapters/source_sdpa.md, prp:additive.
    """
    hidden = tanh((Q @ W)[:, None] + K @ U)
    A = hidden @ w
    P = softmax(A)
    O = P @ V
    return AdditiveMap(hidden, A, P, O)


def additive_vjp(
    dO: Array, Q: Array, K: Array, V: Array, W: Array, U: Array, w: Array
) -> AdditiveGradients:
    """The gradients of the loss in all inputs of additive_map, from that in its output.

    dO (n, d_v), then the inputs of additive_map -> dQ, dK, dV, dW, dU, dw

    Derived in chapters/source_sdpa.md, prp:additive_vjp.
    """
    hidden, A, P, _ = additive_map(Q, K, V, W, U, w)
    dA = softmax_vjp(dO @ T(V), A).dA[..., None]
    G = (1 - hidden * hidden) * (dA * w)
    of_query, of_key = G.sum(1), G.sum(0)
    dw = (dA * hidden).sum((0, 1))
    return AdditiveGradients(
        of_query @ T(W), of_key @ T(U), T(P) @ dO, T(Q) @ of_query, T(K) @ of_key, dw
    )


def stacked(rows: list) -> Array:
    """Rows (..., 1, d), one below the other: (..., n, d)."""
    return namespace(rows[0]).concat(rows, axis=-2)


def each_row(*arrays: Array) -> list:
    """The rows of the arrays, together: for each i a tuple of (..., 1, d)."""
    n = arrays[0].shape[-2]
    return [tuple(x[..., i : i + 1, :] for x in arrays) for i in range(n)]


def recurrent(X: Array, W_X: Array, W_S: Array, b: Array | None = None) -> Array:
    """The states of a recurrent network, each made of a token and the state before.

    X (..., n, d), W_X (d, d_u), W_S (d_u, d_u), b (d_u,) -> S (..., n, d_u)

    The state before the first token is zero.
    """
    S, before = [], 0
    for (u,) in each_row(linear(X, W_X, b)):
        S.append(tanh(u + before))
        before = S[-1] @ W_S
    return stacked(S)


def recurrent_vjp(dS: Array, X: Array, W_X: Array, W_S: Array, b: Array | None = None) -> tuple:
    """The gradients dX, dW_X, dW_S, db of the loss, from that in the states, dS."""
    S, dU, later = recurrent(X, W_X, W_S, b), [], 0
    for ds, s in each_row(dS, S)[::-1]:
        dU.append((ds + later) * (1 - s * s))
        later = dU[-1] @ T(W_S)
    dU = stacked(dU[::-1])
    dX, dW_X, db = linear_vjp(dU, X, W_X, b)
    dW_S = over_tokens(S[..., :-1, :], dU[..., 1:, :])
    return dX, dW_X, dW_S, db


def by_keys(A: Array, V: Array) -> Array:
    """The output of a head, key by key; the state is (mu, sigma, O).

    A (..., n, m), V (..., m, d_v) -> O (..., n, d_v)

    Keys with a score of -inf are passed over.
    """
    mu = A[..., :1]
    sigma = exp(shift(mu, mu))
    O = sigma * V[..., :1, :]
    for j in range(1, A.shape[-1]):
        before, a, v = mu, A[..., j : j + 1], V[..., j : j + 1, :]
        mu = namespace(A).where(real(a) > real(mu), a, mu)
        p = exp(shift(a, mu))
        sigma = exp(shift(before, mu)) * sigma + p
        O = O + p / nonzero(sigma) * (v - O)
    return O


def linear_attention(Q: Array, K: Array, V: Array) -> Array:
    """Each query's mean of the values up to its own, weighted by <q, k>; by a recurrence.

    Q (..., n, d_k), K (..., n, d_k), V (..., n, d_v), Q and K positive -> O (..., n, d_v)

    The state is (S, z).
    """
    O, S, z = [], 0, 0
    for q, k, v in each_row(Q, K, V):
        S, z = S + T(k) @ v, z + k
        O.append(q @ S / rowsum(q * z))
    return stacked(O)


def linear_attention_vjp(dO: Array, Q: Array, K: Array, V: Array) -> tuple:
    """dQ, dK, dV of linear_attention: one recurrence forwards, one from the end."""
    dQ, parts, S, z = [], [], 0, 0
    for do, q, k, v in each_row(dO, Q, K, V):
        S, z = S + T(k) @ v, z + k
        sigma = rowsum(q * z)
        D = rowsum(do * (q @ S / sigma))
        dQ.append((do @ T(S) - D * z) / sigma)
        parts.append((T(q) @ do / sigma, D / sigma * q, k, v))
    dK, dV, G, g = [], [], 0, 0
    for from_S, from_z, k, v in parts[::-1]:
        G, g = G + from_S, g + from_z
        dK.append(v @ T(G) - g)
        dV.append(k @ G)
    return stacked(dQ), stacked(dK[::-1]), stacked(dV[::-1])


# ---- how much a head, and a layer of self-attention, can lengthen a small change at most ---------


class JacobianBounds(NamedTuple):
    """A bound on the norm of the Jacobian of O by each input."""

    Q: float
    K: float
    V: float


def norm(J: ndarray) -> float:
    """The largest factor by which a Jacobian lengthens a change.

    J (n, d_v, m, d_k), a row of the output by a row of the input -> a number
    """
    return float(np.linalg.norm(J.reshape(J.shape[0] * J.shape[1], -1), 2))


def longest(X: ndarray) -> float:
    """The length of the longest row."""
    return float(np.linalg.norm(X, axis=-1).max())


def diameter(X: ndarray) -> float:
    """The largest distance of two rows."""
    return longest(X[:, None] - X)


def key_load(P: ndarray) -> float:
    """c, the weight that the most wanted key gets from all queries together."""
    return float(P.sum(axis=0).max())


def head_bounds(
    Q: ndarray, K: ndarray, V: ndarray, B: ndarray | None = None, gamma: float | None = None
) -> JacobianBounds:
    """Bounds on the norms of the three Jacobians of one head.

    Q (n, d_k), K (m, d_k), V (m, d_v), B (n, m), gamma () -> three numbers

    The scale gamma must not be negative; None is 1/sqrt(d_k).
    Derived in chapters/lipschitz.md, prp:query_bound, prp:key_bound, prp:value_bound.
    """
    gamma = Q.shape[-1] ** -0.5 if gamma is None else gamma
    A, P, L, O = attention_map(Q, K, V, B, gamma)
    c = key_load(P)
    s = float((P * ((V - O[:, None]) ** 2).sum(axis=-1)).sum(axis=-1).max())
    by_query = gamma / 4 * diameter(V) * diameter(K)
    return JacobianBounds(by_query, gamma * longest(Q) * np.sqrt(c * s), np.sqrt(c))


def ball_bound(r: float, M: ndarray, W_V: ndarray, gamma: float, c: float) -> float:
    """A bound on the norm of the Jacobian of self-attention, tokens of length r at most.

    M (d, d), W_V (d, d_v), gamma () -> a number

    One head without biases. c is the load of the weights, or the number of tokens if the
    weights are not known. Derived in chapters/lipschitz.md, prp:ball_bound.
    """
    s = gamma * np.linalg.norm(M, 2) * r**2
    return float(np.linalg.norm(W_V, 2) * (s + s * np.sqrt(c) + np.sqrt(c)))


# ---- the weight of a key, its gradients, its removal ---------------------------------------------


class Associations(NamedTuple):
    """Four tables of queries and keys for every head, (..., H, n, m) each.

    P are the weights, P_dP is gradient times weight, dA the gradient of the scores, and
    gain what the loss gains without the key if it is linear in the output of the head.
    """

    P: Array
    P_dP: Array
    dA: Array
    gain: Array


def without_key(P: Array, V: Array) -> Array:
    """The output of a head without one of its keys, for each query and each key.

    P (..., n, m), V (..., m, d_v) -> (..., m, n, d_v)

    Zero where the weight of the key is 1: it is the only one.
    """
    rest = nonzero(1 - P)
    return (ahead(P @ V) - column(T(P)) * row(V)) / column(T(rest))


def associations(dY: Array, heads: MultiheadMap, W_O: Array) -> Associations:
    """The tables of a layer's heads, from the gradient of the loss in its output.

    dY (..., n, d), W_O (H, d_v, d), P and V of the heads (..., H, n, m), (..., H, m, d_v)
    -> P, P_dP, dA, gain, each (..., H, n, m)

    The gain is zero where the weight of the key is 1.
    """
    P, V = heads.P, heads.V
    dO = to_heads(dY, T(W_O))
    P_dP = P * (dO @ T(V))
    dA = P_dP - P * rowsum(P_dP)
    gain = -dA / nonzero(1 - P)
    return Associations(P, P_dP, dA, gain)


def moved_without_key(heads: MultiheadMap, W_O: Array) -> Array:
    """How far the output of the layer moves when a head loses a key: a length.

    W_O (H, d_v, d), P, V, O of the heads -> (..., H, n, m)
    """
    change = without_key(heads.P, heads.V) - ahead(heads.O)
    change = change @ ahead(W_O)
    return T(flat(sqrt(rowsum(change * change))))
