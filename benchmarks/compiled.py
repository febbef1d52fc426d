"""Compiles the Triton kernels for chips that need not be there, and tabulates what they take of them.

    python benchmarks/compiled.py                     the default configurations, on sm_80, sm_90 and sm_100
    python benchmarks/compiled.py --options dropout --chips 90 --sizes 64 --dtypes bfloat16
    python benchmarks/compiled.py --write table.json

The kernels are called as scaled_dot_product_attention calls them, with a driver that names a
chip and does not run anything. Registers and spills are those that the assembler says, memory
that of the binary. Exits with 1 if something does not compile, asks for more memory than a block
may have, or spills registers where NO_SPILLS says that it does not.
"""

import argparse
import io
import json
import re
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from attnmath.torch import triton_launch as launch
from attnmath.torch.how import How

CHIPS = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # shared memory of a block, in bytes
TENSOR_MEMORY = 512  # columns, from sm_100 on
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
SIZES = 16, 32, 64, 128, 256
NO_SPILLS = {"bfloat16": 256, "float16": 256, "float32": 32}  # up to this head size
PLAIN = {"plain": {}, "causal": dict(causal=True)}
OPTIONS = {
    "window": dict(left=128, right=64), "softcap": dict(softcap=30.0), "slopes": dict(slopes=True),
    "sinks": dict(sinks=True), "bias": dict(bias=True), "booleans": dict(booleans=True),
    "dropout": dict(dropout=0.1), "groups": dict(groups=True),
}


class Chip:
    """In the place of a driver: the chip that is compiled for."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
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
    launch.second(dO_dot, *dots, dO, *x, how, needs=(True, *needs))


def table(chips: Any, sizes: Any, dtypes: Any, options: dict) -> list[dict]:
    """A row for each kernel; gradients and their tangents come from the same two, compiled for either."""
    found: list[dict] = []
    triton.knobs.nvidia.dump_ptxas_log = triton.knobs.compilation.always_compile = True
    for chip in chips:
        driver.set_active(Chip(chip))
        for dtype in dtypes:
            for d in sizes:
                for name, option in options.items():
                    head = dict(chip=chip, dtype=dtype, d=d, option=name)
                    order = iter(("", "", "gradients", "gradients"))

                    def run(kernel: Any, grid: tuple, *given: Any, head: dict = head, order: Any = order,
                            **sizes: Any) -> None:
                        of = {} if kernel.__name__ != "by_tiles" else {"of": ""}
                        try:
                            took = compiled(kernel, grid, *given, **sizes)
                            row = head | dict(of=next(order, "second")) | of | took
                        except Exception as error:
                            row = head | dict(kernel=kernel.__name__, failed=reason(error))
                        found.append(row)
                        print(line(row), flush=True)

                    launch.RUN = run
                    calls(d, DTYPES[dtype], option)
    return found


def reason(error: BaseException) -> str:
    """The last line of what was first."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).splitlines()[-1]}"


def line(row: dict) -> str:
    start = f"sm_{row['chip']:<4}{row['dtype']:<9} d {row['d']:<4} {row['option']:<8} {row['kernel']:<10}"
    if "failed" in row:
        return f"{start} FAILED {row['failed']}"
    tile = f"{row['of']:<9} {row['rows']:>3} x {row['keys']:<3} warps {row['warps']} stages {row['stages']}"
    took = f"registers {row['registers']:>3} spilled {row['spilled']:>4} shared {row['shared']:>6}"
    return f"{start} {tile} {took} {row['seconds']} s"


def faults(rows: list[dict]) -> list[str]:
    """What must not be."""
    return [
        line(row) for row in rows
        if "failed" in row or row["shared"] > CHIPS[row["chip"]] or row["tensor_memory"] > TENSOR_MEMORY
        or row["spilled"] and row["option"] in PLAIN and row["d"] <= NO_SPILLS[row["dtype"]]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", type=int, nargs="+", default=[*CHIPS], choices=[*CHIPS])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--dtypes", nargs="+", default=[*DTYPES], choices=[*DTYPES])
    parser.add_argument("--options", nargs="+", default=[*PLAIN], choices=[*PLAIN, *OPTIONS], help="of a call")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    options = {name: option for name, option in (PLAIN | OPTIONS).items() if name in given.options}
    rows = table(given.chips, given.sizes, given.dtypes, options)
    if given.write:
        given.write.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", "utf-8")
    found = faults(rows)
    print(f"{len(rows)} kernels compiled; {len(found)} that must not be so" + "".join(f"\n  {x}" for x in found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
