"""How much a head, and a layer of self-attention, can lengthen a small change at most."""

from typing import NamedTuple

import numpy as np

from attnmath._attention import attention_map

Array = np.ndarray


class Bounds(NamedTuple):
    """A bound on the norm of the Jacobian of O by each input."""

    Q: float
    K: float
    V: float


def norm(J: Array) -> float:
    """The largest factor by which a Jacobian lengthens a change.

    J (n, d_v, m, d_k), a row of the output by a row of the input -> a number
    """
    return float(np.linalg.norm(J.reshape(J.shape[0] * J.shape[1], -1), 2))


def longest(X: Array) -> float:
    """The length of the longest row."""
    return float(np.linalg.norm(X, axis=-1).max())


def diameter(X: Array) -> float:
    """The largest distance of two rows."""
    return longest(X[:, None] - X)


def load(P: Array) -> float:
    """c, the weight that the most wanted key gets from all queries together."""
    return float(P.sum(axis=0).max())


def head_bounds(
    Q: Array, K: Array, V: Array, B: Array | None = None, gamma: float | None = None
) -> Bounds:
    """Bounds on the norms of the three Jacobians of one head.

    Q (n, d_k), K (m, d_k), V (m, d_v), B (n, m), gamma () -> three numbers

    The scale gamma must not be negative; None is 1/sqrt(d_k).
    Derived in chapters/lipschitz.md, prp:query_bound, prp:key_bound, prp:value_bound.
    """
    gamma = Q.shape[-1] ** -0.5 if gamma is None else gamma
    A, P, L, O = attention_map(Q, K, V, B, gamma)
    c = load(P)
    s = float((P * ((V - O[:, None]) ** 2).sum(axis=-1)).sum(axis=-1).max())
    by_query = gamma / 4 * diameter(V) * diameter(K)
    return Bounds(by_query, gamma * longest(Q) * np.sqrt(c * s), np.sqrt(c))


def ball_bound(r: float, M: Array, W_V: Array, gamma: float, c: float) -> float:
    """A bound on the norm of the Jacobian of self-attention, tokens of length r at most.

    M (d, d), W_V (d, d_v), gamma () -> a number

    One head without biases. c is the load of the weights, or the number of tokens if the
    weights are not known. Derived in chapters/lipschitz.md, prp:ball_bound.
    """
    s = gamma * np.linalg.norm(M, 2) * r**2
    return float(np.linalg.norm(W_V, 2) * (s + s * np.sqrt(c) + np.sqrt(c)))
