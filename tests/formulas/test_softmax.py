"""Softmax and its relatives against PyTorch's own, and the derivatives against two oracles."""

import array_api_strict
import numpy as np
import pytest
import torch

import attnmath
from attnmath import (
    check_jvp,
    check_vjp,
    complex_step,
    log_softmax,
    log_softmax_jvp,
    log_softmax_vjp,
    logsumexp,
    logsumexp_jvp,
    logsumexp_vjp,
    softmax,
    softmax_jacobian,
    softmax_jvp,
    softmax_vjp,
)

U = 2.0**-53  # the unit roundoff of float64
LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor, "strict": array_api_strict.asarray}
TAUS = {  # shapes in which a temperature may stand beside A (3, 4, 5)
    "number": 0.6, "()": np.array(0.6), "(1,)": np.array([0.6]),
    "(5,)": np.linspace(0.5, 2, 5), "(4, 1)": np.array([[2.0], [1], [0.5], [3]]),
    "(3, 1, 1)": np.linspace(1, 3, 3)[:, None, None], "(3, 4, 5)": np.linspace(1, 9, 60).reshape(3, 4, 5),
}

rng = np.random.default_rng(20)
A, A_dot, dA = rng.normal(size=(3, 3, 4, 5)) * 2


def masked():
    """Scores with an empty row, a row with one key, a row without the first key."""
    B = A.copy()
    B[0, 1] = B[1, 2, 1:] = B[2, 0, 0] = -np.inf
    return B


def near(got, want, roundings=8):
    """Equal but for a few roundings of the largest of the numbers added up (of size 1 or more)."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    same = got == want  # infinities
    error = np.abs(np.where(same, 0, got) - np.where(same, 0, want))
    return (error <= roundings * U * np.maximum(1, np.abs(np.where(same, 1, want)))).all()


def autograd(f, dY, *x):
    """Y and the gradients of <dY, f(x)>, by PyTorch."""
    x = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in x]
    Y = f(*x)
    return Y.detach(), torch.autograd.grad(Y, x, torch.as_tensor(dY))


def torch_softmax(A, tau):
    return torch.softmax(A / tau, -1)


# ---- values ------------------------------------------------------------------------------------

@pytest.mark.parametrize("array", LIBRARIES.values(), ids=LIBRARIES)
@pytest.mark.parametrize("tau", TAUS.values(), ids=TAUS)
def test_softmax(tau, array):
    want = torch_softmax(torch.as_tensor(A), torch.as_tensor(np.asarray(tau)))
    assert near(softmax(array(A), tau if isinstance(tau, float) else array(tau)), want)


@pytest.mark.parametrize("array", LIBRARIES.values(), ids=LIBRARIES)
def test_logsumexp(array):
    assert near(logsumexp(array(A)), torch.logsumexp(torch.as_tensor(A), -1))
    assert near(logsumexp(array(masked())), torch.logsumexp(torch.as_tensor(masked()), -1))
    assert np.asarray(logsumexp(array(masked())))[0, 1] == -np.inf


@pytest.mark.parametrize("array", LIBRARIES.values(), ids=LIBRARIES)
def test_log_softmax(array):
    assert near(log_softmax(array(A)), torch.log_softmax(torch.as_tensor(A), -1))
    some, B = log_softmax(array(masked())), torch.as_tensor(masked())
    want = torch.where(B.isneginf(), B, torch.log_softmax(B, -1))  # PyTorch has NaN where all is -inf
    assert near(some, want)


def test_one_row_and_defaults():
    assert near(softmax(np.log([1.0, 2, 5])), np.array([1.0, 2, 5]) / 8)
    assert near(softmax(np.log([1.0, 2, 5]), 0.5), np.array([1.0, 4, 25]) / 30)
    assert near(logsumexp(np.log([1.0, 2, 5])), np.log(8))
    assert near(log_softmax(np.log([1.0, 2, 5])), np.log([1 / 8, 2 / 8, 5 / 8]))


def test_the_temperature_is_one_unless_said():
    want, want_tau = autograd(torch_softmax, dA, A, 1.0)[1]
    got = softmax_vjp(dA, A)
    assert near(got.dA, want, 32) and abs(got.dtau - want_tau) <= 64 * U * abs(dA * A).sum()
    assert near(softmax_jvp(A_dot, None, A), softmax_jvp(A_dot, None, A, 1.0))
    assert near(softmax_jacobian(A), softmax_jacobian(A, 1.0))


# ---- gradients and tangents --------------------------------------------------------------------

@pytest.mark.parametrize("tau", TAUS.values(), ids=TAUS)
def test_softmax_vjp(tau):
    check_vjp(softmax_vjp, softmax, A, tau)
    got, (want, want_tau) = softmax_vjp(dA, A, tau), autograd(torch_softmax, dA, A, tau)[1]
    size = np.max(np.abs(dA)) * np.max(1 / np.abs(tau)) ** 2 * np.max(np.abs(A))
    assert np.abs(got.dA - want.numpy()).max() <= 8 * U * size
    assert np.abs(got.dtau - want_tau.numpy()).max() <= 8 * U * size * A.size / np.size(tau)
    assert (got._fields, got.dtau.shape) == (("dA", "dtau"), np.shape(tau))


@pytest.mark.parametrize("tau", TAUS.values(), ids=TAUS)
def test_softmax_jvp(tau):
    check_jvp(softmax_jvp, softmax, A, tau)
    tau_dot = rng.normal(size=np.shape(tau)) if np.shape(tau) else 1.7
    both = softmax_jvp(A_dot, tau_dot, A, tau)
    parts = softmax_jvp(A_dot, None, A, tau), softmax_jvp(None, tau_dot, A, tau)
    size = np.abs(A_dot / tau).max() + np.abs(tau_dot * A / tau**2).max()
    assert np.abs(both - sum(parts)).max() <= 8 * U * size
    assert (softmax_jvp(None, None, A, tau) == 0).all()


@pytest.mark.parametrize("tau", TAUS.values(), ids=TAUS)
def test_softmax_jacobian(tau):
    J = softmax_jacobian(A, tau)
    whole = torch.autograd.functional.jacobian(
        lambda A: torch_softmax(A, torch.as_tensor(np.asarray(tau))), torch.as_tensor(A)).numpy()
    assert J.shape == (3, 4, 5, 5)
    for b, i in np.ndindex(3, 4):
        assert np.abs(J[b, i] - whole[b, i, :, b, i]).max() <= 8 * U / np.abs(tau).min()


def test_softmax_jacobian_of_masked_scores():
    J = softmax_jacobian(masked())
    assert (J[0, 1] == 0).all() and (J[1, 2] == 0).all()
    assert (J[2, 0, 0] == 0).all() and (J[2, 0, :, 0] == 0).all()
    assert near(J[2, 0, 1:, 1:], softmax_jacobian(A[2, 0, 1:]))


def test_logsumexp_vjp():
    check_vjp(logsumexp_vjp, logsumexp, A)
    dL = dA[..., 0]
    want = autograd(lambda A: torch.logsumexp(A, -1), dL, A)[1][0]
    assert near(logsumexp_vjp(dL, A), want)


def test_logsumexp_jvp():
    check_jvp(logsumexp_jvp, logsumexp, A)
    assert (logsumexp_jvp(None, A) == np.zeros((3, 4))).all()


def test_log_softmax_vjp():
    check_vjp(log_softmax_vjp, log_softmax, A)
    want = autograd(lambda A: torch.log_softmax(A, -1), dA, A)[1][0]
    assert near(log_softmax_vjp(dA, A), want, 32)


def test_log_softmax_jvp():
    check_jvp(log_softmax_jvp, log_softmax, A)
    assert (log_softmax_jvp(None, A) == np.zeros(A.shape)).all()


# ---- scores of -inf ----------------------------------------------------------------------------

@pytest.mark.parametrize("tau", [1, 0.5, 3.0, np.array(2.0)])
def test_masked_scores_have_no_weight_and_do_not_move(tau):
    B, hidden = masked(), np.isneginf(masked())
    P = softmax(B, tau)
    assert (P[hidden] == 0).all() and (P[~hidden] > 0).all()
    assert near(P.sum(-1), 1.0 - hidden.all(-1))
    assert near(P[2, 0, 1:], torch_softmax(torch.as_tensor(A[2, 0, 1:]), torch.as_tensor(tau)))
    back = softmax_vjp(dA, B, tau)
    assert (back.dA[hidden] == 0).all() and np.isfinite(back.dtau)
    assert (softmax_jvp(A_dot, 1.3, B, tau)[hidden] == 0).all()
    check_vjp(softmax_vjp, softmax, B, tau)
    check_jvp(softmax_jvp, softmax, B, tau)


def test_masked_scores_have_no_part_in_the_logarithms():
    B, hidden = masked(), np.isneginf(masked())
    for moved in (log_softmax_vjp(dA, B), log_softmax_jvp(A_dot, B), logsumexp_vjp(dA[..., 0], B)):
        assert (moved[hidden] == 0).all() and np.isfinite(moved).all()
    assert near(log_softmax_vjp(dA, B)[2, 0, 1:], log_softmax_vjp(dA[2, 0, 1:], A[2, 0, 1:]))
    assert (logsumexp_jvp(A_dot, B)[0, 1], logsumexp_jvp(A_dot, B)[1, 2]) == (0, A_dot[1, 2, 0])
    for name in ("logsumexp", "log_softmax"):
        f, f_vjp, f_jvp = (getattr(attnmath, name + s) for s in ("", "_vjp", "_jvp"))
        check_vjp(f_vjp, f, B)
        check_jvp(f_jvp, f, B)


@pytest.mark.parametrize("name", ["softmax", "logsumexp", "log_softmax"])
def test_automatic_differentiation_moves_no_masked_score(name):
    """Not even where the gradient in its logarithm, which is -inf, is given."""
    f, f_vjp = getattr(attnmath, name), getattr(attnmath, f"{name}_vjp")
    dY = dA[..., 0] if name == "logsumexp" else dA
    found = f_vjp(dY, masked())
    (got,) = autograd(f, dY, masked())[1]
    assert near(got, found.dA if name == "softmax" else found)


@pytest.mark.parametrize("function", [softmax, logsumexp, log_softmax, softmax_jacobian])
def test_automatic_differentiation_passes_empty_rows(function):
    x = torch.tensor(masked(), requires_grad=True)
    Y = function(x)
    (gradient,) = torch.autograd.grad(torch.where(Y.isinf(), 0, Y).square().sum(), x)
    assert gradient.isfinite().all() and (gradient[x.isneginf()] == 0).all()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (0, 0)])
def test_axes_without_entries(shape):
    none = np.zeros(shape)
    assert softmax(none).shape == log_softmax(none).shape == shape
    assert (logsumexp(none) == np.full(shape[:-1], -np.inf)).all()
    assert softmax_vjp(none, none).dtau == 0
    assert softmax_jacobian(none).shape == (*shape, shape[-1])
    assert logsumexp_vjp(np.zeros(shape[:-1]), none).shape == shape


# ---- sizes and kinds of numbers ----------------------------------------------------------------

@pytest.mark.parametrize("size", [1e3, 1e10, 1e150, 1e300])
def test_scores_of_any_size(size):
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        B = masked() * size
        B[2, 1] = size  # all equal
        P, L = softmax(B), logsumexp(B)
        assert near(P[2, 1], np.full(5, 0.2)) and near(L[2, 1], size + np.log(5.0))
        assert near(L[0, 0], B[0, 0].max()) and near(P[0, 0], 1.0 * (B[0, 0] == B[0, 0].max()))
        assert near(log_softmax(B)[0, 0], B[0, 0] - B[0, 0].max())
        for got in (softmax_vjp(dA, B), log_softmax_vjp(dA, B), softmax_jacobian(B)):
            assert not any(np.isnan(g).any() for g in got)


def test_differences_that_overflow():
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        B = np.array([1.7e308, -1.7e308, -np.inf])
        assert (softmax(B) == [1, 0, 0]).all() and logsumexp(B) == 1.7e308
        assert (log_softmax(B) == [0, -np.inf, -np.inf]).all()


def test_log_softmax_keeps_its_digits_beside_a_large_shift():
    B = np.array([0.0, 1, 3])
    assert near(log_softmax(B + 2.0**50), torch.log_softmax(torch.tensor(B), -1))


CALLS = {
    "softmax": lambda A, v: softmax(A, 2), "softmax_vjp": lambda A, v: softmax_vjp(A, A, 2),
    "softmax_jvp": lambda A, v: softmax_jvp(A, 1.5, A, 2),
    "softmax_jacobian": lambda A, v: softmax_jacobian(A, 0.5),
    "logsumexp": lambda A, v: logsumexp(A), "logsumexp_vjp": lambda A, v: logsumexp_vjp(v, A),
    "logsumexp_jvp": lambda A, v: logsumexp_jvp(A, A), "log_softmax": lambda A, v: log_softmax(A),
    "log_softmax_vjp": lambda A, v: log_softmax_vjp(A, A),
    "log_softmax_jvp": lambda A, v: log_softmax_jvp(A, A),
}


def results(Y):
    return Y if isinstance(Y, tuple) else (Y,)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_library_gives_the_same(call):
    want = results(call(A, A[..., 0]))
    for array in (torch.as_tensor, array_api_strict.asarray):
        got = results(call(array(A), array(A[..., 0].copy())))
        assert all(near(g, w, 64) for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "complex128"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_results_keep_the_number_type(call, dtype):
    x = A.astype(dtype)
    assert {y.dtype for y in results(call(x, x[..., 0]))} == {np.dtype(dtype)}
    y = torch.as_tensor(x)
    assert {y.dtype for y in results(call(y, y[..., 0]))} == {y.dtype}


@pytest.mark.parametrize("array", LIBRARIES.values(), ids=LIBRARIES)
@pytest.mark.parametrize("f", [softmax, logsumexp, log_softmax])
def test_complex_scores_carry_a_tangent_past_minus_infinity(f, array):
    real = complex_step(f, A, A_dot)
    B = array(masked())
    got = np.asarray(complex_step(f, B, array(A_dot)))
    assert np.isfinite(got).all()
    full = ~np.isneginf(masked()).any(-1)
    assert near(got[full], real[full], 64)
    assert (got[0, 1] == 0).all()
