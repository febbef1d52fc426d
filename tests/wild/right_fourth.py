"""Right candidates, fourth collection: attention as public code writes it, written anew."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from cases import collection

CASES, case = collection()


# ---------------------------------------------------------------- attention


@case(source="karpathy/nanoGPT model.py")
def gpt_tril_buffer():
    """Always causal, bhsd, one length for queries and keys (at most 256), mask from a tril buffer, plain
    matmul."""
    block_size = 256
    tril = torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size)

    def attend(q, k, v):
        B, nh, T, hs = q.size()
        assert k.size(2) == T and T <= block_size
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(tril[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        return att @ v

    return attend


@case(options={"mask": "mask", "bias": "bias"}, source="google/flax flax/linen/attention.py")
def flax_like_einsum():
    """bshd with any leading axes, einsum; query divided by sqrt(depth) first; bias added, boolean mask that
    keeps."""
    def dot_product_attention(query, key, value, bias=None, mask=None):
        assert key.shape[:-3] == query.shape[:-3] == value.shape[:-3]
        depth = query.shape[-1]
        query = query / math.sqrt(depth)
        w = torch.einsum("...qhd,...khd->...hqk", query, key)
        if bias is not None:
            w = w + bias
        if mask is not None:
            w = torch.where(mask, w, torch.full_like(w, torch.finfo(w.dtype).min))
        w = torch.exp(w - torch.logsumexp(w, dim=-1, keepdim=True))
        return torch.einsum("...hqk,...khd->...qhd", w, value)

    return dot_product_attention


@case(options={"mask": "attention_mask"}, source="NVIDIA/Megatron-LM dot_product_attention.py")
def megatron_baddbmm_sbhd():
    """sbhd with baddbmm over b*h; the boolean mask is True where a key is HIDDEN (filled with -10000)."""
    def core_attention(query, key, value, attention_mask=None):
        sq, b, np_, hn = query.shape
        sk = key.shape[0]
        norm_factor = math.sqrt(hn)
        q3 = query.reshape(sq, b * np_, hn)
        k3 = key.reshape(sk, b * np_, hn)
        buf = torch.empty(b * np_, sq, sk, dtype=query.dtype)
        scores = torch.baddbmm(buf, q3.transpose(0, 1), k3.transpose(0, 1).transpose(1, 2),
                               beta=0.0, alpha=1.0 / norm_factor)
        scores = scores.view(b, np_, sq, sk)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask, -10000.0)
        probs = torch.softmax(scores, dim=-1)
        v3 = value.reshape(sk, b * np_, -1)
        ctx = torch.bmm(probs.view(b * np_, sq, sk), v3.transpose(0, 1))
        ctx = ctx.view(b, np_, sq, -1).permute(2, 0, 1, 3).contiguous()
        return ctx

    return core_attention


@case(options={"causal": "causal"}, source="lucidrains/memory-efficient-attention-pytorch")
def chunked_running_maximum():
    """Keys taken eight at a time with running maximum and sum, bhsd; causal counted from the top left."""
    CHUNK = 8

    def attention(q, k, v, causal=False):
        scale = q.shape[-1] ** -0.5
        n, m = q.shape[-2], k.shape[-2]
        row = torch.arange(n)[:, None]
        best = torch.full((*q.shape[:-1], 1), -float("inf"), dtype=q.dtype)
        denom = torch.zeros_like(best)
        acc = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
        for start, (kc, vc) in enumerate(zip(k.split(CHUNK, -2), v.split(CHUNK, -2))):
            col = start * CHUNK + torch.arange(kc.shape[-2])[None, :]
            sim = torch.einsum("bhid,bhjd->bhij", q * scale, kc)
            if causal:
                sim = sim.masked_fill(col > row, -torch.finfo(sim.dtype).max)
            new_best = torch.maximum(best, sim.amax(-1, keepdim=True).detach())
            w = (sim - new_best).exp()
            if causal:
                w = w * (col <= row)
            fix = (best - new_best).exp()
            denom = denom * fix + w.sum(-1, keepdim=True)
            acc = acc * fix + w @ vc
            best = new_best
        return acc / denom

    return attention


@case(options={"mask": "mask"}, formats=("float64", "float32"), source="llm.c style, in NumPy")
def numpy_by_hand():
    """NumPy, bhsd, boolean mask that keeps, backward written by hand from the stored softmax."""
    def _probs(q, k, mask):
        s = np.matmul(q, np.swapaxes(k, -1, -2)) / np.sqrt(q.shape[-1]).astype(q.dtype)
        if mask is not None:
            s = np.where(mask, s, -np.inf)
        s = s - s.max(axis=-1, keepdims=True)
        e = np.exp(s)
        return e / e.sum(axis=-1, keepdims=True)

    def forward(q, k, v, mask=None):
        return _probs(q, k, mask) @ v

    def backward(do, q, k, v, mask=None):
        p = _probs(q, k, mask)
        dv = np.swapaxes(p, -1, -2) @ do
        dp = do @ np.swapaxes(v, -1, -2)
        ds = p * (dp - np.sum(dp * p, axis=-1, keepdims=True))
        ds = ds / np.sqrt(q.shape[-1]).astype(q.dtype)
        return ds @ k, np.swapaxes(ds, -1, -2) @ q, dv

    return forward, backward


@case(source="Dao-AILab/flash-attention flash_attn_varlen_func")
def packed_three_documents():
    """Packed (tokens, heads, dim), exactly 24 tokens: documents of 7, 9 and 8 tokens that do not see one
    another; within a document causal."""
    cu_seqlens = torch.tensor([0, 7, 16, 24], dtype=torch.int32)

    def varlen(q, k, v):
        assert q.shape[0] == int(cu_seqlens[-1]) == k.shape[0]
        outs = []
        for lo, hi in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()):
            qs, ks, vs = q[lo:hi], k[lo:hi], v[lo:hi]
            s = torch.einsum("thd,shd->hts", qs, ks) / math.sqrt(q.shape[-1])
            s = s + torch.triu(torch.full((hi - lo, hi - lo), -torch.inf, dtype=s.dtype), diagonal=1)
            outs.append(torch.einsum("hts,shd->thd", s.softmax(-1), vs))
        return torch.cat(outs, 0)

    return varlen


@case(source="pytorch fairseq MultiheadAttention")
def merged_four_heads():
    """(batch, length, 4 * dim): four heads lie side by side in the last axis; bmm over batch*heads."""
    H = 4

    def split(x):
        b, t, e = x.shape
        return x.view(b, t, H, e // H).transpose(1, 2).reshape(b * H, t, e // H)

    def mha_core(query, key, value):
        b, t, e = query.shape
        q, k, v = split(query), split(key), split(value)
        q = q * float(e // H) ** -0.5
        w = torch.bmm(q, k.transpose(1, 2)).softmax(dim=-1)
        return torch.bmm(w, v).view(b, H, t, -1).transpose(1, 2).reshape(b, t, -1)

    return mha_core


@case(options={"bias": "pair_bias"}, source="aqlaboratory/openfold primitives.py")
def no_batch_row_by_row():
    """No batch axis: (heads, length, dim). Query rows one after another, optional additive pair bias
    (heads, n, m)."""
    def attn(q, k, v, pair_bias=None):
        rows = []
        for i in range(q.size(1)):
            logit = (k * q[:, i:i + 1]).sum(-1) * q.size(-1) ** -0.5
            if pair_bias is not None:
                logit = logit + pair_bias[..., i, :]
            a = torch.softmax(logit, -1)
            rows.append((a.unsqueeze(-1) * v).sum(1))
        return torch.stack(rows, dim=1)

    return attn


@case(options={"causal": "is_causal"}, source="Lightning-AI/litgpt litgpt/model.py")
def gqa_repeat_interleave_bshd():
    """bshd, fewer key heads than query heads allowed (repeat_interleave), causal from the top left."""
    def attend(q, k, v, is_causal=False):
        rep = q.shape[2] // k.shape[2]
        if rep > 1:
            k = k.repeat_interleave(rep, dim=2)
            v = v.repeat_interleave(rep, dim=2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return y.transpose(1, 2)

    return attend


@case(options={"groups": "enable_gqa", "mask": "attn_mask"}, source="google-deepmind/gemma gm/nn/_modules.py")
def gqa_folded_groups():
    """bhsd; query heads folded to (kv head, group) by reshape, no key copied; boolean mask that keeps."""
    def fn(q, k, v, attn_mask=None, enable_gqa=False):
        B, H, T, D = q.shape
        K = k.shape[1]
        assert K == H or enable_gqa
        qg = q.reshape(B, K, H // K, T, D)
        logits = torch.einsum("bkgtd,bksd->bkgts", qg, k) * D ** -0.5
        if attn_mask is not None:
            full = attn_mask.expand(B, H, T, k.shape[2]).reshape(B, K, H // K, T, -1)
            logits = logits.masked_fill(~full, -2.3819763e38)
        return torch.einsum("bkgts,bksd->bkgtd", logits.softmax(-1), v).reshape(B, H, T, -1)

    return fn


@case(source="mistralai/mistral-inference one_file_ref.py")
def sliding_window_mask():
    """bhsd, causal sliding window: a query sees itself and the 6 keys before it; n == m."""
    window = 6

    def fn(xq, xk, xv):
        seqlen = xq.shape[2]
        ones = torch.ones((seqlen, seqlen), dtype=torch.float32)
        m = torch.log(torch.triu(torch.tril(ones), diagonal=-window)).to(xq.dtype)
        scores = torch.matmul(xq, xk.transpose(2, 3)) * xq.shape[-1] ** -0.5 + m[None, None]
        probs = scores.float().softmax(-1).type_as(xq) if xq.dtype == torch.bfloat16 else scores.softmax(-1)
        return torch.matmul(probs, xv)

    return fn


@case(source="allenai/longformer sliding_chunks")
def banded_unfold():
    """bhsd, n == m, a band of 4 keys on either side, built by padding and unfold instead of a mask over n
    by n."""
    R = 4

    def fn(q, k, v):
        n = q.shape[2]
        kp, vp = (F.pad(t, (0, 0, R, R)).unfold(2, 2 * R + 1, 1) for t in (k, v))  # b h n d w
        s = torch.einsum("bhnd,bhndw->bhnw", q, kp) / q.shape[-1] ** 0.5
        pos = torch.arange(n)[:, None] + torch.arange(-R, R + 1)[None]
        s = torch.where((pos >= 0) & (pos < n), s, torch.tensor(-float("inf"), dtype=s.dtype))
        return torch.einsum("bhnw,bhndw->bhnd", torch.softmax(s, -1), vp)

    return fn


@case(source="ofirpress/attention_with_linear_biases")
def alibi_inside():
    """bhsd, causal, ALiBi slopes of the paper (any number of heads), n == m."""
    def slopes(n):
        def p2(c):
            r = 2 ** (-(2 ** -(math.log2(c) - 3)))
            return [r * r ** i for i in range(c)]
        if math.log2(n).is_integer():
            return p2(n)
        c = 2 ** math.floor(math.log2(n))
        return p2(c) + slopes(2 * c)[0::2][:n - c]

    def fn(q, k, v):
        t = q.shape[-2]
        rel = torch.arange(t)[None, :] - torch.arange(t)[:, None]
        ali = torch.tensor(slopes(q.shape[1]), dtype=q.dtype).view(-1, 1, 1) * rel.to(q.dtype)
        ali = ali.masked_fill(rel > 0, float("-inf"))
        return torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1]) + ali, -1) @ v

    return fn


@case(options={"causal": "causal"}, source="meta-llama/llama llama/model.py")
def rotary_complex_inside():
    """bshd, rotary positions applied to queries and keys inside (complex pairs, base 10000), causal top
    left."""
    def rot(x):
        wide = x if x.dtype == torch.float64 else x.float()
        d = x.shape[-1]
        inv = 1.0 / (10000.0 ** (torch.arange(0, d, 2, dtype=torch.float64) / d))
        ang = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), inv)
        cis = torch.polar(torch.ones_like(ang), ang)[None, :, None]
        cis = cis if x.dtype == torch.float64 else cis.to(torch.complex64)
        z = torch.view_as_complex(wide.reshape(*x.shape[:-1], d // 2, 2).contiguous()) * cis
        return torch.view_as_real(z).flatten(-2).to(x.dtype)

    def fn(q, k, v, causal=False):
        q, k = rot(q), rot(k)
        w = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(q.shape[-1])
        if causal:
            w = w.masked_fill(~torch.ones(w.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        return torch.einsum("bhnm,bmhd->bnhd", w.softmax(-1), v)

    return fn


@case(options={"scale": "scaling", "mask": "mask"}, source="huggingface/transformers models/gemma2")
def gemma_softcap():
    """bhsd, scores capped by 20 * tanh(s / 20) before the boolean mask that keeps; scale can be given."""
    softcap = 20.0

    def eager(query, key, value, mask=None, scaling=None):
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        w = torch.matmul(query, key.transpose(2, 3)) * scaling
        w = torch.tanh(w / softcap) * softcap
        if mask is not None:
            w = w + torch.zeros(mask.shape, dtype=w.dtype).masked_fill_(~mask, torch.finfo(w.dtype).min)
        return torch.matmul(F.softmax(w, dim=-1), value)

    return eager


@case(source="openai/gpt-oss gpt_oss/torch/model.py")
def sink_column():
    """bhsd, causal, one constant sink logit per head joins the softmax as another column and is then cut
    off."""
    def sdpa(Q, K, V):
        b, h, n, d = Q.shape
        S = torch.linspace(-1.0, 1.0, h, dtype=Q.dtype).reshape(1, h, 1, 1).expand(b, h, n, 1)
        QK = torch.einsum("bhqd,bhkd->bhqk", Q, K) * (1 / math.sqrt(d))
        QK = QK + torch.triu(QK.new_full((n, n), -float("inf")), diagonal=1)
        W = torch.softmax(torch.cat([QK, S], dim=-1), dim=-1)[..., :-1]
        return torch.einsum("bhqk,bhkd->bhqd", W, V)

    return sdpa


@case(options={"dropout": "p_drop", "dropout_mask": "keep"}, source="NVIDIA/apex contrib/multihead_attn")
def dropout_keep_mask():
    """bhsd; dropout by a given boolean keep mask (b, h, n, m): kept probabilities divided by 1 - p_drop;
    backward by hand."""
    def soft(q, k):
        return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)

    def fwd(q, k, v, p_drop=0.0, keep=None):
        p = soft(q, k)
        if keep is not None and p_drop > 0:
            p = p * keep.to(p.dtype) / (1 - p_drop)
        return p @ v

    def bwd(do, q, k, v, p_drop=0.0, keep=None):
        p = soft(q, k)
        z = torch.ones_like(p) if keep is None or p_drop == 0 else keep.to(p.dtype) / (1 - p_drop)
        dv = (p * z).mT @ do
        dp = do @ v.mT * z
        ds = torch._softmax_backward_data(dp, p, -1, p.dtype) * q.shape[-1] ** -0.5
        return ds @ k, ds.mT @ q, dv

    return fwd, bwd


# ---------------------------------------------------------------- not softmax attention


@case("other", source="idiap/fast-transformers linear_attention.py")
def elu_linear_attention():
    """Linear attention with the feature map elu(x) + 1, bshd, not causal."""
    def fn(q, k, v):
        Q, K = F.elu(q) + 1, F.elu(k) + 1
        KV = torch.einsum("nshd,nshm->nhmd", K, v)
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + 1e-6)
        return torch.einsum("nlhd,nhmd,nlh->nlhm", Q, KV, Z)

    return fn


@case("other", source="apple/ml-sigmoid-attention")
def sigmoid_attention():
    """Sigmoid attention, bhsd: sigmoid(q k / sqrt d - log m), no normalisation over keys."""
    def fn(q, k, v):
        s = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) - math.log(k.size(-2))
        return torch.sigmoid(s) @ v

    return fn


@case("other", source="microsoft/torchscale retention.py")
def retention_recurrent():
    """Retention, bhsd, n == m: state S = gamma S + k v, o = q S / sqrt d, another decay in each head; no
    softmax."""
    def fn(q, k, v):
        b, h, n, d = q.shape
        gamma = 1 - 2.0 ** (-5 - torch.arange(h, dtype=q.dtype)).view(1, h, 1, 1)
        state = q.new_zeros(b, h, d, v.shape[-1])
        out = []
        for t in range(n):
            state = gamma * state + k[:, :, t, :, None] * v[:, :, t, None, :]
            out.append((q[:, :, t, None, :] @ state).squeeze(2) * d ** -0.5)
        return torch.stack(out, 2)

    return fn


# ---------------------------------------------------------------- layers


@case("layer", source="karpathy/nanoGPT model.py")
def layer_gpt_block():
    """Causal self-attention of width 64 with 4 heads, one packed qkv projection, x (batch, length, 64)."""
    class CausalSelfAttention(nn.Module):
        def __init__(self, n_embd=64, n_head=4):
            super().__init__()
            self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
            self.n_head, self.n_embd = n_head, n_embd

        def forward(self, x):
            B, T, C = x.size()
            q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
            q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

    torch.manual_seed(0)
    return CausalSelfAttention()


@case("layer", source="meta-llama/llama3 llama/model.py; QwenLM/Qwen3")
def layer_llama_gqa():
    """Llama-like layer: width 64, 4 query heads, 2 key heads, RMS norm of queries and keys, rotary halves,
    causal."""
    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.o_proj = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
            self.k_proj, self.v_proj = nn.Linear(64, 32, bias=False), nn.Linear(64, 32, bias=False)
            self.q_gain, self.k_gain = nn.Parameter(torch.ones(16)), nn.Parameter(torch.ones(16))

        @staticmethod
        def rope(x):
            d, t = x.shape[-1], x.shape[-2]
            f = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
            a = torch.outer(torch.arange(t, dtype=torch.float64), f)
            cos, sin = a.cos().to(x.dtype), a.sin().to(x.dtype)
            x1, x2 = x.chunk(2, -1)
            return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1)

        def forward(self, x):
            b, t, _ = x.shape
            q = self.q_proj(x).view(b, t, 4, 16).transpose(1, 2)
            k = self.k_proj(x).view(b, t, 2, 16).transpose(1, 2)
            v = self.v_proj(x).view(b, t, 2, 16).transpose(1, 2)
            q = self.rope(F.rms_norm(q, (16,), self.q_gain, 1e-6))
            k = self.rope(F.rms_norm(k, (16,), self.k_gain, 1e-6))
            k, v = k[:, :, None].expand(b, 2, 2, t, 16).reshape(b, 4, t, 16), v.repeat_interleave(2, 1)
            w = q @ k.mT / 4.0 + torch.full((t, t), -torch.inf, dtype=x.dtype).triu(1)
            return self.o_proj((w.softmax(-1) @ v).transpose(1, 2).reshape(b, t, 64))

    torch.manual_seed(1)
    return Attn()


@case("layer", source="huggingface/pytorch-image-models timm/models/vision_transformer.py")
def layer_vit():
    """ViT attention, width 48, 3 heads, packed qkv as (3, heads, dim), no mask."""
    class Attention(nn.Module):
        def __init__(self, dim=48, num_heads=3):
            super().__init__()
            self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
            self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

        def forward(self, x):
            B, N, C = x.shape
            q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            attn = ((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1)
            return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))

    torch.manual_seed(2)
    return Attention()


@case("layer", source="microsoft/Swin-Transformer models/swin_transformer.py")
def layer_swin_window():
    """Swin window attention: windows of exactly 4 x 4 = 16 tokens, width 32, 2 heads, learned relative
    position bias."""
    class WindowAttention(nn.Module):
        def __init__(self, dim=32, ws=4, heads=2):
            super().__init__()
            self.heads = heads
            self.table = nn.Parameter(torch.randn((2 * ws - 1) ** 2, heads) * 0.3)
            yx = torch.stack(torch.meshgrid(torch.arange(ws), torch.arange(ws), indexing="ij")).flatten(1)
            rel = yx[:, :, None] - yx[:, None, :] + ws - 1
            self.register_buffer("index", rel[0] * (2 * ws - 1) + rel[1])
            self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

        def forward(self, x):
            B_, N, C = x.shape
            assert N == 16
            q, k, v = self.qkv(x).view(B_, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
            a = q @ k.mT * (C // self.heads) ** -0.5 + self.table[self.index].permute(2, 0, 1)[None]
            return self.proj((a.softmax(-1) @ v).transpose(1, 2).reshape(B_, N, C))

    torch.manual_seed(3)
    return WindowAttention()
