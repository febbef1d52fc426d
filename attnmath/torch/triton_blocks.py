"""How many rows and keys a tile of each Triton kernel has, and how many warps work on it.

Chosen so that no compiled kernel spills registers, without options or with a causal mask: benchmarks/compiled.py,
whose table says what the others do. In float32, whose products hold a row of each factor in registers, no tile
that was tried does that for heads of 256, nor, of second derivatives, for heads of 128 on every chip; the strips
have those. Not tuned on a GPU.
"""

from typing import NamedTuple

import torch


class Blocks(NamedTuple):
    """Rows and keys of a tile; warps; how many steps of a loop are loaded ahead; registers of a thread."""

    rows: int
    keys: int
    warps: int = 8
    stages: int = 1
    registers: int | None = None


HALF = {  # 16 bits: by kernel and head size
    "forward": {64: Blocks(128, 64, 8, 2), 256: Blocks(64, 64, 8, 2)},
    "jvp": {32: Blocks(128, 64, 8, 2), 64: Blocks(64, 32, 8, 2), 128: Blocks(32, 32), 256: Blocks(16, 16, 4)},
    "rows": {64: Blocks(64, 32, 8, 2), 128: Blocks(32, 32), 256: Blocks(16, 16)},
    "columns": {32: Blocks(32, 64, 8, 2), 64: Blocks(64, 32, 8, 2), 128: Blocks(32, 32), 256: Blocks(16, 16)},
    "tiles": {32: Blocks(32, 32), 64: Blocks(32, 16), 256: Blocks(16, 16)},
}
FULL = {  # float32, whose products are not those of tensor cores
    "forward": {64: Blocks(64, 32), 128: Blocks(32, 16)},
    "jvp": {32: Blocks(32, 32, registers=255), 64: Blocks(32, 16), 128: Blocks(16, 16)},
    "rows": {32: Blocks(32, 16), 64: Blocks(8, 16, 4), 128: Blocks(16, 16)},
    "columns": {64: Blocks(32, 16), 128: Blocks(16, 16)},
    "tiles": {128: Blocks(16, 16)},
}


def blocks(kind: str, D: int, dtype: torch.dtype, more: bool = False) -> Blocks:
    """For heads of up to D, a power of two; more: with a bias or dropout, which need registers of their own."""
    table = (FULL if dtype == torch.float32 else HALF)[kind]
    if more and kind == "rows" and D == 64 and dtype != torch.float32:
        D = 128  # the tile of the next size
    return next(cut for size, cut in table.items() if D <= size)
