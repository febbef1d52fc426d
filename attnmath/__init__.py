"""The gradients of attention; the book beside them derives and executes each.

"Derived in chapters/attention.md, eq:attention_vjp" at the end of a docstring names a page of the book
and a formula on it. The book is no part of an installation: it stands in the folder chapters of this
package's source, to be read as it is or, after `make book`, in _build/html/index.html.
"""

import importlib
import typing

from attnmath._exact.outcomes import NotAlgebraic
from attnmath._formulas.attention import (
    attention,
    attention_jvp,
    attention_map,
    attention_vjp,
)
from attnmath._formulas.blocks import (
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
from attnmath._formulas.dropout import (
    dropout_attention,
    dropout_attention_jvp,
    dropout_attention_vjp,
    dropout_mask,
)
from attnmath._formulas.flash import (
    flash_attention,
    flash_attention_jvp,
    flash_attention_vjp,
)
from attnmath._formulas.flash_second import flash_attention_vjp_vjp
from attnmath._formulas.heads import (
    Weights,
    multihead,
    multihead_jvp,
    multihead_map,
    multihead_vjp,
)
from attnmath._formulas.inputs import (
    self_attention,
    self_attention_jvp,
    self_attention_vjp,
)
from attnmath._formulas.jacobians import (
    jacobians,
    self_attention_jacobian,
)
from attnmath._formulas.masks import (
    bias,
    bias_from_multihead,
    causal_mask,
    document_mask,
    padding_mask,
    window_mask,
)
from attnmath._formulas.merge import merge, merge_jvp, merge_vjp
from attnmath._formulas.projections import linear, linear_jvp, linear_vjp
from attnmath._formulas.second import attention_hvp, attention_vjp_vjp
from attnmath._formulas.second_layer import multihead_hvp
from attnmath._formulas.softmax import (
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
    from attnmath import adapters, rounding, testing, torch  # noqa: F401
    from attnmath._check.check import check_jvp, check_vjp
    from attnmath._exact.prove import prove
    from attnmath._examine.examine import examine
    from attnmath._examine.layer.examine_layer import examine_layer
    from attnmath._words.complex_step import complex_step

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
    "check_jvp": "_check.check",
    "check_vjp": "_check.check",
    "complex_step": "_words.complex_step",
    "examine": "_examine.examine",
    "examine_layer": "_examine.layer.examine_layer",
    "prove": "_exact.prove",
}
_MODULES = "adapters", "rounding", "testing", "torch"  # the same

if not typing.TYPE_CHECKING:  # a checker knows each name

    def __getattr__(name):
        here = importlib.import_module(__name__)
        if name not in _LATE and name not in _MODULES:
            raise AttributeError(f"module 'attnmath' has no attribute {name!r}", name=name, obj=here)
        try:
            module = importlib.import_module(f"attnmath.{_LATE.get(name, name)}")
        except ModuleNotFoundError as error:  # so that hasattr and help go on
            raise AttributeError(str(error)) from error
        found = globals()[name] = getattr(module, name) if name in _LATE else module
        return found


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
