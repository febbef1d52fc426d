"""One attention head, with any number of leading axes, and its derivatives."""

from typing import Generic, NamedTuple

from attnmath._formulas.softmax import logsumexp, softmax
from attnmath._given.checked import checked
from attnmath._given.letters import (
    Bias,
    Factors,
    Keys,
    Kind,
    Outputs,
    Pairs,
    PerQuery,
    Queries,
    Scale,
    ScaleGradient,
    Values,
)
from attnmath._words.arrays import Array, T, plus, rowsum, summed, times


class AttentionMap(NamedTuple, Generic[Kind]):
    """What a head computes: scores, weights, log-sum-exp of the scores, output."""

    A: Pairs[Kind]
    P: Pairs[Kind]
    L: PerQuery[Kind]
    O: Outputs[Kind]


class AttentionGradients(NamedTuple, Generic[Kind]):
    """The gradients of attention, each of its argument's shape; None for B = None."""

    dQ: Queries[Kind]
    dK: Keys[Kind]
    dV: Values[Kind]
    dB: Bias[Kind] | None
    dgamma: ScaleGradient[Kind]


@checked
def attention_map(
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> AttentionMap[Kind]:
    """The scores, the weights, the log-sum-exp of the scores, and the output of a head.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma (),
    R (..., n, m) -> A (..., n, m), P (..., n, m), L (..., n), O (..., n, d_v)

    Leading axes broadcast. B is a bias or a mask, broadcast against A: where it is
    -inf, P is 0; where a whole row is -inf, P = 0, O = 0 and L = -inf. None is no bias.
    The scale gamma is a number, or an array that broadcasts against A; None is
    1/sqrt(d_k). R is what dropout_mask gives, broadcast against A: it multiplies the
    weights that O is made from; None is no dropout. Raises TypeError unless all are
    floating-point arrays of one library and one precision, ValueError for a wrong
    shape, for NaN or +inf in B, and for NaN, +inf or a number below 0 in R.
    Derived in chapters/attention_map.md, eq:attention_map.
    """
    A = plus(gamma * (Q @ T(K)), B)
    P = softmax(A)
    L = logsumexp(A)
    O = times(P, R) @ V
    return AttentionMap(A, P, L, O)


@checked
def attention(
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> Outputs[Kind]:
    """The output of a head: for every query the weighted mean of the values.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma (),
    R (..., n, m) -> O (..., n, d_v)

    Conditions and errors as for attention_map.

    >>> import numpy as np
    >>> from attnmath import attention
    >>> Q, K, V = np.zeros((2, 3)), np.ones((4, 3)), np.arange(8.0).reshape(4, 2)
    >>> attention(Q, K, V)  # all scores are 0: the mean of the values
    array([[3., 4.],
           [3., 4.]])

    Derived in chapters/attention_map.md, eq:attention.
    """
    return times(softmax(plus(gamma * (Q @ T(K)), B)), R) @ V


@checked
def attention_vjp(
    dO: Outputs[Kind],
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> AttentionGradients[Kind]:
    """The gradients of the loss in all inputs of a head, from that in its output.

    dO (..., n, d_v), Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m),
    gamma (), R (..., n, m) -> dQ, dK, dV, dB, dgamma, each of the shape of its argument

    Each is summed over the axes along which its argument was broadcast. dB is None if B
    is None; dgamma is there also for the default gamma. Rows of B that are -inf
    everywhere pass nothing back. R is a constant, that of the way forward; another R
    gives the gradients of another function. Conditions and errors as for attention_map.

    >>> import numpy as np
    >>> from attnmath import attention_vjp
    >>> Q, K, V = np.zeros((2, 3)), np.ones((4, 3)), np.arange(8.0).reshape(4, 2)
    >>> gradients = attention_vjp(np.ones((2, 2)), Q, K, V)
    >>> gradients.dV  # each of two queries passes a quarter to each value
    array([[0.5, 0.5],
           [0.5, 0.5],
           [0.5, 0.5],
           [0.5, 0.5]])
    >>> gradients.dQ.shape, gradients.dK.shape
    ((2, 3), (4, 3))

    Derived in chapters/attention.md, eq:attention_vjp.
    """
    P = softmax(plus(gamma * (Q @ T(K)), B))
    O = times(P, R) @ V
    dV, dA = weighted_vjp(dO, O, P, V, R)
    dQ = gamma * dA @ K
    dK = T(gamma * dA) @ Q
    dB = dA
    dgamma = dA * (Q @ T(K))
    found = dQ, dK, dV, dB, dgamma
    return AttentionGradients(*map(summed, found, (Q, K, V, B, gamma)))


@checked
def attention_jvp(
    Q_dot: Queries[Kind] | None, K_dot: Keys[Kind] | None,
    V_dot: Values[Kind] | None, B_dot: Bias[Kind] | None, gamma_dot: Scale | None,
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> Outputs[Kind]:
    """The tangent of the output of a head, from the tangents of all its inputs.

    Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), B_dot (..., n, m),
    gamma_dot (), then the arguments of attention -> O_dot (..., n, d_v)

    A tangent has the shape of its argument; None is zero. R does not move. Conditions
    and errors as for attention_map.
    Derived in chapters/attention.md, eq:attention_jvp.
    """
    P = softmax(plus(gamma * (Q @ T(K)), B))
    A_dot = gamma * (Q_dot @ T(K) + Q @ T(K_dot)) + gamma_dot * (Q @ T(K)) + B_dot
    P_dot, O_dot = weighted_jvp(A_dot, V_dot, P, V, R)
    return O_dot


def weighted_vjp(
    dO: Array, O: Array, P: Array, V: Array, R: Array | None
) -> tuple[Array, Array]:
    """From the output back to values and scores: dV and dA."""
    dV = T(times(P, R)) @ dO
    dP = times(dO @ T(V), R)
    D = rowsum(dO * O)
    dA = P * (dP - D)
    return dV, dA


def weighted_jvp(
    A_dot: Array, V_dot: Array, P: Array, V: Array, R: Array | None
) -> tuple[Array, Array]:
    """From the tangents of scores and values to those of weights and output."""
    mu = rowsum(P * A_dot)
    P_dot = P * (A_dot - mu)
    O_dot = times(P_dot, R) @ V + times(P, R) @ V_dot
    return P_dot, O_dot
