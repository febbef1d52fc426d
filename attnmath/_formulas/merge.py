"""The outputs of one query over two sets of keys, merged into that over both."""

from typing import Annotated, Generic, NamedTuple

from attnmath._given.checked import checked
from attnmath._given.letters import Kind, Outputs, PerQuery, below_inf
from attnmath._words.arrays import Array, column, constant, exp, finite, flat, log, nonzero, real, rowsum, shift
from attnmath._words.tiles import larger

Other = Annotated[Kind, "...O_a n d_v"]
OfRows = Annotated[Kind, "...O_a n", below_inf]


class FlashOutput(NamedTuple, Generic[Kind]):
    """The output over some keys, and the log-sum-exp of their scores."""

    O: Outputs[Kind]
    L: PerQuery[Kind]


class FlashTangents(NamedTuple, Generic[Kind]):
    """The tangents of the output and of the log-sum-exp."""

    O_dot: Outputs[Kind]
    L_dot: PerQuery[Kind]


class MergeGradients(NamedTuple, Generic[Kind]):
    """The gradients of merge, each of the shape of its argument."""

    dO_a: Outputs[Kind]
    dL_a: OfRows[Kind]
    dO_b: Other[Kind]
    dL_b: OfRows[Kind]


@checked
def merge(
    O_a: Outputs[Kind], L_a: OfRows[Kind], O_b: Other[Kind], L_b: OfRows[Kind]
) -> FlashOutput[Kind]:
    """The output over two sets of keys, and its log-sum-exp, from those over each set.

    O_a (..., n, d_v), L_a (..., n), O_b (..., n, d_v), L_b (..., n)
    -> O (..., n, d_v), L (..., n)

    A query without a key has L = -inf and O = 0, which changes nothing. Raises
    TypeError unless all are floating-point arrays of one library and one precision,
    ValueError for a wrong shape, and for NaN or +inf in L_a or L_b.
    Derived in chapters/flash.md, eq:merge.
    """
    w_a, w_b, L = _weights(L_a, L_b)
    return FlashOutput(w_a * O_a + w_b * O_b, L)


@checked
def merge_vjp(
    dO: Outputs[Kind], dL: PerQuery[Kind],
    O_a: Outputs[Kind], L_a: OfRows[Kind], O_b: Other[Kind], L_b: OfRows[Kind],
) -> MergeGradients[Kind]:
    """The gradients of the loss in all that was merged, from those in both results.

    dO (..., n, d_v), dL (..., n), O_a (..., n, d_v), L_a (..., n), O_b (..., n, d_v),
    L_b (..., n) -> dO_a, dL_a, dO_b, dL_b, each of the shape of its argument

    What has L = -inf passes nothing back. Errors as for merge.
    Derived in chapters/flash.md, eq:merge_vjp.
    """
    w_a, w_b, L = _weights(L_a, L_b)
    O = w_a * O_a + w_b * O_b
    dO_a = w_a * dO
    dL_a = w_a * (rowsum(dO * (O_a - O)) + column(dL))
    dO_b = w_b * dO
    dL_b = w_b * (rowsum(dO * (O_b - O)) + column(dL))
    return MergeGradients(dO_a, flat(dL_a), dO_b, flat(dL_b))


@checked
def merge_jvp(
    O_a_dot: Outputs[Kind] | None, L_a_dot: OfRows[Kind] | None,
    O_b_dot: Other[Kind] | None, L_b_dot: OfRows[Kind] | None,
    O_a: Outputs[Kind], L_a: OfRows[Kind], O_b: Other[Kind], L_b: OfRows[Kind],
) -> FlashTangents[Kind]:
    """The tangents of both results, from those of all that is merged.

    O_a_dot (..., n, d_v), L_a_dot (..., n), O_b_dot (..., n, d_v), L_b_dot (..., n),
    then the arguments of merge -> O_dot (..., n, d_v), L_dot (..., n)

    A tangent has the shape of its argument; None is zero. What has L = -inf does not
    move. Errors as for merge.
    Derived in chapters/flash.md, eq:merge_jvp.
    """
    w_a, w_b, L = _weights(L_a, L_b)
    L_dot = w_a * column(L_a_dot) + w_b * column(L_b_dot)
    O_dot_a = O_a_dot + (column(L_a_dot) - L_dot) * O_a
    O_dot_b = O_b_dot + (column(L_b_dot) - L_dot) * O_b
    O_dot = w_a * O_dot_a + w_b * O_dot_b
    return FlashTangents(O_dot, flat(L_dot))


def _weights(L_a: Array, L_b: Array) -> tuple:
    """The share of each part in both, as columns, and the log-sum-exp of both."""
    c = larger(constant(real(L_a)), constant(real(L_b)))
    s_a = exp(shift(L_a, c))
    s_b = exp(shift(L_b, c))
    s = s_a + s_b
    L = log(s) + finite(c)
    return column(s_a / nonzero(s)), column(s_b / nonzero(s)), L
