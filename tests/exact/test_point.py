"""A random point: letters, constants, what is looked up there, and constants for maxima."""

import math
from fractions import Fraction
from math import inf

import numpy as np
import pytest
from flint import fmpz

from attnmath._exact import primes
from attnmath._exact.arrays import each_entry, gradient_of, letters, tracked
from attnmath._exact.outcomes import NotAlgebraic
from attnmath._exact.point import Point


def residues(x):
    return x.value, x.exponent, x.second


def test_the_primes_of_a_point():
    """Each divides the next less one; the lowest is there only for exponentials inside of others."""
    point, deep = Point(seed=1), Point(seed=1, depth=2)
    assert point.o == 1 and (point.q - 1) % point.p == 0
    assert (deep.q - 1) % deep.p == 0 == (deep.p - 1) % deep.o and deep.o > 2**126
    assert all(fmpz(p).is_prime() for p in (point.p, point.q, deep.o, deep.p, deep.q))


def test_a_seed_says_which_point_it_is():
    one, same = (residues(Point(seed=1).letter()) for _ in range(2))
    others = [Point(seed=2), Point(seed=1, attempt=1), Point(seed=1, depth=2), Point(seed=1, has_i=True)]
    assert one == same and all(residues(point.letter()) != one for point in others)


def test_letters_are_independent_modulo_each_prime():
    point = Point(seed=1, depth=2)
    x = [residues(point.letter()) for _ in range(50)]
    assert len({a for row in x for a in row}) == 150
    assert all(a < p for row in x for a, p in zip(row, (point.q, point.p, point.o)))


def test_letters_fill_the_whole_field():
    """A quarter of them in each quarter, within five standard deviations."""
    point = Point(seed=2)
    quarters = np.bincount([4 * point.letter().value // point.q for _ in range(4000)])
    assert len(quarters) == 4 and abs(quarters - 1000).max() < 5 * (4000 * 3 / 16) ** 0.5


def test_the_point_begins_again():
    point = Point(seed=1)
    first = [residues(point.letter()) for _ in range(3)]
    point.letter().exp().log()
    assert [residues(point.again().letter())] == first[:1]
    assert [residues(point.letter()) for _ in range(2)] == first[1:]


def test_logarithms_and_maxima_do_not_disturb_the_letters():
    """So that the same letters are drawn by another run that takes fewer of them."""
    point, other = Point(seed=1), Point(seed=1)
    point.maximum([point.letter(), point.letter()])
    (point.letter() + 1).log()
    [other.letter() for _ in range(3)]
    assert residues(point.letter()) == residues(other.letter())


def test_constants_have_the_same_fraction_modulo_each_prime():
    point = Point(seed=1, depth=2)
    x = point.constant(Fraction(-5, 7))
    assert [(7 * r + 5) % p for r, p in zip(residues(x), (point.q, point.p, point.o))] == [0, 0, 0]
    assert (x.top, x.bottom) == (0, 0)


@pytest.mark.parametrize("x", [3, True, 0.5, -0.75, 1e6, 2.0**-200, np.float64(2.5), np.int64(-4), Fraction(2, 3)])
def test_exact_numbers_are_taken_as_they_are(x):
    point = Point(seed=1)
    top, bottom = map(int, Fraction(x).as_integer_ratio())
    assert (bottom * point.other(x, "+").value - top) % point.q == 0


@pytest.mark.parametrize("x", [1 / 3, 1 / 3**0.5, 1 + 1e-13, float("nan"), 1j, np.float64(2 / 3), np.float32(0.1)])
def test_rounded_numbers_are_refused_with_their_value_and_the_line(x):
    point = Point(seed=1)
    with pytest.raises(NotAlgebraic, match=r"leaves the algebra.*, at test_point.py:\d+ \(test_rounded"):
        point.letter() * x


@pytest.mark.parametrize("x, fraction", [(0.1, "1/10"), (0.044715, "8943/200000"), (1e-5, "1/100000"), (1e300, 10**300)])
def test_a_float_of_few_digits_is_the_decimal_that_it_shows(x, fraction):
    point = Point(seed=1)
    assert point.other(x, "+").value == point.constant(Fraction(fraction)).value and point.decimals == {repr(x)}


def test_what_is_no_number_is_left_to_others():
    point = Point(seed=1)
    assert point.other("text", "+") is NotImplemented and point.other(None, "+") is NotImplemented
    assert point.other([1], "+") is NotImplemented
    with pytest.raises(TypeError):
        point.letter() + "text"


def test_numbers_of_another_point_are_refused():
    with pytest.raises(NotAlgebraic, match="two different points"):
        Point(seed=1).other(Point(seed=2).letter(), "+")


# ---- what the theorem counts -------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """A point of primes so small that chance can be seen."""
    monkeypatch.setattr(primes, "BITS", 11)
    primes.chain.cache_clear()
    yield Point(seed=1)
    primes.chain.cache_clear()


FALSE = {
    "an exponential": (lambda x, y: x.exp() - y.exp(), 1),
    "two exponentials": (lambda x, y: (x.exp() - 1) * (y.exp() * x.exp() - 1), 2),
    "three zeros in an exponent": (lambda x, y: ((x - 1) * (x - 2) * (x - 3)).exp() - 1, 3),
    "two letters in an exponent": (lambda x, y: (x * y).exp() - 1, 2),
}


@pytest.mark.parametrize("name", FALSE)
def test_what_is_false_passes_as_rarely_as_its_zeros_say(small, name):
    """Within five standard deviations; the degree is no less than the zeros."""
    function, zeros = FALSE[name]
    trials, chance = 12000, zeros / small.p
    passed = sum(function(small.letter(), small.letter()) == 0 for _ in range(trials))
    assert 0 < passed and abs(passed - trials * chance) < 5 * (trials * chance) ** 0.5
    assert function(small.letter(), small.letter()).top >= zeros


# ---- maxima ------------------------------------------------------------------------------------


def rows():
    point = Point(seed=1)
    x, y = point.letter(), point.letter()
    return point, x, y, point.other(-inf, "+")


def test_a_maximum_is_a_constant_of_its_own():
    """The same for the same entries, in any order, and beside hidden ones."""
    point, x, y, hidden = rows()
    c = point.maximum([x, y])
    assert c not in (x, y, x + y, 0) and c == point.maximum([y, x]) == point.maximum([x, hidden, y])
    assert c not in (point.maximum([x, x + y]), point.maximum([2 * x, 2 * y]))


def test_a_maximum_of_constants_is_their_maximum():
    point, _, _, hidden = rows()
    assert point.maximum([point.constant(k) for k in (2, -7, 5, 4)]) == 5
    assert point.maximum([hidden, point.constant(-3)]) == -3


def test_a_maximum_of_an_empty_row_is_minus_infinity():
    point, _, _, hidden = rows()
    assert point.maximum([hidden, hidden]) == hidden


def test_a_maximum_does_not_move():
    point, x, y, _ = rows()
    assert point.maximum([x.tracked(), y.tracked()]).slopes is None


def test_the_largest_entry_at_a_point_of_real_numbers_may_take_the_place_of_the_maximum():
    point, x, y, hidden = rows()
    c = point.maximum([x, y])
    with point.taking_entries():
        assert point.maximum([x, hidden, y]) == (x if x._real > y._real else y) != c
        assert point.maximum([-x, -y]) == (-x if x._real < y._real else -y)
    assert point.maximum([x, y]) == c


# ---- the point of real numbers -----------------------------------------------------------------

REAL = {
    "rational": (lambda x, y: (x * y - 3) / (y + x**2) - x**-3, lambda x, y: (x * y - 3) / (y + x**2) - x**-3),
    "exp": (lambda x, y: (x + y).exp() * x.tanh(), lambda x, y: math.exp(x + y) * math.tanh(x)),
    "log": (lambda x, y: (x.exp() + y.exp()).log(), lambda x, y: math.log(math.exp(x) + math.exp(y))),
    "log of another": (lambda x, y: (x * x + 1).log(), lambda x, y: math.log(x * x + 1)),
    "root": (lambda x, y: (2 * x).exp().sqrt() * y, lambda x, y: math.exp(x) * y),
}


@pytest.mark.parametrize("name", REAL)
def test_a_number_knows_its_value_at_a_point_of_real_numbers(name):
    """Only to see which of several is the largest; nothing is proved by it."""
    point, x, y, _ = rows()
    exact, real = REAL[name]
    assert exact(x, y)._real == pytest.approx(real(x._real, y._real), rel=1e-12)


def test_circles_at_a_point_of_real_numbers():
    x = Point(seed=1, has_i=True).letter()
    assert (x.cos()._real, x.sin()._real) == (math.cos(x._real), math.sin(x._real))


def test_the_largest_of_slopes_of_cosines():
    """They are made of e^(i x), and real all the same."""
    point = Point(seed=1, has_i=True)
    x = tracked(letters(point, (3,)))
    slopes = gradient_of(np.cos(x), each_entry(lambda _: point.one, x), x)
    assert any(isinstance(one._real, complex) for one in slopes)
    want = max(-math.sin(one._real) for one in x)
    assert point.maximum(list(slopes))._real == pytest.approx(want, rel=1e-12)


def test_the_reals_are_the_same_at_each_attempt():
    """Roots are missing at some points of the field; what is the largest does not depend on it."""
    assert Point(seed=1).letter()._real == Point(seed=1, attempt=5).letter()._real != Point(seed=2).letter()._real
