"""A short format in which the growing sums over keys are stored: each tile of keys rounds them once more."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attnmath._examine.contract.functions import Fault
from attnmath._examine.problems.bounds import JudgedLetter, judge_answer
from attnmath._examine.problems.case import Answer, Case, Conventions
from attnmath._examine.problems.steps import FROM_L, FROM_O, Steps, changes_of_empty_rows, grouped
from attnmath._words.arrays import T, rowsum, sum_to
from attnmath.rounding.formats import nearest, unit_roundoff

TILES = 1, 2, 4, 8, 16
FEWEST = 64  # of stores for each sum: with fewer the usual bounds do
NEARER = 4.0  # times as near to what came as the right output is, at least


class StoredSums(NamedTuple):
    """The row statistics and the output of such a head, and the keys that were the largest of their row so far."""

    L: np.ndarray
    O: np.ndarray
    largest: np.ndarray


def in_tiles(s: Steps, dtype: str, tile: int) -> StoredSums:
    """A head whose every array is stored, with a running maximum."""
    def stored(x: np.ndarray) -> np.ndarray:
        return nearest(x, dtype)

    A = stored(stored(s.gamma * stored(s.QK)) + s.B)
    top, largest = np.full((*A.shape[:3], 1), -np.inf), np.zeros(A.shape, bool)
    total, acc = np.zeros_like(top), 0.0 * s.O
    for at in range(0, A.shape[-1], tile):
        here, values = A[..., at : at + tile], s.values[:, :, at : at + tile]
        new = np.maximum(top, here.max(-1, keepdims=True))
        below = np.where(np.isneginf(new), 0.0, new)
        E, shrink = (stored(np.exp(stored(x - below))) for x in (here, top))
        total = stored(stored(total * shrink) + stored(E.sum(-1, keepdims=True)))
        acc, top = stored(stored(acc * shrink) + stored(E @ values)), new
        largest[..., at : at + tile] = here == new
    divisor = np.where(total == 0, 1.0, total)
    return StoredSums(np.where(total == 0, np.inf, below + np.log(divisor)), acc / divisor, largest)


def judged_as_stored(
    verdicts: dict[str, JudgedLetter], got: Answer, case: Case, means: Conventions, off: Answer, dtype: str
) -> tuple[dict[str, JudgedLetter], list[Fault]]:
    """What failed beside a head that stores its sums, if that gives the output; otherwise as it was."""
    usual = changes_of_empty_rows(means)
    s = Steps(case, means, usual)
    short = dtype in ("bfloat16", "float16") and case.R is None and means.pieces is None
    short &= not all(x.passed for x in verdicts.values()) and got.O.shape == case.dO.shape
    tiles = [t for t in TILES if case.K.shape[2] >= FEWEST * t] if short else ()
    each_tile = {tile: in_tiles(s, dtype, tile) for tile in tiles}
    far = {tile: abs(got.O - sums.O).max() for tile, sums in each_tile.items()}
    tile = min(far, key=far.__getitem__, default=0)
    if tile and NEARER * far[tile] <= abs(got.O - s.O).max():
        sums = each_tile[tile]
        change = {"L": lambda s, x: sums.L, "O": lambda s, x: sums.O, **FROM_L, **FROM_O}
        want = Steps(case, means, (*usual, change)).answer()
        each = dict(_judged(got, want, off, lost_at_the_largest(s, sums, case.K.shape[2] / tile, dtype), dtype))
        clear = len(far) > 1 and all(2 * far[tile] < x for other, x in far.items() if other != tile)
        after = f", every {tile} keys" if clear else ""
        title = f"the growing sums over keys are stored in {dtype}{after}: O loses digits each time"
        failed = {x: each[x] for x, judged in verdicts.items() if not judged.passed}
        return verdicts | failed, [Fault("stored_sums", title)]
    return verdicts, []


def _judged(
    got: Answer, want: Answer, off: Answer, more: Answer, dtype: str
) -> Iterator[tuple[str, JudgedLetter]]:
    """The output and dV as always; what goes back through the largest score, entry by entry."""
    for x, judged in judge_answer(got, want, off, dtype).items():
        wide = off.each(np.add, more) if getattr(more, x).any() else None
        yield x, judge_answer(got, want, wide, None)[x] if wide else judged


def lost_at_the_largest(s: Steps, sums: StoredSums, stores: float, dtype: str) -> Answer:
    """What the gradients lose: what goes back through the running maximum cancels but for as many roundings."""
    dA = sums.largest * (stores * unit_roundoff(dtype) * rowsum(abs(s.P * s.dP)))
    dQ, dK = abs(s.gamma) * dA @ abs(s.keys), abs(s.gamma) * T(dA) @ abs(s.Q)
    dB = None if s.case.bias is None else sum_to(dA, s.case.bias)
    return Answer(0.0 * s.O, dQ, grouped(dK, s.owner, s.K.shape[1]), 0.0 * s.V, dB)
