"""A recurrent network, a head key by key and linear attention, against PyTorch and two oracles."""

import array_api_strict
import numpy as np
import pytest
import torch

from attnmath import check_vjp, softmax
from attnmath.book.heads import (
    by_keys,
    each_row,
    linear_attention,
    linear_attention_vjp,
    recurrent,
    recurrent_vjp,
    stacked,
)

U = 2.0**-53  # the unit roundoff of float64
INF = np.inf
LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor, "strict": array_api_strict.asarray}
libraries = pytest.mark.parametrize("array", LIBRARIES.values(), ids=LIBRARIES)

rng = np.random.default_rng(40)
X, W_X, W_S, b = (rng.normal(size=s) for s in [(2, 5, 3), (3, 4), (4, 4), (4,)])
A, V = rng.normal(size=(2, 4, 6)), rng.normal(size=(2, 6, 3))
Q, K = np.exp(rng.normal(size=(2, 2, 5, 3)))
values = rng.normal(size=(2, 5, 4))


def near(got, want, roundings=64):
    """Equal but for some roundings of the largest entry, which is of the size of all terms here."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    return (np.abs(got - want) <= roundings * U * max(1.0, np.abs(want).max())).all()


def their_network(W_X, W_S, b):
    """PyTorch's, which has a bias more."""
    net = torch.nn.RNN(3, 4, batch_first=True, dtype=torch.float64)
    weights = W_X.T, W_S.T, b, 0 * b
    for parameter, value in zip(net.parameters(), weights, strict=True):
        parameter.data = torch.tensor(value)
    return net


# ---- values ------------------------------------------------------------------------------------


@libraries
def test_recurrent(array):
    want = their_network(W_X, W_S, b)(torch.tensor(X))[0].detach()
    assert near(recurrent(*map(array, (X, W_X, W_S, b))), want)


def test_recurrent_by_hand():
    S = recurrent(*(np.array(x) for x in ([[1.0], [0.0], [0.0]], [[2.0]], [[-1.0]])))
    first = np.tanh(2)
    assert near(S[:, 0], np.array([first, np.tanh(-first), np.tanh(np.tanh(first))]))


@libraries
def test_by_keys(array):
    want = torch.softmax(torch.tensor(A), -1) @ torch.tensor(V)
    assert near(by_keys(array(A), array(V)), want)


def test_by_keys_passes_over_what_is_masked_and_does_not_overflow():
    masked = A.copy()
    masked[0, 0, 0] = masked[0, 1, 2:] = masked[0, 2] = masked[1, 3, :5] = -INF
    with np.errstate(all="raise"):
        got = by_keys(masked, V)
        far = by_keys(masked + 1e6, V)
    assert near(got, softmax(masked) @ V) and (got[0, 2] == 0).all()
    assert np.abs(far - got).max() < 1e-9  # the scores are rounded at 1e6
    assert (got[1, 3] == V[1, 5]).all()  # one key


@libraries
def test_linear_attention(array):
    products = np.tril(Q @ K.mT)
    want = products / products.sum(axis=-1, keepdims=True) @ values
    assert near(linear_attention(*map(array, (Q, K, values))), want)


# ---- gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [b, None])
@pytest.mark.parametrize("n", [5, 1])
def test_recurrent_vjp(n, bias):
    check_vjp(recurrent_vjp, recurrent, X[:, :n], W_X, W_S, bias)


def test_recurrent_vjp_is_that_of_pytorch():
    net, x = their_network(W_X, W_S, b), torch.tensor(X, requires_grad=True)
    dS = rng.normal(size=(2, 5, 4))
    net(x)[0].backward(torch.tensor(dS))
    theirs = x.grad, net.weight_ih_l0.grad.T, net.weight_hh_l0.grad.T, net.bias_ih_l0.grad
    for got, want in zip(recurrent_vjp(dS, X, W_X, W_S, b), theirs, strict=True):
        assert near(got, want)


def test_linear_attention_vjp():
    check_vjp(linear_attention_vjp, linear_attention, Q, K, values)


def test_by_keys_has_the_gradient_of_a_softmax():
    def by_keys_vjp(dO, A, V):
        P = softmax(A)
        dP = dO @ V.mT
        return P * (dP - (P * dP).sum(axis=-1, keepdims=True)), P.mT @ dO

    check_vjp(by_keys_vjp, by_keys, A, V)


# ---- mistakes that the checks refuse -----------------------------------------------------------


def no_later(dS, X, W_X, W_S, b):
    """Each state hears of its own output alone."""
    S = recurrent(X, W_X, W_S, b)
    dA = dS * (1 - S * S)
    dW_S = np.tensordot(S[:, :-1], dA[:, 1:], axes=((0, 1), (0, 1)))
    return dA @ W_X.T, np.tensordot(X, dA, axes=((0, 1), (0, 1))), dW_S, dA.sum(axis=(0, 1))


def transposed(dS, *x):
    dX, dW_X, dW_S, db = recurrent_vjp(dS, *x)
    return dX, dW_X, dW_S.T, db


def from_the_states(dS, X, W_X, W_S, b):
    """The gradient of W_S from each state itself, not from the one before."""
    dX, dW_X, dW_S, db = recurrent_vjp(dS, X, W_X, W_S, b)
    dA = dX @ np.linalg.pinv(W_X.T)
    return dX, dW_X, np.tensordot(recurrent(X, W_X, W_S, b), dA, axes=((0, 1), (0, 1))), db


@pytest.mark.parametrize("careless", [no_later, transposed, from_the_states])
def test_a_careless_recurrent_vjp_is_refused(careless):
    with pytest.raises(AssertionError, match="^d"):
        check_vjp(careless, recurrent, X, W_X, W_S, b)


def test_linear_attention_without_its_statistic_is_refused():
    def careless(dO, Q, K, V):
        dQ, dK, dV = linear_attention_vjp(dO, Q, K, V)
        return dQ, dK + (dO * linear_attention(Q, K, V)).sum(axis=-1, keepdims=True) * Q, dV

    with pytest.raises(AssertionError, match="^dK"):
        check_vjp(careless, linear_attention, Q, K, values)


def test_rows_are_put_together_again():
    assert (stacked([x for x, _ in each_row(X, values)]) == X).all()
