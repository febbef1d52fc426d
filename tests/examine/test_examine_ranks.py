"""Attention over ranks: called on each with its own tokens, judged as one function; what goes wrong in rings."""

import tempfile
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import rings
from attnmath import examine
from attnmath._examine.contract.functions import Broken, Unusable
from attnmath._examine.mistakes.wrong_rank_masks import WRONG_RANKS
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.ranks.candidate import RankedCandidate
from attnmath._examine.ranks.pool import Pool
from attnmath._examine.ranks.rank import Order, received, sent
from attnmath._examine.ranks.spread import Spread, spread_of
from attnmath.testing import assert_attention_gradients
from examined import names


def judged(fn, ranks=2, layout="contiguous", **more):
    return examine(fn, ranks=ranks, layout=layout, seed=3, smallest=False, progress=False, **more)


@pytest.mark.parametrize("fn, ranks, layout", [
    (rings.ring, 3, "contiguous"), (rings.zigzag, 2, "zigzag"), (rings.ulysses, 2, "contiguous")])
def test_right_over_ranks(fn, ranks, layout):
    report = judged(fn, ranks, layout, options={"causal"})
    assert report.right, report
    assert str(report).startswith(f"{fn.__name__} over {ranks} ranks, {layout} is right")


PLANTED = {
    "own alone": "rank_missing", "stale K backward": "rank_stale_bwd", "D of a part": "rank_D",
    "local weights": "rank_local_lse", "not home": "rank_moved", "mean": "rank_merge",
    "local positions": "rank_causal", "diagonal skipped": "rank_block_skipped", "stale K forward": "rank_stale",
}


@pytest.mark.parametrize("slip, name", PLANTED.items())
def test_planted_in_a_ring(slip, name):
    more = {"without": {"causal"}} if slip == "diagonal skipped" else {}  # else rows without keys are NaN
    report = judged(partial(rings.slipping, slip=slip), 3, **more)
    assert report.wrong and names(report) == [name], report


@pytest.mark.parametrize("fn, ranks, said", [
    (rings.dies, 3, "rank 2 died (exit code 3)"),
    (rings.hangs, 3, "rank 1 did not answer within 1 s (in line "),
    (rings.raises, 2, "rank 1: RuntimeError: no such block; rank 0 waited for it"),
    (rings.whole, 2, "the output of rank 0 has 8 rows, all of them, where the rank has 4 tokens")])
def test_what_a_rank_does(fn, ranks, said):
    pool = Pool((fn, None), ranks, 1.0)
    candidate = RankedCandidate(fn, None, Spread(ranks), pool=pool, dtype="float32")
    x = np.ones((2, 3, 4 * ranks, 4))

    try:
        assert candidate.run(Case(x, x, x, x)).refusal.sentence.startswith(said)
    finally:
        candidate.worker.close()
        candidate.close()
    assert not pool.there


def test_ranks_begin_again_and_are_given_up():
    pool = Pool((lambda q, k, v: 1 / 0, None), 2, 5.0)
    pool.raised = 299
    order = Order("forward", [sent(torch.ones(1, 1, 2, 2))] * 3, shape=(1, 1, 2, 2))
    for _ in range(2):
        with pytest.raises(Broken, match="ZeroDivisionError"):
            pool.ask([order] * 2)
    assert pool.given_up is not None and not pool.there
    pool.close()


@pytest.mark.parametrize("x", [
    torch.randn(2, 3), torch.randn(2, 3).T, torch.randn(2, 3, 4, 5).permute(1, 3, 0, 2), torch.ones(1, 3).expand(2, 3), torch.randn(2, 3).bfloat16()])
def test_what_is_sent_comes_as_it_was(x):
    y = received(sent(x))
    assert torch.equal(x, y) and x.dtype == y.dtype and y.stride() == x.stride()


@pytest.mark.parametrize("ranks, layout, error", [
    (None, "zigzag", "it needs ranks= beside it"), (1, None, "a whole number from 2"), (2, "diagonal", "'zigzag'")])
def test_what_cannot_be_spread(ranks, layout, error):
    with pytest.raises(ValueError, match=error):
        spread_of(ranks, layout)


def test_without_torch_it_is_said(monkeypatch):
    monkeypatch.setattr("attnmath._examine.ranks.spread.find_spec", lambda name: None)
    with pytest.raises(Unusable, match="ranks need PyTorch"):
        spread_of(2, None)


def test_a_test_fails_over_ranks():
    with pytest.raises(AssertionError, match="divided by the number of ranks"):
        assert_attention_gradients(partial(rings.slipping, slip="divided"), ranks=2, options={"causal"},
                                   smallest=False, isolate=True)


def test_no_file_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert "killed" in str(judged(rings.ends_all, isolate=True))
    assert not list(tmp_path.iterdir())


def test_names_are_for_ranks_alone():
    x = np.ones((1, 2, 4, 2))
    assert not [m for m in WRONG_RANKS if list(m.forms(Case(x, x, x, x), Conventions()))]


def test_a_way_back_of_its_own():
    report = judged(rings.ring, backward=rings.way_back)
    assert report.right, report
    report = judged(rings.ring, backward=partial(rings.way_back, slip="own alone"))
    assert report.wrong and names(report) == ["rank_missing"], report


@pytest.mark.parametrize("word", ["mask", "bias", "dropout"])
def test_options_over_ranks(word):
    report = judged(rings.with_options, options={word})
    assert report.right and any(word in p.traits and p.judged for p in report.problems), report


def test_a_causal_mask_and_a_scale_are_found_by_their_keywords():
    report = judged(rings.ring)
    assert report.right and any("causal" in p.traits for p in report.problems), report
    assert "causal by its keyword causal" in " ".join(str(report).split())
    assert not any("causal" in p.traits for p in judged(rings.ring, without={"causal"}).problems)


@pytest.mark.parametrize("fn, causal", [(rings.always_causal, True), (rings.causal_or_not, "is_causal")])
def test_what_is_causal_unless_told(fn, causal):
    candidate = RankedCandidate(fn, None, Spread(2), time_limit=10.0, dtype="float32")
    try:
        candidate.options["causal"] = True  # as it is found where nobody says anything
        candidate.look_for_options(Conventions(layout="bhsd"))
        assert candidate.options["causal"] == causal
    finally:
        candidate.worker.close()
        candidate.close()


def test_another_function_and_a_ring_that_is_wrong():
    for fn, said in ((rings.windowed, ""), (partial(rings.slipping, slip="odd merge"), "its output is right")):
        candidate = RankedCandidate(fn, None, Spread(3), time_limit=10.0, dtype="float32")
        try:
            x = np.random.default_rng(0).standard_normal((2, 3, 6, 16))
            found = candidate.elsewhere(Case(x, x, x, x), Conventions(layout="bhsd", scale="1/sqrt(d_k)"))
            assert found.endswith(said) and bool(found) == bool(said), found
        finally:
            candidate.worker.close()
            candidate.close()


def test_huge_keys_that_nobody_sees():
    report = judged(rings.leaking, options={"mask"})
    assert report.wrong and any("poison" in p.traits and not p.passed for p in report.problems), report


STRANGE = {  # of a collection by somebody else
    "hidden_block_gives_nan": "hidden_block_nan", "batch_mixed_with_sequence": "rank_batch",
    "gradients_go_the_other_way": "rank_late", "padded_keys_attended": "rank_padded",
    "reduced_gradient_permuted": "rank_memory", "gradient_not_traded_back": "rank_not_sent",
}


@pytest.mark.parametrize("case, name", STRANGE.items())
def test_a_mistake_of_somebody_else(case, name, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "wild"))
    report = judged(getattr(import_module("rings_wrong"), case), 3)
    assert report.wrong and names(report) == [name], report
