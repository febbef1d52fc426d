"""A projection against numbers worked out by hand, PyTorch's own layer, and the complex step."""

import array_api_strict
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnmath import check_jvp, check_vjp, complex_step, linear, linear_jvp, linear_vjp

U = 2.0**-53
rng = np.random.default_rng(0)
X, W, b, dY = (rng.normal(size=s) for s in [(2, 6, 4, 3), (3, 5), (5,), (2, 6, 4, 5)])
ARRAYS = {"numpy": np.asarray, "torch": torch.as_tensor, "strict": array_api_strict.asarray}
arrays = pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)


def near(got, want, roundings=64):
    got, want = np.asarray(got), np.asarray(want)
    return got.shape == want.shape and abs(got - want).max(initial=0) <= roundings * U * abs(want).max(initial=0)


def by_torch(X, W, b, dY):
    """PyTorch's own layer, which keeps its matrix transposed, and its automatic differentiation."""
    x = [torch.tensor(a, requires_grad=True) for a in (X, W, b)]
    Y = F.linear(x[0], x[1].T, x[2])
    return Y.detach().numpy(), [g.numpy() for g in torch.autograd.grad(Y, x, torch.tensor(dY))]


@arrays
def test_linear(array):
    x = array(np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 1.0]])), array(np.array([[1.0, 0.0], [10.0, 1.0], [0.0, 5.0]]))
    assert np.asarray(linear(*x)).tolist() == [[21.0, 17.0], [-10.0, 4.0]]
    assert np.asarray(linear(*x, array(np.array([0.5, -2.0])))).tolist() == [[21.5, 15.0], [-9.5, 2.0]]
    assert near(linear(*map(array, (X, W, b))), by_torch(X, W, b, dY)[0])
    assert near(linear(*map(array, (X, W, b[None]))), by_torch(X, W, b, dY)[0])


@arrays
def test_linear_vjp(array):
    found = linear_vjp(*map(array, (dY, X, W, b)))
    assert found._fields == ("dX", "dW", "db")
    assert all(near(g, w) for g, w in zip(found, by_torch(X, W, b, dY)[1]))
    check_vjp(linear_vjp, linear, *map(array, (X, W, b)))
    check_vjp(linear_vjp, linear, *map(array, (X[0, 0], W, b[None])))
    assert linear_vjp(*map(array, (dY, X, W))).db is None
    assert all(near(g, w) for g, w in zip(linear_vjp(*map(array, (dY, X, W))), found[:2]))


@arrays
def test_linear_jvp(array):
    check_jvp(linear_jvp, linear, *map(array, (X, W, b)))
    check_jvp(linear_jvp, linear, *map(array, (X[0, 0], W, b[None])))
    check_jvp(linear_jvp, linear, *map(array, (X, W)))
    x = [array(a) for a in (X, W, b)]
    assert near(linear_jvp(x[0], None, None, *x), X @ W)
    assert near(linear_jvp(None, None, x[2], *x), np.broadcast_to(b, dY.shape), 0)
    assert not np.asarray(linear_jvp(None, None, None, *x)).any()


def test_the_two_modes_pair():
    dots = [rng.normal(size=a.shape) for a in (X, W, b)]
    terms = [(g * d).sum() for g, d in zip(linear_vjp(dY, X, W, b), dots)]
    pairing = (dY * linear_jvp(*dots, X, W, b)).sum()
    assert abs(pairing - sum(terms)) <= 1e-14 * sum(map(abs, terms)) * 8


def test_the_weights_are_shared_by_the_batch():
    """One gradient for all tokens is the sum of the gradients of every part of the batch."""
    whole, parts = linear_vjp(dY, X, W, b), [linear_vjp(*x, W, b) for x in zip(dY, X)]
    assert near(whole.dX, np.stack([p.dX for p in parts]))
    assert near(whole.dW, sum(p.dW for p in parts)) and near(whole.db, sum(p.db for p in parts))


@pytest.mark.parametrize("leading, n, d, m", [((), 0, 3, 5), ((0,), 4, 3, 5), ((2,), 4, 0, 5)])
def test_axes_without_entries(leading, n, d, m):
    X, W, b, dY = np.ones((*leading, n, d)), np.ones((d, m)), np.ones(m), np.ones((*leading, n, m))
    assert (linear(X, W, b) == 1).all()
    found = linear_vjp(dY, X, W, b)
    assert [g.shape for g in found] == [X.shape, W.shape, b.shape]
    assert (found.dW == dY.size / m).all() and (found.db == dY.size / m).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_results_keep_the_number_type(dtype):
    x = [a.astype(dtype) for a in (dY, X, W, b)]
    assert {a.dtype for a in (linear(*x[1:]), *linear_vjp(*x), linear_jvp(*x[1:], *x[1:]))} == {x[0].dtype}


def test_torch_maps_and_differentiates_it():
    x = [torch.as_tensor(a) for a in (X, W, b, dY)]
    got = torch.func.grad(lambda *a: (x[3] * linear(*a)).sum(), argnums=(0, 1, 2))(*x[:3])
    assert all(near(g, w) for g, w in zip(got, by_torch(X, W, b, dY)[1]))
    mapped = torch.func.vmap(lambda dY, X: linear_vjp(dY, X, *x[1:3]).dW)(x[3], x[0])
    assert near(mapped.sum(0), linear_vjp(dY, X, W, b).dW)


def test_complex_numbers_carry_the_tangent():
    assert near(complex_step(lambda W: linear(X, W, b), W, np.ones(W.shape)), linear_jvp(None, np.ones(W.shape), None, X, W, b))
