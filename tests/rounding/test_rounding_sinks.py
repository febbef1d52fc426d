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
    """The gradient of the sinks by autograd in float64."""
    return eager(dO, Q, K, V, B, gamma, sigma, torch.float64)


def eager(dO, Q, K, V, B, gamma, sigma, to, R=1.0):
    """A head as models write it, in PyTorch: sinks are columns of scores, left out again; R multiplies weights."""
    dO, Q, K, V, B = (torch.tensor(y).to(to) for y in (dO, Q, K, V, B))
    sigma = torch.tensor(sigma).to(to).requires_grad_()
    A = Q @ K.mT * gamma + B
    rows = sigma[..., None, :].expand(*A.shape[:-1], sigma.shape[-1])
    P = torch.cat([A, rows], -1).softmax(-1)[..., : A.shape[-1]]
    O = (P * torch.tensor(R).to(to)) @ V
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


def read(x, R=None):
    """The head's inputs, without the sinks."""
    return bounds.read_inputs("", **dict(zip(("dO", "Q", "K", "V", "B", "gamma"), x)), R=R)


def allowed(x, dtype, kind, R=None):
    """The bound for a program of this kind."""
    return sinks.sinks_vjp(model("", dtype, **kind), read(x, R), x[-1])


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


def test_sinks_of_heads_are_summed_over_all_that_share_them():
    """Keys of all heads, sinks of each, or one for all; as tensors too; PyTorch in float32 lies inside."""
    rng = np.random.default_rng(3)
    shapes = (2, 3, 5, 4), (2, 3, 5, 6), (2, 1, 7, 6), (2, 1, 7, 4), (5, 7)
    dO, Q, K, V, B = (nearest(rng.normal(size=s), "float32") for s in shapes)
    for sigma in (rng.normal(size=(3, 2)), rng.normal(size=3), 0.3):
        sigma = nearest(sigma, "float32")
        x = dO, Q, K, V, B, 0.5, sigma if sigma.ndim == 2 else sigma[..., None]
        off = allowed((*x[:-1], sigma if sigma.ndim else float(sigma)), "float32", ALL)
        found, want = (eager(*x, to).reshape(np.shape(off)) for to in (torch.float32, torch.float64))
        assert off.shape == sigma.shape and 0.001 < ratio(found, want, off) <= 1
        tensors = *map(torch.tensor, x[:5]), 0.5, torch.tensor(sigma)
        assert np.allclose(allowed(tensors, "float32", ALL).numpy(), off, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", FORMATS)
def test_dropped_weights_lie_inside(dtype):
    x = problem(dtype, 12, 20, d_s=2, seed=4)
    R = nearest((np.random.default_rng(4).random((12, 20)) < 0.7) / 0.7, dtype)
    found, want = (eager(*x, to, R) for to in (getattr(torch, dtype), torch.float64))
    assert dtype != "float32" or ratio(want, exact(*x), allowed(x, dtype, EAGER)) > 1  # it is another gradient
    assert 0.001 < ratio(found, want, allowed(x, dtype, EAGER, R)) <= 1


# ---- bounds that are too small are exceeded, and wrong programs lie outside ----------------------------


def common_values(dtype="bfloat16"):
    """Values with a common part that the loss does not see: a small D from a large output."""
    x = problem(dtype, 4, 6, 3, 2, common=20.0, seed=1)
    x[0][:, 1] = -x[0][:, 0]
    return x


def standing_sum(n=3000):
    """A key and a sink of equal weights; beside the first term the sum sees none of the others in float32."""
    dO = np.full((n, 1), 0.98 * unit_roundoff("float32"))
    dO[0] = 1
    one, none = np.ones((1, 1)), np.zeros((n, 1))
    return nearest(dO, "float32"), none, 0 * one, one, none, 1.0, np.zeros(1)


def terms_of(x, dtype, kind):
    """What the bound is made of: the model, then weights and D, with how far they may be off, and the sinks."""
    f = model("", dtype, **kind)
    return f, *sinks.sink_terms(f, read(x), x[-1]), x[-1]


def test_a_bound_that_forgets_the_error_of_D_is_exceeded():
    x = common_values()
    found, want = fused(x, "bfloat16"), exact(*x)
    f, P, P_off, D, D_off, sigma = terms_of(x, "bfloat16", WIDE)
    assert 0.05 < ratio(found, want, sinks.weighted_sum_off(f, P, P_off, D, D_off, sigma)) <= 1
    assert ratio(found, want, sinks.weighted_sum_off(f, P, P_off, D, 0 * D_off, sigma)) > 10


def test_a_bound_that_forgets_the_roundings_of_the_sum_is_exceeded():
    x = standing_sum()
    found, want = stepwise(x, "float32"), exact(*x)
    f, *terms = terms_of(x, "float32", ALL)
    assert 0.5 < ratio(found, want, sinks.weighted_sum_off(f, *terms)) <= 1
    assert ratio(found, want, sinks.weighted_sum_off(f._replace(sums=0.0), *terms)) > 10


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_bound_is_not_ten_times_too_large_everywhere(dtype):
    """In float32 a long sum; in the short formats one key, of which the output is stored."""
    if dtype == "float32":
        found = [(stepwise, standing_sum(), ALL)]
    else:
        found = [(fused, problem(dtype, 2, 1, 4, 1, size=5.0, seed=seed), WIDE) for seed in range(40)]
    ratios = [ratio(program(x, dtype), exact(*x), allowed(x, dtype, kind)) for program, x, kind in found]
    assert 0.2 < max(ratios) <= 1


@pytest.mark.parametrize("dtype", FORMATS)
def test_wrong_gradients_lie_outside(dtype):
    """Without D, with another sign, without the first query."""
    x = problem(dtype, 12, 20, 8, 6, 2, seed=3)
    _, P, _, D, _, _ = terms_of(x, dtype, WIDE)
    off, want = allowed(x, dtype, WIDE), exact(*x)
    assert ratio(-(P * D).sum(0), want, off) < 0.01
    for wrong in (-P.sum(0), (P * D).sum(0), -(P[1:] * D[1:]).sum(0)):
        assert ratio(wrong, want, off) > 1


def test_one_minus_the_weights_of_the_keys_lies_outside():
    """A sink far below the keys: what is left of one has lost its digits."""
    x = *problem("float32", 1, 4, seed=6)[:-1], np.array([-16.0])
    _, P, _, D, _, _ = terms_of(x, "float32", ALL)
    kept = nearest(1 - nearest(1 - P, "float32"), "float32")
    off, want = allowed(x, "float32", ALL), exact(*x)
    assert ratio((-P * D)[0], want, off) < 0.01 and ratio((-kept * D)[0], want, off) > 1
