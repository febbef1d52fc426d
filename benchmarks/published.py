"""Published Triton kernels before the checker, in Triton's interpreter: needs no GPU, and clones of the kernels.

    TRITON_INTERPRET=1 python benchmarks/published.py --clones DIR              all that lie there
    TRITON_INTERPRET=1 python benchmarks/published.py --clones DIR jvp_flash_attention:causal --write

DIR holds the clones under their own names: DIR/rcm, DIR/jvp_flash_attention and so on, the keys of KERNELS.
Nothing of them is changed but what a GPU or its driver would answer, and autotuning takes the first
configuration that it is given. With --write the verdicts go into
attnmath/book/published.json, which the museum shows.
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import attnmath
from attnmath import adapters, examine

KEPT = Path(attnmath.__file__).parent / "book" / "published.json"


class Processor:
    """What kernels ask of the driver, on a processor."""

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_target(self) -> Any:
        return types.SimpleNamespace(backend="cpu", arch=0, warp_size=32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class First:
    """A kernel with the first configuration of those that it would be tuned with."""

    def __init__(self, kernel: Any, config: Any) -> None:
        self.kernel, self.sizes, self.arg_names = kernel, config.kwargs, kernel.arg_names

    def run(self, *given: Any, grid: Any, warmup: bool = False, **named: Any) -> Any:
        of = (lambda meta: grid({**self.sizes, **meta})) if callable(grid) else grid
        return self.kernel[of](*given, **named, **self.sizes)

    def __getitem__(self, grid: Any) -> Callable:
        return partial(self.run, grid=grid)


def on_a_processor() -> None:
    """Once, before a kernel is imported."""
    import triton
    from triton.runtime import driver

    driver.set_active(Processor())
    triton.autotune = lambda configs, key, **_: lambda kernel: First(kernel, configs[0])


def module(path: Path) -> Any:
    name = "published_" + path.stem.replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    sys.modules[name] = found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def jvp_flash_attention(clone: Path, case: str) -> dict:
    sys.path.insert(0, str(clone))
    attention = importlib.import_module("jvp_flash_attention.jvp_attention").JVPAttn
    if case != "bias":
        return adapters.jvp_flash_attention(attention)

    def fn(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        """Without its check that a mask of numbers hides something, by -100."""
        full = None if bias is None else bias.expand(*q.shape[:-1], k.shape[-2]).to(q.dtype)
        return attention.apply(q, k, v, None, None, None, full, 0.0, False, None, True, True, False)[0]

    return dict(fn=fn, framework="torch", layout="bhsd", without=["dB"])  # it has none


def rcm(clone: Path, case: str) -> dict:
    """Its gradients are those of flash_attn, which needs a GPU: here the same, written out, of its log-sum-exp."""
    def backward(do: Any, q: Any, k: Any, v: Any, o: Any, L: Any, dq: Any, dk: Any, dv: Any,
                 softmax_scale: float = 1.0) -> None:
        do, q, k, v, o = (x.transpose(1, 2) for x in (do, q, k, v, o))
        P = torch.exp(softmax_scale * q @ k.mT - L[..., None])
        dA = P * (do @ v.mT - (do * o).sum(-1, keepdim=True))
        found = softmax_scale * dA @ k, softmax_scale * dA.mT @ q, P.mT @ do
        for room, x in zip((dq, dk, dv), found):
            room.copy_(x.transpose(1, 2))

    for name in ("flash_attn", "flash_attn.flash_attn_interface"):
        sys.modules.setdefault(name, types.ModuleType(name))
    interface: Any = sys.modules["flash_attn.flash_attn_interface"]
    interface._flash_attn_backward = interface._flash_attn_varlen_backward = backward
    return adapters.rcm_attention(module(clone / "rcm" / "utils" / "flash_attention_jvp_triton.py").attention)


def triton_tutorial(clone: Path, case: str) -> dict:
    """The tutorial on fused attention of triton-lang/triton, as a fork of it has it."""
    attention = module(clone / "python" / "tutorials" / "06-fused-attention.py").attention

    def fn(q: Any, k: Any, v: Any, causal: bool = False, scale: float | None = None) -> Any:
        return attention(q, k, v, causal, q.shape[-1] ** -0.5 if scale is None else scale, False)

    return dict(fn=fn, framework="torch", layout="bhsd")


def custom_mask(clone: Path, case: str) -> dict:
    """The tutorial with a mask for each head."""
    sys.path.insert(0, str(clone))
    attention = importlib.import_module("fa2_custom_mask").flash_attention_custom_mask

    def fn(q: Any, k: Any, v: Any, mask: Any = None, scale: float | None = None) -> Any:
        mask = None if mask is None else mask.expand(*q.shape[:-1], k.shape[-2])
        return attention(q, k, v, mask, q.shape[-1] ** -0.5 if scale is None else scale)

    return dict(fn=fn, framework="torch", layout="bhsd")


def explained(clone: Path, case: str) -> dict:
    attention = module(clone / "triton" / "flash_attention.py").TritonAttention.apply

    def fn(q: Any, k: Any, v: Any, causal: bool = False, scale: float | None = None) -> Any:
        return attention(q, k, v, causal, q.shape[-1] ** -0.5 if scale is None else scale)

    return dict(fn=fn, framework="torch", layout="bhsd")


def flag_attention(clone: Path, case: str) -> dict:
    """It asks PyTorch for its chip; for one that it does not know it has tiles of 32 by 32."""
    answers: dict[str, Callable] = dict(
        device_of=lambda x: 0, device=lambda x: contextlib.nullcontext(), get_device_capability=lambda: (9, 0),
        get_device_properties=lambda x: types.SimpleNamespace(multi_processor_count=1))
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    sys.path.insert(0, str(clone / "src"))
    attention = importlib.import_module("flag_attn").flash_attention

    def fn(q: Any, k: Any, v: Any, causal: bool = False, sm_scale: float | None = None) -> Any:
        return attention(q, k, v, causal, sm_scale)

    return dict(fn=fn, framework="torch", layout="bhsd")


def flash_linear_attention(clone: Path, case: str) -> dict:
    """Its softmax attention, always causal."""
    torch.compile = lambda x=None, **_: x or (lambda of: of)  # type: ignore[assignment, misc]
    sys.path.insert(0, str(clone))
    attention = importlib.import_module("fla.ops.attn.parallel").parallel_attn

    def fn(q: Any, k: Any, v: Any, scale: float | None = None) -> Any:
        return attention(q, k, v, scale=scale, window_size=40 if case == "window" else None)

    reference = dict(reference=partial(banded, axes=(1, 2), window=40)) if case == "window" else {}
    return dict(fn=fn, framework="torch", layout="bshd", **reference)


def sink_flash_attention(clone: Path, case: str) -> dict:
    """Always causal; without sink tokens and with a window of all its rows it is plain causal attention."""
    attention = module(clone / "sink_attention" / "sink_flash_attention.py").sink_flash_attention
    tokens, window = (3, 20) if case == "sink tokens, window" else (0, 64)

    def fn(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, num_sink=tokens, window_size=window)

    reference = dict(reference=partial(banded, tokens=tokens, window=window)) if tokens else {}
    return dict(fn=fn, framework="torch", layout="bhsd", **reference)


def banded(q: Any, k: Any, v: Any, *, window: int, tokens: int = 0, axes: tuple[int, int] | None = None) -> Any:
    """Each row sees itself and those before it in the window, and the first tokens; by PyTorch alone."""
    if axes:
        q, k, v = (x.transpose(*axes) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    hidden = (j > i) | (j <= i - window) & (j >= tokens)
    weights = torch.softmax((q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf), -1)
    o = weights @ v
    return o.transpose(*axes) if axes else o


@dataclass(frozen=True)
class Kernel:
    """Where it lies, how it is called, with which sizes, and the options of each case."""

    repository: str
    load: Callable[[Path, str], dict]
    sizes: dict
    cases: dict
    dtype: str = "float32"
    patched: str = "the driver"


SQUARE = dict(b=1, H=1, G=1, n=64, m=64, d_k=32, d_v=32)
HALF = dict(b=1, H=1, G=1, n=256, m=256, d_k=32, d_v=32)
KERNELS = {
    "jvp_flash_attention": Kernel(
        "amorehead/jvp_flash_attention", jvp_flash_attention, SQUARE,
        {"plain": {}, "scale": dict(scale="sm_scale"), "causal": dict(causal="causal"),
         "boolean mask": dict(mask="attn_mask"), "bias": dict(bias="bias")}),
    "rcm": Kernel(
        "NVlabs/rcm", rcm, dict(b=1, H=2, G=2, n=40, m=40, d_k=16, d_v=16), {"plain": dict(scale="sm_scale")},
        patched="the driver; autotuning; flash_attn's backward pass, written out"),
    "triton": Kernel(
        "lightseekorg/triton", triton_tutorial, HALF,
        {"plain": {}, "scale": dict(scale="scale"), "causal": dict(causal="causal")}, dtype="float16",
        patched="the driver; autotuning"),
    "triton-flash-attention": Kernel(
        "hkproj/triton-flash-attention", explained, HALF,
        {"plain": {}, "scale": dict(scale="scale"), "causal": dict(causal="causal")}, dtype="float16",
        patched="the driver; autotuning"),
    "flashattention2-custom-mask": Kernel(
        "alexzhang13/flashattention2-custom-mask", custom_mask, HALF,
        {"plain": {}, "scale": dict(scale="scale"), "boolean mask": dict(mask="mask")}, dtype="float16",
        patched="the driver; autotuning"),
    "FlagAttention": Kernel(
        "FlagOpen/FlagAttention", flag_attention, dict(b=1, H=2, d_k=16, d_v=16),
        {"plain": {}, "scale": dict(scale="sm_scale"), "causal": dict(causal="causal")},
        patched="what PyTorch says of the chip"),
    "flash-linear-attention": Kernel(
        "fla-org/flash-linear-attention", flash_linear_attention,
        dict(b=1, H=2, G=1, n=160, m=160, d_k=16, d_v=16),
        {"causal": dict(scale="scale"), "window": {}}, patched="the driver; torch.compile"),
    "sink-flash-attention-kernel": Kernel(
        "RulinShao/sink-flash-attention-kernel", sink_flash_attention, SQUARE,
        {"causal": {}, "sink tokens, window": {}}),
}


def judged(name: str, case: str, clone: Path) -> dict:
    """What examine says of one kernel in one case."""
    kernel = KERNELS[name]
    how = kernel.load(clone, case) | dict(options=kernel.cases[case])
    report = examine(**how, sizes=kernel.sizes, dtype=kernel.dtype, seed=0, smallest=False,
                     time_limit=900, progress=False)
    findings = [dict(kind=f.kind, name=f.name, title=f.title, where=f.where) for f in report.findings]
    return dict(kernel=name, repository=kernel.repository, commit=commit(clone), case=case, dtype=kernel.dtype,
                sizes=kernel.sizes, patched=kernel.patched, verdict=report.verdict, sentence=report.sentence,
                problems=sum(p.judged for p in report.problems), findings=findings)


def commit(clone: Path) -> str:
    """Of the clone; of a folder without one, what stands in its file COMMIT."""
    if (clone / "COMMIT").exists():
        return (clone / "COMMIT").read_text("utf-8").strip()
    return subprocess.run(["git", "-C", clone, "rev-parse", "HEAD"], capture_output=True, text=True,
                          check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clones", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help=f"into {KEPT.name}, beside what is there")
    parser.add_argument("only", nargs="*", metavar="kernel:case")
    given = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("this needs TRITON_INTERPRET=1")
    on_a_processor()
    for name, kernel in KERNELS.items():
        for case in kernel.cases:
            if given.only and f"{name}:{case}" not in given.only or not (given.clones / name).is_dir():
                continue
            row = judged(name, case, given.clones / name)
            print(json.dumps(row, indent=1), flush=True)
            if given.write:
                kept = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else []
                kept = [old for old in kept if (old["kernel"], old["case"]) != (name, case)]
                KEPT.write_text(json.dumps([*kept, row], indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
