"""Ready arguments for the layers and functions of libraries; nothing is imported before it is used."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnmath._examine._layer_run import Layer
from attnmath._heads import Weights

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

    need_weights is what the layer is called with: its default computes the weights of
    attention step by step, False uses the fused kernel. Raises ValueError for a module with
    kdim unlike vdim, with add_bias_kv or add_zero_attn.
    """
    if module.kdim != module.vdim or module.bias_k is not None or module.add_zero_attn:
        raise ValueError(
            "multihead_attention: the module has kdim unlike vdim, add_bias_kv or add_zero_attn;"
            " it needs to be without"
        )
    H, first = module.num_heads, module.batch_first

    def call(X: Any, Z: Any, keep: Any) -> Any:
        options, (b, n, _) = {}, X.shape
        if keep is not None and keep.shape[2] == 1:
            options["key_padding_mask"] = ~keep[:, 0, 0].expand(b, -1)
        elif keep is not None:
            options["attn_mask"] = ~keep.expand(b, H, n, -1).flatten(0, 1)
        query, key = (X, Z) if first else (X.transpose(0, 1), X.transpose(0, 1) if Z is X else Z.transpose(0, 1))
        key = query if Z is X else key
        Y = module(query, key, key, need_weights=need_weights, **options)[0]
        return Y if first else Y.transpose(0, 1)

    def ours(x: Mapping[str, np.ndarray]) -> Weights:
        packed = "in_proj_weight" in x
        rows = np.split(x["in_proj_weight"], 3) if packed else [x[f"{a}_proj_weight"] for a in "qkv"]
        biases = x["in_proj_bias"].reshape(3, H, -1) if "in_proj_bias" in x else [None] * 3
        matrices = *(_rows(w, H) for w in rows), _columns(x["out_proj.weight"], H)
        return Weights(*matrices, *biases, x.get("out_proj.bias"))

    return Layer(
        call, dict(module.named_parameters()), ours, "torch.nn.MultiheadAttention", masks="b n m",
        alone=module.kdim == module.embed_dim, module=module, dropout=module.dropout,
        paste=PADDING_ALONE,
    )  # fmt: skip


def adapted(module: Any) -> Layer | None:
    """A layer whose kind is known, with its adapter; otherwise None."""
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(module).__mro__}
    known = {"torch.MultiheadAttention": multihead_attention}
    return next((adapter(module) for name, adapter in known.items() if name in names), None)


def _rows(W: np.ndarray, H: int) -> np.ndarray:
    """PyTorch's (H k, d) as (H, d, k)."""
    return W.reshape(H, len(W) // H, -1).swapaxes(1, 2)


def _columns(W: np.ndarray, H: int) -> np.ndarray:
    """PyTorch's (d, H k) as (H, k, d)."""
    return W.T.reshape(H, -1, len(W))
