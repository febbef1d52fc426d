"""The tangents of the output and of the gradient of the queries in Triton: by rows of the queries.

They make the sums c (largest score), 1 / s, mu, D and D_dot of each row, of which triton_columns.py
makes everything else. Without dO, what is a tangent along dO_dot alone is a gradient for
dO_dot: first derivatives are done here, too.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from attnmath.torch.triton_entries import back, before_cap
from attnmath.torch.triton_forward import first_sums, rows_to
from attnmath.torch.triton_tile import distance, dropped, factors, keys_from, matrix, moving_scores, times


class RowResults(NamedTuple):
    """sums (5, H, n): c, 1 / s, mu, D, D_dot of each row; of_slopes (H, n): a row's part of their gradient."""

    O_dot: Any
    dQ_dot: Any
    sums: Any
    of_slopes: Any


@triton.jit
def row_sums(h, i, start, stop, q, q_dot, do, x, step, c, d_k: tl.constexpr, d_v: tl.constexpr,
             D_K: tl.constexpr, D_V: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """The first pass: all sums are brought to the same largest score.  -> c, 1 / s, mu, D"""
    c_max, s = first_sums(h, x, ROWS)
    mu = tl.zeros((ROWS,), tl.float32)
    D = tl.zeros((ROWS,), tl.float32)
    if x.sinks_dot is not None:
        mu += s * tl.load(x.sinks_dot + h)
    for j0 in range(start, stop, KEYS):
        j = j0 + tl.arange(0, KEYS)
        k = matrix(x.K, 1, step.K, h, j, c.m, c, d_k, D_K)
        k_dot = matrix(x.K_dot, 5, step.K_dot, h, j, c.m, c, d_k, D_K)
        A, _, _, A_dot = moving_scores(q, k, q_dot, k_dot, h, i[:, None], j[None, :], x, step, c)
        c_new = tl.maximum(c_max, tl.max(A, 1))
        E, past = tl.exp(A - c_new[:, None]), tl.exp(c_max - c_new)
        s = s * past + tl.sum(E, 1)
        mu, D = mu * past, D * past
        if A_dot is not None:
            mu += tl.sum(E * A_dot, 1)
        if do is not None:
            v = matrix(x.V, 2, step.V, h, j, c.m, c, d_v, D_V)
            dP = dropped(times(do, tl.trans(v)), factors(h, i[:, None], j[None, :], c))
            D += tl.sum(E * dP, 1)
        c_max = c_new
    share = 1 / tl.where(s == 0, 1, s)
    return c_max, share, mu * share, D * share


@triton.jit
def output_and_D_dot(h, i, start, stop, q, q_dot, do, do_dot, sums, O_dot, x, step, c,
                     d_k: tl.constexpr, d_v: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
                     ROWS: tl.constexpr, KEYS: tl.constexpr):
    """The second pass: O_dot goes where it belongs.  -> D_dot, with what is rounded in mu and D taken in"""
    c_max, share, mu, D = sums
    D_dot = tl.zeros((ROWS,), tl.float32)
    if x.sinks is not None:
        s_dot = 0.0
        if x.sinks_dot is not None:
            s_dot = tl.load(x.sinks_dot + h)
        D_dot -= tl.exp(tl.load(x.sinks + h) - c_max) * share * (s_dot - mu) * D
    if O_dot is not None:
        N = tl.zeros((ROWS, D_V), tl.float32)
    at = (c_max[:, None], share[:, None], mu[:, None], D[:, None], tl.zeros((ROWS, 1), tl.float32))
    for j0 in range(start, stop, KEYS):
        j = j0 + tl.arange(0, KEYS)
        k = matrix(x.K, 1, step.K, h, j, c.m, c, d_k, D_K)
        k_dot = matrix(x.K_dot, 5, step.K_dot, h, j, c.m, c, d_k, D_K)
        v = matrix(x.V, 2, step.V, h, j, c.m, c, d_v, D_V)
        v_dot = matrix(x.V_dot, 6, step.V_dot, h, j, c.m, c, d_v, D_V)
        PR, PR_dot, _, dA_dot, _, _ = back(h, i[:, None], j[None, :], q, k, q_dot, k_dot, do, v, do_dot, v_dot, at,
                                           x, step, c)
        D_dot += tl.sum(dA_dot, 1)
        if O_dot is not None:
            if PR_dot is not None:
                N = times(PR_dot.to(v.dtype), v, N)
            if v_dot is not None:
                N = times(PR.to(v.dtype), v_dot, N)
    if O_dot is not None:
        rows_to(O_dot, N, h, i, c.n, d_v, D_V)
    return D_dot


@triton.jit
def by_rows(x, step, c, out, d_k: tl.constexpr, d_v: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
            ROWS: tl.constexpr, KEYS: tl.constexpr):
    """O_dot (H, n, d_v), dQ_dot (H, n, d_k), and the sums of the rows, in three passes over the keys.

    D_dot is made of what the third pass will use, so that the rows of dA_dot sum to 0 before
    they are multiplied by the keys.
    """
    blocks = tl.cdiv(c.n, ROWS)
    h, i0 = tl.program_id(0) // blocks, tl.program_id(0) % blocks * ROWS
    i = i0 + tl.arange(0, ROWS)
    q = matrix(x.Q, 0, step.Q, h, i, c.n, c, d_k, D_K)
    q_dot = matrix(x.Q_dot, 4, step.Q_dot, h, i, c.n, c, d_k, D_K)
    do = matrix(x.dO, 3, step.dO, h, i, c.n, c, d_v, D_V)
    do_dot = matrix(x.dO_dot, 7, step.dO_dot, h, i, c.n, c, d_v, D_V)
    start, stop = keys_from(i0, c, ROWS, KEYS)
    c_max, share, mu, D = row_sums(h, i, start, stop, q, q_dot, do, x, step, c, d_k, d_v, D_K, D_V, ROWS, KEYS)
    D_dot = output_and_D_dot(h, i, start, stop, q, q_dot, do, do_dot, (c_max, share, mu, D), out.O_dot, x, step, c,
                             d_k, d_v, D_K, D_V, ROWS, KEYS)
    at = out.sums + h.to(tl.int64) * c.n + i
    sums = (c_max, share, mu, D, D_dot)
    for number in tl.static_range(5):
        tl.store(at, sums[number], mask=i < c.n)
        at += c.size
    if out.dQ_dot is not None or out.of_slopes is not None:
        dQ_dot = tl.zeros((ROWS, D_K), tl.float32)
        of_slopes = tl.zeros((ROWS,), tl.float32)
        at = (c_max[:, None], share[:, None], mu[:, None], D[:, None], D_dot[:, None])
        for j0 in range(start, stop, KEYS):
            j = j0 + tl.arange(0, KEYS)
            k = matrix(x.K, 1, step.K, h, j, c.m, c, d_k, D_K)
            k_dot = matrix(x.K_dot, 5, step.K_dot, h, j, c.m, c, d_k, D_K)
            v = matrix(x.V, 2, step.V, h, j, c.m, c, d_v, D_V)
            v_dot = matrix(x.V_dot, 6, step.V_dot, h, j, c.m, c, d_v, D_V)
            _, _, dA, dA_dot, T, X_dot = back(h, i[:, None], j[None, :], q, k, q_dot, k_dot, do, v, do_dot, v_dot,
                                              at, x, step, c)
            if out.of_slopes is not None:
                of_slopes += tl.sum(dA_dot * distance(i[:, None], j[None, :], c), 1)
            if out.dQ_dot is not None:
                dA, dA_dot = before_cap(dA, dA_dot, T, X_dot, c)
                dQ_dot = times(dA_dot.to(k.dtype), k, dQ_dot)
                if dA is not None and k_dot is not None:
                    dQ_dot = times(dA.to(k.dtype), k_dot, dQ_dot)
        if out.dQ_dot is not None:
            rows_to(out.dQ_dot, c.scale * dQ_dot, h, i, c.n, d_k, D_K)
        if out.of_slopes is not None:
            tl.store(out.of_slopes + h.to(tl.int64) * c.n + i, of_slopes, mask=i < c.n)
