"""Each word of the layer's vocabulary, on small numbers, in three libraries."""

import array_api_strict
import numpy as np
import pytest
import torch

from attnmath import _layer_arrays as v

LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor, "strict": array_api_strict.asarray}
rng = np.random.default_rng(0)
X, W, O = (rng.integers(-9, 9, s).astype(float) for s in [(2, 4, 5), (3, 5, 6), (2, 3, 4, 6)])  # exact


@pytest.fixture(params=LIBRARIES.values(), ids=LIBRARIES)
def array(request):
    return lambda x: request.param(np.asarray(x))


def same(got, want):
    got, want = np.asarray(got), np.asarray(want)
    return got.shape == want.shape and (got == want).all()


def test_apply(array):
    assert same(v.apply(array(X), array(W[0])), np.einsum("bni,ik->bnk", X, W[0]))
    assert same(v.apply(array(X[0]), array(W[0])), np.einsum("ni,ik->nk", X[0], W[0]))


def test_over_tokens(array):
    assert same(v.over_tokens(array(X), array(O[:, 0])), np.einsum("bni,bnk->ik", X, O[:, 0]))
    assert same(v.over_tokens(array(X[0]), array(O[0, 0])), np.einsum("ni,nk->ik", X[0], O[0, 0]))


def test_to_heads(array):
    b, want = rng.integers(-9, 9, (3, 6)).astype(float), np.einsum("bni,hik->bhnk", X, W)
    assert same(v.to_heads(array(X), array(W)), want)
    assert same(v.to_heads(array(X), array(W), array(b)), want + b[:, None])
    assert same(v.to_heads(array(X[0]), array(W)), want[0])


def test_from_heads(array):
    back = np.swapaxes(W, 1, 2)
    assert same(v.from_heads(array(O), array(back)), np.einsum("bhnk,hki->bni", O, back))
    assert same(v.from_heads(array(O[0]), array(back)), np.einsum("hnk,hki->ni", O[0], back))


def test_concatenation(array):
    assert same(v.concatenation(array(O)), np.concatenate([O[:, h] for h in range(3)], axis=-1))


def test_exchanged(array):
    assert same(v.exchanged(array(O)), np.einsum("bhnk->bnhk", O))
    assert same(v.exchanged(v.exchanged(array(O[0]))), O[0])


def test_heads_over_tokens(array):
    assert same(v.heads_over_tokens(array(X), array(O)), np.einsum("bni,bhnk->hik", X, O))


def test_heads_to_bias(array):
    assert same(v.heads_to_bias(array(O), array(np.zeros((3, 6)))), O.sum((0, 2)))
    assert v.heads_to_bias(array(O), None) is None


def test_summed(array):
    x = array(X)
    assert v.summed(x, array(X)) is x and v.summed(x, None) is None
    assert same(v.summed(x, array(X[:1])), X[:1] + X[1:]) and same(v.summed(x, 1.0), X.sum())
    assert same(v.summed(array(X.reshape(40)[:1]), 1.0), X.reshape(40)[0])


def test_each_head_has_its_parts(array):
    """Six heads, all their own; three groups; one for all, with an axis and without; numbers; nothing."""
    x = [array(np.arange(6.0 * 2).reshape(6, 1, 2)), array(np.arange(3.0).reshape(3, 1, 1)), array([[[7.0]]]), array([[8.0]])]
    heads = list(v.each_head(*x, 0.5, None))
    assert [np.asarray(h[0]).tolist() for h in heads] == [[[2.0 * k, 2.0 * k + 1]] for k in range(6)]
    assert [float(h[1][0, 0]) for h in heads] == [0, 0, 1, 1, 2, 2]
    assert [float(h[2][0, 0]) for h in heads] == [7] * 6 and [float(h[3][0, 0]) for h in heads] == [8] * 6
    assert {h[4:] for h in heads} == {(0.5, None)}


def test_gather(array):
    """What heads share is added up: six heads, three groups, one for all with an axis and without, nothing."""
    def part(h):
        return array([[2.0**h]])
    like = array(np.zeros((6, 1, 1))), array(np.zeros((3, 1, 1))), array(np.zeros((1, 1, 1))), array([[0.0]]), None, 0.5
    got = v.gather(((part(h),) * 4 + (None, part(h)) for h in range(6)), like)
    assert same(got[0], [[[1.0]], [[2]], [[4]], [[8]], [[16]], [[32]]]) and same(got[1], [[[3.0]], [[12]], [[48]]])
    assert same(got[2], [[[63.0]]]) and same(got[3], [[63.0]]) and got[4] is None and same(got[5], [[63.0]])
    batch = v.gather(((array(O[:, h]),) for h in range(3)), (array(O),))
    assert same(batch[0], O)


def test_a_number_for_each_head_is_lifted_and_lowered(array):
    assert v.lifted(0.5) == 0.5
    assert same(v.lifted(array(2.0)), 2.0)
    assert same(v.lifted(array([1.0, 2.0])), [[[1.0]], [[2.0]]])
    assert same(v.lowered(v.lifted(array([1.0, 2.0]))), [1.0, 2.0]) and same(v.lowered(array(2.0)), 2.0)


def test_the_axis_of_heads(array):
    assert v.heads_of(array(O)) == 3 and v.heads_of(array(W)) == W.shape[0]
    assert [v.heads_of(x) for x in (array(W[0]), 1.0, None, array(1.0))] == [0] * 4


def test_gather_lets_pytorch_record():
    """Written into one array where nobody sees it, else stacked: the numbers are the same."""
    heads = [torch.tensor(O[:, h], requires_grad=True) for h in range(3)]
    (recorded,) = v.gather(((x,) for x in heads), (torch.tensor(O),))
    with torch.no_grad():
        (written,) = v.gather(((2 * x,) for x in heads), (torch.tensor(O),))
    recorded.sum().backward()
    assert same(recorded.detach(), O) and same(written, 2 * O)
    assert all(same(x.grad, np.ones(O[:, 0].shape)) for x in heads)
