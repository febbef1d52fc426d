"""Mistakes that show in some problems alone: each is planted, and seen."""

import math

import numpy as np
import pytest
import torch

from attnmath import examine
from attnmath._examine.contract.layouts import AXIS_ORDERS, MORE_ORDERS, axes_of, memory_order
from examined import names


def attention(q, k, v, mask=None, bias=None, causal=False, dropout_mask=None, *, spoil=None):
    """Right in PyTorch, unless spoil changes what it is given or what it has: {"mask": f, "P": f, ...}."""
    spoil = spoil or {}

    def spoiled(name, x):
        return x if x is None or name not in spoil else spoil[name](x)

    r = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(r, 1) for x in (k, v))
    A = q @ k.mT * q.shape[-1] ** -0.5
    A = A if bias is None else A + spoiled("bias", bias)
    A = A if mask is None else A.masked_fill(~spoiled("mask", mask), -math.inf)
    if causal:
        A = A.masked_fill(~torch.ones(A.shape[-2:]).tril().bool(), -math.inf)
    P = spoiled("P", A.softmax(-1))
    P = P if dropout_mask is None else P * spoiled("dropout_mask", dropout_mask)
    return spoiled("O", P @ spoiled("v", v))


def turned(x):
    """Transposed where that can be done unseen."""
    return x.mT if x.shape[-1] == x.shape[-2] else x


def in_order(x):
    """What a kernel reads that takes its argument to be contiguous."""
    if x.is_contiguous():
        return x
    return torch.as_strided(x, x.shape, torch.empty(x.shape).stride())


class Spoiled(torch.autograd.Function):
    """The same output, and dQ halved under a condition on the arguments."""

    @staticmethod
    def forward(ctx, when, *args):
        ctx.when, ctx.args = when, args
        ctx.save_for_backward(*args[:3])
        return attention(*args)

    @staticmethod
    def backward(ctx, do):
        q, k, v = (x.detach().requires_grad_() for x in ctx.saved_tensors)
        with torch.enable_grad():
            dq, dk, dv = torch.autograd.grad(attention(q, k, v, *ctx.args[3:]), (q, k, v), do)
        dq = dq / 2 if ctx.when(q, k, v, *ctx.args[3:]) else dq
        return None, dq, dk, dv, *[None] * (len(ctx.args) - 3)


def half(when):
    def fn(q, k, v, mask=None, causal=False, dropout_mask=None):
        return Spoiled.apply(when, q, k, v, mask, None, causal, dropout_mask)

    return fn


def given(**spoil):
    return lambda q, k, v, **options: attention(q, k, v, **options, spoil=spoil)


PLANTED = {
    "a transposed mask": (given(mask=turned), {"mask"}),
    "a transposed bias": (given(bias=turned), {"bias"}),
    "a transposed dropout": (given(dropout_mask=turned), {"dropout_mask"}),
    "a strided mask": (given(mask=in_order), {"mask"}),
    "a strided bias": (given(bias=in_order), {"bias"}),
    "d_v > d_k": (half(lambda q, k, v, *rest: v.shape[-1] > q.shape[-1]), ()),
    "d_v = n": (half(lambda q, k, v, *rest: v.shape[-1] == q.shape[-2] != k.shape[-2]), ()),
    "many heads": (half(lambda q, k, v, *rest: q.shape[1] > 8), ()),
    "many items": (half(lambda q, k, v, *rest: q.shape[0] > 6), ()),
    "more than 512 keys": (half(lambda q, k, v, *rest: k.shape[-2] > 512), ()),
    "more than 512 queries": (half(lambda q, k, v, *rest: q.shape[-2] > 512), ()),
    "dropout and causal": (half(lambda q, k, v, mask, B, causal, R: causal and R is not None),
                           {"causal", "dropout_mask"}),
    "dropout and a mask": (half(lambda q, k, v, mask, B, causal, R: mask is not None and R is not None),
                           {"mask", "dropout_mask"}),
} | {
    f"heads of {d}": (half(lambda q, k, v, *rest, d=d: q.shape[-1] == d), ()) for d in (8, 32, 64, 80, 96, 128, 192, 256)
} | {
    f"groups of {r}": (half(lambda q, k, v, *rest, r=r: q.shape[1] == r * k.shape[1]), {"groups": None})
    for r in (2, 3, 4, 8)
}


@pytest.mark.parametrize("name", PLANTED)
def test_seen(name):
    fn, options = PLANTED[name]
    options = options if isinstance(options, dict) else {word: word for word in options}
    report = examine(fn, options=options, seed=3, smallest=False)
    assert report.wrong, str(report)


def test_one_maximum_for_all_rows_is_seen():
    def fn(q, k, v):
        A = q @ k.mT * q.shape[-1] ** -0.5
        E = torch.exp(A - A.amax((-1, -2), keepdim=True))
        return E / E.sum(-1, keepdim=True) @ v

    assert examine(fn, seed=3, smallest=False).wrong


def by_strides(readers):
    """Right in PyTorch and in NumPy, where q, k and v are read by their strides or by those of another of one shape."""
    def read(x, other):
        if x.shape != other.shape:
            return x
        if isinstance(x, torch.Tensor):
            return torch.as_strided(x, x.shape, other.stride())
        return np.lib.stride_tricks.as_strided(x, x.shape, other.strides)

    def fn(q, k, v):
        q, k, v = (read(x, dict(q=q, k=k, v=v)[readers.get(name, name)]) for name, x in zip("qkv", (q, k, v)))
        a = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        if isinstance(a, torch.Tensor):
            return a.softmax(-1) @ v
        e = np.exp(a - a.max(-1, keepdims=True))
        return e @ v / e.sum(-1, keepdims=True)

    return fn


BY_ANOTHER = {
    "K by those of V": dict(k="v"), "V by those of K": dict(v="k"), "K and V exchanged": dict(k="v", v="k"),
}


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "hsd"])
@pytest.mark.parametrize("said", BY_ANOTHER)
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_strides_of_another_are_named_and_shown(said, framework, layout):
    fn = by_strides(BY_ANOTHER[said])
    if layout == "bshd":
        fn = (lambda f: lambda *x: f(*(y.swapaxes(1, 2) for y in x)).swapaxes(1, 2))(fn)
    report = examine(fn, framework=framework, layout=layout, seed=3)
    assert names(report) == ["strides_of_another"] and said in report.sentence, str(report)
    assert "smallest case that fails" in str(report) and "k = k." in str(report)


@pytest.mark.parametrize("layout", ["bhsd", "hsd", "sd"])
@pytest.mark.parametrize("letter", "qkv")
def test_an_input_that_is_read_as_if_contiguous_is_named_and_shown(letter, layout):
    def fn(*given):
        q, k, v = (in_order(x) if name == letter else x for name, x in zip("qkv", given))
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v

    report = examine(fn, layout=layout, seed=3)
    assert names(report) == ["input_strides"] and f"({letter.upper()})" in report.sentence, str(report)
    assert "smallest case that fails" in str(report)


@pytest.mark.parametrize("layout", ["bhsd", "hsd"])
@pytest.mark.parametrize("said", [*BY_ANOTHER, ""])
def test_strides_of_another_are_seen_behind_copies(said, layout):
    """Where the last axis is not the fastest a copy is made, which for values of three axes lies in order."""
    def copying(*given):
        return by_strides(BY_ANOTHER.get(said, {}))(*(x if x.stride(-1) == 1 else x.contiguous() for x in given))

    report = examine(copying, layout=layout, seed=3)
    if not said:
        assert report.right, str(report)
        return
    shown = " ".join(str(report).split())
    assert "strided inputs of contiguous rows" in shown and "smallest case that fails" in shown
    if layout == "bhsd":
        assert names(report) == ["strides_of_another"] and said in report.sentence, str(report)


@pytest.mark.parametrize("contiguous_rows", [False, True])
@pytest.mark.parametrize("layout", AXIS_ORDERS + MORE_ORDERS)
def test_what_is_strided_lies_in_an_order_of_its_own(layout, contiguous_rows):
    """Neither in order, nor in that of another; of two axes there is one other order alone."""
    orders = [memory_order(of, len(axes_of(layout, of)), contiguous_rows) for of in ("Q", "K", "V")]
    assert len({*orders}) == (1 if len(orders[1]) == 2 else 3) and not any(order == tuple(sorted(order)) for order in orders)
    for order in orders:
        assert (order[-1] == len(order) - 1) == (contiguous_rows and len(order) == 4) or order == (1, 0, 2)


@pytest.mark.parametrize("options", [(), {"mask", "bias", "causal", "dropout_mask"}])
def test_right(options):
    def fn(q, k, v, **given):
        return attention(q, k, v, **given)

    report = examine(fn, options=options, seed=3, smallest=False)
    assert report.right and all(p.passed for p in report.problems), str(report)


def growing(wrong="", tile=2):
    """A running maximum and growing sums, all in the format of its numbers; wrong after the first 128 keys."""
    def online(q, k, v):
        top = torch.full((*q.shape[:-1], 1), -math.inf, dtype=q.dtype)
        total, out = torch.zeros_like(top), q.new_zeros(*q.shape[:-1], v.shape[-1])
        for i, (keys, values) in enumerate(zip(k.split(tile, -2), v.split(tile, -2))):
            A, here = q @ keys.mT * q.shape[-1] ** -0.5, wrong if i * tile >= 128 else ""
            new = torch.maximum(top, A.amax(-1, keepdim=True))
            E, shrink = torch.exp(A - new), torch.exp(top - new)
            total = (total if here == "sum not rescaled" else total * shrink) + E.sum(-1, keepdim=True)
            E = E.detach() if here == "weights detached" else E
            out = out * shrink + E @ (values.detach() if here == "values detached" else values)
            top = new
        return out / total

    return online


@pytest.mark.parametrize("tile", [2, 4])
def test_sums_that_are_stored_in_a_short_format_are_a_hazard(tile):
    report = examine(growing(tile=tile), dtype="bfloat16", seed=1, smallest=False)
    assert report.right, str(report)
    assert any(f"stored in bfloat16, every {tile} keys" in x.title for x in report.hazards)


@pytest.mark.parametrize(("wrong", "said"), [
    ("sum not rescaled", "not an attention of the list"), ("weights detached", "dQ, dK are wrong, only for more than"),
    ("values detached", "dV misses the last keys (all after the first 128)")])
def test_they_hide_no_mistake(wrong, said):
    report = examine(growing(wrong), dtype="bfloat16", seed=1, smallest=False)
    assert not report.right
    assert said in report.sentence
