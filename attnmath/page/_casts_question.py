"""The casts of the second source: the question in its letters, and the answer in its own."""

from dataclasses import replace

import numpy as np

from attnmath._arrays import default_scale
from attnmath._softmax import softmax
from attnmath.page._cast import Cast, Letter, Setting
from attnmath.page._casts_blog import GENERIC, INSIDE, REORDERED, WIDE, calm, light, masked, without
from attnmath.page._casts_layer import SELF, together

# ---- the question: one head, without biases --------------------------------------------------


def _open(values: dict, sizes: dict) -> None:
    values["chi"] = np.ones_like(values["chi"])
    values["B"] = np.zeros_like(values["B"])


def _causal(values: dict, sizes: dict) -> None:
    """Query i may attend to the keys j <= i."""
    n, m = values["B"].shape
    values["chi"] = np.tri(n, m)
    values["B"] = np.where(values["chi"] > 0, 0.0, -np.inf)


QUESTION = Cast(
    name="question",
    sizes={"n": 4, "d": 5, "d_k": 3, "d_v": 2},
    letters={
        "x": Letter(("n", "d")),
        "W^Q": Letter(("d", "d_k")),
        "W^K": Letter(("d", "d_k")),
        "W^V": Letter(("d", "d_v")),
        "chi": Letter(("n", "n")),
        "B": Letter(("n", "n")),
        "Q": Letter(("n", "d_k"), "prp:question_attention"),
        "K": Letter(("n", "d_k"), "prp:question_attention"),
        "V": Letter(("n", "d_v"), "prp:question_attention"),
        "O": Letter(("n", "d_v"), "prp:question_attention"),
    },
    outputs=("O",),
    settings=(
        Setting("encoder", 731, change=_open),
        Setting("decoder, masked", 732, change=_causal),
        Setting("encoder, other sizes", 733, {"n": 3, "d": 2, "d_k": 5, "d_v": 4}, _open),
        Setting("decoder, other sizes", 734, {"n": 6, "d": 4, "d_k": 2, "d_v": 3}, _causal),
        Setting("encoder, as many tokens as features", 735, {"n": 5}, _open),
    ),
)

# ---- the decoder: self-attention under a causal mask -----------------------------------------

CAUSAL = replace(
    SELF,
    name="causal_self",
    letters={"chi": Letter(("n", "n")), **SELF.letters},
    rows={**SELF.rows, "y": "Y"},
    settings=(
        Setting("causal", 741, change=together(calm, _causal)),
        Setting("causal again", 742, change=together(calm, _causal)),
        Setting("causal, other sizes", 743, {"n": 4, "d": 5, "d_k": 7, "d_v": 6, "H": 3},
                together(calm, _causal)),
    ),
)  # fmt: skip

# ---- the answer: two readings of Q and K are two settings ------------------------------------


def _as_inputs(values: dict, sizes: dict) -> None:
    values["Q"], values["K"] = values["x"].copy(), values["z"].copy()


def _as_projected(values: dict, sizes: dict) -> None:
    """Queries and keys of all heads side by side."""
    for letter, tokens, head in (("Q", "x", "Q"), ("K", "z", "K")):
        pairs = zip(values[f"W^{head}"], values[f"b^{head}"])
        values[letter] = np.hstack([values[tokens] @ W + b for W, b in pairs])


INPUTS = {"d_q": GENERIC["d"], "d_r": GENERIC["d_z"]}
SHARED = {"n": 3, "m": 5, "d": 6, "d_z": 6, "d_k": 2, "d_v": 4, "H": 3, "d_q": 6, "d_r": 6}

ANSWER = Cast(
    name="answer",
    sizes={**GENERIC, "d_q": 6, "d_r": 6},  # H d_k
    letters={
        **WIDE,
        "Q": Letter(("n", "d_q")),
        "K": Letter(("m", "d_r")),
        **INSIDE,
        "O": Letter(("H", "n", "d_v"), "prp:answer_heads"),
        "C": Letter(("n", "H*d_v"), "prp:answer_heads"),
    },
    outputs=("X",),
    loss="f",
    readings=("d_q", "d_r"),
    settings=(
        Setting("Q = xW", 711, change=together(calm, _as_projected)),
        Setting("Q = x", 712, INPUTS, together(calm, _as_inputs)),
        Setting("Q = x, masked", 713, INPUTS, together(calm, masked, _as_inputs)),
        Setting("Q = x, no query bias", 714, INPUTS,
                together(calm, without("b^Q"), _as_inputs)),
        Setting("Q = x, no biases, other sizes", 715, {**REORDERED, "d_q": 4, "d_r": 8},
                together(calm, without("b^Q", "b^K", "b^V", "b^O"), _as_inputs)),
        Setting("Q = xW, and H d_k = d = d_z", 716, SHARED,
                together(calm, without("b^Q", "b^K"), _as_projected)),
    ),
)  # fmt: skip


# ---- the answer's A in its formula for the values --------------------------------------------


def _read_as(reading: str):
    """A is the scores of all heads side by side, or their weights, or their mean tokens."""

    def change(values: dict, sizes: dict) -> None:
        light(values, sizes)
        scale, pairs = default_scale(sizes["d_k"], values["x"]), zip(values["W^Q"], values["W^K"])
        parts = [scale * (values["x"] @ q @ (values["z"] @ k).T) for q, k in pairs]
        if reading != "scores":
            parts = [softmax(A) for A in parts]
        if reading == "tokens":
            parts = [P @ values["z"] for P in parts]
        values["A"] = np.hstack(parts)
        values["N"] = np.eye(sizes["H*d_v"]).reshape(values["N"].shape)

    return change


TOKENS = {"n": 4, "m": 3, "d": 7, "d_z": 5, "d_k": 2, "d_v": 6}

VALUES = Cast(
    name="values",
    sizes={**GENERIC, "d_a": 10},  # H m
    letters={
        **{k: WIDE[k] for k in ("x", "z", "W^Q", "W^K", "W^V", "W^O")},
        "A": Letter(("n", "d_a")),
        "N": Letter(("H", "d_v", "H*d_v")),
        "P": Letter(("H", "n", "m"), "prp:answer_weights"),
        "X": Letter(("n", "d"), "prp:answer_weights"),
    },
    outputs=("X",),
    constants=("N",),
    loss="f",
    readings=("d_a",),
    settings=(
        Setting("A is the scores", 721, change=_read_as("scores")),
        Setting("A is the scores, H m = d_z", 722, {"d_z": 10}, _read_as("scores")),
        Setting("A is the weights, H m = d_z", 723, {"d_z": 10}, _read_as("weights")),
        Setting("A is P z, two heads", 724, {"d_a": 14}, _read_as("tokens")),
        Setting("A is P z, one head", 725, {**TOKENS, "H": 1, "d_a": 5}, _read_as("tokens")),
        Setting("A is P z, one head, other sizes", 726,
                {**REORDERED, "H": 1, "d_a": 8}, _read_as("tokens")),
    ),
)  # fmt: skip
