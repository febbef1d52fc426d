"""Bounds and the judge of examine: right programs lie inside, mistakes outside, in every format."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_examine_families import OPTIONS, PROGRAMS, UPPER

from attnmath import rounding
from attnmath._examine.problems.bounds import CONSTANT, bounds, judge_answer, right_and_bounds, right_answer
from attnmath._examine.problems.case import Answer, Case, Draft
from attnmath._examine.problems.families import cases
from attnmath._examine.problems.steps import Steps, T
from attnmath.rounding.formats import nearest

torch.set_num_threads(1)
FORMATS = ("float64", "float32", "bfloat16", "float16")
SHORT = ("bfloat16", "float16")
ZERO = replace(UPPER, empty="zero")


def case_of(name="gaussian", seed=0, dtype="float32", **setting):
    """One problem: b, H, G, n, m, d_k, d_v as sizes=..., and whatever else a setting has."""
    from attnmath._examine.problems.families import drawn_case

    return drawn_case(Draft(name, **({"sizes": (2, 6, 2, 11, 13, 8, 8)} | setting)), dtype, np.random.default_rng(seed))


def answers(*changes, rounded=None):
    """A program that does the steps in float64, some of them wrong, and rounds what it returns."""
    def run(case, means=UPPER):
        found = Steps(case, means, changes).answer()
        return found if rounded is None else Answer(*(None if x is None else nearest(x, rounded) for x in found))

    return run


# ---- beside the theorem ---------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "wide", "most"), [("float64", None, 1.25), ("float32", None, 1.25),
                                                     ("bfloat16", "float32", 2.2), ("float16", "float32", 2.2)])
def test_bounds_are_those_of_the_theorem_and_a_little_more(dtype, wide, most):
    """More, by the rounding of queries and keys that are scaled first."""
    case = case_of(dtype=dtype, sizes=(2, 3, 3, 11, 13, 16, 16), mask="shared")
    x, kind = (case.Q, case.K, case.V, case.B(UPPER), case.gamma(UPPER)), dict(dtype=dtype, accumulate=wide, fused=False)
    back = rounding.attention_vjp(case.dO, *x, **kind)
    theorem = Answer(rounding.attention(*x, **kind).O, *back[:3])
    for mine, least in zip(bounds(case, UPPER, dtype)[:4], theorem):
        assert (mine >= least * (1 - 1e-9)).all() and (mine <= most * least).all()


def test_bounds_of_shared_keys_and_biases_are_those_of_the_theorem():
    """Groups are a broadcast there, and a bias is given as it is."""
    case = case_of(sizes=(2, 6, 2, 5, 7, 8, 8), bias="heads")
    heads = [x.reshape(2, 2, 3, *x.shape[2:]) for x in (case.dO, case.Q)]
    x = (*heads, case.K[:, :, None], case.V[:, :, None], case.bias.reshape(1, 2, 3, 5, 7), case.gamma(UPPER))
    theorem = rounding.attention_vjp(*x, dtype="float32")
    for mine, least in zip(bounds(case, UPPER, "float32")[1:], theorem):
        assert (mine.ravel() >= least.ravel() * (1 - 1e-9)).all() and (mine.ravel() <= 1.35 * least.ravel()).all()


# ---- right programs lie inside -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", ["math", "default", "eager"])
def test_right_programs_lie_inside(name, dtype):
    options = OPTIONS - {"dropout"} if name != "eager" else OPTIONS
    means, largest, many = ZERO if name != "eager" else replace(UPPER, empty="nan"), 0.0, 0.0
    for case in cases(options, dtype, 4)[::2]:
        want, off = right_and_bounds(case, means, dtype)
        judged = judge_answer(PROGRAMS[name](case, dtype), want, off, dtype)
        assert set(judged) == {k for k, x in want._asdict().items() if x is not None}
        assert all(j.passed for j in judged.values()), case.name
        largest = max(largest, *(j.ratio for j in judged.values()))
        many = max(many, *(j.aggregate for j in judged.values()))
    assert 0.01 < largest < 0.6 and (many > 0) == (dtype in SHORT) and many < 0.7


def scaled_first(case, dtype):
    """Queries and keys times the root of the scale, each rounded; every array is rounded."""
    def r(x):
        return nearest(x, dtype)

    root = case.gamma(UPPER) ** 0.5
    Q, K = r(root * case.Q), r(root * case.K)
    A = r(Q @ T(K))
    E = np.exp(A - A.max(-1, keepdims=True))
    P = r(E / E.sum(-1, keepdims=True))
    dP = r(case.dO @ T(case.V))
    dA = r(P * (dP - (P * dP).sum(-1, keepdims=True)))
    return Answer(r(P @ case.V), r(root * r(dA @ K)), r(root * r(T(dA) @ Q)), r(T(P) @ case.dO))


@pytest.mark.parametrize("dtype", SHORT)
def test_a_program_that_scales_queries_and_keys_first_lies_inside(dtype):
    for seed in range(4):
        case = case_of("peaked", seed, dtype, sizes=(2, 3, 3, 11, 13, 16, 16))
        judged = judge_answer(scaled_first(case, dtype), *right_and_bounds(case, UPPER, dtype), dtype)
        assert all(j.passed for j in judged.values())


def test_a_softmax_in_float32_inside_of_float64():
    case = case_of(dtype="float64", sizes=(2, 3, 3, 5, 7, 16, 16))
    s = Steps(case, UPPER, ({"P": lambda s, P: P.astype(np.float32), "P_back": lambda s, P: P.astype(np.float32)},))
    for inside, passes in ((None, False), ("float64", False), ("float32", True)):
        means = replace(UPPER, inside=inside)
        judged = judge_answer(s.answer(), right_answer(case, means), bounds(case, means, "float64"), "float64")
        assert all(j.passed for j in judged.values()) == passes, inside


# ---- empty rows -----------------------------------------------------------------------------------------


def filled(case, fill, summed=False):
    """Written out in PyTorch, with the mask as fill says; summed: by the log-sum-exp, which is -1e30 itself."""
    leaves = [torch.tensor(x).requires_grad_() for x in (case.Q, case.K, case.V)]
    Q, K, V = leaves
    K, V = (x.repeat_interleave(Q.shape[1] // K.shape[1], 1) for x in (K, V))
    A = fill(Q @ K.mT * case.gamma(UPPER), torch.tensor(case.keep))
    O = (torch.exp(A - A.logsumexp(-1, keepdim=True)) if summed else torch.softmax(A, -1)) @ V
    found = torch.autograd.grad(O, leaves, torch.tensor(case.dO))
    return Answer(*(x.detach().numpy() for x in (O, *found)))


FILLS = {
    "uniform": lambda A, keep: A.masked_fill(~keep, -1e30),
    "uniform with gradient": lambda A, keep: A + torch.where(keep, 0.0, -1e30),
    "nan": lambda A, keep: A.masked_fill(~keep, -torch.inf),
}
FILLS |= {policy.replace("uniform", "sum"): FILLS[policy] for policy in ("uniform", "uniform with gradient")}


@pytest.mark.parametrize("policy", [*FILLS, "zero", None])
def test_empty_rows_by_policy(policy):
    case = case_of(dtype="float64", mask="empty")
    means = replace(UPPER, empty=policy)
    want, off = right_and_bounds(case, means, "float64")
    got = filled(case, FILLS[policy], policy.startswith("sum")) if policy in FILLS else PROGRAMS["default"](case, "float64")
    judged = judge_answer(got, want, off, "float64")
    assert all(j.passed for j in judged.values())
    empty = ~case.seen(means).any(-1)
    assert empty.any()
    if policy == "nan":
        assert np.isnan(want.O[empty]).all() and np.isnan(off.dQ[empty]).all() and np.isnan(want.dK).all()
        assert not np.isnan(off.O[~empty]).any()
        assert judge_answer(got._replace(dK=got.dK * 0), want, off, "float64")["dK"].passed, "left out"
    else:
        flows = str(policy).endswith("with gradient")
        assert want.O[empty].any() == (policy in FILLS) and want.dQ[empty].any() == flows
        others = {*FILLS, "zero"} - {policy or "zero", "nan"}
        for other in others:
            mistaken = judge_answer(right_answer(case, replace(UPPER, empty=other)), want, off, "float64")
            assert not all(j.passed for j in mistaken.values()), other


def test_groups_of_another_mapping():
    case = case_of(dtype="float64", bias="heads")
    means = replace(UPPER, groups="interleaved")
    wrong, found = right_answer(case, UPPER), right_answer(case, means)
    order = np.array([0, 2, 4, 1, 3, 5])  # heads 0, 2, 4 read the first head of keys
    turned = replace(case, Q=case.Q[:, order], dO=case.dO[:, order], bias=case.bias[:, order])
    want, bound, mine = right_answer(turned, UPPER), bounds(turned, UPPER, "float64"), bounds(case, means, "float64")
    for x, y in ((want, found), (bound, mine)):
        for k in ("dK", "dV"):
            assert np.allclose(getattr(x, k), getattr(y, k), rtol=1e-12)
        for k in ("O", "dQ", "dB"):
            assert np.allclose(getattr(x, k), getattr(y, k)[:, order], rtol=1e-12)
    assert not judge_answer(wrong, found, mine, "float64")["dK"].passed


# ---- mistakes lie outside ---------------------------------------------------------------------------------

MISTAKES = {
    "D missing": ({"dA": lambda s, dA: s.P_back * s.dP}, {"dQ", "dK"}),
    "zeros": ({k: lambda s, x: 0 * x for k in ("dQ", "dkeys", "dvalues")}, {"dQ", "dK", "dV"}),
    "last row of dQ": ({"dQ": lambda s, x: x * (np.arange(x.shape[2]) < x.shape[2] - 1)[:, None]}, {"dQ"}),
    "last key of dQ": ({"dQ": lambda s, x: x - s.gamma * s.dA[..., -1:] @ s.keys[..., -1:, :]}, {"dQ"}),
    "one item for all": ({"dV": lambda s, x: x[:1] + 0 * x}, {"dV"}),
    "2 percent": ({k: lambda s, x: 1.02 * x for k in ("dQ", "dK", "dV")}, {"dQ", "dK", "dV"}),
}


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_lie_outside(mistake, dtype):
    case = case_of(dtype=dtype, sizes=(2, 6, 2, 37, 41, 16, 16))
    want, off = right_and_bounds(case, UPPER, dtype)
    for factor in (1, 2.0**-12 if dtype == "float16" else 2.0**-40):  # however small the loss
        small = replace(case, dO=nearest(case.dO * factor, dtype))
        want, off = right_and_bounds(small, UPPER, dtype)
        if dtype == "float16" and factor < 1 and mistake in ("2 percent", "last key of dQ"):
            continue  # below the digits that such numbers have
        judged = judge_answer(answers(MISTAKES[mistake][0], rounded=dtype)(small), want, off, dtype)
        assert {k for k, j in judged.items() if not j.passed} == MISTAKES[mistake][1]
        judged = judge_answer(answers(rounded=dtype)(small), want, off, dtype)
        assert all(j.passed for j in judged.values())


@pytest.mark.parametrize("dtype", SHORT)
def test_what_only_many_entries_show(dtype):
    """Two percent and a third of that: entry by entry inside of the bounds."""
    case = case_of(dtype=dtype, sizes=(2, 6, 2, 37, 41, 16, 16))
    want, off = right_and_bounds(case, UPPER, dtype)
    percent = 2.0 if dtype == "bfloat16" else 0.6
    for letter in ("O", "dQ", "dK", "dV"):
        right_one = answers(rounded=dtype)(case)
        wrong = right_one._replace(**{letter: nearest((1 + percent / 100) * getattr(want, letter), dtype)})
        judged = judge_answer(wrong, want, off, dtype)
        assert judged[letter].ratio < 1 < judged[letter].aggregate and not judged[letter].passed
        assert all(j.passed for k, j in judged.items() if k != letter)
        alone = judge_answer(wrong, want, Answer(*off), dtype)
        assert alone[letter].passed and judge_answer(wrong, want, off, None)[letter].passed
    row = right_one.dQ.copy()
    row[1, 4, 5] = 0
    wrong = judge_answer(right_one._replace(dQ=row), want, off, dtype)["dQ"].wrong
    assert wrong[1, 4, 5].all() and wrong.sum() == row.shape[-1], "and where"


@pytest.mark.parametrize("dtype", SHORT)
def test_errors_have_the_size_that_is_typical(dtype):
    """Of right programs, in standard deviations: below one, and not far below."""
    squares = {name: [] for name in ("math", "eager")}
    for seed in range(3):
        case = case_of(seed=seed, dtype=dtype, sizes=(2, 6, 2, 21, 17, 16, 16))
        want, off = right_and_bounds(case, UPPER, dtype)
        for name, found in squares.items():
            got = PROGRAMS[name](case, dtype)
            found.append([np.mean(((g - w) / s) ** 2) for g, w, s in zip(got, want, off.deviations) if w is not None])
    for found in squares.values():
        size = np.sqrt(np.mean(found, 0))  # PyTorch's kernels keep most arrays in float32
        assert (0.05 < size).all() and (size < 1).all(), size
    assert (np.sqrt(np.mean(squares["eager"], 0)) > 0.2).all()


def test_where_many_entries_are_not_counted_together():
    assert bounds(case_of(), UPPER, "float32").deviations is None
    for kind in (dict(name="large negative scores"), dict(also=("broadcast dO",))):
        assert bounds(case_of(dtype="bfloat16", **kind), UPPER, "bfloat16").deviations is None
    assert bounds(case_of(dtype="bfloat16"), UPPER, "bfloat16").deviations is not None


# ---- the judge ------------------------------------------------------------------------------------------------


def one(got, want, off):
    """The judgement of a single tensor of four axes."""
    got, want, off = (np.reshape(np.asarray(x, float), (1, 1, 1, -1)) for x in (got, want, off))
    return judge_answer(Answer(got), Answer(want), Answer(off), "float32")["O"]


def test_the_judge_counts_in_bounds():
    j = one([1.0, 2.5, 3.0], [1.0, 2.0, 2.0], [0.0, 0.25, 0.25])
    assert j.ratio == 4 and j.where == (0, 0, 0, 2) and j.wrong.ravel().tolist() == [False, True, True]
    assert not j.passed and one([1.0], [1.0 + 2.0**-24], [2.0**-24]).passed and CONSTANT == 1


def test_what_matches():
    inf, nan = np.inf, np.nan
    assert one([-0.0, inf, -inf], [0.0, inf, -inf], [0.0, 0.0, 0.0]).passed
    for got, want, off in ((nan, 1.0, 1e300), (nan, nan, 1.0), (nan, 1.0, inf), (inf, 1.0, 1e300), (1e-300, 0.0, 0.0),
                           (inf, -inf, 1.0), (1.0, inf, 1.0)):
        j = one([0.0, got], [0.0, want], [0.0, off])
        assert j.ratio == inf and j.where == (0, 0, 0, 1) and j.wrong.sum() == 1, (got, want, off)
    assert one([nan], [nan], [nan]).passed and one([5.0], [nan], [nan]).passed, "left out"
    assert one([], [], []).passed and one([], [], []).where is None


def test_what_is_missing_is_wrong_everywhere():
    case = case_of(bias="heads")
    want, off = right_and_bounds(case, UPPER, "float32")
    for got in (want._replace(dB=None), want._replace(dB=want.dB[0])):
        judged = judge_answer(got, want, off, "float32")
        assert judged["dB"].wrong.all() and judged["dB"].ratio == np.inf and judged["dQ"].passed
    plain = case_of()
    want, off = right_and_bounds(plain, UPPER, "float32")
    assert set(judge_answer(want._replace(dB=np.ones(3)), want, off, "float32")) == {"O", "dQ", "dK", "dV"}, "not asked for"


def test_poison_costs_nothing():
    """A huge number in a hidden key has no part in the bounds."""
    case = case_of("gaussian, padding", sizes=(4, 3, 3, 5, 7, 8, 8), mask="padding", also=("poison",))
    assert abs(case.K).max() > 1e29
    plain = replace(case, K=np.where(case.K > 1e29, 0.0, case.K), V=np.where(case.V > 1e29, 0.0, case.V))
    for a, b in zip(bounds(case, UPPER, "float32")[:4], bounds(plain, UPPER, "float32")):
        assert np.array_equal(a, b)


def test_nothing_loads_torch():
    code = "import sys, attnmath._examine.problems.bounds, attnmath._examine.problems.families; print('torch' in sys.modules, 'jax' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "False False\n"


def test_scale_zero_and_one_key():
    """Where nothing can move, only exact zeros are right."""
    one_key = Case(*(np.ones((1, 2, k, 4)) for k in (3, 1, 1, 3)))
    for case in (one_key, case_of(scale=0.0)):
        want, off = right_and_bounds(case, UPPER, "float32")
        assert judge_answer(want, want, off, "float32")["dQ"].passed
        nudged = want._replace(dQ=want.dQ + 1e-3)
        assert not judge_answer(nudged, want, off, "float32")["dQ"].passed
