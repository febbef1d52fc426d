"""A head and a layer at second order: the derivatives of their gradients."""

from typing import Generic, NamedTuple

from attnmath._formulas.attention import attention_jvp, weighted_jvp
from attnmath._formulas.heads import Results, Weights, _head, _to_heads_jvp, _weights_vjp
from attnmath._formulas.softmax import softmax
from attnmath._given.checked import checked
from attnmath._given.letters import (
    Bias,
    Factors,
    HeadsBias,
    HeadsFactors,
    HeadsScale,
    HeadsScaleGradient,
    Keys,
    Kind,
    OtherTokens,
    Outputs,
    Queries,
    Scale,
    ScaleGradient,
    Tokens,
    Values,
)
from attnmath._words.arrays import Array, Scalar, T, plus, rowsum, summed, times
from attnmath._words.layers import each_head, from_heads, gather, lifted, lowered


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


class MultiheadProduct(NamedTuple, Generic[Kind]):
    """The tangents of the gradients of multihead; None for B = None."""

    dX_dot: Tokens[Kind]
    dZ_dot: OtherTokens[Kind]
    dW_dot: Weights[Kind]
    dB_dot: HeadsBias[Kind] | None
    dgamma_dot: HeadsScaleGradient[Kind]


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


@checked
def multihead_hvp(
    X_dot: Tokens[Kind] | None, Z_dot: OtherTokens[Kind] | None,
    W_dot: Weights[Kind] | None,
    B_dot: HeadsBias[Kind] | None, gamma_dot: HeadsScale | None,
    dY: Results[Kind],
    X: Tokens[Kind], Z: OtherTokens[Kind], W: Weights[Kind],
    B: HeadsBias[Kind] | None = None, gamma: HeadsScale | None = None,
    *, dY_dot: Results[Kind] | None = None, R: HeadsFactors[Kind] | None = None,
) -> MultiheadProduct[Kind]:
    """The tangents of the gradients of a layer, from those of all its arguments.

    X_dot (..., n, d), Z_dot (..., m, d_z), W_dot Weights, B_dot (..., H, n, m),
    gamma_dot () or (H,), then the arguments of multihead_vjp, dY_dot (..., n, d)
    -> dX_dot, dZ_dot, dW_dot, dB_dot, dgamma_dot, each of the shape of its gradient

    A tangent has the shape of its argument; None is zero, also in W_dot. Without dY_dot
    this is the Hessian of the pairing of dY with the output, times the tangents.
    Conditions and errors as for multihead_map.
    Derived in chapters/second.md, eq:multihead_hvp.
    """
    dO, Q, K, V, dO_dot, Q_dot, K_dot, V_dot = _into_heads(
        dY_dot, X_dot, Z_dot, W_dot, dY, X, Z, W
    )
    heads = (_head_hvp(*part) for part in each_head(
        dO, Q, K, V, B, lifted(gamma),
        dO_dot, Q_dot, K_dot, V_dot, B_dot, lifted(gamma_dot), R
    ))
    O, O_dot, dQ, dK, dV, dQ_dot, dK_dot, dV_dot, dB_dot, dgamma_dot = gather(
        heads, (dO, dO, Q, K, V, Q, K, V, B, lifted(gamma))
    )
    dX_dot = from_heads(dQ_dot, T(W.W_Q)) + from_heads(dQ, T(W_dot.W_Q))
    dZ_dot = (
        from_heads(dK_dot, T(W.W_K)) + from_heads(dK, T(W_dot.W_K))
        + from_heads(dV_dot, T(W.W_V)) + from_heads(dV, T(W_dot.W_V))
    )
    dW_dot = _weights_vjp(dY_dot, dQ_dot, dK_dot, dV_dot, X, Z, O, W)
    more = _weights_vjp(dY, dQ, dK, dV, X_dot, Z_dot, O_dot, Weights(*W[:4]))
    dW_dot = Weights(*map(plus, dW_dot, more))
    return MultiheadProduct(dX_dot, dZ_dot, dW_dot, dB_dot, lowered(dgamma_dot))


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


def _into_heads(
    dY_dot: Array, X_dot: Array, Z_dot: Array, W_dot: Weights,
    dY: Array, X: Array, Z: Array, W: Weights,
) -> tuple:
    """What all heads are given: dO, Q, K, V; and the tangents of these."""
    Q, Q_dot = _to_heads_jvp(X_dot, W_dot.W_Q, W_dot.b_Q, X, W.W_Q, W.b_Q)
    K, K_dot = _to_heads_jvp(Z_dot, W_dot.W_K, W_dot.b_K, Z, W.W_K, W.b_K)
    V, V_dot = _to_heads_jvp(Z_dot, W_dot.W_V, W_dot.b_V, Z, W.W_V, W.b_V)
    dO, dO_dot = _to_heads_jvp(dY_dot, T(W_dot.W_O), None, dY, T(W.W_O), None)
    return dO, Q, K, V, dO_dot, Q_dot, K_dot, V_dot


def _head_hvp(
    dO: Array, Q: Array, K: Array, V: Array, B: Array | None, gamma: Scalar,
    dO_dot: Array, Q_dot: Array, K_dot: Array, V_dot: Array, B_dot: Array | int,
    gamma_dot: Scalar, R: Array | None,
) -> list:
    """The output of one head, its gradients, and the tangents of all."""
    P, O = _head(Q, K, V, B, gamma, R)
    A_dot = gamma * (Q_dot @ T(K) + Q @ T(K_dot)) + gamma_dot * (Q @ T(K)) + B_dot
    P_dot, O_dot = weighted_jvp(A_dot, V_dot, P, V, R)
    dV, moved = T(times(P, R)) @ dO, (dO_dot, O_dot, P_dot, V_dot)
    dV_dot, dA, dA_dot = weighted_vjp_jvp(*moved, dO, O, P, V, R)
    U, U_dot = dA @ K, dA_dot @ K + dA @ K_dot
    S, S_dot = T(dA) @ Q, T(dA_dot) @ Q + T(dA) @ Q_dot
    dQ, dQ_dot = gamma * U, gamma * U_dot + gamma_dot * U
    dK, dK_dot = gamma * S, gamma * S_dot + gamma_dot * S
    dB_dot, dgamma_dot = dA_dot, rowsum(Q_dot * U + Q * U_dot)
    found = O, O_dot, dQ, dK, dV, dQ_dot, dK_dot, dV_dot, dB_dot, dgamma_dot
    return [*map(summed, found, (dO, dO, Q, K, V, Q, K, V, B, gamma))]
