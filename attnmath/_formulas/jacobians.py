"""Full Jacobians: every number that attention returns by every number that it gets."""

from typing import Annotated, Generic, NamedTuple

from attnmath._formulas.attention import attention_map
from attnmath._formulas.heads import multihead_map
from attnmath._formulas.inputs import OwnBias, OwnFactors, OwnWeights
from attnmath._given.checked import checked
from attnmath._given.letters import Bias, HeadsScale, Keys, Kind, Queries, Scale, Tokens, Values
from attnmath._words.arrays import Array, Scalar, T, ahead, blocks, column, identity, kron, row, times
from attnmath._words.layers import lifted, over_heads


class Jacobians(NamedTuple, Generic[Kind]):
    """The derivatives of the output of a head by queries, keys, values and scores."""

    J_Q: Annotated[Kind, "... n d_v n d_k"]
    J_K: Annotated[Kind, "... n d_v m d_k"]
    J_V: Annotated[Kind, "... n d_v m d_v"]
    J_A: Annotated[Kind, "... n d_v n m"]


@checked
def jacobians(
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
) -> Jacobians[Kind]:
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
    A, P, L, O = attention_map(Q, K, V, B, gamma)
    U = row(P) * (ahead(T(V)) - column(O))
    J_A = blocks(U)
    J_Q = blocks(row(gamma) * U @ ahead(K))
    J_K = column(row(gamma) * U) * row(row(Q))
    J_V = kron(P, identity(V))
    return Jacobians(J_Q, J_K, J_V, J_A)


@checked
def self_attention_jacobian(
    X: Tokens[Kind], W: OwnWeights[Kind],
    B: OwnBias[Kind] | None = None, gamma: HeadsScale | None = None,
    *, R: OwnFactors[Kind] | None = None,
) -> Annotated[Kind, "... n d n d"]:
    """The derivative of the output of self_attention by the tokens, in full.

    X (..., n, d), W Weights, B (..., H, n, n), gamma () or (H,), R (..., H, n, n)
    -> J (..., n, d, n, d)

    J[..., i, a, l, b] is the derivative of Y[..., i, a] by X[..., l, b], the sum of the
    paths through queries, keys and values. It is for looking at: it has as many entries
    as X squared. Conditions and errors as for multihead_map, with X for Z.
    Derived in chapters/jacobians.md, eq:self_attention_jacobian.
    """
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
