"""Self-attention, and its merged weights."""

from attnmath.page.scenes.cast import Cast, drawn, made, rows
from attnmath.page.scenes.settings import calm, empty_row, last_row_empty, masked, setting

from . import _layer as layer

SELF = Cast(
    name="self",
    sizes={"n": 5, "d": 7, "d_k": 3, "d_v": 4, "H": 2},
    letters=drawn(f"X, {layer.WEIGHTS}") | made(layer.INSIDE, "eq:self_attention")
    | made("D", "prp:layer_statistic") | made("X'"),
    outputs=("Y", "X'"),
    rows=rows("q, k, x, x'"),
    same=layer.SELF,
    settings=(
        setting("random bias", 61, calm),
        setting("causal", 62, calm, masked),
        setting("empty row", 63, calm, empty_row),
        setting("sizes in another order, no query bias in one head", 64, calm, last_row_empty,
                layer.no_query_bias, n=4, d=5, d_k=7, d_v=6, H=3),
        setting("no biases", 65, calm, layer.no_biases),
    ),
)

MERGED = Cast(
    name="merged",
    sizes={"n": 4, "m": 5, "d": 6, "d_z": 7, "d_k": 3, "d_v": 8, "H": 2},
    letters=drawn("X, Z, W^Q, W^K, W^V, W^O, B, gamma") | made("M, N, A, P, Y"),
    outputs=("Y",),
    settings=(
        setting("random bias", 101),
        setting("empty row", 102, empty_row),
        setting("sizes in another order", 103, last_row_empty, n=6, m=5, d=4, d_z=3, d_k=8, d_v=2, H=7),
    ),
)

CASTS = SELF, MERGED
