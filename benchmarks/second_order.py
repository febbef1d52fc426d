"""Derivatives of attention: PyTorch's fused kernel, the kernel that writes it out, and attnmath.

    python benchmarks/second_order.py               all of it, into attnmath/book/second_order.json (20 minutes)
    python benchmarks/second_order.py times --sizes 4096 --heads 1 --out times.json
    python benchmarks/second_order.py times memory --device cuda --out cuda.json

What is measured, and how: benchmarks/README.md.
"""

import argparse
import ctypes
import json
import os
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import attnmath
from attnmath.book.networks import step
from attnmath.torch import scaled_dot_product_attention as ours

D = 64
LARGEST = 6 * 2**30  # bytes that the kernel that writes out may take
MATRICES = 15  # of n x n: as many its double backward has at once
LONG = 65536
STEPS = {"mean_flow": 4096, "penalised": 4096, "burgers": 2048}  # tokens
RESULTS = Path(attnmath.__file__).parent / "book" / "second_order.json"


def math(*x, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(*x, **options)


def triton(q, k, v, is_causal):
    """The public alternative for graphics processors (jvp-flash-attention)."""
    from jvp_flash_attention.jvp_attention import JVPAttn

    return JVPAttn.fwd_dual(q, k, v, causal=is_causal)


class Problem:
    """Gaussian Q, K, V and dO, and a tangent of each."""

    def __init__(self, n, heads, causal, device):
        torch.manual_seed(0)
        draw = partial(torch.randn, 1, heads, n, D, device=device)
        self.x, self.dO = tuple(draw() for _ in "QKV"), draw()
        self.tangents = tuple(draw() for _ in "QKV")
        self.options = {"is_causal": causal}


def leaves(tensors):
    return [x.detach().requires_grad_() for x in tensors]


def forward(f, p):
    return (f(*p.x, **p.options),)


def backward(f, p):
    """Forward and backward."""
    x = leaves(p.x)
    O = f(*x, **p.options)
    return O.detach(), *torch.autograd.grad(O, x, p.dO)


def jvp(f, p):
    return torch.func.jvp(partial(f, **p.options), p.x, p.tangents)


def first(f, p):
    """The gradients with their graph, and what they can be differentiated in."""
    *x, dO = leaves((*p.x, p.dO))
    O = f(*x, **p.options)
    return O, torch.autograd.grad(O, x, dO, create_graph=True), (dO, *x)


def double(p, O, gradients, given):
    """The double backward alone; the graph stays."""
    return torch.autograd.grad(gradients, given, p.tangents, retain_graph=True)


def second(f, p):
    """Forward, backward and double backward."""
    O, gradients, given = first(f, p)
    out = torch.autograd.grad(gradients, given, p.tangents)
    return O.detach(), *(g.detach() for g in gradients), *out


SOURCES = {"fused": scaled_dot_product_attention, "math": math, "ours": ours}
PASSES = {"forward": forward, "backward": backward, "jvp": jvp, "second": second}
LACKS = {("fused", "jvp"), ("fused", "second"), ("triton", "second")}
RATIOS = (  # what each figure of the table divides by what
    ("ours forward", "fused forward"),
    ("ours backward", "fused backward"),
    ("ours jvp", "fused forward"),
    ("math jvp", "ours jvp"),
    ("ours double", "fused backward"),
    ("math double", "ours double"),
    ("math second", "ours second"),
    ("triton jvp", "ours jvp"),
)


def programs(device, n=0, heads=1):
    """What is measured there: "source pass" -> function of a problem."""
    sources = dict(SOURCES)
    if MATRICES * heads * n**2 * 4 > LARGEST:
        del sources["math"]
    if device == "cuda" and find_spec("jvp_flash_attention"):
        sources["triton"] = triton
    return {f"{source} {name}": partial(run, f) for source, f in sources.items()
            for name, run in PASSES.items() if (source, name) not in LACKS}


def agree(p, todo):
    """Every program computes what the one that writes out computes, up to the rounding of float32."""
    for right in [name for name in todo if name.startswith("math")]:
        wanted = todo[right](p)
        for name in {f"{source} {right.split()[1]}" for source in ("fused", "ours")} & {*todo}:
            for a, b in zip(todo[name](p), wanted, strict=True):
                assert (a - b).abs().max() <= 1e-4 * b.abs().max(), name


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def turns(work, device, budget, fewest=3, most=40):
    """The seconds of each program in each turn; all take turns, until the budget is spent."""
    taken, start = [], None
    while start is None or len(taken) < fewest or (time.perf_counter() < start + budget and len(taken) < most):
        order = list(work)[:: 1 if len(taken) % 2 else -1]
        turn = {name: seconds(work[name], device) for name in order}
        if start is None:  # the first turn warms up
            start = time.perf_counter()
        else:
            taken.append(turn)
    return {name: [turn[name] for turn in taken] for name in work}


def seconds(run, device):
    wait(device)
    start = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - start


def figures(taken):
    """Milliseconds (least, median), and the ratios: of the least, and the median of those of each turn."""
    ratios = {f"{a} / {b}": [min(taken[a]) / min(taken[b]), median(x / y for x, y in zip(taken[a], taken[b]))]
              for a, b in RATIOS if a in taken and b in taken}
    ms = {name: [1e3 * min(each), 1e3 * median(each)] for name, each in taken.items()}
    return {"runs": len(next(iter(taken.values()))), "ms": ms, "ratios": ratios}


def times(n, heads, causal, given, keep=False):
    """All programs at one point, in a process of their own."""
    torch.set_num_threads(given.threads)
    if keep:  # the C library keeps freed memory, and does not ask the system for it again
        libc = ctypes.CDLL(None)
        assert libc.mallopt(-4, 0) and libc.mallopt(-1, -1)  # no mmap, no trim
    p = Problem(n, heads, causal, given.device)
    todo = programs(given.device, n, heads)
    agree(p, todo)
    work = {name: partial(run, p) for name, run in todo.items()}
    for source in (name.split()[0] for name in todo if name.endswith("second")):
        work[f"{source} double"] = partial(double, p, *first(SOURCES[source], p))
    return figures(turns(work, given.device, given.seconds))


def step_times(task, n, given):
    """One training step of an application by both programs."""
    torch.set_num_threads(given.threads)
    work = {source: step(task, SOURCES[source], n) for source in ("ours", "math")}
    taken = turns(work, given.device, given.seconds)
    return {f"{source}_s": min(each) for source, each in taken.items()}


def status(field):
    """A line of what Linux says of this process's memory, in bytes."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) * 1024


def above(run, device):
    """The most memory while a program runs, above what was there and what it returns, in MiB."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
        before = status("VmRSS")
    out = run()
    most = torch.cuda.max_memory_allocated() if device == "cuda" else status("VmHWM")
    return max(most - before - sum(x.nbytes for x in out), 0) / 2**20


def peak(name, n, heads, causal, given):
    """Of one program in a fresh process."""
    torch.set_num_threads(given.threads)
    run = programs(given.device)[name]
    run(Problem(16, 1, causal, given.device))  # loads what the libraries load on the first call
    p = Problem(n, heads, causal, given.device)
    return above(partial(run, p), given.device)


def step_peak(task, source, n, given):
    """Of one training step; what it returns, gradients of few weights, counts."""
    torch.set_num_threads(given.threads)
    step(task, SOURCES[source], 16)()
    run = step(task, SOURCES[source], n)
    return above(lambda: (run(), ())[1], given.device)


def fresh(work, *arguments):
    """work(*arguments) in a process of its own, which has the libraries but has computed nothing."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "attnmath.torch.sdpa", "attnmath.book.networks"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, *arguments).result()


def machine(given):
    """On what it was measured."""
    about = {"torch": torch.__version__.split("+")[0], "threads": given.threads, "cores": os.cpu_count()}
    if given.device == "cuda":
        return {"device": torch.cuda.get_device_name(), **about}
    names = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]
    return {"device": names[0] if names else platform.machine(), **about,
            "instructions": torch.backends.cpu.get_cpu_capability()}


def rounded(x):
    """Four digits of every number."""
    if isinstance(x, dict):
        return {key: rounded(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [rounded(value) for value in x]
    return float(f"{x:.4g}") if isinstance(x, float) else x


def measure(what, given):
    """The points of one kind: (key, figures) one after the other."""
    points = [(n, heads, causal) for n in given.sizes for heads in given.heads for causal in (False, True)]
    if what == "times":
        for point in points:
            yield key(*point), fresh(times, *point, given)
    elif what == "kept":
        for causal in (False, True):
            yield key(4096, 1, causal), fresh(times, 4096, 1, causal, given, True)
    elif what == "memory":
        for point in points:
            if point[1] == 1:
                yield key(*point), {name: fresh(peak, name, *point, given)
                                    for name in programs(given.device, *point[:2]) if "forward" not in name}
    elif what == "long":
        for name in ("ours jvp", "ours second"):  # the second has forward and backward in it
            yield name, {"n": LONG, "MiB": fresh(peak, name, LONG, 1, False, given)}
    else:
        for task, n in STEPS.items():
            memory = {f"{source}_MiB": fresh(step_peak, task, source, n, given) for source in ("ours", "math")}
            yield task, {"n": n, **fresh(step_times, task, n, given), **memory}


def key(n, heads, causal):
    return f"n = {n}, H = {heads}" + ", causal" * causal


KINDS = ("times", "kept", "memory", "applications", "long")


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("what", nargs="*", choices=(*KINDS, []), help="all, if none is named")
    options.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192], metavar="n")
    options.add_argument("--heads", type=int, nargs="+", default=[1, 8], metavar="H")
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--seconds", type=float, default=15, help="for the turns at one point")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    data = json.loads(given.out.read_text()) if given.out.exists() else {}
    data["measured on"] = machine(given)
    for what in given.what or KINDS:
        for name, found in measure(what, given):
            data.setdefault(what, {})[name] = rounded(found)
            print(what, name, json.dumps(data[what][name]), flush=True)
            given.out.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
