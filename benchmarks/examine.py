"""What examine's comparison and the bounds of rounding cost beside the kernel that is judged, in one run.

    python benchmarks/examine.py            n = 1024, d = 64, 1 and 8 heads
    python benchmarks/examine.py --sizes 256 --runs 31 --threads 1

What is measured, and how: benchmarks/README.md.
"""

import argparse
import time

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnmath import rounding
from attnmath._examine.problems.bounds import judge_answer, right_and_bounds
from attnmath._examine.problems.case import Answer, Case, Conventions

D = 64


class Problem:
    """One item, gaussian, in float32: PyTorch's tensors, and the case that examine makes of them."""

    def __init__(self, n, heads):
        rng = np.random.default_rng(0)
        self.x = [torch.tensor(rng.standard_normal((1, heads, n, D), np.float32)) for _ in range(4)]
        self.case = Case(*(x.double().numpy() for x in self.x))
        self.got = Answer(*(x.double().numpy() for x in kernel(self)))


def kernel(p, dtype=torch.float32):
    """Forward and backward of the kernel that writes attention out."""
    *given, dO = (x.to(dtype, copy=True) for x in p.x)
    Q, K, V = (x.requires_grad_() for x in given)
    with sdpa_kernel(SDPBackend.MATH):
        O = torch.nn.functional.scaled_dot_product_attention(Q, K, V)
    return O.detach(), *torch.autograd.grad(O, [Q, K, V], dO)


def comparison(p):
    """The right answer in float64, the bound of each entry, and the judgement."""
    judged = judge_answer(p.got, *right_and_bounds(p.case, Conventions(), "float32"), "float32")
    assert all(j.passed and 0 < j.ratio for j in judged.values())
    return judged


def kernel64(p):
    """The same in float64."""
    return kernel(p, torch.float64)


def gradients(p):
    """The bounds of the gradients in float64, with those of the output that they need."""
    return rounding.attention_vjp(p.x[3], *p.x[:3], dtype="float64")


def output(p):
    """The bounds of the output in float64."""
    return rounding.attention(*p.x[:3], dtype="float64")


def seconds(p, candidates, runs, clock):
    """The time of each candidate in each run; they take turns."""
    taken = {run.__name__: [] for run in candidates}
    for turn in range(-2, runs):  # two to warm up
        for run in candidates[:: 1 if turn % 2 else -1]:
            start = clock()
            run(p)
            if turn >= 0:
                taken[run.__name__].append(clock() - start)
    return {name: np.array(each) for name, each in taken.items()}


def quartiles(x, form):
    low, middle, high = np.percentile(x, [25, 50, 75])
    return f"{middle:{form}} ({low:{form}}-{high:{form}})"


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sizes", type=int, nargs="+", default=[1024], metavar="n")
    options.add_argument("--heads", type=int, nargs="+", default=[1, 8], metavar="H")
    options.add_argument("--runs", type=int, default=15)
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--processor", action="store_true", help="processor time, not the clock on the wall")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    clock = time.process_time if given.processor else time.perf_counter
    print(f"d = {D}, {given.threads} threads; median (quartiles)")
    for n, heads in ((n, heads) for n in given.sizes for heads in given.heads):
        for *judges, judged in ((comparison, kernel), (gradients, output, kernel64)):
            taken = seconds(Problem(n, heads), (*judges, judged), given.runs, clock)
            times = ", ".join(f"{name} {quartiles(1e3 * each, '.1f')} ms" for name, each in taken.items())
            ratios = (quartiles(taken[run.__name__] / taken[judged.__name__], ".2f") for run in judges)
            print(f"n = {n}, H = {heads}: {times}; ratio {', '.join(ratios)}")


if __name__ == "__main__":
    main()
