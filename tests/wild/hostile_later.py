"""Hostile candidates, written without having read the checker: each does something a candidate should not do.

Whoever runs them must come back, or end the candidate; none writes files, none uses the network, and
none holds more than about half a gigabyte. The formula of most is right apart from the hostile act. Build and
call them in a process of their own.
"""

import math
import os
import signal
import sys
import threading
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from cases import collection

CASES, case = collection()


def plain(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1) @ v


@case()
def exception_that_cannot_be_shown():
    """The call raises an exception whose __str__ and __repr__ raise as well, with itself as its
    cause."""

    class Unprintable(RuntimeError):
        def __str__(self):
            raise ValueError("no text for you")

        __repr__ = __str__

    def fn(q, k, v):
        error = Unprintable()
        error.__cause__ = error
        raise error

    return fn


@case()
def exceptions_outside_exception():
    """Calls raise in turn KeyboardInterrupt, SystemExit(0), GeneratorExit, StopIteration and a plain
    BaseException: those that `except Exception` does not catch."""
    calls = [0]

    def fn(q, k, v):
        calls[0] += 1
        kinds = (KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, BaseException)
        raise kinds[calls[0] % len(kinds)](0)

    return fn


@case()
def patches_torch_and_numpy():
    """Right itself, but at its first call it replaces torch.softmax, torch.allclose, torch.isnan,
    Tensor.norm and numpy.exp by wrong ones, seeds all generators, lowers the recursion limit and makes
    NumPy raise on any overflow."""
    softmax = torch.softmax

    def fn(q, k, v):
        o = softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1) @ v
        torch.softmax = lambda x, *a, **kw: torch.ones_like(x)
        F.softmax = torch.softmax
        torch.allclose = lambda *a, **kw: True
        torch.isnan = lambda x: torch.zeros_like(x, dtype=torch.bool)
        torch.Tensor.norm = lambda self, *a, **kw: self.sum() * 0
        np.exp = np.zeros_like
        np.seterr(all="raise")
        torch.manual_seed(0)
        np.random.seed(0)
        warnings.simplefilter("error")
        sys.setrecursionlimit(200)
        return o

    return fn


@case()
def never_returns_when_long():
    """Right for fewer than 8 keys; for 8 or more keys it spins for ever in Python and ignores SIGINT and
    SIGTERM where it may."""

    def fn(q, k, v):
        if k.shape[-2] >= 8:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                try:
                    time.sleep(0.01)
                except BaseException:
                    continue
        return plain(q, k, v)

    return fn


@case()
def backward_never_returns():
    """Forward is right; the hand-written backward spins for ever inside an autograd Function."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            return plain(q, k, v)

        @staticmethod
        def backward(ctx, do):
            while True:
                pass

    return lambda q, k, v: Slow.apply(q, k, v)


@case()
def leaves_the_process():
    """The third call ends the process by os._exit(0): no exception, no message, exit status of
    success."""
    calls = [0]

    def fn(q, k, v):
        calls[0] += 1
        if calls[0] >= 3:
            os._exit(0)
        return plain(q, k, v)

    return fn


@case()
def kills_itself_in_backward():
    """The forward is right; the backward function given beside it sends SIGKILL to its own process."""

    def backward(do, q, k, v):
        os.kill(os.getpid(), signal.SIGKILL)

    return plain, backward


@case()
def floods_and_closes_output():
    """Right, but each call prints 4 MB to stdout and stderr (partly no UTF-8, partly what looks like a
    result in JSON or a traceback), and after that replaces sys.stdout and closes descriptor 1."""

    def fn(q, k, v):
        o = plain(q, k, v)
        for number in (1, 2):
            try:
                os.write(number, b'\n{"verdict": "right", "ok": true}\nTraceback (most recent call last):\n')
                for _ in range(64):
                    os.write(number, b"\xff\xfe\x00 attention " * 4096)
            except OSError:
                pass
        try:
            print("x" * 1_000_000, flush=True)
        except (OSError, ValueError):
            pass
        sys.stdout = open(os.devnull, "w")
        try:
            os.close(1)
        except OSError:
            pass
        return o

    return fn


@case()
def gradients_of_odd_types():
    """The output is right; the backward returns in turn a string, a dict, None, two gradients in place
    of three, a generator, integers, complex numbers, and gradients of other shapes."""
    calls = [0]

    def backward(do, q, k, v):
        calls[0] += 1
        odd = (
            "dq, dk, dv",
            {"q": q, "k": k, "v": v},
            None,
            (q, k),
            (x for x in (q, k, v)),
            (q.long(), k.long(), v.long()),
            (q.to(torch.complex64), k, v),
            (q.flatten(), k[..., :1], v.sum()),
            (None, None, None),
            [[1.0, 2.0], "x", object()],
        )
        return odd[calls[0] % len(odd)]

    return plain, backward


@case()
def nan_now_and_then():
    """Right at the first two calls; later one element of the output is NaN, or infinite at every other
    call, and the gradients of q are NaN."""
    calls = [0]

    class Spoil(torch.autograd.Function):
        @staticmethod
        def forward(ctx, o, bad):
            o = o.clone()
            o.view(-1)[0] = bad
            return o

        @staticmethod
        def backward(ctx, g):
            return g * float("nan"), None

    def fn(q, k, v):
        calls[0] += 1
        o = plain(q, k, v)
        return o if calls[0] <= 2 else Spoil.apply(o, float("nan") if calls[0] % 2 else float("inf"))

    return fn


@case()
def random_every_time():
    """The output is noise from the system's entropy, another at every call, of the right shape, with
    gradients that do not belong to it; at every fifth call of another shape and dtype."""
    calls = [0]

    def fn(q, k, v):
        calls[0] += 1
        g = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little"))
        noise = torch.rand(*q.shape[:-1], v.shape[-1], generator=g).to(q.dtype)
        if calls[0] % 5 == 0:
            return torch.rand(3, 1, generator=g).to(torch.float16)
        return noise + 0 * (q.sum() + k.sum() + v.sum())

    return fn


@case()
def writes_into_its_inputs():
    """Computes the right output, writes it into q's own memory (if the sizes agree) and returns a view
    of q, whose gradient is that of a mere copy of q; k becomes NaN and v zero, all behind autograd's
    back."""

    def fn(q, k, v):
        o = plain(q, k, v)
        same = q.shape == o.shape
        if same:
            q.data.copy_(o.detach())
        k.data.fill_(float("nan"))
        v.data.zero_()
        return q.view_as(q) if same else o

    return fn


@case()
def asks_for_huge_memory():
    """Asks for 64 TiB in one tensor at the first call (refused at once), passes the error on at the
    second call, and holds 64 MB more at each call up to half a gigabyte; the output is right when there
    is one."""
    kept, calls = [], [0]

    def fn(q, k, v):
        calls[0] += 1
        if len(kept) < 8:
            kept.append(torch.ones(16 * 2**20))
        if calls[0] <= 2:
            try:
                torch.empty(2**44, dtype=torch.float32)
            except (RuntimeError, MemoryError):
                if calls[0] == 2:
                    raise
        return plain(q, k, v)

    return fn


@case()
def threads_that_meddle():
    """Right itself; the first call starts a thread, no daemon, that lives for two minutes and ten times
    a second changes torch's default dtype, the seed and the number of threads of the whole process."""
    started = []

    def meddle():
        end = time.monotonic() + 120
        while time.monotonic() < end:
            for dtype in (torch.float64, torch.bfloat16, torch.float32):
                torch.set_default_dtype(dtype)
                torch.manual_seed(7)
                time.sleep(0.1)

    def fn(q, k, v):
        if not started:
            started.append(threading.Thread(target=meddle, daemon=False))
            started[0].start()
        return plain(q, k, v)

    return fn


@case()
def changes_defaults_for_good():
    """Sets the default dtype to float16 and the default device to meta at its first call, turns on
    anomaly detection and deterministic algorithms and gradients off, and leaves them so; its own output
    is right."""

    def fn(q, k, v):
        o = plain(q, k, v)
        torch.set_default_dtype(torch.float16)
        torch.set_default_device("meta")
        torch.autograd.set_detect_anomaly(True)
        torch.use_deterministic_algorithms(True)
        torch.set_grad_enabled(False)
        return o

    return fn


@case()
def output_that_lies():
    """Returns a subclass of Tensor with the right shape but random numbers, whose comparisons,
    differences and norms all claim that it agrees with anything."""

    class Liar(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            name = getattr(func, "__name__", "")
            out = super().__torch_function__(func, types, args, kwargs or {})
            if isinstance(out, torch.Tensor) and name in (
                "sub",
                "rsub",
                "__sub__",
                "__rsub__",
                "norm",
                "abs",
            ):
                return out * 0
            return True if name in ("allclose", "equal") else out

    def fn(q, k, v):
        return (plain(q, k, v) * 0 + torch.rand(q.shape[-2], 1).to(q.dtype)).as_subclass(Liar)

    return fn


@case("layer")
def layer_that_deceives_when_watched():
    """A layer whose parameters(), state_dict() and eval() raise, whose forward registers ever more
    parameters and recurses without end when the batch has more than one element."""

    class Layer(nn.Module):
        def __init__(self, width=32, heads=4):
            super().__init__()
            self.num_heads = heads
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def parameters(self, recurse=True):
            raise PermissionError("parameters are private")

        def state_dict(self, *args, **kwargs):
            raise PermissionError("so is the state")

        def eval(self):
            raise PermissionError("always in training")

        def forward(self, x):
            self.register_parameter(f"p{len(self._parameters)}", nn.Parameter(torch.zeros(1)))
            if x.shape[0] > 1:
                return self.forward(x)
            q, k, v = (
                t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
            )
            return self.proj(plain(q, k, v).transpose(1, 2).flatten(2))

    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Layer()
