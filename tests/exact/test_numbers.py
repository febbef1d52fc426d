"""Exact numbers: a field, an exponential that turns sums into products, and what follows."""

import copy
import pickle
from fractions import Fraction
from itertools import product
from math import inf

import pytest
from flint import fmpz, fmpz_mod_ctx, fmpz_mpoly_ctx

from attnmath._exact.outcomes import Circles, Deeper, NotAlgebraic, Redraw
from attnmath._exact.point import Point

FRACTIONS = [Fraction(*pair) for pair in ((0, 1), (1, 1), (-1, 1), (3, 7), (-22, 5), (1000, 999))]


@pytest.fixture
def point():
    return Point(seed=3)


def letters(point, count):
    return [point.letter() for _ in range(count)]


def with_roots(count, **kind):
    """Letters that have roots: half of all have one."""
    for attempt in range(300):
        point = Point(seed=3, attempt=attempt, **kind)
        x = letters(point, count)
        try:
            return point, x, [y.sqrt() for y in x]
        except Redraw:
            continue
    raise AssertionError("no roots at any point")


# ---- a field -----------------------------------------------------------------------------------


def test_constants_are_fractions(point):
    for x, y in product(FRACTIONS, repeat=2):
        a, b = point.constant(x), point.constant(y)
        assert a + b == x + y and a - b == x - y and a * b == x * y and (y == 0 or a / b == x / y)
        assert x + b == x + y and x - b == x - y and x * b == x * y and (y == 0 or x / b == x / y)


def test_the_fraction_of_a_constant_is_found_again(point):
    assert [point.rational(point.constant(x)) for x in FRACTIONS] == FRACTIONS
    assert point.rational(point.letter()) is None
    assert [str(point.constant(x)) for x in FRACTIONS] == [str(x) for x in FRACTIONS]


def rational(x, y, z):
    """Any function made by + - * / and powers."""
    return (x * y - 3 * z) / (x + y) + (2 - y) ** 3 / z**2 - 1 / (x - 5) + x**-2


@pytest.mark.parametrize("depth", [1, 2])
def test_letters_are_residues_modulo_each_prime(depth):
    """The same function by flint, modulo every prime."""
    point = Point(seed=4, depth=depth)
    x = letters(point, 3)
    found = rational(*x)
    names = {"value": point.q, "exponent": point.p, "second": point.o}
    for name, p in list(names.items())[:depth + 1]:
        field = fmpz_mod_ctx(fmpz(p))
        assert getattr(found, name) == int(rational(*(field(getattr(a, name)) for a in x)))


def test_the_laws_of_a_field(point):
    x, y, z = letters(point, 3)
    assert (x + y) + z == x + (y + z) and (x * y) * z == x * (y * z) and x * (y + z) == x * y + x * z
    assert x + y == y + x and x * y == y * x and x - x == 0 and x / x == 1 and -x == 0 - x and +x == x
    assert x != y and x + 1 != x and bool(x) and not x - x


def test_powers(point):
    x = point.letter()
    assert x**0 == 1 and x**1 == x and x**5 == x * x * x * x * x and x**-3 == 1 / (x * x * x)
    assert x.square() == x * x and x.reciprocal() == 1 / x and x.conjugate() == x


def test_division_by_zero_is_one(point):
    x = point.letter()
    for divide in (lambda: 1 / (x - x), lambda: x / 0, lambda: (x - x).inverse()):
        with pytest.raises(ZeroDivisionError):
            divide()


# ---- exponentials and logarithms ---------------------------------------------------------------


def test_exp_turns_sums_into_products(point):
    x, y = letters(point, 2)
    assert (x + y).exp() == x.exp() * y.exp() and (x - y).exp() == x.exp() / y.exp()
    assert (-x).exp() == 1 / x.exp() and (3 * x).exp() == x.exp() ** 3 and (x - x).exp() == 1
    assert (x / 2).exp() ** 2 == x.exp() and (x * y).exp() ** 2 == (2 * x * y).exp()


def test_exp_of_different_letters_is_different(point):
    x, y = letters(point, 2)
    found = [x, y, x.exp(), y.exp(), (x * y).exp(), x.exp() * y, (1 / x).exp(), x.exp() + y.exp(), (x + y).exp()]
    assert len({a.value for a in found}) == len(found)


def test_exp_has_the_order_of_the_exponents(point):
    """x -> g^x is well defined modulo p, and g is not 1."""
    x = point.letter()
    assert pow(x.exp().value, point.p, point.q) == 1 != x.exp().value
    assert x.exp().value == pow(point.g, x.exponent, point.q)


def test_exp_of_one_is_a_letter_of_its_own(point):
    e = point.one.exp()
    assert e not in (0, 1) and e**2 == point.constant(2).exp() and point.zero.exp() == 1


def test_an_exponential_inside_of_another_needs_one_prime_more():
    x, y = letters(Point(seed=3, depth=2), 2)
    assert (x.exp() + y).exp() == x.exp().exp() * y.exp() and x.exp().exp() != x.exp()
    with pytest.raises(Deeper):
        x.exp().exp().exp()
    with pytest.raises(Deeper):
        Point(seed=3).letter().exp().exp()


def test_log_undoes_exp(point):
    x, y = letters(point, 2)
    assert x.exp().log() == x and y.log().exp() == y
    assert (x.exp() / (y.exp() + 1)).log() == x - (y.exp() + 1).log()
    assert (x.exp() * y.exp()).log() == x + y and (1 / y).log() == -y.log() and point.one.log() == 0


def test_exp_of_a_logarithm_times_anything(point):
    x, s = letters(point, 2)
    assert (x + s.log()).exp() == x.exp() * s and (x - 2 * s.log()).exp() == x.exp() / s**2


def test_the_logarithm_of_a_shifted_sum(point):
    """log sum e^a = c + log sum e^(a - c), when either is met first."""
    a, b, c = letters(point, 3)
    whole, shifted = a.exp() + b.exp(), (a - c).exp() + (b - c).exp()
    c.exp()
    assert whole.log() == c + shifted.log()
    point = Point(seed=5)
    a, b, c = letters(point, 3)
    whole, shifted = a.exp() + b.exp(), (a - c).exp() + (b - c).exp()
    c.exp()
    assert shifted.log() == whole.log() - c


def test_the_logarithm_of_one_term_and_nothing(point):
    """As the sum of a row with one key that is not hidden."""
    x, y = letters(point, 2)
    assert (0 + x.exp()).log() == x and (0 + x.exp() * y.exp() + 0).log() == x + y


def test_the_logarithm_of_zero_is_an_error(point):
    x = point.letter()
    with pytest.raises(ZeroDivisionError):
        (x - x).log()


def test_any_power_of_an_exponential(point):
    x, y = letters(point, 2)
    assert x.exp() ** y == (x * y).exp() and (x.exp() ** Fraction(1, 3)) ** 3 == x.exp() and x.exp() ** -2 == (-2 * x).exp()


QUOTIENTS = {
    "1 / (log s + x)": lambda x, s: 1 / (s.log() + x),
    "sqrt(log s + x)": lambda x, s: (s.log() + x).sqrt(),
    "x log s": lambda x, s: x * s.log(),
    "log s / log x": lambda x, s: s.log() / x.log(),
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_a_quotient_of_logarithms_has_no_exponent(name):
    """A logarithm is known by its exponential; what is made of it otherwise cannot be one more exponent."""
    with pytest.raises(Deeper):
        for attempt in range(50):
            try:
                QUOTIENTS[name](*letters(Point(seed=3, attempt=attempt), 2)).exp()
            except Redraw:
                continue


def test_log1p_and_expm1(point):
    x = point.letter()
    assert x.expm1() == x.exp() - 1 and x.exp().log1p() == (1 + x.exp()).log() and (x.expm1().log1p() - x).exp() == 1


# ---- hyperbolic and circular functions ---------------------------------------------------------


def test_tanh_sinh_and_cosh(point):
    x, y = letters(point, 2)
    assert x.cosh() ** 2 - x.sinh() ** 2 == 1 and x.tanh() == x.sinh() / x.cosh()
    assert (x + y).tanh() == (x.tanh() + y.tanh()) / (1 + x.tanh() * y.tanh())
    assert (-x).tanh() == -x.tanh() and (1 + (x / 2).tanh()) / 2 == 1 / (1 + (-x).exp())


def test_sin_and_cos():
    x, y = letters(Point(seed=3, has_i=True), 2)
    assert x.sin() ** 2 + x.cos() ** 2 == 1
    assert (x + y).cos() == x.cos() * y.cos() - x.sin() * y.sin()
    assert (x + y).sin() == x.sin() * y.cos() + x.cos() * y.sin()
    assert (-x).sin() == -x.sin() and (-x).cos() == x.cos() and (x - x).cos() == 1 and (x - x).sin() == 0


def test_circles_and_exponentials_are_independent():
    x = Point(seed=3, has_i=True).letter()
    assert len({a.value for a in (x, x.exp(), x.sin(), x.cos(), x.tanh(), x.sinh())}) == 6


def test_circles_need_a_root_of_minus_one(point):
    with pytest.raises(Circles):
        point.letter().cos()


# ---- roots -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [{}, dict(has_i=True)])
def test_roots_of_products_and_quotients(kind):
    _, (x, y), (r, s) = with_roots(2, **kind)
    assert r * r == x and (x * y).sqrt() == r * s and (x / y).sqrt() == r / s and (x**2).sqrt() == x
    assert x**0.5 == r and x ** Fraction(-3, 2) == 1 / (r * x)


def test_roots_of_exponentials_are_there_and_are_exponentials(point):
    x, y = letters(point, 2)
    assert x.exp().sqrt() == (x / 2).exp() and (x.exp() * y.exp()).sqrt() == ((x + y) / 2).exp()
    assert x.exp().sqrt().log() == x / 2


def test_the_root_of_a_square_of_a_fraction_is_positive(point):
    assert point.constant(Fraction(9, 4)).sqrt() == Fraction(3, 2) and point.constant(0).sqrt() == 0
    assert [point.constant(k).sqrt() ** 2 for k in (2, 3, 5, 6, 7, 8, 10)] == [2, 3, 5, 6, 7, 8, 10]


def test_half_of_all_letters_have_a_root():
    found = 0
    for attempt in range(100):
        try:
            Point(seed=1, attempt=attempt).letter().sqrt()
            found += 1
        except Redraw:
            pass
    assert 30 < found < 70


# ---- degrees -----------------------------------------------------------------------------------


class Quotient:
    """Numerator and denominator as flint's polynomials, as they come: nothing is cancelled."""

    def __init__(self, top, bottom):
        self.top, self.bottom = top, bottom

    def __add__(self, y):
        y = y if isinstance(y, Quotient) else Quotient(0 * self.top + y, self.top**0)
        return Quotient(self.top * y.bottom + y.top * self.bottom, self.bottom * y.bottom)

    def __mul__(self, y):
        y = y if isinstance(y, Quotient) else Quotient(0 * self.top + y, self.top**0)
        return Quotient(self.top * y.top, self.bottom * y.bottom)

    def __pow__(self, k):
        return Quotient(self.top**k, self.bottom**k) if k >= 0 else Quotient(self.bottom, self.top) ** -k

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, y):
        return self + -1 * y

    def __rsub__(self, y):
        return -1 * self + y

    def __truediv__(self, y):
        return self * y**-1

    def __rtruediv__(self, y):
        return y * self**-1


RATIONAL = {
    "letter": lambda x, y, z: x,
    "sum": lambda x, y, z: x + y * z - 3,
    "power": lambda x, y, z: (x * y + 1) ** 4,
    "quotient": lambda x, y, z: (x * y + z) / (x - y),
    "sum of quotients": lambda x, y, z: 1 / x + 1 / y + z / (x + y),
    "all": rational,
}


@pytest.mark.parametrize("name", RATIONAL)
def test_degrees_are_those_of_the_polynomials(point, name):
    ring = fmpz_mpoly_ctx.get(["x", "y", "z"])
    found = RATIONAL[name](*letters(point, 3))
    want = RATIONAL[name](*(Quotient(x, x**0) for x in ring.gens()))
    assert (found.top, found.bottom) == (want.top.total_degree(), want.bottom.total_degree())


def test_what_cancels_is_counted_all_the_same(point):
    """The degree is a bound; a number without one is a constant."""
    x, y = letters(point, 2)
    assert (x * y - x * y).top == 2 and (x / x).top == 1 == (x / x).bottom and point.one.top == 0


def test_an_exponential_counts_as_sixty_four(point):
    x = point.letter()
    assert x.exp().top == 64 and (x.exp() + x).top == 65 and (x * x.exp()).top == 65


# ---- what is refused ---------------------------------------------------------------------------

REFUSED = {
    "<": lambda x: x < 0,
    ">=": lambda x: x >= x,
    "float": float,
    "int": int,
    "max": lambda x: max(x, 0),
    "a rounded number": lambda x: 2**0.5 * x,
    "another rounded number": lambda x: x + 1 / 3,
    "a factor near one": lambda x: x * (1 + 1e-13),
    "nan": lambda x: x + float("nan"),
    "a complex number": lambda x: x * 1j,
    "a cube root": lambda x: x ** Fraction(1, 3),
    "a power of two": lambda x: 2**x,
    "a letter as a power": lambda x: x**x,
}


@pytest.mark.parametrize("operation", REFUSED)
def test_what_leaves_the_algebra_is_refused_and_the_line_is_named(point, operation):
    with pytest.raises(NotAlgebraic, match=r"at test_numbers.py:\d+ \(<lambda>\)|at test_numbers.py:\d+ \(test_what"):
        REFUSED[operation](point.letter())


def test_numbers_that_are_exact_in_floating_point_are_taken(point):
    x = point.letter()
    assert 0.5 * x == x / 2 and x + 3.0 == 3 + x and x * -0.125 == -x / 8 and x - 1e6 == x - 10**6


def test_constants_may_be_compared(point):
    half = point.constant(Fraction(1, 2))
    assert 0 < half < 1 and half >= 0.5 and half <= half and abs(-half) == half and float(half) == 0.5
    assert int(point.constant(-7)) == -7 and -inf < point.letter() < inf


# ---- infinity ----------------------------------------------------------------------------------


def test_minus_infinity_stays_whatever_is_added(point):
    x, hidden = point.letter(), point.other(-inf, "+")
    assert x + hidden == hidden == hidden - x == -inf and -hidden == inf == x - hidden and hidden != x
    assert hidden < x.value and float(hidden) == -inf and 2 * hidden == hidden and -1 * hidden == inf


def test_its_exponential_is_zero(point):
    hidden = point.other(-inf, "+")
    assert hidden.exp() == 0 and hidden.tanh() == -1 and 1 / hidden == 0


@pytest.mark.parametrize("operation", [
    lambda h, x: h - h, lambda h, x: h + -h, lambda h, x: 0 * h, lambda h, x: x * h, lambda h, x: h / h,
])
def test_what_has_no_meaning_beside_infinity_is_refused(point, operation):
    with pytest.raises(NotAlgebraic):
        operation(point.other(-inf, "+"), point.letter())


@pytest.mark.parametrize("of", [
    lambda x, t: t, lambda x, t: x.exp(), lambda x, t: t * t / 3, lambda x, t: 1 + x * x, lambda x, t: t.sqrt(),
    lambda x, t: x.cosh() ** 3, lambda x, t: 1 / (x.exp() + t), lambda x, t: x.point.constant(Fraction(1, 7)),
    lambda x, t: x.point.maximum([x, t]), lambda x, t: x * x,
])
def test_infinity_times_what_is_surely_positive(point, of):
    """At x = 0 the product with x * x has no value, for real numbers either."""
    x, t, hidden = point.letter(), point.positive(), point.other(-inf, "+")
    number = of(x, t)
    assert hidden * number == number * hidden == hidden / number == -inf
    assert hidden * -number == -number * -hidden * -1 == inf and hidden / -number == inf


@pytest.mark.parametrize("of", [
    lambda x, t: x, lambda x, t: t - 1, lambda x, t: t + x, lambda x, t: x * t, lambda x, t: 1 / x, lambda x, t: t.log(),
    lambda x, t: x**3, lambda x, t: x.cos(), lambda x, t: x.exp() - t, lambda x, t: x.point.maximum([x, -t]),
])
def test_a_sign_that_is_not_known_is_not_guessed(of):
    point = Point(has_i=True)
    with pytest.raises(NotAlgebraic, match="its sign is not known"):
        point.other(-inf, "+") * of(point.letter(), point.positive())


@pytest.mark.parametrize("ask", [hash, str, repr, float, complex, int, pickle.dumps, "{:.2f}".format])
def test_what_shows_a_letter_is_refused(point, ask):
    with pytest.raises(NotAlgebraic):
        ask(point.letter())


def test_a_copy_is_the_number_itself_and_so_is_its_real_part(point):
    x = point.letter()
    assert x is copy.copy(x) is copy.deepcopy(x) is x.real and x.imag == 0
