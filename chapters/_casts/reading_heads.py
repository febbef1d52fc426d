"""What the heads learned: a head without one key, a layer without one head."""

import numpy as np

from attnmath._formulas.softmax import softmax
from attnmath.page.scenes.cast import Cast, drawn, made, masks, rows
from attnmath.page.scenes.settings import calm, empty_row, filling, hidden, masked, setting

from . import _layer as layer


def one_hidden(values: dict, sizes: dict) -> None:
    """Row j of U hides key j."""
    values["U"] = np.where(np.eye(sizes["m"]), -np.inf, 0.0)


def one_feature_alike(values: dict, sizes: dict) -> None:
    """All values have the same first feature, and the last query has the second key alone."""
    values["B"][-1, :1] = values["B"][-1, 2:] = -np.inf
    values["V"][:, 0] = values["V"][0, 0]


# The first query has the last key alone, and the last the one before; the second has two of one value.
# The third may attend to all keys but the first.
few_keys = hidden("B", np.s_[0, :-1], np.s_[-1, :-2], (-1, -1), (1, 0), np.s_[1, 3:], (2, 0))


def two_of_one_value(values: dict, sizes: dict) -> None:
    values["V"][2] = values["V"][1]


@filling
def value_of_the_mean(values: dict, sizes: dict, key: int) -> None:
    """The value of this key is the mean of all, as the last query reads them."""
    Q, K, V, B, gamma = (values[name] for name in ("Q", "K", "V", "B", "gamma"))
    P = softmax(gamma * (Q[-1:] @ K.T) + B[-1:])
    rest = np.arange(len(V)) != key
    V[key] = (P[0, rest] @ V[rest]) / (1 - P[0, key])


@filling
def silent(values: dict, sizes: dict, head: int) -> None:
    """Every head but one speaks."""
    values["chi"] = 1.0 * (np.arange(sizes["H"]) != head)[:, None, None]


REMOVAL = Cast(
    name="a head without a key",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters=drawn("Q, K, V, B, U, gamma, c") | made("A, P, L, O", "eq:attention_map")
    | made("D", "prp:row_statistic") | made("hat P, hat O"),
    outputs=("O",),
    rows=rows("q, k, v, o, a, p, u, hat p, hat o"),
    constants=("U",),
    settings=(
        setting("random bias", 601, one_feature_alike, one_hidden),
        setting("empty row", 602, empty_row, value_of_the_mean(0), one_hidden),
        setting("few keys", 603, calm, few_keys, two_of_one_value, one_hidden),
        setting("sizes in another order, masked", 605, masked, value_of_the_mean(1), one_hidden,
                n=3, m=4, d_k=2, d_v=5),
    ),
)

ABLATION = Cast(
    name="a layer without a head",
    sizes=layer.SIZES,
    letters=layer.LAYER.without("C").letters | masks("chi") | made("hat Y"),
    outputs=("Y",),
    settings=(
        setting("random bias", 611, calm, masked, silent(0)),
        setting("empty row", 612, calm, empty_row, silent(1)),
        setting("no biases", 614, calm, layer.no_biases, silent(1)),
        setting("sizes in another order", 613, calm, layer.no_key_bias, silent(1), **layer.REORDERED),
    ),
)

CASTS = REMOVAL, ABLATION
