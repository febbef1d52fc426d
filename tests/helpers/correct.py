"""Right attention, as many people write it: a checker must find nothing wrong in any of it."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import attnmath
from mistaken_forward import Eager
from mistaken_pairs import BIASED, Pair
from mistaken_program import OPTIONS, RATE, Program, gathered, spread, summed_to
from mistaken_tiles import Tiled

SDPA = dict(mask="attn_mask", bias="attn_mask", scale="scale", groups="enable_gqa")
ALL = "float64 float32 bfloat16 float16".split()


@dataclass(frozen=True)
class Correct:
    fn: object
    backward: object = None
    options: dict = field(default_factory=lambda: OPTIONS)
    layout: str = "bhsd"
    dtypes: tuple = tuple(ALL)
    framework: str = "torch"
    alike: int = 1  # problems in turn that have the same sizes, where new ones have to be compiled


# ---- PyTorch's own


def math_kernel(q, k, v, **options):
    """The kernel that PyTorch calls math."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, **options)


def taught(q, k, v, attn_mask=None, bias=None, is_causal=False, scale=None, enable_gqa=False, dropout_mask=None):
    """As it is taught: matmul, softmax, matmul; zero for an empty row."""
    k, v = spread(k, q.shape[1]), spread(v, q.shape[1])
    a = q @ k.mT / math.sqrt(q.shape[-1]) if scale is None else q @ k.mT * scale
    a = a if bias is None else a + bias
    hidden = torch.zeros_like(a, dtype=torch.bool)
    hidden |= False if attn_mask is None else ~attn_mask
    hidden |= torch.ones_like(hidden).triu(a.shape[-1] - a.shape[-2] + 1) if is_causal else False
    empty = hidden.all(-1, keepdim=True)
    p = torch.softmax(a.masked_fill(hidden & ~empty, -torch.inf), -1).masked_fill(empty, 0)
    return (p if dropout_mask is None else p * dropout_mask) @ v


def einsum_bshd(q, k, v, attn_mask=None, bias=None, is_causal=False, scale=None, enable_gqa=False):
    """einsum in the layout (b, n, H, d), grouped heads on an axis of their own, upper-left causal."""
    b, n, H, d = q.shape
    m, G = k.shape[1:3]
    a = torch.einsum("bigrd,bjgd->bgrij", q.reshape(b, n, G, H // G, d), k).reshape(b, H, n, m)
    a = a * (d**-0.5 if scale is None else scale)
    a = a if bias is None else a + bias
    a = a if attn_mask is None else torch.where(attn_mask, a, -torch.inf)
    a = torch.where(torch.tril(torch.ones(n, m, dtype=torch.bool)), a, -torch.inf) if is_causal else a
    empty = (a == -torch.inf).all(-1, keepdim=True)
    p = torch.where(empty, 0, torch.softmax(torch.where(empty, 0, a), -1))
    return torch.einsum("bgrij,bjgd->bigrd", p.reshape(b, G, H // G, n, m), v).reshape(b, n, H, -1)


# ---- with a backward of their own


class Statistics(Program):
    """Keeps the largest score and the sum of each row, not their log-sum-exp; D from P and dP."""

    def forward(self, c):
        c.q, c.k, c.v = c.Q, spread(c.K, c.H), spread(c.V, c.H)
        a = self.hidden(c, self.scores(c))
        c.top = a.amax(-1, keepdim=True)
        c.top = torch.where(c.top == -torch.inf, 0.0, c.top)
        e = torch.exp(a - c.top)
        c.total = e.sum(-1, keepdim=True)
        c.total = torch.where(c.total == 0, 1.0, c.total)
        return self.dropped(c, e / c.total) @ c.v

    def weights(self, c):
        return torch.exp(self.hidden(c, self.scores(c)) - c.top) / c.total

    def D(self, c):
        return (c.p * c.dP).sum(-1, keepdim=True)


class KeptWeights(Statistics):
    """Keeps the weights themselves; the products as einsum."""

    def forward(self, c):
        o = super().forward(c)
        c.kept = super().weights(c)
        return o

    def weights(self, c):
        return c.kept

    def backward(self, c, do):
        p, v, k = c.kept, spread(c.V, c.H), spread(c.K, c.H)
        dA = p * (torch.einsum("bhid,bhjd->bhij", do, v) if c.R is None else torch.einsum("bhid,bhjd->bhij", do, v) * c.R)
        dA = dA - p * dA.sum(-1, keepdim=True)
        dK = gathered(torch.einsum("bhij,bhid->bhjd", dA * c.gamma, c.Q), c.G)
        dV = gathered(torch.einsum("bhij,bhid->bhjd", self.dropped(c, p), do), c.G)
        dQ = torch.einsum("bhij,bhjd->bhid", dA * c.gamma, k)
        return dQ, dK, dV, None if c.bias is None else summed_to(dA, c.bias.shape)


class Tiles32(Tiled):
    """Tiles of 32."""

    block = 32


class PairBshd(Pair):
    """A pair in NumPy, layout (b, n, H, d)."""

    layout = "bshd"


# ---- ours


def our_bias(like, n, m, attn_mask, bias, is_causal):
    mask = attnmath.causal_mask(n, m) if is_causal else np.ones((n, m), bool)
    if isinstance(like, torch.Tensor):
        mask = torch.from_numpy(mask)
    mask = mask if attn_mask is None else mask & attn_mask
    return attnmath.bias(mask, bias, like=like)


def ours(q, k, v, attn_mask=None, bias=None, is_causal=False, scale=None, enable_gqa=False, dropout_mask=None):
    """attnmath.attention on torch's tensors, differentiated by torch."""
    B = our_bias(q, q.shape[2], k.shape[2], attn_mask, bias, is_causal)
    gamma = None if scale is None else torch.tensor(scale, dtype=q.dtype)
    return attnmath.dropout_attention(q, spread(k, q.shape[1]), spread(v, q.shape[1]), B, gamma, R=dropout_mask)


class Ours:
    """attnmath's own pair in NumPy."""

    def arguments(self, q, k, v, attn_mask=None, bias=None, is_causal=False, scale=None, enable_gqa=False):
        B = our_bias(q, q.shape[2], k.shape[2], attn_mask, bias, is_causal)
        r = q.shape[1] // k.shape[1]
        gamma = None if scale is None else np.asarray(scale, q.dtype)
        return q, np.repeat(k, r, 1), np.repeat(v, r, 1), B, gamma

    def forward(self, q, k, v, **options):
        return attnmath.attention(*self.arguments(q, k, v, **options))

    def backward(self, do, q, k, v, bias=None, **options):
        d = attnmath.attention_vjp(do, *self.arguments(q, k, v, bias=bias, **options))
        b, G, m = k.shape[:3]
        dK, dV = (x.reshape(b, G, -1, m, x.shape[-1]).sum(2) for x in (d.dK, d.dV))
        return (d.dQ, dK, dV) if bias is None else (d.dQ, dK, dV, Pair().dB(d.dB, bias))


NUMPY = dict(framework="numpy", dtypes=("float64", "float32"), options=BIASED)
NO_DROPOUT = {w: name for w, name in OPTIONS.items() if w != "dropout_mask"}

CORRECT = {
    "torch, math kernel": Correct(math_kernel, options=SDPA),
    "torch, its own choice of kernel": Correct(F.scaled_dot_product_attention, options=SDPA),
    "torch, its own choice, causal": Correct(
        F.scaled_dot_product_attention, options=dict(causal="is_causal", scale="scale", groups="enable_gqa")
    ),
    "torch, as taught": Correct(taught),
    "torch, einsum in (b, n, H, d)": Correct(einsum_bshd, options=NO_DROPOUT, layout="bshd"),
    "torch, heads of a group on an axis": Correct(Eager()),
    "torch, own backward": Correct(Program()),
    "torch, own backward, dropout by its rate": Correct(Program(), options=RATE),
    "torch, own backward from (max, sum)": Correct(Statistics()),
    "torch, own backward from kept weights": Correct(KeptWeights()),
    "torch, tiles of 16": Correct(Tiled()),
    "torch, tiles of 32": Correct(Tiles32()),
    "NumPy pair": Correct(Pair().forward, Pair().backward, **NUMPY),
    "NumPy pair in (b, n, H, d)": Correct(PairBshd().forward, PairBshd().backward, layout="bshd", **NUMPY),
    "attnmath on torch": Correct(ours, dtypes=("float64", "float32")),
    "attnmath, NumPy pair": Correct(Ours().forward, Ours().backward, **NUMPY),
}
