"""Operators along one axis of a letter: other places, some of them lost, tiles of them; sums for a bias."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnmath._examine.problems.steps import Steps

POWERS = (128, 64, 32, 16, 8, 4, 2)  # the usual sizes of tiles
Operator = Callable[[Steps, Any], Any]  # what a step is given, in another form
MANY = {"b": "batch elements", "H": "heads", "n": "queries", "m": "keys"}


def taken(axis: int, places: Callable[[int], Any]) -> Operator:
    """What stands in other places along an axis."""
    return lambda s, x: np.take(x, places(x.shape[axis]), axis)


def kept(axis: int, places: Callable[[np.ndarray, int], Any]) -> Operator:
    """Zero elsewhere."""
    def operator(s: Steps, x: np.ndarray) -> np.ndarray:
        length = x.shape[axis]
        kept = places(np.arange(length), length)
        return np.moveaxis(np.where(kept, np.moveaxis(x, axis, -1), np.zeros((), x.dtype)), -1, axis)

    return operator


BEYOND: dict[tuple[str, int], dict[str, Operator]] = {  # for a letter's size along an axis
    ("n", 2): {"is zero for queries beyond as many as there are keys":
               lambda s, x: kept(2, lambda i, k: i < s.K.shape[2])(s, x)},
    ("m", 2): {"is zero for keys beyond as many as there are queries":
               lambda s, x: kept(2, lambda i, k: i < s.Q.shape[2])(s, x)},
}
ALONG: dict[str, Callable[[int], Operator]] = {  # with the word for what lies along the axis
    "is that of the first {} for all": lambda axis: taken(axis, lambda k: np.zeros(k, int)),
    "is that of the last {} for all": lambda axis: taken(axis, lambda k: np.full(k, k - 1)),
    "is that of the {} before": lambda axis: lambda s, x: np.roll(x, 1, axis),
    "is that of the next {}": lambda axis: lambda s, x: np.roll(x, -1, axis),
    "is zero for the last {}": lambda axis: kept(axis, lambda i, k: i < k - 1),
    "is zero for the first {}": lambda axis: kept(axis, lambda i, k: i > 0),
    "is zero for all but the last {}": lambda axis: kept(axis, lambda i, k: i == k - 1),
    "is zero for all but the first {}": lambda axis: kept(axis, lambda i, k: i == 0),
    "is the sum over every {}, for all": lambda axis: lambda s, x: np.broadcast_to(
        x.sum(axis, keepdims=True), x.shape).astype(x.dtype),
    "holds the sum of each {} and those before it": lambda axis: lambda s, x: np.cumsum(x, axis),
}




# ---- tiles of queries or keys -------------------------------------------------------------------

IN_TILES: dict[str, Callable[[int, int], np.ndarray]] = {  # from where, for so many places and a tile
    "is that of the tile of {} before": lambda k, t: np.arange(k) - t * (np.arange(k) >= t),
    "is that of the first tile of {}": lambda k, t: np.arange(k) % t,
    "is that of the first place in its tile of {}": lambda k, t: np.arange(k) // t * t,
}
TILES_LOST: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {  # which places are kept
    "is zero before the last tile of {}": lambda i, k, t: i >= (k - 1) // t * t,
    "is zero in the last tile of {}": lambda i, k, t: i < (k - 1) // t * t,
    "is zero after whole tiles of {}": lambda i, k, t: i < k // t * t,
    "is zero after whole tiles of {}, one at least": lambda i, k, t: i < max(k // t, 1) * t,
    "is zero after the first tile of {}": lambda i, k, t: i < t,
    "is zero in the first tile of {}": lambda i, k, t: i >= t,
}
SHORT_TOO = "is zero after whole tiles of {}", "is that of the first place in its tile of {}"


def in_tile(words: str, axis: int, t: int) -> Operator:
    """What happens to tiles along an axis."""
    if words in IN_TILES:
        return taken(axis, lambda k: IN_TILES[words](k, t))
    return kept(axis, lambda i, k: TILES_LOST[words](i, k, t))


# ---- the gradient of a bias ---------------------------------------------------------------------


def first_of_broadcast(*axes: int) -> Operator:
    """Zero but in the first place along each of the axes along which the bias is broadcast."""
    def operator(s: Steps, x: np.ndarray) -> np.ndarray:
        shape = (*(1,) * (x.ndim - np.ndim(s.bias)), *np.shape(s.bias))
        for axis in axes:
            x = kept(axis, lambda i, k: i == 0)(s, x) if shape[axis] == 1 else x
        return x

    return operator


def over_shared(total: Callable[[np.ndarray, int], np.ndarray], axis: int, shared: bool) -> Operator:
    """A sum or mean over an axis, where the bias is the same along it, or where it is not."""
    def operator(s: Steps, x: np.ndarray) -> np.ndarray:
        shape = (*(1,) * (x.ndim - np.ndim(s.bias)), *np.shape(s.bias))
        return total(x, axis) if (shape[axis] == 1) is shared else x

    return operator


def _over(x: np.ndarray, axis: int) -> np.ndarray:
    return np.broadcast_to(x.sum(axis, keepdims=True), x.shape)


OF_BIAS: dict[str, Operator] = {
    **{f"is a mean over the {many} that share the bias, not a sum":
       over_shared(lambda x, axis: x / x.shape[axis], axis, True)
       for axis, many in enumerate(MANY.values()) if many != "keys"},  # over the keys the sum is 0
    **{f"is summed over the {many}, of which each has its own bias": over_shared(_over, axis, False)
       for axis, many in enumerate(MANY.values())},
    "is that of the first place where the bias is broadcast, not a sum": first_of_broadcast(0, 1, 2, 3),
    "is that of the first batch element where they share the bias, not a sum": first_of_broadcast(0),
    "is that of the first head where they share the bias, not a sum": first_of_broadcast(1),
}
