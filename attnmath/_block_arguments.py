"""What the blocks around attention may be given; a clear sentence for what they may not.

The library, the dtype and the shape of every array are checked as `_arguments` does it.
"""

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from attnmath._arguments import _arrays, _axes, _sees, _shape
from attnmath._arrays import is_number, shape


def norm(
    function: str, X: Any, alpha: Any, beta: Any, epsilon: Any, **others: Any
) -> list:
    """X, alpha, beta, then gradients and tangents as the formulas need them."""
    given = _arrays(function, X=X, alpha=alpha, beta=beta, **others)
    _axes(function, "X", given["X"], 1, "(..., d)")
    d = shape(X)[-1]
    if d == 0:
        raise ValueError(f"{function}: X has shape {shape(X)}; it needs d > 0")
    for name in ("alpha", "beta"):
        _sized(function, name, given[name], (d,), "X", shape(X))
    if not is_number(epsilon) and getattr(epsilon, "shape", None) != ():
        raise TypeError(
            f"{function}: epsilon is a {type(epsilon).__name__}; it needs to be a number"
        )
    if _sees(epsilon, lambda epsilon: ~np.isfinite(epsilon) | (epsilon <= 0)):
        raise ValueError(
            f"{function}: epsilon is {float(epsilon)}; it needs to be positive, since a"
            " row of equal entries is divided by its root"
        )
    return _completed(function, given, {"dY": ("Y", shape(X))})


def entries(function: str, U: Any, **others: Any) -> list:
    """U, then gradients and tangents as the formulas need them."""
    given = _arrays(function, U=U, **others)
    return _completed(function, given, {"dF": ("F", shape(U))})


def network(
    function: str, X: Any, W_U: Any, b_U: Any, W_D: Any, b_D: Any, **others: Any
) -> list:
    """X, W_U, b_U, W_D, b_D, then gradients and tangents as the formulas need them."""
    given = dict(X=X, W_U=W_U, b_U=b_U, W_D=W_D, b_D=b_D, **others)
    without = {
        name: None
        for name, x in given.items()
        if x is None and (name in ("b_U", "b_D") or name.endswith("_dot"))
    }
    there = {name: x for name, x in given.items() if name not in without}
    given |= _arrays(function, **there)
    X, W_U, b_U, W_D, b_D = list(given.values())[:5]
    _axes(function, "X", X, 2, "(..., n, d)")
    d = shape(X)[-1]
    if len(shape(W_U)) != 2 or shape(W_U)[0] != d:
        raise ValueError(
            f"{function}: W_U has shape {shape(W_U)}; it needs ({d}, d_u) to match X of"
            f" shape {shape(X)}"
        )
    d_u = shape(W_U)[1]
    _sized(function, "W_D", W_D, (d_u, d), "W_U", shape(W_U))
    if b_U is not None:
        _sized(function, "b_U", b_U, (d_u,), "W_U", shape(W_U))
    if b_D is not None:
        _sized(function, "b_D", b_D, (d,), "W_D", shape(W_D))
    return _completed(function, given, {"dY": ("Y", shape(X))})


def targets(function: str, A: Any, E: Any, **others: Any) -> list:
    """A, E, then the gradient or the tangent as the formulas need it."""
    number = {name: x for name, x in others.items() if name == "dloss" and is_number(x)}
    for name, x in number.items():
        if not abs(x) < math.inf:
            raise ValueError(
                f"{function}: {name} is {x}; it needs to be a finite number"
            )
    arrays = {name: x for name, x in others.items() if name not in number}
    given = _arrays(function, A=A, E=E, **arrays)
    _axes(function, "A", given["A"], 1, "(..., m)")
    _sized(function, "E", given["E"], shape(A), "A", shape(A))
    return _completed(function, given | number, {"dloss": ("the loss", ())})


def _sized(
    function: str, name: str, x: Any, need: tuple, of: str, seen: tuple
) -> None:
    if shape(x) != tuple(need):
        raise ValueError(
            f"{function}: {name} has shape {shape(x)}; it needs {tuple(need)} to match"
            f" {of} of shape {tuple(seen)}"
        )


def _completed(function: str, given: dict, outputs: dict) -> list:
    """All that is given; a tangent of None is zero, and the others have their shapes."""
    for name, x in given.items():
        if name in outputs:
            of, need = outputs[name]
            _shape(function, name, x, need, of)
        elif name.endswith("_dot"):
            of = name.removesuffix("_dot")
            if given[of] is None and x is not None:
                raise ValueError(
                    f"{function}: {name} has shape {shape(x)}; it needs to be None,"
                    f" as {of} is"
                )
            if x is not None:
                _shape(function, name, x, shape(given[of]), of)
            elif given[of] is not None:
                given[name] = array_namespace(given[of]).zeros_like(given[of])
    return list(given.values())
