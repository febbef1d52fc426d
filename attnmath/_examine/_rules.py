"""Rules by which gradients of attention are commonly accepted, each as its project has it.

A rule is a function of a candidate, a right attention and a problem that says whether the candidate passes;
both are called as f(*inputs) on torch's tensors and give an output. What each format, tolerance and loss is,
is part of the rule. `RULES` has them in the order of the table in chapters/bugs.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

Attention = Callable[..., "Tensor"]


class Trial(NamedTuple):
    """Inputs in float64, and a random gradient of the output."""

    inputs: tuple[Tensor, ...]
    dO: Tensor


def gradients(f: Attention, trial: Trial, dtype: str, dO: Tensor | None = None) -> list[Tensor]:
    """The output and the gradients of the inputs in a format, as float64; dO is the trial's unless given."""
    import torch

    x = [t.to(getattr(torch, dtype)).requires_grad_() for t in trial.inputs]
    O = f(*x)
    dO = trial.dO.to(O.dtype) if dO is None else dO.to(O.dtype)
    return [y.detach().double() for y in (O, *torch.autograd.grad(O, x, dO))]


def worst(got: Tensor, want: Tensor) -> float:
    """The largest difference; NaN if anything is NaN."""
    return (got - want).abs().max().item()


def gradcheck(f: Attention, right: Attention, trial: Trial, fast: bool = False) -> bool:
    """torch.autograd.gradcheck as it is: every input by differences, 1e-5 + 1e-3 of the entry, float64."""
    import torch

    x = [t.clone().requires_grad_() for t in trial.inputs]
    return torch.autograd.gradcheck(f, x, fast_mode=fast, raise_exception=False)


def gradcheck_fast(f: Attention, right: Attention, trial: Trial) -> bool:
    """The same with fast_mode: one random projection."""
    return gradcheck(f, right, trial, fast=True)


def projected(f: Attention, trial: Trial, dtype: str, step: float) -> tuple[float, float]:
    """The derivative of <dO, O> along one random direction: by differences, and by the gradients."""
    import torch

    x = [t.to(getattr(torch, dtype)) for t in trial.inputs]
    draw = torch.Generator().manual_seed(0)
    v = [torch.randn(t.shape, generator=draw, dtype=torch.float64).to(t.dtype) for t in x]
    above, below = (f(*(t + sign * step * s for t, s in zip(x, v))) for sign in (1, -1))
    dO = trial.dO.to(above.dtype)
    numeric = (dO * (above - below)).sum() / (2 * step)
    exact = sum((s * g.to(s.dtype)).sum() for s, g in zip(v, gradients(f, trial, dtype)[1:]))
    return numeric.item(), exact.item()


def jax_rule(f: Attention, right: Attention, trial: Trial) -> bool:
    """jax.test_util.check_grads in reverse mode: one direction, float32, step 1e-4, tolerances 2e-3."""
    numeric, exact = projected(f, trial, "float32", 1e-4)
    return abs(exact - numeric) <= 2e-3 + 2e-3 * abs(numeric)


def hips_rule(f: Attention, right: Attention, trial: Trial) -> bool:
    """autograd's check_vjp: one direction, float64, 1e-6 absolute or relative to the sum of both."""
    numeric, exact = projected(f, trial, "float64", 5e-7)
    return abs(exact - numeric) < 1e-6 or abs(exact - numeric) / abs(exact + numeric) < 1e-6


def sum_rule(f: Attention, right: Attention, trial: Trial) -> bool:
    """Autograd of a plain program, float32, the loss is the sum of the output: 1e-4 everywhere."""
    import torch

    dO = torch.ones(()).expand(trial.dO.shape)  # as backward of a sum has it: one number, no strides
    return all(
        torch.allclose(g, w, rtol=1e-4, atol=1e-4)
        for g, w in zip(gradients(f, trial, "float32", dO), gradients(right, trial, "float32", dO))
    )


def flash_rule(f: Attention, right: Attention, trial: Trial) -> bool:
    """FlashAttention's tests: bfloat16, at most twice the largest error of a plain program in bfloat16."""
    rounded = Trial(tuple(t.bfloat16().double() for t in trial.inputs), trial.dO.bfloat16().double())
    got, plain = gradients(f, trial, "bfloat16"), gradients(right, trial, "bfloat16")
    want = gradients(right, rounded, "float64")
    return all(worst(g, w) <= 2 * worst(p, w) for g, p, w in zip(got, plain, want))


def fla_rule(f: Attention, right: Attention, trial: Trial, ci: bool = False) -> bool:
    """flash-linear-attention: root mean square error below 0.005 of the root mean square, float32."""

    def close(g: Tensor, w: Tensor) -> bool:
        error = worst(g, w)
        ratio = ((g - w).square().mean().sqrt() / (w.square().mean().sqrt() + 1e-8)).item()
        return error <= 1e-6 or ratio < 0.005 or ci and (ratio < 0.01 or error <= 0.3)

    return all(map(close, gradients(f, trial, "float32"), gradients(right, trial, "float32")))


def fla_ci_rule(f: Attention, right: Attention, trial: Trial) -> bool:
    """The same in its continuous integration, where an error of at most 0.3 is a warning."""
    return fla_rule(f, right, trial, ci=True)


def triton_rule(f: Attention, right: Attention, trial: Trial) -> bool:
    """Triton's tutorial: float16, inputs of size 0.5, every entry within 0.01."""
    small = Trial(tuple(t / 2 for t in trial.inputs), trial.dO)
    got, want = gradients(f, small, "float16"), gradients(right, small, "float16")
    return all(worst(g, w) <= 1e-2 for g, w in zip(got, want))


def mean_rule(f: Attention, right: Attention, trial: Trial) -> bool:
    """allclose with tolerances of 0.01, float32; the loss is the mean of the output."""
    import torch

    dO = torch.ones_like(trial.dO) / trial.dO.numel()
    return all(
        torch.allclose(g, w, rtol=1e-2, atol=1e-2)
        for g, w in zip(gradients(f, trial, "float32", dO), gradients(right, trial, "float32", dO))
    )


def llmc_rule(f: Attention, right: Attention, trial: Trial) -> bool:
    """llm.c's check_tensor: float32, every entry within 0.02; dO that of a mean over the tokens."""
    dO = trial.dO / (trial.dO.shape[0] * trial.dO.shape[2])
    got, want = gradients(f, trial, "float32", dO), gradients(right, trial, "float32", dO)
    return all(worst(g, w) <= 2e-2 for g, w in zip(got, want))


def kernelbench_rule(f: Attention, right: Attention, trial: Trial) -> bool:
    """KernelBench: the output alone, float32, tolerances of 1e-4."""
    import torch

    x = [t.float() for t in trial.inputs]
    return torch.allclose(f(*x), right(*x), rtol=1e-4, atol=1e-4)


RULES: dict[str, Callable[[Attention, Attention, Trial], bool]] = {
    "gradcheck": gradcheck,
    "gradcheck fast": gradcheck_fast,
    "JAX check_grads": jax_rule,
    "HIPS check_grads": hips_rule,
    "sum, 1e-4": sum_rule,
    "FlashAttention": flash_rule,
    "fla": fla_rule,
    "fla in CI": fla_ci_rule,
    "Triton tutorial": triton_rule,
    "mean, 1e-2": mean_rule,
    "llm.c": llmc_rule,
    "KernelBench": kernelbench_rule,
}
