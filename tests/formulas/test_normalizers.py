"""Sinks, the one that is added to the sum, and sigmoids, against PyTorch and two oracles."""

import array_api_strict
import numpy as np
import pytest
import torch

from attnmath import (
    attention,
    attention_map,
    attention_vjp,
    causal_mask,
    check_jvp,
    check_vjp,
    logsumexp,
    sigmoid_attention,
    sigmoid_attention_jvp,
    sigmoid_attention_vjp,
    sink_attention,
    sink_attention_jvp,
    sink_attention_vjp,
    sink_softmax,
    sink_softmax_jvp,
    sink_softmax_vjp,
    softmax,
)
from libraries import assert_number_type_kept, assert_same_in_every_library, near

INF = np.inf
LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor, "strict": array_api_strict.asarray}
libraries = pytest.mark.parametrize("array", LIBRARIES.values(), ids=LIBRARIES)

rng = np.random.default_rng(35)
Q, K, V = rng.normal(size=(2, 3, 4, 6)), rng.normal(size=(2, 3, 5, 6)), rng.normal(size=(2, 3, 5, 7))
dO = rng.normal(size=(2, 3, 4, 7))
B = np.where(causal_mask(4, 5), rng.normal(size=(3, 4, 5)), -INF)
B[1, 2] = -INF  # an empty row
gamma = np.array([0.5, 1.0, 3.0])[:, None, None]
A = 2 * rng.normal(size=(2, 3, 4, 5)) + B
A_dot, dP = rng.normal(size=(2, 2, 3, 4, 5))
R = (rng.random((4, 5)) < 0.7) / 0.7
SINKS = {"one": 0.7, "an array": np.array(-0.4), "one a head": rng.normal(size=3), "two a head": rng.normal(size=(3, 2))}
sinks = pytest.mark.parametrize("sigma", SINKS.values(), ids=SINKS)
sigma = SINKS["two a head"]
SUNK, SIGMOID = (Q, K, V, sigma, B, gamma), (Q, K, V, B, gamma)


def autograd(f, dY, *x):
    """The gradients of <dY, f(x)>, by PyTorch."""
    x = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in x]
    found = torch.autograd.grad(f(*x), x, torch.as_tensor(dY))
    return [np.nan_to_num(g.numpy(), nan=0.0) for g in found]  # where B is -inf nothing moves


def their_weights(A, sigma):
    """As in gpt-oss: the sinks are put beside the scores, and cut off behind the softmax."""
    sigma = sigma.reshape(3, 1, -1) if sigma.ndim else sigma.reshape(1, 1, 1)
    rows = sigma.expand(*A.shape[:-1], sigma.shape[-1])
    return torch.softmax(torch.cat([A, rows], -1), -1)[..., :A.shape[-1]]


def their_sunk(Q, K, V, sigma, B, gamma):
    return their_weights(gamma * Q @ K.mT + B, sigma) @ V


def their_sigmoid(Q, K, V, B, gamma):
    return torch.sigmoid(gamma * Q @ K.mT + B) @ V


# ---- values ------------------------------------------------------------------------------------


@libraries
@sinks
def test_sink_softmax(sigma, array):
    got = sink_softmax(array(A), sigma if isinstance(sigma, float) else array(sigma))
    assert near(got, their_weights(torch.as_tensor(A), torch.as_tensor(sigma, dtype=torch.float64)))


def test_sink_softmax_by_hand():
    scores = np.log([[1.0, 2.0, 3.0]])
    assert near(sink_softmax(scores, np.log(2.0)), [[1 / 8, 2 / 8, 3 / 8]])
    assert near(sink_softmax(scores, 0.0), [[1 / 7, 2 / 7, 3 / 7]])
    assert near(sink_softmax(scores, np.log([1.0, 3.0])), [[1 / 10, 2 / 10, 3 / 10]])


def test_sinks_that_are_none_are_none():
    for sigma in (np.array(-INF), np.full(3, -INF), np.zeros((3, 0))):
        assert near(sink_softmax(A, sigma), softmax(A))
    assert near(sink_softmax(A, np.array([[-INF, 1.0]] * 3)), sink_softmax(A, 1.0))


@pytest.mark.parametrize(("shift", "sink"), [(1e3, 0.0), (-1e3, 0.0), (0.0, 1e3), (0.0, -1e3)])
def test_large_scores_and_sinks_do_not_overflow(shift, sink):
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        got = sink_softmax(A + shift, sink)
    want = their_weights(torch.as_tensor(A + shift), torch.tensor(sink, dtype=torch.float64))
    assert near(got, want)


@libraries
@sinks
@pytest.mark.parametrize("R", [None, R])
def test_sink_attention(R, sigma, array):
    s, r = (x if x is None or isinstance(x, float) else array(x) for x in (sigma, R))
    got = sink_attention(array(Q), array(K), array(V), s, array(B), array(gamma), R=r)
    q, k, v, s, b, g = (torch.as_tensor(x, dtype=torch.float64) for x in (Q, K, V, sigma, B, gamma))
    P = their_weights(g * q @ k.mT + b, s)
    assert near(got, (P if R is None else P * torch.as_tensor(R)) @ v, 10)


def test_without_heads_an_axis_of_sinks_is_one():
    row = np.array([0.3, -1.0])
    assert near(sink_attention(Q[0, 0], K[0, 0], V[0, 0], row),
                sink_attention(Q[0, :1], K[0, :1], V[0, :1], row[None])[0])


def test_values_that_alone_have_heads():
    each = np.stack([sink_attention(Q[0, 0], K[0, 0], V[0, h], SINKS["one a head"][h]) for h in range(3)])
    assert near(sink_attention(Q[0, 0], K[0, 0], V[0], SINKS["one a head"]), each, 10)
    check_vjp(sink_attention_vjp, sink_attention, Q[0, 0], K[0, 0], V[0], SINKS["one a head"])
    check_jvp(sink_attention_jvp, sink_attention, Q[0, 0], K[0, 0], V[0], SINKS["one a head"])


@libraries
@pytest.mark.parametrize("R", [None, R])
def test_sigmoid_attention(R, array):
    got = sigmoid_attention(*map(array, SIGMOID), R=None if R is None else array(R))
    q, k, v, b, g = map(torch.as_tensor, SIGMOID)
    P = torch.sigmoid(g * q @ k.mT + b)
    assert near(got, (P if R is None else P * torch.as_tensor(R)) @ v, 10)


# ---- gradients and tangents --------------------------------------------------------------------


@sinks
def test_sink_softmax_vjp(sigma):
    check_vjp(sink_softmax_vjp, sink_softmax, A, sigma)
    want = autograd(their_weights, dP, A, sigma)
    assert all(near(*pair, 10) for pair in zip(sink_softmax_vjp(dP, A, sigma), want, strict=True))


@sinks
def test_sink_softmax_jvp(sigma):
    check_jvp(sink_softmax_jvp, sink_softmax, A, sigma)
    assert (sink_softmax_jvp(None, None, A, sigma) == 0).all()


@sinks
def test_sink_attention_vjp(sigma):
    x = Q, K, V, sigma, B, gamma
    check_vjp(sink_attention_vjp, sink_attention, *x)
    check_vjp(sink_attention_vjp, sink_attention, *x, R=R)
    want = autograd(their_sunk, dO, *x)
    assert all(near(*pair, 100) for pair in zip(sink_attention_vjp(dO, *x), want, strict=True))
    assert sink_attention_vjp(dO, Q, K, V, sigma).dB is None


@sinks
def test_sink_attention_jvp(sigma):
    check_jvp(sink_attention_jvp, sink_attention, Q, K, V, sigma, B, gamma)
    check_jvp(sink_attention_jvp, sink_attention, Q, K, V, sigma, R=R)
    assert (sink_attention_jvp(*[None] * 6, Q, K, V, sigma, B, gamma) == 0).all()


def test_scores_of_zero_have_half_a_weight():
    Q, K, V, dO = np.zeros((2, 3)), np.ones((4, 3)), np.arange(8.0).reshape(4, 2), np.array([[1.0, 2], [3, 4]])
    half = np.tile(V.sum(0) / 2, (2, 1))
    assert np.allclose(sigmoid_attention(Q, K, V), half)
    assert np.allclose(sigmoid_attention_vjp(dO, Q, K, V).dV, np.tile(dO.sum(0) / 2, (4, 1)))
    assert np.allclose(sigmoid_attention_jvp(None, None, V, None, None, Q, K, V), half)


def test_sigmoid_attention_vjp():
    check_vjp(sigmoid_attention_vjp, sigmoid_attention, *SIGMOID)
    check_vjp(sigmoid_attention_vjp, sigmoid_attention, Q, K, V, np.full((1, 1), -1.6), R=R)
    want = autograd(their_sigmoid, dO, *SIGMOID)
    assert all(near(*pair, 100) for pair in zip(sigmoid_attention_vjp(dO, *SIGMOID), want, strict=True))
    assert sigmoid_attention_vjp(dO, Q, K, V).dB is None


def test_sigmoid_attention_jvp():
    check_jvp(sigmoid_attention_jvp, sigmoid_attention, *SIGMOID)
    check_jvp(sigmoid_attention_jvp, sigmoid_attention, Q, K, V, R=R)
    assert (sigmoid_attention_jvp(*[None] * 5, *SIGMOID) == 0).all()


# ---- laws --------------------------------------------------------------------------------------


def test_a_sink_is_a_key_with_the_value_zero():
    one = np.zeros((2, 3, 4, 1))
    wide = [np.concatenate(pair, axis=-1) for pair in ((Q, one + 1), (K, np.zeros((2, 3, 5, 1))))]
    keys = np.concatenate([wide[1], np.broadcast_to(np.eye(7)[6], (2, 3, 1, 7)) * 0.9], axis=-2)
    values = np.concatenate([V, np.zeros((2, 3, 1, 7))], axis=-2)
    assert near(sink_attention(Q, K, V, 0.9, gamma=1.0), attention(wide[0], keys, values, gamma=1.0), 10)


def test_a_sink_turns_the_plain_output_down():
    L = attention_map(Q, K, V).L
    want = (1 / (1 + np.exp(0.7 - L)))[..., None] * attention(Q, K, V)
    assert near(sink_attention(Q, K, V, 0.7), want, 10)
    assert near(sink_attention(Q, K, V, np.array([[0.1, 0.4, -2.0]] * 3)),
                sink_attention(Q, K, V, float(logsumexp(np.array([0.1, 0.4, -2.0])))), 10)


def test_what_the_rows_sum_to():
    back = sink_softmax_vjp(dP, A, sigma)
    assert near(back.dA.sum() + back.dsigma.sum(), 0.0, 200)
    assert abs(back.dA.sum(-1)).max() > 0.01


# ---- mistakes that the checks refuse -----------------------------------------------------------


def changed(right, **parts):
    return lambda *x, **constants: right(*x, **constants)._replace(
        **{name: f(*x, **constants) for name, f in parts.items()})


def sink_times(factor):
    return changed(sink_attention_vjp, dsigma=lambda *x: factor * sink_attention_vjp(*x).dsigma)


def of_first_query(dO, Q, K, V, sigma, B, gamma):
    first = np.zeros_like(dO)
    first[..., 0, :] = dO[..., 0, :]
    return sink_attention_vjp(first, Q, K, V, sigma, B, gamma).dsigma


def weights_that_sum_to_one(dO, Q, K, V, sigma, B, gamma):
    return attention_vjp(dO, Q, K, V, B, gamma).dB


def with_row_sum(dO, Q, K, V, B, gamma):
    P = 1 / (1 + np.exp(-(gamma * Q @ K.mT + B)))
    G = dO @ V.mT
    return gamma * (P * (G - (P * G).sum(-1, keepdims=True))) @ K


MISTAKES = {
    "a wrong sign": ("dsigma", sink_attention, SUNK, sink_times(-1)),
    "the sink is forgotten": ("dsigma", sink_attention, SUNK, sink_times(0)),
    "the sink of one query": ("dsigma", sink_attention, SUNK, changed(sink_attention_vjp, dsigma=of_first_query)),
    "the sinks have the sum": ("dsigma", sink_attention, SUNK, changed(
        sink_attention_vjp, dsigma=lambda *x: 0 * x[4] + sink_attention_vjp(*x).dsigma.sum(-1, keepdims=True))),
    "weights that sum to one": ("dB", sink_attention, SUNK, changed(sink_attention_vjp, dB=weights_that_sum_to_one)),
    "no row sum": ("dA", sink_softmax, (A, sigma), changed(
        sink_softmax_vjp, dA=lambda dP, A, sigma: sink_softmax(A, sigma) * dP)),
    "a row sum": ("dQ", sigmoid_attention, SIGMOID, changed(sigmoid_attention_vjp, dQ=with_row_sum)),
    "no slope": ("dB", sigmoid_attention, SIGMOID, changed(sigmoid_attention_vjp, dB=lambda dO, Q, K, V, B, gamma: (
        dO @ V.mT / (1 + np.exp(-(gamma * Q @ K.mT + B)))).sum(0))),
    "a slope of the wrong sign": ("dK", sigmoid_attention, SIGMOID, changed(
        sigmoid_attention_vjp, dK=lambda *x: -sigmoid_attention_vjp(*x).dK)),
}


@pytest.mark.parametrize(("name", "f", "x", "wrong"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named(name, f, x, wrong):
    with pytest.raises(AssertionError, match=f"^{name}: "):
        check_vjp(wrong, f, *x)


TANGENTS = {
    "the sinks do not move": ("Y_dot along sigma_dot", sink_attention, SUNK, lambda *x: sink_attention_jvp(
        *x[:3], None, *x[4:])),
    "the sinks pull the wrong way": ("Y_dot along sigma_dot", sink_softmax, (A, sigma), lambda A_dot, s_dot, A, s:
        sink_softmax_jvp(A_dot, None, A, s) - sink_softmax_jvp(None, s_dot, A, s)),
    "the scale does not move": ("Y_dot along gamma_dot", sigmoid_attention, SIGMOID, lambda *x: sigmoid_attention_jvp(
        *x[:4], None, *x[5:])),
}


@pytest.mark.parametrize(("name", "f", "x", "wrong"), TANGENTS.values(), ids=TANGENTS)
def test_a_mistake_in_a_tangent_is_named(name, f, x, wrong):
    with pytest.raises(AssertionError, match=f"^{name}"):
        check_jvp(wrong, f, *x)


# ---- kinds of numbers --------------------------------------------------------------------------

CALLS = {
    "sink_softmax": lambda a: sink_softmax(a(A), a(sigma)),
    "sink_softmax_number": lambda a: sink_softmax(a(A), 0.5),
    "sink_softmax_vjp": lambda a: sink_softmax_vjp(a(dP), a(A), a(sigma)),
    "sink_softmax_vjp_number": lambda a: sink_softmax_vjp(a(dP), a(A), 0.5),
    "sink_softmax_jvp": lambda a: sink_softmax_jvp(a(A_dot), None, a(A), a(sigma)),
    "sink_attention": lambda a: sink_attention(*map(a, SUNK)),
    "sink_attention_vjp": lambda a: sink_attention_vjp(a(dO), *map(a, SUNK)),
    "sink_attention_jvp": lambda a: sink_attention_jvp(a(Q), None, a(V), a(sigma), None, None, *map(a, SUNK)),
    "sigmoid_attention": lambda a: sigmoid_attention(*map(a, SIGMOID)),
    "sigmoid_attention_vjp": lambda a: sigmoid_attention_vjp(a(dO), *map(a, SIGMOID)),
    "sigmoid_attention_jvp": lambda a: sigmoid_attention_jvp(a(Q), *[None] * 4, *map(a, SIGMOID)),
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@calls
def test_every_library_gives_the_same(call):
    assert_same_in_every_library(call)


@calls
@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_results_keep_the_number_type(call, dtype):
    assert_number_type_kept(call, dtype)


# ---- what is refused ---------------------------------------------------------------------------

REFUSED = [
    (ValueError, "sink_softmax: sigma has shape (4,); it needs () or (3,) or (3, d_s)",
     lambda: sink_softmax(A, np.zeros(4))),
    (ValueError, "sink_softmax: sigma has shape (2, 3); it needs () or (3,) or (3, d_s)",
     lambda: sink_softmax(A, sigma.T)),
    (ValueError, "sink_softmax: sigma has shape (3, 1, 1); it needs () or (3,) or (3, d_s)",
     lambda: sink_softmax(A, np.zeros((3, 1, 1)))),
    (ValueError, "sink_softmax: sigma has shape (3, 2); it needs () or (d_s,)", lambda: sink_softmax(A[0, 0], sigma)),
    (ValueError, "sink_softmax: A has shape (5,); it needs (..., n, m)", lambda: sink_softmax(A[0, 0, 0], 0.0)),
    (ValueError, "sink_softmax: sigma of shape (3, 2) holds NaN or +inf; its entries need to be numbers or -inf",
     lambda: sink_softmax(A, sigma * np.nan)),
    (TypeError, "sink_softmax: sigma has dtype float32; it needs that of A, float64",
     lambda: sink_softmax(A, sigma.astype("f"))),
    (ValueError, "sink_softmax_vjp: dP has shape (3, 4, 5); it needs (2, 3, 4, 5), the shape of P",
     lambda: sink_softmax_vjp(dP[0], A, sigma)),
    (ValueError, "sink_softmax_jvp: sigma_dot has shape (3,); it needs (3, 2), the shape of sigma",
     lambda: sink_softmax_jvp(None, sigma[:, 0], A, sigma)),
    (ValueError, "sink_attention: sigma has shape (2,); it needs () or (3,) or (3, d_s)",
     lambda: sink_attention(Q, K, V, np.zeros(2))),
    (ValueError, "sink_attention_vjp: sigma has shape (5, 2); it needs () or (3,) or (3, d_s)",
     lambda: sink_attention_vjp(dO, Q, K, V, np.zeros((5, 2)))),
    (ValueError, "sigmoid_attention: K has shape (2, 3, 5, 7); it needs (..., m, 6) to match Q of shape (2, 3, 4, 6)",
     lambda: sigmoid_attention(Q, V, V)),
    (ValueError, "sigmoid_attention_vjp: dO has shape (3, 4, 7); it needs (2, 3, 4, 7), the shape of O",
     lambda: sigmoid_attention_vjp(dO[0], Q, K, V)),
]


@pytest.mark.parametrize(("error", "sentence", "call"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_bad_input_gets_one_clear_sentence(error, sentence, call):
    with pytest.raises(error) as told:
        call()
    assert str(told.value) == sentence
