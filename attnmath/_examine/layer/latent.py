"""A layer with latents: its program, and how its heads are asked with queries, keys and values of one's own.

Tokens go down to a latent of the queries and one of keys and values, each of which may be normed; the heads'
queries, keys and values come up from them. All heads share one key more: it is that part of their keys which is
turned, and stands first. The matrices up are called W_Q, W_K and W_V.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.diagnosis.read_pieces import near
from attnmath._examine.layer.layer import ByName, Layer, LayerCase, projected, weight_gradient
from attnmath._examine.layer.pieced import LayerHeads, PiecedSteps, compared, read_heads, steps_of
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.pieces import Pieces, across, root_of_mean
from attnmath._examine.problems.steps import Step, StepChanges
from attnmath._words.arrays import T

EPSILONS = 1e-6, 1e-5, 1e-8, 1e-12, 0.0, 2.0**-52, 2.0**-23, 1e-7, 1e-10, 1e-3
NORMS = "root mean square", "mean and variance"
LARGE = 2.0**40  # latents beside which epsilon is nothing
MATRICES, ENDS = ("W_DQ", "W_DKV", "W_KR"), ("Q", "KV")
LEARNED = (*MATRICES, *(x.replace("W", "b") for x in MATRICES),
           *(f"{word}_C_{a}" for word in ("gain", "shift") for a in ENDS))
Moved = Sequence[tuple[str, np.ndarray]]  # parameters, and where in them the numbers stand; side by side


def moved(numbers: ByName, parts: Moved) -> np.ndarray:
    """Numbers of the parameters, at their places."""
    return np.concatenate([np.asarray(numbers[name], float).ravel()[at] for name, at in parts], -1)


class Latent(NamedTuple):
    """What is known of the latents of a layer."""

    shared: int  # features of the key that all heads share
    widths: tuple[int, int]  # of the latents of queries, 0 without one, and of keys and values
    norms: tuple[str, str] = ("", "")  # of each: one of NORMS
    epsilon: float = 0.0

    @property
    def program(self) -> type["LatentSteps"]:
        """The steps of such a layer."""
        return LatentSteps

    @property
    def words(self) -> str:
        """In a report."""
        of = " and ".join(f"{w} for {x}" for w, x in zip(self.widths, ("queries", "keys and values")) if w)
        norm = "normed by " + " and ".join(dict.fromkeys(filter(None, self.norms)))
        norm = f", {norm} (epsilon {self.epsilon:g})" if any(self.norms) else ""
        return f"latents of {of}{norm}" + f", a key of {self.shared} for all heads" * bool(self.shared)

    def centred(self, x: np.ndarray, a: str) -> np.ndarray:
        """Less its mean, where the norm is one of mean and variance."""
        return x - x.mean(-1, keepdims=True) if self.norms[ENDS.index(a)].startswith("mean") else x

    def root(self, x: np.ndarray, a: str) -> Any:
        """What a latent is divided by; 1 without a norm."""
        if not self.norms[ENDS.index(a)]:
            return 1.0
        return root_of_mean(self.centred(x, a), self.epsilon)

    def normed(self, x: np.ndarray, a: str) -> np.ndarray:
        """A latent, normed."""
        return self.centred(x, a) / self.root(x, a)

    def unnormed(self, dy: np.ndarray, x: np.ndarray, a: str) -> np.ndarray:
        """The gradient of a latent, from that of the normed one."""
        normed = self.norms[ENDS.index(a)]
        return across(self.centred(dy, a), self.normed(x, a)) / self.root(x, a) if normed else dy

    def moving(self, u: float, signs: Callable[[np.ndarray], np.ndarray]) -> StepChanges:
        """What roundings do to a gradient that goes back through a norm, where a part of it cancels."""
        def step(a: str) -> Callable[[Any, np.ndarray], np.ndarray]:
            def back(s: Any, x: np.ndarray) -> np.ndarray:
                size = np.sqrt((getattr(s, f"dN_{a}") ** 2).mean(-1, keepdims=True))
                return x + 2 * u * size / self.root(getattr(s, f"C_{a}"), a) * signs(x)

            return back

        return {f"dC_{a}": step(a) for a, norm in zip(ENDS, self.norms) if norm}


# ---- its program --------------------------------------------------------------------------------


def _learned(name: str) -> Step:
    return lambda s: s.given.learned.get(name)


def _down(X: np.ndarray, W: np.ndarray | None, b: np.ndarray | None) -> np.ndarray:
    """X W + b; X itself where there is no matrix."""
    return X if W is None else X @ W + (0.0 if b is None else b)


def _normed(x: np.ndarray, gain: np.ndarray | None, shift: np.ndarray | None) -> np.ndarray:
    return x * (1.0 if gain is None else gain) + (0.0 if shift is None else shift)


def _summed(x: np.ndarray, like: np.ndarray | None) -> np.ndarray | None:
    """A gradient (b, n, w) summed over all tokens, where there is what it belongs to."""
    return None if like is None else x.sum((0, 1))


def _outer(X: np.ndarray, dx: np.ndarray, W: np.ndarray | None) -> np.ndarray | None:
    """X^T dx, summed over the batch; None where there is no matrix."""
    return None if W is None else np.tensordot(X, dx, ((0, 1), (0, 1)))


def _beside(K_R: np.ndarray | None, K: np.ndarray) -> np.ndarray:
    """The key that all heads share beside that of each: (b, m, d_r), (b, H, m, k) -> (b, H, m, d_r + k)."""
    if K_R is None:
        return K
    return np.concatenate([np.broadcast_to(K_R[:, None], (*K.shape[:3], K_R.shape[-1])), K], -1)


def _back(dx: np.ndarray | None, W: np.ndarray | None) -> Any:
    """dx W^T; dx itself where there is no matrix."""
    return 0.0 if dx is None else dx if W is None else dx @ T(W)


def _latent(s: Any) -> Latent:
    return s.means.pieces.latent


PATHS = {"X_by_Q": "queries", "X_by_KV": "latent of keys and values", "X_by_KR": "key that all heads share"}
LATENT: dict[str, Step] = {
    **{name: _learned(name) for name in LEARNED},
    # the way forward
    "C_Q": lambda s: _down(s.X, s.W_DQ, s.b_DQ), "C_KV": lambda s: _down(s.X, s.W_DKV, s.b_DKV),
    "N_Q": lambda s: _latent(s).normed(s.C_Q, "Q"), "N_KV": lambda s: _latent(s).normed(s.C_KV, "KV"),
    "Z_Q": lambda s: _normed(s.N_Q, s.gain_C_Q, s.shift_C_Q),
    "Z_KV": lambda s: _normed(s.N_KV, s.gain_C_KV, s.shift_C_KV),
    "K_R": lambda s: None if s.W_KR is None else _down(s.X, s.W_KR, s.b_KR),
    "Q_unturned": lambda s: s.split(projected(s.Z_Q, s.W_Q, s.b_Q), s.H),
    "K_up": lambda s: s.split(projected(s.Z_KV, s.W_K, s.b_K), s.G),
    "K_unturned": lambda s: _beside(s.K_R, s.K_up),
    "V": lambda s: s.split(projected(s.Z_KV, s.W_V, s.b_V), s.G),
    # the way back
    "dQ_flat": lambda s: s.split_back(s.dQ_left),
    "dK_flat": lambda s: s.split_back(s.dK_left[..., _latent(s).shared:]),
    "dK_R": lambda s: None if s.W_KR is None else s.dK_left[..., : _latent(s).shared].sum(1),
    "dZ_Q": lambda s: s.by_Q, "dZ_KV": lambda s: s.by_K + s.by_V,
    "dN_Q": lambda s: _normed(s.dZ_Q, s.gain_C_Q, None), "dN_KV": lambda s: _normed(s.dZ_KV, s.gain_C_KV, None),
    "dC_Q": lambda s: _latent(s).unnormed(s.dN_Q, s.C_Q, "Q"),
    "dC_KV": lambda s: _latent(s).unnormed(s.dN_KV, s.C_KV, "KV"),
    "X_by_Q": lambda s: _back(s.dC_Q, s.W_DQ), "X_by_KV": lambda s: _back(s.dC_KV, s.W_DKV),
    "X_by_KR": lambda s: _back(s.dK_R, s.W_KR),
    "dX": lambda s: s.X_by_Q + s.X_by_KV + s.X_by_KR, "dZ": lambda s: None,
    "dW_Q": lambda s: weight_gradient(s.Z_Q, s.dQ_flat, s.H),
    "dW_K": lambda s: weight_gradient(s.Z_KV, s.dK_flat, s.G),
    "dW_V": lambda s: weight_gradient(s.Z_KV, s.dV_flat, s.G),
    "dW_DQ": lambda s: _outer(s.X, s.dC_Q, s.W_DQ), "dW_DKV": lambda s: _outer(s.X, s.dC_KV, s.W_DKV),
    "dW_KR": lambda s: _outer(s.X, s.dK_R, s.W_KR),
    "db_DQ": lambda s: _summed(s.dC_Q, s.b_DQ), "db_DKV": lambda s: _summed(s.dC_KV, s.b_DKV),
    "db_KR": lambda s: _summed(s.dK_R, s.b_KR),
    "N_Q_of_gain": lambda s: s.N_Q, "N_KV_of_gain": lambda s: s.N_KV,
    "dgain_C_Q": lambda s: _summed(s.dZ_Q * s.N_Q_of_gain, s.gain_C_Q),
    "dgain_C_KV": lambda s: _summed(s.dZ_KV * s.N_KV_of_gain, s.gain_C_KV),
    "dshift_C_Q": lambda s: _summed(s.dZ_Q, s.shift_C_Q), "dshift_C_KV": lambda s: _summed(s.dZ_KV, s.shift_C_KV),
}


class LatentSteps(PiecedSteps):
    """The steps of a layer with latents."""

    table: Mapping[str, Step] = {**PiecedSteps.table, **LATENT}


# ---- what it is, read off its output --------------------------------------------------------------


@dataclass(frozen=True)
class LatentLayer(Layer):
    """A layer whose parameters are read as the matrices of latents."""

    parts: Mapping[str, Moved] = field(default_factory=dict)  # of Weights and of LEARNED, by their names

    def learns(self, numbers: ByName) -> dict[str, np.ndarray]:
        """What it learns beside the matrices of its heads."""
        return {x: moved(numbers, self.parts[x]) for x in LEARNED if x in self.parts}

    @property
    def widths(self) -> tuple[int, int]:
        """Of its tokens."""
        d = self.parts["W_DKV"][0][1].shape[0]
        return d, d

    def latents(self) -> Iterator[Latent]:
        """What its latents may be by its parameters: a gain alone is that of one norm or of the other."""
        width = [sum(at.shape[-1] for _, at in self.parts.get(x, ())) for x in MATRICES]
        for gain in NORMS:
            norms = [gain if f"shift_C_{a}" not in self.parts else NORMS[1] for a in ENDS]
            norms = [norm if f"gain_C_{a}" in self.parts else "" for norm, a in zip(norms, ENDS)]
            yield Latent(width[2], (width[0], width[1]), (norms[0], norms[1]))


class LatentHeads(LayerHeads):
    """The heads of a layer with latents, as a function of queries, keys and values."""

    layer: LatentLayer

    def __init__(self, layer: LatentLayer, latent: Latent) -> None:
        super().__init__(layer, {x: 1.0 for a in ENDS for x, _ in layer.parts.get(f"gain_C_{a}", ())})
        self.d, self.latent = layer.widths[0], latent
        self.d_k = self.places["W_Q"].shape[-1]

    def sizes(self, asked: Sequence[int]) -> tuple[int, ...]:
        """b, H, G, n, m, d_k, d_v: as many tokens as the latents can tell apart."""
        n = min(asked[3], self.d, *(w - norm.startswith("mean") for w, norm in
                                    zip(self.latent.widths, self.latent.norms) if w))
        return 1, self.H, self.G, n, n, self.d_k, self.d_v

    def asked(self, case: Case) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Tokens and weights that give its heads these queries, keys and values; a part of the keys is shared."""
        n, shared = case.Q.shape[2], self.latent.shared
        up, given = {}, dict[str, np.ndarray]()
        for a, width in zip(ENDS, self.latent.widths):
            latents = LARGE * np.eye(n, width)
            up[a] = np.linalg.pinv(self.latent.normed(latents, a)) if width else np.eye(self.d, n)
            given |= {f"W_D{a}": LARGE * np.eye(self.d, width)} if width else {}
        given |= {"W_Q": up["Q"] @ case.Q[0], "W_V": up["KV"] @ case.V[0]}
        given |= {"W_K": up["KV"] @ case.K[0, ..., shared:]}
        given |= {"W_KR": np.eye(self.d, n) @ case.K[0, 0, :, :shared]} if shared else {}
        X = np.eye(n, self.d)
        return X, X, given


def with_latents(layer: LatentLayer, seed: int, told: Conventions) -> Conventions | None:
    """What it means, if its output is that of its latents; else None."""
    some = list(compared(layer, seed))
    found = (read_heads(LatentHeads(layer, latent), some, told, partial(_fitting, some, latent))
             for latent in dict.fromkeys(layer.latents()))
    return next(filter(None, found), None)


def _fitting(
    some: Sequence[tuple[LayerCase, np.ndarray]], latent: Latent, means: Conventions, alike: float
) -> Conventions | None:
    """With the epsilon of its norms, if its program then gives the output of all these problems."""
    for epsilon in EPSILONS if any(latent.norms) else (0.0,):
        pieces = replace(means.pieces or Pieces(), latent=latent._replace(epsilon=epsilon))
        named = replace(means, pieces=pieces)
        if all(near(steps_of(case, named).Y, Y, alike) for case, Y in some):
            return named
    return None
