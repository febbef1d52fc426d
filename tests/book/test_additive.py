"""Additive attention: its values against PyTorch, its gradients against the complex step."""

import numpy as np
import pytest
import torch

from attnmath import check_vjp
from attnmath.book.heads import additive_map, additive_vjp

SHAPES = ((3, 5), (4, 5), (4, 2), (5, 6), (5, 6), (6,))  # Q, K, V, W, U, w


@pytest.fixture
def inputs():
    rng = np.random.default_rng(17)
    return [rng.normal(size=shape) for shape in SHAPES]


def test_the_head_is_a_network_of_each_pair(inputs):
    Q, K, V, W, U, w = map(torch.from_numpy, inputs)
    pairs = torch.cat([x.expand(3, 4, 5) for x in (Q[:, None], K[None])], dim=-1)
    first = torch.nn.functional.linear(pairs, torch.cat([W, U]).mT)
    weights = torch.softmax(torch.nn.functional.linear(torch.tanh(first), w[None])[..., 0], dim=-1)
    found = additive_map(*inputs)
    np.testing.assert_allclose(found.P, weights, rtol=1e-13)
    np.testing.assert_allclose(found.O, weights @ V, rtol=1e-13)


def test_its_gradients(inputs):
    check_vjp(additive_vjp, lambda *x: additive_map(*x).O, *inputs)


@pytest.mark.parametrize("name", ["dQ", "dK", "dV", "dW", "dU", "dw"])
def test_a_wrong_gradient_is_refused(inputs, name):
    def wrong(*x):
        found = additive_vjp(*x)
        return found._replace(**{name: 1.001 * getattr(found, name)})

    with pytest.raises(AssertionError, match=name):
        check_vjp(wrong, lambda *x: additive_map(*x).O, *inputs)


def test_without_hidden_units_that_bend_all_queries_have_the_same_weights(inputs):
    Q, K, V, W, U, w = inputs
    P = additive_map(Q, K, V, 1e-5 * W, 1e-5 * U, 1e5 * w).P
    assert abs(P - P[0]).max() < 1e-8 < abs(P[0] - 1 / 4).max()
