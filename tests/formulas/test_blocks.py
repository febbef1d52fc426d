"""Layer norm, silu, the network of each token and the loss, against PyTorch and two oracles."""

import array_api_strict
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import attnmath
from attnmath import (
    check_jvp,
    check_vjp,
    complex_step,
    cross_entropy,
    cross_entropy_jvp,
    cross_entropy_vjp,
    layer_norm,
    layer_norm_jvp,
    layer_norm_vjp,
    mlp,
    mlp_jvp,
    mlp_vjp,
    silu,
    silu_jvp,
    silu_vjp,
)

U = 2.0**-53  # the unit roundoff of float64
INF = np.inf
LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor, "strict": array_api_strict.asarray}
EPSILONS = [1e-5, 0.3, 7.0]

rng = np.random.default_rng(30)
X, X_dot, dY = rng.normal(size=(3, 2, 4, 5))
alpha, beta, alpha_dot, beta_dot = rng.normal(size=(4, 5))
W = tuple(rng.normal(size=shape) for shape in [(5, 3), (3,), (3, 5), (5,)])
W_dot = tuple(rng.normal(size=w.shape) for w in W)
A, A_dot = rng.normal(size=(2, 3, 4, 5)) * 2
E = rng.uniform(size=A.shape)
E[1] = np.eye(5)[[3, 0, 0, 2]]  # one-hot
E[2, 1] = 0  # ignored

libraries = pytest.mark.parametrize("array", LIBRARIES.values(), ids=LIBRARIES)
no_biases = pytest.mark.parametrize("missing", [(), (1,), (3,), (1, 3)])


def near(got, want, size=1.0, roundings=64):
    """Equal but for some roundings of the largest of the numbers added up (of this size)."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    return (np.abs(got - want) <= roundings * U * np.maximum(size, np.abs(want).max(initial=0))).all()


def tensor(x):
    return None if x is None else torch.tensor(x, dtype=torch.float64, requires_grad=True)


def autograd(f, dY, *x):
    """The gradients of <dY, f(x)>, by PyTorch; None for None."""
    x = [tensor(a) for a in x]
    there = [a for a in x if a is not None]
    found = iter(torch.autograd.grad(f(*x), there, torch.as_tensor(dY)))
    return [None if a is None else next(found).numpy() for a in x]


def their_norm(epsilon):
    return lambda X, alpha, beta: F.layer_norm(X, (5,), alpha, beta, epsilon)


def their_mlp(X, W_U, b_U, W_D, b_D):
    return F.linear(F.silu(F.linear(X, W_U.mT, b_U)), W_D.mT, b_D)


def without(W, missing):
    return tuple(None if k in missing else w for k, w in enumerate(W))


# ---- values ------------------------------------------------------------------------------------


@libraries
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_layer_norm(epsilon, array):
    got = layer_norm(array(X), array(alpha), array(beta), epsilon=epsilon)
    assert near(got, their_norm(epsilon)(*map(torch.as_tensor, (X, alpha, beta))))


def test_layer_norm_takes_the_epsilon_of_pytorch_unless_said():
    x = X * 1e-2  # so small that epsilon is seen
    assert near(layer_norm(x, alpha, beta), torch.nn.LayerNorm(5, dtype=torch.float64)(
        torch.tensor(x)).detach().numpy() * alpha + beta, 100)
    assert not near(layer_norm(x, alpha, beta), layer_norm(x, alpha, beta, epsilon=1e-6), 100)


def test_layer_norm_by_hand():
    row = np.array([3.0, 1.0, 5.0, 3.0])  # mean 3, mean square 2 about it
    assert near(layer_norm(row, np.ones(4), np.zeros(4), epsilon=2.0), np.array([0, -1.0, 1, 0]))


def test_a_row_of_equal_entries_becomes_the_shift():
    assert (layer_norm(np.full((2, 5), 3.0), alpha, beta) == beta).all()


@libraries
def test_silu(array):
    x = np.concatenate([A.ravel(), [0.0, 40, -40, 800, -800, 1e300, -1e300]])
    with np.errstate(all="raise"):
        got = np.asarray(silu(array(x)))
    want = F.silu(torch.as_tensor(x)).numpy()
    assert (np.abs(got - want) <= 4 * U * np.abs(x)).all()  # the sigmoid is off by a rounding of 1


@libraries
@no_biases
def test_mlp(missing, array):
    parts = without(W, missing)
    got = mlp(array(X), *(None if w is None else array(w) for w in parts))
    assert near(got, their_mlp(torch.as_tensor(X), *(None if w is None else torch.as_tensor(w)
                                                     for w in parts)), 10)


@libraries
def test_cross_entropy(array):
    got = cross_entropy(array(A), E=array(E))
    for target, part in ((E[0], A[0]), (E[1], A[1])):
        want = F.cross_entropy(torch.tensor(part), torch.tensor(target), reduction="sum")
        assert near(cross_entropy(array(part), E=array(target)), want, 40)
    want = F.cross_entropy(torch.tensor(A).reshape(12, 5), torch.tensor(E).reshape(12, 5), reduction="sum")
    assert near(got, want, 100)


def test_cross_entropy_of_numbered_targets_ignores_padding():
    numbers = np.array([3, 0, -100, 2])
    ours = 1.0 * (numbers[:, None] == np.arange(5))
    want = F.cross_entropy(torch.tensor(A[0]), torch.tensor(numbers), reduction="sum", ignore_index=-100)
    assert near(cross_entropy(A[0], E=ours), want, 20)


def test_cross_entropy_by_hand():
    row = np.log([1.0, 2.0, 5.0])
    assert near(cross_entropy(row, E=np.array([0, 0.5, 0.5])), np.log(8) - np.log(10) / 2)


def test_scores_of_minus_infinity():
    scores, target = A[0].copy(), np.eye(5)[[1, 2, 3, 4]]
    scores[0, 0] = scores[2, :3] = scores[3, :4] = -INF
    scores[1], target[1] = -INF, 0  # a row that may say nothing, and has nothing to say
    loss, dA = cross_entropy(scores, E=target), cross_entropy_vjp(1.5, scores, E=target)
    want = F.cross_entropy(torch.tensor(scores[[0, 2, 3]]), torch.tensor([1, 3, 4]), reduction="sum")
    assert near(loss, want, 20)
    assert (dA[np.isneginf(scores)] == 0).all() and np.isfinite(dA).all()
    assert cross_entropy(scores, E=np.eye(5)[[0, 2, 3, 4]]) == INF
    check_vjp(cross_entropy_vjp, cross_entropy, scores, E=target)
    check_jvp(cross_entropy_jvp, cross_entropy, scores, E=target)


# ---- gradients and tangents --------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_layer_norm_vjp(epsilon):
    check_vjp(layer_norm_vjp, layer_norm, X, alpha, beta, epsilon=epsilon)
    want = autograd(their_norm(epsilon), dY, X, alpha, beta)
    for got, theirs in zip(layer_norm_vjp(dY, X, alpha, beta, epsilon=epsilon), want, strict=True):
        assert near(got, theirs, 100)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_layer_norm_jvp(epsilon):
    check_jvp(layer_norm_jvp, layer_norm, X, alpha, beta, epsilon=epsilon)
    none = layer_norm_jvp(None, None, None, X, alpha, beta, epsilon=epsilon)
    assert (none == 0).all() and none.shape == X.shape


def test_silu_vjp():
    check_vjp(silu_vjp, silu, A)
    assert near(silu_vjp(A_dot, A), autograd(F.silu, A_dot, A)[0], 10)


def test_silu_jvp():
    check_jvp(silu_jvp, silu, A)
    assert (silu_jvp(None, A) == 0).all()


@no_biases
def test_mlp_vjp(missing):
    parts = without(W, missing)
    check_vjp(mlp_vjp, mlp, X, *parts)
    for got, want in zip(mlp_vjp(dY, X, *parts), autograd(their_mlp, dY, X, *parts), strict=True):
        assert (got is None and want is None) or near(got, want, 100)


@no_biases
def test_mlp_jvp(missing):
    parts = without(W, missing)
    check_jvp(mlp_jvp, mlp, X, *parts)
    assert (mlp_jvp(None, None, None, None, None, X, *parts) == 0).all()


def test_cross_entropy_vjp():
    check_vjp(cross_entropy_vjp, cross_entropy, A, E=E)
    theirs = autograd(lambda A: F.cross_entropy(A, torch.tensor(E[1]), reduction="sum"), np.array(0.7), A[1])
    assert near(cross_entropy_vjp(0.7, A[1], E=E[1]), theirs[0])
    assert near(cross_entropy_vjp(np.array(0.7), A[1], E=E[1]), theirs[0])
    assert (cross_entropy_vjp(1.0, A, E=E)[2, 1] == 0).all()


def test_cross_entropy_jvp():
    check_jvp(cross_entropy_jvp, cross_entropy, A, E=E)
    assert cross_entropy_jvp(None, A, E=E) == 0


# ---- mistakes that the checks refuse -----------------------------------------------------------


def changed(right, **parts):
    return lambda *x, **constants: right(*x, **constants)._replace(
        **{name: f(*x, **constants) for name, f in parts.items()})


def careless_norm(dY, X, alpha, beta, *, epsilon):
    """Mean and deviation taken for constants."""
    C = X - X.mean(-1, keepdims=True)
    return dY * alpha / np.sqrt((C * C).mean(-1, keepdims=True) + epsilon)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


MISTAKES = {
    "the statistics are constants": ("dX", lambda: check_vjp(
        changed(layer_norm_vjp, dX=careless_norm), layer_norm, X, alpha, beta, epsilon=0.1)),
    "the gain is forgotten": ("dX", lambda: check_vjp(
        changed(layer_norm_vjp, dX=lambda dY, X, a, b, **e: layer_norm_vjp(dY, X, 1 + 0 * a, b, **e).dX),
        layer_norm, X, alpha, beta, epsilon=0.1)),
    "another epsilon": ("dX", lambda: check_vjp(
        lambda dY, *x, epsilon: layer_norm_vjp(dY, *x, epsilon=epsilon * (1 + 1e-9)),
        layer_norm, X, alpha, beta, epsilon=0.1)),
    "the shift does not move": ("Y_dot along beta_dot", lambda: check_jvp(
        lambda X_dot, a_dot, b_dot, *x: layer_norm_jvp(X_dot, a_dot, None, *x), layer_norm, X, alpha, beta)),
    "the sigmoid does not move": ("dU", lambda: check_vjp(lambda dF, U: dF * sigmoid(U), silu, A)),
    "the sigmoid moves alone": ("Y_dot along U_dot", lambda: check_jvp(
        lambda U_dot, U: U_dot * U * sigmoid(U) * sigmoid(-U), silu, A)),
    "silu is passed by": ("dX", lambda: check_vjp(
        changed(mlp_vjp, dX=lambda dY, X, W_U, b_U, W_D, b_D: dY @ W_D.T @ W_U.T), mlp, X, *W)),
    "the bias of one token": ("db_D", lambda: check_vjp(
        changed(mlp_vjp, db_D=lambda dY, *x: dY[0, 0]), mlp, X, *W)),
    "targets that do not sum to one": ("dA", lambda: check_vjp(
        lambda d, A, *, E: d * (attnmath.softmax(A) - E), cross_entropy, A, E=E)),
    "the loss is not multiplied": ("dA", lambda: check_vjp(
        lambda d, A, *, E: cross_entropy_vjp(1.0, A, E=E), cross_entropy, A, E=E)),
}


@pytest.mark.parametrize(("name", "check"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named(name, check):
    with pytest.raises(AssertionError, match=f"^{name}: "):
        check()


# ---- kinds of numbers --------------------------------------------------------------------------

CALLS = {
    "layer_norm": lambda x, a, W, e: layer_norm(x, a, a),
    "layer_norm_vjp": lambda x, a, W, e: layer_norm_vjp(x, x, a, a, epsilon=0.2),
    "layer_norm_jvp": lambda x, a, W, e: layer_norm_jvp(x, a, None, x, a, a),
    "silu": lambda x, a, W, e: silu(x), "silu_vjp": lambda x, a, W, e: silu_vjp(x, x),
    "silu_jvp": lambda x, a, W, e: silu_jvp(x, x), "mlp": lambda x, a, W, e: mlp(x, *W),
    "mlp_vjp": lambda x, a, W, e: mlp_vjp(x, x, *W),
    "mlp_jvp": lambda x, a, W, e: mlp_jvp(x, *W, x, *W),
    "cross_entropy": lambda x, a, W, e: cross_entropy(x, E=e),
    "cross_entropy_vjp": lambda x, a, W, e: cross_entropy_vjp(0.5, x, E=e),
    "cross_entropy_jvp": lambda x, a, W, e: cross_entropy_jvp(x, x, E=e),
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def called(call, array, e=E[:2]):
    Y = call(array(X), array(alpha), tuple(map(array, W)), array(e))
    return Y if isinstance(Y, tuple) else (Y,)


@calls
def test_every_library_gives_the_same(call):
    want = called(call, np.asarray)
    for array in (torch.as_tensor, array_api_strict.asarray):
        assert all(near(g, w, 100) for g, w in zip(called(call, array), want, strict=True))


@calls
@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_results_keep_the_number_type(call, dtype):
    assert {y.dtype for y in called(call, lambda x: x.astype(dtype))} == {np.dtype(dtype)}
    assert len({y.dtype for y in called(call, lambda x: torch.as_tensor(x.astype(dtype)))}) == 1


@libraries
def test_complex_numbers_carry_a_tangent_past_what_saturates(array):
    far = np.array([[-1e3, -40, 0.3, 40, 1e3]])
    got = np.asarray(complex_step(silu, array(far), array(np.ones((1, 5)))))
    assert near(got, [[0, 0, 1 / (1 + np.exp(-0.3)) + 0.3 / (2 + 2 * np.cosh(0.3)), 1, 1]], 1e3, 1)


# ---- what is refused ---------------------------------------------------------------------------

REFUSED = [
    (ValueError, "layer_norm: alpha has shape (4,); it needs (5,) to match X of shape (2, 4, 5)",
     lambda: layer_norm(X, alpha[:4], beta)),
    (ValueError, "layer_norm: beta has shape (1, 5); it needs (5,) to match X of shape (2, 4, 5)",
     lambda: layer_norm(X, alpha, beta[None])),
    (ValueError, "layer_norm: X has shape (); it needs (..., d)", lambda: layer_norm(np.array(1.0), alpha, beta)),
    (ValueError, "layer_norm: X has shape (4, 0); it needs (..., d) with d > 0",
     lambda: layer_norm(np.ones((4, 0)), alpha[:0], beta[:0])),
    (ValueError, "layer_norm_vjp: dY has shape (4, 5); it needs (2, 4, 5), the shape of Y",
     lambda: layer_norm_vjp(dY[0], X, alpha, beta)),
    (ValueError, "layer_norm_jvp: alpha_dot has shape (4,); it needs (5,), the shape of alpha",
     lambda: layer_norm_jvp(None, alpha[:4], None, X, alpha, beta)),
    (ValueError, "layer_norm: epsilon is 0; it needs to be positive and finite, since a row of equal entries is"
     " divided by its square root", lambda: layer_norm(X, alpha, beta, epsilon=0)),
    (ValueError, "layer_norm: epsilon is nan; it needs to be positive and finite, since a row of equal entries is"
     " divided by its square root", lambda: layer_norm(X, alpha, beta, epsilon=float("nan"))),
    (ValueError, "layer_norm: epsilon is -1; it needs to be positive and finite, since a row of equal entries is"
     " divided by its square root", lambda: layer_norm(X, alpha, beta, epsilon=np.array(-1.0))),
    (ValueError, "layer_norm: epsilon is inf; it needs to be positive and finite, since a row of equal entries is"
     " divided by its square root", lambda: layer_norm(X, alpha, beta, epsilon=np.array(INF))),
    (ValueError, "layer_norm: epsilon has shape (5,); it needs to be a number",
     lambda: layer_norm(X, alpha, beta, epsilon=alpha)),
    (TypeError, "layer_norm: epsilon is a NoneType; it needs to be a real number",
     lambda: layer_norm(X, alpha, beta, epsilon=None)),
    (TypeError, "layer_norm: epsilon is a bool; it needs to be a real number",
     lambda: layer_norm(X, alpha, beta, epsilon=True)),
    (TypeError, "layer_norm: epsilon is a complex; it needs to be a real number",
     lambda: layer_norm(X, alpha, beta, epsilon=1j)),
    (TypeError, "layer_norm: epsilon is an array of torch, but X is one of numpy; all need to be of one library",
     lambda: layer_norm(X, alpha, beta, epsilon=torch.tensor(1e-5))),
    (TypeError, "layer_norm: epsilon has dtype float64; it needs that of X, float32",
     lambda: layer_norm(*(x.astype("f") for x in (X, alpha, beta)), epsilon=np.array(1e-5))),
    (TypeError, "layer_norm: X has dtype int64; it needs floating-point numbers",
     lambda: layer_norm(np.ones((4, 5), int), alpha, beta)),
    (TypeError, "layer_norm: alpha has dtype float32; it needs that of X, float64",
     lambda: layer_norm(X, alpha.astype("float32"), beta)),
    (TypeError, "silu: U is a list; it needs to be an array (of NumPy, torch or another array-API library)",
     lambda: silu([1.0])),
    (ValueError, "silu_vjp: dF has shape (4, 5); it needs (2, 4, 5), the shape of F",
     lambda: silu_vjp(X[0], X)),
    (ValueError, "silu_jvp: U_dot has shape (4, 5); it needs (2, 4, 5), the shape of U",
     lambda: silu_jvp(X[0], X)),
    (ValueError, "mlp: X has shape (5,); it needs (..., n, d)", lambda: mlp(X[0, 0], *W)),
    (ValueError, "mlp: W_U has shape (3, 5); it needs (5, d_u) to match X of shape (2, 4, 5)",
     lambda: mlp(X, W[2], *W[1:])),
    (ValueError, "mlp: W_D has shape (3, 4); it needs (3, 5) to match W_U of shape (5, 3)",
     lambda: mlp(X, *W[:2], W[2][:, :4], W[3])),
    (ValueError, "mlp: b_U has shape (5,); it needs (3,) to match W_U of shape (5, 3)",
     lambda: mlp(X, W[0], W[3], *W[2:])),
    (ValueError, "mlp: b_D has shape (3,); it needs (5,) to match X of shape (2, 4, 5)",
     lambda: mlp(X, *W[:3], W[1])),
    (ValueError, "mlp_vjp: dY has shape (4, 5); it needs (2, 4, 5), the shape of Y",
     lambda: mlp_vjp(dY[0], X, *W)),
    (ValueError, "mlp_jvp: b_U_dot has shape (3,); it needs to be None, as b_U is",
     lambda: mlp_jvp(None, None, W[1], None, None, X, W[0], None, *W[2:])),
    (ValueError, "mlp: X of shape (2, 4, 5) holds NaN or infinity; it needs finite numbers",
     lambda: mlp(X * np.nan, *W)),
    (ValueError, "mlp_vjp: W_D of shape (3, 5) holds NaN or infinity; it needs finite numbers",
     lambda: mlp_vjp(dY, X, *W[:2], INF * W[2], W[3])),
    (ValueError, "mlp_jvp: b_U of shape (3,) holds NaN or infinity; it needs finite numbers",
     lambda: mlp_jvp(*[None] * 5, X, W[0], np.nan * W[1], *W[2:])),
    (TypeError, "mlp: W_D is a NoneType; it needs to be an array (of NumPy, torch or another array-API library)",
     lambda: mlp(X, *W[:2], None, W[3])),
    (ValueError, "cross_entropy: E has shape (4, 5); it needs (3, 4, 5) to match A of shape (3, 4, 5)",
     lambda: cross_entropy(A, E=E[0])),
    (ValueError, "cross_entropy: E of shape (3, 4, 5) holds NaN or infinity; it needs finite numbers",
     lambda: cross_entropy(A, E=-INF * (E + 1))),
    (ValueError, "cross_entropy_vjp: E of shape (3, 4, 5) holds NaN or infinity; it needs finite numbers",
     lambda: cross_entropy_vjp(1.0, A, E=E * np.nan)),
    (TypeError, "cross_entropy: E has dtype int64; it needs floating-point numbers",
     lambda: cross_entropy(A[0], E=np.eye(5, dtype=int)[:4])),
    (ValueError, "cross_entropy_vjp: dloss is nan; it needs to be a finite number",
     lambda: cross_entropy_vjp(float("nan"), A, E=E)),
    (ValueError, "cross_entropy_vjp: dloss has shape (4,); it needs (), the shape of loss",
     lambda: cross_entropy_vjp(np.ones(4), A, E=E)),
    (ValueError, "cross_entropy_jvp: A_dot has shape (4, 5); it needs (3, 4, 5), the shape of A",
     lambda: cross_entropy_jvp(A[0], A, E=E)),
]


@pytest.mark.parametrize(("error", "sentence", "call"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_bad_input_gets_one_clear_sentence(error, sentence, call):
    with pytest.raises(error) as told:
        call()
    assert str(told.value) == sentence


# ---- laws --------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [1e-3, 3.0, 1e4])
def test_layer_norm_ignores_scale_and_shift_of_a_row(c):
    want = layer_norm(X, alpha, beta, epsilon=0.1)
    assert near(layer_norm(c * X + 2, alpha, beta, epsilon=0.1 * c**2), want, 2 / min(c, 1) + 1, 64)


def test_the_gradient_through_layer_norm_is_orthogonal():
    epsilon = 1e-300
    dX = layer_norm_vjp(dY, X, alpha, beta, epsilon=epsilon).dX
    size = abs(dX).max()
    assert abs(dX.sum(-1)).max() <= 64 * U * size
    assert abs((dX * X).sum(-1)).max() <= 64 * U * size * abs(X).max()
