"""Who shares the weight of a row: keys and sinks, or each key alone."""

from typing import Generic, NamedTuple

from attnmath._formulas.attention import AttentionGradients
from attnmath._formulas.blocks import sigmoid
from attnmath._given.checked import checked
from attnmath._given.letters import (
    Bias,
    Factors,
    Keys,
    Kind,
    Outputs,
    Pairs,
    Queries,
    Scale,
    ScaleGradient,
    Sinks,
    SinksGradient,
    Values,
)
from attnmath._words.arrays import (
    Array,
    Scalar,
    T,
    exp,
    finite,
    nonzero,
    plus,
    rowmax,
    rowsum,
    shift,
    summed,
    times,
    visible,
)
from attnmath._words.layers import sink_rows, sinks_summed
from attnmath._words.tiles import larger


class SinkSoftmaxGradients(NamedTuple, Generic[Kind]):
    """The gradients of sink_softmax, each of the shape of its argument."""

    dA: Pairs[Kind]
    dsigma: SinksGradient[Kind]


class SinkGradients(NamedTuple, Generic[Kind]):
    """Of sink_attention, each of its argument's shape; None for B = None."""

    dQ: Queries[Kind]
    dK: Keys[Kind]
    dV: Values[Kind]
    dsigma: SinksGradient[Kind]
    dB: Bias[Kind] | None
    dgamma: ScaleGradient[Kind]


def mass(A: Array, sigma: Array) -> tuple:
    """The largest score or sink of a row, and the sum of exponentials beside it."""
    c = larger(rowmax(A), rowmax(sigma))
    M = rowsum(exp(shift(A, c))) + rowsum(exp(shift(sigma, c)))
    return c, M


def keys_share(A: Array, sigma: Scalar, *V: Array) -> Array:
    """The weights of the keys."""
    sigma = sink_rows(sigma, A, *V)
    c, M = mass(A, sigma)
    return exp(shift(A, c)) / nonzero(M)


def shared(A: Array, sigma: Scalar, *V: Array) -> tuple:
    """The weights of the sinks and those of the keys, which together sum to one."""
    sigma = sink_rows(sigma, A, *V)
    c, M = mass(A, sigma)
    P_tilde = exp(shift(sigma, c)) / nonzero(M)
    P = exp(shift(A, c)) / nonzero(M)
    return P_tilde, P


def sunk_vjp(
    dO: Array, O: Array, P_tilde: Array, P: Array, V: Array, R: Array | None
) -> tuple:
    """From the output back to values, scores and sinks."""
    dV = T(times(P, R)) @ dO
    dP = times(dO @ T(V), R)
    D = rowsum(dO * O)
    dA = P * (dP - D)
    dsigma = -P_tilde * D
    return dV, dA, dsigma


@checked
def sink_softmax(A: Pairs[Kind], sigma: Sinks) -> Pairs[Kind]:
    """The weights of the keys where sinks, keys without a value, take a part as well.

    A (..., n, m), sigma () or (H,) or (H, d_s) -> P (..., n, m)

    A sink is a score that all queries share: a number for all heads, or one or several
    for each head, the last leading axis of A; for A without leading axes () or (d_s,).
    A sink of 0 is softmax with one added to the sum; -inf in an array is none. Raises
    TypeError unless all are floating-point arrays of one library and one precision,
    ValueError for a wrong shape, and for NaN or +inf in sigma.

    >>> import numpy as np
    >>> from attnmath import sink_softmax
    >>> sink_softmax(np.zeros((1, 3)), 0.0)  # a fourth part is the sink's
    array([[0.25, 0.25, 0.25]])

    Derived in chapters/normalizers.md, eq:sink_softmax.
    """
    return keys_share(A, sigma)


@checked
def sink_softmax_vjp(
    dP: Pairs[Kind], A: Pairs[Kind], sigma: Sinks
) -> SinkSoftmaxGradients[Kind]:
    """The gradients of the loss in scores and sinks, from that in the keys' weights.

    dP (..., n, m), A (..., n, m), sigma () or (H,) or (H, d_s)
    -> dA (..., n, m), dsigma () or (H,) or (H, d_s)

    dsigma is summed over the queries, and over the axes that sigma lacks. Errors as for
    sink_softmax.
    Derived in chapters/normalizers.md, eq:sink_softmax_vjp.
    """
    P_tilde, P = shared(A, sigma)
    D = rowsum(P * dP)
    dA = P * (dP - D)
    dsigma = -P_tilde * D
    return SinkSoftmaxGradients(dA, sinks_summed(dsigma, sigma))


@checked
def sink_softmax_jvp(
    A_dot: Pairs[Kind] | None, sigma_dot: Sinks | None, A: Pairs[Kind], sigma: Sinks
) -> Pairs[Kind]:
    """The tangent of the keys' weights, from those of scores and sinks.

    A_dot (..., n, m), sigma_dot () or (H,) or (H, d_s), A (..., n, m),
    sigma () or (H,) or (H, d_s) -> P_dot (..., n, m)

    A tangent of None is zero. Errors as for sink_softmax.
    Derived in chapters/normalizers.md, eq:sink_softmax_jvp.
    """
    P_tilde, P = shared(A, sigma)
    mu = rowsum(P * A_dot) + rowsum(P_tilde * sink_rows(sigma_dot, A))
    return P * (A_dot - mu)


@checked
def sink_attention(
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind], sigma: Sinks,
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> Outputs[Kind]:
    """The output of a head with sinks: keys whose value is zero.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), sigma () or (H,) or (H, d_s),
    B (..., n, m), gamma (), R (..., n, m) -> O (..., n, d_v)

    sigma as for sink_softmax, where H is the last leading axis of the scores; the rest
    as for attention. A query that may attend to nothing has the output 0. Errors as for
    both.
    Derived in chapters/normalizers.md, eq:sink_attention.
    """
    A = plus(gamma * (Q @ T(K)), B)
    P = keys_share(A, sigma, V)
    return times(P, R) @ V


@checked
def sink_attention_vjp(
    dO: Outputs[Kind],
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind], sigma: Sinks,
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> SinkGradients[Kind]:
    """The gradients of the loss in all inputs of a head with sinks.

    dO (..., n, d_v), then the arguments of sink_attention
    -> dQ, dK, dV, dsigma, dB, dgamma, each of the shape of its argument

    Each is summed over the axes along which its argument was broadcast; dB is None if B
    is None. Conditions and errors as for sink_attention.
    Derived in chapters/normalizers.md, eq:sink_attention_vjp.
    """
    A = plus(gamma * (Q @ T(K)), B)
    P_tilde, P = shared(A, sigma, V)
    O = times(P, R) @ V
    dV, dA, dsigma = sunk_vjp(dO, O, P_tilde, P, V, R)
    dQ = gamma * dA @ K
    dK = T(gamma * dA) @ Q
    dB = dA
    dgamma = dA * (Q @ T(K))
    return SinkGradients(
        summed(dQ, Q), summed(dK, K), summed(dV, V), sinks_summed(dsigma, sigma),
        summed(dB, B), summed(dgamma, gamma))


@checked
def sink_attention_jvp(
    Q_dot: Queries[Kind] | None, K_dot: Keys[Kind] | None, V_dot: Values[Kind] | None,
    sigma_dot: Sinks | None, B_dot: Bias[Kind] | None, gamma_dot: Scale | None,
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind], sigma: Sinks,
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> Outputs[Kind]:
    """The tangent of the output of a head with sinks, from those of all its inputs.

    Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), sigma_dot () or (H,)
    or (H, d_s), B_dot (..., n, m), gamma_dot (), then the arguments of sink_attention
    -> O_dot (..., n, d_v)

    A tangent has the shape of its argument; None is zero. Conditions and errors as for
    sink_attention.
    Derived in chapters/normalizers.md, eq:sink_attention_jvp.
    """
    A = plus(gamma * (Q @ T(K)), B)
    P_tilde, P = shared(A, sigma, V)
    A_dot = gamma * (Q_dot @ T(K) + Q @ T(K_dot)) + gamma_dot * (Q @ T(K)) + B_dot
    mu = rowsum(P * A_dot) + rowsum(P_tilde * sink_rows(sigma_dot, P))
    P_dot = P * (A_dot - mu)
    return times(P_dot, R) @ V + times(P, R) @ V_dot


@checked
def sigmoid_attention(
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> Outputs[Kind]:
    """The output of a head whose weights are sigmoids: no key takes from another.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma (),
    R (..., n, m) -> O (..., n, d_v)

    A learned bias is a B of the shape (1, 1), or (H, 1, 1). Conditions and errors as
    for attention.
    Derived in chapters/normalizers.md, eq:sigmoid_attention.
    """
    A = plus(gamma * (Q @ T(K)), B)
    S = visible(sigmoid(finite(A)), A)
    return times(S, R) @ V


@checked
def sigmoid_attention_vjp(
    dO: Outputs[Kind],
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> AttentionGradients[Kind]:
    """The gradients of the loss in all inputs of a head with sigmoids; no row sum.

    dO (..., n, d_v), Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m),
    gamma (), R (..., n, m) -> dQ, dK, dV, dB, dgamma, each of the shape of its argument

    Each is summed over the axes along which its argument was broadcast; dB is None if B
    is None. Conditions and errors as for attention.
    Derived in chapters/normalizers.md, eq:sigmoid_attention_vjp.
    """
    A = plus(gamma * (Q @ T(K)), B)
    S = visible(sigmoid(finite(A)), A)
    dV = T(times(S, R)) @ dO
    dS = times(dO @ T(V), R)
    dA = dS * S * (1 - S)
    dQ = gamma * dA @ K
    dK = T(gamma * dA) @ Q
    dB = dA
    dgamma = dA * (Q @ T(K))
    found = dQ, dK, dV, dB, dgamma
    return AttentionGradients(*map(summed, found, (Q, K, V, B, gamma)))


@checked
def sigmoid_attention_jvp(
    Q_dot: Queries[Kind] | None, K_dot: Keys[Kind] | None, V_dot: Values[Kind] | None,
    B_dot: Bias[Kind] | None, gamma_dot: Scale | None,
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> Outputs[Kind]:
    """The tangent of the output of a head with sigmoids, from those of its inputs.

    Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), B_dot (..., n, m),
    gamma_dot (), then the arguments of sigmoid_attention -> O_dot (..., n, d_v)

    A tangent has the shape of its argument; None is zero. Conditions and errors as for
    attention.
    Derived in chapters/normalizers.md, eq:sigmoid_attention_jvp.
    """
    A = plus(gamma * (Q @ T(K)), B)
    S = visible(sigmoid(finite(A)), A)
    A_dot = gamma * (Q_dot @ T(K) + Q @ T(K_dot)) + gamma_dot * (Q @ T(K)) + B_dot
    S_dot = S * (1 - S) * A_dot
    return times(S_dot, R) @ V + times(S, R) @ V_dot
