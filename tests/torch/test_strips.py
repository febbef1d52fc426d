"""Strips of rows: each derivative against autograd of the definition, and what is cut where."""

from typing import NamedTuple

import pytest
import torch
from torch.func import jvp, vjp

from attnmath._words.tolerance import DROP_IN
from attnmath.torch import scores, strips, tiles
from attnmath.torch.how import How, placed
from attnmath.torch.tiles import Work, broadcast_leading, group_steps
from by_definition import apart, by_autograd, plain
from strips import cut_into

INF = torch.inf
SEED = torch.tensor(5)


class Case(NamedTuple):
    """The leading axes of Q, K, V; n, m, d_k, d_v; the shape and kind of B; how; the leading axes of S."""

    leads: tuple
    sizes: tuple
    B: tuple | None = None
    kind: str = ""
    how: How = How(0.4)
    S: tuple | None = None


ALONE, GROUPS = ((1,),) * 3, ((2, 2, 3), (2, 2, 1), (2, 2, 1))
CASES = {
    "one head": Case(ALONE, (7, 5, 3, 4)),
    "causal, fewer keys": Case(ALONE, (7, 5, 3, 2), how=How(0.4, causal=True)),
    "causal, more keys": Case(((3,),) * 3, (5, 8, 3, 2), how=How(-0.4, causal=True)),
    "groups": Case(GROUPS, (4, 5, 3, 2)),
    "a batch shares Q": Case(((1, 3), (2, 3), (2, 1)), (4, 5, 3, 2), how=How(0.0, causal=True)),
    "one bias for all": Case(GROUPS, (4, 5, 3, 2), (4, 5), "numbers"),
    "a bias of rows": Case(GROUPS, (4, 5, 3, 2), (2, 1, 3, 4, 1), "numbers", How(0.4, causal=True)),
    "a bias of keys": Case(((2, 3),) * 3, (4, 6, 3, 2), (6,), "numbers"),
    "hidden by numbers": Case(((2, 3),) * 3, (5, 6, 3, 2), (3, 5, 6), "hidden", How(1.3)),
    "hidden by booleans": Case(((2, 3),) * 3, (5, 6, 3, 2), (2, 1, 5, 6), "boolean"),
    "hidden keys": Case(GROUPS, (5, 6, 3, 2), (2, 1, 1, 1, 6), "boolean", How(0.4, causal=True)),
    "dropout": Case(((2, 3),) * 3, (5, 6, 3, 2), how=How(0.4, False, 0.3, SEED)),
    "dropout and all else": Case(GROUPS, (6, 4, 3, 2), (2, 1, 3, 6, 4), "hidden", How(-0.7, True, 0.5, SEED)),
    "dropout, V has more heads": Case(((1, 2), (1, 2), (3, 2)), (5, 4, 3, 2), how=How(1.0, False, 0.5, SEED)),
    "a cap": Case(((2, 3),) * 3, (5, 6, 3, 2), how=How(1.3, softcap=0.8)),
    "a cap and all else": Case(GROUPS, (6, 4, 3, 2), (2, 1, 3, 6, 4), "hidden", How(-0.7, True, 0.5, SEED, 1.2)),
    "a window": Case(((2, 3),) * 3, (9, 9, 3, 2), how=How(0.4, left=2, right=1)),
    "a window, more keys": Case(((2, 3),) * 3, (4, 9, 3, 2), how=How(0.4, left=1, right=2)),
    "a window, fewer keys": Case(GROUPS, (9, 5, 3, 2), how=How(0.4, left=2, right=0)),
    "a window to the left alone": Case(ALONE, (6, 8, 3, 2), how=How(0.4, left=1)),
    "a window to the right alone": Case(ALONE, (8, 5, 3, 2), how=How(0.4, right=1)),
    "a causal window": Case(ALONE, (7, 9, 3, 2), how=How(0.4, True, left=3, right=0)),
    "a window of one key": Case(ALONE, (7, 7, 3, 2), how=How(0.4, left=0, right=0)),
    "a window, a bias and dropout": Case(GROUPS, (6, 7, 3, 2), (3, 6, 7), "hidden", How(0.4, False, 0.3, SEED, None, 2, 1)),
    "sinks": Case(((2, 3),) * 3, (5, 6, 3, 2), how=How(0.9), S=(3,)),
    "sinks, hidden rows": Case(((2, 3),) * 3, (5, 6, 3, 2), (3, 5, 6), "hidden", How(1.3), S=(2, 3)),
    "sinks of groups": Case(GROUPS, (4, 5, 3, 2), how=How(0.4, True), S=(2, 3)),
    "slopes": Case(((2, 3),) * 3, (5, 6, 3, 2), how=How(0.9, slopes=True), S=(3,)),
    "slopes and booleans": Case(GROUPS, (6, 4, 3, 2), (2, 1, 1, 6, 4), "boolean", How(0.9, slopes=True), S=(2, 2, 3)),
    "all of them": Case(GROUPS, (7, 6, 3, 2), (3, 7, 6), "hidden", How(0.9, True, 0.3, SEED, 1.5, 3, 2, True), S=(2, 3)),
}
CUTS = {  # rows, numbers of a strip and of a tile
    "one tile": (512, 2**20, 2**20),
    "entry by entry": (1, 1, 1),
    "two rows, some heads": (2, 30, 30),
    "tall tiles of two keys": (100, 2**20, 14),
    "three rows by three keys": (3, 1000, 9),
    "taller where kept": (100, 12, 6),
}


@pytest.fixture(params=CUTS)
def cut(request):
    with cut_into(*CUTS[request.param]):
        yield


def made(case):
    """Q, K, V, B, S, with numbers that no two derivatives share."""
    rng = torch.Generator().manual_seed(1)
    n, m, d_k, d_v = case.sizes
    shapes = [(*lead, *size) for lead, size in zip(case.leads, ((n, d_k), (m, d_k), (m, d_v)))]
    Q, K, V = (torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes)
    B = None if case.B is None else torch.randn(case.B, generator=rng, dtype=torch.float64)
    if case.kind == "boolean":
        B = B > 0
        B[..., -1, : B.shape[-1] // 2], B[..., 0, :] = True, False
    if case.kind == "hidden":
        B[..., ::2, 1], B[..., -2, :] = -INF, -INF
    S = None if case.S is None else torch.randn(*case.S, 1, 2, generator=rng, dtype=torch.float64)
    return Q, K, V, B, S


def factors(Q, K, how):
    """The factors of dropout of all strips, side by side; None without dropout."""
    if not how.dropout:
        return None
    R = torch.zeros(*broadcast_leading(Q, K), Q.shape[-2], K.shape[-2], dtype=Q.dtype)
    for heads in Work(how, Q, K, K, None, arrays=0).heads():
        for strip in heads.strips():
            strip.part(R).copy_(strip.as_scores(strip.R))
    return R


def errors(case):
    """Of the four functions, with all that is there moving."""
    Q, K, V, B, S = made(case)
    moving = (True, True, True, B is not None and B.dtype != torch.bool, S is not None)
    how = case.how
    x = [y for y, moves in zip((Q, K, V, B, S), moving) if moves]

    def definition(*x):
        Q, K, V, *rest = x
        mask = rest.pop(0) if moving[3] else B
        slopes, sinks = rest[0][..., 0, :].unbind(-1) if rest else (None, None)
        return plain(Q, K, V, mask, R, how.causal, how.scale, softcap=how.softcap, window=(how.left, how.right),
                     sinks=sinks, alibi_slopes=slopes if how.slopes else None)

    R = factors(Q, K, how)
    O = definition(*x)
    dO, dO_dot = (torch.randn_like(O) for _ in range(2))
    x_dot, x_bar = ([torch.randn_like(y) for y in x] for _ in range(2))
    want = by_autograd(definition, x, x_dot, x_bar, dO, dO_dot)
    x_dot, x_bar, inputs = placed(x_dot, moving), placed(x_bar, moving), (Q, K, V, B, S, how)
    got = dict(
        output=(strips.forward(*inputs),),
        gradients=strips.vjp(dO, *inputs, needs=moving),
        tangent=strips.jvp(*x_dot, *inputs),
        double_backward=strips.second(None, *x_bar, dO, *inputs, needs=(True, *moving)),
        forward_over_reverse=strips.second(dO_dot, *x_dot, dO, *inputs, needs=(True, *moving)),
    )
    return {name: apart([y for y in got[name] if y is not None], want[name]) for name in got}


@pytest.mark.parametrize("name", CASES)
def test_each_derivative(name, cut):
    found = errors(CASES[name])
    assert max(found.values()) <= DROP_IN, found


MISTAKES = {
    "no mu": ("softmax_tangent", lambda P, F, mu: F),
    "no D": ("softmax_back", lambda P, dP, out: (torch.mul(P, dP, out=out), 0)),
    "no P dP_dot": ("tangent_of_back", lambda P, P_dot, dP, dP_dot, out: P_dot.mul_(dP)),
    "the last part alone": ("add_products", lambda total, *pairs: [total.copy_(a @ b) for a, b in pairs if a is not None]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(mistake, monkeypatch):
    monkeypatch.setattr(strips, *MISTAKES[mistake])
    with cut_into(2, 20, 4):
        found = errors(CASES["one head"])
    assert max(found.values()) > 1e-3


def test_other_factors_on_a_later_pass_are_seen(monkeypatch):
    passed, fill = [], tiles.Draws.fill

    def first_rows(draws, R, heads, rows, keys):
        passed.append(rows.start)
        later = len(passed) > 18  # 6 heads, 3 strips: what factors() reads
        fill(draws, R, heads, slice(0, rows.stop - rows.start) if later else rows, keys)

    monkeypatch.setattr(tiles.Draws, "fill", first_rows)
    with cut_into(2, 12, 4):
        found = errors(CASES["dropout"])
    assert passed[:18] == [0, 2, 4] * 6 and min(found.values()) > 1e-3


MOVING = [tuple(bool(k >> i & 1) for i in range(6)) for k in range(64)]


@pytest.mark.parametrize("moving", MOVING)
def test_a_tangent_of_none_is_zero(moving):
    case = CASES["all of them"]
    x = made(case)
    dO = torch.randn_like(strips.forward(*x, case.how))
    inputs = dO, *x
    dots = [torch.randn_like(x) if moves else None for x, moves in zip(inputs, moving)]
    zeros = [torch.zeros_like(x) if dot is None else dot for x, dot in zip(inputs, dots)]
    pairs = [(strips.second(*x, *inputs, case.how), strips.jvp(*x[1:], *inputs[1:], case.how)) for x in (dots, zeros)]
    (second, first), (want, want_first) = pairs
    assert max(apart(second, want), apart(first, want_first)) <= DROP_IN


@pytest.mark.parametrize("needs", MOVING)
def test_what_is_not_needed_is_none_and_the_rest_stays(needs):
    case = CASES["all of them"]
    inputs = *made(case), case.how
    dO = torch.randn_like(strips.forward(*inputs))
    dots = [torch.randn_like(x) for x in (dO, *inputs[:5])]
    pairs = (
        (strips.second(*dots, dO, *inputs, needs=needs), strips.second(*dots, dO, *inputs), needs),
        (strips.vjp(dO, *inputs, needs=needs[1:]), strips.vjp(dO, *inputs), needs[1:]),
    )
    for got, whole, needed in pairs:
        assert [x is not None for x in got] == list(needed)
        assert all(torch.equal(x, y) for x, y in zip(got, whole) if x is not None)


@pytest.mark.parametrize("n, m", [(0, 3), (3, 0), (0, 0)])
def test_without_rows_or_keys_all_is_zero(n, m):
    Q, K, V, B = (torch.ones(2, *shape) for shape in ((n, 3), (m, 3), (m, 4), (n, m)))
    dO = torch.ones(2, n, 4)
    S = torch.ones(2, 1, 2)
    inputs = Q, K, V, B, S, How(1.0, True, 0.1, SEED, 2.0, 1, 1, True)
    results = (
        strips.forward(*inputs),
        *strips.vjp(dO, *inputs),
        *strips.jvp(Q, K, V, B, S, *inputs),
        *strips.second(dO, Q, K, V, B, S, dO, *inputs),
    )
    shapes = [x.shape for x in (dO, Q, K, V, B, S, dO, dO, dO, Q, K, V, B, S)]
    assert [x.shape for x in results] == shapes and not any(x.any() for x in results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_16_bits_are_summed_in_float32_and_rounded_once(dtype):
    case = CASES["sinks, hidden rows"]
    short = [x.to(dtype) for x in made(case)]
    long = [x.float() for x in short]
    dO = torch.ones(2, 3, 5, 2, dtype=dtype)
    for got, want in (
        (strips.vjp(dO, *short, case.how), strips.vjp(dO.float(), *long, case.how)),
        (strips.jvp(*map(torch.ones_like, short), *short, case.how), strips.jvp(*map(torch.ones_like, long), *long, case.how)),
        (strips.second(dO, None, *short[1:3], None, None, dO, *short, case.how),
         strips.second(dO.float(), None, *long[1:3], None, None, dO.float(), *long, case.how)),
    ):
        assert all(torch.equal(x, y.to(dtype)) for x, y in zip(got, want, strict=True))


def test_the_factors_of_dropout_come_from_the_seed_and_from_q_and_k_alone():
    how = How(1.0, False, 0.25, SEED)
    Q, K = torch.zeros(2, 3, 40, 1), torch.zeros(2, 1, 50, 1)
    R = factors(Q, K, how)
    assert R.shape == (2, 3, 40, 50) and R.unique().tolist() == [0.0, torch.tensor(1 / 0.75).item()]
    assert len({tuple(x.flatten().tolist()) for x in R.flatten(0, 1)}) == 6  # each head has its own
    assert abs((R > 0).double().mean() - 0.75) < 4 * (0.25 * 0.75 / R.numel()) ** 0.5
    assert torch.equal(R, factors(Q, K, how))
    assert not torch.equal(R, factors(Q, K, how._replace(seed=torch.tensor(6))))


def test_blocks_of_rows_have_factors_of_their_own(monkeypatch):
    monkeypatch.setattr(tiles, "MOST_ROWS", 4)
    R = factors(torch.zeros(1, 8, 1), torch.zeros(1, 30, 1), How(1.0, False, 0.5, SEED))
    assert not torch.equal(R[:, :4], R[:, 4:])


@pytest.mark.parametrize("n, m", [(1, 65536), (65536, 65536), (4096, 4096), (300, 7)])
@pytest.mark.parametrize("causal", [False, True])
def test_a_strip_is_linear_in_the_keys(n, m, causal):
    x = torch.zeros(1, 1, 1)
    work = Work(How(1.0, causal), x.expand(9, n, 1), x.expand(9, m, 1), x.expand(9, m, 1), None, arrays=1)
    (array,) = work.scratch
    assert array.numel() <= max(2**20, 32 * m)
    for heads in work.heads():
        strips = list(heads.strips())
        assert [i for s in strips for i in range(n)[s.rows]] == list(range(n))
        assert all(s.keys.stop == (min(s.rows.stop, m) if causal else m) for s in strips)


@pytest.mark.parametrize("lead, count, steps", [
    ((), 5, []), ((4,), 3, [3]), ((4,), 0, [1]), ((2, 3), 6, [2, 3]), ((2, 3), 5, [1, 3]), ((5, 2, 3), 13, [2, 2, 3]),
    ((5, 2, 3), 2, [1, 1, 2]), ((0, 3), 7, [1, 3]),
])
def test_neighbours_make_a_group(lead, count, steps):
    assert group_steps(lead, count) == steps


@pytest.mark.parametrize("shapes", [[()], [(3,), (1,)], [(2, 1), (3,)], [(1, 0), (4, 1)], [(2, 1, 3), (1,), (5, 3)]])
def test_leading_axes_broadcast_as_those_of_torch(shapes):
    tensors = [torch.empty(*shape, 2, 2) for shape in shapes]
    assert broadcast_leading(None, *tensors) == tuple(torch.broadcast_shapes(*shapes))


def test_a_boolean_mask_as_numbers():
    room = torch.empty(2, 3)
    B = torch.tensor([[True], [False]])
    assert scores.mask_as_numbers(B, room).tolist() == [[0.0], [-INF]]
    assert scores.mask_as_numbers(room, None) is room


@pytest.mark.parametrize("offsets", [(30, 0), (0, 30), (30, 30)])
def test_what_keys_or_values_have_in_common_costs_no_more_digits_than_without_strips(offsets):
    """It cancels: the rows of dA and of its tangent sum to 0, up to the rounding of their own terms."""
    how = How(32**-0.5)
    Q, K, V, *moving = torch.randn(7, 1, 300, 32, generator=torch.Generator().manual_seed(3))
    K, V = K + offsets[0], V + offsets[1]
    dO, *x_dot = moving

    def both(number):
        x = [y.to(number) for y in (Q, K, V, dO, *x_dot)]
        ours = strips.second(None, *x[4:], None, None, x[3], *x[:3], None, None, how, needs=(True,) * 4 + (False,) * 2)

        def gradients(*y):
            return vjp(lambda *z: plain(*z, scale=how.scale), *y)[1](x[3])

        return ours[1:4], jvp(gradients, tuple(x[:3]), tuple(x[4:]))[1]

    with cut_into(100, 2**15, 3200):
        (ours, theirs), (_, want) = both(torch.float32), both(torch.float64)
    for got, other, right in zip(ours, theirs, want):
        assert (got - right).norm() <= 2 * (other - right).norm()


def test_where_one_key_is_seen_no_score_matters():
    Q, K, V, dO, *x_dot = torch.randn(7, 1, 9, 24, generator=torch.Generator().manual_seed(3))
    B = torch.arange(9) == 8
    with cut_into(4, 100, 12):
        _, dQ_dot, dK_dot, *_ = strips.second(None, *x_dot, None, None, dO, 1e4 * Q, K, V, B, None, How(0.5))
    assert not dQ_dot.any() and not dK_dot.any()


def test_inputs_are_not_modified():
    case = CASES["all of them"]
    inputs = made(case)
    dO = torch.ones(2, 2, 3, 7, 2, dtype=torch.float64)
    kept = [x.clone() for x in (dO, *inputs)]
    strips.vjp(dO, *inputs, case.how)
    strips.jvp(*inputs[:3], None, inputs[4], *inputs, case.how)
    strips.second(dO, *inputs[:3], None, inputs[4], dO, *inputs, case.how)
    assert all(map(torch.equal, (dO, *inputs), kept))
