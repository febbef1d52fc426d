"""Weights that are shared with sinks, a head with them, and a head whose weights are sigmoids."""

from collections.abc import Callable

import numpy as np

from attnmath.page.scenes.cast import Cast, drawn, made, positive, rows
from attnmath.page.scenes.settings import divided, filling, hidden, setting, zero, zero_at
from attnmath.rounding import nearest, sinks
from attnmath.rounding.bounds import Inputs
from attnmath.rounding.formats import model
from attnmath.rounding.heads import stepwise_head

from ._head import HEAD
from ._rounded import allowed, rounded, row_sums


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


@filling
def sunk_in_format(values: dict, sizes: dict, dtype: str) -> None:
    """Inputs in the format, by how much the sinks' gradient is off where every step is rounded, and the bounds."""
    for letter in ("dO", "Q", "K", "V", "B", "gamma", "sigma"):
        values[letter] = nearest(values[letter], dtype)
    dO, Q, K, V, B, gamma, sigma = (values[x] for x in ("dO", "Q", "K", "V", "B", "gamma", "sigma"))
    f, x = model("", dtype, None, True), Inputs(Q, K, V, B, gamma.item(), None, dO)
    P, P_off, D, D_off = sinks.sink_terms(f, x, sigma[0])
    terms = stepwise_head(dO, *sinks.with_sinks(x, sigma[0])[:5], dtype).back.dB[:, sizes["m"]:]
    found = row_sums(terms.T, lambda y: nearest(y, dtype)).T
    values |= {"u": np.array([[f.sums]]), "bar P": P_off, "bar epsilon": D_off}
    values |= {"tilde sigma": found + (P * D).sum(0), "bar sigma": sinks.sinks_vjp(f, x, sigma[0])[None]}


@filling
def sinks_apart(values: dict, sizes: dict, step: float) -> None:
    """Sinks of which each has far more of the weight than the next, or far less."""
    values["sigma"] = values["sigma"] + step * np.arange(sizes["d_s"])


def standing(values: dict, sizes: dict) -> None:
    """Weights that are alike, and a first term beside which the sum over the queries sees no other in float32."""
    for letter in ("Q", "B", "sigma"):
        values[letter] = np.zeros_like(values[letter])
    values["V"], values["dO"] = np.ones_like(values["V"]), np.full_like(values["dO"], 0.98 * 2.0**-24)
    values["dO"][0] = 1


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

SUNK_ROUNDED = SUNK.plus(
    positive("u") | drawn("bar P, bar epsilon, tilde sigma, bar sigma"),
    name="head with sinks in a format",
    about="u",
    settings=(
        setting("bfloat16, sinks far apart", 483, sinks_apart(-2.0), sunk_in_format("bfloat16")),
        setting("float32, sizes in another order", 484, sinks_apart(1.5), sunk_in_format("float32"),
                n=5, m=3, d_k=2, d_v=4, d_s=6),
        setting("float32, a sum that stands still", 485, standing, sunk_in_format("float32"),
                n=40, m=2, d_k=3, d_v=1, d_s=6),
    ),
)

SUNK_WRONG = SUNK.plus(
    positive("u, bar P, bar epsilon") | drawn("phi: n d_s, chi: n d_s, psi: 1 d_s, omega: n 1")
    | made("bar sigma", "prp:sink_rounding") | made("tilde sigma", "why:sink_rounding"),
    name="errors of sinks",
    about="u",
    settings=allowed(486, "phi", "chi", "psi", "omega", small=divided(64, "bar P", "bar epsilon"),
                     n=5, m=3, d_k=2, d_v=4, d_s=6),
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
    about="u",
    settings=(
        setting("bfloat16", 481, zero("Q"), wide, rounded("bfloat16", "B", squashed_off), n=2, m=3),
        setting("float32", 482, zero("Q"), rounded("float32", "B", squashed_off)),
    ),
)

CASTS = SINKS, SUNK, SUNK_ROUNDED, SUNK_WRONG, SIGMOIDS, SIGMOIDS_ROUNDED
