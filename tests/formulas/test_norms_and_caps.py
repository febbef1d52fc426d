"""The norm without a mean, QK-norm, a learned temperature and caps, against PyTorch and two oracles."""

import array_api_strict
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnmath import (
    attention,
    attention_vjp,
    capped_attention,
    capped_attention_jvp,
    capped_attention_vjp,
    causal_mask,
    check_jvp,
    check_vjp,
    qk_norm_attention,
    qk_norm_attention_jvp,
    qk_norm_attention_vjp,
    rms_norm,
    rms_norm_jvp,
    rms_norm_vjp,
    softcap,
    softcap_jvp,
    softcap_vjp,
    softmax_vjp,
)
from libraries import assert_number_type_kept, assert_same_in_every_library, near

INF = np.inf
LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor, "strict": array_api_strict.asarray}
libraries = pytest.mark.parametrize("array", LIBRARIES.values(), ids=LIBRARIES)
epsilons = pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.3, 7.0])

rng = np.random.default_rng(33)
X, X_dot, dY = rng.normal(size=(3, 2, 4, 5))
alpha, alpha_dot = rng.normal(size=(2, 5))
Q, K, V = rng.normal(size=(2, 3, 4, 6)), rng.normal(size=(2, 3, 5, 6)), rng.normal(size=(2, 3, 5, 7))
dO = rng.normal(size=(2, 3, 4, 7))
alpha_Q, alpha_K = rng.normal(size=(2, 6)) + 1
B = np.where(causal_mask(4, 5), rng.normal(size=(3, 4, 5)), -INF)
B[1, 2] = -INF  # an empty row
gamma = np.array([0.5, 1.0, 3.0])[:, None, None]
c = np.array([0.7, 2.0, 5.0])[:, None, None]
S, S_dot, dA = 3 * rng.normal(size=(3, 2, 3, 4, 5))
R = (rng.random((4, 5)) < 0.7) / 0.7


def autograd(f, dY, *x):
    """f(*x) and the gradients of <dY, f(x)>, by PyTorch."""
    x = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in x]
    Y = f(*x)
    return Y.detach().numpy(), [g.numpy() for g in torch.autograd.grad(Y, x, torch.as_tensor(dY))]


def their_norm(epsilon):
    return lambda X, alpha: F.rms_norm(X, (X.shape[-1],), alpha, epsilon)


def their_softmax(A):
    empty = torch.isneginf(A).all(-1, keepdim=True)
    return torch.softmax(A.masked_fill(empty, 0), -1).masked_fill(empty, 0)


def their_capped(Q, K, V, c, B, gamma):
    return their_softmax(c * torch.tanh(gamma * Q @ K.mT / c) + B) @ V


def their_normed(epsilon):
    def head(Q, K, V, alpha_Q, alpha_K, B, gamma):
        Q, K = their_norm(epsilon)(Q, alpha_Q), their_norm(epsilon)(K, alpha_K)
        return their_softmax(gamma * Q @ K.mT + B) @ V
    return head


def hinders(x):
    """Autograd's NaN where B is -inf: nothing moves there."""
    return np.nan_to_num(x, nan=0.0)


CAPPED = Q, K, V, c, B, gamma
NORMED = Q, K, V, alpha_Q, alpha_K, B, gamma

# ---- values ------------------------------------------------------------------------------------


@libraries
@epsilons
def test_rms_norm(epsilon, array):
    got = rms_norm(array(X), array(alpha), epsilon=epsilon)
    assert near(got, their_norm(epsilon)(*map(torch.as_tensor, (X, alpha))))


def test_rms_norm_by_hand():
    row = np.array([3.0, 1, 5, 1])  # mean square 9
    assert near(rms_norm(row, np.array([3.0, 6, 3, 6]), epsilon=0), np.array([3.0, 2, 5, 2]))


def test_rms_norm_takes_the_epsilon_of_recent_models_unless_said():
    x = X * 1e-3
    assert near(rms_norm(x, alpha), their_norm(1e-6)(*map(torch.as_tensor, (x, alpha))))
    assert not near(rms_norm(x, alpha), rms_norm(x, alpha, epsilon=1e-5))


@libraries
def test_softcap(array):
    got = softcap(array(S), array(c))
    assert near(got, torch.as_tensor(c) * torch.tanh(torch.as_tensor(S / c)), 5)
    assert (np.abs(np.asarray(got)) < c).all()


def test_softcap_at_its_ends():
    with np.errstate(all="raise"):
        assert (softcap(np.array([0.0, 1e300, -1e300, 1e-300]), 50.0) == [0, 50, -50, 1e-300]).all()


@libraries
@pytest.mark.parametrize("R", [None, R])
def test_capped_attention(R, array):
    got = capped_attention(*map(array, CAPPED), R=None if R is None else array(R))
    Q, K, V, c, B, gamma = map(torch.as_tensor, CAPPED)
    P = their_softmax(c * torch.tanh(gamma * Q @ K.mT / c) + B)
    assert near(got, (P if R is None else P * torch.as_tensor(R)) @ V, 10)


@libraries
@pytest.mark.parametrize("R", [None, R])
def test_qk_norm_attention(R, array):
    got = qk_norm_attention(*map(array, NORMED), epsilon=0.1, R=None if R is None else array(R))
    Q, K, V, a, b, B, gamma = map(torch.as_tensor, NORMED)
    P = their_softmax(gamma * their_norm(0.1)(Q, a) @ their_norm(0.1)(K, b).mT + B)
    assert near(got, (P if R is None else P * torch.as_tensor(R)) @ V, 10)


def test_what_is_not_said():
    assert near(capped_attention(Q, K, V, 1e9), attention(Q, K, V))
    ours = qk_norm_attention(Q, K, V, np.ones(6), np.ones(6))
    assert near(ours, attention(*(F.rms_norm(torch.tensor(x), (6,), eps=1e-6).numpy() for x in (Q, K)), V))


# ---- gradients and tangents --------------------------------------------------------------------


@epsilons
def test_rms_norm_vjp(epsilon):
    check_vjp(rms_norm_vjp, rms_norm, X, alpha, epsilon=epsilon)
    _, want = autograd(their_norm(epsilon), dY, X, alpha)
    assert all(near(*pair, 10) for pair in zip(rms_norm_vjp(dY, X, alpha, epsilon=epsilon), want, strict=True))


@epsilons
def test_rms_norm_jvp(epsilon):
    check_jvp(rms_norm_jvp, rms_norm, X, alpha, epsilon=epsilon)
    assert (rms_norm_jvp(None, None, X, alpha, epsilon=epsilon) == 0).all()


@pytest.mark.parametrize("c", [c, np.array(0.8), 1 + 0.1 * rng.random(5), 2.0])
def test_softcap_vjp(c):
    check_vjp(softcap_vjp, softcap, S, c)
    _, want = autograd(lambda S, c: c * torch.tanh(S / c), dA, S, c)
    assert all(near(*pair, 200) for pair in zip(softcap_vjp(dA, S, c), want, strict=True))


def test_softcap_jvp():
    check_jvp(softcap_jvp, softcap, S, c)
    assert (softcap_jvp(None, None, S, c) == 0).all()
    assert (softcap_jvp(None, None, S, 2.0) == 0).all()


def test_capped_attention_vjp():
    check_vjp(capped_attention_vjp, capped_attention, *CAPPED)
    check_vjp(capped_attention_vjp, capped_attention, *CAPPED, R=R)
    check_vjp(capped_attention_vjp, capped_attention, Q[:, :1], K, V[0], 1.5)
    Y, want = autograd(their_capped, dO, *CAPPED)
    assert all(near(g, hinders(w), 100) for g, w in zip(capped_attention_vjp(dO, *CAPPED), want, strict=True))
    assert capped_attention_vjp(dO, Q, K, V, 1.5).dB is None


def test_capped_attention_jvp():
    check_jvp(capped_attention_jvp, capped_attention, *CAPPED)
    check_jvp(capped_attention_jvp, capped_attention, Q, K, V, 1.5, R=R)
    assert (capped_attention_jvp(*[None] * 6, *CAPPED) == 0).all()


@epsilons
def test_qk_norm_attention_vjp(epsilon):
    check_vjp(qk_norm_attention_vjp, qk_norm_attention, *NORMED, epsilon=epsilon)
    check_vjp(qk_norm_attention_vjp, qk_norm_attention, *NORMED, epsilon=epsilon, R=R)
    Y, want = autograd(their_normed(epsilon), dO, *NORMED)
    got = qk_norm_attention_vjp(dO, *NORMED, epsilon=epsilon)
    assert all(near(g, hinders(w), 100) for g, w in zip(got, want, strict=True))
    assert qk_norm_attention_vjp(dO, *NORMED[:5]).dB is None


def test_qk_norm_attention_jvp():
    check_jvp(qk_norm_attention_jvp, qk_norm_attention, *NORMED, epsilon=0.1)
    check_jvp(qk_norm_attention_jvp, qk_norm_attention, *NORMED, epsilon=0.1, R=R)
    assert (qk_norm_attention_jvp(*[None] * 7, *NORMED) == 0).all()


# ---- laws --------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e-3, 3.0, 1e4])
def test_rms_norm_forgets_the_size_and_not_the_mean(factor):
    want = rms_norm(X, alpha, epsilon=0.1)
    assert near(rms_norm(factor * X, alpha, epsilon=0.1 * factor**2), want)
    assert not near(rms_norm(X + 1, alpha, epsilon=0.1), want)


@epsilons
def test_what_epsilon_leaves_along_a_query(epsilon):
    dQ = qk_norm_attention_vjp(dO, *NORMED, epsilon=epsilon).dQ
    normed = rms_norm(Q, alpha_Q, epsilon=epsilon), rms_norm(K, alpha_K, epsilon=epsilon)
    arrives = alpha_Q * attention_vjp(dO, *normed, V, B, gamma).dQ
    r = np.sqrt((Q**2).mean(-1) + epsilon)
    rest = epsilon * (arrives * Q).sum(-1) / r**3
    assert near((Q * dQ).sum(-1), rest, 100)
    assert epsilon == 0 or not near((Q * dQ).sum(-1), 0 * rest, 100)


def test_gains_and_temperature_share_what_they_scale():
    back = qk_norm_attention_vjp(dO, *NORMED, epsilon=0.1)
    assert near(alpha_Q * back.dalpha_Q, alpha_K * back.dalpha_K, 100)
    assert near((alpha_Q * back.dalpha_Q).sum(), (gamma * back.dgamma).sum(), 100)


def test_rows_sum_to_zero_behind_the_cap_and_not_before_it():
    back = capped_attention_vjp(dO, *CAPPED)
    assert near(back.dB.sum((1, 2)), np.zeros(3), 100)
    before = softcap_vjp(back.dB, (gamma * Q[0] @ K[0].mT), c).dS
    assert abs(before.sum(-1)).max() > 0.01
    assert abs(back.dK.sum(-2)).max() > 0.01


def test_a_temperature_is_one_over_the_scale():
    tau = 1 / gamma
    A = Q @ K.mT
    dP = dO @ V.mT
    dtau = softmax_vjp(dP, A, tau).dtau
    dgamma = attention_vjp(dO, Q, K, V, None, gamma).dgamma
    assert near(dtau, -dgamma / tau**2, 1000)


# ---- mistakes that the checks refuse -----------------------------------------------------------


def changed(right, **parts):
    return lambda *x, **constants: right(*x, **constants)._replace(
        **{name: f(*x, **constants) for name, f in parts.items()})


def norm_of(sign=-1.0, gain=True, mean=True):
    """dX with one thing wrong."""
    def dX(dY, X, alpha, *, epsilon):
        r = np.sqrt((X * X).mean(-1, keepdims=True) + epsilon)
        G, X_hat = alpha * dY if gain else dY, X / r
        along = (G * X_hat).mean(-1, keepdims=True) if mean else (G * X_hat).sum(-1, keepdims=True)
        return (G + sign * along * X_hat) / r
    return changed(rms_norm_vjp, dX=dX)


NORM = {
    "a wrong sign": ("dX", norm_of(sign=1.0)), "the size is a constant": ("dX", norm_of(sign=0.0)),
    "the gain is forgotten": ("dX", norm_of(gain=False)), "a sum for a mean": ("dX", norm_of(mean=False)),
    "another epsilon": ("dX", lambda dY, *x, epsilon: rms_norm_vjp(dY, *x, epsilon=epsilon * (1 + 1e-9))),
    "the gain's gradient is not normed": ("dalpha", changed(
        rms_norm_vjp, dalpha=lambda dY, X, alpha, **e: (dY * X).sum((0, 1)))),
}
CAP = {
    "no slope": ("dS", changed(softcap_vjp, dS=lambda dA, S, c: dA)),
    "a slope of the wrong sign": ("dS", changed(softcap_vjp, dS=lambda dA, S, c: dA * (1 + np.tanh(S / c) ** 2))),
    "the slope has the cap": ("dS", changed(softcap_vjp, dS=lambda dA, S, c: dA * c * (1 - np.tanh(S / c) ** 2))),
    "the slope of what is not divided": ("dS", changed(softcap_vjp, dS=lambda dA, S, c: dA * (1 - np.tanh(S) ** 2))),
    "the cap moves outside only": ("dc", changed(softcap_vjp, dc=lambda dA, S, c: (dA * np.tanh(S / c)).sum((0, 2, 3))[:, None, None])),
}


@pytest.mark.parametrize(("name", "wrong"), NORM.values(), ids=NORM)
def test_a_mistake_in_the_norm_is_named(name, wrong):
    with pytest.raises(AssertionError, match=f"^{name}: "):
        check_vjp(wrong, rms_norm, X, alpha, epsilon=0.1)


@pytest.mark.parametrize(("name", "wrong"), CAP.values(), ids=CAP)
def test_a_mistake_in_the_cap_is_named(name, wrong):
    with pytest.raises(AssertionError, match=f"^{name}: "):
        check_vjp(wrong, softcap, S, c)


def uncapped_queries(dO, Q, K, V, c, B, gamma):
    return gamma * capped_attention_vjp(dO, Q, K, V, c, B, gamma).dB @ K


def bias_before(dO, Q, K, V, c, B, gamma):
    return softcap_vjp(capped_attention_vjp(dO, Q, K, V, c, B, gamma).dB, gamma * (Q @ K.mT)[0], c).dS


def keys_not_normed(dO, Q, K, V, a, b, B, gamma):
    return attention_vjp(dO, rms_norm(Q, a), rms_norm(K, b), V, B, gamma).dK


HEADS = {
    "the cap is passed by": ("dQ", capped_attention, CAPPED, changed(capped_attention_vjp, dQ=uncapped_queries)),
    "the bias stands before the cap": ("dB", capped_attention, CAPPED, changed(capped_attention_vjp, dB=bias_before)),
    "the norm of the keys is passed by": ("dK", qk_norm_attention, NORMED, changed(
        qk_norm_attention_vjp, dK=keys_not_normed)),
    "the gains are exchanged": ("dalpha_Q", qk_norm_attention, NORMED, changed(
        qk_norm_attention_vjp, dalpha_Q=lambda *x: qk_norm_attention_vjp(*x).dalpha_K)),
    "a temperature for a scale": ("dgamma", qk_norm_attention, NORMED, changed(
        qk_norm_attention_vjp, dgamma=lambda *x: -qk_norm_attention_vjp(*x).dgamma / x[-1] ** 2)),
}


@pytest.mark.parametrize(("name", "f", "x", "wrong"), HEADS.values(), ids=HEADS)
def test_a_mistake_in_a_head_is_named(name, f, x, wrong):
    with pytest.raises(AssertionError, match=f"^{name}: "):
        check_vjp(wrong, f, *x)


TANGENTS = {
    "the size does not move": ("Y_dot along X_dot", rms_norm, (X, alpha), lambda X_dot, a_dot, X, alpha:
        alpha * X_dot / np.sqrt((X * X).mean(-1, keepdims=True) + 1e-6) + rms_norm_jvp(None, a_dot, X, alpha)),
    "the cap does not move": ("Y_dot along c_dot", softcap, (S, c), lambda S_dot, c_dot, S, c:
        softcap_jvp(S_dot, None, S, c)),
    "a tangent without its slope": ("Y_dot along S_dot", softcap, (S, c), lambda S_dot, c_dot, S, c:
        S_dot + softcap_jvp(None, c_dot, S, c)),
    "the gain of the keys does not move": ("Y_dot along alpha_K_dot", qk_norm_attention, NORMED, lambda *x:
        qk_norm_attention_jvp(*x[:4], None, *x[5:])),
    "the scale is not capped": ("Y_dot along gamma_dot", capped_attention, CAPPED, lambda *x:
        capped_attention_jvp(*x[:5], None, *x[6:])),
}


@pytest.mark.parametrize(("name", "f", "x", "wrong"), TANGENTS.values(), ids=TANGENTS)
def test_a_mistake_in_a_tangent_is_named(name, f, x, wrong):
    with pytest.raises(AssertionError, match=f"^{name}"):
        check_jvp(wrong, f, *x)


# ---- kinds of numbers --------------------------------------------------------------------------

CALLS = {
    "rms_norm": lambda a: rms_norm(a(X), a(alpha)),
    "rms_norm_vjp": lambda a: rms_norm_vjp(a(dY), a(X), a(alpha), epsilon=0.2),
    "rms_norm_jvp": lambda a: rms_norm_jvp(a(X_dot), a(alpha_dot), a(X), a(alpha)),
    "softcap": lambda a: softcap(a(S), 2.0),
    "softcap_vjp": lambda a: softcap_vjp(a(dA), a(S), a(c)),
    "softcap_jvp": lambda a: softcap_jvp(a(S_dot), a(c), a(S), a(c)),
    "capped_attention": lambda a: capped_attention(*map(a, CAPPED)),
    "capped_attention_vjp": lambda a: capped_attention_vjp(a(dO), *map(a, CAPPED)),
    "capped_attention_jvp": lambda a: capped_attention_jvp(a(Q), a(K), None, a(c), None, None, *map(a, CAPPED)),
    "qk_norm_attention": lambda a: qk_norm_attention(*map(a, NORMED)),
    "qk_norm_attention_vjp": lambda a: qk_norm_attention_vjp(a(dO), *map(a, NORMED)),
    "qk_norm_attention_jvp": lambda a: qk_norm_attention_jvp(a(Q), *[None] * 6, *map(a, NORMED)),
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

DIVIDED = "; it needs to be positive and finite, since scores are divided by it"
REFUSED = [
    (ValueError, "rms_norm: alpha has shape (4,); it needs (5,) to match X of shape (2, 4, 5)",
     lambda: rms_norm(X, alpha[:4])),
    (ValueError, "rms_norm: X has shape (4, 0); it needs (..., d) with d > 0",
     lambda: rms_norm(np.ones((4, 0)), alpha[:0])),
    (ValueError, "rms_norm: epsilon is -1; it needs to be finite, and 0 or more",
     lambda: rms_norm(X, alpha, epsilon=-1.0)),
    (ValueError, "rms_norm: epsilon is nan; it needs to be finite, and 0 or more",
     lambda: rms_norm(X, alpha, epsilon=float("nan"))),
    (ValueError, "rms_norm_vjp: dY has shape (4, 5); it needs (2, 4, 5), the shape of Y",
     lambda: rms_norm_vjp(dY[0], X, alpha)),
    (ValueError, "rms_norm_jvp: alpha_dot has shape (4,); it needs (5,), the shape of alpha",
     lambda: rms_norm_jvp(None, alpha[:4], X, alpha)),
    (TypeError, "rms_norm: X has dtype int64; it needs floating-point numbers",
     lambda: rms_norm(np.ones((4, 5), int), alpha)),
    (ValueError, f"softcap: c is 0{DIVIDED}", lambda: softcap(S, 0)),
    (ValueError, f"softcap: c is -30{DIVIDED}", lambda: softcap(S, np.array(-30.0))),
    (ValueError, f"softcap: c is inf{DIVIDED}", lambda: softcap(S, INF)),
    (ValueError, f"softcap: c of shape (3, 1, 1) holds 0{DIVIDED}", lambda: softcap(S, c * [[[1]], [[0]], [[1]]])),
    (ValueError, "softcap: c has shape (3,); it needs one that broadcasts to (2, 3, 4, 5), the shape of the scores",
     lambda: softcap(S, c.ravel())),
    (ValueError, "softcap: S of shape (3, 4, 5) holds NaN or infinity; it needs finite numbers, since a mask is"
     " added behind the cap", lambda: softcap(B, 30.0)),
    (ValueError, "softcap_vjp: dA has shape (3, 4, 5); it needs (2, 3, 4, 5), the shape of A",
     lambda: softcap_vjp(dA[0], S, c)),
    (ValueError, f"capped_attention: c is 0{DIVIDED}", lambda: capped_attention(Q, K, V, 0.0)),
    (ValueError, "capped_attention: c has shape (3,); it needs one that broadcasts to (2, 3, 4, 5), the shape of the"
     " scores", lambda: capped_attention(Q, K, V, c.ravel())),
    (ValueError, "capped_attention_vjp: dO has shape (3, 4, 7); it needs (2, 3, 4, 7), the shape of O",
     lambda: capped_attention_vjp(dO[0], Q, K, V, 1.0)),
    (ValueError, "qk_norm_attention: alpha_Q has shape (5,); it needs (6,) to match Q of shape (2, 3, 4, 6)",
     lambda: qk_norm_attention(Q, K, V, alpha, alpha_K)),
    (ValueError, "qk_norm_attention: alpha_K has shape (3, 6); it needs (6,) to match Q of shape (2, 3, 4, 6)",
     lambda: qk_norm_attention(Q, K, V, alpha_Q, np.ones((3, 6)))),
    (ValueError, "qk_norm_attention: K has shape (2, 3, 5, 7); it needs (..., m, 6) to match Q of shape (2, 3, 4, 6)",
     lambda: qk_norm_attention(Q, V, V, alpha_Q, alpha_K)),
]


@pytest.mark.parametrize(("error", "sentence", "call"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_bad_input_gets_one_clear_sentence(error, sentence, call):
    with pytest.raises(error) as told:
        call()
    assert str(told.value) == sentence
