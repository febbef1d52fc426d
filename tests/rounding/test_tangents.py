"""The bounds of tangents: programs of both orders lie inside, whoever forgets a term lies outside."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import attnmath
from attnmath import rounding
from attnmath.rounding import nearest, ratio, tangents
from attnmath.rounding.heads import fused_jvp, stepwise_jvp
from attnmath.torch import scaled_dot_product_attention as ours

torch.set_num_threads(1)
FORMATS = ("float32", "bfloat16", "float16")
WIDE = dict(accumulate="float32")


def problem(dtype, n=5, m=9, d_k=4, d_v=3, size=1.0, mask=0.0, offset=0.0, seed=0):
    """Tangents, and Q, K, V, B and gamma, numbers of the format; a masked part, and an empty row if any."""
    rng = np.random.default_rng(seed)
    shapes = [(n, d_k), (m, d_k), (m, d_v), (n, m)]
    x = [f * rng.normal(size=s) for f, s in zip((size, size, 1, 1), shapes)]
    x[3] = np.where(rng.random((n, m)) < mask, -np.inf, x[3] + offset)
    x[3][0] = -np.inf if mask else x[3][0]
    dots = [10.0 ** rng.uniform(-3, 1) * rng.integers(0, 5) * rng.normal(size=s) for s in shapes]
    x, dots = ([nearest(a, dtype) for a in arrays] for arrays in (x, dots))
    return *dots, float(nearest(rng.normal(), dtype)), *x, float(nearest(d_k**-0.5, dtype))


def complex_step(x, R=None):
    """The tangent of the output by a complex step."""
    dots, (Q, K, V, B, gamma), h = x[:5], x[5:], 1e-40
    with np.errstate(invalid="ignore"):
        moved = [y + 1j * h * dot for y, dot in zip((Q, K, V), dots)]
        bias = np.where(np.isneginf(B), -np.inf, np.where(np.isneginf(B), 0.0, B) + 1j * h * dots[3])
    return attnmath.dropout_attention(*moved, bias, gamma + 1j * h * dots[4], R=R).imag / h


PROBLEMS = dict(
    n=st.integers(1, 7), m=st.integers(1, 12), d_k=st.integers(1, 6), d_v=st.integers(1, 5),
    size=st.sampled_from([1e-3, 0.1, 1.0, 2.0, 5.0]), mask=st.sampled_from([0.0, 0.4]),
    offset=st.sampled_from([0.0, 20.0, -500.0]), seed=st.integers(0, 10**6), dtype=st.sampled_from(FORMATS),
)


@settings(max_examples=60, deadline=None)
@given(**PROBLEMS, tile=st.integers(4, 12))
def test_tangents_of_one_pass_over_tiles_lie_inside(dtype, tile, **sizes):
    x = problem(dtype, **sizes)
    off = rounding.attention_jvp(*x, dtype=dtype, **WIDE)
    assert ratio(fused_jvp(*x, dtype, tile), complex_step(x), off) <= 1


@settings(max_examples=40, deadline=None)
@given(**PROBLEMS)
def test_tangents_that_round_every_step_lie_inside(dtype, **sizes):
    x = problem(dtype, **sizes)
    assert ratio(stepwise_jvp(*x, dtype)[-1], complex_step(x), rounding.attention_jvp(*x, dtype=dtype)) <= 1


@pytest.mark.parametrize("program", ["math", "ours"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
def test_tangents_of_pytorch_lie_inside(program, dtype, causal):
    """The kernel that writes the head out, and the drop-in; a scale of 1 is no input that is rounded."""
    rng, to = np.random.default_rng(5), getattr(torch, dtype)
    given_, moved = ([nearest(s * rng.normal(size=(2, 3, k, d)), dtype) for k, d, s in ((40, 16, c), (60, 16, 0.3), (60, 8, 1))]
                     for c in (1, 1))
    B = np.where(np.tri(40, 60, 20, dtype=bool) | (not causal), 0.0, -np.inf)
    x = [torch.tensor(y).to(to) for y in given_]
    dots = [torch.tensor(y).to(to) for y in moved]
    mask = torch.tensor(B).to(to) if causal else None

    def attention(q, k, v):
        if program == "ours":
            return ours(q, k, v, attn_mask=mask, scale=1.0)
        with sdpa_kernel(SDPBackend.MATH):
            return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)

    found = torch.func.jvp(attention, tuple(x), tuple(dots))[1]
    bias = B + np.zeros((2, 3, 1, 1))
    want = attnmath.attention_jvp(*moved, 0 * np.where(np.isneginf(bias), 0, bias), 0.0, *given_, bias, 1.0)
    kind = {} if dtype == "float32" else dict(WIDE, fused=False)
    off = rounding.attention_jvp(*moved, None, None, *given_, bias, 1.0, dtype=dtype, **kind)
    worst = ratio(found.double().numpy(), want, off)
    assert worst <= 1 and worst > 0.001


def wrong(x, mistake):
    """The tangent in float64 with one mistake."""
    Q_dot, K_dot, V_dot, B_dot, gamma_dot, *primals = x
    P = attnmath.attention_map(*primals).P
    match mistake:
        case "no P V_dot":
            V_dot = 0 * V_dot
        case "no Q K_dot":
            K_dot = 0 * K_dot
        case "no tangent of the scale":
            gamma_dot = 0.0
        case "no mean":
            Q, K, V, B, gamma = primals
            A_dot = gamma * (Q_dot @ K.T + Q @ K_dot.T) + gamma_dot * Q @ K.T + B_dot
            return (P * A_dot) @ V + P @ V_dot
    return attnmath.attention_jvp(Q_dot, K_dot, V_dot, B_dot, gamma_dot, *primals)


@pytest.mark.parametrize("mistake", ["no P V_dot", "no Q K_dot", "no tangent of the scale", "no mean"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_tangent_that_lacks_a_term_lies_outside(mistake, dtype):
    rng = np.random.default_rng(1)
    _, _, _, _, _, *primals = problem(dtype, 12, 20, 8, 6, seed=3)
    dots = [nearest(rng.normal(size=np.shape(y)), dtype) for y in primals]
    dots[-1] = float(dots[-1])
    x = *dots, *primals
    off = rounding.attention_jvp(*x, dtype=dtype, **({} if dtype == "float32" else WIDE))
    assert ratio(wrong(x, ""), complex_step(x), off) < 0.01 < 1 < ratio(wrong(x, mistake), complex_step(x), off)


def test_a_bound_that_forgets_the_error_of_the_scores_is_exceeded(monkeypatch):
    """One key alone: all of its tangent is taken away again, and a mean from sums in another order leaves their errors."""
    dtype, n, d_k = "float16", 40, 64
    rng = np.random.default_rng(2)
    Q, K, V, B = np.zeros((n, d_k)), np.ones((1, d_k)), np.ones((1, 1)), np.zeros((n, 1))
    Q_dot = nearest(rng.normal(size=(n, d_k)), dtype)
    Q_dot[:, d_k // 2 :] = -Q_dot[:, : d_k // 2]  # so that the tangents of the scores are 0
    x = Q_dot, 0 * K, 0 * V, 0 * B, 0.0, Q, K, V, B, 1.0
    one, other = (stepwise_jvp(dots, *x[1:], dtype)[0] for dots in (Q_dot, Q_dot[:, ::-1]))
    found, want = nearest(one - other, dtype), complex_step(x)
    assert not want.any() and ratio(found, want, rounding.attention_jvp(*x, dtype=dtype)) <= 1
    whole = tangents.scores_jvp
    monkeypatch.setattr(tangents, "scores_jvp", lambda *x: (whole(*x)[0], 0 * whole(*x)[1]))
    assert ratio(found, want, rounding.attention_jvp(*x, dtype=dtype)) > 1


def test_it_takes_tensors_and_leading_axes_and_gives_the_same():
    x = problem("float32", seed=7)
    off = rounding.attention_jvp(*x, dtype="float32")
    many = [np.broadcast_to(y, (2, 3, *np.shape(y))) if np.ndim(y) else y for y in x]
    tensors = [torch.tensor(np.array(y)) if np.ndim(y) else y for y in many]
    found = rounding.attention_jvp(*tensors, dtype="float32")
    assert isinstance(found, torch.Tensor)
    assert np.allclose(found.numpy(), np.broadcast_to(off, found.shape), rtol=1e-12)
    still = rounding.attention_jvp(None, None, None, None, None, *x[5:], dtype="float32")
    assert ((0 <= still) & (still < 1e-30)).all()


def test_bad_input():
    x = problem("float32")
    with pytest.raises(ValueError, match=r"^rounding.attention_jvp: Q_dot has shape \(9, 4\); it needs \(5, 4\)"):
        rounding.attention_jvp(x[1], *x[1:], dtype="float32")
    with pytest.raises(ValueError, match="^rounding.attention_jvp: dtype is 'int8'; it needs"):
        rounding.attention_jvp(*x, dtype="int8")
    with pytest.raises(TypeError, match="^rounding.attention_jvp: K_dot is complex; it needs to be real"):
        rounding.attention_jvp(x[0], x[1] + 0j, *x[2:], dtype="float32")
