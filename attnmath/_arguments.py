"""What the public functions may be given, and one clear sentence for what they may not.

Shapes, libraries and dtypes are checked always; values (NaN in B, tau = 0) only where
there are values to see: not while a function is traced, compiled or mapped over a
batch.
"""

import math
import sys
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj, is_torch_array

from attnmath._arrays import (
    default_scale,
    is_exact,
    is_number,
    namespace,
    number_type,
    real,
    shape,
)

NUMBERS = ("tau", "tau_dot", "gamma", "gamma_dot", "rho", "dloss")  # may be Python numbers
OUTPUTS = {
    "dP": "P", "dL": "L", "dLambda": "Lambda", "dO": "O", "dY": "Y", "dF": "F",
    "dloss": "the loss",
}


def scores(function: str, A: Any, **others: Any) -> list:
    """A, then tau, gradients and tangents as the formulas need them."""
    given = _arrays(function, A=A, **others)
    A = given["A"]
    _axes(function, "A", A, 1, "(..., m)")
    if "tau" in given:
        _broadcasts(function, "tau", given["tau"], shape(A))
        if _sees(given["tau"], lambda tau: tau == 0):
            raise ValueError(
                f"{function}: tau is 0; it needs another value, to divide A by"
            )
    outputs = {"dP": shape(A), "dL": shape(A)[:-1], "dLambda": shape(A)}
    return _with_others(function, given, outputs)


def head(
    function: str, Q: Any, K: Any, V: Any, B: Any, gamma: Any, **others: Any
) -> list:
    """Q, K, V, B, gamma, then gradients and tangents as the formulas need them."""
    given = _arrays(function, Q=Q, K=K, V=V, B=B, gamma=gamma, **others)
    Q, K, V, B, gamma = list(given.values())[:5]
    _axes(function, "Q", Q, 2, "(..., n, d_k)")
    n, d_k = shape(Q)[-2:]
    if d_k == 0:
        raise ValueError(f"{function}: Q has shape {shape(Q)}; it needs d_k > 0")
    _axes(
        function,
        "K",
        K,
        2,
        f"(..., m, {d_k}) to match Q of shape {shape(Q)}",
        {-1: d_k},
    )
    m = shape(K)[-2]
    _axes(
        function, "V", V, 2, f"(..., {m}, d_v) to match K of shape {shape(K)}", {-2: m}
    )
    leading = _leading(function, "K", K, shape(Q)[:-2], "Q")
    _broadcasts(function, "B", B, (*leading, n, m))
    below_inf(function, "B", B)
    _broadcasts(function, "gamma", gamma, (*leading, n, m))
    given["gamma"] = default_scale(d_k, Q) if gamma is None else gamma
    leading = _leading(function, "V", V, leading, "Q and K")
    factors(function, given.get("R"), (*leading, n, m))
    outputs = {"dO": (*leading, n, shape(V)[-1]), "dL": (*leading, n)}
    return _with_others(function, given, outputs)


def below_inf(function: str, name: str, x: Any) -> None:
    """The entries of x, which is added to the scores, are numbers or -inf."""
    if _sees(x, lambda x: ~(x < math.inf)):
        raise ValueError(
            f"{function}: {name} of shape {shape(x)} holds NaN or +inf; its entries"
            " need to be numbers or -inf"
        )


def factors(function: str, R: Any, need: tuple) -> None:
    """Dropout's R broadcasts against the scores, and holds numbers."""
    _broadcasts(function, "R", R, need)
    if _sees(R, lambda R: ~((R >= 0) & (R < math.inf))):
        raise ValueError(
            f"{function}: R of shape {shape(R)} holds NaN, +inf or a number below 0; its"
            " entries need to be 0 or 1 / (1 - rho)"
        )


def draws(function: str, U: Any, rho: Any) -> list:
    """The uniform draws U and the rate of dropout, both in [0, 1)."""
    given = _arrays(function, U=U, rho=rho)
    U, rho = given.values()
    if isinstance(rho, complex):
        raise TypeError(f"{function}: rho is a complex; it needs to be a real number")
    if shape(rho) != ():
        raise ValueError(f"{function}: rho has shape {shape(rho)}; it needs to be a number")
    for name, x in given.items():
        if _sees(x, lambda x: (x < 0) | (x >= 1) | (x != x)):
            what = "is" if is_number(x) else "holds a number that is"
            raise ValueError(f"{function}: {name} {what} outside of [0, 1); it needs to be inside")
    return [U, rho]


def _arrays(function: str, **given: Any) -> dict:
    """Arrays of one library and precision; numbers or None where they may stand."""
    first = None
    for name, x in given.items():
        if isinstance(x, np.generic) and name in NUMBERS:
            given[name] = x = x.item()
        if x is None and (name in ("B", "gamma", "R") or name.endswith("_dot")):
            continue
        if name in NUMBERS and is_number(x) and not isinstance(x, bool):
            if not abs(x) < math.inf:
                raise ValueError(
                    f"{function}: {name} is {x}; it needs to be a finite number"
                )
            continue
        _floating(function, name, x)
        first = first or (name, x)
        if namespace(x) is not namespace(first[1]):
            raise TypeError(
                f"{function}: {name} is an array of {_library(x)}, but {first[0]}"
                f" is one of {_library(first[1])}; all need to be of one library"
            )
        if getattr(x, "weak_type", False):  # a number that JAX traces adapts itself
            given[name] = x = x.astype(namespace(x).result_type(x, first[1]))
        if _precision(x) != _precision(first[1]):
            raise TypeError(
                f"{function}: {name} has dtype {_dtype(x)}; it needs that of"
                f" {first[0]}, {_dtype(first[1])}"
            )
    return _all_complex(given)


def _floating(function: str, name: str, x: Any) -> None:
    kind = "an array or a number" if name in NUMBERS else "an array"
    if not is_array_api_obj(x) or isinstance(x, np.matrix | np.ma.MaskedArray):
        raise TypeError(
            f"{function}: {name} is a {type(x).__name__}; it needs to be {kind}"
            " (of NumPy, torch or another array-API library)"
        )
    xp = namespace(x)
    if name == "B" and xp.isdtype(x.dtype, "bool"):
        raise TypeError(
            f"{function}: B is boolean; it needs numbers that are added to the scores:"
            " 0 where a query may look and -inf where not, as in"
            " where(may_look, 0.0, -inf)"
        )
    if not number_type(x).is_floating:
        raise TypeError(
            f"{function}: {name} has dtype {_dtype(x)}; it needs floating-point numbers"
        )


def _all_complex(given: dict) -> dict:
    """All arrays complex if one or a number is: torch multiplies no mixture."""
    arrays = {
        name: x for name, x in given.items() if x is not None and not is_number(x)
    }
    kinds = [x.dtype for x in arrays.values()]
    kinds += [x for x in given.values() if isinstance(x, complex)]
    xp = namespace(next(iter(arrays.values())))
    if all(kind == kinds[0] for kind in kinds):
        return given
    dtype = xp.result_type(*kinds)
    return given | {name: xp.astype(x, dtype) for name, x in arrays.items()}


def _with_others(function: str, given: dict, outputs: dict) -> list:
    """All that is given; gradients and tangents have the shapes they need."""
    for name, x in given.items():
        if name in OUTPUTS:
            _shape(function, name, x, outputs[name], OUTPUTS[name])
        elif name.endswith("_dot"):
            of = name.removesuffix("_dot")
            if given[of] is None and x is not None:
                raise ValueError(
                    f"{function}: {name} has shape {shape(x)}; it needs to be None,"
                    f" as {of} is"
                )
            if x is not None:
                _shape(function, name, x, shape(given[of]), of)
            elif given[of] is None or is_number(given[of]):
                given[name] = 0
            else:
                given[name] = namespace(given[of]).zeros_like(given[of])
    return list(given.values())


def _shape(function: str, name: str, x: Any, need: tuple, of: str) -> None:
    if shape(x) != tuple(need):
        raise ValueError(
            f"{function}: {name} has shape {shape(x)}; it needs {tuple(need)},"
            f" the shape of {of}"
        )


def _axes(
    function: str, name: str, x: Any, count: int, need: str, sizes: dict | None = None
) -> None:
    """x has this many axes at least, and the sizes given for some of the last ones."""
    if len(shape(x)) < count or any(
        shape(x)[k] != size for k, size in (sizes or {}).items()
    ):
        raise ValueError(f"{function}: {name} has shape {shape(x)}; it needs {need}")


def _broadcasts(function: str, name: str, x: Any, need: tuple) -> None:
    """x broadcasts against the scores and does not enlarge them."""
    own = () if x is None else shape(x)
    if len(own) > len(need) or any(
        a not in (1, b) for a, b in zip(own[::-1], need[::-1])
    ):
        raise ValueError(
            f"{function}: {name} has shape {own}; it needs one that broadcasts to"
            f" {tuple(need)}, the shape of A"
        )


def _leading(function: str, name: str, x: Any, others: tuple, of: str) -> tuple:
    """The leading axes of x, all but the last two, broadcast against the others'."""
    own = shape(x)[:-2]
    length = max(len(own), len(others))
    pairs = list(
        zip((1,) * (length - len(own)) + own, (1,) * (length - len(others)) + others)
    )
    if any(a != b and 1 not in (a, b) for a, b in pairs):
        raise ValueError(
            f"{function}: {name} has shape {shape(x)}; its leading axes {own} need to"
            f" broadcast against {tuple(others)}, those of {of}"
        )
    return tuple(b if a == 1 else a for a, b in pairs)


def _sees(x: Any, question: Any) -> bool:
    """Whether the answer is yes for an entry of x; no where no values can be seen."""
    if x is None or is_number(x):
        return x is not None and bool(question(x))
    if is_exact(x):  # letters: there is no value to see
        return False
    if is_torch_array(x):
        torch = sys.modules["torch"]
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return False
    try:
        return bool(namespace(x).any(question(real(x))))
    except Exception:  # a tracer, or one of a batch under vmap, does not become a bool
        return False


def _precision(x: Any) -> float:
    return number_type(x).eps


def _dtype(x: Any) -> str:
    return str(x.dtype).rpartition(".")[2]


def _library(x: Any) -> str:
    return type(x).__module__.partition(".")[0]
