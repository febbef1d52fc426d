"""How far each entry of a right answer may be off: attnmath.rounding for a whole problem.

To what is there, this adds the groups that share keys, empty rows by convention, a softmax in
another format, and programs that multiply queries and keys by the root of the scale first.
"""

import math

import numpy as np

from attnmath._arrays import T, rowsum
from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._empty import changes, nan_where_touched, plus
from attnmath._examine._quick import quick
from attnmath._examine._steps import Steps, summed_to
from attnmath._examine._typical import typical
from attnmath._rounding_steps import (
    Inputs,
    Weights,
    factor,
    gathered,
    grown,
    output,
    product,
    scores_vjp,
    spread,
)
from attnmath._roundoff import FORMATS, Model, model

LARGE = 256  # queries from which on float32 is judged in tiles
ROWS = 32  # the fewest queries or keys after which a program stores the growing sum of a gradient


def program(dtype: str, means: Conventions) -> Model:
    """What a program in this format rounds; in the short formats, every array but not the sums."""
    inside = means.inside if means.inside in FORMATS else dtype
    least = min(dtype, inside, key=lambda name: FORMATS[name].digits)
    return model("bounds", least, "float32" if FORMATS[least].digits < 24 else None, False)


class Bounds(Answer):
    """How far each entry may be off, and how far it typically is, in a short format."""

    typical: Answer | None = None


def bounds(case: Case, means: Conventions, dtype: str) -> Bounds:
    """How far a right answer in this format may be off, entry by entry; NaN where all is allowed."""
    return right_and_bounds(case, means, dtype)[1]


def right_and_bounds(case: Case, means: Conventions, dtype: str) -> tuple[Answer, Bounds]:
    """The right answer, empty rows as the conventions say, and its bounds; large ones in tiles."""
    f = program(dtype, means)
    if dtype == "float32" and case.bias is None and case.Q.shape[2] >= LARGE:
        plain = means.empty in (None, "zero") or case.seen(means).any(-1).all()
        found = quick(case, means, f, *_stores(case)) if plain else None
        if found is not None:
            return found[0], Bounds(*found[1])
    off = Bounds(*whole(case, means, f))
    if dtype in ("bfloat16", "float16"):
        off.typical = typical(case, means, dtype)
    return right(case, means), off


def right(case: Case, means: Conventions) -> Answer:
    """The right answer in float64; empty rows as the conventions say."""
    answer = Steps(case, means, changes(means)).answer()
    return plus(answer, nan_where_touched(case, means)) if means.empty == "nan" else answer


def _stores(case: Case) -> tuple[int, int]:
    """How often a sum over the queries may be stored, and one over the keys."""
    return 1 + case.Q.shape[2] // ROWS, 1 + case.K.shape[2] // ROWS


def whole(case: Case, means: Conventions, f: Model) -> Answer:
    """The bounds, with all arrays as a whole."""
    (b, H, n, _), (G, m), (stores_n, stores_m) = case.Q.shape, case.K.shape[1:3], _stores(case)
    B, gamma, owner = case.B(means), case.gamma(means), case.owner(means)
    order = np.argsort(owner, kind="stable")  # heads that share keys stand side by side

    def heads(x: np.ndarray) -> np.ndarray:
        x = np.broadcast_to(x, (b, H, *x.shape[2:]))[:, order]
        return x.reshape(b, G, H // G, *x.shape[2:])

    def back(x: np.ndarray) -> np.ndarray:
        return x.reshape(b, H, *x.shape[3:])[:, np.argsort(order)]

    B = heads(B)
    empty = np.isneginf(B).all(-1, keepdims=True)
    seen = ~np.isneginf(B).all((2, 3))[..., None]
    spread_out = means.empty in ("uniform", "uniform with gradient")
    if spread_out:  # an empty row has the same scores everywhere
        B, seen = np.where(empty, 0.0, B), seen | empty.any((2, 3))[..., None]
    K, V = (np.where(seen, x, 0.0)[:, :, None] for x in (case.K, case.V))  # nothing comes from others
    Q, dO = heads(case.Q), heads(case.dO)
    R = None if case.R is None else heads(case.R)
    x = Inputs(np.where(empty & spread_out, 0.0, Q), K, V, B, gamma, R, dO)
    w = weights(f, x)
    P, P_off = factor(f, x, w)
    O, O_off = output(f, x, P, P_off)
    dA, dA_off = scores_vjp(f, x, w, O, O_off)
    if means.empty == "uniform":
        dA, dA_off = np.where(empty, 0.0, dA), np.where(empty, 0.0, dA_off)
    S, S_off = gamma * dA, grown(abs(gamma) * dA, abs(gamma) * dA_off, f.entries, f.least_stored)
    off = {
        "Q": (S @ K, product(f, S, S_off, K, m + 10, stores_m)),
        "K": (T(S) @ Q, product(f, T(S), T(S_off), Q, n + 10, stores_n)),
        "V": (T(P) @ dO, product(f, T(P), T(P_off), dO, n + 10, stores_n)),
    }
    dQ, dK, dV = (gathered(f, *off[k], like) for k, like in (("Q", Q), ("K", K), ("V", V)))
    dB = None if case.bias is None else _bias(f, back(dA), back(dA_off), case.bias)
    found = Answer(back(O_off), back(dQ), dK[:, :, 0], dV[:, :, 0], dB)
    return plus(found, nan_where_touched(case, means)) if means.empty == "nan" else found


def weights(f: Model, x: Inputs) -> Weights:
    """As in attnmath.rounding, with one rounding more for each number of Q and of K."""
    m, d_k = x.K.shape[-2:]
    hidden = np.isneginf(x.B)
    QK = np.where(hidden, 0.0, x.Q @ T(x.K))
    QK_off = product(f, x.Q, abs(x.Q) * math.expm1(2 * f.entries), T(x.K), d_k)
    A_off = grown(x.gamma * QK, abs(x.gamma) * grown(QK, QK_off, f.entries), 2 * f.sums + f.entries)
    A = np.where(hidden, 0.0, x.gamma * QK + np.where(hidden, 0.0, x.B))
    top = np.where(hidden, -np.inf, A).max(-1, keepdims=True)
    top = np.where(np.isneginf(top), 0.0, top)
    E = np.where(hidden, 0.0, np.exp(np.where(hidden, 0.0, A - top)))
    total = np.where(hidden.all(-1, keepdims=True), 1.0, rowsum(E))
    L, P = np.log(total) + top, E / total
    below = L - A
    eta = f.entries * (below + 4) + f.sums * (3 * below + abs(A) + abs(L))
    eta += grown(A, A_off, 2 * f.entries)
    eta, below = np.where(hidden, 0.0, eta), np.where(hidden, 1.0, below)
    reach = np.where(hidden, 0.0, spread(P, below, eta + ((m + 8) * f.sums + f.entries)))
    r = np.log1p(rowsum(reach) + m * f.least_weight)
    length = abs(L) + (math.log(max(m, 1)) + 1)
    P_off = spread(P, below, eta + (r + 4 * f.sums * length + 2 * f.entries)) + f.least_weight
    return Weights(QK, QK_off, eta, P, np.where(hidden, 0.0, P_off), r)


def _bias(f: Model, dA: np.ndarray, dA_off: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The gradient of a bias, summed over what shares it."""
    if bias.shape == dA.shape:
        return gathered(f, dA, dA_off, bias)
    count = dA.size // max(bias.size, 1)
    steps = f.stored + 3 * f.entries + (count + 8) * f.sums
    more = grown(summed_to(abs(dA), bias), summed_to(dA_off, bias), steps)
    more = more + count * max(f.least_sum, f.least_stored) * (more > 0)
    return grown(summed_to(dA, bias), more, f.stored, f.least_stored)
