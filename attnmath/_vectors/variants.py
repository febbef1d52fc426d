"""Cases of today's attention: rotations, norms, caps, slopes, tables, sinks, sigmoids, latents.

Output and gradients are what the formulas of the package give with 150 digits. No theorem says how far off a
program may be: that is measured, with the formulas run in float64 and a rounding planted in every operation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import localcontext
from typing import Any

import numpy as np

from attnmath._examine.problems.measured import DRAWS, several_times
from attnmath._formulas.attention import attention, attention_vjp
from attnmath._formulas.latent import MLAWeights, latent_attention, latent_attention_vjp
from attnmath._formulas.masks import causal_mask
from attnmath._formulas.normalizers import (
    sigmoid_attention,
    sigmoid_attention_vjp,
    sink_attention,
    sink_attention_vjp,
)
from attnmath._formulas.normed_heads import capped_attention, capped_attention_vjp
from attnmath._formulas.norms_and_caps import rms_norm, rms_norm_vjp
from attnmath._formulas.positions import (
    Layout,
    alibi,
    alibi_vjp,
    relative_buckets,
    rotary,
    rotary_vjp,
    table_bias,
    table_bias_vjp,
)
from attnmath._vectors.cases import LOWER, VectorCase
from attnmath._vectors.exact import EXACTLY, grouped
from attnmath._vectors.numbers import SILENCE, Noise, Shaken, in_digits
from attnmath.rounding.formats import model, nearest, unit_roundoff

EPSILON = 2.0**-20  # of the norms
BUCKETS, FAR = 8, 16  # of the table, and the distance of its last bucket
Letters = dict[str, Any]  # arrays by their names
# What is paid to whom: the function of a head, its gradients, the letter that it takes besides.
HEADS: dict[str, tuple[Callable, Callable, str | None]] = {
    "cap": (capped_attention, capped_attention_vjp, "c"),
    "sinks": (sink_attention, sink_attention_vjp, "sigma"),
    "sigmoid": (sigmoid_attention, sigmoid_attention_vjp, None),
    "softmax": (attention, attention_vjp, None),
}


@dataclass(frozen=True)
class Variant(VectorCase):
    """A case with pieces: "norm", "slopes", "table" before a head, which has a "cap", "sinks" or a "sigmoid"."""

    pieces: tuple[str, ...] = ()
    layout: Layout | None = None  # of what is rotated
    pairs: int = 0  # of features that are

    @property
    def head(self) -> str:
        """Its key in HEADS."""
        return next((x for x in HEADS if x in self.pieces), "softmax")

    @property
    def said(self) -> dict[str, Any]:
        """The pieces with their numbers, for the index."""
        numbers = {"norm": EPSILON}
        return {x: numbers.get(x, True) for x in self.pieces} | ({"rotary": self.layout} if self.layout else {})

    def given(self, dtype: str) -> Letters:
        """The inputs, numbers of the format, beside the mask."""
        case = self.case(dtype)
        return dict(Q=case.Q, K=case.K, V=case.V, dO=case.dO) | self.parameters(dtype)

    def parameters(self, dtype: str) -> Letters:
        """What its pieces have learned."""
        H, d_k = self.sizes[1], self.sizes[5]
        drawn: Letters = {}
        if "norm" in self.pieces:
            drawn |= {name: 1 + self.drawn(name, (d_k,)) / 4 for name in ("alpha_Q", "alpha_K")}
        if self.layout:
            drawn["theta"] = (1 + self.bits("theta", (self.pairs,))) / 128
        if "cap" in self.pieces:
            drawn["c"] = np.array(1.5)
        if "slopes" in self.pieces:
            drawn["eta"] = 2.0 ** -np.arange(1, H + 1)
        if "table" in self.pieces:
            drawn["beta"] = self.drawn("beta", (H, BUCKETS))
        if "sinks" in self.pieces:
            drawn["sigma"] = self.drawn("sigma", (H,))
        return {name: nearest(x, dtype) for name, x in drawn.items()}

    def seen(self, dtype: str) -> np.ndarray:
        """Which query may attend to which key."""
        return self.case(dtype).seen(self.means)

    @property
    def buckets(self) -> np.ndarray:
        """The bucket of each pair."""
        n, m = self.sizes[3:5]
        return np.asarray(relative_buckets(n, m, buckets=BUCKETS, distance=FAR))

    def answer(self, x: Letters) -> Letters:
        """The output and all gradients, of arrays whatever their numbers; x has gamma and mask too."""
        b, H, G, n, m, *_ = self.sizes
        owner = np.arange(H) // (H // G)
        Q, K, V, mask = x["Q"], x["K"], x["V"][:, owner], x["mask"]
        if "norm" in self.pieces:
            Q, K = (rms_norm(y, x[a], epsilon=x["epsilon"]) for y, a in ((Q, "alpha_Q"), (K, "alpha_K")))
        met = [(Q, np.arange(m - n, m)), (K, np.arange(m))]
        if self.layout:
            Q, K = (rotary(y, x["theta"], positions=t, layout=self.layout) for y, t in met)
        places: dict[str, Any] = dict(n=n, m=m)
        B = mask + alibi(x["eta"], **places) if "slopes" in self.pieces else mask
        B = B + table_bias(x["beta"], buckets=self.buckets) if "table" in self.pieces else B
        f, f_vjp, letter = HEADS[self.head]
        own = (x[letter],) if letter else ()
        O = f(Q, K[:, owner], V, *own, B, x["gamma"])
        back = f_vjp(x["dO"], Q, K[:, owner], V, *own, B, x["gamma"])._asdict()
        found = {"O": O} | {name: back[name] for name in ("dgamma", *([f"d{letter}"] if letter else []))}
        dQ, dK, dV = back["dQ"], *(grouped(back[name], owner, G) for name in ("dK", "dV"))
        dB = back["dB"].sum(0)
        if self.layout:
            turned = [rotary_vjp(dy, y, x["theta"], positions=t, layout=self.layout)
                      for dy, (y, t) in zip((dQ, dK), met)]
            (dQ, of_Q), (dK, of_K) = turned
            found["dtheta"] = of_Q + of_K
        if "norm" in self.pieces:
            dQ, found["dalpha_Q"] = rms_norm_vjp(dQ, x["Q"], x["alpha_Q"], epsilon=x["epsilon"])
            dK, found["dalpha_K"] = rms_norm_vjp(dK, x["K"], x["alpha_K"], epsilon=x["epsilon"])
        if "slopes" in self.pieces:
            found["deta"] = alibi_vjp(dB, x["eta"], **places)
        if "table" in self.pieces:
            found["dbeta"] = table_bias_vjp(dB, x["beta"], buckets=self.buckets)
        return found | {"dQ": dQ, "dK": dK, "dV": dV}

    def solved(self, dtype: str) -> Letters:
        """The output and all gradients with 150 digits."""
        with localcontext(EXACTLY):
            return self.answer({name: in_digits(x) for name, x in self.all_given(dtype).items()})

    def all_given(self, dtype: str) -> Letters:
        """The inputs, the scale, epsilon, and the mask as what is added to the scores."""
        mask = np.where(self.seen(dtype), 0.0, -np.inf)
        return self.given(dtype) | {"mask": mask, "gamma": self.scale_in(dtype), "epsilon": EPSILON}

    def allowed(self, dtype: str) -> Letters:
        """How far off each entry may be, as it is measured."""
        wide = "float64" if dtype == "float64" else "float32"
        usual, angles = (model("allowed", form, wide, False) for form in (dtype, wide))
        moved = [self._in_floats(dtype, Noise(usual, seed), Noise(angles, seed)) for seed in range(DRAWS)]
        return several_times(self._in_floats(dtype), moved, unit_roundoff(dtype))

    def _in_floats(self, dtype: str, usual: Noise = SILENCE, angles: Noise = SILENCE) -> Letters:
        given = self.all_given(dtype).items()
        shaken = {name: Shaken.of(angles if name == "theta" else usual, x) for name, x in given}
        return {name: np.asarray(x) for name, x in self.answer(shaken).items()}


WEIGHTS = {"W_DQ": "dq", "W_UQ": "Hqk", "W_QR": "Hqr", "W_DKV": "dc", "W_UK": "Hck", "W_UV": "Hcv",
           "W_KR": "dr", "W_O": "Hvd"}
OWN_SIZES = {"d": 6, "q": 5, "c": 4, "r": 4}  # of rows, of both latents, of what is turned


@dataclass(frozen=True)
class Latent(Variant):
    """A layer with latents."""

    @property
    def named_sizes(self) -> dict[str, int]:
        """By their letters."""
        b, H, _, n, m, d_k, d_v = self.sizes
        own = {"d" if k == "d" else f"d_{k}": size for k, size in OWN_SIZES.items()}
        return dict(b=b, H=H, n=n, m=m, d_k=d_k, d_v=d_v) | own

    def given(self, dtype: str) -> Letters:
        """X, dY, the eight weights and the frequencies."""
        b, H, _, n, _, d_k, d_v = self.sizes
        sizes = OWN_SIZES | {"H": H, "k": d_k, "v": d_v}
        drawn = {name: self.drawn(name, tuple(sizes[k] for k in axes)) / 2 for name, axes in WEIGHTS.items()}
        drawn |= {name: self.drawn(name, (b, n, sizes["d"])) for name in ("X", "dY")}
        return {name: nearest(x, dtype) for name, x in drawn.items()} | self.parameters(dtype)

    def seen(self, dtype: str) -> np.ndarray:
        """Causal."""
        n, m = self.sizes[3:5]
        return causal_mask(n, m)[None, None]

    def answer(self, x: Letters) -> Letters:
        """The output and all gradients."""
        W = MLAWeights(**{name: x[name] for name in WEIGHTS})
        given, layout = (x["X"], W, x["theta"], x["mask"][0, 0], x["gamma"]), self.layout or "half_split"
        back = latent_attention_vjp(x["dY"], *given, layout=layout)
        of_weights = {f"d{name}": dW for name, dW in back.dW._asdict().items()}
        own = dict(Y=latent_attention(*given, layout=layout), dX=back.dX, dtheta=back.dtheta, dgamma=back.dgamma)
        return own | of_weights


GROUPS, MORE_KEYS = (1, 4, 2, 5, 5, 6, 4), (2, 2, 2, 4, 7, 6, 4)
# A name never changes its meaning: its numbers come from it.
VARIANTS = [
    # sizes b, H, G, n, m, d_k, d_v
    Variant("softcap", "scores are capped before the mask", GROUPS, causal=LOWER, pieces=("cap",)),
    Variant("sinks", "a sink for each head, causal", GROUPS, causal=LOWER, pieces=("sinks",)),
    Variant("sinks_padding", "a sink; a row that may attend to nothing else is 0",
            (3, 2, 2, 4, 5, 4, 4), mask="empty item", pieces=("sinks",)),
    Variant("rotary_halves", "feature p is turned with p + r", GROUPS, causal=LOWER, layout="half_split", pairs=3),
    Variant("rotary_interleaved", "feature 2 p is turned with 2 p + 1",
            GROUPS, causal=LOWER, layout="interleaved", pairs=3),
    Variant("rotary_part", "the first four of six features are turned", GROUPS, causal=LOWER,
            layout="half_split", pairs=2),
    Variant("rotary_part_interleaved", "the same, side by side", GROUPS, causal=LOWER,
            layout="interleaved", pairs=2),
    Variant("rotary_fewer_queries", "the last query stands at the last key", MORE_KEYS, causal=LOWER,
            layout="half_split", pairs=3),
    Variant("alibi_slopes", "the gradient of the slopes", MORE_KEYS, causal=LOWER, pieces=("slopes",)),
    Variant("table", "a table of biases, in both directions", MORE_KEYS, pieces=("table",)),
    Variant("qk_norm", "queries and keys are normed, with gains", GROUPS, causal=LOWER, pieces=("norm",)),
    Variant("sigmoid", "weights are sigmoids", GROUPS, causal=LOWER, pieces=("sigmoid",)),
    Variant("cap_in_window", "rotated, capped, in a window", (1, 4, 2, 7, 7, 6, 4), mask="window", pieces=("cap",),
            layout="half_split", pairs=3),
    Variant("normed_and_rotated", "normed, then rotated, n < m", (1, 4, 2, 4, 7, 6, 4), causal=LOWER,
            pieces=("norm",), layout="half_split", pairs=3),
    Variant("sinks_in_window", "rotated, with sinks, in a window", (1, 4, 2, 7, 7, 6, 4), mask="window",
            pieces=("sinks",), layout="half_split", pairs=3),
    Latent("latent", "a layer with latents, a part of it turned, causal", (2, 2, 2, 4, 4, 3, 4), causal=LOWER,
           scale=0.375, layout="half_split", pairs=2, pieces=("latent",)),
    Latent("latent_interleaved", "the same, side by side", (2, 2, 2, 4, 4, 3, 4), causal=LOWER,
           scale=0.375, layout="interleaved", pairs=2, pieces=("latent",)),
]

