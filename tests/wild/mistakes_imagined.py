"""Attention functions with one mistake each, and with two at once (pair_...), thought up by hand."""

import math
from itertools import product

import numpy as np
import torch
from torch import Tensor

from cases import collection

CASES, case = collection()

NUMPY = ("float64", "float32")
WIDE = ("float64", "float32")


def np_softmax(s, axis=-1):
    e = np.exp(s - s.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def work(*tensors):
    """Half formats are computed in float32, float64 stays."""
    return [t if t.dtype == torch.float64 else t.float() for t in tensors]


# ---------------------------------------------------------------- scores and scale


@case()
def scale_of_all_heads():
    """Forward: the scores are divided by sqrt(heads * head width) (the model width) instead of sqrt(head
    width); layout (batch, n, heads, d). Wrong when there is more than one head."""

    def attend(q, k, v):
        b, n, h, d = q.shape
        width = h * d
        s = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(width)
        return torch.einsum("bhnm,bmhd->bnhd", s.softmax(-1), v)

    return attend


@case(options={"scale": "scale"})
def scale_applied_twice():
    """Forward: q is multiplied by the scale beforehand and the scores once more."""

    def fn(q, k, v, scale=None):
        scale = q.size(-1) ** -0.5 if scale is None else scale
        q = q * scale
        scores = torch.matmul(q, k.transpose(-2, -1)) * scale
        return torch.matmul(torch.softmax(scores, dim=-1), v)

    return fn


@case(formats=NUMPY)
def scale_from_the_value_width():
    """The scale is 1/sqrt(d_v) instead of 1/sqrt(d), in forward and backward alike; wrong only where d_v
    differs from d."""

    def probabilities(q, k, v):
        return np_softmax(q @ np.swapaxes(k, -1, -2) / math.sqrt(v.shape[-1]))

    def fn(q, k, v):
        assert q.shape[:-2] == k.shape[:-2], "unequal heads"
        return probabilities(q, k, v) @ v

    def backward(do, q, k, v):
        p = probabilities(q, k, v)
        dv = np.swapaxes(p, -1, -2) @ do
        dp = do @ np.swapaxes(v, -1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / math.sqrt(v.shape[-1])
        return ds @ k, np.swapaxes(ds, -1, -2) @ q, dv

    return fn, backward


@case(options={"bias": "bias", "causal": "causal"})
def bias_added_before_the_scale():
    """Forward: the bias is added to the raw scores and so scaled with them; wrong only when a bias is
    given."""

    def fn(q, k, v, bias=None, causal=False):
        s = q @ k.mT
        if bias is not None:
            s = s + bias
        s = s / q.shape[-1] ** 0.5
        if causal:
            n, m = s.shape[-2:]
            s = s.masked_fill(torch.arange(m) > torch.arange(n)[:, None], -torch.inf)
        return s.softmax(-1) @ v

    return fn


@case()
def head_width_tail_forgotten():
    """Forward: the scores are summed over whole groups of eight channels only; wrong when d > 8 is no
    multiple of 8."""

    def fn(q, k, v):
        d = q.shape[-1]
        s = 0
        for c in range(0, d - 7, 8) if d >= 8 else [0]:
            s = s + q[..., c:c + 8] @ k[..., c:c + 8].transpose(-1, -2)
        p = torch.softmax(s * d ** -0.5, dim=-1)
        return p @ v

    return fn


@case()
def keys_reshaped_for_transposed():
    """Forward: K is brought to (d, m) by a reshape of its memory instead of a transpose."""

    def fn(q, k, v):
        b, h, m, d = k.shape
        kt = k.reshape(b, h, d, m)
        att = (q @ kt) / math.sqrt(d)
        att = att - att.amax(-1, keepdim=True)
        att = att.exp()
        return (att / att.sum(-1, keepdim=True)) @ v

    return fn


@case(options={"scale": "sm_scale"})
def exp2_without_log2e():
    """Forward: exp2 is taken of the scaled scores that were not multiplied by log2(e), so that the softmax
    has base two; the handwritten backward is right."""

    def fn(q, k, v, sm_scale=None):
        assert q.shape[:-2] == k.shape[:-2]
        sm_scale = sm_scale or 1.0 / math.sqrt(q.shape[-1])
        s = torch.einsum("...nd,...md->...nm", q, k) * sm_scale
        p = torch.exp2(s - s.max(-1, keepdim=True).values)
        return torch.einsum("...nm,...md->...nd", p / p.sum(-1, keepdim=True), v)

    def backward(do, q, k, v, sm_scale=None):
        sm_scale = sm_scale or 1.0 / math.sqrt(q.shape[-1])
        s = torch.einsum("...nd,...md->...nm", q, k) * (sm_scale * 1.4426950408889634)
        p = torch.exp2(s - s.max(-1, keepdim=True).values)
        p = p / p.sum(-1, keepdim=True)
        dv = torch.einsum("...nm,...nd->...md", p, do)
        dp = torch.einsum("...nd,...md->...nm", do, v)
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * sm_scale
        return torch.einsum("...nm,...md->...nd", ds, k), torch.einsum("...nm,...nd->...md", ds, q), dv

    return fn, backward


@case(formats=("float32",), options={"scale": "scale"})
def no_maximum_subtracted():
    """Forward: exp is taken of the scores without subtracting the row maximum; overflows (inf/inf) for
    large scores, right for small ones."""

    def fn(q, k, v, scale=None):
        w = torch.exp(q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5))
        return (w @ v) / w.sum(-1, keepdim=True)

    return fn


@case(formats=WIDE)
def scores_rounded_to_half():
    """Forward: the scores are rounded to float16 before the softmax, although the inputs are wider."""

    def fn(q, k, v):
        s = (q / q.shape[-1] ** 0.5) @ k.transpose(-1, -2)
        s = s.half().to(q.dtype)
        return s.softmax(-1) @ v

    return fn


# ---------------------------------------------------------------- softmax, mask, causal


@case(formats=NUMPY)
def softmax_over_the_queries():
    """The softmax is taken along the query axis instead of the key axis, in forward and backward alike."""

    def probs(q, k):
        return np_softmax(np.einsum("...id,...jd->...ij", q, k) * q.shape[-1] ** -0.5, axis=-2)

    def fn(q, k, v):
        assert q.shape[:-2] == k.shape[:-2]
        return np.einsum("...ij,...jd->...id", probs(q, k), v)

    def backward(do, q, k, v):
        p = probs(q, k)
        dp = np.einsum("...id,...jd->...ij", do, v)
        ds = p * (dp - (p * dp).sum(-2, keepdims=True)) * q.shape[-1] ** -0.5
        return (np.einsum("...ij,...jd->...id", ds, k), np.einsum("...ij,...id->...jd", ds, q),
                np.einsum("...ij,...id->...jd", p, do))

    return fn, backward


@case(options={"causal": "is_causal"})
def online_output_not_rescaled():
    """Forward: when a later key tile (32 keys) raises the row maximum, the accumulated output is not
    multiplied by exp(old maximum - new maximum), the row sum is; wrong for more than 32 keys."""

    def fn(q, k, v, is_causal=False):
        kind = q.dtype
        q, k, v = work(q, k, v)
        n, m = q.shape[-2], k.shape[-2]
        top = torch.full((*q.shape[:-1], 1), -1e30, dtype=q.dtype)
        den = torch.zeros_like(top)
        acc = q.new_zeros(*q.shape[:-1], v.shape[-1])
        for j in range(0, m, 32):
            s = q @ k[..., j:j + 32, :].mT * q.shape[-1] ** -0.5
            if is_causal:
                later = torch.arange(j, min(j + 32, m))[None, :] > torch.arange(n)[:, None]
                s = s.masked_fill(later, -torch.inf)
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            p = (s - new).exp()
            den = den * (top - new).exp() + p.sum(-1, keepdim=True)
            acc = acc + p @ v[..., j:j + 32, :]
            top = new
        return (acc / den).to(kind)

    return fn


@case(formats=NUMPY)
def online_sum_not_rescaled():
    """Forward: when a later key tile (16 keys) raises the row maximum, the running row sum is not rescaled,
    the accumulated output is; wrong for more than 16 keys. The handwritten backward is right."""
    tile = 16

    def forward_one(q, k, v):
        n, d = q.shape
        o = np.zeros((n, v.shape[1]), q.dtype)
        for i in range(n):
            m_i, l_i, acc = -np.inf, 0.0, np.zeros(v.shape[1], q.dtype)
            for t in range(0, len(k), tile):
                s = k[t:t + tile] @ q[i] / math.sqrt(d)
                m_new = max(m_i, s.max())
                e = np.exp(s - m_new)
                l_i = l_i + e.sum()
                acc = acc * np.exp(m_i - m_new) + e @ v[t:t + tile]
                m_i = m_new
            o[i] = acc / l_i
        return o

    def fn(q, k, v):
        out = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
        for at in np.ndindex(q.shape[:-2]):
            out[at] = forward_one(q[at], k[at], v[at])
        return out

    def backward(do, q, k, v):
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for at in np.ndindex(q.shape[:-2]):
            r = 1 / math.sqrt(q.shape[-1])
            p = np_softmax(q[at] @ k[at].T * r)
            dv[at] = p.T @ do[at]
            dp = do[at] @ v[at].T
            ds = p * (dp - np.sum(p * dp, axis=1)[:, None])
            dq[at], dk[at] = r * ds @ k[at], r * ds.T @ q[at]
        return dq, dk, dv

    return fn, backward


@case(options={"causal": "causal"})
def causal_shows_one_key_of_the_future():
    """Forward: the causal triangle begins one diagonal too late, so that query i also sees key i + 1; wrong
    only with causal."""

    def fn(q, k, v, causal=False):
        a = torch.baddbmm(q.new_zeros(()), q.flatten(0, -3), k.flatten(0, -3).mT, alpha=q.shape[-1] ** -0.5)
        if causal:
            hidden = torch.ones(a.shape[-2:], dtype=torch.bool).triu(2)
            a = a.masked_fill(hidden, float("-inf"))
        return torch.bmm(a.softmax(-1), v.flatten(0, -3)).view(*q.shape[:-1], v.shape[-1])

    return fn


@case(options={"causal": "causal"})
def causal_with_local_query_positions():
    """Forward: in the query tiles (16 rows) the causal comparison uses the row's number inside its tile
    instead of its position; wrong with causal from query 16 on."""

    def fn(q, k, v, causal=False):
        rows = []
        for i in range(0, q.shape[-2], 16):
            part = q[..., i:i + 16, :]
            s = part @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            if causal:
                r = torch.arange(part.shape[-2]).unsqueeze(1)
                s = torch.where(r >= torch.arange(k.shape[-2]), s, torch.tensor(-math.inf, dtype=s.dtype))
            rows.append(torch.softmax(s, -1) @ v)
        return torch.cat(rows, dim=-2)

    return fn


@case()
def last_partial_key_tile_skipped():
    """Forward: the loop over key tiles (8 keys) runs m // 8 times, so that the last partial tile is left
    out (in less than 8 keys nothing is); wrong when m > 8 is no multiple of 8."""

    def fn(q, k, v):
        m = k.size(-2)
        nblocks = max(m // 8, 1)
        blocks = [q @ k[..., 8 * t:8 * t + 8, :].transpose(-2, -1) for t in range(nblocks)]
        p = torch.softmax(torch.cat(blocks, -1) * q.size(-1) ** -0.5, -1)
        return p @ v[..., :p.size(-1), :]

    return fn


@case(formats=NUMPY)
def padded_keys_take_part():
    """Forward: keys and values are padded with zeros to a multiple of 16 and the padded keys are not
    masked, so that their exp(0) joins the row sum; wrong when m is no multiple of 16. The handwritten
    backward is right."""

    def fn(q, k, v):
        if q.shape[:-2] != k.shape[:-2]:
            raise ValueError("as many key heads as query heads")
        m = k.shape[-2]
        extra = -m % 16
        pad = [(0, 0)] * (k.ndim - 2) + [(0, extra), (0, 0)]
        kp, vp = np.pad(k, pad), np.pad(v, pad)
        return np_softmax(q @ kp.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ vp

    def backward(do, q, k, v):
        r = 1 / math.sqrt(q.shape[-1])
        p = np_softmax(q @ k.swapaxes(-1, -2) * r)
        o = p @ v
        delta = (do * o).sum(-1, keepdims=True)
        ds = p * (do @ v.swapaxes(-1, -2) - delta) * r
        return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do

    return fn, backward


@case(formats=WIDE)
def epsilon_far_too_large():
    """Forward: 1e-2 is added to the row sum (meant was 1e-12), so that every output is a little too
    small."""

    def fn(q, k, v):
        s = torch.einsum("bhid,bhjd->bhij", q, k).div(math.sqrt(q.shape[-1]))
        e = torch.exp(s - s.detach().amax(-1, keepdim=True))
        return torch.einsum("bhij,bhjd->bhid", e / (e.sum(-1, keepdim=True) + 1e-2), v)

    return fn


@case(options={"mask": "mask"})
def mask_after_the_softmax():
    """Forward: the boolean mask (True keeps) sets probabilities to zero after the softmax, without
    normalizing again; wrong only with a mask."""

    def fn(q, k, v, mask=None):
        p = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1)
        if mask is not None:
            p = p * mask.to(p.dtype)
        return p @ v

    return fn


@case(options={"mask": "keep"}, formats=WIDE)
def masked_scores_are_minus_ten():
    """Forward: hidden scores are set to -10 (a typing error for -1e10), so that masked keys keep a little
    weight; wrong only with a mask (True keeps)."""

    def fn(q, k, v, keep=None):
        s = q @ k.mT * q.shape[-1] ** -0.5
        if keep is not None:
            s = s.masked_fill(~keep, -10.0)
        s = s - s.logsumexp(-1, keepdim=True)
        return s.exp() @ v

    return fn


@case(options={"mask": "mask"}, formats=NUMPY)
def mask_on_the_first_head_only():
    """Forward: in the loop over heads the mask (True keeps) is applied for head 0 only; wrong with a mask
    and more than one head. The handwritten backward masks all heads."""

    def p_of(q, k, mask):
        s = q @ k.T / math.sqrt(q.shape[-1])
        if mask is not None:
            s = np.where(mask, s, -1e30)
        return np_softmax(s)

    def fn(q, k, v, mask=None):
        B, H = q.shape[:2]
        if mask is not None:
            mask = np.broadcast_to(mask, (B, H, q.shape[2], k.shape[2]))
        o = np.empty(q.shape[:3] + v.shape[3:], q.dtype)
        for b, h in product(range(B), range(H)):
            o[b, h] = p_of(q[b, h], k[b, h], mask[b, h] if mask is not None and h == 0 else None) @ v[b, h]
        return o

    def backward(do, q, k, v, mask=None):
        B, H = q.shape[:2]
        if mask is not None:
            mask = np.broadcast_to(mask, (B, H, q.shape[2], k.shape[2]))
        dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)
        for b, h in product(range(B), range(H)):
            p = p_of(q[b, h], k[b, h], None if mask is None else mask[b, h])
            dv[b, h] = p.T @ do[b, h]
            dp = do[b, h] @ v[b, h].T
            ds = p * (dp - (p * dp).sum(1, keepdims=True)) / math.sqrt(q.shape[-1])
            dq[b, h] = ds @ k[b, h]
            dk[b, h] = ds.T @ q[b, h]
        return dq, dk, dv

    return fn, backward


@case(options={"causal": "causal", "bias": "attn_bias"})
def bias_of_head_zero_for_all():
    """Forward: every head adds the bias of head 0; wrong only with a bias that differs between heads."""

    def fn(q, k, v, causal=False, attn_bias=None):
        outs = []
        for h in range(q.shape[1]):
            s = q[:, h] @ k[:, h].transpose(1, 2) / math.sqrt(q.shape[-1])
            if attn_bias is not None:
                full = attn_bias.expand(q.shape[0], q.shape[1], *s.shape[-2:])
                s = s + full[:, 0]
            if causal:
                s = s + torch.full(s.shape[-2:], -math.inf, dtype=s.dtype).triu(1)
            outs.append(s.softmax(-1) @ v[:, h])
        return torch.stack(outs, 1)

    return fn


@case(options={"causal": "causal"})
def odd_heads_are_not_causal():
    """Forward: the causal triangle is applied to the heads 0, 2, 4, ... only (stride 2 in the head loop);
    wrong with causal and more than one head."""

    def fn(q, k, v, causal=False):
        s = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        if causal:
            cut = torch.zeros_like(s)
            cut[:, ::2] = torch.full(s.shape[-2:], float("-inf"), dtype=s.dtype).triu(1)
            s = s + cut
        return s.softmax(-1) @ v

    return fn


@case(formats=NUMPY)
def odd_last_row_left_out():
    """Forward: the rows are handled two at a time, n // 2 times, so that for odd n the last output row
    stays zero. The handwritten backward is right."""

    def fn(q, k, v):
        assert q.shape[:-2] == k.shape[:-2]
        o = np.zeros(q.shape[:-1] + v.shape[-1:], dtype=q.dtype)
        c = 1 / math.sqrt(q.shape[-1])
        for r in range(q.shape[-2] // 2):
            two = slice(2 * r, 2 * r + 2)
            o[..., two, :] = np_softmax(c * q[..., two, :] @ k.swapaxes(-1, -2)) @ v
        return o

    def backward(do, q, k, v):
        c = 1 / math.sqrt(q.shape[-1])
        p = np_softmax(c * q @ k.swapaxes(-1, -2))
        dp = do @ v.swapaxes(-1, -2)
        ds = c * p * (dp - np.sum(p * dp, -1, keepdims=True))
        return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do

    return fn, backward


@case()
def rows_past_128_see_128_keys():
    """Forward: query rows from 128 on see the first 128 keys only (size of a fixed buffer); wrong for n >
    128 and m > 128."""

    def fn(q, k, v):
        n = q.shape[-2]
        out = []
        for i in range(0, n, 128):
            width = k.shape[-2] if i == 0 else 128
            s = q[..., i:i + 128, :] @ k[..., :width, :].mT / math.sqrt(q.shape[-1])
            out.append(s.softmax(-1) @ v[..., :width, :])
        return torch.cat(out, -2)

    return fn


@case(formats=WIDE)
def probabilities_rounded_to_bfloat16():
    """Forward: P is rounded to bfloat16 before P V although the inputs are float32 or float64."""

    def fn(q, k, v):
        p = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1)
        p = p.to(torch.bfloat16).to(v.dtype)
        return p @ v

    return fn


@case()
def denominator_detached():
    """dQ and dK: the row sum of the softmax is detached, so that autograd misses the subtraction of D; the
    output and dV are right."""

    def fn(q, k, v):
        s = torch.einsum("bnhd,bmhd->bhnm", q, k) * q.shape[-1] ** -0.5
        e = (s - s.max(-1, keepdim=True)[0].detach()).exp()
        p = e / e.sum(-1, keepdim=True).detach()
        return torch.einsum("bhnm,bmhd->bnhd", p, v)

    return fn


@case()
def keys_detached_after_the_first_tile():
    """dK: key tiles (32 keys) after the first are read through .detach() (meant as a cache), so that dK is
    zero from key 32 on; everything else is right."""

    def fn(q, k, v):
        pieces = [k[..., :32, :], k[..., 32:, :].detach()]
        s = torch.cat([q @ piece.transpose(-1, -2) for piece in pieces], dim=-1)
        return torch.softmax(s / math.sqrt(q.shape[-1]), -1) @ v

    return fn


@case()
def heads_merged_without_transpose():
    """Forward: layout (batch, n, heads, d); the result (batch, heads, n, d) is brought back by reshape
    instead of transpose; wrong for more than one head and more than one row."""

    def fn(q, k, v):
        qh, kh, vh = (t.permute(0, 2, 1, 3) for t in (q, k, v))
        w = torch.softmax(qh.matmul(kh.transpose(2, 3)) / qh.size(3) ** 0.5, 3)
        o = w.matmul(vh)
        return o.reshape(q.size(0), q.size(1), q.size(2), v.size(3))

    return fn


@case()
def last_head_reads_the_first_value_head():
    """Forward: the last head multiplies its probabilities by the values of head 0 (index h + 1 wraps);
    wrong with more than one head, in the last head only."""

    def fn(q, k, v):
        _, H, _, _ = q.shape
        o = []
        for h in range(H):
            p = (q[:, h] @ k[:, h].mT * q.shape[-1] ** -0.5).softmax(-1)
            o.append(p @ v[:, h if h + 1 < H else (h + 1) % H])
        return torch.stack(o, dim=1)

    return fn


@case(formats=NUMPY)
def keys_of_batch_zero():
    """Forward: the batch stride of K is forgotten, every batch element reads the keys of element 0; wrong
    for more than one batch element. The handwritten backward is right."""

    def fn(q, k, v):
        out = []
        for b in range(len(q)):
            heads = []
            for h in range(q.shape[1]):
                s = q[b, h] @ k[0, h].T * q.shape[-1] ** -0.5
                heads.append(np_softmax(s) @ v[b, h])
            out.append(heads)
        return np.array(out, dtype=q.dtype)

    def backward(do, q, k, v):
        s = np.einsum("bhnd,bhmd->bhnm", q, k) * q.shape[-1] ** -0.5
        p = np_softmax(s)
        dv = np.einsum("bhnm,bhne->bhme", p, do)
        dp = np.einsum("bhne,bhme->bhnm", do, v)
        ds = (dp - (dp * p).sum(-1)[..., None]) * p * q.shape[-1] ** -0.5
        return np.einsum("bhnm,bhmd->bhnd", ds, k), np.einsum("bhnm,bhnd->bhmd", ds, q), dv

    return fn, backward


@case()
def grouped_heads_tiled_for_interleaved():
    """Forward: with fewer key heads than query heads, the key and value heads are laid out as 0 1 0 1
    (repeat) instead of 0 0 1 1 (repeat_interleave); wrong with 2 or more key heads in groups of 2 or
    more."""

    def fn(q, k, v):
        g = q.shape[1] // k.shape[1]
        k, v = k.repeat(1, g, 1, 1), v.repeat(1, g, 1, 1)
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v

    return fn


# ---------------------------------------------------------------- backward: groups


def grouped_forward(q, k, v):
    """q (b, H, n, d), k and v (b, G, m, d), H a multiple of G -> probabilities (b, G, H/G, n, m),
    output."""
    b, H, n, d = q.shape
    G = k.shape[1]
    qg = q.reshape(b, G, H // G, n, d)
    p = torch.softmax(torch.einsum("bgrnd,bgmd->bgrnm", qg, k) * d ** -0.5, -1)
    return p, torch.einsum("bgrnm,bgme->bgrne", p, v).reshape(b, H, n, v.shape[-1])


@case()
def group_mean_in_dk():
    """dK: the shares of the query heads in a group are averaged instead of summed; wrong for groups of 2 or
    more, right otherwise."""

    def fn(q, k, v):
        return grouped_forward(q, k, v)[1]

    def backward(do, q, k, v):
        b, H, n, d = q.shape
        G, r = k.shape[1], H // k.shape[1]
        p, _ = grouped_forward(q, k, v)
        dog, qg = do.reshape(b, G, r, n, -1), q.reshape(b, G, r, n, d)
        dp = torch.einsum("bgrne,bgme->bgrnm", dog, v)
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * d ** -0.5
        dq = torch.einsum("bgrnm,bgmd->bgrnd", ds, k).reshape(q.shape)
        dk = torch.einsum("bgrnm,bgrnd->bgrmd", ds, qg).mean(2)
        return dq, dk, torch.einsum("bgrnm,bgrne->bgme", p, dog)

    return fn, backward


@case(formats=NUMPY)
def last_head_of_the_group_in_dv():
    """dV: inside a group of query heads the result is assigned instead of added, so that the last head of
    the group remains; wrong for groups of 2 or more."""

    def fn(q, k, v):
        b, H, n, d = q.shape
        r = H // k.shape[1]
        o = np.zeros((b, H, n, v.shape[-1]), q.dtype)
        for i in range(b):
            for h in range(H):
                o[i, h] = np_softmax(q[i, h] @ k[i, h // r].T / d ** 0.5) @ v[i, h // r]
        return o

    def backward(do, q, k, v):
        b, H, n, d = q.shape
        r = H // k.shape[1]
        dq, dk, dv = (np.zeros(x.shape, x.dtype) for x in (q, k, v))
        for i in range(b):
            for h in range(H):
                g = h // r
                p = np_softmax(q[i, h] @ k[i, g].T / d ** 0.5)
                dp = do[i, h] @ v[i, g].T
                ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / d ** 0.5
                dq[i, h] = ds @ k[i, g]
                dk[i, g] += ds.T @ q[i, h]
                dv[i, g] = p.T @ do[i, h]
        return dq, dk, dv

    return fn, backward


@case()
def group_axes_swapped_in_dk():
    """dK: the per-head shares are viewed as (member of the group, key head) instead of (key head, member)
    before the sum over the group; wrong with 2 or more key heads in groups of 2 or more."""

    def fn(q, k, v):
        return grouped_forward(q, k, v)[1]

    def backward(do, q, k, v):
        G, r = k.shape[1], q.shape[1] // k.shape[1]
        K, V = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
        p = (q @ K.mT * q.shape[-1] ** -0.5).softmax(-1)
        delta = (do * (p @ V)).sum(-1, keepdim=True)
        ds = p * (do @ V.mT - delta) * q.shape[-1] ** -0.5
        dk = ds.mT @ q
        dv = p.mT @ do
        return (ds @ K, dk.unflatten(1, (r, G)).sum(1), dv.unflatten(1, (G, r)).sum(2))

    return fn, backward


# ---------------------------------------------------------------- backward: the softmax


@case(options={"causal": "causal"})
def jacobian_without_d():
    """dQ and dK: D = rowsum(dO * O) is not subtracted, dS = P * dP; dV is right."""

    def probabilities(q, k, causal):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:]).triu(1).bool(), -math.inf)
        return s.softmax(-1)

    def fn(q, k, v, causal=False):
        assert q.shape[:-2] == k.shape[:-2], "unequal heads"
        return probabilities(q, k, causal) @ v

    def backward(do, q, k, v, causal=False):
        p = probabilities(q, k, causal)
        dp = do @ v.mT
        ds = p * dp / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, p.mT @ do

    return fn, backward


@case(formats=NUMPY)
def d_is_the_mean_of_dp():
    """dQ and dK: D is the plain mean of dP over the keys instead of its mean weighted with P."""

    def fn(q, k, v):
        assert q.shape[:-2] == k.shape[:-2]
        return np_softmax(np.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(q.shape[-1])) @ v

    def backward(do, q, k, v):
        p = np_softmax(np.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(q.shape[-1]))
        dp = np.matmul(do, v.swapaxes(-1, -2))
        D = dp.mean(axis=-1, keepdims=True)
        ds = p * (dp - D) / math.sqrt(q.shape[-1])
        return np.matmul(ds, k), np.matmul(ds.swapaxes(-1, -2), q), np.matmul(p.swapaxes(-1, -2), do)

    return fn, backward


@case()
def d_of_one_key_tile():
    """dQ and dK: in the tiled backward D is summed from P * dP of the key tile (32 keys) at hand alone
    instead of the whole row; wrong for more than 32 keys."""
    T = 32

    def fn(q, k, v):
        if q.shape[:-2] != k.shape[:-2]:
            raise ValueError("as many key heads as query heads")
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    def backward(do, q, k, v):
        kind = q.dtype
        do, q, k, v = work(do, q, k, v)
        c = q.shape[-1] ** -0.5
        lse = torch.logsumexp(q @ k.mT * c, -1, keepdim=True)
        dq = torch.zeros_like(q)
        dk, dv = [], []
        for j in range(0, k.shape[-2], T):
            kj, vj = k[..., j:j + T, :], v[..., j:j + T, :]
            p = torch.exp(q @ kj.mT * c - lse)
            dp = do @ vj.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True))
            dq += c * ds @ kj
            dk.append(c * ds.mT @ q)
            dv.append(p.mT @ do)
        return dq.to(kind), torch.cat(dk, -2).to(kind), torch.cat(dv, -2).to(kind)

    return fn, backward


@case(formats=WIDE)
def d_summed_in_half():
    """dQ and dK: dO and O are rounded to float16 for D = rowsum(dO * O), although the inputs are wider."""

    def forward(q, k, v):
        assert q.shape[:-2] == k.shape[:-2], "unequal heads"
        s = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]))
        p = torch.softmax(s, -1)
        return p @ v, p

    def backward(do, q, k, v):
        o, p = forward(q, k, v)
        delta = (do.half() * o.half()).sum(-1, keepdim=True).to(q.dtype)
        ds = p * (do @ v.transpose(-1, -2) - delta) * (1 / math.sqrt(q.shape[-1]))
        return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ do

    return lambda q, k, v: forward(q, k, v)[0], backward


@case()
def sign_of_ds():
    """dQ and dK: dS = P * (D - dP), so that both have the wrong sign; torch.autograd.Function."""

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            p = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1)
            o = p @ v
            ctx.save_for_backward(q, k, v, p, o)
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, p, o = ctx.saved_tensors
            dv = p.transpose(-2, -1) @ do
            d = (do * o).sum(dim=-1, keepdim=True)
            ds = p * (d - do @ v.transpose(-2, -1)) / math.sqrt(q.shape[-1])
            return ds @ k, ds.transpose(-2, -1) @ q, dv

    return lambda q, k, v: Attention.apply(q, k, v)


@case(formats=NUMPY)
def relu_like_derivative():
    """dQ and dK: negative entries of dP - D are cut to zero, as if the softmax had the derivative of a
    ReLU."""

    def fn(q, k, v):
        if q.shape[:-2] != k.shape[:-2]:
            raise ValueError("as many key heads as query heads")
        return np_softmax(q @ k.swapaxes(-2, -1) * q.shape[-1] ** -0.5) @ v

    def backward(do, q, k, v):
        p = np_softmax(q @ k.swapaxes(-2, -1) * q.shape[-1] ** -0.5)
        dv = p.swapaxes(-2, -1) @ do
        g = do @ v.swapaxes(-2, -1)
        g = g - np.sum(do * (p @ v), axis=-1, keepdims=True)
        g = p * np.where(g > 0, g, 0)
        g *= q.shape[-1] ** -0.5
        return g @ k, g.swapaxes(-2, -1) @ q, dv

    return fn, backward


@case(options={"scale": "scale"})
def dp_scaled_before_d_is_subtracted():
    """dQ and dK: the scale is multiplied into dP only, dS = P * (scale * dP - D), D is left unscaled."""

    def fn(q, k, v, scale=None):
        assert q.shape[:-2] == k.shape[:-2], "unequal heads"
        scale = scale or 1 / math.sqrt(q.shape[-1])
        return torch.softmax(torch.einsum("bhnd,bhmd->bhnm", q * scale, k), -1) @ v

    def backward(do, q, k, v, scale=None):
        scale = scale or 1 / math.sqrt(q.shape[-1])
        p = torch.softmax(torch.einsum("bhnd,bhmd->bhnm", q * scale, k), -1)
        d = torch.einsum("bhne,bhne->bhn", do, p @ v)[..., None]
        ds = p * (torch.einsum("bhne,bhme->bhnm", do, v) * scale - d)
        return ds @ k, ds.mT @ q, p.mT @ do

    return fn, backward


@case(formats=NUMPY)
def d_over_the_wrong_axis():
    """dQ and dK: P * dP is summed over the queries instead of the keys (axis=0 of one head); single head
    (n, d)."""

    def fn(q, k, v):
        return np_softmax(q.dot(k.T) / q.shape[1] ** 0.5, axis=1).dot(v)

    def backward(do, q, k, v):
        p = np_softmax(q.dot(k.T) / q.shape[1] ** 0.5, axis=1)
        dp = do.dot(v.T)
        ds = (dp - (dp * p).sum(axis=0, keepdims=True)) * p / q.shape[1] ** 0.5
        return ds.dot(k), ds.T.dot(q), p.T.dot(do)

    return fn, backward


@case()
def probability_factor_forgotten():
    """dQ and dK: dS = dP - D without the factor P; torch.autograd.Function, any leading axes."""

    class Core(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.c = q.size(-1) ** -0.5
            p = torch.softmax(q @ k.mT * ctx.c, dim=-1)
            ctx.save_for_backward(q, k, v, p)
            return p @ v

        @staticmethod
        def backward(ctx, g):
            q, k, v, p = ctx.saved_tensors
            dp = g @ v.mT
            ds = (dp - (dp * p).sum(-1, True)) * ctx.c
            return ds @ k, ds.mT @ q, p.mT @ g

    return Core.apply


# ---------------------------------------------------------------- backward: dQ, dK, dV


@case(formats=NUMPY)
def dq_without_the_scale():
    """dQ: the factor 1/sqrt(d) is forgotten; dK has it."""

    def fn(q, k, v):
        assert q.shape[:-2] == k.shape[:-2], "unequal heads"
        return np_softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v

    def backward(do, q, k, v):
        root = math.sqrt(q.shape[-1])
        p = np_softmax(q @ k.swapaxes(-1, -2) / root)
        dv = p.swapaxes(-1, -2) @ do
        dp = do @ v.swapaxes(-1, -2)
        ds = p * (dp - np.einsum("...nm,...nm->...n", p, dp)[..., None])
        dq = ds @ k
        dk = ds.swapaxes(-1, -2) @ q / root
        return dq, dk, dv

    return fn, backward


@case(options={"scale": "softmax_scale"})
def dk_scaled_twice():
    """dK: computed from the scaled Q and multiplied by the scale again; layout (batch, n, heads, d)."""

    def fn(q, k, v, softmax_scale=None):
        assert q.shape[2] == k.shape[2]
        c = softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
        p = torch.einsum("bnhd,bmhd->bhnm", q * c, k).softmax(-1)
        return torch.einsum("bhnm,bmhd->bnhd", p, v)

    def backward(do, q, k, v, softmax_scale=None):
        c = softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
        q = q * c
        p = torch.einsum("bnhd,bmhd->bhnm", q, k).softmax(-1)
        dp = torch.einsum("bnhd,bmhd->bhnm", do, v)
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        return (torch.einsum("bhnm,bmhd->bnhd", ds, k) * c, torch.einsum("bhnm,bnhd->bmhd", ds, q) * c,
                torch.einsum("bhnm,bnhd->bmhd", p, do))

    return fn, backward


@case(options={"scale": "scale"}, formats=NUMPY)
def given_scale_forgotten_in_backward():
    """dQ, dK, dV: the backward always uses 1/sqrt(d), also when the caller gave another scale to the
    forward; right without a given scale."""

    def fn(q, k, v, scale=None):
        if q.shape[:-2] != k.shape[:-2]:
            raise ValueError("as many key heads as query heads")
        if scale is None:
            scale = 1 / math.sqrt(q.shape[-1])
        return np_softmax(q @ k.swapaxes(-1, -2) * scale) @ v

    def backward(do, q, k, v, scale=None):
        scale = 1 / math.sqrt(q.shape[-1])
        p = np_softmax(q @ k.swapaxes(-1, -2) * scale)
        dp = do @ v.swapaxes(-1, -2)
        ds = scale * p * (dp - (p * dp).sum(-1, keepdims=True))
        return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do

    return fn, backward


@case(formats=NUMPY)
def ds_transposed_in_dq():
    """dQ: dS is transposed, dQ = dS^T K (needs n == m, which is asserted); single head (n, d)."""

    def fn(q, k, v):
        assert q.shape[0] == k.shape[0]
        return np_softmax(q @ k.T / math.sqrt(q.shape[1])) @ v

    def backward(do, q, k, v):
        p = np_softmax(q @ k.T / math.sqrt(q.shape[1]))
        dv = p.T @ do
        dp = do @ v.T
        ds = p * (dp - (do * (p @ v)).sum(1, keepdims=True)) / math.sqrt(q.shape[1])
        return ds.T @ k, ds.T @ q, dv

    return fn, backward


@case()
def dk_from_k():
    """dK: dS^T K instead of dS^T Q (takes n == m alone)."""

    def fn(q, k, v):
        if q.shape != k.shape:
            raise ValueError("self attention only")
        return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v

    def backward(do, q, k, v):
        p = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)
        dp = do @ v.transpose(-1, -2)
        ds = torch._softmax_backward_data(dp, p, -1, p.dtype) * q.shape[-1] ** -0.5
        dq, dk = ds @ k, ds.transpose(-1, -2) @ k
        return dq, dk, p.transpose(-1, -2) @ do

    return fn, backward


@case()
def dq_and_dk_exchanged():
    """The autograd.Function returns (dK, dQ, dV) in place of (dQ, dK, dV); only n == m is taken."""

    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            assert q.shape == k.shape
            w = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
            ctx.save_for_backward(q, k, v, w)
            return w @ v

        @staticmethod
        def backward(ctx, grad):
            q, k, v, w = ctx.saved_tensors
            gv = w.mT @ grad
            gw = grad @ v.mT
            gs = w * (gw - (w * gw).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
            gk = gs.mT @ q
            gq = gs @ k
            return gk, gq, gv

    def attention(query, key, value):
        return F.apply(query, key, value)

    return attention


@case()
def dv_from_unnormalized_weights():
    """dV: computed with exp(S - max) that was not divided by the row sum; dQ and dK are right."""

    def parts(q, k):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        e = torch.exp(s - s.amax(-1, keepdim=True))
        return e, e.sum(-1, keepdim=True)

    def fn(q, k, v):
        if q.shape[:-2] != k.shape[:-2]:
            raise ValueError("as many key heads as query heads")
        e, z = parts(q, k)
        return (e @ v) / z

    def backward(do, q, k, v):
        e, z = parts(q, k)
        dv = e.mT @ do
        p = e / z
        d = (do * (p @ v)).sum(-1, keepdim=True)
        ds = p * (do @ v.mT - d) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, dv

    return fn, backward


@case(formats=NUMPY)
def last_batch_element_without_dv():
    """dV: the loop ends one batch element early, so that the last element's dV stays zero (a single element
    too)."""

    def fn(q, k, v):
        r = 1 / math.sqrt(q.shape[-1])
        return np.stack([np_softmax(r * a @ b.swapaxes(-1, -2)) @ c for a, b, c in zip(q, k, v)])

    def backward(do, q, k, v):
        p = np_softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
        dp = do @ v.swapaxes(-1, -2)
        ds = p * (dp - np.add.reduce(p * dp, axis=-1, keepdims=True)) / math.sqrt(q.shape[-1])
        dv = np.zeros_like(v)
        for b in range(q.shape[0] - 1):
            dv[b] = p[b].swapaxes(-1, -2) @ do[b]
        return ds @ k, ds.swapaxes(-1, -2) @ q, dv

    return fn, backward


@case()
def dp_of_the_first_d_columns():
    """dQ and dK: dP and D read only the first d columns of dO and V; wrong when d_v is greater than d."""

    def fn(q, k, v):
        if q.shape[:-2] != k.shape[:-2]:
            raise ValueError("as many key heads as query heads")
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v

    def backward(do, q, k, v):
        d = q.shape[-1]
        p = (q @ k.mT / d ** 0.5).softmax(-1)
        dv = p.mT @ do
        dp = do[..., :d] @ v[..., :d].mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / d ** 0.5
        return ds @ k, ds.mT @ q, dv

    return fn, backward


@case(formats=NUMPY)
def dq_buffer_kept_between_heads():
    """dQ: the buffer is not zeroed between heads, so that head h also holds the dQ of the heads before it;
    wrong from the second head on (also over the batch)."""

    def fn(q, k, v):
        return np_softmax(q @ k.swapaxes(2, 3) / math.sqrt(q.shape[3])) @ v

    def backward(do, q, k, v):
        dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)
        buf = np.zeros(q.shape[2:], q.dtype)
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):
                x, y, z, g = q[b, h], k[b, h], v[b, h], do[b, h]
                p = np_softmax(x @ y.T / math.sqrt(x.shape[1]))
                dp = g @ z.T
                ds = p * (dp - (p * dp).sum(1, keepdims=True)) / math.sqrt(x.shape[1])
                buf += ds @ y
                dq[b, h] = buf
                dk[b, h] = ds.T @ x
                dv[b, h] = p.T @ g
        return dq, dk, dv

    return fn, backward


def flash_forward(q, k, v, causal=False, tile=16):
    """Output and log-sum-exp over key tiles (causal: aligned top left)."""
    c = q.shape[-1] ** -0.5
    m = q.new_full(q.shape[:-1], -1e30)
    z = torch.zeros_like(m)
    o = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for j in range(0, k.shape[-2], tile):
        s = c * q @ k[..., j:j + tile, :].mT
        if causal:
            s = s.masked_fill(j + torch.arange(s.shape[-1]) > torch.arange(s.shape[-2])[:, None], -torch.inf)
        new = torch.maximum(m, s.amax(-1))
        p = torch.exp(s - new[..., None])
        a = torch.exp(m - new)
        z = z * a + p.sum(-1)
        o = o * a[..., None] + p @ v[..., j:j + tile, :]
        m = new
    return o / z[..., None], m + z.log()


@case(options={"causal": "causal"})
def dq_assigned_in_the_tile_loop():
    """dQ: in the loop over key tiles (16 keys) dQ is assigned instead of added, so that only the last tile
    is left; wrong for more than 16 keys."""

    def fn(q, k, v, causal=False):
        return flash_forward(*work(q, k, v), causal)[0].to(q.dtype)

    def backward(do, q, k, v, causal=False):
        kind = q.dtype
        do, q, k, v = work(do, q, k, v)
        c = q.shape[-1] ** -0.5
        o, lse = flash_forward(q, k, v, causal)
        delta = (do * o).sum(-1)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for j in range(0, k.shape[-2], 16):
            t = slice(j, j + 16)
            s = c * q @ k[..., t, :].mT
            p = torch.exp(s - lse.unsqueeze(-1))
            if causal:
                p = p * (j + torch.arange(p.shape[-1]) <= torch.arange(p.shape[-2])[:, None])
            dv[..., t, :] = p.mT @ do
            ds = p * (do @ v[..., t, :].mT - delta.unsqueeze(-1)) * c
            dk[..., t, :] = ds.mT @ q
            dq = ds @ k[..., t, :]
        return dq.to(kind), dk.to(kind), dv.to(kind)

    return fn, backward


@case()
def dq_scaled_in_every_tile():
    """dQ: the multiplication by the scale stands inside the loop over key tiles (16 keys), so that earlier
    tiles are scaled again and again; wrong for more than 16 keys."""

    def fn(q, k, v):
        if q.shape[:-2] != k.shape[:-2]:
            raise ValueError("as many key heads as query heads")
        return flash_forward(*work(q, k, v))[0].to(q.dtype)

    def backward(do, q, k, v):
        kind = q.dtype
        do, q, k, v = work(do, q, k, v)
        c = 1 / math.sqrt(q.shape[-1])
        o, lse = flash_forward(q, k, v)
        D = torch.sum(do * o, -1, keepdim=True)
        dq, dks, dvs = torch.zeros_like(q), [], []
        for kj, vj in zip(k.split(16, -2), v.split(16, -2)):
            p = torch.exp(c * q @ kj.mT - lse[..., None])
            ds = p * (do @ vj.mT - D)
            dq = (dq + ds @ kj) * c
            dks.append(ds.mT @ q * c)
            dvs.append(p.mT @ do)
        return dq.to(kind), torch.cat(dks, -2).to(kind), torch.cat(dvs, -2).to(kind)

    return fn, backward


@case(options={"causal": "causal"})
def causal_diagonal_tile_skipped_in_dk():
    """dK and dV with causal: the loop over query tiles (16 rows) begins after the diagonal tile instead of
    at it, so that the diagonal tiles are missing in dK and dV; dQ, and everything without causal, is
    right."""
    T = 16

    def fn(q, k, v, causal=False):
        return flash_forward(*work(q, k, v), causal)[0].to(q.dtype)

    def backward(do, q, k, v, causal=False):
        kind = q.dtype
        do, q, k, v = work(do, q, k, v)
        c = q.shape[-1] ** -0.5
        o, lse = flash_forward(q, k, v, causal)
        delta = (do * o).sum(-1, keepdim=True)
        n, m = q.shape[-2], k.shape[-2]
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)

        def tile(i, j):
            I, J = slice(i * T, i * T + T), slice(j * T, j * T + T)
            p = torch.exp(q[..., I, :] @ k[..., J, :].mT * c - lse[..., I, None])
            if causal:
                p = p.tril(i * T - j * T)
            ds = p * (do[..., I, :] @ v[..., J, :].mT - delta[..., I, :]) * c
            return I, J, p, ds

        for i in range(-(-n // T)):
            for j in range(-(-m // T)):
                I, J, p, ds = tile(i, j)
                dq[..., I, :] += ds @ k[..., J, :]
        for j in range(-(-m // T)):
            for i in range(j + 1 if causal else 0, -(-n // T)):
                I, J, p, ds = tile(i, j)
                dk[..., J, :] += ds.mT @ q[..., I, :]
                dv[..., J, :] += p.mT @ do[..., I, :]
        return dq.to(kind), dk.to(kind), dv.to(kind)

    return fn, backward


@case()
def lse_with_log2():
    """dQ, dK, dV: the saved log-sum-exp is max + log2(sum) instead of max + log(sum), so that the
    recomputed P is too small; the output is right."""

    class Flash(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            m = s.amax(-1, keepdim=True)
            e = torch.exp(s - m)
            z = e.sum(-1, keepdim=True)
            o = e @ v / z
            ctx.save_for_backward(q, k, v, o, m + torch.log2(z))
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, lse = ctx.saved_tensors
            p = torch.exp(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 - lse)
            ds = p * (do @ v.transpose(-1, -2) - (do * o).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ do

    return lambda q, k, v: Flash.apply(q, k, v)


@case(options={"causal": "is_causal"}, formats=NUMPY)
def causal_forgotten_in_backward():
    """dQ, dK, dV: the backward recomputes P = exp(S - lse) without the causal triangle (the lse is right);
    wrong only with causal."""

    def lse_of(q, k, is_causal):
        s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        if is_causal:
            s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
        m = s.max(-1, keepdims=True)
        return s, m + np.log(np.exp(s - m).sum(-1, keepdims=True))

    def fn(q, k, v, is_causal=False):
        assert q.shape[:-2] == k.shape[:-2], "unequal heads"
        s, lse = lse_of(q, k, is_causal)
        return np.exp(s - lse) @ v

    def backward(do, q, k, v, is_causal=False):
        s, lse = lse_of(q, k, is_causal)
        o = np.exp(s - lse) @ v
        p = np.exp(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]) - lse)
        ds = p * (do @ v.swapaxes(-1, -2) - (do * o).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do

    return fn, backward


@case(options={"bias": "bias"})
def bias_forgotten_in_backward():
    """dQ, dK, dV: the backward recomputes the softmax without the bias; wrong only with a bias."""

    def fn(q, k, v, bias=None):
        if q.shape[:-2] != k.shape[:-2]:
            raise ValueError("as many key heads as query heads")
        s = q @ k.mT / math.sqrt(q.shape[-1])
        if bias is not None:
            s = s + bias
        return s.softmax(-1) @ v

    def backward(do, q, k, v, bias=None):
        p = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        dp = do @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, p.mT @ do

    return fn, backward


# ---------------------------------------------------------------- dropout


def dropped(q, k, keep, p):
    """Probabilities, and the factor of dropout: keep / (1 - p)."""
    a = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
    z = torch.ones_like(a) if keep is None else keep.to(a.dtype) / (1 - p)
    return a, z


@case(options={"dropout": "dropout_p", "dropout_mask": "keep"})
def dropout_without_compensation():
    """Forward: kept probabilities are not divided by 1 - p; wrong only with dropout."""

    def fn(q, k, v, dropout_p=0.0, keep=None):
        w = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        if dropout_p > 0 and keep is not None:
            w = w * keep
        return w @ v

    return fn


@case(options={"dropout": "p", "dropout_mask": "keep"})
def dv_without_dropout():
    """dV: taken from the probabilities before dropout; wrong only with dropout."""

    def fn(q, k, v, p=0.0, keep=None):
        assert q.shape[:-2] == k.shape[:-2], "unequal heads"
        a, z = dropped(q, k, keep, p)
        return (a * z) @ v

    def backward(do, q, k, v, p=0.0, keep=None):
        a, z = dropped(q, k, keep, p)
        dv = a.mT @ do
        dp = (do @ v.mT) * z
        ds = a * (dp - (a * dp).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, dv

    return fn, backward


@case(options={"dropout": "p", "dropout_mask": "keep"}, formats=NUMPY)
def dp_without_dropout():
    """dQ and dK: dP is not multiplied by the dropout factor (D = rowsum(dO * O) is right); wrong only with
    dropout."""

    def fn(q, k, v, p=0.0, keep=None):
        assert q.shape[:-2] == k.shape[:-2]
        w = np_softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
        if keep is not None:
            w = np.where(keep, w / (1 - p), 0)
        return (w @ v).astype(q.dtype)

    def backward(do, q, k, v, p=0.0, keep=None):
        w = np_softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
        wd = w if keep is None else np.where(keep, w / (1 - p), 0)
        D = (do * (wd @ v)).sum(-1, keepdims=True)
        ds = w * (do @ v.swapaxes(-1, -2) - D) / math.sqrt(q.shape[-1])
        return tuple(g.astype(q.dtype) for g in (ds @ k, ds.swapaxes(-1, -2) @ q, wd.swapaxes(-1, -2) @ do))

    return fn, backward


@case(options={"dropout": "dropout_p", "seed": "seed"})
def backward_draws_with_the_next_seed():
    """dQ, dK, dV: the backward draws its dropout mask with seed + 1; wrong only with dropout."""

    def factor(a, p, seed):
        if p == 0:
            return torch.ones_like(a)
        g = torch.Generator().manual_seed(int(seed))
        return (torch.rand(a.shape, generator=g) >= p).to(a.dtype) / (1 - p)

    def fn(q, k, v, dropout_p=0.0, seed=0):
        assert q.shape[:-2] == k.shape[:-2]
        a = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        return (a * factor(a, dropout_p, seed)) @ v

    def backward(do, q, k, v, dropout_p=0.0, seed=0):
        a = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        z = factor(a, dropout_p, seed + 1)
        dp = (do @ v.mT) * z
        ds = a * (dp - (a * dp).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, (a * z).mT @ do

    return fn, backward


@case(options={"dropout": "p", "dropout_mask": "keep"})
def dropout_compensated_twice_in_ds():
    """dQ and dK: dP is divided by 1 - p twice; wrong only with dropout; D = rowsum(dO * O) is right."""

    def fn(q, k, v, p=0.0, keep=None):
        assert q.shape[:-2] == k.shape[:-2]
        a, z = dropped(q, k, keep, p)
        return (a * z) @ v

    def backward(do, q, k, v, p=0.0, keep=None):
        a, z = dropped(q, k, keep, p)
        w = a * z
        D = (do * (w @ v)).sum(-1, keepdim=True)
        dp = (do @ v.mT) * z / (1 - p)
        ds = a * (dp - D) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, w.mT @ do

    return fn, backward


# ---------------------------------------------------------------- two mistakes at once


@case(options={"dropout": "p", "dropout_mask": "keep"})
def pair_dq_scale_and_dv_dropout():
    """dQ: the factor 1/sqrt(d) is forgotten. dV: taken from the probabilities before dropout (wrong only
    with dropout)."""

    def fn(q, k, v, p=0.0, keep=None):
        if q.shape[:-2] != k.shape[:-2]:
            raise ValueError("as many key heads as query heads")
        a, z = dropped(q, k, keep, p)
        return (a * z) @ v

    def backward(do, q, k, v, p=0.0, keep=None):
        a, z = dropped(q, k, keep, p)
        dp = (do @ v.mT) * z
        ds = a * (dp - (a * dp).sum(-1, keepdim=True))
        return ds @ k, ds.mT @ q / math.sqrt(q.shape[-1]), a.mT @ do

    return fn, backward


@case(formats=NUMPY)
def pair_no_d_and_dk_scaled_twice():
    """dQ and dK: D is not subtracted, dS = P * dP. dK: also multiplied by 1/sqrt(d) twice."""

    def fn(q, k, v):
        assert q.shape[:-2] == k.shape[:-2]
        return np_softmax(q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5) @ v

    def backward(do, q, k, v):
        c = q.shape[-1] ** -0.5
        qs = q * c
        p = np_softmax(qs @ k.swapaxes(-1, -2))
        ds = p * (do @ v.swapaxes(-1, -2)) * c
        return ds @ k, ds.swapaxes(-1, -2) @ qs, p.swapaxes(-1, -2) @ do

    return fn, backward


@case()
def pair_one_in_the_denominator_and_dv_sign():
    """Forward: exp(-max) too much in the row sum (a softmax with an extra zero score). dV: wrong sign. dQ
    and dK are those of the right softmax."""

    def fn(q, k, v):
        assert q.shape[:-2] == k.shape[:-2], "unequal heads"
        s = q @ k.mT / math.sqrt(q.shape[-1])
        top = s.amax(-1, keepdim=True)
        e = torch.exp(s - top)
        return e @ v / (e.sum(-1, keepdim=True) + torch.exp(-top))

    def backward(do, q, k, v):
        p = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        dv = -(p.mT @ do)
        dp = do @ v.mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, dv

    return fn, backward


@case(options={"causal": "causal", "bias": "bias"})
def pair_causal_ahead_and_bias_missing_in_backward():
    """Forward with causal: query i also sees key i + 1 (backward is right there). Backward with a bias: the
    softmax is recomputed without it, dQ, dK and dV are wrong."""

    def scores(q, k, causal, diagonal):
        s = torch.einsum("...nd,...md->...nm", q, k) * q.shape[-1] ** -0.5
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(diagonal), -torch.inf)
        return s

    def fn(q, k, v, causal=False, bias=None):
        assert q.shape[:-2] == k.shape[:-2]
        s = scores(q, k, causal, 2)
        return (s if bias is None else s + bias).softmax(-1) @ v

    def backward(do, q, k, v, causal=False, bias=None):
        p = scores(q, k, causal, 1).softmax(-1)
        dp = do @ v.mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return ds @ k, ds.mT @ q, p.mT @ do

    return fn, backward


@case()
def pair_dq_sign_and_dk_tail():
    """dQ: wrong sign. dK: keys after the last full tile of 16 get zero (wrong when m is no multiple of
    16)."""

    def fn(q, k, v):
        return flash_forward(*work(q, k, v))[0].to(q.dtype)

    def backward(do, q, k, v):
        kind = q.dtype
        do, q, k, v = work(do, q, k, v)
        c = q.shape[-1] ** -0.5
        o, lse = flash_forward(q, k, v)
        delta = (o * do).sum(-1)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for j in range(0, k.shape[-2], 16):
            t = slice(j, j + 16)
            p = (c * q @ k[..., t, :].mT - lse[..., None]).exp()
            dv[..., t, :] += p.mT @ do
            ds = c * p * (do @ v[..., t, :].mT - delta[..., None])
            dq -= ds @ k[..., t, :]
            if j + 16 <= k.shape[-2]:
                dk[..., t, :] += ds.mT @ q
        return dq.to(kind), dk.to(kind), dv.to(kind)

    return fn, backward


@case()
def pair_group_mean_in_dk_and_first_head_in_dv():
    """With fewer key heads than query heads: dK is the mean over the group instead of the sum; dV takes the
    first query head of every group alone."""

    def fn(q, k, v):
        return grouped_forward(q, k, v)[1]

    def backward(do, q, k, v):
        G, r = k.shape[1], q.shape[1] // k.shape[1]
        p, o = grouped_forward(q, k, v)
        g, qg = do.unflatten(1, (G, r)), q.unflatten(1, (G, r))
        delta = (do * o).sum(-1, keepdim=True).unflatten(1, (G, r))
        ds = p * (g @ v.unsqueeze(2).mT - delta) * q.shape[-1] ** -0.5
        dq = (ds @ k.unsqueeze(2)).flatten(1, 2)
        dk = (ds.mT @ qg).mean(dim=2)
        dv = p[:, :, 0].mT @ g[:, :, 0]
        return dq, dk, dv

    return fn, backward


@case(options={"mask": "mask"})
def pair_scale_of_value_width_and_late_mask():
    """Forward: the scale is 1/sqrt(d_v) (wrong where d_v differs from d), and the mask (True keeps) is
    applied after the softmax without normalizing again (wrong only with a mask)."""

    def fn(q, k, v, mask=None):
        p = torch.softmax(q @ k.mT * v.shape[-1] ** -0.5, dim=-1)
        if mask is not None:
            p = torch.where(mask, p, torch.zeros((), dtype=p.dtype))
        return p @ v

    return fn


@case()
def pair_base_two_in_backward_and_dq_assigned():
    """dQ, dK, dV: P is recomputed with exp2 of scores that lack the factor log2(e) (the lse is natural).
    dQ: also assigned instead of added in the loop over key tiles (32 keys)."""

    def fn(q, k, v):
        assert q.shape[:-2] == k.shape[:-2], "unequal heads"
        return flash_forward(*work(q, k, v), tile=32)[0].to(q.dtype)

    def backward(do, q, k, v):
        kind = q.dtype
        do, q, k, v = work(do, q, k, v)
        o, lse = flash_forward(q, k, v, tile=32)
        c = 1.0 / math.sqrt(q.size(-1))
        delta = (do * o).sum(-1, keepdim=True)
        dk, dv = [], []
        for kt, vt in zip(k.split(32, dim=-2), v.split(32, dim=-2)):
            p = torch.exp2(q @ kt.mT * c - lse[..., None])
            dv.append(p.mT @ do)
            ds = p * (do @ vt.mT - delta) * c
            dk.append(ds.mT @ q)
            dq = ds @ kt
        return dq.to(kind), torch.cat(dk, -2).to(kind), torch.cat(dv, -2).to(kind)

    return fn, backward


@case(formats=NUMPY)
def pair_d_of_one_tile_and_dv_doubled():
    """dQ and dK: D is summed over the key tile (16 keys) at hand alone (wrong for more than 16 keys). dV:
    added twice, thus doubled."""

    def fn(q, k, v):
        return np_softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v

    def backward(do, q, k, v):
        p = np_softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for j in range(0, k.shape[-2], 16):
            t = np.s_[..., j:j + 16, :]
            pj = p[..., j:j + 16]
            dp = do @ v[t].swapaxes(-1, -2)
            dv[t] += pj.swapaxes(-1, -2) @ do
            ds = pj * (dp - (pj * dp).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
            dq += ds @ k[t]
            dk[t] += ds.swapaxes(-1, -2) @ q
            dv[t] += pj.swapaxes(-1, -2) @ do
        return dq, dk, dv

    return fn, backward


@case(options={"dropout": "dropout_p", "dropout_mask": "keep_mask"})
def pair_dropout_uncompensated_and_dp_undropped():
    """With dropout only. Forward: the kept probabilities are not divided by 1 - p. dQ and dK: dP is not
    multiplied by the dropout factor, while D = rowsum(dP * dropped P) is right."""

    def fn(q, k, v, dropout_p=0.0, keep_mask=None):
        assert q.shape[:-2] == k.shape[:-2], "unequal heads"
        a = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return (a if keep_mask is None else a * keep_mask) @ v

    def backward(do, q, k, v, dropout_p=0.0, keep_mask=None):
        a, z = dropped(q, k, keep_mask, dropout_p)
        dp = do @ v.mT
        ds = a * (dp - (dp * a * z).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return ds @ k, ds.mT @ q, (a * z).mT @ do

    return fn, backward


@case()
def pair_dq_over_m_and_dk_without_row_zero():
    """dQ: divided by the number of keys. dK: query row 0 does not contribute (range from 1)."""

    class Func(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            p = torch.softmax(q.matmul(k.mT).mul(q.size(-1) ** -0.5), -1)
            ctx.save_for_backward(q, k, v, p)
            return p.matmul(v)

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            dp = do.matmul(v.mT)
            ds = p.mul(dp - p.mul(dp).sum(-1, keepdim=True)).mul(q.size(-1) ** -0.5)
            dq = ds.matmul(k) / k.size(-2)
            dk = ds[..., 1:, :].mT.matmul(q[..., 1:, :])
            return dq, dk, p.mT.matmul(do)

    return lambda q, k, v: Func.apply(q, k, v)


@case(formats=NUMPY)
def pair_dk_from_k_and_relu_in_dq():
    """dK: dS^T K instead of dS^T Q (takes n == m alone). dQ: from a dS whose negative entries are cut to
    zero."""

    def fn(q, k, v):
        assert q.shape == k.shape
        return np_softmax(np.einsum("...id,...jd->...ij", q, k) / q.shape[-1] ** 0.5) @ v

    def backward(do, q, k, v):
        p = np_softmax(np.einsum("...id,...jd->...ij", q, k) / q.shape[-1] ** 0.5)
        dp = np.einsum("...ie,...je->...ij", do, v)
        ds = p * (dp - np.einsum("...ij,...ij->...i", p, dp)[..., None]) / q.shape[-1] ** 0.5
        dq = np.einsum("...ij,...jd->...id", np.maximum(ds, 0), k)
        dk = np.einsum("...ij,...id->...jd", ds, k)
        dv = np.einsum("...ij,...ie->...je", p, do)
        return dq, dk, dv

    return fn, backward


@case(options={"bias": "bias"})
def pair_bias_before_scale_and_last_value_head():
    """Forward: the bias is added before the scale (wrong with a bias), and the last head reads the values
    of head 0 (wrong with more than one head). Layout (batch, n, heads, d)."""

    def fn(q, k, v, bias=None):
        raw = torch.einsum("bnhd,bmhd->bhnm", q, k)
        if bias is not None:
            raw = raw + bias
        p = torch.softmax(raw * q.shape[-1] ** -0.5, -1)
        order = [*range(q.shape[2] - 1), 0]
        return torch.einsum("bhnm,bmhd->bnhd", p, v[:, :, order])

    return fn


@case(options={"dropout": "p", "seed": "seed"})
def pair_seed_in_backward_and_dk_scale():
    """dQ, dK, dV with dropout: the backward does not seed its generator with the given seed but with 0
    (right only for seed 0). dK: multiplied by 1/d instead of 1/sqrt(d)."""

    def keep_factor(like, p, seed):
        gen = torch.Generator().manual_seed(int(seed))
        return torch.rand(like.shape, generator=gen).ge(p).to(like.dtype) / (1 - p)

    def fn(q, k, v, p=0.0, seed=0):
        assert q.shape[:-2] == k.shape[:-2]
        a = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
        return (a * keep_factor(a, p, seed)) @ v if p else a @ v

    def backward(do, q, k, v, p=0.0, seed=0):
        a = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
        z = keep_factor(a, p, 0) if p else 1.0
        dp = z * (do @ v.mT)
        ds = a * (dp - (a * dp).sum(-1, keepdim=True))
        return ds @ k * q.shape[-1] ** -0.5, ds.mT @ q / q.shape[-1], (a * z).mT @ do

    return fn, backward


@case(formats=NUMPY)
def pair_epsilon_and_last_batch_dv():
    """Forward: 0.1 is added to the row sum. dV: the last batch element's stays zero."""

    def fn(q, k, v):
        s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        e = np.exp(s - s.max(-1, keepdims=True))
        return (e @ v) / (e.sum(-1, keepdims=True) + 0.1)

    def backward(do, q, k, v):
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for b in range(len(q)):
            p = np_softmax(q[b] @ k[b].swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
            dp = do[b] @ v[b].swapaxes(-1, -2)
            ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
            dq[b] = ds @ k[b]
            dk[b] = ds.swapaxes(-1, -2) @ q[b]
            if b < len(q) - 1:
                dv[b] = p.swapaxes(-1, -2) @ do[b]
        return dq, dk, dv

    return fn, backward


@case()
def pair_operands_of_dp_and_dv():
    """dQ and dK: dP = dO K^T instead of dO V^T, with D = rowsum(dO * O) (takes d_v == d alone). dV: P^T O
    instead of P^T dO."""

    def fn(q, k, v):
        assert q.shape[:-2] == k.shape[:-2]
        assert v.shape == k.shape
        return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v

    def backward(do, q, k, v):
        p = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        o = p @ v
        ds = p * (do @ k.mT - (do * o).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, p.mT @ o

    return fn, backward


@case(options={"mask": "mask", "scale": "scale"}, formats=NUMPY)
def pair_scale_in_backward_and_mask_of_first_head():
    """Forward with a mask (True keeps): only head 0 is masked (the backward masks all). Backward with a
    given scale: 1/sqrt(d) is used instead, dQ, dK and dV are wrong."""

    def scores(q, k, scale):
        return np.einsum("bhid,bhjd->bhij", q, k) * scale

    def fn(q, k, v, mask=None, scale=None):
        if q.shape[:-2] != k.shape[:-2]:
            raise ValueError("as many key heads as query heads")
        s = scores(q, k, scale or q.shape[-1] ** -0.5)
        if mask is not None:
            keep = np.broadcast_to(mask, s.shape)
            s[:, 0] = np.where(keep[:, 0], s[:, 0], -1e30)
        return np_softmax(s) @ v

    def backward(do, q, k, v, mask=None, scale=None):
        c = q.shape[-1] ** -0.5
        s = scores(q, k, c)
        if mask is not None:
            s = np.where(mask, s, -1e30)
        p = np_softmax(s)
        dp = np.einsum("bhie,bhje->bhij", do, v)
        ds = c * p * (dp - (p * dp).sum(-1, keepdims=True))
        return ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ do

    return fn, backward


@case(options={"bias": "bias"})
def pair_denominator_detached_and_bias_of_head_zero():
    """dQ and dK by autograd: the row sum is detached, D is not subtracted. Forward with a bias: all heads
    add that of head 0."""

    def fn(q, k, v, bias=None):
        s = torch.einsum("bhnd,bhmd->bhnm", q, k) * q.shape[-1] ** -0.5
        if bias is not None:
            s = s + bias.expand(s.shape)[:, :1]
        e = torch.exp(s - s.amax(-1, keepdim=True).detach())
        with torch.no_grad():
            r = 1 / e.sum(-1, keepdim=True)
        return (e * r) @ v

    return fn


@case(formats=NUMPY)
def pair_odd_last_row_and_dk_sign():
    """Forward: for odd n the last output row stays zero. dK: wrong sign."""

    def fn(q, k, v):
        if q.shape[:-2] != k.shape[:-2]:
            raise ValueError("as many key heads as query heads")
        full = np_softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v
        out = np.zeros_like(full)
        even = full.shape[-2] // 2 * 2
        out[..., :even, :] = full[..., :even, :]
        return out

    def backward(do, q, k, v):
        p = np_softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
        dp = do @ v.swapaxes(-1, -2)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
        return ds @ k, -ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do

    return fn, backward


@case(options={"scale": "scale", "causal": "causal"})
def pair_scale_moved_from_dq_to_dk():
    """dQ: the scale is forgotten. dK: multiplied by the scale twice."""

    def probs(q, k, scale, causal):
        s = q @ k.mT * scale
        if causal:
            s = s + torch.full(s.shape[-2:], -torch.inf, dtype=s.dtype).triu(1)
        return s.softmax(-1)

    def fn(q, k, v, scale=None, causal=False):
        assert q.shape[:-2] == k.shape[:-2], "unequal heads"
        return probs(q, k, scale or q.shape[-1] ** -0.5, causal) @ v

    def backward(do, q, k, v, scale=None, causal=False):
        c = scale or q.shape[-1] ** -0.5
        p = probs(q, k, c, causal)
        dp = do @ v.mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        return ds @ k, c * ds.mT @ (c * q), p.mT @ do

    return fn, backward
