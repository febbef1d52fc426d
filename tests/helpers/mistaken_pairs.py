"""Pairs of a forward and a backward in NumPy, as an author of a kernel has them; some in the layout
(b, n, H, d). Mistakes of formulas once more, and those of what is handed back.
"""

import numpy as np

from mistaken_program import planted

PAIRS = {}
TAKES = dict(mask="attn_mask", causal="is_causal", scale="scale", groups="enable_gqa")
BIASED = dict(TAKES, bias="bias")


def mistake(wrong="", kind="contract", options=TAKES, **more):
    return planted(PAIRS, wrong, kind=kind, options=options, **more)


class Pair:
    """Right as it stands: forward(q, k, v), backward(do, q, k, v) with nothing kept between them."""

    pair = True
    layout = "bhsd"

    def forward(self, q, k, v, **options):
        q, k, v = self.heads_first(q, k, v)
        return self.own_layout(self.weights(q, k, **options) @ self.repeated(v, q))

    def backward(self, do, q, k, v, bias=None, **options):
        do, q, k, v = self.heads_first(do, q, k, v)
        G, gamma = k.shape[1], self.gamma(q, options.get("scale"))
        p = self.weights(q, k, bias=bias, **options)
        k, v = self.repeated(k, q), self.repeated(v, q)
        dA = self.dA(p, do @ v.swapaxes(-1, -2))
        dQ, dK, dV = self.dQ(gamma, dA, k), gamma * (dA.swapaxes(-1, -2) @ q), p.swapaxes(-1, -2) @ do
        dK, dV = (x.reshape(x.shape[0], G, -1, *x.shape[2:]).sum(2) for x in (dK, dV))
        gradients = [self.own_layout(x) for x in (dQ, dK, dV)]
        return self.handed_back(*gradients) if bias is None else (*gradients, self.dB(dA, bias))

    def heads_first(self, *arrays):
        return [x.swapaxes(1, 2) for x in arrays] if self.layout == "bshd" else arrays

    def own_layout(self, x):
        return np.ascontiguousarray(x.swapaxes(1, 2)) if self.layout == "bshd" else x

    def repeated(self, x, q):
        return np.repeat(x, q.shape[1] // x.shape[1], axis=1)

    def gamma(self, q, scale):
        return q.dtype.type(q.shape[-1] ** -0.5 if scale is None else scale)

    def weights(self, q, k, attn_mask=None, bias=None, is_causal=False, scale=None, enable_gqa=False):
        a = self.gamma(q, scale) * (q @ self.repeated(k, q).swapaxes(-1, -2))
        a = a if bias is None else a + bias
        hidden = np.zeros(a.shape, bool)
        hidden |= False if attn_mask is None else ~attn_mask
        hidden |= ~np.tri(*a.shape[-2:], a.shape[-1] - a.shape[-2], dtype=bool) if is_causal else False
        a = np.where(hidden, -np.inf, a)
        top = a.max(-1, keepdims=True)
        e = np.exp(a - np.where(np.isneginf(top), 0, top).astype(a.dtype))
        total = e.sum(-1, keepdims=True)
        return e / np.where(total == 0, 1, total).astype(a.dtype)

    def dA(self, p, dP):
        return p * (dP - (p * dP).sum(-1, keepdims=True))

    def dQ(self, gamma, dA, k):
        return gamma * (dA @ k)

    def dB(self, dA, bias):
        extra = dA.ndim - bias.ndim
        axes = tuple(i for i in range(dA.ndim) if i < extra or bias.shape[i - extra] == 1 < dA.shape[i])
        return dA.sum(axes, keepdims=True).reshape(bias.shape)

    def handed_back(self, dQ, dK, dV):
        return dQ, dK, dV


# ---- formulas, once more


@mistake("dQ dK", kind="backward", name="D_missing", variant="NumPy, bshd", layout="bshd")
class PairDMissing(Pair):
    """The row term of softmax's derivative is left out."""

    layout = "bshd"

    def dA(self, p, dP):
        return p * dP


@mistake("dQ dK", kind="backward", name="D_mean", variant="NumPy")
class PairDMean(Pair):
    """np.mean in place of np.sum."""

    def dA(self, p, dP):
        return p * (dP - (p * dP).mean(-1, keepdims=True))


@mistake("dQ dK", kind="backward", name="D_wrong_axis", variant="NumPy")
class PairDAxis(Pair):
    """Summed over the queries in place of the keys."""

    def dA(self, p, dP):
        return p * (dP - (p * dP).sum(-2, keepdims=True))


@mistake("dQ", kind="backward", name="dQ_noscale", variant="NumPy, bshd", layout="bshd")
class PairNoScale(Pair):
    """dQ without the scale."""

    layout = "bshd"

    def dQ(self, gamma, dA, k):
        return dA @ k



# ---- what is handed back


@mistake("shape", options=BIASED)
class bias_not_reduced(Pair):
    """The gradient of a bias that all batch elements share is handed back for each."""

    def dB(self, dA, bias):
        return dA


@mistake("number")
class wrong_number(Pair):
    """Two gradients in place of three."""

    def handed_back(self, dQ, dK, dV):
        return dQ, dK


@mistake("shape dQ dK")
class wrong_order(Pair):
    """dK, dQ, dV."""

    def handed_back(self, dQ, dK, dV):
        return dK, dQ, dV


@mistake("reused")
class output_reused(Pair):
    """One buffer for the output of every call."""

    def __init__(self):
        self.buffer = np.empty(0)

    def forward(self, q, k, v, **options):
        o = super().forward(q, k, v, **options)
        if self.buffer.size < o.size or self.buffer.dtype != o.dtype:
            self.buffer = np.empty(o.size, o.dtype)
        out = self.buffer[: o.size].reshape(o.shape)
        out[...] = o
        return out


@mistake("dQ")
class accumulates_into_grad(Pair):
    """dQ is added to what the call before left."""

    def __init__(self):
        self.sums = {}

    def handed_back(self, dQ, dK, dV):
        key = dQ.shape, dQ.dtype
        self.sums[key] = self.sums.get(key, 0) + dQ
        return self.sums[key], dK, dV


@mistake("inputs", name="inputs_modified", variant="NumPy")
class PairModifies(Pair):
    """The output's gradient is scaled in place."""

    def backward(self, do, q, k, v, **options):
        gradients = super().backward(do, q, k, v, **options)
        do *= 2
        return gradients
