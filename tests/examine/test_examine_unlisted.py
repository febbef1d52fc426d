"""A function that is no attention of the list, and what is planted in its gradients; an examination that fails."""

import math
from functools import lru_cache
from unittest.mock import patch

import pytest
import torch

from attnmath import examine
from attnmath._examine.diagnosis import examination
from attnmath._examine.diagnosis.own_output import derivatives
from attnmath.testing import assert_attention_gradients
from other_functions import OTHERS


def bent(q, k, v):
    """Scores through a function that is no cap that is known."""
    return torch.softmax(5 * torch.atan(q @ k.mT * q.shape[-1] ** -0.5 / 5), -1) @ v


class WithoutDerivative(torch.autograd.Function):
    """The derivative of that function is forgotten on the way back."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return bent(q, k, v)

    @staticmethod
    def backward(ctx, do):
        q, k, v = ctx.saved_tensors
        gamma, s = q.shape[-1] ** -0.5, q @ k.mT * q.shape[-1] ** -0.5
        p, dp = torch.softmax(5 * torch.atan(s / 5), -1), do @ v.mT
        ds = gamma * p * (dp - (p * dp).sum(-1, keepdim=True))
        return ds @ k, ds.mT @ q, p.mT @ do


def without_derivative(q, k, v):
    return WithoutDerivative.apply(q, k, v)


@lru_cache(2)
def judged_once(fn, backward=None, **more):
    """The same report for all tests that ask for it."""
    return examine(fn, backward, **more)


def test_its_gradients_are_those_of_its_own_output():
    report = judged_once(bent, None, seed=1, smallest=False)
    assert report.unlisted and not report.right and not report.wrong and report.status == 3
    assert report.sentence == "not an attention of the list; its gradients are those of its own output"


def test_a_gradient_that_is_not_is_found():
    report = judged_once(without_derivative, None, seed=1, smallest=False)
    assert report.wrong and "dQ differs by" in report.sentence


def test_a_test_says_that_it_means_another_function(monkeypatch):
    monkeypatch.setattr("attnmath._examine.examine.examine", judged_once)
    assert_attention_gradients(bent, unlisted=True, seed=1, smallest=False)
    with pytest.raises(AssertionError, match="not an attention of the list"):
        assert_attention_gradients(bent, seed=1, smallest=False)
    with pytest.raises(AssertionError, match="wrong"):
        assert_attention_gradients(without_derivative, unlisted=True, seed=1, smallest=False)


def test_plain_attention_with_a_mistake_in_an_option_is_wrong():
    def half_hidden(q, k, v, mask=None):
        a = q @ k.mT * q.shape[-1] ** -0.5
        return torch.softmax(a if mask is None else torch.where(mask, a, a / 2 - 3), -1) @ v

    assert examine(half_hidden, options={"mask"}, seed=1, smallest=False).wrong


def test_an_examination_that_fails_says_so():
    with patch.object(examination, "cases", side_effect=ZeroDivisionError("planted")):
        report = examine(bent, seed=1)
    assert report.verdict == "not judged"
    assert "the examination itself failed: ZeroDivisionError: planted (" in report.sentence


def judged(fn, **more):
    return examine(fn, seed=1, smallest=False, **more)


def laplace(q, k, v, k_of_gradients=lambda k: k):
    """Minus the distance of each query and key, which has a kink wherever two of their entries meet."""
    gap = (q.unsqueeze(-2) - k_of_gradients(k).unsqueeze(-3)).abs().sum(-1)
    return torch.softmax(-gap / q.shape[-1], -1) @ v


def test_kinks_hide_neither_what_is_right_nor_what_is_wrong():
    assert judged(laplace).unlisted
    half = judged(lambda q, k, v: laplace(q, k, v, lambda k: (k + k.detach()) / 2))
    assert half.wrong and "dK differs by" in half.sentence


def test_differences_that_roundings_hide_say_nothing():
    """What short steps do not change has no derivative of 0 for that; what no step changes has."""
    def rounded(h):
        return 0.0 if h < 2.0**-10 else 6 * h

    assert all(abs(slope) > 1 for slope, _ in derivatives(rounded, 1.0))
    assert any(unsure < 1e-9 for _, unsure in derivatives(rounded, 1.0))
    assert {*derivatives(lambda h: 0.0, 1.0)} == {(0.0, 0.0)}


class ByPowersOfTwo(torch.autograd.Function):
    """The scale holds log2(e), and ln 2 comes back, or does not."""

    @staticmethod
    def forward(ctx, q, k, v, back):
        ctx.save_for_backward(q, k, v)
        ctx.back, ctx.scale = back, q.shape[-1] ** -0.5 * math.log2(math.e)
        s = q * ctx.scale @ k.mT
        p = torch.exp2(s - s.amax(-1, keepdim=True))
        ctx.p = p / p.sum(-1, keepdim=True)
        return ctx.p @ v

    @staticmethod
    def backward(ctx, do):
        q, k, v = ctx.saved_tensors
        dp = do @ v.mT
        ds = ctx.back * ctx.p * (dp - (ctx.p * dp).sum(-1, keepdim=True))
        return ds @ k * ctx.scale, ds.mT @ q * ctx.scale, ctx.p.mT @ do, None


def test_a_scale_in_two_factors_may_round():
    assert judged(lambda q, k, v: ByPowersOfTwo.apply(q, k, v, math.log(2))).right
    for back in (1.0, 0.6931, -math.log(2)):
        assert judged(lambda q, k, v, c=back: ByPowersOfTwo.apply(q, k, v, c)).wrong


def test_a_mask_that_is_added_is_0_or_minus_infinity():
    def added(q, k, v, mask=None):
        s = q @ k.mT * q.shape[-1] ** -0.5
        return torch.softmax(s if mask is None else s + mask, -1) @ v

    report = judged(added, options={"mask"})
    assert report.right and report.conventions.mask == "add"
    assert judged(added, options={"mask"}, conventions={"mask": "keep"}).wrong


class TimesInTheOutputAlone(torch.autograd.Function):
    """Attention times 0.8, with the gradients of attention."""

    @staticmethod
    def forward(ctx, o):
        return 0.8 * o

    @staticmethod
    def backward(ctx, do):
        return do


def test_attention_times_a_number_is_another_function():
    def times(q, k, v):
        return 0.8 * torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v

    report = judged(times)
    assert report.unlisted and any("it is attention times 0.8" in f.where for f in report.findings)
    assert judged(times, conventions={"scale": "1/sqrt(d_k)"}).wrong
    assert judged(lambda q, k, v: TimesInTheOutputAlone.apply(times(q, k, v) / 0.8)).wrong


@pytest.mark.parametrize("where", [
    lambda q, k: q.shape[-1] >= 128, lambda q, k: q.shape[-1] % 2, lambda q, k: q.shape[-2] == 1,
    lambda q, k: k.shape[-2] > 32, lambda q, k: q.shape[0] == 1, lambda q, k: q.shape[1] > 4,
])
def test_a_gradient_that_is_wrong_for_some_sizes_alone_is_found(where):
    """Planted by somebody who had not read how the problems are chosen."""

    def half(q, k, v):
        return bent(q, (k + k.detach()) / 2 if where(q, k) else k, v)

    report = judged(half)
    assert report.wrong and "dK differs by" in report.sentence


def test_what_autograd_shares_is_no_mistake():
    """The gradients of q and k are one buffer of zeros, which autograd expands from one number."""
    def mean(q, k, v):
        return v.mean(-2, keepdim=True).expand(*q.shape[:-1], v.shape[-1]) + 0 * (q.sum() + k.sum())

    report = judged(mean)
    assert report.unlisted, report.sentence


def halved(fn, letter, when=lambda q, options: True):
    """The same with half a gradient."""

    def planted(q, k, v, mask=None, is_causal=False):
        options = {} if mask is None else {"mask": mask}
        options |= {"is_causal": True} if is_causal else {}
        half = {name: (x + x.detach()) / 2 if name == letter and when(q, options) else x
                for name, x in zip(("dQ", "dK", "dV"), (q, k, v))}
        return fn(*half.values(), **options)

    return planted


OPTIONS = {"mask": "mask", "causal": "is_causal"}
PIECES = {  # of OTHERS, those that are known
    "rotary": "rotated, halves, base 50", "window": "window of 2 before and 2 after", "cap": "cap 3",
    "slopes": "slopes 0.5 0.25 0.125 0.0625 ... (16)", "sink": "sink 0.5", "off_by_one": "sink 0", "normed": "queries and keys normed (epsilon 1e-05)",
    "sigmoid": "sigmoids of scores plus -log m",
}


@pytest.mark.parametrize("number", range(len(OTHERS)), ids=[fn.__name__ for fn in OTHERS])
def test_functions_in_use_are_not_called_wrong_and_their_gradients_are_judged(number):
    fn, (dtype, other) = OTHERS[number], (("float32", "bfloat16") if number % 2 else ("bfloat16", "float32"))
    options = OPTIONS if fn.__name__ != "linear" else {}
    dtype, other = ("float32", "float32") if fn.__name__ in PIECES else (dtype, other)
    report = judged(fn, options=options, dtype=dtype)
    known = report.conventions.pieces
    assert (known and known.words) == PIECES.get(fn.__name__) and (report.right if known else report.unlisted)
    letter = ("dQ", "dK", "dV")[number % 3]
    report = judged(halved(fn, letter), options=options, dtype=other)
    assert report.wrong and report.sentence.startswith(f"wrong in the backward ({letter})")
    if not known:
        assert any("reference=" in f.cure and "check_vjp" in f.cure for f in report.findings if f.cure)


@pytest.mark.parametrize("word", ["mask", "is_causal"])
def test_a_gradient_that_is_wrong_with_an_option_alone_is_found(word):
    report = judged(halved(OTHERS[-1], "dK", lambda q, options: word in options), options=OPTIONS)
    assert report.wrong and "dK differs by" in report.sentence


def test_an_option_that_another_function_ignores_is_found():
    for word in ("mask", "causal"):
        report = judged(lambda q, k, v, mask=None, is_causal=False: OTHERS[0](q, k, v), options={word: OPTIONS[word]})
        assert report.wrong and f"{word} " in report.sentence and "is ignored" in report.sentence


def near(q, k, v, k_of_scores=lambda k: k):
    """Each query sees the three keys up to its own place, counted from the end; the least number hides others.

    Where there are more queries than keys the first see nothing: their scores vanish in that number.
    """
    n, m = q.shape[-2], k.shape[-2]
    behind = (torch.arange(n)[:, None] + m - n) - torch.arange(m)
    hidden = torch.zeros(n, m, dtype=q.dtype).masked_fill((behind < 0) | (behind > 2), torch.finfo(q.dtype).min)
    return torch.softmax(torch.atan(q @ k_of_scores(k).mT * q.shape[-1] ** -0.5) + hidden, -1) @ v


def test_rows_that_see_nothing_are_left_out():
    said = "the mean of all values"
    report = judged(near)
    assert report.unlisted and said in " ".join(str(report).split())
    half = judged(lambda q, k, v: near(q, k, v, lambda k: (k + k.detach()) / 2))
    assert half.wrong and "dK differs by" in half.sentence


def test_small_gradients_that_centred_keys_lose_are_a_hazard():
    """K less its mean gives the same weights; gradients far below the largest are lost where that is added back."""
    def centred(q, k, v, by=1.0):
        k = k - by * k.mean(-2, keepdim=True)
        return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v

    report = examine(centred, dtype="float32", seed=1, smallest=False)
    assert report.right and [f.name for f in report.hazards] == ["small_lost"]
    wrong = examine(lambda q, k, v: centred(q, k, v) + 1e-3 * v.mean(-2, keepdim=True), dtype="float32", seed=1, smallest=False)
    assert not wrong.right
