"""Conventions of libraries: weights read off, maps of groups, powers of two, a cap after the mask."""

import numpy as np

from attnmath.page.scenes.cast import Cast, drawn, made, masks, positive, rows
from attnmath.page.scenes.settings import setting, three


def maps(values: dict, sizes: dict) -> None:
    """Which group each head reads: neighbours together, or every G-th head."""
    G, r = sizes["G"], sizes["r"]
    h, g = np.arange(G * r)[:, None], np.arange(G)[None, :]
    values["E"] = (h // r == g).astype(float)
    values["E'"] = (h % G == g).astype(float)


def last_hidden(values: dict, sizes: dict) -> None:
    """Every query keeps a key, some keys are hidden."""
    values["chi"][:, 0], values["chi"][0, 1], values["chi"][:, -1] = 1, 0, 0
    values["chi"][1, 0], values["chi"][1, 1] = 0, 1


def last_seen(values: dict, sizes: dict) -> None:
    """The same, but that every query keeps the last key."""
    values["chi"][:, -1] = 1
    values["chi"][0, 1], values["chi"][1, 0] = 0, 0


def capped(values: dict, sizes: dict) -> None:
    """The cap comes after the mask."""
    c = values["c"]
    values["S'"] = np.where(values["chi"] == 1, c * np.tanh(values["S"] / c), -c)


def identity_at_first(values: dict, sizes: dict) -> None:
    values["V"][0] = np.eye(sizes["m"])[0]


def identity(values: dict, sizes: dict) -> None:
    values["V"] = np.eye(sizes["m"])


HIGH = {"n": 5, "m": 3, "d_k": 2}

READ_OFF = Cast(
    name="weights read off",
    sizes={"n": 4, "m": 5, "d_k": 3},
    letters=drawn("Q, K, V, B, gamma") | made("A, P, O"),
    outputs=("O",),
    same={"d_v": "m"},
    settings=(
        setting("identity", 301, identity),
        setting("identity, n > m", 302, identity, **HIGH),
        setting("random, but for the first value", 303, identity_at_first),
        setting("random, n > m", 304, **HIGH),
    ),
)

GROUP_MAPS = Cast(
    name="maps of groups",
    sizes={"G": 3, "r": 2, "d": 5},
    letters=drawn("E, E', X") | made("U"),
    outputs=("U",),
    constants=("E", "E'"),
    rows=rows("u, x"),
    settings=(
        setting("three groups of two", 311, maps),
        setting("two groups of three", 312, maps, G=2, r=3),
        setting("four groups of three", 313, maps, G=4, r=3, d=2),
    ),
)

BASE_TWO = Cast(
    name="powers of two",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters=drawn("Q, K, V, B, gamma") | made("A", "prp:read_map") | made("P', O'") | made("L, L'"),
    outputs=("O'",),
    settings=three(321, last="n > m", **HIGH, d_v=4),
)

CAPPED = Cast(
    name="capped scores",
    sizes={"n": 4, "m": 5},
    letters=drawn("S") | masks("chi") | positive("c") | drawn("S'") | made("P"),
    outputs=("P",),
    settings=(
        setting("random", 331, last_hidden, capped),
        setting("the last key seen", 332, last_seen, capped),
        setting("n > m", 333, last_hidden, capped, n=5, m=3),
    ),
)

CASTS = READ_OFF, GROUP_MAPS, BASE_TWO, CAPPED
