"""What scaled_dot_product_attention may be given, and one clear sentence for what not."""

import math
from numbers import Real

import numpy as np
import torch

from attnmath._torch._apply import common

NAME = "scaled_dot_product_attention"
KINDS = torch.float64, torch.float32, torch.bfloat16, torch.float16


def checked(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    """Raises TypeError or ValueError for what cannot be computed."""
    arrays = {"query": query, "key": key, "value": value}
    for name, x in arrays.items():
        _tensor(name, x)
        if x.dtype not in KINDS:
            _refuse(TypeError, f"{name} has dtype {x.dtype}", "float64, float32, bfloat16 or float16")
        if x.dtype != query.dtype:
            _refuse(TypeError, f"{name} has dtype {x.dtype}", f"that of query, {query.dtype}")
        if x.device != query.device:
            _refuse(ValueError, f"{name} is on {x.device}", f"to be on {query.device}, as query is")
    if query.device.type == "meta":
        _refuse(ValueError, "query is on meta", "to be on a device that has its numbers")
    _numbers(dropout_p, is_causal, scale, enable_gqa)
    lead = _shapes(query, key, value, enable_gqa)
    if attn_mask is not None:
        _mask(attn_mask, query, (*lead, query.shape[-2], key.shape[-2]))
        if is_causal:
            _refuse(
                ValueError,
                f"attn_mask of shape {tuple(attn_mask.shape)} is given with is_causal=True",
                "one of the two; put the causal mask into attn_mask, or leave attn_mask out",
            )


def _numbers(dropout_p, is_causal, scale, enable_gqa):
    for name, x in (("dropout_p", dropout_p), ("scale", scale)):
        if name == "scale" and x is None:
            continue
        if isinstance(x, torch.Tensor) and name == "scale":
            _refuse(TypeError, "scale is a Tensor", "a number; multiply query by a tensor instead")
        if not isinstance(x, Real):
            _refuse(TypeError, f"{name} is a {type(x).__name__}", "a number")
    if not 0 <= dropout_p <= 1:
        _refuse(ValueError, f"dropout_p is {dropout_p}", "a number in [0, 1]")
    if scale is not None and not math.isfinite(scale):
        _refuse(ValueError, f"scale is {scale}", "a finite number")
    for name, x in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if not isinstance(x, bool | np.bool_):
            _refuse(TypeError, f"{name} is a {type(x).__name__}", "True or False")


def _shapes(query, key, value, enable_gqa):
    """-> the leading axes of the scores"""
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
            _refuse(
                ValueError,
                f"key has {G} heads",
                f"a number of heads that divides the {H} of query, since enable_gqa is True",
            )
        if v[-1] != G:
            _refuse(ValueError, f"value has {v[-1]} heads", f"{G}, as key has")
        k, v = (*k[:-1], H), (*v[:-1], H)
    lead = _together("key", key, q, k, "query", enable_gqa)
    _together("value", value, lead, v, "query and key", enable_gqa)
    return lead


def _together(name, x, lead, own, of, enable_gqa):
    axes = max(len(lead), len(own))
    lead, own = ((1,) * (axes - len(x)) + tuple(x) for x in (lead, own))
    if any(a != b and 1 not in (a, b) for a, b in zip(lead, own)):
        hint = ""
        if not enable_gqa and own[-1] and lead[-1] % own[-1] == 0:
            hint = "; pass enable_gqa=True for heads that share keys and values"
        _refuse(
            ValueError,
            f"{name} has shape {tuple(x.shape)}",
            f"leading axes that broadcast against {lead}, those of {of}{hint}",
        )
    return common(lead, own)


def _mask(mask, query, need):
    _tensor("attn_mask", mask)
    wide = mask.dtype == torch.float32 and query.dtype in (torch.bfloat16, torch.float16)
    if mask.dtype not in (torch.bool, query.dtype) and not wide:
        _refuse(
            TypeError,
            f"attn_mask has dtype {mask.dtype}",
            f"torch.bool (True: may attend) or that of query, {query.dtype}",
        )
    if mask.device != query.device:
        _refuse(ValueError, f"attn_mask is on {mask.device}", f"to be on {query.device}, as query is")
    own = tuple(mask.shape)
    if len(own) > len(need) or any(a not in (1, b) for a, b in zip(own[::-1], need[::-1])):
        _refuse(ValueError, f"attn_mask has shape {own}", f"a shape that broadcasts to {need}")


def _tensor(name, x):
    if not isinstance(x, torch.Tensor):
        _refuse(TypeError, f"{name} is a {type(x).__name__}", "to be a torch.Tensor")
    if type(x).__module__ == "torch.nn.attention.bias":
        _refuse(
            TypeError,
            f"{name} is a {type(x).__name__}",
            "to be a plain tensor; pass is_causal=True for a mask that begins at the upper left",
        )
    if x.is_nested:
        _refuse(TypeError, f"{name} is a nested tensor", "to be a padded one, with attn_mask for the padding")
    if x.layout != torch.strided:
        _refuse(TypeError, f"{name} has layout {x.layout}", "to be dense; call its to_dense()")


def _refuse(error, found, need):
    raise error(f"{NAME}: {found}; it needs {need}")
