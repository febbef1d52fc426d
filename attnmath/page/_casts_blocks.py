"""The casts of what stands around attention: layer norm, the network, the loss."""

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting


def _small_epsilon(values: dict, sizes: dict) -> None:
    values["epsilon"] = np.full((1, 1), 2.0**-17)


def _probabilities(values: dict, sizes: dict) -> None:
    """Targets whose rows sum to one."""
    E = values["E"] ** 2
    values["E"] = E / E.sum(1, keepdims=True)


def _in_the_mean(values: dict, sizes: dict) -> None:
    """The targets of the first row sum to one, those of the second to two, and all to n."""
    _probabilities(values, sizes)
    values["E"] *= np.array([1.0, 2.0, 0.0, *[1.0] * (sizes["n"] - 3)])[:, None]


def _one_hot(values: dict, sizes: dict) -> None:
    """One target in each row, and none in the first."""
    n, m = values["E"].shape
    values["E"] = 1.0 * (np.arange(m) == (2 * np.arange(n)[:, None]) % m)
    values["E"][0] = 0


NORM = Cast(
    name="layer norm",
    sizes={"n": 4, "d": 5},
    letters={
        "X": Letter(("n", "d")),
        "alpha": Letter(("1", "d")),
        "beta": Letter(("1", "d")),
        "epsilon": Letter(("1", "1"), "positive"),
        "mu": Letter(("n", "1"), "eq:layer_norm"),
        "r": Letter(("n", "1"), "eq:layer_norm"),
        "hat X": Letter(("n", "d"), "eq:layer_norm"),
        "Y": Letter(("n", "d"), "eq:layer_norm"),
    },
    outputs=("Y",),
    rows={"x": "X", "hat x": "hat X", "y": "Y"},
    names={"hat X": "X_hat"},
    constants=("epsilon",),
    settings=(
        Setting("random", 81),
        Setting("small epsilon", 82, change=_small_epsilon),
        Setting("sizes in another order", 83, {"n": 5, "d": 3}),
    ),
)

SILU = Cast(
    name="silu",
    sizes={"n": 4, "d_u": 5},
    letters={
        "U": Letter(("n", "d_u")),
        "S": Letter(("n", "d_u"), "eq:silu"),
        "F": Letter(("n", "d_u"), "eq:silu"),
    },
    outputs=("F",),
    settings=(
        Setting("random", 91),
        Setting("random again", 92),
        Setting("sizes in another order", 93, {"n": 3, "d_u": 2}),
    ),
)

NETWORK = Cast(
    name="network",
    sizes={"n": 4, "d": 3, "d_u": 5},
    letters={
        "X": Letter(("n", "d")),
        "W^U": Letter(("d", "d_u")),
        "b^U": Letter(("1", "d_u")),
        "W^D": Letter(("d_u", "d")),
        "b^D": Letter(("1", "d")),
        "U": Letter(("n", "d_u"), "eq:mlp"),
        "S": Letter(("n", "d_u"), "eq:silu"),
        "F": Letter(("n", "d_u"), "eq:mlp"),
        "Y": Letter(("n", "d"), "eq:mlp"),
    },
    outputs=("Y",),
    settings=(
        Setting("random", 84),
        Setting("random again", 85),
        Setting("sizes in another order", 86, {"n": 3, "d": 4, "d_u": 2}),
    ),
)

LOSS = Cast(
    name="loss",
    sizes={"n": 4, "m": 5},
    letters={
        "A": Letter(("n", "m")),
        "E": Letter(("n", "m")),
        "P": Letter(("n", "m"), "eq:attention_map"),
        "Lambda": Letter(("n", "m"), "eq:log_softmax"),
        "ell": Letter(("1", "1"), "eq:cross_entropy"),
    },
    outputs=("ell",),
    names={"ell": "loss"},
    constants=("E",),
    settings=(
        Setting("random targets", 87),
        Setting("probabilities", 88, change=_probabilities),
        Setting("one-hot, and a row without", 89, change=_one_hot),
        Setting("sizes in another order", 90, {"n": 5, "m": 3}, change=_probabilities),
        Setting("n = m, probabilities in the mean", 86, {"n": 5}, change=_in_the_mean),
    ),
)
