"""Full Jacobians against the complex step and PyTorch's jacrev: entry by entry, no formula of ours."""

import array_api_strict
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnmath import (
    Weights,
    attention,
    attention_map,
    complex_step,
    jacobians,
    multihead,
    self_attention,
    self_attention_jacobian,
)
from attnmath._formulas import jacobians as jacobians_module
from attnmath._words.arrays import T, blocks, kron
from attnmath._words.layers import lifted
from torch_layer import each, output, weights

U = 2.0**-53
n, m, d_k, d_v = 4, 5, 3, 2
ARRAYS = {"numpy": np.asarray, "torch": torch.as_tensor, "strict": array_api_strict.asarray}
arrays = pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)


def problem(seed=0, masked=True):
    """Q, K, V, B, gamma; a masked score and an empty row in B."""
    rng = np.random.default_rng(seed)
    Q, K, V, B = (rng.normal(size=s) for s in [(n, d_k), (m, d_k), (m, d_v), (n, m)])
    if masked:
        B[0, 2] = B[3] = -np.inf
    return Q, K, V, B, 0.7


def layer_problem(seed=0, H=4, G=2, d=5):
    """X, W, B, gamma of a layer in which two heads share keys and values."""
    rng = np.random.default_rng(seed)
    W, X, B = weights(rng, H, G, d, d, 3, 2), rng.normal(size=(n, d)), rng.normal(size=(n, n))
    B[0, 2] = B[3] = -np.inf
    return X, W, B, rng.normal(size=H)


def dropped(*shape):
    return (np.random.default_rng(1).random(shape) < 0.7) / 0.7


def stepped(f, x):
    """Every entry of f(x) by every entry of x, one complex step for each entry of x."""
    columns = []
    for entry in range(x.size):
        x_dot = np.zeros(x.size)
        x_dot[entry] = 1
        columns.append(complex_step(f, x, x_dot.reshape(x.shape)))
    return np.stack(columns, axis=-1).reshape(*columns[0].shape, *x.shape)


def jacrev(f, *x):
    """The same by PyTorch, for every argument."""
    x = [torch.as_tensor(a) for a in x]
    with sdpa_kernel(SDPBackend.MATH):
        return [J.numpy() for J in torch.func.jacrev(f, argnums=tuple(range(len(x))))(*x)]


def error(got, want, size):
    """In roundings of the size of what is summed up."""
    got = np.asarray(got)
    assert got.shape == want.shape
    return abs(got - want).max() / (U * size)


def size(V, *factors):
    """The largest values, twice, times the largest entries of what they are multiplied by."""
    out = 2 * abs(V).max()
    for x in factors:
        out *= np.abs(x).max()
    return out


@arrays
def test_jacobians(array):
    Q, K, V, B, gamma = problem()
    found = jacobians(*map(array, (Q, K, V, B)), gamma)
    assert found._fields == ("J_Q", "J_K", "J_V", "J_A")
    f = [lambda x: attention(x, K, V, B, gamma), lambda x: attention(Q, x, V, B, gamma),
         lambda x: attention(Q, K, x, B, gamma)]
    sizes = size(V, gamma, K), size(V, gamma, Q), 1
    for got, g, x, s in zip(found, f, (Q, K, V), sizes):
        assert error(got, stepped(g, x), s) <= 16
    A = attention_map(Q, K, V, B, gamma).A
    by_scores = stepped(lambda X: attention(0 * Q, K, V, X, gamma), np.where(A > -np.inf, A, -99.0))
    assert error(found.J_A, np.where(A > -np.inf, by_scores, 0), size(V)) <= 16
    assert all((np.asarray(J)[3] == 0).all() for J in found)


@pytest.mark.parametrize("gamma", [None, 0.7, -1.5])
def test_jacobians_of_pytorch_s_attention(gamma):
    Q, K, V, *_ = problem()
    B = problem(1, masked=False)[3]

    def theirs(Q, K, V, B):
        return F.scaled_dot_product_attention(Q[None], K[None], V[None], B[None], scale=gamma)[0]

    for got, want in zip(jacobians(Q, K, V, B, gamma), jacrev(theirs, Q, K, V, B), strict=True):
        assert error(got, want, size(V, 1.5, Q, K)) <= 16
    default = jacobians(Q, K, V)
    assert error(default.J_Q, jacobians(Q, K, V, np.zeros((n, m)), 3**-0.5).J_Q, size(V, K)) <= 8


def test_leading_axes_broadcast():
    """Each has the leading axes of the output; a scale may be one for every score."""
    rng = np.random.default_rng(2)
    Q, K, V = rng.normal(size=(6, 1, n, d_k)), rng.normal(size=(m, d_k)), rng.normal(size=(7, m, d_v))
    B, gamma = problem()[3], rng.normal(size=(n, m))
    found = jacobians(Q, K, V, B, gamma)
    for s, t in np.ndindex(6, 7):
        x = Q[s, 0], K, V[t]
        want = [stepped(lambda a, k=k, x=x: attention(*x[:k], a, *x[k + 1:], B, gamma), x[k]) for k in range(3)]
        assert all(error(J[s, t], w, size(V, 4, K, Q)) <= 16 for J, w in zip(found, want))
    assert [J.shape[:2] for J in found] == [(6, 7)] * 4


MISTAKES = {
    "the mean of the values is forgotten": lambda J, P, V, O: J._replace(J_A=J.J_A + P_of(P, O)),
    "no scale": lambda J, P, V, O: J._replace(J_Q=J.J_Q / 0.7),
    "another query's keys": lambda J, P, V, O: J._replace(J_Q=np.roll(J.J_Q, 1, axis=2)),
    "queries and outputs exchanged": lambda J, P, V, O: J._replace(J_K=J.J_K[::-1]),
    "weights transposed": lambda J, P, V, O: J._replace(J_V=J.J_V[:, ::-1]),
    "sign": lambda J, P, V, O: J._replace(J_K=-J.J_K),
}


def P_of(P, O):
    """What is missing where v_j stands for v_j - o_i."""
    return np.einsum("il,ij,ia->ialj", np.eye(len(P)), P, O)


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_planted_mistake_is_seen(mistake):
    Q, K, V, B, gamma = problem()
    B = np.where(np.isinf(B), 0.0, B)
    A, P, _, O = attention_map(Q, K, V, B, gamma)
    right = [stepped(lambda x: attention(x, K, V, B, gamma), Q), stepped(lambda x: attention(Q, x, V, B, gamma), K),
             stepped(lambda x: attention(Q, K, x, B, gamma), V), stepped(lambda x: attention(Q, K, V, x, gamma), B)]
    found = jacobians(Q, K, V, B, gamma)
    assert all(abs(J - w).max() < 1e-14 for J, w in zip(found, right))
    assert any(abs(J - w).max() > 0.05 for J, w in zip(mistake(found, P, V, O), right))


@arrays
@pytest.mark.parametrize("R", [None, dropped(n, n), dropped(4, n, n)], ids=["", "shared", "own"])
def test_self_attention_jacobian(array, R):
    X, W, B, gamma = layer_problem()
    x = each(array, [X, W, B, gamma])
    got = self_attention_jacobian(*x, R=None if R is None else array(R))
    want = stepped(lambda x: self_attention(x, W, B, gamma, R=R), X)
    assert error(got, want, abs(want).max()) <= 256
    assert (np.asarray(got)[3] == 0).all()  # an empty row


def test_self_attention_jacobian_of_pytorch_s_parts():
    X, W, _, gamma = layer_problem(seed=3)
    B = np.random.default_rng(4).normal(size=(4, n, n))
    W_t = W._make(map(torch.as_tensor, W))

    def theirs(X):
        return output(X[None], X[None], W_t, torch.as_tensor(B), gamma)[0]

    (want,) = jacrev(theirs, X)
    assert error(self_attention_jacobian(X, W, B, gamma), want, abs(want).max()) <= 256
    bare = Weights(*W[:4])
    W_t = bare._make(None if w is None else torch.as_tensor(w) for w in bare)
    (want,) = jacrev(lambda X: output(X[None], X[None], W_t, gamma=np.float64(3**-0.5))[0], X)
    assert error(self_attention_jacobian(X, bare), want, abs(want).max()) <= 256


def test_each_member_of_a_batch_has_its_own():
    _, W, B, gamma = layer_problem()
    X = np.random.default_rng(5).normal(size=(2, 3, n, 5))
    found = self_attention_jacobian(X, W, B, gamma)
    for at in np.ndindex(2, 3):
        alone = self_attention_jacobian(X[at], W, B, gamma)
        assert error(found[at], alone, abs(alone).max()) <= 64


@pytest.mark.parametrize("word, other", [
    ("blocks", lambda x: 0 * blocks(x)), ("kron", lambda x, y: 0 * kron(x, y)), ("lifted", lambda x: -lifted(x)),
    ("T", lambda x: T(x)[..., ::-1]),
])
def test_a_mistake_in_a_path_is_seen(word, other, monkeypatch):
    """The path through the queries or the values is lost, the scale's sign is wrong, features are exchanged."""
    X, W, B, gamma = layer_problem()
    want = stepped(lambda x: self_attention(x, W, B, gamma), X)
    monkeypatch.setattr(jacobians_module, word, other)
    assert abs(self_attention_jacobian(X, W, B, gamma) - want).max() > 0.1 * abs(want).max()


def test_the_paths_of_askers_and_asked():
    """The Jacobian is that by the queries' tokens plus that by the keys' tokens, and neither alone."""
    X, W, B, gamma = layer_problem()
    asking = stepped(lambda x: multihead(x, X, W, B, gamma), X)
    asked = stepped(lambda x: multihead(X, x, W, B, gamma), X)
    found, size = self_attention_jacobian(X, W, B, gamma), abs(asking + asked).max()
    assert error(found, asking + asked, size) <= 256
    assert min(abs(asking).max(), abs(asked).max()) > 0.1 * size


def test_bad_input_is_named():
    Q, K, V, B, _ = problem()
    with pytest.raises(ValueError, match=r"jacobians: K has shape \(5, 2\); it needs \(..., m, 3\)"):
        jacobians(Q, V, V, B)
    with pytest.raises(TypeError, match="jacobians: Q is a list"):
        jacobians([[1.0]], K, V)
    X, W, *_ = layer_problem()
    with pytest.raises(ValueError, match="self_attention_jacobian: W.W_Q has shape"):
        self_attention_jacobian(X[:, :2], W)
    with pytest.raises(TypeError, match="self_attention_jacobian: W is a list"):
        self_attention_jacobian(X, [1])
