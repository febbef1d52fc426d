"""First derivatives by PyTorch's own kernels where they are right, else strip by strip.

The kernel for processors keeps L, the log-sum-exp of each row, alone. Where a row's
scores are large numbers, as after a mask of large finite ones, L has no digits left for
their differences, and its gradients are wrong by factors: then the strips are right.
"""

from math import prod
from typing import NamedTuple

import torch
from torch.backends import cuda
from torch.nn.functional import scaled_dot_product_attention

from attnmath._torch import _strips
from attnmath._torch._apply import common

LARGEST = 1000  # of |L|: above, its rounding shows in the weights
NAME = "_scaled_dot_product_flash_attention_for_cpu"
KERNEL, BACKWARD = (getattr(torch.ops.aten, NAME + end, None) for end in ("", "_backward"))


class Call(NamedTuple):
    """What the kernel for processors takes: four axes each, rows without gaps."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    b: torch.Tensor | None
    lead: tuple
    split: int


def forward(Q, K, V, B, how):
    """The output; the kernel's L, or one without columns.  -> O (..., n, d_v), L"""
    call = processor(Q, K, V, B, how)
    if call:
        O, L = KERNEL(*call[:3], 0.0, how.causal, attn_mask=call.b, scale=how.scale)
        if right(O, L, call.b):
            return unfolded(O, call.lead, 2), unfolded(L, call.lead, 1)
    if accelerator(Q, K, V, B, how):
        O = scaled_dot_product_attention(Q, K, V, is_causal=how.causal, scale=how.scale)
    else:
        O = _strips.forward(Q, K, V, B, how)
    return O, O.new_empty(*O.shape[:-2], 0)


def vjp(dO, Q, K, V, B, O, L, how, needs):
    """The gradients, with the output and its L where they are there.  -> dQ, dK, dV, dB"""
    if needs[3]:
        return _strips.vjp(dO, Q, K, V, B, how, needs=needs)
    call = processor(Q, K, V, B, how) if L is not None and exact(L) else None
    if call:
        shape = call.lead, call.split
        dO, O, L = rows(folded(dO, *shape, 2)), rows(folded(O, *shape, 2)), folded(L, *shape, 1)
        got = BACKWARD(dO, *call[:3], O, L, 0.0, how.causal, attn_mask=call.b, scale=how.scale)
        got = [unfolded(x, call.lead, 2) for x in got]
    elif accelerator(Q, K, V, B, how):
        with torch.enable_grad():
            x = [x.detach().requires_grad_() for x in (Q, K, V)]
            O = scaled_dot_product_attention(*x, is_causal=how.causal, scale=how.scale)
        got = torch.autograd.grad(O, x, dO)
    else:
        return _strips.vjp(dO, Q, K, V, B, how, needs=needs)
    return *(g.sum_to_size(x.shape) if need else None for g, x, need in zip(got, (Q, K, V), needs)), None


def right(O, L, b):
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


def exact(L):
    """Whether the kernel's backward may trust L; not where it is not the kernel's."""
    return L.shape[-1] > 0 and bool(L.abs().amax() <= LARGEST)


def processor(Q, K, V, B, how):
    """The call of the kernel for processors; None where it is absent or wrong."""
    if KERNEL is None or BACKWARD is None or Q.device.type != "cpu" or not fits(Q, K, V, how):
        return None
    lead = common(*(x.shape[:-2] for x in (Q, K, V)))
    split = len(lead) - 1
    if B is not None:
        split, B = mask(B, lead, Q.dtype)
        if B is None:
            return None
    return Call(*(rows(folded(x, lead, split, 2)) for x in (Q, K, V)), B, lead, split)


def fits(Q, K, V, how):
    """What every fused kernel asks for; a causal one scales -inf: a number above 0, or NaN."""
    return not (
        V.shape[-1] != Q.shape[-1]
        or 0 in (*Q.shape, *K.shape, *V.shape)
        or how.dropout
        or (how.causal and how.scale <= 0)
    )


def mask(B, lead, dtype):
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
    return None, None


def folded(x, lead, split, axes):
    """All leading axes of x, but for its last axes, as two."""
    last = x.shape[x.ndim - axes :]
    return x.expand(*lead, *last).reshape(prod(lead[:split]), prod(lead[split:]), *last)


def unfolded(x, lead, axes):
    """The way back; never a view, which cannot carry a tangent of its own."""
    shape = *lead, *x.shape[x.ndim - axes :]
    return x if x.shape == shape else x.reshape(shape).clone()


def rows(x):
    """The kernel reads rows without gaps that do not overlap, whatever the strides say."""
    return x if x.stride(-1) == 1 and x.stride(-2) >= x.shape[-1] else x.contiguous()


def accelerator(Q, K, V, B, how):
    """Whether scaled_dot_product_attention has a fused kernel for a CUDA device, and is right."""
    alike = Q.ndim == 4 and Q.shape[:-2] == K.shape[:-2] == V.shape[:-2]
    if Q.device.type != "cuda" or B is not None or not alike or not fits(Q, K, V, how):
        return False
    parameters = cuda.SDPAParams(Q, K, V, None, 0.0, how.causal, False)
    return cuda.can_use_flash_attention(parameters) or cuda.can_use_efficient_attention(parameters)
