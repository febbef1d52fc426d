"""Attention over ranks, for tests: a ring with a way back of its own, gathered keys, heads exchanged; and slips."""

import os
import signal

import torch
import torch.distributed as dist


def own_positions(n, layout):
    """The places of this rank's n tokens, of as many on each rank."""
    r, ranks = dist.get_rank(), dist.get_world_size()
    return positions_of(r, n, ranks, layout)


def positions_of(r, n, ranks, layout):
    if layout == "contiguous":
        return torch.arange(r * n, (r + 1) * n)
    half = n // 2
    return torch.cat([torch.arange(c * half, (c + 1) * half) for c in (r, 2 * ranks - 1 - r)])


def sent_on(*tensors, by=1):
    """What the rank before had, of each tensor."""
    r, ranks = dist.get_rank(), dist.get_world_size()
    got = [torch.empty(x.shape, dtype=x.dtype) for x in tensors]
    works = [dist.isend(x.contiguous(), (r + by) % ranks) for x in tensors]
    works += [dist.irecv(x, (r - by) % ranks) for x in got]
    for work in works:
        work.wait()
    return got


class Ring(torch.autograd.Function):
    """Keys and values go round; in the way back their gradients go with them, and come home in the end."""

    @staticmethod
    def forward(ctx, q, k, v, causal, layout, slip):
        r, ranks, (n, d) = dist.get_rank(), dist.get_world_size(), q.shape[-2:]
        q_at = own_positions(n, layout)
        O = L = None
        keys, values = k, v
        for step in range(ranks):
            source = (r - step) % ranks
            see = seen(q_at, positions_of(source, n, ranks, layout), causal, slip, r, source)
            A = (q @ keys.mT * d**-0.5).masked_fill(~see, -torch.inf)
            if not (slip == "diagonal skipped" and step == 0):
                part_L = A.logsumexp(-1, keepdim=True)
                part_O = A.softmax(-1).nan_to_num(0.0) @ values
                if O is None:
                    O, L = part_O, part_L
                elif slip == "mean":
                    O, L = O + part_O, torch.logaddexp(L, part_L)
                elif slip == "odd merge":
                    O, L = O + 0.3 * step * part_O, part_L
                else:
                    new = torch.logaddexp(L, part_L)
                    O = O * (L - new).exp() + part_O * (part_L - new).exp()
                    L = new
            if step + 1 < ranks:
                moved = sent_on(keys, values)
                keys, values = (keys if slip == "stale K forward" else moved[0]), moved[1]
        if slip == "mean":
            O = O / ranks
        ctx.save_for_backward(q, k, v, O, L)
        ctx.how = causal, layout, slip
        return O

    @staticmethod
    def backward(ctx, dO):
        (q, k, v, O, L), (causal, layout, slip) = ctx.saved_tensors, ctx.how
        r, ranks, (n, d) = dist.get_rank(), dist.get_world_size(), q.shape[-2:]
        q_at = own_positions(n, layout)
        D = (dO * O).sum(-1, keepdim=True)
        dQ, dK, dV = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        keys, values = k, v
        for step in range(ranks):
            source = (r - step) % ranks
            see = seen(q_at, positions_of(source, n, ranks, layout), causal, slip, r, source)
            A = (q @ keys.mT * d**-0.5).masked_fill(~see, -torch.inf)
            P = A.softmax(-1).nan_to_num(0.0) if slip == "local weights" else (A - L).exp()
            dP = dO @ values.mT
            own_D = (P * dP).sum(-1, keepdim=True) if slip == "D of a part" else D
            if slip == "D of own part":
                D = (P * dP).sum(-1, keepdim=True) if step == 0 else D
                own_D = D
            dA = P * (dP - own_D) * d**-0.5
            dQ = dQ + dA @ keys
            if not (slip == "last missing" and step == ranks - 1):
                dK, dV = dK + dA.mT @ q, dV + P.mT @ dO
            if slip == "own alone" and step == 0:
                kept = dK, dV
            if slip in ("stale backward", "stale K backward"):
                moved = sent_on(values, dK, dV)
                values, dK, dV = (values if slip == "stale backward" else moved[0]), *moved[1:]
            else:
                keys, values, dK, dV = sent_on(keys, values, dK, dV)
        if slip == "own alone":
            dK, dV = kept
        if slip == "not home":
            dK, dV = sent_on(dK, dV, by=-1)
        if slip == "divided":
            dK, dV = dK / ranks, dV / ranks
        return dQ, dK, dV, None, None, None


def seen(q_at, k_at, causal, slip, r, source):
    """Which query may attend to which key."""
    n, m = len(q_at), len(k_at)
    if not causal:
        return torch.ones(n, m, dtype=torch.bool)
    if slip == "local positions":
        return torch.ones(n, m, dtype=torch.bool).tril()
    if slip == "later seen" and r != source:
        return torch.ones(n, m, dtype=torch.bool)
    return k_at <= q_at[:, None]


def ring(q, k, v, causal=False):
    return Ring.apply(q, k, v, causal, "contiguous", "")


def zigzag(q, k, v, causal=False):
    return Ring.apply(q, k, v, causal, "zigzag", "")


def slipping(q, k, v, causal=False, *, layout="contiguous", slip=""):
    return Ring.apply(q, k, v, causal, layout, slip)


class Gathered(torch.autograd.Function):
    """The rows of all ranks, one after another; the way back sums what all ranks have of the own rows."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -2)

    @staticmethod
    def backward(ctx, dX):
        dX = dX.contiguous().clone()
        dist.all_reduce(dX)
        return dX.chunk(dist.get_world_size(), -2)[dist.get_rank()]


def gathered(q, k, v, causal=False):
    """Contiguous tokens, keys and values gathered; plain autograd."""
    k, v = Gathered.apply(k), Gathered.apply(v)
    n, r = q.shape[-2], dist.get_rank()
    A = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        A = A.masked_fill(torch.arange(k.shape[-2]) > r * n + torch.arange(n)[:, None], -torch.inf)
    return A.softmax(-1) @ v


class Exchanged(torch.autograd.Function):
    """(b, H, n_r, d) -> (b, H/R, n, d): from the own rows of all heads to all rows of own heads; or back."""

    @staticmethod
    def forward(ctx, x, forth):
        ctx.forth, ranks = forth, dist.get_world_size()
        pieces = [p.contiguous() for p in x.chunk(ranks, 1 if forth else 2)]
        got = [torch.empty_like(p) for p in pieces]
        r = dist.get_rank()
        got[r] = pieces[r]
        works = [dist.isend(pieces[s], s) for s in range(ranks) if s != r]
        works += [dist.irecv(got[s], s) for s in range(ranks) if s != r]
        for work in works:
            work.wait()
        return torch.cat(got, 2 if forth else 1)

    @staticmethod
    def backward(ctx, dX):
        return Exchanged.apply(dX, not ctx.forth), None


def ulysses(q, k, v, causal=False):
    """All-to-all over heads, contiguous tokens."""
    if q.shape[1] % dist.get_world_size():
        raise ValueError("heads need to be a multiple of the ranks")
    q, k, v = (Exchanged.apply(x, True) for x in (q, k, v))
    A = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        A = A.masked_fill(~torch.ones(A.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return Exchanged.apply(A.softmax(-1) @ v, False)


def dies(q, k, v):
    """Rank 2 ends its process, in problems with more than one item."""
    if dist.get_rank() == 2 and len(q) > 1:
        os._exit(3)
    return ring(q, k, v)


def ends_all(q, k, v):
    """A rank ends the process that began it."""
    os.kill(os.getppid(), signal.SIGKILL)


def hangs(q, k, v):
    """Rank 1 never comes to send."""
    while dist.get_rank() == 1:
        pass
    return ring(q, k, v)


def raises(q, k, v):
    """Rank 1 raises, and the others wait for it."""
    if dist.get_rank() == 1:
        raise RuntimeError("no such block")
    return ring(q, k, v)


def whole(q, k, v):
    """Each rank returns the rows of all."""
    return Gathered.apply(gathered(q, k, v))


class Summed(torch.autograd.Function):
    """The same; the way back sums over the ranks, so many times."""

    @staticmethod
    def forward(ctx, x, times):
        ctx.times = times
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dX):
        dX = dX.contiguous().clone()
        for _ in range(ctx.times):
            dist.all_reduce(dX)
        return dX, None


class Cut(torch.autograd.Function):
    """The rows of all ranks; the way back has those of the own queries alone."""

    @staticmethod
    def forward(ctx, x):
        return Gathered.forward(ctx, x)

    @staticmethod
    def backward(ctx, dX):
        return dX.chunk(dist.get_world_size(), -2)[dist.get_rank()]


class RankLayer(torch.nn.Module):
    """Two heads, keys gathered; the gradients of the weights are each rank's own, or what `how` makes of them."""

    def __init__(self, how="part"):
        super().__init__()
        numbers = torch.Generator().manual_seed(5)
        self.how, self.heads = how, 2
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            x = torch.randn(6, 6, generator=numbers, dtype=torch.float64)
            setattr(self, name, torch.nn.Parameter(x / 6**0.5))

    def shared(self, name):
        times = {"sum": 1, "twice": 2, "mean": 1}.get(self.how, int(self.how == "sum but W_Q" and name != "W_Q"))
        W = Summed.apply(getattr(self, name), times)
        return W.detach() + (W - W.detach()) / dist.get_world_size() if self.how == "mean" else W

    def forward(self, x):
        q, k, v = ((x @ self.shared(W)).unflatten(-1, (2, 3)).transpose(1, 2) for W in ("W_Q", "W_K", "W_V"))
        every = Cut if self.how == "own queries" else Gathered
        k, v = every.apply(k), every.apply(v)
        o = (q @ k.mT * 3**-0.5).softmax(-1) @ v
        return o.transpose(1, 2).flatten(2) @ self.shared("W_O")


class HookedLayer(RankLayer):
    """A hook of each weight sums its gradient when it is there."""

    def __init__(self):
        super().__init__()
        for p in self.parameters():
            p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))


def with_sinks(q, k, v, sinks, *, how="part"):
    """A learned sink for each head, once in each row."""
    ranks = dist.get_world_size()
    sinks = Summed.apply(sinks, {"sum": 1, "twice": 2}.get(how, 0))
    sinks = sinks.detach() if how == "lost" else 0 * sinks if how == "unused" else sinks
    sinks = sinks + torch.tensor(float(ranks)).log().to(sinks) if how == "on each rank" else sinks
    k, v = Gathered.apply(k), Gathered.apply(v)
    A = q @ k.mT * q.shape[-1] ** -0.5
    column = sinks.view(1, -1, 1, 1).expand(*A.shape[:3], 1)
    return torch.cat([A, column], -1).softmax(-1)[..., :-1] @ v


def way_back(do, q, k, v, causal=False, *, slip=""):
    """The gradients of a ring, by a function of their own."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(Ring.apply(*leaves, causal, "contiguous", slip), leaves, do)


def with_options(q, k, v, mask=None, bias=None, dropout=0.0):
    """Keys gathered; a boolean mask and a bias of the own queries to all keys, and dropout."""
    k, v = Gathered.apply(k), Gathered.apply(v)
    A = q @ k.mT * q.shape[-1] ** -0.5 + (0 if bias is None else bias)
    A = A if mask is None else A.masked_fill(~mask, -torch.inf)
    P = torch.where(A.isneginf().all(-1, keepdim=True), 0.0, A).softmax(-1)
    P = torch.where(A.isneginf().all(-1, keepdim=True), 0.0, P)
    return torch.nn.functional.dropout(P, dropout) @ v


def always_causal(q, k, v, is_causal=True):
    """Causal whatever it is told."""
    return Ring.apply(q, k, v, True, "contiguous", "")


def causal_or_not(q, k, v, is_causal=True):
    """Causal unless it is told otherwise."""
    return Ring.apply(q, k, v, is_causal, "contiguous", "")


def windowed(q, k, v):
    """Another function than plain attention, the same over any number of ranks: one key back at most."""
    k, v = Gathered.apply(k), Gathered.apply(v)
    at, to = own_positions(q.shape[-2], "contiguous")[:, None], torch.arange(k.shape[-2])
    A = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill((to > at) | (to < at - 1), -torch.inf)
    return A.softmax(-1) @ v


class DyingLayer(RankLayer):
    """Rank 1 ends its process."""

    def forward(self, x):
        import os

        return os._exit(3) if dist.get_rank() == 1 else super().forward(x)


class HangingLayer(RankLayer):
    """Rank 1 never comes."""

    def forward(self, x):
        while dist.get_rank() == 1:
            pass
        return super().forward(x)


def leaking(q, k, v, mask):
    """What is hidden is set to zero after the exponential: infinity there becomes NaN."""
    k, v = Gathered.apply(k), Gathered.apply(v)
    A = q @ k.mT * q.shape[-1] ** -0.5
    E = (A - A.amax(-1, keepdim=True)).exp() * mask
    return E / E.sum(-1, keepdim=True) @ v
