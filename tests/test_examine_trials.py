"""What the chapter on testing a gradient measures with: each helper, and what it rejects."""

import pytest

from attnmath._examine._steps import Steps
from attnmath._examine._trials import USUAL, kernel, lawful, problem, seen, worst, wrong
from attnmath._examine._yardstick import right

SIZES = (2, 6, 3, 5, 7, 4, 3)
KIND = dict(mask="shared", causal=True, bias="shared", rho=0.25)


def test_the_kernel_is_right_and_not_exact():
    case = problem((1, 2, 2, 5, 7, 4, 3), dtype="float32")
    assert 0 < worst(case, kernel(case, "float32"), "float32") < 1


@pytest.mark.parametrize(("factor", "outside"), [(1.0, False), (1 + 1e-6, True), (-1.0, True)])
def test_an_answer_off_by_a_factor_is_outside_of_the_bounds(factor, outside):
    case = problem(SIZES, **KIND)
    got = wrong(case, {"dQ": lambda s, dQ: factor * dQ})
    assert (worst(case, got) > 1) == outside


def test_a_mistake_by_name_or_by_its_change_and_none_without_room():
    case = problem(SIZES)
    assert (wrong(case, "D_missing").dQ == wrong(case, {"D": lambda s, D: 0 * D}).dQ).all()
    assert (wrong(case, "D_missing").dV == right(case, USUAL).dV).all()
    assert wrong(case, "dB_mean") is None and seen(case, ["dB_mean", "D_missing"]) == {"D_missing"}


@pytest.mark.parametrize(("change", "obeys"), [
    ({}, True), ({"dA": lambda s, x: -2 * x}, True), ({"D": lambda s, D: 0 * D}, False),
    ({"dQ": lambda s, x: 2 * x}, False), ({"dV": lambda s, x: 2 * x}, False),
    ({"dB": lambda s, x: x + 1e-6}, False), ({"dK": lambda s, x: x + 1e-6}, False),
])  # fmt: skip
def test_laws_see_what_does_not_multiply_all_alike(change, obeys):
    case = problem(SIZES, **KIND)
    assert lawful(case, Steps(case, USUAL, [change]).answer()) == obeys
