"""The layers of Transformers: output and every gradient, ours against the library's; each planted mistake is seen."""

from functools import partial

import numpy as np
import pytest
import torch
import transformers_layers as both
from transformers_layers import CASES, errors, their_layer, without_casts

from attnmath import attention_vjp, rotary, softcap
from attnmath.book import todays_layers as ours
from attnmath.book.compared_layers import compared

RECORD = compared()["layers"]
IN_DOUBLE, SHIPPED = 1e-10, 1e-5


@pytest.mark.parametrize("name", CASES)
def test_output_and_every_gradient_are_the_librarys(name):
    found = errors(CASES[name])
    assert max(found.values()) <= IN_DOUBLE
    assert found.keys() == RECORD[name]["errors"].keys()
    for letter, (recorded, _) in RECORD[name]["errors"].items():
        assert found[letter] <= 30 * max(recorded, 2.2e-16) and recorded <= IN_DOUBLE, letter


@pytest.mark.parametrize("name", CASES)
def test_as_shipped_it_is_within_the_librarys_float32(name):
    found = errors(CASES[name], shipped=True)
    assert 1e-9 < max(found.values()) <= SHIPPED, "the casts are not where they are thought to be"
    for letter, (_, recorded) in RECORD[name]["errors"].items():
        assert found[letter] <= 30 * max(recorded, 1e-9) and recorded <= SHIPPED, letter


def test_the_record_is_of_these_layers_and_versions():
    record = compared()
    assert record["versions"] == both.VERSIONS
    assert list(RECORD) == list(CASES)
    for name, case in CASES.items():
        assert RECORD[name]["class"] == f"{case.name}Attention"
        assert RECORD[name]["casts"] == both.casts(case)
    assert both.as_text(record) == both.RECORD.read_text("utf-8")


# ---- planted mistakes ------------------------------------------------------------------------------


def without_factor(dO, Q, K, V, c, B, gamma):
    """The gradients behind the cap, as if they were those before it."""
    S = gamma * Q @ K.mT
    return attention_vjp(dO, Q, K, V, B + softcap(S, c) - S, gamma)


def without_sinks(*x):
    given = SINK_VJP(*x)
    return given._replace(dsigma=0 * given.dsigma)


def every_other(K, H):
    return np.tile(K, (1, H // K.shape[1], 1, 1))


def of_every_other(dK, G):
    b, H, m, k = dK.shape
    return dK.reshape(b, H // G, G, m, k).sum(axis=1)


def of_the_first(dK, G):
    return dK[:, :G]


def in_the_other_layout(f, *x, layout="half_split", **options):
    return f(*x, layout="interleaved" if layout == "half_split" else "half_split", **options)


def turned_on(dY, X, theta, **options):
    """Turned forwards once more, and not back."""
    return ROTARY_VJP(dY, X, -theta, **options)


SINK_VJP, ROTARY_VJP = ours.sink_attention_vjp, ours.rotary_vjp
LAYOUT = {"rotary": partial(in_the_other_layout, ours.rotary), "rotary_vjp": partial(in_the_other_layout, ROTARY_VJP)}
GROUPS = {"shared": every_other, "of_groups": of_every_other}
GAIN = {"gemma3": ours.qwen3, "gemma3_vjp": ours.qwen3_vjp}
BACK = {"output", "v_proj.weight", "v_proj.bias", "o_proj.weight", "o_proj.bias"}  # queries and keys alone are wrong
GROUPED = [name for name in CASES if name != "DeepSeek-V3"]
SUMS = {"v_proj.bias", "o_proj.bias"}  # the former the same for all weights that sum to one
LATENT = {"kv_b_proj.weight", "kv_a_layernorm.weight"}  # what the turned features of a key do not pass
MISTAKES = {
    "the wrong layout": (LAYOUT, CASES, SUMS),
    "the wrong groups": (GROUPS, GROUPED, {"o_proj.bias"}),
    "turned on, and not back": ({"rotary_vjp": turned_on}, CASES, BACK | {"sinks", *LATENT}),
    "the shared key's gradient from one head": ({"of_groups": of_the_first}, ["DeepSeek-V3"], BACK | LATENT | {
        "q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight"}),
    "the factor of the cap forgotten": ({"capped_attention_vjp": without_factor}, ["Gemma 2", "Gemma 2, window"], BACK),
    "the gain misread": (GAIN, ["Gemma 3", "Gemma 3, window"], set()),
    "the gradient of the sinks forgotten": ({"sink_attention_vjp": without_sinks}, ["gpt-oss", "gpt-oss, window"],
                                            BACK | {"hidden_states", "q_proj.weight", "q_proj.bias", "k_proj.weight",
                                                    "k_proj.bias"}),
}


@pytest.mark.parametrize(("mistake", "name"), [(m, name) for m, (_, names, _) in MISTAKES.items() for name in names])
def test_a_mistake_is_seen_where_it_is(mistake, name, monkeypatch):
    """In all gradients but those that it leaves right."""
    changed, _, right = MISTAKES[mistake]
    for function, other in changed.items():
        monkeypatch.setattr(ours, function, other)
    found = errors(CASES[name])
    right = right - {"v_proj.bias"} if right == SUMS and "sinks" in found else right
    assert {letter for letter, x in found.items() if x <= IN_DOUBLE} == right & found.keys()
    assert all(x > 1e-4 for letter, x in found.items() if letter not in right)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.window])
def test_a_window_that_is_longer_by_one_is_seen(name, monkeypatch):
    monkeypatch.setattr(both, "window_mask", lambda n, m, w: WINDOW_MASK(n, m, w + 1))
    assert errors(CASES[name])["output"] > 1e-3


WINDOW_MASK = both.window_mask


@pytest.mark.parametrize(("name", "constant"), [("Gemma 2", "gamma"), ("Gemma 3", "gamma"), ("gpt-oss", "gamma"),
                                                   ("DeepSeek-V3", "gamma")])
def test_the_usual_scale_is_another(name, constant):
    usual = {"DeepSeek-V3": 10**-0.5} | dict.fromkeys(GROUPED, 6**-0.5)
    case = CASES[name]
    plain = case._replace(constants=lambda config: case.constants(config) | {constant: usual[name]})
    assert errors(plain)["output"] > 1e-3


# ---- what the library does, and its configuration does not say --------------------------------------


def test_gemma_3_has_no_cap_whatever_its_configuration_says():
    with without_casts():
        plain, capped = (their_layer(CASES["Gemma 3"], attn_logit_softcapping=c) for c in (None, 0.1))
        assert (plain.Y == capped.Y).all()
        plain, capped = (their_layer(CASES["Gemma 2"], attn_logit_softcapping=c) for c in (None, 0.1))
        assert both.error(plain.Y, capped.Y) > 1e-2


def test_deepseek_norms_its_latents_with_one_epsilon_whatever_its_configuration_says():
    assert ours.rms_norm.__wrapped__.__kwdefaults__ == {"epsilon": 1e-6}
    with without_casts():
        one, other = (their_layer(CASES["DeepSeek-V3"], rms_norm_eps=x) for x in (1e-6, 0.1))
        assert (one.Y == other.Y).all()
        one, other = (their_layer(CASES["Qwen3"], rms_norm_eps=x) for x in (1e-6, 0.1))
        assert both.error(one.Y, other.Y) > 1e-2


def test_deepseek_turns_neighbours_and_writes_their_first_features_before_their_second_ones():
    theta, t, q = both.drawn(4, seed=1), np.arange(5), both.drawn(2, 3, 5, 8, seed=2)
    angles = torch.tensor(np.concatenate([t[:, None] * theta] * 2, axis=-1))[None]
    turn = both.modeling_deepseek_v3.apply_rotary_pos_emb_interleave
    theirs = turn(torch.tensor(q), torch.tensor(q), angles.cos(), angles.sin())[0].numpy()
    turned = rotary(q, theta, layout="interleaved")
    assert np.allclose(turned[..., [0, 2, 4, 6, 1, 3, 5, 7]], theirs, atol=1e-12)
    assert not np.allclose(turned, theirs, atol=1e-2)
    assert np.allclose(turned @ turned.mT, theirs @ theirs.mT, atol=1e-12)
