"""Attention spread over ranks: every derivative against one process, its costs, and mistakes."""

import pytest
from ring_cases import CASES, LAYOUTS, distances

from ranks import ranks


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
