"""The checks themselves: what they accept, and above all what they refuse and how they say it."""

from collections import namedtuple

import array_api_strict
import numpy as np
import pytest
import torch

from attnmath import (
    attention,
    attention_jvp,
    attention_map,
    attention_vjp,
    check_jvp,
    check_vjp,
    complex_step,
    softmax,
    softmax_jvp,
    softmax_vjp,
)

rng = np.random.default_rng(6)
Q, K, V, B = (rng.normal(size=s) for s in [(4, 3), (5, 3), (5, 2), (4, 5)])
GAMMA = 0.7
B[0, 1] = B[2] = -np.inf
HEAD = Q, K, V, B, GAMMA
ARRAYS = [np.asarray, torch.as_tensor, array_api_strict.asarray]


def product(X, F):
    return X @ F


def product_vjp(dY, X, F):
    return dY @ F.T, X.T @ dY


def product_jvp(X_dot, F_dot, X, F):
    return X_dot @ F + X @ F_dot


X, F = rng.normal(size=(4, 3)), rng.normal(size=(3, 5))

# ---- complex step ------------------------------------------------------------------------------


@pytest.mark.parametrize("array", ARRAYS)
def test_complex_step(array):
    """Against derivatives known by heart, and against PyTorch's."""
    x, x_dot = np.array([0.5, 2.0, 3.0]), np.array([1.0, -1.0, 0.5])
    got = complex_step(lambda z: z * z * z, array(x), array(x_dot))
    assert np.abs(np.asarray(got) - 3 * x**2 * x_dot).max() <= 4e-15
    assert complex_step(lambda z: z**2, 3.0, 2) == 12.0
    assert complex_step(lambda z: z * array(x), 3.0, 1.0)[1] == 2.0
    assert (np.asarray(complex_step(lambda z: 2.0 * array(x), 3.0, 1.0)) == np.zeros(3)).all()
    t, t_dot = torch.as_tensor(Q), torch.as_tensor(Q[::-1].copy())
    want = torch.autograd.functional.jvp(lambda t: torch.softmax(t @ t.T, -1), t, t_dot)[1].numpy()
    step = complex_step(lambda q: softmax(q @ q.T), array(Q), array(Q[::-1].copy()))
    assert np.abs(np.asarray(step) - want).max() <= 1e-14


def test_complex_step_of_several_outputs():
    Pair = namedtuple("Pair", "square cube nothing")
    got = complex_step(lambda z: Pair(z**2, (z**3, 1.0), None), 2.0, 1.0)
    assert got == Pair(4.0, (12.0, 0.0), None)
    assert type(got) is Pair
    assert all(np.isfinite(part).all() for part in complex_step(lambda B: attention_map(Q, K, V, B), B, np.ones(B.shape)))


def test_complex_step_loses_nothing_to_cancellation():
    """A central difference of e^x has 11 digits; the complex step has them all, at every scale."""
    for x in (1e-200, 1e-8, 1.0, 30.0):
        assert abs(complex_step(np.exp, x, 1.0) / np.exp(x) - 1) <= 4e-16
        assert abs(complex_step(lambda z: z**3, x, 1.0) / (3 * x**2 or 1) - 1) <= 1e-15 or x < 1e-100
    tiny = complex_step(lambda z: z * z, np.array([1e100]), np.array([1e-100]))
    assert abs(tiny[0] - 2.0) < 1e-15


def test_complex_step_of_a_real_result_is_zero():
    assert (complex_step(np.abs, np.array([2.0, -3.0]), np.ones(2)) == [0.0, 0.0]).all()
    assert complex_step(abs, -3.0, 1.0) == 0.0


@pytest.mark.parametrize("x, x_dot, error, sentence", [
    (X, X[0], ValueError, "complex_step: x_dot has shape (3,); it needs (4, 3), the shape of x"),
    ([1.0], [1.0], TypeError, "complex_step: x is a list; it needs to be an array or a real number"),
    (1.0, "a", TypeError, "complex_step: x_dot is a str; it needs to be an array or a real number"),
    (True, 1.0, TypeError, "complex_step: x is a bool; it needs to be an array or a real number"),
    (X.astype("f"), X, TypeError, "complex_step: x has dtype float32; it needs float64, since the check"
     " counts roundings"),
    (X + 0j, X, TypeError, "complex_step: x has dtype complex128; it needs float64, since the check counts"
     " roundings"),
    (1j, 1.0, TypeError, "complex_step: x is a complex; it needs to be an array or a real number"),
])
def test_complex_step_refuses(x, x_dot, error, sentence):
    with pytest.raises(error) as caught:
        complex_step(lambda z: z, x, x_dot)
    assert str(caught.value) == sentence


# ---- what is right passes ----------------------------------------------------------------------


@pytest.mark.parametrize("array", ARRAYS)
def test_check_vjp(array):
    check_vjp(attention_vjp, attention, *map(array, HEAD[:4]), GAMMA)
    check_vjp(attention_vjp, attention, *map(array, HEAD[:3]))
    check_vjp(attention_vjp, attention, *map(array, HEAD[:3]), None, GAMMA)
    check_vjp(attention_vjp, attention, *map(array, HEAD[:3]), None, None)
    check_vjp(softmax_vjp, softmax, array(Q), tau=2.0)
    check_vjp(lambda dY, x: dY * 3 * x**2, lambda x: x**3, 2.0)
    check_vjp(lambda dY, x: dY * array(X * 0 + 2), lambda x: x * 2, array(X), dY=array(X))


@pytest.mark.parametrize("array", ARRAYS)
def test_check_jvp(array):
    check_jvp(attention_jvp, attention, *map(array, HEAD[:4]), GAMMA)
    check_jvp(attention_jvp, attention, *map(array, HEAD[:3]))
    check_jvp(attention_jvp, attention, *map(array, HEAD[:3]), None, GAMMA)
    check_jvp(softmax_jvp, softmax, array(Q), tau=2.0)
    check_jvp(lambda x_dot, x: 3 * x**2 * x_dot, lambda x: x**3, 2.0, x_dot=(1.5,))
    check_jvp(lambda *a: 2 * a[0], lambda *a: 2 * a[0], array(X), x_dot=[array(X)])
    check_jvp(attention_jvp, attention, *map(array, HEAD[:3]), x_dot=(array(Q), None, array(V)))


Both = namedtuple("Both", "square product")


def both(X, F):
    return Both(X * X, X @ F)


def both_vjp(dY, X, F):
    return 2 * X * dY.square + dY.product @ F.T, X.T @ dY.product


def both_jvp(X_dot, F_dot, X, F):
    return Both(2 * X * X_dot, X_dot @ F + X @ F_dot)


def test_several_outputs_take_several_gradients():
    check_vjp(both_vjp, both, X, F)
    check_vjp(lambda dY, X, F: both_vjp(Both(*dY), X, F), both, X, F, dY=(X, X @ F))
    check_vjp(lambda dY, X, F: 2 * X * dY[0], lambda X, F: both(X, F), X, F=F, dY=(X, None))
    check_jvp(both_jvp, both, X, F)
    with pytest.raises(AssertionError, match=r"^dX: the largest error is"):
        check_vjp(lambda dY, X, F: (2 * X * dY.square, X.T @ dY.product), both, X, F)
    with pytest.raises(AssertionError, match=r"^product_dot along F_dot: the largest error is"):
        check_jvp(lambda a, b, X, F: Both(2 * X * a, a @ F - X @ b), both, X, F)


def test_the_gradients_of_several_outputs_may_be_taken_one_by_one():
    """f_vjp has a name for each: as many more than f as f has outputs."""
    def each(dsquare, dproduct, X, F, wrong=0):
        return both_vjp(Both(dsquare, dproduct * (1 + wrong)), X, F)

    check_vjp(lambda dsquare, dproduct, X, F: each(dsquare, dproduct, X, F), both, X, F)
    check_vjp(lambda a, b, X, F: each(a, b, X, F), both, X, F, exact=True)
    check_vjp(lambda a, b, X: 2 * X * a, lambda X: (X * X, 3.0 + 0 * X), X, dY=(X, X))
    check_vjp(lambda a, X: 2 * X * a[0], lambda X: (X * X,), X)
    check_vjp(lambda a, b, X, F: each(a, X @ F, X, F), both, X, F, dY=(X, X @ F))
    with pytest.raises(AssertionError, match=r"^dX: the largest error is"):
        check_vjp(lambda a, b, X, F: each(a, b, X, F, 1e-9), both, X, F)
    with pytest.raises(AssertionError, match=r"^refuted: dX differs"):
        check_vjp(lambda a, b, X, F: each(b, b, X, F) if a.shape == b.shape else each(a, 2 * b, X, F), both, X, F, exact=True)
    with pytest.raises(AssertionError, match="^f_vjp modifies its argument dproduct$"):
        check_vjp(lambda dsquare, dproduct, X, F: spoil(dproduct) is X or each(dsquare, dproduct, X, F), both, X, F)


Inside = namedtuple("Inside", "first nested nothing")


def inside(X, F):
    return Inside(X @ F, Both(X * X, 0 * X + 0.5), None)


def inside_jvp(X_dot, F_dot, X, F, factor=1.0):
    return Inside(X_dot @ F + X @ F_dot, Both(2 * X * X_dot * factor, 0 * X), None)


def inside_vjp(dY, X, F):
    return dY.first @ F.T + 2 * X * dY.nested.square, X.T @ dY.first


@pytest.mark.parametrize("exact", [False, True])
def test_outputs_may_be_named_tuples_inside_of_one(exact):
    check_jvp(inside_jvp, inside, X, F, exact=exact)
    check_vjp(inside_vjp, inside, X, F, exact=exact)
    check_vjp(lambda a, b, c, X, F: inside_vjp(Inside(a, b, c), X, F), inside, X, F, exact=exact)
    said = "refuted: nested.square_dot differs" if exact else "nested.square_dot along X_dot: the largest error"
    with pytest.raises(AssertionError, match=f"^{said}"):
        check_jvp(lambda *x: inside_jvp(*x, factor=2.0 if exact else 1 + 1e-9), inside, X, F, exact=exact)
    with pytest.raises(AssertionError, match="^f_jvp returns 2 tangents for 3 outputs$"):
        check_jvp(lambda *x: inside_jvp(*x)[:2], inside, X, F, exact=exact)
    with pytest.raises(AssertionError, match="^nested_dot is a tuple; it needs the fields square, product$"):
        check_jvp(lambda *x: inside_jvp(*x)._replace(nested=(X, X)), inside, X, F, exact=exact)
    with pytest.raises(AssertionError, match="^nested.square_dot( along X_dot)? is"):
        check_jvp(lambda *x: inside_jvp(*x)._replace(nested=None), inside, X, F, exact=exact)


def test_a_given_gradient_of_a_tuple_inside_has_its_fields():
    part = Inside(X @ F, Both(X, None), None)
    check_vjp(lambda dY, X, F: (dY.first @ F.T + 2 * X * dY.nested.square, X.T @ dY.first), inside, X, F, dY=part)
    check_vjp(lambda dY, X, F: (dY.first @ F.T, X.T @ dY.first), inside, X, F, dY=part._replace(nested=None))
    with pytest.raises(ValueError, match="^check_vjp: dY needs the fields of f's output, square, product$"):
        check_vjp(inside_vjp, inside, X, F, dY=part._replace(nested=(X, X)))


def test_a_field_that_does_not_move_allows_roundings_of_its_output():
    """Fields of one tuple are measured together, different outputs each by itself."""
    off = 1e-15
    check_jvp(lambda X_dot, X: (Both(X_dot, X * 0 + off),), lambda X: (Both(X, X * 0),), X)
    with pytest.raises(AssertionError, match="^product_dot along X_dot: the largest error is 1.0e-15 at entry"):
        check_jvp(lambda X_dot, X: Both(X_dot, X * 0 + off), lambda X: Both(X, X * 0), X)


def test_gradients_may_be_lists_numbers_or_integers():
    check_vjp(lambda dY, X, F: list(product_vjp(dY, X, F)), product, X, F)
    check_vjp(lambda dY, x: int(2 * dY), lambda x: 2 * x, 1.0, dY=3.0)
    check_vjp(lambda dY, x: np.array([2, 3]), lambda x: x[0] * x[1], np.array([3.0, 2.0]), dY=1.0)


def test_badly_conditioned_problems_pass():
    """What one rounding of the inputs changes is no mistake, at whatever magnitude."""
    check_vjp(attention_vjp, attention, 300 * Q, 300 * K, V, B, GAMMA)
    check_jvp(attention_jvp, attention, 300 * Q, 300 * K, V, B, GAMMA)
    check_vjp(attention_vjp, attention, Q, K, V + 1e8, B, GAMMA)
    check_vjp(attention_vjp, attention, Q, np.ones(K.shape), V, B, GAMMA)  # dQ is 0 but for rounding
    check_vjp(attention_vjp, attention, Q, K[:1], V[:1])  # one key: P is 1 whatever Q is
    check_jvp(attention_jvp, attention, Q, np.ones(K.shape), V, B, GAMMA)
    check_vjp(lambda dY, x: dY / 3, lambda x: (x + 1e6 - 1e6) / 3, X)


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_scale_makes_no_difference(unit):
    check_vjp(attention_vjp, attention, Q, K, unit * V, B, GAMMA)
    for bad in (0.0, 1 + 1e-9):
        with pytest.raises(AssertionError, match="^dQ: the largest error"):
            check_vjp(times(bad), attention, Q, K, unit * V, B, GAMMA)
        with pytest.raises(AssertionError, match="^dQ: the largest error"):
            check_vjp(times(bad), attention, Q, K, V, B, GAMMA, dY=unit * rng.normal(size=(4, 2)))


# ---- what is wrong is refused, argument by argument ---------------------------------------------


def times(factor, name="dQ"):
    def wrong(dO, *x):
        right = attention_vjp(dO, *x)
        return right._replace(**{name: factor * getattr(right, name)})
    return wrong


def replaced(name, new):
    def wrong(dO, *x):
        return attention_vjp(dO, *x)._replace(**{name: new(dO, *x)})
    return wrong


def no_row_sum(dO, Q, K, V, B, gamma):
    P = attention_map(Q, K, V, B, gamma).P
    return gamma * (P * (dO @ V.T)) @ K


MISTAKES = {
    "row sum forgotten": ("dQ", replaced("dQ", no_row_sum)),
    "gamma forgotten": ("dK", times(1 / GAMMA, "dK")),
    "sign": ("dV", times(-1, "dV")),
    "zero": ("dB", times(0, "dB")),
    "ten to the minus nine": ("dgamma", times(1 + 1e-9, "dgamma")),
    "ten to the minus eleven": ("dK", times(1 + 1e-11, "dK")),
    "P not transposed": ("dV", replaced("dV", lambda dO, *x: np.vstack([attention_map(*x).P[:, :4] @ dO, 0 * dO[:1]]))),
    "one entry": ("dK", replaced("dK", lambda dO, *x: attention_vjp(dO, *x).dK + 1e-9 * (np.arange(15) == 7).reshape(5, 3))),
    "ignores dO": ("dQ", replaced("dQ", lambda dO, *x: attention_vjp(np.ones_like(dO), *x).dQ)),
    "mask forgotten": ("dB", replaced("dB", lambda dO, Q, K, V, B, g: attention_vjp(dO, Q, K, V, np.zeros(B.shape), g).dB)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_planted_mistakes_are_refused_by_name(mistake):
    name, wrong = MISTAKES[mistake]
    pattern = (rf"^{name}: the (largest )?error is \d\.\de[-+]\d\d( at entry \(\d, \d\))?;"
               r" allowed \d\.\de-1\d$")
    with pytest.raises(AssertionError, match=pattern):
        check_vjp(wrong, attention, *HEAD)


def test_the_message_names_entry_error_and_allowance():
    """All numbers can be worked out: Y = 2 x, dY = (1, 2, 4), so the gradient is (2, 4, 8)."""
    x, dY = np.ones(3), np.array([1.0, 2.0, 4.0])
    with pytest.raises(AssertionError) as caught:
        check_vjp(lambda dY, x: dY * [2, 2, 2.25], lambda x: 2 * x, x, dY=dY)
    assert str(caught.value) == "dx: the largest error is 1.0e+00 at entry (2,); allowed 2.0e-13"
    with pytest.raises(AssertionError) as caught:
        check_vjp(lambda dY, x: 0.0, lambda x: 3 * x, 1.0, dY=2.0)
    assert str(caught.value) == "dx: the error is 6.0e+00; allowed 8.5e-14"
    with pytest.raises(AssertionError) as caught:
        check_jvp(lambda x_dot, x: x_dot * [2, 3, 2], lambda x: 2 * x, x, x_dot=(dY,))
    assert str(caught.value) == "Y_dot along x_dot: the largest error is 2.0e+00 at entry (1,); allowed 1.1e-13"


def test_the_allowance_is_that_many_roundings():
    """128 roundings of the magnitude; a few more are refused."""
    def off(roundings):
        return lambda dY, x: dY * 2 * (1 + roundings * 2.0**-53)
    for roundings in (-120, 120):
        check_vjp(off(roundings), lambda x: 2 * x, 1.0, dY=1.0)
        check_jvp(off(roundings), lambda x: 2 * x, 1.0, x_dot=(1.0,))
    for roundings in (-136, 136):
        with pytest.raises(AssertionError, match="allowed 2.8e-14"):
            check_vjp(off(roundings), lambda x: 2 * x, 1.0, dY=1.0)
        with pytest.raises(AssertionError, match="allowed 2.8e-14"):
            check_jvp(off(roundings), lambda x: 2 * x, 1.0, x_dot=(1.0,))


def test_what_cancels_counts_with_its_magnitude():
    """The sum 1 x - (1 - 2^-20) x is small; what is allowed follows the terms, not the sum."""
    dY, w = np.array([1.0, -1.0]), np.array([1.0, 1 - 2.0**-20])
    check_vjp(lambda dY, x: 2.0**-20 + 100 * 2.0**-53, lambda x: w * x, 1.0, dY=dY)
    with pytest.raises(AssertionError, match="allowed 2.8e-14"):
        check_vjp(lambda dY, x: 2.0**-20 + 400 * 2.0**-53, lambda x: w * x, 1.0, dY=dY)


def test_mistakes_in_a_tangent_are_refused_along_the_argument():
    def wrong(k, factor):
        return lambda *a: attention_jvp(*(factor * a[j] if j == k else a[j] for j in range(5)), *a[5:])
    for k, name in enumerate(["Q", "K", "V", "B", "gamma"]):
        for factor in (0, -1, 1 + 1e-9):
            with pytest.raises(AssertionError, match=rf"^Y_dot along {name}_dot: the largest error is"):
                check_jvp(wrong(k, factor), attention, *HEAD)


def test_tangents_must_add_up():
    """Right along each argument and wrong along both: only a check of all together can tell."""
    def wrong(X_dot, F_dot, X, F):
        return X_dot @ F + X @ F_dot + X_dot.any() * F_dot.any()
    with pytest.raises(AssertionError, match="^Y_dot along all tangents: the largest error is 1.0e"):
        check_jvp(wrong, product, X, F)


def spoil(x):
    x *= 2
    return x


def test_a_named_tuples_own_names_are_used():
    Found = namedtuple("Found", "gX gF")
    with pytest.raises(AssertionError, match="^gF: the largest error is"):
        check_vjp(lambda dY, X, F: Found(dY @ F.T, 0 * F), product, X, F)


def test_an_argument_of_none_does_not_hide_the_next_one():
    with pytest.raises(AssertionError, match="^dgamma: the error is"):
        check_vjp(times(2, "dgamma"), attention, Q, K, V, None, GAMMA)


def test_an_output_that_nothing_moves_allows_roundings_of_itself():
    """Y = 5 at x = 1000: a rounding of Y, for a change of x by 1000. The rest is refused."""
    def f(x):
        return 5 + 0 * x

    check_vjp(lambda dY, x: 1e-16, f, 1000.0, dY=2.0)
    with pytest.raises(AssertionError, match="^dx: the error is 1.0e-15; allowed 1.4e-16$"):
        check_vjp(lambda dY, x: 1e-15, f, 1000.0, dY=2.0)

    def g(x):
        return np.zeros(3), 5 + 0 * x, 7e3 + 0 * x

    def off(*errors):
        return lambda x_dot, x: (np.zeros(3), *(np.array(e) for e in errors))

    check_jvp(off(2e-16, 2e-13), g, 1000.0, x_dot=(3.0,))
    with pytest.raises(AssertionError, match="^Y1_dot along x_dot: the error is 1.0e-15; allowed 2.1e-16$"):
        check_jvp(off(1e-15, 0.0), g, 1000.0, x_dot=(3.0,))
    with pytest.raises(AssertionError, match="^Y2_dot along x_dot: the error is 1.0e-12; allowed 3.0e-13$"):
        check_jvp(off(0.0, 1e-12), g, 1000.0, x_dot=(3.0,))


def test_zero_and_empty_problems_pass():
    check_vjp(lambda dY, x: 0 * x, lambda x: 0 * x, X)
    check_jvp(lambda x_dot, x: 0 * x, lambda x: 0 * x, X)
    none = np.zeros((0, 3))
    check_vjp(lambda dY, x, y: (0 * x, y * dY), lambda x, y: x.sum() + (y * y).sum() / 2, none, X)
    check_jvp(lambda a, b, x, y: (b * y).sum(), lambda x, y: x.sum() + (y * y).sum() / 2, none, X)
    check_jvp(lambda x_dot, x: x_dot[:0], lambda x: 2 * x[:0], X)
    check_vjp(lambda dY, x: 0 * x, lambda x: 2 * x[:0], X)


def test_tangents_may_be_zero_somewhere():
    check_jvp(product_jvp, product, X, F, x_dot=(X * (np.arange(3) > 0), 0 * F))


def test_a_spoiled_argument_is_named_beside_arguments_left_out():
    def spoils(A_dot, tau_dot, A, tau=1):
        return softmax_jvp(A_dot, tau_dot, spoil(A) / 2, tau)
    with pytest.raises(AssertionError, match="^f_jvp modifies its argument A$"):
        check_jvp(spoils, softmax, Q)


REFUSED = {
    "too few": (product, (X, F), lambda dY, X, F: dY @ F.T, "f_vjp returns 1 gradient for 2 arguments (X, F)"),
    "too many": (product, (X, F), lambda dY, X, F: (dY @ F.T, X.T @ dY, dY),
                 "f_vjp returns 3 gradients for 2 arguments (X, F)"),
    "too many, unnamed": (lambda *x: x[0] * 2, (X,), lambda dY, *x: (2 * dY, dY),
                          "f_vjp returns 2 gradients for 1 argument (x0)"),
    "shape": (product, (X, F), lambda dY, X, F: (dY @ F.T, dY.T @ X),
              "dF has shape (5, 3); it needs (3, 5), the shape of F"),
    "swapped": (product, (X, F), lambda dY, X, F: product_vjp(dY, X, F)[::-1],
                "dX has shape (3, 5); it needs (4, 3), the shape of X"),
    "one axis more": (lambda x: 2 * x, (1.0,), lambda dY, x: np.array([2 * dY]),
                      "dx has shape (1,); it needs (), the shape of x"),
    "nan": (product, (X, F), lambda dY, X, F: (dY @ F.T, X.T @ dY * [1, np.nan, 1, 1, 1]),
            "dF is nan at entry (0, 1)"),
    "infinite": (product, (X, F), lambda dY, X, F: (dY @ F.T * [[1], [1], [np.inf], [1]] ** np.array(1), X.T @ dY),
                 "dX is"),
    "none": (product, (X, F), lambda dY, X, F: (None, X.T @ dY), "dX is None; X has a gradient of shape (4, 3)"),
    "nothing": (lambda x: 2 * x, (X,), lambda dY, x: None, "dx is None; x has a gradient of shape (4, 3)"),
    "text": (lambda x: 2 * x, (X,), lambda dY, x: "2", "dx is a str; it needs to be an array"),
    "complex": (lambda x: 2 * x, (X,), lambda dY, x: 2 * dY + 0j, "dx has dtype complex128; it needs real numbers"),
    "gradient of none": (attention, (Q, K, V, None, 0.7),
                         lambda dO, *x: attention_vjp(dO, *x)._replace(dB=np.ones((4, 5))),
                         "dB has shape (4, 5), but B is None; dB needs to be None"),
    "modifies dY": (lambda x: 2 * x, (X,), lambda dY, x: spoil(dY), "f_vjp modifies its argument dY"),
    "modifies x": (product, (X, F), lambda dY, X, F: (dY @ F.T, spoil(X).T @ dY / 2), "f_vjp modifies its argument X"),
    "f modifies": (lambda x: spoil(x) * 1.0, (X,), lambda dY, x: 2 * dY, "f modifies its argument x"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_gradient_is_refused_in_words(case):
    f, x, f_vjp, sentence = REFUSED[case]
    before = [np.copy(a) for a in x if a is not None]
    with pytest.raises(AssertionError) as caught:
        check_vjp(f_vjp, f, *x)
    assert str(caught.value).startswith(sentence)
    assert all(np.array_equal(a, b) for a, b in zip((a for a in x if a is not None), before))


def test_what_is_no_tangent_is_refused_in_words():
    for f_jvp, sentence in [
        (lambda X_dot, F_dot, X, F: X_dot, "Y_dot along X_dot has shape (4, 3); it needs (4, 5), the shape of Y"),
        (lambda X_dot, F_dot, X, F: (X_dot @ F, X @ F_dot), "f_jvp returns 2 tangents for 1 output"),
        (lambda X_dot, F_dot, X, F: np.nan * X @ F, "Y_dot along X_dot is nan at entry (0, 0)"),
        (lambda X_dot, F_dot, X, F: spoil(X_dot) @ F / 2, "f_jvp modifies its argument X_dot"),
        (lambda X_dot, F_dot, X, F: X_dot @ spoil(F) / 2, "f_jvp modifies its argument F"),
    ]:
        with pytest.raises(AssertionError) as caught:
            check_jvp(f_jvp, product, X, F)
        assert str(caught.value).startswith(sentence)


# ---- what cannot be checked is said ------------------------------------------------------------

LOSES = "check_vjp: f loses the imaginary part of x, as a cast to real or an absolute value does"


@pytest.mark.parametrize("f, right", [
    (np.abs, lambda dY, x: dY * np.sign(x)),
    (lambda x: x.real**2, lambda dY, x: 2 * x * dY),
    (lambda x: x * np.abs(x), lambda dY, x: 2 * np.abs(x) * dY),
    (lambda x: np.array([[abs(t) for t in r] for r in x.tolist()]), lambda dY, x: dY * np.sign(x)),
], ids=["abs", "real", "x abs", "list"])
def test_a_lost_imaginary_part_is_told_from_a_wrong_gradient(f, right):
    with pytest.raises(ValueError, match=LOSES):
        check_vjp(right, f, X)
    with pytest.raises((ValueError, AssertionError)):
        check_vjp(lambda dY, x: 0 * x, f, X)


def test_zeros_do_not_pass_where_the_complex_step_is_blind():
    for f in (np.abs, lambda x: x.real**2):
        with pytest.raises(ValueError, match=LOSES):
            check_vjp(lambda dY, x: 0 * x, f, X)
        with pytest.raises(ValueError, match=LOSES.replace("vjp", "jvp")):
            check_jvp(lambda x_dot, x: 0 * x, f, X)


def test_an_argument_that_does_not_matter_has_the_gradient_zero():
    check_vjp(lambda dY, x, y: (2 * dY, 0 * y), lambda x, y: 2 * x, X, F)
    check_jvp(lambda a, b, x, y: 2 * a, lambda x, y: 2 * x, X, F)
    check_vjp(lambda dY, x: 0 * x, lambda x: np.sign(x.real) * 1e-3 + 5, X)
    with pytest.raises(AssertionError, match=r"^dy: the largest error is 1.0e-09 at entry \(0, 0\); allowed"):
        check_vjp(lambda dY, x, y: (2 * dY, 0 * y + 1e-9), lambda x, y: 2 * x, X, F)
    with pytest.raises(AssertionError, match=r"^Y_dot along b: the largest error is 1.0e-09|^Y_dot along y_dot"):
        check_jvp(lambda a, b, x, y: 2 * a + 1e-9 * b.any(), lambda x, y: 2 * x, X, F)


UNFIT = [
    (TypeError, "check_vjp: X has dtype float32; it needs float64, since the check counts roundings",
     lambda: check_vjp(product_vjp, product, X.astype("f"), F.astype("f"))),
    (TypeError, "check_vjp: F is a list; it needs to be an array or a real number",
     lambda: check_vjp(product_vjp, product, X, [[1.0]])),
    (ValueError, "check_vjp: dY has shape (4, 3); it needs (4, 5), the shape of f's output",
     lambda: check_vjp(product_vjp, product, X, F, dY=X)),
    (ValueError, "check_vjp: dY needs one entry for each output of f, 2, in a tuple if f returns a tuple",
     lambda: check_vjp(both_vjp, both, X, F, dY=X)),
    (ValueError, "check_vjp: dY needs one entry for each output of f, 2, in a tuple if f returns a tuple",
     lambda: check_vjp(both_vjp, both, X, F, dY=(X,))),
    (ValueError, "check_vjp: dY needs one entry for each output of f, 1, in a tuple if f returns a tuple",
     lambda: check_vjp(product_vjp, product, X, F, dY=(X @ F,))),
    (ValueError, "check_vjp: dY is zero, so that every gradient is zero",
     lambda: check_vjp(product_vjp, product, X, F, dY=0 * X @ F)),
    (ValueError, "check_jvp: x_dot is zero, so that every tangent is zero",
     lambda: check_jvp(product_jvp, product, X, F, x_dot=(None, 0 * F))),
    (TypeError, "check_vjp: dY has dtype complex128; it needs float64, since the check counts roundings",
     lambda: check_vjp(product_vjp, product, X, F, dY=X @ F + 0j)),
    (TypeError, "check_vjp: f returns something else than real numbers",
     lambda: check_vjp(product_vjp, lambda X, F: 1j * X @ F, X, F)),
    (TypeError, "check_vjp: f returns something else than real numbers",
     lambda: check_vjp(product_vjp, lambda X, F: "text", X, F)),
    (ValueError, "check_vjp: f returns NaN", lambda: check_vjp(product_vjp, lambda X, F: np.nan * X, X, F)),
    (ValueError, "check_vjp: f returns NaN or infinity when X is complex",
     lambda: check_vjp(product_vjp, lambda X, F: X @ F * (np.nan if X.dtype.kind == "c" else 1), X, F)),
    (ValueError, "check_jvp: x_dot needs a tangent for each of the 2 arguments, in a tuple",
     lambda: check_jvp(product_jvp, product, X, F, x_dot=X)),
    (ValueError, "check_jvp: x_dot needs a tangent for each of the 2 arguments, in a tuple",
     lambda: check_jvp(product_jvp, product, X, F, x_dot=(X,))),
    (ValueError, "check_jvp: F_dot has shape (4, 3); it needs (3, 5), the shape of F",
     lambda: check_jvp(product_jvp, product, X, F, x_dot=(X, X))),
    (TypeError, "check_vjp: no argument has entries: there is nothing to check",
     lambda: check_vjp(product_vjp, product, X[:, :0], F[:0])),
    (TypeError, "check_jvp: no argument has entries: there is nothing to check",
     lambda: check_jvp(product_jvp, product, X[:, :0], F[:0])),
    (TypeError, "check_vjp: f_vjp is a int; it needs to be a function", lambda: check_vjp(1, product, X, F)),
    (TypeError, "check_jvp: f is a NoneType; it needs to be a function", lambda: check_jvp(product_jvp, None, X, F)),
    (TypeError, "check_vjp: seed is 'a'; it needs to be a whole number", lambda: check_vjp(product_vjp, product, X, F, seed="a")),
    (TypeError, "check_jvp: X_dot is a str; it needs to be an array or a real number",
     lambda: check_jvp(product_jvp, product, X, F, x_dot=("a", F))),
]


@pytest.mark.parametrize("error, sentence, call", UNFIT, ids=range(len(UNFIT)))
def test_what_cannot_be_checked_is_said(error, sentence, call):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == sentence


def test_the_seed_draws_dY_and_tangents():
    seen = []
    def remember(dY, X, F):
        seen.append(dY)
        return product_vjp(dY, X, F)
    for seed in (0, 0, 1):
        check_vjp(remember, product, X, F, seed=seed)
    assert (seen[0] == seen[1]).all() and (seen[0] != seen[2]).all()
    assert abs(seen[0].mean()) < 1 and 0.3 < seen[0].std() < 2
    tangents = []
    def keep(X_dot, F_dot, X, F):
        tangents.append(X_dot)
        return product_jvp(X_dot, F_dot, X, F)
    for seed in ({}, {"seed": 0}, {"seed": 1}):
        check_jvp(keep, product, X, F, **seed)
        check_vjp(remember, product, X, F, **seed)
    first, again, other = tangents[0:3], tangents[3:6], tangents[6:9]  # X, F, both
    assert (first[0] == first[2]).all() and (first[1] == 0).all()
    assert (first[0] == again[0]).all() and (first[0] != other[0]).all()
    assert (seen[3] == seen[4]).all() and (seen[3] != seen[5]).all()
    given = rng.normal(size=(4, 5))
    check_vjp(remember, product, X, F, dY=given)
    assert (seen[-1] == given).all() and seen[-1] is not given


def test_functions_without_a_signature_can_be_checked():
    check_vjp(lambda dY, x: dY * np.exp(x), np.exp, X)

    class Opaque:
        __signature__ = "none to be had"

        def __call__(self, x):
            return np.exp(x)

    with pytest.raises(AssertionError, match="^dx0: the largest error"):
        check_vjp(lambda dY, x: dY, Opaque(), X)

    class OpaqueTangent(Opaque):
        def __call__(self, x_dot, x):
            return x_dot * np.exp(x)

    check_jvp(OpaqueTangent(), Opaque(), X)


# ---- arguments that are named tuples -----------------------------------------------------------

Pair = namedtuple("Pair", "F c")
Model = namedtuple("Model", "pair scale nothing", defaults=[None])
MODEL = Model(Pair(F, rng.normal(size=5)), 1.5)


def model(X, W, offset=0.0):
    return W.scale * X @ W.pair.F + W.pair.c + offset


def model_vjp(dY, X, W, offset=0.0, wrong=""):
    parts = dict(F=W.scale * X.T @ dY, c=dY.sum(0), scale=(dY * (X @ W.pair.F)).sum(), X=W.scale * dY @ W.pair.F.T)
    parts = {name: x * (1 + 1e-9 * (name == wrong)) for name, x in parts.items()}
    return parts["X"], Model(Pair(parts["F"], parts["c"]), parts["scale"]), dY.sum()


def model_jvp(X_dot, W_dot, X, W, wrong=""):
    (F_dot, c_dot), scale_dot, _ = W_dot
    terms = dict(X=W.scale * X_dot @ W.pair.F, F=W.scale * X @ F_dot, c=c_dot, scale=scale_dot * X @ W.pair.F)
    return sum(x * (1 + 1e-9 * (name == wrong)) for name, x in terms.items())


@pytest.mark.parametrize("array", ARRAYS[:2])
def test_named_tuples_are_arguments(array):
    W = Model(Pair(*map(array, MODEL.pair)), MODEL.scale)
    check_vjp(model_vjp, model, array(X), W)
    check_jvp(model_jvp, model, array(X), W)


@pytest.mark.parametrize("wrong, name", [("F", "dW.pair.F"), ("c", "dW.pair.c"), ("scale", "dW.scale"), ("X", "dX")])
def test_a_wrong_field_is_refused_by_its_name(wrong, name):
    names = namedtuple("Gradients", "dX dW doffset")
    for found in (tuple, names._make):
        with pytest.raises(AssertionError, match=f"^{name}: the (largest )?error is"):
            check_vjp(lambda *x, found=found: found(model_vjp(*x, wrong=wrong)), model, X, MODEL, 0.5)
    along = name.removeprefix("d") + "_dot"
    with pytest.raises(AssertionError, match=f"^Y_dot along {along}: the largest error is"):
        check_jvp(lambda *x: model_jvp(*x, wrong=wrong), model, X, MODEL)


@pytest.mark.parametrize("change, sentence", [
    (lambda dW: dW.pair, "dW is a Pair; it needs the fields pair, scale, nothing"),
    (tuple, "dW is a tuple; it needs the fields pair, scale, nothing"),
    (lambda dW: dW._replace(pair=tuple(dW.pair)), "dW is a Model; it needs the fields pair, scale, nothing"),
    (lambda dW: None, "dW.pair.F is None; W.pair.F has a gradient of shape (3, 5)"),
    (lambda dW: dW._replace(nothing=X), "dW.nothing has shape (4, 3), but W.nothing is None;"
                                        " dW.nothing needs to be None"),
    (lambda dW: dW._replace(pair=Pair(dW.pair.F, X)), "dW.pair.c has shape (4, 3); it needs (5,), the shape of"
                                                      " W.pair.c"),
    (lambda dW: dW._replace(scale=None), "dW.scale is None; W.scale has a gradient of shape ()"),
])
def test_what_has_not_the_fields_is_refused_in_words(change, sentence):
    def wrong(dY, X, W):
        dX, dW, _ = model_vjp(dY, X, W)
        return dX, change(dW)
    with pytest.raises(AssertionError) as caught:
        check_vjp(wrong, model, X, MODEL)
    assert str(caught.value) == sentence


def test_the_tangent_of_a_named_tuple_has_its_fields():
    check_jvp(model_jvp, model, X, MODEL, x_dot=(X, MODEL))
    one = MODEL._replace(pair=Pair(None, MODEL.pair.c))
    check_jvp(lambda X_dot, W_dot, X, W: W_dot.scale * X @ W.pair.F + W_dot.pair.c, model, X, MODEL, x_dot=(None, one))
    with pytest.raises(ValueError) as caught:
        check_jvp(model_jvp, model, X, MODEL, x_dot=(X, MODEL.pair))
    assert str(caught.value) == "check_jvp: W_dot needs the fields of W, pair, scale, nothing"
    with pytest.raises(ValueError, match="^check_jvp: x_dot needs a tangent for each of the 2 arguments, in a tuple$"):
        check_jvp(model_jvp, model, X, MODEL, x_dot=(X, F, MODEL.pair.c))
    with pytest.raises(AssertionError, match="^f_vjp modifies its argument W.pair.c$"):
        check_vjp(lambda dY, X, W: spoil(W.pair.c) is W or model_vjp(dY, X, W), model, X, MODEL)
    with pytest.raises(AssertionError, match="^f modifies its argument W.pair.c$"):
        check_jvp(model_jvp, lambda X, W: spoil(W.pair.c) + X @ W.pair.F, X, MODEL)
