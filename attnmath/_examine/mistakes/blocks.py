"""How rows and keys are in blocks by rank: which block each is in, what stands in another, parts of a row."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.mistakes.modes import FORWARD
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import StepChanges, Steps, Wordings, log_sum_exp, plain_softmax


class Blocks(NamedTuple):
    """The tokens of each rank, and where each token is."""

    ranks: int
    zigzag: bool
    places: tuple[np.ndarray, ...]  # of the tokens of each rank
    rank: np.ndarray  # of each token
    local: np.ndarray  # its number on its rank
    half: np.ndarray  # whether it is in the second of the two parts of a rank

    @property
    def own(self) -> np.ndarray:
        """Whether a key is on the query's rank, (n, n)."""
        return self.rank[:, None] == self.rank

    def step(self, way: int) -> np.ndarray:
        """At which step a query's rank has the block of a key, in a ring one way or the other, (n, n)."""
        return way * (self.rank[:, None] - self.rank) % self.ranks

    def block_at(self, step: np.ndarray, way: int) -> np.ndarray:
        """Which block a query's rank has at a step, (n, n)."""
        return (self.rank[:, None] - way * step) % self.ranks

    def key_in(self, block: np.ndarray) -> np.ndarray:
        """For each query and key the key with the same number in another block, (n, n)."""
        found = np.zeros(block.shape, int)
        for r, places in enumerate(self.places):
            found = np.where(block == r, places[self.local % max(len(places), 1)] if len(places) else 0, found)
        return found

    def moved(self, x: np.ndarray, by: int) -> np.ndarray:
        """The rows of each rank are those of the rank so many before."""
        out = x.copy()
        for r, places in enumerate(self.places):
            other = self.places[(r - by) % self.ranks]
            same = min(len(places), len(other))
            out[:, :, places[:same]] = x[:, :, other[:same]]
        return out

    @property
    def ways(self) -> tuple[tuple[int, str], ...]:
        """The two ways round, which are one for two ranks."""
        return ((1, ""), (-1, ", round the other way")) if self.ranks > 2 else ((1, ""),)


@lru_cache(64)
def _blocks(ranks: int, layout: str, n: int) -> Blocks:
    from attnmath.torch.layouts import positions

    places = tuple(positions(layout, n, ranks, r).numpy() for r in range(ranks))
    rank, local, half = np.zeros(n, int), np.zeros(n, int), np.zeros(n, bool)
    for r, x in enumerate(places):
        rank[x], local[x], half[x] = r, np.arange(len(x)), np.arange(len(x)) >= (len(x) + 1) // 2
    return Blocks(ranks, layout == "zigzag", places, rank, local, half)


def blocks_of(case: Case, means: Conventions) -> Blocks | None:
    """The blocks of a problem; nothing where it is not spread over ranks."""
    n, m = case.sizes["n"], case.sizes["m"]
    return _blocks(*means.ranks, n) if means.ranks is not None and n == m else None


def by_blocks(make: Callable[[Blocks, Case, Conventions], Wordings]) -> Callable[[Case, Conventions], Wordings]:
    """Forms that there are in blocks alone."""
    def forms(case: Case, means: Conventions) -> Wordings:
        b = blocks_of(case, means)
        if b is not None:
            yield from make(b, case, means)

    return forms


# ---- other keys in the place of a block's -------------------------------------------------------


def gathered(x: np.ndarray, key: np.ndarray) -> np.ndarray:
    """(b, H, n, m): of each query and key what belongs to another key."""
    return np.take_along_axis(x, np.broadcast_to(key, x.shape), -1)


def scattered(x: np.ndarray, key: np.ndarray) -> np.ndarray:
    """(b, H, n, m): added up at the keys that were used."""
    out = np.zeros(x.shape)
    rows, alike = np.unique(key, axis=0, return_inverse=True)  # the queries of a rank use the same keys
    for k, row in enumerate(rows):
        mine = alike.ravel() == k
        out[:, :, mine] = x[:, :, mine] @ (row[:, None] == np.arange(x.shape[-1])).astype(float)
    return out


def with_other_keys(key: np.ndarray, K: bool, V: bool, back: bool) -> StepChanges:
    """Scores with other keys, sums with other values; on the way back alone, or on both."""
    change: dict[str, Callable[[Steps, Any], Any]] = {}
    if K:
        change["A_back"] = lambda s, x: s.gamma * gathered(s.Q @ _T(s.keys_back), key) + s.B_back
        change["dQ"] = lambda s, x: s.gamma_back * scattered(s.dA, key) @ s.keys_back
        if not back:
            change["QK"] = lambda s, x: gathered(x, key)
            change["A_back"] = lambda s, x: s.gamma * s.QK + s.B_back
    if V:
        change["dP"] = lambda s, x: gathered(s.dO @ _T(s.values_back), key) * s.R_back
        if not back:
            change["O"] = lambda s, x: scattered(s.P * s.R, key) @ s.values
    return change


def forward_alone(change: StepChanges) -> StepChanges:
    """The same, where the way back finds its scores as they should be."""
    forward = {x: step for x, step in change.items() if x in FORWARD}
    return {**forward, "A_back": lambda s, x: s.gamma * s.Q @ _T(s.keys_back) + np.where(
        s.case.seen(s.means), s.bias, s.bias + s.means.hidden)}


def _T(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2)


# ---- parts of a row, one of each block ----------------------------------------------------------


def of_blocks(b: Blocks, A: np.ndarray, f: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """f of each part of each row, (b, H, n, 1) or (b, H, n, size), at its keys: (b, H, n, m)."""
    out = np.zeros(A.shape)
    for places in b.places:
        out[..., places] = f(A[..., places]) if len(places) else 0.0
    return out


def block_softmax(b: Blocks, A: np.ndarray) -> np.ndarray:
    """The softmax of each part."""
    return of_blocks(b, A, plain_softmax)


def block_top(b: Blocks, A: np.ndarray) -> np.ndarray:
    """The largest score of each part; 0 where it is hidden."""
    top = of_blocks(b, A, lambda x: x.max(-1, keepdims=True))
    return np.where(np.isneginf(top), 0.0, top)


def in_order(b: Blocks, A: np.ndarray, way: int) -> Iterator[np.ndarray]:
    """The log-sum-exp of each part as a column (b, H, n, 1), in the order in which a row's rank has them."""
    none = np.full((*A.shape[:-1], 1), np.inf)
    parts = np.stack([log_sum_exp(A[..., p]) if len(p) else none for p in b.places])
    parts = np.where(np.isposinf(parts), -np.inf, parts)
    for step in range(b.ranks):
        which = (b.rank - way * step) % b.ranks
        yield np.take_along_axis(parts, which[None, None, None, :, None], 0)[0]


def merged_in_order(
    b: Blocks, A: np.ndarray, way: int, weigh: Callable[..., Any]
) -> tuple[np.ndarray, np.ndarray]:
    """The weights when parts are merged one after another, and the log-sum-exp that is left.

    weigh(L, part, step) -> the shares of what was there and of what is new, the L that is kept
    """
    P, step = block_softmax(b, A), np.broadcast_to(b.step(way), A.shape)
    total, L = np.zeros(A.shape), np.full((*A.shape[:-1], 1), -np.inf)
    for t, part in enumerate(in_order(b, A, way)):
        old, new, L = weigh(L, part, t)
        total = total * old + np.where(step == t, P, 0.0) * new
    return total, L
