"""A problem that a candidate is given, and what the candidate may mean by its arguments."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from attnmath._masks import causal_mask


class Answer(NamedTuple):
    """The output and the gradients, each of its argument's shape; None for what is not there."""

    O: np.ndarray
    dQ: np.ndarray | None = None
    dK: np.ndarray | None = None
    dV: np.ndarray | None = None
    dB: np.ndarray | None = None


@dataclass(frozen=True)
class Conventions:
    """What a candidate means; examine finds out what is None, or is told."""

    layout: str | None = None  # "bhsd", "bshd", "sbhd", "hsd", "shd", "sd"
    mask: str | None = None  # "keep": True may attend; "drop": True may not; "add": a float, -inf
    causal: str | None = None  # "upper_left" or "lower_right"
    groups: str | None = None  # "blocks": head h reads h // (H/G); "interleaved": h mod G; "none"
    scale: str | None = None  # "1/sqrt(d_k)", "1", "1/d_k", ..., or a number: "0.7", "1/sqrt(32)"
    empty: str | None = None  # "zero", "uniform", "uniform with gradient", "nan"
    inside: str | None = None  # the format of the softmax, where it is not the candidate's dtype

    def told(self, **other: str | None) -> "Conventions":
        """With those of the others that are not None."""
        return replace(self, **{k: x for k, x in other.items() if x is not None})


SCALES = {
    "1/sqrt(d_k)": lambda d_k, H: d_k**-0.5,
    "1": lambda d_k, H: 1.0,
    "1/d_k": lambda d_k, H: 1 / d_k,
    "1/sqrt(H d_k)": lambda d_k, H: (H * d_k) ** -0.5,
    "log(2)/sqrt(d_k)": lambda d_k, H: np.log(2) * d_k**-0.5,
}


def constant(word: str) -> float:
    """The number that a scale in words is: "0.7", or "1/sqrt(32)"."""
    inside = word.removeprefix("1/sqrt(").removesuffix(")")
    return float(word) if inside == word else 1 / np.sqrt(float(inside))


@dataclass(frozen=True, eq=False)
class Case:
    """One problem, in NumPy's float64; the numbers are those of the candidate's format.

    Q (b, H, n, d_k), K (b, G, m, d_k), V (b, G, m, d_v), dO (b, H, n, d_v);
    keep, bias and R broadcast against (b, H, n, m)
    """

    Q: np.ndarray
    K: np.ndarray
    V: np.ndarray
    dO: np.ndarray
    keep: np.ndarray | None = None  # True: this query may attend to this key
    bias: np.ndarray | None = None  # added to the scores; its gradient is dB
    causal: bool = False
    scale: float | None = None  # None: the candidate's own
    R: np.ndarray | None = None  # dropout: 0 or 1/(1 - rho)
    name: str = ""
    traits: frozenset[str] = field(default_factory=frozenset)

    @property
    def sizes(self) -> dict[str, int]:
        """b, H, G, n, m, d_k, d_v."""
        (b, H, n, d_k), (G, m, d_v) = self.Q.shape, self.V.shape[1:]
        return dict(b=b, H=H, G=G, n=n, m=m, d_k=d_k, d_v=d_v)

    def gamma(self, means: Conventions) -> float:
        """The scale of the scores."""
        s, name = self.sizes, means.scale or "1/sqrt(d_k)"
        if self.scale is not None:
            return self.scale
        return SCALES[name](s["d_k"], s["H"]) if name in SCALES else constant(name)

    def owner(self, means: Conventions) -> np.ndarray:
        """For each query head its head of keys and values, H numbers below G."""
        H, G = self.Q.shape[1], self.K.shape[1]
        return np.arange(H) % G if means.groups == "interleaved" else np.arange(H) // (H // G)

    def seen(self, means: Conventions) -> np.ndarray:
        """Which query may attend to which key, (b, H, n, m)."""
        (b, H, n, _), m = self.Q.shape, self.K.shape[2]
        seen = np.ones((b, H, n, m), bool)
        if self.keep is not None:
            seen = seen & self.keep
        if self.causal:
            seen = seen & causal_mask(n, m, align=means.causal or "lower_right")
        return seen

    def B(self, means: Conventions) -> np.ndarray:
        """Bias and masks as what is added to the scores, (b, H, n, m)."""
        return np.where(self.seen(means), 0.0 if self.bias is None else self.bias, -np.inf)
