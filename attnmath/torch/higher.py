"""Derivatives of every order, strip by strip: sums over the strips are closed under them.

A program is a function of one strip, of plain torch operations. Some of its inputs and
outputs belong to the queries (they are cut by rows), some to the keys (whole, and summed
over the strips), some to both, like B, some to the heads, like S. Its derivatives are
programs again, so that memory is linear in all of them: only the graph of one strip is
there at a time.

The letters are those of chapters/second.md; a tangent of None is 0. Arrays (h, rows, .)
of the queries and (h, keys, .) of the keys; B and its tangents (..., rows, keys) with
their own axes of size 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.func import vjp

from attnmath.torch.how import How, keep, mapped, placed, without_autocast
from attnmath.torch.products import Derivatives, mT
from attnmath.torch.scores import Strip
from attnmath.torch.tiles import HeadGroup, Work


def second(
    strip: Strip, dO_dot: Tensor | None, Q_dot: Tensor | None, K_dot: Tensor | None, V_dot: Tensor | None,
    B_dot: Tensor | None, S_dot: Tensor | None, dO: Tensor, Q: Tensor, K: Tensor, V: Tensor,
    B: Tensor | None, S: Tensor | None,
) -> Derivatives:
    """-> O_dot, dQ_dot, dK_dot, dV_dot, dB_dot (None without numbers in B), dS_dot (None without S)"""
    scale = strip.heads.work.how.scale
    P, p_0, R, (bend, bend_2) = weights_and_factors(strip, Q, K, B, S)
    X_dot = scores(strip, (Q_dot, K), (Q, K_dot))
    A_dot, s_dot = added(strip, bend * X_dot, B_dot, S_dot), sink_of(S_dot)
    mu = total(P * A_dot) + p_0 * s_dot
    P_dot, p_0_dot = P * (A_dot - mu), p_0 * (s_dot - mu)
    O_dot = (P_dot * R) @ V + dot(P * R, V_dot)
    dP = R * (dO @ V.mT)
    dP_dot = R * (dot(dO_dot, mT(V)) + dot(dO, mT(V_dot)))
    D, D_dot = total(P * dP), total(P_dot * dP + P * dP_dot)
    dP, dP_dot = dP - D, dP_dot - D_dot
    dA, dA_dot = P * dP, P_dot * dP + P * dP_dot
    dX, dX_dot = bend * dA, bend * dA_dot + bend_2 * X_dot * dA
    dQ_dot = scale * (dX_dot @ K + dot(dX, K_dot))
    dK_dot = scale * (dX_dot.mT @ Q + dot(dX.mT, Q_dot))
    dV_dot = (P_dot * R).mT @ dO + dot((P * R).mT, dO_dot)
    dB_dot = dS_dot = None
    if B is not None and B.dtype != torch.bool:
        dB_dot = dA_dot.reshape(*strip.heads.shape, *dA_dot.shape[1:]).sum_to_size(B.shape)
    if S is not None:
        of_slopes = total(dA_dot * distance(strip)) if strip.heads.work.how.slopes else torch.zeros_like(D)
        dS_dot = -torch.cat([of_slopes, p_0_dot * D + p_0 * D_dot], -1).sum(-2, keepdim=True)
    return O_dot, dQ_dot, dK_dot, dV_dot, dB_dot, dS_dot


def mixed(
    strip: Strip,
    Q_: Tensor | None, K_: Tensor | None, V_: Tensor | None, B_: Tensor | None, S_: Tensor | None,
    Q_1: Tensor | None, K_1: Tensor | None, V_1: Tensor | None, B_1: Tensor | None, S_1: Tensor | None,
    Q_2: Tensor | None, K_2: Tensor | None, V_2: Tensor | None, B_2: Tensor | None, S_2: Tensor | None,
    Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The tangents along 1 of O and of its tangent along 2, which itself moves along _."""
    P, p_0, R, (bend, bend_2) = weights_and_factors(strip, Q, K, B, S)
    X_1, X_2 = scores(strip, (Q_1, K), (Q, K_1)), scores(strip, (Q_2, K), (Q, K_2))
    X_12 = scores(strip, (Q_, K), (Q, K_), (Q_1, K_2), (Q_2, K_1))
    A_1, A_2 = added(strip, bend * X_1, B_1, S_1), added(strip, bend * X_2, B_2, S_2)
    A_12 = added(strip, bend * X_12 + bend_2 * X_1 * X_2, B_, S_)
    s_1, s_2, s_12 = sink_of(S_1), sink_of(S_2), sink_of(S_)
    mu_1, mu_2 = total(P * A_1) + p_0 * s_1, total(P * A_2) + p_0 * s_2
    C_1, C_2 = A_1 - mu_1, A_2 - mu_2
    P_1, P_2, p_01 = P * C_1, P * C_2, p_0 * (s_1 - mu_1)
    P_12 = P_1 * C_2 + P * (A_12 - (total(P_1 * A_2 + P * A_12) + p_01 * s_2 + p_0 * s_12))
    O_1 = (P_1 * R) @ V + dot(P * R, V_1)
    O_12 = (P_12 * R) @ V + dot(P_1 * R, V_2) + dot(P_2 * R, V_1) + dot(P * R, V_)
    return O_1, O_12


def weights_and_factors(
    strip: Strip, Q: Tensor, K: Tensor, B: Tensor | None, S: Tensor | None
) -> tuple[Tensor, Any, Any, tuple[Any, Any]]:
    """-> P, 0 in a row that may attend to nothing; p_0 of the sink; R of dropout; two derivatives of the cap"""
    softcap = strip.heads.work.how.softcap
    bends: tuple[Any, Any] = 1, 0
    A = scores(strip, (Q, K))
    if softcap is not None:
        T = torch.tanh(A / softcap)
        A, bends = softcap * T, (1 - T * T, -2 / softcap * T * (1 - T * T))
    A = added(strip, A, None if B is None or B.dtype == torch.bool else B, S)
    if B is not None and B.dtype == torch.bool:
        A = A.masked_fill(~as_strip(strip, B), -torch.inf)
    A = without_unseen(strip, A)
    R = 1 if strip.R is None else strip.R
    if S is not None:
        A = torch.cat([A, sink_of(S).expand(*A.shape[:-1], 1)], -1)
    empty = (A == -torch.inf).all(-1, keepdim=True)
    P = torch.softmax(A.masked_fill(empty, 0), -1).masked_fill(empty, 0)
    return (P, 0, R, bends) if S is None else (P[..., :-1], P[..., -1:], R, bends)


def without_unseen(strip: Strip, A: Tensor) -> Tensor:
    """A with -inf where a row does not see a key."""
    work = strip.heads.work
    i = torch.arange(strip.rows.start, strip.rows.stop, device=A.device)[:, None]
    j = torch.arange(strip.keys.start, strip.keys.stop, device=A.device)
    if work.last is not None:
        A = A.masked_fill(j > i + work.last, -torch.inf)
    return A if work.first is None else A.masked_fill(j < i + work.first, -torch.inf)


def scores(strip: Strip, *pairs: tuple[Tensor | None, Tensor | None]) -> Any:
    """The sum of the products of queries with keys, scaled; 0 for None."""
    return strip.heads.work.how.scale * sum(dot(q, mT(k)) for q, k in pairs)


def added(strip: Strip, A: Any, B: Tensor | None, S: Tensor | None) -> Any:
    """A + B - slope distance; 0 for None."""
    A = A if B is None else A + as_strip(strip, B)
    return A - S[..., :1] * distance(strip) if S is not None and strip.heads.work.how.slopes else A


def distance(strip: Strip) -> Tensor:
    """How far each key is from where the query stands, as an array of its own."""
    work = strip.heads.work
    return (work.places[strip.keys] - work.own_places[strip.rows, None]).abs()


def sink_of(S: Tensor | None) -> Any:
    return 0 if S is None else S[..., 1:]


def dot(a: Tensor | None, b: Tensor | None) -> Any:
    return 0 if a is None or b is None else a @ b


def total(x: Any) -> Any:
    """The sums of the rows, as a column."""
    return x.sum(-1, keepdim=True)


def as_strip(strip: Strip, x: Tensor) -> Tensor:
    """Its part of B as an array (h, rows, keys), with all entries."""
    return x.expand(*strip.heads.shape, *strip.shape[1:]).reshape(strip.shape)


@dataclass(frozen=True)
class Program:
    """run(strip, *inputs) -> outputs. sides: one letter for each input. shapes: for each
    output the input whose shape it has, None for that of O. Q, K, V, B, S stand at first."""

    run: Callable
    sides: str
    shapes: tuple
    first: int


MIXED = Program(mixed, "qkkbh" * 4, (None, None), 15)
SECOND = Program(second, "qqkkbh" * 2, (None, 7, 8, 9, 10, 11), 7)


def tangent(
    program: Program, tangents: Sequence, inputs: Sequence, needs: Sequence[bool], apply: Callable
) -> Derivatives:
    """The tangents of the outputs that are needed; a tangent of None is 0. apply(program, *inputs) runs it."""
    seen = tuple(o for o, need in enumerate(needs) if need)
    moved = tuple(i for i, x in enumerate(tangents) if x is not None)
    sides = "".join(program.sides[i] for i in moved)
    shapes = tuple(i if i is None else i + len(moved) for i in (program.shapes[o] for o in seen))

    def run(strip: Strip, *given: Tensor | None) -> tuple:
        moves, rest = given[: len(moved)], given[len(moved) :]
        f = outputs_by(program.run, strip, rest, moved, seen)
        outputs, pull = vjp(f, *(rest[i] for i in moved))[:2]
        zeros = tuple(map(torch.zeros_like, outputs))
        return vjp(lambda *cotangents: pull(cotangents), *zeros)[1](moves)  # pull is linear

    program_dot = Program(run, sides + program.sides, shapes, program.first + len(moved))
    return apply(program_dot, *(tangents[i] for i in moved), *inputs)


def cotangent(
    program: Program, cotangents: Sequence, inputs: Sequence, needs: Sequence[bool], apply: Callable
) -> Derivatives:
    """The gradients of the inputs that need one; a cotangent of None is 0. apply(program, *inputs) runs it."""
    seen = tuple(i for i, x in enumerate(cotangents) if x is not None)
    moved = tuple(i for i, need in enumerate(needs) if need)
    if not seen or not moved:
        return (None,) * len(needs)
    shapes = tuple(program.shapes[i] for i in seen)
    sides = "".join("q" if i is None else program.sides[i] for i in shapes)

    def run(strip: Strip, *given: Tensor | None) -> tuple:
        pulled, rest = given[: len(seen)], given[len(seen) :]
        f = outputs_by(program.run, strip, rest, moved, seen)
        return vjp(f, *(rest[i] for i in moved))[1](pulled)

    shapes = tuple(i + len(seen) for i in moved)
    gradient = Program(run, sides + program.sides, shapes, program.first + len(seen))
    got = apply(gradient, *(cotangents[i] for i in seen), *inputs)
    return placed(got, needs)


def outputs_by(run: Callable, strip: Strip, inputs: Sequence, moved: tuple, seen: tuple) -> Callable:
    """Some outputs of a program as a function of some of its inputs."""

    def f(*values: Tensor) -> tuple:
        place = dict(zip(moved, values))
        outputs = run(strip, *(place.get(i, x) for i, x in enumerate(inputs)))
        return tuple(outputs[o] for o in seen)

    return f


class Sum(Function):
    """A program over all strips."""

    @staticmethod
    def forward(program: Program, how: How, seed: Tensor | None, *inputs: Any) -> tuple[Tensor, ...]:
        with without_autocast(*inputs):
            Q, K, V, B = inputs[program.first : program.first + 4]
            work = Work(how._replace(seed=seed), Q, K, V, B, *inputs, arrays=0, share=4)
            likes = [None if i is None else inputs[i] for i in program.shapes]
            totals = [work.output(V) if x is None else work.result(x) for x in likes]
            sides = ["q" if i is None else program.sides[i] for i in program.shapes]
            for heads in work.heads():
                given = list(map(partial(heads_part, heads), program.sides, inputs))
                sums = list(map(partial(heads_sum, heads), sides, totals))
                for strip in heads.strips():
                    at = partial(strip_part, strip)
                    got = program.run(strip, *map(at, program.sides, given))
                    for x, y in zip(map(at, sides, sums), got):
                        x += y
            return tuple(x.to(Q.dtype if y is None else y.dtype) for x, y in zip(totals, likes))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        keep(ctx, *inputs[2:], program=inputs[0], how=inputs[1])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        seed, *inputs = ctx.saved_tensors
        needs = ctx.needs_input_grad[3:]
        return None, None, None, *cotangent(ctx.program, cotangents, inputs, needs, over_strips(ctx.how, seed))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple:
        seed, *inputs = ctx.saved_tensors
        needs = [True] * len(ctx.program.shapes)
        return tangent(ctx.program, tangents[3:], inputs, needs, over_strips(ctx.how, seed))

    @staticmethod
    def vmap(info: Any, dims: tuple, *inputs: Any) -> tuple:
        return mapped(Sum.apply, info.batch_size, dims, inputs)


def over_strips(how: How, seed: Tensor | None) -> Callable:
    """apply(program, *inputs), for a head with these constants."""
    return lambda program, *inputs: Sum.apply(program, how, seed, *inputs)


def heads_part(heads: HeadGroup, side: str, x: Tensor | None) -> Tensor | None:
    """The heads' part of an input; B stays as it is."""
    return x if x is None or side == "b" else heads.read(x)


def heads_sum(heads: HeadGroup, side: str, total: Tensor) -> Tensor:
    """What the heads' part of a result is added to."""
    return total if side == "b" else heads.sum(total)


def strip_part(strip: Strip, side: str, x: Tensor | None) -> Tensor | None:
    """The strip's part: a view of a sum, a copy of an input of 16 bits."""
    if x is None or side == "h":
        return x
    if side != "b":
        return x[:, strip.rows if side == "q" else strip.keys]
    x = strip.part(x)
    return x if x.dtype == torch.bool else x.to(strip.heads.work.dtype)
