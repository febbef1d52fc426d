"""Attention where operations are recorded before they are run: compiled, exported, traced, on fake tensors."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, jvp
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck

from attnmath.torch import kernels, patched_attention
from attnmath.torch import scaled_dot_product_attention as attention
from attnmath.torch.how import How

# What the recorders themselves have to say about PyTorch's own parts.
pytestmark = [pytest.mark.filterwarnings(f"ignore:{said}") for said in (
    "Attempted to insert a get_attr Node", ".*is deprecated", ":torch.jit.TracerWarning")]


def numbers(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


SHARED = (2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 3), (2, 1, 5, 6)  # two queries for each key; d_v other than d_k
CASES = {
    "plain": (lambda q, k, v, m: attention(q, q, q), SHARED),
    "a mask": (lambda q, k, v, m: attention(q, k, v, m, enable_gqa=True), SHARED),
    "a mask, and the kernel": (lambda q, k, v, m: attention(q, k, k, m.detach(), enable_gqa=True), SHARED),
    "a boolean mask": (lambda q, k, v, m: attention(q, k, v, m > -0.5, enable_gqa=True), SHARED),
    "causal": (lambda q, k, v, m: attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True), SHARED),
    "the function itself": (attention, ((2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 3), (2, 1, 5, 6))),
    "two axes": (lambda q, k, v, m: attention(q[0, 0], k[0, 0], v[0, 0]), SHARED),
    "a cap and a window": (lambda q, k, v, m: attention(q, k, v, softcap=2, window=(3, 1), enable_gqa=True), SHARED),
    "sinks and slopes": (lambda q, k, v, m: attention(q, k, v, sinks=m[0, 0, 0, :4], alibi_slopes=m[0, 0, 1, :4],
                                                      enable_gqa=True), SHARED),
}
cases = pytest.mark.parametrize("case", CASES)


def with_gradients(f, x):
    x = [y.clone().requires_grad_() for y in x]
    O = f(*x)
    used = torch.autograd.grad(O.sin().sum(), x, allow_unused=True)
    return [O, *(y for y in used if y is not None)]


def same(a, b):
    return len(a) == len(b) and all(abs(x - y).max() <= 1e-14 for x, y in zip(a, b))


@cases
def test_compiled_whole_it_has_its_value_and_its_gradients(case):
    f, shapes = CASES[case]
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    assert same(with_gradients(compiled, numbers(*shapes)), with_gradients(f, numbers(*shapes)))


@pytest.mark.parametrize("case", ["a mask", "the function itself"])
def test_compiled_whole_for_other_sizes(case):
    f, _ = CASES[case]
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (5, 7, 9):
        x = numbers((2, 4, n, 8), (2, 4, n + 1, 8), (2, 4, n + 1, 3), (2, 1, n, n + 1))
        assert same(with_gradients(compiled, x), with_gradients(f, x))


def loss_of(f):
    return lambda *x: f(*x).sin().sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_whole_a_tangent_and_a_hessian_times_a_vector(backend):
    f, shapes = CASES["a mask"]
    x, x_dot = tuple(numbers(*shapes)), tuple(numbers(*shapes, seed=1))
    gradient = grad(loss_of(f), (0, 1, 2, 3))
    for of in (f, gradient):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, x_dot, of=of: jvp(of, x, x_dot)[1], backend=backend, fullgraph=True)
        got, expected = compiled(x, x_dot), jvp(of, x, x_dot)[1]
        assert same(got, expected) if of is gradient else same([got], [expected])


def test_compiled_with_autocast_and_dropout():
    q, k, v = (y.float() for y in numbers(*SHARED[:3]))

    def f(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return attention(q, k, v, dropout_p=0.5, enable_gqa=True)

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    one, other = compiled(q, k, v), compiled(q, k, v)
    assert one.dtype == torch.bfloat16 and not torch.equal(one, other)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_it_stays_one_operation(strict):
    class Module(torch.nn.Module):
        def forward(self, *x):
            return CASES["a mask"][0](*x)

    x = tuple(numbers(*SHARED))
    n, m = torch.export.Dim("n"), torch.export.Dim("m")
    sizes = (({2: n}, {2: m}, {2: m}, {2: n, 3: m}),)
    exported = torch.export.export(Module(), x, strict=strict, dynamic_shapes=sizes)
    assert [node.target for node in exported.graph.nodes].count(torch.ops.attnmath.forward.default) == 1
    for other in (x, numbers((2, 4, 9, 8), (2, 2, 3, 8), (2, 2, 3, 3), (2, 1, 9, 3))):
        assert torch.equal(exported.module()(*other), CASES["a mask"][0](*other))


@cases
def test_traced_it_gives_the_same(case):
    f, shapes = CASES[case]
    traced = torch.jit.trace(f, tuple(numbers(*shapes)))
    assert torch.equal(traced(*numbers(*shapes, seed=1)), f(*numbers(*shapes, seed=1)))


@cases
def test_fake_tensors_have_the_shapes_and_strides_of_real_ones(case):
    f, shapes = CASES[case]
    real = with_gradients(f, numbers(*shapes))
    with FakeTensorMode() as mode:
        fake = with_gradients(f, [mode.from_tensor(y) for y in numbers(*shapes)])
    assert [(x.shape, x.stride(), x.dtype) for x in fake] == [(x.shape, x.stride(), x.dtype) for x in real]


def test_recorded_derivatives_of_each_order_are_those_that_are_run():
    f, shapes = CASES["a mask"]
    x, x_dot = tuple(numbers(*shapes)), tuple(numbers(*shapes, seed=1))
    gradient = grad(loss_of(f), (0, 1, 2, 3))

    def second(*x):
        return jvp(gradient, x, x_dot)[1]

    def third(*x):
        return grad(lambda *x: sum(y.sin().sum() for y in second(*x)), (0, 1))(*x)

    for g in (gradient, second, third):
        assert same(make_fx(g)(*x)(*x), g(*x))
    assert same([torch.func.linearize(f, *x)[1](*x_dot)], [jvp(f, x, x_dot)[1]])


def test_a_third_derivative_with_dropout_is_recorded_too():
    (q,) = numbers((2, 3, 4))

    def second(q):
        loss = loss_of(lambda q: attention(q, q, q, dropout_p=0.5))
        return jvp(grad(loss), (q,), (q,))[1].sin().sum()

    def third(q):
        torch.manual_seed(0)
        return grad(second)(q)

    recorded = make_fx(grad(second))(q)
    torch._dynamo.reset()
    compiled = torch.compile(grad(second), backend="aot_eager", fullgraph=True)
    for run in (recorded, compiled):
        torch.manual_seed(0)
        assert same([run(q)], [third(q)])
    with FakeTensorMode() as mode:
        assert grad(second)(mode.from_tensor(q)).shape == q.shape


def operator_calls(dtype=torch.float64, **how):
    """A call of each operator, as PyTorch's own check takes it."""
    Q, K, V, B, dO = (y.to(dtype) for y in numbers((2, 3, 5, 4), (2, 1, 6, 4), (2, 1, 6, 4), (5, 6), (2, 3, 5, 4)))
    dots = [y.to(dtype) for y in numbers((2, 3, 5, 4), (2, 1, 6, 4), (2, 1, 6, 4), (5, 6), (2, 3, 5, 4), seed=1)]
    how = How(0.5, **how)
    (S,) = numbers((3, 1, 2)) if how.slopes else [None]
    O, L = kernels.forward(Q, K, V, B, S, how)
    has = S is not None
    return {
        "forward": (Q, K, V, B, S, *how),
        "vjp": (dO, Q, K, V, B, S, O, L, *how, [True, False, True, True, has]),
        "jvp": (*dots[:3], None, S, Q, K, V, B, S, *how),
        "second": (dots[4], *dots[:4], None, dO, Q, K, V, B, S, *how, [True, True, False, True, True, has]),
    }


@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(dtype=torch.bfloat16), dict(dropout=0.4, seed=torch.tensor(7)),
                                     dict(dropout=0.4, seed=torch.tensor(7), first_row=3, first_key=9, heads=torch.arange(6).view(2, 3)),
                                     dict(softcap=1.5, left=2, right=1, slopes=True)])
@pytest.mark.parametrize("name", ["forward", "vjp", "jvp", "second"])
def test_each_operator_is_what_pytorch_asks_of_one(name, options):
    given = operator_calls(**options)[name]
    opcheck(getattr(torch.ops.attnmath, name).default, given, test_utils=("test_schema", "test_faketensor"))


def test_wrong_shapes_beside_an_operator_are_found():
    planted = torch.library.Library("attnmath_planted", "DEF")
    planted.define("f(Tensor? Q) -> Tensor")
    planted.impl("f", lambda Q: Q.mT.contiguous(), "CompositeExplicitAutograd")
    torch.library.register_fake("attnmath_planted::f", lambda Q: Q.new_empty(Q.shape), lib=planted)
    with pytest.raises(Exception, match="Shapes"):
        opcheck(torch.ops.attnmath_planted.f.default, numbers((2, 3)), test_utils=("test_faketensor",))


def test_a_layer_of_pytorch_is_compiled_and_exported_whole_when_patched():
    layer, (x,) = torch.nn.MultiheadAttention(6, 3, batch_first=True, dtype=torch.float64), numbers((2, 5, 6))
    f = lambda x: layer(x, x, x, need_weights=False)[0]  # noqa: E731
    expected = f(x)
    with patched_attention():
        torch._dynamo.reset()
        assert same([torch.compile(f, backend="aot_eager", fullgraph=True)(x)], [expected])
