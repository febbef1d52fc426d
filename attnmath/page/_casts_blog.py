"""The cast of the first source: all heads side by side in one wide table, in its letters."""

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting
from attnmath.page._casts_layer import together

FORWARD = "prp:blog_forward"

WIDE = {
    "x": Letter(("n", "d")),
    "z": Letter(("m", "d_z")),
    "W^Q": Letter(("H", "d", "d_k")),
    "W^K": Letter(("H", "d_z", "d_k")),
    "W^V": Letter(("d_z", "H*d_v")),
    "W^O": Letter(("H*d_v", "d")),
    "b^Q": Letter(("H", "1", "d_k")),
    "b^K": Letter(("H", "1", "d_k")),
    "b^V": Letter(("1", "H*d_v")),
    "b^O": Letter(("1", "d")),
    "B": Letter(("n", "m")),
    "gamma": Letter(("1", "1")),
}

INSIDE = {
    "mathbb P": Letter(("H", "m", "H*m"), FORWARD),
    "E": Letter(("H", "n", "m"), FORWARD),
    "A": Letter(("n", "H*m"), FORWARD),
    "I": Letter(("H*m", "H*m"), FORWARD),
    "S": Letter(("n", "H*m"), FORWARD),
    "V": Letter(("H*m", "H*d_v"), FORWARD),
    "N": Letter(("H", "d_v", "H*d_v"), "prp:blog_heads"),
    "X": Letter(("n", "d"), FORWARD),
}

GENERIC = {"n": 4, "m": 5, "d": 9, "d_z": 7, "d_k": 3, "d_v": 8, "H": 2}
REORDERED = {"n": 5, "m": 2, "d": 4, "d_z": 8, "d_k": 7, "d_v": 9, "H": 3}


def light(values: dict, sizes: dict) -> None:
    """Matrices so small that no weight of attention is almost 1, and no term is large."""
    for letter in ("W^Q", "W^K", "W^V", "W^O"):
        values[letter] = values[letter] / 4


def calm(values: dict, sizes: dict) -> None:
    light(values, sizes)
    values["gamma"] = values["gamma"] / 4


def without(*letters):
    def change(values: dict, sizes: dict) -> None:
        for letter in letters:
            values[letter] = np.zeros_like(values[letter])

    return change


def masked(values: dict, sizes: dict) -> None:
    """The last query may not read the first key, nor the first query the last."""
    values["B"][0, -1] = values["B"][-1, 0] = -np.inf


# ---- the blog: denominators of its own, with a small number added ----------------------------


def _no_guard(values: dict, sizes: dict) -> None:
    values["epsilon"] = np.zeros((1, 1))


def _low(values: dict, sizes: dict) -> None:
    """A number that is small itself, and large beside the exponentials of low scores."""
    values["epsilon"] = np.full((1, 1), 2.0**-13)
    values["B"] = values["B"] - 15


BLOG = Cast(
    name="blog",
    sizes=GENERIC,
    letters={
        **WIDE,
        "epsilon": Letter(("1", "1"), "positive"),
        **INSIDE,
        "bar V": Letter(("H*m", "H*d_v"), "prp:blog_plain_values"),
        "Y": Letter(("n", "H*m"), "prp:blog_denominators"),
    },
    outputs=("X",),
    settings=(
        Setting("no guard", 701, change=together(calm, _no_guard)),
        Setting("no guard, masked", 702, change=together(calm, _no_guard, masked)),
        Setting("no guard, other sizes", 703, REORDERED, together(calm, _no_guard)),
        Setting("a large guard", 704, change=calm),
        Setting("low scores, masked", 705, change=together(calm, _low, masked)),
        Setting("low scores, other sizes", 706, REORDERED, together(calm, _low)),
    ),
)
