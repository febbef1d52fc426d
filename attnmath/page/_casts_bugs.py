"""The cast of the bug museum: a head, and what goes wrong on the way back."""

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting
from attnmath.page._casts_layer import empty_row, first_zero, last_row_empty, together


def _tile(values: dict, sizes: dict) -> None:
    """The last two keys are those that are left out."""
    values["chi"] = (np.arange(sizes["m"]) < sizes["m"] - 2).astype(float)[None, :]


def _tile_and_empty_row(values: dict, sizes: dict) -> None:
    _tile(values, sizes)
    empty_row(values, sizes)


def _tile_and_last_row_empty(values: dict, sizes: dict) -> None:
    _tile(values, sizes)
    last_row_empty(values, sizes)


def _no_bias(values: dict, sizes: dict) -> None:
    _tile(values, sizes)
    values["B"] = np.zeros_like(values["B"])


BUGS = Cast(
    name="bugs",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "alpha": Letter(("1", "1")),
        "E": Letter(("n", "m")),
        "chi": Letter(("1", "m"), "mask"),
        "A": Letter(("n", "m"), "eq:attention_map"),
        "P": Letter(("n", "m"), "eq:attention_map"),
        "L": Letter(("n", "1"), "eq:attention_map"),
        "O": Letter(("n", "d_v"), "eq:attention_map"),
        "D": Letter(("n", "1"), "prp:row_statistic"),
    },
    outputs=("O",),
    rows={"q": "Q", "k": "K", "v": "V", "o": "O"},
    settings=(
        Setting("random bias, but for the first query", 601, change=together(_tile, first_zero("B"))),
        Setting("empty row", 602, change=_tile_and_empty_row),
        Setting(
            "sizes in another order", 603, {"n": 3, "m": 6, "d_k": 2, "d_v": 5}, _tile_and_last_row_empty
        ),
        Setting("no bias", 605, change=_no_bias),
        Setting("n = m, no bias", 604, {"n": 5}, _no_bias),
    ),
)
