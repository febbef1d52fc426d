"""Is my attention right, and if not, which term is wrong? The function that is called."""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from attnmath._examine._candidate import BadDevice, Candidate
from attnmath._examine._demands import demanded, voice, whole_number
from attnmath._examine._examination import Examination
from attnmath._examine._report import Report


def examine(
    fn: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    *,
    options: Mapping[str, Any] | Iterable[str] | None = None,
    conventions: Mapping[str, str] | None = None,
    dtype: Any = None,
    framework: str | None = None,
    layout: str | None = None,
    device: Any = None,
    seed: int | None = None,
    time_limit: float = 30.0,
    smallest: bool = True,
    progress: bool | Callable[[str], None] | None = None,
) -> Report:
    """Whether an attention and its gradients are right, and if not, which term is wrong.

    fn(q, k, v, **options) -> o, for q (b, H, n, d_k), k (b, G, m, d_k), v (b, G, m, d_v), o (b, H, n, d_v),
    or another layout; backward(do, q, k, v, **options) -> dq, dk, dv -> report

    Without backward, fn is differentiated by PyTorch's autograd or by jax.vjp. options says
    what fn can take, by its own keywords: a mapping from "mask", "bias", "causal", "scale",
    "groups", "dropout", "dropout_mask" and "seed" to their names. conventions is what is
    demanded of it: "layout", "mask", "causal", "groups", "scale", "empty"; what is not
    demanded is found out, and stated in the report. dtype is float64, float32, bfloat16 or
    float16; without it float32, and float64 for NumPy. A call that takes longer than
    time_limit seconds counts as one that hangs. With smallest=False the smallest failing
    case is not looked for. progress=None tells on a terminal how far it is; a function is
    called with what is being done. seed makes the problems the same again. Raises TypeError
    for an fn that cannot be called, ValueError for an option or a convention that is not known.
    Derived in chapters/examine.md.
    """
    began = time.perf_counter()
    told = demanded(conventions, layout)
    candidate = Candidate(fn, backward, options=options, framework=framework, dtype=dtype,
                          layout=told.layout, device=device, time_limit=time_limit)  # fmt: skip
    seed = secrets.randbits(31) if seed is None else whole_number(seed)
    say = voice(progress, began)
    examination = Examination(candidate, told, seed, say)
    try:
        report = examination.report(smallest)
    except BadDevice:
        raise
    except (Exception, SystemExit, GeneratorExit) as error:  # of ours: it says nothing about the function
        report = examination.failed(error)
    say("")
    return replace(report, seconds=time.perf_counter() - began, seed=seed)
