"""How much was judged, and what a test fails on: refusals, what was not tried, what nobody stated."""

import inspect
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnmath import attention as plain
from attnmath import attention_vjp, examine
from attnmath._examine.contract.signature import misspelt, not_tried
from attnmath._examine.report.found import TriedProblem, parts_in_words
from attnmath._examine.report.report import Finding, Report
from attnmath.testing import assert_attention_gradients
from other_functions import OTHERS


def attention(q, k, v, attn_mask=None, is_causal=False, block_size=64):
    """With an option that is honoured, one that is called and changes nothing, and a keyword of its own."""
    s = q @ k.mT * q.shape[-1] ** -0.5
    return torch.softmax(s if attn_mask is None else s.masked_fill(~attn_mask, -torch.inf), -1) @ v


def report_on(fn, *more, **told):
    return examine(fn, *more, seed=1, smallest=False, progress=False, **told)


def test_right_says_how_much_was_judged_and_what_was_not_tried():
    report = report_on(attention, options={"mask": "attn_mask"})
    count = len(report.problems)
    assert report.sentence.startswith(f"right: {count} of {count} problems")
    assert report.sentence.endswith("; not tried: `is_causal` (say options=)")
    assert report and not replace(report, verdict="wrong")


def test_a_test_warns_of_what_was_not_tried_unless_it_is_meant():
    with pytest.warns(UserWarning, match="attention: not tried: `attn_mask`, `is_causal`"):
        assert_attention_gradients(attention, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_attention_gradients(attention, seed=1, options={"mask": "attn_mask"}, without="is_causal")


def test_an_option_that_is_never_honoured_fails():
    report = report_on(attention, options={"causal": "is_causal"})
    assert report.wrong and "causal mask is ignored" in report.sentence


def only_whole(q, k, v):
    if not torch.equal(q, q.round()):
        raise ValueError("whole numbers")
    return attention(q, k, v)


def test_few_problems_are_not_judged():
    report = report_on(only_whole)
    assert report.verdict == "not judged" and not report
    assert "problems were judged, where 50% are the least" in report.sentence
    with pytest.raises(AssertionError, match="not judged"):
        assert_attention_gradients(only_whole, seed=1, smallest=False)
    assert_attention_gradients(only_whole, seed=1, smallest=False, allow_not_judged=True)


def test_a_refusal_is_no_failure():
    def not_between_0_and_1(q, k, v):
        if k.numel() > 1 and 0 <= k.min() and k.max() < 1:
            raise ValueError("keys of both signs")
        return attention(q, k, v)

    report = report_on(not_between_0_and_1)
    refused = sum(not p.judged for p in report.problems)
    assert report.right and refused and f"{len(report.problems) - refused} of {len(report.problems)} pro" in report.sentence
    assert f"{refused} not taken" in str(report) and 'failures="0"' in report.to_junit()


def test_a_wrong_keyword_is_not_judged():
    report = report_on(attention, options={"mask": "attn_msk"})
    assert report.verdict == "not judged" and "no such keyword; it has attn_mask, is_causal" in report.sentence
    assert misspelt([lambda q, k, v, **more: v], {"mask": "m"}) is None
    assert not_tried(torch.nn.functional.scaled_dot_product_attention, {"scale": "scale"}, ["dropout_p"]) == [
        "attn_mask", "is_causal", "enable_gqa"]


def test_a_signature_that_lies_is_no_evidence():
    def any_keyword(*x, **more):
        return attention(*x, **more)

    any_keyword.__signature__ = inspect.signature(lambda q, k, v: v)
    assert report_on(any_keyword, options={"mask": "attn_mask"}).right
    assert report_on(any_keyword, options={"mask": "mask"}).status == 2


def test_whose_keywords_are_read():
    class Called:
        def forward(self, c):
            return c

        def __call__(self, q, k, v, *, mask=None):
            return v

    class Module(torch.nn.Module):
        def forward(self, q, k, v, mask=None):
            return v

    assert misspelt([Called(), Module(), None], {"mask": "mask"}) is None
    assert "Module has no such keyword; it has mask" in misspelt([Module()], {"mask": "m"})


def unscaled(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def test_a_scale_that_nobody_stated_fails_a_test():
    assert "for the scale 1" in report_on(unscaled).sentence
    with pytest.raises(AssertionError, match="the scale is 1, where"):
        assert_attention_gradients(unscaled, seed=1, smallest=False)
    for scale in (1, 1.0, "1"):
        assert_attention_gradients(unscaled, seed=1, smallest=False, scale=scale)
    report = report_on(unscaled, scale="1/sqrt(d_k)")
    assert report.wrong and "scale" in report.sentence
    with pytest.raises(ValueError, match="scale is 2, and conventions has scale='1'"):
        examine(unscaled, scale=2, conventions={"scale": "1"})


def tiled_heads(q, k, v, groups=None):
    return attention(q, *(x.tile(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v)))


def test_interleaved_heads_that_nobody_stated_fail_a_test():
    options = {"groups": None}
    assert "query head h reads head h mod G" in report_on(tiled_heads, options=options).sentence
    with pytest.raises(AssertionError, match="reads head h mod G"):
        assert_attention_gradients(tiled_heads, seed=1, smallest=False, options=options, without="groups")
    assert_attention_gradients(tiled_heads, seed=1, smallest=False, options=options, without="groups",
                               conventions={"groups": "interleaved"})


def test_an_argument_without_a_gradient_fails_unless_it_is_meant():
    def frozen(q, k, v):
        return attention(q, k, v.detach())

    assert "dV is None" in report_on(frozen).sentence and report_on(frozen).wrong
    report = report_on(frozen, without=["dV"])
    assert report.right and any(f.title == "without dV, as was said" for f in report.findings)
    assert not any("dV" in p.ratios for p in report.problems)
    half = report_on(lambda q, k, v: attention(q, (k + k.detach()) / 2, v.detach()), without=["dV"])
    assert half.wrong and half.sentence.startswith("wrong in the backward (dK)")
    with pytest.raises(TypeError, match="without is"):
        examine(frozen, without=[1])


@pytest.mark.parametrize(("ratios", "said"), [
    ([{"O": 2.0, "dQ": 3.0}], "the forward"),
    ([{"O": 0.5, "dQ": 0.1, "dK": 2.0, "dV": float("inf")}], "the backward (dK, dV)"),
    ([{"O": float("nan"), "dQ": 3.0}, {"O": 0.2, "dK": 3.0}], "the forward and the backward (dK)"),
    ([{"Y": 0.1, "dX": 2.0, "dW_Q": 2.0, "dW_K": 2.0, "dW_V": 2.0, "dW_O": 2.0}],
     "the backward (dX, dW_Q, dW_K, dW_V, ...)"),
    ([{}], ""),
])
def test_the_part_that_is_wrong(ratios, said):
    assert parts_in_words([TriedProblem("x", frozenset(), x, False) for x in ratios], 1.0) == said


def test_nothing_is_printed_and_nothing_warned(capfd):
    """The window has rows that are hidden but for a finite number; autograd warns, NumPy meets NaN."""
    def odd(q, k, v, mask=None, is_causal=False):
        warnings.warn("planted", UserWarning, stacklevel=1)
        return OTHERS[2](q, k * torch.where(q.sum() > 40, torch.nan, 1.0), v, mask, is_causal)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in ("bfloat16", "float32"):
            report_on(odd, options={"mask": "mask", "causal": "is_causal"}, dtype=dtype)
    assert capfd.readouterr() == ("", "")


def test_the_report_begins_with_what_it_takes():
    takes = Finding("convention", "takes", "takes n = m only, multiples of 16")
    report = Report("right", "f", findings=(takes,))
    assert str(report).splitlines()[1] == "  takes        n = m only, multiples of 16"
    assert '"takes",\n   "n = m only, multiples of 16"' in report.to_json()
    assert Report.from_json(report.to_json()) == report
    assert ">takes<" in report._repr_html_() and "takes        n = m" in report.to_junit()


def test_a_scale_of_0_that_is_taken_for_none_is_a_hazard():
    def or_default(q, k, v, scale=None):
        return torch.softmax(q @ k.mT * (scale or q.shape[-1] ** -0.5), -1) @ v

    report = report_on(or_default, options=["scale"])
    assert report.right and [f.name for f in report.hazards] == ["scale_of_zero"]
    assert report_on(lambda q, k, v, scale=None: or_default(q, k, v, scale or 2.0), options=["scale"], scale=1).wrong
    ignored = report_on(lambda q, k, v, scale=None: or_default(q, k, v), options=["scale"])
    assert ignored.wrong and "ignored" in ignored.sentence


def test_numpy_may_make_float64_of_float32():
    def wider(q, k, v):
        return plain(q, k, v).astype(float)

    report = report_on(wider, lambda *x: attention_vjp(*x)[:3], dtype="float32")
    assert report.right and [f.name for f in report.hazards] == ["dtype"]
    assert report_on(lambda *x: plain(*x).astype(np.float16), lambda *x: attention_vjp(*x)[:3], dtype="float32").wrong


def test_a_mistake_of_the_way_back_is_not_said_to_be_in_the_forward():
    """Its log-sum-exp and its sums are rounded to bfloat16, so that outputs are off as well."""
    def chunked(q, k, v):
        scale = q.shape[-1] ** -0.5
        with torch.no_grad():
            parts = [torch.logsumexp(q @ x.mT * scale, -1, keepdim=True) for x in k.split(8, -2)]
            lse = parts[0]
            for part in parts[1:]:
                lse = torch.logaddexp(lse, part)
        return sum(torch.exp(q @ x.mT * scale - lse) @ y for x, y in zip(k.split(8, -2), v.split(8, -2)))

    report = examine(chunked, dtype="bfloat16", seed=0, smallest=False)
    assert any(p.ratios["O"] > 1 for p in report.problems if p.ratios)
    assert report.sentence.startswith("wrong in the backward (dQ, dK): the row term D is missing"), report
