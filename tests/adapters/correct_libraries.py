"""Right attention of JAX and of Hugging Face transformers, called as the checker calls."""

from types import SimpleNamespace

import jax
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.llama import modeling_llama

from correct import Correct

WITHOUT_FLOAT16 = "float64", "float32", "bfloat16"  # on a CPU, XLA has no product of float16 summed in float32
JAX = dict(mask="mask", bias="bias", causal="is_causal", scale="scale", groups=None)
HF = dict(mask="attn_mask", bias="bias", scale="scale", groups=None)


def module(q, k):
    """What the functions of transformers read of a module."""
    return SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=False, is_causal=False)


def of_transformers(forward):
    """transformers takes masks as numbers, and gives back (b, n, H, d)."""

    def attention(q, k, v, attn_mask=None, bias=None, scale=None):
        if attn_mask is not None:
            hidden = q.new_zeros(attn_mask.shape).masked_fill(~attn_mask, float("-inf"))
            bias = hidden if bias is None else bias + hidden
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        o, _ = forward(module(q, k), q, k, v, bias, scaling=scale, dropout=0.0)
        return o.transpose(1, 2)

    return attention


llama = of_transformers(modeling_llama.eager_attention_forward)
gpt2 = of_transformers(modeling_gpt2.eager_attention_forward)
sdpa = of_transformers(sdpa_attention_forward)


@jax.jit
def jitted(q, k, v):
    return jax.nn.dot_product_attention(q, k, v)


LIBRARIES = {
    "JAX": Correct(jax.nn.dot_product_attention, options=JAX, layout="bshd", framework="jax", alike=50),
    "JAX, jit": Correct(jitted, options=dict(groups=None), layout="bshd", dtypes=WITHOUT_FLOAT16, framework="jax", alike=50),
    "transformers, eager of Llama": Correct(llama, options=HF),
    "transformers, eager of GPT-2": Correct(gpt2, options={w: x for w, x in HF.items() if w != "groups"}),
    "transformers, sdpa": Correct(sdpa, options=HF),
}
