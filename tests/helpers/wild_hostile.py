"""Candidates that an examination of attention must survive, with an answer and without an error.

Families say what is odd: "value", "shape", "count", "type", "dtype", "input", "graph", "gradient",
"raise", "state", "process", "size", and for layers "layer-right" and "layer-wrong". Some of them leave
marks on the process (PyTorch's default dtype, NumPy's error state, filters of warnings): whoever runs
them puts these back. A layer is a torch.nn.Module whose weights are its named parameters; its options
are those of an examination of layers, to be completed with weights=dict(layer.named_parameters()).
"""

import math
import sys
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Case(NamedTuple):
    name: str
    family: str
    make: Callable
    options: dict = {}  # noqa: RUF012
    layer: bool = False


CASES: list[Case] = []


def case(family, options=None, layer=False):
    """Register a factory: of a forward, or of (forward, backward)."""

    def register(factory):
        def make():
            made = factory()
            return made if isinstance(made, tuple) else (made, None)

        CASES.append(Case(factory.__name__, family, make, options or {}, layer))
        return factory

    return register


def right(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def np_weights(q, k):
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def np_right(q, k, v):
    return np_weights(q, k) @ v


def np_back(do, q, k, v):
    p = np_weights(q, k)
    dp = do @ np.swapaxes(v, -1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    return ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ do


# ------------------------------------------------------------------ values


@case("value")
def nan_everywhere():
    return lambda q, k, v: right(q, k, v) * float("nan")


@case("value")
def nan_for_an_odd_number_of_queries():
    return lambda q, k, v: right(q, k, v) * (float("nan") if q.shape[-2] % 2 else 1.0)


@case("value")
def nan_when_keys_outnumber_queries():
    return lambda q, k, v: right(q, k, v) * (float("nan") if k.shape[-2] > q.shape[-2] else 1.0)


@case("value")
def nan_in_one_entry():
    def attention(q, k, v):
        o = right(q, k, v).clone()
        o[..., -1, -1] = float("nan")
        return o

    return attention


@case("value")
def infinite_everywhere():
    return lambda q, k, v: right(q, k, v).abs() + float("inf")


@case("value")
def nan_gradient_of_a_finite_output():
    """The root at zero: 0 times infinity on the way back."""
    return lambda q, k, v: right(q, k, v) + torch.sqrt((q - q).square().sum()) * 0


@case("value")
def scale_of_zero():
    return lambda q, k, v: torch.softmax(0.0 * q @ k.mT, -1) @ v


@case("value")
def scale_infinite():
    return lambda q, k, v: torch.softmax(float("inf") * (q @ k.mT), -1) @ v


@case("value")
def scale_negative():
    return lambda q, k, v: torch.softmax(-(q @ k.mT), -1) @ v


@case("value")
def all_zeros():
    return lambda q, k, v: torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)


@case("value")
def all_zeros_on_the_tape():
    return lambda q, k, v: right(q, k, v) * 0


@case("value")
def a_constant():
    return lambda q, k, v: torch.full((*q.shape[:-1], v.shape[-1]), 3.0, dtype=q.dtype)


@case("value")
def numpy_constant_with_zero_gradients():
    def forward(q, k, v):
        return np.ones((*q.shape[:-1], v.shape[-1]))

    def backward(do, q, k, v):
        return np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)

    return forward, backward


@case("value")
def mean_of_the_values():
    return lambda q, k, v: v.mean(-2, keepdim=True).expand(*q.shape[:-1], v.shape[-1])


@case("value")
def huge_output():
    return lambda q, k, v: right(q, k, v).double() * 1e308


@case("value")
def overflowing_scores():
    return lambda q, k, v: torch.exp(1e4 * (q @ k.mT)) @ v


@case("value")
def denormal_output():
    return lambda q, k, v: right(q, k, v) * (1e-310 if q.dtype == torch.float64 else 1e-40)


@case("value")
def numpy_huge_gradients():
    return np_right, lambda do, q, k, v: tuple(g * 1e300 for g in np_back(do, q, k, v))


@case("value")
def random_output():
    return lambda q, k, v: torch.randn(*q.shape[:-1], v.shape[-1], dtype=q.dtype) + 0 * right(q, k, v)


@case("value")
def random_noise_of_one_percent():
    return lambda q, k, v: right(q, k, v) * (1 + 0.01 * torch.randn(()))


# ------------------------------------------------------------------ shapes and counts


@case("shape")
def scores_do_not_multiply():
    return lambda q, k, v: torch.softmax(q @ k, -1) @ v


@case("shape")
def transposed_output():
    return lambda q, k, v: right(q, k, v).transpose(-1, -2)


@case("shape")
def scores_instead_of_output():
    return lambda q, k, v: torch.softmax(q @ k.mT, -1)


@case("shape")
def one_more_axis():
    return lambda q, k, v: right(q, k, v).unsqueeze(0)


@case("shape")
def a_scalar():
    return lambda q, k, v: right(q, k, v).sum()


@case("shape")
def flattened():
    return lambda q, k, v: right(q, k, v).reshape(-1)


@case("shape")
def one_row_short():
    return lambda q, k, v: right(q, k, v)[..., :-1, :]


@case("size")
def zero_size_array():
    return lambda q, k, v: right(q, k, v)[..., :0]


@case("size")
def broadcast_of_one_number():
    return lambda q, k, v: right(q, k, v).mean().expand(*q.shape[:-1], v.shape[-1])


@case("count")
def two_outputs():
    return lambda q, k, v: (right(q, k, v), torch.softmax(q @ k.mT, -1))


@case("count")
def five_outputs_in_a_list():
    return lambda q, k, v: [right(q, k, v)] * 5


@case("count")
def an_empty_tuple():
    return lambda q, k, v: ()


@case("count")
def takes_one_argument():
    return lambda x: x


@case("count")
def takes_six_arguments():
    return lambda q, k, v, one, two, three: right(q, k, v)


@case("count")
def backward_takes_too_few():
    return np_right, lambda do: (do, do, do)


# ------------------------------------------------------------------ types


@case("type")
def none():
    return lambda q, k, v: None


@case("type")
def a_string():
    return lambda q, k, v: "softmax(QK^T)V"


@case("type")
def nested_lists():
    return lambda q, k, v: right(q, k, v).tolist()


@case("type")
def a_dict():
    return lambda q, k, v: {"output": right(q, k, v)}


@case("type")
def a_generator():
    def attention(q, k, v):
        yield right(q, k, v)

    return attention


@case("type")
def a_coroutine_never_awaited():
    async def attention(q, k, v):
        return right(q, k, v)

    return attention


@case("type")
def a_lazy_object():
    class Lazy:
        def __init__(self, thunk):
            self.thunk = thunk

        def __getattr__(self, name):
            return getattr(self.thunk(), name)

        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("not computed yet")

    return lambda q, k, v: Lazy(lambda: right(q, k, v))


@case("type")
def an_object_whose_every_attribute_raises():
    class Thorny:
        def __getattribute__(self, name):
            raise LookupError(name)

    return lambda q, k, v: Thorny()


@case("type")
def its_own_class():
    return lambda q, k, v: torch.Tensor


@case("type")
def a_masked_array():
    return lambda q, k, v: np.ma.masked_invalid(np_right(q, k, v)), np_back


@case("type")
def a_subclass_of_tensor():
    class Named(torch.Tensor):
        pass

    return lambda q, k, v: right(q, k, v).as_subclass(Named)


@case("type")
def a_subclass_of_tensor_that_refuses_all():
    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise TypeError("no operation is supported")

    return lambda q, k, v: right(q, k, v).as_subclass(Refusing)


# ------------------------------------------------------------------ dtypes and kinds of tensors


@case("dtype")
def integers():
    return lambda q, k, v: right(q, k, v).round().long()


@case("dtype")
def booleans():
    return lambda q, k, v: right(q, k, v) > 0


@case("dtype")
def complex_numbers():
    return lambda q, k, v: torch.complex(right(q, k, v), right(q, k, v))


@case("dtype")
def numpy_complex():
    return lambda q, k, v: np_right(q, k, v) * (1 + 1j), np_back


@case("dtype")
def numpy_extended_precision():
    def forward(q, k, v):
        return np_right(*(np.asarray(x, dtype=np.longdouble) for x in (q, k, v)))

    return forward, np_back


@case("dtype")
def numpy_objects():
    return lambda q, k, v: np_right(q, k, v).astype(object), np_back


@case("dtype")
def numpy_strings():
    return lambda q, k, v: np_right(q, k, v).astype(str), np_back


@case("dtype")
def half_whatever_comes():
    return lambda q, k, v: right(q, k, v).half()


@case("dtype")
def float8_output():
    return lambda q, k, v: right(q, k, v).to(torch.float8_e4m3fn)


@case("dtype")
def sparse_output():
    return lambda q, k, v: right(q, k, v).to_sparse()


@case("dtype")
def quantized_output():
    def attention(q, k, v):
        return torch.quantize_per_tensor(right(q, k, v).detach().float(), 0.01, 0, torch.qint8)

    return attention


@case("dtype")
def meta_output():
    return lambda q, k, v: right(q, k, v).to("meta")


@case("dtype")
def nested_output():
    return lambda q, k, v: torch.nested.nested_tensor(list(right(q, k, v).detach()))


# ------------------------------------------------------------------ the input and the graph


@case("input")
def the_value_itself():
    return lambda q, k, v: v


@case("input")
def a_view_of_the_query():
    return lambda q, k, v: q[..., : v.shape[-1]]


@case("input")
def query_scaled_in_place():
    def attention(q, k, v):
        with torch.no_grad():
            q.mul_(q.shape[-1] ** -0.5)
        return torch.softmax(q @ k.mT, -1) @ v

    return attention


@case("input")
def numpy_inputs_zeroed_afterwards():
    def forward(q, k, v):
        o = np_right(q, k, v)
        for x in (q, k, v):
            x[...] = 0
        return o

    return forward, np_back


@case("input")
def numpy_backward_overwrites_what_it_is_given():
    def backward(do, q, k, v):
        grads = np_back(do, q, k, v)
        do *= 0
        q += 1
        return grads

    return np_right, backward


@case("input")
def written_over_the_value():
    """Autograd refuses: a leaf that wants a gradient is changed."""
    return lambda q, k, v: v.copy_(right(q, k, v)) if v.shape[-2] == q.shape[-2] else right(q, k, v)


@case("graph")
def detached():
    return lambda q, k, v: right(q, k, v).detach()


@case("graph")
def without_gradients():
    @torch.no_grad()
    def attention(q, k, v):
        return right(q, k, v)

    return attention


@case("graph")
def in_inference_mode():
    @torch.inference_mode()
    def attention(q, k, v):
        return right(q, k, v)

    return attention


@case("graph")
def only_the_value_on_the_tape():
    return lambda q, k, v: right(q.detach(), k.detach(), v)


@case("graph")
def through_numpy_and_back():
    return lambda q, k, v: torch.from_numpy(np_right(*(x.detach().numpy() for x in (q, k, v))))


@case("graph")
def a_new_leaf():
    return lambda q, k, v: right(q, k, v).detach().requires_grad_()


# ------------------------------------------------------------------ gradients


def function_with(backward):
    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v)
            return right(q, k, v)

    Odd.backward = staticmethod(backward)
    return Odd.apply


@case("gradient")
def one_gradient_only():
    return np_right, lambda do, q, k, v: np_back(do, q, k, v)[:1]


@case("gradient")
def four_gradients():
    return np_right, lambda do, q, k, v: (*np_back(do, q, k, v), do)


@case("gradient")
def gradient_without_a_tuple():
    return np_right, lambda do, q, k, v: np_back(do, q, k, v)[0]


@case("gradient")
def no_gradients():
    return np_right, lambda do, q, k, v: None


@case("gradient")
def three_times_none():
    return np_right, lambda do, q, k, v: (None, None, None)


@case("gradient")
def nan_gradients():
    return np_right, lambda do, q, k, v: tuple(g * np.nan for g in np_back(do, q, k, v))


@case("gradient")
def infinite_key_gradient():
    def backward(do, q, k, v):
        dq, dk, dv = np_back(do, q, k, v)
        return dq, dk + np.inf, dv

    return np_right, backward


@case("gradient")
def gradients_with_wrong_shapes():
    return np_right, lambda do, q, k, v: tuple(np.swapaxes(g, -1, -2) for g in np_back(do, q, k, v))


@case("gradient")
def gradients_are_strings():
    return np_right, lambda do, q, k, v: ("dq", "dk", "dv")


@case("gradient")
def gradients_are_numbers():
    return np_right, lambda do, q, k, v: (0.0, 0.0, 0.0)


@case("gradient")
def gradients_are_integers():
    return np_right, lambda do, q, k, v: tuple(g.astype(int) for g in np_back(do, q, k, v))


@case("gradient")
def gradients_in_a_dict():
    return np_right, lambda do, q, k, v: dict(zip("qkv", np_back(do, q, k, v), strict=True))


@case("gradient")
def gradients_from_a_generator():
    return np_right, lambda do, q, k, v: (g for g in np_back(do, q, k, v))


@case("gradient")
def own_function_returns_none():
    return function_with(lambda ctx, do: (None, None, None))


@case("gradient")
def own_function_returns_two():
    return function_with(lambda ctx, do: (do, do))


@case("gradient")
def own_function_returns_wrong_shapes():
    return function_with(lambda ctx, do: tuple(torch.ones(2, 2) for _ in range(3)))


@case("gradient")
def own_function_raises():
    def backward(ctx, do):
        raise NotImplementedError("backward")

    return function_with(backward)


# ------------------------------------------------------------------ exceptions


class Private(Exception):
    def __str__(self):
        raise RuntimeError("this exception cannot be printed")


class Deeper(BaseException):
    pass


@case("raise")
def value_error_at_once():
    def attention(q, k, v):
        raise ValueError("no")

    return attention


@case("raise")
def own_exception_that_cannot_be_printed():
    def attention(q, k, v):
        raise Private

    return attention


@case("raise")
def leaves_the_program():
    return lambda q, k, v: sys.exit(3)


@case("raise")
def own_base_exception():
    def attention(q, k, v):
        raise Deeper("deeper")

    return attention


@case("raise")
def own_base_exception_on_the_way_back():
    def backward(do, q, k, v):
        raise Deeper

    return np_right, backward


@case("raise")
def generator_exit():
    def attention(q, k, v):
        raise GeneratorExit

    return attention


@case("raise")
def stop_iteration():
    return lambda q, k, v: next(iter(()))


@case("raise")
def memory_error():
    def attention(q, k, v):
        raise MemoryError

    return attention


@case("raise")
def refuses_a_single_query():
    def attention(q, k, v):
        if q.shape[-2] == 1:
            raise RuntimeError("a length of one is not supported")
        return right(q, k, v)

    return attention


@case("raise")
def refuses_all_but_head_size_64():
    def attention(q, k, v):
        assert q.shape[-1] == v.shape[-1] == 64, "head size"
        return right(q, k, v)

    return attention


@case("raise")
def leaves_the_program_when_lengths_differ():
    return lambda q, k, v: right(q, k, v) if q.shape[-2] == k.shape[-2] else sys.exit("lengths")


@case("raise")
def raises_on_the_third_call():
    calls = []

    def attention(q, k, v):
        calls.append(0)
        if len(calls) == 3:
            raise OSError("third call")
        return right(q, k, v)

    return attention


@case("raise")
def leaves_the_program_on_the_third_call():
    calls = []

    def attention(q, k, v):
        calls.append(0)
        if len(calls) == 3:
            raise SystemExit
        return right(q, k, v)

    return attention


@case("raise")
def endless_recursion():
    def attention(q, k, v):
        return attention(q, k, v)

    return attention


@case("raise")
def an_exception_with_a_long_message():
    def attention(q, k, v):
        raise KeyError("x" * 1_000_000)

    return attention


# ------------------------------------------------------------------ state and the process


@case("state")
def scale_changes_from_call_to_call():
    calls = []

    def attention(q, k, v):
        calls.append(0)
        return torch.softmax(q @ k.mT / (1 + 0.1 * len(calls)), -1) @ v

    return attention


@case("state")
def right_only_at_first():
    calls = []

    def attention(q, k, v):
        calls.append(0)
        return right(q, k, v) if len(calls) < 4 else v.sum(-2, keepdim=True) + right(q, k, v)

    return attention


@case("state")
def returns_the_answer_before():
    last = []

    def attention(q, k, v):
        last.append(right(q, k, v))
        return last[-2] if len(last) > 1 else last[-1]

    return attention


@case("state")
def one_buffer_for_all_answers():
    """NumPy: each answer is the same memory, written again."""
    buffers = {}

    def forward(q, k, v):
        o = np_right(q, k, v)
        buffer = buffers.setdefault((o.shape, o.dtype), np.empty_like(o))
        buffer[...] = o
        return buffer

    return forward, np_back


@case("state")
def backward_needs_the_forward_before():
    kept = {}

    def forward(q, k, v):
        kept["all"] = (q, k, v)
        return np_right(q, k, v)

    def backward(do, q, k, v):
        return np_back(do, *kept.pop("all"))

    return forward, backward


@case("process")
def warnings_become_errors():
    def attention(q, k, v):
        warnings.simplefilter("error")
        return right(q, k, v)

    return attention


@case("process")
def warns_at_each_call():
    def attention(q, k, v):
        warnings.warn("deprecated attention", DeprecationWarning, stacklevel=1)
        return right(q, k, v)

    return attention


@case("process")
def sleeps():
    def attention(q, k, v):
        time.sleep(0.2)
        return right(q, k, v)

    return attention


@case("process")
def prints_much():
    def attention(q, k, v):
        print("attention " * 2000)
        print("attention " * 2000, file=sys.stderr)
        return right(q, k, v)

    return attention


@case("process")
def changes_the_default_dtype():
    def attention(q, k, v):
        torch.set_default_dtype(torch.float16)
        return right(q, k, v)

    return attention


@case("process")
def numpy_raises_on_underflow():
    def forward(q, k, v):
        np.seterr(all="raise")
        return np_right(q, k, v)

    return forward, np_back


@case("process")
def sets_the_seed():
    def attention(q, k, v):
        torch.manual_seed(0)
        np.random.seed(0)
        return right(q, k, v)

    return attention


@case("process")
def turns_gradients_off_for_good():
    def attention(q, k, v):
        o = right(q, k, v)
        torch.set_grad_enabled(False)
        return o

    return attention


# ------------------------------------------------------------------ layers


class Grouped(nn.Module):
    """Causal or not, n_heads query heads share n_kv_heads heads of keys and values."""

    def __init__(self, dim=16, n_heads=4, n_kv_heads=2, causal=False, bias=False):
        super().__init__()
        torch.manual_seed(0)
        self.n_heads, self.n_kv_heads, self.causal = n_heads, n_kv_heads, causal
        self.head_dim = dim // n_heads
        self.q_proj = nn.Linear(dim, n_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(dim, n_kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(dim, n_kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(n_heads * self.head_dim, dim, bias=bias)

    def split(self, x):
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, n, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, n, self.n_kv_heads, self.head_dim).transpose(1, 2)
        times = self.n_heads // self.n_kv_heads
        return q, k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)

    def join(self, o):
        return self.o_proj(o.transpose(1, 2).flatten(2))

    def forward(self, x):
        q, k, v = self.split(x)
        return self.join(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal))


@case("layer-right", {"heads": 4}, layer=True)
def layer_groups_of_two():
    return Grouped()


@case("layer-right", {"heads": 4, "causal": True}, layer=True)
def layer_groups_of_two_causal():
    return Grouped(causal=True)


@case("layer-right", {"heads": 4}, layer=True)
def layer_one_head_of_keys():
    return Grouped(n_kv_heads=1)


@case("layer-right", {"heads": 6}, layer=True)
def layer_six_heads_three_groups_with_biases():
    return Grouped(dim=24, n_heads=6, n_kv_heads=3, bias=True)


@case("layer-right", {"heads": 4}, layer=True)
def layer_as_many_key_heads_as_heads():
    return Grouped(n_kv_heads=4)


class Changed(Grouped):
    """What join gives, changed."""

    change = staticmethod(lambda y, x, layer: y)

    def forward(self, x):
        return self.change(super().forward(x), x, self)


def changed(function):
    layer = Changed()
    layer.change = function
    return layer


@case("layer-wrong", {"heads": 4}, layer=True)
def layer_all_nan():
    return changed(lambda y, x, layer: y * float("nan"))


@case("layer-wrong", {"heads": 4}, layer=True)
def layer_all_zero():
    return changed(lambda y, x, layer: y * 0)


@case("layer-wrong", {"heads": 4}, layer=True)
def layer_random():
    return changed(lambda y, x, layer: torch.randn_like(y) + 0 * y)


@case("layer-wrong", {"heads": 4}, layer=True)
def layer_returns_its_input():
    return changed(lambda y, x, layer: x)


@case("layer-wrong", {"heads": 4}, layer=True)
def layer_transposed():
    return changed(lambda y, x, layer: y.transpose(-1, -2))


@case("layer-wrong", {"heads": 4}, layer=True)
def layer_returns_none():
    return changed(lambda y, x, layer: None)


@case("layer-wrong", {"heads": 4}, layer=True)
def layer_detached():
    return changed(lambda y, x, layer: y.detach())


@case("layer-wrong", {"heads": 4}, layer=True)
def layer_leaves_the_program():
    return changed(lambda y, x, layer: sys.exit(1))


@case("layer-wrong", {"heads": 4}, layer=True)
def layer_changes_its_weights():
    def change(y, x, layer):
        with torch.no_grad():
            layer.q_proj.weight.mul_(1.01)
        return y

    return changed(change)


@case("layer-wrong", {"heads": 4}, layer=True)
def layer_keys_for_values():
    class KeysForValues(Grouped):
        def forward(self, x):
            q, k, _ = self.split(x)
            return self.join(F.scaled_dot_product_attention(q, k, k))

    return KeysForValues()


@case("layer-wrong", {"heads": 4}, layer=True)
def layer_softmax_over_the_queries():
    class WrongAxis(Grouped):
        def forward(self, x):
            q, k, v = self.split(x)
            return self.join(torch.softmax(q @ k.mT / self.head_dim**0.5, dim=-2) @ v)

    return WrongAxis()


@case("layer-wrong", {"heads": 4}, layer=True)
def layer_groups_paired_differently_for_values():
    class Mixed(Grouped):
        def forward(self, x):
            q, k, v = self.split(x)
            return self.join(F.scaled_dot_product_attention(q, k, v.roll(1, dims=1)))

    return Mixed()


@case("layer-wrong", {"heads": 4}, layer=True)
def layer_heads_do_not_multiply():
    class NotRepeated(Grouped):
        def forward(self, x):
            q, k, v = self.split(x)
            return self.join(torch.softmax(q @ k[:, :2].mT, -1) @ v[:, :2])

    return NotRepeated()


@case("layer-wrong", {"heads": 4}, layer=True)
def layer_with_a_weight_that_is_not_used():
    layer = Grouped()
    layer.extra = nn.Parameter(torch.ones(5, 3))
    return layer
