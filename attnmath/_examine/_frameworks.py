"""The libraries that a candidate may compute with."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from attnmath._examine._attempt import asked, keywords, returned
from attnmath._examine._calls import Broken, Fault
from attnmath._examine._case import Case, Conventions
from attnmath._examine._contract import kind
from attnmath._examine._guess import guess
from attnmath._examine._jax_arrays import Jax
from attnmath._examine._layouts import to_layout
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
    if backward or "numpy" in names and "any" not in names:
        return ["numpy", "torch", "jax"]
    return ["torch", "jax", "numpy"]


def refusal(candidate: Candidate) -> Fault | None:
    """What goes wrong when a candidate is given the arrays of its library, of 4, 3 and 2 axes."""
    lib, first = candidate.arrays, None

    def call(layout: str, s: int, d: int) -> None:
        shape = [size if letter in layout else 1 for letter, size in zip("bhsd", (2, 2, s, d))]
        case = Case(*(np.ones(shape) for _ in range(4)))
        args = [lib.array(to_layout(x, layout)) for x in (case.Q, case.K, case.V)]
        options, _ = keywords(candidate, case, Conventions(), layout, 0)
        if candidate.backward is None and lib.name != "numpy":
            O, _ = asked(lib.differentiated, candidate.fn, args, options, None)
        else:
            O = asked(lib.called, candidate.fn, args, options)
        with returned():
            if not lib.is_array(O):
                raise Broken(Fault("type", f"it returns {kind(O)}"))

    layouts = [candidate.layout] if candidate.layout else ["bhsd", "hsd", "sd"]
    for (s, d), layout in itertools.product([(2, 2), (128, 64)], layouts):  # some take whole tiles alone
        try:
            candidate.in_time(functools.partial(call, layout, s, d))
            return None
        except Broken as broken:
            first = first or broken.fault
            if first.name == "hangs":
                break
    return first
