"""The casts of the double backward: a head with dropout, and a layer, whose gradients move."""

from dataclasses import replace

from attnmath.page._cast import Cast, Letter, Setting
from attnmath.page._casts_jvp import _kept, _no_dropout
from attnmath.page._casts_layer import LAYER, calm, empty_row, last_row_empty, masked, no_biases


def _light(change=lambda values, sizes: None):
    """The change, with a calm scale and small weights: second derivatives grow with both."""

    def changed(values: dict, sizes: dict) -> None:
        calm(change)(values, sizes)
        for letter in ("X", "Z", "W^Q", "W^K", "W^V", "W^O"):
            values[letter] = values[letter] / 2

    return changed


def _first_whole(values: dict, sizes: dict) -> None:
    _kept()(values, sizes)
    values["R"][0] = 1


# The scale, the bias and dropout's factors are held still: what is derived moves Q, K, V alone.
BACKWARD = Cast(
    name="back through the backward pass",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "R": Letter(("n", "m")),
        "A": Letter(("n", "m"), "eq:dropout_attention"),
        "P": Letter(("n", "m"), "eq:dropout_attention"),
        "O": Letter(("n", "d_v"), "eq:dropout_attention"),
        "D": Letter(("n", "1"), "prp:dropout_statistic"),
        "psi": Letter(("1", "1"), "prp:psi"),
    },
    outputs=("O",),
    rows={"q": "Q", "k": "K", "v": "V", "o": "O", "a": "A", "b": "B", "p": "P"},
    constants=("B", "gamma", "R"),
    has_second=True,
    settings=(
        Setting("random bias, the first query kept whole", 721, change=calm(_first_whole)),
        Setting("no dropout", 722, change=calm(_no_dropout)),
        Setting("causal", 723, change=calm(_kept(masked))),
        Setting("empty row", 724, change=calm(_kept(empty_row))),
        Setting("sizes in another order", 725, {"n": 5, "m": 3, "d_k": 2, "d_v": 4}, calm(_kept(last_row_empty))),
    ),
)

# Everything moves but dropout's factors; the gradient of the output is held still.
DOUBLE = replace(
    BACKWARD,
    name="double backward",
    letters={k: spec for k, spec in BACKWARD.letters.items() if k != "psi"},
    constants=("R",),
)

# The gradient of the output moves as well.
HESSIAN = replace(DOUBLE, name="Hessian times tangents", moving=("O",))

# A second direction, held still, to which the gradients are paired.
PAIR = replace(
    BACKWARD,
    name="two directions of a Hessian",
    letters={
        **{k: spec for k, spec in BACKWARD.letters.items() if k not in ("D", "psi")},
        "E^Q": Letter(("n", "d_k")),
        "E^K": Letter(("m", "d_k")),
        "E^V": Letter(("m", "d_v")),
    },
    constants=("B", "gamma", "R", "E^Q", "E^K", "E^V"),
    settings=BACKWARD.settings[-2:],
)

LAYER_HESSIAN = replace(
    LAYER,
    name="Hessian of a layer",
    sizes={"n": 4, "m": 5, "d": 6, "d_z": 7, "d_k": 3, "d_v": 8, "H": 2},
    letters={k: spec for k, spec in LAYER.letters.items() if k not in ("eta", "C")},
    has_second=True,
    moving=("Y",),
    settings=(
        Setting("random bias", 731, change=_light()),
        Setting("causal", 732, change=_light(masked)),
        Setting("empty row", 733, change=_light(empty_row)),
        Setting("no biases", 734, change=_light(no_biases)),
        Setting(
            "sizes in another order", 735,
            {"n": 6, "m": 4, "d": 5, "d_z": 3, "d_k": 7, "d_v": 2, "H": 3}, _light(last_row_empty),
        ),
    ),
)  # fmt: skip

SECOND = (BACKWARD, PAIR, DOUBLE, HESSIAN, LAYER_HESSIAN)
