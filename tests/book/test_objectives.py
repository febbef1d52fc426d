"""The three objectives of the chapter on applications, on models whose answer is known."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnmath._words.tolerance import TRAINED
from attnmath.book.networks import burgers, mean_flow, penalised, score, step
from attnmath.torch import scaled_dot_product_attention

TASKS = "mean_flow", "penalised", "burgers"


def math_kernel(*x):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*x)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=float)


def bent_path(r, t):
    """Points X + t E + t t F, their velocity, and the model that knows the mean velocity."""
    X, E, G = drawn(3, 2, 5, 2).unbind()
    return X + t * E + t**2 * G, E + 2 * t * G, lambda Z, r, t: (Z - X - r * E - r**2 * G) / (t - r)


def test_the_mean_velocity_of_a_known_path_has_no_loss():
    r, t = torch.full((2, 1, 1), 0.2, dtype=float), torch.full((2, 1, 1), 0.7, dtype=float)
    Z, V, exact = bent_path(r, t)
    assert mean_flow(exact, Z, V, r, t) < 1e-28
    assert mean_flow(lambda *x: 1.01 * exact(*x), Z, V, r, t) > 1e-4
    assert mean_flow(lambda Z, r, t: V, Z, V, r, t) < 1e-28        # U = V does not move ...
    assert mean_flow(lambda Z, r, t: V * t, Z, V, r, t) > 1e-4     # ... and this does


def test_the_target_is_a_constant():
    r, t = torch.full((2, 1, 1), 0.2, dtype=float), torch.full((2, 1, 1), 0.7, dtype=float)
    Z, V, exact = bent_path(r, t)
    size = torch.tensor(1.3, dtype=float, requires_grad=True)
    mean_flow(lambda *x: size * exact(*x), Z, V, r, t).backward()
    U = exact(Z, r, t)
    target = V - 1.3 * (V - U)                                     # (t - r) U_dot = V - U
    assert size.grad == pytest.approx((2 * (1.3 * U - target) * U).mean().item(), rel=1e-12)


def test_the_best_critic_is_linear():
    X, way, weight = drawn(6, 4, 2), drawn(4, 2, seed=1), 5.0
    size = way.norm().item()
    s = torch.linspace(0, 1, 6, dtype=float)[:, None, None]

    def loss(slope):
        return penalised(lambda X: slope * (X * way / size).sum((1, 2)), X, way, s, weight).item()

    best = -(size + size**2 / (4 * weight))
    assert loss(1 + size / (2 * weight)) == pytest.approx(best, rel=1e-12)
    assert min(loss(1.0), loss(1 + size / weight)) > best + 1e-3


def test_the_penalty_is_differentiated_too():
    X, way, slope = drawn(6, 4, 2), drawn(4, 2, seed=1), torch.tensor(2.0, dtype=float, requires_grad=True)
    size = way.norm()
    penalised(lambda X: slope * (X * way / size).sum((1, 2)), X, way, torch.tensor(0.5), 5.0).backward()
    assert slope.grad == pytest.approx((2 * 5.0 * (2 - 1) - size).item(), rel=1e-12)


def test_a_running_front_obeys_burgers_equation():
    x, t = drawn(9, 1), drawn(9, 1, seed=1).abs()

    def front(x, t, eta=0.3, speed=0.5):
        return speed - torch.tanh((x - speed * t) / (2 * eta))

    assert burgers(front, x, t, 0.3) < 1e-28
    assert burgers(front, x, t, 0.31) > 1e-5
    assert burgers(lambda x, t: front(x, 1.1 * t), x, t, 0.3) > 1e-5
    assert burgers(lambda x, t: torch.sin(math.pi * x) * t, x, t, 0.3) > 1e-2


def gradients(task, attention):
    """The loss of one step and what it leaves in the model, as the step holds it."""
    one = step(task, attention, 7, torch.float64)
    loss = one()
    model = next(cell.cell_contents for cell in one.__closure__
                 if isinstance(cell.cell_contents, torch.nn.Module))
    return loss, [p.grad for p in model.parameters()]


@pytest.mark.parametrize("task", TASKS)
def test_a_step_is_that_of_the_math_kernel(task):
    (loss, ours), (expected, theirs) = (
        gradients(task, f) for f in (scaled_dot_product_attention, math_kernel))
    assert loss == pytest.approx(expected.item(), rel=TRAINED)
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() <= TRAINED * b.norm()


@pytest.mark.parametrize("task", TASKS)
def test_the_fused_kernel_refuses(task):
    with pytest.raises(RuntimeError, match="implemented"):
        step(task, F.scaled_dot_product_attention, 7)()


def test_a_score_is_a_mean_over_the_points():
    X = drawn(3, 4, 2)
    assert torch.allclose(score(lambda X: X)(X), X.mean((1, 2)))
