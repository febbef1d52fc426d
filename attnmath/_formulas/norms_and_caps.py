"""What keeps scores small: the root mean square norm, and a cap."""

from typing import Annotated, Generic, NamedTuple

from attnmath._given.checked import checked
from attnmath._given.letters import (
    AnyArray,
    AnyScalar,
    Features,
    Kind,
    PerFeature,
    before_a_mask,
    cap,
    not_negative,
)
from attnmath._words.arrays import Array, Scalar, rowmean, sqrt, sum_to, tanh

Added = Annotated[AnyArray | float, "()", not_negative]
Scores = Annotated[Kind, "...", before_a_mask]
CappedScores = Annotated[Kind, "..."]
Cap = Annotated[AnyScalar, "to ...", cap]
CapGradient = Annotated[Kind, "to ..."]


class RmsNormGradients(NamedTuple, Generic[Kind]):
    """The gradients of rms_norm, each of the shape of its argument."""

    dX: Features[Kind]
    dalpha: PerFeature[Kind]


class SoftcapGradients(NamedTuple, Generic[Kind]):
    """The gradients of softcap, each of the shape of its argument."""

    dS: Scores[Kind]
    dc: CapGradient[Kind]


def normed(X: Array, alpha: Array, epsilon: Scalar) -> tuple:
    """The root r of the mean square of a row; the row divided by it, and with gain."""
    r = sqrt(rowmean(X * X) + epsilon)
    X_hat = X / r
    Y = alpha * X_hat
    return r, X_hat, Y


def normed_vjp(dY: Array, r: Array, X_hat: Array, alpha: Array) -> tuple:
    """The gradients of the divided rows, of the rows and of the gain."""
    dX_hat = alpha * dY
    dX = (dX_hat - rowmean(X_hat * dX_hat) * X_hat) / r
    dalpha = sum_to(dY * X_hat, alpha)
    return dX_hat, dX, dalpha


def normed_jvp(
    X_dot: Array, alpha_dot: Array, r: Array, X_hat: Array, alpha: Array
) -> tuple:
    """The tangents of the root, of the divided rows, and of these with the gain."""
    r_dot = rowmean(X_hat * X_dot)
    X_hat_dot = (X_dot - r_dot * X_hat) / r
    Y_dot = alpha * X_hat_dot + alpha_dot * X_hat
    return r_dot, X_hat_dot, Y_dot


@checked
def rms_norm(
    X: Features[Kind], alpha: PerFeature[Kind], *, epsilon: Added = 1e-6
) -> Features[Kind]:
    """Every row divided by the root of its mean square, then scaled.

    X (..., d), alpha (d,), epsilon () -> Y (..., d)

    The gain alpha is shared by all rows. epsilon is added to the mean square; it may be
    0 where no row is zero, and a row of zeros then becomes NaN. Raises TypeError unless
    all are floating-point arrays of one library and one precision, ValueError for a
    wrong shape, and for an epsilon below 0.
    Derived in chapters/norms_and_caps.md, eq:rms_norm.
    """
    r, X_hat, Y = normed(X, alpha, epsilon)
    return Y


@checked
def rms_norm_vjp(
    dY: Features[Kind], X: Features[Kind], alpha: PerFeature[Kind],
    *, epsilon: Added = 1e-6,
) -> RmsNormGradients[Kind]:
    """The gradients of the loss in rows and gain, from that in the output.

    dY (..., d), X (..., d), alpha (d,), epsilon () -> dX (..., d), dalpha (d,)

    dalpha is summed over all rows. Errors as for rms_norm.
    Derived in chapters/norms_and_caps.md, eq:rms_norm_vjp.
    """
    r, X_hat, Y = normed(X, alpha, epsilon)
    dX_hat, dX, dalpha = normed_vjp(dY, r, X_hat, alpha)
    return RmsNormGradients(dX, dalpha)


@checked
def rms_norm_jvp(
    X_dot: Features[Kind] | None, alpha_dot: PerFeature[Kind] | None,
    X: Features[Kind], alpha: PerFeature[Kind], *, epsilon: Added = 1e-6,
) -> Features[Kind]:
    """The tangent of the output, from the tangents of rows and gain.

    X_dot (..., d), alpha_dot (d,), X (..., d), alpha (d,), epsilon () -> Y_dot (..., d)

    A tangent of None is zero. Errors as for rms_norm.
    Derived in chapters/norms_and_caps.md, eq:rms_norm_jvp.
    """
    r, X_hat, Y = normed(X, alpha, epsilon)
    r_dot, X_hat_dot, Y_dot = normed_jvp(X_dot, alpha_dot, r, X_hat, alpha)
    return Y_dot


@checked
def softcap(S: Scores[Kind], c: Cap) -> CappedScores[Kind]:
    """Every score squeezed between -c and c: nearly itself if it is small.

    S (...), c () -> A (...)

    The cap c is a positive number, or an array of them that broadcasts against S. A
    mask is added afterwards: -inf would become -c. Raises TypeError unless S is an
    array of floating-point numbers, ValueError for a wrong shape, for a cap that is not
    positive, and for NaN or infinity in S.
    Derived in chapters/norms_and_caps.md, eq:softcap.
    """
    U = tanh(S / c)
    return c * U


@checked
def softcap_vjp(
    dA: CappedScores[Kind], S: Scores[Kind], c: Cap
) -> SoftcapGradients[Kind]:
    """The gradients of the loss in scores and cap, from that in the capped scores.

    dA (...), S (...), c () -> dS (...), dc ()

    dc is summed over the axes along which c was broadcast. Errors as for softcap.
    Derived in chapters/norms_and_caps.md, eq:softcap_vjp.
    """
    U = tanh(S / c)
    dS = dA * (1 - U * U)
    dc = dA * U - dS * S / c
    return SoftcapGradients(dS, sum_to(dc, c))


@checked
def softcap_jvp(
    S_dot: Scores[Kind] | None, c_dot: Cap | None, S: Scores[Kind], c: Cap
) -> CappedScores[Kind]:
    """The tangent of the capped scores, from those of scores and cap.

    S_dot (...), c_dot (), S (...), c () -> A_dot (...)

    A tangent of None is zero. Errors as for softcap.
    Derived in chapters/norms_and_caps.md, eq:softcap_jvp.
    """
    U = tanh(S / c)
    return (1 - U * U) * (S_dot - c_dot * S / c) + c_dot * U
