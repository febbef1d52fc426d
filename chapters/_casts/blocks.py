"""What stands around attention: layer norm, the network, the loss."""

import numpy as np

from attnmath.page.scenes.cast import Cast, drawn, made, positive, rows
from attnmath.page.scenes.settings import full, setting, three


def probabilities(values: dict, sizes: dict) -> None:
    """Targets whose rows sum to one."""
    E = values["E"] ** 2
    values["E"] = E / E.sum(1, keepdims=True)


def in_the_mean(values: dict, sizes: dict) -> None:
    """Of targets whose rows sum to one, those of the second count twice, and those of the third not at all."""
    values["E"] *= np.array([1.0, 2.0, 0.0, *[1.0] * (sizes["n"] - 3)])[:, None]


def one_hot(values: dict, sizes: dict) -> None:
    """One target in each row, and none in the first."""
    n, m = values["E"].shape
    values["E"] = 1.0 * (np.arange(m) == (2 * np.arange(n)[:, None]) % m)
    values["E"][0] = 0


NORM = Cast(
    name="layer norm",
    sizes={"n": 4, "d": 5},
    letters=drawn("X, alpha, beta") | positive("epsilon") | made("mu, r, hat X, Y"),
    outputs=("Y",),
    rows=rows("x, hat x, y"),
    names={"hat X": "X_hat"},
    constants=("epsilon",),
    settings=(
        setting("random", 81),
        setting("small epsilon", 82, full("epsilon", 2.0**-17)),
        setting("sizes in another order", 83, n=5, d=3),
    ),
)

SILU = Cast(
    name="silu",
    sizes={"n": 4, "d_u": 5},
    letters=drawn("U") | made("S, F"),
    outputs=("F",),
    settings=three(91, n=3, d_u=2),
)

NETWORK = Cast(
    name="network",
    sizes={"n": 4, "d": 3, "d_u": 5},
    letters=drawn("X, W^U, b^U, W^D, b^D") | made("U", "eq:mlp") | made("S") | made("F, Y", "eq:mlp"),
    outputs=("Y",),
    settings=three(84, n=3, d=4, d_u=2),
)

LOSS = Cast(
    name="loss",
    sizes={"n": 4, "m": 5},
    letters=drawn("A, E") | made("P", "eq:attention_map") | made("Lambda") | made("ell"),
    outputs=("ell",),
    names={"ell": "loss"},
    constants=("E",),
    settings=(
        setting("random targets", 87),
        setting("probabilities", 88, probabilities),
        setting("one-hot, and a row without", 89, one_hot),
        setting("sizes in another order", 90, probabilities, n=5, m=3),
        setting("n = m, probabilities in the mean", 86, probabilities, in_the_mean, n=5),
    ),
)

CASTS = NORM, SILU, NETWORK, LOSS
