"""A tile of queries: its part of the answer in float64, and how far that may be off in float32."""

from math import exp, expm1, log
from typing import Any, NamedTuple

from attnmath._arrays import T, namespace, rowsum, times
from attnmath._roundoff import Model

LARGEST = 0.05  # how far an exponent may be off; then e^x - 1 is at most SERIES x
SERIES = expm1(LARGEST) / LARGEST


class Head(NamedTuple):
    """One head of queries in float64, the sizes of its numbers in float32, and what it may round."""

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


class Tile(NamedTuple):
    """The weights of some queries in float64; in float32, with how far their exponents may be off."""

    P: Any
    PR: Any
    R: Any
    p: Any
    phi: Any
    most: float  # the largest of phi
    live: Any  # 1 for rows that are not empty, a column


def weights(x: Head, rows: slice, seen: Any, R: Any) -> Tile | None:
    """The weights, and how far their exponents may be off: eta, then with the sum of the row."""
    f, xp, (m, d_k) = x.f, namespace(x.K), x.K.shape
    e, s = f.entries, f.sums
    A = x.Q[rows] @ T(x.K)
    if seen is not None:
        A = xp.where(seen, A, -xp.inf)
    top = xp.max(A, axis=-1, keepdims=True)
    live = top > -xp.inf
    top = xp.where(live, top, 0.0)
    P = xp.exp(A - top)
    total = xp.where(live, rowsum(P), 1.0)
    P /= total
    L = _low(xp.log(total) + top)
    A = _low(A if seen is None else xp.where(seen, A, 0.0))
    by_score = s + expm1(2 * e) + exp(2 * e) * (expm1(2 * s + e) + expm1(e) * exp(2 * s + e))
    phi = x.absQ[rows] @ T(x.absK)
    phi *= expm1(d_k * s + 2 * e) * exp(4 * e + 2 * s)
    phi += by_score * abs(A)
    A *= e + 3 * s
    phi -= A
    if seen is not None:
        phi = xp.where(seen, phi, 0.0)
    phi += (e + 3 * s) * L + s * abs(L) + (4 * e + 2 * abs(x.gamma) * d_k * f.least_sum)
    p = _low(P)
    r = (rowsum(p * phi) + ((m + 8) * s + e)) * SERIES + m * f.least_weight
    phi += r + 4 * s * (abs(L) + (log(max(m, 1)) + 1)) + 2 * e
    most = float(xp.max(phi))
    return Tile(P, times(P, R), R, p, phi, most, _low(live)) if most <= LARGEST else None


def output(x: Head, tile: Tile) -> tuple[Any, Any]:
    """O, and how far it may be off."""
    f, m = x.f, x.K.shape[0]
    O, step = tile.PR @ x.V, f.stored + f.entries
    reach = _as_factor(f, tile, (m + 8) * f.sums) @ x.absV + floor(f, m, x.absV) * tile.live
    return O, expm1(step) * _low(abs(O)) + exp(step) * reach


def gradients(x: Head, rows: slice, tile: Tile, O: Any, O_off: Any, back: list) -> tuple[Any, Any]:
    """dQ, and how far it may be off; what these queries add to dK and dV, and to their bounds."""
    f, (n, d_v), m, dO, absdO = x.f, x.dO.shape, x.K.shape[0], x.dO[rows], x.absdO[rows]
    e, s, xp = f.entries, f.sums, namespace(x.K)
    dP, D = times(dO @ T(x.V), tile.R), rowsum(dO * O)
    size = abs(_low(dP))  # of dP
    dP -= D
    g, D = abs(_low(dP)), abs(_low(D))  # of dP - D, and of D
    dA = dP
    dA *= tile.P
    dQ = x.gamma * (dA @ x.K)
    back[0] += T(x.Q[rows]) @ dA
    back[1] += T(dO) @ tile.PR
    # How far dP may be off, then D, then dP - D.
    once = e if tile.R is None else 3 * e
    most = 1 + SERIES * tile.most
    off = absdO @ T(x.absV)
    off *= expm1(d_v * s) * exp(once)
    off = off if tile.R is None else off * _low(tile.R)
    off += expm1(once) * size
    through = tile.p * size
    steps = (m + 2) * s + e
    by_weights = expm1(steps) * rowsum(through)
    through *= tile.phi
    by_weights += exp(steps) * (SERIES * rowsum(through) + most * rowsum(tile.p * off))
    steps = (d_v + 2) * s + e
    by_output = expm1(steps) * _low(rowsum(abs(dO * O))) + exp(steps) * rowsum(absdO * O_off)
    D_off = expm1(e) * D + exp(e) * xp.maximum(by_output, by_weights)
    size *= most * expm1(2 * e)
    off *= most * exp(2 * e)
    off += size
    off += most * (expm1(2 * e) * D + exp(2 * e) * D_off + 4 * f.least_entry)
    # The weights' part of dA, and both as factors of K and of Q.
    off += SERIES * tile.phi * g
    off *= tile.p
    g *= tile.p
    by_m, by_n = ((k + 10) * s + (stores - 1) * f.stored for k, stores in ((m, x.stores_m), (n, x.stores_n)))
    to_Q = _both(g, off, by_m + 2 * e + f.stored)
    back[2] += T(x.absQ[rows]) @ (to_Q if by_m == by_n else _both(g, off, by_n + 2 * e + f.stored))
    back[3] += T(absdO) @ _as_factor(f, tile, by_n)
    return dQ, abs(x.gamma) * (to_Q @ x.absK) + floor(f, m, x.absK) * (1 + abs(x.gamma)) * tile.live


def _both(x: Any, off: Any, steps: float) -> Any:
    return expm1(steps) * x + exp(steps) * off


def _as_factor(f: Model, tile: Tile, steps: float) -> Any:
    """How far the weights may be off as factors of a product."""
    steps += f.stored + (0 if tile.R is None else 2 * f.entries)
    off = (SERIES * exp(steps)) * tile.phi
    off += expm1(steps)
    off *= tile.p
    return off if tile.R is None else off * _low(tile.R)


def floor(f: Model, k: int, *sizes: Any) -> float:
    """What underflow may cost in a sum of k terms."""
    largest = 1.0
    for x in sizes:
        largest *= 1 + float(x.max())
    return 8 * k * largest * max(f.least_sum, f.least_entry, f.least_stored)


def _low(x: Any) -> Any:
    """In float32."""
    return namespace(x).astype(x, namespace(x).float32)
