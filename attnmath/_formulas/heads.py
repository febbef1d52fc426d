"""A layer of several heads: projections, attention, and the sum of what they say."""

from typing import Annotated, Generic, NamedTuple

from attnmath._formulas.attention import weighted_jvp, weighted_vjp
from attnmath._formulas.softmax import softmax
from attnmath._given.checked import checked
from attnmath._given.letters import (
    HeadsBias,
    HeadsFactors,
    HeadsScale,
    HeadsScaleGradient,
    Kind,
    OtherTokens,
    Tokens,
    all_finite,
)
from attnmath._words.arrays import Array, Scalar, T, plus, rowsum, sum_to, summed, times
from attnmath._words.layers import (
    each_head,
    from_heads,
    gather,
    heads_over_tokens,
    heads_to_bias,
    lifted,
    lowered,
    to_heads,
)

Results = Annotated[Kind, "... n d"]


class Weights(NamedTuple, Generic[Kind]):
    """What a layer learns; its gradient and its tangent are Weights as well.

    W_Q (H, d, d_k), W_K (G, d_z, d_k), W_V (G, d_z, d_v), W_O (H, d_v, d),
    b_Q (H, d_k), b_K (G, d_k), b_V (G, d_v), b_O (d,); a bias of None is none

    The head is the leading axis. G divides H, and H / G neighbouring heads share each
    key and value head: head h uses h // (H / G).
    Derived in chapters/heads.md, eq:multihead_map.
    """

    W_Q: Annotated[Kind, "H d d_k", all_finite, "H > 0", "d_k > 0"]
    W_K: Annotated[Kind, "G d_z d_k", all_finite, "G > 0", "G divides H"]
    W_V: Annotated[Kind, "G d_z d_v", all_finite]
    W_O: Annotated[Kind, "H d_v d", all_finite]
    b_Q: Annotated[Kind, "H d_k", all_finite] | None = None
    b_K: Annotated[Kind, "G d_k", all_finite] | None = None
    b_V: Annotated[Kind, "G d_v", all_finite] | None = None
    b_O: Annotated[Kind, "d", all_finite] | None = None


class MultiheadMap(NamedTuple, Generic[Kind]):
    """What a layer computes: all of each head, and the output of the layer."""

    Q: Annotated[Kind, "...X H n d_k"]
    K: Annotated[Kind, "...Z G m d_k"]
    V: Annotated[Kind, "...Z G m d_v"]
    P: Annotated[Kind, "... H n m"]
    O: Annotated[Kind, "... H n d_v"]
    Y: Results[Kind]


class MultiheadGradients(NamedTuple, Generic[Kind]):
    """The gradients of multihead, each of its argument's shape; None for B = None."""

    dX: Tokens[Kind]
    dZ: OtherTokens[Kind]
    dW: Weights[Kind]
    dB: HeadsBias[Kind] | None
    dgamma: HeadsScaleGradient[Kind]


@checked
def multihead_map(
    X: Tokens[Kind], Z: OtherTokens[Kind], W: Weights[Kind],
    B: HeadsBias[Kind] | None = None, gamma: HeadsScale | None = None,
    *, R: HeadsFactors[Kind] | None = None,
) -> MultiheadMap[Kind]:
    """The queries, keys, values, weights, output of every head; the layer's output.

    X (..., n, d), Z (..., m, d_z), W Weights, B (..., H, n, m), gamma () or (H,),
    R (..., H, n, m) -> Q (..., H, n, d_k), K (..., G, m, d_k), V (..., G, m, d_v),
    P (..., H, n, m), O (..., H, n, d_v), Y (..., n, d)

    Leading axes of X and Z are a batch and broadcast. B is a bias or a mask, broadcast
    against the scores of all heads: (n, m) is shared by all, (H, 1, m) is one for each
    head, (b, 1, n, m) one for each entry of a batch. Where it is -inf, P is 0; where a
    whole row is -inf, P = 0 and O = 0. The scale gamma is a number, or one number per
    head; None is 1/sqrt(d_k). R, 0 or 1/(1-rho), multiplies the weights: dropout. None
    is none. Raises TypeError unless W is Weights and all are floating-point arrays of
    one library and one precision; ValueError for a wrong shape, for NaN or infinity in
    X, Z, W, R or gamma, for NaN or +inf in B, and for a B of zeros and ones, which is a
    boolean mask by its looks: to mean it as a bias, give B - 1, which has the same
    weights.
    Derived in chapters/heads.md, eq:multihead_map.
    """
    Q = to_heads(X, W.W_Q, W.b_Q)
    K = to_heads(Z, W.W_K, W.b_K)
    V = to_heads(Z, W.W_V, W.b_V)
    heads = (_head(*x) for x in each_head(Q, K, V, B, lifted(gamma), R))
    P, O = gather(heads, (Q, Q))
    Y = plus(from_heads(O, W.W_O), W.b_O)
    return MultiheadMap(Q, K, V, P, O, Y)


@checked
def multihead(
    X: Tokens[Kind], Z: OtherTokens[Kind], W: Weights[Kind],
    B: HeadsBias[Kind] | None = None, gamma: HeadsScale | None = None,
    *, R: HeadsFactors[Kind] | None = None,
) -> Results[Kind]:
    """The output of a layer: what every head returns, through its W_O, added up.

    X (..., n, d), Z (..., m, d_z), W Weights, B (..., H, n, m), gamma () or (H,),
    R (..., H, n, m) -> Y (..., n, d)

    The weights of attention are kept for one head at a time. Conditions and errors as
    for multihead_map.
    Derived in chapters/heads.md, eq:multihead.
    """
    Q = to_heads(X, W.W_Q, W.b_Q)
    K = to_heads(Z, W.W_K, W.b_K)
    V = to_heads(Z, W.W_V, W.b_V)
    heads = (_head(*x)[1:] for x in each_head(Q, K, V, B, lifted(gamma), R))
    (O,) = gather(heads, (Q,))
    return plus(from_heads(O, W.W_O), W.b_O)


@checked
def multihead_vjp(
    dY: Results[Kind],
    X: Tokens[Kind], Z: OtherTokens[Kind], W: Weights[Kind],
    B: HeadsBias[Kind] | None = None, gamma: HeadsScale | None = None,
    *, R: HeadsFactors[Kind] | None = None,
    given: MultiheadMap[Kind] | None = None,
) -> MultiheadGradients[Kind]:
    """The gradients of the loss in all inputs of a layer, from that in its output.

    dY (..., n, d), X (..., n, d), Z (..., m, d_z), W Weights, B (..., H, n, m),
    gamma () or (H,), R (..., H, n, m), given MultiheadMap
    -> dX, dZ, dW, dB, dgamma, each of the shape of its argument

    dW is Weights, None where W is, summed over the batch; dB and dgamma are summed over
    the axes along which B and gamma were broadcast. Given is what multihead_map
    returned for the same arguments: then nothing is computed twice. Rows of B that are
    -inf everywhere pass nothing back. Conditions and errors as for multihead_map.

    >>> import numpy as np
    >>> from attnmath import Weights, multihead_vjp
    >>> shapes = (3, 6, 2), (3, 5, 2), (3, 5, 4), (3, 4, 6)  # d = 6, d_z = 5
    >>> W = Weights(*(np.ones(shape) for shape in shapes))
    >>> X, Z, dY = np.ones((2, 6)), np.ones((4, 5)), np.ones((2, 6))
    >>> gradients = multihead_vjp(dY, X, Z, W)
    >>> gradients.dX.shape, gradients.dZ.shape, gradients.dW.W_O.shape
    ((2, 6), (4, 5), (3, 4, 6))

    Derived in chapters/heads.md, eq:multihead_vjp.
    """
    Q, K, V, P, O, Y = given or multihead_map(X, Z, W, B, gamma, R=R)
    dO = to_heads(dY, T(W.W_O))
    like = Q, K, V, B, lifted(gamma)
    heads = (_head_vjp(*x) for x in each_head(dO, P, O, *like, R))
    dQ, dK, dV, dB, dgamma = gather(heads, like)
    dX = from_heads(dQ, T(W.W_Q))
    dZ = from_heads(dK, T(W.W_K)) + from_heads(dV, T(W.W_V))
    dW = _weights_vjp(dY, dQ, dK, dV, X, Z, O, W)
    return MultiheadGradients(dX, dZ, dW, dB, lowered(dgamma))


@checked
def multihead_jvp(
    X_dot: Tokens[Kind] | None, Z_dot: OtherTokens[Kind] | None,
    W_dot: Weights[Kind] | None,
    B_dot: HeadsBias[Kind] | None, gamma_dot: HeadsScale | None,
    X: Tokens[Kind], Z: OtherTokens[Kind], W: Weights[Kind],
    B: HeadsBias[Kind] | None = None, gamma: HeadsScale | None = None,
    *, R: HeadsFactors[Kind] | None = None,
) -> Results[Kind]:
    """The tangent of the output of a layer, from the tangents of all its arguments.

    X_dot (..., n, d), Z_dot (..., m, d_z), W_dot Weights, B_dot (..., H, n, m),
    gamma_dot () or (H,), then the arguments of multihead -> Y_dot (..., n, d)

    A tangent has the shape of its argument; None is zero, also in W_dot. Conditions and
    errors as for multihead_map.
    Derived in chapters/heads.md, eq:multihead_jvp.
    """
    Q, Q_dot = _to_heads_jvp(X_dot, W_dot.W_Q, W_dot.b_Q, X, W.W_Q, W.b_Q)
    K, K_dot = _to_heads_jvp(Z_dot, W_dot.W_K, W_dot.b_K, Z, W.W_K, W.b_K)
    V, V_dot = _to_heads_jvp(Z_dot, W_dot.W_V, W_dot.b_V, Z, W.W_V, W.b_V)
    moved = Q_dot, K_dot, V_dot, B_dot, lifted(gamma_dot)
    heads = each_head(*moved, Q, K, V, B, lifted(gamma), R)
    O, O_dot = gather((_head_jvp(*x) for x in heads), (Q, Q))
    Y_dot = from_heads(O_dot, W.W_O) + from_heads(O, W_dot.W_O)
    return plus(Y_dot, W_dot.b_O)


def _head(
    Q: Array, K: Array, V: Array, B: Array | None, gamma: Scalar, R: Array | None
) -> tuple:
    """The weights and the output of one head."""
    A = plus(gamma * Q @ T(K), B)
    P = softmax(A)
    O = times(P, R) @ V
    return P, O


def _head_vjp(
    dO: Array, P: Array, O: Array,
    Q: Array, K: Array, V: Array, B: Array | None, gamma: Scalar, R: Array | None,
) -> list:
    """The gradients dQ, dK, dV, dB, dgamma of one head."""
    dV, dA = weighted_vjp(dO, O, P, V, R)
    U = dA @ K
    dQ = gamma * U
    dK = T(dA) @ (gamma * Q)
    dB = dA
    dgamma = rowsum(Q * U)
    return [*map(summed, (dQ, dK, dV, dB, dgamma), (Q, K, V, B, gamma))]


def _head_jvp(
    Q_dot: Array, K_dot: Array, V_dot: Array, B_dot: Array | int, gamma_dot: Scalar,
    Q: Array, K: Array, V: Array, B: Array | None, gamma: Scalar, R: Array | None,
) -> tuple:
    """The output of one head, and its tangent."""
    P, O = _head(Q, K, V, B, gamma, R)
    A_dot = (gamma * Q_dot + gamma_dot * Q) @ T(K) + gamma * Q @ T(K_dot) + B_dot
    P_dot, O_dot = weighted_jvp(A_dot, V_dot, P, V, R)
    return O, O_dot


def _to_heads_jvp(
    X_dot: Array, W_dot: Array, b_dot: Array | None, X: Array, W: Array, b: Array | None
) -> tuple:
    """X W_h + 1 b_h for each head, and its tangent."""
    Q = to_heads(X, W, b)
    Q_dot = to_heads(X_dot, W) + to_heads(X, W_dot, b_dot)
    return Q, Q_dot


def _weights_vjp(
    dY: Array, dQ: Array, dK: Array, dV: Array, X: Array, Z: Array, O: Array, W: Weights
) -> Weights:
    """The gradients of the weights, summed over the batch; None for a bias of None."""
    dW_Q = heads_over_tokens(X, dQ)
    dW_K = heads_over_tokens(Z, dK)
    dW_V = heads_over_tokens(Z, dV)
    dW_O = T(heads_over_tokens(dY, O))
    db_Q = heads_to_bias(dQ, W.b_Q)
    db_K = heads_to_bias(dK, W.b_K)
    db_V = heads_to_bias(dV, W.b_V)
    return Weights(dW_Q, dW_K, dW_V, dW_O, db_Q, db_K, db_V, sum_to(dY, W.b_O))
