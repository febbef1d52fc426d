"""A small encoder-decoder and its backward pass, in the functions of this book.

The encoder reads the tokens Z, the decoder writes: X is what it wrote so far. Both are
rows with a one at the token's number, and rows of zeros where there is no token.
"""

from typing import NamedTuple

import numpy as np
from numpy import ndarray

from attnmath._formulas.blocks import layer_norm, layer_norm_vjp, mlp, mlp_vjp
from attnmath._formulas.heads import MultiheadMap, Weights, multihead_map, multihead_vjp
from attnmath._formulas.inputs import self_attention_vjp
from attnmath._formulas.masks import bias, causal_mask, padding_mask
from attnmath._formulas.projections import linear, linear_vjp


class Norm(NamedTuple):
    alpha: ndarray
    beta: ndarray


class Network(NamedTuple):
    W_U: ndarray
    b_U: ndarray | None
    W_D: ndarray
    b_D: ndarray | None


class Encoder(NamedTuple):
    embedding: ndarray
    places: ndarray
    norm_1: Norm
    own: Weights
    norm_2: Norm
    network: Network
    norm_3: Norm


class Decoder(NamedTuple):
    embedding: ndarray
    places: ndarray
    norm_1: Norm
    own: Weights
    norm_2: Norm
    cross: Weights
    norm_3: Norm
    network: Network
    norm_4: Norm
    W: ndarray
    b: ndarray


class Transformer(NamedTuple):
    """All that is learned; also the gradient of the loss in it, in the same places."""

    encoder: Encoder
    decoder: Decoder


def start(
    rng: np.random.Generator, tokens: int, m: int, n: int,
    d: int = 16, H: int = 2, d_k: int = 8, d_u: int = 32,
) -> Transformer:
    """Weights before the first step: random, of a size that keeps sizes; biases of zero."""
    def normal(*shape: int, of: int = 1) -> ndarray:
        return rng.normal(size=shape) / np.sqrt(of)

    def norm() -> Norm:
        return Norm(np.ones(d), np.zeros(d))

    def heads() -> Weights:
        Q, K, V = (normal(H, d, d_k, of=d) for _ in "QKV")
        O, (b_Q, b_K, b_V) = normal(H, d_k, d, of=H * d_k), np.zeros((3, H, d_k))
        return Weights(Q, K, V, O, b_Q, b_K, b_V, np.zeros(d))

    def network() -> Network:
        up, down = normal(d, d_u, of=d), normal(d_u, d, of=d_u)
        return Network(up, np.zeros(d_u), down, np.zeros(d))

    return Transformer(
        Encoder(normal(tokens, d), normal(m, d), norm(), heads(), norm(), network(), norm()),
        Decoder(normal(tokens, d), normal(n, d), norm(), heads(), norm(), heads(), norm(),
                network(), norm(), normal(d, tokens, of=d), np.zeros(tokens)),
    )


class Encoded(NamedTuple):
    """The encoder's stream after each addition, what its heads did, and its output Z."""

    Z_0: ndarray
    Z_1: ndarray
    Z_2: ndarray
    own: MultiheadMap
    Z: ndarray


class Decoded(NamedTuple):
    """The decoder's stream after each addition, what its heads did, and the scores A."""

    X_0: ndarray
    X_1: ndarray
    X_2: ndarray
    X_3: ndarray
    own: MultiheadMap
    cross: MultiheadMap
    A: ndarray


def hide_padding(Z: ndarray) -> ndarray:
    """The bias that hides rows without a token: (b, m, tokens) -> (b, 1, 1, m)."""
    lengths = Z.any(-1).sum(-1, keepdims=True)
    return bias(padding_mask(lengths, Z.shape[1]))


def hide_later(X: ndarray) -> ndarray:
    """The bias that hides what is not written yet: (b, n, tokens) -> (n, n)."""
    n = X.shape[1]
    return bias(causal_mask(n, n))


def encode(W: Encoder, Z: ndarray) -> Encoded:
    """What the encoder makes of the tokens; every block adds to the stream Z_0, Z_1, Z_2."""
    Z_0 = linear(Z, W.embedding) + W.places
    N = layer_norm(Z_0, *W.norm_1)
    own = multihead_map(N, N, W.own, hide_padding(Z))
    Z_1 = Z_0 + own.Y
    Z_2 = Z_1 + mlp(layer_norm(Z_1, *W.norm_2), *W.network)
    return Encoded(Z_0, Z_1, Z_2, own, layer_norm(Z_2, *W.norm_3))


def decode(W: Decoder, X: ndarray, Z: ndarray, B: ndarray) -> Decoded:
    """The scores of what comes next, from what is written and the encoder's output Z."""
    X_0 = linear(X, W.embedding) + W.places
    N = layer_norm(X_0, *W.norm_1)
    own = multihead_map(N, N, W.own, hide_later(X))
    X_1 = X_0 + own.Y
    cross = multihead_map(layer_norm(X_1, *W.norm_2), Z, W.cross, B)
    X_2 = X_1 + cross.Y
    X_3 = X_2 + mlp(layer_norm(X_2, *W.norm_3), *W.network)
    A = linear(layer_norm(X_3, *W.norm_4), W.W, W.b)
    return Decoded(X_0, X_1, X_2, X_3, own, cross, A)


def norm_vjp(dN: ndarray, X: ndarray, norm: Norm) -> tuple[ndarray, Norm]:
    """The gradients of the loss in X and in what the norm learns."""
    dX, *dnorm = layer_norm_vjp(dN, X, *norm)
    return dX, Norm(*dnorm)


def answers_vjp(dA: ndarray, W: Decoder, past: Decoded) -> tuple:
    """The gradients in the stream X_2 and in the weights of what follows it, norm_3 to b."""
    dN, dW, db = linear_vjp(dA, layer_norm(past.X_3, *W.norm_4), W.W, W.b)
    dX_3, dnorm_4 = norm_vjp(dN, past.X_3, W.norm_4)
    dmlp = mlp_vjp(dX_3, layer_norm(past.X_2, *W.norm_3), *W.network)
    dX, dnorm_3 = norm_vjp(dmlp.dX, past.X_2, W.norm_3)
    return dX_3 + dX, (dnorm_3, Network(*dmlp[1:]), dnorm_4, dW, db)


def decode_vjp(dA: ndarray, W: Decoder, X: ndarray, Z: ndarray, B: ndarray, past: Decoded) -> tuple:
    """The gradients in the decoder's weights and in Z, from that in the scores."""
    X_0, X_1, _, _, own, cross, _ = past
    dX_2, last = answers_vjp(dA, W, past)
    N = layer_norm(X_1, *W.norm_2)
    dN, dZ, dcross, *_ = multihead_vjp(dX_2, N, Z, W.cross, B, given=cross)
    dX, dnorm_2 = norm_vjp(dN, X_1, W.norm_2)
    dX_1 = dX_2 + dX
    N = layer_norm(X_0, *W.norm_1)
    dN, down, *_ = self_attention_vjp(dX_1, N, W.own, hide_later(X), given=own)
    dX, dnorm_1 = norm_vjp(dN, X_0, W.norm_1)
    dX_0 = dX_1 + dX
    dembedding, dplaces = linear_vjp(dX_0, X, W.embedding).dW, dX_0.sum(0)
    return Decoder(dembedding, dplaces, dnorm_1, down, dnorm_2, dcross, *last), dZ


def encode_vjp(dZ: ndarray, W: Encoder, Z: ndarray, past: Encoded) -> Encoder:
    """The gradients in the encoder's weights, from that in its output."""
    Z_0, Z_1, Z_2, own, _ = past
    dZ_2, dnorm_3 = norm_vjp(dZ, Z_2, W.norm_3)
    dmlp = mlp_vjp(dZ_2, layer_norm(Z_1, *W.norm_2), *W.network)
    dZ, dnorm_2 = norm_vjp(dmlp.dX, Z_1, W.norm_2)
    dZ_1 = dZ_2 + dZ
    N = layer_norm(Z_0, *W.norm_1)
    dN, down, *_ = self_attention_vjp(dZ_1, N, W.own, hide_padding(Z), given=own)
    dZ, dnorm_1 = norm_vjp(dN, Z_0, W.norm_1)
    dZ_0 = dZ_1 + dZ
    dembedding, dplaces = linear_vjp(dZ_0, Z, W.embedding).dW, dZ_0.sum(0)
    return Encoder(dembedding, dplaces, dnorm_1, down, dnorm_2, Network(*dmlp[1:]), dnorm_3)
