"""The casts of the chapter on the conventions of libraries."""

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting


def _maps(values: dict, sizes: dict) -> None:
    """Which group each head reads: neighbours together, or every G-th head."""
    G, r = sizes["G"], sizes["r"]
    h, g = np.arange(G * r)[:, None], np.arange(G)[None, :]
    values["E"] = (h // r == g).astype(float)
    values["E'"] = (h % G == g).astype(float)


def _hidden(values: dict, sizes: dict) -> None:
    """Every query keeps a key, some keys are hidden, and the cap comes after the mask."""
    values["chi"][:, 0], values["chi"][0, 1], values["chi"][:, -1] = 1, 0, 0
    values["chi"][1, 0], values["chi"][1, 1] = 0, 1
    c = values["c"]
    values["S'"] = np.where(values["chi"] == 1, c * np.tanh(values["S"] / c), -c)


def _last_seen(values: dict, sizes: dict) -> None:
    """The same, but that every query keeps the last key."""
    values["chi"][:, -1] = 1
    values["chi"][0, 1], values["chi"][1, 0] = 0, 0
    c = values["c"]
    values["S'"] = np.where(values["chi"] == 1, c * np.tanh(values["S"] / c), -c)


def _identity_at_first(values: dict, sizes: dict) -> None:
    values["V"][0] = np.eye(sizes["m"])[0]


def _identity(values: dict, sizes: dict) -> None:
    values["V"] = np.eye(sizes["m"])


READ_OFF = Cast(
    name="weights read off",
    sizes={"n": 4, "m": 5, "d_k": 3},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "m")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "A": Letter(("n", "m"), "prp:read_map"),
        "P": Letter(("n", "m"), "prp:read_map"),
        "O": Letter(("n", "m"), "prp:read_map"),
    },
    outputs=("O",),
    settings=(
        Setting("identity", 301, change=_identity),
        Setting("identity, n > m", 302, {"n": 5, "m": 3, "d_k": 2}, change=_identity),
        Setting("random, but for the first value", 303, change=_identity_at_first),
        Setting("random, n > m", 304, {"n": 5, "m": 3, "d_k": 2}),
    ),
)

GROUP_MAPS = Cast(
    name="maps of groups",
    sizes={"G": 3, "r": 2, "d": 5},
    letters={
        "E": Letter(("G*r", "G")),
        "E'": Letter(("G*r", "G")),
        "X": Letter(("G", "d")),
        "U": Letter(("G*r", "d"), "prp:group_reads"),
    },
    outputs=("U",),
    constants=("E", "E'"),
    rows={"u": "U", "x": "X"},
    settings=(
        Setting("three groups of two", 311, change=_maps),
        Setting("two groups of three", 312, {"G": 2, "r": 3}, _maps),
        Setting("four groups of three", 313, {"G": 4, "r": 3, "d": 2}, _maps),
    ),
)

BASE_TWO = Cast(
    name="powers of two",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "A": Letter(("n", "m"), "prp:read_map"),
        "P'": Letter(("n", "m"), "prp:two_map"),
        "O'": Letter(("n", "d_v"), "prp:two_map"),
        "L": Letter(("n", "1"), "prp:two_statistic"),
        "L'": Letter(("n", "1"), "prp:two_statistic"),
    },
    outputs=("O'",),
    settings=(
        Setting("random", 321),
        Setting("random again", 322),
        Setting("n > m", 323, {"n": 5, "m": 3, "d_k": 2, "d_v": 4}),
    ),
)

CAPPED = Cast(
    name="capped scores",
    sizes={"n": 4, "m": 5},
    letters={
        "S": Letter(("n", "m")),
        "chi": Letter(("n", "m"), "mask"),
        "c": Letter(("1", "1"), "positive"),
        "S'": Letter(("n", "m")),
        "P": Letter(("n", "m"), "prp:capped_map"),
    },
    outputs=("P",),
    settings=(
        Setting("random", 331, change=_hidden),
        Setting("the last key seen", 332, change=_last_seen),
        Setting("n > m", 333, {"n": 5, "m": 3}, _hidden),
    ),
)

CONVENTIONS = (READ_OFF, GROUP_MAPS, BASE_TWO, CAPPED)
