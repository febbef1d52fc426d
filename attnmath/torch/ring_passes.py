"""Attention round a ring as functions that PyTorch differentiates.

Attention -> O, L. Its gradients and its tangents are sums over the tiles of all ranks, and
so are their derivatives of every order (attnmath/torch/higher.py): a block of keys goes
round with what belongs to it, and the sums on its side follow it home.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from attnmath.torch.higher import Program, cotangent, tangent
from attnmath.torch.how import keep, without_autocast
from attnmath.torch.products import Derivatives
from attnmath.torch.ring_messages import number_of
from attnmath.torch.ring_tiles import GRADIENTS, TANGENTS, Call


class Attention(Function):
    """Q (h, g, n_r, d_k), K (h, m_r, d_k), V (h, m_r, d_v) -> O (h, g, n_r, d_v), l and c (h, g, n_r, 1)

    None is of 16 bits. c is the largest score of a row, a constant to all derivatives, and
    l the logarithm of the sum of exp(A - c); -inf, and O 0, in a row that may attend to nothing.
    """

    @staticmethod
    def forward(call: Call, mask: Tensor | None, Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, ...]:
        with without_autocast(Q, K, V):
            q = wide(Q)
            N, s = q.new_zeros(*Q.shape[:-1], V.shape[-1]), q.new_zeros(*Q.shape[:-1], 1)
            c = torch.full_like(s, torch.finfo(q.dtype).min)  # so far

            def work(origin: int, block: list[Tensor]) -> list[Tensor]:
                places, k, v = opened(call, origin, block)
                for tile in call.tiles(mask, places, q.dtype):
                    N_i, s_i, c_i = (tile.part("q", x) for x in (N, s, c))
                    A, _ = tile.scores(tile.part("q", q), tile.part("k", k))
                    c_new = torch.maximum(c_i, A.amax(-1, keepdim=True))
                    shrunk, E = torch.exp(c_i - c_new), torch.exp(A - c_new)
                    s_i.mul_(shrunk).add_(E.sum(-1, keepdim=True))
                    N_i.mul_(shrunk).add_(tile.times(tile.dropped(E), tile.part("k", v)))
                    c_i.copy_(c_new)
                return []

            fields = header_of(call, "forward", Q, K, V)
            if call.copies > 1:  # else the call has agreed
                call.link.agree(**fields)
            call.link.round(closed(call, K, V), call.keys, work, **fields)
            return N / torch.where(s == 0, 1, s), torch.log(s), c

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        keep(ctx, *inputs[1:], *output, call=inputs[0])
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, dO: Tensor | None, dl: Tensor | None, _: None) -> tuple:
        """D is a sum over a row of O, which is whole on this rank: no message."""
        mask, Q, K, V, O, l, c = ctx.saved_tensors
        if dO is None and dl is None:
            return (None,) * 5
        D = torch.zeros_like(l) if dO is None else (dO * O).sum(-1, keepdim=True)
        return None, None, *Sum.apply(GRADIENTS, ctx.call, mask, dO, D if dl is None else D - dl, l, c, Q, K, V)

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Tensor | None) -> tuple:
        with outer_tangents():
            mask, Q, K, V, O, l, c = unmoved(ctx)
            l_dot, U = Sum.apply(TANGENTS, ctx.call, mask, *tangents, l, c, Q, K, V)
            return U - l_dot * O, l_dot, None

    @staticmethod
    def vmap(info: Any, dims: tuple, call: Call, *inputs: Any) -> tuple:
        return over_copies(Attention.apply, info.batch_size, dims, call, *inputs)


class Sum(Function):
    """A program over the tiles of all ranks."""

    @staticmethod
    def forward(program: Program, call: Call, mask: Tensor | None, *inputs: Any) -> tuple[Tensor, ...]:
        with without_autocast(*inputs):
            Q, K, V = inputs[program.first : program.first + 3]
            sides, shapes = program.sides, program.shapes
            likes = [wide(Q).new_empty(*Q.shape[:-1], V.shape[-1]) if o is None else inputs[o] for o in shapes]
            outer = ["q" if o is None else sides[o] for o in shapes]
            totals = [torch.zeros_like(x, dtype=wide(x).dtype) for x in likes]
            given = [x if x is None else wide(x) if side == "q" else x for side, x in zip(sides, inputs)]
            travel = [i for i, x in enumerate(given) if x is not None and sides[i] == "k"]

            def work(origin: int, block: list[Tensor]) -> list[Tensor]:
                places, *moved = opened(call, origin, block)
                here = list(given)
                for i, x in zip(travel, moved):
                    here[i] = x
                sums = [x if side == "q" else x.new_zeros(*x.shape[:-2], len(places), x.shape[-1])
                        for side, x in zip(outer, totals)]
                for tile in call.tiles(mask, places, wide(Q).dtype):
                    got = program.run(tile, *(tile.part(side, x) for side, x in zip(sides, here)))
                    for side, x, y in zip(outer, sums, got):
                        part = tile.part(side, x)
                        part += y
                return [x for side, x in zip(outer, sums) if side == "k"]

            fields = header_of(call, program, *inputs)
            call.link.agree(**fields)
            home = iter(call.link.round(closed(call, *(inputs[i] for i in travel)), call.keys, work, **fields))
            found = [x if side == "q" else next(home) for side, x in zip(outer, totals)]
            return tuple(x.to(like.dtype) for x, like in zip(found, likes))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        keep(ctx, *inputs[2:], program=inputs[0], call=inputs[1])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        mask, *inputs = ctx.saved_tensors
        needs = ctx.needs_input_grad[3:]
        return None, None, None, *cotangent(ctx.program, cotangents, inputs, needs, over_ranks(ctx.call, mask))

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, ___: None, *tangents: Tensor | None) -> Derivatives:
        with outer_tangents():
            mask, *inputs = unmoved(ctx)
            needs = [True] * len(ctx.program.shapes)
            return tangent(ctx.program, tangents, inputs, needs, over_ranks(ctx.call, mask))

    @staticmethod
    def vmap(info: Any, dims: tuple, program: Program, call: Call, *inputs: Any) -> tuple:
        return over_copies(Sum.apply, info.batch_size, dims, program, call, *inputs)


def outer_tangents() -> AbstractContextManager:
    """What a function's jvp computes moves in the outer forward modes; PyTorch switches them off meanwhile."""
    return forward_ad._set_fwd_grad_enabled(True)


def unmoved(ctx: Any) -> list[Tensor | None]:
    """What a function has kept, without its tangents in the innermost forward mode."""
    return [x if x is None else forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors]


def over_ranks(call: Call, mask: Tensor | None) -> Callable:
    """apply(program, *inputs), in this call."""
    return lambda program, *inputs: Sum.apply(program, call, mask, *inputs)


def over_copies(function: Any, size: int, dims: tuple, *inputs: Any) -> tuple:
    """A function over one more axis of its tensors: as many more heads, which draw the same factors."""
    where = next(i for i, x in enumerate(inputs) if isinstance(x, Call))
    call, rest = inputs[where], list(zip(inputs[where + 1 :], dims[where + 1 :]))
    heads = call.copies * call.shape[0]

    def more(x: Tensor | None, dim: int | None, is_mask: bool = False) -> Any:
        if x is None or (is_mask and dim is None and len(x) == 1):
            return x
        x = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
        x = x.expand(size, heads, *x.shape[2:]) if is_mask else x
        return x.flatten(0, 1)

    mask, *others = (more(*pair, is_mask=not i) for i, pair in enumerate(rest))
    found = function(*inputs[:where], call.repeated(size), mask, *others)
    return tuple(x.unflatten(0, (size, -1)) for x in found), (0,) * len(found)


def wide(x: Tensor) -> Tensor:
    """In float32 where x has 16 bits: what sums are kept in."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def closed(call: Call, *tensors: Tensor) -> list[Tensor]:
    """A block as it travels: with the places of its keys, where others cannot know them."""
    places = [] if isinstance(call.layout, str) else [call.layout[1].to(call.device)[None, :, None]]
    return [*places, *tensors]


def opened(call: Call, origin: int, block: list[Tensor]) -> list[Tensor]:
    """The places of a block's keys, and its tensors, to compute with."""
    if isinstance(call.layout, str):
        return [call.places("m", origin), *map(wide, block)]
    places, *tensors = block
    return [places.flatten(), *map(wide, tensors)]


def header_of(call: Call, work: Any, *inputs: Tensor | None) -> dict[str, int]:
    """What the headers of a pass say: what all have alike, and a number that stands for what is computed."""
    kind = (work.sides, work.shapes) if isinstance(work, Program) else work
    there = [x is not None for x in inputs]
    return {**dict(call.fields), "work": number_of(kind, there, call.copies)}
