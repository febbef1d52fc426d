"""Where the prover is in doubt it says so: no proof of what is false, no refutation of what is true, no bare error.

The identities without derivatives are in false_identities.py and true_identities.py.
"""

import sys
import threading

import numpy as np
import pytest

import attnmath._exact.primes
from attnmath import NotAlgebraic, check_jvp, check_vjp, prove
from attnmath._exact.arrays import gradient_of, tracked
from attnmath._exact.numbers import Number
from attnmath._exact.point import Point
from attnmath._exact.sides import differing
from false_identities import FAR
from true_identities import CASES as TRUE
from true_identities import DOUBTFUL

V = (2,)


@pytest.mark.parametrize("case", FAR, ids=lambda case: case.name)
def test_what_is_false_far_from_0_is_not_proved(case):
    left, right = case.make()
    with np.errstate(all="ignore"):
        assert not np.array_equal(*(np.asarray(side(*case.at)) for side in (left, right)), equal_nan=True)
    for seed in range(4):
        with pytest.raises(NotAlgebraic, match="undecided|leaves the algebra"):
            prove(left, right, *case.shapes, seed=seed)


@pytest.mark.parametrize("case", DOUBTFUL, ids=lambda case: case.name)
def test_what_is_true_is_not_refuted(case):
    for seed in range(4):
        with pytest.raises(NotAlgebraic):
            prove(case.left, case.right, *case.shapes, seed=seed)


ZEROS = ("commutators are traceless", "skew part has no quadratic form", "Gram-Schmidt step is orthogonal",
         "orthogonal to its factors")


@pytest.mark.parametrize("case", [case for case in TRUE if case.name in ZEROS], ids=lambda case: case.name)
def test_a_zero_that_is_rounded_far_out_is_proved(case):
    for seed in range(4):
        assert prove(case.left, case.right, *case.shapes, seed=seed).entries


@pytest.mark.parametrize("seed", range(3))
def test_a_multiple_of_the_prime_is_seen_in_float64(seed):
    q = attnmath._exact.primes.chain(seed, 2, False)[-1]
    with pytest.raises(NotAlgebraic, match="differ in float64"):
        prove(lambda x: (x, x + q * x), lambda x: (x, x), V, seed=seed)


# ---- derivatives --------------------------------------------------------------------------------


def without_nan(x):
    return np.where(np.isnan(np.sqrt(x)), 0, np.sqrt(x))


WRONG = {  # f_vjp, f
    "a root without nan": (lambda dY, x: dY, lambda x: abs(without_nan(x)) ** 2),
    "a hypotenuse without nan": (lambda dY, x: dY, lambda x: np.hypot(without_nan(x), 0 * x) ** 2),
    "a rule for letters": (lambda dY, x: dY * (x / abs(x) if x.dtype == object else 17), lambda x: abs(x)),
    "a function for letters": (lambda dY, x: dY * x / abs(x), lambda x: abs(x) * (2 if x.dtype == float else 1)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_derivative_that_the_complex_step_cannot_see_is_not_proved(name):
    rule, f = WRONG[name]
    for seed in range(3):
        for check in (check_vjp, check_jvp):
            with pytest.raises(NotAlgebraic, match="undecided"):
                check(rule, f, V, exact=True, seed=seed)


def size(x, y, a=None):
    return abs(x) * np.hypot(y, 1)


def size_vjp(dY, x, y, a=None):
    return dY * np.hypot(y, 1) * x / abs(x), (dY * abs(x) * y / np.hypot(y, 1)).sum(), None


def size_jvp(x_dot, y_dot, a_dot, x, y, a=None):
    return x_dot * np.hypot(y, 1) * x / abs(x) + y_dot * abs(x) * y / np.hypot(y, 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_right_derivative_of_it_is_proved(seed):
    assert check_vjp(size_vjp, size, V, (), None, exact=True, seed=seed).entries == 3
    assert check_jvp(size_jvp, size, V, (), None, exact=True, seed=seed).entries == 2
    assert check_vjp(lambda dY, x: dY / (2 * np.sqrt(x)), np.sqrt, V, exact=True, seed=seed).entries == 2


def test_a_derivative_that_is_right_in_float64_is_not_refuted():
    for check in (check_vjp, check_jvp):
        with pytest.raises(NotAlgebraic, match="agree in float64"):
            check(lambda dY, x: dY if x.dtype.kind == "f" else 2 * dY, lambda x: x, V, exact=True)
    with pytest.raises(AssertionError, match="refuted"):
        check_vjp(lambda dY, x: dY * (1 + 2.0**-30), lambda x: x, V, exact=True)


def test_a_product_with_logarithms_is_undecided():
    log = np.log
    for seed in range(3):
        with pytest.raises(NotAlgebraic, match="logarithms"):
            check_vjp(lambda dY, x: dY * (log(1 - x) + log(1 + x) - 2 * x * x / (1 - x * x)),
                      lambda x: x * log(1 - x * x), V, exact=True, seed=seed)


# ---- errors -------------------------------------------------------------------------------------


def squared(x):
    for _ in range(3000):
        x = x * x
    return x


SAYS = {
    "a number above all floats": (lambda x: x + 10**400, "no real numbers were found"),
    "a high degree": (squared, "degree"),
    "logical_xor": (lambda x: x * np.logical_xor(x, x), r"logical_xor.*, at test_prove_doubts.py:\d+"),
    "fmod": (lambda x: np.fmod(x, 2), "fmod"),
    "0 / 0": (lambda x: x / (x - x), "undecided: a division by 0, at test_prove_doubts.py"),
    "a mean of nothing": (lambda x: x[:0].mean(), "undecided: a division by 0"),
    "log 0": (lambda x: np.log(x - x), "undecided: the logarithm of 0, at test_prove_doubts.py"),
    "log of a hidden row": (lambda x: np.log(np.exp(x - np.inf).sum()), "the logarithm of 0"),
    "flatnonzero": (lambda x: x[np.flatnonzero(x)], "np.flatnonzero.*which letters are 0"),
    "argwhere": (lambda x: x[np.argwhere(x)], "np.argwhere.*which letters are 0"),
    "abs of -inf": (lambda x: abs(x - np.inf), "no letter"),
    "a power of -inf": (lambda x: (x - np.inf) ** 2, "a power of infinity"),
    "isnan of an entry": (lambda x: x * np.isnan(x[0]), "letters do not: TypeError: ufunc 'isnan'"),
    "arctan of an entry": (lambda x: np.arctan(x[0]), "arctan"),
    "an FFT": (lambda x: np.fft.fft(x).real, "fft"),
    "interp": (lambda x: np.interp(x, [0, 1], [0, 1]), "letters do not: TypeError"),
    "a long double": (lambda x: x * np.longdouble("0.1"), "longdouble"),
    "finfo": (lambda x: x * np.finfo(x.dtype).eps, "not inexact"),
    "no matrices": (lambda x: np.linalg.inv(x[:0].reshape(0, 1, 1)), "matrices without entries"),
    "a high power": (lambda x: x ** 2**40, r"not below 2\*\*40"),
    "a cube root by logarithms": (lambda x: np.exp(np.log(x) / 3), "unusual multiples of logarithms"),
    "a log to a power": (lambda x: np.exp(x * np.log(x)), "unusual multiples of logarithms"),
    "its own tracer": (lambda x: (sys.settrace(None), x)[1], "tracer"),
}


@pytest.mark.parametrize("name", SAYS)
def test_an_error_is_a_sentence(name):
    side, said = SAYS[name]
    with pytest.raises(NotAlgebraic, match=said):
        prove(side, side, V)


def test_an_error_of_the_function_itself_stays_what_it_is():
    with pytest.raises(TypeError, match="unsupported operand"):
        prove(lambda x: x + None, lambda x: x, V)
    with pytest.raises(TypeError, match="prove: seed is 'a'; it needs to be a whole number"):
        prove(lambda x: x, lambda x: x, V, seed="a")


def test_a_failed_import_is_no_error_of_a_side():
    def side(x):
        sys.modules.pop("this", None)
        import colorsys  # noqa: F401
        return x
    sys.modules.pop("colorsys", None)
    assert prove(side, side, V).entries == 2


def test_the_tracer_before_goes_on():
    seen = set()

    def tracer(frame, event, _):
        seen.add(frame.f_code.co_name)
        return tracer

    def inside(x):
        return x

    before = sys.gettrace(), threading.gettrace()
    sys.settrace(tracer)
    try:
        prove(inside, inside, V)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before[0])
    assert "inside" in seen and threading.gettrace() is before[1]


# ---- numbers ------------------------------------------------------------------------------------


def test_what_surely_has_a_value():
    point = Point(2, has_i=True)
    x, t = point.letter(), point.positive()
    largest = point.maximum([x, t])
    for number in (x, x * x - t, x.exp(), 1 / x, x.cos(), point.constant(2).sqrt(), 1 / (point.constant(2).sqrt() - 1)):
        assert number.sure == 2
    for number in (largest, t.log(), (1 + x * x).sqrt(), 1 / point.maximum([t, t + 1])):
        assert number.sure == 1
    for number in (x.log(), 1 / point.maximum([x, x - 1]), 0 * x.log(), point.maximum([x, x.log().exp()])):
        assert number.sure == 0
    assert (point.other(-np.inf, "+") + x).sure == 2 and (point.other(-np.inf, "+") + x.log()).sure == 0


def test_a_number_too_large_for_floats_has_a_cosine():
    x = Point(has_i=True).letter() * 10**300 * 10**300
    assert x.cos() * x.cos() + x.sin() * x.sin() == 1 and np.isnan(x.cos()._real)


def test_a_number_of_which_less_is_known_moves_as_before():
    point = Point()
    (x,) = tracked([point.letter()])
    y = point.maximum([x, x.log().exp()])
    assert isinstance(y, Number) and y.sure == 0
    assert gradient_of([y], [point.one], [x])[0].value == 1


def test_a_zero_that_moves_has_a_derivative():
    point = Point()
    (zero,), x = tracked([point.zero]), point.letter()
    assert gradient_of([zero * 2], [x], [zero])[0].value == 2 * x.value % point.q


def test_numbers_of_several_shapes_are_told_apart():
    point = Point()
    x = np.array([point.one, point.zero], dtype=object)
    assert differing(x, np.array(point.one, dtype=object)).tolist() == [False, True]
