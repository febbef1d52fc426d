"""The second source: the question in its letters, and the answer in its own."""

from dataclasses import replace

import numpy as np

from attnmath._formulas.softmax import softmax
from attnmath._words.arrays import default_scale
from attnmath.page.scenes.cast import Cast, drawn, made, rows
from attnmath.page.scenes.settings import filling, full, setting, zero

from ._wide import GENERIC, INPUTS, INSIDE, REORDERED, WIDE, light, masked, small
from .inputs import SELF

# ---- the question: one head, without biases; and a layer under the mask of its decoder -------


opened = full("chi", 1.0), zero("B")


def causal(values: dict, sizes: dict) -> None:
    """Query i may attend to the keys j <= i."""
    values["chi"] = np.tri(sizes["n"])
    values["B"] = np.where(values["chi"] > 0, 0.0, -np.inf)


QUESTION = Cast(
    name="question",
    sizes={"n": 4, "d": 5, "d_k": 3, "d_v": 2},
    letters=drawn("x, W^Q, W^K, W^V, chi, B") | made("Q, K, V, O", "prp:question_attention"),
    outputs=("O",),
    same=SELF.same,
    settings=(
        setting("encoder", 731, *opened),
        setting("decoder, masked", 732, causal),
        setting("encoder, other sizes", 733, *opened, n=3, d=2, d_k=5, d_v=4),
        setting("decoder, other sizes", 734, causal, n=6, d=4, d_k=2, d_v=3),
        setting("encoder, as many tokens as features", 735, *opened, n=5),
    ),
)

DECODER = replace(
    SELF,
    name="causal_self",
    letters=drawn("chi") | SELF.without("X'").letters,
    outputs=("Y",),
    rows=rows("q, k, x, y"),
    settings=(
        setting("causal", 741, light, small, causal),
        setting("causal again", 742, light, small, causal),
        setting("causal, other sizes", 743, light, small, causal, n=4, d=5, d_k=7, d_v=6, H=3),
    ),
)

# ---- the answer: two readings of Q and K are two settings ------------------------------------


def as_inputs(values: dict, sizes: dict) -> None:
    values["Q"], values["K"] = values["x"].copy(), values["z"].copy()


def as_projected(values: dict, sizes: dict) -> None:
    """Queries and keys of all heads side by side."""
    for letter, tokens, head in (("Q", "x", "Q"), ("K", "z", "K")):
        pairs = zip(values[f"W^{head}"], values[f"b^{head}"])
        values[letter] = np.hstack([values[tokens] @ W + b for W, b in pairs])


READ = {"d_q": GENERIC["d"], "d_r": GENERIC["d_z"]}
REREAD = {**REORDERED, "d_q": REORDERED["d"], "d_r": REORDERED["d_z"]}
SHARED = {"n": 3, "m": 5, "d": 6, "d_z": 6, "d_k": 2, "d_v": 4, "H": 3, "d_q": 6, "d_r": 6}
no_biases = zero("b^Q", "b^K", "b^V", "b^O")

ANSWER = Cast(
    name="answer",
    sizes={**GENERIC, "d_q": 6, "d_r": 6},  # H d_k
    letters=WIDE | drawn("Q: n d_q, K: m d_r") | INSIDE | made("O, C"),
    outputs=("X",),
    loss="f",
    readings=("d_q", "d_r"),
    tables="source_blog",
    settings=(
        setting("Q = xW", 711, light, small, as_projected),
        setting("Q = x", 712, light, small, as_inputs, **READ),
        setting("Q = x, masked", 713, light, small, masked, as_inputs, **READ),
        setting("Q = x, no query bias", 714, light, small, zero("b^Q"), as_inputs, **READ),
        setting("Q = x, no biases, other sizes", 715, light, small, no_biases, as_inputs, **REREAD),
        setting("Q = xW, and H d_k = d = d_z", 716, light, small, zero("b^Q", "b^K"), as_projected, **SHARED),
    ),
)

# ---- the answer's A in its formula for the values --------------------------------------------


@filling
def read_as(values: dict, sizes: dict, reading: str) -> None:
    """A is the scores of all heads side by side, or their weights, or their mean tokens."""
    scale, pairs = default_scale(sizes["d_k"], values["x"]), zip(values["W^Q"], values["W^K"])
    parts = [scale * (values["x"] @ q @ (values["z"] @ k).T) for q, k in pairs]
    if reading != "scores":
        parts = [softmax(A) for A in parts]
    if reading == "tokens":
        parts = [P @ values["z"] for P in parts]
    values["A"] = np.hstack(parts)
    values["N"] = np.eye(sizes["H*d_v"]).reshape(values["N"].shape)


scores, weights, tokens = map(read_as, ("scores", "weights", "tokens"))
TOKENS = {"n": 4, "m": 3, "d": 7, "d_z": 5, "d_k": 2, "d_v": 6, "H": 1, "d_a": 5}

VALUES = Cast(
    name="values",
    sizes={**GENERIC, "d_a": 10},  # H m
    letters=drawn(f"{INPUTS}, A: n d_a, N") | made("P, X"),
    outputs=("X",),
    constants=("N",),
    loss="f",
    readings=("d_a",),
    tables="source_blog",
    settings=(
        setting("A is the scores", 721, light, scores),
        setting("A is the scores, H m = d_z", 722, light, scores, d_z=10),
        setting("A is the weights, H m = d_z", 723, light, weights, d_z=10),
        setting("A is P z, two heads", 724, light, tokens, d_a=14),
        setting("A is P z, one head", 725, light, tokens, **TOKENS),
        setting("A is P z, one head, other sizes", 726, light, tokens, **{**REORDERED, "H": 1, "d_a": 8}),
    ),
)

CASTS = QUESTION, ANSWER, VALUES, "self", DECODER, "layer"
