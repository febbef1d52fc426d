"""Right layers of multi-head latent attention, in the styles of today's public code (each written anew)."""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from cases import collection
from torch import nn
from torch.utils.checkpoint import checkpoint

CASES, case = collection()


def seeded(build):
    """Build a module from a fixed seed: matrices of about unit gain, gains of norms near 1, and the caller's
    generator untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4321)
        module = build()
        with torch.no_grad():
            for p in module.parameters():
                if p.ndim > 1:
                    p.mul_(1.7)
                elif bool((p == 1).all()):
                    p.add_(0.2 * torch.rand_like(p) - 0.1)
        return module


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))


def angles(n, dim, base=10000.0):
    """(n, dim/2) in float64"""
    inv_freq = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return torch.outer(torch.arange(n, dtype=torch.float64), inv_freq)


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def complex_rotary(x, freqs_cis):
    """x (b, s, h, d) of neighbouring pairs; freqs_cis (s, d/2)"""
    xc = torch.view_as_complex(x.contiguous().view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(xc * freqs_cis.view(1, x.size(1), 1, -1)).flatten(3)


@case("layer", options={"mask": "attention_mask"},
      source="deepseek-ai/DeepSeek-V2-Lite modeling_deepseek.py")
def mla_deepseek_v2_lite():
    """DeepSeek-V2-Lite's layer: full q_proj, kv_a_proj_with_mqa fused with the shared rotary key, RMSNorm of the
    latent, kv_b_proj fused per head (nope, then values), pairs reordered into halves before the rotary (base
    10000), always causal, an additive mask (b, 1, n, n) besides; returns (output, None, None)."""
    def apply_rotary_pos_emb(q, k, cos, sin):
        b, h, s, d = q.shape
        q = q.view(b, h, s, d // 2, 2).transpose(4, 3).reshape(b, h, s, d)
        b, h, s, d = k.shape
        k = k.view(b, h, s, d // 2, 2).transpose(4, 3).reshape(b, h, s, d)
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin

    class DeepseekV2Attention(nn.Module):
        def __init__(self, hidden_size=48, num_heads=3, kv_lora_rank=16, nope=8, rope=4, v_head_dim=8):
            super().__init__()
            self.num_heads, self.kv_lora_rank = num_heads, kv_lora_rank
            self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim = nope, rope, v_head_dim
            self.q_head_dim = nope + rope
            self.q_proj = nn.Linear(hidden_size, num_heads * self.q_head_dim, bias=False)
            self.kv_a_proj_with_mqa = nn.Linear(hidden_size, kv_lora_rank + rope, bias=False)
            self.kv_a_layernorm = RMSNorm(kv_lora_rank)
            self.kv_b_proj = nn.Linear(kv_lora_rank, num_heads * (nope + v_head_dim), bias=False)
            self.o_proj = nn.Linear(num_heads * v_head_dim, hidden_size, bias=False)
            self.softmax_scale = self.q_head_dim ** (-0.5)

        def forward(self, hidden_states, attention_mask=None):
            bsz, q_len, _ = hidden_states.size()
            q = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, self.q_head_dim).transpose(1, 2)
            q_nope, q_pe = torch.split(q, [self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
            compressed_kv = self.kv_a_proj_with_mqa(hidden_states)
            compressed_kv, k_pe = torch.split(compressed_kv, [self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            k_pe = k_pe.view(bsz, q_len, 1, self.qk_rope_head_dim).transpose(1, 2)
            kv = self.kv_b_proj(self.kv_a_layernorm(compressed_kv))
            kv = kv.view(bsz, q_len, self.num_heads, self.qk_nope_head_dim + self.v_head_dim).transpose(1, 2)
            k_nope, value_states = torch.split(kv, [self.qk_nope_head_dim, self.v_head_dim], dim=-1)
            emb = torch.cat([angles(q_len, self.qk_rope_head_dim)] * 2, dim=-1)
            q_pe, k_pe = apply_rotary_pos_emb(q_pe, k_pe, emb.cos().to(q), emb.sin().to(q))
            query_states = k_pe.new_empty(bsz, self.num_heads, q_len, self.q_head_dim)
            query_states[:, :, :, : self.qk_nope_head_dim] = q_nope
            query_states[:, :, :, self.qk_nope_head_dim :] = q_pe
            key_states = k_pe.new_empty(bsz, self.num_heads, q_len, self.q_head_dim)
            key_states[:, :, :, : self.qk_nope_head_dim] = k_nope
            key_states[:, :, :, self.qk_nope_head_dim :] = k_pe
            attn_weights = torch.matmul(query_states, key_states.transpose(2, 3)) * self.softmax_scale
            above = torch.ones(q_len, q_len, dtype=torch.bool, device=q.device).triu(1)
            attn_weights = attn_weights.masked_fill(above, torch.finfo(q.dtype).min)
            if attention_mask is not None:
                attn_weights = attn_weights + attention_mask
            attn_weights = nn.functional.softmax(attn_weights, dim=-1)
            attn_output = torch.matmul(attn_weights, value_states).transpose(1, 2).contiguous()
            attn_output = attn_output.reshape(bsz, q_len, self.num_heads * self.v_head_dim)
            return self.o_proj(attn_output), None, None
    return seeded(DeepseekV2Attention)


@case("layer", source="huggingface/transformers src/transformers/models/deepseek_v3/modeling_deepseek_v3.py")
def mla_deepseek_v3_sdpa():
    """DeepSeek-V3's layer of transformers: queries of low rank with RMSNorm, biases in q_a_proj, the kv_a
    projection and o_proj, interleaved rotary, the shared key expanded, F.scaled_dot_product_attention with
    is_causal."""
    class DeepseekV3Attention(nn.Module):
        def __init__(self, hidden_size=64, num_heads=4, q_lora_rank=24, kv_lora_rank=16, nope=8, rope=8, v_dim=6):
            super().__init__()
            self.num_heads, self.kv_lora_rank, self.v_head_dim = num_heads, kv_lora_rank, v_dim
            self.qk_nope_head_dim, self.qk_rope_head_dim, self.qk_head_dim = nope, rope, nope + rope
            self.q_a_proj = nn.Linear(hidden_size, q_lora_rank, bias=True)
            self.q_a_layernorm = RMSNorm(q_lora_rank)
            self.q_b_proj = nn.Linear(q_lora_rank, num_heads * self.qk_head_dim, bias=False)
            self.kv_a_proj_with_mqa = nn.Linear(hidden_size, kv_lora_rank + rope, bias=True)
            self.kv_a_layernorm = RMSNorm(kv_lora_rank)
            self.kv_b_proj = nn.Linear(kv_lora_rank, num_heads * (nope + v_dim), bias=False)
            self.o_proj = nn.Linear(num_heads * v_dim, hidden_size, bias=True)
            self.scaling = self.qk_head_dim ** -0.5

        def forward(self, hidden_states):
            batch_size, seq_length = hidden_states.shape[:-1]
            q_states = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
            q_states = q_states.view(batch_size, seq_length, -1, self.qk_head_dim).transpose(1, 2)
            q_pass, q_rot = q_states.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
            compressed_kv = self.kv_a_proj_with_mqa(hidden_states)
            k_pass, k_rot = compressed_kv.split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            k_pass = self.kv_b_proj(self.kv_a_layernorm(k_pass))
            k_pass = k_pass.view(batch_size, seq_length, self.num_heads, -1).transpose(1, 2)
            k_pass, value_states = k_pass.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
            k_rot = k_rot.view(batch_size, 1, seq_length, self.qk_rope_head_dim)
            emb = torch.cat([angles(seq_length, self.qk_rope_head_dim)] * 2, dim=-1)
            cos, sin = emb.cos().to(hidden_states), emb.sin().to(hidden_states)

            def interleave(x):
                return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)

            q_rot, k_rot = interleave(q_rot), interleave(k_rot)
            q_rot = q_rot * cos + rotate_half(q_rot) * sin
            k_rot = k_rot * cos + rotate_half(k_rot) * sin
            k_rot = k_rot.expand(*k_pass.shape[:-1], -1)
            query_states = torch.cat((q_pass, q_rot), dim=-1)
            key_states = torch.cat((k_pass, k_rot), dim=-1)
            attn_output = F.scaled_dot_product_attention(query_states, key_states, value_states,
                                                         is_causal=True, scale=self.scaling)
            attn_output = attn_output.transpose(1, 2).reshape(batch_size, seq_length, -1).contiguous()
            return self.o_proj(attn_output)
    return seeded(DeepseekV3Attention)


@case("layer", source="deepseek-ai/DeepSeek-V3 inference/model.py", formats=("float64", "float32"))
def mla_deepseek_inference_naive():
    """The naive form of DeepSeek-V3's inference model: (b, s, h, d) throughout, rotary by complex numbers of
    neighbouring pairs, einsum "bshd,bthd->bsht", an additive -inf triangle."""
    class MLA(nn.Module):
        def __init__(self, args):
            super().__init__()
            self.n_local_heads, self.kv_lora_rank = args.n_heads, args.kv_lora_rank
            self.qk_nope_head_dim, self.qk_rope_head_dim = args.qk_nope_head_dim, args.qk_rope_head_dim
            self.v_head_dim = args.v_head_dim
            self.qk_head_dim = args.qk_nope_head_dim + args.qk_rope_head_dim
            self.wq_a = nn.Linear(args.dim, args.q_lora_rank, bias=False)
            self.q_norm = RMSNorm(args.q_lora_rank)
            self.wq_b = nn.Linear(args.q_lora_rank, args.n_heads * self.qk_head_dim, bias=False)
            self.wkv_a = nn.Linear(args.dim, args.kv_lora_rank + args.qk_rope_head_dim, bias=False)
            self.kv_norm = RMSNorm(args.kv_lora_rank)
            self.wkv_b = nn.Linear(args.kv_lora_rank, args.n_heads * (args.qk_nope_head_dim + args.v_head_dim),
                                   bias=False)
            self.wo = nn.Linear(args.n_heads * args.v_head_dim, args.dim, bias=False)
            self.softmax_scale = self.qk_head_dim ** -0.5

        def forward(self, x):
            bsz, seqlen, _ = x.size()
            ang = angles(seqlen, self.qk_rope_head_dim).to(x)
            freqs_cis = torch.polar(torch.ones_like(ang), ang)
            q = self.wq_b(self.q_norm(self.wq_a(x)))
            q = q.view(bsz, seqlen, self.n_local_heads, self.qk_head_dim)
            q_nope, q_pe = torch.split(q, [self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
            q_pe = complex_rotary(q_pe, freqs_cis)
            kv = self.wkv_a(x)
            kv, k_pe = torch.split(kv, [self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            k_pe = complex_rotary(k_pe.unsqueeze(2), freqs_cis)
            q = torch.cat([q_nope, q_pe], dim=-1)
            kv = self.wkv_b(self.kv_norm(kv))
            kv = kv.view(bsz, seqlen, self.n_local_heads, self.qk_nope_head_dim + self.v_head_dim)
            k_nope, v = torch.split(kv, [self.qk_nope_head_dim, self.v_head_dim], dim=-1)
            k = torch.cat([k_nope, k_pe.expand(-1, -1, self.n_local_heads, -1)], dim=-1)
            scores = torch.einsum("bshd,bthd->bsht", q, k) * self.softmax_scale
            mask = torch.full((seqlen, seqlen), float("-inf"), device=x.device, dtype=x.dtype).triu_(1)
            scores += mask.unsqueeze(1)
            scores = scores.softmax(dim=-1)
            x = torch.einsum("bsht,bthd->bshd", scores, v)
            return self.wo(x.flatten(2))
    return seeded(lambda: MLA(SimpleNamespace(dim=40, n_heads=2, q_lora_rank=12, kv_lora_rank=10,
                                              qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8)))


@case("layer", source="deepseek-ai/DeepSeek-V3 inference/model.py")
def mla_deepseek_inference_absorbed():
    """The absorbed form of DeepSeek-V3's inference model: queries meet the normed latent through the key half of
    wkv_b, the values come from the latent after the softmax; interleaved rotary without complex numbers."""
    class MLA(nn.Module):
        def __init__(self, dim=32, n_heads=2, kv_lora_rank=12, nope=8, rope=6, v_head_dim=6):
            super().__init__()
            self.n_heads, self.kv_lora_rank = n_heads, kv_lora_rank
            self.nope, self.rope, self.v_head_dim = nope, rope, v_head_dim
            self.wq = nn.Linear(dim, n_heads * (nope + rope), bias=False)
            self.wkv_a = nn.Linear(dim, kv_lora_rank + rope, bias=False)
            self.kv_norm = RMSNorm(kv_lora_rank)
            self.wkv_b = nn.Linear(kv_lora_rank, n_heads * (nope + v_head_dim), bias=False)
            self.wo = nn.Linear(n_heads * v_head_dim, dim, bias=False)
            self.softmax_scale = 1.0 / math.sqrt(nope + rope)

        @staticmethod
        def rotary(x, cos, sin):
            even, odd = x[..., 0::2], x[..., 1::2]
            return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)

        def forward(self, x):
            bsz, seqlen, _ = x.size()
            ang = angles(seqlen, self.rope)
            cos, sin = ang.cos().to(x), ang.sin().to(x)
            q_nope, q_pe = self.wq(x).view(bsz, seqlen, self.n_heads, -1).split([self.nope, self.rope], dim=-1)
            q_pe = self.rotary(q_pe, cos[:, None], sin[:, None])
            kv, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.rope], dim=-1)
            k_pe, kv = self.rotary(k_pe, cos, sin), self.kv_norm(kv)
            wkv_b = self.wkv_b.weight.view(self.n_heads, -1, self.kv_lora_rank)
            q_nope = torch.einsum("bshd,hdc->bshc", q_nope, wkv_b[:, : self.nope])
            scores = (torch.einsum("bshc,btc->bsht", q_nope, kv)
                      + torch.einsum("bshr,btr->bsht", q_pe, k_pe)) * self.softmax_scale
            mask = torch.full((seqlen, seqlen), float("-inf"), dtype=x.dtype, device=x.device).triu_(1)
            scores = (scores + mask.unsqueeze(1)).softmax(dim=-1)
            out = torch.einsum("bsht,btc->bshc", scores, kv)
            out = torch.einsum("bshc,hdc->bshd", out, wkv_b[:, -self.v_head_dim :])
            return self.wo(out.flatten(2))
    return seeded(MLA)


@case("layer", options={"mask": "attention_mask"}, source="openbmb/MiniCPM3-4B modeling_minicpm.py")
def mla_minicpm3():
    """MiniCPM3's layer: low-rank queries, rotary by halves from cos/sin buffers of 128 positions, query and key
    put together by cat, F.scaled_dot_product_attention with one boolean mask (True keeps): causal and what is
    given; returns (output, None)."""
    class MiniCPMAttention(nn.Module):
        def __init__(self, hidden_size=48, num_heads=4, q_lora_rank=16, kv_lora_rank=12, nope=6, rope=4, v_dim=8):
            super().__init__()
            self.num_heads, self.kv_lora_rank, self.v_head_dim = num_heads, kv_lora_rank, v_dim
            self.qk_nope_head_dim, self.qk_rope_head_dim, self.q_head_dim = nope, rope, nope + rope
            self.q_a_proj = nn.Linear(hidden_size, q_lora_rank, bias=False)
            self.q_a_layernorm = RMSNorm(q_lora_rank, eps=1e-5)
            self.q_b_proj = nn.Linear(q_lora_rank, num_heads * self.q_head_dim, bias=False)
            self.kv_a_proj_with_mqa = nn.Linear(hidden_size, kv_lora_rank + rope, bias=False)
            self.kv_a_layernorm = RMSNorm(kv_lora_rank, eps=1e-5)
            self.kv_b_proj = nn.Linear(kv_lora_rank, num_heads * (nope + v_dim), bias=False)
            self.o_proj = nn.Linear(num_heads * v_dim, hidden_size, bias=False)
            emb = torch.cat([angles(128, rope)] * 2, dim=-1)
            self.register_buffer("cos_cached", emb.cos(), persistent=False)
            self.register_buffer("sin_cached", emb.sin(), persistent=False)

        def forward(self, hidden_states, attention_mask=None):
            bsz, q_len, _ = hidden_states.size()
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
            q = q.view(bsz, q_len, self.num_heads, self.q_head_dim).transpose(1, 2)
            q_nope, q_pe = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
            compressed, k_pe = self.kv_a_proj_with_mqa(hidden_states).split(
                [self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            k_pe = k_pe.unsqueeze(1)
            kv = self.kv_b_proj(self.kv_a_layernorm(compressed))
            kv = kv.view(bsz, q_len, self.num_heads, -1).transpose(1, 2)
            k_nope, v = kv.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
            cos, sin = self.cos_cached[:q_len].to(q.dtype), self.sin_cached[:q_len].to(q.dtype)
            q_pe = q_pe * cos + rotate_half(q_pe) * sin
            k_pe = k_pe * cos + rotate_half(k_pe) * sin
            query = torch.cat([q_nope, q_pe], dim=-1)
            key = torch.cat([k_nope, k_pe.expand(-1, self.num_heads, -1, -1)], dim=-1)
            mask = torch.ones(q_len, q_len, dtype=torch.bool, device=q.device).tril()
            if attention_mask is not None:
                mask = mask & attention_mask
            out = F.scaled_dot_product_attention(query, key, v, attn_mask=mask)
            out = out.transpose(1, 2).reshape(bsz, q_len, self.num_heads * self.v_head_dim)
            return self.o_proj(out), None
    return seeded(MiniCPMAttention)


@case("layer", source="forks of karpathy/nanoGPT model.py with latent attention")
def mla_nanogpt_paper_names():
    """A fork of nanoGPT with the paper's names: W_DQ, W_UQ, W_QR, W_DKV, W_UK, W_UV, W_KR apart, no norm at all,
    rotary by halves, a registered triangle of 64."""
    class CausalSelfAttention(nn.Module):
        def __init__(self, n_embd=32, n_head=4, d_c=16, d_cq=12, d_h=8, d_r=4, block_size=64):
            super().__init__()
            self.n_head, self.d_h, self.d_r = n_head, d_h, d_r
            self.W_DQ = nn.Linear(n_embd, d_cq, bias=False)
            self.W_UQ = nn.Linear(d_cq, n_head * d_h, bias=False)
            self.W_QR = nn.Linear(d_cq, n_head * d_r, bias=False)
            self.W_DKV = nn.Linear(n_embd, d_c, bias=False)
            self.W_UK = nn.Linear(d_c, n_head * d_h, bias=False)
            self.W_UV = nn.Linear(d_c, n_head * d_h, bias=False)
            self.W_KR = nn.Linear(n_embd, d_r, bias=False)
            self.c_proj = nn.Linear(n_head * d_h, n_embd, bias=False)
            self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, -1))

        def rope(self, t):
            emb = torch.cat([angles(t.size(-2), self.d_r)] * 2, dim=-1)
            return t * emb.cos().to(t) + rotate_half(t) * emb.sin().to(t)

        def forward(self, x):
            B, T, _ = x.size()
            c_q, c_kv = self.W_DQ(x), self.W_DKV(x)
            q_c = self.W_UQ(c_q).view(B, T, self.n_head, self.d_h).transpose(1, 2)
            q_r = self.rope(self.W_QR(c_q).view(B, T, self.n_head, self.d_r).transpose(1, 2))
            k_c = self.W_UK(c_kv).view(B, T, self.n_head, self.d_h).transpose(1, 2)
            v = self.W_UV(c_kv).view(B, T, self.n_head, self.d_h).transpose(1, 2)
            k_r = self.rope(self.W_KR(x).view(B, T, 1, self.d_r).transpose(1, 2))
            q = torch.cat((q_c, q_r), dim=-1)
            k = torch.cat((k_c, k_r.repeat(1, self.n_head, 1, 1)), dim=-1)
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            y = F.softmax(att, dim=-1) @ v
            return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, -1))
    return seeded(CausalSelfAttention)


@case("layer", options={"causal": "is_causal"}, source="minimal MLA repositories (kernels as nn.Parameter)")
def mla_kernels_input_first():
    """Kernels as nn.Parameter of (in, out), applied by x @ W; LayerNorm of both latents; d_v of 6 beside d_nope
    of 8; rotary by halves with base 500000; causal only if is_causal is said."""
    class MLA(nn.Module):
        def __init__(self, d_model=24, n_heads=3, q_rank=12, kv_rank=10, nope=8, rope=4, d_v=6):
            super().__init__()
            self.n_heads, self.kv_rank, self.nope, self.rope, self.d_v = n_heads, kv_rank, nope, rope, d_v

            def kernel(*shape):
                return nn.Parameter(torch.randn(*shape) / math.sqrt(3 * shape[0]))

            self.W_dq, self.W_uq = kernel(d_model, q_rank), kernel(q_rank, n_heads * (nope + rope))
            self.q_layernorm = nn.LayerNorm(q_rank)
            self.W_dkv = kernel(d_model, kv_rank + rope)
            self.W_ukv = kernel(kv_rank, n_heads * (nope + d_v))
            self.kv_layernorm = nn.LayerNorm(kv_rank)
            self.W_o = kernel(n_heads * d_v, d_model)

        def forward(self, x, is_causal=False):
            B, S, _ = x.shape
            Q = self.q_layernorm(x @ self.W_dq) @ self.W_uq
            Q, Q_rope = Q.view(B, S, self.n_heads, -1).transpose(1, 2).split([self.nope, self.rope], dim=-1)
            latent, K_rope = (x @ self.W_dkv).split([self.kv_rank, self.rope], dim=-1)
            KV = self.kv_layernorm(latent) @ self.W_ukv
            K, V = KV.view(B, S, self.n_heads, -1).transpose(1, 2).split([self.nope, self.d_v], dim=-1)
            emb = torch.cat([angles(S, self.rope, 500000.0)] * 2, dim=-1)
            cos, sin = emb.cos().to(x), emb.sin().to(x)
            K_rope = K_rope[:, None]
            Q_rope, K_rope = Q_rope * cos + rotate_half(Q_rope) * sin, K_rope * cos + rotate_half(K_rope) * sin
            Q = torch.cat([Q, Q_rope], dim=-1)
            K = torch.cat([K, K_rope.expand(-1, self.n_heads, -1, -1)], dim=-1)
            out = F.scaled_dot_product_attention(Q, K, V, is_causal=is_causal)
            return out.transpose(1, 2).reshape(B, S, -1) @ self.W_o
    return seeded(MLA)


@case("layer", source="AI-Hypercomputer/maxtext (its einsum kernels, in PyTorch)")
def mla_kernels_of_three_axes():
    """Kernels of three axes as in JAX code: wq_b (r, h, d), wkv_b (r, h, nope + v), out (h, v, D), all by einsum;
    the rotary base is 1e6, pairs are neighbours; the triangle is made from positions."""
    class MLA(nn.Module):
        def __init__(self, emb=40, heads=2, q_rank=16, kv_rank=16, nope=8, rope=8, v=6):
            super().__init__()
            self.nope, self.rope, self.kv_rank = nope, rope, kv_rank

            def init(*shape, fan):
                return nn.Parameter(torch.randn(*shape) * (3 * fan) ** -0.5)

            self.wq_a = init(emb, q_rank, fan=emb)
            self.q_norm = RMSNorm(q_rank)
            self.wq_b = init(q_rank, heads, nope + rope, fan=q_rank)
            self.wkv_a = init(emb, kv_rank + rope, fan=emb)
            self.kv_norm = RMSNorm(kv_rank)
            self.wkv_b = init(kv_rank, heads, nope + v, fan=kv_rank)
            self.out = init(heads, v, emb, fan=heads * v)

        def rotate(self, x, positions):
            inv = 1e6 ** (-torch.arange(0, self.rope, 2, dtype=torch.float64) / self.rope)
            ang = positions[:, None].double() * inv
            cos, sin = ang.cos().to(x).repeat_interleave(2, -1), ang.sin().to(x).repeat_interleave(2, -1)
            turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).reshape(x.shape)
            return x * cos[:, None] + turned * sin[:, None]

        def forward(self, x):
            positions = torch.arange(x.shape[1], device=x.device)
            low_q = self.q_norm(torch.einsum("btd,dr->btr", x, self.wq_a))
            q = torch.einsum("btr,rhk->bthk", low_q, self.wq_b)
            query = torch.cat([q[..., : self.nope], self.rotate(q[..., self.nope :], positions)], dim=-1)
            low = torch.einsum("btd,dr->btr", x, self.wkv_a)
            key_rope = self.rotate(low[..., None, self.kv_rank :], positions)
            kv = torch.einsum("btr,rhk->bthk", self.kv_norm(low[..., : self.kv_rank]), self.wkv_b)
            key_nope, value = kv[..., : self.nope], kv[..., self.nope :]
            key = torch.cat([key_nope, key_rope.expand(*key_nope.shape[:3], self.rope)], dim=-1)
            logits = torch.einsum("bthk,bshk->bhts", query * (self.nope + self.rope) ** -0.5, key)
            logits = logits.where(positions[:, None] >= positions[None, :], float("-inf"))
            return torch.einsum("bhts,bshv,hvd->btd", logits.softmax(-1), value, self.out)
    return seeded(MLA)


@case("layer", source="vllm-project/vllm vllm/model_executor/models/deepseek_v2.py")
def mla_fused_qkv_a():
    """vLLM's packing: one fused_qkv_a_proj gives query latent, key-value latent and rotary key; norms of both
    latents; flat (tokens, h * d) outputs between; rotary of neighbouring pairs in a class with a cos_sin_cache."""
    class RotaryEmbedding(nn.Module):
        def __init__(self, dim, max_position=96):
            super().__init__()
            ang = angles(max_position, dim)
            self.register_buffer("cos_sin_cache", torch.cat((ang.cos(), ang.sin()), dim=-1), persistent=False)

        def forward(self, positions, query, key):
            cos, sin = self.cos_sin_cache[positions].to(query.dtype)[..., None, :].chunk(2, dim=-1)

            def rotate(x):
                x1, x2 = x[..., ::2], x[..., 1::2]
                return torch.stack((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).flatten(-2)
            return rotate(query), rotate(key)

    class DeepseekV2MLAAttention(nn.Module):
        def __init__(self, hidden=48, heads=2, q_rank=20, kv_rank=12, nope=6, rope=6, v=8):
            super().__init__()
            self.heads, self.ranks, self.nope, self.rope, self.v = heads, (q_rank, kv_rank, rope), nope, rope, v
            self.fused_qkv_a_proj = nn.Linear(hidden, q_rank + kv_rank + rope, bias=False)
            self.q_a_layernorm, self.kv_a_layernorm = RMSNorm(q_rank), RMSNorm(kv_rank)
            self.q_b_proj = nn.Linear(q_rank, heads * (nope + rope), bias=False)
            self.kv_b_proj = nn.Linear(kv_rank, heads * (nope + v), bias=False)
            self.o_proj = nn.Linear(heads * v, hidden, bias=False)
            self.rotary_emb = RotaryEmbedding(rope)
            self.scaling = (nope + rope) ** -0.5

        def forward(self, hidden_states):
            b, n, _ = hidden_states.shape
            positions = torch.arange(n, device=hidden_states.device).repeat(b)
            flat = hidden_states.reshape(b * n, -1)
            q_c, kv_c, k_pe = self.fused_qkv_a_proj(flat).split(self.ranks, dim=-1)
            q = self.q_b_proj(self.q_a_layernorm(q_c)).view(-1, self.heads, self.nope + self.rope)
            kv = self.kv_b_proj(self.kv_a_layernorm(kv_c)).view(-1, self.heads, self.nope + self.v)
            k_nope, v = kv.split([self.nope, self.v], dim=-1)
            q_pe, k_pe = self.rotary_emb(positions, q[..., self.nope :], k_pe.unsqueeze(1))
            q = torch.cat((q[..., : self.nope], q_pe), dim=-1).view(b, n, self.heads, -1)
            k = torch.cat((k_nope, k_pe.expand(-1, self.heads, -1)), dim=-1).view(b, n, self.heads, -1)
            s = torch.einsum("bqhd,bkhd->bhqk", q, k) * self.scaling
            s = s.masked_fill(torch.ones_like(s[0, 0], dtype=torch.bool).triu(1), -math.inf)
            o = torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v.view(b, n, self.heads, -1))
            return self.o_proj(o.reshape(b, n, -1))
    return seeded(DeepseekV2MLAAttention)


@case("layer", options={"mask": "key_padding_mask"}, source="repositories on torchtune's RotaryPositionalEmbeddings")
def mla_rope_first_encoder():
    """An encoder (not causal): each query and key has its rotary part first, rotary from a cache (n, d/2, 2) of
    neighbouring pairs on (b, s, h, d), F.rms_norm, biases in the up-projections, and a key padding mask (b, n)
    whose True marks a key to leave out."""
    class RotaryPositionalEmbeddings(nn.Module):
        def __init__(self, dim, max_seq_len=80, base=10000):
            super().__init__()
            ang = angles(max_seq_len, dim, base)
            self.register_buffer("cache", torch.stack([ang.cos(), ang.sin()], dim=-1), persistent=False)

        def forward(self, x):
            cache = self.cache[: x.size(1)].to(x.dtype).view(1, x.size(1), 1, -1, 2)
            xs = x.reshape(*x.shape[:-1], -1, 2)
            out = torch.stack([xs[..., 0] * cache[..., 0] - xs[..., 1] * cache[..., 1],
                               xs[..., 1] * cache[..., 0] + xs[..., 0] * cache[..., 1]], -1)
            return out.flatten(3)

    class LatentEncoderAttention(nn.Module):
        def __init__(self, dim_embed=36, nhead=3, dim_compress=15, d_nope=8, d_rope=4, d_v=6):
            super().__init__()
            self.nhead, self.d_nope, self.d_rope, self.d_v = nhead, d_nope, d_rope, d_v
            self.w_q = nn.Linear(dim_embed, nhead * (d_rope + d_nope))
            self.w_d_kv = nn.Linear(dim_embed, dim_compress, bias=False)
            self.norm_gain = nn.Parameter(torch.ones(dim_compress))
            self.w_kr = nn.Linear(dim_embed, d_rope, bias=False)
            self.w_u_k = nn.Linear(dim_compress, nhead * d_nope)
            self.w_u_v = nn.Linear(dim_compress, nhead * d_v)
            self.w_o = nn.Linear(nhead * d_v, dim_embed)
            self.rope = RotaryPositionalEmbeddings(d_rope)

        def forward(self, x, key_padding_mask=None):
            b, s, _ = x.shape
            q_r, q_c = self.w_q(x).view(b, s, self.nhead, -1).split([self.d_rope, self.d_nope], dim=-1)
            c_kv = self.w_d_kv(x)
            c_kv = F.rms_norm(c_kv, c_kv.shape[-1:], self.norm_gain, 1e-6)
            k_c = self.w_u_k(c_kv).view(b, s, self.nhead, self.d_nope)
            v = self.w_u_v(c_kv).view(b, s, self.nhead, self.d_v)
            k_r = self.rope(self.w_kr(x).unsqueeze(2)).expand(b, s, self.nhead, self.d_rope)
            q = torch.cat([self.rope(q_r), q_c], dim=-1).transpose(1, 2)
            k = torch.cat([k_r, k_c], dim=-1).transpose(1, 2)
            scores = q @ k.mT / math.sqrt(self.d_rope + self.d_nope)
            if key_padding_mask is not None:
                scores = scores.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
            out = scores.softmax(dim=-1) @ v.transpose(1, 2)
            return self.w_o(out.transpose(1, 2).flatten(2))
    return seeded(LatentEncoderAttention)


@case("layer", source="lucidrains (the naming of x-transformers' Attention)")
def mla_lucidrains():
    """Written in lucidrains' manner: to_q, to_latent_kv, to_k_rope, latent_split_kv (all keys, then all values),
    LayerNorm without bias on the latent, rotary by halves, einsum 'b h i d, b h j d -> b h i j', causal by a
    triu mask and the least finite number."""
    def split_heads(t, h):
        return t.unflatten(-1, (h, -1)).transpose(1, 2)

    class Attention(nn.Module):
        def __init__(self, dim=32, heads=4, dim_head=8, dim_rope=4, dim_latent=16):
            super().__init__()
            self.heads, self.dim_head, self.dim_rope = heads, dim_head, dim_rope
            self.scale = (dim_head + dim_rope) ** -0.5
            self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
            self.to_q_rope = nn.Linear(dim, heads * dim_rope, bias=False)
            self.to_latent_kv = nn.Sequential(nn.Linear(dim, dim_latent, bias=False),
                                              nn.LayerNorm(dim_latent, bias=False))
            self.to_k_rope = nn.Linear(dim, dim_rope, bias=False)
            self.latent_split_kv = nn.Linear(dim_latent, 2 * heads * dim_head, bias=False)
            self.to_out = nn.Linear(heads * dim_head, dim, bias=False)

        def forward(self, x):
            n, h = x.shape[-2], self.heads
            latent = self.to_latent_kv(x)
            k, v = (split_heads(t, h) for t in self.latent_split_kv(latent).chunk(2, dim=-1))
            q, qr, kr = split_heads(self.to_q(x), h), split_heads(self.to_q_rope(x), h), self.to_k_rope(x)
            freqs = torch.cat([angles(n, self.dim_rope)] * 2, dim=-1)
            cos, sin = freqs.cos().to(x), freqs.sin().to(x)
            qr, kr = qr * cos + rotate_half(qr) * sin, kr * cos + rotate_half(kr) * sin
            q, qr = q * self.scale, qr * self.scale
            sim = torch.einsum("bhid,bhjd->bhij", q, k) + torch.einsum("bhid,bjd->bhij", qr, kr)
            causal_mask = torch.ones((n, n), dtype=torch.bool, device=x.device).triu(1)
            sim = sim.masked_fill(causal_mask, -torch.finfo(sim.dtype).max)
            attn = sim.softmax(dim=-1)
            out = torch.einsum("bhij,bhjd->bhid", attn, v)
            return self.to_out(out.transpose(1, 2).flatten(-2))
    return seeded(Attention)


@case("layer", source="articles on absorbing W_UK into the queries and W_UV into W_O")
def mla_absorbed_twice():
    """Absorbed on both sides: W_UQ with W_UK, and W_UV with W_O, are multiplied in every forward, so that queries
    and outputs meet the latent itself; kernels (h, d, r) as nn.Parameter; no norm; rotary by halves."""
    class AbsorbedMLA(nn.Module):
        def __init__(self, d_model=28, h=2, r_q=12, r_kv=8, d_c=6, d_r=4, d_v=8):
            super().__init__()
            self.d_c, self.d_r = d_c, d_r

            def weight(*shape):
                return nn.Parameter(torch.randn(*shape) * (3 * shape[-1]) ** -0.5)

            self.W_DQ, self.W_DKV, self.W_KR = weight(r_q, d_model), weight(r_kv, d_model), weight(d_r, d_model)
            self.W_UQ, self.W_QR = weight(h, d_c, r_q), weight(h, d_r, r_q)
            self.W_UK, self.W_UV = weight(h, d_c, r_kv), weight(h, d_v, r_kv)
            self.W_O = weight(d_model, h, d_v)

        def forward(self, x):
            n = x.shape[1]
            c_q, c = x @ self.W_DQ.T, x @ self.W_DKV.T
            emb = torch.cat([angles(n, self.d_r)] * 2, -1)
            cos, sin = emb.cos().to(x), emb.sin().to(x)
            q_r, k_r = torch.einsum("bnr,hdr->bhnd", c_q, self.W_QR), x @ self.W_KR.T
            q_r, k_r = q_r * cos + rotate_half(q_r) * sin, k_r * cos + rotate_half(k_r) * sin
            W_QK = torch.einsum("hdq,hdr->hqr", self.W_UQ, self.W_UK)
            W_VO = torch.einsum("ohv,hvr->hro", self.W_O, self.W_UV)
            s = torch.einsum("biq,hqr,bjr->bhij", c_q, W_QK, c) + torch.einsum("bhid,bjd->bhij", q_r, k_r)
            s = s * (self.d_c + self.d_r) ** -0.5
            p = torch.softmax(s + torch.full((n, n), -torch.inf).to(s).triu(1), dim=-1)
            return torch.einsum("bhij,bjr,hro->bio", p, c, W_VO)
    return seeded(AbsorbedMLA)


@case("layer", source="NVIDIA/Megatron-LM megatron/core/transformer/multi_latent_attention.py")
def mla_megatron():
    """Megatron's names and forms, batch first: linear_q_down_proj and so on, the rotary input taken as even
    entries then odd ones and turned by halves, scores by torch.baddbmm on (b * h, n, n), softmax in float32 or
    more; returns (output, bias) with no bias."""
    class MLASelfAttention(nn.Module):
        def __init__(self, hidden=56, heads=4, q_lora_rank=16, kv_lora_rank=14, qk_head=6, qk_pos=8, v_head=6):
            super().__init__()
            self.heads, self.kv_lora_rank = heads, kv_lora_rank
            self.qk_head, self.qk_pos, self.v_head, self.q_head_dim = qk_head, qk_pos, v_head, qk_head + qk_pos
            self.linear_q_down_proj = nn.Linear(hidden, q_lora_rank, bias=False)
            self.q_layernorm = RMSNorm(q_lora_rank)
            self.linear_q_up_proj = nn.Linear(q_lora_rank, heads * self.q_head_dim, bias=False)
            self.linear_kv_down_proj = nn.Linear(hidden, kv_lora_rank + qk_pos, bias=False)
            self.kv_layernorm = RMSNorm(kv_lora_rank)
            self.linear_kv_up_proj = nn.Linear(kv_lora_rank, heads * (qk_head + v_head), bias=False)
            self.linear_proj = nn.Linear(heads * v_head, hidden, bias=False)

        def rotary(self, t):
            t = torch.cat((t[..., 0::2], t[..., 1::2]), dim=-1)
            freqs = torch.cat([angles(t.shape[1], self.qk_pos)] * 2, dim=-1)[None, :, None]
            return t * freqs.cos().to(t) + rotate_half(t) * freqs.sin().to(t)

        def forward(self, hidden_states):
            b, n, _ = hidden_states.shape
            q = self.linear_q_up_proj(self.q_layernorm(self.linear_q_down_proj(hidden_states)))
            q_no_pe, q_pos_emb = torch.split(q.view(b, n, self.heads, -1), [self.qk_head, self.qk_pos], dim=-1)
            kv_combined = self.linear_kv_down_proj(hidden_states)
            kv_compressed, k_pos_emb = torch.split(kv_combined, [self.kv_lora_rank, self.qk_pos], dim=-1)
            kv = self.linear_kv_up_proj(self.kv_layernorm(kv_compressed)).view(b, n, self.heads, -1)
            k_no_pe, value = torch.split(kv, [self.qk_head, self.v_head], dim=-1)
            q_pos_emb, k_pos_emb = self.rotary(q_pos_emb), self.rotary(k_pos_emb.unsqueeze(2))
            query = torch.cat([q_no_pe, q_pos_emb], dim=-1)
            key = torch.cat([k_no_pe, k_pos_emb.expand(-1, -1, self.heads, -1)], dim=-1)
            query, key, value = (t.transpose(1, 2).reshape(b * self.heads, n, -1) for t in (query, key, value))
            scores = torch.baddbmm(query.new_zeros(b * self.heads, n, n), query, key.transpose(1, 2),
                                   beta=0.0, alpha=1 / math.sqrt(self.q_head_dim))
            mask = torch.triu(torch.ones(n, n, dtype=torch.bool, device=scores.device), diagonal=1)
            wide = torch.promote_types(scores.dtype, torch.float32)
            probs = torch.softmax(scores.to(wide).masked_fill(mask, -10000.0), dim=-1).to(scores.dtype)
            context = torch.bmm(probs, value).view(b, self.heads, n, -1).transpose(1, 2)
            return self.linear_proj(context.reshape(b, n, -1)), None
    return seeded(MLASelfAttention)


@case("layer", source="teaching repositories with one module per head")
def mla_module_per_head():
    """A teaching form: a module per head with its own query, key and value maps of the shared latent, one rotary
    key computed once, outputs concatenated; full queries without norm; causal; base 10000 by halves."""
    class LatentHead(nn.Module):
        def __init__(self, d_model, rank, nope, rope, d_v):
            super().__init__()
            self.query = nn.Linear(d_model, nope, bias=False)
            self.query_rope = nn.Linear(d_model, rope, bias=False)
            self.key = nn.Linear(rank, nope, bias=False)
            self.value = nn.Linear(rank, d_v, bias=False)
            self.scale = math.sqrt(nope + rope)

        def forward(self, x, latent, k_rope, rotary, future):
            scores = self.query(x) @ self.key(latent).transpose(1, 2)
            scores = scores + rotary(self.query_rope(x)) @ k_rope.transpose(1, 2)
            weights = torch.softmax((scores / self.scale).masked_fill(future, float("-inf")), dim=2)
            return weights @ self.value(latent)

    class MultiHeadLatentAttention(nn.Module):
        def __init__(self, d_model=24, n_heads=3, rank=9, nope=8, rope=4, d_v=6):
            super().__init__()
            self.rope = rope
            self.down = nn.Linear(d_model, rank, bias=False)
            self.key_rope = nn.Linear(d_model, rope, bias=False)
            self.heads = nn.ModuleList(LatentHead(d_model, rank, nope, rope, d_v) for _ in range(n_heads))
            self.out = nn.Linear(n_heads * d_v, d_model)

        def forward(self, x):
            n = x.shape[1]
            emb = torch.cat([angles(n, self.rope)] * 2, dim=-1)

            def rotary(t):
                return t * emb.cos().to(t) + rotate_half(t) * emb.sin().to(t)

            latent, k_rope = self.down(x), rotary(self.key_rope(x))
            future = torch.arange(n)[None, :] > torch.arange(n)[:, None]
            return self.out(torch.cat([head(x, latent, k_rope, rotary, future) for head in self.heads], dim=-1))
    return seeded(MultiHeadLatentAttention)


@case("layer", source="training code that recomputes the up-projections (checkpoint, use_reentrant=False)")
def mla_checkpointed_up():
    """The up-projection of the latent and the attention are recomputed in the backward pass by
    torch.utils.checkpoint; DeepSeek's names, rotary by halves, 4 rotary entries per head."""
    class Attention(nn.Module):
        def __init__(self, hidden=32, heads=2, kv_rank=12, nope=8, rope=4, v=8):
            super().__init__()
            self.heads, self.kv_rank, self.nope, self.rope, self.v = heads, kv_rank, nope, rope, v
            self.q_proj = nn.Linear(hidden, heads * (nope + rope), bias=False)
            self.kv_a_proj_with_mqa = nn.Linear(hidden, kv_rank + rope, bias=False)
            self.kv_a_layernorm = RMSNorm(kv_rank)
            self.kv_b_proj = nn.Linear(kv_rank, heads * (nope + v), bias=False)
            self.o_proj = nn.Linear(heads * v, hidden, bias=False)

        def core(self, q, latent, k_pe):
            b, n = latent.shape[:2]
            kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, n, self.heads, -1).transpose(1, 2)
            k = torch.cat((kv[..., : self.nope], k_pe.expand(-1, self.heads, -1, -1)), dim=-1)
            return F.scaled_dot_product_attention(q, k, kv[..., self.nope :], is_causal=True)

        def forward(self, x):
            b, n, _ = x.shape
            emb = torch.cat([angles(n, self.rope)] * 2, dim=-1)
            cos, sin = emb.cos().to(x), emb.sin().to(x)
            q = self.q_proj(x).view(b, n, self.heads, -1).transpose(1, 2)
            latent, k_pe = self.kv_a_proj_with_mqa(x).split([self.kv_rank, self.rope], dim=-1)
            q_pe, k_pe = q[..., self.nope :], k_pe[:, None]
            q = torch.cat((q[..., : self.nope], q_pe * cos + rotate_half(q_pe) * sin), dim=-1)
            k_pe = k_pe * cos + rotate_half(k_pe) * sin
            o = checkpoint(self.core, q, latent, k_pe, use_reentrant=False)
            return self.o_proj(o.transpose(1, 2).reshape(b, n, -1))
    return seeded(Attention)


@case("layer", source="fused kernels for rotary and norm (hand-written backward), as in training frameworks")
def mla_hand_written_parts():
    """RMSNorm and rotary as autograd.Functions with right backwards: the norm's second term is there, the rotary
    gradient turns back, the shared key's gradient sums over heads; interleaved pairs; causal."""
    class FusedRMSNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, eps):
            rstd = (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
            ctx.save_for_backward(x, weight, rstd)
            return x * rstd * weight

        @staticmethod
        def backward(ctx, dy):
            x, weight, rstd = ctx.saved_tensors
            xhat = x * rstd
            wdy = weight * dy
            dx = rstd * (wdy - xhat * (wdy * xhat).mean(-1, keepdim=True))
            return dx, (dy * xhat).flatten(0, -2).sum(0), None

    class FusedRotary(torch.autograd.Function):
        @staticmethod
        def turn(x, cos, sin):
            a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
            return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

        @staticmethod
        def forward(ctx, q_pe, k_pe, cos, sin):
            ctx.save_for_backward(cos, sin)
            k = FusedRotary.turn(k_pe, cos, sin).expand(-1, q_pe.shape[1], -1, -1)
            return FusedRotary.turn(q_pe, cos, sin), k.contiguous()

        @staticmethod
        def backward(ctx, dq, dk):
            cos, sin = ctx.saved_tensors
            return FusedRotary.turn(dq, cos, -sin), FusedRotary.turn(dk.sum(1, keepdim=True), cos, -sin), None, None

    class LatentAttention(nn.Module):
        def __init__(self, hidden=40, heads=4, kv_rank=16, nope=6, rope=6, v=8):
            super().__init__()
            self.heads, self.kv_rank, self.nope, self.rope = heads, kv_rank, nope, rope
            self.q_proj = nn.Linear(hidden, heads * (nope + rope), bias=False)
            self.kv_a_proj_with_mqa = nn.Linear(hidden, kv_rank + rope, bias=False)
            self.kv_norm_weight = nn.Parameter(torch.ones(kv_rank))
            self.kv_b_proj = nn.Linear(kv_rank, heads * (nope + v), bias=False)
            self.o_proj = nn.Linear(heads * v, hidden, bias=False)

        def forward(self, x):
            b, n, _ = x.shape
            ang = angles(n, self.rope)
            q = self.q_proj(x).view(b, n, self.heads, -1).transpose(1, 2)
            latent, k_pe = self.kv_a_proj_with_mqa(x).split([self.kv_rank, self.rope], dim=-1)
            kv = self.kv_b_proj(FusedRMSNorm.apply(latent, self.kv_norm_weight, 1e-6))
            kv = kv.view(b, n, self.heads, -1).transpose(1, 2)
            q_pe, k_pe = FusedRotary.apply(q[..., self.nope :], k_pe[:, None], ang.cos().to(x), ang.sin().to(x))
            q, k = torch.cat((q[..., : self.nope], q_pe), -1), torch.cat((kv[..., : self.nope], k_pe), -1)
            o = F.scaled_dot_product_attention(q, k, kv[..., self.nope :], is_causal=True)
            return self.o_proj(o.transpose(1, 2).reshape(b, n, -1))
    return seeded(LatentAttention)
