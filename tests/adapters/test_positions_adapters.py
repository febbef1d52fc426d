"""Rotations, slopes and buckets against the functions of Transformers: values, and gradients by its autograd."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, T5Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom import modeling_bloom
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.t5.modeling_t5 import T5Attention

from attnmath import (
    alibi,
    alibi_vjp,
    attention,
    bias,
    causal_mask,
    relative_buckets,
    rotary,
    rotary_vjp,
    table_bias,
    table_bias_vjp,
)

rng = np.random.default_rng(82)
X, dX = rng.normal(size=(2, 2, 3, 5, 8))  # batch, heads, tokens, features
theta = rng.normal(size=4)
positions = rng.integers(0, 40, (2, 5))


def llama(x, theta, t):
    angles = torch.cat([t[..., None] * theta] * 2, -1)
    return modeling_llama.apply_rotary_pos_emb(x, x, angles.cos(), angles.sin())[0]


def gptj(x, theta, t):
    angles = t[..., None] * theta
    return modeling_gptj.apply_rotary_pos_emb(x.transpose(1, 2), angles.sin(), angles.cos()).transpose(1, 2)


THEIRS = {"half_split": llama, "interleaved": gptj}


def near(got, want):
    return np.abs(np.asarray(got) - np.asarray(want)).max() <= 1e-12 * (1 + np.abs(np.asarray(want)).max())


@pytest.mark.parametrize("layout", THEIRS)
def test_rotary(layout):
    x, frequencies = torch.tensor(X, requires_grad=True), torch.tensor(theta, requires_grad=True)
    theirs = THEIRS[layout](x, frequencies, torch.tensor(positions))
    where = {"positions": positions[:, None], "layout": layout}
    assert near(rotary(X, theta, **where), theirs.detach())
    want = torch.autograd.grad(theirs, (x, frequencies), torch.tensor(dX))
    assert all(map(near, rotary_vjp(dX, X, theta, **where), want))
    other = next(name for name in THEIRS if name != layout)
    assert not near(rotary(X, theta, **where | {"layout": other}), theirs.detach())


@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "yarn", "llama3"])
def test_scaled_frequencies_are_an_argument(kind):
    """What the library makes of base and factor is a list of frequencies, and for YaRN a factor of the rows."""
    said = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = LlamaConfig(hidden_size=24, num_attention_heads=3, head_dim=8, rope_parameters=said,
                         max_position_embeddings=64)
    layer = modeling_llama.LlamaRotaryEmbedding(config)
    x = torch.tensor(X, dtype=torch.float32)
    cos, sin = layer(x, torch.tensor(positions))
    theirs = modeling_llama.apply_rotary_pos_emb(x, x, cos, sin)[0]
    found = layer.attention_scaling * rotary(x, layer.inv_freq, positions=positions[:, None])
    assert torch.allclose(found, theirs, rtol=1e-5, atol=1e-5)
    plain = torch.tensor(10000.0 ** (-np.arange(4) / 4), dtype=torch.float32)
    assert torch.allclose(layer.inv_freq, plain) == (kind in ("default", "dynamic"))
    assert kind == "default" or kind in ROPE_INIT_FUNCTIONS


def test_alibi():
    """Bloom's bias depends on the key alone; behind a causal mask its heads are ours."""
    eight = modeling_bloom.build_alibi_tensor(torch.ones(1, 5), 8, torch.float64)[:, 0].numpy()
    slopes = 2.0 ** -np.arange(1, 9)
    assert near(eight, slopes[:, None] * np.arange(5))
    Q, K, V = rng.normal(size=(3, 8, 5, 4))
    mask = causal_mask(5, 5)
    assert near(attention(Q, K, V, bias(mask, alibi(slopes, n=5, m=5))), attention(Q, K, V, bias(mask, eight[:, None])))


@pytest.mark.parametrize(("count", "far"), [(32, 128), (16, 40), (6, 9), (64, 300)])
@pytest.mark.parametrize("sides", ["both", "before"])
def test_relative_buckets(count, far, sides):
    """Computed in whole numbers, the same as from the library's logarithms in float32."""
    apart = torch.arange(700)[None, :] - torch.arange(699 - 350, 700)[:, None]
    theirs = T5Attention._relative_position_bucket(apart, sides == "both", count, far).numpy()
    ours = relative_buckets(351, 700, buckets=count, distance=far, sides=sides)
    assert (ours == theirs).all() and (theirs.max() == count - 1)
    assert (relative_buckets(351, 700, buckets=count, distance=2 * far, sides=sides) != theirs).any()


@pytest.mark.parametrize("decodes", [False, True])
def test_table_bias(decodes):
    config = T5Config(d_model=12, d_kv=4, num_heads=3, relative_attention_num_buckets=8, is_decoder=decodes,
                      relative_attention_max_distance=6)
    layer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    table = layer.relative_attention_bias.weight
    theirs = layer.compute_bias(5, 9)[0]
    own = relative_buckets(5, 9, buckets=8, distance=6, sides="before" if decodes else "both", align="upper_left")
    beta = table.detach().numpy().T
    assert near(table_bias(beta, buckets=own), theirs.detach())
    dB = rng.normal(size=(3, 5, 9))
    (want,) = torch.autograd.grad(theirs, table, torch.tensor(dB))
    assert near(table_bias_vjp(dB, beta, buckets=own).T, want)


def test_slopes_through_blooms_bias():
    eta = torch.tensor([0.5, 0.25], dtype=torch.float64, requires_grad=True)
    dB = rng.normal(size=(2, 3, 5))
    place = torch.arange(3)[:, None] + 2 - torch.arange(5)
    (want,) = torch.autograd.grad(-eta[:, None, None] * place.abs(), eta, torch.tensor(dB))
    assert near(alibi_vjp(dB, eta.detach().numpy(), n=3, m=5), want)
