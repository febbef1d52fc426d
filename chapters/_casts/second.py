"""The double backward: a head with dropout, and a layer, whose gradients move."""

from dataclasses import replace

from attnmath.page.scenes.cast import Cast, drawn, made, rows
from attnmath.page.scenes.settings import calm, divided, empty_row, last_row_empty, masked, setting

from ._dropout import dropped, no_dropout
from ._layer import LAYER, no_biases

light = divided(2, "X", "Z", "W^Q", "W^K", "W^V", "W^O")  # second derivatives grow with them


def first_whole(values: dict, sizes: dict) -> None:
    values["R"][0] = 1


# The scale, the bias and dropout's factors are held still: what is derived moves Q, K, V alone.
BACKWARD = Cast(
    name="back through the backward pass",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters=drawn("Q, K, V, B, gamma, R") | made("A, P, O", "prp:dropout_map")
    | made("D", "prp:dropout_statistic") | made("psi"),
    outputs=("O",),
    rows=rows("q, k, v, o, a, b, p"),
    constants=("B", "gamma", "R"),
    has_second=True,
    settings=(
        setting("random bias, the first query kept whole", 721, calm, dropped, first_whole),
        setting("no dropout", 722, calm, no_dropout),
        setting("causal", 723, calm, masked, dropped),
        setting("empty row", 724, calm, empty_row, dropped),
        setting("sizes in another order", 725, calm, last_row_empty, dropped, n=5, m=3, d_k=2, d_v=4),
    ),
)

# Everything moves but dropout's factors; the gradient of the output is held still.
DOUBLE = BACKWARD.without("psi", name="double backward", constants=("R",))

# The gradient of the output moves as well.
HESSIAN = replace(DOUBLE, name="Hessian times tangents", moving=("O",))

# A second direction, held still, to which the gradients are paired.
PAIR = BACKWARD.without("D, psi").plus(
    drawn("E^Q, E^K, E^V"),
    name="two directions of a Hessian",
    constants=("B", "gamma", "R", "E^Q", "E^K", "E^V"),
    settings=BACKWARD.settings[-2:],
)

OF_LAYER = LAYER.without(
    "C",
    name="Hessian of a layer",
    sizes={"n": 4, "m": 5, "d": 6, "d_z": 7, "d_k": 3, "d_v": 8, "H": 2},
    has_second=True,
    moving=("Y",),
    settings=(
        setting("random bias", 731, calm, light),
        setting("causal", 732, calm, masked, light),
        setting("empty row", 733, calm, empty_row, light),
        setting("no biases", 734, calm, no_biases, light),
        setting("sizes in another order", 735, calm, last_row_empty, light,
                n=6, m=4, d=5, d_z=3, d_k=7, d_v=2, H=3),
    ),
)

CASTS = BACKWARD, PAIR, DOUBLE, HESSIAN, OF_LAYER
