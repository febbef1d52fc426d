"""Ready arguments for the layers and functions of libraries; nothing is imported before it is used.

A layer: examine_layer(adapters.llama(module)). A function: examine(**adapters.jax_attention()).
An adapter of one's own is a few lines: a function call(X, Z, keep) -> Y, the layer's parameters by
name, and a function `ours` that moves their numbers into the form of attnmath.Weights; see Layer.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnmath._examine._layer_adapters import (
    PADDING_ALONE,
    called,
    library,
    linear,
    mask,
    needs,
    parameters,
    weights,
)
from attnmath._examine._layer_described import Layer
from attnmath._heads import Weights

if TYPE_CHECKING:
    import torch

__all__ = ["Layer", "bert", "gpt2", "jax_attention", "llama", "multihead_attention", "sdpa",
           "transformers_attention"]  # fmt: skip


def multihead_attention(module: "torch.nn.MultiheadAttention", *, need_weights: bool = True) -> Layer:
    """PyTorch's own layer, for examine_layer.

    module -> Layer

    need_weights is what the layer is called with: its default computes the weights of
    attention step by step, False uses the fused kernel. Raises ValueError for a module with
    kdim unlike vdim, with add_bias_kv or add_zero_attn.
    Derived in chapters/heads.md.
    """
    if module.kdim != module.vdim or module.bias_k is not None or module.add_zero_attn:
        raise ValueError(
            "multihead_attention: the module has kdim unlike vdim, add_bias_kv or add_zero_attn;"
            " it needs to be without"
        )
    H = module.num_heads

    def turned(x: Any) -> Any:
        return x if module.batch_first else x.transpose(0, 1)

    def call(X: Any, Z: Any, keep: Any) -> Any:
        options = {}
        if keep is not None and keep.shape[2] == 1:
            options["key_padding_mask"] = ~keep[:, 0, 0].expand(len(X), -1)
        elif keep is not None:
            options["attn_mask"] = ~keep.expand(len(X), H, -1, -1).flatten(0, 1)
        query = turned(X)
        key = query if Z is X else turned(Z)
        return turned(module(query, key, key, need_weights=need_weights, **options)[0])

    def ours(x: Mapping[str, np.ndarray]) -> Weights:
        packed = "in_proj_weight" in x
        inputs = np.split(x["in_proj_weight"], 3) if packed else [x[f"{a}_proj_weight"] for a in "qkv"]
        biases = np.split(x["in_proj_bias"], 3) if "in_proj_bias" in x else [None] * 3
        return weights([H] * 3, inputs, x["out_proj.weight"], biases, x.get("out_proj.bias"))

    return Layer(
        call, dict(module.named_parameters()), ours, "torch.nn.MultiheadAttention", masks="b n m",
        alone=module.kdim == module.embed_dim, module=module, dropout=module.dropout,
        paste=PADDING_ALONE,
    )  # fmt: skip


def bert(module: Any) -> Layer:
    """BertAttention of transformers, without its residual connection and normalization.

    module -> Layer

    Self-attention or, with is_cross_attention, cross-attention; with its own implementation,
    eager or sdpa, and its masks. Raises TypeError for another kind of module.
    Derived in chapters/heads.md.
    """
    needs("bert", module, "self.query", "self.key", "self.value", "output.dense")
    inner, dense = module.self, module.output.dense
    cross, H = type(inner).__name__.endswith("CrossAttention"), inner.num_attention_heads

    def call(X: Any, Z: Any, keep: Any) -> Any:
        other = {"encoder_hidden_states": Z} if cross else {}
        return dense(inner(X, attention_mask=mask(inner, keep, X), **other)[0])

    parts = {"query": inner.query, "key": inner.key, "value": inner.value, "dense": dense}
    return Layer(
        call, parameters(parts), linear(parts, [H] * 3), type(module).__name__, cross=cross, masks="b n m",
        module=module, dropout=max(inner.dropout.p, module.output.dropout.p),
    )  # fmt: skip


def gpt2(module: Any) -> Layer:
    """GPT2Attention of transformers: packed weights, as x W; causal, or cross-attention.

    module -> Layer

    eager is handed the causal mask, as its model does; sdpa makes its own where there is no
    other. Raises TypeError for another kind of module.
    Derived in chapters/heads.md.
    """
    needs("gpt2", module, "c_attn", "c_proj")
    H, cross = module.num_heads, module.is_cross_attention

    def call(X: Any, Z: Any, keep: Any) -> Any:
        may = mask(module, keep, X, causal=not cross)
        other = {"encoder_hidden_states": Z, "encoder_attention_mask": may}
        return module(X, **(other if cross else {"attention_mask": may}))[0]

    def ours(x: Mapping[str, np.ndarray]) -> Weights:
        packed = ["q_attn", "c_attn"] if cross else ["c_attn"]
        columns = np.concatenate([x[f"{name}.weight"] for name in packed], 1)
        biases = np.split(np.concatenate([x[f"{name}.bias"] for name in packed]), 3)
        rows = [w.T for w in np.split(columns, 3, 1)]
        return weights([H] * 3, rows, x["c_proj.weight"].T, biases, x["c_proj.bias"])

    return Layer(
        call, dict(module.named_parameters()), ours, type(module).__name__, cross=cross, masks="b n m",
        causal=not cross, scale=module.scaling, module=module,
        dropout=max(module.attn_dropout.p, module.resid_dropout.p),
    )  # fmt: skip


def llama(module: Any) -> Layer:
    """LlamaAttention of transformers: shared heads of keys and values, rotary embedding, causal.

    module -> Layer

    For the layers of the same form too, as Mistral's without a window and Qwen2's. cos and
    sin are handed over with two halves that differ, so that a mistake in either shows. Raises
    TypeError for another kind of module.
    Derived in chapters/heads.md.
    """
    needs("llama", module, "q_proj", "k_proj", "v_proj", "o_proj", "head_dim")
    if hasattr(module, "q_norm"):
        raise TypeError(f"llama: {type(module).__name__} normalizes its queries; it needs to be without q_norm")
    k, groups = module.head_dim, module.num_key_value_groups

    def rotary(n: int) -> tuple[np.ndarray, np.ndarray]:
        angles = np.outer(np.arange(n), 0.7 ** np.arange(k))
        return np.cos(angles), np.sin(angles)

    def call(X: Any, Z: Any, keep: Any) -> Any:
        turn = tuple(X.new_tensor(x)[None] for x in rotary(X.shape[1]))
        return module(X, position_embeddings=turn, attention_mask=mask(module, keep, X, causal=True))[0]

    parts = {name: getattr(module, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
    H = module.q_proj.weight.shape[0] // k
    return Layer(
        call, parameters(parts), linear(parts, [H, H // groups, H // groups]), type(module).__name__,
        cross=False, masks="b n m", causal=True, rotary=rotary, pairing="half", scale=module.scaling,
        module=module, dropout=module.attention_dropout,
    )  # fmt: skip


def sdpa() -> dict[str, Any]:
    """F.scaled_dot_product_attention, for examine(**sdpa()).

    () -> the arguments of examine

    Raises ImportError where PyTorch is not installed.
    Derived in chapters/conventions.md.
    """
    fn = library("torch").nn.functional.scaled_dot_product_attention
    options = dict(mask="attn_mask", bias="attn_mask", causal="is_causal", scale="scale", groups="enable_gqa")
    return dict(fn=fn, options=options, framework="torch", layout="bhsd")


def jax_attention() -> dict[str, Any]:
    """jax.nn.dot_product_attention, for examine(**jax_attention()).

    () -> the arguments of examine

    Raises ImportError where JAX is not installed.
    Derived in chapters/conventions.md.
    """
    options = dict(mask="mask", bias="bias", causal="is_causal", scale="scale", groups=None)
    fn = library("jax").nn.dot_product_attention
    return dict(fn=fn, options=options, framework="jax", layout="bshd")


def transformers_attention(forward: Callable | None = None) -> dict[str, Any]:
    """What models of transformers call for attention, for examine(**transformers_attention(forward)).

    forward(module, query, key, value, attention_mask, scaling=, dropout=) -> the arguments of examine

    None is eager_attention_forward of Llama. Masks are handed over as its models do, as the
    lowest number of the format. Raises ImportError where transformers is not installed.
    Derived in chapters/conventions.md.
    """
    if forward is None:
        library("transformers")
        name = "transformers.models.llama.modeling_llama"
        forward = importlib.import_module(name).eager_attention_forward
    options = dict(mask="mask", bias="bias", scale="scaling", groups=None)
    return dict(fn=called(forward), options=options, framework="torch", layout="bhsd")
