"""What scaled_dot_product_attention may be given; one sentence says what does not fit."""

import math
from numbers import Integral, Real
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from attnmath._given.arguments import broadcast

BACKENDS = ("triton",)
NAME = "scaled_dot_product_attention"
TENSOR_DTYPES = torch.float64, torch.float32, torch.bfloat16, torch.float16


def check_call(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: Any, is_causal: Any, scale: Any, enable_gqa: Any,
    softcap: Any, sinks: Any, window: Any, alibi_slopes: Any, backend: Any,
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
    _check_cap_and_window(softcap, window)
    if backend is not None and backend not in BACKENDS:
        _refuse(ValueError, f"backend is {backend!r}", f"None or {' or '.join(map(repr, BACKENDS))}")
    lead = _leading_axes(query, key, value, enable_gqa)
    if attn_mask is not None:
        _check_mask(attn_mask, query, (*lead, query.shape[-2], key.shape[-2]))
        if is_causal:
            both = f"attn_mask of shape {tuple(attn_mask.shape)} is given with is_causal=True"
            _refuse(ValueError, both, "one of the two; put the causal mask into attn_mask, or leave attn_mask out")
    for name, x in (("sinks", sinks), ("alibi_slopes", alibi_slopes)):
        if x is not None:
            _check_of_heads(name, x, query, lead)


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


def _check_cap_and_window(softcap: Any, window: Any) -> None:
    is_number = isinstance(softcap, Real | torch.SymFloat)
    if softcap is not None and not is_number:
        _refuse(TypeError, f"softcap is a {type(softcap).__name__}", "a number above 0, or None for no cap")
    if softcap is not None and not 0 < softcap < math.inf:
        _refuse(ValueError, f"softcap is {softcap}", "a finite number above 0, or None for no cap")
    if window is None:
        return
    needs = "two whole numbers (left, right) of at least 0, or None for a side without an end"
    if not isinstance(window, tuple | list):
        _refuse(TypeError, f"window is a {type(window).__name__}", needs)
    whole = [x is None or isinstance(x, Integral | torch.SymInt) and not isinstance(x, bool) for x in window]
    if len(whole) != 2 or not all(whole) or any(x is not None and x < 0 for x in window):
        _refuse(ValueError, f"window is {tuple(window)}", needs)


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
    _check_beside("attn_mask", mask, query, torch.bool, "torch.bool (True: may attend) or ")
    own = tuple(mask.shape)
    if len(own) > len(need) or any(a not in (1, b) for a, b in zip(own[::-1], need[::-1])):
        _refuse(ValueError, f"attn_mask has shape {own}", f"a shape that broadcasts to {need}")


def _check_of_heads(name: str, x: Any, query: Tensor, lead: tuple) -> None:
    """A number for each head, which is the last of the leading axes; the others broadcast."""
    _check_beside(name, x, query)
    own = tuple(x.shape)
    if not lead:
        if own:
            _refuse(ValueError, f"{name} has shape {own}", "shape (), since query has no axis of heads")
    elif not own or own[-1] != lead[-1]:
        heads = f"{own[-1]} heads" if own else "shape ()"
        _refuse(ValueError, f"{name} has {heads}", f"shape ({lead[-1]},), a number for each head of query")
    elif len(own) > len(lead) or any(a not in (1, b) for a, b in zip(own[::-1], lead[::-1])):
        _refuse(ValueError, f"{name} has shape {own}", f"a shape that broadcasts to {lead}")


def _check_beside(name: str, x: Any, query: Tensor, other: Any = None, or_other: str = "") -> None:
    """A tensor that goes with the query: of its dtype, or of float32 beside 16 bits."""
    _check_tensor(name, x)
    wide = x.dtype == torch.float32 and query.dtype in (torch.bfloat16, torch.float16)
    if x.dtype not in (other, query.dtype) and not wide:
        _refuse(TypeError, f"{name} has dtype {x.dtype}", f"{or_other}that of query, {query.dtype}")
    if x.device != query.device:
        _refuse(ValueError, f"{name} is on {x.device}", f"to be on {query.device}, as query is")


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
