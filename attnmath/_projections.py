"""A projection, which acts on every token alike, and its derivatives."""

from typing import NamedTuple

from attnmath._arrays import Array, T, plus, sum_to
from attnmath._layer_arguments import projection
from attnmath._layer_arrays import apply, over_tokens


class LinearGradients(NamedTuple):
    """The gradients of linear, each of its argument's shape; None for b = None."""

    dX: Array
    dW: Array
    db: Array | None


def linear(X: Array, W: Array, b: Array | None = None) -> Array:
    """The projection of every token: the row times a matrix, plus a bias.

    X (..., n, d), W (d, m), b (m,) -> Y (..., n, m)

    The leading axes of X are a batch; all its tokens share W and b. The bias is a
    vector, or a row (1, m); None is no bias. Raises TypeError unless all are
    floating-point arrays of one library and one precision, ValueError for a wrong
    shape, and for NaN or infinity in any of them.
    Derived in chapters/projections.md, eq:linear.
    """
    X, W, b = projection("linear", X, W, b)
    return plus(apply(X, W), b)


def linear_vjp(
    dY: Array, X: Array, W: Array, b: Array | None = None
) -> LinearGradients:
    """The gradients of the loss in tokens, matrix and bias, from that in the output.

    dY (..., n, m), X (..., n, d), W (d, m), b (m,)
    -> dX (..., n, d), dW (d, m), db (m,)

    dW and db are summed over all tokens of the batch. db is None if b is None. Errors
    as for linear.
    Derived in chapters/projections.md, eq:linear_vjp.
    """
    X, W, b, dY = projection("linear_vjp", X, W, b, dY=dY)
    dX = apply(dY, T(W))
    dW = over_tokens(X, dY)
    db = sum_to(dY, b)
    return LinearGradients(dX, dW, db)


def linear_jvp(
    X_dot: Array | None, W_dot: Array | None, b_dot: Array | None,
    X: Array, W: Array, b: Array | None = None,
) -> Array:
    """The tangent of the projection, from the tangents of tokens, matrix and bias.

    X_dot (..., n, d), W_dot (d, m), b_dot (m,), then the arguments of linear
    -> Y_dot (..., n, m)

    A tangent has the shape of its argument; None is zero. Errors as for linear.
    Derived in chapters/projections.md, eq:linear_jvp.
    """
    dots = dict(X_dot=X_dot, W_dot=W_dot, b_dot=b_dot)
    X, W, b, X_dot, W_dot, b_dot = projection("linear_jvp", X, W, b, **dots)
    return apply(X_dot, W) + apply(X, W_dot) + b_dot
