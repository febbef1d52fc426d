"""The casts of full Jacobians, and of a source whose tokens are columns."""

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting
from attnmath.page._casts_layer import WEIGHTS, calm, empty_row, inside, last_row_empty, masked, own


def _third_empty(values: dict, sizes: dict) -> None:
    last_row_empty(values, sizes)
    values["B"][2] = -np.inf


JACOBIANS = Cast(
    name="jacobians",
    sizes={"n": 2, "m": 4, "d_k": 3, "d_v": 5},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "E": Letter(("d_k", "d_k")),
        "A": Letter(("n", "m"), "eq:attention_map"),
        "P": Letter(("n", "m"), "eq:attention_map"),
        "O": Letter(("n", "d_v"), "eq:attention_map"),
        "U": Letter(("n", "d_v", "m"), "eq:jacobians"),
        "J^Q": Letter(("n", "d_v", "n", "d_k"), "eq:jacobians"),
        "J^K": Letter(("n", "d_v", "m", "d_k"), "eq:jacobians"),
        "J^V": Letter(("n", "d_v", "m", "d_v"), "eq:jacobians"),
        "J^A": Letter(("n", "d_v", "n", "m"), "eq:jacobians"),
    },
    outputs=("O",),
    rows={"q": "Q", "k": "K", "v": "V", "o": "O", "p": "P"},
    settings=(
        Setting("causal", 506, change=calm(masked)),
        Setting("empty row", 502, change=calm(empty_row)),
        Setting("sizes in another order", 503, {"n": 4, "m": 3, "d_k": 5, "d_v": 2}, calm(_third_empty)),
    ),
)

SELF_JACOBIAN = Cast(
    name="self_jacobian",
    sizes={"n": 3, "d": 4, "d_k": 5, "d_v": 6, "H": 2},
    letters={
        "X": Letter(("n", "d")),
        **own(WEIGHTS),
        **own(inside("eq:self_attention")),
        "U": Letter(("H", "n", "d", "n"), "eq:self_attention_jacobian"),
        "J": Letter(("n", "d", "n", "d"), "eq:self_attention_jacobian"),
    },
    outputs=("Y",),
    rows={"q": "Q", "k": "K", "v": "V", "o": "O", "x": "X", "y": "Y"},
    settings=(
        Setting("causal", 511, change=calm(masked)),
        Setting("empty row", 512, change=calm(empty_row)),
        Setting("sizes in another order", 513, {"n": 2, "d": 3, "d_k": 6, "d_v": 5, "H": 4}, calm()),
    ),
)


def small_scale(values: dict, sizes: dict) -> None:
    """So that no weight is almost 1."""
    values["lambda"] = values["lambda"] / 2


def reading(chi: float, order: tuple = (-1, 0, 1)):
    """The softmax of each row (1) or of each column (0), a permutation, calm scores."""

    def change(values: dict, sizes: dict) -> None:
        small_scale(values, sizes)
        values["Pi"] = np.eye(sizes["m"])[list(order)]
        values["chi"] = np.full((1, 1), float(chi))

    return change


OTHER_SIZES = {"n": 3, "m": 2, "d_k": 4, "d_v": 5}
INPUTS = {
    "A": Letter(("d_k", "n")),
    "B": Letter(("d_k", "n")),
    "lambda": Letter(("1", "1")),
}
NAMES = {
    "e": Letter(("m", "m", "1"), "prp:columns_names"),
    "epsilon": Letter(("n", "n", "1"), "prp:columns_names"),
    "a": Letter(("n", "d_k", "1"), "prp:columns_names"),
    "b": Letter(("n", "d_k", "1"), "prp:columns_names"),
    "c": Letter(("n", "m", "1"), "prp:columns_names"),
}
ROWS = {
    "s": Letter(("m", "m", "1"), "prp:columns_rows"),
    "S": Letter(("m", "m", "m"), "prp:columns_rows"),
}

COLUMNS = Cast(
    name="columns",
    sizes={"n": 2, "m": 3, "d_k": 4},
    letters={
        "x": Letter(("m", "n", "1")),
        "y": Letter(("m", "n", "1")),
        **INPUTS,
        "C": Letter(("m", "n")),
        "chi": Letter(("1", "1")),
        "Pi": Letter(("m", "m")),
        "X": Letter(("n", "m"), "prp:columns_function"),
        "Y": Letter(("n", "m"), "prp:columns_function"),
        "G": Letter(("m", "m"), "prp:columns_function"),
        "F": Letter(("m", "m"), "prp:columns_function"),
        "P": Letter(("m", "m"), "prp:columns_function"),
        **NAMES,
        **ROWS,
        "F'": Letter(("m", "m"), "prp:columns_readings"),
        "P'": Letter(("m", "m"), "prp:columns_readings"),
        "t": Letter(("m", "m", "1"), "prp:columns_of_weights"),
    },
    outputs=("P", "P'"),
    constants=("A", "B", "C", "lambda", "chi"),
    settings=(
        Setting("rows", 521, change=reading(1)),
        Setting("columns", 522, change=reading(0)),
        Setting("columns, more features", 523, OTHER_SIZES, reading(0, (1, 0))),
        Setting("n = m, rows", 524, {"n": 3}, reading(1, (1, 0, 2))),
        Setting("n = m, columns", 525, {"n": 3}, reading(0, (1, 0, 2))),
    ),
)

MEANT = Cast(
    name="meant",
    sizes={"n": 2, "m": 3, "d_k": 4, "d_v": 5},
    letters={
        "x": Letter(("m", "n", "1")),
        "y": Letter(("m", "n", "1")),
        **INPUTS,
        "D": Letter(("d_v", "n")),
        "X": Letter(("n", "m"), "prp:columns_function"),
        "Y": Letter(("n", "m"), "prp:columns_function"),
        "G": Letter(("m", "m"), "prp:columns_function"),
        "F": Letter(("m", "m"), "prp:columns_function"),
        **ROWS,
        "O": Letter(("m", "d_v"), "prp:columns_meant"),
    },
    outputs=("O",),
    settings=(
        Setting("random", 531, change=small_scale),
        Setting("sizes in another order", 532, OTHER_SIZES, small_scale),
        Setting("more tokens", 533, {"n": 3, "m": 4, "d_k": 5, "d_v": 2}, small_scale),
    ),
)

SELF_COLUMNS = Cast(
    name="self_columns",
    sizes={"n": 2, "m": 3, "d_k": 4, "d_v": 5},
    letters={
        "x": Letter(("m", "n", "1")),
        **INPUTS,
        "C": Letter(("m", "n")),
        "D": Letter(("d_v", "n")),
        "X": Letter(("n", "m"), "prp:columns_function"),
        "G": Letter(("m", "m"), "prp:columns_self"),
        "F": Letter(("m", "m"), "prp:columns_self"),
        "P": Letter(("m", "m"), "prp:columns_self"),
        "O": Letter(("m", "d_v"), "prp:columns_self"),
        **NAMES,
        **ROWS,
    },
    outputs=("P", "O"),
    settings=(
        Setting("random", 541, change=small_scale),
        Setting("sizes in another order", 542, OTHER_SIZES, small_scale),
        Setting("more tokens", 543, {"n": 3, "m": 4, "d_k": 5, "d_v": 2}, small_scale),
    ),
)
