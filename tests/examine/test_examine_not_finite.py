"""Numbers that are not finite: a name where an edit puts them in the places where they came, else none."""

import pytest
import torch

from attnmath import examine
from examined import names


def by_all(q, k, v, mask, *, detached=True):
    """The maximum of a row is that of all its scores, and what is hidden is set to zero after the exponential."""
    A = q @ k.mT * q.shape[-1] ** -0.5
    top = A.amax(-1, keepdim=True)
    E = (A - (top.detach() if detached else top)).exp() * mask
    return E / E.sum(-1, keepdim=True) @ v


def right(q, k, v, mask):
    A = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf)
    return A.softmax(-1) @ v


def elsewhere(q, k, v, mask):
    """NaN in the row after that which has it."""
    bad = by_all(q, k, v, mask).isnan().roll(1, -2)
    return torch.where(bad, torch.nan, right(q, k, v, mask))


def first_row(q, k, v, mask):
    """NaN in the first row where anything is huge."""
    bad = torch.zeros(q.shape[-2], 1, dtype=q.dtype)
    bad[0] = torch.nan if k.abs().max() > 1e20 else 0.0
    return right(q, k, v, mask) + bad


@pytest.mark.parametrize("fn, found", [(by_all, ["hidden_maximum"]), (elsewhere, []), (first_row, [])])
def test_a_name_is_told_by_places(fn, found):
    report = examine(fn, options={"mask"}, seed=1, smallest=False, progress=False)
    assert report.wrong and names(report) == found, report
