"""Layouts beyond the usual ones, found by asking; a mistake in each is seen, and what always raises costs little."""

import pytest
import torch

from attnmath import examine
from half_keys import HalfKeys, plain


def split(x):
    """(b, s, 4*d) -> (b, 4, s, d)"""
    return x.unflatten(-1, (4, -1)).transpose(1, 2)


def merged(x):
    """(b, h, s, d) -> (b, s, h*d)"""
    return x.transpose(1, 2).flatten(2)


# What comes before attention on (b, h, s, d), for queries and for keys and values, and what comes after.
LAYOUTS = {
    "bhsd>bshd": (lambda x: x, lambda x: x, lambda x: x.transpose(1, 2)),
    "bhsd>bs(hd)": (lambda x: x, lambda x: x, merged),
    "bshd>bs(hd)": (lambda x: x.transpose(1, 2), lambda x: x.transpose(1, 2), merged),
    "sbhd>sb(hd)": (lambda x: x.permute(1, 2, 0, 3), lambda x: x.permute(1, 2, 0, 3),
                    lambda x: merged(x).transpose(0, 1)),
    "shbd": (lambda x: x.permute(2, 1, 0, 3), lambda x: x.permute(2, 1, 0, 3), lambda x: x.permute(2, 1, 0, 3)),
    "bhds": (lambda x: x.mT, lambda x: x.mT, lambda x: x.mT),
    "hds": (lambda x: x.mT, lambda x: x.mT, lambda x: x.mT),
    "bs(hd)": (split, split, merged),
    "sb(hd)": (lambda x: split(x.transpose(0, 1)), lambda x: split(x.transpose(0, 1)),
               lambda x: merged(x).transpose(0, 1)),
    "bhsd,bsd": (lambda x: x, lambda x: x[:, None], lambda x: x),
    "bshd,bsd": (lambda x: x.transpose(1, 2), lambda x: x[:, None], lambda x: x.transpose(1, 2)),
    "bhd,bhsd": (lambda x: x[:, :, None], lambda x: x, lambda x: x[:, :, 0]),
    "bhd,bshd": (lambda x: x[:, :, None], lambda x: x.transpose(1, 2), lambda x: x[:, :, 0]),
}
# Where there is no mask, batch and heads are alike, and so are the queries and heads that share their keys.
ALIKE = {"shbd": "sbhd", "bshd,bsd": "bhsd,bsd"}


def laid_out(layout, core):
    """The attention core in a layout; it refuses arrays of another number of axes."""
    queries, keys, after = LAYOUTS[layout]
    ranks = {"bhsd,bsd": (4, 3), "bshd,bsd": (4, 3), "bhd,bhsd": (3, 4), "bhd,bshd": (3, 4), "hds": (3, 3),
             "bs(hd)": (3, 3), "sb(hd)": (3, 3)}.get(layout, (4, 4))

    def attention(q, k, v):
        assert (q.ndim, k.ndim) == ranks
        q, k, v = queries(q), keys(k), keys(v)
        return after(core(q, k.expand(*q.shape[:-2], -1, -1), v.expand(*q.shape[:-2], -1, -1)))

    return attention


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_found_and_judged(layout):
    report = examine(laid_out(layout, plain), seed=0, smallest=False)
    assert report.right and report.conventions.layout == ALIKE.get(layout, layout)
    assert len(report.problems) > 15 and all(p.passed for p in report.problems)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_scale_that_is_wrong_is_seen(layout):
    attention = laid_out(layout, lambda q, k, v: plain(q, k, v, 1.0))
    report = examine(attention, seed=0, scale="1/sqrt(d_k)", smallest=False)
    assert report.wrong and "scale" in report.sentence
    assert report.conventions.layout == ALIKE.get(layout, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gradient_that_is_wrong_is_seen(layout):
    report = examine(laid_out(layout, HalfKeys.apply), seed=0)
    assert report.wrong and "dK" in report.sentence
    assert report.conventions.layout == ALIKE.get(layout, layout)
    assert report.smallest and "should be" in report.smallest


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_can_be_stated(layout):
    assert examine(laid_out(layout, plain), seed=0, layout=layout, smallest=False).right


@pytest.mark.parametrize("message", ["{}", "of shape {}: 8 and 32 are needed"])
def test_what_always_raises_is_asked_a_few_times(message):
    asked = []

    def attention(q, k, v):
        asked.append(torch.is_tensor(q))
        assert asked == [0, 32, 80], message.format(tuple(q.shape))

    report = examine(attention, seed=0)
    assert "not judged" in report.sentence and "AssertionError" in report.sentence
    assert len(asked) < 700


def test_a_size_that_is_asserted_where_no_library_is_named():
    class Attention:
        width = 80

        def __init__(self):
            self.size = 80

        def __call__(self, q, k, v):
            assert q.shape[-1] == self.size, "head size"
            return (q * self.size**-0.5 @ k.transpose(-2, -1)).softmax(-1) @ v

    report = examine(Attention(), seed=0, smallest=False)
    assert report.right and "d_k = 80" in str(report)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_latents_that_all_heads_read_by_matrices_of_their_own_are_judged(share):
    """No attention of the list in any layout, and of arrays with fewer axes: its gradients are still compared."""
    def attention(q, k, v):
        draw = torch.Generator().manual_seed(0)
        up, out = (torch.randn(q.shape[2], q.shape[3], x.shape[-1], generator=draw, dtype=torch.float64).to(q) / 4
                   for x in (k, v))
        A = torch.einsum("bnhd,hdr,bmr->bhnm", q, up, k) * q.shape[-1] ** -0.5
        v = share * v + (1 - share) * v.detach()
        return torch.einsum("bhnm,bmr,hdr->bnhd", A.softmax(-1), v, out)

    report = examine(attention, seed=0, smallest=False)
    assert report.verdict == ("not in the list" if share == 1 else "wrong"), str(report)
    assert report.conventions.layout in ("bhsd,bsd", "bshd,bsd")
