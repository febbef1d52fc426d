"""One tile of the scores in Triton: what is read, capped, added, hidden and dropped there.

A tile lies as (rows, keys) or as (keys, rows): i and j are the places of its queries and of
its keys as a column and a row, or the other way round. The letters are those of strips.py.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
PRECISE = tl.constexpr("ieee")  # products of float32 in float32, not in TF32
LEAST = tl.constexpr(-3.4028234663852886e38)  # the least float32


class Inputs(NamedTuple):
    """The tensors of a call or None; slopes and sinks (H) in float32."""

    Q: Any = None
    K: Any = None
    V: Any = None
    dO: Any = None
    Q_dot: Any = None
    K_dot: Any = None
    V_dot: Any = None
    dO_dot: Any = None
    B: Any = None
    B_dot: Any = None
    slopes: Any = None
    sinks: Any = None
    slopes_dot: Any = None
    sinks_dot: Any = None


class Steps(NamedTuple):
    """From one row of a tensor to the next, and for B from one key to the next."""

    Q: int
    K: int
    V: int
    dO: int
    Q_dot: int
    K_dot: int
    V_dot: int
    dO_dot: int
    B: int
    B_dot: int
    B_key: int
    B_dot_key: int


class Constants(NamedTuple):
    """What stands beside the tensors: queries, keys, heads H, and their size n H.

    places (11, H): where each head begins in each tensor, and its number for dropout.
    Row i sees the keys from i + first to i + last. least: of the words that keep, read as
    signed; lift = 1 / (1 - rate); row and key: the places of the first query and key.
    """

    n: int
    m: int
    heads: int
    size: int
    places: Any
    scale: float
    cap: float | None
    first: int | None
    last: int | None
    seed: Any
    least: int
    lift: float
    row: int
    key: int


@triton.jit
def matrix(x, place: tl.constexpr, step, h, i, n, c, d: tl.constexpr, D: tl.constexpr):
    """Rows i of head h of a tensor, (len(i), D): 0 beyond its n rows and d columns; None of None."""
    out = None
    if x is not None:
        k = tl.arange(0, D)
        inside = (i < n)[:, None]
        if d < D:
            inside = inside & (k < d)[None, :]
        start = x + tl.load(c.places + place * c.heads + h)
        out = tl.load(start + i[:, None] * step + k[None, :], mask=inside, other=0.0)
    return out


@triton.jit
def times(a, b, total=None):
    """a b + total, in float32."""
    if INTERPRETED:  # the interpreter multiplies the bits of bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISE)


@triton.jit
def tangent_of_product(a, b, a_dot, b_dot):
    """a_dot b^T + a b_dot^T, where None is 0; None if both are."""
    out = None
    if a_dot is not None and b is not None:
        out = times(a_dot, tl.trans(b))
    if a is not None and b_dot is not None:
        out = times(a, tl.trans(b_dot), out)
    return out


@triton.jit
def tanh(x):
    """By a polynomial near 0, where 1 - 2 / (e^2x + 1) has lost its digits."""
    y = x * x
    near = -5.70498872745e-3
    near = near * y + 2.06390887954e-2
    near = near * y - 5.37397155531e-2
    near = near * y + 1.33314422036e-1
    near = near * y - 3.33332819422e-1
    size = tl.abs(x)
    far = 1 - 2 / (tl.exp(2 * size) + 1)
    return tl.where(size < 0.625, x + x * y * near, tl.where(x < 0, -far, far))


@triton.jit
def distance(i, j, c):
    """How far each key is from where the query stands, the last query at the last key."""
    return tl.abs(j - i - (c.m - c.n)).to(tl.float32)


@triton.jit
def seen(i, j, c):
    """Whether a query sees a key, as far as their places say."""
    found = (i < c.n) & (j < c.m)
    if c.first is not None:
        found = found & (j >= i + c.first)
    if c.last is not None:
        found = found & (j <= i + c.last)
    return found


@triton.jit
def part(B, place: tl.constexpr, h, i, j, step, step_key, c):
    """What B says about the tile."""
    start = B + tl.load(c.places + place * c.heads + h)
    return tl.load(start + i * step + j * step_key, mask=(i < c.n) & (j < c.m), other=0)


@triton.jit
def scores(X, h, i, j, x, step, c):
    """cap(X) - slope distance + B, and -inf where a key is not seen; with the tanh of the cap, None without."""
    A, T = X, None
    if c.cap is not None:
        T = tanh(X / c.cap)
        A = c.cap * T
    if x.slopes is not None:
        A -= tl.load(x.slopes + h) * distance(i, j, c)
    may = seen(i, j, c)
    if x.B is not None:
        B = part(x.B, 8, h, i, j, step.B, step.B_key, c)
        if B.dtype == tl.uint8:
            may = may & (B != 0)
        else:
            A += B.to(tl.float32)
    return tl.where(may, A, float("-inf")), T


@triton.jit
def tangent_of_scores(X_dot, T, h, i, j, x, step, c):
    """The tangent of the scores, where X_dot is that of what is capped; None if nothing moves."""
    A_dot = X_dot
    if X_dot is not None and T is not None:
        A_dot = X_dot * (1 - T * T)
    if x.slopes_dot is not None:
        of_slopes = -tl.load(x.slopes_dot + h) * distance(i, j, c)
        A_dot = of_slopes if A_dot is None else A_dot + of_slopes
    if x.B_dot is not None:
        of_B = part(x.B_dot, 9, h, i, j, step.B_dot, step.B_dot_key, c).to(tl.float32)
        A_dot = of_B if A_dot is None else A_dot + of_B
    return A_dot


@triton.jit
def moving_scores(a, b, a_dot, b_dot, h, i, j, x, step, c):
    """The scores of a tile, scale a b^T before the cap, and their tangents.  -> A, T, X_dot, A_dot"""
    A, T = scores(c.scale * times(a, tl.trans(b)), h, i, j, x, step, c)
    X_dot = tangent_of_product(a, b, a_dot, b_dot)
    if X_dot is None:
        X_dot, _ = None, None  # the compiler takes no other None into a tuple
    else:
        X_dot = c.scale * X_dot
    A_dot = tangent_of_scores(X_dot, T, h, i, j, x, step, c)
    if A_dot is None:
        A_dot, _ = None, None
    return A, T, X_dot, A_dot


@triton.jit
def factors(h, i, j, c):
    """The factors of dropout of a tile, from the counters of philox.py; None without dropout."""
    R = None
    if c.seed is not None:
        seed = tl.load(c.seed)
        k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
        head = tl.load(c.places + 10 * c.heads + h)
        row = i.to(tl.int64) + c.row
        c1 = (row >> 3).to(tl.uint32) + 0 * j.to(tl.uint32)
        c3 = (j.to(tl.int64) + c.key).to(tl.uint32) + 0 * i.to(tl.uint32)
        c0, c2 = 0 * c1 + head.to(tl.uint32), 0 * c1 + (head >> 32).to(tl.uint32)
        for _ in tl.static_range(10):
            high0, high2 = tl.umulhi(c0, 0 * c0 + 0xD2511F53), tl.umulhi(c2, 0 * c2 + 0xCD9E8D57)
            low0, low2 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
            c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
            k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
        w = (row & 3).to(tl.int32)
        word = tl.where(w == 0, c0, tl.where(w == 1, c1, tl.where(w == 2, c2, c3)))
        word = tl.where((row & 4) != 0, (word >> 16) | (word << 16), word)
        R = tl.where(word.to(tl.int32, bitcast=True) >= c.least, c.lift, 0.0)
    return R


@triton.jit
def dropped(x, R):
    """x times the factors of dropout; None of None."""
    if x is not None and R is not None:
        x = x * R
    return x


@triton.jit
def keys_from(i0, c, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Where the keys begin and end that a block of rows may see, the beginning at a whole tile."""
    start, stop = 0 * i0, c.m + 0 * i0
    if c.first is not None:
        start = tl.maximum(i0 + c.first, 0) // KEYS * KEYS
    if c.last is not None:
        stop = tl.minimum(i0 + ROWS + c.last, c.m)
    return start, stop


@triton.jit
def rows_from(j0, c, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Where the rows begin and end that may see a block of keys, the beginning at a whole tile."""
    start, stop = 0 * j0, c.n + 0 * j0
    if c.last is not None:
        start = tl.maximum(j0 - c.last, 0) // ROWS * ROWS
    if c.first is not None:
        stop = tl.minimum(j0 + KEYS - c.first, c.n)
    return start, stop
