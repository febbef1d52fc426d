"""Against the user's own function, whatever it computes: what is right is right, and what is planted is found."""

import math

import numpy as np
import pytest
import torch

from attnmath import attention, attention_vjp, examine
from attnmath._examine.diagnosis import reference as judged_by
from attnmath.testing import assert_attention_gradients
from kernels_of_functions import KERNELS

OPTIONS = {"mask": "mask", "causal": "is_causal", "scale": "scale"}


def turned(x, sign=1, axis=-2):
    """Rotary embedding of the halves; an odd entry is left."""
    d = x.shape[-1] // 2
    place = torch.arange(x.shape[axis], dtype=x.dtype).reshape(-1, *[1] * (-1 - axis))
    angle = place * 100.0 ** (-torch.arange(d, dtype=x.dtype) / max(d, 1))
    a, b, rest = x[..., :d], x[..., d : 2 * d], x[..., 2 * d :]
    c, s = angle.cos(), sign * angle.sin()
    return torch.cat([a * c - b * s, a * s + b * c, rest], -1)


def eager(q, k, v, mask=None, is_causal=False, scale=None, change=lambda s: s):
    s = change(q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale))
    n, m = s.shape[-2:]
    if is_causal:
        s = s.masked_fill(~torch.ones(n, m, dtype=torch.bool).tril(m - n), -math.inf)
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf)
    return torch.softmax(s, -1) @ v


def rotary(q, k, v, **options):
    return eager(turned(q), turned(k), v, **options)


class FusedRotary(torch.autograd.Function):
    """Forward and backward in one, by hand."""

    @staticmethod
    def forward(ctx, q, k, v, turn_dk, options):
        q, k = turned(q), turned(k)
        scale = options.get("scale")
        gamma = q.shape[-1] ** -0.5 if scale is None else scale
        with torch.enable_grad():
            weights = eager(q, k, torch.eye(k.shape[-2], dtype=q.dtype), **options)
        o = weights @ v
        ctx.save_for_backward(q, k, v, weights.detach(), o.detach())
        ctx.gamma, ctx.turn_dk = gamma, turn_dk
        return o.detach()

    @staticmethod
    def backward(ctx, do):
        q, k, v, p, o = ctx.saved_tensors
        ds = ctx.gamma * p * (do @ v.mT - (do * o).sum(-1, keepdim=True))
        dk = ds.mT @ q
        return turned(ds @ k, -1), turned(dk, -1) if ctx.turn_dk else dk, p.mT @ do, None, None


def fused(turn_dk):
    def fused_rotary(q, k, v, mask=None, is_causal=False, scale=None):
        return FusedRotary.apply(q, k, v, turn_dk, dict(mask=mask, is_causal=is_causal, scale=scale))

    return fused_rotary


def report_on(*functions, **told):
    return examine(*functions, seed=1, smallest=False, progress=False, **told)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_a_fused_function_with_rotary_embedding(dtype):
    right = report_on(fused(True), reference=rotary, options=OPTIONS, dtype=dtype)
    assert right.right and "as the reference" in right.sentence, str(right)
    assert sum(p.judged for p in right.problems) >= len(right.problems) - 13 * (dtype == "float16") > 40
    wrong = report_on(fused(False), reference=rotary, options=OPTIONS, dtype=dtype)
    assert wrong.sentence.startswith("wrong in the backward (dK): dK is not what rotary gives")


def test_a_test_with_a_reference():
    assert_attention_gradients(fused(True), reference=rotary, options=OPTIONS, seed=1)
    with pytest.raises(AssertionError, match="dK is not what rotary gives"):
        assert_attention_gradients(fused(False), reference=rotary, options=OPTIONS, seed=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_smallest_case_is_beside_the_reference(dtype, capsys):
    for mine, plain in ((fused(False), rotary), (lambda *x: fused(False)(*x), lambda *x: rotary(*x))):
        options = OPTIONS if plain is rotary else None
        lines = examine(mine, reference=plain, options=options, dtype=dtype, seed=1).smallest
        exec(lines, {"fused_rotary": mine, "f": mine, "g": plain})
        printed = capsys.readouterr().out.split()
        assert printed[0].startswith("dK[") and float(printed[-5]) != float(printed[-1])


def by_heads_third(fn):
    """The same for q (b, n, h, d)."""
    return lambda q, k, v: fn(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fn", [
    lambda q, k, v: eager(q, k, v, change=lambda s: 5 * torch.tanh(s / 5)),
    lambda q, k, v: eager(q, k, v, change=lambda s: s - 0.3 * abs(
        torch.arange(s.shape[-2])[:, None] - torch.arange(s.shape[-1])).to(s.dtype)),
    lambda q, k, v: torch.sigmoid(q @ k.mT * q.shape[-1] ** -0.5 - math.log(k.shape[-2])) @ v,
    lambda q, k, v: torch.relu(q) @ (torch.relu(k).mT @ v) / k.shape[-2],
    lambda q, k, v: eager(q / (q.norm(dim=-1, keepdim=True) + 1e-3), k, v, scale=8.0),
    by_heads_third(rotary),
], ids=["cap", "slopes", "sigmoid", "linear", "norm", "rotary, heads third"])
def test_whatever_it_computes(fn, dtype):
    """The candidate computes the same in another order, here in float32 inside; and with half a dV or dK."""

    def same(q, k, v):
        return fn(*(x.float() for x in (q, k, v))).to(q.dtype)

    def half(q, k, v):
        return same(q, (k + k.detach()) / 2, v)

    assert report_on(same, reference=fn, dtype=dtype).right
    found = report_on(half, reference=fn, dtype=dtype)
    assert found.sentence.startswith("wrong in the backward (dK): dK is not what"), found.sentence


def test_another_output_is_the_forward():
    found = report_on(lambda q, k, v: eager(q, k, v), reference=lambda q, k, v: rotary(q, k, v))
    assert found.wrong and found.sentence.startswith("wrong in the forward")


def test_where_it_is_plain_attention_mistakes_have_names():
    def backward(do, q, k, v):
        P = np.exp(q @ k.swapaxes(-1, -2) - (q @ k.swapaxes(-1, -2)).max(-1, keepdims=True))
        P = P / P.sum(-1, keepdims=True)
        dA = P * (do @ v.swapaxes(-1, -2))
        return dA @ k, dA.swapaxes(-1, -2) @ q, P.swapaxes(-1, -2) @ do

    def forward(q, k, v):
        return attention(q, k, v, gamma=1.0)

    pair = forward, lambda do, q, k, v: attention_vjp(do, q, k, v, gamma=1.0)[:3]
    found = report_on(forward, backward, reference=pair)
    assert found.wrong and "D_missing" in [f.name for f in found.findings]
    assert report_on(*pair, reference=pair).right
    alone = report_on(forward, backward, reference=forward)
    assert alone.right and "its output alone" in str(alone) and "no gradient was judged" in alone.sentence
    scaled = report_on(attention, lambda *x: attention_vjp(*x)[:3], reference=pair)
    assert scaled.wrong and "scale" in scaled.sentence


def test_a_scale_that_the_reference_has_is_stated():
    def unscaled(q, k, v):
        return torch.softmax(q @ k.mT, -1) @ v

    assert_attention_gradients(unscaled, reference=unscaled, seed=1)


def test_what_the_reference_does_not_take_is_not_judged():
    def refuses(q, k, v):
        raise ValueError("never")

    found = report_on(lambda q, k, v: eager(q, k, v), reference=refuses)
    assert found.status == 2
    assert {p.note for p in found.problems} == {"the reference does not take it: ValueError: never"}
    assert report_on(rotary, reference=lambda q, k, v, mask=None: v, options=OPTIONS).status == 2
    for odd in (3, (rotary,), (rotary, 3)):
        with pytest.raises(TypeError, match="reference is"):
            examine(rotary, reference=odd)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype, seeds", [("float32", 3), ("bfloat16", 1)])
def test_kernels_that_find_D_from_their_output(name, dtype, seeds):
    function, right, wrong = KERNELS[name]
    for seed in range(seeds):
        found = examine(right, reference=function, dtype=dtype, seed=seed, progress=False, smallest=False)
        assert found.right, found
    found = examine(wrong, reference=function, dtype=dtype, seed=0, progress=False, smallest=False)
    assert found.wrong, found


def test_their_errors_are_not_those_of_the_reference(monkeypatch):
    function, right, _ = KERNELS["gated"]
    monkeypatch.setattr(judged_by, "_middling", lambda x: 0.0)  # nothing is allowed beside what is measured
    found = report_on(right, reference=function)
    assert found.wrong and "dK is off by" in str(found) and "and should be 0" in str(found)


def test_a_tenth_too_much_is_seen_in_a_short_format():
    function, right, _ = KERNELS["gated"]

    def longer(q, k, v):
        return right(q, k + 0.12 * (k - k.detach()), v)

    assert report_on(longer, reference=function, dtype="bfloat16").wrong


def test_an_answer_that_the_format_does_not_have_is_not_asked_for():
    def large(q, k, v):
        return 1e4 * rotary(q, k, v)

    found = report_on(large, reference=large, dtype="float16")
    assert {p.note for p in found.problems} >= {"the reference gives numbers that float16 does not have",
                                                "in float16 the reference itself is not finite"}
    assert not found.wrong and "of the problems not judged: " in str(found)
