"""Caps, windows, sinks and slopes beside PyTorch's arguments: every derivative against the definition, and mistakes."""

import itertools

import numpy as np
import pytest
import torch
from test_drop_in import near, numbers, parts, uneven
from torch.autograd import gradcheck, gradgradcheck
from torch.func import hessian, jvp, vmap
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention as of_pytorch

from attnmath._words.tolerance import DROP_IN
from attnmath.torch import kernels, strips
from attnmath.torch import scaled_dot_product_attention as attention
from attnmath.torch.how import How
from attnmath.torch.tiles import Work
from by_definition import DERIVATIVES, apart, by_autograd, plain
from mistaken_second import mistake
from mistaken_variants import MISTAKES
from strips import cut_into

ALIKE, GROUPS, MORE, FEWER = (
    ((2, 3, 7, 4), (2, 3, 7, 4), (2, 3, 7, 4)), ((2, 4, 6, 4), (2, 2, 8, 4), (2, 2, 8, 3)),
    ((3, 4, 4), (3, 9, 4), (3, 9, 4)), ((3, 9, 4), (3, 5, 4), (3, 5, 4)),
)
CASES = {  # shapes; those of a moving mask, of sinks and of slopes; options
    "a cap": (ALIKE, {}, dict(softcap=0.7)),
    "a cap, causal, groups": (GROUPS, {}, dict(softcap=1.5, is_causal=True)),
    "a cap and a bias": (MORE, dict(attn_mask=(4, 9)), dict(softcap=1)),
    "a window": (ALIKE, {}, dict(window=(2, 1))),
    "a causal window": (ALIKE, {}, dict(window=(3, 0))),
    "a causal window, and is_causal": (ALIKE, {}, dict(window=(3, 2), is_causal=True)),
    "a window, more keys": (MORE, {}, dict(window=(1, 2))),
    "a window, fewer keys, hidden rows": (FEWER, {}, dict(window=(1, 1))),
    "a window, is_causal, more keys": (MORE, {}, dict(window=(6, 3), is_causal=True)),
    "a window, is_causal, fewer keys": (FEWER, {}, dict(window=(3, 2), is_causal=True)),
    "no end to the left": (FEWER, {}, dict(window=(None, 0))),
    "no end to the right": (MORE, {}, dict(window=[0, None])),
    "no ends": (MORE, {}, dict(window=(None, None))),
    "a wide window": (MORE, {}, dict(window=(99, np.int64(99)))),
    "a window, a bias, groups": (GROUPS, dict(attn_mask=(4, 6, 8)), dict(window=(3, 1))),
    "sinks": (ALIKE, dict(sinks=(3,)), {}),
    "sinks, causal, groups": (GROUPS, dict(sinks=(4,)), dict(is_causal=True)),
    "sinks of each item": (GROUPS, dict(sinks=(2, 4)), dict(scale=-0.3)),
    "sinks and a bias": (MORE, dict(sinks=(3,), attn_mask=(9,)), {}),
    "sinks, hidden rows": (FEWER, dict(sinks=(3,)), dict(window=(0, 0))),
    "a sink without heads": (((4, 3), (5, 3), (5, 3)), dict(sinks=()), {}),
    "slopes": (ALIKE, dict(alibi_slopes=(3,)), {}),
    "slopes, causal, groups": (GROUPS, dict(alibi_slopes=(2, 4)), dict(is_causal=True)),
    "slopes, more keys": (MORE, dict(alibi_slopes=(3,)), {}),
    "slopes, fewer keys, a bias": (FEWER, dict(alibi_slopes=(3,), attn_mask=(3, 9, 5)), {}),
    "slopes that do not move": (ALIKE, {}, dict(alibi_slopes=torch.tensor([0.5, 0.25, -1.0]).double())),
    "slopes that do not move, a window": (FEWER, {}, dict(alibi_slopes=torch.tensor([0.5, 2.0, 1.0]).double(), window=(6, 1))),
    "slopes that do not move, a mask": (MORE, {}, dict(alibi_slopes=torch.tensor([0.5, 2.0, 1.0]).double(),
                                                       mask=torch.arange(36).view(4, 9) % 5 != 1)),
    "gemma": (GROUPS, {}, dict(softcap=2.0, window=(3, 0), is_causal=True)),
    "gpt-oss": (GROUPS, dict(sinks=(4,)), dict(window=(3, 0))),
    "slopes and sinks of other axes": (GROUPS, dict(sinks=(2, 4), alibi_slopes=(4,)), {}),
    "all of them": (GROUPS, dict(sinks=(4,), alibi_slopes=(2, 4), attn_mask=(6, 8)), dict(softcap=1.1, window=(4, 1))),
}
DROPPED = {
    f"{name}, dropout": (CASES[name][0], CASES[name][1], CASES[name][2] | dict(dropout_p=0.4))
    for name in ("a cap, causal, groups", "a window, fewer keys, hidden rows", "sinks, causal, groups", "all of them")
}
ONE = ("a cap, causal, groups", "a window, more keys", "sinks and a bias", "slopes, causal, groups", "all of them")
KERNELS = "sinks", "sinks, hidden rows", "slopes that do not move, a window"


def problem(case):
    """x, and our function and the definition of it."""
    shapes, named, options = (CASES | DROPPED)[case]
    options = dict(options)
    mask = options.pop("mask", None)
    x = numbers(*shapes, *named.values(), requires_grad=False)
    enable_gqa = len(shapes[0]) > 2 and shapes[0][-3] != shapes[1][-3]
    R = None
    if "dropout_p" in options:  # read off: the output for values that are the rows of the identity
        torch.manual_seed(3)
        eye = torch.eye(shapes[1][-2], dtype=x[0].dtype).expand(*shapes[1][:-1], -1)
        R = (attention(*x[:2], eye, enable_gqa=enable_gqa, **options) != 0).double() / (1 - options["dropout_p"])

    def ours(Q, K, V, *more):
        torch.manual_seed(3)
        given = dict(attn_mask=mask) | dict(zip(named, more))
        return attention(Q, K, V, **given, enable_gqa=enable_gqa, **options)

    def theirs(Q, K, V, *more):
        more = dict(attn_mask=mask) | dict(zip(named, more))
        rest = {name: y for name, y in options.items() if name not in ("is_causal", "dropout_p")}
        return plain(Q, K, V, more.pop("attn_mask"), R, options.get("is_causal", False), **more, **rest)

    return tuple(x), ours, theirs


def errors(case):
    """Of each derivative, how far it is from that of the definition."""
    x, ours, theirs = problem(case)
    O = theirs(*x)
    x_dot, x_bar, O_bars = (tuple(numbers(*(y.shape for y in z), seed=i, requires_grad=False))
                            for i, z in enumerate((x, x, (O, O)), 1))
    rest = x, x_dot, x_bar, *O_bars
    want = by_autograd(theirs, *rest)
    return {f.__name__: apart(f(ours, *rest), want[f.__name__]) for f in DERIVATIVES}


@pytest.mark.parametrize("cut", [(512, 2**20, 2**20), (3, 40, 12)])
@pytest.mark.parametrize("case", [*CASES, *DROPPED])
def test_each_derivative(case, cut):
    with cut_into(*cut):
        found = errors(case)
    assert max(found.values()) <= DROP_IN, found


@pytest.mark.parametrize("letters", ["".join(w) for w in itertools.product("GJ", repeat=3)])
@pytest.mark.parametrize("case", ONE)
def test_the_third_derivative(case, letters):
    x, ours, theirs = problem(case)
    x_dot = tuple(numbers(*(y.shape for y in x), seed=1, requires_grad=False))

    def changed(f, letter):
        if letter == "G":
            return torch.func.grad(lambda *x: uneven(*parts(f(*x))), tuple(range(len(x))))
        return lambda *x: jvp(lambda *x: uneven(*parts(f(*x))), x, x_dot)[1]

    for letter in letters:
        ours, theirs = changed(ours, letter), changed(theirs, letter)
    assert near(ours(*x), theirs(*x), 1e-11)


CHECKED = {
    "a cap": ((((1, 2, 2), (1, 3, 2), (1, 3, 1)), {}), dict(softcap=0.8)),
    "a window": ((((1, 3, 2), (1, 4, 2), (1, 4, 1)), {}), dict(window=(1, 1))),
    "sinks and slopes": ((((2, 2, 2), (1, 3, 2), (1, 3, 1)), dict(sinks=(2,), alibi_slopes=(2,))), dict(enable_gqa=True)),
}


@pytest.mark.parametrize("case", CHECKED)
def test_gradcheck_and_gradgradcheck_in_both_modes(case):
    (shapes, named), options = CHECKED[case]
    x = numbers(*shapes, *named.values())

    def f(Q, K, V, *more):
        return attention(Q, K, V, **dict(zip(named, more)), **options)

    assert gradcheck(f, x, check_forward_ad=True)
    assert gradgradcheck(f, x, check_fwd_over_rev=True, check_rev_over_rev=True)


MAPS = {
    "value": lambda f, x_dot: f,
    "gradient": lambda f, x_dot: torch.func.grad(lambda *x: uneven(f(*x)), (0, 1, 2, 3, 4)),
    "tangent": lambda f, x_dot: lambda *x: jvp(f, x, x_dot),
    "tangent of the gradient": lambda f, x_dot: lambda *x: jvp(MAPS["gradient"](f, x_dot), x, x_dot),
}


@pytest.mark.parametrize("dims", [(0,) * 5, (None, None, None, 0, None), (None, 1, None, None, -1), (0, 0, 0, None, None)])
@pytest.mark.parametrize("map", MAPS)
def test_vmap_of_each(map, dims):
    x = numbers((3, 4, 2), (3, 5, 2), (3, 5, 2), (3,), (3,), requires_grad=False)
    x_dot = tuple(numbers(*(y.shape for y in x), seed=1, requires_grad=False))
    many = [y if dim is None else torch.stack([y, y.sin(), 1 - y], dim) for y, dim in zip(x, dims)]

    def of(f):
        return lambda Q, K, V, s, a: f(Q, K, V, sinks=s, alibi_slopes=a, softcap=2.0, window=(3, 2))

    got, expected = (vmap(MAPS[map](of(f), x_dot), dims)(*many) for f in (attention, plain))
    assert near(got, expected)


def test_the_hessian_of_sinks_and_of_slopes():
    x, ours, theirs = problem("all of them")
    for i in (3, 4):
        def of(f, i=i):
            return hessian(lambda y: uneven(f(*x[:i], y, *x[i + 1 :])))(x[i])

        assert near(of(ours), of(theirs)) and of(ours).any()


# Kernels


def refuse(*_, **__):
    raise AssertionError("not to be called")


FUSED = {
    "sinks": dict(sinks=True),
    "sinks, causal": dict(sinks=True, is_causal=True),
    "a window": dict(window=(3, 1)),
    "a causal window and sinks": dict(sinks=True, window=(2, 0), is_causal=True),
    "slopes": dict(slopes=True),
    "slopes, a window and a mask": dict(slopes=True, window=(4, 4), mask=True),
}


@pytest.mark.parametrize("case", FUSED)
def test_first_derivatives_are_the_work_of_the_kernel(case, monkeypatch):
    """Of the queries, keys, values and sinks; a mask or slopes that move get theirs by strips."""
    options = dict(FUSED[case])
    (s,), (slopes,) = numbers((4,)), numbers((2, 4), seed=1, requires_grad=False)
    mask = numbers((2, 4, 5, 7), requires_grad=False)[0] if options.pop("mask", False) else None
    given = dict(sinks=s) if options.pop("sinks", False) else {}
    given |= dict(alibi_slopes=slopes) if options.pop("slopes", False) else {}
    x = numbers((2, 4, 5, 6), (2, 2, 7, 6), (2, 2, 7, 6))
    moving = [*x, s] if "sinks" in given else x
    causal = options.pop("is_causal", False)
    expected = plain(*x, mask, causal=causal, **given, **options)
    want = torch.autograd.grad(uneven(expected), moving)
    for name in ("forward", "vjp"):
        monkeypatch.setattr(strips, name, refuse)
    for rows in (512, 2):
        with cut_into(rows, 2**12, 12, fewest=rows):
            O = attention(*x, mask, is_causal=causal, enable_gqa=True, **given, **options)
            assert near(O, expected) and near(torch.autograd.grad(uneven(O), moving), want)


@pytest.mark.parametrize("n, m, window", [(4096, 4096, (127, 0)), (4096, 4096, (20, 30)), (500, 9000, (255, 0))])
def test_what_a_window_hides_is_not_computed(n, m, window):
    """Scores that are computed, by strips, by strips that go tile by tile, and by blocks, of all n m."""
    seen, how = sum(window) + 1, How(1.0, left=window[0], right=window[1])
    x = torch.zeros(1, 1, 1)
    Q, K = x.expand(1, n, 1), x.expand(1, m, 1)
    for tiled in (False, True):
        strips = [s for heads in Work(how, Q, K, K, None, arrays=0, tiled=tiled).heads() for s in heads.strips()]
        assert [i for s in strips for i in range(n)[s.rows]] == list(range(n))
        assert sum(s.shape[1] * s.shape[2] for s in strips) <= n * (seen + 128)
    made = list(kernels.blocks(kernels.processor(Q, K, K, None, None, how), how))
    assert [i for rows, *_ in made for i in range(n)[rows]] == list(range(n))
    assert sum(mask.numel() for *_, mask, _ in made) <= n * (seen + 64)


def test_blocks_of_masks_stay_within_a_strip():
    for n, m, heads, window in ((4096, 4096, 1, (127, 0)), (65536, 65536, 8, (None, None)), (1, 65536, 1, (9, None))):
        how = How(1.0, left=window[0], right=window[1], slopes=True)
        assert kernels.block_rows(n, m, heads, how) * heads * min(m, 64 + 128 if window[1] == 0 else m) <= 2**20


def test_sums_of_blocks_are_not_rounded_to_16_bits(monkeypatch):
    monkeypatch.setattr(kernels, "KERNEL", refuse)
    x = [y.bfloat16() for y in numbers((2, 9, 4), (2, 9, 4), (2, 9, 4), requires_grad=False)]
    assert attention(*x, window=(2, 2)).dtype == torch.bfloat16


# Conventions


@pytest.mark.filterwarnings("ignore:Lower right causal bias")
def test_a_window_without_an_end_to_the_left_is_the_lower_right_mask_of_pytorch():
    for n, m in ((4, 7), (7, 4), (5, 5)):
        Q, K, V = numbers((2, n, 4), (2, m, 4), (2, m, 4), requires_grad=False)
        seen = slice(max(n - m, 0), None)  # before, no key is seen: PyTorch has NaN there
        expected = of_pytorch(Q, K, V, causal_lower_right(n, m))[:, seen]
        assert near(attention(Q, K, V, window=(None, 0))[:, seen], expected)


@pytest.mark.parametrize("n, m", [(6, 6), (3, 8)])
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_caps_windows_and_slopes_are_those_of_flex_attention(n, m):
    """The cap comes before what is added; distances and the window count from where the query stands."""
    Q, K, V, slopes = numbers((1, 2, n, 4), (1, 2, m, 4), (1, 2, m, 4), (2,), requires_grad=False)

    def changed(score, b, h, i, j):
        score = 1.5 * torch.tanh(score / 1.5) - slopes[h] * (i + m - n - j).abs()
        return torch.where((j >= i + m - n - 3) & (j <= i + m - n + 1), score, -torch.inf)

    expected = flex_attention(Q, K, V, score_mod=changed)
    assert near(attention(Q, K, V, softcap=1.5, window=(3, 1), alibi_slopes=slopes), expected, 1e-10)


def test_a_head_without_a_sink_has_one_at_minus_infinity():
    x, ours, _ = problem("sinks")
    sinks = torch.full((3,), -torch.inf, dtype=torch.float64).requires_grad_()
    Q = x[0].clone().requires_grad_()
    O = attention(Q, *x[1:3], sinks=sinks)
    dQ, ds = torch.autograd.grad(uneven(O), (Q, sinks), create_graph=True)
    assert near(O, plain(*x[:3])) and not ds.any() and dQ.any()
    assert torch.autograd.grad(uneven(dQ), Q)[0].isfinite().all()


def test_the_value_of_a_sink_is_0_and_its_gradient_is_what_leaves_the_scores():
    """<dO, O> shrinks with the sink: at a large one nothing is left; sum(dA) + ds = 0."""
    Q, K, V, dO = numbers((2, 4, 3), (2, 5, 3), (2, 5, 3), (2, 4, 3), requires_grad=False)
    assert not attention(Q, K, V, sinks=torch.full((2,), 1e4, dtype=torch.float64)).any()
    B, s = (y.requires_grad_() for y in (torch.zeros(2, 4, 5, dtype=torch.float64), torch.ones(2, dtype=torch.float64)))
    dB, ds = torch.autograd.grad(attention(Q, K, V, B, sinks=s), (B, s), dO)
    assert near(dB.sum((-1, -2)), -ds)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sinks_and_slopes_of_float32_beside_16_bits(dtype):
    x, ours, theirs = problem("slopes and sinks of other axes")
    short = [y.to(dtype) for y in x[:3]]
    s, a = (y.float().requires_grad_() for y in x[3:])
    O = attention(*short, sinks=s, alibi_slopes=a, enable_gqa=True)
    ds, da = torch.autograd.grad(O.float().sin().sum(), (s, a))
    wide = [y.double().requires_grad_() for y in (*short, s.detach(), a.detach())]
    want = torch.autograd.grad(theirs(*wide).sin().sum(), wide[3:])
    assert O.dtype == dtype and ds.dtype == da.dtype == torch.float32
    assert near(ds.double(), want[0], 3e-2) and near(da.double(), want[1], 3e-2)


# Mistakes


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_seen_where_it_is(name):
    seen = set()
    with mistake(name, MISTAKES), cut_into(3, 40, 12):
        for case in (*ONE, *KERNELS, "a window, is_causal, fewer keys", "all of them, dropout"):
            seen |= {of for of, error in errors(case).items() if not error <= DROP_IN}
    assert seen == MISTAKES[name].wrong


# Bad input


GOOD = [torch.zeros(shape, dtype=torch.float64) for shape in ((2, 4, 3, 4), (2, 4, 5, 4), (2, 4, 5, 6))]
SIDES = "two whole numbers (left, right) of at least 0, or None for a side without an end"
REFUSED = [
    (ValueError, f"window is (-1, 2); it needs {SIDES}", dict(window=(-1, 2))),
    (ValueError, f"window is (3,); it needs {SIDES}", dict(window=[3])),
    (ValueError, f"window is (1.5, 0); it needs {SIDES}", dict(window=(1.5, 0))),
    (TypeError, f"window is a int; it needs {SIDES}", dict(window=4)),
    (ValueError, "softcap is 0; it needs a finite number above 0, or None for no cap", dict(softcap=0)),
    (ValueError, "softcap is -2.0; it needs a finite number above 0, or None for no cap", dict(softcap=-2.0)),
    (ValueError, "softcap is inf; it needs a finite number above 0, or None for no cap", dict(softcap=torch.inf)),
    (ValueError, "softcap is nan; it needs a finite number above 0, or None for no cap", dict(softcap=torch.nan)),
    (TypeError, "softcap is a Tensor; it needs a number above 0, or None for no cap", dict(softcap=torch.ones(()))),
    (TypeError, "sinks is a float; it needs to be a torch.Tensor", dict(sinks=1.0)),
    (TypeError, "sinks has dtype torch.float32; it needs that of query, torch.float64", dict(sinks=torch.zeros(4))),
    (ValueError, "sinks has 3 heads; it needs shape (4,), a number for each head of query",
     dict(sinks=torch.zeros(3).double())),
    (ValueError, "sinks has shape (); it needs shape (4,), a number for each head of query",
     dict(sinks=torch.zeros(()).double())),
    (ValueError, "alibi_slopes has 1 heads; it needs shape (4,), a number for each head of query",
     dict(alibi_slopes=torch.zeros(2, 1).double())),
    (ValueError, "alibi_slopes has shape (3, 4); it needs a shape that broadcasts to (2, 4)",
     dict(alibi_slopes=torch.zeros(3, 4).double())),
    (ValueError, "alibi_slopes is on meta; it needs to be on cpu, as query is",
     dict(alibi_slopes=torch.zeros(4, device="meta").double())),
]


@pytest.mark.parametrize("error, sentence, options", REFUSED)
def test_one_sentence_says_what_to_do(error, sentence, options):
    with pytest.raises(error) as caught:
        attention(*GOOD, **options)
    assert str(caught.value) == f"scaled_dot_product_attention: {sentence}"


def test_a_head_alone_takes_a_sink_alone():
    x = [y[0, 0] for y in GOOD]
    with pytest.raises(ValueError) as caught:
        attention(*x, sinks=torch.zeros(1).double())
    assert str(caught.value) == (
        "scaled_dot_product_attention: sinks has shape (1,); it needs shape (), since query has no axis of heads")
