"""Heads whose scores are kept small: by normed queries and keys, or by a cap."""

from typing import Annotated, Generic, NamedTuple

from attnmath._formulas.attention import attention_jvp, attention_vjp, weighted_jvp, weighted_vjp
from attnmath._formulas.norms_and_caps import Added, normed, normed_jvp, normed_vjp, softcap
from attnmath._formulas.softmax import softmax
from attnmath._given.checked import checked
from attnmath._given.letters import (
    AnyScalar,
    Bias,
    Factors,
    Keys,
    Kind,
    Outputs,
    Queries,
    Scale,
    ScaleGradient,
    Values,
    cap,
)
from attnmath._words.arrays import T, plus, summed, tanh, times

PerKeyFeature = Annotated[Kind, "d_k"]
HeadCap = Annotated[AnyScalar, "to ... n m", cap]
HeadCapGradient = Annotated[Kind, "to ... n m"]


class QKNormGradients(NamedTuple, Generic[Kind]):
    """Of qk_norm_attention, each of its argument's shape; None for B = None."""

    dQ: Queries[Kind]
    dK: Keys[Kind]
    dV: Values[Kind]
    dalpha_Q: PerKeyFeature[Kind]
    dalpha_K: PerKeyFeature[Kind]
    dB: Bias[Kind] | None
    dgamma: ScaleGradient[Kind]


class CappedGradients(NamedTuple, Generic[Kind]):
    """Of capped_attention, each of its argument's shape; None for B = None."""

    dQ: Queries[Kind]
    dK: Keys[Kind]
    dV: Values[Kind]
    dc: HeadCapGradient[Kind]
    dB: Bias[Kind] | None
    dgamma: ScaleGradient[Kind]


@checked
def qk_norm_attention(
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    alpha_Q: PerKeyFeature[Kind], alpha_K: PerKeyFeature[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, epsilon: Added = 1e-6, R: Factors[Kind] | None = None,
) -> Outputs[Kind]:
    """The output of a head whose queries and keys are normed before they meet.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), alpha_Q (d_k,), alpha_K (d_k,),
    B (..., n, m), gamma (), epsilon (), R (..., n, m) -> O (..., n, d_v)

    The gains alpha_Q and alpha_K are shared by all leading axes. Of B, gamma and R as
    for attention, of epsilon as for rms_norm; errors as for both.
    Derived in chapters/norms_and_caps.md, eq:qk_norm_attention.
    """
    r_Q, Q_hat, Q_tilde = normed(Q, alpha_Q, epsilon)
    r_K, K_hat, K_tilde = normed(K, alpha_K, epsilon)
    A = plus(gamma * (Q_tilde @ T(K_tilde)), B)
    P = softmax(A)
    return times(P, R) @ V


@checked
def qk_norm_attention_vjp(
    dO: Outputs[Kind],
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    alpha_Q: PerKeyFeature[Kind], alpha_K: PerKeyFeature[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, epsilon: Added = 1e-6, R: Factors[Kind] | None = None,
) -> QKNormGradients[Kind]:
    """The gradients of the loss in all inputs of a head with QK-norm.

    dO (..., n, d_v), then the arguments of qk_norm_attention
    -> dQ, dK, dV, dalpha_Q, dalpha_K, dB, dgamma, each of the shape of its argument

    dgamma is that of a learned temperature, which is 1 / gamma. Each is summed over the
    axes along which its argument was broadcast; dB is None if B is None. Conditions and
    errors as for qk_norm_attention.
    Derived in chapters/norms_and_caps.md, eq:qk_norm_attention_vjp.
    """
    r_Q, Q_hat, Q_tilde = normed(Q, alpha_Q, epsilon)
    r_K, K_hat, K_tilde = normed(K, alpha_K, epsilon)
    given = dO, Q_tilde, K_tilde, V, B, gamma
    dQ_tilde, dK_tilde, dV, dB, dgamma = attention_vjp(*given, R=R)
    dQ_hat, dQ, dalpha_Q = normed_vjp(dQ_tilde, r_Q, Q_hat, alpha_Q)
    dK_hat, dK, dalpha_K = normed_vjp(dK_tilde, r_K, K_hat, alpha_K)
    return QKNormGradients(dQ, dK, dV, dalpha_Q, dalpha_K, dB, dgamma)


@checked
def qk_norm_attention_jvp(
    Q_dot: Queries[Kind] | None, K_dot: Keys[Kind] | None, V_dot: Values[Kind] | None,
    alpha_Q_dot: PerKeyFeature[Kind] | None, alpha_K_dot: PerKeyFeature[Kind] | None,
    B_dot: Bias[Kind] | None, gamma_dot: Scale | None,
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    alpha_Q: PerKeyFeature[Kind], alpha_K: PerKeyFeature[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, epsilon: Added = 1e-6, R: Factors[Kind] | None = None,
) -> Outputs[Kind]:
    """The tangent of the output of a head with QK-norm, from those of all its inputs.

    Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), alpha_Q_dot (d_k,),
    alpha_K_dot (d_k,), B_dot (..., n, m), gamma_dot (), then the arguments of
    qk_norm_attention -> O_dot (..., n, d_v)

    A tangent has the shape of its argument; None is zero. Conditions and errors as for
    qk_norm_attention.
    Derived in chapters/norms_and_caps.md, eq:qk_norm_attention_jvp.
    """
    r_Q, Q_hat, Q_tilde = normed(Q, alpha_Q, epsilon)
    r_K, K_hat, K_tilde = normed(K, alpha_K, epsilon)
    of_Q, of_K = (r_Q, Q_hat, alpha_Q), (r_K, K_hat, alpha_K)
    r_Q_dot, Q_hat_dot, Q_tilde_dot = normed_jvp(Q_dot, alpha_Q_dot, *of_Q)
    r_K_dot, K_hat_dot, K_tilde_dot = normed_jvp(K_dot, alpha_K_dot, *of_K)
    dots = Q_tilde_dot, K_tilde_dot, V_dot, B_dot, gamma_dot
    return attention_jvp(*dots, Q_tilde, K_tilde, V, B, gamma, R=R)


@checked
def capped_attention(
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind], c: HeadCap,
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> Outputs[Kind]:
    """The output of a head whose scores are capped before bias or mask are added.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), c (), B (..., n, m), gamma (),
    R (..., n, m) -> O (..., n, d_v)

    The cap c is a positive number, or an array of them that broadcasts against the
    scores, as one for each head, (H, 1, 1). Raises ValueError for a cap that is not
    positive; conditions and errors else as for attention.
    Derived in chapters/norms_and_caps.md, eq:capped_attention.
    """
    S = gamma * (Q @ T(K))
    A = softcap(S, c)
    P = softmax(plus(A, B))
    return times(P, R) @ V


@checked
def capped_attention_vjp(
    dO: Outputs[Kind],
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind], c: HeadCap,
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> CappedGradients[Kind]:
    """The gradients of the loss in all inputs of a head with capped scores.

    dO (..., n, d_v), then the arguments of capped_attention
    -> dQ, dK, dV, dc, dB, dgamma, each of the shape of its argument

    dB is the gradient behind the cap, and its rows sum to zero; that before the cap
    goes to queries and keys, and its rows do not. Each is summed over the axes along
    which its argument was broadcast; dB is None if B is None. Conditions and errors as
    for capped_attention.
    Derived in chapters/norms_and_caps.md, eq:capped_attention_vjp.
    """
    S = gamma * (Q @ T(K))
    U = tanh(S / c)
    P = softmax(plus(c * U, B))
    O = times(P, R) @ V
    dV, dA = weighted_vjp(dO, O, P, V, R)
    dS = dA * (1 - U * U)
    dQ = gamma * dS @ K
    dK = T(gamma * dS) @ Q
    dB = dA
    dc = dA * U - dS * S / c
    dgamma = dS * (Q @ T(K))
    return CappedGradients(
        *map(summed, (dQ, dK, dV, dc, dB, dgamma), (Q, K, V, c, B, gamma)))


@checked
def capped_attention_jvp(
    Q_dot: Queries[Kind] | None, K_dot: Keys[Kind] | None, V_dot: Values[Kind] | None,
    c_dot: HeadCap | None, B_dot: Bias[Kind] | None, gamma_dot: Scale | None,
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind], c: HeadCap,
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> Outputs[Kind]:
    """The tangent of the output of a head with capped scores, from those of its inputs.

    Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), c_dot (),
    B_dot (..., n, m), gamma_dot (), then the arguments of capped_attention
    -> O_dot (..., n, d_v)

    A tangent has the shape of its argument; None is zero. Conditions and errors as for
    capped_attention.
    Derived in chapters/norms_and_caps.md, eq:capped_attention_jvp.
    """
    S = gamma * (Q @ T(K))
    U = tanh(S / c)
    P = softmax(plus(c * U, B))
    S_dot = gamma * (Q_dot @ T(K) + Q @ T(K_dot)) + gamma_dot * (Q @ T(K))
    A_dot = (1 - U * U) * (S_dot - c_dot * S / c) + c_dot * U
    P_dot, O_dot = weighted_jvp(A_dot + B_dot, V_dot, P, V, R)
    return O_dot
