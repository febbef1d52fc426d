"""Calls of the Triton kernels: where each head begins, how large a tile is, and what comes back."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
import triton
from torch import Tensor

from attnmath.torch.how import How
from attnmath.torch.philox import WORD
from attnmath.torch.products import Derivatives
from attnmath.torch.tiles import broadcast_leading, edges
from attnmath.torch.triton_blocks import blocks
from attnmath.torch.triton_columns import by_columns, by_tiles
from attnmath.torch.triton_forward import output, output_jvp
from attnmath.torch.triton_rows import RowResults, by_rows
from attnmath.torch.triton_tile import Constants, Inputs, Steps

TENSORS = Inputs._fields[:10]  # those that have rows; the others are of heads


def forward(
    Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, how: How
) -> tuple[Tensor, Tensor]:
    """-> O (..., n, d_v), L (..., n) in float32"""
    call = Call(how, S, None, Q=Q, K=K, V=V, B=B)
    O, L = call.of_queries(V.shape[-1], Q.dtype), call.of_queries(None, torch.float32)
    call.launch("forward", output, call.n, call.heads, O, L)
    return O, L


def jvp(
    Q_dot: Tensor | None, K_dot: Tensor | None, V_dot: Tensor | None, B_dot: Tensor | None, S_dot: Tensor | None,
    Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, how: How,
) -> Derivatives:
    """-> O, O_dot"""
    call = Call(how, S, S_dot, Q=Q, K=K, V=V, B=B, Q_dot=Q_dot, K_dot=K_dot, V_dot=V_dot, B_dot=B_dot)
    O, O_dot = (call.of_queries(V.shape[-1], Q.dtype) for _ in range(2))
    call.launch("jvp", output_jvp, call.n, call.heads, O, O_dot)
    return O, O_dot


def vjp(
    dO: Tensor, Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, how: How,
    *, needs: Sequence[bool] = (True,) * 5,
) -> Derivatives:
    """-> dQ, dK, dV, dB, dS: the tangent of the gradients along dO alone is the gradient for it."""
    return second(dO, None, None, None, None, None, None, Q, K, V, B, S, how, needs=(False, *needs))[1:]


def second(
    dO_dot: Tensor | None, Q_dot: Tensor | None, K_dot: Tensor | None, V_dot: Tensor | None,
    B_dot: Tensor | None, S_dot: Tensor | None, dO: Tensor | None, Q: Tensor, K: Tensor, V: Tensor,
    B: Tensor | None, S: Tensor | None, how: How, *, needs: Sequence[bool] = (True,) * 6,
) -> Derivatives:
    """-> O_dot, dQ_dot, dK_dot, dV_dot, dB_dot, dS_dot, None where not needed; dO may be None, for 0"""
    call = Call(how, S, S_dot, Q=Q, K=K, V=V, B=B, dO=dO, Q_dot=Q_dot, K_dot=K_dot, V_dot=V_dot, B_dot=B_dot,
                dO_dot=dO_dot)
    d_k, d_v = Q.shape[-1], V.shape[-1]
    O_dot = dQ_dot = dK_dot = dV_dot = dB_dot = dS_dot = of_slopes = None
    if needs[0]:
        O_dot = call.of_queries(d_v, Q.dtype)
        if all(x is None for x in (Q_dot, K_dot, V_dot, B_dot, S_dot)):
            O_dot.zero_()
    if needs[1]:
        dQ_dot = call.of_queries(d_k, call.wide(Q, call.lead))
    if needs[5] and how.slopes:
        of_slopes = call.of_queries(None, torch.float32)
    sums = call.sums()
    call.launch("rows", by_rows, call.n, call.heads, RowResults(O_dot, dQ_dot, sums, of_slopes))
    if needs[2] or needs[3]:
        lead, shared = call.shared(K, V, K_dot, V_dot)
        if needs[2]:
            dK_dot = K.new_empty(*lead, call.m, d_k, dtype=call.wide(K, lead))
        if needs[3]:
            dV_dot = V.new_empty(*lead, call.m, d_v, dtype=call.wide(V, lead))
        call.launch("columns", by_columns, call.m, prod(lead), sums, shared, shared.shape[1], dK_dot, dV_dot)
    if needs[4] and B is not None:
        lead, shared = call.shared(B)
        dB_dot = B.new_empty(*lead, call.n, call.m, dtype=call.wide(B, lead))
        call.launch("tiles", by_tiles, (call.n, call.m), prod(lead), sums, shared, shared.shape[1], dB_dot)
    if needs[5] and S is not None:
        dS_dot = call.of_heads(sums, of_slopes)
    got = O_dot, dQ_dot, dK_dot, dV_dot, dB_dot, dS_dot
    return tuple(
        y if y is None or x is None else y.sum_to_size(x.shape).to(x.dtype)
        for y, x in zip(got, (None, Q, K, V, B, S))
    )


class Call:
    """One call: its tensors, with rows without gaps, and where each of the H heads begins in them."""

    def __init__(self, how: How, S: Tensor | None, S_dot: Tensor | None, **given: Tensor | None) -> None:
        self.how, self.S, self.S_dot = how, S, S_dot
        Q, K, V = (given[name] for name in "QKV")
        assert Q is not None and K is not None and V is not None
        self.n, self.m, self.device = Q.shape[-2], K.shape[-2], Q.device
        self.lead = broadcast_leading(*given.values(), S, S_dot)
        self.heads, self.d_k, self.d_v, self.dtype = prod(self.lead), Q.shape[-1], V.shape[-1], Q.dtype
        x = {name: ready(name, y, self.dtype) for name, y in given.items() if y is not None}
        strides = tuple((x[name].shape, x[name].stride()) if name in x else None for name in TENSORS)
        heads = tuple(broadcast_leading(Q, K)) if how.heads is None else how.heads
        self.inputs = Inputs(**x, **self.of_each_head("", S), **self.of_each_head("_dot", S_dot))
        self.steps = Steps(**steps(x))
        first, last = edges(how, self.n, self.m)
        keep = 1 - how.dropout
        self.constants = Constants(
            self.n, self.m, self.heads, self.heads * self.n, places(self.lead, strides, heads, self.device),
            how.scale, how.softcap, first, last, how.seed if how.dropout else None,
            min(round(how.dropout * 2**32), WORD) - 2**31, 1 / keep if keep else 0.0, how.first_row, how.first_key,
        )

    def of_each_head(self, dot: str, S: Tensor | None) -> dict[str, Tensor]:
        """Slopes and sinks as (H) in float32."""
        if S is None:
            return {}
        of_head = S.float().expand(*self.lead, 1, 2).reshape(self.heads, 2).T.contiguous()
        return {f"sinks{dot}": of_head[1]} | ({f"slopes{dot}": of_head[0]} if self.how.slopes else {})

    def of_queries(self, d: int | None, dtype: torch.dtype) -> Tensor:
        """Room for a result of the queries."""
        shape = (*self.lead, self.n) if d is None else (*self.lead, self.n, d)
        return torch.empty(shape, dtype=dtype, device=self.device)

    def sums(self) -> Tensor:
        return torch.empty(5, *self.lead, self.n, dtype=torch.float32, device=self.device)

    def wide(self, like: Tensor, lead: tuple) -> torch.dtype:
        """Of what is yet to be added up float32, of a result the type of its input."""
        own = (1,) * (len(lead) - like.ndim + 2) + like.shape[:-2]
        return like.dtype if own == tuple(lead) else torch.float32

    def shared(self, *tensors: Tensor | None) -> tuple[tuple, Tensor]:
        """Which heads have the same parts of these tensors.  -> the axes that they do not share, (G, sharers)"""
        own = broadcast_leading(*(x for x in tensors if x is not None))
        own = (1,) * (len(self.lead) - len(own)) + own
        return own, sharers(self.lead, own, self.device)

    def of_heads(self, sums: Tensor, of_slopes: Tensor | None) -> Tensor:
        """The tangents of the gradients of slopes and sinks, (..., 1, 2); a sink has -sum of p_0 D."""
        assert self.S is not None
        c, share, mu, D, D_dot = sums
        p_0 = torch.exp(self.S[..., 1].float() - c) * share
        s_dot: Any = 0 if self.S_dot is None else self.S_dot[..., 1].float()
        of_sinks = (p_0 * (s_dot - mu) * D + p_0 * D_dot).sum(-1)
        of_slope = torch.zeros_like(of_sinks) if of_slopes is None else of_slopes.sum(-1)
        return -torch.stack([of_slope, of_sinks], -1).unsqueeze(-2)

    def launch(self, kind: str, kernel: Any, rows: Any, heads: int, *results: Any) -> None:
        D_K, D_V = (max(16, triton.next_power_of_2(d)) for d in (self.d_k, self.d_v))
        more = self.inputs.B is not None or self.constants.seed is not None
        cut = blocks(kind, max(D_K, D_V), self.dtype, more)
        if kind == "tiles":
            count = triton.cdiv(rows[0], cut.rows) * triton.cdiv(rows[1], cut.keys)
        else:
            count = triton.cdiv(rows, cut.keys if kind == "columns" else cut.rows)
        sizes = dict(d_k=self.d_k, d_v=self.d_v, D_K=D_K, D_V=D_V, ROWS=cut.rows, KEYS=cut.keys)
        RUN(kernel, (count * heads,), self.inputs, self.steps, self.constants, *results, **sizes,
            num_warps=cut.warps, num_stages=cut.stages, maxnreg=cut.registers)


def run(kernel: Any, grid: tuple, *given: Any, **options: Any) -> None:
    kernel[grid](*given, **options)


RUN = run


def ready(name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor as the kernels read it: the entries of a row side by side, booleans as bytes."""
    x = x[(None,) * (2 - x.ndim)]
    if x.dtype == torch.bool:
        return x.view(torch.uint8)
    if name.startswith("B"):
        return x
    x = x.to(dtype)
    return x if x.stride(-1) == 1 else x.contiguous()


def steps(x: dict[str, Tensor]) -> dict[str, int]:
    """From row to row, and from key to key of a bias; 0 along an axis of size 1."""
    found = {name: x[name].stride(-2) if name in x and x[name].shape[-2] > 1 else 0 for name in TENSORS}
    for name in ("B", "B_dot"):
        found[f"{name}_key"] = x[name].stride(-1) if name in x and x[name].shape[-1] > 1 else 0
    return found


@lru_cache(64)
def places(lead: tuple, tensors: tuple, heads: Any, device: torch.device) -> Tensor:
    """(11, H): where each head begins in each tensor of (shape, strides) or None, and the number of each head."""
    table = torch.zeros(len(tensors) + 1, *lead, dtype=torch.int64)
    for row, known in zip(table, tensors):
        if known is not None:
            axes = zip(reversed(known[0][:-2]), reversed(known[1][:-2]))
            for axis, (size, stride) in enumerate(axes):
                if size > 1:
                    row += torch.arange(size).mul_(stride).view(-1, *(1,) * axis)
    if isinstance(heads, tuple):
        heads = torch.arange(prod(heads)).view(heads)
    table[-1] = heads
    return table.flatten(1).to(device)


@lru_cache(64)
def sharers(lead: tuple, own: tuple, device: torch.device) -> Tensor:
    """(G, sharers): the heads, of those with axes lead, that are one along the axes of size 1 of own."""
    heads = torch.arange(prod(lead)).view(lead)
    apart = [axis for axis, size in enumerate(own) if size > 1]
    together = [axis for axis, size in enumerate(own) if size == 1]
    return heads.permute(*apart, *together).reshape(prod(own), -1).contiguous().to(device)
