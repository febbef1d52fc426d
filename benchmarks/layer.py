"""One layer, forward and all gradients: attnmath against PyTorch's autograd, in one run.

    python benchmarks/layer.py              time and memory for n = 64, 512 and 2048
    python benchmarks/layer.py --sizes 512 --runs 31 --threads 1

What is measured, and how: benchmarks/README.md.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnmath import Weights, multihead_map, self_attention_vjp
from attnmath.torch import weights_from

BATCH, D, HEADS = 4, 512, 8


class Problem:
    """Tokens, the gradient of the loss in the layer's output, and PyTorch's layer."""

    def __init__(self, n):
        rng = np.random.default_rng(0)
        torch.manual_seed(0)
        self.X, self.dY = (torch.tensor(rng.standard_normal((BATCH, n, D), np.float32)) for _ in "XY")
        self.module = torch.nn.MultiheadAttention(D, HEADS, batch_first=True)
        with torch.no_grad():
            self.module.in_proj_bias += torch.tensor(rng.standard_normal(3 * D, np.float32))
            self.module.out_proj.bias += torch.tensor(rng.standard_normal(D, np.float32))
        self.W = weights_from(self.module)


def ours(p):
    """The output and the gradients in the input, all weights and all biases, by the rules."""
    given = multihead_map(p.X, p.X, p.W)
    return given.Y, self_attention_vjp(p.dY, p.X, p.W, given=given)


def theirs(p):
    """The same by autograd, through the kernel that writes attention out."""
    X = p.X.detach().requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        Y, _ = p.module(X, X, X, need_weights=False)
    return Y, torch.autograd.grad(Y, [X, *p.module.parameters()], p.dY)


CANDIDATES = {"attnmath": ours, "autograd": theirs}


def check(p):
    """Both compute the same: the output, dX, and the gradient of every weight and bias."""
    Y, found = ours(p)
    Y_theirs, (dX, d_in, db_in, d_out, db_out) = theirs(p)
    dW = Weights(*d_in.reshape(3, HEADS, -1, D).mT, d_out.T.reshape(HEADS, -1, D),
                 *db_in.reshape(3, HEADS, -1), db_out)
    for a, b in zip((Y, found.dX, *found.dW), (Y_theirs.detach(), dX, *dW)):
        # The gradient of b_K is zero but for rounding, hence the 1.
        assert a.shape == b.shape and (a - b).abs().max() <= 1e-4 * max(b.abs().max(), 1)


def seconds(p, runs):
    """The wall time of each candidate in each run; the two take turns."""
    taken = {name: [] for name in CANDIDATES}
    for run in range(-2, runs):  # two to warm up
        for name in list(CANDIDATES)[:: 1 if run % 2 else -1]:
            start = time.perf_counter()
            CANDIDATES[name](p)
            if run >= 0:
                taken[name].append(time.perf_counter() - start)
    return {name: np.array(each) for name, each in taken.items()}


def status(field):
    """A line of what Linux says of this process's memory, in MiB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) / 1024


def peak(name, n):
    """In this fresh process: the most memory while the candidate runs, above what was there."""
    CANDIDATES[name](Problem(8))  # loads what the libraries load on the first call
    p = Problem(n)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = status("VmRSS")
    out = CANDIDATES[name](p)
    peak = status("VmHWM") - before
    del out
    return peak


def peaks(name, n, threads, runs):
    """The peak of several fresh processes."""
    command = [sys.executable, __file__, "--peak", name, "--sizes", str(n), "--threads", str(threads)]
    return [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            for _ in range(runs)]


def quartiles(x, form):
    low, middle, high = np.percentile(x, [25, 50, 75])
    return f"{middle:{form}} ({low:{form}}-{high:{form}})"


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sizes", type=int, nargs="+", default=[64, 512, 2048], metavar="n")
    options.add_argument("--runs", type=int, default=15)
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--peak", choices=CANDIDATES, help="measure this one's memory alone, in MiB")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    if given.peak:
        print(json.dumps(peak(given.peak, given.sizes[0])))
        return
    print(f"b = {BATCH}, d = {D}, H = {HEADS}, float32, {given.threads} threads; median (quartiles)")
    for n in given.sizes:
        p = Problem(n)
        check(p)
        taken = seconds(p, given.runs)
        used = {name: peaks(name, n, given.threads, 3) for name in CANDIDATES}
        for name in CANDIDATES:
            print(f"n = {n:4}  {name}: {quartiles(1e3 * taken[name], '.1f')} ms,"
                  f" {quartiles(used[name], '.1f')} MiB")
        ratio = taken["attnmath"] / taken["autograd"]
        memory = np.median(used["attnmath"]) / np.median(used["autograd"])
        print(f"n = {n:4}  attnmath / autograd: time {quartiles(ratio, '.2f')}, memory {memory:.2f}")


if __name__ == "__main__":
    main()
