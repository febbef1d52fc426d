"""What stands around attention: layer norm, the network of each token, the loss."""

from typing import Annotated, Generic, NamedTuple

from attnmath._formulas.projections import linear, linear_jvp, linear_vjp
from attnmath._formulas.softmax import log_softmax, log_softmax_jvp, log_softmax_vjp
from attnmath._given.checked import checked
from attnmath._given.letters import (
    AnyArray,
    AnyScalar,
    Features,
    Kind,
    PerFeature,
    Rows,
    Tokens,
    all_finite,
    positive_number,
)
from attnmath._words.arrays import Array, Scalar, inner, rowmean, sqrt, sum_to, tanh

Least = Annotated[AnyArray | float, "()", positive_number]
Entries = Annotated[Kind, "..."]
Up = Annotated[Kind, "d d_u", all_finite]
UpBias = Annotated[Kind, "d_u", all_finite]
Down = Annotated[Kind, "d_u d", all_finite]
DownBias = Annotated[Kind, "d", all_finite]
Mapped = Annotated[Kind, "... n d"]
Targets = Annotated[Kind, "...A m", all_finite]
Loss = Annotated[Kind, "()"]
Weight = Annotated[AnyScalar, "()"]


class LayerNormGradients(NamedTuple, Generic[Kind]):
    """The gradients of layer_norm, each of the shape of its argument."""

    dX: Features[Kind]
    dalpha: PerFeature[Kind]
    dbeta: PerFeature[Kind]


class MlpGradients(NamedTuple, Generic[Kind]):
    """The gradients of mlp, each of its argument's shape; None for a bias of None."""

    dX: Tokens[Kind]
    dW_U: Up[Kind]
    db_U: UpBias[Kind] | None
    dW_D: Down[Kind]
    db_D: DownBias[Kind] | None


def standardize(X: Array, epsilon: Scalar) -> tuple:
    """Each row less its mean, divided by its deviation r; and r."""
    mu = rowmean(X)
    C = X - mu
    r = sqrt(rowmean(C * C) + epsilon)
    X_hat = C / r
    return X_hat, r


@checked
def layer_norm(
    X: Features[Kind], alpha: PerFeature[Kind], beta: PerFeature[Kind],
    *, epsilon: Least = 1e-5,
) -> Features[Kind]:
    """Every row with the mean 0 and the mean square 1, then scaled and shifted.

    X (..., d), alpha (d,), beta (d,), epsilon () -> Y (..., d)

    The gain alpha and the shift beta are shared by all rows. epsilon, a positive
    number, is added to the mean square. Raises TypeError unless all are floating-point
    arrays of one library and one precision, ValueError for a wrong shape, and for an
    epsilon that is not positive.
    Derived in chapters/blocks.md, eq:layer_norm.
    """
    X_hat, r = standardize(X, epsilon)
    return alpha * X_hat + beta


@checked
def layer_norm_vjp(
    dY: Features[Kind],
    X: Features[Kind], alpha: PerFeature[Kind], beta: PerFeature[Kind],
    *, epsilon: Least = 1e-5,
) -> LayerNormGradients[Kind]:
    """The gradients of the loss in rows, gain and shift, from that in the output.

    dY (..., d), X (..., d), alpha (d,), beta (d,), epsilon ()
    -> dX (..., d), dalpha (d,), dbeta (d,)

    dalpha and dbeta are summed over all rows. Errors as for layer_norm.
    Derived in chapters/blocks.md, eq:layer_norm_vjp.
    """
    X_hat, r = standardize(X, epsilon)
    dX_hat = alpha * dY
    dX = (dX_hat - rowmean(dX_hat) - rowmean(X_hat * dX_hat) * X_hat) / r
    dalpha = sum_to(dY * X_hat, alpha)
    dbeta = sum_to(dY, beta)
    return LayerNormGradients(dX, dalpha, dbeta)


@checked
def layer_norm_jvp(
    X_dot: Features[Kind] | None, alpha_dot: PerFeature[Kind] | None,
    beta_dot: PerFeature[Kind] | None,
    X: Features[Kind], alpha: PerFeature[Kind], beta: PerFeature[Kind],
    *, epsilon: Least = 1e-5,
) -> Features[Kind]:
    """The tangent of the output, from the tangents of rows, gain and shift.

    X_dot (..., d), alpha_dot (d,), beta_dot (d,), X (..., d), alpha (d,), beta (d,),
    epsilon () -> Y_dot (..., d)

    A tangent of None is zero. Errors as for layer_norm.
    Derived in chapters/blocks.md, eq:layer_norm_jvp.
    """
    X_hat, r = standardize(X, epsilon)
    mu_dot = rowmean(X_dot)
    r_dot = rowmean(X_hat * X_dot)
    X_hat_dot = (X_dot - mu_dot - r_dot * X_hat) / r
    return alpha * X_hat_dot + alpha_dot * X_hat + beta_dot


def sigmoid(U: Array) -> Array:
    """1 / (1 + exp(-U)), written so that nothing overflows."""
    return (1 + tanh(U / 2)) / 2


@checked
def silu(U: Entries[Kind]) -> Entries[Kind]:
    """Every entry times its sigmoid, which lets the positive ones pass.

    U (...) -> F (...)

    Raises TypeError unless U is an array of floating-point numbers.
    Derived in chapters/blocks.md, eq:silu.
    """
    S = sigmoid(U)
    return U * S


@checked
def silu_vjp(dF: Entries[Kind], U: Entries[Kind]) -> Entries[Kind]:
    """The gradient of the loss in the entries, from that in what passes.

    dF (...), U (...) -> dU (...)

    Raises ValueError if the shapes differ; errors else as for silu.
    Derived in chapters/blocks.md, eq:silu_vjp.
    """
    S = sigmoid(U)
    return dF * (S + U * S * (1 - S))


@checked
def silu_jvp(U_dot: Entries[Kind] | None, U: Entries[Kind]) -> Entries[Kind]:
    """The tangent of what passes, from that of the entries.

    U_dot (...), U (...) -> F_dot (...)

    A tangent of None is zero. Errors as for silu_vjp.
    Derived in chapters/blocks.md, eq:silu_jvp.
    """
    S = sigmoid(U)
    return U_dot * (S + U * S * (1 - S))


@checked
def mlp(
    X: Tokens[Kind], W_U: Up[Kind], b_U: UpBias[Kind] | None,
    W_D: Down[Kind], b_D: DownBias[Kind] | None,
) -> Mapped[Kind]:
    """The network that acts on every token alike: up, silu, and down again.

    X (..., n, d), W_U (d, d_u), b_U (d_u,), W_D (d_u, d), b_D (d,) -> Y (..., n, d)

    A bias of None is no bias. Raises TypeError unless all are floating-point arrays of
    one library and one precision, ValueError for a wrong shape.
    Derived in chapters/blocks.md, eq:mlp.
    """
    U = linear(X, W_U, b_U)
    F = silu(U)
    return linear(F, W_D, b_D)


@checked
def mlp_vjp(
    dY: Mapped[Kind],
    X: Tokens[Kind], W_U: Up[Kind], b_U: UpBias[Kind] | None,
    W_D: Down[Kind], b_D: DownBias[Kind] | None,
) -> MlpGradients[Kind]:
    """The gradients of the loss in tokens, matrices, biases, from that in the output.

    dY (..., n, d), X (..., n, d), W_U (d, d_u), b_U (d_u,), W_D (d_u, d), b_D (d,)
    -> dX, dW_U, db_U, dW_D, db_D, each of the shape of its argument

    Those of matrices and biases are summed over the batch. The gradient of a bias of
    None is None. Errors as for mlp.
    Derived in chapters/blocks.md, eq:mlp_vjp.
    """
    U = linear(X, W_U, b_U)
    F = silu(U)
    dF, dW_D, db_D = linear_vjp(dY, F, W_D, b_D)
    dU = silu_vjp(dF, U)
    dX, dW_U, db_U = linear_vjp(dU, X, W_U, b_U)
    return MlpGradients(dX, dW_U, db_U, dW_D, db_D)


@checked
def mlp_jvp(
    X_dot: Tokens[Kind] | None, W_U_dot: Up[Kind] | None,
    b_U_dot: UpBias[Kind] | None, W_D_dot: Down[Kind] | None,
    b_D_dot: DownBias[Kind] | None,
    X: Tokens[Kind], W_U: Up[Kind], b_U: UpBias[Kind] | None,
    W_D: Down[Kind], b_D: DownBias[Kind] | None,
) -> Mapped[Kind]:
    """The tangent of the output, from the tangents of tokens, matrices and biases.

    X_dot (..., n, d), W_U_dot (d, d_u), b_U_dot (d_u,), W_D_dot (d_u, d), b_D_dot (d,),
    then the arguments of mlp -> Y_dot (..., n, d)

    A tangent of None is zero. Errors as for mlp.
    Derived in chapters/blocks.md, eq:mlp_jvp.
    """
    U = linear(X, W_U, b_U)
    F = silu(U)
    U_dot = linear_jvp(X_dot, W_U_dot, b_U_dot, X, W_U)
    F_dot = silu_jvp(U_dot, U)
    return linear_jvp(F_dot, W_D_dot, b_D_dot, F, W_D)


@checked
def cross_entropy(A: Rows[Kind], *, E: Targets[Kind]) -> Loss[Kind]:
    """How much the weights of the scores miss the targets: a number, summed over rows.

    A (..., m), E (..., m) -> loss ()

    Each row of E holds target probabilities; a row of zeros is ignored. The loss is
    infinite if a score of -inf has a target. Raises TypeError unless both are
    floating-point arrays of one library and one precision, ValueError for a wrong
    shape.
    Derived in chapters/blocks.md, eq:cross_entropy.
    """
    Lambda = log_softmax(A)
    return -inner(E, Lambda)


@checked
def cross_entropy_vjp(
    dloss: Weight, A: Rows[Kind], *, E: Targets[Kind]
) -> Rows[Kind]:
    """The gradient in the scores: where targets sum to one, weights less targets.

    dloss (), A (..., m), E (..., m) -> dA (..., m)

    dloss is 1, or what multiplies the loss afterwards. dA is 0 where A is -inf, and in
    rows where E is 0; a target at a score of -inf makes the loss infinite, and passes
    nothing back. Errors as for cross_entropy.
    Derived in chapters/blocks.md, eq:cross_entropy_vjp.
    """
    dLambda = -dloss * E
    return log_softmax_vjp(dLambda, A)


@checked
def cross_entropy_jvp(
    A_dot: Rows[Kind] | None, A: Rows[Kind], *, E: Targets[Kind]
) -> Loss[Kind]:
    """The tangent of the loss, from that of the scores.

    A_dot (..., m), A (..., m), E (..., m) -> loss_dot ()

    A tangent of None is zero. Errors as for cross_entropy.
    Derived in chapters/blocks.md, eq:cross_entropy_jvp.
    """
    Lambda_dot = log_softmax_jvp(A_dot, A)
    return -inner(E, Lambda_dot)
