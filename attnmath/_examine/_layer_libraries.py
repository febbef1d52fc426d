"""A layer run by its own library: the output and the gradients by name, or what was broken."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from attnmath._examine._layer_case import LayerCase
from attnmath._examine._layer_described import Broken, Layer


def array(what: str, x: Any) -> np.ndarray:
    """A copy in float64."""
    if not hasattr(x, "shape"):
        raise Broken("type", f"{what} is a {type(x).__name__}; it needs to be one array")
    if hasattr(x, "detach"):
        x = x.detach().cpu().double().numpy()
    return np.array(x, dtype=np.float64)


# ---- PyTorch ------------------------------------------------------------------------------------


def tensors(case: LayerCase, dtype: str) -> tuple[Any, Any, Any]:
    import torch

    X = torch.tensor(case.X, dtype=getattr(torch, dtype))
    Z = X if case.Z is None else torch.tensor(case.Z, dtype=X.dtype)
    return X, Z, None if case.keep is None else torch.tensor(case.keep)


@contextmanager
def lent(
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


def by_torch(layer: Layer, case: LayerCase, numbers: Mapping, dtype: str, train: bool) -> tuple:
    import torch

    if layer.backward is not None:
        return torch_by_hand(layer, case, numbers, dtype, train)
    with lent(layer, numbers, dtype, train) as parameters:
        X, Z, keep = tensors(case, dtype)
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
        name: np.zeros(zero[name].shape) if g is None else array(f"the gradient of {name}", g)
        for name, g in zip(names, found)
    }
    return array("the output", Y), back


def torch_by_hand(layer: Layer, case: LayerCase, numbers: Mapping, dtype: str, train: bool) -> tuple:
    import torch

    with lent(layer, numbers, dtype, train, False), torch.no_grad():
        X, Z, keep = tensors(case, dtype)
        Y = layer.call(X, Z, keep)
        _checked(Y, X)
        dY = torch.tensor(case.dY, dtype=X.dtype)
        return array("the output", Y), _named(layer, layer.backward(dY, X, Z, keep))


def _checked(Y: Any, X: Any) -> None:
    if type(Y).__name__ == "tuple":
        raise Broken("type", f"it returns a tuple of {len(Y)}; it needs to return one tensor")
    if not hasattr(Y, "dtype"):
        raise Broken("type", f"it returns a {type(Y).__name__}; it needs to return one tensor")
    if Y.dtype != X.dtype:
        raise Broken("dtype", f"its output has dtype {Y.dtype}; its inputs have {X.dtype}")


# ---- JAX and NumPy ------------------------------------------------------------------------------


def by_jax(layer: Layer, case: LayerCase, numbers: Mapping, dtype: str, train: bool) -> tuple:
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
        return array("the output", Y), {}
    back = dict(zip("XZ", found[0])) | found[1]
    return array("the output", Y), {k: array(f"the gradient of {k}", x) for k, x in back.items()}


def by_numpy(layer: Layer, case: LayerCase, numbers: Mapping, dtype: str, train: bool) -> tuple:
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
    Y = array("the output", Y)
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
    return {k: array(f"the gradient of {k}", x) for k, x in found.items()}


RUNNERS = {"torch": by_torch, "jax": by_jax, "numpy": by_numpy}
