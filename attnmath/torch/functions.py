"""A head and its derivatives as functions that PyTorch differentiates.

Attention -> O. Its derivative backward is Gradients, its derivative forward is Both. The
derivative of Gradients is Second in either direction, since the cotangents of gradients
are tangents (chapters/second.md, eq:attention_vjp_vjp). What is above is Sum.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.forward_ad import make_dual, unpack_dual

from attnmath.torch import higher, operators
from attnmath.torch.how import How, keep, mapped, placed, without_autocast


def output_and_sums(
    Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, seed: Tensor | None, how: How
) -> tuple[Tensor, Tensor]:
    """The output, together with its tangent where that is asked for."""
    try:
        duals = [None if x is None else unpack_dual(x) for x in (Q, K, V, B, S, seed)]
    except RuntimeError:  # mapped over: Attention.vmap comes back here
        duals = []
    x, x_dot = [[dual and dual[part] for dual in duals[:5]] for part in (0, 1)]
    recorded = torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in x)
    if recorded or all(y is None for y in x_dot):
        return Attention.apply(Q, K, V, B, S, seed, how)
    O, O_dot = Both.apply(*x_dot, *x, seed, how)
    return make_dual(O, O_dot), O.new_empty(*O.shape[:-2], 0)


class Attention(Function):
    """Q, K, V, B, S -> O, L: the kernel's log-sum-exp, not for use elsewhere."""

    @staticmethod
    def forward(
        Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, seed: Tensor | None, how: How
    ) -> tuple[Tensor, Tensor]:
        with without_autocast(Q, K, V, B, S):
            return operators.forward(Q, K, V, B, S, how._replace(seed=seed))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        keep(ctx, *inputs[:6], *output, how=inputs[6])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, dO: Tensor | None, _: Tensor | None) -> tuple:
        needs = ctx.needs_input_grad[:5]
        if dO is None:
            return (None,) * 7
        *x, seed, O, L = ctx.saved_tensors
        dx = Gradients.apply(dO, *x, O.detach(), L, seed, ctx.how, needs)  # O helps; nothing goes back to it
        return *placed(dx, needs), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple:
        *x, seed, O, L = ctx.saved_tensors
        return Both.apply(*tangents[:5], *x, seed, ctx.how)[1], None

    @staticmethod
    def vmap(info: Any, dims: tuple, *inputs: Any) -> tuple:
        return mapped(output_and_sums, info.batch_size, dims, inputs, summed=True)


class Gradients(Function):
    """dO, Q, K, V, B, S -> those of dQ, dK, dV, dB, dS that are needed; O and L help."""

    @staticmethod
    def forward(
        dO: Tensor, Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, O: Tensor | None,
        L: Tensor | None, seed: Tensor | None, how: How, needs: tuple[bool, ...],
    ) -> tuple[Tensor, ...]:
        with without_autocast(dO, Q, K, V, B, S):
            return tuple(operators.vjp(dO, Q, K, V, B, S, O, L, how._replace(seed=seed), needs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        keep(ctx, *inputs[:6], inputs[8], how=inputs[9], needs=inputs[10])

    @staticmethod
    def backward(ctx: Any, *x_dot: Tensor | None) -> tuple:
        needs = ctx.needs_input_grad[:6]
        if not any(needs) or all(x is None for x in x_dot):
            return (None,) * 11
        *x, seed = ctx.saved_tensors
        x_dot = placed(x_dot, ctx.needs)
        got = Second.apply(None, *x_dot, *x, seed, ctx.how, needs)
        return *placed(got, needs), *(None,) * 5

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple:
        *x, seed = ctx.saved_tensors
        return Second.apply(*tangents[:6], *x, seed, ctx.how, (False, *ctx.needs))

    @staticmethod
    def vmap(info: Any, dims: tuple, *inputs: Any) -> tuple:
        return mapped(Gradients.apply, info.batch_size, dims, inputs)


class Both(Function):
    """Tangents of Q, K, V, B, S, then these -> O and its tangent."""

    @staticmethod
    def forward(
        Q_dot: Tensor | None, K_dot: Tensor | None, V_dot: Tensor | None, B_dot: Tensor | None,
        S_dot: Tensor | None, Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None,
        seed: Tensor | None, how: How,
    ) -> tuple[Tensor, Tensor]:
        inputs = Q_dot, K_dot, V_dot, B_dot, S_dot, Q, K, V, B, S
        with without_autocast(*inputs):
            return operators.jvp(*inputs, how._replace(seed=seed))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        keep(ctx, *inputs[:11], how=inputs[11])

    @staticmethod
    def backward(ctx: Any, dO: Tensor | None, dO_dot: Tensor | None) -> tuple:
        """The gradients of <dO, O> + <dO_dot, tangent of O>: a tangent of gradients."""
        *x, seed = ctx.saved_tensors
        x_dot, x, how = x[:5], x[5:], ctx.how
        of_dot, of = ctx.needs_input_grad[:5], ctx.needs_input_grad[5:10]
        got_dot, got = (), ()
        if any(of_dot) and dO_dot is not None:
            got_dot = Gradients.apply(dO_dot, *x, None, None, seed, how, of_dot)
        if any(of) and dO_dot is not None:
            got = Second.apply(dO, *x_dot, dO_dot, *x, seed, how, (False, *of))
        elif any(of) and dO is not None:
            got = Gradients.apply(dO, *x, None, None, seed, how, of)
        return *placed(got_dot, of_dot), *placed(got, of), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple:
        *x, seed = ctx.saved_tensors
        return higher.Sum.apply(higher.MIXED, ctx.how, seed, *tangents[:10], *x)

    @staticmethod
    def vmap(info: Any, dims: tuple, *inputs: Any) -> tuple:
        return mapped(Both.apply, info.batch_size, dims, inputs, summed=True)


class Second(Function):
    """The tangent of Gradients, and of O: those that are needed of O_dot, dQ_dot, ..."""

    @staticmethod
    def forward(
        dO_dot: Tensor | None, Q_dot: Tensor | None, K_dot: Tensor | None, V_dot: Tensor | None,
        B_dot: Tensor | None, S_dot: Tensor | None, dO: Tensor, Q: Tensor, K: Tensor, V: Tensor,
        B: Tensor | None, S: Tensor | None, seed: Tensor | None, how: How, needs: tuple[bool, ...],
    ) -> tuple[Tensor, ...]:
        inputs = dO_dot, Q_dot, K_dot, V_dot, B_dot, S_dot, dO, Q, K, V, B, S
        with without_autocast(*inputs):
            return tuple(operators.second(*inputs, how._replace(seed=seed), needs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        keep(ctx, *inputs[:13], how=inputs[13], needs=inputs[14])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        *x, seed = ctx.saved_tensors
        program, needs = higher.SECOND, ctx.needs_input_grad[:12]
        cotangents = placed(cotangents, ctx.needs)
        got = higher.cotangent(program, cotangents, x, needs, higher.over_strips(ctx.how, seed))
        return *got, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple:
        *x, seed = ctx.saved_tensors
        apply = higher.over_strips(ctx.how, seed)
        return higher.tangent(higher.SECOND, tangents[:12], x, ctx.needs, apply)

    @staticmethod
    def vmap(info: Any, dims: tuple, *inputs: Any) -> tuple:
        return mapped(Second.apply, info.batch_size, dims, inputs)
