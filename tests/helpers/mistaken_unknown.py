"""Mistakes that are in no list: a checker cannot know their names, only that there is one, and where."""

import torch

from mistaken_forward import Eager
from mistaken_program import Program, planted
from mistaken_tiles import Tiled

UNKNOWN = {}


def mistake(wrong, **more):
    return planted(UNKNOWN, wrong, kind="unknown", **more)


@mistake("dV")
class dV_squared_weights(Program):
    """dV from the squares of the weights."""

    def dV(self, c):
        return self.dropped(c, c.p * c.p).mT @ c.do


@mistake("dQ dK dB")
class D_of_other_head(Program):
    """The row term of the head before."""

    def D(self, c):
        return super().D(c).roll(1, 1)


@mistake("dQ dK")
class scale_from_d_v(Program):
    """Back, the scale is the inverse root of d_v, where none is given."""

    def dQ(self, c):
        return super().dQ(c) * self.wrong(c)

    def dK(self, c):
        return super().dK(c) * self.wrong(c)

    def wrong(self, c):
        return (c.d_k / c.d_v) ** 0.5 if c.gamma == c.d_k**-0.5 else 1.0


@mistake("dK")
class dK_shifted_queries(Program):
    """dK with each query's neighbour."""

    def dK(self, c):
        return c.gamma * (c.dA.mT @ c.q.roll(1, -2))


@mistake("dQ dK dB")
class dropout_on_dA(Program):
    """Dropout is applied to dA in place of dP."""

    def dP(self, c):
        return c.do @ c.v.mT

    def dA(self, c):
        return self.dropped(c, super().dA(c))


@mistake("dQ dK dV dB")
class odd_rows_twice(Program):
    """Back, the weights of every other row are twice too large."""

    def weights(self, c):
        return super().weights(c) * (1 + torch.arange(c.n) % 2)[:, None]


@mistake("dQ")
class dQ_by_lengths(Program):
    """dQ times n/m."""

    def dQ(self, c):
        return super().dQ(c) * c.n / c.m


@mistake("dQ")
class dQ_clipped(Program):
    """The entries of dQ are clipped to 0.1."""

    def dQ(self, c):
        return super().dQ(c).clamp(-0.1, 0.1)


@mistake("dQ")
class even_tiles_only(Tiled):
    """dQ gathers from every other tile of keys."""

    def add_dQ(self, c, rows, keys, more):
        if keys.start // self.block % 2 == 0:
            super().add_dQ(c, rows, keys, more)


@mistake("dV")
class halves_exchanged(Tiled):
    """In the second tile of keys the halves of dV are exchanged."""

    def add_dV(self, c, rows, keys, more):
        super().add_dV(c, rows, keys, more.roll(more.shape[-2] // 2, -2) if keys.start == self.block else more)


@mistake("dQ dK dB")
class batch_stride(Program):
    """dP reads the values of the first batch element for the last."""

    def dP(self, c):
        v = torch.cat([c.v[:-1], c.v[:1]])
        return self.dropped(c, c.do @ v.mT)


@mistake("dV")
class odd_width(Program):
    """The last column of dV is not written when d_v is odd."""

    def dV(self, c):
        dV = super().dV(c)
        if c.d_v % 2:
            dV[..., -1] = 0
        return dV


@mistake("dQ dK dV dB")
class colder_back(Program):
    """Back, the weights are those of half the scores, normalised."""

    def weights(self, c):
        a = self.hidden(c, self.scores(c))
        p = torch.softmax(torch.where(a == -torch.inf, a, a / 2), -1)
        return torch.where(c.L == torch.inf, 0.0, p)


@mistake("dK")
class aliased(Program):
    """dQ is added to dK where both have the same shape."""

    def dK_shared(self, c, dK):
        dK = super().dK_shared(c, dK)
        return dK + c.gamma * (c.dA @ c.k) if dK.shape == c.Q.shape else dK


@mistake("dB")
class dB_absolute(Program):
    """The gradient of the bias without its signs."""

    def dB(self, c):
        return None if c.bias is None else super().dB(c).abs()


@mistake("O dQ dK dV dB")
class top_eight(Eager):
    """Only the eight largest weights of a row are kept, and normalised again."""

    def weights(self, a, seen):
        p = super().weights(a, seen)
        if p.shape[-1] <= 8:
            return p
        p = torch.where(p >= p.topk(8).values[..., -1:], p, 0.0)
        total = p.sum(-1, keepdim=True)
        return p / torch.where(total == 0, 1.0, total)


@mistake("O dQ dK dV dB")
class rough_exponential(Eager):
    """(1 + x/256)^256 for the exponential."""

    def weights(self, a, seen):
        top = torch.where(seen, a, -torch.inf).amax(-1, keepdim=True).detach()
        x = torch.where(seen, a - torch.where(top == -torch.inf, 0.0, top), 0.0)
        e = torch.where(seen, (1 + x / 256).clamp_min(0) ** 256, 0.0)
        total = e.sum(-1, keepdim=True)
        return e / torch.where(total == 0, 1.0, total)


@mistake("O dQ dK dV dB")
class one_more_in_the_sum(Eager):
    """One is added to the sum that normalises: a sink that nobody asked for."""

    def weights(self, a, seen):
        a = torch.where(seen, a, -torch.inf)
        top = a.amax(-1, keepdim=True).detach().clamp_min(0)
        e = torch.exp(a - top)
        return e / (e.sum(-1, keepdim=True) + torch.exp(-top))


@mistake("O dQ dK dV dB")
class keys_normalised(Eager):
    """The keys are brought to length one before they are used."""

    def __call__(self, q, k, v, **options):
        return super().__call__(q, k / k.norm(dim=-1, keepdim=True).clamp_min(1e-30), v, **options)


@mistake("O dQ dK dV dB")
class softcapped(Eager):
    """The scores pass through 5 tanh(a/5) before the masks."""

    def biased(self, a, bias, gamma):
        return 5 * torch.tanh(super().biased(a, bias, gamma) / 5)


@mistake("dK")
class group_weighted(Program):
    """In the sum over a group the first head counts twice."""

    def dK_shared(self, c, dK):
        extra = dK[:, :: c.H // c.G]
        return super().dK_shared(c, dK) + (extra if c.H > c.G else 0)


@mistake("O dQ dK dV dB")
class values_shifted(Eager):
    """With more than 16 keys, the weights meet the values of the key before."""

    def values(self, v, d_k):
        return v.roll(1, 2) if v.shape[2] > 16 else v
