"""Calling a function that is not trusted: in a thread of its own, and for a limited time."""

import ctypes
import os
import queue
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Fault(NamedTuple):
    """Something that a candidate did and must not do: its name, and a sentence to print."""

    name: str
    sentence: str


class Broken(Exception):
    """A call that has no result; its one argument is the fault."""

    @property
    def fault(self) -> Fault:
        return self.args[0]


class Stop(BaseException):
    """Raised inside a call that takes too long."""


class Worker:
    """A daemon thread that calls one function after another.

    One thread for all calls: the libraries keep their own threads and settings by thread.
    """

    def __init__(self) -> None:
        self.waiting: queue.Queue = queue.Queue()
        self.done: queue.Queue = queue.Queue()
        self.thread: threading.Thread | None = None

    def _serve(self) -> None:
        while True:
            try:
                call = self.waiting.get()
                try:
                    with np.errstate(all="ignore"):
                        self.done.put((True, call()))
                except BaseException as error:  # whatever the function raises, it is its fault
                    self.done.put((False, error))
            except Stop:  # it came too late, when the call had ended
                continue

    def call(self, function: Callable[[], Any], seconds: float) -> Any:
        """What the function returns; Broken where it does not come back in time."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._serve, name="candidate", daemon=True)
            self.thread.start()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.waiting.put(function)
            try:
                good, result = self.done.get(timeout=seconds)
            except queue.Empty:
                raise Broken(self._hanging(seconds)) from None
        if good:
            return result
        raise result

    def _hanging(self, seconds: float) -> Fault:
        """The thread is asked to stop, and left alone where it does not."""
        thread = ctypes.c_ulong(self.thread.ident)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(Stop))
        try:
            self.done.get(timeout=1.0)
            end = "it could be stopped"
        except queue.Empty:
            end = "it could not be stopped and still runs"
        self.__init__()
        return Fault("hangs", f"a call did not come back within {seconds:g} s ({end})")


def message(error: BaseException, length: int = 200) -> str:
    """An exception in one short line."""
    try:
        lines = str(error).encode("utf-8", "replace").decode().strip().splitlines()
    except Exception:  # its own __str__ raises
        lines = []
    text = f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
    return text if len(text) <= length else text[: length - 3] + "..."


def failure(error: BaseException) -> str:
    """That the examination itself failed, and where: no word on what is examined."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "_examine" in f.filename]
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"the examination itself failed: {message(error)}{place}"
