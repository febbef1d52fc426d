"""How far the gradient of sinks may be off: each is a key that all queries like alike, and its value is zero."""

import math

from attnmath._words.arrays import Array, Scalar, namespace, plus, shape
from attnmath._words.layers import sink_rows, sinks_summed
from attnmath.rounding.bounds import Inputs, factor, output_off, row_statistic, weight_bounds, weights_vjp
from attnmath.rounding.formats import Model
from attnmath.rounding.lemmas import grown
from attnmath.rounding.strips import leading, zeros


def sinks_vjp(f: Model, x: Inputs, sigma: Scalar) -> Array:
    """How far the gradient of the sinks may be off, of their shape, where the head is given x beside them.

    Derived in chapters/normalizers.md, prp:sink_rounding.
    """
    return weighted_sum_off(f, *sink_terms(f, x, sigma), sigma)


def sink_terms(f: Model, x: Inputs, sigma: Scalar) -> tuple[Array, Array, Array, Array]:
    """The weights of the sinks (..., n, d_s), and D (..., n, 1), each with how far it may be off."""
    m, x = shape(x.K)[-2], with_sinks(x, sigma)
    w = weight_bounds(f, x)
    O, O_off = output_off(f, x, *factor(f, x, w))
    D, D_off = row_statistic(f, x, w, O, O_off, *weights_vjp(f, x))
    return w.P[..., m:], w.P_off[..., m:], D, D_off


def weighted_sum_off(f: Model, P: Array, P_off: Array, D: Array, D_off: Array, sigma: Scalar) -> Array:
    """How far the sum of P D over the queries, and over what shares a sink, may be off: prp:sink_rounding."""
    terms, off = P * D, P_off * abs(D) + (P + P_off) * D_off
    count = math.prod(shape(terms)) // max(math.prod(shape(sigma)), 1)
    size, off = (sinks_summed(y, sigma) for y in (abs(terms), off))
    off = grown(size, off, f.stored + count * f.sums, count * max(f.least_sum, f.least_stored))
    return grown(sinks_summed(terms, sigma), off, f.stored, f.least_stored)


def with_sinks(x: Inputs, sigma: Scalar) -> Inputs:
    """The head whose last keys are the sinks; nothing drops them."""
    xp, size = namespace(x.Q), (*leading(*x), shape(x.Q)[-2], shape(x.K)[-2])
    sigma = sink_rows(sigma, zeros(x.Q, size))
    d_s = shape(sigma)[-1]

    def below(y: Array) -> Array:
        return xp.concat([y, zeros(y, (*shape(y)[:-2], d_s, shape(y)[-1]))], axis=-2)

    def beside(y: Array, sinks: Array) -> Array:
        return xp.concat([xp.broadcast_to(y, size), xp.broadcast_to(sinks, (*size[:-1], d_s))], axis=-1)

    B = beside(plus(zeros(x.Q, (1, 1)), x.B), sigma)
    return x._replace(K=below(x.K), V=below(x.V), B=B, R=x.R if x.R is None else beside(x.R, 1 + 0 * sigma))
