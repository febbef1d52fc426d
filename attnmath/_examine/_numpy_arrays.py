"""The arrays of a candidate in NumPy, made and read; what all libraries share."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnmath._examine._calls import Broken, Fault

DTYPES = ("float64", "float32", "bfloat16", "float16")


def small(x: np.ndarray) -> np.ndarray:
    """x with size 1 along every axis along which it is constant."""
    for axis in range(x.ndim):
        first = x.take([0], axis) if x.shape[axis] else x
        x = first if (x == first).all() else x
    return x


class Numpy:
    """NumPy, and what all libraries share."""

    name = "numpy"
    eager = False  # JAX: not compiled, so that what a program keeps from call to call is seen

    def __init__(self, dtype: str, device: Any = None) -> None:
        self.dtype, self.device = dtype, device
        self.prepare()

    def prepare(self) -> None:
        """Find the number type; the library is imported here, for the first time."""
        if self.dtype == "bfloat16":
            self.number_type = importlib.import_module("ml_dtypes").bfloat16
        else:
            self.number_type = np.dtype(self.dtype)

    # making arrays

    def array(self, x: np.ndarray) -> Any:
        """A contiguous copy, in the candidate's dtype; booleans and integers stay what they are."""
        return np.array(x, self.number_type if x.dtype == float else x.dtype, order="C")

    def transposed(self, x: Any) -> Any:
        """The view with all axes in reverse order."""
        return x.T

    def spread(self, x: Any, shape: tuple) -> Any:
        """The view of this shape, with strides of 0."""
        return np.broadcast_to(x, shape)

    def arranged(self, x: np.ndarray, memory: str = "own") -> Any:
        """x, contiguous, or "strided" in reverse order, or "broadcast" where it is constant."""
        if memory == "strided":
            return self.transposed(self.array(x.T))
        if memory == "broadcast":
            return self.spread(self.array(small(x)), x.shape)
        return self.array(x)

    # reading arrays

    def is_array(self, x: Any) -> bool:
        """Whether x is an array of this library."""
        return isinstance(x, np.ndarray)

    def odd(self, x: Any) -> str | None:
        """What makes an array one that cannot be read entry by entry; mostly nothing."""
        return None

    def dtype_of(self, x: Any) -> str:
        """The name of the dtype of x."""
        return str(x.dtype).rpartition(".")[2]

    def read(self, x: Any) -> np.ndarray:
        """A copy in float64 (booleans and integers stay what they are)."""
        return np.array(x, float if self.dtype_of(x) in DTYPES else None, order="C")

    def memory(self, x: Any) -> np.ndarray | None:
        """A view of the memory of x, if NumPy can have one."""
        return x

    # running

    def inside(self, call: Callable[[], Any]) -> Any:
        """The result of a call, under this library's settings."""
        return call()

    def seed(self, seed: int) -> Any:
        """Begin the library's random numbers anew; what an option for a seed is given."""
        np.random.seed(seed)
        return seed

    def called(self, fn: Callable, args: Sequence, options: Mapping) -> Any:
        """The output alone."""
        return fn(*args, **options)

    def differentiated(
        self, fn: Callable, args: Sequence, options: Mapping, bias: str | None, only: str | None = None
    ) -> tuple:
        """The output, and the function that takes dO to the gradients."""
        raise Broken(Fault("forward only", "a NumPy candidate has gradients only with backward="))

    def left_behind(self, args: Sequence) -> bool:
        """Whether something was written into the gradients that the arguments carry."""
        return False
