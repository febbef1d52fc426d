"""What a layer's own library makes of a problem: the output and all gradients, or what it broke."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from attnmath._examine.contract.functions import Broken, Fault, message
from attnmath._examine.contract.libraries import framework
from attnmath._examine.layer.layer import ByName, Layer, LayerAnswer, LayerCase

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
    learned = {f"d{x}": dx for x, dx in layer.learns(back).items()}
    return LayerAnswer(Y, back["X"], None if case.Z is None else back["Z"], *dW, **learned)


def returned(layer: Layer, case: LayerCase, dtype: str) -> Returned:
    """The output, and the gradients by name; raises Broken."""
    runner = {"torch": by_torch, "jax": by_jax}.get(layer.framework, by_numpy)
    lib = framework(layer.framework, dtype)
    with _at_fault("it raises"):
        return layer.kept.around(lambda: runner(layer, case, lib))


def forward(layer: Layer, case: LayerCase, dtype: str) -> np.ndarray:
    """The output alone, without a way back, as a layer is used for inference; raises Broken."""
    if layer.framework != "torch":
        return run(layer, case, dtype).Y
    lib: Any = framework("torch", dtype)
    with _at_fault("it raises under torch.no_grad():"), lib.torch.no_grad(), lent(layer, case.numbers, lib.array):
        given = arrays_given(case, lib.array)
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
    return np.array(x.detach().cpu().double().numpy() if hasattr(x, "detach") else x, dtype=np.float64)


def all_to_float64(back: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Gradients of any library."""
    return {name: to_float64(f"the gradient of {name}", x) for name, x in back.items()}


def named_gradients(layer: Layer, back: Any) -> dict[str, np.ndarray]:
    """What a way back of one's own returned, by name, with or without a d in front."""
    if not isinstance(back, Mapping):
        raise Broken(Fault("type", f"its backward returns a {type(back).__name__}; it needs to be a dict by name"))
    names = "X", "Z", *layer.parameters
    return all_to_float64({n: back[k] for n in names for k in (n, f"d{n}") if k in back and back[k] is not None})


def arrays_given(case: LayerCase, array: Callable[[np.ndarray], Any]) -> tuple[Any, Any, Any]:
    """X, Z and keep in a library's arrays; Z is X in self-attention."""
    X = array(case.X)
    return X, X if case.Z is None else array(case.Z), None if case.keep is None else array(case.keep)


@contextmanager
def lent(layer: Layer, numbers: ByName, array: Callable[[np.ndarray], Any], train: bool = False,
         needed: bool = False) -> Iterator[None]:
    """The parameters with other numbers, whose gradients are needed or not; afterwards all is as before."""
    modes = [(m, m.training) for m in layer.module.modules()] if layer.module is not None else []
    fixed = [x for m, _ in modes for x in m._buffers.values() if x is not None and x.is_floating_point()]
    buffers = [x for x in fixed if all(x is not p for p in layer.parameters.values())]
    before = [(x, x.data, x.requires_grad) for x in (*layer.parameters.values(), *buffers)]
    try:
        for x in buffers:
            x.data = x.data.to(array(np.zeros(1)).dtype)
        for name, p in layer.parameters.items():
            p.data = array(numbers[name]).to(p.device)
            if p.is_leaf:
                p.requires_grad_(needed)
        if layer.module is not None:
            layer.module.train(train)
        yield
    finally:
        for x, data, grad in before:
            x.data = data
            if x.is_leaf:
                x.requires_grad_(grad)
        for m, mode in modes:
            m.training = mode


def by_torch(layer: Layer, case: LayerCase, lib: Any) -> Returned:
    """By autograd, or by a way back of its own."""
    own = layer.backward
    with lent(layer, case.numbers, lib.array, case.train, own is None), lib.torch.set_grad_enabled(own is None):
        X, Z, keep = arrays_given(case, lib.array)
        tokens = {name: x for name, x in (("X", X), ("Z", Z)) if name == "X" or Z is not X}
        before = [x.clone() for x in tokens.values()]
        asked = {**{name: x.requires_grad_(own is None) for name, x in tokens.items()}, **layer.parameters}
        Y = layer.call(X, Z, keep)
        _check_output(Y, X)
        if own is not None:
            return to_float64("the output", Y), named_gradients(layer, own(lib.array(case.dY), X, Z, keep))
        found: Any = [None] * len(asked)
        if Y.requires_grad:
            dY = lib.array(case.dY).reshape(Y.shape)
            found = lib.torch.autograd.grad(Y, list(asked.values()), dY, allow_unused=True)
        if any(not lib.torch.equal(x, y) for x, y in zip(tokens.values(), before)):
            raise Broken(Fault("inputs_modified", "it writes into its inputs"))
    back = {name: np.zeros(x.shape) if g is None else g for (name, x), g in zip(asked.items(), found)}
    return to_float64("the output", Y), all_to_float64(back)


def by_jax(layer: Layer, case: LayerCase, lib: Any) -> Returned:
    """By JAX's vector-Jacobian product, compiled."""
    X, Z, keep = arrays_given(case, lib.array)
    numbers = {k: lib.array(x) for k, x in case.numbers.items()}

    def both(tokens: tuple, W: Mapping[str, Any], dY: Any) -> tuple[Any, Any]:
        Y, back = lib.jax.vjp(lambda x, W: layer.call(x[0], x[-1], keep, W), tokens, W)
        return Y, back(dY.astype(Y.dtype)) if Y.shape == dY.shape else None

    Y, found = lib.jax.jit(both)((X,) if case.Z is None else (X, Z), numbers, lib.array(case.dY))
    _check_output(Y, X)
    back = {} if found is None else all_to_float64({**dict(zip("XZ", found[0])), **found[1]})
    return to_float64("the output", Y), back


def by_numpy(layer: Layer, case: LayerCase, lib: Any) -> Returned:
    """By a way back of its own."""
    if layer.backward is None:
        raise Broken(Fault("no_backward", "a layer of NumPy needs backward=, its own way back"))
    X, Z, keep = arrays_given(case, lib.array)
    W = {k: lib.array(x) for k, x in case.numbers.items()}
    Y = layer.call(X, Z, keep, W)
    _check_output(Y, X)
    Y = to_float64("the output", Y)
    back = named_gradients(layer, layer.backward(lib.array(case.dY), X, Z, keep, W))
    pairs = [(X, case.X), (Z, case.context), *((W[k], x) for k, x in case.numbers.items())]
    if not all(np.array_equal(x, lib.array(fresh)) for x, fresh in pairs):
        raise Broken(Fault("inputs_modified", "it writes into its inputs"))
    return Y, back
