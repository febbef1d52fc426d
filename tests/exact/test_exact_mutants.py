"""The judge of mutants rejects what is wrong, accepts what is equivalent, and leaves nothing behind.

`make exact-mutants` judges all of them; here is a sample of two modules.
"""

import inspect
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import exact_mutants  # noqa: E402
import mutations  # noqa: E402

sys.path.pop(0)
import attnmath  # noqa: E402
from attnmath import linear, softmax
from attnmath._formulas import softmax as softmax_module
from exact_cases import cases  # noqa: E402


@pytest.fixture(scope="module")
def judge():
    """The cases of the functions of two modules."""
    modules = {mutations.MODULES[stem] for stem in ("softmax", "projections")}
    return exact_mutants.Judge([case for case in cases() if getattr(getattr(attnmath, case.name.split()[0], None), "__module__", None) in modules])


def mutant(function, after, module="softmax"):
    """The mutant of the function whose changed statement reads like this."""
    (found,) = (x for x in mutations.mutants(module) if x.function == function and x.after == after)
    return found


WRONG = {
    "dA = P * (dP + rowsum(P * dP)) / tau": ("softmax_vjp", "value"),
    "dA = P * dP / tau": ("softmax_vjp", "value"),
    "dA = P * (dP - rowsum(P * dP))": ("softmax_vjp", "value"),
    "dA = P * (dP - rowmean(P * dP)) / tau": ("softmax_vjp", "value"),
    "return (diag(P) - column(P) * column(P)) / row(tau)": ("softmax_jacobian", "value"),
    "return E": ("softmax", "value"),
    "return E / rowsum(E)": ("softmax", "float64"),
    "return flat(log(rowsum(exp(shift(A, c)))))": ("logsumexp", "value"),
    "return log(rowsum(exp(shift(A, c)))) + c": ("logsumexp", "shape"),
    "dtau = -dA * A / tau": ("softmax_vjp", "float64"),  # 0 times -inf
    "return SoftmaxGradients(sum_to(dtau, tau), dA)": ("softmax_vjp", "shape"),
}


@pytest.mark.parametrize("after", WRONG)
def test_what_is_wrong_is_rejected(judge, after):
    function, verdict = WRONG[after]
    assert judge(mutant(function, after))[0] == verdict


def test_what_is_wrong_for_letters_alone_is_rejected():
    with_scale = exact_mutants.Judge([case for case in cases() if case.name.startswith("attention equal (2, 3)")])
    wrong = mutant("default_scale", "return 2 / sqrt(x.number(d_k)) if is_exact(x) else 1 / math.sqrt(d_k)", "arrays")
    assert with_scale(wrong)[0] == "value"


EQUIVALENT = ["E = exp(S)", "E = exp(shift(S, rowsum(S)))"]


@pytest.mark.parametrize("after", EQUIVALENT)
def test_what_is_equivalent_survives(judge, after):
    assert judge(mutant("softmax", after)) == ("survivor", "", "")


def test_a_line_that_no_case_runs_is_not_called_equivalent():
    only = exact_mutants.Judge([case for case in cases() if case.name.startswith("linear")])
    assert only(mutant("softmax", "return E"))[0] == "not run"


def test_the_package_is_what_it_was(judge):
    original = inspect.unwrap(softmax)
    before, words = original.__code__, set(vars(softmax_module))
    with pytest.raises(ZeroDivisionError), mutations.in_place(mutant("softmax", "return E")):
        assert original.__code__ is not before
        raise ZeroDivisionError
    assert original.__code__ is before
    assert set(vars(softmax_module)) == words
    for case, _ in judge.cases:
        case.judge(judge.engine)


def test_a_mutant_is_seen_through_every_import(judge):
    x = exact_mutants.np.ones((2, 2))
    assert attnmath._formulas.blocks.linear is linear
    with mutations.in_place(mutant("linear", "return apply(X, W)", "projections")):
        assert (attnmath._formulas.blocks.linear(x, x, x[0]) == 2).all()
    assert (attnmath._formulas.blocks.linear(x, x, x[0]) == 3).all()


def test_every_mutant_of_a_sample_has_its_verdict(judge):
    sample = mutations.mutants("projections")[::3] + mutations.mutants("softmax")[::9]
    found = [(one, judge(one)) for one in sample]
    wrong = [x for x in exact_mutants.complaints(found, exact_mutants.listed()) if not x.startswith("rejected")]
    assert wrong == []
    assert sum(verdict == "value" for _, (verdict, *_) in found) > 0.5 * len(found)


def test_every_public_function_is_asked():
    modules = set(mutations.MODULES.values())
    public = {name: getattr(attnmath, name) for name in attnmath.__all__}
    formulas = {name for name, x in public.items() if x.__module__ in modules and not isinstance(x, type)}
    assert len(formulas) > 30
    lost = sorted(formulas - {case.name.split()[0] for case in cases()})
    assert not lost, f"nothing is asked of {', '.join(lost)}: write plain_{lost[0]} beside test_{lost[0]}"


def test_the_list_is_complete_and_nothing_in_it_is_out_of_date():
    """A survivor without a reason is found, and a reason without its survivor."""
    survivor, rejected = mutant("softmax", "E = exp(S)"), mutant("softmax", "return E")
    found = [(survivor, ("survivor", "", "")), (rejected, ("value", "", ""))]
    assert exact_mutants.complaints(found, {}) == [f"survivor: {survivor}"]
    assert exact_mutants.complaints(found, {str(survivor): "why"}) == []
    stale = exact_mutants.complaints(found, {str(survivor): "why", str(rejected): "why"})
    assert stale == [f"rejected, but listed: {rejected}"]


def test_every_listed_mutant_exists_and_has_a_reason():
    known = exact_mutants.listed()
    there = {x for module in mutations.MODULES for one in mutations.mutants(module)
             for x in exact_mutants.entries(one)}
    assert known.keys() <= there
    assert all(len(reason) > 10 for reason in known.values())
