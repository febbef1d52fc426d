"""The bug museum: a head, and what goes wrong on the way back."""

import numpy as np

from attnmath.page.scenes.cast import drawn, masks
from attnmath.page.scenes.settings import empty_row, last_row_empty, setting, zero, zero_at

from ._head import HEAD


def tile(values: dict, sizes: dict) -> None:
    """The last two keys are those that are left out."""
    values["chi"] = (np.arange(sizes["m"]) < sizes["m"] - 2).astype(float)[None, :]


BUGS = HEAD.plus(
    drawn("alpha, E") | masks("chi"),
    name="bugs",
    settings=(
        setting("random bias, but for the first query", 601, tile, zero_at("B", 0)),
        setting("empty row", 602, tile, empty_row),
        setting("sizes in another order", 603, tile, last_row_empty, n=3, m=6, d_k=2, d_v=5),
        setting("no bias", 605, tile, zero("B")),
        setting("n = m, no bias", 604, tile, zero("B"), n=5),
    ),
)

CASTS = BUGS, "dropout"
