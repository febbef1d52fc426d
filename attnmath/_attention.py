"""One attention head, with any number of leading axes, and its derivatives."""

from typing import NamedTuple

from attnmath._arguments import head
from attnmath._arrays import Array, Scalar, T, plus, rowsum, sum_to
from attnmath._softmax import logsumexp, softmax


class AttentionMap(NamedTuple):
    """What a head computes: scores, weights, log-sum-exp of the scores, output."""

    A: Array
    P: Array
    L: Array
    O: Array


class AttentionGradients(NamedTuple):
    """The gradients of attention, each of its argument's shape; None for B = None."""

    dQ: Array
    dK: Array
    dV: Array
    dB: Array | None
    dgamma: Array


def attention_map(
    Q: Array, K: Array, V: Array, B: Array | None = None, gamma: Scalar | None = None
) -> AttentionMap:
    """The scores, the weights, the log-sum-exp of the scores, and the output of a head.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma ()
    -> A (..., n, m), P (..., n, m), L (..., n), O (..., n, d_v)

    Leading axes broadcast. B is a bias or a mask, broadcast against A: where it is
    -inf, P is 0; where a whole row is -inf, P = 0, O = 0 and L = -inf. None is no bias.
    The scale gamma is a number, or an array that broadcasts against A; None is
    1/sqrt(d_k). Raises TypeError unless all are floating-point arrays of one library
    and one precision, ValueError for a wrong shape, and for NaN or +inf in B.
    Derived in chapters/attention_map.md, eq:attention_map.
    """
    Q, K, V, B, gamma = head("attention_map", Q, K, V, B, gamma)
    A = plus(gamma * (Q @ T(K)), B)
    P = softmax(A)
    L = logsumexp(A)
    O = P @ V
    return AttentionMap(A, P, L, O)


def attention(
    Q: Array, K: Array, V: Array, B: Array | None = None, gamma: Scalar | None = None
) -> Array:
    """The output of a head: for every query the weighted mean of the values.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma ()
    -> O (..., n, d_v)

    Conditions and errors as for attention_map.
    Derived in chapters/attention_map.md, eq:attention.
    """
    Q, K, V, B, gamma = head("attention", Q, K, V, B, gamma)
    return softmax(plus(gamma * (Q @ T(K)), B)) @ V


def attention_vjp(
    dO: Array, Q: Array, K: Array, V: Array,
    B: Array | None = None, gamma: Scalar | None = None,
) -> AttentionGradients:
    """The gradients of the loss in all inputs of a head, from that in its output.

    dO (..., n, d_v), Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m),
    gamma () -> dQ, dK, dV, dB, dgamma, each of the shape of its argument

    Each is summed over the axes along which its argument was broadcast. dB is None if B
    is None; dgamma is there also for the default gamma. Rows of B that are -inf
    everywhere pass nothing back. Conditions and errors as for attention_map.
    Derived in chapters/attention.md, eq:attention_vjp.
    """
    Q, K, V, B, gamma, dO = head("attention_vjp", Q, K, V, B, gamma, dO=dO)
    P = softmax(plus(gamma * (Q @ T(K)), B))
    O = P @ V
    dV = T(P) @ dO
    dP = dO @ T(V)
    D = rowsum(dO * O)
    dA = P * (dP - D)
    dQ = gamma * dA @ K
    dK = T(gamma * dA) @ Q
    dB = dA
    dgamma = dA * (Q @ T(K))
    return AttentionGradients(
        *map(sum_to, (dQ, dK, dV, dB, dgamma), (Q, K, V, B, gamma))
    )


def attention_jvp(
    Q_dot: Array | None, K_dot: Array | None, V_dot: Array | None,
    B_dot: Array | None, gamma_dot: Scalar | None,
    Q: Array, K: Array, V: Array,
    B: Array | None = None, gamma: Scalar | None = None,
) -> Array:
    """The tangent of the output of a head, from the tangents of all its inputs.

    Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), B_dot (..., n, m),
    gamma_dot (), then the inputs of attention -> O_dot (..., n, d_v)

    A tangent has the shape of its argument; None is zero. Conditions and errors as for
    attention_map.
    Derived in chapters/attention.md, eq:attention_jvp.
    """
    dots = dict(Q_dot=Q_dot, K_dot=K_dot, V_dot=V_dot, B_dot=B_dot, gamma_dot=gamma_dot)
    Q, K, V, B, gamma, *dots = head("attention_jvp", Q, K, V, B, gamma, **dots)
    Q_dot, K_dot, V_dot, B_dot, gamma_dot = dots
    P = softmax(plus(gamma * (Q @ T(K)), B))
    A_dot = gamma * (Q_dot @ T(K) + Q @ T(K_dot)) + gamma_dot * (Q @ T(K)) + B_dot
    mu = rowsum(P * A_dot)
    P_dot = P * (A_dot - mu)
    return P_dot @ V + P @ V_dot
