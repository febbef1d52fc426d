"""The second order of a head: PyTorch's double autograd, the complex step, exact proofs, identities, mistakes."""

import functools
import itertools

import array_api_strict
import numpy as np
import pytest
import torch

from attnmath import (
    attention,
    attention_hvp,
    attention_map,
    attention_vjp,
    attention_vjp_vjp,
    check_jvp,
    check_vjp,
    dropout_attention,
    dropout_attention_jvp,
    dropout_attention_vjp,
)
from exact_cases import attention_vjp_jvp

torch.set_num_threads(1)
ROWS = [0, 1, 3]  # of the queries in problem(): the others may look at nothing


def problem(leading=(2, 3), n=4, m=5, d_k=3, d_v=2, seed=0, R=None):
    """dO, the inputs of a head with a mask and an empty row, and R of this shape."""
    rng = np.random.default_rng(seed)
    shapes = [(*leading, n, d_v), (*leading, n, d_k), (*leading, m, d_k), (*leading, m, d_v), (n, m)]
    dO, Q, K, V, B = (rng.normal(size=s) for s in shapes)
    B[1, 2] = B[2] = -np.inf
    R = (rng.random((*leading, n, m) if R is None else R) < 0.7) / 0.7
    return dO, (Q, K, V, B, 0.7), R


def tangents(x, seed=1):
    """Random numbers in the shapes of x."""
    rng = np.random.default_rng(seed)
    return [None if a is None else rng.normal(size=np.shape(a))[()] for a in x]


def defined(R):
    """The output of a head by PyTorch's own softmax; rows that may look at nothing are 0."""
    def output(Q, K, V, B, gamma):
        A = gamma * torch.einsum("...ik,...jk->...ij", Q, K) + B
        live = (torch.arange(A.shape[-2]) != 2)[:, None]
        P = torch.where(live, torch.softmax(torch.where(live, A, 0.0), -1), 0.0)
        return torch.einsum("...ij,...jv->...iv", P if R is None else P * R, V)
    return output


def by_autograd(dO, x, dots, dO_dot, R):
    """PyTorch: the gradients of <dots, gradients>; the tangents of the gradients, in forward mode."""
    dO, dO_dot, *x = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (dO, dO_dot, *x))
    dots = [torch.as_tensor(a, dtype=torch.float64) for a in dots]
    output = defined(None if R is None else torch.as_tensor(R))
    gradients = torch.autograd.grad(output(*x), x, dO, create_graph=True)
    psi = sum((a * b).sum() for a, b in zip(gradients, dots))
    twice = torch.autograd.grad(psi, (dO, *x))
    plain = [a.detach() for a in (dO, *x)]
    moved = torch.func.jvp(lambda dO, *x: torch.func.vjp(output, *x)[1](dO), tuple(plain), (dO_dot.detach(), *dots))[1]
    return [[a.numpy() for a in side] for side in (twice, moved)]


def close(got, want, rounds=1e-14):
    """The same numbers in the same shapes, up to roundings of the largest of all."""
    size = max(1, *(np.abs(w).max(initial=0) for w in want))
    pairs = [(np.asarray(g), np.asarray(w)) for g, w in zip(got, want, strict=True)]
    return all(g.shape == w.shape and np.abs(g - w).max(initial=0) <= rounds * size for g, w in pairs)


ARRAYS = [np.asarray, torch.as_tensor, array_api_strict.asarray]
SHAPES_OF_R = [None, (2, 3, 4, 5), (4, 5), (3, 1, 5)]


@pytest.mark.parametrize("shape", SHAPES_OF_R)
def test_attention_vjp_vjp(shape):
    dO, x, R = problem(R=shape)
    R, dots = None if shape is None else R, tangents(x)
    want, _ = by_autograd(dO, x, dots, dO, R)
    for array in ARRAYS:
        given = [array(a) for a in (*dots[:4], dO, *x[:4])]
        found = attention_vjp_vjp(*given[:4], dots[4], *given[4:], x[4], R=None if R is None else array(R))
        assert found._fields == ("O_dot", "dQ_dot", "dK_dot", "dV_dot", "dB_dot", "dgamma_dot")
        assert close(found, want)
    check_vjp(attention_vjp_vjp, dropout_attention_vjp, dO[0, 0], *(a[0, 0] for a in x[:3]), *x[3:],
              R=None if R is None else R[(0,) * (R.ndim - 2)])


@pytest.mark.parametrize("shape", SHAPES_OF_R)
def test_attention_hvp(shape):
    dO, x, R = problem(R=shape)
    R, dots, dO_dot = None if shape is None else R, tangents(x), tangents([dO], 2)[0]
    _, want = by_autograd(dO, x, dots, dO_dot, R)
    for array in ARRAYS:
        given = [array(a) for a in (*dots[:4], dO, *x[:4])]
        options = dict(dO_dot=array(dO_dot), R=None if R is None else array(R))
        found = attention_hvp(*given[:4], dots[4], *given[4:], x[4], **options)
        assert found._fields == ("dQ_dot", "dK_dot", "dV_dot", "dB_dot", "dgamma_dot")
        assert close(found, want)
    check_jvp(attention_vjp_jvp, dropout_attention_vjp, dO[0, 0], *(a[0, 0] for a in x[:3]), *x[3:],
              R=None if R is None else R[(0,) * (R.ndim - 2)])


def broadcast():
    """Leading axes of each kind, a scale for every query or pair, biases that are shared, B or none."""
    rng = np.random.default_rng(3)

    def draw(*shape):
        return rng.normal(size=shape)

    mask = np.where([[0, 1, 0], [0, 0, 1]], -np.inf, draw(2, 3))
    return [
        [draw(2, 4), draw(3, 4), draw(3, 2)],
        [draw(2, 4), draw(3, 4), draw(3, 2), None, 0.4],
        [draw(2, 1, 2, 1), draw(3, 1), draw(3, 3, 2), mask, draw()],
        [draw(2, 2), draw(2, 3, 2), draw(3, 1), mask[:1], draw(2, 1)],
        [draw(2, 2, 2), draw(3, 2), draw(2, 1, 3, 1), draw(2, 1, 3), draw(2, 3)],
        [draw(1, 2, 2), draw(1, 3, 2), draw(2, 3, 2), draw(2, 1), draw(1, 1, 3)],
        [draw(1, 1), draw(1, 1), draw(1, 1), draw(1), draw(1)],
    ]


# With one key all gradients of the scores are 0 but for rounding: that is for exact arithmetic alone.
@pytest.mark.parametrize(("case", "exact"), [*itertools.product(range(6), [False, True]), (6, True)])
def test_broadcast_arguments_and_those_left_out(case, exact):
    x = broadcast()[case]
    dO = np.random.default_rng(4).normal(size=attention(*x).shape)
    R = np.random.default_rng(5).random(attention_map(*x).P.shape[-2:])
    for more, f in [({}, attention_vjp), (dict(R=R), dropout_attention_vjp), (dict(R=R[0]), dropout_attention_vjp)]:
        check_vjp(attention_vjp_vjp, f, dO, *x, exact=exact, **more)
        check_jvp(attention_vjp_jvp, f, dO, *x, exact=exact, **more)


def test_arrays_of_torch_are_checked_too():
    x = [torch.as_tensor(a) for a in broadcast()[3]]
    dO = torch.ones(attention(*x).shape, dtype=torch.float64)
    check_vjp(attention_vjp_vjp, attention_vjp, dO, *x)
    check_jvp(attention_vjp_jvp, attention_vjp, dO, *x)


def test_torch_differentiates_the_double_backward():
    """The third derivatives of autograd: <w, gradients of <u, gradients>>, by all inputs."""
    dO, x, R = problem(leading=())
    u, w = tangents(x, 1), tangents((dO, *x), 2)
    R, u, w = torch.as_tensor(R), *([torch.as_tensor(a) for a in side] for side in (u, w))

    def thrice(second):
        given = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (dO, *x)]
        psi = sum((a * b).sum() for a, b in zip(second(*given), w))
        return [a.numpy() for a in torch.autograd.grad(psi, given)]

    def by_autograd(dO, *x):
        first = torch.autograd.grad(defined(R)(*x), x, dO, create_graph=True)
        psi = sum((a * b).sum() for a, b in zip(first, u))
        return torch.autograd.grad(psi, (dO, *x), create_graph=True)

    assert close(thrice(lambda *given: attention_vjp_vjp(*u, *given, R=R)), thrice(by_autograd), 1e-13)


def test_two_keys_by_hand():
    """One query, two keys, values 1 and 0: f = dO s(t), s the logistic function, t = gamma q (k_1 - k_2) + b_1 - b_2."""
    q, k, l, b, gamma, dO = 0.8, -0.3, 1.1, 0.2, 1.7, -1.3
    x = [np.array(a) for a in ([[q]], [[k], [l]], [[1.0], [0.0]], [[b, 0.0]], gamma)]
    s = 1 / (1 + np.exp(-(gamma * q * (k - l) + b)))
    first, second = dO * s * (1 - s), dO * s * (1 - s) * (1 - 2 * s)  # of f, by t
    t = np.array([gamma * (k - l), gamma * q, -gamma * q, 1, q * (k - l)])  # of t, by q, k, l, b, gamma
    H = second * np.outer(t, t)  # then first times the second derivatives of t
    for i, j, value in [(0, 1, gamma), (0, 2, -gamma), (0, 4, k - l), (1, 4, q), (2, 4, -q)]:
        H[i, j] = H[j, i] = H[i, j] + first * value
    for i, e in enumerate(np.eye(5)):
        dots = np.array([[e[0]]]), e[1:3, None], None, np.array([[e[3], 0]]), e[4]
        dQ_dot, dK_dot, dV_dot, dB_dot, dgamma_dot = attention_hvp(*dots, np.array([[dO]]), *x)
        got = [*dQ_dot[0], *dK_dot[:, 0], dB_dot[0, 0], dgamma_dot]
        np.testing.assert_allclose(got, H[i], rtol=1e-14, atol=1e-15)
        np.testing.assert_allclose(dV_dot, first * t[i] * np.array([[1], [-1]]), rtol=1e-14, atol=1e-15)


# ---- what must hold ------------------------------------------------------------------------------


def pairing(x, y):
    return sum(np.sum(a * b) for a, b in zip(x, y) if a is not None)


def scale(*x):
    return sum(np.abs(a).sum() for a in x if a is not None)


def test_the_hessian_is_symmetric():
    dO, x, R = problem()
    u, w = tangents(x, 1), tangents(x, 2)
    for more in ({}, dict(R=R)):
        Hu, Hw = (attention_hvp(*v, dO, *x, **more) for v in (u, w))
        assert abs(pairing(w, Hu) - pairing(u, Hw)) <= 1e-15 * scale(*Hu, *Hw)
        assert abs(pairing(w, Hu)) > 1e-3 * scale(*Hu)


def test_what_is_paired_with_dO_is_the_tangent_of_the_output():
    """psi = <dots, gradients> = <dO, O_dot>; it is linear in dO, and O_dot does not know dO."""
    dO, x, R = problem()
    dots = tangents(x)
    found = attention_vjp_vjp(*dots, dO, *x, R=R)
    gradients = dropout_attention_vjp(dO, *x, R=R)
    assert abs(pairing(dots, gradients) - np.sum(dO * found.O_dot)) <= 1e-15 * scale(*gradients)
    assert close([found.O_dot], [dropout_attention_jvp(*dots, *x, R=R)])
    assert close([attention_vjp_vjp(*dots, 0 * dO, *x, R=R).O_dot], [found.O_dot])
    assert close(attention_vjp_vjp(*dots, -3 * dO, *x, R=R)[1:], [-3 * a for a in found[1:]])
    assert close(attention_hvp(*dots, dO, *x, R=R), found[1:])


def test_the_backward_is_linear_in_dO():
    """So a tangent of dO alone gives what the backward pass gives for it; with others, they are added."""
    dO, x, R = problem()
    dots, dO_dot = tangents(x), tangents([dO], 2)[0]
    alone = attention_hvp(*[None] * 5, dO, *x, dO_dot=dO_dot, R=R)
    assert close(alone, dropout_attention_vjp(dO_dot, *x, R=R))
    both = attention_hvp(*dots, dO, *x, dO_dot=dO_dot, R=R)
    assert close(both, [a + b for a, b in zip(alone, attention_hvp(*dots, dO, *x, R=R))])


def test_sums_that_vanish():
    """Rows of dB_dot; dK_dot over the keys; dV_dot over the keys, but not with dropout."""
    dO, x, R = problem()
    x = (*x[:3], np.broadcast_to(x[3], (2, 3, 4, 5)), x[4])
    dots = tangents(x)
    for more, vanishes in (({}, True), (dict(R=R), False)):
        found = attention_hvp(*dots, dO, *x, **more)
        assert np.abs(found.dB_dot.sum(-1)).max() <= 1e-14
        assert np.abs(found.dK_dot.sum(-2)).max() <= 1e-13
        assert (np.abs(found.dV_dot.sum(-2)).max() <= 1e-13) == vanishes


def test_gauge_identities_differentiated():
    """Q^T dQ = dK^T K and V^T dV = O^T dO hold everywhere, so their tangents agree as well."""
    dO, x, R = problem()
    dots, dO_dot = tangents(x), tangents([dO], 2)[0]
    (Q, K, V, *_), (Q_dot, K_dot, V_dot, *_) = x, dots
    dQ, dK, dV, *_ = dropout_attention_vjp(dO, *x, R=R)
    dQ_dot, dK_dot, dV_dot, *_ = attention_hvp(*dots, dO, *x, dO_dot=dO_dot, R=R)
    O, O_dot = dropout_attention(*x, R=R), dropout_attention_jvp(*dots, *x, R=R)
    T = np.matrix_transpose
    assert close([T(Q_dot) @ dQ + T(Q) @ dQ_dot], [T(dK_dot) @ K + T(dK) @ K_dot], 1e-13)
    assert close([T(V_dot) @ dV + T(V) @ dV_dot], [T(O_dot) @ dO + T(O) @ dO_dot], 1e-13)


def test_the_blocks_of_the_hessian():
    """By q_i twice: gamma^2 times the third central moment of the keys with <dO_i, v_j>; between two queries 0; VV 0."""
    dO, (Q, K, V, B, gamma), R = problem(leading=())
    P, n, d = attention_map(Q, K, V, B, gamma).P, *Q.shape
    for factors in (np.ones((4, 5)), R):
        for i, k in np.ndindex(n, d):
            e = np.zeros((n, d))
            e[i, k] = 1
            got = attention_hvp(e, None, None, None, None, dO, Q, K, V, B, gamma, R=factors).dQ_dot
            want, mean = np.zeros((n, d)), P[i] @ K
            for p, r, key, v in zip(P[i], factors[i], K, V):
                phi = r * (dO[i] @ v) - (P[i] * factors[i]) @ V @ dO[i]
                want[i] += gamma**2 * p * phi * (key - mean)[k] * (key - mean)
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-14)
    assert (attention_hvp(None, None, V, None, None, dO, Q, K, V, B, gamma, R=R).dV_dot == 0).all()
    eigenvalues = np.linalg.eigvalsh([hessian_of_query(dO, Q, K, V, B, gamma, i) for i in ROWS])
    assert eigenvalues.min() < -1e-2 and eigenvalues.max() > 1e-2, "indefinite"


def hessian_of_query(dO, Q, K, V, B, gamma, i):
    rows = []
    for k in range(Q.shape[-1]):
        e = np.zeros(Q.shape)
        e[i, k] = 1
        rows.append(attention_hvp(e, None, None, None, None, dO, Q, K, V, B, gamma).dQ_dot[i])
    return np.array(rows)


def test_the_hessian_of_a_squared_loss_is_the_gauss_newton_part_and_the_rest():
    """|O - Y|^2 / 2 by PyTorch: dO = O - Y moves by O_dot, and J^T J u is never negative with u."""
    dO, x, R = problem(leading=())
    dots, Y = tangents(x), tangents([dO], 2)[0]
    tensors = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in x]
    loss = (defined(torch.as_tensor(R))(*tensors) - torch.as_tensor(Y)).square().sum() / 2
    gradients = torch.autograd.grad(loss, tensors, create_graph=True)
    psi = sum((g * torch.as_tensor(d)).sum() for g, d in zip(gradients, dots))
    want = [a.numpy() for a in torch.autograd.grad(psi, tensors)]
    dO, O_dot = dropout_attention(*x, R=R) - Y, dropout_attention_jvp(*dots, *x, R=R)
    assert close(attention_hvp(*dots, dO, *x, dO_dot=O_dot, R=R), want)
    gauss_newton = dropout_attention_vjp(O_dot, *x, R=R)
    assert abs(pairing(dots, gauss_newton) - np.sum(O_dot**2)) <= 1e-14 * scale(*gauss_newton)


def test_a_tangent_of_none_is_zero():
    dO, x, R = problem(leading=())
    dots = tangents(x)
    for k in range(5):
        given, zeros = list(dots), list(dots)
        given[k], zeros[k] = None, 0 * dots[k]
        assert close(attention_vjp_vjp(*given, dO, *x, R=R), attention_vjp_vjp(*zeros, dO, *x, R=R))
        assert close(attention_hvp(*given, dO, *x, R=R), attention_hvp(*zeros, dO, *x, dO_dot=0 * dO, R=R))
    assert all((np.asarray(a) == 0).all() for a in attention_vjp_vjp(*[None] * 5, dO, *x, R=R))
    found = attention_vjp_vjp(*dots[:3], None, 0.5, dO, *x[:3])
    assert found.dB_dot is None and found.dgamma_dot.shape == ()
    assert close(found[:4], attention_vjp_vjp(*dots[:3], None, 0.5, dO, *x[:3], np.zeros((4, 5)), 3**-0.5)[:4])


def test_an_empty_row_and_a_hidden_score_move_nothing():
    dO, x, R = problem()
    dots = tangents(x)
    found = attention_vjp_vjp(*dots, dO, *x, R=R)
    assert all(np.isfinite(a).all() for a in found)
    assert (found.O_dot[..., 2, :] == 0).all() and (found.dQ_dot[..., 2, :] == 0).all()
    assert (found.dB_dot[2] == 0).all() and found.dB_dot[1, 2] == 0 and (found.dB_dot[[0, 3]] != 0).all()
    again = attention_vjp_vjp(*dots[:3], np.where(np.isinf(x[3]), 1e9, dots[3]), dots[4], dO, *x, R=R)
    assert close(again, found)
    nothing = (*x[:3], np.full((4, 5), -np.inf), x[4])
    assert all((np.asarray(a) == 0).all() for a in attention_vjp_vjp(*dots, dO, *nothing, R=R))


@pytest.mark.parametrize("n, m", [(0, 3), (2, 0), (0, 0)])
def test_no_queries_or_no_keys(n, m):
    x = [np.ones((n, 2)), np.ones((m, 2)), np.ones((m, 3)), np.ones((n, m)), 0.5]
    found = attention_vjp_vjp(*x, np.ones((n, 3)), *x)
    shapes = [(n, 3), *(np.shape(a) for a in x)]
    assert [np.shape(a) for a in found] == shapes and all((np.asarray(a) == 0).all() for a in found)


def test_scores_of_any_size_give_numbers():
    """A saturated softmax: one key has all the weight, and everything second vanishes."""
    dO, (Q, K, V, B, gamma), _ = problem(leading=())
    found = attention_vjp_vjp(*tangents((Q, K, V, B, gamma)), dO, 1e3 * Q, 1e3 * K, V, B, gamma)
    assert all(np.isfinite(a).all() for a in found)
    assert all((np.asarray(a) == 0).all() for a in (found.dB_dot, found.dV_dot)) and found.O_dot.any()
    single = [np.asarray(a, np.float32) for a in (*tangents((Q, K, V, B, gamma)), dO, Q, K, V, B, gamma)]
    assert {np.asarray(a).dtype for a in attention_vjp_vjp(*single)} == {np.dtype("float32")}


# ---- mistakes ------------------------------------------------------------------------------------

T = functools.partial(np.swapaxes, axis1=-1, axis2=-2)


def rowsum(x):
    return x.sum(axis=-1, keepdims=True)


def written_out(dO_dot, dots, dO, x, R, wrong):
    """O_dot and the tangents of the gradients, each term by itself; one of them is wrong.

    without(name, term) is the term, or 0; changed(name, term, other) the term, or another.
    """
    def without(name, term):
        return 0 * term if wrong == name else term

    def changed(name, term, other):
        return other() if wrong == name else term

    Q, K, V, B, gamma = x
    Q_dot, K_dot, V_dot, B_dot, gamma_dot = dots
    P, S = attention_map(*x).P, Q @ T(K)
    dP, dP_dot = R * (dO @ T(V)), changed("R of dP_dot", R * (dO @ T(V_dot)), lambda: dO @ T(V_dot))
    dP_dot = without("dP_dot", dP_dot) + without("dO_dot V^T", R * (dO_dot @ T(V)))
    dP_dot = changed("V_dot of dP_dot not transposed", dP_dot, lambda: R * (dO @ np.reshape(V_dot, T(V).shape)))
    O, D = (P * R) @ V, rowsum(P * dP)
    S_dot = without("Q_dot K^T", Q_dot @ T(K)) + without("Q K_dot^T", Q @ T(K_dot))
    A_dot = changed("gamma of A_dot", gamma * S_dot, lambda: S_dot)
    A_dot = A_dot + without("gamma_dot of A_dot", gamma_dot * S) + without("B_dot", B_dot)
    A_dot = changed("R inside of the softmax", A_dot, lambda: R * A_dot)
    mu = rowsum(changed("mu with P R", P, lambda: P * R) * A_dot)
    mu = changed("mu a mean", without("mu", mu), lambda: mu / P.shape[-1])
    P_dot = P * (A_dot - changed("sign of mu", mu, lambda: -mu))
    P_dot = changed("frozen statistics", P_dot, lambda: P * A_dot)
    O_dot = changed("R of P_dot", P_dot * R, lambda: P_dot) @ V
    O_dot = without("P_dot V", O_dot) + without("P V_dot", changed("R of P V_dot", P * R, lambda: P) @ V_dot)
    D_dot = without("dO O_dot", rowsum(dO * O_dot)) + without("dO_dot O", rowsum(dO_dot * O))
    D_dot = changed("D_dot with P_dot alone", D_dot, lambda: rowsum(P_dot * dP))
    D_dot = changed("sign of D_dot", without("D_dot", D_dot), lambda: -D_dot)
    D_dot = changed("frozen statistics", D_dot, lambda: 0 * D_dot)
    dA = P * (dP - D)
    dA_dot = without("P_dot (dP - D)", P_dot * (dP - without("D", D))) + P * (dP_dot - D_dot)
    moved = changed("gamma of dA_dot", gamma * dA_dot, lambda: dA_dot)
    moved = changed("gamma of dA_dot twice", moved, lambda: gamma**2 * dA_dot)
    slope = changed("gamma of dA", gamma * dA, lambda: dA)
    dQ_dot = moved @ K + without("gamma_dot dA K", gamma_dot * dA @ K) + without("dA K_dot", slope @ K_dot)
    dQ_dot = changed("sign of dA K_dot", dQ_dot, lambda: dQ_dot - 2 * slope @ K_dot)
    turned = changed("dA_dot not transposed", T(moved), lambda: np.reshape(moved, T(moved).shape))
    dK_dot = turned @ Q + without("gamma_dot dA^T Q", T(gamma_dot * dA) @ Q) + without("dA^T Q_dot", T(slope) @ Q_dot)
    dV_dot = T(changed("R of dV_dot", P_dot * R, lambda: P_dot)) @ dO + without("P^T dO_dot", T(P * R) @ dO_dot)
    dV_dot = changed("P for P_dot", dV_dot, lambda: T(P * R) @ dO)
    dgamma_dot = without("dA_dot S", np.sum(dA_dot * S)) + without("dA S_dot", np.sum(dA * S_dot))
    return O_dot, dQ_dot, dK_dot, dV_dot, without("dB_dot", dA_dot), dgamma_dot


MISTAKES = [  # what has no dO_dot in it is seen by both checks
    "frozen statistics", "mu", "sign of mu", "mu a mean", "mu with P R", "Q_dot K^T", "Q K_dot^T", "gamma of A_dot",
    "gamma_dot of A_dot", "B_dot", "R inside of the softmax", "R of P_dot", "P_dot V", "P V_dot", "R of P V_dot",
    "dP_dot", "R of dP_dot", "V_dot of dP_dot not transposed", "dO O_dot", "D_dot with P_dot alone", "D_dot",
    "sign of D_dot", "D", "P_dot (dP - D)", "gamma of dA_dot", "gamma of dA_dot twice", "gamma of dA",
    "gamma_dot dA K", "dA K_dot", "sign of dA K_dot", "dA_dot not transposed", "gamma_dot dA^T Q", "dA^T Q_dot",
    "R of dV_dot", "P for P_dot", "dA_dot S", "dA S_dot", "dB_dot",
]
OF_DO_DOT = ["dO_dot V^T", "dO_dot O", "P^T dO_dot"]


def small():
    """dO, a head of which every size differs, with a hidden score, and factors of dropout."""
    rng = np.random.default_rng(8)
    dO, Q, K, V, B = (rng.normal(size=s) for s in [(2, 5), (2, 3), (4, 3), (4, 5), (2, 4)])
    B[0, 1] = -np.inf
    return (dO, Q, K, V, B, np.array(0.7)), np.array([[2.0, 1.5, 0.5, 3.0], [0.25, 2.5, 1.25, 0.75]])


def double_backward(wrong):
    def vjp_vjp(Q_dot, K_dot, V_dot, B_dot, gamma_dot, dO, Q, K, V, B, gamma, *, R):
        dots = Q_dot, K_dot, V_dot, B_dot, gamma_dot
        return written_out(0 * dO, dots, dO, (Q, K, V, B, gamma), R, wrong)
    return vjp_vjp


def tangent_of_backward(wrong):
    def vjp_jvp(dO_dot, Q_dot, K_dot, V_dot, B_dot, gamma_dot, dO, Q, K, V, B, gamma, *, R):
        dots = Q_dot, K_dot, V_dot, B_dot, gamma_dot
        return written_out(dO_dot, dots, dO, (Q, K, V, B, gamma), R, wrong)[1:]
    return vjp_jvp


@pytest.mark.parametrize("exact", [False, True])
def test_what_is_written_out_is_right(exact):
    x, R = small()
    check_vjp(double_backward(None), dropout_attention_vjp, *x, R=R, exact=exact)
    check_jvp(tangent_of_backward(None), dropout_attention_vjp, *x, R=R, exact=exact)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("mistake", MISTAKES + OF_DO_DOT)
def test_mistakes_are_refused(mistake, exact):
    x, R = small()
    said = "^refuted: " if exact else r": the (largest )?error is \d"
    with pytest.raises(AssertionError, match=said):
        check_jvp(tangent_of_backward(mistake), dropout_attention_vjp, *x, R=R, exact=exact)
    if mistake not in OF_DO_DOT:
        with pytest.raises(AssertionError, match=said):
            check_vjp(double_backward(mistake), dropout_attention_vjp, *x, R=R, exact=exact)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "changed", "kind", "sentence"), [
    (attention_vjp_vjp, dict(dO=np.ones((2, 4))), ValueError, "dO has shape (2, 4); it needs (2, 5), the shape of O"),
    (attention_vjp_vjp, dict(Q_dot=np.ones(3)), ValueError, "Q_dot has shape (3,); it needs (2, 3), the shape of Q"),
    (attention_vjp_vjp, dict(V_dot=np.ones((4, 3))), ValueError, "V_dot has shape (4, 3); it needs (4, 5), the shape of V"),
    (attention_vjp_vjp, dict(gamma_dot=np.ones(2)), ValueError, "gamma_dot has shape (2,); it needs (), the shape of gamma"),
    (attention_vjp_vjp, dict(B=None), ValueError, "B_dot has shape (2, 4); it needs to be None, as B is"),
    (attention_vjp_vjp, dict(K_dot=np.ones((4, 3), "f")), TypeError, "K_dot has dtype float32; it needs that of Q, float64"),
    (attention_vjp_vjp, dict(R=-np.ones(4)), ValueError, "R of shape (4,) holds NaN, +inf or a number below 0;"
     " its entries need to be 0 or 1 / (1 - rho)"),
    (attention_hvp, dict(dO_dot=np.ones(5)), ValueError, "dO_dot has shape (5,); it needs (2, 5), the shape of dO"),
    (attention_hvp, dict(dO_dot=1.0), TypeError, "dO_dot is a float; it needs to be an array (of NumPy, torch or"
     " another array-API library)"),
    (attention_hvp, dict(dO=None), TypeError, "dO is a NoneType; it needs to be an array (of NumPy, torch or another"
     " array-API library)"),
])
def test_bad_input_gets_one_clear_sentence(function, changed, kind, sentence):
    x, _ = small()
    names = "dO", "Q", "K", "V", "B", "gamma"
    given = dict(zip(names, x)) | {f"{name}_dot": a for name, a in zip(names[1:], x[1:])}
    given["B_dot"] = np.zeros((2, 4))
    with pytest.raises(kind) as told:
        function(**given | changed)
    assert str(told.value) == f"{function.__name__}: {sentence}"
