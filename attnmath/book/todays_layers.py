"""The attention layers that people run, composed of the package's functions, and their gradients.

Derived in chapters/todays_layers.md. Every f_vjp(dY, *x) returns the gradient of the input and of each
weight, in the order and the shapes of x. X (b, n, d) are tokens; theta (d_k / 2,) the frequencies,
t (b, 1, n) the positions and B (b, 1, n, n) the mask of a layer.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from attnmath._formulas.attention import attention, attention_vjp
from attnmath._formulas.heads import Weights
from attnmath._formulas.normalizers import sink_attention, sink_attention_vjp
from attnmath._formulas.normed_heads import capped_attention, capped_attention_vjp
from attnmath._formulas.norms_and_caps import rms_norm, rms_norm_vjp
from attnmath._formulas.positions import rotary, rotary_vjp
from attnmath._formulas.projections import linear, linear_vjp
from attnmath._words.arrays import T, plus, sum_to
from attnmath._words.layers import from_heads, heads_over_tokens, heads_to_bias, to_heads

# ---- what they share: projections, groups, and the sum over the heads ------------------------------


def shared(K: ndarray, H: int) -> ndarray:
    """For each of H heads the keys or values of its group: (b, G, m, k) -> (b, H, m, k)."""
    return np.repeat(K, H // K.shape[1], axis=1)


def of_groups(dK: ndarray, G: int) -> ndarray:
    """The other way: the heads of a group add up their gradients."""
    b, H, m, k = dK.shape
    return dK.reshape(b, G, H // G, m, k).sum(axis=2)


def projected(X: ndarray, W: Weights) -> tuple:
    """The queries, keys and values of every head: (b, H, n, d_k) each."""
    Q = to_heads(X, W.W_Q, W.b_Q)
    K = to_heads(X, W.W_K, W.b_K)
    V = to_heads(X, W.W_V, W.b_V)
    return Q, shared(K, len(W.W_Q)), shared(V, len(W.W_Q))


def projected_vjp(dQ: ndarray, dK: ndarray, dV: ndarray, X: ndarray, W: Weights) -> tuple:
    """The gradient of the tokens, and those of the weights of the three projections."""
    dK, dV = of_groups(dK, len(W.W_K)), of_groups(dV, len(W.W_K))
    pairs = (dQ, W.W_Q, W.b_Q), (dK, W.W_K, W.b_K), (dV, W.W_V, W.b_V)
    dX = sum(from_heads(dS, T(M)) for dS, M, b in pairs)
    dW_Q, dW_K, dW_V = (heads_over_tokens(X, dS) for dS, M, b in pairs)
    db_Q, db_K, db_V = (heads_to_bias(dS, b) for dS, M, b in pairs)
    return dX, W._replace(W_Q=dW_Q, W_K=dW_K, W_V=dW_V, b_Q=db_Q, b_K=db_K, b_V=db_V)


def summed_up(O: ndarray, W: Any) -> ndarray:
    """The sum over the heads: (b, H, n, d_v) -> (b, n, d)."""
    return plus(from_heads(O, W.W_O), W.b_O)


def summed_up_vjp(dY: ndarray, O: ndarray, W: Any) -> tuple:
    """The gradient of each head's output, and those of the weights of the sum."""
    dO = to_heads(dY, T(W.W_O))
    return dO, {"W_O": T(heads_over_tokens(dY, O)), "b_O": sum_to(dY, W.b_O)}


# ---- the layers -----------------------------------------------------------------------------------


def llama(X, W, *, theta, t, B):
    """Llama: the layer of the book, with turned queries and keys."""
    Q, K, V = projected(X, W)
    Q_hat, K_hat = (rotary(x, theta, positions=t) for x in (Q, K))
    O = attention(Q_hat, K_hat, V, B)
    return summed_up(O, W)


def llama_vjp(dY, X, W, *, theta, t, B):
    """dX, dW."""
    Q, K, V = projected(X, W)
    Q_hat, K_hat = (rotary(x, theta, positions=t) for x in (Q, K))
    O = attention(Q_hat, K_hat, V, B)
    dO, dW_O = summed_up_vjp(dY, O, W)
    dQ_hat, dK_hat, dV, *_ = attention_vjp(dO, Q_hat, K_hat, V, B)
    dQ = rotary_vjp(dQ_hat, Q, theta, positions=t).dX
    dK = rotary_vjp(dK_hat, K, theta, positions=t).dX
    dX, dW = projected_vjp(dQ, dK, dV, X, W)
    return dX, dW._replace(**dW_O)


def qwen3(X, W, alpha_Q, alpha_K, *, theta, t, B, gamma=None, epsilon=1e-6):
    """Qwen3: each query and each key is normed before it is turned."""
    Q, K, V = projected(X, W)
    Q_tilde = rms_norm(Q, alpha_Q, epsilon=epsilon)
    K_tilde = rms_norm(K, alpha_K, epsilon=epsilon)
    Q_hat, K_hat = (rotary(x, theta, positions=t) for x in (Q_tilde, K_tilde))
    O = attention(Q_hat, K_hat, V, B, gamma)
    return summed_up(O, W)


def qwen3_vjp(dY, X, W, alpha_Q, alpha_K, *, theta, t, B, gamma=None, epsilon=1e-6):
    """dX, dW, dalpha_Q, dalpha_K."""
    Q, K, V = projected(X, W)
    Q_tilde = rms_norm(Q, alpha_Q, epsilon=epsilon)
    K_tilde = rms_norm(K, alpha_K, epsilon=epsilon)
    Q_hat, K_hat = (rotary(x, theta, positions=t) for x in (Q_tilde, K_tilde))
    O = attention(Q_hat, K_hat, V, B, gamma)
    dO, dW_O = summed_up_vjp(dY, O, W)
    dQ_hat, dK_hat, dV, *_ = attention_vjp(dO, Q_hat, K_hat, V, B, gamma)
    dQ_tilde = rotary_vjp(dQ_hat, Q_tilde, theta, positions=t).dX
    dK_tilde = rotary_vjp(dK_hat, K_tilde, theta, positions=t).dX
    dQ, dalpha_Q = rms_norm_vjp(dQ_tilde, Q, alpha_Q, epsilon=epsilon)
    dK, dalpha_K = rms_norm_vjp(dK_tilde, K, alpha_K, epsilon=epsilon)
    dX, dW = projected_vjp(dQ, dK, dV, X, W)
    return dX, dW._replace(**dW_O), dalpha_Q, dalpha_K


def gemma2(X, W, *, theta, t, B, gamma, c):
    """Gemma 2: Llama's layer with capped scores, and with a scale of its own."""
    Q, K, V = projected(X, W)
    Q_hat, K_hat = (rotary(x, theta, positions=t) for x in (Q, K))
    O = capped_attention(Q_hat, K_hat, V, c, B, gamma)
    return summed_up(O, W)


def gemma2_vjp(dY, X, W, *, theta, t, B, gamma, c):
    """dX, dW."""
    Q, K, V = projected(X, W)
    Q_hat, K_hat = (rotary(x, theta, positions=t) for x in (Q, K))
    O = capped_attention(Q_hat, K_hat, V, c, B, gamma)
    dO, dW_O = summed_up_vjp(dY, O, W)
    dQ_hat, dK_hat, dV, *_ = capped_attention_vjp(dO, Q_hat, K_hat, V, c, B, gamma)
    dQ = rotary_vjp(dQ_hat, Q, theta, positions=t).dX
    dK = rotary_vjp(dK_hat, K, theta, positions=t).dX
    dX, dW = projected_vjp(dQ, dK, dV, X, W)
    return dX, dW._replace(**dW_O)


def gemma3(X, W, w_Q, w_K, *, theta, t, B, gamma, epsilon=1e-6):
    """Gemma 3: Qwen3's layer, whose gains are kept less one, with a scale of its own."""
    given = dict(theta=theta, t=t, B=B, gamma=gamma, epsilon=epsilon)
    return qwen3(X, W, 1 + w_Q, 1 + w_K, **given)


def gemma3_vjp(dY, X, W, w_Q, w_K, *, theta, t, B, gamma, epsilon=1e-6):
    """dX, dW, dw_Q, dw_K."""
    given = dict(theta=theta, t=t, B=B, gamma=gamma, epsilon=epsilon)
    return qwen3_vjp(dY, X, W, 1 + w_Q, 1 + w_K, **given)


def gpt_oss(X, W, sigma, *, theta, t, B, gamma=None):
    """gpt-oss: Llama's layer with a sink for each head."""
    Q, K, V = projected(X, W)
    Q_hat, K_hat = (rotary(x, theta, positions=t) for x in (Q, K))
    O = sink_attention(Q_hat, K_hat, V, sigma, B, gamma)
    return summed_up(O, W)


def gpt_oss_vjp(dY, X, W, sigma, *, theta, t, B, gamma=None):
    """dX, dW, dsigma."""
    Q, K, V = projected(X, W)
    Q_hat, K_hat = (rotary(x, theta, positions=t) for x in (Q, K))
    O = sink_attention(Q_hat, K_hat, V, sigma, B, gamma)
    dO, dW_O = summed_up_vjp(dY, O, W)
    back = sink_attention_vjp(dO, Q_hat, K_hat, V, sigma, B, gamma)
    dQ = rotary_vjp(back.dQ, Q, theta, positions=t).dX
    dK = rotary_vjp(back.dK, K, theta, positions=t).dX
    dX, dW = projected_vjp(dQ, dK, back.dV, X, W)
    return dX, dW._replace(**dW_O), back.dsigma


# ---- DeepSeek-V3, whose keys and values come out of a latent ----------------------------------------


class LatentWeights(NamedTuple):
    """What DeepSeek-V3's layer learns besides two gains; the first d_r features of W_UQ are those that are turned.

    W_DQ (d, r_q), W_UQ (H, r_q, d_r + d_c), W_DKV (d, r), W_KR (d, d_r), W_UK (H, r, d_c), W_UV (H, r, d_v),
    W_O (H, d_v, d), b_O (d,) or None
    """

    W_DQ: ndarray
    W_UQ: ndarray
    W_DKV: ndarray
    W_KR: ndarray
    W_UK: ndarray
    W_UV: ndarray
    W_O: ndarray
    b_O: ndarray | None = None


def latent_projected(X: ndarray, W: LatentWeights, alpha_Q: ndarray, alpha_KV: ndarray) -> tuple:
    """Queries and values of every head, and keys, the first d_r features of which are the same in all heads."""
    C_Q = rms_norm(linear(X, W.W_DQ), alpha_Q)
    C_KV = rms_norm(linear(X, W.W_DKV), alpha_KV)
    Q = to_heads(C_Q, W.W_UQ)
    K_R = shared(to_heads(X, W.W_KR[None]), len(W.W_UK))
    K = np.concatenate([K_R, to_heads(C_KV, W.W_UK)], axis=-1)
    V = to_heads(C_KV, W.W_UV)
    return Q, K, V


def latent_projected_vjp(dQ, dK, dV, X, W, alpha_Q, alpha_KV):
    """dX, dW, dalpha_Q, dalpha_KV."""
    S_Q, S_KV = linear(X, W.W_DQ), linear(X, W.W_DKV)
    C_Q, C_KV = rms_norm(S_Q, alpha_Q), rms_norm(S_KV, alpha_KV)
    dK_R, dK_C = np.split(dK, [W.W_KR.shape[1]], axis=-1)
    dC_Q = from_heads(dQ, T(W.W_UQ))
    dC_KV = from_heads(dK_C, T(W.W_UK)) + from_heads(dV, T(W.W_UV))
    dS_Q, dalpha_Q = rms_norm_vjp(dC_Q, S_Q, alpha_Q)
    dS_KV, dalpha_KV = rms_norm_vjp(dC_KV, S_KV, alpha_KV)
    pairs = (dS_Q, W.W_DQ), (dS_KV, W.W_DKV), (of_groups(dK_R, 1)[:, 0], W.W_KR)
    from_Q, from_KV, from_R = (linear_vjp(dY, X, M) for dY, M in pairs)
    dX = from_Q.dX + from_KV.dX + from_R.dX
    dW_UQ, dW_UK = heads_over_tokens(C_Q, dQ), heads_over_tokens(C_KV, dK_C)
    dW_UV = heads_over_tokens(C_KV, dV)
    dW = LatentWeights(from_Q.dW, dW_UQ, from_KV.dW, from_R.dW, dW_UK, dW_UV, W.W_O)
    return dX, dW, dalpha_Q, dalpha_KV


def deepseek_v3(X, W, alpha_Q, alpha_KV, *, theta, t, B, gamma):
    """DeepSeek-V3: Llama's layer behind latents, turned in a part of its features, neighbours in pairs."""
    Q, K, V = latent_projected(X, W, alpha_Q, alpha_KV)
    Q_hat, K_hat = (rotary(x, theta, positions=t, layout="interleaved") for x in (Q, K))
    O = attention(Q_hat, K_hat, V, B, gamma)
    return summed_up(O, W)


def deepseek_v3_vjp(dY, X, W, alpha_Q, alpha_KV, *, theta, t, B, gamma):
    """dX, dW, dalpha_Q, dalpha_KV."""
    Q, K, V = latent_projected(X, W, alpha_Q, alpha_KV)
    Q_hat, K_hat = (rotary(x, theta, positions=t, layout="interleaved") for x in (Q, K))
    O = attention(Q_hat, K_hat, V, B, gamma)
    dO, dW_O = summed_up_vjp(dY, O, W)
    dQ_hat, dK_hat, dV, *_ = attention_vjp(dO, Q_hat, K_hat, V, B, gamma)
    dQ = rotary_vjp(dQ_hat, Q, theta, positions=t, layout="interleaved").dX
    dK = rotary_vjp(dK_hat, K, theta, positions=t, layout="interleaved").dX
    dX, dW, *dalpha = latent_projected_vjp(dQ, dK, dV, X, W, alpha_Q, alpha_KV)
    return dX, dW._replace(**dW_O), *dalpha


# ---- the library's numbers -------------------------------------------------------------------------


def as_weights(theirs: dict[str, ndarray], d_k: int) -> Weights:
    """Of q_proj.weight, whose rows are the features of all heads, and the others: W_Q (H, d, d_k), …"""
    W = [theirs[f"{a}_proj.weight"] for a in "qkvo"]
    b = [theirs.get(f"{a}_proj.bias") for a in "qkvo"]
    Q, K, V, O = (x.reshape(-1, d_k, x.shape[1]) for x in (*W[:3], W[3].T))
    b_Q, b_K, b_V = (None if x is None else x.reshape(-1, d_k) for x in b[:3])
    return Weights(T(Q), T(K), T(V), O, b_Q, b_K, b_V, b[3])


def as_theirs(W: Weights) -> dict[str, ndarray]:
    """The other way, for weights or their gradients."""
    d = W.W_Q.shape[1]
    M = [T(x).reshape(-1, d) for x in W[:3]]
    b = [None if x is None else x.ravel() for x in W[4:]]
    named = {f"{a}_proj.weight": x for a, x in zip("qkvo", (*M, W.W_O.reshape(-1, d).T))}
    return named | {f"{a}_proj.bias": x for a, x in zip("qkvo", b) if x is not None}


def as_latent_weights(theirs: dict[str, ndarray], d_r: int, d_v: int) -> LatentWeights:
    """Of DeepSeek-V3's matrices, three of which hold two of ours; there a head's turned features come last."""
    down_Q, down, O = (theirs[f"{a}.weight"] for a in ("q_a_proj", "kv_a_proj_with_mqa", "o_proj"))
    H = O.shape[1] // d_v
    up_Q, up = (x.reshape(H, -1, x.shape[1]) for x in (theirs["q_b_proj.weight"], theirs["kv_b_proj.weight"]))
    up_Q = np.roll(up_Q, d_r, axis=1)
    (down, R), (K, V) = np.split(down, [-d_r]), np.split(up, [-d_v], axis=1)
    return LatentWeights(down_Q.T, T(up_Q), down.T, R.T, T(K), T(V), O.T.reshape(H, d_v, -1))


def as_theirs_latent(W: LatentWeights) -> dict[str, ndarray]:
    """The other way, for weights or their gradients."""
    d, d_r = W.W_KR.shape
    up_Q, up = np.roll(T(W.W_UQ), -d_r, axis=1), np.concatenate([T(W.W_UK), T(W.W_UV)], axis=1)
    return {"q_a_proj.weight": W.W_DQ.T, "q_b_proj.weight": up_Q.reshape(-1, up_Q.shape[-1]),
            "kv_a_proj_with_mqa.weight": np.concatenate([W.W_DKV.T, W.W_KR.T]),
            "kv_b_proj.weight": up.reshape(-1, up.shape[-1]), "o_proj.weight": W.W_O.reshape(-1, d).T}
