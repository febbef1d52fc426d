"""The right answer and its bounds for float32, in tiles of queries that stay in the cache.

The answer is computed in float64, the bounds in float32: they need few digits, and a little is
added for those that they lose. They are those of _bounds.py where no exponent is off by more
than a twentieth. With arrays of NumPy, or with those of PyTorch if it has been imported.
"""

import sys
from math import exp, expm1

import numpy as np

from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._tiles import Head, floor, gradients, output, weights
from attnmath._roundoff import Model

ROWS = 128  # queries of a tile


def quick(
    case: Case, means: Conventions, f: Model, stores_n: int, stores_m: int
) -> tuple[Answer, Answer] | None:  # fmt: skip
    """The answer and its bounds, or None where an exponent may be off by more. No bias."""
    array = sys.modules["torch"].from_numpy if "torch" in sys.modules else np.asarray
    (b, H, n, d_k), (G, m, d_v), gamma = case.Q.shape, case.V.shape[1:], case.gamma(means)
    want, off, sizes = (
        Answer(np.zeros((b, H, n, d_v)), *map(np.zeros_like, (case.Q, case.K, case.V))) for _ in range(3)
    )
    for i, h in np.ndindex(b, H):
        g = case.owner(means)[h]
        seen = _seen(case, means, i, h)
        read = np.ones((m, 1), bool) if seen is None else seen.any(0)[:, None]
        K, V = (x[i, g] if seen is None else np.where(read, x[i, g], 0.0) for x in (case.K, case.V))
        given = gamma * case.Q[i, h], K, V, np.ascontiguousarray(case.dO[i, h])
        low = (abs(x).astype(np.float32) for x in given)
        head = Head(*map(array, given), *map(array, low), gamma, f, stores_n, stores_m)
        back = [array(np.zeros((d, m), t)) for t in (np.float64, np.float32) for d in (d_k, d_v)]
        for rows in (slice(k, min(k + ROWS, n)) for k in range(0, n, ROWS)):
            R = None if case.R is None else array(np.array(np.broadcast_to(case.R, (b, H, n, m))[i, h, rows]))
            tile = weights(head, rows, None if seen is None else array(seen[rows]), R)
            if tile is None:
                return None
            found = output(head, tile)
            found = *found, *gradients(head, rows, tile, *found, back)
            for x, y in zip((want.O, off.O, want.dQ, off.dQ), found):
                x[i, h, rows] = np.asarray(y)
        for k, x, x_off in ((2, back[0], back[2]), (3, back[1], back[3])):
            x, x_off = (np.asarray(y, np.float64).T for y in (x, x_off))
            want[k][i, g] += x
            sizes[k][i, g] += abs(x)
            off[k][i, g] += np.where(read, x_off + floor(f, n, head.absQ, head.absdO), 0.0)
    return want, _returned(f, want, off, sizes, H // G)


def _seen(case: Case, means: Conventions, i: int, h: int) -> np.ndarray | None:
    """Which query of this head may attend to which key; None if each to all."""
    if case.keep is None and not case.causal:
        return None
    seen = case.seen(means)[i, h]
    return None if seen.all() else seen


def _returned(f: Model, want: Answer, off: Answer, sizes: Answer, count: int) -> Answer:
    """The bounds with what is rounded last, and with what float32 has lost."""
    n, m = want.O.shape[2], want.dK.shape[2]
    lost = 1 + 2.0**-22 * (n + m + want.dQ.shape[-1] + want.dV.shape[-1] + 64)
    steps, least = f.stored + 2 * f.entries, f.least_stored

    def grown(x: np.ndarray, by: float, off: np.ndarray, least: float) -> np.ndarray:
        more = expm1(by) * abs(x) + exp(by) * off
        return more + least * (more > 0)

    dK, dV = off.dK, off.dV
    if count > 1:
        more = steps + f.entries + (count + 8) * f.sums
        dK, dV = (grown(x, more, x_off, count * least) for x, x_off in ((sizes.dK, dK), (sizes.dV, dV)))
        last = f.stored
    else:
        last = steps
    dQ = grown(want.dQ, steps, off.dQ, least)
    dK, dV = (grown(x, last, x_off, least) for x, x_off in ((want.dK, dK), (want.dV, dV)))
    return Answer(*(lost * x for x in (off.O + least * (off.O > 0), dQ, dK, dV)))
