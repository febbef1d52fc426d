"""Mistakes of a ring: each replaces one function of those that make it, on every rank."""

from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import torch

from attnmath.torch import philox, ring
from attnmath.torch import ring_messages as messages
from attnmath.torch import ring_passes as passes
from attnmath.torch import ring_tiles as tiles
from attnmath.torch.higher import total
from ring_cases import distances

closed, opened = passes.closed, passes.opened
shift, wait = messages.Shift.__init__, messages.Shift.wait
Call, Tile = tiles.Call, tiles.Tile
weights, factors, all_tiles, places, rows = Tile.weights, Call.factors, Call.tiles, Call.places, Call.rows.func
at, edges, with_sinks = philox.Draws.at, tiles.edges, ring.with_sinks
gradients, tangents = tiles.gradients, tiles.tangents


class Stale:
    """Each step uses the block of the first, in all passes or in those that send sums home."""

    def __init__(self, forward):
        self.forward = forward

    def closed(self, call, *tensors):
        self.block, self.call = closed(call, *tensors), call
        return self.block

    def opened(self, call, origin, block):
        return opened(call, call.link.rank, self.block) if self.forward else [opened(call, origin, block)[0], *self.block]

    def changes(self):
        return (passes, "closed", self.closed), (passes, "opened", self.opened)


def kept(self, link, tensors, keys, fields):
    self.tensors, self.step = tensors, fields["step"]
    shift(self, link, tensors, keys, fields)


def sums_stay(self):
    came = wait(self)
    return list(self.tensors) if self.step % 2 else came


def first_sums_are_lost(self):
    return [0 * x if self.step == 1 else x for x in wait(self)]


class WithoutRescaling(SimpleNamespace):
    """torch, whose exp of a column, by which the sums so far shrink, is 1."""

    def __getattr__(self, name):
        return getattr(torch, name)

    def exp(self, x):
        return torch.exp(x) if x.shape[-1] > 1 else torch.ones_like(x)


def D_of_the_tile(tile, dO, D, l, c, Q, K, V):
    P, _ = weights(tile, Q, K, l, c)
    return gradients(tile, dO, total(P * tile.dropped(tile.times(dO, V.mT))), l, c, Q, K, V)


def L_of_the_tile(tile, dO, D, l, c, Q, K, V):
    L = torch.logsumexp(tile.scores(Q, K)[0], -1, keepdim=True)
    return gradients(tile, dO, D, L, 0 * c, Q, K, V)


def dK_without_scale(tile, *x):
    dQ, dK, dV = gradients(tile, *x)
    return dQ, dK / tile.call.how.scale, dV


def mean_stands_still(tile, *x):
    l_dot, U = tangents(tile, *x)
    return 0 * l_dot, U


def without_the_last_tile(self, *x):
    yield from list(all_tiles(self, *x))[:-1]


def first_tile_twice(self, *x):
    found = list(all_tiles(self, *x))
    yield from found[:1] + found


def of_program(name, run):
    return passes, name, replace(getattr(tiles, name), run=run)


ROWS = Call, "rows", property(lambda call: torch.arange(len(rows(call))))
KEYS = Call, "places", lambda call, side, rank: torch.arange(len(places(call, side, rank)))
MISTAKES = {  # case, layout, changes
    "stale keys and values": ("causal, groups", "contiguous", Stale(True).changes()),
    "stale keys and values at the right places": ("causal, groups", "zigzag", Stale(False).changes()),
    "sums stay with the wrong rank": (
        "causal, groups", "zigzag", ((messages.Shift, "__init__", kept), (messages.Shift, "wait", sums_stay)),
    ),
    "the first sums are lost": (
        "plain", "contiguous", ((messages.Shift, "__init__", kept), (messages.Shift, "wait", first_sums_are_lost)),
    ),
    "merged without rescaling": ("plain", "contiguous", ((passes, "torch", WithoutRescaling()),)),
    "D of a part": ("plain", "contiguous", (of_program("GRADIENTS", D_of_the_tile),)),
    "the log-sum-exp of a part": ("plain", "contiguous", (of_program("GRADIENTS", L_of_the_tile),)),
    "dK without the scale": ("plain", "contiguous", (of_program("GRADIENTS", dK_without_scale),)),
    "the mean of the tangent is forgotten": ("plain", "contiguous", (of_program("TANGENTS", mean_stands_still),)),
    "local places of queries": ("causal", "contiguous", (ROWS,)),
    "local places of keys": ("causal", "zigzag", (KEYS,)),
    "local places of both": ("causal", "contiguous", (ROWS, KEYS)),
    "places of another layout": ("causal", "zigzag", (
        (tiles, "positions", lambda layout, n, ranks, rank: ring.positions("contiguous", n, ranks, rank)),
    )),
    "the block of another rank": ("causal, groups", "contiguous", (
        (passes, "opened", lambda call, origin, block: opened(call, (origin + 1) % call.link.size, block)),
    )),
    "a tile is left out": ("causal", "zigzag", ((Call, "tiles", without_the_last_tile),)),
    "a tile counts twice": ("causal", "zigzag", ((Call, "tiles", first_tile_twice),)),
    "a window of local lengths": ("a causal window, fewer keys, hidden rows", "contiguous", (
        (tiles, "edges", lambda how, n, m: edges(how, n, m + 1)),
    )),
    "a seed of each rank": ("dropout", "contiguous", (
        (Call, "factors", lambda call, *x: factors(replace(call, seed=call.link.rank), *x)),
    )),
    "dropout by local places": ("dropout", "contiguous", (
        (philox.Draws, "at", lambda self, i, j, dtype: at(self, i - i.min(), j, dtype)),
    )),
    "sinks beside a part of the log-sum-exp": ("sinks", "contiguous", (
        (ring, "with_sinks", lambda O, L, s: with_sinks(O, L - 1, s)),
    )),
}  # fmt: skip


def with_mistake(group, name):
    """How far the derivatives are off with it; None: without."""
    case, layout, changes = MISTAKES[name]
    with ExitStack() as stack:
        for place, attribute, other in changes:
            stack.enter_context(patch.object(place, attribute, other))
        return distances(group, case, layout)
