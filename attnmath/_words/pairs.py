"""Features in pairs, halves apart or side by side; pairs of query and key in buckets."""

from typing import Any

import numpy as np

from attnmath._words.arrays import Array, flat, namespace, rowsum


def cos(x: Array) -> Array:
    """The cosine, entry by entry."""
    return namespace(x).cos(x)


def sin(x: Array) -> Array:
    """The sine, entry by entry."""
    return namespace(x).sin(x)


def turned(X: Array, theta: Array, layout: str) -> Array:
    """X J: each pair (x, y) becomes (-y, x), a quarter of a turn; what is in no pair becomes 0."""
    x, y, rest = parted(X, theta.shape[-1], layout)
    return joined(-y, x, 0 * rest, layout)


def spread(Phi: Array, X: Array, layout: str) -> Array:
    """Phi N: the angle of a pair at both of its features, 0 at what is in no pair."""
    xp, left = namespace(Phi), X.shape[-1] - 2 * Phi.shape[-1]
    rest = xp.broadcast_to(0 * xp.sum(Phi, axis=-1, keepdims=True), (*Phi.shape[:-1], left))
    return joined(Phi, Phi, rest, layout)


def gathered(X: Array, theta: Array, layout: str) -> Array:
    """X N^T: the sum of the two features of each pair."""
    x, y, _ = parted(X, theta.shape[-1], layout)
    return x + y


def parted(X: Array, pairs: int, layout: str) -> tuple[Any, Any, Any]:
    """The first and the second features of all pairs, and what is in none."""
    rest = X[..., 2 * pairs :]
    if layout == "half_split":
        return X[..., :pairs], X[..., pairs : 2 * pairs], rest
    return X[..., 0 : 2 * pairs : 2], X[..., 1 : 2 * pairs : 2], rest


def joined(x: Array, y: Array, rest: Array, layout: str) -> Array:
    """What was parted, together again."""
    xp = namespace(x)
    if layout == "half_split":
        return xp.concat((x, y, rest), axis=-1)
    both = xp.reshape(xp.stack((x, y), axis=-1), (*x.shape[:-1], 2 * x.shape[-1]))
    return xp.concat((both, rest), axis=-1)


# ---- pairs of query and key, each in a bucket ----------------------------------------------------


def looked_up(beta: Array, buckets: Array) -> Array:
    """beta[..., bucket] of each pair: (..., R), (n, m) -> (..., n, m)."""
    xp = namespace(beta)
    return xp.reshape(xp.take(beta, xp.reshape(buckets, (-1,)), axis=-1), (*beta.shape[:-1], *buckets.shape))


def collected(B: Array, buckets: Array, beta: Array) -> Array:
    """The sum over the pairs of each bucket: (..., n, m), (n, m), (..., c) -> (..., c)."""
    xp = namespace(B)
    parts = [xp.where(buckets == r, B, 0) for r in range(beta.shape[-1])]
    return xp.stack([flat(flat(rowsum(rowsum(part).mT))) for part in parts], axis=-1)


def reached_by(x: np.ndarray, count: int, near: int, far: int) -> np.ndarray:
    """How many of the first numbers of the buckets from 1 on each distance has reached; 0 if it is negative."""
    return sum((x >= first).astype(int) for first in firsts(count, near, far)) + 0 * x


def firsts(count: int, near: int, far: int) -> list[int]:
    """The least distance of each bucket from 1 on: 1, 2, ..., near, and then from near to far by equal factors."""
    steps = count - near
    found = [*range(1, near + 1)]
    for k in range(1, steps):
        last = found[-1]
        while last**steps < near ** (steps - k) * far**k:
            last += 1
        found.append(last)
    return found
