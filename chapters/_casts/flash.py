"""Attention from tiles: pieces of a head, two parts merged, a cache, documents."""

import numpy as np

from attnmath.page.scenes.cast import Cast, drawn, made, masks, rows
from attnmath.page.scenes.settings import divided, hidden, masked, masked_before, setting, three

from ._dropout import dropped, no_dropout

calm = divided(2, "Q", "K")  # so that no exponential is large


def tiled(values: dict, sizes: dict) -> None:
    """The keys of each tile, a small reference, and factors of dropout."""
    divided(2, "Q", "K", "c")(values, sizes)
    tile = np.arange(sizes["m"]) // sizes["tile"]
    values["chi"] = 1.0 * (tile == np.arange(sizes["T"])[:, None])[:, None, :]
    dropped(values, sizes)


TILES = Cast(
    name="tiles",
    sizes={"n": 5, "m": 7, "d_k": 3, "d_v": 6, "T": 2, "tile": 4},
    letters=drawn("Q, K, V, B, gamma, c") | masks("chi") | drawn("R") | made("A, s, N, L, O")
    | made("P", "eq:attention_map"),
    outputs=("O", "L"),
    rows=rows("o"),
    names={"chi": "tile"},
    constants=("chi", "R"),
    has_second=True,
    settings=(
        setting("random bias", 801, tiled),
        setting("causal: tiles without a key", 802, masked, tiled),
        setting("no dropout", 803, tiled, no_dropout),
        setting("sizes in another order", 804, masked, tiled, n=4, m=8, d_k=5, d_v=2, T=3, tile=3),
        setting("n = m, the first keys hidden", 805, masked_before, tiled, n=7),
    ),
)

# A query that has no key on one side, another none on the other.
one_side = hidden("A'", 1), hidden("A''", 2)

PARTS = Cast(
    name="two parts",
    sizes={"n": 4, "m": 5, "d_v": 2},
    letters=drawn("A', V', A'', V''") | made("P', P'', L', L'', O', O''") | made("L, O"),
    outputs=("O", "L"),
    rows=rows("v', v'', o', o'', o"),
    names={"O'": "O_a", "L'": "L_a", "O''": "O_b", "L''": "L_b", "w'": "w_a", "w''": "w_b"},
    settings=(
        setting("random", 811),
        setting("some scores hidden", 812, hidden("A'", (0, 1)), hidden("A''", np.s_[1, :2])),
        setting("queries without a key on one side", 813, *one_side),
        setting("sizes in another order", 814, *one_side, n=5, m=3, d_v=4),
    ),
)

CACHE = Cast(
    name="a cache",
    sizes={"n": 5, "d_k": 3, "d_v": 2},
    letters=drawn("Q, K, V, gamma") | made("A, P, O"),
    outputs=("O",),
    rows=rows("q, k, v, o"),
    same={"m": "n"},
    settings=three(821, calm, n=3, d_k=4, d_v=6),
)


def packed(values: dict, sizes: dict) -> None:
    """Documents one after the other; in each, a causal mask."""
    n, count = sizes["n"], sizes["T"]
    document = np.arange(n) * count // n
    values["E"] = 1.0 * (document == np.arange(count)[:, None])
    own = (document[:, None] == document) & np.tri(n, dtype=bool)
    values["B"] = np.where(own, values["B"], -np.inf)


PACKED = Cast(
    name="packed documents",
    sizes={"n": 7, "d_k": 3, "d_v": 2, "T": 4},
    letters=drawn("Q, K, V, B, gamma") | masks("E: T n") | made("A, P, O", "eq:attention_map"),
    outputs=("O",),
    constants=("E",),
    same={"m": "n"},
    settings=(
        setting("four documents", 831, packed),
        setting("three documents", 832, packed, n=5, T=3, d_k=4, d_v=6),
        setting("two documents", 833, packed, n=5, T=2, d_v=6),
    ),
)

CASTS = TILES, PARTS, CACHE, PACKED
