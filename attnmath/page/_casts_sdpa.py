"""The casts of PyTorch's function read line by line, and of misprints in other texts."""

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting


def _dropped(values: dict, sizes: dict) -> None:
    """Factors of dropout at the rate one half; every query keeps a key."""
    kept = np.random.default_rng(sizes["n"]).random(values["R"].shape) > 0.5
    values["R"] = np.where(kept, 2.0, 0.0)
    values["R"][:, 0] = 2.0


def _dropped_empty_row(values: dict, sizes: dict) -> None:
    _dropped(values, sizes)
    values["B"][0, 1] = values["B"][2, 0] = values["B"][1] = -np.inf


def _saturated(values: dict, sizes: dict) -> None:
    """Two queries light each hidden unit with the sign of its weight, and against it."""
    lit = 1e3 * np.sign(values["w"][:, 0]) @ np.linalg.pinv(values["W"])
    values["Q"][0], values["Q"][1] = lit, -lit
    values["w"] *= 10


def _faint(values: dict, sizes: dict) -> None:
    """Weights so small that no other letter keeps below their sum."""
    values["w"] /= 100


def _hidden(values: dict, sizes: dict) -> None:
    """Some pairs are hidden, and in each row at least one of them, and not all."""
    values["bar chi"][:, 0], values["bar chi"][:, 1] = 1, 0


SDPA = Cast(
    name="the function, line by line",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "B": Letter(("n", "m")),
        "R": Letter(("n", "m")),
        "tilde Q": Letter(("n", "d_k"), "prp:sdpa_forward"),
        "A": Letter(("n", "m"), "prp:sdpa_forward"),
        "P": Letter(("n", "m"), "prp:sdpa_forward"),
        "tilde P": Letter(("n", "m"), "prp:sdpa_forward"),
        "O": Letter(("n", "d_v"), "prp:sdpa_forward"),
    },
    outputs=("O", "tilde P"),
    constants=("B", "R"),
    settings=(
        Setting("random bias", 301, change=_dropped),
        Setting("empty row", 302, change=_dropped_empty_row),
        Setting("other sizes", 303, {"n": 5, "m": 3, "d_k": 2, "d_v": 4}, _dropped),
    ),
)

ADDITIVE = Cast(
    name="additive attention",
    sizes={"n": 3, "m": 4, "d_k": 5, "d_v": 2, "d_a": 6},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "W": Letter(("d_k", "d_a")),
        "U": Letter(("d_k", "d_a")),
        "w": Letter(("d_a", "1")),
        "T": Letter(("n", "m", "1", "d_a"), "prp:additive"),
        "A": Letter(("n", "m"), "prp:additive"),
        "P": Letter(("n", "m"), "prp:additive"),
        "O": Letter(("n", "d_v"), "prp:additive"),
    },
    outputs=("O",),
    rows={"q": "Q", "k": "K", "v": "V", "o": "O"},
    settings=(
        Setting("random", 311),
        Setting("small weights", 312, change=_faint),
        Setting("saturated", 313, {"d_k": 6, "d_a": 5}, _saturated),
        Setting("other sizes", 314, {"n": 4, "m": 2, "d_k": 3, "d_v": 5, "d_a": 6}),
    ),
)

ADDED_MASK = Cast(
    name="a boolean mask that is added",
    sizes={"n": 4, "m": 5},
    letters={
        "A'": Letter(("n", "m")),
        "bar chi": Letter(("n", "m"), "mask"),
        "P'": Letter(("n", "m"), "prp:added_mask"),
        "P": Letter(("n", "m"), "prp:added_mask"),
    },
    outputs=("P",),
    constants=("bar chi",),
    settings=(
        Setting("random", 321, change=_hidden),
        Setting("random again", 322, change=_hidden),
        Setting("n > m", 323, {"n": 5, "m": 3}, _hidden),
    ),
)

AXIS = Cast(
    name="the axis of the softmax",
    sizes={"n": 4, "m": 5, "E": 3},
    letters={"A": Letter(("n", "m")), "P": Letter(("n", "m"), "prp:sdpa_axis")},
    outputs=("P",),
    settings=(
        Setting("more keys than features", 331),
        Setting("fewer keys than features", 332, {"n": 3, "m": 2, "E": 4}),
        Setting("as many", 333, {"E": 5}),
    ),
)

SOURCE_SDPA = (AXIS, SDPA, ADDITIVE, ADDED_MASK)
