"""Multi-head latent attention: keys and values come out of one short row a token."""

from typing import Annotated, Generic, NamedTuple

from attnmath._formulas.attention import weighted_jvp, weighted_vjp
from attnmath._formulas.heads import Results
from attnmath._formulas.inputs import OwnBias, OwnFactors
from attnmath._formulas.positions import Layout, turning
from attnmath._formulas.softmax import softmax
from attnmath._given.checked import checked
from attnmath._given.letters import HeadsScale, HeadsScaleGradient, Kind, Tokens, all_finite
from attnmath._given.positions import Frequencies, Positions
from attnmath._words.arrays import Array, Scalar, T, flat, plus, row, rowsum, sum_to, summed, times
from attnmath._words.layers import (
    alone,
    apply,
    each_head,
    for_heads,
    from_heads,
    gather,
    heads_over_tokens,
    lifted,
    lowered,
    no_head,
    over_tokens,
    to_heads,
)
from attnmath._words.pairs import gathered, spread, turned


class MLAWeights(NamedTuple, Generic[Kind]):
    """What a layer with latents learns; its gradient and tangent are MLAWeights too.

    W_DQ (d, d_q), W_UQ (H, d_q, d_k), W_QR (H, d_q, d_r), W_DKV (d, d_c),
    W_UK (H, d_c, d_k), W_UV (H, d_c, d_v), W_KR (d, d_r), W_O (H, d_v, d)

    The head is the leading axis. W_DQ and W_DKV lead down to the latents of queries and
    of keys and values, W_UQ, W_UK and W_UV up from them; what W_QR and W_KR make is
    turned by the positions.
    Derived in chapters/latent.md, eq:latent_attention.
    """

    W_DQ: Annotated[Kind, "d d_q", all_finite]
    W_UQ: Annotated[Kind, "H d_q d_k", all_finite, "H > 0", "d_k > 0"]
    W_QR: Annotated[Kind, "H d_q d_r", all_finite]
    W_DKV: Annotated[Kind, "d d_c", all_finite]
    W_UK: Annotated[Kind, "H d_c d_k", all_finite]
    W_UV: Annotated[Kind, "H d_c d_v", all_finite]
    W_KR: Annotated[Kind, "d d_r", all_finite]
    W_O: Annotated[Kind, "H d_v d", all_finite]


class LatentGradients(NamedTuple, Generic[Kind]):
    """Of latent_attention, each of its argument's shape; None for B = None."""

    dX: Tokens[Kind]
    dW: MLAWeights[Kind]
    dtheta: Frequencies[Kind]
    dB: OwnBias[Kind] | None
    dgamma: HeadsScaleGradient[Kind]


@checked
def latent_attention(
    X: Tokens[Kind], W: MLAWeights[Kind], theta: Frequencies[Kind],
    B: OwnBias[Kind] | None = None, gamma: HeadsScale | None = None,
    *, positions: Positions | None = None, layout: Layout = "half_split",
    R: OwnFactors[Kind] | None = None,
) -> Results[Kind]:
    """The output of a layer whose keys and values come out of one latent for all heads.

    X (..., n, d), W MLAWeights, theta (r,), B (..., H, n, n), gamma () or (H,),
    positions (..., n), R (..., H, n, n) -> Y (..., n, d)

    The scores have a part that is not turned, and one that is: by positions and theta,
    as rotary does it in this layout, with one key for all heads. The scale gamma is a
    number, or one number per head; None is 1/sqrt(d_k + d_r). Of B and R as for
    multihead_map. Raises TypeError unless W is MLAWeights; conditions and errors else
    as for multihead_map and rotary.
    Derived in chapters/latent.md, eq:latent_attention.
    """
    C_Q, C_KV, Q, Q_bar, K, K_bar, V = _projected(X, W)
    t, C, S, Q_R, K_R = _turned(
        "latent_attention", Q_bar, K_bar, theta, positions, layout)
    heads = (_head(*x)[1:] for x in each_head(Q, Q_R, K, K_R, V, B, lifted(gamma), R))
    (O,) = gather(heads, (Q,))
    return from_heads(O, W.W_O)


@checked
def latent_attention_vjp(
    dY: Results[Kind],
    X: Tokens[Kind], W: MLAWeights[Kind], theta: Frequencies[Kind],
    B: OwnBias[Kind] | None = None, gamma: HeadsScale | None = None,
    *, positions: Positions | None = None, layout: Layout = "half_split",
    R: OwnFactors[Kind] | None = None,
) -> LatentGradients[Kind]:
    """The gradients of the loss in all inputs of a layer with latents.

    dY (..., n, d), then the arguments of latent_attention
    -> dX, dW, dtheta, dB, dgamma, each of the shape of its argument

    dW is MLAWeights, summed over the batch. dB and dgamma are summed over the axes
    along which B and gamma were broadcast; dB is None if B is None. Conditions and
    errors as for latent_attention.
    Derived in chapters/latent.md, eq:latent_attention_vjp.
    """
    C_Q, C_KV, Q, Q_bar, K, K_bar, V = _projected(X, W)
    t, C, S, Q_R, K_R = _turned(
        "latent_attention_vjp", Q_bar, K_bar, theta, positions, layout)
    dO = to_heads(dY, T(W.W_O))
    like = Q, Q_R, K, K_R, V, B, lifted(gamma)
    O, dQ, dQ_R, dK, dK_R, dV, dB, dgamma = gather(
        (_head_vjp(*x) for x in each_head(dO, *like, R)), (Q, *like))
    given = Q_bar, K_bar, Q_R, K_R, t, C, S, theta, layout
    dQ_bar, dK_bar, dtheta = _turned_vjp(dQ_R, dK_R, *given)
    dC_Q = from_heads(dQ, T(W.W_UQ)) + from_heads(dQ_bar, T(W.W_QR))
    dC_KV = from_heads(dK, T(W.W_UK)) + from_heads(dV, T(W.W_UV))
    dX = apply(dC_Q, T(W.W_DQ)) + apply(dC_KV, T(W.W_DKV)) + apply(dK_bar, T(W.W_KR))
    dW = _weights_vjp(dY, dQ, dQ_bar, dK, dV, dK_bar, dC_Q, dC_KV, X, C_Q, C_KV, O)
    return LatentGradients(dX, dW, dtheta, dB, lowered(dgamma))


@checked
def latent_attention_jvp(
    X_dot: Tokens[Kind] | None, W_dot: MLAWeights[Kind] | None,
    theta_dot: Frequencies[Kind] | None, B_dot: OwnBias[Kind] | None,
    gamma_dot: HeadsScale | None,
    X: Tokens[Kind], W: MLAWeights[Kind], theta: Frequencies[Kind],
    B: OwnBias[Kind] | None = None, gamma: HeadsScale | None = None,
    *, positions: Positions | None = None, layout: Layout = "half_split",
    R: OwnFactors[Kind] | None = None,
) -> Results[Kind]:
    """The tangent of the output of a layer with latents, from those of its arguments.

    X_dot (..., n, d), W_dot MLAWeights, theta_dot (r,), B_dot (..., H, n, n),
    gamma_dot () or (H,), then the arguments of latent_attention -> Y_dot (..., n, d)

    A tangent has the shape of its argument; None is zero, also in W_dot. Conditions and
    errors as for latent_attention.
    Derived in chapters/latent.md, eq:latent_attention_jvp.
    """
    both = _projected_jvp(X_dot, W_dot, X, W)
    Q, Q_dot, Q_bar, Q_bar_dot, K, K_dot, V, V_dot, K_bar, K_bar_dot = both
    t, C, S, Q_R, K_R = _turned(
        "latent_attention_jvp", Q_bar, K_bar, theta, positions, layout)
    given = Q_R, K_R, t, C, S, theta, layout
    Q_R_dot, K_R_dot = _turned_jvp(Q_bar_dot, K_bar_dot, theta_dot, *given)
    moved = Q_dot, Q_R_dot, K_dot, K_R_dot, V_dot, B_dot, lifted(gamma_dot)
    heads = each_head(*moved, Q, Q_R, K, K_R, V, B, lifted(gamma), R)
    O, O_dot = gather((_head_jvp(*x) for x in heads), (Q, Q))
    return from_heads(O_dot, W.W_O) + from_heads(O, W_dot.W_O)


def _projected(X: Array, W: MLAWeights) -> tuple:
    """The latents and what they make; Q_bar and K_bar (one head) are not yet turned."""
    C_Q = apply(X, W.W_DQ)
    C_KV = apply(X, W.W_DKV)
    Q, Q_bar = to_heads(C_Q, W.W_UQ), to_heads(C_Q, W.W_QR)
    K, V = to_heads(C_KV, W.W_UK), to_heads(C_KV, W.W_UV)
    K_bar = alone(apply(X, W.W_KR))
    return C_Q, C_KV, Q, Q_bar, K, K_bar, V


def _projected_jvp(
    X_dot: Array, W_dot: MLAWeights, X: Array, W: MLAWeights
) -> tuple:
    """The same without the latents, each with its tangent."""
    C_Q, C_Q_dot = _linear_jvp(X, X_dot, W.W_DQ, W_dot.W_DQ)
    C_KV, C_KV_dot = _linear_jvp(X, X_dot, W.W_DKV, W_dot.W_DKV)
    Q, Q_dot = _to_heads_jvp(C_Q, C_Q_dot, W.W_UQ, W_dot.W_UQ)
    Q_bar, Q_bar_dot = _to_heads_jvp(C_Q, C_Q_dot, W.W_QR, W_dot.W_QR)
    K, K_dot = _to_heads_jvp(C_KV, C_KV_dot, W.W_UK, W_dot.W_UK)
    V, V_dot = _to_heads_jvp(C_KV, C_KV_dot, W.W_UV, W_dot.W_UV)
    K_bar = alone(apply(X, W.W_KR))
    K_bar_dot = alone(apply(X_dot, W.W_KR) + apply(X, W_dot.W_KR))
    return Q, Q_dot, Q_bar, Q_bar_dot, K, K_dot, V, V_dot, K_bar, K_bar_dot


def _linear_jvp(X: Array, X_dot: Array, W: Array, W_dot: Array) -> tuple:
    """X W, and its tangent."""
    return apply(X, W), apply(X_dot, W) + apply(X, W_dot)


def _to_heads_jvp(X: Array, X_dot: Array, W: Array, W_dot: Array) -> tuple:
    """X W_h for each head, and its tangent."""
    return to_heads(X, W), to_heads(X_dot, W) + to_heads(X, W_dot)


def _weights_vjp(
    dY: Array, dQ: Array, dQ_bar: Array, dK: Array, dV: Array, dK_bar: Array,
    dC_Q: Array, dC_KV: Array, X: Array, C_Q: Array, C_KV: Array, O: Array,
) -> MLAWeights:
    """The gradients of the weights, summed over the batch."""
    dW_DQ = over_tokens(X, dC_Q)
    dW_UQ = heads_over_tokens(C_Q, dQ)
    dW_QR = heads_over_tokens(C_Q, dQ_bar)
    dW_DKV = over_tokens(X, dC_KV)
    dW_UK = heads_over_tokens(C_KV, dK)
    dW_UV = heads_over_tokens(C_KV, dV)
    dW_KR = over_tokens(X, dK_bar)
    dW_O = T(heads_over_tokens(dY, O))
    return MLAWeights(dW_DQ, dW_UQ, dW_QR, dW_DKV, dW_UK, dW_UV, dW_KR, dW_O)


def _turned(
    function: str, Q_bar: Array, K_bar: Array,
    theta: Array, positions: Array | None, layout: str,
) -> tuple:
    """The turned queries and key, after the positions, cosines and sines."""
    t, C, S = turning(function, K_bar, theta, for_heads(positions), layout, "W.W_KR")
    Q_R = Q_bar * C + turned(Q_bar, theta, layout) * S
    K_R = K_bar * C + turned(K_bar, theta, layout) * S
    return t, C, S, Q_R, K_R


def _turned_vjp(
    dQ_R: Array, dK_R: Array, Q_bar: Array, K_bar: Array, Q_R: Array, K_R: Array,
    t: Array, C: Array, S: Array, theta: Array, layout: str,
) -> tuple:
    """The gradients before the turn, and that of the frequencies."""
    dQ_bar = summed(dQ_R * C - turned(dQ_R, theta, layout) * S, Q_bar)
    dK_bar = no_head(summed(dK_R * C - turned(dK_R, theta, layout) * S, K_bar))
    of_Q = row(flat(t)) @ gathered(dQ_R * turned(Q_R, theta, layout), theta, layout)
    of_K = row(flat(t)) @ gathered(dK_R * turned(K_R, theta, layout), theta, layout)
    dtheta = sum_to(of_Q, theta) + sum_to(of_K, theta)
    return dQ_bar, dK_bar, dtheta


def _turned_jvp(
    Q_bar_dot: Array, K_bar_dot: Array, theta_dot: Array, Q_R: Array, K_R: Array,
    t: Array, C: Array, S: Array, theta: Array, layout: str,
) -> tuple:
    """The tangents of the turned queries and key."""
    Phi_dot = spread(t @ row(theta_dot), K_R, layout)
    moved_Q = Q_bar_dot * C + turned(Q_bar_dot, theta, layout) * S
    moved_K = K_bar_dot * C + turned(K_bar_dot, theta, layout) * S
    Q_R_dot = moved_Q + turned(Q_R, theta, layout) * Phi_dot
    K_R_dot = moved_K + turned(K_R, theta, layout) * Phi_dot
    return Q_R_dot, K_R_dot


def _head(
    Q: Array, Q_R: Array, K: Array, K_R: Array, V: Array,
    B: Array | None, gamma: Scalar, R: Array | None,
) -> tuple:
    """The weights and the output of one head."""
    A = plus(gamma * (Q @ T(K) + Q_R @ T(K_R)), B)
    P = softmax(A)
    O = times(P, R) @ V
    return P, O


def _head_vjp(
    dO: Array, Q: Array, Q_R: Array, K: Array, K_R: Array, V: Array,
    B: Array | None, gamma: Scalar, R: Array | None,
) -> list:
    """The output of one head, and the gradients of all that it is given but R."""
    P, O = _head(Q, Q_R, K, K_R, V, B, gamma, R)
    dV, dA = weighted_vjp(dO, O, P, V, R)
    dQ, dQ_R = gamma * (dA @ K), gamma * (dA @ K_R)
    dK, dK_R = T(dA) @ (gamma * Q), T(dA) @ (gamma * Q_R)
    dB = dA
    dgamma = rowsum(dA * (Q @ T(K) + Q_R @ T(K_R)))
    found = dQ, dQ_R, dK, dK_R, dV, dB, dgamma
    return [O, *map(summed, found, (Q, Q_R, K, K_R, V, B, gamma))]


def _head_jvp(
    Q_dot: Array, Q_R_dot: Array, K_dot: Array, K_R_dot: Array, V_dot: Array,
    B_dot: Array | int, gamma_dot: Scalar,
    Q: Array, Q_R: Array, K: Array, K_R: Array, V: Array,
    B: Array | None, gamma: Scalar, R: Array | None,
) -> tuple:
    """The output of one head, and its tangent."""
    P, O = _head(Q, Q_R, K, K_R, V, B, gamma, R)
    A_dot = (
        (gamma * Q_dot + gamma_dot * Q) @ T(K) + gamma * Q @ T(K_dot) + B_dot
        + (gamma * Q_R_dot + gamma_dot * Q_R) @ T(K_R) + gamma * Q_R @ T(K_R_dot))
    P_dot, O_dot = weighted_jvp(A_dot, V_dot, P, V, R)
    return O, O_dot
