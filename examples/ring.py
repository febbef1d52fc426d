"""A causal model of two layers, its context over two processes: training, and a Hessian times a vector."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd import grad

from attnmath.torch import ring_attention
from attnmath.torch.layouts import positions

RANKS, TOKENS, WORDS, WIDTH, HEADS = 2, 64, 16, 32, 4


def model(x, W):
    """x (n_r, WIDTH): the tokens of one rank. All but attention is done token by token."""
    for W_qkv, W_o, W_1, W_2 in (W[2:6], W[6:10]):
        q, k, v = (F.rms_norm(x, [WIDTH]) @ W_qkv).unflatten(-1, (3, HEADS, -1)).permute(1, 2, 0, 3)
        x = x + ring_attention(q, k, v, is_causal=True, layout="zigzag").transpose(0, 1).flatten(1) @ W_o
        x = x + F.gelu(F.rms_norm(x, [WIDTH]) @ W_1) @ W_2
    return x @ W[0].T


def own_loss(W, words, own):
    """A rank's part of the loss: each token has to know the next word."""
    x = W[0][words[own]] + W[1][own]
    return F.cross_entropy(model(x, W), words[own + 1], reduction="sum") / TOKENS


def whole(parts):
    """The ranks' parts of a loss or of a gradient, summed."""
    parts = [part.detach().clone() for part in parts]
    for part in parts:
        dist.all_reduce(part)
    return parts


def run(rank, place):
    dist.init_process_group("gloo", init_method=f"file://{place}/group", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    shapes = [(WORDS, WIDTH), (TOKENS, WIDTH), *[(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 64), (64, WIDTH)] * 2]
    W = [(torch.randn(shape) / shape[0] ** 0.5).requires_grad_() for shape in shapes]
    words, own = torch.randint(WORDS, (TOKENS + 1,)), positions("zigzag", TOKENS, RANKS, rank)
    adam = torch.optim.Adam(W, 3e-3)
    for step in range(101):
        loss = own_loss(W, words, own)
        for w, dw in zip(W, whole(grad(loss, W))):
            w.grad = dw
        adam.step()
        (value,) = whole([loss])
        if rank == 0 and step % 25 == 0:
            print(f"step {step}: loss {value:.3f}", flush=True)
    v = [torch.randn_like(w) for w in W]
    dW = grad(own_loss(W, words, own), W, create_graph=True)
    Hv = whole(grad(sum((a * b).sum() for a, b in zip(dW, v)), W))
    if rank == 0:
        print(f"curvature along a random direction: {sum((a * b).sum() for a, b in zip(v, Hv)):.2f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.spawn(run, (place,), nprocs=RANKS)
