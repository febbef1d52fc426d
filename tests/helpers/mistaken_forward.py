"""Mistakes of the whole program: the gradients are those of a wrong output. Written with einsum, and
differentiated by torch; the heads of a group have an axis of their own.
"""

import math

import torch

from mistaken_program import OPTIONS, RATE, lower_right, planted, upper_left

FORWARD = {}
ALL = "O dQ dK dV dB"


def mistake(wrong=ALL, *, without="", **more):
    options = {w: name for w, name in more.pop("options", OPTIONS).items() if w not in without.split()}
    return planted(FORWARD, wrong, options=options, kind="forward", **more)


class Eager:
    """Right as it stands; lower-right causal, zero for an empty row."""

    pair = False

    def __call__(
        self, q, k, v, *, attn_mask=None, bias=None, is_causal=False, scale=None, enable_gqa=False,
        dropout_mask=None, dropout_p=0.0,
    ):
        b, H, n, d_k = q.shape
        G, m = k.shape[1:3]
        a = torch.einsum("bgrid,bgjd->bgrij", self.grouped(q, G), k)
        a = self.biased(self.ungrouped(a), bias, self.gamma(q, scale))
        seen = torch.ones((), dtype=torch.bool)
        if attn_mask is not None:
            seen = seen & self.kept(attn_mask)
        if is_causal:
            seen = seen & self.causal(n, m)
        if dropout_p:
            dropout_mask = (torch.rand(b, H, n, m, dtype=torch.float64) >= dropout_p).to(q.dtype) / (1 - dropout_p)
        p = self.dropped(self.weights(a, seen), dropout_mask)
        return self.ungrouped(torch.einsum("bgrij,bgjd->bgrid", self.grouped(p, G), self.values(v, d_k)))

    def grouped(self, x, G):
        return x.unflatten(1, (G, -1))

    def ungrouped(self, x):
        return x.flatten(1, 2)

    def gamma(self, q, scale):
        return 1 / math.sqrt(q.shape[-1]) if scale is None else scale

    def biased(self, a, bias, gamma):
        return a * gamma if bias is None else a * gamma + bias

    def kept(self, attn_mask):
        return attn_mask

    def causal(self, n, m):
        return lower_right(n, m)

    def weights(self, a, seen):
        a = torch.where(seen, a, -torch.inf)
        top = a.amax(-1, keepdim=True).detach()
        e = torch.exp(a - torch.where(top == -torch.inf, 0.0, top))
        total = e.sum(-1, keepdim=True)
        return e / torch.where(total == 0, 1.0, total)

    def dropped(self, p, R):
        return p if R is None else p * R

    def values(self, v, d_k):
        return v


# ---- the scale


@mistake(conventions={"scale": "1/sqrt(d_k)"})
class f_noscale(Eager):
    """The scores are not scaled, unless a scale is given."""

    def gamma(self, q, scale):
        return 1.0 if scale is None else scale


@mistake(conventions={"scale": "1/sqrt(d_k)"})
class f_scale_dk(Eager):
    """Divided by d_k in place of its root."""

    def gamma(self, q, scale):
        return 1 / q.shape[-1] if scale is None else scale


@mistake(conventions={"scale": "1/sqrt(d_k)"})
class f_scale_dmodel(Eager):
    """Divided by the root of all heads' width together."""

    def gamma(self, q, scale):
        return 1 / math.sqrt(q.shape[1] * q.shape[-1]) if scale is None else scale


@mistake(conventions={"scale": "1/sqrt(d_k)"})
class scale_sqrt_twice(Eager):
    """The root of d_k is taken twice."""

    def gamma(self, q, scale):
        return 1 / math.sqrt(math.sqrt(q.shape[-1])) if scale is None else scale


@mistake()
class scale_ignored(Eager):
    """The scale that is given is ignored."""

    def gamma(self, q, scale):
        return super().gamma(q, None)


@mistake(conventions={"scale": "1/sqrt(d_k)"})
class f_exp2(Eager):
    """Powers of two in place of e, without the factor log2(e)."""

    def biased(self, a, bias, gamma):
        return math.log(2) * super().biased(a, bias, gamma)


@mistake()
class mask_after_scale(Eager):
    """The bias is added before the scores are scaled, so that it is scaled too."""

    def biased(self, a, bias, gamma):
        return a * gamma if bias is None else (a + bias) * gamma


# ---- masks


@mistake(conventions={"mask": "keep"})
class f_mask_inverted(Eager):
    """The mask is read the other way round: True hides."""

    def kept(self, attn_mask):
        return ~attn_mask


@mistake()
class f_mask_after(Eager):
    """The masks are applied after the softmax, and the rows no longer sum to one."""

    def weights(self, a, seen):
        return torch.softmax(a, -1) * seen


@mistake()
class mask_leak_finite(Eager):
    """What is hidden gets the score -10, and still a little weight."""

    def weights(self, a, seen):
        return torch.softmax(torch.where(seen, a, -10.0), -1)


@mistake()
class mask_by_zero(Eager):
    """What is hidden gets the score 0."""

    def weights(self, a, seen):
        return torch.softmax(torch.where(seen, a, 0.0), -1)


@mistake("O dV", conventions={"empty": "zero"})
class empty_row_nan(Eager):
    """A row that may attend to nothing is NaN."""

    def weights(self, a, seen):
        return torch.softmax(torch.where(seen, a, -torch.inf), -1)


@mistake(also="no_mask_bwd")
class mask_ignored(Eager):
    """The mask is ignored."""

    def kept(self, attn_mask):
        return torch.ones_like(attn_mask)


@mistake(conventions={"causal": "lower_right"})
class f_align(Eager):
    """Causal to the upper left, where lower right is meant."""

    def causal(self, n, m):
        return upper_left(n, m)


@mistake()
class causal_ignored(Eager):
    """is_causal is ignored."""

    def causal(self, n, m):
        return torch.ones(n, m, dtype=torch.bool)


@mistake()
class causal_off_by_one(Eager):
    """A query does not attend to its own place."""

    def causal(self, n, m):
        return torch.ones(n, m, dtype=torch.bool).tril(m - n - 1)


@mistake(also="causal_off_by_one")  # a name for both directions
class window_off_by_one(Eager):
    """The band of a causal mask reaches one key too far: a query sees the key after it."""

    def causal(self, n, m):
        return torch.ones(n, m, dtype=torch.bool).tril(m - n + 1)


# ---- dropout


@mistake(variant="by its rate", options=RATE)
@mistake()
class f_drop_norescale(Eager):
    """Dropout without the 1/(1 - rate)."""

    def dropped(self, p, R):
        return p if R is None else p * (R != 0)


@mistake()
class dropout_ignored(Eager):
    """Dropout is ignored."""

    def dropped(self, p, R):
        return p


# ---- heads, axes, formats


@mistake(conventions={"groups": "blocks"})
class f_gqa_map(Eager):
    """Head h reads the keys and values h mod G, where h // (H/G) is meant."""

    def grouped(self, x, G):
        return x.unflatten(1, (-1, G)).transpose(1, 2)

    def ungrouped(self, x):
        return x.transpose(1, 2).flatten(1, 2)


@mistake()
class f_axis(Eager):
    """The softmax runs over the queries."""

    def weights(self, a, seen):
        return super().weights(a.mT, torch.broadcast_to(seen, a.shape).mT).mT


@mistake("O dQ dK dV dB")
class strides_of_K_for_V(Eager):
    """The rows of V are read as if they were as long as those of K."""

    def values(self, v, d_k):
        memory = v.flatten(2)
        places = torch.arange(v.shape[2])[:, None] * d_k + torch.arange(v.shape[3])
        return memory[..., places % memory.shape[-1]]


@mistake(also="hidden_leaks")  # 1e30 is infinite in float16
class half_precision_inside(Eager):
    """The softmax is computed in float16."""

    def weights(self, a, seen):
        return super().weights(a.half(), seen).to(a.dtype)


@mistake("dQ dK dB", name="D_missing", variant="detached")
class detached_normaliser(Eager):
    """The sum that normalises the weights is taken for a constant."""

    def weights(self, a, seen):
        a = torch.where(seen, a, -torch.inf)
        top = a.amax(-1, keepdim=True).detach()
        e = torch.exp(a - torch.where(top == -torch.inf, 0.0, top))
        total = e.sum(-1, keepdim=True).detach()
        return e / torch.where(total == 0, 1.0, total)


