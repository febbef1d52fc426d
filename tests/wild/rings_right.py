"""Right attention over several processes, each with its own tokens, in the styles of today's public code (each
written anew). The default process group stands; a case is called on every rank at the same time."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
import torch.nn.functional as F
from torch import nn

warnings.filterwarnings("ignore", "torch.distributed.nn.functional", FutureWarning)


@dataclass(frozen=True)
class RingCase:
    """One implementation and what it takes. In `lengths` stand whole sequences (n, m) and in `heads` (h, g), all
    of which it takes with each of its numbers of ranks; under a causal mask m = n."""

    name: str
    function: Callable    # f(q, k, v, *parameters, is_causal, scale); of a layer, a class whose forward takes x
    sentence: str
    layout: str = "contiguous"
    order: str = "bhsd"    # or bshd; a layer has x (b, n_r, d_model)
    ranks: tuple[int, ...] = (2, 3, 4)
    causal: tuple[bool, ...] = (False, True)
    lengths: tuple[tuple[int, int], ...] = ((24, 24),)
    heads: tuple[tuple[int, int], ...] = ((4, 4),)
    parameters: tuple[str, ...] = ()    # replicated; of a function each (h,)
    gradient_of_parameters: str = ""    # "part": each rank's own part, to be summed; "sum": summed already
    large: bool = False    # scores of some thousands are needed to see it
    given_scale: bool = False    # a scale other than 1 / sqrt(d) is needed to see it
    wrong: tuple[str, ...] = ()    # of O, dQ, dK, dV (of a layer dX) and the parameters' names, what is wrong
    right_with: dict = field(default_factory=dict)    # settings in which the mistake does not show
    source: str = ""


def rings():
    """A dictionary of cases by name, and the decorator that puts a function or class among them."""
    cases = {}

    def case(**data):
        def put(function):
            sentence = " ".join(function.__doc__.split())
            cases[function.__name__] = RingCase(function.__name__, function, sentence, **data)
            return function
        return put
    return cases, case


CASES, case = rings()


# ---------------------------------------------------------------- a ring, gradients travel with their keys


def shift(tensors, group=None):
    """Send the tensors to the next rank of the group and receive as many of the same shapes from the one
    before."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if size == 1:
        return tensors
    to, source = ((rank + by) % size for by in (1, -1))
    if group is not None:
        to, source = dist.get_global_rank(group, to), dist.get_global_rank(group, source)
    received = [torch.empty(t.shape, dtype=t.dtype) for t in tensors]
    ops = []
    for t, r in zip(tensors, received):
        ops += [dist.P2POp(dist.isend, t.contiguous(), to, group), dist.P2POp(dist.irecv, r, source, group)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return received


class RingAttention(torch.autograd.Function):
    """Blockwise over the ranks' keys; merged by (O, L); q, k, v (b, h, n, d)."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal, scale, group=None):
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        ctx.save_for_backward(q, k, v)
        out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
        lse = torch.full(q.shape[:-1], -math.inf, dtype=q.dtype)
        for step in range(size):
            j = (rank - step) % size
            if not is_causal or j <= rank:
                s = scale * q @ k.mT
                if is_causal and j == rank:
                    s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
                block_lse = s.logsumexp(-1)
                block_out = torch.exp(s - block_lse[..., None]) @ v
                new = torch.logaddexp(lse, block_lse)
                out = out * torch.exp(lse - new)[..., None] + block_out * torch.exp(block_lse - new)[..., None]
                lse = new
            if step + 1 < size:
                k, v = shift([k, v], group)
        ctx.out, ctx.lse, ctx.rest = out, lse, (is_causal, scale, group)
        return out

    @staticmethod
    def backward(ctx, dout):
        is_causal, scale, group = ctx.rest
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        q, k, v = ctx.saved_tensors
        delta = (dout * ctx.out).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for step in range(size):
            j = (rank - step) % size
            if not is_causal or j <= rank:
                p = torch.exp(scale * q @ k.mT - ctx.lse[..., None])
                if is_causal and j == rank:
                    p = p.tril()
                ds = p * (dout @ v.mT - delta) * scale
                dq += ds @ k
                dk, dv = dk + ds.mT @ q, dv + p.mT @ dout
            k, v, dk, dv = shift([k, v, dk, dv], group)
        return dq, dk, dv, None, None, None


@case(lengths=((24, 24), (24, 48)), source="Liu et al., Ring Attention, arXiv 2310.01889")
def ring_blockwise(q, k, v, is_causal=False, scale=None):
    """A ring of keys with a hand-written backward, dK and dV travel with their keys and are home after as many
    steps as ranks; as many tokens on each rank."""
    return RingAttention.apply(q, k, v, is_causal, q.shape[-1] ** -0.5 if scale is None else scale)


# ---------------------------------------------------------------- zigzag, as ring-flash-attention does it


def spread(x, h):
    """(b, s, g, d) -> (b, s, h, d)"""
    return x.repeat_interleave(h // x.shape[2], dim=2)


def gather_groups(dx, g):
    """(b, s, h, d) -> (b, s, g, d), summed over the query heads of a group"""
    b, s, h, d = dx.shape
    return dx.view(b, s, g, h // g, d).sum(3)


def flash_forward(q, k, v, scale, causal):
    """(b, s, h, d) -> out (b, s, h, d), lse (b, h, s)"""
    s = torch.einsum("bihd,bjhd->bhij", q, spread(k, q.shape[2])) * scale
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    lse = s.logsumexp(-1)
    return torch.einsum("bhij,bjhd->bihd", torch.exp(s - lse[..., None]), spread(v, q.shape[2])), lse


def flash_backward(dout, q, k, v, out, lse, scale, causal):
    """The block's dq, dk, dv from the whole output and log-sum-exp."""
    kk, vv = spread(k, q.shape[2]), spread(v, q.shape[2])
    p = torch.exp(torch.einsum("bihd,bjhd->bhij", q, kk) * scale - lse[..., None])
    if causal:
        p = p.tril()
    delta = torch.einsum("bihd,bihd->bhi", dout, out)
    ds = p * (torch.einsum("bihd,bjhd->bhij", dout, vv) - delta[..., None]) * scale
    dk = torch.einsum("bhij,bihd->bjhd", ds, q)
    dv = torch.einsum("bhij,bihd->bjhd", p, dout)
    return torch.einsum("bhij,bjhd->bihd", ds, kk), gather_groups(dk, k.shape[2]), gather_groups(dv, v.shape[2])


class RingComm:
    """Sends to the next rank, receives from the one before."""

    def __init__(self):
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.ops, self.reqs = [], None

    def send_recv(self, tensor):
        result = torch.empty(tensor.shape, dtype=tensor.dtype)
        self.ops.append(dist.P2POp(dist.isend, tensor.contiguous(), (self.rank + 1) % self.world_size))
        self.ops.append(dist.P2POp(dist.irecv, result, (self.rank - 1) % self.world_size))
        return result

    def commit(self):
        self.reqs = dist.batch_isend_irecv(self.ops)

    def wait(self):
        for req in self.reqs:
            req.wait()
        self.ops, self.reqs = [], None


def update_out_and_lse(out, lse, block_out, block_lse):
    """lse (b, s, h, 1); block_lse (b, h, s)"""
    block_lse = block_lse.transpose(-2, -1).unsqueeze(-1)
    if out is None:
        return block_out, block_lse
    return out - torch.sigmoid(block_lse - lse) * (out - block_out), lse - F.logsigmoid(lse - block_lse)


class ZigZagRing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        comm, half = RingComm(), q.shape[1] // 2
        ctx.local, ctx.scale = (q, k, v), scale
        out = lse = None
        for step in range(comm.world_size):
            if step + 1 != comm.world_size:
                next_k, next_v = comm.send_recv(k), comm.send_recv(v)
                comm.commit()
            if step == 0:
                out, lse = update_out_and_lse(out, lse, *flash_forward(q, k, v, scale, True))
            elif step <= comm.rank:
                out, lse = update_out_and_lse(out, lse, *flash_forward(q, k[:, :half], v[:, :half], scale, False))
            else:
                part = flash_forward(q[:, half:], k, v, scale, False)
                late = update_out_and_lse(out[:, half:], lse[:, half:], *part)
                out, lse = torch.cat([out[:, :half], late[0]], 1), torch.cat([lse[:, :half], late[1]], 1)
            if step + 1 != comm.world_size:
                comm.wait()
                k, v = next_k, next_v
        ctx.out, ctx.lse = out, lse.squeeze(-1).transpose(1, 2)
        return out

    @staticmethod
    def backward(ctx, dout):
        kv_comm, d_kv_comm = RingComm(), RingComm()
        (q, k, v), out, lse, scale = ctx.local, ctx.out, ctx.lse, ctx.scale
        half = q.shape[1] // 2
        dq = dk = dv = next_dk = next_dv = None
        for step in range(kv_comm.world_size):
            if step + 1 != kv_comm.world_size:
                next_k, next_v = kv_comm.send_recv(k), kv_comm.send_recv(v)
                kv_comm.commit()
            if step == 0:
                dq, dk, dv = flash_backward(dout, q, k, v, out, lse, scale, True)
            else:
                if step <= kv_comm.rank:
                    step_dq, step_dk, step_dv = flash_backward(
                        dout, q, k[:, :half], v[:, :half], out, lse, scale, False)
                    dq = dq + step_dq
                else:
                    step_dq, step_dk, step_dv = flash_backward(
                        dout[:, half:], q[:, half:], k, v, out[:, half:], lse[..., half:], scale, False)
                    dq[:, half:] += step_dq
                d_kv_comm.wait()
                dk, dv = next_dk, next_dv
                dk[:, : step_dk.shape[1]] += step_dk
                dv[:, : step_dv.shape[1]] += step_dv
            if step + 1 != kv_comm.world_size:
                kv_comm.wait()
                k, v = next_k, next_v
            next_dk, next_dv = d_kv_comm.send_recv(dk), d_kv_comm.send_recv(dv)
            d_kv_comm.commit()
        d_kv_comm.wait()
        return dq, next_dk, next_dv, None


@case(layout="zigzag", order="bshd", causal=(True,), heads=((4, 4), (4, 2)),
      source="zhuzilin/ring-flash-attention ring_flash_attn/zigzag_ring_flash_attn.py")
def ring_zigzag_flash(q, k, v, is_causal=True, scale=None):
    """Zigzag ring, causal alone, by halves of the keys before and halves of the queries after; keys' heads may be
    fewer; the length divides by twice the ranks."""
    return ZigZagRing.apply(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale)


# ---------------------------------------------------------------- keys gathered


class Llama3Attention(torch.autograd.Function):
    """Keys and values gathered head by head; backward sums the parts of dK, dV and hands each rank its own."""

    @staticmethod
    def forward(ctx, q, k, v, causal, scale):
        rank, size, g, h = dist.get_rank(), dist.get_world_size(), k.shape[2], q.shape[2]
        ctx.save_for_backward(q, k, v)
        ctx.causal, ctx.scale, outs, ctx.lse = causal, scale, [], []
        for i in range(g):
            kv = Llama3Attention.gather(torch.stack([k[:, :, i], v[:, :, i]]), size)
            heads = slice(i * h // g, (i + 1) * h // g)
            p, lse = Llama3Attention.weights(q[:, :, heads], kv[0], rank, causal, scale)
            ctx.lse.append(lse)
            outs.append(torch.einsum("bhij,bjd->bihd", p, kv[1]))
        ctx.out = torch.cat(outs, 2)
        return ctx.out

    @staticmethod
    def gather(kv, size):
        """(2, b, m_r, d) -> (2, b, m, d)"""
        parts = [torch.empty_like(kv) for _ in range(size)]
        dist.all_gather(parts, kv.contiguous())
        return torch.cat(parts, 2)

    @staticmethod
    def weights(q, k, rank, causal, scale):
        s = torch.einsum("bihd,bjd->bhij", q, k) * scale
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 + rank * q.shape[1]), -math.inf)
        lse = s.logsumexp(-1, keepdim=True)
        return torch.exp(s - lse), lse

    @staticmethod
    def backward(ctx, dout):
        rank, size = dist.get_rank(), dist.get_world_size()
        q, k, v = ctx.saved_tensors
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        g, h, m = k.shape[2], q.shape[2], k.shape[1]
        for i in range(g):
            kv = Llama3Attention.gather(torch.stack([k[:, :, i], v[:, :, i]]), size)
            heads = slice(i * h // g, (i + 1) * h // g)
            qi, doi = q[:, :, heads], dout[:, :, heads]
            p, _ = Llama3Attention.weights(qi, kv[0], rank, ctx.causal, ctx.scale)
            dp = torch.einsum("bihd,bjd->bhij", doi, kv[1])
            ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * ctx.scale
            dq[:, :, heads] = torch.einsum("bhij,bjd->bihd", ds, kv[0])
            dkv = torch.stack([torch.einsum("bhij,bihd->bjd", ds, qi), torch.einsum("bhij,bihd->bjd", p, doi)])
            dist.all_reduce(dkv)
            dk[:, :, i], dv[:, :, i] = dkv[:, :, rank * m: (rank + 1) * m]
        return dq, dk, dv, None, None


@case(order="bshd", heads=((4, 4), (4, 1)), lengths=((24, 24), (12, 24)),
      source="zhuzilin/ring-flash-attention ring_flash_attn/llama3_flash_attn_varlen.py")
def gather_llama3(q, k, v, is_causal=False, scale=None):
    """Llama 3's way: keys and values are gathered for one of their heads at a time, forward and backward; dK and
    dV are summed over the ranks and cut."""
    return Llama3Attention.apply(q, k, v, is_causal, q.shape[-1] ** -0.5 if scale is None else scale)


def padded_gather(x, lengths):
    """Gather x (b, h, m_r, d) of differing m_r along the sequence; differentiable."""
    longest = max(lengths)
    parts = dist_nn.all_gather(F.pad(x, (0, 0, 0, longest - x.shape[2])))
    return torch.cat([part[:, :, :length] for part, length in zip(parts, lengths)], dim=2)


def all_lengths(x, dim):
    """How many tokens each rank has."""
    mine = torch.tensor([x.shape[dim]])
    found = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(found, mine)
    return [int(length) for length in found]


@case(lengths=((24, 24), (19, 19), (13, 22)), heads=((4, 4), (6, 2)),
      source="torch.distributed.nn.functional.all_gather with F.scaled_dot_product_attention")
def gather_sdpa(q, k, v, is_causal=False, scale=None):
    """Differentiable all_gather of keys and values, padded to the longest part and cut again; any lengths;
    PyTorch's attention with a mask by whole positions."""
    keys, queries = all_lengths(k, 2), all_lengths(q, 2)
    both = padded_gather(torch.cat([k, v], dim=-1), keys)
    k, v = both.split([k.shape[-1], v.shape[-1]], dim=-1)
    mask = None
    if is_causal:
        first = sum(queries[: dist.get_rank()])
        mask = torch.arange(k.shape[2])[None, :] <= first + torch.arange(q.shape[2])[:, None]
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)


@case(layout="zigzag", order="bshd", causal=(True,),
      source="NVIDIA/TransformerEngine context_parallel.py, AttnFuncWithCPAndKVAllGather")
def gather_two_chunks(q, k, v, is_causal=True, scale=None):
    """Keys gathered and put in order of the sequence; each of the rank's two chunks attends the keys up to its own
    end under a mask aligned at the end; causal alone, the length divides by twice the ranks."""
    assert is_causal
    rank, size = dist.get_rank(), dist.get_world_size()
    kv = torch.stack([k, v])
    chunks = [half for part in dist_nn.all_gather(kv) for half in part.chunk(2, dim=2)]
    order = sorted(range(2 * size), key=lambda i: i // 2 if i % 2 == 0 else 2 * size - 1 - i // 2)
    whole = torch.cat([chunks[i] for i in order], dim=2)
    outs = []
    for chunk, q_chunk in zip((rank, 2 * size - 1 - rank), q.chunk(2, dim=1)):
        n = q_chunk.shape[1]
        keys, values = whole[:, :, : (chunk + 1) * n].transpose(2, 3)
        s = q_chunk.transpose(1, 2) @ keys.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        s = s + torch.full_like(s[0, 0], -math.inf).triu(1 + keys.shape[2] - n)
        outs.append((s.softmax(-1) @ values).transpose(1, 2))
    return torch.cat(outs, dim=1)


# ---------------------------------------------------------------- Ulysses: heads for tokens


def all_to_all_4d(x, scatter, gather, group=None):
    """Cut dimension `scatter` of x (b, s, h, d) among the ranks and put dimension `gather` together."""
    parts = [part.contiguous() for part in x.chunk(dist.get_world_size(group), dim=scatter)]
    sent = torch.stack(parts)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat(received.unbind(0), dim=gather)


class SeqAllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scatter, gather, group=None):
        ctx.scatter, ctx.gather, ctx.group = scatter, gather, group
        return all_to_all_4d(x, scatter, gather, group)

    @staticmethod
    def backward(ctx, grad):
        return SeqAllToAll.apply(grad, ctx.gather, ctx.scatter, ctx.group), None, None, None


@case(order="bshd", heads=((12, 12), (24, 12)), lengths=((24, 24), (12, 24)),
      source="deepspeedai/DeepSpeed deepspeed/sequence/layer.py, DistributedAttention")
def ulysses_function(q, k, v, is_causal=False, scale=None):
    """Ulysses: an all-to-all Function trades heads for tokens, each rank attends the whole sequence with its
    heads; the heads of queries and of keys divide by the ranks."""
    q, k, v = (SeqAllToAll.apply(x, 2, 1) for x in (q, k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=grouped)
    return SeqAllToAll.apply(out.transpose(1, 2), 1, 2)


def heads_to_ranks(x):
    """(b, h, s_r, d) -> (R, b, h / R, s_r, d): part j came from rank j"""
    size = dist.get_world_size()
    b, h, s, d = x.shape
    x = x.reshape(b, size, h // size, s, d).transpose(0, 1).contiguous()
    return dist_nn.all_to_all_single(torch.empty_like(x), x)


@case(layout="zigzag", heads=((12, 12), (12, 1), (24, 12)),
      source="ByteDance-Seed/VeOmni and PrimeIntellect-ai/prime-rl, Ulysses with repeated heads of keys")
def ulysses_zigzag_repeated(q, k, v, is_causal=False, scale=None):
    """Ulysses with differentiable all_to_all_single on zigzag tokens, put in order of the sequence before
    attending and back after; one head of keys is repeated for the ranks; the length divides by twice the ranks."""
    size = dist.get_world_size()
    if k.shape[1] < size:
        k, v = (x.repeat_interleave(size // k.shape[1], dim=1) for x in (k, v))
    halves = [i // 2 if i % 2 == 0 else 2 * size - 1 - i // 2 for i in range(2 * size)]
    there = torch.argsort(torch.tensor(halves))
    whole = []
    for x in (q, k, v):
        x = heads_to_ranks(x)
        x = torch.cat(x.unbind(0), dim=2).unflatten(2, (2 * size, -1))
        whole.append(x[:, :, there].flatten(2, 3))
    q, k, v = whole
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)
    out = out.unflatten(2, (2 * size, -1))[:, :, torch.tensor(halves)].unflatten(2, (size, 2)).flatten(3, 4)
    out = out.permute(2, 0, 1, 3, 4).contiguous()
    out = dist_nn.all_to_all_single(torch.empty_like(out), out)
    return out.transpose(0, 1).flatten(1, 2)


# ---------------------------------------------------------------- point to point, as TransformerEngine does it


def p2p_communicate(send, to, receive, source):
    """Even ranks send first, odd ones receive first."""
    if dist.get_rank() % 2 == 0:
        return [dist.isend(send, to), dist.irecv(receive, source)]
    return [dist.irecv(receive, source), dist.isend(send, to)]


def section(step, rank, causal):
    """Which halves of queries and keys a step of the forward works with, and whether causally."""
    if not causal:
        return slice(None), slice(None), False
    if step == 0:
        return slice(None), slice(None), True
    return (slice(None), slice(0, 1), False) if step <= rank else (slice(1, 2), slice(None), False)


class AttnP2P(torch.autograd.Function):
    """q (b, 2, s/2, h, d) and kv (2, b, 2, s/2, h, d); outputs of the steps corrected at the end; backward goes
    round the other way, from the keys that came last."""

    @staticmethod
    def forward(ctx, q, kv, causal, scale):
        rank, size = dist.get_rank(), dist.get_world_size()
        outs, lses, inputs = [], [], [kv.contiguous()]
        for i in range(size):
            if i < size - 1:
                inputs.append(torch.empty_like(inputs[i]))
                works = p2p_communicate(inputs[i], (rank + 1) % size, inputs[i + 1], (rank - 1) % size)
            rows, cols, diagonal = section(i, rank, causal)
            k, v = inputs[i][:, :, cols].flatten(2, 3)
            out, lse = flash_forward(q[:, rows].flatten(1, 2), k, v, scale, diagonal)
            outs.append(out)
            lses.append(lse)
            if i < size - 1:
                for work in works:
                    work.wait()
        softmax_lse = lses[0].clone()
        for i in range(1, size):
            half = softmax_lse[..., -lses[i].shape[-1]:]
            high, low = torch.maximum(half, lses[i]), torch.minimum(half, lses[i])
            half.copy_(high + torch.log1p(torch.exp(low - high)))
        whole = torch.zeros_like(outs[0])
        for out, lse in zip(outs, lses):
            weight = torch.exp(lse - softmax_lse[..., -lse.shape[-1]:]).transpose(1, 2).unsqueeze(-1)
            whole[:, -out.shape[1]:] += out * weight
        ctx.save_for_backward(q, inputs[-1], whole, softmax_lse)
        ctx.causal, ctx.scale = causal, scale
        return whole.view_as(q)

    @staticmethod
    def backward(ctx, dout):
        rank, size = dist.get_rank(), dist.get_world_size()
        q, kv, out, lse = ctx.saved_tensors
        out, lse = out.view_as(q), lse.unflatten(-1, (2, -1))
        dq, dkv = torch.zeros_like(q), torch.zeros_like(kv)
        for i in range(size):
            rows, cols, diagonal = section(size - 1 - i, rank, ctx.causal)
            k, v = kv[:, :, cols].flatten(2, 3)
            step_dq, step_dk, step_dv = flash_backward(
                dout[:, rows].flatten(1, 2), q[:, rows].flatten(1, 2), k, v, out[:, rows].flatten(1, 2),
                lse[:, :, rows].flatten(2, 3), ctx.scale, diagonal)
            dq[:, rows] += step_dq.view_as(dq[:, rows])
            dkv[:, :, cols] += torch.stack([step_dk, step_dv]).view_as(dkv[:, :, cols])
            if i < size - 1:
                both = torch.stack([kv, dkv])
                received = torch.empty_like(both)
                for work in p2p_communicate(both, (rank - 1) % size, received, (rank + 1) % size):
                    work.wait()
                kv, dkv = received
        return dq, dkv, None, None


@case(layout="zigzag", order="bshd", heads=((4, 4), (4, 2)),
      source="NVIDIA/TransformerEngine context_parallel.py, AttnFuncWithCPAndKVP2P")
def p2p_halves(q, k, v, is_causal=False, scale=None):
    """Point-to-point ring of stacked keys and values in halves; the steps' outputs are corrected at the end by the
    whole log-sum-exp; backward runs against the direction of the forward; the length divides by twice the
    ranks."""
    q = q.unflatten(1, (2, -1))
    kv = torch.stack([k, v]).unflatten(2, (2, -1))
    return AttnP2P.apply(q, kv, is_causal, q.shape[-1] ** -0.5 if scale is None else scale).flatten(1, 2)


# ---------------------------------------------------------------- two dimensions: Ulysses within, a ring across


def mesh(inner):
    """This rank's group of `inner` neighbours and its group across them; every rank makes all groups."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = [None, None]
    for ranks in [list(range(i, i + inner)) for i in range(0, size, inner)]:
        group = dist.new_group(ranks)
        mine[0] = group if rank in ranks else mine[0]
    for ranks in [list(range(i, size, inner)) for i in range(inner)]:
        group = dist.new_group(ranks)
        mine[1] = group if rank in ranks else mine[1]
    return mine


@case(order="bshd", heads=((4, 4), (4, 2)), source="feifeibear/long-context-attention (USP), arXiv 2405.07719")
def usp_two_dimensions(q, k, v, is_causal=False, scale=None):
    """Ulysses among two neighbours (one where the ranks are odd in number) and a ring across the pairs; heads are
    even in number; as many tokens on each rank and as many keys as queries."""
    inner, ring = mesh(2 if dist.get_world_size() % 2 == 0 else 1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v = (spread(x, q.shape[2]) for x in (k, v))
    q, k, v = (SeqAllToAll.apply(x, 2, 1, inner).transpose(1, 2) for x in (q, k, v))
    return SeqAllToAll.apply(RingAttention.apply(q, k, v, is_causal, scale, ring).transpose(1, 2), 1, 2, inner)


# ---------------------------------------------------------------- PyTorch's context_parallel


class Rotater:
    """Rotation by an all-to-all that sends everything to the next rank."""

    def __init__(self):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def exchange(self, buffer):
        flat = buffer.flatten().contiguous()
        sent, got = [0] * self.size, [0] * self.size
        sent[(self.rank + 1) % self.size] = got[(self.rank - 1) % self.size] = flat.numel()
        self.buffer = torch.empty_like(flat)
        self.work = dist.all_to_all_single(self.buffer, flat, got, sent, async_op=True)

    def next_buffer(self):
        self.work.wait()
        return self.buffer


class Merger:
    def __init__(self):
        self.out = self.lse = None

    def step(self, out, lse, partial):
        lse = lse.unsqueeze(-1)
        if self.out is None:
            self.out, self.lse = out, lse
            return
        before, before_lse = ((x.chunk(2, 2)[1] if partial else x) for x in (self.out, self.lse))
        out = before - F.sigmoid(lse - before_lse) * (before - out)
        lse = before_lse - F.logsigmoid(before_lse - lse)
        if partial:
            out = torch.cat([self.out.chunk(2, 2)[0], out], 2)
            lse = torch.cat([self.lse.chunk(2, 2)[0], lse], 2)
        self.out, self.lse = out, lse


class TemplatedRing(torch.autograd.Function):
    """Load-balanced ring; q, k, v (b, h, s, d)."""

    @staticmethod
    def pieces(i, rank, causal, q, k, v):
        if i == 0 or not causal:
            return q, k, v, False
        if i <= rank:
            return q, k.chunk(2, 2)[0], v.chunk(2, 2)[0], False
        return q.chunk(2, 2)[1], k, v, True

    @staticmethod
    def forward(ctx, query, key, value, causal, scale):
        rank, size, rotater, merger = dist.get_rank(), dist.get_world_size(), Rotater(), Merger()
        ctx.inputs, ctx.causal, ctx.scale = (query, key, value), causal, scale
        for i in range(size):
            if i > 0:
                kv = rotater.next_buffer()
                key, value = kv[: key.numel()].reshape(key.shape), kv[key.numel():].reshape(value.shape)
            if i < size - 1:
                rotater.exchange(torch.cat([key.flatten(), value.flatten()]))
            q, k, v, partial = TemplatedRing.pieces(i, rank, causal, query, key, value)
            s = q @ k.transpose(2, 3) * scale
            if causal and i == 0:
                s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)
            merger.step(s.softmax(-1) @ v, s.logsumexp(-1), partial)
        ctx.out, ctx.lse = merger.out, merger.lse
        return merger.out

    @staticmethod
    def backward(ctx, grad_out):
        rank, size, kv_rotater, dkv_rotater = dist.get_rank(), dist.get_world_size(), Rotater(), Rotater()
        query, key, value = ctx.inputs
        grad_query, grad_key, grad_value = (torch.zeros_like(x) for x in ctx.inputs)
        delta = (grad_out * ctx.out).sum(-1, keepdim=True)
        for i in range(size):
            if i > 0:
                kv = kv_rotater.next_buffer()
                key, value = kv[: key.numel()].reshape(key.shape), kv[key.numel():].reshape(value.shape)
            if i < size - 1:
                kv_rotater.exchange(torch.cat([key.flatten(), value.flatten()]))
            q, k, v, partial = TemplatedRing.pieces(i, rank, ctx.causal, query, key, value)
            do, lse, d = ((x.chunk(2, 2)[1] if partial else x) for x in (grad_out, ctx.lse, delta))
            p = torch.exp(q @ k.transpose(2, 3) * ctx.scale - lse)
            if ctx.causal and i == 0:
                p = p.tril()
            ds = p * (do @ v.transpose(2, 3) - d) * ctx.scale
            grad_query[:, :, -q.shape[2]:] += ds @ k
            if i > 0:
                dkv = dkv_rotater.next_buffer()
                grad_key, grad_value = dkv[: key.numel()].view(key.shape), dkv[key.numel():].view(value.shape)
            grad_key[:, :, : k.shape[2]] += ds.transpose(2, 3) @ q
            grad_value[:, :, : k.shape[2]] += p.transpose(2, 3) @ do
            dkv_rotater.exchange(torch.cat([grad_key.flatten(), grad_value.flatten()]))
        dkv = dkv_rotater.next_buffer()
        return grad_query, dkv[: key.numel()].view(key.shape), dkv[key.numel():].view(value.shape), None, None


@case(layout="zigzag", lengths=((24, 24), (24, 48)),
      source="pytorch/pytorch torch/distributed/tensor/experimental, _templated_ring_attention")
def ring_templated(q, k, v, is_causal=False, scale=None):
    """PyTorch's ring of context_parallel with load balance (head and tail): all-to-all rotation, one for keys and
    one for their gradients; the length divides by twice the ranks."""
    return TemplatedRing.apply(q, k, v, is_causal, q.shape[-1] ** -0.5 if scale is None else scale)


# ---------------------------------------------------------------- autograd goes through the rotation


class Rotate(torch.autograd.Function):
    """To the next rank; its gradient comes back from there."""

    @staticmethod
    def send(x, by):
        rank, size = dist.get_rank(), dist.get_world_size()
        received = torch.empty(x.shape, dtype=x.dtype)
        sending = dist.isend(x.contiguous(), (rank + by) % size)
        dist.recv(received, (rank - by) % size)
        sending.wait()
        return received

    @staticmethod
    def forward(ctx, x):
        return Rotate.send(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return Rotate.send(grad, -1)


@case(lengths=((24, 24), (12, 36)), heads=((4, 4), (4, 2)),
      source="haoliuhl/ringattention, the accumulators numerator, denominator and max score")
def ring_numerator_denominator(q, k, v, is_causal=False, scale=None):
    """A ring with the accumulators (max, sum, numerator); autograd goes through the rotation; every block is
    worked with under its mask."""
    rank, size, d = dist.get_rank(), dist.get_world_size(), q.shape[-1]
    scale = d ** -0.5 if scale is None else scale
    kv = torch.cat([k, v], dim=-1)
    rows = rank * q.shape[2] + torch.arange(q.shape[2])
    numerator, denominator, max_score = 0.0, 0.0, torch.full((*q.shape[:3], 1), -math.inf, dtype=q.dtype)
    for step in range(size):
        block = (rank - step) % size
        k, v = (x.repeat_interleave(q.shape[1] // kv.shape[1], 1) for x in (kv[..., :d], kv[..., d:]))
        s = q @ k.mT * scale
        if is_causal:
            cols = block * k.shape[2] + torch.arange(k.shape[2])
            s = s.masked_fill(cols[None, :] > rows[:, None], -math.inf)
        new_max = torch.maximum(max_score, s.detach().amax(-1, keepdim=True))
        correction, weights = torch.exp(max_score - new_max), torch.exp(s - new_max)
        numerator = numerator * correction + weights @ v
        denominator = denominator * correction + weights.sum(-1, keepdim=True)
        max_score = new_max
        if step + 1 < size:
            kv = Rotate.apply(kv)
    return numerator / denominator


@case(lengths=((24, 24), (12, 48)),
      source="Yang et al., Context Parallelism for Scalable Million-Token Inference (pass-Q), arXiv 2411.01783")
def ring_of_queries(q, k, v, is_causal=False, scale=None):
    """Queries go round, keys stay; an all-to-all brings the parts (O, L) of the output home, where they are merged
    by a softmax of L."""
    rank, size, n = dist.get_rank(), dist.get_world_size(), q.shape[2]
    scale, parts = q.shape[-1] ** -0.5 if scale is None else scale, [None] * size
    for step in range(size):
        owner = (rank - step) % size
        s = q @ k.transpose(-1, -2) * scale
        if is_causal:
            hidden = rank * n + torch.arange(n)[None, :] > owner * n + torch.arange(n)[:, None]
            s = s.masked_fill(hidden, -1e30)
        lse = s.logsumexp(-1, keepdim=True)
        parts[owner] = torch.cat([torch.exp(s - lse) @ v, lse], dim=-1)
        if step + 1 < size:
            q = Rotate.apply(q)
    parts = torch.stack(parts)
    parts = dist_nn.all_to_all_single(torch.empty_like(parts), parts)
    return (parts[..., -1:].softmax(0) * parts[..., :-1]).sum(0)


# ---------------------------------------------------------------- queries gathered, keys stay


class TreeAttention(torch.autograd.Function):
    """All queries against the rank's own keys; sums over the ranks."""

    @staticmethod
    def gathered(x):
        parts = [torch.empty(x.shape, dtype=x.dtype) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=2)

    @staticmethod
    def forward(ctx, q, k, v, is_causal, scale):
        whole, rank, n = TreeAttention.gathered(q), dist.get_rank(), q.shape[2]
        s = torch.einsum("bhid,bhjd->bhij", whole, k) * scale
        if is_causal:
            hidden = rank * n + torch.arange(n)[None, :] > torch.arange(whole.shape[2])[:, None]
            s = s.masked_fill(hidden, -math.inf)
        top = s.amax(-1, keepdim=True)
        dist.all_reduce(top, dist.ReduceOp.MAX)
        e = torch.exp(s - top)
        both = torch.cat([e @ v, e.sum(-1, keepdim=True)], dim=-1)
        dist.all_reduce(both)
        out, total = both[..., :-1] / both[..., -1:], both[..., -1:]
        mine = slice(rank * n, (rank + 1) * n)
        ctx.save_for_backward(whole, k, v, e / total)
        ctx.scale, ctx.mine, ctx.out = scale, mine, out
        return out[:, :, mine].clone()

    @staticmethod
    def backward(ctx, dout):
        whole, k, v, p = ctx.saved_tensors
        dout = TreeAttention.gathered(dout)
        ds = p * (dout @ v.mT - (dout * ctx.out).sum(-1, keepdim=True)) * ctx.scale
        dq = ds @ k
        dist.all_reduce(dq)
        return dq[:, :, ctx.mine], ds.mT @ whole, p.mT @ dout, None, None


@case(lengths=((24, 24), (12, 36)), source="Shyam et al., Tree Attention, arXiv 2408.04093")
def tree_of_sums(q, k, v, is_causal=False, scale=None):
    """Queries are gathered, keys stay; greatest score, sum and numerator are reduced over the ranks; backward sums
    dQ over the ranks, dK and dV are whole where they are."""
    return TreeAttention.apply(q, k, v, is_causal, q.shape[-1] ** -0.5 if scale is None else scale)


# ---------------------------------------------------------------- replicated parameters


def attend_gathered(q, k, v, is_causal, scale, sinks=None):
    """A rank's queries against all keys, gathered differentiably; contiguous, as many tokens on each rank."""
    n = q.shape[2]
    kv = torch.cat(dist_nn.all_gather(torch.cat([k, v], -1)), dim=2)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in kv.split([k.shape[-1], v.shape[-1]], -1))
    s = q @ k.mT * scale
    if is_causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 + dist.get_rank() * n), -math.inf)
    if sinks is not None:
        column = sinks.view(1, -1, 1, 1).expand(s.shape[0], -1, n, 1)
        return torch.cat([s, column], -1).softmax(-1)[..., :-1] @ v
    return s.softmax(-1) @ v


@case(parameters=("sinks",), gradient_of_parameters="part",
      source="openai/gpt-oss sinks under keys gathered over the ranks")
def gather_sinks_part(q, k, v, sinks, is_causal=False, scale=None):
    """A learned sink per head (h,) stands in each row's softmax once; its gradient on a rank is that of the rank's
    rows, for the trainer to sum."""
    return attend_gathered(q, k, v, is_causal, q.shape[-1] ** -0.5 if scale is None else scale, sinks)


class RingSinks(torch.autograd.Function):
    """The sink enters the merged parts once; its gradient is summed over the ranks here."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, is_causal, scale):
        inner = RingAttention.forward(ctx, q, k, v, is_causal, scale)
        share = torch.sigmoid(ctx.lse - sinks.view(1, -1, 1))
        ctx.lse = torch.logaddexp(ctx.lse, sinks.view(1, -1, 1))
        ctx.out = inner * share[..., None]
        ctx.sinks = sinks
        return ctx.out

    @staticmethod
    def backward(ctx, dout):
        dq, dk, dv, *_ = RingAttention.backward(ctx, dout)
        delta = (dout * ctx.out).sum(-1)
        dsinks = -(torch.exp(ctx.sinks.view(1, -1, 1) - ctx.lse) * delta).sum((0, 2))
        dist.all_reduce(dsinks)
        return dq, dk, dv, dsinks, None, None


@case(parameters=("sinks",), gradient_of_parameters="sum",
      source="NVIDIA/TransformerEngine pull request 3551 (learned sinks under a ring)")
def ring_sinks_summed(q, k, v, sinks, is_causal=False, scale=None):
    """A ring with a learned sink per head (h,) that joins after the merge; the Function sums its gradient over the
    ranks, so that each has the whole one."""
    return RingSinks.apply(q, k, v, sinks, is_causal, q.shape[-1] ** -0.5 if scale is None else scale)


class CopyToRegion(torch.autograd.Function):
    """The same forward; backward sums over the ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


@case(parameters=("temperature",), gradient_of_parameters="sum", heads=((4, 4), (4, 2)),
      source="NVIDIA/Megatron-LM tensor_parallel/mappings.py (copy to region), a temperature per head")
def gather_temperature_summed(q, k, v, temperature, is_causal=False, scale=None):
    """A learned factor of the scores per head (h,); copied to the ranks so that its gradient is summed over them
    in backward."""
    temperature = CopyToRegion.apply(temperature)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return attend_gathered(q * temperature.view(1, -1, 1, 1), k, v, is_causal, scale)


def weights(*sizes, seed=0):
    """Matrices of fixed numbers, the same on each rank."""
    g = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(*size, generator=g, dtype=torch.float64) / size[0] ** 0.5) for size in sizes]


@case(parameters=("W_Q", "W_K", "W_V", "W_O"), gradient_of_parameters="part", causal=(True,),
      source="a layer as Megatron-LM has under context parallelism")
class LayerPart(nn.Module):
    """A causal layer of grouped heads on each rank's tokens, keys gathered; the weights' gradients are each rank's
    own part, for the trainer to sum."""

    def __init__(self, d_model=16, heads=4, groups=2, d=4):
        super().__init__()
        self.heads, self.groups, self.d, self.is_causal = heads, groups, d, True
        self.W_Q, self.W_K, self.W_V, self.W_O = weights(
            (d_model, heads * d), (d_model, groups * d), (d_model, groups * d), (heads * d, d_model), seed=1)

    def forward(self, x):
        q, k, v = ((x @ W).unflatten(-1, (-1, self.d)).transpose(1, 2) for W in (self.W_Q, self.W_K, self.W_V))
        out = attend_gathered(q, k, v, self.is_causal, self.d ** -0.5)
        return out.transpose(1, 2).flatten(2) @ self.W_O


@case(parameters=("W_Q", "W_K", "W_V", "W_O"), gradient_of_parameters="sum", causal=(False,),
      source="a layer that sums its weights' gradients by itself")
class LayerSummed(nn.Module):
    """A layer on each rank's tokens with a ring inside; the weights are copied to the ranks, so that backward sums
    their gradients."""

    def __init__(self, d_model=16, heads=4, groups=4, d=4):
        super().__init__()
        self.heads, self.groups, self.d, self.is_causal = heads, groups, d, False
        self.W_Q, self.W_K, self.W_V, self.W_O = weights(
            (d_model, heads * d), (d_model, groups * d), (d_model, groups * d), (heads * d, d_model), seed=2)

    def forward(self, x):
        q, k, v = ((x @ CopyToRegion.apply(W)).unflatten(-1, (-1, self.d)).transpose(1, 2)
                   for W in (self.W_Q, self.W_K, self.W_V))
        out = RingAttention.apply(q, k, v, self.is_causal, self.d ** -0.5)
        return out.transpose(1, 2).flatten(2) @ CopyToRegion.apply(self.W_O)
