"""The bounds of rounding: correct heads in three formats lie inside, wrong ones outside."""

import copy
import inspect
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnmath
from attnmath import rounding
from attnmath.rounding import heads, nearest, ratio, strips, unit_roundoff
from attnmath.rounding.heads import cut_off, fused_head, stepwise_head

torch.set_num_threads(1)
FORMATS = ("float32", "bfloat16", "float16")
TORCH = {name: getattr(torch, name) for name in ("float64", *FORMATS)}
WIDE = dict(accumulate="float32")


def problem(dtype, n=5, m=9, d_k=4, d_v=3, size=1.0, mask=0.0, offset=0.0, seed=0, lead=()):
    """dO, Q, K, V, B and gamma, numbers of the format; a masked part, and an empty row if any."""
    rng = np.random.default_rng(seed)
    shapes = [(*lead, n, d_v), (*lead, n, d_k), (*lead, m, d_k), (*lead, m, d_v), (n, m)]
    dO, Q, K, V, B = (rng.normal(size=s) for s in shapes)
    B = np.where(rng.random(B.shape) < mask, -np.inf, B + offset)
    if mask:
        B[0] = -np.inf
    x = [nearest(a, dtype) for a in (dO, size * Q, size * K, V, B)]
    return *x, float(nearest(d_k**-0.5, dtype))


def worst(found, x, dtype, R=None, **kind):
    """The largest error in units of its bound of O, L and each gradient that was found."""
    O, L, back = found
    want = attnmath.attention_map(*x[1:])
    if R is not None:
        want = want._replace(O=attnmath.dropout_attention(*x[1:], R=R))
    bound = rounding.attention(*x[1:], dtype=dtype, R=R, **{k: v for k, v in kind.items() if k != "stores"})
    found = dict(O=O, L=L, **back._asdict())
    wants = dict(O=want.O, L=want.L, **attnmath.dropout_attention_vjp(*x, R=R)._asdict())
    bounds = dict(**bound._asdict(), **rounding.attention_vjp(*x, dtype=dtype, R=R, **kind)._asdict())
    return {k: ratio(found[k], wants[k], bounds[k]) for k in found if found[k] is not None}


# ---- formats ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ("float64", *FORMATS))
def test_formats_are_those_of_numpy_and_torch(dtype):
    info = torch.finfo(TORCH[dtype])
    assert unit_roundoff(dtype) == unit_roundoff(TORCH[dtype]) == info.eps / 2
    scale = 2.0 ** np.arange(-40, 20)[:, None]
    x = np.random.default_rng(1).normal(size=(60, 50)) * scale
    x = np.concatenate([x.ravel(), [0.0, -0.0, np.inf, -np.inf, info.max, info.max * 1.001, 1 + info.eps / 2]])
    theirs = torch.tensor(x, dtype=torch.float64).to(TORCH[dtype]).double().numpy()
    if dtype == "bfloat16":  # torch rounds twice, by way of float32: where that changes nothing
        single = torch.tensor(x).float().double().numpy()
        theirs, x = theirs[single == x], x[single == x]
    assert np.array_equal(nearest(x, dtype), theirs)
    assert np.array_equal(nearest(torch.tensor(x), dtype), theirs)


def test_bfloat16_is_rounded_once():
    """Slightly above the middle of two numbers of bfloat16: by way of float32 it goes down."""
    x = 1 + 2.0**-8 + 2.0**-40
    assert nearest(x, "bfloat16") == 1 + 2.0**-7
    assert torch.tensor(x, dtype=torch.float64).to(torch.bfloat16) == 1


@given(st.floats(-60000, 60000), st.sampled_from(FORMATS))
def test_a_rounding_is_a_factor_e_to_at_most_the_unit_roundoff(x, dtype):
    y, u = float(nearest(x, dtype)), unit_roundoff(dtype)
    least = 2.0**-25 if dtype == "float16" else 2.0**-126
    assert abs(y - x) <= np.expm1(u) * abs(x) + least and nearest(y, dtype) == y
    if abs(x) > 1e-4:
        assert abs(np.log(y / x)) <= u


def test_ratio_counts_in_bounds():
    inf, nan = np.inf, np.nan
    assert ratio(np.array([1.0, 3.0]), np.array([1.5, 3.0]), np.array([0.25, 0.0])) == 2
    assert ratio(np.array([-inf, 0.0]), np.array([-inf, 0.0]), np.zeros(2)) == 0
    assert ratio(np.array([nan]), np.array([1.0]), np.array([inf])) == inf
    assert ratio(np.array([1.0]), np.array([2.0]), np.zeros(1)) == inf
    assert ratio(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 3))) == 0
    assert ratio(torch.ones(2, requires_grad=True), np.ones(2), torch.zeros(2)) == 0
    with pytest.raises(ValueError, match=r"^ratio: got has shape \(2,\); it needs \(3,\)"):
        ratio(np.ones(2), np.ones(3), np.ones(3))
    with pytest.raises(ValueError, match="ratio: a bound is below 0"):
        ratio(np.ones(1), np.zeros(1), -np.ones(1))
    for x in (np.array([1 + 5j]), torch.tensor([1 + 5j])):
        for refused in (lambda x: ratio(x, np.ones(1), np.ones(1)), lambda x: nearest(x, "float32")):
            with pytest.raises(TypeError, match="real, and these are complex"):
                refused(x)


# ---- correct programs lie inside ----------------------------------------------------------------

PROBLEMS = dict(
    n=st.integers(1, 7), m=st.integers(1, 12), d_k=st.integers(1, 6), d_v=st.integers(1, 5),
    size=st.sampled_from([1e-3, 0.1, 1.0, 2.0, 5.0]), mask=st.sampled_from([0.0, 0.4]),
    offset=st.sampled_from([0.0, 20.0, -500.0]), seed=st.integers(0, 10**6), dtype=st.sampled_from(FORMATS),
)


@settings(max_examples=60, deadline=None)
@given(**PROBLEMS, tile=st.integers(4, 12), D_from=st.sampled_from("OP"), turned=st.booleans())
def test_fused_heads_lie_inside(dtype, tile, D_from, turned, **sizes):
    x = problem(dtype, **sizes)
    assert max(worst(fused_head(*x, dtype, tile, D_from, turned), x, dtype, **WIDE).values()) <= 1


@settings(max_examples=40, deadline=None)
@given(**PROBLEMS)
def test_heads_that_round_every_step_lie_inside_in_any_order_of_the_keys(dtype, **sizes):
    x = problem(dtype, **sizes)
    order = np.random.default_rng(sizes["seed"]).permutation(sizes["m"])
    head = stepwise_head(*x, dtype, order)
    assert max(worst((head.O, head.L, head.back), x, dtype).values()) <= 1


def own(x, library, **R):
    """Our own head, in another library or precision."""
    O, L = attnmath.attention_map(*map(library, x[1:5]), x[5])[3:1:-1]
    if R:
        O = attnmath.dropout_attention(*map(library, x[1:5]), x[5], **R)
    return O, L, attnmath.dropout_attention_vjp(*map(library, x[:5]), x[5], **R)


@settings(max_examples=40, deadline=None)
@given(**PROBLEMS)
def test_our_own_heads_lie_inside(dtype, **sizes):
    """In NumPy and torch, where sums are wide or not: every array of theirs is rounded."""
    x = problem(dtype, **sizes)
    to = TORCH[dtype]
    found = own(x, lambda a: torch.tensor(a).to(to))
    assert max(worst(found, x, dtype, **WIDE, fused=False).values()) <= 1
    assert max(worst(found, x, to).values()) <= 1
    if dtype != "bfloat16":
        found = own(x, lambda a: a.astype(dtype))
        assert max(worst(found, x, np.dtype(dtype)).values()) <= 1


def test_float64_may_err_on_both_sides():
    """The keys in another order: neither answer is exact, and their difference lies inside."""
    x = problem("float64", 6, 50, 8, 5, size=2.0)
    turned = [a[::-1] for a in x[2:4]]
    O, L = attnmath.attention_map(x[1], *turned, x[4][:, ::-1], x[5])[3:1:-1]
    back = attnmath.attention_vjp(*x[:2], *turned, x[4][:, ::-1], x[5])
    back = back._replace(dK=back.dK[::-1], dV=back.dV[::-1], dB=back.dB[:, ::-1])
    ratios = worst((O, L, back), x, "float64")
    assert 0 < max(ratios.values()) <= 1


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("masked", [False, True])
def test_the_fused_kernel_of_torch_lies_inside(dtype, masked):
    """A third party's kernel. It adds tiles of 32 queries to dK and dV in their own dtype."""
    n, to = 70, TORCH[dtype]
    x = problem(dtype, n, 130, 16, 16, size=1.5, mask=0.3 * masked, lead=(2, 3))
    if not masked:
        x = (*x[:4], 0 * x[4], x[5])
    tensors = [torch.tensor(a).to(to).requires_grad_() for a in x[1:4]]
    B = torch.tensor(x[4]).to(to) if masked else None
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        O = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=B)
    O.backward(torch.tensor(x[0]).to(to))
    back = attnmath._formulas.attention.AttentionGradients(*(a.grad for a in tensors), None, None)
    kind = dict(stores=3) if dtype == "float32" else dict(WIDE, stores=3)
    want = attnmath.attention_vjp(*x)
    bound = rounding.attention_vjp(*x, dtype=to, **kind)
    ratios = [ratio(*three) for three in zip(back[:3], want, bound)]
    kind.pop("stores")
    O_bound = rounding.attention(*x[1:], dtype=to, **kind).O
    ratios.append(ratio(O, attnmath.attention(*x[1:]), O_bound))
    assert 0 < max(ratios) <= 1


def test_a_gradient_that_is_stored_tile_by_tile_needs_its_stores():
    """dV of keys that many queries read, in bfloat16, rounded after each of 40 tiles."""
    dO, Q, K, V, B, gamma = x = problem("bfloat16", 160, 3, 4, 3, size=0.1, seed=5)
    dO[:] = nearest(np.abs(dO) + 1, "bfloat16")
    P, dV = attnmath.attention_map(*x[1:]).P, np.zeros(V.shape)
    for t in range(0, 160, 4):
        dV = nearest(dV + P[t:t + 4].T @ dO[t:t + 4], "bfloat16")
    want = attnmath.attention_vjp(*x).dV
    once, often = (rounding.attention_vjp(*x, dtype="bfloat16", **WIDE, stores=s).dV for s in (1, 40))
    assert ratio(dV, want, once) > 1 >= ratio(dV, want, often)


# ---- sums that cut off digits, exponentials that err -----------------------------------------------


@settings(max_examples=40, deadline=None)
@given(**PROBLEMS, tile=st.integers(4, 12))
def test_heads_whose_sums_cut_off_digits_lie_inside(dtype, tile, **sizes):
    x = problem(dtype, **sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "_single", cut_off)
        found = fused_head(*x, dtype, tile)
    assert max(worst(found, x, dtype, **WIDE, truncate=True).values()) <= 1


@pytest.mark.parametrize("group", [4, 8, 16])
def test_sums_that_cut_off_digits_lie_outside_of_bounds_for_the_nearest(group, monkeypatch):
    """A gradient of 400 queries, of which all but the first lie just below the last digit of the sum."""
    u, n = unit_roundoff("float32"), 400
    Q, K, V, B = np.zeros((n, 2)), np.zeros((1, 2)), np.ones((1, 1)), np.zeros((n, 1))
    x = np.where(np.arange(n)[:, None] == 0, 1.0, np.float32(1.98 * u).astype(float)), Q, K, V, B, 1.0
    monkeypatch.setattr(heads, "_single", lambda X, Y: cut_off(X, Y, group))
    found, want = fused_head(*x, "float32")[2].dV, attnmath.attention_vjp(*x).dV
    nearest_, cut = (rounding.attention_vjp(*x, dtype="float32", truncate=y).dV for y in (False, True))
    assert ratio(found, want, nearest_) > 1.5 and ratio(found, want, cut) <= 1


@pytest.mark.parametrize("error", [4.7, 2000.0])
def test_an_exponential_that_errs_lies_inside_of_bounds_that_know_it(error, monkeypatch):
    """4.7 unit roundoffs are those of CUDA's expf; it errs up for large weights, and down for small ones."""
    x = problem("float32", 6, 40, 4, 3, size=2.0, seed=3)
    far = np.float32(error * unit_roundoff("float32"))
    monkeypatch.setattr(heads, "_exp", lambda y: (np.exp(y.astype(float)) * (1 + np.where(y > -1, far, -far))
                                                  ).astype(np.float32))
    found = fused_head(*x, "float32")
    assert max(worst(found, x, "float32", exp_error=error + 1).values()) <= 1
    if error > 100:
        outside = worst(found, x, "float32")
        assert min(outside[name] for name in ("O", "dQ", "dK", "dV")) > 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_log_sum_exp_of_pytorchs_kernel_lies_inside_of_bounds_that_know_its_exponential(dtype):
    """On some processors it is faster and worse for outputs in short formats: five digits are right."""
    worst = 0.0
    for seed, m in enumerate((1, 2, 3, 5, 17, 33)):
        _, Q, K, V, _, _ = problem(dtype, 8, m, 8, 8, size=(0.1, 0.5, 2.0)[seed % 3], seed=seed, lead=(1, 1))
        x = [torch.tensor(y).to(TORCH[dtype]) for y in (Q, K, V)]
        L = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*x)[1]
        off = rounding.attention(Q, K, V, dtype=dtype, **WIDE, exp_error=300).L
        worst = max(worst, ratio(L.double(), attnmath.attention_map(Q, K, V).L, off))
    assert worst <= 1


@pytest.mark.parametrize("bad", [dict(exp_error=-1.0), dict(log_error=True), dict(exp_error="2"), dict(truncate=1)])
def test_bad_errors(bad):
    name = next(iter(bad))
    x = problem("float32")
    for function, y in ((rounding.attention, x[1:]), (rounding.attention_vjp, x)):
        with pytest.raises(ValueError, match=f"^rounding.{function.__name__}: {name} is {bad[name]!r}; it needs"):
            function(*y, dtype="float32", **bad)


# ---- wrong programs lie outside -------------------------------------------------------------------


def wrong(x, mistake):
    """O, L and gradients in float64 with one mistake."""
    dO, Q, K, V, B, gamma = x
    if mistake == "no scale":
        gamma = 1.0
    if mistake == "last key dropped":
        B = np.concatenate([B[:, :-1], np.full((len(B), 1), -np.inf)], 1)
    A, P, L, O = attnmath.attention_map(Q, K, V, B, gamma)
    back = attnmath.attention_vjp(dO, Q, K, V, B, gamma)._replace(dgamma=None)
    if mistake == "no D":
        W = P * (dO @ V.T)
        back = back._replace(dQ=gamma * W @ K, dK=gamma * W.T @ Q, dB=W)
    if mistake == "dQ without scale":
        back = back._replace(dQ=back.dQ / gamma)
    if mistake == "one part in a thousand":
        O, back = O * 1.001, back._make(1.001 * g if g is not None else g for g in back)
    return O, L, back


HIT = {
    "no D": {"dQ", "dK", "dB"},
    "no scale": {"O", "L", "dQ", "dK", "dV", "dB"},
    "dQ without scale": {"dQ"},
    "last key dropped": {"O", "L", "dQ", "dK", "dV", "dB"},
    "one part in a thousand": {"O", "dQ", "dK", "dV", "dB"},
}


@pytest.mark.parametrize("mistake", HIT)
@pytest.mark.parametrize("dtype", FORMATS)
def test_wrong_programs_lie_outside(mistake, dtype):
    """In float32 all five mistakes; the formats with 8 and 11 digits cannot see the smallest."""
    x = problem(dtype, 12, 20, 8, 6, seed=3)
    kind = {} if dtype == "float32" else WIDE
    ratios = worst(wrong(x, mistake), x, dtype, **kind)
    small = mistake == "one part in a thousand" and dtype != "float32"
    assert {k for k, r in ratios.items() if r > 1} == (set() if small else HIT[mistake])


def test_zeros_never_pass_however_small_the_loss():
    """The bound shrinks with dO, unlike an absolute tolerance."""
    dO, *x = problem("bfloat16", 12, 20, 8, 6, seed=3)
    dO = 1e-6 * dO
    O, L = attnmath.attention_map(*x)[3:1:-1]
    zero = attnmath.attention_vjp(dO, *x)._replace(dgamma=None)
    zero = zero._make(0 * g if g is not None else g for g in zero)
    assert min(worst((O, L, zero), (dO, *x), "bfloat16", **WIDE)[k] for k in ("dQ", "dK", "dV", "dB")) > 10


def test_small_numbers_of_float16_are_allowed_for():
    """A gradient below the least step of float16 becomes zero, and may; in bfloat16 it may not."""
    dO, *x = problem("float16", 12, 20, 8, 6, seed=3)
    dO = 2.0**-24 * np.sign(dO)
    for dtype, inside in (("float16", True), ("bfloat16", False)):
        bound = rounding.attention_vjp(dO, *x, dtype=dtype, **WIDE).dQ
        want = attnmath.attention_vjp(dO, *x).dQ
        assert 0 < abs(want).max() < 2.0**-24 and (ratio(0 * want, want, bound) <= 1) == inside


def test_small_numbers_of_float32_are_allowed_for():
    """Products of small numbers become zero; what does not come near stays as it was."""
    for sizes in ((1e-20, 1, 1, 1e-25), (1e-30, 1, 1e-15, 1), (1e-22, 1e-10, 1, 1e-12)):
        *x, B, gamma = problem("float32", 6, 8, 4, 3, seed=4)
        x = [(size * a).astype(np.float32) for size, a in zip(sizes, x)]
        back = attnmath.attention_vjp(*x, gamma=gamma)
        want = attnmath.attention_vjp(*(a.astype(float) for a in x), gamma=gamma)
        bound = rounding.attention_vjp(*x, gamma=gamma, dtype="float32")
        assert (back.dQ != want.dQ).any()
        assert all(ratio(*three) <= 1 for three in zip(back[:3], want, bound))


# ---- strip by strip ------------------------------------------------------------------------------


def shared(seed, dtype="float32"):
    """Keys that heads share, a bias that items share, with hidden entries, weights that are dropped, a scale of each head."""
    rng = np.random.default_rng(seed)
    dO, Q, K, V, R = (rng.normal(size=s) for s in ((2, 3, 7, 4), (2, 3, 7, 5), (2, 1, 9, 5), (2, 1, 9, 4), (3, 7, 9)))
    B = np.where(rng.random((3, 1, 9) if seed % 2 else (7, 9)) < 0.3, -np.inf, 1.0)
    return (dO, Q, K, V, B, rng.random((3, 1, 1)) + 0.1), dict(R=(R > 0) / 0.7, dtype=dtype)


@pytest.mark.parametrize("dtype", ("float64", "float16"))
@pytest.mark.parametrize("scores", [9, 20, 63, 200])
@pytest.mark.parametrize("library", [np.array, torch.tensor])
def test_strips_are_added_up_to_what_all_queries_give_at_once(scores, dtype, library, monkeypatch):
    """As few as one query at a time, all queries of one head, or some heads together."""
    for seed in (0, 1):
        x, kind = shared(seed, dtype)
        x, kind = [library(a) for a in x], kind | dict(R=library(kind["R"]))
        given = copy.deepcopy(x)
        whole = *rounding.attention(*x[1:], **kind), *rounding.attention_vjp(*x, **kind, stores=3)
        with monkeypatch.context() as patch:
            patch.setattr(strips, "STRIP", scores)
            patch.setattr(strips, "FEWEST", 1)
            found = *rounding.attention(*x[1:], **kind), *rounding.attention_vjp(*x, **kind, stores=3)
        for got, want in zip(found, whole, strict=True):
            assert got.shape == want.shape and np.allclose(got, want, rtol=1e-12, atol=0)
        assert all((a == b).all() for a, b in zip(x, given))


def test_shared_gradients_that_cancel_may_be_as_far_off_as_their_sizes_say():
    """Two heads with one key in common, whose gradients are opposite."""
    dO, Q, K, V, B, gamma = problem("float32")
    one = rounding.attention_vjp(dO, Q, K, V, B, gamma, dtype="float32")
    both = rounding.attention_vjp(np.stack([dO, -dO]), np.stack([Q, Q]), K, V, B, gamma, dtype="float32")
    for name in ("dK", "dV", "dB", "dgamma"):
        assert (getattr(both, name) > 2 * getattr(one, name)).all(), name
    back = attnmath.attention_vjp(dO, Q, K, V, B, gamma)
    u = unit_roundoff("float32")
    assert (both.dV - 2 * one.dV >= 2 * u * abs(back.dV)).all()  # they are added once more, whatever is left


def test_a_sum_over_queries_of_which_each_term_is_lost_lies_inside():
    """Half of the least number of float16 is rounded to zero, for every query."""
    n = 400
    x = np.full((n, 1), 2.0**-24), np.zeros((n, 1)), np.zeros((2, 1)), np.zeros((2, 1))
    want = attnmath.attention_vjp(*x).dV
    assert (nearest(0.5 * x[0], "float16") == 0).all() and (want > 0).all()
    assert ratio(0 * want, want, rounding.attention_vjp(*x, dtype="float16").dV) <= 1


def test_a_long_head_needs_no_array_of_queries_and_keys():
    n = 2048
    x = np.random.default_rng(0).normal(size=(4, n, 8))
    tracemalloc.start()
    rounding.attention_vjp(*x, dtype="float32")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * n * n


def test_a_score_that_is_hidden_adds_nothing_however_wide_its_bound():
    """Hidden keys are left out, even if their scores would have lost all digits."""
    dO, Q, K, V, B, gamma = problem("float16", size=1e4)
    B = np.where(np.arange(9) < 4, -np.inf, 0 * B)
    K[4:] /= 1e6
    seen = rounding.attention(Q, K[4:], V[4:], gamma=gamma, dtype="float16")
    found = rounding.attention(Q, K, V, B, gamma, dtype="float16")
    assert all((a <= 1.1 * b).all() for a, b in zip(found, seen))


# ---- what the functions take --------------------------------------------------------------------


def test_heads_that_share_keys_biases_and_the_scale():
    """Summed over the heads in float32, after each head's gradient was rounded to bfloat16."""
    dO, Q, _, _, B, _ = problem("bfloat16", 5, 9, 4, 3, lead=(2, 3), mask=0.3)
    _, _, K, V, _, _ = problem("bfloat16", 5, 9, 4, 3, lead=(2, 1), seed=7)
    gamma = nearest(np.array([0.4, 0.5, 0.7])[:, None, None], "bfloat16")
    x = dO, Q, K, V, B, gamma
    want = attnmath.attention_vjp(*x)
    heads = [[fused_head(dO[i, j], Q[i, j], K[i, 0], V[i, 0], B, gamma[j, 0, 0], "bfloat16")[2]
              for j in range(3)] for i in range(2)]
    dQ, dK, dV, dB = (np.array([[h[k] for h in row] for row in heads]) for k in range(4))
    found = dQ, *(nearest(g.sum(1, keepdims=True), "bfloat16") for g in (dK, dV)), nearest(dB.sum((0, 1)), "bfloat16")
    bound = rounding.attention_vjp(*x, dtype="bfloat16", **WIDE)
    assert [b.shape for b in bound] == [a.shape for a in x[1:]]
    ratios = [ratio(*three) for three in zip(found, want, bound)]
    assert 0 < min(ratios) and max(ratios) <= 1
    assert ratio(dK[:, :1], want.dK, bound.dK) > 1, "one head of three is not the sum"
    back = own(x[:4] + (B, 1.0), lambda a: a.astype(np.float32))[2]
    scales = rounding.attention_vjp(*x[:5], 1.0, dtype="float32")
    assert scales.dgamma.shape == () and ratio(back.dgamma, attnmath.attention_vjp(*x[:5], 1.0).dgamma, scales.dgamma) <= 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dropout(dtype):
    x = problem(dtype, 6, 11, 4, 3, mask=0.2)
    R = attnmath.dropout_mask(np.random.default_rng(2).random((6, 11)), 0.5)
    assert max(worst(own(x, lambda a: a.astype(dtype), R=R.astype(dtype)), x, dtype, R=R).values()) <= 1
    assert max(worst(own(x, lambda a: a.astype(dtype)), x, dtype, R=R).values()) > 1


@pytest.mark.parametrize("kind", [{}, WIDE, dict(WIDE, fused=False)])
def test_what_is_hidden_has_no_error(kind):
    x = problem("float16", 5, 9, 4, 3, mask=0.3)
    x[4][:, 2] = -np.inf
    forward = rounding.attention(*x[1:], dtype="float16", **kind)
    back = rounding.attention_vjp(*x, dtype="float16", **kind)
    hidden = np.isneginf(x[4])
    assert not forward.O[0].any() and forward.L[0] == 0 and not back.dQ[0].any()
    assert not back.dK[2].any() and not back.dV[2].any() and not back.dB[hidden].any()
    assert all((b > 0).all() for b in (forward.O[1:], forward.L[1:], back.dQ[1:], back.dB[~hidden]))
    empty = rounding.attention_vjp(x[0], x[1], x[2][:0], x[3][:0], dtype="float16", **kind)
    assert empty.dK.shape == (0, 4) and not empty.dQ.any() and empty.dB is None


def test_a_row_hidden_by_a_finite_number_is_promised_nothing():
    x = problem("float32", 5, 9, 4, 3)
    x[4][1] = x[4][2, 3:] = -1e9
    bound = rounding.attention(*x[1:], dtype="float32").O
    assert bound[1].min() > 1e10 and bound[[0, 2, 3, 4]].max() < 1e-4
    x[4][1] = x[4][2, 3:] = np.finfo(np.float32).min
    assert np.isfinite(rounding.attention(*x[1:], dtype="float32").O[1:]).all()


def test_tensors_give_tensors_and_nothing_is_written():
    x = [torch.tensor(a, dtype=torch.bfloat16, requires_grad=True) for a in problem("bfloat16")[:5]]
    before = [a.detach().clone() for a in x]
    for out in (rounding.attention(*x[1:], dtype=torch.bfloat16), rounding.attention_vjp(*x, dtype="bfloat16")):
        assert all(b.dtype == torch.float64 and not b.requires_grad for b in out)
    assert all(torch.equal(a, b) for a, b in zip(x, before))
    arrays = [a.detach().double().numpy() for a in x]
    for ours, theirs in zip(rounding.attention_vjp(*arrays, dtype="bfloat16"), out):
        assert np.allclose(ours, theirs.numpy(), rtol=1e-9)


def test_a_wider_format_has_a_smaller_bound():
    x = problem("bfloat16", 6, 11, 4, 3)
    kinds = [dict(dtype="float64"), dict(dtype="float32"), dict(dtype="float16", **WIDE), dict(dtype="bfloat16", **WIDE),
             dict(dtype="bfloat16", **WIDE, stores=3), dict(dtype="bfloat16", **WIDE, fused=False),
             dict(dtype="bfloat16")]
    dQ = [rounding.attention_vjp(*x, **kind).dQ for kind in kinds]
    assert all((a < b).all() for a, b in zip(dQ, dQ[1:]))


BAD = [
    (dict(dtype="int8"), ValueError, "dtype is 'int8'; it needs to be float64, float32, bfloat16, float16"),
    (dict(dtype=np.int32), ValueError, "dtype is <class 'numpy.int32'>; it needs to be float64"),
    (dict(accumulate="float80"), ValueError, "accumulate is 'float80'; it needs to be float64"),
    (dict(dtype="float32", accumulate="float16"), ValueError, "accumulate is float16; it needs at least the digits"),
    (dict(Q=[[1.0]]), TypeError, "Q is a list; it needs to be an array"),
    (dict(K=np.ones((9, 4), int)), TypeError, "K has dtype int64; it needs floating-point numbers"),
    (dict(V=np.ones((9, 3), complex)), TypeError, "V is complex; it needs to be real"),
    (dict(V=np.ones((8, 3))), ValueError, r"V has shape \(8, 3\); it needs \(..., 9, d_v\)"),
    (dict(B=np.ones((5, 9), bool)), TypeError, "B is boolean; it needs numbers"),
    (dict(B=np.full((5, 9), np.nan)), ValueError, "B of shape .* holds NaN"),
    (dict(gamma=1j), TypeError, "gamma is complex; it needs to be real"),
    (dict(gamma=np.inf), ValueError, "gamma is inf; it needs to be a finite number"),
    (dict(R=np.full((5, 9), -1.0)), ValueError, "R of shape .* holds NaN, .inf or a number below 0"),
    (dict(K=torch.ones(9, 4)), TypeError, "K is an array of torch, but Q is one of numpy"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_bad_input_gets_one_sentence_that_names_the_argument(change, error, message):
    dO, Q, K, V, B, gamma = problem("float32")
    given = dict(Q=Q, K=K, V=V, B=B, gamma=gamma, dtype="float16") | change
    with pytest.raises(error, match="^rounding.attention: " + message):
        rounding.attention(**given)
    with pytest.raises(error, match="^rounding.attention_vjp: " + message):
        rounding.attention_vjp(dO=dO, **given)


def test_the_namespace_is_documented_and_light():
    text, chapter = ((Path(rounding.__file__).parents[2] / "chapters" / name).read_text("utf-8")
                     for name in ("api.md", "rounding.md"))
    for name in rounding.__all__:
        assert f".. autofunction:: attnmath.rounding.{name}\n" in text
        doc = inspect.getdoc(getattr(rounding, name))
        derived = re.search(r"\nDerived in chapters/rounding\.md(?:, (prp:\w+))?\.\Z", doc)
        assert "->" in doc.split("\n\n")[1] and derived and f"$$ ({derived[1]})" in chapter + "$$ (None)"
    code = "import sys, attnmath.rounding; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "False\n"


def test_stores_may_be_any_kind_of_whole_number():
    x = problem("float32")
    bounds = [rounding.attention_vjp(*x, dtype="float32", stores=s).dV for s in (3, np.int64(3))]
    assert (bounds[0] == bounds[1]).all()


def test_bad_gradients_and_stores():
    x = problem("float32")
    with pytest.raises(ValueError, match=r"^rounding.attention_vjp: dO has shape \(4, 3\); it needs \(5, 3\)"):
        rounding.attention_vjp(x[0][:4], *x[1:], dtype="float32")
    for stores in (0, 1.5, True):
        with pytest.raises(ValueError, match=f"^rounding.attention_vjp: stores is {stores}; it needs"):
            rounding.attention_vjp(*x, dtype="float32", stores=stores)


@pytest.mark.parametrize("axes", [((), (), (3, 1)), ((2,), (), (3, 1)), ((3, 1), (2,), ()), ((3, 2), (2,), (3, 1))])
@pytest.mark.parametrize("library", [np.array, torch.tensor])
def test_leading_axes_are_broadcast(axes, library):
    """As if every array had all of them."""
    rng = np.random.default_rng(8)
    lead = np.broadcast_shapes(*axes)
    Q, K, V = (rng.normal(size=(*own, *size)) for own, size in zip(axes, ((3, 2), (4, 2), (4, 5))))
    dO, full = rng.normal(size=(*lead, 3, 5)), [np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (Q, K, V)]
    O, L = rounding.attention(*map(library, (Q, K, V)), dtype="float16")
    assert np.allclose(O, rounding.attention(*full, dtype="float16").O, rtol=1e-12)
    back = rounding.attention_vjp(*map(library, (dO, Q, K, V)), dtype="float16")
    assert [tuple(x.shape) for x in back[:3]] == [x.shape for x in (Q, K, V)]
    right = attnmath.attention_vjp(dO, Q, K, V)
    for x, y in zip(back[:3], right):  # as large as roundings to float16 at least
        assert (np.asarray(x) >= 2.0**-11 * abs(y)).all()
