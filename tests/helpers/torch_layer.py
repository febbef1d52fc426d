"""A layer out of PyTorch's own parts, and what its rounding is measured by; no formula of ours."""

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnmath import Weights

torch.set_num_threads(1)  # on matrices this small, threads only wait for each other


def weights(rng, H, G, d, d_z, d_k, d_v, biases=(True,) * 4, scale=1.0):
    """Random weights; the scores of random tokens are about as large as the scale."""
    def normal(*shape, there=True):
        return rng.normal(size=shape) if there else None
    q, k, v, o = biases
    W_Q, W_K = normal(H, d, d_k) * scale / d**0.5, normal(G, d_z, d_k) / d_z**0.5
    return Weights(W_Q, W_K, normal(G, d_z, d_v), normal(H, d_v, d), normal(H, d_k, there=q),
                   normal(G, d_k, there=k), normal(G, d_v, there=v), normal(d, there=o))


def tensor(x):
    """x, and the fields of x, in double precision, to be differentiated."""
    if isinstance(x, Weights):
        return x._make(map(tensor, x))
    return None if x is None else torch.tensor(x, dtype=torch.float64, requires_grad=True)


def each(function, x):
    """function of each array in arguments, some of which are Weights or None or numbers."""
    if isinstance(x, tuple | list):
        made = [each(function, part) for part in x]
        return x._make(made) if isinstance(x, Weights) else made
    return function(x) if isinstance(x, np.ndarray | torch.Tensor) else x


def flat(x):
    """Arguments or gradients in a row, the fields of Weights among them."""
    return [part for one in x for part in (one if isinstance(one, Weights) else [one])]


def project(X, W, b):
    """PyTorch's linear layer, its columns taken apart into heads."""
    H, d, k = W.shape
    Y = F.linear(X, W.permute(0, 2, 1).reshape(H * k, d), None if b is None else b.flatten())
    return Y.unflatten(-1, (H, k)).transpose(-2, -3)


def project_all(X, Z, W, gamma):
    """Queries times gamma, keys and values."""
    gamma = torch.as_tensor(W.W_Q.shape[-1] ** -0.5 if gamma is None else gamma)
    Q, K, V = project(X, W.W_Q, W.b_Q), project(Z, W.W_K, W.b_K), project(Z, W.W_V, W.b_V)
    return Q * (gamma[:, None, None] if gamma.ndim else gamma), K, V


def shared(x, H):
    """Keys or values of groups as one for each head."""
    return x.repeat_interleave(H // x.shape[-3], dim=-3)


def probabilities(Q, K, B):
    """The weights of attention; 0 in an empty row."""
    A = Q @ shared(K, Q.shape[-3]).mT
    A = A if B is None else A + B
    empty = torch.isneginf(A).all(-1, keepdim=True)
    return torch.softmax(A.masked_fill(empty, 0), -1).masked_fill(empty, 0)


def sdpa(Q, K, V, B):
    """PyTorch's attention in its plain kernel, which shares keys itself, and wants four axes."""
    batch = torch.broadcast_shapes(Q.shape[:-3], K.shape[:-3])
    Q, K, V = (x.expand(*batch, *x.shape[-3:]).reshape(-1, *x.shape[-3:]) for x in (Q, K, V))
    if B is not None:
        scores = *Q.shape[1:-1], K.shape[-2]
        B = B.expand(*batch, *scores).reshape(-1, *scores)
    with sdpa_kernel(SDPBackend.MATH):
        O = F.scaled_dot_product_attention(Q, K, V, attn_mask=B, scale=1.0, enable_gqa=True)
    return O.reshape(*batch, *O.shape[-3:])


def output(X, Z, W, B=None, gamma=None, R=None):
    """What a layer returns: PyTorch's linear layers around its attention, or around dropout."""
    Q, K, V = project_all(X, Z, W, gamma)
    O = sdpa(Q, K, V, B) if R is None else (probabilities(Q, K, B) * R) @ shared(V, Q.shape[-3])
    return F.linear(O.transpose(-2, -3).flatten(-2), W.W_O.flatten(0, 1).T, W.b_O)


def reference(dY, X, Z, W, B=None, gamma=None, R=None):
    """The output and all gradients, in the order of multihead_vjp, the fields of dW in a row."""
    gamma = np.asarray(W.W_Q.shape[-1] ** -0.5 if gamma is None else gamma)
    x = [tensor(a) for a in (X, Z, W, B, gamma)]
    Y = output(*x, R=None if R is None else torch.as_tensor(R))
    there = [a for a in flat(x) if a is not None]
    found = iter(torch.autograd.grad(Y, there, torch.as_tensor(dY)))
    return Y.detach().numpy(), [None if a is None else next(found).numpy() for a in flat(x)]


def sum_over(x, shape):
    """x summed over the axes along which an array of this shape was broadcast."""
    x = x.flatten(0, x.ndim - len(shape) - 1).sum(0) if x.ndim > len(shape) else x
    for k, size in enumerate(shape):
        x = x.sum(k, keepdim=True) if size == 1 else x
    return x


def magnitudes(dY, X, Z, W, B=None, gamma=None, R=None):
    """For each entry of each gradient the magnitudes of all its terms, added up: rounding is some u of it.

    The sums of the chain rule with every factor by its magnitude, so that nothing cancels.
    """
    dY, X, Z, W, B, gamma, R = each(torch.as_tensor, [dY, X, Z, W, B, gamma, 1.0 if R is None else R])
    P = probabilities(*project_all(X, Z, W, gamma)[:2], B)
    given, (dY, X, Z, W) = (X, Z, W), each(abs, [dY, X, Z, W])
    gamma = abs(torch.as_tensor(W.W_Q.shape[-1] ** -0.5 if gamma is None else gamma))
    H, G = len(W.W_Q), len(W.W_K)
    Q, K, V = (shared(x, H) for x in project_all(X, Z, W, gamma))  # Q times gamma
    dO = project(dY, W.W_O.mT, None)
    T = (dO @ V.mT) * R
    dA = P * (T + (P * T).sum(-1, keepdim=True))
    dQ, dK, dV = dA @ K * (gamma[:, None, None] if gamma.ndim else gamma), dA.mT @ Q, (P * R).mT @ dO
    dK, dV = (x.unflatten(-3, (G, -1)).sum(-3) for x in (dK, dV))
    O, dgamma = (P * R) @ V, (dA * (Q @ K.mT)).sum((-1, -2)) / (gamma + (gamma == 0))
    back = "...hnk,hdk->...nd"
    dX, dZ = (torch.einsum(back, dQ, W.W_Q), torch.einsum(back, dK, W.W_K) + torch.einsum(back, dV, W.W_V))
    sums = [dX, dZ]
    for A, C in ((X, dQ), (Z, dK), (Z, dV)):
        sums.append(A[..., None, :, :].mT @ C)
    sums += [O.mT @ dY[..., None, :, :], *(x.sum(-2) for x in (dQ, dK, dV)), dY.sum(-2)]
    sums += [dA, dgamma]
    likes = flat([*given, B, gamma])
    return [None if x is None else sum_over(s, x.shape).numpy() for s, x in zip(sums, likes)]


def excess(got, want, sizes):
    """The largest error of any gradient, relative to the magnitude of what is summed up."""
    found = [0.0]
    for g, w, size in zip(got, want, sizes, strict=True):
        assert (g is None) == (w is None)
        if w is not None:
            g = np.asarray(g)
            assert g.shape == w.shape and np.isfinite(g).all()
            error = abs(g - w)
            assert not error[size == 0].any(), "what nothing is added to must be exactly zero"
            found.append((error / np.where(size == 0, 1, size)).max(initial=0))
    return max(found)
