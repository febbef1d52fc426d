"""Attention as its users write it in torch, with a backward of its own, in parts that a mistake replaces.

q (b, H, n, d_k), k (b, G, m, d_k), v (b, G, m, d_v) -> o (b, H, n, d_v). attn_mask keeps where True, bias is
added to the scores and has a gradient, dropout_mask is 0 or 1/(1 - rate); is_causal keeps to the lower
right, an empty row gives zero. Each part is a method that reads what the parts before it have left on c.
"""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

OPTIONS = dict(
    mask="attn_mask", bias="bias", causal="is_causal", scale="scale", groups="enable_gqa", dropout_mask="dropout_mask"
)
RATE = dict(mask="attn_mask", bias="bias", causal="is_causal", scale="scale", groups="enable_gqa", dropout="dropout_p")


@dataclass(frozen=True)
class Planted:
    """A candidate that is wrong in one known way."""

    fn: object
    backward: object = None
    name: str = ""  # of the mistake
    options: dict = field(default_factory=lambda: OPTIONS)
    conventions: dict = field(default_factory=dict)  # what a user would demand of it
    kind: str = "backward"
    description: str = ""
    wrong: frozenset = frozenset()  # of O dQ dK dV dB
    layout: str | None = None
    also: frozenset = frozenset()  # other names under which it is the same mistake


def planted(registry, wrong, *, name=None, variant="", options=OPTIONS, conventions=None, also="", **more):
    """Enters a program, or a module's forward and backward, as the mistake of its name."""

    def enter(thing):
        program = thing()
        mistake = name or thing.__name__
        registry[f"{mistake}, {variant}" if variant else mistake] = Planted(
            *((program.forward, program.backward) if thing.pair else (program, None)), mistake,
            options, conventions or {}, description=" ".join(thing.__doc__.split()),
            wrong=frozenset(wrong.split()), also=frozenset(also.split()), **more,
        )
        return thing

    return enter


def lower_right(n, m, device=None):
    return torch.ones(n, m, dtype=torch.bool, device=device).tril(m - n)


def upper_left(n, m, device=None):
    return torch.ones(n, m, dtype=torch.bool, device=device).tril()


def spread(x, H):
    """Each head of keys and values for the H/G heads of queries that read it."""
    return x.repeat_interleave(H // x.shape[1], 1)


def gathered(dx, G):
    """What the heads of a group give to the head that they share, summed."""
    b, H, m, d = dx.shape
    return dx.view(b, G, H // G, m, d).sum(2)


def summed_to(dB, shape):
    """The gradient of what was broadcast from this shape."""
    return dB.sum_to_size(shape)


def read_transposed(x):
    """A buffer read with its two strides exchanged."""
    return x.mT.reshape(x.shape)


def wide(x):
    """Scores and their log-sum-exp are kept in float32 at least, as kernels do."""
    return x if x.dtype == torch.float64 else x.float()


class Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, program, q, k, v, bias, rest):
        c = SimpleNamespace(Q=q, K=k, V=v, bias=bias, **rest)
        ctx.program, ctx.c = program, c
        c.b, c.H, c.n, c.d_k = q.shape
        c.G, c.m, c.d_v = v.shape[1:]
        return program.forward(c)

    @staticmethod
    def backward(ctx, do):
        c = SimpleNamespace(**vars(ctx.c))
        dQ, dK, dV, dB = ctx.program.backward(c, do)
        return None, dQ, dK, dV, None if c.bias is None else dB, None


class Program:
    """Right as it stands."""

    pair = False

    def __call__(
        self, q, k, v, *, attn_mask=None, bias=None, is_causal=False, scale=None, enable_gqa=False,
        dropout_mask=None, dropout_p=0.0,
    ):
        gamma = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        n, m = q.shape[2], k.shape[2]
        if dropout_p:
            dropout_mask = self.draw(q.shape[:3] + (m,), dropout_p, q)
        causal = lower_right(n, m) if is_causal else None
        rest = dict(keep=attn_mask, causal=causal, gamma=gamma, R=dropout_mask, rate=dropout_p)
        return Apply.apply(self, q, k, v, bias, rest)

    def draw(self, shape, rate, like):
        return (torch.rand(shape, dtype=torch.float64) >= rate).to(like.dtype) / (1 - rate)

    # ---- forward

    def forward(self, c):
        c.q, c.k, c.v = c.Q, spread(c.K, c.H), spread(c.V, c.H)
        c.a = self.hidden(c, self.scores(c))
        c.L = torch.logsumexp(wide(c.a), -1, keepdim=True)
        c.L = torch.where(c.L == -torch.inf, torch.inf, c.L)  # an empty row: all weights exp(-inf)
        c.p = torch.exp(c.a - c.L).to(c.q.dtype)
        c.o = self.dropped(c, c.p) @ c.v
        return c.o

    def scores(self, c):
        a = c.gamma * (c.q @ c.k.mT)
        return a if c.bias is None else a + c.bias

    def hidden(self, c, a):
        for seen in c.keep, c.causal:
            a = a if seen is None else torch.where(seen, a, -torch.inf)
        return a

    def dropped(self, c, p):
        return p if c.R is None else p * c.R

    # ---- backward

    def backward(self, c, do):
        c.do = self.cotangent(c, do)
        c.q, c.k, c.v = c.Q, self.keys(c), self.values(c)
        c.p = self.weights(c)
        c.dP = self.dP(c)
        c.D = self.D(c)
        c.dA = self.dA(c)
        return self.dQ(c), self.dK_shared(c, self.dK(c)), self.dV_shared(c, self.dV(c)), self.dB(c)

    def cotangent(self, c, do):
        return do

    def keys(self, c):
        return spread(c.K, c.H)

    def values(self, c):
        return spread(c.V, c.H)

    def scores_back(self, c):
        return self.scores(c)

    def hidden_back(self, c, a):
        return self.hidden(c, a)

    def weights(self, c):
        return torch.exp(self.hidden_back(c, self.scores_back(c)) - c.L).to(c.q.dtype)

    def dropped_back(self, c, p):
        return self.dropped(c, p)

    def dV(self, c):
        return self.dropped_back(c, c.p).mT @ c.do

    def dP(self, c):
        return self.dropped_back(c, c.do @ c.v.mT)

    def D(self, c):
        return (c.do * c.o).sum(-1, keepdim=True)

    def dA(self, c):
        return c.p * (c.dP - c.D)

    def dQ(self, c):
        return c.gamma * (c.dA @ c.k)

    def dK(self, c):
        return c.gamma * (c.dA.mT @ c.q)

    def dK_shared(self, c, dK):
        return gathered(dK, c.G)

    def dV_shared(self, c, dV):
        return gathered(dV, c.G)

    def dB(self, c):
        return None if c.bias is None else summed_to(c.dA, c.bias.shape)
