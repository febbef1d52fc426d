"""The casts of misprints in other public texts, in the letters of these texts."""

from fractions import Fraction

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting


def _maxima(values: dict, sizes: dict) -> None:
    """The largest score of each row so far; the second block raises it."""
    values["S'"] += 3
    values["mu"] = values["S"].max(1, keepdims=True)
    values["mu'"] = np.maximum(values["mu"], values["S'"].max(1, keepdims=True))


def _first_block_leads(values: dict, sizes: dict) -> None:
    """The largest score of each row is in the first block, so that the maximum stays."""
    values["S"][:, 0] = 0.5 + np.maximum(values["S"].max(1), values["S'"].max(1))
    values["mu"] = values["mu'"] = values["S"].max(1, keepdims=True)


def _one_block(values: dict, sizes: dict) -> None:
    """Nobody may attend to the second block."""
    values["A'"] = np.full_like(values["A'"], -np.inf)


def _rotations(values: dict, sizes: dict) -> None:
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
    letters={
        "S": Letter(("n", "m")),
        "S'": Letter(("n", "m")),
        "V": Letter(("m", "d")),
        "V'": Letter(("m", "d")),
        "mu": Letter(("n", "1")),
        "mu'": Letter(("n", "1")),
        "ell": Letter(("n", "1"), "prp:online_forward"),
        "ell'": Letter(("n", "1"), "prp:online_forward"),
        "O": Letter(("n", "d"), "prp:online_forward"),
        "O'": Letter(("n", "d"), "prp:online_forward"),
        "tilde O": Letter(("n", "d"), "prp:online_forward"),
        "tilde O'": Letter(("n", "d"), "prp:online_forward"),
    },
    outputs=("O'",),
    settings=(
        Setting("maxima", 341, change=_maxima),
        Setting("any numbers", 342, {"n": 4, "m": 2, "d": 5}),
        Setting("the maximum stays", 343, {"n": 2, "m": 3, "d": 4}, _first_block_leads),
        Setting("other sizes", 344, {"n": 5, "m": 3, "d": 2}, _maxima),
    ),
)

HEAD_LETTERS = {
    "Q": Letter(("n", "d")),
    "K": Letter(("m", "d")),
    "V": Letter(("m", "d")),
}
SIZES = {"n": 4, "m": 5, "d": 3}
SETTINGS = (
    Setting("random", 351),
    Setting("random again", 352, {"n": 3, "m": 2, "d": 4}),
    Setting("n = m", 353, {"n": 5}),
)
SQUARE = Setting("all sizes equal", 354, {"n": 3, "m": 3})

SCALED = Cast(
    name="a scaled head of one width",
    sizes=SIZES,
    letters={
        **HEAD_LETTERS,
        "A": Letter(("n", "m"), "prp:scaled_head"),
        "P": Letter(("n", "m"), "prp:scaled_head"),
        "O": Letter(("n", "d"), "prp:scaled_head"),
    },
    outputs=("O",),
    rows={"q": "Q", "k": "K"},
    settings=(*SETTINGS, SQUARE),
)

PLAIN = Cast(
    name="a head without scale",
    sizes=SIZES,
    letters={
        **HEAD_LETTERS,
        "S": Letter(("n", "m"), "prp:plain_head"),
        "P": Letter(("n", "m"), "prp:plain_head"),
        "O": Letter(("n", "d"), "prp:plain_head"),
        "tilde O": Letter(("n", "d"), "prp:plain_head"),
    },
    outputs=("O",),
    rows={"v": "V", "o": "O"},
    settings=(*SETTINGS, SQUARE),
)

DECLARED = Cast(
    name="a statistic of another length",
    sizes=SIZES,
    letters={**PLAIN.letters, "D": Letter(("d", "1"))},
    outputs=("O",),
    settings=SETTINGS,
)

RING = Cast(
    name="a ring of two blocks",
    sizes={"n": 4, "m": 5, "d": 3},
    letters={
        "A": Letter(("n", "m")),
        "A'": Letter(("n", "m")),
        "V": Letter(("m", "d")),
        "V'": Letter(("m", "d")),
        "L": Letter(("n", "1"), "prp:ring_forward"),
        "P": Letter(("n", "m"), "prp:ring_forward"),
        "P'": Letter(("n", "m"), "prp:ring_forward"),
        "O": Letter(("n", "d"), "prp:ring_forward"),
    },
    outputs=("O",),
    settings=(
        Setting("random", 361),
        Setting("one block", 362, change=_one_block),
        Setting("other sizes", 363, {"n": 3, "m": 2, "d": 5}),
    ),
)

ROTATED = Cast(
    name="positions that turn",
    sizes={"n": 3, "d": 4},
    letters={
        "Q": Letter(("n", "d")),
        "R": Letter(("n", "d", "d")),
        "tilde Q": Letter(("n", "d"), "prp:rotated"),
    },
    outputs=("tilde Q",),
    constants=("R",),
    settings=(
        Setting("three positions", 371, change=_rotations),
        Setting("two positions", 372, {"n": 2, "d": 6}, _rotations),
        Setting("five positions", 373, {"n": 5, "d": 2}, _rotations),
    ),
)

OTHER_TEXTS = (ONLINE, SCALED, PLAIN, DECLARED, RING, ROTATED)
