"""How far a correct attention may be off, entry by entry, because its numbers are rounded.

A rounding multiplies a number by e to the power of at most its unit roundoff, up or down;
so roundings add up in the exponent, where the errors of the scores are already.
"""

import math
from numbers import Integral
from typing import Any, NamedTuple

from attnmath._formulas import attention as exact
from attnmath._given.checked import Check
from attnmath._given.kinds import ready
from attnmath._words.arrays import (
    Array,
    Scalar,
    T,
    exp,
    finite,
    flat,
    is_complex,
    is_hidden,
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
from attnmath.rounding.formats import Model, float64, model

# e to this power says that nothing is promised, and still can be multiplied.
MOST_EXPONENT = 300.0
FORWARD, BACKWARD = Check(exact.attention), Check(exact.attention_vjp)


class OutputBounds(NamedTuple):
    """How far the output of a head and its log-sum-exp may be off."""

    O: Array
    L: Array


class GradientBounds(NamedTuple):
    """How far the gradients may be off, each of its argument's shape; None for B = None."""

    dQ: Array
    dK: Array
    dV: Array
    dB: Array | None
    dgamma: Array


def attention(
    Q: Array, K: Array, V: Array, B: Array | None = None, gamma: Scalar | None = None,
    *, dtype: Any, accumulate: Any = None, fused: bool = True, R: Array | None = None,
) -> OutputBounds:
    """How far a correct head computed in dtype may be from its exact output.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma (),
    R (..., n, m) -> O (..., n, d_v), L (..., n)

    The inputs are the numbers that the implementation was given, so already rounded; they
    are taken into float64, where attention_map gives the answer to compare with.
    With accumulate=None everything is rounded to dtype, sums too. With a wider format for
    accumulate, sums are kept in that; fused=True then rounds to dtype only P and dA, as
    factors of a product, and what is returned, but for L; fused=False rounds every array.
    Sums may be taken in any order, and in tiles of four keys or more. exp and log need to
    be right to 2 unit roundoffs, and nothing may overflow. Where the bound is 0, only the
    exact number is right: rows of B that are -inf everywhere have O = 0 and L = -inf.
    PyTorch's tensors give tensors, all other arrays NumPy's. Raises ValueError for a format
    that is not float64, float32, bfloat16 or float16, otherwise as attention_map.

    >>> import numpy as np
    >>> from attnmath import rounding
    >>> Q, K, V = np.ones((2, 3)), np.ones((4, 3)), np.ones((4, 2))
    >>> O, L = rounding.attention(Q, K, V, dtype="float32")
    >>> O.shape, bool((O < 1e-5).all())
    ((2, 2), True)

    Derived in chapters/rounding.md.
    """
    f = model("rounding.attention", dtype, accumulate, fused)
    x = read_inputs("rounding.attention", Q=Q, K=K, V=V, B=B, gamma=gamma, R=R)
    w = weight_bounds(f, x)
    return OutputBounds(output_off(f, x, *factor(f, x, w))[1], flat(w.L_off))


def attention_vjp(
    dO: Array, Q: Array, K: Array, V: Array,
    B: Array | None = None, gamma: Scalar | None = None,
    *, dtype: Any, accumulate: Any = None, fused: bool = True, stores: int = 1,
    R: Array | None = None,
) -> GradientBounds:
    """How far correct gradients computed in dtype may be from the exact ones.

    dO (..., n, d_v), Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m),
    gamma (), R (..., n, m) -> dQ, dK, dV, dB, dgamma, each of the shape of its argument

    Compare with attention_vjp in float64. The weights may be kept, or found again from L;
    D may be the row sum of dO times the O that was returned, or of P times dP; what is
    shared by broadcasting may be rounded before it is summed, or only after. stores is how
    often the growing sum of a gradient is stored in dtype: once, or once per tile where
    tile after tile is added to the result itself. Raises ValueError for stores that is no
    whole number from 1. Everything else as for attention.
    Derived in chapters/rounding.md.
    """
    f = model("rounding.attention_vjp", dtype, accumulate, fused)
    if not isinstance(stores, Integral) or isinstance(stores, bool) or stores < 1:
        raise ValueError(
            f"rounding.attention_vjp: stores is {stores!r}; it needs to be a whole number from 1"
        )
    x = read_inputs("rounding.attention_vjp", Q=Q, K=K, V=V, B=B, gamma=gamma, R=R, dO=dO)
    w = weight_bounds(f, x)
    n, m = shape(w.P)[-2:]
    P, P_off = factor(f, x, w)
    dA, dA_off = scores_vjp(f, x, w, *output_off(f, x, P, P_off))
    S, S_off = x.gamma * dA, abs(x.gamma) * dA_off
    off = {
        "Q": (S @ x.K, product(f, S, S_off, x.K, m + 10, stores)),
        "K": (T(S) @ x.Q, product(f, T(S), T(S_off), x.Q, n + 10, stores)),
        "V": (T(P) @ x.dO, product(f, T(P), T(P_off), x.dO, n + 10, stores)),
        "B": (dA, dA_off),
        "gamma": (dA * w.QK, dA_off * abs(w.QK) + (abs(dA) + dA_off) * w.QK_off),
    }
    return GradientBounds(*(gathered(f, *off[k], getattr(x, k)) for k in off))


class Inputs(NamedTuple):
    """What a head was given, in float64."""

    Q: Array
    K: Array
    V: Array
    B: Array | None
    gamma: Scalar
    R: Array | None
    dO: Array | None = None


class WeightBounds(NamedTuple):
    """Products of queries and keys, weights, sums of rows, and how far each may be off."""

    QK: Array
    QK_off: Array
    eta: Array  # how far the exponents may be off
    P: Array
    P_off: Array
    L_off: Array  # a column


def read_inputs(function: str, **named: Any) -> Inputs:
    """The inputs in float64; what is refused is named as it was given."""
    check = BACKWARD if "dO" in named else FORWARD
    for _, letter in check.arrays:
        name, x = letter.name, named[letter.name]
        if x is None and letter.optional:
            continue
        x = ready(function, letter, x, "Q")
        if isinstance(x, complex) or not is_number(x) and is_complex(x):
            raise TypeError(f"{function}: {name} is complex; it needs to be real")
        named[name] = x if is_number(x) else float64(x)
    return Inputs(**dict(zip(check.names, check((), named, function))))


def weight_bounds(f: Model, x: Inputs) -> WeightBounds:
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
    live = xp.any(~is_hidden(A), axis=-1, keepdims=True)
    return WeightBounds(QK, QK_off, eta, P, P_off, L_off * live)


def factor(f: Model, x: Inputs, w: WeightBounds) -> tuple[Array, Array]:
    """The weights as they enter a product: times R, and rounded once more."""
    steps = f.stored + (0 if x.R is None else 2 * f.entries)
    return times(w.P, x.R), times(grown(w.P, w.P_off, steps, f.least_stored), x.R)


def output_off(f: Model, x: Inputs, P: Array, P_off: Array) -> tuple[Array, Array]:
    """The output as it is returned, from the weights as they enter the product."""
    O = P @ x.V
    O_off = product(f, P, P_off, x.V, shape(x.V)[-2] + 8)
    return O, grown(O, O_off, f.stored + f.entries, f.least_stored)


def scores_vjp(f: Model, x: Inputs, w: WeightBounds, O: Array, O_off: Array) -> tuple[Array, Array]:
    """The gradient of the scores, as it enters the last products."""
    xp, (m, d_v), dO = namespace(x.Q), shape(x.V)[-2:], x.dO
    assert dO is not None, "the way back begins with dO"
    dP, D = times(dO @ T(x.V), x.R), rowsum(dO * O)
    dP_off = times(product(f, dO, None, T(x.V), d_v), x.R)
    steps = f.entries + (0 if x.R is None else 2 * f.entries)
    dP_off = grown(dP, dP_off, steps, f.least_entry)
    size, P_most = abs(dP), w.P + w.P_off
    by_output = row_sum_off(f, abs(dO * O), abs(dO) * O_off, d_v)
    by_weights = row_sum_off(f, w.P * size, w.P_off * size + P_most * dP_off, m)
    D_off = grown(D, xp.maximum(by_output, by_weights), f.entries, f.least_entry)
    G_off = grown(size + abs(D), dP_off + D_off, 2 * f.entries)
    dA = w.P * (dP - D)
    dA_off = w.P_off * abs(dP - D) + P_most * G_off
    return dA, grown(dA, dA_off, f.stored + f.entries, f.least_stored)


def grown(x: Array, off: Array, steps: float, least: float = 0.0) -> Array:
    """How far x may be off after more roundings, which multiply it by e^steps at most."""
    more = abs(x)
    more *= math.expm1(min(steps, MOST_EXPONENT))
    more += off * math.exp(min(steps, MOST_EXPONENT))
    return more + least * (more > 0) if least else more


def spread(P: Array, below: Array, phi: Array) -> Array:
    """P (e^phi - 1) for P = e^-below, also where P is too small for a number."""
    xp = namespace(P)
    near = phi < 1
    if xp.all(near):
        return P * xp.expm1(phi)
    far = xp.exp(xp.clip(phi - below, max=MOST_EXPONENT)) - P
    return xp.where(near, P * xp.expm1(xp.clip(phi, max=1.0)), far)


def product(
    f: Model, X: Array, X_off: Array | None, Y: Array, k: int, stores: int = 1
) -> Array:
    """How far X Y may be off: each term is rounded k times on its way, and stored in between."""
    steps = k * f.sums + (stores - 1) * f.stored
    reach = grown(X, 0.0 if X_off is None else X_off, steps) @ abs(Y)
    return reach + k * f.least_sum * (reach > 0) if f.least_sum else reach


def row_sum_off(f: Model, x: Array, off: Array, k: int) -> Array:
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
