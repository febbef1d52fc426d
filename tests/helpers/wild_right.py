"""Attention functions as they are found in public code, written anew in other words.

Families: "plain" is scaled dot-product attention in many styles; "other" is right too but is no plain
attention; "other-wrong" has a backward of its own, or a graph, that is not the gradient of its forward.
Sources of a pattern are named as repositories; no line was taken from them. HINTS says, for each
name, what is needed to test a case without knowing it: its layout, its scale, which sizes it takes.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Case(NamedTuple):
    name: str
    family: str
    make: Callable
    options: dict = {}  # noqa: RUF012
    layer: bool = False


CASES: list[Case] = []
# layout: of q, k, v and the output. scale: a number, or None for head_dim ** -0.5.
# causal: "" or "square" (causal, takes only as many queries as keys) or "top" (top left aligned)
# or "bottom". square: as many queries as keys. dv: False where the value's size must be the head's.
# d: the only head sizes taken. even: an even head size is needed. numpy: arrays, not tensors.
# f32: something inside is rounded to float32. mask: (keyword, "keep" | "drop" | "add").
HINTS: dict[str, dict] = {}


def case(family, options=None, name=None, **hints):
    """Register what the decorated factory makes: a forward, or (forward, backward)."""

    def register(factory):
        label = name or factory.__name__

        def make():
            made = factory()
            return made if isinstance(made, tuple) else (made, None)

        CASES.append(Case(label, family, make, options or {}))
        HINTS[label] = hints
        return factory

    return register


def fixed(*shape, seed=7, like):
    """The same normal numbers at each call: frozen weights."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return numbers.to(dtype=like.dtype, device=like.device)


def positions(q, k):
    """i - j for query i and key j, the last query beside the last key; (n, m)."""
    n, m = q.shape[-2], k.shape[-2]
    return torch.arange(n, device=q.device)[:, None] + (m - n) - torch.arange(m, device=q.device)


# ------------------------------------------------------------------ plain: a constant scale
# Pattern: vit-pytorch, x-transformers, timm, many more: self.scale = dim_head ** -0.5 in the module.
# With another head size than it was made for, such a module still multiplies by its constant.


class ScaledModule(nn.Module):
    def __init__(self, head_dim):
        super().__init__()
        self.scale = head_dim**-0.5
        self.attend = nn.Softmax(dim=-1)

    def forward(self, q, k, v):
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        return torch.matmul(self.attend(dots), v)


class StrictModule(nn.Module):
    """Refuses another head size."""

    def __init__(self, head_dim):
        super().__init__()
        self.head_dim = head_dim
        self.scale = 1.0 / math.sqrt(head_dim)

    def forward(self, q, k, v):
        if q.size(-1) != self.head_dim:
            raise ValueError(f"expected head_dim {self.head_dim}, got {q.size(-1)}")
        return torch.softmax((q * self.scale) @ k.transpose(-2, -1), dim=-1) @ v


class NormFactorModule(nn.Module):
    """Pattern: EleutherAI/gpt-neox: the divisor is a buffer."""

    def __init__(self, head_dim):
        super().__init__()
        self.register_buffer("norm_factor", torch.sqrt(torch.tensor(float(head_dim))), persistent=False)

    def forward(self, query, key, value):
        scores = torch.matmul(query, key.transpose(-1, -2)) / self.norm_factor.to(query.dtype)
        return torch.matmul(nn.functional.softmax(scores, dim=-1), value)


def closure_on_q(head_dim):
    scale = head_dim**-0.5

    def attend(q, k, v):
        q = q * scale
        sim = torch.einsum("bhid,bhjd->bhij", q, k)
        attn = sim.softmax(dim=-1)
        return torch.einsum("bhij,bhjd->bhid", attn, v)

    return attend


def closure_sdpa(head_dim):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, scale=head_dim**-0.5)

    return attend


def closure_both(head_dim):
    """Pattern: openai/whisper, openai/guided-diffusion: the fourth root on q and on k."""
    root = 1 / math.sqrt(math.sqrt(head_dim))

    def attend(q, k, v):
        weight = torch.einsum("bhtc,bhsc->bhts", q * root, k * root)
        weight = torch.softmax(weight.float(), dim=-1).type(weight.dtype)
        return torch.einsum("bhts,bhsc->bhtc", weight, v)

    return attend


for _size, _style in [
    (8, ScaledModule), (16, closure_on_q), (24, ScaledModule), (32, closure_sdpa),
    (48, closure_both), (64, ScaledModule), (72, NormFactorModule), (80, closure_on_q),
    (96, NormFactorModule), (112, ScaledModule), (128, closure_sdpa), (160, closure_on_q),
    (192, closure_both), (256, ScaledModule),
]:
    case(
        "plain",
        name=f"constant_scale_head_{_size}_{_style.__name__}",
        scale=_size**-0.5,
        f32=_style in (NormFactorModule, closure_both),
    )(lambda size=_size, style=_style: style(size))

for _size in (16, 40, 64, 80, 128):  # takes only this head size
    case("plain", name=f"strict_head_{_size}", d=(_size,))(lambda size=_size: StrictModule(size))


@case("plain", d=(64,), layout="bsd")
def two_heads_of_64_one_head_packed():  # takes only a width of 64; one head, its axis is absent
    dim_head = 64

    def attend(q, k, v):
        assert q.shape[-1] == dim_head
        attn = torch.bmm(q, k.transpose(1, 2)).mul(1 / 8.0).softmax(-1)
        return torch.bmm(attn, v)

    return attend


@case("plain", scale=1 / math.sqrt(3))
def one_over_root_three():
    gamma = 1 / math.sqrt(3)
    return lambda q, k, v: ((q @ k.mT) * gamma).softmax(-1) @ v


@case("plain", scale=0.7)
def scale_seven_tenths():
    def attention(q, k, v, scale=0.7):
        return torch.softmax(scale * torch.matmul(q, k.transpose(-2, -1)), -1).matmul(v)

    return attention


@case("plain", scale=0.125)
def scale_one_eighth():
    SCALE = 0.125
    return lambda q, k, v: F.softmax(q @ k.transpose(-2, -1) * SCALE, dim=-1) @ v


@case("plain", scale=0.125)
def divided_by_eight():
    """Pattern: the illustrated transformer in many notebooks: divided by 8 with no word why."""
    return lambda q, k, v: F.softmax(torch.matmul(q, k.transpose(-1, -2)) / 8.0, dim=-1).matmul(v)


@case("plain", scale=1.0)
def no_scale_at_all():
    """Pattern: Luong's dot attention, T5 without its bias."""
    return lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1), -1) @ v


@case("plain", scale=1.7)
def frozen_temperature():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.temperature = nn.Parameter(torch.tensor(1.7), requires_grad=False)

        def forward(self, q, k, v):
            logits = q @ k.transpose(-2, -1) * float(self.temperature)
            return logits.softmax(dim=-1) @ v

    model = Attention().double()
    model.temperature.data.fill_(1.7)
    return model


@case("plain", scale=1 / 1.7)
def divided_by_frozen_temperature():
    tau = 1.7
    return lambda q, k, v: torch.softmax(torch.einsum("...id,...jd->...ij", q, k) / tau, -1) @ v


@case("plain", scale=math.exp(0.3), f32=True)
def learned_log_temperature_on_the_tape():
    """Pattern: CLIP-like logit scale: a parameter that wants a gradient of its own."""
    log_scale = nn.Parameter(torch.tensor(0.3))

    def attention(q, k, v):
        sim = torch.matmul(q, k.transpose(-2, -1)) * log_scale.exp().to(q.dtype)
        return sim.softmax(-1) @ v

    return attention


@case("plain", scale=100.0**-0.5)
def scale_from_the_model_width():
    """Pattern: d2l-like seq2seq notebooks: the root of the model's width, not of the head's."""
    hidden = 100
    return lambda Q, K, V: torch.softmax(Q @ K.transpose(-1, -2) / hidden**0.5, dim=-1) @ V


# ------------------------------------------------------------------ plain: styles


@case("plain", causal="square")
def causal_buffer_sliced():
    """Pattern: karpathy/minGPT, karpathy/nanoGPT: a lower triangle as a buffer."""

    class CausalCore(nn.Module):
        def __init__(self, block_size=512):
            super().__init__()
            tri = torch.tril(torch.ones(block_size, block_size))
            self.register_buffer("bias", tri.view(1, 1, block_size, block_size))

        def forward(self, q, k, v):
            T = q.size(-2)
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            return F.softmax(att, dim=-1) @ v

    return CausalCore()


@case("plain", causal="square", f32=True)
def causal_triu_of_inf():
    """Pattern: meta-llama/llama: full of -inf, then triu with diagonal 1, added."""

    def attention(xq, xk, xv):
        seqlen = xq.shape[2]
        mask = torch.full((seqlen, seqlen), float("-inf"), dtype=xq.dtype, device=xq.device).triu(1)
        scores = torch.matmul(xq, xk.transpose(2, 3)) / math.sqrt(xq.shape[-1])
        scores = F.softmax((scores + mask).float(), dim=-1).type_as(xq)
        return torch.matmul(scores, xv)

    return attention


@case("plain", causal="bottom", dv=False, longer_keys=True)
def causal_finfo_min_bottom_right():
    """Pattern: GPT-2 in huggingface/transformers: torch.where with the smallest number."""

    def attention(query, key, value):
        w = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(value.size(-1))
        allowed = positions(query, key) >= 0
        least = torch.full([], torch.finfo(w.dtype).min, dtype=w.dtype, device=w.device)
        w = nn.functional.softmax(torch.where(allowed, w, least), dim=-1)
        return torch.matmul(w, value)

    return attention


@case("plain", causal="top")
def causal_by_comparing_indices():
    def attention(q, k, v):
        s = q @ k.mT * q.size(-1) ** -0.5
        rows = torch.arange(q.size(-2), device=q.device).unsqueeze(-1)
        cols = torch.arange(k.size(-2), device=q.device).unsqueeze(0)
        return s.masked_fill(cols > rows, -torch.inf).softmax(-1) @ v

    return attention


@case("plain", causal="top")
def causal_fused():
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)


@case("plain", {"options": {"mask": "attn_mask", "causal": "is_causal", "scale": "scale"}})
def fused_with_all_options():
    def attention(q, k, v, attn_mask=None, is_causal=False, scale=None):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale
        )

    return attention


@case("plain", {"options": {"mask": "mask"}}, mask=("mask", "keep"))
def mask_of_zeros_and_ones_minus_1e9():
    """Pattern: harvardnlp/annotated-transformer, hyunwoongko/transformer."""

    def attention(query, key, value, mask=None):
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return torch.matmul(scores.softmax(dim=-1), value)

    return attention


@case("plain", {"options": {"mask": "attn_mask"}}, mask=("attn_mask", "drop"))
def mask_true_is_hidden():
    """Pattern: jadore801120/attention-is-all-you-need and kin: True is what may not be seen."""

    def attention(Q, K, V, attn_mask=None):
        scores = torch.matmul(Q, K.transpose(-1, -2)) / np.sqrt(Q.shape[-1])
        if attn_mask is not None:
            scores.masked_fill_(attn_mask.bool(), -1e9)
        return torch.matmul(nn.Softmax(dim=-1)(scores), V)

    return attention


@case("plain", {"options": {"mask": "attention_mask"}}, mask=("attention_mask", "add"), f32=True)
def mask_added():
    """Pattern: Llama, Mistral and Qwen in huggingface/transformers, the eager path."""

    def attention(query, key, value, attention_mask=None):
        weights = torch.matmul(query, key.transpose(2, 3)) * query.shape[-1] ** -0.5
        if attention_mask is not None:
            weights = weights + attention_mask
        weights = nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
        return torch.matmul(weights, value)

    return attention


@case("plain", {"options": {"mask": "mask", "bias": "bias"}}, mask=("mask", "keep"))
def mask_and_bias():
    def attention(q, k, v, mask=None, bias=None):
        s = torch.einsum("...id,...jd->...ij", q, k).div(q.shape[-1] ** 0.5)
        if bias is not None:
            s = s + bias
        if mask is not None:
            s = s.masked_fill(~mask, float("-inf"))
        return torch.einsum("...ij,...jd->...id", s.softmax(-1), v)

    return attention


@case("plain", {"options": {"causal": "causal"}})
def causal_as_a_switch():
    def attention(q, k, v, causal=False):
        s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if causal:
            i, j = s.shape[-2:]
            hidden = torch.ones((i, j), dtype=torch.bool, device=s.device).triu(j - i + 1)
            s = s.masked_fill(hidden, -torch.finfo(s.dtype).max)
        return s.softmax(dim=-1) @ v

    return attention


@case("plain", {"options": {"groups": "enable_gqa"}})
def fused_with_groups():
    def attention(q, k, v, enable_gqa=False):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=enable_gqa)

    return attention


@case("plain")
def keys_repeated_for_groups():
    """Pattern: repeat_kv of the Llama family."""

    def repeat(x, times):
        b, g, s, d = x.shape
        if times == 1:
            return x
        return x[:, :, None].expand(b, g, times, s, d).reshape(b, g * times, s, d)

    def attention(q, k, v):
        times = q.shape[1] // k.shape[1]
        k, v = repeat(k, times), repeat(v, times)
        return F.softmax(q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]), dim=-1) @ v

    return attention


@case("plain")
def baddbmm_with_beta_zero():
    """Pattern: diffusers, Megatron-LM: an empty buffer and beta = 0."""

    def attention(q, k, v):
        b, h, n, d = q.shape
        m, e = k.shape[2], v.shape[3]
        q, k, v = q.reshape(b * h, n, d), k.reshape(b * h, m, d), v.reshape(b * h, m, e)
        buffer = torch.empty(b * h, n, m, dtype=q.dtype, device=q.device)
        scores = torch.baddbmm(buffer, q, k.transpose(-1, -2), beta=0, alpha=d**-0.5)
        return torch.bmm(scores.softmax(dim=-1), v).view(b, h, n, e)

    return attention


@case("plain", layout="sbhd")
def sequence_first():
    """Pattern: NVIDIA/Megatron-LM, core attention on (s, b, h, d)."""

    def attention(query, key, value):
        sq, b, h, d = query.shape
        sk, e = key.shape[0], value.shape[3]
        query = query.reshape(sq, b * h, d).transpose(0, 1)
        key = key.reshape(sk, b * h, d).permute(1, 2, 0)
        value = value.reshape(sk, b * h, e).transpose(0, 1)
        probs = torch.softmax(torch.bmm(query, key) / math.sqrt(d), -1)
        context = torch.bmm(probs, value).view(b, h, sq, e)
        return context.permute(2, 0, 1, 3).contiguous()

    return attention


@case("plain", layout="bshd")
def heads_third_einsum():
    """Pattern: Dao-AILab/flash-attention's reference, JAX's dot_product_attention: (b, s, h, d)."""

    def attention(q, k, v):
        scores = torch.einsum("bthd,bshd->bhts", q / math.sqrt(q.shape[-1]), k)
        return torch.einsum("bhts,bshd->bthd", torch.softmax(scores, dim=-1), v)

    return attention


@case("plain", layout="bshd", scale=80**-0.5)
def heads_third_transposed_scale_of_80():
    """Pattern: facebookresearch/xformers, the fallback."""
    scale = 1.0 / 80**0.5

    def attention(query, key, value):
        query = query * scale
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        attn = (query @ key.transpose(-2, -1)).softmax(-1)
        return (attn @ value).transpose(1, 2).contiguous()

    return attention


@case("plain", layout="bshd", causal="top")
def heads_third_fused_causal():
    def attention(q, k, v):
        q, k, v = q.permute(0, 2, 1, 3), k.permute(0, 2, 1, 3), v.permute(0, 2, 1, 3)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).permute(0, 2, 1, 3)

    return attention


@case("plain", layout="bsd")
def three_axes_bmm():
    """Pattern: d2l-ai/d2l-en, DotProductAttention."""

    def attention(queries, keys, values):
        d = queries.shape[-1]
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(d)
        return torch.bmm(nn.functional.softmax(scores, dim=-1), values)

    return attention


@case("plain", layout="sd")
def two_axes():
    return lambda q, k, v: F.softmax(q @ k.t() / math.sqrt(q.size(1)), dim=1) @ v


@case("plain", layout="sd", causal="square")
def two_axes_causal_loop_over_rows():
    def attention(q, k, v):
        rows = []
        for t in range(q.shape[0]):
            s = k[: t + 1] @ q[t] / math.sqrt(q.shape[1])
            rows.append(torch.softmax(s, 0) @ v[: t + 1])
        return torch.stack(rows)

    return attention


@case("plain", layout="shd")
def heads_second_no_batch():
    def attention(q, k, v):
        logits = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("hqk,khd->qhd", logits.softmax(-1), v)

    return attention


@case("plain")
def one_head_after_another():
    def attention(q, k, v):
        scale = q.shape[-1] ** -0.5
        heads = []
        for h in range(q.shape[1]):
            att = torch.softmax(q[:, h] @ k[:, h].transpose(1, 2) * scale, dim=-1)
            heads.append(att @ v[:, h])
        return torch.stack(heads, dim=1)

    return attention


@case("plain")
def sliced_over_the_batch():
    """Pattern: diffusers, attention slicing: writes each slice into a tensor of zeros."""

    def attention(q, k, v):
        out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
        for i in range(q.shape[0]):
            s = torch.matmul(q[i], k[i].transpose(-1, -2)) * q.shape[-1] ** -0.5
            out[i] = torch.matmul(s.softmax(dim=-1), v[i])
        return out

    return attention


@case("plain")
def chunked_queries():
    def attention(q, k, v, chunk=3):
        pieces = []
        for piece in q.split(chunk, dim=-2):
            pieces.append((piece @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v)
        return torch.cat(pieces, dim=-2)

    return attention


@case("plain")
def online_softmax():
    """Pattern: flash attention written in plain PyTorch, as in lucidrains/memory-efficient-attention."""

    def attention(q, k, v, block=2):
        scale = q.shape[-1] ** -0.5
        shape = (*q.shape[:-1], 1)
        top = torch.full(shape, float("-inf"), dtype=q.dtype, device=q.device)
        total = torch.zeros(shape, dtype=q.dtype, device=q.device)
        acc = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
        for kb, vb in zip(k.split(block, -2), v.split(block, -2), strict=True):
            s = q @ kb.mT * scale
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            p, shrink = torch.exp(s - new), torch.exp(top - new)
            total = total * shrink + p.sum(-1, keepdim=True)
            acc = acc * shrink + p @ vb
            top = new
        return acc / total

    return attention


@case("plain")
def chunks_merged_by_their_maxima():
    """Pattern: "self-attention does not need n^2 memory": each chunk gives values, sum, maximum."""

    def summary(q, k, v):
        s = q @ k.transpose(-1, -2)
        top = s.max(dim=-1, keepdim=True).values.detach()
        e = torch.exp(s - top)
        return e @ v, e.sum(-1, keepdim=True), top

    def attention(q, k, v):
        q = q / math.sqrt(q.shape[-1])
        half = max(1, k.shape[-2] // 2)
        parts = [(k[..., :half, :], v[..., :half, :]), (k[..., half:, :], v[..., half:, :])]
        done = [summary(q, kk, vv) for kk, vv in parts if kk.shape[-2]]
        top = torch.stack([t for *_, t in done]).amax(0)
        num = sum(o * torch.exp(t - top) for o, _, t in done)
        return num / sum(s * torch.exp(t - top) for _, s, t in done)

    return attention


@case("plain")
def merged_by_log_sum_exp():
    """Pattern: ring attention: two halves joined by sigmoid of the difference of their lse."""

    def part(q, k, v):
        s = q @ k.mT * q.shape[-1] ** -0.5
        return s.softmax(-1) @ v, s.logsumexp(-1, keepdim=True)

    def attention(q, k, v):
        half = k.shape[-2] // 2
        if half == 0:
            return part(q, k, v)[0]
        a, la = part(q, k[..., :half, :], v[..., :half, :])
        b, lb = part(q, k[..., half:, :], v[..., half:, :])
        return a - torch.sigmoid(lb - la) * (a - b)

    return attention


@case("plain")
def divided_after_the_product():
    def attention(q, k, v):
        s = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        e = (s - s.detach().amax(dim=-1, keepdim=True)).exp()
        return (e @ v) / e.sum(dim=-1, keepdim=True)

    return attention


@case("plain")
def powers_of_two():
    """Pattern: Triton kernels: the scale holds log2(e), the softmax uses exp2."""

    def attention(q, k, v):
        s = torch.matmul(q * (q.shape[-1] ** -0.5 * 1.4426950408889634), k.transpose(-2, -1))
        p = torch.exp2(s - s.max(-1, keepdim=True)[0])
        return torch.matmul(p / p.sum(-1, keepdim=True), v)

    return attention


@case("plain")
def exp_of_log_softmax():
    return lambda q, k, v: F.log_softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1).exp() @ v


@case("plain")
def scale_on_the_keys():
    return lambda q, k, v: torch.softmax(q @ (k * k.shape[-1] ** -0.5).transpose(-1, -2), -1) @ v


@case("plain", f32=True)
def all_in_float32():
    """Pattern: Qwen, Gemma fallbacks: everything in float32, then back."""

    def attention(q, k, v):
        kind = q.dtype
        q, k, v = q.float(), k.float(), v.float()
        return (torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1) @ v).to(kind)

    return attention


@case("plain")
def with_dropout_of_zero():
    """Pattern: ViT in timm and elsewhere: the dropout is there but does nothing."""

    class Core(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.0)

        def forward(self, q, k, v):
            attn = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
            attn = self.drop(attn.softmax(dim=-1))
            return attn @ v

    return Core()


@case("plain")
def dropout_in_evaluation_mode():
    drop = nn.Dropout(0.1).eval()
    return lambda q, k, v: drop(torch.softmax(q @ k.mT / math.sqrt(q.size(-1)), -1)) @ v


@case("plain")
def checkpointed():
    def core(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1) @ v

    return lambda q, k, v: checkpoint(core, q, k, v, use_reentrant=False)


@case("plain")
def mapped_over_batch_and_heads():
    def single(q, k, v):
        return torch.softmax(q @ k.T * q.shape[-1] ** -0.5, dim=-1) @ v

    return torch.vmap(torch.vmap(single))


@case("plain")
def written_in_place():
    def attention(q, k, v):
        s = q @ k.transpose(-2, -1)
        s /= math.sqrt(q.shape[-1])
        s -= s.amax(-1, keepdim=True).detach()
        s = s.exp_()
        return s.div(s.sum(-1, keepdim=True)).matmul(v)

    return attention


@case("plain")
def weights_by_hand_with_broadcasting():
    def attention(q, k, v):
        s = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) / q.shape[-1] ** 0.5
        w = torch.softmax(s, dim=-1)
        return (w.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2)

    return attention


@case("plain", scale=112**-0.5)
def transposed_scores_softmax_over_the_first():
    """Pattern: labml.ai: scores as (query, key, batch, head); softmax over axis 1."""
    scale = 1 / math.sqrt(112)

    def attention(query, key, value):
        query, key, value = (x.permute(2, 0, 1, 3) for x in (query, key, value))
        scores = torch.einsum("ibhd,jbhd->ijbh", query, key) * scale
        out = torch.einsum("ijbh,jbhd->ibhd", scores.softmax(dim=1), value)
        return out.permute(1, 2, 0, 3)

    return attention


# ------------------------------------------------------------------ plain: with a backward of its own


class StandardFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        p = torch.softmax(q @ k.transpose(-1, -2) * scale, dim=-1)
        o = p @ v
        ctx.save_for_backward(q, k, v, p, o)
        ctx.scale = scale
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, p, o = ctx.saved_tensors
        dv = p.transpose(-1, -2) @ do
        dp = do @ v.transpose(-1, -2)
        ds = p * (dp - (do * o).sum(-1, keepdim=True)) * ctx.scale
        return ds @ k, ds.transpose(-1, -2) @ q, dv, None


@case("plain")
def own_function():
    return lambda q, k, v: StandardFunction.apply(q, k, v, q.shape[-1] ** -0.5)


@case("plain", scale=72**-0.5)
def own_function_scale_of_72():
    return lambda q, k, v: StandardFunction.apply(q, k, v, 72**-0.5)


class RecomputingFunction(torch.autograd.Function):
    """Pattern: flash attention for teaching: keeps the log-sum-exp, recomputes the weights by blocks."""

    @staticmethod
    def forward(ctx, q, k, v):
        gamma = 1 / math.sqrt(q.shape[-1])
        s = torch.einsum("...id,...jd->...ij", q, k) * gamma
        lse = torch.logsumexp(s, dim=-1)
        o = torch.einsum("...ij,...jd->...id", torch.exp(s - lse[..., None]), v)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        gamma = 1 / math.sqrt(q.shape[-1])
        delta = (do * o).sum(-1)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for start in range(0, k.shape[-2], 2):
            at = slice(start, start + 2)
            kb, vb = k[..., at, :], v[..., at, :]
            p = torch.exp(q @ kb.mT * gamma - lse[..., None])
            dv[..., at, :] = p.mT @ do
            ds = p * (do @ vb.mT - delta[..., None]) * gamma
            dq += ds @ kb
            dk[..., at, :] = ds.mT @ q
        return dq, dk, dv


@case("plain")
def own_function_recomputes():
    return RecomputingFunction.apply


class CausalFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        n, m = q.shape[-2], k.shape[-2]
        hidden = torch.triu(torch.ones(n, m, dtype=torch.bool, device=q.device), 1)
        s = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(hidden, float("-inf"))
        p = s.softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, p = ctx.saved_tensors
        dp = g @ v.mT
        ds = p * dp
        ds = (ds - p * ds.sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, p.mT @ g


@case("plain", causal="top")
def own_function_causal():
    return CausalFunction.apply


@case("plain", scale=0.25)
def torch_pair():
    def forward(q, k, v):
        return torch.softmax(0.25 * q @ k.transpose(-1, -2), -1) @ v

    def backward(do, q, k, v):
        p = torch.softmax(0.25 * q @ k.transpose(-1, -2), -1)
        dp = do @ v.transpose(-1, -2)
        ds = 0.25 * p * (dp - (p * dp).sum(-1, keepdim=True))
        return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ do

    return forward, backward


def np_softmax(x, axis=-1):
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


@case("plain", numpy=True)
def numpy_einsum_pair():
    def forward(q, k, v):
        w = np_softmax(np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1]))
        return np.einsum("bhij,bhjd->bhid", w, v)

    def backward(do, q, k, v):
        w = np_softmax(np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1]))
        dw = np.einsum("bhid,bhjd->bhij", do, v)
        ds = w * (dw - np.sum(dw * w, axis=-1, keepdims=True)) / np.sqrt(q.shape[-1])
        dq, dk = np.einsum("bhij,bhjd->bhid", ds, k), np.einsum("bhij,bhid->bhjd", ds, q)
        return dq, dk, np.einsum("bhij,bhid->bhjd", w, do)

    return forward, backward


@case("plain", numpy=True, layout="sd", scale=1 / 8)
def numpy_two_axes_with_jacobians():
    """Pattern: course notebooks: diag(p) - p p^T, row by row."""

    def forward(Q, K, V):
        return np_softmax(Q @ K.T / 8) @ V

    def backward(dO, Q, K, V):
        P = np_softmax(Q @ K.T / 8)
        dP = dO @ V.T
        dS = np.empty_like(P)
        for i, p in enumerate(P):
            dS[i] = (np.diag(p) - np.outer(p, p)) @ dP[i]
        return dS @ K / 8, dS.T @ Q / 8, P.T @ dO

    return forward, backward


@case("plain", numpy=True, layout="sd")
def numpy_with_plain_loops():
    def weights(Q, K):
        n, m, d = Q.shape[0], K.shape[0], Q.shape[1]
        S = np.zeros((n, m))
        for i in range(n):
            for j in range(m):
                S[i, j] = sum(Q[i, c] * K[j, c] for c in range(d)) / math.sqrt(d)
        return np_softmax(S)

    def forward(Q, K, V):
        P, O = weights(Q, K), np.zeros((Q.shape[0], V.shape[1]))
        for i in range(Q.shape[0]):
            for j in range(K.shape[0]):
                O[i] += P[i, j] * V[j]
        return O

    def backward(dO, Q, K, V):
        P, d = weights(Q, K), Q.shape[1]
        dQ, dK, dV = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V)
        for i in range(Q.shape[0]):
            up = np.array([dO[i] @ V[j] for j in range(K.shape[0])])
            mean = P[i] @ up
            for j in range(K.shape[0]):
                g = P[i, j] * (up[j] - mean) / math.sqrt(d)
                dQ[i] += g * K[j]
                dK[j] += g * Q[i]
                dV[j] += P[i, j] * dO[i]
        return dQ, dK, dV

    return forward, backward


@case("plain", numpy=True, causal="square")
def numpy_causal_pair():
    def parts(q, k):
        n = q.shape[-2]
        s = np.matmul(q, np.swapaxes(k, -1, -2)) / np.sqrt(q.shape[-1])
        return np_softmax(s + np.triu(np.full((n, n), -np.inf), 1))

    def forward(q, k, v):
        return np.matmul(parts(q, k), v)

    def backward(do, q, k, v):
        p = parts(q, k)
        dp = np.matmul(do, np.swapaxes(v, -1, -2))
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
        return ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ do

    return forward, backward


@case("plain", {"options": {"mask": "mask"}}, numpy=True, mask=("mask", "drop"), scale=48**-0.5)
def numpy_class_with_mask_scale_of_48():
    """Pattern: deep learning course homework: a class, a mask whose True is left out, 1e10."""

    class Attention:
        scale = 48**-0.5
        eps = 1e10

        def probabilities(self, Q, K, mask):
            A = self.scale * (Q @ np.swapaxes(K, -1, -2))
            return np_softmax(A if mask is None else np.where(mask, -self.eps, A))

        def forward(self, Q, K, V, mask=None):
            return self.probabilities(Q, K, mask) @ V

        def backward(self, dL, Q, K, V, mask=None):
            P = self.probabilities(Q, K, mask)
            dP = dL @ np.swapaxes(V, -1, -2)
            dA = self.scale * P * (dP - np.sum(P * dP, -1, keepdims=True))
            if mask is not None:
                dA = np.where(mask, 0, dA)
            return dA @ K, np.swapaxes(dA, -1, -2) @ Q, np.swapaxes(P, -1, -2) @ dL

    layer = Attention()
    return layer.forward, layer.backward


@case("plain", numpy=True, layout="bshd", scale=96**-0.5)
def numpy_heads_third_pair_scale_of_96():
    root = 96**-0.25

    def forward(q, k, v):
        s = np.einsum("bihd,bjhd->bhij", q * root, k * root)
        return np.einsum("bhij,bjhd->bihd", np_softmax(s), v)

    def backward(do, q, k, v):
        p = np_softmax(np.einsum("bihd,bjhd->bhij", q * root, k * root))
        o = np.einsum("bhij,bjhd->bihd", p, v)
        dp = np.einsum("bihd,bjhd->bhij", do, v)
        delta = np.einsum("bihd,bihd->bhi", do, o)[..., None]
        ds = p * (dp - delta) * root
        dq = np.einsum("bhij,bjhd->bihd", ds, k * root)
        dk = np.einsum("bhij,bihd->bjhd", ds, q * root)
        return dq, dk, np.einsum("bhij,bihd->bjhd", p, do)

    return forward, backward


# ------------------------------------------------------------------ other: positions


def rope_table(n, d, like, start=0):
    inverse = 10000.0 ** (-torch.arange(0, d, 2, device=like.device, dtype=torch.float64) / d)
    angle = torch.arange(start, start + n, device=like.device, dtype=torch.float64)[:, None] * inverse
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def rotate_halves(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def rotate_pairs(x, cos, sin):
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


def plain(q, k, v, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return torch.softmax(q @ k.transpose(-2, -1) * scale, dim=-1) @ v


@case("other", even=True)
def rope_in_halves():
    """Pattern: Llama, GPT-NeoX, Mistral, Qwen in huggingface/transformers. Even head sizes only."""

    def attention(q, k, v):
        q = rotate_halves(q, *rope_table(q.shape[-2], q.shape[-1], q))
        k = rotate_halves(k, *rope_table(k.shape[-2], k.shape[-1], k))
        return plain(q, k, v)

    return attention


@case("other", even=True, causal="square")
def rope_in_pairs_causal():
    """Pattern: meta-llama/llama, RoFormer. Even head sizes only."""

    def attention(q, k, v):
        q = rotate_pairs(q, *rope_table(q.shape[-2], q.shape[-1], q))
        k = rotate_pairs(k, *rope_table(k.shape[-2], k.shape[-1], k))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attention


@case("other", even=True)
def rope_complex_numbers():
    """Pattern: meta-llama/llama: view_as_complex. Even head sizes only; float32 or float64."""

    def turn(x):
        n, d = x.shape[-2:]
        inverse = 10000.0 ** (-torch.arange(0, d, 2, device=x.device, dtype=x.dtype) / d)
        angle = torch.outer(torch.arange(n, device=x.device, dtype=x.dtype), inverse)
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(z * torch.polar(torch.ones_like(angle), angle)).flatten(-2)

    return lambda q, k, v: plain(turn(q), turn(k), v)


@case("other", d=(8, 16, 32, 64))
def rope_on_a_quarter():
    """Pattern: GPT-NeoX, rotary_pct = 0.25: takes only head sizes that 8 divides."""

    def turn(x):
        r = x.shape[-1] // 4
        assert x.shape[-1] % 8 == 0
        return torch.cat([rotate_halves(x[..., :r], *rope_table(x.shape[-2], r, x)), x[..., r:]], -1)

    return lambda q, k, v: plain(turn(q), turn(k), v)


@case("other", even=True, numpy=True, layout="sd")
def numpy_rope_pair():
    """Even head sizes only."""

    def turn(x, sign):
        n, d = x.shape
        angle = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
        c, s, a, b = np.cos(angle), sign * np.sin(angle), x[:, 0::2], x[:, 1::2]
        out = np.empty_like(x)
        out[:, 0::2], out[:, 1::2] = a * c - b * s, a * s + b * c
        return out

    def forward(q, k, v):
        return np_softmax(turn(q, 1) @ turn(k, 1).T / np.sqrt(q.shape[1])) @ v

    def backward(do, q, k, v):
        qr, kr, g = turn(q, 1), turn(k, 1), 1 / np.sqrt(q.shape[1])
        p = np_softmax(qr @ kr.T * g)
        dp = do @ v.T
        ds = g * p * (dp - (p * dp).sum(1, keepdims=True))
        return turn(ds @ kr, -1), turn(ds.T @ qr, -1), p.T @ do

    return forward, backward


def alibi_slopes(heads):
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)


@case("other", longer_keys=True)
def alibi_causal():
    """Pattern: BLOOM, MPT, ofirpress/attention_with_linear_biases."""

    def attention(q, k, v):
        distance = positions(q, k)
        slopes = alibi_slopes(q.shape[1]).to(q.dtype)
        bias = -slopes[:, None, None] * distance.to(q.dtype)
        s = q @ k.mT / math.sqrt(q.shape[-1]) + bias
        return s.masked_fill(distance < 0, float("-inf")).softmax(-1) @ v

    return attention


@case("other")
def alibi_symmetric_baddbmm():
    def attention(q, k, v):
        b, h, n, d = q.shape
        m = k.shape[2]
        bias = -alibi_slopes(h).to(q.dtype)[:, None, None] * positions(q, k).abs().to(q.dtype)
        bias = bias.expand(b, h, n, m).reshape(b * h, n, m)
        s = torch.baddbmm(bias, q.reshape(b * h, n, d), k.reshape(b * h, m, d).mT, alpha=d**-0.5)
        return (s.softmax(-1) @ v.reshape(b * h, m, -1)).view(b, h, n, -1)

    return attention


@case("other", numpy=True)
def numpy_alibi_pair():
    def weights(q, k):
        h, n, m = q.shape[1], q.shape[2], k.shape[2]
        slope = 2.0 ** (-8.0 * np.arange(1, h + 1) / h)
        bias = -slope[:, None, None] * np.abs(np.arange(n)[:, None] - np.arange(m))
        return np_softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + bias)

    def forward(q, k, v):
        return weights(q, k) @ v

    def backward(do, q, k, v):
        p, g = weights(q, k), 1 / np.sqrt(q.shape[-1])
        dp = do @ v.swapaxes(-1, -2)
        ds = g * p * (dp - (p * dp).sum(-1, keepdims=True))
        return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do

    return forward, backward


@case("other")
def t5_relative_bias():
    """Pattern: google-research/text-to-text-transfer-transformer: buckets, no scale, a frozen table."""

    def bucket(r, count=8, far=32):
        half = count // 2
        side, r = (r > 0).long() * half, r.abs()
        exact = half // 2
        far_bucket = exact + (
            torch.log(r.clamp(min=1).double() / exact) / math.log(far / exact) * (half - exact)
        ).long().clamp(max=half - exact - 1)
        return side + torch.where(r < exact, r, far_bucket)

    def attention(q, k, v):
        table = fixed(8, q.shape[1], seed=3, like=q)
        bias = table[bucket(-positions(q, k))].permute(2, 0, 1)
        return torch.softmax(q @ k.mT + bias, dim=-1) @ v

    return attention


@case("other")
def swin_relative_table():
    """Pattern: microsoft/Swin-Transformer, one dimension: a table by offset, a scale on q."""

    def attention(q, k, v):
        offset = positions(q, k).clamp(-6, 6) + 6
        table = 0.5 * fixed(13, q.shape[1], seed=5, like=q)
        s = (q * q.shape[-1] ** -0.5) @ k.mT + table[offset].permute(2, 0, 1)
        return s.softmax(-1) @ v

    return attention


@case("other")
def shaw_relative_keys():
    """Pattern: tensor2tensor's relative attention: q meets a table of key offsets."""

    def attention(q, k, v):
        table = 0.3 * fixed(9, q.shape[-1], seed=11, like=q)
        r = table[positions(q, k).clamp(-4, 4) + 4]
        s = (q @ k.mT + torch.einsum("bhid,ijd->bhij", q, r)) / math.sqrt(q.shape[-1])
        return s.softmax(-1) @ v

    return attention


@case("other")
def transformer_xl_content_bias():
    """Pattern: kimiyoung/transformer-xl: a vector added to q for the content term."""

    def attention(q, k, v):
        u = 0.4 * fixed(q.shape[1], 1, q.shape[-1], seed=13, like=q)
        return plain(q + u, k, v)

    return attention


@case("other", longer_keys=True)
def sliding_window_causal():
    """Pattern: Mistral: the last three tokens."""

    def attention(q, k, v, window=3):
        r = positions(q, k)
        s = q @ k.mT * q.shape[-1] ** -0.5
        return s.masked_fill((r < 0) | (r >= window), float("-inf")).softmax(-1) @ v

    return attention


@case("other", square=True)
def sliding_window_both_sides():
    """Pattern: ModernBERT, Longformer: local layers look to both sides."""

    def attention(q, k, v):
        near = positions(q, k).abs() <= 2
        return F.scaled_dot_product_attention(q, k, v, attn_mask=near)

    return attention


@case("other", square=True)
def local_chunks():
    """Pattern: lucidrains/local-attention, Llama 4: each chunk of four sees only itself."""

    def attention(q, k, v, size=4):
        out = [
            plain(q[..., i : i + size, :], k[..., i : i + size, :], v[..., i : i + size, :])
            for i in range(0, q.shape[-2], size)
        ]
        return torch.cat(out, dim=-2)

    return attention


@case("other", longer_keys=True)
def every_second_key():
    """Pattern: strided attention in openai/sparse_attention."""

    def attention(q, k, v):
        r = positions(q, k)
        s = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill((r % 2 != 0) | (r < 0), -1e30)
        return s.softmax(-1) @ v

    return attention


# ------------------------------------------------------------------ other: another normaliser


@case("other")
def sink_logits():
    """Pattern: openai/gpt-oss: a logit per head that takes a share and gives nothing."""

    def attention(q, k, v):
        s = q @ k.mT * q.shape[-1] ** -0.5
        sink = fixed(q.shape[1], seed=17, like=q).view(1, -1, 1, 1).expand(*s.shape[:-1], 1)
        both = torch.cat([s, sink], dim=-1)
        both = both - both.max(dim=-1, keepdim=True).values
        return F.softmax(both, dim=-1)[..., :-1] @ v

    return attention


@case("other")
def memory_keys_and_values():
    """Pattern: lucidrains/x-transformers, num_mem_kv: frozen keys and values put in front."""

    def attention(q, k, v):
        b, h = q.shape[:2]
        mk = fixed(h, 2, k.shape[-1], seed=19, like=k).expand(b, -1, -1, -1)
        mv = fixed(h, 2, v.shape[-1], seed=23, like=v).expand(b, -1, -1, -1)
        return plain(q, torch.cat([mk, k], -2), torch.cat([mv, v], -2))

    return attention


@case("other")
def zero_token_appended():
    """Pattern: nn.MultiheadAttention with add_zero_attn."""
    return lambda q, k, v: plain(q, F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)))


@case("other")
def softmax_off_by_one():
    def attention(q, k, v):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        top = s.amax(-1, keepdim=True).clamp(min=0).detach()
        e = torch.exp(s - top)
        return e @ v / (e.sum(-1, keepdim=True) + torch.exp(-top))

    return attention


class OffByOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        s = q @ k.mT * scale
        p = torch.softmax(F.pad(s, (1, 0)), -1)[..., 1:]
        ctx.save_for_backward(q, k, v, p)
        ctx.scale = scale
        return p @ v

    @staticmethod
    def backward(ctx, do):
        q, k, v, p = ctx.saved_tensors
        dp = do @ v.mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * ctx.scale
        return ds @ k, ds.mT @ q, p.mT @ do, None


@case("other")
def softmax_off_by_one_own_function():
    return lambda q, k, v: OffByOne.apply(q, k, v, q.shape[-1] ** -0.5)


@case("other", numpy=True)
def numpy_off_by_one_pair():
    def weights(q, k):
        s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        top = np.maximum(s.max(-1, keepdims=True), 0)
        e = np.exp(s - top)
        return e / (np.exp(-top) + e.sum(-1, keepdims=True))

    def forward(q, k, v):
        return weights(q, k) @ v

    def backward(do, q, k, v):
        p = weights(q, k)
        dp = do @ v.swapaxes(-1, -2)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
        return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do

    return forward, backward


@case("other")
def clipped_softmax():
    """Pattern: Qualcomm-AI-research/outlier-free-transformers: stretched, then clipped to [0, 1]."""

    def attention(q, k, v, gamma=-0.03, eta=1.0):
        p = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        return torch.clip(p * (eta - gamma) + gamma, 0, 1) @ v

    return attention


@case("other")
def softcapped():
    """Pattern: Gemma 2, Grok-1: cap * tanh(score / cap)."""

    def attention(q, k, v, cap=2.0):
        s = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
        s = torch.tanh(s / cap) * cap
        return torch.matmul(F.softmax(s, dim=-1), v)

    return attention


@case("other")
def softcapped_with_a_query_scalar():
    """Pattern: Gemma 2 27B: the scale comes from the width by the heads, 144, and the cap is
    lowered from 50 to 5, so that it is felt by small scores."""

    def attention(q, k, v):
        s = torch.tanh((q * 144**-0.5) @ k.mT / 5.0) * 5.0
        return s.softmax(-1) @ v

    return attention


class Softcap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, cap):
        scale = q.shape[-1] ** -0.5
        t = torch.tanh(q @ k.mT * scale / cap)
        p = torch.softmax(cap * t, -1)
        o = p @ v
        ctx.save_for_backward(q, k, v, t, p, o)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, t, p, o = ctx.saved_tensors
        ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True))
        ds = ds * (1 - t * t) * q.shape[-1] ** -0.5
        return ds @ k, ds.mT @ q, p.mT @ do, None


@case("other")
def softcapped_own_function():
    return lambda q, k, v: Softcap.apply(q, k, v, 1.5)


@case("other")
def sigmoid_attention():
    """Pattern: apple/ml-sigmoid-attention: sigmoid with a bias of -log(length)."""

    def attention(q, k, v):
        s = q @ k.mT / math.sqrt(q.shape[-1]) - math.log(k.shape[-2])
        return torch.sigmoid(s) @ v

    return attention


class SigmoidFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        w = torch.sigmoid(q @ k.mT * q.shape[-1] ** -0.5)
        ctx.save_for_backward(q, k, v, w)
        return w @ v

    @staticmethod
    def backward(ctx, do):
        q, k, v, w = ctx.saved_tensors
        ds = (do @ v.mT) * w * (1 - w) * q.shape[-1] ** -0.5
        return ds @ k, ds.mT @ q, w.mT @ do


@case("other")
def sigmoid_own_function():
    return SigmoidFunction.apply


@case("other", numpy=True)
def numpy_sigmoid_pair():
    def weights(q, k):
        return 1 / (1 + np.exp(-q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])))

    def forward(q, k, v):
        return weights(q, k) @ v / k.shape[-2]

    def backward(do, q, k, v):
        w, m = weights(q, k), k.shape[-2]
        ds = do @ v.swapaxes(-1, -2) * w * (1 - w) / (m * np.sqrt(q.shape[-1]))
        return ds @ k, ds.swapaxes(-1, -2) @ q, w.swapaxes(-1, -2) @ do / m

    return forward, backward


@case("other")
def relu_over_length():
    """Pattern: "replacing softmax with ReLU in vision transformers"."""
    return lambda q, k, v: F.relu(q @ k.mT / math.sqrt(q.shape[-1])) @ v / k.shape[-2]


@case("other", longer_keys=True)
def squared_relu_causal():
    """Pattern: Primer, FLASH (lucidrains/FLASH-pytorch)."""

    def attention(q, k, v):
        s = (q @ k.mT / math.sqrt(q.shape[-1])).relu().square()
        return s.masked_fill(positions(q, k) < 0, 0.0) @ v / k.shape[-2]

    return attention


@case("other")
def sparsemax_attention():
    """Pattern: deep-spin/entmax: the projection onto the simplex instead of softmax."""

    def sparsemax(z):
        s, _ = z.sort(dim=-1, descending=True)
        count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
        total = s.cumsum(-1) - 1
        size = (count * s > total).sum(-1, keepdim=True)
        tau = total.gather(-1, size - 1) / size.to(z.dtype)
        return (z - tau).clamp(min=0)

    return lambda q, k, v: sparsemax(q @ k.mT / math.sqrt(q.shape[-1])) @ v


class EntmaxWeights(torch.autograd.Function):
    """Pattern: deep-spin/entmax with alpha 1.5: threshold by bisection, backward in closed form."""

    @staticmethod
    def forward(ctx, z):
        z = z / 2
        low = z.amax(-1, keepdim=True) - 1
        high = z.amax(-1, keepdim=True)
        for _ in range(80):
            mid = (low + high) / 2
            big = (z - mid).clamp(min=0).square().sum(-1, keepdim=True) >= 1
            low, high = torch.where(big, mid, low), torch.where(big, high, mid)
        p = (z - low).clamp(min=0).square()
        p = p / p.sum(-1, keepdim=True)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        root = p.sqrt()
        return root * g - root * ((root * g).sum(-1, keepdim=True) / root.sum(-1, keepdim=True))


@case("other")
def entmax_with_alpha_one_and_a_half():
    return lambda q, k, v: EntmaxWeights.apply(q @ k.mT / math.sqrt(q.shape[-1])) @ v


@case("other")
def top_two_keys():
    """Pattern: lucidrains/x-transformers, sparse_topk; exact top-k in idiap/fast-transformers."""

    def attention(q, k, v):
        s = q @ k.mT * q.shape[-1] ** -0.5
        least = s.topk(min(2, s.shape[-1]), dim=-1).values[..., -1:]
        return s.masked_fill(s < least, -torch.finfo(s.dtype).max).softmax(-1) @ v

    return attention


@case("other")
def softmax_then_power():
    """Sharpened weights: p squared, normalised again."""

    def attention(q, k, v):
        p = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) ** 2
        return p / p.sum(-1, keepdim=True) @ v

    return attention


@case("other")
def softmax_with_epsilon_smoothing():
    """Weights mixed with the uniform ones, as in label smoothing."""

    def attention(q, k, v):
        p = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        return (0.9 * p + 0.1 / k.shape[-2]) @ v

    return attention


@case("other")
def slot_attention_normalised_twice():
    """Pattern: google-research/slot_attention: softmax over the queries, then a mean over the keys."""

    def attention(q, k, v):
        p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-2) + 1e-8
        return p / p.sum(-1, keepdim=True) @ v

    return attention


@case("other", longer_keys=True)
def stick_breaking():
    """Pattern: shawntan/stickbreaking-attention: nearer keys take their share first."""

    def attention(q, k, v):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        hidden = positions(q, k) < 0
        rest = F.logsigmoid(-s).masked_fill(hidden, 0.0)
        after = rest.flip(-1).cumsum(-1).flip(-1) - rest
        log_weight = (F.logsigmoid(s) + after).masked_fill(hidden, float("-inf"))
        return log_weight.exp() @ v

    return attention


# ------------------------------------------------------------------ other: another similarity


@case("other")
def qk_norm_l2():
    """Pattern: lucidrains/x-transformers, attn_qk_norm with a scale of 10."""

    def attention(q, k, v):
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return plain(q, k, v, 10.0)

    return attention


@case("other")
def qk_norm_rms():
    """Pattern: Qwen 3, Gemma 3, OLMo 2: an RMS norm with a frozen gain on q and on k."""

    def rms(x, gain):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * gain

    def attention(q, k, v):
        a = 1 + 0.1 * fixed(q.shape[-1], seed=29, like=q)
        b = 1 + 0.1 * fixed(q.shape[-1], seed=31, like=q)
        return plain(rms(q, a), rms(k, b), v)

    return attention


@case("other")
def qk_layer_norm():
    """Pattern: ViT-22B, Chameleon: a layer norm without a mean's bias on q and k."""

    def attention(q, k, v):
        size = q.shape[-1:]
        return F.scaled_dot_product_attention(F.layer_norm(q, size), F.layer_norm(k, size), v)

    return attention


@case("other")
def cosine_with_clamped_temperature():
    """Pattern: microsoft/Swin-Transformer V2: cosine times exp of a clamped logit, one per head."""

    def attention(q, k, v):
        cosine = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        logit = torch.clamp(2.0 + 0.1 * fixed(q.shape[1], 1, 1, seed=37, like=q), max=math.log(100.0))
        return (cosine * logit.exp()).softmax(-1) @ v

    return attention


def unit(x):
    size = x.norm(dim=-1, keepdim=True)
    return x / size, size


def unit_vjp(g, u, size):
    return (g - u * (g * u).sum(-1, keepdim=True)) / size


class CosineFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        (qu, qs), (ku, ks) = unit(q), unit(k)
        p = torch.softmax(scale * qu @ ku.mT, -1)
        ctx.save_for_backward(qu, qs, ku, ks, v, p)
        ctx.scale = scale
        return p @ v

    @staticmethod
    def backward(ctx, do):
        qu, qs, ku, ks, v, p = ctx.saved_tensors
        dp = do @ v.mT
        ds = ctx.scale * p * (dp - (p * dp).sum(-1, keepdim=True))
        return unit_vjp(ds @ ku, qu, qs), unit_vjp(ds.mT @ qu, ku, ks), p.mT @ do, None


@case("other")
def cosine_own_function():
    return lambda q, k, v: CosineFunction.apply(q, k, v, 4.0)


@case("other")
def gaussian_kernel():
    """Pattern: lucidrains/x-transformers, l2_distance; L2 attention of Kim et al."""

    def attention(q, k, v):
        square = (q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1)
        return torch.softmax(-square / (2 * math.sqrt(q.shape[-1])), dim=-1) @ v

    return attention


@case("other", numpy=True)
def numpy_gaussian_kernel_unnormalised_pair():
    def weights(q, k):
        gap = q[..., :, None, :] - k[..., None, :, :]
        return np.exp(-0.5 * (gap**2).sum(-1) / q.shape[-1]), gap

    def forward(q, k, v):
        return weights(q, k)[0] @ v

    def backward(do, q, k, v):
        w, gap = weights(q, k)
        g = (do @ v.swapaxes(-1, -2) * w)[..., None] * gap / q.shape[-1]
        return -g.sum(-2), g.sum(-3), w.swapaxes(-1, -2) @ do

    return forward, backward


@case("other")
def laplace_kernel():
    def attention(q, k, v):
        gap = (q.unsqueeze(-2) - k.unsqueeze(-3)).abs().sum(-1)
        return torch.softmax(-gap / q.shape[-1], -1) @ v

    return attention


@case("other")
def polynomial_attention():
    """A polynomial kernel with rows that sum to one, as in polysketch attention."""

    def attention(q, k, v):
        w = (1 + q @ k.mT / q.shape[-1]) ** 4
        return w @ v / (1e-6 + w.sum(-1, keepdim=True))

    return attention


@case("other")
def hyperbolic_distance():
    """Pattern: "hyperbolic attention networks": minus the distance on the hyperboloid."""

    def attention(q, k, v):
        a = torch.sqrt(1 + q.square().sum(-1, keepdim=True))
        b = torch.sqrt(1 + k.square().sum(-1, keepdim=True))
        inner = a @ b.mT - q @ k.mT
        return torch.softmax(-torch.acosh(inner + 1e-3), dim=-1) @ v

    return attention


@case("other")
def additive_attention():
    """Pattern: Bahdanau's, d2l-ai/d2l-en AdditiveAttention, with frozen weights."""

    def attention(q, k, v):
        d = q.shape[-1]
        wq, wk = fixed(d, 6, seed=41, like=q), fixed(d, 6, seed=43, like=q)
        w = fixed(6, seed=47, like=q)
        hidden = torch.tanh((q @ wq).unsqueeze(-2) + (k @ wk).unsqueeze(-3))
        return torch.softmax(hidden @ w, dim=-1) @ v

    return attention


@case("other")
def bilinear_attention():
    """Pattern: Luong's general attention: a frozen matrix between q and k."""

    def attention(q, k, v):
        w = fixed(q.shape[-1], q.shape[-1], seed=53, like=q) / q.shape[-1]
        return torch.softmax(q @ w @ k.mT, -1) @ v

    return attention


@case("other")
def latent_keys_with_fixed_matrices():
    """Pattern: DeepSeek-V2, simplified: keys and values through a narrow frozen latent space."""

    def attention(q, k, v):
        d, e = k.shape[-1], v.shape[-1]
        k = k @ fixed(d, 3, seed=59, like=k) @ fixed(3, d, seed=61, like=k) / d
        v = v @ fixed(e, 3, seed=67, like=v) @ fixed(3, e, seed=71, like=v) / e
        return plain(q, k, v)

    return attention


@case("other")
def linear_elu():
    """Pattern: idiap/fast-transformers: elu(x) + 1 as the feature map."""

    def attention(q, k, v):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("bhjd,bhje->bhde", k, v)
        z = 1 / (torch.einsum("bhid,bhd->bhi", q, k.sum(-2)) + 1e-6)
        return torch.einsum("bhid,bhde,bhi->bhie", q, kv, z)

    return attention


@case("other", square=True)
def linear_elu_causal_cumulated():
    def attention(q, k, v):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(-3)
        total = k.cumsum(-2)
        num = (q.unsqueeze(-1) * state).sum(-2)
        return num / (q * total).sum(-1, keepdim=True)

    return attention


@case("other")
def efficient_two_softmaxes():
    """Pattern: lucidrains/denoising-diffusion-pytorch: softmax of q on features, of k on tokens."""

    def attention(q, k, v):
        q, k = q.softmax(dim=-1) * q.shape[-1] ** -0.5, k.softmax(dim=-2)
        return q @ (k.mT @ v)

    return attention


class LinearFunction(torch.autograd.Function):
    """Linear attention with exp as its feature map and a backward of its own."""

    @staticmethod
    def forward(ctx, q, k, v):
        a, b = torch.exp(q * 0.5), torch.exp(k * 0.5)
        state, total = b.mT @ v, b.sum(-2, keepdim=True)
        z = (a * total).sum(-1, keepdim=True)
        o = a @ state / z
        ctx.save_for_backward(a, b, v, state, total, z, o)
        return o

    @staticmethod
    def backward(ctx, do):
        a, b, v, state, total, z, o = ctx.saved_tensors
        g = do / z
        dz = -(g * o).sum(-1, keepdim=True)
        da = g @ state.mT + dz * total
        db = v @ (a.mT @ g).mT + (dz * a).sum(-2, keepdim=True)
        return 0.5 * a * da, 0.5 * b * db, b @ (a.mT @ g)


@case("other")
def linear_exp_own_function():
    return LinearFunction.apply


@case("other", numpy=True)
def numpy_unnormalised_linear_pair():
    def forward(q, k, v):
        return q @ (k.swapaxes(-1, -2) @ v) / k.shape[-2]

    def backward(do, q, k, v):
        t, m = (lambda x: x.swapaxes(-1, -2)), k.shape[-2]
        return do @ t(v) @ k / m, v @ t(do) @ q / m, k @ (t(q) @ do) / m

    return forward, backward


@case("other", square=True)
def retention_with_decay():
    """Pattern: microsoft/unilm RetNet, parallel form: no softmax, a decay per head."""

    def attention(q, k, v):
        gamma = 1 - 2.0 ** (-3 - torch.arange(q.shape[1], dtype=q.dtype, device=q.device))
        r = positions(q, k)
        decay = (gamma[:, None, None] ** r.clamp(min=0).to(q.dtype)).masked_fill(r < 0, 0.0)
        return (q @ k.mT * q.shape[-1] ** -0.5 * decay) @ v

    return attention


@case("other", square=True)
def forgetting_with_frozen_gates():
    """Pattern: the forgetting transformer: sums of frozen log gates added to the scores."""

    def attention(q, k, v):
        gate = F.logsigmoid(2 + fixed(q.shape[1], q.shape[-2], seed=73, like=q)).cumsum(-1)
        s = q @ k.mT * q.shape[-1] ** -0.5 + gate[:, :, None] - gate[:, None, :]
        return s.masked_fill(positions(q, k) < 0, float("-inf")).softmax(-1) @ v

    return attention


@case("other", square=True)
def delta_rule():
    """Pattern: fla-org/flash-linear-attention, DeltaNet, step by step; unit keys, strength one half."""

    def attention(q, k, v):
        k = F.normalize(k, dim=-1)
        state = torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1], dtype=q.dtype, device=q.device)
        out = []
        for t in range(q.shape[-2]):
            kt, vt = k[:, :, t], v[:, :, t]
            old = torch.einsum("bhde,bhd->bhe", state, kt)
            state = state + 0.5 * kt.unsqueeze(-1) * (vt - old).unsqueeze(-2)
            out.append(torch.einsum("bhde,bhd->bhe", state, q[:, :, t]))
        return torch.stack(out, dim=-2)

    return attention


# ------------------------------------------------------------------ other: heads, gates, residuals


@case("other", even=True)
def differential_attention():
    """Pattern: microsoft/unilm Diff-Transformer: two halves of the features; even head sizes only."""

    def attention(q, k, v, lam=0.35):
        (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
        scale = q1.shape[-1] ** -0.5
        a = torch.softmax(q1 @ k1.mT * scale, -1) - lam * torch.softmax(q2 @ k2.mT * scale, -1)
        return a @ v

    return attention


@case("other")
def talking_heads():
    """Pattern: "talking-heads attention", CaiT in timm: frozen mixes before and after the softmax."""

    def attention(q, k, v):
        h = q.shape[1]
        eye = torch.eye(h, dtype=q.dtype, device=q.device)
        before = eye + 0.3 * fixed(h, h, seed=79, like=q)
        after = eye + 0.3 * fixed(h, h, seed=83, like=q)
        s = torch.einsum("bhij,hg->bgij", q @ k.mT * q.shape[-1] ** -0.5, before)
        p = torch.einsum("bhij,hg->bgij", s.softmax(-1), after)
        return p @ v

    return attention


@case("other")
def temperature_per_head():
    """Pattern: Restormer, XCiT: a learned temperature for each head, frozen here."""

    def attention(q, k, v):
        t = 0.5 + 0.25 * torch.arange(q.shape[1], dtype=q.dtype, device=q.device)
        return plain(q, k, v, t.view(-1, 1, 1))

    return attention


@case("other")
def scale_grows_with_length():
    """Pattern: log-n scaling (Su), Llama 4's temperature: the scale depends on how many keys."""
    return lambda q, k, v: plain(q, k, v, math.log(1 + k.shape[-2]) * q.shape[-1] ** -0.5)


@case("other", square=True, dv=False)
def cross_covariance():
    """Pattern: facebookresearch/xcit: features attend to features; needs one size for all three."""

    def attention(q, k, v):
        q, k = F.normalize(q, dim=-2), F.normalize(k, dim=-2)
        return v @ torch.softmax(q.mT @ k * 1.5, -1).mT

    return attention


@case("other", dv=False)
def residual_of_the_query():
    """Pattern: set transformers: the query is added to what was attended to."""
    return lambda q, k, v: q + plain(q, k, v)


@case("other", square=True)
def residual_of_the_value():
    """Pattern: value residual learning (ResFormer)."""
    return lambda q, k, v: 0.5 * v + 0.5 * plain(q, k, v)


@case("other", dv=False)
def gated_by_the_query():
    """Pattern: Qwen's gated attention: a sigmoid of the query on the output, no weights."""
    return lambda q, k, v: plain(q, k, v) * torch.sigmoid(q)


@case("other")
def normed_output():
    """Pattern: sub-layer norm of Diff-Transformer, RetNet: an RMS norm after attention."""
    return lambda q, k, v: F.rms_norm(plain(q, k, v), v.shape[-1:], eps=1e-5)


@case("other")
def output_times_a_constant():
    """Pattern: Diff-Transformer's (1 - lambda): plain attention, 0.8 times."""
    return lambda q, k, v: 0.8 * plain(q, k, v)


@case("other")
def output_over_root_of_length():
    """Normalised by the number of keys, as in some graph networks."""
    return lambda q, k, v: plain(q, k, v) / math.sqrt(k.shape[-2])


@case("other")
def mean_of_two_temperatures():
    def attention(q, k, v):
        return 0.5 * plain(q, k, v, 0.3) + 0.5 * plain(q, k, v, 1.3)

    return attention


@case("other", square=True)
def token_shift_on_keys():
    """Pattern: RWKV's token shift before plain attention."""

    def attention(q, k, v):
        k = 0.6 * k + 0.4 * F.pad(k, (0, 0, 1, -1))
        return plain(q, k, v)

    return attention


@case("other")
def pooled_keys():
    """Pattern: Linformer, PVT: keys and values averaged in pairs before."""

    def pool(x):
        x = F.pad(x, (0, 0, 0, x.shape[-2] % 2))
        return x.unflatten(-2, (-1, 2)).mean(-2)

    return lambda q, k, v: plain(q, pool(k), pool(v))


# ------------------------------------------------------------------ other-wrong


class SoftcapForgotten(Softcap):
    """The derivative of tanh is missing."""

    @staticmethod
    def backward(ctx, do):
        q, k, v, _, p, o = ctx.saved_tensors
        ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return ds @ k, ds.mT @ q, p.mT @ do, None


@case("other-wrong")
def softcap_without_its_derivative():
    return lambda q, k, v: SoftcapForgotten.apply(q, k, v, 1.5)


class OffByOneNoRowTerm(OffByOne):
    @staticmethod
    def backward(ctx, do):
        q, k, v, p = ctx.saved_tensors
        ds = p * (do @ v.mT) * ctx.scale
        return ds @ k, ds.mT @ q, p.mT @ do, None


@case("other-wrong")
def off_by_one_without_the_row_term():
    return lambda q, k, v: OffByOneNoRowTerm.apply(q, k, v, q.shape[-1] ** -0.5)


class CosineFlat(CosineFunction):
    """The norms are held fixed: their part of the gradient is missing."""

    @staticmethod
    def backward(ctx, do):
        qu, qs, ku, ks, v, p = ctx.saved_tensors
        dp = do @ v.mT
        ds = ctx.scale * p * (dp - (p * dp).sum(-1, keepdim=True))
        return ds @ ku / qs, ds.mT @ qu / ks, p.mT @ do, None


@case("other-wrong")
def cosine_with_norms_held_fixed():
    return lambda q, k, v: CosineFlat.apply(q, k, v, 4.0)


@case("other-wrong")
def qk_norm_detached():
    """The graph itself is cut: the lengths are detached."""

    def attention(q, k, v):
        q = q / q.norm(dim=-1, keepdim=True).detach()
        k = k / k.norm(dim=-1, keepdim=True).detach()
        return plain(q, k, v, 5.0)

    return attention


class SigmoidForgotten(SigmoidFunction):
    @staticmethod
    def backward(ctx, do):
        q, k, v, w = ctx.saved_tensors
        ds = (do @ v.mT) * w * q.shape[-1] ** -0.5
        return ds @ k, ds.mT @ q, w.mT @ do


@case("other-wrong")
def sigmoid_without_one_minus():
    return SigmoidForgotten.apply


class LinearDetached(LinearFunction):
    """The denominator is held fixed."""

    @staticmethod
    def backward(ctx, do):
        a, b, v, state, _, z, _ = ctx.saved_tensors
        g = do / z
        return 0.5 * a * (g @ state.mT), 0.5 * b * (v @ (a.mT @ g).mT), b @ (a.mT @ g)


@case("other-wrong")
def linear_with_denominator_held_fixed():
    return LinearDetached.apply


@case("other-wrong", even=True)
def rope_turned_the_wrong_way_back():
    """Even head sizes only; gradients are rotated forward instead of back."""

    def forward(q, k, v):
        tq, tk = (rope_table(x.shape[-2], x.shape[-1], x) for x in (q, k))
        return plain(rotate_halves(q, *tq), rotate_halves(k, *tk), v)

    def backward(do, q, k, v):
        tq, tk = (rope_table(x.shape[-2], x.shape[-1], x) for x in (q, k))
        qr, kr, g = rotate_halves(q, *tq), rotate_halves(k, *tk), q.shape[-1] ** -0.5
        p = torch.softmax(qr @ kr.mT * g, -1)
        dp = do @ v.mT
        ds = g * p * (dp - (p * dp).sum(-1, keepdim=True))
        return rotate_halves(ds @ kr, *tq), rotate_halves(ds.mT @ qr, *tk), p.mT @ do

    return forward, backward


@case("other-wrong", numpy=True)
def numpy_alibi_keys_without_scale():
    forward, right = numpy_alibi_pair()

    def backward(do, q, k, v):
        dq, dk, dv = right(do, q, k, v)
        return dq, dk * np.sqrt(q.shape[-1]), dv

    return forward, backward


@case("other-wrong", numpy=True)
def numpy_gaussian_with_a_wrong_sign():
    forward, right = numpy_gaussian_kernel_unnormalised_pair()

    def backward(do, q, k, v):
        dq, dk, dv = right(do, q, k, v)
        return -dq, dk, dv

    return forward, backward


@case("other-wrong")
def t5_bias_with_a_scale_only_back():
    def weights(q, k):
        bias = -0.2 * positions(q, k).abs().to(q.dtype)
        return torch.softmax(q @ k.mT + bias, -1)

    def forward(q, k, v):
        return weights(q, k) @ v

    def backward(do, q, k, v):
        p, dp = weights(q, k), do @ v.mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, p.mT @ do

    return forward, backward


@case("other-wrong", dv=False)
def residual_forgotten_on_the_way_back():
    def forward(q, k, v):
        return q + plain(q, k, v, 0.4)

    def backward(do, q, k, v):
        p = torch.softmax(0.4 * q @ k.mT, -1)
        dp = do @ v.mT
        ds = 0.4 * p * (dp - (p * dp).sum(-1, keepdim=True))
        return ds @ k, ds.mT @ q, p.mT @ do

    return forward, backward


class DifferentialWrongSign(torch.autograd.Function):
    """The second softmax is subtracted forward, its gradient is added."""

    @staticmethod
    def forward(ctx, q, k, v):
        a, b = torch.softmax(0.5 * q @ k.mT, -1), torch.softmax(-0.8 * q @ k.mT, -1)
        ctx.save_for_backward(q, k, v, a, b)
        return (a - 0.35 * b) @ v

    @staticmethod
    def backward(ctx, do):
        q, k, v, a, b = ctx.saved_tensors
        dp = do @ v.mT
        da = a * (dp - (a * dp).sum(-1, keepdim=True))
        db = b * (dp - (b * dp).sum(-1, keepdim=True))
        ds = 0.5 * da - 0.8 * 0.35 * db
        return ds @ k, ds.mT @ q, (a - 0.35 * b).mT @ do


@case("other-wrong")
def differential_with_a_wrong_sign():
    return DifferentialWrongSign.apply


@case("other-wrong", dv=False)
def gate_detached():
    return lambda q, k, v: plain(q, k, v) * torch.sigmoid(q.detach())


@case("other-wrong", numpy=True)
def numpy_polynomial_without_the_exponent():
    def forward(q, k, v):
        return (1 + q @ k.swapaxes(-1, -2) / q.shape[-1]) ** 3 @ v

    def backward(do, q, k, v):
        base = 1 + q @ k.swapaxes(-1, -2) / q.shape[-1]
        ds = do @ v.swapaxes(-1, -2) * base**2 / q.shape[-1]
        return ds @ k, ds.swapaxes(-1, -2) @ q, (base**3).swapaxes(-1, -2) @ do

    return forward, backward


class SinkCountedTwice(torch.autograd.Function):
    """With a sink of logit 0.5: the row term is divided by what the sink left over."""

    @staticmethod
    def forward(ctx, q, k, v):
        s = F.pad(q @ k.mT * q.shape[-1] ** -0.5, (1, 0), value=0.5)
        p = torch.softmax(s, -1)[..., 1:]
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx, do):
        q, k, v, p = ctx.saved_tensors
        dp = do @ v.mT
        row = (p * dp).sum(-1, keepdim=True) / p.sum(-1, keepdim=True)
        ds = p * (dp - row) * q.shape[-1] ** -0.5
        return ds @ k, ds.mT @ q, p.mT @ do


@case("other-wrong")
def sink_left_out_of_the_row_term():
    return SinkCountedTwice.apply
