"""One attention head at second order: the derivatives of its gradients."""

from typing import NamedTuple

from attnmath._arguments import head
from attnmath._arrays import Array, Scalar, T, plus, rowsum, sum_to, times
from attnmath._dropout import dropout_attention_jvp
from attnmath._softmax import softmax


class HessianProduct(NamedTuple):
    """The tangents of the gradients of attention; None for B = None."""

    dQ_dot: Array
    dK_dot: Array
    dV_dot: Array
    dB_dot: Array | None
    dgamma_dot: Array


class SecondGradients(NamedTuple):
    """The gradients of attention_vjp, for dO, Q, K, V, B, gamma; None for B = None."""

    O_dot: Array
    dQ_dot: Array
    dK_dot: Array
    dV_dot: Array
    dB_dot: Array | None
    dgamma_dot: Array


def attention_hvp(
    Q_dot: Array | None, K_dot: Array | None, V_dot: Array | None,
    B_dot: Array | None, gamma_dot: Scalar | None,
    dO: Array, Q: Array, K: Array, V: Array,
    B: Array | None = None, gamma: Scalar | None = None,
    *, dO_dot: Array | None = None, R: Array | None = None,
) -> HessianProduct:
    """The tangents of the gradients of a head, from the tangents of all its inputs.

    Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), B_dot (..., n, m),
    gamma_dot (), then the arguments of attention_vjp; dO_dot (..., n, d_v),
    R (..., n, m) -> dQ_dot, dK_dot, dV_dot, dB_dot, dgamma_dot, each of the shape of
    its gradient

    A tangent has the shape of its argument; None is zero. Without dO_dot this is the
    Hessian of the pairing of dO with the output, times the tangents. R is dropout's, of
    the way forward; None is none. Conditions and errors as for attention_vjp.
    Derived in chapters/second.md, eq:attention_hvp.
    """
    Q, K, V, B, gamma, R, dO, dO_dot, Q_dot, K_dot, V_dot, B_dot, gamma_dot = head(
        "attention_hvp", Q, K, V, B, gamma, R=R, dO=dO, dO_dot=dO_dot,
        Q_dot=Q_dot, K_dot=K_dot, V_dot=V_dot, B_dot=B_dot, gamma_dot=gamma_dot,
    )  # fmt: skip
    P, O, P_dot, O_dot = _forward_jvp(
        Q_dot, K_dot, V_dot, B_dot, gamma_dot, Q, K, V, B, gamma, R
    )
    dV_dot = T(times(P_dot, R)) @ dO + T(times(P, R)) @ dO_dot
    dP, dP_dot = times(dO @ T(V), R), times(dO_dot @ T(V) + dO @ T(V_dot), R)
    D, D_dot = rowsum(dO * O), rowsum(dO_dot * O + dO * O_dot)
    dA, dA_dot = P * (dP - D), P_dot * (dP - D) + P * (dP_dot - D_dot)
    dQ_dot = (gamma * dA_dot + gamma_dot * dA) @ K + gamma * dA @ K_dot
    dK_dot = T(gamma * dA_dot + gamma_dot * dA) @ Q + T(gamma * dA) @ Q_dot
    dB_dot = dA_dot
    dgamma_dot = dA_dot * (Q @ T(K)) + dA * (Q_dot @ T(K) + Q @ T(K_dot))
    found = dQ_dot, dK_dot, dV_dot, dB_dot, dgamma_dot
    return HessianProduct(*map(sum_to, found, (Q, K, V, B, gamma)))


def attention_vjp_vjp(
    Q_dot: Array | None, K_dot: Array | None, V_dot: Array | None,
    B_dot: Array | None, gamma_dot: Scalar | None,
    dO: Array, Q: Array, K: Array, V: Array,
    B: Array | None = None, gamma: Scalar | None = None, *, R: Array | None = None,
) -> SecondGradients:
    """The double backward: the gradients of attention_vjp, from those in its outputs.

    Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), B_dot (..., n, m),
    gamma_dot (), then the arguments of attention_vjp; R (..., n, m)
    -> O_dot, dQ_dot, dK_dot, dV_dot, dB_dot, dgamma_dot, each of its argument's shape

    What arrives for dQ acts as a tangent of Q, and so on: the gradient for dO is the
    tangent of the output, the others are those of attention_hvp. None is zero.
    Conditions and errors as for attention_vjp.
    Derived in chapters/second.md, eq:attention_vjp_vjp.
    """
    dots = dict(Q_dot=Q_dot, K_dot=K_dot, V_dot=V_dot, B_dot=B_dot, gamma_dot=gamma_dot)
    head("attention_vjp_vjp", Q, K, V, B, gamma, R=R, dO=dO, **dots)
    O_dot = dropout_attention_jvp(**dots, Q=Q, K=K, V=V, B=B, gamma=gamma, R=R)
    products = attention_hvp(**dots, dO=dO, Q=Q, K=K, V=V, B=B, gamma=gamma, R=R)
    return SecondGradients(O_dot, *products)


def _forward_jvp(
    Q_dot: Array, K_dot: Array, V_dot: Array, B_dot: Array | int, gamma_dot: Scalar,
    Q: Array, K: Array, V: Array, B: Array | None, gamma: Scalar, R: Array | None,
) -> tuple:
    """The weights, the output, and the tangent of each."""
    P = softmax(plus(gamma * (Q @ T(K)), B))
    O = times(P, R) @ V
    A_dot = gamma * (Q_dot @ T(K) + Q @ T(K_dot)) + gamma_dot * (Q @ T(K)) + B_dot
    P_dot = P * (A_dot - rowsum(P * A_dot))
    O_dot = times(P_dot, R) @ V + times(P, R) @ V_dot
    return P, O, P_dot, O_dot
