"""The task of the transformer that is trained by hand: to copy or reverse a sequence.

Its data, its steps, and the weights that came out of them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from attnmath._formulas.blocks import cross_entropy, cross_entropy_vjp
from attnmath._words.named_tuples import each_part
from attnmath.book.training import (
    Decoded,
    Encoded,
    Transformer,
    decode,
    decode_vjp,
    encode,
    encode_vjp,
    hide_padding,
    start,
)

SYMBOLS, SHORTEST, LONGEST = 8, 2, 7
EDGE, COPY, REVERSE = range(SYMBOLS, SYMBOLS + 3)  # after the symbols 0 to 7
TRAINING_SEED, TRAINING_STEPS, BATCH_SIZE, RATE, WARM = 1, 2500, 32, 5e-3, 100
WEIGHTS_FILE = Path(__file__).with_name("trained.json")


class Batch(NamedTuple):
    """Some sequences: what is read, what is written, what should come next, and whence.

    Z (b, m, tokens) is an edge, the symbols, an edge. X (b, n, tokens) is the task and
    the symbols written before. E (b, n, tokens) is what should come next, an edge at
    last. place (b, n) is where this stands in Z, -1 where nothing is to be written.
    """

    Z: ndarray
    X: ndarray
    E: ndarray
    place: ndarray


def is_held_out(symbols: ndarray) -> bool:
    """Whether a sequence is kept for the test: if the sum of its symbols ends in 0 or 5."""
    return symbols.sum() % 5 == 0


def batch(rng: np.random.Generator, size: int, held_out: bool = False) -> Batch:
    """Random sequences of random length with random tasks, held out or not."""
    Z, X, E, place = (np.full((size, LONGEST + k), -1) for k in (2, 1, 1, 1))
    for i in range(size):
        symbols, task = one_sequence(rng, held_out), rng.choice([COPY, REVERSE])
        k = len(symbols)
        Z[i, : k + 2] = [EDGE, *symbols, EDGE]
        place[i, : k + 1] = range(1, k + 2) if task == COPY else range(k, -1, -1)
        E[i, : k + 1] = Z[i, place[i, : k + 1]]
        X[i, : k + 1] = [task, *E[i, :k]]
    return Batch(one_hot(Z), one_hot(X), one_hot(E), place)


def one_sequence(rng: np.random.Generator, held_out: bool) -> ndarray:
    """One sequence, held out or not."""
    while True:
        symbols = rng.integers(SYMBOLS, size=rng.integers(SHORTEST, LONGEST + 1))
        if is_held_out(symbols) == held_out:
            return symbols


def one_hot(numbers: ndarray) -> ndarray:
    """A one at each token's number; zeros for -1."""
    return 1.0 * (numbers[..., None] == np.arange(SYMBOLS + 3))


def run_model(model: Transformer, data: Batch) -> tuple[Encoded, Decoded]:
    """Everything that the model computes, each next token from the true ones before."""
    encoded = encode(model.encoder, data.Z)
    return encoded, decode(model.decoder, data.X, encoded.Z, hide_padding(data.Z))


def gradient(model: Transformer, data: Batch) -> tuple[float, Transformer]:
    """The loss, a mean over all that is to be written, and its gradient in the model."""
    count, (encoded, decoded) = data.E.sum(), run_model(model, data)
    loss = cross_entropy(decoded.A, E=data.E) / count
    dA = cross_entropy_vjp(1 / count, decoded.A, E=data.E)
    given = data.X, encoded.Z, hide_padding(data.Z), decoded
    ddecoder, dZ = decode_vjp(dA, model.decoder, *given)
    dencoder = encode_vjp(dZ, model.encoder, data.Z, encoded)
    return loss, Transformer(dencoder, ddecoder)


class State(NamedTuple):
    """The model after t steps, and the running means of its gradients and their squares."""

    t: int
    model: Transformer
    M: Transformer
    S: Transformer


def adam(state: State, dmodel: Transformer, eta: float, small: float = 1e-8) -> State:
    """One step of Adam: against the mean gradient, each entry in units of its size."""
    t, model, M, S = state.t + 1, *state[1:]
    M = each_part(lambda m, g: 0.9 * m + 0.1 * g, M, dmodel)
    S = each_part(lambda s, g: 0.98 * s + 0.02 * g * g, S, dmodel)

    def moved(x: ndarray, m: ndarray, s: ndarray) -> ndarray:
        m, s = m / (1 - 0.9**t), s / (1 - 0.98**t)
        return x - eta * m / (np.sqrt(s) + small)

    return State(t, each_part(moved, model, M, S), M, S)


def step_size(t: int) -> float:
    """The size of step t: it grows, then shrinks to zero."""
    return RATE * min(1, t / WARM, 2 - 2 * t / TRAINING_STEPS)


def first(rng: np.random.Generator) -> State:
    """The state before the first step: a random model, and no mean yet."""
    model = start(rng, SYMBOLS + 3, LONGEST + 2, LONGEST + 1)
    zeros = each_part(np.zeros_like, model)
    return State(0, model, zeros, zeros)


def training_steps(state: State, rng: np.random.Generator) -> Iterator[tuple]:
    """One step after the other: the batch, the loss on it, and the state after the step."""
    while state.t < TRAINING_STEPS:
        data = batch(rng, BATCH_SIZE)
        loss, dmodel = gradient(state.model, data)
        state = adam(state, dmodel, step_size(state.t + 1))
        yield data, loss, state


def written_out(model: Transformer, data: Batch) -> ndarray:
    """What the model writes by itself, every token from its own before: (b, n)."""
    encoded, B = encode(model.encoder, data.Z), hide_padding(data.Z)
    X = data.X.copy()
    for i in range(X.shape[1]):
        tokens = decode(model.decoder, X, encoded.Z, B).A.argmax(-1)
        X[:, i + 1 :][:, :1] = one_hot(tokens[:, i : i + 1])
    return tokens


def solved(model: Transformer, data: Batch) -> ndarray:
    """Which sequences the model writes to their end without a mistake: (b,)."""
    right = written_out(model, data) == data.E.argmax(-1)
    return (right | (data.place < 0)).all(-1)


def save(model: Transformer, losses: list[float]) -> None:
    """The weights with four decimals, and the losses on the way."""
    text = {"losses": losses, "weights": each_part(lambda x: x.round(4).tolist(), model)}
    WEIGHTS_FILE.write_text(json.dumps(text).replace(" ", "") + "\n", "ascii")


def trained() -> tuple[Transformer, ndarray]:
    """The trained model, and the losses of the first steps that led to it."""
    text = json.loads(WEIGHTS_FILE.read_text("ascii"))
    form = first(np.random.default_rng(0)).model
    return as_tree(form, text["weights"]), np.array(text["losses"])


def as_tree(tree: Any, lists: list) -> Any:
    """Nested lists as a tree of arrays of this form."""
    if isinstance(tree, tuple):
        return type(tree)(*map(as_tree, tree, lists))
    return np.array(lists).reshape(tree.shape)
