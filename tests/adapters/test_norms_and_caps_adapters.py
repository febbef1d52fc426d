"""Norms and caps against Transformers' own classes and eager functions, in float64.

Their inner casts to float32 are replaced: torch.float32 is torch.float64 while they run.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3 import modeling_qwen3

from attnmath import (
    capped_attention,
    capped_attention_vjp,
    qk_norm_attention,
    qk_norm_attention_vjp,
    rms_norm,
    rms_norm_vjp,
)

rng = np.random.default_rng(34)
X, dY = rng.normal(size=(2, 2, 4, 5))
alpha = rng.normal(size=5)
Q, K, V = rng.normal(size=(2, 3, 4, 6)), rng.normal(size=(2, 3, 5, 6)), rng.normal(size=(2, 3, 5, 7))
dO = rng.normal(size=(2, 3, 4, 7))
alpha_Q, alpha_K = rng.normal(size=(2, 6))
B = np.where(rng.random((2, 1, 4, 5)) < 0.7, 0.0, -np.inf)
B[..., 0] = 0
MODULE = SimpleNamespace(num_key_value_groups=1, training=False)


@pytest.fixture(autouse=True)
def without_casts(monkeypatch):
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def leaf(x):
    return torch.tensor(x, dtype=torch.float64, requires_grad=True)


def norm(kind, d, epsilon, gain):
    """Their norm with this gain, and the weight that it keeps."""
    theirs = kind(d, eps=epsilon)
    gemma = "Gemma" in kind.__name__  # keeps the gain less one
    theirs.weight = torch.nn.Parameter(torch.tensor(gain - 1 if gemma else gain))
    return theirs


def near(got, want):
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-10, atol=1e-12)


NORMS = LlamaRMSNorm, modeling_qwen3.Qwen3RMSNorm, modeling_gemma2.Gemma2RMSNorm, modeling_gemma3.Gemma3RMSNorm


@pytest.mark.parametrize("kind", NORMS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("epsilon", [1e-6, 0.1])
def test_rms_norm(kind, epsilon):
    x, theirs = leaf(X), norm(kind, 5, epsilon, alpha)
    Y = theirs(x)
    near(rms_norm(X, alpha, epsilon=epsilon), Y)
    Y.backward(torch.tensor(dY))
    for ours, their in zip(rms_norm_vjp(dY, X, alpha, epsilon=epsilon), (x, theirs.weight), strict=True):
        near(ours, their.grad)


@pytest.mark.parametrize("cap", [0.5, 50.0])
@pytest.mark.parametrize("module", [modeling_gemma2, modeling_gemma3], ids=["gemma2", "gemma3"])
def test_capped_attention(module, cap):
    q, k, v = map(leaf, (Q, K, V))
    O = module.eager_attention_forward(MODULE, q, k, v, torch.tensor(B), scaling=0.4, softcap=cap)[0].transpose(1, 2)
    near(capped_attention(Q, K, V, cap, B, 0.4), O)
    O.backward(torch.tensor(dO))
    for ours, their in zip(capped_attention_vjp(dO, Q, K, V, cap, B, 0.4)[:3], (q, k, v), strict=True):
        near(ours, their.grad)


@pytest.mark.parametrize("kind", [modeling_qwen3.Qwen3RMSNorm, modeling_gemma3.Gemma3RMSNorm],
                         ids=lambda kind: kind.__name__)
def test_qk_norm_attention(kind):
    q, k, v = map(leaf, (Q, K, V))
    norms = norm(kind, 6, 1e-6, alpha_Q), norm(kind, 6, 1e-6, alpha_K)
    O = modeling_qwen3.eager_attention_forward(
        MODULE, norms[0](q), norms[1](k), v, torch.tensor(B), scaling=0.4)[0].transpose(1, 2)
    near(qk_norm_attention(Q, K, V, alpha_Q, alpha_K, B, 0.4), O)
    O.backward(torch.tensor(dO))
    ours = qk_norm_attention_vjp(dO, Q, K, V, alpha_Q, alpha_K, B, 0.4)
    for our, their in zip(ours, (q, k, v, norms[0].weight, norms[1].weight)):
        near(our, their.grad)


def test_a_cap_behind_the_mask_differs_from_theirs():
    masked = 50 * np.tanh(np.where(np.isneginf(B), -1e4, 0.4 * Q @ K.mT) / 50)
    P = np.exp(masked) / np.exp(masked).sum(-1, keepdims=True)
    assert abs(P @ V - capped_attention(Q, K, V, 50.0, B, 0.4)).max() < 1e-12  # -50 is nearly hidden
    masked = 2 * np.tanh(np.where(np.isneginf(B), -1e4, 0.4 * Q @ K.mT) / 2)
    P = np.exp(masked) / np.exp(masked).sum(-1, keepdims=True)
    assert abs(P @ V - capped_attention(Q, K, V, 2.0, B, 0.4)).max() > 0.01
