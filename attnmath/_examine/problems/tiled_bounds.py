"""The right answer and its bounds for float32, in tiles of queries that stay in the cache.

The answer is computed in float64, the bounds in float32: they need few digits, and a little is
added for those that they lose. They are those of bounds.py where no exponent is off by more
than a twentieth. With arrays of NumPy, or with those of PyTorch if it has been imported.
"""

import sys
from math import exp, expm1, log
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import is_torch_array

from attnmath._examine.problems.case import Answer, Case, Conventions
from attnmath._words.arrays import T, namespace, rowsum, times
from attnmath.rounding.formats import Model

TILE_ROWS = 256  # queries of a tile
MOST_OFF = 0.05  # how far an exponent may be off; then e^x - 1 is at most SERIES x
SERIES = expm1(MOST_OFF) / MOST_OFF


def tiled_answer(
    case: Case, means: Conventions, f: Model, stores_n: int, stores_m: int
) -> tuple[Answer, Answer] | None:
    """The answer and its bounds, or None where an exponent may be off by more. No bias."""
    array = sys.modules["torch"].from_numpy if "torch" in sys.modules else np.asarray
    (b, H, n, d_k), (G, m, d_v), gamma = case.Q.shape, case.V.shape[1:], case.gamma(means)
    shapes = (b, H, n, d_v), case.Q.shape, case.K.shape, case.V.shape
    want, off, sizes = ([np.zeros(shape) for shape in shapes] for _ in range(3))  # sizes: of dK and dV, summed
    for i, h in np.ndindex(b, H):
        g = case.owner(means)[h]
        seen = _seen_by_head(case, means, i, h)
        read = np.ones((m, 1), bool) if seen is None else np.any(seen, 0)[:, None]
        K, V = (x[i, g] if seen is None else np.where(read, x[i, g], 0.0) for x in (case.K, case.V))
        given = [np.ascontiguousarray(x.T) for x in (gamma * case.Q[i, h], K, V, case.dO[i, h])]
        low = [abs(x).astype(np.float32) for x in given]
        Q, K, V, dO, absQ, absK, absV, absdO = map(array, given + low)
        head = TiledHead(Q, K, V, dO, absQ, absK, absV, absdO, gamma, f, stores_n, stores_m)
        back = [array(np.zeros((d, m), t)) for t in (np.float64, np.float32) for d in (d_k, d_v)]
        for rows in (slice(k, min(k + TILE_ROWS, n)) for k in range(0, n, TILE_ROWS)):
            R = None if case.R is None else array(np.array(np.broadcast_to(case.R, (b, H, n, m))[i, h, rows]))
            tile = tile_weights(head, rows, None if seen is None else array(seen[rows]), R)
            if tile is None:
                return None
            O, O_off = tile_output(head, tile)
            found = O, O_off, *tile_gradients(head, rows, tile, O, O_off, back)
            for x, y in zip((want[0], off[0], want[1], off[1]), found):
                x[i, h, rows] = np.asarray(y)
        for k in (2, 3):
            x, x_off = (np.asarray(y, np.float64).T for y in (back[k - 2], back[k]))
            want[k][i, g] += x
            sizes[k][i, g] += abs(x)
            off[k][i, g] += np.where(read, x_off + underflow(f, n, head.absQ, head.absdO), 0.0)
        _once_more(off[1][i, h], want[1][i, h], f.stored + 2 * f.entries, f.least_stored)
    for k, (i, g) in ((k, ig) for ig in np.ndindex(b, G) for k in (2, 3)):
        steps = f.stored + 2 * f.entries
        if G < H:
            count, steps = H // G, steps + f.entries
            _once_more(off[k][i, g], sizes[k][i, g], steps + (count + 8) * f.sums, count * f.least_stored)
            steps = f.stored
        _once_more(off[k][i, g], want[k][i, g], steps, f.least_stored)
    for x in off:
        x *= 1 + 2.0**-22 * (n + m + d_k + d_v + 64)  # float32 has lost less
    return Answer(*want), Answer(*off)


def _seen_by_head(case: Case, means: Conventions, i: int, h: int) -> np.ndarray | None:
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


class TiledHead(NamedTuple):
    """One head of queries in float64, the sizes of its numbers in float32, and what it may round.

    Features come first in all arrays of both: products of such matrices are faster.
    """

    Q: Any  # with the scale
    K: Any
    V: Any
    dO: Any
    absQ: Any
    absK: Any
    absV: Any
    absdO: Any
    gamma: float
    f: Model
    stores_n: int  # how often a sum over the queries is stored, and one over the keys
    stores_m: int


class TileWeights(NamedTuple):
    """The weights of some queries in float64; in float32, with how far their exponents may be off."""

    P: Any
    PR: Any
    R: Any
    p: Any
    off: Any  # p times how far the exponents may be off
    most: float  # the largest of those
    live: Any  # 1 for rows that are not empty, a column


def tile_weights(x: TiledHead, rows: slice, seen: Any, R: Any) -> TileWeights | None:
    """The weights, and how far their exponents may be off: eta, then with the sum of the row."""
    f, xp, (d_k, m) = x.f, namespace(x.K), x.K.shape
    e, s = f.entries, f.sums
    A = T(x.Q[:, rows]) @ x.K
    if seen is not None:
        A = xp.where(seen, A, -xp.inf)
    top = xp.max(A, axis=-1, keepdims=True)
    live = top > -xp.inf
    top = xp.where(live, top, 0.0)
    P = xp.exp(A - top)
    total = xp.where(live, rowsum(P), 1.0)
    P *= 1 / total
    L = in_float32(xp.log(total) + top)
    A, p = in_float32(A if seen is None else xp.where(seen, A, 0.0)), in_float32(P)
    size = s + expm1(2 * e) + exp(2 * e) * (expm1(2 * s + e) + expm1(e) * exp(2 * s + e))
    phi = T(x.absQ[:, rows]) @ x.absK
    phi *= expm1(d_k * s + 2 * e) * exp(4 * e + 2 * s)
    phi = add_in_place(add_in_place(phi, abs(A), size), A, -(e + 3 * s))
    if seen is not None:
        phi = xp.where(seen, phi, 0.0)
    phi += (e + 3 * s) * L + s * abs(L) + ((2 + f.exp_error) * e + 2 * abs(x.gamma) * d_k * f.least_sum)
    off = p * phi
    r = (rowsum(off) + ((f.over_keys(m) + 8) * s + e)) * SERIES + m * f.least_weight
    r += (2 + f.log_error) * s * (abs(L) + (log(max(m, 1)) + 1)) + 2 * e
    phi += r
    most = float(xp.max(phi))
    phi *= p
    return TileWeights(P, times(P, R), R, p, phi, most, in_float32(live)) if most <= MOST_OFF else None


def tile_output(x: TiledHead, tile: TileWeights) -> tuple[Any, Any]:
    """O, and how far it may be off."""
    f, m = x.f, x.K.shape[1]
    O, step = T(x.V @ T(tile.PR)), f.stored + f.entries
    reach = as_factor(f, tile, (f.over_keys(m) + 8) * f.sums) @ T(x.absV) + underflow(f, m, x.absV) * tile.live
    return O, expm1(step) * in_float32(abs(O)) + exp(step) * reach


def tile_gradients(
    x: TiledHead, rows: slice, tile: TileWeights, O: Any, O_off: Any, back: list
) -> tuple[Any, Any]:
    """dQ, and how far it may be off; what these queries add to dK and dV, and to their bounds."""
    f, (d_v, n), m, dO, absdO = x.f, x.dO.shape, x.K.shape[1], T(x.dO[:, rows]), T(x.absdO[:, rows])
    e, s, xp = f.entries, f.sums, namespace(x.K)
    dP, D = times(dO @ x.V, tile.R), rowsum(dO * O)
    size = abs(in_float32(dP))  # of dP
    dP -= D
    g, D = abs(in_float32(dP)), abs(in_float32(D))  # of dP - D, and of D
    dA = dP
    dA *= tile.P
    dQ = x.gamma * T(x.K @ T(dA))
    back[0] += x.Q[:, rows] @ dA
    back[1] += T(dO) @ tile.PR
    # dP is off by inner times |dO| |V|^T and by once times its size; then D, then dP - D.
    once = e if tile.R is None else 3 * e
    inner, once, most = expm1(d_v * s) * exp(once), expm1(once), 1 + SERIES * tile.most
    off = absdO @ x.absV
    off = off if tile.R is None else off * in_float32(tile.R)
    steps = (m + 2) * s + e
    through, other = rowsum(tile.p * size), rowsum(tile.off * size)
    of_dP = inner * rowsum(tile.p * off) + once * through
    by_weights = expm1(steps) * through + exp(steps) * (SERIES * other + most * of_dP)
    steps = (d_v + 2) * s + e
    by_output = expm1(steps) * in_float32(rowsum(abs(dO * O))) + exp(steps) * rowsum(absdO * O_off)
    D_off = expm1(e) * D + exp(e) * xp.maximum(by_output, by_weights)
    off *= most * exp(2 * e) * inner
    off = add_in_place(off, size, most * (exp(2 * e) * once + expm1(2 * e)))
    off += most * (expm1(2 * e) * D + exp(2 * e) * D_off + 4 * f.least_entry)
    # Times the weights, and what they are off themselves; then dA as a factor of K, and of Q.
    off *= tile.p
    off = add_in_place(off, tile.off * g, SERIES)
    g *= tile.p
    by_m, by_n = ((k + 10) * s + (stores - 1) * f.stored for k, stores in ((m, x.stores_m), (n, x.stores_n)))
    by_product = (by + 2 * e + f.stored for by in (by_m, by_n))
    to_Q, to_K = (add_in_place(exp(step) * off, g, expm1(step)) for step in by_product)
    back[2] += x.absQ[:, rows] @ to_K
    back[3] += T(absdO) @ as_factor(f, tile, by_n)
    return dQ, abs(x.gamma) * (to_Q @ T(x.absK)) + underflow(f, m, x.absK) * (1 + abs(x.gamma)) * tile.live


def as_factor(f: Model, tile: TileWeights, steps: float) -> Any:
    """How far the weights may be off as factors of a product."""
    steps += f.stored + (0 if tile.R is None else 2 * f.entries)
    off = add_in_place((SERIES * exp(steps)) * tile.off, tile.p, expm1(steps))
    return off if tile.R is None else off * in_float32(tile.R)


def underflow(f: Model, k: int, *sizes: Any) -> float:
    """What underflow may cost in a sum of k terms."""
    largest = 1.0
    for x in sizes:
        largest *= 1 + float(x.max())
    return 8 * k * largest * max(f.least_sum, f.least_entry, f.least_stored)


def add_in_place(x: Any, y: Any, c: float) -> Any:
    """x + c y, in the place of x."""
    if is_torch_array(x):
        return x.add_(y, alpha=c)
    x += c * y
    return x


def in_float32(x: Any) -> Any:
    """In float32."""
    return namespace(x).astype(x, namespace(x).float32)
