"""Attention as kernels compute it: tiles, loops, running sums; one head, one program for each pass.

A program has two loops. By rows, it holds a tile of queries and walks along their keys; by columns it holds
a tile of keys and walks along the queries that see them. x[I] loads rows, x[I] = y stores them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attnmath._words.arrays import Array, T, exp, finite, log, namespace, nonzero, real, rowsum, shift, times
from attnmath._words.tiles import cuts, larger, peak
from attnmath.book.counting import Slow, result, sums


class Plan(NamedTuple):
    """What all programs of a head have in common.

    gamma: the scale; tile: so many queries by so many keys. Query i sees the keys from i + first to
    i + last, None for no end. R(I, J): the factors of dropout of a tile, None without. order: in
    which order a loop takes its tiles.
    """

    gamma: float
    tile: tuple[int, int]
    first: int | None = None
    last: int | None = None
    R: Callable[[slice, slice], Array] | None = None
    order: Callable[[list], list] = list

    def rows(self, Q: Array, J: slice | None = None) -> list[slice]:
        """The tiles of queries, those that see a key in J."""
        return self.order([I for I in cuts(Q.shape[0], self.tile[0]) if J is None or self.sees(I, J)])

    def columns(self, K: Array, I: slice | None = None) -> list[slice]:
        """The tiles of keys, those that a query in I sees."""
        return self.order([J for J in cuts(K.shape[0], self.tile[1]) if I is None or self.sees(I, J)])

    def sees(self, I: slice, J: slice) -> bool:
        """Whether a query in I sees a key in J."""
        least, most = J.start - I.stop + 1, J.stop - 1 - I.start
        return (self.last is None or least <= self.last) and (self.first is None or most >= self.first)

    def scores(self, q: Array, k: Array, I: slice, J: slice) -> Array:
        """The scores of a tile, -inf where a query does not see a key."""
        A = self.gamma * (q @ T(k))
        if self.first is None and self.last is None:
            return A
        ahead = np.arange(J.start, J.stop) - np.arange(I.start, I.stop)[:, None]
        hidden = np.zeros(ahead.shape, dtype=bool)
        if self.last is not None:
            hidden |= ahead > self.last
        if self.first is not None:
            hidden |= ahead < self.first
        return namespace(A).where(hidden, -np.inf, A) if hidden.any() else A

    def rates(self, q: Array, q_dot: Array, k: Array, k_dot: Array) -> Array:
        """How fast the scores of a tile move."""
        return self.gamma * (q_dot @ T(k) + q @ T(k_dot))

    def factors(self, I: slice, J: slice) -> Array | None:
        """The factors of dropout of a tile, made from its place."""
        return None if self.R is None else self.R(I, J)


# ---- forward, and along a tangent --------------------------------------------------------------------


def forward(Q: Array, K: Array, V: Array, plan: Plan) -> tuple[Array, Array]:
    """By rows: the output O (n, d_v) and the log-sum-exp L (n, 1)."""
    n, d_v = Q.shape[0], V.shape[1]
    O, L = result(Q, n, d_v), result(Q, n, 1, is_statistic=True)
    for I in plan.rows(Q):
        q = Q[I]
        c, s, N = sums(q, 1, 1, d_v)
        c = real(c) - np.inf
        for J in plan.columns(K, I):
            k, v, R = K[J], V[J], plan.factors(I, J)
            A = plan.scores(q, k, I, J)
            before, c = c, larger(c, peak(A))
            past, E = exp(shift(before, c)), exp(shift(A, c))
            s = past * s + rowsum(E)
            N = past * N + times(E, R) @ v
        O[I] = N / nonzero(s)
        L[I] = log(s) + finite(c)
    return O, L


def jvp(Q_dot: Array, K_dot: Array, V_dot: Array, Q: Array, K: Array, V: Array, plan: Plan) -> tuple:
    """By rows: O, L and their tangents O_dot, L_dot; every sum is brought to the new largest score."""
    n, d_v = Q.shape[0], V.shape[1]
    O, O_dot = result(Q, n, d_v), result(Q, n, d_v)
    L, L_dot = (result(Q, n, 1, is_statistic=True) for _ in range(2))
    for I in plan.rows(Q):
        q, q_dot = Q[I], Q_dot[I]
        c, s, M, N, U = sums(q, 1, 1, 1, d_v, d_v)
        c = real(c) - np.inf
        for J in plan.columns(K, I):
            k, v, k_dot, v_dot, R = K[J], V[J], K_dot[J], V_dot[J], plan.factors(I, J)
            A, A_dot = plan.scores(q, k, I, J), plan.rates(q, q_dot, k, k_dot)
            before, c = c, larger(c, peak(A))
            past, E = exp(shift(before, c)), exp(shift(A, c))
            F = E * A_dot
            s = past * s + rowsum(E)
            M = past * M + rowsum(F)
            N = past * N + times(E, R) @ v
            U = past * U + times(F, R) @ v + times(E, R) @ v_dot
        O[I] = N / nonzero(s)
        L[I] = log(s) + finite(c)
        L_dot[I] = M / nonzero(s)
        O_dot[I] = (U - M / nonzero(s) * N) / nonzero(s)
    return O, L, O_dot, L_dot


def jvp_kept(Q_dot: Array, K_dot: Array, V_dot: Array, Q: Array, K: Array, V: Array,
             O: Array, L: Array, plan: Plan) -> tuple[Array, Array]:
    """By rows, where O and L were kept: O_dot, L_dot; no sum has to be rescaled."""
    n, d_v = Q.shape[0], V.shape[1]
    O_dot, L_dot = result(Q, n, d_v), result(Q, n, 1, is_statistic=True)
    for I in plan.rows(Q):
        q, q_dot, l = Q[I], Q_dot[I], L[I]
        mu, U = sums(q, 1, d_v)
        for J in plan.columns(K, I):
            k, v, k_dot, v_dot, R = K[J], V[J], K_dot[J], V_dot[J], plan.factors(I, J)
            P = exp(shift(plan.scores(q, k, I, J), l))
            F = P * plan.rates(q, q_dot, k, k_dot)
            mu = mu + rowsum(F)
            U = U + times(F, R) @ v + times(P, R) @ v_dot
        L_dot[I] = mu
        O_dot[I] = U - mu * O[I]
    return O_dot, L_dot


# ---- backward ----------------------------------------------------------------------------------------


def row_products(dO: Array, O: Array, plan: Plan) -> Array:
    """D (n, 1): each row of dO times that of O; with O_dot for O it is D_dot."""
    D = result(dO, dO.shape[0], 1, is_statistic=True)
    for I in plan.rows(dO):
        D[I] = rowsum(dO[I] * O[I])
    return D


def back(q: Array, k: Array, do: Array, v: Array, l: Array, D: Array, plan: Plan, I: slice, J: slice) -> tuple:
    """Of a tile: the weights with dropout, and the gradient of the scores."""
    P, R = exp(shift(plan.scores(q, k, I, J), l)), plan.factors(I, J)
    dP = times(do @ T(v), R)
    return times(P, R), P * (dP - D)


def backward_by_rows(dO: Array, Q: Array, K: Array, V: Array, L: Array, D: Array, plan: Plan) -> Array:
    """dQ (n, d_k)."""
    dQ = result(Q, *Q.shape)
    for I in plan.rows(Q):
        q, do, l, d = Q[I], dO[I], L[I], D[I]
        (dq,) = sums(q, Q.shape[1])
        for J in plan.columns(K, I):
            k, v = K[J], V[J]
            _, dA = back(q, k, do, v, l, d, plan, I, J)
            dq = dq + dA @ k
        dQ[I] = plan.gamma * dq
    return dQ


def backward_by_columns(dO: Array, Q: Array, K: Array, V: Array, L: Array, D: Array, plan: Plan,
                        dQ: Array | None = None) -> tuple[Array, Array]:
    """dK (m, d_k) and dV (m, d_v); to dQ, if there is one, each tile adds its part."""
    dK, dV = result(K, *K.shape), result(V, *V.shape)
    for J in plan.columns(K):
        k, v = K[J], V[J]
        dk, dv = sums(k, K.shape[1], V.shape[1])
        for I in plan.rows(Q, J):
            q, do, l, d = Q[I], dO[I], L[I], D[I]
            PR, dA = back(q, k, do, v, l, d, plan, I, J)
            dv = dv + T(PR) @ do
            dk = dk + T(dA) @ q
            if dQ is not None:
                dQ[I] += plan.gamma * (dA @ k)
        dK[J] = plan.gamma * dk
        dV[J] = dv
    return dK, dV


# ---- double backward ---------------------------------------------------------------------------------


class Rows(NamedTuple):
    """What a tile has to be told of its queries: tiles in fast memory, or whole arrays in slow memory."""

    Q: Any
    Q_dot: Any
    dO: Any
    L: Any
    L_dot: Any
    D: Any
    D_dot: Any

    def at(self, I: slice) -> "Rows":
        return Rows(*(x[I] for x in self))


class Keys(NamedTuple):
    """And of its keys."""

    K: Any
    V: Any
    K_dot: Any
    V_dot: Any

    def at(self, J: slice) -> "Keys":
        return Keys(*(x[J] for x in self))


def back_dot(r: Rows, t: Keys, plan: Plan, I: slice, J: slice) -> tuple:
    """Of a tile: the tangent of the weights with dropout, the gradient of the scores, and its tangent."""
    P, R = exp(shift(plan.scores(r.Q, t.K, I, J), r.L)), plan.factors(I, J)
    P_dot = P * (plan.rates(r.Q, r.Q_dot, t.K, t.K_dot) - r.L_dot)
    dP, dP_dot = times(r.dO @ T(t.V), R), times(r.dO @ T(t.V_dot), R)
    dA = P * (dP - r.D)
    dA_dot = P_dot * (dP - r.D) + P * (dP_dot - r.D_dot)
    return times(P_dot, R), dA, dA_dot


def second_by_rows(rows: Rows, keys: Keys, plan: Plan) -> Array:
    """dQ_dot (n, d_k)."""
    dQ_dot = result(rows.Q, *rows.Q.shape)
    for I in plan.rows(rows.Q):
        r = rows.at(I)
        (dq_dot,) = sums(r.Q, r.Q.shape[1])
        for J in plan.columns(keys.K, I):
            t = keys.at(J)
            _, dA, dA_dot = back_dot(r, t, plan, I, J)
            dq_dot = dq_dot + dA_dot @ t.K + dA @ t.K_dot
        dQ_dot[I] = plan.gamma * dq_dot
    return dQ_dot


def second_by_columns(rows: Rows, keys: Keys, plan: Plan, dQ_dot: Array | None = None) -> tuple[Array, Array]:
    """dK_dot (m, d_k) and dV_dot (m, d_v); to dQ_dot, if there is one, each tile adds its part."""
    dK_dot, dV_dot = result(keys.K, *keys.K.shape), result(keys.V, *keys.V.shape)
    for J in plan.columns(keys.K):
        t = keys.at(J)
        dk_dot, dv_dot = sums(t.K, t.K.shape[1], t.V.shape[1])
        for I in plan.rows(rows.Q, J):
            r = rows.at(I)
            PR_dot, dA, dA_dot = back_dot(r, t, plan, I, J)
            dv_dot = dv_dot + T(PR_dot) @ r.dO
            dk_dot = dk_dot + T(dA_dot) @ r.Q + T(dA) @ r.Q_dot
            if dQ_dot is not None:
                dQ_dot[I] += plan.gamma * (dA_dot @ t.K + dA @ t.K_dot)
        dK_dot[J] = plan.gamma * dk_dot
        dV_dot[J] = dv_dot
    return dK_dot, dV_dot


# ---- whole passes ------------------------------------------------------------------------------------


def backward(dO: Array, Q: Array, K: Array, V: Array, O: Array, L: Array, plan: Plan,
             *, with_atomics: bool = False) -> tuple[Array, Array, Array]:
    """dQ, dK, dV, from what the forward pass has kept."""
    D = row_products(dO, O, plan)
    if with_atomics:
        dQ = zeros(Q)
        return dQ, *backward_by_columns(dO, Q, K, V, L, D, plan, dQ)
    return backward_by_rows(dO, Q, K, V, L, D, plan), *backward_by_columns(dO, Q, K, V, L, D, plan)


def double_backward(Q_dot: Array, K_dot: Array, V_dot: Array, dO: Array, Q: Array, K: Array, V: Array,
                    O: Array, L: Array, plan: Plan, *, with_atomics: bool = False) -> tuple:
    """O_dot, dQ_dot, dK_dot, dV_dot, from what the forward pass has kept."""
    O_dot, L_dot = jvp_kept(Q_dot, K_dot, V_dot, Q, K, V, O, L, plan)
    D, D_dot = row_products(dO, O, plan), row_products(dO, O_dot, plan)
    rows, keys = Rows(Q, Q_dot, dO, L, L_dot, D, D_dot), Keys(K, V, K_dot, V_dot)
    if with_atomics:
        dQ_dot = zeros(Q)
        return O_dot, dQ_dot, *second_by_columns(rows, keys, plan, dQ_dot)
    return O_dot, second_by_rows(rows, keys, plan), *second_by_columns(rows, keys, plan)


def zeros(like: Array) -> Array:
    """An array of zeros in slow memory, to be added to; where numbers are counted, in float32."""
    x = result(like, *like.shape, is_statistic=True)
    room = x.x if isinstance(x, Slow) else x
    room[...] = 0
    return x
