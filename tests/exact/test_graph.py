"""Derivatives of exact numbers: those of flint's polynomials, and of one another."""

from fractions import Fraction
from math import inf

import numpy as np
import pytest
from flint import fmpz, fmpz_mod_ctx, fmpz_mod_poly_ctx, fmpz_mpoly_ctx

import attnmath._exact.functions  # noqa: F401  what NumPy's functions do with these numbers
from attnmath._exact.arrays import bare, exact, gradient_of, letters, made_of, tangent_of, tracked
from attnmath._exact.point import Point

POINT = Point(seed=11)
FIELD = fmpz_mod_ctx(fmpz(POINT.q))


def letter(point=POINT):
    return tracked(letters(point, ()))


def ones(*shape, point=POINT):
    return exact(np.ones(shape), point)


def derivative(function, x):
    """Of a function of one number, by x."""
    return gradient_of(function(x), ones(point=x.point), x)[()]


# ---- against flint -----------------------------------------------------------------------------

ONE = {
    "a power": (lambda x: x**7, lambda x: 1),
    "a polynomial": (lambda x: 3 * x**4 - x**3 + 2 * x - 7, lambda x: 1),
    "one over": (lambda x: 1, lambda x: x),
    "a quotient": (lambda x: x**3 + 2 * x, lambda x: x**2 + 1),
    "another": (lambda x: (x - 1) ** 3 * (2 * x + 5), lambda x: (x + 4) ** 2 * x),
    "a constant": (lambda x: 5, lambda x: 3),
}


@pytest.mark.parametrize("name", ONE)
def test_derivatives_of_quotients_are_flint_s(name):
    top, bottom = ONE[name]
    ring = fmpz_mod_poly_ctx(FIELD)
    x, t = letter(), ring([0, 1])
    n, d = (f(t) + ring([0]) for f in (top, bottom))
    slope = (n.derivative() * d - n * d.derivative())(x[()].value) / d(x[()].value) ** 2
    assert derivative(lambda x: (top(x) + 0 * x) / (bottom(x) + 0 * x), x).value == int(slope)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_derivatives_by_each_of_three_letters_are_flint_s(k):
    """Of a polynomial that uses its parts more than once."""
    def function(x, y, z):
        s = x * y + 2 * z
        return s**2 * (s + x) - z * s + y**3

    ring = fmpz_mpoly_ctx.get(["x", "y", "z"])
    x = tracked(letters(POINT, (3,)))
    want = function(*ring.gens()).derivative(k)
    at = {tuple(map(int, m)): int(c) for m, c in want.to_dict().items()}
    value = sum(c * np.prod([x[i].value ** e for i, e in enumerate(m)], dtype=object) for m, c in at.items())
    found = gradient_of(function(*x), ones(), x)
    assert found.shape == (3,) and found[k].value == value % POINT.q


# ---- rules -------------------------------------------------------------------------------------

RULES = {
    "exp": (lambda x: x.exp(), lambda x: x.exp()),
    "exp of a quotient": (lambda x: (1 / x).exp(), lambda x: -(1 / x).exp() / x**2),
    "log": (lambda x: (x + 3).log(), lambda x: 1 / (x + 3)),
    "log of exponentials": (lambda x: (x.exp() + 1).log(), lambda x: x.exp() / (x.exp() + 1)),
    "exp of a logarithm": (lambda x: (2 * x + x.log()).exp(), lambda x: (2 * x).exp() * (2 * x + 1)),
    "tanh": (lambda x: x.tanh(), lambda x: 1 - x.tanh() ** 2),
    "sinh": (lambda x: x.sinh(), lambda x: x.cosh()),
    "cosh": (lambda x: x.cosh(), lambda x: x.sinh()),
    "a root of an exponential": (lambda x: x.exp().sqrt(), lambda x: (x / 2).exp() / 2),
    "a negative power": (lambda x: x**-4, lambda x: -4 * x**-5),
    "silu": (lambda x: x / (1 + (-x).exp()),
             lambda x: 1 / (1 + (-x).exp()) + x * (-x).exp() / (1 + (-x).exp()) ** 2),
}


@pytest.mark.parametrize("name", RULES)
def test_rules(name):
    function, slope = RULES[name]
    x = letter()
    assert derivative(lambda x: function(x[()]), x) == slope(x[()])


def test_the_rules_of_circles():
    x = letter(Point(seed=11, has_i=True))
    assert derivative(np.sin, x) == np.cos(x) and derivative(np.cos, x) == -np.sin(x)


def test_the_rule_of_roots():
    for attempt in range(50):
        x = letters(Point(seed=11, attempt=attempt), ())
        if pow(x[()].value, (x.point.q - 1) // 2, x.point.q) == 1:
            x = tracked(x)
            assert derivative(np.sqrt, x) == 1 / (2 * np.sqrt(x))
            return
    raise AssertionError("no root at any point")


def test_an_exponential_inside_of_another():
    x = letter(Point(seed=11, depth=2))
    assert derivative(lambda x: np.exp(np.exp(x)), x) == np.exp(np.exp(x)) * np.exp(x)


# ---- what moves, and what does not -------------------------------------------------------------


def test_constants_maxima_and_bare_numbers_do_not_move():
    x = tracked(letters(POINT, (3,)))
    for y in (x.max(), bare(x)[0], x[0] - x[0] + 3, POINT.one, np.exp(bare(x[:1]))[0]):
        assert (gradient_of(y, ones(), x) == 0).all()


def test_what_is_differentiated_by_is_a_letter_of_its_own():
    """x^2 as a letter y: y + x has the derivative 1 by y, and by x."""
    x = letter()
    y = tracked(x * x)
    assert derivative(lambda y: y + x, y) == 1 and derivative(lambda x: y + x, x) == 1 + 2 * x
    assert (y == x * x).all()


TRACKED = {
    "an exponential": lambda x: np.exp(x),
    "a sum of exponentials": lambda x: np.exp(x) + np.exp(2 * x),
    "a weight": lambda x: np.exp(x) / (1 + np.exp(x)),
    "a product": lambda x: x * (x + 1),
    "a quotient": lambda x: 1 / (1 + x),
    "a root": lambda x: np.sqrt(np.exp(x)),
}


@pytest.mark.parametrize("name", TRACKED)
def test_the_logarithm_of_what_is_tracked_moves_with_it(name):
    """Not with what it was made of: its logarithm is known from that, its derivative is not."""
    y = tracked(TRACKED[name](letters(POINT, ())))
    assert derivative(np.log, y) == 1 / y


@pytest.mark.parametrize("name", TRACKED)
def test_the_logarithm_of_a_constant_does_not_move(name):
    x = letter()
    assert derivative(lambda x: np.log(bare(TRACKED[name](x))), x) == 0


@pytest.mark.parametrize("name", TRACKED)
def test_the_logarithm_moves_with_what_its_argument_was_made_of(name):
    x = letter()
    y = TRACKED[name]
    assert derivative(lambda x: np.log(y(x)), x) == derivative(y, x) / y(x)


def test_the_root_of_an_exponential_that_is_tracked_or_constant():
    x = letter()
    y = tracked(np.exp(x))
    assert derivative(np.sqrt, y) == 1 / (2 * np.sqrt(y)) and derivative(lambda x: np.sqrt(bare(np.exp(x))), x) == 0


def test_any_power_of_an_exponential_that_is_tracked_or_constant():
    x, k = letter(), Fraction(1, 3)
    y = tracked(np.exp(x))
    assert derivative(lambda y: y**k, y) == y**k / (3 * y) and derivative(lambda x: bare(np.exp(x)) ** k, x) == 0
    assert derivative(lambda x: np.exp(x) ** k, x) == np.exp(k * x) / 3


def test_minus_infinity_does_not_move():
    x = tracked(letters(POINT, (3,)))
    masked = np.where([True, False, True], x, -inf)
    found = gradient_of(np.exp(masked), ones(3), x)
    assert (found == np.where([True, False, True], np.exp(x), 0)).all()


def test_a_number_used_often_adds_up():
    x = letter()
    y = x
    for _ in range(60):  # 2^60 ways from x to y
        y = y + y
    assert derivative(lambda _: y, x) == 2**60


def test_a_long_chain_needs_no_recursion():
    x = letter()
    y = x
    for _ in range(5000):
        y = y + 1
    assert derivative(lambda _: y, x) == 1


def test_what_is_made_of_others_comes_later():
    x = letter()[()]
    y = x * x
    z = y + x
    order = made_of([z])
    places = {id(part): place for place, part in enumerate(order)}
    assert places[id(x)] < places[id(y)] < places[id(z)] and len(order) == len(places) == 3


# ---- arrays ------------------------------------------------------------------------------------


def test_the_gradient_of_a_product_of_matrices():
    X, Y = tracked(letters(POINT, (3, 4))), tracked(letters(POINT, (4, 2)))
    G = letters(POINT, (3, 2))
    assert (gradient_of(X @ Y, G, X) == G @ Y.T).all() and (gradient_of(X @ Y, G, Y) == X.T @ G).all()


def test_the_gradient_through_what_rearranges():
    X, G = tracked(letters(POINT, (3, 4))), letters(POINT, (2, 6))
    assert (gradient_of(X[::-1].reshape(2, 6), G, X) == G.reshape(3, 4)[::-1]).all()
    assert (gradient_of(np.concatenate([X, X]), ones(6, 4), X) == 2).all()


def test_a_gradient_is_linear_in_the_weights():
    X, (F, G) = tracked(letters(POINT, (2, 3))), letters(POINT, (2, 2, 3))
    Y = np.exp(X) * X.sum()
    assert (gradient_of(Y, F + 2 * G, X) == gradient_of(Y, F, X) + 2 * gradient_of(Y, G, X)).all()


def head(Q, K, V):
    E = np.exp(Q @ K.T)
    return E / E.sum(-1, keepdims=True) @ V


def test_gradients_and_tangents_are_transposes():
    """<dY, Y_dot> is the sum of <dX, X_dot> over the arguments."""
    x = [tracked(letters(POINT, shape)) for shape in ((2, 3), (4, 3), (4, 2))]
    dots = [letters(POINT, part.shape) for part in x]
    Y, dY = head(*x), letters(POINT, (2, 2))
    Y_dot = tangent_of(Y, list(zip(x, dots)))
    assert (dY * Y_dot).sum() == sum((gradient_of(Y, dY, a) * dot).sum() for a, dot in zip(x, dots))


def test_a_tangent_moves_only_what_it_is_given():
    x, y = letter(), letter()
    one = ones()
    assert tangent_of(x * y, [(x, one)]) == y and tangent_of(x * y, [(x, one), (y, one)]) == x + y
    assert tangent_of(y * y, [(x, one)]) == 0


def test_a_jacobian_entry_by_entry():
    """That of a softmax, diag(P) - P P^T."""
    A = tracked(letters(POINT, (4,)))
    P = np.exp(A) / np.exp(A).sum()
    J = np.stack([gradient_of(p, ones(), A) for p in P])
    assert (J == np.where(np.eye(4, dtype=bool), P, 0) - np.outer(P, P)).all()


def test_letters_of_gradients():
    """What a gradient returns does not move: it is exact, and it is a number like others."""
    x = letter()
    slope = gradient_of(x**3, ones(), x)
    assert slope[()].slopes is None and (slope == 3 * x**2).all()


@pytest.mark.parametrize(("function", "slope"), [(np.exp, 1), (np.sin, 1), (np.cos, 0), (np.tanh, 1), (np.sqrt, Fraction(1, 2)), (np.log, 1)])
def test_at_a_number_that_is_known_the_slope_is_there_all_the_same(function, slope):
    """As in a setting in which all scores are 0, and their gradients are not."""
    at = 1 if function in (np.sqrt, np.log) else 0
    point = Point(seed=11, has_i=True) if function in (np.sin, np.cos) else POINT
    x = tracked(exact(np.full((), at), point))
    assert derivative(function, x) == exact(np.full((), slope), point)[()]
