"""Functions that take some sizes alone: which these are is found by asking, and problems are made of them."""

import math

import numpy as np
import pytest
import torch

from attnmath import examine
from half_keys import HalfKeys, plain


def only(holds, fn=plain):
    """The function, for arguments alone of which this holds."""

    def attention(q, k, v):
        assert holds(q, k, v)
        return fn(q, k, v)

    return attention


def repeated(q, k, v):
    return plain(q, *(x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v)))


class Heads(torch.nn.Module):
    def __init__(self, size, count):
        super().__init__()
        self.size, self.count = size, count

    def forward(self, q, k, v):
        q = q.reshape(q.shape[0], self.count, -1, self.size)
        return plain(q, k, v, self.size**-0.5)


class Cached(torch.nn.Module):
    """A causal mask that is kept, for n = m alone."""

    def __init__(self, longest):
        super().__init__()
        self.register_buffer("seen", torch.ones(longest, longest).tril().bool())

    def forward(self, q, k, v):
        seen = self.seen[: q.shape[-2], : q.shape[-2]]
        return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf).softmax(-1) @ v


SIZES = {
    "any sizes": plain,
    "n = m only": only(lambda q, k, v: q.shape[-2] == k.shape[-2]),
    "n = m only, d_v = d_k only": only(lambda q, k, v: q.shape == k.shape == v.shape),
    "multiples of 16 (n, m), d_v = d_k only": only(
        lambda q, k, v: q.shape[-2] % 16 == k.shape[-2] % 16 == 0 and q.shape[-1] == v.shape[-1]),
    "n = m only, multiples of 64 (n, m)": only(lambda q, k, v: q.shape[-2] == k.shape[-2] and k.shape[-2] % 64 == 0),
    "multiples of 2 (d_k)": only(lambda q, k, v: q.shape[-1] % 2 == 0),
    "d_k = 32, b = 1, H = 8": only(lambda q, k, v: q.shape[:2] == (1, 8) and q.shape[-1] == 32),
    "d_k = 192, d_v = 128": only(lambda q, k, v: (q.shape[-1], v.shape[-1]) == (192, 128)),
    "up to 64 queries and keys": only(lambda q, k, v: max(q.shape[-2], k.shape[-2]) <= 64),
    "d_k = 80, H = 12": Heads(80, 12),
    "n = m only, up to 100 queries and keys": Cached(100),
}


def takes(report):
    (said,) = [f.title for f in report.findings if f.name == "takes"]
    return said.removeprefix("takes ")


@pytest.mark.parametrize("words", SIZES)
def test_sizes_are_found_and_judged(words):
    report = examine(SIZES[words], seed=1, smallest=False)
    assert report.right and takes(report) == words
    assert all(p.passed for p in report.problems) and len(report.problems) > 25


@pytest.mark.parametrize("holds", [
    lambda q, k, v: q.shape[:2] == (1, 8) and q.shape[-1] == 32,
    lambda q, k, v: q.shape[-2] == k.shape[-2] and k.shape[-2] % 64 == 0,
])
def test_a_mistake_in_such_sizes_is_seen(holds):
    report = examine(only(holds, HalfKeys.apply), seed=1, smallest=False)
    assert report.wrong and "dK" in report.sentence


def test_sizes_can_be_stated():
    strange = only(lambda q, k, v: q.shape[1] == 7 and k.shape[1] == 7 and q.shape[-1] == 44)
    assert examine(strange, seed=1, sizes={"H": 7, "d_k": 44}, smallest=False).right
    grouped = only(lambda q, k, v: (q.shape[1], k.shape[1]) == (8, 2), repeated)
    report = examine(grouped, seed=1, sizes={"H": 8, "G": 2}, smallest=False)
    assert report.right and takes(report) == "H = 8, G = 2" and report.conventions.groups == "blocks"
    assert all(p.passed and "groups" in p.traits for p in report.problems)


@pytest.mark.parametrize("sizes, error", [({"H": 0}, ValueError), ({"heads": 2}, ValueError), (8, TypeError)])
def test_sizes_that_are_none(sizes, error):
    with pytest.raises(error, match="sizes"):
        examine(plain, sizes=sizes)


def test_numpy_of_one_head_size():
    def weights(q, k):
        E = np.exp(q @ k.swapaxes(-1, -2) * 48**-0.5)
        return E / E.sum(-1, keepdims=True)

    def forward(q, k, v):
        assert q.shape[-1] == 48
        return weights(q, k) @ v

    report = examine(forward, seed=1, smallest=False)
    assert takes(report) == "d_k = 48" and "large scores" in report.sentence


def test_square_with_a_mask_alone():
    """Judged with masks of n = m, and without a mask of any sizes."""

    def attention(q, k, v, mask=None):
        A = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            assert q.shape[-2] == k.shape[-2]
            A = A.masked_fill(~mask, -math.inf)
        return A.softmax(-1) @ v

    report = examine(attention, options=["mask"], seed=1, smallest=False)
    assert report.right and takes(report) == "n = m only with mask" and all(p.passed for p in report.problems)
    assert any("n != m" in p.traits for p in report.problems)
    assert not any({"n != m", "mask"} <= p.traits for p in report.problems)


# ---- masks -------------------------------------------------------------------------------------


def masked(hide):
    """Attention whose scores a mask changes in this way."""

    def attention(q, k, v, mask=None):
        A = q @ k.mT / math.sqrt(q.shape[-1])
        return (A if mask is None else hide(A, mask)).softmax(-1) @ v

    return attention


def shaped(letters, hide):
    """The same for a mask of this shape alone."""

    def other(A, mask):
        sizes = dict(zip("bhnm", A.shape))
        assert tuple(mask.shape) == tuple(sizes.get(letter, 1) for letter in letters)
        view = [sizes[letter] if letter in letters else 1 for letter in "bhnm"]
        return hide(A, mask.reshape(view))

    return other


def filled(A, mask):
    return A.masked_fill(~mask, -math.inf)


FORMS = {
    "keep": filled,
    "drop": lambda A, mask: A.masked_fill(mask, -math.inf),
    "add": lambda A, mask: A + mask,
    "keep as numbers": lambda A, mask: A + (1.0 - mask) * -1e4,
    "drop as numbers": lambda A, mask: A + mask * -1e9 if mask.is_floating_point() else 1 / 0,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("axes", ["bm", "nm", "bnm", "b1m", "b11m", "b1nm", "bhnm"])
def test_masks_are_found(axes, form):
    report = examine(masked(shaped(axes, FORMS[form])), options=["mask"], seed=1, smallest=False)
    assert report.right and all(p.passed for p in report.problems), str(report)
    assert (report.conventions.mask, report.conventions.mask_axes) == (form, axes)
    assert f"masks of the axes {' '.join(axes)}" in takes(report)
    assert sum("mask" in p.traits for p in report.problems) > 4


@pytest.mark.parametrize("fill", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_a_large_number_is_no_mistake(fill):
    report = examine(masked(lambda A, mask: A.masked_fill(~mask, fill)), options=["mask"], seed=1, smallest=False)
    assert report.right and report.conventions.empty.startswith("uniform")
    added = examine(masked(lambda A, mask: A + torch.where(mask, 0.0, fill)), options=["mask"], seed=1, smallest=False)
    assert added.right and added.conventions.fill == {-1e4: "-1e+04", -1e9: "-1e+09"}.get(fill)
    assert ("finite_fill" in [h.name for h in added.hazards]) == (fill > -1e10)


def test_a_mask_that_is_taken_and_spoiled_is_a_mistake():
    for hide in (lambda A, mask: A.masked_fill(~mask, -5.0),
                 lambda A, mask: A.masked_fill(~mask.roll(1, -1), -math.inf)):
        assert examine(masked(shaped("bm", hide)), options=["mask"], seed=1, smallest=False).wrong


def test_biases_of_their_own_axes():
    def attention(q, k, v, bias=None):
        A = q @ k.mT / math.sqrt(q.shape[-1])
        if bias is not None:
            assert bias.shape == A.shape[1:]
            A = A + bias[None]
        return A.softmax(-1) @ v

    report = examine(attention, options=["bias"], seed=1, smallest=False)
    assert report.right and all(p.passed for p in report.problems) and report.conventions.bias_axes == "hnm"


def test_of_several_results_the_output_is_judged():
    def attention(q, k, v):
        P = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        return P @ v, P

    report = examine(attention, seed=1, smallest=False)
    assert report.right and takes(report) == "any sizes"
    assert report.sentence.endswith("; of a tuple of 2 that it returns the output alone is judged")


def test_a_scale_of_zero_is_a_hazard():
    report = examine(lambda q, k, v, scale=None: plain(q, k, v, scale or None), options=["scale"], seed=1,
                     smallest=False)
    assert report.right and [h.name for h in report.hazards] == ["scale_of_zero"]


def test_a_scale_of_zero_of_what_is_always_causal_is_none():
    def causal(q, k, v, scale=None):
        A = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        later = torch.ones(A.shape[-2:], dtype=torch.bool).triu(1)
        return A.masked_fill(later, -torch.inf).softmax(-1) @ v

    report = examine(causal, options=["scale"], seed=1, smallest=False)
    assert report.right and not report.hazards, report


def test_no_more_queries_than_keys():
    report = examine(only(lambda q, k, v: q.shape[-2] <= k.shape[-2]), seed=1, smallest=False)
    assert report.right and takes(report) == "n up to m" and all(p.passed for p in report.problems)


class LastHead(torch.autograd.Function):
    """Heads of groups; dK and dV are those of the last query head of each group."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return plain(q, *(x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v)))

    @staticmethod
    def backward(ctx, do):
        q, k, v = (x.detach() for x in ctx.saved_tensors)
        r = q.shape[1] // k.shape[1]
        q, *kv = (x.requires_grad_() for x in (q, *(x.repeat_interleave(r, 1) for x in (k, v))))
        with torch.enable_grad():
            dq, dk, dv = torch.autograd.grad(plain(q, *kv), (q, *kv), do)
        return dq, dk[:, r - 1 :: r], dv[:, r - 1 :: r]


def test_groups_are_looked_for_unasked():
    report = examine(LastHead.apply, seed=1, smallest=False)
    assert report.wrong and "the last query head of a group alone" in report.sentence
    assert all("groups" in p.traits for p in report.problems if p.ratios and not p.passed)
    assert examine(plain, seed=1, smallest=False).conventions.groups is None  # it takes none


# ---- one length, one query ---------------------------------------------------------------------


def of_length(length, layout="bhsd", fn=plain):
    """The function for so many queries and keys alone, which its code does not name."""
    numbers, axis = {"length": length}, layout.index("s")

    def attention(q, k, v):
        assert q.ndim == len(layout) and {x.shape[axis] for x in (q, k, v)} == {numbers["length"]}
        return fn(*(x.movedim(axis, -2) for x in (q, k, v))).movedim(-2, axis)

    return attention


@pytest.mark.parametrize("length, layout", [(16, "bhsd"), (49, "bshd"), (24, "shd"), (196, "hsd")])
def test_one_length_alone_is_found(length, layout):
    report = examine(of_length(length, layout), seed=1, smallest=False)
    assert report.right and report.conventions.layout == layout and f"n = {length}" in takes(report)
    assert all(p.passed for p in report.problems)
    half = examine(of_length(length, layout, HalfKeys.apply), seed=1, smallest=False)
    assert half.wrong and "dK" in half.sentence


def test_one_length_that_the_code_names():
    assert "n = 21, m = 21" in takes(examine(only(lambda q, k, v: q.shape[-2] == k.shape[-2] == 21), seed=1))


def decoding(fn):
    """One query, and keys and values of each place, (b, s, h, d), that several heads may share."""

    def attention(q, keys, values):
        assert q.shape[1] == 1
        repeated = (x.repeat_interleave(q.shape[2] // x.shape[2], 2).transpose(1, 2) for x in (keys, values))
        return fn(q.transpose(1, 2), *repeated).transpose(1, 2)

    return attention


def test_one_query_alone():
    report = examine(decoding(plain), seed=1, smallest=False)
    assert report.right and report.conventions.layout == "bshd" and takes(report) == "n = 1"
    assert report.conventions.groups == "blocks" and all(p.passed for p in report.problems)
    half = examine(decoding(HalfKeys.apply), seed=1, smallest=False)
    assert half.wrong and "dK" in half.sentence
    unscaled = examine(decoding(lambda q, k, v: plain(q, k, v, 1.0)), seed=1, scale="1/sqrt(d_k)", smallest=False)
    assert unscaled.wrong and "scale" in unscaled.sentence


def merged(fn, heads=3):
    """Heads side by side, cut from the values where those of the keys are cut: right where both are as wide."""

    def attention(q, k, v):
        d, out = q.shape[-1] // heads, torch.zeros_like(v)
        for h in range(heads):
            at = slice(h * d, (h + 1) * d)
            out[..., at] = fn(q[..., at], k[..., at], v[..., at])
        return out

    return attention


def test_heads_that_are_cut_by_the_width_of_keys():
    report = examine(merged(plain), seed=1, smallest=False)
    assert report.right and "one_width" in [x.name for x in report.hazards], str(report)
    half = examine(merged(HalfKeys.apply), seed=1, smallest=False)
    assert half.wrong and "dK" in half.sentence


def test_an_even_number_of_heads_in_two_halves():
    def halves(q, k, v, mask=None):
        if q.shape[1] % 2:
            raise ValueError("an even number of heads, please")
        A = [x @ y.mT / math.sqrt(q.shape[-1]) for x, y in zip(q.chunk(2, 1), k.chunk(2, 1))]
        A = [x if mask is None else x.masked_fill(~mask, -1e30) for x in A]  # (b, n, m) stands at (h, n, m)
        return torch.cat([x.softmax(-1) @ y for x, y in zip(A, v.chunk(2, 1))], 1)

    report = examine(halves, options={"mask"}, seed=1, smallest=False)
    assert report.right and report.conventions.layout == "bhsd" and "multiples of 2 (H)" in str(report)
    turned = examine(lambda q, k, v: halves(q.flip(1), k, v), seed=1, smallest=False)
    assert not turned.right


def test_heads_that_are_the_fastest_of_merged_features():
    def attend(q, k, v, names="bidh,bjdh->bhij"):
        q, k, v = (x.unflatten(-1, (-1, 3)) for x in (q, k, v))
        return torch.einsum("bhij,bjdh->bidh", (torch.einsum(names, q, k) * q.shape[2]**-0.5).softmax(-1), v).flatten(2)

    report = examine(attend, seed=1, smallest=False)
    assert report.right and report.conventions.layout == "bs(dh)"
    assert not examine(lambda q, k, v: attend(q, k, v.flip(1)), seed=1, smallest=False).right


def test_a_mask_on_the_axes_that_the_way_back_takes():
    def weights(q, k, mask, b, h):
        A = q[b, h] @ k[b, h].T / math.sqrt(q.shape[-1])
        A = A if mask is None else np.where(mask[b][None], A, -1e9)
        E = np.exp(A - A.max(-1, keepdims=True))
        return E / E.sum(-1, keepdims=True)

    def forward(q, k, v, mask=None):
        O = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
        for b, h in np.ndindex(q.shape[:2]):
            O[b, h] = weights(q, k, mask, b, h) @ v[b, h]  # a mask (b, 1, n, m) passes here, and not below
        return O

    def backward(do, q, k, v, mask=None):
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for b, h in np.ndindex(q.shape[:2]):
            P = weights(q, k, mask, b, h)
            dP = do[b, h] @ v[b, h].T
            dA = P * (dP - (P * dP).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
            dq[b, h], dk[b, h], dv[b, h] = dA @ k[b, h], dA.T @ q[b, h], P.T @ do[b, h]
        return dq, dk, dv

    report = examine(forward, backward, options={"mask"}, seed=1, smallest=False)
    assert report.right and report.conventions.mask_axes == "bm"
    wrong = examine(forward, lambda do, q, k, v, mask=None: backward(do, q, k, v), options={"mask"}, seed=1, smallest=False)
    assert wrong.wrong


def in_tiles_of_queries(axis):
    """A way back whose tiles of 8 queries lie along this axis; the last tile is ragged, and lost."""
    def backward(do, q, k, v):
        A = q @ k.mT / math.sqrt(q.shape[-1])
        P = A.softmax(-1)
        dP = do @ v.mT
        dA = P * (dP - (P * dP).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        whole = max(q.shape[axis] // 8, 1) * 8
        kept = torch.arange(q.shape[axis]) < whole
        kept = kept.reshape([-1 if x == axis % q.ndim else 1 for x in range(q.ndim)])
        return dA @ k, (dA * kept).mT @ q, P.mT @ do

    return backward


def test_arrays_with_fewer_axes_whose_gradients_are_wrong():
    """The axis of the queries is counted from the front: right in four axes for few heads, wrong in three."""
    def backward(do, q, k, v):
        return in_tiles_of_queries(1)(do, q, k, v)

    report = examine(plain, backward, seed=1, smallest=False)
    assert report.wrong and any(f.name in ("fewer_axes", "more_axes") for f in report.findings)
    assert examine(plain, lambda *x: in_tiles_of_queries(-2)(*x)[::2] and torch.autograd.grad(
        plain(*(y := [z.clone().requires_grad_() for z in x[1:]])), y, x[0]), seed=1, smallest=False).right


def test_the_layout_is_the_one_whose_way_back_is_taken():
    def backward(do, q, k, v):
        (_, n, d), m = q.shape, k.shape[1]
        P = (q @ k.mT / math.sqrt(d)).softmax(-1)
        dP = do @ v.mT
        dA = (P * (dP - (P * dP).sum(-1, keepdim=True)) / math.sqrt(d)).reshape(-1, n, m)
        return dA @ k, dA.mT @ q, P.mT @ do

    report = examine(plain, backward, seed=1, smallest=False)
    assert report.right and report.conventions.layout == "hsd"
    assert examine(plain, lambda do, q, k, v: [2 * x for x in backward(do, q, k, v)], seed=1, smallest=False).wrong


def test_an_output_that_is_cut_to_the_width_of_the_keys():
    def cut(q, k, v):
        O, d = plain(q, k, v), q.shape[-1]
        return torch.nn.functional.pad(O, (0, max(0, d - O.shape[-1])))[..., :d]

    report = examine(cut, seed=1, smallest=False)
    assert report.right and any(f.name == "one_width" for f in report.hazards)


def test_a_problem_is_not_cut_to_lengths_that_are_not_taken():
    """A kernel without checks of its bounds writes beyond its arrays, however wrong it is."""
    asked = set()

    def halved(q, k, v):
        asked.add((q.shape[-2], k.shape[-2]))
        return plain(q, k, v) * (0.5 if k.shape[-2] > 8 else 1)

    report = examine(halved, sizes={"n": 32, "m": 32}, layout="bhsd", seed=0, smallest=False)
    assert not report.right and asked == {(32, 32)}


def test_a_mask_is_not_tried_on_more_items_than_are_taken():
    """Which axes it has is asked with as many items as there are keys, and one more; that took minutes."""
    asked = set()

    def attention(q, k, v, mask):
        asked.add(len(q))
        return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -math.inf).softmax(-1) @ v

    sizes = {"b": 1, "H": 1, "n": 32, "m": 32, "d_k": 16, "d_v": 16}
    assert examine(attention, options=["mask"], sizes=sizes, layout="bhsd", seed=0, smallest=False).right
    assert max(asked) < 32
