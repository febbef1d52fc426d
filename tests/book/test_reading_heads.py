"""What a head hangs on: against masks, PyTorch's autograd, and differences; and what is refused."""

import array_api_strict
import numpy as np
import pytest
import torch

from attnmath import Weights, check_vjp, multihead_map, multihead_vjp, softmax
from attnmath.book import sequences as task
from attnmath.book.heads import associations, moved_without_key, without_key
from attnmath.book.training import answers_vjp, decode, hide_padding

U = 2.0**-53  # the unit roundoff of float64
INF = np.inf
LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor, "strict": array_api_strict.asarray}
libraries = pytest.mark.parametrize("array", LIBRARIES.values(), ids=LIBRARIES)

rng = np.random.default_rng(59)
A, V = rng.normal(size=(2, 4, 5)), rng.normal(size=(2, 5, 3))
X, Z = rng.normal(size=(2, 4, 6)), rng.normal(size=(2, 5, 7))
W = Weights(*(rng.normal(size=(3, *s)) / 2 for s in [(6, 2), (7, 2), (7, 4), (4, 6)]))
B = rng.normal(size=(2, 3, 4, 5))
B[0, 1, 2] = B[1, 0, 0, 1:] = -INF  # a row without a key, and one with a single key
dY = rng.normal(size=(2, 4, 6))


def near(got, want, roundings=256):
    """Equal but for some roundings of the largest entry, which is of the size of all terms here."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    return (np.abs(got - want) <= roundings * U * max(1.0, np.abs(want).max())).all()


def masked(key, like=B):
    return np.where(np.arange(like.shape[-1]) == key, -INF, like)


def tables():
    return associations(dY, multihead_map(X, Z, W, B), W.W_O)


# ---- one head ----------------------------------------------------------------------------------


@libraries
def test_without_key(array):
    got = np.asarray(without_key(array(softmax(A)), array(V)))
    hidden = [torch.softmax(torch.tensor(masked(j, A)), -1) @ torch.tensor(V) for j in range(5)]
    assert near(got, np.stack(hidden, axis=1))


def test_without_key_by_hand():
    P, v = np.array([[0.25, 0.75]]), np.array([[4.0], [8.0]])
    assert (without_key(P, v)[:, 0, 0] == [8.0, 4.0]).all()


def test_without_its_only_key_and_in_an_empty_row_a_head_says_nothing():
    P = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    got = without_key(P, V[0, :3])
    assert (got[0] == 0).all() and (got[1:, 0] == V[0, 0]).all() and (got[:, 1] == 0).all()


# ---- a layer -----------------------------------------------------------------------------------


@libraries
def test_associations(array):
    heads = multihead_map(*map(array, (X, Z)), Weights(*map(array, W[:4])), array(B))
    P, P_dP, dA, gain = associations(array(dY), heads, array(W.W_O))
    back = multihead_vjp(dY, X, Z, W, B)
    assert near(dA, back.dB) and near(P, multihead_map(X, Z, W, B).P)
    P, P_dP, dA, gain = map(np.asarray, (P, P_dP, dA, gain))
    assert near(gain * (1 - P), -dA)
    assert (gain[1, 0, 0] == 0).all() and (gain[0, 1, 2] == 0).all()


def test_gradient_times_weight_is_that_of_pytorch():
    heads = multihead_map(X, Z, W, B)
    P = torch.tensor(heads.P, requires_grad=True)
    Y = torch.einsum("shnm,shmv,hvd->snd", P, *map(torch.tensor, (heads.V, W.W_O)))
    (dP,) = torch.autograd.grad((Y * torch.tensor(dY)).sum(), P)
    assert near(tables().P_dP, heads.P * dP.numpy())


@pytest.mark.parametrize("head", range(3))
def test_a_linear_loss_gains_what_the_table_says(head):
    """Removing a key in one head moves the pairing with dY by the gain."""
    gain, Y = tables().gain, multihead_map(X, Z, W, B).Y
    alone = np.isfinite(B).sum(-1) == 1  # there the whole head goes, and the table says 0
    for j in range(5):
        hidden = B.copy()
        hidden[:, head, :, j] = -INF
        got = (dY * (multihead_map(X, Z, W, hidden).Y - Y)).sum(-1)
        assert near(np.where(alone[:, head], 0, got), gain[:, head, :, j])


@pytest.mark.parametrize("head", range(3))
def test_moved(head):
    heads = multihead_map(X, Z, W, B)
    got, alone = moved_without_key(heads, W.W_O)[:, head], (np.isfinite(B).sum(-1) == 1)[:, head, :, None]
    hidden = [np.where(np.arange(3)[:, None, None] == head, masked(j), B) for j in range(5)]
    Y = np.stack([multihead_map(X, Z, W, b).Y for b in hidden], axis=-2)
    want = np.linalg.norm(Y - heads.Y[..., None, :], axis=-1)
    assert near(np.where(alone, 0, got), np.where(alone, 0, want))


def test_the_rows_of_the_scores_gradient_sum_to_zero_and_the_others_do_not():
    P, P_dP, dA, gain = tables()
    assert near(dA.sum(-1), 0 * dA[..., 0])
    assert not near(P_dP.sum(-1), 0 * dA[..., 0]) and not near(gain.sum(-1), 0 * dA[..., 0])


def test_the_gradient_alone_is_refused_as_the_effect_of_a_removal():
    """The factor 1 / (1 - P) matters."""
    _, _, dA, gain = tables()
    assert not near(-dA, gain)


# ---- the trained model -------------------------------------------------------------------------


def answers(b_O):
    """What the decoder computes, with another bias of the cross-attention."""
    model, _ = task.trained()
    data = task.batch(np.random.default_rng(3), 6, held_out=True)
    Z, W = task.run_model(model, data)[0].Z, model.decoder
    W = W._replace(cross=W.cross._replace(b_O=b_O))
    return W, decode(W, data.X, Z, hide_padding(data.Z))


def test_answers_vjp():
    """The gradient in the layer's output, summed over the tokens, is that in its bias."""

    def bias_vjp(dA, b_O):
        return answers_vjp(dA, *answers(b_O))[0].sum(axis=(0, 1))

    check_vjp(bias_vjp, lambda b_O: answers(b_O)[1].A, rng.normal(size=16))


def test_what_is_masked_for_one_query_is_masked_for_no_other():
    """Each answer hangs on its own query of the cross-attention: all can be asked at once."""
    model, _ = task.trained()
    data = task.batch(np.random.default_rng(3), 4, held_out=True)
    encoded, past = task.run_model(model, data)
    one = np.zeros((4, 1, 8, 9))
    one[:, :, 1, 2] = -INF
    moved = decode(model.decoder, data.X, encoded.Z, hide_padding(data.Z) + one).A
    same = np.delete(moved == past.A, 1, axis=1)
    assert same.all() and not (moved[:, 1] == past.A[:, 1]).all()


def test_equal_values_have_weights_and_nothing_else():
    v = rng.normal(size=(2, 3, 1, 4))
    heads = multihead_map(X, Z, W, B)._replace(V=np.broadcast_to(v, (2, 3, 5, 4)))
    _, _, dA, gain = associations(dY, heads, W.W_O)
    assert near(dA, 0 * dA) and near(gain * (1 - heads.P), 0 * gain)
    P, equal = softmax(A), np.broadcast_to(V[:, :1], V.shape)
    assert near(without_key(P, equal), np.broadcast_to((P @ equal)[:, None], (2, 5, 4, 3)))
