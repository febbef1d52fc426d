"""The programs of the chapter on kernels: against PyTorch's derivatives, the complex step, proofs; and with mistakes."""

import inspect
from types import ModuleType

import numpy as np
import pytest
import torch

from attnmath import attention, attention_jvp, attention_vjp, attention_vjp_vjp, check_jvp, check_vjp, prove
from attnmath.book import kernels
from attnmath.book.kernels import Plan

torch.set_num_threads(1)
TILES = [(2, 3), (3, 4), (7, 11), (1, 1), (4, 5), (100, 1)]
SIGHTS = {"all": (None, None), "upper left": (None, 0), "lower right": (None, 4), "window": (-1, 2), "empty rows": (None, -3)}
GAMMA, N, M, D_K, D_V = 0.7, 7, 11, 3, 2
tiles = pytest.mark.parametrize("tile", TILES)
sights = pytest.mark.parametrize("sight", SIGHTS)


def drawn(seed=0):
    """Q_dot, K_dot, V_dot, dO, Q, K, V, and a table of factors of dropout."""
    rng = np.random.default_rng(seed)
    shapes = (N, D_K), (M, D_K), (M, D_V), (N, D_V), (N, D_K), (M, D_K), (M, D_V)
    return [rng.normal(size=s) for s in shapes], np.where(rng.random((N, M)) < 0.3, 0, 1 / 0.7)


def plan_of(tile, sight, R=None, module=kernels):
    first, last = SIGHTS[sight]
    return module.Plan(GAMMA, tile, first, last, None if R is None else lambda I, J: R[I, J])


def whole(Q, K, V, sight, R):
    """The output by PyTorch's own functions, of the queries that see a key; and which these are."""
    first, last = SIGHTS[sight]
    ahead = torch.arange(M) - torch.arange(N)[:, None]
    seen = torch.ones(N, M, dtype=torch.bool)
    if last is not None:
        seen &= ahead <= last
    if first is not None:
        seen &= ahead >= first
    live = seen.any(1)
    A = (GAMMA * Q @ K.T).masked_fill(~seen, -torch.inf)[live]
    return (torch.softmax(A, -1) * torch.tensor(R)[live]) @ V, live


def by_torch(x, sight, R):
    """O, O_dot, dQ, dK, dV, dQ_dot, dK_dot, dV_dot; rows of O that see nothing are 0."""
    Q_dot, K_dot, V_dot, dO, Q, K, V = (torch.tensor(a, requires_grad=True) for a in x)
    O, live = whole(Q, K, V, sight, R)
    O_dot = torch.func.jvp(lambda *y: whole(*y, sight, R)[0], (Q, K, V), (Q_dot, K_dot, V_dot))[1]
    first = torch.autograd.grad(O, (Q, K, V), dO[live], create_graph=True)
    second = torch.autograd.grad(first, (Q, K, V), (Q_dot, K_dot, V_dot))

    def rows(y):
        full = torch.zeros(N, D_V, dtype=torch.float64)
        full[live] = y.detach()
        return full

    return [rows(O), rows(O_dot), *first, *second]


def by_kernels(x, plan, module=kernels, with_atomics=False):
    Q_dot, K_dot, V_dot, dO, Q, K, V = x
    O, L, O_dot, _ = module.jvp(Q_dot, K_dot, V_dot, Q, K, V, plan)
    first = module.backward(dO, Q, K, V, O, L, plan, with_atomics=with_atomics)
    second = module.double_backward(*x, O, L, plan, with_atomics=with_atomics)
    return [O, O_dot, *first, *second[1:]]


def off(got, want):
    return [float(np.abs(g - w.detach().numpy()).max()) for g, w in zip(got, want)]


@tiles
@sights
def test_every_program_is_what_pytorch_finds(tile, sight):
    x, R = drawn()
    want, plan = by_torch(x, sight, R), plan_of(tile, sight, R)
    for with_atomics in (False, True):
        assert max(off(by_kernels(x, plan, with_atomics=with_atomics), want)) < 1e-13
    O, L = kernels.forward(*x[4:], plan)
    again = kernels.jvp(*x[:3], *x[4:], plan)
    assert all((a == b).all() for a, b in zip((O, L), again))
    kept = kernels.jvp_kept(*x[:3], *x[4:], O, L, plan)
    assert all(abs(a - b).max() < 1e-13 for a, b in zip(kept, again[2:]))
    second = kernels.double_backward(*x, O, L, plan)
    assert abs(second[0] - again[2]).max() < 1e-13


@tiles
def test_the_log_sum_exp(tile):
    x, _ = drawn()
    L = kernels.forward(*x[4:], plan_of(tile, "empty rows"))[1][:, 0]
    A = GAMMA * x[4] @ x[5].T
    want = [np.logaddexp.reduce(A[i, : max(i - 2, 0)]) if i > 2 else -np.inf for i in range(N)]
    assert np.allclose(L, want, rtol=1e-14)


def of_one_kind(*x):
    """All complex if one is; a tangent that is None is 0."""
    kind = np.result_type(*(a for a in x if a is not None))
    return [np.zeros_like(x[3 + k]) if a is None else a.astype(kind) for k, a in enumerate(x)]


@tiles
def test_derivatives_by_the_complex_step(tile):
    x, R = drawn()
    plan = plan_of(tile, "lower right", R)

    def forward(Q, K, V):
        return kernels.forward(*of_one_kind(Q, K, V), plan)[0]

    def jvp(Q_dot, K_dot, V_dot, Q, K, V):
        return kernels.jvp(*of_one_kind(Q_dot, K_dot, V_dot, Q, K, V), plan)[2]

    def vjp(dO, Q, K, V):
        x = of_one_kind(dO, Q, K, V)
        return kernels.backward(*x, *kernels.forward(*x[1:], plan), plan)

    def vjp_vjp(Q_dot, K_dot, V_dot, dO, Q, K, V):
        x = of_one_kind(Q_dot, K_dot, V_dot, dO, Q, K, V)
        return kernels.double_backward(*x, *kernels.forward(*x[4:], plan), plan)

    check_jvp(jvp, forward, *x[4:])
    check_vjp(vjp, forward, *x[4:])
    check_vjp(vjp_vjp, vjp, *x[3:])


@pytest.mark.parametrize("tile", [(2, 3), (1, 1), (3, 4)])
def test_every_program_is_proved(tile):
    plan, still, head = Plan(2, tile), (None, None), ((3, 2), (4, 2), (4, 3))

    def second(Q_dot, K_dot, V_dot, dO, Q, K, V):
        kept = kernels.forward(Q, K, V, plan)
        x = Q_dot, K_dot, V_dot, dO, Q, K, V, *kept, plan
        return *kernels.double_backward(*x), *kernels.double_backward(*x, with_atomics=True)

    def both(dO, Q, K, V):
        O, L = kernels.forward(Q, K, V, plan)
        return O, *kernels.backward(dO, Q, K, V, O, L, plan)

    assert prove(both, lambda dO, *x: (attention(*x, None, 2), *attention_vjp(dO, *x, None, 2)[:3]), (3, 3), *head)
    assert prove(lambda *x: kernels.jvp(*x, plan)[2],
                 lambda *x: attention_jvp(*x[:3], *still, *x[3:], None, 2), *head, *head)
    assert prove(second, lambda *x: 2 * tuple(attention_vjp_vjp(*x[:3], *still, *x[3:], None, 2)[:4]),
                 *head, (3, 3), *head)


# ---- mistakes ----------------------------------------------------------------------------------------

NAMES = "O", "O_dot", "dQ", "dK", "dV", "dQ_dot", "dK_dot", "dV_dot"
MISTAKES = {  # a line, what stands in its place, what is off
    "s not rescaled in the tangent": ("            s = past * s + rowsum(E)\n            M", "            s = s + rowsum(E)\n            M", "O O_dot"),
    "M not rescaled": ("M = past * M", "M = M", "O_dot"),
    "N not rescaled in the tangent": ("N = past * N + times(E, R) @ v\n            U", "N = N + times(E, R) @ v\n            U", "O O_dot"),
    "U not rescaled": ("U = past * U", "U = U", "O_dot"),
    "the values do not move": ("+ times(E, R) @ v_dot\n        O[I]", "\n        O[I]", "O_dot"),
    "the new tile not shifted": ("F = E * A_dot", "F = exp(A) * A_dot", "O_dot"),
    "O_dot without its second term": ("(U - M / nonzero(s) * N)", "U", "O_dot"),
    "D forgotten": ("P * (dP - D)", "P * dP", "dQ dK"),
    "D frozen": ("(dP_dot - r.D_dot)", "dP_dot", "dQ_dot dK_dot"),
    "L frozen": (" - r.L_dot)", ")", "dQ_dot dK_dot dV_dot"),
    "dV without dropout": ("return times(P, R), P * (dP - D)", "return P, P * (dP - D)", "dV"),
    "dQ without the scale": ("dQ[I] = plan.gamma * dq", "dQ[I] = dq", "dQ"),
    "dK_dot without the second product": (" + T(dA) @ r.Q_dot", "", "dK_dot"),
    "the scale folded into the rates": ("return self.gamma * (q_dot", "return self.gamma / np.log(2) * (q_dot", "O_dot dQ_dot dK_dot dV_dot"),
    "a tile on the diagonal dropped": ("least <= self.last", "least < self.last", "O O_dot dQ dK dV dQ_dot dK_dot dV_dot"),
    "the end of a window cut off": ("most >= self.first", "most > self.first", "O O_dot dQ dK dV dQ_dot dK_dot dV_dot"),
    "the mask of the first tile for all": ("np.arange(J.start, J.stop) -", "np.arange(J.stop - J.start) -", "O"),
    "dropout counted within the tile": ("else self.R(I, J)", "else self.R(slice(0, I.stop - I.start), slice(0, J.stop - J.start))", "O dQ dK dV"),
}


def planted(old, new):
    """The module with one place changed."""
    source = inspect.getsource(kernels)
    assert source.count(old) == 1, f"{source.count(old)} places: {old}"
    module = ModuleType("planted")
    exec(source.replace(old, new), vars(module))
    return module


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_seen_where_it_is_and_nowhere_else(name):
    old, new, wrong = MISTAKES[name]
    module, (x, R) = planted(old, new), drawn()
    found = off(by_kernels(x, plan_of((2, 3), "window", R, module), module), by_torch(x, "window", R))
    seen = {letter for letter, error in zip(NAMES, found) if not error < 1e-13}
    assert seen >= set(wrong.split()) and (seen <= set(wrong.split()) or "O" in seen)
    assert max(found[NAMES.index(letter)] for letter in wrong.split()) > 1e-3


def test_a_difference_of_infinities_would_spread():
    """A row that sees nothing: subtracting its L plainly leaves no number."""
    x, R = drawn()
    plain = planted("P, R = exp(shift(plan.scores(q, k, I, J), l))", "P, R = exp(plan.scores(q, k, I, J) - l)")
    with np.errstate(invalid="ignore"):
        found = by_kernels(x, plan_of((2, 3), "empty rows", R, plain), plain)
    assert np.isnan(found[2]).any() and not np.isnan(by_kernels(x, plan_of((2, 3), "empty rows", R))[2]).any()


# ---- loops -------------------------------------------------------------------------------------------

@tiles
@sights
def test_both_loops_meet_each_tile_that_is_seen_once(tile, sight):
    plan, queries, keys = plan_of(tile, sight), np.empty((N, 0)), np.empty((M, 0))
    by_rows = [(I.start, J.start) for I in plan.rows(queries) for J in plan.columns(keys, I)]
    by_columns = [(I.start, J.start) for J in plan.columns(keys) for I in plan.rows(queries, J)]
    assert sorted(by_rows) == sorted(by_columns) and len(set(by_rows)) == len(by_rows)
    first, last = SIGHTS[sight]
    pairs = [(i, j) for i in range(N) for j in range(M)
             if (last is None or j <= i + last) and (first is None or j >= i + first)]
    assert {(i // tile[0] * tile[0], j // tile[1] * tile[1]) for i, j in pairs} == set(by_rows)


def test_sums_in_another_order_differ_in_their_last_digits_where_atomics_are():
    x = [a.astype("f") for a in drawn()[0]]
    orders = [Plan(np.float32(GAMMA), (2, 1), order=order) for order in (list, lambda x: x[::-1])]
    by_order = [by_kernels(x[:], plan, with_atomics=True)[2] for plan in orders]
    assert (by_order[0] != by_order[1]).any() and abs(by_order[0] - by_order[1]).max() < 1e-5
    alone = [kernels.backward_by_rows(x[3], *x[4:], *kernels.forward(*x[4:], orders[0])[1:],
                                      np.zeros((N, 1), "f"), orders[0]) for _ in range(2)]
    assert (alone[0] == alone[1]).all()
