"""The casts of the chapter on testing a gradient."""

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting
from attnmath.page._casts_layer import calm, first_zero, together


def _choices(values: dict, sizes: dict) -> None:
    """Each query has one key; keys may be chosen twice, or never."""
    n, m = sizes["n"], sizes["m"]
    values["E"] = np.eye(m)[np.arange(n) * 2 % m]


def _no_bias(values: dict, sizes: dict) -> None:
    values["B"] = 0 * values["B"]


def _uniform(values: dict, sizes: dict) -> None:
    values["Q"], values["B"] = 0 * values["Q"], 0 * values["B"]


def _no_queries(values: dict, sizes: dict) -> None:
    values["Q"] = 0 * values["Q"]


def _masked(values: dict, sizes: dict) -> None:
    B = values["B"]
    B[0, 1] = B[1, 0] = B[2, 4] = B[3, 3] = -np.inf


CHOSEN = Cast(
    name="hard attention",
    sizes={"n": 4, "m": 5, "d_v": 3},
    letters={
        "E": Letter(("n", "m")),
        "V": Letter(("m", "d_v")),
        "O": Letter(("n", "d_v"), "prp:hard_map"),
    },
    outputs=("O",),
    constants=("E",),
    rows={"v": "V", "o": "O"},
    settings=(
        Setting("n < m", 401, change=_choices),
        Setting("n > m", 402, {"n": 5, "m": 3, "d_v": 2}, _choices),
        Setting("n = m", 403, {"n": 5}, _choices),
    ),
)

TERMS = Cast(
    name="separate terms",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "c": Letter(("1", "1")),
        "A": Letter(("n", "m"), "prp:examined_map"),
        "P": Letter(("n", "m"), "prp:examined_map"),
        "O": Letter(("n", "d_v"), "prp:examined_map"),
        "D": Letter(("n", "1"), "prp:examined_row"),
    },
    outputs=("O",),
    rows={"q": "Q", "k": "K", "v": "V", "o": "O"},
    settings=(
        Setting("random bias, but for the first query", 411, change=calm(first_zero("B"))),
        Setting("masked", 412, change=calm(_masked)),
        Setting("no bias, the first query zero", 413, change=together(_no_bias, first_zero("Q"))),
        Setting("uniform", 414, change=_uniform),
        Setting("no queries, a bias but for the first", 416, change=together(_no_queries, first_zero("B"))),
        Setting("uniform, n > m", 415, {"n": 5, "m": 3, "d_k": 2, "d_v": 4}, _uniform),
    ),
)

EXAMINE = (CHOSEN, TERMS)
