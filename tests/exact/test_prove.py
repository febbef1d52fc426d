"""Exact arithmetic: what floats accept and it refutes, what it proves, and what it refuses to judge."""

from fractions import Fraction

import numpy as np
import pytest

import attnmath
from attnmath import (
    NotAlgebraic,
    attention,
    attention_map,
    attention_vjp,
    check_jvp,
    check_vjp,
    log_softmax,
    logsumexp,
    multihead_map,
    prove,
    softmax,
    softmax_vjp,
)
from planted import PLANTED, Planted, T, draw, instead, nearly, rowsum, weights

TOLERANCE = 1e-6  # of the largest entry: that of a check which is thought to be strict
ROUNDING = 1e-12  # of a gradient that is zero


def leaves(x):
    """The arrays of a tuple of tuples, without None."""
    if isinstance(x, tuple):
        return [leaf for part in x for leaf in leaves(part)]
    return [] if x is None else [np.asarray(x, float)]


@pytest.mark.parametrize("row", PLANTED, ids=lambda row: f"{row[0]}: {row[1]}")
def test_a_mistake_that_floats_accept_is_refuted(row):
    planted = Planted(*row)
    x = planted.arguments()
    got, want = (leaves(f(*x, **planted.constants)) for f in (planted.wrong, planted.right))
    for a, b in zip(got, want, strict=True):
        assert np.abs(a - b).max() <= TOLERANCE * np.abs(b).max() + ROUNDING
    gradient = planted.mistake.partition(": ")[0] if ": " in planted.mistake else ""
    with pytest.raises(AssertionError, match=f"refuted.*{gradient}"):
        planted.judge(planted.wrong)
    assert planted.judge(planted.right).error < 1e-20


def test_the_planted_mistakes_are_many():
    assert len(PLANTED) >= 50 and len({row[:2] for row in PLANTED}) == len(PLANTED)


# ---- what holds, and what does not --------------------------------------------------------------


def square(x):
    return x * x


def attend(Q, K, V):
    return attention(Q, K, V, gamma=1)


def merged(*tiles):
    """Log-sum-exp from those of tiles."""
    return logsumexp(np.stack([logsumexp(tile) for tile in tiles], -1))


def whole(*tiles):
    return logsumexp(np.concatenate(tiles, -1))


def in_tiles(Q, K, V):
    """The output from two tiles of keys, which know of each other only L and O."""
    parts = [attention_map(Q, K[k], V[k], gamma=1) for k in (slice(2), slice(2, None))]
    shares = softmax(np.stack([part.L for part in parts], -1))
    return sum(shares[:, k, None] * part.O for k, part in enumerate(parts))


def weighted_variance(A, X):
    P = softmax(A)
    return (P * square(X)).sum(-1) - square((P * X).sum(-1))


def variance_of_pairs(A, X):
    P, apart = softmax(A), X[:, :, None] - X[:, None]
    return (P[:, :, None] * P[:, None] * square(apart)).sum((-1, -2)) / 2


HOLDS = {
    "a constant added to a row": (lambda A, c: softmax(A + c), lambda A, c: softmax(A), (3, 4), (3, 1)),
    "log-sum-exp moves with it": (
        lambda A, c: logsumexp(A + c), lambda A, c: logsumexp(A) + c[:, 0], (3, 4), (3, 1)),
    "two tiles merged": (merged, whole, (3, 4), (3, 2)),
    "three tiles merged": (merged, whole, (2, 1), (2, 4), (2, 3)),
    "tiles in another order": (lambda A, C: merged(C, A), whole, (2, 4), (2, 3)),
    "the smaller one inside": (
        lambda A, C: logsumexp(A) + np.log(1 + np.exp(logsumexp(C) - logsumexp(A))), whole, (3, 4), (3, 2)),
    "attention in tiles": (in_tiles, attend, (2, 3), (5, 3), (5, 4)),
    "weights from log-sum-exp": (lambda A: np.exp(A - logsumexp(A)[:, None]), softmax, (3, 4)),
    "the logarithm of the weights": (log_softmax, lambda A: np.log(softmax(A)), (3, 4)),
    "an exponential of tanh's kind": (lambda U: (1 + np.tanh(U / 2)) / 2, lambda U: 1 / (1 + np.exp(-U)), (3,)),
    "tanh of a sum": (
        lambda x, y: np.tanh(x + y),
        lambda x, y: (np.tanh(x) + np.tanh(y)) / (1 + np.tanh(x) * np.tanh(y)), (), ()),
    "a circle": (lambda x: square(np.sin(x)) + square(np.cos(x)), lambda x: 0 * x + 1, (3,)),
    "sine of a sum": (
        lambda x, y: np.sin(x + y), lambda x, y: np.sin(x) * np.cos(y) + np.cos(x) * np.sin(y), (), ()),
    "cosine of a sum": (
        lambda x, y: np.cos(x + y), lambda x, y: np.cos(x) * np.cos(y) - np.sin(x) * np.sin(y), (), ()),
    "cosine of a double angle": (lambda x: np.cos(2 * x), lambda x: 1 - 2 * square(np.sin(x)), (2,)),
    "a root of a product": (lambda x, y: np.sqrt(x * y), lambda x, y: np.sqrt(x) * np.sqrt(y), (), ()),
    "a root of a quotient": (lambda x, y: np.sqrt(x / y), lambda x, y: np.sqrt(x) / np.sqrt(y), (), ()),
    "a root squared": (lambda x, y: square(np.sqrt(square(x) * y)), lambda x, y: square(x) * y, (), ()),
    "a root of an exponential": (lambda x: np.sqrt(np.exp(x)), lambda x: np.exp(x / 2), ()),
    "the logarithm of a product": (lambda x, y: np.log(x * y), lambda x, y: np.log(x) + np.log(y), (), ()),
    "the logarithm of a root": (lambda x: np.log(np.sqrt(x)), lambda x: np.log(x) / 2, ()),
    "the logarithm of a power": (lambda x: np.log(x**3), lambda x: 3 * np.log(x), ()),
    "exponentials of exponentials": (
        lambda x, y: np.exp(np.exp(x) + np.exp(y)), lambda x, y: np.exp(np.exp(x)) * np.exp(np.exp(y)), (), ()),
    "the largest in another order": (lambda A: A.max(-1), lambda A: A[:, ::-1].max(-1), (2, 3)),
    "the larger of two": (lambda x, y: np.maximum(x, y), lambda x, y: np.maximum(y, x), (2, 3), (2, 3)),
    "the logarithm of one exponential": (lambda x: np.log(0 * x + np.exp(x)), lambda x: x, (2,)),
    "the entropy of weights": (
        lambda A: -(softmax(A) * log_softmax(A)).sum(-1),
        lambda A: logsumexp(A) - (softmax(A) * A).sum(-1), (3, 4)),
    "a variance by pairs": (weighted_variance, variance_of_pairs, (2, 3), (2, 3)),
    "half a number": (lambda x: 0.5 * x + 0.125 * x, lambda x: Fraction(5, 8) * x, (2, 3)),
    "the default scale, a half": (lambda Q, K, V: attention(Q, K, V), lambda Q, K, V: attend(Q / 2, K, V),
                                  (2, 4), (3, 4), (3, 2)),
    "the default scale, a root": (
        lambda Q, K, V: attention(Q, K, V), lambda Q, K, V: attend(Q / np.sqrt(rowsum(0 * Q + 1)), K, V),
        (2, 3), (4, 3), (4, 2)),
}
FALSE = {
    "a number of its own added to each score": (lambda A, C: softmax(A + C), lambda A, C: softmax(A), (3, 4), (3, 4)),
    "a constant added to a column": (lambda A, c: softmax(A + c), lambda A, c: softmax(A), (3, 4), (4,)),
    "log-sum-exp does not move": (lambda A, c: logsumexp(A + c), lambda A, c: logsumexp(A), (3, 4), (3, 1)),
    "tiles added": (lambda A, C: logsumexp(A) + logsumexp(C), whole, (3, 4), (3, 2)),
    "tiles with equal shares": (
        lambda A, C: (softmax(A).sum(-1) + softmax(C).sum(-1)) / 2, lambda A, C: np.exp(whole(A, C)), (3, 4), (3, 2)),
    "a temperature that cancels": (lambda A, tau: softmax(A, tau), lambda A, tau: softmax(A), (3, 4), ()),
    "exp is linear": (lambda x: np.exp(x), lambda x: 1 + x, ()),
    "exp of a product": (lambda x, y: np.exp(x * y), lambda x, y: np.exp(x) * np.exp(y), (), ()),
    "tanh of a sum": (lambda x, y: np.tanh(x + y), lambda x, y: np.tanh(x) + np.tanh(y), (), ()),
    "sine for small angles": (lambda x: np.sin(x), lambda x: x, ()),
    "sine is an exponential": (lambda x: np.sin(x), lambda x: np.sinh(x), ()),
    "a circle of radius 1 + 10⁻⁹": (
        lambda x: square(np.sin(x)) + square(np.cos(x)), lambda x: nearly(0 * x + 1), ()),
    "a root of a sum": (lambda x, y: np.sqrt(x + y), lambda x, y: np.sqrt(x) + np.sqrt(y), (), ()),
    "the logarithm of a sum": (lambda x, y: np.log(x + y), lambda x, y: np.log(x) + np.log(y), (), ()),
    "a logarithm of half": (lambda x: np.log(x / 2), lambda x: np.log(x) / 2, ()),
    "entropy of another sign": (
        lambda A: (softmax(A) * log_softmax(A)).sum(-1), lambda A: logsumexp(A) - (softmax(A) * A).sum(-1), (3, 4)),
    "matrices commute": (lambda X, Y: X @ Y, lambda X, Y: Y @ X, (2, 2), (2, 2)),
    "a famous gradient": (
        lambda dP, A: softmax(A) * dP, lambda dP, A: softmax_vjp(dP, A).dA, (2, 3), (2, 3)),
    "10⁻¹²": (lambda x: x + Fraction(1, 10**12), lambda x: x, ()),
    "another shape": (lambda x: x, lambda x: x.T, (2, 3)),
    "another number of parts": (lambda x: (x, x), lambda x: x, (2, 3)),
}


@pytest.mark.parametrize("name", HOLDS)
@pytest.mark.parametrize("seed", range(3))
def test_what_holds_is_proved(name, seed):
    left, right, *shapes = HOLDS[name]
    proof = prove(left, right, *shapes, seed=seed)
    assert 0 < proof.error < 1e-20 and "proved" in str(proof)


@pytest.mark.parametrize("name", FALSE)
@pytest.mark.parametrize("seed", range(3))
def test_what_does_not_hold_is_refuted(name, seed):
    left, right, *shapes = FALSE[name]
    with pytest.raises(AssertionError, match="refuted"):
        prove(left, right, *shapes, seed=seed)


SIGNS = {  # right for some signs of the letters
    "a root of a square": (lambda x: np.sqrt(x * x), lambda x: x, ()),
    "one factor is a square": (lambda x, y: np.sqrt(x * x * y), lambda x, y: x * np.sqrt(y), (), ()),
    "three roots": (
        lambda x, y, z: np.sqrt(x * y) * np.sqrt(x * z) * np.sqrt(y * z), lambda x, y, z: x * y * z, (), (), ()),
    "a length": (lambda x: np.linalg.norm(x), lambda x: x[0], (1,)),
}


@pytest.mark.parametrize("name", SIGNS)
def test_what_holds_for_some_signs_is_not_proved(name):
    left, right, *shapes = SIGNS[name]
    for seed in range(5):
        with pytest.raises((AssertionError, NotAlgebraic), match="refuted|undecided"):
            prove(left, right, *shapes, seed=seed)


def test_what_holds_whatever_the_root_s_sign_is_not_refuted():
    for seed in range(5):
        try:
            prove(lambda x: np.sqrt(square(x * x + 1)), lambda x: x * x + 1, (), seed=seed)
        except NotAlgebraic as error:
            assert "undecided" in str(error)


# ---- what leaves the algebra ----------------------------------------------------------------------

LEAVES = {
    r"\* with 0.333": lambda A: A * (1 / 3),
    r"\* with 1.41421": lambda A: A * np.sqrt(2.0),
    r"\* with the complex": lambda A: A * 1j,
    r"np.sign ": lambda A: np.sign(A),
    r"np.arctan ": lambda A: np.arctan(A),
    r"'>' of letters": lambda A: A if A.max() > 0 else -A,
    r"'<' of letters": lambda A: np.where(A < 0, 0, A),
    r"'<=?' of letters|sort": lambda A: np.sort(A),
    r"'[<>]=?' of letters|clip": lambda A: np.clip(A, -1, 1),
    r"argmax": lambda A: A.argmax(-1),
    r"rint|round": lambda A: np.round(A),
    r"//|floor": lambda A: A // 2,
    r"%|remainder": lambda A: A % 2,
    r"min": lambda A: A.min(),
    r"float\(\)": lambda A: float(A[0, 0]),
    r"int\(\)": lambda A: int(A[0, 0]),
    r"np.linalg.svd": lambda A: np.linalg.svd(A)[1],
    r"np.linalg.cholesky": lambda A: np.linalg.cholesky(A),
    r"\*\* with a power|\*\* with a letter": lambda A: A**A,
    r"\*\* with a letter": lambda A: 2**A,
    r"np.allclose": lambda A: A if np.allclose(A, A) else A,
    r"exp of what": lambda A: np.exp(np.exp(np.exp(np.exp(A)))),
}


@pytest.mark.parametrize("operation", LEAVES)
def test_what_leaves_the_algebra_is_refused_by_operation_and_line(operation):
    function = LEAVES[operation]
    line = f"test_prove.py:{function.__code__.co_firstlineno} "
    for sides in ((function, lambda A: A), (lambda A: A, function)):
        with pytest.raises(NotAlgebraic, match=f"({operation}).*{line}"):
            prove(*sides, (2, 2))


def test_what_leaves_the_algebra_inside_of_a_function_is_refused_at_its_line():
    with pytest.raises(NotAlgebraic, match="'>=' of letters.* dropout.py:[0-9]+ .dropout_mask"):
        prove(lambda U: attnmath.dropout_mask(U, 0.5), lambda U: U, (2, 2))
    assert not issubclass(NotAlgebraic, TypeError | ValueError)


def test_a_gradient_that_leaves_the_algebra_is_refused():
    with pytest.raises(NotAlgebraic, match="with 0.333"):
        check_vjp(lambda dY, A: 1 / 3 * dY, lambda A: A / 3, (2, 2), exact=True)
    with pytest.raises(NotAlgebraic, match="np.sign"):
        check_jvp(lambda A_dot, A: A_dot, np.sign, (2, 2), exact=True)


MAXIMA = {  # true, but only of a maximum
    "of what is moved": (lambda A, c: (A + c).max(-1), lambda A, c: A.max(-1) + c[:, 0], (2, 3), (2, 1)),
    "of maxima": (lambda A: A.max(-1).max(), lambda A: A.max(), (2, 3)),
}


@pytest.mark.parametrize("name", MAXIMA)
def test_what_depends_on_a_maximum_is_undecided(name):
    for seed in range(4):
        with pytest.raises(NotAlgebraic, match="undecided"):
            prove(*MAXIMA[name], seed=seed)


def test_what_no_maximum_makes_true_is_refuted():
    for left, right in [
        (lambda A: np.log(np.exp(A - A.max(-1, keepdims=True)).sum(-1)), logsumexp),  # not added again
        (lambda A: A.max(-1), lambda A: A.sum(-1)),
        (lambda A: A.max(-1), lambda A: A[:, 0]),
        (lambda A: np.maximum(A, 0), lambda A: A),
    ]:
        with pytest.raises(AssertionError, match="refuted"):
            prove(left, right, (2, 3))


def test_a_maximum_hides_nothing_that_is_false_without_it():
    for right in (lambda A: softmax(A) ** 2, lambda A: nearly(softmax(A))):
        with pytest.raises(AssertionError, match="refuted"):
            prove(softmax, right, (2, 3))


def test_what_is_equal_to_a_maximum_is_not_taken_for_unequal():
    """A constant that stands for a maximum is no entry of its row; a maximum is one."""
    def less_max(A):
        return A - A.max(-1, keepdims=True)

    for left in (lambda A: np.where(A == A.max(-1, keepdims=True), A, 0), lambda A: A * (less_max(A) == 0),
                 lambda A: np.where(less_max(A), 0, A), lambda A: np.where(np.exp(less_max(A)) == 1, A, 0)):
        with pytest.raises((AssertionError, NotAlgebraic), match="refuted|undecided"):
            prove(left, lambda A: 0 * A, (2, 3))


# ---- gradients and tangents ------------------------------------------------------------------------


def product(X, F):
    return X @ F


GRADIENTS = {  # what is wrong, and what is said of it
    "exchanged": (lambda dY, X, F: (T(X) @ dY, dY @ T(F)), "dX"),
    "one is missing": (lambda dY, X, F: (dY @ T(F),), "1 gradient.* for 2 arguments"),
    "one too many": (lambda dY, X, F: (dY @ T(F), T(X) @ dY, X), "3 gradients for 2 arguments"),
    "one is None": (lambda dY, X, F: (dY @ T(F), None), "dF is None"),
    "one has a shape that broadcasts": (lambda dY, X, F: (dY @ T(F), (T(X) @ dY)[:1]), "dF"),
    "floats": (lambda dY, X, F: (np.zeros((2, 3)), T(X) @ dY), r"dX differs at entry \(0, 0\), in 6 of 6"),
    "an argument is changed": (lambda dY, X, F: (dY @ T(F.__imul__(2)), T(X) @ dY), "modifies its argument F"),
    "dF alone is wrong": (lambda dY, X, F: (dY @ T(F), -T(X) @ dY), "dF differs"),
}


@pytest.mark.parametrize("mistake", GRADIENTS)
def test_a_wrong_gradient_is_refused_by_name(mistake):
    wrong, message = GRADIENTS[mistake]
    check_vjp(lambda dY, X, F: (dY @ T(F), T(X) @ dY), product, (2, 3), (3, 4), exact=True)
    with pytest.raises(AssertionError, match=message):
        check_vjp(wrong, product, (2, 3), (3, 4), exact=True)


def test_a_wrong_tangent_is_refused():
    right = lambda X_dot, F_dot, X, F: X_dot @ F + X @ F_dot  # noqa: E731
    assert check_jvp(right, product, (2, 3), (3, 4), exact=True).entries == 8
    for wrong in (lambda X_dot, F_dot, X, F: X_dot @ F - X @ F_dot, lambda X_dot, F_dot, X, F: X_dot @ F,
                  lambda *x: right(*x)[:1], lambda *x: nearly(right(*x))):
        with pytest.raises(AssertionError, match="Y_dot"):
            check_jvp(wrong, product, (2, 3), (3, 4), exact=True)


def test_several_outputs_and_numbers():
    def f(x, c):
        return c * x * x, x.sum()

    def f_vjp(dY, x, c):
        return 2 * c * x * dY[0] + dY[1], (x * x * dY[0]).sum()

    def f_jvp(x_dot, c_dot, x, c):
        return c_dot * x * x + 2 * c * x * x_dot, x_dot.sum()

    assert check_vjp(f_vjp, f, (3,), (), exact=True).entries == 4
    assert check_jvp(f_jvp, f, (3,), 0.3, exact=True).entries == 4
    with pytest.raises(AssertionError, match="^refuted: dx differs"):
        check_vjp(lambda dY, x, c: (f_vjp(dY, x, c)[0] - 2 * dY[1], (x * x * dY[0]).sum()), f, (3,), (), exact=True)
    with pytest.raises(AssertionError, match="^refuted: dc differs"):
        check_vjp(lambda dY, x, c: (f_vjp(dY, x, c)[0], 0 * c), f, (3,), (), exact=True)
    with pytest.raises(AssertionError, match="^refuted: Y1_dot differs"):
        check_jvp(lambda *x: (f_jvp(*x)[0], -f_jvp(*x)[1]), f, (3,), (), exact=True)


def test_a_gradient_of_what_depends_on_a_maximum_is_not_proved():
    for gradient in (lambda dY, A: 0 * A, lambda dY, A: 0 * A + dY[:, None] / 3):
        with pytest.raises((AssertionError, NotAlgebraic), match="refuted|undecided"):
            check_vjp(gradient, lambda A: A.max(-1), (2, 3), exact=True)
    check_vjp(lambda dY, A: softmax_vjp(dY, A).dA, softmax, (2, 3), exact=True)


# ---- masks, empty rows, groups, shapes -------------------------------------------------------------

MASK = np.zeros((3, 4))
MASK[0, 1:3] = MASK[1] = -np.inf  # the second row is empty


def test_what_is_hidden_has_no_weight():
    left, right = softmax, lambda A: softmax(A) * (MASK == 0)
    assert prove(left, right, MASK).entries == 12
    with pytest.raises(AssertionError, match="refuted"):
        prove(left, right, MASK.shape)


def test_log_sum_exp_of_what_is_not_hidden():
    def right(A):
        return np.stack([logsumexp(A[0, [0, 3]]), 0 * A[0, 0] - np.inf, logsumexp(A[2])])

    assert prove(logsumexp, right, MASK).entries == 3
    one = np.array([[-np.inf, 0, -np.inf]])
    assert prove(logsumexp, lambda A: A[:, 1], one).entries == 1


def test_a_row_with_one_key_has_its_value():
    B = np.zeros((2, 3))
    B[:, 1:] = -np.inf
    prove(lambda Q, K, V, B: attention(Q, K, V, B), lambda Q, K, V, B: V[[0, 0]], (2, 4), (3, 4), (3, 5), B)
    B[1, 1] = 0
    with pytest.raises(AssertionError, match=r"refuted: .*\(1, 0\), in 5 of 10 entries"):
        prove(lambda Q, K, V, B: attention(Q, K, V, B), lambda Q, K, V, B: V[[0, 0]], (2, 4), (3, 4), (3, 5), B)


def test_an_empty_row_has_no_output_and_no_log_sum_exp():
    def left(Q, K, V, B):
        found = attention_map(Q, K, V, B)
        return found.O[1] + V[0], found.P[1], found.L[1]

    def right(Q, K, V, B):
        return V[0], 0 * K[:, 0], -np.inf

    shapes = (3, 2), (4, 2), (4, 5)
    assert prove(left, right, *shapes, MASK).entries == 5 + 4 + 1
    with pytest.raises(AssertionError, match="refuted"):
        prove(left, right, *shapes, MASK.shape)


def test_a_slip_at_a_hidden_score_is_refuted():
    """dB is 0 there: nothing moves."""
    def slip(found, dO, Q, K, V, B):
        return found.dB + dO.sum() / 2**30 * (MASK < 0)

    x = (3, 2), (4, 2), (4, 5), MASK
    check_vjp(attention_vjp, attention, *x, exact=True)
    with pytest.raises(AssertionError, match="dB.*in 6 of 12 entries"):
        check_vjp(instead(attention_vjp, dB=slip), attention, *x, exact=True)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_shared_keys_are_repeated_keys(groups):
    """Grouped queries: the layer with as many key heads as heads, each group's alike."""
    count = 4 // groups

    def repeated(X, Z, W):
        def one(x):
            return np.repeat(x, count, axis=0)
        every = dict(W_K=one(W.W_K), W_V=one(W.W_V), b_K=one(W.b_K), b_V=one(W.b_V))
        return multihead_map(X, Z, W._replace(**every)).Y

    W = weights(4, groups, 2, 3, 1, 2)
    prove(lambda X, Z, W: multihead_map(X, Z, W).Y, repeated, (2, 2), (3, 3), W)
    if groups == 2:
        turned = lambda X, Z, W: repeated(X, Z, W._replace(W_K=W.W_K[::-1]))  # noqa: E731
        with pytest.raises(AssertionError, match="refuted"):
            prove(lambda X, Z, W: multihead_map(X, Z, W).Y, turned, (2, 2), (3, 3), W)


def test_a_shape_or_an_array_of_it_or_a_number():
    proofs = [prove(lambda A, c: softmax(A + c), lambda A, c: softmax(A), A, c)
              for A, c in [((3, 4), ()), (np.zeros((3, 4)), 0.3), (draw(3, 4), np.float64(2))]]
    assert {(proof.entries, proof.degree) for proof in proofs} == {(12, proofs[0].degree)}


def test_constants_by_name_and_whole_numbers_stay():
    prove(lambda x, k: x**k, lambda x, k: x * x * x, (2,), k=3)
    prove(lambda X, at: X[at], lambda X, at: X[[2, 0]], (3, 2), np.array([2, 0]))
    with pytest.raises(AssertionError, match="refuted"):
        prove(lambda x, k: x**k, lambda x, k: x * x * x, (2,), k=2)


def test_the_same_seed_says_the_same():
    one, same, other = (prove(softmax, softmax, (2, 3), seed=seed) for seed in (1, 1, 2))
    assert one == same and one.entries == other.entries == 6


# ---- what is no proof ----------------------------------------------------------------------------


def swallowed(x):
    try:
        return np.sort(x)
    except Exception:
        return x


def stateful(seen=[]):  # noqa: B006 the state is the point
    def side(x):
        seen.append(x)
        return x * (1 + len(seen) % 2)

    return side


def left_behind(x):
    left_behind.seen = x * x
    return left_behind.seen


same = (lambda x: x), (lambda x: x)
NO_PROOF = {
    "an exception that was caught": (swallowed, same[0], ((3,),), "leaves the algebra"),
    "a state": (stateful(), same[0], ((3,),), "run again|refuted"),
    "a global generator": (lambda x: x + 0 * np.random.rand(), same[0], ((3,),), "global generator"),
    "what the other side left": (left_behind, lambda x: getattr(left_behind, "seen", x), ((3,),), "differ|two different points|run again"),
    "what only floats see": (lambda x: x if x.dtype == object else 2 * x, same[0], ((3,),), "in float64"),
    "a question about zero": (lambda x: x if x[0] != 0 else 0 * x, same[0], ((3,),), "asks whether"),
    "no common domain": (lambda x: np.sqrt(x - 1), lambda x: np.sqrt(-x), ((),), "undecided|refuted"),
    "no letter in the results": (lambda x: np.zeros_like(x), lambda x: 0 * x, ((3,),), "nothing to prove"),
    "no entries": (*same, ((0, 2),), r"shape \(0, 2\); it needs entries"),
    "whole numbers alone": (*same, (np.arange(3),), r"no argument has letters \(ndarray of shape \(3,\)\)"),
    "None alone": (*same, (None,), "no argument has letters"),
}


@pytest.mark.parametrize("name", NO_PROOF)
def test_what_says_nothing_or_changes_is_no_proof(name):
    left, right, shapes, said = NO_PROOF[name]
    for seed in range(3):
        with pytest.raises((NotAlgebraic, TypeError, AssertionError), match=said):
            prove(left, right, *shapes, seed=seed)


def test_a_gradient_from_chance_or_state_is_no_proof():
    count = iter(range(100))
    for f_vjp in (lambda dY, A: (1 + 0 * np.random.rand()) * dY, lambda dY, A: (1 + next(count) % 2) * dY):
        with pytest.raises(NotAlgebraic, match="generator|run again"):
            check_vjp(f_vjp, lambda A: A + 0, (2, 2), exact=True)


def test_a_decimal_is_read_as_it_stands_and_the_proof_says_so():
    proof = prove(lambda x: 0.1 * x + 0.2 * x, lambda x: 3 * x / 10, ())
    assert "0.1 is read as 1/10, 0.2 is read as 1/5" in str(proof)
    with pytest.raises(NotAlgebraic, match="undecided"):
        prove(lambda x: (0.1 + 0.2) * x, lambda x: 3 * x / 10, ())
