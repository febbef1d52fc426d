"""Right candidates of the third collection, written without having read the checker.

Where a source is named, the style is after that public file; the code is written anew.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from cases import collection
from torch import nn
from torch.utils.checkpoint import checkpoint

CASES, case = collection()

NUMPY = ("float64", "float32")


def wide(*tensors):
    """Half formats are computed in float32; float32 and float64 stay."""
    out = tuple(t.to(torch.promote_types(t.dtype, torch.float32)) for t in tensors)
    return out if len(out) > 1 else out[0]


def _seeded(build):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(33)
        return build()


def _np_softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


# ------------------------------------------------------------------------------------------- attention


@case(options={"bias": "bias", "mask": "mask", "causal": "is_causal", "scale": "scale"},
      source="jax-ml/jax jax/_src/nn/functions.py (dot_product_attention)")
def btnh_with_groups_bias_mask():
    """(batch, length, heads, size) as in JAX: query heads reshaped to (key head, member), logits, then the
    bias, then a boolean mask (b, heads or 1, n, m) that keeps, causal aligned top left; -0.7 * finfo.max."""
    def spread(x, kheads):
        b, h, n, m = x.shape
        if h == 1:
            return x[:, :, None]
        return x.reshape(b, kheads, h // kheads, n, m)

    def dot_product_attention(query, key, value, bias=None, mask=None, is_causal=False, scale=None):
        b, t, n, h = query.shape
        s, kheads = key.shape[1], key.shape[2]
        scale = 1 / math.sqrt(h) if scale is None else scale
        q = query.reshape(b, t, kheads, n // kheads, h)
        logits = torch.einsum("btkgh,bskh->bkgts", *wide(q, key)) * scale
        if bias is not None:
            logits = logits + spread(bias[(None,) * (4 - bias.ndim)], kheads)
        low = -0.7 * torch.finfo(logits.dtype).max
        if mask is not None:
            logits = torch.where(spread(mask[(None,) * (4 - mask.ndim)].bool(), kheads), logits, low)
        if is_causal:
            seen = torch.ones(t, s, dtype=torch.bool, device=q.device).tril()
            logits = torch.where(seen, logits, low)
        probs = torch.softmax(logits, -1).to(value.dtype)
        return torch.einsum("bkgts,bskh->btkgh", probs, value).reshape(b, t, n, value.shape[-1])
    return dot_product_attention


@case()
def keys_kept_transposed():
    """q and v are (batch, heads, length, size), the keys come transposed, (batch, heads, size, keys), as an
    old GPT cache keeps them."""
    def fn(query, key_t, value):
        w = torch.matmul(query, key_t) / math.sqrt(query.shape[-1])
        return torch.matmul(w.softmax(-1), value)
    return fn


@case(options={"mask": "keep"}, formats=NUMPY)
def mask_as_logarithm():
    """(batch, heads, length, size); the mask of ones and zeros becomes a hundred times its logarithm
    (with the tiniest number for a zero), which is added to the scores."""
    def fn(q, k, v, keep=None):
        s = q @ k.mT * q.shape[-1] ** -0.5
        if keep is not None:
            s = s + torch.log(keep.to(s.dtype).clamp_min(torch.finfo(s.dtype).tiny)) * 100
        return torch.exp(torch.log_softmax(s, -1)) @ v
    return fn


@case(options={"bias": "attn_bias"})
def two_passes_over_key_tiles():
    """(batch, heads, length, size); a first pass over tiles of 8 keys finds the row maximum (detached) and
    sum, a second one adds up the output; the bias, of any shape that broadcasts, is sliced per tile."""
    def fn(q, k, v, attn_bias=None):
        dtype, tile = q.dtype, 8
        q, k, v = wide(q, k, v)
        n, m = q.shape[-2], k.shape[-2]
        if attn_bias is not None:
            attn_bias = attn_bias.to(q.dtype).expand(*attn_bias.shape[:-2], n, m)
        c = 1 / math.sqrt(q.shape[-1])

        def scores(a):
            s = q @ k[..., a:a + tile, :].mT * c
            return s if attn_bias is None else s + attn_bias[..., a:a + tile]

        top = torch.stack([scores(a).detach().amax(-1) for a in range(0, m, tile)]).amax(0)[..., None]
        total = sum(torch.exp(scores(a) - top).sum(-1, keepdim=True) for a in range(0, m, tile))
        out = sum(torch.exp(scores(a) - top) / total @ v[..., a:a + tile, :] for a in range(0, m, tile))
        return out.to(dtype)
    return fn


@case(options={"causal": "causal", "scale": "softmax_scale"},
      source="Dao-AILab/flash-attention csrc/flash_attn/src/flash_fwd_kernel.h")
def key_tiles_from_the_last():
    """(batch, length, heads, size); query tiles of 8, key tiles of 12 from the last visible one to the first,
    online softmax; causal with the last query at the last key, n <= m; zeros are never divided."""
    def flash(q, k, v, softmax_scale=None, causal=False):
        dtype = q.dtype
        q, k, v = (wide(t).transpose(1, 2) for t in (q, k, v))
        n, m, bq, bk = q.shape[-2], k.shape[-2], 8, 12
        if causal and n > m:
            raise ValueError("more queries than keys")
        c = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        outs = []
        for r in range(0, n, bq):
            qi = q[..., r:r + bq, :] * c
            rows = torch.arange(r, r + qi.shape[-2])[:, None] + (m - n)
            end = min(m, r + bq + m - n) if causal else m
            acc, total, top = None, None, None
            for a in reversed(range(0, end, bk)):
                s = qi @ k[..., a:a + bk, :].mT
                if causal:
                    s = s.masked_fill(torch.arange(a, a + s.shape[-1])[None] > rows, -math.inf)
                here = s.detach().amax(-1, keepdim=True).clamp_min(-1e30)
                new = here if top is None else torch.maximum(top, here)
                p = torch.exp(s - new)
                if top is None:
                    acc, total = p @ v[..., a:a + bk, :], p.sum(-1, keepdim=True)
                else:
                    old = torch.exp(top - new)
                    acc = acc * old + p @ v[..., a:a + bk, :]
                    total = total * old + p.sum(-1, keepdim=True)
                top = new
            outs.append(acc / total)
        return torch.cat(outs, -2).transpose(1, 2).to(dtype)
    return flash


@case()
def padded_to_sixteen_and_masked():
    """(batch, heads, length, size); q, k, v are padded with zeros to multiples of 16 in length and of 8 in
    size, padded keys hidden, and the output is cut; the scale is that of the size before padding."""
    def fn(q, k, v):
        n, m, d, dv = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
        def up(t, rows, cols):
            return F.pad(t, (0, -t.shape[-1] % cols, 0, -t.shape[-2] % rows))
        qq, kk, vv = up(q, 16, 8), up(k, 16, 8), up(v, 16, 8)
        s = torch.matmul(qq, kk.mT) / math.sqrt(d)
        s = s.masked_fill(torch.arange(kk.shape[-2]) >= m, -math.inf)
        return torch.matmul(torch.softmax(s, -1), vv)[..., :n, :dv]
    return fn


@case(options={"causal": "causal"}, source="kernels that take powers of two only, as the Triton tutorial's")
def kernel_of_certain_sizes():
    """(batch, heads, length, size) with size 16, 32 or 64 and a length that is a multiple of 32, self-attention
    only; causal; other sizes are refused with a ValueError."""
    def fn(q, k, v, causal=False):
        if q.shape[-1] not in (16, 32, 64) or q.shape[-1] != v.shape[-1]:
            raise ValueError("head size must be 16, 32 or 64")
        if q.shape[-2] % 32 or q.shape[-2] != k.shape[-2]:
            raise ValueError("length must be a multiple of 32")
        n = q.shape[-2]
        s = torch.einsum("zhmd,zhnd->zhmn", *wide(q, k)) * (1.4426950408889634 / q.shape[-1] ** 0.5)
        if causal:
            s = torch.where(torch.ones(n, n, dtype=torch.bool).tril(), s, -1.0e6)
        p = torch.exp2(s - s.amax(3, keepdim=True).detach())
        return (torch.einsum("zhmn,zhnd->zhmd", p, wide(v)) / p.sum(3, keepdim=True)).to(q.dtype)
    return fn


@case(source="vllm-project/vllm csrc/attention (paged cache)")
def decode_through_a_page_table():
    """One query per sequence without a length axis, q (batch, heads, size); caches (batch, keys, groups,
    size) are laid into pages of 4 in another order and read back through the page table."""
    def decode(q, k_cache, v_cache):
        b, m, g, d = k_cache.shape
        page, count = 4, -(-m // 4)
        table = torch.arange(b * count).flip(0).view(b, count)
        lay = [F.pad(c, (0, 0, 0, 0, 0, count * page - m)).reshape(b * count, page, g, -1).flip(0)
               for c in (k_cache, v_cache)]
        outs = []
        for i in range(b):
            k, v = (pages[table[i]].flatten(0, 1)[:m] for pages in lay)
            qi = q[i].reshape(g, -1, d)
            w = torch.softmax(torch.einsum("grd,mgd->grm", qi, k) / math.sqrt(d), -1)
            outs.append(torch.einsum("grm,mgd->grd", w, v).flatten(0, 1))
        return torch.stack(outs)
    return decode


@case(options={"mask": "padding"})
def three_heads_fastest():
    """Merged features (batch, length, size * 3) with the head as the fastest index, "b n (d h)"; padding
    (batch, m) is True for real keys."""
    heads = 3

    def fn(q, k, v, padding=None):
        q, k, v = (t.unflatten(-1, (-1, heads)) for t in (q, k, v))
        s = torch.einsum("bidh,bjdh->bhij", q, k) * q.shape[2] ** -0.5
        if padding is not None:
            s = s.masked_fill(~padding[:, None, None, :].bool(), torch.finfo(s.dtype).min)
        o = torch.einsum("bhij,bjdh->bidh", s.softmax(-1), v)
        return o.flatten(2)
    return fn


@case(options={"bias": "bias"}, source="triton kernels with a bias, backward with the bias's gradient")
def function_with_bias_gradient():
    """autograd.Function (batch, heads, length, size) with a bias of any shape that broadcasts; its gradient is
    dS summed to the bias's shape; row sums D = rowsum(dO * O)."""
    class Attn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, bias):
            qq, kk, vv = wide(q, k, v)
            s = qq @ kk.mT / math.sqrt(q.shape[-1])
            if bias is not None:
                s = s + bias
            lse = torch.logsumexp(s, -1, keepdim=True)
            out = torch.exp(s - lse) @ vv
            ctx.save_for_backward(q, k, v, bias, out, lse)
            return out.to(q.dtype)

        @staticmethod
        def backward(ctx, do):
            q, k, v, bias, out, lse = ctx.saved_tensors
            c = 1 / math.sqrt(q.shape[-1])
            qq, kk, vv, do = wide(q, k, v, do)
            s = qq @ kk.mT * c
            if bias is not None:
                s = s + bias
            p = torch.exp(s - lse)
            ds = p * (do @ vv.mT - (do * out).sum(-1, keepdim=True))
            db = None if bias is None else ds.sum_to_size(bias.shape).to(bias.dtype)
            return (ds @ kk * c).to(q.dtype), (ds.mT @ qq * c).to(k.dtype), (p.mT @ do).to(v.dtype), db

    def fn(q, k, v, bias=None):
        return Attn.apply(q, k, v, bias)
    return fn


@case(options={"causal": "causal"})
def function_with_group_sums():
    """autograd.Function (batch, heads, length, size) for grouped heads: query heads as (key head, member), the
    members' shares of dk and dv added in the einsum; causal aligned bottom right, n <= m or zeros."""
    class Grouped(torch.autograd.Function):
        @staticmethod
        def probs(q, k, causal):
            n, m = q.shape[-2], k.shape[-2]
            s = torch.einsum("bgrnd,bgmd->bgrnm", q, k) * q.shape[-1] ** -0.5
            if causal:
                seen = torch.ones(n, m, dtype=torch.bool).tril(m - n)
                s = s.masked_fill(~seen, -math.inf)
                return torch.nan_to_num(torch.softmax(s, -1), 0.0)
            return torch.softmax(s, -1)

        @staticmethod
        def forward(ctx, q, k, v, causal):
            ctx.save_for_backward(q, k, v)
            ctx.causal = causal
            qq, kk, vv = wide(q.unflatten(1, (k.shape[1], -1)), k, v)
            p = Grouped.probs(qq, kk, causal)
            return torch.einsum("bgrnm,bgmd->bgrnd", p, vv).flatten(1, 2).to(q.dtype)

        @staticmethod
        def backward(ctx, do):
            q, k, v = ctx.saved_tensors
            g = k.shape[1]
            qq, do, kk, vv = wide(q.unflatten(1, (g, -1)), do.unflatten(1, (g, -1)), k, v)
            p = Grouped.probs(qq, kk, ctx.causal)
            dp = torch.einsum("bgrnd,bgmd->bgrnm", do, vv)
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            dq = torch.einsum("bgrnm,bgmd->bgrnd", ds, kk).flatten(1, 2)
            dk = torch.einsum("bgrnm,bgrnd->bgmd", ds, qq)
            dv = torch.einsum("bgrnm,bgrnd->bgmd", p, do)
            return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None

    def fn(q, k, v, causal=False):
        return Grouped.apply(q, k, v, causal)
    return fn


@case(options={"dropout": "dropout_p", "dropout_mask": "keep"})
def function_with_dropout_factor():
    """autograd.Function (batch, heads, length, size) with a given boolean mask of kept weights, scaled by
    1 / (1 - p); the backward uses D = rowsum(dO * O), which needs no dropout of its own."""
    class Dropped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, z):
            qq, kk, vv = wide(q, k, v)
            p = torch.softmax(qq @ kk.mT / math.sqrt(q.shape[-1]), -1)
            out = (p * z) @ vv
            ctx.save_for_backward(q, k, v, z, p, out)
            return out.to(q.dtype)

        @staticmethod
        def backward(ctx, do):
            q, k, v, z, p, out = ctx.saved_tensors
            qq, kk, vv, do = wide(q, k, v, do)
            dv = (p * z).mT @ do
            ds = p * (z * (do @ vv.mT) - (do * out).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
            return (ds @ kk).to(q.dtype), (ds.mT @ qq).to(k.dtype), dv.to(v.dtype), None

    def fn(q, k, v, dropout_p=0.0, keep=None):
        z = wide(q).new_ones(()) if keep is None else keep.to(wide(q).dtype) / (1 - dropout_p)
        return Dropped.apply(q, k, v, z)
    return fn


@case(options={"mask": "mask", "causal": "causal", "scale": "scale"},
      source="AminRezaei0x443/memory-efficient-attention (query chunks under checkpoint)")
def checkpointed_query_chunks():
    """(batch, length, heads, size); chunks of 6 queries, each recomputed in the backward by checkpoint; boolean
    mask that keeps, (n, m), (b, n, m) or (b, h, n, m); causal aligned top left; -inf."""
    def chunk(q, k, v, keep, scale):
        s = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
        if keep is not None:
            s = s.masked_fill(~keep, -math.inf)
        return torch.einsum("bhqk,bkhd->bqhd", torch.softmax(s, -1), v)

    def fn(q, k, v, mask=None, causal=False, scale=None):
        n, m = q.shape[1], k.shape[1]
        keep = None
        if mask is not None:
            keep = mask.bool()
            keep = keep[None, None] if keep.dim() == 2 else keep[:, None] if keep.dim() == 3 else keep
            keep = keep.expand(*keep.shape[:2], n, m)
        if causal:
            seen = torch.ones(n, m, dtype=torch.bool).tril()[None, None]
            keep = seen if keep is None else keep & seen
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        parts = [checkpoint(chunk, q[:, a:a + 6], k, v, None if keep is None else keep[:, :, a:a + 6], scale,
                            use_reentrant=False) for a in range(0, n, 6)]
        return torch.cat(parts, 1)
    return fn


@case(options={"bias": "bias"})
def products_by_broadcasting():
    """(batch, heads, length, size) without a matrix product: scores and output are sums of broadcast
    products."""
    def fn(q, k, v, bias=None):
        s = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) / q.shape[-1] ** 0.5
        if bias is not None:
            s = s + bias
        w = torch.nn.Softmax(dim=-1)(s)
        return (w.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2)
    return fn


@case()
def causal_triangle_in_halves():
    """Causal always, one length, (batch, heads, length, size): the triangle is divided into two smaller
    triangles and a square, recursively down to 4 rows, merged by logsumexps."""
    def square(q, k, v):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        lse = s.logsumexp(-1, keepdim=True)
        return torch.exp(s - lse) @ v, lse

    def triangle(q, k, v):
        n = q.shape[-2]
        if n <= 4:
            s = q @ k.mT / math.sqrt(q.shape[-1])
            s = s.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf)
            lse = s.logsumexp(-1, keepdim=True)
            return torch.exp(s - lse) @ v, lse
        h = n // 2
        first, flse = triangle(q[..., :h, :], k[..., :h, :], v[..., :h, :])
        a, a_lse = square(q[..., h:, :], k[..., :h, :], v[..., :h, :])
        b, b_lse = triangle(q[..., h:, :], k[..., h:, :], v[..., h:, :])
        lse = torch.logaddexp(a_lse, b_lse)
        second = a * torch.exp(a_lse - lse) + b * torch.exp(b_lse - lse)
        return torch.cat([first, second], -2), torch.cat([flse, lse], -2)

    def fn(q, k, v):
        assert q.shape[-2] == k.shape[-2], "self-attention only"
        return triangle(*wide(q, k, v))[0].to(q.dtype)
    return fn


@case(options={"causal": "causal"}, source="Dao-AILab/flash-attention flash_attn_kvpacked_func, written out")
def key_value_packed():
    """q (batch, n, heads, size); k and v, of the same size, are stacked to (batch, m, 2, heads, size) first;
    causal with the last query at the last key; zeros for queries before the first key."""
    def kvpacked(q, kv, causal):
        n, m = q.shape[1], kv.shape[1]
        s = torch.einsum("bthd,bshd->bhts", q * q.shape[-1] ** -0.5, kv[:, :, 0])
        if causal:
            late = torch.arange(m)[None, :] > torch.arange(n)[:, None] + m - n
            s = s.masked_fill(late, -math.inf)
            w = torch.softmax(s.masked_fill(late.all(-1, keepdim=True), 0.0), -1)
            w = w.masked_fill(late.all(-1, keepdim=True), 0.0)
        else:
            w = torch.softmax(s, -1)
        return torch.einsum("bhts,bshd->bthd", w, kv[:, :, 1])

    def fn(q, k, v, causal=False):
        return kvpacked(q, torch.stack([k, v], dim=2), causal)
    return fn


@case(options={"causal": "causal", "bias": "bias"}, source="pytorch/pytorch torch/nn/attention/flex_attention.py")
def score_and_mask_functions():
    """(batch, heads, length, size) in the flex style: a score function adds bias[b, h, i, j], a mask function
    tells which keys are seen, both written for single indices and mapped by vmap over them."""
    def mapped(f, shape):
        b, h, n, m = (torch.arange(x) for x in shape)
        for at in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
            f = torch.func.vmap(f, in_dims=at)
        return f(b, h, n, m)

    def fn(q, k, v, causal=False, bias=None):
        shape = (*q.shape[:3], k.shape[-2])
        s = q @ k.mT * (1 / math.sqrt(q.shape[-1]))
        if bias is not None:
            full = bias.expand(shape)
            s = s + mapped(lambda b, h, i, j: full[b, h, i, j], shape)
        if causal:
            s = s.masked_fill(~mapped(lambda b, h, i, j: i >= j, shape), -math.inf)
        return s.softmax(-1) @ v
    return fn


@case(source="SageAttention's smoothing of K (thu-ml/SageAttention), without the quantisation")
def keys_centred_first():
    """(batch, heads, length, size); the mean key is taken off all keys first, which shifts each row of scores
    by one number and so leaves the softmax as it is."""
    def fn(q, k, v):
        k = k - k.mean(dim=-2, keepdim=True)
        return torch.softmax(q @ k.transpose(-2, -1) * q.size(-1) ** -0.5, dim=-1) @ v
    return fn


@case()
def ones_beside_the_values():
    """(batch, length, heads, size); a column of ones beside the values gives the denominator in the same
    product; the row's maximum is taken off, detached."""
    def fn(q, k, v):
        qq, kk, vv = wide(q, k, v)
        s = torch.einsum("bnhd,bmhd->bhnm", qq, kk) / math.sqrt(q.shape[-1])
        e = torch.exp(s - s.max(-1, keepdim=True).values.detach())
        both = torch.einsum("bhnm,bmhd->bnhd", e, torch.cat([vv, vv.new_ones(*vv.shape[:-1], 1)], -1))
        return (both[..., :-1] / both[..., -1:]).to(q.dtype)
    return fn


@case(options={"mask": "mask"})
def heads_in_two_shards():
    """(batch, heads, length, size), an even number of heads: two shards of heads as on two devices, gathered
    at the end; a float mask that broadcasts is added, a boolean one keeps."""
    def one(q, k, v, mask):
        s = torch.matmul(q, k.transpose(2, 3)).div(math.sqrt(q.size(3)))
        if mask is not None:
            s = s.masked_fill(mask.logical_not(), -1e30) if mask.dtype == torch.bool else s + mask
        return torch.matmul(F.softmax(s, dim=3), v)

    def fn(q, k, v, mask=None):
        if q.shape[1] % 2:
            raise ValueError("an even number of heads, please")
        if mask is not None:
            mask = mask[(None,) * (4 - mask.dim())]
        parts = []
        for rank in range(2):
            def shard(t, rank=rank):
                return t.chunk(2, dim=1)[rank]
            per_head = mask is not None and mask.shape[1] > 1
            parts.append(one(shard(q), shard(k), shard(v), shard(mask) if per_head else mask))
        return torch.cat(parts, dim=1)
    return fn


@case()
def values_in_column_strips():
    """(heads, batch, length, size), heads first: one softmax, then the output in strips of 5 value channels;
    values may be of another width."""
    def fn(q, k, v):
        w = torch.softmax(torch.baddbmm(
            q.new_zeros(1, 1, 1), q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), beta=0,
            alpha=q.shape[-1] ** -0.5), -1).unflatten(0, q.shape[:2])
        return torch.cat([w @ v[..., a:a + 5] for a in range(0, v.shape[-1], 5)], -1)
    return fn


@case(options={"bias": "pair_bias"}, source="aqlaboratory/openfold openfold/model/primitives.py")
def five_axes_of_rows():
    """(batch, rows, heads, length, size): each row attends within itself; the pair bias (batch, 1, heads, n, m)
    is shared by the rows."""
    def fn(q, k, v, pair_bias=None):
        a = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
        if pair_bias is not None:
            a = a + pair_bias
        return torch.matmul(torch.softmax(a, dim=-1), v)
    return fn


@case(options={"causal": "causal"}, formats=NUMPY)
def np_tiled_cross_backward():
    """NumPy (batch, heads, length, size): forward whole, backward in tiles of 5 queries by 7 keys with
    D = rowsum(dO * O) and the logsumexp; causal with the last query at the last key, n <= m."""
    def forward(q, k, v, causal):
        n, m = q.shape[-2], k.shape[-2]
        assert not causal or n <= m
        s = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
        if causal:
            s = np.where(np.tri(n, m, m - n, dtype=bool), s, -np.inf)
        top = s.max(-1, keepdims=True)
        lse = top + np.log(np.exp(s - top).sum(-1, keepdims=True))
        return np.exp(s - lse) @ v, lse

    def fn(q, k, v, causal=False):
        return forward(q, k, v, causal)[0]

    def backward(do, q, k, v, causal=False):
        out, lse = forward(q, k, v, causal)
        n, m, c = q.shape[-2], k.shape[-2], 1 / math.sqrt(q.shape[-1])
        delta = (do * out).sum(-1, keepdims=True)
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for a in range(0, m, 7):
            kj, vj = k[..., a:a + 7, :], v[..., a:a + 7, :]
            for r in range(0, n, 5):
                qi, doi = q[..., r:r + 5, :], do[..., r:r + 5, :]
                s = c * qi @ np.swapaxes(kj, -1, -2)
                if causal:
                    rows = np.arange(r, r + qi.shape[-2])[:, None] + m - n
                    s = np.where(np.arange(a, a + kj.shape[-2]) <= rows, s, -np.inf)
                p = np.exp(s - lse[..., r:r + 5, :])
                dv[..., a:a + 7, :] += np.swapaxes(p, -1, -2) @ doi
                ds = p * (doi @ np.swapaxes(vj, -1, -2) - delta[..., r:r + 5, :])
                dq[..., r:r + 5, :] += c * ds @ kj
                dk[..., a:a + 7, :] += c * np.swapaxes(ds, -1, -2) @ qi
        return dq, dk, dv
    return fn, backward


@case(options={"mask": "mask", "scale": "scale"}, formats=NUMPY)
def np_grouped_loops():
    """NumPy (batch, length, heads, size) for grouped heads in loops over batch and query head; a mask (batch,
    m) of real keys; an optional scale."""
    def weights(q, k, b, h, g, mask, scale):
        c = q.shape[-1] ** -0.5 if scale is None else scale
        s = q[b, :, h] @ k[b, :, h // g].T * c
        if mask is not None:
            s = np.where(np.asarray(mask)[b][None, :].astype(bool), s, -1e30)
        return _np_softmax(s), c

    def fn(q, k, v, mask=None, scale=None):
        out = np.zeros((*q.shape[:3], v.shape[-1]), q.dtype)
        g = q.shape[2] // k.shape[2]
        for b in range(q.shape[0]):
            for h in range(q.shape[2]):
                out[b, :, h] = weights(q, k, b, h, g, mask, scale)[0] @ v[b, :, h // g]
        return out

    def backward(do, q, k, v, mask=None, scale=None):
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        g = q.shape[2] // k.shape[2]
        for b in range(q.shape[0]):
            for h in range(q.shape[2]):
                p, c = weights(q, k, b, h, g, mask, scale)
                dv[b, :, h // g] += p.T @ do[b, :, h]
                dp = do[b, :, h] @ v[b, :, h // g].T
                ds = p * (dp - (p * dp).sum(1, keepdims=True)) * c
                dq[b, :, h] = ds @ k[b, :, h // g]
                dk[b, :, h // g] += ds.T @ q[b, :, h]
        return dq, dk, dv
    return fn, backward


@case(options={"bias": "rel_bias"}, formats=NUMPY)
def np_sequence_first_bias():
    """NumPy (length, batch, heads, size), a bias (heads, n, m) or one that broadcasts; the backward as a
    Jacobian-vector product written dS = P dP - P (P . dP)."""
    def probs(q, k, rel_bias):
        s = np.einsum("ibhd,jbhd->bhij", q, k) / np.sqrt(q.shape[-1]).astype(q.dtype)
        return _np_softmax(s if rel_bias is None else s + rel_bias)

    def fn(q, k, v, rel_bias=None):
        return np.einsum("bhij,jbhd->ibhd", probs(q, k, rel_bias), v)

    def backward(do, q, k, v, rel_bias=None):
        p = probs(q, k, rel_bias)
        pdp = p * np.einsum("ibhd,jbhd->bhij", do, v)
        ds = (pdp - p * pdp.sum(-1, keepdims=True)) / np.sqrt(q.shape[-1]).astype(q.dtype)
        return (np.einsum("bhij,jbhd->ibhd", ds, k), np.einsum("bhij,ibhd->jbhd", ds, q),
                np.einsum("bhij,ibhd->jbhd", p, do))
    return fn, backward


@case(options={"dropout": "p", "seed": "seed"}, formats=NUMPY)
def np_dropout_drawn_twice():
    """NumPy (batch, heads, length, size); dropout on the weights with default_rng(seed), drawn again from the
    same seed in the backward."""
    def factor(shape, p, seed, dtype):
        if p == 0:
            return np.ones(shape, dtype)
        return (np.random.default_rng(int(seed)).random(shape) >= p).astype(dtype) / (1 - p)

    def probs(q, k):
        return _np_softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))

    def fn(q, k, v, p=0.0, seed=0):
        w = probs(q, k)
        return (w * factor(w.shape, p, seed, w.dtype)) @ v

    def backward(do, q, k, v, p=0.0, seed=0):
        w = probs(q, k)
        z = factor(w.shape, p, seed, w.dtype)
        dw = (do @ v.swapaxes(-1, -2)) * z
        ds = w * (dw - (w * dw).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.swapaxes(-1, -2) @ q, (w * z).swapaxes(-1, -2) @ do
    return fn, backward


# ----------------------------------------------------------------------------------------------- other


@case("other")
def polynomial_kernel():
    """Polynomial attention: weights (q.k / sqrt(d) + 1) ** 2, divided by their sum; (batch, heads, length,
    size)."""
    def fn(q, k, v):
        w = (q @ k.mT / math.sqrt(q.shape[-1]) + 1).square()
        return (w @ v) / (w.sum(-1, keepdim=True) + 1e-6)
    return fn


@case("other", formats=NUMPY)
def np_softplus_normalised():
    """NumPy: softplus of the scores divided by its row sum, with a hand-written backward; (batch, heads,
    length, size)."""
    def parts(q, k):
        s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        a = np.logaddexp(0, s)
        return s, a, a.sum(-1, keepdims=True)

    def fn(q, k, v):
        _, a, total = parts(q, k)
        return a @ v / total

    def backward(do, q, k, v):
        s, a, total = parts(q, k)
        w = a / total
        dw = do @ v.swapaxes(-1, -2)
        da = (dw - (w * dw).sum(-1, keepdims=True)) / total
        ds = da / (1 + np.exp(-s)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.swapaxes(-1, -2) @ q, w.swapaxes(-1, -2) @ do
    return fn, backward


@case("other", formats=NUMPY, source="deep-spin/entmax entmax/activations.py (sparsemax)")
def sparsemax_weights():
    """Sparsemax in place of softmax: the scores' projection onto the simplex, by sorting; (batch, heads,
    length, size)."""
    def sparsemax(z):
        ordered = z.sort(dim=-1, descending=True).values
        number = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)
        sums = ordered.cumsum(-1) - 1
        support = (ordered * number > sums).sum(-1, keepdim=True)
        tau = sums.gather(-1, support - 1) / support.to(z.dtype)
        return (z - tau).clamp_min(0)

    def fn(q, k, v):
        return sparsemax(2 * q @ k.mT / math.sqrt(q.shape[-1])) @ v
    return fn


@case("other", formats=NUMPY, source="lucidrains/x-transformers x_transformers/attend.py (sparse_topk)")
def top_four_keys():
    """Softmax over the four largest scores of each row only; (batch, heads, length, size)."""
    def fn(q, k, v):
        s = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        if s.shape[-1] > 4:
            least = s.topk(4, dim=-1).values[..., -1:]
            s = s.masked_fill(s < least, -torch.finfo(s.dtype).max)
        return torch.einsum("bhij,bhjd->bhid", s.softmax(-1), v)
    return fn


@case("other")
def gaussian_of_distance():
    """Weights from the squared distance of query and key, softmax(-|q - k|^2 / (2 sqrt(d))); (batch, length,
    heads, size)."""
    def fn(q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        apart = (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)
        return (torch.softmax(-apart / (2 * math.sqrt(q.shape[-1])), -1) @ v).transpose(1, 2)
    return fn


@case("other", source="huggingface/pytorch-image-models timm/models/cait.py, with fixed mixing")
def talking_heads_fixed():
    """Talking heads: the scores of neighbouring heads are mixed (0.75 of a head's own, 0.25 of the next one's,
    in a circle) before the softmax; (batch, heads, length, size)."""
    def fn(q, k, v):
        s = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        s = 0.75 * s + 0.25 * s.roll(-1, dims=1)
        return torch.softmax(s, -1) @ v
    return fn


# ---------------------------------------------------------------------------------------------- layers


@case("layer", options={"mask": "padding_mask"})
def layer_around_nn_multihead():
    """nn.MultiheadAttention inside, batch first, self-attention; padding_mask (batch, n) is True for real
    tokens and turned round for key_padding_mask."""
    class Layer(nn.Module):
        def __init__(self, dim=32, heads=4):
            super().__init__()
            self.mha = nn.MultiheadAttention(dim, heads, batch_first=True)

        def forward(self, x, padding_mask=None):
            hide = None if padding_mask is None else ~padding_mask.bool()
            return self.mha(x, x, x, key_padding_mask=hide, need_weights=False)[0]
    return _seeded(Layer)


@case("layer", source="lucidrains/perceiver-pytorch perceiver_pytorch/perceiver_pytorch.py")
def layer_perceiver_cross():
    """Perceiver: latents attend to a context of another width; to_q without bias, to_kv one Linear without
    bias cut in two; inner size 3 * 8 other than either width; output with bias."""
    class Attention(nn.Module):
        def __init__(self, query_dim=20, context_dim=28, heads=3, dim_head=8):
            super().__init__()
            self.scale, self.heads = dim_head ** -0.5, heads
            self.to_q = nn.Linear(query_dim, heads * dim_head, bias=False)
            self.to_kv = nn.Linear(context_dim, heads * dim_head * 2, bias=False)
            self.to_out = nn.Linear(heads * dim_head, query_dim)

        def forward(self, x, context):
            b, n, _ = x.shape
            k, v = self.to_kv(context).chunk(2, dim=-1)
            q, k, v = (t.view(b, t.shape[1], self.heads, -1).transpose(1, 2) for t in (self.to_q(x), k, v))
            attn = (torch.einsum("bhid,bhjd->bhij", q, k) * self.scale).softmax(dim=-1)
            return self.to_out(torch.einsum("bhij,bhjd->bhid", attn, v).transpose(1, 2).reshape(b, n, -1))
    return _seeded(Attention)


@case("layer", source="huggingface/transformers src/transformers/models/qwen2/modeling_qwen2.py")
def layer_qwen_groups_biases():
    """Qwen2 without rotary positions: 6 query heads on 2 key heads, biases on q, k and v, none on o; causal by
    scaled_dot_product_attention with enable_gqa."""
    class Qwen2Attention(nn.Module):
        def __init__(self, hidden=48, heads=6, kv_heads=2):
            super().__init__()
            self.head_dim, self.heads, self.kv_heads = hidden // heads, heads, kv_heads
            self.q_proj = nn.Linear(hidden, heads * self.head_dim, bias=True)
            self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=True)
            self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=True)
            self.o_proj = nn.Linear(heads * self.head_dim, hidden, bias=False)

        def forward(self, hidden_states):
            b, n, _ = hidden_states.shape
            q, k, v = (f(hidden_states).view(b, n, -1, self.head_dim).transpose(1, 2)
                       for f in (self.q_proj, self.k_proj, self.v_proj))
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return self.o_proj(o.transpose(1, 2).reshape(b, n, -1))
    return _seeded(Qwen2Attention)


@case("layer", options={"mask": "attention_mask"},
      source="huggingface/transformers src/transformers/models/gemma/modeling_gemma.py")
def layer_gemma_head_dim():
    """Head size set apart (4 heads of 16 in a model of 40), no biases, an additive mask (b, 1, n, n) or (n, n);
    softmax in at least float32."""
    class GemmaAttention(nn.Module):
        def __init__(self, hidden=40, heads=4, head_dim=16):
            super().__init__()
            self.heads, self.head_dim, self.scaling = heads, head_dim, head_dim ** -0.5
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(hidden, heads * head_dim, bias=False)
                                                     for _ in range(3))
            self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)

        def forward(self, hidden_states, attention_mask=None):
            shape = (*hidden_states.shape[:-1], self.heads, self.head_dim)
            q, k, v = (f(hidden_states).view(shape).transpose(1, 2)
                       for f in (self.q_proj, self.k_proj, self.v_proj))
            s = q @ k.transpose(2, 3) * self.scaling
            if attention_mask is not None:
                s = s + attention_mask
            w = F.softmax(s, dim=-1, dtype=torch.promote_types(s.dtype, torch.float32)).to(q.dtype)
            return self.o_proj((w @ v).transpose(1, 2).reshape(*hidden_states.shape[:-1], -1))
    return _seeded(GemmaAttention)


@case("layer", source="karpathy/ng-video-lecture gpt.py (a list of heads)")
def layer_list_of_heads():
    """A ModuleList of single causal heads, each with Linears of its own and no biases, their outputs
    concatenated and projected; up to 32 tokens."""
    class Head(nn.Module):
        def __init__(self, n_embd, head_size, block_size):
            super().__init__()
            self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))
            self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

        def forward(self, x):
            t = x.shape[1]
            k, q = self.key(x), self.query(x)
            wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
            wei = wei.masked_fill(self.tril[:t, :t] == 0, float("-inf"))
            return F.softmax(wei, dim=-1) @ self.value(x)

    class MultiHead(nn.Module):
        def __init__(self, n_embd=24, num_heads=3, block_size=32):
            super().__init__()
            self.heads = nn.ModuleList([Head(n_embd, n_embd // num_heads, block_size)
                                        for _ in range(num_heads)])
            self.proj = nn.Linear(n_embd, n_embd)

        def forward(self, x):
            return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))
    return _seeded(MultiHead)


@case("layer", source="huggingface/transformers src/transformers/models/bloom/modeling_bloom.py")
def layer_bloom_interleaved_qkv():
    """BLOOM's fused projection with biases, interleaved per head as (head, q k v, size); causal by the lowest
    number; dense with bias."""
    class BloomAttention(nn.Module):
        def __init__(self, hidden=32, heads=4):
            super().__init__()
            self.heads, self.head_dim = heads, hidden // heads
            self.query_key_value = nn.Linear(hidden, 3 * hidden)
            self.dense = nn.Linear(hidden, hidden)

        def forward(self, x):
            b, n, c = x.shape
            fused = self.query_key_value(x).view(b, n, self.heads, 3, self.head_dim)
            q, k, v = fused[..., 0, :], fused[..., 1, :], fused[..., 2, :]
            s = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(self.head_dim)
            s = s.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), torch.finfo(s.dtype).min)
            return self.dense(torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v).reshape(b, n, c))
    return _seeded(BloomAttention)


@case("layer", options={"mask": "key_padding_mask"})
def layer_three_widths():
    """forward(query, key, value) with three widths (32, 24, 40), batch first, biases on all; key_padding_mask
    (batch, m) is True for keys that are ignored."""
    class Attention(nn.Module):
        def __init__(self, embed=32, kdim=24, vdim=40, heads=4):
            super().__init__()
            self.heads = heads
            self.q_proj, self.k_proj = nn.Linear(embed, embed), nn.Linear(kdim, embed)
            self.v_proj, self.out_proj = nn.Linear(vdim, embed), nn.Linear(embed, embed)

        def forward(self, query, key, value, key_padding_mask=None):
            b, n, e = query.shape
            q, k, v = (t.view(b, t.shape[1], self.heads, -1).transpose(1, 2)
                       for t in (self.q_proj(query), self.k_proj(key), self.v_proj(value)))
            s = torch.matmul(q, k.mT) * (e // self.heads) ** -0.5
            if key_padding_mask is not None:
                s = s.masked_fill(key_padding_mask[:, None, None, :].bool(), -math.inf)
            return self.out_proj(torch.matmul(s.softmax(-1), v).transpose(1, 2).reshape(b, n, e))
    return _seeded(Attention)


@case("layer", source="juho-lee/set_transformer modules.py (heads by split and cat), without the residual")
def layer_heads_by_split_and_cat():
    """Set-transformer style: forward(Q, K) with values from K, heads split along the features and stacked
    along the batch, put together again by split and cat; the scale is that of one head."""
    class Mab(nn.Module):
        def __init__(self, dim_q=24, dim_k=16, dim_v=32, num_heads=4):
            super().__init__()
            self.num_heads, self.size = num_heads, dim_v // num_heads
            self.fc_q, self.fc_k, self.fc_v = (nn.Linear(dim_q, dim_v), nn.Linear(dim_k, dim_v),
                                               nn.Linear(dim_k, dim_v))
            self.fc_o = nn.Linear(dim_v, dim_q)

        def forward(self, Q, K):
            q, k, v = (torch.cat(t.split(self.size, 2), 0) for t in (self.fc_q(Q), self.fc_k(K), self.fc_v(K)))
            a = torch.softmax(q.bmm(k.transpose(1, 2)) / math.sqrt(self.size), 2)
            return self.fc_o(torch.cat(a.bmm(v).split(Q.size(0), 0), 2))
    return _seeded(Mab)
