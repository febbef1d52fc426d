"""Right candidates of the second order: attention with its JVP, its double backward or both, written anew in
the styles of public code. Each make() gives {"fn": f, "jvp": g or None, "vjp_vjp": h or None}."""

import math

import numpy as np
import torch
import torch.autograd.forward_ad as fwAD
import torch.nn.functional as F
from cases import collection

CASES, case = collection()


def inner(x):
    """The type of the inner sums: float32 for a short format, else its own."""
    return torch.promote_types(x.dtype, torch.float32)


# ---------------------------------------------------------------- JVP alone


@case()
def plain_softmax_jvp():
    """JVP by definition: the tangent of the scores, of the softmax, and the product rule for P V. Returns
    o_dot alone. bhsd."""
    def attend(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1) @ v

    def jvp(q, k, v, tq, tk, tv):
        scale = 1 / math.sqrt(q.shape[-1])
        p = torch.softmax(q @ k.transpose(-1, -2) * scale, dim=-1)
        ts = (tq @ k.transpose(-1, -2) + q @ tk.transpose(-1, -2)) * scale
        tp = p * (ts - (p * ts).sum(dim=-1, keepdim=True))
        return tp @ v + p @ tv

    return {"fn": attend, "jvp": jvp, "vjp_vjp": None}


@case(options={"causal": "causal", "scale": "sm_scale"},
      source="NVlabs/rcm rcm/utils/flash_attention_jvp_triton.py")
def flash_tiles_exp2_jvp():
    """JVP with the forward in one sweep over tiles of 32 queries and 16 keys: l, r = sum(p t) and three sums
    for P V, P V_dot and (p t) V, all rescaled; exp2 with log2(e) in the scores, not in the tangents. Inner
    sums in float32 at least. Causal upper left. Returns (o, o_dot). bhsd."""
    BM, BN = 32, 16

    def sweep(q, k, v, tq, tk, tv, causal, sm_scale):
        out_dtype = q.dtype
        q, k, v, tq, tk, tv = (x.to(inner(x)) for x in (q, k, v, tq, tk, tv))
        n, m = q.shape[2], k.shape[2]
        c = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
        outs, touts = [], []
        for i in range(0, n, BM):
            qi, tqi = q[:, :, i:i + BM], tq[:, :, i:i + BM]
            m_i = torch.full((*qi.shape[:3], 1), -1e30, dtype=q.dtype)
            l_i, r_i = torch.zeros_like(m_i), torch.zeros_like(m_i)
            acc = torch.zeros(*qi.shape[:3], v.shape[-1], dtype=q.dtype)
            acc_a, acc_b = torch.zeros_like(acc), torch.zeros_like(acc)
            hi = min(m, i + BM) if causal else m
            for j in range(0, hi, BN):
                kj, tkj, vj, tvj = (x[:, :, j:j + BN] for x in (k, tk, v, tv))
                s = qi @ kj.mT * (c * 1.4426950408889634)
                ts = (tqi @ kj.mT + qi @ tkj.mT) * c
                if causal:
                    rows = torch.arange(i, i + qi.shape[2])[:, None]
                    cols = torch.arange(j, j + kj.shape[2])[None, :]
                    s = s.masked_fill(cols > rows, -math.inf)
                m_new = torch.maximum(m_i, s.amax(-1, keepdim=True))
                p = torch.exp2(s - m_new)
                alpha = torch.exp2(m_i - m_new)
                h = p * ts
                l_i = l_i * alpha + p.sum(-1, keepdim=True)
                r_i = r_i * alpha + h.sum(-1, keepdim=True)
                acc = acc * alpha + p @ vj
                acc_a = acc_a * alpha + p @ tvj
                acc_b = acc_b * alpha + h @ vj
                m_i = m_new
            o = acc / l_i
            outs.append(o)
            touts.append((acc_a + acc_b - r_i * o) / l_i)
        return torch.cat(outs, 2).to(out_dtype), torch.cat(touts, 2).to(out_dtype)

    def attention(q, k, v, causal=False, sm_scale=None):
        s = q @ k.mT * (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale)
        if causal:
            s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)
        return s.softmax(-1) @ v

    def jvp(q, k, v, tq, tk, tv, causal=False, sm_scale=None):
        return sweep(q, k, v, tq, tk, tv, causal, sm_scale)

    return {"fn": attention, "jvp": jvp, "vjp_vjp": None}


@case(options={"mask": "attn_mask", "bias": "bias"},
      source="amorehead/jvp_flash_attention jvp_flash_attention/jvp_attention.py")
def flash_masked_tiles_jvp():
    """JVP over tiles of 24 keys with a shorter rest; boolean mask (True keeps, -1e6 for the rest, tangent 0
    there) and an additive bias that stands still; sums g (for p t V), mu and p_tv, all rescaled. Inner sums
    in float32 at least. Returns o_dot. bhsd."""
    BLOCK = 24

    def scores(q, k, attn_mask, bias):
        s = q @ k.mT * (1.0 / math.sqrt(q.size(-1)))
        if bias is not None:
            s = s + bias
        if attn_mask is not None:
            s = torch.where(attn_mask, s, -1.0e6)
        return s

    def fn(q, k, v, attn_mask=None, bias=None):
        q, k, dtype = q.to(inner(q)), k.to(inner(k)), q.dtype
        return (scores(q, k, attn_mask, bias).softmax(-1) @ v.to(q.dtype)).to(dtype)

    def fn_jvp(q, k, v, t_q, t_k, t_v, attn_mask=None, bias=None):
        dtype = q.dtype
        q, k, v, t_q, t_k, t_v = (x.to(inner(x)) for x in (q, k, v, t_q, t_k, t_v))
        full = (*q.shape[:3], k.shape[2])
        attn_mask = None if attn_mask is None else attn_mask.expand(full)
        bias = None if bias is None else bias.to(q.dtype).expand(full)
        m_i = torch.full_like(q[..., :1], -torch.inf)
        l_i = mu = torch.zeros_like(m_i)
        acc = g_acc = p_tv = q.new_zeros(*q.shape[:3], v.shape[3])
        for start in range(0, k.shape[2], BLOCK):
            at = slice(start, min(start + BLOCK, k.shape[2]))
            s = scores(q, k[:, :, at], None if attn_mask is None else attn_mask[..., at],
                       None if bias is None else bias[..., at])
            t_qk = (t_q @ k[:, :, at].mT + q @ t_k[:, :, at].mT) / math.sqrt(q.size(-1))
            if attn_mask is not None:
                t_qk = torch.where(attn_mask[..., at], t_qk, 0.0)
            m_ij = torch.maximum(m_i, s.max(-1, keepdim=True).values)
            p, alpha = torch.exp(s - m_ij), torch.exp(m_i - m_ij)
            p_tqk = p * t_qk
            l_i = l_i * alpha + p.sum(-1, keepdim=True)
            mu = mu * alpha + p_tqk.sum(-1, keepdim=True)
            acc = torch.addcmul(p @ v[:, :, at], acc, alpha)
            g_acc = torch.addcmul(p_tqk @ v[:, :, at], g_acc, alpha)
            p_tv = torch.addcmul(p @ t_v[:, :, at], p_tv, alpha)
            m_i = m_ij
        o = acc / l_i
        return ((g_acc + p_tv) / l_i - (mu / l_i) * o).to(dtype)

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case(options={"causal": "causal"}, source="Dao-AILab/flash-attention issue 1672")
def saved_logsumexp_jvp():
    """JVP in a second sweep: the forward leaves O and L = logsumexp, the tangent sweep takes P = exp(s - L)
    by tiles of 64 keys and needs no rescaling. Causal lower right. Returns o_dot. bhsd."""
    def scores(q, k, causal):
        s = torch.einsum("bhnd,bhmd->bhnm", q, k) * q.shape[-1] ** -0.5
        if causal:
            n, m = s.shape[-2:]
            s = s.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(m - n + 1), -math.inf)
        return s

    def fn(q, k, v, causal=False):
        s = scores(q, k, causal)
        lse = torch.logsumexp(s, -1, keepdim=True)
        return torch.exp(s - lse) @ v

    def fn_jvp(q, k, v, dq, dk, dv, causal=False):
        s = scores(q, k, causal)
        lse = torch.logsumexp(s, -1, keepdim=True)
        o = torch.exp(s - lse) @ v
        out = torch.zeros_like(o)
        mu = torch.zeros_like(lse)
        for at in torch.arange(k.shape[2]).split(64):
            p = torch.exp(s[..., at] - lse)
            t = (dq @ k[:, :, at].mT + q @ dk[:, :, at].mT) * q.shape[-1] ** -0.5
            out = out + (p * t) @ v[:, :, at] + p @ dv[:, :, at]
            mu = mu + (p * t).sum(-1, keepdim=True)
        return out - mu * o

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case(formats=("float64", "float32"))
def complex_step_numpy():
    """JVP by a complex step: the attention in complex128 at q + i h q_dot (h = 1e-30), the imaginary part
    over h; the maximum is that of the real part. NumPy, unbatched or batched, returns (o, o_dot). bhsd."""
    def complex_attention(q, k, v):
        s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
        e = np.exp(s - s.real.max(-1, keepdims=True))
        return (e @ v) / e.sum(-1, keepdims=True)

    def fn(q, k, v):
        return complex_attention(*(np.asarray(x, np.float64) for x in (q, k, v))).astype(q.dtype)

    def fn_jvp(q, k, v, q_dot, k_dot, v_dot):
        h = 1e-30
        z = complex_attention(*(np.asarray(x, np.complex128) + 1j * h * np.asarray(t, np.float64)
                                for x, t in ((q, q_dot), (k, k_dot), (v, v_dot))))
        return z.real.astype(q.dtype), (z.imag / h).astype(q.dtype)

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case(options={"causal": "causal", "mask": "mask"})
def dual_tensors_bshd():
    """JVP by dual tensors of torch.autograd.forward_ad around einsum code; causal upper left, boolean mask
    that keeps; returns o_dot. bshd."""
    def fn(q, k, v, causal=False, mask=None):
        s = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(q.shape[-1])
        if causal:
            s = s + torch.full(s.shape[-2:], -torch.inf, dtype=s.dtype).triu(1)
        if mask is not None:
            s = s.masked_fill(~mask, -torch.inf)
        return torch.einsum("bhnm,bmhd->bnhd", s.softmax(-1), v)

    def fn_jvp(q, k, v, tq, tk, tv, causal=False, mask=None):
        with fwAD.dual_level():
            duals = [fwAD.make_dual(x.detach(), t) for x, t in ((q, tq), (k, tk), (v, tv))]
            return fwAD.unpack_dual(fn(*duals, causal=causal, mask=mask)).tangent

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def heads_one_by_one_unbatched():
    """JVP head by head and query by query: the tangent of each row's softmax as its Jacobian diag(p) - p p^T
    times the tangent of its scores. Unbatched, (heads, length, dim); returns o_dot."""
    def fn(q, k, v):
        return torch.stack([F.softmax(q[h] @ k[h].T * q.shape[-1] ** -0.5, 1) @ v[h] for h in range(len(q))])

    def fn_jvp(q, k, v, tq, tk, tv):
        out = torch.empty(*q.shape[:2], v.shape[2], dtype=q.dtype)
        c = q.shape[-1] ** -0.5
        for h in range(q.shape[0]):
            for i in range(q.shape[1]):
                p = F.softmax(k[h] @ q[h, i] * c, 0)
                t = (k[h] @ tq[h, i] + tk[h] @ q[h, i]) * c
                out[h, i] = ((torch.diag(p) - torch.outer(p, p)) @ t) @ v[h] + p @ tv[h]
        return out

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case(source="nshepperd and Birch-san, JVP of flash attention as a torch.autograd.Function")
def function_with_jvp_staticmethod():
    """jvp=True: a torch.autograd.Function with setup_context, a backward from L and D, and a jvp staticmethod
    with the saved q, k, v. bhsd."""
    class Attn(torch.autograd.Function):
        @staticmethod
        def forward(q, k, v, sm_scale):
            s = q @ k.mT * sm_scale
            lse = torch.logsumexp(s, -1, keepdim=True)
            return torch.exp(s - lse) @ v, lse

        @staticmethod
        def setup_context(ctx, inputs, output):
            q, k, v, ctx.sm_scale = inputs
            o, lse = output
            ctx.mark_non_differentiable(lse)
            ctx.save_for_backward(q, k, v, o, lse)
            ctx.save_for_forward(q, k, v, o, lse)

        @staticmethod
        def backward(ctx, do, _):
            q, k, v, o, lse = ctx.saved_tensors
            p = torch.exp(q @ k.mT * ctx.sm_scale - lse)
            ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) * ctx.sm_scale
            return ds @ k, ds.mT @ q, p.mT @ do, None

        @staticmethod
        def jvp(ctx, tq, tk, tv, _):
            q, k, v, o, lse = ctx.saved_tensors
            p = torch.exp(q @ k.mT * ctx.sm_scale - lse)
            t = (tq @ k.mT + q @ tk.mT) * ctx.sm_scale
            mu = (p * t).sum(-1, keepdim=True)
            return (p * (t - mu)) @ v + p @ tv, None

    return {"fn": lambda q, k, v: Attn.apply(q, k, v, q.shape[-1] ** -0.5)[0], "jvp": True, "vjp_vjp": None}


# ---------------------------------------------------------------- JVP and double backward


@case(options={"causal": "is_causal", "mask": "mask", "bias": "bias"})
def plain_autograd_both():
    """jvp=True and vjp_vjp=True: softmax attention in plain operations, left to autograd. Causal upper left,
    boolean mask that keeps, additive bias. bhsd."""
    def sdpa(q, k, v, mask=None, bias=None, is_causal=False):
        s = (q @ k.mT) * (q.size(-1) ** -0.5)
        s = s if bias is None else s + bias
        if mask is not None:
            s = s.masked_fill(mask.logical_not(), -torch.inf)
        if is_causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        return torch.softmax(s, -1) @ v

    return {"fn": sdpa, "jvp": True, "vjp_vjp": True}


@case(options={"mask": "mask", "bias": "bias"})
def product_rule_masks():
    """JVP and double backward by the product rule, line for line: every line of the backward once more with
    its tangent; D from P. Boolean mask (True keeps) and bias. JVP returns (o, o_dot). bhsd."""
    def weights(q, k, mask, bias):
        a = q @ k.mT * q.shape[-1] ** -0.5
        if bias is not None:
            a = a + bias
        if mask is not None:
            a = a.masked_fill(~mask, -math.inf)
        return a.softmax(-1)

    def fn(q, k, v, mask=None, bias=None):
        return weights(q, k, mask, bias) @ v

    def jvp(q, k, v, q_dot, k_dot, v_dot, mask=None, bias=None):
        P = weights(q, k, mask, bias)
        A_dot = (q_dot @ k.mT + q @ k_dot.mT) * q.shape[-1] ** -0.5
        P_dot = P * (A_dot - (P * A_dot).sum(-1, keepdim=True))
        return P @ v, P_dot @ v + P @ v_dot

    def vjp_vjp(q_dot, k_dot, v_dot, do, q, k, v, mask=None, bias=None):
        c = q.shape[-1] ** -0.5
        P = weights(q, k, mask, bias)
        A_dot = (q_dot @ k.mT + q @ k_dot.mT) * c
        P_dot = P * (A_dot - (P * A_dot).sum(-1, keepdim=True))
        dP = do @ v.mT
        dP_dot = do @ v_dot.mT
        D = (P * dP).sum(-1, keepdim=True)
        D_dot = (P_dot * dP + P * dP_dot).sum(-1, keepdim=True)
        dA = P * (dP - D)
        dA_dot = P_dot * (dP - D) + P * (dP_dot - D_dot)
        return (P_dot @ v + P @ v_dot, c * (dA_dot @ k + dA @ k_dot),
                c * (dA_dot.mT @ q + dA.mT @ q_dot), P_dot.mT @ do)

    return {"fn": fn, "jvp": jvp, "vjp_vjp": vjp_vjp}


@case(options={"causal": "causal"})
def grouped_heads_both():
    """JVP and double backward with groups of heads: queries as (b, hk, group, n, d), einsum sums k_bar and
    v_bar over the group; D from O. Causal lower right. Returns o_dot. bhsd."""
    def split(x, hk):
        return x.unflatten(1, (hk, x.shape[1] // hk))

    def weights(q, k, causal):
        s = torch.einsum("bkgnd,bkmd->bkgnm", q, k) * q.shape[-1] ** -0.5
        if causal:
            n, m = s.shape[-2:]
            keep = torch.arange(m)[None, :] <= torch.arange(n)[:, None] + (m - n)
            s = s.masked_fill(~keep, -math.inf)
        return s.softmax(-1)

    def tangents(q, k, v, tq, tk, tv, causal):
        p = weights(q, k, causal)
        t = torch.einsum("bkgnd,bkmd->bkgnm", tq, k) + torch.einsum("bkgnd,bkmd->bkgnm", q, tk)
        t = t * q.shape[-1] ** -0.5
        tp = p * (t - torch.linalg.vecdot(p, t)[..., None])
        to = torch.einsum("bkgnm,bkmd->bkgnd", tp, v) + torch.einsum("bkgnm,bkmd->bkgnd", p, tv)
        return p, tp, to

    def fn(q, k, v, causal=False):
        p = weights(split(q, k.shape[1]), k, causal)
        return torch.einsum("bkgnm,bkmd->bkgnd", p, v).flatten(1, 2)

    def jvp(q, k, v, tq, tk, tv, causal=False):
        hk = k.shape[1]
        return tangents(split(q, hk), k, v, split(tq, hk), tk, tv, causal)[2].flatten(1, 2)

    def vjp_vjp(tq, tk, tv, do, q, k, v, causal=False):
        c, hk = q.shape[-1] ** -0.5, k.shape[1]
        tq, do, q = split(tq, hk), split(do, hk), split(q, hk)
        p, tp, to = tangents(q, k, v, tq, tk, tv, causal)
        o = torch.einsum("bkgnm,bkmd->bkgnd", p, v)
        centred = torch.einsum("bkgnd,bkmd->bkgnm", do, v) - (do * o).sum(-1, keepdim=True)
        moved = torch.einsum("bkgnd,bkmd->bkgnm", do, tv) - (do * to).sum(-1, keepdim=True)
        ds, tds = p * centred * c, (tp * centred + p * moved) * c
        q_bar = torch.einsum("bkgnm,bkmd->bkgnd", tds, k) + torch.einsum("bkgnm,bkmd->bkgnd", ds, tk)
        k_bar = torch.einsum("bkgnm,bkgnd->bkmd", tds, q) + torch.einsum("bkgnm,bkgnd->bkmd", ds, tq)
        v_bar = torch.einsum("bkgnm,bkgnd->bkmd", tp, do)
        return to.flatten(1, 2), q_bar.flatten(1, 2), k_bar, v_bar

    return {"fn": fn, "jvp": jvp, "vjp_vjp": vjp_vjp}


@case(options={"scale": "softmax_scale"})
def scale_in_queries_bshd():
    """JVP and double backward with the scale multiplied into the queries and their tangents beforehand, and
    once more into q_bar at the end. A given scale counts. Returns (o, o_dot). bshd."""
    def prepared(q, k, v, softmax_scale):
        c = softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
        return q.transpose(1, 2) * c, k.transpose(1, 2), v.transpose(1, 2), c

    def fn(q, k, v, softmax_scale=None):
        q, k, v, _ = prepared(q, k, v, softmax_scale)
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2)

    def moved(q, k, v, tq, tk, tv):
        p = (q @ k.mT).softmax(-1)
        t = tq @ k.mT + q @ tk.mT
        tp = p * t
        tp = tp - p * tp.sum(-1, keepdim=True)
        return p, tp, p @ v, tp @ v + p @ tv

    def jvp(q, k, v, tq, tk, tv, softmax_scale=None):
        q, k, v, _ = prepared(q, k, v, softmax_scale)
        tq, tk, tv, _ = prepared(tq, tk, tv, softmax_scale)
        _, _, o, to = moved(q, k, v, tq, tk, tv)
        return o.transpose(1, 2), to.transpose(1, 2)

    def vjp_vjp(tq, tk, tv, do, q, k, v, softmax_scale=None):
        q, k, v, c = prepared(q, k, v, softmax_scale)
        tq, tk, tv, _ = prepared(tq, tk, tv, softmax_scale)
        do = do.transpose(1, 2)
        p, tp, o, to = moved(q, k, v, tq, tk, tv)
        e = do @ v.mT - (do * o).sum(-1, keepdim=True)
        te = do @ tv.mT - (do * to).sum(-1, keepdim=True)
        ds, tds = p * e, tp * e + p * te
        bars = to, c * (tds @ k + ds @ tk), tds.mT @ q + ds.mT @ tq, tp.mT @ do
        return tuple(x.transpose(1, 2) for x in bars)

    return {"fn": fn, "jvp": jvp, "vjp_vjp": vjp_vjp}


@case(options={"dropout": "rate", "dropout_mask": "keep"})
def dropout_both():
    """JVP and double backward with a given keep mask: Z = keep / (1 - rate) multiplies P, its tangent and dP;
    the means and D are those of the softmax before dropout. Returns o_dot. bhsd."""
    def factor(p, rate, keep):
        return torch.ones_like(p) if keep is None or rate == 0 else keep.to(p.dtype) / (1 - rate)

    def fn(q, k, v, rate=0.0, keep=None):
        p = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return (p * factor(p, rate, keep)) @ v

    def moved(q, k, tq, tk):
        c = q.shape[-1] ** -0.5
        p = (q @ k.mT * c).softmax(-1)
        t = (tq @ k.mT + q @ tk.mT) * c
        return p, p * (t - (p * t).sum(-1, keepdim=True))

    def jvp(q, k, v, tq, tk, tv, rate=0.0, keep=None):
        p, tp = moved(q, k, tq, tk)
        z = factor(p, rate, keep)
        return (z * tp) @ v + (z * p) @ tv

    def vjp_vjp(tq, tk, tv, do, q, k, v, rate=0.0, keep=None):
        c = q.shape[-1] ** -0.5
        p, tp = moved(q, k, tq, tk)
        z = factor(p, rate, keep)
        dp, tdp = z * (do @ v.mT), z * (do @ tv.mT)
        D = (p * dp).sum(-1, keepdim=True)
        tD = (tp * dp + p * tdp).sum(-1, keepdim=True)
        ds, tds = p * (dp - D) * c, (tp * (dp - D) + p * (tdp - tD)) * c
        return ((z * tp) @ v + (z * p) @ tv, tds @ k + ds @ tk, tds.mT @ q + ds.mT @ tq, (z * tp).mT @ do)

    return {"fn": fn, "jvp": jvp, "vjp_vjp": vjp_vjp}


@case(options={"causal": "causal"})
def by_columns_flash_style():
    """Double backward in two sweeps over tiles of 40 keys: the first leaves L, O, mu, O_dot for each row, the
    second takes P = exp2(s log2(e) - L) column tile by column tile with D = rowsum(do O) and D_dot =
    rowsum(do O_dot). Inner sums in float32 at least. Causal upper left. The JVP is the first sweep; returns
    (o, o_dot). bhsd."""
    LOG2E = 1.0 / math.log(2.0)
    TILE = 40

    def tile(q, kj, j, causal):
        s = q @ kj.mT * (q.shape[-1] ** -0.5 * LOG2E)
        if causal:
            hidden = torch.arange(j, j + kj.shape[2])[None, :] > torch.arange(q.shape[2])[:, None]
            s = torch.where(hidden, -torch.inf, s)
        return s

    def first(q, k, v, tq, tk, tv, causal):
        top = torch.full_like(q[..., :1], -1e30)
        l = mu = torch.zeros_like(top)
        o = to = q.new_zeros(*q.shape[:3], v.shape[3])
        for j in range(0, k.shape[2], TILE):
            kj, vj, tkj, tvj = (x[:, :, j:j + TILE] for x in (k, v, tk, tv))
            s = tile(q, kj, j, causal)
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            p, a = torch.exp2(s - new), torch.exp2(top - new)
            h = p * (tq @ kj.mT + q @ tkj.mT) * q.shape[-1] ** -0.5
            l, mu = a * l + p.sum(-1, keepdim=True), a * mu + h.sum(-1, keepdim=True)
            o, to = a * o + p @ vj, a * to + h @ vj + p @ tvj
            top = new
        o, mu = o / l, mu / l
        return o, to / l - mu * o, mu, top + torch.log2(l)

    def wide(*xs):
        return [x.to(inner(x)) for x in xs]

    def fn(q, k, v, causal=False):
        q_, k_, v_ = wide(q, k, v)
        s = tile(q_, k_, 0, causal)
        p = torch.exp2(s - s.amax(-1, keepdim=True).detach())
        return ((p @ v_) / p.sum(-1, keepdim=True)).to(q.dtype)

    def jvp(q, k, v, tq, tk, tv, causal=False):
        o, to, _, _ = first(*wide(q, k, v, tq, tk, tv), causal)
        return o.to(q.dtype), to.to(q.dtype)

    def vjp_vjp(tq, tk, tv, do, q, k, v, causal=False):
        dtype, c = q.dtype, q.shape[-1] ** -0.5
        tq, tk, tv, do, q, k, v = wide(tq, tk, tv, do, q, k, v)
        o, to, mu, L = first(q, k, v, tq, tk, tv, causal)
        D, tD = (do * o).sum(-1, keepdim=True), (do * to).sum(-1, keepdim=True)
        qb, kb, vb = torch.zeros_like(q), [], []
        for j in range(0, k.shape[2], TILE):
            kj, vj, tkj, tvj = (x[:, :, j:j + TILE] for x in (k, v, tk, tv))
            p = torch.exp2(tile(q, kj, j, causal) - L)
            tp = p * ((tq @ kj.mT + q @ tkj.mT) * c - mu)
            e, te = do @ vj.mT - D, do @ tvj.mT - tD
            ds, tds = c * p * e, c * (tp * e + p * te)
            qb = qb + tds @ kj + ds @ tkj
            kb.append(tds.mT @ q + ds.mT @ tq)
            vb.append(tp.mT @ do)
        return tuple(x.to(dtype) for x in (to, qb, torch.cat(kb, 2), torch.cat(vb, 2)))

    return {"fn": fn, "jvp": jvp, "vjp_vjp": vjp_vjp}


@case(formats=("float64", "float32"))
def numpy_product_rule():
    """JVP and double backward in NumPy with einsum, D from P, P_dot times V and dO; returns o_dot. bhsd."""
    def softmax(s):
        e = np.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def parts(q, k, tq, tk):
        c = q.dtype.type(1 / np.sqrt(q.shape[-1]))
        p = softmax(c * np.einsum("...nd,...md->...nm", q, k))
        t = c * (np.einsum("...nd,...md->...nm", tq, k) + np.einsum("...nd,...md->...nm", q, tk))
        return c, p, p * (t - np.einsum("...nm,...nm->...n", p, t)[..., None])

    def fn(q, k, v):
        return softmax(q.dtype.type(1 / np.sqrt(q.shape[-1])) * (q @ np.swapaxes(k, -1, -2))) @ v

    def jvp(q, k, v, tq, tk, tv):
        _, p, tp = parts(q, k, tq, tk)
        return tp @ v + p @ tv

    def vjp_vjp(tq, tk, tv, do, q, k, v):
        c, p, tp = parts(q, k, tq, tk)
        dp, tdp = do @ np.swapaxes(v, -1, -2), do @ np.swapaxes(tv, -1, -2)
        e = dp - (p * dp).sum(-1, keepdims=True)
        ds = p * e
        tds = tp * e + p * (tdp - (p * tdp + tp * dp).sum(-1, keepdims=True))
        return (tp @ v + p @ tv, c * (tds @ k + ds @ tk),
                c * (np.swapaxes(tds, -1, -2) @ q + np.swapaxes(ds, -1, -2) @ tq), np.swapaxes(tp, -1, -2) @ do)

    return {"fn": fn, "jvp": jvp, "vjp_vjp": vjp_vjp}


@case(formats=("float64", "float32"), options={"mask": "mask"})
def numpy_columns_bshd():
    """Double backward in NumPy key by key: with L and mu saved, every key's column of P and of P_dot gives
    its own k_bar and v_bar and its share of q_bar. Mask (b, h, n, m) or to be spread, True keeps. No JVP.
    bshd."""
    def scores(q, k, mask):
        s = np.einsum("bnhd,bmhd->bhnm", q, k) * q.dtype.type(q.shape[-1] ** -0.5)
        return s if mask is None else np.where(mask, s, q.dtype.type(-np.inf))

    def fn(q, k, v, mask=None):
        s = scores(q, k, mask)
        e = np.exp(s - s.max(-1, keepdims=True))
        return np.einsum("bhnm,bmhd->bnhd", e / e.sum(-1, keepdims=True), v)

    def vjp_vjp(tq, tk, tv, do, q, k, v, mask=None):
        c = q.dtype.type(q.shape[-1] ** -0.5)
        s = scores(q, k, mask)
        top = s.max(-1, keepdims=True)
        L = top + np.log(np.exp(s - top).sum(-1, keepdims=True))
        p = np.exp(s - L)
        t = c * (np.einsum("bnhd,bmhd->bhnm", tq, k) + np.einsum("bnhd,bmhd->bhnm", q, tk))
        mu = (p * t).sum(-1)
        tp = p * (t - mu[..., None])
        o_dot = np.einsum("bhnm,bmhd->bnhd", tp, v) + np.einsum("bhnm,bmhd->bnhd", p, tv)
        D = np.einsum("bnhd,bnhd->bhn", do, np.einsum("bhnm,bmhd->bnhd", p, v))
        D_dot = np.einsum("bnhd,bnhd->bhn", do, o_dot)
        q_bar, k_bar, v_bar = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for j in range(k.shape[1]):
            e = np.einsum("bnhd,bhd->bhn", do, v[:, j]) - D
            te = np.einsum("bnhd,bhd->bhn", do, tv[:, j]) - D_dot
            ds = c * p[..., j] * e
            tds = c * (tp[..., j] * e + p[..., j] * te)
            q_bar += np.einsum("bhn,bhd->bnhd", tds, k[:, j]) + np.einsum("bhn,bhd->bnhd", ds, tk[:, j])
            k_bar[:, j] = np.einsum("bhn,bnhd->bhd", tds, q) + np.einsum("bhn,bnhd->bhd", ds, tq)
            v_bar[:, j] = np.einsum("bhn,bnhd->bhd", tp[..., j], do)
        return o_dot, q_bar, k_bar, v_bar

    return {"fn": fn, "jvp": None, "vjp_vjp": vjp_vjp}


@case()
def two_vjps_make_a_jvp():
    """JVP by two backward passes (the derivative of u -> vjp(u)), double backward as the gradient of <do,
    o_dot> by autograd; returns o_dot. bhsd."""
    def fn(q, k, v):
        return F.softmax((q * q.shape[-1] ** -0.5) @ k.mT, dim=-1) @ v

    def o_dot(q, k, v, tq, tk, tv):
        o = fn(q, k, v)
        u = torch.zeros_like(o, requires_grad=True)
        grads = torch.autograd.grad(o, (q, k, v), u, create_graph=True)
        return torch.autograd.grad(grads, u, (tq, tk, tv), create_graph=True)[0]

    def jvp(q, k, v, tq, tk, tv):
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        return o_dot(q, k, v, tq, tk, tv).detach()

    def vjp_vjp(tq, tk, tv, do, q, k, v):
        q, k, v, do = (x.detach().requires_grad_() for x in (q, k, v, do))
        value = (do * o_dot(q, k, v, tq, tk, tv)).sum()
        return torch.autograd.grad(value, (do, q, k, v))

    return {"fn": fn, "jvp": jvp, "vjp_vjp": vjp_vjp}


@case(source="pytorch/pytorch issue 58509")
def backward_recomputes_from_inputs():
    """vjp_vjp=True: a torch.autograd.Function that saves q, k, v alone and computes P and D anew in its
    backward with plain operations, so that backward can be differentiated. bhsd."""
    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(q, k, v):
            return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, do):
            q, k, v = ctx.saved_tensors
            p = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
            delta = (do * (p @ v)).sum(-1, keepdim=True)
            ds = p * (do @ v.mT - delta) / math.sqrt(q.shape[-1])
            return ds @ k, ds.mT @ q, p.mT @ do

    return {"fn": Recompute.apply, "jvp": None, "vjp_vjp": True}


@case(options={"causal": "causal"}, source="pytorch/pytorch pull 8166 (a Function for the backward)")
def backward_as_second_function():
    """vjp_vjp=True: the backward is a torch.autograd.Function of its own, whose backward is the double
    backward by hand. Causal upper left. bhsd."""
    def weights(q, k, causal):
        s = q @ k.mT * q.shape[-1] ** -0.5
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        return s.softmax(-1)

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(do, q, k, v, causal):
            p = weights(q, k, causal)
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            return ds @ k, ds.mT @ q, p.mT @ do

        @staticmethod
        def setup_context(ctx, inputs, output):
            *tensors, ctx.causal = inputs
            ctx.save_for_backward(*tensors)

        @staticmethod
        def backward(ctx, gq, gk, gv):
            do, q, k, v = ctx.saved_tensors
            c = q.shape[-1] ** -0.5
            p = weights(q, k, ctx.causal)
            t = c * (gq @ k.mT + q @ gk.mT)
            tp = p * (t - (p * t).sum(-1, keepdim=True))
            go = tp @ v + p @ gv
            e = do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True)
            te = do @ gv.mT - (do * go).sum(-1, keepdim=True)
            ds, tds = c * p * e, c * (tp * e + p * te)
            return go, tds @ k + ds @ gk, tds.mT @ q + ds.mT @ gq, tp.mT @ do, None

    class Forward(torch.autograd.Function):
        @staticmethod
        def forward(q, k, v, causal):
            return weights(q, k, causal) @ v

        @staticmethod
        def setup_context(ctx, inputs, output):
            *tensors, ctx.causal = inputs
            ctx.save_for_backward(*tensors)

        @staticmethod
        def backward(ctx, do):
            return (*Backward.apply(do, *ctx.saved_tensors, ctx.causal), None)

    return {"fn": lambda q, k, v, causal=False: Forward.apply(q, k, v, causal), "jvp": None, "vjp_vjp": True}


@case()
def two_halves_joined_jvp():
    """JVP of two halves of the keys, each with its own O, L and their tangents (the tangent of L is the mean
    mu), joined by sigmoid(L1 - L2) and the tangent of that. Returns o_dot. bhsd."""
    def half(q, k, v):
        s = torch.einsum("bhnd,bhmd->bhnm", q, k) / math.sqrt(q.shape[-1])
        lse = s.logsumexp(-1, keepdim=True)
        return (s - lse).exp(), lse

    def fn(q, k, v):
        (k1, k2), (v1, v2) = k.tensor_split(2, dim=2), v.tensor_split(2, dim=2)
        (p1, l1), (p2, l2) = half(q, k1, v1), half(q, k2, v2)
        share = torch.sigmoid(l1 - l2)
        return share * (p1 @ v1) + (1 - share) * (p2 @ v2)

    def fn_jvp(q, k, v, tq, tk, tv):
        outs = []
        for kj, vj, tkj, tvj in zip(*(x.tensor_split(2, dim=2) for x in (k, v, tk, tv))):
            p, lse = half(q, kj, vj)
            t = (tq @ kj.mT + q @ tkj.mT) / math.sqrt(q.shape[-1])
            tl = (p * t).sum(-1, keepdim=True)
            outs.append((p @ vj, lse, (p * (t - tl)) @ vj + p @ tvj, tl))
        (o1, l1, to1, tl1), (o2, l2, to2, tl2) = outs
        share = torch.sigmoid(l1 - l2)
        return share * to1 + (1 - share) * to2 + share * (1 - share) * (tl1 - tl2) * (o1 - o2)

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case()
def lazy_rescaling_jvp():
    """JVP over tiles of 128 queries and 16 keys: the running maximum is kept until a tile exceeds it by more
    than 4, and only then all sums are rescaled. Inner sums in float32 at least. Returns o_dot. bhsd."""
    def fn(q, k, v):
        return F.softmax(torch.einsum("...nd,...md->...nm", q, k) / q.shape[-1] ** 0.5, -1) @ v

    def fn_jvp(q, k, v, tq, tk, tv):
        dtype, c = q.dtype, q.shape[-1] ** -0.5
        q, k, v, tq, tk, tv = (x.to(inner(x)) for x in (q, k, v, tq, tk, tv))
        rows = []
        for qi, tqi in zip(q.split(128, 2), tq.split(128, 2)):
            top = sums = None
            for kj, vj, tkj, tvj in zip(*(x.split(16, 2) for x in (k, v, tk, tv))):
                s = qi @ kj.mT * c
                high = s.amax(-1, keepdim=True)
                if top is None:
                    top = high
                else:
                    new = torch.where(high > top + 4, high, top)
                    sums = [torch.exp(top - new) * x for x in sums]
                    top = new
                e = torch.exp(s - top)
                h = e * ((tqi @ kj.mT + qi @ tkj.mT) * c)
                parts = [e.sum(-1, keepdim=True), h.sum(-1, keepdim=True), e @ vj, h @ vj + e @ tvj]
                sums = parts if sums is None else [x + y for x, y in zip(sums, parts)]
            l, r, o, od = sums
            rows.append(od / l - (r / l) * (o / l))
        return torch.cat(rows, 2).to(dtype)

    return {"fn": fn, "jvp": fn_jvp, "vjp_vjp": None}


@case(options={"bias": "attn_bias"})
def values_wider_additive_bias_both():
    """JVP and double backward with an additive bias that may hold minus infinity; values may have another
    number of features; D and D_dot from P and P_dot. Returns (o, o_dot). bshd."""
    def scores(q, k, attn_bias):
        s = torch.einsum("blhe,bshe->bhls", q, k) * (1.0 / q.shape[-1] ** 0.5)
        return s if attn_bias is None else s + attn_bias

    def fn(q, k, v, attn_bias=None):
        return torch.einsum("bhls,bshd->blhd", scores(q, k, attn_bias).softmax(-1), v)

    def moved(q, k, tq, tk, attn_bias):
        p = scores(q, k, attn_bias).softmax(-1)
        h = p * (scores(tq, k, None) + scores(q, tk, None))
        return p, h - p * h.sum(-1, keepdim=True)

    def jvp(q, k, v, tq, tk, tv, attn_bias=None):
        p, tp = moved(q, k, tq, tk, attn_bias)
        o = torch.einsum("bhls,bshd->blhd", p, v)
        return o, torch.einsum("bhls,bshd->blhd", tp, v) + torch.einsum("bhls,bshd->blhd", p, tv)

    def vjp_vjp(tq, tk, tv, do, q, k, v, attn_bias=None):
        c = q.shape[-1] ** -0.5
        p, tp = moved(q, k, tq, tk, attn_bias)
        dp = torch.einsum("blhd,bshd->bhls", do, v)
        tdp = torch.einsum("blhd,bshd->bhls", do, tv)
        centred = dp - (p * dp).sum(-1, keepdim=True)
        ds = c * p * centred
        tds = c * (tp * centred + p * (tdp - (tp * dp + p * tdp).sum(-1, keepdim=True)))
        return (torch.einsum("bhls,bshd->blhd", tp, v) + torch.einsum("bhls,bshd->blhd", p, tv),
                torch.einsum("bhls,bshe->blhe", tds, k) + torch.einsum("bhls,bshe->blhe", ds, tk),
                torch.einsum("bhls,blhe->bshe", tds, q) + torch.einsum("bhls,blhe->bshe", ds, tq),
                torch.einsum("bhls,blhd->bshd", tp, do))

    return {"fn": fn, "jvp": jvp, "vjp_vjp": vjp_vjp}
