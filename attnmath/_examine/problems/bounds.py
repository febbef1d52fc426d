"""How far a right answer may be off, entry by entry, and whether what came is as near as that.

The bounds are those of attnmath.rounding for a whole problem. To what is there, this adds the groups
that share keys, empty rows by convention, a softmax in another format, and programs that multiply
queries and keys by the root of the scale first.

The bounds are for errors that all point the same way. In a short format a typical answer is far better:
its errors scatter, variances add up instead of sizes, but for an error that a whole row shares, which is
that of the sum of its weights or of its D. A sum over many entries sees mistakes that hide in the
roundings of each: a factor of 1.01 in bfloat16, a row that is zero.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnmath._examine.problems.case import Answer, Case, Conventions
from attnmath._examine.problems.measured import measured_bounds
from attnmath._examine.problems.steps import (
    EMPTY_ROWS,
    StepChanges,
    Steps,
    changes_of_empty_rows,
    empty_weight,
    grouped,
    nan_where_touched,
)
from attnmath._words.arrays import T, rowsum, sum_to, visible
from attnmath._words.tolerance import ALIKE, CONSTANT, DEVIATIONS, SCATTER
from attnmath.rounding import bounds as rounding
from attnmath.rounding.bounds import factor
from attnmath.rounding.formats import FORMATS, Model, model, unit_roundoff
from attnmath.rounding.lemmas import gathered, grown, product

STORED_AFTER = 32  # the fewest queries or keys after which a program stores the growing sum of a gradient
AXIS_WORDS = "batch element", "head", "row", "column"
SPANS = 4  # that are told; of more the first and the last number


def program(dtype: str, means: Conventions) -> Model:
    """What a program in this format rounds; in the short formats, every array but not the sums."""
    inside = means.inside if means.inside in FORMATS else dtype
    least = min(dtype, inside, key=lambda name: FORMATS[name].digits)
    return model("bounds", least, "float32" if FORMATS[least].digits < 24 else None, False, means.truncate)


class AnswerBounds(Answer):
    """How far each entry may be off; in a short format also the deviation of a typical answer."""

    deviations: Answer | None = None


def bounds(case: Case, means: Conventions, dtype: str) -> AnswerBounds:
    """How far a right answer in this format may be off, entry by entry; NaN where all is allowed."""
    return right_and_bounds(case, means, dtype)[1]


def right_and_bounds(case: Case, means: Conventions, dtype: str) -> tuple[Answer, AnswerBounds]:
    """The right answer, empty rows as the conventions say, and its bounds."""
    if means.pieces is not None:
        def with_pieces(means: Conventions, changes: Sequence[StepChanges]) -> Answer:
            return Steps(case, means, (*changes_of_empty_rows(means), *changes)).answer()

        measured = measured_bounds(with_pieces, means, dtype)[1]
        if means.empty == "nan":
            measured = measured.each(np.add, nan_where_touched(case, means))
        return right_answer(case, means), AnswerBounds(*measured)
    off = AnswerBounds(*whole_bounds(case, means, program(dtype, means)))
    if dtype in ("bfloat16", "float16"):
        off.deviations = deviations(case, means, dtype)
    return right_answer(case, means), off


def right_answer(case: Case, means: Conventions) -> Answer:
    """The right answer in float64; empty rows as the conventions say."""
    answer = Steps(case, means, changes_of_empty_rows(means)).answer()
    return answer.each(np.add, nan_where_touched(case, means)) if means.empty == "nan" else answer


def _stores(case: Case) -> tuple[int, int]:
    """How often a sum over the queries may be stored, and one over the keys."""
    return 1 + case.Q.shape[2] // STORED_AFTER, 1 + case.K.shape[2] // STORED_AFTER


def whole_bounds(case: Case, means: Conventions, f: Model) -> Answer:
    """How far off each entry may be."""
    (b, H, n, _), (G, m), (stores_n, stores_m) = case.Q.shape, case.K.shape[1:3], _stores(case)
    B, gamma, owner = case.B(means), case.gamma(means), case.owner(means)
    order = np.argsort(owner, kind="stable")  # heads that share keys stand side by side

    def heads(x: np.ndarray) -> np.ndarray:
        x = np.broadcast_to(x, (b, H, *x.shape[2:]))[:, order]
        return x.reshape(b, G, H // G, *x.shape[2:])

    def back(x: np.ndarray) -> np.ndarray:
        return x.reshape(b, H, *x.shape[3:])[:, np.argsort(order)]

    B = heads(B)
    empty = np.all(np.isneginf(B), -1, keepdims=True)
    seen = ~np.all(np.isneginf(B), (2, 3))[..., None]
    spread_out = means.empty in EMPTY_ROWS
    if spread_out:  # an empty row has the same scores everywhere
        B, seen = np.where(empty, 0.0, B), seen | np.any(empty, (2, 3))[..., None]
    K, V = (np.where(seen, x, 0.0)[:, :, None] for x in (case.K, case.V))  # nothing comes from others
    Q, dO = heads(case.Q), heads(case.dO)
    R = None if case.R is None else heads(case.R)
    asking = np.where(empty & spread_out, 0.0, Q)
    x, w = rounding.Inputs(asking, K, V, B, gamma, R, dO), _weights_off(f, asking, K, B, gamma)
    if spread_out:
        weight = empty_weight(means.empty, m)
        w = w._replace(P=np.where(empty, weight, w.P), P_off=np.where(empty, m * weight, 1.0) * w.P_off)
    P, P_off = factor(f, x, w)
    O, O_off = rounding.output_off(f, x, P, P_off)
    dA, dA_off = rounding.scores_vjp(f, x, w, O, O_off)
    if spread_out and "dA" in EMPTY_ROWS[str(means.empty)]:
        dA, dA_off = np.where(empty, 0.0, dA), np.where(empty, 0.0, dA_off)
    S, S_off = gamma * dA, grown(abs(gamma) * dA, abs(gamma) * dA_off, f.entries, f.least_stored)
    dQ, dK, dV = (
        np.asarray(gathered(f, *off, like)) for off, like in (
            ((S @ K, product(f, S, S_off, K, m + 10, stores_m)), Q),
            ((T(S) @ Q, product(f, T(S), T(S_off), Q, n + 10, stores_n)), K),
            ((T(P) @ dO, product(f, T(P), T(P_off), dO, n + 10, stores_n)), V),
        )
    )
    dB = gathered(f, back(dA), back(dA_off), case.bias)
    found = Answer(back(O_off), back(dQ), dK[:, :, 0], dV[:, :, 0], dB)
    return found.each(np.add, nan_where_touched(case, means)) if means.empty == "nan" else found


def _weights_off(f: Model, Q: np.ndarray, K: np.ndarray, B: np.ndarray, gamma: float) -> rounding.WeightBounds:
    """As in attnmath.rounding, with one rounding more for each number of Q and of K."""
    QK = visible(Q @ T(K), B)
    QK_off = product(f, Q, abs(Q) * math.expm1(2 * f.entries), T(K), K.shape[-1])
    A_off = grown(gamma * QK, abs(gamma) * grown(QK, QK_off, f.entries), 2 * f.sums + f.entries)
    return rounding.WeightBounds(QK, QK_off, *rounding.softmax_off(f, gamma * QK + B, A_off))


# ---- the deviation of a typical answer ----------------------------------------------------------


def deviations(case: Case, means: Conventions, dtype: str) -> Answer | None:
    """The standard deviation of each entry; None where roundings are alike, or the scores too large."""
    if case.dO.shape[2] > 1 and (case.dO == case.dO[:, :, :1]).all():  # then dP has the same rows
        return None
    s = Steps(case, means, changes_of_empty_rows(means))
    u = unit_roundoff(dtype) ** 2 / 3  # the variance of one rounding
    least = (2.0**-25 if dtype == "float16" else 2.0 ** FORMATS[dtype].low) ** 2 / 3
    shown, drops = s.P > 0, 0 if case.R is None else 2
    Q2, K2, V2, dO2, P2, dP2, dA2, G2 = (x * x for x in (s.Q, s.keys, s.values, s.dO, s.P, s.dP, s.dA, s.dP - s.D))
    A, g2, G = np.where(shown, s.A, 0.0), s.gamma**2, case.K.shape[1]
    below = np.where(shown, A - np.where(shown, s.A, -1e300).max(-1, keepdims=True), 0.0)
    # The exponent of a weight; the sum of the row; the weight; the output.
    exponent = 2 * g2 * (Q2 @ T(K2)) + 2 * (s.gamma * s.QK) ** 2 + A**2 + below**2 + 4
    exponent = np.where(shown, u * exponent, 0.0)
    if exponent.max(initial=0.0) > SCATTER**2:
        return None
    shared = rowsum(P2 * exponent)
    P_off = P2 * (2 * exponent + (2 + drops) * u) + least * shown
    PR_off, PR2 = P_off * s.R**2, P2 * s.R**2
    O_off = PR_off @ V2 + s.O**2 * (2 * shared + 2 * u) + least
    # D; then dA, what each entry has of its own, and what its row shares.
    D_off = rowsum(dO2 * (O_off + u * s.O**2)) + rowsum((P_off + u * P2) * dP2) + 2 * u * s.D**2
    own = P_off * G2 + 2 * u * dA2 + P2 * u * ((1 + drops) * dP2 + G2) + least * shown
    both = own + P2 * D_off + 2 * dA2 * shared
    of_rows = (s.P @ s.keys) ** 2 * D_off + 2 * (s.dA @ s.keys) ** 2 * shared
    per_n, per_m = _stores(case)
    dQ_off = g2 * ((own + per_m * u * dA2) @ K2 + of_rows) + least * shown @ K2 + (4 + per_m) * u * s.dQ**2 + least
    dK_off = T(g2 * (both + per_n * u * dA2) + least * shown) @ Q2 + (4 + per_n) * u * s.dkeys**2 + least
    dV_off = T(PR_off + per_n * u * PR2) @ dO2 + (2 + per_n) * u * s.dvalues**2 + least
    dK_off = grouped(dK_off, s.owner, G) + 2 * u * s.dK**2
    dV_off = grouped(dV_off, s.owner, G) + 2 * u * s.dV**2
    dB_off = None if case.bias is None else sum_to(both + 2 * u * dA2, case.bias) + 2 * u * s.dB**2
    return Answer(O_off, dQ_off, dK_off, dV_off, dB_off).each(np.sqrt)


# ---- whether what came is within them -----------------------------------------------------------


class JudgedLetter(NamedTuple):
    """What came for one letter, beside what is right."""

    ratio: float  # the largest error, in units of its bound
    where: tuple[int, ...] | None  # the entry that has it
    wrong: np.ndarray  # the entries that are off by more than the constant, or whose sum is
    aggregate: float = 0.0  # the largest result of the tests over many entries, in units of its limit

    @property
    def passed(self) -> bool:
        """Whether no entry is wrong."""
        return not self.wrong.any()


def judge_answer(got: Answer, want: Answer, off: Answer, dtype: str | None) -> dict[str, JudgedLetter]:
    """Each letter that is wanted, entry by entry, and in a short format over many entries.

    An entry whose bound is NaN is left out. NaN matches nothing else, infinity itself only.
    With bounds that are not from bounds(), or with dtype=None, single entries count alone.
    """
    scatter = off.deviations if isinstance(off, AnswerBounds) and dtype else None
    judged = {}
    for letter, x in want.there.items():
        mine, bound = getattr(got, letter), getattr(off, letter)
        judged[letter] = _judge_entries(mine, x, bound)
        if scatter is not None and judged[letter].where is not None:
            error = np.where(np.isnan(bound), 0.0, mine - x)
            wrong, u = judged[letter].wrong, unit_roundoff(dtype)
            ratio, wrong = _judge_together(wrong, error, x, getattr(scatter, letter), u, want.O.shape)
            judged[letter] = judged[letter]._replace(aggregate=ratio, wrong=wrong)
    return judged


def _judge_entries(got: np.ndarray | None, want: np.ndarray, off: np.ndarray) -> JudgedLetter:
    if got is None or got.shape != want.shape:
        return JudgedLetter(np.inf, None, np.ones(want.shape, bool))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio = np.asarray(got - want)
        np.abs(ratio, out=ratio)
        ratio /= off
    if not np.isfinite(ratio).all():
        ratio = np.where((got == want) | np.isnan(off), 0.0, np.where(np.isnan(ratio), np.inf, ratio))
    if not ratio.size:
        return JudgedLetter(0.0, None, ratio > CONSTANT)
    where = np.unravel_index(ratio.argmax(), ratio.shape)
    return JudgedLetter(float(ratio[where]), tuple(map(int, where)), ratio > CONSTANT)


def _judge_together(
    wrong: np.ndarray, error: np.ndarray, want: np.ndarray, scatter: np.ndarray, u: float, queries: tuple
) -> tuple[float, np.ndarray]:
    """The largest of the tests over many entries, in units of its limit; what is wrong, with theirs.

    The sum of its weights gives all that comes from a query an error in common, so that a factor
    is known no better than from as many numbers as there are queries.
    """
    counts = np.isfinite(error) & np.isfinite(want) & (scatter > 0)
    unit = np.where(counts, scatter, 1.0)
    z, w = (np.where(counts, x, 0.0) / unit for x in (error, want))
    rows = np.sqrt((z * z).mean(-1, keepdims=True)) / DEVIATIONS
    largest, wrong = float(rows.max()), wrong | (rows > 1)
    for axes in ((-2, -1), (0, 1, -2, -1)):
        size = np.sqrt((w * w).sum(axes, keepdims=True))  # the factor has the deviation 1 / size
        factor = (z * w).sum(axes, keepdims=True) / np.where(size == 0, 1.0, size)
        beyond = np.maximum(abs(factor) - ALIKE * u * size, 0.0) / DEVIATIONS
        entries = math.prod(want.shape[axis] for axis in axes)
        beyond *= min(1.0, math.prod(queries[axis] for axis in (*axes[:-2], -2)) / entries) ** 0.5
        largest = max(largest, float(beyond.max()))
        wrong = wrong | ((beyond > 1) & ~wrong.any(axes, keepdims=True))  # where nothing smaller is
    return largest, wrong


def spans(index: np.ndarray) -> str:
    """Whole numbers in order as spans: 0, 3 to 5."""
    breaks = np.flatnonzero(np.diff(index) > 1)
    if len(breaks) >= SPANS:
        return f"{len(index)} between {index[0]} and {index[-1]}"
    firsts, lasts = index[[0, *(breaks + 1)]], index[[*breaks, -1]]
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in zip(firsts, lasts))


def where_in_words(letter: str, wrong: np.ndarray, got: np.ndarray) -> str:
    """dK, head 1, rows 48 to 60 (exactly zero)."""
    words = [letter]
    for axis, name in enumerate(AXIS_WORDS):
        index = np.flatnonzero(wrong.any(tuple(i for i in range(wrong.ndim) if i != axis)))
        if 0 < len(index) < wrong.shape[axis] and len(index) <= max(2, wrong.shape[axis] * 3 // 4):
            count, many, rest = spans(index).partition(" between ")
            name += "s" * (len(index) > 1)
            words.append(f"{count} {name} between {rest}" if many else f"{name} {count}")
    where = ", ".join(words)
    values = got[wrong]
    if np.isnan(values).any():
        return f"{where} (NaN)"
    if np.isinf(values).any():
        return f"{where} (infinite)"
    return f"{where} (exactly zero)" if not values.any() else where
