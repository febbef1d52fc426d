"""What is right in one call and wrong in another: dropout masks, masks on other axes, longer calls, more axes.

All gradients are those of torch's autograd, but for the pairs that are written out.
"""

import math

import numpy as np
import pytest
import torch

from attnmath import examine
from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.contract import DROPOUT_FORMS, given_dropout
from attnmath._examine.diagnosis.conventions import detect
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.families import cases
from attnmath.testing import assert_attention_gradients


def report_on(fn, *more, **told):
    return examine(fn, *more, seed=1, smallest=False, progress=False, **told)


def names(report):
    return [x.name for x in (*report.findings, *report.hazards) if x.kind != "convention"]


def scores(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


# ---- dropout ------------------------------------------------------------------------------------


FACTOR = {  # what multiplies a weight, for a mask of each form; the last two refuse True and False
    "factors": lambda r, p: r, "keep": lambda r, p: r / (1 - p), "drop": lambda r, p: ~r / (1 - p),
    "keep as numbers": lambda r, p: (1 - (1 - r)) / (1 - p), "drop as numbers": lambda r, p: (1 - r) / (1 - p),
}
DROPOUT = {"dropout": "p", "dropout_mask": "r"}


def dropping(factor):
    def fn(q, k, v, p=0.0, r=None):
        P = scores(q, k).softmax(-1)
        return (P if r is None else P * factor(r, p).to(P)) @ v

    return fn


@pytest.mark.parametrize("form", DROPOUT_FORMS)
def test_what_a_dropout_mask_holds_is_read(form):
    report = report_on(dropping(FACTOR[form]), options=DROPOUT)
    assert report.right and (report.conventions.dropout or "factors") == form
    assert all(x.judged for x in report.problems if "dropout" in x.traits)
    assert names(report) == ["rate_without_effect"] * (form == "factors")
    assert report_on(dropping(FACTOR[form]), options=DROPOUT, conventions={"dropout": form}).right


def test_the_forms_of_a_dropout_mask():
    R = np.array([[0.0, 4.0]])
    found = {form: given_dropout(R, Conventions(dropout=form)).tolist() for form in DROPOUT_FORMS}
    assert found == {form: eval(words, {"R": R}).tolist() for form, words in DROPOUT_FORMS.items()}
    assert found["keep"] == [[False, True]] and found["drop as numbers"] == [[1.0, 0.0]]


def test_a_mask_without_a_rate_holds_factors():
    report = report_on(lambda q, k, v, r=None: dropping(FACTOR["factors"])(q, k, v, 0.0, r), options={"dropout_mask": "r"})
    assert report.right and names(report) == []


def test_a_rate_that_changes_nothing_is_refused_unless_it_is_meant():
    fn = dropping(lambda r, p: r)
    with pytest.raises(AssertionError, match=r"`p` changes nothing .* the factor 1/\(1 - rho\) is missing"):
        assert_attention_gradients(fn, options=DROPOUT, seed=1)
    assert_attention_gradients(fn, options=DROPOUT, seed=1, conventions={"dropout": "factors"})
    kept = report_on(fn, options=DROPOUT, conventions={"dropout": "keep"})
    assert kept.wrong


@pytest.mark.parametrize("factor, said", [(lambda r, p: r / (1 - p) ** 2, "R_is_used_twice"),
                                          (lambda r, p: r / r, "dropout_ignored"), (lambda r, p: ~r / (1 - p) / 2, "")])
def test_another_factor_is_wrong(factor, said):
    report = report_on(dropping(lambda r, p: torch.nan_to_num(1.0 * factor(r, p), nan=1.0)), options=DROPOUT)
    assert report.wrong and (said in names(report) or not said)


@pytest.mark.parametrize("spoil, name", [("dV", "dV_nodrop"), ("dP", "dP_nodrop")])
def test_a_mistake_beside_a_keep_mask_has_its_name(spoil, name):
    def backward(do, q, k, v, p=0.0, r=None):
        P = scores(q, k).softmax(-1)
        R = torch.ones_like(P) if r is None else r / (1 - p)
        dP = (do @ v.mT) * (1 if spoil == "dP" else R)
        dA = P * (dP - (P * dP).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return dA @ k, dA.mT @ q, (P * (1 if spoil == "dV" else R)).mT @ do

    report = report_on(dropping(FACTOR["keep"]), backward, options=DROPOUT)
    assert report.conventions.dropout == "keep" and names(report) == [name]


def test_a_factor_that_is_missing_in_the_output_alone():
    def backward(do, q, k, v, p=0.0, r=None):
        P = scores(q, k).softmax(-1)
        R = torch.ones_like(P) if r is None else r / (1 - p)
        dP = (do @ v.mT) * R
        dA = P * (dP - (P * dP).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return dA @ k, dA.mT @ q, (P * R).mT @ do

    report = report_on(dropping(lambda r, p: r), backward, options=DROPOUT)
    assert report.wrong and report.conventions.dropout == "keep" and "f_drop_norescale" in names(report)


# ---- masks in other calls -----------------------------------------------------------------------


def masked(place, fill=-1e4):
    """A mask of two axes (b, m) is brought to four by place."""
    def fn(q, k, v, mask=None):
        A = scores(q, k)
        if mask is not None:
            A = A.masked_fill(~(place(mask) if mask.ndim == 2 else mask), fill)
        return A.softmax(-1) @ v

    return fn


def test_a_mask_of_tokens_that_hides_rows():
    right = report_on(masked(lambda x: x[:, None, None, :]), options={"mask"})
    wrong = report_on(masked(lambda x: x[:, None, :, None]), options={"mask"})
    assert right.right and names(right) == ["finite_fill"] * (right.conventions.fill is not None)
    assert wrong.wrong and names(wrong)[0] == "mask_on_other_axes"


def test_a_mask_of_three_axes_that_is_put_on_another_batch_element():
    def fn(turn):
        def attend(q, k, v, mask=None):
            if mask is not None and mask.ndim == 3:
                mask = mask[:, None].flip(0) if turn else mask[:, None]
            return masked(None)(q, k, v, mask)
        return attend

    assert names(report_on(fn(True), options={"mask"}))[0] == "mask_on_other_axes"
    assert "mask_on_other_axes" not in names(report_on(fn(False), options={"mask"}))


def test_true_and_false_that_are_added():
    def fn(q, k, v, mask=None):
        return (scores(q, k) + (0 if mask is None else mask.to(q))).nan_to_num(neginf=-1e30).softmax(-1) @ v

    def hiding(q, k, v, mask=None):
        mask = torch.where(mask, 0.0, -math.inf) if mask is not None and mask.dtype == torch.bool else mask
        return fn(q, k, v, mask)

    assert names(report_on(fn, options={"mask"})) == ["boolean_mask_added"]
    with pytest.raises(AssertionError, match="True and False is taken too, and hides nothing"):
        assert_attention_gradients(fn, options={"mask"}, seed=1)
    assert_attention_gradients(fn, options={"mask"}, seed=1, conventions={"mask": "add"})
    assert names(report_on(hiding, options={"mask"})) == []


@pytest.mark.parametrize("other", ["bias", "causal"])
def test_a_mask_whose_meaning_turns(other):
    def fn(turns):
        def attend(q, k, v, mask=None, bias=None, causal=False):
            A, on = scores(q, k), bias is not None if other == "bias" else causal
            A = A if bias is None else A + bias
            if causal:
                A = A.masked_fill(~torch.ones(A.shape[-2:]).tril().bool(), -math.inf)
            if mask is not None:
                A = A.masked_fill(mask if turns and not on else ~mask, -math.inf)
            return A.softmax(-1).nan_to_num() @ v
        return attend

    options = {"mask", other}
    turning, same = (report_on(fn(turns), options=options) for turns in (True, False))
    assert "mask_meanings" in names(turning) and "f_mask_inverted" not in names(turning)
    assert "differs with and without a" in turning.sentence and "mask_meanings" not in names(same)


def test_a_number_that_leaves_a_weight_is_a_mistake():
    assert report_on(masked(None, -1e4), options={"mask"}).right
    for fill in (-5.0, -50.0):
        report = report_on(masked(None, fill), options={"mask"})
        assert report.wrong and report.conventions.fill is None, fill


def test_nan_that_leaves_its_row_is_a_hazard():
    report = report_on(masked(None, -math.inf), options={"mask"})
    assert report.right and report.conventions.empty == "nan"
    assert "nan_spreads" in [x.name for x in report.hazards]


# ---- rows without keys that give the sum of the values ------------------------------------------


def less_its_logarithm(A):
    """exp(A - L): where all scores are one large number, the logarithm of m is lost in L, and each weight is 1."""
    return torch.exp(A - A.logsumexp(-1, keepdim=True))


def replaced(q, k, v, mask=None):
    A = scores(q, k)
    return less_its_logarithm(A if mask is None else A.masked_fill(~mask, torch.finfo(A.dtype).min)) @ v


def added(q, k, v, mask=None):
    return less_its_logarithm(scores(q, k) + (0.0 if mask is None else torch.where(mask, 0.0, -1e30).to(q))) @ v


def in_tiles(q, k, v, mask=None):
    A = scores(q, k) if mask is None else torch.where(mask, scores(q, k), torch.finfo(q.dtype).min)
    L = torch.full_like(A[..., :1], torch.finfo(q.dtype).min)
    for tile in A.split(3, -1):
        L = torch.logaddexp(L, tile.logsumexp(-1, keepdim=True))
    return sum(torch.exp(tile - L) @ values for tile, values in zip(A.split(3, -1), v.split(3, -2)))


def divided_by_one(q, k, v, mask=None):
    """The sum of a row is put right where it hides everything, and was no 0: a finite number had been added."""
    A = scores(q, k) if mask is None else scores(q, k).masked_fill(~mask, -1e30)
    E = torch.exp(A - A.amax(-1, keepdim=True).detach())
    return E / (E.sum(-1, keepdim=True) if mask is None else E.sum(-1, keepdim=True).where(mask.any(-1, True), 1.0)) @ v


def causally(q, k, v, causal=False):
    n, m = q.shape[-2], k.shape[-2]
    return replaced(q, k, v, torch.ones(n, m, dtype=torch.bool).tril(m - n) if causal else None)


class ByHand:
    """In NumPy; with the weights of rows without keys forward and back, and what is put in place of their dA."""

    def __init__(self, forth=1.0, back=1.0, dA=lambda P, dP: 0 * P):
        self.forth, self.back, self.dA = forth, back, dA

    def weights(self, q, k, mask, without):
        A = np.where(mask, q @ k.swapaxes(-1, -2) * q.dtype.type(q.shape[-1] ** -0.5), -np.inf)
        empty = ~(mask & np.ones(A.shape, bool)).any(-1, keepdims=True)
        E = np.exp(A - np.where(empty, 0, A.max(-1, keepdims=True)))
        P = E / np.where(empty, 1, E.sum(-1, keepdims=True))
        return np.where(empty, without(P) if callable(without) else without, P).astype(q.dtype), empty

    def forward(self, q, k, v, mask=True):
        return self.weights(q, k, mask, self.forth)[0] @ v

    def backward(self, do, q, k, v, mask=True):
        P, empty = self.weights(q, k, mask, self.back)
        dP, gamma = do @ v.swapaxes(-1, -2), q.dtype.type(q.shape[-1] ** -0.5)
        dA = gamma * np.where(empty, self.dA(P, dP), P * (dP - (P * dP).sum(-1, keepdims=True))).astype(q.dtype)
        return dA @ k, dA.swapaxes(-1, -2) @ q, P.swapaxes(-1, -2) @ do


def flows(P, dP):
    return P * (dP - (P * dP).sum(-1, keepdims=True))


def mean(P):
    return np.full(P.shape, 1 / P.shape[-1])


def odd(P):
    return np.where(np.arange(P.shape[-2])[:, None] % 2, 1 / P.shape[-1], 1.0)


SUMS = {
    "replaced": (replaced, "sum"), "added": (added, "sum with gradient"), "in tiles": (in_tiles, "sum"),
    "divided by one": (divided_by_one, "sum"), "causal": (causally, "sum"), "by hand": (ByHand(), "sum"),
    "by hand, it flows": (ByHand(dA=flows), "sum with gradient"),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", SUMS)
def test_rows_without_keys_may_give_the_sum_of_the_values(name, dtype):
    fn, policy = SUMS[name]
    fns = (fn.forward, fn.backward) if isinstance(fn, ByHand) else (fn,)
    report = report_on(*fns, options=["causal" if fn is causally else "mask"], dtype=dtype)
    assert report.right and report.conventions.empty == policy, str(report)
    assert all(p.passed for p in report.problems)
    assert fn is causally or any("empty row" in p.traits for p in report.problems)
    assert f"for rows that may attend to nothing: {policy}" in report.sentence
    assert f"empty rows {policy}" in " ".join(str(report).split())
    assert "empty_row_sum" in names(report)


def test_a_sum_in_rows_without_keys_that_is_demanded_and_one_that_is_not():
    assert "empty_row_sum" not in names(report_on(replaced, options=["mask"], conventions={"empty": "sum"}))
    flowing = ByHand(dA=flows)
    assert report_on(flowing.forward, flowing.backward, options=["mask"], conventions={"empty": "sum"}).wrong
    other = report_on(replaced, options=["mask"], conventions={"empty": "zero"})
    assert other.wrong and names(other)[0] == "empty_row_nan" and "their weights are 1" in other.sentence


def test_second_derivatives_where_rows_without_keys_give_the_sum():
    for fn in replaced, added:
        report = report_on(fn, options=["mask"], dtype="float64", jvp=True, vjp_vjp=True)
        assert report.right, str(report)


def part_of_the_keys(P):
    """A sum where fewer than three keys are seen."""
    seen = (P > 0).sum(-1, keepdims=True)
    return P * np.where(seen < 3, seen, 1).astype(P.dtype)


class InRowsWithKeys(ByHand):
    def weights(self, *given):
        P, empty = super().weights(*given)
        return np.where(empty, P, part_of_the_keys(P)), empty


@pytest.mark.parametrize("fn, name", [
    (ByHand(back=mean), "empty_row_back"), (ByHand(back=0.0), "empty_row_back"),
    (ByHand(forth=mean), "empty_row_back"), (ByHand(forth=mean, dA=flows), "empty_row_back"),
    (ByHand(odd, odd), "empty_row_other"), (ByHand(dA=lambda P, dP: P * dP), "empty_row_other"),
    (InRowsWithKeys(), None), (ByHand(dA=lambda P, dP: 1.01 * flows(P, dP)), "empty_row_other"),
])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_is_no_sum_or_passes_back_other_than_that(fn, name, dtype):
    report = report_on(fn.forward, fn.backward, options=["mask"], dtype=dtype)
    assert report.wrong and (name is None or names(report)[0] == name), str(report)
    assert all("empty row" in p.traits for p in report.problems if p.failed) == (name is not None)


# ---- more axes, other sizes, longer calls -------------------------------------------------------


def test_a_softmax_over_an_axis_that_is_counted_from_the_front():
    def at(axis):
        return lambda q, k, v: scores(q, k).softmax(axis if axis < q.ndim else -1) @ v

    report = report_on(at(2))
    assert report.wrong and names(report) == ["more_axes"] and "b h s d" in report.sentence
    assert report_on(at(2), layout="hsd").right and report_on(at(-1)).right
    assert names(report_on(at(1))) == ["more_axes"], "(n, d) right, (h, n, d) wrong"


def test_a_width_that_is_no_multiple_of_eight():
    def fn(q, k, v):
        d = q.shape[-1] // 8 * 8 or q.shape[-1]
        return (q[..., :d] @ k[..., :d].mT * q.shape[-1] ** -0.5).softmax(-1) @ v

    wrong = [x for x in report_on(fn).problems if not x.passed]
    assert wrong and all("heads of" in x.name for x in wrong)


TOGETHER = [("groups",), ("groups", "mask"), ("bias",), ("bias", "mask"), ("mask", "causal"), ("scale",), ("dropout",),
            ("dropout", "causal"), ("causal", "n != m"), ("causal", "bias")]


@pytest.mark.parametrize("traits", TOGETHER, ids=" and ".join)
def test_options_are_tried_together_with_many_keys(traits):
    options = {"groups", "mask", "bias", "causal", "scale", "dropout"}
    assert any({*traits, "more than 64 keys"} <= c.traits for c in cases(options, "float32", 1))


def test_heads_that_are_mixed_up_with_many_keys_alone():
    def fn(q, k, v, enable_gqa=False):
        H, G = q.shape[1], k.shape[1]
        owner = torch.arange(H) % G if k.shape[2] > 64 else torch.arange(H) // (H // G)
        return scores(q, k[:, owner]).softmax(-1) @ v[:, owner]

    report = report_on(fn, options={"groups": "enable_gqa"})
    assert report.wrong and names(report) == ["f_gqa_map"]


@pytest.mark.parametrize("cut", [lambda kept, n, m: kept[:n, :m], lambda kept, n, m: kept[-n:, -m:]], ids=["first", "last"])
def test_a_causal_mask_that_is_kept_from_a_longer_call(cut):
    """Aligned lower right, the last rows and columns of a longer mask are right, the first are not."""
    kept = []

    def fn(q, k, v, causal=False):
        (n, m), A = (q.shape[-2], k.shape[-2]), scores(q, k)
        if causal:
            if not kept or kept[0].shape[0] < n or kept[0].shape[1] < m:
                kept[:] = [torch.ones(n, m).tril(m - n).bool()]
            A = A.masked_fill(~cut(kept[0], n, m), -math.inf)
        return A.softmax(-1).nan_to_num() @ v

    report = report_on(fn, options={"causal"})
    stale = cut(torch.ones(9, 9).tril().bool(), 5, 9).equal(torch.ones(5, 9).tril(4).bool())
    assert report.right if stale else (report.wrong and names(report)[0] == "state")
    assert stale or "with a causal mask depend on the calls before" in report.sentence


@pytest.mark.parametrize("parts", [2, 3])
def test_keys_that_are_taken_in_parts_may_round(parts):
    """In float64, exp(-log 6) and exp(-log 8) are not 1/6 and 1/8."""
    def fn(q, k, v):
        some = list(zip(scores(q, k).chunk(parts, -1), v.chunk(parts, -2)))
        L = [a.logsumexp(-1, keepdim=True) for a, _ in some]
        whole = torch.stack(L).logsumexp(0)
        return sum(((a - x).exp() @ y) * (x - whole).exp() for (a, y), x in zip(some, L))

    assert report_on(fn, dtype="float64").right


# ---- gradients that are not there, or do not depend on dO ----------------------------------------


def with_bias(q, k, v, bias=None):
    return (scores(q, k) + (0 if bias is None else bias)).softmax(-1) @ v


def three_gradients(forgets):
    def backward(do, q, k, v, bias=None):
        P = (scores(q, k) + (0 if bias is None or forgets else bias)).softmax(-1)
        dP = do @ v.mT
        dA = P * (dP - (P * dP).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return dA @ k, dA.mT @ q, P.mT @ do

    return backward


def test_a_gradient_of_the_bias_that_is_missing_hides_nothing():
    alone = report_on(with_bias, three_gradients(False), options={"bias"})
    assert alone.wrong and names(alone) == ["dB_missing"] and "3 gradients are returned" in alone.sentence
    both = report_on(with_bias, three_gradients(True), options={"bias"})
    assert sorted(names(both)) == ["dB_missing", "no_bias_bwd"] and "the bias is missing" in both.sentence
    for word in ("bias", "dB"):
        assert report_on(with_bias, three_gradients(False), options={"bias"}, without=word).right
        less = report_on(with_bias, three_gradients(True), options={"bias"}, without=word)
        assert less.wrong and "dB_missing" not in names(less)


def test_which_gradient_ignores_dO():
    def backward(do, q, k, v):
        P = scores(q, k).softmax(-1)
        dP = do @ v.mT
        dA = P * (dP - (P * dP).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return dA @ k, dA.mT @ q, P.mT @ (P @ v)

    sentence = report_on(lambda q, k, v: scores(q, k).softmax(-1) @ v, backward).sentence
    assert "the gradient dO is ignored in dV: dO = 0 gives the same dV" in sentence


def test_a_convention_that_was_told_is_not_read():
    candidate = Candidate(dropping(FACTOR["keep"]), options=DROPOUT)
    assert detect(candidate, Conventions(dropout="drop"))[0].dropout == "drop"
