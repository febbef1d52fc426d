"""A head, and several at once."""

import numpy as np

from attnmath._words.arrays import default_scale
from attnmath.page.scenes.cast import Cast, drawn, made
from attnmath.page.scenes.settings import (
    causal,
    empty_row,
    filling,
    hidden,
    last_row_empty,
    setting,
    zero,
    zero_at,
)

from . import _head


def default(values: dict, sizes: dict) -> None:
    values["gamma"] = 0 * values["gamma"] + default_scale(sizes["d_k"], values["gamma"])


@filling
def moved(values: dict, sizes: dict, *first: int) -> None:
    """A permutation that begins with these keys, after which the others stay."""
    values["Pi"] = np.eye(sizes["m"])[[*first, *range(len(first), sizes["m"])]]


def rolled(values: dict, sizes: dict) -> None:
    """All keys move on by one place."""
    values["Pi"] = np.roll(np.eye(sizes["m"]), 1, axis=0)


# Two queries may attend to nothing, no other to the first key, and one not to the second.
two_empty = hidden("B", (1, 1), np.s_[:, 0], 2, -1)

HEAD = _head.HEAD.plus(
    drawn("c, Pi"),
    name="head",
    settings=(
        setting("random bias, but for the first query", 11, rolled, zero_at("B", 0)),
        setting("no bias", 12, moved(1, 0), zero("B")),
        setting("causal", 13, rolled, causal()),
        setting("empty row", 14, moved(0, 2, 3, 1), empty_row),
        setting("n = m, two empty rows", 17, moved(0, 2, 3, 1), two_empty, n=5),
        setting("sizes in another order, causal", 16, rolled, causal(), n=3, m=2, d_k=4, d_v=5),
        setting("n = m, causal, default scale", 15, rolled, causal(), default, n=5),
    ),
)

BATCH = Cast(
    name="batch",
    sizes={"n": 4, "m": 5, "d_k": 2, "d_v": 6, "H": 3},
    letters=drawn("Q, K, V, B, gamma") | made("A, P, O"),
    outputs=("O",),
    settings=(
        setting("random bias", 21),
        setting("sizes in another order", 23, last_row_empty, n=5, m=4, d_k=6, d_v=3, H=2),
        setting("empty row", 22, empty_row),
    ),
)

CASTS = HEAD, BATCH
