"""A second certificate: float64 answers lie within their roundings of rigorous enclosures.

Nothing here is a sample of errors. A comparison of balls is true only if it is true for every
number in them, so that each inequality below is proved for the inputs at hand.
"""

import subprocess
import sys

import numpy as np
import pytest
from flint import arb, ctx

import attnmath
import rounded_steps as steps
from attnmath import Weights, rounding
from enclosures import (
    BITS,
    attention,
    ball,
    cross_entropy,
    gradient,
    gradients,
    layer_norm,
    logsumexp,
    multihead,
    silu,
    softmax,
)

INF = np.inf


@pytest.fixture(autouse=True)
def precision():
    with ctx.workprec(BITS):
        yield


def every(relation, *arrays):
    """Whether a relation of balls certainly holds, entry by entry."""
    assert len({np.shape(a) for a in arrays}) == 1
    return bool(np.all(np.frompyfunc(relation, len(arrays), 1)(*arrays)))


def inside(found, exact, bound):
    """Whether found is certainly no farther from the exact number than its bound."""
    return every(lambda x, y, b: abs(x - y) <= b, ball(found), exact, ball(bound))


def excluded(found, exact, bound):
    """At how many entries found is certainly farther from the exact number than its bound."""
    pairs = zip(ball(found).flat, exact.flat, ball(bound).flat)
    return sum(bool(abs(x - y) > b) for x, y, b in pairs)


def is_sharp(exact):
    """Whether each radius is far below one rounding to float64, 2^-53 of the number."""
    return every(lambda x: x.rad() <= abs(x.mid()) * arb(2) ** -153, exact)


def problem(n=4, m=5, d_k=3, d_v=2, size=1.0, mask=False, seed=0, dtype=float):
    """dO, Q, K, V, B and gamma; with a mask, some scores are -inf, and a whole row."""
    rng = np.random.default_rng(seed)
    shapes = (n, d_v), (n, d_k), (m, d_k), (m, d_v), (n, m)
    dO, Q, K, V, B = (rng.normal(size=s).astype(dtype) for s in shapes)
    if mask:
        B[0], B[1, 2], B[2, :2] = -INF, -INF, -INF
    return dO, size * Q, size * K, V, B, np.asarray(0.7, dtype)


def share(dtype):
    """The bound is for two programs, of which one is float64. Here that one is exact.

    It is a sum of convex functions of the unit roundoff that are 0 where that is 0, so a
    share of the unit roundoff needs no more than that share of the bound.
    """
    u = rounding.unit_roundoff(dtype)
    return u / (u + 2.0**-53)


PROBLEMS = [dict(), dict(mask=True), dict(size=4.0, seed=1), dict(n=1, m=7, d_k=1, d_v=1, seed=2)]
PROBLEMS = [p | dict(dtype=t) for t in (np.float64, np.float32) for p in PROBLEMS]


# ---- attention, within the bounds of attnmath.rounding -----------------------------------------


@pytest.mark.parametrize("given", PROBLEMS)
def test_attention_lies_within_its_bound_of_the_enclosure(given):
    dO, *x = problem(**given)
    dtype = given["dtype"]
    found, exact = attnmath.attention(*x), attention(*map(ball, x))
    bound = share(dtype) * rounding.attention(*x, dtype=dtype).O
    assert found.dtype == dtype and is_sharp(exact) and inside(found, exact, bound)


@pytest.mark.parametrize("given", PROBLEMS)
def test_attention_vjp_lies_within_its_bounds_of_the_enclosure(given):
    x = problem(**given)
    dtype = given["dtype"]
    found, exact = attnmath.attention_vjp(*x), gradients(attention, *x)
    bounds = rounding.attention_vjp(*x, dtype=dtype)
    for name, got, want, bound in zip(found._fields, found, exact, bounds):
        assert got.dtype == dtype and is_sharp(want), name
        assert inside(got, want, share(dtype) * bound), name


def test_a_float64_answer_may_serve_as_the_exact_one():
    """As the bounds for shorter formats take it: one more unit roundoff of float64 covers it."""
    x = problem(mask=True)
    dO, *x = [np.asarray(a, np.float32).astype(float) for a in x]
    wide = dict(dtype=np.float32)
    both, one = rounding.attention(*x, **wide).O, share(np.float32) * rounding.attention(*x, **wide).O
    assert inside(attnmath.attention(*x), attention(*map(ball, x)), both - one)


# ---- other functions, within the roundings of their steps --------------------------------------


def certified(found, exact, rounded):
    """The float64 answer, and the exact one, in the ball of all that roundings may make."""
    return (
        every(lambda x, y: x.rad() <= arb(2) ** -100 * y.rad(), exact, rounded)
        and every(lambda x, y: y.contains(x), exact, rounded)
        and every(lambda x, y: y.contains(x), ball(found), rounded)
    )


@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
def test_softmax_and_logsumexp_lie_within_their_roundings(size):
    A = size * problem(mask=True)[4]
    x = ball(A)
    assert certified(attnmath.softmax(A), softmax(x), steps.softmax(x))
    A, x = A[1:], x[1:]  # the logarithm of an empty sum is no number
    assert certified(attnmath.logsumexp(A), logsumexp(x), steps.logsumexp(x))


def test_the_gradients_of_softmax_and_cross_entropy_lie_within_their_roundings():
    A = problem(mask=True)[4]
    dP, E = np.random.default_rng(3).random((2, *A.shape))
    E = np.where(A == -INF, 0, E)
    found = attnmath.softmax_vjp(dP, A).dA
    exact = gradient(softmax, dP, [A], 0)
    assert certified(found, exact, steps.softmax_vjp(ball(dP), ball(A)))
    A, E, dloss = A[1:], E[1:], np.full(len(A) - 1, 0.3)
    found = attnmath.cross_entropy_vjp(0.3, A, E=E)
    exact = gradient(lambda A: cross_entropy(A, E), dloss, [A], 0)
    assert certified(found, exact, steps.cross_entropy_vjp(arb(0.3), ball(A), ball(E)))


@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_the_gradient_of_silu_lies_within_its_roundings(size):
    dF, U = np.random.default_rng(4).normal(size=(2, 5, 6))
    U = size * U
    found, (exact,) = attnmath.silu_vjp(dF, U), gradients(silu, dF, U)
    assert certified(found, exact, steps.silu_vjp(ball(dF), ball(U)))


def test_what_was_rounded_more_is_not_certified():
    """In float32, or by one part in 10^14."""
    dF, U = np.random.default_rng(4).normal(size=(2, 5, 6))
    found, (exact,) = attnmath.silu_vjp(dF, U), gradients(silu, dF, U)
    rounded = steps.silu_vjp(ball(dF), ball(U))
    short = attnmath.silu_vjp(*(x.astype(np.float32) for x in (dF, U)))
    assert not certified(short, exact, rounded) and not certified((1 + 1e-14) * found, exact, rounded)
    assert not certified(found, 1.001 * exact, rounded)


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_the_gradients_of_layer_norm_lie_within_their_roundings(offset):
    rng = np.random.default_rng(5)
    dY, X = rng.normal(size=(2, 4, 6))
    alpha, beta = rng.normal(size=(2, 6))
    x = X + offset, alpha, beta
    found, exact = attnmath.layer_norm_vjp(dY, *x), gradients(layer_norm, dY, *x)
    rounded = steps.layer_norm_vjp(*map(ball, (dY, *x[:2])))
    assert all(certified(*three) for three in zip(found, exact, rounded))


def layer(seed=6):
    """dY, X, Z, the eight arrays of Weights, B, gamma: four heads, two by two with shared keys."""
    rng = np.random.default_rng(seed)
    H, G, n, m, d, d_z, d_k, d_v = 4, 2, 3, 5, 4, 2, 3, 2
    shapes = [(n, d), (n, d), (m, d_z), (H, d, d_k), (G, d_z, d_k), (G, d_z, d_v), (H, d_v, d),
              (H, d_k), (G, d_k), (G, d_v), (d,), (H, n, m), (H,)]
    x = [rng.normal(size=s) for s in shapes]
    x[-2][0, 1] = x[-2][2, :, 3] = -INF
    return x


def test_every_gradient_of_a_layer_lies_within_its_roundings():
    dY, X, Z, *W, B, gamma = x = layer()
    g = attnmath.multihead_vjp(dY, X, Z, Weights(*W), B, gamma)
    found = [g.dX, g.dZ, *g.dW, g.dB, g.dgamma]
    exact, rounded = gradients(multihead, *x), steps.multihead_vjp(*map(ball, x))
    for got, want, may_be in zip(found, exact, rounded, strict=True):
        assert certified(got, want, may_be)


def test_the_gradient_of_the_bias_of_the_keys_is_zero_up_to_its_roundings():
    dY, X, Z, *W, B, gamma = x = layer()
    found = attnmath.multihead_vjp(dY, X, Z, Weights(*W), B, gamma).dW.b_K
    (exact,) = [gradient(multihead, dY, x[1:], 7)]
    assert every(lambda x: x.contains(0) and x.rad() < 1e-50, exact) and found.any()


# ---- the other way round: what is wrong is certainly wrong -------------------------------------


def wrong_dQ(mistake, dO, Q, K, V, B, gamma):
    """The gradient dQ in float64, with one mistake."""
    A, P, L, O = attnmath.attention_map(Q, K, V, B, gamma)
    dP, D, factor = dO @ V.T, (dO * O).sum(-1, keepdims=True), 1.0
    if mistake == "the row sum is forgotten":
        D = 0
    if mistake == "a tiny term has the wrong sign":
        D = -D
    if mistake == "a factor of 1 + 1e-9":
        factor = 1 + 1e-9
    if mistake == "the scale goes through single precision":
        gamma = float(np.float32(gamma))
    if mistake == "hidden keys are seen a little":
        P = P + 1e-12 * np.isneginf(B)
    return factor * gamma * (P * (dP - D)) @ K


# How many of the 12 entries are wrong: 9 where there is a weight, 9 in rows with hidden keys.
MISTAKES = {
    "nothing": 0,
    "the row sum is forgotten": 9,
    "a tiny term has the wrong sign": 9,
    "a factor of 1 + 1e-9": 9,
    "the scale goes through single precision": 9,
    "hidden keys are seen a little": 6,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_that_a_tolerance_accepts_is_certainly_one(mistake):
    """The loss is nearly blind to the output's length, so that D is tiny, and does matter."""
    dO, *x = problem(mask=True, seed=8)
    O = attnmath.attention(*x)
    dO = O[:, ::-1] * [1, -1] + 1e-8 * O
    exact, bound = gradients(attention, dO, *x)[0], rounding.attention_vjp(dO, *x, dtype="float64").dQ
    found, right = wrong_dQ(mistake, dO, *x), attnmath.attention_vjp(dO, *x).dQ
    assert np.allclose(found, right, rtol=1e-6, atol=1e-6)
    assert inside(right, exact, bound) and excluded(found, exact, bound) == MISTAKES[mistake]


def test_balls_that_are_too_wide_prove_nothing():
    """Neither that a number lies inside, nor that it lies outside."""
    x, bound = np.ones(3), np.full(3, 1e-3)
    wide = ball(x) + arb(0, 1)
    assert not inside(x, wide, bound) and not excluded(x, wide, bound)
    assert inside(x, ball(x), bound) and excluded(x + 0.01, ball(x), bound) == 3


# ---- the package itself ------------------------------------------------------------------------


def test_the_package_needs_no_flint():
    """It is for tests, and for one cell of the book."""
    code = (
        "import sys; sys.modules['flint'] = None\n"
        "import attnmath, attnmath.page, attnmath.rounding\n"
        "import numpy as np; print(attnmath.softmax(np.zeros((1, 2))))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[[0.5 0.5]]\n", run.stderr
