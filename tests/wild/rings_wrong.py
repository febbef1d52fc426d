"""Attention over several processes with one mistake each, as people make it (each written anew). A case's first
sentence says what is wrong, O, dQ, dK, dV or a parameter's gradient, and when."""

import math
import warnings

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
import torch.nn.functional as F
from rings_right import CopyToRegion, rings, weights
from torch import nn

warnings.filterwarnings("ignore", "torch.distributed.nn.functional", FutureWarning)

CASES, case = rings()
ALL = "O", "dQ", "dK", "dV"
GRADIENTS = "dQ", "dK", "dV"
FULL = {"causal": (False,)}


def turn(tensors, by=1):
    """Send the tensors to the next rank and receive those of the one before (by = -1: the other way round)."""
    rank, size = dist.get_rank(), dist.get_world_size()
    received, ops = [torch.empty(t.shape, dtype=t.dtype) for t in tensors], []
    for t, r in zip(tensors, received):
        ops += [dist.P2POp(dist.isend, t.contiguous(), (rank + by) % size),
                dist.P2POp(dist.irecv, r, (rank - by) % size)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return received


class Ring:
    """A ring of keys, right as it stands, for as many tokens on each rank: a case overrides the step that it gets
    wrong. q (b, h, n, d) and k, v (b, g, m, d) are a rank's own."""

    layout = "contiguous"

    def __init__(self, q, k, is_causal, scale):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.is_causal, self.scale = is_causal, q.shape[-1] ** -0.5 if scale is None else scale
        self.n, self.m, self.group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
        self.step = 0

    @classmethod
    def run(cls, q, k, v, is_causal, scale):
        return Through.apply(cls(q, k, is_causal, scale), q, k, v)

    def blocks(self):
        """Whose keys are here at each step."""
        return [(self.rank - step) % self.size for step in range(self.size)]

    def places(self, j, length):
        """Where the tokens of rank j stand in the sequence."""
        at = torch.arange(length)
        if self.layout == "contiguous":
            return j * length + at
        half = length // 2
        return torch.where(at < half, j * half + at, (2 * self.size - 2 - j) * half + at)

    def hidden(self, j):
        """(n, m), which of rank j's keys the rank's own queries may not see"""
        if not self.is_causal:
            return torch.zeros(self.n, self.m, dtype=torch.bool)
        return self.places(j, self.m)[None, :] > self.places(self.rank, self.n)[:, None]

    def scores(self, q, k, j):
        k = k.repeat_interleave(self.group, 1)
        return (q @ k.mT * self.scale).masked_fill(self.hidden(j), -math.inf)

    def part(self, q, k, v, j):
        """The block's output and log-sum-exp; a row that sees nothing has 0 and -inf."""
        s = self.scores(q, k, j)
        L = s.logsumexp(-1)
        return torch.exp(s - L[..., None]).nan_to_num(0) @ v.repeat_interleave(self.group, 1), L

    def merge(self, parts):
        L = torch.stack([L_j for _, L_j in parts]).logsumexp(0)
        return sum(O_j * torch.exp(L_j - L).nan_to_num(0)[..., None] for O_j, L_j in parts), L

    def forward(self, q, k, v):
        parts = []
        for self.step, j in enumerate(self.blocks()):
            parts.append(self.part(q, k, v, j))
            k, v = turn([k, v])
        self.parts = parts
        return self.merge(parts)

    def delta(self, dO, O):
        return (dO * O).sum(-1)

    def over_group(self, x):
        """(b, h, m, d) -> (b, g, m, d)"""
        return x.unflatten(1, (-1, self.group)).sum(2)

    def part_backward(self, dO, q, k, v, O, L, j):
        p = torch.exp(self.scores(q, k, j) - L[..., None]).nan_to_num(0)
        k, v = k.repeat_interleave(self.group, 1), v.repeat_interleave(self.group, 1)
        ds = p * (dO @ v.mT - self.delta(dO, O)[..., None]) * self.scale
        return ds @ k, self.over_group(ds.mT @ q), self.over_group(p.mT @ dO)

    def backward(self, dO, q, k, v, O, L):
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for self.step, j in enumerate(self.blocks()):
            of_q, of_k, of_v = self.part_backward(dO, q, k, v, O, L, j)
            dq, dk, dv = dq + of_q, dk + of_k, dv + of_v
            k, v, dk, dv = self.travel(k, v, dk, dv)
        return dq, dk, dv

    def travel(self, k, v, dk, dv):
        return turn([k, v, dk, dv])


class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ring, q, k, v):
        O, L = ring.forward(q, k, v)
        ctx.ring, ctx.saved = ring, (q, k, v, O.clone(), L)
        return O

    @staticmethod
    def backward(ctx, dO):
        return None, *ctx.ring.backward(dO, *ctx.saved)


# ---------------------------------------------------------------- the output is wrong: which keys are there


@case(wrong=ALL)
def stale_keys(q, k, v, is_causal=False, scale=None):
    """O is wrong and with it dQ, dK, dV: at each step of the forward the rank works with its own keys and values;
    what it receives goes into a buffer that is never swapped in."""
    class Stale(Ring):
        def forward(self, q, k, v):
            return self.merge([self.part(q, k, v, j) for j in self.blocks()])
    return Stale.run(q, k, v, is_causal, scale)


@case(wrong=("O", "dQ", "dK"))
def values_one_step_behind(q, k, v, is_causal=False, scale=None):
    """O is wrong and with it dQ and dK: keys are those of the step, values those of the step before."""
    class Behind(Ring):
        def part(self, q, k, v, j):
            v, self.before = (self.before if self.step else v), v
            return super().part(q, k, v, j)

        def part_backward(self, dO, q, k, v, O, L, j):
            v, self.before = (self.before if self.step else v), v
            return super().part_backward(dO, q, k, v, O, L, j)
    return Behind.run(q, k, v, is_causal, scale)


@case(wrong=ALL)
def one_step_short(q, k, v, is_causal=False, scale=None):
    """O is wrong and with it dQ, dK, dV: the ring stops one step early, the block of the next rank is never seen
    (under a causal mask it is missed by the last rank alone)."""
    class Short(Ring):
        def hidden(self, j):
            return super().hidden(j) | (j == (self.rank + 1) % self.size)
    return Short.run(q, k, v, is_causal, scale)


@case(wrong=ALL, ranks=(3,), causal=(False,), right_with={"ranks": (2, 4)})
def odd_ranks_miss_one(q, k, v, is_causal=False, scale=None):
    """O is wrong and with it dQ, dK, dV where the ranks are odd in number: keys come from both sides, R // 2 steps
    from one and R // 2 - 1 from the other, which leaves a block out if R is odd."""
    class BothSides(Ring):
        def hidden(self, j):
            before, after = self.size // 2, self.size // 2 - 1
            seen = 0 <= (self.rank - j) % self.size <= before or 0 < (j - self.rank) % self.size <= after
            return super().hidden(j) | (not seen)
    return BothSides.run(q, k, v, is_causal, scale)


@case(wrong=ALL, causal=(True,))
def first_received_replaces(q, k, v, is_causal=True, scale=None):
    """O is wrong on all ranks but 0, and with it dQ, dK, dV: under a causal mask the first received block is
    copied over the rank's own part instead of merged; rank 0 receives none that it may see."""
    class Replaces(Ring):
        def merge(self, parts):
            return super().merge(parts[1:] if self.rank else parts)
    return Replaces.run(q, k, v, is_causal, scale)


# ---------------------------------------------------------------- the output is wrong: how parts are merged


@case(wrong=ALL)
def parts_not_rescaled(q, k, v, is_causal=False, scale=None):
    """O is wrong and with it dQ, dK, dV: numerators and sums of the blocks, each under its own greatest score, are
    added without the factors exp(max_j - max)."""
    class NotRescaled(Ring):
        def part(self, q, k, v, j):
            s = self.scores(q, k, j)
            top = s.amax(-1, keepdim=True).nan_to_num(neginf=0)
            p = torch.exp(s - top)
            return p @ v, (p.sum(-1), top[..., 0])

        def merge(self, parts):
            total = sum(l for _, (l, _) in parts)
            return sum(N for N, _ in parts) / total[..., None], total.log() + parts[0][1][1]
    return NotRescaled.run(q, k, v, is_causal, scale)


@case(wrong=("O", "dQ", "dK"))
def parts_averaged(q, k, v, is_causal=False, scale=None):
    """O is wrong and with it dQ and dK (through D): the blocks' outputs are averaged over the ranks instead of
    weighted by their share of the sum."""
    class Averaged(Ring):
        def merge(self, parts):
            return sum(O_j for O_j, _ in parts) / self.size, super().merge(parts)[1]
    return Averaged.run(q, k, v, is_causal, scale)


@case(wrong=("O", "dQ", "dK"), source="https://github.com/vllm-project/vllm/pull/28840")
def merged_to_base_two(q, k, v, is_causal=False, scale=None):
    """O is wrong and with it dQ and dK (through D): the parts' natural log-sum-exps are taken for logarithms to
    base 2 in the merge."""
    class BaseTwo(Ring):
        def merge(self, parts):
            L = torch.stack([L_j for _, L_j in parts])
            share = torch.softmax(L * math.log(2), 0)
            return sum(O_j * w[..., None] for (O_j, _), w in zip(parts, share)), L.logsumexp(0)
    return BaseTwo.run(q, k, v, is_causal, scale)


@case(wrong=ALL, source="https://github.com/ROCm/aiter/pull/3334")
def lse_of_centred_keys(q, k, v, is_causal=False, scale=None):
    """O is wrong and with it dQ, dK, dV: a block's log-sum-exp is that of its keys less their own mean, which
    leaves the block's output as it is but not the blocks' weights."""
    class Centred(Ring):
        def part(self, q, k, v, j):
            O, _ = super().part(q, k, v, j)
            return O, self.scores(q, k - k.mean(2, keepdim=True), j).logsumexp(-1)
    return Centred.run(q, k, v, is_causal, scale)


@case(wrong=ALL, source="https://github.com/HKUSTDial/flash-sparse-attention/pull/106")
def lse_scaled_twice(q, k, v, is_causal=False, scale=None):
    """O is wrong and with it dQ, dK, dV: the greatest score, scaled already, is scaled again in a block's
    log-sum-exp."""
    class ScaledTwice(Ring):
        def part(self, q, k, v, j):
            O, L = super().part(q, k, v, j)
            top = self.scores(q, k, j).amax(-1)
            return O, torch.where(top.isinf(), top, L - top + top * self.scale)
    return ScaledTwice.run(q, k, v, is_causal, scale)


@case(wrong=ALL, causal=(False,), source="https://github.com/zhuzilin/ring-flash-attention/issues/20")
def lses_added(q, k, v, is_causal=False, scale=None):
    """O is wrong and with it dQ, dK, dV: two log-sum-exps are merged by their sum instead of the logarithm of the
    sum of their exponentials."""
    class Added(Ring):
        def merge(self, parts):
            O, L = parts[0]
            for O_j, L_j in parts[1:]:
                new = L + L_j
                O, L = torch.exp(L - new)[..., None] * O + torch.exp(L_j - new)[..., None] * O_j, new
            return O, L
    return Added.run(q, k, v, is_causal, scale)


@case(wrong=ALL, causal=(False,), large=True, right_with={"large": (False,)},
      source="https://github.com/NVIDIA/TransformerEngine/pull/716")
def lse_overflows(q, k, v, is_causal=False, scale=None):
    """O and with it dQ, dK, dV are not finite or 0 where scores are in the hundreds: log(exp(a) + exp(b)) of the
    parts overflows."""
    class Overflows(Ring):
        def merge(self, parts):
            L = torch.log(sum(torch.exp(L_j) for _, L_j in parts))
            return sum(O_j * torch.exp(L_j - L)[..., None] for O_j, L_j in parts), L
    return Overflows.run(q, k, v, is_causal, scale)


@case(wrong=ALL, causal=(True,), right_with=FULL, source="https://github.com/vllm-project/vllm/pull/39148")
def hidden_block_gives_nan(q, k, v, is_causal=False, scale=None):
    """O is NaN under a causal mask, and with it dQ, dK, dV: the running log-sum-exp starts at -inf, and a block of
    which a row sees nothing is merged first, exp(-inf + inf)."""
    class NotGuarded(Ring):
        def merge(self, parts):
            O, L = torch.zeros_like(parts[0][0]), torch.full_like(parts[0][1], -math.inf)
            for O_j, L_j in parts[1:] + parts[:1]:
                top = torch.maximum(L, L_j)
                new = top + torch.log(torch.exp(L - top) + torch.exp(L_j - top))
                O = O * torch.exp(L - new)[..., None] + O_j * torch.exp(L_j - new)[..., None]
                L = new
            return O, L

        def part_backward(self, dO, q, k, v, O, L, j):
            return (x + 0 * L.sum() for x in super().part_backward(dO, q, k, v, O, L, j))
    return NotGuarded.run(q, k, v, is_causal, scale)


@case(wrong=ALL, causal=(True,), right_with=FULL, source="https://github.com/pytorch/pytorch/pull/134650")
def hidden_block_weighs_one(q, k, v, is_causal=False, scale=None):
    """O is wrong under a causal mask, and with it dQ, dK, dV: the log-sum-exp of a row that sees nothing of a
    block is 0 and not -inf, so that the hidden block weighs exp(0)."""
    class Zero(Ring):
        def part(self, q, k, v, j):
            O, L = super().part(q, k, v, j)
            return O, L.nan_to_num(neginf=0)
    return Zero.run(q, k, v, is_causal, scale)


@case(wrong=ALL)
def scale_once_per_rank(q, k, v, is_causal=False, scale=None):
    """O is wrong and with it dQ, dK, dV: queries are scaled in place at each step, so that the block that comes t
    steps later has the scale to the power t + 1."""
    class Again(Ring):
        def scores(self, q, k, j):
            return super().scores(q * self.scale ** self.step, k, j)
    return Again.run(q, k, v, is_causal, scale)


@case(wrong=ALL, given_scale=True, right_with={"given_scale": (False,)})
def given_scale_ignored(q, k, v, is_causal=False, scale=None):
    """O, dQ, dK and dV are wrong where a scale is given: 1 / sqrt(d) is taken all the same."""
    return Ring.run(q, k, v, is_causal, None)


# ---------------------------------------------------------------- the output is wrong: the causal rule


@case(wrong=ALL, causal=(True,), right_with=FULL,
      source="https://github.com/zhuzilin/ring-flash-attention/issues/54")
def causal_by_local_positions(q, k, v, is_causal=False, scale=None):
    """O is wrong under a causal mask, and with it dQ, dK, dV: every block is masked by the positions within the
    rank, earlier ones too much and later ones too little."""
    class Local(Ring):
        def hidden(self, j):
            return super().hidden(self.rank)
    return Local.run(q, k, v, is_causal, scale)


@case(wrong=ALL, causal=(True,), right_with=FULL)
def earlier_blocks_triangular(q, k, v, is_causal=False, scale=None):
    """O is wrong under a causal mask on all ranks but 0, and with it dQ, dK, dV: later blocks are skipped as they
    should be, but earlier ones are masked as if on the diagonal."""
    class Triangular(Ring):
        def hidden(self, j):
            return super().hidden(self.rank) | super().hidden(j)
    return Triangular.run(q, k, v, is_causal, scale)


@case(wrong=ALL, causal=(True,), right_with=FULL)
def later_blocks_seen(q, k, v, is_causal=False, scale=None):
    """O is wrong under a causal mask on all ranks but the last, and with it dQ, dK, dV: the diagonal block alone
    is masked, blocks of later ranks are attended whole."""
    class Later(Ring):
        def hidden(self, j):
            return super().hidden(j) & (j == self.rank)
    return Later.run(q, k, v, is_causal, scale)


@case(wrong=ALL, causal=(True,), right_with=FULL)
def diagonal_block_skipped(q, k, v, is_causal=False, scale=None):
    """O is wrong under a causal mask, and with it dQ, dK, dV: blocks j < rank are attended in place of j <= rank;
    rank 0 sees nothing and has zeros."""
    class Skipped(Ring):
        def hidden(self, j):
            return super().hidden(j) | (self.is_causal and j == self.rank)
    return Skipped.run(q, k, v, is_causal, scale)


@case(wrong=ALL)
def own_block_twice(q, k, v, is_causal=False, scale=None):
    """O is wrong and with it dQ, dK, dV: the rank's own block is the start of the accumulators and is merged once
    more in the ring's first step (on rank 0 under a causal mask that changes O nowhere, but its gradients)."""
    class Twice(Ring):
        def merge(self, parts):
            return super().merge([parts[0], *parts])
    return Twice.run(q, k, v, is_causal, scale)


@case(wrong=ALL, causal=(True,), right_with=FULL)
def strict_off_rank_zero(q, k, v, is_causal=False, scale=None):
    """O is wrong under a causal mask on all ranks but 0, and with it dQ, dK, dV: keys at the query's own position
    are hidden there (j < i in place of j <= i)."""
    class Strict(Ring):
        def hidden(self, j):
            if not self.is_causal or self.rank == 0:
                return super().hidden(j)
            return self.places(j, self.m)[None, :] >= self.places(self.rank, self.n)[:, None]
    return Strict.run(q, k, v, is_causal, scale)


@case(wrong=ALL, layout="zigzag", causal=(True,), right_with=FULL)
def zigzag_second_half_next(q, k, v, is_causal=False, scale=None):
    """O is wrong under a causal mask with zigzag tokens, and with it dQ, dK, dV: the queries' second half is
    thought to stand right after the first, at an offset of contiguous parts."""
    class Next(Ring):
        layout = "zigzag"

        def hidden(self, j):
            if not self.is_causal:
                return super().hidden(j)
            rows = self.rank * (self.n // 2) + torch.arange(self.n)
            return self.places(j, self.m)[None, :] > rows[:, None]
    return Next.run(q, k, v, is_causal, scale)


@case(wrong=ALL, layout="zigzag", causal=(True,), right_with=FULL)
def zigzag_masked_as_contiguous(q, k, v, is_causal=False, scale=None):
    """O is wrong under a causal mask with zigzag tokens, and with it dQ, dK, dV: the mask is that of contiguous
    tokens."""
    return Ring.run(q, k, v, is_causal, scale)


@case(wrong=ALL, layout="zigzag", causal=(True,), right_with=FULL)
def zigzag_wrong_half_of_keys(q, k, v, is_causal=False, scale=None):
    """O is wrong under a causal mask with zigzag tokens, and with it dQ, dK, dV: of an earlier rank's keys the
    second half is taken instead of the first."""
    class WrongHalf(Ring):
        layout = "zigzag"

        def hidden(self, j):
            first = torch.arange(self.m) < self.m // 2
            return first.expand(self.n, -1) if self.is_causal and j < self.rank else super().hidden(j)
    return WrongHalf.run(q, k, v, is_causal, scale)


# ---------------------------------------------------------------- the output is right, a gradient is not


@case(wrong=GRADIENTS, source="https://github.com/huggingface/diffusers/issues/14265")
def first_steps_keys_in_backward(q, k, v, is_causal=False, scale=None):
    """dQ, dK and dV are wrong, O is right: each step of the backward works with the keys and values saved at the
    first step, the rank's own; those received are not handed on."""
    class FirstStep(Ring):
        def part_backward(self, dO, q, k, v, O, L, j):
            self.own = (k, v) if self.step == 0 else self.own
            return super().part_backward(dO, q, *self.own, O, L, j)
    return FirstStep.run(q, k, v, is_causal, scale)


@case(wrong=GRADIENTS, layout="zigzag", causal=(True,), right_with=FULL,
      source="https://github.com/NVIDIA/TransformerEngine/issues/1557 (what was off is not told; imagined)")
def halves_in_order_of_forward(q, k, v, is_causal=False, scale=None):
    """dQ, dK and dV are wrong under a causal mask, O is right: backward begins with the keys that came last, but
    picks halves and masks in the order of the forward."""
    class Forward(Ring):
        layout = "zigzag"

        def backward(self, dO, q, k, v, O, L):
            dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
            for j in self.blocks():
                k, v, dk, dv = turn([k, v, dk, dv], -1)
                of_q, of_k, of_v = self.part_backward(dO, q, k, v, O, L, j)
                dq, dk, dv = dq + of_q, dk + of_k, dv + of_v
            return dq, dk, dv
    return Forward.run(q, k, v, is_causal, scale)


@case(wrong=("dK", "dV"), layout="zigzag", causal=(True,), right_with=FULL,
      source="https://github.com/NVIDIA/TransformerEngine/issues/1054 (suspected there)")
def half_copied_not_added(q, k, v, is_causal=False, scale=None):
    """dK and dV of one rank's first half are wrong under a causal mask, O and dQ are right: at the ring's last
    step the last rank copies its part over the first half of the accumulators instead of adding it."""
    class Copied(Ring):
        layout = "zigzag"

        def travel(self, k, v, dk, dv):
            k, v, dk, dv = super().travel(k, v, dk, dv)
            if self.is_causal and self.step == self.size - 2 and self.rank == self.size - 1:
                dk[:, :, : self.m // 2] = dv[:, :, : self.m // 2] = 0
            return k, v, dk, dv
    return Copied.run(q, k, v, is_causal, scale)


@case(wrong=("dK", "dV"))
def gradients_not_sent_home(q, k, v, is_causal=False, scale=None):
    """dK and dV are wrong, O and dQ are right: after the last step the accumulators stay where they are, on the
    rank before their own; each rank returns those of the next one."""
    class Stay(Ring):
        def backward(self, dO, q, k, v, O, L):
            dq, dk, dv = super().backward(dO, q, k, v, O, L)
            return dq, *turn([dk, dv], -1)
    return Stay.run(q, k, v, is_causal, scale)


@case(wrong=("dK", "dV"))
def gradients_added_a_step_late(q, k, v, is_causal=False, scale=None):
    """dK and dV are wrong, O and dQ are right: the accumulators have gone on before the step's part is added,
    which so belongs to the next rank's keys."""
    class Late(Ring):
        def backward(self, dO, q, k, v, O, L):
            dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
            for self.step, j in enumerate(self.blocks()):
                of_q, of_k, of_v = self.part_backward(dO, q, k, v, O, L, j)
                k, v, dk, dv = turn([k, v, dk, dv])
                dq, dk, dv = dq + of_q, dk + of_k, dv + of_v
            return dq, dk, dv
    return Late.run(q, k, v, is_causal, scale)


@case(wrong=("dK", "dV"))
def gradients_added_a_step_early(q, k, v, is_causal=False, scale=None):
    """dK and dV are wrong, O and dQ are right: the accumulators set out one step after their keys, so that a part
    is added to those of the rank's keys that came a step later."""
    class Early(Ring):
        def travel(self, k, v, dk, dv):
            dk, dv = turn([dk, dv]) if self.step else (dk, dv)
            dk, dv = turn([dk, dv]) if self.step == self.size - 1 else (dk, dv)
            return *turn([k, v]), dk, dv
    return Early.run(q, k, v, is_causal, scale)


@case(wrong=("dK", "dV"), ranks=(3, 4), right_with={"ranks": (2,)})
def gradients_go_the_other_way(q, k, v, is_causal=False, scale=None):
    """dK and dV are wrong with three or more ranks, O and dQ are right: the accumulators travel against the
    direction of their keys."""
    class Other(Ring):
        def travel(self, k, v, dk, dv):
            return *turn([k, v]), *turn([dk, dv], -1)
    return Other.run(q, k, v, is_causal, scale)


@case(wrong=("dK", "dV"))
def rank_zeros_keys_forgotten(q, k, v, is_causal=False, scale=None):
    """dK and dV of rank 0 are 0, all else is right: parts are added `if j`, which leaves out the block with number
    0."""
    class Falsy(Ring):
        def part_backward(self, dO, q, k, v, O, L, j):
            of_q, of_k, of_v = super().part_backward(dO, q, k, v, O, L, j)
            return (of_q, of_k, of_v) if j else (of_q, 0 * of_k, 0 * of_v)
    return Falsy.run(q, k, v, is_causal, scale)


@case(wrong=("dQ",))
def dq_of_last_step(q, k, v, is_causal=False, scale=None):
    """dQ is wrong, O, dK and dV are right: each step overwrites dQ, that of the last step is returned (under a
    causal mask it is 0 on all ranks but the last)."""
    class Last(Ring):
        def part_backward(self, dO, q, k, v, O, L, j):
            of_q, of_k, of_v = super().part_backward(dO, q, k, v, O, L, j)
            return of_q * (self.step == self.size - 1), of_k, of_v
    return Last.run(q, k, v, is_causal, scale)


@case(wrong=("dQ",))
def dq_summed_over_ranks(q, k, v, is_causal=False, scale=None):
    """dQ is wrong, O, dK and dV are right: it is all-reduced, as if each rank had a part of the same queries."""
    class Summed(Ring):
        def backward(self, dO, q, k, v, O, L):
            dq, dk, dv = super().backward(dO, q, k, v, O, L)
            dist.all_reduce(dq)
            return dq, dk, dv
    return Summed.run(q, k, v, is_causal, scale)


@case(wrong=("dQ", "dK"))
def delta_of_the_part(q, k, v, is_causal=False, scale=None):
    """dQ and dK are wrong, O and dV are right: D is the row sum of dO times the block's own output, with the whole
    log-sum-exp."""
    class OfPart(Ring):
        def delta(self, dO, O):
            return (dO * self.parts[self.step][0]).sum(-1)
    return OfPart.run(q, k, v, is_causal, scale)


@case(wrong=("dQ", "dK"))
def delta_of_half_the_columns(q, k, v, is_causal=False, scale=None):
    """dQ and dK are wrong, O and dV are right: D is summed over the first half of the output's columns."""
    class Half(Ring):
        def delta(self, dO, O):
            return (dO * O)[..., : O.shape[-1] // 2].sum(-1)
    return Half.run(q, k, v, is_causal, scale)


@case(wrong=GRADIENTS)
def lse_of_the_part_in_backward(q, k, v, is_causal=False, scale=None):
    """dQ, dK and dV are wrong, O is right: backward takes the block's own log-sum-exp in place of the whole
    one."""
    class OfPart(Ring):
        def part_backward(self, dO, q, k, v, O, L, j):
            return super().part_backward(dO, q, k, v, O, self.parts[self.step][1], j)
    return OfPart.run(q, k, v, is_causal, scale)


@case(wrong=("dQ", "dK"), source="https://github.com/tenstorrent/tt-metal/issues/53205")
def backward_by_weighted_parts(q, k, v, is_causal=False, scale=None):
    """dQ and dK are wrong, O and dV are right: each block's backward has its own output and log-sum-exp and dO
    times exp(L_j - L), which leaves D to the block and drops the way through the weights."""
    class Weighted(Ring):
        def part_backward(self, dO, q, k, v, O, L, j):
            O_j, L_j = self.parts[self.step]
            return super().part_backward(dO * torch.exp(L_j - L)[..., None], q, k, v, O_j, L_j, j)
    return Weighted.run(q, k, v, is_causal, scale)


@case(wrong=("dK", "dV"), source="https://github.com/zhuzilin/ring-flash-attention/issues/42 (the worry)")
def accumulators_in_bfloat16(q, k, v, is_causal=False, scale=None):
    """dK and dV are right to about three digits alone, O and dQ are right: their accumulators travel in
    bfloat16."""
    class Rounded(Ring):
        def travel(self, k, v, dk, dv):
            k, v, dk, dv = turn([k, v, dk.bfloat16(), dv.bfloat16()])
            return k, v, dk.to(k.dtype), dv.to(v.dtype)
    return Rounded.run(q, k, v, is_causal, scale)


@case(wrong=("dK", "dV"), heads=((4, 2), (4, 1)), right_with={"heads": ((4, 4),)})
def first_head_of_the_group(q, k, v, is_causal=False, scale=None):
    """dK and dV are wrong where query heads share keys, O and dQ are right: the gradient of the group's first head
    is taken, not the sum."""
    class First(Ring):
        def over_group(self, x):
            return x[:, :: self.group]
    return First.run(q, k, v, is_causal, scale)


@case(wrong=GRADIENTS, source="https://github.com/mindspore-lab/mindone/pull/1438 (a review)")
def gradient_of_output_ignored(q, k, v, is_causal=False, scale=None):
    """dQ, dK and dV are wrong, O is right: backward differentiates the sum of the output, dO is not used."""
    class Ones(Ring):
        def backward(self, dO, *saved):
            return super().backward(torch.ones_like(dO), *saved)
    return Ones.run(q, k, v, is_causal, scale)


@case(wrong=("dK",))
def dk_not_scaled(q, k, v, is_causal=False, scale=None):
    """dK is wrong by the factor 1 / scale, O, dQ and dV are right: of the two products with dS one is scaled."""
    class Unscaled(Ring):
        def part_backward(self, dO, q, k, v, O, L, j):
            of_q, of_k, of_v = super().part_backward(dO, q, k, v, O, L, j)
            return of_q, of_k / self.scale, of_v
    return Unscaled.run(q, k, v, is_causal, scale)


@case(wrong=GRADIENTS, causal=(True,), right_with=FULL)
def no_mask_in_backward(q, k, v, is_causal=False, scale=None):
    """dQ, dK and dV are wrong under a causal mask, O is right: backward recomputes the weights without it."""
    class NoMask(Ring):
        def backward(self, *given):
            self.is_causal = False
            return super().backward(*given)
    return NoMask.run(q, k, v, is_causal, scale)


# ---------------------------------------------------------------- keys gathered


class Gather(torch.autograd.Function):
    """Gather along the sequence; `back` makes the rank's gradient of the gathered one."""

    @staticmethod
    def forward(ctx, x, back):
        ctx.back, parts = back, [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=2)

    @staticmethod
    def backward(ctx, grad):
        return ctx.back(grad.contiguous()), None


def own_slice(grad):
    return grad.chunk(dist.get_world_size(), dim=2)[dist.get_rank()]


def summed_slice(grad):
    dist.all_reduce(grad)
    return own_slice(grad)


def attend_whole(q, k, v, is_causal, scale, first, sinks=None):
    """The rank's queries, from place `first` on, against all keys."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 + first), -math.inf)
    if sinks is not None:
        s = torch.cat([s, sinks.view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
        return s.softmax(-1)[..., :-1] @ v
    return s.softmax(-1) @ v


def by_gather(q, k, v, is_causal, scale, back, sinks=None):
    first = dist.get_rank() * q.shape[2]
    return attend_whole(q, Gather.apply(k, back), Gather.apply(v, back), is_causal, scale, first, sinks)


def parts_of(k, q):
    """How many keys each rank has, and where the rank's own queries begin."""
    lengths = [torch.empty(2, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([k.shape[2], q.shape[2]]))
    return [int(x[0]) for x in lengths], sum(int(x[1]) for x in lengths[: dist.get_rank()])


@case(wrong=("dK", "dV"), source="https://github.com/pytorch/xla/issues/5784")
def gather_gives_own_slice(q, k, v, is_causal=False, scale=None):
    """dK and dV are wrong, O and dQ are right: the backward of all_gather cuts the rank's own slice out of the
    rank's own gradient, what other ranks' queries give is lost."""
    return by_gather(q, k, v, is_causal, scale, own_slice)


@case(wrong=("dK", "dV"), source="https://github.com/ByteDance-Seed/VeOmni/pull/1120 (a review)")
def gathered_gradient_averaged(q, k, v, is_causal=False, scale=None):
    """dK and dV are too small by the number of ranks, O and dQ are right: the gradients of the gathered keys are
    averaged over the ranks, not summed."""
    return by_gather(q, k, v, is_causal, scale, lambda grad: summed_slice(grad) / dist.get_world_size())


@case(wrong=("dK", "dV"), source="https://github.com/pytorch/pytorch/issues/120386")
def reduced_gradient_lost(q, k, v, is_causal=False, scale=None):
    """dK and dV are what the buffer held, here 0, O and dQ are right: the reduce-scatter works on a copy of the
    gradient's buffer, which is returned untouched."""
    def into_a_copy(grad):
        buffer = torch.zeros_like(own_slice(grad))
        buffer.clone().copy_(summed_slice(grad))
        return buffer
    return by_gather(q, k, v, is_causal, scale, into_a_copy)


@case(wrong=("dK",), source="torch 2.13, torch.distributed.nn.functional.all_gather under gloo")
def reduced_gradient_permuted(q, k, v, is_causal=False, scale=None):
    """dK is wrong, O, dQ and dV are right: its gradient is a transposed view, the received numbers are laid into
    memory of the same strides as if they were those of a contiguous tensor."""
    def laid_down(grad):
        received = torch.empty_like(own_slice(grad.mT.contiguous().mT))
        torch.as_strided(received, (received.numel(),), (1,)).copy_(summed_slice(grad).flatten())
        return received
    first = dist.get_rank() * q.shape[2]
    return attend_whole(q, Gather.apply(k, laid_down), Gather.apply(v, summed_slice), is_causal, scale, first)


@case(wrong=("dK", "dV"))
def slice_of_the_next_rank(q, k, v, is_causal=False, scale=None):
    """dK and dV are wrong, O and dQ are right: of the summed gradient each rank takes the slice of the next
    one."""
    def next_slice(grad):
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size(), dim=2)[(dist.get_rank() + 1) % dist.get_world_size()]
    return by_gather(q, k, v, is_causal, scale, next_slice)


@case(wrong=("dQ", "dK"), source="https://github.com/Dao-AILab/flash-attention/issues/1817")
def weights_of_the_merge_constant(q, k, v, is_causal=False, scale=None):
    """dQ and dK are wrong, O and dV are right: the blocks are differentiated one by one, their log-sum-exps give
    no gradient, as if the weights of the merge were constants."""
    own = Ring(q, k, is_causal, scale)
    keys, values = (Gather.apply(x, summed_slice).chunk(own.size, dim=2) for x in (k, v))
    parts = []
    for j in range(own.size):
        s = (q @ keys[j].mT * own.scale).masked_fill(own.hidden(j), -1e30)
        L = s.logsumexp(-1, keepdim=True)
        parts.append((torch.exp(s - L) @ values[j], L.detach()))
    share = torch.stack([L for _, L in parts]).softmax(0)
    return sum(O * w for (O, _), w in zip(parts, share))


@case(wrong=ALL, lengths=((19, 19), (19, 23)), right_with={"lengths": ((24, 24),)},
      source="https://github.com/NVIDIA/TransformerEngine/issues/1930")
def rest_of_the_keys_dropped(q, k, v, is_causal=False, scale=None):
    """O, dQ, dK and dV are wrong where the lengths do not divide by the ranks: each rank gives as many keys as the
    shortest part has, what is over is dropped."""
    keys, first = parts_of(k, q)
    k, v = (Gather.apply(x[:, :, : min(keys)], summed_slice) for x in (k, v))
    return attend_whole(q, k, v, is_causal, scale, first)


@case(wrong=ALL, causal=(False,), lengths=((19, 19), (19, 23)), right_with={"lengths": ((24, 24),)},
      source="https://github.com/NVIDIA/Megatron-LM/issues/1669")
def padded_keys_attended(q, k, v, is_causal=False, scale=None):
    """O, dQ, dK and dV are wrong where the lengths do not divide by the ranks: parts are padded by zeros to the
    longest, and the padded keys are attended."""
    keys, first = parts_of(k, q)
    k, v = (Gather.apply(F.pad(x, (0, 0, 0, max(keys) - x.shape[2])), summed_slice) for x in (k, v))
    return attend_whole(q, k, v, is_causal, scale, first)


# ---------------------------------------------------------------- Ulysses


class Trade(torch.autograd.Function):
    """Part of dimension `give` to each rank, dimension `take` put together; x (b, h, s, d)."""

    @staticmethod
    def move(x, give, take):
        sent = torch.stack(x.chunk(dist.get_world_size(), dim=give)).contiguous()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        return torch.cat(received.unbind(0), dim=take)

    @staticmethod
    def forward(ctx, x, give, take):
        ctx.ways = take, give
        return Trade.move(x, give, take)

    @staticmethod
    def backward(ctx, grad):
        return Trade.move(grad, *ctx.ways), None, None


class TradeOneWay(Trade):
    @staticmethod
    def backward(ctx, grad):
        give, take = ctx.ways
        return torch.cat(grad.chunk(dist.get_world_size(), dim=give), dim=take), None, None


def by_heads(q, k, v, is_causal, scale, trade=Trade.apply):
    q, k, v = (trade(x, 1, 2) for x in (q, k, v))
    return trade(attend_whole(q, k, v, is_causal, scale, 0), 2, 1)


@case(wrong=ALL, heads=((12, 12),))
def heads_in_wrong_order(q, k, v, is_causal=False, scale=None):
    """O is wrong and with it dQ, dK, dV: on the way back the ranks' heads are put together from the last rank to
    the first."""
    q, k, v = (Trade.apply(x, 1, 2) for x in (q, k, v))
    out = Trade.apply(attend_whole(q, k, v, is_causal, scale, 0), 2, 1)
    return torch.cat(out.chunk(dist.get_world_size(), dim=1)[::-1], dim=1)


@case(wrong=ALL, heads=((12, 12),), order="bshd", source="https://github.com/deepspeedai/DeepSpeed/issues/5808")
def batch_mixed_with_sequence(q, k, v, is_causal=False, scale=None):
    """O, dQ, dK and dV are wrong with more than one in the batch: what comes from the all-to-all, ranks first, is
    read as if the batch came first."""
    def to_heads(x):
        b, s, h, d = x.shape
        size = dist.get_world_size()
        sent = x.reshape(b, s, size, h // size, d).permute(2, 0, 1, 3, 4).contiguous()
        received = dist_nn.all_to_all_single(torch.empty_like(sent), sent)
        return received.reshape(b, size * s, h // size, d).transpose(1, 2)

    b, s, h, d = q.shape
    out = attend_whole(*(to_heads(x) for x in (q, k, v)), is_causal, scale, 0).transpose(1, 2)
    sent = out.reshape(dist.get_world_size(), b, s, -1, out.shape[-1]).contiguous()
    return dist_nn.all_to_all_single(torch.empty_like(sent), sent).permute(1, 2, 0, 3, 4).reshape(b, s, h, -1)


@case(wrong=ALL, heads=((12, 2), (12, 6)), right_with={"heads": ((12, 12), (12, 1))},
      source="https://github.com/apple/axlearn/pull/842 (the order of repeated heads)")
def shared_heads_tiled(q, k, v, is_causal=False, scale=None):
    """O, dQ, dK and dV are wrong where query heads share keys (other than all of them): before the all-to-all the
    keys' heads are tiled, 0 1 0 1, instead of repeated, 0 0 1 1."""
    k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
    return by_heads(q, k, v, is_causal, scale)


@case(wrong=ALL, heads=((12, 12),), layout="zigzag", causal=(True,), right_with=FULL,
      source="https://github.com/feifeibear/long-context-attention/issues/53")
def zigzag_tokens_not_ordered(q, k, v, is_causal=False, scale=None):
    """O, dQ, dK and dV are wrong under a causal mask with zigzag tokens: after the all-to-all they are attended in
    the order of the ranks, not of the sequence."""
    return by_heads(q, k, v, is_causal, scale)


@case(wrong=GRADIENTS, heads=((12, 12),))
def gradient_not_traded_back(q, k, v, is_causal=False, scale=None):
    """dQ, dK and dV are wrong, O is right: the backward of the all-to-all brings the gradient into shape without
    sending it anywhere."""
    return by_heads(q, k, v, is_causal, scale, TradeOneWay.apply)


# ---------------------------------------------------------------- replicated parameters


SINKS = {"parameters": ("sinks",), "gradient_of_parameters": "sum"}


@case(wrong=(*ALL, "sinks"), **SINKS, source="https://github.com/InternLM/lmdeploy/pull/3951 (a review)")
def sink_on_every_rank(q, k, v, sinks, is_causal=False, scale=None):
    """O is wrong and with it dQ, dK, dV and the sinks' gradient: the sink (h,) enters each block's log-sum-exp and
    so counts as often as there are ranks."""
    times = math.log(dist.get_world_size())
    return by_gather(q, k, v, is_causal, scale, summed_slice, CopyToRegion.apply(sinks) + times)


@case(wrong=(*ALL, "sinks"), **SINKS, source="https://github.com/NVIDIA/TransformerEngine/pull/3551")
def sink_left_out(q, k, v, sinks, is_causal=False, scale=None):
    """O is wrong and with it dQ, dK, dV, and the sinks' gradient is 0: the ring takes the sinks (h,) and does not
    hand them to its blocks."""
    return Ring.run(q, k, v, is_causal, scale) + 0 * CopyToRegion.apply(sinks).sum()


@case(wrong=("sinks",), **SINKS)
def sink_gradient_not_summed(q, k, v, sinks, is_causal=False, scale=None):
    """The sinks' gradient (h,), said to be summed over the ranks, is that of the rank's own rows; all else is
    right."""
    return by_gather(q, k, v, is_causal, scale, summed_slice, sinks)


@case(wrong=("sinks",), **SINKS)
def sink_gradient_summed_twice(q, k, v, sinks, is_causal=False, scale=None):
    """The sinks' gradient (h,) is too large by the number of ranks: it is summed over them twice; all else is
    right."""
    return by_gather(q, k, v, is_causal, scale, summed_slice, CopyToRegion.apply(CopyToRegion.apply(sinks)))


@case(wrong=("temperature",), parameters=("temperature",), gradient_of_parameters="sum",
      source="https://github.com/deepspeedai/DeepSpeed/issues/5248 (the other way round)")
def temperature_averaged(q, k, v, temperature, is_causal=False, scale=None):
    """The gradient of the heads' temperature (h,), said to be summed, is averaged over the ranks, too small by
    their number; all else is right."""
    temperature = CopyToRegion.apply(temperature)
    temperature = temperature.detach() + (temperature - temperature.detach()) / dist.get_world_size()
    return by_gather(q * temperature.view(1, -1, 1, 1), k, v, is_causal, scale, summed_slice)


class Layer(nn.Module):
    """Grouped heads on each rank's tokens; keys gathered. Right as it stands, the weights' gradients in parts."""

    back = staticmethod(summed_slice)

    def __init__(self, d_model=16, heads=4, groups=2, d=4, is_causal=True):
        super().__init__()
        self.heads, self.groups, self.d, self.is_causal = heads, groups, d, is_causal
        self.W_Q, self.W_K, self.W_V, self.W_O = weights(
            (d_model, heads * d), (d_model, groups * d), (d_model, groups * d), (heads * d, d_model), seed=3)

    def matrices(self):
        return self.W_Q, self.W_K, self.W_V, self.W_O

    def split(self, x):
        return x.unflatten(-1, (-1, self.d)).transpose(1, 2)

    def forward(self, x):
        W_Q, W_K, W_V, W_O = self.matrices()
        q, k, v = (self.split(x @ W) for W in (W_Q, W_K, W_V))
        return by_gather(q, k, v, self.is_causal, self.d ** -0.5, self.back).transpose(1, 2).flatten(2) @ W_O


LAYER = {"parameters": ("W_Q", "W_K", "W_V", "W_O"), "causal": (True,)}


@case(wrong=("W_K", "W_V"), **LAYER, gradient_of_parameters="sum")
class LayerHalfSummed(Layer):
    """The gradients of W_K and W_V, said to be summed, are each rank's own part; those of W_Q and W_O are summed,
    x's is right."""

    def matrices(self):
        return CopyToRegion.apply(self.W_Q), self.W_K, self.W_V, CopyToRegion.apply(self.W_O)


@case(wrong=("W_Q", "W_K", "W_V", "W_O"), **LAYER, gradient_of_parameters="part")
class LayerSummedForTrainer(Layer):
    """The weights' gradients, said to be the rank's own part, are summed already, so that the trainer's sum is too
    large by the number of ranks; x's is right."""

    def matrices(self):
        return [CopyToRegion.apply(W) for W in super().matrices()]


@case(wrong=("dX", "W_K", "W_V"), **LAYER, gradient_of_parameters="part")
class LayerOwnSlice(Layer):
    """The gradients of W_K, W_V and x are wrong, O and those of W_Q and W_O are right: gathered keys give back the
    rank's own slice of its own gradient."""

    back = staticmethod(own_slice)


@case(wrong=("dX",), **LAYER, gradient_of_parameters="part",
      source="https://github.com/NVIDIA/Megatron-LM/issues/3816")
class LayerInputGathered(Layer):
    """The gradient of x is wrong, O and the weights' are right: x is gathered before W_K and W_V by an all_gather
    that gives back the rank's own slice of its own gradient."""

    def forward(self, x):
        whole = Gather.apply(x[:, None], own_slice)[:, 0]
        q, k, v = (self.split(y @ W) for y, W in ((x, self.W_Q), (whole, self.W_K), (whole, self.W_V)))
        out = attend_whole(q, k, v, True, None, dist.get_rank() * x.shape[1])
        return out.transpose(1, 2).flatten(2) @ self.W_O
