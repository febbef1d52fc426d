"""A layer, step by step, forward and back: the steps of a head between projections.

Each step can be put in place of another. With numbers that carry a bound (NearSteps), the same
steps say how far a correct program may be off.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from attnmath._examine._case import Conventions
from attnmath._examine._layer_case import LayerAnswer, LayerCase
from attnmath._examine._layer_near import Formats, Near, softmax
from attnmath._examine._steps import STEPS, Change, Step, Steps, T, rowsum
from attnmath._layer_arguments import WEIGHTS


def split(x: Any, H: int) -> Any:
    """(b, n, H k) -> (b, H, n, k)."""
    b, n, Hk = x.shape
    return x.reshape(b, n, H, Hk // H).swapaxes(1, 2)


def merged(x: Any) -> Any:
    """The heads side by side: (b, H, n, k) -> (b, n, H k)."""
    b, H, n, k = x.shape
    return x.swapaxes(1, 2).reshape(b, n, H * k)


def flat(W: Any) -> Any:
    """The columns of all heads side by side: (H, d, k) -> (d, H k)."""
    H, d, k = W.shape
    return W.swapaxes(0, 1).reshape(d, H * k)


def by_head(W: Any, H: int) -> Any:
    """(d, H k) -> (H, d, k)."""
    d, Hk = W.shape
    return W.reshape(d, H, Hk // H).swapaxes(0, 1)


def projected(X: Any, W: Any, b: Any) -> Any:
    """X W + b for all heads side by side: (b, n, d), (H, d, k), (H, k) -> (b, n, H k)."""
    return _plus(X @ flat(W), b)


def over_tokens(X: Any, x: Any, H: int) -> Any:
    """X^T x, summed over the batch: (b, n, d), (b, n, H k) -> (H, d, k)."""
    (b, n, d), Hk = X.shape, x.shape[2]
    return by_head(T(X.reshape(b * n, d)) @ x.reshape(b * n, Hk), H)


def sums(x: Any, b: Any) -> Any:
    """x summed over batch and tokens: (b, n, H k) -> (H, k); None where there is no bias."""
    return None if b is None else x.reshape(-1, x.shape[2]).sum(0).reshape(*b.shape)


def added_up(x: Any, owner: np.ndarray, G: int) -> Any:
    """The sum over the query heads that read the same head of keys and values."""
    b, H, m, k = x.shape
    pick = (owner == np.arange(G)[:, None]).astype(float)
    return (pick @ x.reshape(b, H, m * k)).reshape(b, G, m, k)


def _plus(Y: Any, b: Any) -> Any:
    return Y if b is None else Y + b.reshape(-1)


def _stacked(W_O: Any) -> tuple[int, int]:
    H, d_v, d = W_O.shape
    return H * d_v, d


def pairs(d_k: int, pairing: str) -> tuple[np.ndarray, np.ndarray]:
    """The other entry of each pair, and the sign that it takes in a quarter turn."""
    c = np.arange(d_k)
    if pairing == "half":
        return (c + d_k // 2) % d_k, np.where(c < d_k // 2, -1.0, 1.0)
    return c ^ 1, np.where(c % 2 == 0, -1.0, 1.0)


def rotated(x: Any, s: Steps) -> Any:
    """x cos + (x turned) sin, where there is a rotary embedding."""
    if s.case.rotary is None:
        return x
    other, sign = pairs(x.shape[-1], s.pairing)
    return x * s.cos + x[..., other] * (sign * s.sin)


def rotated_back(dx: Any, s: Steps) -> Any:
    """The way back of `rotated`: dx cos + (dx sin) turned the other way."""
    if s.case.rotary is None:
        return dx
    other, sign = pairs(dx.shape[-1], s.pairing_back)
    return dx * s.cos_back + (dx * (sign * s.sin_back))[..., np.argsort(other)]


LETTERS: dict[str, Step] = {
    # what is given
    "X": lambda s: s.case.X,
    "Z": lambda s: s.case.keys,
    "dY": lambda s: s.case.dY,
    "cos": lambda s: s.case.rotary.cos,
    "sin": lambda s: s.case.rotary.sin,
    "pairing": lambda s: s.case.rotary.pairing,
    "H": lambda s: s.case.W.W_Q.shape[0],
    "G": lambda s: s.case.W.W_K.shape[0],
    # how heads are taken apart and put together, and the way back of both
    "split": lambda s: split,
    "split_back": lambda s: merged,
    "merge": lambda s: merged,
    "merge_back": lambda s: split,
    # the way forward
    "Q_flat": lambda s: s.split(projected(s.X, s.W_Q, s.b_Q), s.H),
    "K_flat": lambda s: s.split(projected(s.Z, s.W_K, s.b_K), s.G),
    "V": lambda s: s.split(projected(s.Z, s.W_V, s.b_V), s.G),
    "Q": lambda s: rotated(s.Q_flat, s),
    "K": lambda s: rotated(s.K_flat, s),
    "said": lambda s: s.merge(s.O),
    "Y": lambda s: _plus(s.said @ s.W_O.reshape(*_stacked(s.W_O)), s.b_O),
    # the way back
    "W_O_back": lambda s: T(s.W_O.reshape(*_stacked(s.W_O))),
    "dO": lambda s: s.merge_back(s.dY @ s.W_O_back, s.H),
    "dK": lambda s: added_up(s.dkeys, s.owner_back, s.G),
    "dV": lambda s: added_up(s.dvalues, s.owner_back, s.G),
    "cos_back": lambda s: s.cos,
    "sin_back": lambda s: s.sin,
    "pairing_back": lambda s: s.pairing,
    "dQ_flat": lambda s: s.split_back(rotated_back(s.dQ, s)),
    "dK_flat": lambda s: s.split_back(rotated_back(s.dK, s)),
    "dV_flat": lambda s: s.split_back(s.dV),
    "by_Q": lambda s: s.dQ_flat @ T(flat(s.W_Q)),
    "by_K": lambda s: s.dK_flat @ T(flat(s.W_K)),
    "by_V": lambda s: s.dV_flat @ T(flat(s.W_V)),
    "dX": lambda s: s.by_Q + s.by_K + s.by_V if s.case.Z is None else s.by_Q,
    "dZ": lambda s: None if s.case.Z is None else s.by_K + s.by_V,
    "dW_Q": lambda s: over_tokens(s.X, s.dQ_flat, s.H),
    "dW_K": lambda s: over_tokens(s.Z, s.dK_flat, s.G),
    "dW_V": lambda s: over_tokens(s.Z, s.dV_flat, s.G),
    "dW_O": lambda s: over_tokens(s.dY, s.said, s.H).swapaxes(1, 2),
    "db_Q": lambda s: sums(s.dQ_flat, s.b_Q),
    "db_K": lambda s: sums(s.dK_flat, s.b_K),
    "db_V": lambda s: sums(s.dV_flat, s.b_V),
    "db_O": lambda s: sums(s.dY, s.b_O),
}
LETTERS |= {
    name: lambda s, name=name: getattr(s.case.W, name)
    for name in WEIGHTS
}


class LayerSteps(Steps):
    """The letters of a layer for one case; each is computed once, by its step."""

    table = STEPS | LETTERS
    case: LayerCase

    def answer(self) -> LayerAnswer:
        """The output and all gradients."""
        return LayerAnswer(*(getattr(self, name) for name in LayerAnswer._fields))


def _given(letter: str) -> Step:
    def step(s: "NearSteps") -> Near | None:
        x = LayerSteps.table[letter](s)
        return None if x is None else Near(x, 0.0, s.formats.own)

    return step


def _row_term(s: "NearSteps") -> Near:
    """D, as the row sum of dO * O or of P * dP, whichever may be further off."""
    by_weights, by_output = rowsum(s.P_back * s.dP), rowsum(s.dO * s.O)
    return Near(by_weights.x, np.maximum(by_weights.off, by_output.off), by_weights.f)


class NearSteps(LayerSteps):
    """The same steps with numbers that say how far a correct program may have them off."""

    table = LayerSteps.table | {
        **{x: _given(x) for x in ("X", "Z", "dY", *WEIGHTS)},
        "R": lambda s: 1.0,
        "QK": lambda s: s.Q.again() @ T(s.keys.again()),
        "P": lambda s: softmax(s.A.to(s.formats.softmax)).to(s.formats.own),
        "P_back": lambda s: s.P,
        "dP": lambda s: (s.dO @ T(s.values_back)).to(s.formats.softmax),
        "D": _row_term,
        "dA": lambda s: (s.P_back.to(s.formats.softmax) * (s.dP - s.D)).to(s.formats.own),
    }

    def __init__(
        self, case: LayerCase, means: Conventions, f: Formats, changes: Iterable[Change] = ()
    ) -> None:
        super().__init__(case, means, changes)
        self.formats = f

    def truth(self) -> tuple[LayerAnswer, LayerAnswer]:
        """The right answer, and how far a correct program may be off."""
        found = super().answer()
        return tuple(
            LayerAnswer(*(None if x is None else getattr(x, part) for x in found)) for part in ("x", "off")
        )
