"""A layer with latents against DeepSeek-V3's class in Transformers."""

import numpy as np
import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

from attnmath import MLAWeights, latent_attention, latent_attention_vjp

rng = np.random.default_rng(93)
b, n, d, d_q, d_k, d_r, d_c, d_v, H = 2, 5, 12, 7, 3, 4, 6, 9, 8
X, dY = rng.normal(size=(2, b, n, d))
B = np.where(np.tri(n, dtype=bool), 0, -np.inf)


def near(got, want):
    return np.abs(np.asarray(got) - np.asarray(want)).max() <= 1e-12 * (1 + np.abs(np.asarray(want)).max())


def as_ours(layer):
    """The library's matrices, or their gradients, of which two hold two of ours each."""
    names = "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"
    down_q, up_q, down, up, out = (layer[f"{name}.weight"].T.numpy() for name in names)
    Q = np.moveaxis(up_q.reshape(d_q, H, d_k + d_r), 1, 0)
    KV = np.moveaxis(up.reshape(d_c, H, d_k + d_v), 1, 0)
    return MLAWeights(down_q, Q[..., :d_k], Q[..., d_k:], down[:, :d_c], KV[..., :d_k], KV[..., d_k:],
                      down[:, d_c:], out.reshape(H, d_v, d))


def made(interleaved):
    """The class without its norms on the latents, its frequencies, and what it gives."""
    config = DeepseekV3Config(
        hidden_size=d, num_attention_heads=H, num_key_value_heads=H, q_lora_rank=d_q, kv_lora_rank=d_c,
        qk_nope_head_dim=d_k, qk_rope_head_dim=d_r, v_head_dim=d_v, num_hidden_layers=1, vocab_size=9,
        rope_interleave=interleaved, attention_bias=False, attn_implementation="eager")
    torch.manual_seed(93)
    layer = deepseek.DeepseekV3Attention(config, 0).double()
    layer.q_a_layernorm = layer.kv_a_layernorm = torch.nn.Identity()
    for matrix in layer.parameters():
        torch.nn.init.normal_(matrix, std=0.5)
    theta = deepseek.DeepseekV3RotaryEmbedding(config).inv_freq.double()
    angles = torch.arange(n)[:, None] * torch.cat([theta, theta])
    x = torch.tensor(X, requires_grad=True)
    Y = layer(x, (angles.cos()[None], angles.sin()[None]), torch.tensor(B)[None, None])[0]
    names, matrices = zip(*layer.named_parameters())
    dX, *dW = torch.autograd.grad(Y, (x, *matrices), torch.tensor(dY))
    W = as_ours(dict(zip(names, (matrix.detach() for matrix in matrices))))
    return W, theta.numpy(), Y.detach(), dX, as_ours(dict(zip(names, dW)))


@pytest.mark.parametrize(("layout", "other"), [("half_split", "interleaved"), ("interleaved", "half_split")])
def test_deepseek_without_norms(layout, other, monkeypatch):
    """The library's softmax is in float32, whatever it is given: here it keeps the precision."""
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype: softmax(x, dim=dim))
    W, theta, Y, dX, dW = made(layout == "interleaved")
    assert near(latent_attention(X, W, theta, B, layout=layout), Y)
    found = latent_attention_vjp(dY, X, W, theta, B, layout=layout)
    assert near(found.dX, dX)
    assert all(map(near, found.dW, dW))
    assert not near(latent_attention(X, W, theta, B, layout=other), Y)
    wrong = latent_attention_vjp(dY, X, W, theta, B, layout=other)
    assert [field for field in W._fields if near(getattr(wrong.dW, field), getattr(dW, field))] == []
