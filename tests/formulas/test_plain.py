"""The written-out definitions against PyTorch: they judge every mutant of the package."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import plain
from exact_cases import draw, heads, layers, rate, scores
from torch_layer import each, output

ALLOWED = 1e-12


def agrees(got, want):
    """The same numbers in the same shape; -inf in the same places."""
    got, want = np.asarray(got).astype(float), np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=ALLOWED, atol=ALLOWED)


def tensors(*x):
    return [None if part is None else torch.as_tensor(part) for part in x]


def weights(A):
    """PyTorch's softmax; 0 in an empty row."""
    empty = torch.isneginf(A).all(-1, keepdim=True)
    return torch.softmax(A.masked_fill(empty, 0), -1).masked_fill(empty, 0)


def test_softmax():
    for A, tau in ((x[0], np.array(abs(x[1])) if len(x) > 1 else np.array(1.0)) for x in scores()):
        agrees(plain.softmax(A, tau), weights(torch.as_tensor(A) / torch.as_tensor(tau)))
        agrees(plain.logsumexp(A), torch.logsumexp(torch.as_tensor(A), -1))
        empty = np.isneginf(A).all(-1, keepdims=True)
        Lambda = torch.log_softmax(torch.as_tensor(np.where(empty, 0, A)), -1)
        agrees(plain.log_softmax(A), np.where(empty, -np.inf, Lambda))


def test_cross_entropy():
    A, E = draw(3, 4), abs(draw(3, 4))
    A[0, 1], E[0, 1] = -np.inf, 0
    want = F.cross_entropy(*tensors(np.where(E == 0, -1e300, A), E), reduction="sum")
    agrees(plain.cross_entropy(A, E), want)


def test_attention():
    for Q, K, V, *rest in heads():
        B, gamma = (*rest, None, None)[:2] if rest else (None, None)
        q, k, v, b, g = tensors(Q, K, V, B, gamma)
        A = q @ k.mT * (Q.shape[-1] ** -0.5 if g is None else g)
        A = A if b is None else A + b
        R = abs(draw(Q.shape[-2], K.shape[-2]))
        found = plain.attention_map(Q, K, V, B, gamma)
        for got, want in zip(found, (A, weights(A), torch.logsumexp(A, -1), weights(A) @ v), strict=True):
            agrees(got, want)
        agrees(plain.attention(Q, K, V, B, gamma, R), (weights(A) * torch.as_tensor(R)) @ v)


def test_multihead():
    for (X, Z, W, *rest), constants in layers():
        B, gamma = (*rest, None, None)[:2]
        R = constants.get("R")
        x = each(torch.as_tensor, [X, Z, W, B, None if gamma is None else np.asarray(gamma), R])
        batch = np.broadcast_shapes(X.shape[:-2], Z.shape[:-2])
        x[:2] = x[0].expand(*batch, *X.shape[-2:]), x[1].expand(*batch, *Z.shape[-2:])
        agrees(plain.multihead(X, Z, W, B, gamma, R), output(*x))


def test_blocks():
    X, W, b = draw(2, 3, 4), draw(4, 5), draw(5)
    agrees(plain.linear(X, W, b), F.linear(*tensors(X, W.T, b)))
    agrees(plain.linear(X, W, b[None]), F.linear(*tensors(X, W.T, b)))
    agrees(plain.linear(X, W), F.linear(*tensors(X, W.T)))
    agrees(plain.silu(X), F.silu(torch.as_tensor(X)))
    agrees(plain.layer_norm(X, W[:, 0], W[:, 1], 0.5), F.layer_norm(torch.as_tensor(X), (4,), *tensors(*W.T[:2]), 0.5))
    U, D, d = draw(4, 3), draw(3, 4), draw(4)
    agrees(plain.mlp(X, U, None, D, d), F.linear(F.silu(F.linear(*tensors(X, U.T))), *tensors(D.T, d)))


def test_a_definition_that_is_wrong_disagrees():
    A = draw(2, 3)
    with pytest.raises(AssertionError):
        agrees(plain.softmax(A) * 1.0000001, torch.softmax(torch.as_tensor(A), -1))


def test_norms_and_caps():
    X, alpha, S, c = draw(2, 3, 4), draw(4), draw(3, 4), abs(draw(3, 1))
    for epsilon in (0.0, 0.5):
        agrees(plain.rms_norm(X, alpha, epsilon), F.rms_norm(*tensors(X), (4,), *tensors(alpha), epsilon))
    agrees(plain.softcap(S, c), c * np.tanh(S / c))
    for Q, K, V, *rest in heads():
        B, gamma = (*rest, None, None)[:2]
        q, k, v, b, g = tensors(Q, K, V, B, gamma)
        g, b, size = Q.shape[-1] ** -0.5 if g is None else g, 0 if b is None else b, (Q.shape[-1],)
        alpha, R = draw(2, *size), rate(Q.shape[-2], K.shape[-2])
        A = 2 * torch.tanh(g * (q @ k.mT) / 2) + b
        agrees(plain.capped_attention(Q, K, V, 2, B, gamma, R), (weights(A) * torch.as_tensor(R)) @ v)
        a, e = tensors(*alpha)
        A = g * (F.rms_norm(q, size, a, 0.5) @ F.rms_norm(k, size, e, 0.5).mT) + b
        agrees(plain.qk_norm_attention(Q, K, V, *alpha, B, gamma, 0.5, R), (weights(A) * torch.as_tensor(R)) @ v)


def test_normalizers():
    A, one, two = draw(2, 3, 4, hide=[(0, 0, 1), (1, 2)]), draw(2), draw(2, 3)
    for sigma, rows in ((np.array(0.3), np.full((2, 3, 1), 0.3)), (one, one[:, None, None] + np.zeros((2, 3, 1))),
                        (two, two[:, None, :] + np.zeros((2, 3, 3)))):
        want = torch.softmax(torch.cat(tensors(rows, A), -1), -1)[..., rows.shape[-1]:]
        agrees(plain.sink_softmax(A, sigma), want)
        q, k, v = draw(2, 3, 2), draw(2, 4, 2), draw(2, 4, 5)
        B = np.where(np.isneginf(A), -np.inf, 0)
        wide = torch.softmax(torch.cat(tensors(rows, 0.5 * q @ k.swapaxes(1, 2) + B), -1), -1)[..., rows.shape[-1]:]
        agrees(plain.sink_attention(q, k, v, sigma, B, 0.5), wide @ torch.as_tensor(v))
    A, P = 0.5 * q @ k.swapaxes(1, 2) + B, rate(3, 4)
    agrees(plain.sigmoid_attention(q, k, v, B, 0.5, P), (torch.sigmoid(torch.as_tensor(A)) * torch.as_tensor(P))
           @ torch.as_tensor(v))
