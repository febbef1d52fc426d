"""The objectives: a path and its mean velocity, a penalty, a wave with a known shape."""

import numpy as np

from attnmath.page.scenes.cast import Cast, drawn, made, positive
from attnmath.page.scenes.settings import setting, three


def calm(values: dict, sizes: dict) -> None:
    """A wave that is not too steep anywhere, so that no number is nearly zero beside others."""
    values["x"] = (np.arange(sizes["n"]) / 2 - 3 / 4)[:, None]
    values["t"], values["c"] = values["t"] / 4, values["c"] / 4


PATH = Cast(
    name="path",
    sizes={"n": 4, "d": 3},
    letters=drawn("Z, S, r, t") | made("U"),
    outputs=("U",),
    constants=("S", "r"),
    settings=three(721, n=3, d=5),
)

PENALTY = Cast(
    name="penalty",
    sizes={"n": 4, "d": 3},
    letters=drawn("G, U, F") | positive("lambda") | made("ell"),
    outputs=("ell",),
    settings=(
        setting("random", 741),
        setting("random again", 742),
        setting("sizes in another order", 744, n=3, d=5),
    ),
)

WAVE = Cast(
    name="wave",
    sizes={"n": 4},
    letters=drawn("x, t, c, alpha") | positive("eta") | made("U: n 1, Y"),
    outputs=("U", "Y"),
    settings=three(751, calm, last="more places", n=6),
)

CASTS = PATH, PENALTY, WAVE
