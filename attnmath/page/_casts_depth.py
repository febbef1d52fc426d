"""The casts of what stands around a layer: merged weights, a decoder of two layers, laws."""

from dataclasses import replace

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting
from attnmath.page._casts_layer import LAYER, empty_row, first_zero, last_row_empty, masked, no_value_bias

MERGED = Cast(
    name="merged",
    sizes={"n": 4, "m": 5, "d": 6, "d_z": 7, "d_k": 3, "d_v": 8, "H": 2},
    letters={
        "X": Letter(("n", "d")),
        "Z": Letter(("m", "d_z")),
        "W^Q": Letter(("H", "d", "d_k")),
        "W^K": Letter(("H", "d_z", "d_k")),
        "W^V": Letter(("H", "d_z", "d_v")),
        "W^O": Letter(("H", "d_v", "d")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "M": Letter(("H", "d", "d_z"), "prp:merged"),
        "N": Letter(("H", "d_z", "d"), "prp:merged"),
        "A": Letter(("H", "n", "m"), "prp:merged"),
        "P": Letter(("H", "n", "m"), "prp:merged"),
        "Y": Letter(("n", "d"), "prp:merged"),
    },
    outputs=("Y",),
    settings=(
        Setting("random bias", 101),
        Setting("empty row", 102, change=empty_row),
        Setting(
            "sizes in another order", 103,
            {"n": 6, "m": 5, "d": 4, "d_z": 3, "d_k": 8, "d_v": 2, "H": 7}, last_row_empty,
        ),
    ),
)  # fmt: skip

DECODER = Cast(
    name="decoder",
    sizes={"n": 4, "m": 5, "d": 6, "d_z": 7, "d_k": 3, "d_v": 8, "layers": 2},
    letters={
        "X": Letter(("n", "d")),
        "Z": Letter(("m", "d_z")),
        "W^Q": Letter(("layers", "d", "d_k")),
        "W^K": Letter(("layers", "d_z", "d_k")),
        "W^V": Letter(("layers", "d_z", "d_v")),
        "W^O": Letter(("layers", "d_v", "d")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "K": Letter(("layers", "m", "d_k"), "prp:decoder"),
        "V": Letter(("layers", "m", "d_v"), "prp:decoder"),
        "Q": Letter(("n", "d_k"), "prp:decoder"),
        "X'": Letter(("n", "d"), "prp:decoder"),
        "Q'": Letter(("n", "d_k"), "prp:decoder"),
        "X''": Letter(("n", "d"), "prp:decoder"),
    },
    outputs=("X''",),
    settings=(
        Setting("random bias", 111),
        Setting("empty row", 112, change=empty_row),
        Setting("causal", 113, change=masked),
        Setting(
            "sizes in another order", 114,
            {"n": 6, "m": 5, "d": 4, "d_z": 3, "d_k": 8, "d_v": 7}, last_row_empty,
        ),
    ),
)  # fmt: skip


def _short_step(setting: Setting) -> Setting:
    """Whose gradient, times the length of the step, is not large beside the weights."""

    def change(values: dict, sizes: dict) -> None:
        setting.change(values, sizes)
        values["eta"] = values["eta"] / 8

    return replace(setting, change=change)


STEP = replace(
    LAYER,
    name="step",
    letters={**LAYER.letters, "eta": Letter(("1", "1"))},
    settings=tuple(
        map(_short_step, (*LAYER.settings, Setting("no value bias in one head", 127, change=no_value_bias)))
    ),
)


def _no_bias(values: dict, sizes: dict) -> None:
    values["B"] = np.zeros_like(values["B"])


GAUGE = Cast(
    name="gauge",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "E": Letter(("d_k", "d_k")),
        "F": Letter(("d_v", "d_v")),
        "A": Letter(("n", "m"), "eq:attention_map"),
        "P": Letter(("n", "m"), "eq:attention_map"),
        "O": Letter(("n", "d_v"), "eq:attention_map"),
    },
    outputs=("O",),
    rows={"q": "Q", "k": "K", "v": "V", "o": "O"},
    settings=(
        Setting("random bias, but for the first query", 121, change=first_zero("B")),
        Setting("no bias", 122, change=_no_bias),
        Setting("causal", 123, change=masked),
        Setting("empty row", 124, change=empty_row),
        Setting("sizes in another order", 125, {"n": 4, "m": 3, "d_k": 5, "d_v": 2}, last_row_empty),
    ),
)
