"""Problems whose right answer has no rounding in it, so that every bit can be compared.

*Hard* attention: the scores of any two keys lie so far apart that the exponential of the
difference is exactly 0. One key has all the weight, so that O is a row of V, dV is made of
rows of dO, and dQ and dK are 0. *Uniform* attention: Q = 0 or K = 0, and 4 or 16 keys that
are seen. Then the weights are powers of two, the numbers are small whole ones, and every sum
is exact, whatever its order. Only the scale may be split, and round where it multiplies.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

import numpy as np

from attnmath._examine.problems.case import Answer, Case, Conventions, Draft, Rng, settings_for, traits_of
from attnmath._examine.problems.steps import Steps
from attnmath._examine.problems.taken import ANY, Taken
from attnmath._words.arrays import T
from attnmath.rounding.formats import FORMATS, nearest

# From one key to the next, before the scale. In float16 the scores of a hundred keys still fit.
GAP = {"float64": 2.0**14, "float32": 2.0**14, "bfloat16": 2.0**14, "float16": 2.0**8}
# exp(-this) is 0; in float16, what is computed from it in float32 is 0 when it is stored.
VANISHED = {"float64": 750.0, "float32": 110.0, "bfloat16": 110.0, "float16": 30.0}
COUNTS = (1, 4, 16)  # of keys seen: NumPy, PyTorch and JAX find exp(-log(count)) exactly
DRAWS = 50

HARD = [
    Draft("hard", (2, 3, 3, 5, 5, 16, 16)),
    Draft("hard, n < m", (2, 3, 3, 5, 7, 16, 16)),
    Draft("hard, n > m", (3, 2, 2, 9, 5, 16, 16)),
    Draft("hard, tails", (1, 2, 2, 37, 67, 16, 16)),
    Draft("hard, 130 keys", (1, 2, 2, 33, 130, 64, 64)),
    Draft("hard, d_v < d_k", (2, 3, 3, 6, 7, 16, 8)),
    Draft("hard, groups of three", (4, 6, 2, 5, 7, 16, 16)),
    Draft("hard, causal", (2, 3, 3, 5, 5, 16, 16), causal=True),
    Draft("hard, causal, n < m", (2, 3, 3, 5, 9, 16, 16), causal=True),
    Draft("hard, mask", (2, 3, 3, 5, 7, 16, 16), mask="shared"),
    Draft("hard, padding", (4, 3, 3, 5, 7, 16, 16), mask="padding"),
    Draft("hard, mask of each head", (2, 3, 3, 5, 7, 16, 16), mask="heads"),
    Draft("hard, bias", (2, 3, 3, 5, 7, 16, 16), bias="all"),
    Draft("hard, bias of each head", (2, 3, 3, 5, 7, 16, 16), bias="heads"),
    Draft("hard, scale", (2, 3, 3, 5, 7, 16, 16), scale=0.25),
    Draft("hard, negative scale", (2, 3, 3, 5, 7, 16, 16), scale=-0.25),
    Draft("hard, dropout", (2, 3, 3, 5, 7, 16, 16), rho=0.5),
]

UNIFORM = [
    Draft("uniform", (2, 3, 3, 4, 4, 16, 16)),
    Draft("uniform, n < m", (2, 3, 3, 5, 16, 16, 16)),
    Draft("uniform, n > m", (2, 3, 3, 7, 4, 16, 16)),
    Draft("uniform, d_v < d_k", (2, 3, 3, 5, 4, 16, 8)),
    Draft("uniform, groups of three", (2, 6, 2, 5, 4, 16, 16)),
    Draft("uniform, causal, one query", (2, 3, 3, 1, 4, 16, 16), causal=True),
    Draft("uniform, mask", (2, 3, 3, 5, 7, 16, 16), mask="shared"),
    Draft("uniform, mask of each head", (2, 3, 3, 9, 35, 16, 16), mask="heads"),
    Draft("uniform, bias", (2, 3, 3, 5, 7, 16, 16), bias="heads"),
    Draft("uniform, scale", (2, 3, 3, 5, 4, 16, 16), scale=1.0),
    Draft("uniform, dropout", (2, 3, 3, 5, 4, 16, 16), rho=0.5),
]


def exact_cases(options: Collection[str], dtype: str, seed: int, taken: Taken = ANY) -> list[Case]:
    """Hard and uniform problems with what the candidate takes; of those made anew, the ones that stay exact."""
    rng = np.random.default_rng([seed, 1])
    drawn = []
    for setting in taken.drafts(settings_for(HARD, options)):
        drawn.append(_first_exact(hard_attention, setting, dtype, rng, setting not in HARD))
    for k, setting in enumerate(taken.drafts(settings_for(UNIFORM, options))):
        uniform = partial(uniform_attention, silent="QK"[k % 2])
        drawn.append(_first_exact(uniform, setting, dtype, rng, setting not in UNIFORM))
    return [case for case in drawn if case is not None]


def exact_answer(case: Case, means: Conventions, dtype: str) -> Answer | None:
    """What every sensible program returns, bit for bit; None if one of them may round.

    In a short format only hard problems are exact: a program may keep the log-sum-exp in it.
    """
    if means.fill:
        return None
    one_key = dtype in ("float64", "float32") or (Steps(case, means).P.max(-1) > 0.5).all()
    return _without_rounding(case, means, dtype) if one_key else None


def exact_bounds(bits: Answer, off: Answer, case: Case, means: Conventions) -> Answer:
    """0 but for the entries of dQ and dK, which are multiplied by the scale, and for weights that are shared.

    A program may split the scale, as log2(e) before 2**x and ln 2 on the way back, and either rounds. It may
    split the keys of a row, too, and then the log-sum-exp of three of four rounds, or of eight of sixteen.
    What is 0 throughout stays so.
    """
    one_key = (Steps(case, means).P.max(-1) > 0.5).all()
    rounded = {x: getattr(off, x) for x in (("dQ", "dK") if one_key else bits.there) if np.any(getattr(bits, x))}
    return bits.each(np.zeros_like)._replace(**rounded)


def _without_rounding(case: Case, means: Conventions, dtype: str) -> Answer | None:
    """The exact answer, if sums are exact and no other number is rounded but the log-sum-exp."""
    s = Steps(case, means)
    top = s.A.max(-1, keepdims=True)
    far = np.where(np.isneginf(top), 1.0, top) - s.A
    nearest_keys = far == 0
    s = Steps(replace(case, keep=nearest_keys), means)  # all others have weight 0 in this format
    vanished = (nearest_keys | (far >= VANISHED[dtype])).all()
    counts = nearest_keys.sum(-1)
    # A scale that is no power of two rounds scores; with several keys, so does its root.
    dyadic = s.gamma == 0 or np.log2(abs(s.gamma)) % (1 if (counts == 1).all() else 2) == 0
    if means.inside not in (None, dtype) or not (np.isin(counts, COUNTS).all() and vanished and dyadic):
        return None
    PR, G, answer = s.P * s.R, s.dP - s.D, s.answer()
    stored = (s.A[nearest_keys], PR, s.dP, s.P * s.dP, s.D, s.P * G, s.gamma * s.dA, s.dkeys, s.dvalues,
              *(x for x in answer if x is not None))
    products = (
        (s.Q, T(s.keys)), (PR, s.values), (s.dO, T(s.values)), (s.dO, T(s.O)), (s.P, T(s.dP)),
        (s.dA, s.keys), (T(s.dA), s.Q), (T(PR), s.dO),
    )
    exact = all(np.array_equal(nearest(x, dtype), x) for x in stored)
    digits = max(FORMATS[dtype].digits, FORMATS["float32"].digits)
    return answer if exact and all(_sums_exactly(X, Y, digits) for X, Y in products) else None


def hard_attention(setting: Draft, dtype: str, rng: Rng, size: int) -> Case:
    """One key per query: the one that ranks first, among those seen, in an order of its own.

    Each feature of a key but the last is its rank in an order of the keys, and a query asks
    for one of them, upward or downward. The last feature is 1: with it a query makes its
    largest score 0. A bias lifts one key of each row above all others.
    """
    b, H, G, n, m, d_k, d_v = setting.sizes
    gap = GAP[dtype]
    K = np.ones((b, G, m, d_k))
    K[..., :-1] = rng.permuted(np.broadcast_to(np.arange(m), (b, G, d_k - 1, m)), axis=-1).swapaxes(-1, -2)
    Q = np.zeros((b, H, n, d_k))
    which = rng.integers(d_k - 1, size=(b, H, n, 1))
    np.put_along_axis(Q, which, gap * rng.choice([-1.0, 1.0], (b, H, n, 1)), -1)
    case = _around(setting, Q, K, dtype, rng, size)
    gamma = case.gamma(Conventions())
    if setting.bias:
        shape = setting.shape_of(setting.bias)
        lifted = rng.integers(m, size=(*shape[:-1], 1))
        bias = np.zeros(shape)
        np.put_along_axis(bias, lifted, abs(gamma) * gap * 128, -1)
        case = replace(case, bias=bias)
    Q[..., -1] = -Steps(case).A.max(-1) / gamma
    return case


def uniform_attention(setting: Draft, dtype: str, rng: Rng, size: int, silent: str) -> Case:
    """Q = 0, so that dK = 0, or K = 0, so that dQ = 0; a mask, or a bias of -inf, leaves each query four keys."""
    Q, K = (np.zeros(shape) if letter == silent else _whole_numbers(rng, size, shape)
            for letter, shape in zip("QK", setting.shapes))
    case = _around(setting, Q, K, dtype, rng, size)
    kind = setting.mask or setting.bias
    if kind is None:
        return case
    shape = setting.shape_of(kind)
    keep = rng.permuted(np.broadcast_to(np.arange(shape[-1]) < 4, shape), axis=-1)
    return replace(case, keep=keep) if setting.mask else replace(case, bias=np.where(keep, 0.0, -np.inf))


def _around(setting: Draft, Q: np.ndarray, K: np.ndarray, dtype: str, rng: Rng, size: int) -> Case:
    """The case with these queries and keys, and small whole numbers for the rest."""
    V, dO = (_whole_numbers(rng, size, shape) for shape in setting.shapes[2:])
    return Case(Q, K, V, dO, keep=setting.drawn_mask(rng), causal=setting.causal, scale=setting.scale,
                R=setting.drawn_dropout(dtype, rng), name=setting.name)


def _first_exact(
    make: Callable[[Draft, str, Rng, int], Case], setting: Draft, dtype: str, rng: Rng, made_anew: bool,
) -> Case | None:
    """The first draw that is exact in this format, with smaller and smaller whole numbers."""
    for attempt in range(0, DRAWS, 8 if made_anew else 1):
        case = make(setting, dtype, rng, max(0, 4 - attempt // 8))
        aligned = (Conventions(causal=align) for align in ("lower_right", "upper_left"))
        if all(_without_rounding(case, means, dtype) for means in aligned):
            return replace(case, traits=frozenset(traits_of(case) | {setting.name.split(",")[0]}))
    if made_anew:  # what its scale rounds is judged with bounds, if no score overflows
        keys = abs(T(case.K[:, case.owner(Conventions())]))
        fits = (abs(case.Q) @ keys).max() < 2.0 ** FORMATS[dtype].high
        traits = frozenset(traits_of(case) | {setting.name.split(",")[0]})
        return replace(case, traits=traits) if fits and make is hard_attention else None
    raise RuntimeError(f"no exact problem of the kind {setting.name!r} in {dtype} in {DRAWS} draws")


def _whole_numbers(rng: Rng, size: int, shape: tuple[int, ...]) -> np.ndarray:
    """Whole numbers up to this size; for 0, three of four are 0, and the others up to 1."""
    x = rng.integers(-max(size, 1), max(size, 1), shape, endpoint=True) * 1.0
    return x if size else x * (rng.random(shape) < 0.25)


def _sums_exactly(X: np.ndarray, Y: np.ndarray, digits: int) -> bool:
    """Whether every partial sum of the product X Y, in any order, has no more digits than that."""
    return bool((abs(X) @ abs(Y)).max(initial=0.0) <= 2.0**digits * _grid(X) * _grid(Y))


def _grid(x: np.ndarray) -> float:
    """The largest power of two of which all entries are whole multiples."""
    fraction, exponent = np.frexp(x[x != 0])
    whole = (fraction * 2.0**53).astype(np.int64)
    return float(np.ldexp((whole & -whole).astype(float), exponent - 53).min(initial=1.0))
