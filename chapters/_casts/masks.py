"""Masks of several kinds, what becomes of them, and biases that queries or keys share."""

from collections.abc import Callable

import numpy as np

from attnmath.page.scenes.cast import Cast, counts, drawn, made, masks, rows
from attnmath.page.scenes.settings import Change, Setting, filling, setting, three


@filling
def allowed(values: dict, sizes: dict, fits: Callable, letter: str = "chi", align: str = "lower right") -> None:
    """A mask: 1 where the place of the query and that of the key fit."""
    n, m = sizes["n"], sizes["m"]
    place = np.arange(n)[:, None] + (m - n if align == "lower right" else 0)
    values[letter] = fits(np.arange(m)[None, :], place, sizes).astype(float)


causal = allowed(lambda j, place, sizes: j <= place)
causal_from_the_left = allowed(lambda j, place, sizes: j <= place, "chi'", "upper left")
window = allowed(lambda j, place, sizes: (j <= place) & (j > place - sizes["w"]))


def as_bias(values: dict, sizes: dict) -> None:
    values["B"] = np.where(values["chi"] == 1, 0.0, -np.inf)


def causal_bias(values: dict, sizes: dict) -> None:
    n, m = sizes["n"], sizes["m"]
    values["B"] = np.where(np.tri(n, m, m - n), 0.0, -np.inf)


def padding(values: dict, sizes: dict) -> None:
    values["chi"] = (np.arange(sizes["m"]) < values["t"][..., None]).astype(float)


def documents(values: dict, sizes: dict) -> None:
    values["chi"] = (values["phi"] == values["psi"].T).astype(float)


def added(values: dict, sizes: dict) -> None:
    values["B"] = np.where(values["chi"] == 1, values["E"], -np.inf)


def hides(values: dict, sizes: dict) -> None:
    values["B"] = np.where(values["bar chi"] + values["hat chi"] > 0, -np.inf, 0.0)


def keeps_a_key(values: dict, sizes: dict) -> None:
    """Every query keeps a key, not all of them the first; nobody may read the last key."""
    n, m = values["chi"].shape
    values["chi"][1:, 0] = values["chi"][0, 1] = 0
    values["chi"][np.arange(n), np.arange(n) % (m - 1)] = 1
    values["chi"][:, -1] = 0


def three_orders(seed: int, *changes: Change, tall: dict, square: dict) -> tuple[Setting, ...]:
    """More keys than queries, as the cast says; more queries than keys; as many."""
    return (
        setting("n < m", seed, *changes),
        setting("n > m", seed + 1, *changes, **tall),
        setting("n = m", seed + 2, *changes, **square),
    )


CAUSAL = Cast(
    name="causal mask",
    sizes={"n": 4, "m": 6},
    letters=masks("chi, chi'"),
    names={"chi": "mask"},
    settings=three_orders(201, causal, causal_from_the_left, tall={"n": 6, "m": 4}, square={"n": 5, "m": 5}),
)

WINDOW = Cast(
    name="window mask",
    sizes={"n": 4, "m": 6, "w": 2},
    letters=masks("chi"),
    names={"chi": "mask"},
    settings=three_orders(211, window, tall={"n": 6, "m": 4, "w": 3}, square={"n": 5, "m": 5, "w": 2}),
)

PADDING = Cast(
    name="padding mask",
    sizes={"batch": 3, "m": 4},
    letters=counts("t: batch 1") | masks("chi: batch 1 m"),
    names={"chi": "mask", "t": "lengths"},
    settings=(
        setting("three sequences", 221, padding),
        setting("two sequences", 222, padding, batch=2, m=5),
        setting("many sequences", 223, padding, batch=6, m=3),
    ),
)

DOCUMENTS = Cast(
    name="document mask",
    sizes={"n": 4, "m": 6},
    letters=counts("phi, psi") | masks("chi"),
    names={"chi": "mask", "phi": "documents", "psi": "documents_of_keys"},
    settings=three_orders(231, documents, tall={"n": 7, "m": 5}, square={"n": 6, "m": 6}),
)

BIAS = Cast(
    name="bias of a mask",
    sizes={"n": 4, "m": 6},
    letters=masks("chi") | drawn("E, B"),
    names={"chi": "mask", "E": "added"},
    settings=three(241, added, last="n > m", n=6, m=3),
)

HIDDEN = Cast(
    name="masks that hide",
    sizes={"n": 4, "m": 6},
    letters=masks("bar chi, hat chi") | drawn("B"),
    names={"bar chi": "attn_mask", "hat chi": "key_padding_mask"},
    settings=three(251, hides, last="n > m", n=6, m=3),
)

REORDERED = {"n": 5, "m": 3, "d_k": 2, "d_v": 4}

MASKED = Cast(
    name="masked head",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters=drawn("Q, K, V, gamma") | masks("chi") | drawn("B") | made("A', P', P, O") | made("O'") | made("r"),
    outputs=("O", "O'"),
    rows=rows("k, v, o, o'"),
    settings=(
        setting("every query keeps a key", 261, keeps_a_key, as_bias),
        setting("causal", 262, causal, as_bias),
        setting("empty rows", 263, causal, as_bias, **REORDERED),
        setting("n = m", 264, causal, as_bias, n=5),
    ),
)

SHARED = Cast(
    name="shared biases",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters=drawn("Q, K, V, gamma, alpha, beta, eta, E, B") | made("A, P, O"),
    outputs=("O",),
    rows=rows("q, k"),
    constants=("E", "B"),
    settings=(
        setting("random bias", 271),
        setting("causal", 272, causal_bias),
        setting("empty rows", 273, causal_bias, **REORDERED),
        setting("n = m", 274, n=5),
    ),
)

CASTS = CAUSAL, WINDOW, PADDING, DOCUMENTS, BIAS, HIDDEN, MASKED, SHARED
