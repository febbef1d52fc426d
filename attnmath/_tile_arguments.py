"""What the functions that work on tiles may be given, and one clear sentence for what not."""

from typing import Any

from attnmath._arguments import _arrays, _axes, _shape, _with_others, below_inf, head
from attnmath._arrays import shape
from attnmath._mask_arguments import check_size


def tiled(
    function: str, tile: Any, Q: Any, K: Any, V: Any, B: Any, gamma: Any, R: Any, **others: Any
) -> list:
    """How many queries and keys a tile has, then all arrays as the formulas need them."""
    sizes = tile if isinstance(tile, tuple | list) else (tile, tile)
    if len(sizes) != 2:
        raise ValueError(
            f"{function}: tile is {tile!r}; it needs to be a number, or two: of queries, of keys"
        )
    for size in sizes:
        check_size(function, "tile", size, 1)
    others = {name: x for name, x in others.items() if name != "dL" or x is not None}
    return [tuple(sizes), *head(function, Q, K, V, B, gamma, R=R, **others)]


def two_parts(function: str, O_a: Any, L_a: Any, O_b: Any, L_b: Any, **others: Any) -> list:
    """Two outputs with their log-sum-exps, then gradients and tangents."""
    given = _arrays(function, O_a=O_a, L_a=L_a, O_b=O_b, L_b=L_b, **others)
    O_a, L_a, O_b, L_b = list(given.values())[:4]
    _axes(function, "O_a", O_a, 2, "(..., n, d_v)")
    _shape(function, "O_b", O_b, shape(O_a), "O_a")
    for name, L in (("L_a", L_a), ("L_b", L_b)):
        if shape(L) != shape(O_a)[:-1]:
            raise ValueError(
                f"{function}: {name} has shape {shape(L)}; it needs {shape(O_a)[:-1]}, a number for"
                " each row of O_a"
            )
        below_inf(function, name, L)
    return _with_others(function, given, {"dO": shape(O_a), "dL": shape(L_a)})
