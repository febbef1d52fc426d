"""Hostile candidates: code that may break, hang, fool or dirty a checker that calls it.

All were thought up for this file (source ""). Nothing happens on import or in making a candidate, only in calling
it. The last words of each docstring, after "Checker:", say what a good checker should come to: "right", "wrong",
"not judged" (cannot be called, gives nothing to compare, or does not come back), "process ended" (the process that
calls it ends or must be killed; a checker that judges in its own process cannot survive it), or "any report" (several
answers are defensible, a crash or a hang of the checker is not).

Every wait ends by itself after WAIT seconds, and growth of memory at a ceiling, so that nothing is left on a shared
machine. Run them in a process of their own each.
"""

import asyncio
import atexit
import ctypes
import functools
import inspect
import itertools
import logging
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from cases import collection

CASES, case = collection()

WAIT = 600.0  # seconds, the longest wait of any candidate
CEILING = 6 << 30  # bytes, the most that any candidate takes


def sdpa(q, k, v):
    """The right thing, for torch."""
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(s, dim=-1) @ v


def unscaled(q, k, v):
    """The usual wrong thing: no division by the root of d."""
    return torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v


def sdpa_np(q, k, v):
    """The right thing, for NumPy."""
    s = np.matmul(q, np.swapaxes(k, -1, -2)) / math.sqrt(q.shape[-1])
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.matmul(e / e.sum(-1, keepdims=True), v)


# ---------------------------------------------------------------- exceptions


@case()
def raises_own_class():
    """Raises an exception of a local class whose constructor takes two arguments, so that it cannot be pickled.
    Checker: not judged"""
    def fn(q, k, v):
        class ShapeTrouble(Exception):
            def __init__(self, expected, got):
                super().__init__(f"expected {expected}, got {got}")
                self.got = got
                self.hold = lambda: q
        raise ShapeTrouble("a multiple of 1000003", tuple(q.shape))
    return fn


@case()
def raises_base_exception():
    """Raises a class derived from BaseException directly, which "except Exception" lets through.
    Checker: not judged"""
    class Abandon(BaseException):
        pass

    def fn(q, k, v):
        raise Abandon("no more")
    return fn


@case()
def raises_keyboard_interrupt():
    """Raises KeyboardInterrupt as if the user had pressed the key.
    Checker: any report"""
    def fn(q, k, v):
        raise KeyboardInterrupt
    return fn


@case()
def raises_system_exit_zero():
    """Calls sys.exit(0), so that a process left alone would end as if all were well.
    Checker: not judged"""
    def fn(q, k, v):
        sys.exit(0)
    return fn


@case()
def raises_stop_iteration_then_generator_exit():
    """Raises StopIteration on odd calls and GeneratorExit on even ones, which can end a loop or generator of the
    caller without a word. Checker: not judged"""
    turn = itertools.count(1)

    def fn(q, k, v):
        raise StopIteration(q) if next(turn) % 2 else GeneratorExit
    return fn


@case()
def raises_unprintable():
    """Raises an exception whose __str__ and __repr__ raise in turn, and whose class has an odd name.
    Checker: not judged"""
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text for you")
        __repr__ = __str__

    Mute.__name__ = Mute.__qualname__ = "{}%s\x1b[31m\n"

    def fn(q, k, v):
        raise Mute
    return fn


@case()
def recursion_without_end():
    """Calls itself until Python's recursion limit stops it.
    Checker: not judged"""
    def fn(q, k, v):
        return fn(q, k, v) + 0 * q
    return fn


@case()
def raises_from_a_gradient_hook():
    """Forward right; a hook on the scores raises its own BaseException class when the gradient passes, so only the
    gradients cannot be had. Checker: not judged"""
    class Refused(BaseException):
        pass

    def refuse(grad):
        raise Refused(grad.shape)

    def fn(q, k, v):
        s = q @ k.mT * q.shape[-1] ** -0.5
        if s.requires_grad:
            s.register_hook(refuse)
        return s.softmax(-1) @ v
    return fn


@case()
def raises_now_and_then():
    """Right, but each third call raises OSError as a flaky device would.
    Checker: any report"""
    turn = itertools.count(1)

    def fn(q, k, v):
        if next(turn) % 3 == 0:
            raise OSError(5, "Input/output error")
        return sdpa(q, k, v)
    return fn


# ---------------------------------------------------------------- the end of the process, and no end


@case()
def exits_hard_with_zero():
    """os._exit(0) in the call: no cleaning up, no exception, exit status of a success.
    Checker: process ended"""
    def fn(q, k, v):
        os._exit(0)
    return fn


@case()
def segfault():
    """Reads the string at address 0.
    Checker: process ended"""
    def fn(q, k, v):
        ctypes.string_at(0)
        return sdpa(q, k, v)
    return fn


@case()
def segfault_in_backward_only():
    """Forward right; the backward of its autograd Function kills its own process with SIGSEGV.
    Checker: process ended"""
    class Core(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            return sdpa(q, k, v)

        @staticmethod
        def backward(ctx, do):
            signal.signal(signal.SIGSEGV, signal.SIG_DFL) if in_main_thread() else None
            os.kill(os.getpid(), signal.SIGSEGV)
            return do, do, do

    return Core.apply


def in_main_thread():
    return threading.current_thread() is threading.main_thread()


@case()
def holds_the_interpreter():
    """Sums an iterator in C for minutes: the lock of the interpreter is never given up and no signal handler runs, so
    that only another process can end it. Checker: process ended"""
    def fn(q, k, v):
        sum(itertools.repeat(1, int(WAIT * 1e8)))
        return sdpa(q, k, v)
    return fn


@case()
def sleeps_long():
    """Sleeps ten minutes before the right answer.
    Checker: not judged"""
    def fn(q, k, v):
        time.sleep(WAIT)
        return sdpa(q, k, v)
    return fn


@case()
def stubborn():
    """Cancels the interval timer and alarms, ignores SIGTERM, SIGINT, SIGALRM and SIGHUP, swallows every exception
    that is thrown into it, and goes round in a loop for ten minutes. Checker: process ended"""
    def fn(q, k, v):
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
                for name in ("SIGTERM", "SIGINT", "SIGALRM", "SIGHUP"):
                    signal.signal(getattr(signal, name), signal.SIG_IGN)
                time.sleep(0.05)
            except BaseException:
                time.sleep(0.01)
        return sdpa(q, k, v)
    return fn


@case()
def deadlock():
    """Takes a lock that it holds already (released by nobody; the wait ends by itself after ten minutes).
    Checker: not judged"""
    lock = threading.Lock()

    def fn(q, k, v):
        with lock:
            if not lock.acquire(timeout=WAIT):
                raise TimeoutError("waited for itself")
        return sdpa(q, k, v)
    return fn


@case()
def second_call_hangs():
    """Right on the first call; sleeps ten minutes in each later one.
    Checker: any report"""
    seen = []

    def fn(q, k, v):
        if seen:
            time.sleep(WAIT)
        seen.append(1)
        return sdpa(q, k, v)
    return fn


@case()
def memory_without_end():
    """Takes touched memory in blocks of 32 MiB until a limit stops it (or its own ceiling of 6 GiB or half of what
    the machine has free), then raises MemoryError and keeps the blocks. Checker: not judged"""
    held = []

    def fn(q, k, v):
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        for _ in range(min(CEILING, free // 2) >> 25):
            held.append(np.ones(1 << 22))
            time.sleep(0.002)
        raise MemoryError(f"{len(held)} blocks")
    return fn


# ---------------------------------------------------------------- what is left behind


@case()
def noisy():
    """Right; prints 2 MB to stdout, as much to stderr, past Python to both descriptors, warns under a new category
    and logs at CRITICAL, bytes that are no UTF-8 among it. Checker: right"""
    class Doubtful(UserWarning):
        pass

    def fn(q, k, v):
        print("loss: nan " * 200_000)
        print("Traceback (most recent call last): " * 60_000, file=sys.stderr)
        for descriptor in (1, 2):
            try:
                os.write(descriptor, b"\xff\xfe\x00\x1b[2J\r" * 500)
            except OSError:
                pass
        warnings.warn("fast path not taken", Doubtful, stacklevel=1)
        logging.getLogger("kernel").critical("fallback for %s", tuple(q.shape))
        return sdpa(q, k, v)
    return fn


@case()
def prints_a_verdict():
    """Scores not divided by the root of d; prints lines and JSON that look like a checker's result of success to
    stdout and stderr. Checker: wrong"""
    def fn(q, k, v):
        for stream in (sys.stdout, sys.stderr):
            print('\n{"ok": true, "right": true, "verdict": "right", "errors": []}\nright\nPASSED\nOK', file=stream)
        return unscaled(q, k, v)
    return fn


@case()
def dirties_numeric_state():
    """Right, and leaves behind: seeds of random, NumPy and torch, np.seterr(all="raise"), default dtype float16, one
    thread, deterministic algorithms, flush of denormals, print options, warnings as errors. Checker: right"""
    def fn(q, k, v):
        out = sdpa(q, k, v)
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        np.seterr(all="raise")
        np.set_printoptions(precision=1, threshold=2)
        torch.set_printoptions(precision=1)
        torch.set_default_dtype(torch.float16)
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.set_flush_denormal(True)
        warnings.simplefilter("error")
        return out
    return fn


@case()
def dirties_process_state():
    """Right, and leaves behind: another working directory (a new temporary one), a changed environment, SIGALRM and
    SIGTERM ignored, a trace function, a low recursion limit, an exit handler that ends with status 3, a file size
    limit. Checker: right"""
    def fn(q, k, v):
        out = sdpa(q, k, v)
        os.chdir(tempfile.mkdtemp(prefix="hostile-"))
        os.environ.update(PYTHONPATH="/nonexistent", OMP_NUM_THREADS="x", TMPDIR="/nonexistent", PATH="")
        if in_main_thread():
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.settrace(lambda frame, event, arg: None)
        sys.setrecursionlimit(max(200, len(inspect.stack(0)) + 150))
        atexit.register(os._exit, 3)
        return out
    return fn


@case()
def leaves_gradients_off():
    """Right with its gradients (it switches them on itself), and leaves torch's gradient mode off and inference of
    anomalies on after each call. Checker: right"""
    def fn(q, k, v):
        torch.set_grad_enabled(True)
        out = sdpa(q, k, v)
        torch.autograd.set_detect_anomaly(True)
        torch.set_grad_enabled(False)
        return out
    return fn


@case()
def closes_stdout():
    """Right; closes sys.stdout, sets sys.stderr to None and closes descriptors 0 and 1.
    Checker: right"""
    def fn(q, k, v):
        try:
            sys.stdout.close()
        except (AttributeError, OSError, ValueError):
            pass
        sys.stderr = None
        for descriptor in (0, 1):
            try:
                os.close(descriptor)
            except OSError:
                pass
        return sdpa(q, k, v)
    return fn


@case()
def leaves_a_thread():
    """Right; the first call starts a thread that is no daemon and lives two minutes, so that the process does not
    end by itself. Checker: right"""
    started = []

    def fn(q, k, v):
        if not started:
            started.append(threading.Thread(target=time.sleep, args=(120,)))
            started[0].start()
        return sdpa(q, k, v)
    return fn


@case()
def leaves_a_child_holding_stdout():
    """Right; the first call starts a child process in a session of its own, which inherits stdout and stderr and
    holds them open for two minutes, so that a reader waits for the end of the pipe. Checker: right"""
    started = []

    def fn(q, k, v):
        if not started:
            started.append(subprocess.Popen(["sleep", "120"], start_new_session=True, close_fds=False))
        return sdpa(q, k, v)
    return fn


# ---------------------------------------------------------------- inputs


@case()
def scales_q_in_place():
    """Multiplies q.data by the scale in place, as a saving of memory: forward right for the first call, dq lacks the
    scale, and the caller's q has changed. Checker: wrong"""
    def fn(q, k, v):
        q.data.mul_(q.shape[-1] ** -0.5)
        return (q @ k.mT).softmax(-1) @ v
    return fn


@case()
def wipes_its_inputs():
    """Sets q, k and v to zero in place and returns zeros that hang on them: agrees with any reference that is
    computed from the same arrays after the call. Checker: wrong"""
    def fn(q, k, v):
        for x in (q, k, v):
            x.data.zero_()
        return sdpa(q, k, v)
    return fn


@case()
def in_place_on_a_leaf():
    """q *= scale in the autograd graph: RuntimeError if q is a leaf that wants a gradient, and the right values (with
    the caller's q changed) if not. Checker: any report"""
    def fn(q, k, v):
        q *= q.shape[-1] ** -0.5
        return F.softmax(torch.matmul(q, k.transpose(-2, -1)), -1).matmul(v)
    return fn


@case(formats=("float64", "float32"))
def numpy_in_place():
    """NumPy, scales q in place and exponentiates in its own buffer: right the first time, the caller's q is smaller
    after each call. Checker: any report"""
    def fn(q, k, v):
        q *= q.shape[-1] ** -0.5
        s = q @ np.swapaxes(k, -1, -2)
        s -= s.max(-1, keepdims=True)
        np.exp(s, out=s)
        s /= s.sum(-1, keepdims=True)
        return s @ v
    return fn


# ---------------------------------------------------------------- results


@case()
def returns_none():
    """Computes and forgets to return.
    Checker: not judged"""
    def fn(q, k, v):
        sdpa(q, k, v)
    return fn


@case()
def returns_text():
    """Returns the repr of the result.
    Checker: not judged"""
    return lambda q, k, v: repr(sdpa(q, k, v))


@case()
def returns_self_containing_list():
    """Returns a list whose elements are the list itself and a dictionary, nothing to compare in it and no bottom.
    Checker: not judged"""
    def fn(q, k, v):
        out = [{}]
        out[0]["out"] = out
        out.append(out)
        return out
    return fn


@case()
def returns_seven_outputs():
    """Returns seven things: the right output, then the weights, None, a string, the shape, an empty tensor, a list.
    Checker: any report"""
    def fn(q, k, v):
        p = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)
        return p @ v, p, None, "ok", q.shape, q.new_empty(0), []
    return fn


@case()
def returns_one_row_less():
    """The right output without its last query row.
    Checker: not judged"""
    def fn(q, k, v):
        return sdpa(q, k, v)[..., :-1, :]
    return fn


@case()
def returns_broadcastable():
    """Returns the mean of the right output over the queries with the dimension kept, which broadcasts against a
    reference of full shape without an error. Checker: not judged"""
    def fn(q, k, v):
        return sdpa(q, k, v).mean(-2, keepdim=True)
    return fn


@case()
def returns_integers():
    """Output rounded and converted to int64, without a gradient.
    Checker: wrong"""
    def fn(q, k, v):
        return sdpa(q, k, v).round().long()
    return fn


@case(formats=("float64", "float32"))
def returns_complex():
    """Right values as a complex tensor with imaginary part zero.
    Checker: any report"""
    def fn(q, k, v):
        return torch.complex(sdpa(q, k, v), torch.zeros_like(q @ k.mT @ v))
    return fn


@case()
def returns_meta_tensor():
    """Output on the device "meta": shape and dtype right, no values.
    Checker: not judged"""
    def fn(q, k, v):
        return sdpa(q, k, v).to("meta")
    return fn


@case(formats=("float64", "float32"))
def returns_numpy_for_torch():
    """Right values, given back as a NumPy array for torch inputs, so no gradient.
    Checker: any report"""
    def fn(q, k, v):
        return sdpa_np(*(x.detach().numpy() if torch.is_tensor(x) else x for x in (q, k, v)))
    return fn


@case()
def returns_sparse():
    """Right values in a sparse COO tensor.
    Checker: any report"""
    def fn(q, k, v):
        return sdpa(q, k, v).to_sparse()
    return fn


@case()
def returns_v_itself():
    """Returns the object v (its first rows where there are fewer queries, v again where more).
    Checker: wrong"""
    def fn(q, k, v):
        n, m = q.shape[-2], v.shape[-2]
        if n == m:
            return v
        return v[..., :n, :] if n < m else torch.cat([v] * (n // m + 1), -2)[..., :n, :]
    return fn


@case()
def same_buffer_each_call():
    """Right, with right gradients; each call of one shape writes into the same memory and returns a view of it, so an
    earlier result changes with the next call. Checker: right"""
    buffers = {}

    class Into(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
            ctx.save_for_backward(q, k, v, p)
            shape = (*p.shape[:-1], v.shape[-1])
            out = buffers.setdefault((shape, v.dtype), torch.empty(shape, dtype=v.dtype))
            return out.copy_(p @ v).detach()

        @staticmethod
        def backward(ctx, do):
            q, k, v, p = ctx.saved_tensors
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            return ds @ k, ds.mT @ q, p.mT @ do

    return lambda q, k, v: Into.apply(q, k, v)


@case()
def nan_everywhere():
    """Output and gradients are NaN for all inputs (0/0), on which comparisons by "greater than" say nothing.
    Checker: wrong"""
    def fn(q, k, v):
        out = sdpa(q, k, v)
        return out + (out * 0).sum() / (out * 0).sum()
    return fn


@case()
def one_infinity():
    """The right output with one element, the last, set to infinity; gradients as if that were not there.
    Checker: wrong"""
    def fn(q, k, v):
        out = sdpa(q, k, v).clone()
        out.data.view(-1)[-1] = float("inf")
        return out
    return fn


@case(formats=("float64", "float32"))
def lazy_array():
    """Returns an object that is no array, with shape, dtype and an __array__ that computes the right values only when
    asked. Checker: any report"""
    class Lazy:
        def __init__(self, inputs):
            self.inputs = inputs
            self.shape = tuple(inputs[0].shape)[:-1] + (inputs[2].shape[-1],)
            self.dtype = inputs[0].dtype

        def __array__(self, dtype=None, copy=None):
            q, k, v = (np.asarray(x.detach() if torch.is_tensor(x) else x) for x in self.inputs)
            return sdpa_np(q, k, v).astype(dtype or q.dtype)

        def __getattr__(self, name):
            raise AttributeError(f"{name}: not computed yet")

    return lambda q, k, v: Lazy((q, k, v))


@case()
def tensor_subclass():
    """Right; the result is of a subclass of torch.Tensor which adds nothing but a name and a noisy repr that raises.
    Checker: right"""
    class Named(torch.Tensor):
        axes = ("b", "h", "n", "d")

        def __repr__(self, **kw):
            raise NotImplementedError("too large to show")

    return lambda q, k, v: sdpa(q, k, v).as_subclass(Named)


@case()
def tensor_subclass_equal_to_all():
    """Scores not scaled; the result is a subclass of Tensor whose __torch_function__ answers True to every comparison
    and zeros to every subtraction. Checker: wrong"""
    flattering = {"allclose", "equal", "isclose", "eq", "__eq__", "le", "__le__", "lt", "__lt__"}

    class Agreeable(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            name = getattr(func, "__name__", "")
            with torch._C.DisableTorchFunctionSubclass():
                out = func(*args, **(kwargs or {}))
            if name in flattering:
                return True if isinstance(out, bool) else torch.ones_like(out)
            if name in ("sub", "__sub__", "rsub", "__rsub__", "subtract"):
                return torch.zeros_like(out)
            return out.as_subclass(cls) if type(out) is torch.Tensor else out

    return lambda q, k, v: unscaled(q, k, v).as_subclass(Agreeable)


@case(formats=("float64", "float32"))
def array_subclass_equal_to_all():
    """NumPy, scores not scaled; the result is a subclass of ndarray whose __array_ufunc__ gives zeros for any
    difference and True for any comparison. Checker: wrong"""
    class Agreeable(np.ndarray):
        def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kw):
            plain = [np.asarray(x).view(np.ndarray) if isinstance(x, np.ndarray) else x for x in inputs]
            result = getattr(ufunc, method)(*plain, **kw)
            if ufunc in (np.subtract, np.absolute):
                return np.zeros_like(result)
            return np.ones_like(result) if getattr(result, "dtype", None) == bool else result

        def __array_function__(self, func, types, args, kwargs):
            return True if func in (np.allclose, np.array_equal) else super().__array_function__(
                func, types, args, kwargs)

    def fn(q, k, v):
        return sdpa_np(q * math.sqrt(q.shape[-1]), k, v).view(Agreeable)
    return fn


@case()
def double_backward_impossible():
    """Right with right first gradients; its backward is once_differentiable, scales the incoming gradient in place at
    its end, and raises when asked a second time for the same graph. Checker: right"""
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v)
            ctx.done = False
            return sdpa(q, k, v)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, do):
            if ctx.done:
                raise RuntimeError("buffers are gone")
            ctx.done = True
            with torch.enable_grad():
                leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
                grads = torch.autograd.grad(sdpa(*leaves), leaves, do)
            if do.is_contiguous():
                do.zero_()
            return grads

    return Once.apply


@case()
def never_wants_a_gradient():
    """Right forward under no_grad, so the output does not require a gradient.
    Checker: any report"""
    return torch.no_grad()(sdpa)


# ---------------------------------------------------------------- changing with calls, time, or who looks


@case()
def noise_each_call():
    """The right output times 1 + 0.02 N(0, 1), from a generator seeded by the system.
    Checker: wrong"""
    rng = np.random.default_rng()

    def fn(q, k, v):
        o = sdpa(q, k, v)
        return o * (1 + 0.02 * torch.from_numpy(rng.standard_normal(tuple(o.shape))).to(o.dtype))
    return fn


@case()
def right_the_first_time():
    """Counts its calls: right on the first one, scores not scaled from the second on.
    Checker: wrong"""
    calls = iter([sdpa])

    def fn(q, k, v):
        return next(calls, unscaled)(q, k, v)
    return fn


@case()
def right_on_forty_calls():
    """Right on the first forty calls, the sum of v over the keys afterwards.
    Checker: any report"""
    class Fading:
        left = 40

        def __call__(self, q, k, v):
            self.left -= 1
            return sdpa(q, k, v) if self.left >= 0 else torch.ones_like(q @ k.mT) @ v
    return Fading()


@case()
def cached_by_shape():
    """Keeps the weights of the first call of each shape and dtype, and multiplies them with v ever after: right at
    the first call of a shape, blind to other q and k later, and dq, dk do not come. Checker: wrong"""
    cache = {}

    def fn(q, k, v):
        key = (tuple(q.shape), tuple(k.shape), q.dtype)
        if key not in cache:
            cache[key] = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1).detach()
        return cache[key] @ v
    return fn


@case()
def cached_by_id():
    """functools.lru_cache over the identity of the three tensors (what Tensor hashes by is id): right for new
    tensors, stale and with a used-up graph for a tensor changed in place. Checker: any report"""
    return functools.lru_cache(maxsize=None)(sdpa)


@case()
def depends_on_the_clock():
    """Divides by the root of d in even thirds of a millisecond and by d in odd ones.
    Checker: wrong"""
    def fn(q, k, v):
        d = q.shape[-1]
        odd = time.perf_counter_ns() // 333_333 % 2
        return torch.softmax(q @ k.mT / (d if odd else math.sqrt(d)), -1) @ v
    return fn


@case()
def looks_at_its_caller():
    """Walks up sys._getframe: right if a file name or function of a frame has test, check, exam, judge or verif in
    it, not scaled otherwise (so right whenever it is watched). Checker: any report"""
    def fn(q, k, v):
        frame, watched = sys._getframe(1), False
        while frame is not None and not watched:
            text = (os.path.basename(frame.f_code.co_filename) + frame.f_code.co_name).lower()
            watched = any(word in text for word in ("test", "check", "exam", "judge", "verif"))
            frame = frame.f_back
        return (sdpa if watched else unscaled)(q, k, v)
    return fn


@case()
def steals_the_reference():
    """Returns whatever array of the shape of the output it finds in the local variables of its callers (other than
    its inputs), the unscaled result if it finds none. Checker: wrong"""
    def fn(q, k, v):
        mine = unscaled(q, k, v)
        frame = sys._getframe(1)
        while frame is not None:
            for name, value in list(frame.f_locals.items()):
                if isinstance(value, (torch.Tensor, np.ndarray)) and tuple(value.shape) == tuple(mine.shape):
                    if not any(value is x for x in (q, k, v)):
                        found = torch.as_tensor(value).detach().to(mine.dtype)
                        return mine + (found - mine.detach())
            frame = frame.f_back
        return mine
    return fn


@case()
def patches_the_comparison():
    """Scores not scaled; replaces np.allclose, np.isclose, np.abs, np.linalg.norm, np.testing.assert_allclose,
    torch.allclose, torch.isclose, torch.testing.assert_close and math.isclose by ones that find no difference.
    Checker: wrong"""
    def agree(*args, **kwargs):
        return True

    def nothing(x, *args, **kwargs):
        return x * 0

    def fn(q, k, v):
        out = unscaled(q, k, v)
        for where, names in ((np, ("allclose", "isclose", "array_equal")), (np.testing, ("assert_allclose",)),
                             (torch, ("allclose", "isclose", "equal")), (torch.testing, ("assert_close",)),
                             (math, ("isclose",))):
            for name in names:
                setattr(where, name, agree)
        np.abs = np.absolute = nothing
        np.linalg.norm = lambda *a, **kw: 0.0
        return out
    return fn


# ---------------------------------------------------------------- kinds of callables, signatures, backwards


@case()
def generator_function():
    """Yields the output instead of returning it.
    Checker: not judged"""
    def fn(q, k, v):
        for head in sdpa(q, k, v):
            yield head
    return fn


@case()
def async_function():
    """A coroutine function with an await in it; calling it gives a coroutine, never awaited.
    Checker: not judged"""
    async def fn(q, k, v):
        await asyncio.sleep(0)
        return sdpa(q, k, v)
    return fn


@case(options={"causal": "causal"})
def partial_of_a_partial():
    """Right; a partial of a partial, with the first argument of the function bound and one keyword bound, so there
    is no __name__, and causal aligned top left. Checker: right"""
    def general(act, q, k, v, *, fill, causal=False):
        s = q @ k.mT / q.shape[-1] ** 0.5
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), fill)
        return act(s, -1) @ v
    return functools.partial(functools.partial(general, torch.softmax), fill=float("-inf"))


@case()
def object_with_hostile_attributes():
    """Right; an instance with __call__, whose every other attribute (name, doc, module, signature) raises a
    ZeroDivisionError, whose repr, hash and comparison raise, and which is false. Checker: right"""
    class Thorny:
        def __call__(self, q, k, v):
            return sdpa(q, k, v)

        def __getattr__(self, name):
            return 1 / 0

        def __repr__(self):
            raise ValueError("nameless")

        def __bool__(self):
            return False

        __str__ = __repr__
        __eq__ = lambda self, other: 1 / 0  # noqa: E731
        __hash__ = None
    return Thorny()


@case(options={"mask": "attn_mask", "causal": "is_causal", "scale": "scale"})
def builtin_sdpa():
    """Right; torch's own scaled_dot_product_attention, a builtin without a signature (the mask keeps where True; mask
    and causal together are an error there). Checker: right"""
    return F.scaled_dot_product_attention


@case()
def builtin_print():
    """The builtin print.
    Checker: not judged"""
    return print


@case(options={"causal": "causal", "mask": "mask", "scale": "softmax_scale"})
def takes_every_keyword_and_ignores_it():
    """Right without options; takes *args, **kwargs and ignores causal, the mask and the scale that are handed over.
    Checker: wrong"""
    def fn(*args, **kwargs):
        return sdpa(*args[:3])
    return fn


@case(options={"causal": "causal"})
def signature_lies():
    """Right, causal aligned top left; its __signature__ says that it takes one argument x and no keyword, and its
    __wrapped__ is itself, so that unwrapping goes round. Checker: right"""
    def fn(*args, **kwargs):
        q, k, v = args
        s = q @ k.mT / q.shape[-1] ** 0.5
        if kwargs.get("causal"):
            s = s + torch.full(s.shape[-2:], float("-inf"), dtype=s.dtype).triu(1)
        return s.softmax(-1) @ v
    fn.__signature__ = inspect.Signature([inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY)])
    fn.__wrapped__ = fn
    return fn


@case(formats=("float64", "float32"))
def backward_of_odd_things():
    """Forward right; the backward that goes with it returns a dictionary with right dq and dk, and None as dv, under
    keys "0", "1", "2". Checker: not judged"""
    def backward(do, q, k, v, **kw):
        leaves = [torch.as_tensor(x).detach().requires_grad_() for x in (q, k, v)]
        dq, dk, _ = torch.autograd.grad(sdpa(*leaves), leaves, torch.as_tensor(do))
        return {"0": dq, "1": dk, "2": None}
    return (lambda q, k, v: sdpa(q, k, v)), backward


@case(formats=("float64", "float32"))
def backward_wipes_do():
    """NumPy with its own backward, all right but that dv is computed after do has been set to zero in place: dv is
    zero and the caller's do too. Checker: wrong"""
    def weights(q, k):
        s = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
        e = np.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def backward(do, q, k, v):
        p = weights(q, k)
        dp = do @ np.swapaxes(v, -1, -2)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
        do[...] = 0
        return ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ do

    return (lambda q, k, v: weights(q, k) @ v), backward


# ---------------------------------------------------------------- layers


class SelfAttention(nn.Module):
    """A right layer, for the cases below to spoil."""

    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        return self.proj(sdpa(q, k, v).transpose(1, 2).reshape(b, n, c))


@case("layer")
def layer_that_trains_itself():
    """Right for the weights it has, but each forward multiplies its weights by 0.9 afterwards, in place, so the same
    input gives another output each time. Checker: wrong"""
    class Decaying(SelfAttention):
        def forward(self, x):
            out = super().forward(x.clone())
            for p in self.parameters():
                p.data = p.data * 0.9
            return out
    return Decaying()


@case("layer")
def layer_that_cannot_be_copied():
    """Right; copy, deepcopy, pickling, state_dict and repr raise, and parameters() gives each parameter twice.
    Checker: right"""
    class Unique(SelfAttention):
        def no(self, *args, **kwargs):
            raise TypeError("there is one of me")

        __deepcopy__ = __copy__ = __reduce_ex__ = state_dict = __repr__ = no

        def parameters(self, recurse=True):
            for p in super().parameters(recurse):
                yield p
                yield p
    return Unique()


@case("layer")
def layer_that_refuses_eval():
    """Right; train() and eval() raise SystemExit, and to(), double() and float() return None without doing anything.
    Checker: any report"""
    class Stuck(SelfAttention):
        def train(self, mode=True):
            raise SystemExit("not in this state")

        def to(self, *args, **kwargs):
            return None

        double = float = bfloat16 = to
    return Stuck()


@case("layer")
def layer_with_a_hook_that_swaps_the_output():
    """The forward method is right; a forward hook on the module replaces its output by the output for the input with
    the order of tokens reversed. Checker: wrong"""
    layer = SelfAttention()
    layer.register_forward_hook(lambda module, args, out: module.forward(args[0].flip(1)))
    return layer


@case("layer")
def layer_that_exits_in_train_mode():
    """Right after eval(); in training mode the forward ends the process by os._exit(1).
    Checker: any report"""
    class Touchy(SelfAttention):
        def forward(self, x):
            if self.training:
                os._exit(1)
            return super().forward(x)
    return Touchy()


@case("layer")
def layer_without_parameters():
    """Right attention of eight-wide tokens, with weights kept in a plain list out of sight of parameters(), and made
    anew from a fixed seed of the global generator in each forward. Checker: any report"""
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = []

        def forward(self, x):
            torch.manual_seed(3)
            self.hidden = [torch.randn(8, 8, dtype=x.dtype) / 3 for _ in range(4)]
            wq, wk, wv, wo = self.hidden
            return sdpa(x @ wq, x @ wk, x @ wv) @ wo
    return Hidden()
