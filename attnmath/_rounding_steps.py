"""How far each step of a head may be off: the weights, the output, and the way back.

A rounding multiplies a number by e to the power of at most its unit roundoff, up or down;
so roundings add up in the exponent, where the errors of the scores are already.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from attnmath._arguments import _floating, head
from attnmath._arrays import (
    Array,
    Scalar,
    T,
    exp,
    finite,
    hidden,
    is_complex,
    is_number,
    log,
    namespace,
    nonzero,
    plus,
    rowmax,
    rowsum,
    shape,
    shift,
    sum_to,
    times,
    visible,
)
from attnmath._roundoff import Model, float64

# e to this power says that nothing is promised, and still can be multiplied.
LARGEST = 300.0


class Inputs(NamedTuple):
    """What a head was given, in float64."""

    Q: Array
    K: Array
    V: Array
    B: Array | None
    gamma: Scalar
    R: Array | None
    dO: Array | None = None


class Weights(NamedTuple):
    """Products of queries and keys, weights, sums of rows, and how far each may be off."""

    QK: Array
    QK_off: Array
    eta: Array  # how far the exponents may be off
    P: Array
    P_off: Array
    L_off: Array  # a column


def inputs(function: str, **named: Any) -> Inputs:
    """The inputs in float64; what is refused is named as it was given."""
    for name, x in named.items():
        is_scale = name == "gamma" and (is_number(x) or isinstance(x, np.generic))
        if x is None and name in ("B", "gamma", "R") or is_scale and np.isrealobj(x):
            continue
        if not is_scale:
            _floating(function, name, x)
        if is_scale or is_complex(x):
            raise TypeError(f"{function}: {name} is complex; it needs to be real")
        named[name] = float64(x)
    return Inputs(*head(function, **named))


def weights(f: Model, x: Inputs) -> Weights:
    """The weights as they are kept, or as they are found again from L; and L itself."""
    xp, (m, d_k) = namespace(x.Q), shape(x.K)[-2:]
    QK = x.Q @ T(x.K)
    QK_off = grown(QK, product(f, x.Q, None, T(x.K), d_k), f.entries)
    A_off = grown(x.gamma * QK, abs(x.gamma) * QK_off, 2 * f.sums + f.entries)
    A = plus(x.gamma * QK, x.B)
    top = rowmax(A)
    E = exp(shift(A, top))
    L, P = finite(log(rowsum(E))) + top, E / nonzero(rowsum(E))
    size = abs(finite(A))
    below = visible(L - finite(A), A)
    eta = f.entries * (below + 4) + f.sums * (3 * below + size + abs(L))
    eta += grown(size, A_off, 2 * f.entries)
    r = rowsum(spread(P, below, eta + ((m + 8) * f.sums + f.entries)))
    r = xp.log1p(r + m * f.least_weight)
    length = abs(L) + (math.log(max(m, 1)) + 1)
    P_off = spread(P, below, eta + (r + 4 * f.sums * length + 2 * f.entries))
    P_off = visible(P_off + f.least_weight, A)
    L_off = r + 4 * f.entries * length
    live = xp.any(~hidden(A), axis=-1, keepdims=True)
    return Weights(QK, QK_off, eta, P, P_off, L_off * live)


def factor(f: Model, x: Inputs, w: Weights) -> tuple[Array, Array]:
    """The weights as they enter a product: times R, and rounded once more."""
    steps = f.stored + (0 if x.R is None else 2 * f.entries)
    return times(w.P, x.R), times(grown(w.P, w.P_off, steps, f.least_stored), x.R)


def output(f: Model, x: Inputs, P: Array, P_off: Array) -> tuple[Array, Array]:
    """The output as it is returned, from the weights as they enter the product."""
    O = P @ x.V
    O_off = product(f, P, P_off, x.V, shape(x.V)[-2] + 8)
    return O, grown(O, O_off, f.stored + f.entries, f.least_stored)


def scores_vjp(f: Model, x: Inputs, w: Weights, O: Array, O_off: Array) -> tuple[Array, Array]:
    """The gradient of the scores, as it enters the last products."""
    xp, (m, d_v) = namespace(x.Q), shape(x.V)[-2:]
    dP, D = times(x.dO @ T(x.V), x.R), rowsum(x.dO * O)
    dP_off = times(product(f, x.dO, None, T(x.V), d_v), x.R)
    steps = f.entries + (0 if x.R is None else 2 * f.entries)
    dP_off = grown(dP, dP_off, steps, f.least_entry)
    size, P_most = abs(dP), w.P + w.P_off
    by_output = summed(f, abs(x.dO * O), abs(x.dO) * O_off, d_v)
    by_weights = summed(f, w.P * size, w.P_off * size + P_most * dP_off, m)
    D_off = grown(D, xp.maximum(by_output, by_weights), f.entries, f.least_entry)
    G_off = grown(size + abs(D), dP_off + D_off, 2 * f.entries)
    dA = w.P * (dP - D)
    dA_off = w.P_off * abs(dP - D) + P_most * G_off
    return dA, grown(dA, dA_off, f.stored + f.entries, f.least_stored)


def grown(x: Array, off: Array, steps: float, least: float = 0.0) -> Array:
    """How far x may be off after more roundings, which multiply it by e^steps at most."""
    more = abs(x)
    more *= math.expm1(min(steps, LARGEST))
    more += off * math.exp(min(steps, LARGEST))
    return more + least * (more > 0) if least else more


def spread(P: Array, below: Array, phi: Array) -> Array:
    """P (e^phi - 1) for P = e^-below, also where P is too small for a number."""
    xp = namespace(P)
    near = phi < 1
    if xp.all(near):
        return P * xp.expm1(phi)
    far = xp.exp(xp.clip(phi - below, max=LARGEST)) - P
    return xp.where(near, P * xp.expm1(xp.clip(phi, max=1.0)), far)


def product(
    f: Model, X: Array, X_off: Array | None, Y: Array, k: int, stores: int = 1
) -> Array:
    """How far X Y may be off: each term is rounded k times on its way, and stored in between."""
    steps = k * f.sums + (stores - 1) * f.stored
    reach = grown(X, 0.0 if X_off is None else X_off, steps) @ abs(Y)
    return reach + k * f.least_sum * (reach > 0) if f.least_sum else reach


def summed(f: Model, x: Array, off: Array, k: int) -> Array:
    """How far the row sum of x may be off, products and all; x is not negative."""
    steps = (k + 2) * f.sums + f.entries
    return grown(rowsum(x), rowsum(off), steps, k * f.least_sum)


def gathered(f: Model, x: Array, off: Array, like: Scalar | None) -> Array | None:
    """How far x is off, summed to the shape of what was broadcast, and returned."""
    steps = f.stored + 2 * f.entries
    if like is None:
        return None
    if shape(like) == shape(x):
        return grown(x, off, steps, f.least_stored)
    count = math.prod(shape(x)) // max(math.prod(shape(like)), 1)
    more = grown(sum_to(abs(x), like), sum_to(off, like), steps + f.entries + (count + 8) * f.sums)
    more = more + count * max(f.least_sum, f.least_stored) * (more > 0)
    return grown(sum_to(x, like), more, f.stored, f.least_stored)
