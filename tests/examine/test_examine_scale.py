"""A scale that a function keeps is read as it is, whatever head size it was made for."""

from itertools import cycle

import numpy as np
import pytest
import torch

from attnmath import examine
from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.diagnosis.probes import read_scale
from attnmath._examine.problems.case import Conventions, Sizes

DTYPES = ["float64", "float32", "bfloat16", "float16"]


class Kept(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, q, k, v):
        return torch.softmax(q @ k.mT * self.scale, -1) @ v


def read(gamma, dtype):
    candidate = Candidate(Kept(gamma), dtype=dtype, layout="bhsd", framework="torch")
    return read_scale(candidate, Conventions(layout="bhsd"), Sizes(), np.random.default_rng(1))[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_head_size_has_its_word(dtype):
    sizes = [d for d in range(8, 257, 8) if d != 16]
    assert [read(d**-0.5, dtype) for d in sizes] == [f"1/sqrt({d})" for d in sizes]
    assert [read(x, dtype) for x in (0.7, 0.25, 3**-0.5, -0.3)] == ["0.7", "0.25", "1/sqrt(3)", "-0.3"]


@pytest.mark.parametrize(("d", "dtype"), [*zip([8, 32, 48, 96, 128, 200, 256, 3], cycle(DTYPES))])
def test_right(d, dtype):
    report = examine(Kept(d**-0.5), dtype=dtype, seed=2, smallest=False)
    assert report.right, str(report)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_scale_in_no_list_is_read_as_it_is(dtype):
    gamma = np.pi / 17
    assert abs(float(read(gamma, dtype)) / gamma - 1) < {"float64": 1e-15, "float32": 1e-7}[dtype]
    assert examine(Kept(gamma), dtype=dtype, seed=2, smallest=False).right


def test_a_scale_that_is_demanded_is_not_the_one_that_is_kept():
    report = examine(Kept(0.2), conventions={"scale": "1/sqrt(d_k)"}, seed=2, smallest=False)
    assert report.wrong and report.findings[0].title == "the scale is 0.2, and 1/sqrt(d_k) is demanded"
    assert examine(Kept(32**-0.5), conventions={"scale": "1/sqrt(32)"}, seed=2, smallest=False).right
