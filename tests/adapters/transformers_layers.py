"""The attention layers of Transformers beside those of attnmath/book/todays_layers.py, on small random numbers.

    python tests/adapters/transformers_layers.py    write attnmath/book/compared_layers.json again

Nothing is downloaded. Each layer is built from a configuration, in float64, on its eager path, causal and padded,
with the library's own mask and its own cosines and sines, once as shipped and once with its casts to float32 replaced.
"""

import contextlib
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import transformers
from transformers import masking_utils
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

from attnmath import bias, causal_mask, padding_mask, window_mask
from attnmath.book import todays_layers as ours

RECORD = Path(ours.__file__).with_name("compared_layers.json")
LENGTHS = [7, 5, 6]  # of three sequences; the rest of each is padding
STARTS = [0, 11, 2]  # the position of the first token of each
N, D, WINDOW = 7, 12, 3
SIZES = dict(hidden_size=D, num_attention_heads=4, num_key_value_heads=2, head_dim=6, num_hidden_layers=2,
             max_position_embeddings=512)


class Case(NamedTuple):
    """A layer of the library, and how ours is called with its numbers."""

    module: ModuleType
    name: str  # as in LlamaAttention, LlamaConfig
    f: str  # our function, and f_vjp
    options: dict
    extra: tuple[str, ...] = ()  # weights besides those of the projections, in our order
    window: int | None = None
    constants: Callable[[Any], dict] = lambda config: {}


def kinds(window: int | None) -> list[str]:
    """The kinds of the two layers of a model, of which the first is built."""
    return ["sliding_attention" if window else "full_attention", "full_attention"]


def scale_and_cap(config: Any) -> dict:
    return dict(gamma=config.query_pre_attn_scalar**-0.5, c=config.attn_logit_softcapping)


def scale(config: Any) -> dict:
    return dict(gamma=config.query_pre_attn_scalar**-0.5, epsilon=config.rms_norm_eps)


def yarn_scale(config: Any) -> dict:
    mu = 0.1 * np.log(config.rope_parameters["factor"]) + 1
    return dict(gamma=mu**2 * config.head_dim**-0.5)


def all_scaled(config: Any) -> dict:
    mu = 0.1 * np.log(config.rope_parameters["factor"]) + 1
    return dict(gamma=mu**2 * (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5)


YARN = dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False, rope_theta=150000.0,
            original_max_position_embeddings=16)
GEMMA = dict(query_pre_attn_scalar=9, rms_norm_eps=1e-3)
LATENT = dict(num_key_value_heads=4, head_dim=4, q_lora_rank=8, kv_lora_rank=9, qk_rope_head_dim=4, qk_nope_head_dim=6,
              v_head_dim=5, rms_norm_eps=1e-3)
NORMED = ("q_norm.weight", "k_norm.weight")
CASES = {
    "Llama": Case(modeling_llama, "Llama", "llama", {}),
    "Llama, biases": Case(modeling_llama, "Llama", "llama", dict(attention_bias=True)),
    "Qwen3": Case(modeling_qwen3, "Qwen3", "qwen3", dict(rms_norm_eps=1e-3), NORMED,
                  constants=lambda config: dict(epsilon=config.rms_norm_eps)),
    "Qwen3, window": Case(modeling_qwen3, "Qwen3", "qwen3", dict(use_sliding_window=True), NORMED, WINDOW),
    "Gemma 2": Case(modeling_gemma2, "Gemma2", "gemma2", GEMMA | dict(attn_logit_softcapping=1.5), (), None,
                    scale_and_cap),
    "Gemma 2, window": Case(modeling_gemma2, "Gemma2", "gemma2", GEMMA | dict(attn_logit_softcapping=50.0), (),
                            WINDOW, scale_and_cap),
    "Gemma 3": Case(modeling_gemma3, "Gemma3", "gemma3", GEMMA, NORMED, None, scale),
    "Gemma 3, window": Case(modeling_gemma3, "Gemma3", "gemma3", GEMMA, NORMED, WINDOW, scale),
    "gpt-oss": Case(modeling_gpt_oss, "GptOss", "gpt_oss", dict(rope_parameters=YARN), ("sinks",), None, yarn_scale),
    "gpt-oss, window": Case(modeling_gpt_oss, "GptOss", "gpt_oss", dict(rope_parameters=YARN), ("sinks",), WINDOW,
                            yarn_scale),
    "DeepSeek-V3": Case(modeling_deepseek_v3, "DeepseekV3", "deepseek_v3",
                        LATENT | dict(rope_parameters=YARN | dict(mscale=1.0, mscale_all_dim=1.0)),
                        ("q_a_layernorm.weight", "kv_a_layernorm.weight"), None, all_scaled),
}


def configured(case: Case, **more: Any) -> Any:
    """The library's configuration of a case."""
    prefix = "Gemma3Text" if case.name == "Gemma3" else case.name
    sliding = {} if case.name in ("Llama", "DeepseekV3") else dict(layer_types=kinds(case.window), sliding_window=WINDOW)
    options = SIZES | sliding | case.options | more
    config = getattr(case.module, f"{prefix}Config")(**options)
    config._attn_implementation = "eager"
    return config


@contextlib.contextmanager
def without_casts():
    """While it lasts, what the library casts to float32 is in float64."""
    with patch.object(torch, "float32", torch.float64), patch.object(torch, "float", torch.float64), \
            patch.object(torch.Tensor, "float", torch.Tensor.double):
        yield


class Theirs(NamedTuple):
    """What the library's layer returns, and what it was given."""

    Y: np.ndarray
    gradients: dict[str, np.ndarray]  # "hidden_states", and every weight by its name
    weights: dict[str, np.ndarray]
    theta: np.ndarray
    config: Any


def drawn(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


X, DY = drawn(len(LENGTHS), N, D, seed=191), drawn(len(LENGTHS), N, D, seed=192)


def their_layer(case: Case, **more: Any) -> Theirs:
    """The output of the library's layer, and by its autograd the gradient of the input and of every weight."""
    config = configured(case, **more)
    layer = getattr(case.module, f"{case.name}Attention")(config, layer_idx=0).double().eval()
    for k, parameter in enumerate(layer.parameters()):
        with torch.no_grad():
            parameter.copy_(torch.tensor(drawn(*parameter.shape, seed=k) * 0.5))
    rotation = getattr(case.module, f"{case.name}RotaryEmbedding")(config)
    x = torch.tensor(X, requires_grad=True)
    t = torch.arange(N) + torch.tensor(STARTS)[:, None]
    kind = [kinds(case.window)[0]] if case.name == "Gemma3" else []
    there = torch.arange(N) < torch.tensor(LENGTHS)[:, None]
    make = masking_utils.create_sliding_window_causal_mask if case.window else masking_utils.create_causal_mask
    mask = make(config, x, there.long(), None, position_ids=t)
    Y = layer(x, position_embeddings=rotation(x, t, *kind), attention_mask=mask)[0]
    named = dict(layer.named_parameters())
    found = torch.autograd.grad(Y, [x, *named.values()], torch.tensor(DY))
    theta = getattr(rotation, f"{kind[0]}_inv_freq" if kind else "inv_freq").double().numpy()
    return Theirs(Y.detach().numpy(), {name: g.numpy() for name, g in zip(["hidden_states", *named], found)},
                  {name: w.detach().numpy() for name, w in named.items()}, theta, config)


def our_layer(case: Case, theirs: Theirs) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The same from ours, under the library's names."""
    place = window_mask(N, N, case.window) if case.window else causal_mask(N, N)
    B = bias((place, padding_mask(np.array(LENGTHS)[:, None], N)), like=X)
    t = (np.arange(N) + np.array(STARTS)[:, None])[:, None]
    constants = dict(theta=theirs.theta, t=t, B=B) | case.constants(theirs.config)
    config, latent = theirs.config, case.f == "deepseek_v3"
    W = (ours.as_latent_weights(theirs.weights, config.qk_rope_head_dim, config.v_head_dim) if latent
         else ours.as_weights(theirs.weights, config.head_dim))
    x = X, W, *(theirs.weights[name] for name in case.extra)
    dX, dW, *rest = getattr(ours, f"{case.f}_vjp")(DY, *x, **constants)
    named = ours.as_theirs_latent(dW) if latent else ours.as_theirs(dW)
    gradients = {"hidden_states": dX} | named | dict(zip(case.extra, rest))
    return getattr(ours, case.f)(*x, **constants), gradients


def error(got: np.ndarray, want: np.ndarray) -> float:
    """The largest, as a part of the largest number that is wanted."""
    return float(abs(got - want).max() / abs(want).max())


def errors(case: Case, shipped: bool = False, **more: Any) -> dict[str, float]:
    """How far ours is from the library's, by its names: the output, the input, every weight."""
    with without_casts():
        theirs = their_layer(case, **more)
    Y, gradients = our_layer(case, theirs)
    if shipped:
        theirs = their_layer(case, **more)
    assert gradients.keys() == theirs.gradients.keys()
    return {"output": error(Y, theirs.Y)} | {name: error(gradients[name], g) for name, g in theirs.gradients.items()}


VERSIONS = {"transformers": transformers.__version__, "torch": torch.__version__.partition("+")[0]}


def casts(case: Case) -> list[str]:
    """Which parts of the library's layer compute in float32, whatever they are given: read off their source."""
    parts = {"softmax": "eager_attention_forward", "angles": f"{case.name}RotaryEmbedding"}
    if any("norm" in name for name in case.extra):
        parts["norms"] = f"{case.name}RMSNorm"
    return [part for part, name in parts.items()
            if re.search(r"float32|\.float\(\)", inspect.getsource(getattr(case.module, name)))]


def measured() -> dict:
    """The record: the versions, and of each layer its class, its casts and both errors for each name."""
    found = {}
    for name, case in CASES.items():
        pairs = zip(errors(case).items(), errors(case, shipped=True).values())
        both = {letter: [float(f"{x:.1e}"), float(f"{y:.1e}")] for (letter, x), y in pairs}
        found[name] = {"class": f"{case.name}Attention", "casts": casts(case), "errors": both}
    return {"versions": VERSIONS, "layers": found}


def as_text(record: dict) -> str:
    """JSON with a line for each layer."""
    layers = ",\n".join(f"  {json.dumps(name)}: {json.dumps(about)}" for name, about in record["layers"].items())
    return f'{{\n "versions": {json.dumps(record["versions"])},\n "layers": {{\n{layers}\n }}\n}}\n'


if __name__ == "__main__":
    RECORD.write_text(as_text(measured()), "utf-8")
