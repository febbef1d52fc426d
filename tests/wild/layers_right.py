"""Right self-attention layers, in the styles of today's public code (each written anew)."""

import math

import torch
import torch.nn.functional as F
from cases import collection
from torch import nn

CASES, case = collection()


def seeded(build):
    """Build a module from a fixed seed without touching the caller's generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1234)
        return build()


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.variance_epsilon = eps

    def forward(self, x):
        var = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(var + self.variance_epsilon))


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def rotary_tables(n, dim, base, like):
    inv = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    ang = torch.outer(torch.arange(n, dtype=torch.float64), inv)
    return ang.cos().to(like), ang.sin().to(like)


def apply_halves(x, cos, sin):
    """x (..., n, d); tables (n, d/2)"""
    cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    return x * cos + rotate_half(x) * sin


def repeat_kv(x, n_rep):
    b, h, n, d = x.shape
    if n_rep == 1:
        return x
    return x[:, :, None].expand(b, h, n_rep, n, d).reshape(b, h * n_rep, n, d)


def get_slopes(n_heads):
    start = 2.0 ** (-8.0 / n_heads)
    return torch.tensor([start ** (i + 1) for i in range(n_heads)])


@case("layer", source="huggingface/transformers src/transformers/models/llama/modeling_llama.py")
def llama_sdpa():
    """Llama's layer: four projections without biases, rotary by halves (base 10000), two key heads for four
    query heads, always causal through F.scaled_dot_product_attention."""
    class LlamaAttention(nn.Module):
        def __init__(self, hidden=64, heads=4, kv_heads=2):
            super().__init__()
            self.num_heads, self.num_kv_heads, self.head_dim = heads, kv_heads, hidden // heads
            self.q_proj = nn.Linear(hidden, heads * self.head_dim, bias=False)
            self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
            self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
            self.o_proj = nn.Linear(heads * self.head_dim, hidden, bias=False)

        def forward(self, x):
            b, n, _ = x.shape
            q = self.q_proj(x).view(b, n, -1, self.head_dim).transpose(1, 2)
            k = self.k_proj(x).view(b, n, -1, self.head_dim).transpose(1, 2)
            v = self.v_proj(x).view(b, n, -1, self.head_dim).transpose(1, 2)
            cos, sin = rotary_tables(n, self.head_dim, 10000.0, x)
            q, k = apply_halves(q, cos, sin), apply_halves(k, cos, sin)
            rep = self.num_heads // self.num_kv_heads
            o = F.scaled_dot_product_attention(q, repeat_kv(k, rep), repeat_kv(v, rep), is_causal=True)
            return self.o_proj(o.transpose(1, 2).reshape(b, n, -1))
    return seeded(LlamaAttention)


@case("layer", source="meta-llama/llama llama/model.py")
def llama_complex():
    """The first Llama's layer: rotary of neighbouring pairs by complex multiplication, a head dimension of
    its own for wq, wk, wv, wo, additive -inf triangle made inside, one key head per query head."""
    class Attention(nn.Module):
        def __init__(self, dim=48, n_heads=3):
            super().__init__()
            self.n_heads, self.head_dim = n_heads, dim // n_heads
            self.wq = nn.Linear(dim, dim, bias=False)
            self.wk = nn.Linear(dim, dim, bias=False)
            self.wv = nn.Linear(dim, dim, bias=False)
            self.wo = nn.Linear(dim, dim, bias=False)

        def rotate(self, t, cis):
            t_ = torch.view_as_complex(t.reshape(*t.shape[:-1], -1, 2))
            return torch.view_as_real(t_ * cis[None, :, None, :]).flatten(3)

        def forward(self, x):
            bsz, seqlen, _ = x.shape
            xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
            xq = xq.view(bsz, seqlen, self.n_heads, self.head_dim)
            xk = xk.view(bsz, seqlen, self.n_heads, self.head_dim)
            xv = xv.view(bsz, seqlen, self.n_heads, self.head_dim)
            cis = torch.complex(*rotary_tables(seqlen, self.head_dim, 10000.0, x))
            xq, xk = self.rotate(xq, cis), self.rotate(xk, cis)
            scores = torch.einsum("bqhd,bkhd->bhqk", xq, xk) / math.sqrt(self.head_dim)
            mask = torch.full((seqlen, seqlen), float("-inf"), dtype=x.dtype).triu(1)
            probs = F.softmax(scores + mask, dim=-1)
            return self.wo(torch.einsum("bhqk,bkhd->bqhd", probs, xv).reshape(bsz, seqlen, -1))
    return seeded(Attention)


@case("layer", options={"mask": "attention_mask"}, source="transformers models/mistral/modeling_mistral.py")
def mistral_window():
    """Mistral's layer, eager: causal with a sliding window of 6 (a query sees itself and the 5 before), a
    single key head for four, base 1e6, and a boolean mask (True keeps) that may be given besides."""
    class MistralAttention(nn.Module):
        window = 6

        def __init__(self, hidden_size=32, heads=4, head_dim=16):
            super().__init__()
            self.heads, self.head_dim = heads, head_dim
            self.q_proj = nn.Linear(hidden_size, heads * head_dim, bias=False)
            self.k_proj = nn.Linear(hidden_size, head_dim, bias=False)
            self.v_proj = nn.Linear(hidden_size, head_dim, bias=False)
            self.o_proj = nn.Linear(heads * head_dim, hidden_size, bias=False)

        def forward(self, hidden_states, attention_mask=None):
            bsz, q_len = hidden_states.shape[:2]
            shape = (bsz, q_len, -1, self.head_dim)
            query = self.q_proj(hidden_states).view(shape).transpose(1, 2)
            key = self.k_proj(hidden_states).view(shape).transpose(1, 2)
            value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
            cos, sin = rotary_tables(q_len, self.head_dim, 1e6, hidden_states)
            query, key = apply_halves(query, cos, sin), apply_halves(key, cos, sin)
            scores = query @ repeat_kv(key, self.heads).transpose(2, 3) * self.head_dim ** -0.5
            pos = torch.arange(q_len)
            dist = pos[:, None] - pos[None, :]
            allowed = (dist >= 0) & (dist < self.window)
            if attention_mask is not None:
                allowed = allowed & attention_mask
            scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
            weights = scores.softmax(-1)
            out = weights @ repeat_kv(value, self.heads)
            return self.o_proj(out.transpose(1, 2).reshape(bsz, q_len, -1))
    return seeded(MistralAttention)


@case("layer", options={"bias": "attention_mask"}, source="transformers models/qwen3/modeling_qwen3.py")
def qwen3_qknorm():
    """Qwen3's layer: RMS norm with a learned gain over each head of q and k before the rotary (halves, base
    1e6), 2 key heads for 4, causal unless an additive mask is given, which then is the whole mask."""
    class Qwen3Attention(nn.Module):
        def __init__(self, hidden=64, heads=4, kv=2, head_dim=16):
            super().__init__()
            self.head_dim, self.groups, self.scaling = head_dim, heads // kv, head_dim ** -0.5
            self.q_proj = nn.Linear(hidden, heads * head_dim, bias=False)
            self.k_proj = nn.Linear(hidden, kv * head_dim, bias=False)
            self.v_proj = nn.Linear(hidden, kv * head_dim, bias=False)
            self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)
            self.q_norm, self.k_norm = RMSNorm(head_dim), RMSNorm(head_dim)

        def forward(self, hidden_states, attention_mask=None):
            lead = hidden_states.shape[:-1]
            split = (*lead, -1, self.head_dim)
            q = self.q_norm(self.q_proj(hidden_states).view(split)).transpose(1, 2)
            k = self.k_norm(self.k_proj(hidden_states).view(split)).transpose(1, 2)
            v = self.v_proj(hidden_states).view(split).transpose(1, 2)
            cos, sin = rotary_tables(lead[1], self.head_dim, 1e6, hidden_states)
            q, k = apply_halves(q, cos, sin), apply_halves(k, cos, sin)
            w = torch.matmul(q, repeat_kv(k, self.groups).transpose(2, 3)) * self.scaling
            if attention_mask is None:
                w = w + torch.full_like(w[0, 0], float("-inf")).triu(1)
            else:
                w = w + attention_mask
            w = F.softmax(w, dim=-1)
            o = torch.matmul(w, repeat_kv(v, self.groups)).transpose(1, 2).reshape(*lead, -1)
            return self.o_proj(o)
    return seeded(Qwen3Attention)


@case("layer", source="google/gemma_pytorch gemma/model.py")
def gemma2_softcap():
    """Gemma 2's layer: qkv in one packed projection with fewer key heads, rotary by halves, its own scale
    (query_pre_attn_scalar 24), softcap 8 before the mask, causal, sliding window of 9."""
    class GemmaAttention(nn.Module):
        def __init__(self, hidden_size=48, num_heads=4, num_kv_heads=2, head_dim=12):
            super().__init__()
            self.nh, self.nkv, self.hd = num_heads, num_kv_heads, head_dim
            self.scaling = 24 ** -0.5
            self.cap, self.window = 8.0, 9
            self.qkv_proj = nn.Linear(hidden_size, (num_heads + 2 * num_kv_heads) * head_dim, bias=False)
            self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

        def forward(self, x):
            B, L, _ = x.shape
            sizes = [self.nh * self.hd, self.nkv * self.hd, self.nkv * self.hd]
            xq, xk, xv = self.qkv_proj(x).split(sizes, dim=-1)
            xq = xq.view(B, L, self.nh, self.hd).transpose(1, 2)
            xk = xk.view(B, L, self.nkv, self.hd).transpose(1, 2)
            xv = xv.view(B, L, self.nkv, self.hd).transpose(1, 2)
            cos, sin = rotary_tables(L, self.hd, 10000.0, x)
            xq, xk = apply_halves(xq, cos, sin), apply_halves(xk, cos, sin)
            xk = xk.repeat_interleave(self.nh // self.nkv, dim=1)
            xv = xv.repeat_interleave(self.nh // self.nkv, dim=1)
            s = torch.matmul(xq * self.scaling, xk.mT)
            s = torch.tanh(s / self.cap) * self.cap
            ones = torch.ones(L, L, dtype=torch.bool)
            keep = ones.tril() & ones.triu(1 - self.window)
            s = torch.where(keep, s, torch.tensor(-2.3819763e38, dtype=s.dtype))
            return self.o_proj((s.softmax(-1) @ xv).transpose(1, 2).flatten(2))
    return seeded(GemmaAttention)


@case("layer", source="huggingface/transformers models/gemma3/modeling_gemma3.py")
def gemma3_local():
    """Gemma 3's local layer: RMS norm of q and k with gain (1 + weight), weights started at zero, rotary base
    10000, window of 7, one key head for two query heads, scale query_pre_attn_scalar ** -0.5."""
    class Gemma3RMSNorm(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(dim))

        def forward(self, x):
            y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
            return y * (1.0 + self.weight)

    class Gemma3Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj = nn.Linear(40, 32, bias=False)
            self.k_proj = nn.Linear(40, 16, bias=False)
            self.v_proj = nn.Linear(40, 16, bias=False)
            self.o_proj = nn.Linear(32, 40, bias=False)
            self.q_norm, self.k_norm = Gemma3RMSNorm(16), Gemma3RMSNorm(16)

        def forward(self, hidden_states):
            b, n, _ = hidden_states.shape
            q = self.q_norm(self.q_proj(hidden_states).unflatten(-1, (2, 16)).transpose(1, 2))
            k = self.k_norm(self.k_proj(hidden_states).unflatten(-1, (1, 16)).transpose(1, 2))
            v = self.v_proj(hidden_states).unflatten(-1, (1, 16)).transpose(1, 2)
            cos, sin = rotary_tables(n, 16, 10000.0, hidden_states)
            q, k = apply_halves(q, cos, sin), apply_halves(k, cos, sin)
            i = torch.arange(n)
            band = (i[:, None] >= i) & (i[:, None] - i < 7)
            k, v = k.expand(-1, 2, -1, -1), v.expand(-1, 2, -1, -1)
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=band, scale=16 ** -0.5)
            return self.o_proj(o.transpose(1, 2).contiguous().view(b, n, 32))
    return seeded(Gemma3Attention)


@case("layer", source="openai/gpt-oss gpt_oss/torch/model.py")
def gpt_oss_sinks():
    """gpt-oss's layer: one learned sink logit per head as a further column of the softmax, packed qkv with a
    bias, einsum over (key head, queries of a group), rotary by halves with base 150000, window of 5."""
    class AttentionBlock(nn.Module):
        def __init__(self, hidden=64, n_heads=4, n_kv=2, head_dim=16, sliding_window=5):
            super().__init__()
            self.n_heads, self.n_kv, self.head_dim = n_heads, n_kv, head_dim
            self.sliding_window = sliding_window
            self.sinks = nn.Parameter(torch.randn(n_heads))
            self.qkv = nn.Linear(hidden, head_dim * (n_heads + 2 * n_kv))
            self.out = nn.Linear(head_dim * n_heads, hidden)
            self.sm_scale = 1 / math.sqrt(head_dim)

        def rope(self, x, cos, sin):
            cos, sin = cos[:, None, :], sin[:, None, :]
            x1, x2 = torch.chunk(x, 2, dim=-1)
            return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)

        def sdpa(self, Q, K, V):
            B, n, kv, m, d = Q.shape
            S = self.sinks.reshape(kv, m, 1, 1).expand(B, -1, -1, n, -1)
            K = K[:, :, :, None, :].expand(-1, -1, -1, m, -1)
            V = V[:, :, :, None, :].expand(-1, -1, -1, m, -1)
            mask = torch.triu(Q.new_full((n, n), -float("inf")), diagonal=1)
            mask = mask + torch.tril(mask.new_full((n, n), -float("inf")), diagonal=-self.sliding_window)
            QK = torch.einsum("bqhmd,bkhmd->bhmqk", Q, K) * self.sm_scale + mask
            W = torch.softmax(torch.cat([QK, S], dim=-1), dim=-1)[..., :-1]
            return torch.einsum("bhmqk,bkhmd->bqhmd", W, V).reshape(B, n, -1)

        def forward(self, x):
            B, n, _ = x.shape
            q, k, v = self.qkv(x).split([self.n_heads * self.head_dim] + 2 * [self.n_kv * self.head_dim], -1)
            q = q.view(B, n, self.n_heads, self.head_dim)
            k = k.view(B, n, self.n_kv, self.head_dim)
            v = v.view(B, n, self.n_kv, self.head_dim)
            cos, sin = rotary_tables(n, self.head_dim, 150000.0, x)
            q, k = self.rope(q, cos, sin), self.rope(k, cos, sin)
            q = q.view(B, n, self.n_kv, self.n_heads // self.n_kv, self.head_dim)
            return self.out(self.sdpa(q, k, v))
    return seeded(AttentionBlock)


@case("layer", source="EleutherAI/gpt-neox megatron/model/transformer.py")
def gpt_neox_packed():
    """GPT-NeoX's layer: query_key_value packed head by head (q, k, v of a head side by side), rotary by
    halves on the first quarter of the features, biases, causal buffer."""
    class GPTNeoXAttention(nn.Module):
        def __init__(self, hidden_size=64, num_heads=4, rotary_pct=0.25, max_pos=128):
            super().__init__()
            self.num_heads, self.head_size = num_heads, hidden_size // num_heads
            self.rotary_ndims = int(self.head_size * rotary_pct)
            self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
            self.dense = nn.Linear(hidden_size, hidden_size)
            self.register_buffer("bias", torch.tril(torch.ones(max_pos, max_pos, dtype=torch.bool)),
                                 persistent=False)
            self.norm_factor = self.head_size ** -0.5

        def forward(self, hidden_states):
            b, n, _ = hidden_states.shape
            qkv = self.query_key_value(hidden_states).view(b, n, self.num_heads, 3 * self.head_size)
            q, k, v = qkv.transpose(1, 2).chunk(3, dim=-1)
            r = self.rotary_ndims
            cos, sin = rotary_tables(n, r, 10000.0, hidden_states)
            q = torch.cat((apply_halves(q[..., :r], cos, sin), q[..., r:]), dim=-1)
            k = torch.cat((apply_halves(k[..., :r], cos, sin), k[..., r:]), dim=-1)
            scores = torch.matmul(q, k.transpose(-1, -2)) * self.norm_factor
            scores = torch.where(self.bias[:n, :n], scores, torch.finfo(scores.dtype).min)
            attn = torch.matmul(F.softmax(scores, dim=-1), v)
            return self.dense(attn.permute(0, 2, 1, 3).reshape(b, n, -1))
    return seeded(GPTNeoXAttention)


@case("layer", source="huggingface/transformers models/gptj/modeling_gptj.py")
def gptj_interleaved():
    """GPT-J's layer: rotary of neighbouring pairs (rotate_every_two) on the first 8 of 16 features, no
    biases, division by sqrt(d), causal."""
    def rotate_every_two(x):
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)

    class GPTJAttention(nn.Module):
        def __init__(self, embed_dim=32, heads=2, rotary_dim=8):
            super().__init__()
            self.heads, self.head_dim, self.rotary_dim = heads, embed_dim // heads, rotary_dim
            for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
                self.add_module(name, nn.Linear(embed_dim, embed_dim, bias=False))
            self.scale_attn = math.sqrt(self.head_dim)

        def _split(self, t):
            return t.view(*t.shape[:-1], self.heads, self.head_dim)

        def forward(self, hidden_states):
            q, k = self._split(self.q_proj(hidden_states)), self._split(self.k_proj(hidden_states))
            v = self._split(self.v_proj(hidden_states)).permute(0, 2, 1, 3)
            cos, sin = rotary_tables(q.shape[1], self.rotary_dim, 10000.0, q)
            cos = cos.repeat_interleave(2, -1)[:, None, :]
            sin = sin.repeat_interleave(2, -1)[:, None, :]

            def turn(t):
                head, rest = t[..., :self.rotary_dim], t[..., self.rotary_dim:]
                return torch.cat([head * cos + rotate_every_two(head) * sin, rest], dim=-1)
            q, k = turn(q).permute(0, 2, 1, 3), turn(k).permute(0, 2, 1, 3)
            w = q @ k.transpose(-1, -2)
            future = torch.ones(w.shape[-2:], dtype=torch.bool).triu(1)
            w = w.masked_fill(future, torch.finfo(w.dtype).min) / self.scale_attn
            out = (w.softmax(dim=-1) @ v).permute(0, 2, 1, 3).flatten(2)
            return self.out_proj(out)
    return seeded(GPTJAttention)


@case("layer", options={"causal": "is_causal"}, source="mosaicml/llm-foundry models/layers/attention.py")
def mpt_alibi():
    """MPT's layer: Wqkv packed, ALiBi counted from the last key (the same as relative, by a shift of each
    row), causal by argument (default True), no biases."""
    class MultiheadAttention(nn.Module):
        def __init__(self, d_model=64, n_heads=4):
            super().__init__()
            self.n_heads = n_heads
            self.Wqkv = nn.Linear(d_model, 3 * d_model, bias=False)
            self.out_proj = nn.Linear(d_model, d_model, bias=False)
            self.softmax_scale = (d_model // n_heads) ** -0.5

        def forward(self, x, is_causal=True):
            b, s, d = x.shape
            q, k, v = self.Wqkv(x).chunk(3, dim=2)
            q, v = (t.view(b, s, self.n_heads, -1).transpose(1, 2) for t in (q, v))
            k = k.view(b, s, self.n_heads, -1).permute(0, 2, 3, 1)
            alibi = torch.arange(1 - s, 1, dtype=x.dtype).view(1, 1, 1, s)
            alibi = alibi * get_slopes(self.n_heads).to(x).view(1, -1, 1, 1)
            w = q.matmul(k) * self.softmax_scale + alibi
            if is_causal:
                keep = torch.ones(s, s).tril().to(torch.bool)
                w = w.masked_fill(~keep.view(1, 1, s, s), torch.finfo(w.dtype).min)
            out = torch.softmax(w, dim=-1).matmul(v)
            return self.out_proj(out.transpose(1, 2).reshape(b, s, d))
    return seeded(MultiheadAttention)


@case("layer", source="huggingface/transformers models/bloom/modeling_bloom.py")
def bloom_alibi():
    """BLOOM's layer: query_key_value packed as (heads, 3, head_dim), ALiBi as the key's position times the
    slope put in by baddbmm, biases, causal."""
    class BloomAttention(nn.Module):
        def __init__(self, hidden=32, heads=4):
            super().__init__()
            self.heads, self.head_dim = heads, hidden // heads
            self.query_key_value = nn.Linear(hidden, 3 * hidden, bias=True)
            self.dense = nn.Linear(hidden, hidden)
            self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)

        def forward(self, hidden_states):
            b, n, _ = hidden_states.shape
            fused = self.query_key_value(hidden_states).view(b, n, self.heads, 3, self.head_dim)
            q, k, v = (fused[..., i, :].transpose(1, 2).reshape(b * self.heads, n, -1) for i in range(3))
            alibi = get_slopes(self.heads).to(q)[:, None] * torch.arange(n).to(q)[None, :]
            alibi = alibi.repeat(b, 1).unsqueeze(1).expand(-1, n, -1)
            scores = torch.baddbmm(alibi, q, k.transpose(1, 2), beta=1.0, alpha=self.inv_norm_factor)
            scores = scores + torch.full((n, n), float("-inf")).triu(1).to(scores)
            ctx = torch.bmm(F.softmax(scores, dim=-1), v).view(b, self.heads, n, self.head_dim)
            return self.dense(ctx.permute(0, 2, 1, 3).reshape(b, n, -1))
    return seeded(BloomAttention)


@case("layer", source="Stability-AI/StableLM; transformers models/stablelm/modeling_stablelm.py")
def stablelm_partial():
    """StableLM's layer: biases on q, k, v and none on o, a quarter of 32 features rotated by halves, all
    heads have keys of their own, causal."""
    class StableLmAttention(nn.Module):
        def __init__(self, hidden=64, heads=2, factor=0.25, theta=10000):
            super().__init__()
            self.heads, self.hd, self.theta = heads, hidden // heads, theta
            self.rot = int(factor * self.hd)
            self.q_proj = nn.Linear(hidden, hidden, bias=True)
            self.k_proj = nn.Linear(hidden, hidden, bias=True)
            self.v_proj = nn.Linear(hidden, hidden, bias=True)
            self.o_proj = nn.Linear(hidden, hidden, bias=False)

        def forward(self, x):
            bsz, n, _ = x.size()
            q, k, v = [p(x).view(bsz, n, self.heads, self.hd).transpose(1, 2)
                       for p in (self.q_proj, self.k_proj, self.v_proj)]
            cos, sin = rotary_tables(n, self.rot, self.theta, x)
            q_rot, q_pass = q[..., : self.rot], q[..., self.rot:]
            k_rot, k_pass = k[..., : self.rot], k[..., self.rot:]
            q = torch.cat((apply_halves(q_rot, cos, sin), q_pass), dim=-1)
            k = torch.cat((apply_halves(k_rot, cos, sin), k_pass), dim=-1)
            w = q @ k.transpose(2, 3) / math.sqrt(self.hd)
            w = w + torch.triu(torch.full((n, n), torch.finfo(x.dtype).min, dtype=x.dtype), 1)
            w = w.softmax(-1)
            return self.o_proj((w @ v).transpose(1, 2).reshape(bsz, n, -1))
    return seeded(StableLmAttention)


@case("layer", options={"mask": "attention_mask"}, source="transformers models/phi/modeling_phi.py")
def phi_half():
    """Phi's layer: half of the features rotated, biases everywhere, `dense` at the end, SDPA that is causal
    only when no mask is given."""
    class PhiAttention(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config
            h, self.hd = config["hidden"], config["hidden"] // config["heads"]
            self.q_proj, self.k_proj, self.v_proj = nn.Linear(h, h), nn.Linear(h, h), nn.Linear(h, h)
            self.dense = nn.Linear(h, h)
            self.rotary_ndims = int(self.hd * config["partial_rotary_factor"])

        def forward(self, hidden_states, attention_mask=None):
            shape = (*hidden_states.shape[:2], -1, self.hd)
            q = self.q_proj(hidden_states).view(shape).transpose(1, 2)
            k = self.k_proj(hidden_states).view(shape).transpose(1, 2)
            v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
            r = self.rotary_ndims
            cos, sin = rotary_tables(shape[1], r, self.config["theta"], q)
            q = torch.cat([apply_halves(q[..., :r], cos, sin), q[..., r:]], -1)
            k = torch.cat([apply_halves(k[..., :r], cos, sin), k[..., r:]], -1)
            causal = attention_mask is None
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask, is_causal=causal)
            return self.dense(o.transpose(1, 2).flatten(2))
    config = {"hidden": 48, "heads": 3, "partial_rotary_factor": 0.5, "theta": 10000.0}
    return seeded(lambda: PhiAttention(config))


@case("layer", source="allenai/OLMo-core src/olmo_core/nn/attention")
def olmo2_wide_norm():
    """OLMo 2's layer: RMS norm with gain over the whole projected width of q and of k, before heads are
    split; base 500000, 4 heads with 2 key heads, causal."""
    class Olmo2Attention(nn.Module):
        def __init__(self, d=64, heads=4, kv=2):
            super().__init__()
            self.hd, self.rep = d // heads, heads // kv
            self.w_q = nn.Linear(d, heads * self.hd, bias=False)
            self.w_k = nn.Linear(d, kv * self.hd, bias=False)
            self.w_v = nn.Linear(d, kv * self.hd, bias=False)
            self.w_out = nn.Linear(heads * self.hd, d, bias=False)
            self.q_norm = RMSNorm(heads * self.hd, 1e-6)
            self.k_norm = RMSNorm(kv * self.hd, 1e-6)

        def forward(self, x):
            B, T, _ = x.shape
            q, k, v = self.q_norm(self.w_q(x)), self.k_norm(self.w_k(x)), self.w_v(x)
            q, k, v = (t.view(B, T, -1, self.hd).transpose(1, 2) for t in (q, k, v))
            cos, sin = rotary_tables(T, self.hd, 500000.0, x)
            q, k = apply_halves(q, cos, sin), apply_halves(k, cos, sin)
            k, v = repeat_kv(k, self.rep), repeat_kv(v, self.rep)
            att = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
            return self.w_out(att.transpose(1, 2).contiguous().view(B, T, -1))
    return seeded(Olmo2Attention)


@case("layer", source="karpathy/nanochat nanochat/gpt.py")
def nanochat_attention():
    """nanochat's layer: rotary first (halves, turned the other way round: y1 = x1 c + x2 s), then RMS norm
    without a gain on q and k, grouped keys by enable_gqa, causal."""
    def norm(x):
        return F.rms_norm(x, (x.size(-1),))

    class CausalSelfAttention(nn.Module):
        def __init__(self, n_embd=64, n_head=4, n_kv_head=1):
            super().__init__()
            self.n_head, self.n_kv_head, self.head_dim = n_head, n_kv_head, n_embd // n_head
            self.c_q = nn.Linear(n_embd, n_head * self.head_dim, bias=False)
            self.c_k = nn.Linear(n_embd, n_kv_head * self.head_dim, bias=False)
            self.c_v = nn.Linear(n_embd, n_kv_head * self.head_dim, bias=False)
            self.c_proj = nn.Linear(n_embd, n_embd, bias=False)

        def forward(self, x):
            B, T, C = x.size()
            q = self.c_q(x).view(B, T, self.n_head, self.head_dim)
            k = self.c_k(x).view(B, T, self.n_kv_head, self.head_dim)
            v = self.c_v(x).view(B, T, self.n_kv_head, self.head_dim)
            cos, sin = (t[None, :, None, :] for t in rotary_tables(T, self.head_dim, 10000, x))

            def rope(t):
                d = t.shape[3] // 2
                x1, x2 = t[..., :d], t[..., d:]
                return torch.cat([x1 * cos + x2 * sin, x1 * (-sin) + x2 * cos], 3)
            q, k = norm(rope(q)), norm(rope(k))
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            gqa = self.n_head != self.n_kv_head
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
            return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, -1))
    return seeded(CausalSelfAttention)


@case("layer", source="KellerJordan/modded-nanogpt train_gpt.py")
def modded_nanogpt():
    """A speed-run layer: one parameter (3, width, width) for q, k, v, norm without gain then rotary whose
    upper half of frequencies is zero, a fixed scale of 0.12, output matrix started at zero, causal."""
    class CausalSelfAttention(nn.Module):
        def __init__(self, dim=48, num_heads=3):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, dim // num_heads
            bound = 3 ** 0.5 * 0.5 * dim ** -0.5
            self.qkv_w = nn.Parameter(torch.empty(3, dim, dim).uniform_(-bound, bound))
            self.c_proj = nn.Linear(dim, dim, bias=False)
            self.c_proj.weight.data.zero_()
            self.attn_scale = 0.12

        def rotary(self, x):
            n, d = x.size(1), self.head_dim
            freq = (1 / 1024) ** torch.linspace(0, 1, steps=d // 4, dtype=torch.float64)
            freq = torch.cat([freq, freq.new_zeros(d // 4)])
            theta = torch.outer(torch.arange(n, dtype=torch.float64), freq)
            cos, sin = theta.cos()[None, :, None].to(x), theta.sin()[None, :, None].to(x)
            x1, x2 = x.chunk(2, dim=-1)
            return torch.cat((x1 * cos + x2 * sin, x1 * (-sin) + x2 * cos), -1)

        def forward(self, x):
            B, T = x.size(0), x.size(1)
            qkv = F.linear(x, self.qkv_w.flatten(end_dim=1)).view(B, T, 3 * self.num_heads, -1)
            q, k, v = qkv.chunk(3, dim=-2)
            q, k = F.rms_norm(q, (self.head_dim,)), F.rms_norm(k, (self.head_dim,))
            q, k = self.rotary(q), self.rotary(k)
            y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                               is_causal=True, scale=self.attn_scale).transpose(1, 2)
            return self.c_proj(y.contiguous().view(B, T, -1))
    return seeded(CausalSelfAttention)


@case("layer", options={"mask": "mask"}, source="huggingface/pytorch-image-models timm/layers/attention.py")
def encoder_qkv():
    """A vision encoder's layer: packed qkv as (3, heads, head_dim) with bias, not causal, no positions, a
    boolean mask (True keeps) by argument; gains of the QK norm of its own."""
    class Attention(nn.Module):
        def __init__(self, dim=32, num_heads=4):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, dim // num_heads
            self.qkv = nn.Linear(dim, dim * 3, bias=True)
            self.q_norm = nn.RMSNorm(self.head_dim, eps=1e-6)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=1e-6)
            self.proj = nn.Linear(dim, dim)

        def forward(self, x, mask=None):
            B, N, C = x.shape
            qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
            q, k, v = qkv.unbind(0)
            q, k = self.q_norm(q), self.k_norm(k)
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.proj(x.transpose(1, 2).reshape(B, N, C))
    return seeded(Attention)


@case("layer", source="THUDM/ChatGLM3; transformers models/glm/modeling_glm.py")
def glm_interleaved_mqa():
    """GLM's layer: neighbouring pairs rotated on the first half of the features, 4 query heads on 2 key heads
    in one unevenly packed projection with a bias, `dense` without, causal."""
    class GLMSelfAttention(nn.Module):
        def __init__(self, hidden=64, heads=4, groups=2):
            super().__init__()
            self.h, self.g, self.d = heads, groups, hidden // heads
            self.query_key_value = nn.Linear(hidden, hidden + 2 * groups * self.d, bias=True)
            self.dense = nn.Linear(hidden, hidden, bias=False)

        def rope(self, x):
            rot = self.d // 2
            xs, rest = x[..., :rot].unflatten(-1, (rot // 2, 2)), x[..., rot:]
            cos, sin = rotary_tables(x.shape[2], rot, 10000.0, x)
            out = torch.stack([xs[..., 0] * cos - xs[..., 1] * sin, xs[..., 1] * cos + xs[..., 0] * sin], -1)
            return torch.cat((out.flatten(3), rest), dim=-1)

        def forward(self, hidden_states):
            b, n, _ = hidden_states.shape
            mixed = self.query_key_value(hidden_states)
            q, k, v = mixed.split([self.h * self.d, self.g * self.d, self.g * self.d], dim=-1)
            q = self.rope(q.view(b, n, self.h, self.d).transpose(1, 2))
            k = self.rope(k.view(b, n, self.g, self.d).transpose(1, 2))
            v = v.view(b, n, self.g, self.d).transpose(1, 2)
            q = q.view(b, self.g, self.h // self.g, n, self.d)
            s = torch.einsum("bgrqd,bgkd->bgrqk", q, k) / self.d ** 0.5
            s = s.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
            o = torch.einsum("bgrqk,bgkd->bqgrd", torch.softmax(s, -1), v)
            return self.dense(o.reshape(b, n, -1))
    return seeded(GLMSelfAttention)


@case("layer")
def handwritten_softcap_sinks():
    """A layer with a backward pass by hand that saves only the log sum: softcap, sinks, window, groups of key
    heads, everything taken back rightly."""
    class CappedSinkAttention(torch.autograd.Function):
        @staticmethod
        def scores(q, k, cap, window, scale):
            raw = scale * torch.einsum("bgrid,bgjd->bgrij", q, k)
            i = torch.arange(q.shape[3])
            bad = (i[None, :] > i[:, None]) | (i[:, None] - i[None, :] >= window)
            t = torch.tanh(raw / cap)
            return (cap * t).masked_fill(bad, float("-inf")), 1 - t * t

        @staticmethod
        def forward(ctx, q, k, v, sinks, cap, window, scale):
            s, _ = CappedSinkAttention.scores(q, k, cap, window, scale)
            sink = sinks.view(1, *sinks.shape, 1)
            lse = torch.logaddexp(torch.logsumexp(s, -1), sink.expand(s.shape[:-1]))
            o = torch.einsum("bgrij,bgjd->bgrid", torch.exp(s - lse[..., None]), v)
            ctx.save_for_backward(q, k, v, sinks, o, lse)
            ctx.rest = cap, window, scale
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, sinks, o, lse = ctx.saved_tensors
            cap, window, scale = ctx.rest
            s, slope = CappedSinkAttention.scores(q, k, cap, window, scale)
            p = torch.exp(s - lse[..., None])
            delta = (do * o).sum(-1)
            ds = p * (torch.einsum("bgrid,bgjd->bgrij", do, v) - delta[..., None]) * slope * scale
            dsink = -(torch.exp(sinks.view(1, *sinks.shape, 1) - lse) * delta).sum((0, 3))
            dq = torch.einsum("bgrij,bgjd->bgrid", ds, k)
            dk = torch.einsum("bgrij,bgrid->bgjd", ds, q)
            dv = torch.einsum("bgrij,bgrid->bgjd", p, do)
            return dq, dk, dv, dsink, None, None, None

    class Layer(nn.Module):
        def __init__(self, width=32, groups=2, rep=2, d=8):
            super().__init__()
            self.groups, self.rep, self.d = groups, rep, d
            self.q_proj = nn.Linear(width, groups * rep * d)
            self.k_proj = nn.Linear(width, groups * d)
            self.v_proj = nn.Linear(width, groups * d)
            self.o_proj = nn.Linear(groups * rep * d, width, bias=False)
            self.sinks = nn.Parameter(torch.randn(groups * rep))

        def forward(self, x):
            b, n, _ = x.shape
            q = self.q_proj(x).view(b, n, self.groups, self.rep, self.d).permute(0, 2, 3, 1, 4)
            k = self.k_proj(x).view(b, n, self.groups, self.d).transpose(1, 2)
            v = self.v_proj(x).view(b, n, self.groups, self.d).transpose(1, 2)
            sinks = self.sinks.view(self.groups, self.rep)
            o = CappedSinkAttention.apply(q, k, v, sinks, 5.0, 6, self.d ** -0.5)
            return self.o_proj(o.permute(0, 3, 1, 2, 4).reshape(b, n, -1))
    return seeded(Layer)


@case("layer", options={"causal": "causal"})
def handwritten_norm_rope():
    """A layer with two Functions by hand: RMS norm with gain (projection term and gain's gradient) and the
    rotation of neighbouring pairs (turned back with -sin); attention itself by autograd, causal by argument,
    default False."""
    class RMSNormFn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, eps):
            r = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
            ctx.save_for_backward(x, w, r)
            return x * r * w

        @staticmethod
        def backward(ctx, dy):
            x, w, r = ctx.saved_tensors
            xhat, g = x * r, dy * w
            dx = r * (g - xhat * (g * xhat).mean(-1, keepdim=True))
            return dx, (dy * xhat).flatten(0, -2).sum(0), None

    class RopeFn(torch.autograd.Function):
        @staticmethod
        def turn(x, cos, sin):
            a, b = x[..., 0::2], x[..., 1::2]
            y = torch.empty_like(x)
            y[..., 0::2], y[..., 1::2] = a * cos - b * sin, b * cos + a * sin
            return y

        @staticmethod
        def forward(ctx, x, cos, sin):
            ctx.save_for_backward(cos, sin)
            return RopeFn.turn(x, cos, sin)

        @staticmethod
        def backward(ctx, dy):
            cos, sin = ctx.saved_tensors
            return RopeFn.turn(dy, cos, -sin), None, None

    class Layer(nn.Module):
        def __init__(self, width=48, heads=4):
            super().__init__()
            self.heads = heads
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.proj = nn.Linear(width, width)
            self.q_gain = nn.Parameter(1 + 0.1 * torch.randn(width // heads))
            self.k_gain = nn.Parameter(1 + 0.1 * torch.randn(width // heads))

        def forward(self, x, causal=False):
            b, n, w = x.shape
            q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            cos, sin = rotary_tables(n, w // self.heads, 10000.0, x)
            q = RopeFn.apply(RMSNormFn.apply(q, self.q_gain, 1e-6), cos, sin)
            k = RopeFn.apply(RMSNormFn.apply(k, self.k_gain, 1e-6), cos, sin)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return self.proj(y.transpose(1, 2).reshape(b, n, w))
    return seeded(Layer)
