"""The way forward along a strip, with its tangent: from one tile of the keys to the next."""

import torch

from attnmath._torch._zeros import gather, rows


class Running:
    """Sums over the keys so far, each times exp(-c): c is the largest score of a row so far.

    s of the weights E; N of E times the values, which are V and V_dot side by side, of
    these what is needed; mu of F = E A_dot; U of F V. A row that is -inf so far has the
    least number there is for c, and sums of 0. O is the output if it is known.
    """

    def __init__(self, strip, v, values, O=None):
        work, (h, r, _) = strip.heads.work, strip.shape
        self.v, self.values, self.O, self.past, self.moves = v, values, O, [], False
        widths = [0 if values is None else values.shape[-1], v.shape[-1], 1, 1]
        like = dict(dtype=work.dtype, device=work.device)
        self.c = torch.full((h, r, 1), torch.finfo(work.dtype).min, **like)
        self.total = torch.zeros(h, r, sum(widths), **like)
        self.N, self.U, self.mu, self.s = self.total.split(widths, -1)

    def weights(self, A):
        """E = exp(A - c), in the place of A; c and the sums are brought up to date."""
        c = torch.maximum(self.c, A.amax(-1, keepdim=True))
        self.total *= self.c.sub_(c).exp_()
        self.c = c
        self.past.append(c.clone())
        return A.sub_(c).exp_()

    def add(self, tile, E, A_dot):
        """The part of one tile; F takes the place of A_dot, which is None if that is 0."""
        self.s += E.sum(-1, keepdim=True)
        gather(self.N, (tile.drop(E), rows(self.values, tile.keys)))
        self.moves = A_dot is not None
        if self.moves:
            F = A_dot.mul_(E)
            self.mu += F.sum(-1, keepdim=True)
            gather(self.U, (tile.drop(F), self.v[:, tile.keys]))

    def close(self, B):
        """Divides by s; a row that B hides stays 0.  -> O, O_dot"""
        if B is not None:
            self.s.masked_fill_(self.s == 0, 1)
        self.total[..., :-1] /= self.s
        O, moved = self.N.tensor_split([self.v.shape[-1]], -1) if self.O is None else (self.O, self.N)
        O_dot = self.U - self.mu * O
        return O, O_dot + moved if moved.shape[-1] else O_dot

    def softmax(self, tile, c):
        """P and its tangent, or None, in the place of what the tile kept as E and F."""
        share = (c - self.c).exp_().div_(self.s)
        P, F = tile.arrays[0].mul_(share), tile.arrays[1]
        return P, F.mul_(share).addcmul_(P, self.mu, value=-1) if self.moves else None
