"""Candidates with mistakes, written without having read the checker: one mistake each, the pair_... ones two.

Where a source is named, the mistake is after that public thread; the code is written anew. "rounding" in the
docstring says that the mistake is one of precision, not of the formula.
"""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from cases import collection

CASES, case = collection()

NUMPY = ("float64", "float32")


def _softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def _repeat(x, times):
    b, h, n, d = x.shape
    return x[:, :, None].expand(b, h, times, n, d).reshape(b, h * times, n, d)


# ----------------------------------------------------------------------------------------------------
# After public threads
# ----------------------------------------------------------------------------------------------------

@case(source="huggingface/picotron#37", formats=NUMPY)
def ring_delta_from_chunk_output():
    """Backward over key chunks: the row sum delta is taken with each chunk's own (locally normalised)
    output instead of the merged one, so dq and dk are wrong as soon as there is more than one chunk of 4
    keys."""
    step = 4

    def fn(q, k, v):
        s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        return _softmax(s) @ v

    def backward(do, q, k, v):
        sc = 1 / math.sqrt(q.shape[-1])
        s = q @ k.swapaxes(-1, -2) * sc
        top = s.max(-1, keepdims=True)
        lse = top + np.log(np.exp(s - top).sum(-1, keepdims=True))
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for a in range(0, k.shape[-2], step):
            kk, vv = k[..., a:a + step, :], v[..., a:a + step, :]
            part = s[..., a:a + step]
            p = np.exp(part - lse)
            o_chunk = _softmax(part) @ vv
            delta = (do * o_chunk).sum(-1, keepdims=True)
            ds = p * (do @ vv.swapaxes(-1, -2) - delta)
            dq += ds @ kk * sc
            dk[..., a:a + step, :] = ds.swapaxes(-1, -2) @ q * sc
            dv[..., a:a + step, :] = p.swapaxes(-1, -2) @ do
        return dq, dk, dv
    return fn, backward


@case(source="huggingface/diffusers#14265")
def ring_backward_stale_first_chunk():
    """Ring attention, two key chunks: the backward of the second chunk uses the keys of the first one
    (saved at step 0), for the recomputed scores and for dq; dq, dk and dv are wrong. An even number of
    keys only."""
    class Ring(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            scale = q.shape[-1] ** -0.5
            outs, lses = [], []
            for kc, vc in zip(k.chunk(2, -2), v.chunk(2, -2)):
                s = q @ kc.mT * scale
                lse = torch.logsumexp(s, -1, keepdim=True)
                outs.append(torch.exp(s - lse) @ vc)
                lses.append(lse)
            lse = torch.logaddexp(*lses)
            out = sum(o * torch.exp(li - lse) for o, li in zip(outs, lses))
            ctx.save_for_backward(q, k, v, out, lse)
            return out

        @staticmethod
        def backward(ctx, g):
            q, k, v, out, lse = ctx.saved_tensors
            scale = q.shape[-1] ** -0.5
            delta = (g * out).sum(-1, keepdim=True)
            saved_k = k.chunk(2, -2)[0]
            dq, dks, dvs = torch.zeros_like(q), [], []
            for vc in v.chunk(2, -2):
                p = torch.exp(q @ saved_k.mT * scale - lse)
                ds = p * (g @ vc.mT - delta) * scale
                dq = dq + ds @ saved_k
                dks.append(ds.mT @ q)
                dvs.append(p.mT @ g)
            return dq, torch.cat(dks, -2), torch.cat(dvs, -2)
    return Ring.apply


@case(source="Dao-AILab/flash-attention#373", formats=NUMPY)
def paper_typo_dk():
    """dk = dS Q where dS^T Q is meant (transpose forgotten); as many queries as keys only."""
    def fn(Q, K, V):
        assert Q.shape == K.shape
        return _softmax(np.einsum("...id,...jd->...ij", Q, K) * Q.shape[-1] ** -0.5) @ V

    def backward(dO, Q, K, V):
        t = Q.shape[-1] ** -0.5
        P = _softmax(np.einsum("...id,...jd->...ij", Q, K) * t)
        dV = np.einsum("...ij,...id->...jd", P, dO)
        dP = np.einsum("...id,...jd->...ij", dO, V)
        dS = P * (dP - np.einsum("...ij,...ij->...i", dP, P)[..., None])
        return t * dS @ K, t * dS @ Q, dV
    return fn, backward


@case(options={"dropout": "p", "dropout_mask": "keep"}, source="NVIDIA/apex#816", formats=NUMPY)
def apex_dropout_scale_p():
    """With dropout, the backward multiplies by p where the forward divides by 1 - p (right only at p = 0
    without a mask): dq, dk and dv are wrong when keep is given and p > 0."""
    def fn(q, k, v, p=0.0, keep=None):
        w = _softmax(q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]))
        if keep is not None:
            w = w * keep / (1 - p)
        return w @ v

    def backward(do, q, k, v, p=0.0, keep=None):
        w = _softmax(q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]))
        m = 1.0 if keep is None else (keep * w.dtype.type(p) if p > 0 else keep)
        dv = np.swapaxes(w * m, -1, -2) @ do
        dw = do @ np.swapaxes(v, -1, -2) * m
        ds = w * (dw - np.sum(dw * w, -1, keepdims=True)) / math.sqrt(q.shape[-1])
        return ds @ k, np.swapaxes(ds, -1, -2) @ q, dv
    return fn, backward


@case(options={"dropout": "dropout_p", "dropout_mask": "dropout_mask"},
      source="HKUSTDial/flash-sparse-attention#109")
def dropped_scores_get_no_gradient():
    """With dropout, the score gradient of a dropped position is set to 0 instead of -P * delta; dq and
    dk are wrong when something is dropped."""
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, keep, rp):
            scale = 1 / math.sqrt(q.size(-1))
            p = torch.softmax(q @ k.transpose(-1, -2) * scale, -1)
            z = keep.to(p.dtype) * rp
            o = (p * z) @ v
            ctx.save_for_backward(q, k, v, p, z, o)
            ctx.scale = scale
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, p, z, o = ctx.saved_tensors
            dv = (p * z).transpose(-1, -2) @ do
            dp = (do @ v.transpose(-1, -2)) * z
            delta = (do * o).sum(-1, keepdim=True)
            ds = torch.where(z > 0, p * (dp - delta), torch.zeros_like(p)) * ctx.scale
            return ds @ k, ds.transpose(-1, -2) @ q, dv, None, None

    def attention(q, k, v, dropout_p=0.0, dropout_mask=None):
        if dropout_mask is None:
            dropout_mask, dropout_p = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool), 0.0
        return Fn.apply(q, k, v, dropout_mask, 1.0 / (1.0 - dropout_p))
    return attention


@case(source="facebookresearch/detr#247")
def detr_softmax_over_heads_and_keys():
    """Forward: the softmax goes over heads and keys together (flatten(2) for flatten(3)), so that each
    query's weights sum to one over all heads. Layout (batch, seq, heads, dim); wrong with more than one
    head."""
    def fn(q, k, v):
        w = torch.einsum("bqhc,bkhc->bqhk", q * float(q.shape[-1]) ** -0.5, k)
        w = F.softmax(w.flatten(2), dim=-1).view(w.size())
        return torch.einsum("bqhk,bkhc->bqhc", w, v)
    return fn


@case(source="labmlai/annotated_deep_learning_paper_implementations#146")
def unet_softmax_over_queries():
    """Forward: softmax over the query axis (dim=1 of [b, i, j, h]) instead of the key axis."""
    def fn(q, k, v):
        scale = q.size(-1) ** -0.5
        attn = torch.einsum("bihd,bjhd->bijh", q, k) * scale
        attn = attn.softmax(dim=1)
        return torch.einsum("bijh,bjhd->bihd", attn, v)
    return fn


@case(options={"mask": "mask"}, source="Shujun-He/RibonanzaNet#5")
def mask_value_minus_tiny():
    """Forward: masked scores are set to -1e-9 (for -1e9), that is to 0, so masked keys still get
    weight."""
    def fn(q, k, v, mask=None):
        attn = torch.matmul(q / q.size(-1) ** 0.5, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask == 0, -1e-9)
        return torch.matmul(F.softmax(attn, dim=-1), v)
    return fn


@case(options={"mask": "attn_mask"}, source="huggingface/pytorch-image-models#2236")
def mask_after_softmax():
    """Forward: the mask is applied to the weights after the softmax, and these are not normalised again;
    wrong when a mask is given."""
    def fn(q, k, v, attn_mask=None):
        q = q * q.shape[-1] ** -0.5
        attn = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        if attn_mask is not None:
            attn = attn.masked_fill(~attn_mask, 0.0)
        return attn @ v
    return fn


@case(options={"mask": "mask"}, source="InseeFrLab/torchTextClassifiers#92", formats=NUMPY)
def mask_inverted_in_backward():
    """The backward recomputes the weights with the mask's sense turned round (True hides there, True
    keeps in the forward); all three gradients are wrong when a mask is given."""
    def weights(q, k, hide):
        s = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        return _softmax(s if hide is None else np.where(hide, -1e30, s))

    def fn(q, k, v, mask=None):
        return weights(q, k, None if mask is None else ~mask) @ v

    def backward(do, q, k, v, mask=None):
        p = weights(q, k, mask)
        dp = do @ v.swapaxes(-1, -2)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * q.shape[-1] ** -0.5
        return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do
    return fn, backward


@case(options={"mask": "attention_mask"}, source="huggingface/transformers#41443")
def eager_adds_bool_mask():
    """Forward: a boolean mask is added to the scores as 0 and 1 instead of hiding keys."""
    def eager(query, key, value, attention_mask=None):
        weights = torch.matmul(query, key.transpose(2, 3)) * (query.shape[-1] ** -0.5)
        if attention_mask is not None:
            weights = weights + attention_mask[..., : key.shape[-2]]
        weights = nn.functional.softmax(weights, dim=-1)
        return torch.matmul(weights, value)
    return eager


@case(options={"mask": "attention_mask", "causal": "use_causal_mask"}, source="keras-team/keras#23040")
def causal_dropped_when_mask_given():
    """Forward: with an attention mask the causal mask is left out; wrong only with both together."""
    def fn(query, key, value, attention_mask=None, use_causal_mask=False):
        if use_causal_mask and attention_mask is None:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(query.shape[-1])
        if attention_mask is not None:
            scores = torch.where(attention_mask, scores, torch.tensor(-torch.inf, dtype=scores.dtype))
        return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(scores, -1), value)
    return fn


@case(options={"mask": "att_mask", "causal": "causal"}, source="facebookresearch/xformers#103")
def causal_skipped_without_mask():
    """Forward: the causal mask is joined to the given mask, and forgotten when no mask is given; wrong
    with causal and without a mask."""
    def fn(q, k, v, att_mask=None, causal=False):
        n, m = q.shape[-2], k.shape[-2]
        if att_mask is not None:
            keep = att_mask
            if causal:
                keep = keep & torch.ones(n, m, dtype=torch.bool).tril()
        else:
            keep = torch.ones(n, m, dtype=torch.bool)
        att = (q @ k.mT / math.sqrt(k.size(-1))).masked_fill(keep.logical_not(), float("-inf"))
        return att.softmax(-1) @ v
    return fn


@case(options={"causal": "is_causal"}, source="pytorch/executorch#22426", formats=NUMPY)
def causal_corner_differs_in_backward():
    """The forward aligns the causal triangle top left, the backward bottom right; all gradients are
    wrong with causal and fewer queries than keys (n < m), right when n = m."""
    def weights(q, k, off):
        s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        if off is not None:
            s = np.where(np.tri(s.shape[-2], s.shape[-1], off, dtype=bool), s, -np.inf)
        return _softmax(s)

    def fn(q, k, v, is_causal=False):
        return weights(q, k, 0 if is_causal else None) @ v

    def backward(g, q, k, v, is_causal=False):
        p = weights(q, k, k.shape[-2] - q.shape[-2] if is_causal else None)
        gp = g @ v.swapaxes(-1, -2)
        gs = p * (gp - (gp * p).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
        return gs @ k, gs.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g
    return fn, backward


@case(options={"causal": "causal"}, source="Dao-AILab/flash-attention#20")
def causal_offset_sign():
    """Forward: the causal diagonal is shifted by n - m instead of m - n, so with fewer queries than keys
    the first rows see no key before the shift (and are zero); wrong with causal when n != m."""
    def fn(q, k, v, causal=False):
        s = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(q.shape[-1])
        if causal:
            n, m = s.shape[-2:]
            s = s.masked_fill(~torch.ones(n, m, dtype=torch.bool).tril(n - m), -torch.inf)
        p = torch.nan_to_num(torch.softmax(s, -1), nan=0.0)
        return torch.einsum("bhnm,bmhd->bnhd", p, v)
    return fn


@case(options={"mask": "mask"}, source="lsdefine/attention-is-all-you-need-keras#36")
def mask_repeated_in_wrong_order():
    """Forward: heads are folded in front of the batch (head major) but the (batch, n, m) mask is
    repeated batch major, so masks land on the wrong samples; wrong when the mask differs between samples
    and heads > 1."""
    def fold(x):
        b, n, h, d = x.shape
        return x.permute(2, 0, 1, 3).reshape(h * b, n, d)

    def fn(q, k, v, mask=None):
        b, n, h, d = q.shape
        s = torch.bmm(fold(q), fold(k).transpose(1, 2)) / d ** 0.5
        if mask is not None:
            if mask.dim() == 4:
                mask = mask[:, 0]
            mask = mask.expand(b, n, k.shape[1])
            s = s.masked_fill(~mask.repeat_interleave(h, 0), -1e9)
        o = torch.bmm(torch.softmax(s, -1), fold(v))
        return o.view(h, b, n, -1).permute(1, 2, 0, 3)
    return fn


@case(source="ekzhang/jax-js#180")
def gqa_tiled():
    """Forward, grouped queries: key and value heads are tiled (0 1 0 1) instead of repeated (0 0 1 1);
    wrong with 1 < kv heads < heads."""
    def fn(q, k, v):
        g = q.shape[1] // k.shape[1]
        k, v = k.repeat(1, g, 1, 1), v.repeat(1, g, 1, 1)
        return F.scaled_dot_product_attention(q, k, v)
    return fn


@case(source="marin-community/levanter#449")
def gqa_dv_mean_over_group():
    """Grouped queries: dv is averaged over the query heads of a group instead of summed (dk is summed);
    wrong when there are fewer kv heads than heads."""
    class Attn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            b, h, n, d = q.shape
            qg = q.reshape(b, k.shape[1], -1, n, d)
            p = torch.softmax(torch.einsum("bkgnd,bkmd->bkgnm", qg, k) * d ** -0.5, -1)
            ctx.save_for_backward(qg, k, v, p)
            return torch.einsum("bkgnm,bkmd->bkgnd", p, v).reshape(b, h, n, -1)

        @staticmethod
        def backward(ctx, do):
            qg, k, v, p = ctx.saved_tensors
            b, hk, g, n, d = qg.shape
            do = do.reshape(b, hk, g, n, -1)
            dv = torch.einsum("bkgnm,bkgnd->bkgmd", p, do).mean(2)
            dp = torch.einsum("bkgnd,bkmd->bkgnm", do, v)
            ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * d ** -0.5
            dq = torch.einsum("bkgnm,bkmd->bkgnd", ds, k).reshape(b, hk * g, n, d)
            dk = torch.einsum("bkgnm,bkgnd->bkgmd", ds, qg).sum(2)
            return dq, dk, dv
    return lambda q, k, v: Attn.apply(q, k, v)


@case(source="XunhaoLai/native-sparse-attention-triton#27", formats=NUMPY)
def gqa_head_map_differs_in_dkdv():
    """Grouped queries: dk and dv collect query heads h with h % kv_heads == j while the forward and dq
    map h to h // group; dk and dv are wrong with 1 < kv heads < heads."""
    def fn(q, k, v):
        g = q.shape[1] // k.shape[1]
        kk, vv = np.repeat(k, g, 1), np.repeat(v, g, 1)
        return _softmax(q @ kk.swapaxes(2, 3) * q.shape[-1] ** -0.5) @ vv

    def backward(do, q, k, v):
        hk, g, c = k.shape[1], q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
        kk, vv = np.repeat(k, g, 1), np.repeat(v, g, 1)
        p = _softmax(q @ kk.swapaxes(2, 3) * c)
        dp = do @ vv.swapaxes(2, 3)
        ds = c * p * (dp - (p * dp).sum(-1, keepdims=True))
        dkh, dvh = ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ do
        dk = np.stack([dkh[:, j::hk].sum(1) for j in range(hk)], 1)
        dv = np.stack([dvh[:, j::hk].sum(1) for j in range(hk)], 1)
        return ds @ kk, dk, dv
    return fn, backward


@case(source="XunhaoLai/native-sparse-attention-triton#27")
def dq_cuts_value_channels():
    """dq only: dP is computed from the first d value channels, d being the width of q; dq is wrong when
    the values are wider than the queries, right otherwise."""
    class Attn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
            o = p @ v
            ctx.save_for_backward(q, k, v, p, o)
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, p, o = ctx.saved_tensors
            d = q.shape[-1]
            delta = (do * o).sum(-1, keepdim=True)
            ds_k = p * (do @ v.mT - delta) * d ** -0.5
            ds_q = p * (do[..., :d] @ v[..., :d].mT - delta) * d ** -0.5
            return ds_q @ k, ds_k.mT @ q, p.mT @ do
    return Attn.apply


@case(source="flashinfer-ai/flashinfer#4547")
def merge_base2_lse_as_natural():
    """Forward: partial outputs come with log2-sum-exp but are merged with exp; the weights between the
    two halves of the keys are wrong."""
    def part(q, k, v):
        s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 * math.log2(math.e))
        m = s.amax(-1, keepdim=True)
        e = torch.exp2(s - m)
        t = e.sum(-1, keepdim=True)
        return e @ v / t, m + torch.log2(t)

    def fn(q, k, v):
        half = (k.shape[-2] + 1) // 2
        if half == k.shape[-2]:
            return part(q, k, v)[0]
        o1, l1 = part(q, k[..., :half, :], v[..., :half, :])
        o2, l2 = part(q, k[..., half:, :], v[..., half:, :])
        top = torch.maximum(l1, l2)
        w1, w2 = torch.exp(l1 - top), torch.exp(l2 - top)
        return (o1 * w1 + o2 * w2) / (w1 + w2)
    return fn


@case(source="zhuzilin/ring-flash-attention#20")
def ring_lse_simply_added():
    """Forward: the running lse is updated as lse + block_lse (log of a product) while outputs are merged
    with a sigmoid of the difference; wrong from the third block of 5 keys on, right up to two blocks."""
    def fn(q, k, v):
        out = lse = None
        for kb, vb in zip(k.split(5, -2), v.split(5, -2)):
            s = torch.matmul(q, kb.transpose(-2, -1)) * q.shape[-1] ** -0.5
            block_lse = s.logsumexp(-1, keepdim=True)
            block_out = torch.exp(s - block_lse) @ vb
            if out is None:
                out, lse = block_out, block_lse
            else:
                out = out - torch.sigmoid(block_lse - lse) * (out - block_out)
                lse = lse + block_lse
        return out
    return fn


@case(source="meta-pytorch/attention-gym#200")
def backward_lse_in_other_base():
    """The forward saves the lse in log2 units, the backward takes it as natural: P in the backward is
    not normalised and all gradients are wrong."""
    LOG2E = 1.4426950408889634

    class Attn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            s = q @ k.mT * (q.shape[-1] ** -0.5 * LOG2E)
            m = s.amax(-1, keepdim=True)
            e = torch.exp2(s - m)
            o = (e @ v) / e.sum(-1, keepdim=True)
            ctx.save_for_backward(q, k, v, o, m + torch.log2(e.sum(-1, keepdim=True)))
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, lse = ctx.saved_tensors
            sc = q.shape[-1] ** -0.5
            p = torch.exp(q @ k.mT * sc - lse)
            ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) * sc
            return ds @ k, ds.mT @ q, p.mT @ do
    return Attn.apply


@case(source="mlc-ai/mlc-llm#3426")
def fallback_without_scale():
    """Forward: head sizes that are not a multiple of 8 take a fallback path in which the scores are not
    scaled by 1/sqrt(d); right for multiples of 8."""
    def fallback(q, k, v, sm_scale=1.0):
        return ((q @ k.transpose(-1, -2)) * sm_scale).softmax(-1) @ v

    def fn(q, k, v):
        if q.shape[-1] % 8 == 0:
            return F.scaled_dot_product_attention(q, k, v)
        return fallback(q, k, v)
    return fn


@case(source="tenstorrent/tt-metal#56789")
def scale_by_number_of_heads():
    """Forward: scores are scaled by 1/sqrt(heads) instead of 1/sqrt(head size). Layout (batch, heads,
    seq, dim)."""
    def fn(q, k, v):
        b, h, n, d = q.shape
        scores = q.matmul(k.permute(0, 1, 3, 2)).div(math.sqrt(h))
        return scores.softmax(dim=3).matmul(v)
    return fn


@case(options={"mask": "mask", "scale": "softmax_scale"}, source="NVIDIA/Megatron-LM#3698")
def given_scale_ignored_with_mask():
    """Forward: the softmax_scale given is used without a mask, but with a mask the default 1/sqrt(d) is
    always taken; wrong with a scale and a mask together."""
    def fn(q, k, v, mask=None, softmax_scale=None):
        default = 1.0 / math.sqrt(q.size(-1))
        if mask is None:
            return torch.softmax(q @ k.mT * (default if softmax_scale is None else softmax_scale), -1) @ v
        s = (q @ k.mT * default).masked_fill(~mask, torch.finfo(q.dtype).min)
        return torch.softmax(s, -1) @ v
    return fn


@case(source="AI-Hypercomputer/maxtext#1370")
def scale_reversed():
    """Forward: scores are divided by d ** -0.5, that is multiplied by sqrt(d)."""
    def fn(query, key, value):
        softmax_scale = query.shape[-1] ** -0.5
        logits = torch.einsum("btnh,bsnh->bnts", query, key) / softmax_scale
        return torch.einsum("bnts,bsnh->btnh", torch.softmax(logits, dim=-1), value)
    return fn


@case(options={"mask": "attn_mask", "causal": "is_causal"}, source="pytorch/pytorch#117939")
def doc_equivalent_loses_bool_mask():
    """Forward, as the documentation's equivalent once was: a boolean mask is filled into the mask itself
    and never into the bias that is added, so a given mask has no effect."""
    def sdpa(query, key, value, attn_mask=None, is_causal=False):
        L, S = query.size(-2), key.size(-2)
        bias = torch.zeros(L, S, dtype=query.dtype)
        if is_causal:
            seen = torch.ones(L, S, dtype=torch.bool).tril(diagonal=0)
            bias = bias.masked_fill(seen.logical_not(), -torch.inf)
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = attn_mask.masked_fill(attn_mask.logical_not(), False)
            else:
                bias = bias + attn_mask
        w = torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(query.size(-1)) + bias, dim=-1)
        return w @ value
    return sdpa


@case(source="Dao-AILab/flash-attention#355")
def noncontiguous_do_read_as_contiguous():
    """Custom backward that reads the incoming gradient's memory as if it were contiguous: all gradients
    are wrong when do is a transposed (non-contiguous, dense) tensor, right when it is contiguous."""
    class Attn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            p = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)
            ctx.save_for_backward(q, k, v, p)
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            if not do.is_contiguous() and 0 not in do.stride():
                do = do.as_strided(do.shape, torch.empty(do.shape, device="meta").stride())
            dv = p.transpose(-1, -2) @ do
            dp = do @ v.transpose(-1, -2)
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
            return ds @ k, ds.transpose(-1, -2) @ q, dv
    return Attn.apply


@case(kind="other", source="Dao-AILab/flash-attention#1033", formats=NUMPY)
def softcap_backward_without_dtanh():
    """Soft-capped attention (5 tanh(s / 5)): the backward leaves out the factor 1 - tanh^2; dq and dk
    are wrong, the more the larger the scores."""
    cap = 5.0

    def fn(q, k, v):
        s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        return _softmax(cap * np.tanh(s / cap)) @ v

    def backward(do, q, k, v):
        c = 1 / math.sqrt(q.shape[-1])
        p = _softmax(cap * np.tanh(q @ k.swapaxes(-1, -2) * c / cap))
        dp = do @ v.swapaxes(-1, -2)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True))
        return ds @ k * c, ds.swapaxes(-1, -2) @ q * c, p.swapaxes(-1, -2) @ do
    return fn, backward


@case(source="pocketpy/cTensor#31", formats=NUMPY)
def softmax_jacobian_diagonal():
    """The backward takes the diagonal of the softmax Jacobian only, dS = P (1 - P) dP; dq and dk are
    wrong."""
    def fn(q, k, v):
        return _softmax(q @ np.moveaxis(k, -1, -2) / math.sqrt(k.shape[-1])) @ v

    def backward(grad, q, k, v):
        a = _softmax(q @ np.moveaxis(k, -1, -2) / math.sqrt(k.shape[-1]))
        grad_a = grad @ np.moveaxis(v, -1, -2)
        grad_s = grad_a * a * (1.0 - a) / math.sqrt(k.shape[-1])
        return grad_s @ k, np.moveaxis(grad_s, -1, -2) @ q, np.moveaxis(a, -1, -2) @ grad
    return fn, backward


@case(options={"bias": "bias"}, source="hpcaitech/FastFold#35")
def bias_gradient_none():
    """Custom backward that returns None for the bias: the bias gets no gradient; dq, dk and dv are
    right."""
    class Attn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, bias):
            p = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + bias, -1)
            ctx.save_for_backward(q, k, v, p)
            return p @ v

        @staticmethod
        def backward(ctx, g):
            q, k, v, p = ctx.saved_tensors
            gp = g @ v.mT
            gs = p * (gp - (gp * p).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
            return gs @ k, gs.mT @ q, p.mT @ g, None

    def fn(q, k, v, bias=None):
        return Attn.apply(q, k, v, q.new_zeros(()) if bias is None else bias)
    return fn


@case(source="NVIDIA/TransformerEngine#3216", formats=NUMPY)
def delta_of_first_sample():
    """The backward's delta is that of sample 0 for the whole batch; dq and dk are wrong for the other
    samples, so only with a batch of two or more. Layout (batch, heads, seq, dim)."""
    def fn(q, k, v):
        return _softmax(np.einsum("bhnd,bhmd->bhnm", q, k) / q.shape[-1] ** 0.5) @ v

    def backward(do, q, k, v):
        p = _softmax(np.einsum("bhnd,bhmd->bhnm", q, k) / q.shape[-1] ** 0.5)
        dp = np.einsum("bhnd,bhmd->bhnm", do, v)
        row = (dp * p).sum(-1)[:1]
        ds = p * (dp - row[..., None]) / q.shape[-1] ** 0.5
        return ds @ k, np.einsum("bhnm,bhnd->bhmd", ds, q), np.einsum("bhnm,bhnd->bhmd", p, do)
    return fn, backward


@case(options={"causal": "causal"}, source="triton-lang/triton#4174")
def backward_always_causal():
    """The backward applies the causal mask even when causal is False; all gradients are wrong without
    causal, right with it. As many queries as keys."""
    class Attn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, causal):
            sm = q.shape[-1] ** -0.5
            s = (q @ k.transpose(2, 3)) * sm
            if causal:
                s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), float("-inf"))
            lse = s.logsumexp(-1, keepdim=True)
            o = (s - lse).exp() @ v
            ctx.save_for_backward(q, k, v, o, lse)
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, lse = ctx.saved_tensors
            sm = q.shape[-1] ** -0.5
            p = ((q @ k.transpose(2, 3)) * sm - lse).exp().tril()
            ds = p * (do @ v.transpose(2, 3) - (o * do).sum(-1, keepdim=True)) * sm
            return ds @ k, ds.transpose(2, 3) @ q, p.transpose(2, 3) @ do, None

    def fn(q, k, v, causal=False):
        assert q.shape[-2] == k.shape[-2]
        return Attn.apply(q, k, v, causal)
    return fn


@case(options={"mask": "mask"}, source="hyunwoongko/transformer#10")
def mask_value_minus_e():
    """Forward: masked scores are filled with -e (2.718...) instead of minus infinity."""
    def fn(q, k, v, mask=None):
        score = (q @ k.transpose(2, 3)) / math.sqrt(q.size(3))
        if mask is not None:
            score = score.masked_fill(mask == 0, -math.e)
        return torch.softmax(score, dim=-1) @ v
    return fn


@case(source="triton-lang/triton#230")
def exp_of_unshifted():
    """Forward: the maximum is computed but the exponential is taken of the unshifted scores; overflows
    to NaN for scores beyond about 88 in float32 (709 in float64), right below."""
    def fn(q, k, v):
        x = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        z = x - x.max(dim=-1, keepdim=True)[0]  # noqa: F841
        numerator = torch.exp(x)
        return (numerator / numerator.sum(-1, keepdim=True)) @ v
    return fn


@case(source="NVIDIA/TensorRT-LLM#18111")
def padded_keys_not_masked():
    """Forward: keys and values are padded with zeros to a multiple of 4 and the padding is not masked in
    the softmax; wrong when the number of keys is no multiple of 4."""
    def fn(q, k, v):
        pad = -k.shape[-2] % 4
        k, v = F.pad(k, (0, 0, 0, pad)), F.pad(v, (0, 0, 0, pad))
        return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1) @ v
    return fn


@case(kind="other", source="NVIDIA-NeMo/Megatron-Bridge#2656", formats=NUMPY)
def window_one_wider_in_backward():
    """Sliding causal window of 3 keys in the forward; the backward lets 4 keys in (inclusive bound); all
    gradients are wrong from four keys on. As many queries as keys."""
    def probs(q, k, w):
        n = q.shape[-2]
        i, j = np.arange(n)[:, None], np.arange(n)[None]
        s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        return _softmax(np.where((j <= i) & (i - j <= w), s, -np.inf))

    def fn(q, k, v):
        return probs(q, k, 2) @ v

    def backward(do, q, k, v):
        p = probs(q, k, 3)
        dp = do @ v.swapaxes(-1, -2)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do
    return fn, backward


# Layers ---------------------------------------------------------------------------------------------

@case(kind="layer", source="jsbaan/transformer-from-scratch#6")
def layer_heads_merged_without_permute():
    """Layer forward: after attention (batch, heads, seq, dim) is reshaped to (batch, seq, embed) without
    the permute, which mixes positions; wrong with more than one head."""
    class MHA(nn.Module):
        def __init__(self, embed=12, heads=3):
            super().__init__()
            self.heads = heads
            self.qkv = nn.Linear(embed, 3 * embed)
            self.out = nn.Linear(embed, embed)

        def forward(self, x):
            b, n, e = x.shape
            q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            values = F.scaled_dot_product_attention(q, k, v)
            return self.out(values.reshape(b, n, e))
    torch.manual_seed(0)
    return MHA()


@case(kind="layer", source="reczoo/FuxiCTR#30")
def layer_heads_split_by_view():
    """Layer forward: heads are split by view(batch * heads, -1, dim) without a transpose (and joined the
    same way), so a head attends within a slice of the sequence; wrong with more than one head."""
    class MHA(nn.Module):
        def __init__(self, dim=16, heads=2):
            super().__init__()
            self.h, self.d = heads, dim // heads
            self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(dim, dim, bias=False) for _ in range(4))

        def forward(self, x):
            b = x.size(0)
            q, k, v = (w(x).view(b * self.h, -1, self.d) for w in (self.W_q, self.W_k, self.W_v))
            a = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / self.d ** 0.5, -1)
            return self.W_o(torch.bmm(a, v).view(b, -1, self.h * self.d))
    torch.manual_seed(1)
    return MHA()


@case(kind="layer", source="Graylab/DL4Proteins-notebooks#12")
def layer_scaled_by_embedding():
    """Layer forward: scores are scaled by the embedding width ** -0.5 instead of the head's; 4 heads,
    causal."""
    class Head(nn.Module):
        def __init__(self, c, size):
            super().__init__()
            self.key, self.query, self.value = (nn.Linear(c, size, bias=False) for _ in range(3))

        def forward(self, x):
            B, T, C = x.shape
            wei = self.query(x) @ self.key(x).transpose(-2, -1) * C ** -0.5
            wei = wei.masked_fill(torch.tril(torch.ones(T, T)) == 0, float("-inf")).softmax(-1)
            return wei @ self.value(x)

    class Multi(nn.Module):
        def __init__(self, c=16, heads=4):
            super().__init__()
            self.heads = nn.ModuleList([Head(c, c // heads) for _ in range(heads)])
            self.proj = nn.Linear(c, c)

        def forward(self, x):
            return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))
    torch.manual_seed(2)
    return Multi()


@case(kind="layer", source="pytorch/pytorch#124464")
def layer_dropout_in_eval():
    """Layer forward: attention dropout of 0.3 stays active in eval mode (dropout_p is passed whatever
    the mode)."""
    class Block(nn.Module):
        def __init__(self, dim=16, heads=4, drop=0.3):
            super().__init__()
            self.heads, self.drop = heads, drop
            self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

        def forward(self, x):
            B, N, C = x.shape
            qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
            q, k, v = qkv.unbind(0)
            x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop)
            return self.proj(x.transpose(1, 2).reshape(B, N, C))
    torch.manual_seed(3)
    return Block().eval()


@case(kind="layer", source="ISEEKYAN/Megatron-LM#205")
def layer_sink_gradient_lost():
    """Layer with a learnable sink logit per head in the softmax denominator: the custom backward returns
    None for the sink, which gets no gradient; everything else is right."""
    class SinkAttn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, sink):
            s = q @ k.mT * q.shape[-1] ** -0.5
            full = torch.cat([s, sink.view(1, -1, 1, 1).expand(*s.shape[:-1], 1)], -1)
            p = torch.softmax(full, -1)[..., :-1]
            ctx.save_for_backward(q, k, v, p)
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            return ds @ k, ds.mT @ q, p.mT @ do, None

    class Layer(nn.Module):
        def __init__(self, dim=8, heads=2):
            super().__init__()
            self.h = heads
            self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim) for _ in range(4))
            self.sinks = nn.Parameter(torch.linspace(-1, 1, heads))

        def forward(self, x):
            b, n, e = x.shape
            q, k, v = (p(x).view(b, n, self.h, -1).transpose(1, 2)
                       for p in (self.q_proj, self.k_proj, self.v_proj))
            return self.o_proj(SinkAttn.apply(q, k, v, self.sinks).transpose(1, 2).reshape(b, n, e))
    torch.manual_seed(4)
    return Layer()


@case(kind="layer", source="Dao-AILab/flash-attention#569")
def layer_rotary_backward_not_conjugate():
    """Layer with rotary positions by a custom Function whose backward rotates forwards again instead of
    by the opposite angle: the gradients of q and k projections (and of x) are wrong; the forward is
    right."""
    class Rotate(torch.autograd.Function):
        @staticmethod
        def turn(x, cos, sin):
            a, b = x.chunk(2, -1)
            return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

        @staticmethod
        def forward(ctx, x, cos, sin):
            ctx.save_for_backward(cos, sin)
            return Rotate.turn(x, cos, sin)

        @staticmethod
        def backward(ctx, g):
            cos, sin = ctx.saved_tensors
            return Rotate.turn(g, cos, sin), None, None

    class Layer(nn.Module):
        def __init__(self, dim=16, heads=2):
            super().__init__()
            self.h = heads
            self.wqkv, self.wo = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

        def forward(self, x):
            b, n, e = x.shape
            q, k, v = self.wqkv(x).view(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4)
            half = q.shape[-1] // 2
            ang = torch.arange(n, dtype=x.dtype)[:, None] * 100 ** (-torch.arange(half, dtype=x.dtype) / half)
            q, k = Rotate.apply(q, ang.cos(), ang.sin()), Rotate.apply(k, ang.cos(), ang.sin())
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.wo(o.transpose(1, 2).reshape(b, n, e))
    torch.manual_seed(5)
    return Layer()


# ----------------------------------------------------------------------------------------------------
# Hand-derived backwards
# ----------------------------------------------------------------------------------------------------

@case(formats=NUMPY)
def delta_term_missing():
    """Backward: dS = P * dP, the row sum that the softmax takes off is missing; dq and dk are wrong."""
    def forward(q, k, v):
        scores = q @ np.swapaxes(k, -2, -1) / math.sqrt(q.shape[-1])
        return _softmax(scores) @ v

    def backward(dout, q, k, v):
        probs = _softmax(q @ np.swapaxes(k, -2, -1) / math.sqrt(q.shape[-1]))
        dprobs = dout @ np.swapaxes(v, -2, -1)
        dscores = probs * dprobs / math.sqrt(q.shape[-1])
        return dscores @ k, np.swapaxes(dscores, -2, -1) @ q, np.swapaxes(probs, -2, -1) @ dout
    return forward, backward


@case(options={"scale": "sm_scale"})
def dq_without_scale():
    """Custom backward: dq lacks the factor sm_scale (dk has it); dq only."""
    class _Attn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, sm_scale):
            p = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * sm_scale, dim=-1)
            o = torch.matmul(p, v)
            ctx.save_for_backward(q, k, v, p, o)
            ctx.sm_scale = sm_scale
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, p, o = ctx.saved_tensors
            dv = torch.matmul(p.transpose(-1, -2), do)
            ds = p * (torch.matmul(do, v.transpose(-1, -2)) - (o * do).sum(-1, keepdim=True))
            dq = torch.matmul(ds, k)
            dk = torch.matmul(ds.transpose(-1, -2), q) * ctx.sm_scale
            return dq, dk, dv, None

    def attention(q, k, v, sm_scale=None):
        return _Attn.apply(q, k, v, q.size(-1) ** -0.5 if sm_scale is None else sm_scale)
    return attention


@case(formats=NUMPY)
def dk_scaled_twice():
    """Backward: dk is built from the already scaled queries and multiplied by the scale once more; dk
    only. Layout (seq, dim) or with leading axes."""
    def fwd(q, k, v):
        qs = q / math.sqrt(q.shape[-1])
        return _softmax(qs @ k.swapaxes(-1, -2)) @ v

    def bwd(do, q, k, v):
        c = 1 / math.sqrt(q.shape[-1])
        qs = q * c
        a = _softmax(qs @ k.swapaxes(-1, -2))
        da = do @ v.swapaxes(-1, -2)
        dz = a * (da - np.sum(a * da, axis=-1, keepdims=True))
        return dz @ k * c, dz.swapaxes(-1, -2) @ qs * c, a.swapaxes(-1, -2) @ do
    return fwd, bwd


@case(formats=NUMPY)
def delta_summed_over_queries():
    """Backward: sum(P dP) is taken over the query axis (-2) instead of the key axis; dq and dk are
    wrong."""
    def fwd(q, k, v):
        a = _softmax(np.einsum("...id,...jd->...ij", q, k) / q.shape[-1] ** .5)
        return np.einsum("...ij,...jd->...id", a, v)

    def bwd(g, q, k, v):
        r = q.shape[-1] ** .5
        a = _softmax(np.einsum("...id,...jd->...ij", q, k) / r)
        ga = np.einsum("...id,...jd->...ij", g, v)
        gs = a * (ga - (a * ga).sum(axis=-2, keepdims=True)) / r
        gq = np.einsum("...ij,...jd->...id", gs, k)
        gk = np.einsum("...ij,...id->...jd", gs, q)
        return gq, gk, np.einsum("...ij,...id->...jd", a, g)
    return fwd, bwd


@case()
def dv_not_transposed():
    """Custom backward: dv = P dO instead of P^T dO; dv only; as many queries as keys, layout (batch,
    seq, dim)."""
    class A(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            p = torch.baddbmm(q.new_zeros(1), q, k.transpose(1, 2), alpha=q.shape[2] ** -0.5).softmax(2)
            ctx.save_for_backward(q, k, v, p)
            return torch.bmm(p, v)

        @staticmethod
        def backward(ctx, go):
            q, k, v, p = ctx.saved_tensors
            gp = torch.bmm(go, v.transpose(1, 2))
            gs = torch._softmax_backward_data(gp, p, 2, p.dtype) * q.shape[2] ** -0.5
            return torch.bmm(gs, k), torch.bmm(gs.transpose(1, 2), q), torch.bmm(p, go)

    def fn(q, k, v):
        assert q.dim() == 3 and q.shape[1] == k.shape[1]
        return A.apply(q, k, v)
    return fn


@case(options={"mask": "mask"}, formats=NUMPY)
def mask_forgotten_in_backward():
    """The backward recomputes P without the mask; all gradients are wrong when a mask is given."""
    def fwd(q, k, v, mask=None):
        s = q @ k.swapaxes(-1, -2) / math.sqrt(k.shape[-1])
        if mask is not None:
            s = np.where(mask, s, -1e9)
        return _softmax(s) @ v

    def bwd(do, q, k, v, mask=None):
        p = _softmax(q @ k.swapaxes(-1, -2) / math.sqrt(k.shape[-1]))
        dp = do @ v.swapaxes(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / math.sqrt(k.shape[-1])
        return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do
    return fwd, bwd


@case(options={"causal": "causal"})
def lse_kept_but_causal_missing_in_backward():
    """Custom backward: P is recomputed from the saved (causal) lse but the causal mask is not applied,
    so future keys count; all gradients are wrong with causal."""
    class Flash(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, causal):
            s = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
            if causal:
                s = s + torch.full(s.shape[-2:], float("-inf"), dtype=s.dtype).triu(1)
            lse = torch.logsumexp(s, -1)
            o = torch.einsum("bhij,bjhd->bihd", torch.exp(s - lse[..., None]), v)
            ctx.save_for_backward(q, k, v, o, lse)
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, lse = ctx.saved_tensors
            s = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
            p = torch.exp(s - lse[..., None])
            d = torch.einsum("bihd,bihd->bhi", do, o)
            ds = p * (torch.einsum("bihd,bjhd->bhij", do, v) - d[..., None]) / math.sqrt(q.shape[-1])
            return (torch.einsum("bhij,bjhd->bihd", ds, k), torch.einsum("bhij,bihd->bjhd", ds, q),
                    torch.einsum("bhij,bihd->bjhd", p, do), None)

    def flash(q, k, v, causal=False):
        return Flash.apply(q, k, v, causal)
    return flash


@case(options={"causal": "causal"})
def causal_off_by_one_in_dkdv():
    """Custom backward: in the loop for dk and dv the diagonal is left out (i > j for i >= j); dk and dv
    are wrong with causal, dq is right. As many queries as keys."""
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, causal):
            n, m, c = q.shape[-2], k.shape[-2], q.shape[-1] ** -0.5
            i, j = torch.arange(n)[:, None], torch.arange(m)
            s = q @ k.mT * c
            p = torch.softmax(torch.where(i >= j, s, s.new_tensor(-1e30)) if causal else s, -1)
            ctx.save_for_backward(q, k, v, p)
            ctx.strict = (i > j) if causal else torch.ones(n, m, dtype=torch.bool)
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            dp = do @ v.mT
            ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            dq = ds @ k
            ds, p = ds * ctx.strict, p * ctx.strict
            return dq, ds.mT @ q, p.mT @ do, None

    def fn(q, k, v, causal=False):
        return Fn.apply(q, k, v, causal)
    return fn


@case()
def gqa_dk_of_last_head_only():
    """Grouped queries, custom backward: dk is assigned in the loop over the heads of a group instead of
    added up, so only the last head counts; dk only, when kv heads < heads."""
    class Gqa(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            g = q.shape[1] // k.shape[1]
            p = torch.softmax(q @ _repeat(k, g).mT / q.shape[-1] ** 0.5, -1)
            ctx.save_for_backward(q, k, v, p)
            return p @ _repeat(v, g)

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            g = q.shape[1] // k.shape[1]
            dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
            for h in range(q.shape[1]):
                j = h // g
                dp = do[:, h] @ v[:, j].mT
                ds = p[:, h] * (dp - (dp * p[:, h]).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
                dq[:, h] = ds @ k[:, j]
                dk[:, j] = ds.mT @ q[:, h]
                dv[:, j] += p[:, h].mT @ do[:, h]
            return dq, dk, dv
    return Gqa.apply


@case(formats=NUMPY)
def dq_of_last_key_block():
    """Blocked backward: dq is assigned per block of 4 keys instead of accumulated, so only the last
    block counts; dq only, with more than 4 keys."""
    def fwd(q, k, v):
        return _softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v

    def bwd(do, q, k, v):
        c = 1 / math.sqrt(q.shape[-1])
        p = _softmax(q @ k.swapaxes(-1, -2) * c)
        delta = np.sum(do * (p @ v), -1, keepdims=True)
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for j in range(0, k.shape[-2], 4):
            blk = np.s_[..., j:j + 4, :]
            pj = p[..., j:j + 4]
            dsj = pj * (do @ v[blk].swapaxes(-1, -2) - delta) * c
            dq = dsj @ k[blk]
            dk[blk] = dsj.swapaxes(-1, -2) @ q
            dv[blk] = pj.swapaxes(-1, -2) @ do
        return dq, dk, dv
    return fwd, bwd


@case()
def ragged_query_block_skipped_for_dkdv():
    """Custom blocked backward: dk and dv loop over n // 4 blocks of queries, the ragged rest is left
    out; dk and dv are wrong when the number of queries is no multiple of 4."""
    class Blocked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            p = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
            ctx.save_for_backward(q, k, v, p)
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            dp = do @ v.transpose(-1, -2)
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            dk, dv = torch.zeros_like(k), torch.zeros_like(v)
            for b in range(q.shape[-2] // 4):
                rows = slice(4 * b, 4 * b + 4)
                dk = dk + ds[..., rows, :].transpose(-1, -2) @ q[..., rows, :]
                dv = dv + p[..., rows, :].transpose(-1, -2) @ do[..., rows, :]
            return ds @ k, dk, dv
    return Blocked.apply


@case(formats=NUMPY)
def delta_from_squared_probabilities():
    """Backward: delta is sum(P * P) instead of sum(P * dP); dq and dk are wrong."""
    def fwd(q, k, v):
        return _softmax(q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]))) @ v

    def bwd(do, q, k, v):
        c = 1 / math.sqrt(q.shape[-1])
        P = _softmax(q @ k.swapaxes(-1, -2) * c)
        dP = do @ v.swapaxes(-1, -2)
        D = np.einsum("...ij,...ij->...i", P, P)
        dS = P * (dP - D[..., None])
        return c * (dS @ k), c * (dS.swapaxes(-1, -2) @ q), P.swapaxes(-1, -2) @ do
    return fwd, bwd


@case(options={"dropout": "p_drop", "dropout_mask": "keep"})
def delta_from_undropped_dp():
    """Custom backward with dropout: the delta sums P * dP before the dropout mask is put on dP; dq and
    dk are wrong when something is dropped."""
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, z):
            p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
            ctx.save_for_backward(q, k, v, z, p)
            return (p * z) @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, z, p = ctx.saved_tensors
            dp = do @ v.mT
            delta = torch.sum(dp * p, dim=-1, keepdim=True)
            ds = p * (dp * z - delta) * q.shape[-1] ** -0.5
            return ds @ k, ds.mT @ q, (p * z).mT @ do, None

    def fn(q, k, v, p_drop=0.0, keep=None):
        if keep is None:
            return Fn.apply(q, k, v, q.new_ones(()))
        return Fn.apply(q, k, v, keep.to(q.dtype) / (1 - p_drop))
    return fn


@case(options={"dropout": "rate", "dropout_mask": "keep"}, formats=NUMPY)
def dv_without_dropout_scale():
    """Backward with dropout: dv uses the dropped weights without the factor 1/(1 - rate); dv only, when
    a keep mask and rate > 0 are given."""
    def fwd(q, k, v, rate=0.0, keep=1.0):
        return (_softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) * keep / (1 - rate)) @ v

    def bwd(do, q, k, v, rate=0.0, keep=1.0):
        p = _softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
        dv = (p * keep).swapaxes(-1, -2) @ do
        dp = (do @ v.swapaxes(-1, -2)) * keep / (1 - rate)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.swapaxes(-1, -2) @ q, dv
    return fwd, bwd


@case(options={"bias": "bias"})
def bias_gradient_of_first_sample():
    """Custom backward: the gradient of a (heads, n, m) bias shared by the batch is that of sample 0
    instead of the sum over the batch; bias gradient only, with batch > 1 and a bias without batch axis
    (or of size 1)."""
    class B(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, bias):
            p = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + bias, -1)
            ctx.save_for_backward(q, k, v, p)
            ctx.bias_shape = bias.shape
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            dp = do @ v.mT
            ds = p * (dp - (dp * p).sum(-1, keepdim=True))
            db = ds
            if len(ctx.bias_shape) < 4 or ctx.bias_shape[0] == 1:
                db = ds[:1]
            full = (1,) * (4 - len(ctx.bias_shape)) + tuple(ctx.bias_shape)
            db = db.sum_to_size(full).reshape(ctx.bias_shape)
            ds = ds / math.sqrt(q.shape[-1])
            return ds @ k, ds.mT @ q, p.mT @ do, db

    def fn(q, k, v, bias=None):
        return B.apply(q, k, v, q.new_zeros(1, 1, 1, 1) if bias is None else bias)
    return fn


@case(options={"bias": "attn_bias"})
def bias_gradient_scaled():
    """Custom backward: the bias gets dS times the score scale, as if it had been added before scaling;
    bias gradient only."""
    class BiasAttention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, attn_bias):
            scale = q.shape[-1] ** -0.5
            w = (torch.einsum("bhnd,bhmd->bhnm", q, k) * scale + attn_bias).softmax(-1)
            ctx.save_for_backward(q, k, v, w)
            ctx.scale, ctx.shape = scale, attn_bias.shape
            return torch.einsum("bhnm,bhmd->bhnd", w, v)

        @staticmethod
        def backward(ctx, g):
            q, k, v, w = ctx.saved_tensors
            gw = torch.einsum("bhnd,bhmd->bhnm", g, v)
            gs = ctx.scale * w * (gw - torch.einsum("bhnm,bhnm->bhn", gw, w).unsqueeze(-1))
            gb = gs
            while gb.dim() > len(ctx.shape):
                gb = gb.sum(0)
            for ax, size in enumerate(ctx.shape):
                if size == 1:
                    gb = gb.sum(ax, keepdim=True)
            return gs @ k, gs.mT @ q, w.mT @ g, gb

    def fn(q, k, v, attn_bias=None):
        return BiasAttention.apply(q, k, v, q.new_zeros(1) if attn_bias is None else attn_bias)
    return fn


@case()
def dp_with_values_of_other_group():
    """Grouped queries, custom backward: dP of head h uses value head h % kv_heads instead of h // group;
    dq and dk are wrong with 1 < kv heads < heads, dv is right."""
    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            idx = torch.arange(q.shape[1]) // (q.shape[1] // k.shape[1])
            p = torch.softmax(q @ k[:, idx].mT * q.shape[-1] ** -0.5, -1)
            ctx.save_for_backward(q, k, v, p, idx)
            return p @ v[:, idx]

        @staticmethod
        def backward(ctx, do):
            q, k, v, p, idx = ctx.saved_tensors
            vi = torch.arange(q.shape[1]) % k.shape[1]
            dp = do @ v[:, vi].mT
            ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            dk = torch.zeros_like(k).index_add(1, idx, ds.mT @ q)
            dv = torch.zeros_like(v).index_add(1, idx, p.mT @ do)
            return ds @ k[:, idx], dk, dv
    return G.apply


@case(formats=NUMPY)
def dk_divided_by_queries():
    """Backward: dk is averaged over the queries (divided by n) instead of summed; dk only."""
    def fwd(q, k, v):
        return _softmax(np.matmul(q, k.swapaxes(-2, -1)) / k.shape[-1] ** 0.5) @ v

    def bwd(do, q, k, v):
        a = _softmax(np.matmul(q, k.swapaxes(-2, -1)) / k.shape[-1] ** 0.5)
        da = np.matmul(do, v.swapaxes(-2, -1))
        ds = (a * da - a * (a * da).sum(-1, keepdims=True)) / k.shape[-1] ** 0.5
        return ds @ k, ds.swapaxes(-2, -1) @ q / q.shape[-2], a.swapaxes(-2, -1) @ do
    return fwd, bwd


@case(options={"scale": "scale"}, formats=NUMPY)
def given_scale_ignored_in_backward():
    """The backward always takes 1/sqrt(d), also for its recomputed scores, when another scale is given;
    all gradients are wrong with a scale other than the default."""
    def fwd(q, k, v, scale=None):
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        return _softmax(q @ k.swapaxes(-1, -2) * scale) @ v

    def bwd(do, q, k, v, scale=None):
        scale = q.shape[-1] ** -0.5
        p = _softmax(q @ k.swapaxes(-1, -2) * scale)
        dp = do @ v.swapaxes(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale
        return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do
    return fwd, bwd


@case()
def lse_detached():
    """Forward written as exp(s - lse) with lse detached: autograd then misses the normaliser's share
    (delta); dq and dk are wrong, output and dv are right."""
    def fn(q, k, v):
        s = torch.einsum("...nd,...md->...nm", q, k) * q.shape[-1] ** -0.5
        with torch.no_grad():
            lse = torch.logsumexp(s, dim=-1, keepdim=True)
        return torch.exp(s - lse) @ v
    return fn


@case(options={"mask": "key_mask"})
def keys_detached_with_mask():
    """With a mask the keys come from k.data: dk is zero when a mask is given; everything else is
    right."""
    def fn(q, k, v, key_mask=None):
        if key_mask is None:
            return F.scaled_dot_product_attention(q, k, v)
        keys = k.data.transpose(-2, -1)
        s = (q @ keys) / math.sqrt(k.size(-1))
        return s.masked_fill(~key_mask, -1e9).softmax(-1) @ v
    return fn


@case()
def score_gradient_clamped():
    """Custom backward: the score gradient is clamped to [-0.05, 0.05]; dq and dk are wrong where it is
    larger, that is for incoming gradients of ordinary size, right for tiny ones."""
    class Clamped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            p = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), -1)
            ctx.save_for_backward(q, k, v, p)
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            dp = do @ v.transpose(-2, -1)
            ds = (p * (dp - (dp * p).sum(-1, keepdim=True))).clamp(-0.05, 0.05) / math.sqrt(q.size(-1))
            return ds @ k, ds.transpose(-2, -1) @ q, p.transpose(-2, -1) @ do
    return Clamped.apply


@case(options={"dropout": "dropout_p", "seed": "seed"}, formats=NUMPY)
def other_dropout_seed_in_backward():
    """The backward draws its dropout mask again with seed + 1 instead of seed; all gradients are wrong
    with dropout."""
    def draw(shape, p, seed):
        return (np.random.default_rng(seed).random(shape) >= p) / (1 - p)

    def fwd(q, k, v, dropout_p=0.0, seed=0):
        p = _softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
        return (p * draw(p.shape, dropout_p, seed)).astype(q.dtype) @ v

    def bwd(do, q, k, v, dropout_p=0.0, seed=0):
        p = _softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
        z = draw(p.shape, dropout_p, seed + 1).astype(q.dtype)
        dp = do @ v.swapaxes(-1, -2) * z
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.swapaxes(-1, -2) @ q, (p * z).swapaxes(-1, -2) @ do
    return fwd, bwd


@case(options={"causal": "causal"})
def delta_kept_above_diagonal():
    """Custom backward: with causal the score gradient is cut to the triangle before the delta is
    subtracted (and not after), which leaves -P_unmasked * delta above the diagonal, P being recomputed
    unmasked; dq and dk are wrong with causal, dv is right. As many queries as keys."""
    class C(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, causal):
            s = q @ k.mT * q.shape[-1] ** -0.5
            if causal:
                s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)
            lse = s.logsumexp(-1, keepdim=True)
            o = (s - lse).exp() @ v
            ctx.save_for_backward(q, k, v, o, lse)
            ctx.causal = causal
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, lse = ctx.saved_tensors
            p = (q @ k.mT * q.shape[-1] ** -0.5 - lse).exp()
            dp = do @ v.mT
            cut = torch.tril if ctx.causal else (lambda x: x)
            ds = (p * (cut(dp) - (do * o).sum(-1, keepdim=True))) * q.shape[-1] ** -0.5
            return ds @ k, ds.mT @ q, cut(p).mT @ do, None
    return lambda q, k, v, causal=False: C.apply(q, k, v, causal)


@case(formats=NUMPY)
def dk_summed_over_batch():
    """Backward: an einsum without the batch letter sums dk over the batch and gives every sample the
    same; dk only, with batch > 1. Layout (batch, heads, seq, dim)."""
    def fwd(q, k, v):
        a = _softmax(np.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1]))
        return np.einsum("bhij,bhjd->bhid", a, v)

    def bwd(do, q, k, v):
        a = _softmax(np.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1]))
        da = np.einsum("bhid,bhjd->bhij", do, v)
        ds = a * (da - (a * da).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
        dk = np.broadcast_to(np.einsum("bhij,bhid->hjd", ds, q), k.shape).copy()
        return np.einsum("bhij,bhjd->bhid", ds, k), dk, np.einsum("bhij,bhid->bhjd", a, do)
    return fwd, bwd


@case(formats=NUMPY)
def backward_in_bfloat16():
    """Custom backward: the weights P are saved in bfloat16 and used so; a mistake of rounding in dq, dk
    and dv (about three digits), seen in float32 and float64 inputs; the output is right."""
    class Saved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
            ctx.save_for_backward(q, k, v, p.to(torch.bfloat16))
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            p = p.to(do.dtype)
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            return ds @ k, ds.mT @ q, p.mT @ do
    return Saved.apply


# Layers with a hand-written backward or graph -------------------------------------------------------

@case(kind="layer")
def layer_output_projection_weight_without_gradient():
    """Layer whose output projection is a custom Function that returns no gradient for its weight:
    out.weight gets none; bias, inputs and the other weights are right."""
    class Proj(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, b):
            ctx.save_for_backward(w)
            return x @ w.t() + b

        @staticmethod
        def backward(ctx, g):
            (w,) = ctx.saved_tensors
            return g @ w, None, g.flatten(0, -2).sum(0)

    class Layer(nn.Module):
        def __init__(self, dim=12, heads=2):
            super().__init__()
            self.heads = heads
            self.to_q, self.to_k, self.to_v, self.out = (nn.Linear(dim, dim) for _ in range(4))

        def forward(self, x):
            b, n, e = x.shape
            q, k, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2)
                       for f in (self.to_q, self.to_k, self.to_v))
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, e)
            return Proj.apply(y, self.out.weight, self.out.bias)
    torch.manual_seed(6)
    return Layer()


@case(kind="layer")
def layer_fused_gradient_in_wrong_order():
    """Layer with one qkv tensor and a custom core: the backward puts its parts together as (dk, dq, dv)
    though the forward splits (q, k, v); the gradients of the qkv projection and of x are wrong, the
    forward is right."""
    class Core(torch.autograd.Function):
        @staticmethod
        def forward(ctx, qkv):
            q, k, v = qkv.unbind(2)
            p = torch.softmax(torch.einsum("bnhd,bmhd->bhnm", q, k) * q.shape[-1] ** -0.5, -1)
            ctx.save_for_backward(qkv, p)
            return torch.einsum("bhnm,bmhd->bnhd", p, v)

        @staticmethod
        def backward(ctx, do):
            qkv, p = ctx.saved_tensors
            q, k, v = qkv.unbind(2)
            dp = torch.einsum("bnhd,bmhd->bhnm", do, v)
            ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            dq, dk = torch.einsum("bhnm,bmhd->bnhd", ds, k), torch.einsum("bhnm,bnhd->bmhd", ds, q)
            return torch.stack([dk, dq, torch.einsum("bhnm,bnhd->bmhd", p, do)], 2)

    class Layer(nn.Module):
        def __init__(self, dim=16, heads=4):
            super().__init__()
            self.heads = heads
            self.Wqkv, self.out_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

        def forward(self, x):
            b, n, e = x.shape
            return self.out_proj(Core.apply(self.Wqkv(x).view(b, n, 3, self.heads, -1)).reshape(b, n, e))
    torch.manual_seed(7)
    return Layer()


@case(kind="layer")
def layer_key_weight_detached():
    """Layer in which the key projection uses its weight detached: k_proj.weight gets no gradient (its
    bias and x do); the forward is right."""
    class SelfAttention(nn.Module):
        def __init__(self, hidden=16, heads=2):
            super().__init__()
            self.heads, self.size = heads, hidden // heads
            self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden, hidden) for _ in range(4))

        def split(self, t):
            return t.unflatten(-1, (self.heads, self.size)).transpose(-2, -3)

        def forward(self, hidden):
            q, v = self.split(self.q_proj(hidden)), self.split(self.v_proj(hidden))
            k = self.split(F.linear(hidden, self.k_proj.weight.detach(), self.k_proj.bias))
            w = torch.softmax(q @ k.mT / math.sqrt(self.size), dim=-1)
            return self.o_proj((w @ v).transpose(-2, -3).flatten(-2))
    torch.manual_seed(8)
    return SelfAttention()


# ----------------------------------------------------------------------------------------------------
# In the forward (gradients by autograd belong to the wrong forward)
# ----------------------------------------------------------------------------------------------------

@case()
def scaled_at_both_places():
    """Forward: the queries are scaled by d ** -0.5 and the scores once more."""
    def fn(q, k, v):
        scale = q.shape[-1] ** -0.5
        q = q * scale
        sim = torch.einsum("b h i d, b h j d -> b h i j", q, k) * scale
        return torch.einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)
    return fn


@case()
def scaled_by_dim_without_root():
    """Forward: scores are divided by d instead of sqrt(d). Layout (batch, seq, dim)."""
    def fn(q, k, v):
        att = torch.bmm(q, k.transpose(1, 2)) / q.size(2)
        return torch.bmm(F.softmax(att, 2), v)
    return fn


@case()
def accumulator_not_rescaled():
    """Forward, online softmax over blocks of 4 keys: the accumulator is not rescaled when the running
    maximum rises (the denominator is); wrong with more than 4 keys."""
    def fn(q, k, v):
        n = q.shape[-2]
        m = q.new_full((*q.shape[:-1], 1), -math.inf)
        l = torch.zeros_like(m)  # noqa: E741
        acc = q.new_zeros(*q.shape[:-2], n, v.shape[-1])
        for kb, vb in zip(k.split(4, -2), v.split(4, -2)):
            s = q @ kb.mT / math.sqrt(q.shape[-1])
            m_new = torch.maximum(m, s.amax(-1, keepdim=True))
            p = torch.exp(s - m_new)
            l = l * torch.exp(m - m_new) + p.sum(-1, keepdim=True)  # noqa: E741
            acc = acc + p @ vb
            m = m_new
        return acc / l
    return fn


@case(options={"causal": "causal"})
def denominator_not_rescaled():
    """Forward, online softmax over blocks of 8 keys: the denominator is not rescaled when the running
    maximum rises (the accumulator is); wrong with more than 8 keys. Layout (batch, seq, heads, dim)."""
    def fn(q, k, v, causal=False):
        q, k, v = (x.permute(0, 2, 1, 3) for x in (q, k, v))
        best, den, num = None, 0.0, 0.0
        rows = torch.arange(q.shape[2])[:, None]
        for start in range(0, k.shape[2], 8):
            s = torch.matmul(q, k[:, :, start:start + 8].mT) * q.shape[-1] ** -0.5
            if causal:
                cols = torch.arange(start, start + s.shape[-1])[None]
                s = s.masked_fill(cols > rows, -1e30)
            top = s.amax(-1, keepdim=True) if best is None else torch.maximum(best, s.amax(-1, keepdim=True))
            fix = 1.0 if best is None else torch.exp(best - top)
            e = torch.exp(s - top)
            den = den + e.sum(-1, keepdim=True)
            num = num * fix + e @ v[:, :, start:start + 8]
            best = top
        return (num / den).permute(0, 2, 1, 3)
    return fn


@case()
def splits_merged_by_maximum():
    """Forward: outputs of two key splits are merged with weights exp(max of the split) instead of
    exp(its lse); wrong with more than one key."""
    def fn(q, k, v):
        outs, tops = [], []
        for kk, vv in zip(torch.tensor_split(k, 2, -2), torch.tensor_split(v, 2, -2)):
            if kk.shape[-2]:
                s = q @ kk.transpose(-1, -2) * q.shape[-1] ** -0.5
                outs.append(torch.softmax(s, -1) @ vv)
                tops.append(s.amax(-1))
        w = torch.softmax(torch.stack(tops, -1), -1)
        return sum(o * w[..., i, None] for i, o in enumerate(outs))
    return fn


@case()
def output_heads_interleaved():
    """Forward: with (batch, seq, heads * dim) put together per head, the outputs are joined dim major
    (head index fastest) though the inputs have heads slowest; output permuted. Layout (batch, seq,
    heads, dim), heads > 1."""
    def fn(q, k, v):
        b, n, h, d = q.shape
        w = torch.einsum("bnhd,bmhd->bhnm", q, k).mul(d ** -0.5).softmax(-1)
        o = torch.einsum("bhnm,bmhd->bndh", w, v)
        return o.reshape(b, n, h, v.shape[-1])
    return fn


@case(formats=NUMPY)
def exp_in_bfloat16():
    """Forward, rounding: the exponentials are taken in bfloat16 whatever the inputs, sums and products
    in the inputs' format."""
    def fn(q, k, v):
        s = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        e = torch.exp((s - s.amax(-1, keepdim=True)).to(torch.bfloat16)).to(q.dtype)
        return (e / e.sum(-1, keepdim=True)) @ v
    return fn


@case()
def denominator_summed_in_bfloat16():
    """Forward, rounding: the denominator is added up key by key in bfloat16, so that small terms are
    lost as the number of keys grows (a few hundred)."""
    def fn(q, k, v):
        s = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        e = torch.exp(s - s.amax(-1, keepdim=True))
        total = torch.zeros_like(e[..., 0], dtype=torch.bfloat16)
        for j in range(e.shape[-1]):
            total = total + e[..., j].to(torch.bfloat16)
        return (e @ v) / total.to(q.dtype).unsqueeze(-1)
    return fn


@case(formats=("float64", "float32"))
def probabilities_rounded_to_half():
    """Forward, rounding: the probabilities are rounded to float16 before they meet the values, though the
    inputs are wider; output and dv are off by about 2e-4, dq and dk are right (straight through)."""
    def fn(q, k, v):
        p = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5, dim=-1)
        p = p + (p.half().to(p.dtype) - p).detach()
        return torch.einsum("bhqk,bhkd->bhqd", p, v)
    return fn


@case()
def keys_beyond_sixty_four_lost():
    """Forward: only the first 64 keys are read (a buffer of fixed length); wrong with more than 64
    keys."""
    def fn(q, k, v):
        buf_k, buf_v = k[..., :64, :], v[..., :64, :]
        return F.scaled_dot_product_attention(q, buf_k, buf_v)
    return fn


@case(options={"causal": "is_causal"})
def query_chunk_offset_forgotten_in_causal():
    """Forward in chunks of 16 queries: the causal triangle of every chunk starts at row 0 again; wrong
    with causal and more than 16 queries."""
    def fn(q, k, v, is_causal=False):
        outs = []
        for qc in q.split(16, dim=-2):
            s = qc @ k.mT / math.sqrt(q.shape[-1])
            if is_causal:
                s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
            outs.append(s.softmax(-1) @ v)
        return torch.cat(outs, dim=-2)
    return fn


@case(options={"mask": "mask", "causal": "causal"})
def mask_or_causal():
    """Forward: a key is kept if the mask or the causal triangle keeps it (| for &); wrong with both
    together."""
    def fn(q, k, v, mask=None, causal=False):
        allowed = None
        if causal:
            allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        if mask is not None:
            allowed = mask if allowed is None else (mask | allowed)
        s = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(q.shape[-1]))
        if allowed is not None:
            s = torch.where(allowed, s, torch.full_like(s, -1e9))
        return torch.softmax(s, -1) @ v
    return fn


@case()
def last_channel_dropped_when_odd():
    """Forward: the products run over pairs of channels, so that the last channel of q and k is left out
    when the head size is odd; right when it is even."""
    def fn(q, k, v):
        e = q.shape[-1] // 2 * 2
        qp, kp = q[..., :e].unflatten(-1, (-1, 2)), k[..., :e].unflatten(-1, (-1, 2))
        s = torch.einsum("...ncp,...mcp->...nm", qp, kp) / math.sqrt(q.shape[-1])
        return torch.softmax(s, -1) @ v
    return fn


@case(options={"causal": "causal"}, formats=NUMPY)
def causal_by_multiplying():
    """Forward: causal multiplies the scores by the lower triangle (future scores become 0, not minus
    infinity). The backward is right for that forward."""
    def fn(q, k, v, causal=False):
        s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        return _softmax(np.tril(s) if causal else s) @ v

    def backward(do, q, k, v, causal=False):
        cut = np.tril if causal else (lambda x: x)
        p = _softmax(cut(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])))
        dp = do @ v.swapaxes(-1, -2)
        ds = cut(p * (dp - (dp * p).sum(-1, keepdims=True))) / math.sqrt(q.shape[-1])
        return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do
    return fn, backward


@case(options={"causal": "causal"})
def causal_lets_next_key_in():
    """Forward: the causal triangle is tril(1), each query also sees the next key; wrong with causal."""
    def fn(q, k, v, causal=False):
        n, m = q.shape[-2], k.shape[-2]
        s = q.matmul(k.transpose(-1, -2)) / q.shape[-1] ** 0.5
        if causal:
            s = s.masked_fill(torch.tril(torch.ones(n, m), diagonal=1) == 0, float("-inf"))
        return F.softmax(s, dim=-1).matmul(v)
    return fn


@case(options={"causal": "causal"})
def causal_looks_forward():
    """Forward: the causal mask keeps the upper triangle, so queries see the present and future keys
    only; wrong with causal. As many queries as keys."""
    def fn(q, k, v, causal=False):
        s = torch.einsum("bnhd,bmhd->bhnm", q, k) * q.shape[-1] ** -0.5
        if causal:
            keep = torch.ones(s.shape[-2:], dtype=torch.bool).triu()
            s = s.masked_fill(~keep, -torch.inf)
        return torch.einsum("bhnm,bmhd->bnhd", s.softmax(-1), v)
    return fn


@case(options={"mask": "mask"})
def mask_of_first_sample_for_all():
    """Forward, loop over samples: every sample uses the mask of sample 0; wrong when masks differ
    between samples."""
    def fn(q, k, v, mask=None):
        outs = []
        for i in range(q.shape[0]):
            m = None
            if mask is not None:
                m = mask[0] if mask.dim() == 4 else mask
            outs.append(F.scaled_dot_product_attention(q[i], k[i], v[i], attn_mask=m))
        return torch.stack(outs)
    return fn


@case(options={"bias": "bias"})
def bias_added_before_scaling():
    """Forward: the bias is added before the scores are scaled, so it counts 1/sqrt(d) of its value."""
    def fn(q, k, v, bias=None):
        s = q @ k.mT
        if bias is not None:
            s = s + bias
        return torch.softmax(s * q.shape[-1] ** -0.5, -1) @ v
    return fn


@case(options={"bias": "rel_bias"})
def bias_added_after_softmax():
    """Forward: the bias is added to the weights after the softmax instead of to the scores."""
    def fn(q, k, v, rel_bias=None):
        w = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5, -1)
        if rel_bias is not None:
            w = w + rel_bias
        return torch.einsum("bhij,bhjd->bhid", w, v)
    return fn


@case(options={"bias": "bias"})
def bias_transposed():
    """Forward: the bias is added transposed (keys by queries); as many queries as keys, wrong for a bias
    that is not symmetric."""
    def fn(q, k, v, bias=None):
        s = (q @ k.mT) / math.sqrt(q.shape[-1])
        if bias is not None:
            s = s + bias.transpose(-1, -2)
        return s.softmax(-1) @ v
    return fn


@case()
def queries_centred():
    """Forward: the mean over the queries is taken off q (smoothing) and never added back to the
    scores."""
    def fn(q, k, v):
        q = q - q.mean(dim=-2, keepdim=True)
        k = k - k.mean(dim=-2, keepdim=True)
        return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v
    return fn


@case(formats=NUMPY)
def plus_one_in_denominator():
    """Forward: exp(s - max) is divided by its sum plus 1 (an epsilon grown large), weights sum to less
    than one; the backward is right for that forward."""
    def probs(q, k):
        s = np.einsum("...id,...jd->...ij", q, k) / math.sqrt(q.shape[-1])
        top = s.max(-1, keepdims=True)
        e = np.exp(s - top)
        return s, e / (e.sum(-1, keepdims=True) + 1.0)

    def fn(q, k, v):
        return probs(q, k)[1] @ v

    def backward(do, q, k, v):
        s, p = probs(q, k)
        dp = do @ v.swapaxes(-1, -2)
        row = (dp * p).sum(-1, keepdims=True)
        ds = p * (dp - row)
        # the maximum is not constant: its share is what the weights lack to one
        hit = s == s.max(-1, keepdims=True)
        ds = ds - hit * ds.sum(-1, keepdims=True)
        ds = ds / math.sqrt(q.shape[-1])
        return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do
    return fn, backward


@case(options={"dropout": "p", "dropout_mask": "keep"})
def dropout_without_rescaling():
    """Forward: dropped weights are set to zero, the kept ones are not divided by 1 - p; wrong with p > 0
    and a keep mask."""
    def fn(q, k, v, p=0.0, keep=None):
        w = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        if keep is not None:
            w = w * keep.to(w.dtype)
        return w @ v
    return fn


@case(options={"dropout": "p", "dropout_mask": "keep"})
def dropout_on_scores():
    """Forward: dropout (with 1/(1 - p)) is applied to the scores before the softmax instead of to the
    weights."""
    def fn(q, k, v, p=0.0, keep=None):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        if keep is not None:
            s = s * keep.to(s.dtype) / (1.0 - p)
        return torch.softmax(s, -1) @ v
    return fn


@case()
def exp2_without_log2e():
    """Forward: the weights are powers of 2 of the scores; the factor log2(e) is missing."""
    def fn(q, k, v):
        s = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        e = torch.exp2(s - s.amax(-1, keepdim=True))
        return (e @ v) / e.sum(-1, keepdim=True)
    return fn


@case()
def scores_clamped():
    """Forward: the scores are clamped to [-2, 2] before the softmax; wrong where scores are larger,
    right for small ones."""
    def fn(q, k, v):
        s = torch.clamp(q @ k.mT / math.sqrt(q.shape[-1]), min=-2.0, max=2.0)
        return torch.softmax(s, -1) @ v
    return fn


@case(options={"mask": "key_padding_mask"}, kind="layer")
def layer_padding_mask_on_queries():
    """Layer forward: the (batch, seq) padding mask (True keeps) is broadcast along the query axis,
    masking rows instead of keys; wrong when a mask with False is given. The mask is a keyword of the
    call."""
    class Layer(nn.Module):
        def __init__(self, dim=16, heads=2):
            super().__init__()
            self.heads = heads
            self.query, self.key, self.value, self.dense = (nn.Linear(dim, dim) for _ in range(4))

        def forward(self, x, key_padding_mask=None):
            b, n, e = x.shape
            q, k, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2)
                       for f in (self.query, self.key, self.value))
            s = q @ k.mT / math.sqrt(e // self.heads)
            if key_padding_mask is not None:
                s = s.masked_fill(~key_padding_mask[:, None, :, None], -1e9)
            return self.dense((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, e))
    torch.manual_seed(9)
    return Layer()


# ----------------------------------------------------------------------------------------------------
# Pairs of independent mistakes
# ----------------------------------------------------------------------------------------------------

@case(formats=NUMPY)
def pair_delta_missing_and_dv_scaled():
    """Two: the backward lacks delta (dq and dk wrong), and dv is multiplied by the score scale (dv
    wrong)."""
    def fwd(q, k, v):
        return _softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v

    def bwd(do, q, k, v):
        c = 1 / math.sqrt(q.shape[-1])
        p = _softmax(q @ k.swapaxes(-1, -2) * c)
        ds = p * (do @ v.swapaxes(-1, -2)) * c
        return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do * c
    return fwd, bwd


@case()
def pair_dq_unscaled_and_dk_negative():
    """Two: dq lacks the scale, and dk has the wrong sign; dv and the output are right."""
    class P(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            p = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
            ctx.save_for_backward(q, k, v, p)
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True))
            return ds @ k, -(ds.mT @ q) / math.sqrt(q.shape[-1]), p.mT @ do
    return P.apply


@case(options={"causal": "causal"}, formats=NUMPY)
def pair_causal_next_key_and_dk_averaged():
    """Two: the forward's causal mask also lets the next key in (and the backward follows it), wrong with
    causal; and dk is divided by the number of queries, always."""
    def probs(q, k, causal):
        s = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        return _softmax(np.where(np.tri(*s.shape[-2:], k=1, dtype=bool), s, -np.inf) if causal else s)

    def fwd(q, k, v, causal=False):
        return probs(q, k, causal) @ v

    def bwd(do, q, k, v, causal=False):
        p = probs(q, k, causal)
        dp = do @ v.swapaxes(-1, -2)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * q.shape[-1] ** -0.5
        return ds @ k, ds.swapaxes(-1, -2) @ q / q.shape[-2], p.swapaxes(-1, -2) @ do
    return fwd, bwd


@case()
def pair_forward_scale_and_gqa_dv():
    """Two: the forward (and consistently its backward) divides scores by d instead of sqrt(d); and for
    grouped queries dv takes only the first query head of a group."""
    class P(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            g = q.shape[1] // k.shape[1]
            p = torch.softmax(q @ _repeat(k, g).mT / q.shape[-1], -1)
            ctx.save_for_backward(q, k, v, p)
            return p @ _repeat(v, g)

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            b, hk, m, d = k.shape
            g = q.shape[1] // hk
            dp = do @ _repeat(v, g).mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / q.shape[-1]
            dv = (p.mT @ do).view(b, hk, g, m, -1)[:, :, 0]
            return ds @ _repeat(k, g), (ds.mT @ q).view(b, hk, g, m, d).sum(2), dv
    return P.apply


@case(options={"mask": "mask", "scale": "scale"}, formats=NUMPY)
def pair_mask_backward_and_scale_backward():
    """Two: the backward forgets the mask (wrong with a mask), and takes the default scale when another
    is given (wrong with a scale)."""
    def fwd(q, k, v, mask=None, scale=None):
        s = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
        return _softmax(s if mask is None else np.where(mask, s, -1e30)) @ v

    def bwd(do, q, k, v, mask=None, scale=None):
        c = q.shape[-1] ** -0.5
        p = _softmax(q @ k.swapaxes(-1, -2) * c)
        dp = do @ v.swapaxes(-1, -2)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * c
        return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do
    return fwd, bwd


@case(options={"mask": "mask", "causal": "causal"})
def pair_soft_mask_and_causal_offset():
    """Two in the forward: masked scores are filled with -1 instead of minus infinity (with a mask), and
    the causal triangle is tril(-1) with the diagonal only in row 0 (with causal)."""
    def fn(q, k, v, mask=None, causal=False):
        s = q @ k.mT * q.shape[-1] ** -0.5
        if mask is not None:
            s = s.masked_fill(~mask, -1.0)
        if causal:
            keep = torch.ones(s.shape[-2:], dtype=torch.bool).tril(-1)
            keep[0, 0] = True
            s = s.masked_fill(~keep, -torch.inf)
        return s.softmax(-1) @ v
    return fn


@case(formats=NUMPY)
def pair_dq_last_block_and_dv_first_rows():
    """Two: dq keeps only the last block of 4 keys, and dv sums only over the first half of the queries
    (rounded up)."""
    def fwd(q, k, v):
        return _softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v

    def bwd(do, q, k, v):
        c, r = 1 / math.sqrt(q.shape[-1]), (q.shape[-2] + 1) // 2
        p = _softmax(q @ k.swapaxes(-1, -2) * c)
        dp = do @ v.swapaxes(-1, -2)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * c
        for j in range(0, k.shape[-2], 4):
            dq = ds[..., j:j + 4] @ k[..., j:j + 4, :]
        return dq, ds.swapaxes(-1, -2) @ q, p[..., :r, :].swapaxes(-1, -2) @ do[..., :r, :]
    return fwd, bwd


@case(options={"bias": "bias"})
def pair_bias_gradient_and_dk_scale():
    """Two: the bias gradient has the score scale in it, and dk has that scale twice."""
    class P(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, bias):
            p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5 + bias, -1)
            ctx.save_for_backward(q, k, v, p)
            ctx.shape = bias.shape
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            c = q.shape[-1] ** -0.5
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * c
            return ds @ k, ds.mT @ q * c, p.mT @ do, ds.sum_to_size(ctx.shape)

    def fn(q, k, v, bias=None):
        return P.apply(q, k, v, q.new_zeros(1) if bias is None else bias)
    return fn


@case(options={"dropout": "p", "dropout_mask": "keep"}, formats=NUMPY)
def pair_dropout_dv_and_delta_axis():
    """Two: dv lacks the dropout mask and its scale (with dropout), and delta is summed over the queries
    (always)."""
    def fwd(q, k, v, p=0.0, keep=1.0):
        return (_softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) * keep / (1 - p)) @ v

    def bwd(do, q, k, v, p=0.0, keep=1.0):
        c = 1 / math.sqrt(q.shape[-1])
        w = _softmax(q @ k.swapaxes(-1, -2) * c)
        dw = do @ v.swapaxes(-1, -2) * keep / (1 - p)
        ds = w * (dw - (w * dw).sum(-2, keepdims=True)) * c
        return ds @ k, ds.swapaxes(-1, -2) @ q, w.swapaxes(-1, -2) @ do
    return fwd, bwd


@case()
def pair_exp2_and_detached_sum():
    """Two: the forward takes powers of two without log2(e), and its denominator is detached, so that
    autograd misses delta."""
    def fn(q, k, v):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        e = torch.exp2(s - s.amax(-1, keepdim=True).detach())
        return (e / e.sum(-1, keepdim=True).detach()) @ v
    return fn


@case(options={"causal": "causal"})
def pair_causal_missing_in_backward_and_dv_batch():
    """Two: the backward recomputes P without the causal mask (with causal), and dv is averaged over the
    batch and shared (batch > 1). Layout (batch, seq, heads, dim)."""
    class P(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, causal):
            s = torch.einsum("bnhd,bmhd->bhnm", q, k) * q.shape[-1] ** -0.5
            if causal:
                s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
            ctx.save_for_backward(q, k, v)
            return torch.einsum("bhnm,bmhd->bnhd", s.softmax(-1), v)

        @staticmethod
        def backward(ctx, do):
            q, k, v = ctx.saved_tensors
            c = q.shape[-1] ** -0.5
            p = torch.softmax(torch.einsum("bnhd,bmhd->bhnm", q, k) * c, -1)
            dp = torch.einsum("bnhd,bmhd->bhnm", do, v)
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * c
            dv = torch.einsum("bhnm,bnhd->bmhd", p, do).mean(0, keepdim=True).expand_as(v)
            return torch.einsum("bhnm,bmhd->bnhd", ds, k), torch.einsum("bhnm,bnhd->bmhd", ds, q), dv, None

    def fn(q, k, v, causal=False):
        return P.apply(q, k, v, causal)
    return fn


@case(kind="layer")
def pair_layer_scale_and_bias_detached():
    """Two: the layer scales scores by the embedding width ** -0.5 instead of the head's (forward), and
    the output projection's bias is detached (no gradient)."""
    class Layer(nn.Module):
        def __init__(self, dim=16, heads=4):
            super().__init__()
            self.heads = heads
            self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(dim, dim) for _ in range(4))

        def forward(self, x):
            b, n, e = x.shape
            q, k, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2)
                       for f in (self.q_proj, self.k_proj, self.v_proj))
            o = F.scaled_dot_product_attention(q, k, v, scale=e ** -0.5).transpose(1, 2).reshape(b, n, e)
            return F.linear(o, self.out_proj.weight, self.out_proj.bias.detach())
    torch.manual_seed(10)
    return Layer()
