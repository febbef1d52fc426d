"""Full Jacobians: every number that attention returns by every number that it gets."""

from typing import NamedTuple

from attnmath._arguments import head
from attnmath._arrays import (
    Array,
    Scalar,
    T,
    ahead,
    blocks,
    column,
    identity,
    kron,
    row,
    times,
)
from attnmath._attention import attention_map
from attnmath._heads import Weights, multihead_map
from attnmath._layer_arguments import layer
from attnmath._layer_arrays import lifted, over_heads


class Jacobians(NamedTuple):
    """The derivatives of the output of a head by queries, keys, values and scores."""

    J_Q: Array
    J_K: Array
    J_V: Array
    J_A: Array


def jacobians(
    Q: Array, K: Array, V: Array, B: Array | None = None, gamma: Scalar | None = None
) -> Jacobians:
    """The derivatives of a head's output by queries, keys, values and scores, in full.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma ()
    -> J_Q (..., n, d_v, n, d_k), J_K (..., n, d_v, m, d_k), J_V (..., n, d_v, m, d_v),
    J_A (..., n, d_v, n, m)

    J_Q[..., i, a, l, b] is the derivative of O[..., i, a] by Q[..., l, b], and so on.
    All have the leading axes of O. J_A is the derivative by B as well. They are for
    looking at: J_Q has as many numbers as O times as many as Q. What belongs to a row
    of B that is -inf everywhere is 0. Conditions and errors as for attention_map.
    Derived in chapters/jacobians.md, eq:jacobians.
    """
    Q, K, V, B, gamma = head("jacobians", Q, K, V, B, gamma)
    A, P, L, O = attention_map(Q, K, V, B, gamma)
    U = row(P) * (ahead(T(V)) - column(O))
    J_A = blocks(U)
    J_Q = blocks(row(gamma) * U @ ahead(K))
    J_K = column(row(gamma) * U) * row(row(Q))
    J_V = kron(P, identity(V))
    return Jacobians(J_Q, J_K, J_V, J_A)


def self_attention_jacobian(
    X: Array, W: Weights, B: Array | None = None, gamma: Scalar | None = None,
    *, R: Array | None = None,
) -> Array:
    """The derivative of the output of self_attention by the tokens, in full.

    X (..., n, d), W Weights, B (..., H, n, n), gamma () or (H,), R (..., H, n, n)
    -> J (..., n, d, n, d)

    J[..., i, a, l, b] is the derivative of Y[..., i, a] by X[..., l, b], the sum of the
    paths through queries, keys and values. It is for looking at: it has as many entries
    as X squared. Conditions and errors as for multihead_map, with X for Z.
    Derived in chapters/jacobians.md, eq:self_attention_jacobian.
    """
    X, X, W, B, gamma, R = layer("self_attention_jacobian", X, X, W, B, gamma, R)
    Q, K, V, P, O, Y = multihead_map(X, X, W, B, gamma, R=R)
    return over_heads(_head_jacobian, Q, K, V, P, O, *W[:4], lifted(gamma), R)


def _head_jacobian(
    Q: Array, K: Array, V: Array, P: Array, O: Array,
    W_Q: Array, W_K: Array, W_V: Array, W_O: Array, gamma: Scalar, R: Array | None,
) -> Array:
    """The part of one head: its paths through queries, keys and values."""
    U = row(times(P, R)) * ahead(T(V @ W_O)) - row(P) * column(O @ W_O)
    J_Q = blocks(gamma * U @ ahead(K @ T(W_Q)))
    J_K = column(gamma * U) * row(row(Q @ T(W_K)))
    J_V = kron(times(P, R), T(W_V @ W_O))
    return J_Q + J_K + J_V
