"""Mistakes in the way back through the latents of a layer, and through the key that all its heads share."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np

from attnmath._examine.layer.latent import ENDS, PATHS
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.steps import Forms, Mistake, StepChanges, Wordings, bind, multiplied

LATENT = "chapters/latent.md, eq:latent_attention_vjp"
NORM = "chapters/norms_and_caps.md, eq:rms_norm_vjp"
WORDS = {"Q": "queries", "KV": "keys and values"}
Back = Callable[[Any, np.ndarray, np.ndarray, str], np.ndarray]  # latent, dN, C, "Q" or "KV" -> dC


def lost(*letters: str) -> StepChanges:
    """Nothing arrives."""
    return multiplied(*letters, by=lambda s: 0)


def _of(*changes: tuple[str, StepChanges], learned: str = "") -> Forms:
    """In a layer with latents that learns this."""
    def forms(case: Any, means: Conventions) -> Wordings:
        if means.pieces is not None and means.pieces.latent and (not learned or learned in case.learned):
            yield from changes

    return forms


def _mistake(name: str, title: str, cure: str, *changes: StepChanges, learned: str = "") -> Mistake:
    return Mistake(name, title, _of(*(("", x) for x in changes), learned=learned), LATENT, cure)


def _through_norms(name: str, title: str, cure: str, back: Back) -> Mistake:
    """The gradients of latents go back through their norms in another way."""
    def step(a: str) -> Callable[[Any, np.ndarray], np.ndarray]:
        return lambda s, x: back(s.means.pieces.latent, getattr(s, f"dN_{a}"), getattr(s, f"C_{a}"), a)

    def forms(case: Any, means: Conventions) -> Wordings:
        latent = means.pieces and means.pieces.latent
        normed = [a for a, norm in zip(ENDS, latent.norms) if norm] if latent else []
        each = {a: {f"dC_{a}": step(a)} for a in normed}
        if len(normed) > 1:
            yield "of both latents", {**each["Q"], **each["KV"]}
        yield from ((f"of the latent of {WORDS[a]}", change) for a, change in each.items())

    return Mistake(name, title, forms, NORM, cure)


def _from_heads(heads: Callable[[np.ndarray], np.ndarray]) -> StepChanges:
    """The gradient of the shared key is another function of what comes by each head, (b, H, m, d_r)."""
    return {"dK_R": lambda s, x: heads(s.dK_left[..., : x.shape[-1]])}


def _turned_part_unscaled(s: Any, x: np.ndarray) -> np.ndarray:
    r = s.means.pieces.latent.shared
    return np.concatenate([x[..., :r] / s.gamma_back, x[..., r:]], -1)


WRONG_LATENTS: list[Mistake] = [
    _mistake("latent_without_keys", "nothing comes back to the latent through the keys",
             "add what comes through keys and through values", lost("by_K")),
    _mistake("latent_without_values", "nothing comes back to the latent through the values",
             "add what comes through keys and through values", lost("by_V")),
    _mistake("latent_detached", "nothing comes back through the latent of keys and values", "do not detach it",
             lost("dC_KV"), lost("dZ_KV")),
    _mistake("latent_of_queries_detached", "nothing comes back through the latent of the queries",
             "do not detach it", lost("dC_Q"), lost("dZ_Q"), learned="W_DQ"),
    _mistake("shared_key_detached", "nothing comes back to the key that all heads share", "do not detach it",
             lost("dK_R"), learned="W_KR"),
    _mistake("shared_key_one_head", "the gradient of the key that all heads share comes from one head alone",
             "sum over the heads", *(_from_heads(itemgetter(np.s_[:, h])) for h in (0, -1)), learned="W_KR"),
    _mistake("shared_key_mean", "the gradient of the key that all heads share is a mean over the heads, not a sum",
             "sum over the heads", _from_heads(lambda x: x.mean(1)), learned="W_KR"),
    _mistake("turned_part_unscaled", "the gradients of the part that is turned leave out the scale",
             "multiply all of dQ and dK by gamma", {f"d{a}": _turned_part_unscaled for a in "QK"}, learned="W_KR"),
    *(_mistake(f"dX_misses_{x}", f"dX misses the path through the {word}", "dX is a sum over its paths", lost(x),
               learned={"X_by_KR": "W_KR"}.get(x, "")) for x, word in PATHS.items()),
    _through_norms("latent_norm_kept", "the gradient before a latent's norm is the one after it",
                   "go back through the norm", lambda latent, dN, C, a: dN),
    _through_norms("latent_norm_unprojected", "the gradient of a latent's norm is divided by the root alone",
                   "subtract y times the mean of y dy", lambda latent, dN, C, a: dN / latent.root(C, a)),
    *(_mistake(f"latent_gain_left_out_{a}", f"the way back leaves out the gain of the latent of {word}",
               "multiply by the gain first", {f"dN_{a}": bind(lambda s, x, a: getattr(s, f"dZ_{a}"), a)},
               learned=f"gain_C_{a}") for a, word in WORDS.items()),
    *(_mistake(f"latent_gain_before_norm_{a}", f"the gradient of the gain of the latent of {word} is built from"
               " what is not normed", "dg = sum of dz x / root",
               {f"N_{a}_of_gain": bind(lambda s, x, a: getattr(s, f"C_{a}"), a)},
               learned=f"gain_C_{a}") for a, word in WORDS.items()),
]
