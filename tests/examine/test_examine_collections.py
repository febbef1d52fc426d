"""A slice of the collections of tests/wild; the whole of them is `make wild`."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests" / "wild")]

import wild  # noqa: E402

EVERY = {"right": 9, "mistakes": 24, "hostile": 13}
# What ends or holds the process, or waits for minutes, is for the whole run.
SLOW = ("holds", "sleeps", "stubborn", "deadlock", "hangs", "memory", "closes", "thread", "child", "dirties", "never",
        "meddle")


def slice_of(which):
    """Every so many cases of a collection, as arguments of a test."""
    jobs = [x for x in wild.jobs_of(which, ["float32"], "") if not any(word in x[1] for word in SLOW)]
    return [pytest.param(job, id=job[1]) for job in jobs[:: EVERY[which]]]


@pytest.mark.parametrize("job", slice_of("right"))
def test_what_is_right_is_not_called_wrong(job):
    found = wild.outcome(job)
    kind = wild.cases_of(job[0])[job[1]].kind
    own = kind == "other" or job[0] == "right_later"  # some of these have a window or a cap inside
    assert found.verdict.startswith("right") or own and found.verdict == "not in the list", found


MEANT = {"nan_for_rows_without_keys"}  # what empty rows give is said, and may be meant


@pytest.mark.parametrize("job", [x for x in slice_of("mistakes") if x.id not in MEANT])
def test_what_is_wrong_is_not_called_right(job):
    found = wild.outcome(job)
    assert found.verdict in ("wrong", "not in the list", "right if meant"), found


@pytest.mark.parametrize("job", slice_of("hostile"))
def test_what_is_hostile_ends_with_a_report(job):
    found = wild.outcome(job)
    assert found.sentence and found.verdict != "exception", found
