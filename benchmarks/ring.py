"""Attention spread over ranks: how far it is from one process, what a rank sends, how many tiles it computes.

    python benchmarks/ring.py    all of it; bytes and tiles into attnmath/book/ring.json

What is measured, and how: benchmarks/README.md.
"""

import json
import sys
from itertools import product
from pathlib import Path

import torch

import attnmath

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))
from attnmath.torch.ring_messages import WIDTH
from ranks import ranks
from ring_cases import CASES, LAYOUTS, distances
from ring_faults import computed, formula, sent

RESULTS = Path(attnmath.__file__).parent / "book" / "ring.json"
MOST = 4  # ranks
SIZES = dict(h=2, n=96, m=96, d_k=16, d_v=16)
TOKENS, TILE = 192, 4
ALONE = {  # what is counted, less what comes before it
    "forward": ("forward", None), "backward": ("gradients", "forward"), "jvp": ("tangent", "forward"),
    "double backward": ("double_backward", "gradients"),
}  # fmt: skip


def equalities(some):
    print("Largest error of each derivative in float64, over layouts, ranks and 1 to 4 processes")
    worst = 0.0
    for case in CASES:
        found = {}
        for layout in LAYOUTS:
            for size in range(1, MOST + 1):
                for of_rank in some.run(size, distances, case, layout):
                    found = {name: max(error, found.get(name, 0.0)) for name, error in of_rank.items()}
        worst = max(worst, *found.values())
        print(f"  {case}: " + ", ".join(f"{name} {error:.0e}" for name, error in found.items()), flush=True)
    print(f"  of all: {worst:.0e}")


def costs(some):
    """The bytes that a rank sends for a pass alone, and their formula; the tiles of each under a causal mask."""
    rows = []
    for size in range(2, MOST + 1):
        counts = some.run(size, sent, "zigzag", torch.float64, SIZES)
        assert all(count == counts[0] for count in counts), "The ranks send different numbers of bytes."
        by_formula = {name: formula(name, size, itemsize=8, **SIZES) for name in counts[0]}
        for name, (whole, before) in ALONE.items():
            bytes_sent, wanted = (x[whole] - (x[before] if before else 0) for x in (counts[0], by_formula))
            rows.append(dict(derivative=name, ranks=size, sent=bytes_sent, formula=wanted, itemsize=8, **SIZES))
            print(f"{name}, {size} ranks: {bytes_sent} bytes are sent, {wanted} by the formula")
    tiles = []
    for layout, size in product(("contiguous", "zigzag"), (2, MOST)):
        of_ranks = some.run(size, computed, layout, TOKENS, TILE)
        tiles.append(dict(layout=layout, ranks=size, tiles=of_ranks, rows=TOKENS // TILE))
        print(f"{layout}: tiles of each rank {of_ranks}, {TOKENS // TILE} in a row")
    return dict(header=WIDTH, bytes=rows, tiles=tiles)


def main():
    with ranks(MOST, seconds=120) as some:
        equalities(some)
        RESULTS.write_text(json.dumps(costs(some), indent=1) + "\n")


if __name__ == "__main__":
    main()
