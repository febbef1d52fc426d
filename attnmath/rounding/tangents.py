"""How far a correct tangent of a head may be off, by moving weights or sums: theorems of chapters/rounding.md."""

from typing import Any

from attnmath._formulas import attention as exact
from attnmath._given.checked import Check
from attnmath._words.arrays import Array, Scalar, T, namespace, rowsum, shape, times
from attnmath.rounding.bounds import Inputs, WeightBounds, factor, in_float64, output_off, weight_bounds
from attnmath.rounding.formats import Model, model
from attnmath.rounding.lemmas import grown, product, row_sum_off

MOVING = Check(exact.attention_jvp)


def attention_jvp(
    Q_dot: Array | None, K_dot: Array | None, V_dot: Array | None,
    B_dot: Array | None, gamma_dot: Scalar | None,
    Q: Array, K: Array, V: Array, B: Array | None = None, gamma: Scalar | None = None,
    *, dtype: Any, accumulate: Any = None, fused: bool = True, R: Array | None = None,
    truncate: bool = False, exp_error: float = 2.0, log_error: float = 2.0,
) -> Array:
    """How far a correct tangent of the output computed in dtype may be from the exact one.

    Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), B_dot (..., n, m), gamma_dot (),
    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma (), R (..., n, m)
    -> O_dot (..., n, d_v)

    Compare with attention_jvp in float64. A tangent of None is zero. The tangents of the weights
    may be found first, or the sums of one pass over the keys, of which mu times the output is
    taken away at the end. Everything else as for attention.
    Derived in chapters/rounding.md, prp:rounding_jvp.
    """
    f = model("rounding.attention_jvp", dtype, accumulate, fused, truncate, exp_error, log_error)
    named = dict(Q_dot=Q_dot, K_dot=K_dot, V_dot=V_dot, B_dot=B_dot, gamma_dot=gamma_dot)
    given = in_float64("rounding.attention_jvp", MOVING, named | dict(Q=Q, K=K, V=V, B=B, gamma=gamma, R=R))
    dots = [given.pop(name) for name in named]
    x = Inputs(**given)
    w = weight_bounds(f, x)
    A_dot, A_dot_off = scores_jvp(f, x, w, *dots)
    return output_jvp(f, x, w, dots[2], A_dot, A_dot_off)


def scores_jvp(
    f: Model, x: Inputs, w: WeightBounds,
    Q_dot: Array, K_dot: Array, V_dot: Array, B_dot: Array | Scalar, gamma_dot: Scalar,
) -> tuple[Array, Array]:
    """The tangent of the scores: prp:rounding_scores_jvp."""
    d_k, steps = shape(x.K)[-1], 2 * f.sums + 3 * f.entries
    parts = Q_dot @ T(x.K), x.Q @ T(K_dot)
    off = product(f, Q_dot, None, T(x.K), 2 * d_k) + product(f, x.Q, None, T(K_dot), 2 * d_k)
    off = grown(abs(parts[0]) + abs(parts[1]), off, steps + 2 * f.entries, f.least_entry)
    A_dot = x.gamma * (parts[0] + parts[1]) + gamma_dot * w.QK + B_dot
    off = abs(x.gamma) * off + abs(gamma_dot) * grown(w.QK, w.QK_off, steps, f.least_entry)
    return A_dot, off + grown(B_dot + 0 * A_dot, 0.0, 2 * f.entries) + 3 * f.least_entry


def mean_jvp(f: Model, w: WeightBounds, A_dot: Array, A_dot_off: Array) -> tuple[Array, Array]:
    """mu, the mean tangent of the scores of a row under its weights: prp:rounding_mean_jvp."""
    size = abs(A_dot)
    off = w.P_off * size + (w.P + w.P_off) * A_dot_off
    off = row_sum_off(f, w.P * size, off, f.over_keys(shape(w.P)[-1]) + 8)
    mu = rowsum(w.P * A_dot)
    return mu, grown(mu, off, 2 * f.entries, f.least_entry)


def weights_jvp(
    f: Model, w: WeightBounds, A_dot: Array, A_dot_off: Array, mu: Array, mu_off: Array
) -> tuple[Array, Array]:
    """The tangent of the weights, as it enters a product: prp:rounding_weights_jvp."""
    G_off = grown(abs(A_dot) + abs(mu), A_dot_off + mu_off, 2 * f.entries)
    P_dot = w.P * (A_dot - mu)
    off = w.P_off * abs(A_dot - mu) + (w.P + w.P_off) * G_off
    return P_dot, grown(P_dot, off, f.stored + f.entries, f.least_stored)


def output_jvp(
    f: Model, x: Inputs, w: WeightBounds, V_dot: Array, A_dot: Array, A_dot_off: Array
) -> Array:
    """How far the tangent of the output may be off, the weights first, or the sums first: prp:rounding_jvp."""
    xp, m = namespace(x.Q), shape(x.V)[-2]
    keys, drops = f.over_keys(m) + 8, 0 if x.R is None else 2 * f.entries
    P, P_off = factor(f, x, w)
    O, O_off = output_off(f, x, P, P_off)
    mu, mu_off = mean_jvp(f, w, A_dot, A_dot_off)

    P_dot, off = weights_jvp(f, w, A_dot, A_dot_off, mu, mu_off)
    P_dot, off = times(P_dot, x.R), times(grown(P_dot, off, drops), x.R)
    by_weights = grown(P_dot @ x.V, product(f, P_dot, off, x.V, keys), 3 * f.entries)

    W, size = w.P * A_dot, abs(A_dot)
    off = grown(W, w.P_off * size + (w.P + w.P_off) * A_dot_off, f.stored + f.entries + drops, f.least_stored)
    W, off = times(W, x.R), times(off, x.R)
    taken = grown(mu * O, abs(mu) * O_off + mu_off * (abs(O) + O_off), 4 * f.entries)
    by_sums = grown(W @ x.V, product(f, W, off, x.V, keys), 3 * f.entries) + taken

    moved = grown(P @ V_dot, product(f, P, P_off, V_dot, keys), 3 * f.entries)
    O_dot = P_dot @ x.V + P @ V_dot
    return grown(O_dot, xp.maximum(by_weights, by_sums) + moved, f.stored, f.least_stored)
