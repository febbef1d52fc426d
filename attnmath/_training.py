"""A small encoder-decoder, its backward pass by this book's functions, and its training.

The task: read a sequence of symbols and write it again, or write it reversed. The
decoder's first token says which. Derived in chapters/training.md.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnmath._blocks import (
    cross_entropy,
    cross_entropy_vjp,
    layer_norm,
    layer_norm_vjp,
    mlp,
    mlp_vjp,
)
from attnmath._heads import MultiheadMap, Weights, multihead_map, multihead_vjp
from attnmath._inputs import self_attention_vjp
from attnmath._projections import linear, linear_vjp

Array = np.ndarray
SYMBOLS, SHORTEST, LONGEST = 8, 2, 7
EDGE, COPY, REVERSE = SYMBOLS, SYMBOLS + 1, SYMBOLS + 2  # the other three tokens
TRAINED = Path(__file__).with_name("trained.json")


# ---- the task ------------------------------------------------------------------------


class Batch(NamedTuple):
    """Sequences as rows of zeros with a one; where a sequence has ended, zeros alone.

    Z (b, m, tokens) is read: edge, symbols, edge. X (b, n, tokens) is the decoder's
    input: the task and the symbols written so far. E (b, n, tokens) is what should come
    next, edge at last. place (b, n) is where in Z that stands, -1 for none.
    """

    Z: Array
    X: Array
    E: Array
    place: Array


def is_held_out(symbols: Array) -> bool:
    """Whether a sequence is kept for the test: one in five."""
    return symbols.sum() % 5 == 0


def batch(rng: np.random.Generator, size: int, held_out: bool = False) -> Batch:
    """Random sequences with random tasks, from those held out or from the others."""
    m, n = LONGEST + 2, LONGEST + 1
    Z, X, E = (np.full((size, k), -1) for k in (m, n, n))
    place = np.full((size, n), -1)
    for i in range(size):
        symbols, task = _drawn(rng, held_out), rng.choice([COPY, REVERSE])
        k = len(symbols)
        Z[i, : k + 2] = [EDGE, *symbols, EDGE]
        there = np.arange(1, k + 2)
        place[i, : k + 1] = there if task == COPY else k + 1 - there
        E[i, : k + 1] = Z[i, place[i, : k + 1]]
        X[i, : k + 1] = [task, *E[i, :k]]
    return Batch(one_hot(Z), one_hot(X), one_hot(E), place)


def _drawn(rng: np.random.Generator, held_out: bool) -> Array:
    while True:
        symbols = rng.integers(SYMBOLS, size=rng.integers(SHORTEST, LONGEST + 1))
        if is_held_out(symbols) == held_out:
            return symbols


def one_hot(tokens: Array) -> Array:
    """A one at each token's number; zeros for -1."""
    return 1.0 * (tokens[..., None] == np.arange(SYMBOLS + 3))


def padding(Z: Array) -> Array:
    """The bias that hides where a sequence has ended: (b, m, tokens) -> (b, 1, 1, m)."""
    return np.where(Z.any(-1), 0, -np.inf)[:, None, None, :]


def causal(n: int) -> Array:
    """The bias that hides what comes later."""
    return np.where(np.tri(n, dtype=bool), 0, -np.inf)


# ---- the model -----------------------------------------------------------------------


class Norm(NamedTuple):
    alpha: Array
    beta: Array


class Network(NamedTuple):
    W_U: Array
    b_U: Array
    W_D: Array
    b_D: Array


class Encoder(NamedTuple):
    norm_1: Norm
    heads: Weights
    norm_2: Norm
    network: Network
    norm_3: Norm


class Decoder(NamedTuple):
    norm_1: Norm
    heads: Weights
    norm_2: Norm
    cross: Weights
    norm_3: Norm
    network: Network
    norm_4: Norm


class Model(NamedTuple):
    """All that is learned; also the gradient of the loss in it, in the same places."""

    embedding: Array
    places_Z: Array
    places_X: Array
    encoder: Encoder
    decoder: Decoder
    W: Array
    b: Array


def start(
    rng: np.random.Generator, d: int = 16, H: int = 2, d_k: int = 8, d_u: int = 32
) -> Model:
    """Weights before the first step: products of a size near one, biases of zero."""
    tokens = SYMBOLS + 3

    def normal(*shape: int, of: int) -> Array:
        return rng.normal(size=shape) / np.sqrt(of)

    def norm() -> Norm:
        return Norm(np.ones(d), np.zeros(d))

    def heads() -> Weights:
        Q, K, V = (normal(H, d, d_k, of=d) for _ in "QKV")
        O = normal(H, d_k, d, of=H * d_k)
        return Weights(Q, K, V, O, *np.zeros((3, H, d_k)), np.zeros(d))

    def network() -> Network:
        up, down = normal(d, d_u, of=d), normal(d_u, d, of=d_u)
        return Network(up, np.zeros(d_u), down, np.zeros(d))

    embedding = normal(tokens, d, of=1)
    places = normal(LONGEST + 2, d, of=1), normal(LONGEST + 1, d, of=1)
    encoder = Encoder(norm(), heads(), norm(), network(), norm())
    decoder = Decoder(norm(), heads(), norm(), heads(), norm(), network(), norm())
    W = normal(d, tokens, of=d)
    return Model(embedding, *places, encoder, decoder, W, np.zeros(tokens))


# ---- forward -------------------------------------------------------------------------


class Encoded(NamedTuple):
    """The encoder's stream after each addition, its heads, and the memory Z."""

    Z_0: Array
    Z_1: Array
    Z_2: Array
    heads: MultiheadMap
    Z: Array


class Decoded(NamedTuple):
    """The decoder's stream after each addition, its heads, and the scores A."""

    X_0: Array
    X_1: Array
    X_2: Array
    X_3: Array
    heads: MultiheadMap
    cross: MultiheadMap
    A: Array


def encode(model: Model, Z: Array) -> Encoded:
    """From tokens to the memory: self-attention and the network, each added on."""
    W = model.encoder
    Z_0 = linear(Z, model.embedding) + model.places_Z
    N = layer_norm(Z_0, *W.norm_1)
    heads = multihead_map(N, N, W.heads, padding(Z))
    Z_1 = Z_0 + heads.Y
    Z_2 = Z_1 + mlp(layer_norm(Z_1, *W.norm_2), *W.network)
    return Encoded(Z_0, Z_1, Z_2, heads, layer_norm(Z_2, *W.norm_3))


def decode(model: Model, X: Array, Z: Array, B: Array) -> Decoded:
    """From what is written so far, and the memory, to the scores of what comes next."""
    W = model.decoder
    X_0 = linear(X, model.embedding) + model.places_X
    N = layer_norm(X_0, *W.norm_1)
    heads = multihead_map(N, N, W.heads, causal(N.shape[-2]))
    X_1 = X_0 + heads.Y
    cross = multihead_map(layer_norm(X_1, *W.norm_2), Z, W.cross, B)
    X_2 = X_1 + cross.Y
    X_3 = X_2 + mlp(layer_norm(X_2, *W.norm_3), *W.network)
    A = linear(layer_norm(X_3, *W.norm_4), model.W, model.b)
    return Decoded(X_0, X_1, X_2, X_3, heads, cross, A)


# ---- backward ------------------------------------------------------------------------


def norm_vjp(dN: Array, X: Array, norm: Norm) -> tuple[Array, Norm]:
    dX, *dnorm = layer_norm_vjp(dN, X, *norm)
    return dX, Norm(*dnorm)


def decode_vjp(
    dA: Array, model: Model, X: Array, Z: Array, B: Array, past: Decoded
) -> tuple:
    """From the gradient of the scores to those of the decoder's weights and memory."""
    W, (X_0, X_1, X_2, X_3, heads, cross, _) = model.decoder, past
    dN, dW, db = linear_vjp(dA, layer_norm(X_3, *W.norm_4), model.W, model.b)
    dX_3, dnorm_4 = norm_vjp(dN, X_3, W.norm_4)
    dN, *dnetwork = mlp_vjp(dX_3, layer_norm(X_2, *W.norm_3), *W.network)
    dX, dnorm_3 = norm_vjp(dN, X_2, W.norm_3)
    dX_2 = dX_3 + dX
    N = layer_norm(X_1, *W.norm_2)
    dN, dZ, dcross, *_ = multihead_vjp(dX_2, N, Z, W.cross, B, given=cross)
    dX, dnorm_2 = norm_vjp(dN, X_1, W.norm_2)
    dX_1 = dX_2 + dX
    N = layer_norm(X_0, *W.norm_1)
    dN, dheads, *_ = self_attention_vjp(dX_1, N, W.heads, causal(N.shape[-2]), given=heads)
    dX, dnorm_1 = norm_vjp(dN, X_0, W.norm_1)
    dX_0 = dX_1 + dX
    dX, dembedding, _ = linear_vjp(dX_0, X, model.embedding)
    d = Decoder(
        dnorm_1, dheads, dnorm_2, dcross, dnorm_3, Network(*dnetwork), dnorm_4
    )
    return d, dZ, dembedding, dX_0.sum(0), dW, db


def encode_vjp(dZ: Array, model: Model, Z: Array, past: Encoded) -> tuple:
    """From the gradient of the memory to those of the encoder's weights."""
    W, (Z_0, Z_1, Z_2, heads, _) = model.encoder, past
    dZ_2, dnorm_3 = norm_vjp(dZ, Z_2, W.norm_3)
    dN, *dnetwork = mlp_vjp(dZ_2, layer_norm(Z_1, *W.norm_2), *W.network)
    dZ, dnorm_2 = norm_vjp(dN, Z_1, W.norm_2)
    dZ_1 = dZ_2 + dZ
    N = layer_norm(Z_0, *W.norm_1)
    dN, dheads, *_ = self_attention_vjp(dZ_1, N, W.heads, padding(Z), given=heads)
    dZ, dnorm_1 = norm_vjp(dN, Z_0, W.norm_1)
    dZ_0 = dZ_1 + dZ
    dZ, dembedding, _ = linear_vjp(dZ_0, Z, model.embedding)
    return Encoder(dnorm_1, dheads, dnorm_2, Network(*dnetwork), dnorm_3), dembedding, dZ_0.sum(0)


def gradient(model: Model, data: Batch) -> tuple[float, Model]:
    """The mean loss of a token that is to be written, and its gradient in the model."""
    encoded, B, count = encode(model, data.Z), padding(data.Z), data.E.sum()
    decoded = decode(model, data.X, encoded.Z, B)
    loss = cross_entropy(decoded.A, E=data.E) / count
    dA = cross_entropy_vjp(1 / count, decoded.A, E=data.E)
    ddec, dZ, dX, dplaces_X, dW, db = decode_vjp(
        dA, model, data.X, encoded.Z, B, decoded
    )
    denc, dZ, dplaces_Z = encode_vjp(dZ, model, data.Z, encoded)
    return loss, Model(dX + dZ, dplaces_Z, dplaces_X, denc, ddec, dW, db)


# ---- steps ---------------------------------------------------------------------------


def each(function: Any, *trees: Any) -> Any:
    """function of the arrays that stand in the same place of every tree."""
    if isinstance(trees[0], tuple):
        return type(trees[0])(*(each(function, *parts) for parts in zip(*trees)))
    return function(*trees)


class Adam(NamedTuple):
    M: Model
    V: Model
    t: int = 0


def adam(model, gradient, state, eta, epsilon=1e-8):
    t = state.t + 1
    M = each(lambda m, g: 0.9 * m + 0.1 * g, state.M, gradient)
    V = each(lambda v, g: 0.98 * v + 0.02 * g * g, state.V, gradient)
    a, b = 1 - 0.9**t, 1 - 0.98**t
    model = each(lambda x, m, v: x - eta * (m / a) / (np.sqrt(v / b) + epsilon), model, M, V)
    return model, Adam(M, V, t)


def solved(model: Model, data: Batch) -> Array:
    """Which sequences the model writes without a mistake, each token after its own."""
    encoded, B = encode(model, data.Z), padding(data.Z)
    X = data.X * (np.arange(data.X.shape[1]) == 0)[:, None]
    right = np.ones(len(X), bool)
    for i in range(X.shape[1]):
        A = decode(model, X, encoded.Z, B).A[:, i]
        token = one_hot(A.argmax(-1))
        E = data.E[:, i]
        right &= (token == E).all(-1) | ~E.any(-1)
        if i + 1 < X.shape[1]:
            X[:, i + 1] = token
    return right
