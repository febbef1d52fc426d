"""The families: how the numbers of a problem are drawn, before they are rounded to its format."""

from collections.abc import Callable

import numpy as np

from attnmath._examine._settings import Rng

Numbers = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # Q, K, V, dO
TINY = {"float64": 1e-6, "float32": 1e-6, "bfloat16": 1e-6, "float16": 1e-2}


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
    return 0.1 * Q, 0.1 * K, V, TINY[dtype] * dO


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


FAMILIES: dict[str, Callable[..., Numbers]] = {
    "gaussian": gaussian,
    "peaked": peaked,
    "offset": offset,
    "tiny": tiny,
    "ties": ties,
    "outliers": outliers,
    "positive": positive,
    "large negative scores": large_negative_scores,
}
