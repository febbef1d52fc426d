"""The arrays of a candidate in PyTorch, and autograd."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnmath._examine._calls import Broken, Fault
from attnmath._examine._numpy_arrays import Numpy


class Torch(Numpy):
    """PyTorch, and its autograd."""

    name = "torch"

    def prepare(self) -> None:
        self.torch = importlib.import_module("torch")
        self.number_type, self.calls = getattr(self.torch, self.dtype), 0

    def array(self, x: np.ndarray) -> Any:
        dtype = self.number_type if x.dtype == float else None
        return self.torch.tensor(np.ascontiguousarray(x), dtype=dtype, device=self.device)

    def transposed(self, x: Any) -> Any:
        return x.permute(tuple(range(x.ndim))[::-1])

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
        self.calls += 1
        with self.torch.random.fork_rng(), self.torch.enable_grad():
            self.torch.manual_seed(self.calls)
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
