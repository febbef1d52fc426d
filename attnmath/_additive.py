"""Additive attention, for comparison: its scores are not products, but a network's output."""

from typing import NamedTuple

from attnmath._arrays import Array, T, tanh
from attnmath._softmax import softmax, softmax_vjp


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
