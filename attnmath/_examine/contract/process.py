"""An examination in a process of its own: what ends it, or never ends, ends that process alone.

work is sent to the process: by a copy of this process (fork) where that is safe, otherwise (Windows,
macOS, after the first use of CUDA or JAX) by pickle, so that functions need to be in a module.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from attnmath._examine.contract.worker import Patience
from attnmath._examine.report.report import Finding, Report

MEMORY = 4 * 2**30  # bytes above those that the process begins with
WHOLE = 40.0  # times the limit of one call: the limit of the whole
LEAST = 10.0  # seconds without a sign of life; importing a library may hold the interpreter for some
BEAT = 0.5  # seconds from one sign of life to the next
CRASHES = {"SIGSEGV": "segmentation fault", "SIGABRT": "aborted", "SIGBUS": "bus error", "SIGKILL": "killed",
           "SIGFPE": "arithmetic error", "SIGILL": "illegal instruction", "SIGTERM": "terminated"}
_own: str | None = None  # the folder of a process apart, which ends with it
Result = TypeVar("Result")
Say = Callable[[str], None]


class Ended(Exception):
    """The process ended, or was ended, before it had a result; the message says how, and at what it worked."""


def apart(work: Callable[[Say], Result], time_limit: float, say: Say) -> Result:
    """The result of work(say), computed in a process of its own; what it raises is raised here.

    Raises Ended where the process has ended without a result, where it gives no sign of life for
    twice the time limit, or works longer than WHOLE time limits. It can have MEMORY bytes more than
    it begins with. With it end every process that it began, and what they wrote in its folder.
    """
    context, own = context_of_processes(), folder()
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(there, work, own), daemon=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are threads: theirs is not needed
        try:
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            os.rmdir(own)
            raise ValueError(f"isolate=True needs functions that are found in a module here: {error}") from error
    there.close()
    try:
        return _awaited(process, here, time_limit, say)
    finally:
        _end(process)
        here.close()
        shutil.rmtree(own, ignore_errors=True)


def judged_apart(work: Callable[[Say], Report], name: str, time_limit: float, say: Say) -> Report:
    """The report that work(say) makes, in a process of its own; where that ends before, a report that says so."""
    try:
        return apart(work, time_limit, say)
    except Ended as ended:
        return Report("not judged", name, findings=(Finding("contract", "ended", str(ended)),))


def folder() -> str:
    """A new folder for files; that of a process apart is taken away with it, however it ends."""
    return tempfile.mkdtemp(prefix="attnmath_", dir=_own)


def context_of_processes() -> Any:
    """fork, where no library's threads are lost by it; else spawn."""
    torch = sys.modules.get("torch")
    used = torch is not None and torch.cuda.is_initialized()
    safe = sys.platform.startswith("linux") and "jax" not in sys.modules and not used
    return multiprocessing.get_context("fork" if safe else "spawn")


def _awaited(process: Any, here: Connection, time_limit: float, say: Say) -> Any:
    """What the process sends in the end; what it says meanwhile is said on."""
    doing, used = "its beginning", partial(processor_time_of, process.pid)
    began, silent = time.monotonic(), Patience(max(2 * time_limit, LEAST), used)
    while True:
        if here.poll(BEAT):
            try:
                kind, what = pickle.loads(here.recv_bytes())
            except (EOFError, OSError, pickle.UnpicklingError):
                process.join(5.0)
                raise Ended(f"{_how(process.exitcode)} in {doing}") from None
            if kind == "result":
                return what
            if kind == "raised":
                raise what
            if kind == "says":
                doing = what or doing
                say(what)
            silent = Patience(silent.seconds, used)
        elif silent.over():
            raise Ended(f"the process gave no sign of life for {silent.seconds:g} s, and was ended, in {doing}")
        if time.monotonic() - began > WHOLE * max(time_limit, 1.0):
            raise Ended(f"the process was ended after {WHOLE * max(time_limit, 1.0):g} s in {doing}")


def _how(code: int | None) -> str:
    """How a process ended, by its exit code."""
    if code is None:
        return "the process sent no more, and was ended,"
    if code >= 0:
        return f"the process ended itself with the exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = ""
    return f"the process ended with signal {-code}" + (f" ({CRASHES.get(name, name)})" if name else "")


def processor_time_of(pid: int) -> float:
    """The seconds of a processor that a process has used, where they can be known."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _end(process: Any) -> None:
    """The process ends, and with it all that it began."""
    with contextlib.suppress(ProcessLookupError, PermissionError, AttributeError):
        os.killpg(process.pid, signal.SIGKILL)  # its group has its number; it may be over, others of it not
    process.kill()
    process.join(5.0)
    with contextlib.suppress(ValueError):  # it does not end even so
        process.close()


# ---- in the process -----------------------------------------------------------------------------


def _child(there: Connection, work: Callable[[Say], Any], own: str) -> None:
    """Send what the work says, returns or raises; the process ends here whatever else it has begun."""
    global _own
    _own, lock = own, threading.Lock()

    def send(kind: str, what: Any) -> None:
        data = pickle.dumps((kind, what))
        with lock, contextlib.suppress(OSError):
            there.send_bytes(data)

    _settle()
    threading.Thread(target=_beat, args=(send,), daemon=True).start()
    try:
        with silent():
            result = work(partial(send, "says"))
        send("result", result)
    except BaseException as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        send("raised", error)
    os._exit(0)


def _beat(send: Callable[[str, Any], None]) -> None:
    while True:
        time.sleep(BEAT)
        send("lives", None)


def _settle() -> None:
    """A group of processes of its own; one thread for each library, as theirs are not copied; its limits."""
    faulthandler.disable()  # how it ends is told in the report
    with contextlib.suppress(AttributeError, OSError):
        os.setpgid(0, 0)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[5]) * resource.getpagesize()
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = now + MEMORY if most == resource.RLIM_INFINITY else min(now + MEMORY, most)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    except (ImportError, OSError, ValueError):
        pass


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """What is written goes nowhere, that of libraries in C as well."""
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, open to the end of the process
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        for fd in (1, 2):
            with contextlib.suppress(OSError):
                os.dup2(nowhere.fileno(), fd)
        yield
