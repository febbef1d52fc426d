"""The bound of the gradient of sinks: right programs lie inside, and a bound that lacks a term does not hold."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnmath.rounding import bounds, nearest, ratio, sinks, unit_roundoff
from attnmath.rounding.formats import model
from attnmath.rounding.heads import fused_head, stepwise_head

torch.set_num_threads(1)
FORMATS = ("float32", "bfloat16", "float16")
WIDE = dict(accumulate="float32", fused=True)
EAGER = dict(accumulate="float32", fused=False)
ALL = dict(accumulate=None, fused=True)


def problem(dtype, n=5, m=9, d_k=4, d_v=3, d_s=1, size=1.0, mask=0.0, offset=0.0, common=0.0, seed=0):
    """dO, Q, K, V, B, gamma and sigma, numbers of the format; a masked part, and an empty row if any."""
    rng = np.random.default_rng(seed)
    shapes = (n, d_v), (n, d_k), (m, d_k), (m, d_v), (n, m), (d_s,)
    dO, Q, K, V, B, sigma = (rng.normal(size=s) for s in shapes)
    B = np.where(rng.random((n, m)) < mask, -np.inf, B + offset)
    B[0] = -np.inf if mask else B[0]
    *x, sigma = (nearest(a, dtype) for a in (dO, size * Q, size * K, V + common, B, sigma + offset))
    return *x, float(nearest(d_k**-0.5, dtype)), sigma


def exact(dO, Q, K, V, B, gamma, sigma):
    """The gradient of the sinks by autograd in float64: they stand in a column of scores, and are left out again."""
    return eager(dO, Q, K, V, B, gamma, sigma, torch.float64)


def eager(dO, Q, K, V, B, gamma, sigma, to):
    """A head with sinks as models write it, in PyTorch."""
    dO, Q, K, V, B = (torch.tensor(y).to(to) for y in (dO, Q, K, V, B))
    sigma = torch.tensor(sigma).to(to).requires_grad_()
    A = Q @ K.mT * gamma + B
    rows = sigma[..., None, :].expand(*A.shape[:-1], sigma.shape[-1])
    O = torch.cat([A, rows], -1).softmax(-1)[..., : A.shape[-1]] @ V
    return torch.autograd.grad(O, sigma, dO)[0].double().numpy()


def sum_of(terms, dtype):
    """A sum over the queries, one after the other, each rounded."""
    total = 0.0
    for row in terms:
        total = nearest(total + row, dtype)
    return total


def padded(dO, Q, K, V, B, gamma, sigma):
    """The same head where the sinks are keys."""
    none = np.zeros((len(sigma), Q.shape[1])), np.zeros((len(sigma), V.shape[1]))
    K, V = (np.concatenate(pair) for pair in zip((K, V), none))
    return dO, Q, K, V, np.hstack([B, np.broadcast_to(sigma, (len(Q), len(sigma)))]), gamma


def stepwise(x, dtype, order=None):
    """Every step rounded, the sum over the queries in some order."""
    terms = stepwise_head(*padded(*x), dtype).back.dB[:, len(x[2]):]
    return sum_of(terms if order is None else terms[order], dtype)


def fused(x, dtype, **kind):
    """Tiles of keys, sums in float32; the terms are stored, and the result."""
    terms = fused_head(*padded(*x), dtype, **kind)[2].dB[:, len(x[2]):]
    return nearest(sum_of(terms, "float32"), dtype)


def allowed(x, dtype, kind):
    """The bound for a program of this kind."""
    names = "dO", "Q", "K", "V", "B", "gamma"
    return sinks.sinks_vjp(model("", dtype, **kind), bounds.read_inputs("", **dict(zip(names, x)), R=None), x[-1])


PROBLEMS = dict(
    n=st.integers(1, 9), m=st.integers(1, 12), d_k=st.integers(1, 6), d_v=st.integers(1, 5), d_s=st.integers(1, 3),
    size=st.sampled_from([1e-3, 0.1, 1.0, 2.0, 5.0]), mask=st.sampled_from([0.0, 0.4]),
    offset=st.sampled_from([0.0, 20.0, -500.0]), common=st.sampled_from([0.0, 3.0, 50.0]),
    seed=st.integers(0, 10**6), dtype=st.sampled_from(FORMATS),
)


@settings(max_examples=60, deadline=None)
@given(**PROBLEMS, tile=st.integers(4, 12), D_from=st.sampled_from("OP"), turned=st.booleans())
def test_sums_over_tiles_lie_inside(dtype, tile, D_from, turned, **sizes):
    x = problem(dtype, **sizes)
    assert ratio(fused(x, dtype, tile=tile, D_from=D_from, turned=turned), exact(*x), allowed(x, dtype, WIDE)) <= 1


@settings(max_examples=60, deadline=None)
@given(**PROBLEMS)
def test_programs_that_round_every_step_lie_inside(dtype, **sizes):
    x = problem(dtype, **sizes)
    order = np.random.default_rng(1).permutation(len(x[0]))
    for found in stepwise(x, dtype), stepwise(x, dtype, order):
        assert ratio(found, exact(*x), allowed(x, dtype, ALL)) <= 1


@settings(max_examples=60, deadline=None)
@given(**PROBLEMS)
def test_a_column_of_sinks_in_pytorch_lies_inside(dtype, **sizes):
    x = problem(dtype, **sizes)
    assert ratio(eager(*x, getattr(torch, dtype)), exact(*x), allowed(x, dtype, EAGER)) <= 1
