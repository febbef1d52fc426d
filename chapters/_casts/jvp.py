"""Forward mode: a head with dropout and its log-sum-exp, and two directions at once."""

from attnmath.page.scenes.cast import Cast, drawn, made, rows
from attnmath.page.scenes.settings import empty_row, last_row_empty, masked, masked_before, setting

from ._dropout import dropped, no_dropout

FORWARD = Cast(
    name="forward mode",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters=drawn("Q, K, V, B, gamma, R") | made("A, P", "prp:dropout_map") | made("L", "eq:logsumexp")
    | made("O", "prp:dropout_map"),
    outputs=("O",),
    rows=rows("v, o"),
    constants=("R",),
    settings=(
        setting("random bias", 701, dropped),
        setting("no dropout", 702, no_dropout),
        setting("causal", 703, masked, dropped),
        setting("sizes in another order", 705, dropped, n=5, m=3, d_k=2, d_v=4),
        setting("n = m, the first keys hidden", 706, masked_before, dropped, n=5),
    ),
)

# The tangent along one direction is an output, and moves along another.
SECOND_TANGENT = Cast(
    name="two directions",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters=drawn("Q, K, V, E^Q, E^K, E^V, B, gamma") | made("A, P, O", "eq:attention_map")
    | made("U, sigma, F, Y"),
    outputs=("O", "Y"),
    constants=("E^Q", "E^K", "E^V", "B", "gamma"),
    settings=(
        setting("random bias", 711),
        setting("causal", 712, masked),
        setting("empty row", 713, empty_row),
        setting("sizes in another order", 714, last_row_empty, n=5, m=3, d_k=4, d_v=6),
    ),
)

CASTS = FORWARD, "layer", SECOND_TANGENT
