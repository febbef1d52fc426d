"""The factors of dropout: drawn again, strip by strip, from one seed."""

from math import prod

import torch


class Draws:
    """One seed for each head and each block of rows, all from the seed of the call."""

    def __init__(self, how, lead, blocks, device):
        self.lead, self.keep = lead, 1 - how.dropout
        source = torch.Generator("cpu").manual_seed(int(how.seed))
        self.seeds = torch.randint(2**62, (prod(lead), blocks), generator=source, device="cpu")
        self.generator = torch.Generator(device)

    def fill(self, R, heads, block):
        """R (h, rows, keys): 0 at the rate of dropout, 1 / (1 - rate) elsewhere."""
        which = torch.arange(prod(self.lead), device="cpu").view(*self.lead, 1, 1)
        which = heads.own(which).expand(*heads.shape, 1, 1).flatten()
        for r, seed in zip(R, self.seeds[which, block].tolist()):
            r.uniform_(generator=self.generator.manual_seed(seed))
        R.lt_(self.keep)
        if self.keep:
            R /= self.keep
