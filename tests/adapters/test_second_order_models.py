"""Models of Hugging Face and layers of PyTorch, patched: what their plain attention gives, and its derivatives."""

import itertools
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import transformers
from torch.autograd import grad
from torch.func import functional_call, jvp, vjp
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.models.bert import modeling_bert

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from attnmath._words.tolerance import DROP_IN  # noqa: E402
from attnmath.torch import patched, patched_attention  # noqa: E402
from attnmath.torch import scaled_dot_product_attention as ours  # noqa: E402
from by_definition import apart, dotted, leaves  # noqa: E402

BATCH, LENGTH, WIDTH, WORDS = 2, 7, 12, 23
PLAIN = "bert", "gpt2", "llama", "qwen3", "gemma3"  # transformers has no "sdpa" of the others
WINDOWED = dict(head_dim=6, sliding_window=3, layer_types=["sliding_attention", "full_attention"])
DECODERS = {  # model, configuration, what it has of its own
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, {}),
    "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, dict(head_dim=6)),
    "gemma2": (transformers.Gemma2ForCausalLM, transformers.Gemma2Config, WINDOWED | dict(attn_logit_softcapping=2.0)),
    "gemma3": (transformers.Gemma3ForCausalLM, transformers.Gemma3TextConfig, WINDOWED),
    "gpt_oss": (transformers.GptOssForCausalLM, transformers.GptOssConfig, WINDOWED | dict(num_local_experts=2, num_experts_per_tok=2)),
}


def model(name, attention):
    """A small one with random weights, without dropout, in float64."""
    if name == "bert":
        kind, config = transformers.BertForMaskedLM, transformers.BertConfig(
            vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
            max_position_embeddings=LENGTH,
        )
    elif name == "gpt2":
        kind, config = transformers.GPT2LMHeadModel, transformers.GPT2Config(
            vocab_size=WORDS, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0
        )
    else:
        kind, config, own = DECODERS[name]
        config = config(
            vocab_size=WORDS, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=20, max_position_embeddings=LENGTH, **own,
        )
    config._attn_implementation, config._experts_implementation = attention, "eager"
    torch.manual_seed(5)
    made = kind(config).double().eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return made


def problem(name, attention, padded):
    """logits(embeddings, *parameters), at some embeddings and at the parameters, with a direction of each."""
    net = model(name, attention)
    names, parameters = zip(*net.named_parameters())
    rng = torch.Generator().manual_seed(3)
    width = net.get_input_embeddings().weight.shape[1]
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, LENGTH - 2 :] = not padded

    def logits(embeddings, *parameters):
        kept = dict(zip(names, parameters))
        return functional_call(net, kept, (), dict(inputs_embeds=embeddings, attention_mask=mask)).logits

    x = [torch.randn(BATCH, LENGTH, width, generator=rng, dtype=torch.float64), *(p.detach() for p in parameters)]
    x_dot = [torch.randn(y.shape, generator=rng, dtype=torch.float64) for y in x]
    return logits, x, x_dot, torch.randn(BATCH, LENGTH, WORDS, generator=rng, dtype=torch.float64)


def found(f, x, x_dot, O_bar):
    """The logits, their tangent, the gradients, and the Hessian of <O_bar, logits> times x_dot, in three ways."""
    y = leaves(x)
    O = f(*y)
    first = grad(O, y, O_bar, create_graph=True, materialize_grads=True)
    second = grad(dotted(first, x_dot), y, materialize_grads=True)
    O_dot = jvp(f, tuple(x), tuple(x_dot))[1]
    over = jvp(lambda *y: vjp(f, *y)[1](O_bar), tuple(x), tuple(x_dot))[1]
    y = leaves(x)
    under = grad(jvp(f, tuple(y), tuple(x_dot))[1], y, O_bar, materialize_grads=True)
    return dict(logits=[O], tangent=[O_dot], gradients=first, double_backward=second, forward_over_reverse=over,
                reverse_over_forward=under)


def in_its_dtype(softmax):
    """Llama's plain attention takes the softmax in float32 also where all else is float64; here it does not."""

    def wide(x, dim=None, dtype=None):
        return softmax(x, dim=dim)

    return patch.object(functional, "softmax", wide)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name, attention", [
    *itertools.product(["bert", *DECODERS], ["eager"]), *itertools.product(PLAIN, ["sdpa"])])
def test_a_model_has_the_derivatives_of_its_plain_attention(name, attention, padded):
    with in_its_dtype(functional.softmax):
        want = found(*problem(name, "eager", padded))
    with patch.object(patched, "scaled_dot_product_attention", wraps=ours) as called, patched_attention():
        got = found(*problem(name, attention, padded))
    assert called.called
    errors = {what: apart(got[what], want[what]) for what in want}
    assert max(errors.values()) <= DROP_IN, errors
    assert all(any(y.any() for y in want[what]) for what in want)


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_a_cap_and_sinks_that_are_not_read_are_seen(name):
    f, x, _, O_bar = problem(name, "eager", True)
    with in_its_dtype(functional.softmax):
        want = grad(f(*(y := leaves(x))), y, O_bar, materialize_grads=True)
    with patch.dict(patched.PLAIN, {name: ()}), patched_attention():
        got = grad(f(*(y := leaves(x))), y, O_bar, materialize_grads=True)
    assert apart(got, want) > 1e-3


def test_plain_attention_that_is_written_otherwise_stays_its_own():
    def times_two(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        return 2 * value.transpose(1, 2), None

    f, x, _, _ = problem("bert", "eager", True)
    with patch.object(modeling_bert, "eager_attention_forward", times_two):
        want = f(*x)
        with patch.object(patched, "scaled_dot_product_attention", wraps=ours) as called, patched_attention():
            got = f(*x)
    assert torch.equal(got, want) and not called.called


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_which_they_do_not_have_without(name):
    f, x, x_dot, _ = problem(name, "sdpa", True)
    with pytest.raises(RuntimeError, match="forward AD"):
        jvp(f, tuple(x), tuple(x_dot))


def layer(kind, **how):
    """A layer's output as a function of its tokens and weights; two tokens of the first sequence are padding."""
    torch.manual_seed(5)
    made = dict(embed_dim=WIDTH) if kind is torch.nn.MultiheadAttention else dict(d_model=WIDTH, dim_feedforward=20)
    heads = "num_heads" if kind is torch.nn.MultiheadAttention else "nhead"
    net = kind(**made, **{heads: 3}, dropout=0.0, batch_first=True).double()
    names, parameters = zip(*net.named_parameters())
    hidden = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    hidden[0, -2:] = True
    times = 3 if kind is torch.nn.MultiheadAttention else 1

    def f(X, *parameters):
        out = functional_call(net, dict(zip(names, parameters)), (X,) * times, how | {PADDING[kind]: hidden})
        return out[0] if times == 3 else out

    x = [torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64), *(p.detach() for p in parameters)]
    return f, x, [torch.randn_like(y) for y in x], torch.randn_like(x[0])


PADDING = {torch.nn.MultiheadAttention: "key_padding_mask", torch.nn.TransformerEncoderLayer: "src_key_padding_mask"}


def test_a_layer_has_the_derivatives_of_its_own_products():
    want = found(*layer(torch.nn.MultiheadAttention, need_weights=True))
    with patched_attention():
        got = found(*layer(torch.nn.MultiheadAttention, need_weights=False))
    assert max(apart(got[what], want[what]) for what in want) <= DROP_IN


def test_an_encoder_has_the_derivatives_of_the_math_kernel():
    with sdpa_kernel(SDPBackend.MATH):
        want = found(*layer(torch.nn.TransformerEncoderLayer))
    with patched_attention():
        got = found(*layer(torch.nn.TransformerEncoderLayer))
    assert max(apart(got[what], want[what]) for what in want) <= DROP_IN
