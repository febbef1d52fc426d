"""Softmax, log-sum-exp and log-softmax along the last axis, with their derivatives."""

from typing import NamedTuple

from attnmath import _arguments as given
from attnmath._arrays import (
    Array, Scalar, column, diag, empty_rows, exp, finite, flat, live, log, nonzero, over,
    row, rowmax, rowsum, shifted, spread, still, sum_to)  # fmt: skip


class SoftmaxGradients(NamedTuple):
    """The gradients of softmax: dA of A's shape, dtau of tau's."""

    dA: Array
    dtau: Array


def softmax(A: Array, tau: Scalar = 1) -> Array:
    """The weights of each row: its exponentials at temperature tau, divided by their sum.

    A (..., m), tau () -> P (..., m)

    A score of -inf has the weight 0; a row that is -inf everywhere has no weights: P = 0.
    tau is a number, or an array that broadcasts against A. Raises ValueError for tau = 0 or
    a shape that does not fit, TypeError for anything but floating-point arrays.
    Derived in chapters/softmax.md, eq:softmax.
    """
    tau = _scores("softmax", A, tau)
    S = over(A, tau)
    E = exp(shifted(S, rowmax(S)))
    return E / nonzero(rowsum(E))


def softmax_vjp(dP: Array, A: Array, tau: Scalar = 1) -> SoftmaxGradients:
    """The gradients of the loss in the scores and in the temperature, from that in P.

    dP (..., m), A (..., m), tau () -> dA (..., m), dtau ()

    Each row of dA has the sum 0; it is 0 where A is -inf. dtau has the shape of tau.
    Raises ValueError, TypeError as softmax does.
    Derived in chapters/softmax.md, eq:softmax_vjp.
    """
    tau = _scores("softmax_vjp", A, tau, dP=dP)
    P = softmax(A, tau)
    dA = P * (dP - rowsum(P * dP)) / tau
    dtau = sum_to(-dA * finite(A) / tau, tau)
    return SoftmaxGradients(dA, dtau)


def softmax_jvp(
    A_dot: Array | None, tau_dot: Scalar | None, A: Array, tau: Scalar = 1
) -> Array:
    """The tangent of the weights, from those of the scores and of the temperature.

    A_dot (..., m), tau_dot (), A (..., m), tau () -> P_dot (..., m)

    A tangent of None is zero. Each row of P_dot has the sum 0.
    Raises ValueError, TypeError as softmax does.
    Derived in chapters/softmax.md, eq:softmax_jvp.
    """
    tau = _scores("softmax_jvp", A, tau, A_dot=A_dot)
    P = softmax(A, tau)
    U = (still(A_dot, A) - still(tau_dot, tau) * finite(A) / tau) / tau
    return P * (U - rowsum(P * U))


def softmax_jacobian(A: Array, tau: Scalar = 1) -> Array:
    """The derivative of each row of weights by its own row of scores.

    A (..., m), tau () -> J (..., m, m), J[..., j, k] = dP[..., j] / dA[..., k]

    Symmetric; its rows have the sum 0. It is for looking at: softmax_vjp and softmax_jvp
    do its work with m numbers for each row. Raises ValueError, TypeError as softmax does.
    Derived in chapters/softmax.md, eq:softmax_jacobian.
    """
    tau = _scores("softmax_jacobian", A, tau)
    P = softmax(A, tau)
    tau = column(spread(tau, P)) if hasattr(tau, "shape") else tau
    return (diag(P) - column(P) * row(P)) / tau


def logsumexp(A: Array) -> Array:
    """The logarithm of the sum of each row's exponentials.

    A (..., m) -> L (...)

    Exact to rounding for scores of any size; -inf for a row that is -inf everywhere.
    Raises TypeError for anything but a floating-point array.
    Derived in chapters/softmax.md, eq:logsumexp.
    """
    _scores("logsumexp", A)
    c = rowmax(A)
    S = rowsum(exp(shifted(A, c)))
    return flat(c + log(nonzero(S)) + empty_rows(A))


def logsumexp_vjp(dL: Array, A: Array) -> Array:
    """The gradient of the loss in the scores, from that in L.

    dL (...), A (..., m) -> dA (..., m)

    0 for a row that is -inf everywhere. Raises ValueError, TypeError for what does not fit.
    Derived in chapters/softmax.md, eq:logsumexp_vjp.
    """
    _scores("logsumexp_vjp", A, dL=dL)
    return column(dL) * softmax(A)


def logsumexp_jvp(A_dot: Array, A: Array) -> Array:
    """The tangent of L, from that of the scores: the mean of A_dot under the weights.

    A_dot (..., m), A (..., m) -> L_dot (...)

    0 for a row that is -inf everywhere. Raises ValueError, TypeError for what does not fit.
    Derived in chapters/softmax.md, eq:logsumexp_jvp.
    """
    _scores("logsumexp_jvp", A, A_dot=A_dot)
    return flat(rowsum(softmax(A) * A_dot))


def log_softmax(A: Array) -> Array:
    """The logarithms of the weights, without taking the logarithm of a small number.

    A (..., m) -> Lambda (..., m)

    -inf where A is -inf, also in a row that is -inf everywhere.
    Raises TypeError for anything but a floating-point array.
    Derived in chapters/softmax.md, eq:log_softmax.
    """
    _scores("log_softmax", A)
    S = shifted(A, rowmax(A))
    return S - log(nonzero(rowsum(exp(S))))


def log_softmax_vjp(dLambda: Array, A: Array) -> Array:
    """The gradient of the loss in the scores, from that in the log-weights.

    dLambda (..., m), A (..., m) -> dA (..., m)

    Each row of dA has the sum 0; a row of A that is -inf everywhere passes back 0.
    Raises ValueError, TypeError for what does not fit.
    Derived in chapters/softmax.md, eq:log_softmax_vjp.
    """
    _scores("log_softmax_vjp", A, dLambda=dLambda)
    return live(A) * (dLambda - rowsum(dLambda) * softmax(A))


def log_softmax_jvp(A_dot: Array, A: Array) -> Array:
    """The tangent of the log-weights, from that of the scores.

    A_dot (..., m), A (..., m) -> Lambda_dot (..., m)

    0 for a row that is -inf everywhere. Raises ValueError, TypeError for what does not fit.
    Derived in chapters/softmax.md, eq:log_softmax_jvp.
    """
    _scores("log_softmax_jvp", A, A_dot=A_dot)
    return live(A) * (A_dot - rowsum(softmax(A) * A_dot))


def _scores(function: str, A: Array, tau: Scalar = 1, **others: Array | None) -> Scalar:
    """Checks the arguments of the functions above; tau as a number or an array."""
    given.arrays(function, A=A, **others)
    given.shaped(function, "A", A, "..., m", A.ndim >= 1)
    for name, x in others.items():
        shape = A.shape[:-1] if name == "dL" else A.shape
        given.like(function, name, x, shape, "L" if name == "dL" else "A")
    tau = given.number(function, "tau", tau, A.shape, "A", A=A)
    given.no_zero(function, "tau", tau)
    return tau
