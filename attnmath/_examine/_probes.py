"""Small problems by which a convention is read off a candidate's output.

The weights are read with the unit vectors as values; with Q = 0 they are equal, so that what a
mask hides is seen at once. In hard attention one key has all the weight: O is made of rows of V.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnmath._examine._candidate import Candidate
from attnmath._examine._case import Case, Conventions


@dataclass(frozen=True)
class Sizes:
    """Sizes of problems that a candidate takes; m above n by at least 3 where that may be."""

    b: int = 2
    H: int = 3
    n: int = 4
    m: int = 7
    d_k: int = 16
    d_v: int = 24

    @property
    def square(self) -> bool:
        """Whether there are as many queries as keys."""
        return self.n == self.m


# Tried in this order: kernels that want n = m, d_v = d_k, or whole tiles, are not wrong for that.
TRIED = (
    Sizes(),
    Sizes(d_v=16),
    Sizes(n=7, d_v=16),
    Sizes(b=3, H=2, n=64, m=64, d_k=64, d_v=64),
    Sizes(b=3, H=2, n=128, m=128, d_k=64, d_v=64),
)


def problem(sizes: Sizes, rng: np.random.Generator, G: int | None = None, **fields: Any) -> Case:
    """A problem with small whole numbers as values and gradients, and Q = 0."""
    s, G = sizes, G or sizes.H
    arrays = dict(
        Q=np.zeros((s.b, s.H, s.n, s.d_k)),
        K=codes(s, G),
        V=rng.integers(-99, 100, (s.b, G, s.m, s.d_v)).astype(float),
        dO=rng.integers(-9, 10, (s.b, s.H, s.n, s.d_v)).astype(float),
    )
    return Case(**(arrays | fields))


def codes(s: Sizes, G: int) -> np.ndarray:
    """A unit vector for each key; the keys after the first d_k have none, and score 0."""
    return np.array(np.broadcast_to(np.eye(s.m, s.d_k), (s.b, G, s.m, s.d_k)))


def hard(sizes: Sizes, rng: np.random.Generator, **fields: Any) -> Case:
    """Each query ranks the keys in an order of its own, and reads the first that it may."""
    s = sizes
    size = min(s.m, s.d_k)
    ranks = np.zeros((s.b, s.H, s.n, s.d_k))
    ranks[..., :size] = 1 + rng.permuted(np.broadcast_to(np.arange(size), (s.b, s.H, s.n, size)), axis=-1)
    gap = 2.0 ** np.floor(np.log2(60000 / size))  # scores that float16 can hold
    return problem(s, rng, Q=gap * ranks, **fields)


def right_rows(O: np.ndarray, want: np.ndarray) -> np.ndarray:
    """The rows of hard attention that are right: to the nearest whole number."""
    return (np.abs(O - want) < 0.25).all(-1)


def weights(candidate: Candidate, case: Case, means: Conventions, seed: int = 0) -> np.ndarray | None:
    """The weights (b, H, n, m), read with unit vectors as values; None where it does not answer."""
    s = case.sizes
    found = np.zeros((s["b"], s["H"], s["n"], s["m"]))
    for start in range(0, s["m"], s["d_v"]):  # as many keys at a time as a value has entries
        stop = min(start + s["d_v"], s["m"])
        V = np.zeros(case.V.shape)
        V[..., np.arange(start, stop), np.arange(stop - start)] = 1
        outcome = candidate.run(replace(case, V=V), means, seed, forward=True)
        if outcome.answer is None:
            return None
        found[..., start:stop] = outcome.answer.O[..., : stop - start]
    return found

