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

ROWS = 256  # queries of a tile


def quick(
    case: Case, means: Conventions, f: Model, stores_n: int, stores_m: int
) -> tuple[Answer, Answer] | None:  # fmt: skip
    """The answer and its bounds, or None where an exponent may be off by more. No bias."""
    array = sys.modules["torch"].from_numpy if "torch" in sys.modules else np.asarray
    (b, H, n, d_k), (G, m, d_v), gamma = case.Q.shape, case.V.shape[1:], case.gamma(means)
    shapes = (b, H, n, d_v), case.Q.shape, case.K.shape, case.V.shape
    want, off = (Answer(*(np.zeros(shape) for shape in shapes)) for _ in range(2))
    shared = Answer(*(np.zeros(shape) for shape in shapes)) if G < H else None  # sums of sizes
    for i, h in np.ndindex(b, H):
        g = case.owner(means)[h]
        seen = _seen(case, means, i, h)
        read = np.ones((m, 1), bool) if seen is None else seen.any(0)[:, None]
        K, V = (x[i, g] if seen is None else np.where(read, x[i, g], 0.0) for x in (case.K, case.V))
        given = [np.ascontiguousarray(x.T) for x in (gamma * case.Q[i, h], K, V, case.dO[i, h])]
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
            if shared is not None:
                shared[k][i, g] += abs(x)
            off[k][i, g] += np.where(read, x_off + floor(f, n, head.absQ, head.absdO), 0.0)
        _once_more(off.dQ[i, h], want.dQ[i, h], f.stored + 2 * f.entries, f.least_stored)
    for k, (i, g) in ((k, ig) for ig in np.ndindex(b, G) for k in (2, 3)):
        steps = f.stored + 2 * f.entries
        if shared is not None:
            count, steps = H // G, steps + f.entries
            _once_more(off[k][i, g], shared[k][i, g], steps + (count + 8) * f.sums, count * f.least_stored)
            steps = f.stored
        _once_more(off[k][i, g], want[k][i, g], steps, f.least_stored)
    for x in off[:4]:
        x *= 1 + 2.0**-22 * (n + m + d_k + d_v + 64)  # float32 has lost less
    return want, off


def _seen(case: Case, means: Conventions, i: int, h: int) -> np.ndarray | None:
    """Which query of this head may attend to which key; None if each to all."""
    if case.keep is None and not case.causal:
        return None
    seen = case.seen(means)[i, h]
    return None if seen.all() else seen


def _once_more(off: np.ndarray, x: np.ndarray, steps: float, least: float) -> None:
    """How far x may be off after more roundings, in the place of how far it was."""
    off *= exp(steps)
    off += expm1(steps) * abs(x)
    off += least * (off > 0)
