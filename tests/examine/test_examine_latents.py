"""Layers with latents, as somebody wrote them who had not read the checker: found out, judged, mistakes named."""

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests" / "wild")]

import latents_right  # noqa: E402
import wild  # noqa: E402

from attnmath import examine_layer  # noqa: E402

NOT_FOUND = {  # matrices that are multiplied before tokens meet them, a module for each head, a norm between two maps
    "mla_absorbed_twice", "mla_module_per_head", "mla_lucidrains",
}


@pytest.mark.parametrize("case", latents_right.CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_right_layer_is_right(case, dtype):
    if dtype in case.formats:
        report = examine_layer(case.make(), dtype=dtype, seed=2, smallest=False)
        assert report.verdict == ("not in the list" if case.name in NOT_FOUND else "right"), report


@pytest.mark.parametrize("name, words", [
    ("mla_deepseek_v3_sdpa", "latents of 24 for queries and 16 for keys and values, normed by root mean square"
                             " (epsilon 1e-06), a key of 8 for all heads, rotated, interleaved, base 10000"),
    ("mla_kernels_input_first", "normed by mean and variance"),
    ("mla_nanogpt_paper_names", "a key of"),
])
def test_what_was_found_is_said(name, words):
    case = {x.name: x for x in latents_right.CASES}[name]
    text = " ".join(str(examine_layer(case.make(), dtype="float64", seed=3, smallest=False)).split())
    assert words in text, text


@pytest.mark.parametrize("name, words", {
    "mla_norm_backward_short": "divided by the root alone (of the latent of keys and values)",
    "mla_rotary_backward_forwards": "are rotated on, not back (dQ and dK)",
    "mla_shared_key_gradient_of_one_head": "the key that all heads share comes from one head alone",
    "mla_shared_key_gradient_divided": "the key that all heads share is a mean over the heads",
    "mla_values_from_detached_latent": "nothing comes back to the latent through the values",
    "mla_keys_from_detached_latent": "nothing comes back to the latent through the keys",
    "mla_rotary_key_by_data": "nothing comes back to the key that all heads share",
    "mla_down_projection_without_gradient": "nothing comes back through the latent of keys and values (and 1 more)",
    "mla_recompute_loses_rotary_key": "nothing comes back to the key that all heads share",
    "mla_norm_statistics_detached": "divided by the root alone (of both latents)",
    "mla_core_backward_forgets_scale": "the gradients of the part that is turned leave out the scale",
    "mla_latent_gradient_as_value_only": "nothing comes back to the latent through the keys",
    "mla_norm_gain_gradient_averaged": "dgain_C_KV is a mean over all tokens instead of a sum",
}.items())
def test_a_mistake_has_its_name(name, words):
    found = wild.outcome(("latents_wrong", name, "float32", False))
    assert found.verdict == "wrong" and words in found.sentence, found


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("eps, words", [(None, "epsilon"), (1e-5, "epsilon 1e-05")])
def test_the_epsilon_of_a_norm_may_be_that_of_the_format(eps, words, dtype):
    report = examine_layer(Small(eps), dtype=dtype, seed=4, smallest=False)
    text = " ".join(str(report).split())
    assert report.right and words in text, text
    if eps is None:
        assert f"epsilon {torch.finfo(getattr(torch, dtype)).eps:g}" in text, text


class Small(torch.nn.Module):
    """Latents of one width, PyTorch's own norm, nothing turned; not causal."""

    def __init__(self, eps):
        super().__init__()
        linear = lambda a, b: torch.nn.Linear(a, b, bias=False)  # noqa: E731
        self.q_down, self.kv_down, self.q_up, self.kv_up = linear(12, 8), linear(12, 8), linear(8, 12), linear(8, 24)
        self.q_norm, self.kv_norm = (torch.nn.RMSNorm(8, eps=eps) for _ in "qk")
        self.out = linear(12, 12)
        self.num_heads = 2

    def forward(self, x):
        heads = lambda t: t.unflatten(-1, (2, -1)).transpose(1, 2)  # noqa: E731
        k, v = heads(self.kv_up(self.kv_norm(self.kv_down(x)))).chunk(2, -1)
        q = heads(self.q_up(self.q_norm(self.q_down(x))))
        return self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
