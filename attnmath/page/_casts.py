"""The casts of the book: which letters there are, their shapes, and how each is filled.

Sizes are pairwise distinct and never 1, but for the settings that ask for n = m.
"""

import numpy as np

from attnmath._arrays import default_scale
from attnmath.page._cast import Cast, Letter, Setting
from attnmath.page._casts_applications import APPLIED
from attnmath.page._casts_blocks import LOSS, NETWORK, NORM, SILU
from attnmath.page._casts_blog import BLOG
from attnmath.page._casts_bugs import BUGS
from attnmath.page._casts_columns import COLUMNS, JACOBIANS, MEANT, SELF_COLUMNS, SELF_JACOBIAN
from attnmath.page._casts_comparisons import COMPARED
from attnmath.page._casts_conventions import CONVENTIONS
from attnmath.page._casts_depth import DECODER, GAUGE, MERGED, STEP
from attnmath.page._casts_examine import EXAMINE
from attnmath.page._casts_flash import FLASH
from attnmath.page._casts_heads import ABLATION, REMOVAL
from attnmath.page._casts_jvp import FORWARD, SECOND_TANGENT
from attnmath.page._casts_layer import (
    CONCATENATION,
    GROUPED,
    LAYER,
    LINEAR,
    LINEAR_BATCH,
    SELF,
    empty_row,
    first_zero,
    last_row_empty,
    together,
)
from attnmath.page._casts_limits import BALL, FINITE, REACH
from attnmath.page._casts_masks import DROPOUT, EQUAL, MASKS
from attnmath.page._casts_merge import SCRATCHED
from attnmath.page._casts_others import OTHER_TEXTS
from attnmath.page._casts_proved import PROVED
from attnmath.page._casts_question import ANSWER, CAUSAL, QUESTION, VALUES
from attnmath.page._casts_rounding import ROUNDING
from attnmath.page._casts_sdpa import SOURCE_SDPA
from attnmath.page._casts_second import SECOND


def _zero_bias(values: dict, sizes: dict) -> None:
    values["B"] = np.zeros_like(values["B"])


def _causal(values: dict, sizes: dict) -> None:
    """Query i may attend to the keys j <= i + m - n, and the kept entries of B stay."""
    n, m = sizes["n"], sizes["m"]
    ahead = np.arange(m)[None, :] > np.arange(n)[:, None] + m - n
    values["B"] = np.where(ahead, -np.inf, values["B"])


def _default_scale(values: dict, sizes: dict) -> None:
    values["gamma"] = 0 * values["gamma"] + default_scale(sizes["d_k"], values["gamma"])


def _permutation(values: dict, sizes: dict) -> None:
    """All keys move on by one place."""
    values["Pi"] = np.roll(np.eye(sizes["m"]), 1, axis=0)


def _some_move(values: dict, sizes: dict) -> None:
    """The first key stays, and so do those after the fourth; the three between change places."""
    values["Pi"] = np.eye(sizes["m"])[[0, 2, 3, 1, *range(4, sizes["m"])]]


def _two_exchanged(values: dict, sizes: dict) -> None:
    values["Pi"] = np.eye(sizes["m"])[[1, 0, *range(2, sizes["m"])]]


def _masked_entries(values: dict, sizes: dict) -> None:
    A = values["A"]
    A[1, 1] = A[-1, 0] = -np.inf
    if sizes["m"] > 3:
        A[1, -1] = A[2, 0] = A[2, 3] = -np.inf
    _masked_row(values, sizes)


def _masked_row(values: dict, sizes: dict) -> None:
    values["a"][0, -2] = -np.inf


def _rows_empty(values: dict, sizes: dict) -> None:
    """Two queries may attend to nothing, no other to the first key, and one not to the second."""
    values["B"] = values["B"].copy()
    values["B"][1, 1] = -np.inf
    values["B"][:, 0] = values["B"][2] = values["B"][-1] = -np.inf


SOFTMAX = Cast(
    name="softmax",
    sizes={"n": 4, "m": 5},
    letters={
        "A": Letter(("n", "m")),
        "tau": Letter(("1", "1"), "positive"),
        "a": Letter(("1", "m")),
        "c": Letter(("1", "1")),
        "P": Letter(("n", "m"), "eq:softmax"),
        "L": Letter(("n", "1"), "eq:logsumexp"),
        "p": Letter(("1", "m"), "prp:softmax_row"),
        "J": Letter(("n", "m", "m"), "eq:softmax_jacobian"),
    },
    outputs=("P", "L", "p"),
    settings=(
        Setting("random", 1),
        Setting("random again", 2),
        Setting("n = m, one entry of a masked", 3, {"n": 5}, _masked_row),
        Setting("n > m", 5, {"n": 3, "m": 2}),
        Setting("masked entries", 4, change=_masked_entries),
        Setting("masked entries, n = m", 7, {"n": 5}, _masked_entries),
        Setting("masked entries, m = 2", 6, {"n": 3, "m": 2}, _masked_entries),
    ),
)

HEAD = Cast(
    name="head",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "c": Letter(("1", "d_k")),
        "Pi": Letter(("m", "m")),
        "A": Letter(("n", "m"), "eq:attention_map"),
        "P": Letter(("n", "m"), "eq:attention_map"),
        "L": Letter(("n", "1"), "eq:attention_map"),
        "O": Letter(("n", "d_v"), "eq:attention_map"),
        "D": Letter(("n", "1"), "prp:row_statistic"),
    },
    outputs=("O",),
    rows={"q": "Q", "k": "K", "v": "V", "o": "O"},
    settings=(
        Setting("random bias, but for the first query", 11, change=together(_permutation, first_zero("B"))),
        Setting("no bias", 12, change=together(_two_exchanged, _zero_bias)),
        Setting("causal", 13, change=together(_permutation, _causal)),
        Setting("empty row", 14, change=together(_some_move, empty_row)),
        Setting("n = m, two empty rows", 17, {"n": 5}, change=together(_some_move, _rows_empty)),
        Setting(
            "sizes in another order, causal",
            16,
            {"n": 3, "m": 2, "d_k": 4, "d_v": 5},
            change=together(_permutation, _causal),
        ),
        Setting(
            "n = m, causal, default scale",
            15,
            {"n": 5},
            change=together(_permutation, _causal, _default_scale),
        ),
    ),
)

BATCH = Cast(
    name="batch",
    sizes={"n": 4, "m": 5, "d_k": 2, "d_v": 6, "H": 3},
    letters={
        "Q": Letter(("H", "n", "d_k")),
        "K": Letter(("H", "m", "d_k")),
        "V": Letter(("H", "m", "d_v")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "A": Letter(("H", "n", "m"), "prp:heads_map"),
        "P": Letter(("H", "n", "m"), "prp:heads_map"),
        "O": Letter(("H", "n", "d_v"), "prp:heads_map"),
    },
    outputs=("O",),
    settings=(
        Setting("random bias", 21),
        Setting(
            "sizes in another order", 23, {"n": 5, "m": 4, "d_k": 6, "d_v": 3, "H": 2}, last_row_empty
        ),
        Setting("empty row", 22, change=empty_row),
    ),
)

MOVES = Cast(
    name="moves",
    sizes={"n": 4, "m": 5, "d": 3},
    letters={
        "X": Letter(("n", "d")),
        "F": Letter(("d", "m")),
        "E": Letter(("n", "m")),
        "N": Letter(("m", "d")),
        "epsilon": Letter(("1", "1")),
        "U": Letter(("n", "m"), "prp:gate"),
        "Y": Letter(("n", "d"), "prp:gate"),
        "r": Letter(("n", "1"), "prp:row_lengths"),
        "S": Letter(("n", "n"), "prp:gram"),
    },
    outputs=("Y", "r", "S"),
    settings=(
        Setting("random", 31),
        Setting("random again", 32),
        Setting("sizes in another order", 33, {"n": 3, "m": 2, "d": 4}),
    ),
)

CHAPTERS = {
    "index": (HEAD,),
    "adjoints": (MOVES,),
    "checking": (MOVES,),
    "softmax": (SOFTMAX,),
    "attention_map": (HEAD, BATCH),
    "attention": (HEAD, BATCH),
    "scale": (HEAD,),
    "projections": (LINEAR, LINEAR_BATCH, LAYER),
    "heads": (CONCATENATION, LAYER, GROUPED),
    "inputs": (SELF, MERGED),
    "cross": (DECODER, LAYER),
    "laws": (GAUGE, STEP, GROUPED, SELF),
    "blocks": (NORM, SILU, NETWORK, LOSS),
    "masks": MASKS,
    "empty_rows": (EQUAL, HEAD),
    "dropout": (DROPOUT,),
    "jacobians": (JACOBIANS, SELF_JACOBIAN),
    "source_columns": (COLUMNS, MEANT, SELF_COLUMNS),
    "source_blog": (BLOG,),
    "source_question": (QUESTION, ANSWER, VALUES, SELF, CAUSAL, LAYER),
    "lipschitz": (REACH, BALL, FINITE),
    "reading_heads": (REMOVAL, ABLATION),
    "rounding": (ROUNDING,),
    "proved": (PROVED,),
    "bugs": (BUGS, DROPOUT),
    "conventions": CONVENTIONS,
    "examine": EXAMINE,
    "applications": APPLIED,
    "flash": FLASH,
    "jvp": (FORWARD, LAYER, SECOND_TANGENT),
    "second": SECOND,
    "source_merge": SCRATCHED,
    "comparisons": COMPARED,
    "source_sdpa": SOURCE_SDPA,
    "other_texts": OTHER_TEXTS,
}
