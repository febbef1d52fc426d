"""The transformer that is trained by hand against PyTorch's, and what it has learned."""

import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from attnmath import check_vjp, cross_entropy
from attnmath._words.named_tuples import each_part
from attnmath.book import sequences as task
from attnmath.book.networks import loss_of, twin, write_weights
from attnmath.book.sequences import COPY, EDGE, LONGEST, REVERSE, SHORTEST, SYMBOLS, adam, batch, gradient
from attnmath.book.training import Norm, Transformer, decode, encode, hide_padding, start

torch.set_num_threads(1)  # on matrices this small, threads only wait for each other
SIZES = dict(tokens=SYMBOLS + 3, m=LONGEST + 2, n=LONGEST + 1)
HELD_OUT = batch(np.random.default_rng(2), 1000, held_out=True)


def shaken(model, seed=3):
    """The model with every number moved, so that no bias is zero and no gain one."""
    rng = np.random.default_rng(seed)
    return each_part(lambda x: x + 0.3 * rng.normal(size=x.shape), model)


def leaves(tree):
    return [leaf for part in tree for leaf in leaves(part)] if isinstance(tree, tuple) else [tree]


# ---- the task ----------------------------------------------------------------------------------


def read(rows):
    """The tokens of one sequence, without the padding behind them."""
    there = rows.any(-1)
    assert (there[:-1] >= there[1:]).all() and set(np.unique(rows)) <= {0, 1}
    assert (rows.sum(-1) == there).all()
    return rows.argmax(-1)[there].tolist()


def test_a_batch_is_what_it_says():
    data, seen = batch(np.random.default_rng(0), 300), set()
    assert data.Z.shape == (300, LONGEST + 2, SYMBOLS + 3)
    assert data.X.shape == data.E.shape == (300, LONGEST + 1, SYMBOLS + 3)
    for Z, X, E, place in zip(*data):
        first, *symbols, last = read(Z)
        assert first == last == EDGE and SHORTEST <= len(symbols) <= LONGEST and max(symbols) < SYMBOLS
        asked, *before = read(X)
        assert read(E) == [*before, EDGE]
        assert before == (symbols if asked == COPY else symbols[::-1]) and asked in (COPY, REVERSE)
        assert (Z.argmax(-1)[place[place >= 0]] == E.argmax(-1)[place >= 0]).all()
        assert ((place >= 0) == E.any(-1)).all()
        seen.add((asked, len(symbols)))
    assert len(seen) == 2 * (LONGEST - SHORTEST + 1)


def test_what_is_held_out_is_never_trained_on():
    def sums(data):
        return {sum(x for x in read(Z) if x < SYMBOLS) % 5 for Z in data.Z}
    assert sums(HELD_OUT) == {0}
    assert sums(batch(np.random.default_rng(1), 300)) == {1, 2, 3, 4}


def test_an_edge_is_found_at_the_end_in_both_directions():
    data = batch(np.random.default_rng(5), 50)
    for Z, X, place in zip(data.Z, data.X, data.place):
        end = place[place >= 0][-1]
        assert end == (0 if read(X)[0] == REVERSE else len(read(Z)) - 1)


# ---- forward and backward ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_loss_and_all_gradients_are_those_of_pytorch(seed):
    model, data = shaken(start(np.random.default_rng(seed), **SIZES)), batch(np.random.default_rng(7), 5)
    loss, dmodel = gradient(model, data)
    net, ours = twin(model), twin(dmodel)
    theirs = loss_of(net, data)
    theirs.backward()
    assert abs(loss - theirs.item()) <= 1e-14 * loss
    for (name, parameter), want in zip(net.named_parameters(), ours.parameters(), strict=True):
        largest = max(abs(parameter.grad).max().item(), 1e-3)
        assert abs(parameter.grad - want).max() <= 1e-12 * largest, name


def test_no_gradient_of_the_model_is_forgotten():
    model = shaken(start(np.random.default_rng(0), **SIZES))
    _, dmodel = gradient(model, batch(np.random.default_rng(7), 20))
    zero = [abs(g).max() < 1e-15 for g in leaves(dmodel)]
    assert sum(zero) == 3  # those of the biases of the keys, one for each layer of attention
    assert [x.shape for x in leaves(dmodel)] == [x.shape for x in leaves(model)]


def test_the_complex_step_agrees_through_the_whole_model():
    small = shaken(start(np.random.default_rng(4), **SIZES, d=4, H=1, d_k=3, d_u=2))
    data = batch(np.random.default_rng(8), 2)

    def loss(places):
        encoded = encode(small.encoder._replace(places=places), data.Z)
        A = decode(small.decoder, data.X, encoded.Z, hide_padding(data.Z)).A
        return cross_entropy(A, E=data.E) / data.E.sum()

    def loss_vjp(d, places):
        encoder = small.encoder._replace(places=places)
        return d * gradient(small._replace(encoder=encoder), data)[1].encoder.places

    check_vjp(loss_vjp, loss, small.encoder.places)


def test_a_forgotten_residual_is_seen(monkeypatch):
    model, data = shaken(start(np.random.default_rng(0), **SIZES)), batch(np.random.default_rng(7), 5)
    net = twin(model)
    loss_of(net, data).backward()
    monkeypatch.setattr("attnmath.book.training.norm_vjp", lambda dN, X, norm: (0 * X, Norm(*norm)))
    wrong = twin(gradient(model, data)[1])
    errors = [abs(p.grad - w).max().item() for p, w in zip(net.parameters(), wrong.parameters())]
    assert max(errors) > 0.01


def test_the_future_and_the_padding_are_hidden():
    model, data = shaken(start(np.random.default_rng(0), **SIZES)), batch(np.random.default_rng(9), 30)
    encoded, decoded = task.run_model(model, data)
    hidden = ~data.Z.any(-1)
    assert hidden.any()
    for P in (encoded.own.P, decoded.cross.P):
        assert (np.moveaxis(P, -1, 1)[hidden] == 0).all()
    assert (decoded.own.P[..., np.triu_indices(LONGEST + 1, 1)[0], np.triu_indices(LONGEST + 1, 1)[1]] == 0).all()


# ---- steps -------------------------------------------------------------------------------------


def paths(steps, size=8):
    """Losses and last weights of some steps of Adam, ours and PyTorch's."""
    rng = np.random.default_rng(1)
    state = task.first(rng)
    net = twin(state.model)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, (0.9, 0.98), 1e-8)
    losses = []
    for _ in range(steps):
        data = batch(rng, size)
        loss, dmodel = gradient(state.model, data)
        state = adam(state, dmodel, 3e-3)
        theirs = loss_of(net, data)
        optimizer.zero_grad()
        theirs.backward()
        optimizer.step()
        losses.append((loss, theirs.item()))
    return np.array(losses), net, twin(state.model)


def test_a_hundred_and_twenty_steps_are_those_of_pytorch():
    losses, net, ours = paths(120)
    assert losses[-20:, 0].mean() < 0.9 * losses[:20, 0].mean()
    assert (abs(losses[:, 0] - losses[:, 1]) <= 1e-10 * losses[:, 1]).all()
    for (name, a), b in zip(net.named_parameters(), ours.parameters(), strict=True):
        assert abs(a - b).max() <= 1e-8, name


def test_the_stored_path_is_walked_again():
    stored = task.trained()[1]
    rng = np.random.default_rng(task.TRAINING_SEED)
    again = [loss for _, loss, _ in islice(task.training_steps(task.first(rng), rng), 20)]
    assert len(stored) == 100 and np.allclose(again, stored[:20], rtol=1e-10, atol=0)


def test_the_size_of_a_step_grows_and_shrinks_to_nothing():
    sizes = [task.step_size(t) for t in range(1, task.TRAINING_STEPS + 1)]
    assert np.argmax(sizes) + 1 in range(task.WARM, task.TRAINING_STEPS // 2 + 1) and max(sizes) == task.RATE
    assert sizes[0] == task.RATE / task.WARM and sizes[-1] == 0 <= min(sizes)


# ---- what was learned --------------------------------------------------------------------------


def test_the_trained_model_solves_what_it_has_not_seen():
    assert task.solved(task.trained()[0], HELD_OUT).mean() >= 0.99


def test_an_untrained_model_solves_nothing():
    assert task.solved(start(np.random.default_rng(1), **SIZES), HELD_OUT).mean() < 0.01


def test_what_is_written_does_not_look_at_the_answer():
    model, data = task.trained()[0], batch(np.random.default_rng(3), 20, held_out=True)
    blind = data._replace(X=data.X * (np.arange(LONGEST + 1) == 0)[:, None], E=0 * data.E)
    assert (task.written_out(model, blind) == task.written_out(model, data)).all()


def test_a_wrong_answer_is_not_solved():
    model, data = task.trained()[0], batch(np.random.default_rng(3), 20, held_out=True)
    other = data._replace(E=np.roll(data.E, 1, axis=-1))
    assert not task.solved(model, other).any()


def test_saved_weights_are_loaded_again(tmp_path, monkeypatch):
    monkeypatch.setattr(task, "WEIGHTS_FILE", tmp_path / "trained.json")
    model = start(np.random.default_rng(6), **SIZES)
    task.save(model, [1.5, 0.25])
    loaded, losses = task.trained()
    assert losses.tolist() == [1.5, 0.25] and isinstance(loaded, Transformer)
    for a, b in zip(leaves(model), leaves(loaded), strict=True):
        assert (a.round(4) == b).all() and a.shape == b.shape
    first = task.WEIGHTS_FILE.read_bytes()
    task.save(loaded, [1.5, 0.25])
    assert task.WEIGHTS_FILE.read_bytes() == first and len(first) <= 100_000


def test_the_stored_weights_are_small():
    assert task.WEIGHTS_FILE.stat().st_size <= 100_000


def test_load_writes_every_parameter():
    model = start(np.random.default_rng(6), **SIZES)
    net = twin(model)
    write_weights(net, each_part(lambda x: 0 * x + 2.5, model))
    assert all((p == 2.5).all() for p in net.parameters())


def test_the_command_trains(tmp_path):
    """Ten steps of the command, which writes elsewhere."""
    root = Path(__file__).resolve().parents[2]
    code = (f"import runpy, pathlib, attnmath.book.sequences as s; s.TRAINING_STEPS = 10;"
            f"s.WEIGHTS_FILE = pathlib.Path({str(tmp_path / 'trained.json')!r});"
            f"runpy.run_path({str(root / 'tools' / 'train.py')!r})")
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.startswith("step 1: loss ") and "trained.json" in told.splitlines()[-1]
