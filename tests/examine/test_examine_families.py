"""The problems of examine: exact ones are exact for right programs, and the others as they say."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnmath._examine.problems.case import Answer, Conventions
from attnmath._examine.problems.exact_problems import HARD, UNIFORM, _without_rounding, exact_answer, exact_cases
from attnmath._examine.problems.families import FAMILIES, SETTINGS, cases
from attnmath._examine.problems.steps import Steps, T, grouped, plain_softmax, sum_to
from attnmath.rounding.formats import nearest
from random_problems import random_case

torch.set_num_threads(1)
FORMATS = ("float64", "float32", "bfloat16", "float16")
OPTIONS = {"mask", "bias", "causal", "scale", "groups", "dropout"}
LOWER, UPPER = (Conventions(causal=align) for align in ("lower_right", "upper_left"))


# ---- right programs, as people write them -------------------------------------------------------


def by_torch(case, dtype, attend):
    """What PyTorch's function and its autograd return, as float64."""
    Q, K, V, dO = (torch.tensor(x).to(getattr(torch, dtype)) for x in (case.Q, case.K, case.V, case.dO))
    leaves = [Q, K, V] + ([] if case.bias is None else [torch.tensor(case.bias).to(Q.dtype)])
    leaves = [x.requires_grad_() for x in leaves]
    seen = torch.tensor(case.seen(UPPER))
    mask = leaves[3] if case.bias is not None else None if case.keep is None else seen
    if case.bias is not None and not seen.all():
        mask = torch.where(seen, leaves[3], -torch.inf)
    O = attend(*leaves[:3], mask, case)
    return Answer(*(x.detach().double().numpy() for x in (O, *torch.autograd.grad(O, leaves, dO))))


def sdpa(backend):
    def attend(Q, K, V, mask, case):
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                Q, K, V, attn_mask=mask, is_causal=case.causal and mask is None, scale=case.scale, enable_gqa=Q.shape[1] != K.shape[1]
            )

    return attend


def eager(Q, K, V, mask, case):
    """Written out, every array in the candidate's format."""
    K, V = (x.repeat_interleave(Q.shape[1] // K.shape[1], 1) for x in (K, V))
    A = Q @ K.mT * (case.scale if case.scale is not None else Q.shape[-1] ** -0.5)
    if case.bias is not None:
        A = A + mask
    P = torch.softmax(A.masked_fill(~torch.tensor(case.seen(UPPER)), -torch.inf), -1)
    return (P if case.R is None else P * torch.tensor(case.R).to(P.dtype)) @ V


def by_numpy(case, dtype):
    """A pair of functions in NumPy; the way back finds the weights again from L."""
    Q, K, V, dO = (x.astype(dtype) for x in (case.Q, case.K, case.V, case.dO))
    K, V = (np.repeat(x, Q.shape[1] // K.shape[1], 1) for x in (K, V))
    gamma = Q.dtype.type(case.gamma(UPPER))
    R = Q.dtype.type(1) if case.R is None else case.R.astype(dtype)
    A = gamma * (Q @ T(K)) + case.B(UPPER).astype(dtype)
    top = A.max(-1, keepdims=True)
    total = np.exp(A - top).sum(-1, keepdims=True)
    O = np.exp(A - top) / total * R @ V
    P = np.exp(A - (top + np.log(total)))
    dA = P * (dO @ T(V) * R - (dO * O).sum(-1, keepdims=True))
    owner, G = case.owner(UPPER), case.K.shape[1]
    dB = None if case.bias is None else sum_to(dA, case.bias)
    return Answer(O, gamma * dA @ K, grouped(gamma * T(dA) @ Q, owner, G), grouped(T(P * R) @ dO, owner, G), dB)


PROGRAMS = {
    "math": lambda case, dtype: by_torch(case, dtype, sdpa(SDPBackend.MATH)),
    "default": lambda case, dtype: by_torch(case, dtype, sdpa([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])),
    "eager": lambda case, dtype: by_torch(case, dtype, eager),
    "numpy": by_numpy,
}


def unequal(got, want):
    return {k for k, x in want._asdict().items() if x is not None and not np.array_equal(getattr(got, k), x)}


# ---- exact problems --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_right_programs_solve_exact_problems_bit_for_bit(program, dtype):
    if program == "numpy" and dtype in ("bfloat16", "float16"):
        dtype = "float64"
    options = OPTIONS - {"dropout"} if program in ("math", "default") else OPTIONS
    for case in exact_cases(options, dtype, 11):
        want = exact_answer(case, UPPER, dtype) or _without_rounding(case, UPPER, dtype)  # these keep no L in a short format
        assert unequal(PROGRAMS[program](case, dtype), want) == set(), case.name


def test_exact_problems_are_what_they_say():
    given = {case.name: case for case in exact_cases(OPTIONS, "float32", 5)}
    assert list(given) == [s.name for s in (*HARD, *UNIFORM)]
    for case in given.values():
        s = Steps(case)
        gradients = [s.dQ, s.dK] + [s.dB] * (case.bias is not None)
        if "hard" in case.traits:
            assert ((s.P == 0) | (s.P == 1)).all() and not any(x.any() for x in gradients)
            assert s.dV.any() and abs(s.A.max(-1)).max() == 0
        else:
            assert "uniform" in case.traits and np.isin(s.P[s.P > 0], (1 / 4, 1 / 16)).all()
            assert [x.any() for x in gradients[:2]] in ([True, False], [False, True]), case.name
    assert any(Steps(c).dQ.any() for c in given.values()) and any(Steps(c).dK.any() for c in given.values())
    rows = given["hard, bias"]
    lifted = Steps(rows).P.argmax(-1) == rows.bias.argmax(-1)
    assert lifted.all() and not (Steps(replace(rows, bias=None)).P.argmax(-1) == rows.bias.argmax(-1)).all()


MISTAKES = {
    "D missing": {"dA": lambda s, dA: s.P_back * s.dP},
    "a hundredth": {letter: lambda s, x: 1.01 * x for letter in ("dQ", "dK", "dV")},
    "scale missing": {letter: lambda s, x: x / s.gamma for letter in ("dQ", "dkeys")},
    "mask forgotten": {"seen": lambda s, seen: seen | True},
    "other heads": {"owner_back": lambda s, owner: np.arange(len(owner)) % s.K.shape[1]},
    "last row": {"O": lambda s, O: O * (np.arange(O.shape[2]) < O.shape[2] - 1)[:, None]},
}


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_change_bits_in_every_format(mistake, dtype):
    given = [(case, _without_rounding(case, LOWER, dtype)) for case in exact_cases(OPTIONS, dtype, 3)]
    wrong = [Steps(case, LOWER, (MISTAKES[mistake],)).answer() for case, _ in given]
    rounded = [Answer(*(None if x is None else nearest(x, dtype) for x in got)) for got in wrong]
    found = {case.name for (case, want), got in zip(given, rounded) if unequal(got, want)}
    assert found
    if mistake == "other heads":
        assert all("groups" in name for name in found)


def test_the_alignment_changes_exact_answers():
    given = [c for c in exact_cases({"causal"}, "float32", 0) if c.causal]
    assert {c.name: bool(unequal(exact_answer(c, LOWER, "float32"), exact_answer(c, UPPER, "float32"))) for c in given} == {
        "hard, causal": False, "hard, causal, n < m": True, "uniform, causal, one query": True}


def test_what_may_be_rounded_is_not_called_exact():
    hard, uniform = exact_cases(set(), "float32", 0)[0], exact_cases(set(), "float32", 0)[-1]
    assert exact_answer(hard, LOWER, "float32") and exact_answer(uniform, LOWER, "float32")
    assert exact_answer(replace(hard, scale=0.5), LOWER, "float32"), "one key counts, and the scores are exact"
    assert not exact_answer(replace(hard, scale=0.3), LOWER, "float32"), "its scores are rounded"
    assert not exact_answer(replace(hard, scale=2.0**-10), LOWER, "float64"), "scores too near"
    assert not exact_answer(replace(hard, scale=2.0**-8), LOWER, "float32"), "too near"
    assert not exact_answer(replace(uniform, scale=0.3), LOWER, "float32")
    assert not exact_answer(replace(uniform, scale=0.5), LOWER, "float32"), "its root is no whole power"
    assert not exact_answer(replace(uniform, V=uniform.V / 3), LOWER, "float32")
    assert not exact_answer(replace(uniform, V=uniform.V * 2.0**20 + 1), LOWER, "float32"), "sums too long"
    assert not exact_answer(hard, Conventions(inside="float32"), "float64")
    short = exact_cases(set(), "float16", 0)[-1]
    assert _without_rounding(short, LOWER, "float16") and not exact_answer(short, LOWER, "float16"), "log(4) is rounded"
    keep = np.ones((5, 5), bool)
    keep[2] = False
    assert not exact_answer(replace(hard, keep=keep), LOWER, "float32"), "an empty row"


# ---- families -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FORMATS)
def test_numbers_are_those_of_the_format_and_new_for_each_seed(dtype):
    one, same, other = (cases(OPTIONS, dtype, seed) for seed in (1, 1, 2))
    assert [c.name for c in one] == [s.name for s in SETTINGS]
    for a, b, c in zip(one, same, other):
        assert np.array_equal(a.Q, b.Q) and not np.array_equal(a.Q, c.Q)
        for x in (a.Q, a.K, a.V, a.dO, a.bias, a.R):
            assert x is None or np.array_equal(nearest(x, dtype), x)
        assert all(np.isfinite(x).all() for x in Steps(a).answer() if x is not None)


def test_candidates_are_given_only_what_they_take():
    for take in (cases, exact_cases):
        for options in (set(), {"mask"}, {"groups", "causal"}, OPTIONS):
            for case in take(options, "float32", 0):
                s = case.sizes
                used = dict(mask=case.keep is not None, bias=case.bias is not None, causal=case.causal,
                            scale=case.scale is not None, dropout=case.R is not None, groups=s["G"] < s["H"])
                assert {word for word, yes in used.items() if yes} <= options
                assert {word for word, yes in used.items() if yes} <= case.traits
    assert len(cases(set(), "float32", 0)) >= 15


def test_every_trait_occurs_and_holds():
    given = cases(OPTIONS, "float64", 0)
    traits = set().union(*(c.traits for c in given))
    assert traits == OPTIONS | set(FAMILIES) | {
        "batch", "n != m", "d_v != d_k", "odd length", "odd width", "more than 64 keys", "empty row", "poison", "strided dO", "strided inputs",
        "contiguous rows", "broadcast dO"}
    for case in given:
        s, seen = case.sizes, case.seen(LOWER)
        assert ("empty row" in case.traits) == (not seen.any(-1).all()), case.name
        assert ("poison" in case.traits) == (abs(case.K).max() > 1e20)
        if "poison" in case.traits:
            assert not seen.any((1, 2))[(case.K == case.K.max()).any((1, 3))].any()
        if "broadcast dO" in case.traits:
            assert (case.dO == case.dO[:, :, :1]).all() and s["n"] > 1
        if "groups" in case.traits:
            assert s["H"] in (2 * s["G"], 3 * s["G"], 4 * s["G"], 8 * s["G"])
            assert s["G"] > 1 or "one head of keys" in case.name
        assert s["n"] != s["H"]
    assert {(s["n"] < s["m"]) - (s["n"] > s["m"]) for s in (c.sizes for c in given)} == {-1, 0, 1}
    assert {s["H"] // s["G"] for s in (c.sizes for c in given)} == {1, 2, 3, 4, 8}
    assert {s["d_k"] for s in (c.sizes for c in given)} >= {8, 16, 32, 64, 80, 96, 128, 192, 256}
    assert any(s["d_v"] > s["d_k"] for s in (c.sizes for c in given))
    with_dropout = set().union(*(c.traits for c in given if c.R is not None))
    assert OPTIONS <= with_dropout and any("dropout" in c.traits and c.sizes["n"] == c.sizes["m"] for c in given)
    for word, name in (("mask", "keep"), ("bias", "bias")):  # a transposed one is seen
        square = [getattr(c, name) for c in given if word in c.traits and c.sizes["n"] == c.sizes["m"]]
        assert any((x != x.swapaxes(-1, -2)).any() for x in square)
    shapes = {tuple(k > 1 for k in c.bias.shape) for c in given if c.bias is not None}
    assert len(shapes) == 5 and any(np.isneginf(c.bias).any() for c in given if c.bias is not None)
    assert {c.scale for c in given} == {None, 0.3, -0.3}


@pytest.mark.parametrize("dtype", FORMATS)
def test_families_are_what_they_say(dtype):
    first = {}
    for case in cases(OPTIONS, dtype, 7):
        first.setdefault(case.name.split(",")[0], Steps(case))
    assert set(first) == set(FAMILIES)
    s = first["large negative scores"]
    L = np.log(np.exp(s.A - s.A.max(-1, keepdims=True)).sum(-1)) + s.A.max(-1)
    assert L.max() < (-800 if dtype == "float64" else -100)
    assert np.median(first["peaked"].P.max(-1)) > np.median(first["gaussian"].P.max(-1))
    assert abs(first["tiny"].A).max() < 0.2 and abs(first["tiny"].dQ).max() < 3e-3
    tops = first["ties"].A == first["ties"].A.max(-1, keepdims=True)
    assert np.median(tops.sum(-1)) >= 2
    assert all(x.min() >= 0 for x in (first["positive"].Q, first["positive"].V, first["positive"].dO))
    K = first["outliers"].K
    assert abs(K).max((0, 1, 2)).max() > 4 * np.median(abs(K).max((0, 1, 2)))
    K = first["offset"].K
    assert abs(K.mean((0, 1, 2))).max() > 2 * abs(first["gaussian"].K.mean((0, 1, 2))).max()


@pytest.mark.parametrize("dtype", FORMATS)
def test_random_problems(dtype):
    rng = np.random.default_rng(0)
    given = [random_case(OPTIONS, dtype, rng, 12) for _ in range(300)]
    assert set().union(*(c.traits for c in given)) >= OPTIONS | set(FAMILIES) | {"empty row", "poison"}
    for case in given:
        assert all(np.isfinite(x).all() for x in Steps(case).answer() if x is not None)
        assert np.array_equal(nearest(case.K, dtype), case.K)
        assert not (case.causal and case.scale is not None and case.scale <= 0)
    assert not set().union(*(random_case({"mask"}, dtype, rng).traits for _ in range(20))) & (OPTIONS - {"mask"})


def test_softmax_of_the_steps_is_the_one_of_the_problems():
    """An empty row has no weights; the others sum to one."""
    case = next(c for c in cases(OPTIONS, "float64", 0) if "empty row" in c.traits)
    P = plain_softmax(Steps(case).A)
    assert set(np.round(P.sum(-1).ravel(), 12)) == {0.0, 1.0}
