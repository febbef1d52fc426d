"""What a layer's own library makes of a problem: the output and all gradients, or what it broke."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from attnmath._examine.contract.functions import Broken, Fault, message
from attnmath._examine.layer.layer import ByName, Layer, LayerAnswer, LayerCase

if TYPE_CHECKING:
    import torch

Returned = tuple[np.ndarray, dict[str, np.ndarray]]  # the output, and the gradients by name


def run(layer: Layer, case: LayerCase, dtype: str) -> LayerAnswer:
    """What the layer returns for the case; raises Broken."""
    Y, back = returned(layer, case, dtype)
    _check_shape("the output", Y, case.dY.shape)
    want = {"X": case.X.shape, **layer.shapes, **({} if case.Z is None else {"Z": case.Z.shape})}
    for name, shape in want.items():
        if name not in back:
            raise Broken(Fault("gradient_missing", f"the gradient of {name} is missing"))
        _check_shape(f"the gradient of {name}", back[name], shape)
    dW = layer.ours({name: back[name] for name in layer.parameters})
    return LayerAnswer(Y, back["X"], None if case.Z is None else back["Z"], *dW)


def returned(layer: Layer, case: LayerCase, dtype: str) -> Returned:
    """The output, and the gradients by name; raises Broken."""
    runner = {"torch": by_torch, "jax": by_jax}.get(layer.framework, by_numpy)
    with _at_fault("it raises"):
        return layer.kept.around(lambda: runner(layer, case, dtype))


def forward(layer: Layer, case: LayerCase, dtype: str) -> np.ndarray:
    """The output alone, without a way back, as a layer is used for inference; raises Broken."""
    if layer.framework != "torch":
        return run(layer, case, dtype).Y
    import torch

    with _at_fault("it raises under torch.no_grad():"), torch.no_grad(), lent(layer, case.numbers, dtype):
        given = arrays_given(case, tensor, dtype)
        return to_float64("the output", layer.kept.around(lambda: layer.call(*given)))


@contextmanager
def _at_fault(what: str) -> Iterator[None]:
    """Whatever is raised inside is the layer's fault, but for the reader's interrupt."""
    try:
        yield
    except (Broken, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise Broken(Fault("raises", f"{what} {message(error, 300)}")) from error


def _check_shape(what: str, x: np.ndarray, shape: tuple[int, ...]) -> None:
    if x.shape != shape:
        raise Broken(Fault("shape", f"{what} has shape {x.shape}; it needs {shape}"))


def _check_output(Y: Any, X: Any) -> None:
    if not hasattr(Y, "dtype"):
        what = f"tuple of {len(Y)}" if type(Y) is tuple else type(Y).__name__
        raise Broken(Fault("type", f"it returns a {what}; it needs to return one tensor"))
    if Y.dtype != X.dtype:
        raise Broken(Fault("dtype", f"its output has dtype {Y.dtype}; its inputs have {X.dtype}"))


def to_float64(what: str, x: Any) -> np.ndarray:
    """A copy of an array of any library."""
    if not hasattr(x, "shape"):
        raise Broken(Fault("type", f"{what} is a {type(x).__name__}; it needs to be one array"))
    if hasattr(x, "detach"):
        x = x.detach().cpu().double().numpy()
    return np.array(x, dtype=np.float64)


def all_to_float64(back: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Gradients of any library."""
    return {name: to_float64(f"the gradient of {name}", x) for name, x in back.items()}


def named_gradients(layer: Layer, back: Any) -> dict[str, np.ndarray]:
    """What a way back of one's own returned, by name, with or without a d in front."""
    if not isinstance(back, Mapping):
        raise Broken(Fault("type", f"its backward returns a {type(back).__name__}; it needs to be a dict by name"))
    names = "X", "Z", *layer.parameters
    return all_to_float64({n: back[k] for n in names for k in (n, f"d{n}") if k in back and back[k] is not None})


def arrays_given(case: LayerCase, array: Callable[..., Any], dtype: str) -> tuple[Any, Any, Any]:
    """X, Z and keep in a library's arrays; Z is X in self-attention."""
    X = array(case.X, dtype)
    Z = X if case.Z is None else array(case.Z, dtype)
    return X, Z, None if case.keep is None else array(case.keep, "bool")


# ---- PyTorch ------------------------------------------------------------------------------------


def tensor(x: np.ndarray, dtype: str) -> torch.Tensor:
    """An array in this format."""
    import torch

    return torch.tensor(x, dtype=getattr(torch, dtype))


@contextmanager
def lent(layer: Layer, numbers: ByName, dtype: str, train: bool = False, needed: bool = False) -> Iterator[None]:
    """The parameters with other numbers, whose gradients are needed or not; afterwards all is as before."""
    import torch

    before = [(p, p.data, p.requires_grad) for p in layer.parameters.values()]
    modes = [(m, m.training) for m in layer.module.modules()] if layer.module is not None else []
    fixed = [x for m, _ in modes for x in m._buffers.values() if x is not None and x.is_floating_point()]
    buffers = [(x, x.data) for x in fixed if all(x is not p for p in layer.parameters.values())]
    try:
        for x, data in buffers:
            x.data = data.to(getattr(torch, dtype))
        for name, p in layer.parameters.items():
            p.data = torch.tensor(numbers[name], dtype=getattr(torch, dtype), device=p.device)
            if p.is_leaf:
                p.requires_grad_(needed)
        if layer.module is not None:
            layer.module.train(train)
        yield
    finally:
        for p, data, grad in before:
            p.data = data
            if p.is_leaf:
                p.requires_grad_(grad)
        for x, data in buffers:
            x.data = data
        for m, mode in modes:
            m.training = mode


def by_torch(layer: Layer, case: LayerCase, dtype: str) -> Returned:
    """By autograd, or by a way back of its own."""
    import torch

    if layer.backward is not None:
        with lent(layer, case.numbers, dtype, case.train), torch.no_grad():
            X, Z, keep = arrays_given(case, tensor, dtype)
            Y = layer.call(X, Z, keep)
            _check_output(Y, X)
            back = layer.backward(tensor(case.dY, dtype), X, Z, keep)
            return to_float64("the output", Y), named_gradients(layer, back)
    with lent(layer, case.numbers, dtype, case.train, needed=True):
        X, Z, keep = arrays_given(case, tensor, dtype)
        tokens = {name: x.requires_grad_() for name, x in (("X", X), ("Z", Z)) if name == "X" or Z is not X}
        before = [x.detach().clone() for x in tokens.values()]
        Y = layer.call(X, Z, keep)
        _check_output(Y, X)
        dY = tensor(case.dY, dtype).reshape(Y.shape)
        asked = {**tokens, **layer.parameters}
        found: Any = [None] * len(asked)
        if Y.requires_grad:
            found = torch.autograd.grad(Y, list(asked.values()), dY, allow_unused=True)
        if any(not torch.equal(x, y) for x, y in zip(tokens.values(), before)):
            raise Broken(Fault("inputs_modified", "it writes into its inputs"))
    back = {name: np.zeros(x.shape) if g is None else g for (name, x), g in zip(asked.items(), found)}
    return to_float64("the output", Y), all_to_float64(back)


# ---- JAX and NumPy ------------------------------------------------------------------------------


def by_jax(layer: Layer, case: LayerCase, dtype: str) -> Returned:
    """By JAX's vector-Jacobian product, compiled."""
    import jax
    import jax.numpy as jnp

    X, Z, keep = arrays_given(case, jnp.asarray, dtype)
    numbers = {k: jnp.asarray(x, dtype) for k, x in case.numbers.items()}
    tokens = (X,) if case.Z is None else (X, Z)

    def both(tokens: tuple, W: Mapping[str, Any], dY: Any) -> tuple[Any, Any]:
        Y, back = jax.vjp(lambda x, W: layer.call(x[0], x[-1], keep, W), tokens, W)
        return Y, back(dY.astype(Y.dtype)) if Y.shape == dY.shape else None

    Y, found = jax.jit(both)(tokens, numbers, jnp.asarray(case.dY, dtype))
    _check_output(Y, X)
    back = {} if found is None else all_to_float64({**dict(zip("XZ", found[0])), **found[1]})
    return to_float64("the output", Y), back


def by_numpy(layer: Layer, case: LayerCase, dtype: str) -> Returned:
    """By a way back of its own."""
    if layer.backward is None:
        raise Broken(Fault("no_backward", "a layer of NumPy needs backward=, its own way back"))

    X, Z, keep = arrays_given(case, np.array, dtype)
    W = {k: np.array(x, dtype) for k, x in case.numbers.items()}
    Y = layer.call(X, Z, keep, W)
    _check_output(Y, X)
    Y = to_float64("the output", Y)
    back = named_gradients(layer, layer.backward(np.array(case.dY, dtype), X, Z, keep, W))
    pairs = [(X, case.X), (Z, case.context), *((W[k], x) for k, x in case.numbers.items())]
    if not all(np.array_equal(x, np.array(fresh, dtype)) for x, fresh in pairs):
        raise Broken(Fault("inputs_modified", "it writes into its inputs"))
    return Y, back
