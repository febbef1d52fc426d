"""One head against PyTorch's own attention, its automatic differentiation, the complex step."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

import attnmath
from attnmath import attention, attention_jvp, attention_map, attention_vjp, check_jvp, check_vjp, complex_step

torch.set_num_threads(1)  # on matrices this small, threads only wait for each other
U = 2.0**-53  # the unit roundoff of float64


def tensor(x, grad=False):
    return None if x is None else torch.tensor(x, dtype=torch.float64, requires_grad=grad)


def problem(leading=(2, 3), n=4, m=5, d_k=3, d_v=2, scale=1.0, seed=0, K=None, V=None, B=None):
    """dO, Q, K, V, B of a head; K, V, B given as shapes, the scores of about this size."""
    rng = np.random.default_rng(seed)
    Q = rng.normal(size=(*leading, n, d_k)) * scale
    K = rng.normal(size=(*leading, m, d_k) if K is None else K)
    V = rng.normal(size=(*leading, m, d_v) if V is None else V)
    B = None if B is None else rng.normal(size=B)
    lead = np.broadcast_shapes(Q.shape[:-2], K.shape[:-2], V.shape[:-2])
    return rng.normal(size=(*lead, n, d_v)), Q, K, V, B


def sdpa(Q, K, V, B, gamma):
    """PyTorch's attention in its plain kernel; it wants equal leading axes, four axes in all."""
    lead = torch.broadcast_shapes(Q.shape[:-2], K.shape[:-2], V.shape[:-2])
    Q, K, V = (x.expand(*lead, *x.shape[-2:]).reshape(1, -1, *x.shape[-2:]) for x in (Q, K, V))
    if B is not None:
        B = B.expand(*lead, Q.shape[-2], K.shape[-2]).reshape(1, -1, Q.shape[-2], K.shape[-2])
    with sdpa_kernel(SDPBackend.MATH):
        O = F.scaled_dot_product_attention(Q, K, V, attn_mask=B, scale=1.0)
    return O.reshape(*lead, *O.shape[-2:])


def reference(dO, Q, K, V, B, gamma):
    """O and the five gradients by automatic differentiation of PyTorch's attention."""
    gamma = 1 / Q.shape[-1] ** 0.5 if gamma is None else gamma
    xs = Q, K, V, B, gamma = [tensor(x, grad=True) for x in (Q, K, V, B, gamma)]
    O = sdpa(Q * gamma, K, V, B, None)
    there = [x for x in xs if x is not None]
    found = iter(torch.autograd.grad(O, there, torch.as_tensor(dO)))
    return O.detach().numpy(), [None if x is None else next(found).numpy() for x in xs]


def sum_over(x, shape):
    """x summed over the axes along which an array of this shape was broadcast."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    return x.sum(axis=tuple(k for k, s in enumerate(shape) if s == 1), keepdims=True)


def magnitudes(dO, Q, K, V, B, gamma):
    """For each entry of each gradient: what is summed up, in absolute values, and roundings.

    The sums are those of the closed form, each term by its magnitude: nothing cancels. Rounding
    is at most a few u times that, but for the exponential, which turns u |A| in a score into
    as many roundings of its weight. So there are two yardsticks: the plain sums, and the sums
    with each weight counted as often as it is rounded.
    """
    gamma = 1 / np.sqrt(Q.shape[-1]) if gamma is None else gamma
    S, T = np.abs(Q) @ np.abs(K).swapaxes(-1, -2), np.abs(dO) @ np.abs(V).swapaxes(-1, -2)
    A = gamma * (Q @ K.swapaxes(-1, -2)) + (0 if B is None else B)
    P = torch.softmax(torch.tensor(A), -1).nan_to_num(0).numpy()
    bias = 0 if B is None else np.where(np.isinf(B), 0, np.abs(B))
    E = np.where(np.isinf(A), 0, np.abs(gamma) * S + bias)
    roundings = 2 + E + E.max(axis=-1, keepdims=True)
    for r in (1, roundings):
        W = P * r
        G = W * (T + (P * T).sum(-1, keepdims=True)) + P * (W * T).sum(-1, keepdims=True)
        gG = np.abs(gamma) * G
        sums = (gG @ np.abs(K), gG.swapaxes(-1, -2) @ np.abs(Q),
                W.swapaxes(-1, -2) @ np.abs(dO), G, G * S)
        shapes = (Q.shape, K.shape, V.shape, None if B is None else B.shape, np.shape(gamma))
        yield [None if s is None else sum_over(x, s) for x, s in zip(sums, shapes)]


def excess(got, want, dO, *x):
    """The largest error of each gradient, over the plain magnitude and over the rounded one."""
    plain, rounded = magnitudes(dO, *x)
    out = []
    for g, w, a, b in zip(got, want, plain, rounded):
        if w is None:
            assert g is None
            continue
        g = np.asarray(g)
        assert g.shape == w.shape
        error = np.abs(g - w)
        assert not np.isnan(error).any()
        assert (error[a == 0] == 0).all(), "what nothing is added to must be exactly zero"
        some = a != 0
        out.append((np.max(error[some] / a[some], initial=0), np.max(error[some] / b[some], initial=0)))
    return np.max(out, axis=0)


ALLOWED = (1e-13, 8 * U)  # times the plain magnitude, times the one that counts roundings


@st.composite
def heads(draw):
    """Any head: leading axes, broadcast K and V, bias, mask, empty rows, scale, gamma."""
    sizes = st.integers(1, 6)
    n, m, d_k, d_v = (draw(sizes) for _ in range(4))
    leading = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))

    def broadcast(shape):
        shape = shape[draw(st.integers(0, len(shape))) :]
        return tuple(1 if draw(st.booleans()) else s for s in shape)

    K, V = ((*draw(st.sampled_from([leading, broadcast(leading)])), m, d) for d in (d_k, d_v))
    bias = draw(st.sampled_from([None, (n, m), (1, m), (n, 1), (m,)]))
    B = None if bias is None else (*broadcast(leading), *bias) if len(bias) == 2 else bias
    scale = 10 ** draw(st.floats(-1, np.log10(30)))
    seed = draw(st.integers(0, 2**32 - 1))
    dO, Q, K, V, B = problem(leading, n, m, d_k, d_v, scale, seed, K, V, B)
    rng = np.random.default_rng(seed)
    if B is not None and draw(st.booleans()):
        B[rng.random(B.shape) < 0.3] = -np.inf
        B[rng.random(B.shape[:-1]) < 0.2] = -np.inf
    gamma = [None, 1.0, -0.7, rng.normal(size=()), rng.normal(size=(*leading, n, 1))]
    return dO, Q, K, V, B, draw(st.sampled_from(gamma))


def with_torch(f):
    return lambda *x: f(*(tensor(a) if isinstance(a, np.ndarray) else a for a in x))


def test_attention_vjp_agrees_with_automatic_differentiation_of_pytorchs_attention():
    seen = []

    @settings(max_examples=560, derandomize=True, deadline=None, database=None)
    @given(heads())
    def agrees(problem):
        dO, *x = problem
        O, want = reference(dO, *x)
        assert np.abs(attention(*x) - O).max(initial=0) <= 1e-13 * (np.abs(x[2]).max() + 1)
        for vjp in (attention_vjp, with_torch(attention_vjp)):
            assert (excess(vjp(dO, *x), want, dO, *x) <= ALLOWED).all()
        seen.append(problem)

    agrees()
    assert len(seen) >= 500
    B = [x[4] for x in seen]
    assert {x[1].ndim - 2 for x in seen} == {0, 1, 2, 3}
    assert {x[1].shape[:-2] == x[2].shape[:-2] for x in seen} == {True, False}
    assert {b is None for b in B} == {True, False}
    assert any(b is not None and np.isneginf(b).all(-1).any() and not np.isinf(b).all() for b in B)


def changed(**changes):
    """attention_vjp with some of its gradients changed: a planted mistake."""
    def wrong(dO, Q, K, V, B, gamma):
        right = attention_vjp(dO, Q, K, V, B, gamma)
        names = dict(dO=dO, Q=Q, K=K, V=V, B=B, gamma=gamma, P=attention_map(Q, K, V, B, gamma).P)
        return right._replace(**{k: f(getattr(right, k), names) for k, f in changes.items()})
    return wrong


def no_row_sum(dO, Q, K, V, B, gamma):
    W = attention_map(Q, K, V, B, gamma).P * (dO @ V.swapaxes(-1, -2))
    return attention_vjp(dO, Q, K, V, B, gamma)._replace(
        dQ=gamma * W @ K, dK=gamma * W.swapaxes(-1, -2) @ Q)


def ignores_B(dO, Q, K, V, B, gamma):
    return attention_vjp(dO, Q, K, V, np.zeros(B.shape), gamma)


MISTAKES = dict(
    no_row_sum=no_row_sum,
    ignores_B=ignores_B,
    no_gamma=changed(dQ=lambda g, x: g / x["gamma"]),
    gamma_twice=changed(dK=lambda g, x: g * x["gamma"]),
    sign=changed(dK=lambda g, x: -g),
    zero=changed(dV=lambda g, x: 0 * g),
    rows_swapped=changed(dV=lambda g, x: g[..., ::-1, :]),
    one_in_a_billion=changed(dQ=lambda g, x: g * (1 + 1e-9)),
    one_in_1e11=changed(dQ=lambda g, x: g * (1 + 1e-11)),
    last_key_forgotten=changed(dK=lambda g, x: g * (np.arange(5) < 4)[:, None]),
    last_row_forgotten=changed(dQ=lambda g, x: g * (np.arange(4) < 3)[:, None]),
    bias_of_one_row=changed(dB=lambda g, x: g * (np.arange(4) < 3)[:, None]),
    values_gradient_untransposed=changed(dV=lambda g, x: x["P"][..., :5, :].swapaxes(-1, -2)[..., :2]),
    scale_without_its_sum=changed(dgamma=lambda g, x: g / 2),
    masked_score_moves=changed(dB=lambda g, x: g + 1e-300),
)


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("loss", [1.0, 1e-6])
def test_the_comparison_rejects_planted_mistakes(mistake, loss):
    dO, *x = *problem(leading=(), B=(4, 5)), 0.7
    x[3][2, 1] = x[3][0] = -np.inf
    dO = loss * dO
    want = reference(dO, *x)[1]
    assert (excess(attention_vjp(dO, *x), want, dO, *x) <= ALLOWED).all()
    try:
        accepted = (excess(MISTAKES[mistake](dO, *x), want, dO, *x) <= ALLOWED).all()
    except AssertionError:
        accepted = False
    assert not accepted


# ---- values and derivatives of one head --------------------------------------------------------

def head_with_mask():
    """A head with a bias, a masked score and an empty row."""
    dO, Q, K, V, B = problem(B=(3, 4, 5))
    B[0, 1, 2] = B[2, 3] = -np.inf
    return dO, Q, K, V, B


def close(got, want, roundings=64):
    """Equal to some roundings of the largest number."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    same = got == want
    size = np.abs(want[~np.isinf(want)]).max(initial=0)
    return (np.abs(np.where(same, 0, got) - np.where(same, 0, want)) <= roundings * U * size).all()


@pytest.mark.parametrize("gamma", [None, 0.3, np.array(2.0)])
def test_attention(gamma):
    dO, *x = head_with_mask()
    assert close(attention(*x, gamma), reference(dO, *x, gamma)[0])
    assert close(attention(*x[:3], None, gamma), reference(dO, *x[:3], None, gamma)[0])
    with sdpa_kernel(SDPBackend.MATH):
        own = F.scaled_dot_product_attention(*map(tensor, x[:3]), attn_mask=tensor(x[3]))
    assert close(attention(*x), own)
    assert (attention(*x)[:, 2, 3] == 0).all()


def test_attention_map():
    dO, Q, K, V, B = head_with_mask()
    got = attention_map(Q, K, V, B, 0.7)
    A = 0.7 * torch.einsum("...ik,...jk->...ij", *map(tensor, (Q, K))) + tensor(B)
    P = torch.softmax(A, -1).nan_to_num(0)
    assert got._fields == ("A", "P", "L", "O")
    assert close(got.A, A) and close(got.P, P) and close(got.L, torch.logsumexp(A, -1))
    assert close(got.O, torch.einsum("...ij,...jv->...iv", P, tensor(V)))
    assert (got.L[:, 2, 3] == -np.inf).all() and (got.P[:, 2, 3] == 0).all()
    default = attention_map(Q, K, V)
    assert close(default.A, Q @ K.swapaxes(-1, -2) / np.sqrt(3))


@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor])
def test_attention_vjp(array):
    """Against the complex step: every gradient, entry by entry, also where axes are shared."""
    dO, Q, K, V, B = (array(x) for x in head_with_mask())
    check_vjp(attention_vjp, attention, Q, K, V, B, 0.7)
    check_vjp(attention_vjp, attention, Q, K, V)
    check_vjp(attention_vjp, attention, Q, K[0, 0], V[0], B[:1, :, :1], array(np.array([[0.7], [-1], [2], [1]])))
    check_vjp(attention_vjp, attention, Q[0, 0], K, V[:, :1], B[0, 0], array(np.linspace(1, 2, 5)))
    found = attention_vjp(dO, Q, K, V, B)
    assert found._fields == ("dQ", "dK", "dV", "dB", "dgamma")
    assert tuple(found.dgamma.shape) == () and attention_vjp(dO, Q, K, V).dB is None


@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor])
def test_attention_jvp(array):
    x = [array(x) for x in head_with_mask()[1:]]
    dots = [array(x) for x in problem(B=(3, 4, 5), seed=1)[1:]]
    check_jvp(attention_jvp, attention, *x, 0.7)
    check_jvp(attention_jvp, attention, *x[:3])
    shared = x[0], x[1][0, 0], x[2][0], x[3][:1, :, :1], array(np.array([[0.7], [-1], [2], [1]]))
    check_jvp(attention_jvp, attention, *shared)
    whole = attention_jvp(*dots, 1.3, *x, 0.7)
    parts = [attention_jvp(*(d if i == j else None for j, d in enumerate([*dots, 1.3])), *x, 0.7)
             for i in range(5)]
    assert close(sum(parts), whole, 512)
    assert (attention_jvp(None, None, None, None, None, *x) == 0).all()


def test_the_two_modes_pair():
    """<dO, O_dot> is the sum of the pairings of all gradients with their tangents."""
    dO, *x = head_with_mask()
    dots = *problem(B=(3, 4, 5), seed=1)[1:], 1.3
    terms = [np.sum(g * d) for g, d in zip(attention_vjp(dO, *x, 0.7), dots)]
    pairing = np.sum(dO * attention_jvp(*dots, *x, 0.7))
    assert abs(pairing - sum(terms)) <= 1e-13 * sum(map(abs, terms))


# ---- masks, empty rows, large and small numbers ------------------------------------------------

def test_empty_rows_and_masked_scores_pass_nothing_on():
    dO, Q, K, V, B = head_with_mask()
    B[:, :, 4] = -np.inf
    with np.errstate(all="raise"):
        P, found = attention_map(Q, K, V, B).P, attention_vjp(dO, Q, K, V, B)
        moved = attention_jvp(Q, K, V, np.ones(B.shape), 1.0, Q, K, V, B)
    assert (P[:, np.isneginf(B)] == 0).all() and (found.dB[np.isneginf(B)] == 0).all()
    assert (found.dQ[:, 2, 3] == 0).all() and (moved[:, 2, 3] == 0).all()
    assert (found.dK[..., 4, :] == 0).all() and (found.dV[..., 4, :] == 0).all()
    B[:] = -np.inf
    for x in (attention(Q, K, V, B), *attention_vjp(dO, Q, K, V, B)):
        assert (x == 0).all()


def test_a_masked_score_changes_nothing_whatever_its_size():
    dO, Q, K, V, B = head_with_mask()
    B[:, :, 4] = -np.inf
    far = K.copy()
    far[..., 4, :] = 1e300
    assert (attention(Q, far, V, B) == attention(Q, K, V, B)).all()


@pytest.mark.parametrize("scale", [1e3, 1e100])
def test_scores_of_any_size(scale):
    dO, Q, K, V, B = problem(scale=scale, B=(4, 5))
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        O = attention(Q, K, V, B)
        assert close(O, reference(dO, Q, K, V, B, None)[0])
        assert all(np.isfinite(x).all() for x in attention_vjp(dO, Q, K, V, B))
        assert all(np.isfinite(x).all() for x in attention_map(Q, K, V, B))


def test_axes_without_entries():
    for leading, n, m, d_v in [((), 0, 5, 2), ((), 4, 0, 2), ((), 4, 5, 0), ((0,), 4, 5, 2)]:
        dO, Q, K, V, B = problem(leading, n, m, 3, d_v, B=(n, m))
        O, found = attention(Q, K, V, B), attention_vjp(dO, Q, K, V, B, 0.7)
        assert O.shape == dO.shape and (O == 0).all()
        for g, x in zip(found, (Q, K, V, B, np.array(0.7))):
            assert g.shape == x.shape and (g == 0).all()
        assert attention_map(Q, K, V, B).L.shape == (*leading, n)
    assert (attention_map(Q[:, :0], K, V, None).L == 0).all()
    dO, Q, K, V, _ = problem((), 4, 0, 3, 2)
    assert (attention_map(Q, K, V).L == -np.inf).all()


# ---- every library, every transformation -------------------------------------------------------

def test_other_array_libraries_give_the_same():
    strict = pytest.importorskip("array_api_strict")
    x = head_with_mask()
    y = [strict.asarray(a) for a in x]
    for got, want in zip(attention_vjp(*y, 0.7), attention_vjp(*x, 0.7)):
        assert close(got, want)
    dots = head_with_mask()[1:4]
    assert close(attention_jvp(*y[1:4], None, None, *y[1:]), attention_jvp(*dots, None, None, *x[1:]))
    for got, want in zip(attention_map(*y[1:]), attention_map(*x[1:])):
        assert close(got, want)
    check_vjp(attention_vjp, attention, *y[1:], 0.7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_results_keep_the_number_type(dtype):
    x = [tensor(a).to(getattr(torch, dtype)) for a in head_with_mask()]
    families = [x] if dtype == "bfloat16" else [x, [a.numpy() for a in x]]
    for dO, *y in families:
        for gamma in (None, 0.7, 2, np.float64(0.5)):
            out = [*attention_map(*y, gamma), *attention_vjp(dO, *y, gamma), attention(*y, gamma)]
            out.append(attention_jvp(*y[:3], None, 2.0, *y, gamma))
            assert {a.dtype for a in out} == {y[0].dtype}


def test_half_precision_stays_near_double():
    dO, *x = head_with_mask()
    want = attention_vjp(dO, *x)
    for dtype, unit in [("float16", 2.0**-11), ("float32", 2.0**-24)]:
        got = attention_vjp(dO.astype(dtype), *(a.astype(dtype) for a in x))
        for g, w in zip(got, want):
            assert np.abs(g - w).max() <= 32 * unit * np.abs(w).max()


def test_torch_differentiates_through_all_of_it():
    dO, *x = (tensor(a) for a in head_with_mask())
    _, want = reference(*head_with_mask(), None)
    got = torch.func.grad(lambda *x: (dO * attention(*x)).sum(), argnums=(0, 1, 2, 3))(*x)
    assert all(close(g, w) for g, w in zip(got, want))
    twice = torch.func.jacrev(lambda Q: attention_vjp(dO, Q, *x[1:]).dQ)(x[0])
    once = torch.func.jacrev(torch.func.grad(lambda Q: (dO * attention(Q, *x[1:])).sum()))(x[0])
    assert twice.isfinite().all() and close(twice, once)
    one = torch.func.vmap(lambda dO, Q, K, V: attention_vjp(dO, Q, K, V, x[3]).dB)(dO, *x[:3])
    assert close(one.sum(0), attention_vjp(dO, *x).dB)


def test_a_mask_may_be_mapped_over():
    dO, Q, K, V, B = (tensor(a) for a in head_with_mask())
    by_map = torch.func.vmap(lambda B: attention(Q[0, 0], K[0, 0], V[0, 0], B))(B)
    assert close(by_map, torch.stack([attention(Q[0, 0], K[0, 0], V[0, 0], b) for b in B]))
    scales = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    by_map = torch.func.vmap(lambda g: attention(Q, K, V, B, g))(scales)
    assert close(by_map, torch.stack([attention(Q, K, V, B, g) for g in scales]))
    by_map = torch.func.vmap(lambda g: attnmath.softmax(B, g))(scales)
    assert close(by_map, torch.stack([attnmath.softmax(B, g) for g in scales]))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_torch_traces_the_rule(mode):
    from torch.fx.experimental.proxy_tensor import make_fx
    x = [tensor(a) for a in head_with_mask()]
    graph = make_fx(lambda *x: attention_vjp(*x), tracing_mode=mode)(*x)
    assert all(close(g, w) for g, w in zip(graph(*x), attention_vjp(*x)))


@pytest.mark.filterwarnings("ignore")  # the exporter warns of its own parts
def test_torch_exports_the_head():
    class Head(torch.nn.Module):
        def forward(self, *x):
            return attention(*x)
    x = tuple(tensor(a) for a in head_with_mask()[1:])
    program = torch.export.export(Head(), x)
    assert close(program.module()(*x), attention(*x))


def test_complex_inputs_carry_the_tangent_past_a_mask():
    dO, Q, K, V, B = head_with_mask()
    want = attention_jvp(Q, None, None, None, None, Q, K, V, B)
    for array in (np.asarray, torch.as_tensor):
        x = [array(a) for a in (Q, K, V, B)]
        assert close(complex_step(lambda Q, x=x: attention(Q, *x[1:]), x[0], x[0]), want)
        step = complex_step(lambda Q, x=x: attention_map(Q, *x[1:]), x[0], x[0])
        assert all(np.isfinite(np.asarray(part)).all() for part in step)
        by_gamma = complex_step(lambda g, x=x: attention(*x, g), 0.7, 1.0)
        assert close(by_gamma, attention_jvp(None, None, None, None, 1.0, Q, K, V, B, 0.7))
