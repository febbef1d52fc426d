"""Each word of the vocabulary, on small numbers, in three libraries."""

import array_api_strict
import numpy as np
import pytest
import torch
from array_api_compat import array_namespace

from attnmath._words import arrays as v

INF = np.inf
LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor, "strict": array_api_strict.asarray}


@pytest.fixture(params=LIBRARIES.values(), ids=LIBRARIES)
def array(request):
    return lambda x: request.param(np.asarray(x))


def same(got, want):
    got, want = np.asarray(got), np.asarray(want)
    return got.shape == want.shape and got.dtype == want.dtype and (got == want).all()


def test_namespace_and_number_type(array):
    x = array([1.0])
    assert v.namespace(x) is array_namespace(x) is v.namespace(x)
    assert v.number_type(x) == v.number_type(x) == (True, False, 2.0**-52)
    assert v.number_type(array(np.ones(1, "complex64"))) == (True, True, 2.0**-23)
    assert v.number_type(array([True])) == v.number_type(array([1])) == (False, False, None)


def test_exp_is_zero_at_minus_infinity(array):
    got = np.asarray(v.exp(array([-INF, 0.0, 1.0])))
    assert same(got[:2], [0.0, 1.0]) and abs(got[2] - np.e) < 1e-15
    assert np.asarray(v.exp(array([complex(-INF, 1), 0j])))[0] == 0


def test_log_is_minus_infinity_at_zero(array):
    assert same(v.log(array([0.0, 1.0, INF])), [-INF, 0.0, INF])
    assert np.asarray(v.log(array([0j, 1 + 1j])))[0] == -INF


def test_divide(array):
    x, y = array([[6.0, -INF, 0.0]]), array([[3.0], [0.0]])
    assert same(v.divide(x[:, :2], array([[3.0], [-2.0]])), [[2.0, -INF], [-3.0, -INF]])
    assert same(v.divide(x[:, 2:], y), [[0.0], [0.0]])
    assert same(v.divide(x, -2.0), [[-3.0, -INF, -0.0]])
    got = np.asarray(v.divide(array([complex(-INF, 1), 2j]), 2.0))
    assert same(got, [complex(-INF, 0), 1j])


def test_nonzero(array):
    assert same(v.nonzero(array([2.0, 0.0, -0.0, -INF])), [2.0, 1.0, 1.0, -INF])


def test_shift(array):
    with np.errstate(all="raise"):
        assert same(v.shift(array([[3.0, -INF], [1.0, 2.0]]), array([[1.0], [2.0]])), [[2, -INF], [-1.0, 0]])
        assert same(v.shift(array([-1.7e308]), array([1.7e308])), [-INF])
        assert same(v.shift(array([[-INF, -INF]]), array([[-INF]])), [[-INF, -INF]])
    assert same(v.shift(array([complex(-INF, 1)]), array([2.0])), [complex(-INF, 0)])


def test_row_sums_and_maxima(array):
    x = array([[1.0, 5.0, -INF], [-INF, -INF, -INF], [-3.0, -2.0, -4.0]])
    assert same(v.rowsum(array([[1.0, 2.0], [3.0, 4.0]])), [[3.0], [7.0]])
    assert same(v.rowmax(x), [[5.0], [0.0], [-2.0]])
    assert same(v.rowmax(array([1 + 9j, 2 - 9j])), [2.0])
    assert same(v.rowmax(array(np.zeros((2, 0)))), [[0.0], [0.0]])


def test_constant(array):
    x = array([1.0, -INF])
    assert same(v.constant(x), x)


def test_no_derivative_passes_a_constant():
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    _, tangent = torch.func.jvp(lambda x: x * v.constant(x) + v.rowmax(x), (x,), (torch.ones_like(x),))
    assert same(tangent, x)
    gradient = torch.func.grad(lambda x: (x * v.constant(x) + v.rowmax(x)).sum())(x)
    assert same(gradient, x)


def test_means_roots_and_tangents(array):
    assert same(v.rowmean(array([[1.0, 2.0], [3.0, 5.0]])), [[1.5], [4.0]])
    assert same(v.rowmean(array([[1j, 2.0]])), [[1 + 0.5j]])
    assert same(v.sqrt(array([4.0, 0.0])), [2.0, 0.0]) and same(v.sqrt(array([-4 + 0j])), [2j])
    assert same(v.tanh(array([0.0, 1e4, -1e4])), [0.0, 1.0, -1.0])


def test_inner(array):
    x, y = array([[2.0, 0.0], [-1.0, 0.0]]), array([[3.0, -INF], [4.0, 5.0]])
    with np.errstate(all="raise"):
        assert same(v.inner(x, y), 2.0)
    assert same(v.inner(array([1.0, 2.0]), array([-INF, 1.0])), -INF)
    assert same(v.inner(array([1j, 2.0]), array([1j, 3.0 + 1j])), 5 + 2j)


def test_axes(array):
    x = array([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
    assert same(v.T(x), [[[1.0, 3, 5], [2, 4, 6]]])
    assert same(v.column(x[0, 0, :]), [[1.0], [2.0]])
    assert same(v.row(x[0, ...]), np.asarray(x)[0][:, None, :])
    assert same(v.flat(array([[1.0], [2.0]])), [1.0, 2.0])
    assert v.row(2.5) == 2.5
    assert same(v.row(array(2.5)), 2.5)


def test_diag(array):
    assert same(v.diag(array([[2.0, 3.0], [INF, 5.0]])), [[[2.0, 0], [0, 3]], [[INF, 0], [0, 5]]])


def test_blocks_of_four_axes(array):
    x, y = np.arange(6.0).reshape(2, 3), np.arange(8.0).reshape(2, 2, 2)
    assert same(v.ahead(array(y)), y[:, None])
    assert same(v.identity(array(x)), np.eye(3))
    assert same(v.identity(array(y)), np.stack([np.eye(2)] * 2))
    assert v.identity(array(np.ones((0, 2), "complex64"))).dtype == array(np.ones(1, "complex64")).dtype
    assert same(v.kron(array(x), array(y[1])), np.kron(x, y[1]).reshape(2, 2, 3, 2))
    assert same(v.kron(array(x), array(y)), np.stack([np.kron(x, z).reshape(2, 2, 3, 2) for z in y]))
    want = np.zeros((2, 2, 2, 2))
    want[0, :, 0], want[1, :, 1] = y
    assert same(v.blocks(array(y)), want)
    assert same(v.blocks(array(y[None])), want[None])
    assert same(v.blocks(array(y * 1j)), want * 1j)


def test_diag_stays_on_its_device():
    assert v.diag(torch.ones(2, 3, device="meta")).device.type == "meta"
    assert v.blocks(torch.ones(2, 3, 4, device="meta")).device.type == "meta"
    assert v.identity(torch.ones(2, 3, device="meta")).device.type == "meta"


def test_finite_visible_hidden_real(array):
    A = array([1.0, -INF, INF])
    assert same(v.finite(A), [1.0, 0.0, INF])
    assert same(v.visible(array([7.0, 8.0, 9.0]), A), [7.0, 0.0, 9.0])
    assert same(v.is_hidden(A), [False, True, False])
    assert same(v.hide(array([7.0, 8.0, 9.0]), A), [7.0, -INF, 9.0])
    assert same(v.is_hidden(array([complex(-INF, 2), 1j])), [True, False])
    assert same(v.real(array([1 + 2j])), [1.0]) and same(v.real(A), [1.0, -INF, INF])
    assert v.is_complex(array([1j])) and not v.is_complex(A)


def test_plus(array):
    x, B = array([1.0, 2.0]), array([-INF, 3.0])
    assert v.plus(x, None) is x
    assert same(v.plus(x, B), [-INF, 5.0])
    step = np.asarray(v.plus(array([1 + 2j, 2j]), array([complex(-INF, 0), 3])))
    assert same(step, [complex(-INF, 2), 3 + 2j])


def test_sum_to(array):
    x = array(np.arange(24.0).reshape(2, 3, 4))
    y = np.asarray(x)
    assert v.sum_to(x, None) is None
    for shape in [(2, 3, 4), (3, 4), (4,), (1, 3, 4), (2, 1, 4), (2, 3, 1), (1, 1, 1), (3, 1), (1,)]:
        want = y.sum(axis=tuple(range(3 - len(shape))))
        want = want.sum(axis=tuple(k for k, s in enumerate(shape) if s == 1), keepdims=True)
        assert same(v.sum_to(x, array(np.zeros(shape))), want)
    assert same(v.sum_to(x, array(0.0)), 276.0) and same(v.sum_to(x, 0.5), 276.0)
    ones = array(np.ones((2, 1, 3)))
    assert same(v.sum_to(ones, ones), np.ones((2, 1, 3)))


def test_summed(array):
    X = np.arange(40.0).reshape(2, 4, 5)
    x = array(X)
    assert v.summed(x, array(X)) is x and v.summed(x, None) is None
    assert same(v.summed(x, array(X[:1])), X[:1] + X[1:]) and same(v.summed(x, 1.0), X.sum())
    assert same(v.summed(array(X.reshape(40)[:1]), 1.0), X.reshape(40)[0])


def test_shape_and_number(array):
    assert v.shape(3) == v.shape(2.5) == v.shape(1j) == () == v.shape(array(1.0))
    assert v.shape(array([[1.0, 2, 3]])) == (1, 3)
    assert [v.is_number(x) for x in (1, 1.0, 1j, array(1.0), None)] == [True] * 3 + [False] * 2


def test_room_like_and_is_writable(array):
    x = array(np.ones((2, 3), "float32"))
    room = v.room_like(x, (4, 2))
    assert np.asarray(room).shape == (4, 2) and room.dtype == x.dtype
    assert v.is_writable(np.ones(2)) and v.is_writable(torch.ones(2))
    assert not v.is_writable(torch.ones(2, requires_grad=True))
    assert not v.is_writable(array_api_strict.asarray([1.0]))


def test_no_word_changes_what_it_is_given(array):
    x = np.array([[1.0, -INF, 0.0], [-INF, -INF, -INF]])
    for word in (v.exp, v.rowsum, v.rowmax, v.T, v.diag, v.finite, v.is_hidden, v.column, v.row):
        y = array(x.copy())
        word(y)
        assert same(y, x)


def test_words_are_differentiable_where_scores_are_hidden():
    x = torch.tensor([[1.0, -INF], [-INF, -INF]], dtype=torch.float64, requires_grad=True)
    y = v.exp(v.shift(x, v.rowmax(x)))
    total = v.log(v.rowsum(y))
    loss = v.divide(y, v.rowsum(y)).sum() + torch.where(total.isinf(), 0, total).sum()
    (gradient,) = torch.autograd.grad(loss, x)
    assert gradient.isfinite().all() and (gradient[x.isneginf()] == 0).all()
