"""What attention is compared with: a recurrent network, and two recurrences that attend.

Derived in chapters/comparisons.md.
"""

from attnmath._arrays import Array, T, exp, namespace, nonzero, real, rowsum, shift, tanh
from attnmath._layer_arrays import over_tokens
from attnmath._projections import linear, linear_vjp


def stacked(rows: list) -> Array:
    """Rows (..., 1, d), one below the other: (..., n, d)."""
    return namespace(rows[0]).concat(rows, axis=-2)


def each_row(*arrays: Array) -> list:
    """The rows of the arrays, together: for each i a tuple of (..., 1, d)."""
    n = arrays[0].shape[-2]
    return [tuple(x[..., i : i + 1, :] for x in arrays) for i in range(n)]


def recurrent(X: Array, W_X: Array, W_S: Array, b: Array | None = None) -> Array:
    """The states of a recurrent network, each made of a token and the state before.

    X (..., n, d), W_X (d, d_u), W_S (d_u, d_u), b (d_u,) -> S (..., n, d_u)

    The state before the first token is zero.
    """
    S, before = [], 0
    for (u,) in each_row(linear(X, W_X, b)):
        S.append(tanh(u + before))
        before = S[-1] @ W_S
    return stacked(S)


def recurrent_vjp(dS: Array, X: Array, W_X: Array, W_S: Array, b: Array | None = None) -> tuple:
    """The gradients dX, dW_X, dW_S, db of the loss, from that in the states, dS."""
    S, dU, later = recurrent(X, W_X, W_S, b), [], 0
    for ds, s in each_row(dS, S)[::-1]:
        dU.append((ds + later) * (1 - s * s))
        later = dU[-1] @ T(W_S)
    dU = stacked(dU[::-1])
    dX, dW_X, db = linear_vjp(dU, X, W_X, b)
    dW_S = over_tokens(S[..., :-1, :], dU[..., 1:, :])
    return dX, dW_X, dW_S, db


def by_keys(A: Array, V: Array) -> Array:
    """The output of a head, key by key; the state is (mu, sigma, O).

    A (..., n, m), V (..., m, d_v) -> O (..., n, d_v)

    Keys with a score of -inf are passed over.
    """
    mu = A[..., :1]
    sigma = exp(shift(mu, mu))
    O = sigma * V[..., :1, :]
    for j in range(1, A.shape[-1]):
        before, a, v = mu, A[..., j : j + 1], V[..., j : j + 1, :]
        mu = namespace(A).where(real(a) > real(mu), a, mu)
        p = exp(shift(a, mu))
        sigma = exp(shift(before, mu)) * sigma + p
        O = O + p / nonzero(sigma) * (v - O)
    return O


def linear_attention(Q: Array, K: Array, V: Array) -> Array:
    """Each query's mean of the values up to its own, weighted by <q, k>; by a recurrence.

    Q (..., n, d_k), K (..., n, d_k), V (..., n, d_v), Q and K positive -> O (..., n, d_v)

    The state is (S, z).
    """
    O, S, z = [], 0, 0
    for q, k, v in each_row(Q, K, V):
        S, z = S + T(k) @ v, z + k
        O.append(q @ S / rowsum(q * z))
    return stacked(O)


def linear_attention_vjp(dO: Array, Q: Array, K: Array, V: Array) -> tuple:
    """dQ, dK, dV of linear_attention: one recurrence forwards, one from the end."""
    dQ, parts, S, z = [], [], 0, 0
    for do, q, k, v in each_row(dO, Q, K, V):
        S, z = S + T(k) @ v, z + k
        sigma = rowsum(q * z)
        D = rowsum(do * (q @ S / sigma))
        dQ.append((do @ T(S) - D * z) / sigma)
        parts.append((T(q) @ do / sigma, D / sigma * q, k, v))
    dK, dV, G, g = [], [], 0, 0
    for from_S, from_z, k, v in parts[::-1]:
        G, g = G + from_S, g + from_z
        dK.append(v @ T(G) - g)
        dV.append(k @ G)
    return stacked(dQ), stacked(dK[::-1]), stacked(dV[::-1])
