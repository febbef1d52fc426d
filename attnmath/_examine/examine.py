"""Is my attention right, and if not, which term is wrong? The function that is called."""

import math
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from numbers import Integral
from typing import Any

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.contract import DROPOUT_FORMS, MASK_FORMS, SCORES_AXES, check_candidate
from attnmath._examine.contract.functions import BadDevice, name_of
from attnmath._examine.contract.layouts import AXIS_ORDERS, MORE_ORDERS
from attnmath._examine.contract.process import judged_apart
from attnmath._examine.contract.signature import OPTION_WORDS, lacks
from attnmath._examine.contract.state import given_back
from attnmath._examine.diagnosis.examination import Examination
from attnmath._examine.diagnosis.reference import checked_reference
from attnmath._examine.problems.case import USUAL_SCALES, Answer, Conventions, scale_number
from attnmath._examine.problems.steps import EMPTY_ROWS
from attnmath._examine.ranks.begin import judged_over_ranks, ranked, with_parameters
from attnmath._examine.ranks.spread import LAYOUTS, spread_of
from attnmath._examine.report.display import Progress
from attnmath._examine.report.report import Report
from attnmath._examine.second.calls import NoDerivatives, checked_second
from attnmath._examine.second.judged import with_second

DEMANDS = {
    "layout": AXIS_ORDERS + MORE_ORDERS,
    "mask": tuple(MASK_FORMS),
    "mask_axes": SCORES_AXES[1:],
    "bias_axes": SCORES_AXES[1:],
    "causal": ("upper_left", "lower_right"),
    "groups": ("blocks", "interleaved", "none"),
    "scale": tuple(USUAL_SCALES),
    "empty": ("zero", *EMPTY_ROWS, "nan"),
    "inside": ("float32", "float64"),
    "dropout": tuple(DROPOUT_FORMS),
    "fill": ("-1e4", "-1e9"),
    "replicated": ("sum", "part", "mean"),
}


def examine(
    fn: Callable[..., Any], backward: Callable[..., Any] | None = None, *,
    jvp: Callable[..., Any] | bool | None = None, vjp_vjp: Callable[..., Any] | bool | None = None,
    options: Mapping[str, Any] | Iterable[str] | None = None, conventions: Mapping[str, str] | None = None,
    reference: Any = None, scale: str | float | None = None, sizes: Mapping[str, int] | None = None,
    without: Iterable[str] = (), dtype: Any = None, framework: str | None = None, layout: str | None = None,
    device: Any = None, truncate: bool | None = None, seed: int | None = None, time_limit: float = 30.0,
    smallest: bool = True, progress: bool | Callable[[str], None] | None = None, isolate: bool = False,
    ranks: int | None = None, parameters: Mapping[str, Any] | None = None,
) -> Report:
    """Whether an attention and its gradients are right, and if not, which term is wrong.

    fn(q, k, v, **options) -> o, for q (b, H, n, d_k), k (b, G, m, d_k), v (b, G, m, d_v), o (b, H, n, d_v),
    or another layout; backward(do, q, k, v, **options) -> dq, dk, dv -> report

    Without backward, fn is differentiated by PyTorch's autograd or by jax.vjp. options says what fn can take, by
    its own keywords: a mapping from "mask", "bias", "causal", "scale", "groups", "dropout", "dropout_mask" and
    "seed" to their names. conventions is what is demanded of it: "layout", "mask", "causal", "groups", "scale",
    "empty", "dropout"; what is not demanded is found out, and reported; scale=1 or scale="1/d_k" demands a scale.
    sizes says which sizes it takes alone, as {"n": 64, "H": 8}. without names what is not meant to be there:
    gradients, as "dV", and keywords of fn that are no options. reference is your own plain function, whatever it
    computes, called as fn is, or a pair of it and its backward: fn has to agree with what it gives in float64.
    dtype is float64, float32, bfloat16 or float16; without it float32, and float64 for NumPy. A call longer than
    time_limit seconds counts as one that hangs. With smallest=False no smallest failing case is looked for.
    progress=None tells on a terminal how far it is; a function is called with what is being done. seed makes the
    problems the same again. With isolate=True all is done in a process of its own, with limits of time and
    memory: what ends it or never ends is told; where processes cannot be copied (Windows, macOS, after the first
    use of CUDA or JAX) fn needs to be found by its name in a module. truncate=True allows sums that cut off
    digits, as tensor cores do; None does so on CUDA alone. With ranks=4 fn is called on each of four ranks (where
    torchrun began this program, on its own) with that rank's tokens, and returns its rows of o; layout says which
    they are, "contiguous" or "zigzag"; parameters, by its keywords, are what all ranks have and learn. Raises
    TypeError for what cannot be called, ValueError for an option or a convention that is not known.

    jvp(q, k, v, q_dot, k_dot, v_dot, **options) -> o_dot, or o and o_dot; vjp_vjp(q_dot, k_dot, v_dot, do, q, k,
    v, **options) -> do_bar, q_bar, k_bar, v_bar, the gradients of sum(q_dot * dq + k_dot * dk + v_dot * dv). True
    is PyTorch's or JAX's own derivative of fn, and of its backward.

    >>> import numpy as np
    >>> from attnmath import examine
    >>> def forward(q, k, v):
    ...     E = np.exp(q @ k.swapaxes(-1, -2))
    ...     return E / E.sum(-1, keepdims=True) @ v
    >>> print(examine(forward, seed=0).sentence)
    wrong in the forward: large scores are not survived (O is not finite, in 2 of 51 problems) (O (NaN))

    Derived in chapters/examine.md.
    """
    began = time.perf_counter()
    other = reference is not None or framework not in (None, "torch")
    spread, second = _over_ranks(ranks, layout, jvp, vjp_vjp, other, parameters)
    layout = None if spread and layout in LAYOUTS else layout
    told = replace(_demanded(conventions, layout, scale), truncate=_truncated(truncate, device), ranks=spread)
    check_candidate(fn, backward, told.layout, time_limit)
    seed, say = secrets.randbits(31) if seed is None else _whole_number(seed), _progress(progress)
    how = dict(options=options, framework=framework, dtype=dtype, layout=told.layout, device=device, sizes=sizes,
               time_limit=time_limit, **({"parameters": parameters} if parameters else {}))  # fmt: skip
    given, words = reference and checked_reference(reference), _words(fn, without, parameters)
    work = partial(_examined, fn, backward, how, told, seed, smallest, words, given, second)
    report = _apart_or_here(work, (fn, backward), how, told, say, isolate)
    return replace(report, seconds=time.perf_counter() - began, seed=seed)


def _over_ranks(
    ranks: int | None, layout: str | None, jvp: Any, vjp_vjp: Any, more: bool, parameters: Any
) -> tuple[Any, Any]:
    """Over which ranks, if it is over ranks, and derivatives of second order, which are not judged there."""
    spread, second = spread_of(ranks, layout), checked_second(jvp, vjp_vjp)
    if parameters and not spread:
        raise ValueError("examine: parameters are for ranks=; on one process give them by functools.partial")
    if spread and (second or more):
        raise ValueError("examine: over ranks it takes functions of PyTorch, without jvp, vjp_vjp and reference")
    return spread, second


def _progress(progress: bool | Callable[[str], None] | None) -> Any:
    """Who is told how far it is."""
    screen = sys.stderr.isatty()
    return progress if callable(progress) else Progress(screen if progress is None else progress, screen)


def _apart_or_here(
    work: Callable, functions: tuple, how: Mapping[str, Any], told: Conventions, say: Any, isolate: bool
) -> Report:
    """The report that work makes: on ranks, in a process of its own, or in this one."""
    if told.ranks:
        report = judged_over_ranks(work, functions, told.ranks, how, say, isolate)
    else:
        report = judged_apart(work, name_of(functions[0]), how["time_limit"], say) if isolate else work(say)
    say("")
    return report


def _examined(
    fn: Callable, backward: Callable | None, how: Mapping[str, Any], told: Conventions, seed: int, smallest: bool,
    without: frozenset[str], reference: Any, second: Mapping[str, Any], say: Callable[[str], None],
    pool: Any = None,
) -> Report:
    """The report, in this process."""
    given = fn, backward
    candidate: Any = ranked(*given, told.ranks, how, without, pool) if told.ranks else Candidate(*given, **how)
    examination = Examination(candidate, told, seed, say, without, reference)
    try:
        with given_back():
            report = examination.report(smallest and not told.ranks)  # lines to paste call in one process
            report = with_parameters(examination, report) if told.ranks else report
            return with_second(examination, report, second, smallest) if second else report
    except (BadDevice, NoDerivatives):
        raise
    except (Exception, SystemExit, GeneratorExit) as error:  # of ours: it says nothing about the function
        return examination.failed(error)
    finally:
        candidate.worker.close()
        if told.ranks:
            candidate.close()


def _words(fn: Any, without: Iterable[str], parameters: Iterable[str] | None) -> frozenset[str]:
    """What is not meant to be there, if it is words, and keywords that are no options."""
    words = frozenset([without] if isinstance(without, str) else without)
    if not all(isinstance(word, str) for word in words):
        raise TypeError(f"examine: without is {without!r}; it needs gradients, as 'dV', or keywords of fn")
    if odd := [word for word in sorted(words - {*Answer._fields, *OPTION_WORDS}) if lacks(fn, word)]:
        gradients = ", ".join(Answer._fields[1:])
        raise ValueError(f"examine: without has {odd[0]!r}; it can have {gradients} and keywords of fn")
    return words | {*(parameters or ())}


def _demanded(conventions: Mapping[str, str] | None, layout: str | None, scale: str | float | None) -> Conventions:
    """What is demanded, if it is something that can be."""
    if not isinstance(conventions, Mapping | None):
        raise TypeError(f"examine: conventions is {conventions!r}; it needs a mapping, as {{'mask': 'keep'}}")
    demands: dict[str, Any] = dict(conventions or {}) | ({} if layout is None else {"layout": layout})
    if scale is not None:
        if demands.get("scale", scale) != scale:
            raise ValueError(f"examine: scale is {scale!r}, and conventions has scale={demands['scale']!r}")
        demands["scale"] = scale
    for name, value in demands.items():
        if name not in DEMANDS:
            names = [f.name for f in fields(Conventions) if f.name in DEMANDS]
            raise ValueError(f"examine: conventions has {name!r}; it can have {', '.join(names)}")
        if value not in DEMANDS[name] and not (name == "scale" and _is_number(value)):
            values = ", ".join(map(repr, DEMANDS[name])) + (" or a number" if name == "scale" else "")
            given = f"{name} is {value!r}" if value in (layout, scale) else f"conventions has {name}={value!r}"
            raise ValueError(f"examine: {given}; it needs one of {values}")
    said: dict[str, Any] = {k: x if isinstance(x, str) else str(x) for k, x in demands.items()}
    return Conventions(**said)


def _is_number(x: object) -> bool:
    """Whether it is a number, or one in words."""
    try:
        return math.isfinite(scale_number(str(x)))
    except (ValueError, ZeroDivisionError):
        return False


def _truncated(truncate: object, device: Any) -> bool:
    """Whether sums may cut off digits; as is usual on the device."""
    if truncate is not None and not isinstance(truncate, bool):
        raise ValueError(f"examine: truncate is {truncate!r}; it needs to be True, False or None")
    return str(device).startswith("cuda") if truncate is None else truncate


def _whole_number(seed: object) -> int:
    """The seed, if it is one."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"examine: seed is {seed!r}; it needs to be a whole number from 0")
    return int(seed)
