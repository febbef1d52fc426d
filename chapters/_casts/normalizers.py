"""Weights that are shared with sinks, a head with them, and a head whose weights are sigmoids."""

from collections.abc import Callable

import numpy as np

from attnmath.page.scenes.cast import Cast, drawn, made, positive, rows
from attnmath.page.scenes.settings import hidden, setting, zero, zero_at

from ._head import HEAD
from ._rounded import rounded


def squashed_off(values: dict, r: Callable, grown: Callable) -> dict:
    """By how much sigmoids of exact scores are off, step by step, and their way back; and how far they may be."""
    A, dS = values["B"], values["dO"] @ values["V"].T

    def both(r: Callable) -> tuple[np.ndarray, np.ndarray]:
        E = r(np.exp(-abs(A)))
        S = np.where(A >= 0, r(1 / r(1 + E)), r(E / r(1 + E)))
        return S, r(r(r(dS) * S) * r(1 - S))

    (S, dA), (right, right_dA) = both(r), both(lambda x: x)
    off = abs(right_dA) * grown(8) + (1 + grown(8)) * abs(dS) * right**2 * grown(4)
    return {"tilde S": S - right, "tilde A": dA - right_dA, "bar S": right * grown(4), "bar A": off}


def wide(values: dict, sizes: dict) -> None:
    """Scores from far below zero to far above."""
    values["B"] = values["B"] + 5.0 * (np.arange(sizes["m"]) - 1)


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

SIGMOIDS_ROUNDED = SIGMOIDS.plus(
    positive("u") | drawn("tilde S, tilde A, bar S, bar A"),
    name="sigmoids in a format",
    settings=(
        setting("bfloat16", 481, zero("Q"), wide, rounded("bfloat16", "B", squashed_off), n=2, m=3),
        setting("float32", 482, zero("Q"), rounded("float32", "B", squashed_off)),
    ),
)

CASTS = SINKS, SUNK, SIGMOIDS, SIGMOIDS_ROUNDED
