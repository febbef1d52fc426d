"""A rank's queries against one block of keys, tile by tile, and what is computed in a tile.

Arrays of the queries: Q (h, g, r, d_k), dO (h, g, r, d_v), columns l, c and D (h, g, r, 1);
of the keys: K (h, k, d_k), V (h, k, d_v). g heads of queries share each of h heads of keys.
L = c + l is the log-sum-exp of a whole row, over the keys of all ranks, and c its largest
score. With them a weight exp(A - c - l) is known in its tile alone, and all that follows is
a sum over tiles. A tangent or cotangent of None is 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import isqrt, prod
from typing import Any

import torch
from torch import Tensor

from attnmath.torch.higher import Program, total
from attnmath.torch.how import How
from attnmath.torch.layouts import positions
from attnmath.torch.philox import Draws
from attnmath.torch.ring_messages import TALLY, Link
from attnmath.torch.tiles import edges

NUMBERS = {"cpu": 2**19}  # of one tile, in all heads
ELSEWHERE = 2**24
FEWEST = 32  # rows and keys of a tile, whatever the number of heads


@dataclass(frozen=True)
class Call:
    """One call on one rank: its constants. Tensors of them are made where they are used, within all transforms."""

    link: Link
    how: How  # without its seed
    seed: int
    layout: Any  # its name, or the places of this rank's queries and keys
    n: int
    m: int
    keys: tuple[int, ...]  # how many each rank has
    shape: tuple[int, int]  # h, g
    device: torch.device
    fields: tuple  # of each header: what all ranks must have alike
    copies: int = 1  # of all heads, one set after the other

    def repeated(self, size: int) -> "Call":
        """The same for so many sets of its heads."""
        return replace(self, copies=size * self.copies)

    @cached_property
    def rows(self) -> Tensor:
        """The places of this rank's queries (n_r,)."""
        named = isinstance(self.layout, str)
        return (self.places("n", self.link.rank) if named else self.layout[0]).to(self.device)

    def places(self, side: str, rank: int) -> Tensor:
        """Those of the queries, n, or the keys, m, of a rank, in a layout that has a name."""
        return positions(self.layout, getattr(self, side), self.link.size, rank).to(self.device)

    @cached_property
    def edges(self) -> tuple[int | None, int | None]:
        """The query at i sees the keys from i + first to i + last; None: all on that side."""
        return edges(self.how, self.n, self.m)

    @cached_property
    def heads(self) -> Tensor:
        """The number of each head (copies h, g)."""
        return torch.arange(prod(self.shape), device=self.device).view(self.shape).repeat(self.copies, 1)

    def factors(self, i: Tensor, j: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Those of dropout at queries i and keys j; None without it."""
        if not self.how.dropout:
            return None
        how = self.how._replace(heads=self.heads, seed=torch.tensor(self.seed))
        return Draws(how, (), 0, 0, self.device).at(i, j, dtype)

    def tiles(self, mask: Tensor | None, places: Tensor, dtype: torch.dtype) -> Iterator["Tile"]:
        """The tiles of a block, whose keys stand there, in which a query may see a key."""
        numbers = NUMBERS.get(self.device.type, ELSEWHERE)
        size = max(FEWEST, isqrt(numbers // max(self.heads.numel(), 1)))
        first, last = self.edges
        columns = pieces(places, size)
        for rows, low, high in pieces(self.rows, size):
            for keys, left, right in columns:
                if (last is None or left <= high + last) and (first is None or right >= low + first):
                    TALLY.tiles += 1
                    i, j = self.rows[rows], places[keys]
                    yield Tile(self, mask, rows, keys, i, j, self.factors(i, j, dtype))


def pieces(places: Tensor, size: int) -> list[tuple[slice, int, int]]:
    """Neighbours, at most so many; the least and the largest of their places.

    There is no jump between them, unless places jump so often that the pieces would be short.
    """
    steps = places.diff()
    jumps = (steps != steps.mode().values).nonzero().flatten() + 1 if len(steps) else steps
    edges = [0, *(jumps.tolist() if len(jumps) * FEWEST < len(places) + 4 * FEWEST else []), len(places)]
    found = []
    for start, stop in zip(edges, edges[1:]):
        for cut in range(start, stop, size):
            piece = slice(cut, min(cut + size, stop))
            found.append((piece, int(places[piece].min()), int(places[piece].max())))
    return found


@dataclass(frozen=True)
class Tile:
    """Some rows of the queries against some keys: scores (h, g, r, k)."""

    call: Call
    mask: Tensor | None  # (1 or h, 1 or g, 1 or n_r, 1 or m), true: may attend
    rows: slice
    keys: slice
    i: Tensor
    j: Tensor
    R: Tensor | None  # the factors of dropout

    def part(self, side: str, x: Tensor | None) -> Any:
        return None if x is None else x[..., self.rows if side == "q" else self.keys, :]

    @cached_property
    def hidden(self) -> Tensor | None:
        """True where a query may not attend to a key; None where it may everywhere."""
        first, last = self.call.edges
        hidden = None if self.mask is None else ~self.mask_part(self.mask)
        i = self.i[:, None]
        if last is not None and self.j.max() > self.i.min() + last:
            later = self.j > i + last
            hidden = later if hidden is None else hidden | later
        if first is not None and self.j.min() < self.i.max() + first:
            earlier = self.j < i + first
            hidden = earlier if hidden is None else hidden | earlier
        return hidden

    def mask_part(self, mask: Tensor) -> Tensor:
        mask = mask[..., self.rows, :] if mask.shape[-2] > 1 else mask
        return mask[..., self.j] if mask.shape[-1] > 1 else mask

    def dropped(self, x: Tensor) -> Tensor:
        """x times the factors of dropout."""
        return x if self.R is None else x * self.R

    def times(self, x: Tensor, y: Tensor) -> Tensor:
        """x (h, g, r, s) y (h, s, t) -> (h, g, r, t)"""
        return (x.flatten(1, 2) @ y).unflatten(1, x.shape[1:3])

    def scores(self, Q: Tensor, K: Tensor) -> tuple[Tensor, Any]:
        """A, -inf where it is hidden, and the derivative of the cap."""
        how = self.call.how
        bend: Any = 1
        A = how.scale * self.times(Q, K.mT)
        if how.softcap is not None:
            T = torch.tanh(A / how.softcap)
            A, bend = how.softcap * T, 1 - T * T
        return A if self.hidden is None else A.masked_fill(self.hidden, -torch.inf), bend

    def weights(self, Q: Tensor, K: Tensor, l: Tensor, c: Tensor) -> tuple[Tensor, Any]:
        """P, 0 in a row that may attend to nothing, and the derivative of the cap."""
        A, bend = self.scores(Q, K)
        return torch.exp(A - c - l.masked_fill(l == -torch.inf, 0)), bend


def gradients(
    tile: Tile, dO: Tensor | None, D: Tensor, l: Tensor, c: Tensor, Q: Tensor, K: Tensor, V: Tensor
) -> tuple:
    """-> the tile's parts of dQ, dK, dV"""
    scale = tile.call.how.scale
    P, bend = tile.weights(Q, K, l, c)
    dP = 0 if dO is None else tile.dropped(tile.times(dO, V.mT))
    dX = bend * (P * (dP - D))
    dV = torch.zeros_like(V) if dO is None else across(tile.dropped(P), dO)
    return scale * tile.times(dX, K), scale * across(dX, Q), dV


def tangents(
    tile: Tile, Q_dot: Tensor | None, K_dot: Tensor | None, V_dot: Tensor | None, l: Tensor, c: Tensor,
    Q: Tensor, K: Tensor, V: Tensor,
) -> tuple:
    """-> the tile's parts of l_dot and of U = (P A_dot R) V + (P R) V_dot"""
    P, bend = tile.weights(Q, K, l, c)
    X_dot = tile.call.how.scale * (
        (0 if Q_dot is None else tile.times(Q_dot, K.mT)) + (0 if K_dot is None else tile.times(Q, K_dot.mT))
    )
    F = P * bend * X_dot
    U = tile.times(tile.dropped(F), V) + (0 if V_dot is None else tile.times(tile.dropped(P), V_dot))
    return total(F), U


def across(x: Tensor, y: Tensor) -> Tensor:
    """The sum over the rows of all heads that share keys.  x (h, g, r, s), y (h, g, r, t) -> (h, s, t)"""
    return x.flatten(1, 2).mT @ y.flatten(1, 2)


GRADIENTS = Program(gradients, "qqqqqkk", (4, 5, 6), 4)
TANGENTS = Program(tangents, "qkkqqqkk", (3, None), 5)
