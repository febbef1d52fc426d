"""Compiles the Triton kernels for chips that need not be there, and tabulates what they take of them.

    python benchmarks/compiled.py                     the table, compared with the one that is kept
    python benchmarks/compiled.py --write             the same, kept; with --options what was compiled is exchanged
    python benchmarks/compiled.py --slice             the few that are compiled on every change
    python benchmarks/compiled.py --options dropout --chips 90 --sizes 64 --dtypes bfloat16 float32

The kernels are called as scaled_dot_product_attention calls them, with a driver that names a
chip and does not run anything. Registers and spills are those that the assembler says, memory
that of the binary. Exits with 1 if something does not compile, asks for more memory than a block
may have, spills registers without an option, or differs from what is kept (of one release of Triton).
"""

import argparse
import io
import json
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

import attnmath
from attnmath.torch.backend import LARGEST_HEAD, OF_SECOND
from attnmath.torch.how import How

KEPT = Path(attnmath.__file__).parent / "book" / "compiled.json"
CHIPS = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # shared memory of a block, in bytes
TENSOR_MEMORY = 512  # columns, from sm_100 on
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
SIZES = 16, 32, 64, 128, 256
PLAIN = {"plain": {}, "causal": dict(causal=True)}
OPTIONS = {
    "window": dict(left=128, right=64), "softcap": dict(softcap=30.0), "slopes": dict(slopes=True),
    "sinks": dict(sinks=True), "bias": dict(bias=True), "booleans": dict(booleans=True),
    "dropout": dict(dropout=0.1), "groups": dict(groups=True),
}


class One(NamedTuple):
    """What is compiled at once."""

    chip: int
    dtype: str
    d: int
    option: str


def taken(one: One) -> bool:
    """Whether the kernels take it."""
    return one.d <= LARGEST_HEAD[DTYPES[one.dtype]]


def defaults() -> list[One]:
    """Every size on every chip, with a causal mask; float16 has the tiles of bfloat16."""
    found = [One(chip, dtype, d, "causal") for chip in CHIPS for dtype in ("bfloat16", "float32") for d in SIZES]
    return list(filter(taken, found))


def pairs() -> list[One]:
    """Every option with every size, with every format and on every chip, and every size with every format."""
    found = []
    for i, option in enumerate((*OPTIONS, "plain")):
        for j, d in enumerate(SIZES):
            one = One([*CHIPS][(i + 2 * j) % 3], [*DTYPES][(i + j) % 3], d, option)
            found.append(one if taken(one) else one._replace(dtype="bfloat16"))
    return found


SLICE = [One(80, "bfloat16", 64, "causal"), One(90, "bfloat16", 64, "causal"), One(100, "bfloat16", 64, "causal"),
         One(90, "float32", 32, "causal"), One(90, "float16", 64, "bias")]


class Chip:
    """In the place of a driver: the chip that is compiled for."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return self.target.arch

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compiled(kernel: Any, grid: tuple, *given: Any, **options: Any) -> dict:
    """What a kernel takes: registers of a thread, bytes spilled there, memory of a block."""
    start, said = time.perf_counter(), io.StringIO()
    kernel.device_caches.clear()  # what is remembered has no log
    with redirect_stdout(said):
        made = kernel.warmup(*given, grid=grid, **options)
    log = said.getvalue()
    registers = int(re.search(r"Used (\d+) registers", log)[1])
    stores, loads = map(int, re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log).groups())
    return dict(
        kernel=kernel.__name__, rows=options["ROWS"], keys=options["KEYS"], warps=options["num_warps"],
        stages=options["num_stages"], registers=registers, spilled=stores + loads, shared=made.metadata.shared,
        tensor_memory=getattr(made.metadata, "tmem_size", None) or 0,
        seconds=round(time.perf_counter() - start, 1),
    )


def calls(d: int, dtype: torch.dtype, option: dict) -> None:
    """Each kernel once: output, tangent, gradients and their tangents, of which only shapes and types count."""
    from attnmath.torch import triton_launch as launch

    option = dict(option)
    n, H, bias, sinks = 1024, 4, option.pop("bias", False), option.pop("sinks", False)
    own = 1 if option.pop("groups", False) else H
    booleans = option.pop("booleans", False)
    how = How(d**-0.5, **option)
    if how.dropout:
        how = how._replace(seed=torch.tensor(1))
    Q, Q_dot, dO, dO_dot = (torch.empty(1, H, n, d, dtype=dtype) for _ in range(4))
    K, V, K_dot, V_dot = (torch.empty(1, own, n, d, dtype=dtype) for _ in range(4))
    S = torch.zeros(H, 1, 2) if sinks or how.slopes else None
    B = torch.ones(1, 1, n, n, dtype=torch.bool if booleans else dtype) if bias or booleans else None
    B_dot = B if bias else None
    x, dots = (Q, K, V, B, S), (Q_dot, K_dot, V_dot, B_dot, S)
    needs = (True, True, True, bias, S is not None)
    launch.forward(*x, how)
    launch.jvp(*dots, *x, how)
    launch.vjp(dO, *x, how, needs=needs)
    if d <= OF_SECOND[dtype]:
        launch.second(dO_dot, *dots, dO, *x, how, needs=(True, *needs))


def of_one(one: One) -> list[dict]:
    """A row for each kernel; gradients and their tangents come from the same ones, compiled for either."""
    import triton
    from triton.runtime import driver

    from attnmath.torch import triton_launch as launch

    triton.knobs.nvidia.dump_ptxas_log = triton.knobs.compilation.always_compile = True
    driver.set_active(Chip(one.chip))
    found: list[dict] = []
    known = {"output": "", "output_jvp": ""}

    def run(kernel: Any, grid: tuple, *given: Any, **sizes: Any) -> None:
        name = kernel.__name__
        of = "second" if any(row["kernel"] == name for row in found) else known.get(name, "gradients")
        head = one._asdict() | dict(kernel=name, of=of)
        try:
            found.append(head | compiled(kernel, grid, *given, **sizes))
        except Exception as error:
            found.append(head | dict(failed=reason(error)))

    launch.RUN = run
    calls(one.d, DTYPES[one.dtype], (PLAIN | OPTIONS)[one.option])
    return found


def reason(error: BaseException) -> str:
    """The last line of what was first."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).splitlines()[-1]}"


def line(row: dict) -> str:
    start = f"sm_{row['chip']:<4}{row['dtype']:<9} d {row['d']:<4} {row['option']:<8} {row['kernel']:<10}"
    start += f" {row['of']:<9}"
    if "failed" in row:
        return f"{start} FAILED {row['failed']}"
    tile = f"{row['rows']:>3} x {row['keys']:<3} warps {row['warps']} stages {row['stages']}"
    return f"{start} {tile} registers {row['registers']:>3} spilled {row['spilled']:>4} shared {row['shared']:>6}"


def faults(rows: list[dict]) -> list[str]:
    """What must not be."""
    return [
        line(row) for row in rows
        if "failed" in row or row["shared"] > CHIPS[row["chip"]] or row["tensor_memory"] > TENSOR_MEMORY
        or row["spilled"] and row["option"] in PLAIN
    ]


def place(row: dict) -> tuple:
    return tuple(row[name] for name in (*One._fields, "kernel", "of"))


def changed(rows: list[dict], kept: list[dict]) -> list[str]:
    """What is kept and has become otherwise."""
    before = {place(row): row for row in kept}
    return [f"{line(row)}\n    was  {line(before[place(row)])}" for row in rows
            if place(row) in before and "failed" not in row and without_seconds(row) != before[place(row)]]


def merged(kept: list[dict], rows: list[dict]) -> str:
    """The table with these rows in it, a line each; what is no part of it is left out."""
    table = {place(row): without_seconds(row) for row in (*kept, *rows)}
    order = dict.fromkeys((*defaults(), *pairs(), *SLICE))
    lines = [json.dumps(row) for one in order for spot, row in table.items() if spot[:4] == one]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def without_seconds(row: dict) -> dict:
    return {name: value for name, value in row.items() if name != "seconds"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slice", action="store_true", help="the few that are compiled on every change")
    parser.add_argument("--chips", type=int, nargs="+", choices=[*CHIPS])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--dtypes", nargs="+", default=[*DTYPES], choices=[*DTYPES])
    parser.add_argument("--options", nargs="+", choices=[*PLAIN, *OPTIONS], help="with these, not the table")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--write", action="store_true", help=f"keep the table in {KEPT.name}")
    given = parser.parse_args()
    todo = SLICE if given.slice else list(dict.fromkeys((*defaults(), *pairs(), *SLICE)))
    if given.options:
        todo = [One(chip, dtype, d, option) for chip in given.chips or CHIPS for dtype in given.dtypes
                for d in given.sizes for option in given.options]
        todo = list(filter(taken, todo))
    kept = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else []
    rows: list[dict] = []
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        for found in pool.map(of_one, todo):
            rows += found
            print(*(f"{line(row)} {row.get('seconds')} s" for row in found), sep="\n", flush=True)
            if given.write:
                KEPT.write_text(merged(kept, rows), "utf-8")
    found = faults(rows) + ([] if given.write else changed(rows, kept))
    new = {place(row) for row in rows} - {place(row) for row in kept}
    if new and not given.write:
        print(f"{len(new)} of them are not kept yet: --write keeps them")
    took = sum(row.get("seconds", 0) for row in rows)
    print(f"{len(rows)} kernels compiled in {took:.0f} s of one processor; {len(found)} that must not be so"
          + "".join(f"\n  {x}" for x in found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
