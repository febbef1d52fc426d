"""The Triton kernels on a GPU: first against float64, then beside PyTorch's kernels and a published one.

    python benchmarks/gpu.py                  all of it, into attnmath/book/gpu.json; at most eight minutes
    python benchmarks/gpu.py --minutes 3 --out here.json
    TRITON_INTERPRET=1 python benchmarks/gpu.py --dry    on a processor: the same path, whose times mean nothing

NOT MEASURED: this has not run on a GPU. It needs CUDA, Triton and no network. If a kernel is off,
nothing is measured and it exits with 1. What is measured, and how: benchmarks/README.md.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from importlib.util import find_spec
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import attnmath
from attnmath.rounding import unit_roundoff
from attnmath.torch import scaled_dot_product_attention as attnmath_attention
from attnmath.torch.backend import OF_SECOND

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))
from by_definition import DERIVATIVES, apart, by_autograd, plain  # noqa: E402

RESULTS = Path(attnmath.__file__).parent / "book" / "gpu.json"
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
SIZES = 1024, 4096, 16384, 65536, 2048, 8192, 32768  # in this order, should the time not do for all
TOKENS = 65536  # of all heads together, which are at least two
HEADS = {"bfloat16": (64, 128), "float32": (64, 128)}
LARGEST = 16 * 2**30  # bytes that the kernel that writes out may take
MATRICES = 15  # of n x m: as many its double backward has at once
ROUNDOFFS = {"bfloat16": 20, "float32": 60}  # as in tests/torch/test_triton.py
PRODUCTS = {"forward": 2, "backward": 7, "jvp": 6, "double": 12}  # of matrices, with what is made again
GOALS = {"jvp": ("forward", 3.3), "double": ("backward", 2.5)}  # at most so many times PyTorch's fused kernel
PEAKS = {  # TFLOP/s as their makers publish them: tensor cores in bfloat16 without sparsity, float32 without them
    "A100": (312.0, 19.5), "H100 PCIe": (756.0, 51.2), "H100": (989.4, 66.9), "H200": (989.4, 66.9),
    "B200": (2250.0, 75.0),
}


class Point(NamedTuple):
    """One place where all programs are measured."""

    dtype: str
    d: int
    causal: bool
    n: int
    heads: int


class Numbers:
    """Gaussian Q, K, V and dO, a tangent of each, at a point; leaves of their own for each program."""

    def __init__(self, p: Point, device: str) -> None:
        rng = torch.Generator(device).manual_seed(0)
        shape = 1, p.heads, p.n, p.d
        draw = partial(torch.randn, shape, generator=rng, device=device, dtype=DTYPES[p.dtype])
        self.x, self.dO, self.x_dot = tuple(draw() for _ in "QKV"), draw(), tuple(draw() for _ in "QKV")


# ---- the programs: source -> f(Q, K, V, causal), pass -> run(f, numbers, causal)


def fused(Q: Any, K: Any, V: Any, causal: bool) -> Any:
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):  # the first that takes it
        return scaled_dot_product_attention(Q, K, V, is_causal=causal)


def math(Q: Any, K: Any, V: Any, causal: bool) -> Any:
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(Q, K, V, is_causal=causal)


@cache
def compiled_flex() -> tuple[Callable, Callable]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    return torch.compile(flex_attention, dynamic=False), cache(create_block_mask)


def sees(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def flex(Q: Any, K: Any, V: Any, causal: bool) -> Any:
    attention, mask = compiled_flex()
    n = Q.shape[-2]
    return attention(Q, K, V, block_mask=mask(sees, None, None, n, n, device=str(Q.device)) if causal else None)


def published(Q: Any, K: Any, V: Any, causal: bool) -> Any:
    from jvp_flash_attention.jvp_attention import JVPAttn

    return JVPAttn.fwd_dual(Q, K, V, causal=causal)


def strips(Q: Any, K: Any, V: Any, causal: bool) -> Any:
    return attnmath_attention(Q, K, V, is_causal=causal)


def kernels(Q: Any, K: Any, V: Any, causal: bool) -> Any:
    return attnmath_attention(Q, K, V, is_causal=causal, backend="triton")


SOURCES: dict[str, Callable] = {"triton": kernels, "fused": fused, "math": math, "flex": flex,
                                "jvp_flash_attention": published, "strips": strips}
LACKS = {("fused", "jvp"), ("fused", "double"), ("flex", "jvp"), ("flex", "double"),
         ("jvp_flash_attention", "double")}


def leaves(tensors: Any) -> list:
    return [x.detach().requires_grad_() for x in tensors]


def forward(f: Callable, a: Numbers, causal: bool) -> Callable[[], tuple]:
    return lambda: (f(*a.x, causal),)


def backward(f: Callable, a: Numbers, causal: bool) -> Callable[[], tuple]:
    """Output and gradients."""
    def run() -> tuple:
        x = leaves(a.x)
        return torch.autograd.grad(f(*x, causal), x, a.dO)

    return run


def jvp(f: Callable, a: Numbers, causal: bool) -> Callable[[], tuple]:
    """Output and tangent."""
    return lambda: torch.func.jvp(lambda *x: f(*x, causal), a.x, a.x_dot)


def double(f: Callable, a: Numbers, causal: bool) -> Callable[[], tuple]:
    """The double backward alone; output, gradients and their graph stay."""
    given = leaves((a.dO, *a.x))
    dO, *x = given
    first = torch.autograd.grad(f(*x, causal), x, dO, create_graph=True)
    return lambda: torch.autograd.grad(first, given, a.x_dot, retain_graph=True)


PASSES = {"forward": forward, "backward": backward, "jvp": jvp, "double": double}

# ---- first: is it right?


KINDS = {
    "plain": {}, "causal": dict(causal=True), "softcap": dict(softcap=2.0), "window": dict(window=(9, 3)),
    "sinks, slopes": dict(sinks=True, alibi_slopes=True), "bias": dict(mask=True),
}


def checks(device: str, sizes: Any, heads: dict, kinds: dict) -> Iterator[dict]:
    """Each derivative of the kernels beside the definition in float64, in unit roundoffs of the format."""
    for dtype, (n, m) in product(heads, sizes):
        for d, (name, kind) in product(heads[dtype], kinds.items()):
            x, options, names = asked(kind, n, n if name == "causal" else m, d, DTYPES[dtype], device)
            rest = [numbers(x, 1), numbers(x, 2), torch.randn_like(x[0]), torch.randn_like(x[0])]
            with torch.device(device):
                right = by_autograd(partial(call, plain, names, options), *map(wide, (x, *rest)))
            for f in DERIVATIVES[:5]:  # up to second order once
                got = f(partial(call, ours, names, options), tuple(x), *map(tupled, rest))
                off = apart([y.double() for y in got], right[f.__name__]) / unit_roundoff(dtype)
                yield dict(derivative=f.__name__.replace("_", " "), case=name, dtype=dtype, d=d, n=n, m=m,
                           roundoffs=round(off, 2), allowed=ROUNDOFFS[dtype])


def asked(kind: dict, n: int, m: int, d: int, dtype: Any, device: str) -> tuple[list, dict, tuple]:
    """What is differentiated in, the other options, and the names of what stands behind Q, K, V."""
    rng = torch.Generator(device).manual_seed(n)
    draw = partial(torch.randn, generator=rng, device=device)
    shapes = dict(mask=(2, n, m), sinks=(2,), alibi_slopes=(2,))
    names = tuple(name for name in shapes if kind.get(name) is True)
    x = [draw((1, 2, rows, d)).to(dtype) for rows in (n, m, m)]
    x += [(draw(shapes[name]) / (8 if name == "alibi_slopes" else 1)).to(dtype) for name in names]
    return x, {name: value for name, value in kind.items() if name not in names}, names


def ours(Q: Any, K: Any, V: Any, *, causal: bool = False, mask: Any = None, **options: Any) -> Any:
    return attnmath_attention(Q, K, V, mask, is_causal=causal, backend="triton", **options)


def call(f: Callable, names: tuple, options: dict, Q: Any, K: Any, V: Any, *more: Any) -> Any:
    return f(Q, K, V, **options, **dict(zip(names, more)))


def numbers(x: list, seed: int) -> tuple:
    rng = torch.Generator(x[0].device).manual_seed(seed)
    return tuple(torch.randn(y.shape, generator=rng, device=y.device).to(y.dtype) for y in x)


def wide(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) else tuple(y.double() for y in x)


def tupled(x: Any) -> Any:
    return x if isinstance(x, torch.Tensor) else tuple(x)


# ---- then: how long, and how much memory?


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(run: Callable, device: str, budget: float) -> list[float]:
    """Milliseconds of each run, after one that warms up; of one run on a processor, where they say nothing."""
    taken: list[float] = []
    fewest = 1
    if device == "cuda":
        fewest = 3
        run()
    wait(device)
    begun = time.perf_counter()
    while len(taken) < fewest or time.perf_counter() < begun + budget and len(taken) < 50:
        start = time.perf_counter()
        run()
        wait(device)
        taken.append(1e3 * (time.perf_counter() - start))
    return taken


def most_memory(run: Callable, device: str) -> float | None:
    """MiB above what was there and what comes back."""
    if device != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = run()
    return max(torch.cuda.max_memory_allocated() - before - sum(x.nbytes for x in out), 0) / 2**20


def measured(p: Point, what: str, source: str, device: str, budget: float) -> dict:
    """One program at one point; why it is absent if it is."""
    if source == "math" and MATRICES * p.heads * p.n**2 * DTYPES[p.dtype].itemsize > LARGEST:
        return {"absent": "memory"}
    if source == "triton" and what == "double" and p.d > OF_SECOND[DTYPES[p.dtype]]:
        return {"absent": "the strips do it"}
    if (source, what) in LACKS:
        return {"absent": "it has none"}
    if source == "jvp_flash_attention" and not find_spec(source):
        return {"absent": "not installed"}
    if device != "cuda" and source not in ("triton", "fused", "math", "strips"):
        return {"absent": "not on a processor"}
    try:
        run = PASSES[what](SOURCES[source], Numbers(p, device), p.causal)
        taken = timed(run, device, budget)
        memory = most_memory(run, device)
    except Exception as error:  # a peer that cannot do it is told, not hidden
        return {"absent": f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:120]}
    rate = operations(p, what) / min(taken) / 1e9
    top = peak(p.dtype, device)
    share = rate / top if top else None
    found = {"ms": [min(taken), median(taken)], "MiB": memory, "TFLOP/s": rate, "share": share}
    return {name: rounded(value) for name, value in found.items()}


def operations(p: Point, what: str) -> float:
    """Of the products that a pass needs, half of them under a causal mask."""
    return 2.0 * PRODUCTS[what] * p.heads * p.n**2 * p.d / (2 if p.causal else 1)


def peak(dtype: str, device: str) -> float | None:
    """TFLOP/s of the chip in this format, if it is known."""
    if device != "cuda":
        return None
    name = torch.cuda.get_device_name()
    known = next((PEAKS[chip] for chip in PEAKS if all(word in name for word in chip.split())), None)
    return known and known[dtype == "float32"]


def rounded(x: Any) -> Any:
    """Four digits."""
    return [rounded(y) for y in x] if isinstance(x, list) else float(f"{x:.4g}") if isinstance(x, float) else x


# ---- what comes of it


def points(sizes: Any, heads: dict) -> Iterator[Point]:
    for n in sizes:
        for dtype in heads:
            for d, causal in product(heads[dtype], (False, True)):
                yield Point(dtype, d, causal, n, max(2, TOKENS // n if n >= 1024 else 2))


def compile_first(p: Point, device: str) -> None:
    """In a process of its own: what is compiled lies then where the next process finds it."""
    for what, source in product(PASSES, ("triton", "jvp_flash_attention")):
        measured(p, what, source, device, 0)


def least(point: dict, what: str, source: str) -> float | None:
    found = point["passes"][what][source].get("ms")
    return found and found[0]


def rows(found: list[dict]) -> list[dict]:
    """For the chapter, at the longest n: each derivative over PyTorch's fused kernel, the fastest peer over it."""
    out = []
    for dtype, d, causal in dict.fromkeys((p["dtype"], p["d"], p["causal"]) for p in found):
        of = [p for p in found if (p["dtype"], p["d"], p["causal"]) == (dtype, d, causal)]
        p = max(of, key=lambda p: p["n"])
        row: dict = {"numbers": f"{dtype}, {d}" + ", causal" * causal, "n": p["n"]}
        for what, (base, most) in GOALS.items():
            own, fused_time = least(p, what, "triton"), least(p, base, "fused")
            peers = [t for s in SOURCES if s not in ("triton", "strips") and (t := least(p, what, s))]
            row[f"{what} / fused {base} (goal {most})"] = f"{own / fused_time:.2f}" if own and fused_time else "-"
            row[f"fastest peer / {what}"] = f"{min(peers) / own:.2f}" if own and peers else "-"
            share = p["passes"][what]["triton"].get("share")
            row[f"{what}, share of the chip"] = f"{share:.0%}" if share else "-"
        row["memory of the double backward grows as n to the"] = growth(of)
        out.append(row)
    return out


def growth(of: list[dict]) -> str:
    """The power of the tokens of a head with which memory for each head grows."""
    from math import log

    known = [(p["n"], m / p["heads"]) for p in of if (m := p["passes"]["double"]["triton"].get("MiB"))]
    (n, low), (N, high) = min(known, default=(1, 1)), max(known, default=(1, 1))
    return f"{log(high / low) / log(N / n):.2f}" if N > n else "-"


def goals(found: list[dict]) -> dict:
    """Of the points where it can be said: how many meet each goal."""
    out = {}
    for what, (base, most) in GOALS.items():
        pairs = [(a, b) for p in found if (a := least(p, what, "triton")) and (b := least(p, base, "fused"))]
        out[f"{what} at most {most} times the fused {base}"] = [sum(a <= most * b for a, b in pairs), len(pairs)]
        peers = [(least(p, what, "triton"), t) for p in found for s in SOURCES
                 if s not in ("triton", "strips") and (t := least(p, what, s))]
        out[f"{what} faster than a peer"] = [sum(bool(a) and a < b for a, b in peers), len(peers)]
    return out


def machine(device: str) -> dict:
    """On what it was measured."""
    import triton

    about = {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda}
    if device != "cuda":
        return {"device": "a processor, interpreted: no measurement"} | about
    return {"device": torch.cuda.get_device_name(), "capability": list(torch.cuda.get_device_capability())} | about


def record(device: str, given: argparse.Namespace) -> dict:
    """All of it, within the time."""
    until = time.monotonic() + 60 * given.minutes - 20
    data: dict = {"measured on": machine(device), "dry": given.dry, "checks": [], "points": []}
    sizes, heads = ([(17, 20)], {"float32": (16,), "bfloat16": (16,)}) if given.dry else ([(257, 190)], HEADS)
    todo = list(points([16, 32] if given.dry else SIZES, heads))
    if not given.dry:
        first = [p._replace(n=1024, heads=2) for p in todo if p.n == todo[0].n]
        with ProcessPoolExecutor(len(first), mp_context=get_context("spawn")) as pool:
            list(pool.map(partial(compile_first, device=device), first))
    for check in checks(device, sizes, heads, {"sinks, slopes": KINDS["sinks, slopes"]} if given.dry else KINDS):
        data["checks"].append(check)
        print("check", json.dumps(check), flush=True)
    if any(not check["roundoffs"] <= check["allowed"] for check in data["checks"]):
        return data
    for p in todo:
        if time.monotonic() > until:
            data.setdefault("no time for", []).append(list(p))
            continue
        found = {what: {source: measured(p, what, source, device, given.seconds) for source in SOURCES}
                 for what in PASSES}
        data["points"].append(p._asdict() | {"passes": found})
        print("point", json.dumps(data["points"][-1]), flush=True)
        if device == "cuda":
            torch.cuda.empty_cache()
    return data | {"rows": rows(data["points"]), "goals": goals(data["points"])}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--dry", action="store_true", help="on a processor, in Triton's interpreter; no figures")
    options.add_argument("--minutes", type=float, default=8, help="after which no further point is begun")
    options.add_argument("--seconds", type=float, default=0.1, help="for each program at a point; at least 3 runs")
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    if not given.dry and not torch.cuda.is_available():
        options.error("there is no GPU here; --dry tries the path on a processor, with TRITON_INTERPRET=1")
    if given.dry and given.out and given.out.resolve() == RESULTS.resolve():
        options.error("a dry run measures nothing, and is not written into the book")
    data = record("cpu" if given.dry else "cuda", given)
    wrong = [check for check in data["checks"] if not check["roundoffs"] <= check["allowed"]]
    out = given.out or (None if given.dry or wrong else RESULTS)
    if out:
        out.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    print(f"{len(data['checks'])} checks, {len(wrong)} off; {len(data['points'])} points; {data.get('goals')}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
