"""What stands around attention: layer norm, the network of each token, the loss."""

from typing import NamedTuple

from attnmath._arrays import Array, Scalar, inner, rowmean, sqrt, sum_to, tanh
from attnmath._block_arguments import entries, network, norm, targets
from attnmath._projections import linear, linear_jvp, linear_vjp
from attnmath._softmax import log_softmax, log_softmax_jvp, log_softmax_vjp


class LayerNormGradients(NamedTuple):
    """The gradients of layer_norm, each of the shape of its argument."""

    dX: Array
    dalpha: Array
    dbeta: Array


class MlpGradients(NamedTuple):
    """The gradients of mlp, each of its argument's shape; None for a bias of None."""

    dX: Array
    dW_U: Array
    db_U: Array | None
    dW_D: Array
    db_D: Array | None


def standardize(X: Array, epsilon: Scalar) -> tuple:
    """Each row less its mean, divided by its deviation r; and r."""
    mu = rowmean(X)
    C = X - mu
    r = sqrt(rowmean(C * C) + epsilon)
    X_hat = C / r
    return X_hat, r


def layer_norm(
    X: Array, alpha: Array, beta: Array, *, epsilon: Scalar = 1e-5
) -> Array:
    """Every row with the mean 0 and the mean square 1, then scaled and shifted.

    X (..., d), alpha (d,), beta (d,), epsilon () -> Y (..., d)

    The gain alpha and the shift beta are shared by all rows. epsilon, a positive
    number, is added to the mean square. Raises TypeError unless all are floating-point
    arrays of one library and one precision, ValueError for a wrong shape, and for an
    epsilon that is not positive.
    Derived in chapters/blocks.md, eq:layer_norm.
    """
    X, alpha, beta = norm("layer_norm", X, alpha, beta, epsilon)
    X_hat, r = standardize(X, epsilon)
    return alpha * X_hat + beta


def layer_norm_vjp(
    dY: Array, X: Array, alpha: Array, beta: Array, *, epsilon: Scalar = 1e-5
) -> LayerNormGradients:
    """The gradients of the loss in rows, gain and shift, from that in the output.

    dY (..., d), X (..., d), alpha (d,), beta (d,), epsilon ()
    -> dX (..., d), dalpha (d,), dbeta (d,)

    dalpha and dbeta are summed over all rows. Errors as for layer_norm.
    Derived in chapters/blocks.md, eq:layer_norm_vjp.
    """
    X, alpha, beta, dY = norm("layer_norm_vjp", X, alpha, beta, epsilon, dY=dY)
    X_hat, r = standardize(X, epsilon)
    dX_hat = alpha * dY
    dX = (dX_hat - rowmean(dX_hat) - rowmean(X_hat * dX_hat) * X_hat) / r
    dalpha = sum_to(dY * X_hat, alpha)
    dbeta = sum_to(dY, beta)
    return LayerNormGradients(dX, dalpha, dbeta)


def layer_norm_jvp(
    X_dot: Array | None, alpha_dot: Array | None, beta_dot: Array | None,
    X: Array, alpha: Array, beta: Array, *, epsilon: Scalar = 1e-5,
) -> Array:
    """The tangent of the output, from the tangents of rows, gain and shift.

    X_dot (..., d), alpha_dot (d,), beta_dot (d,), X (..., d), alpha (d,), beta (d,),
    epsilon () -> Y_dot (..., d)

    A tangent of None is zero. Errors as for layer_norm.
    Derived in chapters/blocks.md, eq:layer_norm_jvp.
    """
    dots = dict(X_dot=X_dot, alpha_dot=alpha_dot, beta_dot=beta_dot)
    X, alpha, beta, *dots = norm("layer_norm_jvp", X, alpha, beta, epsilon, **dots)
    X_dot, alpha_dot, beta_dot = dots
    X_hat, r = standardize(X, epsilon)
    mu_dot = rowmean(X_dot)
    r_dot = rowmean(X_hat * X_dot)
    X_hat_dot = (X_dot - mu_dot - r_dot * X_hat) / r
    return alpha * X_hat_dot + alpha_dot * X_hat + beta_dot


def sigmoid(U: Array) -> Array:
    """1 / (1 + exp(-U)), written so that nothing overflows."""
    return (1 + tanh(U / 2)) / 2


def silu(U: Array) -> Array:
    """Every entry times its sigmoid, which lets the positive ones pass.

    U (...) -> F (...)

    Raises TypeError unless U is an array of floating-point numbers.
    Derived in chapters/blocks.md, eq:silu.
    """
    (U,) = entries("silu", U)
    S = sigmoid(U)
    return U * S


def silu_vjp(dF: Array, U: Array) -> Array:
    """The gradient of the loss in the entries, from that in what passes.

    dF (...), U (...) -> dU (...)

    Raises ValueError if the shapes differ; errors else as for silu.
    Derived in chapters/blocks.md, eq:silu_vjp.
    """
    U, dF = entries("silu_vjp", U, dF=dF)
    S = sigmoid(U)
    return dF * (S + U * S * (1 - S))


def silu_jvp(U_dot: Array | None, U: Array) -> Array:
    """The tangent of what passes, from that of the entries.

    U_dot (...), U (...) -> F_dot (...)

    A tangent of None is zero. Errors as for silu_vjp.
    Derived in chapters/blocks.md, eq:silu_jvp.
    """
    U, U_dot = entries("silu_jvp", U, U_dot=U_dot)
    S = sigmoid(U)
    return U_dot * (S + U * S * (1 - S))


def mlp(
    X: Array, W_U: Array, b_U: Array | None, W_D: Array, b_D: Array | None
) -> Array:
    """The network that acts on every token alike: up, silu, and down again.

    X (..., n, d), W_U (d, d_u), b_U (d_u,), W_D (d_u, d), b_D (d,) -> Y (..., n, d)

    A bias of None is no bias. Raises TypeError unless all are floating-point arrays of
    one library and one precision, ValueError for a wrong shape.
    Derived in chapters/blocks.md, eq:mlp.
    """
    X, W_U, b_U, W_D, b_D = network("mlp", X, W_U, b_U, W_D, b_D)
    U = linear(X, W_U, b_U)
    F = silu(U)
    return linear(F, W_D, b_D)


def mlp_vjp(
    dY: Array,
    X: Array, W_U: Array, b_U: Array | None, W_D: Array, b_D: Array | None,
) -> MlpGradients:
    """The gradients of the loss in tokens, matrices, biases, from that in the output.

    dY (..., n, d), X (..., n, d), W_U (d, d_u), b_U (d_u,), W_D (d_u, d), b_D (d,)
    -> dX, dW_U, db_U, dW_D, db_D, each of the shape of its argument

    Those of matrices and biases are summed over the batch. The gradient of a bias of
    None is None. Errors as for mlp.
    Derived in chapters/blocks.md, eq:mlp_vjp.
    """
    X, W_U, b_U, W_D, b_D, dY = network("mlp_vjp", X, W_U, b_U, W_D, b_D, dY=dY)
    U = linear(X, W_U, b_U)
    F = silu(U)
    dF, dW_D, db_D = linear_vjp(dY, F, W_D, b_D)
    dU = silu_vjp(dF, U)
    dX, dW_U, db_U = linear_vjp(dU, X, W_U, b_U)
    return MlpGradients(dX, dW_U, db_U, dW_D, db_D)


def mlp_jvp(
    X_dot: Array | None, W_U_dot: Array | None, b_U_dot: Array | None,
    W_D_dot: Array | None, b_D_dot: Array | None,
    X: Array, W_U: Array, b_U: Array | None, W_D: Array, b_D: Array | None,
) -> Array:
    """The tangent of the output, from the tangents of tokens, matrices and biases.

    X_dot (..., n, d), W_U_dot (d, d_u), b_U_dot (d_u,), W_D_dot (d_u, d), b_D_dot (d,),
    then the arguments of mlp -> Y_dot (..., n, d)

    A tangent of None is zero. Errors as for mlp.
    Derived in chapters/blocks.md, eq:mlp_jvp.
    """
    dots = dict(
        X_dot=X_dot, W_U_dot=W_U_dot, b_U_dot=b_U_dot, W_D_dot=W_D_dot, b_D_dot=b_D_dot
    )
    X, W_U, b_U, W_D, b_D, *dots = network("mlp_jvp", X, W_U, b_U, W_D, b_D, **dots)
    X_dot, W_U_dot, b_U_dot, W_D_dot, b_D_dot = dots
    U = linear(X, W_U, b_U)
    F = silu(U)
    U_dot = linear_jvp(X_dot, W_U_dot, b_U_dot, X, W_U, b_U)
    F_dot = silu_jvp(U_dot, U)
    return linear_jvp(F_dot, W_D_dot, b_D_dot, F, W_D, b_D)


def cross_entropy(A: Array, *, E: Array) -> Array:
    """How much the weights of the scores miss the targets: a number, summed over rows.

    A (..., m), E (..., m) -> loss ()

    Each row of E holds target probabilities; a row of zeros is ignored. The loss is
    infinite if a score of -inf has a target. Raises TypeError unless both are
    floating-point arrays of one library and one precision, ValueError for a wrong
    shape.
    Derived in chapters/blocks.md, eq:cross_entropy.
    """
    A, E = targets("cross_entropy", A, E)
    Lambda = log_softmax(A)
    return -inner(E, Lambda)


def cross_entropy_vjp(dloss: Scalar, A: Array, *, E: Array) -> Array:
    """The gradient in the scores: where targets sum to one, weights less targets.

    dloss (), A (..., m), E (..., m) -> dA (..., m)

    dloss is 1, or what multiplies the loss afterwards. dA is 0 where A is -inf, and in
    rows where E is 0. Errors as for cross_entropy.
    Derived in chapters/blocks.md, eq:cross_entropy_vjp.
    """
    A, E, dloss = targets("cross_entropy_vjp", A, E, dloss=dloss)
    dLambda = -dloss * E
    return log_softmax_vjp(dLambda, A)


def cross_entropy_jvp(A_dot: Array | None, A: Array, *, E: Array) -> Array:
    """The tangent of the loss, from that of the scores.

    A_dot (..., m), A (..., m), E (..., m) -> loss_dot ()

    A tangent of None is zero. Errors as for cross_entropy.
    Derived in chapters/blocks.md, eq:cross_entropy_jvp.
    """
    A, E, A_dot = targets("cross_entropy_jvp", A, E, A_dot=A_dot)
    Lambda_dot = log_softmax_jvp(A_dot, A)
    return -inner(E, Lambda_dot)
