"""A function at a point: Jacobian, sensitivity to rounding, finite difference, names."""

import functools
from collections import namedtuple

import numpy as np
import pytest
import torch

from attnmath import check_jvp, check_vjp
from attnmath._check.problem import FunctionAtPoint, names_of, takes_each

U = 2.0**-53
x, y = np.array([1.0, 2.0]), np.array([[3.0], [-40.0]])


def f(x, y, scale=1.0):
    return scale * x * x @ y


def problem(f=f, x=(x, y), **constants):
    return FunctionAtPoint("caller", f, x, constants)


def test_the_jacobian_has_a_row_for_each_output_and_a_column_for_each_entry():
    p = problem(scale=2.0)
    assert p.Y.tolist() == [2 * (3 - 160)]
    assert np.allclose(p.jacobian(0), [[2 * 2 * 1 * 3, 2 * 2 * 2 * -40]], rtol=4 * U, atol=0)
    assert np.allclose(p.jacobian(1), [[2 * 1, 2 * 4]], rtol=4 * U, atol=0)
    assert p.jacobian(0) is p.jacobian(0)
    several = problem(lambda x, y: (x, y * x[0]))
    assert several.jacobian(0).tolist() == [[1, 0], [0, 1], [3, 0], [-40, 0]]
    assert several.jacobian(1).tolist() == [[0, 0], [0, 0], [1, 0], [0, 1]]
    assert problem(lambda x: x.sum(), (np.zeros((0, 3)),)).jacobian(0).shape == (1, 0)
    at_torch = problem(lambda a, b: a @ b, (torch.eye(2).double(), torch.ones(2, 1).double()))
    assert at_torch.jacobian(0).tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]


def test_the_wobble_is_what_one_rounding_changes():
    p = problem()
    assert (p.wobble(1) > 0).any() and (p.wobble(1) <= np.array([[8, 32]]) * U).all()
    assert (p.wobble(0) <= 16 * U * abs(p.jacobian(0))).all()
    assert (p.wobble(1) == problem().wobble(1)).all() and p.wobble(0) is p.wobble(0)
    linear = problem(lambda x: 3 * x, (x,))
    assert not linear.wobble(0).any()
    cancels = problem(lambda x: x * x - x * x.real, (np.array([1.0, 3.0]),))
    assert cancels.wobble(0).max() <= 64 * U


def test_two_roundings_are_tried_and_the_larger_change_counts():
    """x changes by 2 u up in one draw, down in another: 1/x^3 changes its slope either way."""
    p = problem(lambda x, y: x * y, (np.ones(40), np.ones(40)))
    W = p.wobble(0)
    assert set(np.diag(W).tolist()) == {2 * U} and (W[~np.eye(40, dtype=bool)] == 0).all()
    kink = problem(lambda x, y: x * np.where(y > 1, y + 1, y), (np.ones(60), np.ones(60)))
    moved = (np.diag(kink.wobble(0)) > 0.5).mean()  # up in the first draw or in the second
    assert 0.6 < moved < 0.9
    again = problem(lambda x, y: x * np.where(y > 1, y + 1, y), (np.ones(60), np.ones(60)))
    assert (again.wobble(0) == kink.wobble(0)).all()


def test_the_height_of_an_argument():
    p = problem()
    assert (p.height(0), p.height(1)) == (2.0, 40.0)
    assert problem(lambda x: x, (np.array([0.1, -np.inf]),)).height(0) == 1.0
    assert problem(lambda x: x, (-7.0,)).height(0) == 7.0
    assert problem(lambda x: x, (np.zeros(0),)).height(0) == 1.0


def test_the_central_difference():
    p = problem()
    for k in (0, 1):
        for j in (0, 1):
            unit = np.zeros(2)
            unit[j] = 1
            got = p.central(k, unit.reshape(p.x[k].shape))
            assert abs(got[0] - p.jacobian(k)[0, j]) < 1e-7
    jump = problem(lambda x: np.sign(x.real - 1) * 1.0, (1.0,))
    assert jump.central(0, 1.0).tolist() == [2 / (2 * 2.0**-17)]
    wide = problem(lambda x: np.sign(x.real - 64) * 1.0, (64.0,))
    assert wide.central(0, 1.0).tolist() == [2 / (2 * 64 * 2.0**-17)]
    masked = problem(lambda x: x * 2, (np.array([-np.inf, 1.0]),))
    assert masked.central(0, np.array([1.0, 0.0])).tolist() == [0.0, 0.0]


def test_a_reaction_is_seen_from_a_small_share_of_the_output_on():
    def nearly_constant(share):
        return problem(lambda x: 1.0 + share * x.real, (x,))
    nearly_constant(1e-7).check_analytic(0)
    nearly_constant(0.0).check_analytic(0)
    for share in (1e-4, 1.0, 1e8):
        with pytest.raises(ValueError) as caught:
            nearly_constant(share).check_analytic(0)
        assert str(caught.value) == (
            "caller: f loses the imaginary part of x, as a cast to real or an absolute value does:"
            " a finite difference sees a derivative that the complex step does not see")
    problem(lambda x: 1e3 * x, (x,)).check_analytic(0)
    problem(lambda x: 1e6 * (1 + 1e-7 * x.real), (x,)).check_analytic(0)
    problem(lambda x: 0 * x, (x,)).check_analytic(0)
    problem(lambda x: x[:0], (x,)).check_analytic(0)
    with pytest.raises(ValueError, match="^caller: f loses the imaginary part of x, "):
        problem(lambda x: 1e-6 * (1 + 1e-4 * x.real), (x,)).check_analytic(0)


def test_a_finite_difference_takes_a_side_only_if_it_is_much_nearer():
    p, w = problem(lambda x: x * abs(x), (x,)), np.ones(2)  # truth 4 at x = 2, complex step 2
    with pytest.raises(ValueError, match="loses the imaginary part of x"):
        p.check_side(0, w, 1, 4.0, 2.0)
    for got in (2.1, 3.9, 4.1, 0.0, 2.0):
        p.check_side(0, w, 1, got, 2.0)
    p.check_side(0, w, 0, 4.0, 2.0)  # at x = 1 the truth is 2


def test_names_come_from_the_signature():
    assert names_of(f, 2) == (3, ["x", "y"])
    assert names_of(lambda a, /, b, *, c: 0, 2) == (2, ["a", "b"])
    assert names_of(lambda *x: 0, 2) == (0, ["x0", "x1"])
    assert names_of(lambda a, *x, **y: 0, 3) == (1, ["a", "x1", "x2"])
    assert names_of(functools.partial(f, scale=2.0), 2)[1] == ["x", "y"]


def test_a_named_tuple_is_an_argument_for_each_of_its_fields():
    Pair = namedtuple("Pair", "a b")
    p = problem(lambda x, W: x * W.a + (0 if W.b is None else W.b), (x, Pair(y[:, 0], 5.0)))
    assert p.names == ["x", "W.a", "W.b"] and p.arguments == ["x", "W"] and len(p.whole) == 2
    assert p.jacobian(1).tolist() == [[1, 0], [0, 2]] and p.jacobian(2).tolist() == [[1], [1]]
    assert problem(lambda W: W.a, (Pair(x, None),)).x[1] is None
    with pytest.raises(TypeError) as caught:
        problem(lambda W: W.a, (Pair(x, x.astype("f")),))
    assert str(caught.value) == "caller: W.b has dtype float32; it needs float64, since the check counts roundings"


def test_random_gradients_and_tangents_repeat_with_the_seed():
    p = problem()
    assert (p.cotangent(None, 3) == p.cotangent(None, 3)).all()
    assert (p.cotangent(None, 3) != p.cotangent(None, 4)).all()
    a, b, c = (p.tangents(None, seed) for seed in (3, 3, 4))
    assert all((u == v).all() and (u != w).all() for u, v, w in zip(a, b, c))
    assert problem(lambda x, y: x, (x, None)).tangents(None, 0)[1] is None
    given = [x, None]
    assert p.tangents(given, 0) == given and p.tangents(tuple(given), 0) == given
    assert p.cotangent(np.array([2.0]), 0).tolist() == [2.0]


def test_outputs_without_a_gradient_weigh_nothing():
    p = problem(lambda x, y: (x, None, 2 * y))
    assert p.cotangent_vector((None, None, y)).tolist() == [0, 0, 3, -40]
    assert p.cotangent_vector((x, None, None)).tolist() == [1, 2, 0, 0]
    zero = problem(lambda x, y: (0 * x, y))
    assert zero.cotangent_vector((None, y)).tolist() == [0, 0, 3, -40]


def test_arguments_stay_as_they_are():
    p = problem()
    def spoil(a, b):
        b *= 2
    with pytest.raises(AssertionError) as caught:
        p.run("g", spoil, ["a", "b"], (x, y))
    assert str(caught.value) == "g modifies its argument b" and y.tolist() == [[3.0], [-40.0]]
    p.run("g", lambda a, b: 0, ["a", "b"], (np.array([np.nan, -np.inf]), (x, None)))


@pytest.mark.parametrize("f_vjp, f, dY, want", [
    (lambda a, b, x, y: 0, lambda x, y: 0, (1, 2), True),
    (lambda a, b, x, y, scale=1: 0, f, (1, 2), True),
    (lambda dY, x, y: 0, lambda x, y: 0, (1, 2), False),
    (lambda a, b, x, y: 0, lambda x, y: 0, 1, False),
    (lambda a, x, y: 0, lambda x, y: 0, (1,), False),
    (lambda a, b, c, x, y: 0, lambda x, y: 0, (1, 2), False),
    (lambda *given: 0, lambda x, y: 0, (1, 2), False),
    (lambda a, b, x, y: 0, lambda *given: 0, (1, 2), True),
    (lambda a, b, x, y, *, scale: 0, lambda x, y, *, scale: 0, (1, 2), True),
])
def test_gradients_are_taken_one_by_one_where_there_is_a_name_for_each(f_vjp, f, dY, want):
    assert takes_each(f_vjp, f, (x, y), dY) is want


def test_a_part_that_the_complex_step_does_not_see():
    """np.linalg.norm, var and std take |z|^2: what is left of the derivative is not all of it."""
    def unit(x):
        return x / np.linalg.norm(x)

    def normal(x):
        return (x - x.mean()) / x.std()

    def scaled(x):
        return x / np.sqrt((x * x).sum())

    at = np.array([0.3, -1.1, 2.0, 0.7])
    for f, rule in [(unit, lambda d, x: d / np.linalg.norm(x)), (normal, lambda d, x: (d - d.mean()) / x.std()),
                    (unit, lambda d, x: d / np.linalg.norm(x) - x * (x @ d) / np.linalg.norm(x) ** 3)]:
        for check in (check_vjp, check_jvp):
            with pytest.raises(ValueError, match="loses the imaginary part of x"):
                check(rule, f, at)
    check_vjp(lambda d, x: (d - x * (x @ d) / (x @ x)) / np.sqrt(x @ x), scaled, at)


def test_curves_and_kinks_hide_nothing():
    """A steep function, one with a kink nearby, and one whose derivative is far below its size."""
    problem(lambda x: np.sin(1e5 * x), (np.array([0.3]),)).check_analytic(0)
    problem(lambda x: np.where(x.real > 1e-6, x, 0.0), (np.array([0.0, 1.0]),)).check_analytic(0)
    problem(lambda x: 1e9 + x, (np.array([0.5]),)).check_analytic(0)
