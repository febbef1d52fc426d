"""Pieces of today's layers: found, judged with, every weight; mistakes in their way back named."""

import math

import pytest
import torch
from torch import nn

from attnmath import examine_layer

D, H, G, K = 16, 4, 2, 4


def cos_sin(n, k, dtype, slower=1.0):
    """Of base 10000; the second half of the frequencies may be slower."""
    f = 10000.0 ** (-torch.arange(0, k, 2, dtype=dtype) / k)
    a = torch.arange(n, dtype=dtype)[:, None] * torch.where(torch.arange(k // 2) < k // 4, f, f / slower)
    return torch.cat([a.cos()] * 2, -1), torch.cat([a.sin()] * 2, -1)


def turned(x, sign=1, slower=1.0):
    c, s = cos_sin(x.shape[-2], x.shape[-1], x.dtype, slower)
    x1, x2 = x.chunk(2, -1)
    return x * c + torch.cat([-x2, x1], -1) * s * sign


def t5_buckets(ahead):
    """In both directions, 32, up to 128 apart."""
    far = ahead.abs()
    large = 8 + (torch.log(far.clamp(min=1) / 8) / math.log(16) * 8).long()
    return 16 * (ahead > 0) + torch.where(far < 8, far, large.clamp(max=15))


class Turn(torch.autograd.Function):
    """A rotation with a way back of its own."""

    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake = mistake
        return turned(x)

    @staticmethod
    def backward(ctx, dy):
        return {"kept": dy, "sign": turned(dy)}.get(ctx.mistake, turned(dy, -1)), None


class Norm(torch.autograd.Function):
    """y = g x / root."""

    @staticmethod
    def forward(ctx, x, g, mistake):
        root = (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        ctx.save_for_backward(x / root, g, root)
        ctx.mistake = mistake
        return x / root * g

    @staticmethod
    def backward(ctx, dz):
        y, g, root = ctx.saved_tensors
        dy = dz if ctx.mistake == "no gain" else dz * g
        mean = 0 if ctx.mistake == "unprojected" else (y * dy).mean(-1, keepdim=True)
        dg = (dz * (y * root if ctx.mistake == "gain of x" else y)).sum((0, 1, 2))
        return (dy - y * mean) / root, dg, None


class Cap(torch.autograd.Function):
    """c tanh(x / c)."""

    @staticmethod
    def forward(ctx, x, c, mistake):
        t = torch.tanh(x / c)
        ctx.save_for_backward(t)
        ctx.mistake = mistake
        return c * t

    @staticmethod
    def backward(ctx, dy):
        (t,) = ctx.saved_tensors
        return dy if ctx.mistake == "no slope" else dy * (1 - t * t), None, None


class Sinks(torch.autograd.Function):
    """Softmax beside a sink of each head."""

    @staticmethod
    def forward(ctx, S, sinks, mistake):
        s = sinks[:, None, None].expand(*S.shape[:-1], 1)
        P = torch.cat([S, s], -1).softmax(-1)
        ctx.save_for_backward(P)
        ctx.mistake = mistake
        return P[..., :-1]

    @staticmethod
    def backward(ctx, dP):
        (P,) = ctx.saved_tensors
        D = (P[..., :-1] * dP).sum(-1, keepdim=True)
        dsink = -(P[..., -1:] * D).sum((0, 2, 3))
        D = 0 if ctx.mistake == "no D" else D
        return P[..., :-1] * (dP - D), {"lost": 0, "sign": -1}.get(ctx.mistake, 1) * dsink, None


class Look(torch.autograd.Function):
    """A table (buckets, H) looked up for all pairs."""

    @staticmethod
    def forward(ctx, beta, places, b, mistake):
        ctx.save_for_backward(beta, places)
        ctx.mistake = mistake
        return beta[places].permute(2, 0, 1).expand(b, -1, -1, -1)

    @staticmethod
    def backward(ctx, dB):
        (beta, places), mistake = ctx.saved_tensors, ctx.mistake
        each = (dB[0] if mistake == "first" else dB.sum(0)).permute(1, 2, 0)
        places = places.mT if mistake == "side" else places
        d, pairs = (torch.zeros_like(beta).index_put((places,), x, accumulate=True)
                    for x in (each, len(dB) * torch.ones_like(each)))
        many = {"mean": pairs.clamp(min=1), "batch mean": len(dB), "negative": -1}
        return 0 * d if mistake == "detached" else d / many.get(mistake, 1), None, None, None


class Today(nn.Module):
    """A layer of today, of pieces."""

    def __init__(self, *pieces, mistake=None, bias=False, heads=H, groups=G, d=D, k=K, window=3, cap=5.0):
        super().__init__()
        self.pieces, self.mistake, self.window, self.cap = pieces, mistake, window, cap
        self.n_heads, self.n_kv_heads, self.head_dim = heads, groups, k
        self.q_proj = nn.Linear(d, heads * k, bias=bias)
        self.k_proj, self.v_proj = (nn.Linear(d, groups * k, bias=bias) for _ in range(2))
        self.o_proj = nn.Linear(heads * k, d, bias=bias)
        if "norm" in pieces or "gemma norm" in pieces:
            fill = torch.ones if "norm" in pieces else torch.zeros
            self.q_norm, self.k_norm = (nn.Parameter(fill(k)) for _ in range(2))
        if "sinks" in pieces:
            self.sinks = nn.Parameter(torch.randn(heads))
        if "T5" in pieces or "T5 before the scale" in pieces:
            self.relative_bias = nn.Embedding(32, heads)
        if "clipped" in pieces or "of keys" in pieces:
            self.relative_bias = nn.Parameter(torch.randn(heads, 9))
        if "tables" in pieces:
            for name, x in zip(("cos", "sin"), cos_sin(64, k, torch.float32)):
                self.register_buffer(name, x)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
                   for f in (self.q_proj, self.k_proj, self.v_proj))
        if "norm" in self.pieces or "gemma norm" in self.pieces:
            offset = 1 * ("gemma norm" in self.pieces)
            q, k = (Norm.apply(x, offset + g, self.mistake) for x, g in ((q, self.q_norm), (k, self.k_norm)))
        if "rotary" in self.pieces:
            q, k = Turn.apply(q, self.mistake), Turn.apply(k, self.mistake)
        if "scaled" in self.pieces:
            q, k = turned(q, 1, 4.0), turned(k, 1, 4.0)
        if "tables" in self.pieces:
            n = x.shape[1]
            q, k = (y * self.cos[:n] + torch.cat([-y[..., 2:], y[..., :2]], -1) * self.sin[:n] for y in (q, k))
        k, v = (x.repeat_interleave(self.n_heads // self.n_kv_heads, 1) for x in (k, v))
        S, n = q @ k.mT / math.sqrt(self.head_dim), k.shape[2]
        ahead = torch.arange(n) - torch.arange(n)[:, None]
        if "T5" in self.pieces:  # it has no scale
            S = q @ k.mT + Look.apply(self.relative_bias.weight, t5_buckets(ahead), len(x), self.mistake)
        if "T5 before the scale" in self.pieces:
            S = (q @ k.mT + self.relative_bias.weight[t5_buckets(ahead)].permute(2, 0, 1)) / 4
        if "clipped" in self.pieces:
            S = S + self.relative_bias[:, ahead.clamp(-4, 4) + 4]
        if "of keys" in self.pieces:
            S = S + self.relative_bias[:, torch.arange(n) % 9][:, None]
        if "cap" in self.pieces:
            S = Cap.apply(S, self.cap, self.mistake)
        far = torch.arange(n)[:, None] - torch.arange(n)
        if "alibi" in self.pieces:
            S = S - 2.0 ** -torch.arange(1, self.n_heads + 1, dtype=x.dtype)[:, None, None] * far.abs()
        S = S if "both sides" in self.pieces else S.masked_fill(far < 0, -math.inf)
        if "window" in self.pieces:
            S = S.masked_fill(far >= self.window, -math.inf)
        P = Sinks.apply(S, self.sinks, self.mistake) if "sinks" in self.pieces else S.softmax(-1)
        return self.o_proj((P @ v).transpose(1, 2).flatten(-2))


RIGHT = [
    (("rotary",), "rotated, halves, base 10000, causal always"),
    (("norm", "rotary"), "queries and keys normed (epsilon 1e-06), times learned gains of Q and K, rotated, halves,"
     " base 10000, causal always"),
    (("gemma norm", "rotary", "window"), "queries and keys normed (epsilon 1e-06), times 1 + learned gains of Q and K,"
     " rotated, halves, base 10000, window of 2 before, causal always"),
    (("rotary", "cap", "window"), "rotated, halves, base 10000, cap 5, window of 2 before, causal always"),
    (("rotary", "sinks"), "rotated, halves, base 10000, causal always, learned sinks"),
    (("alibi",), "slopes 0.5 0.25 0.125 0.0625, causal always"),
    (("T5", "both sides"), "a learned table of biases by distance, 32 buckets, up to 128 apart, both directions"),
    (("T5", "sinks"), "a learned table of biases by distance, 32 buckets, up to 128 apart, both directions, causal"
     " always, learned sinks"),
    (("T5 before the scale", "rotary", "both sides"), "rotated, halves, base 10000, a learned table of biases by"
     " distance, 32 buckets, up to 128 apart, both directions, added before the scale"),
    (("clipped", "window", "norm"), "queries and keys normed (epsilon 1e-06), times learned gains of Q and K, a learned"
     " table of biases by distance, 9 numbers, window of 2 before, causal always"),
    (("scaled",), "rotated, halves, frequencies 1 0.1 0.0025 0.00025, causal always"),
    (("tables", "cap"), "rotated, halves, base 10000, cap 5, causal always, in part in float32"),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("pieces", "words"), RIGHT)
def test_what_a_layer_has_is_found_and_it_is_right(pieces, words, dtype):
    layer = Today(*pieces, bias=dtype == torch.float32, k=8 if "scaled" in pieces else K).to(dtype)
    report = examine_layer(layer, seed=1, smallest=False)
    if dtype == torch.bfloat16 and "tables" in pieces:  # which are rounded: no angles are left to be read
        assert report.unlisted, str(report)
        return
    assert report.right, str(report)
    assert report.conventions.pieces.words == words
    assert words in " ".join(str(report).split())


MISTAKES = [
    (("rotary",), "kept", ["rotation_kept"]), (("rotary",), "sign", ["rotation_sign"]),
    (("norm", "rotary"), "unprojected", ["norm_unprojected"]), (("norm",), "no gain", ["gain_left_out_back"]),
    (("norm", "rotary"), "gain of x", ["gain_before_norm"]), (("cap", "rotary"), "no slope", ["cap_slope_missing"]),
    (("sinks", "rotary"), "no D", ["D_missing"]), (("sinks", "rotary"), "lost", ["sink_gradient_lost"]), (("sinks",), "sign", ["sink_gradient_sign"]),
    (("T5", "both sides"), "detached", ["table_gradient_lost"]),
    (("T5",), "negative", ["table_gradient_sign"]), (("T5", "both sides"), "side", ["table_gradient_side"]),
    (("T5", "both sides"), "mean", ["table_gradient_mean"]), (("T5",), "first", ["table_gradient_first"]),
    (("T5", "both sides"), "batch mean", ["table_gradient_batch_mean"]),
]


@pytest.mark.parametrize(("pieces", "mistake", "names"), MISTAKES)
def test_a_mistake_in_the_way_back_of_a_piece_is_named(pieces, mistake, names):
    report = examine_layer(Today(*pieces, mistake=mistake), seed=1, smallest=False)
    assert report.wrong, str(report)
    assert [f.name for f in report.findings if f.kind in ("mistake", "unnamed")] == names, str(report)


def test_a_bias_that_distance_does_not_tell_is_no_table():
    report = examine_layer(Today("of keys", "both sides"), seed=1, smallest=False)
    assert report.unlisted and report.conventions.pieces is None, str(report)
