"""Which tokens of a sequence stand on which rank."""

import torch
from torch import Tensor

LAYOUTS = "contiguous", "zigzag"


def positions(layout: str, n: int, ranks: int, rank: int) -> Tensor:
    """The places in the sequence, in order, of a rank's own tokens of n.  -> int64 (n_r,)

    contiguous: the sequence is cut into as many parts as there are ranks, part r for rank r.
    zigzag: it is cut into twice as many, and rank r has the parts r and 2 ranks - 1 - r, so
    that under a causal mask all have about the same work. Parts differ by one token at
    most; those with more come first.
    """
    if layout == "contiguous":
        return part(n, ranks, rank)
    if layout == "zigzag":
        return torch.cat([part(n, 2 * ranks, rank), part(n, 2 * ranks, 2 * ranks - 1 - rank)])
    raise ValueError(f"layout is {layout!r}; it needs to be one of {', '.join(map(repr, LAYOUTS))}")


def part(n: int, parts: int, number: int) -> Tensor:
    """The places in one of so many consecutive parts of n."""
    size, more = divmod(n, parts)
    start = number * size + min(number, more)
    return torch.arange(start, start + size + (number < more))
