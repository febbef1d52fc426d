"""A tiny problem written out number by number, as lines that can be pasted."""

import sys
from typing import Any

import numpy as np

from attnmath._examine._candidate import Candidate
from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._layouts import to_layout

NAMES = {"dQ": "q", "dK": "k", "dV": "v"}


def pasted(candidate: Candidate, case: Case, means: Conventions, want: Answer) -> str:
    """The inputs, the call, and what is right."""
    library, layout = candidate.library.name, candidate.layout or means.layout or "bhsd"
    known = candidate.dtype == "bfloat16" and library == "numpy"
    dtype = {"torch": f"dtype=torch.{candidate.dtype}", "jax": f"dtype={candidate.dtype!r}"}.get(
        library, f"dtype={'ml_dtypes.bfloat16' if known else repr(candidate.dtype)}"
    )
    make = {"torch": "torch.tensor", "jax": "jax.numpy.array", "numpy": "np.array"}[library]
    lines = [{"torch": "import torch", "jax": "import jax", "numpy": "import numpy as np"}[library]]
    lines += ["import ml_dtypes"] if known else []
    if library == "jax" and candidate.dtype == "float64":
        lines.append('jax.config.update("jax_enable_x64", True)')
    lines += [_imported(fn) for fn in (candidate.fn, candidate.backward) if fn is not None]
    leaf = ", requires_grad=True" if library == "torch" and candidate.backward is None else ""
    for name, x in (("q", case.Q), ("k", case.K), ("v", case.V)):
        lines.append(f"{name} = {make}({written(to_layout(x, layout))}, {dtype}{leaf})")
    lines.append(f"do = {make}({written(to_layout(case.dO, layout))}, {dtype})")
    given = candidate.keywords(case, means, layout)
    words = []
    for name, x in given.items():
        if candidate.library.is_array(x):
            x = candidate.library.read(x)
            lines.append(f"{name} = {make}({written(x)}{'' if x.dtype == bool else f', {dtype}'})")
            words.append(f", {name}={name}")
        elif x is not False:
            words.append(f", {name}={x!r}")
    call = f"{_name(candidate.fn)}(q, k, v{''.join(words)})"
    if candidate.backward is not None:
        shown = f"{_name(candidate.backward)}(do, q, k, v{''.join(words)})"
    elif library == "torch":
        lines.append(f"o = {call}")
        shown = "torch.autograd.grad(o, (q, k, v), do)"
    elif library == "jax":
        shown = f"jax.vjp(lambda q, k, v: {call}, q, k, v)[1](do)"
    else:
        shown = call
    right = {name: getattr(want, name) for name in NAMES} if shown != call else {"O": want.O}
    lines.append(f"print({shown})")
    said = ", ".join(f"{name} = {written(to_layout(x, layout))}" for name, x in right.items())
    return "\n".join([*lines, f"# right: {said}"])


def written(x: np.ndarray) -> str:
    """An array's numbers; nothing of what does not fit on a line is left out."""
    if x.dtype == bool:
        return str(x.tolist())
    same = x.size and (x == x.flat[0]).all()
    if same and x.size > 8 and np.isfinite(x.flat[0]):
        return f"[{x.flat[0]!r}] * {x.size}" if x.ndim == 1 else _repeated(x.shape, float(x.flat[0]))
    return str(x.tolist()).replace("-inf", 'float("-inf")').replace("nan", 'float("nan")')


def _repeated(shape: tuple, number: float) -> str:
    text = f"[{number!r}] * {shape[-1]}"
    for size in reversed(shape[:-1]):
        text = f"[{text}]" if size == 1 else f"[{text}] * {size}"
    return text


def _imported(fn: Any) -> str:
    module, name = getattr(fn, "__module__", None), _name(fn)
    module = {"torch._C._nn": "torch.nn.functional", "jax._src.nn.functions": "jax.nn"}.get(module, module)
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is fn:
        return f"from {module} import {name}"
    return f"# {name} is your own function"


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
