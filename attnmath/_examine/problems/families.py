"""Problems of several families, sizes and kinds: what a correct attention has to solve.

A family says how the numbers are drawn. They are drawn in float64 and rounded to the format,
so that the candidate and the right answer start from the same numbers.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from attnmath._examine.problems.case import Case, Draft, Rng, settings_for, traits_of
from attnmath._examine.problems.taken import ANY, Taken
from attnmath.rounding.formats import nearest

Numbers = tuple[np.ndarray, ...]  # Q, K, V, dO
TINY_GRADIENT = {"float64": 1e-6, "float32": 1e-6, "bfloat16": 1e-6, "float16": 1e-2}
POISONS = {"float64": 1e30, "float32": 1e30, "bfloat16": 1e30, "float16": 300.0}  # float16 ends at 65504


def gaussian(rng: Rng, dtype: str, *shapes: tuple) -> Numbers:
    """All numbers normal."""
    return tuple(rng.standard_normal(shape) for shape in shapes)


def peaked(rng: Rng, dtype: str, *shapes: tuple) -> Numbers:
    """Larger scores: most weights are near 0 or near 1."""
    Q, K, V, dO = gaussian(rng, dtype, *shapes)
    return 2 * Q, 2 * K, V, dO


def offset(rng: Rng, dtype: str, *shapes: tuple) -> Numbers:
    """The same vector added to all keys, and one to all values: softmax does not see the first."""
    Q, K, V, dO = gaussian(rng, dtype, *shapes)
    return Q, K + 3 * rng.standard_normal(K.shape[-1]), V + 2, dO


def tiny(rng: Rng, dtype: str, *shapes: tuple) -> Numbers:
    """A small gradient, as that of a mean, and scores near 0."""
    Q, K, V, dO = gaussian(rng, dtype, *shapes)
    return 0.1 * Q, 0.1 * K, V, TINY_GRADIENT[dtype] * dO


def ties(rng: Rng, dtype: str, *shapes: tuple) -> Numbers:
    """Few different numbers, and every key twice: largest scores that are equal."""
    Q, K, V, dO = (rng.integers(-2, 2, shape, endpoint=True) / 2 for shape in shapes)
    half = (K.shape[2] + 1) // 2
    K[:, :, half:] = K[:, :, : K.shape[2] - half]
    return Q, K, V, dO


def outliers(rng: Rng, dtype: str, *shapes: tuple) -> Numbers:
    """One feature and one token that are much larger than the others."""
    Q, K, V, dO = gaussian(rng, dtype, *shapes)
    for x in (K, V, dO):
        x[..., rng.integers(x.shape[-1])] *= 8
        x[..., rng.integers(x.shape[-2]), :] *= 2
    return Q, K, V, dO


def positive(rng: Rng, dtype: str, *shapes: tuple) -> Numbers:
    """All numbers between 0 and 1: nothing cancels but in dA."""
    return tuple(rng.random(shape) for shape in shapes)


def large_negative_scores(rng: Rng, dtype: str, *shapes: tuple) -> Numbers:
    """Scores far below 0, so that exp of them or of minus their log-sum-exp over- or underflows."""
    Q, K, V, dO = gaussian(rng, dtype, *shapes)
    lower = 1200.0 if dtype == "float64" else 160.0
    size = np.sqrt(lower / np.sqrt(K.shape[-1]))  # the scores are lower by that, at the usual scale
    return Q + size, K - size, V, dO


def rows_far_apart(rng: Rng, dtype: str, *shapes: tuple) -> Numbers:
    """Scores far above 0 in one row and far below in the next: no largest score serves for all rows."""
    Q, K, V, dO = gaussian(rng, dtype, *shapes)
    size = 400.0 if dtype == "float64" else 80.0  # whose exponentials are numbers
    K[..., -1] = 1.0
    Q[..., -1] = np.where(np.arange(Q.shape[2]) % 2, size, -size) * np.sqrt(K.shape[-1])
    return Q, K, V, dO


FAMILIES: dict[str, Callable[..., Numbers]] = {f.__name__.replace("_", " "): f for f in (
    gaussian, peaked, offset, tiny, ties, outliers, positive, large_negative_scores, rows_far_apart)}
# Name (the family first), then b, H, G, n, m, d_k, d_v: different from each other where they may be.
SETTINGS = [
    Draft("gaussian", (2, 3, 3, 5, 5, 16, 16)),
    Draft("gaussian, n < m", (2, 3, 3, 5, 9, 16, 16)),
    Draft("gaussian, n > m", (2, 3, 3, 11, 6, 16, 16)),
    Draft("gaussian, more items and heads", (4, 6, 6, 5, 7, 16, 16)),
    Draft("gaussian, one item and one head", (1, 1, 1, 5, 7, 16, 16)),
    *(Draft(f"gaussian, heads of {d}", (1, 2, 2, 5, 7, d, d)) for d in (64, 128)),
    Draft("gaussian, strided inputs", (2, 3, 3, 5, 7, 16, 16), also=("strided inputs",)),
    Draft("gaussian, heads of 8, many", (1, 16, 16, 5, 7, 8, 8)),
    Draft("gaussian, heads of 32, many items", (9, 1, 1, 5, 7, 32, 32)),
    Draft("gaussian, heads of 80", (1, 2, 2, 5, 7, 80, 80)),
    Draft("gaussian, heads of 96", (1, 1, 1, 9, 6, 96, 96)),
    Draft("gaussian, heads of 192 and 128", (1, 1, 1, 5, 7, 192, 128)),
    Draft("gaussian, heads of 256", (1, 1, 1, 5, 7, 256, 256)),
    Draft("gaussian, d_v < d_k, d_v = n", (2, 3, 3, 8, 7, 16, 8)),
    Draft("gaussian, d_v > d_k", (2, 3, 3, 5, 7, 16, 24)),
    Draft("gaussian, odd width", (2, 3, 3, 5, 8, 7, 7)),
    Draft("gaussian, odd widths", (2, 3, 3, 6, 8, 7, 5)),
    Draft("gaussian, width of one", (2, 3, 3, 5, 7, 1, 1)),
    Draft("gaussian, strided dO", (2, 3, 3, 5, 7, 16, 16), also=("strided dO",)),
    Draft("gaussian, broadcast dO", (2, 3, 3, 5, 7, 16, 16), also=("broadcast dO",)),
    Draft("gaussian, one query", (2, 3, 3, 1, 7, 16, 16)),
    Draft("gaussian, one key", (2, 3, 3, 5, 1, 16, 16)),
    Draft("gaussian, groups of three", (4, 6, 2, 5, 7, 16, 16)),
    Draft("gaussian, groups of two", (2, 4, 2, 5, 7, 16, 16)),
    Draft("gaussian, groups of four", (1, 8, 2, 5, 7, 16, 16)),
    Draft("gaussian, groups of eight, n = m", (1, 16, 2, 7, 7, 16, 16)),
    Draft("gaussian, causal", (2, 3, 3, 7, 7, 16, 16), causal=True),
    Draft("gaussian, causal, n < m", (2, 3, 3, 5, 9, 16, 16), causal=True),
    Draft("gaussian, mask", (2, 3, 3, 5, 7, 16, 16), mask="shared"),
    Draft("gaussian, mask of each head", (2, 3, 3, 5, 7, 16, 16), mask="heads"),
    Draft("gaussian, mask, n = m", (2, 3, 3, 7, 7, 16, 16), mask="batch"),
    Draft("gaussian, strided mask", (2, 3, 3, 5, 7, 16, 16), mask="all", also=("strided inputs",)),
    Draft("gaussian, padding", (4, 3, 3, 5, 7, 16, 16), mask="padding"),
    Draft("gaussian, poison", (4, 3, 3, 5, 7, 16, 16), mask="padding", also=("poison",)),
    Draft("gaussian, empty rows", (2, 3, 3, 9, 7, 16, 16), mask="empty"),
    Draft("gaussian, bias", (2, 3, 3, 5, 7, 16, 16), bias="all"),
    Draft("gaussian, bias of each head", (2, 3, 3, 5, 7, 16, 16), bias="heads"),
    Draft("gaussian, bias of each item", (2, 3, 3, 5, 7, 16, 16), bias="batch"),
    Draft("gaussian, bias, n = m", (2, 3, 3, 7, 7, 16, 16), bias="heads"),
    Draft("gaussian, strided bias", (2, 3, 3, 5, 7, 16, 16), bias="all", also=("strided inputs",)),
    Draft("gaussian, shared bias", (2, 3, 3, 5, 7, 16, 16), bias="shared"),
    Draft("gaussian, bias with hidden entries", (2, 3, 3, 5, 7, 16, 16), bias="hidden"),
    Draft("gaussian, mask and causal", (2, 3, 3, 5, 7, 16, 16), mask="shared", causal=True),
    Draft("gaussian, mask and bias", (2, 3, 3, 5, 7, 16, 16), mask="shared", bias="heads"),
    Draft("gaussian, groups and mask", (2, 6, 2, 5, 7, 16, 16), mask="heads"),
    Draft("gaussian, groups, bias, causal", (2, 6, 2, 5, 7, 16, 16), bias="all", causal=True),
    Draft("gaussian, mask, d_v != d_k", (2, 3, 3, 5, 7, 16, 8), mask="shared"),
    Draft("gaussian, one head of keys", (2, 3, 1, 5, 7, 16, 16)),
    Draft("gaussian, causal, scale", (2, 3, 3, 9, 7, 16, 16), causal=True, scale=0.3),
    Draft("gaussian, bias, scale", (2, 3, 3, 5, 7, 16, 16), bias="all", scale=0.3),
    Draft("gaussian, everything", (2, 6, 2, 7, 11, 16, 16), mask="heads", causal=True, bias="all", scale=0.3),
    Draft("gaussian, scale", (2, 3, 3, 5, 7, 16, 16), scale=0.3),
    Draft("gaussian, negative scale", (2, 3, 3, 5, 7, 16, 16), scale=-0.3),
    Draft("gaussian, dropout", (2, 3, 3, 5, 7, 16, 16), rho=0.25),
    Draft("gaussian, dropout, n = m", (2, 3, 3, 7, 7, 16, 8), rho=0.5),
    Draft("gaussian, dropout, groups", (2, 4, 2, 5, 7, 16, 16), rho=0.25),
    Draft("gaussian, dropout, mask", (2, 3, 3, 5, 7, 16, 16), mask="batch", rho=0.25),
    Draft("gaussian, dropout, bias", (2, 3, 3, 7, 7, 16, 16), bias="heads", rho=0.25),
    Draft("gaussian, dropout, causal", (2, 3, 3, 9, 9, 16, 16), causal=True, rho=0.25),
    Draft("gaussian, dropout, scale", (2, 3, 3, 5, 7, 16, 16), scale=0.3, rho=0.25),
    *(Draft(family, (2, 3, 3, 7, 11, 16, 16)) for family in [*FAMILIES][1:-1]),
    Draft("rows far apart", (2, 3, 3, 6, 11, 16, 16)),
    Draft("gaussian, tails of 17 and 33", (2, 3, 3, 17, 33, 16, 16)),
    Draft("gaussian, tails of 130 and 37", (2, 3, 3, 130, 37, 16, 16)),
    Draft("gaussian, tails, causal, bias", (1, 3, 3, 37, 70, 16, 16), causal=True, bias="heads"),
    Draft("gaussian, tails with a mask", (1, 3, 3, 37, 67, 16, 16), mask="shared"),
    Draft("gaussian, tails of 257 and 19", (1, 1, 1, 257, 19, 16, 16)),
    Draft("gaussian, tails of 19 and 1030", (1, 1, 1, 19, 1030, 16, 16)),
    Draft("gaussian, tails of 530 and 515", (1, 1, 1, 530, 515, 16, 16)),
    Draft("gaussian, tails of 520, causal", (1, 1, 1, 520, 520, 8, 8), causal=True),
    Draft("outliers, tails of 65 and 130", (1, 2, 2, 65, 130, 16, 16)),
    Draft("gaussian, tails, groups, causal", (1, 6, 2, 67, 67, 16, 16), causal=True),
    Draft("gaussian, heads of 12", (2, 3, 3, 5, 7, 12, 12)),
    *(Draft(f"gaussian, heads of {d}", (1, 2, 2, 5, 7, d, d)) for d in (20, 100)),
    Draft("gaussian, tails, groups", (1, 6, 2, 37, 133, 16, 16)),
    Draft("gaussian, tails, groups, mask", (2, 4, 2, 35, 131, 16, 16), mask="heads"),
    Draft("gaussian, tails, causal, n < m", (1, 2, 2, 70, 131, 16, 16), causal=True),
    Draft("gaussian, tails, bias", (1, 2, 2, 67, 70, 16, 16), bias="heads"),
    Draft("gaussian, tails, mask and bias", (1, 2, 2, 37, 70, 16, 16), mask="shared", bias="heads"),
    Draft("gaussian, tails, mask and causal", (1, 2, 2, 67, 70, 16, 16), mask="shared", causal=True),
    Draft("gaussian, tails, scale", (1, 2, 2, 35, 70, 16, 16), scale=0.3),
    Draft("gaussian, tails, dropout", (1, 2, 2, 35, 70, 16, 16), rho=0.25),
    Draft("gaussian, tails, dropout, causal", (1, 2, 2, 67, 70, 16, 16), causal=True, rho=0.25),
    Draft("gaussian, groups, bias", (2, 4, 2, 5, 7, 16, 16), bias="all"),
    Draft("gaussian, causal, bias", (2, 3, 3, 5, 7, 16, 16), causal=True, bias="heads"),
    Draft("gaussian, mask, scale", (2, 3, 3, 5, 7, 16, 16), mask="batch", scale=0.3),
    Draft("gaussian, bias of each key", (2, 3, 3, 5, 7, 16, 16), bias="keys"),
    Draft("gaussian, contiguous rows", (2, 3, 3, 5, 7, 16, 16), also=("strided inputs", "contiguous rows")),
]


def cases(options: Collection[str], dtype: str, seed: int, taken: Taken = ANY) -> list[Case]:
    """The problems of the list that the candidate can be given, the small ones first, of sizes that it takes."""
    rng = np.random.default_rng([seed, 2])
    return [drawn_case(setting, dtype, rng) for setting in taken.drafts(settings_for(SETTINGS, options))]


def drawn_case(setting: Draft, dtype: str, rng: Rng) -> Case:
    """The case of this setting, its numbers drawn."""
    family, also = setting.name.split(",")[0], set(setting.also) - {""}
    Q, K, V, dO = (nearest(x, dtype) for x in FAMILIES[family](rng, dtype, *setting.shapes))
    if "broadcast dO" in also:
        dO = np.repeat(dO[:, :, :1], dO.shape[2], 2)  # the same row for all queries
    keep = setting.drawn_mask(rng)
    if setting.causal and keep is not None:
        keep[..., 0] = True  # the key that every query may see, so that no row is empty
    case = Case(Q, K, V, dO, keep, setting.drawn_bias(dtype, rng), setting.causal, setting.scale,
                setting.drawn_dropout(dtype, rng), setting.name)
    if "poison" in also:
        case = poisoned(case, dtype)
        also = also if case.K.max() >= POISONS[dtype] / 2 else also - {"poison"}
    return replace(case, traits=frozenset(traits_of(case) | also | {family}))


def poisoned(case: Case, dtype: str) -> Case:
    """With a huge number in keys and values that no query sees, by the mask."""
    if case.keep is None:
        return case
    (b, H, n, _), m = case.Q.shape, case.K.shape[2]
    seen = np.any(np.broadcast_to(case.keep, (b, H, n, m)), (1, 2))[:, None, :, None]
    huge = nearest(np.array(POISONS[dtype]), dtype)
    return replace(case, K=np.where(seen, case.K, huge), V=np.where(seen, case.V, huge))
