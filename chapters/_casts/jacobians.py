"""Full Jacobians of a head, and of self-attention."""

from attnmath.page.scenes.cast import Cast, drawn, made, rows
from attnmath.page.scenes.settings import calm, empty_row, hidden, last_row_empty, masked, setting

from . import _layer as layer
from ._head import HEAD

JACOBIANS = HEAD.without("L, D").plus(
    drawn("E") | made("U, J^Q: n d_v n d_k, J^K: n d_v m d_k, J^V: n d_v m d_v, J^A: n d_v n m"),
    name="jacobians",
    sizes={"n": 2, "m": 4, "d_k": 3, "d_v": 5},
    rows=rows("q, k, v, o, p"),
    settings=(
        setting("causal", 506, calm, masked),
        setting("empty row", 502, calm, empty_row),
        setting("sizes in another order", 503, calm, last_row_empty, hidden("B", 2), n=4, m=3, d_k=5, d_v=2),
    ),
)

SELF = Cast(
    name="self_jacobian",
    sizes={"n": 3, "d": 4, "d_k": 5, "d_v": 6, "H": 2},
    letters=drawn(f"X, {layer.WEIGHTS}") | made(layer.INSIDE, "eq:self_attention") | made("U: H n d n, J"),
    outputs=("Y",),
    rows=rows("q, k, v, o, x, y"),
    same=layer.SELF,
    settings=(
        setting("causal", 511, calm, masked),
        setting("empty row", 512, calm, empty_row),
        setting("sizes in another order", 513, calm, n=2, d=3, d_k=6, d_v=5, H=4),
    ),
)

CASTS = JACOBIANS, SELF, "softmax"
