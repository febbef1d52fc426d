"""Which roots follow from others, and what is a small fraction modulo a prime."""

from fractions import Fraction

import numpy as np
import pytest

from attnmath import NotAlgebraic, prove
from attnmath._primes import chain
from attnmath._radicands import LIMIT, Radicands, reconstructed

Q = chain(2, 2, False)[-1]
X, Y, Z = (pow(7, k, Q) for k in (10**20, 10**30, 10**35 + 1))  # some residues


def residue(x):
    return Fraction(x).numerator * pow(Fraction(x).denominator, -1, Q) % Q


def test_new_radicands_are_numbered_in_their_order():
    radicands = Radicands(Q)
    assert [radicands.number(x) for x in (X, Y, X, Z, Y)] == [1, 2, 1, 3, 2] and radicands.count == 3


FOLLOW = {
    "a product": X * Y,
    "a quotient": X * pow(Y, -1, Q),
    "an inverse": pow(X, -1, Q),
    "a multiple": 4 * X,
    "a multiple that has a root": 6 * X * Y,
    "a fraction of it": X * residue(Fraction(9, 26)),
}


@pytest.mark.parametrize("name", FOLLOW)
def test_what_follows_from_others_is_not_counted(name):
    radicands = Radicands(Q)
    radicands.number(X), radicands.number(Y)
    assert radicands.number(FOLLOW[name] % Q) == 0 and radicands.count == 2


@pytest.mark.parametrize("x", [Z, X + 1, -X, 17 * X, -4 * X, X * X * Y, 2])
def test_what_does_not_follow_is_counted(x):
    """A negative multiple, a multiple whose root may be missing, a square of another, a constant."""
    radicands = Radicands(Q)
    radicands.number(X), radicands.number(Y)
    assert radicands.number(x % Q) == 3


@pytest.mark.parametrize("x", [0, 1, -1, LIMIT - 1, Fraction(-3, 7), Fraction(LIMIT - 1, LIMIT - 3)])
def test_small_fractions_are_reconstructed(x):
    assert reconstructed(residue(x), Q) == x


def test_other_residues_are_not():
    assert all(reconstructed(x, Q) is None for x in (LIMIT, *(pow(7, k, Q) for k in range(100, 200))))


# ---- signs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4, 6])
@pytest.mark.parametrize("seed", range(4))
def test_many_roots_of_squares_are_no_proof(count, seed):
    """The product of all sqrt(x^2) - x is 0 at all points but one in 2^count."""
    with pytest.raises((NotAlgebraic, AssertionError), match="undecided|refuted"):
        prove(lambda x: np.prod(np.sqrt(x * x) - x), lambda x: 0 * x.sum(), (count,), seed=seed)


SIGNS = {
    "of what is no square": (lambda x, y: np.sqrt(x * x + y) ** 2, lambda x, y: x * x + y),
    "whatever the sign": (lambda x, y: np.sqrt(x * x) ** 3, lambda x, y: np.sqrt(x * x) * x * x),
    "beside circles": (lambda x, y: np.sqrt(y + 2) * np.sin(x) / np.sqrt(y + 2), lambda x, y: np.sin(x)),
}


@pytest.mark.parametrize("name", SIGNS)
def test_what_holds_for_both_signs_is_proved(name):
    assert prove(*SIGNS[name], (), ()).error < 1e-12


@pytest.mark.parametrize("circle", [np.sin, lambda x: 0 * x])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_sign_of_a_root_of_a_square_is_not_known(circle, sign):
    """Also where the field has a root of -1, and most squares have no root of odd order."""
    for seed in range(3):
        with pytest.raises((NotAlgebraic, AssertionError), match="undecided|refuted"):
            prove(lambda x: np.sqrt(x * x) + circle(x), lambda x: sign * x + circle(x), (), seed=seed)
