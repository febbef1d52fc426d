"""Numbers of a format, what a head makes of them there, and the bounds."""

import numpy as np

from attnmath import rounding
from attnmath.page.scenes.cast import drawn, positive
from attnmath.page.scenes.settings import causal, filling, hidden, setting
from attnmath.rounding.bounds import read_inputs, weight_bounds
from attnmath.rounding.formats import model
from attnmath.rounding.heads import stepwise_head

from ._head import HEAD

INPUTS = ("Q", "K", "V", "B", "gamma")


@filling
def in_format(values: dict, sizes: dict, dtype: str) -> None:
    """Inputs in the format, a head that rounds every step to it, and the bounds for that."""
    for name in INPUTS:
        values[name] = rounding.nearest(values[name], dtype)
    Q, K, V, B, gamma = (values[name] for name in INPUTS)
    f = model("", dtype, None, True)
    w = weight_bounds(f, read_inputs("", Q=Q, K=K, V=V, B=B, gamma=gamma.item(), R=None))
    bound = rounding.attention(Q, K, V, B, gamma.item(), dtype=dtype)
    O, L, _ = stepwise_head(np.ones_like(values["hat O"]), Q, K, V, B, gamma.item(), dtype)
    values["u"] = np.array([[f.sums]])
    values["t"] = values["u"] * (sizes["m"] + 9)
    values["eta"], values["bar P"] = np.where(np.isinf(B), 0, w.eta), w.P_off
    values["bar O"], values["bar L"] = bound.O, bound.L[:, None]
    values["hat O"], values["hat L"] = O, L[:, None]


def far(values: dict, sizes: dict) -> None:
    """One row whose scores lie far below zero, and one a little."""
    values["B"] = values["B"] - np.array([300.0, 8.0] + [0.0] * (sizes["n"] - 2))[:, None]


ROUNDING = HEAD.plus(
    drawn("c") | positive("u, t") | drawn("E, U, epsilon, eta, bar P, bar L, bar O, hat L, hat O"),
    name="rounding",
    sizes={"n": 4, "m": 5, "d_k": 2, "d_v": 3},
    settings=(
        setting("bfloat16", 301, in_format("bfloat16")),
        setting("float32, scores far from 0", 305, far, in_format("float32")),
        setting("bfloat16, masked", 303, causal(), in_format("bfloat16")),
        setting("bfloat16, masked, sizes in another order", 304, causal(), hidden("B", (-1, 0)),
                in_format("bfloat16"), n=3, m=4, d_k=5, d_v=2),
    ),
)

CASTS = (ROUNDING,)
