"""What a layer may be given, and one clear sentence for what it may not."""

import math
from typing import Any

from attnmath._arguments import (
    _arrays,
    _axes,
    _broadcasts,
    _leading,
    _sees,
    _shape,
    _with_others,
    below_inf,
    factors,
)
from attnmath._arrays import default_scale, is_number, namespace, shape

MATRICES = "W_Q", "W_K", "W_V", "W_O"
BIASES = "b_Q", "b_K", "b_V", "b_O"
WEIGHTS = MATRICES + BIASES
MAP = "Q", "K", "V", "P", "O", "Y"
OPTIONAL = {"b", "B", "gamma", "R", *(f"W.{b}" for b in BIASES)}


def projection(function: str, X: Any, W: Any, b: Any, **others: Any) -> list:
    """X, W, b, then gradients and tangents as the formulas need them."""
    given = _given(function, dict(X=X, W=W, b=b, **others))
    X, W, b = given["X"], given["W"], given["b"]
    _axes(function, "X", X, 2, "(..., n, d)")
    _sizes(function, "W", W, (shape(X)[-1], "m"), f"X of shape {shape(X)}")
    m = shape(W)[-1]
    if b is not None and shape(b) != (1, m):
        _sizes(function, "b", b, (m,), f"W of shape {shape(W)}")
    _finite(function, dict(X=X, W=W, b=b))
    return _with_others(function, given, {"dY": (*shape(X)[:-1], m)})


def layer(
    function: str, X: Any, Z: Any, W: Any, B: Any, gamma: Any, R: Any,
    *given: Any, **others: Any,
) -> list:
    """X, Z, W, B, gamma, R, then gradients, tangents, and the parts of given, if any.

    The tangent W_dot comes last.
    """
    weights = _parts(function, "W", W, WEIGHTS, "Weights")
    dots = _dots(function, W, others)
    maps = _maps(function, *given)
    named = dict(X=X, Z=Z, **weights, B=B, gamma=gamma, R=R, **others, **dots, **maps)
    named = _given(function, named)
    shapes = _shapes(function, named, "X" if Z is X else "Z")
    _scores(function, named, shapes["given.P"])
    if not maps:  # else multihead_map has looked
        _finite(function, {"X": X, "Z": Z, **weights, "gamma": gamma})
    if gamma is None:
        named["gamma"] = default_scale(shape(named["W.W_Q"])[-1], X)
    for name in maps:
        _shape(function, name, named[name], shapes[name], "what multihead_map returns")
    return _packed(function, type(W), named, shapes["given.Y"])


def _given(function: str, named: dict) -> dict:
    """Arrays of one library and precision; None where it may stand."""
    there = {k: x for k, x in named.items() if x is not None or not _is_optional(k)}
    return named | _arrays(function, **there)


def _is_optional(name: str) -> bool:
    return name in OPTIONAL or name.startswith("W_dot.")


def _parts(function: str, name: str, x: Any, fields: tuple, kind: str) -> dict:
    """The fields of a named tuple, each by its name; a TypeError if it has others."""
    if not isinstance(x, tuple) or getattr(x, "_fields", None) != fields:
        raise TypeError(
            f"{function}: {name} is a {type(x).__name__}; it needs to be {kind}, a"
            f" named tuple of {', '.join(fields)}"
        )
    return {f"{name}.{field}": part for field, part in zip(fields, x)}


def _dots(function: str, W: Any, others: dict) -> dict:
    """The fields of W_dot if it is among the others, from which it is taken."""
    if "W_dot" not in others:
        return {}
    W_dot = others.pop("W_dot")
    W_dot = type(W)(*[None] * len(WEIGHTS)) if W_dot is None else W_dot
    return _parts(function, "W_dot", W_dot, WEIGHTS, "Weights or None")


def _maps(function: str, given: Any = None) -> dict:
    """The fields of what multihead_map returned, if it is given."""
    if given is None:
        return {}
    return _parts(function, "given", given, MAP, "what multihead_map returns")


def _shapes(function: str, named: dict, Z: str) -> dict:
    """The shapes of what multihead_map computes; inputs and weights need to fit."""
    x = {name: shape(part) for name, part in named.items() if part is not None}
    _axes(function, "X", named["X"], 2, "(..., n, d)")
    _axes(function, Z, named["Z"], 2, "(..., m, d_z)")
    (*batch, n, d), (*others, m, d_z) = x["X"], x["Z"]

    def sizes(name: str, need: tuple, *of: str) -> tuple:
        to_match = " and ".join(f"{o} of shape {x['Z' if o == Z else o]}" for o in of)
        if f"W.{name}" in x:
            _sizes(function, f"W.{name}", named[f"W.{name}"], need, to_match)
        return x.get(f"W.{name}", ())

    H, d, d_k = sizes("W_Q", ("H", d, "d_k"), "X")
    G, d_z, d_k = sizes("W_K", ("G", d_z, d_k), Z, "W.W_Q")
    G, d_z, d_v = sizes("W_V", (G, d_z, "d_v"), Z, "W.W_K")
    sizes("W_O", (H, d_v, d), "X", "W.W_Q", "W.W_V")
    if H % G:
        raise ValueError(
            f"{function}: W.W_K has shape {x['W.W_K']}; it needs G that divides H ="
            f" {H}, the number of heads in W.W_Q of shape {x['W.W_Q']}"
        )
    sizes("b_Q", (H, d_k), "W.W_Q")
    sizes("b_K", (G, d_k), "W.W_K")
    sizes("b_V", (G, d_v), "W.W_V")
    sizes("b_O", (d,), "W.W_O")
    leading = _leading(function, Z, named["Z"], tuple(batch), "X")
    maps = (*batch, H, n, d_k), (*others, G, m, d_k), (*others, G, m, d_v)
    maps += (*leading, H, n, m), (*leading, H, n, d_v), (*leading, n, d)
    return {f"given.{name}": need for name, need in zip(MAP, maps)}


def _sizes(function: str, name: str, x: Any, need: tuple, of: str) -> None:
    """x has these axes: a number is a size, a letter any size, H, G, d_k any but 0."""
    own = shape(x)
    empty = [b for a, b in zip(own, need) if a == 0 and b in ("H", "G", "d_k")]
    fits = (isinstance(b, str) or a == b for a, b in zip(own, need))
    if len(own) != len(need) or empty or not all(fits):
        axes = ", ".join(map(str, need)) + "," * (len(need) == 1)
        positive = f" with {', '.join(empty)} > 0" if empty else ""
        raise ValueError(
            f"{function}: {name} has shape {own}; it needs ({axes}){positive} to match"
            f" {of}"
        )


def _scores(function: str, named: dict, need: tuple) -> None:
    """B, gamma and R fit the scores of all heads."""
    B, gamma, H = named["B"], named["gamma"], need[-3]
    _broadcasts(function, "B", B, need)
    factors(function, named["R"], need)
    if gamma is not None and shape(gamma) not in ((), (H,)):
        raise ValueError(
            f"{function}: gamma has shape {shape(gamma)}; it needs () or ({H},), one"
            " number for each head"
        )
    below_inf(function, "B", B)
    if _sees(B, _looks_boolean):
        raise ValueError(
            f"{function}: B of shape {shape(B)} holds only 0 and 1, as a boolean mask"
            " does; it needs 0 where a query may look and -inf where not (if it is a"
            " bias, B - 1 has the same weights)"
        )


def _looks_boolean(B: Any) -> Any:
    xp = namespace(B)
    return xp.min(B) == 0 and xp.max(B) == 1 and xp.all((B == 0) | (B == 1))


def _finite(function: str, named: dict) -> None:
    for name, x in named.items():
        if not is_number(x) and _sees(x, _unbounded):
            raise ValueError(
                f"{function}: {name} of shape {shape(x)} holds NaN or infinity; it"
                " needs finite numbers"
            )


def _unbounded(x: Any) -> Any:
    """Whether the largest or the smallest entry is infinite; NaN is no number below."""
    xp = namespace(x)
    return ~((xp.max(x) < math.inf) & (xp.min(x) > -math.inf))


def _packed(function: str, kind: type, named: dict, Y: tuple) -> list:
    """The weights together again, W_dot last; gradients and tangents as needed."""
    weights = kind(*(named.pop(f"W.{name}") for name in WEIGHTS))
    asked = f"W_dot.{WEIGHTS[0]}" in named
    dots = [named.pop(f"W_dot.{name}", None) for name in WEIGHTS]
    X, Z, *rest = _with_others(function, named, {"dY": Y})
    dots = (_dot(function, name, *pair) for name, *pair in zip(WEIGHTS, weights, dots))
    return [X, Z, weights, *rest, *([kind(*dots)] if asked else [])]


def _dot(function: str, name: str, w: Any, dot: Any) -> Any:
    """A tangent of the shape of what it belongs to; zeros for None."""
    if dot is None:
        return None if w is None else namespace(w).zeros_like(w)
    if w is None:
        raise ValueError(
            f"{function}: W_dot.{name} has shape {shape(dot)}; it needs to be None, as"
            f" W.{name} is"
        )
    _shape(function, f"W_dot.{name}", dot, shape(w), f"W.{name}")
    return dot
