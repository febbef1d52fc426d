"""Weights out of PyTorch's layer and back: the same function, the same numbers."""

import numpy as np
import pytest
import torch

from attnmath import Weights, multihead
from attnmath.torch import load_weights, weights_from

KINDS = {
    "fused": dict(embed_dim=6, num_heads=3, bias=False),
    "fused, biases": dict(embed_dim=6, num_heads=3),
    "separate": dict(embed_dim=6, num_heads=2, kdim=5, vdim=5, bias=False),
    "separate, biases": dict(embed_dim=6, num_heads=3, kdim=5, vdim=5),
    "batch second": dict(embed_dim=6, num_heads=3, batch_first=False),
    "one head": dict(embed_dim=6, num_heads=1),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def layer(kind, seed=0):
    torch.manual_seed(seed)
    module = torch.nn.MultiheadAttention(dtype=torch.float64, **{"batch_first": True} | KINDS[kind])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def tokens(module):
    return torch.randn(4, 7, 6).double(), torch.randn(4, 8, module.kdim).double()


def output(module, X, Z):
    if module.batch_first:
        return module(X, Z, Z)[0]
    X, Z = X.transpose(0, 1), Z.transpose(0, 1)
    return module(X, Z, Z)[0].transpose(0, 1)


def near(a, b):
    return a.shape == b.shape and abs(a - b).max() <= 1e-13 * abs(b).max()


@kinds
def test_weights_from(kind):
    module = layer(kind)
    X, Z = tokens(module)
    W = weights_from(module)
    assert near(multihead(X, Z, W), output(module, X, Z))
    assert not any(w.requires_grad for w in W if w is not None)
    assert [w is None for w in W[4:]] == [module.in_proj_bias is None] * 4


@kinds
def test_load_weights(kind):
    module, other = layer(kind), layer(kind, seed=1)
    X, Z = tokens(module)
    W, state = weights_from(other), other.state_dict()
    assert load_weights(module, W) is None
    assert near(output(module, X, Z), multihead(X, Z, W))
    assert all(torch.equal(x, state[name]) for name, x in module.state_dict().items())
    assert all(w is v is None or torch.equal(w, v) for w, v in zip(weights_from(module), W))
    assert all(parameter.requires_grad for parameter in module.parameters())


@kinds
def test_the_numbers_are_copied(kind):
    module = layer(kind)
    W = weights_from(module)
    before = [None if w is None else w.clone() for w in W]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert all(w is b is None or torch.equal(w, b) for w, b in zip(W, before))
    load_weights(module, W)
    with torch.no_grad():
        for w in W[:4]:
            w.zero_()
    assert all(parameter.any() for parameter in module.parameters())


def test_heads_that_share_get_a_copy_each():
    module = torch.nn.MultiheadAttention(12, 6, kdim=5, vdim=5, batch_first=True, dtype=torch.float64)
    r = np.random.default_rng(0).normal
    W = Weights(r(size=(6, 12, 2)), r(size=(3, 5, 2)), r(size=(2, 5, 2)), r(size=(6, 2, 12)), b_K=r(size=(3, 2)))
    load_weights(module, W)
    got = weights_from(module)
    assert all(torch.equal(got.W_K[h], torch.tensor(W.W_K[h // 2])) for h in range(6))
    assert all(torch.equal(got.W_V[h], torch.tensor(W.W_V[h // 3])) for h in range(6))
    assert all(torch.equal(got.b_K[h], torch.tensor(W.b_K[h // 2])) for h in range(6))
    assert not got.b_Q.any() and not got.b_V.any() and not got.b_O.any()


def test_weights_of_numpy_in_any_order_and_read_only():
    W, module = weights_from(layer("fused, biases", seed=1)), layer("fused, biases")
    views = [w.flip(0).numpy()[::-1] for w in W]
    for view in views:
        view.flags.writeable = False
    load_weights(module, W._make(views))
    assert all(torch.equal(a, b) for a, b in zip(weights_from(module), W))


def test_numbers_take_the_modules_dtype():
    module = torch.nn.MultiheadAttention(6, 3)
    load_weights(module, weights_from(layer("fused, biases")))
    assert {w.dtype for w in weights_from(module)} == {torch.float32}


MHA = torch.nn.MultiheadAttention
UNFIT = [
    (TypeError, "module is a Linear; it needs to be a torch.nn.MultiheadAttention", lambda: torch.nn.Linear(2, 3)),
    (ValueError, "module has kdim 5 and vdim 6; they need to be equal, since keys and values come from the same Z",
     lambda: MHA(6, 3, kdim=5)),
    (ValueError, "module has add_bias_kv; it needs to be without, since multihead has no token of its own among"
     " the keys", lambda: MHA(6, 3, add_bias_kv=True)),
    (ValueError, "module has add_zero_attn; it needs to be without, since multihead has no token of its own among"
     " the keys", lambda: MHA(6, 3, add_zero_attn=True)),
]


@pytest.mark.parametrize("error, sentence, module", UNFIT)
def test_modules_that_compute_something_else_are_refused(error, sentence, module):
    for name, function in (("weights_from", weights_from), ("load_weights", lambda x: load_weights(x, None))):
        with pytest.raises(error) as caught:
            function(module())
        assert str(caught.value) == f"{name}: {sentence}"


@pytest.mark.parametrize("error, change, sentence", [
    (ValueError, lambda W: W._replace(W_O=W.W_O[:, :1]), "W.W_O has shape (3, 1, 6); it needs (3, 2, 6), to match the module"),
    (ValueError, lambda W: W._replace(W_K=W.W_K[:2]), "W.W_K has shape (2, 6, 2); it needs (3, 6, 2), to match the module"),
    (ValueError, lambda W: W._replace(W_Q=W.W_Q[:1]), "W.W_Q has shape (1, 6, 2); it needs (3, 6, 2), to match the module"),
    (ValueError, lambda W: W._replace(W_V=W.W_V[:0]), "W.W_V has shape (0, 6, 2); it needs (3, 6, 2), to match the module"),
    (ValueError, lambda W: W._replace(b_O=W.b_O[0]), "W.b_O has shape (); it needs (6,), to match the module"),
    (ValueError, lambda W: W._replace(W_K=None), "W.W_K is None; it needs the shape (3, 6, 2)"),
    (TypeError, lambda W: W._replace(b_Q=[1.0]), "W.b_Q is a list; it needs to be an array of real floating-point numbers"),
    (TypeError, lambda W: W._replace(W_V=1j * W.W_V), "W.W_V has dtype complex128; it needs to be an array of real"
     " floating-point numbers"),
    (TypeError, lambda W: W._replace(b_O=W.b_O.int()), "W.b_O has dtype int32; it needs to be an array of real"
     " floating-point numbers"),
    (TypeError, type, "W is a type; it needs to be Weights, a named tuple of W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O"),
    (TypeError, tuple, "W is a tuple; it needs to be Weights, a named tuple of W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O"),
])
def test_weights_that_do_not_fit_leave_the_module_alone(error, change, sentence):
    module = layer("fused, biases")
    before = {name: x.clone() for name, x in module.state_dict().items()}
    with pytest.raises(error) as caught:
        load_weights(module, change(weights_from(layer("fused, biases", seed=1))))
    assert str(caught.value) == f"load_weights: {sentence}"
    assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())


def test_a_bias_needs_a_place():
    with pytest.raises(ValueError) as caught:
        load_weights(layer("fused"), weights_from(layer("fused, biases")))
    assert str(caught.value) == "load_weights: W.b_Q has shape (3, 2); it needs to be None, since the module has no biases"
