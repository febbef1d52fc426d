"""The layers that people run: gradients against the complex step, and the record of what was compared with a library."""

import numpy as np
import pytest

import attnmath
from attnmath import Weights, bias, check_vjp, multihead, padding_mask, window_mask
from attnmath.book import todays_layers as layers
from attnmath.book.compared_layers import compared, layer_table, weight_table
from attnmath.book.notebook import formula

rng = np.random.default_rng(61)
b, H, G, n, d, d_k = 2, 4, 2, 5, 7, 6
X = rng.normal(size=(b, n, d))
W = Weights(*(rng.normal(size=shape) / 2 for shape in
              [(H, d, d_k), (G, d, d_k), (G, d, d_k), (H, d_k, d), (H, d_k), (G, d_k), (G, d_k), (d,)]))
theta, t = rng.normal(size=3), rng.integers(0, 20, (b, 1, n))
B = bias((window_mask(n, n, 3), padding_mask(np.array([[5], [4]]), n)))
gains, sigma = rng.normal(size=(2, d_k)), rng.normal(size=H)
given = dict(theta=theta, t=t, B=B)
LATENT = layers.LatentWeights(*(rng.normal(size=shape) / 2 for shape in
                                [(d, 8), (H, 8, 10), (d, 9), (d, 6), (H, 9, 4), (H, 9, 3), (H, 3, d), (d,)]))
CASES = {
    "llama": ((X, W), {}),
    "qwen3": ((X, W, *gains), {}),
    "gemma2": ((X, W), dict(gamma=0.4, c=1.5)),
    "gemma3": ((X, W, *gains), dict(gamma=0.4, epsilon=0.1)),
    "gpt_oss": ((X, W, sigma), dict(gamma=0.4)),
    "deepseek_v3": ((X, LATENT, rng.normal(size=8), rng.normal(size=9)), dict(gamma=0.4)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("biases", [True, False])
def test_every_gradient(name, biases):
    x, constants = CASES[name]
    weights = x[1] if biases else x[1]._replace(**{field: None for field in x[1]._fields if field[0] == "b"})
    check_vjp(getattr(layers, f"{name}_vjp"), getattr(layers, name), x[0], weights, *x[2:], **given, **constants)


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_every_gradient_is_proved(name, monkeypatch):
    few = Weights(*(W[k][:count, :3, :2] for k, count in enumerate((2, 1, 1))), W.W_O[:2, :2, :3])
    x, more = (X[:1, :2, :3], few, *CASES[name][0][2:]), dict(theta=theta[:1], t=t[:1, :, :2], B=B[:1, :, :2, :2])
    x = (*x[:2], *(y[:2] for y in x[2:]))
    f, f_vjp = getattr(layers, name), getattr(layers, f"{name}_vjp")
    assert check_vjp(f_vjp, f, *x, **more, exact=True)
    monkeypatch.setattr(layers, "of_groups", lambda dK, G: 2 * dK[:, :G])
    with pytest.raises(AssertionError):
        check_vjp(f_vjp, f, *x, **more, exact=True)


@pytest.mark.parametrize("name", CASES)
def test_a_forgotten_rotation_back_is_seen(name, monkeypatch):
    x, constants = CASES[name]
    back = attnmath.rotary_vjp
    monkeypatch.setattr(layers, "rotary_vjp", lambda dY, *y, **more: back(dY, *y, **more)._replace(dX=dY))
    with pytest.raises(AssertionError, match="dX|dW"):
        check_vjp(getattr(layers, f"{name}_vjp"), getattr(layers, name), *x, **given, **constants)


def test_without_a_rotation_it_is_the_layer_of_the_book():
    still = given | {"theta": 0 * theta}
    plain = multihead(X, X, W, B)
    assert np.allclose(layers.llama(X, W, **still), plain, atol=1e-12)
    assert not np.allclose(layers.llama(X, W, **given), plain, atol=1e-2)
    far = dict(gamma=d_k**-0.5, c=1e6)
    assert np.allclose(layers.gemma2(X, W, **still, **far), plain, atol=1e-6)
    assert np.allclose(layers.gpt_oss(X, W, sigma - 50, **still), plain, atol=1e-12)


@pytest.mark.parametrize("weights", [W, Weights(*W[:4])])
def test_the_librarys_numbers_and_back(weights):
    """y = x W^T, features of a head together, as torch.nn.Linear and a view make them."""
    theirs = layers.as_theirs(weights)
    assert list(theirs) == [f"{a}_proj.{kind}" for kind in ("weight", "bias")[:1 + (weights is W)] for a in "qkvo"]
    Q = (X @ theirs["q_proj.weight"].T).reshape(b, n, H, d_k).swapaxes(1, 2)
    assert np.allclose(Q, X[:, None] @ weights.W_Q)
    O = rng.normal(size=(b, H, n, d_k))
    assert np.allclose(O.swapaxes(1, 2).reshape(b, n, -1) @ theirs["o_proj.weight"].T, (O @ weights.W_O).sum(1))
    again = layers.as_weights(theirs, d_k)
    assert all(x is y is None or (x == y).all() for x, y in zip(again, weights))


def test_the_matrices_of_a_latent_and_back():
    theirs = layers.as_theirs_latent(LATENT)
    c = rng.normal(size=(n, 8))
    Q = (c @ theirs["q_b_proj.weight"].T).reshape(n, H, 10).swapaxes(0, 1)
    assert np.allclose(np.concatenate([Q[..., 4:], Q[..., :4]], -1), c @ LATENT.W_UQ)
    again = layers.as_latent_weights(theirs, 6, 3)
    assert all((x == y).all() for x, y in zip(again[:-1], LATENT)) and again.b_O is None


def test_the_record_is_within_what_the_page_says():
    record = compared()
    for name, about in record["layers"].items():
        assert max(x for x, _ in about["errors"].values()) <= 1e-10, name
        assert max(x for _, x in about["errors"].values()) <= 1e-5, name
        assert {"output", "hidden_states", "o_proj.weight"} <= about["errors"].keys()
    rows = layer_table(record).data.splitlines()
    assert len(rows) == 2 + len(record["layers"])
    record["layers"]["Llama"]["errors"]["output"] = [0.5, 0.25]
    assert layer_table(record).data.splitlines()[2].endswith("| 5e-01 | 2e-01 |")
    first, _, *rows = weight_table(record).data.splitlines()
    names = {letter for about in record["layers"].values() for letter in about["errors"]}
    assert len(rows) == len(names) and first.count("|") == 8
    assert rows[0].startswith("| `output` | 5e-01 |")


@pytest.mark.parametrize("name", [*CASES, "projected", "latent_projected"])
def test_a_layer_is_at_most_fifteen_lines_on_the_page(name):
    for way in (name, f"{name}_vjp"):
        first, *lines = formula(getattr(layers, way)).split("\n")
        assert len(lines) <= 15 and max(map(len, (first, *lines))) <= 88, way
