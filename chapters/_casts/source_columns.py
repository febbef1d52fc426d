"""A source whose tokens are columns, in its letters."""

import numpy as np

from attnmath.page.scenes.cast import Cast, drawn, made
from attnmath.page.scenes.settings import divided, filling, setting

small = divided(2, "lambda")  # so that no weight is almost 1


@filling
def reading(values: dict, sizes: dict, chi: float, *order: int) -> None:
    """The softmax of each row (1) or of each column (0), and a permutation."""
    values["Pi"] = np.eye(sizes["m"])[list(order)]
    values["chi"] = np.full((1, 1), float(chi))


OTHER_SIZES = {"n": 3, "m": 2, "d_k": 4, "d_v": 5}
TOKENS = drawn("x: m n 1, y: m n 1, A, B, lambda")
# Columns of matrices, each numbered by its first axis.
NAMES = made("e: m m 1, epsilon: n n 1, a: n d_k 1, b: n d_k 1, c: n m 1")
ROWS = made("s: m m 1, S: m m m")

COLUMNS = Cast(
    name="columns",
    sizes={"n": 2, "m": 3, "d_k": 4},
    letters=TOKENS | drawn("C, chi, Pi")
    | made("X, Y, G, F, P") | NAMES | ROWS | made("F', P'") | made("t: m m 1"),
    outputs=("P", "P'"),
    constants=("A", "B", "C", "lambda", "chi"),
    same={"k": "d_k"},
    settings=(
        setting("rows", 521, small, reading(1, -1, 0, 1)),
        setting("columns", 522, small, reading(0, -1, 0, 1)),
        setting("columns, more features", 523, small, reading(0, 1, 0), **OTHER_SIZES),
        setting("n = m, rows", 524, small, reading(1, 1, 0, 2), n=3),
        setting("n = m, columns", 525, small, reading(0, 1, 0, 2), n=3),
    ),
)


def three(seed: int) -> tuple:
    return (
        setting("random", seed, small),
        setting("sizes in another order", seed + 1, small, **OTHER_SIZES),
        setting("more tokens", seed + 2, small, n=3, m=4, d_k=5, d_v=2),
    )


MEANT = Cast(
    name="meant",
    sizes={"n": 2, "m": 3, "d_k": 4, "d_v": 5},
    letters=TOKENS | drawn("D") | made("X, Y, G, F") | ROWS | made("O"),
    outputs=("O",),
    same={"k": "d_k"},
    settings=three(531),
)

SELF = Cast(
    name="self_columns",
    sizes=MEANT.sizes,
    letters=drawn("x: m n 1, A, B, lambda, C, D") | made("X") | made("G, F, P, O") | NAMES | ROWS,
    outputs=("P", "O"),
    same={"k": "d_k"},
    settings=three(541),
)

CASTS = COLUMNS, MEANT, SELF
