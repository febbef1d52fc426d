"""examine judges a tangent and a double backward: right ones right, mistakes by their names, bounds against autograd."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import attnmath
import attnmath.torch
from attnmath import adapters, examine
from attnmath._examine.examine import _truncated
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.families import cases
from attnmath._examine.second import naming, program
from attnmath._examine.second.edits import second_edits
from attnmath._examine.second.program import LETTERS, second_and_bounds, with_tangents
from attnmath.testing import assert_attention_gradients
from correct import SDPA, math_kernel
from second_orders import OPTIONS, Dual, backward_with, jvp_with, plain, rcm, tiled_with, vjp_vjp_with

EVERY = {"mask", "bias", "causal", "scale", "groups", "dropout"}


def judged(dtype="float32", smallest=False, **functions):
    return examine(plain, options=OPTIONS, dtype=dtype, seed=2, framework="torch", layout="bhsd", smallest=smallest,
                   progress=False, **functions)


# ---- the table, and its bounds


def truth(case, means):
    """Second derivatives by torch.func.jvp and double autograd of the definition, in float64."""
    owner, B = case.owner(means), torch.tensor(case.B(means))
    empty = torch.isneginf(B).all(-1, keepdim=True)

    def f(q, k, v):
        a = q @ k[:, owner].mT * case.gamma(means) + torch.where(empty, 0.0, B)
        p = torch.where(empty, 0.0, torch.softmax(a, -1))
        return (p if case.R is None else p * torch.tensor(case.R)) @ v[:, owner]

    x, dots = (tuple(map(torch.tensor, some)) for some in (
        (case.Q, case.K, case.V), (case.Q_dot, case.K_dot, case.V_dot)))
    O_dot = torch.func.jvp(f, x, dots)[1]
    x = torch.tensor(case.dO).requires_grad_(), *(y.requires_grad_() for y in x)
    grads = torch.autograd.grad(f(*x[1:]), x[1:], x[0], create_graph=True)
    found = torch.autograd.grad(grads, x, dots)
    assert torch.allclose(found[0], O_dot, rtol=1e-9, atol=1e-9)
    return dict(zip(LETTERS["double backward"], (y.numpy() for y in found)))


def some_cases(dtype, seed=0):
    rng = np.random.default_rng(seed)
    return [with_tangents(c, dtype, rng) for c in cases(EVERY, dtype, seed) if c.Q.size * c.K.shape[2] < 40000]


@pytest.mark.parametrize("means", [Conventions(), Conventions(causal="upper_left", groups="interleaved", scale="1/d_k")])
def test_the_table_is_what_autograd_gives_and_within_its_bounds(means):
    for case in some_cases("float64"):
        want, off = second_and_bounds(case, means, "float64", "double backward")
        for letter, x in truth(case, means).items():
            assert (abs(x - getattr(want, letter)) <= getattr(off, letter)).all(), (case.name, letter)


def alarms(dtype, less):
    """How many problems PyTorch's own derivatives are outside the bounds in, times less."""
    count = 0
    for case in some_cases(dtype):
        if case.needs and set(case.needs) - {"bias"} or case.traits & {"poison", "empty row"}:
            continue
        x = [torch.tensor(y, dtype=getattr(torch, dtype)) for y in (case.Q, case.K, case.V, case.Q_dot, case.K_dot, case.V_dot)]
        bias = None if case.bias is None else torch.tensor(case.bias, dtype=x[0].dtype)
        got = torch.func.jvp(lambda q, k, v, b=bias: math_kernel(q, k, v, attn_mask=b), tuple(x[:3]), tuple(x[3:]))[1]
        want, off = second_and_bounds(case, Conventions(), dtype, "jvp")
        count += not (abs(got.double().numpy() - want.O_dot) <= less * off.O_dot).all()
    return count


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_bounds_hold_and_a_hundredth_of_them_does_not(dtype):
    assert alarms(dtype, 1.0) == 0
    assert alarms(dtype, 0.01) > 3


def test_bounds_that_forget_the_roundings_of_entries_are_refused(monkeypatch):
    model = program.program
    monkeypatch.setattr(program, "program", lambda *x: model(*x)._replace(entries=0.0, sums=0.0, stored=0.0))
    assert alarms("float32", 1.0) > 3


def test_truncation_widens_the_bounds():
    case = some_cases("float32")[0]
    near, far = (second_and_bounds(case, Conventions(truncate=x), "float32", "double backward")[1] for x in (False, True))
    assert all((b > a).all() for a, b in zip(near[:4], far[:4]))


# ---- right ones


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_what_is_right_is_right(dtype):
    report = judged(dtype, jvp=jvp_with(), vjp_vjp=vjp_vjp_with())
    assert report.right, report
    assert "problems; jvp: " in report.sentence and "; double backward: " in report.sentence
    given = dict(options=SDPA | {"causal": "is_causal"}, dtype=dtype, seed=1, framework="torch", progress=False)
    for fn in (math_kernel, attnmath.torch.scaled_dot_product_attention):
        report = examine(fn, jvp=True, vjp_vjp=True, **given)
        assert report.right, report


def numpy_forward(q, k, v):
    return attnmath.attention(q, k, v)


def numpy_jvp(q, k, v, q_dot, k_dot, v_dot):
    return attnmath.attention(q, k, v), attnmath.attention_jvp(q_dot, k_dot, v_dot, None, None, q, k, v)


def numpy_vjp_vjp(q_dot, k_dot, v_dot, do, q, k, v):
    return tuple(attnmath.attention_vjp_vjp(q_dot, k_dot, v_dot, None, None, do, q, k, v)[:4])


def test_functions_of_numpy_and_of_tiles_are_right():
    report = examine(numpy_forward, lambda do, q, k, v: tuple(attnmath.attention_vjp(do, q, k, v)[:3]), jvp=numpy_jvp,
                     vjp_vjp=numpy_vjp_vjp, seed=0, layout="bhsd", progress=False)
    assert report.right, report
    report = examine(plain, options={"scale": "scale"}, jvp=tiled_with(), seed=0, framework="torch", layout="bhsd",
                     dtype="float32", progress=False)
    assert report.right, report


# ---- mistakes

NAMED = {
    "no term": "the term P V_dot is missing (O_dot)",
    "causal term": "the term P V_dot is missing, with a causal mask (O_dot)",
    "sign": "the term P V_dot has the wrong sign (O_dot)",
    "scaled twice": "the term Q K_dot^T has the scale gamma twice (O_dot)",
    "no scale": "the scale gamma of A_dot is missing (O_dot)",
    "no mean": "the row mean mu of A_dot is missing",
    "no dropout": "the dropout mask of P V_dot is missing (O_dot)",
}
NAMED_BACK = {
    "D held still": "D is held still: D_dot is missing from dA_dot (dQ_dot, dK_dot)",
    "P held still": "the term P_dot o (dP - D) is missing (dQ_dot, dK_dot)",
    "no dA K_dot": "the term dA K_dot is missing (dQ_dot)",
    "scale of dK": "the scale gamma of dK_dot is taken twice (dK_dot)",
    "P for P_dot": "P stands in the place of P_dot in dV_dot (dV_dot)",
    "no dropout": "the dropout mask of dV_dot is missing (dV_dot)",
    "one head": "dK_dot has the first query head of a group alone, where all are summed (dK_dot)",
}
SUMS = {"A": "the sum of P V_dot is", "H": "the sum of (P o A_dot) V is", "r": "the sum of P o A_dot is",
        "acc": "the sum of P V is", "l": "the sum of the weights is",
        "A H": "the sum of P V_dot and the sum of (P o A_dot) V are"}


@pytest.mark.parametrize("wrong", NAMED)
def test_a_mistake_of_the_jvp_has_its_name(wrong):
    report = judged(jvp=jvp_with(wrong))
    assert report.wrong and report.sentence.startswith(f"wrong in the jvp: {NAMED[wrong]}"), report


@pytest.mark.parametrize("wrong", NAMED_BACK)
def test_a_mistake_of_the_double_backward_has_its_name(wrong):
    report = judged(jvp=jvp_with(), vjp_vjp=vjp_vjp_with(wrong))
    assert report.wrong and report.sentence.startswith(f"wrong in the double backward: {NAMED_BACK[wrong]}"), report


@pytest.mark.parametrize("which, tile", [(x, t) for x, t in zip(SUMS, (16, 32, 64, 128, 16, 32))])
def test_a_sum_that_is_not_rescaled_has_its_name_and_its_tile(which, tile):
    report = examine(plain, options={"scale": "scale"}, jvp=tiled_with(which, tile), seed=0, framework="torch", layout="bhsd",
                     dtype="float32", progress=False, smallest=False)
    first = next(f for f in report.findings if f.kind == "mistake")
    said = f"{SUMS[which]} not rescaled when the largest score grows (tiles of {tile} keys)"
    assert report.wrong and first.title.startswith(said), report


def test_in_a_short_format_mistakes_are_seen_too():
    for dtype in ("bfloat16", "float16"):
        report = judged(dtype, jvp=jvp_with("no term"), vjp_vjp=vjp_vjp_with("D held still"))
        assert report.wrong and "P V_dot is missing" in report.sentence, report
        assert any("D is held still" in f.title for f in report.findings), report


def test_what_has_no_name_is_described():
    report = judged(jvp=jvp_with("squares"))
    found = next(f for f in report.findings if f.kind == "unnamed")
    assert found.title.startswith("O_dot is wrong") and "not linear in the tangents" in found.evidence, report
    assert "wrong with v_dot alone, right with q_dot and with k_dot alone" in found.evidence
    assert not any(f.kind == "mistake" for f in report.findings)


def test_a_factor_has_no_name_and_is_said():
    def third(*x, **options):
        return jvp_with()(*x, **options) / 3

    found = next(f for f in judged(jvp=third).findings if f.kind == "unnamed")
    assert "O_dot is 0.3333 times what it should be" in found.evidence


def test_a_name_has_to_explain_new_problems(monkeypatch):
    proof = naming.proof
    seen = []
    monkeypatch.setattr(naming, "proof", lambda edits, trials: seen.append(len(trials)) or proof(edits, trials))
    judged(jvp=jvp_with("no term"))
    assert max(seen) >= min(seen) + 12


def both(*x, **options):
    o_dot, q_bar, k_bar, v_bar = vjp_vjp_with()(*x, **options)
    return o_dot, 2 * q_bar, k_bar, -v_bar


def test_two_mistakes_have_two_names():
    titles = [f.title for f in judged(vjp_vjp=both).findings if f.kind == "mistake"]
    assert sorted(titles) == ["dQ_dot is doubled (dQ_dot)", "dV_dot has the wrong sign (dV_dot)"]


def test_by_its_own_gradients_a_tangent_is_wrong():
    found = next(f for f in judged(jvp=jvp_with("squares")).findings if f.kind == "unnamed")
    assert "and by its own gradients" in found.evidence


def test_in_a_process_of_its_own_it_is_the_same():
    report = judged(jvp=jvp_with("no term"), isolate=True)
    assert report.sentence.startswith(f"wrong in the jvp: {NAMED['no term']}"), report


def test_edits_have_names_of_their_own():
    edits = list(second_edits())
    assert len({x.name for x in edits}) == len(edits) and len({x.title for x in edits}) == len(edits)


# ---- the report


def test_the_smallest_case_fails_when_it_is_pasted(capsys):
    for functions in (dict(jvp=jvp_with("no term")), dict(vjp_vjp=vjp_vjp_with("one head"))):
        report = judged(smallest=True, **functions)
        exec(report.smallest, dict(plain=plain, **functions))
        said = capsys.readouterr().out.split()
        assert said[-1] != said[said.index("is") + 1] and report.smallest.splitlines()[-1].startswith("# ")


def test_all_forms_of_a_report_agree():
    report = judged(jvp=jvp_with("no term"))
    again = type(report).from_json(report.to_json())
    assert again == report and json.loads(report.to_json())["sentence"] == report.sentence
    assert "P V_dot is missing" in report._repr_html_() and "P V_dot is missing" in report.to_junit()
    assert 'name="jvp (' in report.to_junit()
    assert replace(report, verdict="right").sentence.startswith("right: ")


def test_a_test_fails_with_the_report():
    given = dict(options=OPTIONS, dtype="float32", seed=2, framework="torch", layout="bhsd", smallest=False, progress=False)
    assert_attention_gradients(plain, jvp=jvp_with(), conventions={"dropout": "factors"}, **given)
    with pytest.raises(AssertionError, match="the term P V_dot is missing"):
        assert_attention_gradients(plain, jvp=jvp_with("no term"), **given)


def test_of_a_wrong_function_the_second_order_is_not_judged():
    def wrong(q, k, v):
        return 2 * plain(q, k, v)

    report = examine(wrong, jvp=True, seed=0, dtype="float32", framework="torch", layout="bhsd", smallest=False, progress=False)
    assert not report.right and not any(p.part for p in report.problems)
    assert any("the jvp is not judged" in f.title for f in report.findings), report


# ---- bad input, and broken contracts


def test_bad_input_is_one_sentence():
    for given, said in ((dict(jvp=3), "jvp is 3; it needs to be a function, or True"),
                        (dict(vjp_vjp="x"), "vjp_vjp is 'x'; it needs to be a function")):
        with pytest.raises(TypeError, match=said):
            judged(**given)
    with pytest.raises(ValueError, match="truncate is 1; it needs to be True, False or None"):
        judged(truncate=1)
    with pytest.raises(ValueError, match="jvp is True; NumPy has no derivatives of its own"):
        examine(numpy_forward, jvp=True, framework="numpy", progress=False)


def changes_inputs(q, k, v, q_dot, k_dot, v_dot, **options):
    found = jvp_with()(q, k, v, q_dot, k_dot, v_dot, **options)
    v_dot *= 2
    return found


@pytest.mark.parametrize("function, said", [
    (lambda *x, **options: (1, 2, 3), "jvp returns a tuple of 3"),
    (lambda *x, **options: jvp_with()(*x, **options).double(), "o_dot has the dtype float64"),
    (lambda *x, **options: jvp_with()(*x, **options)[..., :1], "o_dot has the shape"),
    (changes_inputs, "it changes its inputs: v_dot"),
    (lambda *x, **options: 1 / 0, "ZeroDivisionError"),
])
def test_a_broken_contract_is_said(function, said):
    report = judged(jvp=function)
    assert not report.right and any(said in f.title for f in report.findings if f.kind == "contract"), report


def test_a_double_backward_gives_four():
    report = judged(vjp_vjp=lambda *x, **options: vjp_vjp_with()(*x, **options)[1:])
    assert not report.right and any("vjp_vjp returns a tuple of 3, where a tuple of do_bar" in f.title for f in report.findings)


# ---- kernels that are not here


def test_kernels_with_their_own_signatures():
    report = examine(**adapters.jvp_flash_attention(Dual), dtype="float32", seed=0, progress=False)
    assert report.right and "jvp: " in report.sentence, report
    report = examine(**adapters.rcm_attention(rcm()), dtype="float32", seed=0, progress=False)
    assert report.right, report
    report = examine(**adapters.rcm_attention(rcm("no mean")), dtype="float32", seed=0, progress=False)
    assert "wrong in the jvp: the row mean mu of A_dot is missing" in report.sentence
    with pytest.raises(ImportError, match="jvp_flash_attention is not installed"):
        adapters.jvp_flash_attention()


CONSTANTS = {"D": "D is taken for a constant in the backward (O_dot, dQ_dot, dK_dot, dV_dot)",
             "O": "the O of D is taken for a constant in the backward",
             "L": "the log-sum-exp is taken for a constant in the backward (dQ_dot, dK_dot)",
             "D L": "D is taken for a constant and the log-sum-exp is taken for a constant"}


@pytest.mark.parametrize("constant", CONSTANTS)
def test_a_statistic_that_autograd_takes_for_a_constant_has_its_name(constant):
    report = judged(backward=backward_with(constant), vjp_vjp=True)
    found = next(f for f in report.findings if f.kind == "mistake")
    assert report.wrong and CONSTANTS[constant] in f"{found.title}; {found.evidence}", report


def test_autograd_through_a_backward_of_its_own_is_right():
    report = judged(backward=backward_with(), vjp_vjp=True)
    assert report.right, report


def test_sums_may_be_cut_off_on_cuda_alone_unless_it_is_said():
    assert [_truncated(*x) for x in ((None, "cuda:0"), (None, None), (None, "cpu"), (False, "cuda"), (True, None))] == [
        True, False, False, False, True]
