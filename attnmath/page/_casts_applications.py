"""The casts of the objectives: a path and its mean velocity, a penalty, a wave with a known shape."""

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting


def _calm(values: dict, sizes: dict) -> None:
    """A wave that is not too steep anywhere, so that no number is nearly zero beside others."""
    values["x"] = (np.arange(sizes["n"]) / 2 - 3 / 4)[:, None]
    values["t"], values["c"] = values["t"] / 4, values["c"] / 4


PATH = Cast(
    name="path",
    sizes={"n": 4, "d": 3},
    letters={
        "Z": Letter(("n", "d")),
        "S": Letter(("n", "d")),
        "r": Letter(("1", "1")),
        "t": Letter(("1", "1")),
        "U": Letter(("n", "d"), "prp:mean_velocity"),
    },
    outputs=("U",),
    constants=("S", "r"),
    settings=(
        Setting("random", 721),
        Setting("random again", 722),
        Setting("sizes in another order", 723, {"n": 3, "d": 5}),
    ),
)

PENALTY = Cast(
    name="penalty",
    sizes={"n": 4, "d": 3},
    letters={
        "G": Letter(("n", "d")),
        "U": Letter(("n", "d")),
        "F": Letter(("n", "d")),
        "lambda": Letter(("1", "1"), "positive"),
        "ell": Letter(("1", "1"), "prp:penalty"),
    },
    outputs=("ell",),
    settings=(
        Setting("random", 741),
        Setting("random again", 742),
        Setting("sizes in another order", 744, {"n": 3, "d": 5}),
    ),
)

WAVE = Cast(
    name="wave",
    sizes={"n": 4},
    letters={
        "x": Letter(("n", "1")),
        "t": Letter(("1", "1")),
        "c": Letter(("1", "1")),
        "alpha": Letter(("1", "1")),
        "eta": Letter(("1", "1"), "positive"),
        "U": Letter(("n", "1"), "prp:wave"),
        "Y": Letter(("n", "1"), "prp:wave"),
    },
    outputs=("U", "Y"),
    settings=(
        Setting("random", 751, change=_calm),
        Setting("random again", 752, change=_calm),
        Setting("more places", 753, {"n": 6}, _calm),
    ),
)

APPLIED = (PATH, PENALTY, WAVE)
