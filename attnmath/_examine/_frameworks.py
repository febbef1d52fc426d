"""The libraries that a candidate may compute with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from attnmath._examine._attempt import asked
from attnmath._examine._calls import Broken, Fault
from attnmath._examine._contract import kind
from attnmath._examine._guess import guess
from attnmath._examine._jax_arrays import Jax
from attnmath._examine._numpy_arrays import DTYPES, Numpy
from attnmath._examine._torch_arrays import Torch

if TYPE_CHECKING:
    from attnmath._examine._candidate import Candidate

FRAMEWORKS = {"torch": Torch, "jax": Jax, "numpy": Numpy}


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of any library, or of one that is named."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    name = name.rpartition(".")[2]
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    return name


def framework(name: str, dtype: str, device: Any = None) -> Numpy:
    """A library by its name; ImportError says what to install."""
    if name not in FRAMEWORKS:
        raise ValueError(f"framework must be one of {', '.join(FRAMEWORKS)}, not {name!r}")
    try:
        return FRAMEWORKS[name](dtype, device)
    except ImportError as error:
        extra = {"torch": "'attnmath[torch]'", "jax": "'attnmath[adapters]'"}.get(name, "ml_dtypes")
        raise ImportError(f"{error.name or name} is not installed: pip install {extra}") from error


def in_order(fn: Callable, backward: Callable | None) -> list[str]:
    """The libraries that a candidate may be for: the one that its code names, or those to try."""
    names = guess(fn) + (guess(backward) if backward else [])
    for name in ("torch", "jax"):
        if name in names and not {"torch", "jax", "any"} - {name} & set(names):
            return [name]
    all_ = ["numpy", "torch", "jax"] if backward else ["torch", "jax", "numpy"]
    if "numpy" in names and "any" not in names:  # its functions are called on numbers, too
        return [name for name in all_ if name in ("numpy", *names) or name in sys.modules]
    return all_


def refusal(candidate: Candidate) -> Fault | None:
    """What goes wrong when a candidate is given the arrays of its library, of 4, 3 and 2 axes."""
    lib, first = candidate.arrays, None

    def call(rank: int) -> None:
        q, k, v = (lib.array(np.ones((2,) * rank)) for _ in range(3))
        if candidate.backward is None and lib.name != "numpy":
            O, _ = asked(lib.differentiated, candidate.fn, [q, k, v], {}, None)
        else:
            O = asked(candidate.fn, q, k, v)
        if not lib.is_array(O):
            raise Broken(Fault("type", f"it returns {kind(O)}"))

    for rank in (4, 3, 2):
        try:
            candidate.in_time(lambda rank=rank: call(rank))
            return None
        except Broken as broken:
            first = first or broken.fault
            if first.name == "hangs":
                break
    return first
