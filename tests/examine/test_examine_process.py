"""What a candidate does to the process that examines it: it is given back, and said; nothing is printed."""

import ctypes
import gc
import locale
import math
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnmath import examine, examine_layer
from attnmath._examine.contract import process
from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.worker import Pace, Patience, Worker
from attnmath._examine.problems.families import cases
from candidates import backward, forward, stubborn

torch.use_deterministic_algorithms(False)  # imports what sets the environment


def printing():
    print("computing", flush=True)
    print("still computing", file=sys.stderr)
    warnings.warn("slow", stacklevel=1)


def replaced(module, name, by=lambda *x, **y: 0):
    return lambda: setattr(module, name, by)


CHANGES = {
    "the working directory": lambda: os.chdir("/"),
    "os.environ": lambda: os.environ.update(EXAMINED="1"),
    "the recursion limit": lambda: sys.setrecursionlimit(12345),
    "the locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8" if locale.setlocale(locale.LC_ALL) == "C" else "C"),
    "NumPy's error state": lambda: np.seterr(all="raise"),
    "the filters of warnings": lambda: warnings.simplefilter("error", ResourceWarning),
    "torch's default dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch's grad mode": lambda: torch.set_grad_enabled(False),
    "torch's number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch's deterministic flag": lambda: torch.use_deterministic_algorithms(True),
    "sys.stdout": lambda: setattr(sys, "stdout", None),
    "numpy.exp": replaced(np, "exp"),
    "numpy.linalg.norm": replaced(np.linalg, "norm"),
    "torch.softmax": replaced(torch, "softmax"),
    "torch.nn.functional.softmax": replaced(torch.nn.functional, "softmax"),
    "torch.Tensor.exp": replaced(torch.Tensor, "exp"),
    "builtins.print": replaced(sys.modules["builtins"], "print"),
}


def state():
    """Everything that a change could have changed."""
    return (
        os.getcwd(), dict(os.environ), sys.getrecursionlimit(), locale.setlocale(locale.LC_ALL), np.geterr(),
        list(warnings.filters), torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(), sys.stdout, sys.stderr, np.exp, np.linalg.norm, torch.softmax,
        torch.nn.functional.softmax, torch.Tensor.exp, print, random.getstate(), str(np.random.get_state()),
        torch.random.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("name", CHANGES)
def test_what_it_changes_is_given_back_and_said(name):
    def attention(q, k, v):
        CHANGES[name]()
        o = sdpa(q, k, v)
        return o if o.requires_grad or not q.requires_grad else o + 0 * (q.sum() + k.sum() + v.sum())

    before = state()
    with np.errstate(all="warn"):
        report = examine(attention, dtype="float64", seed=0, smallest=False)
    assert state() == before
    assert report.right or name == "torch's grad mode", report
    if report.right:
        (hazard,) = (x for x in report.hazards if x.name == "global_state")
        assert name in hazard.title


def test_random_numbers_are_where_they_were():
    def attention(q, k, v):
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        return sdpa(q, k, v)

    before = state()
    report = examine(attention, seed=0, smallest=False)
    assert state() == before and report.right


def test_nothing_is_printed(capfd):
    def attention(q, k, v):
        printing()
        return sdpa(q, k, v)

    report = examine(attention, seed=0)
    assert capfd.readouterr() == ("", "")
    (hazard,) = report.hazards
    assert hazard.name == "prints" and report.right


def test_who_does_nothing_of_this_has_no_hazard():
    assert examine(sdpa, seed=0).hazards == examine(forward, backward, seed=0).hazards == ()


# ---- exceptions ---------------------------------------------------------------------------------


class Own(BaseException):
    def __str__(self):
        raise KeyboardInterrupt


class Lazy:
    """Raises whatever is asked of it."""

    def __init__(self, error):
        object.__setattr__(self, "error", error)

    def __getattribute__(self, name):
        raise object.__getattribute__(self, "error")


ERRORS = BaseException("base"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Own(), StopIteration(), MemoryError()


@pytest.mark.parametrize("error", ERRORS, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("where", ["forward", "output", "backward", "gradient"])
def test_whatever_is_raised_is_told(error, where):
    def raising(*args):
        raise error

    def lazy(*args):
        return Lazy(error)

    fn = {"forward": raising, "output": lazy}.get(where, forward)
    back = {"backward": raising, "gradient": lambda *x: (Lazy(error),) * 3}.get(where, backward)
    report = examine(fn, back, framework="numpy", seed=0)
    assert not report.right and "examination itself" not in str(report)


class Thorny:
    """Right; what is asked of it beside its numbers raises, and it is false."""

    def __init__(self, fn, error):
        self.fn, self.error = fn, error

    def __call__(self, *args):
        return self.fn(*args)

    def __getattr__(self, name):
        raise self.__dict__["error"]

    def __repr__(self):
        raise self.error

    def __bool__(self):
        return False

    __eq__ = __hash__ = None


@pytest.mark.parametrize("error", ERRORS, ids=lambda x: type(x).__name__)
def test_what_is_asked_of_the_function_itself_may_raise(error):
    assert examine(Thorny(sdpa, error), seed=0).right
    assert examine(Thorny(forward, error), Thorny(backward, error), framework="numpy", seed=0).right
    wrong = examine(Thorny(lambda q, k, v: torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -2) @ v, error), seed=0)
    assert wrong.wrong and " and should be " in wrong.smallest


# ---- chance -------------------------------------------------------------------------------------


@pytest.mark.parametrize("one_in", [3, 10, 40])
@pytest.mark.parametrize("least", [1, 6, 17])
def test_chance_is_found_before_a_mistake_is_named(one_in, least):
    """Some calls are wrong as by a mistake with a name, whatever the problem; or those with many queries."""
    rng = np.random.default_rng(0)

    def attention(q, k, v):
        wrong = q.shape[2] >= least and rng.integers(one_in) == 0
        return torch.softmax(q @ k.mT * (1.0 if wrong else q.shape[-1] ** -0.5), -1) @ v

    report = examine(attention, dtype="float64", seed=0, smallest=False)
    names = [x.name for x in report.findings if x.kind in ("contract", "mistake")]
    assert names == ["nondeterministic"] if report.wrong or one_in == 3 else names == [], report


# ---- threads and time ---------------------------------------------------------------------------


def examined_threads():
    return [x for x in threading.enumerate() if x.name == "examined"]


def test_its_thread_ends_with_the_examination():
    examine(sdpa, dtype="bfloat16", seed=0)
    examine(lambda q, k, v: 2 * sdpa(q, k, v), dtype="bfloat16", seed=0)
    assert examined_threads() == []


def test_the_thread_of_a_slow_one_ends_without_a_collection_of_garbage():
    gc.disable()
    try:
        candidate = Candidate(busy(forward, 2e-3), backward, framework="numpy")
        for case in cases((), "float64", 1)[:2]:
            candidate.run(case, forward=True)
        assert candidate.worker.pace.once
        del candidate
        time.sleep(0.3)
        assert examined_threads() == []
    finally:
        gc.enable()


def test_a_thread_that_hangs_ends_when_its_call_comes_back():
    never = threading.Event()
    before = state()
    with torch.no_grad():
        assert examine(stubborn(never), backward, framework="numpy", time_limit=0.2, seed=0).status == 2
        assert not torch.is_grad_enabled()
    assert len(examined_threads()) == 1 and state() == before
    never.set()
    time.sleep(0.3)
    assert examined_threads() == [] and state() == before


def test_a_worker_that_nobody_holds_ends():
    worker = Worker()
    worker.call(lambda: 1, 5.0)
    thread = worker.thread
    del worker
    thread.join(1.0)
    assert not thread.is_alive()


def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("share", "ends"), [(1.0, 1), (0.25, 4), (0.06, 10), (0.01, 1), (0.0, 1)])
def test_a_call_that_shares_the_processor_has_longer(share, ends, monkeypatch):
    """With a quarter of a processor it may take four times as long; ten times at most; waiting is no work."""
    now = clock(monkeypatch)
    patience = Patience(30.0, lambda: share * now[0])
    while True:
        now[0] += patience.next_look() + 1e-3
        if patience.over():
            break
    assert now[0] == pytest.approx(30 * ends, rel=0.3)


def test_a_call_that_stops_computing_is_one_that_hangs(monkeypatch):
    now = clock(monkeypatch)
    patience = Patience(30.0, lambda: min(now[0], 20.0))
    now[0] = 31.0
    assert not patience.over()  # it computed until now, as far as is known
    now[0] = 39.0
    assert patience.over()


def test_the_candidate_shares_its_worker_with_itself_in_another_format():
    candidate = Candidate(sdpa, dtype="bfloat16")
    assert candidate.again("float32").worker is candidate.worker
    assert candidate.with_options(mask="attn_mask").kept is candidate.kept


# ---- a process of its own -----------------------------------------------------------------------


def eating(q, k, v):
    kept = []
    while True:
        kept.append(bytes(2**26))  # zeros that nobody touches cost no time, on any machine


def holding_the_interpreter(q, k, v):
    return sum(range(10**12))


def crashing(q, k, v):
    ctypes.string_at(0)


def deep(q, k, v):
    sys.setrecursionlimit(10**9)

    def further(x):
        return further(x) + 1

    return further(0)


def with_a_child(q, k, v):
    subprocess.Popen(["sleep", "77"])
    os._exit(5)


ENDS = {
    "exit": (lambda q, k, v: os._exit(7), "ended itself with the exit status 7"),
    "signal": (crashing, r"signal 11 \(segmentation fault\)"),
    "abort": (lambda q, k, v: os.abort(), r"signal 6 \(aborted\)"),
    "loop": (holding_the_interpreter, "no sign of life for 2 s"),
    "recursion": (deep, "signal|RecursionError|MemoryError|no sign of life|did not come back"),
    "memory": (eating, "MemoryError"),
    "child": (with_a_child, "exit status 5"),
    "stopped": (lambda q, k, v: os.kill(os.getpid(), signal.SIGSTOP), "no sign of life"),
}


@pytest.mark.parametrize("when", ["at first", "in a problem"])
@pytest.mark.parametrize("name", ENDS)
def test_what_ends_the_process_is_told(name, when, monkeypatch):
    monkeypatch.setattr(process, "LEAST", 1.0)
    monkeypatch.setattr(process, "MEMORY", 2**28)
    fn, said = ENDS[name]

    def later(q, k, v):
        return fn(q, k, v) if q.shape[-1] == 64 else forward(q, k, v)

    before = state()
    report = examine(fn if when == "at first" else later, backward, framework="numpy", seed=0, isolate=True, time_limit=1.0)
    assert state() == before
    text = " ".join(str(report).split())
    assert re.search(said, text) and not (when == "at first" and report.right), text
    if "process" in text:
        assert report.verdict == "not judged"
        assert when == "at first" or re.search("in problem [0-9]+ of", text)
    for wait in (0.0, 0.1, 1.0):  # who ends may be seen a moment longer
        time.sleep(wait)
        left = subprocess.run(["pgrep", "-x", "-f", "sleep 77"], capture_output=True).stdout
        if not left:
            break
    assert left == b""


def test_the_report_is_the_same_in_a_process_of_its_own():
    for fn, back in ((sdpa, None), (forward, backward), (lambda q, k, v: 2 * sdpa(q, k, v), None)):
        one, two = (replace(examine(fn, back, seed=0, isolate=x), seconds=0.0) for x in (False, True))
        assert one == two


def test_errors_of_the_call_are_those_of_the_call():
    with pytest.raises(ValueError, match="'masks' is unknown"):
        examine(sdpa, options=["masks"], isolate=True)
    with pytest.raises(ValueError, match="device is 'cuda:77'"):
        examine(sdpa, framework="torch", device="cuda:77", isolate=True)


def test_what_is_done_is_said(capfd):
    said = []
    assert examine(sdpa, seed=0, isolate=True, progress=said.append).right
    assert any("problem 3 of" in x for x in said) and capfd.readouterr() == ("", "")


def test_a_layer_too():
    assert examine_layer(torch.nn.MultiheadAttention(12, 3), seed=0, isolate=True).right

    class Crashing(torch.nn.MultiheadAttention):
        def forward(self, *x, **y):
            os._exit(3)

    report = examine_layer(Crashing(12, 3), seed=0, isolate=True)
    assert report.status == 2 and "exit status 3" in report.sentence


def test_without_a_copy_functions_are_sent_by_their_names(monkeypatch):
    monkeypatch.setattr(process, "context_of_processes", lambda: multiprocessing.get_context("spawn"))
    assert examine(sdpa, seed=0, isolate=True, smallest=False).right
    with pytest.raises(ValueError, match="needs functions that are found in a module"):
        examine(lambda q, k, v: sdpa(q, k, v), seed=0, isolate=True)


def test_an_interrupt_ends_the_process_too(monkeypatch):
    def interrupted(doing):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine(sdpa, seed=0, isolate=True, progress=interrupted)
    assert multiprocessing.active_children() == []


# ---- slow, and not hanging -----------------------------------------------------------------------


def busy(fn, seconds=4e-6, forever=math.inf):
    """The same, a processor busy for so long for each score; for ever where there are so many scores."""

    def slow(*args):
        q, k = args[-3:-1]
        scores = q[..., 0].size * k.shape[-2]
        end = time.thread_time() + (math.inf if scores > forever else seconds * scores)
        while time.thread_time() < end:
            pass
        return fn(*args)

    return slow


@pytest.mark.parametrize("isolate", [False, True])
def test_what_is_slow_is_not_wrong(isolate):
    report = examine(busy(forward), busy(backward), framework="numpy", seed=0, time_limit=1.0, isolate=isolate)
    assert report.right and "of the problems not tried: too slow for" in " ".join(str(report).split())
    assert sum(not p.judged for p in report.problems) < 6


def test_what_is_slow_and_wrong_is_wrong():
    def unlike(do, q, k, v):
        dq, dk, dv = backward(do, q, k, v)
        return dq, dk / 2, dv

    report = examine(busy(forward), busy(unlike), framework="numpy", seed=0, time_limit=1.0, smallest=False)
    assert report.wrong and "dK" in report.sentence and "did not come back" not in str(report)


def test_what_is_quick_and_hangs_in_long_sequences_is_found():
    for seconds, longest in ((0.0, 200_000), (2e-7, 200_000), (0.0, 100_000)):
        report = examine(busy(forward, seconds, longest), backward, framework="numpy", seed=0, time_limit=1.0)
        assert not report.right and "a call did not come back within 1 s" in report.sentence
        assert report.wrong or longest == 100_000  # which is met before there are problems


def test_what_a_call_begins_with_says_nothing_about_long_ones():
    pace, again = Pace(), lambda seconds: seconds  # a call is the seconds that it takes when it is made again
    for scores in (100, 1000, 20_000):  # as where each shape is compiled
        pace.note(False, scores, 0.5, 0.5)
    assert pace.expected(False, 10**7, again) == 0
    pace.note(True, 40_000, 2.0, 2.0)
    assert pace.expected(True, 80_000, again) == pace.expected(False, 80_000, again) == 0  # nothing smaller is known
    pace.note(True, 10_000, 0.5, 0.5)
    assert pace.expected(True, 80_000, again) == pace.expected(False, 80_000, again) == 4.0


def test_a_pause_of_the_machine_says_nothing_about_long_ones():
    pace, again = Pace(), lambda seconds: seconds
    for scores in (100, 1000):
        pace.note(False, scores, 0.001, None)
    pace.note(False, 4000, 0.7, 0.001)
    assert pace.expected(False, 10**6, again) == 0
    pace.note(False, 5000, 0.7, 0.6)
    assert pace.expected(False, 10**6, again) == 0.6 * 200
