"""One attention head at second order: the derivatives of its gradients."""

from typing import Generic, NamedTuple

from attnmath._formulas.attention import attention_jvp, weighted_jvp
from attnmath._formulas.softmax import softmax
from attnmath._given.checked import checked
from attnmath._given.letters import (
    Bias,
    Factors,
    Keys,
    Kind,
    Outputs,
    Queries,
    Scale,
    ScaleGradient,
    Values,
)
from attnmath._words.arrays import Array, T, plus, rowsum, summed, times


class HessianProduct(NamedTuple, Generic[Kind]):
    """The tangents of the gradients of attention; None for B = None."""

    dQ_dot: Queries[Kind]
    dK_dot: Keys[Kind]
    dV_dot: Values[Kind]
    dB_dot: Bias[Kind] | None
    dgamma_dot: ScaleGradient[Kind]


class SecondGradients(NamedTuple, Generic[Kind]):
    """The gradients of attention_vjp, for dO, Q, K, V, B, gamma; None for B = None."""

    O_dot: Outputs[Kind]
    dQ_dot: Queries[Kind]
    dK_dot: Keys[Kind]
    dV_dot: Values[Kind]
    dB_dot: Bias[Kind] | None
    dgamma_dot: ScaleGradient[Kind]


@checked
def attention_hvp(
    Q_dot: Queries[Kind] | None, K_dot: Keys[Kind] | None,
    V_dot: Values[Kind] | None, B_dot: Bias[Kind] | None, gamma_dot: Scale | None,
    dO: Outputs[Kind],
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, dO_dot: Outputs[Kind] | None = None, R: Factors[Kind] | None = None,
) -> HessianProduct[Kind]:
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
    P = softmax(plus(gamma * (Q @ T(K)), B))
    O = times(P, R) @ V
    A_dot = gamma * (Q_dot @ T(K) + Q @ T(K_dot)) + gamma_dot * (Q @ T(K)) + B_dot
    P_dot, O_dot = weighted_jvp(A_dot, V_dot, P, V, R)
    moved = dO_dot, O_dot, P_dot, V_dot
    dV_dot, dA, dA_dot = weighted_vjp_jvp(*moved, dO, O, P, V, R)
    dQ_dot = (gamma * dA_dot + gamma_dot * dA) @ K + gamma * dA @ K_dot
    dK_dot = T(gamma * dA_dot + gamma_dot * dA) @ Q + T(gamma * dA) @ Q_dot
    dB_dot = dA_dot
    dgamma_dot = dA_dot * (Q @ T(K)) + dA * (Q_dot @ T(K) + Q @ T(K_dot))
    found = dQ_dot, dK_dot, dV_dot, dB_dot, dgamma_dot
    return HessianProduct(*map(summed, found, (Q, K, V, B, gamma)))


@checked
def attention_vjp_vjp(
    Q_dot: Queries[Kind] | None, K_dot: Keys[Kind] | None,
    V_dot: Values[Kind] | None, B_dot: Bias[Kind] | None, gamma_dot: Scale | None,
    dO: Outputs[Kind],
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> SecondGradients[Kind]:
    """The double backward: the gradients of attention_vjp, from those in its outputs.

    Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), B_dot (..., n, m),
    gamma_dot (), then the arguments of attention_vjp; R (..., n, m)
    -> O_dot, dQ_dot, dK_dot, dV_dot, dB_dot, dgamma_dot, each of its argument's shape

    What arrives for dQ acts as a tangent of Q, and so on: the gradient for dO is the
    tangent of the output, the others are those of attention_hvp. None is zero.
    Conditions and errors as for attention_vjp.
    Derived in chapters/second.md, eq:attention_vjp_vjp.
    """
    dots = Q_dot, K_dot, V_dot, B_dot, gamma_dot
    O_dot = attention_jvp(*dots, Q, K, V, B, gamma, R=R)
    products = attention_hvp(*dots, dO, Q, K, V, B, gamma, dO_dot=0 * dO, R=R)
    return SecondGradients(O_dot, *products)


def weighted_vjp_jvp(
    dO_dot: Array, O_dot: Array, P_dot: Array, V_dot: Array,
    dO: Array, O: Array, P: Array, V: Array, R: Array | None,
) -> tuple[Array, Array, Array]:
    """The tangents of what weighted_vjp finds, dV and dA; and dA itself."""
    dV_dot = T(times(P_dot, R)) @ dO + T(times(P, R)) @ dO_dot
    dP, dP_dot = times(dO @ T(V), R), times(dO_dot @ T(V) + dO @ T(V_dot), R)
    D, D_dot = rowsum(dO * O), rowsum(dO_dot * O + dO * O_dot)
    dA, dA_dot = P * (dP - D), P_dot * (dP - D) + P * (dP_dot - D_dot)
    return dV_dot, dA, dA_dot
