"""A layer with heads, and its letters, from which other casts are made."""

from attnmath.page.scenes.cast import Cast, drawn, made, rows
from attnmath.page.scenes.settings import calm, empty_row, last_row_empty, masked, setting, zero, zero_at

WEIGHTS = "W^Q, W^K, W^V, W^O, b^Q, b^K, b^V, b^O, B, gamma"
INSIDE = "Q, K, V, A, P, O, Y"
SELF = {"m": "n", "d_z": "d"}  # the sizes of a layer whose keys are its own tokens: Z = X

SIZES = {"n": 5, "m": 6, "d": 7, "d_z": 9, "d_k": 3, "d_v": 4, "H": 2}
REORDERED = {"n": 7, "m": 6, "d": 5, "d_z": 4, "d_k": 9, "d_v": 8, "H": 3}

no_biases = zero("b^Q", "b^K", "b^V", "b^O", "B")
no_query_bias, no_key_bias, no_value_bias = (zero_at(b, -1) for b in ("b^Q", "b^K", "b^V"))  # in the last head

LAYER = Cast(
    name="layer",
    sizes=SIZES,
    letters=drawn(f"X, Z, {WEIGHTS}") | made(INSIDE, "eq:multihead_map") | made("C", "prp:concatenation")
    | made("D", "prp:layer_statistic"),
    outputs=("Y",),
    rows=rows("q, k, v, o, x, y, z"),
    settings=(
        setting("random bias", 51, calm),
        setting("causal", 52, calm, masked),
        setting("empty row", 53, calm, empty_row),
        setting("sizes in another order", 54, calm, last_row_empty, **REORDERED),
        setting("no key bias in one head", 55, calm, no_key_bias),
        setting("no query bias in one head", 56, calm, no_query_bias),
        setting("no score bias", 57, calm, zero("B")),
        setting("no biases", 58, calm, no_biases),
    ),
)
