"""The double backward of one attention head, tile by tile."""

from collections.abc import Iterator

from attnmath._formulas.flash import forward_jvp
from attnmath._formulas.second import SecondGradients
from attnmath._given.checked import checked
from attnmath._given.letters import (
    Bias,
    Factors,
    Keys,
    Kind,
    Outputs,
    Queries,
    Scale,
    Tile,
    Values,
)
from attnmath._words.arrays import (
    Array,
    Scalar,
    T,
    exp,
    nonzero,
    plus,
    rowsum,
    shift,
    sum_to,
    times,
)
from attnmath._words.tiles import added, tiles


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
