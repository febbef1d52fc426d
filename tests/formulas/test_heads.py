"""A layer of several heads against PyTorch's parts, the complex step, and what must be exact."""

import gc
import tracemalloc

import array_api_strict
import numpy as np
import pytest
import torch

from attnmath import (
    Weights,
    attention,
    attention_vjp,
    check_jvp,
    check_vjp,
    complex_step,
    multihead,
    multihead_jvp,
    multihead_map,
    multihead_vjp,
)
from torch_layer import each, excess, flat, magnitudes, probabilities, project_all, reference, shared, weights
from torch_layer import project as torch_project

U = 2.0**-53
b, H, G, n, m, d, d_z, d_k, d_v = 2, 6, 3, 4, 5, 8, 7, 9, 10
ARRAYS = {"numpy": np.asarray, "torch": torch.as_tensor, "strict": array_api_strict.asarray}
arrays = pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)


def problem(seed=0, small=False):
    """dY, X, Z, W, B, gamma with a masked score and an empty row; small, for the complex step."""
    rng = np.random.default_rng(seed)
    sizes = (4, 2, 3, 5, 2, 1) if small else (H, G, d, d_z, d_k, d_v)
    W = weights(rng, *sizes)
    dY, X = rng.normal(size=(2, b, n, sizes[2]))
    Z, B = rng.normal(size=(b, m, sizes[3])), rng.normal(size=(b, 1, n, m))
    B[0, 0, 1, 2] = B[1, 0, 3] = -np.inf
    return dY, X, Z, W, B, rng.normal(size=sizes[0])


def dropped(seed=1, H=H):
    return (np.random.default_rng(seed).random((H, n, m)) < 0.7) / 0.7


def near(got, want, roundings=256):
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    return abs(got - want).max(initial=0) <= roundings * U * abs(want).max(initial=0)


def agree(got, want, *problem):
    """Gradients that differ by some roundings of the magnitude of what is summed up."""
    return excess(flat(got), flat(want), magnitudes(*problem)) <= 64 * U


def all_near(got, want, roundings=256):
    """Of lists that hold None in the same places."""
    pairs = list(zip(flat(got), flat(want), strict=True))
    return all(g is w is None or near(g, w, roundings) for g, w in pairs)


# ---- values ------------------------------------------------------------------------------------

def test_multihead_by_hand():
    """Two heads, one key: the weights are 1, so Y is the value through each head's W_V and W_O."""
    one = np.ones((1, 1))
    W = Weights(*(np.array(w, float) for w in (
        [[[5.0]], [[7.0]]], [[[1.0], [2.0]]], [[[1.0], [10.0]]], [[[2.0]], [[3.0]]])), b_O=np.array([0.5]))
    assert multihead(one, np.array([[3.0, 4.0]]), W).tolist() == [[43 * 2 + 43 * 3 + 0.5]]
    B = np.array([[[-np.inf]], [[0.0]]])
    assert multihead(one, np.array([[3.0, 4.0]]), W, B).tolist() == [[43 * 3 + 0.5]]
    assert multihead(one, np.array([[3.0, 4.0]]), W, R=np.array([[[2.0]], [[0.0]]])).tolist() == [[43 * 2 * 2 + 0.5]]


@pytest.mark.parametrize("gamma", [None, 0.3, np.array(2.0), np.arange(6.0)])
@pytest.mark.parametrize("R", [None, dropped(), dropped()[0]])
def test_multihead(gamma, R):
    dY, *x, _ = problem()
    assert near(multihead(*x, gamma, R=R), reference(dY, *x, gamma, R)[0])
    assert near(multihead(*x[:3], gamma=gamma, R=R), reference(dY, *x[:3], None, gamma, R)[0])
    assert (multihead(*x, gamma, R=R)[1, 3] == x[2].b_O).all()


@arrays
def test_multihead_map(array):
    dY, *x = problem()
    R = dropped()
    got = multihead_map(*each(array, x), R=array(R))
    X, Z, W, B, gamma = each(torch.as_tensor, x)
    Q, K, V = project_all(X, Z, W, gamma)
    P = probabilities(Q, K, B)
    assert got._fields == ("Q", "K", "V", "P", "O", "Y")
    assert near(got.Q, torch_project(X, W.W_Q, W.b_Q)) and near(got.K, K) and near(got.V, V)
    assert near(got.P, P) and near(got.O, (P * torch.as_tensor(R)) @ shared(V, H))
    assert near(got.Y, reference(dY, *x, R)[0])
    assert near(multihead(*each(array, x), R=array(R)), got.Y, 0)
    assert (np.asarray(got.P)[1, :, 3] == 0).all() and (np.asarray(got.P)[0, :, 1, 2] == 0).all()


def test_neighbouring_heads_share():
    """H = 6 heads on G = 3: what a key or value head is changed in, its own two heads notice."""
    _, X, Z, W, *_ = problem()
    O = multihead_map(X, Z, W).O
    for name in ("W_K", "W_V", "b_V"):
        w = getattr(W, name).copy()
        w[1] += 1
        moved = abs(multihead_map(X, Z, W._replace(**{name: w})).O - O).max((0, 2, 3)) > 1e-6
        assert moved.tolist() == [False, False, True, True, False, False]


def test_each_head_is_attention():
    dY, X, Z, W, B, gamma = problem()
    found = multihead_map(X, Z, W, B, gamma)
    for h in range(H):
        assert near(found.O[:, h], attention(found.Q[:, h], found.K[:, h // 2], found.V[:, h // 2], B[:, 0], gamma[h]))


# ---- derivatives -------------------------------------------------------------------------------

@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor])
def test_multihead_vjp(array):
    """Against the complex step, entry by entry, and against PyTorch."""
    _, X, Z, W, B, gamma = each(array, problem(small=True))
    bare = Weights(*W[:4])
    check_vjp(multihead_vjp, multihead, X, Z, W, B, gamma)
    check_vjp(multihead_vjp, multihead, X[0], Z, bare, B[0, 0], 0.7)
    check_vjp(multihead_vjp, multihead, X, Z[1], W._replace(b_Q=None, b_V=None), array(dropped(H=4)[:, :1] - 1.0))
    check_vjp(multihead_vjp, multihead, X[0], Z[0], bare._replace(b_K=W.b_K), R=array(dropped(H=4)))
    dY, *x = problem()
    for R in (None, dropped()):
        found = multihead_vjp(*each(array, [dY, *x]), R=None if R is None else array(R))
        assert found._fields == ("dX", "dZ", "dW", "dB", "dgamma") and type(found.dW) is Weights
        assert agree(found, reference(dY, *x, R)[1], dY, *x, R)
    bare = multihead_vjp(*each(array, [dY, *x[:2], Weights(*x[2][:4])]))
    assert bare.dB is None and bare.dW[4:] == (None,) * 4 and tuple(bare.dgamma.shape) == ()


@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor])
def test_multihead_jvp(array):
    _, X, Z, W, B, gamma = each(array, problem(small=True))
    check_jvp(multihead_jvp, multihead, X, Z, W, B, gamma)
    check_jvp(multihead_jvp, multihead, X[0], Z, Weights(*W[:4]), B[0, 0], 0.7)
    check_jvp(multihead_jvp, multihead, X, Z[1], W._replace(b_K=None), R=array(dropped(H=4)))
    none, x = (None, None, None, None, None), (X, Z, W, B, gamma)
    assert not np.asarray(multihead_jvp(*none, *x)).any()
    assert not np.asarray(multihead_jvp(None, None, Weights(*[None] * 8), None, None, *x)).any()
    whole = multihead_jvp(*x[:3], array(np.ones((b, 1, n, m))), gamma, *x)
    moves = [(X, None, None), (None, Z, None), *((None, None, Weights(*[None] * 8)._replace(**{k: w}))
                                                 for k, w in W._asdict().items())]
    parts = [multihead_jvp(*move, None, None, *x) for move in moves]
    parts += [multihead_jvp(None, None, None, array(np.ones((b, 1, n, m))), None, *x),
              multihead_jvp(None, None, None, None, gamma, *x)]
    assert near(sum(parts), whole)


def test_the_two_modes_pair():
    """<dY, Y_dot> is the sum of the pairings of all gradients with their tangents."""
    dY, *x = problem()
    dots = problem(seed=1)[1:4] + (np.random.default_rng(2).normal(size=(b, 1, n, m)), problem(seed=1)[5])
    for R in (None, dropped()):
        terms = [(g * t).sum() for g, t in zip(flat(multihead_vjp(dY, *x, R=R)), flat(dots))]
        pairing = (dY * multihead_jvp(*dots, *x, R=R)).sum()
        assert abs(pairing - sum(terms)) <= 1e-13 * sum(map(abs, terms))


def test_each_head_passes_its_gradient_on():
    """dB of a head is dA of attention_vjp, from what W_O returns to the head."""
    dY, X, Z, W, _, gamma = problem()
    B = np.random.default_rng(3).normal(size=(b, H, n, m))
    Q, K, V, *_ = multihead_map(X, Z, W, B, gamma)
    found = multihead_vjp(dY, X, Z, W, B, gamma)
    *_, sB, sgamma = magnitudes(dY, X, Z, W, B, gamma)
    for h in range(H):
        one = attention_vjp(dY @ W.W_O[h].T, Q[:, h], K[:, h // 2], V[:, h // 2], B[:, h], gamma[h])
        assert (abs(found.dB[:, h] - one.dB) <= 64 * U * sB[:, h]).all()
        assert abs(found.dgamma[h] - one.dgamma) <= 64 * U * sgamma[h]
        assert near(found.dW.W_Q[h], np.einsum("bni,bnj->ij", X, one.dQ))


@arrays
def test_what_the_map_has_computed_is_taken_from_it(array):
    """given: the same gradients; and it is really used, for other numbers in it change the result."""
    dY, *x = each(array, problem())
    R = array(dropped())
    given = multihead_map(*x, R=R)
    own = multihead_vjp(dY, *x, R=R)
    assert all_near(multihead_vjp(dY, *x, R=R, given=given), own, 0)
    for name in ("Q", "K", "V", "P", "O"):
        other = multihead_vjp(dY, *x, R=R, given=given._replace(**{name: 2 * getattr(given, name)}))
        assert not all_near(other, own)


def test_a_bias_is_the_weight_of_an_entry_that_is_one():
    """db_K is 0 up to rounding, whatever its sign; told an O that is none, it is not, and must fit dW_K."""
    dY, X, Z, W, *x = problem()
    X[..., 2] = Z[..., 3] = 1
    given = multihead_map(X, Z, W, *x)
    right, wrong = (multihead_vjp(dY, X, Z, W, *x, given=given._replace(O=O)) for O in (given.O, 0 * given.O))
    assert abs(right.dW.b_K).max() < 1e-12 * abs(wrong.dW.b_K).max()
    for dW in (right.dW, wrong.dW):
        assert near(dW.b_Q, dW.W_Q[:, 2]) and near(dW.b_V, dW.W_V[:, 3])
    assert near(wrong.dW.b_K, wrong.dW.W_K[:, 3])


# ---- shared axes -------------------------------------------------------------------------------

def test_a_batch_is_the_sum_of_its_entries():
    dY, X, Z, W, B, gamma = problem()
    parts = zip(*(flat(multihead_vjp(*x[:3], W, x[3], gamma)) for x in zip(dY, X, Z, B)))
    together = [np.stack(p) if k in (0, 1, 10) else sum(p) for k, p in enumerate(parts)]
    assert agree(multihead_vjp(dY, X, Z, W, B, gamma), together, dY, X, Z, W, B, gamma)


@pytest.mark.parametrize("shape", [(), (5,), (1, 5), (4, 1), (4, 5), (6, 1, 5), (1, 4, 5), (2, 1, 4, 5), (2, 6, 1, 1), (1, 6, 4, 5)])
def test_a_bias_may_be_shared_in_any_way(shape):
    """As if it were written out for every score; its gradient is summed again."""
    dY, X, Z, W, _, gamma = problem()
    B = np.random.default_rng(4).normal(size=shape)
    written = np.broadcast_to(B, (b, H, n, m)).copy()
    got, want = multihead_vjp(dY, X, Z, W, B, gamma), multihead_vjp(dY, X, Z, W, written, gamma)
    assert near(multihead(X, Z, W, B, gamma), multihead(X, Z, W, written, gamma))
    assert all_near([got.dX, got.dZ, *got.dW, got.dgamma], [want.dX, want.dZ, *want.dW, want.dgamma])
    assert got.dB.shape == shape
    dB = want.dB.sum(axis=tuple(range(4 - len(shape))))
    spread = tuple(k for k, size in enumerate(shape) if size == 1)
    assert abs(got.dB - dB.sum(axis=spread, keepdims=True)).max() <= 256 * U * abs(want.dB).sum()
    R = np.broadcast_to(abs(B), (b, H, n, m)).copy()
    assert near(multihead(X, Z, W, R=abs(B)), multihead(X, Z, W, R=R))
    assert all_near(multihead_vjp(dY, X, Z, W, R=abs(B)), multihead_vjp(dY, X, Z, W, R=R))
    dots = X, Z, W, None, None
    assert near(multihead_jvp(*dots, X, Z, W, R=abs(B)), multihead_jvp(*dots, X, Z, W, R=R))


@pytest.mark.parametrize("x_batch, z_batch", [((), (2,)), ((2,), ()), ((3, 1), (2,)), ((1,), (3, 2)), ((), ())])
def test_batches_may_be_shared(x_batch, z_batch):
    rng, W = np.random.default_rng(5), problem()[3]
    X, Z = rng.normal(size=(*x_batch, n, d)), rng.normal(size=(*z_batch, m, d_z))
    batch = np.broadcast_shapes(x_batch, z_batch)
    dY = rng.normal(size=(*batch, n, d))
    assert multihead(X, Z, W).shape == dY.shape
    Y, want = reference(dY, X, Z, W)
    assert near(multihead(X, Z, W), Y) and all_near(flat(multihead_vjp(dY, X, Z, W))[:6], want[:6], 2**12)
    assert all_near(multihead_vjp(dY, X, Z, W, given=multihead_map(X, Z, W)), multihead_vjp(dY, X, Z, W), 0)
    whole = multihead_jvp(X, Z, W, None, None, X, Z, W)
    spread = np.broadcast_to(X, (*batch, n, d)), np.broadcast_to(Z, (*batch, m, d_z))
    assert near(whole, multihead_jvp(*spread, W, None, None, *spread, W))


@pytest.mark.parametrize("gamma", [0.7, np.array(0.7), np.full(H, 0.7)])
def test_gamma_is_a_number_or_one_for_each_head(gamma):
    dY, *x, _ = problem()
    found = multihead_vjp(dY, *x, gamma)
    assert near(multihead(*x, gamma), multihead(*x, 0.7)) and found.dgamma.shape == np.shape(gamma)
    assert near(found.dgamma.sum(), multihead_vjp(dY, *x, 0.7).dgamma)
    default = multihead(*x, d_k**-0.5)
    assert near(multihead(*x), default)


# ---- masks and empty rows ----------------------------------------------------------------------

def test_empty_rows_and_masked_scores_pass_nothing_on():
    dY, X, Z, W, B, gamma = problem()
    B[..., 4] = -np.inf
    with np.errstate(all="raise"):
        found, map_ = multihead_vjp(dY, X, Z, W, B, gamma), multihead_map(X, Z, W, B, gamma)
        moved = multihead_jvp(X, Z, W._replace(b_O=None), np.ones(B.shape), gamma, X, Z, W, B, gamma)
    assert (map_.O[1, :, 3] == 0).all() and (map_.P[..., 4] == 0).all()
    assert (found.dX[1, 3] == 0).all() and (found.dZ[:, 4] == 0).all() and (moved[1, 3] == 0).all()
    assert (found.dB[np.isneginf(B)] == 0).all()
    B[:] = -np.inf
    found = multihead_vjp(dY, X, Z, W, B, gamma)
    assert (multihead(X, Z, W, B, gamma) == W.b_O).all()
    assert not any(g.any() for g in flat(found._replace(dW=found.dW._replace(b_O=np.zeros(1)))))
    assert near(found.dW.b_O, dY.sum((0, 1)))


@pytest.mark.parametrize("n, m, lead", [(0, 5, ()), (4, 0, (2,)), (4, 5, (0,))])
def test_axes_without_entries(n, m, lead):
    W = problem()[3]
    X, Z, dY = np.ones((*lead, n, d)), np.ones((*lead, m, d_z)), np.ones((*lead, n, d))
    assert (multihead(X, Z, W) == W.b_O).all() and multihead(X, Z, W).shape == X.shape
    found = multihead_vjp(dY, X, Z, W, np.zeros((n, m)))
    for g, x in zip(flat(found), flat([X, Z, W, np.zeros((n, m)), np.array(1.0)])):
        assert g.shape == x.shape and (not g.any() or g is found.dW.b_O)


# ---- every library, every transformation -------------------------------------------------------

def test_other_array_libraries_give_the_same():
    for R in (None, dropped()):
        x = problem()
        y, r = each(array_api_strict.asarray, x), None if R is None else array_api_strict.asarray(R)
        assert all_near(multihead_vjp(*y, R=r), multihead_vjp(*x, R=R))
        dots = *x[1:4], None, x[5]
        assert near(multihead_jvp(*each(array_api_strict.asarray, dots), *y[1:], R=r), multihead_jvp(*dots, *x[1:], R=R))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_results_keep_the_number_type(dtype):
    x = each(lambda a: torch.as_tensor(a).to(getattr(torch, dtype)), problem())
    for y in [x] if dtype == "bfloat16" else [x, each(lambda a: a.numpy(), x)]:
        for gamma in (None, 0.7, np.float64(0.5), y[5]):
            dots = y[1], None, y[3]._replace(W_K=None), None, None
            out = [*multihead_map(*y[1:5], gamma), *flat(multihead_vjp(*y[:5], gamma)),
                   multihead(*y[1:5], gamma), multihead_jvp(*dots, *y[1:5], gamma)]
            assert {a.dtype for a in out} == {y[0].dtype}


def test_torch_differentiates_through_all_of_it():
    dY, *x = problem()
    t, R = each(torch.as_tensor, x), torch.as_tensor(dropped())
    loss = lambda *x: (torch.as_tensor(dY) * multihead(*x, R=R)).sum()  # noqa: E731
    found = torch.func.grad(loss, argnums=(0, 1, 2, 3, 4))(*t)
    assert agree(found, reference(dY, *x, dropped())[1], dY, *x, dropped())
    twice = torch.func.jacrev(lambda Z: multihead_vjp(torch.as_tensor(dY), t[0], Z, *t[2:], R=R).dW.W_K.sum())(t[1])
    once = torch.func.jacrev(lambda Z: torch.func.grad(loss, argnums=2)(t[0], Z, *t[2:]).W_K.sum())(t[1])
    assert near(twice, once, 2**12)


def test_torch_maps_over_a_batch():
    dY, X, Z, W, B, gamma = each(torch.as_tensor, problem())
    one = torch.func.vmap(lambda dY, X, Z, B: multihead_vjp(dY, X, Z, W, B, gamma))(dY, X, Z, B)
    together = [one.dX, one.dZ, *(g.sum(0) for g in one.dW), one.dB, one.dgamma.sum(0)]
    assert agree(together, each(np.asarray, multihead_vjp(*problem())), *problem())


@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_torch_traces_the_rule(mode):
    from torch.fx.experimental.proxy_tensor import make_fx
    x = each(torch.as_tensor, problem(small=True))
    graph = make_fx(lambda *x: multihead_vjp(*x), tracing_mode=mode)(*x)
    assert all_near(graph(*x), multihead_vjp(*x))


@pytest.mark.filterwarnings("ignore")  # the compiler and the exporter warn of their own parts
def test_compiled_and_exported_programs_give_the_same():
    class Layer(torch.nn.Module):
        def forward(self, X, Z, B):
            return multihead(X, Z, W, B)
    dY, X, Z, W, B, gamma = x = each(torch.as_tensor, problem(small=True))
    compiled = torch.compile(multihead_vjp, backend="eager", fullgraph=True)
    assert all_near(compiled(*x), multihead_vjp(*x))
    program = torch.export.export(Layer(), (X, Z, B))
    assert near(program.module()(X, Z, B), multihead(X, Z, W, B))


def test_complex_numbers_carry_the_tangent():
    _, X, Z, W, B, gamma = problem()
    for array in (np.asarray, torch.as_tensor):
        x = each(array, [X, Z, W, B, gamma])
        got = complex_step(lambda w, x=x: multihead(*x[:2], x[2]._replace(W_K=w), *x[3:]), x[2].W_K, x[2].W_K)
        dot = Weights(*[None] * 8)._replace(W_K=W.W_K)
        assert near(got, multihead_jvp(None, None, dot, None, None, X, Z, W, B, gamma))


# ---- memory ------------------------------------------------------------------------------------

def test_one_head_at_a_time():
    """What is as large as all scores of one head is there a few times, but not for each of eight heads."""
    rng, n = np.random.default_rng(0), 600
    W = weights(rng, 8, 8, 4, 4, 2, 2)
    X = rng.normal(size=(n, 4))
    given = multihead_map(X, X, W)
    scores = 8 * n * n  # bytes, of one head

    def peak(f, *x, **constants):
        gc.collect()
        tracemalloc.start()
        f(*x, **constants)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used / scores

    assert peak(multihead, X, X, W) < 5
    assert peak(multihead_vjp, X, X, X, W, given=given) < 5
    assert peak(multihead_vjp, X, X, X, W, np.zeros((n, n)), given=given) < 6
