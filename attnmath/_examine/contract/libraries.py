"""The libraries that a candidate may compute with: their arrays, made and read, and their gradients."""

import functools
import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnmath._examine.contract.functions import Broken, Fault
from attnmath._examine.contract.layouts import memory_order
from attnmath._words.extras import EXTRAS, absent
from attnmath.rounding.formats import FORMATS


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

    def transposed(self, x: Any, axes: Sequence[int]) -> Any:
        """The view with the axes in this order."""
        return x.transpose(axes)

    def spread(self, x: Any, shape: tuple) -> Any:
        """The view of this shape, with strides of 0."""
        return np.broadcast_to(x, shape)

    def arranged(self, x: np.ndarray, memory: str = "own", of: str = "Q") -> Any:
        """x, contiguous, or "strided" or with "contiguous rows" in the order of this letter, or "broadcast"."""
        if memory in ("strided", "contiguous rows"):
            order = memory_order(of, x.ndim, memory == "contiguous rows")
            return self.transposed(self.array(x.transpose(order)), np.argsort(order).tolist())
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
        return np.array(x, float if self.dtype_of(x) in FORMATS else None, order="C")

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


class Torch(Numpy):
    """PyTorch, and its autograd."""

    name = "torch"

    def prepare(self) -> None:
        self.torch = importlib.import_module("torch")
        self.number_type, self.seeds = getattr(self.torch, self.dtype), itertools.count(1)

    def array(self, x: np.ndarray) -> Any:
        dtype = self.number_type if x.dtype == float else None
        return self.torch.tensor(np.ascontiguousarray(x), dtype=dtype, device=self.device)

    def transposed(self, x: Any, axes: Sequence[int]) -> Any:
        return x.permute(axes)

    def spread(self, x: Any, shape: tuple) -> Any:
        return x.expand(shape)

    def is_array(self, x: Any) -> bool:
        return isinstance(x, self.torch.Tensor)

    def odd(self, x: Any) -> str | None:
        if x.device.type == "meta":
            return "a tensor on meta, without numbers"
        if x.is_nested or x.layout != self.torch.strided:
            return "a nested tensor" if x.is_nested else f"a tensor with the layout {x.layout}"
        return None

    def read(self, x: Any) -> np.ndarray:
        x = x.detach().cpu()
        x = x.double() if x.is_floating_point() else x
        return np.array(x.numpy(), order="C")

    def memory(self, x: Any) -> np.ndarray | None:
        if x.device.type != "cpu" or x.layout != self.torch.strided:
            return None
        x = x.detach()
        return (x.view(self.torch.int16) if x.dtype == self.torch.bfloat16 else x).numpy()

    def inside(self, call: Callable[[], Any]) -> Any:
        """What the call returns; the user's random state stays, and every call has another one."""
        with self.torch.random.fork_rng(), self.torch.enable_grad():
            self.torch.manual_seed(next(self.seeds))
            return call()

    def seed(self, seed: int) -> Any:
        self.torch.manual_seed(seed)
        return seed

    def differentiated(
        self, fn: Callable, args: Sequence, options: Mapping, bias: str | None, only: str | None = None
    ) -> tuple:
        wrt = [*args, options[bias]] if bias else list(args)
        asked = [x for name, x in zip(("dQ", "dK", "dV", "dB"), wrt) if only in (None, name)]
        for x in asked:
            x.requires_grad_()
        O = fn(*args, **options)

        def pull(dO: Any) -> tuple:
            if not O.requires_grad:
                raise Broken(Fault("detached", "the output has no gradient: autograd sees no way to q, k, v"))
            grads = iter(self.torch.autograd.grad(O, asked, dO, allow_unused=True))
            return tuple(next(grads) if x.requires_grad else None for x in wrt)

        return O, pull

    def left_behind(self, args: Sequence) -> bool:
        return any(x.grad is not None for x in args)


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

    def arranged(self, x: np.ndarray, memory: str = "own", of: str = "Q") -> Any:
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


LIBRARIES = {"torch": Torch, "jax": Jax, "numpy": Numpy}


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of any library, or of one that is named."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    name = name.rpartition(".")[2]
    if name not in FORMATS:
        raise ValueError(f"dtype must be one of {', '.join(FORMATS)}, not {dtype!r}")
    return name


def framework(name: str, dtype: str, device: Any = None) -> Numpy:
    """A library by its name; ImportError says what to install."""
    if name not in LIBRARIES:
        raise ValueError(f"framework must be one of {', '.join(LIBRARIES)}, not {name!r}")
    try:
        return LIBRARIES[name](dtype, device)
    except ImportError as error:
        raise ImportError(absent(error.name or name, EXTRAS.get(name))) from error
