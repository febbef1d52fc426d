"""The tangents of the gradients of keys, values and a bias in Triton: by columns and by tiles.

Everything is made again from the sums that triton_rows.py has made. Each result is added up by one
program in one order, without atomics: no two runs differ.
"""

import triton
import triton.language as tl

from attnmath.torch.triton_entries import back, before_cap
from attnmath.torch.triton_forward import rows_to
from attnmath.torch.triton_tile import matrix, rows_from, times


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
    for one in range(sharers):
        h = tl.load(shared + g * sharers + one)
        for i0 in range(start, stop, ROWS):
            i = i0 + tl.arange(0, ROWS)
            q = matrix(x.Q, 0, step.Q, h, i, c.n, c, d_k, D_K)
            q_dot = matrix(x.Q_dot, 4, step.Q_dot, h, i, c.n, c, d_k, D_K)
            do = matrix(x.dO, 3, step.dO, h, i, c.n, c, d_v, D_V)
            do_dot = matrix(x.dO_dot, 7, step.dO_dot, h, i, c.n, c, d_v, D_V)
            c_max, share, mu, D, D_dot = sums_of_rows(sums, h, i, c)
            at = (c_max[None, :], share[None, :], mu[None, :], D[None, :], D_dot[None, :])
            PR, PR_dot, dA, dA_dot, T, X_dot = back(h, i[None, :], j[:, None], k, q, k_dot, q_dot, v, do, v_dot,
                                                    do_dot, at, x, step, c)
            if dV_dot is not None:
                if PR_dot is not None and do is not None:
                    of_V = times(PR_dot.to(v.dtype), do, of_V)
                if do_dot is not None:
                    of_V = times(PR.to(v.dtype), do_dot, of_V)
            if dK_dot is not None:
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
    for one in range(sharers):
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
        at = (c_max[:, None], share[:, None], mu[:, None], D[:, None], D_dot[:, None])
        _, _, _, dA_dot, _, _ = back(h, i[:, None], j[None, :], q, k, q_dot, k_dot, do, v, do_dot, v_dot, at, x,
                                     step, c)
        of_B += dA_dot
    at = dB_dot + g.to(tl.int64) * c.n * c.m + i[:, None].to(tl.int64) * c.m + j[None, :]
    tl.store(at, of_B.to(dB_dot.dtype.element_ty), mask=(i < c.n)[:, None] & (j < c.m)[None, :])
