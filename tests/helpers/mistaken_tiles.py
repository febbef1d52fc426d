"""Attention in tiles, as in FlashAttention, and the mistakes that only tiles can have."""

import torch

from mistaken_program import Program, planted, spread, summed_to, wide

TILES = {}


def mistake(wrong, **more):
    return planted(TILES, wrong, kind="tile", **more)


class Tiled(Program):
    """Right as it stands: tiles of rows and keys, the last ones shorter; the log-sum-exp is kept."""

    block = 16

    def tiles(self, length):
        return [slice(i, min(i + self.block, length)) for i in range(0, length, self.block)]

    def part(self, x, rows, keys):
        """This tile of something that broadcasts against the scores."""
        if x is None:
            return None
        x = x[..., rows, :] if x.shape[-2] > 1 else x
        return x[..., keys] if x.shape[-1] > 1 else x

    def tile(self, c, rows, keys):
        """The scores of a tile, -inf where hidden."""
        a = c.gamma * (c.q[..., rows, :] @ c.k[..., keys, :].mT)
        a = a if c.bias is None else a + self.part(c.bias, rows, keys)
        for seen in c.keep, c.causal:
            a = a if seen is None else torch.where(self.part(seen, rows, keys), a, -torch.inf)
        return wide(a)

    # ---- forward

    def forward(self, c):
        c.q, c.k, c.v = c.Q, spread(c.K, c.H), spread(c.V, c.H)
        c.o, c.L = c.v.new_empty(*c.q.shape[:3], c.d_v), wide(c.q).new_empty(*c.q.shape[:3], 1)
        for rows in self.tiles(c.n):
            top, total, o = -torch.inf, 0.0, 0.0
            for keys in self.tiles(c.m):
                a = self.tile(c, rows, keys)
                higher = a.amax(-1, keepdim=True).clamp_min(top) if isinstance(top, float) else torch.maximum(top, a.amax(-1, keepdim=True))
                fix = torch.where(higher == -torch.inf, 0.0, higher)
                p, shrink = torch.exp(a - fix), torch.exp(top - fix)
                total = total * shrink + p.sum(-1, keepdim=True)
                o = self.merged(o, shrink, self.dropped_tile(c, p.to(c.q.dtype), rows, keys) @ c.v[..., keys, :])
                top = higher
            empty = total == 0
            c.o[..., rows, :] = o / torch.where(empty, 1.0, total)
            c.L[..., rows, :] = torch.where(empty, torch.inf, fix + torch.log(total))
        return c.o

    def merged(self, o, shrink, more):
        return o * shrink + more

    def dropped_tile(self, c, p, rows, keys):
        return p if c.R is None else p * self.part(c.R, rows, keys)

    # ---- backward

    def backward(self, c, do):
        c.do = do
        c.D = (do * c.o).sum(-1, keepdim=True)
        c.dQ, c.dK, c.dV = (torch.zeros_like(wide(x)) for x in (c.q, c.k, c.v))
        c.dB = c.q.new_zeros(c.b, c.H, c.n, c.m)
        for keys in self.tiles(c.m):
            for rows in self.tiles(c.n):
                self.back(c, rows, keys)
        dB = None if c.bias is None else summed_to(c.dB, c.bias.shape)
        dK, dV = self.dK_shared(c, c.dK), self.dV_shared(c, c.dV)
        return *(x.to(c.q.dtype) for x in (c.dQ, dK, dV)), dB

    def back(self, c, rows, keys):
        p, do = self.weights_tile(c, rows, keys).to(c.q.dtype), c.do[..., rows, :]
        dP = self.dropped_tile(c, do @ c.v[..., keys, :].mT, rows, keys)
        dA = p * (dP - c.D[..., rows, :])
        c.dB[..., rows, keys] = dA
        self.add_dV(c, rows, keys, self.dropped_tile(c, p, rows, keys).mT @ do)
        self.add_dK(c, rows, keys, c.gamma * (dA.mT @ c.q[..., rows, :]))
        self.add_dQ(c, rows, keys, c.gamma * (dA @ c.k[..., keys, :]))

    def weights_tile(self, c, rows, keys):
        return torch.exp(self.tile(c, rows, keys) - c.L[..., rows, :])

    def add_dV(self, c, rows, keys, more):
        c.dV[..., keys, :] += more

    def add_dK(self, c, rows, keys, more):
        c.dK[..., keys, :] += more

    def add_dQ(self, c, rows, keys, more):
        c.dQ[..., rows, :] += more


@mistake("O dQ dK dB")
class f_merge(Tiled):
    """Where a later tile has the larger score, what was gathered before is not scaled down."""

    def merged(self, o, shrink, more):
        return o + more


@mistake("dQ dK dV dB")
class local_lse(Tiled):
    """Back, the weights are normalised within each tile of keys."""

    def weights_tile(self, c, rows, keys):
        a = self.tile(c, rows, keys)
        L = torch.logsumexp(a, -1, keepdim=True)
        return torch.exp(a - torch.where(L == -torch.inf, torch.inf, L))


@mistake("dQ dK dB")
class last_tile(Tiled):
    """The last of several tiles of keys gives nothing to dA."""

    def back(self, c, rows, keys):
        kept = c.dQ.clone(), c.dK.clone(), c.dB.clone()
        super().back(c, rows, keys)
        if keys.start > 0 and keys.stop == c.m:
            c.dQ, c.dK, c.dB = kept


@mistake("dV")
class last_tile_dV(Tiled):
    """The last of several tiles of keys gets no dV."""

    block = 32

    def add_dV(self, c, rows, keys, more):
        if keys.start == 0 or keys.stop < c.m:
            super().add_dV(c, rows, keys, more)


@mistake("dK")
class dK_overwrite(Tiled):
    """Each tile of queries overwrites dK in place of adding to it."""

    block = 32

    def add_dK(self, c, rows, keys, more):
        c.dK[..., keys, :] = more


@mistake("dQ")
class dQ_overwrite(Tiled):
    """Each tile of keys overwrites dQ in place of adding to it."""

    def add_dQ(self, c, rows, keys, more):
        c.dQ[..., rows, :] = more


@mistake("dK dV")
class fp16_acc(Tiled):
    """dK and dV are summed in float16."""

    def add_dV(self, c, rows, keys, more):
        c.dV[..., keys, :] = (c.dV[..., keys, :].half() + more.half()).to(more.dtype)

    def add_dK(self, c, rows, keys, more):
        c.dK[..., keys, :] = (c.dK[..., keys, :].half() + more.half()).to(more.dtype)


@mistake("dQ")
class tail_rows_zero(Tiled):
    """A last tile of fewer than 16 queries is not written to dQ."""

    def add_dQ(self, c, rows, keys, more):
        if rows.stop - rows.start == self.block:
            super().add_dQ(c, rows, keys, more)


@mistake("dQ dK dV dB")
class tail_keys_dropped(Tiled):
    """Back, the loop over keys runs over full tiles only."""

    def back(self, c, rows, keys):
        if keys.stop - keys.start == self.block:
            super().back(c, rows, keys)


@mistake("dQ")
class lse_overflow(Tiled):
    """The last tile is filled up with keys of zero whose scores are 0, not -inf: exp(0 - L) overflows."""

    def back(self, c, rows, keys):
        super().back(c, rows, keys)
        short = self.block - (keys.stop - keys.start)
        if short:
            p = torch.exp(-c.L[..., rows, :]).expand(-1, -1, -1, short)
            dA = p * (0 - c.D[..., rows, :])
            self.add_dQ(c, rows, keys, c.gamma * (dA @ c.k.new_zeros(short, c.d_k)))
