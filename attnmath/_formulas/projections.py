"""A projection, which acts on every token alike, and its derivatives."""

from typing import Annotated, Generic, NamedTuple

from attnmath._given.checked import checked
from attnmath._given.letters import Kind, Tokens, all_finite
from attnmath._words.arrays import T, plus, sum_to
from attnmath._words.layers import apply, over_tokens

Matrix = Annotated[Kind, "d m", all_finite]
Vector = Annotated[Kind, "m or 1 m", all_finite]
Projected = Annotated[Kind, "... n m"]


class LinearGradients(NamedTuple, Generic[Kind]):
    """The gradients of linear, each of its argument's shape; None for b = None."""

    dX: Tokens[Kind]
    dW: Matrix[Kind]
    db: Vector[Kind] | None


@checked
def linear(
    X: Tokens[Kind], W: Matrix[Kind], b: Vector[Kind] | None = None
) -> Projected[Kind]:
    """The projection of every token: the row times a matrix, plus a bias.

    X (..., n, d), W (d, m), b (m,) -> Y (..., n, m)

    The leading axes of X are a batch; all its tokens share W and b. The bias is a
    vector, or a row (1, m); None is no bias. Raises TypeError unless all are
    floating-point arrays of one library and one precision, ValueError for a wrong
    shape, and for NaN or infinity in any of them.
    Derived in chapters/projections.md, eq:linear.
    """
    return plus(apply(X, W), b)


@checked
def linear_vjp(
    dY: Projected[Kind],
    X: Tokens[Kind], W: Matrix[Kind], b: Vector[Kind] | None = None,
) -> LinearGradients[Kind]:
    """The gradients of the loss in tokens, matrix and bias, from that in the output.

    dY (..., n, m), X (..., n, d), W (d, m), b (m,)
    -> dX (..., n, d), dW (d, m), db (m,)

    dW and db are summed over all tokens of the batch. db is None if b is None. Errors
    as for linear.
    Derived in chapters/projections.md, eq:linear_vjp.
    """
    dX = apply(dY, T(W))
    dW = over_tokens(X, dY)
    db = sum_to(dY, b)
    return LinearGradients(dX, dW, db)


@checked
def linear_jvp(
    X_dot: Tokens[Kind] | None, W_dot: Matrix[Kind] | None,
    b_dot: Vector[Kind] | None,
    X: Tokens[Kind], W: Matrix[Kind], b: Vector[Kind] | None = None,
) -> Projected[Kind]:
    """The tangent of the projection, from the tangents of tokens, matrix and bias.

    X_dot (..., n, d), W_dot (d, m), b_dot (m,), then the arguments of linear
    -> Y_dot (..., n, m)

    A tangent has the shape of its argument; None is zero. Errors as for linear.
    Derived in chapters/projections.md, eq:linear_jvp.
    """
    return apply(X_dot, W) + apply(X, W_dot) + b_dot
