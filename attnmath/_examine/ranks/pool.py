"""The ranks as processes of this program: begun once, asked over pipes, and begun again after one has failed."""

import contextlib
import faulthandler
import importlib
import linecache
import os
import pickle
import re
import shutil
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

from attnmath._examine.contract.functions import Broken, Fault
from attnmath._examine.contract.process import CRASHES, context_of_processes, folder, processor_time_of, silent
from attnmath._examine.contract.worker import Patience

MOST_HANGS, MOST_DEATHS = 2, 6  # then the ranks are not begun again
MOST_RAISED = 300  # calls, before one gave anything: the same
GRACE = 1.0  # seconds for the others, once one has failed
BEGIN = 60.0  # seconds for all to be there
WAITING = frozenset(  # functions of torch.distributed in which a rank waits for others
    "send recv isend irecv batch_isend_irecv barrier broadcast reduce all_reduce gather all_gather scatter"
    " reduce_scatter all_to_all all_to_all_single all_gather_into_tensor reduce_scatter_tensor wait".split())
Function = Callable[..., Any]


class One(NamedTuple):
    """The process of a rank, and the pipe to it."""

    process: Any
    pipe: connection.Connection


class Pool:
    """The ranks, each a process with functions that it calls, in a default group by gloo."""

    def __init__(self, functions: tuple[Function, Function | None], ranks: int, limit: float, device: Any = None):
        self.functions, self.ranks, self.limit, self.device = functions, ranks, limit, device
        self.there: list[One] = []
        self.hangs = self.deaths = self.raised = 0
        self.given_up: Fault | None = None
        self.folder = folder()
        self.end = weakref.finalize(self, _end, self.there, self.folder)

    def close(self) -> None:
        """Every process ends."""
        self.end()

    def ask(self, orders: Sequence[Any], limit: float | None = None) -> list[Any]:
        """What each rank replies to its order; Broken where one raises, dies or does not answer.

        With a limit of its own a call only asks whether something is taken: its failures are not counted.
        """
        if self.given_up is not None:
            raise Broken(self.given_up)
        if not self.there:
            self._begin()
        for order, one in zip(orders, self.there):
            with contextlib.suppress(OSError):  # it has died: it is seen when it is waited for
                one.pipe.send_bytes(pickle.dumps(order))
        found = self._gathered(self.limit if limit is None else limit)
        fault = self._fault(found, self.limit if limit is None else limit)
        if fault is None:
            self.raised = -MOST_RAISED**2
            return [found.replies[r] for r in range(self.ranks)]
        _stop(self.there)  # what was sent and not received would come in the next call
        if limit is None:
            self.hangs += fault.name == "hangs"
            self.deaths += fault.name == "died"
            self.raised += (MOST_RAISED // 8 if found.late else 1) * (fault.name == "raises")
            if self.hangs >= MOST_HANGS or self.deaths >= MOST_DEATHS or self.raised >= MOST_RAISED:
                self.given_up = fault
        raise Broken(fault)

    def _begin(self) -> None:
        """All processes, in a group."""
        imported()  # once, not by each rank
        context, place = context_of_processes(), os.path.join(self.folder, f"group_{time.monotonic_ns()}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are threads: theirs is not needed
            for rank in range(self.ranks):
                here, there = context.Pipe()
                given = there, rank, self.ranks, place, self.functions, self.device, os.getpid()
                process = context.Process(target=_rank, args=given, daemon=False)
                try:
                    process.start()
                except (pickle.PicklingError, AttributeError, TypeError) as error:
                    raise Broken(Fault("framework", f"ranks need functions that are found in a module: {error}")
                                 ) from None
                there.close()
                self.there.append(One(process, here))
        found = self._gathered(BEGIN)
        if fault := self._fault(found, BEGIN):
            _stop(self.there)
            self.given_up = Fault("framework", f"the ranks do not begin: {fault.sentence}")
            raise Broken(self.given_up)

    def _gathered(self, limit: float) -> "Gathered":
        """What has come of all ranks when each has answered, or when one has failed and the others had time."""
        found = Gathered({}, {}, {}, [])
        patience, failed = Patience(limit, self._used), False
        while waiting := [r for r in range(self.ranks) if not found.has(r)]:
            ends = {self.there[r].pipe: r for r in waiting} | {self.there[r].process.sentinel: r for r in waiting}
            for end in connection.wait(list(ends), min(max(patience.next_look(), 0.0), 0.5)):
                if not found.has(ends[end]):
                    self._take(ends[end], found)
            if (found.raised or found.dead) and not failed:
                failed, patience = True, Patience(GRACE, self._used)
            if patience.over():
                found.late.extend(r for r in waiting if not found.has(r))
                break
        return found

    def _take(self, rank: int, found: "Gathered") -> None:
        """What a rank has sent, or that it has died."""
        one = self.there[rank]
        try:
            if one.pipe.poll():
                kind, reply = pickle.loads(one.pipe.recv_bytes())
                (found.replies if kind == "done" else found.raised)[rank] = reply
                return
        except (EOFError, OSError, pickle.UnpicklingError):
            pass
        one.process.join(GRACE)
        found.dead[rank] = one.process.exitcode

    def _used(self) -> float:
        """The seconds of a processor of the rank that has used most."""
        return max(processor_time_of(one.process.pid) for one in self.there)

    def _fault(self, found: "Gathered", limit: float) -> Fault | None:
        """What went wrong, in a sentence; nothing where each rank has replied."""
        if found.dead:
            said = [f"rank {r} died ({how_it_ended(code)})" for r, code in found.dead.items()]
            return Fault("died", " and ".join(said))
        if found.raised:
            rank, first = next(iter(found.raised.items()))
            alike = {re.sub(r"\d+", "#", x) for x in found.raised.values()}
            if len(found.raised) == self.ranks and len(alike) == 1:
                return Fault("raises", first)
            waited = f"; {named(found.late)} waited for it" if found.late else ""
            return Fault("raises", f"rank {rank}: {first}{waited}")
        if found.late:
            where = {r: at for r in found.late if (at := self._where(r))}
            waiting = [r for r, (waits, _) in where.items() if waits]
            guilty = [r for r in found.late if r not in waiting] or found.late
            place = where.get(guilty[0], (False, ""))[1] if len(guilty) == 1 else ""
            late = f"{named(guilty)} did not answer within {limit:g} s" + (f" ({place})" if place else "")
            others_wait = [r for r in waiting if r not in guilty]
            return Fault("hangs", late + (f"; {named(others_wait)} waited for it" if others_wait else ""))
        return None

    def _where(self, rank: int) -> tuple[bool, str] | None:
        """Whether a rank waits for others, and the line in which it is."""
        path = Path(self.folder, f"trace_{self.there[rank].process.pid}")
        with contextlib.suppress(OSError, AttributeError):
            os.kill(self.there[rank].process.pid, signal.SIGUSR1)
            for _ in range(10):
                time.sleep(0.05)
                if (text := path.read_text(errors="replace")).strip():
                    return _place(text)
        return None


class Gathered(NamedTuple):
    """Of each rank what came, what it raised, with which code it died; those that are late."""

    replies: dict[int, Any]
    raised: dict[int, str]
    dead: dict[int, int | None]
    late: list[int]

    def has(self, rank: int) -> bool:
        """Whether anything is known of a rank."""
        return rank in self.replies or rank in self.raised or rank in self.dead or rank in self.late


def named(ranks: Sequence[int]) -> str:
    """Ranks in words."""
    words = [str(r) for r in ranks]
    return f"rank {words[0]}" if len(words) == 1 else f"ranks {', '.join(words[:-1])} and {words[-1]}"


def how_it_ended(code: int | None) -> str:
    """How a process ended, by its exit code."""
    if code is None or code >= 0:
        return "it sent no more" if code is None else f"exit code {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        return f"signal {-code}, {CRASHES.get(name, name)}"
    return f"signal {-code}"


def _place(trace: str) -> tuple[bool, str]:
    """Whether the innermost line of a trace waits for others, and that line."""
    frames = re.findall(r'File "(.*?)", line (\d+) in (\S+)', trace.partition("Current thread")[2] or trace)
    if not frames:
        return False, ""
    own = next((x for x in frames if f"{os.sep}torch{os.sep}" not in x[0]), frames[0])
    above = {name for _, _, name in frames[: frames.index(own)]}
    waits = not WAITING.isdisjoint(above) or ".wait(" in linecache.getline(own[0], int(own[1]))
    return waits, f"in line {own[1]} of {os.path.basename(own[0])}"


# ---- the end ------------------------------------------------------------------------------------


def _stop(there: list[One]) -> None:
    """All processes end; the list is empty afterwards."""
    for one in there:
        one.process.kill()
    for one in there:
        one.process.join(5.0)
        one.pipe.close()
        with contextlib.suppress(ValueError):  # it does not end even so
            one.process.close()
    there.clear()


def _end(there: list[One], folder: str) -> None:
    _stop(there)
    shutil.rmtree(folder, ignore_errors=True)


# ---- in the process -----------------------------------------------------------------------------


def _rank(
    pipe: connection.Connection, rank: int, ranks: int, place: str, functions: tuple[Function, Function | None],
    device: Any, parent: int,
) -> None:
    """Join the group, and answer one order after another; the process ends with the one that began it."""
    import torch

    from attnmath._examine.ranks.rank import Rank

    own = os.path.dirname(place)
    threading.Thread(target=_watch, args=(parent, own), daemon=True).start()
    imported()
    faulthandler.disable()  # how it ends is told in the report
    torch.set_num_threads(1)
    trace = open(os.path.join(own, f"trace_{os.getpid()}"), "w")  # noqa: SIM115
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, trace, all_threads=False)
    with silent():
        pipe.send_bytes(pickle.dumps(_joined(rank, ranks, place)))
        served = Rank(functions[0], functions[1], device)
        while True:
            try:
                order = pickle.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)
            pipe.send_bytes(pickle.dumps(served.answer(order)))


def imported() -> None:
    """What autograd imports in the first way back, which takes seconds, is there before the clock runs."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch.fx.experimental.symbolic_shapes")


def _joined(rank: int, ranks: int, place: str) -> tuple[str, Any]:
    """That the rank is in the group, or why not."""
    import torch.distributed as dist

    try:
        given: Mapping[str, Any] = dict(rank=rank, world_size=ranks, timeout=timedelta(minutes=30))
        dist.init_process_group("gloo", init_method=f"file://{place}", **given)
        return "done", None
    except Exception as error:
        return "raised", f"{type(error).__name__}: {error}"


def _watch(parent: int, folder: str) -> None:
    """The process ends when the one that began it is gone, which could not take its folder away."""
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
