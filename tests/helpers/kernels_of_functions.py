"""Kernels in the form of FlashAttention of functions that are no plain attention, each with the function itself.

Each kernel is right, and wrong in one place where it is told to slip.
"""

import math

import torch
import torch.nn.functional as F


def made(forward, backward):
    """The right kernel and the wrong one, as functions of q, k, v."""

    def kernel(slip):
        class Own(torch.autograd.Function):
            @staticmethod
            def forward(ctx, q, k, v):
                o, saved = forward(q, k, v, slip)
                ctx.save_for_backward(q, k, v, *saved)
                return o

            @staticmethod
            def backward(ctx, do):
                return backward(do, *ctx.saved_tensors, slip)

        return lambda q, k, v: Own.apply(q, k, v)

    return kernel(False), kernel(True)


def lse_of(s):
    """In float32 at least, as kernels keep it."""
    return torch.logsumexp(s.float() if s.dtype == torch.bfloat16 else s, -1, keepdim=True)


def exp(s, like):
    return torch.exp(s).to(like.dtype)


def row_term(do, o):
    return (do * o).sum(-1, keepdim=True)


# ---- a gate for each head and query ----


def gated(q, k, v):
    return torch.sigmoid(q.mean(-1, keepdim=True)) * (torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v)


def gated_forward(q, k, v, slip):
    gate = torch.sigmoid(q.mean(-1, keepdim=True))
    s = q @ k.mT * q.shape[-1] ** -0.5
    lse = lse_of(s)
    o = exp(s - lse, v) @ v
    return gate * o, (o, lse, gate)


def gated_backward(dy, q, k, v, o, lse, gate, slip):
    d = q.shape[-1]
    dgate = row_term(dy, gate * o if slip else o) * gate * (1 - gate)
    do = dy * gate
    p = exp(q @ k.mT * d**-0.5 - lse, v)
    ds = p * (do @ v.mT - row_term(do, o)) * d**-0.5
    return ds @ k + dgate / d, ds.mT @ q, p.mT @ do


# ---- a causal window of five keys ----


def window_of(q, k, left=5):
    i = torch.arange(q.shape[-2])[:, None] + k.shape[-2] - q.shape[-2]
    j = torch.arange(k.shape[-2])[None]
    return (j <= i) & (i - j < left)


def window(q, k, v):
    ok = window_of(q, k)
    s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~ok, -1e30)
    return torch.where(ok, torch.softmax(s, -1), torch.zeros_like(s)) @ v


def window_forward(q, k, v, slip):
    ok = window_of(q, k)
    s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~ok, -1e30)
    o = torch.where(ok, torch.softmax(s, -1), torch.zeros_like(s)) @ v
    return o, (o, lse_of(s))


def window_backward(do, q, k, v, o, lse, slip):
    scale = q.shape[-1] ** -0.5
    p = exp(q @ k.mT * scale - lse, v).masked_fill(~window_of(q, k, 4 if slip else 5), 0)
    ds = p * (do @ v.mT - row_term(do, o)) * scale
    return ds @ k, ds.mT @ q, p.mT @ do


# ---- the difference of two attentions ----


def weights_of_two(q, k):
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    s = q1.shape[-1] ** -0.5
    return torch.softmax(q1 @ k1.mT * s, -1), torch.softmax(q2 @ k2.mT * s, -1)


def differential(q, k, v):
    p1, p2 = weights_of_two(q, k)
    return (p1 - 0.8 * p2) @ v


def differential_forward(q, k, v, slip):
    p1, p2 = weights_of_two(q, k)
    o1, o2 = p1 @ v, p2 @ v
    o = o1 - 0.8 * o2
    return o, (p1, p2, *((o, o) if slip else (o1, o2)))


def differential_backward(do, q, k, v, p1, p2, o1, o2, slip):
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    s, dp = q1.shape[-1] ** -0.5, do @ v.mT
    ds1, ds2 = p1 * (dp - row_term(do, o1)) * s, -0.8 * p2 * (dp - row_term(do, o2)) * s
    dq, dk = torch.cat([ds1 @ k1, ds2 @ k2], -1), torch.cat([ds1.mT @ q1, ds2.mT @ q2], -1)
    return dq, dk, (p1 - 0.8 * p2).mT @ do


# ---- a sink for each head ----


def sinks(h, like):
    return torch.linspace(-1.0, 1.0, h, dtype=like.dtype).reshape(1, h, 1, 1)


def sunk(q, k, v):
    s = q @ k.mT / q.shape[-1] ** 0.5
    sink = sinks(q.shape[1], q).expand(*s.shape[:3], 1)
    return torch.softmax(torch.cat([s, sink], -1), -1)[..., :-1] @ v


def sunk_forward(q, k, v, slip):
    s = q @ k.mT / q.shape[-1] ** 0.5
    alone = lse_of(s)
    lse = torch.logaddexp(alone, sinks(q.shape[1], alone))
    o = exp(s - lse, v) @ v
    return o, (o, alone if slip else lse)


def plain_backward(do, q, k, v, o, lse, slip):
    scale = q.shape[-1] ** -0.5
    p = exp(q @ k.mT * scale - lse, v)
    ds = p * (do @ v.mT - row_term(do, o))
    return scale * ds @ k, scale * ds.mT @ q, p.mT @ do


# ---- capped scores ----


def capped(q, k, v):
    return torch.softmax(10 * torch.tanh(q @ k.mT * q.shape[-1] ** -0.5 / 10), -1) @ v


def capped_forward(q, k, v, slip):
    s = 10 * torch.tanh(q @ k.mT * q.shape[-1] ** -0.5 / 10)
    lse = lse_of(s)
    o = exp(s - lse, v) @ v
    return o, (o, lse)


def capped_backward(do, q, k, v, o, lse, slip):
    scale = q.shape[-1] ** -0.5
    raw = q @ k.mT * scale / 10
    p = exp(10 * torch.tanh(raw) - lse, v)
    ds = p * (do @ v.mT - row_term(do, o)) * (1 - (raw if slip else torch.tanh(raw)) ** 2) * scale
    return ds @ k, ds.mT @ q, p.mT @ do


# ---- linear attention, and sigmoids ----


def linear(q, k, v):
    a = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    return (a @ v) / a.sum(-1, keepdim=True)


def phi(x):
    return torch.where(x > 0, x + 1, torch.exp(x))


def phi_rate(x):
    return torch.where(x > 0, torch.ones_like(x), torch.exp(x))


def linear_forward(q, k, v, slip):
    kv, z = phi(k).mT @ v, phi(k).sum(-2, keepdim=True)
    den = (phi(q) * z).sum(-1, keepdim=True)
    o = phi(q) @ kv / den
    return o, (kv, z, den, o)


def linear_backward(do, q, k, v, kv, z, den, o, slip):
    dn, dden = do / den, -row_term(do, o) / den
    dkv, dz = phi(q).mT @ dn, (dden * phi(q)).sum(-2, keepdim=True)
    dfk = v @ dkv.mT + (0 if slip else dz)
    return (dn @ kv.mT + dden * z) * phi_rate(q), dfk * phi_rate(k), phi(k) @ dkv


def sigmoid(q, k, v):
    return torch.sigmoid(q @ k.mT / q.shape[-1] ** 0.5 - math.log(k.shape[-2])) @ v


def sigmoid_forward(q, k, v, slip):
    p = torch.sigmoid(q @ k.mT * q.shape[-1] ** -0.5 - math.log(k.shape[-2]))
    return p @ v, (p,)


def sigmoid_backward(do, q, k, v, p, slip):
    ds = (do @ v.mT) * p * (1 if slip else 1 - p) * q.shape[-1] ** -0.5
    return ds @ k, ds.mT @ q, p.mT @ do


KERNELS = {  # the function, and the two kernels
    "gated": (gated, *made(gated_forward, gated_backward)),
    "window": (window, *made(window_forward, window_backward)),
    "differential": (differential, *made(differential_forward, differential_backward)),
    "sunk": (sunk, *made(sunk_forward, plain_backward)),
    "capped": (capped, *made(capped_forward, capped_backward)),
    "linear": (linear, *made(linear_forward, linear_backward)),
    "sigmoid": (sigmoid, *made(sigmoid_forward, sigmoid_backward)),
}
