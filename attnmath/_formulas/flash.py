"""One attention head tile by tile: all its scores are never there at once."""

from collections.abc import Iterator
from typing import Literal, overload

from attnmath._formulas.attention import AttentionGradients
from attnmath._formulas.merge import FlashOutput, FlashTangents
from attnmath._formulas.second import SecondGradients
from attnmath._given.checked import checked
from attnmath._given.letters import Bias, Factors, Keys, Kind, Outputs, PerQuery, Queries, Scale, Tile, Values
from attnmath._words.arrays import (
    Array,
    Scalar,
    T,
    column,
    exp,
    finite,
    log,
    nonzero,
    plus,
    rowsum,
    shift,
    sum_to,
    times,
)
from attnmath._words.tiles import added, fold, larger, peak, per_row, strips, tiles, together


@overload
def flash_attention(
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None, tile: Tile = (64, 64), with_L: Literal[True],
) -> FlashOutput[Kind]: ...
@overload
def flash_attention(
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None, tile: Tile = (64, 64),
    with_L: Literal[False] = False,
) -> Outputs[Kind]: ...
@checked
def flash_attention(
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None, tile: Tile = (64, 64), with_L: bool = False,
) -> Outputs[Kind] | FlashOutput[Kind]:
    """The output of a head, from one tile of its scores after the other.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma (),
    R (..., n, m) -> O (..., n, d_v); with_L: O, L (..., n)

    The same as attention, and as dropout_attention with its R. No array is larger than
    the arguments and the results or than one tile, so many queries by so many keys, for
    each entry of the leading axes. Conditions and errors as for attention_map.
    Derived in chapters/flash.md, eq:flash_attention.
    """
    c, s, N = forward(tile, (Q,), (K, V), (B, gamma, R))
    L = per_row(log(s) + finite(c), N)
    O = N / nonzero(s)
    return FlashOutput(O, L) if with_L else O


@checked
def flash_attention_vjp(
    dO: Outputs[Kind],
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, dL: PerQuery[Kind] | None = None, R: Factors[Kind] | None = None,
    tile: Tile = (64, 64),
) -> AttentionGradients[Kind]:
    """The gradients of the loss in all inputs of a head, from one tile after the other.

    dO (..., n, d_v), Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m),
    gamma (), dL (..., n), R (..., n, m) -> dQ, dK, dV, dB, dgamma

    dL is the gradient in the log-sum-exp, if the loss depends on it; None is zero. The
    rest as for flash_attention and attention_vjp.
    Derived in chapters/flash.md, eq:flash_attention_vjp.
    """
    c, s, N = forward(tile, (Q,), (K, V), (B, gamma, R))
    D = rowsum(dO * N / nonzero(s))
    D = D if dL is None else D - column(dL)
    parts = (_vjp(*x) for x in tiles(tile, (Q, dO, c, s, D), (K, V), (B, gamma, R)))
    return AttentionGradients(*added(parts, tile, (Q,), (K, V), (B, gamma)))


@overload
def flash_attention_jvp(
    Q_dot: Queries[Kind] | None, K_dot: Keys[Kind] | None,
    V_dot: Values[Kind] | None, B_dot: Bias[Kind] | None, gamma_dot: Scale | None,
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None, tile: Tile = (64, 64), with_L: Literal[True],
) -> FlashTangents[Kind]: ...
@overload
def flash_attention_jvp(
    Q_dot: Queries[Kind] | None, K_dot: Keys[Kind] | None,
    V_dot: Values[Kind] | None, B_dot: Bias[Kind] | None, gamma_dot: Scale | None,
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None, tile: Tile = (64, 64),
    with_L: Literal[False] = False,
) -> Outputs[Kind]: ...
@checked
def flash_attention_jvp(
    Q_dot: Queries[Kind] | None, K_dot: Keys[Kind] | None,
    V_dot: Values[Kind] | None, B_dot: Bias[Kind] | None, gamma_dot: Scale | None,
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None, tile: Tile = (64, 64), with_L: bool = False,
) -> Outputs[Kind] | FlashTangents[Kind]:
    """The tangent of the output of a head, in one pass over the tiles.

    Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), B_dot (..., n, m),
    gamma_dot (), then the arguments of flash_attention -> O_dot (..., n, d_v);
    with_L: O_dot, L_dot (..., n)

    A tangent has the shape of its argument; None is zero. L_dot is 0 for a row that is
    -inf everywhere. The rest as for flash_attention.
    Derived in chapters/flash.md, eq:flash_attention_jvp.
    """
    pairs = B, gamma, R, B_dot, gamma_dot
    c, s, N, M, U = forward_jvp(tile, (Q, Q_dot), (K, V, K_dot, V_dot), pairs)
    L_dot = M / nonzero(s)
    O_dot = (U - L_dot * N) / nonzero(s)
    return FlashTangents(O_dot, per_row(L_dot, N)) if with_L else O_dot


@checked
def flash_attention_vjp_vjp(
    Q_dot: Queries[Kind] | None, K_dot: Keys[Kind] | None,
    V_dot: Values[Kind] | None, B_dot: Bias[Kind] | None, gamma_dot: Scale | None,
    dO: Outputs[Kind],
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None, tile: Tile = (64, 64),
) -> SecondGradients[Kind]:
    """The double backward in two passes over the tiles, of tangents and of gradients.

    Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), B_dot (..., n, m),
    gamma_dot (), then the arguments of flash_attention_vjp
    -> O_dot, dQ_dot, dK_dot, dV_dot, dB_dot, dgamma_dot

    What arrives for dQ acts as a tangent of Q, and so on; None is zero. Each result has
    the shape of its argument. The same as attention_vjp_vjp, in the memory of
    flash_attention.
    Derived in chapters/flash.md, eq:flash_attention_vjp_vjp.
    """
    keys, pairs = (K, V, K_dot, V_dot), (B, gamma, R, B_dot, gamma_dot)
    c, s, N, M, U = forward_jvp(tile, (Q, Q_dot), keys, pairs)
    mu = M / nonzero(s)
    O_dot = (U - mu * N) / nonzero(s)
    D = rowsum(dO * N / nonzero(s))
    D_dot = rowsum(dO * O_dot)
    rows = Q, Q_dot, dO, c, s, mu, D, D_dot
    parts = (_vjp_dot(*x) for x in tiles(tile, rows, keys, pairs))
    return SecondGradients(O_dot, *added(parts, tile, (Q,), (K, V), (B, gamma)))


def forward(tile: tuple, rows: tuple, keys: tuple, pairs: tuple) -> tuple:
    """Of each query the largest score c, the sum s of weights, the sum N of values."""
    return together(
        fold(united, (_sums(*x) for x in strip))
        for strip in strips(tile, rows, keys, pairs)
    )


def forward_jvp(tile: tuple, rows: tuple, keys: tuple, pairs: tuple) -> tuple:
    """The same, and the sums M and U that the tangents are made of."""
    return together(
        fold(united, (_sums_jvp(*x) for x in strip))
        for strip in strips(tile, rows, keys, pairs)
    )


def united(x: tuple, y: tuple) -> tuple:
    """Sums of the same queries over other keys, each with its largest score, joined."""
    c = larger(x[0], y[0])
    u = exp(shift(x[0], c))
    w = exp(shift(y[0], c))
    return c, *(u * a + w * b for a, b in zip(x[1:], y[1:]))


def _sums(
    Q: Array, K: Array, V: Array, B: Array | None, gamma: Scalar, R: Array | None
) -> tuple:
    """The largest score of each query in a tile, the sums of weights and of values."""
    A = plus(gamma * (Q @ T(K)), B)
    c = peak(A)
    E = exp(shift(A, c))
    return c, rowsum(E), times(E, R) @ V


def _sums_jvp(
    Q: Array, Q_dot: Array, K: Array, V: Array, K_dot: Array, V_dot: Array,
    B: Array | None, gamma: Scalar, R: Array | None,
    B_dot: Array | int, gamma_dot: Scalar,
) -> tuple:
    """The same, and the sums that the tangents are made of."""
    A = plus(gamma * (Q @ T(K)), B)
    A_dot = gamma * (Q_dot @ T(K) + Q @ T(K_dot)) + gamma_dot * (Q @ T(K)) + B_dot
    c = peak(A)
    E = exp(shift(A, c))
    F = E * A_dot
    U = times(F, R) @ V + times(E, R) @ V_dot
    return c, rowsum(E), times(E, R) @ V, rowsum(F), U


def _vjp(
    Q: Array, dO: Array, c: Array, s: Array, D: Array,
    K: Array, V: Array, B: Array | None, gamma: Scalar, R: Array | None,
) -> Iterator:
    """What a tile adds to each gradient."""
    A = plus(gamma * (Q @ T(K)), B)
    P = exp(shift(A, c)) / nonzero(s)
    dV = T(times(P, R)) @ dO
    dP = times(dO @ T(V), R)
    dA = P * (dP - D)
    dQ = gamma * dA @ K
    dK = T(gamma * dA) @ Q
    dgamma = dA * (Q @ T(K))
    found = dQ, dK, dV, dA, dgamma
    return map(sum_to, found, (Q, K, V, B, gamma))


def _vjp_dot(
    Q: Array, Q_dot: Array, dO: Array,
    c: Array, s: Array, mu: Array, D: Array, D_dot: Array,
    K: Array, V: Array, K_dot: Array, V_dot: Array,
    B: Array | None, gamma: Scalar, R: Array | None,
    B_dot: Array | int, gamma_dot: Scalar,
) -> Iterator:
    """What a tile adds to the tangent of each gradient."""
    S, S_dot = Q @ T(K), Q_dot @ T(K) + Q @ T(K_dot)
    P = exp(shift(plus(gamma * S, B), c)) / nonzero(s)
    P_dot = P * (gamma * S_dot + gamma_dot * S + B_dot - mu)
    dP, dP_dot = times(dO @ T(V), R), times(dO @ T(V_dot), R)
    dA, dA_dot = P * (dP - D), P_dot * (dP - D) + P * (dP_dot - D_dot)
    dQ_dot = (gamma * dA_dot + gamma_dot * dA) @ K + gamma * dA @ K_dot
    dK_dot = T(gamma * dA_dot + gamma_dot * dA) @ Q + T(gamma * dA) @ Q_dot
    dV_dot = T(times(P_dot, R)) @ dO
    dgamma_dot = dA_dot * S + dA * S_dot
    found = dQ_dot, dK_dot, dV_dot, dA_dot, dgamma_dot
    return map(sum_to, found, (Q, K, V, B, gamma))
