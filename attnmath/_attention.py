"""One attention head, with any number of leading axes, and its derivatives."""

from typing import NamedTuple

from attnmath import _arguments as given
from attnmath._arrays import Array, Scalar, plus, rowsum, still, sum_to, transpose
from attnmath._softmax import logsumexp, softmax


class AttentionMap(NamedTuple):
    """Scores A, weights P, log-sum-exp L of the scores, output O."""

    A: Array
    P: Array
    L: Array
    O: Array  # noqa: E741


class AttentionGradients(NamedTuple):
    """One gradient for each argument, of its shape; dB is None where B was None."""

    dQ: Array
    dK: Array
    dV: Array
    dB: Array | None
    dgamma: Array


def attention_map(
    Q: Array, K: Array, V: Array, B: Array | None = None, gamma: Scalar | None = None
) -> AttentionMap:
    """All that a head computes on its way: scores, weights, log-sum-exp, output.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma ()
    -> A (..., n, m), P (..., n, m), L (..., n), O (..., n, d_v)

    B None is 0, gamma None is 1/sqrt(d_k). Leading axes broadcast. Where B is -inf, P is 0;
    a row of B that is -inf everywhere gives P = 0, O = 0, L = -inf.
    Raises ValueError for a shape that does not fit or NaN or +inf in B, TypeError for
    anything but floating-point arrays of one library and precision.
    Derived in chapters/attention_map.md, eq:attention_map.
    """
    gamma = _head("attention_map", Q, K, V, B, gamma)
    A = plus(gamma * (Q @ transpose(K)), B)
    P = softmax(A)
    L = logsumexp(A)
    O = P @ V  # noqa: E741
    return AttentionMap(A, P, L, O)


def attention(
    Q: Array, K: Array, V: Array, B: Array | None = None, gamma: Scalar | None = None
) -> Array:
    """Each query's mean of the values, weighted by the softmax of its scaled scores.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma ()
    -> O (..., n, d_v)

    Conditions and errors are those of attention_map.
    Derived in chapters/attention_map.md, eq:attention.
    """
    gamma = _head("attention", Q, K, V, B, gamma)
    P = softmax(plus(gamma * (Q @ transpose(K)), B))
    return P @ V


def attention_vjp(
    dO: Array,
    Q: Array,
    K: Array,
    V: Array,
    B: Array | None = None,
    gamma: Scalar | None = None,
) -> AttentionGradients:
    """The gradients of the loss in all arguments of attention, from that in its output.

    dO (..., n, d_v), Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m),
    gamma () -> dQ, dK, dV, dB, dgamma, each of the shape of its argument

    dB is None where B is None; dgamma is there also for the default gamma, as a number.
    Each is summed over the axes along which its argument was broadcast. A row of B that is
    -inf everywhere passes back 0. Raises what attention_map raises.
    Derived in chapters/attention.md, eq:attention_vjp.
    """
    gamma = _head("attention_vjp", Q, K, V, B, gamma, dO=dO)
    S = Q @ transpose(K)
    P = softmax(plus(gamma * S, B))
    dV = transpose(P) @ dO
    dP = dO @ transpose(V)
    dA = P * (dP - rowsum(P * dP))
    dQ = gamma * dA @ K
    dK = gamma * transpose(dA) @ Q
    dB = None if B is None else sum_to(dA, B)
    dgamma = sum_to(dA * S, gamma)
    return AttentionGradients(sum_to(dQ, Q), sum_to(dK, K), sum_to(dV, V), dB, dgamma)


def attention_jvp(
    Q_dot: Array | None,
    K_dot: Array | None,
    V_dot: Array | None,
    B_dot: Array | None,
    gamma_dot: Scalar | None,
    Q: Array,
    K: Array,
    V: Array,
    B: Array | None = None,
    gamma: Scalar | None = None,
) -> Array:
    """The tangent of the output, from the tangents of all arguments.

    Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), B_dot (..., n, m),
    gamma_dot (), then the arguments of attention -> O_dot (..., n, d_v)

    A tangent of None is zero. A row of B that is -inf everywhere does not move: 0.
    Raises what attention_map raises.
    Derived in chapters/attention.md, eq:attention_jvp.
    """
    dots = dict(Q_dot=Q_dot, K_dot=K_dot, V_dot=V_dot, B_dot=B_dot, gamma_dot=gamma_dot)
    gamma = _head("attention_jvp", Q, K, V, B, gamma, dots=dots)
    Q_dot, K_dot, V_dot = still(Q_dot, Q), still(K_dot, K), still(V_dot, V)
    S = Q @ transpose(K)
    S_dot = Q_dot @ transpose(K) + Q @ transpose(K_dot)
    P = softmax(plus(gamma * S, B))
    A_dot = plus(still(gamma_dot, None) * S + gamma * S_dot, B_dot)
    P_dot = P * (A_dot - rowsum(P * A_dot))
    return P_dot @ V + P @ V_dot


def _head(
    function: str,
    Q: Array,
    K: Array,
    V: Array,
    B: Array | None,
    gamma: Scalar | None,
    dO: Array | None = None,
    dots: dict | None = None,
) -> Scalar:
    """Checks the arguments of the functions above; gamma as a number or an array."""
    given.arrays(function, Q=Q, K=K, V=V, B=B, dO=dO)
    given.shaped(function, "Q", Q, "..., n, d_k", Q.ndim >= 2)
    given.shaped(function, "K", K, "..., m, d_k", K.ndim >= 2)
    given.shaped(function, "V", V, "..., m, d_v", V.ndim >= 2)
    (n, d_k), m = Q.shape[-2:], K.shape[-2]
    of_Q, of_K = f"Q of shape {tuple(Q.shape)}", f"K of shape {tuple(K.shape)}"
    given.shaped(function, "K", K, f"..., m, {d_k}", K.shape[-1] == d_k, of_Q)
    given.shaped(function, "V", V, f"..., {m}, d_v", V.shape[-2] == m, of_K)
    lead = given.leading(function, Q=Q, K=K, V=V)
    if B is not None:
        given.broadcasts(function, "B", B, (*lead, n, m), "the scores")
        given.below_infinity(function, "B", B)
    if dO is not None:
        given.like(function, "dO", dO, (*lead, n, V.shape[-1]), "the output")
    for name, x in (dots or {}).items():
        argument = name.removesuffix("_dot")
        if argument == "gamma" or x is None:
            continue
        given.arrays(function, Q=Q, **{name: x})
        of = dict(Q=Q, K=K, V=V, B=B)[argument]
        given.like(function, name, x, () if of is None else of.shape, argument)
    if gamma is None:
        return given.default_scale(function, d_k)
    return given.number(function, "gamma", gamma, (*lead, n, m), "the scores", Q=Q)
