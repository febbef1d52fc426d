"""PyTorch's attention with the derivatives that it lacks: conventions, directions, transforms, errors."""

import inspect
import itertools
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
import torch.utils.checkpoint
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.backends import mha
from torch.func import hessian, jacfwd, jacrev, jvp, vmap
from torch.nn.attention.bias import causal_upper_left

import attnmath.torch
from attnmath.torch import kernels, patched_attention, strips
from attnmath.torch import scaled_dot_product_attention as attention
from by_definition import plain

ALL = (0, 1, 2, 3)


def numbers(*shapes, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(**options) for shape in shapes]


def head(**options):
    """Q, K, V, B and directions of the same shapes."""
    shapes = (2, 3, 4), (2, 5, 4), (2, 5, 6), (3, 5)
    return numbers(*shapes, **options), numbers(*shapes, seed=1, requires_grad=False)


def near(a, b, tolerance=1e-12):
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(near, a, b))
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return not a.numel() or abs(a - b).max() <= tolerance * (1 + abs(b).max())


def same(change):
    """What is made of our function is what is made of the definition."""
    return near(change(attention), change(plain))


def uneven(*outputs):
    """A number that depends on each entry in its own way."""
    return sum((torch.linspace(1, 2, y.numel(), dtype=y.dtype).view(y.shape) * y).sin().sum() for y in outputs)


def test_the_signature_is_that_of_pytorch_and_more_by_name():
    signature = inspect.signature(attention)
    names = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    assert str(inspect.Signature(names)) == (
        "(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False,"
        " *, softcap=None, sinks=None, backend=None, window=None, alibi_slopes=None)"
    )


CONVENTIONS = {
    "two axes": dict(shapes=((3, 4), (5, 4), (5, 4))),
    "three axes": dict(shapes=((2, 3, 4), (2, 5, 4), (2, 5, 6))),
    "five axes": dict(shapes=((2, 1, 3, 7, 4), (2, 2, 1, 5, 4), (1, 2, 3, 5, 4))),
    "leading axes that broadcast": dict(shapes=((2, 1, 3, 4), (3, 5, 4), (5, 6))),
    "causal, more queries": dict(shapes=((2, 7, 4), (2, 5, 4), (2, 5, 4)), is_causal=True),
    "causal, more keys": dict(shapes=((2, 5, 4), (2, 7, 4), (2, 7, 4)), is_causal=True),
    "scale": dict(shapes=((3, 4), (5, 4), (5, 4)), scale=0.3),
    "scale 0": dict(shapes=((3, 4), (5, 4), (5, 4)), scale=0),
    "scale below 0": dict(shapes=((3, 4), (5, 4), (5, 4)), scale=-2.0),
    "a mask": dict(shapes=((2, 3, 3, 4), (2, 3, 5, 4), (2, 3, 5, 4)), mask=(3, 5)),
    "a mask for each": dict(shapes=((2, 3, 3, 4), (2, 3, 5, 4), (2, 3, 5, 4)), mask=(2, 3, 3, 5)),
    "a mask of the keys": dict(shapes=((2, 3, 3, 4), (2, 3, 5, 4), (2, 3, 5, 4)), mask=(2, 1, 1, 5)),
    "a mask of the queries": dict(shapes=((2, 3, 3, 4), (2, 3, 5, 4), (2, 3, 5, 4)), mask=(3, 1)),
    "a mask of heads": dict(shapes=((2, 2, 3, 3, 4), (2, 2, 3, 5, 4), (2, 2, 3, 5, 4)), mask=(2, 1, 3, 3, 5)),
    "shared keys": dict(shapes=((2, 6, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4)), enable_gqa=True),
    "shared keys, masks": dict(shapes=((6, 3, 4), (2, 5, 4), (2, 5, 4)), mask=(6, 3, 5), enable_gqa=True),
    "shared keys, one mask": dict(shapes=((2, 6, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4)), mask=(2, 1, 3, 5), enable_gqa=True),
    "no keys": dict(shapes=((2, 3, 4), (2, 0, 4), (2, 0, 6))),
    "no queries": dict(shapes=((2, 0, 4), (2, 5, 4), (2, 5, 6))),
    "no heads": dict(shapes=((0, 3, 4), (0, 5, 4), (0, 5, 6))),
}


@pytest.mark.parametrize("boolean", [False, True])
@pytest.mark.parametrize("case", CONVENTIONS)
def test_conventions_are_those_of_pytorch(case, boolean):
    options = dict(CONVENTIONS[case])
    x, mask = numbers(*options.pop("shapes")), options.pop("mask", None)
    if mask is None and boolean:
        return
    if mask is not None:
        (mask,) = numbers(mask, requires_grad=not boolean)
        x, mask = (x, mask > -0.7) if boolean else ([*x, mask], mask)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(*x[:3], mask, **options)
    O = attention(*x[:3], mask, **options)
    assert near(O, expected)
    if expected.requires_grad and O.numel():
        assert near(grad(uneven(O), x), grad(uneven(expected), x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_dtype_stays_and_numbers_of_16_bits_are_summed_in_float32(dtype):
    (Q, K, V, _), tangents = head(requires_grad=False)
    x, x_dot = ([y.to(dtype) for y in z] for z in ((Q, K, V), tangents[:3]))
    wide = [y.double() for y in x], [y.double() for y in x_dot]
    O, O_dot = jvp(attention, tuple(x), tuple(x_dot))
    expected = jvp(plain, *map(tuple, wide))
    rounding = 4 * torch.finfo(dtype).eps
    assert O.dtype == O_dot.dtype == dtype
    assert near(O.double(), expected[0], rounding) and near(O_dot.double(), expected[1], rounding)


def test_a_mask_of_float32_beside_16_bits():
    (Q, K, V, B), _ = head(requires_grad=False)
    x, B = [y.bfloat16() for y in (Q, K, V)], B.float().requires_grad_()
    O = attention(*x, B)
    (dB,) = grad(O.sum(), B)
    (expected,) = grad(plain(*(y.double() for y in x), B).sum(), B)
    assert O.dtype == torch.bfloat16 and dB.dtype == torch.float32 and near(dB, expected, 1e-2)


def test_booleans_and_numbers_of_numpy():
    (Q, K, V, _), _ = head()
    O = attention(Q, K, V, is_causal=np.True_, scale=np.float32(0.5), dropout_p=np.int64(0), enable_gqa=np.False_)
    assert near(O, plain(Q, K, V, causal=True, scale=0.5))


def test_nothing_is_asked_of_float64_but_what_it_can():
    """The first derivative of a long row, where a sum in float32 would show."""
    x = numbers((1, 2, 3), (1, 3000, 3), (1, 3000, 3))
    assert near(grad(uneven(attention(*x)), x), grad(uneven(plain(*x)), x))


# Directions


CHECKED = {
    "plain": dict(shapes=((2, 2, 2), (2, 3, 2), (2, 3, 1))),
    "causal": dict(shapes=((1, 2, 2, 2), (1, 2, 2, 2), (1, 2, 2, 2)), is_causal=True),
    "a mask": dict(shapes=((2, 1, 2), (2, 3, 2), (2, 3, 2), (2, 1, 3))),
    "a mask that broadcasts": dict(shapes=((1, 2, 2), (2, 2, 2), (2, 2, 1), (2,))),
    "dropout": dict(shapes=((1, 2, 2), (1, 4, 2), (1, 4, 1)), dropout_p=0.4),
    "shared keys": dict(shapes=((2, 2, 2), (1, 3, 2), (1, 3, 2)), enable_gqa=True),
}


@pytest.mark.parametrize("case", CHECKED)
def test_gradcheck_and_gradgradcheck_in_both_modes(case):
    options = dict(CHECKED[case])
    x = numbers(*options.pop("shapes"))

    def f(*x):
        torch.manual_seed(2)
        return attention(*x, **options)

    assert gradcheck(f, x, check_forward_ad=True)
    assert gradgradcheck(f, x, check_fwd_over_rev=True, check_rev_over_rev=True)


def word_of(letters, f, x_dot):
    """f, then a gradient for each G, a tangent for each J, of a number made of what is there."""
    for letter in letters:
        f = backward(f) if letter == "G" else forward(f, x_dot)
    return f


def backward(f):
    return torch.func.grad(lambda *x: uneven(*parts(f(*x))), ALL)


def forward(f, x_dot):
    return lambda *x: jvp(lambda *x: uneven(*parts(f(*x))), x, x_dot)[1]


def refuse(*_, **__):
    raise AssertionError("not to be called")


def parts(y):
    return y if isinstance(y, tuple) else (y,)


@pytest.mark.parametrize("letters", ["".join(w) for n in (1, 2, 3) for w in itertools.product("GJ", repeat=n)])
def test_each_direction_over_each_other_up_to_the_third(letters):
    x, x_dot = map(tuple, head(requires_grad=False))
    assert same(lambda f: word_of(letters, f, x_dot)(*x))


@pytest.mark.parametrize("one, other", [*itertools.product((jacrev, jacfwd), repeat=2)])
def test_jacobians_of_jacobians(one, other):
    (Q, K, V, B), _ = head(requires_grad=False)
    assert same(lambda f: one(other(lambda B: uneven(f(Q, K, V, B))))(B))


def test_hessian_with_a_boolean_mask_and_an_empty_row():
    (Q, K, V, B), _ = head(requires_grad=False)
    mask = (B > -0.5) & (torch.arange(3) != 1)[:, None]
    H = hessian(lambda Q: uneven(attention(Q, K, V, mask)))(Q)
    assert near(H, hessian(lambda Q: uneven(plain(Q, K, V, mask)))(Q)) and not H[:, 1].any() and H.any()


@pytest.mark.parametrize("letters", ["GGG", "JGJ", "JJG"])
@pytest.mark.parametrize("case", ["causal", "boolean mask", "dropout", "shared keys"])
def test_the_third_derivative_of_each_kind(case, letters):
    shapes = (1, 4, 3, 2), (1, 2, 5, 2), (1, 2, 5, 3)
    x, x_dot, mask, R = numbers(*shapes, requires_grad=False), numbers(*shapes, seed=1, requires_grad=False), None, None
    if case == "boolean mask":
        mask = numbers((4, 3, 5), requires_grad=False)[0] > 0
        mask[1, 2] = False
    if case == "dropout":
        x, x_dot = ([y[:, :2] for y in z] for z in (x, x_dot))
        R = factors(*x[:2], 7, dropout_p=0.4)

    def ours(Q, K, V):
        torch.manual_seed(7)
        options = dict(dropout_p=0.4) if R is not None else dict(enable_gqa=True, is_causal=case == "causal")
        return attention(Q, K, V, mask, **options)

    def expected(Q, K, V):
        return plain(Q, K, V, mask, R, causal=case == "causal")

    def backward_of_three(f):
        return torch.func.grad(lambda *x: uneven(*parts(f(*x))), (0, 1, 2))

    for letter in letters:
        change = backward_of_three if letter == "G" else lambda f: forward(f, tuple(x_dot))
        ours, expected = change(ours), change(expected)
    assert near(ours(*x), expected(*x))


def test_the_third_derivative_by_autograd_alone():
    x, _ = head()

    def third(f):
        y = f(*x)
        for _ in range(3):
            y = grad(uneven(*parts(y)), x, create_graph=True)
        return y

    assert same(third)


def test_dual_numbers():
    x, x_dot = map(tuple, head(requires_grad=False))
    with forward_ad.dual_level():
        got = forward_ad.unpack_dual(attention(*map(forward_ad.make_dual, x, x_dot)))
    assert near((got.primal, got.tangent), jvp(plain, x, x_dot))


def test_dual_numbers_over_and_under_a_gradient():
    x, x_dot = head()
    hvp = jvp(torch.func.grad(lambda *x: uneven(plain(*x)), ALL), tuple(x), tuple(x_dot))[1]
    with forward_ad.dual_level():
        dual = [forward_ad.make_dual(y, y_dot) for y, y_dot in zip(x, x_dot)]
        loss = uneven(attention(*dual))
        under = grad(forward_ad.unpack_dual(loss).tangent, x, retain_graph=True)
        over = tuple(forward_ad.unpack_dual(y).tangent for y in grad(loss, dual, create_graph=True))
    assert near(under, hvp) and near(over, hvp)


def test_a_gradient_of_autograd_through_a_tangent_of_func():
    """As a network is trained on an objective that has a tangent."""
    x, x_dot = head()

    def both(f):
        return grad(uneven(*jvp(f, tuple(x), tuple(x_dot))), x)

    assert same(both)


def test_a_tangent_that_is_held_still_costs_no_second_derivative(monkeypatch):
    monkeypatch.setattr(strips, "second", refuse)
    x, x_dot = head()

    def stopped(f):
        O, O_dot = jvp(f, tuple(x), tuple(x_dot))
        return grad(uneven(O - O_dot.detach()), x)

    assert same(stopped)


@pytest.mark.parametrize("moving", ALL)
def test_one_argument_moves_and_the_others_do_not(moving):
    x, x_dot = head(requires_grad=False)

    def of(f):
        return lambda y: f(*(y if i == moving else z for i, z in enumerate(x)))

    for change in (lambda f: jacfwd(f), lambda f: jacrev(f), lambda f: hessian(lambda y: uneven(f(y)))):
        assert near(change(of(attention))(x[moving]), change(of(plain))(x[moving]))
    still = tuple(y if i == moving else torch.zeros_like(y) for i, y in enumerate(x_dot))
    assert same(lambda f: jvp(backward(f), tuple(x), still))


# Mapped over


MAPS = {
    "value": lambda f, x_dot: f,
    "gradient": lambda f, x_dot: backward(f),
    "tangent": lambda f, x_dot: lambda *x: jvp(f, x, x_dot),
    "tangent of the gradient": lambda f, x_dot: lambda *x: jvp(backward(f), x, x_dot),
    "gradient of the tangent": lambda f, x_dot: backward(lambda *x: jvp(f, x, x_dot)[1]),
    "tangent of the tangent": lambda f, x_dot: lambda *x: jvp(lambda *x: jvp(f, x, x_dot), x, x_dot)[1][1],
}
dims = pytest.mark.parametrize("dims", [(0, 0, 0, 0), (0, None, None, None), (None, 1, None, -1), (None, None, -1, 0)])


def batch(x, dims):
    return tuple(y if dim is None else torch.stack([y, y.sin(), 1 - y], dim) for y, dim in zip(x, dims))


@dims
@pytest.mark.parametrize("map", MAPS)
def test_vmap_of_each(map, dims):
    x, x_dot = head(requires_grad=False)
    assert same(lambda f: vmap(MAPS[map](f, tuple(x_dot)), dims)(*batch(x, dims)))


@dims
@pytest.mark.parametrize("map", MAPS)
def test_each_of_vmap(map, dims):
    x, x_dot = (batch(y, dims) for y in head(requires_grad=False))
    assert same(lambda f: MAPS[map](vmap(f, dims), x_dot)(*x))


def test_vmap_of_vmap():
    Q, K = numbers((3, 2, 4, 5), (6, 2, 7, 5), requires_grad=False)
    assert same(lambda f: vmap(vmap(lambda Q, K: f(Q, K, K), (None, 0)), (0, None))(Q, K))


# Dropout


def factors(Q, K, seed, **options):
    """The factors that a call draws, read off it: its output where V is the identity, over the weights."""
    torch.manual_seed(seed)
    V = torch.eye(K.shape[-2], dtype=Q.dtype)
    return attention(Q, K, V, **options) / plain(Q, K, V)


def test_dropout_keeps_each_weight_with_its_probability():
    Q, K = numbers((2, 40, 4), (2, 50, 4), requires_grad=False)
    R = factors(Q, K, 0, dropout_p=0.3)
    kept = abs(R - 1 / 0.7) < 1e-9
    assert (kept | (R == 0)).all() and 0.66 < kept.double().mean() < 0.74  # 4,000 draws: five deviations
    assert not torch.equal(R[0], R[1]) and not torch.equal(R, factors(Q, K, 1, dropout_p=0.3))


def test_dropout_is_that_of_its_factors_in_each_direction():
    (Q, K, V, B), x_dot = head(requires_grad=False)
    x, x_dot, R = (Q, K, V), tuple(x_dot[:3]), factors(Q, K, 5, dropout_p=0.5)
    for change in MAPS.values():

        def three(f, change=change):
            return change(lambda Q, K, V, B: f(Q, K, V), (*x_dot, 0 * B))(*x, B)

        def dropped(*x):
            torch.manual_seed(5)
            return attention(*x, dropout_p=0.5)

        assert near(three(dropped), three(lambda *x: plain(*x, R=R)))


def test_dropout_of_everything():
    x, _ = head()
    O = attention(*x[:3], dropout_p=1.0)
    assert not O.any() and not any(y.any() for y in grad(O.sum(), x[:3]))


def test_each_call_draws_anew_and_the_seed_decides():
    x, _ = head()
    torch.manual_seed(0)
    first, second = (attention(*x[:3], dropout_p=0.5) for _ in range(2))
    torch.manual_seed(0)
    assert torch.equal(first, attention(*x[:3], dropout_p=0.5)) and not torch.equal(first, second)


@pytest.mark.parametrize("change", MAPS)
def test_dropout_mapped_over_differs_where_it_is_to(change):
    x, x_dot = head(requires_grad=False)
    same = batch(x, (None, None, None, None))
    f = MAPS[change](lambda *x: attention(*x, dropout_p=0.5), tuple(x_dot))

    def over(randomness):
        torch.manual_seed(0)
        y = vmap(lambda i: f(*same), randomness=randomness)(torch.arange(3))
        return parts(y)[0] if change != "tangent of the gradient" else y[1][0]

    different, equal = over("different"), over("same")
    assert not torch.equal(different[0], different[1]) and not torch.equal(different[1], different[2])
    assert torch.equal(equal[0], equal[1]) and torch.equal(equal[1], equal[2])
    with pytest.raises(RuntimeError, match="randomness"):
        over("error")


def test_dropout_is_the_same_for_a_batch_that_is_to_share_it():
    (Q, K, V, _), _ = head(requires_grad=False)
    R = factors(Q, K, 3, dropout_p=0.5)
    for dims in ((0, 0, 0), (None, None, 0)):
        torch.manual_seed(3)
        x = batch((Q, K, V), dims)
        got = vmap(lambda *x: attention(*x, dropout_p=0.5), dims, randomness="same")(*x)
        assert near(got, vmap(lambda *x: plain(*x, R=R), dims)(*x))


def test_what_is_computed_again_draws_again():
    x, _ = head()
    torch.manual_seed(0)
    expected = grad(uneven(attention(*x, dropout_p=0.5)), x)
    torch.manual_seed(0)
    again = torch.utils.checkpoint.checkpoint(lambda *x: attention(*x, dropout_p=0.5), *x, use_reentrant=False)
    assert near(grad(uneven(again), x), expected)


# Kernels


def test_first_derivatives_are_the_work_of_the_kernel(monkeypatch):
    monkeypatch.setattr(strips, "forward", refuse)
    monkeypatch.setattr(strips, "vjp", refuse)
    x = numbers((2, 4, 3, 6), (2, 2, 5, 6), (2, 2, 5, 6), (2, 1, 3, 5))
    mask, padding = x[3].detach(), (x[3][..., :1, :] > 0).detach()
    for given, options in ((mask, {}), (padding, {}), (None, {}), (None, dict(is_causal=True)), (None, dict(scale=-1.0))):
        O = attention(*x[:3], given, enable_gqa=True, **options)
        assert near(O, plain(*x[:3], given, causal="is_causal" in options, scale=options.get("scale")))
        assert all(y.any() for y in grad(O.sum(), x[:3]))


def test_a_tangent_does_not_compute_the_output_twice(monkeypatch):
    monkeypatch.setattr(kernels, "forward", refuse)
    x, x_dot = map(tuple, head(requires_grad=False))
    assert near(jvp(attention, x, x_dot), jvp(plain, x, x_dot))
    batches = batch(x, (0,) * 4), batch(x_dot, (0,) * 4)
    assert near(jvp(vmap(attention), *batches), jvp(vmap(plain), *batches))
    assert same(lambda f: vmap(lambda *x: jvp(f, x, x_dot))(*batches[0]))


@pytest.mark.parametrize("finite", [-1e9, -1e30])
def test_rows_that_a_large_finite_number_masks(finite):
    """The kernel keeps L alone, and L has no digits left for the number of the keys."""
    x, _ = head()
    mask = torch.zeros(3, 5, dtype=torch.float64)
    mask[1] = finite
    assert near(grad(uneven(attention(*x[:3], mask)), x[:3]), grad(uneven(plain(*x[:3], mask)), x[:3]))


@pytest.mark.parametrize("boolean", [False, True])
@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (2, 3, 1)])
def test_a_row_that_may_attend_to_nothing_gives_0_and_passes_0_back(shape, boolean):
    (Q, K, _, _), _ = head()
    (V,) = numbers((2, 5, 4), seed=3)
    keep = torch.ones(shape, dtype=torch.bool)
    keep[..., -1, :] = False
    mask = keep if boolean else torch.zeros(shape, dtype=torch.float64).masked_fill(~keep, -torch.inf)
    O = attention(Q, K, V, mask)
    assert near(O, plain(Q, K, V, mask)) and not O[..., -1, :].any()
    got = grad(uneven(O), (Q, K, V), create_graph=True)
    assert near(got, grad(uneven(plain(Q, K, V, mask)), (Q, K, V))) and not got[0][..., -1, :].any()
    assert all(y.isfinite().all() for y in grad(uneven(*got), (Q, K, V)))


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("masked", [False, True])
def test_what_is_no_number_does_not_become_0(number, masked):
    """The kernel gives 0 for a query that is not finite."""
    (Q, K, _, _), _ = head(requires_grad=False)
    (V,) = numbers((2, 5, 4), seed=3, requires_grad=False)
    mask = None
    if masked:
        mask = torch.zeros(3, 5, dtype=torch.float64)
        mask[2] = -torch.inf
    Q[:, 1] = number
    O = attention(Q, K, V, mask)
    assert O[:, 1].isnan().all() and O[:, 0].isfinite().all() and (not O[:, 2].any()) == masked


def test_a_row_of_the_kernel_that_is_0_is_not_done_again(monkeypatch):
    monkeypatch.setattr(strips, "forward", refuse)
    (Q, K, _, _), _ = head(requires_grad=False)
    (V,) = numbers((2, 5, 4), seed=3, requires_grad=False)
    mask = torch.zeros(3, 5, dtype=torch.float64)
    mask[1] = -torch.inf
    assert near(attention(Q, K, V, mask), plain(Q, K, V, mask))
    Q[:, 0] = 0
    assert near(attention(Q, K, V, is_causal=True), plain(Q, K, V, causal=True))


@pytest.mark.parametrize("version", ["without the kernel", "0 / 0 in an empty row"])
def test_versions_of_pytorch(version, monkeypatch):
    x = numbers((2, 3, 4), (2, 5, 4), (2, 5, 4))
    mask = torch.zeros(3, 5, dtype=torch.float64)
    mask[1] = -torch.inf
    kernel = kernels.KERNEL

    def nan(*arguments, **options):
        return tuple(torch.where(y == 0, torch.nan, y) for y in kernel(*arguments, **options))

    monkeypatch.setattr(kernels, "KERNEL", None if version == "without the kernel" else nan)
    assert same(lambda f: (f(*x, mask).detach(), *grad(uneven(f(*x, mask)), x)))


def test_elsewhere_the_first_derivatives_are_those_of_the_public_function(monkeypatch):
    """On a CUDA device; here its place is taken by the processor."""
    monkeypatch.setattr(kernels, "processor", lambda *_: None)
    monkeypatch.setattr(kernels, "accelerator", lambda *_: True)
    monkeypatch.setattr(strips, "forward", refuse)
    monkeypatch.setattr(strips, "vjp", refuse)
    x = numbers((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4))
    for options in ({}, dict(is_causal=True), dict(scale=0.3)):
        O, expected = attention(*x, **options), plain(*x, None, None, "is_causal" in options, options.get("scale"))
        got = grad(uneven(O), x, create_graph=True)
        assert near(O, expected) and near(got, grad(uneven(expected), x, create_graph=True))
        assert near(grad(uneven(*got[:1]), x), grad(uneven(grad(uneven(expected), x[0], create_graph=True)[0]), x))


@pytest.mark.parametrize("layout", ["columns", "heads last", "expanded", "every second"])
def test_tensors_that_do_not_lie_in_a_row(layout):
    def laid(x):
        if layout == "columns":
            return x.mT.contiguous().mT
        if layout == "heads last":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        return x[:, :1].expand(x.shape) if layout == "expanded" else x.repeat_interleave(2, -1)[..., ::2]

    x = numbers((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 5), (2, 3, 4, 6), (2, 3, 4, 5), requires_grad=False)
    *x, dO = map(laid, x)
    x = [y.requires_grad_() for y in x]
    for arguments in (x, x[:3], [*x[:3], x[3].detach()]):
        moved = [y for y in arguments if y.requires_grad]
        got, expected = (grad(f(*arguments), moved, dO, create_graph=True) for f in (attention, plain))
        assert near(got, expected)
        assert near(grad(uneven(*got), moved), grad(uneven(*expected), moved))


@pytest.mark.parametrize("which", (0, 1, 2))
def test_rows_that_overlap(which):
    """The kernel of some versions reads past the end."""
    x = numbers((1, 1, 5, 16), (1, 1, 7, 16), (1, 1, 7, 16), requires_grad=False)
    (row,) = numbers((30,), seed=1, requires_grad=False)
    x[which] = row.unfold(0, 16, 1)[: x[which].shape[-2]][None, None]
    x = [y.requires_grad_() for y in x]
    assert same(lambda f: grad(uneven(f(*x)), x)) and near(attention(*x), plain(*x))


def test_another_default_device():
    x, _ = head()

    def second():
        torch.manual_seed(0)
        first = grad(attention(*x, dropout_p=0.5).sin().sum(), x, create_graph=True)
        return first + grad(sum(y.sin().sum() for y in first), x)

    expected = second()
    with torch.device("meta"):
        got = second()
    assert near(got, expected)


def test_arguments_are_left_as_they_are():
    x, x_dot = head(requires_grad=False)
    before = [y.clone() for y in (*x, *x_dot)]
    jvp(backward(attention), tuple(x), tuple(x_dot))
    assert all(map(torch.equal, (*x, *x_dot), before))


def test_a_gradient_of_the_mask_alone():
    (Q, K, V, B), _ = head(requires_grad=False)
    for shape in ((5,), (3, 1), (2, 1, 5), (1, 1, 1)):
        mask = B.new_ones(shape).requires_grad_()
        assert near(grad(uneven(attention(Q, K, V, mask)), mask), grad(uneven(plain(Q, K, V, mask)), mask))


# Surroundings


def test_compiled_it_gives_the_same():
    x, x_dot = head()

    def f(*x):
        return 2 * attention(*(y + 1 for y in x)).cos()

    compiled = torch.compile(f, backend="eager")
    O, expected = compiled(*x), f(*x)
    assert torch.equal(O, expected)
    got, expected = (grad(uneven(y), x, create_graph=True) for y in (O, expected))
    assert near(got, expected) and near(grad(uneven(*got), x), grad(uneven(*expected), x))
    x = [y.detach() for y in x]
    tangent = torch.compile(lambda x, x_dot: jvp(f, tuple(x), tuple(x_dot)), backend="eager")
    assert near(tangent(x, x_dot), jvp(f, tuple(x), tuple(x_dot)))


def test_autocast_casts_as_for_the_function_of_pytorch():
    x, _ = head()
    x = [y.detach().float().requires_grad_() for y in x]
    with torch.autocast("cpu", torch.bfloat16):
        O, expected = attention(*x), F.scaled_dot_product_attention(*x)
        assert O.dtype == expected.dtype == torch.bfloat16 and near(O, expected, 0.02)
        assert attention(*(y.double() for y in x)).dtype == torch.float64
        got = grad(uneven(O.float()), x, create_graph=True)
        second = grad(uneven(*got), x)
    assert {y.dtype for y in (*got, *second)} == {torch.float32}
    cast = [y.bfloat16() for y in x]
    without = grad(uneven(*grad(uneven(attention(*cast).float()), x, create_graph=True)), x)
    assert near(second, without, 0.0)


def test_mixed_dtypes_under_autocast():
    (Q, K, V, B), _ = head(requires_grad=False)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(Q.float(), K.half(), V.bfloat16(), B.float()).dtype == torch.bfloat16


def test_patched_attention():
    before = F.scaled_dot_product_attention
    with patched_attention() as ours:
        assert F.scaled_dot_product_attention is ours is attention
        with patched_attention():
            pass
        assert F.scaled_dot_product_attention is attention
    assert F.scaled_dot_product_attention is before
    with pytest.raises(ZeroDivisionError), patched_attention():
        raise ZeroDivisionError
    assert F.scaled_dot_product_attention is before


def test_a_layer_of_pytorch_has_second_derivatives_when_patched():
    layer = torch.nn.MultiheadAttention(6, 3, batch_first=True, dtype=torch.float64)
    (x,) = numbers((2, 5, 6))

    def second(**options):
        (first,) = grad(uneven(layer(x, x, x, **options)[0]), x, create_graph=True)
        return grad(uneven(first), x)

    with patched_attention():
        got = second(need_weights=False)
    assert near(got, second(need_weights=True))
    with pytest.raises(RuntimeError, match="derivative for"):
        second(need_weights=False)


ENCODER = dict(d_model=6, nhead=2, dim_feedforward=8, dropout=0.0, batch_first=True, dtype=torch.float64)
LAYERS = {
    "an encoder": lambda: torch.nn.TransformerEncoderLayer(**ENCODER),
    "two encoders": lambda: torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(**ENCODER), 2),
    "attention": lambda: Alone(6, 2, batch_first=True, dtype=torch.float64),
}


class Alone(torch.nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("frozen", [True, False])
def test_a_layer_of_pytorch_in_eval_has_a_tangent_when_patched(kind, frozen):
    """Its fast path, which it takes where nothing needs a gradient, has none."""
    layer = LAYERS[kind]().eval().requires_grad_(not frozen)
    x, x_dot = numbers((2, 5, 6), (2, 5, 6), requires_grad=False)
    with torch.set_grad_enabled(frozen):
        with pytest.raises(NotImplementedError, match="forward AD"):
            jvp(layer, (x,), (x_dot,))
        with patched_attention():
            got = jvp(layer, (x,), (x_dot,))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), slow_path():
            assert near(got, jvp(layer, (x,), (x_dot,)))


@contextmanager
def slow_path(on=False):
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(on)
    yield
    mha.set_fastpath_enabled(before)


@pytest.mark.parametrize("on", [True, False])
def test_the_fast_path_is_as_before_afterwards(on):
    with slow_path(on):
        with pytest.raises(ZeroDivisionError), patched_attention():
            with patched_attention():
                assert not mha.get_fastpath_enabled()
            assert not mha.get_fastpath_enabled()
            raise ZeroDivisionError
        assert mha.get_fastpath_enabled() == on


def test_without_a_graph():
    x, x_dot = head()
    with torch.inference_mode():
        assert attention(*x).is_inference() and near(attention(*x), plain(*x).detach())
    with torch.no_grad():
        assert not attention(*x).requires_grad


def test_it_is_imported_when_it_is_asked_for():
    code = ("import sys, attnmath.torch as t; print('torch._dynamo' in sys.modules, t.__all__);"
            " t.patched_attention; print('torch._dynamo' in sys.modules)")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    names = ["load_weights", "patched_attention", "ring_attention", "scaled_dot_product_attention", "weights_from"]
    assert out == f"False {names}\nTrue\n"
    with pytest.raises(AttributeError, match="no attribute 'attention'"):
        attnmath.torch.attention  # noqa: B018


# What cannot be computed


def x(*shapes, dtype=torch.float64):
    return [torch.zeros(shape, dtype=dtype) for shape in shapes]


GOOD = x((2, 3, 4), (2, 5, 4), (2, 5, 6))
REFUSED = [
    (TypeError, "query is a list; it needs to be a torch.Tensor", lambda: attention([1.0], *GOOD[1:])),
    (TypeError, "query has dtype torch.int64; it needs float64, float32, bfloat16 or float16",
     lambda: attention(*x((3, 4), (5, 4), (5, 4), dtype=torch.int64))),
    (TypeError, "key has dtype torch.float32; it needs that of query, torch.float64",
     lambda: attention(GOOD[0], GOOD[1].float(), GOOD[2])),
    (ValueError, "key is on meta; it needs to be on cpu, as query is",
     lambda: attention(GOOD[0], GOOD[1].to("meta"), GOOD[2])),
    (ValueError, "query is on meta; it needs to be on a device that has its numbers",
     lambda: attention(*(y.to("meta") for y in GOOD))),
    (TypeError, "query is a nested tensor; it needs to be a padded one, with attn_mask for the padding",
     lambda: attention(torch.nested.nested_tensor([torch.zeros(3, 4)], layout=torch.jagged), *GOOD[1:])),
    (TypeError, "query has layout torch.sparse_coo; it needs to be dense; call its to_dense()",
     lambda: attention(GOOD[0].to_sparse(), *GOOD[1:])),
    (ValueError, "query has shape (4,); it needs (..., n, d_k) with d_k > 0", lambda: attention(*x((4,), (5, 4), (5, 4)))),
    (ValueError, "query has shape (3, 0); it needs (..., n, d_k) with d_k > 0",
     lambda: attention(*x((3, 0), (5, 0), (5, 4)))),
    (ValueError, "key has shape (5, 3); it needs (..., m, 4) to match query of shape (3, 4)",
     lambda: attention(*x((3, 4), (5, 3), (5, 4)))),
    (ValueError, "value has shape (6, 4); it needs (..., 5, d_v) to match key of shape (5, 4)",
     lambda: attention(*x((3, 4), (5, 4), (6, 4)))),
    (ValueError, "key has shape (3, 5, 4); it needs leading axes that broadcast against (2,), those of query",
     lambda: attention(*x((2, 3, 4), (3, 5, 4), (3, 5, 4)))),
    (ValueError, "key has shape (2, 5, 4); it needs leading axes that broadcast against (6,), those of query; pass"
     " enable_gqa=True for heads that share keys and values", lambda: attention(*x((6, 3, 4), (2, 5, 4), (2, 5, 4)))),
    (ValueError, "value has shape (3, 5, 4); it needs leading axes that broadcast against (2,), those of query and key",
     lambda: attention(*x((2, 3, 4), (2, 5, 4), (3, 5, 4)))),
    (ValueError, "query has shape (3, 4); it needs (..., H, n, d_k) with d_k > 0",
     lambda: attention(*x((3, 4), (2, 5, 4), (2, 5, 4)), enable_gqa=True)),
    (ValueError, "key has 4 heads; it needs a number of heads that divides the 6 of query, since enable_gqa is True",
     lambda: attention(*x((6, 3, 4), (4, 5, 4), (4, 5, 4)), enable_gqa=True)),
    (ValueError, "value has 3 heads; it needs 2, as key has",
     lambda: attention(*x((6, 3, 4), (2, 5, 4), (3, 5, 4)), enable_gqa=True)),
    (ValueError, "attn_mask has shape (4, 5); it needs a shape that broadcasts to (2, 3, 5)",
     lambda: attention(*GOOD, *x((4, 5)))),
    (ValueError, "attn_mask has shape (1, 2, 3, 5); it needs a shape that broadcasts to (2, 3, 5)",
     lambda: attention(*GOOD, *x((1, 2, 3, 5)))),
    (TypeError, "attn_mask has dtype torch.float32; it needs torch.bool (True: may attend) or that of query,"
     " torch.float64", lambda: attention(*GOOD, *x((3, 5), dtype=torch.float32))),
    (TypeError, "attn_mask is a CausalBias; it needs to be a plain tensor; pass is_causal=True for a mask that"
     " begins at the upper left", lambda: attention(*GOOD, causal_upper_left(3, 5))),
    (ValueError, "attn_mask of shape (3, 5) is given with is_causal=True; it needs one of the two; put the causal"
     " mask into attn_mask, or leave attn_mask out", lambda: attention(*GOOD, *x((3, 5)), is_causal=True)),
    (ValueError, "dropout_p is 1.5; it needs a number in [0, 1]", lambda: attention(*GOOD, dropout_p=1.5)),
    (ValueError, "dropout_p is nan; it needs a number in [0, 1]", lambda: attention(*GOOD, dropout_p=float("nan"))),
    (TypeError, "dropout_p is a NoneType; it needs a number", lambda: attention(*GOOD, dropout_p=None)),
    (TypeError, "scale is a Tensor; it needs a number; multiply query by a tensor instead",
     lambda: attention(*GOOD, scale=torch.ones(()))),
    (ValueError, "scale is inf; it needs a finite number", lambda: attention(*GOOD, scale=float("inf"))),
    (TypeError, "is_causal is a NoneType; it needs True or False", lambda: attention(*GOOD, is_causal=None)),
    (TypeError, "enable_gqa is a int; it needs True or False", lambda: attention(*GOOD, enable_gqa=1)),
]


@pytest.mark.parametrize("error, sentence, call", REFUSED)
def test_one_sentence_says_what_to_do(error, sentence, call):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == f"scaled_dot_product_attention: {sentence}"


def test_the_former_way_to_map_is_refused():
    (Q,) = numbers((2, 3, 4))
    for f in (
        lambda: grad(attention(Q, Q, Q), Q, torch.ones(5, 2, 3, 4, dtype=Q.dtype), is_grads_batched=True),
        lambda: torch.autograd.functional.jacobian(lambda Q: attention(Q, Q, Q), Q, vectorize=True),
    ):
        with pytest.raises(RuntimeError) as caught:
            f()
        assert "use torch.func.vmap, jacrev or jacfwd" in str(caught.value)


def test_a_hook_on_the_output_is_not_called_for_what_goes_to_the_inputs_alone():
    """The gradients are given O to help; in the double backward nothing goes back to it."""
    x = numbers((2, 5, 4), (2, 5, 4), (2, 5, 4))
    called, found = [], []
    for hooked in (True, False):
        O = attention(*x)
        if hooked:
            O.register_hook(lambda dO: called.append(dO))
        (dQ,) = grad(O.sum(), x[:1], create_graph=True)
        found.append(grad(dQ.square().sum(), x))
    assert len(called) == 1 and all(map(torch.equal, *found))
