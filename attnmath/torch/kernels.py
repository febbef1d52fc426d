"""First derivatives by PyTorch's own kernels where they are right, else strip by strip.

The kernel for processors keeps L, the log-sum-exp of each row, alone. Where a row's
scores are large numbers, as after a mask of large finite ones, L has no digits left for
their differences, and its gradients are wrong by factors: then the strips are right.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.backends import cuda
from torch.nn.functional import scaled_dot_product_attention

from attnmath.torch import strips
from attnmath.torch.how import How
from attnmath.torch.products import Derivatives
from attnmath.torch.tiles import broadcast_leading

LARGEST_L = 1000  # of |L|: above, its rounding shows in the weights
KERNEL_NAME = "_scaled_dot_product_flash_attention_for_cpu"
KERNEL: Any = getattr(torch.ops.aten, KERNEL_NAME, None)
BACKWARD: Any = getattr(torch.ops.aten, KERNEL_NAME + "_backward", None)


class KernelCall(NamedTuple):
    """What the kernel for processors takes: four axes each, rows without gaps."""

    q: Tensor
    k: Tensor
    v: Tensor
    b: Tensor | None
    lead: tuple
    split: int


def forward(
    Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, how: How
) -> tuple[Tensor, Tensor]:
    """The output; the kernel's L, or one without columns.  -> O (..., n, d_v), L"""
    call = processor(Q, K, V, B, S, how)
    if call:
        O, L = KERNEL(*call[:3], 0.0, how.causal, attn_mask=call.b, scale=how.scale)
        if is_right(O, L, call.b):
            return unfolded(O, call.lead, 2), unfolded(L, call.lead, 1)
    if accelerator(Q, K, V, B, S, how):
        O = scaled_dot_product_attention(Q, K, V, is_causal=how.causal, scale=how.scale)
    else:
        O = strips.forward(Q, K, V, B, S, how)
    kind = torch.promote_types(O.dtype, torch.float32)
    return O, O.new_full(O.shape[:-1], torch.nan, dtype=kind)


def vjp(
    dO: Tensor, Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, O: Any, L: Any,
    how: How, needs: Sequence[bool],
) -> Derivatives:
    """The gradients, with the output and its L where they are there.  -> dQ, dK, dV, dB, dS"""
    if needs[3]:
        return strips.vjp(dO, Q, K, V, B, S, how, needs=needs)
    call = processor(Q, K, V, B, S, how) if L is not None and has_digits(L) else None
    if call:
        shape = call.lead, call.split
        dO, O, L = without_gaps(folded(dO, *shape, 2)), without_gaps(folded(O, *shape, 2)), folded(L, *shape, 1)
        got = BACKWARD(dO, *call[:3], O, L, 0.0, how.causal, attn_mask=call.b, scale=how.scale)
        got = [unfolded(x, call.lead, 2) for x in got]
    elif accelerator(Q, K, V, B, S, how):
        with torch.enable_grad():
            q, k, v = x = [y.detach().requires_grad_() for y in (Q, K, V)]
            O = scaled_dot_product_attention(q, k, v, is_causal=how.causal, scale=how.scale)
        got = torch.autograd.grad(O, x, dO)
    else:
        return strips.vjp(dO, Q, K, V, B, S, how, needs=needs)
    return *(g.sum_to_size(x.shape) if need else None for g, x, need in zip(got, (Q, K, V), needs)), None, None


def is_right(O: Tensor, L: Tensor, b: Tensor | None) -> bool:
    """Whether the kernel's rows are: 0 with L = 0 is what it says for NaN, too.

    Older ones divide 0 by 0 in a row that may attend to nothing.
    """
    if not L.isfinite().all():
        return False
    zero = L == 0
    if zero.any():
        zero &= (O == 0).all(-1)
    if b is None or not zero.any():
        return not zero.any()
    return bool((~zero | (b.amax(-1) == -torch.inf)).all())


def has_digits(L: Tensor) -> bool:
    """Whether the kernel's backward may trust L; not where it is not the kernel's."""
    return L.numel() > 0 and bool(L.abs().amax() <= LARGEST_L)


def processor(
    Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, how: How
) -> KernelCall | None:
    """The call of the kernel for processors; None where it is absent or wrong."""
    if KERNEL is None or BACKWARD is None or Q.device.type != "cpu" or not suits_fused(Q, K, V, S, how):
        return None
    lead = broadcast_leading(Q, K, V)
    split = len(lead) - 1
    if B is not None:
        split, B = folded_mask(B, lead, Q.dtype)
        if B is None:
            return None
    q, k, v = (without_gaps(folded(x, lead, split, 2)) for x in (Q, K, V))
    return KernelCall(q, k, v, B, lead, split)


def suits_fused(Q: Tensor, K: Tensor, V: Tensor, S: Tensor | None, how: How) -> bool:
    """What every fused kernel asks for; a causal one scales -inf: a number above 0, or NaN."""
    return not (
        V.shape[-1] != Q.shape[-1]
        or 0 in (*Q.shape, *K.shape, *V.shape)
        or how.dropout
        or S is not None
        or any(x is not None for x in (how.softcap, how.left, how.right))
        or (how.causal and how.scale <= 0)
    )


def folded_mask(B: Tensor, lead: tuple, dtype: torch.dtype) -> tuple[int, Tensor | None]:
    """Where the leading axes part into two, so that B needs no copy, and B so folded.

    The kernel takes numbers. A boolean B for all queries is made into numbers; the copy of
    another would be as large as the scores, and the strips are as fast as its making.
    """
    if B.dtype == torch.bool and B.shape[-2] == 1:
        B = torch.zeros_like(B, dtype=dtype).masked_fill_(~B, -torch.inf)
    own = B.shape[:-2]
    for split in reversed(range(len(lead))) if B.dtype == dtype else ():
        parts = (own[:split], lead[:split]), (own[split:], lead[split:])
        if all(part == whole or prod(part) == 1 for part, whole in parts):
            try:
                return split, B.view(prod(own[:split]), prod(own[split:]), *B.shape[-2:])
            except RuntimeError:  # it would be copied
                continue
    return 0, None


def folded(x: Tensor, lead: tuple, split: int, axes: int) -> Tensor:
    """All leading axes of x, but for its last axes, as two."""
    last = x.shape[x.ndim - axes :]
    return x.expand(*lead, *last).reshape(prod(lead[:split]), prod(lead[split:]), *last)


def unfolded(x: Tensor, lead: tuple, axes: int) -> Tensor:
    """The way back; never a view, which cannot carry a tangent of its own."""
    shape = *lead, *x.shape[x.ndim - axes :]
    return x if x.shape == shape else x.reshape(shape).clone()


def without_gaps(x: Tensor) -> Tensor:
    """The kernel reads rows without gaps that do not overlap, whatever the strides say."""
    return x if x.stride(-1) == 1 and x.stride(-2) >= x.shape[-1] else x.contiguous()


def accelerator(Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, how: How) -> bool:
    """Whether scaled_dot_product_attention has a fused kernel for a CUDA device, and is right."""
    alike = Q.ndim == 4 and Q.shape[:-2] == K.shape[:-2] == V.shape[:-2]
    if Q.device.type != "cuda" or B is not None or not alike or not suits_fused(Q, K, V, S, how):
        return False
    parameters = cuda.SDPAParams(Q, K, V, None, 0.0, how.causal, False)
    return cuda.can_use_flash_attention(parameters) or cuda.can_use_efficient_attention(parameters)
