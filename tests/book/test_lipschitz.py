"""The bounds of the chapter on how large things can get: attained, never exceeded, and needed."""

import numpy as np
import pytest

from attnmath import Weights, jacobians, self_attention_jacobian
from attnmath.book.heads import ball_bound, diameter, head_bounds, key_load, longest, norm

RNG = np.random.default_rng(7)
ROUNDING = 1e-12  # some thousand roundings of a singular value


def measured(*head):
    J = jacobians(*head)
    return np.array([norm(J.J_Q), norm(J.J_K), norm(J.J_V)])


def a_head(n=3, m=4, d_k=2, d_v=5, size=1.0):
    shapes = (n, d_k), (m, d_k), (m, d_v)
    return tuple(size * RNG.normal(size=shape) for shape in shapes)


HALVES = (np.tile([[0.0, 3.0]], (5, 1)), np.array([[2.0, 0.0], [-2.0, 0.0]]),
          np.array([[1.0], [4.0]]))


def test_norm_is_the_largest_factor_of_a_table():
    J = RNG.normal(size=(2, 3, 4, 5))
    step = RNG.normal(size=(4, 5))
    moved = np.linalg.norm(np.einsum("iajb,jb->ia", J, step)) / np.linalg.norm(step)
    assert moved < norm(J) == pytest.approx(np.linalg.svd(J.reshape(6, 20))[1][0], rel=ROUNDING)


def test_diameter_longest_and_load_by_hand():
    X = np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 12.0]])
    assert (longest(X), diameter(X)) == (12.0, 12.0)
    assert diameter(X[:1] - X[2:]) == 0.0
    assert key_load(np.array([[0.5, 0.5], [0.25, 0.75]])) == 1.25


@pytest.mark.parametrize("gamma", [None, 0.2, 3.0])
def test_no_head_exceeds_its_bounds(gamma):
    for size in (0.3, 1.0, 4.0):
        B = np.where(RNG.random((3, 4)) < 0.7, RNG.normal(size=(3, 4)), -np.inf)
        head = *a_head(size=size), B, gamma
        assert (measured(*head) <= (1 + ROUNDING) * np.array(head_bounds(*head))).all()


def test_two_keys_at_one_half_attain_all_three():
    assert measured(*HALVES) == pytest.approx(np.array(head_bounds(*HALVES)), rel=ROUNDING)


def test_the_constant_of_a_quarter_is_needed():
    assert measured(*HALVES)[0] > 0.99 * head_bounds(*HALVES).Q


def one_head(d, W_Q, W_K):
    return Weights(W_Q[None], W_K[None], np.eye(d)[None], np.eye(d)[None])


def test_no_layer_exceeds_the_bound_on_its_ball():
    for d in (1, 2, 4):
        W_Q, W_K = RNG.normal(size=(2, d, d))
        X = RNG.normal(size=(5, d))
        J = self_attention_jacobian(X, one_head(d, W_Q, W_K), gamma=0.7)
        assert norm(J) <= ball_bound(longest(X), W_Q @ W_K.T, np.eye(d), 0.7, 5)


def test_opposite_tokens_nearly_attain_the_bound_on_a_ball():
    M = np.array([[0.0, 1.0], [1.0, 0.0]])
    X = np.array([[30.0, 0.0], [-30.0, 0.0]])
    J = self_attention_jacobian(X, one_head(2, np.eye(2), M.T), gamma=1.0)
    bound = ball_bound(30.0, M, np.eye(2), 1.0, key_load(np.full((2, 2), 0.5)))
    assert 0.999 * bound < norm(J) <= bound
    assert norm(J) > ball_bound(29.0, M, np.eye(2), 1.0, 1.0)  # a ball that is too small
