"""Attention spread over ranks: its cases, and how far each derivative on a rank is from that of one process."""

from functools import lru_cache, partial

import torch
import torch.distributed as dist
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap

from attnmath import rounding
from attnmath.torch import ring_attention
from attnmath.torch import scaled_dot_product_attention as in_one
from attnmath.torch.layouts import positions
from by_definition import DERIVATIVES, apart, by_autograd, plain

ALIKE, GROUPS, MORE, FEWER = (
    ((2, 2, 13, 4), (2, 2, 13, 4), (2, 2, 13, 3)), ((2, 4, 12, 4), (2, 2, 12, 4), (2, 2, 12, 4)),
    ((2, 11, 4), (2, 17, 4), (2, 17, 4)), ((2, 1, 17, 4), (2, 9, 4), (1, 9, 5)),
)  # fmt: skip
CASES = {  # shapes and options of the whole; sinks: their shape
    "plain": (ALIKE, {}),
    "causal": (ALIKE, dict(is_causal=True)),
    "causal, groups": (GROUPS, dict(is_causal=True, enable_gqa=True)),
    "more keys": (MORE, dict(scale=-0.3)),
    "causal, more keys": (MORE, dict(is_causal=True)),
    "causal, fewer keys, axes that broadcast": (FEWER, dict(is_causal=True)),
    "fewer tokens than ranks": (((1, 3, 4), (1, 2, 4), (1, 2, 4)), {}),
    "no heads": (((9, 4), (9, 4), (9, 2)), dict(is_causal=True)),
    "a mask": (ALIKE, dict(attn_mask=(13, 13))),
    "a mask of each head, rows that see nothing": (ALIKE, dict(attn_mask=(2, 2, 13, 13))),
    "padding": (MORE, dict(attn_mask=(1, 17))),
    "a mask, groups": (GROUPS, dict(enable_gqa=True, attn_mask=(4, 12, 12))),
    "a window": (ALIKE, dict(window=(3, 1))),
    "a causal window, fewer keys, hidden rows": (FEWER, dict(window=(2, 0))),
    "a cap": (ALIKE, dict(softcap=0.7)),
    "sinks": (ALIKE, dict(sinks=(2,))),
    "sinks, rows that see nothing": (ALIKE, dict(sinks=(2,), attn_mask=(2, 2, 13, 13))),
    "dropout": (ALIKE, dict(dropout_p=0.4)),
    "all of them": (GROUPS, dict(enable_gqa=True, sinks=(4,), softcap=1.5, window=(5, 0), dropout_p=0.3)),
}
LAYOUTS = "contiguous", "zigzag", "striped"
OUTPUTS = dict(  # what each derivative gives: O, or all inputs
    output="O", gradients="x", tangent="OO", double_backward="Ox", forward_over_reverse="Ox", reverse_over_forward="xx",
    forward_over_forward="O",
)


def places(layout, n, ranks, rank):
    """Those of a rank's tokens; striped: every R-th, as a third layout that has no name."""
    return torch.arange(n)[rank::ranks] if layout == "striped" else positions(layout, n, ranks, rank)


def drawn(shapes, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def whole(case, dtype=torch.float64):
    """The inputs of the whole and what they are differentiated with, its options, and which inputs are of heads."""
    shapes, options = CASES[case]
    options = dict(options)
    sinks = [options.pop("sinks")] if "sinks" in options else []
    if "attn_mask" in options:
        options["attn_mask"] = torch.rand(options["attn_mask"], generator=torch.Generator().manual_seed(4)) > 0.4
        options["attn_mask"][..., 3:5, :] &= options["attn_mask"].shape[-2] == 1 or "nothing" not in case
    shapes = [*shapes, *sinks]
    x, x_dot, x_bar = (drawn(shapes, dtype, seed) for seed in (1, 2, 3))
    O = in_one(*x[:3], enable_gqa=options.get("enable_gqa", False))
    dO, dO_dot = drawn([O.shape] * 2, dtype, 5)
    return (tuple(x), tuple(x_dot), tuple(x_bar), dO, dO_dot), options


def seeded(function):
    """The same, with the same factors of dropout at each call."""

    def f(*x):
        torch.manual_seed(11)
        return function(*x)

    return f


def expected(given, options):
    """Every derivative of the whole: of the definition, or with dropout of the drop-in."""
    if "dropout_p" in options:
        f = seeded(lambda q, k, v, *s: in_one(q, k, v, sinks=s[0] if s else None, **options))
        return {d.__name__: d(f, *given) for d in DERIVATIVES}
    names = {"is_causal": "causal", "attn_mask": "mask"}
    own = {names.get(name, name): value for name, value in options.items() if name != "enable_gqa"}
    return by_autograd(lambda q, k, v, *s: plain(q, k, v, sinks=s[0] if s else None, **own), *given)


@lru_cache(2)  # it is the same over so many ranks, and in all layouts
def solved(case):
    """The whole: what it is given, its options, and every derivative."""
    given, options = whole(case)
    return given, options, expected(given, options)


def distances(group, case, layout, derivatives=None):
    """How far this rank's part of each derivative is from its rows of the whole's."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    given, options, want = solved(case)
    n, m = given[0][0].shape[-2], given[0][1].shape[-2]
    rows, keys = places(layout, n, ranks, rank), places(layout, m, ranks, rank)

    def local(kind, x):
        return x if kind == "S" else x[..., rows if kind == "q" else keys, :].contiguous()

    kinds = "qkkS"
    mine = [tuple(map(local, kinds, x)) for x in given[:3]] + [local("q", x) for x in given[3:]]
    if options.get("attn_mask") is not None and options["attn_mask"].shape[-2] > 1:
        own = dict(options, attn_mask=options["attn_mask"][..., rows, :])
    else:
        own = options
    how = dict(group=group, layout=(rows, keys) if layout == "striped" else layout)
    f = seeded(lambda q, k, v, *s: ring_attention(q, k, v, sinks=s[0] if s else None, **own, **how))
    found = {}
    for derivative in DERIVATIVES:
        name = derivative.__name__
        if derivatives and name not in derivatives:
            continue
        sides = OUTPUTS[name].replace("O", "q").replace("x", kinds[: len(mine[0])])
        got = [summed(x, group) if side == "S" else x for side, x in zip(sides, derivative(f, *mine), strict=True)]
        found[name] = apart(got, [local(side, x) for side, x in zip(sides, want[name], strict=True)])
    return found


def summed(x, group):
    x = x.detach().clone()
    dist.all_reduce(x, group=group)
    return x


def nested(group):
    """Other ways to ask: forward modes in each other, third order, maps, forward mode outside of torch.func."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    q, k, v, q_dot = drawn([(2, 9, 4), (2, 9, 4), (2, 9, 3), (2, 9, 4)])
    rows = positions("zigzag", 9, ranks, rank)
    mine = [x[:, rows] for x in (q, k, v)]

    def ring(q, k, v):
        return ring_attention(q, k, v, is_causal=True, group=group, layout="zigzag")

    def one(q, k, v):
        return plain(q, k, v, causal=True)

    def D(f, x_dot):
        return lambda x: jvp(f, (x,), (x_dot,))[1]

    def d(f):
        return grad(lambda x: f(x).pow(2).sum())

    ways = dict(
        third=lambda f, x_dot: D(D(D(f, x_dot), x_dot), x_dot),
        forward_twice_over_reverse=lambda f, x_dot: D(D(d(f), x_dot), x_dot),
        between=lambda f, x_dot: D(d(D(f, x_dot)), x_dot), reverse_outside=lambda f, x_dot: d(D(D(f, x_dot), x_dot)),
        mapped_gradient=lambda f, x_dot: lambda x: vmap(d(f))(torch.stack([x, 2 * x, x_dot])),
        gradient_of_map=lambda f, x_dot: d(lambda x: vmap(f)(torch.stack([x, 2 * x, x_dot]))),
        tangent_of_map=lambda f, x_dot: D(lambda x: vmap(f)(torch.stack([x, 2 * x, x_dot])), x_dot),
        map_of_tangents=lambda f, x_dot: lambda x: vmap(lambda t: jvp(f, (x,), (t,))[1])(torch.stack([x_dot, x])),
        outside_of_func=outside_of_func,
    )
    seen = torch.rand(3, 2, 9, 9, generator=torch.Generator().manual_seed(0)) > 0.3
    found = {"masks": max(masked(ring_attention, q, k, v, seen[:1, :1], rows, group, (0, None)),
                          masked(ring_attention, q, k, v, seen[:1], rows, group, (0, None)),
                          masked(ring_attention, q, k, v, seen, rows, group, (0, 0)),
                          masked(ring_attention, q, k, v, seen[:, :1], rows, group, (None, 0)))}
    for name, way in ways.items():
        by_definition = (lambda f, x_dot: d(D(f, x_dot))) if way is outside_of_func else way
        want = by_definition(lambda q: one(q, k, v), q_dot)(q)[..., rows, :]
        found[name] = apart([way(lambda q: ring(q, *mine[1:]), q_dot[:, rows])(mine[0])], [want])
    return found


def masked(ring, q, k, v, seen, rows, group, dims):
    """How far gradients are off that are mapped over queries, or masks, or both."""
    queries = q if dims[0] is None else torch.stack([q, 2 * q, -q])
    seen = seen if dims[1] == 0 else seen[0]

    def d(f):
        return lambda q, seen: grad(lambda q: f(q, seen).pow(2).sum())(q)

    want = vmap(d(lambda q, seen: plain(q, k, v, seen)), dims)(queries, seen)[..., rows, :]
    got = vmap(d(lambda q, seen: ring(q, k[:, rows], v[:, rows], seen, group=group, layout="zigzag")), dims)(
        queries[..., rows, :], seen[..., rows, :]
    )
    return apart([got], [want])


def outside_of_func(f, x_dot):
    """The gradient of a tangent, with PyTorch's older ways."""

    def way(x):
        x = x.clone().requires_grad_()
        with forward_ad.dual_level():
            O_dot = forward_ad.unpack_dual(f(forward_ad.make_dual(x, x_dot))).tangent
            return torch.autograd.grad(O_dot.pow(2).sum(), x)[0]

    return way


def narrow(group, dtype):
    """O, dQ, dK, dV in a short format beside float64: errors, over the bounds that rounding gives for one process."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    q, k, v, dO = drawn([(1, 24, 8)] * 4, dtype)
    rows = positions("zigzag", 24, ranks, rank)
    B = torch.zeros(24, 24).masked_fill(torch.ones(24, 24, dtype=torch.bool).triu(1), -torch.inf)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    O = plain(*wide, causal=True)
    want = [O.detach(), *torch.autograd.grad(O, wide, dO.double())]
    want.append(jvp(lambda *x: plain(*x, causal=True), (q.double(), k.double(), v.double()), (dO.double(),) * 3)[1])
    short = dict(dtype=dtype, accumulate=None if dtype == torch.float32 else "float32")
    bounds = [rounding.attention(q, k, v, B, **short).O, *rounding.attention_vjp(dO, q, k, v, B, **short)[:3],
              rounding.attention_jvp(dO, dO, dO, None, None, q, k, v, B, **short)]
    mine = [x[:, rows].clone().requires_grad_() for x in (q, k, v)]
    f = partial(ring_attention, is_causal=True, group=group, layout="zigzag")
    O = f(*mine)
    got = [O.detach(), *torch.autograd.grad(O, mine, dO[:, rows])]
    got.append(jvp(f, tuple(x.detach() for x in mine), (dO[:, rows],) * 3)[1])
    assert all(x.dtype == dtype for x in got)
    return [rounding.ratio(x.double(), y[:, rows], b.broadcast_to(y.shape)[:, rows]) for x, y, b in zip(got, want, bounds)]
