"""What a candidate does to the process that examines it: it is given back, and said; nothing is printed."""

import locale
import os
import random
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnmath import examine
from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.worker import Patience, Worker
from candidates import backward, forward

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


# ---- threads and time ---------------------------------------------------------------------------


def examined_threads():
    return [x for x in threading.enumerate() if x.name == "examined"]


def test_its_thread_ends_with_the_examination():
    examine(sdpa, dtype="bfloat16", seed=0)
    examine(lambda q, k, v: 2 * sdpa(q, k, v), dtype="bfloat16", seed=0)
    time.sleep(0.1)
    assert examined_threads() == []


def test_a_thread_that_hangs_ends_when_its_call_comes_back():
    never = threading.Event()

    def stubborn(*args):
        while not never.is_set():
            try:
                never.wait(0.05)
            except BaseException:
                continue

    assert examine(stubborn, backward, framework="numpy", time_limit=0.2, seed=0).status == 2
    assert len(examined_threads()) == 1
    never.set()
    time.sleep(0.3)
    assert examined_threads() == []


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
