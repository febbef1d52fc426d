"""Functions that are no plain attention, in plain PyTorch, with a mask and a causal mask where they take them."""

import math

import torch


def scores(q, k, scale=None):
    return q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)


def seen(s, mask, is_causal):
    n, m = s.shape[-2:]
    if is_causal:
        s = s.masked_fill(~torch.ones(n, m, dtype=torch.bool).tril(m - n), -math.inf)
    return s if mask is None else s.masked_fill(~mask, -math.inf)


def turned(x):
    d = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * 50.0 ** (-torch.arange(d, dtype=x.dtype) / max(d, 1))
    a, b, rest = x[..., :d], x[..., d : 2 * d], x[..., 2 * d :]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos(), rest], -1)


def distance(s):
    n, m = s.shape[-2:]
    return abs(torch.arange(m - n, m)[:, None] - torch.arange(m)).to(s.dtype)


def rotary(q, k, v, mask=None, is_causal=False):
    return torch.softmax(seen(scores(turned(q), turned(k)), mask, is_causal), -1) @ v


def slopes(q, k, v, mask=None, is_causal=False):
    s = scores(q, k)
    slope = 2.0 ** -torch.arange(1, q.shape[1] + 1, dtype=s.dtype)[:, None, None]
    return torch.softmax(seen(s - slope * distance(s), mask, is_causal), -1) @ v


def window(q, k, v, mask=None, is_causal=False):
    s = scores(q, k)
    return torch.softmax(seen(s.masked_fill(distance(s) > 2, -math.inf), mask, is_causal).nan_to_num(neginf=-1e4), -1) @ v


def cap(q, k, v, mask=None, is_causal=False):
    return torch.softmax(seen(3 * torch.tanh(scores(q, k) / 3), mask, is_causal), -1) @ v


def sink(q, k, v, mask=None, is_causal=False):
    s = seen(scores(q, k), mask, is_causal)
    return torch.softmax(torch.cat([s, 0.5 * torch.ones_like(s[..., :1])], -1), -1)[..., :-1] @ v


def off_by_one(q, k, v, mask=None, is_causal=False):
    s = seen(scores(q, k), mask, is_causal)
    top = s.amax(-1, keepdim=True).clamp(min=0).detach()
    e = torch.exp(s - top)
    return e / (torch.exp(-top) + e.sum(-1, keepdim=True)) @ v


def normed(q, k, v, mask=None, is_causal=False):
    q, k = (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) for x in (q, k))
    return torch.softmax(seen(scores(q, k), mask, is_causal), -1) @ v


def sigmoid(q, k, v, mask=None, is_causal=False):
    return torch.sigmoid(seen(scores(q, k) - math.log(k.shape[-2]), mask, is_causal)) @ v


def linear(q, k, v):
    q, k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    return q @ (k.mT @ v) / (q @ k.sum(-2).unsqueeze(-1))


def residual(q, k, v, mask=None, is_causal=False):
    return torch.softmax(seen(scores(q, k), mask, is_causal), -1) @ v + v.mean(-2, keepdim=True)


def differential(q, k, v, mask=None, is_causal=False):
    d = max(q.shape[-1] // 2, 1)
    first, second = (torch.softmax(seen(scores(a, b), mask, is_causal), -1)
                     for a, b in ((q[..., :d], k[..., :d]), (q[..., -d:], k[..., -d:])))
    return (first - 0.4 * second) @ v


OTHERS = [rotary, slopes, window, cap, sink, off_by_one, normed, sigmoid, linear, residual, differential]
