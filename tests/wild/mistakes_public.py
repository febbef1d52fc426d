"""Attention code with one mistake each, after bugs that public issues and pull requests tell of.

Written anew: no line is from the threads named in source=; some mistakes are told there as a crash or a
question, and here made into the silent error that they warn of.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from cases import collection

CASES, case = collection()

NP = ("float64", "float32")
LOG2E = 1.4426950408889634


def _tril(n, m, device=None, bottom_right=True):
    """The keys that a causal query may see, as a boolean matrix."""
    rows = torch.arange(n, device=device)[:, None] + (m - n if bottom_right else 0)
    return rows >= torch.arange(m, device=device)[None, :]


def _softmax(s):
    """Row softmax of NumPy scores; rows without any key give zeros."""
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isfinite(top), top, 0))
    z = e.sum(-1, keepdims=True)
    return (e / np.where(z == 0, 1, z)).astype(s.dtype)


def _probs(q, k, scale, keep=None):
    """Torch probabilities; rows without any key give zeros."""
    s = torch.matmul(q, k.transpose(-2, -1)) * scale
    if keep is not None:
        s = s.masked_fill(~keep, float("-inf"))
        return torch.softmax(s, -1).masked_fill(~keep.any(-1, keepdim=True), 0)
    return torch.softmax(s, -1)


# ---------------------------------------------------------------------------------------------------------------
# grouped heads


@case(options={"groups": "enable_gqa"}, source="onnx/onnx#7274")
def gqa_tiles_heads():
    """Grouped heads: K and V are tiled (0 1 0 1), not repeated (0 0 1 1), so that query heads read the wrong
    key head. Forward and all gradients; whenever there are both several kv heads and groups of more than one."""
    def sdpa(query, key, value, enable_gqa=False):
        if enable_gqa:
            n_rep = query.size(1) // key.size(1)
            key = key.repeat(1, n_rep, 1, 1)
            value = value.repeat(1, n_rep, 1, 1)
        w = (query @ key.mT) / math.sqrt(query.size(-1))
        return w.softmax(dim=-1) @ value
    return sdpa


@case(source="marin-community/levanter#449")
def gqa_last_query_head_wins():
    """Grouped heads (batch, heads, n, d): in the backward each query head of a group overwrites dK and dV of its
    kv head instead of adding to it. dk and dv, whenever a group has more than one query head."""
    def fn(q, k, v):
        g = q.shape[1] // k.shape[1]
        p = _probs(q, k.repeat_interleave(g, 1), q.shape[-1] ** -0.5)
        return p @ v.repeat_interleave(g, 1)

    def backward(do, q, k, v):
        b, hq, n, d = q.shape
        g = hq // k.shape[1]
        scale = d ** -0.5
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for h in range(hq):
            kk, vv = k[:, h // g], v[:, h // g]
            p = _probs(q[:, h], kk, scale)
            dp = do[:, h] @ vv.mT
            ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
            dq[:, h] = ds @ kk
            dk[:, h // g] = ds.mT @ q[:, h]
            dv[:, h // g] = p.mT @ do[:, h]
        return dq, dk, dv
    return fn, backward


@case(source="XunhaoLai/native-sparse-attention-triton#27", formats=NP)
def gqa_backward_maps_heads_by_modulo():
    """Grouped heads, NumPy, (n, heads, d): the forward and dq find the kv head by h // group, dK and dV by
    h % kv_heads. dk and dv, when both the group and the number of kv heads are above one."""
    def weights(q, k, h, g):
        return _softmax((q[:, h] @ k[:, h // g].T) / np.asarray(math.sqrt(q.shape[-1]), q.dtype))

    def fn(q, k, v):
        g = q.shape[1] // k.shape[1]
        return np.stack([weights(q, k, h, g) @ v[:, h // g] for h in range(q.shape[1])], 1)

    def backward(do, q, k, v):
        hkv = k.shape[1]
        g = q.shape[1] // hkv
        c = np.asarray(1 / math.sqrt(q.shape[-1]), q.dtype)
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for h in range(q.shape[1]):
            p = weights(q, k, h, g)
            dp = do[:, h] @ v[:, h // g].T
            ds = p * (dp - (p * dp).sum(1, keepdims=True)) * c
            dq[:, h] = ds @ k[:, h // g]
            target = h % hkv
            dk[:, target] += ds.T @ q[:, h]
            dv[:, target] += p.T @ do[:, h]
        return dq, dk, dv
    return fn, backward


@case(source="fla-org/flash-linear-attention#384")
def gqa_keeps_first_heads_of_dk():
    """Grouped heads (batch, n, heads, d): the gradient of K is held per query head, and of it the first kv_heads
    heads are returned instead of the sums over each group; dv is right. dk, for groups above one."""
    def expand(x, g):
        return x.repeat_interleave(g, dim=2)

    def fwd(q, k, v):
        g = q.shape[2] // k.shape[2]
        a = torch.einsum("bihd,bjhd->bhij", q, expand(k, g)) / q.shape[-1] ** 0.5
        return torch.einsum("bhij,bjhd->bihd", a.softmax(-1), expand(v, g))

    def bwd(do, q, k, v):
        hk = k.shape[2]
        g = q.shape[2] // hk
        c = q.shape[-1] ** -0.5
        kk, vv = expand(k, g), expand(v, g)
        p = (torch.einsum("bihd,bjhd->bhij", q, kk) * c).softmax(-1)
        dp = torch.einsum("bihd,bjhd->bhij", do, vv)
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * c
        dq = torch.einsum("bhij,bjhd->bihd", ds, kk)
        dk = torch.einsum("bhij,bihd->bjhd", ds, q)[:, :, :hk].contiguous()
        dv = torch.einsum("bhij,bihd->bjhd", p, do).unflatten(2, (hk, g)).sum(3)
        return dq, dk, dv
    return fwd, bwd


@case(options={"groups": "enable_gqa"}, source="pytorch/pytorch#174861")
def gqa_two_pass_reads_wrong_head():
    """Grouped heads: with more than 64 keys a two-pass path is taken, which finds the kv head by
    h % kv_heads instead of h // group. Forward and all gradients, only for GQA and m > 64."""
    def one(q, k, v, c):
        return ((q @ k.mT) * c).softmax(-1) @ v

    def two(q, k, v, c):
        outs, lses = [], []
        for a in range(0, k.shape[-2], 64):
            s = (q @ k[:, a:a + 64].mT) * c
            lse = torch.logsumexp(s, -1, keepdim=True)
            outs.append((s - lse).exp() @ v[:, a:a + 64])
            lses.append(lse)
        w = torch.softmax(torch.cat(lses, -1), -1)
        return sum(w[..., i:i + 1] * o for i, o in enumerate(outs))

    def fn(q, k, v, enable_gqa=False):
        heads, kv = q.shape[1], k.shape[1]
        g, c = heads // kv, q.shape[-1] ** -0.5
        long = k.shape[2] > 64
        outs = []
        for h in range(heads):
            j = h % kv if long else h // g
            outs.append((two if long else one)(q[:, h], k[:, j], v[:, j], c))
        return torch.stack(outs, 1)
    return fn


# ---------------------------------------------------------------------------------------------------------------
# causal masks


@case(options={"causal": "causal"}, source="flashinfer-ai/flashinfer#348")
def causal_hides_own_position():
    """The causal mask (aligned bottom right) also hides the query's own position; rows left without keys give
    zeros. Forward and all gradients, with causal."""
    def prefill(q, k, v, causal=False):
        qo, kv = q.shape[-2], k.shape[-2]
        keep = torch.ones(qo, kv, dtype=torch.bool, device=q.device)
        if causal:
            i = torch.arange(qo, device=q.device)[:, None]
            j = torch.arange(kv, device=q.device)[None]
            keep = ~(j >= kv + i - qo)
        return _probs(q, k, 1 / math.sqrt(q.shape[-1]), keep) @ v
    return prefill


@case(options={"causal": "causal"}, source="triton-lang/triton#7216")
def causal_mask_missing_in_backward():
    """Backward recomputes P from the saved log-sum-exp but never masks it, so that future keys get
    exp(s - lse). dq, dk and dv, with causal."""
    class Attn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, causal, sm_scale):
            s = (q @ k.mT) * sm_scale
            if causal:
                s = s.masked_fill(~_tril(*s.shape[-2:], device=s.device, bottom_right=False), -math.inf)
            lse = s.logsumexp(-1, keepdim=True)
            o = (s - lse).exp() @ v
            ctx.save_for_backward(q, k, v, o, lse)
            ctx.sm_scale = sm_scale
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, lse = ctx.saved_tensors
            p = ((q @ k.mT) * ctx.sm_scale - lse).exp()
            delta = (o * do).sum(-1, keepdim=True)
            ds = p * (do @ v.mT - delta) * ctx.sm_scale
            return ds @ k, ds.mT @ q, p.mT @ do, None, None

    def attention(q, k, v, causal=False):
        return Attn.apply(q, k, v, causal, q.shape[-1] ** -0.5)
    return attention


@case(options={"causal": "causal"}, source="triton-lang/triton#5660")
def backward_is_always_causal():
    """The backward masks as if causal had been asked for, also when the forward was not causal. dq, dk and dv,
    without causal (with causal it is right)."""
    def weights(q, k, causal):
        s = torch.einsum("...id,...jd->...ij", q, k) / q.shape[-1] ** 0.5
        if causal:
            s = s.masked_fill(~_tril(q.shape[-2], k.shape[-2], q.device, False), -math.inf)
        return s

    def fwd(q, k, v, causal=False):
        return weights(q, k, causal).softmax(-1) @ v

    def bwd(do, q, k, v, causal=False):
        lse = weights(q, k, causal).logsumexp(-1, keepdim=True)
        o = fwd(q, k, v, causal)
        p = (weights(q, k, True) - lse).exp()
        ds = p * (do @ v.mT - (o * do).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
        return ds @ k, ds.mT @ q, p.mT @ do
    return fwd, bwd


@case(options={"causal": "causal"}, source="Dao-AILab/flash-attention#436", formats=NP)
def causal_alignment_differs_in_backward():
    """NumPy, (batch, n, d): causal is aligned bottom right in the forward and top left in the backward.
    dq, dk and dv, with causal and n != m."""
    def scores(q, k):
        return np.einsum("bid,bjd->bij", q, k) * np.asarray(q.shape[-1] ** -0.5, q.dtype)

    def flash(q, k, v, causal=False):
        s = scores(q, k)
        if causal:
            n, m = s.shape[1:]
            s = np.where(np.tri(n, m, m - n, dtype=bool), s, -np.inf).astype(q.dtype)
        return _softmax(s) @ v

    def flash_bwd(do, q, k, v, causal=False):
        s = scores(q, k)
        if causal:
            s = np.where(np.tri(*s.shape[1:], dtype=bool), s, -np.inf).astype(q.dtype)
        p = _softmax(s)
        dp = do @ v.swapaxes(1, 2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * np.asarray(q.shape[-1] ** -0.5, q.dtype)
        return ds @ k, ds.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ do
    return flash, flash_bwd


@case(options={"causal": "causal"}, source="vithursant/nanoGPT_mlx#6")
def causal_mask_inverted():
    """where() has its branches swapped: with causal, the past and the own position are hidden by -1e9 and the
    future is seen (the last row is the mean of all). Forward and all gradients, with causal."""
    def attn(q, k, v, causal=False):
        T, S = q.shape[-2], k.shape[-2]
        att = (q @ k.transpose(-1, -2)) * (1.0 / math.sqrt(k.size(-1)))
        if causal:
            bias = torch.tril(torch.ones(T, S, device=q.device))
            att = torch.where(bias == 0, att, torch.full_like(att, -1e9))
        return F.softmax(att, dim=-1) @ v
    return attn


@case(options={"causal": "causal", "scale": "sm_scale"}, source="jax-ml/jax#19237")
def causal_flag_without_effect():
    """The tiled kernel takes causal but only uses it to skip tiles (of 128) wholly in the future and never masks
    inside a tile. Forward and all gradients, with causal."""
    def flash_attention(q, k, v, causal=False, sm_scale=None, block=128):
        c = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
        rows = []
        for i in range(0, q.shape[-2], block):
            qi = q[..., i:i + block, :]
            top = min(k.shape[-2], i + block) if causal else k.shape[-2]
            parts = [qi @ k[..., j:j + block, :][..., :top - j, :].mT * c for j in range(0, top, block)]
            w = torch.cat(parts, -1).softmax(-1)
            rows.append(w @ v[..., :top, :])
        return torch.cat(rows, -2)
    return flash_attention


@case(options={"causal": "is_causal", "mask": "att_mask"}, source="facebookresearch/xformers#104")
def causal_skipped_without_extra_mask():
    """The causal triangle is only joined to a mask that the caller gives; with causal alone nothing is masked.
    Forward and all gradients, with causal and no mask."""
    def forward(q, k, v, att_mask=None, is_causal=False):
        if att_mask is not None:
            if is_causal:
                tri = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
                att_mask = att_mask & tri
        s = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        if att_mask is not None:
            s = s.masked_fill(~att_mask, torch.finfo(s.dtype).min)
        return torch.softmax(s, dim=-1) @ v
    return forward


@case(options={"causal": "causal"}, source="huggingface/transformers#29263")
def causal_buffer_too_short():
    """The causal mask is cut from a buffer made for 64 positions; beyond it nothing is masked: rows and columns
    from 64 on are all visible. Forward and all gradients, with causal and n > 64."""
    buffer = torch.full((64, 64), float("-inf")).triu(1)

    def fn(q, k, v, causal=False):
        n, m = q.size(-2), k.size(-2)
        s = q @ k.mT / math.sqrt(q.size(-1))
        if causal:
            full = torch.zeros(n, m, dtype=s.dtype, device=s.device)
            a, b = min(n, 64), min(m, 64)
            full[:a, :b] = buffer[:a, :b].to(s)
            s = s + full
        return s.softmax(-1) @ v
    return fn


@case(options={"causal": "causal"}, source="facebookresearch/xformers#66")
def causal_mask_stale_after_longer_call():
    """The causal mask (aligned bottom right) is kept from the largest call so far and cut to [:n, :m], which
    moves its diagonal. Forward and gradients, with causal, after a call with another m - n."""
    kept = {}

    def fn(q, k, v, causal=False):
        n, m = q.shape[-2], k.shape[-2]
        s = q @ k.mT * q.shape[-1] ** -0.5
        if causal:
            old = kept.get("mask")
            if old is None or old.shape[0] < n or old.shape[1] < m:
                kept["mask"] = _tril(n, m)
            keep = kept["mask"][:n, :m]
            s = s.masked_fill(~keep, float("-inf"))
            p = s.softmax(-1).masked_fill(~keep.any(-1, keepdim=True), 0.0)
            return p @ v
        return s.softmax(-1) @ v
    return fn


@case(options={"causal": "causal"}, source="harvard-edge/cs249r_book#1785", formats=("float32",))
def causal_additive_mask_read_as_binary():
    """An additive causal mask (0 and -inf) goes to code that expects 1 and 0: allowed scores get -1e9 added,
    which in float32 wipes them out, so that every row is the mean of its past. Forward and gradients, causal."""
    def apply_mask(scores, mask):
        return scores + (1 - mask) * -1e9

    def fn(q, k, v, causal=False):
        s = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        if causal:
            mask = torch.triu(torch.full(s.shape[-2:], float("-inf"), dtype=s.dtype), diagonal=1)
            s = apply_mask(s, mask)
        return torch.matmul(torch.softmax(s, -1), v)
    return fn


# ---------------------------------------------------------------------------------------------------------------
# masks


@case(options={"mask": "mask"}, source="awslabs/gluonts#1401")
def mask_fills_with_small_number():
    """Hidden scores are filled with 1e-9 (a slip for -1e9), so hidden keys count as score zero. Forward and all
    gradients, with a mask."""
    def attention(q, k, v, mask=None):
        score = torch.einsum("bhqd,bhkd->bhqk", q, k) * (q.size(-1) ** -0.5)
        if mask is not None:
            score = torch.where(mask, score, torch.full_like(score, 1e-9))
        return torch.einsum("bhqk,bhkd->bhqd", score.softmax(dim=-1), v)
    return attention


@case(options={"mask": "attn_mask"}, source="huggingface/pytorch-image-models#2236")
def mask_after_softmax():
    """The mask is applied after the softmax, without normalising again: hidden keys stay in the denominator.
    Forward and all gradients, with a mask."""
    def fn(q, k, v, attn_mask=None):
        q = q * q.shape[-1] ** -0.5
        attn = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        if attn_mask is not None:
            attn = attn.masked_fill(~attn_mask, 0.0)
        return attn @ v
    return fn


@case(options={"mask": "mask"}, source="georg-wolflein/good-features#1", formats=NP)
def mask_multiplies_scores():
    """NumPy, (..., n, d): scores are multiplied by the 0/1 mask before the softmax, so hidden keys weigh
    exp(0). Forward and all gradients, with a mask."""
    def probs(q, k, mask):
        a = q @ np.swapaxes(k, -1, -2) / np.sqrt(np.asarray(q.shape[-1], q.dtype))
        return _softmax(a if mask is None else a * mask)

    def f(q, k, v, mask=None):
        return probs(q, k, mask) @ v

    def g(do, q, k, v, mask=None):
        p = probs(q, k, mask)
        dp = do @ np.swapaxes(v, -1, -2)
        da = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(np.asarray(q.shape[-1], q.dtype))
        if mask is not None:
            da = da * mask
        return da @ k, np.swapaxes(da, -1, -2) @ q, np.swapaxes(p, -1, -2) @ do
    return f, g


@case(options={"mask": "mask"}, source="hyunwoongko/transformer#40")
def mask_hides_rows_not_columns():
    """Self-attention with a token mask (batch, n), True for real tokens: it is unsqueezed to (batch, 1, n, 1) and
    so flattens the rows of padded queries (-10000 everywhere) and hides no key. Forward and gradients, with mask."""
    def scaled_dot(q, k, v, mask=None):
        score = (q @ k.transpose(2, 3)) / math.sqrt(q.size(3))
        if mask is not None:
            if mask.dim() == 2:
                mask = mask.unsqueeze(1).unsqueeze(3)
            score = score.masked_fill(mask == 0, -10000)
        return torch.softmax(score, -1) @ v
    return scaled_dot


@case(options={"mask": "mask", "bias": "attn_bias"}, source="lucidrains/x-transformers#160")
def mask_meaning_turns_without_bias():
    """The boolean mask keeps where True only if a bias is given too; without a bias it is handed on inverted
    (True hides). Forward and all gradients, with a mask and no bias."""
    def flash(q, k, v, mask=None, attn_bias=None):
        if mask is not None and attn_bias is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask)
        if attn_bias is not None:
            bias = attn_bias
            if mask is not None:
                bias = attn_bias.masked_fill(~mask, -math.inf)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return F.scaled_dot_product_attention(q, k, v)
    return flash


@case(options={"mask": "attn_mask"}, source="rasbt/LLMs-from-scratch#1061")
def mask_inverted_in_backward():
    """True keeps in the forward, but the hand-written backward hides where True. dq, dk and dv, with a mask."""
    def fwd(q, k, v, attn_mask=None):
        return _probs(q, k, q.shape[-1] ** -0.5, attn_mask) @ v

    def bwd(do, q, k, v, attn_mask=None):
        c = q.shape[-1] ** -0.5
        p = _probs(q, k, c, None if attn_mask is None else ~attn_mask)
        dp = do @ v.mT
        ds = c * p * (dp - (p * dp).sum(-1, keepdim=True))
        return ds @ k, ds.mT @ q, p.mT @ do
    return fwd, bwd


@case(options={"mask": "mask"}, source="lsdefine/attention-is-all-you-need-keras#36")
def mask_heads_folded_in_other_order():
    """Heads are folded into the batch head-first, the mask (batch, n, m) is repeated batch-first: heads get the
    mask of another batch element. Forward and gradients, with a mask that differs over the batch, b and h > 1."""
    def mha(q, k, v, mask=None):
        b, h, n, d = q.shape

        def fold(x):
            return x.transpose(0, 1).reshape(-1, *x.shape[2:])
        s = torch.bmm(fold(q), fold(k).transpose(1, 2)) / d ** 0.5
        if mask is not None:
            if mask.dim() == 4:
                mask = mask[:, 0]
            mask = mask.expand(b, n, k.shape[2]) if mask.dim() == 3 else mask.expand(b, -1, -1)
            s = s.masked_fill(~mask.repeat_interleave(h, 0), -1e9 if s.dtype != torch.float16 else -6e4)
        o = torch.bmm(s.softmax(-1), fold(v))
        return o.view(h, b, n, -1).transpose(0, 1)
    return mha


@case(options={"mask": "attention_mask"}, source="microsoft/onnxruntime#18945")
def mask_taken_for_right_padding():
    """The fused path counts the kept keys of each row and keeps that many from the left, as if all masks were
    right padding. Forward and all gradients, with a mask that is not a prefix in every row."""
    def fused(q, k, v, attention_mask=None):
        s = q @ k.mT * q.shape[-1] ** -0.5
        if attention_mask is not None:
            length = attention_mask.sum(-1, keepdim=True)
            keep = torch.arange(k.shape[-2], device=q.device) < length
            s = s.masked_fill(~keep, torch.finfo(s.dtype).min)
        return s.softmax(-1) @ v
    return fused


@case(options={"mask": "src_mask"}, source="pytorch/pytorch#90534")
def mask_added_as_number():
    """The boolean mask (True keeps) is cast to the dtype of the scores and added: kept keys get +1, hidden keys
    0 instead of -inf. Forward and all gradients, with a mask."""
    def attend(q, k, v, src_mask=None):
        logits = q.matmul(k.transpose(-1, -2)).div(math.sqrt(k.shape[-1]))
        if src_mask is not None:
            logits = logits + src_mask.to(logits.dtype)
        return logits.softmax(-1).matmul(v)
    return attend


@case(options={"mask": "attn_mask"}, source="pytorch/pytorch#103963")
def nan_for_rows_without_keys():
    """Rows whose keys are all hidden give NaN, and their NaN reaches dk and dv of every key. Output and gradients,
    with a mask that has such rows (boolean, True keeps)."""
    def math_sdpa(q, k, v, attn_mask=None):
        L, S = q.shape[-2], k.shape[-2]
        bias = torch.zeros(L, S, dtype=q.dtype, device=q.device)
        if attn_mask is not None:
            bias = torch.zeros(attn_mask.shape, dtype=q.dtype).masked_fill(attn_mask.logical_not(), -math.inf)
        return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + bias, -1) @ v
    return math_sdpa


@case(options={"mask": "mask"}, source="facebookresearch/xformers#722")
def nan_when_first_tile_is_hidden():
    """Online softmax in tiles of 16 keys starting from the maximum -inf: a row whose first tile is hidden makes
    exp(-inf + inf) = NaN although later tiles have keys. Output and gradients, with such a mask, m > 16."""
    def tiled(q, k, v, mask=None):
        c = q.shape[-1] ** -0.5
        m_i = torch.full(q.shape[:-1] + (1,), -math.inf, dtype=q.dtype, device=q.device)
        l_i = torch.zeros_like(m_i)
        acc = torch.zeros(q.shape[:-1] + (v.shape[-1],), dtype=q.dtype, device=q.device)
        full = None if mask is None else mask.expand(q.shape[:-1] + (k.shape[-2],))
        for j in range(0, k.shape[-2], 16):
            s = q @ k[..., j:j + 16, :].mT * c
            if full is not None:
                s = s.masked_fill(~full[..., j:j + 16], -math.inf)
            m_new = torch.maximum(m_i, s.amax(-1, keepdim=True))
            p = torch.exp(s - m_new)
            a = torch.exp(m_i - m_new)
            l_i, acc, m_i = l_i * a + p.sum(-1, keepdim=True), acc * a + p @ v[..., j:j + 16, :], m_new
        return acc / l_i
    return tiled


# ---------------------------------------------------------------------------------------------------------------
# tiles, splits, shards


@case(source="jax-ml/jax#27224", formats=NP)
def last_partial_tile_dropped():
    """NumPy, (n, d): the loop over tiles of 16 keys runs m // 16 times, so the keys of the last partial tile are
    left out. Forward and all gradients, for m > 16 not a multiple of 16."""
    def count(k):
        return len(k) if len(k) < 16 else len(k) // 16 * 16

    def mha(q, k, v):
        c = np.asarray(q.shape[-1] ** -0.5, q.dtype)
        m = np.full((len(q), 1), -np.inf, q.dtype)
        z, acc = np.zeros_like(m), np.zeros((len(q), v.shape[1]), q.dtype)
        for j in range(max(1, len(k) // 16)):
            s = q @ k[16 * j:16 * j + 16].T * c
            new = np.maximum(m, s.max(1, keepdims=True))
            p, a = np.exp(s - new), np.exp(m - new)
            z, acc, m = z * a + p.sum(1, keepdims=True), acc * a + p @ v[16 * j:16 * j + 16], new
        return acc / z

    def mha_bwd(do, q, k, v):
        u, c = count(k), np.asarray(q.shape[-1] ** -0.5, q.dtype)
        p = _softmax(q @ k[:u].T * c)
        dp = do @ v[:u].T
        ds = p * (dp - (p * dp).sum(1, keepdims=True)) * c
        dk, dv = np.zeros_like(k), np.zeros_like(v)
        dk[:u], dv[:u] = ds.T @ q, p.T @ do
        return ds @ k[:u], dk, dv
    return mha, mha_bwd


@case(source="FluxML/NNkernels.jl#16")
def padded_keys_in_the_sum():
    """Keys are padded with zeros to a multiple of 32 and the padding is not masked: every padded key adds exp(0)
    to the denominator. Forward and all gradients, for m not a multiple of 32."""
    def flash(q, k, v):
        pad = -k.shape[-2] % 32
        k, v = F.pad(k, (0, 0, 0, pad)), F.pad(v, (0, 0, 0, pad))
        s = (q / math.sqrt(q.shape[-1])) @ k.mT
        m = torch.zeros_like(s[..., :1]) - math.inf
        z, o = 0, 0
        for sj, vj in zip(s.split(32, -1), v.split(32, -2)):
            new = torch.maximum(m, sj.amax(-1, keepdim=True))
            e, r = (sj - new).exp(), (m - new).exp()
            z, o, m = z * r + e.sum(-1, keepdim=True), o * r + e @ vj, new
        return o / z
    return flash


@case(source="pytorch/pytorch#169222")
def reads_into_the_next_head():
    """Blocks of 32 keys without a bounds check: the last partial block reads on in memory, which is the next
    head's K and V. Forward and gradients, for m not a multiple of 32 (heads and batches beyond the first read)."""
    def vector_kernel(q, k, v):
        b, h, m, d = k.shape
        blocks = -(-m // 32) * 32
        start = torch.arange(b * h, device=q.device)[:, None] * m
        where = start + torch.arange(blocks, device=q.device)[None]
        where = where.clamp(max=b * h * m - 1)
        inside = start + torch.arange(blocks, device=q.device)[None] < b * h * m
        kk = k.reshape(-1, d)[where].view(b, h, blocks, d)
        vv = v.reshape(b * h * m, -1)[where].view(b, h, blocks, -1)
        s = q @ kk.mT / math.sqrt(d)
        s = s.masked_fill(~inside.view(b, h, 1, blocks), -math.inf)
        return s.softmax(-1) @ vv
    return vector_kernel


@case(source="deepseek-ai/FlashMLA#177")
def rescale_with_wrong_sign():
    """Online softmax in tiles of 32 keys: the accumulator (not the sum) is rescaled by exp(m_new - m_old).
    Forward and all gradients, for m > 32, in rows whose maximum is not in the first tile."""
    def fn(q, k, v):
        q = q * q.shape[-1] ** -0.5
        m_i = l_i = acc = None
        for kj, vj in zip(k.split(32, -2), v.split(32, -2)):
            s = q @ kj.mT
            top = s.amax(-1, keepdim=True)
            if m_i is None:
                m_i, p = top, (s - top).exp()
                l_i, acc = p.sum(-1, keepdim=True), p @ vj
                continue
            m_new = torch.maximum(m_i, top)
            p = (s - m_new).exp()
            l_i = l_i * (m_i - m_new).exp() + p.sum(-1, keepdim=True)
            acc = acc * (m_new - m_i).exp() + p @ vj
            m_i = m_new
        return acc / l_i
    return fn


@case(source="Dao-AILab/flash-attention#2083", formats=NP)
def maximum_overwritten_before_rescale():
    """NumPy, (heads, n, d): the running maximum is overwritten before the rescaling factor is formed from it, so
    the factor is always 1. Forward, for m > 16 in rows whose maximum grows; the backward is plain and right."""
    def forward(q, k, v):
        c = np.asarray(q.shape[-1] ** -0.5, q.dtype)
        row_max = np.full(q.shape[:-1] + (1,), -np.inf, q.dtype)
        row_sum = np.zeros_like(row_max)
        acc = np.zeros(q.shape[:-1] + (v.shape[-1],), q.dtype)
        for j in range(0, k.shape[1], 16):
            s = q @ k[:, j:j + 16].swapaxes(1, 2) * c
            row_max = np.maximum(row_max, s.max(-1, keepdims=True))
            old = row_max
            factor = np.exp(old - row_max)
            p = np.exp(s - row_max)
            row_sum = row_sum * factor + p.sum(-1, keepdims=True)
            acc = acc * factor + p @ v[:, j:j + 16]
        return acc / row_sum

    def backward(do, q, k, v):
        c = np.asarray(q.shape[-1] ** -0.5, q.dtype)
        p = _softmax(q @ k.swapaxes(1, 2) * c)
        dp = do @ v.swapaxes(1, 2)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * c
        return ds @ k, ds.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ do
    return forward, backward


@case()
def denominator_of_last_tile():
    """Online softmax in tiles of 64: at the end the sum of the last tile alone divides. Forward and gradients,
    for m > 64."""
    def fn(q, k, v):
        c = 1 / math.sqrt(q.shape[-1])
        top = (q @ k.mT * c).amax(-1, keepdim=True).detach()
        out = 0
        for j in range(0, k.shape[-2], 64):
            e = (q @ k[..., j:j + 64, :].mT * c - top).exp()
            total = e.sum(-1, keepdim=True)
            out = out + e @ v[..., j:j + 64, :]
        return out / total
    return fn


@case(source="triton-lang/triton#2020")
def delta_for_half_of_the_rows():
    """The backward's preprocessing runs on the forward's grid (blocks of 32 rows) with blocks of 16 rows: only the
    first ceil(n / 32) * 16 rows get delta, the others keep zero. dq and dk, for n > 16; dv is right."""
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            s = q @ k.mT * q.shape[-1] ** -0.5
            lse = s.logsumexp(-1, keepdim=True)
            o = (s - lse).exp() @ v
            ctx.save_for_backward(q, k, v, o, lse)
            ctx.grid = -(-q.shape[-2] // 32)
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, lse = ctx.saved_tensors
            delta = torch.zeros_like(lse)
            for pid in range(ctx.grid):
                rows = slice(16 * pid, 16 * pid + 16)
                delta[..., rows, :] = (o[..., rows, :] * do[..., rows, :]).sum(-1, keepdim=True)
            c = q.shape[-1] ** -0.5
            p = (q @ k.mT * c - lse).exp()
            ds = p * (do @ v.mT - delta) * c
            return ds @ k, ds.mT @ q, p.mT @ do
    return Attention.apply


@case(source="flagos-ai/FlagGems#898")
def dv_tail_overwrites_next_head():
    """dV is stored in blocks of 16 rows without a bounds check, heads from last to first: the padding of one head
    zeroes the first rows of the next. dv, for m not a multiple of 16 and more than one head or batch element."""
    def fwd(q, k, v):
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v

    def bwd(do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = (q @ k.mT * c).softmax(-1)
        dp = do @ v.mT
        ds = c * p * (dp - (p * dp).sum(-1, keepdim=True))
        dv = (p.mT @ do).flatten(0, -3) if v.dim() > 2 else (p.mT @ do)[None]
        m, e = v.shape[-2:]
        pad = -m % 16
        flat = torch.zeros(dv.shape[0] * m + 16, e, dtype=v.dtype)
        for h in reversed(range(dv.shape[0])):
            flat[h * m:(h + 1) * m + pad] = F.pad(dv[h], (0, 0, 0, pad))
        return ds @ k, ds.mT @ q, flat[:dv.shape[0] * m].view(v.shape)
    return fwd, bwd


@case(source="triton-lang/triton#621")
def head_dim_taken_for_64():
    """The dot products run over the first 64 entries of q and k only. Forward and all gradients, for d > 64."""
    def fused(q, k, v, BLOCK_DMODEL=64):
        qk = q[..., :BLOCK_DMODEL] @ k[..., :BLOCK_DMODEL].mT
        return (qk * q.shape[-1] ** -0.5).softmax(-1) @ v
    return fused


@case(source="XunhaoLai/native-sparse-attention-triton#27")
def dp_cut_at_qk_head_dim():
    """The backward of dq takes dO and V only up to the head dim of q and k when it forms dP. dq, when V is wider
    than K (dk and dv are right)."""
    def fwd(q, k, v):
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v

    def bwd(do, q, k, v):
        d = q.shape[-1]
        c = d ** -0.5
        p = (q @ k.mT * c).softmax(-1)
        delta = (do * (p @ v)).sum(-1, keepdim=True)
        ds = p * (do @ v.mT - delta) * c
        ds_q = p * (do[..., :d] @ v[..., :d].mT - delta) * c
        return ds_q @ k, ds.mT @ q, p.mT @ do
    return fwd, bwd


@case(source="flashinfer-ai/flashinfer#50")
def splits_merged_without_lse():
    """Split over keys (32 each): the partial log-sum-exps are never stored and stay zero, so the partial outputs
    are merged with equal weights. Forward and all gradients, for m > 32."""
    def decode(q, k, v):
        c = 1.0 / math.sqrt(q.shape[-1])
        parts, lse = [], []
        for kj, vj in zip(k.split(32, -2), v.split(32, -2)):
            s = (q @ kj.mT) * c
            parts.append(torch.softmax(s, -1) @ vj)
            lse.append(torch.zeros_like(s[..., 0]))
        w = torch.stack(lse).softmax(0)
        return (torch.stack(parts) * w.unsqueeze(-1)).sum(0)
    return decode


@case(source="tile-ai/tilelang#328")
def nan_from_empty_split():
    """Keys are divided among 4 splits of ceil(m / 4); if the last is empty, its 0 / 0 output and -inf weight make
    the whole output NaN. Output and gradients, for m in which ceil(m / 4) * 3 >= m (as 3, 5, 6, 9)."""
    def combine(q, k, v, num_split=4):
        step = -(-k.shape[-2] // num_split)
        outs, lses = [], []
        for i in range(num_split):
            kj, vj = k[..., i * step:(i + 1) * step, :], v[..., i * step:(i + 1) * step, :]
            s = q @ kj.mT / math.sqrt(q.shape[-1])
            top = s.amax(-1, keepdim=True) if kj.shape[-2] else torch.zeros_like(q[..., :1])
            e = (s - top).exp()
            z = e.sum(-1, keepdim=True)
            outs.append((e @ vj) / z)
            lses.append(z.log() + top)
        big = torch.stack(lses).amax(0)
        w = [(x - big).exp() for x in lses]
        return sum(a * o for a, o in zip(w, outs)) / sum(w)
    return combine


@case(source="ROCm/aiter#3334")
def smoothed_shards_merged():
    """K is centred by its mean inside each shard of 16 keys, and the shards' outputs are merged with
    log-sum-exps that were not corrected for it. Forward and all gradients, for m > 16."""
    def shard(q, k, v, c):
        k = k - k.mean(-2, keepdim=True)
        s = q @ k.mT * c
        lse = s.logsumexp(-1, keepdim=True)
        return (s - lse).exp() @ v, lse

    def sage(q, k, v):
        c = q.shape[-1] ** -0.5
        out, lse = None, None
        for kj, vj in zip(k.split(16, -2), v.split(16, -2)):
            o, e = shard(q, kj, vj, c)
            if out is None:
                out, lse = o, e
            else:
                out = out - torch.sigmoid(e - lse) * (out - o)
                lse = torch.logaddexp(lse, e)
        return out
    return sage


@case(source="huggingface/picotron#37", formats=NP)
def delta_from_partial_output():
    """NumPy, (n, d): keys in chunks of 16 as in a ring; the backward of each chunk forms D from that chunk's own
    contribution to the output instead of the whole output. dq and dk, for m > 16."""
    def fwd(q, k, v):
        return _softmax(q @ k.T / np.sqrt(np.asarray(q.shape[1], q.dtype))) @ v

    def bwd(do, q, k, v):
        c = np.asarray(q.shape[1] ** -0.5, q.dtype)
        s = q @ k.T * c
        top = s.max(1, keepdims=True)
        lse = np.log(np.exp(s - top).sum(1, keepdims=True)) + top
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for j in range(0, len(k), 16):
            part = slice(j, j + 16)
            p = np.exp(s[:, part] - lse)
            dp = do @ v[part].T
            ds = p * (dp - (p * dp).sum(1, keepdims=True)) * c
            dq += ds @ k[part]
            dk[part] = ds.T @ q
            dv[part] = p.T @ do
        return dq, dk, dv
    return fwd, bwd


@case(source="huggingface/diffusers#14265")
def ring_backward_with_stale_chunk():
    """Ring over chunks of 32 keys: every step of the backward uses the K and V saved at step 0 instead of the
    chunk whose turn it is (a shorter last chunk takes as many rows of it). dq, dk and dv, for m > 32."""
    class Ring(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            c = q.shape[-1] ** -0.5
            out = lse = None
            for kj, vj in zip(k.split(32, -2), v.split(32, -2)):
                s = q @ kj.mT * c
                e = s.logsumexp(-1, keepdim=True)
                o = (s - e).exp() @ vj
                if out is None:
                    ctx.first = (kj, vj)
                    out, lse = o, e
                else:
                    new = torch.logaddexp(lse, e)
                    out, lse = out * (lse - new).exp() + o * (e - new).exp(), new
            ctx.save_for_backward(q, k, out, lse)
            return out

        @staticmethod
        def backward(ctx, do):
            q, k, out, lse = ctx.saved_tensors
            c = q.shape[-1] ** -0.5
            delta = (out * do).sum(-1, keepdim=True)
            dq, dks, dvs = torch.zeros_like(q), [], []
            for chunk in k.split(32, -2):
                kj, vj = (x[..., :chunk.shape[-2], :] for x in ctx.first)
                p = (q @ kj.mT * c - lse).exp()
                ds = p * (do @ vj.mT - delta) * c
                dq = dq + ds @ kj
                dks.append(ds.mT @ q)
                dvs.append(p.mT @ do)
            return dq, torch.cat(dks, -2), torch.cat(dvs, -2)
    return Ring.apply


@case(source="vllm-project/flash-attention#176", formats=NP)
def combine_ignores_batch_stride():
    """NumPy, (batch, heads, n, d): two halves of the keys are combined, and the result is stored with a batch
    stride of zero: the first element holds the last one's output, the others stay zero. Forward, for batch > 1."""
    def fn(q, k, v):
        out = np.zeros(q.shape[:-1] + v.shape[-1:], q.dtype)
        half = (k.shape[2] + 1) // 2
        for b in range(len(q)):
            num, den = 0, 0
            top = None
            for kj, vj in ((k[b][:, :half], v[b][:, :half]), (k[b][:, half:], v[b][:, half:])):
                if kj.shape[1] == 0:
                    continue
                s = q[b] @ kj.swapaxes(1, 2) / np.sqrt(np.asarray(q.shape[-1], q.dtype))
                new = s.max(-1, keepdims=True) if top is None else np.maximum(top, s.max(-1, keepdims=True))
                r = 1 if top is None else np.exp(top - new)
                e = np.exp(s - new)
                num, den, top = num * r + e @ vj, den * r + e.sum(-1, keepdims=True), new
            out[b * 0] = num / den
        return out

    def backward(do, q, k, v):
        c = np.asarray(q.shape[-1] ** -0.5, q.dtype)
        p = _softmax(q @ k.swapaxes(2, 3) * c)
        dp = do @ v.swapaxes(2, 3)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * c
        return ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ do
    return fn, backward


# ---------------------------------------------------------------------------------------------------------------
# layouts and strides


@case(source="pytorch/pytorch#181133")
def strides_ignored():
    """q, k and v (batch, heads, n, d) are read as if contiguous in memory, whatever their strides. Forward and
    gradients, only for inputs that are not contiguous (as x.permute(0, 2, 1, 3))."""
    def packed(x):
        strides, step = [], 1
        for size in reversed(x.shape):
            strides.insert(0, step)
            step *= size
        return x.as_strided(x.shape, strides)

    def fn(q, k, v):
        q, k, v = packed(q), packed(k), packed(v)
        return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v
    return fn


@case(source="vllm-project/vllm#11978")
def output_viewed_not_transposed():
    """(batch, n, heads, d): the output is computed as (batch, heads, n, d) and then reshaped, not transposed, to
    the caller's layout. Forward and all gradients, for more than one head."""
    def vit_attention(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v)
        b, h, n, d = o.shape
        return o.reshape(b, n, h, d)
    return vit_attention


# ---------------------------------------------------------------------------------------------------------------
# softmax, scale, log-sum-exp, number formats


@case(source="fastnlp/fastNLP#254")
def softmax_axis_fixed_at_two():
    """softmax(dim=2) is written for (batch, n, d); with heads, (batch, heads, n, d), it normalises over the
    queries. Forward and all gradients, for inputs of four axes."""
    def dot_attention(Q, K, V):
        A = torch.matmul(Q, K.transpose(-1, -2)) / math.sqrt(Q.size(-1))
        return torch.matmul(torch.softmax(A, dim=2), V)
    return dot_attention


@case(source="PetrochukM/PyTorch-NLP#2")
def softmax_over_flattened_rows():
    """(batch, n, d): the scores are flattened to (batch * n, m) and softmaxed over the first axis, the rows.
    Forward and all gradients, always."""
    def fn(query, context, values):
        b, n, d = query.shape
        scores = torch.bmm(query, context.transpose(1, 2)) / d ** 0.5
        w = F.softmax(scores.view(b * n, -1), dim=0).view(b, n, -1)
        return torch.bmm(w, values)
    return fn


@case(options={"mask": "mask"}, source="mlc-ai/mlc-llm#3426")
def fallback_path_unscaled():
    """With a mask a fallback path is taken that leaves out the factor 1 / sqrt(d). Forward and all gradients,
    with a mask."""
    def attention(q, k, v, mask=None):
        if mask is None:
            return F.scaled_dot_product_attention(q, k, v)
        sm_scale = 1.0
        s = torch.einsum("bhid,bhjd->bhij", q, k) * sm_scale
        s = s.masked_fill(~mask, torch.finfo(s.dtype).min)
        return torch.einsum("bhij,bhje->bhie", s.softmax(-1), v)
    return attention


@case(options={"scale": "sm_scale"}, source="pytorch/xla#6886")
def backward_takes_default_scale():
    """The backward always uses 1 / sqrt(d), also when the caller gave another scale. dq, dk and dv, with scale."""
    class Flash(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, sm_scale):
            ctx.save_for_backward(q, k, v)
            return torch.softmax((q @ k.mT) * sm_scale, -1) @ v

        @staticmethod
        def backward(ctx, g):
            q, k, v = ctx.saved_tensors
            c = 1 / math.sqrt(q.shape[-1])
            p = torch.softmax((q @ k.mT) * c, -1)
            dp = g @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True))
            return c * ds @ k, c * ds.mT @ q, p.mT @ g, None

    def flash(q, k, v, sm_scale=None):
        return Flash.apply(q, k, v, q.shape[-1] ** -0.5 if sm_scale is None else sm_scale)
    return flash


@case(options={"causal": "causal"}, source="Dao-AILab/flash-attention#2651")
def dk_without_scale():
    """The scale is folded into the exponent and given back to dq at the end, but dk never gets it. dk, always
    (unless the scale is 1)."""
    def fwd(q, k, v, causal=False):
        keep = _tril(q.shape[-2], k.shape[-2], q.device) if causal else None
        return _probs(q, k, q.shape[-1] ** -0.5, keep) @ v

    def bwd(do, q, k, v, causal=False):
        c = q.shape[-1] ** -0.5
        p = _probs(q, k, c, _tril(q.shape[-2], k.shape[-2], q.device) if causal else None)
        d_row = (do * (p @ v)).sum(-1, keepdim=True)
        ds = p * (do @ v.mT - d_row)
        return (ds @ k) * c, ds.mT @ q, p.mT @ do
    return fwd, bwd


@case(formats=NP)
def dk_from_untransposed_ds():
    """NumPy, square self-attention (n, d): dk is dS q instead of dS transposed q. dk, for n > 1."""
    def f(q, k, v):
        assert q.shape == k.shape
        return _softmax(q @ k.T / np.sqrt(np.asarray(q.shape[1], q.dtype))) @ v

    def df(do, q, k, v):
        c = np.sqrt(np.asarray(q.shape[1], q.dtype))
        p = _softmax(q @ k.T / c)
        dp = do @ v.T
        ds = p * (dp - np.sum(p * dp, axis=1, keepdims=True)) / c
        return ds.dot(k), ds.dot(q), p.T.dot(do)
    return f, df


@case(source="lightseekorg/tokenspeed#571")
def lse_in_base_two():
    """The forward works in base 2 and saves log2 of the sum; the backward takes it for the natural logarithm.
    dq, dk and dv, always."""
    class Exp2Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            s2 = q @ k.mT * (LOG2E * q.shape[-1] ** -0.5)
            top = s2.amax(-1, keepdim=True)
            e = torch.exp2(s2 - top)
            z = e.sum(-1, keepdim=True)
            o = (e @ v) / z
            ctx.save_for_backward(q, k, v, o, top + z.log2())
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, lse = ctx.saved_tensors
            c = q.shape[-1] ** -0.5
            p = torch.exp(q @ k.mT * c - lse)
            ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) * c
            return ds @ k, ds.mT @ q, p.mT @ do
    return Exp2Attention.apply


@case(options={"bias": "rel_bias"}, source="meta-pytorch/segment-anything-fast#71")
def bias_not_in_base_two():
    """The softmax runs in base 2 with log2(e) folded into the scale, but the bias is added without that factor.
    Forward and all gradients, with a bias."""
    def attn(q, k, v, rel_bias=None):
        qk = (q * (q.shape[-1] ** -0.5 * LOG2E)) @ k.mT
        if rel_bias is not None:
            qk = qk + rel_bias
        e = torch.exp2(qk - qk.amax(-1, keepdim=True))
        return (e @ v) / e.sum(-1, keepdim=True)
    return attn


@case(source="philipturner/metal-flash-attention#8", formats=NP)
def scores_in_half_precision():
    """The raw products q k are held in float16 before the scale is applied: they round to 11 bits and overflow
    to inf (NaN in the softmax) above 65504. Forward and all gradients; NaN for large inputs."""
    def mfa(q, k, v):
        raw = (q @ k.mT).half()
        s = raw.to(q.dtype) / math.sqrt(q.shape[-1])
        return s.softmax(-1) @ v
    return mfa


@case()
def exponential_without_maximum():
    """exp(s) is taken without subtracting the row maximum: inf / inf = NaN for large scores. Output and
    gradients, for scores above about 88 (float32, bfloat16) or 709 (float64)."""
    def fn(q, k, v):
        e = torch.exp(torch.einsum("...id,...jd->...ij", q, k) * q.shape[-1] ** -0.5)
        return torch.einsum("...ij,...je->...ie", e / e.sum(-1, keepdim=True), v)
    return fn


@case(source="NVIDIA/cudnn-frontend#1046", formats=NP)
def ds_narrowed_to_bfloat16():
    """The backward rounds dS to bfloat16 before and after multiplying it by the scale, whatever the inputs'
    format. dq and dk, off by about 1e-3; dv is right."""
    def narrow(x):
        return x.bfloat16().to(x.dtype)

    def fwd(q, k, v):
        return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v

    def bwd(do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = (q @ k.mT * c).softmax(-1)
        delta = ((p @ v) * do).sum(-1, keepdim=True)
        ds = narrow(narrow(p * (do @ v.mT - delta)) * c)
        return ds @ k, ds.mT @ q, p.mT @ do
    return fwd, bwd


@case(source="pjreddie/darknet#96")
def softmax_backward_copies():
    """The softmax's backward hands the gradient on unchanged: dS = dP. dq and dk, always; dv is right."""
    class Soft(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.softmax(-1)

        @staticmethod
        def backward(ctx, g):
            return g

    def attention(q, k, v):
        return Soft.apply(q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))) @ v
    return attention


@case(source="pocketpy/cTensor#31", formats=NP)
def softmax_jacobian_diagonal_only():
    """NumPy, (..., n, d): the softmax's backward uses only the diagonal of the Jacobian, dS = P (1 - P) dP.
    dq and dk, always; dv is right."""
    def T(x):
        return np.swapaxes(x, -1, -2)

    def attend(q, k, v):
        return _softmax(q @ T(k) / np.asarray(math.sqrt(q.shape[-1]), q.dtype)) @ v

    def attend_grad(do, q, k, v):
        c = np.asarray(math.sqrt(q.shape[-1]), q.dtype)
        p = _softmax(q @ T(k) / c)
        ds = p * (1 - p) * (do @ T(v)) / c
        return ds @ k, T(ds) @ q, T(p) @ do
    return attend, attend_grad


@case(source="huggingface/candle#3569")
def softmax_cuts_the_graph():
    """The fused softmax has no backward: nothing flows back through the weights. dq and dk are zero, always;
    the output and dv are right."""
    def softmax_last_dim(x):
        with torch.no_grad():
            return torch.softmax(x, -1)

    def fn(q, k, v):
        return softmax_last_dim(q @ k.mT / math.sqrt(q.shape[-1])) @ v + 0 * q.sum() + 0 * k.sum()
    return fn


@case(source="NVIDIA/TransformerEngine#3216")
def delta_of_first_batch_element():
    """(batch, n, heads, d): the backward's row sums of dO * O are those of the first batch element for all.
    dq and dk, for batch > 1; dv is right."""
    def fwd(q, k, v):
        p = (torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5).softmax(-1)
        return torch.einsum("bhij,bjhd->bihd", p, v)

    def bwd(do, q, k, v):
        c = q.shape[-1] ** -0.5
        p = (torch.einsum("bihd,bjhd->bhij", q, k) * c).softmax(-1)
        delta = (do * fwd(q, k, v)).sum(-1).transpose(1, 2).unsqueeze(-1)
        ds = c * p * (torch.einsum("bihd,bjhd->bhij", do, v) - delta[:1])
        dq = torch.einsum("bhij,bjhd->bihd", ds, k)
        dk = torch.einsum("bhij,bihd->bjhd", ds, q)
        return dq, dk, torch.einsum("bhij,bihd->bjhd", p, do)
    return fwd, bwd


# ---------------------------------------------------------------------------------------------------------------
# bias


@case(options={"bias": "attn_bias"}, source="facebookresearch/xformers#576")
def bias_scaled_too():
    """The bias is added before the scale, (q k + bias) / sqrt(d). Forward and all gradients, with a bias."""
    def attention(q, k, v, attn_bias=None):
        dots = torch.einsum("bhld,bhsd->bhls", q, k)
        if attn_bias is not None:
            dots = dots + attn_bias
        attn = (dots * q.shape[-1] ** -0.5).softmax(dim=-1)
        return torch.einsum("bhls,bhsd->bhld", attn, v)
    return attention


class _BiasedBase(torch.autograd.Function):
    """Attention with an additive bias; subclasses say how its gradient is brought to its shape."""

    @staticmethod
    def forward(ctx, q, k, v, bias):
        c = q.shape[-1] ** -0.5
        p = (q @ k.mT * c + bias).softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        ctx.shape = bias.shape
        return p @ v

    @staticmethod
    def grads(ctx, do):
        q, k, v, p = ctx.saved_tensors
        c = q.shape[-1] ** -0.5
        dp = do @ v.mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        return c * ds @ k, c * ds.mT @ q, p.mT @ do, ds


@case(options={"bias": "bias"}, source="HKUSTDial/flash-sparse-attention#193")
def dbias_of_first_broadcast_element():
    """The gradient of a bias that is broadcast (over batch, heads or rows) is that of the first element, not the
    sum. The bias's gradient, with a broadcast bias; output, dq, dk and dv are right."""
    class Biased(_BiasedBase):
        @staticmethod
        def backward(ctx, do):
            dq, dk, dv, ds = _BiasedBase.grads(ctx, do)
            while ds.dim() > len(ctx.shape):
                ds = ds[0]
            for axis, size in enumerate(ctx.shape):
                if size == 1:
                    ds = ds.narrow(axis, 0, 1)
            return dq, dk, dv, ds

    def fn(q, k, v, bias=None):
        if bias is None:
            return _probs(q, k, q.shape[-1] ** -0.5) @ v
        return Biased.apply(q, k, v, bias)
    return fn


@case(options={"bias": "bias"}, source="HKUSTDial/flash-sparse-attention#199")
def dbias_carries_the_scale():
    """The bias's gradient is taken from dS after it was multiplied by 1 / sqrt(d). The bias's gradient, always;
    output, dq, dk and dv are right."""
    class Biased(_BiasedBase):
        @staticmethod
        def backward(ctx, do):
            dq, dk, dv, ds = _BiasedBase.grads(ctx, do)
            return dq, dk, dv, (ds * ctx.saved_tensors[0].shape[-1] ** -0.5).sum_to_size(ctx.shape)

    def fn(q, k, v, bias=None):
        if bias is None:
            bias = torch.zeros((), dtype=q.dtype, device=q.device)
        return Biased.apply(q, k, v, bias)
    return fn


@case(options={"bias": "bias"}, source="jax-ml/jax#27184")
def bias_gets_no_gradient():
    """The bias is used in the forward but cut off from the gradient. The bias's gradient is missing (zero), with
    a bias that needs one; all else is right."""
    def dpa(q, k, v, bias=None):
        logits = torch.einsum("btnh,bsnh->bnts", q, k) / q.shape[-1] ** 0.5
        if bias is not None:
            logits = logits + bias.detach() + 0 * bias
        return torch.einsum("bnts,bsnh->btnh", logits.softmax(-1), v)
    return dpa


# ---------------------------------------------------------------------------------------------------------------
# dropout


@case(options={"dropout": "dropout_p", "seed": "seed"}, source="zhuzilin/ring-flash-attention#36")
def dropout_drawn_anew_in_backward():
    """The forward draws its dropout mask from the seed; the backward draws another one instead of the same.
    dq, dk and dv, with dropout."""
    def draw(p, like, seed):
        g = torch.Generator().manual_seed(seed)
        return torch.rand(like.shape, generator=g, dtype=torch.float32) >= p

    class Drop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, p, seed):
            w = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
            ctx.save_for_backward(q, k, v, w)
            ctx.p, ctx.seed = p, seed
            return (w * draw(p, w, seed) / (1 - p)) @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, w = ctx.saved_tensors
            z = (draw(ctx.p, w, ctx.seed + 1) / (1 - ctx.p)).to(w.dtype)
            dw = (do @ v.mT) * z
            ds = w * (dw - (w * dw).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            return ds @ k, ds.mT @ q, (w * z).mT @ do, None, None

    def fn(q, k, v, dropout_p=0.0, seed=0):
        return Drop.apply(q, k, v, dropout_p, seed)
    return fn


def _dropped(q, k, v, dropout_p, keep):
    p = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    z = torch.ones_like(p) if keep is None else keep.to(p.dtype) / (1 - dropout_p)
    return p, z


@case(options={"dropout": "dropout_p", "dropout_mask": "keep"}, source="aws-neuron/nki-samples#81")
def dropout_left_out_of_dp():
    """The keep mask of the dropout (given by the caller, True keeps) is applied in the forward and in dv, but not
    to dP. dq and dk, with dropout."""
    def fwd(q, k, v, dropout_p=0.0, keep=None):
        p, z = _dropped(q, k, v, dropout_p, keep)
        return (p * z) @ v

    def bwd(do, q, k, v, dropout_p=0.0, keep=None):
        p, z = _dropped(q, k, v, dropout_p, keep)
        delta = (do * ((p * z) @ v)).sum(-1, keepdim=True)
        ds = p * (do @ v.mT - delta) * q.shape[-1] ** -0.5
        return ds @ k, ds.mT @ q, (p * z).mT @ do
    return fwd, bwd


@case(options={"dropout": "dropout_p", "dropout_mask": "keep"}, source="aws-neuron/nki-samples#81")
def ds_from_dropped_probabilities():
    """dS is formed with P after the dropout instead of before, dS = P Z (Z dP - D). dq and dk, with dropout."""
    def fwd(q, k, v, dropout_p=0.0, keep=None):
        p, z = _dropped(q, k, v, dropout_p, keep)
        return (p * z) @ v

    def bwd(do, q, k, v, dropout_p=0.0, keep=None):
        p, z = _dropped(q, k, v, dropout_p, keep)
        y = p * z
        dy = (do @ v.mT) * z
        ds = y * (dy - (do * (y @ v)).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return ds @ k, ds.mT @ q, y.mT @ do
    return fwd, bwd


@case(options={"dropout": "p_drop", "dropout_mask": "keep_mask"}, source="Dao-AILab/flash-attention#93",
      formats=NP)
def dv_without_dropout_factor():
    """NumPy, (..., n, d): 1 / (1 - p) is applied once to the output at the end, and forgotten in dv. dv, with
    dropout."""
    def t(x):
        return np.swapaxes(x, -1, -2)

    def fwd(q, k, v, p_drop=0.0, keep_mask=None):
        p = _softmax(q @ t(k) / np.asarray(math.sqrt(q.shape[-1]), q.dtype))
        if keep_mask is None:
            return p @ v
        return (p * keep_mask) @ v / np.asarray(1 - p_drop, q.dtype)

    def bwd(do, q, k, v, p_drop=0.0, keep_mask=None):
        c = np.asarray(math.sqrt(q.shape[-1]), q.dtype)
        p = _softmax(q @ t(k) / c)
        z = np.ones_like(p) if keep_mask is None else keep_mask.astype(p.dtype)
        r = np.asarray(1 if keep_mask is None else 1 / (1 - p_drop), q.dtype)
        dp = do @ t(v) * z * r
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / c
        return ds @ k, t(ds) @ q, t(p * z) @ do
    return fwd, bwd


# ---------------------------------------------------------------------------------------------------------------
# layers


@case("layer", source="jsbaan/transformer-from-scratch#6")
def layer_heads_merged_without_permute():
    """Self-attention layer: the heads' outputs (batch, heads, n, d) are reshaped to (batch, n, heads * d) without
    the permute before it, which mixes positions. Forward and gradients, always (heads > 1)."""
    class MultiHeadAttention(nn.Module):
        def __init__(self, hidden_dim=32, num_heads=4):
            super().__init__()
            self.num_heads, self.qkv_dim = num_heads, hidden_dim // num_heads
            self.qkv_proj = nn.Linear(hidden_dim, 3 * hidden_dim, bias=False)
            self.o_proj = nn.Linear(hidden_dim, hidden_dim, bias=False)

        def forward(self, x):
            b, n, _ = x.shape
            q, k, v = self.qkv_proj(x).view(b, n, 3, self.num_heads, self.qkv_dim).permute(2, 0, 3, 1, 4)
            att = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(self.qkv_dim), -1)
            values = (att @ v).reshape(b, n, self.num_heads * self.qkv_dim)
            return self.o_proj(values)
    torch.manual_seed(0)
    return MultiHeadAttention()


@case("layer", source="lucidrains/vit-pytorch#65")
def layer_scaled_by_model_width():
    """Self-attention layer: the scores are divided by sqrt(dim) of the model instead of that of a head. Forward
    and gradients, always (heads > 1)."""
    class Attention(nn.Module):
        def __init__(self, dim=48, heads=6):
            super().__init__()
            self.heads = heads
            self.scale = dim ** -0.5
            self.to_q = nn.Linear(dim, dim, bias=False)
            self.to_k = nn.Linear(dim, dim, bias=False)
            self.to_v = nn.Linear(dim, dim, bias=False)
            self.to_out = nn.Linear(dim, dim)

        def forward(self, x):
            q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                       for f in (self.to_q, self.to_k, self.to_v))
            attn = (torch.einsum("bhid,bhjd->bhij", q, k) * self.scale).softmax(dim=-1)
            return self.to_out((attn @ v).transpose(1, 2).flatten(2))
    torch.manual_seed(1)
    return Attention()


@case("layer", options={"mask": "mask"}, source="reczoo/FuxiCTR#30")
def layer_heads_split_by_view():
    """Self-attention layer: the projections are viewed as (batch * heads, n, d) without a transpose, so that a
    "head" is a slice of positions. Forward and gradients, always (heads > 1)."""
    class MHA(nn.Module):
        def __init__(self, input_dim=32, num_heads=2):
            super().__init__()
            self.h, self.d = num_heads, input_dim // num_heads
            self.W_q = nn.Linear(input_dim, input_dim, bias=False)
            self.W_k = nn.Linear(input_dim, input_dim, bias=False)
            self.W_v = nn.Linear(input_dim, input_dim, bias=False)
            self.W_o = nn.Linear(input_dim, input_dim, bias=False)

        def forward(self, query, key, value, mask=None):
            b = query.size(0)
            q = self.W_q(query).view(b * self.h, -1, self.d)
            k = self.W_k(key).view(b * self.h, -1, self.d)
            v = self.W_v(value).view(b * self.h, -1, self.d)
            s = torch.bmm(q, k.transpose(1, 2)) / self.d ** 0.5
            if mask is not None:
                s = s.view(b, self.h, *s.shape[1:]).masked_fill(~mask, -1e9).flatten(0, 1)
            o = torch.bmm(s.softmax(-1), v)
            return self.W_o(o.view(b, -1, self.h * self.d))
    torch.manual_seed(2)
    return MHA()


@case("layer", source="labmlai/annotated_deep_learning_paper_implementations#146")
def layer_softmax_over_queries():
    """Self-attention layer with scores (batch, i, j, heads): softmax(dim=1) normalises over the queries i instead
    of the keys j. Forward and gradients, always."""
    class AttentionBlock(nn.Module):
        def __init__(self, n_channels=24, n_heads=3, d_k=8):
            super().__init__()
            self.projection = nn.Linear(n_channels, n_heads * d_k * 3)
            self.output = nn.Linear(n_heads * d_k, n_channels)
            self.n_heads, self.d_k, self.scale = n_heads, d_k, d_k ** -0.5

        def forward(self, x):
            qkv = self.projection(x).view(x.shape[0], -1, self.n_heads, 3 * self.d_k)
            q, k, v = torch.chunk(qkv, 3, dim=-1)
            attn = torch.einsum("bihd,bjhd->bijh", q, k) * self.scale
            attn = attn.softmax(dim=1)
            res = torch.einsum("bijh,bjhd->bihd", attn, v)
            return self.output(res.reshape(x.shape[0], -1, self.n_heads * self.d_k))
    torch.manual_seed(3)
    return AttentionBlock()


@case("layer", source="gazelle93/Transformer-Various-Positional-Encoding#1")
def layer_batch_and_heads_swapped():
    """Self-attention layer: the output (batch * heads, n, d) is viewed as (heads, batch, n, d) when the heads are
    merged again. Forward and gradients, for batch > 1 (and heads > 1)."""
    class SelfAttention(nn.Module):
        def __init__(self, emb_dim=32, num_heads=4):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, emb_dim // num_heads
            self.query, self.key = nn.Linear(emb_dim, emb_dim), nn.Linear(emb_dim, emb_dim)
            self.value, self.out = nn.Linear(emb_dim, emb_dim), nn.Linear(emb_dim, emb_dim)

        def split(self, t):
            b, n, _ = t.shape
            return t.view(b, n, self.num_heads, -1).transpose(1, 2).reshape(b * self.num_heads, n, -1)

        def forward(self, x):
            b, n, e = x.shape
            q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
            w = torch.softmax(torch.bmm(q, k.transpose(1, 2)) * self.head_dim ** -0.5, -1)
            o = torch.bmm(w, v).view(self.num_heads, b, n, self.head_dim).permute(1, 2, 0, 3)
            return self.out(o.reshape(b, n, e))
    torch.manual_seed(4)
    return SelfAttention()


@case("layer", source="facebookresearch/vjepa2#160")
def layer_drops_in_eval_mode():
    """Self-attention layer on torch's scaled_dot_product_attention: dropout_p is passed in eval mode too, so that
    an evaluated output is random (p = 0.2). Forward and gradients, in eval mode."""
    class Attention(nn.Module):
        def __init__(self, dim=32, num_heads=4, attn_drop=0.2):
            super().__init__()
            self.num_heads, self.attn_drop = num_heads, attn_drop
            self.qkv = nn.Linear(dim, dim * 3, bias=True)
            self.proj = nn.Linear(dim, dim)

        def forward(self, x):
            B, N, C = x.shape
            qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
            x = F.scaled_dot_product_attention(*qkv.unbind(0), dropout_p=self.attn_drop)
            return self.proj(x.transpose(1, 2).reshape(B, N, C))
    torch.manual_seed(5)
    return Attention().eval()
