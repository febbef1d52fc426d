"""What each function means, written out with sums over entries; no formula of ours.

The definitions run on ordinary numbers, and on those of exact arithmetic: all that they ask of an
entry is + - * /, the exponential, the logarithm, the root, and whether it is -inf.
"""

import numpy as np

HIDDEN = -np.inf
exp, log = np.frompyfunc(np.exp, 1, 1), np.frompyfunc(np.log, 1, 1)


def entries(*x):
    """Each argument as a plain array of its entries."""
    arrays = []
    for one in x:
        array = np.empty(np.shape(one), object)
        for k in np.ndindex(array.shape):
            array[k] = one[k] if isinstance(one, np.ndarray) else one
        arrays.append(array)
    return arrays


def by_rows(function, A, *others):
    """The function of each row, which is given as a list, and of the others' rows beside it."""
    A, *others = np.broadcast_arrays(A, *others)
    rows = [function(*(list(x[k]) for x in (A, *others))) for k in np.ndindex(A.shape[:-1])]
    array = np.empty((len(rows), *np.shape(rows[0])), object)
    for k in np.ndindex(array.shape):
        array[k] = rows[k[0]][k[1]] if k[1:] else rows[k[0]]
    return array.reshape(A.shape[:-1] + array.shape[1:])


def total(row):
    """The sum of the exponentials of a row; nothing is added for -inf."""
    return sum(exp(a) for a in row if a != HIDDEN)


def softmax(A, tau=1):
    def of_row(a, t):
        a = [x if x == HIDDEN else x / y for x, y in zip(a, t)]
        return [0 if x == HIDDEN else exp(x) / total(a) for x in a]

    return by_rows(of_row, *entries(A, tau))


def logsumexp(A):
    def of_row(a):
        return HIDDEN if all(x == HIDDEN for x in a) else log(total(a))

    return by_rows(of_row, *entries(A))


def log_softmax(A):
    def of_row(a):
        return [HIDDEN if x == HIDDEN else x - log(total(a)) for x in a]

    return by_rows(of_row, *entries(A))


def cross_entropy(A, E):
    zeros = E.zeros() if hasattr(E, "zeros") else E == 0  # of letters: 0 for all numbers
    Lambda, E = entries(log_softmax(A), E)
    return -sum(E[k] * Lambda[k] for k in np.ndindex(E.shape) if not zeros[k])


def default_scale(d_k, Q):
    """1 / sqrt(d_k), a number of the same kind as those of Q."""
    return 1 / np.sqrt(Q.number(d_k) if hasattr(Q, "number") else d_k)


def attention_map(Q, K, V, B=0, gamma=None, R=1):
    gamma = default_scale(np.shape(Q)[-1], Q) if gamma is None else gamma
    Q, K, V, B, gamma, R = entries(Q, K, V, 0 if B is None else B, gamma, 1 if R is None else R)
    n, m, d_v = Q.shape[-2], K.shape[-2], V.shape[-1]
    batch = np.broadcast_shapes(Q.shape[:-2], K.shape[:-2])
    Q, K = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (Q, K))
    B, gamma = (np.broadcast_to(x, (*batch, n, m)) for x in (B, gamma))
    A = np.empty((*batch, n, m), object)
    for k in np.ndindex(A.shape):
        *b, i, j = k
        score = sum(x * y for x, y in zip(Q[(*b, i)], K[(*b, j)]))
        A[k] = HIDDEN if B[k] == HIDDEN else gamma[k] * score + B[k]
    P = softmax(A)
    batch = np.broadcast_shapes(batch, V.shape[:-2])
    weights, V = np.broadcast_to(P * R, (*batch, n, m)), np.broadcast_to(V, (*batch, m, d_v))
    O = np.empty((*batch, n, d_v), object)
    for k in np.ndindex(O.shape):
        *b, i, a = k
        O[k] = sum(weights[(*b, i, j)] * V[(*b, j, a)] for j in range(m))
    return A, P, logsumexp(A), O


def dropout_mask(U, rho):
    return np.array([0 if u < rho else 1 / (1 - rho) for u in U.flat]).reshape(U.shape)


def attention(Q, K, V, B=0, gamma=None, R=1):
    return attention_map(Q, K, V, B, gamma, R)[-1]


def flash_attention(Q, K, V, B=0, gamma=None, R=1, tile=None):
    return attention(Q, K, V, B, gamma, R)


def flash_output(Q, K, V, B=0, gamma=None, R=1, tile=None, with_L=True):
    """The output, and the log-sum-exp of the scores."""
    O, L = attention_map(Q, K, V, B, gamma, R)[-1], attention_map(Q, K, V, B, gamma)[-2]
    return O, np.broadcast_to(L, O.shape[:-1])


def merge(O_a, L_a, O_b, L_b):
    """The mean of two outputs, of as many keys as the exponentials of L say."""
    O_a, L_a, O_b, L_b = entries(O_a, L_a, O_b, L_b)
    O, L = np.empty(O_a.shape, object), np.empty(L_a.shape, object)
    for k in np.ndindex(L.shape):
        mass = total([L_a[k], L_b[k]])
        L[k] = HIDDEN if mass == 0 else log(mass)
        shares = [0 if x == HIDDEN else exp(x) / mass for x in (L_a[k], L_b[k])]
        O[k] = shares[0] * O_a[k] + shares[1] * O_b[k]
    return O, L


def linear(X, W, b=None):
    X, W, b = entries(X, W, 0 if b is None else b)
    b = np.broadcast_to(b, W.shape[-1:]) if b.ndim < 2 else b[0]
    Y = np.empty((*X.shape[:-1], W.shape[-1]), object)
    for k in np.ndindex(Y.shape):
        Y[k] = sum(X[k[:-1]][c] * W[c, k[-1]] for c in range(len(W))) + b[k[-1]]
    return Y


def multihead_map(X, Z, W, B=None, gamma=None, R=None):
    H, G = len(W.W_Q), len(W.W_K)

    def heads(X, W, b, h):
        return linear(X, W[h], None if b is None else b[h])

    def part(x, h):
        """Head h's part of what may have an axis of heads: a bias, or R."""
        return x[..., min(h, np.shape(x)[-3] - 1), :, :] if np.ndim(x) > 2 else x

    gamma = default_scale(W.W_Q.shape[-1], X) if gamma is None else gamma
    B, gamma, R = (x if x is None else entries(x)[0] for x in (B, gamma, R))
    found = []
    for h in range(H):
        g = [g for g in range(G) for _ in range(H // G)][h]
        QKV = heads(X, W.W_Q, W.b_Q, h), heads(Z, W.W_K, W.b_K, g), heads(Z, W.W_V, W.b_V, g)
        scale = gamma[h] if gamma.ndim else gamma[()]
        A, P, L, O = attention_map(*QKV, part(B, h), scale, part(R, h))
        found.append((*QKV, P, O, linear(O, W.W_O[h])))
    Q, K, V, P, O, Y = ([x[k] for x in found] for k in range(6))
    K, V = K[::H // G], V[::H // G]
    b_O = 0 if W.b_O is None else entries(W.b_O)[0]
    return *(np.stack(x, -3) for x in (Q, K, V, P, O)), sum(Y) + b_O


def multihead(X, Z, W, B=None, gamma=None, R=None):
    return multihead_map(X, Z, W, B, gamma, R)[-1]


def turned_pairs(X, theta, t, layout):
    """Each pair (x, y) of the row of place t turned by the angle t theta."""
    Y, pairs = entries(X)[0], len(theta)
    t = np.broadcast_to(t, Y.shape[:-1])
    for place in np.ndindex(t.shape):
        for p in range(pairs):
            a, b = (p, p + pairs) if layout == "half_split" else (2 * p, 2 * p + 1)
            x, y, angle = Y[(*place, a)], Y[(*place, b)], int(t[place]) * theta[p]
            Y[(*place, a)] = x * np.cos(angle) - y * np.sin(angle)
            Y[(*place, b)] = x * np.sin(angle) + y * np.cos(angle)
    return Y


def latent_attention(X, W, theta, B=None, gamma=None, positions=None, layout="half_split", R=None):
    """Each head by itself, with the turned features behind the others."""
    t = np.arange(X.shape[-2]) if positions is None else np.asarray(positions)
    gamma = default_scale(W.W_UQ.shape[-1] + W.W_KR.shape[-1], X) if gamma is None else gamma
    B, gamma, R = (x if x is None else entries(x)[0] for x in (B, gamma, R))
    C_Q, C_KV = linear(X, W.W_DQ), linear(X, W.W_DKV)
    K_R, Y = turned_pairs(linear(X, W.W_KR), theta, t, layout), 0
    for h in range(len(W.W_UQ)):
        own_B, own_R = (x[..., min(h, np.shape(x)[-3] - 1), :, :] if np.ndim(x) > 2 else x for x in (B, R))
        Q_R = turned_pairs(linear(C_Q, W.W_QR[h]), theta, t, layout)
        Q = np.concatenate([linear(C_Q, W.W_UQ[h]), Q_R], -1)
        K = np.concatenate([linear(C_KV, W.W_UK[h]), K_R], -1)
        scale = gamma[h] if gamma.ndim else gamma[()]
        O = attention_map(Q, K, linear(C_KV, W.W_UV[h]), own_B, scale, own_R)[-1]
        Y = Y + linear(O, W.W_O[h])
    return Y


def layer_norm(X, alpha, beta, epsilon):
    X, alpha, beta, epsilon = entries(X, alpha, beta, epsilon)
    def of_row(x, alpha, beta):
        mean = sum(x) / len(x)
        r = np.sqrt(sum((a - mean) * (a - mean) for a in x) / len(x) + epsilon[()])
        return [a * (b - mean) / r + c for a, b, c in zip(alpha, x, beta)]

    return by_rows(of_row, X, alpha, beta)


def silu(U):
    (U,) = entries(U)
    return U / (1 + exp(-U))


def mlp(X, W_U, b_U, W_D, b_D):
    return linear(silu(linear(X, W_U, b_U)), W_D, b_D)


def rms_norm(X, alpha, epsilon):
    X, alpha, epsilon = entries(X, alpha, epsilon)

    def of_row(x, alpha):
        r = np.sqrt(sum(a * a for a in x) / len(x) + epsilon[()])
        return [a * b / r for a, b in zip(alpha, x)]

    return by_rows(of_row, X, alpha)


def softcap(S, c):
    S, c = np.broadcast_arrays(*entries(S, c))
    return c * (1 - 2 / (1 + exp(2 * S / c)))


def over_values(P, V):
    """Weights times values."""
    P, V = entries(P, V)
    batch = np.broadcast_shapes(P.shape[:-2], V.shape[:-2])
    P, V = np.broadcast_to(P, (*batch, *P.shape[-2:])), np.broadcast_to(V, (*batch, *V.shape[-2:]))
    O = np.empty((*P.shape[:-1], V.shape[-1]), object)
    for k in np.ndindex(O.shape):
        *b, i, a = k
        O[k] = sum(P[(*b, i, j)] * V[(*b, j, a)] for j in range(V.shape[-2]))
    return O


def scores_before(Q, K, V, gamma=None):
    """Scaled products of queries and keys."""
    return attention_map(Q, K, V, None, gamma)[0]


def with_mask(A, B):
    """Scores and a bias; nothing is added where it is -inf."""
    A, B = np.broadcast_arrays(*entries(A, 0 if B is None else B))
    return by_rows(lambda a, b: [HIDDEN if y == HIDDEN else x + y for x, y in zip(a, b)], A, B)


def qk_norm_attention(Q, K, V, alpha_Q, alpha_K, B=None, gamma=None, epsilon=0, R=1):
    gamma = default_scale(np.shape(Q)[-1], Q) if gamma is None else gamma
    return attention(rms_norm(Q, alpha_Q, epsilon), rms_norm(K, alpha_K, epsilon), V, B, gamma, R)


def capped_attention(Q, K, V, c, B=None, gamma=None, R=1):
    return over_values(softmax(with_mask(softcap(scores_before(Q, K, V, gamma), c), B)) * R, V)


def with_sinks(A, sigma):
    """Scores with the sinks in front of each row, and how many there are."""
    A, sigma = entries(A, sigma)
    sigma = sigma.reshape(*sigma.shape, *[1] * (2 - sigma.ndim)) if A.ndim > 2 else sigma.reshape(1, -1)
    rows = np.broadcast_to(sigma[:, None, :] if A.ndim > 2 else sigma, (*A.shape[:-1], sigma.shape[-1]))
    return np.concatenate([rows, A], axis=-1), sigma.shape[-1]


def sink_softmax(A, sigma):
    A, count = with_sinks(A, sigma)
    return softmax(A)[..., count:]


def sink_attention(Q, K, V, sigma, B=None, gamma=None, R=1):
    """The sinks are keys whose value is zero; dropout leaves them alone."""
    A = attention_map(Q, K, V, B, gamma)[0]
    batch = np.broadcast_shapes(A.shape[:-2], np.shape(V)[:-2])
    A = np.broadcast_to(A, (*batch, *A.shape[-2:]))
    return over_values(sink_softmax(A, sigma) * R, V)


def sigmoid_attention(Q, K, V, B=None, gamma=None, R=1):
    A = attention_map(Q, K, V, B, gamma)[0]
    P = by_rows(lambda a: [0 if x == HIDDEN else 1 / (1 + exp(-x)) for x in a], A)
    return over_values(P * R, V)
