"""The output of a head with its log-sum-exp, and with its tangent, in Triton: one pass over the keys."""

import triton
import triton.language as tl

from attnmath.torch.triton_tile import LEAST, dropped, factors, keys_from, matrix, moving_scores, scores, times


@triton.jit
def first_sums(h, x, ROWS: tl.constexpr):
    """The largest score of each row so far and the sum of the weights: those of the sink, or of nothing."""
    c_max = tl.full((ROWS,), LEAST, tl.float32)
    s = tl.zeros((ROWS,), tl.float32)
    if x.sinks is not None:
        sink = tl.load(x.sinks + h)
        c_max = tl.maximum(c_max, sink)
        s = tl.exp(sink - c_max)
    return c_max, s


@triton.jit
def of_sums(N, s):
    """N / s; in a row that may attend to nothing both are 0, and so is this."""
    return N / tl.where(s == 0, 1, s)[:, None]


@triton.jit
def rows_to(out, value, h, i, n, d: tl.constexpr, D: tl.constexpr):
    """Writes rows i of head h of an array (H, n, d) without gaps."""
    k = tl.arange(0, D)
    at = out + h.to(tl.int64) * n * d + i[:, None] * d + k[None, :]
    tl.store(at, value.to(out.dtype.element_ty), mask=(i < n)[:, None] & (k < d)[None, :])


@triton.jit
def output(x, step, c, O, L, d_k: tl.constexpr, d_v: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
           ROWS: tl.constexpr, KEYS: tl.constexpr):
    """O (H, n, d_v) and the log-sum-exp L (H, n), 0 in a row that may attend to nothing."""
    blocks = tl.cdiv(c.n, ROWS)
    h, i0 = tl.program_id(0) // blocks, tl.program_id(0) % blocks * ROWS
    i = i0 + tl.arange(0, ROWS)
    q = matrix(x.Q, 0, step.Q, h, i, c.n, c, d_k, D_K)
    c_max, s = first_sums(h, x, ROWS)
    N = tl.zeros((ROWS, D_V), tl.float32)
    start, stop = keys_from(i0, c, ROWS, KEYS)
    for j0 in range(start, stop, KEYS):
        j = j0 + tl.arange(0, KEYS)
        k = matrix(x.K, 1, step.K, h, j, c.m, c, d_k, D_K)
        v = matrix(x.V, 2, step.V, h, j, c.m, c, d_v, D_V)
        A, _ = scores(c.scale * times(q, tl.trans(k)), h, i[:, None], j[None, :], x, step, c)
        c_new = tl.maximum(c_max, tl.max(A, 1))
        E, past = tl.exp(A - c_new[:, None]), tl.exp(c_max - c_new)
        s = s * past + tl.sum(E, 1)
        E = dropped(E, factors(h, i[:, None], j[None, :], c))
        N = times(E.to(v.dtype), v, N * past[:, None])
        c_max = c_new
    rows_to(O, of_sums(N, s), h, i, c.n, d_v, D_V)
    sums = tl.where(s == 0, 0, c_max + tl.log(tl.where(s == 0, 1, s)))
    tl.store(L + h.to(tl.int64) * c.n + i, sums, mask=i < c.n)


@triton.jit
def output_jvp(x, step, c, O, O_dot, d_k: tl.constexpr, d_v: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
               ROWS: tl.constexpr, KEYS: tl.constexpr):
    """O and O_dot (H, n, d_v): all sums are brought to the same largest score.

    N = sum of E V, U = sum of E A_dot V + E V_dot, mu = sum of E A_dot, where E = exp(A - c)
    """
    blocks = tl.cdiv(c.n, ROWS)
    h, i0 = tl.program_id(0) // blocks, tl.program_id(0) % blocks * ROWS
    i = i0 + tl.arange(0, ROWS)
    q = matrix(x.Q, 0, step.Q, h, i, c.n, c, d_k, D_K)
    q_dot = matrix(x.Q_dot, 4, step.Q_dot, h, i, c.n, c, d_k, D_K)
    c_max, s = first_sums(h, x, ROWS)
    mu = tl.zeros((ROWS,), tl.float32)
    if x.sinks_dot is not None:
        mu += s * tl.load(x.sinks_dot + h)
    N = tl.zeros((ROWS, D_V), tl.float32)
    U = tl.zeros((ROWS, D_V), tl.float32)
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
        R = factors(h, i[:, None], j[None, :], c)
        s = s * past + tl.sum(E, 1)
        mu = mu * past
        U = U * past[:, None]
        if A_dot is not None:
            F = E * A_dot
            mu += tl.sum(F, 1)
            U = times(dropped(F, R).to(v.dtype), v, U)
        ER = dropped(E, R).to(v.dtype)
        N = times(ER, v, N * past[:, None])
        if v_dot is not None:
            U = times(ER, v_dot, U)
        c_max = c_new
    N = of_sums(N, s)
    rows_to(O, N, h, i, c.n, d_v, D_V)
    rows_to(O_dot, of_sums(U - mu[:, None] * N, s), h, i, c.n, d_v, D_V)
