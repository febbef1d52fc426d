"""Networks of PyTorch that the book trains: with derivatives inside of their objectives, and the twin of its own.

The small transformers are given the attention that they use, a function of the signature of PyTorch's.
The twin is the transformer that is trained by hand, built out of PyTorch's own modules: it knows no
formula of this book, as torch.nn.Transformer computes and autograd differentiates.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnmath.book.sequences import Batch
from attnmath.book.training import Transformer
from attnmath.torch import load_weights


def _random_weights(rows: int, columns: int, draws: torch.Generator) -> torch.nn.Parameter:
    W = torch.randn(rows, columns, generator=draws, dtype=torch.float64)
    return torch.nn.Parameter(W / math.sqrt(rows))


class Block(torch.nn.Module):
    """Attention and a small network, each added to the tokens X; keys are made of Z."""

    def __init__(self, d: int, heads: int, attention: Callable, draws: torch.Generator):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.query, self.key, self.value, self.out = (_random_weights(d, d, draws) for _ in range(4))
        self.up, self.down = _random_weights(d, 2 * d, draws), _random_weights(2 * d, d, draws)
        self.shift = torch.nn.Parameter(torch.zeros(2 * d, dtype=torch.float64))

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        Q, K, V = X @ self.query, Z @ self.key, Z @ self.value
        Q, K, V = (x.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for x in (Q, K, V))
        O = self.attention(Q, K, V).transpose(-2, -3).flatten(-2)
        X = X + O @ self.out
        return X + torch.tanh(X @ self.up + self.shift) @ self.down


class Sets(torch.nn.Module):
    """From sets of points, and numbers that all of a set share, to a row for each point."""

    def __init__(self, given: int, found: int, attention: Callable, *,
                 d: int, heads: int = 2, depth: int = 1, seed: int = 0):
        super().__init__()
        draws = torch.Generator().manual_seed(seed)
        self.first = _random_weights(given + 1, d, draws)
        blocks = (Block(d, heads, attention, draws) for _ in range(depth))
        self.blocks = torch.nn.ModuleList(blocks)
        self.last = _random_weights(d, found, draws)

    def forward(self, points: Tensor, *shared: Tensor) -> Tensor:
        ones = torch.ones_like(points[..., :1])
        X = torch.cat([points, *(s * ones for s in shared), ones], -1) @ self.first
        for block in self.blocks:
            X = block(X, X)
        return X @ self.last


class Field(torch.nn.Module):
    """A function of x and t: every place asks a number of tokens that are learned."""

    def __init__(self, tokens: int, attention: Callable, *,
                 d: int, heads: int = 2, depth: int = 1, seed: int = 0):
        super().__init__()
        draws = torch.Generator().manual_seed(seed)
        self.first, self.tokens = _random_weights(3, d, draws), _random_weights(d, tokens, draws)
        blocks = (Block(d, heads, attention, draws) for _ in range(depth))
        self.blocks = torch.nn.ModuleList(blocks)
        self.last = _random_weights(d, 1, draws)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        X = torch.tanh(torch.cat([x, t, torch.ones_like(x)], -1) @ self.first)
        Z = self.tokens.mT * math.sqrt(self.tokens.shape[0])
        for block in self.blocks:
            X = block(X[None], Z[None])[0]
        return X @ self.last


def mean_flow(model: Callable, Z: Tensor, V: Tensor, r: Tensor, t: Tensor) -> Tensor:
    """How far the mean velocity is from what its own tangent along the path demands."""
    def velocity(Z: Tensor, t: Tensor) -> Tensor:
        return model(Z, r, t)

    U, U_dot = torch.func.jvp(velocity, (Z, t), (V, torch.ones_like(t)))[:2]
    target = (V - (t - r) * U_dot).detach()
    return ((U - target) ** 2).mean()


def penalised(critic: Callable, X: Tensor, F: Tensor, s: Tensor, weight: float) -> Tensor:
    """A penalty on slopes other than one between X and X + F, less what the critic gains."""
    gain = critic(X + F) - critic(X)
    between = (X + s * F).requires_grad_()
    (G,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return (weight * (G.flatten(1).norm(dim=1) - 1) ** 2 - gain).mean()


def burgers(field: Callable, x: Tensor, t: Tensor, eta: float) -> Tensor:
    """The mean square of what is left of Burgers' equation, one place in each row."""
    x, t = x.clone().requires_grad_(), t.clone().requires_grad_()
    u = field(x, t)
    u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
    (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
    return ((u_t + u * u_x - eta * u_xx) ** 2).mean()


def score(model: Callable) -> Callable:
    """One number for each set: the mean over its points, as a critic is asked for."""
    return lambda X: model(X).mean((1, 2))


def train(model: torch.nn.Module, loss_of: Callable, steps: int, rate: float) -> list:
    """The loss before every step of Adam; the rate falls to zero like a cosine."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimiser.step()
        falling.step()
        losses.append(loss.item())
    return losses


def step(task: str, attention: Callable, n: int, dtype: torch.dtype = torch.float32) -> Callable:
    """One step of a training on n tokens, one head of 64 features, without the optimiser.

    task is mean_flow, penalised or burgers. The function that is returned finds the loss
    and all gradients, and returns the loss.
    """
    draws = torch.Generator().manual_seed(n)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws, dtype=torch.float64).to(dtype)

    model = {
        "mean_flow": lambda: Sets(4, 2, attention, d=64, heads=1),
        "penalised": lambda: Sets(2, 1, attention, d=64, heads=1),
        "burgers": lambda: Field(n, attention, d=64, heads=1),
    }[task]().to(dtype)
    X, V, x, t = drawn(1, n, 2), drawn(1, n, 2), drawn(n, 1), drawn(n, 1)
    r, s = (torch.full((1, 1, 1), number, dtype=dtype) for number in (0.25, 0.75))

    def one() -> Tensor:
        model.zero_grad()
        loss = {
            "mean_flow": lambda: mean_flow(model, X, V, r, s),
            "penalised": lambda: penalised(score(model), X, V, s, 10.0),
            "burgers": lambda: burgers(model, x, t, 0.2),
        }[task]()
        loss.backward()
        return loss.detach()

    return one


def twin(model: Transformer) -> Any:
    """A torch.nn.Module with the weights of the model."""
    (tokens, d), (_, d_u) = model.encoder.embedding.shape, model.encoder.network.W_U.shape
    net, double = torch.nn.Module(), torch.float64
    with warnings.catch_warnings():  # it says that it will not use a fast path
        warnings.simplefilter("ignore")
        net.transformer = torch.nn.Transformer(
            d, len(model.encoder.own.W_Q), 1, 1, d_u, 0.0, torch.nn.functional.silu,
            norm_first=True, batch_first=True, dtype=double,
        )
    net.embedding_Z, net.embedding_X = (torch.nn.Linear(tokens, d, bias=False, dtype=double) for _ in "ZX")
    net.places_Z, net.places_X = (
        torch.nn.Parameter(torch.empty(half.places.shape, dtype=double)) for half in model
    )
    net.last = torch.nn.Linear(d, tokens, dtype=double)
    write_weights(net, model)
    return net


def write_weights(net: Any, model: Transformer) -> None:
    """Write the weights, or anything that has their places, into the module."""
    E, D = net.transformer.encoder, net.transformer.decoder
    (e,), (d,), (encoder, decoder) = E.layers, D.layers, model
    load_weights(e.self_attn, encoder.own)
    load_weights(d.self_attn, decoder.own)
    load_weights(d.multihead_attn, decoder.cross)
    network = encoder.network, decoder.network
    pairs: list[tuple] = [
        (net.embedding_Z, encoder.embedding.T), (net.embedding_X, decoder.embedding.T),
        (e.norm1, *encoder.norm_1), (e.norm2, *encoder.norm_2), (E.norm, *encoder.norm_3),
        (d.norm1, *decoder.norm_1), (d.norm2, *decoder.norm_2), (d.norm3, *decoder.norm_3),
        (D.norm, *decoder.norm_4), (net.last, decoder.W.T, decoder.b),
        (e.linear1, network[0].W_U.T, network[0].b_U), (e.linear2, network[0].W_D.T, network[0].b_D),
        (d.linear1, network[1].W_U.T, network[1].b_U), (d.linear2, network[1].W_D.T, network[1].b_D),
    ]
    for module, *arrays in pairs:
        for parameter, array in zip((module.weight, getattr(module, "bias", None)), arrays):
            _fill(parameter, array)
    _fill(net.places_Z, encoder.places)
    _fill(net.places_X, decoder.places)


def _fill(parameter: Any, array: Any) -> None:
    parameter.data.copy_(parameter.new_tensor(array))


def loss_of(net: Any, data: Batch) -> Any:
    """The loss as PyTorch computes it; its masks say True where nobody may attend."""
    Z, X, E = (torch.as_tensor(x) for x in data[:3])
    hidden, n = ~Z.any(-1), X.shape[1]
    Y = net.transformer(
        net.embedding_Z(Z) + net.places_Z, net.embedding_X(X) + net.places_X,
        tgt_mask=torch.ones(n, n, dtype=torch.bool).triu(1),
        src_key_padding_mask=hidden, memory_key_padding_mask=hidden,
    )
    A, answers = net.last(Y), torch.where(E.any(-1), E.argmax(-1), -1)
    return torch.nn.functional.cross_entropy(A.mT, answers, ignore_index=-1)
