"""Attention from scratch, and its merged weights."""

import numpy as np

from attnmath.page.scenes.cast import Cast, drawn, made, rows
from attnmath.page.scenes.settings import Change, filling, setting, three

from ._layer import SELF

# In the letters of the source: x are tokens, q and k the weights of queries and keys.
SCRATCH = Cast(
    name="attention from scratch",
    sizes={"n": 4, "d": 5, "d_k": 3},
    letters=drawn("x, y, q, k, c, gamma"),
    settings=(
        setting("random", 301),
        setting("more tokens", 302, n=6),
        setting("long queries", 303, d=2),
        setting("all sizes equal, as in the source", 304, n=3, d=3),
        setting("as many tokens as features", 305, n=5),
        setting("as many tokens as numbers in a query", 306, n=3),
        setting("as many features as numbers in a query", 307, d=3),
    ),
)

# Heads of which H are counted into d_k, as the source counts them.
SIZES = Cast(
    name="sizes in the scale",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2, "H": 6},
    letters=drawn("Q: n d_k, K: m d_k, V: m d_v") | made("O: n d_v"),
    outputs=("O",),
    settings=three(311, n=5, m=3, d_k=4, d_v=6, H=2),
)


def even(values: dict, sizes: dict) -> None:
    """Tokens that can be divided by: no combination of them is almost zero."""
    values["X"] = values["X"] / 8 + np.eye(*values["X"].shape)


@filling
def lower_rank(values: dict, sizes: dict, letter: str) -> None:
    """The last column of a weight is its first."""
    values[letter][:, -1] = values[letter][:, 0]


def of_sizes(seed: int, n: int, d: int, d_k: int, *changes: Change):
    return setting(f"{n} tokens, {d} features, d_k = {d_k}", seed, even, *changes, n=n, d=d, d_k=d_k)


# One head of self-attention without a scale; n, d and d_k stand in every order.
CIRCUIT = Cast(
    name="merged circuit",
    sizes={"n": 2, "d": 4, "d_k": 3},
    letters=drawn("X, W^Q, W^K, b^Q, b^K") | made("M") | made("A", "why:merge"),
    outputs=("A",),
    same=SELF,
    settings=(
        of_sizes(320, 2, 4, 3),
        of_sizes(321, 3, 4, 2, lower_rank("W^Q")),
        of_sizes(322, 2, 3, 4),
        of_sizes(323, 4, 3, 2),
        of_sizes(324, 3, 2, 4),
        of_sizes(325, 4, 2, 3),
        of_sizes(326, 3, 3, 2, lower_rank("W^K")),
    ),
)

ROTARY = Cast(
    name="rotary positions",
    sizes={"n": 4, "d": 5, "d_k": 3},
    letters=drawn("X, W^Q, W^K, R: n d_k d_k"),
    rows=rows("x"),
    same=SELF,
    settings=three(331, n=3, d=2, d_k=4),
)

CASTS = SCRATCH, SIZES, CIRCUIT, ROTARY
