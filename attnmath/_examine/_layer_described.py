"""A layer with its weights by name, as examine_layer needs it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnmath._heads import Weights


class Broken(Exception):
    """The layer did not keep the contract; the name and a clear line."""

    def __init__(self, name: str, line: str) -> None:
        super().__init__(line)
        self.name = name


@dataclass(frozen=True)
class Layer:
    """What examine_layer needs to know of a layer.

    call(X, Z, keep) -> Y maps tokens X (b, n, d) and Z (b, m, d_z) to Y (b, n, d), as arrays
    of the layer's own library; a layer of self-attention has Z = X. keep is None, or True
    where a query may attend to a key, (b, 1, n, m), (b, 1, 1, m) or (1, 1, n, m). PyTorch's
    layers find their weights in their own parameters; all others are handed them:
    call(X, Z, keep, parameters).
    ours(parameters) -> attnmath.Weights puts numbers in the order and shape of the parameters,
    as NumPy's arrays, into the form of attnmath.Weights; it only moves numbers, and so serves
    weights and gradients alike.
    """

    call: Callable[..., Any]
    parameters: Mapping[str, Any]
    ours: Callable[[Mapping[str, np.ndarray]], Weights]
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

    @property
    def framework(self) -> str:
        """"torch", "jax" or "numpy"."""
        kind = type(next(iter(self.parameters.values()))).__module__.partition(".")[0]
        return {"jaxlib": "jax"}.get(kind, kind)

    @property
    def dtype(self) -> str:
        """The format of its numbers."""
        return str(next(iter(self.parameters.values())).dtype).rpartition(".")[2]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter."""
        return {name: tuple(p.shape) for name, p in self.parameters.items()}
