"""Sinks against Transformers' own eager function of gpt-oss, in float64."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.models.gpt_oss import modeling_gpt_oss

from attnmath import sink_attention, sink_attention_vjp

rng = np.random.default_rng(36)
Q, K, V = rng.normal(size=(2, 4, 5, 6)), rng.normal(size=(2, 2, 7, 6)), rng.normal(size=(2, 2, 7, 3))
dO, sigma = rng.normal(size=(2, 4, 5, 3)), rng.normal(size=4)
B = np.where(rng.random((2, 1, 5, 7)) < 0.7, 0.0, -np.inf)
B[..., 0] = 0


def leaf(x):
    return torch.tensor(x, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("sign", [1, -1], ids=["theirs", "a wrong sign"])
def test_sink_attention(sign):
    """Two heads share each head of keys; our gradients of these are summed over the two."""
    q, k, v, s = map(leaf, (Q, K, V, sigma))
    module = SimpleNamespace(num_key_value_groups=2, training=False, sinks=s)
    O = modeling_gpt_oss.eager_attention_forward(module, q, k, v, torch.tensor(B), scaling=0.4)[0].transpose(1, 2)
    K_all, V_all = (np.repeat(x, 2, axis=1) for x in (K, V))
    np.testing.assert_allclose(sink_attention(Q, K_all, V_all, sigma, B, 0.4), O.detach(), rtol=1e-10, atol=1e-12)
    O.backward(torch.tensor(dO))
    ours = sink_attention_vjp(dO, Q, K_all, V_all, sigma, B, 0.4)
    np.testing.assert_allclose(ours.dQ, q.grad, rtol=1e-10, atol=1e-12)
    for our, their in ((ours.dK, k), (ours.dV, v)):
        shared = our.reshape(2, 2, 2, *our.shape[2:]).sum(2)
        np.testing.assert_allclose(shared, their.grad, rtol=1e-10, atol=1e-12)
    assert np.allclose(sign * ours.dsigma, s.grad, rtol=1e-10, atol=1e-12) == (sign == 1)
