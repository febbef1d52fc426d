"""A layer as examine_layer knows it, a problem that it is given, and its steps, forward and back.

Each step can be put in place of another, and runs on numbers that carry a bound as well.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import add
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.contract.state import Kept
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import STEPS, Step, StepChanges, Steps
from attnmath._formulas.heads import Weights
from attnmath._words.arrays import T

ByName = Mapping[str, np.ndarray]  # of the parameters, or their gradients, by name


@dataclass(frozen=True)
class Layer:
    """What examine_layer needs to know of a layer.

    call(X, Z, keep) -> Y maps tokens X (b, n, d) and Z (b, m, d_z) to Y (b, n, d), as arrays of the layer's own
    library; a layer of self-attention has Z = X. keep is None, or True where a query may attend to a key,
    (b, 1, n, m), (b, 1, 1, m) or (1, 1, n, m). PyTorch's layers find their weights in their own parameters;
    all others are handed them: call(X, Z, keep, parameters).
    ours(parameters) -> attnmath.Weights moves numbers of the parameters, and no more, into the form of
    attnmath.Weights, and so serves weights and gradients alike.
    """

    call: Callable[..., Any]
    parameters: Mapping[str, Any]
    ours: Callable[[ByName], Weights]
    name: str = "layer"
    cross: bool = True  # Z is an argument of its own
    alone: bool = False  # and may be X itself
    masks: str = ""  # "b n m": call takes a keep that is not None; "n m": the same for a whole batch
    batched: bool = True  # it takes more than one sequence at once
    causal: bool = False  # it hides later keys by itself
    rotary: Callable[[int], tuple[Any, Any]] | None = None  # n -> cos, sin, each (n, d_k)
    pairing: str | None = None  # of the rotary embedding: "half" or "interleaved"; None: find out
    scale: float | None = None  # of the scores, where it is not 1/sqrt(d_k)
    module: Any = None  # PyTorch's, to run in train() and in eval()
    dropout: float = 0.0  # with more than 0 it is run in eval() alone
    backward: Callable[..., Mapping[str, Any]] | None = None  # a way back of its own
    paste: str | None = None  # a line that makes such a layer
    kept: Kept = field(default_factory=Kept)  # the state of the process while it is called
    multiple: int = 1  # of which the number of tokens is one
    learned: Mapping[str, str] = field(default_factory=dict)  # "gain_Q", "gain_K", "sink", "table": the parameter

    @property
    def framework(self) -> str:
        """"torch", "jax" or "numpy"."""
        kind = type(next(iter(self.parameters.values()))).__module__.partition(".")[0]
        return {"jaxlib": "jax"}.get(kind, kind)

    @property
    def dtype(self) -> str:
        """The format of its numbers."""
        return str(next(iter(self.parameters.values())).dtype).rpartition(".")[2]

    def learns(self, numbers: ByName) -> dict[str, np.ndarray]:
        """The numbers of its pieces that it learns."""
        return {x: numbers[name] for x, name in self.learned.items()}

    @property
    def widths(self) -> tuple[int, int]:
        """Of the tokens that ask, and of those that answer, keys and values together if they differ."""
        W = self.ours({name: np.zeros(shape) for name, shape in self.shapes.items()})
        return W.W_Q.shape[1], sum({x.shape[1]: x.shape[1] for x in (W.W_K, W.W_V)}.values())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter."""
        return {name: tuple(p.shape) for name, p in self.parameters.items()}


class Rotary(NamedTuple):
    """A rotary embedding: Q cos + turned(Q) sin, the same for keys; each (n, d_k)."""

    cos: np.ndarray
    sin: np.ndarray
    pairing: str = "half"  # entry c goes with entry c + d_k/2; "interleaved": 2 c with 2 c + 1


@dataclass(frozen=True, eq=False)
class LayerCase:
    """One problem, in NumPy's float64; the numbers are those of the layer's format.

    X (b, n, d), Z (b, m, d_z) or None for self-attention, dY (b, n, d), W Weights with the heads in front,
    keep (b, H, n, m), or what broadcasts; Z has tokens of unlike widths for keys and values side by side
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
    traits: frozenset[str] = frozenset()
    numbers: ByName = field(default_factory=dict)  # W as the layer's own parameters
    train: bool = False  # run in train()
    learned: ByName = field(default_factory=dict)  # of its pieces: as Layer.learned

    @property
    def context(self) -> np.ndarray:
        """The tokens that keys and values come from."""
        return self.X if self.Z is None else self.Z

    @property
    def own_values(self) -> bool:
        """Whether values come from tokens of a width of their own."""
        return self.W.W_K.shape[1] < self.context.shape[2]

    @property
    def lengths(self) -> tuple[int, int, int]:
        """How many sequences, queries and keys: b, n, m."""
        return *self.X.shape[:2], self.context.shape[1]

    @property
    def sizes(self) -> dict[str, int]:
        """b, H, G, n, m, d_k, d_v."""
        return self.heads.sizes

    @cached_property
    def heads(self) -> Case:
        """The heads alone: their sizes, masks and scale; their numbers follow from the layer's, and are NaN."""
        (b, n, m), (H, _, d_k), (G, _, d_v) = self.lengths, self.W.W_Q.shape, self.W.W_V.shape
        shapes = (H, n, d_k), (G, m, d_k), (G, m, d_v), (H, n, d_v)
        Q, K, V, dO = (np.full((b, *shape), np.nan) for shape in shapes)
        return Case(Q, K, V, dO, self.keep, causal=self.causal, scale=self.scale)


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
    dgain_Q: np.ndarray | None = None
    dgain_K: np.ndarray | None = None
    dsink: np.ndarray | None = None
    dtable: np.ndarray | None = None
    dW_DQ: np.ndarray | None = None
    dW_DKV: np.ndarray | None = None
    dW_KR: np.ndarray | None = None
    db_DQ: np.ndarray | None = None
    db_DKV: np.ndarray | None = None
    db_KR: np.ndarray | None = None
    dgain_C_Q: np.ndarray | None = None
    dgain_C_KV: np.ndarray | None = None
    dshift_C_Q: np.ndarray | None = None
    dshift_C_KV: np.ndarray | None = None


# ---- its steps ----------------------------------------------------------------------------------


def split_heads(x: Any, H: int) -> Any:
    """(b, n, H k) -> (b, H, n, k)."""
    b, n, Hk = x.shape
    return x.reshape(b, n, H, Hk // H).swapaxes(1, 2)


def merged_heads(x: Any) -> Any:
    """The heads side by side: (b, H, n, k) -> (b, n, H k)."""
    b, H, n, k = x.shape
    return x.swapaxes(1, 2).reshape(b, n, H * k)


def side_by_side(W: Any) -> Any:
    """The columns of all heads as one matrix: (H, d, k) -> (d, H k)."""
    return merged_heads(W[None])[0]


def one_below_another(W_O: Any) -> Any:
    """The rows of all heads as one matrix: (H, d_v, d) -> (H d_v, d)."""
    return W_O.reshape(-1, W_O.shape[2])


def projected(X: Any, W: Any, b: Any) -> Any:
    """X W + b for all heads side by side: (b, n, d), (H, d, k), (H, k) -> (b, n, H k)."""
    return _affine(X, side_by_side(W), b)


def weight_gradient(X: Any, dx: Any, H: int) -> Any:
    """X^T dx, summed over the batch: (b, n, d), (b, n, H k) -> (H, d, k)."""
    (b, n, d), Hk = X.shape, dx.shape[2]
    return split_heads((T(X.reshape(b * n, d)) @ dx.reshape(b * n, Hk))[None], H)[0]


def bias_gradient(dx: Any, b: Any) -> Any:
    """dx summed over batch and tokens: (b, n, H k) -> (H, k); None where there is no bias."""
    return None if b is None else dx.reshape(-1, dx.shape[2]).sum(0).reshape(*b.shape)


def summed_by_owner(x: Any, owner: np.ndarray, G: int) -> Any:
    """The sum over the query heads that read the same head of keys and values."""
    b, H, m, k = x.shape
    return ((owner == np.arange(G)[:, None]).astype(float) @ x.reshape(b, H, m * k)).reshape(b, G, m, k)


def _affine(X: Any, W: Any, b: Any) -> Any:
    """X W + b; where numbers carry a bound, b may be what the sums begin with."""
    Y = X @ W
    if b is None:
        return Y
    return Y.begun_with(b.reshape(-1), X.shape[-1]) if hasattr(Y, "begun_with") else Y + b.reshape(-1)


def joined(a: Any, b: Any) -> Any:
    """Features side by side."""
    return a.beside(b) if hasattr(a, "beside") else np.concatenate((a, b), -1)


def rotated(x: Any, cos: Any, sin: Any, pairing: str, back: bool = False) -> Any:
    """x cos + (x turned) sin, where there is a rotary embedding; the way back is x cos + (x sin) turned back."""
    if cos is None:
        return x
    c, half = np.arange(x.shape[-1]), x.shape[-1] // 2
    other, first = (np.roll(c, -half), c < half) if pairing == "half" else (c ^ 1, c % 2 == 0)
    sin = np.where(first, -1.0, 1.0) * sin  # a quarter turn changes the sign of the second entry of each pair
    return x * cos + ((x * sin)[..., other] if back else x[..., other] * sin)


def _given(part: str, name: str) -> Step:
    return lambda s: getattr(getattr(s.given, part), name, None)


LAYER_STEPS: dict[str, Step] = STEPS | {
    # what is given
    "X": lambda s: s.given.X, "Z": lambda s: s.given.context, "dY": lambda s: s.given.dY,
    **{name: _given(part, name) for part, x in (("W", Weights), ("rotary", Rotary)) for name in x._fields},
    "Z_K": lambda s: s.Z[..., : s.W_K.shape[1]], "Z_V": lambda s: s.Z[..., -s.W_V.shape[1]:],
    "H": lambda s: s.given.W.W_Q.shape[0], "G": lambda s: s.given.W.W_K.shape[0],
    # how heads are taken apart and put together, and the way back of both
    "split": lambda s: split_heads, "split_back": lambda s: merged_heads,
    "merge": lambda s: merged_heads, "merge_back": lambda s: split_heads,
    # the way forward
    "Q_unturned": lambda s: s.split(projected(s.X, s.W_Q, s.b_Q), s.H),
    "K_unturned": lambda s: s.split(projected(s.Z_K, s.W_K, s.b_K), s.G),
    "V": lambda s: s.split(projected(s.Z_V, s.W_V, s.b_V), s.G),
    "Q": lambda s: rotated(s.Q_unturned, s.cos, s.sin, s.pairing),
    "K": lambda s: rotated(s.K_unturned, s.cos, s.sin, s.pairing),
    "C": lambda s: s.merge(s.O),
    "Y": lambda s: _affine(s.C, one_below_another(s.W_O), s.b_O),
    # the way back
    "W_O_back": lambda s: T(one_below_another(s.W_O)),
    "dO": lambda s: s.merge_back(s.dY @ s.W_O_back, s.H),
    "dK": lambda s: summed_by_owner(s.dkeys, s.owner_back, s.G),
    "dV": lambda s: summed_by_owner(s.dvalues, s.owner_back, s.G),
    "cos_back": lambda s: s.cos, "sin_back": lambda s: s.sin, "pairing_back": lambda s: s.pairing,
    "dQ_flat": lambda s: s.split_back(rotated(s.dQ, s.cos_back, s.sin_back, s.pairing_back, back=True)),
    "dK_flat": lambda s: s.split_back(rotated(s.dK, s.cos_back, s.sin_back, s.pairing_back, back=True)),
    "dV_flat": lambda s: s.split_back(s.dV),
    "by_Q": lambda s: s.dQ_flat @ T(side_by_side(s.W_Q)),
    "by_K": lambda s: s.dK_flat @ T(side_by_side(s.W_K)),
    "by_V": lambda s: s.dV_flat @ T(side_by_side(s.W_V)),
    "dX": lambda s: s.by_Q + s.by_K + s.by_V if s.given.Z is None else s.by_Q,
    "dZ": lambda s: None if s.given.Z is None else (joined if s.given.own_values else add)(s.by_K, s.by_V),
    "dW_Q": lambda s: weight_gradient(s.X, s.dQ_flat, s.H),
    "dW_K": lambda s: weight_gradient(s.Z_K, s.dK_flat, s.G),
    "dW_V": lambda s: weight_gradient(s.Z_V, s.dV_flat, s.G),
    "dW_O": lambda s: weight_gradient(s.dY, s.C, s.H).swapaxes(1, 2),
    "db_Q": lambda s: bias_gradient(s.dQ_flat, s.b_Q),
    "db_K": lambda s: bias_gradient(s.dK_flat, s.b_K),
    "db_V": lambda s: bias_gradient(s.dV_flat, s.b_V),
    "db_O": lambda s: bias_gradient(s.dY, s.b_O),
}


class LayerSteps(Steps):
    """The letters of a layer for one case; each is computed once, by its step."""

    table: Mapping[str, Step] = LAYER_STEPS

    def __init__(
        self, case: LayerCase, means: Conventions | None = None, changes: Iterable[StepChanges] = ()
    ) -> None:
        super().__init__(case.heads, means, changes)
        self.given = case

    def layer_answer(self) -> LayerAnswer:
        """The output and all gradients."""
        return LayerAnswer._make(getattr(self, name, None) for name in LayerAnswer._fields)
