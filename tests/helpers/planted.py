"""Mistakes that a comparison of float64 accepts: the right formulas but for something small, or for
something that cannot be seen at the numbers that were chosen.
"""

import numpy as np

import attnmath
from attnmath import (
    Weights,
    attention,
    attention_jvp,
    attention_vjp,
    check_jvp,
    check_vjp,
    dropout_attention_vjp,
    layer_norm_vjp,
    linear,
    linear_vjp,
    mlp_jvp,
    mlp_vjp,
    multihead_jvp,
    multihead_map,
    multihead_vjp,
    prove,
    self_attention_vjp,
    silu_jvp,
    softmax,
    softmax_vjp,
)

rng = np.random.default_rng(50)
N, M, D_K, D_V = 3, 4, 2, 5


def draw(*shape, size=1.0, rng=rng):
    return size * rng.normal(size=shape)


def T(x):
    return x.swapaxes(-1, -2)


def rowsum(x):
    return x.sum(-1, keepdims=True)


def rowmean(x):
    return x.mean(-1, keepdims=True)


def plain_softmax(A):
    return np.exp(A) / rowsum(np.exp(A))


def nearly(x):
    """x times 1 + 1e-9."""
    return x + x / 10**9


def off(x):
    """x times 1 + 2**-30."""
    return x * (1 + 2**-30)


def series(x):
    """The beginning of the exponential's power series, enough for small x."""
    term, total = x * 0 + 1, x * 0 + 1
    for k in range(1, 9):
        term = term * x / k
        total = total + term
    return total


# ---- planted mistakes --------------------------------------------------------------------------


def instead(vjp, **formulas):
    """vjp with other formulas for some of its gradients, from what it finds and its arguments."""
    def wrong(dY, *x, **constants):
        found = vjp(dY, *x, **constants)
        return found._replace(**{k: f(found, dY, *x, **constants) for k, f in formulas.items()})
    return wrong


def in_weights(**formulas):
    """multihead_vjp with other formulas for some fields of dW."""
    def dW(found, dY, *x):
        return found.dW._replace(**{k: f(found.dW, dY, *x) for k, f in formulas.items()})
    return instead(multihead_vjp, dW=dW)


A, DP = draw(N, M), draw(N, M)
FLAT = draw(N, M, size=1e-8)  # scores that are nearly equal
ANGLED = DP - rowsum(softmax(A) * DP)  # at right angles to the weights, row by row
CENTRED = DP - rowmean(DP)
TARGETS = np.array([[0.25, 0.5, 0.25, 0], [0, 0.5, 0, 0.5], [0.125, 0.125, 0.5, 0.25]])
HEAD = draw(N, D_K), draw(M, D_K), draw(M, D_V), draw(N, M), 0.7
DO = draw(N, D_V)
SAME = HEAD[0], HEAD[0], draw(N, D_V), draw(N, N), 0.7  # Q = K
LEVEL = DO - attention(*HEAD) * rowsum(DO * attention(*HEAD)) / rowsum(attention(*HEAD) ** 2)
SMALL = draw(N, D_K, size=1e-5), draw(M, D_K, size=1e-5), *HEAD[2:]
UNIT = *HEAD[:4], 1 + 1e-9
FACTORS = np.ones((N, M))
FACTORS[1, 2] += 2**-30


def less_rowmean(U, P):
    return P * (U - rowmean(U))


def plain_head(dO, Q, K, V, B, gamma):
    """P, dP, D of a head."""
    P = plain_softmax(gamma * (Q @ T(K)) + B)
    return P, dO @ T(V), rowsum(dO * (P @ V))


def dB_with_another_sign(found, dO, *x):
    P, dP, D = plain_head(dO, *x)
    return P * (dP + D)


def dV_of_sharper_weights(found, dO, *x):
    P, _, _ = plain_head(dO, *x)
    return T(P + P * (1 - P) / 2**30) @ dO


def dK_of_keys(found, dO, Q, K, V, B, gamma):
    P, dP, D = plain_head(dO, Q, K, V, B, gamma)
    return T(gamma * P * (dP - D)) @ K


def dB_without_R_in_D(found, dO, Q, K, V, B, gamma, R):
    P, dP, D = plain_head(dO, Q, K, V, B, gamma)
    return P * (dP * R - D)


def renormalized(Q, K, V, B, gamma, R):
    E = np.exp(gamma * (Q @ T(K)) + B) * R
    return E / rowsum(E) @ V


def weights(H, G, d, d_z, d_k, d_v):
    return Weights(draw(H, d, d_k), draw(G, d_z, d_k), draw(G, d_z, d_v), draw(H, d_v, d),
                   draw(H, d_k), draw(G, d_k), draw(G, d_v), draw(d))


def alike(W):
    """Every head the first."""
    return W._make(np.stack([part[0]] * 2) if part.ndim > 1 else part for part in W)


X, Z = draw(2, 3, 4), draw(2, 2, 3)
W = weights(2, 2, 4, 3, 2, 1)
LAYER = X, Z, W, draw(2, 3, 2), np.array([0.7, 0.4])
FAINT = *LAYER[:2], W._replace(W_K=1e-8 * W.W_K), *LAYER[3:]
ALIKE = X, Z, alike(W), draw(3, 2), np.array([0.7, 0.7])
SQUARE = draw(3, 2), draw(4, 2), weights(1, 1, 2, 2, 3, 2)
DY_ONE = draw(2, 3, 4) * [[[1]], [[1e-8]]]  # of a batch whose second entry has learned all
DY_OF_O = multihead_map(*SQUARE).O[0]


def of_the_first(found, dY, X, Z, W, B, gamma):
    return multihead_vjp(dY[:1], X[:1], Z[:1], W, B, gamma).dW.W_Q


def dZ_less_keys(found, dY, X, Z, W, B, gamma):
    past = multihead_map(X, Z, W, B, gamma)
    return multihead_vjp(dY, X, Z, W._replace(W_K=-W.W_K), B, gamma, given=past).dZ


NORM = draw(2, 4), draw(4), draw(4)
EPSILON = {"epsilon": 2**-40}


def standardized(X, epsilon=0, beside=0):
    C = X - rowmean(X)
    r = np.sqrt(rowmean(C * C) + epsilon) + beside
    return C / r, r


def dX_beside_the_root(found, dY, X, alpha, beta, epsilon):
    X_hat, r = standardized(X, beside=epsilon)
    U = dY * alpha
    return (U - rowmean(U) - X_hat * rowmean(X_hat * U)) / r


def dX_of_unit_rows(found, dY, X, alpha, beta, epsilon):
    X_hat, r = standardized(X, epsilon)
    U = dY * alpha
    return (U - rowmean(U) - X_hat * rowmean(X_hat * U) / rowmean(X_hat * X_hat)) / r


def dalpha_without_epsilon(found, dY, X, alpha, beta, epsilon):
    return (dY * standardized(X)[0]).sum(0)


def unclipped_silu_vjp(dF, U):
    S = 1 / (1 + np.exp(-U) + 2**-30)
    return dF * (S + U * S * (1 - S))


def silu_vjp_with_another_sign(dF, U):
    S = 1 / (1 + np.exp(-U))
    return dF * (S - U * S * (1 - S))


NETWORK = draw(3, 2), draw(2, 4), draw(4, size=1e-9), draw(4, 2), draw(2)
BIASED = *NETWORK[:2], draw(4), *NETWORK[3:]
SYMMETRIC = np.array([[1.5, -0.3, 0.8], [-0.3, 0.4, 0.6], [0.8, 0.6, -1.1]])
LINEAR = draw(2, 2, 3), SYMMETRIC, draw(3)

# The function, the mistake, the wrong function, its arguments, and options of a test: dY or the
# tangents, where they are chosen so that the mistake hides; constants.
PLANTED = [
    ("softmax", "2⁻³⁰ added to the sum", lambda A: np.exp(A) / (rowsum(np.exp(A)) + 2**-30), (A,)),
    ("softmax", "a series for exp, at small scores",
     lambda A: series(A) / rowsum(series(A)), (draw(N, M, size=0.05),)),
    ("softmax", "P + P(1 - P) / 10⁹", lambda A: softmax(A) * (1 + (1 - softmax(A)) / 10**9), (A,)),
    ("softmax_vjp", "dA times 1 + 10⁻⁹", instead(softmax_vjp, dA=lambda found, *_: nearly(found.dA)), (A,)),
    ("softmax_vjp", "the row sum added, where it is nearly 0",
     instead(softmax_vjp, dA=lambda _, dP, A: plain_softmax(A) * (dP + rowsum(plain_softmax(A) * dP))),
     (A,), dict(dY=ANGLED)),
    ("softmax_vjp", "2⁻³⁰ added to the temperature below dtau",
     instead(softmax_vjp, dtau=lambda found, dP, A, tau: -(found.dA * A).sum() / (tau + 2**-30)), (A, 0.6)),
    ("softmax_jvp", "the row mean for that by the weights, where scores are nearly equal",
     lambda A_dot, tau_dot, A, tau: less_rowmean((A_dot - tau_dot * A / tau) / tau, plain_softmax(A / tau)),
     (FLAT, 0.6)),
    ("logsumexp", "2⁻³⁰ added below the logarithm", lambda A: np.log(np.exp(A).sum(-1) + 2**-30), (A,)),
    ("logsumexp_vjp", "equal weights, where scores are nearly equal",
     lambda dL, A: dL[:, None] / M + 0 * A, (FLAT,)),
    ("log_softmax", "2⁻³⁰ added to the weight below the logarithm",
     lambda A: np.log(softmax(A) + 2**-30), (A,)),
    ("log_softmax_vjp", "the row sum added, where it is nearly 0",
     lambda dLambda, A: dLambda + rowsum(dLambda) * softmax(A), (A,), dict(dY=CENTRED)),
    ("log_softmax_jvp", "1 + 2⁻³⁰ times the mean",
     lambda A_dot, A: A_dot - off(rowsum(softmax(A) * A_dot)), (A,)),
    ("cross_entropy_vjp", "weights less targets, which sum to 1",
     lambda dloss, A, E: dloss * (softmax(A) - E), (A,), dict(E=TARGETS)),
    ("attention", "a term of relative size 10⁻⁸",
     lambda Q, K, V, B, gamma: attention(Q, K, V, B, gamma) + V.sum(0) / 10**8, HEAD),
    ("attention_vjp", "dQ: a term of relative size 10⁻⁸",
     instead(attention_vjp, dQ=lambda found, dO, Q, *_: found.dQ + rowsum(dO) * Q / 10**8), HEAD),
    ("attention_vjp", "dK: keys for queries, where they are the same", instead(attention_vjp, dK=dK_of_keys), SAME),
    ("attention_vjp", "dV: of weights that are sharper by 2⁻³⁰", instead(attention_vjp, dV=dV_of_sharper_weights), HEAD),
    ("attention_vjp", "dB: D added, where dO is at right angles to O",
     instead(attention_vjp, dB=dB_with_another_sign), HEAD, dict(dY=LEVEL)),
    ("attention_vjp", "dgamma: times a scale that is nearly 1",
     instead(attention_vjp, dgamma=lambda found, dO, Q, K, V, B, gamma: gamma * found.dgamma), UNIT),
    ("attention_jvp", "without the scale's tangent, of second order in small queries and keys",
     lambda Q_dot, K_dot, V_dot, B_dot, gamma_dot, *x: attention_jvp(Q_dot, K_dot, V_dot, B_dot, None, *x), SMALL),
    ("attention_jvp", "B's tangent times 1 + 2⁻³⁰",
     lambda Q_dot, K_dot, V_dot, B_dot, *x: attention_jvp(Q_dot, K_dot, V_dot, off(B_dot), *x), HEAD),
    ("dropout_attention", "rows made to sum to 1 again, where the factors are nearly 1",
     renormalized, HEAD, dict(R=FACTORS)),
    ("dropout_attention_vjp", "dB: D of all weights, where the factors are nearly 1",
     instead(dropout_attention_vjp, dB=dB_without_R_in_D), HEAD, dict(R=FACTORS)),
    ("multihead_vjp", "dX: times 1 + 10⁻⁹", instead(multihead_vjp, dX=lambda found, *_: nearly(found.dX)), LAYER),
    ("multihead_vjp", "dZ: the keys' part subtracted, where W_K is small",
     instead(multihead_vjp, dZ=dZ_less_keys), FAINT),
    ("multihead_vjp", "dW.W_Q: the first entry of the batch alone, where the other's gradient is small",
     in_weights(W_Q=of_the_first), LAYER, dict(dY=DY_ONE)),
    ("multihead_vjp", "dW.W_K: the first head's for both, where they are alike",
     in_weights(W_K=lambda dW, *_: dW.W_K[[0, 0]]), ALIKE),
    ("multihead_vjp", "dW.W_V: a term of relative size 10⁻⁸",
     in_weights(W_V=lambda dW, dY, *_: dW.W_V + dY.sum() / 10**8), LAYER),
    ("multihead_vjp", "dW.W_O: transposed, where it is symmetric", in_weights(W_O=lambda dW, *_: T(dW.W_O)),
     SQUARE, dict(dY=DY_OF_O)),
    ("multihead_vjp", "dW.b_Q: times 1 + 2⁻³⁰", in_weights(b_Q=lambda dW, *_: off(dW.b_Q)), LAYER),
    ("multihead_vjp", "dW.b_K: what is 0 but for rounding",
     in_weights(b_K=lambda dW, dY, *_: dW.b_K + dY.sum() / 2**50), LAYER),
    ("multihead_vjp", "dW.b_V: exchanged, where heads are alike", in_weights(b_V=lambda dW, *_: dW.b_V[::-1]), ALIKE),
    ("multihead_vjp", "dW.b_O: the first entry of the batch alone, where the other's gradient is small",
     in_weights(b_O=lambda dW, dY, *_: dY[0].sum(0)), LAYER, dict(dY=DY_ONE)),
    ("multihead_vjp", "dB: its square of relative size 10⁻⁸ added",
     instead(multihead_vjp, dB=lambda found, *_: found.dB + found.dB**2 / 10**8), LAYER),
    ("multihead_vjp", "dgamma: exchanged, where heads are alike",
     instead(multihead_vjp, dgamma=lambda found, *_: found.dgamma[::-1]), ALIKE),
    ("multihead_jvp", "without W_K's tangent, which is small",
     lambda X_dot, Z_dot, W_dot, *x: multihead_jvp(X_dot, Z_dot, W_dot._replace(W_K=None), *x), FAINT),
    ("self_attention_vjp", "dX: the tokens' bias for their gradient, of relative size 10⁻⁸",
     instead(self_attention_vjp, dX=lambda found, dY, X, W: found.dX + W.b_O / 10**8), SQUARE[:1] + SQUARE[2:]),
    ("layer_norm", "epsilon beside the root",
     lambda X, alpha, beta, epsilon: alpha * standardized(X, beside=epsilon)[0] + beta, NORM, EPSILON),
    ("layer_norm_vjp", "dX: epsilon beside the root", instead(layer_norm_vjp, dX=dX_beside_the_root), NORM, EPSILON),
    ("layer_norm_vjp", "dX: as if rows had the mean square 1", instead(layer_norm_vjp, dX=dX_of_unit_rows),
     NORM, EPSILON),
    ("layer_norm_vjp", "dalpha: without epsilon", instead(layer_norm_vjp, dalpha=dalpha_without_epsilon),
     NORM, EPSILON),
    ("layer_norm_vjp", "dbeta: 10⁻⁸ of dalpha added",
     instead(layer_norm_vjp, dbeta=lambda found, *_, epsilon: found.dbeta + found.dalpha / 10**8), NORM, EPSILON),
    ("silu", "a series for exp, at small entries", lambda U: U / (1 + series(-U)), (draw(3, 2, size=0.05),)),
    ("silu_vjp", "2⁻³⁰ added to the denominator", unclipped_silu_vjp, (draw(3, 2),)),
    ("silu_vjp", "the second term subtracted, where it is nearly 0", silu_vjp_with_another_sign,
     (draw(3, 2, size=1e-7),)),
    ("silu_jvp", "times 1 + 2⁻³⁰", lambda U_dot, U: off(silu_jvp(U_dot, U)), (draw(3, 2),)),
    ("mlp_vjp", "dX: the slope without b_U, which is small",
     instead(mlp_vjp, dX=lambda _, dY, X, W_U, b_U, W_D, b_D: mlp_vjp(dY, X, W_U, None, W_D, b_D).dX), NETWORK),
    ("mlp_vjp", "dW_U: a term of relative size 10⁻⁸",
     instead(mlp_vjp, dW_U=lambda found, dY, X, W_U, *_: found.dW_U + W_U / 10**8), NETWORK),
    ("mlp_vjp", "dW_D: of units without b_U, which is small",
     instead(mlp_vjp, dW_D=lambda _, dY, X, W_U, b_U, *x: mlp_vjp(dY, X, W_U, 0 * b_U, *x).dW_D), NETWORK),
    ("mlp_vjp", "db_D: times 1 + 10⁻⁹", instead(mlp_vjp, db_D=lambda found, *_: nearly(found.db_D)), NETWORK),
    ("mlp_jvp", "b_U's tangent times 1 + 2⁻³⁰",
     lambda X_dot, W_dot, b_dot, *x: mlp_jvp(X_dot, W_dot, off(b_dot), *x), BIASED),
    ("linear", "the transposed matrix, where it is symmetric", lambda X, W, b: linear(X, T(W), b), LINEAR),
    ("linear_vjp", "dX: by the matrix itself, where it is symmetric",
     instead(linear_vjp, dX=lambda _, dY, X, W, b: dY @ W), LINEAR),
    ("linear_vjp", "dW: a term of relative size 10⁻⁸",
     instead(linear_vjp, dW=lambda found, dY, X, W, b: found.dW + W / 10**8), LINEAR),
    ("linear_jvp", "the bias moves 1 + 10⁻⁹ as far",
     lambda X_dot, W_dot, b_dot, X, W, b: X_dot @ W + X @ W_dot + nearly(b_dot), LINEAR),
]


class Planted:
    """A row of the table."""

    def __init__(self, name, mistake, wrong, x, options=None):
        options = dict(options or {})
        self.mistake, self.wrong, self.x = mistake, wrong, x
        self.right = getattr(attnmath, name)
        self.dY, self.constants = options.pop("dY", None), options
        self.kind = name[-4:] if name.endswith(("_vjp", "_jvp")) else ""
        self.f = getattr(attnmath, name.removesuffix(self.kind)) if self.kind else None

    def arguments(self):
        """Of the function in floats: with a gradient or tangents of the size of the arguments."""
        own = np.random.default_rng(0)
        if self.kind == "_vjp":
            dY = self.dY if self.dY is not None else like(self.f(*self.x, **self.constants), own)
            return dY, *self.x
        return (*like(self.x, own), *self.x) if self.kind == "_jvp" else self.x

    def judge(self, function):
        if self.kind:
            check = {"_vjp": check_vjp, "_jvp": check_jvp}[self.kind]
            return check(function, self.f, *self.x, exact=True, **self.constants)
        return prove(function, self.right, *self.x, **self.constants)


def like(x, own):
    """Random numbers of the size of x, in the same places."""
    if isinstance(x, tuple):
        parts = [like(part, own) for part in x]
        return x._make(parts) if hasattr(x, "_fields") else parts
    return draw(*np.shape(x), size=np.abs(x).max(), rng=own)
