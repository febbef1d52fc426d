"""Weights that are shared with sinks, a head with them, and a head whose weights are sigmoids."""

from attnmath.page.scenes.cast import Cast, drawn, made, rows
from attnmath.page.scenes.settings import hidden, setting, zero, zero_at

from ._head import HEAD

SINKS = Cast(
    name="sinks",
    sizes={"n": 4, "m": 5, "d_s": 3},
    letters=drawn("A, sigma") | made("M, P", "eq:sink_softmax") | made("tilde P", "prp:sink_weights")
    | made("D", "eq:sink_softmax_vjp"),
    outputs=("P",),
    names={"tilde P": "P_tilde"},
    settings=(
        setting("random", 451),
        setting("sinks of zero", 452, zero("sigma")),
        setting("a sink of zero", 455, zero_at("sigma", (0, 0))),
        setting("empty row", 453, hidden("A", (0, 1), 1)),
        setting("sizes in another order", 454, n=5, m=3, d_s=4),
    ),
)

SUNK = HEAD.without("L, A, P, O").plus(
    drawn("sigma") | made("A, M, P, O", "eq:sink_attention") | made("tilde P", "prp:sink_weights"),
    name="head with sinks",
    rows=rows("q, k, v, o"),
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2, "d_s": 6},
    names={"tilde P": "P_tilde"},
    settings=(
        setting("random bias", 461),
        setting("no bias, sinks of zero", 462, zero("B", "sigma")),
        setting("empty row", 463, hidden("B", (0, 1), 1)),
        setting("sizes in another order", 464, n=5, m=3, d_k=2, d_v=4, d_s=6),
    ),
)

SIGMOIDS = HEAD.without("L, A, P, O, D").plus(
    made("A, S, O", "eq:sigmoid_attention"),
    name="head with sigmoids",
    settings=(
        setting("random bias", 471),
        setting("no bias", 472, zero("B")),
        setting("empty row", 473, hidden("B", (0, 1), 1)),
        setting("sizes in another order", 474, n=5, m=3, d_k=2, d_v=4),
    ),
)

CASTS = SINKS, SUNK, SIGMOIDS
