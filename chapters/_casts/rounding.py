"""Numbers of a format, what a head makes of them there, and the bounds."""

import numpy as np

from attnmath import attention_jvp, attention_vjp, rounding
from attnmath.page.scenes.cast import drawn, positive
from attnmath.page.scenes.settings import causal, filling, hidden, setting, three
from attnmath.rounding import bounds, tangents
from attnmath.rounding.formats import model
from attnmath.rounding.heads import stepwise_head, stepwise_jvp

from ._head import HEAD

INPUTS = ("Q", "K", "V", "B", "gamma")


@filling
def in_format(values: dict, sizes: dict, dtype: str) -> None:
    """Inputs in the format, a head that rounds every step to it, and the bounds for that."""
    for name in (*INPUTS, "dO"):
        values[name] = rounding.nearest(values[name], dtype)
    x = [values[name] for name in INPUTS[:-1]] + [values["gamma"].item()]
    dO, f = values["dO"], model("", dtype, None, True)
    given = bounds.Inputs(*x, R=None, dO=dO)
    w = bounds.weight_bounds(f, given)
    bound = rounding.attention(*x, dtype=dtype)
    head = stepwise_head(dO, *x, dtype)
    values["u"] = np.array([[f.sums]])
    n, m = sizes["n"], sizes["m"]
    values["t"], values["s"], values["w"] = (values["u"] * k for k in (m + 9, n + 9, n * m + 12))
    values["eta"], values["bar P"] = np.where(np.isinf(values["B"]), 0, w.eta), w.P_off
    values["bar O"], values["bar L"] = bound.O, bound.L[:, None]
    values["hat O"], values["hat L"] = head.O, head.L[:, None]
    P, P_off = bounds.factor(f, given, w)
    O, O_off = bounds.output_off(f, given, P, P_off)
    dP, values["bar U"] = bounds.weights_vjp(f, given)
    D, values["bar epsilon"] = bounds.row_statistic(f, given, w, O, O_off, dP, values["bar U"])
    values["bar F"] = bounds.scores_vjp(f, given, w, O, O_off)[1]
    values["U"], values["epsilon"] = head.dP - dP, head.D - D
    values["F"] = head.back.dB - w.P * (dP - D)
    right, off = attention_vjp(dO, *x), rounding.attention_vjp(dO, *x, dtype=dtype)
    for letter, got, want, far in zip(INPUTS, head.back, right, off):
        values[f"tilde {letter}"] = np.reshape(got - want, values[letter].shape)
        values[f"bar {letter}"] = np.reshape(far, values[letter].shape)
    moving_in_format(values, dtype, given, w)


def moving_in_format(values: dict, dtype: str, given: bounds.Inputs, w: bounds.WeightBounds) -> None:
    """Tangents in the format, what a head makes of them that rounds every step, and the bounds for that."""
    for name in INPUTS:
        values[f"dot {name}"] = rounding.nearest(values[f"dot {name}"], dtype)
    f, x = model("", dtype, None, True), (*given[:4], given.gamma)
    dots = [values[f"dot {name}"] for name in INPUTS]
    dots[-1] = dots[-1].item()
    A_dot, values["bar M"] = tangents.scores_jvp(f, given, w, *dots)
    mu, values["bar nu"] = tangents.mean_jvp(f, w, A_dot, values["bar M"])
    P_dot, values["bar S"] = tangents.weights_jvp(f, w, A_dot, values["bar M"], mu, values["bar nu"])
    values["bar N"] = tangents.output_jvp(f, given, w, dots[2], A_dot, values["bar M"])
    found = stepwise_jvp(*dots, *x, dtype)
    right = A_dot, mu, P_dot, attention_jvp(*dots, *x)
    for letter, got, want in zip(("M", "nu", "S", "N"), found, right):
        values[letter] = got - want


def far(values: dict, sizes: dict) -> None:
    """One row whose scores lie far below zero, and one a little."""
    values["B"] = values["B"] - np.array([300.0, 8.0] + [0.0] * (sizes["n"] - 2))[:, None]


def apart(values: dict, sizes: dict) -> None:
    """Rows and columns of sizes that are far apart; the scores stay as they are."""
    def powers(size: str) -> np.ndarray:
        return 16.0 ** np.arange(sizes[size])

    values["dO"] = values["dO"] / powers("n")[:, None]
    for dot in ("", "dot "):
        values[dot + "V"] = values[dot + "V"] * powers("d_v")
        values[dot + "K"], values[dot + "Q"] = values[dot + "K"] * powers("d_k"), values[dot + "Q"] / powers("d_k")
    values["B"] = values["B"] - 6.0 * np.arange(sizes["m"])


def cancelling(values: dict, sizes: dict) -> None:
    """Keys that are liked alike, values that add up to nearly nothing, and a dO along them."""
    values["Q"], values["B"] = values["Q"] / 64, 0 * values["B"]
    values["V"] = values["V"][:1] * (-1.0) ** np.arange(sizes["m"])[:, None]
    values["dO"] = abs(values["dO"]) * np.sign(values["V"][:1])


SIZES = {"n": 4, "m": 5, "d_k": 2, "d_v": 3}
ERRORS = HEAD.plus(
    drawn("c") | positive("u") | drawn("E, U, epsilon, F"), name="errors", sizes=SIZES,
    settings=(*three(306, n=3, m=4, d_k=5, d_v=2), setting("masked", 307, causal())),
)
ROUNDING = HEAD.plus(
    positive("u, t, s, w") | drawn("eta, bar P, bar L, bar O, hat L, hat O, U, epsilon, F")
    | drawn("bar U, bar epsilon, bar F, bar Q, bar K, bar V, bar B, bar gamma")
    | drawn("tilde Q, tilde K, tilde V, tilde B, tilde gamma, M, nu, S, N, bar M, bar nu, bar S, bar N"),
    name="rounding", sizes=SIZES,
    settings=(
        setting("bfloat16", 301, in_format("bfloat16")),
        setting("float32, scores far from 0", 305, far, in_format("float32")),
        setting("bfloat16, sizes far apart", 308, apart, in_format("bfloat16")),
        setting("bfloat16, values that cancel", 309, cancelling, in_format("bfloat16"), n=3, m=4, d_k=2, d_v=19),
        setting("bfloat16, masked", 303, causal(), in_format("bfloat16")),
        setting("bfloat16, masked, sizes in another order", 304, causal(), hidden("B", (-1, 0)),
                in_format("bfloat16"), n=3, m=4, d_k=5, d_v=2),
    ),
)

CASTS = ERRORS, ROUNDING
