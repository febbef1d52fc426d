"""A layer with its weights by name; run on a problem, it gives its output and all gradients."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnmath._examine._layer_case import LayerAnswer, LayerCase
from attnmath._heads import Weights

GRADIENTS = LayerAnswer._fields[1:]


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


def run(
    layer: Layer, case: LayerCase, numbers: Mapping[str, np.ndarray], dtype: str, train: bool = False
) -> LayerAnswer:
    """What the layer returns for the case with these numbers as parameters; raises Broken."""
    runner = _TORCH if layer.framework == "torch" else _JAX if layer.framework == "jax" else _NUMPY
    try:
        Y, back = runner(layer, case, numbers, dtype, train)
    except Broken:
        raise
    except (Exception, SystemExit) as error:
        raise Broken("raises", f"it raises {type(error).__name__}: {str(error)[:300]}") from error
    want = dict(X=case.X.shape, **layer.shapes) | ({"Z": case.Z.shape} if case.Z is not None else {})
    _fits("the output", Y, case.dY.shape)
    for name, shape in want.items():
        _fits(f"the gradient of {name}", back.get(name), shape)
    dW = layer.ours({name: back[name] for name in layer.parameters})
    return LayerAnswer.of(Y, back["X"], None if case.Z is None else back["Z"], dW)


def forward(layer: Layer, case: LayerCase, numbers: Mapping[str, np.ndarray], dtype: str) -> np.ndarray:
    """The output alone, without a way back, as a layer is used for inference."""
    if layer.framework != "torch":
        return run(layer, case, numbers, dtype).Y
    import torch

    with torch.no_grad(), _lent(layer, numbers, dtype, False, False):
        try:
            Y = layer.call(*_tensors(case, dtype))
        except Exception as error:
            line = f"it raises {type(error).__name__} under torch.no_grad(): {str(error)[:300]}"
            raise Broken("raises", line) from error
        return _array("the output", Y)


def _fits(what: str, x: np.ndarray | None, shape: tuple[int, ...]) -> None:
    if x is None:
        raise Broken("gradient_missing", f"{what} is missing")
    if x.shape != tuple(shape):
        raise Broken("shape", f"{what} has shape {x.shape}; it needs {tuple(shape)}")


def _array(what: str, x: Any) -> np.ndarray:
    """A copy in float64."""
    if not hasattr(x, "shape"):
        raise Broken("type", f"{what} is a {type(x).__name__}; it needs to be one array")
    if hasattr(x, "detach"):
        x = x.detach().cpu().double().numpy()
    return np.array(x, dtype=np.float64)


# ---- PyTorch ------------------------------------------------------------------------------------


def _tensors(case: LayerCase, dtype: str) -> tuple[Any, Any, Any]:
    import torch

    X = torch.tensor(case.X, dtype=getattr(torch, dtype))
    Z = X if case.Z is None else torch.tensor(case.Z, dtype=X.dtype)
    return X, Z, None if case.keep is None else torch.tensor(case.keep)


@contextmanager
def _lent(
    layer: Layer, numbers: Mapping[str, np.ndarray], dtype: str, train: bool, needed: bool = True
) -> Iterator[list]:
    """The parameters with other numbers; afterwards all is as before."""
    import torch

    own = list(layer.parameters.items())
    before = [(p.data, p.requires_grad) for _, p in own]
    modes = [(m, m.training) for m in layer.module.modules()] if layer.module is not None else []
    try:
        for name, p in own:
            p.data = torch.tensor(numbers[name], dtype=getattr(torch, dtype), device=p.device)
            if p.is_leaf:
                p.requires_grad_(needed)
        if layer.module is not None:
            layer.module.train(train)
        yield [p for _, p in own]
    finally:
        for (_, p), (data, grad) in zip(own, before):
            p.data = data
            if p.is_leaf:
                p.requires_grad_(grad)
        for m, mode in modes:
            m.training = mode


def _torch(layer: Layer, case: LayerCase, numbers: Mapping, dtype: str, train: bool) -> tuple:
    import torch

    if layer.backward is not None:
        return _torch_by_hand(layer, case, numbers, dtype, train)
    with _lent(layer, numbers, dtype, train) as parameters:
        X, Z, keep = _tensors(case, dtype)
        given = [X.requires_grad_()] if Z is X else [X.requires_grad_(), Z.requires_grad_()]
        before = [x.detach().clone() for x in given]
        Y = layer.call(X, Z, keep)
        _checked(Y, X)
        dY = torch.tensor(case.dY, dtype=X.dtype).reshape(Y.shape)
        found = torch.autograd.grad(Y, [*given, *parameters], dY, allow_unused=True)
        if any(not torch.equal(x, y) for x, y in zip(given, before)):
            raise Broken("inputs_modified", "it writes into its inputs")
    names = ["X", "Z"][: len(given)] + list(layer.parameters)
    zero = dict(zip(names, [*given, *parameters]))
    back = {
        name: np.zeros(zero[name].shape) if g is None else _array(f"the gradient of {name}", g)
        for name, g in zip(names, found)
    }
    return _array("the output", Y), back


def _torch_by_hand(layer: Layer, case: LayerCase, numbers: Mapping, dtype: str, train: bool) -> tuple:
    import torch

    with _lent(layer, numbers, dtype, train, False), torch.no_grad():
        X, Z, keep = _tensors(case, dtype)
        Y = layer.call(X, Z, keep)
        _checked(Y, X)
        dY = torch.tensor(case.dY, dtype=X.dtype)
        return _array("the output", Y), _named(layer, layer.backward(dY, X, Z, keep))


def _checked(Y: Any, X: Any) -> None:
    if type(Y).__name__ == "tuple":
        raise Broken("type", f"it returns a tuple of {len(Y)}; it needs to return one tensor")
    if not hasattr(Y, "dtype"):
        raise Broken("type", f"it returns a {type(Y).__name__}; it needs to return one tensor")
    if Y.dtype != X.dtype:
        raise Broken("dtype", f"its output has dtype {Y.dtype}; its inputs have {X.dtype}")


# ---- JAX and NumPy ------------------------------------------------------------------------------


def _jax(layer: Layer, case: LayerCase, numbers: Mapping, dtype: str, train: bool) -> tuple:
    import jax
    import jax.numpy as jnp

    X, given = jnp.asarray(case.X, dtype), {k: jnp.asarray(x, dtype) for k, x in numbers.items()}
    keep = None if case.keep is None else jnp.asarray(case.keep)
    tokens = (X,) if case.Z is None else (X, jnp.asarray(case.Z, dtype))

    def both(tokens: tuple, W: Mapping, dY: Any) -> tuple:
        Y, back = jax.vjp(lambda x, W: layer.call(x[0], x[-1], keep, W), tokens, W)
        return Y, back(dY.astype(Y.dtype)) if Y.shape == dY.shape else None

    Y, found = jax.jit(both)(tokens, given, jnp.asarray(case.dY, dtype))
    _checked(Y, X)
    if found is None:
        return _array("the output", Y), {}
    back = dict(zip("XZ", found[0])) | found[1]
    return _array("the output", Y), {k: _array(f"the gradient of {k}", x) for k, x in back.items()}


def _numpy(layer: Layer, case: LayerCase, numbers: Mapping, dtype: str, train: bool) -> tuple:
    if layer.backward is None:
        raise Broken("no_backward", "a layer of NumPy needs backward=, its own way back")

    def given() -> tuple:
        X = np.array(case.X, dtype)
        Z = X if case.Z is None else np.array(case.Z, dtype)
        keep = None if case.keep is None else case.keep.copy()
        return X, Z, keep, {k: np.array(x, dtype) for k, x in numbers.items()}

    X, Z, keep, W = given()
    Y = layer.call(X, Z, keep, W)
    _checked(Y, X)
    Y = _array("the output", Y)
    back = _named(layer, layer.backward(np.array(case.dY, dtype), X, Z, keep, W))
    fresh = given()
    same = [np.array_equal(a, b) for a, b in zip((X, Z), fresh)]
    if not all(same) or any(not np.array_equal(W[k], x) for k, x in fresh[3].items()):
        raise Broken("inputs_modified", "it writes into its inputs")
    return Y, back


def _named(layer: Layer, back: Any) -> dict[str, np.ndarray]:
    """What a way back returned, by name, with or without a d in front."""
    if not isinstance(back, Mapping):
        raise Broken("type", f"its backward returns a {type(back).__name__}; it needs to be a dict by name")
    names = ["X", "Z", *layer.parameters]
    found = {n: back[k] for n in names for k in (n, f"d{n}") if k in back and back[k] is not None}
    return {k: _array(f"the gradient of {k}", x) for k, x in found.items()}


_TORCH, _JAX, _NUMPY = _torch, _jax, _numpy
