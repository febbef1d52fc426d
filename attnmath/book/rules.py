"""What others' rules, and single problems and laws, see of a wrong gradient.

A rule is a function of a candidate, a right attention and a problem that says whether the candidate passes;
both are called as f(*inputs) on torch's tensors and give an output. What each format, tolerance and loss is,
is part of the rule. `RULES` has them in the order of the table in chapters/bugs.md. Below them stands what
single problems see of the dictionary's mistakes, for chapters/examine.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnmath._examine.mistakes.mistakes import MISTAKES
from attnmath._examine.mistakes.modes import BACK_NAMES, again, in_way_back
from attnmath._examine.problems.bounds import bounds, judge_answer, right_answer
from attnmath._examine.problems.case import Answer, Case, Conventions, Draft
from attnmath._examine.problems.families import drawn_case
from attnmath._examine.problems.steps import StepChanges, Steps, T, grouped
from attnmath.rounding.formats import nearest
from attnmath.rounding.heads import fused_head

if TYPE_CHECKING:
    from torch import Tensor

AttentionProgram = Callable[..., "Tensor"]


class Probe(NamedTuple):
    """Inputs in float64, and a random gradient of the output."""

    inputs: tuple[Tensor, ...]
    dO: Tensor


def both_passes(f: AttentionProgram, probe: Probe, dtype: str, dO: Tensor | None = None) -> list[Tensor]:
    """The output and the gradients of the inputs in a format, as float64; dO is the probe's unless given."""
    import torch

    x = [t.to(getattr(torch, dtype)).requires_grad_() for t in probe.inputs]
    O = f(*x)
    dO = probe.dO.to(O.dtype) if dO is None else dO.to(O.dtype)
    return [y.detach().double() for y in (O, *torch.autograd.grad(O, x, dO))]


def largest_error(got: Tensor, want: Tensor) -> float:
    """The largest difference; NaN if anything is NaN."""
    return (got - want).abs().max().item()


def gradcheck(f: AttentionProgram, right: AttentionProgram, probe: Probe, fast: bool = False) -> bool:
    """torch.autograd.gradcheck as it is: every input by differences, 1e-5 + 1e-3 of the entry, float64."""
    import torch

    x = [t.clone().requires_grad_() for t in probe.inputs]
    return torch.autograd.gradcheck(f, x, fast_mode=fast, raise_exception=False)


def gradcheck_fast(f: AttentionProgram, right: AttentionProgram, probe: Probe) -> bool:
    """The same with fast_mode: one random projection."""
    return gradcheck(f, right, probe, fast=True)


def along_one(f: AttentionProgram, probe: Probe, dtype: str, step: float) -> tuple[float, float]:
    """The derivative of <dO, O> along one random direction: by differences, and by the gradients."""
    import torch

    x = [t.to(getattr(torch, dtype)) for t in probe.inputs]
    draw = torch.Generator().manual_seed(0)
    v = [torch.randn(t.shape, generator=draw, dtype=torch.float64).to(t.dtype) for t in x]
    above, below = (f(*(t + sign * step * s for t, s in zip(x, v))) for sign in (1, -1))
    dO = probe.dO.to(above.dtype)
    numeric = (dO * (above - below)).sum() / (2 * step)
    exact = sum((s * g.to(s.dtype)).sum().item() for s, g in zip(v, both_passes(f, probe, dtype)[1:]))
    return numeric.item(), exact


def jax_rule(f: AttentionProgram, right: AttentionProgram, probe: Probe) -> bool:
    """jax.test_util.check_grads in reverse mode: one direction, float32, step 1e-4, tolerances 2e-3."""
    numeric, exact = along_one(f, probe, "float32", 1e-4)
    return abs(exact - numeric) <= 2e-3 + 2e-3 * abs(numeric)


def hips_rule(f: AttentionProgram, right: AttentionProgram, probe: Probe) -> bool:
    """autograd's check_vjp: one direction, float64, 1e-6 absolute or relative to the sum of both."""
    numeric, exact = along_one(f, probe, "float64", 5e-7)
    return abs(exact - numeric) < 1e-6 or abs(exact - numeric) / abs(exact + numeric) < 1e-6


def all_close(
    f: AttentionProgram, right: AttentionProgram, probe: Probe, dO: Tensor, tolerance: float
) -> bool:
    """torch.allclose in float32 of the output and of all gradients, absolute and relative alike."""
    import torch

    pairs = zip(both_passes(f, probe, "float32", dO), both_passes(right, probe, "float32", dO))
    return all(torch.allclose(got, want, rtol=tolerance, atol=tolerance) for got, want in pairs)


def sum_rule(f: AttentionProgram, right: AttentionProgram, probe: Probe) -> bool:
    """Autograd of a plain program, float32, the loss is the sum of the output: 1e-4 everywhere."""
    import torch

    dO = torch.ones(()).expand(probe.dO.shape)  # as backward of a sum has it: one number, no strides
    return all_close(f, right, probe, dO, 1e-4)


def flash_rule(f: AttentionProgram, right: AttentionProgram, probe: Probe) -> bool:
    """FlashAttention's tests: bfloat16, at most twice the largest error of a plain program in bfloat16."""
    rounded = Probe(tuple(t.bfloat16().double() for t in probe.inputs), probe.dO.bfloat16().double())
    got, plain = both_passes(f, probe, "bfloat16"), both_passes(right, probe, "bfloat16")
    want = both_passes(right, rounded, "float64")
    return all(largest_error(g, w) <= 2 * largest_error(p, w) for g, p, w in zip(got, plain, want))


def fla_rule(f: AttentionProgram, right: AttentionProgram, probe: Probe, ci: bool = False) -> bool:
    """flash-linear-attention: root mean square error below 0.005 of the root mean square, float32."""

    def close(g: Tensor, w: Tensor) -> bool:
        error = largest_error(g, w)
        ratio = ((g - w).square().mean().sqrt() / (w.square().mean().sqrt() + 1e-8)).item()
        return error <= 1e-6 or ratio < 0.005 or ci and (ratio < 0.01 or error <= 0.3)

    return all(map(close, both_passes(f, probe, "float32"), both_passes(right, probe, "float32")))


def fla_ci_rule(f: AttentionProgram, right: AttentionProgram, probe: Probe) -> bool:
    """The same in its continuous integration, where an error of at most 0.3 is a warning."""
    return fla_rule(f, right, probe, ci=True)


def triton_rule(f: AttentionProgram, right: AttentionProgram, probe: Probe) -> bool:
    """Triton's tutorial: float16, inputs of size 0.5, every entry within 0.01."""
    small = Probe(tuple(t / 2 for t in probe.inputs), probe.dO)
    got, want = both_passes(f, small, "float16"), both_passes(right, small, "float16")
    return all(largest_error(g, w) <= 1e-2 for g, w in zip(got, want))


def mean_rule(f: AttentionProgram, right: AttentionProgram, probe: Probe) -> bool:
    """allclose with tolerances of 0.01, float32; the loss is the mean of the output."""
    import torch

    return all_close(f, right, probe, torch.ones_like(probe.dO) / probe.dO.numel(), 1e-2)


def llmc_rule(f: AttentionProgram, right: AttentionProgram, probe: Probe) -> bool:
    """llm.c's check_tensor: float32, every entry within 0.02; dO that of a mean over the tokens."""
    dO = probe.dO / (probe.dO.shape[0] * probe.dO.shape[2])
    got, want = both_passes(f, probe, "float32", dO), both_passes(right, probe, "float32", dO)
    return all(largest_error(g, w) <= 2e-2 for g, w in zip(got, want))


def kernelbench_rule(f: AttentionProgram, right: AttentionProgram, probe: Probe) -> bool:
    """KernelBench: the output alone, float32, tolerances of 1e-4."""
    import torch

    x = [t.float() for t in probe.inputs]
    return torch.allclose(f(*x), right(*x), rtol=1e-4, atol=1e-4)


RULES: dict[str, Callable[[AttentionProgram, AttentionProgram, Probe], bool]] = {
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


# ---- single problems and laws --------------------------------------------------------------------

TRIAL_MEANS = Conventions(causal="lower_right")
FIRST_FORMS = {m.name: m for m in reversed(MISTAKES)}  # the first form of each
IN_WAY_BACK = {BACK_NAMES[name]: m for name, m in FIRST_FORMS.items() if name in BACK_NAMES}
SUM_ROUNDINGS = 1e-12  # of the sizes that are summed up: some dozen roundings


def single_problem(sizes: tuple, family: str = "gaussian", dtype: str = "float64", **kind: Any) -> Case:
    """A problem of the sizes b, H, G, n, m, d_k, d_v."""
    return drawn_case(Draft(family, sizes, **kind), dtype, np.random.default_rng(3))


def wrong(case: Case, mistake: str | StepChanges, dtype: str = "float64") -> Answer | None:
    """What a program with this mistake returns; None where the problem has no room for it."""
    if not isinstance(mistake, str):
        changes = [mistake]
    elif mistake in FIRST_FORMS:
        changes = [change for _, change in FIRST_FORMS[mistake].forms(case, TRIAL_MEANS)]
    else:
        changes = [in_way_back(again(x)) for _, x in IN_WAY_BACK[mistake].forms(case, TRIAL_MEANS)]
    for change in changes:
        O, *gradients = Steps(case, TRIAL_MEANS, [change]).answer()
        return Answer(nearest(O, dtype), *(None if x is None else nearest(x, dtype) for x in gradients))
    return None


def kernel(case: Case, dtype: str) -> Answer:
    """What a right kernel with tiles returns that rounds every operation, head by head."""
    gamma, B = case.gamma(TRIAL_MEANS), np.zeros((case.Q.shape[2], case.K.shape[2]))
    answers = []
    for x in zip(case.dO[0], case.Q[0], case.K[0], case.V[0]):
        O, _, back = fused_head(*x, B, gamma, dtype)
        answers.append((O, *back[:3]))
    return Answer(*(np.stack(x)[None] for x in zip(*answers)))


def worst_ratio(case: Case, got: Answer, dtype: str = "float64") -> float:
    """The largest error of an entry, in units of its bound."""
    found = judge_answer(got, right_answer(case, TRIAL_MEANS), bounds(case, TRIAL_MEANS, dtype), None)
    return max(letter.ratio for letter in found.values())


def seen(case: Case, names: Iterable[str]) -> set[str]:
    """Those of the mistakes whose answer is outside of the bounds."""
    want, off = right_answer(case, TRIAL_MEANS), bounds(case, TRIAL_MEANS, "float64")
    answers = {name: wrong(case, name) for name in names}
    return {name for name, got in answers.items() if got is not None
            and not all(x.passed for x in judge_answer(got, want, off, None).values())}


def lawful(case: Case, a: Answer) -> bool:
    """Whether four laws hold: of the keys, queries with keys, values with outputs, rows of dB."""
    G, owner = case.K.shape[1], Steps(case, TRIAL_MEANS).owner
    O, dQ, dK, dV, dB = (x for x in a if x is not None)
    pairs = [
        (dK.sum(2), abs(dK).sum(2)),
        (grouped(T(case.Q) @ dQ, owner, G) - T(T(case.K) @ dK), T(abs(case.K)) @ abs(dK)),
        (T(case.V) @ dV - grouped(T(O) @ case.dO, owner, G), T(abs(case.V)) @ abs(dV)),
        (dB.sum(-1), abs(dB).sum(-1)),
    ]
    return all(abs(x).max() < SUM_ROUNDINGS * size.max() for x, size in pairs)
