"""Dropout against PyTorch's automatic differentiation with the same R, and the complex step."""

import numpy as np
import pytest
import torch

from attnmath import (
    attention,
    attention_jvp,
    attention_map,
    attention_vjp,
    check_jvp,
    check_vjp,
    dropout_attention,
    dropout_attention_jvp,
    dropout_attention_vjp,
    dropout_mask,
)

torch.set_num_threads(1)
RHO = 0.3


def problem(leading=(2, 3), n=4, m=5, d_k=3, d_v=2, seed=0, R=None):
    """dO, the inputs of a head with a mask and an empty row, and R of this shape."""
    rng = np.random.default_rng(seed)
    shapes = [(*leading, n, d_v), (*leading, n, d_k), (*leading, m, d_k), (*leading, m, d_v), (n, m)]
    dO, Q, K, V, B = (rng.normal(size=s) for s in shapes)
    B[1, 2] = B[2] = -np.inf
    R = dropout_mask(rng.random((*leading, n, m) if R is None else R), RHO)
    return dO, (Q, K, V, B, 0.7), R


def reference(dO, x, R):
    """The output and its gradients by PyTorch: torch.softmax, times R, times V."""
    Q, K, V, B, gamma = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in x)
    P = torch.softmax((gamma * torch.einsum("...ik,...jk->...ij", Q, K) + B)[..., [0, 1, 3], :], -1)
    live = torch.einsum("...ij,...jv->...iv", P * torch.tensor(R)[..., [0, 1, 3], :], V)
    gradients = torch.autograd.grad(live, (Q, K, V, B, gamma), torch.tensor(dO[..., [0, 1, 3], :]))
    return live.detach().numpy(), [g.numpy() for g in gradients]


def close(got, want):
    got = np.asarray(got)
    return got.shape == want.shape and np.abs(got - want).max() <= 1e-14 * max(1, np.abs(want).max())


def test_dropout_mask():
    """PyTorch's own dropout: the same two values, the same rate, the same mean."""
    U = np.random.default_rng(1).random((400, 500))
    R = dropout_mask(U, RHO)
    theirs = torch.nn.functional.dropout(torch.ones(400, 500, dtype=torch.float64), RHO).numpy()
    assert set(np.unique(R)) == {0.0, np.unique(theirs)[-1]} and np.unique(theirs)[0] == 0
    spread = np.sqrt(RHO * (1 - RHO) / U.size)       # of the rate, over all draws
    assert abs((R == 0).mean() - RHO) < 5 * spread and abs(R.mean() - 1) < 5 * spread / (1 - RHO)
    assert ((R == 0) == (U < RHO)).all() and (dropout_mask(U, RHO) == R).all()
    assert (dropout_mask(U, 0) == 1).all() and (dropout_mask(U, np.array(0.0)) == 1).all()
    half = dropout_mask(torch.tensor(U, dtype=torch.float32), 0.5)
    assert half.dtype == torch.float32 and set(half.unique().tolist()) == {0, 2}
    assert (dropout_mask(np.array([0.25, 0.75]), 0.25) == [4 / 3, 4 / 3]).all(), "a draw of rho is kept"


def test_dropout_attention():
    dO, x, R = problem()
    want, _ = reference(dO, x, R)
    for array in (np.asarray, torch.as_tensor):
        O = np.asarray(dropout_attention(*map(array, x[:4]), x[4], R=array(R)))
        assert close(O[..., [0, 1, 3], :], want) and (O[..., 2, :] == 0).all()
    assert (dropout_attention(*x) == attention(*x)).all()
    assert (dropout_attention(*x[:3], R=np.ones((4, 5))) == attention(*x[:3])).all()


@pytest.mark.parametrize("shape", [None, (4, 5), (3, 1, 5)])
def test_dropout_attention_vjp(shape):
    dO, x, R = problem(R=shape)
    _, want = reference(dO, x, np.broadcast_to(R, (2, 3, 4, 5)))
    for array in (np.asarray, torch.as_tensor):
        found = dropout_attention_vjp(array(dO), *map(array, x[:4]), x[4], R=array(R))
        assert found._fields == ("dQ", "dK", "dV", "dB", "dgamma")
        assert all(close(g, w) for g, w in zip(found, want))
    check_vjp(dropout_attention_vjp, dropout_attention, *x, R=R)
    check_vjp(dropout_attention_vjp, dropout_attention, x[0], x[1][0, 0], x[2][1], x[3], R=R)
    assert dropout_attention_vjp(dO, *x[:3], R=R).dB is None
    for g, w in zip(dropout_attention_vjp(dO, *x), attention_vjp(dO, *x)):
        assert close(g, w)


def test_dropout_attention_jvp():
    dO, x, R = problem()
    check_jvp(dropout_attention_jvp, dropout_attention, *x, R=R)
    check_jvp(dropout_attention_jvp, dropout_attention, *map(torch.as_tensor, x[:3]), R=torch.as_tensor(R))
    dots = *problem(seed=1)[1][:3], np.ones((4, 5)), 1.3
    assert close(dropout_attention_jvp(*dots, *x), attention_jvp(*dots, *x))
    pairing = (dO * dropout_attention_jvp(*dots, *x, R=R)).sum()
    terms = [(g * d).sum() for g, d in zip(dropout_attention_vjp(dO, *x, R=R), dots)]
    assert abs(pairing - sum(terms)) <= 1e-13 * sum(map(abs, terms))


def test_the_mean_over_many_draws_is_attention_without_dropout():
    """Output and gradients are linear in R for a given dO; so five standard errors hold them."""
    dO, x, _ = problem(leading=())
    U = np.random.default_rng(2).random((4000, 4, 5))
    R = dropout_mask(U, RHO)
    spread = [np.broadcast_to(a, (4000, *a.shape)) for a in x[:4]]
    many = dropout_attention_vjp(np.broadcast_to(dO, (4000, *dO.shape)), *spread, x[4], R=R)
    plain = attention_vjp(dO, *x)
    pairs = [(dropout_attention(*spread, x[4], R=R), attention(*x)), *zip(many[:4], plain[:4])]
    for drawn, mean in pairs:
        error = drawn.std(axis=0) / np.sqrt(4000)
        assert (abs(drawn.mean(axis=0) - mean) <= 5 * error + 1e-15).all()
        assert drawn.std(axis=0).max() > 0.05


# ---- mistakes ------------------------------------------------------------------------------------

def no_factor(dO, Q, K, V, B, gamma, *, R):
    return dropout_attention_vjp(dO, Q, K, V, B, gamma, R=(R > 0) * 1.0)


def fresh(dO, Q, K, V, B, gamma, *, R):
    return dropout_attention_vjp(dO, Q, K, V, B, gamma, R=R[..., ::-1, :])


def ignored(dO, Q, K, V, B, gamma, *, R):
    return attention_vjp(dO, Q, K, V, B, gamma)


def values_undropped(dO, Q, K, V, B, gamma, *, R):
    right = dropout_attention_vjp(dO, Q, K, V, B, gamma, R=R)
    return right._replace(dV=attention_vjp(dO, Q, K, V, B, gamma).dV)


def statistic_undropped(dO, Q, K, V, B, gamma, *, R):
    P = attention_map(Q, K, V, B, gamma).P
    G = dO @ V.swapaxes(-1, -2)
    dA = P * (R * G - (P * G).sum(-1, keepdims=True))
    right = dropout_attention_vjp(dO, Q, K, V, B, gamma, R=R)
    return right._replace(dQ=gamma * dA @ K, dK=gamma * dA.swapaxes(-1, -2) @ Q)


MISTAKES = [(no_factor, "dQ"), (fresh, "dQ"), (ignored, "dQ"), (values_undropped, "dV"), (statistic_undropped, "dQ")]


@pytest.mark.parametrize(("mistake", "named"), MISTAKES)
def test_mistakes_are_named(mistake, named):
    _, x, R = problem(leading=())
    with pytest.raises(AssertionError, match=f"^{named}"):
        check_vjp(mistake, dropout_attention, *x, R=R)


# ---- what is refused -----------------------------------------------------------------------------

dO, X, R = problem()
REFUSED = [
    (lambda: dropout_attention_vjp(dO[..., :1], *X, R=R), ValueError,
     "dropout_attention_vjp: dO has shape (2, 3, 4, 1); it needs (2, 3, 4, 2), the shape of O"),
    (lambda: dropout_attention_jvp(X[1], None, None, None, None, *X, R=R), ValueError,
     "dropout_attention_jvp: Q_dot has shape (2, 3, 5, 3); it needs (2, 3, 4, 3), the shape of Q"),
    (lambda: dropout_attention_jvp(None, X[0], None, None, None, *X, R=R), ValueError,
     "dropout_attention_jvp: K_dot has shape (2, 3, 4, 3); it needs (2, 3, 5, 3), the shape of K"),
    (lambda: dropout_attention_jvp(None, None, X[0], None, None, *X, R=R), ValueError,
     "dropout_attention_jvp: V_dot has shape (2, 3, 4, 3); it needs (2, 3, 5, 2), the shape of V"),
    (lambda: dropout_mask(R, 0.5), ValueError, "dropout_mask: U of shape (2, 3, 4, 5) holds 1.42857; it needs to be in [0, 1)"),
    (lambda: dropout_mask(R * np.nan, 0.5), ValueError, "dropout_mask: U of shape (2, 3, 4, 5) holds nan; it needs to be in [0, 1)"),
    (lambda: dropout_mask(R * 0, 1.0), ValueError, "dropout_mask: rho is 1; it needs to be in [0, 1)"),
    (lambda: dropout_mask(R * 0, -0.1), ValueError, "dropout_mask: rho is -0.1; it needs to be in [0, 1)"),
    (lambda: dropout_mask(R * 0, np.array([0.5])), ValueError, "dropout_mask: rho has shape (1,); it needs to be a number"),
    (lambda: dropout_mask(R * 0, 0.1j), TypeError, "dropout_mask: rho is a complex; it needs to be a real number"),
    (lambda: dropout_mask(R > 0, 0.5), TypeError, "dropout_mask: U has dtype bool; it needs floating-point numbers"),
    (lambda: dropout_attention(*X, R=R[..., :4]), ValueError,
     "dropout_attention: R has shape (2, 3, 4, 4); it needs one that broadcasts to (2, 3, 4, 5), the shape of the scores"),
    (lambda: dropout_attention(*X, R=-R), ValueError, "dropout_attention: R of shape (2, 3, 4, 5) holds NaN, +inf or"
     " a number below 0; its entries need to be 0 or 1 / (1 - rho)"),
    (lambda: dropout_attention(*X, R=R > 0), TypeError, "dropout_attention: R has dtype bool; it needs floating-point numbers"),
    (lambda: dropout_attention(*X, R=R.astype("f")), TypeError, "dropout_attention: R has dtype float32; it needs that of Q, float64"),
]


@pytest.mark.parametrize(("call", "kind", "sentence"), REFUSED)
def test_bad_input_gets_one_clear_sentence(call, kind, sentence):
    with pytest.raises(kind) as told:
        call()
    assert str(told.value) == sentence
