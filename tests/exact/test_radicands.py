"""Which roots follow from others, and what is a small fraction modulo a prime."""

from fractions import Fraction

import numpy as np
import pytest

from attnmath import NotAlgebraic, prove
from attnmath._exact.primes import LIMIT, Radicands, chain, reconstructed, square_part

Q = chain(2, 2, False)[-1]
X, Y, Z = (pow(7, k, Q) for k in (10**20, 10**30, 10**35 + 1))  # some residues


def residue(x):
    return Fraction(x).numerator * pow(Fraction(x).denominator, -1, Q) % Q


def test_new_radicands_are_numbered_in_their_order():
    radicands = Radicands(Q)
    assert [radicands.number(x)[0] for x in (X, Y, X, Z, Y)] == [1, 2, 1, 3, 2] and radicands.count == 3


FOLLOW = {
    "a product": (X * Y, 1),
    "a quotient": (X * pow(Y, -1, Q), 1),
    "an inverse": (pow(X, -1, Q), 1),
    "a multiple": (4 * X, 4),
    "a multiple by a prime": (17 * X * Y, 17),
    "a fraction of it": (X * residue(Fraction(9, 26)), Fraction(9, 26)),
}


@pytest.mark.parametrize("name", FOLLOW)
def test_what_follows_from_others_is_not_counted(name):
    radicands = Radicands(Q)
    radicands.number(X), radicands.number(Y)
    x, factor = FOLLOW[name]
    assert radicands.number(x % Q) == (0, factor) and radicands.count == 2


@pytest.mark.parametrize("x", [Z, X + 1, -X, -4 * X, X * X * Y, 2])
def test_what_does_not_follow_is_counted(x):
    """A negative multiple, a square of another, a constant."""
    radicands = Radicands(Q)
    radicands.number(X), radicands.number(Y)
    assert radicands.number(x % Q) == (3, 1)


@pytest.mark.parametrize("x", [0, 1, -1, LIMIT - 1, Fraction(-3, 7), Fraction(LIMIT - 1, LIMIT - 3)])
def test_small_fractions_are_reconstructed(x):
    assert reconstructed(residue(x), Q) == x


def test_other_residues_are_not():
    assert all(reconstructed(x, Q) is None for x in (LIMIT, *(pow(7, k, Q) for k in range(100, 200))))


@pytest.mark.parametrize("x", [1, 2, 12, 289, 19, 4 * 9 * 17, 499979**2, 2**39])
def test_a_number_is_a_square_times_different_primes(x):
    n, primes = square_part(x)
    assert n * n * np.prod(primes, dtype=int) == x and len({*primes}) == len(primes)


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


NORM = {17: 17, -17: -17, "3/5": Fraction(3, 5), "-3/5": -Fraction(3, 5)}


@pytest.mark.parametrize("name", NORM)
@pytest.mark.parametrize("seed", range(20))
def test_a_factor_comes_out_of_a_norm_with_its_sign(name, seed):
    c = NORM[name]
    sides = lambda x: np.linalg.norm(c * x), lambda x: c * np.linalg.norm(x)
    if c > 0:
        assert prove(*sides, (3,), seed=seed).error < 1e-12
        return
    with pytest.raises(AssertionError, match="refuted"):
        prove(*sides, (3,), seed=seed)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("a, b", [(2, 3), (17, 19), (8, 2), (34, 51)])
def test_the_roots_of_numbers_multiply(a, b, sign):
    for seed in range(5):
        try:
            prove(lambda x: np.sqrt(a * exact_one(x)) * np.sqrt(b * exact_one(x)) * x,
                  lambda x: sign * np.sqrt(a * b * exact_one(x)) * x, (), seed=seed)
        except AssertionError:
            assert sign == -1
        else:
            assert sign == 1


def exact_one(x):
    """1 as an exact number, where x is one."""
    return np.ones_like(x)
