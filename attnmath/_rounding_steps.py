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
    column,
    finite,
    hidden,
    is_complex,
    is_number,
    namespace,
    plus,
    rowsum,
    shape,
    sum_to,
    times,
)
from attnmath._roundoff import Model, float64
from attnmath._softmax import logsumexp, softmax

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
    P, L, seen = softmax(A), finite(column(logsumexp(A))), ~hidden(A)
    A, below = finite(A), xp.where(seen, L - A, 0)
    A_off = grown(A, A_off, 2 * f.entries)
    eta = A_off + f.entries * (below + 4) + f.sums * (3 * below + abs(A) + abs(L))
    gains = spread(P, below, eta + (m + 8) * f.sums + f.entries) + f.least_entry
    total = xp.log1p(rowsum(gains * seen))
    length = abs(L) + math.log(max(m, 1)) + 1
    P_off = spread(P, below, eta + total + 4 * f.sums * length + 2 * f.entries)
    L_off = total + 4 * f.entries * length
    live = xp.any(seen, axis=-1, keepdims=True)
    return Weights(QK, QK_off, eta, P, (P_off + f.least_entry) * seen, L_off * live)


def factor(f: Model, x: Inputs, w: Weights) -> tuple[Array, Array]:
    """The weights as they enter a product: times R, and rounded once more."""
    steps = f.stored + (0 if x.R is None else 2 * f.entries)
    return times(w.P, x.R), times(grown(w.P, w.P_off, steps, f.least_stored), x.R)


def output(f: Model, x: Inputs, w: Weights) -> tuple[Array, Array]:
    """The output as it is returned."""
    P, P_off = factor(f, x, w)
    O = P @ x.V
    O_off = product(f, P, P_off, x.V, shape(x.V)[-2] + 8)
    return O, grown(O, O_off, f.stored + f.entries, f.least_stored)


def scores_vjp(f: Model, x: Inputs, w: Weights) -> tuple[Array, Array]:
    """The gradient of the scores, as it enters the last products."""
    xp, (m, d_v) = namespace(x.Q), shape(x.V)[-2:]
    O, O_off = output(f, x, w)
    dP, D = times(x.dO @ T(x.V), x.R), rowsum(x.dO * O)
    steps = f.entries + (0 if x.R is None else 2 * f.entries)
    dP_off = times(product(f, x.dO, None, T(x.V), d_v), x.R)
    dP_off = grown(dP, dP_off, steps, f.least_entry)
    by_output = summed(f, abs(x.dO * O), abs(x.dO) * O_off, d_v)
    gone = w.P_off * abs(dP) + (w.P + w.P_off) * dP_off
    by_weights = summed(f, abs(w.P * dP), gone, m)
    D_off = grown(D, xp.maximum(by_output, by_weights), f.entries, f.least_entry)
    G_off = grown(abs(dP) + abs(D), dP_off + D_off, 2 * f.entries)
    dA = w.P * (dP - D)
    dA_off = w.P_off * abs(dP - D) + (w.P + w.P_off) * G_off
    return dA, grown(dA, dA_off, f.stored + f.entries, f.least_stored)


def grown(x: Array, off: Array, steps: float, least: float = 0.0) -> Array:
    """How far x may be off after more roundings, which multiply it by e^steps at most."""
    more = off * math.exp(steps) + abs(x) * math.expm1(steps)
    return more + least * (more > 0)


def spread(P: Array, below: Array, phi: Array) -> Array:
    """P (e^phi - 1) for P = e^-below, also where P is too small for a number."""
    xp = namespace(P)
    far = xp.exp(xp.clip(phi - below, max=LARGEST)) - P
    return xp.where(phi < 1, P * xp.expm1(xp.clip(phi, max=1.0)), far)


def product(
    f: Model, X: Array, X_off: Array | None, Y: Array, k: int, stores: int = 1
) -> Array:
    """How far X Y may be off: each term is rounded k times on its way, and stored in between."""
    steps = min(k * f.sums + (stores - 1) * f.stored, LARGEST)
    reach = abs(X) * math.expm1(steps)
    reach = (reach if X_off is None else reach + X_off * math.exp(steps)) @ abs(Y)
    return reach + k * f.least_sum * (reach > 0)


def summed(f: Model, x: Array, off: Array, k: int) -> Array:
    """How far the row sum of x may be off, products and all."""
    steps = min((k + 2) * f.sums + f.entries, LARGEST)
    return rowsum(grown(x, off, steps, f.least_sum))


def gathered(f: Model, x: Array, off: Array, like: Scalar | None) -> Array | None:
    """How far x is off, summed to the shape of what was broadcast, and returned."""
    off = grown(x, off, f.stored + 2 * f.entries, f.least_stored)
    if like is None or shape(like) == shape(x):
        return None if like is None else off
    count = math.prod(shape(x)) // max(math.prod(shape(like)), 1)
    steps = min((count + 8) * f.sums + f.entries, LARGEST)
    total = sum_to(grown(x, off, steps, f.least_sum), like)
    return grown(sum_to(x, like), total, f.stored, f.least_stored)
