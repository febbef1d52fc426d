"""Candidates: called in every way that they can be, watched, and believed in nothing."""

import functools
import math
import re
import sys
import threading
import time
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

import attnmath
from attnmath import examine
from attnmath._examine.contract import libraries
from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.functions import Broken, guess, libraries_in_order
from attnmath._examine.contract.layouts import AXIS_ORDERS, from_layout, to_layout
from attnmath._examine.contract.worker import Worker
from attnmath._examine.diagnosis.habits import broken_habits
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import Steps
from candidates import OPTIONS, T, backward, forward, hard_case, spread, stubborn, uniform_case, weights

TORCH = dict(mask="attn_mask", bias="attn_mask", causal="is_causal", scale="scale", groups="enable_gqa",
             dropout="dropout_p")
DTYPES = ("float64", "float32", "bfloat16", "float16")
RNG = np.random.default_rng(0)
SOME = RNG.random((2, 1, 5, 4)) < 0.5
SOME[..., 0] = True
BIAS = np.where(np.arange(4) == np.array([3, 0, 1, 2, 0])[:, None], 2.0**12, 0.0)


def math_kernel(*args, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa(*args, **options)


def same(outcome, means=None):
    """Whether the answer is right bit for bit, and nothing else was found."""
    assert (outcome.error, outcome.faults) == (None, ())
    want = Steps(outcome.case, means).answer()
    for name, x in want._asdict().items():
        got = getattr(outcome.answer, name)
        assert (got is None) == (x is None), name
        if x is not None:
            assert got.dtype == float and got.shape == x.shape, name
            np.testing.assert_array_equal(got, x, err_msg=name)


CASES = {
    "hard": hard_case(),
    "uniform": uniform_case(),
    "strided dO": uniform_case(traits=frozenset({"strided dO"})),
    "strided inputs": uniform_case(traits=frozenset({"strided inputs"})),
    "broadcast dO": replace(uniform_case(traits=frozenset({"broadcast dO"})), dO=np.ones((2, 3, 5, 16))),
    "mask": hard_case(keep=np.arange(7) != 3),
    "padding": hard_case(keep=np.arange(7) < np.array([3, 6])[:, None, None, None]),
    "bias": uniform_case(bias=BIAS),
    "bias of each head": uniform_case(bias=np.array([BIAS, np.roll(BIAS, 1, 1), BIAS])[None]),
    "bias and mask": uniform_case(bias=BIAS, keep=SOME | (BIAS > 0)),
    "causal": hard_case(causal=True),
    "scale": hard_case(scale=0.5),
    "groups": uniform_case(G=1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", [sdpa, math_kernel])
def test_pytorch(fn, dtype, name):
    means = Conventions(causal="upper_left")
    same(Candidate(fn, options=TORCH, dtype=dtype).run(CASES[name], means), means)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_numpy_pair(dtype, name):
    same(Candidate(forward, backward, options=OPTIONS, dtype=dtype).run(CASES[name]))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("layout", AXIS_ORDERS)
def test_layouts(layout, name):
    """The same problem in another order of axes, part by part where axes are missing."""
    case = CASES[name]
    if name == "groups" and "h" not in layout:
        return
    letters = [x for x in "bhsd" if x in layout]
    there, back = [letters.index(x) for x in layout], [layout.index(x) for x in letters]

    def fn(*args, **options):
        return forward(*(x.transpose(back) for x in args), **options).transpose(there).copy()

    def grads(*args, **options):
        dq, dk, dv, *dB = backward(*(x.transpose(back) for x in args), **options)
        return *(x.transpose(there).copy() for x in (dq, dk, dv)), *dB

    same(Candidate(fn, grads, options=OPTIONS, layout=layout).run(case))


@pytest.mark.parametrize("layout", AXIS_ORDERS)
def test_layouts_there_and_back(layout):
    x = RNG.standard_normal([3 if letter in layout else 1 for letter in "bhsd"])
    assert to_layout(x, layout).ndim == len(layout)
    np.testing.assert_array_equal(from_layout(to_layout(x, layout), layout), x)


@pytest.mark.parametrize("kind", ["keep", "drop", "add"])
def test_kinds_of_masks(kind):
    def fn(q, k, v, m):
        seen = {"keep": m, "drop": ~m if m.dtype == bool else m, "add": m == 0}[kind]
        assert (m.dtype == bool) == (kind != "add")
        return forward(q, k, v, mask=seen)

    candidate = Candidate(fn, options={"mask": "m"}, framework="numpy")
    for case in CASES["mask"], CASES["hard"]:  # the mask that fn cannot do without hides nothing
        outcome = candidate.run(case, Conventions(mask=kind))
        np.testing.assert_array_equal(outcome.answer.O, Steps(case).answer().O)


def test_options_that_cannot_be_left_out():
    def fn(q, k, v, mask, bias, scale, dropout_mask):
        return forward(q, k, v, mask=mask, bias=bias, scale=scale, dropout_mask=dropout_mask)

    def grads(do, q, k, v, mask, bias, scale, dropout_mask):
        grads = backward(do, q, k, v, mask=mask, bias=bias, scale=scale, dropout_mask=dropout_mask)
        return grads if bias.any() else grads[:3]

    words = "mask", "bias", "scale", "dropout_mask"
    candidate = Candidate(fn, grads, options=words)
    for name in ("hard", "uniform", "mask", "bias", "bias and mask", "scale"):
        same(candidate.run(CASES[name]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_by_rate(dtype):
    """What is drawn is read off, and is drawn again for the gradients; a seed repeats it."""
    candidate, case = Candidate(sdpa, options=TORCH, dtype=dtype), uniform_case(R=np.full((2, 3, 5, 4), 2.0))
    state = torch.random.get_rng_state()
    outcome = candidate.run(case, seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert 0 < (outcome.case.R == 0).mean() < 1 and set(np.unique(outcome.case.R)) == {0, 2}
    same(outcome)
    again, other = candidate.run(case, seed=3), candidate.run(case, seed=4)
    np.testing.assert_array_equal(again.answer.O, outcome.answer.O)
    assert (other.case.R != outcome.case.R).any()


def test_dropout_of_more_keys_than_a_value_has_entries():
    case = uniform_case(m=64, R=np.full((2, 3, 5, 64), 2.0))
    outcome = Candidate(sdpa, options=TORCH, dtype="float64").run(case)
    assert 0.4 < (outcome.case.R == 0).mean() < 0.6
    same(outcome)


def test_dropout_by_mask():
    R = np.where(RNG.random((2, 3, 5, 4)) < 0.5, 0.0, 2.0)
    same(Candidate(forward, backward, options=OPTIONS).run(uniform_case(R=R)))


def test_dropout_by_seed():
    """A candidate that is given the seed, and draws in NumPy."""

    def drawn(q, k, rate, seed):
        kept = np.random.default_rng(seed).random((*q.shape[:3], k.shape[2])) >= rate
        return dict(dropout_mask=kept / (1 - rate))

    candidate = Candidate(
        lambda q, k, v, rate=0.0, key=0: forward(q, k, v, **drawn(q, k, rate, key)),
        lambda do, q, k, v, rate=0.0, key=0: backward(do, q, k, v, **drawn(q, k, rate, key)),
        options={"dropout": "rate", "seed": "key"},
    )
    same(candidate.run(uniform_case(R=np.full((2, 3, 5, 4), 2.0)), seed=5))


def test_forward_only():
    outcome = Candidate(forward, options=OPTIONS).run(CASES["hard"])
    assert outcome.answer.dQ is outcome.answer.dK is outcome.answer.dV is None
    np.testing.assert_array_equal(outcome.answer.O, Steps(CASES["hard"]).O)


def test_always_causal():
    candidate = Candidate(functools.partial(forward, causal=True), options={"causal": True})
    outcome = candidate.run(CASES["hard"])
    assert outcome.case.causal
    np.testing.assert_array_equal(outcome.answer.O, Steps(outcome.case).O)


# ---- what it lacks, and what it is -------------------------------------------------------------


@pytest.mark.parametrize("name, word", [("mask", "mask"), ("causal", "causal"), ("groups", "groups")])
def test_lacking(name, word):
    outcome = Candidate(forward, backward).run(CASES[name])
    assert outcome.answer is None and outcome.error == ("options", f"it has no option for {word}")


class Module(torch.nn.Module):
    def forward(self, q, k, v):
        return sdpa(q, k, v)

    def method(self, q, k, v):
        return sdpa(q, k, v)


@pytest.mark.parametrize("fn", [sdpa, math_kernel, Module(), Module().method, functools.partial(sdpa, scale=1.0),
                                functools.partial(math_kernel)])
def test_guess_torch(fn):
    assert guess(fn)[0] == "torch"


def test_guess_closure():
    inner = sdpa
    assert guess(lambda q, k, v: inner(q, k, v))[:1] == ["torch"]
    assert guess(forward) == ["numpy"]
    assert guess(lambda q, k, v: q) == []
    assert "any" in guess(attnmath.attention)


def imports_jax_inside(q, k, v):
    import jax.numpy as jnp

    return jnp.matmul(q, v)


def test_jax_is_not_loaded_for_a_guess(monkeypatch):
    """Its threads would be started, and no process of its own could be a copy of this one any more."""
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    assert libraries_in_order(lambda q, k, v: q, None) == ["torch", "numpy"]
    assert libraries_in_order(forward, backward) == ["numpy", "torch"]
    assert "jax" in libraries_in_order(imports_jax_inside, None)
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    assert "jax" in libraries_in_order(lambda q, k, v: q, None)


@pytest.mark.parametrize("fn", [Module(), Module().method, attnmath.attention, math_kernel,
                                lambda q, k, v: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v])
def test_library_torch(fn):
    candidate = Candidate(fn)
    assert (candidate.library.name, candidate.dtype) == ("torch", "float32")


def test_library_numpy():
    candidate = Candidate(forward, backward)
    assert (candidate.library.name, candidate.dtype) == ("numpy", "float64")
    assert Candidate(forward).library.name == "numpy"


def test_library_that_is_not_installed(monkeypatch):
    def absent(*args):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setitem(libraries.LIBRARIES, "torch", absent)
    with pytest.raises(ImportError, match=r"torch is not installed: pip install 'attnmath\[torch\]'"):
        Candidate(sdpa, framework="torch")


WRONG = [
    (dict(fn=3), TypeError, "fn must be a function, not int"),
    (dict(backward=3), TypeError, "backward must be a function, not int"),
    (dict(layout="bsdh"), ValueError, "layout must be one of bhsd, .* not 'bsdh'"),
    (dict(dtype="int8"), ValueError, "dtype must be one of float64, .* not 'int8'"),
    (dict(dtype=torch.int32), ValueError, "dtype must be one of"),
    (dict(framework="tf"), ValueError, "framework must be one of torch, jax, numpy, not 'tf'"),
    (dict(options="mask"), TypeError, "a dictionary or a set of words, not 'mask'"),
    (dict(options={"masks": "m"}), ValueError, "'masks' is unknown; the words are mask, bias"),
    (dict(options={"mask": 3}), ValueError, "'mask' needs the name of a keyword, not 3"),
    (dict(options={"mask": None}), ValueError, "'mask' needs the name of a keyword, not None"),
    (dict(options={"groups": True}), ValueError, "'groups' needs the name of a keyword, not True"),
    (dict(time_limit=0), ValueError, "time_limit must be a number of seconds above 0, not 0"),
    (dict(time_limit=math.nan), ValueError, "time_limit must be"),
    (dict(time_limit="1"), ValueError, "time_limit must be"),
]


@pytest.mark.parametrize("given, error, text", WRONG)
def test_wrong_arguments(given, error, text):
    with pytest.raises(error, match=text):
        Candidate(**({"fn": sdpa} | given))


@pytest.mark.parametrize("dtype", ["float16", torch.float16, np.float16, np.dtype("float16")])
def test_dtypes(dtype):
    assert Candidate(sdpa, dtype=dtype).dtype == "float16"


# ---- the contract ------------------------------------------------------------------------------


def spoiled(fn=forward, grads=backward, **how):
    return Candidate(fn, grads, **how).run(uniform_case())


def changed(change):
    """The right gradients, changed."""
    return lambda *args, **options: change(*backward(*args, **options))


def scribble(do, q, k, v):
    grads = backward(do, q, k, v)
    do *= 2
    return grads


def in_place(q, k, v):
    k *= 2
    return forward(q, k / 2, v)


FATAL = {
    "raises": (lambda q, k, v: 1 / 0, backward, "ZeroDivisionError: division by zero"),
    "raises, backward": (forward, lambda *x: {}["k"], "KeyError: 'k'"),
    "raises, exit": (lambda q, k, v: exit(3), backward, "SystemExit: 3"),
    "type": (lambda q, k, v: None, backward, "the output is None, where an array of numpy is expected"),
    "type, number": (lambda q, k, v: 1.0, backward, "the output is float, where"),
    "wrong_number, tuple": (lambda q, k, v: (forward(q, k, v)[0], 1), backward, "the output is a tuple of 2, where"),
    "wrong_number, list": (lambda q, k, v: forward(q, k, v).tolist(), backward, "the output is a list of 2, where"),
    "shape": (lambda q, k, v: forward(q, k, v)[:, :2], backward,
              r"the output has the shape \(2, 2, 5, 16\), where \(2, 3, 5, 16\) is expected"),
    "integers": (lambda q, k, v: forward(q, k, v).astype(int), backward, "dtype int64, where q"),
    "wrong_number": (forward, changed(lambda *x: x[:2]), r"2 gradients are returned, where 3 are expected"),
    "wrong_number, four": (forward, changed(lambda *x: (*x, None)), r"4 gradients are returned"),
    "wrong_number, one": (forward, changed(lambda *x: x[0]), "the gradients are numpy.ndarray, where a tuple"),
    "wrong_number, none": (forward, lambda *x: None, "the gradients are None, where a tuple is expected"),
    "wrong_order": (forward, changed(lambda q, k, v: (k, q, v)), "in another order are those of q, k, v"),
}


@pytest.mark.parametrize("name", FATAL)
def test_nothing_to_judge(name):
    fn, grads, text = FATAL[name]
    outcome = spoiled(fn, grads, framework="numpy")
    assert outcome.answer is None and outcome.error.name == name.partition(",")[0]
    assert re.search(text, outcome.error.sentence), outcome.error.sentence


MILD = {
    "shape": (forward, changed(lambda q, k, v: (q, k[:, :1], v)), r"dK has the shape \(2, 1, 4, 16\)"),
    "detached": (forward, changed(lambda q, k, v: (q, None, v)), "dK is None: the output is cut off from k"),
    "type": (forward, changed(lambda q, k, v: (q, k, v.tolist())), "dV is a list of 2, where an array"),
    "integers": (forward, changed(lambda q, k, v: (q.astype(int), k, v)), "dQ has the dtype int64"),
    "dtype": (lambda *x: forward(*x).astype("float32"), backward, "the output has the dtype float32, where q"),
    "list": (forward, changed(lambda *x: list(x)), "the gradients come in a list"),
    "inputs_modified": (in_place, backward, "it changes its inputs: k"),
    "inputs_modified, do": (forward, scribble, "it changes its inputs: do"),
    "memory_shared": (forward, lambda do, q, k, v: (q, *backward(do, q, k, v)[1:]), "dQ and q"),
    "memory_shared, do": (forward, changed(lambda q, k, v: (q, k, k)), "dV and dK"),
    "not finite": (lambda q, k, v: forward(q, k, v) / 0, backward, "O not finite: O has 480 of 480 entries"),
    "not finite, dK": (forward, changed(lambda q, k, v: (q, k + np.nan, v)), "dK not finite"),
}


@pytest.mark.parametrize("name", MILD)
def test_faults_beside_the_answer(name):
    fn, grads, text = MILD[name]
    outcome = spoiled(fn, grads, framework="numpy")
    assert outcome.answer is not None and outcome.error is None
    assert name.partition(",")[0] in [fault.name for fault in outcome.faults]
    assert any(re.search(text, fault.sentence) for fault in outcome.faults), outcome.faults


def test_what_could_not_be_read_is_none():
    outcome = spoiled(forward, changed(lambda q, k, v: (q, None, v)))
    assert outcome.answer.dK is None and outcome.answer.dV is not None


def test_the_bias_of_each_batch():
    def grads(*args, bias):
        *three, dB = backward(*args, bias=np.broadcast_to(bias, (2, 3, 5, 4)))
        return *three, dB

    outcome = Candidate(forward, grads, options=["bias"]).run(uniform_case(bias=BIAS))
    assert [fault.name for fault in outcome.faults] == ["bias_not_reduced"]
    assert "dB has the shape (2, 3, 5, 4), where (1, 1, 5, 4) is expected" in outcome.faults[0].sentence


def test_poison_may_be_told():
    """NaN is no fault where a row is empty or hidden numbers are."""
    case = uniform_case(traits=frozenset({"empty row"}))
    outcome = Candidate(lambda *x: forward(*x) / 0, backward).run(case)
    assert outcome.faults == () and not np.isfinite(outcome.answer.O).any()


def test_reused_output():
    buffer = {}

    def fn(q, k, v):
        O = buffer.setdefault(q.shape, np.empty((*q.shape[:-1], v.shape[-1])))
        O[...] = forward(q, k, v)
        return O

    candidate = Candidate(fn, backward)
    assert candidate.run(uniform_case()).faults == ()
    outcome = candidate.run(uniform_case(seed=1))
    assert [fault.name for fault in outcome.faults] == ["output_reused"]
    same(replace_faults(outcome))


def replace_faults(outcome):
    return replace(outcome, faults=())


def test_packed_gradients_are_separate():
    """Views of one buffer that have no entry in common share nothing."""

    def grads(*args):
        whole = np.stack(backward(*args), -1)
        return tuple(whole[..., i] for i in range(3))

    square = Case(*(uniform_case(n=4).Q + 1,) * 4)
    outcome = Candidate(forward, grads).run(square)
    assert (outcome.error, outcome.faults) == (None, ())


def test_torch_detached():
    outcome = Candidate(lambda *x: sdpa(*x).detach()).run(CASES["hard"])
    assert outcome.error.name == "detached" and "autograd sees no way to q, k, v" in outcome.error.sentence
    outcome = Candidate(lambda q, k, v: sdpa(q, k.detach(), v)).run(CASES["hard"])
    assert [fault.sentence for fault in outcome.faults] == ["dK is None: the output is cut off from k"]


def test_torch_in_place():
    outcome = Candidate(lambda q, k, v: sdpa(q.mul_(2), k, v)).run(CASES["hard"])
    assert outcome.error.name == "inputs_modified" and "in-place operation" in outcome.error.sentence


def test_module_that_needs_a_mask():
    class Masked(torch.nn.Module):
        def forward(self, q, k, v, mask):
            return sdpa(q, k, v, attn_mask=mask)

    candidate = Candidate(Masked(), options=["mask"])
    same(candidate.run(CASES["hard"]))
    same(candidate.run(CASES["mask"]))


class Accumulating(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.q = q
        return sdpa(q, k, v)

    @staticmethod
    def backward(ctx, do):
        ctx.q.grad = torch.ones_like(ctx.q)
        return None, None, None


def test_writes_into_grad():
    outcome = Candidate(Accumulating.apply, framework="torch").run(CASES["hard"])
    assert "accumulates_into_grad" in [fault.name for fault in outcome.faults]


# ---- time --------------------------------------------------------------------------------------


CALLS: list[int] = []


def forever(q, k, v):
    CALLS.append(1)
    while True:
        time.sleep(0.01)


def test_hangs_and_is_stopped():
    candidate = Candidate(forever, backward, time_limit=0.2)
    outcome = candidate.run(CASES["hard"])
    assert outcome.error.name == "hangs" and "0.2 s (it could be stopped)" in outcome.error.sentence
    calls = len(CALLS)
    assert candidate.run(CASES["hard"]).error == outcome.error and len(CALLS) == calls  # not called again


def test_hangs_and_cannot_be_stopped():
    never = threading.Event()
    worker = Worker()
    with pytest.raises(Broken) as caught:
        worker.call(stubborn(never), 0.1)
    assert "it could not be stopped and still runs" in caught.value.fault.sentence
    assert worker.call(lambda: 3, 5.0) == 3  # in another thread
    never.set()


def test_an_error_of_ours_is_not_its_fault():
    with pytest.raises(IndexError):
        Worker().call(lambda: [][0], 1.0)


# ---- called again ------------------------------------------------------------------------------


def names(candidate, means=None):
    return [fault.name for fault in broken_habits(candidate, means or Conventions())]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", [sdpa, math_kernel])
def test_right_candidates_have_good_habits(fn, dtype):
    assert names(Candidate(fn, options=TORCH, dtype=dtype)) == []


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_the_numpy_pair_has_good_habits(dtype):
    assert names(Candidate(forward, backward, options=OPTIONS, dtype=dtype)) == []


class Remembering:
    """Gradients with what was kept of calls before."""

    def __init__(self):
        self.left, self.calls, self.first = {}, 0, {}

    def noisy(self, *args):
        self.calls += 1
        dq, dk, dv = backward(*args)
        return dq * np.random.default_rng(self.calls).random(), dk, dv

    def rounding(self, *args):
        self.calls += 1
        dq, dk, dv = backward(*args)
        return dq * (1 + 2.0**-52 * (self.calls % 3)), dk, dv

    def adding(self, *args):
        dq, dk, dv = backward(*args)
        self.left[dq.shape] = self.left.get(dq.shape, 0) + dq
        return self.left[dq.shape].copy(), dk, dv

    def one_late(self, do, q, k, v):
        before, self.left["v"] = self.left.get("v"), v.copy()
        same_as_before = before is not None and before.shape == v.shape
        old = v if not same_as_before or (before == v).all() else before
        dq, dk, dv = backward(do, q, k, v)
        return dq if old is v else dq * 1.5, dk, dv

    def stale(self, do, q, k, v):
        k, v = self.first.setdefault((q.shape, k.shape, v.shape), (k.copy(), v.copy()))
        return backward(do, q, k, v)


HABITS = {
    "nondeterministic": Remembering().noisy,
    "unordered_sums": Remembering().rounding,
    "accumulates_into_grad": Remembering().adding,
    "state": Remembering().one_late,
    "stale_kv": Remembering().stale,
    "dO_ignored": lambda do, *args: backward(np.ones_like(do), *args),
    "not_linear": changed(lambda q, k, v: (np.clip(q, -0.1, 0.1), k, v)),
    "not_linear, zero": changed(lambda q, k, v: (q + 1, k, v)),
    "wrong_order": changed(lambda q, k, v: (k, q, v) if q.shape == k.shape else (q, k, v)),
    "kv_swapped": changed(lambda q, k, v: (q, v, k) if k.shape == v.shape else (q, k, v)),
}


@pytest.mark.parametrize("name", HABITS)
def test_habits(name):
    assert names(Candidate(forward, HABITS[name])) == [name.partition(",")[0]]


class OneMissing(torch.autograd.Function):
    """A gradient that is right only where all are asked for."""

    @staticmethod
    def forward(ctx, which, q, k, v):
        ctx.which = which
        ctx.save_for_backward(q, k, v)
        return sdpa(q, k, v)

    @staticmethod
    def backward(ctx, do):
        grads = [torch.from_numpy(x) for x in backward(*(x.detach().numpy() for x in (do, *ctx.saved_tensors)))]
        if not all(ctx.needs_input_grad[1:]):
            grads[ctx.which] = None if ctx.which == 1 else 2 * grads[ctx.which]
        return None, *grads


@pytest.mark.parametrize("which", range(3))
def test_one_argument_alone(which):
    candidate = Candidate(functools.partial(OneMissing.apply, which), framework="torch", dtype="float64")
    (fault,) = broken_habits(candidate, Conventions())
    assert fault.name == "requires_grad" and f"where {'qkv'[which]} alone requires a gradient" in fault.sentence


def test_the_bias_alone():
    """It has no gradient where the keys need none."""

    def fn(q, k, v, bias=None):
        return sdpa(q, k, v, attn_mask=bias if bias is None or k.requires_grad else bias.detach())

    (fault,) = broken_habits(Candidate(fn, options=["bias"]), Conventions())
    assert fault.name == "requires_grad" and "where the bias alone requires a gradient" in fault.sentence


def test_weights_are_what_the_pair_says():
    """The pair that is spoiled here is right: the formulas of the package give the same."""
    q, k, v, do = (RNG.standard_normal((2, 3, n, 8)) for n in (5, 7, 7, 5))
    np.testing.assert_allclose(forward(q, k, v), attnmath.attention(q, k, v), rtol=1e-13, atol=1e-14)
    for x, y in zip(backward(do, q, k, v), attnmath.attention_vjp(do, q, k, v)):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-13)
    assert weights(q, spread(k, q))[0].shape == (2, 3, 5, 7) and T(q).shape == (2, 3, 8, 5)


def grouped(q, k, v):
    return sdpa(q, *(x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v)))


@pytest.mark.parametrize("how, error", [
    ({"options": 5}, "options must be a dictionary or a set of words, not 5"),
    ({"conventions": "lower_right"}, "conventions is 'lower_right'; it needs a mapping"),
    ({"without": ["dX"]}, "without has 'dX'; it can have dQ, dK, dV, dB and keywords of fn"),
    ({"sizes": {"H": 3, "G": 2}}, "H=3 and G=2; H needs to be a multiple of G"),
    ({"scale": "1/sqrt(d)"}, r"scale is '1/sqrt\(d\)'; it needs one of .* or a number"),
    ({"layout": "thd"}, "layout is 'thd'; it needs one of 'bhsd'"),
])
def test_what_it_is_told_is_checked(how, error):
    with pytest.raises((TypeError, ValueError), match=error):
        examine(grouped, **how)


def test_groups_that_need_no_keyword():
    assert Candidate(grouped, options=["groups"]).options == {"groups": None}
    assert Candidate(lambda q, k, v, groups: grouped(q, k, v), options=["groups"]).options == {"groups": "groups"}
    assert Candidate(lambda q, k, v, **more: grouped(q, k, v), options=["groups"]).options == {"groups": "groups"}


def test_a_size_that_is_stated_is_kept_to():
    sizes = set()

    def scaled(q, k, v):
        sizes.add(q.shape[-1])
        return torch.softmax(q @ k.mT * 8**-0.5, -1) @ v

    report = examine(scaled, sizes={"d_k": 8}, seed=0, progress=False)
    assert report.right and sizes == {8} and "hazard" not in str(report), report
