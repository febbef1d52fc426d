"""A slice of the collections of tests/wild; the whole of them is `make wild`."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests" / "wild")]

import wild  # noqa: E402

from attnmath._examine.contract.worker import Pace  # noqa: E402

EVERY = {"right": 15, "mistakes": 38, "hostile": 13, "second_right": 9, "second_mistakes": 25}
# What ends or holds the process, or waits for minutes, is for the whole run.
SLOW = ("holds", "sleeps", "stubborn", "deadlock", "hangs", "memory", "closes", "thread", "child", "dirties", "never",
        "meddle")


def slice_of(which):
    """Every so many cases of a collection, as arguments of a test."""
    jobs = [x for x in wild.jobs_of(which, ["float32"], "") if not any(word in x[1] for word in SLOW)]
    return [pytest.param(job, id=job[1]) for job in jobs[:: EVERY[which]]]


@pytest.mark.parametrize("job", slice_of("right") + slice_of("second_right"))
def test_what_is_right_is_not_called_wrong(job):
    found = wild.outcome(job)
    kind = wild.cases_of(job[0])[job[1]].kind
    own = kind == "other" or job[0] in ("right_later", "right_fourth", "layers_right", "latents_right", "tables_right")
    assert found.verdict.startswith("right") or own and found.verdict == "not in the list", found


MEANT = {"nan_for_rows_without_keys"}  # what empty rows give is said, and may be meant


@pytest.mark.parametrize("job", [x for x in slice_of("mistakes") if x.id not in MEANT] + slice_of("second_mistakes"))
def test_what_is_wrong_is_not_called_right(job):
    found = wild.outcome(job)
    assert found.verdict in ("wrong", "not in the list", "right if meant"), found


@pytest.mark.parametrize("job", slice_of("hostile"))
def test_what_is_hostile_ends_with_a_report(job):
    found = wild.outcome(job)
    assert found.sentence and found.verdict != "exception", found


@pytest.mark.parametrize("module, name, words", [
    ("mistakes_fourth", "mask_transposed_in_backward", "in the way back alone: the mask is read with its axes exchanged"),
    ("mistakes_fourth", "dropout_backward_scaled_by_p", "R has the factor rho in place of 1/(1 - rho), in dP"),
    ("mistakes_fourth", "mask_of_minus_two", "hidden keys keep a weight (-2 is added)"),
    ("mistakes_fourth", "window_wider_in_backward", "the window of the way back is one key wider or narrower (wider)"),
    ("mistakes_fourth", "odd_lengths_lose_a_row", "in the forward: the last rows of O are zero"),
    ("second_wrong", "tiles_mean_not_rescaled", "in the jvp: the sum of P o A_dot is not rescaled when the largest score grows"),
    ("second_wrong", "delta_frozen_in_double_backward", "in the double backward: D is held still"),
    ("layers_wrong", "rope_back_same_sign", "are rotated on, not back"),
    ("layers_wrong", "sink_gradient_sign", "the gradient of the sinks has the wrong sign"),
    ("layers_wrong", "norm_without_projection", "the gradient of a norm is divided by the root alone"),
])
def test_what_somebody_else_did_wrong_is_named(module, name, words):
    found = wild.outcome((module, name, "float32", False))
    assert found.verdict == "wrong" and words in found.sentence and "also" not in found.sentence, found


def test_a_slow_call_of_the_first_derivatives_is_made_again_as_such(monkeypatch):
    monkeypatch.setattr(Pace, "LEAST", 0.0)  # every call is one that took long
    found = wild.outcome(("second_wrong", "tangent_knows_no_mask", "float32", False))
    assert found.verdict == "wrong", found
