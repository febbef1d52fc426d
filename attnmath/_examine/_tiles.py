"""A tile of queries: its part of the answer in float64, and how far that may be off in float32."""

from math import exp, expm1, log
from typing import Any, NamedTuple

from array_api_compat import is_torch_array

from attnmath._arrays import T, namespace, rowsum, times
from attnmath._roundoff import Model

LARGEST = 0.05  # how far an exponent may be off; then e^x - 1 is at most SERIES x
SERIES = expm1(LARGEST) / LARGEST


class Head(NamedTuple):
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


class Tile(NamedTuple):
    """The weights of some queries in float64; in float32, with how far their exponents may be off."""

    P: Any
    PR: Any
    R: Any
    p: Any
    off: Any  # p times how far the exponents may be off
    most: float  # the largest of those
    live: Any  # 1 for rows that are not empty, a column


def weights(x: Head, rows: slice, seen: Any, R: Any) -> Tile | None:
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
    L = low(xp.log(total) + top)
    A, p = low(A if seen is None else xp.where(seen, A, 0.0)), low(P)
    size = s + expm1(2 * e) + exp(2 * e) * (expm1(2 * s + e) + expm1(e) * exp(2 * s + e))
    phi = T(x.absQ[:, rows]) @ x.absK
    phi *= expm1(d_k * s + 2 * e) * exp(4 * e + 2 * s)
    phi = add(add(phi, abs(A), size), A, -(e + 3 * s))
    if seen is not None:
        phi = xp.where(seen, phi, 0.0)
    phi += (e + 3 * s) * L + s * abs(L) + (4 * e + 2 * abs(x.gamma) * d_k * f.least_sum)
    off = p * phi
    r = (rowsum(off) + ((m + 8) * s + e)) * SERIES + m * f.least_weight
    r += 4 * s * (abs(L) + (log(max(m, 1)) + 1)) + 2 * e
    phi += r
    most = float(xp.max(phi))
    phi *= p
    return Tile(P, times(P, R), R, p, phi, most, low(live)) if most <= LARGEST else None


def output(x: Head, tile: Tile) -> tuple[Any, Any]:
    """O, and how far it may be off."""
    f, m = x.f, x.K.shape[1]
    O, step = T(x.V @ T(tile.PR)), f.stored + f.entries
    reach = as_factor(f, tile, (m + 8) * f.sums) @ T(x.absV) + floor(f, m, x.absV) * tile.live
    return O, expm1(step) * low(abs(O)) + exp(step) * reach


def gradients(x: Head, rows: slice, tile: Tile, O: Any, O_off: Any, back: list) -> tuple[Any, Any]:
    """dQ, and how far it may be off; what these queries add to dK and dV, and to their bounds."""
    f, (d_v, n), m, dO, absdO = x.f, x.dO.shape, x.K.shape[1], T(x.dO[:, rows]), T(x.absdO[:, rows])
    e, s, xp = f.entries, f.sums, namespace(x.K)
    dP, D = times(dO @ x.V, tile.R), rowsum(dO * O)
    size = abs(low(dP))  # of dP
    dP -= D
    g, D = abs(low(dP)), abs(low(D))  # of dP - D, and of D
    dA = dP
    dA *= tile.P
    dQ = x.gamma * T(x.K @ T(dA))
    back[0] += x.Q[:, rows] @ dA
    back[1] += T(dO) @ tile.PR
    # dP is off by inner times |dO| |V|^T and by once times its size; then D, then dP - D.
    once = e if tile.R is None else 3 * e
    inner, once, most = expm1(d_v * s) * exp(once), expm1(once), 1 + SERIES * tile.most
    off = absdO @ x.absV
    off = off if tile.R is None else off * low(tile.R)
    steps = (m + 2) * s + e
    through, other = rowsum(tile.p * size), rowsum(tile.off * size)
    of_dP = inner * rowsum(tile.p * off) + once * through
    by_weights = expm1(steps) * through + exp(steps) * (SERIES * other + most * of_dP)
    steps = (d_v + 2) * s + e
    by_output = expm1(steps) * low(rowsum(abs(dO * O))) + exp(steps) * rowsum(absdO * O_off)
    D_off = expm1(e) * D + exp(e) * xp.maximum(by_output, by_weights)
    off *= most * exp(2 * e) * inner
    off = add(off, size, most * (exp(2 * e) * once + expm1(2 * e)))
    off += most * (expm1(2 * e) * D + exp(2 * e) * D_off + 4 * f.least_entry)
    # Times the weights, and what they are off themselves; then dA as a factor of K, and of Q.
    off *= tile.p
    off = add(off, tile.off * g, SERIES)
    g *= tile.p
    by_m, by_n = ((k + 10) * s + (stores - 1) * f.stored for k, stores in ((m, x.stores_m), (n, x.stores_n)))
    to_Q, to_K = (add(exp(by + 2 * e + f.stored) * off, g, expm1(by + 2 * e + f.stored)) for by in (by_m, by_n))
    back[2] += x.absQ[:, rows] @ to_K
    back[3] += T(absdO) @ as_factor(f, tile, by_n)
    return dQ, abs(x.gamma) * (to_Q @ T(x.absK)) + floor(f, m, x.absK) * (1 + abs(x.gamma)) * tile.live


def as_factor(f: Model, tile: Tile, steps: float) -> Any:
    """How far the weights may be off as factors of a product."""
    steps += f.stored + (0 if tile.R is None else 2 * f.entries)
    off = add((SERIES * exp(steps)) * tile.off, tile.p, expm1(steps))
    return off if tile.R is None else off * low(tile.R)


def floor(f: Model, k: int, *sizes: Any) -> float:
    """What underflow may cost in a sum of k terms."""
    largest = 1.0
    for x in sizes:
        largest *= 1 + float(x.max())
    return 8 * k * largest * max(f.least_sum, f.least_entry, f.least_stored)


def add(x: Any, y: Any, c: float) -> Any:
    """x + c y, in the place of x."""
    if is_torch_array(x):
        return x.add_(y, alpha=c)
    x += c * y
    return x


def low(x: Any) -> Any:
    """In float32."""
    return namespace(x).astype(x, namespace(x).float32)
