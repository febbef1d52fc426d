"""What the blocks around attention may be given; a clear sentence for what they may not."""

import math
from typing import Any

from attnmath._arguments import _arrays, _axes, _sees, _with_others
from attnmath._arrays import is_number, shape
from attnmath._layer_arguments import _finite


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
        _sized(function, name, given[name], (d,), "X", X)
    real = is_number(epsilon) and not isinstance(epsilon, bool | complex)
    if not real and (is_number(epsilon) or getattr(epsilon, "shape", None) != ()):
        raise TypeError(
            f"{function}: epsilon is a {type(epsilon).__name__}; it needs to be a real"
            " number"
        )
    if _sees(epsilon, lambda x: (x <= 0) | (x == math.inf) | (x != x)):
        raise ValueError(
            f"{function}: epsilon is {float(epsilon)}; it needs to be positive and finite,"
            " since a row of equal entries is divided by its root"
        )
    if hasattr(epsilon, "dtype"):
        _arrays(function, X=X, epsilon=epsilon)
    return _with_others(function, given, {"dY": shape(X)})


def entries(function: str, U: Any, **others: Any) -> list:
    """U, then gradients and tangents as the formulas need them."""
    given = _arrays(function, U=U, **others)
    return _with_others(function, given, {"dF": shape(U)})


def network(
    function: str, X: Any, W_U: Any, b_U: Any, W_D: Any, b_D: Any, **others: Any
) -> list:
    """X, W_U, b_U, W_D, b_D, then gradients and tangents as the formulas need them."""
    given = dict(X=X, W_U=W_U, b_U=b_U, W_D=W_D, b_D=b_D, **others)
    none = [name for name in ("b_U", "b_D") if given[name] is None]
    given |= _arrays(function, **{k: x for k, x in given.items() if k not in none})
    _axes(function, "X", X, 2, "(..., n, d)")
    d = shape(X)[-1]
    if len(shape(W_U)) != 2 or shape(W_U)[0] != d:
        raise ValueError(
            f"{function}: W_U has shape {shape(W_U)}; it needs ({d}, d_u) to match X of"
            f" shape {shape(X)}"
        )
    d_u = shape(W_U)[1]
    _sized(function, "W_D", W_D, (d_u, d), "W_U", W_U)
    if b_U is not None:
        _sized(function, "b_U", b_U, (d_u,), "W_U", W_U)
    if b_D is not None:
        _sized(function, "b_D", b_D, (d,), "W_D", W_D)
    _finite(function, dict(X=X, W_U=W_U, b_U=b_U, W_D=W_D, b_D=b_D))
    found = _with_others(function, given, {"dY": shape(X)})
    return [None if is_number(x) else x for x in found]  # no bias, no tangent


def targets(function: str, A: Any, E: Any, **others: Any) -> list:
    """A, E, then the gradient or the tangent as the formulas need it."""
    given = _arrays(function, A=A, E=E, **others)
    _axes(function, "A", given["A"], 1, "(..., m)")
    _sized(function, "E", given["E"], shape(A), "A", A)
    _finite(function, dict(E=E))
    return _with_others(function, given, {"dloss": ()})


def _sized(function: str, name: str, x: Any, need: tuple, of: str, seen: Any) -> None:
    """x has the shape that it needs beside an array that was seen before."""
    if shape(x) != tuple(need):
        raise ValueError(
            f"{function}: {name} has shape {shape(x)}; it needs {tuple(need)} to match"
            f" {of} of shape {shape(seen)}"
        )
