"""Attention spread over ranks: every derivative against one process, its costs, and mistakes."""

import pytest
import torch

from mistaken_rings import MISTAKES, with_mistake
from ranks import ranks
from ring_cases import CASES, LAYOUTS, distances, narrow, nested


@pytest.fixture(scope="module")
def four():
    with ranks(4) as some:
        yield some


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_every_derivative_is_that_of_one_process(four, case, layout):
    for size in (1, 2, 3, 4):
        for rank, found in enumerate(four.run(size, distances, case, layout)):
            assert max(found.values()) < 1e-12, f"rank {rank} of {size}: {found}"


def test_derivatives_within_derivatives_and_maps(four):
    for rank, found in enumerate(four.run(3, nested)):
        assert max(found.values()) < 1e-12, f"rank {rank}: {found}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_short_formats_are_within_the_bounds_of_one_process(four, dtype):
    worst = max(max(ratios) for ratios in four.run(4, narrow, dtype))
    assert 1e-3 < worst < 1


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_seen(four, name):
    found = four.run(3, with_mistake, name)
    assert max(max(of_rank.values()) for of_rank in found) > 1e-3
