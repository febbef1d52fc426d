"""Mistakes of the way back in what is shared, hidden or dropped; the output is right."""

import torch

from mistaken_program import RATE, Program, gathered, lower_right, planted, read_transposed, summed_to, upper_left

SUMS = {}


def mistake(wrong, **more):
    return planted(SUMS, wrong, **more)


# ---- bias


@mistake("dB")
class dB_transposed(Program):
    """The gradient of the bias with its strides exchanged (its transpose, when n = m)."""

    def dB(self, c):
        return None if c.bias is None else summed_to(read_transposed(c.dA), c.bias.shape)


@mistake("dB")
class dB_batch0(Program):
    """The gradient of the bias of the first batch element, for all."""

    def dB(self, c):
        if c.bias is None or c.bias.ndim == 4 and c.bias.shape[0] == c.b > 1:
            return super().dB(c)
        return summed_to(c.dA[:1], c.bias.shape)


@mistake("dB")
class dB_mean(Program):
    """The mean over the batch in place of the sum."""

    def dB(self, c):
        if c.bias is None or c.bias.ndim == 4 and c.bias.shape[0] == c.b > 1:
            return super().dB(c)
        return summed_to(c.dA.mean(0, keepdim=True), c.bias.shape)


@mistake("dB")
class dB_scaled(Program):
    """The scale of the scores is multiplied into the gradient of the bias."""

    def dB(self, c):
        return None if c.bias is None else c.gamma * super().dB(c)


@mistake("dB", also="dB_zero")
class bias_missing(Program):
    """The bias has no gradient: zero."""

    def dB(self, c):
        return None if c.bias is None else torch.zeros_like(c.bias)


# ---- groups


@mistake("dK dV")
class gqa_last(Program):
    """The last head of each group overwrites what the others gave."""

    def dK_shared(self, c, dK):
        return dK[:, c.H // c.G - 1 :: c.H // c.G].contiguous()

    dV_shared = dK_shared


@mistake("dK dV")
class gqa_first(Program):
    """Only the first head of each group gives to the shared keys and values."""

    def dK_shared(self, c, dK):
        return dK[:, :: c.H // c.G].contiguous()

    dV_shared = dK_shared


@mistake("dK dV")
class gqa_mean(Program):
    """The mean over the group in place of the sum."""

    def dK_shared(self, c, dK):
        return gathered(dK, c.G) * c.G / c.H

    dV_shared = dK_shared


@mistake("dQ dK dV dB")
class gqa_map_bwd(Program):
    """Back, head h reads the keys and values h mod G; forward it was h // (H/G)."""

    def keys(self, c):
        return c.K.repeat(1, c.H // c.G, 1, 1)

    def values(self, c):
        return c.V.repeat(1, c.H // c.G, 1, 1)

    def dK_shared(self, c, dK):
        return dK.view(c.b, c.H // c.G, c.G, *dK.shape[2:]).sum(1)

    dV_shared = dK_shared


# ---- masks


@mistake("dQ dK dV dB")
class align_bwd(Program):
    """Causal to the lower right forward, to the upper left back."""

    def hidden_back(self, c, a):
        a = a if c.keep is None else torch.where(c.keep, a, -torch.inf)
        return a if c.causal is None else torch.where(upper_left(c.n, c.m), a, -torch.inf)


@mistake("dQ dK dV dB")
class no_mask_bwd(Program):
    """The masks are forgotten on the way back."""

    def hidden_back(self, c, a):
        return a


@mistake("dQ dK dV dB")
class causal_always_bwd(Program):
    """The way back hides what is to the right, asked or not."""

    def hidden_back(self, c, a):
        return torch.where(lower_right(c.n, c.m), self.hidden(c, a), -torch.inf)


@mistake("dQ dK dV dB")
class no_bias_bwd(Program):
    """The bias is forgotten where the weights are computed again."""

    def scores_back(self, c):
        return c.gamma * (c.q @ c.k.mT)


# ---- dropout


@mistake("dQ dK dV dB", options=RATE)
class drop_not_replayed(Program):
    """The way back draws a dropout mask of its own."""

    def dropped_back(self, c, p):
        if not c.rate:
            return p
        if not hasattr(c, "R_back"):
            c.R_back = self.draw(p.shape, c.rate, p)
        return p * c.R_back


@mistake("dQ dK dV dB")
class drop_ignored_bwd(Program):
    """No dropout on the way back."""

    def dropped_back(self, c, p):
        return p


@mistake("dQ dK dV dB")
class drop_norescale_bwd(Program):
    """The 1/(1 - rate) is missing on the way back."""

    def dropped_back(self, c, p):
        return p if c.R is None else p * (c.R != 0)


@mistake("dV")
class dV_nodrop(Program):
    """dV from the weights before dropout."""

    def dV(self, c):
        return c.p.mT @ c.do
