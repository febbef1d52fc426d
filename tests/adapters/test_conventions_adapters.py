"""What chapters/conventions.md claims of JAX and of Transformers, asked of them.

Run by 'make test-adapters'.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt2 import GPT2Config, modeling_gpt2
from transformers.models.llama import LlamaConfig, modeling_llama

from attnmath.book import read_off as ask
from attnmath.book.read_off import CLAIMS, claimed

jax.config.update("jax_enable_x64", True)

MAY = np.arange(3)[:, None] != np.full((1, 5), 1)  # the row 1 may read nothing
DEEP = np.where(MAY, 0.0, -1e30)


def by_jax(Q, K, V, dO=None, mask=None, added=None, causal=False, window=None, **options):
    options |= {k: jnp.asarray(a)[None, None] for k, a in [("mask", mask), ("bias", added)] if a is not None}

    def head(*x):
        x = [a.swapaxes(1, 2) for a in x]
        O = jax.nn.dot_product_attention(*x, is_causal=causal, local_window_size=window, **options)
        return O.swapaxes(1, 2)

    O, back = jax.vjp(head, *map(jnp.asarray, (Q, K, V)))
    return np.asarray(O) if dO is None else [np.asarray(g) for g in back(jnp.asarray(dO))]


def by_transformers(forward):
    """The function that a model calls, with what the model would tell it."""

    def f(Q, K, V, dO=None, mask=None, added=None, dropout=0.0, scale=None, cap=None, **options):
        x = [torch.tensor(a, requires_grad=dO is not None) for a in (Q, K, V)]
        if mask is not None and added is not None:
            mask, added = None, np.where(mask, added, -np.inf)
        given = added if mask is None else mask
        model = SimpleNamespace(num_key_value_groups=Q.shape[1] // K.shape[1], training=True, is_causal=False)
        given = None if given is None else torch.tensor(given)[None, None]
        if "causal" in options:
            options["is_causal"] = options.pop("causal")
        if cap is not None:
            options["softcap"] = cap
        O = forward(model, *x, given, dropout=dropout, scaling=scale, **options)[0].transpose(1, 2)
        return O.detach().numpy() if dO is None else [g.numpy() for g in torch.autograd.grad(O, x, torch.tensor(dO))]

    return f


def scaled(forward):
    """With the usual scale, where a model says it."""

    def call(*x, scaling, **options):
        return forward(*x, scaling=x[1].shape[-1] ** -0.5 if scaling is None else scaling, **options)

    return by_transformers(call)


LLAMA, GEMMA = (scaled(m.eager_attention_forward) for m in (modeling_llama, modeling_gemma2))
SDPA = by_transformers(sdpa_attention_forward)
LIBRARIES = {
    "JAX `dot_product_attention`": (by_jax, {"mask": MAY}),
    "Transformers, eager (Llama)": (LLAMA, None),
    "Transformers, eager (Gemma 2)": (GEMMA, None),
    "Transformers, sdpa": (SDPA, {"mask": MAY}),
}
OUTSIDE = {"layout", "base", "weights", "empty", "finite"}  # asked below, in another way


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_does_what_is_claimed(name):
    f, forbidden = LIBRARIES[name]
    claims = claimed(name, "adapters")
    found = {question: getattr(ask, question)(f) for question in claims.keys() - OUTSIDE - {"mask"}}
    found["finite"] = ask.empty(f, added=DEEP)
    if claims["mask"] != "adds 1":
        found |= {"mask": ask.mask(f), "empty": ask.empty(f, **forbidden)}
    assert found == {k: v for k, v in claims.items() if k in found}
    assert claims.keys() - found.keys() <= {"layout", "base", "weights", "mask"}


@pytest.mark.parametrize("f", [LLAMA, GEMMA])
def test_an_eager_mask_of_booleans_is_added_as_numbers(f):
    given = np.arange(3)[:, None] != np.arange(5)[None, :]
    assert np.allclose(ask.weight_table(f, mask=given), ask.weight_table(f, added=given.astype(float)))
    assert (ask.weight_table(f, mask=given) > 0).all()
    for name in ("Llama", "Gemma 2"):
        assert claimed(f"Transformers, eager ({name})", "adapters")["mask"] == "adds 1"


def test_the_order_of_the_axes():
    def raw(Q, K, V):
        return np.asarray(jax.nn.dot_product_attention(*map(jnp.asarray, (Q, K, V))))

    assert ask.layout(raw) == claimed("JAX `dot_product_attention`", "adapters")["layout"]
    for name, (f, _) in LIBRARIES.items():
        if name.startswith("Transformers"):
            assert ask.layout(f) == claimed(name, "adapters")["layout"]


def test_jaxs_log_sum_exp_is_natural():
    x = jnp.zeros((1, 3, 1, 8)), jnp.zeros((1, 5, 1, 8)), jnp.zeros((1, 5, 1, 8))
    L = jax.nn.dot_product_attention(*x, return_residual=True)[1]
    assert ask.base(np.asarray(L)) == claimed("JAX `dot_product_attention`", "adapters")["base"]


def test_sdpa_without_a_mask_is_causal_unless_the_module_says_no():
    x = [torch.randn(1, 1, k, 8) for k in (5, 5, 5)]
    default = sdpa_attention_forward(SimpleNamespace(training=False), *x, None)[0]
    causal = torch.nn.functional.scaled_dot_product_attention(*x, is_causal=True).transpose(1, 2)
    assert torch.allclose(default, causal, atol=1e-6)
    eager = modeling_llama.eager_attention_forward(
        SimpleNamespace(training=False, num_key_value_groups=1), *x, None, scaling=8**-0.5)[0]
    assert not torch.allclose(eager, causal, atol=1e-2)


def test_the_weights_of_layers():
    x = torch.randn(2, 12)
    gpt = modeling_gpt2.GPT2Attention(GPT2Config(n_embd=12, n_head=3), layer_idx=0).c_attn
    assert torch.allclose(gpt(x), x @ gpt.weight + gpt.bias, atol=1e-6) and gpt.weight.shape == (12, 36)
    config = LlamaConfig(hidden_size=12, num_attention_heads=3, num_key_value_heads=1)
    llama = modeling_llama.LlamaAttention(config, layer_idx=0)
    assert torch.allclose(llama.k_proj(x), x @ llama.k_proj.weight.T, atol=1e-6)
    assert llama.q_proj.weight.shape == (12, 12) and llama.k_proj.weight.shape == (4, 12)
    claims = {name: claimed(name, "adapters")["weights"] for name in LIBRARIES if "eager" in name}
    assert set(claims.values()) == {"x Wᵀ"}
    assert claimed("Transformers, GPT-2", "adapters")["weights"] == "x W, in one matrix"


def test_all_that_is_claimed_here_is_asked_here():
    asked = {*LIBRARIES, "Transformers, GPT-2"}
    assert {library["name"] for library in CLAIMS["library"] if "adapters" in library} == asked
