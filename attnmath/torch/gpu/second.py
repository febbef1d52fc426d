"""The tangents of the output and of its gradients in Triton: by query rows, by key columns, by tiles of B.

Rows come first: one pass over the keys makes the sums c (largest score), 1 / s, mu, D and
D_dot of each row, a second one the tangents of O and dQ. Columns and tiles make everything
else from these sums; each adds up in one order, so that no two runs differ. Without dO, what is
a tangent along dO_dot alone is a gradient for dO_dot: first derivatives are done here, too.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from attnmath.torch.gpu.forward import first_sums, rows_to
from attnmath.torch.gpu.tile import (
    distance,
    dropped,
    factors,
    keys_from,
    matrix,
    moving_scores,
    rows_from,
    tangent_of_product,
    times,
)


class RowResults(NamedTuple):
    """sums (5, H, n): c, 1 / s, mu, D, D_dot of each row; of_slopes (H, n): a row's part of their gradient."""

    O_dot: Any
    dQ_dot: Any
    sums: Any
    of_slopes: Any


@triton.jit
def cotangents(a, b, a_dot, b_dot, R):
    """dP = R a b^T and its tangent, from dO and V in either order; None where it is 0."""
    dP = None
    if a is not None and b is not None:
        dP = dropped(times(a, tl.trans(b)), R)
    return dP, dropped(tangent_of_product(a, b, a_dot, b_dot), R)


@triton.jit
def sum_of(a, b):
    """a + b, where None is 0."""
    if a is None:
        return b
    elif b is None:
        return a
    else:
        return a + b


@triton.jit
def product_of(a, b):
    """a b entry by entry, where None is 0."""
    if a is None or b is None:
        return None
    else:
        return a * b


@triton.jit
def weights(A, A_dot, c_max, share, mu):
    """P = exp(A - c) / s and P_dot = P (A_dot - mu), None if the scores do not move."""
    P = tl.exp(A - c_max) * share
    P_dot = None
    if A_dot is not None:
        P_dot = P * (A_dot - mu)
    return P, P_dot


@triton.jit
def of_scores(P, P_dot, dP, dP_dot, D, D_dot):
    """dA = P (dP - D), and its tangent P_dot (dP - D) + P (dP_dot - D_dot)."""
    dA, dA_dot = None, None
    if dP is not None:
        dA = P * (dP - D)
        dA_dot = product_of(P_dot, dP - D)
    moved = -D_dot
    if dP_dot is not None:
        moved = dP_dot - D_dot
    return dA, sum_of(dA_dot, P * moved)


@triton.jit
def before_cap(dA, dA_dot, T, X_dot, c):
    """What goes to q k: each times the derivative of the cap, which moves with X_dot."""
    if T is not None:
        bend = 1 - T * T
        if dA is not None:
            if X_dot is not None:
                dA_dot = dA_dot - 2 / c.cap * X_dot * T * dA
            dA = dA * bend
        dA_dot = dA_dot * bend
    return dA, dA_dot


@triton.jit
def row_sums(h, i0, i, q, q_dot, do, do_dot, x, step, c, d_k: tl.constexpr, d_v: tl.constexpr, D_K: tl.constexpr,
             D_V: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """One pass over the keys, all sums brought to the same largest score.  -> c, 1 / s, mu, D, D_dot

    D_dot = sum of P (A_dot dP + dP_dot) - mu D, whatever the last mu is.
    """
    c_max, s = first_sums(h, x, ROWS)
    mu = tl.zeros((ROWS,), tl.float32)
    D = tl.zeros((ROWS,), tl.float32)
    X = tl.zeros((ROWS,), tl.float32)
    if x.sinks_dot is not None:
        mu += s * tl.load(x.sinks_dot + h)
    start, stop = keys_from(i0, c, ROWS, KEYS)
    for j0 in range(start, stop, KEYS):
        j = j0 + tl.arange(0, KEYS)
        k = matrix(x.K, 1, step.K, h, j, c.m, c, d_k, D_K)
        k_dot = matrix(x.K_dot, 5, step.K_dot, h, j, c.m, c, d_k, D_K)
        v = matrix(x.V, 2, step.V, h, j, c.m, c, d_v, D_V)
        v_dot = matrix(x.V_dot, 6, step.V_dot, h, j, c.m, c, d_v, D_V)
        A, _, _, A_dot = moving_scores(q, k, q_dot, k_dot, h, i[:, None], j[None, :], x, step, c)
        c_new = tl.maximum(c_max, tl.max(A, 1))
        E, past = tl.exp(A - c_new[:, None]), tl.exp(c_max - c_new)
        s = s * past + tl.sum(E, 1)
        mu, D, X = mu * past, D * past, X * past
        if A_dot is not None:
            mu += tl.sum(E * A_dot, 1)
        dP, dP_dot = cotangents(do, v, do_dot, v_dot, factors(h, i[:, None], j[None, :], c))
        if dP is not None:
            D += tl.sum(E * dP, 1)
        of_D = sum_of(product_of(A_dot, dP), dP_dot)
        if of_D is not None:
            X += tl.sum(E * of_D, 1)
        c_max = c_new
    share = 1 / tl.where(s == 0, 1, s)
    mu, D = mu * share, D * share
    return c_max, share, mu, D, X * share - mu * D


@triton.jit
def by_rows(x, step, c, out, d_k: tl.constexpr, d_v: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
            ROWS: tl.constexpr, KEYS: tl.constexpr):
    """O_dot (H, n, d_v), dQ_dot (H, n, d_k), and the sums of the rows."""
    blocks = tl.cdiv(c.n, ROWS)
    h, i0 = tl.program_id(0) // blocks, tl.program_id(0) % blocks * ROWS
    i = i0 + tl.arange(0, ROWS)
    q = matrix(x.Q, 0, step.Q, h, i, c.n, c, d_k, D_K)
    q_dot = matrix(x.Q_dot, 4, step.Q_dot, h, i, c.n, c, d_k, D_K)
    do = matrix(x.dO, 3, step.dO, h, i, c.n, c, d_v, D_V)
    do_dot = matrix(x.dO_dot, 7, step.dO_dot, h, i, c.n, c, d_v, D_V)
    sums = row_sums(h, i0, i, q, q_dot, do, do_dot, x, step, c, d_k, d_v, D_K, D_V, ROWS, KEYS)
    c_max, share, mu, D, D_dot = sums
    at = out.sums + h.to(tl.int64) * c.n + i
    for number in tl.static_range(5):
        tl.store(at, sums[number], mask=i < c.n)
        at += c.size
    if out.O_dot is not None:
        O_dot = tl.zeros((ROWS, D_V), tl.float32)
    if out.dQ_dot is not None:
        dQ_dot = tl.zeros((ROWS, D_K), tl.float32)
    of_slopes = tl.zeros((ROWS,), tl.float32)
    start, stop = keys_from(i0, c, ROWS, KEYS)
    for j0 in range(start, stop, KEYS):
        j = j0 + tl.arange(0, KEYS)
        k = matrix(x.K, 1, step.K, h, j, c.m, c, d_k, D_K)
        k_dot = matrix(x.K_dot, 5, step.K_dot, h, j, c.m, c, d_k, D_K)
        v = matrix(x.V, 2, step.V, h, j, c.m, c, d_v, D_V)
        v_dot = matrix(x.V_dot, 6, step.V_dot, h, j, c.m, c, d_v, D_V)
        A, T, X_dot, A_dot = moving_scores(q, k, q_dot, k_dot, h, i[:, None], j[None, :], x, step, c)
        P, P_dot = weights(A, A_dot, c_max[:, None], share[:, None], mu[:, None])
        R = factors(h, i[:, None], j[None, :], c)
        if out.O_dot is not None:
            if P_dot is not None:
                O_dot = times(dropped(P_dot, R).to(v.dtype), v, O_dot)
            if v_dot is not None:
                O_dot = times(dropped(P, R).to(v.dtype), v_dot, O_dot)
        if out.dQ_dot is not None or out.of_slopes is not None:
            dP, dP_dot = cotangents(do, v, do_dot, v_dot, R)
            dA, dA_dot = of_scores(P, P_dot, dP, dP_dot, D[:, None], D_dot[:, None])
            if out.of_slopes is not None:
                of_slopes += tl.sum(dA_dot * distance(i[:, None], j[None, :], c), 1)
            if out.dQ_dot is not None:
                dA, dA_dot = before_cap(dA, dA_dot, T, X_dot, c)
                dQ_dot = times(dA_dot.to(k.dtype), k, dQ_dot)
                if dA is not None and k_dot is not None:
                    dQ_dot = times(dA.to(k.dtype), k_dot, dQ_dot)
    if out.O_dot is not None:
        rows_to(out.O_dot, O_dot, h, i, c.n, d_v, D_V)
    if out.dQ_dot is not None:
        rows_to(out.dQ_dot, c.scale * dQ_dot, h, i, c.n, d_k, D_K)
    if out.of_slopes is not None:
        tl.store(out.of_slopes + h.to(tl.int64) * c.n + i, of_slopes, mask=i < c.n)


@triton.jit
def sums_of_rows(sums, h, i, c):
    """c, 1 / s, mu, D, D_dot of some rows; 0 beyond the last one."""
    at, inside = sums + h.to(tl.int64) * c.n + i, i < c.n
    c_max = tl.load(at, mask=inside, other=0.0)
    share = tl.load(at + c.size, mask=inside, other=0.0)
    mu = tl.load(at + c.size + c.size, mask=inside, other=0.0)
    at += c.size
    D = tl.load(at + c.size + c.size, mask=inside, other=0.0)
    at += c.size
    return c_max, share, mu, D, tl.load(at + c.size + c.size, mask=inside, other=0.0)


@triton.jit
def by_columns(x, step, c, sums, shared, sharers, dK_dot, dV_dot, d_k: tl.constexpr, d_v: tl.constexpr,
               D_K: tl.constexpr, D_V: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """dK_dot (G, m, d_k) and dV_dot (G, m, d_v); shared (G, sharers): the heads that share keys and values."""
    blocks = tl.cdiv(c.m, KEYS)
    g, j0 = tl.program_id(0) // blocks, tl.program_id(0) % blocks * KEYS
    j = j0 + tl.arange(0, KEYS)
    h = tl.load(shared + g * sharers)
    k = matrix(x.K, 1, step.K, h, j, c.m, c, d_k, D_K)
    k_dot = matrix(x.K_dot, 5, step.K_dot, h, j, c.m, c, d_k, D_K)
    v = matrix(x.V, 2, step.V, h, j, c.m, c, d_v, D_V)
    v_dot = matrix(x.V_dot, 6, step.V_dot, h, j, c.m, c, d_v, D_V)
    if dK_dot is not None:
        of_K = tl.zeros((KEYS, D_K), tl.float32)
    if dV_dot is not None:
        of_V = tl.zeros((KEYS, D_V), tl.float32)
    start, stop = rows_from(j0, c, ROWS, KEYS)
    for one in range(0, sharers):
        h = tl.load(shared + g * sharers + one)
        for i0 in range(start, stop, ROWS):
            i = i0 + tl.arange(0, ROWS)
            q = matrix(x.Q, 0, step.Q, h, i, c.n, c, d_k, D_K)
            q_dot = matrix(x.Q_dot, 4, step.Q_dot, h, i, c.n, c, d_k, D_K)
            do = matrix(x.dO, 3, step.dO, h, i, c.n, c, d_v, D_V)
            do_dot = matrix(x.dO_dot, 7, step.dO_dot, h, i, c.n, c, d_v, D_V)
            c_max, share, mu, D, D_dot = sums_of_rows(sums, h, i, c)
            A, T, X_dot, A_dot = moving_scores(k, q, k_dot, q_dot, h, i[None, :], j[:, None], x, step, c)
            P, P_dot = weights(A, A_dot, c_max[None, :], share[None, :], mu[None, :])
            R = factors(h, i[None, :], j[:, None], c)
            if dV_dot is not None:
                if P_dot is not None and do is not None:
                    of_V = times(dropped(P_dot, R).to(v.dtype), do, of_V)
                if do_dot is not None:
                    of_V = times(dropped(P, R).to(v.dtype), do_dot, of_V)
            if dK_dot is not None:
                dP, dP_dot = cotangents(v, do, v_dot, do_dot, R)
                dA, dA_dot = of_scores(P, P_dot, dP, dP_dot, D[None, :], D_dot[None, :])
                dA, dA_dot = before_cap(dA, dA_dot, T, X_dot, c)
                of_K = times(dA_dot.to(k.dtype), q, of_K)
                if dA is not None and q_dot is not None:
                    of_K = times(dA.to(k.dtype), q_dot, of_K)
    if dK_dot is not None:
        rows_to(dK_dot, c.scale * of_K, g, j, c.m, d_k, D_K)
    if dV_dot is not None:
        rows_to(dV_dot, of_V, g, j, c.m, d_v, D_V)


@triton.jit
def by_tiles(x, step, c, sums, shared, sharers, dB_dot, d_k: tl.constexpr, d_v: tl.constexpr, D_K: tl.constexpr,
             D_V: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """dB_dot (G, n, m); shared (G, sharers): the heads that share a bias."""
    rows, keys = tl.cdiv(c.n, ROWS), tl.cdiv(c.m, KEYS)
    g, tile = tl.program_id(0) // (rows * keys), tl.program_id(0) % (rows * keys)
    i = tile // keys * ROWS + tl.arange(0, ROWS)
    j = tile % keys * KEYS + tl.arange(0, KEYS)
    of_B = tl.zeros((ROWS, KEYS), tl.float32)
    for one in range(0, sharers):
        h = tl.load(shared + g * sharers + one)
        q = matrix(x.Q, 0, step.Q, h, i, c.n, c, d_k, D_K)
        q_dot = matrix(x.Q_dot, 4, step.Q_dot, h, i, c.n, c, d_k, D_K)
        do = matrix(x.dO, 3, step.dO, h, i, c.n, c, d_v, D_V)
        do_dot = matrix(x.dO_dot, 7, step.dO_dot, h, i, c.n, c, d_v, D_V)
        k = matrix(x.K, 1, step.K, h, j, c.m, c, d_k, D_K)
        k_dot = matrix(x.K_dot, 5, step.K_dot, h, j, c.m, c, d_k, D_K)
        v = matrix(x.V, 2, step.V, h, j, c.m, c, d_v, D_V)
        v_dot = matrix(x.V_dot, 6, step.V_dot, h, j, c.m, c, d_v, D_V)
        c_max, share, mu, D, D_dot = sums_of_rows(sums, h, i, c)
        A, _, _, A_dot = moving_scores(q, k, q_dot, k_dot, h, i[:, None], j[None, :], x, step, c)
        P, P_dot = weights(A, A_dot, c_max[:, None], share[:, None], mu[:, None])
        dP, dP_dot = cotangents(do, v, do_dot, v_dot, factors(h, i[:, None], j[None, :], c))
        _, dA_dot = of_scores(P, P_dot, dP, dP_dot, D[:, None], D_dot[:, None])
        of_B += dA_dot
    at = dB_dot + g.to(tl.int64) * c.n * c.m + i[:, None].to(tl.int64) * c.m + j[None, :]
    tl.store(at, of_B.to(dB_dot.dtype.element_ty), mask=(i < c.n)[:, None] & (j < c.m)[None, :])
