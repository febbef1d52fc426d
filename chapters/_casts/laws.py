"""A head whose features are changed to others, and a layer after a step of training."""

from attnmath.page.scenes.cast import drawn
from attnmath.page.scenes.settings import divided, empty_row, last_row_empty, masked, setting, zero, zero_at

from ._head import HEAD
from ._layer import LAYER, no_value_bias

GAUGE = HEAD.without("L, D").plus(
    drawn("E, F"),
    name="gauge",
    settings=(
        setting("random bias, but for the first query", 121, zero_at("B", 0)),
        setting("no bias", 122, zero("B")),
        setting("causal", 123, masked),
        setting("empty row", 124, empty_row),
        setting("sizes in another order", 125, last_row_empty, n=4, m=3, d_k=5, d_v=2),
    ),
)

short = divided(8, "eta")  # so that the gradient, times the step, is not large beside the weights

STEP = LAYER.plus(
    drawn("eta"),
    name="step",
    settings=(
        *(one.then(short) for one in LAYER.settings),
        setting("no value bias in one head", 127, no_value_bias, short),
    ),
)

CASTS = GAUGE, STEP, "grouped", "self"
