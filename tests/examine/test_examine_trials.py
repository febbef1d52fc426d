"""What the chapter on testing a gradient measures with: each helper, and what it rejects."""

import pytest

from attnmath._examine.problems.bounds import right_answer
from attnmath._examine.problems.steps import Steps
from attnmath.book.rules import TRIAL_MEANS, kernel, lawful, seen, single_problem, worst_ratio, wrong

SIZES = (2, 6, 3, 5, 7, 4, 3)
KIND = dict(mask="shared", causal=True, bias="shared", rho=0.25)


def test_the_kernel_is_right_and_not_exact():
    case = single_problem((1, 2, 2, 5, 7, 4, 3), dtype="float32")
    assert 0 < worst_ratio(case, kernel(case, "float32"), "float32") < 1


@pytest.mark.parametrize(("factor", "outside"), [(1.0, False), (1 + 1e-6, True), (-1.0, True)])
def test_an_answer_off_by_a_factor_is_outside_of_the_bounds(factor, outside):
    case = single_problem(SIZES, **KIND)
    got = wrong(case, {"dQ": lambda s, dQ: factor * dQ})
    assert (worst_ratio(case, got) > 1) == outside


def test_a_mistake_by_name_or_by_its_change_and_none_without_room():
    case = single_problem(SIZES)
    assert (wrong(case, "D_missing").dQ == wrong(case, {"D": lambda s, D: 0 * D}).dQ).all()
    assert (wrong(case, "D_missing").dV == right_answer(case, TRIAL_MEANS).dV).all()
    assert wrong(case, "dB_mean") is None and seen(case, ["dB_mean", "D_missing"]) == {"D_missing"}


@pytest.mark.parametrize(("change", "obeys"), [
    ({}, True), ({"dA": lambda s, x: -2 * x}, True), ({"D": lambda s, D: 0 * D}, False),
    ({"dQ": lambda s, x: 2 * x}, False), ({"dV": lambda s, x: 2 * x}, False),
    ({"dB": lambda s, x: x + 1e-6}, False), ({"dK": lambda s, x: x + 1e-6}, False),
])
def test_laws_see_what_does_not_multiply_all_alike(change, obeys):
    case = single_problem(SIZES, **KIND)
    assert lawful(case, Steps(case, TRIAL_MEANS, [change]).answer()) == obeys
