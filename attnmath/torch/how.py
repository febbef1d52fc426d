"""How a head is to be computed: its constants, and what its functions have in common."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor


class How(NamedTuple):
    """The constants of a head: scale, causal mask (upper-left), dropout rate, its seed, cap, window.

    seed () is a whole number in a tensor; None without dropout. The factors of dropout are
    drawn again from it, by each strip or tile, whenever they are needed. Scores are capped
    at softcap, None for no cap. A query sees so many keys to its left and right, None for
    all. slopes: whether the slopes of the heads count. For dropout alone, where queries,
    keys and heads are a part of more: the places of the first query and of the first key
    there, and heads, the number of each head in int64, with the leading axes of Q and K or
    broadcasting to them; None for 0, 1, 2, ... in their order. backend: "triton" for its
    kernels where they take the call, None for the strips.
    """

    scale: float
    causal: bool = False
    dropout: float = 0.0
    seed: Tensor | None = None
    softcap: float | None = None
    left: int | None = None
    right: int | None = None
    slopes: bool = False
    first_row: int = 0
    first_key: int = 0
    heads: Tensor | None = None
    backend: str | None = None


def without_autocast(*tensors: Tensor | None) -> AbstractContextManager:
    """Without autocast, which would change the dtypes of single products.

    Raises RuntimeError where PyTorch cannot do the work as one piece.
    """
    former = getattr(torch._C._functorch, "is_legacy_batchedtensor", None)
    if former and any(isinstance(x, Tensor) and former(x) for x in tensors):
        raise RuntimeError(
            "scaled_dot_product_attention: is_grads_batched and vectorize map over it in a way"
            " that PyTorch has for its own functions only; use torch.func.vmap, jacrev or jacfwd"
        )
    kind = next(x.device.type for x in tensors if x is not None)
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def keep(ctx: Any, *tensors: Tensor | None, **constants: Any) -> None:
    """For either direction. Gradients and tangents that are 0 come as None."""
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.set_materialize_grads(False)
    for name, value in constants.items():
        setattr(ctx, name, value)


def placed(given: Iterable, where: Sequence) -> tuple:
    """The things that are given, each in its place; None in the others."""
    given = iter(given)
    return tuple(next(given, None) if here else None for here in where)


def mapped(function: Callable, size: int, dims: tuple, inputs: tuple, *, summed: bool = False) -> tuple:
    """A function over one more axis of its tensors: a leading axis like the others.

    summed: what is not mapped has size 1 there, and its gradients are summed by those
    who take them. Otherwise it is repeated, so that each of the maps has gradients of its
    own. With dropout the maps are done one by one: each draws what it would draw alone.
    """
    pairs = list(zip(inputs, dims))
    if any(isinstance(x, How) and x.dropout for x in inputs):
        each = [function(*(_entry(x, dim, i) for x, dim in pairs)) for i in range(size)]
        return tuple(map(torch.stack, zip(*each))), (0,) * len(each[0])
    got = function(*(_mapped_first(x, dim, 1 if summed else size) for x, dim in pairs))
    return got, (0,) * len(got)


def _entry(x: Any, dim: int | None, i: int) -> Any:
    return x.select(dim, i) if isinstance(x, Tensor) and dim is not None else x


def _mapped_first(x: Any, dim: int | None, size: int) -> Any:
    if not isinstance(x, Tensor):
        return x
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
