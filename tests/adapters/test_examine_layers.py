"""Layers of PyTorch and of transformers are right in each of their formats; damage in them has its name.

Run by 'make test-adapters'.
"""

import functools
import os

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # small programs, each run once

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import BertConfig, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config
from transformers.models.bert.modeling_bert import BertAttention
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.models.llama import modeling_llama
from transformers.models.mistral.modeling_mistral import MistralAttention
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention

from attnmath import adapters, attention, bias, causal_mask, examine, examine_layer

SHARED = dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=6)
BERT = functools.partial(BertConfig, hidden_size=12, num_attention_heads=3)
GPT2 = functools.partial(GPT2Config, n_embd=12, n_head=3)
LLAMA = functools.partial(LlamaConfig, attention_bias=True, **SHARED)
MODULES = {
    "BERT": lambda impl: BertAttention(BERT(attn_implementation=impl)),
    "BERT, cross": lambda impl: BertAttention(BERT(attn_implementation=impl), is_cross_attention=True),
    "GPT-2": lambda impl: GPT2Attention(GPT2(attn_implementation=impl), layer_idx=0),
    "GPT-2, cross": lambda impl: GPT2Attention(GPT2(attn_implementation=impl), is_cross_attention=True, layer_idx=0),
    "GPT-2, scaled by layer": lambda impl: GPT2Attention(
        GPT2(attn_implementation=impl, scale_attn_by_inverse_layer_idx=True), layer_idx=2),
    "Llama": lambda impl: modeling_llama.LlamaAttention(LLAMA(attn_implementation=impl), layer_idx=0),
    "Mistral": lambda impl: MistralAttention(MistralConfig(attn_implementation=impl, **SHARED), layer_idx=0),
    "Qwen2": lambda impl: Qwen2Attention(Qwen2Config(attn_implementation=impl, **SHARED), layer_idx=0),
}
FORMATS = torch.float64, torch.float32, torch.bfloat16
EMPTY = {"eager": "uniform with gradient", "sdpa": "zero"}
names = pytest.mark.parametrize("name", MODULES)


def named(report):
    return [f.name for f in report.findings if f.kind != "convention"]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@names
def test_layers_of_transformers_are_right(name, impl, dtype):
    """In eager, Llama's softmax is of single precision, and its mask is -inf in there: NaN in double."""
    report = examine_layer(MODULES[name](impl).to(dtype), seed=1)
    assert report.right, str(report)
    single = impl == "eager" and dtype == torch.float64 and ("Llama" in name or "Mistral" in name or "Qwen" in name)
    assert (report.conventions.inside, report.conventions.empty) == (
        ("float32", "nan") if single else (None, EMPTY[impl]))
    assert [h.name for h in report.hazards] == ["empty_row_nan"] * single


@names
def test_a_layer_is_as_before(name):
    module = MODULES[name]("eager")
    module.train()
    before = {k: p.clone() for k, p in module.named_parameters()}
    examine_layer(module, seed=1)
    assert all(torch.equal(p, before[k]) and p.requires_grad and p.grad is None for k, p in module.named_parameters())
    assert all(m.training for m in module.modules())


def swapped_blocks(module):
    """Keys and values out of the packed projection at each other's places."""
    module.c_attn.register_forward_hook(lambda m, i, o: torch.cat([o[..., :12], o[..., 24:], o[..., 12:24]], -1))
    return module


def transposed_output(module):
    module.c_proj.register_forward_hook(lambda m, i, o: i[0] @ m.weight.T + m.bias)
    return module


def without_bias(module):
    module.self.query.register_forward_hook(lambda m, i, o: o - m.bias)
    return module


def detached_keys(module):
    module.self.key.register_forward_hook(lambda m, i, o: i[0].detach() @ m.weight.T + m.bias)
    return module


def unscaled(module):
    module.scaling = 1.0
    return module


DAMAGE = {
    "blocks_exchanged": ("GPT-2", swapped_blocks), "W_used_transposed": ("GPT-2", transposed_output),
    "b_Q_missing": ("BERT", without_bias), "dX_misses_K": ("BERT", detached_keys),
}


@pytest.mark.parametrize("dtype", FORMATS[:2])
@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_in_a_module_is_named(name, impl, dtype):
    kind, damage = DAMAGE[name]
    report = examine_layer(damage(MODULES[kind](impl).to(dtype)), seed=1, smallest=False)
    assert named(report) == [name]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_in_a_short_format_is_found(name, dtype):
    """There the bounds are wide; what it is, float32 tells, or nothing does."""
    kind, damage = DAMAGE[name]
    report = examine_layer(damage(MODULES[kind]("sdpa").to(dtype)), seed=1, smallest=False)
    assert report.wrong and named(report) in ([name], ["unnamed"])


@pytest.mark.parametrize("name", ["rope_sign", "rope_pairing", "rope_keys_missing", "rope_halves_back"])
@pytest.mark.parametrize("dtype", FORMATS[:2])
def test_damage_in_the_rotary_embedding_is_named(name, dtype, monkeypatch):
    right = modeling_llama.apply_rotary_pos_emb

    class Halves(torch.autograd.Function):
        """The way back takes the sine after the turn."""

        @staticmethod
        def forward(x, cos, sin):
            return x * cos + modeling_llama.rotate_half(x) * sin

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.tables = inputs[1:]

        @staticmethod
        def backward(ctx, dx):
            cos, sin = ctx.tables
            return dx * cos - modeling_llama.rotate_half(dx) * sin, None, None

    def neighbours(x):
        return torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)

    def wrong(q, k, cos, sin, unsqueeze_dim=1):
        c, s = cos[:, None], sin[:, None]
        return {
            "rope_sign": lambda: right(q, k, cos, -sin),
            "rope_pairing": lambda: tuple(x * c + neighbours(x) * s for x in (q, k)),
            "rope_keys_missing": lambda: (right(q, k, cos, sin)[0], k),
            "rope_halves_back": lambda: tuple(Halves.apply(x, c, s) for x in (q, k)),
        }[name]()

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", wrong)
    assert named(examine_layer(MODULES["Llama"]("sdpa").to(dtype), seed=1, smallest=False)) == [name]


def test_keys_of_another_group_are_named(monkeypatch):
    monkeypatch.setattr(modeling_llama, "repeat_kv", lambda x, n: x.repeat(1, n, 1, 1))
    report = examine_layer(MODULES["Llama"]("eager").double(), conventions={"inside": "float32"}, seed=1, smallest=False)
    assert named(report) == ["f_gqa_map"]


def test_other_modules_are_refused_with_a_clear_line():
    for adapter, part in [(adapters.bert, "self.query"), (adapters.gpt2, "c_attn"), (adapters.llama, "q_proj")]:
        with pytest.raises(TypeError, match=f"module is a Linear without {part}"):
            adapter(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="layer is a Dropout; it needs weights="):
        examine_layer(torch.nn.Dropout())


def test_functions_of_libraries_are_right():
    """JAX's own function is examined by test_examine_candidates.py."""
    for arguments in (adapters.sdpa(), adapters.transformers_attention()):
        report = examine(**arguments, seed=1, smallest=False)
        assert report.right, str(report)


def test_the_function_of_jax_is_called_as_told():
    given = adapters.jax_attention()
    q, k = (jnp.asarray(np.random.default_rng(0).normal(size=s), "float32") for s in ((1, 3, 4, 2), (1, 3, 2, 2)))
    got = given["fn"](q, k, k, **{given["options"]["causal"]: True, given["options"]["scale"]: 0.5})
    want = attention(*(np.asarray(x, float).swapaxes(1, 2).repeat(r, 1) for x, r in ((q, 1), (k, 2), (k, 2))),
                     bias(causal_mask(3, 3), like=np.ones(1)), 0.5)
    assert given["layout"] == "bshd" and given["options"]["groups"] is None
    assert np.abs(np.asarray(got).swapaxes(1, 2) - want).max() < 1e-6  # some dozen roundings in single precision


def with_parameters(X, Z, weights):
    """A layer of JAX, handed its weights."""
    q = jnp.einsum("bnd,dhk->bhnk", X, weights["W_Q"]) + weights["b_Q"][:, None]
    k, v = (jnp.einsum("bmd,dhk->bhmk", Z, weights[name]) for name in ("W_K", "W_V"))
    p = jax.nn.softmax(q @ k.swapaxes(-1, -2) / 2.0, axis=-1)
    return jnp.einsum("bhnk,hkd->bnd", p @ v, weights["W_O"])


JAX_WEIGHTS = dict(W_Q=(7, 3, 4), W_K=(6, 3, 4), W_V=(6, 3, 4), W_O=(3, 4, 7), b_Q=(3, 4))


@pytest.mark.parametrize(("wrong", "name"), [
    (lambda X, Z, W: with_parameters(X, Z, W), None),
    (lambda X, Z, W: with_parameters(X, jax.lax.stop_gradient(Z), W), "dZ_missing"),
])
def test_a_layer_of_jax_is_handed_its_weights(wrong, name):
    weights = {x: jnp.zeros(shape, "float32") for x, shape in JAX_WEIGHTS.items()}
    report = examine_layer(jax.jit(wrong), weights=weights, heads=3, seed=1, smallest=False)
    assert named(report) == ([] if name is None else [name])
    assert [f.title for f in report.findings if f.name == "weights"] == (
        ["the weights are W_Q, W_K, W_V d h k, W_O h k d"])
