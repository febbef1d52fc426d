"""PyTorch's function read line by line."""

import numpy as np

from attnmath.page.scenes.cast import Cast, drawn, made, masks, rows
from attnmath.page.scenes.settings import divided, hidden, setting, three


def dropped(values: dict, sizes: dict) -> None:
    """Factors of dropout at the rate one half; every query keeps a key."""
    kept = np.random.default_rng(sizes["n"]).random(values["R"].shape) > 0.5
    values["R"] = np.where(kept, 2.0, 0.0)
    values["R"][:, 0] = 2.0


def saturated(values: dict, sizes: dict) -> None:
    """Two queries light each hidden unit with the sign of its weight, and against it."""
    lit = 1e3 * np.sign(values["w"][:, 0]) @ np.linalg.pinv(values["W"])
    values["Q"][0], values["Q"][1] = lit, -lit
    values["w"] *= 10


def some_hidden(values: dict, sizes: dict) -> None:
    """Some pairs are hidden, and in each row at least one of them, and not all."""
    values["bar chi"][:, 0], values["bar chi"][:, 1] = 1, 0


AXIS = Cast(
    name="the axis of the softmax",
    sizes={"n": 4, "m": 5, "E": 3},
    letters=drawn("A") | made("P", "prp:sdpa_axis"),
    outputs=("P",),
    settings=(
        setting("more keys than features", 331),
        setting("fewer keys than features", 332, n=3, m=2, E=4),
        setting("as many", 333, E=5),
    ),
)

SDPA = Cast(
    name="the function, line by line",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters=drawn("Q, K, V, B, R") | made("tilde Q, A, P, tilde P, O"),
    outputs=("O", "tilde P"),
    constants=("B", "R"),
    settings=(
        setting("random bias", 301, dropped),
        setting("empty row", 302, dropped, hidden("B", (0, 1), (2, 0), 1)),
        setting("other sizes", 303, dropped, n=5, m=3, d_k=2, d_v=4),
    ),
)

ADDITIVE = Cast(
    name="additive attention",
    sizes={"n": 3, "m": 4, "d_k": 5, "d_v": 2, "d_a": 6},
    letters=drawn("Q, K, V, W, U, w") | made("T: n m 1 d_a, A, P, O"),
    outputs=("O",),
    rows=rows("q, k, v, o"),
    settings=(
        setting("random", 311),
        setting("small weights", 312, divided(100, "w")),  # no other letter keeps below their sum
        setting("saturated", 313, saturated, d_k=6, d_a=5),
        setting("other sizes", 314, n=4, m=2, d_k=3, d_v=5, d_a=6),
    ),
)

ADDED_MASK = Cast(
    name="a boolean mask that is added",
    sizes={"n": 4, "m": 5},
    letters=drawn("A'") | masks("bar chi") | made("P', P"),
    outputs=("P",),
    constants=("bar chi",),
    settings=three(321, some_hidden, last="n > m", n=5, m=3),
)

CASTS = AXIS, SDPA, ADDITIVE, ADDED_MASK
