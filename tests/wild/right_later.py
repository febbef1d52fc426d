"""Right candidates, written without having read the checker: attention functions, other functions, layers.

Where a source is named, the style is after that public file; the code is written anew.
"""

import math
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from cases import collection

CASES, case = collection()

NUMPY = ("float64", "float32")
SINGLE = ("float32", "bfloat16")


def wide(x):
    return torch.promote_types(x.dtype, torch.float32)


def exists(x):
    return x is not None


def fixed(*shape, seed=0, std=1.0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64) * std


# ------------------------------------------------------------------------------------------- attention


@case(options={"mask": "attn_mask"}, source="jaywalnut310/vits attentions.py")
def tts_fill_1e4():
    """Batch, heads, length, size; mask of zeros and ones that keeps, filled with -1e4 as speech models
    do."""

    def attention(query, key, value, attn_mask=None):
        d_k = query.size(-1)
        scores = torch.matmul(query / math.sqrt(d_k), key.transpose(-2, -1))
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask == 0, -1e4)
        p_attn = F.softmax(scores, dim=-1)
        return torch.matmul(p_attn, value)

    return attention


@case(options={"mask": "mask"}, source="espnet/espnet espnet/nets/pytorch_backend/transformer/attention.py")
def asr_min_value_then_zero():
    """Batch, heads, length, size; mask (batch, n, m) that keeps; filled with the dtype's least number
    before softmax and with zero after it, so that a row without keys gives zeros."""

    def fn(q, k, v, mask=None):
        s = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        if mask is not None:
            drop = mask.eq(0)
            if drop.dim() == 3:
                drop = drop.unsqueeze(1)
            s = s.masked_fill(drop, torch.finfo(s.dtype).min)
            p = torch.softmax(s, dim=-1).masked_fill(drop, 0.0)
        else:
            p = torch.softmax(s, dim=-1)
        return torch.matmul(p, v)

    return fn


@case(
    options={"mask": "mask", "bias": "nonbatched_bias"},
    source="google-deepmind/alphafold alphafold/model/modules.py",
)
def protein_einsum_pair_bias():
    """Batch, length, heads, size by einsum; keep mask turned into 1e9 * (mask - 1), pair bias added."""

    def fn(q, k, v, mask=None, nonbatched_bias=None):
        q = q * q.shape[-1] ** (-0.5)
        logits = torch.einsum("bqhc,bkhc->bhqk", q, k)
        if mask is not None:
            logits = logits + 1e9 * (mask.to(logits.dtype) - 1.0)
        if nonbatched_bias is not None:
            logits = logits + nonbatched_bias
        weights = torch.softmax(logits, dim=-1)
        return torch.einsum("bhqk,bkhc->bqhc", weights, v)

    return fn


@case(options={"mask": "mask"}, formats=SINGLE, source="openai/whisper whisper/model.py")
def speech_quarter_scale():
    """Merged heads (batch, length, 4 * size); the fourth root of the size divides both q and k; additive
    mask (n, m); softmax in float32, hence not for float64."""
    n_head = 4

    def qkv_attention(q, k, v, mask=None):
        n_batch, n_ctx, n_state = q.shape
        scale = (n_state // n_head) ** -0.25
        q = q.view(*q.shape[:2], n_head, -1).permute(0, 2, 1, 3) * scale
        k = k.view(*k.shape[:2], n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(*v.shape[:2], n_head, -1).permute(0, 2, 1, 3)
        qk = q @ k
        if mask is not None:
            qk = qk + mask
        w = F.softmax(qk.float(), dim=-1).to(q.dtype)
        return (w @ v).permute(0, 2, 1, 3).flatten(start_dim=2)

    return qkv_attention


@case(source="openai/guided-diffusion guided_diffusion/unet.py")
def diffusion_channels_first():
    """(batch * heads, channels, length) for all four; the scale is split as two square roots."""

    def fn(q, k, v):
        ch = q.shape[1]
        scale = 1 / math.sqrt(math.sqrt(ch))
        weight = torch.einsum("bct,bcs->bts", q * scale, k * scale)
        weight = torch.softmax(weight.to(wide(weight)), dim=-1).type(weight.dtype)
        return torch.einsum("bts,bcs->bct", weight, v)

    return fn


@case(
    options={"bias": "attention_mask", "scale": "scale"},
    source="huggingface/diffusers src/diffusers/models/attention_processor.py",
)
def diffusion_baddbmm():
    """Three dimensions (batch * heads, length, size); additive attention_mask through baddbmm's beta."""

    def fn(query, key, value, attention_mask=None, scale=None):
        alpha = query.shape[-1] ** -0.5 if scale is None else scale
        if attention_mask is None:
            start = torch.empty(query.shape[0], query.shape[1], key.shape[1], dtype=query.dtype)
            start, beta = torch.zeros_like(start), 0
        else:
            start, beta = attention_mask.to(query.dtype), 1
        scores = torch.baddbmm(start, query, key.transpose(-1, -2), beta=beta, alpha=alpha)
        return torch.bmm(scores.softmax(dim=-1).to(query.dtype), value)

    return fn


def _slopes(n):
    def pow2(m):
        start = 2 ** (-(2 ** -(math.log2(m) - 3)))
        return [start * start**i for i in range(m)]

    if math.log2(n).is_integer():
        return pow2(n)
    c = 2 ** math.floor(math.log2(n))
    return pow2(c) + _slopes(2 * c)[0::2][: n - c]


@case(source="bigscience-workshop/petals src/petals/models/bloom/block.py")
def alibi_causal_always():
    """Batch, heads, length, size; ALiBi slopes for any number of heads times the distance, causal always
    with the last query at the last key; scores in at least float32."""

    def fn(q, k, v):
        h, n, m = q.shape[1], q.shape[2], k.shape[2]
        slopes = torch.tensor(_slopes(h), dtype=torch.float64)
        behind = torch.arange(m)[None, :] - torch.arange(m - n, m)[:, None]
        bias = slopes[:, None, None] * behind.clamp(max=0)
        scores = (q @ k.mT).to(wide(q)) / math.sqrt(q.shape[-1])
        scores = scores + bias.to(scores.dtype)
        scores = scores.masked_fill(behind > 0, float("-inf"))
        return scores.softmax(-1).to(v.dtype) @ v

    return fn


@case(options={"causal": "causal"}, source="ROCm/aiter op_tests/test_batch_prefill.py")
def softcap_no_batch():
    """(length, heads, size) without a batch; soft cap 8 after the scale; groups by repeat_interleave;
    causal with the last query at the last key."""

    def ref_masked_attention(query, key, value, causal=False, logits_soft_cap=8.0):
        rep = query.shape[1] // key.shape[1]
        if rep > 1:
            key = key.repeat_interleave(rep, dim=1)
            value = value.repeat_interleave(rep, dim=1)
        attn = (query.shape[-1] ** -0.5) * torch.einsum("qhd,khd->hqk", query, key)
        attn = attn.to(wide(attn))
        if 0 < logits_soft_cap:
            attn = logits_soft_cap * torch.tanh(attn / logits_soft_cap)
        if causal:
            nq, nk = attn.shape[-2:]
            ok = torch.ones(nq, nk, dtype=torch.bool).tril(nk - nq)
            attn = attn.masked_fill(ok.logical_not(), float("-inf"))
        return torch.einsum("hqk,khd->qhd", torch.softmax(attn, dim=-1).to(value.dtype), value)

    return ref_masked_attention


@case(
    options={"causal": "causal", "scale": "softmax_scale"},
    source="EleutherAI/gpt-neox megatron/model/flash_attention.py",
)
def varlen_offsets_optional():
    """Packed (total, heads, size) with cu_seqlens for q and for k (one sequence if not given), returns
    out; groups expanded; causal with the last query at the last key of each sequence."""

    def varlen_attn(q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, softmax_scale=None, causal=False):
        if cu_seqlens_q is None:
            cu_seqlens_q = torch.tensor([0, q.shape[0]], dtype=torch.int32)
        if cu_seqlens_k is None:
            cu_seqlens_k = torch.tensor([0, k.shape[0]], dtype=torch.int32)
        scale = softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(q.shape[-1])
        outs = []
        ends_q, ends_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        for a, b, c, d in zip(ends_q[:-1], ends_q[1:], ends_k[:-1], ends_k[1:]):
            qi, ki, vi = q[a:b].transpose(0, 1), k[c:d].transpose(0, 1), v[c:d].transpose(0, 1)
            g, r = ki.shape[0], qi.shape[0] // ki.shape[0]
            qi = qi.reshape(g, r, b - a, -1)
            s = torch.matmul(qi, ki[:, None].transpose(-1, -2)) * scale
            if causal:
                late = torch.arange(d - c)[None, :] > torch.arange(b - a)[:, None] + (d - c) - (b - a)
                s = s.masked_fill(late, -torch.inf)
            o = torch.matmul(s.softmax(-1), vi[:, None])
            outs.append(o.reshape(g * r, b - a, -1).transpose(0, 1))
        return torch.cat(outs)

    return varlen_attn


@case(source="Dao-AILab/flash-attention flash_attn/flash_attn_interface.py")
def varlen_three_documents():
    """Packed (24 tokens, heads, size) with the offsets 0, 7, 15, 24 set beforehand: block-diagonal and
    causal inside each document, by one mask from document numbers; 24 tokens only."""
    cu = torch.tensor([0, 7, 15, 24])

    def fn(q, k, v):
        total = q.shape[0]
        assert total == k.shape[0] == int(cu[-1]), "packed length"
        doc = torch.searchsorted(cu[1:], torch.arange(total), right=True)
        pos = torch.arange(total)
        ok = (doc[:, None] == doc[None, :]) & (pos[:, None] >= pos[None, :])
        s = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
        s = torch.where(ok, s, torch.full_like(s, float("-inf")))
        return torch.einsum("hij,jhd->ihd", s.softmax(dim=-1), v)

    return fn


@case(source="huggingface/transformers src/transformers/models/mistral/modeling_mistral.py")
def sliding_window_grouped():
    """Batch, heads, length, size; causal window of the last 4 keys, always; additive finfo.min mask;
    groups by expand and reshape; softmax in at least float32 and back."""

    def repeat_kv(x, n):
        b, h, m, d = x.shape
        return x if n == 1 else x[:, :, None].expand(b, h, n, m, d).reshape(b, h * n, m, d)

    def fn(query, key, value, sliding_window=4):
        n, m = query.shape[2], key.shape[2]
        i = torch.arange(n)[:, None] + (m - n)
        j = torch.arange(m)[None, :]
        blocked = (j > i) | (j <= i - sliding_window)
        mask = torch.zeros(n, m, dtype=query.dtype).masked_fill(blocked, torch.finfo(query.dtype).min)
        k, v = (repeat_kv(x, query.shape[1] // x.shape[1]) for x in (key, value))
        w = torch.matmul(query, k.transpose(2, 3)) * query.shape[-1] ** -0.5 + mask
        w = F.softmax(w, dim=-1, dtype=wide(w)).to(query.dtype)
        return torch.matmul(w, v)

    return fn


@case(options={"mask": "attention_mask"}, source="openai/gpt-oss gpt_oss/torch/model.py")
def sink_column_dropped():
    """Batch, heads, length, size; a fixed sink per head is appended to the scores as one more column,
    the largest subtracted, softmax, column dropped; additive mask; groups."""

    def fn(query, key, value, attention_mask=None):
        b, h, n, d = query.shape
        rep = h // key.shape[1]
        key, value = key.repeat_interleave(rep, 1), value.repeat_interleave(rep, 1)
        w = query @ key.transpose(2, 3) * d**-0.5
        if attention_mask is not None:
            w = w + attention_mask[..., : key.shape[-2]]
        sinks = (
            torch.linspace(-1.0, 1.5, h, dtype=torch.float64)
            .to(w.dtype)
            .reshape(1, -1, 1, 1)
            .expand(b, -1, n, -1)
        )
        both = torch.cat([w, sinks], dim=-1)
        both = both - both.max(dim=-1, keepdim=True).values
        probs = F.softmax(both, dim=-1)
        return probs[..., :-1] @ value

    return fn


@case(options={"causal": "causal"}, source="softmax1/Flash-Attention-Softmax-N (style: quiet softmax)")
def off_by_one_softmax():
    """(batch, heads, length, size): exp / (1 + sum exp), which is a sink of logit zero, shifted by the
    greater of the row's largest score and zero; causal aligned top left."""

    def fn(q, k, v, causal=False):
        s = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1))
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
        top = s.detach().amax(-1, keepdim=True).clamp(min=0)
        e = torch.exp(s - top)
        return (e / (torch.exp(-top) + e.sum(-1, keepdim=True))) @ v

    return fn


@case(source="AminRezaei0x443/memory-efficient-attention (Rabe and Staats, as ported from JAX)")
def chunks_summed_at_the_end():
    """Batch, length, heads, size; keys in chunks of 5, each with its own maximum (no gradient), put
    together at the end with the greatest maximum; queries in chunks of 6."""

    def summarize(q, k, v):
        w = torch.einsum("bqhd,bkhd->bqhk", q, k)
        top = w.amax(-1, keepdim=True).detach()
        e = torch.exp(w - top)
        return torch.einsum("bkhf,bqhk->bqhf", v, e), e.sum(-1), top.squeeze(-1)

    def query_chunk(q, k, v, size):
        parts = [summarize(q, kc, vc) for kc, vc in zip(k.split(size, 1), v.split(size, 1))]
        values, weights, tops = (torch.stack(x) for x in zip(*parts))
        diff = torch.exp(tops - tops.amax(0, keepdim=True))
        return (values * diff[..., None]).sum(0) / (weights * diff).sum(0)[..., None]

    def fn(query, key, value, query_chunk_size=6, key_chunk_size=5):
        query = query / math.sqrt(query.shape[-1])
        return torch.cat(
            [query_chunk(q, key, value, key_chunk_size) for q in query.split(query_chunk_size, 1)], 1
        )

    return fn


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, mask, causal, bq, bk):
        t = wide(q)
        scale, n, m = q.shape[-1] ** -0.5, q.shape[-2], k.shape[-2]
        o = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=t)
        row_sum = torch.zeros(*q.shape[:-1], 1, dtype=t)
        row_max = torch.full_like(row_sum, -torch.finfo(t).max)
        for i in range(0, n, bq):
            qi = q[..., i : i + bq, :].to(t)
            oi, li, mi = (x[..., i : i + bq, :] for x in (o, row_sum, row_max))
            for j in range(0, m, bk):
                keep = _Flash.keep(mask, causal, i, j, qi.shape[-2], min(bk, m - j), m - n)
                s = qi @ k[..., j : j + bk, :].to(t).transpose(-1, -2) * scale
                s = s.masked_fill(~keep, -torch.finfo(t).max)
                new = torch.maximum(mi, s.amax(-1, keepdim=True))
                p = torch.exp(s - new).masked_fill(~keep, 0.0)
                shrink = torch.exp(mi - new)
                li.mul_(shrink).add_(p.sum(-1, keepdim=True))
                oi.mul_(shrink).add_(p @ v[..., j : j + bk, :].to(t))
                mi.copy_(new)
            oi.div_(li.clamp(min=1e-30))
        ctx.args = (mask, causal, bq, bk, scale)
        ctx.save_for_backward(q, k, v, o, row_max + row_sum.clamp(min=1e-30).log())
        return o.to(q.dtype)

    @staticmethod
    def keep(mask, causal, i, j, a, b, off):
        ok = torch.ones(1, 1, a, b, dtype=torch.bool)
        if causal:
            ok = ok & (torch.arange(j, j + b)[None, :] <= torch.arange(i, i + a)[:, None] + off)
        if mask is not None:
            ok = ok & mask[:, None, None, j : j + b]
        return ok

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        mask, causal, bq, bk, scale = ctx.args
        t = o.dtype
        n, m = q.shape[-2], k.shape[-2]
        dq, dk, dv = (torch.zeros(x.shape, dtype=t) for x in (q, k, v))
        delta = (do.to(t) * o).sum(-1, keepdim=True)
        for j in range(0, m, bk):
            kj, vj = k[..., j : j + bk, :].to(t), v[..., j : j + bk, :].to(t)
            for i in range(0, n, bq):
                rows = (Ellipsis, slice(i, i + bq), slice(None))
                qi, doi = q[rows].to(t), do[rows].to(t)
                keep = _Flash.keep(mask, causal, i, j, qi.shape[-2], kj.shape[-2], m - n)
                p = torch.exp(qi @ kj.transpose(-1, -2) * scale - lse[rows]).masked_fill(~keep, 0.0)
                dv[..., j : j + bk, :] += p.transpose(-1, -2) @ doi
                ds = p * (doi @ vj.transpose(-1, -2) - delta[rows]) * scale
                dq[rows] += ds @ kj
                dk[..., j : j + bk, :] += ds.transpose(-1, -2) @ qi
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None, None


@case(
    options={"mask": "mask", "causal": "causal"},
    source="lucidrains/memory-efficient-attention-pytorch flash_attention.py",
)
def flash_function_by_hand():
    """Batch, heads, length, size; torch.autograd.Function with tiles of 4 by 6, online softmax and hand-
    written backward from the log-sum-exp; key padding mask (batch, m) that keeps; causal with the last
    query at the last key; zeros for a row without keys."""

    def fn(q, k, v, mask=None, causal=False):
        return _Flash.apply(q, k, v, mask, causal, 4, 6)

    return fn


def _np_softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@case(
    options={"mask": "mask"},
    formats=NUMPY,
    source="course repositories, mytorch/nn/scaled_dot_product_attention.py",
)
def numpy_course_ignoring_mask():
    """NumPy forward and backward, (N, H, L, E); boolean mask, True is ignored, by -1e10."""
    eps = 1e10

    def forward(Q, K, V, mask=None):
        s = np.matmul(Q, np.swapaxes(K, -1, -2)) / np.sqrt(np.asarray(Q.shape[-1], Q.dtype))
        if mask is not None:
            s = np.where(mask, np.asarray(-eps, s.dtype), s)
        return np.matmul(_np_softmax(s), V)

    def backward(dO, Q, K, V, mask=None):
        d = np.sqrt(np.asarray(Q.shape[-1], Q.dtype))
        s = np.matmul(Q, np.swapaxes(K, -1, -2)) / d
        if mask is not None:
            s = np.where(mask, np.asarray(-eps, s.dtype), s)
        A = _np_softmax(s)
        dV = np.matmul(np.swapaxes(A, -1, -2), dO)
        dA = np.matmul(dO, np.swapaxes(V, -1, -2))
        dS = A * (dA - np.sum(dA * A, axis=-1, keepdims=True))
        if mask is not None:
            dS = np.where(mask, 0, dS)
        dS = dS / d
        return np.matmul(dS, K), np.matmul(np.swapaxes(dS, -1, -2), Q), dV

    return forward, backward


@case(
    options={"causal": "causal"},
    formats=NUMPY,
    source="style of course kernels, attention_backward(q, k, v, go)",
)
def numpy_single_head():
    """NumPy, one head without batch (length, size); causal aligned top left by a large negative number;
    the softmax Jacobian is built for each row."""

    def weights(q, k, causal):
        s = q @ k.T / math.sqrt(q.shape[1])
        if causal:
            s = s + np.triu(np.full(s.shape, -1e30, s.dtype), k=1)
        return _np_softmax(s)

    def fn(q, k, v, causal=False):
        return weights(q, k, causal) @ v

    def backward(go, q, k, v, causal=False):
        p = weights(q, k, causal)
        gp = go @ v.T
        gs = np.empty_like(p)
        for i, row in enumerate(p):
            jac = np.diag(row) - np.outer(row, row)
            gs[i] = jac @ gp[i]
        gs /= math.sqrt(q.shape[1])
        return gs @ k, gs.T @ q, p.T @ go

    return fn, backward


@case(
    options={"dropout": "dropout_p", "dropout_mask": "dropout_mask"},
    formats=NUMPY,
    source="style of NumPy frameworks: dropout_mask / (1 - dropout_p)",
)
def numpy_dropout_mask_given():
    """NumPy forward and backward (batch, heads, length, size) with a given mask of kept weights, scaled
    by 1 / (1 - p)."""

    def probs(q, k):
        return _np_softmax(np.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1]))

    def factor(dropout_p, dropout_mask, like):
        if dropout_mask is None or dropout_p == 0.0:
            return np.ones_like(like)
        return np.asarray(dropout_mask).astype(like.dtype) / (1 - dropout_p)

    def fn(q, k, v, dropout_p=0.0, dropout_mask=None):
        p = probs(q, k)
        return np.einsum("bhqk,bhkd->bhqd", p * factor(dropout_p, dropout_mask, p), v)

    def backward(do, q, k, v, dropout_p=0.0, dropout_mask=None):
        p = probs(q, k)
        f = factor(dropout_p, dropout_mask, p)
        dv = np.einsum("bhqk,bhqd->bhkd", p * f, do)
        dp = np.einsum("bhqd,bhkd->bhqk", do, v) * f
        ds = (p * dp - p * (p * dp).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
        return np.einsum("bhqk,bhkd->bhqd", ds, k), np.einsum("bhqk,bhqd->bhkd", ds, q), dv

    return fn, backward


@case(formats=NUMPY, source="karpathy/llm.c train_gpt2.c (attention_forward, attention_backward)")
def numpy_loops_as_in_c():
    """NumPy with the loops of a C programme: (B, T, C) with 4 heads merged, causal always, forward and
    backward; n == m only."""
    NH = 4

    def run(q, k, v, do=None):
        B, T, C = q.shape
        assert k.shape[1] == T
        hs = C // NH
        scale = 1.0 / math.sqrt(hs)
        out, dq, dk, dv = np.zeros_like(v), np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for b in range(B):
            for h in range(NH):
                c = slice(h * hs, (h + 1) * hs)
                for t in range(T):
                    pre = k[b, : t + 1, c] @ q[b, t, c] * scale
                    e = np.exp(pre - pre.max())
                    att = e * (1.0 / e.sum())
                    for t2 in range(t + 1):
                        out[b, t, c] += att[t2] * v[b, t2, c]
                    if do is None:
                        continue
                    datt = np.zeros_like(att)
                    for t2 in range(t + 1):
                        datt[t2] += v[b, t2, c] @ do[b, t, c]
                        dv[b, t2, c] += att[t2] * do[b, t, c]
                    dpre = att * (datt - att @ datt)
                    for t2 in range(t + 1):
                        dq[b, t, c] += k[b, t2, c] * dpre[t2] * scale
                        dk[b, t2, c] += q[b, t, c] * dpre[t2] * scale
        return out, (dq, dk, dv)

    def fn(q, k, v):
        return run(q, k, v)[0]

    def backward(do, q, k, v):
        return run(q, k, v, do)[1]

    return fn, backward


@case(
    options={"mask": "mask", "dropout": "dropout", "dropout_mask": "drop_mask"},
    source="deepspeed-style reference tests: given dropout mask",
)
def torch_dropout_mask_given():
    """Batch, heads, length, size; a given boolean mask keeps weights, scaled by 1 / (1 - p); boolean
    mask that keeps, any shape that broadcasts, by torch.where with -inf."""

    def fn(q, k, v, mask=None, dropout=0.0, drop_mask=None):
        att = torch.einsum("bhnd,bhmd->bhnm", q, k).mul(q.shape[-1] ** -0.5)
        if exists(mask):
            att = torch.where(mask, att, torch.tensor(float("-inf"), dtype=att.dtype))
        att = att.softmax(dim=-1)
        if exists(drop_mask) and dropout > 0:
            att = att * drop_mask.to(att.dtype) / (1.0 - dropout)
        return torch.einsum("bhnm,bhmd->bhnd", att, v)

    return fn


@case(options={"dropout": "p", "seed": "seed"}, source="reference tests of dropout kernels with a seed")
def dropout_from_a_seed():
    """Batch, heads, length, size; dropout on the weights with the numbers of a generator from the
    seed."""

    def fn(q, k, v, p=0.0, seed=0):
        w = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), -1)
        if p > 0.0:
            g = torch.Generator().manual_seed(int(seed))
            w = w * (torch.rand(w.shape, generator=g) >= p).to(w.dtype) / (1 - p)
        return w @ v

    return fn


@case(source="vllm-project/vllm tests/kernels/attention (reference for single query, paged cache)")
def decode_one_query():
    """One query: q is (batch, 1, heads, size), the cache (batch, m, groups, size); grouped without
    copies."""

    def decode(q, k_cache, v_cache):
        b, one, h, d = q.shape
        assert one == 1, "one new token"
        g = k_cache.shape[2]
        qg = q.view(b, g, h // g, d)
        logits = torch.einsum("bgrd,bmgd->bgrm", qg, k_cache) * (1.0 / math.sqrt(d))
        probs = F.softmax(logits.to(wide(logits)), dim=-1).to(q.dtype)
        return torch.einsum("bgrm,bmgd->bgrd", probs, v_cache).reshape(b, 1, h, -1)

    return decode


@case(
    options={"causal": "causal", "scale": "softmax_scale"},
    source="flashinfer-ai/flashinfer tests/test_attention_sink.py and ring attention repositories",
)
def out_and_lse():
    """Batch, length, heads, size; returns (out, lse); weights as exp(score - lse); causal with the last
    query at the last key."""

    def fn(q, k, v, softmax_scale=None, causal=False):
        softmax_scale = softmax_scale or q.shape[-1] ** -0.5
        scores = torch.einsum("bthd,bshd->bhts", q * softmax_scale, k)
        if causal:
            t, s = scores.shape[-2:]
            scores = scores.masked_fill(
                torch.triu(torch.ones(t, s, dtype=torch.bool), s - t + 1), float("-inf")
            )
        lse = torch.logsumexp(scores, dim=-1)
        p = torch.exp(scores - lse.unsqueeze(-1))
        return torch.einsum("bhts,bshd->bthd", p, v), lse

    return fn


@case(
    options={"mask": "mask"}, source="jadore801120/attention-is-all-you-need-pytorch transformer/Modules.py"
)
def out_and_weights():
    """Batch, heads, length, size; returns (output, attn); q divided by the temperature; mask == 0 gets
    -1e9."""

    def fn(q, k, v, mask=None):
        temperature = q.size(-1) ** 0.5
        attn = torch.matmul(q / temperature, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask == 0, -1e9)
        attn = F.softmax(attn, dim=-1)
        return torch.matmul(attn, v), attn

    return fn


@case(
    options={"mask": "key_padding_mask", "bias": "attn_mask"},
    source="facebookresearch/esm esm/multihead_attention.py",
)
def protein_sequence_first():
    """Sequence first with merged heads (length, batch, 4 * size); key_padding_mask (batch, m), True is
    ignored; attn_mask is added."""
    num_heads = 4

    def fn(q, k, v, key_padding_mask=None, attn_mask=None):
        tgt_len, bsz, embed_dim = q.size()
        head_dim = embed_dim // num_heads
        q = q * head_dim**-0.5
        q = q.contiguous().view(tgt_len, bsz * num_heads, head_dim).transpose(0, 1)
        k = k.contiguous().view(-1, bsz * num_heads, head_dim).transpose(0, 1)
        v = v.contiguous().view(k.size(1), bsz * num_heads, -1).transpose(0, 1)
        w = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            w = w.view(bsz, num_heads, tgt_len, -1) + attn_mask
            w = w.view(bsz * num_heads, tgt_len, -1)
        if key_padding_mask is not None:
            w = w.view(bsz, num_heads, tgt_len, -1)
            w = w.masked_fill(key_padding_mask.unsqueeze(1).unsqueeze(2).to(torch.bool), float("-inf"))
            w = w.view(bsz * num_heads, tgt_len, -1)
        attn = torch.bmm(F.softmax(w, dim=-1), v)
        return attn.transpose(0, 1).contiguous().view(tgt_len, bsz, -1)

    return fn


@case(options={"causal": "causality"}, source="kang205/SASRec modules.py (as ported to torch)")
def recommender_heads_in_batch():
    """Merged heads (batch, length, 2 * size), heads stacked along the batch; n == m only; causality by
    -2 ** 32 + 1."""

    def fn(queries, keys, values, causality=False, num_heads=2):
        assert queries.shape[1] == keys.shape[1]
        Q_, K_, V_ = (torch.cat(x.chunk(num_heads, dim=2), dim=0) for x in (queries, keys, values))
        outputs = torch.bmm(Q_, K_.transpose(1, 2)) / K_.shape[-1] ** 0.5
        if causality:
            tril = torch.tril(torch.ones_like(outputs[0])).unsqueeze(0).expand_as(outputs)
            outputs = torch.where(tril == 0, torch.ones_like(outputs) * (-(2**32) + 1), outputs)
        outputs = torch.bmm(torch.softmax(outputs, dim=-1), V_)
        return torch.cat(outputs.chunk(num_heads, dim=0), dim=2)

    return fn


@case(options={"mask": "attention_mask"}, source="RUCAIBox/RecBole recbole/model/layers.py")
def extended_mask_finfo():
    """Batch, heads, length, size with size 48, 80, 96 or 128 alone; attention_mask (batch, m) of ones
    for kept keys becomes (1 - mask) * finfo.min."""

    def fn(query_layer, key_layer, value_layer, attention_mask=None):
        size = query_layer.size(-1)
        if size not in (48, 80, 96, 128):
            raise ValueError(f"head size {size} is not supported")
        scores = query_layer @ key_layer.transpose(-1, -2)
        scores = scores / math.sqrt(size)
        if attention_mask is not None:
            extended = (1.0 - attention_mask[:, None, None, :].to(scores.dtype)) * torch.finfo(
                scores.dtype
            ).min
            scores = scores + extended
        return nn.Softmax(dim=-1)(scores) @ value_layer

    return fn


@lru_cache
def _swin_index(w):
    c = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")).flatten(1)
    r = (c[:, :, None] - c[:, None, :]).permute(1, 2, 0) + w - 1
    return r[..., 0] * (2 * w - 1) + r[..., 1]


@case(options={"bias": "mask"}, source="microsoft/Swin-Transformer models/swin_transformer.py")
def window_of_sixteen():
    """(windows, heads, 16, size): a window of 4 by 4, so n == m == 16 only; a fixed table gives the
    relative position bias; an additive mask."""
    table = fixed(49, 8, seed=3, std=0.5)

    def fn(q, k, v, mask=None):
        B_, heads, N, d = q.shape
        assert N == 16 and k.shape[2] == 16 and heads <= 8
        bias = table[_swin_index(4).view(-1), :heads].view(N, N, -1).permute(2, 0, 1).contiguous()
        attn = (q * d**-0.5) @ k.transpose(-2, -1) + bias.unsqueeze(0).to(q.dtype)
        if mask is not None:
            attn = attn + mask
        return attn.softmax(-1) @ v

    return fn


@case(source="lucidrains/denoising-diffusion-pytorch denoising_diffusion_pytorch/attend.py")
def channels_before_pixels():
    """(batch, heads, channels, pixels) for q, k, v and the output, by einsum 'b h d i, b h d j'."""

    def fn(q, k, v):
        q = q * q.shape[-2] ** -0.5
        sim = torch.einsum("b h d i, b h d j -> b h i j", q, k)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)
        return torch.einsum("b h i j, b h d j -> b h d i", attn, v)

    return fn


@case(
    options={"mask": "attn_mask", "causal": "is_causal", "scale": "scale", "groups": "enable_gqa"},
    source="pytorch/pytorch torch/nn/functional.py (the formula in the manual)",
)
def manual_of_sdpa():
    """PyTorch's own formula: boolean mask that keeps or float mask that is added, is_causal aligned top
    left, enable_gqa."""

    def scaled_dot_product_attention(
        query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False
    ):
        L, S = query.size(-2), key.size(-2)
        scale_factor = 1 / math.sqrt(query.size(-1)) if scale is None else scale
        attn_bias = torch.zeros(L, S, dtype=query.dtype)
        if is_causal:
            attn_bias = attn_bias.masked_fill(
                torch.ones(L, S, dtype=torch.bool).tril().logical_not(), float("-inf")
            )
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_bias = attn_bias + torch.zeros(attn_mask.shape, dtype=query.dtype).masked_fill(
                    attn_mask.logical_not(), float("-inf")
                )
            else:
                attn_bias = attn_mask + attn_bias
        if enable_gqa:
            key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
            value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
        w = query @ key.transpose(-2, -1) * scale_factor + attn_bias
        return torch.softmax(w, dim=-1) @ value

    return scaled_dot_product_attention


@case(source="functorch tutorials: single-head code, vmapped over heads and batch")
def vmapped_single_query():
    """Batch, length, heads, size; written for one query and mapped over queries, heads and batch by
    vmap."""

    def one(q, K, V):
        s = K @ q / math.sqrt(q.shape[0])
        e = torch.exp(s - torch.max(s).detach())
        return (e / torch.sum(e)) @ V

    over_queries = torch.vmap(one, in_dims=(0, None, None))
    over_heads = torch.vmap(over_queries, in_dims=(1, 1, 1), out_dims=1)
    over_batch = torch.vmap(over_heads)

    def fn(q, k, v):
        return over_batch(q, k, v)

    return fn


# ------------------------------------------------------------------------------------------------ other


@case("other", source="idiap/fast-transformers fast_transformers/attention/linear_attention.py")
def linear_elu():
    """Linear attention with elu + 1, not causal: (N, L, H, E), normalized by the sum of the keys."""

    def fn(q, k, v, eps=1e-6):
        Q, K = F.elu(q) + 1, F.elu(k) + 1
        KV = torch.einsum("nshd,nshm->nhmd", K, v)
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + eps)
        return torch.einsum("nlhd,nhmd,nlh->nlhm", Q, KV, Z).contiguous()

    return fn


@case("other", source="fla-org/flash-linear-attention fla/ops/linear_attn/naive.py")
def linear_causal_cumulative():
    """Causal linear attention without normalization, by the cumulative sum of outer products; n == m."""

    def fn(q, k, v):
        state = torch.cumsum(k.unsqueeze(-1) * v.unsqueeze(-2), dim=2)
        return torch.einsum("bhtd,bhtde->bhte", q * q.shape[-1] ** -0.5, state)

    return fn


@case(
    "other",
    source="apple/ml-sigmoid-attention attention_simulator/src/attention_simulator/layers/attention.py",
)
def sigmoid_log_bias():
    """Sigmoid attention: sigmoid(score - log m) in place of softmax; batch, heads, length, size."""

    def fn(q, k, v):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        return torch.sigmoid(s - math.log(k.shape[-2])) @ v

    return fn


@case(
    "other",
    source="facebookresearch/generative-recommenders ops/pytorch/pt_hstu_attention.py",
)
def recommender_silu():
    """HSTU: silu of the scores divided by the length, causal, no softmax; (batch, heads, n, size), n ==
    m."""

    def fn(q, k, v, alpha=1.0):
        n = q.shape[2]
        qk = F.silu(torch.einsum("bhxa,bhya->bhxy", q, k) * alpha) / n
        return torch.einsum("bhxy,bhyv->bhxv", qk * torch.tril(torch.ones(n, n, dtype=qk.dtype)), v)

    return fn


@case("other", source="microsoft/torchscale torchscale/component/multiscale_retention.py")
def retention_parallel():
    """Retention in its parallel form: (q k^T * D) v, D decays per head, each row divided by its absolute
    sum (at least 1); n == m."""

    def fn(q, k, v):
        h, n = q.shape[1], q.shape[2]
        decay = torch.log(1 - 2 ** (-5 - torch.arange(h, dtype=torch.float64)))
        i = torch.arange(n)
        back = (i[:, None] - i[None, :]).double()
        D = torch.exp(back.clamp(min=0)[None] * decay[:, None, None]).masked_fill(back < 0, 0.0).to(q.dtype)
        qk = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2) * D
        qk = qk / qk.abs().sum(dim=-1, keepdim=True).clamp(min=1)
        return qk @ v

    return fn


@case("other", source="microsoft/Swin-Transformer models/swin_transformer_v2.py (cosine attention)")
def cosine_qk_norm():
    """QK-norm: q and k are scaled to length 1, then softmax of 10 times their products."""

    def fn(q, k, v):
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return torch.softmax(10.0 * q @ k.transpose(-2, -1), dim=-1) @ v

    return fn


@case("other", source="huggingface/pytorch-image-models timm/layers/diff_attention.py")
def differential_halves():
    """Differential attention: q and k split into halves, difference of two softmaxes with lambda 0.8 -
    0.6 * exp(-0.3); batch, heads, length, even size."""
    lam = 0.8 - 0.6 * math.exp(-0.3)

    def fn(q, k, v):
        q1, q2 = q.chunk(2, dim=-1)
        k1, k2 = k.chunk(2, dim=-1)
        s = q1.shape[-1] ** -0.5
        a = torch.softmax(q1 @ k1.mT * s, -1) - lam * torch.softmax(q2 @ k2.mT * s, -1)
        return a @ v

    return fn


def _rope(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    freq = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = positions.double()[:, None] * freq
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


@case("other", options={"causal": "causal"}, source="jingyaogong/minimind model/model_minimind.py")
def rope_inside():
    """Rotary positions (halves) applied to q and k inside, then softmax attention; causal with the last
    query at the last key; batch, heads, length, size."""

    def fn(q, k, v, causal=False):
        n, m = q.shape[2], k.shape[2]
        q = _rope(q, torch.arange(m - n, m))
        k = _rope(k, torch.arange(m))
        s = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if causal:
            s = s + torch.full((n, m), float("-inf"), dtype=s.dtype).triu(m - n + 1)
        return F.softmax(s, dim=-1) @ v

    return fn


@case("other", source="deepseek-ai/DeepSeek-V3 inference/model.py (absorbed latent attention)")
def latent_absorbed():
    """Latent attention: k and v are latents (batch, m, rank), q is (batch, n, heads, size); fixed up-
    projections from the rank to keys and values are absorbed on the query's and the output's side."""

    @lru_cache
    def up(h, d, r, which):
        return fixed(h, d, r, seed=which, std=r**-0.5)

    def fn(q, k, v):
        h, d, r = q.shape[2], q.shape[3], k.shape[-1]
        w_k, w_v = up(h, d, r, 1).to(q.dtype), up(h, d, v.shape[-1], 2).to(q.dtype)
        q_lat = torch.einsum("bnhd,hdr->bnhr", q, w_k)
        p = (torch.einsum("bnhr,bmr->bnhm", q_lat, k) * d**-0.5).softmax(dim=-1)
        return torch.einsum("bnhr,hdr->bnhd", torch.einsum("bnhm,bmr->bnhr", p, v), w_v)

    return fn


@case("other", source="relu attention divided by the length, squared as in Primer")
def relu_squared():
    """Squared relu of the scores divided by the number of keys; batch, heads, length, size."""

    def fn(q, k, v):
        return (F.relu(q @ k.transpose(-1, -2) * q.size(-1) ** -0.5) ** 2 / k.size(-2)) @ v

    return fn


# ----------------------------------------------------------------------------------------------- layers


def _seeded(build):
    with torch.random.fork_rng():
        torch.manual_seed(20)
        return build()


class _Conv1D(nn.Module):
    def __init__(self, nf, nx):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(nx, nf) * 0.2)
        self.bias = nn.Parameter(torch.randn(nf) * 0.1)

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


@case("layer", source="openai/gpt-2 src/model.py, as Conv1D in torch")
def layer_gpt2_conv1d():
    """GPT-2: c_attn and c_proj as Conv1D with weights (in, out), packed q k v, causal buffer, returns a
    tuple (output, present)."""

    class Attention(nn.Module):
        def __init__(self, nx=32, n_ctx=64, n_head=4):
            super().__init__()
            self.register_buffer("bias", torch.tril(torch.ones(n_ctx, n_ctx)).view(1, 1, n_ctx, n_ctx))
            self.n_head, self.split_size = n_head, nx
            self.c_attn, self.c_proj = _Conv1D(nx * 3, nx), _Conv1D(nx, nx)

        def split_heads(self, x):
            return x.view(*x.shape[:-1], self.n_head, -1).transpose(1, 2)

        def forward(self, x):
            q, k, v = (self.split_heads(y) for y in self.c_attn(x).split(self.split_size, dim=2))
            w = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(v.size(-1))
            nd, ns = w.size(-2), w.size(-1)
            b = self.bias[:, :, ns - nd : ns, :ns]
            w = w * b - 1e4 * (1 - b)
            a = torch.matmul(nn.Softmax(dim=-1)(w), v)
            a = a.transpose(1, 2).contiguous().flatten(2)
            return self.c_proj(a), torch.stack((k, v))

    return _seeded(Attention)


@case("layer", source="karpathy/minGPT mingpt/model.py")
def layer_mingpt():
    """minGPT: separate key, query, value with biases, causal buffer, merged output projection."""

    class CausalSelfAttention(nn.Module):
        def __init__(self, n_embd=32, n_head=2, block=48):
            super().__init__()
            self.key = nn.Linear(n_embd, n_embd)
            self.query = nn.Linear(n_embd, n_embd)
            self.value = nn.Linear(n_embd, n_embd)
            self.attn_drop, self.resid_drop = nn.Dropout(0.0), nn.Dropout(0.0)
            self.proj = nn.Linear(n_embd, n_embd)
            self.register_buffer("mask", torch.tril(torch.ones(block, block)).view(1, 1, block, block))
            self.n_head = n_head

        def forward(self, x, layer_past=None):
            B, T, C = x.size()
            k, q, v = (
                f(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
                for f in (self.key, self.query, self.value)
            )
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
            y = self.attn_drop(F.softmax(att, dim=-1)) @ v
            return self.resid_drop(self.proj(y.transpose(1, 2).contiguous().view(B, T, C)))

    return _seeded(CausalSelfAttention)


@case("layer", source="huggingface/pytorch-image-models timm/layers/attention.py")
def layer_vision_packed():
    """Vision transformer: packed qkv with bias, not causal, head size 48."""

    class Attention(nn.Module):
        def __init__(self, dim=144, num_heads=3):
            super().__init__()
            self.num_heads = num_heads
            self.scale = (dim // num_heads) ** -0.5
            self.qkv = nn.Linear(dim, dim * 3, bias=True)
            self.proj = nn.Linear(dim, dim)

        def forward(self, x):
            B, N, C = x.shape
            q, k, v = (
                self.qkv(x)
                .reshape(B, N, 3, self.num_heads, C // self.num_heads)
                .permute(2, 0, 3, 1, 4)
                .unbind(0)
            )
            attn = ((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1)
            return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))

    return _seeded(Attention)


@case("layer", source="meta-llama/llama3 llama/model.py, jingyaogong/minimind model/model_minimind.py")
def layer_llama_groups_rope():
    """Llama: wq, wk, wv, wo without biases, 4 heads on 2 groups, rotary positions in neighbouring pairs
    by complex multiplication, causal."""

    class Attention(nn.Module):
        def __init__(self, dim=32, n_heads=4, n_kv_heads=2):
            super().__init__()
            self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
            self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
            self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
            self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
            self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

        def rotary(self, x):
            freqs = 1.0 / (
                10000.0 ** (torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
            )
            angle = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), freqs)
            t = torch.promote_types(x.dtype, torch.float32)
            cis = torch.polar(torch.ones_like(angle), angle).to(
                torch.complex(*[torch.zeros((), dtype=t)] * 2).dtype
            )
            pairs = torch.view_as_complex(x.to(t).reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * cis[None, :, None]).flatten(3).to(x.dtype)

        def forward(self, x):
            bsz, n, _ = x.shape
            xq = self.rotary(self.wq(x).view(bsz, n, self.n_heads, self.head_dim))
            xk = self.rotary(self.wk(x).view(bsz, n, self.n_kv_heads, self.head_dim))
            xv = self.wv(x).view(bsz, n, self.n_kv_heads, self.head_dim)
            xk, xv = (torch.repeat_interleave(y, self.n_heads // self.n_kv_heads, dim=2) for y in (xk, xv))
            xq, xk, xv = xq.transpose(1, 2), xk.transpose(1, 2), xv.transpose(1, 2)
            scores = torch.matmul(xq, xk.transpose(2, 3)) / math.sqrt(self.head_dim)
            scores = scores + torch.full((n, n), float("-inf"), dtype=scores.dtype).triu(1)
            scores = F.softmax(scores, dim=-1, dtype=torch.promote_types(x.dtype, torch.float32)).type_as(xq)
            return self.wo(torch.matmul(scores, xv).transpose(1, 2).reshape(bsz, n, -1))

    return _seeded(Attention)


@case("layer", source="CompVis/latent-diffusion ldm/modules/attention.py")
def layer_cross_attention():
    """Stable Diffusion: to_q from x, to_k and to_v from a context of another width (x itself if none),
    no biases but in the output, mask (batch, m) that keeps."""

    class CrossAttention(nn.Module):
        def __init__(self, query_dim=32, context_dim=None, heads=4, dim_head=8):
            super().__init__()
            inner = dim_head * heads
            context_dim = context_dim or query_dim
            self.scale, self.heads = dim_head**-0.5, heads
            self.to_q = nn.Linear(query_dim, inner, bias=False)
            self.to_k = nn.Linear(context_dim, inner, bias=False)
            self.to_v = nn.Linear(context_dim, inner, bias=False)
            self.to_out = nn.Sequential(nn.Linear(inner, query_dim), nn.Dropout(0.0))

        def forward(self, x, context=None, mask=None):
            h = self.heads
            context = x if context is None else context
            q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
            b, n, _ = q.shape
            q, k, v = (
                t.view(b, -1, h, t.shape[-1] // h).transpose(1, 2).reshape(b * h, t.shape[1], -1)
                for t in (q, k, v)
            )
            sim = torch.einsum("bid,bjd->bij", q, k) * self.scale
            if exists(mask):
                mask = mask.reshape(b, -1).repeat_interleave(h, 0)[:, None, :]
                sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
            out = torch.einsum("bij,bjd->bid", sim.softmax(dim=-1), v)
            return self.to_out(out.view(b, h, n, -1).transpose(1, 2).reshape(b, n, -1))

    return _seeded(CrossAttention)


@case("layer", source="facebookresearch/fairseq fairseq/modules/multihead_attention.py")
def layer_sequence_first_tuple():
    """fairseq: (length, batch, width), query, key, value, key_padding_mask True is ignored, additive
    attn_mask; returns (output, mean weights)."""

    class MultiheadAttention(nn.Module):
        def __init__(self, embed_dim=32, num_heads=4):
            super().__init__()
            self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
            self.k_proj, self.v_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
            self.q_proj, self.out_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)

        def forward(self, query, key, value, key_padding_mask=None, attn_mask=None):
            t, b, _ = query.shape
            q = self.q_proj(query) * self.head_dim**-0.5
            k, v = self.k_proj(key), self.v_proj(value)
            q, k, v = (
                x.reshape(x.shape[0], b * self.num_heads, self.head_dim).transpose(0, 1) for x in (q, k, v)
            )
            w = torch.bmm(q, k.transpose(1, 2))
            if attn_mask is not None:
                w = w + (attn_mask.unsqueeze(0) if attn_mask.dim() == 2 else attn_mask)
            if key_padding_mask is not None:
                w = w.view(b, self.num_heads, t, -1).masked_fill(
                    key_padding_mask[:, None, None, :], float("-inf")
                )
                w = w.view(b * self.num_heads, t, -1)
            p = torch.softmax(w, dim=-1)
            o = torch.bmm(p, v).transpose(0, 1).reshape(t, b, self.embed_dim)
            return self.out_proj(o), p.view(b, self.num_heads, t, -1).mean(dim=1)

    return _seeded(MultiheadAttention)


@case("layer", source="espnet/espnet espnet/nets/pytorch_backend/transformer/attention.py")
def layer_speech_three_inputs():
    """ESPnet: forward(query, key, value, mask) batch first, mask (batch, n or 1, m) that keeps, zeros
    after softmax."""

    class MultiHeadedAttention(nn.Module):
        def __init__(self, n_head=2, n_feat=32):
            super().__init__()
            self.d_k, self.h = n_feat // n_head, n_head
            self.linear_q, self.linear_k = nn.Linear(n_feat, n_feat), nn.Linear(n_feat, n_feat)
            self.linear_v, self.linear_out = nn.Linear(n_feat, n_feat), nn.Linear(n_feat, n_feat)
            self.attn = None

        def forward(self, query, key, value, mask=None):
            nb = query.size(0)
            q = self.linear_q(query).view(nb, -1, self.h, self.d_k).transpose(1, 2)
            k = self.linear_k(key).view(nb, -1, self.h, self.d_k).transpose(1, 2)
            v = self.linear_v(value).view(nb, -1, self.h, self.d_k).transpose(1, 2)
            scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
            if mask is not None:
                mask = mask.unsqueeze(1).eq(0)
                scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
                self.attn = torch.softmax(scores, dim=-1).masked_fill(mask, 0.0)
            else:
                self.attn = torch.softmax(scores, dim=-1)
            x = torch.matmul(self.attn, v).transpose(1, 2).contiguous().view(nb, -1, self.h * self.d_k)
            return self.linear_out(x)

    return _seeded(MultiHeadedAttention)


@case("layer", source="jaywalnut310/vits attentions.py")
def layer_conv_channels_first():
    """VITS: (batch, channels, length) with 1-by-1 convolutions for q, k, v and the output; mask of ones
    that keeps."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, channels=32, n_heads=2):
            super().__init__()
            self.n_heads, self.k_channels = n_heads, channels // n_heads
            self.conv_q, self.conv_k = nn.Conv1d(channels, channels, 1), nn.Conv1d(channels, channels, 1)
            self.conv_v, self.conv_o = nn.Conv1d(channels, channels, 1), nn.Conv1d(channels, channels, 1)

        def forward(self, x, c=None, attn_mask=None):
            c = x if c is None else c
            q, k, v = self.conv_q(x), self.conv_k(c), self.conv_v(c)
            b, d, t_t = q.size()
            query, key, value = (
                y.view(b, self.n_heads, self.k_channels, -1).transpose(2, 3) for y in (q, k, v)
            )
            scores = torch.matmul(query / math.sqrt(self.k_channels), key.transpose(-2, -1))
            if attn_mask is not None:
                scores = scores.masked_fill(attn_mask == 0, -1e4)
            out = torch.matmul(F.softmax(scores, dim=-1), value)
            return self.conv_o(out.transpose(2, 3).contiguous().view(b, d, t_t))

    return _seeded(MultiHeadAttention)


@case("layer", source="huggingface/transformers src/transformers/models/falcon/modeling_falcon.py")
def layer_one_key_head_packed():
    """Multi-query attention: one packed projection gives 4 query heads and one key and one value head;
    no biases; causal by SDPA."""

    class Attention(nn.Module):
        def __init__(self, hidden_size=32, num_heads=4):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
            self.query_key_value = nn.Linear(hidden_size, hidden_size + 2 * self.head_dim, bias=False)
            self.dense = nn.Linear(hidden_size, hidden_size, bias=False)

        def forward(self, hidden_states):
            b, n, c = hidden_states.shape
            fused = self.query_key_value(hidden_states).view(b, n, self.num_heads + 2, self.head_dim)
            q, k, v = (
                x.transpose(1, 2) for x in (fused[..., :-2, :], fused[..., [-2], :], fused[..., [-1], :])
            )
            k, v = k.expand(-1, self.num_heads, -1, -1), v.expand(-1, self.num_heads, -1, -1)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.dense(o.transpose(1, 2).reshape(b, n, c))

    return _seeded(Attention)


@case("layer", source="google-deepmind/alphafold alphafold/model/modules.py, ported")
def layer_weights_per_head():
    """Weights as (width, heads, size) parameters used by einsum, an output weight (heads, size, width),
    biases; forward(q_data, m_data, mask) with m_data = q_data if not given."""

    class Attention(nn.Module):
        def __init__(self, width=32, heads=4):
            super().__init__()
            size = width // heads
            self.num_heads = heads
            self.query_w = nn.Parameter(torch.randn(width, heads, size) * width**-0.5)
            self.key_w = nn.Parameter(torch.randn(width, heads, size) * width**-0.5)
            self.value_w = nn.Parameter(torch.randn(width, heads, size) * width**-0.5)
            self.output_w = nn.Parameter(torch.randn(heads, size, width) * width**-0.5)
            self.output_b = nn.Parameter(torch.randn(width) * 0.1)

        def forward(self, q_data, m_data=None, mask=None):
            m_data = q_data if m_data is None else m_data
            q = torch.einsum("bqa,ahc->bqhc", q_data, self.query_w) * self.query_w.shape[-1] ** -0.5
            k = torch.einsum("bka,ahc->bkhc", m_data, self.key_w)
            v = torch.einsum("bka,ahc->bkhc", m_data, self.value_w)
            logits = torch.einsum("bqhc,bkhc->bhqk", q, k)
            if mask is not None:
                logits = logits + 1e9 * (mask[:, None, None, :].to(logits.dtype) - 1)
            avg = torch.einsum("bhqk,bkhc->bqhc", torch.softmax(logits, -1), v)
            return torch.einsum("bqhc,hco->bqo", avg, self.output_w) + self.output_b

    return _seeded(Attention)
