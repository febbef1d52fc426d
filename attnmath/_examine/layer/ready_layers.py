"""Ready layers of libraries, and which module has which; nothing is imported before it is used."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnmath._examine.layer.layer import ByName, Layer
from attnmath._formulas.heads import Weights

if TYPE_CHECKING:
    import torch

PADDING_ALONE = """import torch
layer = torch.nn.MultiheadAttention(1, 1)
X = torch.ones(1, 1, 1)
Y, _ = layer(X, X, X, key_padding_mask=torch.tensor([[True]]))
Y.sum().backward()
print(Y, layer.in_proj_weight.grad)  # NaN; with need_weights=False none"""


def multihead_attention(module: "torch.nn.MultiheadAttention", *, need_weights: bool = True) -> Layer:
    """PyTorch's own layer, for examine_layer.

    module -> Layer

    need_weights is what the layer is called with: its default computes the weights of
    attention step by step, False uses the fused kernel. Raises ValueError for a module with
    kdim unlike vdim, with add_bias_kv or add_zero_attn.
    Derived in chapters/heads.md.
    """
    require("multihead_attention", module, "num_heads", "kdim", "vdim", "out_proj.weight")
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

    def ours(x: ByName) -> Weights:
        packed = "in_proj_weight" in x
        inputs = np.split(x["in_proj_weight"], 3) if packed else [x[f"{a}_proj_weight"] for a in "qkv"]
        biases = np.split(x["in_proj_bias"], 3) if "in_proj_bias" in x else [None] * 3
        return weights_of_linear([H] * 3, inputs, x["out_proj.weight"], biases, x.get("out_proj.bias"))

    return Layer(
        call, dict(module.named_parameters()), ours, "torch.nn.MultiheadAttention", masks="b n m",
        alone=module.kdim == module.embed_dim, module=module, dropout=module.dropout,
        paste=PADDING_ALONE,
    )


def bert(module: Any) -> Layer:
    """BertAttention of transformers, without its residual connection and normalization.

    module -> Layer

    Self-attention or, with is_cross_attention, cross-attention; with its own implementation,
    eager or sdpa, and its masks. Raises TypeError for another kind of module.
    Derived in chapters/heads.md.
    """
    require("bert", module, "self.query", "self.key", "self.value", "output.dense")
    inner, dense = module.self, module.output.dense
    cross, H = type(inner).__name__.endswith("CrossAttention"), inner.num_attention_heads

    def call(X: Any, Z: Any, keep: Any) -> Any:
        other = {"encoder_hidden_states": Z} if cross else {}
        return dense(inner(X, attention_mask=mask_of(inner, keep, X), **other)[0])

    parts = {"query": inner.query, "key": inner.key, "value": inner.value, "dense": dense}
    return Layer(
        call, learned(parts), ours_of_linear(parts, [H] * 3), type(module).__name__, cross=cross, masks="b n m",
        module=module, dropout=max(inner.dropout.p, module.output.dropout.p),
    )


def gpt2(module: Any) -> Layer:
    """GPT2Attention of transformers: packed weights, as x W; causal, or cross-attention.

    module -> Layer

    eager is handed the causal mask, as its model does; sdpa makes its own where there is no
    other. Raises TypeError for another kind of module.
    Derived in chapters/heads.md.
    """
    require("gpt2", module, "c_attn", "c_proj")
    H, cross = module.num_heads, module.is_cross_attention

    def call(X: Any, Z: Any, keep: Any) -> Any:
        may = mask_of(module, keep, X, causal=not cross)
        other = {"encoder_hidden_states": Z, "encoder_attention_mask": may}
        return module(X, **(other if cross else {"attention_mask": may}))[0]

    def ours(x: ByName) -> Weights:
        packed = ["q_attn", "c_attn"] if cross else ["c_attn"]
        columns = np.concatenate([x[f"{name}.weight"] for name in packed], 1)
        biases = np.split(np.concatenate([x[f"{name}.bias"] for name in packed]), 3)
        rows = [w.T for w in np.split(columns, 3, 1)]
        return weights_of_linear([H] * 3, rows, x["c_proj.weight"].T, biases, x["c_proj.bias"])

    return Layer(
        call, dict(module.named_parameters()), ours, type(module).__name__, cross=cross, masks="b n m",
        causal=not cross, scale=module.scaling, module=module,
        dropout=max(module.attn_dropout.p, module.resid_dropout.p),
    )


def llama(module: Any) -> Layer:
    """LlamaAttention of transformers: shared heads of keys and values, rotary embedding, causal.

    module -> Layer

    For the layers of the same form too, as Mistral's without a window and Qwen2's. cos and
    sin are handed over with two halves that differ, so that a mistake in either shows. Raises
    TypeError for another kind of module.
    Derived in chapters/heads.md.
    """
    require("llama", module, "q_proj", "k_proj", "v_proj", "o_proj", "head_dim")
    if hasattr(module, "q_norm"):
        raise TypeError(f"llama: {type(module).__name__} normalizes its queries; it needs to be without q_norm")
    k, groups = module.head_dim, module.num_key_value_groups

    def rotary(n: int) -> tuple[np.ndarray, np.ndarray]:
        angles = np.outer(np.arange(n), 0.7 ** np.arange(k))
        return np.cos(angles), np.sin(angles)

    def call(X: Any, Z: Any, keep: Any) -> Any:
        turn = tuple(X.new_tensor(x)[None] for x in rotary(X.shape[1]))
        return module(X, position_embeddings=turn, attention_mask=mask_of(module, keep, X, causal=True))[0]

    parts = {name: getattr(module, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
    H = module.q_proj.weight.shape[0] // k
    return Layer(
        call, learned(parts), ours_of_linear(parts, [H, H // groups, H // groups]), type(module).__name__,
        cross=False, masks="b n m", causal=True, rotary=rotary, pairing="half", scale=module.scaling,
        module=module, dropout=module.attention_dropout,
    )


ADAPTERS: dict[str, Callable[[Any], Layer]] = {  # by the library and the class of a module
    "torch.MultiheadAttention": multihead_attention,
    "transformers.BertAttention": bert,
    "transformers.GPT2Attention": gpt2,
    "transformers.LlamaAttention": llama,
    "transformers.MistralAttention": llama,
    "transformers.Qwen2Attention": llama,
}


def adapted(module: Any) -> Layer | None:
    """A module whose class, or one that it comes from, has an adapter, as a Layer; otherwise None."""
    names = [f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(module).__mro__]
    return next((ADAPTERS[name](module) for name in names if name in ADAPTERS), None)


# ---- what they share ----------------------------------------------------------------------------


def require(function: str, module: Any, *parts: str) -> None:
    """The module has these parts."""
    for path in parts:
        part = module
        for name in path.split("."):
            part = getattr(part, name, None)
        if part is None:
            raise TypeError(f"{function}: module is a {type(module).__name__} without {path}; it needs to have it")


def mask_of(module: Any, keep: Any, X: Any, causal: bool = False) -> Any:
    """The mask as the implementation of a module of transformers wants it."""
    sdpa = module.config._attn_implementation == "sdpa"
    if keep is None and (sdpa or not causal):
        return None  # sdpa hides later keys by itself
    n = X.shape[1]
    keep = X.new_ones(1, 1, n, n).bool() if keep is None else keep.expand(-1, -1, n, -1)
    keep = keep.tril() if causal else keep
    return keep if sdpa else added_mask(keep, X)


def added_mask(keep: Any, like: Any) -> Any:
    """A mask to be added: the lowest number of the format where it hides."""
    import torch

    lowest = torch.finfo(like.dtype).min
    return like.new_zeros(keep.shape).masked_fill(~keep, lowest)


def learned(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The weights and biases of linear layers, by name."""
    found = {f"{name}.{kind}": getattr(part, kind) for name, part in parts.items() for kind in ("weight", "bias")}
    return {name: p for name, p in found.items() if p is not None}


def ours_of_linear(parts: Mapping[str, Any], heads: list[int]) -> Callable[[ByName], Weights]:
    """`ours` for four linear layers."""
    def ours(x: ByName) -> Weights:
        *inputs, out = (x[f"{name}.weight"] for name in parts)
        *biases, b_O = (x.get(f"{name}.bias") for name in parts)
        return weights_of_linear(heads, inputs, out, biases, b_O)

    return ours


def weights_of_linear(
    heads: list[int], inputs: Sequence[np.ndarray], out: np.ndarray, biases: Sequence[np.ndarray | None],
    b_O: np.ndarray | None,
) -> Weights:
    """PyTorch's (H k, d) as (H, d, k), and (d, H k) as (H, k, d)."""
    rows = (w.reshape(H, len(w) // H, -1).swapaxes(1, 2) for w, H in zip(inputs, heads))
    sides = (None if b is None else b.reshape(H, -1) for b, H in zip(biases, heads))
    return Weights._make([*rows, out.T.reshape(heads[0], -1, len(out)), *sides, b_O])
