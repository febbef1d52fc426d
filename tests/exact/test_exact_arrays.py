"""NumPy on exact numbers: the same results as on residues of flint's, the same shapes."""

from fractions import Fraction

import numpy as np
import pytest
from flint import fmpz, fmpz_mod_ctx

from attnmath._exact.arrays import ExactArray, exact, letters
from attnmath._exact.entries import Infinite
from attnmath._exact.outcomes import NotAlgebraic, Redraw
from attnmath._exact.point import Point

INF = np.inf
POINT = Point(seed=7)
FIELD = fmpz_mod_ctx(fmpz(POINT.q))
A, B, C, V = (letters(POINT, shape) for shape in ((3, 4), (4,), (3, 3), (2, 3, 4)))
HALVES = np.array([0.5, -2.0, 0.0, 3.25])
EYE = np.eye(3, 4, dtype=bool)


def residues(x):
    """The same numbers modulo q, as flint has them, in a plain array."""
    out = np.empty(np.shape(x), object)
    for place in np.ndindex(out.shape):
        entry = np.asarray(x, object)[place]
        if not hasattr(entry, "value"):
            top, bottom = Fraction(entry).as_integer_ratio()
            out[place] = FIELD(int(top)) / int(bottom)
        else:
            out[place] = FIELD(entry.value)
    return out


def on_residues(function):
    """The function of the letters, each replaced by flint's number."""
    return function(*map(residues, (A, B, C, V, HALVES)))


SAME = {
    "sums with broadcasting": lambda A, B, C, V, H: A + B - V * A,
    "quotients": lambda A, B, C, V, H: A / B + 1 / A,
    "negatives and powers": lambda A, B, C, V, H: -A + A**2 * A**3,
    "floats that are exact": lambda A, B, C, V, H: H * A + H - (2 - A) / 4,
    "a product of matrices": lambda A, B, C, V, H: A @ A.T,
    "a matrix and a vector": lambda A, B, C, V, H: A @ B,
    "a vector and a matrix": lambda A, B, C, V, H: B @ A.T,
    "two vectors": lambda A, B, C, V, H: B @ B,
    "leading axes": lambda A, B, C, V, H: V @ V.swapaxes(-1, -2),
    "leading axes on one side": lambda A, B, C, V, H: C @ V,
    "letters and numbers": lambda A, B, C, V, H: A @ H + H @ A.T,
    "numbers on the left": lambda A, B, C, V, H: H @ V[0].T,
    "the sum of all": lambda A, B, C, V, H: V.sum(),
    "a sum over an axis": lambda A, B, C, V, H: V.sum(axis=1),
    "a sum over axes": lambda A, B, C, V, H: np.sum(V, axis=(0, 2)),
    "a sum that keeps axes": lambda A, B, C, V, H: V.sum(-1, keepdims=True),
    "products along an axis": lambda A, B, C, V, H: A.prod(0),
    "running sums": lambda A, B, C, V, H: np.cumsum(A, 1),
    "stacked": lambda A, B, C, V, H: np.stack([A, 2 * A], axis=-1),
    "concatenated": lambda A, B, C, V, H: np.concatenate([A, C, A], axis=1),
    "on top of each other": lambda A, B, C, V, H: np.vstack([A, B]),
    "numbers beside letters": lambda A, B, C, V, H: np.concatenate([B, H]),
    "blocks": lambda A, B, C, V, H: np.block([[A, C], [C, A]]),
    "reshaped": lambda A, B, C, V, H: V.reshape(4, 6),
    "other axes": lambda A, B, C, V, H: np.moveaxis(V, 0, -1),
    "exchanged axes": lambda A, B, C, V, H: V.transpose(2, 0, 1),
    "a new axis": lambda A, B, C, V, H: np.expand_dims(A, 1) * B[:, None],
    "an axis less": lambda A, B, C, V, H: np.squeeze(A[:, :1], axis=-1),
    "parts": lambda A, B, C, V, H: A[1:, ::-2],
    "rows by number": lambda A, B, C, V, H: A[[2, 0, 0]],
    "entries by a mask": lambda A, B, C, V, H: A[EYE],
    "repeated": lambda A, B, C, V, H: np.repeat(A, 2, axis=0),
    "broadcast": lambda A, B, C, V, H: np.broadcast_to(B, (2, 4)),
    "where": lambda A, B, C, V, H: np.where(EYE, A, B),
    "the diagonal": lambda A, B, C, V, H: np.diagonal(C),
    "the trace": lambda A, B, C, V, H: np.trace(C),
    "outer": lambda A, B, C, V, H: np.outer(B, B),
    "kron": lambda A, B, C, V, H: np.kron(A, C),
    "tensordot": lambda A, B, C, V, H: np.tensordot(V, C, axes=([1], [0])),
    "tensordot of all tokens": lambda A, B, C, V, H: np.tensordot(V, V, axes=((0, 1), (0, 1))),
    "einsum": lambda A, B, C, V, H: np.einsum("aij,ik->ajk", V, C),
    "a loop": lambda A, B, C, V, H: sum(row * row[0] for row in A),
    "one entry": lambda A, B, C, V, H: A[1, 2] * A,
}


@pytest.mark.parametrize("name", SAME)
def test_numpy_does_what_it_does_with_residues(name):
    found, want = SAME[name](A, B, C, V, HALVES), on_residues(SAME[name])
    assert isinstance(found, ExactArray) and found.shape == np.shape(want)
    assert np.array_equal(residues(found), np.asarray(want, object))


def test_mean_and_variance():
    """With 1 / count as a fraction."""
    mean = A.sum(-1, keepdims=True) / 4
    assert (A.mean(-1, keepdims=True) == mean).all() and (A.mean(0) == A.sum(0) / 3).all()
    assert A.mean() == A.sum() / 12 and np.mean(V, axis=(0, 1))[0] == V.sum((0, 1))[0] / 6
    assert (np.var(A, axis=-1) == ((A - mean) ** 2).sum(-1) / 4).all()


@pytest.mark.parametrize("name", ["exp", "tanh", "sinh", "cosh", "log1p", "expm1", "square", "reciprocal", "negative"])
def test_functions_are_those_of_the_entries(name):
    x = np.exp(A) if name == "log1p" else A
    found = getattr(np, name)(x)
    assert isinstance(found, ExactArray) and found.shape == A.shape
    assert all(found[i] == (-x[i] if name == "negative" else getattr(x[i], name)()) for i in np.ndindex(A.shape))


def test_log_and_sqrt_of_exponentials():
    assert (np.log(np.exp(A)) == A).all() and (np.sqrt(np.exp(A)) == np.exp(A / 2)).all()


# ---- arrays without axes -----------------------------------------------------------------------


def test_what_has_no_axes_stays_an_array():
    """As an argument; an entry is a number."""
    x = letters(POINT, ())
    for y in (x, x + 1, 2 * x, -x, np.exp(x), x / x, B @ B, V.sum(), np.sum(A, axis=(0, 1))):
        assert isinstance(y, ExactArray) and y.shape == () and y.dtype == object
    assert not isinstance(B[0], np.ndarray) and [y.shape for y in B] == [()] * 4


def test_no_axes_beside_axes():
    x = letters(POINT, ())
    assert (x * A == A * x).all() and (x * A)[1, 1] == A[1, 1] * x[()] and (x + A).shape == A.shape


# ---- infinity ----------------------------------------------------------------------------------

MASKED = np.where(EYE, A, -INF)


def test_minus_infinity_beside_letters():
    assert ((MASKED == -INF) == ~EYE).all() and (np.isinf(MASKED) == ~EYE).all()
    assert (np.isfinite(MASKED) == EYE).all() and not np.isnan(MASKED).any()
    assert all(isinstance(x, Infinite) for x in MASKED[~EYE])


def test_a_bias_of_minus_infinity_hides():
    B = np.where(EYE, 0.5, -INF)
    assert ((A + B == -INF) == ~EYE).all() and (A + B == B + A).all() and ((A + B)[EYE] == A[EYE] + 0.5).all()


def test_the_exponential_of_minus_infinity_is_zero():
    E = np.exp(MASKED)
    assert ((E == 0) == ~EYE).all() and (E.sum(-1) == np.exp(np.diag(A[:, :3]))).all()


def test_numbers_may_be_put_where_letters_were():
    assert (np.where(MASKED == -INF, 0, MASKED)[~EYE] == 0).all()
    assert (np.where(A == 0, 1, A) == A).all() and (np.where(A != 0, 0.25, A) == 0.25).all()


# ---- maxima ------------------------------------------------------------------------------------


def test_a_maximum_is_one_constant_for_each_row():
    c = A.max(-1, keepdims=True)
    assert c.shape == (3, 1) and len({x.value for x in c.flat}) == 3
    assert (np.max(A, axis=-1) == c[:, 0]).all() and (A.max(1, keepdims=True) == c).all()


def test_a_maximum_along_another_axis_and_over_all():
    assert A.max(0).shape == (4,) and A.max(0, keepdims=True).shape == (1, 4) and A.max().shape == ()
    assert (A.max(0) == A.T.max(-1)).all() and V.max(1).shape == (2, 4)


def test_the_larger_of_two_is_a_maximum_as_well():
    """The same one, whatever the order."""
    x = np.maximum(A, B)
    assert isinstance(x, ExactArray) and (x == np.maximum(B, A)).all() and (x == np.stack([A, A * 0 + B]).max(0)).all()
    assert not (x == A).any() and not (x == B).any()


def test_a_maximum_of_what_is_hidden_is_minus_infinity():
    c = np.where(np.arange(3)[:, None] == 1, -INF, A).max(-1)
    assert [x == -INF for x in c] == [False, True, False]


# ---- equality, copies --------------------------------------------------------------------------


def test_equality_is_decided_entry_by_entry():
    other = np.where(EYE, A, A + 1)
    assert (A == other).dtype == bool and ((A == other) == EYE).all() and ((A != other) == ~EYE).all()
    assert np.array_equal(A, A.copy()) and not np.array_equal(A, other)


def test_a_copy_may_be_written_into():
    X = A.copy()
    X[0, 1] = X[0, 1] + 1
    X[2] = 3
    assert X[0, 1] - A[0, 1] == 1 and (X[2] == 3).all() and not (A[2] == 3).any() and (X * 2 == X + X).all()


def test_what_is_written_is_exact():
    X = A.copy()
    X[0, 0], X[1] = 0.5, 0
    assert X.point is POINT and X.sum(1)[0] == A[0].sum() - A[0, 0] + Fraction(1, 2)
    with pytest.raises(NotAlgebraic):
        X[0] = 1 / 3


def test_zeros_and_ones_like_letters():
    for make, value in ((np.zeros_like, 0), (np.ones_like, 1)):
        x = make(A)
        assert isinstance(x, ExactArray) and x.shape == A.shape and (x == value).all() and x.point is POINT


def test_lists_and_tuples_of_results_become_arrays():
    whole, parts = exact((np.ones(2), [0.5, A[0, 0]]), POINT)
    assert isinstance(whole, ExactArray) and parts[0] == Fraction(1, 2) and parts[1] == A[0, 0]


def test_truths_stay_truths():
    assert exact(EYE, POINT) is EYE and exact(True, POINT) is True


# ---- linear algebra ----------------------------------------------------------------------------


def test_inverse_and_solution():
    assert (np.linalg.inv(C) @ C == np.eye(3, dtype=int)).all() and (C @ np.linalg.solve(C, A) == A).all()


def test_the_determinant_is_multiplicative():
    D = letters(POINT, (3, 3))
    assert np.linalg.det(C @ D) == np.linalg.det(C) * np.linalg.det(D) and np.linalg.det(C[:2, :2]) == (
        C[0, 0] * C[1, 1] - C[0, 1] * C[1, 0])


def test_the_rank_is_exact():
    assert np.linalg.matrix_rank(A) == 3 and np.linalg.matrix_rank(np.outer(B, B)) == 1
    assert np.linalg.matrix_rank(A @ A.T - A @ A.T) == 0


def test_the_norm_of_a_vector_is_a_root():
    for attempt in range(50):
        x = letters(Point(seed=7, attempt=attempt), (3,))
        try:
            assert np.linalg.norm(x) ** 2 == x @ x
            return
        except Redraw:
            continue
    raise AssertionError("no root at any point")


# ---- what is refused ---------------------------------------------------------------------------

REFUSED = {
    "<": lambda: A < B,
    "> 0": lambda: A > 0,
    "np.minimum": lambda: np.minimum(A, 0),
    "min": lambda: A.min(-1),
    "np.min": lambda: np.min(A),
    "argmax": lambda: A.argmax(-1),
    "sort": lambda: np.sort(A),
    "sign": lambda: np.sign(A),
    "clip": lambda: np.clip(A, 0, 1),
    "floor": lambda: np.floor(A),
    "round": lambda: np.round(A),
    "%": lambda: A % 2,
    "//": lambda: A // 2,
    "median": lambda: np.median(A),
    "allclose": lambda: np.allclose(A, A),
    "isclose": lambda: np.isclose(A, A),
    "astype": lambda: A.astype(float),
    "float": lambda: float(A[0, 0]),
    "a rounded number": lambda: A * (1 / 3),
    "an array of rounded numbers": lambda: A + np.full(4, 1 / 3),
    "a rounded number in a product": lambda: A @ np.full(4, 2 / 3),
    "a rounded number chosen": lambda: np.where(EYE, A, 2**0.5),
    "a rounded number beside": lambda: np.concatenate([B, [1 / 7]]),
    "complex numbers": lambda: A + 1j,
    "into floats": lambda: np.zeros(4).__setitem__(slice(None), B),
    "arctan": lambda: np.arctan(A),
    "exp2": lambda: np.exp2(A),
    "eigenvalues": lambda: np.linalg.eigvalsh(C),
    "singular values": lambda: np.linalg.svd(A),
    "the norm of sums": lambda: np.linalg.norm(A, 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_leaves_the_algebra_is_refused_and_the_line_is_named(name):
    with pytest.raises(NotAlgebraic, match=r"leaves the algebra.*at test_exact_arrays.py:\d+ \(<lambda>\)"):
        REFUSED[name]()


def test_the_error_names_the_operation():
    for operation, name in ((lambda: 1 / 3 + A, r"undecided: \+ with 0.333\d*"),
                            (lambda: np.sign(A), "np.sign"), (lambda: A < B, "'<' of letters")):
        with pytest.raises(NotAlgebraic, match=f"^{name} leaves the algebra"):
            operation()
