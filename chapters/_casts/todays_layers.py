"""Rows that are turned in one layout, and the same rows in the order of another."""

import numpy as np

from attnmath.page.scenes.cast import Cast, counts, drawn, made
from attnmath.page.scenes.settings import Change, setting

from .positions import paired


def reordered(values: dict, sizes: dict) -> None:
    """First the first features of all pairs, then the second ones: from neighbours to halves."""
    values["Pi"] = np.eye(sizes["d_k"])[:, [*range(0, sizes["d_k"], 2), *range(1, sizes["d_k"], 2)]]


def rolled(values: dict, sizes: dict) -> None:
    """Every feature one place further."""
    values["Pi"] = np.roll(np.eye(sizes["d_k"]), 1, axis=1)


def places(values: dict, sizes: dict) -> None:
    """Positions in no order."""
    values["t"] = (np.arange(sizes["n"]) * 5 % 7)[:, None] + 1.0


def in_order(name: str, seed: int, layout: str, order: Change, **sizes: int):
    return setting(name, seed, paired("d_k", layout), places, order, **sizes)


CASTS = (
    Cast(
        name="a head in two layouts",
        sizes={"n": 3, "d_k": 4, "r": 2},
        letters=drawn("Q, theta") | counts("t") | drawn("N, J, Pi")
        | made("N', J'", "prp:layout_change"),
        constants=("t", "N", "J", "Pi"),
        settings=(
            in_order("from neighbours to halves", 481, "interleaved", reordered),
            in_order("from halves to another order", 482, "half_split", rolled),
            in_order("a part of the features", 483, "interleaved", rolled, n=4, d_k=6, r=2),
        ),
    ),
)
