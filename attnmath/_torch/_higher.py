"""Derivatives of every order, strip by strip: sums over the strips are closed under them.

A program is a function of one strip, of plain torch operations. Some of its inputs and
outputs belong to the queries (they are cut by rows), some to the keys (whole, and summed
over the strips), some to both, like B. Its derivatives are programs again, so that memory
is linear in all of them: only the graph of one strip is there at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.autograd import Function
from torch.func import vjp

from attnmath._torch import _programs
from attnmath._torch._apply import alone, kept, mapped, placed
from attnmath._torch._tiles import Work


@dataclass(frozen=True)
class Program:
    """run(strip, *inputs) -> outputs. sides: one letter for each input. shapes: for each
    output the input whose shape it has, None for that of O. Q, K, V, B stand at first."""

    run: Callable
    sides: str
    shapes: tuple
    first: int


MIXED = Program(_programs.mixed, "qkkb" * 4, (None, None), 12)
SECOND = Program(_programs.second, "qqkkbqqkkb", (None, 6, 7, 8, 9), 6)


def tangent(program, tangents, inputs, seed, how, needs):
    """The tangents of the outputs that are needed; a tangent of None is 0."""
    seen = tuple(o for o, need in enumerate(needs) if need)
    moved = tuple(i for i, x in enumerate(tangents) if x is not None)
    sides = "".join(program.sides[i] for i in moved)
    shapes = (program.shapes[o] for o in seen)
    shapes = tuple(i if i is None else i + len(moved) for i in shapes)

    def run(strip, *given):
        moves, rest = given[: len(moved)], given[len(moved) :]
        f = moving(program.run, strip, rest, moved, seen)
        outputs, pull = vjp(f, *(rest[i] for i in moved))
        zeros = tuple(map(torch.zeros_like, outputs))
        return vjp(lambda *cotangents: pull(cotangents), *zeros)[1](moves)  # pull is linear

    program_dot = Program(run, sides + program.sides, shapes, program.first + len(moved))
    return Sum.apply(program_dot, how, seed, *(tangents[i] for i in moved), *inputs)


def cotangent(program, cotangents, inputs, needs, seed, how):
    """The gradients of the inputs that need one; a cotangent of None is 0."""
    seen = tuple(i for i, x in enumerate(cotangents) if x is not None)
    moved = tuple(i for i, need in enumerate(needs) if need)
    if not seen or not moved:
        return (None,) * len(needs)
    shapes = tuple(program.shapes[i] for i in seen)
    sides = "".join("q" if i is None else program.sides[i] for i in shapes)

    def run(strip, *given):
        pulled, rest = given[: len(seen)], given[len(seen) :]
        f = moving(program.run, strip, rest, moved, seen)
        return vjp(f, *(rest[i] for i in moved))[1](pulled)

    shapes = tuple(i + len(seen) for i in moved)
    gradient = Program(run, sides + program.sides, shapes, program.first + len(seen))
    got = Sum.apply(gradient, how, seed, *(cotangents[i] for i in seen), *inputs)
    return placed(got, needs)


def moving(run, strip, inputs, moved, seen):
    """Some outputs of a program as a function of some of its inputs."""

    def f(*values):
        place = dict(zip(moved, values))
        outputs = run(strip, *(place.get(i, x) for i, x in enumerate(inputs)))
        return tuple(outputs[o] for o in seen)

    return f


class Sum(Function):
    """A program over all strips."""

    @staticmethod
    def forward(program, how, seed, *inputs):
        with alone(*inputs):
            Q, K, V, B = inputs[program.first : program.first + 4]
            work = Work(how._replace(seed=seed), Q, K, V, B, *inputs, arrays=0, share=4)
            likes = [None if i is None else inputs[i] for i in program.shapes]
            totals = [work.output(V) if x is None else work.result(x) for x in likes]
            sides = ["q" if i is None else program.sides[i] for i in program.shapes]
            for heads in work.heads():
                given = list(map(partial(read, heads), program.sides, inputs))
                sums = list(map(partial(summed, heads), sides, totals))
                for strip in heads.strips():
                    at = partial(cut, strip)
                    got = program.run(strip, *map(at, program.sides, given))
                    for x, y in zip(map(at, sides, sums), got):
                        x += y
            return tuple(x.to(Q.dtype if y is None else y.dtype) for x, y in zip(totals, likes))

    @staticmethod
    def setup_context(ctx, inputs, output):
        kept(ctx, *inputs[2:], program=inputs[0], how=inputs[1])

    @staticmethod
    def backward(ctx, *cotangents):
        seed, *inputs = ctx.saved_tensors
        needs = ctx.needs_input_grad[3:]
        return None, None, None, *cotangent(ctx.program, cotangents, inputs, needs, seed, ctx.how)

    @staticmethod
    def jvp(ctx, *tangents):
        seed, *inputs = ctx.saved_tensors
        needs = [True] * len(ctx.program.shapes)
        return tangent(ctx.program, tangents[3:], inputs, seed, ctx.how, needs)

    @staticmethod
    def vmap(info, dims, *inputs):
        return mapped(Sum.apply, info.batch_size, dims, inputs)


def read(heads, side, x):
    """The heads' part of an input; B stays as it is."""
    return x if x is None or side == "b" else heads.read(x)


def summed(heads, side, total):
    """What the heads' part of a result is added to."""
    return total if side == "b" else heads.sum(total)


def cut(strip, side, x):
    """The strip's part: a view of a sum, a copy of an input of 16 bits."""
    if x is None:
        return None
    if side != "b":
        return x[:, strip.rows if side == "q" else strip.keys]
    x = strip.part(x)
    return x if x.dtype == torch.bool else x.to(strip.heads.work.dtype)
