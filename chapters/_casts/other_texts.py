"""Misprints in other public texts, in the letters of these texts."""

from dataclasses import replace
from fractions import Fraction

import numpy as np

from attnmath.page.scenes.cast import Cast, drawn, made, rows
from attnmath.page.scenes.settings import hidden, setting


def maxima(values: dict, sizes: dict) -> None:
    """The largest score of each row so far; the second block raises it."""
    values["S'"] += 3
    values["mu"] = values["S"].max(1, keepdims=True)
    values["mu'"] = np.maximum(values["mu"], values["S'"].max(1, keepdims=True))


def first_block_leads(values: dict, sizes: dict) -> None:
    """The largest score of each row is in the first block, so that the maximum stays."""
    values["S"][:, 0] = 0.5 + np.maximum(values["S"].max(1), values["S'"].max(1))
    values["mu"] = values["mu'"] = values["S"].max(1, keepdims=True)


def rotations(values: dict, sizes: dict) -> None:
    """Position i turns each pair of features by i times the pair's own angle."""
    n, d = sizes["n"], sizes["d"]
    values["R"] = 0 * values["R"]
    for pair in range(d // 2):
        a, b = 2 * pair, 2 * pair + 1
        k = pair + 2  # cos and sin of the pair's angle are fractions: of k^2 - 1, 2 k, k^2 + 1
        cos, sin = Fraction(1), Fraction(0)
        for i in range(n):
            cos, sin = (cos * (k * k - 1) - sin * 2 * k, sin * (k * k - 1) + cos * 2 * k)
            cos, sin = cos / (k * k + 1), sin / (k * k + 1)
            values["R"][i, a, a] = values["R"][i, b, b] = cos
            values["R"][i, b, a], values["R"][i, a, b] = sin, -sin


ONLINE = Cast(
    name="two blocks of keys",
    sizes={"n": 3, "m": 4, "d": 2},
    letters=drawn("S, S', V, V', mu, mu'") | made("ell, ell', O, O', tilde O, tilde O'"),
    outputs=("O'",),
    settings=(
        setting("maxima", 341, maxima),
        setting("any numbers", 342, n=4, m=2, d=5),
        setting("the maximum stays", 343, first_block_leads, n=2, m=3, d=4),
        setting("other sizes", 344, maxima, n=5, m=3, d=2),
    ),
)

# One width for queries, keys and values.
SCALED = Cast(
    name="a scaled head of one width",
    sizes={"n": 4, "m": 5, "d": 3},
    letters=drawn("Q, K, V") | made("A, P, O"),
    outputs=("O",),
    rows=rows("q, k"),
    same={"d_k": "d"},
    settings=(
        setting("random", 351),
        setting("random again", 352, n=3, m=2, d=4),
        setting("n = m", 353, n=5),
        setting("all sizes equal", 354, n=3, m=3),
    ),
)

PLAIN = replace(
    SCALED,
    name="a head without scale",
    letters=drawn("Q, K, V") | made("S, P, O, tilde O"),
    rows=rows("v, o"),
)

DECLARED = PLAIN.plus(drawn("D"), name="a statistic of another length", rows={}, settings=PLAIN.settings[:3])

RING = Cast(
    name="a ring of two blocks",
    sizes={"n": 4, "m": 5, "d": 3},
    letters=drawn("A, A', V, V'") | made("L, P, P', O"),
    outputs=("O",),
    settings=(
        setting("random", 361),
        setting("one block", 362, hidden("A'", ...)),
        setting("other sizes", 363, n=3, m=2, d=5),
    ),
)

ROTATED = Cast(
    name="positions that turn",
    sizes={"n": 3, "d": 4},
    letters=drawn("Q, R") | made("tilde Q"),
    outputs=("tilde Q",),
    constants=("R",),
    same={"d_k": "d"},
    settings=(
        setting("three positions", 371, rotations),
        setting("two positions", 372, rotations, n=2, d=6),
        setting("five positions", 373, rotations, n=5, d=2),
    ),
)

CASTS = ONLINE, SCALED, PLAIN, DECLARED, RING, ROTATED
