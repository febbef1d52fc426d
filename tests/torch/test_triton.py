"""The Triton kernels in the interpreter: each derivative against the strips in float64, within the bounds of rounding.

They need Triton and TRITON_INTERPRET=1: make kernels, or make kernels-slice for what is marked as telling.
On a processor without, they are skipped.
"""

import os
from contextlib import contextmanager
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch

import attnmath
from attnmath import rounding
from attnmath.rounding import ratio, unit_roundoff
from attnmath.torch import backend, strips
from attnmath.torch import scaled_dot_product_attention as attention
from attnmath.torch.how import How
from attnmath.torch.tiles import broadcast_leading, edges
from by_definition import DERIVATIVES, apart, by_autograd, plain
from mistaken_triton import MISTAKES, TELLING, mistaken

pytest.importorskip("triton", reason="triton is not installed; make kernels does")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("the interpreter of triton is not asked for: TRITON_INTERPRET=1", allow_module_level=True)

from attnmath.torch import triton_launch as launch  # noqa: E402
from attnmath.torch.triton_blocks import Blocks  # noqa: E402

INF, SEED = torch.inf, torch.tensor(2**40 + 7)
SMALL, UNEVEN = Blocks(16, 16), Blocks(32, 16)


@contextmanager
def cut_into(cut, where=launch):
    with patch.object(where, "blocks", lambda *_: cut):
        yield


class Case(NamedTuple):
    """The leading axes of Q, K, V; n, m, d_k, d_v; how; the shape and kind of B; the leading axes of S."""

    leads: tuple
    sizes: tuple
    how: How
    B: tuple | None = None
    kind: str = "numbers"
    S: tuple | None = None


ONE, PAIR, GROUPS = ((1,),) * 3, ((2,),) * 3, ((2, 1, 2), (2, 1, 1), (2, 1, 1))
CASES = {
    "plain": Case(PAIR, (35, 50, 16, 16), How(0.3)),
    "a narrow head, wide values": Case(ONE, (17, 33, 5, 40), How(0.5)),
    "wide head, narrow values": Case(ONE, (33, 17, 80, 3), How(0.1)),
    "one query": Case(ONE, (1, 40, 16, 16), How(0.3)),
    "one key": Case(ONE, (40, 1, 16, 16), How(0.3)),
    "causal": Case(PAIR, (48, 48, 16, 16), How(0.3, True)),
    "causal, fewer keys": Case(ONE, (50, 20, 8, 8), How(0.3, True)),
    "causal, more keys, a scale below 0": Case(ONE, (20, 50, 8, 8), How(-0.3, True)),
    "causal from the lower right": Case(ONE, (20, 50, 8, 8), How(0.3, right=0)),
    "from the lower right, hidden rows": Case(ONE, (50, 20, 8, 8), How(0.3, right=0)),
    "a window": Case(ONE, (60, 60, 8, 8), How(0.3, left=7, right=2)),
    "a causal window, more keys": Case(ONE, (30, 60, 8, 8), How(0.3, True, left=20, right=3)),
    "a window to the left alone": Case(ONE, (60, 30, 8, 8), How(0.3, left=4)),
    "booleans": Case(PAIR, (20, 35, 8, 8), How(0.3), (1, 20, 35), "boolean"),
    "booleans of keys": Case(PAIR, (20, 35, 8, 8), How(0.3), (2, 1, 35), "boolean"),
    "a bias": Case(PAIR, (20, 35, 8, 8), How(0.3), (2, 20, 35)),
    "a bias for all heads": Case(GROUPS, (20, 35, 8, 8), How(0.3), (20, 35)),
    "a bias of rows": Case(PAIR, (20, 35, 8, 8), How(0.3), (2, 20, 1)),
    "a bias of keys": Case(PAIR, (20, 35, 8, 8), How(0.3), (35,)),
    "hidden by numbers": Case(PAIR, (20, 35, 8, 8), How(0.3), (20, 35), "hidden"),
    "a cap": Case(ONE, (20, 35, 8, 8), How(1.0, softcap=0.8)),
    "slopes": Case(PAIR, (20, 35, 8, 8), How(0.3, slopes=True), S=(2,)),
    "sinks": Case(PAIR, (20, 35, 8, 8), How(0.3, True), S=(2,)),
    "sinks, hidden rows": Case(PAIR, (20, 35, 8, 8), How(0.3), (20, 35), "hidden", (2,)),
    "groups": Case(GROUPS, (20, 35, 8, 8), How(0.3, True)),
    "keys and values shared unlike": Case(((2, 2), (2, 1), (1, 2)), (20, 18, 8, 8), How(0.3)),
    "queries shared": Case(((1, 2), (2, 2), (2, 2)), (20, 18, 8, 8), How(0.3)),
    "dropout": Case(PAIR, (20, 35, 8, 8), How(0.3, False, 0.4, SEED)),
    "dropout of a part of more": Case(PAIR, (20, 18, 8, 8), How(0.3, False, 0.4, SEED, first_row=13, first_key=2**31 + 5,
                                                                heads=torch.tensor([2**33 + 1, 7]))),
    "all is dropped": Case(ONE, (20, 18, 8, 8), How(0.3, False, 1.0, SEED)),
    "all of them": Case(GROUPS, (20, 35, 8, 5), How(0.7, False, 0.3, SEED, 1.5, 9, 4, True), (20, 35), "numbers", (2, 1, 2)),
}
NAMES = "output", "tangent", "gradients", "double backward", "tangent of the gradients"


def made(case, dtype):
    """Q, K, V, B, S in a format, as numbers that no two derivatives share, then a direction of each and two of O."""
    rng = torch.Generator().manual_seed(1)
    n, m, d_k, d_v = case.sizes

    def numbers(*shape):
        return torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype)

    x = [numbers(*lead, *size) for lead, size in zip(case.leads, ((n, d_k), (m, d_k), (m, d_v)))]
    B = None if case.B is None else numbers(*case.B)
    if case.kind == "boolean":
        B = B > 0
        B[..., 0, :] = False
    if case.kind == "hidden":
        B[..., ::2, 1], B[..., -2, :] = -INF, -INF
    x += [B, None if case.S is None else numbers(*case.S, 1, 2) / 2]
    dots = [y if y is None or y.dtype == torch.bool else numbers(*y.shape) for y in x]
    dots[3] = None if case.kind == "boolean" else dots[3]
    O = (*broadcast_leading(*(y for y in x)), n, d_v)
    return x, dots, numbers(*O), numbers(*O)


def wide(given):
    return [y if y is None or y.dtype == torch.bool else y.double() for y in given]


def results(program, case, given, names=NAMES):
    """Of a program with the strips' functions, each of some derivatives as a list of tensors."""
    x, dots, dO, dO_dot = given
    how = case.how
    needs = (True, True, True, dots[3] is not None, x[4] is not None)

    def there(found):
        return [y for y in found if y is not None]

    def output():
        O = program.forward(*x, how)
        return [O[0] if isinstance(O, tuple) else O]

    calls = (
        output,
        lambda: program.jvp(*dots, *x, how),
        lambda: program.vjp(dO, *x, how, needs=needs),
        lambda: program.second(None, *dots, dO, *x, how, needs=(True, *needs)),
        lambda: program.second(dO_dot, *dots, dO, *x, how, needs=(True, *needs)),
    )
    return {name: there(call()) for name, call in zip(NAMES, calls) if name in names}


class Chosen:
    """What backend.py decides, where it must not fall back."""

    forward, vjp = staticmethod(backend.forward), staticmethod(backend.vjp)
    jvp, second = staticmethod(backend.jvp), staticmethod(backend.second)


def errors(name, dtype, cut=SMALL):
    case = CASES[name]
    given = made(case, dtype)
    want = results(strips, case, (*map(wide, given[:2]), *wide(given[2:])))
    with cut_into(cut):
        got = results(Chosen, case._replace(how=case.how._replace(backend="triton")), given)
    assert all(y.dtype == dtype for found in got.values() for y in found)
    return {key: apart([y.double() for y in got[key]], want[key]) for key in NAMES}


# What a right program may be off, in unit roundoffs: in the interpreter bfloat16 is cut off, not rounded.
ROUNDOFFS = {torch.float32: 60, torch.bfloat16: 20, torch.float16: 20}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
IN_HALF = ("plain", "a narrow head, wide values", "causal, fewer keys", "a window", "booleans", "hidden by numbers", "a cap",
           "sinks", "groups", "all of them")
BOUNDED = "plain", "causal", "a bias", "hidden by numbers", "a window", "dropout"


def some(names, *telling):
    """The parameters of a test, the telling ones marked."""
    assert {*telling} <= {*names}
    given = {name: name if isinstance(name, tuple) else (name,) for name in names}
    return [pytest.param(*x, marks=[pytest.mark.telling] * (name in telling)) for name, x in given.items()]


@pytest.mark.parametrize("name", some(CASES, "all of them", "wide head, narrow values", "causal, fewer keys", "booleans",
                                      "from the lower right, hidden rows", "sinks, hidden rows", "dropout of a part of more",
                                      "keys and values shared unlike"))
def test_each_derivative_is_that_of_the_strips(name):
    found = errors(name, torch.float32)
    assert max(found.values()) <= ROUNDOFFS[torch.float32] * unit_roundoff("float32"), found


@pytest.mark.parametrize("name, dtype", some([(name, dtype) for name in IN_HALF for dtype in ("bfloat16", "float16")],
                                             ("hidden by numbers", "bfloat16"), ("groups", "float16")))
def test_in_16_bits_sums_are_in_float32(name, dtype):
    found = errors(name, DTYPES[dtype])
    assert max(found.values()) <= ROUNDOFFS[DTYPES[dtype]] * unit_roundoff(dtype), found


@pytest.mark.parametrize("name", ["causal", "a causal window, more keys", "a window", "from the lower right, hidden rows"])
def test_tiles_of_more_rows_than_keys(name):
    found = errors(name, torch.float32, UNEVEN)
    assert max(found.values()) <= ROUNDOFFS[torch.float32] * unit_roundoff("float32"), found


@pytest.mark.parametrize("name, dtype", some([(name, dtype) for name in BOUNDED for dtype in DTYPES],
                                             ("hidden by numbers", "bfloat16"), ("causal", "float32")))
def test_first_derivatives_lie_within_the_bounds_of_rounding(name, dtype):
    case = CASES[name]
    x, dots, dO, _ = made(case, DTYPES[dtype])
    (n, m), how = case.sizes[:2], case.how
    first, last = edges(how, n, m)
    ahead = np.arange(m) - np.arange(n)[:, None]
    B = np.where((ahead < (-m if first is None else first)) | (ahead > (m if last is None else last)), -np.inf, 0.0)
    B = B if x[3] is None else B + x[3].double().numpy()
    Q, K, V = (y.double().numpy() for y in x[:3])
    Q_dot, K_dot, V_dot = (y.double().numpy() for y in dots[:3])
    B_dot = np.zeros_like(B) if dots[3] is None else dots[3].double().numpy()
    R = factors_of(x, how).double().numpy() if how.dropout else None
    more = {} if R is None else dict(R=R)
    kind = dict(dtype=dtype, accumulate="float32", truncate=dtype == "bfloat16", **more)
    if dtype == "bfloat16":  # the interpreter cuts off what a GPU rounds: a format of a digit less
        kind["dtype"] = "bfloat16"
    with cut_into(SMALL):
        O, L = launch.forward(*x, how)
        O_dot = launch.jvp(*dots, *x, how)[1]
        got = launch.vjp(dO, *x, how, needs=(True, True, True, dots[3] is not None, False))
    g = np.asarray(how.scale)
    want = attnmath.attention_map(Q, K, V, B, g, **more)
    off = rounding.attention(Q, K, V, B, g, **kind)
    slack = 2 if dtype == "bfloat16" else 1
    said = np.where(np.isneginf(want.L), 0, want.L)  # an empty row has 0
    assert ratio(O.double().numpy(), want.O, slack * off.O) <= 1
    assert ratio(L.double().numpy(), said, slack * off.L) <= 1
    exact = attnmath.attention_jvp(Q_dot, K_dot, V_dot, np.where(np.isneginf(B), 0, B_dot), 0.0, Q, K, V, B, g, **more)
    bound = rounding.attention_jvp(Q_dot, K_dot, V_dot, np.where(np.isneginf(B), 0, B_dot), 0.0, Q, K, V, B, g, **kind)
    assert ratio(O_dot.double().numpy(), getattr(exact, "O_dot", exact), slack * bound) <= 1
    dO = dO.double().numpy()
    exact, bound = attnmath.attention_vjp(dO, Q, K, V, B, g, **more), rounding.attention_vjp(dO, Q, K, V, B, g, **kind)
    for letter, y in zip(("dQ", "dK", "dV", "dB"), got):
        if y is not None:
            assert ratio(y.double().numpy(), getattr(exact, letter), slack * getattr(bound, letter)) <= 1


def factors_of(x, how):
    """The factors of dropout that the kernels draw: the output for equal weights and values that are the identity."""
    (lead, n, m) = broadcast_leading(*x[:2]), x[0].shape[-2], x[1].shape[-2]
    eye = torch.eye(m).expand(*lead, m, m)
    with cut_into(SMALL):
        O = launch.forward(torch.zeros(*lead, n, 4), torch.zeros(*lead, m, 4), eye, None, None, how)[0]
    return (O != 0).float() / (1 - how.dropout)


@pytest.mark.parametrize("offsets", [(30, 0), (0, 30), (30, 30)])
def test_what_keys_or_values_have_in_common_costs_no_more_digits_than_without_tiles(offsets):
    how = How(32**-0.5)
    Q, K, V, *moving = torch.randn(7, 1, 100, 32, generator=torch.Generator().manual_seed(3))
    K, V = K + offsets[0], V + offsets[1]

    def both(number):
        Q_, K_, V_, dO, *x_dot = (y.to(number) for y in (Q, K, V, *moving))

        def gradients(*y):
            return torch.func.vjp(lambda *z: plain(*z, scale=how.scale), *y)[1](dO)

        return torch.func.jvp(gradients, (Q_, K_, V_), tuple(x_dot))[1]

    dO, *x_dot = moving
    with cut_into(SMALL):
        ours = launch.second(None, *x_dot, None, None, dO, Q, K, V, None, None, how)[1:4]
    for got, other, right in zip(ours, both(torch.float32), both(torch.float64)):
        assert (got - right).norm() <= 2 * (other - right).norm()


CALLS = {
    "a cap, causal": dict(softcap=1.5, is_causal=True),
    "sinks, slopes, a window": dict(window=(9, 3)),
    "groups": dict(enable_gqa=True, softcap=2.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_function_with_this_backend_has_every_derivative(name):
    shapes = ((1, 2, 18, 8), (1, 1 if "groups" in name else 2, 20, 8))
    rng = torch.Generator().manual_seed(2)
    x = [torch.randn(shape, generator=rng) for shape in (shapes[0], shapes[1], shapes[1])]
    options, named = dict(CALLS[name]), ()
    if "sinks" in name:
        named = "sinks", "alibi_slopes"
        x += [torch.randn(2, generator=rng), torch.rand(2, generator=rng)]
    calls = []
    run = launch.RUN

    def counted(kernel, *given, **options):
        calls.append(kernel.__name__)
        run(kernel, *given, **options)

    def ours(Q, K, V, *more):
        return attention(Q, K, V, **dict(zip(named, more)), **options, backend="triton")

    def theirs(Q, K, V, *more):
        rest = {key: value for key, value in options.items() if key not in ("is_causal", "enable_gqa")}
        return plain(Q, K, V, causal=options.get("is_causal", False), **dict(zip(named, more)), **rest)

    O = theirs(*x)
    x_dot, x_bar = ([torch.randn(y.shape, generator=rng) for y in x] for _ in range(2))
    O_bar, O_dot = (torch.randn(O.shape, generator=rng) for _ in range(2))
    rest = tuple(x), tuple(x_dot), tuple(x_bar), O_bar, O_dot
    want = by_autograd(theirs, *[[y.double() for y in part] if isinstance(part, tuple) else part.double() for part in rest])
    with cut_into(SMALL), patch.object(launch, "RUN", counted):
        for f in DERIVATIVES:
            got = [y.double() for y in f(ours, *rest)]
            assert apart(got, want[f.__name__]) <= 2e-5, f.__name__
    of_pytorch = {"output"} if "sinks" in name else set()  # its kernel for processors does these
    assert {"output", "output_jvp", "by_rows", "by_columns"} - of_pytorch <= set(calls)


TOLD = {  # what the mistakes are tried on: with and without dropout, which hides little, and a causal mask
    "all": Case(((1, 2),) + ((1, 1),) * 2, (18, 24, 8, 5), How(0.7, False, 0.3, SEED, 1.5, 14, 6, True), (18, 24), "numbers", (1, 2)),
    "causal": Case(ONE, (36, 36, 8, 8), How(0.7, True)),
}
TRIED = {"output": "output", "tangent": "tangent", "gradients": "gradients", "tangent of the gradients": "second"}


@pytest.fixture(scope="module")
def right():
    """What is given, and what the strips in float64 say."""
    found = {}
    for name, case in TOLD.items():
        given = made(case, torch.float32)
        given[0][:2] = [2 * y for y in given[0][:2]]  # so that the largest score of a row moves
        want = results(strips, case, (*map(wide, given[:2]), *wide(given[2:])))
        L = None
        if name == "causal":
            L = plain(*wide(given[0][:3]), scale=case.how.scale, causal=True, with_L=True)[1]
        found[name] = given, want, L
    return found


def wrong(program, right):
    found = set()
    with cut_into(SMALL, program), np.errstate(all="ignore"):
        for name, (given, want, L) in right.items():
            got = results(program, TOLD[name], given, TRIED)
            found |= {said for key, said in TRIED.items()
                      if not apart([y.double() for y in got[key]], want[key]) <= 1e-4}
            if L is not None and not apart([program.forward(*given[0], TOLD[name].how)[1].double()], [L]) <= 1e-5:
                found.add("L")
    return found


@pytest.mark.telling
def test_nothing_is_wrong_without(right):
    assert wrong(launch, right) == set()


@pytest.mark.parametrize("name", some(MISTAKES, *TELLING.values()))
def test_a_mistake_in_the_kernels_is_seen_where_it_is(name, right, tmp_path):
    with mistaken(name, tmp_path) as program:
        assert wrong(program, right) == MISTAKES[name].wrong
