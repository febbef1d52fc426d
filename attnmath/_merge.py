"""The outputs of one query over two sets of keys, merged into that over both."""

from typing import NamedTuple

from attnmath._arrays import (
    Array,
    column,
    constant,
    exp,
    finite,
    flat,
    log,
    nonzero,
    real,
    rowsum,
    shift,
)
from attnmath._tile_arguments import two_parts
from attnmath._tile_arrays import larger


class FlashOutput(NamedTuple):
    """The output over some keys, and the log-sum-exp of their scores."""

    O: Array
    L: Array


class FlashTangents(NamedTuple):
    """The tangents of the output and of the log-sum-exp."""

    O_dot: Array
    L_dot: Array


class MergeGradients(NamedTuple):
    """The gradients of merge, each of the shape of its argument."""

    dO_a: Array
    dL_a: Array
    dO_b: Array
    dL_b: Array


def merge(O_a: Array, L_a: Array, O_b: Array, L_b: Array) -> FlashOutput:
    """The output over two sets of keys, and its log-sum-exp, from those over each set.

    O_a (..., n, d_v), L_a (..., n), O_b (..., n, d_v), L_b (..., n)
    -> O (..., n, d_v), L (..., n)

    A query without a key has L = -inf and O = 0, which changes nothing. Raises
    TypeError unless all are floating-point arrays of one library and one precision,
    ValueError for a wrong shape, and for NaN or +inf in L_a or L_b.
    Derived in chapters/flash.md, eq:merge.
    """
    O_a, L_a, O_b, L_b = two_parts("merge", O_a, L_a, O_b, L_b)
    w_a, w_b, L = _weights(L_a, L_b)
    return FlashOutput(w_a * O_a + w_b * O_b, L)


def merge_vjp(
    dO: Array, dL: Array, O_a: Array, L_a: Array, O_b: Array, L_b: Array
) -> MergeGradients:
    """The gradients of the loss in all that was merged, from those in both results.

    dO (..., n, d_v), dL (..., n), O_a (..., n, d_v), L_a (..., n), O_b (..., n, d_v),
    L_b (..., n) -> dO_a, dL_a, dO_b, dL_b, each of the shape of its argument

    What has L = -inf passes nothing back. Errors as for merge.
    Derived in chapters/flash.md, eq:merge_vjp.
    """
    O_a, L_a, O_b, L_b, dO, dL = two_parts(
        "merge_vjp", O_a, L_a, O_b, L_b, dO=dO, dL=dL
    )
    w_a, w_b, L = _weights(L_a, L_b)
    O = w_a * O_a + w_b * O_b
    dO_a = w_a * dO
    dL_a = w_a * (rowsum(dO * (O_a - O)) + column(dL))
    dO_b = w_b * dO
    dL_b = w_b * (rowsum(dO * (O_b - O)) + column(dL))
    return MergeGradients(dO_a, flat(dL_a), dO_b, flat(dL_b))


def merge_jvp(
    O_a_dot: Array | None, L_a_dot: Array | None,
    O_b_dot: Array | None, L_b_dot: Array | None,
    O_a: Array, L_a: Array, O_b: Array, L_b: Array,
) -> FlashTangents:
    """The tangents of both results, from those of all that is merged.

    O_a_dot (..., n, d_v), L_a_dot (..., n), O_b_dot (..., n, d_v), L_b_dot (..., n),
    then the arguments of merge -> O_dot (..., n, d_v), L_dot (..., n)

    A tangent has the shape of its argument; None is zero. What has L = -inf does not
    move. Errors as for merge.
    Derived in chapters/flash.md, eq:merge_jvp.
    """
    dots = dict(O_a_dot=O_a_dot, L_a_dot=L_a_dot, O_b_dot=O_b_dot, L_b_dot=L_b_dot)
    O_a, L_a, O_b, L_b, *dots = two_parts("merge_jvp", O_a, L_a, O_b, L_b, **dots)
    O_a_dot, L_a_dot, O_b_dot, L_b_dot = dots
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
