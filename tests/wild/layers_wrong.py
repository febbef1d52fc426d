"""Self-attention layers with one mistake each, of the kinds that people make; the docstring says which."""

import math

import torch
import torch.nn.functional as F
from cases import collection
from torch import nn

CASES, case = collection()


def seeded(build):
    """Build a module from a fixed seed without touching the caller's generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4321)
        return build()


def tables(n, dim, like, base=10000.0, start=0):
    inv = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    ang = torch.outer(torch.arange(start, start + n, dtype=torch.float64), inv)
    return ang.cos().to(like), ang.sin().to(like)


def turn_halves(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def turn_pairs(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def future(n):
    return torch.ones(n, n, dtype=torch.bool).triu(1)


class Heads(nn.Module):
    """Four projections; a layer says in attend(q, k, v) what it does with (b, heads, n, d) tensors."""

    def __init__(self, width=32, heads=4, kv_heads=None, bias=False):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads or heads, width // heads
        self.q_proj = nn.Linear(width, heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * self.head_dim, width, bias=bias)

    def split(self, t):
        return t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        return self.o_proj(self.attend(q, k, v).transpose(1, 2).flatten(2))


# --- rotary -----------------------------------------------------------------------------------------------

@case("layer")
def rope_not_turned_back():
    """Causal attention with the rotation (halves) fused into the Function: the backward pass computes dq and
    dk for the rotated q and k and returns them as they are, not rotated back (dv is right)."""
    class RopeAttention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, cos, sin):
            q, k = turn_halves(q, cos, sin), turn_halves(k, cos, sin)
            scale = q.shape[-1] ** -0.5
            p = (q @ k.mT * scale).masked_fill(future(q.shape[2]), float("-inf")).softmax(-1)
            ctx.save_for_backward(q, k, v, p)
            ctx.scale = scale
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            dp = do @ v.mT
            ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * ctx.scale
            return ds @ k, ds.mT @ q, p.mT @ do, None, None

    class Layer(Heads):
        def attend(self, q, k, v):
            cos, sin = tables(q.shape[2], self.head_dim, q)
            return RopeAttention.apply(q, k, v, cos, sin)
    return seeded(Layer)


@case("layer", source="unslothai/unsloth unsloth/kernels/rope_embedding.py")
def rope_back_same_sign():
    """A Function for the rotary (halves): its backward pass rotates the gradient forwards again with +sin
    instead of back with -sin, so dq and dk are rotated by twice the angle."""
    class Fast_RoPE_Embedding(torch.autograd.Function):
        @staticmethod
        def forward(ctx, Q, cos, sin):
            half = Q.shape[-1] // 2
            RH_Q = torch.cat((-Q[..., half:], Q[..., :half]), dim=-1)
            ctx.save_for_backward(cos, sin)
            return Q * cos + RH_Q * sin

        @staticmethod
        def backward(ctx, dY):
            cos, sin = ctx.saved_tensors
            half = dY.shape[-1] // 2
            RH_dY = torch.cat((-dY[..., half:], dY[..., :half]), dim=-1)
            return dY * cos + RH_dY * sin, None, None

    class Layer(Heads):
        def attend(self, q, k, v):
            cos, sin = (torch.cat((t, t), -1) for t in tables(q.shape[2], self.head_dim, q))
            q, k = Fast_RoPE_Embedding.apply(q, cos, sin), Fast_RoPE_Embedding.apply(k, cos, sin)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return seeded(Layer)


@case("layer")
def rope_back_other_layout():
    """Rotary of neighbouring pairs on the way forwards; the Function's backward pass rotates back by the
    right angle but in the halves layout, so dq and dk are wrong."""
    class Rotary(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, cos, sin):
            ctx.save_for_backward(cos, sin)
            return turn_pairs(q, cos, sin), turn_pairs(k, cos, sin)

        @staticmethod
        def backward(ctx, dq, dk):
            cos, sin = ctx.saved_tensors
            return turn_halves(dq, cos, -sin), turn_halves(dk, cos, -sin), None, None

    class Layer(nn.Module):
        def __init__(self, dim=48, heads=3):
            super().__init__()
            self.heads = heads
            self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

        def forward(self, x):
            B, T, C = x.shape
            q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
            q, k = Rotary.apply(q, k, *tables(T, C // self.heads, x))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).reshape(B, T, C))
    return seeded(Layer)


@case("layer")
def partial_rope_rest_lost():
    """Partial rotary (half of the features, halves layout) as a Function: the backward pass returns zeros for
    the features that are only passed through, so that part of dq and dk is lost."""
    class PartialRope(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, cos, sin):
            r = 2 * cos.shape[-1]
            ctx.save_for_backward(cos, sin)
            y = x.clone()
            y[..., :r] = turn_halves(x[..., :r], cos, sin)
            return y

        @staticmethod
        def backward(ctx, dy):
            cos, sin = ctx.saved_tensors
            r = 2 * cos.shape[-1]
            dx = torch.zeros_like(dy)
            dx[..., :r] = turn_halves(dy[..., :r], cos, -sin)
            return dx, None, None

    class Layer(Heads):
        def attend(self, q, k, v):
            cos, sin = tables(q.shape[2], self.head_dim // 2, q)
            q, k = PartialRope.apply(q, cos, sin), PartialRope.apply(k, cos, sin)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return seeded(lambda: Layer(64, 4, bias=True))


# --- softcap, sinks, window, ALiBi, causal ----------------------------------------------------------------

@case("layer")
def cap_slope_missing():
    """Softcap 4 inside a Function: the backward pass takes ds for the capped scores and leaves out the cap's
    slope 1 - tanh(s / cap)^2, so dq and dk are too large where scores are large (dv is right)."""
    class SoftcapAttention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, cap):
            scale = 1 / math.sqrt(q.size(-1))
            s = cap * torch.tanh(torch.einsum("bhid,bhjd->bhij", q, k) * scale / cap)
            s = s.masked_fill(future(q.size(2)), -torch.inf)
            p = torch.softmax(s, dim=-1)
            o = torch.einsum("bhij,bhjd->bhid", p, v)
            ctx.save_for_backward(q, k, v, p, o)
            ctx.scale = scale
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, p, o = ctx.saved_tensors
            dv = torch.einsum("bhij,bhid->bhjd", p, do)
            dp = torch.einsum("bhid,bhjd->bhij", do, v)
            ds = p * (dp - (do * o).sum(-1, keepdim=True))
            ds = ds * ctx.scale
            return torch.einsum("bhij,bhjd->bhid", ds, k), torch.einsum("bhij,bhid->bhjd", ds, q), dv, None

    class Layer(Heads):
        def attend(self, q, k, v):
            cos, sin = tables(q.shape[2], self.head_dim, q)
            return SoftcapAttention.apply(turn_halves(q, cos, sin), turn_halves(k, cos, sin), v, 4.0)
    return seeded(Layer)


@case("layer")
def cap_slope_of_capped():
    """Softcap 3 inside a Function: the slope is taken at the already capped score, 1 - tanh(capped / cap)^2
    instead of 1 - (capped / cap)^2, so dq and dk are off, the more the larger the scores."""
    class SoftcapAttention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, cap):
            scale = q.size(-1) ** -0.5
            s = cap * torch.tanh(q @ k.mT * scale / cap)
            lse = s.masked_fill(future(q.size(2)), -torch.inf).logsumexp(-1, keepdim=True)
            p = (s - lse).exp().tril()
            ctx.save_for_backward(q, k, v, s, lse)
            ctx.cap, ctx.scale = cap, scale
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, s, lse = ctx.saved_tensors
            p = (s - lse).exp().tril()
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True))
            ds = ds * (1 - torch.tanh(s / ctx.cap) ** 2) * ctx.scale
            return ds @ k, ds.mT @ q, p.mT @ do, None

    class Layer(Heads):
        def attend(self, q, k, v):
            return SoftcapAttention.apply(q, k, v, 3.0)
    return seeded(Layer)


class _Sinks(nn.Module):
    """Layer of the cases with sinks: packed qkv with a bias, a logit per head, a Function for all else."""

    def __init__(self, function, width=32, heads=4):
        super().__init__()
        self.heads, self.function = heads, function
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.sinks = nn.Parameter(torch.randn(heads))

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        cos, sin = tables(n, w // self.heads, x, 150000.0)
        o = self.function.apply(turn_halves(q, cos, sin), turn_halves(k, cos, sin), v, self.sinks)
        return self.out(o.transpose(1, 2).reshape(b, n, w))


def _sink_forward(ctx, q, k, v, sinks):
    n, scale = q.shape[2], q.shape[-1] ** -0.5
    s = (q @ k.mT * scale).masked_fill(future(n), -torch.inf)
    column = sinks.view(1, -1, 1, 1).expand(q.shape[0], -1, n, 1)
    p = torch.cat((s, column), -1).softmax(-1)
    o = p[..., :-1] @ v
    ctx.save_for_backward(q, k, v, p, o)
    ctx.scale = scale
    return o


@case("layer", source="openai/gpt-oss gpt_oss/triton/attention.py")
def sink_gradient_zero():
    """Sinks as in gpt-oss in a Function: dq, dk and dv are right, the sinks' gradient is returned as zeros
    (it was forgotten when the rest was derived)."""
    class SinkAttention(torch.autograd.Function):
        forward = staticmethod(_sink_forward)

        @staticmethod
        def backward(ctx, do):
            q, k, v, p, o = ctx.saved_tensors
            p = p[..., :-1]
            ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) * ctx.scale
            return ds @ k, ds.mT @ q, p.mT @ do, torch.zeros(q.shape[1], dtype=q.dtype, device=q.device)
    return seeded(lambda: _Sinks(SinkAttention))


@case("layer")
def sink_gradient_sign():
    """Sinks in a Function: the sinks' gradient is +sum(p_sink * delta) where it is -sum(p_sink * delta);
    everything else is right."""
    class SinkAttention(torch.autograd.Function):
        forward = staticmethod(_sink_forward)

        @staticmethod
        def backward(ctx, do):
            q, k, v, p, o = ctx.saved_tensors
            p, p_sink = p[..., :-1], p[..., -1]
            delta = (do * o).sum(-1)
            ds = p * (do @ v.mT - delta.unsqueeze(-1)) * ctx.scale
            return ds @ k, ds.mT @ q, p.mT @ do, (p_sink * delta).sum(dim=(0, 2))
    return seeded(lambda: _Sinks(SinkAttention))


@case("layer")
def sink_left_out_when_recomputed():
    """Sinks in a Function that computes P again in the backward pass: the softmax there goes over the keys
    alone, the sink's column is left out, so P is too large and dq, dk, dv are wrong (the sinks' own gradient
    is right)."""
    class SinkAttention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, sinks):
            n, ctx.scale = q.shape[2], q.shape[-1] ** -0.5
            s = (q @ k.mT * ctx.scale).masked_fill(future(n), -torch.inf)
            column = sinks.view(1, -1, 1, 1).expand(q.shape[0], -1, n, 1)
            p = torch.cat((s, column), -1).softmax(-1)
            o = p[..., :-1] @ v
            ctx.save_for_backward(q, k, v, o, p[..., -1])
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, p_sink = ctx.saved_tensors
            s = (q @ k.mT * ctx.scale).masked_fill(future(q.shape[2]), -torch.inf)
            p = s.softmax(-1)
            delta = (do * o).sum(-1)
            ds = p * (do @ v.mT - delta[..., None]) * ctx.scale
            return ds @ k, ds.mT @ q, p.mT @ do, -(p_sink * delta).sum((0, 2))
    return seeded(lambda: _Sinks(SinkAttention))


@case("layer", options={"bias": "attention_mask"})
def sinks_detached():
    """gpt-oss in plain autograd, but the sinks are put in as self.sinks.data: the output is right, the sinks
    get no gradient at all. An additive mask may be given instead of the causal one."""
    class Attention(Heads):
        def __init__(self):
            super().__init__(64, 4, 2, bias=True)
            self.sinks = nn.Parameter(torch.randn(4))

        def forward(self, hidden_states, attention_mask=None):
            b, n, _ = hidden_states.shape
            q, k, v = (self.split(p(hidden_states)) for p in (self.q_proj, self.k_proj, self.v_proj))
            cos, sin = tables(n, self.head_dim, q, 150000.0)
            q, k = turn_halves(q, cos, sin), turn_halves(k, cos, sin)
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
            w = torch.matmul(q, k.transpose(2, 3)) * self.head_dim ** -0.5
            if attention_mask is None:
                w = w.masked_fill(future(n), float("-inf"))
            else:
                w = w + attention_mask
            sinks = self.sinks.data.reshape(1, -1, 1, 1).expand(b, -1, n, -1).to(w.dtype)
            w = torch.cat([w, sinks], dim=-1)
            w = F.softmax(w - w.max(dim=-1, keepdim=True).values, dim=-1)[..., :-1]
            return self.o_proj((w @ v).transpose(1, 2).reshape(b, n, -1))
    return seeded(Attention)


@case("layer", source="ROCm/aiter pull 3742")
def window_ignored_backward():
    """Sliding window of 5 in a Function that keeps the log sum: the backward pass masks by causality only, so
    P has entries (not normalised) for keys outside the window; dq, dk, dv are wrong once n > 5."""
    class WindowAttention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, window):
            n, scale = q.shape[2], q.shape[-1] ** -0.5
            s = q @ k.mT * scale
            i = torch.arange(n)
            s = s.masked_fill((i > i[:, None]) | (i <= i[:, None] - window), float("-inf"))
            lse = torch.logsumexp(s, -1)
            o = torch.exp(s - lse[..., None]) @ v
            ctx.save_for_backward(q, k, v, o, lse)
            ctx.scale = scale
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, lse = ctx.saved_tensors
            s = q @ k.mT * ctx.scale
            s = s.masked_fill(future(q.shape[2]), float("-inf"))
            p = torch.exp(s - lse[..., None])
            ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) * ctx.scale
            return ds @ k, ds.mT @ q, p.mT @ do, None

    class Layer(Heads):
        def attend(self, q, k, v):
            cos, sin = tables(q.shape[2], self.head_dim, q, 1e6)
            q, k = turn_halves(q, cos, sin), turn_halves(k, cos, sin)
            rep = self.heads // self.kv_heads
            return WindowAttention.apply(q, k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1), 5)
    return seeded(lambda: Layer(32, 4, 1))


@case("layer")
def alibi_left_out_backward():
    """ALiBi in a Function that computes P again by a softmax in the backward pass: the bias is not added
    there, so P is another one and dq, dk, dv are wrong."""
    class AlibiAttention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, slopes):
            n, scale = q.shape[2], q.shape[-1] ** -0.5
            i = torch.arange(n)
            bias = -slopes.view(-1, 1, 1) * (i[:, None] - i).abs()
            p = (q @ k.mT * scale + bias).masked_fill(future(n), float("-inf")).softmax(-1)
            o = p @ v
            ctx.save_for_backward(q, k, v, o)
            ctx.scale = scale
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o = ctx.saved_tensors
            p = (q @ k.mT * ctx.scale).masked_fill(future(q.shape[2]), float("-inf")).softmax(-1)
            ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) * ctx.scale
            return ds @ k, ds.mT @ q, p.mT @ do, None

    class Layer(nn.Module):
        def __init__(self, d_model=32, n_heads=4):
            super().__init__()
            self.n_heads = n_heads
            self.Wqkv = nn.Linear(d_model, 3 * d_model, bias=False)
            self.out_proj = nn.Linear(d_model, d_model, bias=False)
            self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, n_heads + 1) / n_heads))

        def forward(self, x):
            q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.Wqkv(x).chunk(3, -1))
            return self.out_proj(AlibiAttention.apply(q, k, v, self.slopes).transpose(1, 2).flatten(2))
    return seeded(Layer)


@case("layer", options={"causal": "is_causal"})
def causal_ignored_backward():
    """Causal by argument (default True) in a Function: the backward pass never looks at it and takes P from a
    softmax over all keys, so with is_causal dq, dk and dv are wrong; without it everything is right."""
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, is_causal):
            s = q @ k.mT / math.sqrt(q.shape[-1])
            if is_causal:
                s = s.masked_fill(future(q.shape[2]), float("-inf"))
            ctx.save_for_backward(q, k, v)
            return s.softmax(-1) @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v = ctx.saved_tensors
            c = 1 / math.sqrt(q.shape[-1])
            p = (q @ k.mT * c).softmax(-1)
            dp = do @ v.mT
            ds = p * (dp - (dp * p).sum(-1, keepdim=True))
            return c * ds @ k, c * ds.mT @ q, p.mT @ do, None

    class Layer(Heads):
        def forward(self, x, is_causal=True):
            q, k, v = (self.split(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
            return self.o_proj(Attention.apply(q, k, v, is_causal).transpose(1, 2).flatten(2))
    return seeded(lambda: Layer(bias=True))


# --- norm of q and k --------------------------------------------------------------------------------------

class _Normed(Heads):
    """Qwen3's layer with a norm Function of the case."""

    def __init__(self, function, width=64, heads=4, kv_heads=2):
        super().__init__(width, heads, kv_heads)
        self.function = function
        self.q_gain = nn.Parameter(1 + 0.3 * torch.randn(self.head_dim))
        self.k_gain = nn.Parameter(1 + 0.3 * torch.randn(self.head_dim))

    def attend(self, q, k, v):
        q, k = self.function.apply(q, self.q_gain), self.function.apply(k, self.k_gain)
        cos, sin = tables(q.shape[2], self.head_dim, q, 1e6)
        q, k = turn_halves(q, cos, sin), turn_halves(k, cos, sin)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _norm_forward(ctx, x, gain):
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    ctx.save_for_backward(x, gain, rstd)
    return x * rstd * gain


@case("layer", source="linkedin/Liger-Kernel src/liger_kernel/ops/rms_norm.py")
def norm_without_projection():
    """RMS norm of q and k in a Function: dx = rstd * gain * dy, the term that takes off the part along x is
    left out (rstd is treated as a constant); the gain's gradient is right."""
    class Norm(torch.autograd.Function):
        forward = staticmethod(_norm_forward)

        @staticmethod
        def backward(ctx, dy):
            x, gain, rstd = ctx.saved_tensors
            return dy * gain * rstd, (dy * x * rstd).sum(dim=(0, 1, 2))
    return seeded(lambda: _Normed(Norm))


@case("layer")
def norm_gain_left_out_of_dx():
    """RMS norm of q and k in a Function: dx is computed from dy instead of dy * gain, right only while the
    gain is one; the gain's gradient is right."""
    class Norm(torch.autograd.Function):
        forward = staticmethod(_norm_forward)

        @staticmethod
        def backward(ctx, dy):
            x, gain, rstd = ctx.saved_tensors
            xhat = x * rstd
            dx = rstd * (dy - xhat * (dy * xhat).mean(-1, keepdim=True))
            return dx, (dy * xhat).sum(dim=(0, 1, 2))
    return seeded(lambda: _Normed(Norm))


@case("layer")
def gain_gradient_from_raw_x():
    """RMS norm of q and k in a Function: the gain's gradient is the sum of dy * x, without the division of x
    by its root mean square; dx is right."""
    class Norm(torch.autograd.Function):
        forward = staticmethod(_norm_forward)

        @staticmethod
        def backward(ctx, dy):
            x, gain, rstd = ctx.saved_tensors
            xhat, g = x * rstd, dy * gain
            dx = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True))
            return dx, (dy * x).sum(dim=(0, 1, 2))
    return seeded(lambda: _Normed(Norm))


@case("layer")
def gain_gradient_wrong_axis():
    """RMS norm in a Function on (b, n, heads, head_dim) with 8 heads of 8 features: the gain's gradient is
    summed over batch, positions and *features* and so is one number per head, which happens to have the
    gain's shape."""
    class Norm(torch.autograd.Function):
        forward = staticmethod(_norm_forward)

        @staticmethod
        def backward(ctx, dy):
            x, gain, rstd = ctx.saved_tensors
            xhat, g = x * rstd, dy * gain
            dx = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True))
            return dx, (dy * xhat).sum(dim=(0, 1, 3))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.to_qkv = nn.Linear(64, 192, bias=False)
            self.to_out = nn.Linear(64, 64)
            self.q_gain, self.k_gain = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))

        def forward(self, x):
            b, n, _ = x.shape
            q, k, v = (t.view(b, n, 8, 8) for t in self.to_qkv(x).chunk(3, dim=-1))
            q, k = Norm.apply(q, self.q_gain), Norm.apply(k, self.k_gain)
            s = torch.einsum("bihd,bjhd->bhij", q, k) * 8 ** -0.5
            p = s.masked_fill(future(n), float("-inf")).softmax(-1)
            return self.to_out(torch.einsum("bhij,bjhd->bihd", p, v).reshape(b, n, 64))
    return seeded(Layer)


@case("layer")
def gain_gradient_mean():
    """RMS norm of q and k in a Function: the gain's gradient is a mean over the batch of sums over heads and
    positions instead of a sum over all, right only for a batch of one; dx is right."""
    class Norm(torch.autograd.Function):
        forward = staticmethod(_norm_forward)

        @staticmethod
        def backward(ctx, dy):
            x, gain, rstd = ctx.saved_tensors
            xhat, g = x * rstd, dy * gain
            dx = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True))
            return dx, (dy * xhat).sum(dim=(1, 2)).mean(0)
    return seeded(lambda: _Normed(Norm))


@case("layer")
def k_gain_detached():
    """QK norm in plain autograd: k's gain is used as self.weight.detach() after a copy from an inference
    branch, so it gets no gradient; q's gain does. Output, dx and all other gradients are right."""
    class Norm(nn.Module):
        def __init__(self, dim, frozen=False):
            super().__init__()
            self.weight = nn.Parameter(1 + 0.1 * torch.randn(dim))
            self.frozen = frozen

        def forward(self, x):
            weight = self.weight.detach() if self.frozen else self.weight
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight

    class Layer(Heads):
        def __init__(self):
            super().__init__(48, 3)
            self.q_norm, self.k_norm = Norm(16), Norm(16, frozen=True)

        def attend(self, q, k, v):
            cos, sin = tables(q.shape[2], 16, q)
            q, k = turn_halves(self.q_norm(q), cos, sin), turn_halves(self.k_norm(k), cos, sin)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return seeded(Layer)


# --- groups, scale, weights -------------------------------------------------------------------------------

@case("layer")
def groups_first_head_only():
    """Groups of 4 query heads on 2 key heads in a Function: dk and dv take the first query head of each group
    instead of the sum over the group; dq is right."""
    class GQA(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            rep = q.shape[1] // k.shape[1]
            kk, vv = k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1)
            p = (q @ kk.mT * q.shape[-1] ** -0.5).masked_fill(future(q.shape[2]), float("-inf")).softmax(-1)
            ctx.save_for_backward(q, kk, vv, p)
            ctx.rep = rep
            return p @ vv

        @staticmethod
        def backward(ctx, do):
            q, kk, vv, p = ctx.saved_tensors
            dp = do @ vv.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            dk, dv = ds.mT @ q, p.mT @ do
            return ds @ kk, dk[:, ::ctx.rep], dv[:, ::ctx.rep]

    class Layer(Heads):
        def attend(self, q, k, v):
            cos, sin = tables(q.shape[2], self.head_dim, q)
            return GQA.apply(turn_halves(q, cos, sin), turn_halves(k, cos, sin), v)
    return seeded(lambda: Layer(64, 4, 2))


@case("layer")
def groups_summed_interleaved():
    """Groups in a Function: forwards key head j serves query heads 2 j and 2 j + 1 (repeat_interleave),
    backwards the heads are summed as (rep, kv_heads), that is j and j + 2: dk and dv go to the wrong key
    heads; dq is right."""
    class GQA(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            rep = q.shape[1] // k.shape[1]
            kk, vv = k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1)
            p = (q @ kk.mT * q.shape[-1] ** -0.5).masked_fill(future(q.shape[2]), float("-inf")).softmax(-1)
            ctx.save_for_backward(q, kk, vv, p)
            ctx.rep = rep
            return p @ vv

        @staticmethod
        def backward(ctx, do):
            q, kk, vv, p = ctx.saved_tensors
            b, h, n, d = q.shape
            dp = do @ vv.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * d ** -0.5
            dk = (ds.mT @ q).view(b, ctx.rep, h // ctx.rep, n, d).sum(1)
            dv = (p.mT @ do).view(b, ctx.rep, h // ctx.rep, n, d).sum(1)
            return ds @ kk, dk, dv

    class Layer(Heads):
        def attend(self, q, k, v):
            return GQA.apply(q, k, v)
    return seeded(lambda: Layer(64, 4, 2, bias=True))


@case("layer")
def scale_missing_in_dq():
    """A Function whose backward pass multiplies dk by the softmax scale but not dq, so the gradients of
    q_proj are sqrt(head_dim) times too large."""
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, sm_scale):
            p = torch.softmax((q @ k.transpose(-2, -1) * sm_scale).masked_fill(future(q.shape[2]), -1e30), -1)
            o = p @ v
            ctx.save_for_backward(q, k, v, o, p)
            ctx.sm_scale = sm_scale
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, p = ctx.saved_tensors
            D = torch.sum(do * o, dim=-1, keepdim=True)
            dS = p * (do @ v.transpose(-2, -1) - D)
            dQ = dS @ k
            dK = dS.transpose(-2, -1) @ q * ctx.sm_scale
            return dQ, dK, p.transpose(-2, -1) @ do, None

    class Layer(Heads):
        def attend(self, q, k, v):
            cos, sin = tables(q.shape[2], self.head_dim, q)
            return Attention.apply(turn_pairs(q, cos, sin), turn_pairs(k, cos, sin), v, self.head_dim ** -0.5)
    return seeded(Layer)


@case("layer")
def delta_over_keys():
    """A Function (not causal) whose softmax gradient subtracts sum(P * dP) taken over the queries (dim -2)
    instead of over the keys (dim -1): dq and dk are wrong, dv is right."""
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            c = q.shape[-1] ** -0.5
            p = (q @ k.mT * c).softmax(-1)
            ctx.save_for_backward(q, k, v, p)
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-2, keepdim=True)) * q.shape[-1] ** -0.5
            return ds @ k, ds.mT @ q, p.mT @ do

    class Layer(Heads):
        def attend(self, q, k, v):
            return Attention.apply(q, k, v)
    return seeded(lambda: Layer(bias=True))


class _Linear(torch.autograd.Function):
    """y = x w^T, rightly."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy @ w, dy.flatten(0, -2).T @ x.flatten(0, -2)


@case("layer")
def weight_gradient_transposed():
    """A linear Function of its own for q, k, v and o: the weight's gradient is x^T dy instead of dy^T x,
    which has the right shape since the matrices are square; dx is right."""
    class Dense(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w.T

        @staticmethod
        def backward(ctx, dy):
            x, w = ctx.saved_tensors
            return dy @ w, torch.einsum("bni,bnj->ij", x, dy)

    class Layer(Heads):
        def forward(self, x):
            q, k, v = (self.split(Dense.apply(x, p.weight)) for p in (self.q_proj, self.k_proj, self.v_proj))
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return Dense.apply(o.transpose(1, 2).flatten(2), self.o_proj.weight)
    return seeded(Layer)


@case("layer")
def k_and_v_weights_swapped():
    """Projections and attention in one Function with the matrices passed one by one: the backward pass
    returns the gradients of wk and wv in the wrong order (same shape); dx, wq's and wo's are right."""
    class Block(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, wq, wk, wv, heads):
            b, n, w = x.shape
            q, k, v = ((x @ m.T).view(b, n, heads, -1).transpose(1, 2) for m in (wq, wk, wv))
            p = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(future(n), float("-inf")).softmax(-1)
            ctx.save_for_backward(x, wq, wk, wv, q, k, v, p)
            return (p @ v).transpose(1, 2).reshape(b, n, w)

        @staticmethod
        def backward(ctx, dy):
            x, wq, wk, wv, q, k, v, p = ctx.saved_tensors
            do = dy.unflatten(-1, (q.shape[1], -1)).transpose(1, 2)
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            dq, dk, dv = ((t.transpose(1, 2).flatten(2)) for t in (ds @ k, ds.mT @ q, p.mT @ do))
            dx = dq @ wq + dk @ wk + dv @ wv
            dwq, dwk, dwv = (torch.einsum("bno,bni->oi", t, x) for t in (dq, dk, dv))
            return dx, dwq, dwv, dwk, None

    class Layer(nn.Module):
        def __init__(self, w=32):
            super().__init__()
            self.wq, self.wk, self.wv, self.wo = (nn.Linear(w, w, bias=False) for _ in range(4))

        def forward(self, x):
            return self.wo(Block.apply(x, self.wq.weight, self.wk.weight, self.wv.weight, 4))
    return seeded(Layer)


@case("layer")
def bias_gradient_last_sequence():
    """A linear Function with bias for q, k and v: the bias's gradient is summed over positions but taken from
    the last sequence of the batch only (dy.sum(1)[-1]), right for a batch of one; weights and dx are
    right."""
    class BiasAdd(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y, b):
            return y + b

        @staticmethod
        def backward(ctx, dy):
            return dy, dy.sum(1)[-1]

    class Layer(Heads):
        def forward(self, x):
            q, k, v = (self.split(BiasAdd.apply(_Linear.apply(x, p.weight), p.bias))
                       for p in (self.q_proj, self.k_proj, self.v_proj))
            cos, sin = tables(x.shape[1], self.head_dim, x)
            q, k = turn_halves(q, cos, sin), turn_halves(k, cos, sin)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o_proj(o.transpose(1, 2).flatten(2))
    return seeded(lambda: Layer(bias=True))


# --- forward, in autograd ---------------------------------------------------------------------------------

@case("layer")
def k_rotated_one_further():
    """Plain autograd: q is rotated by positions 0, 1, ..., k by 1, 2, ... (an offset meant for a cache), so
    every relative position is off by one; the gradients fit that wrong forward."""
    class Layer(Heads):
        def attend(self, q, k, v):
            n = q.shape[2]
            q = turn_halves(q, *tables(n, self.head_dim, q, 10000.0))
            k = turn_halves(k, *tables(n, self.head_dim, k, 10000.0, start=1))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return seeded(Layer)


@case("layer", options={"mask": "attention_mask"})
def cap_after_mask():
    """Plain autograd, Gemma 2's way: the mask (causal and the boolean one given, True keeps) is filled in
    with -inf *before* the softcap, so masked keys get the score -cap (-5) instead of no weight: the future
    leaks."""
    class Layer(Heads):
        cap = 5.0

        def forward(self, hidden_states, attention_mask=None):
            n = hidden_states.shape[1]
            q, k, v = (self.split(p(hidden_states)) for p in (self.q_proj, self.k_proj, self.v_proj))
            cos, sin = tables(n, self.head_dim, q)
            s = turn_halves(q, cos, sin) @ turn_halves(k, cos, sin).mT * self.head_dim ** -0.5
            keep = ~future(n) if attention_mask is None else ~future(n) & attention_mask
            s = s.masked_fill(~keep, torch.finfo(s.dtype).min)
            s = self.cap * torch.tanh(s / self.cap)
            return self.o_proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
    return seeded(Layer)


@case("layer")
def k_rotated_without_grad():
    """Plain autograd with the rotation of k done under torch.no_grad() (copied from a cache's update): the
    output is right, k_proj gets no gradient and dx misses the part through k."""
    class Layer(Heads):
        def attend(self, q, k, v):
            cos, sin = tables(q.shape[2], self.head_dim, q)
            q = turn_pairs(q, cos, sin)
            with torch.no_grad():
                k = turn_pairs(k, cos, sin)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return seeded(Layer)
