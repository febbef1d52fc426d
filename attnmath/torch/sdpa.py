"""torch.nn.functional.scaled_dot_product_attention with the derivatives that it lacks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnmath.torch.asked import check_call
from attnmath.torch.functions import output_and_sums
from attnmath.torch.how import How


def scaled_dot_product_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, *,
    softcap: float | None = None, sinks: torch.Tensor | None = None, backend: str | None = None,
    window: tuple[int | None, int | None] | None = None, alibi_slopes: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention as torch.nn.functional has it, differentiable in every direction.

    query (..., n, d_k), key (..., m, d_k), value (..., m, d_v), attn_mask broadcasting to
    (..., n, m), boolean (true: may attend) or floating, sinks and alibi_slopes (..., H)
    -> (..., n, d_v)

    What PyTorch's function lacks is given by name:
    softcap: scaled scores s become softcap tanh(s / softcap), before anything is added.
    window (left, right): query i sees the keys from i + m - n - left to i + m - n + right
    (the last query stands at the last key, as in flash-attn); None: no end on that side.
    alibi_slopes: slope |i + m - n - j| is taken from the score of query i and key j.
    sinks: each row has one more key, with this score and the value 0; of several sinks
    take the logsumexp. Both have a number for each head, and gradients of every order.
    backend "triton": Triton kernels to second order, where they take the call; not yet run on a GPU.

    The other arguments mean what they mean there; is_causal masks from the upper left; with enable_gqa the
    heads, the axis before the rows, of query are a multiple of those of key and value. It has derivatives
    backward and forward, of every order, in every order (torch.autograd, its forward_ad, torch.func with
    vmap). In each of them memory beside inputs and outputs grows with n + m. Masks that need a gradient get
    one. Dropout has one seed, drawn from PyTorch's default generator; each derivative draws again, and a
    weight is dropped or kept by the seed, its head (counted through all leading axes), its query and its
    key alone. A query that may attend to nothing gives 0 and passes 0 back. First derivatives are the work
    of PyTorch's own fused kernels where these are right; on processors with sinks too, from their output
    and its log-sum-exp, and with windows and slopes as masks of blocks of rows, not in 16 bits. A cap,
    dropout, d_v unlike d_k, the gradients of a mask and of slopes, and all other derivatives go strip by
    strip of the rows. Keys that a window hides from all rows of a block or strip cost nothing. Numbers of
    16 bits are summed in float32; autocast casts as it does for PyTorch's function. torch.compile,
    torch.export, make_fx and fake tensors take it as one operation, with each direction that their backend
    differentiates.
    Raises TypeError for another kind of tensor, dtype or option; ValueError for shapes, devices and numbers
    that do not fit, a cap of 0 or less, a window of negative width, sinks or slopes of another number of
    heads, and attn_mask together with is_causal; RuntimeError under is_grads_batched and vectorize, whose
    work torch.func.vmap does.

    >>> import torch
    >>> from attnmath.torch import scaled_dot_product_attention
    >>> q, k, v = torch.zeros(2, 3), torch.ones(2, 3), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> scaled_dot_product_attention(q, k, v, is_causal=True)
    tensor([[1., 2.],
            [2., 3.]])
    >>> f = lambda v: scaled_dot_product_attention(q, k, v)
    >>> torch.func.jvp(f, (v,), (10 * v,))[1]  # forward mode
    tensor([[20., 30.],
            [20., 30.]])
    >>> scaled_dot_product_attention(q, k, v, window=(0, 0))  # each query sees the key where it stands
    tensor([[1., 2.],
            [3., 4.]])

    Derived in chapters/second.md, eq:attention_hvp.
    """
    return _as_one_operation(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap, sinks, window,
        alibi_slopes, backend,
    )


def _as_one_operation(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
    scale: float | None, enable_gqa: bool, softcap: float | None, sinks: Tensor | None, window: tuple | None,
    alibi_slopes: Tensor | None, backend: str | None,
) -> Tensor:
    query, key, value, attn_mask = cast(query, key, value, attn_mask)
    check_call(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap, sinks, window,
        alibi_slopes, backend,
    )
    scale = float(query.shape[-1]) ** -0.5 if scale is None else float(scale)
    seed = None
    if dropout_p:
        seed = torch.randint(2**63 - 1, (), device=query.device)
    softcap = None if softcap is None else float(softcap)
    left, right = window or (None, None)
    slopes = alibi_slopes is not None
    how = How(scale, bool(is_causal), float(dropout_p), None, softcap, left, right, slopes, backend=backend)
    axes = max(x.ndim for x in (query, key, value))
    of_heads = slopes_and_sinks(alibi_slopes, sinks)
    Q, K, V, B, S = canonical(query, key, value, attn_mask, of_heads, enable_gqa)
    O = output_and_sums(Q, K, V, B, S, seed, how)[0]
    if enable_gqa:
        O = O.flatten(-4, -3)
    return O[0] if axes == 2 else O


torch.compiler.allow_in_graph(scaled_dot_product_attention)
torch.compiler.allow_in_graph(_as_one_operation)  # where the function itself is compiled, its line is recorded


def cast(*tensors: Any) -> Sequence:
    """What autocast makes of the arguments: all but float64 in its own dtype."""
    kinds = {x.device.type for x in tensors if isinstance(x, Tensor)}
    for kind in kinds:
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            return [x.to(dtype) if _castable(x, kind) else x for x in tensors]
    return tensors


def _castable(x: Any, kind: str) -> bool:
    return (
        isinstance(x, Tensor)
        and x.is_floating_point()
        and x.dtype != torch.float64
        and x.device.type == kind
    )


def slopes_and_sinks(slopes: Tensor | None, sinks: Tensor | None) -> Tensor | None:
    """Slope and sink of each head in one tensor (..., H, 1, 2); 0 and -inf are those of a head without."""
    if slopes is None:
        if sinks is None:
            return None
        slopes = torch.zeros_like(sinks)
    if sinks is None:
        sinks = torch.full_like(slopes, -torch.inf)
    return torch.stack(torch.broadcast_tensors(slopes, sinks), -1).unsqueeze(-2)


def canonical(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, of_heads: Tensor | None, enable_gqa: bool
) -> list:
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
        if of_heads is not None:
            of_heads = of_heads.unflatten(-3, (G, -1))
    tensors = query, key, value, mask, of_heads
    axes = max(3, *(x.ndim for x in tensors if x is not None))
    return [x if x is None else x[(None,) * (axes - x.ndim)] for x in tensors]
