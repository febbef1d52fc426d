"""A decoder of two layers."""

from attnmath.page.scenes.cast import Cast, drawn, made
from attnmath.page.scenes.settings import empty_row, last_row_empty, masked, setting

DECODER = Cast(
    name="decoder",
    sizes={"n": 4, "m": 5, "d": 6, "d_z": 7, "d_k": 3, "d_v": 8, "layers": 2},
    letters=drawn("X, Z, W^Q, W^K, W^V, W^O, B, gamma") | made("K, V, Q, X', Q', X''"),
    outputs=("X''",),
    settings=(
        setting("random bias", 111),
        setting("empty row", 112, empty_row),
        setting("causal", 113, masked),
        setting("sizes in another order", 114, last_row_empty, n=6, m=5, d=4, d_z=3, d_k=8, d_v=7),
    ),
)

CASTS = DECODER, "layer"
