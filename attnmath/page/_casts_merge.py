"""The casts of attention from scratch, and of its merged weights."""

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting

# In the letters of the source: x are tokens, q and k the weights of queries and keys.
SCRATCH = Cast(
    name="attention from scratch",
    sizes={"n": 4, "d": 5, "d_k": 3},
    letters={
        "x": Letter(("n", "d")),
        "y": Letter(("n", "d")),
        "q": Letter(("d", "d_k")),
        "k": Letter(("d", "d_k")),
        "c": Letter(("1", "1")),
        "gamma": Letter(("1", "1")),
    },
    outputs=(),
    settings=(
        Setting("random", 301),
        Setting("more tokens", 302, {"n": 6}),
        Setting("long queries", 303, {"d": 2}),
        Setting("all sizes equal, as in the source", 304, {"n": 3, "d": 3}),
        Setting("as many tokens as features", 305, {"n": 5}),
        Setting("as many tokens as numbers in a query", 306, {"n": 3}),
        Setting("as many features as numbers in a query", 307, {"d": 3}),
    ),
)

# Heads of which H are counted into d_k, as the source counts them.
SIZES = Cast(
    name="sizes in the scale",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2, "H": 6},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "O": Letter(("n", "d_v"), "prp:scratch"),
    },
    outputs=("O",),
    settings=(
        Setting("random", 311),
        Setting("random again", 312),
        Setting("sizes in another order", 313, {"n": 5, "m": 3, "d_k": 4, "d_v": 6, "H": 2}),
    ),
)

_SIX = [(2, 4, 3), (3, 4, 2), (2, 3, 4), (4, 3, 2), (3, 2, 4), (4, 2, 3)]


def _even(values: dict, sizes: dict) -> None:
    """Tokens that can be divided by: no combination of them is almost zero."""
    values["X"] = values["X"] / 8 + np.eye(*values["X"].shape)


def _of_lower_rank(letter: str):
    """Even tokens, and a weight whose last column is its first."""

    def change(values: dict, sizes: dict) -> None:
        _even(values, sizes)
        values[letter][:, -1] = values[letter][:, 0]

    return change


_CHANGES = {1: _of_lower_rank("W^Q"), 6: _of_lower_rank("W^K")}

# One head of self-attention without a scale; n, d and d_k stand in every order.
CIRCUIT = Cast(
    name="merged circuit",
    sizes={"n": 2, "d": 4, "d_k": 3},
    letters={
        "X": Letter(("n", "d")),
        "W^Q": Letter(("d", "d_k")),
        "W^K": Letter(("d", "d_k")),
        "b^Q": Letter(("1", "d_k")),
        "b^K": Letter(("1", "d_k")),
        "M": Letter(("d", "d"), "prp:merge_middle"),
        "A": Letter(("n", "n"), "why:merge"),
    },
    outputs=("A",),
    settings=tuple(
        Setting(f"{n} tokens, {d} features, d_k = {d_k}", 320 + i,
                {"n": n, "d": d, "d_k": d_k}, _CHANGES.get(i, _even))
        for i, (n, d, d_k) in enumerate([*_SIX, (3, 3, 2)])
    ),
)


ROTARY = Cast(
    name="rotary positions",
    sizes={"n": 4, "d": 5, "d_k": 3},
    letters={
        "X": Letter(("n", "d")),
        "W^Q": Letter(("d", "d_k")),
        "W^K": Letter(("d", "d_k")),
        "R": Letter(("n", "d_k", "d_k")),
    },
    outputs=(),
    rows={"x": "X"},
    settings=(
        Setting("random", 331),
        Setting("random again", 332),
        Setting("sizes in another order", 333, {"n": 3, "d": 2, "d_k": 4}),
    ),
)

SCRATCHED = (SCRATCH, SIZES, CIRCUIT, ROTARY)
