"""A problem that a layer is given, and what the layer returns."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from attnmath._examine._case import Case, Conventions
from attnmath._heads import Weights


class Rotary(NamedTuple):
    """A rotary embedding: Q cos + turned(Q) sin, the same for keys; each (n, d_k).

    pairing "half": entry c goes with entry c + d_k/2; "interleaved": 2 c with 2 c + 1
    """

    cos: np.ndarray
    sin: np.ndarray
    pairing: str = "half"


@dataclass(frozen=True)
class LayerCase:
    """One problem, in NumPy's float64; the numbers are those of the layer's format.

    X (b, n, d), Z (b, m, d_z) or None for self-attention, dY (b, n, d), W Weights with the
    heads in front, keep (b, H, n, m), or what broadcasts
    """

    X: np.ndarray
    Z: np.ndarray | None
    W: Weights
    dY: np.ndarray
    keep: np.ndarray | None = None  # True: this query may attend to this key
    causal: bool = False
    rotary: Rotary | None = None
    scale: float | None = None
    name: str = ""
    traits: frozenset[str] = field(default_factory=frozenset)
    bias: None = None
    R: None = None

    @property
    def keys(self) -> np.ndarray:
        """The tokens that keys and values come from."""
        return self.X if self.Z is None else self.Z

    @property
    def sizes(self) -> dict[str, int]:
        """b, H, G, n, m, d_k, d_v."""
        (b, n, _), (H, _, d_k), (G, _, d_v) = self.X.shape, self.W.W_Q.shape, self.W.W_V.shape
        return dict(b=b, H=H, G=G, n=n, m=self.keys.shape[1], d_k=d_k, d_v=d_v)

    def head(self) -> Case:
        """The heads alone, with queries, keys, values of the right shape; of the masks, the right ones."""
        b, H, G, n, m, d_k, d_v = self.sizes.values()
        empty = (np.zeros((b, *shape)) for shape in ((H, n, d_k), (G, m, d_k), (G, m, d_v), (H, n, d_v)))
        return Case(*empty, keep=self.keep, causal=self.causal, scale=self.scale)

    def gamma(self, means: Conventions) -> float:
        """The scale of the scores."""
        return self.head().gamma(means)

    def owner(self, means: Conventions) -> np.ndarray:
        """For each query head its head of keys and values."""
        return self.head().owner(means)

    def seen(self, means: Conventions) -> np.ndarray:
        """Which query may attend to which key, (b, H, n, m)."""
        return self.head().seen(means)


class LayerAnswer(NamedTuple):
    """What a layer returns, and its gradients; None for what is not there."""

    Y: np.ndarray
    dX: np.ndarray | None = None
    dZ: np.ndarray | None = None
    dW_Q: np.ndarray | None = None
    dW_K: np.ndarray | None = None
    dW_V: np.ndarray | None = None
    dW_O: np.ndarray | None = None
    db_Q: np.ndarray | None = None
    db_K: np.ndarray | None = None
    db_V: np.ndarray | None = None
    db_O: np.ndarray | None = None

    @classmethod
    def of(cls, Y: np.ndarray, dX: np.ndarray, dZ: np.ndarray | None, dW: Weights) -> "LayerAnswer":
        """From the gradients of the weights together."""
        return cls(Y, dX, dZ, *dW)
