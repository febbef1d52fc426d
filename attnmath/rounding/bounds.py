"""How far a correct attention may be off, entry by entry: the lemmas and theorems of chapters/rounding.md."""

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
    times,
)
from attnmath.rounding.formats import Model, float64, model
from attnmath.rounding.lemmas import Sums, add, grown, largest, lifted, lost, onward, product, row_sum_off, spread
from attnmath.rounding.strips import At, items, leading, part, zeros

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
    truncate: bool = False, exp_error: float = 2.0, log_error: float = 2.0,
) -> OutputBounds:
    """How far a correct head computed in dtype may be from its exact output.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma (),
    R (..., n, m) -> O (..., n, d_v), L (..., n)

    The inputs are the numbers that the implementation was given, so already rounded; they
    are taken into float64, where attention_map gives the answer to compare with.
    With accumulate=None everything is rounded to dtype, sums too. With a wider format for
    accumulate, sums are kept in that; fused=True then rounds to dtype only P and dA, as
    factors of a product, and what is returned, but for L; fused=False rounds every array.
    Sums may be taken in any order, and in tiles of four keys or more. exp (or exp2) and log
    may be off by exp_error and log_error unit roundoffs, relatively; nothing may overflow.
    With truncate=True sums may cut off digits instead of rounding to the nearest number, term
    by term or four and more that are aligned with their sum, as tensor cores do. Where the
    bound is 0, only the exact number is right: rows of B that are -inf everywhere have O = 0
    and L = -inf.
    PyTorch's tensors give tensors, all other arrays NumPy's. Raises ValueError for a format
    that is not float64, float32, bfloat16 or float16, and for errors below 0, otherwise as
    attention_map.

    >>> import numpy as np
    >>> from attnmath import rounding
    >>> Q, K, V = np.ones((2, 3)), np.ones((4, 3)), np.ones((4, 2))
    >>> O, L = rounding.attention(Q, K, V, dtype="float32")
    >>> O.shape, bool((O < 1e-5).all())
    ((2, 2), True)

    Derived in chapters/rounding.md, prp:rounding_output.
    """
    f = model("rounding.attention", dtype, accumulate, fused, truncate, exp_error, log_error)
    x = read_inputs("rounding.attention", Q=Q, K=K, V=V, B=B, gamma=gamma, R=R)
    n, m, lead = shape(x.Q)[-2], shape(x.K)[-2], leading(*x)
    O_off = zeros(x.Q, (*lead, n, shape(x.V)[-1]))
    L_off = zeros(x.Q, (*leading(x.Q, x.K, x.B, x.gamma), n, 1))
    for item, strips in items(lead, n, m):
        for at in strips:
            y = x.part(item, at)
            w = weight_bounds(f, y)
            part(O_off, at)[...], part(L_off, at)[...] = output_off(f, y, *factor(f, y, w))[1], w.L_off
    return OutputBounds(O_off, flat(L_off))


def attention_vjp(
    dO: Array, Q: Array, K: Array, V: Array,
    B: Array | None = None, gamma: Scalar | None = None,
    *, dtype: Any, accumulate: Any = None, fused: bool = True, stores: int = 1,
    R: Array | None = None,
    truncate: bool = False, exp_error: float = 2.0, log_error: float = 2.0,
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
    Derived in chapters/rounding.md, prp:rounding_vjp.
    """
    f = model("rounding.attention_vjp", dtype, accumulate, fused, truncate, exp_error, log_error)
    if not isinstance(stores, Integral) or isinstance(stores, bool) or stores < 1:
        raise ValueError(
            f"rounding.attention_vjp: stores is {stores!r}; it needs to be a whole number from 1"
        )
    x = read_inputs("rounding.attention_vjp", Q=Q, K=K, V=V, B=B, gamma=gamma, R=R, dO=dO)
    n, m, lead = shape(x.Q)[-2], shape(x.K)[-2], leading(*x)
    sizes = {"Q": shape(x.Q)[-2:], "K": shape(x.K)[-2:], "V": shape(x.V)[-2:], "B": (n, m), "gamma": (n, m)}
    given = {k: like for k in sizes if (like := getattr(x, k)) is not None}
    found = {k: Sums(f, x.Q, (*lead, *sizes[k]), like) for k, like in given.items()}
    for item, strips in items(lead, n, m):
        of_keys = [0.0] * 4
        for at in strips:
            y = x.part(item, at)
            w = weight_bounds(f, y)
            P, P_off = factor(f, y, w)
            dA, dA_off = scores_vjp(f, y, w, *output_off(f, y, P, P_off))
            if x.B is not None:
                found["B"].add(at, dA, dA_off)
            found["gamma"].add(at, dA * w.QK, scale_off(w, dA, dA_off))
            S, size = y.gamma * dA, largest(y.gamma)
            S_off = lifted(abs(y.gamma) * dA_off, f.least_stored)
            found["Q"].add(at, S @ y.K, product(f, S, S_off, y.K, m + 10, stores, size))
            steps, turned_Q, turned_dO = (n + 10) * f.sums + (stores - 1) * f.stored, T(y.Q), T(y.dO)
            terms = (  # features first: such products are faster
                turned_Q @ S, abs(turned_Q) @ grown(S, S_off, steps),
                turned_dO @ P, abs(turned_dO) @ grown(P, P_off, steps),
            )
            of_keys = [x + more for x, more in zip(of_keys, terms)]
        if strips:
            dK, K_off, dV, V_off = map(T, of_keys)
            found["K"].add(item, dK, lifted(K_off, lost(f, n + 10, stores, largest(x.part(item, item).gamma))))
            found["V"].add(item, dV, lifted(V_off, lost(f, n + 10, stores, 0.0)))
    return GradientBounds(*(found[k].returned() if k in found else None for k in sizes))


class Inputs(NamedTuple):
    """What a head was given, in float64."""

    Q: Array
    K: Array
    V: Array
    B: Array | None
    gamma: Scalar
    R: Array | None
    dO: Array | None = None

    def part(self, item: At, at: At) -> "Inputs":
        """What belongs to some queries of some items."""
        return Inputs(*(part(x, item if name in "KV" else at) for name, x in zip(self._fields, self)))


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
    return Inputs(**in_float64(function, BACKWARD if "dO" in named else FORWARD, named))


def in_float64(function: str, check: Check, named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a function, checked, in float64."""
    for _, letter in check.arrays:
        name, x = letter.name, named[letter.name]
        if x is None and letter.optional:
            continue
        x = ready(function, letter, x, "Q")
        if isinstance(x, complex) or not is_number(x) and is_complex(x):
            raise TypeError(f"{function}: {name} is complex; it needs to be real")
        named[name] = x if is_number(x) else float64(x)
    return dict(zip(check.names, check((), named, function)))


def weight_bounds(f: Model, x: Inputs) -> WeightBounds:
    """The weights as they are kept, or as they are found again from L; and L itself: prp:rounding_exponent."""
    QK = x.Q @ T(x.K)
    QK_off = onward(product(f, x.Q, None, T(x.K), shape(x.K)[-1]), abs(QK), f.entries, f.least_entry)
    A = x.gamma * QK
    A_off = onward(abs(x.gamma) * QK_off, abs(A), 2 * f.sums + f.entries)
    return WeightBounds(QK, QK_off, *softmax_off(f, plus(A, x.B), A_off))


def softmax_off(f: Model, A: Array, A_off: Array) -> tuple[Array, Array, Array, Array]:
    """Softmax of every row, kept, or found again from L, the last four of WeightBounds: prp:rounding_weights."""
    xp, e, u, m = namespace(A), f.entries, f.sums, shape(A)[-1]
    top = rowmax(A)
    below = shift(A, top)
    P = exp(below)
    total = rowsum(P)
    P /= nonzero(total)
    log_total = finite(log(total))
    L = log_total + top
    below *= -1
    below += log_total
    hidden = is_hidden(A)
    some = bool(xp.any(hidden))
    if some:
        A, A_off, below = (xp.where(hidden, 0, y) for y in (A, A_off, below))
    eta = grown(A, A_off, 2 * e)
    eta = add(add(eta, abs(A), u), below, e + 3 * u)
    eta += e * (2 + f.exp_error) + u * abs(L)
    eta = xp.where(hidden, 0, eta) if some else eta
    r = rowsum(spread(P, below, eta + ((f.over_keys(m) + 8) * u + e)))
    r = xp.log1p(r + m * f.least_weight)
    logs = (2 + f.log_error) * (abs(L) + (math.log(max(m, 1)) + 1))
    P_off = spread(P, below, eta + (r + logs * u + 2 * e))
    P_off += f.least_weight
    P_off = xp.where(hidden, 0, P_off) if some else P_off
    return eta, P, P_off, (r + logs * e) * (total > 0)


def factor(f: Model, x: Inputs, w: WeightBounds) -> tuple[Array, Array]:
    """The weights as they enter a product: times R, and rounded once more."""
    steps = f.stored + (0 if x.R is None else 2 * f.entries)
    return times(w.P, x.R), times(grown(w.P, w.P_off, steps, f.least_stored), x.R)


def output_off(f: Model, x: Inputs, P: Array, P_off: Array) -> tuple[Array, Array]:
    """The output as it is returned, from the weights as they enter the product: prp:rounding_output."""
    O = P @ x.V
    O_off = product(f, P, P_off, x.V, f.over_keys(shape(x.V)[-2]) + 8)
    return O, grown(O, O_off, f.stored + f.entries, f.least_stored)


def weights_vjp(f: Model, x: Inputs) -> tuple[Array, Array]:
    """dP, the gradient of the weights: prp:rounding_weights_vjp."""
    dO, d_v = x.dO, shape(x.V)[-1]
    assert dO is not None, "the way back begins with dO"
    dP = times(dO @ T(x.V), x.R)
    dP_off = times(lifted(product(f, dO, None, T(x.V), d_v), f.least_entry), x.R)
    steps = f.entries + (0 if x.R is None else 2 * f.entries)
    return dP, onward(dP_off, abs(dP), steps, f.least_entry)


def row_statistic(
    f: Model, x: Inputs, w: WeightBounds, O: Array, O_off: Array, dP: Array, dP_off: Array
) -> tuple[Array, Array]:
    """D, the row sum of dO times the returned output, or of the weights times dP: prp:rounding_statistic."""
    xp, (m, d_v), dO, size = namespace(x.Q), shape(x.V)[-2:], x.dO, abs(dP)
    assert dO is not None, "the way back begins with dO"
    D = rowsum(dO * O)
    by_output = row_sum_off(f, abs(dO * O), abs(dO) * O_off, d_v)
    terms = w.P * size
    size += dP_off
    size *= w.P_off  # P_off (|dP| + dP_off) + P dP_off
    by_weights = row_sum_off(f, terms, add(size, w.P, dP_off), m)
    return D, grown(D, xp.maximum(by_output, by_weights), f.entries, f.least_entry)


def scores_vjp(f: Model, x: Inputs, w: WeightBounds, O: Array, O_off: Array) -> tuple[Array, Array]:
    """The gradient of the scores, as it enters the last products: prp:rounding_scores_vjp."""
    dP, dP_off = weights_vjp(f, x)
    D, D_off = row_statistic(f, x, w, O, O_off, dP, dP_off)
    G_off = onward(dP_off, abs(dP), 2 * f.entries)
    G_off += grown(D, D_off, 2 * f.entries)
    dP -= D
    dA, dA_off = w.P * dP, abs(dP)
    dA_off += G_off
    dA_off *= w.P_off  # P_off |dP - D| + (P + P_off) G_off
    return dA, onward(add(dA_off, w.P, G_off), abs(dA), f.stored + f.entries, f.least_stored)


def scale_off(w: WeightBounds, dA: Array, dA_off: Array) -> Array:
    """How far the terms of dgamma may be off, dA times products of queries and keys: prp:rounding_scale_vjp."""
    off = (abs(w.QK) + w.QK_off) * dA_off  # dA_off |QK| + (|dA| + dA_off) QK_off; the values may have more axes
    return add(off, abs(dA), w.QK_off)
