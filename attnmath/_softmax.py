"""Softmax, log-sum-exp and log-softmax along the last axis, with their derivatives."""

from typing import NamedTuple

from attnmath._arguments import scores
from attnmath._arrays import (
    Array,
    Scalar,
    column,
    diag,
    divide,
    exp,
    finite,
    flat,
    hide,
    log,
    nonzero,
    row,
    rowmax,
    rowsum,
    shift,
    sum_to,
    visible,
)


class SoftmaxGradients(NamedTuple):
    """The gradients of softmax, each of the shape of its argument."""

    dA: Array
    dtau: Array


def softmax(A: Array, tau: Scalar = 1) -> Array:
    """The weights of each row: exponentials of the scores, divided by their sum.

    A (..., m), tau () -> P (..., m)

    A score of -inf has the weight 0; a row that is -inf everywhere has no weights, P =
    0. The temperature tau is a number, or an array that broadcasts against A. Raises
    TypeError unless A is an array of floating-point numbers, ValueError for tau = 0 or
    a wrong shape.
    Derived in chapters/softmax.md, eq:softmax.
    """
    A, tau = scores("softmax", A, tau=tau)
    S = divide(A, tau)
    E = exp(shift(S, rowmax(S)))
    return E / nonzero(rowsum(E))


def softmax_vjp(dP: Array, A: Array, tau: Scalar = 1) -> SoftmaxGradients:
    """The gradients of the loss in scores and temperature, from that in the weights.

    dP (..., m), A (..., m), tau () -> dA (..., m), dtau ()

    dA is 0 where A is -inf. Errors as for softmax.
    Derived in chapters/softmax.md, eq:softmax_vjp.
    """
    A, tau, dP = scores("softmax_vjp", A, tau=tau, dP=dP)
    P = softmax(A, tau)
    dA = P * (dP - rowsum(P * dP)) / tau
    dtau = -dA * finite(A) / tau
    return SoftmaxGradients(dA, sum_to(dtau, tau))


def softmax_jvp(
    A_dot: Array | None, tau_dot: Scalar | None, A: Array, tau: Scalar = 1
) -> Array:
    """The tangent of the weights, from those of scores and temperature.

    A_dot (..., m), tau_dot (), A (..., m), tau () -> P_dot (..., m)

    A tangent of None is zero. P_dot is 0 where A is -inf. Errors as for softmax.
    Derived in chapters/softmax.md, eq:softmax_jvp.
    """
    dots = dict(A_dot=A_dot, tau_dot=tau_dot)
    A, tau, A_dot, tau_dot = scores("softmax_jvp", A, tau=tau, **dots)
    P = softmax(A, tau)
    U = (A_dot - tau_dot / tau * finite(A)) / tau
    return P * (U - rowsum(P * U))


def softmax_jacobian(A: Array, tau: Scalar = 1) -> Array:
    """The derivative of every weight by every score of its row.

    A (..., m), tau () -> J (..., m, m), where J[..., j, k] is dP[..., j] / dA[..., k]

    Its rows and columns are 0 where A is -inf. Errors as for softmax.
    Derived in chapters/softmax.md, eq:softmax_jacobian.
    """
    A, tau = scores("softmax_jacobian", A, tau=tau)
    P = softmax(A, tau)
    return (diag(P) - column(P) * row(P)) / row(tau)


def logsumexp(A: Array) -> Array:
    """The logarithm of the sum of the exponentials of each row.

    A (..., m) -> L (...)

    L is -inf for a row that is -inf everywhere, the logarithm of an empty sum. Errors
    as for softmax.
    Derived in chapters/softmax.md, eq:logsumexp.
    """
    (A,) = scores("logsumexp", A)
    c = rowmax(A)
    return flat(log(rowsum(exp(shift(A, c)))) + c)


def logsumexp_vjp(dL: Array, A: Array) -> Array:
    """The gradient of the loss in the scores, from that in the log-sum-exp.

    dL (...), A (..., m) -> dA (..., m)

    dA is 0 where A is -inf. Errors as for softmax.
    Derived in chapters/softmax.md, eq:logsumexp_vjp.
    """
    A, dL = scores("logsumexp_vjp", A, dL=dL)
    return column(dL) * softmax(A)


def logsumexp_jvp(A_dot: Array | None, A: Array) -> Array:
    """The tangent of the log-sum-exp, from that of the scores.

    A_dot (..., m), A (..., m) -> L_dot (...)

    A tangent of None is zero; so is L_dot for a row that is -inf everywhere. Errors as
    for softmax.
    Derived in chapters/softmax.md, eq:logsumexp_jvp.
    """
    A, A_dot = scores("logsumexp_jvp", A, A_dot=A_dot)
    return flat(rowsum(softmax(A) * A_dot))


def log_softmax(A: Array) -> Array:
    """The logarithms of the weights of each row.

    A (..., m) -> Lambda (..., m)

    Lambda is -inf where A is -inf, so everywhere in a row that is -inf everywhere.
    Errors as for softmax.
    Derived in chapters/blocks.md, eq:log_softmax.
    """
    (A,) = scores("log_softmax", A)
    S = shift(A, rowmax(A))
    return hide(shift(S, log(rowsum(exp(S)))), A)


def log_softmax_vjp(dLambda: Array, A: Array) -> Array:
    """The gradient of the loss in the scores, from that in the log-weights.

    dLambda (..., m), A (..., m) -> dA (..., m)

    Where A is -inf, Lambda is -inf and does not move: dA is 0 there, whatever dLambda
    is. Errors as for softmax.
    Derived in chapters/blocks.md, eq:log_softmax_vjp.
    """
    A, dLambda = scores("log_softmax_vjp", A, dLambda=dLambda)
    dLambda = visible(dLambda, A)
    return dLambda - rowsum(dLambda) * softmax(A)


def log_softmax_jvp(A_dot: Array | None, A: Array) -> Array:
    """The tangent of the log-weights, from that of the scores.

    A_dot (..., m), A (..., m) -> Lambda_dot (..., m)

    A tangent of None is zero. Lambda_dot is 0 where A is -inf. Errors as for softmax.
    Derived in chapters/blocks.md, eq:log_softmax_jvp.
    """
    A, A_dot = scores("log_softmax_jvp", A, A_dot=A_dot)
    return visible(A_dot - rowsum(softmax(A) * A_dot), A)
