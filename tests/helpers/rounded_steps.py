"""Balls that contain every rounded answer: the steps that the package takes, and their roundings.

A rounding multiplies by e^delta, where delta is at most 2^-53 in size, if no number is too
small; so k of them make the ball x * e^[-k u, k u]. exp and log are right to two roundings,
tanh to four. Each function here takes balls, and has the steps of its namesake.
"""

import numpy as np
from flint import arb

from enclosures import T, each, exp, log, or_one, plus, rowsum, sqrt, there

rounded = each(lambda x, k: None if x is None else x * arb(0, k * 2.0**-53).exp())
larger = each(lambda x, y: y if x is None else x if y is None else x.max(y))
tanh = each(lambda x: x.tanh())


def total(x):
    """The sum of each row: a term goes through each addition at most, whatever the order."""
    return rowsum(rounded(x, x.shape[-1] - 1))


def mean(x):
    return rounded(total(x) / x.shape[-1], 1)


def product(X, Y):
    return rounded(X, X.shape[-1]) @ Y


def exponentials(A):
    """The largest score of each row, and the exponentials of all less it."""
    top = larger.reduce(A, axis=-1, keepdims=True)
    top = np.where(there(top), top, arb(0))
    return top, rounded(exp(rounded(plus(-top, A), 1)), 2)


def softmax(A):
    E = exponentials(A)[1]
    return rounded(E / or_one(total(E), A), 1)


def logsumexp(A):
    top, E = exponentials(A)
    return rounded(rounded(log(total(E)), 2) + top, 1)[..., 0]


def softmax_vjp(dP, A):
    P = softmax(A)
    D = total(rounded(P * dP, 1))
    return rounded(P * rounded(dP - D, 1), 1)


def cross_entropy_vjp(dloss, A, E):
    L = rounded(-dloss * E, 1)
    return rounded(L - rounded(total(L) * softmax(A), 1), 1)


def silu_vjp(dF, U):
    S = rounded(1 + rounded(tanh(U / 2), 4), 1) / 2
    return rounded(dF * rounded(S + rounded(U * S * rounded(1 - S, 1), 2), 1), 1)


def layer_norm_vjp(dY, X, alpha, epsilon=1e-5):
    C = rounded(X - mean(X), 1)
    r = rounded(sqrt(rounded(mean(rounded(C * C, 1)) + arb(epsilon), 1)), 1)
    X_hat = rounded(C / r, 1)
    U = rounded(dY * alpha, 1)
    along = rounded(X_hat * mean(rounded(X_hat * U, 1)), 1)
    dX = rounded(rounded(rounded(U - mean(U), 1) - along, 1) / r, 1)
    return dX, total(T(rounded(dY * X_hat, 1)))[:, 0], total(T(dY))[:, 0]


def multihead_vjp(dY, X, Z, W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O, B, gamma):
    H, share = len(W_Q), len(W_Q) // len(W_K)

    def affine(X, W, b):
        return rounded(product(X, W) + b[..., None, :], 1)

    def grouped(x):
        """The heads that share, added up."""
        return rounded(x.reshape(-1, share, *x.shape[1:]), share - 1).sum(1)

    def together(x, W):
        """The sum over all heads of x_h W_h^T, in one product."""
        return rounded(x @ T(W), H * W.shape[-1]).sum(0)

    Q = affine(X, W_Q, b_Q)
    K, V = (np.repeat(affine(Z, *w), share, 0) for w in ((W_K, b_K), (W_V, b_V)))
    scale = gamma[:, None, None]
    P = softmax(rounded(plus(product(rounded(scale * Q, 1), T(K)), B), 1))
    O, dO = product(P, V), product(dY, T(W_O))
    D = total(rounded(dO * O, 1))
    dA = rounded(P * rounded(product(dO, T(V)) - D, 1), 1)
    U = product(dA, K)
    dQ = rounded(scale * U, 1)
    dK = grouped(product(T(dA), rounded(scale * Q, 1)))
    dV = grouped(product(T(P), dO))
    dZ = rounded(together(dK, W_K) + together(dV, W_V), 1)
    dgamma = total(rounded(Q * U, 1).reshape(H, -1))[:, 0]
    dW = [product(T(X), dQ), product(T(Z), dK), product(T(Z), dV), product(T(O), dY)]
    db = [total(T(x))[..., 0] for x in (dQ, dK, dV, dY)]
    return together(dQ, W_Q), dZ, *dW, *db, dA, dgamma
