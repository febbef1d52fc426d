"""Masks against PyTorch's own: its causal biases, its attention, its multi-head layer."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import bias as torch_bias

from attnmath import attention, bias, bias_from_multihead, causal_mask, document_mask, padding_mask, window_mask

torch.set_num_threads(1)
inf = np.inf
ALIGN = ["upper_left", "lower_right"]


def pytorchs(align, n, m):
    """PyTorch's own causal mask; for n > m it warns, of the empty rows."""
    make = dict(upper_left=torch_bias.causal_upper_left, lower_right=torch_bias.causal_lower_right)[align]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mask = make(n, m)
    equal = [torch.zeros(1, 1, k, m) for k in (n, m)]  # equal scores: the output is the weights
    return F.scaled_dot_product_attention(*equal, torch.eye(m)[None, None], mask)[0, 0] > 0


def sdpa(Q, K, V, **options):
    """PyTorch's attention in its plain kernel, with two leading axes added."""
    with sdpa_kernel(SDPBackend.MATH):
        x = (torch.as_tensor(x)[None, None] for x in (Q, K, V))
        return F.scaled_dot_product_attention(*x, **options)[0, 0].numpy()


def head(n=4, m=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.normal(size=(m, 3)), rng.normal(size=(m, 2))


SIZES = [(4, 6), (6, 4), (5, 5), (1, 3), (3, 1), (0, 2), (2, 0)]


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("align", ALIGN)
def test_causal_mask(n, m, align):
    mask = causal_mask(n, m, align=align)
    assert mask.shape == (n, m) and mask.dtype == bool
    if n and m:
        assert (mask == pytorchs(align, n, m).numpy()).all()


@pytest.mark.parametrize(("n", "m"), [(4, 6), (6, 4), (5, 5)])
def test_the_default_is_lower_right_and_is_causal_is_upper_left(n, m):
    assert (causal_mask(n, m) == pytorchs("lower_right", n, m).numpy()).all()
    Q, K, V = head(n, m)
    upper = attention(Q, K, V, bias(causal_mask(n, m, align="upper_left")))
    assert np.allclose(upper, sdpa(Q, K, V, is_causal=True), rtol=1e-13, atol=1e-14)
    empty = (~causal_mask(n, m)).all(1)
    assert empty.sum() == max(0, n - m) and not causal_mask(n, m, align="upper_left")[:, :1].sum() < n


def test_window_mask():
    """Row by row, by hand; and a window as long as the keys is the causal mask of PyTorch."""
    assert (window_mask(3, 5, 2) == [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]).all()
    assert (window_mask(3, 5, 2, align="upper_left") == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0]]).all()
    assert (window_mask(5, 3, 1) == [[0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]).all()
    for n, m in [(4, 6), (6, 4), (5, 5)]:
        for align in ALIGN:
            causal = pytorchs(align, n, m)
            assert (window_mask(n, m, max(n, m), align=align) == causal.numpy()).all()
            for w in (1, 2, 3):  # PyTorch's triu takes the older keys away
                shift = m - n if align == "lower_right" else 0
                young = torch.ones(n, m, dtype=torch.bool).triu(shift - w + 1)
                assert (window_mask(n, m, w, align=align) == (causal & young).numpy()).all()


@pytest.mark.parametrize("array", [list, np.array, torch.tensor])
def test_padding_mask(array):
    """A padded sequence gives what the sequence alone gives, in PyTorch's attention."""
    Q, K, V = head()
    mask = padding_mask(array([2, 0, 6]), 6)
    assert tuple(mask.shape) == (3, 1, 6)
    B = bias(mask, like=np.zeros(1) if array is list else array([0.0]).double() if array is torch.tensor else None)
    O = np.asarray(attention(*(np.broadcast_to(x, (3, *x.shape)) for x in (Q, K, V)), np.asarray(B)))
    for s, length in enumerate([2, 0, 6]):
        alone = sdpa(Q, K[:length], V[:length]) if length else np.zeros((4, 2))
        assert np.allclose(O[s], alone, rtol=1e-13, atol=1e-15)
    assert tuple(padding_mask(array([[2], [5]]), 6).shape) == (2, 1, 1, 6)
    assert padding_mask(4, 6).shape == (1, 6)


@pytest.mark.parametrize("array", [list, np.array, torch.tensor])
def test_document_mask(array):
    """Packed documents give what each gives alone, in PyTorch's attention."""
    Q, K, V = head(n=6)
    documents = [0, 0, 0, 1, 1, 2]
    mask = np.asarray(document_mask(array(documents)))
    packed = attention(Q, K, V, bias(mask & causal_mask(6, 6)))
    for part in (slice(0, 3), slice(3, 5), slice(5, 6)):
        alone = sdpa(Q[part], K[part], V[part], is_causal=True)
        assert np.allclose(packed[part], alone, rtol=1e-13, atol=1e-15)
    other = document_mask(array([[7, 8], [9, 7]]), array([7, 7, 9]))
    assert np.asarray(other).tolist() == [[[True, True, False], [False] * 3],
                                          [[False, False, True], [True, True, False]]]


# ---- the bias of masks -------------------------------------------------------------------------


def test_bias():
    """PyTorch's attention with the boolean mask itself, and with mask and numbers together."""
    rng = np.random.default_rng(1)
    Q, K, V = head()
    mask, added = rng.random((4, 6)) < 0.6, rng.normal(size=(4, 6))
    mask[1] = False
    assert np.allclose(attention(Q, K, V, bias(mask)), sdpa(Q, K, V, attn_mask=torch.tensor(mask)),
                       rtol=1e-13, atol=1e-15)
    theirs = torch.tensor(added).masked_fill(~torch.tensor(mask), -inf)
    assert (bias(mask, added) == theirs.numpy()).all()
    assert np.allclose(attention(Q, K, V, bias(mask, added)), sdpa(Q, K, V, attn_mask=theirs),
                       rtol=1e-13, atol=1e-15)


def test_all_masks_must_allow_and_the_arrays_broadcast():
    causal, padding = causal_mask(3, 5), padding_mask([2, 4], 5)
    slopes = np.array([0.5, -1.0])[:, None, None] * np.arange(5)
    B = bias((causal, padding[:, None]), slopes)
    want = torch.tensor(slopes).expand(2, 2, 3, 5).masked_fill(~torch.tensor(causal), -inf)
    want = want.masked_fill(~torch.tensor(padding[:, None]), -inf)
    assert B.shape == (2, 2, 3, 5) and (B == want.numpy()).all()


def test_the_bias_has_the_type_that_it_is_to_be_like():
    mask = causal_mask(3, 5)
    assert bias(mask).dtype == np.float64 and bias(mask, np.ones(5, np.float32)).dtype == np.float32
    assert bias(mask, np.ones(5), like=np.ones(1, np.float32)).dtype == np.float32
    Q = torch.ones(3, 2, dtype=torch.bfloat16)
    B = bias((mask, padding_mask(torch.tensor([4]), 5)), np.ones(5), like=Q)
    assert B.dtype == Q.dtype and B.shape == (1, 3, 5) and (B[0, 0] == torch.tensor([1, 1, 1, -inf, -inf])).all()
    assert bias(torch.tensor(mask)).dtype == torch.get_default_dtype()
    assert bias_from_multihead(torch.tensor(mask), like=Q).dtype == Q.dtype
    assert bias_from_multihead(torch.tensor(mask), torch.ones(5, dtype=torch.float64)*2).dtype == torch.float64


def test_nothing_is_modified_or_returned_as_it_came():
    mask, added = causal_mask(3, 5), np.ones((3, 5))
    mask.setflags(write=False), added.setflags(write=False)
    assert not np.shares_memory(bias(mask | True, added), added)
    assert not np.shares_memory(bias_from_multihead(added * 2), added)
    given = np.full((3, 5), 2.0)
    given.setflags(write=False)
    assert not np.shares_memory(bias_from_multihead(given), given)


# ---- PyTorch's layer, where True = may not attend ------------------------------------------------


def layer(heads=2, d=4):
    torch.manual_seed(0)
    return torch.nn.MultiheadAttention(d, heads, batch_first=True, dtype=torch.float64)


MASKS = {
    "padding": dict(key_padding_mask=torch.tensor([[0, 0, 1, 0, 1], [0] * 5, [0, 1, 1, 1, 1]]) == 1),
    "shared": dict(attn_mask=torch.rand(3, 5, generator=torch.Generator().manual_seed(1)) < 0.4),
    "one for each head": dict(attn_mask=torch.rand(6, 3, 5, generator=torch.Generator().manual_seed(2)) < 0.4),
    "added": dict(attn_mask=torch.randn(3, 5, dtype=torch.float64)),
    "added, with -inf": dict(attn_mask=torch.tensor([[0.5, -inf, 0, 1, 2]] * 3, dtype=torch.float64)),
    "both": dict(attn_mask=torch.rand(3, 5, generator=torch.Generator().manual_seed(5)) < 0.3,
                 key_padding_mask=torch.tensor([[0, 0, 0, 0, 1], [0] * 5, [0, 0, 0, 1, 1]]) == 1),
    "both, added": dict(attn_mask=torch.randn(6, 3, 5, dtype=torch.float64),
                        key_padding_mask=torch.randn(3, 5, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", MASKS)
def test_bias_from_multihead(name):
    """The layer with the mask in its own polarity, and our layer with the bias that it becomes."""
    theirs, masks = layer(), MASKS[name]
    rng = np.random.default_rng(3)
    X, Z = (torch.tensor(rng.normal(size=(3, n, 4))) for n in (3, 5))
    with torch.no_grad():
        Y, _ = theirs(X, Z, Z, **masks, need_weights=False)
    B = bias_from_multihead(**masks, heads=2, like=X)
    live = ~torch.isneginf(torch.broadcast_to(B, (3, 2, 3, 5))).all(-1).any(1)
    W, b = theirs.in_proj_weight.detach().chunk(3), theirs.in_proj_bias.detach().chunk(3)
    Q, K, V = (F.linear(x, *Wb).unflatten(-1, (2, 2)).transpose(1, 2) for x, Wb in zip((X, Z, Z), zip(W, b)))
    ours = theirs.out_proj(attention(Q, K, V, B).transpose(1, 2).flatten(-2)).detach()
    assert live.any() and torch.allclose(ours[live], Y[live], rtol=1e-12, atol=1e-13)


def test_without_a_batch_a_padding_mask_is_a_row():
    hidden = torch.tensor([False, True, False])
    assert (bias_from_multihead(key_padding_mask=hidden) == torch.tensor([[0.0, -inf, 0.0]])).all()


def test_the_two_polarities_are_opposite():
    mask = torch.tensor([[True, False, True], [False, True, True]])
    assert (bias(mask) == bias_from_multihead(~mask)).all() and not (bias(mask) == bias_from_multihead(mask)).any()


# ---- what is refused, in one sentence ----------------------------------------------------------

ONES = np.ones((2, 3))
REFUSED = [
    (lambda: causal_mask(2.5, 3), TypeError, "causal_mask: n is 2.5; it needs to be a whole number"),
    (lambda: causal_mask(2, True), TypeError, "causal_mask: m is True; it needs to be a whole number"),
    (lambda: causal_mask(-1, 3), ValueError, "causal_mask: n is -1; it needs to be 0 or more"),
    (lambda: causal_mask(2, 3, align="left"), ValueError,
     "causal_mask: align is 'left'; it needs to be 'lower_right' or 'upper_left'"),
    (lambda: causal_mask(2, 3, align=ONES), ValueError,
     f"causal_mask: align is {ONES!r}; it needs to be 'lower_right' or 'upper_left'"),
    (lambda: window_mask(2, 3, 0), ValueError, "window_mask: w is 0; it needs to be 1 or more"),
    (lambda: padding_mask([1, 4], 3), ValueError,
     "padding_mask: lengths holds 4; it needs numbers from 0 to 3, the number of keys"),
    (lambda: padding_mask(torch.tensor([-2, 3]), 3), ValueError,
     "padding_mask: lengths holds -2; it needs numbers from 0 to 3, the number of keys"),
    (lambda: padding_mask([0.5], 3), TypeError, "padding_mask: lengths has dtype float64; it needs whole numbers"),
    (lambda: padding_mask([[1], [2, 3]], 3), ValueError,
     "padding_mask: lengths is no array; it needs whole numbers, as many in each row"),
    (lambda: padding_mask([True], 3), TypeError, "padding_mask: lengths has dtype bool; it needs whole numbers"),
    (lambda: document_mask(3), ValueError, "document_mask: documents has shape (); it needs (..., n)"),
    (lambda: document_mask([0.0]), TypeError, "document_mask: documents has dtype float64; it needs whole numbers"),
    (lambda: document_mask([[0], [1], [1]], [[0], [1]]), ValueError,
     "document_mask: documents_of_keys has shape (2, 1); its leading axes (2,) need to broadcast against (3,),"
     " those of documents"),
    (lambda: bias(ONES), TypeError, "bias: mask has dtype float64; it needs to be an array of booleans, True where"
     " a query may attend, as in mask == 1; numbers to be added come second"),
    (lambda: bias(np.ones((2, 3), int)), TypeError, "bias: mask has dtype int64; it needs to be an array of booleans,"
     " True where a query may attend, as in mask == 1; numbers to be added come second"),
    (lambda: bias([[True]]), TypeError, "bias: mask is a list; it needs to be an array of booleans, True where a"
     " query may attend, as in mask == 1; numbers to be added come second"),
    (lambda: bias(()), ValueError, "bias: mask is an empty tuple; it needs one mask at least"),
    (lambda: bias(ONES > 0, ONES > 0), TypeError, "bias: added has dtype bool; it needs to be an array of"
     " floating-point numbers, which are added to the scores"),
    (lambda: bias(ONES > 0, 1.0), TypeError, "bias: added is a float; it needs to be an array of floating-point"
     " numbers, which are added to the scores"),
    (lambda: bias(ONES > 0, ONES * np.nan), ValueError, "bias: added of shape (2, 3) holds NaN or +inf; its"
     " entries need to be numbers or -inf"),
    (lambda: bias(ONES > 0, ONES[:, :2]), ValueError, "bias: added has shape (2, 2); it needs one that broadcasts"
     " against (2, 3), the shape of mask"),
    (lambda: bias((ONES > 0, ONES.T > 0)), ValueError, "bias: mask[1] has shape (3, 2); it needs one that broadcasts"
     " against (2, 3), the shape of mask[0]"),
    (lambda: bias(torch.ones(2, 3) > 0, ONES), TypeError, "bias: mask is an array of torch; it needs to be one of"
     " numpy, as the others are"),
    (lambda: bias(ONES > 0, torch.ones(3), like=ONES), TypeError, "bias: added is an array of torch; it needs to be"
     " one of numpy, as the others are"),
    (lambda: bias(ONES > 0, ONES * inf), ValueError, "bias: added of shape (2, 3) holds NaN or +inf; its entries"
     " need to be numbers or -inf"),
    (lambda: bias((ONES > 0, ONES[:1] > 0, ONES[:, :2] > 0)), ValueError, "bias: mask[2] has shape (2, 2); it needs"
     " one that broadcasts against (2, 3), the shape of mask[0] and mask[1]"),
    (lambda: bias_from_multihead(torch.ones(2, 3) > 0, like=ONES), TypeError, "bias_from_multihead: attn_mask is an"
     " array of torch; it needs to be one of numpy, as the others are"),
    (lambda: window_mask(2.5, 3, 1), TypeError, "window_mask: n is 2.5; it needs to be a whole number"),
    (lambda: padding_mask([1], 2.5), TypeError, "padding_mask: m is 2.5; it needs to be a whole number"),
    (lambda: padding_mask([0, 3, 5, 4], 3), ValueError,
     "padding_mask: lengths holds 5; it needs numbers from 0 to 3, the number of keys"),
    (lambda: document_mask([1], [0.5]), TypeError,
     "document_mask: documents_of_keys has dtype float64; it needs whole numbers"),
    (lambda: document_mask([1], 1), ValueError,
     "document_mask: documents_of_keys has shape (); it needs (..., m)"),
    (lambda: document_mask([1], torch.tensor([1])), TypeError, "document_mask: documents_of_keys is an array of"
     " torch; it needs to be one of numpy, as the others are"),
    (lambda: bias(ONES > 0, like=[1.0]), TypeError, "bias: like is a list; it needs to be an array of floating-point"
     " numbers"),
    (lambda: bias(ONES > 0, like=torch.arange(3)), TypeError, "bias: like has dtype int64; it needs to be an array of"
     " floating-point numbers"),
    (lambda: bias_from_multihead(ONES > 0, like=1.0), TypeError, "bias_from_multihead: like is a float; it needs to be"
     " an array of floating-point numbers"),
    (lambda: bias_from_multihead(ONES > 0, heads=4.0), TypeError, "bias_from_multihead: heads is 4.0; it needs to be a"
     " whole number"),
    (lambda: bias_from_multihead(np.ones((6, 2, 3)) > 0, heads=-2), ValueError, "bias_from_multihead: heads is -2; it"
     " needs to be 1 or more"),
    (lambda: bias_from_multihead(), ValueError, "bias_from_multihead: both masks are None; it needs one of them"),
    (lambda: bias_from_multihead(np.eye(3)), ValueError, "bias_from_multihead: attn_mask holds only 0 and 1, which"
     " would be added to the scores; a mask needs booleans, True where a query may not attend, as in"
     " attn_mask == 1"),
    (lambda: bias_from_multihead(np.eye(3, dtype=int)), TypeError, "bias_from_multihead: attn_mask has dtype int64;"
     " it needs to be an array of booleans, True where a query may not attend, or of floating-point numbers,"
     " which are added to the scores"),
    (lambda: bias_from_multihead(np.ones((6, 2, 3)) > 0), ValueError, "bias_from_multihead: attn_mask has shape"
     " (6, 2, 3) and heads is None; it needs (n, m) or (b heads, n, m)"),
    (lambda: bias_from_multihead(np.ones((6, 2, 3)) > 0, heads=4), ValueError, "bias_from_multihead: attn_mask has"
     " shape (6, 2, 3) and heads is 4; it needs (n, m) or (b heads, n, m)"),
    (lambda: bias_from_multihead(key_padding_mask=np.ones((6, 2, 3)) > 0), ValueError, "bias_from_multihead:"
     " key_padding_mask has shape (6, 2, 3); it needs (m,) or (b, m)"),
    (lambda: bias_from_multihead(ONES > 0, np.ones(4) > 0), ValueError, "bias_from_multihead: key_padding_mask has"
     " shape (1, 4); it needs one that broadcasts against (2, 3), the shape of attn_mask"),
]


@pytest.mark.parametrize(("call", "kind", "sentence"), REFUSED)
def test_bad_input_gets_one_clear_sentence(call, kind, sentence):
    with pytest.raises(kind) as told:
        call()
    assert str(told.value) == sentence


def test_masks_stay_in_their_library_and_on_their_device():
    lengths = torch.tensor([2, 1], device="meta")
    mask = padding_mask(lengths, 3)
    assert isinstance(document_mask(torch.tensor([1, 2])), torch.Tensor) and mask.device == lengths.device
    assert bias(mask).device == lengths.device and bias_from_multihead(mask[:, 0]).device == lengths.device
    assert bias(causal_mask(3, 3), like=torch.ones(1, device="meta")).device == lengths.device
    assert isinstance(bias((causal_mask(3, 3), padding_mask(torch.tensor(2), 3))), torch.Tensor)


def test_zeros_are_an_added_mask_of_no_effect():
    assert (bias_from_multihead(np.zeros((2, 3))) == 0).all()


# ---- the mistakes that the value tests see -------------------------------------------------------

MISTAKES = {
    "strictly before": lambda n, m: np.tri(n, m, m - n - 1, dtype=bool),
    "the other corner": lambda n, m: np.tri(n, m, dtype=bool),
    "the other sign": lambda n, m: np.tri(n, m, n - m, dtype=bool),
    "the other polarity": lambda n, m: ~np.tri(n, m, m - n, dtype=bool),
    "transposed": lambda n, m: np.tri(m, n, n - m, dtype=bool).T,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_causal_mask_differs_from_pytorchs(mistake):
    for n, m in [(4, 6), (6, 4)]:
        assert (MISTAKES[mistake](n, m) != pytorchs("lower_right", n, m).numpy()).any()
