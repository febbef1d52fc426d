"""Ours in the place of PyTorch's function, and of that of Hugging Face's models, which dispatch by name."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import mha

from attnmath.torch.sdpa import scaled_dot_product_attention

# Each model's module has plain attention of its own, in most of them letter by letter that of one of
# these, which stand beside what they read more. What is written otherwise stays as it is.
PLAIN = {"bert": (), "llama": (), "gemma2": ("softcap",), "gpt_oss": ("sinks",)}


@contextmanager
def patched_attention() -> Iterator[Callable[..., torch.Tensor]]:
    """Within it, torch.nn.functional.scaled_dot_product_attention is ours, and so is that of transformers' models.

    -> a context manager, whose value is the function

    What calls the function by its module does so for PyTorch's layers; a name imported
    from the module before stays as it is. PyTorch's layers take no fast path of their own
    meanwhile, which has no derivatives. Models of transformers take ours for
    attn_implementation "sdpa"; and for "eager", if transformers is loaded and their plain
    attention is written as in Bert, Llama (so in Qwen 3 and DeepSeek-V3), Gemma or gpt-oss,
    with cap and sinks. They get no weights to return then, and no softmax in float32.
    It holds for all threads, and ends with what stood there before.
    Derived in chapters/applications.md.
    """
    before, fast = F.scaled_dot_product_attention, mha.get_fastpath_enabled()
    F.scaled_dot_product_attention = scaled_dot_product_attention
    mha.set_fastpath_enabled(False)
    try:
        with served_models():
            yield scaled_dot_product_attention
    finally:
        F.scaled_dot_product_attention = before
        mha.set_fastpath_enabled(fast)


@contextmanager
def served_models() -> Iterator[None]:
    """Within it, models with attn_implementation "eager" take ours, if transformers is loaded."""
    library = sys.modules.get("transformers.modeling_utils")
    interface = getattr(library, "AttentionInterface", None)
    if interface is None:
        yield
        return
    before = interface.get_interface
    plain = {}
    for name, reads in PLAIN.items():
        model = import_module(f"transformers.models.{name}.modeling_{name}")
        if model.eager_attention_forward.__module__ == model.__name__:  # nobody else's in its place
            plain[_program(model.eager_attention_forward)] = reads

    def get_interface(self: Any, attn_implementation: str | None, default: Callable) -> Callable:
        found = before(self, attn_implementation, default)
        reads = plain.get(_program(found))
        return found if reads is None else partial(_plain, reads)

    interface.get_interface = get_interface
    try:
        yield
    finally:
        interface.get_interface = before


def _program(f: Any) -> Any:
    """What a function does, and what it calls to repeat keys, wherever both stand."""
    code = getattr(f, "__code__", None)
    if code is None:
        return None
    repeats = "repeat_kv" in code.co_names and _program(f.__globals__.get("repeat_kv"))
    return code.co_code, code.co_names, code.co_varnames, code.co_consts, repeats


def _plain(
    reads: tuple[str, ...], module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, softcap: float | None = None, **_: Any,
) -> tuple[Tensor, None]:
    """In the place of plain attention, whose weights are not there to be returned."""
    O = scaled_dot_product_attention(
        query, key, value, attention_mask, dropout if module.training else 0.0, scale=scaling, enable_gqa=True,
        softcap=softcap if "softcap" in reads else None, sinks=module.sinks if "sinks" in reads else None,
    )
    return O.transpose(1, 2).contiguous(), None
