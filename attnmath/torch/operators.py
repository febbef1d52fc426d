"""A head and its derivatives as operators of PyTorch: what records operations records each as one.

torch.compile, torch.export, make_fx, torch.jit.trace and fake tensors then never look
inside, where pieces write over each other and numbers decide the way. What an operator
gives lies in rows without gaps: its strides are known before its numbers are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnmath.torch import backend, kernels
from attnmath.torch.how import How
from attnmath.torch.tiles import broadcast_leading

LIBRARY = torch.library.Library("attnmath", "DEF")
HOW = ("float scale, bool causal, float dropout, Tensor? seed, float? softcap, SymInt? left, SymInt? right,"
       " bool slopes, SymInt first_row, SymInt first_key, Tensor? heads, str? backend")


def operator(inputs: str, shapes: Callable, needs: bool = False) -> Callable[[Callable], Callable]:
    """f(*inputs, how) -> two tensors, as an operator; with needs, f(*inputs, how, needs) -> those needed.

    shapes(*inputs) is what f gives, without its numbers.
    """
    names = inputs.split()
    tensors = ", ".join(f"Tensor? {name}" for name in names)
    outputs = ", bool[] needs) -> Tensor[]" if needs else ") -> (Tensor, Tensor)"

    def parts(given: tuple) -> tuple[tuple, How, tuple]:
        end = len(names) + len(How._fields)
        return given[: len(names)], How(*given[len(names) : end]), given[end:]

    def chosen(found: Sequence, rest: tuple) -> list | tuple:
        return [x for x, need in zip(found, *rest) if need] if needs else tuple(found)

    def made(f: Callable) -> Callable:
        def run(*given: Any) -> list | tuple:
            x, how, rest = parts(given)
            return chosen([y if y is None else y.contiguous() for y in f(*x, how, *rest)], rest)

        def fake(*given: Any) -> list | tuple:
            x, _, rest = parts(given)
            return chosen(shapes(*x), rest)

        LIBRARY.define(f"{f.__name__}({tensors}, {HOW}{outputs}")
        LIBRARY.impl(f.__name__, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"attnmath::{f.__name__}", fake, lib=LIBRARY)
        call = getattr(torch.ops.attnmath, f.__name__).default

        def called(*given: Any) -> tuple:
            x, how, rest = given[: len(names)], given[len(names)], given[len(names) + 1 :]
            return tuple(call(*x, *how, *rest))

        return called

    return made


def output_room(Q: Tensor, K: Tensor, V: Tensor, *others: Tensor | None) -> Tensor:
    """For O."""
    return Q.new_empty(*broadcast_leading(Q, K, V, *others), Q.shape[-2], V.shape[-1])


def rooms_like(*inputs: Tensor | None) -> list[Tensor | None]:
    return [None if x is None else x.new_empty(x.shape) for x in inputs]


def with_sums(*given: Any) -> tuple[Tensor, Tensor]:
    """O and L, which is not of 16 bits."""
    O = output_room(*given)
    return O, O.new_empty(O.shape[:-1], dtype=torch.promote_types(O.dtype, torch.float32))


def with_tangent(*given: Any) -> list[Tensor]:
    """O and O_dot, from Q_dot, K_dot, V_dot, B_dot, S_dot, Q, K, V, B, S."""
    return [output_room(*given[5:], *given[:5]) for _ in range(2)]


@operator("Q K V B S", with_sums)
def forward(*given: Any) -> tuple:
    return kernels.forward(*given)


@operator("dO Q K V B S O L", lambda *x: rooms_like(*x[1:6]), needs=True)
def vjp(*given: Any) -> tuple:
    return kernels.vjp(*given)


@operator("Q_dot K_dot V_dot B_dot S_dot Q K V B S", with_tangent)
def jvp(*given: Any) -> tuple:
    return backend.jvp(*given)


@operator("dO_dot Q_dot K_dot V_dot B_dot S_dot dO Q K V B S", lambda *x: rooms_like(*x[6:]), needs=True)
def second(*given: Any) -> tuple:
    return backend.second(*given[:-1], needs=given[-1])
