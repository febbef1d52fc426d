"""The last step of a layer by itself, the layer, and groups of heads."""

from attnmath.page.scenes.cast import Cast, drawn, made
from attnmath.page.scenes.settings import empty_row, last_row_empty, setting, three

from ._layer import LAYER

# Here C has a gradient.
CONCATENATION = Cast(
    name="concatenation",
    sizes={"n": 3, "d": 5, "d_v": 4, "H": 2},
    letters=drawn("O, W^O, b^O") | made("C") | made("Y", "prp:concatenated_output"),
    outputs=("Y",),
    settings=three(91, n=5, d=4, d_v=2, H=3),
)

GROUPED = Cast(
    name="grouped",
    sizes={"n": 3, "m": 5, "d_k": 6, "d_v": 7, "H": 4, "G": 2},
    letters=drawn("Q, K, V, B, gamma") | made("A, P, O"),
    outputs=("O",),
    settings=(
        setting("random bias", 71),
        setting("empty row", 72, empty_row),
        setting("sizes in another order", 73, last_row_empty, n=5, m=3, d_k=4, d_v=2, H=9, G=3),
    ),
)

CASTS = CONCATENATION, LAYER, GROUPED
