"""A head and its derivatives as functions that PyTorch differentiates.

Attention -> O. Its derivative backward is Gradients, its derivative forward is Both. The
derivative of Gradients is Second in either direction, since the cotangents of gradients
are tangents (chapters/second.md, eq:attention_vjp_vjp). What is above is Sum.
"""

import torch
from torch.autograd import Function
from torch.autograd.forward_ad import make_dual, unpack_dual

from attnmath._torch import _higher, _kernels, _strips
from attnmath._torch._apply import alone, kept, mapped, placed


def attention(Q, K, V, B, seed, how):
    """The output, together with its tangent where that is asked for."""
    try:
        duals = [None if x is None else unpack_dual(x) for x in (Q, K, V, B, seed)]
    except RuntimeError:  # mapped over: Attention.vmap comes back here
        duals = []
    x, x_dot = [[dual and dual[part] for dual in duals[:4]] for part in (0, 1)]
    recorded = torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in x)
    if recorded or all(y is None for y in x_dot):
        return Attention.apply(Q, K, V, B, seed, how)
    O, O_dot = Both.apply(*x_dot, *x, seed, how)
    return make_dual(O, O_dot), O.new_empty(*O.shape[:-2], 0)


class Attention(Function):
    """Q, K, V, B -> O, L: the kernel's log-sum-exp, not for use elsewhere."""

    @staticmethod
    def forward(Q, K, V, B, seed, how):
        with alone(Q, K, V, B):
            return _kernels.forward(Q, K, V, B, how._replace(seed=seed))

    @staticmethod
    def setup_context(ctx, inputs, output):
        kept(ctx, *inputs[:5], *output, how=inputs[5])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, dO, _):
        needs = ctx.needs_input_grad[:4]
        if dO is None:
            return (None,) * 6
        *x, seed, O, L = ctx.saved_tensors
        dx = Gradients.apply(dO, *x, O.detach(), L, seed, ctx.how, needs)  # O helps; nothing goes back to it
        return *placed(dx, needs), None, None

    @staticmethod
    def jvp(ctx, *tangents):
        *x, seed, O, L = ctx.saved_tensors
        return Both.apply(*tangents[:4], *x, seed, ctx.how)[1], None

    @staticmethod
    def vmap(info, dims, *inputs):
        return mapped(attention, info.batch_size, dims, inputs, summed=True)


class Gradients(Function):
    """dO, Q, K, V, B -> those of dQ, dK, dV, dB that are needed; O and L help."""

    @staticmethod
    def forward(dO, Q, K, V, B, O, L, seed, how, needs):
        with alone(dO, Q, K, V, B):
            dx = _kernels.vjp(dO, Q, K, V, B, O, L, how._replace(seed=seed), needs)
        return tuple(x for x, need in zip(dx, needs) if need)

    @staticmethod
    def setup_context(ctx, inputs, output):
        kept(ctx, *inputs[:5], inputs[7], how=inputs[8], needs=inputs[9])

    @staticmethod
    def backward(ctx, *x_dot):
        needs = ctx.needs_input_grad[:5]
        if not any(needs) or all(x is None for x in x_dot):
            return (None,) * 10
        *x, seed = ctx.saved_tensors
        x_dot = placed(x_dot, ctx.needs)
        got = Second.apply(None, *x_dot, *x, seed, ctx.how, needs)
        return *placed(got, needs), *(None,) * 5

    @staticmethod
    def jvp(ctx, *tangents):
        *x, seed = ctx.saved_tensors
        return Second.apply(*tangents[:5], *x, seed, ctx.how, (False, *ctx.needs))

    @staticmethod
    def vmap(info, dims, *inputs):
        return mapped(Gradients.apply, info.batch_size, dims, inputs)


class Both(Function):
    """Tangents of Q, K, V, B, then these -> O and its tangent."""

    @staticmethod
    def forward(Q_dot, K_dot, V_dot, B_dot, Q, K, V, B, seed, how):
        with alone(Q_dot, K_dot, V_dot, B_dot, Q, K, V, B):
            return _strips.jvp(Q_dot, K_dot, V_dot, B_dot, Q, K, V, B, how._replace(seed=seed))

    @staticmethod
    def setup_context(ctx, inputs, output):
        kept(ctx, *inputs[:9], how=inputs[9])

    @staticmethod
    def backward(ctx, dO, dO_dot):
        """The gradients of <dO, O> + <dO_dot, tangent of O>: a tangent of gradients."""
        *x, seed = ctx.saved_tensors
        x_dot, x, how = x[:4], x[4:], ctx.how
        of_dot, of = ctx.needs_input_grad[:4], ctx.needs_input_grad[4:8]
        got_dot, got = (), ()
        if any(of_dot) and dO_dot is not None:
            got_dot = Gradients.apply(dO_dot, *x, None, None, seed, how, of_dot)
        if any(of) and dO_dot is not None:
            got = Second.apply(dO, *x_dot, dO_dot, *x, seed, how, (False, *of))
        elif any(of) and dO is not None:
            got = Gradients.apply(dO, *x, None, None, seed, how, of)
        return *placed(got_dot, of_dot), *placed(got, of), None, None

    @staticmethod
    def jvp(ctx, *tangents):
        *x, seed = ctx.saved_tensors
        return _higher.Sum.apply(_higher.MIXED, ctx.how, seed, *tangents[:8], *x)

    @staticmethod
    def vmap(info, dims, *inputs):
        return mapped(Both.apply, info.batch_size, dims, inputs, summed=True)


class Second(Function):
    """The tangent of Gradients, and of O: those that are needed of O_dot, dQ_dot, ..."""

    @staticmethod
    def forward(dO_dot, Q_dot, K_dot, V_dot, B_dot, dO, Q, K, V, B, seed, how, needs):
        how = how._replace(seed=seed)
        with alone(dO_dot, Q_dot, K_dot, V_dot, B_dot, dO, Q, K, V, B):
            got = _strips.second(dO_dot, Q_dot, K_dot, V_dot, B_dot, dO, Q, K, V, B, how, needs=needs)
        return tuple(x for x, need in zip(got, needs) if need)

    @staticmethod
    def setup_context(ctx, inputs, output):
        kept(ctx, *inputs[:11], how=inputs[11], needs=inputs[12])

    @staticmethod
    def backward(ctx, *cotangents):
        *x, seed = ctx.saved_tensors
        program, needs = _higher.SECOND, ctx.needs_input_grad[:10]
        cotangents = placed(cotangents, ctx.needs)
        got = _higher.cotangent(program, cotangents, x, needs, seed, ctx.how)
        return *got, None, None, None

    @staticmethod
    def jvp(ctx, *tangents):
        *x, seed = ctx.saved_tensors
        return _higher.tangent(_higher.SECOND, tangents[:10], x, seed, ctx.how, ctx.needs)

    @staticmethod
    def vmap(info, dims, *inputs):
        return mapped(Second.apply, info.batch_size, dims, inputs)
