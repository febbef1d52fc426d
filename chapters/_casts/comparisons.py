"""What attention is compared with: what else reads a sequence."""

from attnmath.page.scenes.cast import Cast, drawn, made, positive, rows
from attnmath.page.scenes.settings import setting, three, zero, zero_at

from ._layer import SELF

PLACE = Cast(
    name="token by token",
    sizes={"n": 4, "d": 3, "d_v": 5},
    letters=drawn("X, W, b: 1 d_v") | made("Y", "eq:linear"),
    outputs=("Y",),
    rows=rows("x, y"),
    settings=three(81, n=3, d=4, d_v=2),
)

MIXING = Cast(
    name="mixing of tokens",
    sizes={"n": 4, "d": 3, "d_v": 5},
    letters=drawn("X, F, W") | made("Y"),
    outputs=("Y",),
    rows=rows("x, y"),
    settings=three(341, n=3, d=4, d_v=2),
)

READING = Cast(
    name="reading by content",
    sizes={"n": 4, "d": 3, "d_k": 2, "d_v": 5},
    letters=drawn("X, W^Q, W^K, W^V") | made("P, Y"),
    outputs=("Y",),
    same=SELF,
    settings=(
        setting("random", 351),
        setting("no queries of the first feature", 352, zero_at("W^Q", 0)),
        setting("sizes in another order", 353, n=3, d=5, d_k=4, d_v=2),
        setting("no queries", 354, zero("W^Q")),
    ),
)

RECURRENT = Cast(
    name="recurrent network",
    sizes={"d": 3, "d_u": 4, "d_v": 2},
    letters=drawn("x, x', x'', W^X, W^S, W^O, b: 1 d_u") | made("u, s, u', s', u'', s'', y, y', y''"),
    outputs=("y", "y'", "y''"),
    settings=three(361, d=5, d_u=2, d_v=4),
)

ONLINE = Cast(
    name="one query, key by key",
    sizes={"m": 5, "d_v": 3},
    letters=drawn("a, V") | made("mu, sigma, O: m d_v"),
    outputs=("O",),
    rows=rows("o, v"),
    settings=three(371, last="few keys", m=3, d_v=4),
)

LINEAR_ATTENTION = Cast(
    name="linear attention",
    sizes={"n": 4, "d_k": 3, "d_v": 2},
    letters=positive("Q, K") | drawn("V") | made("S: n d_k d_v, z: n d_k, O", "prp:linear_attention")
    | made("D"),
    outputs=("O",),
    rows=rows("q, k, v, o"),
    same={"m": "n"},
    settings=three(381, n=3, d_k=5, d_v=4),
)

CASTS = PLACE, MIXING, READING, RECURRENT, ONLINE, LINEAR_ATTENTION
