"""How many rows and keys a tile of each Triton kernel has, and how many warps work on it."""

from typing import NamedTuple

import torch


class Blocks(NamedTuple):
    """Rows and keys of a tile; warps; how many steps of a loop are loaded ahead."""

    rows: int
    keys: int
    warps: int = 4
    stages: int = 1


SMALL: Blocks | None = None  # for every kernel, in the place of the table


def blocks(kind: str, D: int, dtype: torch.dtype) -> Blocks:
    """For head sizes up to D, a power of two."""
    if SMALL is not None:
        return SMALL
    return Blocks(32, 32)
