"""Mistakes that layers are written with: each is planted, and refused under its gradient's name.

All of them fit: tokens, models and heads have one size here, so that no shape tells.
"""

import numpy as np
import pytest

from attnmath import (
    Weights,
    check_vjp,
    multihead,
    multihead_map,
    multihead_vjp,
    self_attention,
    self_attention_vjp,
)
from torch_layer import excess, flat, magnitudes, reference, weights

b, H, n, d = 2, 2, 4, 3
rng = np.random.default_rng(0)
W = weights(rng, H, H, d, d, d, d)
dY, X, Z = rng.normal(size=(3, b, n, d))
B = rng.normal(size=(n, n))
B[1, 2] = -np.inf
NAMES = ["dX", "dZ", *(f"dW.{name}" for name in Weights._fields), "dB", "dgamma"]
ALLOWED = 1e-12


def interleaved(W):
    """W_O for heads whose entries alternate: the first of each head, then the second of each head."""
    return W._replace(W_O=W.W_O.reshape(d, H, d).swapaxes(0, 1))


def as_if(**changes):
    """The gradients as they come out with these weights, or of these tokens, in the backward pass only."""
    def vjp(dY, X, Z, W, B):
        x = dict(X=X, Z=Z, W=W) | {name: change(dict(X=X, Z=Z, W=W)) for name, change in changes.items()}
        return multihead_vjp(dY, x["X"], x["Z"], x["W"], B, given=multihead_map(X, Z, W, B))
    return vjp


def of_weights(vjp, *names):
    """The right gradients, but for some of the weights', which are of this wrong vjp."""
    def wrong(*x):
        right, other = multihead_vjp(*x), vjp(*x).dW
        return right._replace(dW=right.dW._replace(**{name: getattr(other, name) for name in names}))
    return wrong


def without_b_Q(dY, X, Z, W, B):
    """The same weights of attention, as if the biases of the queries were in B."""
    K = multihead_map(X, Z, W, B).K
    beside = B + np.einsum("hk,...hmk->...hm", W.b_Q, K)[..., None, :] / d**0.5
    return multihead_vjp(dY, X, Z, W._replace(b_Q=None), beside)


def batch_mean(dY, *x):
    found = multihead_vjp(dY, *x)
    return found._replace(dW=found.dW._make(g / b for g in found.dW))


def without_D(dY, X, Z, W, B):
    """O is 0, so that D is; but W_O has its own gradient."""
    map_, right = multihead_map(X, Z, W, B), multihead_vjp(dY, X, Z, W, B)
    found = multihead_vjp(dY, X, Z, W, B, given=map_._replace(O=0 * map_.O))
    return found._replace(dW=found.dW._replace(W_O=right.dW.W_O))


MISTAKES = {  # the wrong backward pass, and all gradients that are wrong in it
    "W_O not transposed": (as_if(W=lambda x: x["W"]._replace(W_O=x["W"].W_O.swapaxes(1, 2))),
                           "dX dZ dW.W_Q dW.W_K dW.W_V dW.b_Q dW.b_V dB dgamma"),
    "heads split alternately": (as_if(W=lambda x: interleaved(x["W"])),
                                "dX dZ dW.W_Q dW.W_K dW.W_V dW.b_Q dW.b_V dB dgamma"),
    "dW_Q transposed": (lambda *x: multihead_vjp(*x)._replace(dW=multihead_vjp(*x).dW._replace(
        W_Q=multihead_vjp(*x).dW.W_Q.swapaxes(1, 2))), "dW.W_Q"),
    "dW_K from the queries' tokens": (of_weights(as_if(Z=lambda x: x["X"]), "W_K"), "dW.W_K"),
    "dW_K without b_Q": (of_weights(without_b_Q, "W_K"), "dW.W_K"),
    "weights averaged over the batch": (batch_mean, "dW.W_Q dW.W_K dW.W_V dW.W_O dW.b_Q dW.b_V dW.b_O"),
    "db_V of one entry of the batch": (of_weights(lambda dY, X, Z, W, B: multihead_vjp(dY[0], X[0], Z[0], W, B),
                                                  "b_V"), "dW.b_V"),
    "dZ misses the keys": (as_if(W=lambda x: x["W"]._replace(W_K=0 * x["W"].W_K)), "dZ"),
    "dZ misses the values": (as_if(W=lambda x: x["W"]._replace(W_V=0 * x["W"].W_V)), "dZ"),
    "D is missing": (without_D, "dX dZ dW.W_Q dW.W_K dW.b_Q dW.b_K dB dgamma"),
}


def refused(vjp):
    """The names of all gradients that differ from PyTorch's."""
    want, sizes = reference(dY, X, Z, W, B)[1], magnitudes(dY, X, Z, W, B)
    pairs = zip(NAMES, flat(vjp(dY, X, Z, W, B)), want, sizes)
    return " ".join(name for name, *pair in pairs if excess(*([x] for x in pair)) > ALLOWED)


def test_what_is_right_is_accepted():
    assert refused(multihead_vjp) == "" == refused(as_if())
    check_vjp(multihead_vjp, multihead, X, Z, W, B)
    check_vjp(as_if(), multihead, X, Z, W, B)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_by_name(mistake):
    wrong, names = MISTAKES[mistake]
    assert refused(wrong) == names
    with pytest.raises(AssertionError, match=f"^{names.split()[0]}: the largest error is"):
        check_vjp(wrong, multihead, X, Z, W, B)


@pytest.mark.parametrize("missing", ["queries", "keys", "values"])
def test_a_path_that_dX_misses_is_refused(missing):
    zero = dict(queries="W_Q", keys="W_K", values="W_V")[missing]

    def wrong(dY, X, W):
        right = self_attention_vjp(dY, X, W)
        cut = W._replace(**{zero: 0 * getattr(W, zero)})
        return right._replace(dX=self_attention_vjp(dY, X, cut, given=multihead_map(X, X, W)).dX)

    check_vjp(self_attention_vjp, self_attention, X, W)
    with pytest.raises(AssertionError, match="^dX: the largest error is"):
        check_vjp(wrong, self_attention, X, W)


CONSISTENT = {
    "heads side by side alternately": lambda X, Z, W: dict(W=interleaved(W)),
    "gamma of the model's size": lambda X, Z, W: dict(gamma=(H * d) ** -0.5),
}


@pytest.mark.parametrize("mistake", CONSISTENT)
def test_a_mistake_in_both_directions_is_refused_by_the_value(mistake):
    """No check of a gradient sees it: the gradient is right, of another function."""
    def wrong(X, Z, W):
        return multihead(**dict(X=X, Z=Z, W=W) | CONSISTENT[mistake](X, Z, W))

    Y = reference(dY, X, Z, W)[0]
    assert abs(multihead(X, Z, W) - Y).max() < 1e-14 * abs(Y).max()
    assert abs(wrong(X, Z, W) - Y).max() > 0.01 * abs(Y).max()

    def wrong_vjp(dY, X, Z, W):
        found = multihead_vjp(dY, **dict(X=X, Z=Z, W=W) | CONSISTENT[mistake](X, Z, W))
        W_O = found.dW.W_O.swapaxes(0, 1).reshape(H, d, d) if "side" in mistake else found.dW.W_O
        return found.dX, found.dZ, found.dW._replace(W_O=W_O)

    check_vjp(wrong_vjp, wrong, X, Z, W)
