"""What a public function is given, checked in one place: one clear sentence for each fault.

Shapes, libraries and number types are checked always; values only where they are there to
be seen (not while a function is traced, compiled or mapped over a batch).
"""

import math
import sys
from typing import Any

from array_api_compat import array_namespace, is_array_api_obj, is_torch_array

REAL = {"float16": 16, "bfloat16": 17, "float32": 32, "float64": 64, "complex64": 32,
        "complex128": 64, "longdouble": 128, "float128": 128, "clongdouble": 128,
        "complex256": 128, "float8": 8}  # fmt: skip


def arrays(function: str, **named: Any) -> None:
    """All arrays, of one library, of one floating-point precision; None stands for none."""
    first = None
    for name, x in named.items():
        if x is None:
            continue
        if not is_array_api_obj(x):
            kind = type(x).__name__
            raise TypeError(f"{function}: {name} is a {kind}; it needs to be an array"
                            " (NumPy, torch or another array-API library)")  # fmt: skip
        xp, dtype = array_namespace(x), _dtype(x)
        if not xp.isdtype(x.dtype, ("real floating", "complex floating")):
            hint = f"; write where({name}, 0.0, -inf) for a mask" if dtype == "bool" else ""
            raise TypeError(f"{function}: {name} has dtype {dtype}; it needs"
                            f" floating-point numbers{hint}")  # fmt: skip
        if first is None:
            first = (name, xp, dtype)
        elif xp is not first[1]:
            raise TypeError(f"{function}: {name} is of {_library(xp)} and {first[0]} of"
                            f" {_library(first[1])}; all need to be of one library")  # fmt: skip
        elif REAL.get(dtype, dtype) != REAL.get(first[2], first[2]):
            raise TypeError(f"{function}: {name} has dtype {dtype}; it needs that of"
                            f" {first[0]}, {first[2]}")  # fmt: skip


def _dtype(x: Any) -> str:
    return str(x.dtype).rpartition(".")[2]


def _library(xp: Any) -> str:
    return xp.__name__.rpartition(".")[2]


def shaped(function: str, name: str, x: Any, axes: str, fits: bool, why: str = "") -> None:
    """A ValueError that names the shape x has and the shape it needs, unless it fits."""
    if x is not None and not fits:
        need = f"({axes})" + (f" to match {why}" if why else "")
        raise ValueError(f"{function}: {name} has shape {tuple(x.shape)}; it needs {need}")


def like(function: str, name: str, x: Any, shape: tuple, why: str) -> None:
    """x has this very shape; None and numbers beside a number's place are let through."""
    if x is not None and tuple(getattr(x, "shape", ())) != tuple(shape):
        has = tuple(getattr(x, "shape", ()))
        raise ValueError(f"{function}: {name} has shape {has};"
                         f" it needs {tuple(shape)}, the shape of {why}")  # fmt: skip


def broadcasts(function: str, name: str, x: Any, shape: tuple, why: str) -> None:
    """x broadcasts against the shape and does not enlarge it."""
    own = tuple(x.shape)
    fits = len(own) <= len(shape) and all(
        a in (1, b) for a, b in zip(reversed(own), reversed(shape))
    )
    if not fits:
        raise ValueError(f"{function}: {name} has shape {own}; it needs one that"
                         f" broadcasts against {tuple(shape)}, the shape of {why}")  # fmt: skip


def number(function: str, name: str, x: Any, shape: tuple, why: str, **beside: Any) -> Any:
    """A number as it is, or an array (of the library of `beside`) that broadcasts."""
    if isinstance(x, bool):
        raise TypeError(f"{function}: {name} is a bool; it needs to be a number")
    if isinstance(x, int | float | complex):
        x = complex(x) if isinstance(x, complex) else float(x)
        if x != x:
            raise ValueError(f"{function}: {name} is not a number")
        return x
    arrays(function, **beside, **{name: x})
    broadcasts(function, name, x, shape, why)
    return x


def leading(function: str, **named: Any) -> tuple:
    """The leading axes (all but the last two) that the arrays have in common."""
    out: list = []
    first = next(iter(named))
    for name, x in named.items():
        shape = tuple(x.shape[:-2])
        out = [1] * (len(shape) - len(out)) + out
        for k in range(1, len(shape) + 1):
            if out[-k] != 1 and shape[-k] not in (1, out[-k]):
                raise ValueError(f"{function}: {name} has shape {tuple(x.shape)}; its leading"
                                 f" axes need to broadcast against {tuple(out)}, those of"
                                 f" {first} {tuple(named[first].shape)}")  # fmt: skip
            out[-k] = shape[-k] if out[-k] == 1 else out[-k]
    return tuple(out)


def below_infinity(function: str, name: str, x: Any) -> None:
    """Neither NaN nor +inf in x, as far as its values can be seen."""
    bad = seen(x, lambda xp, x: not bool(xp.all(x < xp.inf)))
    if bad:
        raise ValueError(f"{function}: {name} of shape {tuple(x.shape)} holds NaN or +inf;"
                         " its entries need to be numbers or -inf")  # fmt: skip


def no_zero(function: str, name: str, x: Any) -> None:
    """No zero in x, a number or an array, as far as its values can be seen."""
    if isinstance(x, float | complex):
        bad = x == 0
    else:
        bad = seen(x, lambda xp, x: bool(xp.any(x == 0)))
    if bad:
        raise ValueError(f"{function}: {name} is zero; it needs to be another number")


def seen(x: Any, question: Any) -> bool:
    """The answer to a question on values; False where there are none to be seen."""
    if is_torch_array(x):
        torch = sys.modules["torch"]
        if torch.compiler.is_compiling() or torch.jit.is_tracing() or x.is_meta:
            return False
    xp = array_namespace(x)
    try:
        return question(xp, xp.real(x) if xp.isdtype(x.dtype, "complex floating") else x)
    except Exception:  # a tracer or a batch of vmap refuses to become a bool
        return False


def default_scale(function: str, d_k: int) -> float:
    """1/sqrt(d_k)."""
    if d_k == 0:
        raise ValueError(f"{function}: d_k is 0; the default scale 1/sqrt(d_k) needs d_k > 0")
    return 1 / math.sqrt(d_k)
