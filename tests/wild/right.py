"""Right code, in the styles of public repositories: attention, layers, and functions of their own."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from cases import collection

CASES, case = collection()
NUMPY = ("float64", "float32")


def fresh(build):
    """Build a module from a fixed seed, without touching anybody else's random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1234)
        return build()


# ---------------------------------------------------------------- attention, torch


@case(source="karpathy/nanoGPT model.py")
def nanogpt_buffer():
    """Causal self-attention (b, h, t, d), queries and keys of one length up to a registered buffer of 256."""
    class Core(nn.Module):
        def __init__(self, block_size=256):
            super().__init__()
            self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size))
                                 .view(1, 1, block_size, block_size))

        def forward(self, q, k, v):
            T = q.size(2)
            assert k.size(2) == T
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))
            att = F.softmax(att, dim=-1)
            y = att @ v
            return y
    return Core()


@case(options={"bias": "attention_mask", "scale": "scaling"},
      source="huggingface/transformers src/transformers/models/llama/modeling_llama.py")
def hf_eager_forward():
    """Grouped-query attention (b, h, n, d) with expanded key heads and an additive mask; softmax in float32;
    returns (output as (b, n, h, d), weights)."""
    def repeat_kv(x, n_rep):
        b, h, s, d = x.shape
        if n_rep == 1:
            return x
        return x[:, :, None].expand(b, h, n_rep, s, d).reshape(b, h * n_rep, s, d)

    def eager_attention_forward(query, key, value, attention_mask=None, scaling=None, **kwargs):
        n_rep = query.shape[1] // key.shape[1]
        key_states, value_states = repeat_kv(key, n_rep), repeat_kv(value, n_rep)
        if scaling is None:
            scaling = query.shape[-1] ** -0.5
        attn_weights = torch.matmul(query, key_states.transpose(2, 3)) * scaling
        if attention_mask is not None:
            attn_weights = attn_weights + attention_mask[:, :, :, : key_states.shape[-2]]
        attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)
        attn_output = torch.matmul(attn_weights, value_states).transpose(1, 2).contiguous()
        return attn_output, attn_weights
    return eager_attention_forward


@case(source="huggingface/pytorch-image-models timm/layers/attention.py")
def vit_huge_scale():
    """Attention (b, h, n, d) of a ViT-Huge, whose scale is the constant 80 ** -0.5 and whose head size must
    be 80."""
    class Attention:
        def __init__(self, dim=1280, num_heads=16):
            self.head_dim = dim // num_heads
            self.scale = self.head_dim ** -0.5

        def __call__(self, q, k, v):
            assert q.shape[-1] == self.head_dim, 'head size'
            q = q * self.scale
            attn = q @ k.transpose(-2, -1)
            attn = attn.softmax(dim=-1)
            return attn @ v
    return Attention()


@case(source="facebookresearch/dinov2 dinov2/layers/attention.py")
def constant_scale_80():
    """Attention (b, h, n, d) whose scale is always 80 ** -0.5, the model's head size, whatever the head size
    of q."""
    scale = 80 ** -0.5

    def fn(q, k, v):
        return (scale * q @ k.transpose(-2, -1)).softmax(-1) @ v
    return fn


@case(options={"bias": "attn_bias", "scale": "scale"},
      source="facebookresearch/xformers tests/test_mem_eff_attention.py")
def xformers_bmhk():
    """Attention in the layout (b, n, h, d), with an optional bias (b, h, n, m) and scale, by bmm on b*h."""
    def to_bh(t):
        return t.permute(0, 2, 1, 3).flatten(0, 1)

    def fn(q, k, v, attn_bias=None, scale=None):
        B, M, H, K = q.shape
        q_ = to_bh(q).mul(K ** -0.5 if scale is None else scale)
        attn = torch.bmm(q_, to_bh(k).transpose(1, 2))
        if attn_bias is not None:
            attn = attn + attn_bias.expand(B, H, M, k.shape[1]).reshape(B * H, M, -1)
        out = torch.bmm(attn.softmax(-1), to_bh(v))
        return out.view(B, H, M, v.shape[-1]).permute(0, 2, 1, 3)
    return fn


@case(options={"causal": "causal", "scale": "softmax_scale"},
      source="Dao-AILab/flash-attention tests/test_flash_attn.py")
def flash_reference():
    """Flash-attention's reference, (b, s, h, d), key heads repeated for groups, causal aligned bottom right,
    zero for queries without a key."""
    def attention_ref(q, k, v, causal=False, softmax_scale=None):
        dtype_og = q.dtype
        if q.dtype is not torch.float64:
            q, k, v = q.float(), k.float(), v.float()
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
        v = v.repeat_interleave(q.shape[2] // v.shape[2], dim=2)
        d = q.shape[-1]
        scores = torch.einsum("bthd,bshd->bhts", q * (softmax_scale or 1 / math.sqrt(d)), k)
        if causal:
            row_idx = torch.arange(seqlen_q, device=q.device)[:, None]
            local = torch.arange(seqlen_k, device=q.device)[None] > row_idx + seqlen_k - seqlen_q
            scores = scores.masked_fill(local, -torch.inf)
            dead = local.all(-1, keepdim=True)
            attention = torch.softmax(scores.masked_fill(dead, 0.0), dim=-1)
            attention = attention.masked_fill(dead, 0.0)
        else:
            attention = torch.softmax(scores, dim=-1)
        return torch.einsum("bhts,bshd->bthd", attention, v).to(dtype_og)
    return attention_ref


@case(options={"mask": "attention_mask"},
      source="NVIDIA/Megatron-LM megatron/core/transformer/dot_product_attention.py")
def megatron_core():
    """Attention (s, b, h, d) -> (s, b, h*d) by baddbmm; attention_mask (b, 1, n, m) is True where it hides,
    filled with -10000."""
    def forward(query, key, value, attention_mask=None):
        norm_factor = math.sqrt(query.size(-1))
        b, np_, sq, sk = query.size(1), query.size(2), query.size(0), key.size(0)
        query = query.reshape(sq, b * np_, -1)
        key = key.reshape(sk, b * np_, -1)
        buf = torch.empty(b * np_, sq, sk, dtype=query.dtype, device=query.device)
        matmul_result = torch.baddbmm(buf, query.transpose(0, 1), key.transpose(0, 1).transpose(1, 2),
                                      beta=0.0, alpha=(1.0 / norm_factor))
        scores = matmul_result.view(b, np_, sq, sk)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask, -10000.0)
        probs = torch.softmax(scores, dim=-1).view(b * np_, sq, sk)
        value = value.reshape(sk, b * np_, -1)
        context = torch.bmm(probs, value.transpose(0, 1)).view(b, np_, sq, -1)
        context = context.permute(2, 0, 1, 3).contiguous()
        return context.view(sq, b, -1)
    return forward


@case()
def einsum_shbd():
    """Attention with axes (sequence, head, batch, feature), in two einsums."""
    def fn(q, k, v):
        w = torch.einsum("ihbd,jhbd->hbij", q, k).div(q.size(-1) ** 0.5)
        w = w - w.logsumexp(-1, keepdim=True)
        return torch.einsum("hbij,jhbd->ihbd", w.exp(), v)
    return fn


@case(options={"causal": "causal"},
      source="Dao-AILab/flash-attention benchmarks/benchmark_flash_attention.py")
def packed_qkv():
    """Self-attention that packs q, k, v into (b, s, 3, h, d) first; causal by adding -10000 above the
    diagonal."""
    def qkvpacked(qkv, causal):
        batch_size, seqlen, _, nheads, d = qkv.shape
        q, k, v = qkv.unbind(dim=2)
        q = q.transpose(1, 2).reshape(batch_size * nheads, seqlen, d)
        k = k.permute(0, 2, 3, 1).reshape(batch_size * nheads, d, seqlen)
        scores = torch.empty(batch_size * nheads, seqlen, seqlen, dtype=qkv.dtype)
        scores = torch.baddbmm(scores, q, k, beta=0, alpha=1.0 / math.sqrt(d))
        scores = scores.view(batch_size, nheads, seqlen, seqlen)
        if causal:
            causal_mask = torch.triu(torch.full((seqlen, seqlen), -10000.0), 1)
            scores = scores + causal_mask.to(dtype=scores.dtype)
        return torch.einsum('bhts,bshd->bthd', torch.softmax(scores, dim=-1), v)

    def fn(q, k, v, causal=False):
        return qkvpacked(torch.stack([q, k, v], dim=2), causal)
    return fn


@case(source="huggingface/diffusers src/diffusers/models/attention_processor.py")
def diffusers_scores():
    """Attention on (b*h, n, d) without a head axis, by baddbmm and bmm, upcast to float32 for the softmax."""
    def get_attention_scores(query, key):
        dtype = query.dtype
        baddbmm_input = torch.empty(query.shape[0], query.shape[1], key.shape[1], dtype=query.dtype)
        attention_scores = torch.baddbmm(baddbmm_input, query, key.transpose(-1, -2), beta=0,
                                         alpha=query.shape[-1] ** -0.5)
        attention_probs = attention_scores.float().softmax(dim=-1)
        return attention_probs.to(dtype)

    def fn(q, k, v):
        return torch.bmm(get_attention_scores(q, k), v)
    return fn


@case(options={"mask": "attention_mask"}, source="google-research/bert modeling.py")
def bert_padding_mask():
    """Attention (b, h, n, d) with a key padding mask (b, m) that is 1 for real tokens, made additive with
    the dtype's lowest number."""
    def self_attention(query_layer, key_layer, value_layer, attention_mask=None):
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(query_layer.size(-1))
        if attention_mask is not None:
            extended = attention_mask[:, None, None, :].to(dtype=query_layer.dtype)
            extended = (1.0 - extended) * torch.finfo(query_layer.dtype).min
            attention_scores = attention_scores + extended
        attention_probs = nn.Softmax(dim=-1)(attention_scores)
        return torch.matmul(attention_probs, value_layer)
    return self_attention


@case(options={"mask": "mask", "causal": "causal"},
      source="lucidrains/x-transformers x_transformers/attend.py")
def lucid_attend():
    """Attention (b, h, i, d), boolean key mask (b, j) that keeps, causal aligned bottom right, filled with
    -finfo.max, the row maximum taken off detached."""
    def exists(val):
        return val is not None

    def attend(q, k, v, mask=None, causal=False):
        scale = q.shape[-1] ** -0.5
        sim = torch.einsum('b h i d, b h j d -> b h i j', q, k) * scale
        mask_value = -torch.finfo(sim.dtype).max
        if exists(mask):
            sim = sim.masked_fill(~mask[:, None, None, :], mask_value)
        if causal:
            i, j = sim.shape[-2:]
            causal_mask = torch.ones((i, j), dtype=torch.bool, device=q.device).triu(j - i + 1)
            sim = sim.masked_fill(causal_mask, mask_value)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)
        return torch.einsum('b h i j, b h j d -> b h i d', attn, v)
    return attend


@case(options={"mask": "mask"}, source="harvardnlp/annotated-transformer the_annotated_transformer.py")
def annotated_attention():
    """Attention (b, h, n, d) with a mask (n, m), or one that broadcasts, whose zeros are filled with -1e9;
    returns (output, weights)."""
    def attention(query, key, value, mask=None, dropout=None):
        d_k = query.size(-1)
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        p_attn = scores.softmax(dim=-1)
        if dropout is not None:
            p_attn = dropout(p_attn)
        return torch.matmul(p_attn, value), p_attn
    return attention


@case(options={"mask": "attn_mask"},
      source="jadore801120/attention-is-all-you-need-pytorch transformer/Modules.py")
def dropping_mask_bnm():
    """Attention (b, h, n, d) with a boolean mask (b, n, m) that is True where it hides, one for all heads."""
    class ScaledDotProduct(nn.Module):
        def forward(self, q, k, v, attn_mask=None):
            attn = torch.matmul(q / (q.size(3) ** 0.5), k.transpose(2, 3))
            if attn_mask is not None:
                attn = attn.masked_fill(attn_mask.unsqueeze(1).bool(), float("-inf"))
            attn = F.softmax(attn, dim=-1)
            output = torch.matmul(attn, v)
            return output, attn
    return ScaledDotProduct()


@case(options={"mask": "key_padding_mask"},
      source="facebookresearch/fairseq fairseq/modules/multihead_attention.py")
def fairseq_key_padding():
    """Attention (b, h, n, d) with a boolean key_padding_mask (b, m) that is True for padding, in b*h bmm."""
    def fn(q, k, v, key_padding_mask=None):
        bsz, num_heads, tgt_len, head_dim = q.shape
        src_len = k.size(2)
        q = q.reshape(bsz * num_heads, tgt_len, head_dim) * head_dim ** -0.5
        k = k.reshape(bsz * num_heads, src_len, head_dim)
        v = v.reshape(bsz * num_heads, src_len, -1)
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        if key_padding_mask is not None:
            attn_weights = attn_weights.view(bsz, num_heads, tgt_len, src_len)
            attn_weights = attn_weights.masked_fill(key_padding_mask.unsqueeze(1).unsqueeze(2).to(torch.bool),
                                                    float("-inf"))
            attn_weights = attn_weights.view(bsz * num_heads, tgt_len, src_len)
        attn_probs = torch.softmax(attn_weights, dim=-1)
        return torch.bmm(attn_probs, v).view(bsz, num_heads, tgt_len, -1)
    return fn


@case(options={"mask": "mask", "causal": "causal", "scale": "scale"},
      source="pytorch/torchtune torchtune/modules/attention_utils.py")
def sdpa_wrapped_bshd():
    """F.scaled_dot_product_attention behind the layout (b, s, h, d), grouped key heads allowed, mask of
    PyTorch's sense (b, n, m), causal top left."""
    def fn(q, k, v, mask=None, causal=False, scale=None):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if mask is not None and mask.dim() == 3:
            mask = mask[:, None]
        if causal and mask is not None:
            mask = mask & torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
            causal = False
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale,
                                           enable_gqa=q.shape[1] != k.shape[1])
        return o.transpose(1, 2).contiguous()
    return fn


@case(options={"mask": "attn_mask", "causal": "is_causal", "scale": "scale"},
      source="pytorch/pytorch torch/nn/functional.py")
def sdpa_docs():
    """Written-out scaled_dot_product_attention (..., n, d): boolean mask that keeps or float mask that is
    added, causal aligned top left (and with a mask, both)."""
    def scaled_dot_product_attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
        L, S = query.size(-2), key.size(-2)
        scale_factor = 1 / math.sqrt(query.size(-1)) if scale is None else scale
        attn_bias = torch.zeros(L, S, dtype=query.dtype, device=query.device)
        if is_causal:
            temp_mask = torch.ones(L, S, dtype=torch.bool, device=query.device).tril(diagonal=0)
            attn_bias = attn_bias.masked_fill(temp_mask.logical_not(), float("-inf"))
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_bias = attn_bias.masked_fill(attn_mask.logical_not(), float("-inf"))
            else:
                attn_bias = attn_mask + attn_bias
        attn_weight = query @ key.transpose(-2, -1) * scale_factor
        attn_weight = attn_weight + attn_bias
        attn_weight = torch.softmax(attn_weight, dim=-1)
        return attn_weight @ value
    return scaled_dot_product_attention


@case()
def no_batch_axis():
    """Attention on (h, n, d), no batch axis."""
    def fn(q, k, v):
        heads, _, width = q.shape
        outs = []
        for i in range(heads):
            s = torch.mm(q[i], k[i].t()) / width ** .5
            outs.append(torch.mm(torch.softmax(s, dim=1), v[i]))
        return torch.stack(outs)
    return fn


@case(source="rasbt/LLMs-from-scratch ch03/01_main-chapter-code/ch03.ipynb")
def one_head_2d_causal():
    """Causal attention of one sequence and one head, (n, d), square only."""
    def fn(queries, keys, values):
        num_tokens, d_k = keys.shape
        if queries.shape[0] != num_tokens:
            raise ValueError("self-attention only")
        attn_scores = queries @ keys.T
        mask = torch.triu(torch.ones(num_tokens, num_tokens), diagonal=1)
        attn_scores = attn_scores.masked_fill(mask.bool(), -torch.inf)
        attn_weights = torch.softmax(attn_scores / d_k ** 0.5, dim=-1)
        return attn_weights @ values
    return fn


@case(source="openai/whisper whisper/model.py")
def heads_in_features():
    """Attention on (b, n, 4*d) with four heads merged into the features, q and k each scaled by d ** -0.25,
    softmax in float32; returns (output, detached scores)."""
    n_head = 4

    def qkv_attention(q, k, v, mask=None):
        n_batch, n_ctx, n_state = q.shape
        scale = (n_state // n_head) ** -0.25
        q = q.view(*q.shape[:2], n_head, -1).permute(0, 2, 1, 3) * scale
        k = k.view(*k.shape[:2], n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(*v.shape[:2], n_head, -1).permute(0, 2, 1, 3)
        qk = q @ k
        if mask is not None:
            qk = qk + mask[:n_ctx, :n_ctx]
        qk = qk.float()
        w = F.softmax(qk, dim=-1).to(q.dtype)
        return (w @ v).permute(0, 2, 1, 3).flatten(start_dim=2), qk.detach()
    return qkv_attention


@case(source="openai/guided-diffusion guided_diffusion/unet.py")
def channels_first():
    """Attention on (b*h, channels, length), channels before length, q and k each scaled by
    1 / sqrt(sqrt(channels))."""
    def fn(q, k, v):
        ch = q.shape[1]
        scale = 1 / math.sqrt(math.sqrt(ch))
        weight = torch.einsum("bct,bcs->bts", q * scale, k * scale)  # more stable with f16
        weight = torch.softmax(weight, dim=-1)
        return torch.einsum("bts,bcs->bct", weight, v)
    return fn


@case(source="meta-llama/llama llama/model.py")
def cached_causal_cross():
    """Causal attention (b, h, n, d) of the last n of m positions (bottom right aligned, n <= m asserted)."""
    def fn(xq, keys, values):
        seqlen, total = xq.shape[-2], keys.shape[-2]
        assert seqlen <= total
        start_pos = total - seqlen
        mask = torch.full((seqlen, seqlen), float("-inf"), dtype=xq.dtype)
        mask = torch.triu(mask, diagonal=1)
        mask = torch.hstack([torch.zeros((seqlen, start_pos), dtype=xq.dtype), mask])
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(xq.shape[-1])
        scores = scores + mask
        scores = F.softmax(scores, dim=-1)
        return torch.matmul(scores, values)
    return fn


@case(options={"causal": "causal"}, source="mistralai/mistral-inference one_file_ref.py")
def gqa_reshaped_queries():
    """Grouped-query attention (b, n, h, d) that splits the query heads into (kv head, group) and never
    repeats k and v; causal top left."""
    def fn(q, k, v, causal=False):
        b, n, h, d = q.shape
        m, hk = k.shape[1:3]
        qg = q.reshape(b, n, hk, h // hk, d)
        s = torch.einsum("bnkgd,bmkd->bkgnm", qg, k) * d ** -0.5
        if causal:
            hide = torch.arange(m)[None, :] > torch.arange(n)[:, None]
            s = s.masked_fill(hide, float("-inf"))
        p = s.softmax(-1)
        return torch.einsum("bkgnm,bmkd->bnkgd", p, v).reshape(b, n, h, v.shape[-1])
    return fn


@case(source="Lightning-AI/litgpt litgpt/model.py")
def gqa_interleave_causal():
    """Grouped-query attention (b, h, t, d) by repeat_interleave, always causal top left, one length."""
    def fn(q, k, v):
        g = q.size(1) // k.size(1)
        if g > 1:
            k = torch.repeat_interleave(k, g, dim=1)
            v = torch.repeat_interleave(v, g, dim=1)
        T = q.size(-2)
        causal = torch.ones(T, T, dtype=torch.bool).tril()
        scores = (q * (1.0 / math.sqrt(q.size(-1)))) @ k.mT
        scores = torch.where(causal, scores, torch.tensor(-torch.inf, dtype=scores.dtype))
        return scores.softmax(-1) @ v
    return fn


@case(source="lucidrains/PaLM-pytorch palm_pytorch/palm_pytorch.py")
def mqa_headless_kv():
    """Multi-query attention: q is (b, h, n, d), k and v are (b, m, d) without a head axis."""
    def fn(q, k, v):
        scale = q.shape[-1] ** -0.5
        sim = torch.einsum("b h i d, b j d -> b h i j", q * scale, k)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)
        return torch.einsum("b h i j, b j d -> b h i d", attn, v)
    return fn


@case(source="66RING/tiny-flash-attention flash_attention-py/tiny_flash_attn.py")
def online_softmax_16():
    """Online softmax over tiles of 16 by 16, (b, h, n, d), lengths multiples of 16 (asserted)."""
    BLOCK_M = BLOCK_N = 16

    def flash_attn(Q, K, V):
        assert Q.shape[2] % BLOCK_M == 0 and K.shape[2] % BLOCK_N == 0
        Q = Q * (1.0 / math.sqrt(Q.shape[-1]))
        rows = []
        for qi in Q.split(BLOCK_M, dim=2):
            m = torch.full((*qi.shape[:-1], 1), float("-inf"), dtype=Q.dtype)
            l = torch.zeros_like(m)
            o = torch.zeros(*qi.shape[:-1], V.shape[-1], dtype=Q.dtype)
            for kj, vj in zip(K.split(BLOCK_N, dim=2), V.split(BLOCK_N, dim=2)):
                s = qi @ kj.transpose(2, 3)
                m_new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
                p = torch.exp(s - m_new)
                alpha = torch.exp(m - m_new)
                l = l * alpha + p.sum(dim=-1, keepdim=True)
                o = o * alpha + p @ vj
                m = m_new
            rows.append(o / l)
        return torch.cat(rows, dim=2)
    return flash_attn


@case(options={"causal": "causal", "scale": "sm_scale"},
      source="triton-lang/triton python/tutorials/06-fused-attention.py")
def exp2_ragged_tiles():
    """Tiles of 32 keys, ragged lengths, base-2 exponentials, causal top left; state in float32 unless the
    input is float64."""
    LOG2E = 1.4426950408889634

    def fn(q, k, v, causal=False, sm_scale=None):
        acc_t = torch.float64 if q.dtype == torch.float64 else torch.float32
        qk_scale = (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale) * LOG2E
        N_CTX, N_KV = q.shape[-2], k.shape[-2]
        offs_m = torch.arange(N_CTX)[:, None]
        m_i = torch.full(q.shape[:-1], -float("inf"), dtype=acc_t)
        l_i = torch.zeros(q.shape[:-1], dtype=acc_t)
        acc = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=acc_t)
        hi = min(N_KV, N_CTX) if causal else N_KV
        for start in range(0, hi, 32):
            stop = min(start + 32, hi)
            qk = q.to(acc_t) @ k[..., start:stop, :].to(acc_t).transpose(-1, -2) * qk_scale
            if causal:
                qk = qk.masked_fill(offs_m < torch.arange(start, stop), -float("inf"))
            m_ij = torch.maximum(m_i, qk.amax(-1))
            p = torch.exp2(qk - m_ij[..., None])
            alpha = torch.exp2(m_i - m_ij)
            l_i = l_i * alpha + p.sum(-1)
            acc = acc * alpha[..., None] + p @ v[..., start:stop, :].to(acc_t)
            m_i = m_ij
        return (acc / l_i[..., None]).to(q.dtype)
    return fn


@case(options={"causal": "causal"}, source="shreyansh26/FlashAttention-PyTorch flash_attention_causal.py")
def autograd_function_lse():
    """autograd.Function (b, h, n, d) that keeps the logsumexp and recomputes P in its handwritten backward;
    causal top left."""
    class FlashLike(torch.autograd.Function):
        @staticmethod
        def scores(q, k, causal):
            s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            if causal:
                n, m = s.shape[-2:]
                s = s.masked_fill(~torch.ones(n, m, dtype=torch.bool).tril(), -torch.inf)
            return s

        @staticmethod
        def forward(ctx, q, k, v, causal):
            s = FlashLike.scores(q, k, causal)
            lse = torch.logsumexp(s, dim=-1, keepdim=True)
            o = torch.exp(s - lse) @ v
            ctx.save_for_backward(q, k, v, o, lse)
            ctx.causal = causal
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, lse = ctx.saved_tensors
            p = torch.exp(FlashLike.scores(q, k, ctx.causal) - lse)
            delta = (o * do).sum(-1, keepdim=True)
            dv = p.transpose(-1, -2) @ do
            dp = do @ v.transpose(-1, -2)
            ds = p * (dp - delta) / math.sqrt(q.shape[-1])
            return ds @ k, ds.transpose(-1, -2) @ q, dv, None

    def fn(q, k, v, causal=False):
        return FlashLike.apply(q, k, v, causal)
    return fn


@case(options={"scale": "scale"})
def autograd_function_tiled():
    """autograd.Function (b, n, h, d) with a FlashAttention-2 style backward in key tiles of 24; optional
    scale."""
    class Tiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, scale):
            s = torch.einsum("bnhd,bmhd->bhnm", q, k) * scale
            L = s.logsumexp(-1)
            o = torch.einsum("bhnm,bmhd->bnhd", (s - L.unsqueeze(-1)).exp(), v)
            ctx.save_for_backward(q, k, v, o, L)
            ctx.scale = scale
            return o

        @staticmethod
        def backward(ctx, grad_o):
            q, k, v, o, L = ctx.saved_tensors
            D = (grad_o * o).sum(-1).transpose(1, 2)  # b h n
            dq = torch.zeros_like(q)
            dks, dvs = [], []
            for j in range(0, k.shape[1], 24):
                kj, vj = k[:, j:j + 24], v[:, j:j + 24]
                p = (torch.einsum("bnhd,bmhd->bhnm", q, kj) * ctx.scale - L.unsqueeze(-1)).exp()
                dvs.append(torch.einsum("bhnm,bnhd->bmhd", p, grad_o))
                dp = torch.einsum("bnhd,bmhd->bhnm", grad_o, vj)
                ds = p * (dp - D.unsqueeze(-1)) * ctx.scale
                dq += torch.einsum("bhnm,bmhd->bnhd", ds, kj)
                dks.append(torch.einsum("bhnm,bnhd->bmhd", ds, q))
            return dq, torch.cat(dks, 1), torch.cat(dvs, 1), None

    def fn(q, k, v, scale=None):
        return Tiled.apply(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale)
    return fn


@case(source="")
def sliced_queries():
    """Attention on (b, n, h, d) in slices of 7 queries, a softmax over all keys for each slice."""
    def fn(query, key, value):
        slice_size = 7
        hidden = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
        for i in range(0, query.shape[1], slice_size):
            end = i + slice_size
            a = torch.einsum('bqhd,bkhd->bhqk', query[:, i:end], key) * (query.shape[-1] ** -0.5)
            hidden[:, i:end] = torch.einsum('bhqk,bkhd->bqhd', a.softmax(dim=-1), value)
        return hidden
    return fn


@case()
def vmapped_single_head():
    """A single-head function of matrices, vmapped over batch and heads, (b, h, n, d)."""
    def head(q, k, v):
        z = q @ k.T / q.shape[-1] ** 0.5
        e = torch.exp(z - z.max(dim=-1, keepdim=True).values)
        return (e @ v) / e.sum(dim=-1, keepdim=True)
    return torch.vmap(torch.vmap(head))


@case()
def batch_of_one():
    """Inference code: (1, n, h, d) only, squeezed, one head after another."""
    def fn(q, k, v):
        (one, n, h, d) = q.shape
        assert one == 1, "batch size must be 1"
        q, k, v = q[0], k[0], v[0]
        out = []
        for hd in range(h):
            a = F.softmax((q[:, hd] @ k[:, hd].t()).mul(d ** -0.5), -1)
            out.append(a @ v[:, hd])
        return torch.stack(out, 1)[None]
    return fn


@case()
def fixed_0125():
    """Attention (b, h, n, 64) with the scale 0.125 and a reshape that takes head size 64 only; returns
    (output, logsumexp)."""
    def fn(q, k, v):
        b, h = q.shape[:2]
        q2, k2, v2 = q.reshape(b * h, -1, 64), k.reshape(b * h, -1, 64), v.reshape(b * h, -1, 64)
        assert q.shape[-1] == 64
        logits = 0.125 * torch.einsum('xid,xjd->xij', q2, k2)
        lse = torch.logsumexp(logits, dim=-1)
        out = torch.exp(logits - lse[..., None]).bmm(v2)
        return out.reshape(b, h, -1, 64), lse.reshape(b, h, -1)
    return fn


@case(source="Dao-AILab/flash-attention csrc/flash_attn/src/flash_fwd_kernel.h")
def split_kv_combined():
    """Flash-decoding: two halves of the keys apart, put together by their logsumexps, (b, h, n, d), m >=
    2."""
    def part(q, k, v):
        s = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        lse = s.logsumexp(-1, keepdim=True)
        return torch.matmul((s - lse).exp(), v), lse

    def fn(q, k, v):
        half = k.shape[-2] // 2
        o1, l1 = part(q, k[..., :half, :], v[..., :half, :])
        o2, l2 = part(q, k[..., half:, :], v[..., half:, :])
        lse = torch.logaddexp(l1, l2)
        return o1 * (l1 - lse).exp() + o2 * (l2 - lse).exp()
    return fn


@case(options={"mask": "mask", "bias": "bias"}, source="google/flax flax/linen/attention.py")
def flax_weights():
    """Attention (b, q, h, d) after Flax: query divided first, bias added, mask (b, 1, n, m) True keeps,
    filled with the dtype's lowest number."""
    def dot_product_attention_weights(query, key, bias, mask):
        query = query / math.sqrt(query.shape[-1])
        attn_weights = torch.einsum('...qhd,...khd->...hqk', query, key)
        if bias is not None:
            attn_weights = attn_weights + bias
        if mask is not None:
            big_neg = torch.tensor(torch.finfo(query.dtype).min, dtype=query.dtype)
            attn_weights = torch.where(mask, attn_weights, big_neg)
        return torch.softmax(attn_weights, -1)

    def fn(q, k, v, bias=None, mask=None):
        return torch.einsum('...hqk,...khd->...qhd', dot_product_attention_weights(q, k, bias, mask), v)
    return fn


# ---------------------------------------------------------------- attention, NumPy pairs


def np_softmax(x, axis=-1):
    x = x - np.max(x, axis=axis, keepdims=True)
    e = np.exp(x)
    return e / np.sum(e, axis=axis, keepdims=True)


@case(formats=NUMPY)
def np_loops():
    """NumPy loops over batch, head and query, (b, h, n, d), backward row by row."""
    def row(q, k):
        s = k @ q / math.sqrt(len(q))
        e = np.exp(s - s.max())
        return e / e.sum()

    def forward(q, k, v):
        o = np.zeros(q.shape[:-1] + v.shape[-1:], q.dtype)
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):
                for i in range(q.shape[2]):
                    o[b, h, i] = row(q[b, h, i], k[b, h]) @ v[b, h]
        return o

    def backward(do, q, k, v):
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):
                for i in range(q.shape[2]):
                    p = row(q[b, h, i], k[b, h])
                    g = do[b, h, i]
                    dp = v[b, h] @ g
                    ds = p * (dp - p @ dp) / math.sqrt(q.shape[-1])
                    dq[b, h, i] = ds @ k[b, h]
                    dk[b, h] += np.outer(ds, q[b, h, i])
                    dv[b, h] += np.outer(p, g)
        return dq, dk, dv
    return forward, backward


@case(options={"causal": "causal"}, formats=NUMPY)
def np_einsum_bshd():
    """NumPy einsums in (b, s, h, d), causal aligned top left."""
    def probs(q, k, causal):
        s = np.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
        if causal:
            keep = np.tri(s.shape[-2], s.shape[-1], dtype=bool)
            s = np.where(keep, s, -np.inf)
        return np_softmax(s)

    def forward(q, k, v, causal=False):
        return np.einsum("bhij,bjhd->bihd", probs(q, k, causal), v)

    def backward(do, q, k, v, causal=False):
        p = probs(q, k, causal)
        dv = np.einsum("bhij,bihd->bjhd", p, do)
        dp = np.einsum("bihd,bjhd->bhij", do, v)
        ds = p * (dp - np.sum(dp * p, axis=-1, keepdims=True))
        ds /= math.sqrt(q.shape[-1])
        return np.einsum("bhij,bjhd->bihd", ds, k), np.einsum("bhij,bihd->bjhd", ds, q), dv
    return forward, backward


@case(formats=NUMPY, source="jtappen1/Machine-Learning-From-Scratch models/self-attention/self_attention.py")
def np_matrices():
    """NumPy attention of one sequence and one head, (n, d), with np.sqrt and the softmax Jacobian times a
    vector."""
    def forward(Q, K, V):
        return np_softmax(Q.dot(K.T) / np.sqrt(K.shape[1])).dot(V)

    def backward(dO, Q, K, V):
        A = np_softmax(Q.dot(K.T) / np.sqrt(K.shape[1]))
        dA = dO.dot(V.T)
        dS = A * dA - A * (A * dA).sum(axis=1, keepdims=True)
        dS = dS / np.sqrt(K.shape[1])
        return dS.dot(K), dS.T.dot(Q), A.T.dot(dO)
    return forward, backward


@case(formats=NUMPY)
def np_causal_1e9():
    """NumPy causal self-attention (b, h, n, d), square, -1e9 added above the diagonal, matmuls with
    swapaxes."""
    def weights(q, k):
        n = q.shape[-2]
        assert k.shape[-2] == n
        scores = np.matmul(q, np.swapaxes(k, -1, -2)) * q.shape[-1] ** -0.5
        return np_softmax(scores + np.triu(np.full((n, n), -1e9, dtype=q.dtype), k=1))

    def forward(q, k, v):
        return np.matmul(weights(q, k), v)

    def backward(do, q, k, v):
        w = weights(q, k)
        dw = np.matmul(do, v.swapaxes(-1, -2))
        out = np.matmul(w, v)
        ds = w * (dw - (do * out).sum(-1, keepdims=True)) * q.shape[-1] ** -0.5
        return np.matmul(ds, k), np.matmul(ds.swapaxes(-1, -2), q), np.matmul(w.swapaxes(-1, -2), do)
    return forward, backward


@case(options={"mask": "mask", "scale": "scale"}, formats=NUMPY)
def np_masked():
    """NumPy attention (b, h, n, d) with a mask that broadcasts to the scores and keeps where it is not zero
    (others become -1e9), and an optional scale."""
    def attn(q, k, mask, scale):
        scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
        s = (q @ k.transpose(0, 1, 3, 2)) * scale
        if mask is not None:
            s = np.where(np.asarray(mask) == 0, np.asarray(-1e9, s.dtype), s)
        return np_softmax(s), scale

    def forward(q, k, v, mask=None, scale=None):
        return attn(q, k, mask, scale)[0] @ v

    def backward(do, q, k, v, mask=None, scale=None):
        p, scale = attn(q, k, mask, scale)
        dv = p.transpose(0, 1, 3, 2) @ do
        dp = do @ v.transpose(0, 1, 3, 2)
        ds = p * (dp - np.einsum("bhij,bhij->bhi", dp, p)[..., None])
        if mask is not None:
            ds = ds * (np.asarray(mask) != 0)
        return scale * (ds @ k), scale * (ds.transpose(0, 1, 3, 2) @ q), dv
    return forward, backward


@case(formats=NUMPY)
def np_full_jacobian():
    """NumPy attention (b, n, d), no head axis, whose backward builds the softmax's whole Jacobian of each
    row."""
    def forward(q, k, v):
        return np_softmax(np.einsum("bid,bjd->bij", q, k) / math.sqrt(q.shape[2])) @ v

    def backward(do, q, k, v):
        p = np_softmax(np.einsum("bid,bjd->bij", q, k) / math.sqrt(q.shape[2]))
        dp = np.einsum("bid,bjd->bij", do, v)
        eye = np.eye(k.shape[1], dtype=q.dtype)
        jac = p[..., :, None] * eye - p[..., :, None] * p[..., None, :]  # b i j l
        ds = np.einsum("bijl,bij->bil", jac, dp) / math.sqrt(q.shape[2])
        dk = np.einsum("bij,bid->bjd", ds, q)
        return np.einsum("bij,bjd->bid", ds, k), dk, np.einsum("bij,bid->bjd", p, do)
    return forward, backward


@case(options={"causal": "causal"}, formats=NUMPY)
def np_flash_blocks():
    """NumPy FlashAttention-2 in blocks of 32 keys (b, h, n, d): online softmax forward, blockwise
    backward from the logsumexp; causal top left."""
    B = 32

    def score(q, k, j, causal):
        s = q @ k[:, :, j:j + B].swapaxes(2, 3) * q.shape[-1] ** -0.5
        if causal:
            rows, cols = np.arange(q.shape[2])[:, None], np.arange(j, j + s.shape[-1])[None]
            s = np.where(cols > rows, -np.inf, s)
        return s

    def run(q, k, v, causal):
        m = np.full(q.shape[:3] + (1,), -np.inf, q.dtype)
        l = np.zeros_like(m)
        o = np.zeros(q.shape[:3] + v.shape[3:], q.dtype)
        for j in range(0, k.shape[2], B):
            s = score(q, k, j, causal)
            new = np.maximum(m, s.max(-1, keepdims=True))
            p, a = np.exp(s - new), np.exp(m - new)
            l = a * l + p.sum(-1, keepdims=True)
            o = a * o + p @ v[:, :, j:j + B]
            m = new
        return o / l, m + np.log(l)

    def forward(q, k, v, causal=False):
        return run(q, k, v, causal)[0]

    def backward(do, q, k, v, causal=False):
        o, lse = run(q, k, v, causal)
        delta = np.sum(do * o, axis=-1, keepdims=True)
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for j in range(0, k.shape[2], B):
            block = np.s_[:, :, j:j + B]
            p = np.exp(score(q, k, j, causal) - lse)
            dv[block] = p.swapaxes(2, 3) @ do
            ds = p * (do @ v[block].swapaxes(2, 3) - delta) * q.shape[-1] ** -0.5
            dq += ds @ k[block]
            dk[block] = ds.swapaxes(2, 3) @ q
        return dq, dk, dv
    return forward, backward


@case(formats=NUMPY)
def np_grouped():
    """NumPy grouped-query attention (b, h, n, d): key heads repeated forward, their gradients summed over the
    group backward."""
    def forward(q, k, v):
        r = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, r, axis=1), np.repeat(v, r, axis=1)
        return np_softmax(q @ np.moveaxis(k, 3, 2) / math.sqrt(q.shape[3])) @ v

    def backward(do, q, k, v):
        hk = k.shape[1]
        r = q.shape[1] // hk
        kk, vv = np.repeat(k, r, axis=1), np.repeat(v, r, axis=1)
        p = np_softmax(q @ np.moveaxis(kk, 3, 2) / math.sqrt(q.shape[3]))
        dp = do @ np.moveaxis(vv, 3, 2)
        ds = (dp - (dp * p).sum(3, keepdims=True)) * p / math.sqrt(q.shape[3])

        def group_sum(g):
            return g.reshape(g.shape[0], hk, r, *g.shape[2:]).sum(axis=2)
        return ds @ kk, group_sum(np.moveaxis(ds, 3, 2) @ q), group_sum(np.moveaxis(p, 3, 2) @ do)
    return forward, backward


# ---------------------------------------------------------------- layers


@case("layer", source="karpathy/nanoGPT model.py")
def layer_nanogpt():
    """Causal self-attention layer, one Linear for q, k, v, biases, (b, t, c) with four heads, up to 128
    tokens."""
    class CausalSelfAttention(nn.Module):
        def __init__(self, n_embd=64, n_head=4, block_size=128):
            super().__init__()
            self.c_attn = nn.Linear(n_embd, 3 * n_embd)
            self.c_proj = nn.Linear(n_embd, n_embd)
            self.n_head, self.n_embd = n_head, n_embd
            self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size))[None, None])

        def forward(self, x):
            B, T, C = x.size()
            q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
            k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))
            y = F.softmax(att, dim=-1) @ v
            return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
    return fresh(CausalSelfAttention)


@case("layer", source="huggingface/transformers src/transformers/models/gpt2/modeling_gpt2.py")
def layer_gpt2_conv1d():
    """Causal layer whose weights lie the other way round (in, out) as in GPT-2's Conv1D, by addmm; returns
    (output, weights)."""
    class Conv1D(nn.Module):
        def __init__(self, nf, nx):
            super().__init__()
            self.nf = nf
            self.weight = nn.Parameter(torch.randn(nx, nf) * 0.15)
            self.bias = nn.Parameter(torch.randn(nf) * 0.1)

        def forward(self, x):
            return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)

    class GPT2Attention(nn.Module):
        def __init__(self, embed_dim=48, num_heads=3):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
            self.c_attn = Conv1D(3 * embed_dim, embed_dim)
            self.c_proj = Conv1D(embed_dim, embed_dim)

        def forward(self, hidden_states):
            shape = (*hidden_states.shape[:-1], self.num_heads, self.head_dim)
            qkv = self.c_attn(hidden_states).chunk(3, dim=-1)
            query, key, value = (t.reshape(shape).transpose(1, 2) for t in qkv)
            w = torch.matmul(query, key.transpose(-1, -2)) / self.head_dim ** 0.5
            n = w.size(-1)
            causal_mask = torch.tril(torch.ones((n, n), dtype=torch.bool))
            w = torch.where(causal_mask, w, torch.full([], torch.finfo(w.dtype).min, dtype=w.dtype))
            w = nn.functional.softmax(w, dim=-1)
            out = torch.matmul(w, value).transpose(1, 2).reshape(hidden_states.shape)
            return self.c_proj(out), w
    return fresh(GPT2Attention)


@case("layer", source="huggingface/transformers src/transformers/models/bert/modeling_bert.py")
def layer_bert():
    """BERT-like self-attention with separate Linears and an output dense; attention_mask is additive
    (b, 1, 1, n); returns a tuple (output, weights)."""
    class BertAttention(nn.Module):
        def __init__(self, hidden_size=64, heads=8):
            super().__init__()
            self.num_attention_heads, self.attention_head_size = heads, hidden_size // heads
            self.query = nn.Linear(hidden_size, hidden_size)
            self.key = nn.Linear(hidden_size, hidden_size)
            self.value = nn.Linear(hidden_size, hidden_size)
            self.dense = nn.Linear(hidden_size, hidden_size)
            self.dropout = nn.Dropout(0.0)

        def transpose_for_scores(self, x):
            x = x.view(x.size()[:-1] + (self.num_attention_heads, self.attention_head_size))
            return x.permute(0, 2, 1, 3)

        def forward(self, hidden_states, attention_mask=None):
            mixed_query_layer = self.query(hidden_states)
            key_layer = self.transpose_for_scores(self.key(hidden_states))
            value_layer = self.transpose_for_scores(self.value(hidden_states))
            query_layer = self.transpose_for_scores(mixed_query_layer)
            attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
            attention_scores = attention_scores / math.sqrt(self.attention_head_size)
            if attention_mask is not None:
                attention_scores = attention_scores + attention_mask
            attention_probs = self.dropout(nn.functional.softmax(attention_scores, dim=-1))
            context_layer = torch.matmul(attention_probs, value_layer).permute(0, 2, 1, 3).contiguous()
            context_layer = context_layer.view(hidden_states.shape)
            return self.dense(context_layer), attention_probs
    return fresh(BertAttention)


@case("layer", source="huggingface/pytorch-image-models timm/models/vision_transformer.py")
def layer_vit():
    """ViT self-attention, fused qkv without bias, output projection with bias, six heads."""
    class Attention(nn.Module):
        def __init__(self, dim=96, num_heads=6, qkv_bias=False):
            super().__init__()
            self.num_heads = num_heads
            self.scale = (dim // num_heads) ** -0.5
            self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
            self.proj = nn.Linear(dim, dim)

        def forward(self, x):
            B, N, C = x.shape
            qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
            q, k, v = qkv.unbind(0)
            attn = (q * self.scale) @ k.transpose(-2, -1)
            x = (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, C)
            return self.proj(x)
    return fresh(Attention)


@case("layer", source="huggingface/transformers src/transformers/models/clip/modeling_clip.py")
def layer_clip():
    """CLIP-like self-attention, q_proj scaled after its bias, bmm over b*h, optional causal float mask
    (b, 1, n, n)."""
    class CLIPAttention(nn.Module):
        def __init__(self, embed_dim=40, num_heads=5):
            super().__init__()
            self.embed_dim, self.num_heads = embed_dim, num_heads
            self.head_dim = embed_dim // num_heads
            self.scale = self.head_dim ** -0.5
            self.k_proj, self.v_proj, self.q_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim)
                                                                    for _ in range(4))

        def _shape(self, t):
            bsz = t.size(0)
            t = t.view(bsz, -1, self.num_heads, self.head_dim).transpose(1, 2).contiguous()
            return t.view(bsz * self.num_heads, -1, self.head_dim)

        def forward(self, hidden_states, causal_attention_mask=None):
            bsz, tgt_len, _ = hidden_states.size()
            q = self._shape(self.q_proj(hidden_states) * self.scale)
            k, v = self._shape(self.k_proj(hidden_states)), self._shape(self.v_proj(hidden_states))
            w = torch.bmm(q, k.transpose(1, 2))
            if causal_attention_mask is not None:
                w = w.view(bsz, self.num_heads, tgt_len, -1) + causal_attention_mask
                w = w.view(bsz * self.num_heads, tgt_len, -1)
            o = torch.bmm(nn.functional.softmax(w, dim=-1), v)
            o = o.view(bsz, self.num_heads, tgt_len, self.head_dim).transpose(1, 2).reshape(bsz, tgt_len, -1)
            return self.out_proj(o)
    return fresh(CLIPAttention)


@case("layer", source="openai/whisper whisper/model.py")
def layer_whisper():
    """Whisper-like layer: key without a bias, self-attention of x or cross-attention to xa, optional additive
    (n, n) mask, scales d ** -0.25 twice; returns (output, detached scores)."""
    class MultiHeadAttention(nn.Module):
        def __init__(self, n_state=64, n_head=4):
            super().__init__()
            self.n_head = n_head
            self.query = nn.Linear(n_state, n_state)
            self.key = nn.Linear(n_state, n_state, bias=False)
            self.value = nn.Linear(n_state, n_state)
            self.out = nn.Linear(n_state, n_state)

        def forward(self, x, xa=None, mask=None):
            q = self.query(x)
            src = x if xa is None else xa
            wv, qk = self.qkv_attention(q, self.key(src), self.value(src), mask)
            return self.out(wv), qk

        def qkv_attention(self, q, k, v, mask=None):
            n_ctx, n_state = q.shape[1:]
            scale = (n_state // self.n_head) ** -0.25
            q, k, v = (t.view(*t.shape[:2], self.n_head, -1).permute(0, 2, 1, 3) for t in (q, k, v))
            qk = (q * scale) @ (k * scale).transpose(-1, -2)
            if mask is not None:
                qk = qk + mask[:n_ctx, :n_ctx]
            w = F.softmax(qk, dim=-1).to(q.dtype)
            return (w @ v).permute(0, 2, 1, 3).flatten(start_dim=2), qk.detach()
    return fresh(MultiHeadAttention)


@case("layer", source="huggingface/transformers src/transformers/models/t5/modeling_t5.py")
def layer_t5():
    """T5-like self-attention without position bias: no biases, inner size 4 * 24 other than the model's
    64, and scores that are not scaled at all (scale 1), as T5 means it."""
    class T5Attention(nn.Module):
        def __init__(self, d_model=64, d_kv=24, num_heads=4):
            super().__init__()
            self.n_heads, self.key_value_proj_dim = num_heads, d_kv
            self.inner_dim = num_heads * d_kv
            self.q = nn.Linear(d_model, self.inner_dim, bias=False)
            self.k = nn.Linear(d_model, self.inner_dim, bias=False)
            self.v = nn.Linear(d_model, self.inner_dim, bias=False)
            self.o = nn.Linear(self.inner_dim, d_model, bias=False)
            nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)

        def forward(self, hidden_states, key_value_states=None):
            b = hidden_states.shape[0]
            kv = hidden_states if key_value_states is None else key_value_states
            q = self.q(hidden_states).view(b, -1, self.n_heads, self.key_value_proj_dim).transpose(1, 2)
            k = self.k(kv).view(b, -1, self.n_heads, self.key_value_proj_dim).transpose(1, 2)
            v = self.v(kv).view(b, -1, self.n_heads, self.key_value_proj_dim).transpose(1, 2)
            scores = torch.matmul(q, k.transpose(3, 2))
            attn = torch.matmul(nn.functional.softmax(scores, dim=-1), v)
            return self.o(attn.transpose(1, 2).contiguous().view(b, -1, self.inner_dim))
    return fresh(T5Attention)


@case("layer", source="facebookresearch/fairseq fairseq/modules/multihead_attention.py")
def layer_in_proj_weight():
    """Multi-head attention (query, key, value) in (length, batch, embed), one in_proj_weight parameter
    cut into three; returns (output, weights averaged over heads)."""
    class MHA(nn.Module):
        def __init__(self, embed_dim=48, num_heads=4):
            super().__init__()
            self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
            self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
            self.in_proj_bias = nn.Parameter(torch.empty(3 * embed_dim))
            self.out_proj = nn.Linear(embed_dim, embed_dim)
            nn.init.xavier_uniform_(self.in_proj_weight)
            nn.init.normal_(self.in_proj_bias, std=0.1)

        def in_proj(self, x, part):
            rows = slice(part * self.embed_dim, (part + 1) * self.embed_dim)
            return F.linear(x, self.in_proj_weight[rows], self.in_proj_bias[rows])

        def forward(self, query, key, value):
            tgt_len, bsz, _ = query.shape
            q = self.in_proj(query, 0) * self.head_dim ** -0.5
            k, v = self.in_proj(key, 1), self.in_proj(value, 2)
            q, k, v = (t.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
                       for t in (q, k, v))
            w = torch.bmm(q, k.transpose(1, 2)).softmax(dim=-1)
            attn = torch.bmm(w, v).transpose(0, 1).contiguous().view(tgt_len, bsz, self.embed_dim)
            return self.out_proj(attn), w.view(bsz, self.num_heads, tgt_len, -1).mean(1)
    return fresh(MHA)


@case("layer", source="meta-llama/llama3 llama/model.py")
def layer_gqa_llama():
    """Causal layer with eight query heads and two key heads, no biases, no rotation."""
    class Attention(nn.Module):
        def __init__(self, dim=64, n_heads=8, n_kv_heads=2):
            super().__init__()
            self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
            self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
            self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
            self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
            self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

        def forward(self, x):
            bsz, seqlen, _ = x.shape
            xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
            xk = self.wk(x).view(bsz, seqlen, self.n_kv_heads, 1, self.head_dim)
            xv = self.wv(x).view(bsz, seqlen, self.n_kv_heads, 1, self.head_dim)
            n_rep = self.n_heads // self.n_kv_heads
            keys = xk.expand(-1, -1, -1, n_rep, -1).flatten(2, 3).transpose(1, 2)
            values = xv.expand(-1, -1, -1, n_rep, -1).flatten(2, 3).transpose(1, 2)
            out = F.scaled_dot_product_attention(xq.transpose(1, 2), keys, values, is_causal=True)
            return self.wo(out.transpose(1, 2).reshape(bsz, seqlen, -1))
    return fresh(Attention)


@case("layer", source="CompVis/stable-diffusion ldm/modules/attention.py")
def layer_cross_diffusion():
    """Cross-attention of Stable Diffusion: context of another width (40), inner size 3 * 16, no biases on
    q, k, v, boolean mask (b, m) that keeps; without a context self-attention is refused."""
    class CrossAttention(nn.Module):
        def __init__(self, query_dim=64, context_dim=40, heads=3, dim_head=16):
            super().__init__()
            inner_dim = dim_head * heads
            self.scale, self.heads = dim_head ** -0.5, heads
            self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
            self.to_k = nn.Linear(context_dim, inner_dim, bias=False)
            self.to_v = nn.Linear(context_dim, inner_dim, bias=False)
            self.to_out = nn.Sequential(nn.Linear(inner_dim, query_dim), nn.Dropout(0.0))

        def forward(self, x, context, mask=None):
            b, h = x.shape[0], self.heads
            q, k, v = (t.unflatten(-1, (h, -1)).transpose(1, 2).flatten(0, 1)
                       for t in (self.to_q(x), self.to_k(context), self.to_v(context)))
            sim = torch.einsum('b i d, b j d -> b i j', q, k) * self.scale
            if mask is not None:
                mask = mask.repeat_interleave(h, dim=0)[:, None]
                sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
            out = torch.einsum('b i j, b j d -> b i d', sim.softmax(dim=-1), v)
            out = out.unflatten(0, (b, h)).transpose(1, 2).flatten(2)
            return self.to_out(out)
    return fresh(CrossAttention)


@case("layer", source="d2l-ai/d2l-en d2l/torch.py")
def layer_d2l():
    """Dive into Deep Learning's layer: forward(queries, keys, values), no biases, heads folded into the
    batch."""
    class MultiHeadAttention(nn.Module):
        def __init__(self, num_hiddens=40, num_heads=5, bias=False):
            super().__init__()
            self.num_heads = num_heads
            self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=bias)
            self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=bias)
            self.W_v = nn.Linear(num_hiddens, num_hiddens, bias=bias)
            self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)

        def transpose_qkv(self, X):
            X = X.reshape(X.shape[0], X.shape[1], self.num_heads, -1).permute(0, 2, 1, 3)
            return X.reshape(-1, X.shape[2], X.shape[3])

        def forward(self, queries, keys, values):
            queries = self.transpose_qkv(self.W_q(queries))
            keys = self.transpose_qkv(self.W_k(keys))
            values = self.transpose_qkv(self.W_v(values))
            scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(queries.shape[-1])
            output = torch.bmm(torch.softmax(scores, dim=-1), values)
            output = output.reshape(-1, self.num_heads, output.shape[1], output.shape[2]).permute(0, 2, 1, 3)
            return self.W_o(output.reshape(output.shape[0], output.shape[1], -1))
    return fresh(MultiHeadAttention)


@case("layer", source="harvardnlp/annotated-transformer the_annotated_transformer.py")
def layer_annotated():
    """Annotated-Transformer layer: four clones of a Linear in a ModuleList, forward(query, key, value, mask),
    mask (b, 1, m) or (b, n, m) with zeros hidden by -1e9."""
    class MultiHeadedAttention(nn.Module):
        def __init__(self, h=4, d_model=32):
            super().__init__()
            self.d_k, self.h = d_model // h, h
            self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])
            self.attn = None

        def forward(self, query, key, value, mask=None):
            if mask is not None:
                mask = mask.unsqueeze(1)
            nbatches = query.size(0)
            query, key, value = [lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
                                 for lin, x in zip(self.linears, (query, key, value))]
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_k)
            if mask is not None:
                scores = scores.masked_fill(mask == 0, -1e9)
            self.attn = scores.softmax(dim=-1)
            x = (self.attn @ value).transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
            return self.linears[-1](x)
    return fresh(MultiHeadedAttention)


@case("layer", source="huggingface/transformers src/transformers/models/gpt_bigcode/modeling_gpt_bigcode.py")
def layer_mqa_fused():
    """Multi-query causal layer (n, b, c), batch second: one Linear gives four query heads and one shared
    key and value head, cut by fixed widths."""
    class MultiQuery(nn.Module):
        def __init__(self, dim=64, heads=4, dim_head=16):
            super().__init__()
            self.heads, self.dim_head = heads, dim_head
            self.fused_dims = (heads * dim_head, dim_head, dim_head)
            self.fused = nn.Linear(dim, sum(self.fused_dims))
            self.attn_out = nn.Linear(heads * dim_head, dim, bias=False)

        def forward(self, x):
            q, k, v = self.fused(x).split(self.fused_dims, dim=-1)
            q = q.unflatten(-1, (self.heads, self.dim_head))
            sim = torch.einsum("ibhd,jbd->bhij", q * self.dim_head ** -0.5, k)
            i = x.shape[0]
            hide = torch.ones(i, i, dtype=torch.bool).triu(1)
            attn = sim.masked_fill(hide, -torch.finfo(sim.dtype).max).softmax(-1)
            return self.attn_out(torch.einsum("bhij,jbd->ibhd", attn, v).flatten(2))
    return fresh(MultiQuery)


# ---------------------------------------------------------------- functions of their own


@case("other", source="EleutherAI/gpt-neox megatron/model/positional_embeddings.py")
def other_rope():
    """RoPE of the half-split kind (base 10000) put on q and k inside, then causal attention (b, h, n, d), one
    length, even head size."""
    def rotate_half(x):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)

    def fn(q, k, v):
        n, d = q.shape[-2:]
        inv_freq = 1.0 / (10000 ** (torch.arange(0, d, 2, dtype=torch.float64) / d))
        angles = torch.outer(torch.arange(n, dtype=torch.float64), inv_freq)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return fn


@case("other", source="ofirpress/attention_with_linear_biases fairseq/models/transformer.py")
def other_alibi():
    """Causal ALiBi attention (b, h, n, d), slopes 2 ** (-8 (i + 1) / h), one length."""
    def fn(q, k, v):
        h, n = q.shape[1:3]
        slopes = torch.tensor([2 ** (-8.0 * (i + 1) / h) for i in range(h)], dtype=q.dtype)
        pos = torch.arange(n)
        dist = pos[None, :] - pos[:, None]
        bias = slopes[:, None, None] * dist.to(q.dtype)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
        return scores.masked_fill(dist > 0, float("-inf")).softmax(-1) @ v
    return fn


@case("other", source="mistralai/mistral-inference one_file_ref.py")
def other_sliding_window():
    """Causal sliding window of 8 keys (the query's own and the 7 before it), (b, s, h, d), one length."""
    window = 8

    def fn(q, k, v):
        seqlen = q.shape[1]
        keep = torch.ones(seqlen, seqlen, dtype=torch.bool).tril(0).triu(-(window - 1))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        probs = scores.masked_fill(~keep, -math.inf).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", probs, v)
    return fn


@case("other", source="google/gemma_pytorch gemma/model.py")
def other_softcap():
    """Gemma 2's logit cap: scores become 5 * tanh(scores / 5) before the softmax, (b, h, n, d)."""
    softcap = 5.0

    def fn(q, k, v):
        scores = torch.matmul(q * q.size(-1) ** -0.5, k.transpose(2, 3))
        scores = torch.tanh(scores / softcap) * softcap
        return torch.matmul(F.softmax(scores, dim=-1), v)
    return fn


@case("other", source="openai/gpt-oss gpt_oss/torch/model.py")
def other_sink():
    """gpt-oss sink: one more logit per head (0.5, 0.25, ... by head) in the softmax, its column dropped
    after, (b, h, n, d)."""
    def fn(q, k, v):
        b, h, n, d = q.shape
        qk = torch.einsum("bhqd,bhkd->bhqk", q, k) * (1 / math.sqrt(d))
        sinks = (0.5 ** torch.arange(1, h + 1, dtype=torch.float64)).to(q.dtype)
        qk = torch.cat([qk, sinks.view(1, h, 1, 1).expand(b, h, n, 1)], dim=-1)
        w = torch.softmax(qk, dim=-1)[..., :-1]
        return torch.einsum("bhqk,bhkd->bhqd", w, v)
    return fn


@case("other", source="facebookresearch/chameleon chameleon/inference/transformer.py")
def other_qk_norm():
    """q and k each divided by their root mean square (eps 1e-6) over the head, then attention with d ** -0.5,
    (b, h, n, d)."""
    def rms(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def fn(q, k, v):
        return F.scaled_dot_product_attention(rms(q), rms(k), v)
    return fn


@case("other", source="apple/ml-sigmoid-attention")
def other_sigmoid():
    """Sigmoid attention: sigmoid(scores - log m) instead of a softmax, not normalised, (b, h, n, d)."""
    def fn(q, k, v):
        logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) - math.log(k.shape[-2])
        return torch.sigmoid(logits) @ v
    return fn


@case("other", source="idiap/fast-transformers fast_transformers/attention/linear_attention.py")
def other_linear():
    """Linear attention with elu + 1 features, normalised, not causal, (b, n, h, d)."""
    def feature_map(x):
        return F.elu(x) + 1

    def fn(queries, keys, values):
        Q, K = feature_map(queries), feature_map(keys)
        KV = torch.einsum("nshd,nshm->nhmd", K, values)
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + 1e-6)
        return torch.einsum("nlhd,nhmd,nlh->nlhm", Q, KV, Z)
    return fn


@case("other", source="kyegomez/AttentionIsOFFByOne")
def other_softmax_one():
    """Softmax off by one: exp(s) / (1 + sum exp(s)), computed from max(s, 0), (b, h, n, d)."""
    def softmax_one(x):
        m = x.amax(-1, keepdim=True).clamp(min=0)
        e = torch.exp(x - m)
        return e / (torch.exp(-m) + e.sum(-1, keepdim=True))

    def fn(q, k, v):
        return softmax_one(q @ k.mT * q.shape[-1] ** -0.5) @ v
    return fn


@case("other", source="aanna0701/SPT_LSA_ViT models/vit.py")
def other_locality_temperature():
    """Locality self-attention: temperature exp(0.3) in place of d ** -0.5, and no query sees its own key,
    (b, h, n, d), one length of at least 2."""
    temperature = torch.tensor(0.3)

    def fn(q, k, v):
        dots = torch.matmul(q, k.transpose(-1, -2)) * temperature.exp().to(q.dtype)
        mask = torch.eye(dots.shape[-1], dtype=torch.bool)
        dots = dots.masked_fill(mask, -torch.finfo(dots.dtype).max)
        return torch.matmul(dots.softmax(dim=-1), v)
    return fn


@case("other", source="jadore801120/attention-is-all-you-need-pytorch transformer/Modules.py")
def other_temperature():
    """Attention at temperature 2 on top of the usual scale: softmax(scores / (2 sqrt(d))), (b, h, n, d)."""
    def fn(q, k, v, temperature=2.0):
        logits = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
        return torch.softmax(logits / temperature, dim=-1) @ v
    return fn


@case("other")
def other_residual():
    """Attention plus the query itself: q + softmax(scores) v, (b, h, n, d), values as wide as queries."""
    def fn(q, k, v):
        a = F.scaled_dot_product_attention(q, k, v)
        return q + a
    return fn


@case("other", source="microsoft/Swin-Transformer models/swin_transformer_v2.py")
def other_cosine():
    """Swin v2's cosine attention: q and k made unit length, logit scale 10 (log scale clamped at log 100),
    (b, h, n, d)."""
    def fn(q, k, v):
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        logit_scale = torch.clamp(torch.tensor(math.log(10), dtype=q.dtype), max=math.log(1.0 / 0.01)).exp()
        return (attn * logit_scale).softmax(dim=-1) @ v
    return fn


@case("other", source="microsoft/unilm Diff-Transformer/multihead_diffattn.py")
def other_differential():
    """Differential attention: the halves of each head give two softmaxes, the second times 0.8 - 0.6
    exp(-0.3) taken off the first, then times v, (b, h, n, d), even head size."""
    lambda_init = 0.8 - 0.6 * math.exp(-0.3)

    def fn(q, k, v):
        (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
        scaling = q1.shape[-1] ** -0.5
        a1 = torch.softmax(q1 @ k1.transpose(-1, -2) * scaling, dim=-1)
        a2 = torch.softmax(q2 @ k2.transpose(-1, -2) * scaling, dim=-1)
        return (a1 - lambda_init * a2) @ v
    return fn


@case("other", source="idiap/fast-transformers fast_transformers/attention/causal_linear_attention.py")
def other_causal_linear():
    """Causal linear attention by running sums, elu + 1 features, normalised, (b, h, n, d), one length."""
    def fn(q, k, v):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1], dtype=q.dtype)
        z = torch.zeros(*k.shape[:2], k.shape[-1], dtype=q.dtype)
        out = []
        for t in range(q.shape[2]):
            state = state + k[:, :, t, :, None] * v[:, :, t, None, :]
            z = z + k[:, :, t]
            num = (q[:, :, t, None, :] @ state).squeeze(-2)
            out.append(num / ((q[:, :, t] * z).sum(-1, keepdim=True) + 1e-6))
        return torch.stack(out, 2)
    return fn


@case("other", formats=NUMPY)
def other_np_relu():
    """NumPy ReLU attention, relu(scores) / m times v, with its handwritten backward, (b, h, n, d)."""
    def forward(q, k, v):
        s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        return np.maximum(s, 0) @ v / k.shape[-2]

    def backward(do, q, k, v):
        s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        do = do / k.shape[-2]
        dv = np.maximum(s, 0).swapaxes(-1, -2) @ do
        ds = (do @ v.swapaxes(-1, -2)) * (s > 0) / math.sqrt(q.shape[-1])
        return ds @ k, ds.swapaxes(-1, -2) @ q, dv
    return forward, backward
