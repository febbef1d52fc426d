"""What a call may change beside its numbers: given back after each call, and said."""

import gc
import io
import locale
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

NAMESPACES = {  # whose functions nobody may replace
    "numpy": ("numpy", "numpy.linalg", "numpy.random", "math", "time", "builtins"),
    "torch": ("torch", "torch.nn.functional", "torch.linalg", "torch.autograd", "torch.Tensor"),
}


class Setting(NamedTuple):
    """A setting of the process or of the thread: its name, how it is read and how it is set."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    of_thread: bool = False


def _environ(wanted: Mapping[str, str]) -> None:
    """The environment as it was."""
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)


def _filters(wanted: list) -> None:
    warnings.filters[:] = wanted  # type: ignore[index]  # a list, by its documentation to be changed so
    with suppress(AttributeError):
        warnings._filters_mutated_lock_held() if sys.version_info >= (3, 14) else warnings._filters_mutated()  # type: ignore[attr-defined]


def _timer(runs: bool) -> None:
    if not runs:
        signal.setitimer(signal.ITIMER_REAL, 0)


SETTINGS = [
    Setting("the working directory", os.getcwd, os.chdir),
    Setting("os.environ", lambda: dict(os.environ), _environ),
    Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    Setting("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda x: locale.setlocale(locale.LC_ALL, x)),
    Setting("the garbage collector", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    Setting("NumPy's error state", np.geterr, lambda x: np.seterr(**x), True),
    Setting("NumPy's print options", np.get_printoptions, lambda x: np.set_printoptions(**x), True),
    Setting("the filters of warnings", lambda: list(warnings.filters), _filters),
]
if hasattr(signal, "setitimer"):
    SETTINGS.append(Setting("a timer", lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0, _timer))


def _of_torch(torch: Any) -> list[Setting]:
    """The settings of PyTorch."""
    def deterministic(x: tuple[bool, bool]) -> None:
        torch.use_deterministic_algorithms(x[0], warn_only=x[1])

    flags = torch.are_deterministic_algorithms_enabled, torch.is_deterministic_algorithms_warn_only_enabled
    return [
        Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
        Setting("torch's default device", torch.get_default_device, torch.set_default_device),
        Setting("torch's grad mode", torch.is_grad_enabled, torch.set_grad_enabled, True),
        Setting("torch's number of threads", torch.get_num_threads, torch.set_num_threads, True),
        Setting("torch's deterministic flag", lambda: tuple(f() for f in flags), deterministic),
        Setting("torch's precision of products", torch.get_float32_matmul_precision,
                torch.set_float32_matmul_precision),
        Setting("torch's anomaly mode", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    ]


def _read(setting: Setting) -> Any:
    try:
        return setting.read()
    except Exception:  # a folder that is gone, say
        return None


class Functions:
    """The functions of a module or a class, as they were."""

    def __init__(self, name: str) -> None:
        self.name, (module, _, last) = name, name.rpartition(".")
        home = sys.modules[name] if name in sys.modules else getattr(sys.modules[module], last)
        self.home, self.kept = home, dict(vars(home))

    def given_back(self) -> list[str]:
        """The names of those that were replaced, which are again what they were."""
        now = vars(self.home)
        with suppress(Exception):  # what is compared may refuse to be
            if now == self.kept:
                return []
        other = [k for k, x in self.kept.items() if callable(x) and now.get(k) is not x]
        for name in other:
            setattr(self.home, name, self.kept[name])
        parents = self.home.__mro__[1:] if isinstance(self.home, type) else ()
        hiding = [k for k in now.keys() - self.kept.keys() if any(k in vars(x) for x in parents)]
        for name in hiding:
            delattr(self.home, name)
        self.kept = dict(vars(self.home))
        return [f"{self.name}.{name}" for name in other + hiding]


class Sink(io.TextIOBase):
    """Takes what is printed, and counts its lines."""

    lines = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.lines += str(text).count("\n")
        return len(text)


class Kept:
    """The state of the process while somebody's functions are called, and what they did to it."""

    def __init__(self) -> None:
        self.changed: dict[str, None] = {}  # what was changed, in words
        self.lines = 0  # that were printed
        self.functions: dict[str, list[Functions]] = {}
        self.undo: Callable[[], None] = lambda: None  # of the last call

    def around(self, call: Callable[[], Any]) -> Any:
        """What the call returns; what it printed is counted, what it changed is as before."""
        self._keep_functions()
        self.undo = undo = self._undo()
        try:
            return call()
        finally:
            undo()

    def _undo(self) -> Callable[[], None]:
        """From now on what is printed is swallowed; what is returned, once called, gives all back.

        Another thread calls it for a call that hangs: what is set for each thread is then left alone.
        """
        torch, thread = sys.modules.get("torch"), threading.get_ident()
        settings = SETTINGS + (_of_torch(torch) if torch is not None else [])
        before, imported = [_read(x) for x in settings], len(sys.modules)
        streams, sink, calls = (sys.stdout, sys.stderr), Sink(), [1]
        sys.stdout = sys.stderr = sink

        def undo() -> None:
            if not calls:
                return
            calls.clear()
            if not (sys.stdout is sink is sys.stderr):
                self.changed["sys.stdout"] = None
            sys.stdout, sys.stderr = streams
            self.lines += sink.lines
            more, own = len(sys.modules) > imported, threading.get_ident() == thread
            for setting, x in zip(settings, before):
                by_import = more and setting.name in ("os.environ", "the filters of warnings")  # a library's own
                if x is not None and not by_import and (own or not setting.of_thread) and _read(setting) != x:
                    self.changed[setting.name] = None
                    setting.write(x)
            self._give_functions_back(more)

        return undo

    def _keep_functions(self) -> None:
        for root, names in NAMESPACES.items():
            if root in sys.modules and root not in self.functions:
                self.functions[root] = [Functions(name) for name in names]

    def _give_functions_back(self, imported: bool) -> None:
        """Those of PyTorch are taken anew where modules were imported: some of its own replace functions."""
        if imported:
            self.functions.pop("torch", None)
        found = [x for some in self.functions.values() for one in some for x in one.given_back()]
        self.changed |= dict.fromkeys(found)

    @property
    def sentences(self) -> list[tuple[str, str]]:
        """What was done beside the numbers: a name and a sentence each."""
        found = []
        if self.changed:
            names = list(self.changed)
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            found.append(("global_state", f"it changes {', '.join(names[:4])}{more}, for the whole program"))
        if self.lines:
            found.append(("prints", f"it prints: {self.lines} line{'s' * (self.lines > 1)} in this examination"))
        return found


@contextmanager
def given_back() -> Iterator[None]:
    """Random numbers and the handlers of signals are afterwards what they were; nothing warns meanwhile."""
    torch = sys.modules.get("torch")
    at, more = random.getstate(), np.random.get_state()
    seeds = torch.random.get_rng_state() if torch is not None else None
    main = threading.current_thread() is threading.main_thread()
    handlers = {x: signal.getsignal(x) for x in signal.valid_signals()} if main else {}
    try:
        with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
            yield
    finally:
        random.setstate(at)
        np.random.set_state(more)
        if torch is not None:
            torch.random.set_rng_state(seeds)
        for x, handler in handlers.items():
            if handler is not None and signal.getsignal(x) is not handler:
                signal.signal(x, handler)
