"""The casts of what attention is compared with: what else reads a sequence."""

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting
from attnmath.page._casts_layer import first_zero

PLACE = Cast(
    name="token by token",
    sizes={"n": 4, "d": 3, "d_v": 5},
    letters={
        "X": Letter(("n", "d")),
        "W": Letter(("d", "d_v")),
        "b": Letter(("1", "d_v")),
        "Y": Letter(("n", "d_v"), "eq:linear"),
    },
    outputs=("Y",),
    rows={"x": "X", "y": "Y"},
    settings=(
        Setting("random", 81),
        Setting("random again", 82),
        Setting("sizes in another order", 83, {"n": 3, "d": 4, "d_v": 2}),
    ),
)

MIXING = Cast(
    name="mixing of tokens",
    sizes={"n": 4, "d": 3, "d_v": 5},
    letters={
        "X": Letter(("n", "d")),
        "F": Letter(("n", "n")),
        "W": Letter(("d", "d_v")),
        "Y": Letter(("n", "d_v"), "prp:mixing"),
    },
    outputs=("Y",),
    rows={"x": "X", "y": "Y"},
    settings=(
        Setting("random", 341),
        Setting("random again", 342),
        Setting("sizes in another order", 343, {"n": 3, "d": 4, "d_v": 2}),
    ),
)


def _no_queries(values: dict, sizes: dict) -> None:
    values["W^Q"] = np.zeros_like(values["W^Q"])


READING = Cast(
    name="reading by content",
    sizes={"n": 4, "d": 3, "d_k": 2, "d_v": 5},
    letters={
        "X": Letter(("n", "d")),
        "W^Q": Letter(("d", "d_k")),
        "W^K": Letter(("d", "d_k")),
        "W^V": Letter(("d", "d_v")),
        "P": Letter(("n", "n"), "prp:reading"),
        "Y": Letter(("n", "d_v"), "prp:reading"),
    },
    outputs=("Y",),
    settings=(
        Setting("random", 351),
        Setting("no queries of the first feature", 352, change=first_zero("W^Q")),
        Setting("sizes in another order", 353, {"n": 3, "d": 5, "d_k": 4, "d_v": 2}),
        Setting("no queries", 354, change=_no_queries),
    ),
)


def _primed(letter: str) -> tuple:
    return letter, letter + "'", letter + "''"


RECURRENT = Cast(
    name="recurrent network",
    sizes={"d": 3, "d_u": 4, "d_v": 2},
    letters={
        **{x: Letter(("1", "d")) for x in _primed("x")},
        "W^X": Letter(("d", "d_u")),
        "W^S": Letter(("d_u", "d_u")),
        "W^O": Letter(("d_u", "d_v")),
        "b": Letter(("1", "d_u")),
        **{
            letter: Letter(("1", "d_u"), "prp:recurrent")
            for pair in zip(_primed("u"), _primed("s"))
            for letter in pair
        },
        **{y: Letter(("1", "d_v"), "prp:recurrent") for y in _primed("y")},
    },
    outputs=_primed("y"),
    settings=(
        Setting("random", 361),
        Setting("random again", 362),
        Setting("sizes in another order", 363, {"d": 5, "d_u": 2, "d_v": 4}),
    ),
)


ONLINE = Cast(
    name="one query, key by key",
    sizes={"m": 5, "d_v": 3},
    letters={
        "a": Letter(("1", "m")),
        "V": Letter(("m", "d_v")),
        "mu": Letter(("m", "1"), "prp:running"),
        "sigma": Letter(("m", "1"), "prp:running"),
        "O": Letter(("m", "d_v"), "prp:running"),
    },
    outputs=("O",),
    rows={"o": "O", "v": "V"},
    settings=(
        Setting("random", 371),
        Setting("random again", 372),
        Setting("few keys", 373, {"m": 3, "d_v": 4}),
    ),
)


LINEAR_ATTENTION = Cast(
    name="linear attention",
    sizes={"n": 4, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k"), "positive"),
        "K": Letter(("n", "d_k"), "positive"),
        "V": Letter(("n", "d_v")),
        "S": Letter(("n", "d_k", "d_v"), "prp:linear_attention"),
        "z": Letter(("n", "d_k"), "prp:linear_attention"),
        "O": Letter(("n", "d_v"), "prp:linear_attention"),
        "D": Letter(("n", "1"), "prp:linear_attention_vjp"),
    },
    outputs=("O",),
    rows={"q": "Q", "k": "K", "v": "V", "o": "O"},
    settings=(
        Setting("random", 381),
        Setting("random again", 382),
        Setting("sizes in another order", 383, {"n": 3, "d_k": 5, "d_v": 4}),
    ),
)

COMPARED = (PLACE, MIXING, READING, RECURRENT, ONLINE, LINEAR_ATTENTION)
