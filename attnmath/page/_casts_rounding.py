"""The cast of rounding: numbers of a format, what a head makes of them there, the bounds."""

from collections.abc import Callable

import numpy as np

from attnmath import rounding
from attnmath._rounded_heads import stepwise_head
from attnmath._rounding_steps import inputs, weights
from attnmath._roundoff import model
from attnmath.page._cast import Cast, Letter, Setting

INPUTS = ("Q", "K", "V", "B", "gamma")


def _in_format(dtype: str, change=lambda B: B) -> Callable:
    """Inputs in the format, a head that rounds every step to it, and the bounds for that."""

    def fill(values: dict, sizes: dict) -> None:
        values["B"] = change(values["B"])
        for name in INPUTS:
            values[name] = rounding.nearest(values[name], dtype)
        Q, K, V, B, gamma = (values[name] for name in INPUTS)
        f = model("", dtype, None, True)
        w = weights(f, inputs("", Q=Q, K=K, V=V, B=B, gamma=gamma.item(), R=None))
        bound = rounding.attention(Q, K, V, B, gamma.item(), dtype=dtype)
        O, L, _ = stepwise_head(np.ones_like(values["hat O"]), Q, K, V, B, gamma.item(), dtype)
        values["u"] = np.array([[f.sums]])
        values["t"] = values["u"] * (sizes["m"] + 9)
        values["eta"], values["bar P"] = np.where(np.isinf(B), 0, w.eta), w.P_off
        values["bar O"], values["bar L"] = bound.O, bound.L[:, None]
        values["hat O"], values["hat L"] = O, L[:, None]

    return fill


def _masked(B: np.ndarray) -> np.ndarray:
    """Query i may attend to the keys j <= i + m - n."""
    n, m = B.shape
    ahead = np.arange(m)[None, :] > np.arange(n)[:, None] + m - n
    return np.where(ahead, -np.inf, B)


def _masked_first(B: np.ndarray) -> np.ndarray:
    """The same, and the first key is hidden from the last query."""
    B = _masked(B)
    B[-1, 0] = -np.inf
    return B


def _far(B: np.ndarray) -> np.ndarray:
    """One row whose scores lie far below zero, and one a little."""
    return B - np.array([300.0, 8.0] + [0.0] * (len(B) - 2))[:, None]


ROUNDING = Cast(
    name="rounding",
    sizes={"n": 4, "m": 5, "d_k": 2, "d_v": 3},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "c": Letter(("1", "d_k")),
        "u": Letter(("1", "1"), "positive"),
        "t": Letter(("1", "1"), "positive"),
        "E": Letter(("n", "m")),
        "U": Letter(("n", "m")),
        "epsilon": Letter(("n", "1")),
        "eta": Letter(("n", "m")),
        "bar P": Letter(("n", "m")),
        "bar L": Letter(("n", "1")),
        "bar O": Letter(("n", "d_v")),
        "hat L": Letter(("n", "1")),
        "hat O": Letter(("n", "d_v")),
        "A": Letter(("n", "m"), "eq:attention_map"),
        "P": Letter(("n", "m"), "eq:attention_map"),
        "L": Letter(("n", "1"), "eq:attention_map"),
        "O": Letter(("n", "d_v"), "eq:attention_map"),
        "D": Letter(("n", "1"), "prp:row_statistic"),
    },
    outputs=("O",),
    rows={"q": "Q", "k": "K", "v": "V", "o": "O"},
    settings=(
        Setting("bfloat16", 301, change=_in_format("bfloat16")),
        Setting("float32, scores far from 0", 305, change=_in_format("float32", _far)),
        Setting("bfloat16, masked", 303, change=_in_format("bfloat16", _masked)),
        Setting(
            "bfloat16, masked, sizes in another order", 304,
            {"n": 3, "m": 4, "d_k": 5, "d_v": 2}, _in_format("bfloat16", _masked_first),
        ),
    ),
)  # fmt: skip
