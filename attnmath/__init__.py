"""The gradients of attention; the book beside them derives and executes each."""

import importlib
import typing

from attnmath._algebraic import NotAlgebraic
from attnmath._attention import (
    attention,
    attention_jvp,
    attention_map,
    attention_vjp,
)
from attnmath._blocks import (
    cross_entropy,
    cross_entropy_jvp,
    cross_entropy_vjp,
    layer_norm,
    layer_norm_jvp,
    layer_norm_vjp,
    mlp,
    mlp_jvp,
    mlp_vjp,
    silu,
    silu_jvp,
    silu_vjp,
)
from attnmath._dropout import (
    dropout_attention,
    dropout_attention_jvp,
    dropout_attention_vjp,
    dropout_mask,
)
from attnmath._flash import (
    flash_attention,
    flash_attention_jvp,
    flash_attention_vjp,
)
from attnmath._flash_second import flash_attention_vjp_vjp
from attnmath._heads import (
    Weights,
    multihead,
    multihead_jvp,
    multihead_map,
    multihead_vjp,
)
from attnmath._inputs import (
    self_attention,
    self_attention_jvp,
    self_attention_vjp,
)
from attnmath._jacobians import (
    jacobians,
    self_attention_jacobian,
)
from attnmath._masks import (
    bias,
    bias_from_multihead,
    causal_mask,
    document_mask,
    padding_mask,
    window_mask,
)
from attnmath._merge import merge, merge_jvp, merge_vjp
from attnmath._projections import linear, linear_jvp, linear_vjp
from attnmath._second import attention_hvp, attention_vjp_vjp
from attnmath._second_layer import multihead_hvp
from attnmath._softmax import (
    log_softmax,
    log_softmax_jvp,
    log_softmax_vjp,
    logsumexp,
    logsumexp_jvp,
    logsumexp_vjp,
    softmax,
    softmax_jacobian,
    softmax_jvp,
    softmax_vjp,
)

if typing.TYPE_CHECKING:
    from attnmath._check import check_jvp, check_vjp
    from attnmath._examine._examine import examine
    from attnmath._examine._layer import examine_layer
    from attnmath._prove import prove
    from attnmath._step import complex_step

__version__ = "0.1.0"

__all__ = [
    "NotAlgebraic",
    "Weights",
    "attention",
    "attention_hvp",
    "attention_jvp",
    "attention_map",
    "attention_vjp",
    "attention_vjp_vjp",
    "bias",
    "bias_from_multihead",
    "causal_mask",
    "check_jvp",
    "check_vjp",
    "complex_step",
    "cross_entropy",
    "cross_entropy_jvp",
    "cross_entropy_vjp",
    "document_mask",
    "dropout_attention",
    "dropout_attention_jvp",
    "dropout_attention_vjp",
    "dropout_mask",
    "examine",
    "examine_layer",
    "flash_attention",
    "flash_attention_jvp",
    "flash_attention_vjp",
    "flash_attention_vjp_vjp",
    "jacobians",
    "layer_norm",
    "layer_norm_jvp",
    "layer_norm_vjp",
    "linear",
    "linear_jvp",
    "linear_vjp",
    "log_softmax",
    "log_softmax_jvp",
    "log_softmax_vjp",
    "logsumexp",
    "logsumexp_jvp",
    "logsumexp_vjp",
    "merge",
    "merge_jvp",
    "merge_vjp",
    "mlp",
    "mlp_jvp",
    "mlp_vjp",
    "multihead",
    "multihead_hvp",
    "multihead_jvp",
    "multihead_map",
    "multihead_vjp",
    "padding_mask",
    "prove",
    "self_attention",
    "self_attention_jacobian",
    "self_attention_jvp",
    "self_attention_vjp",
    "silu",
    "silu_jvp",
    "silu_vjp",
    "softmax",
    "softmax_jacobian",
    "softmax_jvp",
    "softmax_vjp",
    "window_mask",
]

_LATE = {  # imported when they are asked for, since that takes a while
    "check_jvp": "_check",
    "check_vjp": "_check",
    "complex_step": "_step",
    "examine": "_examine._examine",
    "examine_layer": "_examine._layer",
    "prove": "_prove",
}


def __getattr__(name: str) -> typing.Any:
    if name not in _LATE:
        raise AttributeError(f"module 'attnmath' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"attnmath.{_LATE[name]}"), name)
    return found
