"""What a ring costs on a rank, and ranks that do not fit to each other: functions for tests/helpers/ranks.py."""

import os
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.func import jvp

from attnmath.torch import ring_attention
from attnmath.torch import ring_messages as messages
from attnmath.torch import ring_tiles as tiles
from attnmath.torch.layouts import positions
from ring_cases import drawn

SIZES = dict(h=2, n=24, m=18, d_k=4, d_v=6)


def problem(group, layout="contiguous", dtype=torch.float64, h=2, n=24, m=18, d_k=4, d_v=6):
    """This rank's q, k, v, dO."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    rows, keys = positions(layout, n, ranks, rank), positions(layout, m, ranks, rank)
    x = drawn([(h, n, d_k), (h, m, d_k), (h, m, d_v), (h, n, d_v)], dtype)
    return [y[:, at].contiguous() for y, at in zip(x, (rows, keys, keys, rows))]


def forward(f, q, k, v, dO):
    f(q, k, v)


def gradients(f, q, k, v, dO):
    x = [y.requires_grad_() for y in (q, k, v)]
    torch.autograd.grad(f(*x), x, dO)


def tangent(f, q, k, v, dO):
    jvp(f, (q, k, v), (q, k, v))


def double_backward(f, q, k, v, dO):
    x = [y.requires_grad_() for y in (q, k, v)]
    first = torch.autograd.grad(f(*x), x, dO, create_graph=True)
    torch.autograd.grad(first, x, x)


COSTS = forward, gradients, tangent, double_backward
PASSES = {  # of each: sets of K and V that go round, and sets of their sums that come home; the first agrees by the call
    "forward": [(1, 0)], "gradients": [(1, 0), (1, 1)], "tangent": [(1, 0), (2, 0)],
    "double_backward": [(1, 0), (1, 1), (2, 1), (1, 1)],
}  # fmt: skip


def formula(name, ranks, h, m, d_k, d_v, itemsize, **_):
    """The bytes that a rank sends, where all have as many keys."""
    H, block = messages.WIDTH, h * m // ranks * (d_k + d_v) * itemsize
    return sum(
        (ranks - 1) * H + (ranks - 1) * (H + sets * block) + bool(home) * ranks * (H + home * block)
        for sets, home in PASSES[name]
    )


def sent(group, layout="contiguous", dtype=torch.float64, sizes=SIZES):
    """name: the bytes that this rank has sent for it."""
    found = {}
    for derivative in COSTS:
        q, k, v, dO = problem(group, layout, dtype, **sizes)
        before = messages.TALLY.bytes
        derivative(lambda *x: ring_attention(*x, group=group, layout=layout), q, k, v, dO)
        found[derivative.__name__] = messages.TALLY.bytes - before
    return found


def computed(group, layout, n, size):
    """How many tiles this rank computes under a causal mask."""
    q, k, v, _ = problem(group, layout, n=n, m=n)
    with patch.object(tiles, "NUMBERS", {"cpu": 1}), patch.object(tiles, "FEWEST", size):
        before = messages.TALLY.tiles
        ring_attention(q, k, v, is_causal=True, group=group, layout=layout)
        return messages.TALLY.tiles - before


def order(group):
    """What happens in a backward pass: a message is posted, tiles are computed, a message is waited for."""
    events, shift, wait, run = [], messages.Shift.__init__, messages.Shift.wait, tiles.Call.tiles

    def posted(self, *x):
        self.kind = "sums" if x[-1]["step"] % 2 else "block"
        events.append(f"{self.kind} posted")
        shift(self, *x)

    def waited(self):
        events.append(f"{self.kind} awaited")
        return wait(self)

    def computed(self, *x):
        events.append("tiles")
        return run(self, *x)

    q, k, v, dO = problem(group)
    q.requires_grad_()
    O = ring_attention(q, k, v, group=group)
    changes = (messages.Shift, "__init__", posted), (messages.Shift, "wait", waited), (tiles.Call, "tiles", computed)
    patches = [patch.object(*change) for change in changes]
    for change in patches:
        change.start()
    torch.autograd.grad(O, q, dO)
    for change in patches:
        change.stop()
    return events


def held(group, n, layout="zigzag"):
    """The most bytes that a double backward holds on this rank at a time, beside its inputs; tiles are small."""
    from test_drop_in_memory import highest

    q, k, v, dO = problem(group, layout, torch.float32, n=n, m=n)
    f = lambda *x: ring_attention(*x, is_causal=True, group=group, layout=layout)  # noqa: E731
    with patch.object(tiles, "NUMBERS", {"cpu": 2**12}), tempfile.TemporaryDirectory() as folder:
        return highest(lambda: double_backward(f, q, k, v, dO), Path(folder))


# Ranks that do not fit to each other: what each does, by its rank.


def call(group, options):
    sizes = {name: value for name, value in options.items() if name in SIZES}
    q, k, v, _ = problem(group, dtype=options.get("dtype", torch.float64), **sizes)
    own = {name: value for name, value in options.items() if name not in (*SIZES, "dtype")}
    return ring_attention(q, k, v, group=group, **own).shape


def named(group, layout, n, m):
    """A call with so many queries and keys; each rank's places, or the name of a layout."""
    if not isinstance(layout, str):
        layout = (torch.tensor(layout[dist.get_rank(group)]),) * 2
    return ring_attention(torch.zeros(n, 4), torch.zeros(m, 4), torch.zeros(m, 4), group=group, layout=layout).shape


def backward_or_forward(group, first):
    q, k, v, dO = problem(group)
    O = ring_attention(q.requires_grad_(), k, v, group=group)
    return torch.autograd.grad(O, q, dO)[0].shape if first else ring_attention(q, k, v, group=group).shape


def of_another_group(group):
    """What rank 0 is told of a group without it, and the others of a name."""
    other = dist.new_group([1, 2])
    x = torch.zeros(2, 3)
    return ring_attention(x, x, x, group=other if dist.get_rank() == 0 else "ranks")


def die(group):
    os._exit(3)


def die_between(group):
    """Dies after its first message is on the way."""
    shift = messages.Shift.__init__

    def posted(self, *x):
        shift(self, *x)
        os._exit(3)

    with patch.object(messages.Shift, "__init__", posted):
        call(group, {})


def sleep(group):
    time.sleep(600)
