"""torch.nn.functional.scaled_dot_product_attention, with the derivatives that it lacks."""

import torch

from attnmath._torch._checked import checked
from attnmath._torch._functions import attention
from attnmath._torch._how import How


@torch.compiler.disable
def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """Attention as torch.nn.functional has it, differentiable in every direction.

    query (..., n, d_k), key (..., m, d_k), value (..., m, d_v), attn_mask broadcasting to
    (..., n, m), boolean (true: may attend) or floating -> (..., n, d_v)

    Arguments mean what they mean there; is_causal masks from the upper left; with
    enable_gqa the heads, the axis before the rows, of query are a multiple of those of
    key and value. It has derivatives backward and forward, of every order, in every
    order (torch.autograd, its forward_ad, torch.func with vmap). In each of them memory
    beside inputs and outputs grows with n + m. Masks that need a gradient get one.
    Dropout is drawn from one seed, itself drawn from PyTorch's default generator, and is
    drawn again by each derivative. A query that may attend to nothing gives 0 and passes
    0 back. First derivatives are the work of PyTorch's own fused kernels where these are
    right. Numbers of 16 bits are summed in float32; autocast casts as it does for
    PyTorch's function. torch.compile leaves it as it is: a break in the graph.
    Raises TypeError for another kind of tensor, dtype or option; ValueError for shapes,
    devices and numbers that do not fit, and for attn_mask together with is_causal;
    RuntimeError under is_grads_batched and vectorize, whose work torch.func.vmap does, and
    under torch.func.linearize and make_fx, whose work torch.func.jvp does.
    Derived in chapters/second.md, eq:attention_hvp.
    """
    query, key, value, attn_mask = _cast(query, key, value, attn_mask)
    checked(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    seed = None
    if dropout_p:
        seed = torch.randint(2**63 - 1, (), device=query.device)
    how = How(scale, bool(is_causal), float(dropout_p))
    axes = max(x.ndim for x in (query, key, value))
    Q, K, V, B = _canonical(query, key, value, attn_mask, enable_gqa)
    O = attention(Q, K, V, B, seed, how)[0]
    if enable_gqa:
        O = O.flatten(-4, -3)
    return O[0] if axes == 2 else O


def _cast(*tensors):
    """What autocast makes of the arguments: all but float64 in its own dtype."""
    kinds = {x.device.type for x in tensors if isinstance(x, torch.Tensor)}
    for kind in kinds:
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            return [x.to(dtype) if _castable(x, kind) else x for x in tensors]
    return tensors


def _castable(x, kind):
    return (
        isinstance(x, torch.Tensor)
        and x.is_floating_point()
        and x.dtype != torch.float64
        and x.device.type == kind
    )


def _canonical(query, key, value, mask, enable_gqa):
    """The same number of leading axes for all; heads that share keys get one of their own."""
    if mask is not None:
        mask = mask[(None,) * (2 - mask.ndim)]
    if enable_gqa:
        G = key.shape[-3]
        query = query.unflatten(-3, (G, -1))
        key, value = key.unsqueeze(-3), value.unsqueeze(-3)
        if mask is not None and mask.ndim > 2:
            one = mask.shape[-3] == 1
            mask = mask.unsqueeze(-3) if one else mask.unflatten(-3, (G, -1))
    tensors = query, key, value, mask
    axes = max(3, *(x.ndim for x in tensors if x is not None))
    return [x if x is None else x[(None,) * (axes - x.ndim)] for x in tensors]
