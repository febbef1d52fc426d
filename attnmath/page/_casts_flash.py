"""The casts of attention from tiles: pieces of a head, two parts merged, a cache, documents."""

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting
from attnmath.page._casts_layer import masked, masked_before


def _tiled(change=lambda values, sizes: None):
    """The change, the keys of each tile, and factors of dropout, some of them zero."""

    def changed(values: dict, sizes: dict) -> None:
        change(values, sizes)
        for name in "QKc":  # so that no exponential is large
            values[name] = values[name] / 2
        tile = np.arange(sizes["m"]) // sizes["tile"]
        values["chi"] = 1.0 * (tile == np.arange(sizes["T"])[:, None])[:, None, :]
        draws = np.random.default_rng(sizes["m"]).integers(0, 3, values["R"].shape)
        values["R"] = np.where(draws > 0, 1.5, 0.0)

    return changed


def _no_dropout(values: dict, sizes: dict) -> None:
    _tiled()(values, sizes)
    values["R"] = np.ones_like(values["R"])


TILES = Cast(
    name="tiles",
    sizes={"n": 5, "m": 7, "d_k": 3, "d_v": 6, "T": 2, "tile": 4},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "c": Letter(("n", "1")),
        "chi": Letter(("T", "1", "m"), "mask"),
        "R": Letter(("n", "m")),
        "A": Letter(("n", "m"), "eq:flash_attention"),
        "s": Letter(("T", "n", "1"), "eq:flash_attention"),
        "N": Letter(("T", "n", "d_v"), "eq:flash_attention"),
        "L": Letter(("n", "1"), "eq:flash_attention"),
        "O": Letter(("n", "d_v"), "eq:flash_attention"),
        "P": Letter(("n", "m"), "eq:attention_map"),
    },
    outputs=("O", "L"),
    rows={"o": "O"},
    names={"chi": "tile"},
    constants=("chi", "R"),
    has_second=True,
    settings=(
        Setting("random bias", 801, change=_tiled()),
        Setting("causal: tiles without a key", 802, change=_tiled(masked)),
        Setting("no dropout", 803, change=_no_dropout),
        Setting(
            "sizes in another order", 804,
            {"n": 4, "m": 8, "d_k": 5, "d_v": 2, "T": 3, "tile": 3}, _tiled(masked),
        ),
        Setting("n = m, the first keys hidden", 805, {"n": 7}, _tiled(masked_before)),
    ),
)  # fmt: skip


def _one_side(values: dict, sizes: dict) -> None:
    """A query that has no key on one side, another none on the other."""
    values["A'"][1] = values["A''"][2] = -np.inf


def _some_hidden(values: dict, sizes: dict) -> None:
    values["A'"][0, 1] = values["A''"][1, :2] = -np.inf


PARTS = Cast(
    name="two parts",
    sizes={"n": 4, "m": 5, "d_v": 2},
    letters={
        "A'": Letter(("n", "m")),
        "V'": Letter(("m", "d_v")),
        "A''": Letter(("n", "m")),
        "V''": Letter(("m", "d_v")),
        "P'": Letter(("n", "m"), "prp:merge_parts"),
        "P''": Letter(("n", "m"), "prp:merge_parts"),
        "L'": Letter(("n", "1"), "prp:merge_parts"),
        "L''": Letter(("n", "1"), "prp:merge_parts"),
        "O'": Letter(("n", "d_v"), "prp:merge_parts"),
        "O''": Letter(("n", "d_v"), "prp:merge_parts"),
        "L": Letter(("n", "1"), "eq:merge"),
        "O": Letter(("n", "d_v"), "eq:merge"),
    },
    outputs=("O", "L"),
    rows={"v'": "V'", "v''": "V''", "o'": "O'", "o''": "O''", "o": "O"},
    names={"O'": "O_a", "L'": "L_a", "O''": "O_b", "L''": "L_b", "w'": "w_a", "w''": "w_b"},
    settings=(
        Setting("random", 811),
        Setting("some scores hidden", 812, change=_some_hidden),
        Setting("queries without a key on one side", 813, change=_one_side),
        Setting("sizes in another order", 814, {"n": 5, "m": 3, "d_v": 4}, _one_side),
    ),
)


def _calm(values: dict, sizes: dict) -> None:
    for name in "QK":
        values[name] = values[name] / 2


CACHE = Cast(
    name="a cache",
    sizes={"n": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("n", "d_k")),
        "V": Letter(("n", "d_v")),
        "gamma": Letter(("1", "1")),
        "A": Letter(("n", "n"), "prp:cache"),
        "P": Letter(("n", "n"), "prp:cache"),
        "O": Letter(("n", "d_v"), "prp:cache"),
    },
    outputs=("O",),
    rows={"q": "Q", "k": "K", "v": "V", "o": "O"},
    settings=(
        Setting("random", 821, change=_calm),
        Setting("random again", 822, change=_calm),
        Setting("sizes in another order", 823, {"n": 3, "d_k": 4, "d_v": 6}, _calm),
    ),
)


def _packed(values: dict, sizes: dict) -> None:
    """Documents one after the other; in each, a causal mask."""
    n, count = sizes["n"], sizes["T"]
    document = np.arange(n) * count // n
    values["E"] = 1.0 * (document == np.arange(count)[:, None])
    own = (document[:, None] == document) & np.tri(n, dtype=bool)
    values["B"] = np.where(own, values["B"], -np.inf)


PACKED = Cast(
    name="packed documents",
    sizes={"n": 7, "d_k": 3, "d_v": 2, "T": 4},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("n", "d_k")),
        "V": Letter(("n", "d_v")),
        "B": Letter(("n", "n")),
        "gamma": Letter(("1", "1")),
        "E": Letter(("T", "n"), "mask"),
        "A": Letter(("n", "n"), "eq:attention_map"),
        "P": Letter(("n", "n"), "eq:attention_map"),
        "O": Letter(("n", "d_v"), "eq:attention_map"),
    },
    outputs=("O",),
    constants=("E",),
    settings=(
        Setting("four documents", 831, change=_packed),
        Setting("three documents", 832, {"n": 5, "T": 3, "d_k": 4, "d_v": 6}, _packed),
        Setting("two documents", 833, {"n": 5, "T": 2, "d_v": 6}, _packed),
    ),
)

FLASH = (TILES, PARTS, CACHE, PACKED)
