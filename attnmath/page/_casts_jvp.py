"""The casts of forward mode: a head with dropout and its log-sum-exp, and two directions at once."""

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting
from attnmath.page._casts_layer import empty_row, last_row_empty, masked, masked_before


def _kept(change=lambda values, sizes: None):
    """The change, and factors of dropout, about a third of them zero."""

    def changed(values: dict, sizes: dict) -> None:
        change(values, sizes)
        draws = np.random.default_rng(sizes["m"]).integers(0, 3, values["R"].shape)
        values["R"] = np.where(draws > 0, 1.5, 0.0)

    return changed


def _no_dropout(values: dict, sizes: dict) -> None:
    values["R"] = np.ones_like(values["R"])


FORWARD = Cast(
    name="forward mode",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "R": Letter(("n", "m")),
        "A": Letter(("n", "m"), "eq:dropout_attention"),
        "P": Letter(("n", "m"), "eq:dropout_attention"),
        "L": Letter(("n", "1"), "eq:logsumexp"),
        "O": Letter(("n", "d_v"), "eq:dropout_attention"),
    },
    outputs=("O",),
    rows={"v": "V", "o": "O"},
    constants=("R",),
    settings=(
        Setting("random bias", 701, change=_kept()),
        Setting("no dropout", 702, change=_no_dropout),
        Setting("causal", 703, change=_kept(masked)),
        Setting("sizes in another order", 705, {"n": 5, "m": 3, "d_k": 2, "d_v": 4}, _kept()),
        Setting("n = m, the first keys hidden", 706, {"n": 5}, _kept(masked_before)),
    ),
)

# The tangent along one direction is an output, and moves along another.
SECOND_TANGENT = Cast(
    name="two directions",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "E^Q": Letter(("n", "d_k")),
        "E^K": Letter(("m", "d_k")),
        "E^V": Letter(("m", "d_v")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "A": Letter(("n", "m"), "eq:attention_map"),
        "P": Letter(("n", "m"), "eq:attention_map"),
        "O": Letter(("n", "d_v"), "eq:attention_map"),
        "U": Letter(("n", "m"), "prp:along"),
        "sigma": Letter(("n", "1"), "prp:along"),
        "F": Letter(("n", "m"), "prp:along"),
        "Y": Letter(("n", "d_v"), "prp:along"),
    },
    outputs=("O", "Y"),
    constants=("E^Q", "E^K", "E^V", "B", "gamma"),
    settings=(
        Setting("random bias", 711),
        Setting("causal", 712, change=masked),
        Setting("empty row", 713, change=empty_row),
        Setting("sizes in another order", 714, {"n": 5, "m": 3, "d_k": 4, "d_v": 6}, last_row_empty),
    ),
)
