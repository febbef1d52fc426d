"""Where a token stands: rotated rows, a slope times the distance, a table."""

from typing import Generic, Literal, NamedTuple

from attnmath._formulas.masks import Align
from attnmath._given.checked import checked
from attnmath._given.letters import Kind, Size
from attnmath._given.masks import places
from attnmath._given.positions import (
    Buckets,
    BucketsOfPairs,
    Count,
    Frequencies,
    PairsBias,
    Positions,
    Slopes,
    Table,
    Turned,
    buckets_like,
    distances_like,
    own_buckets,
    places_like,
    refuse_beyond_table,
    refuse_buckets,
    refuse_unpaired,
)
from attnmath._words.arrays import Array, column, flat, row, rowsum, sum_to, summed
from attnmath._words.pairs import collected, cos, gathered, looked_up, reached_by, sin, spread, turned

Layout = Literal["half_split", "interleaved"]
Sides = Literal["both", "before"]


class RotaryGradients(NamedTuple, Generic[Kind]):
    """The gradients of rotary, each of the shape of its argument."""

    dX: Turned[Kind]
    dtheta: Frequencies[Kind]


@checked
def rotary(
    X: Turned[Kind], theta: Frequencies[Kind],
    *, positions: Positions | None = None, layout: Layout = "half_split",
) -> Turned[Kind]:
    """Each row with its pairs of features turned, by position times frequency.

    X (..., n, d), theta (r,), positions (..., n) -> Y (..., n, d)

    The first 2 r features are turned, the others stay. From 0, pair p has the features
    p and p + r with layout="half_split", and 2 p and 2 p + 1 with "interleaved".
    Positions are whole numbers, whose leading axes broadcast; None is 0, 1, 2, ....
    Angles have the precision of theta: in half precision they are off by whole turns.
    Raises TypeError unless X and theta are floating-point arrays of one library and one
    precision, ValueError for a wrong shape, for an odd number of features and for more
    frequencies than pairs.

    >>> import numpy as np
    >>> from attnmath import rotary
    >>> X = np.array([[1.0, 0.0], [1.0, 0.0]])
    >>> rotary(X, np.array([np.pi / 2])).round(15)  # at position 1, a quarter of a turn
    array([[1., 0.],
           [0., 1.]])

    Derived in chapters/positions.md, eq:rotary.
    """
    t, C, S = turning("rotary", X, theta, positions, layout)
    return X * C + turned(X, theta, layout) * S


@checked
def rotary_vjp(
    dY: Turned[Kind],
    X: Turned[Kind], theta: Frequencies[Kind],
    *, positions: Positions | None = None, layout: Layout = "half_split",
) -> RotaryGradients[Kind]:
    """The gradients of the loss in rows and frequencies, from that in the turned rows.

    dY (..., n, d), X (..., n, d), theta (r,), positions (..., n)
    -> dX (..., n, d), dtheta (r,)

    dX is dY turned back. dtheta is summed over all rows. Conditions and errors as for
    rotary.
    Derived in chapters/positions.md, eq:rotary_vjp.
    """
    t, C, S = turning("rotary_vjp", X, theta, positions, layout)
    Y = X * C + turned(X, theta, layout) * S
    dX = dY * C - turned(dY, theta, layout) * S
    dtheta = row(flat(t)) @ gathered(dY * turned(Y, theta, layout), theta, layout)
    return RotaryGradients(summed(dX, X), sum_to(dtheta, theta))


@checked
def rotary_jvp(
    X_dot: Turned[Kind] | None, theta_dot: Frequencies[Kind] | None,
    X: Turned[Kind], theta: Frequencies[Kind],
    *, positions: Positions | None = None, layout: Layout = "half_split",
) -> Turned[Kind]:
    """The tangent of the turned rows, from those of rows and frequencies.

    X_dot (..., n, d), theta_dot (r,), X (..., n, d), theta (r,), positions (..., n)
    -> Y_dot (..., n, d)

    A tangent of None is zero. Conditions and errors as for rotary.
    Derived in chapters/positions.md, eq:rotary_jvp.
    """
    t, C, S = turning("rotary_jvp", X, theta, positions, layout)
    Y = X * C + turned(X, theta, layout) * S
    Phi_dot = spread(t @ row(theta_dot), X, layout)
    turned_dot = X_dot * C + turned(X_dot, theta, layout) * S
    return turned_dot + turned(Y, theta, layout) * Phi_dot


def turning(
    function: str, X: Array, theta: Array, positions: Array | None, layout: str,
    name: str = "X",
) -> tuple:
    """The positions, as a column, and the cosines and sines of all angles."""
    refuse_unpaired(function, X, theta, name)
    t = column(places_like(positions, X, theta, function))
    Phi = spread(t @ row(theta), X, layout)
    return t, cos(Phi), sin(Phi)


@checked
def alibi(
    eta: Slopes[Kind], *, n: Size, m: Size, align: Align = "lower_right"
) -> PairsBias[Kind]:
    """The bias that falls with the distance from the query, by one slope for each head.

    eta (...), n queries, m keys -> B (..., n, m)

    Places are those of causal_mask; the mask itself comes beside it, as in
    bias(causal_mask(n, m), alibi(eta, n=n, m=m)). Raises TypeError unless eta is an
    array of floating-point numbers, TypeError or ValueError for a wrong size or align.

    >>> import numpy as np
    >>> from attnmath import alibi
    >>> alibi(np.array([0.5]), n=2, m=3)
    array([[[-0.5, -0. , -0.5],
            [-1. , -0.5, -0. ]]])

    Derived in chapters/positions.md, eq:alibi.
    """
    E = distances_like(n, m, align, eta)
    return -column(column(eta)) * E


@checked
def alibi_vjp(
    dB: PairsBias[Kind], eta: Slopes[Kind],
    *, n: Size, m: Size, align: Align = "lower_right",
) -> Slopes[Kind]:
    """The gradient of the loss in the slopes, from that in the bias.

    dB (..., n, m), eta (...), n queries, m keys -> deta (...)

    Errors as for alibi.
    Derived in chapters/positions.md, eq:alibi_vjp.
    """
    E = distances_like(n, m, align, eta)
    return -flat(rowsum(flat(rowsum(dB * E))))


@checked
def alibi_jvp(
    eta_dot: Slopes[Kind] | None, eta: Slopes[Kind],
    *, n: Size, m: Size, align: Align = "lower_right",
) -> PairsBias[Kind]:
    """The tangent of the bias, from that of the slopes.

    eta_dot (...), eta (...), n queries, m keys -> B_dot (..., n, m)

    A tangent of None is zero. Errors as for alibi.
    Derived in chapters/positions.md, eq:alibi_jvp.
    """
    return alibi(eta_dot, n=n, m=m, align=align)


@checked
def relative_buckets(
    n: Size, m: Size,
    *, buckets: Count = 32, distance: Count = 128, sides: Sides = "both",
    align: Align = "lower_right",
) -> BucketsOfPairs:
    """The bucket of each pair of query and key, by their distance, as T5 counts it.

    n queries, m keys -> whole numbers of NumPy from 0 to buckets - 1 (n, m)

    Half of the buckets hold one distance each; the others grow with it, and the last
    has all that are far. With sides="both", keys after the query have a half of the
    buckets of their own, the second; with "before", they are in bucket 0. Places are
    those of causal_mask. Raises TypeError or ValueError for a wrong number or word.

    >>> from attnmath import relative_buckets
    >>> relative_buckets(1, 9, buckets=4, distance=6, sides="before")
    array([[3, 3, 3, 3, 3, 2, 2, 1, 0]])

    Derived in chapters/positions.md, eq:relative_buckets.
    """
    refuse_buckets(buckets, distance, sides)
    place, j = places(n, m, align)
    side, near = own_buckets(buckets, sides)
    before = reached_by(place - j, side, near, distance)
    after = reached_by(j - place, side, near, distance)
    return before + (sides == "both") * (after + side * (j > place))


@checked
def table_bias(beta: Table[Kind], *, buckets: Buckets) -> PairsBias[Kind]:
    """The bias that a table has for the bucket of each pair.

    beta (..., c), buckets (n, m), whole numbers from 0 to c - 1 -> B (..., n, m)

    Raises TypeError unless beta is an array of floating-point numbers and buckets are
    whole numbers, ValueError for a wrong shape and for a bucket beyond the table.
    Derived in chapters/positions.md, eq:table_bias.
    """
    refuse_beyond_table("table_bias", buckets, beta)
    return looked_up(beta, buckets_like(buckets, beta, "table_bias"))


@checked
def table_bias_vjp(
    dB: PairsBias[Kind], beta: Table[Kind], *, buckets: Buckets
) -> Table[Kind]:
    """The gradient of the loss in the table: the sum of dB over each bucket.

    dB (..., n, m), beta (..., c), buckets (n, m) -> dbeta (..., c)

    Errors as for table_bias.
    Derived in chapters/positions.md, eq:table_bias_vjp.
    """
    refuse_beyond_table("table_bias_vjp", buckets, beta)
    return collected(dB, buckets_like(buckets, beta, "table_bias_vjp"), beta)


@checked
def table_bias_jvp(
    beta_dot: Table[Kind] | None, beta: Table[Kind], *, buckets: Buckets
) -> PairsBias[Kind]:
    """The tangent of the bias: that of the table, looked up.

    beta_dot (..., c), beta (..., c), buckets (n, m) -> B_dot (..., n, m)

    A tangent of None is zero. Errors as for table_bias.
    Derived in chapters/positions.md, eq:table_bias_jvp.
    """
    return table_bias(beta_dot, buckets=buckets)
