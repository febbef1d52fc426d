"""The mistakes of a layer that have a name; those of a head follow, where a layer has them too."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attnmath._examine.layer import layer
from attnmath._examine.layer.layer import LayerCase, LayerSteps, weight_gradient
from attnmath._examine.layer.wrong_matrices import MATRIX_MISTAKES, MULTI, VJP, WEIGHT_MATRICES
from attnmath._examine.mistakes.mistakes import MISTAKES
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.steps import Forms, Mistake, StepChanges, Steps, Wordings, multiplied, only
from attnmath._formulas.heads import Weights
from attnmath._words.arrays import T

SELF_VJP, ENCODER = "chapters/inputs.md, eq:self_attention_vjp", "chapters/cross.md"
PARAMETER_GRADIENTS = tuple(f"d{name}" for name in Weights._fields)


def self_alone(case: LayerCase) -> bool:
    """Self-attention."""
    return case.Z is None


def cross_alone(case: LayerCase) -> bool:
    """Keys and values from other tokens."""
    return case.Z is not None


def same_shape(case: LayerCase) -> bool:
    """Cross-attention in which X and Z could be mixed up."""
    return case.Z is not None and case.X.shape == case.Z.shape


def turns(case: LayerCase) -> bool:
    """A rotary embedding."""
    return case.rotary is not None


def other_pairing(s: Steps, pairing: str) -> str:
    """The one that it is not."""
    return "interleaved" if pairing == "half" else "half"


def per_head(s: Steps, x: np.ndarray | None) -> np.ndarray | None:
    """The bias as often as there are heads."""
    return None if x is None else s.H * x


# ---- what is left out ---------------------------------------------------------------------------


def dW_K_without_b_Q(case: LayerCase, means: Conventions) -> Wordings:
    """The closed form for a layer without biases."""
    def dkeys(s: Steps) -> np.ndarray:
        Q = layer.rotated(s.split(layer.projected(s.X, s.W_Q, None), s.H), s)
        return s.gamma_back * T(s.dA) @ Q

    def dW_K(s: Steps, x: np.ndarray) -> np.ndarray:
        dK = layer.summed_by_owner(dkeys(s), s.owner_back, s.G)
        return weight_gradient(s.Z, s.split_back(layer.rotated_back(dK, s)), s.G)

    if case.W.b_Q is not None:
        yield "in dW_K alone", {"dW_K": dW_K}
        yield "in all that dK reaches", {"dkeys": lambda s, x: dkeys(s)}


def one_entry(name: str) -> Forms:
    """A gradient of one entry of the batch alone."""
    def forms(case: LayerCase, means: Conventions) -> Wordings:
        for at in (0, -1):
            def of_one(s: Steps, x: np.ndarray | None, at: int = at) -> np.ndarray | None:
                if x is None:
                    return None
                keep = s.given.keep
                keep = keep[at][None] if keep is not None and len(keep) > 1 else keep
                Z = None if s.given.Z is None else s.given.Z[at][None]
                X, dY = s.given.X[at][None], s.given.dY[at][None]
                return getattr(LayerSteps(replace(s.given, X=X, Z=Z, dY=dY, keep=keep), s.means), name)

            yield "the first" if at == 0 else "the last", {name: of_one}

    return forms


def lost(*names: str) -> StepChanges:
    """Nothing arrives."""
    return multiplied(*names, by=lambda s: 0)


def bias_unused(name: str) -> Forms:
    """A bias is not added, and gets no gradient."""
    no = {name: lambda s, b: None, f"d{name}": lambda s, db: np.zeros_like(getattr(s.given.W, name))}
    return only(no, lambda case: getattr(case.W, name) is not None)


def bias_gradient_missing(name: str) -> Forms:
    """A bias is added, and gets no gradient."""
    return only(lost(f"d{name}"), lambda case: getattr(case.W, name) is not None)


def mean(names: tuple[str, ...], count: Callable[[LayerCase], int]) -> StepChanges:
    """A mean instead of a sum."""
    return {x: lambda s, y: None if y is None else y / count(s.given) for x in names}


def over_batch(case: LayerCase) -> int:
    """How many sequences."""
    return len(case.X)


def over_all(case: LayerCase) -> int:
    """How many tokens ask."""
    return len(case.X) * case.X.shape[1]


LAYER_MISTAKES: list[Mistake] = [
    *MATRIX_MISTAKES,
    # tokens
    Mistake("dW_K_from_X", "dW_K is built from the decoder's tokens X instead of Z",
            only({"dW_K": lambda s, x: weight_gradient(s.X, s.dK_flat, s.G)}, same_shape), VJP, "dW_K = Z^T dK"),
    Mistake("dW_V_from_X", "dW_V is built from the decoder's tokens X instead of Z",
            only({"dW_V": lambda s, x: weight_gradient(s.X, s.dV_flat, s.G)}, same_shape), VJP, "dW_V = Z^T dV"),
    Mistake("dW_KV_from_X", "dW_K and dW_V are built from the decoder's tokens X instead of Z",
            only({"dW_K": lambda s, x: weight_gradient(s.X, s.dK_flat, s.G),
                 "dW_V": lambda s, x: weight_gradient(s.X, s.dV_flat, s.G)}, same_shape), VJP, "dW_K = Z^T dK"),
    Mistake("dW_Q_from_Z", "dW_Q is built from the encoder's tokens Z instead of X",
            only({"dW_Q": lambda s, x: weight_gradient(s.Z, s.dQ_flat, s.H)}, same_shape), VJP, "dW_Q = X^T dQ"),
    Mistake("dX_dZ_exchanged", "dX and dZ stand at each other's places",
            only({"dX": lambda s, x: s.by_K + s.by_V, "dZ": lambda s, x: s.by_Q}, same_shape), ENCODER,
            "X asks, Z answers"),
    Mistake("Z_ignored", "keys and values come from X instead of Z",
            only({"Z": lambda s, x: s.X, "dX": lambda s, x: s.by_Q + s.by_K + s.by_V, "dZ": lambda s, x: 0 * x},
                same_shape), ENCODER, "keys and values come from Z"),
    # paths and sums
    *(Mistake(f"dX_misses_{x}", f"dX misses the path through the {word}", only(lost(f"by_{x}"), self_alone),
              SELF_VJP, "dX is the sum of three paths: queries, keys, values")
      for x, word in (("Q", "queries"), ("K", "keys"), ("V", "values"))),
    *(Mistake(f"dZ_misses_{x}", f"dZ misses the path through the {word}", only(lost(f"by_{x}"), cross_alone),
              ENCODER, "dZ is the sum of two paths: keys and values")
      for x, word in (("K", "keys"), ("V", "values"))),
    Mistake("dX_missing", "nothing comes back to X through the queries", only(lost("by_Q"), cross_alone),
            VJP, "dX = sum dQ_h W_Q,h^T"),
    Mistake("dZ_missing", "nothing comes back to Z", only(lost("dZ"), cross_alone), ENCODER,
            "do not detach Z"),
    Mistake("dX_zero", "nothing comes back to X", only(lost("dX"), self_alone), SELF_VJP, "do not detach X"),
    Mistake("dX_missing", "nothing comes back to the tokens", only(lost("dX", "dZ"), cross_alone), ENCODER,
            "do not detach the tokens"),
    Mistake("residual_inside", "the layer adds its own input: Y + X",
            only({"Y": lambda s, Y: Y + s.X, "dX": lambda s, x: x + s.dY}), MULTI,
            "examine the layer without its residual connection"),
    Mistake("residual_back", "dX contains the gradient of a residual connection that the layer does not have",
            only({"dX": lambda s, x: x + s.dY}), SELF_VJP, "dX without dY"),
    # biases
    Mistake("dW_K_without_b_Q", "dW_K leaves out the bias of the queries", dW_K_without_b_Q, VJP,
            "dK = gamma dA^T Q, with the bias b_Q in Q"),
    *(Mistake(f"{x}_missing", f"the bias {x} is not used", bias_unused(x), MULTI, f"add {x}")
      for x in ("b_Q", "b_K", "b_V", "b_O")),
    *(Mistake(f"d{x}_missing", f"the bias {x} gets no gradient", bias_gradient_missing(x), VJP,
              f"sum over all tokens of the batch for d{x}") for x in ("b_Q", "b_V", "b_O")),
    Mistake("b_O_per_head", "the bias b_O is added once for every head",
            only({"Y": lambda s, Y: Y if s.b_O is None else Y + (s.H - 1) * s.b_O, "db_O": per_head}), MULTI,
            "add b_O once, after the sum over the heads"),
    *(Mistake(f"d{x}_missing", f"{x} gets no gradient", only(lost(f"d{x}")), VJP, f"do not detach {x}")
      for x in WEIGHT_MATRICES),
    # the batch
    *(Mistake(name, f"gradients of {which} are means over {what} instead of sums", only(mean(letters, count)), VJP,
              f"sum over {over}") for name, which, what, letters, count, over in (
        ("batch_mean", "weights", "the batch", PARAMETER_GRADIENTS, over_batch, "the batch"),
        ("token_mean", "weights", "all tokens", PARAMETER_GRADIENTS, over_all, "batch and tokens"),
        ("bias_mean", "biases", "all tokens", PARAMETER_GRADIENTS[4:], over_all, "batch and tokens"),
        ("bias_batch_mean", "biases", "the batch", PARAMETER_GRADIENTS[4:], over_batch, "batch and tokens"))),
    *(Mistake(f"{x}_batch_mean", f"{x} is a mean over the batch instead of a sum",
              only(mean((x,), over_batch)), VJP, "sum over the batch") for x in PARAMETER_GRADIENTS),
    *(Mistake(f"{x}_one_entry", f"{x} comes from one entry of the batch alone", one_entry(x), VJP,
              "sum over the batch") for x in PARAMETER_GRADIENTS),
    # rotary embedding
    Mistake("rope_not_pulled_back", "the rotary embedding is not undone on the way back",
            only({"cos_back": lambda s, x: np.ones_like(x), "sin_back": lambda s, x: np.zeros_like(x)}, turns),
            VJP, "turn dQ and dK back by the same angles"),
    Mistake("rope_back_sign", "the way back turns dQ and dK forward once more",
            only({"sin_back": lambda s, x: -x}, turns), VJP, "turn dQ and dK back: the sine changes its sign"),
    Mistake("rope_sign", "the rotary embedding turns the other way", only({"sin": lambda s, x: -x}, turns),
            MULTI, "q cos + turned(q) sin, where turned(q) is (-second half, first half)"),
    Mistake("rope_pairing", "the rotary embedding pairs other entries: half and interleaved are mixed up",
            only({"pairing": other_pairing}, turns), MULTI,
            "half: entry c with c + d_k/2; interleaved: 2 c with 2 c + 1"),
    Mistake("rope_pairing_back", "the way back pairs other entries in the rotary embedding",
            only({"pairing_back": other_pairing}, turns), VJP, "the same pairs in both directions"),
    Mistake("rope_halves_back", "the way back takes the sine after the turn, where its halves differ",
            only({"dQ": lambda s, x: x, "sin_back": lambda s, x: np.roll(x, x.shape[-1] // 2, -1)}, turns), VJP,
            "dq cos + (dq sin) turned back"),
    Mistake("rope_missing", "there is no rotary embedding",
            only({"cos": lambda s, x: np.ones_like(x), "sin": lambda s, x: np.zeros_like(x)}, turns), MULTI,
            "turn queries and keys"),
    Mistake("rope_keys_missing", "the rotary embedding does not turn the keys",
            only({"K": lambda s, x: s.K_unturned, "dK_flat": lambda s, x: s.split_back(s.dK)}, turns), MULTI,
            "turn queries and keys"),
    Mistake("rope_values", "the rotary embedding turns the values too",
            only({"V": lambda s, x: layer.rotated(x, s),
                 "dV_flat": lambda s, x: s.split_back(layer.rotated_back(s.dV, s))}, turns), MULTI,
            "turn queries and keys alone"),
]


def of_heads(m: Mistake) -> Mistake:
    """A mistake of a head, for the heads of a layer."""
    return m._replace(forms=lambda case, means: m.forms(case.heads, means))


DICTIONARY: list[Mistake] = [*LAYER_MISTAKES, *map(of_heads, MISTAKES)]
