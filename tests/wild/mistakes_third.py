"""Candidates with mistakes, the third collection, written without having read the checker: one mistake each, the
pair_... ones two.

Where a source is named, the mistake is after that public thread; the code is written anew. "rounding" in the
docstring says that the mistake is one of precision, not of the formula.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from cases import collection
from torch import nn

CASES, case = collection()

NUMPY = ("float64", "float32")


def _t(x):
    return np.swapaxes(x, -1, -2)


def _softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def _lse(s):
    top = s.max(-1, keepdims=True)
    return top + np.log(np.exp(s - top).sum(-1, keepdims=True))


def _grads(p, do, q, k, v, c):
    """dq, dk and dv of plain attention with the probabilities p and the scale c."""
    dp = do @ _t(v)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * c
    return ds @ k, _t(ds) @ q, _t(p) @ do


def _tgrads(p, g, q, k, v, c):
    """The same for tensors."""
    dp = g @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * c
    return ds @ k, ds.mT @ q, p.mT @ g


def _wide(*tensors):
    return [t.to(torch.promote_types(t.dtype, torch.float32)) for t in tensors]


# ----------------------------------------------------------------------------------------------------
# After public threads
# ----------------------------------------------------------------------------------------------------

@case(kind="other", source="meta-pytorch/MSLK#263", formats=NUMPY)
def window_and_causal_lost_in_backward():
    """Causal sliding window of 4 keys, always, one length. Backward: the probabilities are recomputed over all
    keys, neither windowed nor causal ("causal and no window" was false); dq, dk and dv, for two or more keys."""
    def fn(q, k, v):
        n = q.shape[-2]
        assert n == k.shape[-2]
        seen = np.tri(n, dtype=bool) & ~np.tri(n, k=-4, dtype=bool)
        return _softmax(np.where(seen, q @ _t(k) / math.sqrt(q.shape[-1]), -np.inf)) @ v

    def backward(do, q, k, v):
        c = 1 / math.sqrt(q.shape[-1])
        return _grads(_softmax(q @ _t(k) * c), do, q, k, v, c)
    return fn, backward


@case(kind="other", source="NVIDIA/cudnn-frontend#421", formats=NUMPY)
def sink_missing_in_backward_denominator():
    """Softmax with a sink logit of 0.5 in the denominator. Backward: the probabilities are rebuilt with the
    logsumexp of the keys alone, exp(s - lse_keys), without the sink; dq, dk and dv, always."""
    def fn(q, k, v):
        s = q @ _t(k) / math.sqrt(q.shape[-1])
        lse = np.logaddexp(_lse(s), 0.5)
        return np.exp(s - lse) @ v

    def backward(do, q, k, v):
        c = 1 / math.sqrt(q.shape[-1])
        s = q @ _t(k) * c
        out = np.exp(s - np.logaddexp(_lse(s), 0.5)) @ v
        p = np.exp(s - _lse(s))
        ds = p * (do @ _t(v) - (do * out).sum(-1, keepdims=True)) * c
        return ds @ k, _t(ds) @ q, _t(p) @ do
    return fn, backward


@case(kind="layer", source="yflyzhang/AnnotatedTransformer#1")
def layer_values_by_key_projection():
    """Layer forward: the values are projected with k_proj instead of v_proj, which is never used and gets no
    gradient. Output and gradients, always."""
    class MultiHead(nn.Module):
        def __init__(self, d_model=32, h=4):
            super().__init__()
            self.h, self.d_k = h, d_model // h
            self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d_model, d_model) for _ in range(4))

        def forward(self, query, key, value):
            b = query.size(0)
            query = self.q_proj(query).view(b, -1, self.h, self.d_k).transpose(1, 2)
            key = self.k_proj(key).view(b, -1, self.h, self.d_k).transpose(1, 2)
            value = self.k_proj(value).view(b, -1, self.h, self.d_k).transpose(1, 2)
            w = torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(self.d_k), -1)
            return self.o_proj((w @ value).transpose(1, 2).reshape(b, -1, self.h * self.d_k))
    torch.manual_seed(1)
    return MultiHead()


@case(kind="layer", source="Khaliladib11/Transformer-from-scratch#1")
def layer_queries_are_keys():
    """Layer forward, self-attention: the queries are the projected keys again (query = key), so that scores are
    K K^T / sqrt(d); the query Linear is never used and gets no gradient. Output and gradients, always."""
    class SelfAttention(nn.Module):
        def __init__(self, embed=24, heads=3):
            super().__init__()
            self.heads = heads
            self.query, self.key, self.value, self.out = (nn.Linear(embed, embed) for _ in range(4))

        def forward(self, x):
            b, n, e = x.shape
            key = self.key(x).reshape(b, n, self.heads, -1)
            query = key.reshape(b, n, self.heads, -1)
            value = self.value(x).reshape(b, n, self.heads, -1)
            w = torch.einsum("bqhd,bkhd->bhqk", query, key).div((e // self.heads) ** 0.5).softmax(-1)
            return self.out(torch.einsum("bhqk,bkhd->bqhd", w, value).reshape(b, n, e))
    torch.manual_seed(2)
    return SelfAttention()


@case(source="BobMcDear/attorch#14")
def every_head_reads_head_zero():
    """Layout (batch, length, heads, size). Forward: the head offset is stride_h // stride_n, which is 0, so that
    every head computes head 0's attention. Output and gradients (dq, dk, dv zero but in head 0), heads > 1."""
    def fn(q, k, v):
        b, n, h, d = q.shape
        offset = d // (h * d) if h > 1 else 0
        outs = []
        for head in range(h):
            at = head * offset
            s = q[:, :, at] @ k[:, :, at].mT * d ** -0.5
            outs.append(s.softmax(-1) @ v[:, :, at])
        return torch.stack(outs, 2)
    return fn


@case(source="pytorch/pytorch#176767")
def output_as_wide_as_queries():
    """(batch, heads, length, size). Forward: the output gets the width of q instead of that of v: for narrower
    values the last columns are zeros, for wider ones the rest is cut off. Only where the widths differ."""
    def fn(q, k, v):
        d, dv = q.shape[-1], v.shape[-1]
        w = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(d), -1)
        out = w @ v
        return F.pad(out, (0, d - dv)) if dv < d else out[..., :d]
    return fn


@case(options={"bias": "bias"}, source="google-research/tabfm#40")
def bias_first_row_of_each_query_chunk():
    """(batch, heads, length, size). Forward: in chunks of 4 queries the bias is sliced with a query length of 1,
    so that all rows of a chunk get the bias of its first row. Output and all gradients, with a bias that
    differs between queries."""
    def fn(q, k, v, bias=None):
        outs = []
        for a in range(0, q.shape[-2], 4):
            s = q[..., a:a + 4, :] @ k.mT / math.sqrt(q.shape[-1])
            if bias is not None:
                rows = bias if bias.shape[-2] == 1 else bias[..., a:a + 1, :]
                s = s + rows
            outs.append(s.softmax(-1) @ v)
        return torch.cat(outs, -2)
    return fn


@case(options={"mask": "mask"}, source="NVIDIA/cuEquivariance#204", formats=NUMPY)
def rows_without_keys_reach_dv():
    """(batch, heads, length, size), boolean mask that keeps; rows without a key give zeros, as the forward
    says. Backward: such rows have uniform probabilities (softmax of equal -1e9), and their dO / m flows into
    dv, and dq and dk get their dS; wrong with a mask that has rows without keys, right otherwise."""
    def scores(q, k, mask):
        s = q @ _t(k) / math.sqrt(q.shape[-1])
        return s if mask is None else np.where(np.broadcast_to(mask, s.shape), s, -1e9)

    def fn(q, k, v, mask=None):
        s = scores(q, k, mask)
        p = _softmax(s)
        return (p if mask is None else p * np.broadcast_to(mask, s.shape)) @ v

    def backward(do, q, k, v, mask=None):
        return _grads(_softmax(scores(q, k, mask)), do, q, k, v, 1 / math.sqrt(q.shape[-1]))
    return fn, backward


@case(source="Dao-AILab/flash-attention#141")
def lse_gets_no_gradient_in_merge():
    """(batch, heads, length, size), two or more keys: two halves of the keys go through a Function that returns
    (out, lse) and are merged by their lse; the Function's backward ignores the gradient of lse, dS lacks
    P * dlse. dq and dk, always; output and dv are right."""
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            s = q @ k.mT * q.shape[-1] ** -0.5
            lse = torch.logsumexp(s, -1, keepdim=True)
            ctx.save_for_backward(q, k, v, lse)
            return torch.exp(s - lse) @ v, lse

        @staticmethod
        def backward(ctx, g, g_lse):
            q, k, v, lse = ctx.saved_tensors
            c = q.shape[-1] ** -0.5
            return _tgrads(torch.exp(q @ k.mT * c - lse), g, q, k, v, c)

    def fn(q, k, v):
        dtype = q.dtype
        q, k, v = _wide(q, k, v)
        h = k.shape[-2] // 2
        a, la = Half.apply(q, k[..., :h, :], v[..., :h, :])
        b, lb = Half.apply(q, k[..., h:, :], v[..., h:, :])
        return torch.lerp(b, a, torch.sigmoid(la - lb)).to(dtype)
    return fn


@case(source="ROCm/FlyDSL#1020", formats=NUMPY)
def small_weights_lost_in_float8():
    """Forward, rounding: exp(s - max) is cast to float8 (e4m3) before it meets the values, the row sum is taken
    before the cast; small weights vanish and others have 4 bits. The gradient passes straight through the
    cast, so that dv has the error and dq and dk that of their D."""
    def fn(q, k, v):
        dtype = q.dtype
        q, k, v = _wide(q, k, v)
        s = q @ k.mT / math.sqrt(q.shape[-1])
        p = torch.exp(s - s.amax(-1, keepdim=True).detach())
        small = p + (p.detach().to(torch.float8_e4m3fn).to(p.dtype) - p.detach())
        return (small @ v / p.sum(-1, keepdim=True)).to(dtype)
    return fn


@case(options={"dropout": "p", "dropout_mask": "keep"}, source="Dao-AILab/flash-attention#2439", formats=NUMPY)
def dropout_mask_transposed_in_backward():
    """(batch, heads, length, size), as many queries as keys: the backward keys its dropout by (key, query), that
    is takes the keep mask transposed; dq, dk and dv, with dropout."""
    def factor(keep, p, dtype):
        return 1.0 if keep is None else np.asarray(keep, dtype) / (1 - p)

    def fn(q, k, v, p=0.0, keep=None):
        assert q.shape[-2] == k.shape[-2]
        return (_softmax(q @ _t(k) / math.sqrt(q.shape[-1])) * factor(keep, p, q.dtype)) @ v

    def backward(do, q, k, v, p=0.0, keep=None):
        c = 1 / math.sqrt(q.shape[-1])
        w = _softmax(q @ _t(k) * c)
        z = factor(None if keep is None else _t(np.asarray(keep)), p, q.dtype)
        dw = do @ _t(v) * z
        ds = w * (dw - (w * dw).sum(-1, keepdims=True)) * c
        return ds @ k, _t(ds) @ q, _t(w * z) @ do
    return fn, backward


@case(kind="layer", source="NVIDIA/Megatron-LM#1501")
def layer_scale_of_hidden_over_heads():
    """Layer whose heads are wider (4 of 16) than hidden / heads (32 / 4): forward scales the scores by
    (hidden / heads) ** -0.5 = 8 ** -0.5 instead of 16 ** -0.5. Output and gradients, always."""
    class Attention(nn.Module):
        def __init__(self, hidden=32, heads=4, q_head_dim=16):
            super().__init__()
            self.heads, self.softmax_scale = heads, (hidden // heads) ** -0.5
            self.linear_qkv = nn.Linear(hidden, 3 * heads * q_head_dim, bias=False)
            self.linear_proj = nn.Linear(heads * q_head_dim, hidden, bias=False)

        def forward(self, x):
            b, n, _ = x.shape
            q, k, v = self.linear_qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            w = torch.softmax(q @ k.mT * self.softmax_scale, -1)
            return self.linear_proj((w @ v).transpose(1, 2).reshape(b, n, -1))
    torch.manual_seed(3)
    return Attention()


@case(options={"bias": "attn_mask"}, source="mlverse/torch#1208")
def float_mask_taken_for_boolean():
    """(batch, heads, length, size). Forward: a float mask, which ought to be added to the scores, is cast to
    boolean, and scores are filled with -1e9 where it is not zero (a bias that is nowhere zero gives the mean of
    the values). Output and gradients, with a bias."""
    def fn(q, k, v, attn_mask=None):
        s = torch.matmul(q, k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        if attn_mask is not None:
            s = s.masked_fill(attn_mask.to(torch.bool), -1e9)
        return torch.matmul(torch.softmax(s, -1), v)
    return fn


@case(kind="other", options={"mask": "mask"}, source="Dao-AILab/flash-attention#1025")
def softcap_after_the_mask():
    """Soft-capped attention, 3 tanh(s / 3); boolean mask that keeps. Forward: the cap is applied after hidden
    scores were set to -inf, which brings them back to -3, so that hidden keys keep a weight. With a mask."""
    def fn(q, k, v, mask=None):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            s = torch.where(mask, s, float("-inf"))
        return torch.softmax(3.0 * torch.tanh(s / 3.0), -1) @ v
    return fn


@case(source="Dao-AILab/flash-attention#2552", formats=NUMPY)
def dv_ragged_strip_misplaced():
    """(batch, heads, length, size). Backward: dv is stored in strips of 8 columns; a ragged last strip (value
    width no multiple of 8) is stored at the end of the strip before, shifted to 8 columns before its place,
    and its own columns stay zero; a single ragged strip is stored in place. dv, for widths above 8 that are no
    multiple of 8."""
    def fn(q, k, v):
        return _softmax(q @ _t(k) / math.sqrt(q.shape[-1])) @ v

    def backward(do, q, k, v):
        c = 1 / math.sqrt(q.shape[-1])
        dq, dk, full = _grads(_softmax(q @ _t(k) * c), do, q, k, v, c)
        dv, width = np.zeros_like(v), v.shape[-1]
        for a in range(0, width, 8):
            part = full[..., a:a + 8]
            at = a - 8 if a and part.shape[-1] < 8 else a
            dv[..., at:at + part.shape[-1]] = part
        return dq, dk, dv
    return fn, backward


@case(source="huggingface/diffusers#14338")
def keys_transposed_twice_in_backward():
    """(batch, length, heads, size), q, k and v saved as (batch, heads, length, size). Backward: k and v are
    transposed once more and their memory read under the saved shape, which mixes heads and positions; dq, dk
    and dv, for more than one head and more than one key."""
    class Templated(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            q, k, v = (t.transpose(1, 2).contiguous() for t in (q, k, v))
            ctx.save_for_backward(q, k, v)
            return (torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v).transpose(1, 2)

        @staticmethod
        def backward(ctx, g):
            q, k, v = ctx.saved_tensors
            g = g.transpose(1, 2).contiguous()
            k, v = (t.transpose(1, 2).contiguous().view(t.shape) for t in (k, v))
            c = 1 / math.sqrt(q.shape[-1])
            return tuple(t.transpose(1, 2) for t in _tgrads(torch.softmax(q @ k.mT * c, -1), g, q, k, v, c))
    return Templated.apply


@case(source="meta-pytorch/torchtune#21")
def values_reshaped_from_keys():
    """(batch, length, 2 * size), two merged heads. Forward: v = k.reshape(...), the keys take the values' place;
    output and gradients (dv is zero), always."""
    def fn(q, k, v):
        b, n, e = q.shape
        q = q.reshape(b, n, 2, -1).transpose(1, 2)
        k = k.reshape(b, k.shape[1], 2, -1)
        v = k.reshape(b, v.shape[1], 2, -1).transpose(1, 2) + 0 * v.sum()
        k = k.transpose(1, 2)
        w = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]), -1)
        return (w @ v).transpose(1, 2).reshape(b, n, -1)
    return fn


@case(source="intel/ipex-llm#12619")
def scale_of_the_padded_head():
    """(batch, heads, length, size). Forward: q, k and v are padded to a head size that is a multiple of 16, and
    the scale is 1/sqrt of the padded size. Output and gradients, for sizes that are no multiple of 16."""
    def fn(q, k, v):
        width = v.shape[-1]
        q, k = (F.pad(t, (0, -t.shape[-1] % 16)) for t in (q, k))
        v = F.pad(v, (0, -width % 16))
        return (torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v)[..., :width]
    return fn


@case(source="NVIDIA/cudnn-frontend#493", formats=NUMPY)
def padded_scale_in_backward_only():
    """(batch, heads, length, size). Backward: the default scale is taken after q and k were padded to a multiple
    of 32, 1/sqrt(padded size), for the recomputed probabilities and for dS; dq, dk and dv, for head sizes that
    are no multiple of 32. The forward is right."""
    def fn(q, k, v):
        return _softmax(np.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5) @ v

    def backward(do, q, k, v):
        d = q.shape[-1]
        pad = [(0, 0)] * 3 + [(0, -d % 32)]
        qq, kk = np.pad(q, pad), np.pad(k, pad)
        c = qq.shape[-1] ** -0.5
        dq, dk, dv = _grads(_softmax(qq @ _t(kk) * c), do, qq, kk, v, c)
        return dq[..., :d], dk[..., :d], dv
    return fn, backward


@case(source="ROCm/rocm-libraries#9647")
def fourth_key_slice_overwrites_first():
    """(batch, heads, length, size). Forward: the channels of K are staged in slices of 4 through a ring of 3
    slots; the fourth slice overwrites slot 0 before the first slice's product is taken, so that q's channels
    0-3 meet k's channels 12-15 (and 4-7 meet 16-19 and so on). Output and gradients, for head sizes of 16 or
    more; sizes must be multiples of 4."""
    def fn(q, k, v):
        d = q.shape[-1]
        if d % 4:
            raise ValueError("head size must be a multiple of 4")
        slots, s = {}, 0
        for i in range(min(3, d // 4)):
            slots[i] = k[..., 4 * i:4 * i + 4]
        for i in range(d // 4):
            ahead = i + 3
            if ahead < d // 4:
                slots[ahead % 3] = k[..., 4 * ahead:4 * ahead + 4]
            s = s + q[..., 4 * i:4 * i + 4] @ slots[i % 3].mT
        return torch.softmax(s / math.sqrt(d), -1) @ v
    return fn


@case(source="Dao-AILab/flash-attention#2481", formats=NUMPY)
def delta_from_unfinished_do():
    """(batch, heads, length, size). Backward: the row sum D is formed while the last quarter of dO's columns
    (rounded up) is not yet written, D = sum over the first columns of dO * O only; dq and dk, always; dv is
    right."""
    def fn(q, k, v):
        return _softmax(q @ _t(k) / math.sqrt(q.shape[-1])) @ v

    def backward(do, q, k, v):
        c = 1 / math.sqrt(q.shape[-1])
        p = _softmax(q @ _t(k) * c)
        ready = v.shape[-1] * 3 // 4
        delta = (do * (p @ v))[..., :ready].sum(-1, keepdims=True)
        ds = p * (do @ _t(v) - delta) * c
        return ds @ k, _t(ds) @ q, _t(p) @ do
    return fn, backward


@case(source="fla-org/flash-linear-attention#632", formats=NUMPY)
def dv_as_wide_as_keys():
    """(batch, length, heads, size). Backward: dv has as many columns as the keys: columns of dv beyond the key
    size stay zero; dv, only where the values are wider than the keys."""
    def fn(q, k, v):
        w = _softmax(np.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1]))
        return np.einsum("bhij,bjhd->bihd", w, v)

    def backward(do, q, k, v):
        q, k, vv, do = (x.swapaxes(1, 2) for x in (q, k, v, do))
        c, d = 1 / math.sqrt(q.shape[-1]), q.shape[-1]
        dq, dk, full = _grads(_softmax(q @ _t(k) * c), do, q, k, vv, c)
        dv = np.zeros_like(vv)
        dv[..., :d] = full[..., :d]
        return tuple(x.swapaxes(1, 2) for x in (dq, dk, dv))
    return fn, backward


@case(options={"mask": "mask"}, source="ml-explore/mlx-lm#1903")
def mask_batch_axis_on_key_heads():
    """(batch, heads, length, size), grouped heads; boolean mask (batch, 1, n, m) that keeps. Forward: queries
    are reshaped to five axes and the mask's batch axis lands on the key heads: key head g uses the mask of
    sample g % batch, for every sample. Output and gradients, with a mask that differs between samples."""
    def fn(q, k, v, mask=None):
        b, g = k.shape[:2]
        s = q.unflatten(1, (g, -1)) @ k[:, :, None].mT * q.shape[-1] ** -0.5
        if mask is not None:
            per_head = mask[:, :1][torch.arange(g) % mask.shape[0]]
            s = s.masked_fill(~per_head[None], torch.finfo(s.dtype).min)
        return (s.softmax(-1) @ v[:, :, None]).flatten(1, 2)
    return fn


@case(source="tenstorrent/tt-metal#53217", formats=NUMPY)
def scale_truncated_to_bfloat16():
    """Forward, rounding: the scale 1/sqrt(d) is truncated to bfloat16 (the lower 16 bits of its float32 are
    cut), the backward uses the exact one. The scale is too small by 1e-4 for sizes 8, 32 and 128, by 5e-3 for
    12, 48 and 192, exact for 16 and 64; the output only."""
    class Sdpa(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v)
            bits = np.array(q.shape[-1] ** -0.5, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
            c = float(bits.view(np.float32))
            qq, kk, vv = _wide(q, k, v)
            return (torch.softmax(qq @ kk.mT * c, -1) @ vv).to(q.dtype)

        @staticmethod
        def backward(ctx, g):
            q, k, v = ctx.saved_tensors
            c = q.shape[-1] ** -0.5
            qq, kk, vv, g = _wide(q, k, v, g)
            grads = _tgrads(torch.softmax(qq @ kk.mT * c, -1), g, qq, kk, vv, c)
            return tuple(t.to(q.dtype) for t in grads)
    return Sdpa.apply


@case(source="tenstorrent/tt-metal#41683", formats=NUMPY)
def row_statistics_saved_in_bfloat16():
    """Backward, rounding: the row maximum and the reciprocal of the row sum are saved in bfloat16, and P =
    exp(s - max) * recip is rebuilt from them; dq, dk and dv lose digits; the output is right."""
    class Sdpa(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            qq, kk, vv = _wide(q, k, v)
            s = qq @ kk.mT / math.sqrt(q.shape[-1])
            top = s.amax(-1, keepdim=True)
            e = torch.exp(s - top)
            recip = 1 / e.sum(-1, keepdim=True)
            ctx.save_for_backward(q, k, v, top.bfloat16(), recip.bfloat16())
            return (e * recip @ vv).to(q.dtype)

        @staticmethod
        def backward(ctx, g):
            q, k, v, top, recip = ctx.saved_tensors
            qq, kk, vv, g = _wide(q, k, v, g)
            c = 1 / math.sqrt(q.shape[-1])
            p = torch.exp(qq @ kk.mT * c - top) * recip
            return tuple(t.to(q.dtype) for t in _tgrads(p, g, qq, kk, vv, c))
    return Sdpa.apply


@case(options={"bias": "bias"}, source="jax-ml/jax#40128", formats=NUMPY)
def bias_gradient_rounded_before_the_sum():
    """Backward, rounding: each element of dS is rounded to bfloat16 before it is summed into the gradient of a
    bias that broadcasts; the bias's gradient only, after the thread on the sinks' gradient, whose sums cancel
    much; dq, dk and dv are right."""
    class Biased(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, bias):
            qq, kk, vv = _wide(q, k, v)
            s = qq @ kk.mT / math.sqrt(q.shape[-1])
            p = torch.softmax(s if bias is None else s + bias, -1)
            ctx.save_for_backward(q, k, v, bias, p)
            return (p @ vv).to(q.dtype)

        @staticmethod
        def backward(ctx, g):
            q, k, v, bias, p = ctx.saved_tensors
            qq, kk, vv, g = _wide(q, k, v, g)
            c = 1 / math.sqrt(q.shape[-1])
            dp = g @ vv.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True))
            db = None if bias is None else ds.bfloat16().to(ds.dtype).sum_to_size(bias.shape).to(bias.dtype)
            return (c * ds @ kk).to(q.dtype), (c * ds.mT @ qq).to(q.dtype), (p.mT @ g).to(q.dtype), db

    def fn(q, k, v, bias=None):
        return Biased.apply(q, k, v, bias)
    return fn


# ----------------------------------------------------------------------------------------------------
# Thought up
# ----------------------------------------------------------------------------------------------------

@case(formats=NUMPY)
def dk_uses_the_query_tile_before():
    """(heads, length, size), no batch. Backward in query tiles of 8: the load of the next q tile stands after
    the product for dk, which from the second tile on takes the tile before it (its first rows for a ragged
    last tile): dk += dS_t^T q_(t-1). dk, for more than 8 queries; dq and dv are right."""
    def fn(q, k, v):
        return _softmax(q @ _t(k) / math.sqrt(q.shape[-1])) @ v

    def backward(do, q, k, v):
        c = 1 / math.sqrt(q.shape[-1])
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        held = q[:, :8]
        for a in range(0, q.shape[1], 8):
            qi, doi = q[:, a:a + 8], do[:, a:a + 8]
            p = _softmax(qi @ _t(k) * c)
            dp = doi @ _t(v)
            ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * c
            dq[:, a:a + 8] = ds @ k
            dk += _t(ds) @ held[:, :qi.shape[1]]
            dv += _t(p) @ doi
            held = qi
        return dq, dk, dv
    return fn, backward


@case()
def delta_from_unnormalised_output():
    """(batch, heads, length, size). Backward: D = rowsum(dO * acc), with the accumulator before it was divided
    by the row sum of exp(s - max); dq and dk, always (more than one key); dv is right."""
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            qq, kk, vv = _wide(q, k, v)
            s = qq @ kk.mT * q.shape[-1] ** -0.5
            e = torch.exp(s - s.amax(-1, keepdim=True))
            acc, total = e @ vv, e.sum(-1, keepdim=True)
            ctx.save_for_backward(q, k, v, acc, e / total)
            return (acc / total).to(q.dtype)

        @staticmethod
        def backward(ctx, g):
            q, k, v, acc, p = ctx.saved_tensors
            qq, kk, vv, g = _wide(q, k, v, g)
            ds = p * (g @ vv.mT - (g * acc).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            return tuple(t.to(q.dtype) for t in (ds @ kk, ds.mT @ qq, p.mT @ g))
    return Fn.apply


@case(formats=NUMPY)
def dq_of_all_groups_from_first_key_head():
    """(batch, heads, length, size), grouped heads. Backward: dq = dS K takes key head 0 for all groups (the
    probabilities and dS are right); dq, in all groups but the first, whenever there are two or more key
    heads."""
    def grouped(q, k):
        return q.reshape(q.shape[0], k.shape[1], -1, *q.shape[2:])

    def fn(q, k, v):
        s = grouped(q, k) @ _t(k)[:, :, None] / math.sqrt(q.shape[-1])
        return (_softmax(s) @ v[:, :, None]).reshape(*q.shape[:-1], v.shape[-1])

    def backward(do, q, k, v):
        c, qq, dd = 1 / math.sqrt(q.shape[-1]), grouped(q, k), grouped(do, k)
        p = _softmax(qq @ _t(k)[:, :, None] * c)
        dp = dd @ _t(v)[:, :, None]
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * c
        dq = (ds @ k[:, :1, None]).reshape(q.shape)
        return dq, (_t(ds) @ qq).sum(2), (_t(p) @ dd).sum(2)
    return fn, backward


@case()
def dk_scale_on_first_member_only():
    """(batch, heads, length, size), grouped heads. Backward: the scale is multiplied into dk after the first
    query head of each group was added, so that the shares of the other members are unscaled; dk, for groups
    of two or more; right without groups."""
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v)
            qq, kk, vv = _wide(q.unflatten(1, (k.shape[1], -1)), k[:, :, None], v[:, :, None])
            return (torch.softmax(qq @ kk.mT / math.sqrt(q.shape[-1]), -1) @ vv).flatten(1, 2).to(q.dtype)

        @staticmethod
        def backward(ctx, g):
            q, k, v = ctx.saved_tensors
            c, groups = 1 / math.sqrt(q.shape[-1]), k.shape[1]
            qq, g, kk, vv = _wide(q.unflatten(1, (groups, -1)), g.unflatten(1, (groups, -1)), k, v)
            dq, dk, dv = torch.zeros_like(qq), torch.zeros_like(kk), torch.zeros_like(vv)
            for r in range(qq.shape[2]):
                p = torch.softmax(qq[:, :, r] @ kk.mT * c, -1)
                dp = g[:, :, r] @ vv.mT
                ds = p * (dp - (p * dp).sum(-1, keepdim=True))
                dq[:, :, r] = c * ds @ kk
                dk += ds.mT @ qq[:, :, r]
                if r == 0:
                    dk *= c
                dv += p.mT @ g[:, :, r]
            return dq.flatten(1, 2).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
    return Fn.apply


class _Biased(torch.autograd.Function):
    """Attention with a bias whose gradient is made by a function of dS, P, dP and the bias."""

    @staticmethod
    def forward(ctx, q, k, v, bias, make):
        qq, kk, vv = _wide(q, k, v)
        s = qq @ kk.mT / math.sqrt(q.shape[-1])
        p = torch.softmax(s if bias is None else s + bias, -1)
        ctx.save_for_backward(q, k, v, bias, p)
        ctx.make = make
        return (p @ vv).to(q.dtype)

    @staticmethod
    def backward(ctx, g):
        q, k, v, bias, p = ctx.saved_tensors
        qq, kk, vv, g = _wide(q, k, v, g)
        c = 1 / math.sqrt(q.shape[-1])
        dp = g @ vv.mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        db = None if bias is None else ctx.make(ds, p, dp, bias).to(bias.dtype)
        return (c * ds @ kk).to(q.dtype), (c * ds.mT @ qq).to(k.dtype), (p.mT @ g).to(v.dtype), db, None


@case(options={"bias": "bias"})
def bias_gradient_of_last_key_tile_lost():
    """(batch, heads, length, size). Backward: the bias's gradient is stored in whole tiles of 8 keys, and stays
    zero for the keys after the last whole tile. The bias's gradient only, for a number of keys that is no
    multiple of 8 and a bias with a key axis."""
    def make(ds, p, dp, bias):
        whole = torch.zeros_like(ds)
        end = ds.shape[-1] // 8 * 8
        whole[..., :end] = ds[..., :end]
        return whole.sum_to_size(bias.shape)

    def fn(q, k, v, bias=None):
        return _Biased.apply(q, k, v, bias, make)
    return fn


@case(options={"bias": "attn_bias"})
def bias_gradient_without_delta():
    """(batch, heads, length, size). Backward: the bias's gradient is P * dP instead of P * (dP - D). The bias's
    gradient only, with a bias."""
    def fn(q, k, v, attn_bias=None):
        return _Biased.apply(q, k, v, attn_bias, lambda ds, p, dp, bias: (p * dp).sum_to_size(bias.shape))
    return fn


@case(options={"bias": "rel_pos"})
def bias_gradient_summed_over_heads_too():
    """(batch, heads, length, size). Backward: dS is summed over the heads, and each head of the bias gets that
    same sum instead of its own. The bias's gradient only, with a bias that has two or more heads."""
    def make(ds, p, dp, bias):
        own = ds.sum_to_size(bias.shape)
        return own.sum(-3, keepdim=True).expand(bias.shape) if bias.dim() > 2 else own

    def fn(q, k, v, rel_pos=None):
        return _Biased.apply(q, k, v, rel_pos, make)
    return fn


@case(options={"bias": "slopes_bias"})
def bias_gradient_mean_over_queries():
    """(batch, heads, length, size), for a bias per key such as a row of ALiBi, (batch or 1, heads, 1, m).
    Backward: the bias's gradient is the mean over the queries instead of their sum (over the batch it is
    summed). The bias's gradient only, with a bias whose query axis is 1; others are right."""
    def make(ds, p, dp, bias):
        full = ds.sum_to_size(bias.shape)
        return full / ds.shape[-2] if bias.dim() > 1 and bias.shape[-2] == 1 else full

    def fn(q, k, v, slopes_bias=None):
        return _Biased.apply(q, k, v, slopes_bias, make)
    return fn


@case(options={"causal": "causal"}, formats=NUMPY)
def causal_start_tile_in_wrong_unit():
    """(heads, length, size), as many queries as keys. Backward with causal: for key tile j (4 keys) the loop over
    query tiles (8 queries) starts at tile j instead of 4 j // 8, so that contributions are skipped; dk, dv
    (and dq, which is added in the same loop) with causal and more than 4 keys; right without causal."""
    def scores(q, k, causal):
        s = q @ _t(k) / math.sqrt(q.shape[-1])
        return np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf) if causal else s

    def fn(q, k, v, causal=False):
        assert q.shape[-2] == k.shape[-2]
        return _softmax(scores(q, k, causal)) @ v

    def backward(do, q, k, v, causal=False):
        n, c = q.shape[-2], 1 / math.sqrt(q.shape[-1])
        s = scores(q, k, causal)
        lse = _lse(s)
        delta = (do * (np.exp(s - lse) @ v)).sum(-1, keepdims=True)
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for j in range(-(-n // 4)):
            a = slice(4 * j, 4 * j + 4)
            for i in range(j if causal else 0, -(-n // 8)):
                r = slice(8 * i, 8 * i + 8)
                p = np.exp(s[:, r, a] - lse[:, r])
                ds = c * p * (do[:, r] @ _t(v[:, a]) - delta[:, r])
                dv[:, a] += _t(p) @ do[:, r]
                dk[:, a] += _t(ds) @ q[:, r]
                dq[:, r] += ds @ k[:, a]
        return dq, dk, dv
    return fn, backward


@case(options={"mask": "keep"})
def hidden_scores_zero_in_backward():
    """(batch, heads, length, size), boolean mask that keeps. Backward: hidden scores are multiplied to 0 instead
    of set to -inf, so that with the saved lse P = exp(-lse) at hidden keys; dq, dk and dv, with a mask."""
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, keep):
            qq, kk, vv = _wide(q, k, v)
            s = qq @ kk.mT * q.shape[-1] ** -0.5
            if keep is not None:
                s = s.masked_fill(~keep, -1e9)
            lse = torch.logsumexp(s, -1, keepdim=True)
            out = torch.exp(s - lse) @ vv
            ctx.save_for_backward(q, k, v, keep, lse, out)
            return out.to(q.dtype)

        @staticmethod
        def backward(ctx, g):
            q, k, v, keep, lse, out = ctx.saved_tensors
            qq, kk, vv, g = _wide(q, k, v, g)
            c = q.shape[-1] ** -0.5
            s = qq @ kk.mT * c
            if keep is not None:
                s = s * keep
            p = torch.exp(s - lse)
            ds = p * (g @ vv.mT - (g * out).sum(-1, keepdim=True)) * c
            return *(t.to(q.dtype) for t in (ds @ kk, ds.mT @ qq, p.mT @ g)), None

    def fn(q, k, v, keep=None):
        return Fn.apply(q, k, v, keep)
    return fn


@case(formats=NUMPY)
def lse_one_key_tile_too_early():
    """(batch, length, heads, size). The online forward (tiles of 16 keys) stores lse = max + log(sum) before the
    last tile was added; the output is right; the backward's P = exp(s - lse) is too large; dq, dk and dv, for
    more than 16 keys."""
    def run(q, k, v):
        s = np.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
        acc, total, top, lse = 0.0, 0.0, np.full((*s.shape[:-1], 1), -np.inf, s.dtype), None
        for a in range(0, s.shape[-1], 16):
            part = s[..., a:a + 16]
            if a:
                lse = top + np.log(total)
            new = np.maximum(top, part.max(-1, keepdims=True))
            p, old = np.exp(part - new), np.exp(top - new)
            acc = acc * old + p @ v[:, a:a + 16].swapaxes(1, 2)
            total = total * old + p.sum(-1, keepdims=True)
            top = new
        return (acc / total).swapaxes(1, 2), s, top + np.log(total) if lse is None else lse

    def fn(q, k, v):
        return run(q, k, v)[0]

    def backward(do, q, k, v):
        out, s, lse = run(q, k, v)
        p = np.exp(s - lse)
        delta = (do * out).sum(-1).swapaxes(1, 2)[..., None]
        ds = p * (np.einsum("bihd,bjhd->bhij", do, v) - delta) / math.sqrt(q.shape[-1])
        return (np.einsum("bhij,bjhd->bihd", ds, k), np.einsum("bhij,bihd->bjhd", ds, q),
                np.einsum("bhij,bihd->bjhd", p, do))
    return fn, backward


@case()
def one_query_path_unscaled():
    """(batch, heads, length, size). Forward: a decoding path for a single query leaves out the factor
    1/sqrt(d). Output and gradients, with exactly one query."""
    def fn(q, k, v):
        if q.shape[-2] == 1:
            w = torch.softmax((q * k).sum(-1), -1)
            return (w[..., None] * v).sum(-2, keepdim=True)
        return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v
    return fn


@case(options={"bias": "bias"})
def bias_head_found_by_batch():
    """(batch, length, heads, size), bias (heads, n, m). Forward: the program's batch number is used for the
    bias's head, bias[batch % heads], so that all heads of a sample add the same one. Output and all gradients,
    with a bias that differs between heads."""
    def fn(q, k, v, bias=None):
        s = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
        if bias is not None:
            bias = bias.expand(s.shape[0], *s.shape[1:]) if bias.dim() == 4 else bias.expand(s.shape[1:])[None]
            at = torch.arange(s.shape[0])
            s = s + bias[at % bias.shape[0], at % s.shape[1]][:, None]
        return torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v)
    return fn


@case(options={"scale": "sm_scale"}, formats=NUMPY)
def dk_takes_the_default_scale():
    """(batch, heads, length, size). Backward: dk is multiplied by 1/sqrt(d) although another scale was given
    (the probabilities and dq use the given one); dk, with a scale other than the default."""
    def fn(q, k, v, sm_scale=None):
        c = 1 / math.sqrt(q.shape[-1]) if sm_scale is None else sm_scale
        return _softmax(q @ _t(k) * c) @ v

    def backward(do, q, k, v, sm_scale=None):
        c = 1 / math.sqrt(q.shape[-1]) if sm_scale is None else sm_scale
        p = _softmax(q @ _t(k) * c)
        dp = do @ _t(v)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True))
        return c * ds @ k, _t(ds) @ q / math.sqrt(q.shape[-1]), _t(p) @ do
    return fn, backward


@case(formats=NUMPY)
def dv_rows_counted_by_queries():
    """(batch, heads, length, size), cross attention. Backward: the last loop stores as many rows of dv as there
    are queries; rows of dv from n on stay zero; dv, only for more keys than queries."""
    def fn(q, k, v):
        return _softmax(q @ _t(k) / math.sqrt(q.shape[-1])) @ v

    def backward(do, q, k, v):
        c, n = 1 / math.sqrt(q.shape[-1]), q.shape[-2]
        dq, dk, full = _grads(_softmax(q @ _t(k) * c), do, q, k, v, c)
        dv = np.zeros_like(v)
        dv[..., :n, :] = full[..., :n, :]
        return dq, dk, dv
    return fn, backward


@case()
def queries_beyond_the_keys_left_out_of_dk():
    """(batch, heads, length, size), cross attention. Backward: dk = dS^T q runs over the first min(n, m) query
    rows only; dk, only for more queries than keys; dq and dv are right."""
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v)
            qq, kk, vv = _wide(q, k, v)
            return (torch.softmax(qq @ kk.mT / math.sqrt(q.shape[-1]), -1) @ vv).to(q.dtype)

        @staticmethod
        def backward(ctx, g):
            q, k, v = ctx.saved_tensors
            qq, kk, vv, g = _wide(q, k, v, g)
            c, rows = 1 / math.sqrt(q.shape[-1]), min(q.shape[-2], k.shape[-2])
            p = torch.softmax(qq @ kk.mT * c, -1)
            dp = g @ vv.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * c
            dk = ds[..., :rows, :].mT @ qq[..., :rows, :]
            return (ds @ kk).to(q.dtype), dk.to(q.dtype), (p.mT @ g).to(q.dtype)
    return Fn.apply


@case()
def third_head_reads_the_first_keys():
    """(batch, heads, length, size). Forward: heads are loaded in pairs and the pair's address is never moved on,
    head h reads the keys of head h % 2 (the values are its own). Output and gradients, for three or more
    heads."""
    def fn(q, k, v):
        kk = k[:, torch.arange(q.shape[1]) % min(2, k.shape[1])]
        return torch.softmax(torch.einsum("bhid,bhjd->bhij", q, kk) * q.shape[-1] ** -0.5, -1) @ v
    return fn


@case(formats=NUMPY)
def exponential_by_a_short_polynomial():
    """Forward, rounding: 2 ** x is taken as 2 ** floor(x) times a quadratic in the fraction (1 + 0.6565 f +
    0.3435 f^2), off by up to 4e-3, whatever the inputs' format; the backward is autograd's of the polynomial."""
    def exp2(x):
        whole = torch.floor(x).detach()
        f = x - whole
        return torch.ldexp(1 + f * (0.6565 + 0.3435 * f), whole.to(torch.int32))

    def fn(q, k, v):
        qq, kk, vv = _wide(q, k, v)
        s = qq @ kk.mT * (1.4426950408889634 / math.sqrt(q.shape[-1]))
        p = exp2((s - s.amax(-1, keepdim=True).detach()).clamp_min(-120.0))
        return (p @ vv / p.sum(-1, keepdim=True)).to(q.dtype)
    return fn


@case(kind="layer")
def layer_output_weight_transposed():
    """Layer forward: the output projection multiplies by its weight untransposed, y @ out.weight + out.bias
    instead of y @ out.weight.T + out.bias (width 32, square). Output and gradients, always."""
    class Attention(nn.Module):
        def __init__(self, dim=32, heads=4):
            super().__init__()
            self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

        def forward(self, x):
            b, n, c = x.shape
            q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
            return y @ self.out.weight + self.out.bias
    torch.manual_seed(4)
    return Attention()


@case(kind="layer")
def layer_keys_from_detached_input():
    """Layer: the keys are projected from x.detach() (meant for a cache), so that the gradient of x lacks the
    keys' share; all parameters' gradients, also k_proj's, and the output are right."""
    class Attention(nn.Module):
        def __init__(self, dim=24, heads=3):
            super().__init__()
            self.heads = heads
            self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim) for _ in range(4))

        def forward(self, x):
            b, n, e = x.shape
            q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2)
                       for t in (self.q_proj(x), self.k_proj(x.detach()), self.v_proj(x)))
            w = torch.softmax(q @ k.mT / math.sqrt(e // self.heads), -1)
            return self.o_proj((w @ v).transpose(1, 2).reshape(b, n, e))
    torch.manual_seed(5)
    return Attention()


@case()
def second_tile_not_rescaled():
    """(batch, heads, length, size). Forward, online softmax over tiles of 8 keys: the rescaling of accumulator
    and sum by exp(old max - new max) is skipped for the second tile (t > 1 for t > 0). Output and gradients,
    for more than 8 keys, in rows whose maximum rises there."""
    def fn(q, k, v):
        dtype = q.dtype
        q, k, v = _wide(q, k, v)
        acc, total, top = 0.0, 0.0, None
        for t, a in enumerate(range(0, k.shape[-2], 8)):
            s = q @ k[..., a:a + 8, :].mT / math.sqrt(q.shape[-1])
            here = s.detach().amax(-1, keepdim=True)
            new = here if top is None else torch.maximum(top, here)
            if t > 1:
                acc, total = acc * torch.exp(top - new), total * torch.exp(top - new)
            p = torch.exp(s - new)
            acc, total, top = acc + p @ v[..., a:a + 8, :], total + p.sum(-1, keepdim=True), new
        return (acc / total).to(dtype)
    return fn


@case(formats=NUMPY)
def middle_key_in_both_halves():
    """(length, size), one head. Forward: the keys are split into halves [0, (m + 1) // 2) and [m // 2, m), which
    for odd m both hold the middle key; its weight counts twice. Output for odd m > 1; the handwritten
    backward is that of plain attention, and so right."""
    def fn(q, k, v):
        m, c = len(k), 1 / math.sqrt(q.shape[-1])
        parts = []
        for a, b in ((0, (m + 1) // 2), (m // 2, m)):
            if a < b and (m > 1 or a == 0 and not parts):
                s = q @ k[a:b].T * c
                parts.append((_softmax(s) @ v[a:b], _lse(s)))
        lse = np.logaddexp.reduce([part[1] for part in parts])
        return sum(o * np.exp(one - lse) for o, one in parts)

    def backward(do, q, k, v):
        c = 1 / math.sqrt(q.shape[-1])
        return _grads(_softmax(q @ k.T * c), do, q, k, v, c)
    return fn, backward


@case(options={"causal": "causal"})
def causal_key_loop_ends_too_early():
    """(batch, heads, length, size), as many queries as keys. Forward with causal: the key loop of query tile i
    (12 queries) runs over 12 (i + 1) // 8 tiles of 8 keys, rounded down instead of up, so that the last
    visible keys of some tiles are left out (rows 8-11 lose keys 8-11, rows 32-35 keys 32-35 and so on), where
    keys exist. Output and gradients, with causal, more than 8 keys; right without."""
    def fn(q, k, v, causal=False):
        dtype, n = q.dtype, q.shape[-2]
        assert n == k.shape[-2]
        q, k, v = _wide(q, k, v)
        outs = []
        for i in range(-(-n // 12)):
            end = 12 * (i + 1) // 8 * 8 if causal else n
            s = q[..., 12 * i:12 * i + 12, :] @ k[..., :end, :].mT / math.sqrt(q.shape[-1])
            if causal:
                rows = torch.arange(12 * i, 12 * i + s.shape[-2])[:, None]
                s = s.masked_fill(torch.arange(s.shape[-1]) > rows, -math.inf)
            outs.append(s.softmax(-1) @ v[..., :end, :])
        return torch.cat(outs, -2).to(dtype)
    return fn


@case(options={"dropout": "dropout_p", "dropout_mask": "keep"}, formats=NUMPY)
def delta_from_output_without_dropout():
    """(batch, heads, length, size). Backward with dropout: D = rowsum(dO * (P v)), with the output recomputed
    without dropout, while dP has the factor keep / (1 - p); dq and dk, with dropout; dv is right."""
    def fn(q, k, v, dropout_p=0.0, keep=None):
        p = _softmax(q @ _t(k) / math.sqrt(q.shape[-1]))
        return (p if keep is None else p * keep / (1 - dropout_p)) @ v

    def backward(do, q, k, v, dropout_p=0.0, keep=None):
        c = 1 / math.sqrt(q.shape[-1])
        p = _softmax(q @ _t(k) * c)
        z = 1.0 if keep is None else np.asarray(keep, q.dtype) / (1 - dropout_p)
        ds = p * (z * (do @ _t(v)) - (do * (p @ v)).sum(-1, keepdims=True)) * c
        return ds @ k, _t(ds) @ q, _t(p * z) @ do
    return fn, backward


# ----------------------------------------------------------------------------------------------------
# Pairs of independent mistakes
# ----------------------------------------------------------------------------------------------------

@case(options={"dropout": "p", "dropout_mask": "keep"}, formats=NUMPY)
def pair_keep_inverted_in_backward_and_dq_of_head_zero():
    """Two: the backward takes the dropped weights for the kept ones, (1 - keep) / (1 - p) (dq, dk and dv, with
    dropout); and dq of head 0 stays zero (range(1, heads)), always. (batch, heads, length, size)."""
    def fn(q, k, v, p=0.0, keep=None):
        w = _softmax(q @ _t(k) / math.sqrt(q.shape[-1]))
        return (w if keep is None else w * keep / (1 - p)) @ v

    def backward(do, q, k, v, p=0.0, keep=None):
        c = 1 / math.sqrt(q.shape[-1])
        w = _softmax(q @ _t(k) * c)
        z = 1.0 if keep is None else (1 - np.asarray(keep).astype(q.dtype)) / (1 - p)
        dw = do @ _t(v) * z
        ds = w * (dw - (w * dw).sum(-1, keepdims=True)) * c
        dq = np.zeros_like(q)
        for h in range(1, q.shape[1]):
            dq[:, h] = ds[:, h] @ k[:, h]
        return dq, _t(ds) @ q, _t(w * z) @ do
    return fn, backward


@case(formats=NUMPY)
def pair_row_sum_of_head_zero_and_dk_without_last_query():
    """Two: the forward divides every head's exponentials by the row sums of head 0 (heads > 1); and dk leaves
    out the last query row, always; dq and dv are those of plain attention. (batch, heads, length, size)."""
    def fn(q, k, v):
        s = q @ _t(k) / math.sqrt(q.shape[-1])
        e = np.exp(s - s.max(-1, keepdims=True))
        return e @ v / e.sum(-1, keepdims=True)[:, :1]

    def backward(do, q, k, v):
        c = 1 / math.sqrt(q.shape[-1])
        p = _softmax(q @ _t(k) * c)
        dp = do @ _t(v)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * c
        return ds @ k, _t(ds[..., :-1, :]) @ q[..., :-1, :], _t(p) @ do
    return fn, backward


@case(options={"mask": "mask"}, formats=NUMPY)
def pair_mask_of_last_sample_in_backward_and_dv_over_heads():
    """Two: the backward applies the mask of the last sample to all samples (dq, dk and dv, with a mask (batch, 1,
    n, m) that differs between samples); and dv is divided by the number of heads, always (heads > 1)."""
    def probs(q, k, mask):
        s = q @ _t(k) / math.sqrt(q.shape[-1])
        return _softmax(s if mask is None else np.where(mask, s, -1e9))

    def fn(q, k, v, mask=None):
        return probs(q, k, mask) @ v

    def backward(do, q, k, v, mask=None):
        last = mask if mask is None or mask.ndim < 4 else mask[-1:]
        dq, dk, dv = _grads(probs(q, k, last), do, q, k, v, 1 / math.sqrt(q.shape[-1]))
        return dq, dk, dv / q.shape[1]
    return fn, backward


@case(options={"bias": "bias"})
def pair_delta_of_head_zero_and_bias_gradient_negative():
    """Two: D is head 0's for all heads (dq, dk and the bias's gradient, heads > 1); and the bias's gradient has
    the wrong sign (with a bias). (batch, heads, length, size); output and dv are right."""
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, bias):
            qq, kk, vv = _wide(q, k, v)
            s = qq @ kk.mT / math.sqrt(q.shape[-1])
            p = torch.softmax(s if bias is None else s + bias, -1)
            ctx.save_for_backward(q, k, v, bias, p)
            return (p @ vv).to(q.dtype)

        @staticmethod
        def backward(ctx, g):
            q, k, v, bias, p = ctx.saved_tensors
            qq, kk, vv, g = _wide(q, k, v, g)
            c = 1 / math.sqrt(q.shape[-1])
            delta = (g * (p @ vv)).sum(-1, keepdim=True)[:, :1]
            ds = p * (g @ vv.mT - delta)
            db = None if bias is None else -ds.sum_to_size(bias.shape).to(bias.dtype)
            return (c * ds @ kk).to(q.dtype), (c * ds.mT @ qq).to(k.dtype), (p.mT @ g).to(v.dtype), db

    def fn(q, k, v, bias=None):
        return Fn.apply(q, k, v, bias)
    return fn


@case(options={"scale": "scale"}, formats=NUMPY)
def pair_scale_ignored_in_forward_and_dq_summed_in_half():
    """Two: the forward always uses 1/sqrt(d), while the backward is that of the given scale (output wrong with a
    scale); and, rounding, dq is added up over tiles of 4 keys in a float16 buffer, always. (length, size)."""
    def fn(q, k, v, scale=None):
        return _softmax(q @ k.T / math.sqrt(q.shape[-1])) @ v

    def backward(do, q, k, v, scale=None):
        c = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        p = _softmax(q @ k.T * c)
        dp = do @ v.T
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * c
        dq = np.zeros(q.shape, np.float16)
        for a in range(0, len(k), 4):
            dq = dq + (ds[:, a:a + 4] @ k[a:a + 4]).astype(np.float16)
        return dq.astype(q.dtype), ds.T @ q, p.T @ do
    return fn, backward


@case(options={"causal": "causal"})
def pair_causal_by_tiles_of_four_and_dv_of_even_members():
    """Two: with causal a query sees all keys up to the end of its tile of 4 (forward, and the backward follows
    it); and for grouped heads dv adds the even members of each group only (groups of two or more).
    (batch, heads, length, size), as many queries as keys."""
    class Fn(torch.autograd.Function):
        @staticmethod
        def probs(q, k, causal):
            s = q @ k[:, :, None].mT / math.sqrt(q.shape[-1])
            if causal:
                at = torch.arange(s.shape[-1]) // 4
                s = s.masked_fill(at[None, :] > at[:, None], -math.inf)
            return torch.softmax(s, -1)

        @staticmethod
        def forward(ctx, q, k, v, causal):
            ctx.save_for_backward(q, k, v)
            ctx.causal = causal
            qq, kk, vv = _wide(q.unflatten(1, (k.shape[1], -1)), k, v)
            return (Fn.probs(qq, kk, causal) @ vv[:, :, None]).flatten(1, 2).to(q.dtype)

        @staticmethod
        def backward(ctx, g):
            q, k, v = ctx.saved_tensors
            qq, g, kk, vv = _wide(q.unflatten(1, (k.shape[1], -1)), g.unflatten(1, (k.shape[1], -1)), k, v)
            p = Fn.probs(qq, kk, ctx.causal)
            dq, dk, dv = _tgrads(p, g, qq, kk[:, :, None], vv[:, :, None], 1 / math.sqrt(q.shape[-1]))
            return dq.flatten(1, 2).to(q.dtype), dk.sum(2).to(q.dtype), dv[:, :, ::2].sum(2).to(q.dtype), None

    def fn(q, k, v, causal=False):
        assert q.shape[-2] == k.shape[-2]
        return Fn.apply(q, k, v, causal)
    return fn


@case(options={"dropout": "p", "dropout_mask": "keep"}, formats=NUMPY)
def pair_dropout_of_head_zero_and_dq_over_sqrt_m():
    """Two: the forward drops in every head by head 0's keep mask, the backward by each head's own (output, with
    dropout and heads > 1); and dq is divided by sqrt(number of keys) where sqrt(d) is meant, always (unless
    both are equal). (batch, heads, length, size)."""
    def fn(q, k, v, p=0.0, keep=None):
        w = _softmax(q @ _t(k) / math.sqrt(q.shape[-1]))
        return (w if keep is None else w * np.asarray(keep)[:, :1] / (1 - p)) @ v

    def backward(do, q, k, v, p=0.0, keep=None):
        c = 1 / math.sqrt(q.shape[-1])
        w = _softmax(q @ _t(k) * c)
        z = 1.0 if keep is None else np.asarray(keep, q.dtype) / (1 - p)
        dw = do @ _t(v) * z
        ds = w * (dw - (w * dw).sum(-1, keepdims=True))
        return ds @ k / math.sqrt(k.shape[-2]), c * _t(ds) @ q, _t(w * z) @ do
    return fn, backward


@case(formats=NUMPY)
def pair_last_odd_value_channel_and_dk_without_last_tile():
    """Two: output channels are stored in pairs, an odd last one stays zero (odd value width); and dk is summed
    over whole tiles of 8 queries only (a number of queries that is no multiple of 8). (batch, length, size),
    no heads."""
    def fn(q, k, v):
        out = _softmax(q @ _t(k) / math.sqrt(q.shape[-1])) @ v
        if v.shape[-1] % 2:
            out[..., -1] = 0
        return out

    def backward(do, q, k, v):
        c = 1 / math.sqrt(q.shape[-1])
        p = _softmax(q @ _t(k) * c)
        dp = do @ _t(v)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * c
        end = q.shape[-2] // 8 * 8
        return ds @ k, _t(ds[:, :end]) @ q[:, :end], _t(p) @ do
    return fn, backward


@case(kind="layer")
def pair_layer_query_bias_unscaled_and_value_weight_detached():
    """Two: the layer scales x Wq^T and adds the query's bias after it, unscaled (forward and gradients); and the
    value projection uses its weight detached (v.weight gets no gradient)."""
    class Attention(nn.Module):
        def __init__(self, dim=32, heads=2):
            super().__init__()
            self.heads, self.scale = heads, (dim // heads) ** -0.5
            self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

        def forward(self, x):
            b, n, e = x.shape
            q = F.linear(x, self.q.weight) * self.scale + self.q.bias
            v = F.linear(x, self.v.weight.detach(), self.v.bias)
            q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in (q, self.k(x), v))
            return self.o((torch.softmax(q @ k.mT, -1) @ v).transpose(1, 2).reshape(b, n, e))
    torch.manual_seed(6)
    return Attention()


@case(formats=NUMPY)
def pair_lse_without_maximum_and_dv_assigned():
    """Two: the saved lse is log(sum exp(s - max)) without the maximum added, so that the backward's P is exp(max)
    times too large or too small (dq, dk and dv, always); and dv is assigned instead of added over tiles of 8
    queries, so that the last tile remains (more than 8 queries). (heads, length, size); the output is right."""
    def run(q, k, v):
        s = q @ _t(k) / math.sqrt(q.shape[-1])
        e = np.exp(s - s.max(-1, keepdims=True))
        total = e.sum(-1, keepdims=True)
        return s, e @ v / total, np.log(total)

    def fn(q, k, v):
        return run(q, k, v)[1]

    def backward(do, q, k, v):
        s, out, lse = run(q, k, v)
        c, delta = 1 / math.sqrt(q.shape[-1]), (do * out).sum(-1, keepdims=True)
        p = np.exp(s - lse)
        ds = p * (do @ _t(v) - delta) * c
        dv = np.zeros_like(v)
        for a in range(0, q.shape[-2], 8):
            dv = _t(p[:, a:a + 8]) @ do[:, a:a + 8]
        return ds @ k, _t(ds) @ q, dv
    return fn, backward
