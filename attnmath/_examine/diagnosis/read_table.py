"""A table of biases by distance, read off the weights of scores that are 0, and the rule of its buckets."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attnmath._examine.problems.case import Case
from attnmath._examine.problems.pieces import Pieces, Table
from attnmath._formulas.positions import relative_buckets

USUAL = 128, 32, 64, 256  # distances from which on T5's buckets are one
MOST = 300  # such a distance
ALIGNED: Any = ("lower_right", "upper_left")
LENGTHS = 1100, 300, 64  # at which it is read: the first that is taken


def by_distance(one: np.ndarray, alike: float) -> tuple[Table, np.ndarray] | None:
    """The table of what is added (H, n, n), but to its own key, and what it adds; None if there is none."""
    n = one.shape[-1]
    ahead = np.arange(n) - np.arange(n)[:, None]
    each = np.stack([one.diagonal(x, 1, 2).mean(-1) for x in range(1 - n, n)], -1)
    with np.errstate(invalid="ignore"):
        off = np.where(np.isfinite(one), abs(one - each[:, ahead + n - 1]), 0.0)
    added = np.nan_to_num(each[:, ahead + n - 1], neginf=0.0)
    return (table_of(each, alike), added) if off.max() < alike else None


def table_of(each: np.ndarray, alike: float) -> Table:
    """With numbers (H, distances) of each head, or of all; those of hidden keys are 0."""
    seen = np.isfinite(each).all(0)
    each = np.where(seen, each, 0.0)
    each = each[:1] if np.ptp(each, 0).max() < alike else each
    return Table(tuple(range(each.shape[1])), tuple(map(tuple, each)))


def far_apart(candidate: Any, means: Any, alike: float, heads: int) -> Pieces:
    """The pieces with the table as far as it may be known, read off the weights of two keys.

    Of query i let Z be the sum of all exponentials. Query i + 1 sees one distance more before it, which the first
    key tells, and one fewer after it, which the last key does: so the sums follow from each other.
    """
    pieces, answer, n = means.pieces, None, 0
    for length in LENGTHS[heads > 2 :]:
        b, H, G, n, m, d_k, d_v = candidate.taken.sizes((1, heads, heads, length, length, 8, 8))
        if answer is None and n == m and d_v > 1:
            Q, K, V, dO = (np.zeros((b, *x)) for x in ((H, n, d_k), (G, n, d_k), (G, n, d_v), (H, n, d_v)))
            V[..., 0, 0] = V[..., -1, 1] = 1.0
            answer = candidate.run(Case(Q, K, V, dO), means, forward=True).answer
    if answer is None:
        return pieces
    n = answer.O.shape[2]
    first, last = answer.O[0, ..., 0], answer.O[0, ..., 1]  # of each head and query
    with np.errstate(all="ignore"):
        Z = np.cumprod(np.append(np.ones((len(first), 1)), (1 - last[:, :-1]) / (1 - first[:, 1:]), 1), 1)
        before, after = first * Z, (last * Z)[:, ::-1]
        each = np.log(np.append(before[:, ::-1], after[:, 1:], 1) / before[:, :1])
    seen = np.isfinite(each).all(0)
    left, right = n - 1 - int(seen.nonzero()[0][0]), int(seen.nonzero()[0][-1]) - n + 1
    labels = np.cumsum(np.append(True, abs(np.diff(np.where(seen, each, 0.0))).max(0) > alike))
    c = len({*labels[:n]})
    rule = clipped(labels, seen) or right > 0 and t5(labels, seen, 2 * c, "both") or t5(labels, seen, c, "before")
    return replace(pieces, table=replace(table_of(each, alike), rule=rule), left=left if left < n - 1 else None,
                   right=right if right < n - 1 else None)


def clipped(labels: np.ndarray, seen: np.ndarray) -> str:
    """In words that each distance has a number of its own up to one from which on all have the same."""
    places = np.flatnonzero(seen)
    changes = np.flatnonzero(np.diff(labels[places]))  # between each of these and the next
    if len(changes) < 3 or (np.diff(changes) > 1).any():
        return ""
    ends = changes[[0, -1]] + [0, 1]
    far = max(abs(places[ends] - len(labels) // 2))
    return f"one number each up to {far} apart" if ends[0] > 0 or ends[1] < len(places) - 1 else ""


def t5(labels: np.ndarray, seen: np.ndarray, c: int, sides: Any) -> str:
    """In words how T5 gives c buckets to distances, if those of the labels that are seen are these."""
    far, said = len(labels) // 2, {"both": "both directions", "before": "before the query"}[sides]
    for distance in (*USUAL, *range(0, MOST, 10), *range(MOST)):  # round ones first
        try:
            before, after = (relative_buckets(
                1, far + 1, buckets=c, distance=distance, sides=sides, align=align)[0] for align in ALIGNED)
        except ValueError:  # fewer than there are with one distance each
            continue
        buckets = np.append(before, after[1:])
        both, mine, others = (len({*x}) for x in (zip(buckets[seen], labels[seen]), buckets[seen], labels[seen]))
        if both == mine == others and buckets[0] in buckets[seen]:
            return f"{c} buckets, up to {distance} apart, {said}"
    return ""


def learned_tables(pieces: Pieces, learned: np.ndarray | None, scale: float, alike: float) -> Iterator[Pieces]:
    """With which number of (H, buckets), or (buckets, H), that a layer learns, if it does, each distance has."""
    table = pieces.table
    if table is None or learned is None:
        yield from [pieces] * (learned is None)
        return
    read, far = np.array(table.numbers), len(table.buckets) // 2
    places = np.arange(-far, far + 1)
    seen = (places >= -far if pieces.left is None else places >= -pieces.left)
    seen &= places <= (far if pieces.right is None else pieces.right)
    for heads_first in (True, False):
        x = learned if heads_first else learned.T
        if x.ndim != 2 or len(read) not in (1, len(x)):
            continue
        for times, own in ((t, r) for t in dict.fromkeys((1.0, scale)) for r in range(x.shape[1])):
            want = times * (x - x[:, own : own + 1])
            if abs(read[:, far - 1, None] - want).max(0).min() > alike:
                continue
            buckets = np.array([abs(read[:, t, None] - want).max(0).argmin() for t in range(len(places))])
            if abs(read - want[:, buckets])[:, seen].max() < alike:
                rule = t5(buckets, seen, x.shape[1], "both") or t5(buckets, seen, x.shape[1], "before")
                yield replace(pieces, table=Table(tuple(int(r) for r in np.where(seen, buckets, 0)), (),
                                                  rule or f"{x.shape[1]} numbers", times, heads_first))
