"""A layer of several heads at second order: the tangents of all its gradients."""

from typing import NamedTuple

from attnmath._arrays import Array, Scalar, T, plus, rowsum, times
from attnmath._heads import Weights, _to_heads_jvp, _weights_vjp
from attnmath._layer_arguments import layer
from attnmath._layer_arrays import (
    each_head,
    from_heads,
    gather,
    lifted,
    lowered,
    summed,
)
from attnmath._second import _forward_jvp


class MultiheadProduct(NamedTuple):
    """The tangents of the gradients of multihead; None for B = None."""

    dX_dot: Array
    dZ_dot: Array
    dW_dot: Weights
    dB_dot: Array | None
    dgamma_dot: Array


def multihead_hvp(
    X_dot: Array | None, Z_dot: Array | None, W_dot: Weights | None,
    B_dot: Array | None, gamma_dot: Scalar | None,
    dY: Array,
    X: Array, Z: Array, W: Weights, B: Array | None = None, gamma: Scalar | None = None,
    *, dY_dot: Array | None = None, R: Array | None = None,
) -> MultiheadProduct:
    """The tangents of the gradients of a layer, from those of all its arguments.

    X_dot (..., n, d), Z_dot (..., m, d_z), W_dot Weights, B_dot (..., H, n, m),
    gamma_dot () or (H,), then the arguments of multihead_vjp, dY_dot (..., n, d)
    -> dX_dot, dZ_dot, dW_dot, dB_dot, dgamma_dot, each of the shape of its gradient

    A tangent has the shape of its argument; None is zero, also in W_dot. Without dY_dot
    this is the Hessian of the pairing of dY with the output, times the tangents.
    Conditions and errors as for multihead_map.
    Derived in chapters/second.md, eq:multihead_hvp.
    """
    dots = dict(X_dot=X_dot, Z_dot=Z_dot, B_dot=B_dot, gamma_dot=gamma_dot)
    X, Z, W, B, gamma, R, dY, dY_dot, X_dot, Z_dot, B_dot, gamma_dot, W_dot = layer(
        "multihead_hvp", X, Z, W, B, gamma, R, dY=dY, dY_dot=dY_dot, W_dot=W_dot, **dots
    )
    dO, Q, K, V, dO_dot, Q_dot, K_dot, V_dot = _into_heads(
        dY_dot, X_dot, Z_dot, W_dot, dY, X, Z, W
    )
    heads = (_head_hvp(*part) for part in each_head(
        dO, Q, K, V, B, lifted(gamma),
        dO_dot, Q_dot, K_dot, V_dot, B_dot, lifted(gamma_dot), R
    ))  # fmt: skip
    O, O_dot, dQ, dK, dV, dQ_dot, dK_dot, dV_dot, dB_dot, dgamma_dot = gather(
        heads, (dO, dO, Q, K, V, Q, K, V, B, lifted(gamma))
    )
    dX_dot = from_heads(dQ_dot, T(W.W_Q)) + from_heads(dQ, T(W_dot.W_Q))
    dZ_dot = (
        from_heads(dK_dot, T(W.W_K)) + from_heads(dK, T(W_dot.W_K))
        + from_heads(dV_dot, T(W.W_V)) + from_heads(dV, T(W_dot.W_V))
    )  # fmt: skip
    dW_dot = _weights_vjp(dY_dot, dQ_dot, dK_dot, dV_dot, X, Z, O, W)
    more = _weights_vjp(dY, dQ, dK, dV, X_dot, Z_dot, O_dot, Weights(*W[:4]))
    dW_dot = Weights(*map(plus, dW_dot, more))
    return MultiheadProduct(dX_dot, dZ_dot, dW_dot, dB_dot, lowered(dgamma_dot))


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
    P, O, P_dot, O_dot = _forward_jvp(
        Q_dot, K_dot, V_dot, B_dot, gamma_dot, Q, K, V, B, gamma, R
    )
    dV, dV_dot = T(times(P, R)) @ dO, T(times(P_dot, R)) @ dO + T(times(P, R)) @ dO_dot
    dP, dP_dot = times(dO @ T(V), R), times(dO_dot @ T(V) + dO @ T(V_dot), R)
    D, D_dot = rowsum(dO * O), rowsum(dO_dot * O + dO * O_dot)
    dA, dA_dot = P * (dP - D), P_dot * (dP - D) + P * (dP_dot - D_dot)
    U, U_dot = dA @ K, dA_dot @ K + dA @ K_dot
    S, S_dot = T(dA) @ Q, T(dA_dot) @ Q + T(dA) @ Q_dot
    dQ, dQ_dot = gamma * U, gamma * U_dot + gamma_dot * U
    dK, dK_dot = gamma * S, gamma * S_dot + gamma_dot * S
    dB_dot, dgamma_dot = dA_dot, rowsum(Q_dot * U + Q * U_dot)
    found = O, O_dot, dQ, dK, dV, dQ_dot, dK_dot, dV_dot, dB_dot, dgamma_dot
    return [*map(summed, found, (dO, dO, Q, K, V, Q, K, V, B, gamma))]
