"""Softmax, log-sum-exp and log-softmax along the last axis, with their derivatives."""

from typing import Annotated, Generic, NamedTuple

from attnmath._given.checked import checked
from attnmath._given.letters import Kind, PerRow, Rows, Temperature, TemperatureGradient
from attnmath._words.arrays import (
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


class SoftmaxGradients(NamedTuple, Generic[Kind]):
    """The gradients of softmax, each of the shape of its argument."""

    dA: Rows[Kind]
    dtau: TemperatureGradient[Kind]


@checked
def softmax(A: Rows[Kind], tau: Temperature = 1) -> Rows[Kind]:
    """The weights of each row: exponentials of the scores, divided by their sum.

    A (..., m), tau () -> P (..., m)

    A score of -inf has the weight 0; a row that is -inf everywhere has no weights, P =
    0. The temperature tau is a number, or an array that broadcasts against A. Raises
    TypeError unless A is an array of floating-point numbers, ValueError for a tau that
    is not above 0 or a wrong shape.
    Derived in chapters/softmax.md, eq:softmax.
    """
    S = divide(A, tau)
    E = exp(shift(S, rowmax(S)))
    return E / nonzero(rowsum(E))


@checked
def softmax_vjp(
    dP: Rows[Kind], A: Rows[Kind], tau: Temperature = 1
) -> SoftmaxGradients[Kind]:
    """The gradients of the loss in scores and temperature, from that in the weights.

    dP (..., m), A (..., m), tau () -> dA (..., m), dtau ()

    dA is 0 where A is -inf. Errors as for softmax.

    >>> import numpy as np
    >>> from attnmath import softmax_vjp
    >>> A, dP = np.zeros((1, 2)), np.array([[4.0, 0.0]])
    >>> softmax_vjp(dP, A).dA  # P o (dP - D), where D is 2
    array([[ 1., -1.]])

    Derived in chapters/softmax.md, eq:softmax_vjp.
    """
    P = softmax(A, tau)
    dA = P * (dP - rowsum(P * dP)) / tau
    dtau = -dA * finite(A) / tau
    return SoftmaxGradients(dA, sum_to(dtau, tau))


@checked
def softmax_jvp(
    A_dot: Rows[Kind] | None, tau_dot: Temperature | None,
    A: Rows[Kind], tau: Temperature = 1,
) -> Rows[Kind]:
    """The tangent of the weights, from those of scores and temperature.

    A_dot (..., m), tau_dot (), A (..., m), tau () -> P_dot (..., m)

    A tangent of None is zero. P_dot is 0 where A is -inf. Errors as for softmax.
    Derived in chapters/softmax.md, eq:softmax_jvp.
    """
    P = softmax(A, tau)
    U = (A_dot - tau_dot / tau * finite(A)) / tau
    return P * (U - rowsum(P * U))


@checked
def softmax_jacobian(
    A: Rows[Kind], tau: Temperature = 1
) -> Annotated[Kind, "... m m"]:
    """The derivative of every weight by every score of its row.

    A (..., m), tau () -> J (..., m, m), where J[..., j, k] is dP[..., j] / dA[..., k]

    Its rows and columns are 0 where A is -inf. Errors as for softmax.
    Derived in chapters/softmax.md, eq:softmax_jacobian.
    """
    P = softmax(A, tau)
    return (diag(P) - column(P) * row(P)) / row(tau)


@checked
def logsumexp(A: Rows[Kind]) -> PerRow[Kind]:
    """The logarithm of the sum of the exponentials of each row.

    A (..., m) -> L (...)

    L is -inf for a row that is -inf everywhere, the logarithm of an empty sum. Errors
    as for softmax.
    Derived in chapters/softmax.md, eq:logsumexp.
    """
    c = rowmax(A)
    return flat(log(rowsum(exp(shift(A, c)))) + c)


@checked
def logsumexp_vjp(dL: PerRow[Kind], A: Rows[Kind]) -> Rows[Kind]:
    """The gradient of the loss in the scores, from that in the log-sum-exp.

    dL (...), A (..., m) -> dA (..., m)

    dA is 0 where A is -inf. Errors as for softmax.
    Derived in chapters/softmax.md, eq:logsumexp_vjp.
    """
    return column(dL) * softmax(A)


@checked
def logsumexp_jvp(A_dot: Rows[Kind] | None, A: Rows[Kind]) -> PerRow[Kind]:
    """The tangent of the log-sum-exp, from that of the scores.

    A_dot (..., m), A (..., m) -> L_dot (...)

    A tangent of None is zero; so is L_dot for a row that is -inf everywhere. Errors as
    for softmax.
    Derived in chapters/softmax.md, eq:logsumexp_jvp.
    """
    return flat(rowsum(softmax(A) * A_dot))


@checked
def log_softmax(A: Rows[Kind]) -> Rows[Kind]:
    """The logarithms of the weights of each row.

    A (..., m) -> Lambda (..., m)

    Lambda is -inf where A is -inf, so everywhere in a row that is -inf everywhere.
    Errors as for softmax.
    Derived in chapters/blocks.md, eq:log_softmax.
    """
    S = shift(A, rowmax(A))
    return hide(shift(S, log(rowsum(exp(S)))), A)


@checked
def log_softmax_vjp(dLambda: Rows[Kind], A: Rows[Kind]) -> Rows[Kind]:
    """The gradient of the loss in the scores, from that in the log-weights.

    dLambda (..., m), A (..., m) -> dA (..., m)

    Where A is -inf, Lambda is -inf and does not move: dA is 0 there, whatever dLambda
    is. Errors as for softmax.
    Derived in chapters/blocks.md, eq:log_softmax_vjp.
    """
    dLambda = visible(dLambda, A)
    return dLambda - rowsum(dLambda) * softmax(A)


@checked
def log_softmax_jvp(A_dot: Rows[Kind] | None, A: Rows[Kind]) -> Rows[Kind]:
    """The tangent of the log-weights, from that of the scores.

    A_dot (..., m), A (..., m) -> Lambda_dot (..., m)

    A tangent of None is zero. Lambda_dot is 0 where A is -inf. Errors as for softmax.
    Derived in chapters/blocks.md, eq:log_softmax_jvp.
    """
    return visible(A_dot - rowsum(softmax(A) * A_dot), A)
