"""A head with dropout, and the draws that its factors come from."""

import numpy as np

from attnmath.page.scenes.cast import Cast, drawn, made, rows
from attnmath.page.scenes.settings import hidden, setting, zero


def draws(values: dict, sizes: dict) -> None:
    """Uniform draws and a rate; the multipliers that follow from both."""
    rng = np.random.default_rng(sizes["n"])
    values["U"] = rng.integers(0, 64, values["U"].shape) / 64
    values["rho"] = rng.integers(16, 40, (1, 1)) / 64
    values["R"] = np.where(values["U"] < values["rho"], 0, values["R"] * 0 + 1) / (1 - values["rho"])


DROPOUT = Cast(
    name="dropout",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters=drawn("Q, K, V, B, gamma, U, rho, R") | made("A, P, O") | made("r")
    | made("D", "prp:dropout_statistic"),
    outputs=("O",),
    rows=rows("v, o"),
    constants=("U", "rho", "R"),
    settings=(
        setting("random bias", 291, draws),
        setting("no bias", 292, draws, zero("B")),
        setting("empty row", 293, draws, hidden("B", (0, 1), 1)),
        setting("sizes in another order", 294, draws, n=5, m=3, d_k=2, d_v=4),
        setting("n = m, another empty row", 295, draws, hidden("B", (2, 0), -1), n=5),
    ),
)

CASTS = (DROPOUT,)
