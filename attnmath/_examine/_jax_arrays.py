"""The arrays of a candidate in JAX, and its vector-Jacobian products."""

import functools
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
        self.compiled: dict = {}

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

    def compiling(self, fn: Callable, options: Mapping, use: Callable) -> Any:
        """use(f), where f is fn with its options, compiled; not compiled where that fails."""
        if self.eager:
            return use(functools.partial(fn, **options))
        key = (fn, *sorted(options.items()))
        if key not in self.compiled:
            self.compiled[key] = self.jax.jit(functools.partial(fn, **options))
        try:
            return use(self.compiled[key])
        except Exception:  # it looks at its numbers, or fails in any case
            return use(functools.partial(fn, **options))

    def called(self, fn: Callable, args: Sequence, options: Mapping) -> Any:
        arrays, rest = self.parted(options)
        return self.compiling(fn, rest, lambda f: f(*args, **arrays))

    def differentiated(
        self, fn: Callable, args: Sequence, options: Mapping, bias: str | None, only: str | None = None
    ) -> tuple:
        arrays, rest = self.parted(options)
        B = arrays.pop(bias) if bias else None

        def use(f: Callable) -> tuple:
            if bias is None:
                return self.jax.vjp(lambda q, k, v: f(q, k, v, **arrays), *args)
            return self.jax.vjp(lambda q, k, v, B: f(q, k, v, **{bias: B}, **arrays), *args, B)

        return self.compiling(fn, rest, use)

    def parted(self, options: Mapping) -> tuple[dict, dict]:
        """The options that are arrays, and the others."""
        arrays = {name: x for name, x in options.items() if self.is_array(x)}
        return arrays, {name: x for name, x in options.items() if name not in arrays}
