"""How much of the bounds of rounding right programs use: the worst error over its bound, letter by letter.

    python benchmarks/rounding.py                      all of it, into attnmath/book/rounding.json
    python benchmarks/rounding.py --problems 500 --formats float16 --out here.json

What is measured, and how: benchmarks/README.md.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import attnmath
from attnmath import rounding
from attnmath.rounding import bounds, heads, nearest, ratio
from attnmath.rounding.heads import cut_off, fused_head, stepwise_head

FORMATS = "float32", "float16", "bfloat16"
LETTERS = "O", "L", "dP", "D", "dQ", "dK", "dV", "dB", "dgamma"
RESULTS = Path(attnmath.__file__).parent / "book" / "rounding.json"
ALIKE = 100  # problems of the same sizes, solved together
MODELS = {  # what is rounded to the format, and how sums are rounded
    "all": {},
    "stored": {"accumulate": "float32", "fused": False},
    "fused": {"accumulate": "float32"},
    "cut off": {"accumulate": "float32", "truncate": True},
}


# ---- problems: dO, Q, K, V, B and gamma of a batch, numbers of the format -----------------------------


def drawn(rng, n, m, d_k, d_v, size=1.0, count=ALIKE):
    """Gaussian arrays; the scale is a column, so that every problem has a gradient of its own."""
    shapes = (n, d_v), (n, d_k), (m, d_k), (m, d_v), (n, m)
    dO, Q, K, V, B = (rng.normal(size=(count, *shape)) for shape in shapes)
    return [dO, size * Q, size * K, V, B, np.full((count, 1, 1), d_k**-0.5)]


def hidden(rng, x, share):
    """Entries of B that are -inf, and in every other problem a whole row."""
    x[4][rng.random(x[4].shape) < share] = -np.inf
    x[4][::2, 0] = -np.inf
    return x


def anything(rng):
    n, m, d_k, d_v = (int(rng.integers(1, most)) for most in (8, 13, 7, 6))
    x = drawn(rng, n, m, d_k, d_v, rng.choice([1e-3, 0.1, 1.0, 2.0, 5.0]))
    x[4] += rng.choice([0.0, 0.0, 20.0, -500.0])
    x[5] *= rng.choice([1.0, 1.0, -1.0, 0.1, 3.0])
    return hidden(rng, x, 0.4) if rng.random() < 0.3 else x


def tiny(rng):
    """Few terms in every sum, so that few roundings are allowed for; positive, so that none cancel."""
    x = drawn(rng, *(int(k) for k in rng.integers(1, 3, 4)), rng.choice([0.01, 0.3, 1.0]))
    x[4] *= rng.choice([0.0, 1.0, 30.0])
    return [abs(a) for a in x] if rng.random() < 0.5 else x


def common_parts(rng):
    x = drawn(rng, 4, 9, 3, 4, count=30)
    for k in 0, 2, 3:
        x[k] += rng.choice([3.0, 20.0, 60.0]) * rng.normal(size=(30, 1, x[k].shape[-1]))
    return x


def long_keys(rng):
    m = int(rng.choice([300, 1000, 3000]))
    x = drawn(rng, 2, m, 3, 2, rng.choice([0.1, 1.0]), count=4)
    return x if rng.random() < 0.5 else [x[0], *x[1:3], abs(x[3]), *x[4:]]


def hard_rows(rng):
    return drawn(rng, 4, 9, 4, 3, rng.choice([6.0, 12.0]), count=30)


def flat_rows(rng):
    x = drawn(rng, 4, 40, 4, 3, 1e-3, count=30)
    x[4] *= 0
    return x


def large_offsets(rng):
    x = drawn(rng, 4, 9, 4, 3, count=30)
    x[4] += rng.choice([300.0, -300.0, 1e4, -1e4])
    return x


def underflow(rng):
    """Small dO, Q, V, and keys whose scores lie far below the others."""
    x = drawn(rng, 4, 9, 4, 3, count=30)
    for k in rng.choice(4, 2, replace=False):
        x[k] *= 2.0 ** -float(rng.choice([10, 18, 24, 60, 126]))
    x[4][rng.random(x[4].shape) < 0.4] -= rng.choice([9.0, 17.0, 88.0, 103.0])
    return x


def small_steps(rng):
    """Arrays of all sizes and scales far from 1: what is lost below the steps of float16 meets large factors."""
    n = int(rng.choice([3, 200]))
    x = drawn(rng, n, *(int(k) for k in rng.choice([1, 2, 5, 20], 3)), count=4)
    for k in range(4):
        x[k] *= 2.0 ** float(rng.integers(-20, 5))
    x[4] *= rng.choice([0.0, 1.0])
    x[5] *= rng.choice([-1.0, 2.0**-10, 0.01, 20.0, 100.0])
    most = max(1.0, abs(x[5]).max()) * (abs(x[1]) @ abs(np.swapaxes(x[2], -1, -2))).max()
    x[1] *= min(1.0, 3e4 / most)  # nothing overflows
    return x


def masks(rng):
    return hidden(rng, drawn(rng, 5, 9, 4, 3, count=30), rng.choice([0.3, 0.8]))


def wide_values(rng):
    return drawn(rng, 3, 7, 1, 40, count=30)


def one_key(rng):
    return drawn(rng, 5, 1, 3, 4, count=30)


def many_queries(rng):
    x = drawn(rng, 600, 3, 2, 2, 0.3, count=4)
    return [abs(x[0]), *x[1:]]


def one_product(rng):
    """Of two keys one is zero, so that the gradient of the scale is one product."""
    x = drawn(rng, 1, 2, 1, 1, rng.choice([0.3, 1.0, 3.0]))
    x[2][:, 1] = 0
    return x


def standing_sums(over, k, step, sums):
    """A sum of k terms that begins with 1; the others lie just below what it can see, or just above."""
    column = np.full((k, 1), step * rounding.unit_roundoff(sums))
    column[0] = 1
    sign, one, two = np.where(np.arange(k) % 2, -1.0, 1.0)[:, None], np.ones((1, 1)), np.array([[1.0], [0.0]])
    none, both = np.zeros((1, 1)), np.array([[1.0], [-1.0]])
    x = {
        "values": (np.ones((1, k)), none, two, both * column.T, np.zeros((1, 2))),
        "features": (one, column.T, np.ones((1, k)), one, none),
        "queries, dV": (column, 0 * column, two, both, np.zeros((k, 2))),
        "queries, dK": (np.ones((k, 1)), column, two, both, np.concatenate([-column, 0 * column], 1)),
        "keys, O": (one, none, 0 * column, column, np.zeros((1, k))),
        "keys, L": (one, none, 0 * column, np.ones((k, 1)), np.log(column).T),
        "keys, dQ": (one, none, sign * column, sign, np.zeros((1, k))),
    }
    return [np.repeat(a[None], 4, 0) for a in (*x[over], one)]


def standing(dtype):
    """Which of them there are: the sum over what and for which letter, how long, how large, in which format."""
    over = "values", "features", "queries, dV", "queries, dK", "keys, O", "keys, L", "keys, dQ"
    return list(product(over, (20, 60, 300), (0.98, 1.03, 1.96), dict.fromkeys((dtype, "float32"))))


RANDOM = {"anything": anything, "tiny": tiny}
DIRECTED = {f.__name__.replace("_", " "): f for f in (
    common_parts, long_keys, hard_rows, flat_rows, large_offsets, underflow, small_steps, masks, wide_values,
    one_key, many_queries, one_product)}
FAMILIES = [*RANDOM, *DIRECTED, "standing sums"]


def problem(family, dtype, seed):
    """A batch of a family, rounded to the format."""
    if family == "standing sums":
        return [nearest(a, dtype) for a in standing_sums(*standing(dtype)[seed])]
    rng = np.random.default_rng([seed, FAMILIES.index(family), FORMATS.index(dtype)])
    return [nearest(a, dtype) for a in (RANDOM | DIRECTED)[family](rng)]


# ---- programs: x, dtype -> letters ------------------------------------------------------------------


def numpy_functions(x, dtype):
    return own([a.astype(dtype) for a in x])


def torch_functions(x, dtype):
    return own([torch.tensor(a).to(getattr(torch, dtype)) for a in x])


def own(x):
    """Our functions, in the library and the format of the arrays."""
    O, L = attnmath.attention_map(*x[1:])[3:1:-1]
    return {"O": O, "L": L, **attnmath.attention_vjp(*x)._asdict()}


def kernel(backend, x, dtype):
    """PyTorch's, on the processor; B is given where it is not zero."""
    dO, Q, K, V, B = (torch.tensor(a).to(getattr(torch, dtype))[None] for a in x[:5])
    given = [a.requires_grad_() for a in (Q, K, V)]
    with sdpa_kernel(backend):
        O = scaled_dot_product_attention(*given, attn_mask=B if B.any() else None, scale=float(x[5].flat[0]))
    back = torch.autograd.grad(O, given, dO)
    return dict(zip(("O", "dQ", "dK", "dV"), (a[0] for a in (O, *back))))


def flash(x, dtype):
    """PyTorch's fused kernel, which wants values as wide as the keys, and gives a row without keys L = 0."""
    dO, Q, K, V, B = (torch.tensor(a).to(getattr(torch, dtype)) for a in x[:5])
    d = max(Q.shape[-1], V.shape[-1])
    wide = [torch.nn.functional.pad(a, (0, d - a.shape[-1])) for a in (dO, Q, K, V)]
    got = kernel(SDPBackend.FLASH_ATTENTION, [*(a.double().numpy() for a in wide), *x[4:]], dtype)
    mask = {"attn_mask": B[None]} if B.any() else {}
    scores = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *(a[None] for a in wide[1:]), scale=float(x[5].flat[0]), **mask)
    widths = {"O": V, "dQ": Q, "dK": K, "dV": V}
    L = np.where(np.isneginf(x[4]).all(-1), -np.inf, scores[1][0].numpy())
    return {name: got[name][..., : like.shape[-1]] for name, like in widths.items()} | {"L": L}


def each(head, x):
    """A head for each problem, and what they return put together."""
    found = [head(i, *(a[i] for a in x[:5]), float(x[5][i, 0, 0])) for i in range(len(x[0]))]
    return {name: np.stack([one[name] for one in found]) for name in found[0] if found[0][name] is not None}


def fused(x, dtype):
    """Tiles of several sizes, both ways to D, the same scores in both passes and others."""
    def head(i, *one):
        O, L, back = fused_head(*one, dtype, (4, 7, 16)[i % 3], "OP"[i % 2], i % 4 < 2)
        return {"O": O, "L": L, **back._asdict()}
    return each(head, x)


def stepwise(x, dtype):
    def head(i, *one):
        order = np.random.default_rng(i).permutation(len(one[2])) if i % 2 else None
        found = stepwise_head(*one, dtype, order)
        back = found.back._replace(dgamma=np.full((1, 1), found.back.dgamma))
        return {**found._asdict(), **back._asdict()} | {"back": None}
    return each(head, x)


@contextmanager
def products(by):
    """Simulated heads whose matrix products are those of another function."""
    before, heads._single = heads._single, by
    try:
        yield
    finally:
        heads._single = before


def cutting(group, x, dtype):
    with products(partial(cut_off, group=group)):
        return fused(x, dtype)


PROGRAMS = {  # what a program rounds, and the program
    "attnmath, NumPy": ("all", numpy_functions),
    "attnmath, PyTorch": ("stored", torch_functions),
    "PyTorch, math": ("stored", partial(kernel, SDPBackend.MATH)),
    "PyTorch, flash": ("fused", flash),
    "simulated, every step": ("all", stepwise),
    "simulated, tiles": ("fused", fused),
    **{f"simulated, cut off by {g}": ("cut off", partial(cutting, g)) for g in (4, 8, 16)},
}
OUTSIDE = ("PyTorch, flash", "L")  # in the short formats; chapters/rounding.md


# ---- the comparison -----------------------------------------------------------------------------------


def options(model, dtype):
    """Those of the bounds; in float32 there is one format for everything."""
    return MODELS[model] | {"dtype": dtype}


def right(x):
    """What is exact."""
    O, L, P = (getattr(attnmath.attention_map(*x[1:]), name) for name in "OLP")
    dP = x[0] @ np.swapaxes(x[3], -1, -2)
    D = (P * dP).sum(-1, keepdims=True)
    return {"O": O, "L": L, "dP": dP, "D": D, **attnmath.attention_vjp(*x)._asdict()}


def allowed(x, model, dtype, **more):
    """The bound of every letter. Those of dP and D are not returned by a public function."""
    told = options(model, dtype)
    found = rounding.attention(*x[1:], **told)._asdict() | rounding.attention_vjp(*x, **told, **more)._asdict()
    f = bounds.model("", **({"accumulate": None, "fused": True} | told))
    given = bounds.read_inputs("", **dict(zip(("dO", "Q", "K", "V", "B", "gamma"), x)), R=None)
    w = bounds.weight_bounds(f, given)
    O, O_off = bounds.output_off(f, given, *bounds.factor(f, given, w))
    dP, dP_off = bounds.weights_vjp(f, given)
    return found | {"dP": dP_off, "D": bounds.row_statistic(f, given, w, O, O_off, dP, dP_off)[1]}


def compare(x, dtype, programs=PROGRAMS):
    """{(model, program, letter): worst error over bound} of one batch."""
    want, ratios, limits = right(x), {}, {}
    stores = -(-x[0].shape[-2] // 32)  # the kernel adds as many tiles of queries
    for name in programs:
        model, program = PROGRAMS[name]
        if (name, dtype) == ("attnmath, NumPy", "bfloat16"):
            continue
        key = model, stores if name == "PyTorch, flash" else 1
        if key not in limits:
            limits[key] = allowed(x, model, dtype, stores=key[1])
        with np.errstate(under="ignore"):
            found = program(x, dtype)
        for letter in found.keys() & set(LETTERS):
            if found[letter] is not None:
                ratios[model, name, letter] = ratio(found[letter], want[letter], limits[key][letter])
    return ratios


def judge(family, dtype, seed, programs=PROGRAMS):
    """One batch of a family: which, how many problems, and its ratios."""
    torch.set_num_threads(1)
    x = problem(family, dtype, seed)
    return family, dtype, len(x[0]), compare(x, dtype, programs)


def jobs_of(problems, formats, batches):
    """What is judged: so many random problems for each format, so many batches of each other family."""
    for dtype in formats:
        counts = dict.fromkeys(FAMILIES, batches) | dict.fromkeys(RANDOM, -(-problems // len(RANDOM) // ALIKE))
        for family, seeds in (counts | {"standing sums": len(standing(dtype))}).items():
            yield from ((family, dtype, seed) for seed in range(seeds))


class Table:
    """The worst so far of every program, format and letter, and in which family it was."""

    def __init__(self):
        self.worst, self.problems = {}, {}

    def add(self, family, dtype, count, ratios):
        counts = self.problems.setdefault(dtype, dict.fromkeys(FAMILIES, 0))
        counts[family] += count
        for (model, program, letter), r in ratios.items():
            key = model, program, dtype, letter
            if r >= self.worst.get(key, (-1.0, ""))[0]:
                self.worst[key] = r, family

    def programs(self):
        """{program: {format: {letter: [worst, family]}}}"""
        out = {}
        for (_, program, dtype, letter), (r, family) in sorted(self.worst.items()):
            out.setdefault(program, {}).setdefault(dtype, {})[letter] = [float(f"{r:.3g}"), family]
        return out

    def letters(self):
        """{what is rounded: {format: {letter: [worst, program, family]}}}, but for what lies outside."""
        out = {}
        for (model, program, dtype, letter), (r, family) in sorted(self.worst.items()):
            here = out.setdefault(model, {}).setdefault(dtype, {})
            if (program, letter) != OUTSIDE and r > here.get(letter, [-1.0])[0]:
                here[letter] = [float(f"{r:.3g}"), program, family]
        return out

    def print(self):
        for model, formats in self.letters().items():
            for dtype, letters in formats.items():
                print(f"{model:8} {dtype:9} " + " ".join(f"{name} {r:.2f}" for name, (r, *_) in letters.items()))
        program, letter = OUTSIDE
        for (_, name, dtype, which), (r, family) in self.worst.items():
            if (name, which) == (program, letter):
                print(f"{program}, {letter}, {dtype}: {r:.3g} ({family})")

    def right(self):
        """Whether everything lies inside, but for what is known to lie outside."""
        return all(r <= 1 for (_, program, dtype, letter), (r, _) in self.worst.items()
                   if (program, letter) != OUTSIDE or dtype == "float32")


def measure(jobs, processes):
    """The table of many batches."""
    table = Table()
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for found in pool.map(judge, *zip(*jobs), chunksize=4):
            table.add(*found)
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=20_000, help="random ones for each format")
    parser.add_argument("--batches", type=int, default=20, help="of each directed family, for each format")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    began = time.perf_counter()
    table = measure(list(jobs_of(given.problems, given.formats, given.batches)), given.jobs)
    versions = {"torch": torch.__version__.split("+")[0], "numpy": np.__version__}
    data = {"versions": versions, "problems": table.problems,
            "letters": table.letters(), "programs": table.programs()}
    given.out.write_text(json.dumps(data, indent=1) + "\n")
    table.print()
    print(f"{time.perf_counter() - began:.0f} s; " + ("all inside" if table.right() else "OUTSIDE"))
    return not table.right()


if __name__ == "__main__":
    sys.exit(main())
