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


def elsewhere(q, k, v, mask):
    """The same, and the NaN of a row is in the row before it."""
    return by_all(q, k, v, mask).roll(-1, -2)


def first_row(q, k, v, mask):
    """NaN in the first row where anything is huge."""
    A = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf)
    bad = torch.zeros(A.shape[-2], 1)
    bad[0] = torch.nan if k.abs().max() > 1e20 else 0.0
    return A.softmax(-1) @ torch.where(mask.any(-2)[..., None], v, 0.0) + bad


@pytest.mark.parametrize("fn, found", [(by_all, ["hidden_maximum"]), (elsewhere, []), (first_row, [])])
def test_a_name_is_told_by_places(fn, found):
    report = examine(fn, options={"mask"}, seed=1, smallest=False, progress=False)
    assert report.wrong and names(report) == found, report
