"""How a head is to be computed: what stands beside its tensors, and does not move."""

from typing import NamedTuple

import torch


class How(NamedTuple):
    """The constants of a head: scale, causal mask (upper-left), dropout rate, its seed.

    seed () is a whole number in a tensor; None without dropout. The factors of dropout
    are drawn again from it, strip by strip, whenever they are needed.
    """

    scale: float
    causal: bool = False
    dropout: float = 0.0
    seed: torch.Tensor | None = None
