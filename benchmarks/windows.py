"""Attention through a window: its time beside a causal head's, and beside PyTorch's with the window as a mask.

    python benchmarks/windows.py                     n = 4096, windows of 128 to 2048 keys
    python benchmarks/windows.py --n 8192 --windows 256 --processor --threads 1

What is measured, and how: benchmarks/README.md.
"""

import argparse
import time
from functools import partial
from statistics import quantiles

import torch
from torch.func import jvp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnmath.torch import scaled_dot_product_attention as ours

D = 64


def math(*x, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(*x, **options)


def backward(f, x, dO, tangents):
    """The output, and the gradients in Q, K, V."""
    x = [y.detach().requires_grad_() for y in x]
    O = f(*x)
    return O.detach(), *torch.autograd.grad(O, x, dO)


def tangent(f, x, dO, tangents):
    return jvp(f, x, tangents)


def second(f, x, dO, tangents):
    """Output, gradients, and those in dO, Q, K, V of a sum over dQ, dK, dV with given weights."""
    *x, dO = (y.detach().requires_grad_() for y in (*x, dO))
    O = f(*x)
    first = torch.autograd.grad(O, x, dO, create_graph=True)
    return O.detach(), *(y.detach() for y in first), *torch.autograd.grad(first, (dO, *x), tangents)


PASSES = {"backward": backward, "jvp": tangent, "second": second}


def programs(n, window):
    """What takes turns: "source pass" -> function of x, dO, tangents."""
    i = torch.arange(n)
    ahead = i - i[:, None]
    mask = torch.zeros(n, n).masked_fill((ahead > 0) | (ahead <= -window), -torch.inf)
    sources = {
        "ours": partial(ours, window=(window - 1, 0)),
        "causal": partial(ours, is_causal=True),
        "fused": partial(scaled_dot_product_attention, attn_mask=mask),
        "math": partial(math, attn_mask=mask),
    }
    return {f"{source} {name}": partial(run, sources[source]) for name, run in PASSES.items()
            for source in ("ours", "causal", "fused" if name == "backward" else "math")}


def agree(todo, given):
    """With the window, all compute the same up to the rounding of float32."""
    for name in PASSES:
        right = "fused" if name == "backward" else "math"
        for a, b in zip(todo[f"ours {name}"](*given), todo[f"{right} {name}"](*given), strict=True):
            assert (a - b).abs().max() <= 1e-4 * b.abs().max(), name


def turns(todo, given, clock, count):
    """Seconds of each program in each turn; the order changes, and the first turn warms up."""
    taken = []
    for turn in range(count + 1):
        taken.append({})
        for name in list(todo)[:: 1 if turn % 2 else -1]:
            start = clock()
            todo[name](*given)
            taken[-1][name] = clock() - start
    return taken[1:]


def ratio(taken, a, b):
    """The median of the turns' ratios, and the quartiles."""
    low, middle, high = quantiles(turn[a] / turn[b] for turn in taken)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--n", type=int, default=4096)
    options.add_argument("--heads", type=int, default=1)
    options.add_argument("--windows", type=int, nargs="+", default=[128, 512, 2048], metavar="keys")
    options.add_argument("--turns", type=int, default=7)
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--processor", action="store_true", help="count its time, not that of the wall")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    draw = partial(torch.randn, 1, given.heads, given.n, D)
    x, dO, tangents = tuple(draw() for _ in "QKV"), draw(), tuple(draw() for _ in "QKV")
    clock = time.process_time if given.processor else time.perf_counter
    for window in given.windows:
        todo = programs(given.n, window)
        agree(todo, (x, dO, tangents))
        taken = turns(todo, (x, dO, tangents), clock, given.turns)
        for name in PASSES:
            peer = "fused" if name == "backward" else "math"
            print(f"window {window}, {name}: {1e3 * min(t[f'ours {name}'] for t in taken):.0f} ms;"
                  f" window / causal {ratio(taken, f'ours {name}', f'causal {name}')};"
                  f" window / {peer} with a mask {ratio(taken, f'ours {name}', f'{peer} {name}')}", flush=True)


if __name__ == "__main__":
    main()
