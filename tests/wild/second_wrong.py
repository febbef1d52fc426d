"""Mistakes of the second order: attention that is right itself, with a JVP or a double backward that has one
mistake each, and pairs. Each make() gives {"fn": f, "jvp": g or None, "vjp_vjp": h or None}. In the
docstrings c is the scale, A the scores, P the weights, mu = rowsum(P A_dot), D = rowsum(dO O), dA = P (dO V^T
- D)."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from cases import collection

CASES, case = collection()


def softmax_np(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def plain(q, k, v):
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


# ------------------------------------------------------- JVP: the product rule


@case()
def o_dot_without_p_v_dot():
    """JVP: O_dot = P_dot V, the term P V_dot is missing. Invisible if the values stand still. bhsd."""
    def jvp(q, k, v, q_dot, k_dot, v_dot):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (q_dot @ k.mT + q @ k_dot.mT) * c
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v

    return {"fn": plain, "jvp": jvp, "vjp_vjp": None}


@case()
def a_dot_without_q_k_dot():
    """JVP: A_dot = c Q_dot K^T, the term Q K_dot^T is missing. Invisible if the keys stand still. Returns (o,
    o_dot). bshd."""
    def fn(q, k, v):
        w = torch.einsum("bqhd,bkhd->bhqk", q, k).div(math.sqrt(q.shape[-1])).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", w, v)

    def fn_jvp(q, k, v, tq, tk, tv):
        w = torch.einsum("bqhd,bkhd->bhqk", q, k).div(math.sqrt(q.shape[-1])).softmax(-1)
        t = torch.einsum("bqhd,bkhd->bhqk", tq, k).div(math.sqrt(q.shape[-1]))
        tw = w * (t - (w * t).sum(-1, keepdim=True))
        to = torch.einsum("bhqk,bkhd->bqhd", tw, v) + torch.einsum("bhqk,bkhd->bqhd", w, tv)
        return torch.einsum("bhqk,bkhd->bqhd", w, v), to

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def a_dot_symmetrised():
    """JVP: with as many queries as keys A_dot is taken for c (Q_dot K^T + (Q_dot K^T)^T), so K_dot is not
    read; right for n != m. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = 1 / math.sqrt(q.size(3))
        p = F.softmax(q @ k.mT * c, dim=3)
        cross = tq @ k.mT
        t = c * (cross + (cross.mT if q.size(2) == k.size(2) else q @ tk.mT))
        return (p * (t - (p * t).sum(3, keepdim=True))) @ v + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case(formats=("float64", "float32"))
def k_dot_q_transposed():
    """JVP: with n == m the term Q K_dot^T enters as its transpose K_dot Q^T; right for n != m. NumPy,
    bhsd."""
    def fn(q, k, v):
        return softmax_np(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v

    def jvp(q, k, v, q_dot, k_dot, v_dot):
        p = softmax_np(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
        cross = k_dot @ q.swapaxes(-1, -2)
        cross = cross if q.shape[-2] == k.shape[-2] else cross.swapaxes(-1, -2)
        t = (q_dot @ k.swapaxes(-1, -2) + cross) / math.sqrt(q.shape[-1])
        p_dot = p * (t - (p * t).sum(-1, keepdims=True))
        return p_dot @ v + p @ v_dot

    return {"fn": fn, "jvp": jvp, "vjp_vjp": None}


@case()
def v_dot_weighted_by_p_dot():
    """JVP, in place: P is overwritten by P_dot (mul_) before the term P V_dot is taken, which so becomes
    P_dot V_dot. Invisible if the values stand still. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = tq @ k.mT
        t.add_(q @ tk.mT).mul_(c)
        t.sub_((p * t).sum(-1, keepdim=True))
        tp = p.mul_(t)
        return tp @ v + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def pair_returned_in_wrong_order():
    """JVP: the pair comes back as (o_dot, o) rather than (o, o_dot). bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = c * (tq @ k.mT + q @ tk.mT)
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv, p @ v

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


# ------------------------------------------------------- JVP: the softmax


@case()
def p_dot_is_p_a_dot():
    """JVP: P_dot = P * A_dot, the mean mu is not subtracted. Invisible only where mu = 0. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        p = s.softmax(-1)
        ts = (tq @ k.mT + q @ tk.mT) / math.sqrt(q.shape[-1])
        return (p * ts) @ v + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case(source="alexgabel/theria docs/phase9_backward.md (saved statistics stand still)")
def function_jvp_with_frozen_logsumexp():
    """JVP (jvp=True, torch.autograd.Function): the jvp staticmethod takes the saved L for constant, so P_dot
    = P * A_dot without the mean; backward right. bhsd."""
    class Attn(torch.autograd.Function):
        @staticmethod
        def forward(q, k, v):
            s = q @ k.mT * q.shape[-1] ** -0.5
            return torch.exp(s - s.logsumexp(-1, keepdim=True)) @ v

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, do):
            q, k, v = ctx.saved_tensors
            p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
            ds = p * (do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            return ds @ k, ds.mT @ q, p.mT @ do

        @staticmethod
        def jvp(ctx, tq, tk, tv):
            q, k, v = ctx.saved_tensors
            s = q @ k.mT * q.shape[-1] ** -0.5
            p = torch.exp(s - s.logsumexp(-1, keepdim=True))
            return (p * (tq @ k.mT + q @ tk.mT)) @ v * q.shape[-1] ** -0.5 + p @ tv

    return {"fn": Attn.apply, "jvp": True, "vjp_vjp": None}


@case()
def mean_from_raw_weights():
    """JVP: mu = rowsum(E A_dot) with E = exp(A - max), not divided by the row sum; P itself is normalised.
    Wrong unless a row has one key. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        s = q @ k.mT * c
        e = torch.exp(s - s.amax(-1, keepdim=True))
        t = (tq @ k.mT + q @ tk.mT) * c
        mu = (e * t).sum(-1, keepdim=True)
        p = e / e.sum(-1, keepdim=True)
        return torch.matmul(p * (t - mu), v) + torch.matmul(p, tv)

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case(formats=("float64", "float32"))
def mean_added():
    """JVP: P_dot = P (A_dot + mu), the sign of the mean is wrong. NumPy einsum, bshd."""
    def weights(q, k):
        return softmax_np(np.einsum("bnhd,bmhd->bhnm", q, k) * q.dtype.type(q.shape[-1] ** -0.5))

    def fn(q, k, v):
        return np.einsum("bhnm,bmhd->bnhd", weights(q, k), v)

    def jvp(q, k, v, tq, tk, tv):
        p = weights(q, k)
        t = np.einsum("bnhd,bmhd->bhnm", tq, k) + np.einsum("bnhd,bmhd->bhnm", q, tk)
        t *= q.dtype.type(q.shape[-1] ** -0.5)
        tp = p * (t + (p * t).sum(-1, keepdims=True))
        return np.einsum("bhnm,bmhd->bnhd", tp, v) + np.einsum("bhnm,bmhd->bnhd", p, tv)

    return {"fn": fn, "jvp": jvp, "vjp_vjp": None}


@case()
def mean_unweighted():
    """JVP: the mean subtracted from A_dot is that over the keys with equal weights, not with P. Right for one
    key alone. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        return (p * (t - t.mean(-1, keepdim=True))) @ v + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def mean_per_head_shared_by_queries():
    """JVP: mu is that of the head's first query for all queries (sum over a view of the first row, spread).
    Right for the first query. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        h = p * (tq @ k.mT + q @ tk.mT) * c
        mu = h[:, :, :1].sum(-1, keepdim=True)
        return h @ v - mu * (p @ v) + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


# ------------------------------------------------------- JVP: the scale


@case(source="Dao-AILab/flash-attention issue 1672")
def tangent_never_scaled():
    """JVP: A_dot = Q_dot K^T + Q K_dot^T without the scale c. Invisible if queries and keys stand still.
    bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        p = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        t = tq @ k.mT + q @ tk.mT
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def tangent_scaled_twice():
    """JVP: queries and their tangents are multiplied by c beforehand, and A_dot by c once more. Invisible if
    queries and keys stand still. bshd."""
    def fn(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return plain(q, k, v).transpose(1, 2)

    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        q, k, v, tq, tk, tv = (x.transpose(1, 2) for x in (q, k, v, tq, tk, tv))
        q, tq = q * c, tq * c
        p = torch.softmax(q @ k.mT, -1)
        t = c * (tq @ k.mT + q @ tk.mT)
        o_dot = (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv
        return (p @ v).transpose(1, 2), o_dot.transpose(1, 2)

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def one_term_unscaled():
    """JVP: the queries carry the scale, their tangents do not, so Q_dot K^T is too large by 1 / c and Q
    K_dot^T is right. Invisible if the queries stand still. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        q = q * q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT, -1)
        t = tq @ k.mT + q @ tk.mT
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def ln_2_forgotten():
    """JVP with exp2: log2(e) is folded into the scale, and A_dot takes the same folded scale without ln 2, so
    P_dot is too large by log2(e). Invisible if queries and keys stand still. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        qk_scale = q.shape[-1] ** -0.5 * 1.44269504088896340736
        s = q @ k.mT * qk_scale
        e = torch.exp2(s - s.amax(-1, keepdim=True))
        p = e / e.sum(-1, keepdim=True)
        t = (tq @ k.mT + q @ tk.mT) * qk_scale
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case(options={"scale": "scale"})
def given_scale_unknown_to_tangent():
    """JVP: a given scale counts for P, while A_dot always takes 1 / sqrt(d). Right without a given scale.
    bhsd."""
    def fn(q, k, v, scale=None):
        return torch.softmax(q @ k.mT * (scale or q.shape[-1] ** -0.5), -1) @ v

    def fn_jvp(q, k, v, tq, tk, tv, scale=None):
        p = torch.softmax(q @ k.mT * (scale or q.shape[-1] ** -0.5), -1)
        t = (tq @ k.mT + q @ tk.mT) / math.sqrt(q.shape[-1])
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


# ------------------------------------------------------- JVP: tile by tile


@case()
def tiles_sum_not_rescaled():
    """JVP over tiles of 16 keys: the row sum l is not rescaled when the maximum rises, mu, O and O_dot are.
    Right up to 16 keys. Only the JVP has it. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        top = torch.full_like(q[..., :1], -1e30)
        l = mu = torch.zeros_like(top)
        o = od = torch.zeros_like(q[..., :1] * v[..., :1, :])
        for j in range(0, k.shape[2], 16):
            kj, vj, tkj, tvj = (x[:, :, j:j + 16] for x in (k, v, tk, tv))
            s = q @ kj.mT * c
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            e, a = torch.exp(s - new), torch.exp(top - new)
            h = e * (tq @ kj.mT + q @ tkj.mT) * c
            l = l + e.sum(-1, keepdim=True)
            mu = a * mu + h.sum(-1, keepdim=True)
            o, od = a * o + e @ vj, a * od + h @ vj + e @ tvj
            top = new
        return od / l - (mu / l) * (o / l)

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def tiles_mean_not_rescaled():
    """JVP over tiles of 16 keys: the running sum mu of P A_dot is not rescaled when the maximum rises, the
    other sums are. Right up to 16 keys. Returns (o, o_dot). bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        sm_scale = q.shape[-1] ** -0.5
        m_i = torch.full_like(q[..., 0], -torch.inf)
        l_i, mu_i = torch.zeros_like(m_i), torch.zeros_like(m_i)
        acc = torch.zeros(*m_i.shape, v.shape[-1], dtype=q.dtype)
        g_acc, p_tv = torch.zeros_like(acc), torch.zeros_like(acc)
        for kj, vj, tkj, tvj in zip(*(x.split(16, 2) for x in (k, v, tk, tv))):
            qk = q @ kj.mT * sm_scale
            m_ij = torch.maximum(m_i, qk.amax(-1))
            p, alpha = torch.exp(qk - m_ij[..., None]), torch.exp(m_i - m_ij)
            p_tqk = p * ((tq @ kj.mT + q @ tkj.mT) * sm_scale)
            l_i = l_i * alpha + p.sum(-1)
            mu_i = mu_i + p_tqk.sum(-1)
            acc = acc * alpha[..., None] + p @ vj
            g_acc = g_acc * alpha[..., None] + p_tqk @ vj
            p_tv = p_tv * alpha[..., None] + p @ tvj
            m_i = m_ij
        o = acc / l_i[..., None]
        return o, (g_acc + p_tv - mu_i[..., None] * o) / l_i[..., None]

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def tiles_output_not_rescaled():
    """JVP over tiles of 32 keys: the sum for O (it enters as mu O) is not rescaled when the maximum rises, l,
    mu and O_dot are. Right up to 32 keys. Only the JVP has it. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        top, l, mu, o, od = torch.full_like(q[..., :1], -1e30), 0.0, 0.0, 0.0, 0.0
        for j in range(0, k.shape[2], 32):
            at = slice(j, j + 32)
            s, t = q @ k[:, :, at].mT * c, (tq @ k[:, :, at].mT + q @ tk[:, :, at].mT) * c
            new = torch.maximum(s.amax(-1, keepdim=True), top)
            a = torch.exp(top - new)
            e = torch.exp(s - new)
            l = l * a + e.sum(-1, keepdim=True)
            mu = mu * a + (e * t).sum(-1, keepdim=True)
            o = o + e @ v[:, :, at]
            od = od * a + (e * t) @ v[:, :, at] + e @ tv[:, :, at]
            top = new
        return (od - mu / l * o) / l

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def tiles_tangent_not_rescaled():
    """JVP over tiles of 16 keys: the sum for (P A_dot) V is not rescaled when the maximum rises, all others
    are. Right up to 16 keys, or with queries and keys that stand still. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        state = None
        for kj, vj, tkj, tvj in zip(k.split(16, 2), v.split(16, 2), tk.split(16, 2), tv.split(16, 2)):
            s = q @ kj.mT * c
            m = s.amax(-1, keepdim=True)
            m = m if state is None else torch.maximum(m, state[0])
            e = torch.exp(s - m)
            h = e * (tq @ kj.mT + q @ tkj.mT) * c
            parts = [e.sum(-1, keepdim=True), h.sum(-1, keepdim=True), e @ vj, e @ tvj, h @ vj]
            if state is not None:
                a = torch.exp(state[0] - m)
                parts = [x + a * y for x, y in zip(parts[:4], state[1:5])] + [parts[4] + state[5]]
            state = [m, *parts]
        _, l, mu, o, ov, oh = state
        return (ov + oh) / l - (mu / l) * (o / l)

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def tiles_v_dot_not_rescaled():
    """JVP over tiles of 24 keys: the separate sum for P V_dot is not rescaled when the maximum rises. Right
    up to 24 keys, or if the values stand still. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        m_i = torch.full_like(q[..., :1], -1e30)
        l_i = r_i = torch.zeros_like(m_i)
        acc = acc_a = acc_b = q.new_zeros(*q.shape[:3], v.shape[3])
        for j in range(0, k.shape[2], 24):
            kj, vj = k[:, :, j:j + 24], v[:, :, j:j + 24]
            s = c * (q @ kj.mT)
            m_new = torch.maximum(m_i, s.amax(-1, keepdim=True))
            alpha, p = torch.exp(m_i - m_new), torch.exp(s - m_new)
            h = p * (tq @ kj.mT + q @ tk[:, :, j:j + 24].mT) * c
            l_i, r_i = alpha * l_i + p.sum(-1, keepdim=True), alpha * r_i + h.sum(-1, keepdim=True)
            acc, acc_b = alpha * acc + p @ vj, alpha * acc_b + h @ vj
            acc_a = acc_a + p @ tv[:, :, j:j + 24]
            m_i = m_new
        return (acc_a + acc_b - r_i * acc / l_i) / l_i

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def last_short_tile_has_no_tangent():
    """JVP over tiles of 16 keys: the shorter rest at the end enters P and O but its A_dot stays 0. Right when
    the number of keys is a multiple of 16. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = torch.zeros_like(p)
        for i in range(k.shape[2] // 16):
            at = slice(16 * i, 16 * i + 16)
            t[..., at] = (tq @ k[:, :, at].mT + q @ tk[:, :, at].mT) * c
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def query_tangents_of_first_tile():
    """JVP over tiles of 64 queries: the pointer to Q_dot is not advanced, so later tiles read the tangents of
    the first. Right for n <= 64. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c, outs = q.shape[-1] ** -0.5, []
        for i in range(0, q.shape[2], 64):
            qi = q[:, :, i:i + 64]
            tqi = tq[:, :, :qi.shape[2]]
            p = torch.softmax(qi @ k.mT * c, -1)
            t = (tqi @ k.mT + qi @ tk.mT) * c
            outs.append((p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv)
        return torch.cat(outs, 2)

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def mean_over_first_64_keys():
    """JVP: mu is summed over the first 64 keys alone. Right for m <= 64. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        h = p * ((tq @ k.mT + q @ tk.mT) * c)
        mu = h[..., :64].sum(-1, keepdim=True)
        return h @ v - mu * (p @ v) + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case(source="kyungmnlee/dmf models/triton_utils.py (the head split into a main part and a tail)")
def feature_tail_left_out_of_tangent():
    """JVP: the features are worked through as the largest power of two and a tail, and A_dot lacks the tail.
    Right when d is a power of two. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        d = q.shape[-1]
        main = 1 << (d.bit_length() - 1)
        s = q[..., :main] @ k[..., :main].mT
        t = tq[..., :main] @ k[..., :main].mT + q[..., :main] @ tk[..., :main].mT
        if main < d:
            s = s + q[..., main:] @ k[..., main:].mT
        p = torch.softmax(s * d ** -0.5, -1)
        t = t * d ** -0.5
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case(formats=("float64", "float32"),
      source="NVlabs/rcm rcm/utils/flash_attention_jvp_triton.py (H cast for the product with V)")
def weighted_tangent_in_bfloat16():
    """JVP, rounding: P A_dot is cast to bfloat16 before its product with V whatever the format, while mu is
    summed exactly; off by about 2e-3. Visible in float64 and float32 alone. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        h = p * (tq @ k.mT + q @ tk.mT) * c
        mu = h.sum(-1, keepdim=True)
        return h.bfloat16().to(v.dtype) @ v + p @ tv - mu * (p @ v)

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def tangents_of_first_batch_entry():
    """JVP: the key tangents of the first batch entry are used for all (k_dot[:1] spread). Right for one batch
    entry. bshd."""
    def fn(q, k, v):
        w = torch.softmax(torch.einsum("bnhd,bmhd->bhnm", q, k) * q.shape[-1] ** -0.5, -1)
        return torch.einsum("bhnm,bmhd->bnhd", w, v)

    def fn_jvp(q, k, v, tq, tk, tv):
        w = torch.softmax(torch.einsum("bnhd,bmhd->bhnm", q, k) * q.shape[-1] ** -0.5, -1)
        t = torch.einsum("bnhd,bmhd->bhnm", tq, k) + torch.einsum("bnhd,bmhd->bhnm", q, tk[:1].expand_as(k))
        t = t * q.shape[-1] ** -0.5
        tw = w * (t - (w * t).sum(-1, keepdim=True))
        return torch.einsum("bhnm,bmhd->bnhd", tw, v) + torch.einsum("bhnm,bmhd->bnhd", w, tv)

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


# ------------------------------------------------------- JVP: masks, heads, dropout


@case(options={"mask": "mask"}, source="amorehead/jvp_flash_attention pull 4")
def tangent_knows_no_mask():
    """JVP: P is computed again without the mask (True keeps). Right without a mask. bhsd."""
    def fn(q, k, v, mask=None):
        s = q @ k.mT * q.shape[-1] ** -0.5
        return (s if mask is None else s.masked_fill(~mask, -torch.inf)).softmax(-1) @ v

    def fn_jvp(q, k, v, tq, tk, tv, mask=None):
        c = q.shape[-1] ** -0.5
        p = (q @ k.mT * c).softmax(-1)
        t = c * (tq @ k.mT + q @ tk.mT)
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case(options={"mask": "mask"})
def mask_forgotten_in_mean():
    """JVP: mu is taken with the weights of the unmasked softmax, P itself with the mask (True keeps). Right
    without a mask. bhsd."""
    def fn(q, k, v, mask=None):
        s = q @ k.mT * q.shape[-1] ** -0.5
        return (s if mask is None else s.masked_fill(~mask, -torch.inf)).softmax(-1) @ v

    def fn_jvp(q, k, v, tq, tk, tv, mask=None):
        s = q @ k.mT * q.shape[-1] ** -0.5
        t = (tq @ k.mT + q @ tk.mT) * q.shape[-1] ** -0.5
        mu = (s.softmax(-1) * t).sum(-1, keepdim=True)
        p = (s if mask is None else s.masked_fill(~mask, -torch.inf)).softmax(-1)
        return (p * (t - mu)) @ v + p @ tv

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case(options={"bias": "bias"})
def bias_added_to_tangent():
    """JVP: the bias is added to A_dot as well as to A, as if it moved with the scores. Right without a bias,
    or with one that is constant in a row. bhsd."""
    def fn(q, k, v, bias=None):
        s = q @ k.mT * q.shape[-1] ** -0.5
        return (s if bias is None else s + bias).softmax(-1) @ v

    def fn_jvp(q, k, v, tq, tk, tv, bias=None):
        c = q.shape[-1] ** -0.5
        bias = 0.0 if bias is None else bias
        p = (q @ k.mT * c + bias).softmax(-1)
        t = (tq @ k.mT + q @ tk.mT) * c + bias
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case(options={"causal": "causal"}, source="Dao-AILab/flash-attention pull 436")
def causal_upper_left_in_tangent():
    """JVP: the function is causal lower right, the JVP upper left. Right for n == m, and without causal.
    bhsd."""
    def weights(q, k, shift):
        s = q @ k.mT * q.shape[-1] ** -0.5
        if shift is not None:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 + shift), -torch.inf)
        return s.softmax(-1)

    def fn(q, k, v, causal=False):
        return weights(q, k, k.shape[2] - q.shape[2] if causal else None) @ v

    def fn_jvp(q, k, v, tq, tk, tv, causal=False):
        p = weights(q, k, 0 if causal else None)
        t = (tq @ k.mT + q @ tk.mT) * q.shape[-1] ** -0.5
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case(options={"causal": "causal"})
def function_jvp_ignores_causal():
    """JVP (jvp=True, torch.autograd.Function): the jvp staticmethod computes P without the causal mask (upper
    left); forward and backward have it. Right without causal. bhsd."""
    def weights(q, k, causal):
        s = q @ k.mT * q.shape[-1] ** -0.5
        if causal:
            s = s + torch.full(s.shape[-2:], -torch.inf, dtype=s.dtype).triu(1)
        return s.softmax(-1)

    class Attn(torch.autograd.Function):
        @staticmethod
        def forward(q, k, v, causal):
            return weights(q, k, causal) @ v

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs[:3])
            ctx.save_for_forward(*inputs[:3])
            ctx.causal = inputs[3]

        @staticmethod
        def backward(ctx, do):
            q, k, v = ctx.saved_tensors
            p = weights(q, k, ctx.causal)
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            return ds @ k, ds.mT @ q, p.mT @ do, None

        @staticmethod
        def jvp(ctx, tq, tk, tv, _):
            q, k, v = ctx.saved_tensors
            p = weights(q, k, False)
            t = (tq @ k.mT + q @ tk.mT) * q.shape[-1] ** -0.5
            return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": lambda q, k, v, causal=False: Attn.apply(q, k, v, causal), "jvp": True, "vjp_vjp": None}


@case()
def key_tangents_tiled_over_groups():
    """JVP with groups: K and V are repeated in place (0 0 1 1) for the query heads, their tangents are tiled
    (0 1 0 1). Right without groups and with one key head. bhsd."""
    def fn(q, k, v):
        r = q.shape[1] // k.shape[1]
        return plain(q, k.repeat_interleave(r, 1), v.repeat_interleave(r, 1))

    def fn_jvp(q, k, v, tq, tk, tv):
        r = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(r, 1) for x in (k, v))
        tk, tv = (x.repeat(1, r, 1, 1) for x in (tk, tv))
        p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
        t = (tq @ k.mT + q @ tk.mT) * q.shape[-1] ** -0.5
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case(options={"dropout": "p", "dropout_mask": "keep"})
def dropout_twice_in_tangent():
    """JVP with a given keep mask: Z = keep / (1 - p) multiplies P, and P_dot is computed from the dropped P
    and then multiplied by Z again (the means are those of the softmax). Right without dropout. bhsd."""
    def fn(q, k, v, p=0.0, keep=None):
        w = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
        return (w if keep is None or p == 0 else w * keep / (1 - p)) @ v

    def fn_jvp(q, k, v, tq, tk, tv, p=0.0, keep=None):
        c = q.shape[-1] ** -0.5
        w = torch.softmax(q @ k.mT * c, -1)
        z = torch.ones_like(w) if keep is None or p == 0 else keep.to(w.dtype) / (1 - p)
        t = c * (tq @ k.mT + q @ tk.mT)
        mu = (w * t).sum(-1, keepdim=True)
        w = w * z
        return ((w * (t - mu)) * z) @ v + w @ tv

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case(options={"dropout": "p", "dropout_mask": "keep"})
def dropout_missing_for_v_dot():
    """JVP with a given keep mask: P_dot is dropped, but the term P V_dot takes P undropped. Right without
    dropout, or if the values stand still. bhsd."""
    def fn(q, k, v, p=0.0, keep=None):
        w = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        return (w if keep is None or p == 0 else w * keep / (1 - p)) @ v

    def fn_jvp(q, k, v, tq, tk, tv, p=0.0, keep=None):
        w = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        t = (tq @ k.mT + q @ tk.mT) / math.sqrt(q.shape[-1])
        tw = w * (t - (w * t).sum(-1, keepdim=True))
        if keep is not None and p > 0:
            tw = tw * keep / (1 - p)
        return tw @ v + w @ tv

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case(options={"dropout": "p", "dropout_mask": "keep"})
def mean_of_dropped_weights():
    """JVP with a given keep mask: mu is summed with the dropped weights Z P instead of P. Right without
    dropout. bhsd."""
    def fn(q, k, v, p=0.0, keep=None):
        w = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
        return (w if keep is None or p == 0 else w * keep / (1 - p)) @ v

    def fn_jvp(q, k, v, tq, tk, tv, p=0.0, keep=None):
        w = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
        w = w if keep is None or p == 0 else w * keep / (1 - p)
        h = w * ((tq @ k.mT + q @ tk.mT) * q.shape[-1] ** -0.5)
        return h @ v - h.sum(-1, keepdim=True) * (w @ v) + w @ tv

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def last_head_tangent_from_its_neighbour():
    """JVP: the values' tangents of the last head are those of the head before it (index clamped to H - 2).
    Right for one head, or if the values stand still. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        outs = []
        for h in range(q.shape[1]):
            p = torch.softmax(q[:, h] @ k[:, h].mT * q.shape[-1] ** -0.5, -1)
            t = (tq[:, h] @ k[:, h].mT + q[:, h] @ tk[:, h].mT) * q.shape[-1] ** -0.5
            tp = p * (t - (p * t).sum(-1, keepdim=True))
            outs.append(tp @ v[:, h] + p @ tv[:, min(h, max(q.shape[1] - 2, 0))])
        return torch.stack(outs, 1)

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def k_dot_subtracted():
    """JVP: A_dot = c (Q_dot K^T - Q K_dot^T), a wrong sign. Invisible if the keys stand still. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = torch.baddbmm((tq @ k.mT).flatten(0, 1), q.flatten(0, 1), tk.flatten(0, 1).mT, beta=c, alpha=-c)
        t = t.view_as(p)
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def tangent_of_maximum_counted():
    """JVP: the scores are taken less their maximum, and so are their tangents (at the key of the maximum),
    but mu is that of the unshifted tangents; O_dot is off by - A_dot[max] O. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        s, t = q @ k.mT * c, (tq @ k.mT + q @ tk.mT) * c
        top, where = s.max(-1, keepdim=True)
        e = torch.exp(s - top)
        p = e / e.sum(-1, keepdim=True)
        mu = (p * t).sum(-1, keepdim=True)
        t = t - t.gather(-1, where)
        return (p * (t - mu)) @ v + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def mean_not_reset_between_heads():
    """JVP head by head: the running sum mu is not set back to 0 for the next head. Right for the first head
    (and for one head). bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
        mu = torch.zeros_like(q[:, 0, :, :1])
        for h in range(q.shape[1]):
            p = torch.softmax(q[:, h] @ k[:, h].mT * c, -1)
            w = p * (tq[:, h] @ k[:, h].mT + q[:, h] @ tk[:, h].mT) * c
            mu += w.sum(-1, keepdim=True)
            out[:, h] = w @ v[:, h] - mu * (p @ v[:, h]) + p @ tv[:, h]
        return out

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def halves_joined_with_frozen_share():
    """JVP of two halves of the keys joined by their logsumexp: the share sigmoid(L1 - L2) is taken for
    constant, its tangent is missing. Right for a single key, or if queries and keys stand still. bhsd."""
    def half(q, k, v, tq, tk, tv):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        t = (tq @ k.mT + q @ tk.mT) / math.sqrt(q.shape[-1])
        p = s.softmax(-1)
        return s.logsumexp(-1, keepdim=True), (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    def fn_jvp(q, k, v, tq, tk, tv):
        m = k.shape[2] // 2
        l1, to1 = half(q, k[:, :, :m], v[:, :, :m], tq, tk[:, :, :m], tv[:, :, :m])
        l2, to2 = half(q, k[:, :, m:], v[:, :, m:], tq, tk[:, :, m:], tv[:, :, m:])
        share = torch.sigmoid(l1 - l2)
        return share * to1 + (1 - share) * to2

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def wide_values_lack_a_tangent():
    """JVP: O_dot is filled for the first d features only (the buffer has the size of the queries' heads),
    further features of V get 0. Right if V has no more features than Q. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c, d = q.shape[-1] ** -0.5, q.shape[-1]
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        out = q.new_zeros(*q.shape[:3], v.shape[3])
        out[..., :d] = (p * (t - (p * t).sum(-1, keepdim=True))) @ v[..., :d] + p @ tv[..., :d]
        return out

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case(options={"causal": "causal"})
def diagonal_tile_without_q_k_dot():
    """JVP, causal upper left over square tiles of 16: the tiles on the diagonal (the masked stage) lack Q
    K_dot^T in A_dot, those before it have it. Right without causal. bhsd."""
    def weights(q, k, causal):
        s = q @ k.mT * q.shape[-1] ** -0.5
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        return s.softmax(-1)

    def fn(q, k, v, causal=False):
        return weights(q, k, causal) @ v

    def fn_jvp(q, k, v, tq, tk, tv, causal=False):
        p = weights(q, k, causal)
        second = q @ tk.mT
        if causal:
            rows, cols = torch.arange(q.shape[2]) // 16, torch.arange(k.shape[2]) // 16
            second = second.masked_fill(rows[:, None] == cols[None, :], 0.0)
        t = (tq @ k.mT + second) * q.shape[-1] ** -0.5
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case(options={"mask": "mask"})
def hidden_tangents_are_minus_infinity():
    """JVP: A_dot gets minus infinity at hidden keys (mask True keeps) like A, so P A_dot is 0 times infinity
    and O_dot is NaN where a row has a hidden key. Right without a mask. bhsd."""
    def fn(q, k, v, mask=None):
        s = q @ k.mT * q.shape[-1] ** -0.5
        return (s if mask is None else torch.where(mask, s, -torch.inf)).softmax(-1) @ v

    def fn_jvp(q, k, v, tq, tk, tv, mask=None):
        s = q @ k.mT * q.shape[-1] ** -0.5
        t = (tq @ k.mT + q @ tk.mT) * q.shape[-1] ** -0.5
        if mask is not None:
            s, t = torch.where(mask, s, -torch.inf), torch.where(mask, t, -torch.inf)
        p = s.softmax(-1)
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case(formats=("float64", "float32"))
def one_sided_difference():
    """JVP, rounding: a one-sided difference (f(x + h x_dot) - f(x)) / h with h = 0.01 in place of the
    derivative; off by about 1e-2 where the function bends. Right if values alone move. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        h = 1e-2
        o = plain(q, k, v)
        return o, (plain(q + h * tq, k + h * tk, v + h * tv) - o) / h

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def tangent_without_maximum():
    """JVP: P is computed again as exp(A) / rowsum(exp(A)) without the maximum, which overflows to NaN for
    scores above 88 in float32 (709 in float64). Right for smaller scores. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        e = torch.exp(q @ k.mT * c)
        p = e / e.sum(-1, keepdim=True)
        t = (tq @ k.mT + q @ tk.mT) * c
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def tangents_clamped():
    """JVP: A_dot is clamped to [-3, 3], so O_dot is not linear in the tangents. Right for small tangents.
    bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = ((tq @ k.mT + q @ tk.mT) * c).clamp(-3, 3)
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def small_weights_skipped_in_tangent():
    """JVP: weights below 0.01 are skipped in P A_dot (in mu and in O_dot), though not in P V_dot. Right where
    all weights are larger. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        h = torch.where(p < 0.01, 0.0, p * (tq @ k.mT + q @ tk.mT) * c)
        return h @ v - h.sum(-1, keepdim=True) * (p @ v) + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def small_rise_not_rescaled_in_tangent():
    """JVP over tiles of 16 keys: mu and O_dot are rescaled only where the maximum rises by more than 1, while
    the maximum always moves on; l and O are rescaled always. Right up to 16 keys. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        top = torch.full_like(q[..., :1], -1e30)
        l = mu = torch.zeros_like(top)
        o = od = q.new_zeros(*q.shape[:3], v.shape[3])
        for kj, vj, tkj, tvj in zip(*(x.split(16, 2) for x in (k, v, tk, tv)), strict=True):
            s = q @ kj.mT * c
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            e, a = torch.exp(s - new), torch.exp(top - new)
            b = torch.where(new - top > 1, a, 1.0)
            h = e * (tq @ kj.mT + q @ tkj.mT) * c
            l, mu = a * l + e.sum(-1, keepdim=True), b * mu + h.sum(-1, keepdim=True)
            o, od = a * o + e @ vj, b * od + h @ vj + e @ tvj
            top = new
        return od / l - (mu / l) * (o / l)

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case(options={"causal": "causal"})
def first_causal_row_has_no_tangent():
    """JVP, causal upper left: the first query sees one key, so its P_dot is 0, and its row of O_dot is set to
    0 altogether, V_dot of that key forgotten. Right without causal and in all other rows. bshd."""
    def weights(q, k, causal):
        s = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(q.shape[-1])
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        return s.softmax(-1)

    def fn(q, k, v, causal=False):
        return torch.einsum("bhnm,bmhd->bnhd", weights(q, k, causal), v)

    def fn_jvp(q, k, v, tq, tk, tv, causal=False):
        p = weights(q, k, causal)
        t = torch.einsum("bnhd,bmhd->bhnm", tq, k) + torch.einsum("bnhd,bmhd->bhnm", q, tk)
        t = t / math.sqrt(q.shape[-1])
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        out = torch.einsum("bhnm,bmhd->bnhd", tp, v) + torch.einsum("bhnm,bmhd->bnhd", p, tv)
        if causal:
            out[:, 0] = 0
        return out

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


# ------------------------------------------------------- double backward by hand


@case()
def weights_constant_in_double_backward():
    """Double backward: P is taken for constant: v_bar = 0 and dA_dot = P (dP_dot - D_dot) without P_dot (dP -
    D); do_bar is right. Invisible if q_dot and k_dot are 0. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        to = tp @ v + p @ tv
        ds = p * (do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)) * c
        tds = p * (do @ tv.mT - (do * to).sum(-1, keepdim=True)) * c
        return to, tds @ k + ds @ tk, tds.mT @ q + ds.mT @ tq, torch.zeros_like(v)

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def delta_frozen_in_double_backward():
    """Double backward: D is taken for constant, so dA_dot lacks - P D_dot with D_dot = rowsum(dO O_dot);
    q_bar and k_bar wrong. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * (tp * e + p * (do @ tv.mT))
        return tp @ v + p @ tv, tds @ k + ds @ tk, tds.mT @ q + ds.mT @ tq, tp.mT @ do

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def delta_dot_without_p_v_dot():
    """Double backward: D_dot = rowsum(dO (P_dot V)), without the part of P V_dot; do_bar is right, q_bar and
    k_bar wrong. Invisible if v_dot is 0. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        o_dot = tp @ v
        D, tD = (do * (p @ v)).sum(-1, keepdim=True), (do * o_dot).sum(-1, keepdim=True)
        e, te = do @ v.mT - D, do @ tv.mT - tD
        ds, tds = c * p * e, c * (tp * e + p * te)
        return o_dot + p @ tv, tds @ k + ds @ tk, tds.mT @ q + ds.mT @ tq, tp.mT @ do

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case(formats=("float64", "float32"))
def delta_dot_without_p_dot():
    """Double backward: D_dot = rowsum(P dP_dot), without rowsum(P_dot dP); q_bar and k_bar wrong. Invisible
    if q_dot and k_dot are 0. NumPy, bhsd."""
    def fn(q, k, v):
        return softmax_np(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v

    def vjp_vjp(q_dot, k_dot, v_dot, do, q, k, v):
        r = math.sqrt(q.shape[-1])
        p = softmax_np(q @ k.swapaxes(-1, -2) / r)
        a_dot = (q_dot @ k.swapaxes(-1, -2) + q @ k_dot.swapaxes(-1, -2)) / r
        p_dot = p * (a_dot - (p * a_dot).sum(-1, keepdims=True))
        dp, dp_dot = do @ v.swapaxes(-1, -2), do @ v_dot.swapaxes(-1, -2)
        e = dp - (p * dp).sum(-1, keepdims=True)
        da = p * e / r
        da_dot = (p_dot * e + p * (dp_dot - (p * dp_dot).sum(-1, keepdims=True))) / r
        return (p_dot @ v + p @ v_dot, da_dot @ k + da @ k_dot,
                da_dot.swapaxes(-1, -2) @ q + da.swapaxes(-1, -2) @ q_dot, p_dot.swapaxes(-1, -2) @ do)

    return {"fn": fn, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def delta_dot_added():
    """Double backward: dA_dot = P_dot (dP - D) + P (dP_dot + D_dot), the sign of D_dot is wrong; q_bar and
    k_bar wrong. bshd."""
    def weights(q, k):
        return torch.einsum("bnhd,bmhd->bhnm", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)

    def fn(q, k, v):
        return torch.einsum("bhnm,bmhd->bnhd", weights(q, k), v)

    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        outer = lambda x, y: torch.einsum("bnhd,bmhd->bhnm", x, y)  # noqa: E731
        rows = lambda w, y: torch.einsum("bhnm,bmhd->bnhd", w, y)  # noqa: E731
        cols = lambda w, x: torch.einsum("bhnm,bnhd->bmhd", w, x)  # noqa: E731
        p = weights(q, k)
        t = c * (outer(tq, k) + outer(q, tk))
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        dp, tdp = outer(do, v), outer(do, tv)
        e = dp - (p * dp).sum(-1, keepdim=True)
        te = tdp + (tp * dp + p * tdp).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * (tp * e + p * te)
        return rows(tp, v) + rows(p, tv), rows(tds, k) + rows(ds, tk), cols(tds, q) + cols(ds, tq), cols(tp, do)

    return {"fn": fn, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def k_bar_without_da_q_dot():
    """Double backward: k_bar = c dA_dot^T Q, without c dA^T Q_dot. Invisible if q_dot is 0. The JVP is right.
    bhsd."""
    def jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        to = jvp(q, k, v, tq, tk, tv)
        e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
        te = do @ tv.mT - (do * to).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * (tp * e + p * te)
        return to, tds @ k + ds @ tk, tds.mT @ q, tp.mT @ do

    return {"fn": plain, "jvp": jvp, "vjp_vjp": vjp_vjp}


@case()
def q_bar_without_da_k_dot():
    """Double backward: q_bar = c dA_dot K, without c dA K_dot. Invisible if k_dot is 0. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        r = math.sqrt(q.shape[-1])
        p = torch.softmax(q @ k.mT / r, -1)
        t = (tq @ k.mT + q @ tk.mT) / r
        tp = p * t - p * (p * t).sum(-1, keepdim=True)
        dp, tdp = do @ v.mT, do @ tv.mT
        D, tD = (dp * p).sum(-1, keepdim=True), (dp * tp + tdp * p).sum(-1, keepdim=True)
        ds, tds = p * (dp - D) / r, (tp * (dp - D) + p * (tdp - tD)) / r
        return tp @ v + p @ tv, tds @ k, tds.mT @ q + ds.mT @ tq, tp.mT @ do

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def v_bar_is_zero():
    """Double backward: v_bar is returned as zeros (dV = P^T dO was taken not to depend on the scores).
    Invisible if q_dot and k_dot are 0. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        to = tp @ v + p @ tv
        e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
        te = do @ tv.mT - (do * to).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * (tp * e + p * te)
        return to, tds @ k + ds @ tk, tds.mT @ q + ds.mT @ tq, torch.zeros_like(v)

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def v_bar_with_uncentred_weights():
    """Double backward: v_bar = (P A_dot)^T dO, the mean mu is not subtracted for it; the others are right.
    Invisible if q_dot and k_dot are 0. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        h = p * (tq @ k.mT + q @ tk.mT) * c
        tp = h - p * h.sum(-1, keepdim=True)
        to = tp @ v + p @ tv
        e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
        te = do @ tv.mT - (do * to).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * (tp * e + p * te)
        return to, tds @ k + ds @ tk, tds.mT @ q + ds.mT @ tq, h.mT @ do

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def do_bar_without_p_v_dot():
    """Double backward: do_bar = P_dot V, the part P V_dot is not added; D_dot has it, so the rest is right.
    Invisible if v_dot is 0. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        o_dot = tp @ v
        tD = (do * (o_dot + p @ tv)).sum(-1, keepdim=True)
        e, te = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True), do @ tv.mT - tD
        ds, tds = c * p * e, c * (tp * e + p * te)
        return o_dot, tds @ k + ds @ tk, tds.mT @ q + ds.mT @ tq, tp.mT @ do

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def dp_dot_missing():
    """Double backward: dP_dot = dO V_dot^T is missing in dA_dot, so q_bar and k_bar lack it; D_dot is right.
    Invisible if v_dot is 0. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        to = tp @ v + p @ tv
        e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
        ds = c * p * e
        tds = c * (tp * e - p * (do * to).sum(-1, keepdim=True))
        return to, tds @ k + ds @ tk, tds.mT @ q + ds.mT @ tq, tp.mT @ do

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case(formats=("float64", "float32"))
def scale_missing_in_da_k_dot():
    """Double backward: in q_bar = c dA_dot K + c dA K_dot the second term lacks c. Invisible if k_dot is 0.
    NumPy, bhsd."""
    def fn(q, k, v):
        return softmax_np(q @ np.swapaxes(k, -1, -2) * q.dtype.type(q.shape[-1] ** -0.5)) @ v

    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.dtype.type(q.shape[-1] ** -0.5)
        T = lambda x: np.swapaxes(x, -1, -2)  # noqa: E731
        p = softmax_np(q @ T(k) * c)
        t = c * (tq @ T(k) + q @ T(tk))
        tp = p * (t - (p * t).sum(-1, keepdims=True))
        to = tp @ v + p @ tv
        e = do @ T(v) - (do * (p @ v)).sum(-1, keepdims=True)
        te = do @ T(tv) - (do * to).sum(-1, keepdims=True)
        da, da_dot = p * e, tp * e + p * te
        return to, c * (da_dot @ k) + da @ tk, c * (T(da_dot) @ q + T(da) @ tq), T(tp) @ do

    return {"fn": fn, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def da_not_transposed_in_k_bar():
    """Double backward: with n == m the term dA^T Q_dot of k_bar is taken as dA Q_dot; right for n != m.
    Invisible if q_dot is 0. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        to = tp @ v + p @ tv
        e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
        te = do @ tv.mT - (do * to).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * (tp * e + p * te)
        turned = ds if q.shape[2] == k.shape[2] else ds.mT
        return to, tds @ k + ds @ tk, tds.mT @ q + turned @ tq, tp.mT @ do

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def groups_not_summed_back():
    """Double backward with groups: k_bar and v_bar are averaged over the query heads of a group instead of
    summed. Right without groups. The JVP is right. bhsd."""
    def spread(x, q):
        return x.repeat_interleave(q.shape[1] // x.shape[1], 1)

    def fn(q, k, v):
        return plain(q, spread(k, q), spread(v, q))

    def jvp(q, k, v, tq, tk, tv):
        k, v, tk, tv = (spread(x, q) for x in (k, v, tk, tv))
        p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
        t = (tq @ k.mT + q @ tk.mT) * q.shape[-1] ** -0.5
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c, r = q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]
        k, v, tk, tv = (spread(x, q) for x in (k, v, tk, tv))
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        to = tp @ v + p @ tv
        e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
        te = do @ tv.mT - (do * to).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * (tp * e + p * te)
        fold = lambda x: x.unflatten(1, (-1, r)).mean(2)  # noqa: E731
        return to, tds @ k + ds @ tk, fold(tds.mT @ q + ds.mT @ tq), fold(tp.mT @ do)

    return {"fn": fn, "jvp": jvp, "vjp_vjp": vjp_vjp}


@case()
def groups_second_term_from_first_head():
    """Double backward with groups: the term dA^T Q_dot of k_bar is that of the first query head of each group
    only, the term dA_dot^T Q is summed. Right without groups, or if q_dot is 0. bhsd."""
    def spread(x, q):
        return x.repeat_interleave(q.shape[1] // x.shape[1], 1)

    def fn(q, k, v):
        return plain(q, spread(k, q), spread(v, q))

    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c, r = q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]
        k, v, tk, tv = (spread(x, q) for x in (k, v, tk, tv))
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        to = tp @ v + p @ tv
        e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
        te = do @ tv.mT - (do * to).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * (tp * e + p * te)
        fold = lambda x: x.unflatten(1, (-1, r)).sum(2)  # noqa: E731
        k_bar = fold(tds.mT @ q) + (ds.mT @ tq)[:, ::r]
        return to, tds @ k + ds @ tk, k_bar, fold(tp.mT @ do)

    return {"fn": fn, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def delta_dot_still_running():
    """Double backward over tiles of 32 keys: D_dot is added up tile by tile and used in each tile before it
    is complete. Right up to 32 keys; else q_bar and k_bar wrong. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        p_all = torch.softmax(q @ k.mT * c, -1)
        t_all = (tq @ k.mT + q @ tk.mT) * c
        tp_all = p_all * (t_all - (p_all * t_all).sum(-1, keepdim=True))
        D = (do * (p_all @ v)).sum(-1, keepdim=True)
        tD = torch.zeros_like(D)
        q_bar, k_bar = torch.zeros_like(q), torch.zeros_like(k)
        for j in range(0, k.shape[2], 32):
            at = slice(j, j + 32)
            p, tp = p_all[..., at], tp_all[..., at]
            dp, tdp = do @ v[:, :, at].mT, do @ tv[:, :, at].mT
            tD = tD + (tp * dp + p * tdp).sum(-1, keepdim=True)
            ds, tds = c * p * (dp - D), c * (tp * (dp - D) + p * (tdp - tD))
            q_bar = q_bar + tds @ k[:, :, at] + ds @ tk[:, :, at]
            k_bar[:, :, at] = tds.mT @ q + ds.mT @ tq
        return tp_all @ v + p_all @ tv, q_bar, k_bar, tp_all.mT @ do

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def q_bar_second_term_overwritten():
    """Double backward over tiles of 16 keys: the term dA K_dot of q_bar is assigned, not added, in each tile,
    so the last tile's is left. Right up to 16 keys, or if k_dot is 0. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        L = torch.logsumexp(q @ k.mT * c, -1, keepdim=True)
        p = torch.exp(q @ k.mT * c - L)
        t = (tq @ k.mT + q @ tk.mT) * c
        mu = (p * t).sum(-1, keepdim=True)
        to = (p * (t - mu)) @ v + p @ tv
        D, tD = (do * (p @ v)).sum(-1, keepdim=True), (do * to).sum(-1, keepdim=True)
        q1, q2, kb, vb = torch.zeros_like(q), torch.zeros_like(q), [], []
        for kj, vj, tkj, tvj in zip(*(x.split(16, 2) for x in (k, v, tk, tv))):
            p = torch.exp(q @ kj.mT * c - L)
            tp = p * ((tq @ kj.mT + q @ tkj.mT) * c - mu)
            e, te = do @ vj.mT - D, do @ tvj.mT - tD
            ds, tds = c * p * e, c * (tp * e + p * te)
            q1 = q1 + tds @ kj
            q2 = ds @ tkj
            kb.append(tds.mT @ q + ds.mT @ tq)
            vb.append(tp.mT @ do)
        return to, q1 + q2, torch.cat(kb, 2), torch.cat(vb, 2)

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case(options={"causal": "causal"}, source="triton-lang/triton issue 4541")
def double_backward_ignores_causal():
    """Double backward: P is computed again without the causal mask (upper left); all four wrong with
    causal=True. Right without causal. bhsd."""
    def fn(q, k, v, causal=False):
        s = q @ k.mT * q.shape[-1] ** -0.5
        if causal:
            s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        return s.softmax(-1) @ v

    def vjp_vjp(tq, tk, tv, do, q, k, v, causal=False):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        to = tp @ v + p @ tv
        e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
        te = do @ tv.mT - (do * to).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * (tp * e + p * te)
        return to, tds @ k + ds @ tk, tds.mT @ q + ds.mT @ tq, tp.mT @ do

    return {"fn": fn, "jvp": None, "vjp_vjp": vjp_vjp}


@case(options={"dropout": "p", "dropout_mask": "keep"})
def dp_dot_not_dropped():
    """Double backward with a given keep mask: dP is dropped, dP_dot = dO V_dot^T is not; q_bar and k_bar
    wrong. Right without dropout, or if v_dot is 0. bhsd."""
    def fn(q, k, v, p=0.0, keep=None):
        w = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
        return (w if keep is None or p == 0 else w * keep / (1 - p)) @ v

    def vjp_vjp(tq, tk, tv, do, q, k, v, p=0.0, keep=None):
        c = q.shape[-1] ** -0.5
        w = torch.softmax(q @ k.mT * c, -1)
        z = torch.ones_like(w) if keep is None or p == 0 else keep.to(w.dtype) / (1 - p)
        t = (tq @ k.mT + q @ tk.mT) * c
        tw = w * (t - (w * t).sum(-1, keepdim=True))
        dw, tdw = z * (do @ v.mT), do @ tv.mT
        e = dw - (w * dw).sum(-1, keepdim=True)
        te = tdw - (tw * dw + w * tdw).sum(-1, keepdim=True)
        ds, tds = c * w * e, c * (tw * e + w * te)
        return ((z * tw) @ v + (z * w) @ tv, tds @ k + ds @ tk, tds.mT @ q + ds.mT @ tq, (z * tw).mT @ do)

    return {"fn": fn, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def keys_beyond_queries_lack_a_term():
    """Double backward: k_bar is filled for the first n keys only (a buffer of the queries' length), keys
    after the n-th get 0. Right for m <= n. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        to = tp @ v + p @ tv
        e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
        te = do @ tv.mT - (do * to).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * (tp * e + p * te)
        k_bar = torch.zeros_like(k)
        n = q.shape[2]
        k_bar[:, :, :n] = (tds.mT @ q + ds.mT @ tq)[:, :, :n]
        return to, tds @ k + ds @ tk, k_bar, tp.mT @ do

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def term_of_third_order_kept():
    """Double backward: dA_dot = (P + P_dot)(e + e_dot) - P e, so the product P_dot e_dot is kept, which is
    quadratic in the tangents; q_bar and k_bar wrong. Invisible for tiny tangents, or if q_dot and k_dot are
    0. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        to = tp @ v + p @ tv
        e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
        te = do @ tv.mT - (do * to).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * ((p + tp) * (e + te) - p * e)
        return to, tds @ k + ds @ tk, tds.mT @ q + ds.mT @ tq, tp.mT @ do

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case(options={"bias": "bias"})
def double_backward_ignores_bias():
    """Double backward: P is computed again without the bias; all four wrong with a bias. Right without.
    bhsd."""
    def fn(q, k, v, bias=None):
        s = q @ k.mT * q.shape[-1] ** -0.5
        return (s if bias is None else s + bias).softmax(-1) @ v

    def vjp_vjp(tq, tk, tv, do, q, k, v, bias=None):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        dp, tdp = do @ v.mT, do @ tv.mT
        e = dp - (p * dp).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * (tp * e + p * (tdp - (tp * dp + p * tdp).sum(-1, keepdim=True)))
        return tp @ v + p @ tv, tds @ k + ds @ tk, tds.mT @ q + ds.mT @ tq, tp.mT @ do

    return {"fn": fn, "jvp": None, "vjp_vjp": vjp_vjp}


@case(options={"scale": "scale"})
def given_scale_lost_at_the_end():
    """Double backward: a given scale counts for A and A_dot, while the factor of q_bar and k_bar is always 1
    / sqrt(d). Right without a given scale. bhsd."""
    def fn(q, k, v, scale=None):
        return torch.softmax(q @ k.mT * (scale or q.shape[-1] ** -0.5), -1) @ v

    def vjp_vjp(tq, tk, tv, do, q, k, v, scale=None):
        c = scale or q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        to = tp @ v + p @ tv
        e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
        te = do @ tv.mT - (do * to).sum(-1, keepdim=True)
        c = 1 / math.sqrt(q.shape[-1])
        ds, tds = c * p * e, c * (tp * e + p * te)
        return to, tds @ k + ds @ tk, tds.mT @ q + ds.mT @ tq, tp.mT @ do

    return {"fn": fn, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def late_queries_lack_a_term():
    """Double backward over tiles of 64 queries: the term dA^T Q_dot of k_bar is added for the first tile
    alone. Right for n <= 64, or if q_dot is 0. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        bars = [[], [], torch.zeros_like(k), torch.zeros_like(v)]
        for i in range(0, q.shape[2], 64):
            qi, tqi, doi = (x[:, :, i:i + 64] for x in (q, tq, do))
            p = torch.softmax(qi @ k.mT * c, -1)
            t = (tqi @ k.mT + qi @ tk.mT) * c
            tp = p * (t - (p * t).sum(-1, keepdim=True))
            to = tp @ v + p @ tv
            e = doi @ v.mT - (doi * (p @ v)).sum(-1, keepdim=True)
            te = doi @ tv.mT - (doi * to).sum(-1, keepdim=True)
            ds, tds = c * p * e, c * (tp * e + p * te)
            bars[0].append(to)
            bars[1].append(tds @ k + ds @ tk)
            bars[2] += tds.mT @ qi + (ds.mT @ tqi if i == 0 else 0)
            bars[3] += tp.mT @ doi
        return torch.cat(bars[0], 2), torch.cat(bars[1], 2), bars[2], bars[3]

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case(formats=("float64", "float32"),
      source="alexgabel/theria docs/phase9_backward.md (differences for the second order)")
def double_backward_by_one_sided_difference():
    """Double backward, rounding: q_bar, k_bar and v_bar are one-sided differences of the backward with a step
    of 0.02, off by about 1e-2; do_bar is exact. bhsd."""
    def backward(do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        dp = do @ v.mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * c
        return ds @ k, ds.mT @ q, p.mT @ do

    def vjp_vjp(tq, tk, tv, do, q, k, v):
        h, c = 0.02, q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        to = (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv
        there, here = backward(do, q + h * tq, k + h * tk, v + h * tv), backward(do, q, k, v)
        return (to, *((x - y) / h for x, y in zip(there, here)))

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case(formats=("float64", "float32"))
def o_dot_for_delta_in_bfloat16():
    """Double backward, rounding: O_dot is stored in bfloat16 for D_dot = rowsum(dO O_dot), so q_bar and k_bar
    are off by about 1e-3; do_bar is returned unrounded. Visible in float64 and float32 alone. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        to = tp @ v + p @ tv
        stored = to.bfloat16()
        e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
        te = do @ tv.mT - (do * stored.to(do.dtype)).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * (tp * e + p * te)
        return to, tds @ k + ds @ tk, tds.mT @ q + ds.mT @ tq, tp.mT @ do

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case(options={"mask": "mask"})
def mask_of_mean_forgotten_in_double_backward():
    """Double backward: mu (in P_dot) is taken with the unmasked softmax, P with the mask (True keeps); all
    four wrong with a mask, right without. The JVP is right. bshd."""
    def scores(q, k):
        return torch.einsum("bnhd,bmhd->bhnm", q, k) * q.shape[-1] ** -0.5

    def weights(q, k, mask):
        s = scores(q, k)
        return (s if mask is None else s.masked_fill(~mask, -torch.inf)).softmax(-1)

    def rows(w, x):
        return torch.einsum("bhnm,bmhd->bnhd", w, x)

    def cols(w, x):
        return torch.einsum("bhnm,bnhd->bmhd", w, x)

    def fn(q, k, v, mask=None):
        return rows(weights(q, k, mask), v)

    def jvp(q, k, v, tq, tk, tv, mask=None):
        p, t = weights(q, k, mask), scores(tq, k) + scores(q, tk)
        return rows(p * (t - (p * t).sum(-1, keepdim=True)), v) + rows(p, tv)

    def vjp_vjp(tq, tk, tv, do, q, k, v, mask=None):
        c = q.shape[-1] ** -0.5
        p, t = weights(q, k, mask), scores(tq, k) + scores(q, tk)
        tp = p * (t - (weights(q, k, None) * t).sum(-1, keepdim=True))
        dp, tdp = torch.einsum("bnhd,bmhd->bhnm", do, v), torch.einsum("bnhd,bmhd->bhnm", do, tv)
        e = dp - (p * dp).sum(-1, keepdim=True)
        te = tdp - (tp * dp + p * tdp).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * (tp * e + p * te)
        return rows(tp, v) + rows(p, tv), rows(tds, k) + rows(ds, tk), cols(tds, q) + cols(ds, tq), cols(tp, do)

    return {"fn": fn, "jvp": jvp, "vjp_vjp": vjp_vjp}


# ------------------------------------------------------- double backward left to autograd


@case(source="pytorch/pytorch issue 58509; pytorch/pytorch issue 76185")
def saved_weights_stand_still():
    """Double backward (vjp_vjp=True): the Function saves P, made in forward, so its backward is
    differentiated with P constant; q_bar and k_bar wrong, do_bar and v_bar right. First order right. bhsd."""
    class Attn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
            ctx.save_for_backward(q, k, v, p)
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            return ds @ k, ds.mT @ q, p.mT @ do

    return {"fn": lambda q, k, v: Attn.apply(q, k, v), "jvp": None, "vjp_vjp": True}


@case(source="pytorch/pytorch issue 104040")
def saved_logsumexp_stands_still():
    """Double backward (vjp_vjp=True): the Function saves q, k, v, o and L; in its backward P = exp(A - L)
    moves with A but not with L, so P_dot lacks the mean; q_bar and k_bar wrong, do_bar and v_bar right. First
    order right. bhsd."""
    class Attn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, c):
            L = torch.logsumexp(q @ k.mT * c, -1, keepdim=True)
            o = torch.exp(q @ k.mT * c - L) @ v
            ctx.save_for_backward(q, k, v, o, L)
            ctx.c = c
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, L = ctx.saved_tensors
            p = torch.exp(q @ k.mT * ctx.c - L)
            ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) * ctx.c
            return ds @ k, ds.mT @ q, p.mT @ do, None

    return {"fn": lambda q, k, v: Attn.apply(q, k, v, q.shape[-1] ** -0.5), "jvp": None, "vjp_vjp": True}


@case()
def delta_without_grad():
    """Double backward (vjp_vjp=True): the backward computes D under no_grad, so D_dot is missing and do_bar
    and v_bar lack what reaches dO and V through D; all four wrong. First order right. bhsd."""
    class Attn(torch.autograd.Function):
        @staticmethod
        def forward(q, k, v):
            return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, do):
            q, k, v = ctx.saved_tensors
            p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
            with torch.no_grad():
                delta = (do * (p @ v)).sum(-1, keepdim=True)
            ds = p * (do @ v.mT - delta) * q.shape[-1] ** -0.5
            return ds @ k, ds.mT @ q, p.mT @ do

    return {"fn": Attn.apply, "jvp": None, "vjp_vjp": True}


@case()
def output_detached_in_delta():
    """Double backward (vjp_vjp=True): D = rowsum(dO o.detach()), so do_bar is right and D_dot lacks dO O_dot;
    q_bar, k_bar, v_bar wrong. First order right. bshd."""
    class Attn(torch.autograd.Function):
        @staticmethod
        def forward(q, k, v):
            w = torch.einsum("bnhd,bmhd->bhnm", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)
            return torch.einsum("bhnm,bmhd->bnhd", w, v)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, do):
            q, k, v = ctx.saved_tensors
            w = torch.einsum("bnhd,bmhd->bhnm", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)
            o = torch.einsum("bhnm,bmhd->bnhd", w, v).detach()
            delta = (do * o).sum(-1).transpose(1, 2)[..., None]
            ds = w * (torch.einsum("bnhd,bmhd->bhnm", do, v) - delta) * q.shape[-1] ** -0.5
            return (torch.einsum("bhnm,bmhd->bnhd", ds, k), torch.einsum("bhnm,bnhd->bmhd", ds, q),
                    torch.einsum("bhnm,bnhd->bmhd", w, do))

    return {"fn": Attn.apply, "jvp": None, "vjp_vjp": True}


@case()
def second_function_without_do_bar():
    """Double backward (vjp_vjp=True): the backward is a Function of its own whose backward gives zeros for
    dO; q_bar, k_bar and v_bar are right. First order right. bhsd."""
    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, do, q, k, v):
            c = q.shape[-1] ** -0.5
            p = torch.softmax(q @ k.mT * c, -1)
            ctx.save_for_backward(do, q, k, v, p)
            ds = p * (do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)) * c
            return ds @ k, ds.mT @ q, p.mT @ do

        @staticmethod
        def backward(ctx, gq, gk, gv):
            do, q, k, v, p = ctx.saved_tensors
            c = q.shape[-1] ** -0.5
            t = c * (gq @ k.mT + q @ gk.mT)
            tp = p * (t - (p * t).sum(-1, keepdim=True))
            e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
            te = do @ gv.mT - (do * (tp @ v + p @ gv)).sum(-1, keepdim=True)
            ds, tds = c * p * e, c * (tp * e + p * te)
            return torch.zeros_like(do), tds @ k + ds @ gk, tds.mT @ q + ds.mT @ gq, tp.mT @ do

    class Forward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v)
            return plain(q, k, v)

        @staticmethod
        def backward(ctx, do):
            return Backward.apply(do, *ctx.saved_tensors)

    return {"fn": lambda q, k, v: Forward.apply(q, k, v), "jvp": None, "vjp_vjp": True}


# ------------------------------------------------------- pairs


@case()
def pair_k_dot_missing_and_scale_twice():
    """Two, JVP: the term Q K_dot^T is missing, and A_dot is multiplied by c twice. Invisible if queries and
    keys stand still. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        p = torch.softmax((q * c) @ k.mT, -1)
        t = c * ((tq * c) @ k.mT)
        return (p * (t - (p * t).sum(-1, keepdim=True))) @ v + p @ tv

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def pair_delta_frozen_and_k_bar_short():
    """Two, double backward: D is taken for constant (q_bar, k_bar), and k_bar lacks dA^T Q_dot. bhsd."""
    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.mT * c, -1)
        t = (tq @ k.mT + q @ tk.mT) * c
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * (tp * e + p * (do @ tv.mT))
        return tp @ v + p @ tv, tds @ k + ds @ tk, tds.mT @ q, tp.mT @ do

    return {"fn": plain, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def pair_mean_not_rescaled_and_last_v_dot_tile():
    """Two, JVP over tiles of 16 keys: the running mu is not rescaled, and V_dot of the last tile is skipped
    when it is shorter. Right up to 16 keys, but for the last. bhsd."""
    def fn_jvp(q, k, v, tq, tk, tv):
        c = q.shape[-1] ** -0.5
        top = torch.full_like(q[..., :1], -1e30)
        l = mu = torch.zeros_like(top)
        o = od = q.new_zeros(*q.shape[:3], v.shape[3])
        for j in range(0, k.shape[2], 16):
            kj, vj, tkj, tvj = (x[:, :, j:j + 16] for x in (k, v, tk, tv))
            s = q @ kj.mT * c
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            e, a = torch.exp(s - new), torch.exp(top - new)
            h = e * (tq @ kj.mT + q @ tkj.mT) * c
            l, mu = a * l + e.sum(-1, keepdim=True), mu + h.sum(-1, keepdim=True)
            o, od = a * o + e @ vj, a * od + h @ vj
            if kj.shape[2] == 16:
                od = od + e @ tvj
            top = new
        return od / l - (mu / l) * (o / l)

    return {"fn": plain, "jvp": fn_jvp, "vjp_vjp": None}


@case(options={"causal": "causal"})
def pair_causal_and_groups_in_tangent():
    """Two: the JVP has no causal mask (upper left in the function), and in the double backward, which has it,
    v_bar with groups is that of the first query head of each group. bhsd."""
    def weights(q, k, causal):
        s = q @ k.mT * q.shape[-1] ** -0.5
        if causal:
            s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        return s.softmax(-1)

    def spread(q, *xs):
        return [x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in xs]

    def moved(q, k, tq, tk, causal):
        p = weights(q, k, causal)
        t = (tq @ k.mT + q @ tk.mT) * q.shape[-1] ** -0.5
        return p, p * (t - (p * t).sum(-1, keepdim=True))

    def fn(q, k, v, causal=False):
        k, v = spread(q, k, v)
        return weights(q, k, causal) @ v

    def jvp(q, k, v, tq, tk, tv, causal=False):
        k, v, tk, tv = spread(q, k, v, tk, tv)
        p, tp = moved(q, k, tq, tk, False)
        return tp @ v + p @ tv

    def vjp_vjp(tq, tk, tv, do, q, k, v, causal=False):
        c, r = q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]
        k, v, tk, tv = spread(q, k, v, tk, tv)
        p, tp = moved(q, k, tq, tk, causal)
        to = tp @ v + p @ tv
        e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
        te = do @ tv.mT - (do * to).sum(-1, keepdim=True)
        ds, tds = c * p * e, c * (tp * e + p * te)
        k_bar = (tds.mT @ q + ds.mT @ tq).unflatten(1, (-1, r)).sum(2)
        return to, tds @ k + ds @ tk, k_bar, (tp.mT @ do)[:, ::r]

    return {"fn": fn, "jvp": jvp, "vjp_vjp": vjp_vjp}
