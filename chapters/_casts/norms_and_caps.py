"""The norm without a mean; a head with normed queries and keys; a cap, and a head with one."""

from attnmath.page.scenes.cast import Cast, drawn, made, positive, rows
from attnmath.page.scenes.settings import divided, full, hidden, setting, three, zero

from ._head import HEAD

RMS = Cast(
    name="root mean square norm",
    sizes={"n": 4, "d": 5},
    letters=drawn("X, alpha") | positive("epsilon") | made("r, hat X, Y", "eq:rms_norm"),
    outputs=("Y",),
    rows=rows("x, hat x, y"),
    names={"hat X": "X_hat"},
    constants=("epsilon",),
    settings=(
        setting("random", 411),
        setting("no epsilon", 412, zero("epsilon")),
        setting("sizes in another order", 413, n=5, d=3),
    ),
)

NORMED = Cast(
    name="normed head",
    sizes={"n": 2, "m": 3, "d_k": 4, "d_v": 5},
    letters=drawn("Q, K, V, B, alpha^Q, alpha^K") | positive("tau, epsilon") | made("gamma", "prp:temperature")
    | made("r^Q, r^K, hat Q, hat K, tilde Q, tilde K, A, P, O", "eq:qk_norm_attention")
    | made("D", "prp:row_statistic"),
    outputs=("O",),
    names={"hat Q": "Q_hat", "hat K": "K_hat", "tilde Q": "Q_tilde", "tilde K": "K_tilde"},
    rows=rows("q, k, hat q, hat k, tilde q, tilde k, v, o"),
    constants=("epsilon",),
    settings=(
        setting("random bias", 421),
        setting("n = m", 429, divided(4, "alpha^Q"), n=2, m=2, d_k=3),  # few roots
        setting("no epsilon", 422, zero("epsilon")),
        setting("no bias, a small epsilon", 423, zero("B"), full("epsilon", 2.0**-17)),
        setting("a masked key", 424, hidden("B", (0, 1))),
        setting("sizes in another order", 425, n=3, m=2, d_k=5, d_v=4),
    ),
)

CAP = Cast(
    name="cap",
    sizes={"n": 4, "m": 5},
    letters=drawn("S") | positive("c") | made("U, A", "eq:softcap"),
    outputs=("A",),
    settings=three(431, n=3, m=2),
)

CAPPED = HEAD.without("L, A, P, O").plus(
    positive("c") | made("S, U, A, P, O", "eq:capped_attention"),
    name="capped head",
    settings=(
        setting("random bias", 441),
        setting("no bias", 442, zero("B")),
        setting("empty row", 443, hidden("B", (0, 1), 1)),
        setting("sizes in another order", 444, n=5, m=3, d_k=2, d_v=4),
    ),
)

CASTS = RMS, NORMED, CAP, CAPPED
