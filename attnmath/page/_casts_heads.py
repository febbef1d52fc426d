"""The casts of what the heads learned: a head without one key, a layer without one head."""

import numpy as np

from attnmath._softmax import softmax
from attnmath.page._cast import Cast, Letter, Setting
from attnmath.page._casts_layer import WEIGHTS, calm, empty_row, inside, masked, no_biases, no_key_bias


def _one_hidden(change=lambda values, sizes: None):
    """The change, and row j of U hides key j."""

    def changed(values: dict, sizes: dict) -> None:
        change(values, sizes)
        values["U"] = np.where(np.eye(sizes["m"]), -np.inf, 0.0)

    return changed


def _one_feature_alike(values: dict, sizes: dict) -> None:
    """All values have the same first feature, and the last query has the second key alone."""
    B, V = values["B"].copy(), values["V"].copy()
    B[-1, :1] = B[-1, 2:] = -np.inf
    V[:, 0] = V[0, 0]
    values["B"], values["V"] = B, V


def _few_keys(values: dict, sizes: dict) -> None:
    """The first query has the last key alone, and the last the one before; the second has two of one value.

    The third may attend to all keys but the first.
    """
    B, V = values["B"].copy(), values["V"].copy()
    B[0, :-1] = B[-1, :-2] = B[-1, -1] = -np.inf
    B[1, 0] = B[1, 3:] = B[2, 0] = -np.inf
    V[2] = V[1]
    values["B"], values["V"] = B, V


def _value_of_the_mean(key: int, change):
    """The change; and the value of this key is the mean of all, as the last query reads them."""

    def changed(values: dict, sizes: dict) -> None:
        change(values, sizes)
        Q, K, V, B, gamma = (values[name] for name in ("Q", "K", "V", "B", "gamma"))
        P = softmax(gamma * (Q[-1:] @ K.T) + B[-1:])
        rest = np.arange(len(V)) != key
        V[key] = (P[0, rest] @ V[rest]) / (1 - P[0, key])

    return changed


def _silent(head: int, change):
    """The change, and every head but one speaks."""

    def changed(values: dict, sizes: dict) -> None:
        calm(change)(values, sizes)
        values["chi"] = 1.0 * (np.arange(sizes["H"]) != head)[:, None, None]

    return changed


REMOVAL = Cast(
    name="a head without a key",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "B": Letter(("n", "m")),
        "U": Letter(("m", "m")),
        "gamma": Letter(("1", "1")),
        "c": Letter(("1", "d_v")),
        "A": Letter(("n", "m"), "eq:attention_map"),
        "P": Letter(("n", "m"), "eq:attention_map"),
        "L": Letter(("n", "1"), "eq:attention_map"),
        "O": Letter(("n", "d_v"), "eq:attention_map"),
        "D": Letter(("n", "1"), "prp:row_statistic"),
        "hat P": Letter(("m", "n", "m"), "prp:without_key"),
        "hat O": Letter(("m", "n", "d_v"), "prp:without_key"),
    },
    outputs=("O",),
    rows={
        "q": "Q", "k": "K", "v": "V", "o": "O", "a": "A", "p": "P", "u": "U", "hat p": "hat P",
        "hat o": "hat O",
    },
    constants=("U",),
    settings=(
        Setting("random bias", 601, change=_one_hidden(_one_feature_alike)),
        Setting("empty row", 602, change=_one_hidden(_value_of_the_mean(0, empty_row))),
        Setting("few keys", 603, change=_one_hidden(calm(_few_keys))),
        Setting(
            "sizes in another order, masked", 605,
            {"n": 3, "m": 4, "d_k": 2, "d_v": 5}, _one_hidden(_value_of_the_mean(1, masked)),
        ),
    ),
)  # fmt: skip

ABLATION = Cast(
    name="a layer without a head",
    sizes={"n": 5, "m": 6, "d": 7, "d_z": 9, "d_k": 3, "d_v": 4, "H": 2},
    letters={
        "X": Letter(("n", "d")),
        "Z": Letter(("m", "d_z")),
        **WEIGHTS,
        **inside("eq:multihead_map"),
        "D": Letter(("H", "n", "1"), "prp:layer_statistic"),
        "chi": Letter(("H", "1", "1"), "mask"),
        "hat Y": Letter(("n", "d"), "prp:without_head"),
    },
    outputs=("Y",),
    settings=(
        Setting("random bias", 611, change=_silent(0, masked)),
        Setting("empty row", 612, change=_silent(1, empty_row)),
        Setting("no biases", 614, change=_silent(1, no_biases)),
        Setting(
            "sizes in another order", 613,
            {"n": 7, "m": 6, "d": 5, "d_z": 4, "d_k": 9, "d_v": 8, "H": 3}, _silent(1, no_key_bias),
        ),
    ),
)  # fmt: skip
