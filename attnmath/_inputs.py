"""Self-attention: the same tokens ask and answer, and their gradients meet again."""

from typing import NamedTuple

from attnmath._arrays import Array, Scalar
from attnmath._heads import (
    MultiheadMap,
    Weights,
    multihead,
    multihead_jvp,
    multihead_vjp,
)
from attnmath._layer_arguments import layer


class SelfAttentionGradients(NamedTuple):
    """The gradients of self_attention, each of its argument's shape; or None for dB."""

    dX: Array
    dW: Weights
    dB: Array | None
    dgamma: Array


def self_attention(
    X: Array, W: Weights, B: Array | None = None, gamma: Scalar | None = None,
    *, R: Array | None = None,
) -> Array:
    """The output of a layer whose queries, keys and values come from the same tokens.

    X (..., n, d), W Weights, B (..., H, n, n), gamma () or (H,), R (..., H, n, n)
    -> Y (..., n, d)

    Conditions and errors as for multihead_map, with X for Z.
    Derived in chapters/inputs.md, eq:self_attention.
    """
    X, X, W, B, gamma, R = layer("self_attention", X, X, W, B, gamma, R)
    return multihead(X, X, W, B, gamma, R=R)


def self_attention_vjp(
    dY: Array,
    X: Array, W: Weights, B: Array | None = None, gamma: Scalar | None = None,
    *, R: Array | None = None, given: MultiheadMap | None = None,
) -> SelfAttentionGradients:
    """The gradients of the loss in all inputs: in the tokens, the sum of all paths.

    dY (..., n, d), X (..., n, d), W Weights, B (..., H, n, n), gamma () or (H,),
    R (..., H, n, n), given MultiheadMap
    -> dX, dW, dB, dgamma, each of the shape of its argument

    dX is the sum of what returns through the queries, the keys and the values. Given is
    what multihead_map(X, X, W, B, gamma, R=R) returned. Conditions and errors as for
    multihead_map, with X for Z.
    Derived in chapters/inputs.md, eq:self_attention_vjp.
    """
    layer("self_attention_vjp", X, X, W, B, gamma, R, given, dY=dY)
    dX, dZ, dW, dB, dgamma = multihead_vjp(dY, X, X, W, B, gamma, R=R, given=given)
    return SelfAttentionGradients(dX + dZ, dW, dB, dgamma)


def self_attention_jvp(
    X_dot: Array | None, W_dot: Weights | None, B_dot: Array | None,
    gamma_dot: Scalar | None,
    X: Array, W: Weights, B: Array | None = None, gamma: Scalar | None = None,
    *, R: Array | None = None,
) -> Array:
    """The tangent of the output of self_attention, from those of all its arguments.

    X_dot (..., n, d), W_dot Weights, B_dot (..., H, n, n), gamma_dot () or (H,), then
    the arguments of self_attention -> Y_dot (..., n, d)

    A tangent has the shape of its argument; None is zero, also in W_dot. Conditions and
    errors as for multihead_map, with X for Z.
    Derived in chapters/inputs.md, eq:self_attention_jvp.
    """
    dots = dict(X_dot=X_dot, B_dot=B_dot, gamma_dot=gamma_dot)
    layer("self_attention_jvp", X, X, W, B, gamma, R, W_dot=W_dot, **dots)
    dots = X_dot, X_dot, W_dot, B_dot, gamma_dot
    return multihead_jvp(*dots, X, X, W, B, gamma, R=R)
