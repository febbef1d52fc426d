"""Layers of multi-head latent attention with one mistake each, as people make it (each written anew)."""

import math

import torch
import torch.nn.functional as F
from cases import collection
from latents_right import RMSNorm, angles, rotate_half, seeded
from torch import nn

CASES, case = collection()


def halves(n, dim, like, start=0):
    """cos and sin (n, dim) for rotary by halves, from position `start` on"""
    emb = torch.cat([angles(n + start, dim)[start:]] * 2, dim=-1)
    return emb.cos().to(like), emb.sin().to(like)


def turn(x, cos, sin):
    return x * cos + rotate_half(x) * sin


def turn_pairs(x, ang):
    """x (..., n, d) of neighbouring pairs; ang (n, d/2)"""
    cos, sin = ang.cos().to(x), ang.sin().to(x)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


def future(n):
    return torch.ones(n, n, dtype=torch.bool).triu(1)


class Projections(nn.Module):
    """The parameters under the names of modeling_deepseek.py; each case writes its forward."""

    def __init__(self, hidden=48, heads=3, q_rank=None, kv_rank=16, nope=8, rope=4, v=8):
        super().__init__()
        self.num_heads, self.kv_lora_rank, self.v_head_dim = heads, kv_rank, v
        self.qk_nope_head_dim, self.qk_rope_head_dim, self.q_head_dim = nope, rope, nope + rope
        if q_rank is None:
            self.q_proj = nn.Linear(hidden, heads * (nope + rope), bias=False)
        else:
            self.q_a_proj = nn.Linear(hidden, q_rank, bias=False)
            self.q_a_layernorm = RMSNorm(q_rank)
            self.q_b_proj = nn.Linear(q_rank, heads * (nope + rope), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, kv_rank + rope, bias=False)
        self.kv_a_layernorm = RMSNorm(kv_rank)
        self.kv_b_proj = nn.Linear(kv_rank, heads * (nope + v), bias=False)
        self.o_proj = nn.Linear(heads * v, hidden, bias=False)


class Inference(nn.Module):
    """The parameters under the names of DeepSeek's inference model; each case writes its forward."""

    def __init__(self, dim=40, n_heads=2, kv_lora_rank=12, nope=6, rope=4, v_head_dim=8):
        super().__init__()
        self.n_heads, self.kv_lora_rank, self.nope, self.rope = n_heads, kv_lora_rank, nope, rope
        self.v_head_dim = v_head_dim
        self.wq = nn.Linear(dim, n_heads * (nope + rope), bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + rope, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        self.wkv_b = nn.Linear(kv_lora_rank, n_heads * (nope + v_head_dim), bias=False)
        self.wo = nn.Linear(n_heads * v_head_dim, dim, bias=False)


class Paper(nn.Module):
    """The paper's matrices, apart and without norms; each case writes its forward."""

    def __init__(self, n_embd=32, n_head=4, d_c=14, d_h=8, d_r=4):
        super().__init__()
        self.n_head, self.d_h, self.d_r = n_head, d_h, d_r
        self.W_Q, self.W_QR = nn.Linear(n_embd, n_head * d_h, bias=False), nn.Linear(n_embd, n_head * d_r, bias=False)
        self.W_DKV, self.W_KR = nn.Linear(n_embd, d_c, bias=False), nn.Linear(n_embd, d_r, bias=False)
        self.W_UK, self.W_UV = nn.Linear(d_c, n_head * d_h, bias=False), nn.Linear(d_c, n_head * d_h, bias=False)
        self.c_proj = nn.Linear(n_head * d_h, n_embd, bias=False)

    def split(self, t, width):
        return t.view(*t.shape[:2], -1, width).transpose(1, 2)


# ---------------------------------------------------------------- the output is right, a gradient is not


@case("layer", source="fused RMSNorm kernels with a short backward")
def mla_norm_backward_short():
    """The hand-written backward of the latent's RMSNorm leaves out the term through the root mean square."""
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
            ctx.save_for_backward(x, weight, rstd)
            return x * rstd * weight

        @staticmethod
        def backward(ctx, grad):
            x, weight, rstd = ctx.saved_tensors
            return grad * weight * rstd, (grad * x * rstd).sum(dim=(0, 1))

    class Attention(Projections):
        def forward(self, x):
            b, n, _ = x.shape
            cos, sin = halves(n, self.qk_rope_head_dim, x)
            q = self.q_proj(x).view(b, n, self.num_heads, -1).transpose(1, 2)
            q_nope, q_pe = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
            latent, k_pe = self.kv_a_proj_with_mqa(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            kv = self.kv_b_proj(Norm.apply(latent, self.kv_a_layernorm.weight))
            k_nope, v = kv.view(b, n, self.num_heads, -1).transpose(1, 2).split(
                [self.qk_nope_head_dim, self.v_head_dim], dim=-1)
            q = torch.cat([q_nope, turn(q_pe, cos, sin)], dim=-1)
            k = torch.cat([k_nope, turn(k_pe, cos, sin)[:, None].expand_as(q_pe)], dim=-1)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o_proj(o.transpose(1, 2).reshape(b, n, -1))
    return seeded(Attention)


@case("layer", source="fused rotary kernels")
def mla_rotary_backward_forwards():
    """The hand-written backward of the rotary turns gradients forwards again, by +sin, where it has to turn back."""
    class Rotary(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t, cos, sin):
            ctx.save_for_backward(cos, sin)
            return turn(t, cos, sin)

        @staticmethod
        def backward(ctx, grad):
            cos, sin = ctx.saved_tensors
            return turn(grad, cos, sin), None, None

    class CausalSelfAttention(Paper):
        def forward(self, x):
            B, T, C = x.size()
            cos, sin = halves(T, self.d_r, x)
            c = self.W_DKV(x)
            q, k, v = (self.split(t, self.d_h) for t in (self.W_Q(x), self.W_UK(c), self.W_UV(c)))
            q_r = Rotary.apply(self.split(self.W_QR(x), self.d_r), cos, sin)
            k_r = Rotary.apply(self.split(self.W_KR(x), self.d_r), cos, sin)
            att = (q @ k.transpose(-2, -1) + q_r @ k_r.transpose(-2, -1)) / math.sqrt(self.d_h + self.d_r)
            y = F.softmax(att.masked_fill(future(T), float("-inf")), dim=-1) @ v
            return self.c_proj(y.transpose(1, 2).reshape(B, T, C))
    return seeded(CausalSelfAttention)


@case("layer", source="kernels that write the key of all heads into one buffer")
def mla_shared_key_gradient_of_one_head():
    """The backward of the broadcast of the shared rotary key gives it the gradient of the first head alone."""
    class JoinKey(torch.autograd.Function):
        @staticmethod
        def forward(ctx, k_nope, k_pe):
            ctx.nope = k_nope.shape[-1]
            return torch.cat((k_nope, k_pe.expand(-1, k_nope.shape[1], -1, -1)), dim=-1)

        @staticmethod
        def backward(ctx, dk):
            return dk[..., : ctx.nope], dk[:, :1, :, ctx.nope :]

    class Attention(Projections):
        def __init__(self):
            super().__init__(q_rank=20, v=6)

        def forward(self, hidden_states):
            b, n, _ = hidden_states.shape
            cos, sin = halves(n, self.qk_rope_head_dim, hidden_states)
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
            q = q.view(b, n, self.num_heads, -1).transpose(1, 2)
            q_pe = turn(q[..., self.qk_nope_head_dim :], cos, sin)
            query = torch.cat((q[..., : self.qk_nope_head_dim], q_pe), dim=-1)
            latent, k_pe = self.kv_a_proj_with_mqa(hidden_states).split(
                [self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, n, self.num_heads, -1).transpose(1, 2)
            key = JoinKey.apply(kv[..., : self.qk_nope_head_dim], turn(k_pe.unsqueeze(1), cos, sin))
            w = (query @ key.mT * self.q_head_dim ** -0.5).masked_fill(future(n), torch.finfo(query.dtype).min)
            o = w.softmax(-1) @ kv[..., self.qk_nope_head_dim :]
            return self.o_proj(o.transpose(1, 2).flatten(2)), w
    return seeded(Attention)


@case("layer")
def mla_shared_key_gradient_divided():
    """The backward of the rotary key's broadcast takes the mean of the heads' gradients where the sum belongs."""
    class Broadcast(torch.autograd.Function):
        @staticmethod
        def forward(ctx, k_pe, heads):
            return k_pe.unsqueeze(2).repeat(1, 1, heads, 1)

        @staticmethod
        def backward(ctx, grad):
            return grad.mean(dim=2), None

    class MLA(Inference):
        def forward(self, x):
            b, s, _ = x.size()
            ang = angles(s, self.rope)
            q_nope, q_pe = self.wq(x).view(b, s, self.n_heads, -1).split([self.nope, self.rope], dim=-1)
            q_pe = turn_pairs(q_pe.transpose(1, 2), ang).transpose(1, 2)
            kv, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.rope], dim=-1)
            k_pe = Broadcast.apply(turn_pairs(k_pe, ang), self.n_heads)
            k_nope, v = self.wkv_b(self.kv_norm(kv)).view(b, s, self.n_heads, -1).split(
                [self.nope, self.v_head_dim], dim=-1)
            q, k = torch.cat([q_nope, q_pe], dim=-1), torch.cat([k_nope, k_pe], dim=-1)
            scores = torch.einsum("bshd,bthd->bsht", q, k) * (self.nope + self.rope) ** -0.5
            scores = scores + torch.full((s, s), float("-inf"), dtype=x.dtype).triu(1).unsqueeze(1)
            return self.wo(torch.einsum("bsht,bthd->bshd", scores.softmax(-1), v).flatten(2))
    return seeded(MLA)


@case("layer", source="training code that keeps the inference cache")
def mla_values_from_detached_latent():
    """The values are made from a detached copy of the latent, kept for the cache, so that no gradient reaches the
    latent through the values."""
    class Attention(Paper):
        def forward(self, x):
            B, T, C = x.size()
            c_kv = self.W_DKV(x)
            self.kv_cache = c_kv.detach()
            cos, sin = halves(T, self.d_r, x)
            q = torch.cat((self.split(self.W_Q(x), self.d_h), turn(self.split(self.W_QR(x), self.d_r), cos, sin)), -1)
            k_r = turn(self.split(self.W_KR(x), self.d_r), cos, sin).expand(-1, self.n_head, -1, -1)
            k = torch.cat((self.split(self.W_UK(c_kv), self.d_h), k_r), -1)
            v = self.split(self.W_UV(self.kv_cache), self.d_h)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
    return seeded(Attention)


@case("layer")
def mla_keys_from_detached_latent():
    """The content keys are made from latent.detach(), so that the latent learns through the values alone; not
    causal."""
    class LatentAttention(Projections):
        def __init__(self):
            super().__init__(hidden=36, heads=2, kv_rank=10, nope=6, rope=6, v=8)

        def forward(self, x):
            b, n, _ = x.shape
            latent, k_pe = self.kv_a_proj_with_mqa(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            latent = self.kv_a_layernorm(latent)
            w_k, w_v = self.kv_b_proj.weight.view(self.num_heads, -1, self.kv_lora_rank).split(
                [self.qk_nope_head_dim, self.v_head_dim], dim=1)
            k_nope = torch.einsum("bnr,hdr->bhnd", latent.detach(), w_k)
            v = torch.einsum("bnr,hdr->bhnd", latent, w_v)
            q = self.q_proj(x).view(b, n, self.num_heads, -1).transpose(1, 2)
            cos, sin = halves(n, self.qk_rope_head_dim, x)
            q_pe, k_pe = turn(q[..., self.qk_nope_head_dim :], cos, sin), turn(k_pe, cos, sin)
            logits = torch.einsum("bhid,bhjd->bhij", q[..., : self.qk_nope_head_dim], k_nope)
            logits = logits + torch.einsum("bhid,bjd->bhij", q_pe, k_pe)
            p = torch.softmax(logits / math.sqrt(self.q_head_dim), dim=-1)
            return self.o_proj(torch.einsum("bhij,bhjd->bihd", p, v).flatten(2))
    return seeded(LatentAttention)


@case("layer", source="deepseek-ai/DeepSeek-V3 inference/model.py (pe_cache) put into training")
def mla_rotary_key_by_data():
    """The rotated shared key is written into a cache by .data and read from it, which cuts its gradient."""
    class MLA(Inference):
        def forward(self, x):
            b, s, _ = x.size()
            ang = angles(s, self.rope)
            q_nope, q_pe = self.wq(x).view(b, s, self.n_heads, -1).transpose(1, 2).split([self.nope, self.rope], -1)
            kv, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.rope], dim=-1)
            pe_cache = x.new_zeros(b, s, self.rope)
            pe_cache[:, :s] = turn_pairs(k_pe, ang).data
            kv = self.kv_norm(kv)
            wkv_b = self.wkv_b.weight.view(self.n_heads, -1, self.kv_lora_rank)
            q_nope = torch.einsum("bhsd,hdc->bhsc", q_nope, wkv_b[:, : self.nope])
            scores = torch.einsum("bhsc,btc->bhst", q_nope, kv)
            scores = scores + torch.einsum("bhsr,btr->bhst", turn_pairs(q_pe, ang), pe_cache)
            scores = (scores * (self.nope + self.rope) ** -0.5).masked_fill(future(s), float("-inf"))
            out = torch.einsum("bhst,btc->bhsc", scores.softmax(dim=-1), kv)
            out = torch.einsum("bhsc,hdc->bshd", out, wkv_b[:, -self.v_head_dim :])
            return self.wo(out.flatten(2))
    return seeded(MLA)


@case("layer")
def mla_down_projection_without_gradient():
    """The down-projection of keys and values runs under torch.no_grad, as filling a cache does; it gets no
    gradient and passes none to the input."""
    class Attention(Projections):
        def __init__(self):
            super().__init__(hidden=32, heads=4, kv_rank=12, nope=6, rope=4, v=6)

        def update_cache(self, x):
            with torch.no_grad():
                return self.kv_a_proj_with_mqa(x)

        def forward(self, x):
            b, n, _ = x.shape
            cos, sin = halves(n, self.qk_rope_head_dim, x)
            q_nope, q_pe = self.q_proj(x).view(b, n, self.num_heads, -1).transpose(1, 2).split(
                [self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
            compressed = self.update_cache(x)
            kv = self.kv_b_proj(self.kv_a_layernorm(compressed[..., : self.kv_lora_rank]))
            kv = kv.view(b, n, self.num_heads, -1).transpose(1, 2)
            k_pe = turn(compressed[:, None, :, self.kv_lora_rank :], cos, sin).expand_as(q_pe)
            query, key = torch.cat([q_nope, turn(q_pe, cos, sin)], -1), torch.cat([kv[..., : -self.v_head_dim], k_pe], -1)
            o = F.scaled_dot_product_attention(query, key, kv[..., -self.v_head_dim :], is_causal=True)
            return self.o_proj(o.transpose(1, 2).reshape(b, n, -1))
    return seeded(Attention)


@case("layer", source="hand-written recomputation of a block in the backward pass")
def mla_recompute_loses_rotary_key():
    """A hand-written checkpoint runs the core again in its backward, but hands on no gradient for the rotary key,
    the third of its inputs."""
    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(ctx, core, q, latent, k_pe, weight):
            ctx.core = core
            ctx.save_for_backward(q, latent, k_pe, weight)
            with torch.no_grad():
                return core(q, latent, k_pe, weight)

        @staticmethod
        def backward(ctx, grad):
            q, latent, k_pe, weight = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            with torch.enable_grad():
                out = ctx.core(q, latent, k_pe, weight)
            dq, dlatent, dweight = torch.autograd.grad(out, (q, latent, weight), grad)
            return None, dq, dlatent, None, dweight

    class Attention(Projections):
        def core(self, q, latent, k_pe, weight):
            b, n, _ = latent.shape
            k, v = F.linear(latent, weight).view(b, n, self.num_heads, -1).transpose(1, 2).split(
                [self.qk_nope_head_dim, self.v_head_dim], dim=-1)
            k = torch.cat((k, k_pe.expand(-1, self.num_heads, -1, -1)), dim=-1)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        def forward(self, x):
            b, n, _ = x.shape
            cos, sin = halves(n, self.qk_rope_head_dim, x)
            q = self.q_proj(x).view(b, n, self.num_heads, -1).transpose(1, 2)
            q = torch.cat((q[..., : self.qk_nope_head_dim], turn(q[..., self.qk_nope_head_dim :], cos, sin)), dim=-1)
            latent, k_pe = self.kv_a_proj_with_mqa(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            o = Recompute.apply(self.core, q, self.kv_a_layernorm(latent), turn(k_pe[:, None], cos, sin),
                                self.kv_b_proj.weight)
            return self.o_proj(o.transpose(1, 2).reshape(b, n, -1))
    return seeded(Attention)


@case("layer", source="absorbed weights prepared for inference, used in training")
def mla_absorbed_product_detached():
    """The absorbed product of the query and key up-projections is made under no_grad, so that neither learns from
    the content scores."""
    class AbsorbedMLA(nn.Module):
        def __init__(self, d_model=28, h=2, r_q=12, r_kv=8, d_c=6, d_r=4, d_v=8):
            super().__init__()
            self.d_c, self.d_r = d_c, d_r

            def weight(*shape):
                return nn.Parameter(torch.randn(*shape) * (3 * shape[-1]) ** -0.5)

            self.W_DQ, self.W_DKV, self.W_KR = weight(r_q, d_model), weight(r_kv, d_model), weight(d_r, d_model)
            self.W_UQ, self.W_QR = weight(h, d_c, r_q), weight(h, d_r, r_q)
            self.W_UK, self.W_UV, self.W_O = weight(h, d_c, r_kv), weight(h, d_v, r_kv), weight(d_model, h, d_v)

        @torch.no_grad()
        def absorb(self):
            return self.W_UQ.transpose(1, 2) @ self.W_UK

        def forward(self, x):
            n = x.shape[1]
            cos, sin = halves(n, self.d_r, x)
            c_q, c = x @ self.W_DQ.T, x @ self.W_DKV.T
            q_r, k_r = torch.einsum("bnr,hdr->bhnd", c_q, self.W_QR), x @ self.W_KR.T
            q_c = torch.einsum("biq,hqr->bhir", c_q, self.absorb())
            s = torch.einsum("bhir,bjr->bhij", q_c, c)
            s = (s + torch.einsum("bhid,bjd->bhij", turn(q_r, cos, sin), turn(k_r, cos, sin)))
            p = torch.softmax((s / math.sqrt(self.d_c + self.d_r)).masked_fill(future(n), -torch.inf), dim=-1)
            u = torch.einsum("bhij,bjr->bhir", p, c)
            return torch.einsum("bhir,hvr,ohv->bio", u, self.W_UV, self.W_O)
    return seeded(AbsorbedMLA)


@case("layer")
def mla_norm_statistics_detached():
    """The norms of both latents take the root mean square from detached inputs, so that the gradient lacks the
    term through it."""
    class DetachedNorm(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(dim))
            self.variance_epsilon = 1e-6

        def forward(self, x):
            rms = x.detach().pow(2).mean(-1, keepdim=True).add(self.variance_epsilon).sqrt()
            return x / rms * self.weight

    class Attention(Projections):
        def __init__(self):
            super().__init__(hidden=40, heads=2, q_rank=16, kv_rank=12, nope=8, rope=8, v=6)
            self.q_a_layernorm, self.kv_a_layernorm = DetachedNorm(16), DetachedNorm(12)

        def forward(self, x):
            b, n, _ = x.shape
            ang = angles(n, self.qk_rope_head_dim)
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(b, n, self.num_heads, -1).transpose(1, 2)
            q_nope, q_pe = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
            latent, k_pe = self.kv_a_proj_with_mqa(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, n, self.num_heads, -1).transpose(1, 2)
            k_nope, v = kv.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
            scores = q_nope @ k_nope.mT + turn_pairs(q_pe, ang) @ turn_pairs(k_pe, ang).unsqueeze(1).mT
            scores = scores.mul(self.q_head_dim ** -0.5).masked_fill(future(n), float("-inf"))
            return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1))
    return seeded(Attention)


@case("layer", source="hand-written attention cores for two-part queries")
def mla_core_backward_forgets_scale():
    """The hand-written core's gradients of the rotary queries and the rotary key lack the factor of the scale."""
    class Core(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q_c, q_r, k_c, k_r, v, scale):
            s = (torch.einsum("bhid,bhjd->bhij", q_c, k_c) + torch.einsum("bhid,bjd->bhij", q_r, k_r)) * scale
            p = s.masked_fill(future(s.shape[-1]), float("-inf")).softmax(-1)
            ctx.save_for_backward(q_c, q_r, k_c, k_r, v, p)
            ctx.scale = scale
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q_c, q_r, k_c, k_r, v, p = ctx.saved_tensors
            dp = do @ v.mT
            ds = p * (dp - (dp * p).sum(-1, keepdim=True))
            dq_c = ctx.scale * ds @ k_c
            dk_c = ctx.scale * ds.mT @ q_c
            dq_r = torch.einsum("bhij,bjd->bhid", ds, k_r)
            dk_r = torch.einsum("bhij,bhid->bjd", ds, q_r)
            return dq_c, dq_r, dk_c, dk_r, p.mT @ do, None

    class Attention(Paper):
        def forward(self, x):
            cos, sin = halves(x.shape[1], self.d_r, x)
            c = self.W_DKV(x)
            o = Core.apply(self.split(self.W_Q(x), self.d_h), turn(self.split(self.W_QR(x), self.d_r), cos, sin),
                           self.split(self.W_UK(c), self.d_h), turn(self.W_KR(x), cos, sin),
                           self.split(self.W_UV(c), self.d_h), (self.d_h + self.d_r) ** -0.5)
            return self.c_proj(o.transpose(1, 2).flatten(2))
    return seeded(Attention)


@case("layer", source="MQA kernels over the latent (FlashMLA's form) given a backward by hand")
def mla_latent_gradient_as_value_only():
    """The absorbed core reads the latent as key and as value, but its backward gives the latent the gradient as
    value alone."""
    class LatentCore(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q_lat, q_pe, latent, k_pe, scale):
            key = torch.cat((latent, k_pe), dim=-1)
            query = torch.cat((q_lat, q_pe), dim=-1)
            s = torch.einsum("bshc,btc->bhst", query, key) * scale
            p = s.masked_fill(future(s.shape[-1]), float("-inf")).softmax(dim=-1)
            ctx.save_for_backward(query, key, latent, p)
            ctx.scale = scale
            return torch.einsum("bhst,btc->bshc", p, latent)

        @staticmethod
        def backward(ctx, grad):
            query, key, latent, p = ctx.saved_tensors
            dp = torch.einsum("bshc,btc->bhst", grad, latent)
            ds = p * (dp - (p * dp).sum(dim=-1, keepdim=True)) * ctx.scale
            dquery = torch.einsum("bhst,btc->bshc", ds, key)
            dkey = torch.einsum("bhst,bshc->btc", ds, query)
            dlatent = torch.einsum("bhst,bshc->btc", p, grad)
            r = latent.shape[-1]
            return dquery[..., :r], dquery[..., r:], dlatent, dkey[..., r:], None

    class MLA(Inference):
        def forward(self, x):
            b, s, _ = x.shape
            ang = angles(s, self.rope)
            q_nope, q_pe = self.wq(x).view(b, s, self.n_heads, -1).split([self.nope, self.rope], dim=-1)
            q_pe = turn_pairs(q_pe.transpose(1, 2), ang).transpose(1, 2)
            kv, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.rope], dim=-1)
            w_uk, w_uv = self.wkv_b.weight.view(self.n_heads, -1, self.kv_lora_rank).split(
                [self.nope, self.v_head_dim], dim=1)
            out = LatentCore.apply(torch.einsum("bshd,hdc->bshc", q_nope, w_uk), q_pe, self.kv_norm(kv),
                                   turn_pairs(k_pe, ang), (self.nope + self.rope) ** -0.5)
            return self.wo(torch.einsum("bshc,hdc->bshd", out, w_uv).flatten(2))
    return seeded(MLA)


@case("layer")
def mla_norm_gain_gradient_averaged():
    """The hand-written backward of the latent's norm averages the gradient of its gain over the tokens instead of
    summing."""
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, gain):
            inv = (x * x).mean(-1, keepdim=True).add(1e-6).rsqrt()
            ctx.save_for_backward(x * inv, gain, inv)
            return x * inv * gain

        @staticmethod
        def backward(ctx, dy):
            y, gain, inv = ctx.saved_tensors
            g = dy * gain
            return inv * (g - y * (g * y).mean(-1, keepdim=True)), (dy * y).mean(dim=(0, 1))

    class Attention(Projections):
        def __init__(self):
            super().__init__(hidden=24, heads=2, kv_rank=8, nope=6, rope=4, v=8)

        def forward(self, x, return_weights=False):
            b, n, _ = x.shape
            cos, sin = halves(n, self.qk_rope_head_dim, x)
            q = self.q_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            a = self.kv_a_proj_with_mqa(x)
            c = Norm.apply(a[..., : self.kv_lora_rank], self.kv_a_layernorm.weight)
            kv = self.kv_b_proj(c).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            q_pe, k_pe = turn(q[..., self.qk_nope_head_dim :], cos, sin), turn(a[..., self.kv_lora_rank :], cos, sin)
            s = q[..., : self.qk_nope_head_dim] @ kv[..., : self.qk_nope_head_dim].mT + q_pe @ k_pe.mT.unsqueeze(1)
            w = (s * self.q_head_dim ** -0.5).softmax(-1)
            o = self.o_proj((w @ kv[..., self.qk_nope_head_dim :]).transpose(1, 2).flatten(2))
            return (o, w) if return_weights else o
    return seeded(Attention)


# ---------------------------------------------------------------- the output is wrong


@case("layer", source="MLA forks that keep head_dim for the scale")
def mla_scale_of_nope_alone():
    """The scale is 1 / sqrt(d_nope), which forgets the rotary entries of the dot product."""
    class CausalSelfAttention(Paper):
        def __init__(self):
            super().__init__(d_r=8)

        def forward(self, x):
            B, T, C = x.size()
            cos, sin = halves(T, self.d_r, x)
            c = self.W_DKV(x)
            q_r, k_r = turn(self.split(self.W_QR(x), self.d_r), cos, sin), turn(self.W_KR(x)[:, None], cos, sin)
            q = torch.cat((self.split(self.W_Q(x), self.d_h), q_r), dim=-1)
            k = torch.cat((self.split(self.W_UK(c), self.d_h), k_r.expand_as(q_r)), dim=-1)
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(self.d_h))
            att = att.masked_fill(future(T), float("-inf"))
            y = F.softmax(att, dim=-1) @ self.split(self.W_UV(c), self.d_h)
            return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
    return seeded(CausalSelfAttention)


@case("layer", source="ollama/ollama pull request 13893 (glm4moelite: fix attention scale calculation)")
def mla_scale_of_absorbed_width():
    """The absorbed form takes the scale from the width it multiplies, latent rank + rotary entries, where the
    width of the key before the absorption belongs."""
    class MLA(Inference):
        def __init__(self):
            super().__init__(kv_lora_rank=24)

        def forward(self, x):
            b, s, _ = x.shape
            ang = angles(s, self.rope)
            q_nope, q_pe = self.wq(x).view(b, s, self.n_heads, -1).transpose(1, 2).split([self.nope, self.rope], -1)
            latent, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.rope], dim=-1)
            latent = self.kv_norm(latent)
            w = self.wkv_b.weight.view(self.n_heads, -1, self.kv_lora_rank)
            query = torch.cat((q_nope @ w[:, : self.nope], turn_pairs(q_pe, ang)), dim=-1)
            key = torch.cat((latent, turn_pairs(k_pe, ang)), dim=-1).unsqueeze(1)
            scores = query @ key.mT / math.sqrt(query.shape[-1])
            attn = scores.masked_fill(future(s), float("-inf")).softmax(-1)
            o = attn @ latent.unsqueeze(1) @ w[:, self.nope :].mT
            return self.wo(o.transpose(1, 2).flatten(2))
    return seeded(MLA)


@case("layer", source="AI-Hypercomputer/maxtext issue 1370 (MLA BUG: reversed softmax_scale)")
def mla_scale_reversed():
    """softmax_scale is already d ** -0.5, and the scores are divided by it where they are to be multiplied."""
    class Attention(Projections):
        def __init__(self):
            super().__init__(hidden=32, heads=2, kv_rank=12)
            self.softmax_scale = self.q_head_dim ** -0.5

        def forward(self, x):
            b, n, _ = x.shape
            ang = angles(n, self.qk_rope_head_dim)
            q = torch.einsum("bnd,hkd->bhnk", x, self.q_proj.weight.view(self.num_heads, self.q_head_dim, -1))
            q_nope, q_pe = q[..., : self.qk_nope_head_dim], turn_pairs(q[..., self.qk_nope_head_dim :], ang)
            latent, k_pe = self.kv_a_proj_with_mqa(x).tensor_split([self.kv_lora_rank], dim=-1)
            kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, n, self.num_heads, -1)
            k_nope, v = kv.tensor_split([self.qk_nope_head_dim], dim=-1)
            scores = torch.einsum("bhid,bjhd->bhij", q_nope, k_nope)
            scores = (scores + torch.einsum("bhid,bjd->bhij", q_pe, turn_pairs(k_pe, ang))) / self.softmax_scale
            weights = scores.masked_fill(future(n), float("-inf")).softmax(-1)
            return self.o_proj(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))
    return seeded(Attention)


@case("layer")
def mla_rotary_on_the_first_entries():
    """The queries' first entries are turned, while the rotary part stands last: turned entries meet content keys,
    and the rotary key meets entries that were not turned."""
    class Attention(Projections):
        def forward(self, x):
            b, n, _ = x.shape
            cos, sin = halves(n, self.qk_rope_head_dim, x)
            q = self.q_proj(x).view(b, n, self.num_heads, self.q_head_dim).transpose(1, 2)
            q_pe, q_nope = q.split([self.qk_rope_head_dim, self.qk_nope_head_dim], dim=-1)
            q = torch.cat((turn(q_pe, cos, sin), q_nope), dim=-1)
            latent, k_pe = self.kv_a_proj_with_mqa(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, n, self.num_heads, -1).transpose(1, 2)
            k_nope, v = kv.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
            k = torch.cat((k_nope, turn(k_pe[:, None], cos, sin).expand_as(q_pe)), dim=-1)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o_proj(o.transpose(1, 2).reshape(b, n, -1))
    return seeded(Attention)


@case("layer")
def mla_rotary_for_queries_only():
    """The shared key goes into the scores as it was projected; only the queries are turned."""
    class MLA(Inference):
        def forward(self, x):
            b, s, _ = x.size()
            q_nope, q_pe = self.wq(x).view(b, s, self.n_heads, -1).transpose(1, 2).split([self.nope, self.rope], -1)
            q_pe = turn_pairs(q_pe, angles(s, self.rope))
            kv, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.rope], dim=-1)
            k_pe = k_pe.unsqueeze(1)
            k_nope, v = self.wkv_b(self.kv_norm(kv)).view(b, s, self.n_heads, -1).transpose(1, 2).split(
                [self.nope, self.v_head_dim], dim=-1)
            scores = (q_nope @ k_nope.mT + q_pe @ k_pe.mT) / (self.nope + self.rope) ** 0.5
            o = scores.masked_fill(future(s), -1e30).softmax(-1) @ v
            return self.wo(o.transpose(1, 2).flatten(2))
    return seeded(MLA)


@case("layer")
def mla_key_positions_from_one():
    """The keys' positions count from 1 and the queries' from 0, so that every rotary distance is one off."""
    class Attention(Paper):
        def forward(self, x):
            B, T, C = x.size()
            c = self.W_DKV(x)
            q_r = turn(self.split(self.W_QR(x), self.d_r), *halves(T, self.d_r, x))
            k_r = turn(self.split(self.W_KR(x), self.d_r), *halves(T, self.d_r, x, start=1))
            q = torch.cat((self.split(self.W_Q(x), self.d_h), q_r), dim=-1)
            k = torch.cat((self.split(self.W_UK(c), self.d_h), k_r.expand_as(q_r)), dim=-1)
            y = F.scaled_dot_product_attention(q, k, self.split(self.W_UV(c), self.d_h), is_causal=True)
            return self.c_proj(y.transpose(1, 2).reshape(B, T, C))
    return seeded(Attention)


@case("layer")
def mla_rotary_key_repeated_along_tokens():
    """The shared rotary key is repeated along the tokens and then viewed as (b, n, heads, d), so that heads read
    the rotary keys of other tokens; not causal."""
    class Attention(Projections):
        def __init__(self):
            super().__init__(hidden=40, heads=4, kv_rank=14, nope=6, rope=8, v=6)

        def forward(self, hidden_states):
            b, n, _ = hidden_states.shape
            cos, sin = halves(n, self.qk_rope_head_dim, hidden_states)
            q = self.q_proj(hidden_states).view(b, n, self.num_heads, -1)
            q_pe = turn(q[..., self.qk_nope_head_dim :], cos[:, None], sin[:, None])
            latent, k_pe = self.kv_a_proj_with_mqa(hidden_states).split(
                [self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            k_pe = turn(k_pe, cos, sin).repeat(1, self.num_heads, 1).view(b, n, self.num_heads, -1)
            kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, n, self.num_heads, -1)
            query = torch.cat([q[..., : self.qk_nope_head_dim], q_pe], dim=-1)
            key = torch.cat([kv[..., : self.qk_nope_head_dim], k_pe], dim=-1)
            scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / self.q_head_dim ** 0.5
            out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), kv[..., self.qk_nope_head_dim :])
            return self.o_proj(out.reshape(b, n, -1))
    return seeded(Attention)


@case("layer")
def mla_norm_over_latent_and_key():
    """The norm's root mean square is taken before the split, over the latent and the rotary key together, and the
    rotary key is divided by it too."""
    class MLA(Inference):
        def forward(self, x):
            b, s, _ = x.shape
            ang = angles(s, self.rope)
            q = self.wq(x).view(b, s, self.n_heads, -1).transpose(1, 2)
            q = torch.cat((q[..., : self.nope], turn_pairs(q[..., self.nope :], ang)), dim=-1)
            kv = self.wkv_a(x)
            kv = kv * torch.rsqrt(kv.pow(2).mean(-1, keepdim=True) + 1e-6)
            latent, k_pe = kv.split([self.kv_lora_rank, self.rope], dim=-1)
            kv = self.wkv_b(latent * self.kv_norm.weight).view(b, s, self.n_heads, -1).transpose(1, 2)
            k_pe = turn_pairs(k_pe, ang).unsqueeze(1).expand(-1, self.n_heads, -1, -1)
            k = torch.cat((kv[..., : self.nope], k_pe), dim=-1)
            o = F.scaled_dot_product_attention(q, k, kv[..., self.nope :], is_causal=True)
            return self.wo(o.transpose(1, 2).reshape(b, s, -1))
    return seeded(MLA)


@case("layer")
def mla_values_from_raw_latent():
    """The keys come from the normed latent, the values from the latent before its norm."""
    class Attention(Projections):
        def __init__(self):
            super().__init__(hidden=32, heads=2, q_rank=14, kv_rank=12, v=6)

        def forward(self, x):
            b, n, _ = x.shape
            cos, sin = halves(n, self.qk_rope_head_dim, x)
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(b, n, self.num_heads, -1).transpose(1, 2)
            q_nope, q_pe = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
            latent, k_pe = self.kv_a_proj_with_mqa(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            wk, wv = self.kv_b_proj.weight.view(self.num_heads, -1, self.kv_lora_rank).split(
                [self.qk_nope_head_dim, self.v_head_dim], dim=1)
            k_nope = self.kv_a_layernorm(latent).unsqueeze(1) @ wk.mT
            v = latent.unsqueeze(1) @ wv.mT
            q = torch.cat((q_nope, turn(q_pe, cos, sin)), dim=-1)
            k = torch.cat((k_nope, turn(k_pe[:, None], cos, sin).expand_as(q_pe)), dim=-1)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o_proj(o.transpose(1, 2).reshape(b, n, -1))
    return seeded(Attention)


@case("layer")
def mla_value_rows_from_the_start():
    """The absorbed form cuts W_UV from the first rows of each head of wkv_b, which are W_UK's; the rows meant for
    values are never read in full."""
    class MLA(Inference):
        def forward(self, x):
            b, s, _ = x.shape
            ang = angles(s, self.rope)
            q_nope, q_pe = self.wq(x).view(b, s, self.n_heads, -1).transpose(1, 2).split([self.nope, self.rope], -1)
            latent, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.rope], dim=-1)
            latent = self.kv_norm(latent)
            wkv_b = self.wkv_b.weight.view(self.n_heads, self.nope + self.v_head_dim, self.kv_lora_rank)
            w_uk, w_uv = wkv_b[:, : self.nope], wkv_b[:, : self.v_head_dim]
            scores = torch.einsum("bhsd,hdc,btc->bhst", q_nope, w_uk, latent)
            scores = scores + torch.einsum("bhsr,btr->bhst", turn_pairs(q_pe, ang), turn_pairs(k_pe, ang))
            scores = scores / math.sqrt(self.nope + self.rope)
            probs = scores.masked_fill(future(s), float("-inf")).softmax(dim=-1)
            return self.wo(torch.einsum("bhst,btc,hdc->bshd", probs, latent, w_uv).flatten(2))
    return seeded(MLA)


@case("layer")
def mla_causal_mask_one_ahead():
    """The additive triangle starts at the second diagonal, so that each position sees the next one too."""
    class MLA(Inference):
        def forward(self, x):
            b, s, _ = x.size()
            ang = angles(s, self.rope)[:, None]
            q_nope, q_pe = self.wq(x).view(b, s, self.n_heads, -1).split([self.nope, self.rope], dim=-1)
            kv, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.rope], dim=-1)
            k_pe = turn_pairs(k_pe.unsqueeze(2), ang).expand(-1, -1, self.n_heads, -1)
            k_nope, v = self.wkv_b(self.kv_norm(kv)).view(b, s, self.n_heads, -1).split(
                [self.nope, self.v_head_dim], dim=-1)
            q, k = torch.cat([q_nope, turn_pairs(q_pe, ang)], dim=-1), torch.cat([k_nope, k_pe], dim=-1)
            scores = torch.einsum("bshd,bthd->bsht", q, k) * (self.nope + self.rope) ** -0.5
            mask = torch.full((s, s), float("-inf"), dtype=x.dtype).triu(2)
            scores = (scores + mask.unsqueeze(1)).softmax(dim=-1)
            return self.wo(torch.einsum("bsht,bthd->bshd", scores, v).flatten(2))
    return seeded(MLA)


@case("layer")
def mla_softmax_over_heads():
    """The scores stand as (b, s, h, t), and the softmax runs over dimension 2, the heads, instead of the keys."""
    class MLA(Inference):
        def forward(self, x):
            b, s, _ = x.size()
            ang = angles(s, self.rope)[:, None]
            q_nope, q_pe = self.wq(x).view(b, s, self.n_heads, -1).split([self.nope, self.rope], dim=-1)
            kv, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.rope], dim=-1)
            k_nope, v = self.wkv_b(self.kv_norm(kv)).view(b, s, self.n_heads, -1).split(
                [self.nope, self.v_head_dim], dim=-1)
            scores = torch.einsum("bshd,bthd->bsht", q_nope, k_nope)
            scores = scores + torch.einsum("bshr,btr->bsht", turn_pairs(q_pe, ang),
                                           turn_pairs(k_pe.unsqueeze(2), ang).squeeze(2))
            weights = torch.softmax(scores * (self.nope + self.rope) ** -0.5, dim=2)
            return self.wo(torch.einsum("bsht,bthd->bshd", weights, v).flatten(2))
    return seeded(MLA)


@case("layer", source="ports of modeling_deepseek.py that drop one of the two reorderings")
def mla_reordered_queries_only():
    """The queries' pairs are reordered into halves and turned so, while the shared key is turned as neighbouring
    pairs where it stands, so that entries of different frequencies face each other."""
    class Attention(Projections):
        def __init__(self):
            super().__init__(rope=8, v=6)

        def forward(self, x):
            b, n, _ = x.shape
            cos, sin = halves(n, self.qk_rope_head_dim, x)
            q = self.q_proj(x).view(b, n, self.num_heads, self.q_head_dim).transpose(1, 2)
            q_nope, q_pe = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
            h, s, d = q_pe.shape[1:]
            q_pe = q_pe.reshape(b, h, s, d // 2, 2).transpose(4, 3).reshape(b, h, s, d)
            latent, k_pe = self.kv_a_proj_with_mqa(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, n, self.num_heads, -1).transpose(1, 2)
            k_nope, v = kv.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
            q = torch.cat((q_nope, turn(q_pe, cos, sin)), dim=-1)
            k_pe = turn_pairs(k_pe[:, None], angles(n, d)).expand_as(q_pe)
            k = torch.cat((k_nope, k_pe), dim=-1)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o_proj(o.transpose(1, 2).reshape(b, n, -1)), None
    return seeded(Attention)


@case("layer", source="wrappers that pad query, key and value to one width for a kernel")
def mla_scale_of_padded_width():
    """Query, key and value are padded with zeros to 16 for a kernel whose own scale then is 1 / sqrt(16), where
    the key has 12 entries."""
    class Attention(Projections):
        def forward(self, x):
            b, n, _ = x.shape
            cos, sin = halves(n, self.qk_rope_head_dim, x)
            q = self.q_proj(x).view(b, n, self.num_heads, -1).transpose(1, 2)
            q = torch.cat((q[..., : self.qk_nope_head_dim], turn(q[..., self.qk_nope_head_dim :], cos, sin)), dim=-1)
            latent, k_pe = self.kv_a_proj_with_mqa(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, n, self.num_heads, -1).transpose(1, 2)
            k_pe = turn(k_pe[:, None], cos, sin).expand(-1, self.num_heads, -1, -1)
            k = torch.cat((kv[..., : self.qk_nope_head_dim], k_pe), dim=-1)
            v = kv[..., self.qk_nope_head_dim :]
            q, k, v = (F.pad(t, (0, 16 - t.shape[-1])) for t in (q, k, v))
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)[..., : self.v_head_dim]
            return self.o_proj(o.transpose(1, 2).reshape(b, n, -1))
    return seeded(Attention)


@case("layer", source="rotary helpers that take the length from x.shape[-2]")
def mla_positions_count_heads():
    """The rotary is called on (b, n, heads, d) and takes the second last axis for the tokens, so that a head's
    number is its position and the shared key always stands at 0."""
    def rope(x):
        return turn(x, *halves(x.shape[-2], x.shape[-1], x))

    class CausalSelfAttention(Paper):
        def forward(self, x):
            B, T, C = x.size()
            c = self.W_DKV(x)
            q = torch.cat((self.W_Q(x).view(B, T, -1, self.d_h), rope(self.W_QR(x).view(B, T, -1, self.d_r))), dim=-1)
            k_r = rope(self.W_KR(x).view(B, T, 1, self.d_r)).expand(-1, -1, self.n_head, -1)
            k = torch.cat((self.W_UK(c).view(B, T, -1, self.d_h), k_r), dim=-1)
            v = self.W_UV(c).view(B, T, self.n_head, self.d_h)
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).reshape(B, T, C))
    return seeded(CausalSelfAttention)


@case("layer", source="implementations that view before they transpose")
def mla_up_projection_viewed_heads_first():
    """The up-projected keys and values are viewed as (b, heads, n, d) without a transpose, which mixes tokens and
    heads."""
    class Attention(Projections):
        def forward(self, x):
            b, n, _ = x.shape
            cos, sin = halves(n, self.qk_rope_head_dim, x)
            q = self.q_proj(x).view(b, n, self.num_heads, -1).transpose(1, 2)
            q_pe = turn(q[..., self.qk_nope_head_dim :], cos, sin)
            latent, k_pe = self.kv_a_proj_with_mqa(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, self.num_heads, n, -1)
            k_nope, v = kv.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
            scores = q[..., : self.qk_nope_head_dim] @ k_nope.mT + q_pe @ turn(k_pe, cos, sin).unsqueeze(1).mT
            p = (scores / math.sqrt(self.q_head_dim)).masked_fill(future(n), float("-inf")).softmax(-1)
            return self.o_proj((p @ v).transpose(1, 2).reshape(b, n, -1))
    return seeded(Attention)


@case("layer")
def mla_norm_made_and_forgotten():
    """kv_a_layernorm is made and kept in the state, but forward never calls it: the latent goes up as it is."""
    class Attention(Projections):
        def __init__(self):
            super().__init__(hidden=40, heads=2, q_rank=16, kv_rank=12)

        def forward(self, x):
            b, n, _ = x.shape
            ang = angles(n, self.qk_rope_head_dim)
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(b, n, self.num_heads, -1).transpose(1, 2)
            q_nope, q_pe = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
            latent, k_pe = self.kv_a_proj_with_mqa(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
            kv = self.kv_b_proj(latent).view(b, n, self.num_heads, -1).transpose(1, 2)
            k_nope, v = kv.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
            q = torch.cat((q_nope, turn_pairs(q_pe, ang)), dim=-1)
            k = torch.cat((k_nope, turn_pairs(k_pe[:, None], ang).expand_as(q_pe)), dim=-1)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o_proj(o.transpose(1, 2).reshape(b, n, -1))
    return seeded(Attention)
