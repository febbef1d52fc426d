"""Ready arguments for the layers and functions of libraries; nothing is imported before it is used.

A layer: examine_layer(adapters.llama(module)). A function: examine(**adapters.jax_attention()).
An adapter of one's own is a few lines: a function call(X, Z, keep) -> Y, the layer's parameters by
name, and a function `ours` that moves their numbers into the form of attnmath.Weights; see Layer.
"""

import importlib
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from attnmath._examine.layer.layer import Layer
from attnmath._examine.layer.ready_layers import added_mask, bert, gpt2, llama, multihead_attention
from attnmath._words.extras import absent

__all__ = ["Layer", "bert", "gpt2", "jax_attention", "jvp_flash_attention", "llama", "multihead_attention",
           "rcm_attention", "sdpa", "transformers_attention"]


def sdpa() -> dict[str, Any]:
    """F.scaled_dot_product_attention, for examine(**sdpa()).

    () -> the arguments of examine

    Raises ImportError where PyTorch is not installed.
    Derived in chapters/conventions.md.
    """
    fn = _found("torch").nn.functional.scaled_dot_product_attention
    options = dict(mask="attn_mask", bias="attn_mask", causal="is_causal", scale="scale", groups="enable_gqa")
    return dict(fn=fn, options=options, framework="torch", layout="bhsd")


def jax_attention() -> dict[str, Any]:
    """jax.nn.dot_product_attention, for examine(**jax_attention()).

    () -> the arguments of examine

    Raises ImportError where JAX is not installed.
    Derived in chapters/conventions.md.
    """
    options = dict(mask="mask", bias="bias", causal="is_causal", scale="scale", groups=None)
    fn = _found("jax").nn.dot_product_attention
    return dict(fn=fn, options=options, framework="jax", layout="bshd")


def transformers_attention(forward: Callable[..., Any] | None = None) -> dict[str, Any]:
    """What models of transformers call for attention, for examine(**transformers_attention(forward)).

    forward(module, query, key, value, attention_mask, scaling=, dropout=) -> the arguments of examine

    None is eager_attention_forward of Llama. Masks are handed over as its models do, as the
    lowest number of the format. Raises ImportError where transformers is not installed.
    Derived in chapters/conventions.md.
    """
    if forward is None:
        _found("transformers")
        name = "transformers.models.llama.modeling_llama"
        forward = importlib.import_module(name).eager_attention_forward
    options = dict(mask="mask", bias="bias", scale="scaling", groups=None)
    return dict(fn=_as_called_by_models(forward), options=options, framework="torch", layout="bhsd")


def jvp_flash_attention(attention: Any = None) -> dict[str, Any]:
    """A kernel that is called with dual tensors, for examine(**jvp_flash_attention(JVPAttn)).

    attention.fwd(q, k, v, attn_mask=, causal=, sm_scale=) -> o, attention.fwd_dual, the same of dual
    tensors -> o, a dual tensor: the arguments of examine

    None is JVPAttn of the package jvp_flash_attention. Its double backward is judged with
    vjp_vjp=True beside it. Raises ImportError where the package, or PyTorch, is not installed.
    Derived in chapters/examine.md.
    """
    forward_ad = _found("torch").autograd.forward_ad
    if attention is None:
        _found("jvp_flash_attention")
        attention = importlib.import_module("jvp_flash_attention.jvp_attention").JVPAttn

    def jvp(q: Any, k: Any, v: Any, q_dot: Any, k_dot: Any, v_dot: Any, **options: Any) -> tuple[Any, Any]:
        with forward_ad.dual_level():
            duals = (forward_ad.make_dual(x, dot) for x, dot in ((q, q_dot), (k, k_dot), (v, v_dot)))
            return tuple(forward_ad.unpack_dual(attention.fwd_dual(*duals, **options)))

    options = dict(mask="attn_mask", causal="causal", scale="sm_scale")
    return dict(fn=attention.fwd, jvp=jvp, options=options, framework="torch", layout="bhsd")


def rcm_attention(attention: Callable[..., Any]) -> dict[str, Any]:
    """A kernel that takes tangents as arguments, as that of NVlabs/rcm, for examine(**rcm_attention(attention)).

    attention(q, k, v, tq, tk, tv, sm_scale) -> o, to, all of (b, H, n, d): the arguments of examine

    With zeros as tangents it is the function whose gradients are examined. Raises ImportError
    where PyTorch is not installed.
    Derived in chapters/examine.md.
    """
    zeros = _found("torch").zeros_like

    def fn(q: Any, k: Any, v: Any, sm_scale: float | None = None) -> Any:
        return attention(q, k, v, zeros(q), zeros(k), zeros(v), sm_scale)[0]

    def jvp(q: Any, k: Any, v: Any, q_dot: Any, k_dot: Any, v_dot: Any, sm_scale: float | None = None) -> Any:
        return tuple(attention(q, k, v, q_dot, k_dot, v_dot, sm_scale))

    return dict(fn=fn, jvp=jvp, options=dict(scale="sm_scale"), framework="torch", layout="bhsd")


def _found(name: str) -> ModuleType:
    """A library, or what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(absent(name)) from error


def _as_called_by_models(forward: Callable) -> Callable:
    """A function of transformers as a model calls it; it gives back (b, n, H, d)."""
    def attention(q: Any, k: Any, v: Any, mask: Any = None, bias: Any = None, scaling: float | None = None) -> Any:
        module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=False, is_causal=False)
        scaling = q.shape[-1] ** -0.5 if scaling is None else scaling
        if mask is not None:
            hidden = added_mask(mask, q)
            bias = hidden if bias is None else bias + hidden
        return forward(module, q, k, v, bias, scaling=scaling, dropout=0.0)[0].transpose(1, 2)

    return attention


def __dir__() -> list[str]:
    return __all__
