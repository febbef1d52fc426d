"""Each word of the layer's vocabulary, on small numbers, in three libraries."""

import array_api_strict
import numpy as np
import pytest
import torch

from attnmath import Weights, multihead_jvp, multihead_map, multihead_vjp
from attnmath._words import layers as v

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


def test_each_head_has_its_parts(array):
    """Six heads, all their own; three groups; one for all, with an axis and without; numbers; nothing."""
    x = [array(np.arange(6.0 * 2).reshape(6, 1, 2)), array(np.arange(3.0).reshape(3, 1, 1)), array([[[7.0]]]), array([[8.0]])]
    heads = list(v.each_head(*x, 0.5, None))
    assert [np.asarray(h[0]).tolist() for h in heads] == [[[2.0 * k, 2.0 * k + 1]] for k in range(6)]
    assert [float(h[1][0, 0]) for h in heads] == [0, 0, 1, 1, 2, 2]
    assert [float(h[2][0, 0]) for h in heads] == [7] * 6 and [float(h[3][0, 0]) for h in heads] == [8] * 6
    assert {h[4:] for h in heads} == {(0.5, None)}


def test_over_heads(array):
    """Heads are added up; those of a group share its part, all share what has no axis of heads."""
    K, c = rng.integers(-9, 9, (2, 1, 4, 6)).astype(float), rng.integers(-9, 9, (4, 6)).astype(float)
    x = [array(a) for a in (O, K, c)]
    got = v.over_heads(lambda o, k, c, gamma, R: (o + k) * c * gamma, *x, 0.5, None)
    assert same(got, ((O + K) * c * 0.5).sum(axis=1))
    assert same(v.over_heads(lambda o: o, x[0][:, :1, ...]), O[:, 0])


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


def test_which_heads_are_large(monkeypatch):
    """Those with many scores, of one batch, in arrays that can be written into."""
    Q, K, B = (np.zeros(s) for s in [(2, 6, 4, 3), (2, 3, 5, 3), (4, 5)])
    assert not v.is_large((Q, K, B))
    assert v.is_large((np.zeros((2, 1, 800, 1)), K, None, 0.5))
    monkeypatch.setattr(v, "LARGE", 49)  # 2 entries times 5 squared, the larger of 4 and 5
    assert v.is_large((Q, K, B, 0.5, None)) and v.is_large((Q, K[0]))
    assert not v.is_large((Q[:1], K)) and not v.is_large((Q[0], K)) and not v.is_large((Q[None], K))
    assert not v.is_large((torch.tensor(Q), torch.tensor(K), torch.tensor(B, requires_grad=True)))
    assert not v.is_large((array_api_strict.asarray(Q), array_api_strict.asarray(K)))
    monkeypatch.setattr(v, "LARGE", 50)
    assert not v.is_large((Q, K, B))


@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("bias", [None, (4, 5), (6, 1, 5), (2, 1, 4, 5), (2, 6, 4, 5)])
@pytest.mark.parametrize("batches", [((2,), (2,)), ((2,), ()), ((), (2,)), ((1,), (2,))])
def test_a_large_head_is_taken_entry_by_entry(monkeypatch, library, bias, batches):
    """Nothing changes but the order: six heads, three groups, a scale for each head."""
    def draw(*shape):
        return library(np.random.default_rng(1).normal(size=shape))
    X, Z = draw(*batches[0], 4, 7), draw(*batches[1], 5, 8)
    W = Weights(draw(6, 7, 3), draw(3, 8, 3), draw(3, 8, 9), draw(6, 9, 7))
    x = X, Z, W, None if bias is None else draw(*bias), draw(6)
    R, dY = draw(6, 4, 5) ** 2, draw(2, 4, 7)
    whole = multihead_map(*x, R=R), multihead_vjp(dY, *x, R=R), multihead_jvp(*x, *x, R=R)
    monkeypatch.setattr(v, "LARGE", 0)
    turns = multihead_map(*x, R=R), multihead_vjp(dY, *x, R=R), multihead_jvp(*x, *x, R=R)
    for a, b in zip(flat(whole), flat(turns), strict=True):
        assert a.shape == b.shape and np.allclose(a, b, rtol=0, atol=1e-13 * np.abs(np.asarray(a)).max())


def flat(results):
    """All arrays of nested tuples."""
    if isinstance(results, tuple):
        return [x for part in results for x in flat(part)]
    return [] if results is None else [results]


def test_gather_lets_pytorch_record():
    """Written into one array where nobody sees it, else stacked: the numbers are the same."""
    heads = [torch.tensor(O[:, h], requires_grad=True) for h in range(3)]
    (recorded,) = v.gather(((x,) for x in heads), (torch.tensor(O),))
    with torch.no_grad():
        (written,) = v.gather(((2 * x,) for x in heads), (torch.tensor(O),))
    recorded.sum().backward()
    assert same(recorded.detach(), O) and same(written, 2 * O)
    assert all(same(x.grad, np.ones(O[:, 0].shape)) for x in heads)
