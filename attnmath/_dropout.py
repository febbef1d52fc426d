"""One attention head that drops some of its weights, and its derivatives."""

from attnmath._arguments import draws, head
from attnmath._arrays import Array, Scalar, T, plus, reached, rowsum, sum_to, times
from attnmath._attention import AttentionGradients
from attnmath._softmax import softmax


def dropout_mask(U: Array, rho: Scalar) -> Array:
    """The factors of the weights: 0 at the rate rho, 1 / (1 - rho) for the others.

    U (..., n, m), rho () -> R (..., n, m)

    U are uniform draws from [0, 1), made by the caller: the same U gives the same R
    again. Raises TypeError unless U is an array of floating-point numbers, ValueError
    for draws outside of [0, 1) and for a rate outside of it.
    Derived in chapters/dropout.md, eq:dropout_mask.
    """
    U, rho = draws("dropout_mask", U, rho)
    return reached(U, rho) / (1 - rho)


def dropout_attention(
    Q: Array, K: Array, V: Array, B: Array | None = None, gamma: Scalar | None = None,
    *, R: Array | None = None,
) -> Array:
    """The output of a head whose weights are multiplied by R, entry by entry.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma (),
    R (..., n, m) -> O (..., n, d_v)

    R is what dropout_mask gives, broadcast against A; None is no dropout. The rows of P
    * R need not sum to 1. Conditions and errors as for attention_map.
    Derived in chapters/dropout.md, eq:dropout_attention.
    """
    Q, K, V, B, gamma, R = head("dropout_attention", Q, K, V, B, gamma, R=R)
    A = plus(gamma * (Q @ T(K)), B)
    P = softmax(A)
    return times(P, R) @ V


def dropout_attention_vjp(
    dO: Array, Q: Array, K: Array, V: Array,
    B: Array | None = None, gamma: Scalar | None = None, *, R: Array | None = None,
) -> AttentionGradients:
    """The gradients of the loss in all inputs of a head, with the R of the way forward.

    dO (..., n, d_v), Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m),
    gamma (), R (..., n, m) -> dQ, dK, dV, dB, dgamma, each of the shape of its argument

    R is a constant and has no gradient; another R than on the way forward gives the
    gradients of another function. Conditions and errors as for attention_vjp.
    Derived in chapters/dropout.md, eq:dropout_attention_vjp.
    """
    Q, K, V, B, gamma, R, dO = head(
        "dropout_attention_vjp", Q, K, V, B, gamma, R=R, dO=dO
    )
    P = softmax(plus(gamma * (Q @ T(K)), B))
    dV = T(times(P, R)) @ dO
    dP = times(dO @ T(V), R)
    dA = P * (dP - rowsum(P * dP))
    dQ = gamma * dA @ K
    dK = T(gamma * dA) @ Q
    dB = dA
    dgamma = dA * (Q @ T(K))
    found = dQ, dK, dV, dB, dgamma
    return AttentionGradients(*map(sum_to, found, (Q, K, V, B, gamma)))


def dropout_attention_jvp(
    Q_dot: Array | None, K_dot: Array | None, V_dot: Array | None,
    B_dot: Array | None, gamma_dot: Scalar | None,
    Q: Array, K: Array, V: Array,
    B: Array | None = None, gamma: Scalar | None = None, *, R: Array | None = None,
) -> Array:
    """The tangent of the output of a head with dropout, from those of all its inputs.

    Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), B_dot (..., n, m),
    gamma_dot (), then the inputs of dropout_attention -> O_dot (..., n, d_v)

    A tangent has the shape of its argument; None is zero. R does not move. Conditions
    and errors as for attention_map.
    Derived in chapters/dropout.md, eq:dropout_attention_jvp.
    """
    dots = dict(Q_dot=Q_dot, K_dot=K_dot, V_dot=V_dot, B_dot=B_dot, gamma_dot=gamma_dot)
    name = "dropout_attention_jvp"
    Q, K, V, B, gamma, R, *dots = head(name, Q, K, V, B, gamma, R=R, **dots)
    Q_dot, K_dot, V_dot, B_dot, gamma_dot = dots
    P = softmax(plus(gamma * (Q @ T(K)), B))
    A_dot = gamma * (Q_dot @ T(K) + Q @ T(K_dot)) + gamma_dot * (Q @ T(K)) + B_dot
    mu = rowsum(P * A_dot)
    P_dot = P * (A_dot - mu)
    return times(P_dot, R) @ V + times(P, R) @ V_dot
