"""What the adapters of layers share."""

import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from attnmath._heads import Weights

KNOWN = {  # kinds of modules, and the function of attnmath.adapters for each
    "torch.MultiheadAttention": "multihead_attention",
    "transformers.BertAttention": "bert",
    "transformers.GPT2Attention": "gpt2",
    "transformers.LlamaAttention": "llama",
    "transformers.MistralAttention": "llama",
    "transformers.Qwen2Attention": "llama",
}
PADDING_ALONE = """import torch
layer = torch.nn.MultiheadAttention(1, 1)
X = torch.ones(1, 1, 1)
Y, _ = layer(X, X, X, key_padding_mask=torch.tensor([[True]]))
Y.sum().backward()
print(Y, layer.in_proj_weight.grad)  # NaN; with need_weights=False none"""


def adapted(module: Any) -> Any:
    """A module whose kind has an adapter, as a Layer; otherwise None."""
    adapters = importlib.import_module("attnmath.adapters")
    names = [f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(module).__mro__]
    return next((getattr(adapters, KNOWN[name])(module) for name in names if name in KNOWN), None)


def library(name: str) -> Any:
    """A library, or what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = "torch" if name == "torch" else "adapters"
        raise ImportError(f"{name} is not installed; pip install 'attnmath[{extra}]' brings it") from error


def needs(function: str, module: Any, *parts: str) -> None:
    """The module has these parts."""
    for path in parts:
        part = module
        for name in path.split("."):
            part = getattr(part, name, None)
        if part is None:
            raise TypeError(f"{function}: module is a {type(module).__name__} without {path}; it needs to have it")


def mask(module: Any, keep: Any, X: Any, causal: bool = False) -> Any:
    """The mask as the implementation of a module of transformers wants it."""
    sdpa = module.config._attn_implementation == "sdpa"
    if keep is None and (sdpa or not causal):
        return None  # sdpa hides later keys by itself
    n = X.shape[1]
    keep = X.new_ones(1, 1, n, n).bool() if keep is None else keep.expand(-1, -1, n, -1)
    keep = keep.tril() if causal else keep
    return keep if sdpa else as_numbers(keep, X)


def as_numbers(keep: Any, like: Any) -> Any:
    """A mask to be added: the lowest number of the format where it hides."""
    lowest = library("torch").finfo(like.dtype).min
    return like.new_zeros(keep.shape).masked_fill(~keep, lowest)


def called(forward: Callable) -> Callable:
    """A function of transformers as a model calls it; it gives back (b, n, H, d)."""
    def attention(q: Any, k: Any, v: Any, mask: Any = None, bias: Any = None, scaling: float | None = None) -> Any:
        module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=False, is_causal=False)
        scaling = q.shape[-1] ** -0.5 if scaling is None else scaling
        if mask is not None:
            hidden = as_numbers(mask, q)
            bias = hidden if bias is None else bias + hidden
        return forward(module, q, k, v, bias, scaling=scaling, dropout=0.0)[0].transpose(1, 2)

    return attention


def parameters(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The weights and biases of linear layers, by name."""
    found = {f"{name}.{kind}": getattr(part, kind) for name, part in parts.items() for kind in ("weight", "bias")}
    return {name: p for name, p in found.items() if p is not None}


def linear(parts: Mapping[str, Any], heads: list[int]) -> Callable[[Mapping[str, np.ndarray]], Weights]:
    """`ours` for four linear layers."""
    def ours(x: Mapping[str, np.ndarray]) -> Weights:
        *inputs, out = (x[f"{name}.weight"] for name in parts)
        *biases, b_O = (x.get(f"{name}.bias") for name in parts)
        return weights(heads, inputs, out, biases, b_O)

    return ours


def weights(heads: list[int], inputs: list, out: np.ndarray, biases: list, b_O: np.ndarray | None) -> Weights:
    """PyTorch's (H k, d) as (H, d, k), and (d, H k) as (H, k, d)."""
    rows = (w.reshape(H, len(w) // H, -1).swapaxes(1, 2) for w, H in zip(inputs, heads))
    sides = (None if b is None else b.reshape(H, -1) for b, H in zip(biases, heads))
    return Weights(*rows, out.T.reshape(heads[0], -1, len(out)), *sides, b_O)
