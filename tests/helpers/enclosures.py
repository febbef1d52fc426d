"""Balls that contain the exact answer: what each function is, and its gradient, for certain.

A ball of flint's is a number and a radius; what is computed with balls contains the exact
result. Functions are defined here by exponentials, sums and quotients. A gradient is the
coefficient of t where an entry is x + t: no derivative of the package or the book is used.
"""

import numpy as np
from flint import arb, arb_series

BITS = 256  # of a ball's middle; float64 has 53


def each(function):
    """A function of numbers, for every entry of an array."""
    return np.frompyfunc(function, function.__code__.co_argcount, 1)


# A score of -inf is None: it has the exponential 0 and does not move.
exp = each(lambda x: arb(0) if x is None else x.exp())
log = each(lambda x: x.log())
sqrt = each(lambda x: x.sqrt())
plus = each(lambda x, b: None if b is None else x + b)
there = each(lambda x: x is not None)


def ball(x):
    """Floating-point numbers as what they are: balls without a radius."""
    out = np.empty(np.shape(x), object)
    out[...] = each(lambda v: None if v == -np.inf else arb(float(v)))(x)
    return out


def rowsum(x):
    return x.sum(-1, keepdims=True)


def T(x):
    return x.swapaxes(-1, -2)


def or_one(x, A):
    """x, the sums of the rows of A, or 1 in the place of an empty sum."""
    return np.where(there(A).any(-1, keepdims=True), x, arb(1))


def softmax(A):
    E = exp(A)
    return E / or_one(rowsum(E), A)


def logsumexp(A):
    return log(exp(A).sum(-1))


def attention(Q, K, V, B, gamma):
    return softmax(plus(gamma * (Q @ T(K)), B)) @ V


def multihead(X, Z, W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O, B, gamma):
    """The sum of what the heads say; neighbours share their keys and values."""
    H, G, Y = len(W_Q), len(W_K), b_O
    for h in range(H):
        g = h // (H // G)
        Q, K, V = X @ W_Q[h] + b_Q[h], Z @ W_K[g] + b_K[g], Z @ W_V[g] + b_V[g]
        Y = Y + attention(Q, K, V, B[h], gamma[h:h + 1]) @ W_O[h]
    return Y


def layer_norm(X, alpha, beta, epsilon=1e-5):
    C = X - rowsum(X) / X.shape[-1]
    return alpha * C / sqrt(rowsum(C * C) / X.shape[-1] + arb(epsilon)) + beta


def silu(U):
    return U / (1 + exp(-U))


def cross_entropy(A, E):
    """What the probabilities of the targets lack, for each row; 0 asks for nothing."""
    lack = logsumexp(A)[..., None] - np.where(there(A), A, arb(0))
    return (ball(E) * lack).sum(-1)


def gradient(function, dY, x, k):
    """That of the sum of dY * function(*x) in the k-th argument, entry by entry."""
    x, dY = [ball(a) for a in x], ball(dY)
    out = ball(np.zeros(x[k].shape))
    for i in np.ndindex(out.shape):
        if x[k][i] is not None:
            moved = x[k].copy()
            moved[i] = arb_series([x[k][i], 1], prec=2)
            out[i] = arb_series(np.sum(dY * function(*x[:k], moved, *x[k + 1:])))[1]
    return out


def gradients(function, dY, *x):
    return [gradient(function, dY, x, k) for k in range(len(x))]
