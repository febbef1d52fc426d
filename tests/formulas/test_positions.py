"""Rotations against complex numbers that are multiplied, slopes and tables against autograd; what is refused."""

import array_api_strict
import numpy as np
import pytest
import torch

import plain
from attnmath import (
    alibi,
    alibi_jvp,
    alibi_vjp,
    attention,
    attention_vjp,
    bias,
    causal_mask,
    check_jvp,
    check_vjp,
    relative_buckets,
    rotary,
    rotary_jvp,
    rotary_vjp,
    table_bias,
    table_bias_jvp,
    table_bias_vjp,
)

LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor, "strict": array_api_strict.asarray}
LAYOUTS = ["half_split", "interleaved"]
layouts = pytest.mark.parametrize("layout", LAYOUTS)
libraries = pytest.mark.parametrize("array", LIBRARIES.values(), ids=LIBRARIES)

rng = np.random.default_rng(81)
X, X_dot, dY = rng.normal(size=(3, 2, 3, 4, 8))
theta, theta_dot = rng.normal(size=(2, 3))  # six of eight features
positions = rng.integers(-9, 30, (2, 1, 4))
eta, eta_dot = rng.normal(size=(2, 3))
beta, beta_dot = rng.normal(size=(2, 3, 8))
buckets = relative_buckets(4, 7, buckets=8, distance=3)


def near(got, want, size=30.0):
    got, want = np.asarray(got), np.asarray(want)
    return got.shape == want.shape and np.abs(got - want).max(initial=0) <= 2.0**-46 * size


def polar(X, theta, t, layout):
    """The pairs as complex numbers, each multiplied by e^(i t theta)."""
    X, r = torch.as_tensor(X), len(theta)
    first = slice(0, r) if layout == "half_split" else slice(0, 2 * r, 2)
    second = slice(r, 2 * r) if layout == "half_split" else slice(1, 2 * r, 2)
    angles = torch.as_tensor(t)[..., None] * theta
    z = torch.complex(X[..., first], X[..., second]) * torch.polar(torch.ones_like(angles), angles)
    Y = X.expand(*z.shape[:-1], X.shape[-1]).clone()
    Y[..., first], Y[..., second] = z.real, z.imag
    return Y


# ---- what the functions mean, entry by entry; also for letters -----------------------------------


def plain_rotary(X, theta, *, positions=None, layout="half_split"):
    """Each pair by itself."""
    X, pairs = plain.entries(X)[0], len(theta)
    t = np.arange(X.shape[-2]) if positions is None else np.asarray(positions)
    lead = np.broadcast_shapes(X.shape[:-1], t.shape)
    Y, t = np.array(np.broadcast_to(X, (*lead, X.shape[-1]))), np.broadcast_to(t, lead)
    for place in np.ndindex(lead):
        for p in range(pairs):
            a, b = (p, p + pairs) if layout == "half_split" else (2 * p, 2 * p + 1)
            x, y, angle = Y[(*place, a)], Y[(*place, b)], int(t[place]) * theta[p]
            Y[(*place, a)] = x * np.cos(angle) - y * np.sin(angle)
            Y[(*place, b)] = x * np.sin(angle) + y * np.cos(angle)
    return Y


def plain_alibi(eta, *, n, m, align="lower_right"):
    """Minus the slope, as often as there are places between."""
    ahead = m - n if align == "lower_right" else 0
    found = np.empty((*np.shape(eta), n, m), object)
    for *head, i, j in np.ndindex(found.shape):
        found[(*head, i, j)] = -abs(i + ahead - j) * eta[tuple(head)]
    return found


def plain_relative_buckets(n, m, *, buckets=32, distance=128, sides="both", align="lower_right"):
    """As many as the bounds that the distance has reached: near^(steps - k) far^k, of distance^steps."""
    side = buckets // 2 if sides == "both" else buckets
    near, ahead = side // 2, m - n if align == "lower_right" else 0
    steps, found = side - near, np.zeros((n, m), int)
    for i, j in np.ndindex(n, m):
        x = abs(i + ahead - j)
        far = sum(x**steps >= near ** (steps - k) * distance**k for k in range(1, steps))
        own = x if x < near else near + far
        later = side if sides == "both" else -own
        found[i, j] = own + later * (j > i + ahead)
    return found


def plain_table_bias(beta, *, buckets):
    """Looked up, pair by pair."""
    found = np.empty((*beta.shape[:-1], *np.shape(buckets)), object)
    for *head, i, j in np.ndindex(found.shape):
        found[(*head, i, j)] = beta[(*head, int(buckets[i][j]))]
    return found


def test_what_the_functions_mean():
    for layout in LAYOUTS:
        want = polar(X, torch.as_tensor(theta), positions, layout)
        assert near(plain_rotary(X, theta, positions=positions, layout=layout).astype(float), want)
    assert near(plain_alibi(eta, n=2, m=4).astype(float), -eta[:, None, None] * abs(np.arange(2)[:, None] + 2 - np.arange(4)))
    given = {"buckets": 8, "distance": 20}
    assert (plain_relative_buckets(1, 40, **given, sides="before") == relative_buckets(1, 40, **given, sides="before")).all()
    assert (plain_relative_buckets(5, 3, **given) == relative_buckets(5, 3, **given)).all()
    assert near(plain_table_bias(beta, buckets=buckets).astype(float), beta[..., buckets])


# ---- values ------------------------------------------------------------------------------------


@libraries
@layouts
@pytest.mark.parametrize("pairs", [0, 1, 3, 4])
def test_rotary(pairs, layout, array):
    own = np.resize(theta, pairs)
    got = rotary(array(X), array(own), positions=positions, layout=layout)
    assert near(got, polar(X, torch.as_tensor(own), positions, layout))
    assert near(rotary(array(X), array(own), layout=layout), polar(X, torch.as_tensor(own), np.arange(4), layout))


@layouts
def test_leading_axes_of_positions_broadcast(layout):
    row = X[0, 0]
    got = rotary(row, theta, positions=positions, layout=layout)
    assert got.shape == (2, 1, 4, 8)
    assert near(got, polar(row, torch.as_tensor(theta), positions, layout))
    found = rotary_vjp(dY[:, :1], row, theta, positions=positions, layout=layout)
    assert found.dX.shape == row.shape and found.dtheta.shape == theta.shape
    check_vjp(rotary_vjp, rotary, row, theta, positions=positions, layout=layout)


def test_rotary_by_hand():
    quarter = np.array([np.pi / 2])
    rows = np.array([[1.0, 2, 3, 4]] * 3)
    assert near(rotary(rows, quarter), [[1, 2, 3, 4], [-2, 1, 3, 4], [-1, -2, 3, 4]])
    both = np.array([np.pi / 2, np.pi])
    assert near(rotary(rows, both)[1], [-3, -2, 1, -4])
    assert near(rotary(rows, both, layout="interleaved")[1], [-2, 1, -3, -4])


def test_scaled_frequencies_are_frequencies():
    """Interpolated positions, NTK's larger base and YaRN's mixture, as their papers have them."""
    base, scale, r = 10000.0, 4.0, 4
    plain = base ** (-np.arange(r) / r)
    t = np.arange(4)
    assert near(rotary(X, plain / scale, positions=t), polar(X, torch.as_tensor(plain), t / scale, "half_split"))
    larger = (base * scale ** (r / (r - 1))) ** (-np.arange(r) / r)
    assert near(larger[0], plain[0]) and near(larger[-1], plain[-1] / scale)
    ramp = np.clip((np.arange(r) - 1) / 2, 0, 1)
    mixed = plain / scale * ramp + plain * (1 - ramp)
    check_vjp(rotary_vjp, rotary, X, larger)
    check_vjp(rotary_vjp, rotary, X, mixed, layout="interleaved")


@layouts
def test_only_differences_of_positions_matter(layout):
    Q, K = rng.normal(size=(2, 5, 8))
    t, u = np.array([0, 4, 1, 9, 2]), np.array([3, 0, 8, 1, 5])
    scores = [rotary(Q, theta, positions=t + c, layout=layout) @ rotary(K, theta, positions=u + c, layout=layout).T
              for c in (0, 11, -40)]
    assert near(scores[1], scores[0], 1e3) and near(scores[2], scores[0], 1e3)
    apart = rotary(Q, theta, positions=t + 1, layout=layout) @ rotary(K, theta, positions=u, layout=layout).T
    assert not near(apart, scores[0], 1e6)


def test_alibi():
    want = [[[-2, -1, 0, -1], [-3, -2, -1, 0]]]
    assert near(alibi(np.array([1.0]), n=2, m=4), want)
    assert near(alibi(np.array([1.0]), n=2, m=4, align="upper_left"), [[[0, -1, -2, -3], [-1, 0, -1, -2]]])
    assert near(alibi(eta, n=2, m=4), eta[:, None, None] * np.array(want))
    assert alibi(np.asarray(2.0), n=2, m=4).shape == (2, 4) and alibi(np.ones((2, 3)), n=2, m=4).shape == (2, 3, 2, 4)


def test_behind_a_causal_mask_a_slope_times_the_place_of_the_key_is_enough():
    """As Bloom has it: the rest is the same for the whole row, and a softmax does not see it."""
    Q, K, V = rng.normal(size=(3, 3, 5, 4))
    slopes = np.array([0.5, 0.25, 0.125])
    mask = causal_mask(5, 5)
    one, other = bias(mask, alibi(slopes, n=5, m=5)), bias(mask, slopes[:, None, None] * np.arange(5.0))
    assert near(attention(Q, K, V, one), attention(Q, K, V, other))
    assert not near(attention(Q, K, V, alibi(slopes, n=5, m=5)), attention(Q, K, V, slopes[:, None, None] * np.arange(5.0)))


def test_relative_buckets():
    assert relative_buckets(1, 9, buckets=4, distance=6, sides="before").tolist() == [[3, 3, 3, 3, 3, 2, 2, 1, 0]]
    both = relative_buckets(5, 5, buckets=8, distance=4)
    assert both[4].tolist() == [3, 3, 2, 1, 0] and both[0].tolist() == [0, 5, 6, 7, 7]
    assert relative_buckets(3, 5, buckets=8, distance=4).tolist() == both[2:].tolist()
    assert relative_buckets(3, 5, buckets=8, distance=4, align="upper_left").tolist() == both[:3].tolist()
    assert relative_buckets(2, 0).shape == (2, 0)


@pytest.mark.parametrize(("count", "far"), [(8, 20), (32, 128), (32, 100), (64, 500), (5, 9)])
def test_buckets_grow_by_equal_factors(count, far):
    """By the logarithm, and by hand where it is a whole number."""
    found = relative_buckets(1, 600, buckets=count, distance=far, sides="before")[0, ::-1]
    near_ones = count // 2
    x = np.arange(near_ones, 600)
    step = np.log(x / near_ones) / np.log(far / near_ones) * (count - near_ones)
    whole = np.abs(step - step.round()) < 1e-9
    want = near_ones + np.where(whole, step.round(), np.floor(step))
    assert found[:near_ones].tolist() == list(range(near_ones))
    assert (found[near_ones:] == np.minimum(want, count - 1)).all()


@libraries
def test_table_bias(array):
    want = beta[..., buckets]
    assert near(table_bias(array(beta), buckets=buckets), want)
    own = buckets.tolist() if array is np.asarray else array(buckets)
    assert near(table_bias(array(beta), buckets=own), want)
    assert near(table_bias(array(beta[0]), buckets=buckets), want[0])


# ---- gradients and tangents ----------------------------------------------------------------------


def autograd(f, dY, *x):
    x = [torch.tensor(a, requires_grad=True) for a in x]
    return [a.numpy() for a in torch.autograd.grad(f(*x), x, torch.as_tensor(dY))]


@layouts
@pytest.mark.parametrize("pairs", [0, 1, 3, 4])
def test_rotary_vjp(pairs, layout):
    own = np.resize(theta, pairs)
    check_vjp(rotary_vjp, rotary, X, own, positions=positions, layout=layout)
    want = autograd(lambda x, theta: polar(x, theta, positions, layout), dY, X, own)
    for got, theirs in zip(rotary_vjp(dY, X, own, positions=positions, layout=layout), want, strict=True):
        assert near(got, theirs, 1e4)


@layouts
@pytest.mark.parametrize("pairs", [0, 1, 3, 4])
def test_rotary_jvp(pairs, layout):
    own = np.resize(theta, pairs)
    check_jvp(rotary_jvp, rotary, X, own, positions=positions, layout=layout)
    none = rotary_jvp(None, None, X, own, layout=layout)
    assert none.shape == X.shape and (none == 0).all()


@layouts
def test_a_gradient_is_turned_back_and_keeps_its_length(layout):
    where = {"positions": positions, "layout": layout}
    dX = rotary_vjp(dY, X, theta, **where).dX
    assert near(rotary(dX, theta, **where), dY)
    assert near(dX, rotary(dY, theta, positions=-positions, layout=layout))
    assert near((dX**2).sum(-1), (dY**2).sum(-1))
    assert not near(dX, dY, 1e6)


def test_alibi_vjp():
    for align in ("lower_right", "upper_left"):
        check_vjp(alibi_vjp, alibi, eta, n=3, m=4, align=align)
    check_vjp(alibi_vjp, alibi, np.asarray(0.3), n=3, m=4)
    dB = rng.normal(size=(3, 3, 4))
    want = autograd(lambda eta: -eta[:, None, None] * abs(torch.arange(3)[:, None] + 1 - torch.arange(4)), dB, eta)
    assert near(alibi_vjp(dB, eta, n=3, m=4), want[0])


def test_alibi_jvp():
    check_jvp(alibi_jvp, alibi, eta, n=3, m=4)
    assert (alibi_jvp(None, eta, n=3, m=4) == 0).all()


def test_table_bias_vjp():
    check_vjp(table_bias_vjp, table_bias, beta, buckets=buckets)
    dB = rng.normal(size=(3, 4, 7))
    want = autograd(lambda beta: torch.nn.functional.embedding(torch.as_tensor(buckets), beta.T).permute(2, 0, 1), dB, beta)
    assert near(table_bias_vjp(dB, beta, buckets=buckets), want[0])


def test_table_bias_jvp():
    check_jvp(table_bias_jvp, table_bias, beta, buckets=buckets)
    assert (table_bias_jvp(None, beta, buckets=buckets) == 0).all()


def test_through_a_head_the_gradients_of_slopes_and_table_are_those_of_the_scores():
    Q, K, V, dO = rng.normal(size=(4, 3, 5, 4))
    mask, places = causal_mask(5, 5), relative_buckets(5, 5, buckets=8, distance=4)

    def with_slopes(eta):
        return attention(Q, K, V, bias(mask, alibi(eta, n=5, m=5)))

    def with_slopes_vjp(dO, eta):
        return alibi_vjp(attention_vjp(dO, Q, K, V, bias(mask, alibi(eta, n=5, m=5))).dB, eta, n=5, m=5)

    def with_table(beta):
        return attention(Q, K, V, table_bias(beta, buckets=places))

    def with_table_vjp(dO, beta):
        return table_bias_vjp(attention_vjp(dO, Q, K, V, table_bias(beta, buckets=places)).dB, beta, buckets=places)

    check_vjp(with_slopes_vjp, with_slopes, eta)
    check_vjp(with_table_vjp, with_table, beta)
    assert np.abs(with_table_vjp(dO, beta).sum(-1)).max() < 1e-13
    by_place = attention_vjp(dO, Q, K, V, bias(mask, alibi(eta, n=5, m=5))).dB.sum(1) @ np.arange(5.0)
    assert near(with_slopes_vjp(dO, eta), by_place)


@layouts
@pytest.mark.parametrize(("check", "derivative", "function"), [
    (check_vjp, rotary_vjp, rotary), (check_jvp, rotary_jvp, rotary)])
def test_rotations_are_proved(check, derivative, function, layout):
    check(derivative, function, X[0, 0, :, :6], theta[:2], positions=positions[0, 0], layout=layout, exact=True)


@pytest.mark.parametrize(("check", "which"), [(check_vjp, "vjp"), (check_jvp, "jvp")])
def test_slopes_and_tables_are_proved(check, which):
    check(alibi_vjp if which == "vjp" else alibi_jvp, alibi, eta, n=2, m=3, exact=True)
    check(table_bias_vjp if which == "vjp" else table_bias_jvp, table_bias, beta, buckets=buckets, exact=True)


# ---- mistakes that the checks refuse -------------------------------------------------------------


def forward_again(dY, X, theta, **where):
    """The sign of the rotation back is wrong."""
    return rotary_vjp(dY, X, theta, **where)._replace(dX=rotary(dY, theta, **where))


def other_layout(dY, X, theta, **where):
    other = LAYOUTS[where["layout"] == LAYOUTS[0]]
    return rotary_vjp(dY, X, theta, **where | {"layout": other})


def no_position(dY, X, theta, *, positions, layout):
    """The factor t of the frequencies' gradient is missing."""
    ones = np.ones_like(positions)
    Y = rotary(X, theta, positions=positions - ones, layout=layout)
    return rotary_vjp(dY, X, theta, positions=positions, layout=layout)._replace(
        dtheta=rotary_vjp(dY, Y, theta, positions=ones, layout=layout).dtheta)


def before_the_turn(dY, X, theta, **where):
    """The torque of dY and X in the place of that of dY and Y."""
    back = rotary_vjp(rotary(dY, theta, **where), X, theta, **where)
    return rotary_vjp(dY, X, theta, **where)._replace(dtheta=back.dtheta)


ROTATIONS = {
    "the rotation back has the sign of the one forward": ("dX", forward_again),
    "the other layout": ("dX", other_layout),
    "the factor of the position is missing": ("dtheta", no_position),
    "the torque before the turn": ("dtheta", before_the_turn),
    "the gradient of the frequencies has the wrong sign": (
        "dtheta", lambda *x, **c: (lambda g: g._replace(dtheta=-g.dtheta))(rotary_vjp(*x, **c))),
    "one of two features moves the frequency": (
        "dtheta", lambda *x, **c: (lambda g: g._replace(dtheta=g.dtheta / 2))(rotary_vjp(*x, **c))),
}


@layouts
@pytest.mark.parametrize(("name", "wrong"), ROTATIONS.values(), ids=ROTATIONS)
@pytest.mark.parametrize("exact", [False, True], ids=["measured", "proved"])
def test_a_mistaken_rotation_is_named(name, wrong, layout, exact):
    x = (X[0, 0, :3, :6], theta[:2]) if exact else (X, theta)
    where = {"positions": np.array([1, 4, 2]) if exact else positions, "layout": layout}
    with pytest.raises(AssertionError, match=f"^refuted: {name} " if exact else f"^{name}: "):
        check_vjp(wrong, rotary, *x, **where, exact=exact)


OTHERS = {
    "a slope has the wrong sign": (lambda dB, eta, **c: -alibi_vjp(dB, eta, **c), alibi, (eta,), {"n": 3, "m": 4}),
    "a slope forgets the distance": (lambda dB, eta, **c: -dB.sum((1, 2)), alibi, (eta,), {"n": 3, "m": 4}),
    "a slope's distance has the other corner": (
        lambda dB, eta, **c: alibi_vjp(dB, eta, **c, align="upper_left"), alibi, (eta,), {"n": 3, "m": 4}),
    "the mean over a bucket": (
        lambda dB, beta, *, buckets: table_bias_vjp(dB, beta, buckets=buckets)
        / np.maximum(1, np.bincount(buckets.ravel(), minlength=8)), table_bias, (beta,), {"buckets": buckets}),
    "the last pair of a bucket alone": (
        lambda dB, beta, *, buckets: np.stack([np.where(buckets == r, dB, 0)[:, -1, -1] for r in range(8)], -1),
        table_bias, (beta,), {"buckets": buckets}),
    "buckets of the transposed pair": (
        lambda dB, beta, *, buckets: table_bias_vjp(dB, beta, buckets=(buckets + 4) % 8), table_bias, (beta,),
        {"buckets": buckets}),
}


@pytest.mark.parametrize(("wrong", "function", "x", "constants"), OTHERS.values(), ids=OTHERS)
def test_a_mistaken_bias_is_named(wrong, function, x, constants):
    with pytest.raises(AssertionError, match="^d(eta|beta): "):
        check_vjp(wrong, function, *x, **constants)


# ---- kinds of numbers --------------------------------------------------------------------------

CALLS = {
    "rotary": lambda a: rotary(a(X), a(theta)), "rotary_vjp": lambda a: rotary_vjp(a(dY), a(X), a(theta)),
    "rotary_jvp": lambda a: rotary_jvp(a(X_dot), a(theta_dot), a(X), a(theta), layout="interleaved"),
    "alibi": lambda a: alibi(a(eta), n=3, m=4), "alibi_vjp": lambda a: alibi_vjp(a(dY[0, :, :, :4]), a(eta), n=4, m=4),
    "alibi_jvp": lambda a: alibi_jvp(a(eta_dot), a(eta), n=3, m=4),
    "table_bias": lambda a: table_bias(a(beta), buckets=buckets),
    "table_bias_vjp": lambda a: table_bias_vjp(a(X[0, :, :, :7]), a(beta), buckets=buckets),
    "table_bias_jvp": lambda a: table_bias_jvp(a(beta_dot), a(beta), buckets=buckets),
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def parts(Y):
    return Y if isinstance(Y, tuple) else (Y,)


@calls
def test_every_library_gives_the_same(call):
    for array in (torch.as_tensor, array_api_strict.asarray):
        assert all(map(near, parts(call(array)), parts(call(np.asarray))))


@calls
@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_results_keep_the_number_type(call, dtype):
    assert {y.dtype for y in parts(call(lambda x: x.astype(dtype)))} == {np.dtype(dtype)}
    assert {str(y.dtype) for y in parts(call(lambda x: torch.as_tensor(x.astype(dtype))))} == {f"torch.{dtype}"}


def test_nothing_is_modified():
    given = [x.copy() for x in (X, theta, positions, eta, beta, buckets)]
    for x in given:
        x.setflags(write=False)
    x, frequencies, t, slopes, table, places = given
    rotary_vjp(x, x, frequencies, positions=t), alibi(slopes, n=3, m=3), table_bias(table, buckets=places)
    assert not np.shares_memory(rotary(x, frequencies[:0]), x)


# ---- what is refused, in one sentence --------------------------------------------------------------

REFUSED = [
    (lambda: rotary(X[..., :7], theta), ValueError,
     "rotary: X has 7 features; a rotation needs an even number, two for each pair"),
    (lambda: rotary_vjp(dY[..., :7], X[..., :7], theta), ValueError,
     "rotary_vjp: X has 7 features; a rotation needs an even number, two for each pair"),
    (lambda: rotary(X[..., :4], theta), ValueError,
     "rotary: theta has 3 frequencies; it needs 2 at most, one for two of the 4 features of X"),
    (lambda: rotary(X, theta[None]), ValueError, "rotary: theta has shape (1, 3); it needs (r,)"),
    (lambda: rotary(X, theta, layout="half"), ValueError,
     "rotary: layout is 'half'; it needs to be 'half_split' or 'interleaved'"),
    (lambda: rotary(X, theta, positions=[0, 1, 2]), ValueError,
     "rotary: positions has shape (3,); it needs (..., 4) to match X of shape (2, 3, 4, 8)"),
    (lambda: rotary(X, theta, positions=[0, 1, 2, 0.5]), TypeError,
     "rotary: positions has dtype float64; it needs whole numbers"),
    (lambda: rotary(X, theta, positions=np.zeros((3, 1, 4), int)), ValueError,
     "rotary: positions has shape (3, 1, 4); its leading axes (3, 1) need to broadcast against (2, 3), those of X"),
    (lambda: rotary(X, theta, positions=torch.arange(4)), TypeError,
     "rotary: positions is an array of torch; it needs to be one of numpy, as the others are"),
    (lambda: rotary(X, theta.astype("f")), TypeError, "rotary: theta has dtype float32; it needs that of X, float64"),
    (lambda: rotary(X, np.array([1, np.inf, 0])), ValueError,
     "rotary: theta of shape (3,) holds NaN or infinity; it needs finite numbers"),
    (lambda: rotary_jvp(None, theta_dot[:2], X, theta), ValueError,
     "rotary_jvp: theta_dot has shape (2,); it needs (3,), the shape of theta"),
    (lambda: alibi(eta, n=3, m=-1), ValueError, "alibi: m is -1; it needs to be 0 or more"),
    (lambda: alibi(0.5, n=3, m=4), TypeError,
     "alibi: eta is a float; it needs to be an array (of NumPy, torch or another array-API library)"),
    (lambda: alibi_vjp(dY[0, :2, :3, :4], eta, n=3, m=4), ValueError,
     "alibi_vjp: dB has shape (2, 3, 4); it needs (3, 3, 4), the shape of B"),
    (lambda: alibi_vjp(dY[0, :, :3, :4], eta, n=4, m=4), ValueError,
     "alibi_vjp: dB has shape (3, 3, 4); it needs (3, 4, 4), the shape of B"),
    (lambda: attention(X, X, X, alibi(eta[:2], n=4, m=4)), ValueError,
     "attention: B has shape (2, 4, 4); it needs one that broadcasts to (2, 3, 4, 4), the shape of the scores"),
    (lambda: relative_buckets(3, 4, buckets=7), ValueError,
     "relative_buckets: buckets is 7; it needs to be 4 or more and even"),
    (lambda: relative_buckets(3, 4, buckets=1, sides="before"), ValueError,
     "relative_buckets: buckets is 1; it needs to be 2 or more"),
    (lambda: relative_buckets(3, 4, buckets=32, distance=8), ValueError,
     "relative_buckets: distance is 8; it needs to be above 8, the number of distances with a bucket of their own"),
    (lambda: relative_buckets(3, 4, sides="after"), ValueError,
     "relative_buckets: sides is 'after'; it needs to be 'both' or 'before'"),
    (lambda: table_bias(beta, buckets=buckets + 1), ValueError,
     "table_bias: buckets holds 8; it needs numbers from 0 to 7, the places of beta"),
    (lambda: table_bias_vjp(dY[0, :, :, :7], beta, buckets=buckets - 1), ValueError,
     "table_bias_vjp: buckets holds -1; it needs numbers from 0 to 7, the places of beta"),
    (lambda: table_bias(beta, buckets=buckets / 1), TypeError,
     "table_bias: buckets has dtype float64; it needs whole numbers"),
    (lambda: table_bias(beta, buckets=buckets[0]), ValueError, "table_bias: buckets has shape (7,); it needs (n, m)"),
    (lambda: table_bias(beta, buckets=torch.as_tensor(buckets)), TypeError,
     "table_bias: buckets is an array of torch; it needs to be one of numpy, as beta is"),
    (lambda: table_bias(beta[..., :0], buckets=buckets), ValueError,
     "table_bias: beta has shape (3, 0); it needs (..., c) with c > 0"),
]


@pytest.mark.parametrize(("call", "kind", "sentence"), REFUSED)
def test_bad_input_gets_one_clear_sentence(call, kind, sentence):
    with pytest.raises(kind) as told:
        call()
    assert str(told.value) == sentence
