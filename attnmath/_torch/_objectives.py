"""Three objectives with derivatives inside, and small transformers to train with them.

Every model is given the attention that it uses, a function of the signature of PyTorch's.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def _drawn(rows: int, columns: int, draws: torch.Generator) -> torch.nn.Parameter:
    W = torch.randn(rows, columns, generator=draws, dtype=torch.float64)
    return torch.nn.Parameter(W / math.sqrt(rows))


class Block(torch.nn.Module):
    """Attention and a small network, each added to the tokens X; keys are made of Z."""

    def __init__(self, d: int, heads: int, attention: Callable, draws: torch.Generator):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.query, self.key, self.value, self.out = (_drawn(d, d, draws) for _ in range(4))
        self.up, self.down = _drawn(d, 2 * d, draws), _drawn(2 * d, d, draws)
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
        self.first = _drawn(given + 1, d, draws)
        blocks = (Block(d, heads, attention, draws) for _ in range(depth))
        self.blocks = torch.nn.ModuleList(blocks)
        self.last = _drawn(d, found, draws)

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
        self.first, self.tokens = _drawn(3, d, draws), _drawn(d, tokens, draws)
        blocks = (Block(d, heads, attention, draws) for _ in range(depth))
        self.blocks = torch.nn.ModuleList(blocks)
        self.last = _drawn(d, 1, draws)

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

    U, U_dot = torch.func.jvp(velocity, (Z, t), (V, torch.ones_like(t)))
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
