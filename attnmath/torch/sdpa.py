"""torch.nn.functional.scaled_dot_product_attention with the derivatives that it lacks, in its place too."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any, NoReturn

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import mha

from attnmath._given.arguments import broadcast
from attnmath.torch.functions import output_and_sums
from attnmath.torch.how import How

NAME = "scaled_dot_product_attention"
TENSOR_DTYPES = torch.float64, torch.float32, torch.bfloat16, torch.float16


def check_call(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: Any, is_causal: Any, scale: Any, enable_gqa: Any
) -> None:
    """Raises TypeError or ValueError for what cannot be computed."""
    arrays = {"query": query, "key": key, "value": value}
    for name, x in arrays.items():
        _check_tensor(name, x)
        if x.dtype not in TENSOR_DTYPES:
            _refuse(TypeError, f"{name} has dtype {x.dtype}", "float64, float32, bfloat16 or float16")
        if x.dtype != query.dtype:
            _refuse(TypeError, f"{name} has dtype {x.dtype}", f"that of query, {query.dtype}")
        if x.device != query.device:
            _refuse(ValueError, f"{name} is on {x.device}", f"to be on {query.device}, as query is")
    if query.device.type == "meta":
        _refuse(ValueError, "query is on meta", "to be on a device that has its numbers")
    _check_numbers(dropout_p, is_causal, scale, enable_gqa)
    lead = _leading_axes(query, key, value, enable_gqa)
    if attn_mask is not None:
        _check_mask(attn_mask, query, (*lead, query.shape[-2], key.shape[-2]))
        if is_causal:
            both = f"attn_mask of shape {tuple(attn_mask.shape)} is given with is_causal=True"
            _refuse(ValueError, both, "one of the two; put the causal mask into attn_mask, or leave attn_mask out")


def _check_numbers(dropout_p: Any, is_causal: Any, scale: Any, enable_gqa: Any) -> None:
    for name, x in (("dropout_p", dropout_p), ("scale", scale)):
        if name == "scale" and x is None:
            continue
        if isinstance(x, Tensor) and name == "scale":
            _refuse(TypeError, "scale is a Tensor", "a number; multiply query by a tensor instead")
        if not isinstance(x, Real | torch.SymFloat):  # a number that is not known while operations are recorded
            _refuse(TypeError, f"{name} is a {type(x).__name__}", "a number")
    if not 0 <= dropout_p <= 1:
        _refuse(ValueError, f"dropout_p is {dropout_p}", "a number in [0, 1]")
    if scale is not None and not math.isfinite(scale):
        _refuse(ValueError, f"scale is {scale}", "a finite number")
    for name, x in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if not isinstance(x, bool | np.bool_):
            _refuse(TypeError, f"{name} is a {type(x).__name__}", "True or False")


def _leading_axes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple:
    """Those of the scores, if the shapes fit together."""
    q, k, v = (tuple(x.shape) for x in (query, key, value))
    axes = "..., H, " if enable_gqa else "..., "
    least = 3 if enable_gqa else 2
    if len(q) < least or q[-1] == 0:
        _refuse(ValueError, f"query has shape {q}", f"({axes}n, d_k) with d_k > 0")
    if len(k) < least or k[-1] != q[-1]:
        _refuse(ValueError, f"key has shape {k}", f"({axes}m, {q[-1]}) to match query of shape {q}")
    if len(v) < least or v[-2] != k[-2]:
        _refuse(ValueError, f"value has shape {v}", f"({axes}{k[-2]}, d_v) to match key of shape {k}")
    q, k, v = q[:-2], k[:-2], v[:-2]
    if enable_gqa:
        H, G = q[-1], k[-1]
        if G == 0 or H % G:
            needs = f"a number of heads that divides the {H} of query, since enable_gqa is True"
            _refuse(ValueError, f"key has {G} heads", needs)
        if v[-1] != G:
            _refuse(ValueError, f"value has {v[-1]} heads", f"{G}, as key has")
        k, v = (*k[:-1], H), (*v[:-1], H)
    lead = _joined("key", key, q, k, "query", enable_gqa)
    _joined("value", value, lead, v, "query and key", enable_gqa)
    return lead


def _joined(name: str, x: Tensor, lead: tuple, own: tuple, of: str, enable_gqa: bool) -> tuple:
    """Leading axes broadcast against those of others."""
    joined = broadcast(own, lead)
    if joined is None:
        hint, lead = "", (1,) * (len(own) - len(lead)) + lead
        if not enable_gqa and own[-1] and lead[-1] % own[-1] == 0:
            hint = "; pass enable_gqa=True for heads that share keys and values"
        needs = f"leading axes that broadcast against {lead}, those of {of}{hint}"
        _refuse(ValueError, f"{name} has shape {tuple(x.shape)}", needs)
    return joined


def _check_mask(mask: Any, query: Tensor, need: tuple) -> None:
    _check_tensor("attn_mask", mask)
    wide = mask.dtype == torch.float32 and query.dtype in (torch.bfloat16, torch.float16)
    if mask.dtype not in (torch.bool, query.dtype) and not wide:
        needs = f"torch.bool (True: may attend) or that of query, {query.dtype}"
        _refuse(TypeError, f"attn_mask has dtype {mask.dtype}", needs)
    if mask.device != query.device:
        _refuse(ValueError, f"attn_mask is on {mask.device}", f"to be on {query.device}, as query is")
    own = tuple(mask.shape)
    if len(own) > len(need) or any(a not in (1, b) for a, b in zip(own[::-1], need[::-1])):
        _refuse(ValueError, f"attn_mask has shape {own}", f"a shape that broadcasts to {need}")


def _check_tensor(name: str, x: Any) -> None:
    if not isinstance(x, Tensor):
        _refuse(TypeError, f"{name} is a {type(x).__name__}", "to be a torch.Tensor")
    if type(x).__module__ == "torch.nn.attention.bias":
        needs = "to be a plain tensor; pass is_causal=True for a mask that begins at the upper left"
        _refuse(TypeError, f"{name} is a {type(x).__name__}", needs)
    if x.is_nested:
        _refuse(TypeError, f"{name} is a nested tensor", "to be a padded one, with attn_mask for the padding")
    if x.layout != torch.strided:
        _refuse(TypeError, f"{name} has layout {x.layout}", "to be dense; call its to_dense()")


def _refuse(error: type[Exception], found: str, need: str) -> NoReturn:
    raise error(f"{NAME}: {found}; it needs {need}")


def scaled_dot_product_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:
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
    PyTorch's function. torch.compile, torch.export, make_fx and fake tensors take it as one
    operation, with each direction that their backend differentiates.
    Raises TypeError for another kind of tensor, dtype or option; ValueError for shapes,
    devices and numbers that do not fit, and for attn_mask together with is_causal;
    RuntimeError under is_grads_batched and vectorize, whose work torch.func.vmap does, and
    for a third derivative with dropout that is compiled.

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

    Derived in chapters/second.md, eq:attention_hvp.
    """
    return _as_one_operation(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _as_one_operation(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
    scale: float | None, enable_gqa: bool,
) -> Tensor:
    query, key, value, attn_mask = _cast(query, key, value, attn_mask)
    check_call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    scale = float(query.shape[-1]) ** -0.5 if scale is None else float(scale)
    seed = None
    if dropout_p:
        seed = torch.randint(2**63 - 1, (), device=query.device)
    how = How(scale, bool(is_causal), float(dropout_p))
    axes = max(x.ndim for x in (query, key, value))
    Q, K, V, B = _canonical(query, key, value, attn_mask, enable_gqa)
    O = output_and_sums(Q, K, V, B, seed, how)[0]
    if enable_gqa:
        O = O.flatten(-4, -3)
    return O[0] if axes == 2 else O


torch.compiler.allow_in_graph(scaled_dot_product_attention)
torch.compiler.allow_in_graph(_as_one_operation)  # where the function itself is compiled, its line is recorded


def _cast(*tensors: Any) -> Sequence:
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


def _canonical(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, enable_gqa: bool
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
    tensors = query, key, value, mask
    axes = max(3, *(x.ndim for x in tensors if x is not None))
    return [x if x is None else x[(None,) * (axes - x.ndim)] for x in tensors]


@contextmanager
def patched_attention() -> Iterator[Callable[..., torch.Tensor]]:
    """Within it, torch.nn.functional.scaled_dot_product_attention is ours.

    -> a context manager, whose value is the function

    What calls the function by its module does so for PyTorch's layers and for the models
    of Hugging Face that have attn_implementation="sdpa"; a name imported from the module
    before stays as it is. PyTorch's layers take no fast path of their own meanwhile, which
    has no derivatives. It holds for all threads, and ends with what stood there before.
    Derived in chapters/applications.md.
    """
    before, fast = F.scaled_dot_product_attention, mha.get_fastpath_enabled()
    F.scaled_dot_product_attention = scaled_dot_product_attention
    mha.set_fastpath_enabled(False)
    try:
        yield scaled_dot_product_attention
    finally:
        F.scaled_dot_product_attention = before
        mha.set_fastpath_enabled(fast)
