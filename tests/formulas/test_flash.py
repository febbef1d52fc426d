"""Attention from tiles against PyTorch's automatic differentiation of the whole, and the complex step."""

import tracemalloc

import numpy as np
import pytest
import torch

import attnmath._formulas.flash as flash
from attnmath import (
    attention,
    attention_vjp,
    check_jvp,
    check_vjp,
    dropout_attention,
    flash_attention,
    flash_attention_jvp,
    flash_attention_vjp,
    flash_attention_vjp_vjp,
    merge,
    merge_jvp,
    merge_vjp,
)

torch.set_num_threads(1)
TILES = [(2, 3), (3, 4), (7, 11), (1, 1), (4, 5), 64, (100, 1)]
LIVE = [0, 1, 3, 4, 5, 6]  # the queries that may attend to a key
STEPPED = (3, 4)  # where the complex step looks as well
tiles = pytest.mark.parametrize("tile", TILES)


def problem(leading=(2, 3), n=7, m=11, d_k=3, d_v=2, seed=0):
    """dO, dL, the inputs of a head with hidden tiles and an empty row, and R."""
    rng = np.random.default_rng(seed)
    shapes = [(*leading, n, d_v), (*leading, n), (*leading, n, d_k), (*leading, m, d_k), (*leading, m, d_v), (n, m)]
    dO, dL, Q, K, V, B = (rng.normal(size=s) for s in shapes)
    B[1, :6] = B[2] = B[3, 5:] = -np.inf
    R = np.where(rng.random((*leading, n, m)) < 0.3, 0, 1 / 0.7)
    return dO, dL, (Q, K, V, B, 0.7), R


def whole(Q, K, V, B, gamma, R):
    """Output and log-sum-exp of the rows with a key, by PyTorch's own functions."""
    A = (gamma * torch.einsum("...ik,...jk->...ij", Q, K) + B)[..., LIVE, :]
    P = torch.softmax(A, -1) * R[..., LIVE, :]
    return torch.einsum("...ij,...jv->...iv", P, V), torch.logsumexp(A, -1)


def leaves(x):
    return [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in x]


def close(got, want):
    got, want = np.asarray(got), want.detach().numpy()
    return got.shape == want.shape and np.abs(got - want).max() <= 1e-13 * max(1, np.abs(want).max())


@tiles
def test_flash_attention(tile):
    _, _, x, R = problem()
    want = whole(*leaves(x), torch.tensor(R))
    for array in (np.asarray, torch.as_tensor):
        found = flash_attention(*map(array, x[:4]), x[4], R=array(R), tile=tile, with_L=True)
        assert all(close(g[:, :, LIVE], w) for g, w in zip(found, want))
        assert (np.asarray(found.O)[..., 2, :] == 0).all() and (np.asarray(found.L)[..., 2] == -np.inf).all()
    assert (flash_attention(*x, R=R, tile=tile) == flash_attention(*x, R=R, tile=tile, with_L=True).O).all()
    few = flash_attention(*(a.astype("f") for a in x[:4]), np.float32(0.7), R=R.astype("f"), tile=tile)
    assert few.dtype == np.float32 and abs(few - flash_attention(*x, R=R)).max() < 1e-5


@tiles
def test_flash_attention_vjp(tile):
    dO, dL, x, R = problem()
    given = leaves(x)
    outputs = whole(*given, torch.tensor(R))
    back = torch.tensor(dO[..., LIVE, :]), torch.tensor(dL[..., LIVE])
    for both, rest in ((True, {"dL": dL}), (False, {})):
        count = 1 + both
        want = torch.autograd.grad(outputs[:count], given, back[:count], retain_graph=True)
        found = flash_attention_vjp(dO, *x, R=R, tile=tile, **rest)
        assert found._fields == ("dQ", "dK", "dV", "dB", "dgamma")
        assert all(close(g, w) for g, w in zip(found, want))
    if tile == STEPPED:
        check_vjp(flash_attention_vjp, flash_attention, *(a[0, 0] for a in x[:3]), *x[3:], R=R[0, 0], tile=tile)
    assert flash_attention_vjp(dO, *x[:3], tile=tile).dB is None


@tiles
def test_flash_attention_jvp(tile):
    _, _, x, R = problem()
    if tile == STEPPED:
        check_jvp(flash_attention_jvp, flash_attention, *(a[0, 0] for a in x[:3]), *x[3:], R=R[0, 0], tile=tile)
        check_jvp(flash_attention_jvp, flash_attention, *(a[0, 1] for a in x[:3]), tile=tile, with_L=True)
    dots = problem(seed=1)[2]
    move = np.where(np.isinf(dots[3]), 1.0, dots[3])
    given, moved = leaves(x), leaves((*dots[:3], move, 1.3))
    want = torch.func.jvp(lambda *x: whole(*x, torch.tensor(R)), tuple(given), tuple(moved))[1]
    found = flash_attention_jvp(*dots[:3], move, 1.3, *x, R=R, tile=tile, with_L=True)
    assert close(found.O_dot[..., LIVE, :], want[0]) and close(found.L_dot[..., LIVE], want[1])
    assert (found.O_dot[..., 2, :] == 0).all() and (found.L_dot[..., 2] == 0).all()


@tiles
def test_flash_attention_vjp_vjp(tile):
    dO, _, x, R = problem()
    dots = problem(seed=1)[2]
    dots = *dots[:3], np.where(np.isinf(dots[3]), 1.0, dots[3]), np.array(1.3)
    found = flash_attention_vjp_vjp(*dots, dO, *x, R=R, tile=tile)
    given, back = leaves(x), leaves([dO])[0]
    O = whole(*given, torch.tensor(R))[0]
    first = torch.autograd.grad(O, given, back[..., LIVE, :], create_graph=True)
    want = torch.autograd.grad(first, [back, *given], leaves(dots))
    assert found._fields == ("O_dot", "dQ_dot", "dK_dot", "dV_dot", "dB_dot", "dgamma_dot")
    assert all(close(g, w) for g, w in zip(found, want))
    assert (found.O_dot == flash_attention_jvp(*dots, *x, R=R, tile=tile)).all()
    alone = *(a[0, 0] for a in x[:3]), *x[3:]
    if tile == STEPPED:
        check_vjp(flash_attention_vjp_vjp, flash_attention_vjp, dO[0, 0], *alone, R=R[0, 0], tile=tile)


@pytest.mark.parametrize("off", [3.0, -5.0])
def test_any_reference_gives_the_same(monkeypatch, off):
    """Not only the largest score: what depends on the reference cancels, derivatives too."""
    dO, dL, x, R = problem(leading=())
    rest = dict(R=R, tile=(2, 3))
    def all_of_it():
        dots = np.ones((7, 3)), *[None] * 4
        return (*flash_attention(*x, with_L=True, **rest), *flash_attention_vjp(dO, *x, dL=dL, **rest),
                *flash_attention_jvp(*dots, *x, with_L=True, **rest), *flash_attention_vjp_vjp(*dots, dO, *x, **rest))
    before, largest = all_of_it(), flash.peak
    monkeypatch.setattr(flash, "peak", lambda A: largest(A) + off * np.arange(len(A))[:, None])
    assert all(np.allclose(a, b, rtol=1e-12, atol=1e-13) for a, b in zip(before, all_of_it()))


def test_what_is_there_once_for_all():
    """Leading axes that broadcast, B and gamma with axes of their own; no keys, no queries."""
    rng = np.random.default_rng(2)
    x = [rng.normal(size=s) for s in ((2, 1, 5, 3), (3, 7, 3), (7, 2), (3, 1, 7), (5, 1))]
    for tile in (2, (3, 4), 9):
        check_vjp(flash_attention_vjp, flash_attention, *x, tile=tile)
        check_jvp(flash_attention_jvp, flash_attention, *x, tile=tile)
        assert abs(flash_attention(*x, tile=tile) - attention(*x)).max() < 1e-14
    none = [np.ones(s) for s in ((4, 3), (0, 3), (0, 2))]
    assert (flash_attention(*none) == 0).all() and (flash_attention_vjp(np.ones((4, 2)), *none).dQ == 0).all()
    assert flash_attention(none[1], none[0], np.ones((4, 2))).shape == (0, 2)
    assert flash_attention_vjp(none[2], none[1], none[0], np.ones((4, 2))).dK.shape == (4, 3)


def test_the_gradient_of_L_counts_once():
    """Also where the values have an axis that queries and keys have not."""
    rng = np.random.default_rng(3)
    Q, K, V = (rng.normal(size=s) for s in ((1, 2, 3), (1, 5, 3), (4, 5, 2)))
    assert flash_attention(Q, K, V, with_L=True).L.shape == (4, 2)
    def both(dO, dL, Q, K, V, *, with_L, **rest):
        return flash_attention_vjp(dO, Q, K, V, dL=dL, **rest)[:3]
    check_vjp(both, lambda Q, K, V, **rest: flash_attention(Q, K, V, **rest), Q, K, V, with_L=True, tile=2)


def test_no_array_is_larger_than_the_arguments_and_a_tile():
    """Four times as many tokens take at most about four times the memory; a matrix of scores takes 16."""
    def most(function, n):
        x = [np.ones((n, 8)) for _ in "QKVO"]
        dots = (*x[:3], None, None) if function is flash_attention_vjp_vjp else ()
        tracemalloc.start()
        function(*dots, *x[: 3 if function is flash_attention else 4], **({} if function is attention_vjp else {"tile": 32}))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    for function in (flash_attention, flash_attention_vjp, flash_attention_vjp_vjp):
        assert most(function, 512) < 5 * most(function, 128)
        assert most(function, 512) < 8 * 512**2 / 4
    assert most(attention_vjp, 512) > 10 * most(attention_vjp, 128)


# ---- parts ---------------------------------------------------------------------------------------

def parts(seed=0, leading=(2,), n=4, d_v=3):
    """O_a, L_a, O_b, L_b: queries with keys on both sides, on one, on none."""
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=(*leading, n, d_v)[: len(leading) + 1 + (k % 2 == 0)]) for k in range(4)]
    x[1][..., 1] = x[3][..., 2] = x[1][..., 3] = x[3][..., 3] = -np.inf
    for O, L in (x[:2], x[2:]):
        O[np.isinf(L)] = 0
    return x


def test_merge():
    """The keys side by side; and in any order, in any groups, beside nothing."""
    _, _, x, _ = problem()
    Q, K, V, B, gamma = x
    cuts = [0, 1, 6, 6, 11]
    pieces = [flash_attention(Q, K[..., i:j, :], V[..., i:j, :], B[:, i:j], gamma, with_L=True)
              for i, j in zip(cuts, cuts[1:])]
    a, b, none, c = pieces
    for found in (merge(*merge(*a, *b), *c), merge(*a, *merge(*b, *c)), merge(*merge(*c, *none), *merge(*b, *a))):
        assert abs(found.O - attention(*x)).max() < 1e-14
        assert np.allclose(found.L, flash_attention(*x, with_L=True).L, rtol=1e-14)
    assert all((g == w).all() for g, w in zip(merge(*a, *none), a))
    given = [torch.tensor(p) for p in parts()]
    L = torch.logaddexp(given[1], given[3])
    mass = [torch.where(L == -torch.inf, 0, torch.exp(part - L))[..., None] for part in given[1::2]]
    found = merge(*given)
    assert torch.allclose(found.O, mass[0] * given[0] + mass[1] * given[2], rtol=1e-14)
    assert torch.allclose(found.L, L, rtol=1e-14) and (found.L[:, 3] == -torch.inf).all()


def test_merge_vjp():
    check_vjp(merge_vjp, merge, *parts())
    x = leaves(parts()[k][0, :3] for k in range(4))
    L = torch.logaddexp(x[1], x[3])
    O = sum(torch.exp(part - L)[:, None] * output for output, part in (x[:2], x[2:]))
    back = [torch.tensor(p) for p in (parts(1)[0][0, :3], np.arange(3.0))]
    found = merge_vjp(*back, *(p.detach() for p in x))
    assert all(close(g, w) for g, w in zip(found, torch.autograd.grad((O, L), x, back)))
    with pytest.raises(AssertionError, match="^dL_a"):
        check_vjp(lambda dO, dL, O_a, L_a, O_b, L_b: merge_vjp(dO, 0 * dL, O_a, L_a, O_b, L_b), merge, *parts())


def test_merge_jvp():
    check_jvp(merge_jvp, merge, *parts())
    still = merge_jvp(None, None, None, None, *parts())
    assert (still.O_dot == 0).all() and (still.L_dot == 0).all()


def test_parts_with_their_own_backward_passes_give_that_of_the_whole():
    dO, dL, x, _ = problem()
    Q, K, V, B, gamma = x
    want = flash_attention_vjp(dO, *x, dL=dL)
    cut = [slice(0, 4), slice(4, 11)]
    pieces = [flash_attention(Q, K[..., J, :], V[..., J, :], B[:, J], gamma, with_L=True) for J in cut]
    back = merge_vjp(dO, dL, *pieces[0], *pieces[1])
    found = [flash_attention_vjp(back[2 * k], Q, K[..., J, :], V[..., J, :], B[:, J], gamma, dL=back[2 * k + 1])
             for k, J in enumerate(cut)]
    assert np.allclose(found[0].dQ + found[1].dQ, want.dQ, rtol=1e-12, atol=1e-13)
    for name, axis in (("dK", -2), ("dV", -2), ("dB", -1)):
        joined = np.concatenate([getattr(one, name) for one in found], axis)
        assert np.allclose(joined, getattr(want, name), rtol=1e-12, atol=1e-13)


# ---- a row hidden by a large finite number ---------------------------------------------------------

@pytest.mark.parametrize("hide", [-1e4, -1e9, -1e30, np.finfo("f").min / 2])
def test_a_row_that_a_finite_number_hides_keeps_its_weights(hide):
    """In float32, where L alone has forgotten the number of keys."""
    m = 64
    Q, K = np.zeros((2, 4), "f"), np.random.default_rng(0).normal(size=(m, 4)).astype("f")
    V, B = np.eye(m, dtype="f"), np.array([[hide], [0]], "f")
    for tile in (16, (1, 50), 64):
        O, L = flash_attention(Q, K, V, B, tile=tile, with_L=True)
        dV = flash_attention_vjp(np.ones_like(O), Q, K, V, B, tile=tile).dV
        assert abs(O - 1 / m).max() < 1e-7 and abs(dV - 2 / m).max() < 1e-6
        alone = np.exp(B - L[:, None])
        assert abs(alone[0, 0] - (1 if hide < -1e8 else 1 / m)) < 1e-4
        assert abs(merge(O, L, O, L).O - 1 / m).max() < 1e-7


def test_pytorchs_kernel_for_processors_forgets():
    """Its gradients of such a row are m times too large; its output is right."""
    m = 64
    q, k, v = (torch.randn(1, 1, m, 16, generator=torch.manual_seed(0)).requires_grad_() for _ in "qkv")
    B, dO = torch.zeros(m, m), torch.zeros(1, 1, m, 16)
    B[3], dO[0, 0, 3] = -1e9, 1
    O = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=B)
    dV = torch.autograd.grad(O, v, dO)[0].sum(-2)
    ours = flash_attention_vjp(*(x.detach() for x in (dO, q, k, v)), B).dV.sum(-2)
    assert torch.allclose(O[0, 0, 3], v.mean(-2), atol=1e-6) and torch.allclose(ours, torch.ones(16), atol=1e-5)
    assert torch.allclose(dV, torch.tensor(float(m)), rtol=1e-5)


# ---- mistakes ------------------------------------------------------------------------------------

RIGHT = {name: getattr(flash, name) for name in ("united", "_sums", "_vjp", "added", "_vjp_dot")}


def no_rescale(x, y):
    return np.maximum(x[0], y[0]), *(a + b for a, b in zip(x[1:], y[1:]))


def old_sums_not_rescaled(x, y):
    return RIGHT["united"]((np.maximum(x[0], y[0]), *x[1:]), y)


def weights_not_rescaled(x, y):
    c, s, *rest = RIGHT["united"](x, y)
    return c, x[1] + y[1], *rest


def stale_maximum(x, y):
    """The sums are those of the larger maximum, and the old one is kept."""
    return x[0], *RIGHT["united"](x, y)[1:]


def tangents_not_rescaled(x, y):
    c, s, N, *rest = RIGHT["united"](x, y)
    return c, s, N, *(a + b for a, b in zip(x[3:], y[3:]))


def padded_with_scores_of_0(Q, K, V, B, gamma, R, size=3):
    """A short tile is filled with keys and values of 0, which are not hidden."""
    (m, k), v = K.shape[-2:], V.shape[-1]
    K, V = (np.concatenate([x, np.zeros((size - m, d))]) for x, d in ((K, k), (V, v)))
    B, R = (np.concatenate([x, np.full((len(x), size - m), fill)], 1) for x, fill in ((B, 0.0), (R, 1.0)))
    return RIGHT["_sums"](Q, K, V, B, gamma, R)


def rescaled_backward(Q, dO, c, s, D, K, V, B, gamma, R):
    """Each tile's part is multiplied as the sums of the way forward are."""
    own = flash.peak(gamma * Q @ K.T + B)
    dQ, *rest = RIGHT["_vjp"](Q, dO, c, s, D, K, V, B, gamma, R)
    return np.exp(np.where(np.isinf(own), 0, own - c)) * dQ, *rest


def statistic_of_the_tile(Q, dO, c, s, D, K, V, B, gamma, R):
    """The log-sum-exp of the tile in the place of that of the row."""
    c, s, _ = RIGHT["_sums"](Q, K, V, B, gamma, R)
    return RIGHT["_vjp"](Q, dO, c, s, D, K, V, B, gamma, R)


def mean_of_the_tile(Q, dO, c, s, D, K, V, B, gamma, R):
    """D from the weights of this tile alone."""
    P = np.exp(gamma * Q @ K.T + B - c) / s
    D = (P * R * (dO @ V.T)).sum(1, keepdims=True)
    return RIGHT["_vjp"](Q, dO, c, s, D, K, V, B, gamma, R)


def last_tile_wins(parts, size, rows, keys, pairs):
    parts = [tuple(part) for part in parts]
    across = len(parts) // -(-len(rows[0]) // size[0])
    for t, part in enumerate(parts):
        if t % across != across - 1:
            parts[t] = (0 * part[0], *part[1:])
    return RIGHT["added"](parts, size, rows, keys, pairs)


def without(name):
    """A tile of the double backward that was not told one of the statistics of its rows."""
    def wrong(Q, Q_dot, dO, c, s, mu, D, D_dot, *rest):
        row = dict(mu=mu, D=D, D_dot=D_dot) | {name: 0 * mu}
        return RIGHT["_vjp_dot"](Q, Q_dot, dO, c, s, *row.values(), *rest)
    return wrong


def value(x, R, tile):
    assert abs(flash_attention(*x, R=R, tile=tile) - dropout_attention(*x, R=R)).max() < 1e-13


def backward(x, R, tile):
    check_vjp(flash_attention_vjp, dropout_attention_of_tiles, *x, R=R, tile=tile)


def forward_mode(x, R, tile):
    check_jvp(flash_attention_jvp, dropout_attention_of_tiles, *x, R=R, tile=tile)


def double_backward(x, R, tile):
    check_vjp(flash_attention_vjp_vjp, flash_attention_vjp, np.ones((5, 2)), *x, R=R, tile=tile)


def dropout_attention_of_tiles(Q, K, V, B, gamma, *, R, tile):
    return dropout_attention(Q, K, V, B, gamma, R=R)


MISTAKES = [
    ("united", no_rescale, value), ("united", old_sums_not_rescaled, value),
    ("united", weights_not_rescaled, value), ("united", stale_maximum, value),
    ("_sums", padded_with_scores_of_0, value),
    ("united", tangents_not_rescaled, forward_mode),
    ("_vjp", rescaled_backward, backward), ("_vjp", statistic_of_the_tile, backward),
    ("_vjp", mean_of_the_tile, backward), ("added", last_tile_wins, backward),
    ("_vjp_dot", without("mu"), double_backward), ("_vjp_dot", without("D"), double_backward),
    ("_vjp_dot", without("D_dot"), double_backward), ("added", last_tile_wins, double_backward),
]


def small():
    rng = np.random.default_rng(5)
    x = [rng.normal(size=s) for s in ((5, 3), (7, 3), (7, 2), (5, 7))]
    x[3][0, :3] = x[3][1, 3:] = -np.inf
    return (*x, 0.7), np.where(rng.random((5, 7)) < 0.3, 0, 1.5)


@pytest.mark.parametrize(("name", "mistake", "judge"), MISTAKES)
def test_mistakes_of_tiles_are_caught(monkeypatch, name, mistake, judge):
    x, R = small()
    judge(x, R, (2, 3))
    monkeypatch.setattr(flash, name, mistake)
    with pytest.raises(AssertionError):
        judge(x, R, (2, 3))


@pytest.mark.parametrize("mistake", [no_rescale, rescaled_backward, statistic_of_the_tile, mean_of_the_tile])
def test_one_tile_hides_them(monkeypatch, mistake):
    """So a test whose problem fits into a tile does not test tiles."""
    x, R = small()
    monkeypatch.setattr(flash, "united" if mistake is no_rescale else "_vjp", mistake)
    value(x, R, 64)
    backward(x, R, 64)


# ---- what is refused -----------------------------------------------------------------------------

X, dO = small()[0], np.ones((5, 2))
REFUSED = [
    (lambda: flash_attention(*X, tile=0), ValueError, "flash_attention: tile is 0; it needs to be 1 or more"),
    (lambda: flash_attention(*X, tile=(2, 0)), ValueError, "flash_attention: tile is 0; it needs to be 1 or more"),
    (lambda: flash_attention(*X, tile=2.0), TypeError, "flash_attention: tile is 2.0; it needs to be a whole number"),
    (lambda: flash_attention(*X, tile=(2, 3, 4)), ValueError,
     "flash_attention: tile is (2, 3, 4); it needs to be a number, or two: of queries, of keys"),
    (lambda: flash_attention_vjp(dO, *X, dL=dO), ValueError,
     "flash_attention_vjp: dL has shape (5, 2); it needs (5,), the shape of L"),
    (lambda: flash_attention_vjp(dO, *X, dL=1.0), TypeError,
     "flash_attention_vjp: dL is a float; it needs to be an array (of NumPy, torch or another array-API library)"),
    (lambda: flash_attention_jvp(X[1], None, None, None, None, *X), ValueError,
     "flash_attention_jvp: Q_dot has shape (7, 3); it needs (5, 3), the shape of Q"),
    (lambda: flash_attention_vjp_vjp(None, None, X[0], None, None, dO, *X), ValueError,
     "flash_attention_vjp_vjp: V_dot has shape (5, 3); it needs (7, 2), the shape of V"),
    (lambda: flash_attention(*X, R=-np.ones((5, 7))), ValueError, "flash_attention: R of shape (5, 7) holds NaN, +inf or"
     " a number below 0; its entries need to be 0 or 1 / (1 - rho)"),
    (lambda: merge(dO, dO[:, 0], dO[1:], dO[:, 0]), ValueError,
     "merge: O_b has shape (4, 2); it needs (5, 2) to match O_a of shape (5, 2)"),
    (lambda: merge(dO, dO, dO, dO[:, 0]), ValueError,
     "merge: L_a has shape (5, 2); it needs (5,) to match O_a of shape (5, 2)"),
    (lambda: merge(dO, dO[:, 0], dO, np.inf * dO[:, 0]), ValueError,
     "merge: L_b of shape (5,) holds NaN or +inf; its entries need to be numbers or -inf"),
    (lambda: merge_vjp(dO, dO, dO, dO[:, 0], dO, dO[:, 0]), ValueError,
     "merge_vjp: dL has shape (5, 2); it needs (5,), the shape of L"),
    (lambda: merge_jvp(dO, dO, None, None, dO, dO[:, 0], dO, dO[:, 0]), ValueError,
     "merge_jvp: L_a_dot has shape (5, 2); it needs (5,), the shape of L_a"),
]


@pytest.mark.parametrize(("call", "kind", "sentence"), REFUSED)
def test_bad_input_gets_one_clear_sentence(call, kind, sentence):
    with pytest.raises(kind) as told:
        call()
    assert str(told.value) == sentence
