"""The arrays of a candidate in JAX, and its vector-Jacobian products."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnmath._examine._numpy_arrays import Numpy


class Jax(Numpy):
    """JAX, and its vector-Jacobian products."""

    name = "jax"

    def prepare(self) -> None:
        self.jax = importlib.import_module("jax")
        self.number_type = getattr(self.jax.numpy, self.dtype)

    def array(self, x: np.ndarray) -> Any:
        dtype = self.number_type if x.dtype == float else x.dtype
        return self.jax.device_put(self.jax.numpy.array(x, dtype), self.device)

    def arranged(self, x: np.ndarray, memory: str = "own") -> Any:
        return self.array(x)  # JAX has no strides

    def is_array(self, x: Any) -> bool:
        return isinstance(x, self.jax.Array)

    def memory(self, x: Any) -> np.ndarray | None:
        return None  # JAX's arrays are never written into

    def inside(self, call: Callable[[], Any]) -> Any:
        with self.jax.enable_x64(self.dtype == "float64" or self.jax.config.jax_enable_x64):
            return call()

    def seed(self, seed: int) -> Any:
        return self.jax.random.PRNGKey(seed)

    def differentiated(self, fn: Callable, args: Sequence, options: Mapping, bias: str | None) -> tuple:
        rest = {name: x for name, x in options.items() if name != bias}
        if bias is None:
            return self.jax.vjp(lambda q, k, v: fn(q, k, v, **rest), *args)
        return self.jax.vjp(lambda q, k, v, B: fn(q, k, v, **{bias: B}, **rest), *args, options[bias])
