"""What every function of a head has in common when PyTorch calls it."""

import sys
from contextlib import nullcontext

import torch

from attnmath._torch._how import How


def common(*shapes):
    """The shape that shapes of as many axes broadcast to."""
    return tuple(min(axis) and max(axis) for axis in zip(*shapes))


def alone(*tensors):
    """Without autocast, which would change the dtypes of single products.

    Raises RuntimeError where PyTorch cannot do the work as one piece.
    """
    tracing = sys.modules.get("torch.fx.experimental.proxy_tensor")
    if tracing and hasattr(tracing, "get_proxy_mode") and tracing.get_proxy_mode():
        raise RuntimeError(
            "scaled_dot_product_attention: torch.func.linearize, make_fx and export record single"
            " operations, and its own write over each other; use torch.func.jvp, or torch.compile"
        )
    former = getattr(torch._C._functorch, "is_legacy_batchedtensor", None)
    if former and any(isinstance(x, torch.Tensor) and former(x) for x in tensors):
        raise RuntimeError(
            "scaled_dot_product_attention: is_grads_batched and vectorize map over it in a way"
            " that PyTorch has for its own functions only; use torch.func.vmap, jacrev or jacfwd"
        )
    kind = next(x.device.type for x in tensors if x is not None)
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def kept(ctx, *tensors, **constants):
    """For either direction. Gradients and tangents that are 0 come as None."""
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.set_materialize_grads(False)
    for name, value in constants.items():
        setattr(ctx, name, value)


def placed(given, where):
    """The things that are given, each in its place; None in the others."""
    given = iter(given)
    return tuple(next(given, None) if here else None for here in where)


def mapped(function, size, dims, inputs, *, summed=False):
    """A function over one more axis of its tensors: a leading axis like the others.

    summed: what is not mapped has size 1 there, and its gradients are summed by those
    who take them. Otherwise it is repeated, so that each of the maps has gradients of its
    own. With dropout the maps are done one by one: each draws what it would draw alone.
    """
    pairs = list(zip(inputs, dims))
    if any(isinstance(x, How) and x.dropout for x in inputs):
        each = [function(*(one(x, dim, i) for x, dim in pairs)) for i in range(size)]
        return tuple(map(torch.stack, zip(*each))), (0,) * len(each[0])
    got = function(*(leading(x, dim, 1 if summed else size) for x, dim in pairs))
    return got, (0,) * len(got)


def one(x, dim, i):
    return x.select(dim, i) if isinstance(x, torch.Tensor) and dim is not None else x


def leading(x, dim, size):
    if not isinstance(x, torch.Tensor):
        return x
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
