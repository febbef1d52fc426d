"""A layer with latents against PyTorch, its absorbed form and its laws; mistakes in each gradient; what is refused."""

import array_api_strict
import numpy as np
import pytest
import torch

import plain
from attnmath import (
    MLAWeights,
    attention,
    causal_mask,
    check_jvp,
    check_vjp,
    latent_attention,
    latent_attention_jvp,
    latent_attention_vjp,
    rms_norm,
    rms_norm_vjp,
    rotary,
)

LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor, "strict": array_api_strict.asarray}
LAYOUTS = ["half_split", "interleaved"]
layouts = pytest.mark.parametrize("layout", LAYOUTS)
libraries = pytest.mark.parametrize("array", LIBRARIES.values(), ids=LIBRARIES)

rng = np.random.default_rng(91)
b, n, d, d_q, d_k, d_r, d_c, d_v, H = 2, 5, 7, 4, 3, 6, 8, 2, 3
SHAPES = (d, d_q), (H, d_q, d_k), (H, d_q, d_r), (d, d_c), (H, d_c, d_k), (H, d_c, d_v), (d, d_r), (H, d_v, d)


def weights():
    return MLAWeights(*(rng.normal(size=shape) / shape[-2] ** 0.5 for shape in SHAPES))


X, X_dot, dY = rng.normal(size=(3, b, n, d))
W, W_dot = weights(), weights()
theta, theta_dot = rng.normal(size=(2, 2)) / 4  # four of six features
positions = rng.integers(0, 9, (b, n))
B = np.where(causal_mask(n, n), rng.normal(size=(b, 1, n, n)), -np.inf)
gamma = np.array([0.5, 1.0, 0.7])
R = (rng.random((H, n, n)) < 0.8) / 0.8


def near(got, want, size=30.0):
    got, want = np.asarray(got), np.asarray(want)
    return got.shape == want.shape and np.abs(got - want).max(initial=0) <= 2.0**-46 * size


def of_letters(array, W):
    return MLAWeights(*map(array, W))


def parts(Y):
    """The arrays of a result, those of weights among them."""
    return [x for y in Y for x in (parts(y) if isinstance(y, tuple) else [y])] if isinstance(Y, tuple) else [Y]


def polar(X, theta, t, layout):
    """The pairs as complex numbers, each multiplied by e^(i t theta)."""
    r = len(theta)
    first = slice(0, r) if layout == "half_split" else slice(0, 2 * r, 2)
    second = slice(r, 2 * r) if layout == "half_split" else slice(1, 2 * r, 2)
    angles = torch.as_tensor(t)[..., None] * theta
    z = torch.complex(X[..., first], X[..., second]) * torch.polar(torch.ones_like(angles), angles)
    Y = X.clone()
    Y[..., first], Y[..., second] = z.real, z.imag
    return Y


def theirs(X, *x, t=positions, layout="half_split", B=B, gamma=gamma, R=R):
    """The layer as DeepSeek's code has it: both parts of the features side by side, the one key repeated."""
    *matrices, theta = x
    W = MLAWeights(*matrices)
    B, gamma, R = torch.as_tensor(B), torch.as_tensor(gamma)[:, None, None], torch.as_tensor(R)
    t = torch.as_tensor(t)
    C_Q, C_KV = X @ W.W_DQ, X @ W.W_DKV
    Q_R = polar(torch.einsum("bnc,hck->bhnk", C_Q, W.W_QR), theta, t[:, None], layout)
    K_R = polar(X @ W.W_KR, theta, t, layout)[:, None].expand(-1, H, -1, -1)
    Q = torch.cat([torch.einsum("bnc,hck->bhnk", C_Q, W.W_UQ), Q_R], -1)
    K = torch.cat([torch.einsum("bnc,hck->bhnk", C_KV, W.W_UK), K_R], -1)
    V = torch.einsum("bnc,hck->bhnk", C_KV, W.W_UV)
    P = torch.softmax(gamma * Q @ K.mT + B, -1) * R
    return torch.einsum("bhnv,hvd->bnd", P @ V, W.W_O)


def given(**more):
    return dict(positions=positions, R=R) | more


# ---- values, gradients and tangents ----------------------------------------------------------------


@libraries
@layouts
def test_latent_attention(layout, array):
    got = latent_attention(array(X), of_letters(array, W), array(theta), array(B), array(gamma),
                           positions=positions, layout=layout, R=array(R))
    want = theirs(*map(torch.as_tensor, (X, *W, theta)), layout=layout)
    assert near(got, want)
    other = LAYOUTS[layout == LAYOUTS[0]]
    assert not near(latent_attention(X, W, theta, B, gamma, **given(layout=other)), want, 1e6)


def test_what_is_not_given():
    """The scale counts both parts of the features; the positions are 0, 1, 2, ..."""
    want = theirs(*map(torch.as_tensor, (X, *W, theta)), t=np.tile(np.arange(n), (b, 1)), B=np.zeros((n, n)),
                  gamma=np.full(H, (d_k + d_r) ** -0.5), R=np.ones((n, n)))
    assert near(latent_attention(X, W, theta), want)
    assert near(plain.latent_attention(X, W, theta).astype(float), want)
    assert near(plain.latent_attention(X, W, theta, B, gamma, positions[:1], "interleaved", R).astype(float),
                theirs(*map(torch.as_tensor, (X, *W, theta)), t=np.tile(positions[:1], (b, 1)), layout="interleaved"))


@layouts
def test_latent_attention_vjp(layout):
    check_vjp(latent_attention_vjp, latent_attention, X, W, theta, B, gamma, **given(layout=layout))
    check_vjp(latent_attention_vjp, latent_attention, X[0], W, theta, layout=layout)
    x = [torch.tensor(a, requires_grad=True) for a in (X, *W, theta)]
    want = torch.autograd.grad(theirs(*x, layout=layout), x, torch.as_tensor(dY))
    got = parts(latent_attention_vjp(dY, X, W, theta, B, gamma, **given(layout=layout)))
    assert len(got) == 12
    assert all(near(mine, other, 1e3) for mine, other in zip(got, want))


@layouts
def test_latent_attention_jvp(layout):
    check_jvp(latent_attention_jvp, latent_attention, X, W, theta, B, gamma, **given(layout=layout))
    none = latent_attention_jvp(None, None, None, None, None, X, W, theta)
    assert none.shape == X.shape and (none == 0).all()


@layouts
@pytest.mark.parametrize(("check", "derivative"), [(check_vjp, latent_attention_vjp), (check_jvp, latent_attention_jvp)])
def test_a_small_layer_is_proved(check, derivative, layout):
    check(derivative, latent_attention, *SMALL, positions=np.array([1, 3]), layout=layout, exact=True)


def test_heads_of_one_feature_and_no_turned_ones():
    own = MLAWeights(*(rng.normal(size=s) for s in [(d, 1), (1, 1, 1), (1, 1, 0), (d, 1), (1, 1, 1), (1, 1, 1), (d, 0), (1, 1, d)]))
    check_vjp(latent_attention_vjp, latent_attention, X, own, theta[:0])
    C = X @ own.W_DKV
    want = attention(X @ own.W_DQ @ own.W_UQ[0], C @ own.W_UK[0], C @ own.W_UV[0]) @ own.W_O[0]
    assert near(latent_attention(X, own, theta[:0]), want)


def test_positions_may_have_more_axes_than_tokens():
    got = latent_attention(X[0], W, theta, positions=positions)
    assert near(got, [latent_attention(X[0], W, theta, positions=t) for t in positions])
    check_vjp(latent_attention_vjp, latent_attention, X[0], W, theta, positions=positions)


# ---- laws ------------------------------------------------------------------------------------------


def test_the_absorbed_form_is_the_same():
    """Scores and outputs from the latents alone, each head with two small matrices of its own."""
    C_Q, C = X @ W.W_DQ, X @ W.W_DKV
    K_R = rotary(X @ W.W_KR, theta, positions=positions)
    want = latent_attention(X, W, theta, B, gamma, positions=positions)
    Y = 0
    for h in range(H):
        Q_R = rotary(C_Q @ W.W_QR[h], theta, positions=positions)
        Q = np.concatenate([C_Q @ W.W_UQ[h] @ W.W_UK[h].T, Q_R], -1)
        Y = Y + attention(Q, np.concatenate([C, K_R], -1), C, B[:, 0], gamma[h]) @ (W.W_UV[h] @ W.W_O[h])
    assert near(Y, want)


def test_the_gauge_of_the_latents():
    """Both sides of each latent learn the same; turned parts and masks do not matter."""
    dW = latent_attention_vjp(dY, X, W, theta, B, gamma, **given()).dW
    up = sum(dK @ K.T + dV @ V.T for dK, K, dV, V in zip(dW.W_UK, W.W_UK, dW.W_UV, W.W_UV))
    assert near(W.W_DKV.T @ dW.W_DKV, up, 1e3)
    up = sum(dQ @ Q.T + dR @ M.T for dQ, Q, dR, M in zip(dW.W_UQ, W.W_UQ, dW.W_QR, W.W_QR))
    assert near(W.W_DQ.T @ dW.W_DQ, up, 1e3)


def test_with_a_norm_on_the_latent_the_gauge_is_gone():
    """As DeepSeek has it: then W^T dW is no longer the same on both sides, its trace is 0."""
    K_R = rotary(X @ W.W_KR, theta, positions=positions)
    alpha = np.ones(d_c)
    C = rms_norm(X @ W.W_DKV, alpha, epsilon=0)
    C_ = torch.tensor(C, requires_grad=True)
    up = [torch.tensor(x, requires_grad=True) for x in (W.W_UK, W.W_UV)]
    Q = torch.as_tensor(np.stack([X @ W.W_DQ @ M for M in W.W_UQ], 1))
    A = Q @ torch.einsum("bnc,hck->bhnk", C_, up[0]).mT + torch.as_tensor(B) + torch.as_tensor(K_R @ K_R.mT)[:, None]
    Y = torch.einsum("bhnv,hvd->bnd", torch.softmax(A, -1) @ torch.einsum("bnc,hck->bhnk", C_, up[1]), torch.as_tensor(W.W_O))
    dC, dK, dV = (x.numpy() for x in torch.autograd.grad(Y, (C_, *up), torch.as_tensor(dY)))
    dS = rms_norm_vjp(dC, X @ W.W_DKV, alpha, epsilon=0).dX
    down = W.W_DKV.T @ np.einsum("bnd,bnc->dc", X, dS)
    right = sum(x @ y.T for x, y in zip((*dK, *dV), (*W.W_UK, *W.W_UV)))
    assert abs(np.trace(down)) < 1e-13 * np.abs(down).max() * d_c
    assert not near(down, right, 1e9) and abs(np.trace(right)) > 0.1


def test_every_query_meets_the_turned_key_of_all_heads():
    """Its gradient is the sum over the heads; here each head's share is found with weights of its own."""
    whole = latent_attention_vjp(dY, X, W, theta, B, gamma, **given()).dW.W_KR
    shares = 0
    for h in range(H):
        alone = W._replace(W_UQ=W.W_UQ[h:h + 1], W_QR=W.W_QR[h:h + 1], W_UK=W.W_UK[h:h + 1],
                           W_UV=W.W_UV[h:h + 1], W_O=W.W_O[h:h + 1])
        shares = shares + latent_attention_vjp(dY, X, alone, theta, B, gamma[h], **given(R=R[h])).dW.W_KR
    assert near(whole, shares, 1e3)


# ---- mistakes that the checks refuse -----------------------------------------------------------------

small_rng = np.random.default_rng(92)
SMALL_SHAPES = (2, 1), (2, 1, 1), (2, 1, 2), (2, 2), (2, 2, 1), (2, 2, 1), (2, 2), (2, 1, 2)
SMALL = (small_rng.normal(size=(2, 2)), MLAWeights(*(small_rng.normal(size=s) for s in SMALL_SHAPES)),
         np.ones(1), small_rng.normal(size=(2, 2)), np.array(0.7))


def edited(name, edit):
    """The gradients, one of which is replaced: edit(gradients, dY, X, W, theta, constants)."""
    def wrong(dY, X, W, theta, *x, **c):
        found = latent_attention_vjp(dY, X, W, theta, *x, **c)
        new = edit(found, dY, X, W, theta, c)
        if name in found._fields:
            return found._replace(**{name: new})
        return found._replace(dW=found.dW._replace(**{name: new}))
    return wrong


def turned_forward(g, dY, X, W, theta, c):
    """The gradient of the one key, turned forward and not back."""
    dK_R = np.linalg.pinv(X.reshape(-1, X.shape[-1]).T) @ g.dW.W_KR
    dK_R = rotary(dK_R.reshape(*X.shape[:-1], -1), theta, **c)
    return X.reshape(-1, X.shape[-1]).T @ rotary(dK_R, theta, **c).reshape(-1, dK_R.shape[-1])


def without(*names):
    """dX without what returns through these matrices."""
    def dX(g, dY, X, W, theta, c):
        lost = sum(X @ np.linalg.pinv(X.T @ X) @ getattr(g.dW, name) @ getattr(W, name).T for name in names)
        return g.dX - lost
    return dX


WRONG = {
    "the one key is turned forward": ("W_KR", turned_forward),
    "the one key has the gradient of a single head": ("W_KR", lambda g, dY, X, W, *_: g.dW.W_KR / len(W.W_UQ)),
    "the latent forgets the values": (
        "W_DKV", lambda g, dY, X, W, *_: g.dW.W_DKV - np.linalg.pinv(W.W_DKV.T) @ sum(x @ y.T for x, y in zip(g.dW.W_UV, W.W_UV))),
    "the latent forgets the keys": (
        "W_DKV", lambda g, dY, X, W, *_: g.dW.W_DKV - np.linalg.pinv(W.W_DKV.T) @ sum(x @ y.T for x, y in zip(g.dW.W_UK, W.W_UK))),
    "the latent of the queries forgets the turned part": (
        "W_DQ", lambda g, dY, X, W, *_: g.dW.W_DQ - np.linalg.pinv(W.W_DQ.T) @ sum(x @ y.T for x, y in zip(g.dW.W_QR, W.W_QR))),
    "nothing returns to the tokens through the one key": ("dX", without("W_KR")),
    "nothing returns to the tokens through the latent": ("dX", without("W_DKV")),
    "nothing returns to the tokens through the queries": ("dX", without("W_DQ")),
    "the up-projection of the keys has the wrong sign": ("W_UK", lambda g, *_: -g.dW.W_UK),
    "the heads of the values change places": ("W_UV", lambda g, *_: g.dW.W_UV[::-1]),
    "the heads of the outputs change places": ("W_O", lambda g, *_: g.dW.W_O[::-1]),
    "the up-projection of the queries without the scale": ("W_UQ", lambda g, *_: g.dW.W_UQ / 0.7),
    "the turned queries without the scale": ("W_QR", lambda g, *_: g.dW.W_QR / 0.7),
    "the frequencies twice": ("dtheta", lambda g, *_: 2 * g.dtheta),
    "the scale misses a part": ("dgamma", lambda g, *_: g.dgamma / 2),
}


@pytest.mark.parametrize(("name", "edit"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_mistaken_gradient_is_named(name, edit, layout):
    where = dict(positions=np.array([1, 3]), layout=layout)
    with pytest.raises(AssertionError, match=f"^(d|dW.)?{name}[ :]|^dW.{name}"):
        check_vjp(edited(name, edit), latent_attention, *SMALL, **where)


@pytest.mark.parametrize("field", MLAWeights._fields)
def test_a_forgotten_tangent_is_named(field):
    def wrong(X_dot, W_dot, *x, **c):
        return latent_attention_jvp(X_dot, W_dot._replace(**{field: 0 * getattr(W, field)}), *x, **c)

    with pytest.raises(AssertionError, match=field):
        check_jvp(wrong, latent_attention, X, W, theta, B, gamma, **given())


def test_a_wrong_turn_is_refuted():
    def forward(dY, X, W, theta, *x, **c):
        g = latent_attention_vjp(dY, X, W, theta, *x, **c)
        return g._replace(dtheta=-g.dtheta)

    with pytest.raises(AssertionError, match="^refuted: dtheta"):
        check_vjp(forward, latent_attention, *SMALL, positions=np.array([1, 3]), exact=True)


# ---- kinds of numbers --------------------------------------------------------------------------------

CALLS = {
    "forward": lambda a: latent_attention(a(X), of_letters(a, W), a(theta), a(B), a(gamma)),
    "vjp": lambda a: latent_attention_vjp(a(dY), a(X), of_letters(a, W), a(theta), a(B), a(gamma), R=a(R)),
    "jvp": lambda a: latent_attention_jvp(
        a(X_dot), of_letters(a, W_dot), a(theta_dot), None, None, a(X), of_letters(a, W), a(theta), a(B), layout="interleaved"),
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@calls
def test_every_library_gives_the_same(call):
    for array in (torch.as_tensor, array_api_strict.asarray):
        assert all(near(x, y, 1e3) for x, y in zip(parts(call(array)), parts(call(np.asarray)), strict=True))


@calls
@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_results_keep_the_number_type(call, dtype):
    assert {y.dtype for y in parts(call(lambda x: x.astype(dtype)))} == {np.dtype(dtype)}
    assert {str(y.dtype) for y in parts(call(lambda x: torch.as_tensor(x.astype(dtype))))} == {f"torch.{dtype}"}


def test_nothing_is_modified():
    copies = [x.copy() for x in (X, *W, theta, B, gamma)]
    for x in copies:
        x.setflags(write=False)
    x, *matrices, frequencies, mask, scale = copies
    latent_attention_vjp(x, x, MLAWeights(*matrices), frequencies, mask, scale, positions=positions)


# ---- what is refused, in one sentence ------------------------------------------------------------------

FIELDS = ", ".join(MLAWeights._fields)
odd = W._replace(W_QR=W.W_QR[..., :5], W_KR=W.W_KR[:, :5])
REFUSED = [
    (lambda: latent_attention(X, odd, theta), ValueError,
     "latent_attention: W.W_KR has 5 features; a rotation needs an even number, two for each pair"),
    (lambda: latent_attention_vjp(dY, X, odd, theta), ValueError,
     "latent_attention_vjp: W.W_KR has 5 features; a rotation needs an even number, two for each pair"),
    (lambda: latent_attention(X, W, np.ones(4)), ValueError,
     "latent_attention: theta has 4 frequencies; it needs 3 at most, one for two of the 6 features of W.W_KR"),
    (lambda: latent_attention(X, tuple(W), theta), TypeError,
     f"latent_attention: W is a tuple; it needs to be MLAWeights, a named tuple of {FIELDS}"),
    (lambda: latent_attention(X, W._replace(W_KR=W.W_KR[:, :4]), theta), ValueError,
     "latent_attention: W.W_KR has shape (7, 4); it needs (7, 6) to match X of shape (2, 5, 7) and W.W_QR of shape (3, 4, 6)"),
    (lambda: latent_attention(X, W._replace(W_UV=W.W_UV[:2]), theta), ValueError,
     "latent_attention: W.W_UV has shape (2, 8, 2); it needs (3, 8, d_v) to match W.W_UK of shape (3, 8, 3)"),
    (lambda: latent_attention(X[..., :6], W, theta), ValueError,
     "latent_attention: W.W_DQ has shape (7, 4); it needs (6, d_q) to match X of shape (2, 5, 6)"),
    (lambda: latent_attention(X, W, theta, np.zeros((4, 5))), ValueError,
     "latent_attention: B has shape (4, 5); it needs one that broadcasts to (2, 3, 5, 5), the shape of the scores"),
    (lambda: latent_attention(X, W, theta, positions=[0, 1, 2]), ValueError,
     "latent_attention: positions has shape (3,); it needs (..., 5) to match X of shape (2, 5, 7)"),
    (lambda: latent_attention(X, W, theta, gamma=np.ones(2)), ValueError,
     "latent_attention: gamma has shape (2,); it needs () or (3,) to match W.W_UQ of shape (3, 4, 3)"),
    (lambda: latent_attention(X, W, theta, layout="half"), ValueError,
     "latent_attention: layout is 'half'; it needs to be 'half_split' or 'interleaved'"),
    (lambda: latent_attention(X, W._replace(W_O=W.W_O * np.inf), theta), ValueError,
     "latent_attention: W.W_O of shape (3, 2, 7) holds NaN or infinity; it needs finite numbers"),
    (lambda: latent_attention_vjp(dY[..., :6], X, W, theta), ValueError,
     "latent_attention_vjp: dY has shape (2, 5, 6); it needs (2, 5, 7), the shape of Y"),
]


@pytest.mark.parametrize(("call", "kind", "sentence"), REFUSED)
def test_bad_input_gets_one_clear_sentence(call, kind, sentence):
    with pytest.raises(kind) as told:
        call()
    assert str(told.value) == sentence
