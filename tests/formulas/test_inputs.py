"""Self-attention: one input, three paths, and what comes back along them."""

import array_api_strict
import numpy as np
import pytest
import torch

from attnmath import (
    Weights,
    check_jvp,
    check_vjp,
    multihead,
    multihead_map,
    multihead_vjp,
    self_attention,
    self_attention_jvp,
    self_attention_vjp,
)
from torch_layer import each, excess, flat, magnitudes, reference, weights

U = 2.0**-53
b, H, G, n, d, d_k, d_v = 2, 6, 3, 4, 5, 8, 7
ARRAYS = {"numpy": np.asarray, "torch": torch.as_tensor, "strict": array_api_strict.asarray}
arrays = pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)


def problem(seed=0, small=False):
    """dY, X, W, B, gamma, with a masked score and an empty row."""
    rng = np.random.default_rng(seed)
    sizes = (4, 2, 3, 3, 2, 1) if small else (H, G, d, d, d_k, d_v)
    W, (dY, X), B = weights(rng, *sizes), rng.normal(size=(2, b, n, sizes[2])), rng.normal(size=(n, n))
    B[0, 2] = B[3] = -np.inf
    return dY, X, W, B, rng.normal(size=sizes[0])


def dropped(H=H):
    return (np.random.default_rng(1).random((H, n, n)) < 0.7) / 0.7


def near(got, want):
    got, want = np.asarray(got), np.asarray(want)
    return got.shape == want.shape and abs(got - want).max() <= 256 * U * abs(want).max()


def joined(found):
    """What comes back to queries' and keys' tokens, added up: they are the same."""
    return [found[0] + found[1], *found[2:]]


@arrays
@pytest.mark.parametrize("R", [None, dropped()])
def test_self_attention(array, R):
    dY, X, *x = problem()
    got = self_attention(*each(array, [X, *x]), R=None if R is None else array(R))
    assert near(got, reference(dY, X, X, *x, R)[0])
    assert near(self_attention(*each(array, [X, x[0]])), reference(dY, X, X, x[0])[0])


@arrays
def test_self_attention_vjp(array):
    x = each(array, problem(small=True))[1:]
    check_vjp(self_attention_vjp, self_attention, *x)
    check_vjp(self_attention_vjp, self_attention, x[0][0, ...], Weights(*x[1][:4]), R=array(dropped(H=4)))
    dY, X, *x = problem()
    for R in (None, dropped()):
        found = self_attention_vjp(*each(array, [dY, X, *x]), R=None if R is None else array(R))
        assert found._fields == ("dX", "dW", "dB", "dgamma") and type(found.dW) is Weights
        want, sizes = reference(dY, X, X, *x, R)[1], magnitudes(dY, X, X, *x, R)
        assert excess(flat(found), joined(want), joined(sizes)) <= 64 * U
    assert self_attention_vjp(dY, X, x[0]).dB is None


@arrays
def test_self_attention_jvp(array):
    x = each(array, problem(small=True))[1:]
    check_jvp(self_attention_jvp, self_attention, *x)
    check_jvp(self_attention_jvp, self_attention, x[0][0, ...], Weights(*x[1][:4]), R=array(dropped(H=4)))
    assert not np.asarray(self_attention_jvp(None, None, None, None, *x)).any()


def test_the_two_modes_pair():
    dY, *x = problem()
    dots = *problem(seed=1)[1:3], np.random.default_rng(2).normal(size=(n, n)), problem(seed=1)[4]
    terms = [(g * t).sum() for g, t in zip(flat(self_attention_vjp(dY, *x)), flat(dots))]
    assert abs((dY * self_attention_jvp(*dots, *x)).sum() - sum(terms)) <= 1e-13 * sum(map(abs, terms))


def test_what_the_map_has_computed_is_taken_from_it():
    dY, X, W, B, gamma = problem()
    given, own = multihead_map(X, X, W, B, gamma, R=dropped()), self_attention_vjp(dY, X, W, B, gamma, R=dropped())
    found = self_attention_vjp(dY, X, W, B, gamma, R=dropped(), given=given)
    assert all((g == w).all() for g, w in zip(flat(found), flat(own)))
    other = self_attention_vjp(dY, X, W, B, gamma, R=dropped(), given=given._replace(P=2 * given.P))
    assert not near(other.dX, own.dX)


def test_moving_a_token_moves_queries_and_keys():
    """The tangent along X is that along the queries' tokens plus that along the keys'."""
    _, X, W, B, gamma = problem()
    x_dot = problem(seed=1)[1]
    f = [lambda t: self_attention(X + t * x_dot, W, B, gamma), lambda t: multihead(X + t * x_dot, X, W, B, gamma),
         lambda t: multihead(X, X + t * x_dot, W, B, gamma)]
    both, queries, keys = ((g(1e-6) - g(-1e-6)) / 2e-6 for g in f)
    assert abs(both - queries - keys).max() < 1e-7 * abs(both).max() and abs(queries).max() > 0.01 < abs(keys).max()
    assert abs(self_attention_jvp(x_dot, None, None, None, X, W, B, gamma) - both).max() < 1e-7 * abs(both).max()


def test_tokens_have_no_order():
    """Without a mask, permuted tokens give permuted outputs and gradients, and the same gradient of W."""
    dY, X, W, *_ = problem()
    order = [2, 0, 3, 1]
    assert near(self_attention(X[:, order], W), self_attention(X, W)[:, order])
    one, other = self_attention_vjp(dY, X, W), self_attention_vjp(dY[:, order], X[:, order], W)
    assert near(other.dX, one.dX[:, order]) and near(other.dW.W_K, one.dW.W_K)


def test_a_later_token_passes_nothing_to_an_earlier_one():
    """Under a causal mask, the gradient of the first outputs alone is 0 in all later tokens."""
    dY, X, W, *_ = problem()
    B = np.where(np.tri(n, dtype=bool), 0, -np.inf)
    dY[:, 2:] = 0
    assert (self_attention_vjp(dY, X, W, B).dX[:, 2:] == 0).all()
    found = multihead_vjp(dY, X, X, W, B)
    assert (found.dX[:, 2:] == 0).all() and (found.dZ[:, 2:] == 0).all() and found.dZ[:, :2].all()
