"""The casts of the layer: projections, heads, groups of heads, self-attention."""

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting

WEIGHTS = {
    "W^Q": Letter(("H", "d", "d_k")),
    "W^K": Letter(("H", "d_z", "d_k")),
    "W^V": Letter(("H", "d_z", "d_v")),
    "W^O": Letter(("H", "d_v", "d")),
    "b^Q": Letter(("H", "1", "d_k")),
    "b^K": Letter(("H", "1", "d_k")),
    "b^V": Letter(("H", "1", "d_v")),
    "b^O": Letter(("1", "d")),
    "B": Letter(("n", "m")),
    "gamma": Letter(("1", "1")),
}


def inside(label: str) -> dict:
    """What a layer computes on its way, as the display `label` defines it."""
    return {
        "Q": Letter(("H", "n", "d_k"), label),
        "K": Letter(("H", "m", "d_k"), label),
        "V": Letter(("H", "m", "d_v"), label),
        "A": Letter(("H", "n", "m"), label),
        "P": Letter(("H", "n", "m"), label),
        "O": Letter(("H", "n", "d_v"), label),
        "Y": Letter(("n", "d"), label),
    }


def own(letters: dict) -> dict:
    """The letters of a layer whose keys are its own tokens: Z = X."""
    axes = {"m": "n", "d_z": "d"}
    return {
        k: Letter(tuple(axes.get(a, a) for a in spec.axes), spec.origin)
        for k, spec in letters.items()
    }


def no_biases(values: dict, sizes: dict) -> None:
    for letter in ("b^Q", "b^K", "b^V", "b^O", "B"):
        values[letter] = np.zeros_like(values[letter])


def without_bias(letter: str):
    """The bias of the last head is zero, and that of no other."""

    def change(values: dict, sizes: dict) -> None:
        values[letter] = values[letter].copy()
        values[letter][-1] = 0

    return change


def first_zero(letter: str):
    """The first row of a letter is zero, and no other."""

    def change(values: dict, sizes: dict) -> None:
        values[letter] = values[letter].copy()
        values[letter][0] = 0

    return change


no_query_bias, no_key_bias, no_value_bias = map(without_bias, ("b^Q", "b^K", "b^V"))


def no_score_bias(values: dict, sizes: dict) -> None:
    values["B"] = np.zeros_like(values["B"])


def masked(values: dict, sizes: dict) -> None:
    """Query i may attend to the keys j <= i + 1, so that the first row keeps two."""
    n, m = values["B"].shape
    ahead = np.arange(m)[None, :] > np.arange(n)[:, None] + 1
    values["B"] = np.where(ahead, -np.inf, values["B"])


def empty_row(values: dict, sizes: dict) -> None:
    """A query that may attend to nothing; one with a masked key, and the first sees all, one of them hardly."""
    B = values["B"].copy()
    B[2 % len(B), 2] = B[1] = -np.inf
    B[0, :2] = 0, -12
    values["B"] = B


def last_row_empty(values: dict, sizes: dict) -> None:
    """The first query may not attend to the first key, and the last one to nothing."""
    values["B"] = values["B"].copy()
    values["B"][0, 0] = values["B"][-1] = -np.inf


def masked_before(values: dict, sizes: dict) -> None:
    """Query i may attend to the keys j >= i - 1: the first keys are hidden from the last ones."""
    n, m = values["B"].shape
    before = np.arange(m)[None, :] < np.arange(n)[:, None] - 1
    values["B"] = np.where(before, -np.inf, values["B"])


def together(*changes):
    """One change after the other."""

    def change(values: dict, sizes: dict) -> None:
        for one in changes:
            one(values, sizes)

    return change


def calm(change=lambda values, sizes: None):
    """The change, with a scale so small that no weight of attention is almost 1."""

    def changed(values: dict, sizes: dict) -> None:
        values["gamma"] = values["gamma"] / 8
        change(values, sizes)

    return changed


LAYER = Cast(
    name="layer",
    sizes={"n": 5, "m": 6, "d": 7, "d_z": 9, "d_k": 3, "d_v": 4, "H": 2},
    letters={
        "X": Letter(("n", "d")),
        "Z": Letter(("m", "d_z")),
        **WEIGHTS,
        **inside("eq:multihead_map"),
        "C": Letter(("n", "H*d_v"), "prp:concatenation"),
        "D": Letter(("H", "n", "1"), "prp:layer_statistic"),
    },
    outputs=("Y",),
    rows={"q": "Q", "k": "K", "v": "V", "o": "O", "x": "X", "y": "Y", "z": "Z"},
    settings=(
        Setting("random bias", 51, change=calm()),
        Setting("causal", 52, change=calm(masked)),
        Setting("empty row", 53, change=calm(empty_row)),
        Setting(
            "sizes in another order", 54,
            {"n": 7, "m": 6, "d": 5, "d_z": 4, "d_k": 9, "d_v": 8, "H": 3}, calm(last_row_empty),
        ),
        Setting("no key bias in one head", 55, change=calm(no_key_bias)),
        Setting("no query bias in one head", 56, change=calm(no_query_bias)),
        Setting("no score bias", 57, change=calm(no_score_bias)),
        Setting("no biases", 58, change=calm(no_biases)),
    ),
)  # fmt: skip

# The last step of a layer by itself, where C has a gradient.
CONCATENATION = Cast(
    name="concatenation",
    sizes={"n": 3, "d": 5, "d_v": 4, "H": 2},
    letters={
        "O": Letter(("H", "n", "d_v")),
        "W^O": Letter(("H", "d_v", "d")),
        "b^O": Letter(("1", "d")),
        "C": Letter(("n", "H*d_v"), "prp:concatenation"),
        "Y": Letter(("n", "d"), "prp:concatenated_output"),
    },
    outputs=("Y",),
    settings=(
        Setting("random", 91),
        Setting("random again", 92),
        Setting("sizes in another order", 93, {"n": 5, "d": 4, "d_v": 2, "H": 3}),
    ),
)

SELF = Cast(
    name="self",
    sizes={"n": 5, "d": 7, "d_k": 3, "d_v": 4, "H": 2},
    letters={
        "X": Letter(("n", "d")),
        **own(WEIGHTS),
        **own(inside("eq:self_attention")),
        "D": Letter(("H", "n", "1"), "prp:layer_statistic"),
        "X'": Letter(("n", "d"), "prp:residual"),
    },
    outputs=("Y", "X'"),
    rows={"q": "Q", "k": "K", "x": "X", "x'": "X'"},
    settings=(
        Setting("random bias", 61, change=calm()),
        Setting("causal", 62, change=calm(masked)),
        Setting("empty row", 63, change=calm(empty_row)),
        Setting(
            "sizes in another order, no query bias in one head", 64,
            {"n": 4, "d": 5, "d_k": 7, "d_v": 6, "H": 3},
            calm(together(last_row_empty, no_query_bias)),
        ),
        Setting("no biases", 65, change=calm(no_biases)),
    ),
)  # fmt: skip

GROUPED = Cast(
    name="grouped",
    sizes={"n": 3, "m": 5, "d_k": 6, "d_v": 7, "H": 4, "G": 2},
    letters={
        "Q": Letter(("H", "n", "d_k")),
        "K": Letter(("G", "m", "d_k")),
        "V": Letter(("G", "m", "d_v")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "A": Letter(("H", "n", "m"), "prp:grouped_map"),
        "P": Letter(("H", "n", "m"), "prp:grouped_map"),
        "O": Letter(("H", "n", "d_v"), "prp:grouped_map"),
    },
    outputs=("O",),
    settings=(
        Setting("random bias", 71),
        Setting("empty row", 72, change=empty_row),
        Setting(
            "sizes in another order", 73,
            {"n": 5, "m": 3, "d_k": 4, "d_v": 2, "H": 9, "G": 3}, last_row_empty,
        ),
    ),
)  # fmt: skip

LINEAR = Cast(
    name="linear",
    sizes={"n": 4, "d": 3, "d_k": 5},
    letters={
        "X": Letter(("n", "d")),
        "W": Letter(("d", "d_k")),
        "b": Letter(("1", "d_k")),
        "Y": Letter(("n", "d_k"), "eq:linear"),
    },
    outputs=("Y",),
    settings=(
        Setting("random", 81),
        Setting("random again", 82),
        Setting("sizes in another order", 83, {"n": 3, "d": 4, "d_k": 2}),
    ),
)

LINEAR_BATCH = Cast(
    name="linear_batch",
    sizes={"batch": 2, "n": 4, "d": 3, "d_k": 5},
    letters={
        "X": Letter(("batch", "n", "d")),
        "W": Letter(("d", "d_k")),
        "b": Letter(("1", "d_k")),
        "Y": Letter(("batch", "n", "d_k"), "prp:linear_batch"),
    },
    outputs=("Y",),
    settings=(
        Setting("random", 84),
        Setting("random again", 85),
        Setting("sizes in another order", 86, {"batch": 5, "n": 3, "d": 4, "d_k": 2}),
    ),
)
