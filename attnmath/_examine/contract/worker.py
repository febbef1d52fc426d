"""Somebody's function is called in a thread of its own, and for a limited time."""

import ctypes
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from attnmath._examine.contract.functions import Broken, Fault, Stop


class Patience:
    """How long a call may take: so many seconds by the clock where it waits, of a processor where it computes.

    Ten times as long by the clock in any case; other programs may share the processors.
    """

    def __init__(self, seconds: float, used: Callable[[], float]) -> None:
        self.seconds, self.used = seconds, used
        self.began, self.start = time.monotonic(), used()
        self.before = self.began, self.start

    def next_look(self) -> float:
        """In how many seconds it is worth asking again."""
        waited = time.monotonic() - self.began
        return max(self.seconds - waited, min(1.0, self.seconds / 4))

    def over(self) -> bool:
        """Whether it took too long."""
        now, used = time.monotonic(), self.used()
        then, before = self.before
        self.before = now, used
        computes = used - before > 0.05 * (now - then) and used - self.start < self.seconds
        return now - self.began > self.seconds * (10 if computes else 1)


def processor_time(thread: threading.Thread) -> Callable[[], float]:
    """The seconds of a processor that a thread has used, where they can be known."""
    try:
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        return lambda: time.clock_gettime(clock) if thread.is_alive() else 0.0
    except (AttributeError, OSError):
        return lambda: 0.0


class Pace:
    """How long calls take that compute many scores, to know beforehand of more scores that they take too long.

    Only where the time grows with the scores: what a library needs to begin with, it needs once for each shape.
    And only from a call that takes long when it is made again: a machine may pause in any.
    """

    LEAST, MORE = 0.1, 4  # seconds of a processor that say something; how many times as many scores are more

    def __init__(self) -> None:
        self.seen: dict[bool, dict[int, float]] = {True: {}, False: {}}  # forward alone, or not: seconds of scores
        self.once: dict[tuple[bool, int], Any] = {}  # what calls were given that took long, and were made once

    def note(self, forward: bool, scores: int, seconds: float, given: Any) -> None:
        """That a call took so long with what it was given, which may not hold the worker, lest that never ends."""
        seen = self.seen[forward]
        if seconds >= self.LEAST and scores not in seen:
            self.once[forward, scores] = given
        seen[scores] = min(seconds, seen.get(scores, seconds))

    def expected(self, forward: bool, scores: int, again: Callable[[Any], float]) -> float:
        """The seconds that so many scores will take at least; 0 where it is not known.

        again: makes a call again with what it was given, and returns its seconds.
        """
        return max(self._expected(x, scores, again) for x in {forward, True})

    def _expected(self, forward: bool, scores: int, again: Callable[[Any], float]) -> float:
        seen = self.seen[forward]
        most = max((s for s in seen if s <= scores and seen[s] >= self.LEAST), default=0)
        fewer = [seconds for s, seconds in seen.items() if s * self.MORE <= most]
        if not fewer or seen[most] <= self.MORE / 2 * max(fewer):
            return 0.0
        if given := self.once.pop((forward, most), None):
            self.note(forward, most, again(given), given)
            return self._expected(forward, scores, again)
        return seen[most] * scores / most


class Worker:
    """A daemon thread that calls one function after another, and ends when nobody holds the worker any more.

    One thread for all calls: the libraries keep their own threads and settings by thread.
    """

    def __init__(self) -> None:
        self.hung: Fault | None = None  # the last call that did not come back
        self.spent, self.pace = 0.0, Pace()  # the seconds of a processor of the last call
        self._begin()

    def _begin(self) -> None:
        """A new thread, with queues of its own: one that hangs keeps the old ones, and ends after its call."""
        self.waiting: queue.Queue = queue.Queue()
        self.done: queue.Queue = queue.Queue()
        served = self.waiting, self.done
        self.thread = threading.Thread(target=_serve, args=served, name="examined", daemon=True)
        self.end = weakref.finalize(self, self.waiting.put, None)

    def call(self, function: Callable[[], Any], seconds: float) -> Any:
        """What the function returns; Broken where it does not come back in time."""
        if not self.end.alive:
            self._begin()
        if self.thread.ident is None:
            self.thread.start()
        patience = Patience(seconds, processor_time(self.thread))
        self.waiting.put(function)
        while True:
            try:
                good, result = self.done.get(timeout=patience.next_look())
                self.spent = patience.used() - patience.start
                break
            except queue.Empty:
                if patience.over():
                    said = f"a call did not come back within {seconds:g} s ({self._stopped()})"
                    self.hung = Fault("hangs", said)
                    raise Broken(self.hung) from None
        if good:
            return result
        raise result

    def close(self) -> None:
        """The thread ends; it is waited for, but for one that hangs."""
        self.end()
        if self.hung is None and self.thread.is_alive():
            self.thread.join(1.0)

    def _stopped(self) -> str:
        """The thread is asked to stop, and left alone where it does not."""
        thread = ctypes.c_ulong(self.thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(Stop))
        try:
            self.done.get(timeout=1.0)
            return "it could be stopped"
        except queue.Empty:
            return "it could not be stopped and still runs"
        finally:
            self.end()


def _serve(waiting: queue.Queue, done: queue.Queue) -> None:
    """Call what waits, and put whether it came to its end, and its result or its error; None ends it."""
    while True:
        try:
            call = waiting.get()
            if call is None:
                return
            try:
                with np.errstate(all="ignore"):
                    done.put((True, call()))
            except BaseException as error:  # whatever the function raises, it is its fault
                done.put((False, error))
            del call
        except Stop:  # it came too late, when the call had ended
            continue
