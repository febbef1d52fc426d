"""First derivatives by PyTorch's own kernels where they are right, else by those of the backend.

The kernel for processors keeps L, the log-sum-exp of each row, alone. Where a row's
scores are large numbers, as after a mask of large finite ones, L has no digits left for
their differences, and its gradients are wrong by factors: then the strips are right.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.backends import cuda
from torch.nn.functional import scaled_dot_product_attention

from attnmath.torch import backend, tiles
from attnmath.torch.how import How
from attnmath.torch.products import Derivatives
from attnmath.torch.tiles import broadcast_leading, edges

LARGEST_L = 1000  # of |L|: above, its rounding shows in the weights
KERNEL_NAME = "_scaled_dot_product_flash_attention_for_cpu"
KERNEL: Any = getattr(torch.ops.aten, KERNEL_NAME, None)
BACKWARD: Any = getattr(torch.ops.aten, KERNEL_NAME + "_backward", None)


class KernelCall(NamedTuple):
    """What the kernel for processors takes: four axes each, rows without gaps; s (.., .., 1, 2) as S."""

    q: Tensor
    k: Tensor
    v: Tensor
    b: Tensor | None
    s: Tensor | None
    lead: tuple
    split: int
    rows: int


def forward(
    Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, how: How
) -> tuple[Tensor, Tensor]:
    """The output; the kernel's L, or one without columns.  -> O (..., n, d_v), L"""
    call = processor(Q, K, V, B, S, how)
    found = run_forward(call, how) if call else None
    if call and found:
        return unfolded(found[0], call.lead, 2), unfolded(found[1], call.lead, 1)
    L = None
    if accelerator(Q, K, V, B, S, how):
        O = scaled_dot_product_attention(Q, K, V, is_causal=how.causal, scale=how.scale)
    else:
        O, L = backend.forward(Q, K, V, B, S, how)
    if L is not None and not call:
        return O, L
    kind = torch.promote_types(O.dtype, torch.float32)
    return O, O.new_full(O.shape[:-1], torch.nan, dtype=kind)


def vjp(
    dO: Tensor, Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, O: Any, L: Any,
    how: How, needs: Sequence[bool],
) -> Derivatives:
    """The gradients, with the output and its L where they are there.  -> dQ, dK, dV, dB, dS"""
    if needs[3] or needs[4] and how.slopes:
        return backend.vjp(dO, Q, K, V, B, S, how, needs=needs)
    call = processor(Q, K, V, B, S, how) if L is not None and has_digits(L) else None
    got: Sequence
    if call:
        got = [unfolded(x, call.lead, 2) for x in run_vjp(call, dO, O, L, how, needs[4])]
    elif accelerator(Q, K, V, B, S, how):
        with torch.enable_grad():
            q, k, v = x = [y.detach().requires_grad_() for y in (Q, K, V)]
            O = scaled_dot_product_attention(q, k, v, is_causal=how.causal, scale=how.scale)
        got = torch.autograd.grad(O, x, dO)
    else:
        return backend.vjp(dO, Q, K, V, B, S, how, needs=needs)
    dQ, dK, dV = (g.sum_to_size(x.shape) if need else None for g, x, need in zip(got, (Q, K, V), needs))
    return dQ, dK, dV, None, got[3].sum_to_size(S.shape).to(S.dtype) if S is not None and needs[4] else None


def run_forward(call: KernelCall, how: How) -> tuple[Tensor, Tensor] | None:
    """O and L of the kernel, the sinks among the keys; None where the kernel is wrong."""
    q, k, v, *_ = call
    O = L = q.new_empty(())
    if in_mask(how):
        O, L = q.new_zeros(*q.shape[:-1], v.shape[-1]), q.new_zeros(q.shape[:-1])
    for i, j, mask, causal in blocks(call, how):
        given = q[..., i, :], k[..., j, :], v[..., j, :]
        O_i, L_i = KERNEL(*given, 0.0, causal, attn_mask=mask, scale=how.scale)
        if not is_right(O_i, L_i, mask):
            return None
        if in_mask(how):
            O[..., i, :], L[..., i] = O_i, L_i
        else:
            O, L = O_i, L_i
    return (O, L) if call.s is None else with_sinks(O, L, call.s[..., 0, 1:])


def with_sinks(O: Tensor, L: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """O and L with one more key of value 0; a row without any other has O = 0, and so far L = 0."""
    empty = (L == 0) & (O == 0).all(-1)
    alone = L.masked_fill(empty, -torch.inf)
    L = torch.logaddexp(alone, sinks.to(L.dtype))
    share = (alone - L).exp_().masked_fill_(empty, 0)
    return O.mul_(share[..., None]), L.masked_fill_(L == -torch.inf, 0)


def run_vjp(call: KernelCall, dO: Tensor, O: Tensor, L: Tensor, how: How, sinks: bool) -> list[Tensor]:
    """-> dQ, dK, dV, and dS with the gradients of the sinks if asked for"""
    q, k, v, *_ = call
    shape = call.lead, call.split
    dO, O, L = without_gaps(folded(dO, *shape, 2)), without_gaps(folded(O, *shape, 2)), folded(L, *shape, 1)
    got = [torch.zeros_like(x) for x in (q, k, v)] if in_mask(how) else []
    for i, j, mask, causal in blocks(call, how):
        given = dO[..., i, :], q[..., i, :], k[..., j, :], v[..., j, :], O[..., i, :], L[..., i]
        parts = BACKWARD(*given, 0.0, causal, attn_mask=mask, scale=how.scale)
        if not in_mask(how):
            got = list(parts)
            break
        got[0][..., i, :] = parts[0]
        for x, part in zip(got[1:], parts[1:]):
            x[..., j, :] += part
    if sinks and call.s is not None:
        D = (dO.to(L.dtype) * O).sum(-1)
        ds = -(torch.exp(call.s[..., 0, 1:].to(L.dtype) - L) * D).sum(-1)[..., None, None]
        got.append(torch.cat([torch.zeros_like(ds), ds], -1))
    return got


def blocks(call: KernelCall, how: How) -> Iterator[tuple[slice, slice, Tensor | None, bool]]:
    """Rows, the keys that they may see, the mask, and whether the kernel is to mask as a causal one."""
    n, m, dtype = call.q.shape[-2], call.k.shape[-2], call.q.dtype
    if not in_mask(how):
        yield slice(0, n), slice(0, m), call.b, how.causal
        return
    first, last = edges(how, n, m)
    before, mask = None, torch.empty(0)
    for start in range(0, n, call.rows):
        i = slice(start, min(start + call.rows, n))
        j = slice(0 if first is None else max(start + first, 0), m if last is None else min(i.stop + last, m))
        if j.start >= j.stop:
            continue
        if call.b is not None or before != (i.stop - start, j.stop - j.start, j.start - start):
            before = i.stop - start, j.stop - j.start, j.start - start
            ahead = torch.arange(j.start - start, j.stop - start) - torch.arange(before[0])[:, None]
            mask = torch.zeros(1, 1, *ahead.shape, dtype=dtype)
            if call.s is not None and how.slopes:
                mask = -call.s[..., :1].to(dtype) * (ahead - (m - n)).abs()
            if call.b is not None:
                rows, keys = (x if size > 1 else slice(None) for x, size in zip((i, j), call.b.shape[-2:]))
                mask = mask + call.b[..., rows, keys]
            hidden = torch.zeros(ahead.shape, dtype=torch.bool)
            hidden |= ahead > last if last is not None else hidden
            hidden |= ahead < first if first is not None else hidden
            mask.masked_fill_(hidden, -torch.inf)
        yield i, j, mask, False


def in_mask(how: How) -> bool:
    """Whether the kernel is to be told by a mask what it does not know."""
    return how.slopes or how.left is not None or how.right is not None


def block_rows(n: int, m: int, heads: int, how: How) -> int:
    """As many rows as have a mask of no more numbers than a strip: memory stays linear."""
    if not in_mask(how):
        return n
    first, last = edges(how, n, m)
    seen = m if first is None or last is None else max(last - first + 1, 1)
    rows = tiles.FEWEST_KEPT_ROWS if seen < m else tiles.MOST_ROWS
    return min(n, rows, tiles.STRIP_NUMBERS["cpu"] // (heads * min(m, seen + rows)))


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
    if KERNEL is None or BACKWARD is None or Q.device.type != "cpu" or not suits_fused(Q, K, V, how):
        return None
    lead = broadcast_leading(Q, K, V, S)
    split, s = len(lead) - 1, None
    if B is not None:
        split, B = folded_mask(B, lead, Q.dtype)
        if B is None:
            return None
    if S is not None:
        s = folded(S, lead, split, 2)
    heads = prod(max(axis) for axis in zip(*(x.shape[:2] for x in (B, s) if x is not None))) or 1
    rows = block_rows(Q.shape[-2], K.shape[-2], heads if B is not None or how.slopes else 1, how)
    if rows < min(tiles.FEWEST_ROWS, Q.shape[-2]) or in_mask(how) and Q.dtype.itemsize < 4:
        return None  # sums of many blocks are not to be rounded to 16 bits
    q, k, v = (without_gaps(folded(x, lead, split, 2)) for x in (Q, K, V))
    return KernelCall(q, k, v, B, s, lead, split, rows)


def suits_fused(Q: Tensor, K: Tensor, V: Tensor, how: How) -> bool:
    """What every fused kernel asks for; a causal one scales -inf: a number above 0, or NaN."""
    return not (
        V.shape[-1] != Q.shape[-1]
        or 0 in (*Q.shape, *K.shape, *V.shape)
        or how.dropout
        or how.softcap is not None
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
    plain = B is None and S is None and not in_mask(how)
    if Q.device.type != "cuda" or not plain or not alike or not suits_fused(Q, K, V, how):
        return False
    parameters = cuda.SDPAParams(Q, K, V, None, 0.0, how.causal, False)
    return cuda.can_use_flash_attention(parameters) or cuda.can_use_efficient_attention(parameters)
