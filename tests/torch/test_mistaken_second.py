"""Each planted mistake is seen by the derivatives that it is said to make wrong, and by no other."""

import pytest
import torch
from test_drop_in_random import KINDS, Drawn, different_rows, errors

from attnmath._words.tolerance import DROP_IN
from mistaken_second import MISTAKES, mistake

USUAL = Drawn(
    batch=(2, 2), per_group=1, shared=(False, False, False), sizes=(7, 6, 4, 3), mask_ones=(False,) * 5, mask_short=0,
    empty=False, far=-torch.inf, scale=None, rate=0.0, layouts=("as it is",) * 5, moving=(True, True, True), size=1.0,
    strip=(3, 2, 2), seed=1,
)
SQUARE = USUAL._replace(sizes=(6, 6, 4, 4), strip=(2, 2, 2))
PROBLEMS = [
    ("no mask", USUAL._replace(per_group=2, shared=(False, True, True), strip=(3, 2, 9))),
    ("causal", USUAL._replace(rate=0.4, scale=-0.7)),
    ("causal", SQUARE),
    ("boolean", SQUARE._replace(empty=True, rate=0.4)),
    (KINDS[-1], USUAL._replace(mask_ones=(False, True, False, True, False), scale=1.3)),
    (KINDS[-1], SQUARE._replace(rate=0.4, empty=True)),
    ("numbers", SQUARE._replace(far=-1e30, empty=True)),
]


def wrong():
    """The derivatives that are wrong in any of the problems, or that cannot be computed."""
    found = set()
    for kind, p in PROBLEMS:
        found |= {name for name, error in errors(kind, p).items() if not error <= DROP_IN}
    return found


def test_nothing_is_wrong_without():
    assert wrong() == set()


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_seen_where_it_is(name):
    with mistake(name):
        assert wrong() == MISTAKES[name].wrong
    assert not any(error > DROP_IN for error in errors(*PROBLEMS[0]).values())


@pytest.mark.parametrize("which, rows", [("strip", 4), ("head", 6)])
def test_mistakes_that_the_second_order_does_not_see(which, rows):
    """What is dropped is read off, and right for itself; but it is the same in each strip, or in each head."""
    with mistake(f"each {which} drops what the first one drops"):
        assert different_rows() == rows
