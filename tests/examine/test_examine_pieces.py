"""Pieces beside plain attention: found, judged with, and mistakes in their way back named."""

import math
import re
from functools import partial

import numpy as np
import pytest
import torch

from attnmath import examine

CAP, SINK = 30.0, 0.5


def turned(x, sign=1, interleaved=False):
    d = x.shape[-1]
    f = 10000.0 ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
    a = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * f
    if interleaved:
        c, s, x1, x2 = a.cos(), sign * a.sin(), x[..., 0::2], x[..., 1::2]
        return torch.stack([x1 * c - x2 * s, x1 * s + x2 * c], -1).flatten(-2)
    c, s = torch.cat([a.cos()] * 2, -1), sign * torch.cat([a.sin()] * 2, -1)
    x1, x2 = x.chunk(2, -1)
    return x * c + torch.cat([-x2, x1], -1) * s


def scores(q, k):
    """Rotated, capped, causal."""
    S = CAP * torch.tanh(turned(q) @ turned(k).mT / math.sqrt(q.shape[-1]) / CAP)
    n, m = S.shape[-2:]
    return S.masked_fill(torch.arange(m) > torch.arange(n)[:, None] + m - n, -math.inf)


def with_sink(S):
    return torch.cat([S, torch.full((*S.shape[:-1], 1), SINK, dtype=S.dtype)], -1).softmax(-1)[..., :-1]


def forward(q, k, v):
    return with_sink(scores(q, k)) @ v


def backward(mistake):
    def back(do, q, k, v):
        S, gamma = scores(q, k), 1 / math.sqrt(q.shape[-1])
        P = S.softmax(-1).nan_to_num() if mistake == "no sink" else with_sink(S)
        dP = do @ v.mT
        dA = P * (dP - (P * dP).sum(-1, keepdim=True))
        if mistake != "no slope":
            dA = dA * (1 - (S.masked_fill(S.isinf(), 0) / CAP) ** 2)
        dq, dk = gamma * dA @ turned(k), gamma * dA.mT @ turned(q)
        if mistake == "no scale":
            dq = dq / gamma
        if mistake == "kept":
            return dq, dk, P.mT @ do
        sign = 1 if mistake == "sign" else -1
        return turned(dq, sign), turned(dk, sign, mistake == "layout"), P.mT @ do

    return back


def fails(lines, forward, back):
    """Whether the lines, pasted, print an entry that is wrong, and beside it the one of autograd."""
    said = []
    names = {"forward": forward, "back": back, "print": lambda *words: said.extend(words)}
    exec(lines, names)
    q, k, v = (names[x].double().requires_grad_() for x in "qkv")
    gradients = dict(zip(("dQ", "dK", "dV"), torch.autograd.grad(forward(q, k, v), (q, k, v), names["do"].double())))
    letter, at = re.fullmatch(r"(\w+)\[(.*)\] is", said[0]).groups()
    right_one = gradients[letter][tuple(map(int, at.split(",")))]
    got, right = said[1], said[3]
    return got != pytest.approx(right, rel=1e-5) and right == pytest.approx(right_one.item(), rel=1e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_it_has_is_found_and_it_is_right(dtype):
    report = examine(forward, backward(""), dtype=dtype, seed=2, smallest=False)
    assert report.right, report.sentence
    assert report.conventions.pieces.words == "rotated, halves, base 10000, cap 30, causal always, sink 0.5"
    assert "rotated, halves, base 10000, cap 30" in " ".join(str(report).split())


@pytest.mark.parametrize("mistake, words", [
    ("kept", "the gradients of what is rotated are not rotated back"),
    ("sign", "the gradients of what is rotated are rotated on, not back"),
    ("layout", "the gradients are rotated back in the other layout of pairs (dK)"),
    ("no slope", "the slope of the cap is missing"),
    ("no sink", "the way back finds the weights again without the sink"),
    ("no scale", "the scale gamma is missing, in dQ"),
])
def test_a_mistake_in_the_way_back_is_named(mistake, words):
    report = examine(forward, backward(mistake), seed=2)
    assert report.wrong and words in report.sentence, report.sentence
    assert fails(report.smallest, forward, backward(mistake)), report


TABLE = torch.randn(4, 32, generator=torch.Generator().manual_seed(3))


def buckets(ahead, before=False):
    """T5's, as Transformers counts them."""
    c = 32 if before else 16
    near, far = c // 2, (-ahead if before else ahead.abs()).clamp(min=0)
    large = near + (torch.log(far.clamp(min=1) / near) / math.log(128 / near) * (c - near)).long()
    return (0 if before else 16 * (ahead > 0)) + torch.where(far < near, far, large.clamp(max=c - 1))


def tabled(q, k, sign=1, last=True, before=False, table=TABLE, i=0):
    """Scores with a bias by distance; of a T5 they have no scale."""
    n, m = q.shape[-2], k.shape[-2]
    ahead = torch.arange(m) - torch.arange(n)[:, None] - (m - n) * last
    S = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT + table.to(q)[:, buckets(sign * ahead, before)]
    return S.masked_fill(ahead > 0, -math.inf) if before else S + i * torch.arange(n)[:, None] * torch.arange(m)


def table_head(q, k, v, **more):
    return tabled(q, k, **more).softmax(-1).nan_to_num() @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)


def table_back(**wrong):
    def back(do, q, k, v):
        P = tabled(q, k, **wrong).softmax(-1)
        dP = do @ v.mT
        dA = P * (dP - (P * dP).sum(-1, keepdim=True))
        return dA @ k, dA.mT @ q, P.mT @ do

    return back


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("more", "words"), [
    ({}, ", 32 buckets, up to 128 apart, both directions"),
    ({"last": False}, ", 32 buckets, up to 128 apart, both directions"),
    ({"before": True}, ", 32 buckets, up to 128 apart, before the query, causal always"),
    ({"table": torch.linspace(0, 1, 32)[None] ** 2}, ", 32 buckets, up to 128 apart, both directions"),
])
def test_a_table_by_distance_is_found_and_it_is_right(more, words, dtype):
    sizes = None if "table" in more else {"H": 4, "G": 2}
    report = examine(partial(table_head, **more), sizes=sizes, dtype=dtype, seed=2, smallest=False)
    assert report.right, report.sentence
    assert report.conventions.pieces.words == "a table of biases by distance" + words


def test_a_table_in_numpy_and_one_of_all_distances():
    def head(Q, K, V):
        (n, m), K = (Q.shape[-2], K.shape[-2]), K.swapaxes(-1, -2)
        A = Q @ K - np.log1p(abs(np.arange(m) - np.arange(n)[:, None]))
        P = np.exp(A - A.max(-1, keepdims=True))
        return P / P.sum(-1, keepdims=True)

    def back(dO, Q, K, V):
        P = head(Q, K, V)
        dP = dO @ V.swapaxes(-1, -2)
        dA = P * (dP - (P * dP).sum(-1, keepdims=True))
        return dA @ K, dA.swapaxes(-1, -2) @ Q, P.swapaxes(-1, -2) @ dO

    report = examine(lambda Q, K, V: head(Q, K, V) @ V, back, framework="numpy", dtype="float64", seed=2)
    assert report.right, report.sentence
    assert report.conventions.pieces.words == "a table of biases by distance"


@pytest.mark.parametrize("wrong, name", [
    ({"sign": -1}, "table_side_back"), ({"last": False}, "table_align_back"),
    ({"table": 0 * TABLE}, "table_left_out_back"),
])
def test_a_mistake_in_the_way_back_with_a_table_is_named(wrong, name):
    report = examine(table_head, table_back(**wrong), sizes={"H": 4, "G": 4}, seed=2, smallest=False)
    assert report.wrong and name in [x.name for x in report.findings], report.sentence


def test_a_head_of_groups_alone_may_be_another_function():
    report = examine(partial(table_head, i=1e-3), sizes={"H": 4, "G": 2}, seed=2, smallest=False)
    assert report.unlisted, report.sentence


def test_a_bias_that_distance_does_not_tell_is_no_table():
    report = examine(partial(table_head, i=1e-3), sizes={"H": 4, "G": 4}, seed=2, smallest=False)
    assert report.unlisted and report.conventions.pieces is None, report.sentence


def test_an_output_that_is_not_theirs_everywhere_is_another_function():
    """For ten keys, twenty and so on the cap is another."""
    def bent(q, k, v):
        c = 3.0 if k.shape[-2] % 10 else 4.0
        return torch.softmax(c * torch.tanh(q @ k.mT / math.sqrt(q.shape[-1]) / c), -1) @ v

    report = examine(bent, seed=2, smallest=False)
    assert report.unlisted or report.right
    assert not report.wrong
