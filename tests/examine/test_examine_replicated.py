"""What all ranks have alike: a layer's weights and a function's parameters; their gradients summed, or not."""

from functools import partial

import numpy as np
import pytest
import torch

import rings
from attnmath import examine, examine_layer
from attnmath._examine.diagnosis.examination import Examination
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.taken import Taken
from attnmath._examine.ranks.candidate import RankedCandidate
from attnmath._examine.ranks.parameters import chosen, elsewhere, of_gradients
from attnmath._examine.ranks.pool import Pool
from attnmath._examine.ranks.rank import Rank, as_it_is
from attnmath._examine.ranks.replicated import Parts
from attnmath._examine.ranks.spread import Spread
from attnmath.testing import assert_layer_gradients
from examined import names


def judged(layer, replicated=None, **more):
    told = {"replicated": replicated} if replicated else None
    return examine_layer(layer, ranks=2, conventions=told, seed=1, smallest=False, **more)


@pytest.mark.parametrize("layer, kind", [
    (rings.RankLayer(), "part"), (rings.RankLayer("sum"), "sum"), (rings.HookedLayer(), "sum"),
    (rings.RankLayer("mean"), "mean")])
def test_a_layer_is_right_by_what_it_means(layer, kind):
    report = judged(layer)
    assert report.right and f"replicated_{kind}" in {x.name for x in (*report.findings, *report.hazards)}, report
    assert bool(report.hazards) == (kind != "sum")


PLANTED = [("part", "sum", "not_summed"), ("sum", "part", "summed"), ("twice", None, "twice"), ("mean", "sum", "divided"),
           ("sum but W_Q", None, "not_summed")]


@pytest.mark.parametrize("how, told, name", PLANTED)
def test_planted_in_the_weights_of_a_layer(how, told, name):
    report = judged(rings.RankLayer(how), told)
    assert report.wrong and names(report) == [f"rank_weights_{name}"], report
    assert report.findings[0].title.endswith(": W_Q") == (how == "sum but W_Q")


def test_planted_in_the_heads_of_a_layer():
    report = judged(rings.RankLayer("own queries"), "part", layout="contiguous")
    assert report.wrong and names(report) == ["rank_missing"], report


def test_a_test_of_a_layer_over_ranks():
    assert_layer_gradients(rings.HookedLayer(), ranks=2, seed=1)
    with pytest.raises(AssertionError, match="each rank's own part"):
        assert_layer_gradients(rings.RankLayer(), ranks=2, seed=1)


@pytest.mark.parametrize("given, error, said", [
    (dict(layer=rings.RankLayer(), mask="mask"), ValueError, "without mask"),
    (dict(layer=rings.RankLayer(), conventions={"replicated": "no"}), ValueError, "one of sum, part, mean"),
    (dict(layer=rings.ring), TypeError, "needs to be a module of PyTorch")])
def test_what_a_layer_over_ranks_is_not_given(given, error, said):
    with pytest.raises(error, match=said):
        examine_layer(**given, ranks=2)


def found(how, told=None):
    """What is found of a function with sinks."""
    fn, spread = partial(rings.with_sinks, how=how), Spread(2)
    pool = Pool((fn, None), 2, 10.0)
    candidate = RankedCandidate(fn, None, spread, pool=pool, dtype="float64", parameters={"sinks": torch.ones(3)})
    e = Examination(candidate, Conventions(replicated=told, ranks=spread), 1, lambda doing: None)
    e.means = Conventions(layout="bhsd", scale="1/sqrt(d_k)", ranks=spread)
    candidate.taken = Taken(square=True, only=(("H", 3), ("G", 3)), multiples=(("n", 2), ("m", 2)))
    try:
        some = chosen(e)
        return [*of_gradients(e, candidate, some), *elsewhere(e, candidate, some[0])]
    finally:
        candidate.worker.close()
        candidate.close()


@pytest.mark.parametrize("how, told, name", [
    ("part", None, "replicated_part"), ("sum", "sum", "replicated_sum"), ("part", "sum", "rank_weights_not_summed"),
    ("twice", None, "rank_weights_twice"), ("lost", None, "rank_weights_lost"),
    ("unused", None, "rank_weights_unused"), ("on each rank", "part", "rank_counts")])
def test_of_a_parameter(how, told, name):
    said = [x.name for x in found(how, told)]
    assert name in said and len(said) == 1 + (name == "rank_counts"), said


def test_parts_that_are_neither():
    parts, other = Parts(2), np.array([[3.0, 1.0], [1.0, 2.0]])
    parts.whole("W", [torch.tensor(x) for x in other])
    parts.read("W", lambda direction, h: 2 * h * float((direction * [1.0, -1.0]).sum()), 1.0, 1.0)
    assert parts.means == {"W": "other"}


def test_parameters_are_for_ranks():
    with pytest.raises(ValueError, match="parameters are for ranks="):
        examine(rings.with_sinks, parameters={"sinks": torch.ones(3)})


@pytest.mark.parametrize("layer, said", [
    (rings.DyingLayer(), "rank 1 died (exit code 3)"), (rings.HangingLayer(), "rank 1 did not answer within 1 s")])
def test_a_layer_that_dies_or_hangs(layer, said):
    report = judged(layer, time_limit=1.0)
    assert report.verdict == "not judged" and said in report.sentence and report.seconds < 60, report


def test_a_module_is_put_back():
    layer = torch.nn.Sequential(torch.nn.BatchNorm1d(3)).double()
    layer[0].weight.grad = torch.ones(3, dtype=torch.float64)
    before = {name: x.clone() for name, x in layer.state_dict().items()}
    rank = Rank(layer, None)
    rank.before = as_it_is(layer)
    layer.float().eval()
    layer[0].weight.data = torch.zeros(3)
    layer[0].weight.requires_grad_(False)
    rank.restore()
    assert all(torch.equal(x, before[name]) for name, x in layer.state_dict().items())
    assert layer.training and layer[0].weight.requires_grad and layer[0].weight.grad.sum() == 3
