"""The softmax of a strip from one tile of the keys to the next."""

import torch


class Running:
    """Sums over the keys so far, each times exp(-c): c is the largest score of a row so far.

    The last sum is s, that of the weights E; the others have the widths that are asked
    for. A row that is -inf so far has the least number there is for c, and sums of 0.
    """

    def __init__(self, strip, *widths):
        work, (h, r, _) = strip.heads.work, strip.shape
        like = dict(dtype=work.dtype, device=work.device)
        self.past, self.c = [], torch.full((h, r, 1), torch.finfo(work.dtype).min, **like)
        self.total = torch.zeros(h, r, sum(widths) + 1, **like)
        *self.sums, self.s = self.total.split([*widths, 1], -1)

    def weights(self, A):
        """E = exp(A - c), in the place of A; c and the sums are brought up to date."""
        c = torch.maximum(self.c, A.amax(-1, keepdim=True))
        self.total *= self.c.sub_(c).exp_()
        self.c = c
        self.past.append(c.clone())
        E = A.sub_(c).exp_()
        self.s += E.sum(-1, keepdim=True)
        return E

    def close(self, B):
        """Divides the sums by s; in a row that B hides they stay 0."""
        if B is not None:
            self.s.masked_fill_(self.s == 0, 1)
        self.total[..., :-1] /= self.s

    def share(self, c):
        """What makes P of the weights of a tile, which had this c."""
        return (c - self.c).exp_().div_(self.s)
