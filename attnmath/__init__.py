"""The gradients of attention; the book beside them derives and executes each.

"Derived in chapters/attention.md, eq:attention_vjp" at the end of a docstring names a page of the book
and a formula on it. The book is no part of an installation: it stands in the folder chapters of this
package's source, to be read as it is or, after `make book`, in _build/html/index.html.
"""

import importlib as _importlib
import typing as _typing

from attnmath._exact.outcomes import NotAlgebraic as NotAlgebraic
from attnmath._formulas.attention import attention as attention
from attnmath._formulas.attention import attention_jvp as attention_jvp
from attnmath._formulas.attention import attention_map as attention_map
from attnmath._formulas.attention import attention_vjp as attention_vjp
from attnmath._formulas.blocks import cross_entropy as cross_entropy
from attnmath._formulas.blocks import cross_entropy_jvp as cross_entropy_jvp
from attnmath._formulas.blocks import cross_entropy_vjp as cross_entropy_vjp
from attnmath._formulas.blocks import layer_norm as layer_norm
from attnmath._formulas.blocks import layer_norm_jvp as layer_norm_jvp
from attnmath._formulas.blocks import layer_norm_vjp as layer_norm_vjp
from attnmath._formulas.blocks import mlp as mlp
from attnmath._formulas.blocks import mlp_jvp as mlp_jvp
from attnmath._formulas.blocks import mlp_vjp as mlp_vjp
from attnmath._formulas.blocks import silu as silu
from attnmath._formulas.blocks import silu_jvp as silu_jvp
from attnmath._formulas.blocks import silu_vjp as silu_vjp
from attnmath._formulas.dropout import dropout_attention as dropout_attention
from attnmath._formulas.dropout import dropout_attention_jvp as dropout_attention_jvp
from attnmath._formulas.dropout import dropout_attention_vjp as dropout_attention_vjp
from attnmath._formulas.dropout import dropout_mask as dropout_mask
from attnmath._formulas.flash import flash_attention as flash_attention
from attnmath._formulas.flash import flash_attention_jvp as flash_attention_jvp
from attnmath._formulas.flash import flash_attention_vjp as flash_attention_vjp
from attnmath._formulas.flash import flash_attention_vjp_vjp as flash_attention_vjp_vjp
from attnmath._formulas.heads import Weights as Weights
from attnmath._formulas.heads import multihead as multihead
from attnmath._formulas.heads import multihead_jvp as multihead_jvp
from attnmath._formulas.heads import multihead_map as multihead_map
from attnmath._formulas.heads import multihead_vjp as multihead_vjp
from attnmath._formulas.inputs import self_attention as self_attention
from attnmath._formulas.inputs import self_attention_jvp as self_attention_jvp
from attnmath._formulas.inputs import self_attention_vjp as self_attention_vjp
from attnmath._formulas.jacobians import jacobians as jacobians
from attnmath._formulas.jacobians import self_attention_jacobian as self_attention_jacobian
from attnmath._formulas.latent import MLAWeights as MLAWeights
from attnmath._formulas.latent import latent_attention as latent_attention
from attnmath._formulas.latent import latent_attention_jvp as latent_attention_jvp
from attnmath._formulas.latent import latent_attention_vjp as latent_attention_vjp
from attnmath._formulas.masks import bias as bias
from attnmath._formulas.masks import bias_from_multihead as bias_from_multihead
from attnmath._formulas.masks import causal_mask as causal_mask
from attnmath._formulas.masks import document_mask as document_mask
from attnmath._formulas.masks import padding_mask as padding_mask
from attnmath._formulas.masks import window_mask as window_mask
from attnmath._formulas.merge import merge as merge
from attnmath._formulas.merge import merge_jvp as merge_jvp
from attnmath._formulas.merge import merge_vjp as merge_vjp
from attnmath._formulas.normalizers import sigmoid_attention as sigmoid_attention
from attnmath._formulas.normalizers import sigmoid_attention_jvp as sigmoid_attention_jvp
from attnmath._formulas.normalizers import sigmoid_attention_vjp as sigmoid_attention_vjp
from attnmath._formulas.normalizers import sink_attention as sink_attention
from attnmath._formulas.normalizers import sink_attention_jvp as sink_attention_jvp
from attnmath._formulas.normalizers import sink_attention_vjp as sink_attention_vjp
from attnmath._formulas.normalizers import sink_softmax as sink_softmax
from attnmath._formulas.normalizers import sink_softmax_jvp as sink_softmax_jvp
from attnmath._formulas.normalizers import sink_softmax_vjp as sink_softmax_vjp
from attnmath._formulas.normed_heads import capped_attention as capped_attention
from attnmath._formulas.normed_heads import capped_attention_jvp as capped_attention_jvp
from attnmath._formulas.normed_heads import capped_attention_vjp as capped_attention_vjp
from attnmath._formulas.normed_heads import qk_norm_attention as qk_norm_attention
from attnmath._formulas.normed_heads import qk_norm_attention_jvp as qk_norm_attention_jvp
from attnmath._formulas.normed_heads import qk_norm_attention_vjp as qk_norm_attention_vjp
from attnmath._formulas.norms_and_caps import rms_norm as rms_norm
from attnmath._formulas.norms_and_caps import rms_norm_jvp as rms_norm_jvp
from attnmath._formulas.norms_and_caps import rms_norm_vjp as rms_norm_vjp
from attnmath._formulas.norms_and_caps import softcap as softcap
from attnmath._formulas.norms_and_caps import softcap_jvp as softcap_jvp
from attnmath._formulas.norms_and_caps import softcap_vjp as softcap_vjp
from attnmath._formulas.positions import alibi as alibi
from attnmath._formulas.positions import alibi_jvp as alibi_jvp
from attnmath._formulas.positions import alibi_vjp as alibi_vjp
from attnmath._formulas.positions import relative_buckets as relative_buckets
from attnmath._formulas.positions import rotary as rotary
from attnmath._formulas.positions import rotary_jvp as rotary_jvp
from attnmath._formulas.positions import rotary_vjp as rotary_vjp
from attnmath._formulas.positions import table_bias as table_bias
from attnmath._formulas.positions import table_bias_jvp as table_bias_jvp
from attnmath._formulas.positions import table_bias_vjp as table_bias_vjp
from attnmath._formulas.projections import linear as linear
from attnmath._formulas.projections import linear_jvp as linear_jvp
from attnmath._formulas.projections import linear_vjp as linear_vjp
from attnmath._formulas.second import attention_hvp as attention_hvp
from attnmath._formulas.second import attention_vjp_vjp as attention_vjp_vjp
from attnmath._formulas.second import multihead_hvp as multihead_hvp
from attnmath._formulas.softmax import log_softmax as log_softmax
from attnmath._formulas.softmax import log_softmax_jvp as log_softmax_jvp
from attnmath._formulas.softmax import log_softmax_vjp as log_softmax_vjp
from attnmath._formulas.softmax import logsumexp as logsumexp
from attnmath._formulas.softmax import logsumexp_jvp as logsumexp_jvp
from attnmath._formulas.softmax import logsumexp_vjp as logsumexp_vjp
from attnmath._formulas.softmax import softmax as softmax
from attnmath._formulas.softmax import softmax_jacobian as softmax_jacobian
from attnmath._formulas.softmax import softmax_jvp as softmax_jvp
from attnmath._formulas.softmax import softmax_vjp as softmax_vjp

if _typing.TYPE_CHECKING:
    __all__: list[str]
    from attnmath import adapters as adapters
    from attnmath import rounding as rounding
    from attnmath import testing as testing
    from attnmath import torch as torch
    from attnmath._check.check import check_jvp as check_jvp
    from attnmath._check.check import check_vjp as check_vjp
    from attnmath._exact.prove import prove as prove
    from attnmath._examine.examine import examine as examine
    from attnmath._examine.layer.examine_layer import examine_layer as examine_layer
    from attnmath._words.complex_step import complex_step as complex_step

__version__ = "0.1.0"

_LATE = {  # imported when they are asked for, since that takes a while
    "check_jvp": "_check.check",
    "check_vjp": "_check.check",
    "complex_step": "_words.complex_step",
    "examine": "_examine.examine",
    "examine_layer": "_examine.layer.examine_layer",
    "prove": "_exact.prove",
}
_MODULES = "adapters", "rounding", "testing", "torch"  # the same

if not _typing.TYPE_CHECKING:  # a checker reads what is imported above
    __all__ = sorted([*_LATE, *(name for name in globals() if not name.startswith("_"))])

    def __getattr__(name):
        here = _importlib.import_module(__name__)
        if name not in _LATE and name not in _MODULES:
            raise AttributeError(f"module 'attnmath' has no attribute {name!r}", name=name, obj=here)
        try:
            module = _importlib.import_module(f"attnmath.{_LATE.get(name, name)}")
        except ModuleNotFoundError as error:  # so that hasattr and help go on
            raise AttributeError(str(error)) from error
        found = globals()[name] = getattr(module, name) if name in _LATE else module
        return found

    def __dir__():
        return sorted([*__all__, *_MODULES, "__version__"])
