"""How a gradient is tested: hard attention, and terms apart from each other."""

import numpy as np

from attnmath.page.scenes.cast import Cast, drawn, made, rows
from attnmath.page.scenes.settings import calm, hidden, setting, zero, zero_at


def choices(values: dict, sizes: dict) -> None:
    """Each query has one key; keys may be chosen twice, or never."""
    n, m = sizes["n"], sizes["m"]
    values["E"] = np.eye(m)[np.arange(n) * 2 % m]


CHOSEN = Cast(
    name="hard attention",
    sizes={"n": 4, "m": 5, "d_v": 3},
    letters=drawn("E, V") | made("O"),
    outputs=("O",),
    constants=("E",),
    rows=rows("v, o"),
    settings=(
        setting("n < m", 401, choices),
        setting("n > m", 402, choices, n=5, m=3, d_v=2),
        setting("n = m", 403, choices, n=5),
    ),
)

first_zero, uniform = zero_at("B", 0), zero("Q", "B")

TERMS = Cast(
    name="separate terms",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters=drawn("Q, K, V, B, gamma, c: number") | made("A, P, O") | made("D"),
    outputs=("O",),
    rows=rows("q, k, v, o"),
    settings=(
        setting("random bias, but for the first query", 411, calm, first_zero),
        setting("masked", 412, calm, hidden("B", (0, 1), (1, 0), (2, 4), (3, 3))),
        setting("no bias, the first query zero", 413, zero("B"), zero_at("Q", 0)),
        setting("uniform", 414, uniform),
        setting("no queries, a bias but for the first", 416, zero("Q"), first_zero),
        setting("uniform, n > m", 415, uniform, n=5, m=3, d_k=2, d_v=4),
    ),
)

CASTS = CHOSEN, TERMS
