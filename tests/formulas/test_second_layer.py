"""The second order of a layer: PyTorch differentiated twice, the complex step, exact proofs, mistakes."""

import gc
import tracemalloc

import numpy as np
import pytest
import torch

from attnmath import (
    Weights,
    attention_hvp,
    attention_vjp,
    check_jvp,
    multihead,
    multihead_hvp,
    multihead_jvp,
    multihead_map,
    multihead_vjp,
)
from exact_cases import layers, multihead_vjp_jvp
from torch_layer import each, flat, output, tensor, weights

torch.set_num_threads(1)
b, H, G, n, m, d, d_z, d_k, d_v = 2, 6, 3, 4, 5, 8, 7, 9, 10


def problem(seed=0, biases=(True,) * 4):
    """dY, X, Z, W, B, gamma with a masked score and an empty row, and R."""
    rng = np.random.default_rng(seed)
    W = weights(rng, H, G, d, d_z, d_k, d_v, biases)
    dY, X = rng.normal(size=(2, b, n, d))
    Z, B = rng.normal(size=(b, m, d_z)), rng.normal(size=(b, 1, n, m))
    B[0, 0, 1, 2] = B[1, 0, 3] = -np.inf
    return (dY, X, Z, W, B, rng.normal(size=H)), (rng.random((H, n, m)) < 0.7) / 0.7


def tangents(x, seed=1):
    """Random numbers in the shapes of x, field by field."""
    rng = np.random.default_rng(seed)
    return each(lambda a: rng.normal(size=a.shape), list(x))


def by_autograd(x, dots, R):
    """The tangents of all gradients, by autograd alone: <v, gradients> is differentiated, then that by v."""
    (dY, *rest), dots = [tensor(a) for a in x], [torch.as_tensor(a) for a in flat(dots) if a is not None]
    moving = [dY, *(a for a in flat(rest) if a is not None)]
    Y = output(*rest, R=None if R is None else torch.as_tensor(R))
    gradients = torch.autograd.grad(Y, moving[1:], dY, create_graph=True)
    v = [torch.zeros_like(a, requires_grad=True) for a in gradients]
    back = torch.autograd.grad(gradients, moving, v, create_graph=True, materialize_grads=True)
    pairs = [(a, dot) for a, dot in zip(back, dots) if a.requires_grad]  # no gradient knows b_O
    found = iter(torch.autograd.grad([a for a, _ in pairs], v, [dot for _, dot in pairs]))
    return [None if a is None else next(found).numpy() for a in flat(rest)]


def close(got, want, rounds=2e-14):
    """The same numbers in the same shapes, up to roundings of the largest; None in the same places."""
    pairs = list(zip(flat(got), want, strict=True))
    size = max(1, *(np.abs(w).max() for w in want if w is not None))
    assert all((g is None) == (w is None) for g, w in pairs)
    pairs = [(np.asarray(g), np.asarray(w)) for g, w in pairs if w is not None]
    return all(g.shape == w.shape and np.abs(g - w).max() <= rounds * size for g, w in pairs)


@pytest.mark.parametrize("biases", [(True,) * 4, (False,) * 4, (True, False, True, False)])
@pytest.mark.parametrize("dropped", [False, True])
def test_multihead_hvp(biases, dropped):
    x, R = problem(biases=biases)
    R, dots = R if dropped else None, tangents(x)
    want = by_autograd(x, dots, R)
    for array in (np.asarray, torch.as_tensor):
        (dY_dot, *given), options = each(array, [*dots, *x]), {} if R is None else dict(R=array(R))
        found = multihead_hvp(*given, dY_dot=dY_dot, **options)
        assert found._fields == ("dX_dot", "dZ_dot", "dW_dot", "dB_dot", "dgamma_dot")
        assert close(found, want)
    still = by_autograd(x, [0 * dots[0], *dots[1:]], R)
    assert close(multihead_hvp(*dots[1:], *x, R=R), still) and not close(found, still)


CASES = layers()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_shared_batches_heads_biases_and_what_is_left_out(case, exact):
    x, constants = CASES[case]
    constants = {k: value for k, value in constants.items() if k == "R"}
    dY = np.random.default_rng(0).normal(size=multihead(*x, **constants).shape)
    check_jvp(multihead_vjp_jvp, multihead_vjp, dY, *x, exact=exact, **constants)


@pytest.mark.parametrize("scores", [2**20, 0])
def test_entries_of_a_batch_in_turns_give_the_same(scores, monkeypatch):
    x, R = problem()
    dots, R = tangents(x), np.stack([R, R[::-1]])
    want = by_autograd(x, dots, R)
    monkeypatch.setattr("attnmath._words.layers.LARGE", scores)
    found = multihead_hvp(*dots[1:], *x, dY_dot=dots[0], R=R)
    assert close(found, want)


def test_a_head_with_identities_for_weights_is_attention():
    rng = np.random.default_rng(3)
    Q, K, dO = rng.normal(size=(3, 5, 3))
    one = np.eye(3)[None]
    W, still = Weights(one, one, one, one), Weights(*[None] * 8)
    B, gamma = rng.normal(size=(5, 5)), 0.6
    dots = tangents([Q, K, B])
    found = multihead_hvp(dots[0], dots[1], still, dots[2], 0.4, dO, Q, K, W, B, gamma)
    alone = attention_hvp(dots[0], dots[1], dots[1], dots[2], 0.4, dO, Q, K, K, B, gamma)
    want = [alone.dQ_dot, alone.dK_dot + alone.dV_dot, alone.dB_dot, alone.dgamma_dot]
    assert close([*found[:2], *found[3:]], want)


def pairing(x, y):
    return sum(np.sum(a * c) for a, c in zip(flat(x), flat(y)) if a is not None)


def size(x):
    return sum(np.abs(a).sum() for a in flat(x) if a is not None)


def test_the_hessian_is_symmetric():
    (dY, *x), R = problem()
    u, w = tangents(x, 1), tangents(x, 2)
    Hu, Hw = (multihead_hvp(*v, dY, *x, R=R) for v in (u, w))
    assert abs(pairing(w, Hu) - pairing(u, Hw)) <= 1e-15 * (size(Hu) + size(Hw))
    assert abs(pairing(w, Hu)) > 1e-4 * size(Hu)


def test_the_gradient_of_the_pairing_with_all_gradients_is_the_tangent_of_the_output():
    (dY, *x), R = problem()
    dots = tangents(x)
    dX = multihead_vjp(dY, *x, R=R)
    assert abs(pairing(dots, dX) - np.sum(dY * multihead_jvp(*dots, *x, R=R))) <= 1e-15 * size(dX)
    along_dY = multihead_hvp(*[None] * 5, dY, *x, dY_dot=3 * dY, R=R)
    assert close(along_dY, [3 * a for a in flat(dX)])


def test_gauge_identities_differentiated():
    """W_Q^T dW_Q = (W_K^T dW_K)^T and W_V^T dW_V = dW_O W_O^T without biases, summed over the heads of a group."""
    (dY, X, Z, W, B, gamma), R = problem(biases=(False,) * 4)
    dots = tangents([X, Z, W, B, gamma])
    dW, dW_dot = multihead_vjp(dY, X, Z, W, B, gamma, R=R).dW, multihead_hvp(*dots, dY, X, Z, W, B, gamma, R=R).dW_dot
    W_dot, T = dots[2], np.matrix_transpose
    queries = T(W_dot.W_Q) @ dW.W_Q + T(W.W_Q) @ dW_dot.W_Q
    keys = T(W_dot.W_K) @ dW.W_K + T(W.W_K) @ dW_dot.W_K
    outputs = dW_dot.W_O @ T(W.W_O) + dW.W_O @ T(W_dot.W_O)
    values = T(W_dot.W_V) @ dW.W_V + T(W.W_V) @ dW_dot.W_V
    for heads, groups in ((queries, T(keys)), (outputs, values)):
        assert close([heads.reshape(G, -1, *heads.shape[1:]).sum(1)], [groups], 1e-13)


def test_a_tangent_of_none_is_zero():
    (dY, *x), R = problem(biases=(True, False, True, False))
    dots = tangents(x)
    for k in range(5):
        given, zeros = list(dots), list(dots)
        given[k], zeros[k] = None, each(lambda a: 0 * a, [dots[k]])[0]
        assert close(multihead_hvp(*given, dY, *x, R=R), flat(multihead_hvp(*zeros, dY, *x, R=R)))
    for field in ("W_Q", "W_O", "b_V"):
        given, zeros = (dots[2]._replace(**{field: a}) for a in (None, 0 * getattr(dots[2], field)))
        found = [multihead_hvp(*dots[:2], W_dot, *dots[3:], dY, *x) for W_dot in (given, zeros)]
        assert close(found[0], flat(found[1]))
    found = multihead_hvp(*dots[:3], None, None, dY, *x[:3])
    assert found.dB_dot is None and found.dgamma_dot.shape == () and found.dW_dot.b_K is None


def test_one_head_at_a_time():
    """What is as large as all scores of one head is there a few times, but not for each of eight heads."""
    rng, n = np.random.default_rng(0), 300
    W, X = weights(rng, 8, 8, 4, 4, 2, 2), rng.normal(size=(n, 4))
    gc.collect()
    tracemalloc.start()
    multihead_hvp(X, X, W, None, None, X, X, X, W, dY_dot=X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak / (8 * n * n) < 12


# ---- mistakes ------------------------------------------------------------------------------------


def heads(dY, X, Z, W, B, gamma, R):
    """dQ, dK, dV of every head, as a layer with a head for each head of values has them."""
    Q, K, V, P, O, Y = multihead_map(X, Z, W, B, gamma, R=R)
    dO = dY[..., None, :, :] @ np.swapaxes(W.W_O, 1, 2)
    found = attention_vjp(dO, Q, K, V, B, gamma[:, None, None])
    return found[:3], O


def each_head_over_tokens(X, dQ):
    return np.swapaxes(X, -1, -2) @ dQ


def back(dQ, W):
    return sum(dQ[h] @ W[h].T for h in range(len(W)))


def terms(dots, x):
    """What a product rule has that moves only one factor: the field of it, by name."""
    dY_dot, X_dot, Z_dot, W_dot, B_dot, gamma_dot = dots
    (dQ, dK, dV), O = heads(*x, None)
    return {
        "W_Q moves": ("dX_dot", back(dQ, W_dot.W_Q)), "W_K moves": ("dZ_dot", back(dK, W_dot.W_K)),
        "W_V moves": ("dZ_dot", back(dV, W_dot.W_V)),
        "X moves": ("W_Q", each_head_over_tokens(X_dot, dQ)), "Z moves": ("W_K", each_head_over_tokens(Z_dot, dK)),
        "Z moves, values": ("W_V", each_head_over_tokens(Z_dot, dV)),
        "O stands still, dY moves": ("W_O", np.swapaxes(O, -1, -2) @ dY_dot), "dY moves": ("b_O", dY_dot.sum(0)),
        "b_Q does not know X": ("b_Q", -dQ.sum(1)),
    }


def without(mistake):
    """multihead_hvp without one of its terms."""
    def wrong(*given):
        dots, x = given[:6], given[6:]
        found = multihead_vjp_jvp(*given)
        field, term = terms(dots, x)[mistake]
        if field.endswith("_dot"):
            return found._replace(**{field: getattr(found, field) - term})
        return found._replace(dW_dot=found.dW_dot._replace(**{field: getattr(found.dW_dot, field) - term}))
    return wrong


def still(mistake):
    """multihead_hvp that forgets one of the tangents."""
    def wrong(dY_dot, X_dot, Z_dot, W_dot, B_dot, gamma_dot, *x):
        dots = dict(dY_dot=dY_dot, X_dot=X_dot, Z_dot=Z_dot, B_dot=B_dot, gamma_dot=gamma_dot)
        if mistake in dots:
            dots[mistake] = None
        else:
            W_dot = W_dot._replace(**{mistake: None})
        return multihead_vjp_jvp(**dots, W_dot=W_dot, **dict(zip(["dY", "X", "Z", "W", "B", "gamma"], x)))
    return wrong


def shared_scale(dY_dot, X_dot, Z_dot, W_dot, B_dot, gamma_dot, *x):
    """The scale of the first head moves that of all."""
    return multihead_vjp_jvp(dY_dot, X_dot, Z_dot, W_dot, B_dot, gamma_dot[:1] + 0 * gamma_dot, *x)


LEFT_OUT = ["W_Q moves", "W_K moves", "W_V moves", "X moves", "Z moves", "Z moves, values",
            "O stands still, dY moves", "dY moves", "b_Q does not know X"]
STILL = ["dY_dot", "X_dot", "Z_dot", "B_dot", "gamma_dot", "W_Q", "W_K", "W_V", "W_O", "b_Q", "b_V"]
MISTAKES = {**{x: without(x) for x in LEFT_OUT}, **{f"{x} stands still": still(x) for x in STILL},
            "one scale for all heads": shared_scale}


def small():
    rng = np.random.default_rng(5)
    W = weights(rng, 2, 2, 3, 2, 1, 1)
    B = np.where([[0, 1, 0], [0, 0, 0]], -np.inf, rng.normal(size=(2, 3)))
    return rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), rng.normal(size=(3, 2)), W, B, rng.normal(size=2)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused(mistake, exact):
    said = "^refuted: " if exact else r"_dot along \S+: the largest error is \d"
    with pytest.raises(AssertionError, match=said):
        check_jvp(MISTAKES[mistake], multihead_vjp, *small(), exact=exact)


@pytest.mark.parametrize(("dots", "sentence"), [
    (dict(X_dot=np.ones((2, 2))), "multihead_hvp: X_dot has shape (2, 2); it needs (2, 3), the shape of X"),
    (dict(dY_dot=np.ones((3, 2))), "multihead_hvp: dY_dot has shape (3, 2); it needs (2, 3), the shape of dY"),
    (dict(B_dot=np.ones(3)), "multihead_hvp: B_dot has shape (3,); it needs (2, 3), the shape of B"),
    (dict(W_dot=Weights(*[None] * 4, b_O=np.ones(2))), "multihead_hvp: W_dot.b_O has shape (2,); it needs (3,),"
                                                       " the shape of W.b_O"),
])
def test_bad_input_gets_one_clear_sentence(dots, sentence):
    given = dict(X_dot=None, Z_dot=None, W_dot=None, B_dot=None, gamma_dot=None) | dots
    with pytest.raises(ValueError) as told:
        multihead_hvp(**given, **dict(zip(["dY", "X", "Z", "W", "B", "gamma"], small())))
    assert str(told.value) == sentence
