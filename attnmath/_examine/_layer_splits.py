"""Wrong ways to take heads apart and to put them together."""

from collections.abc import Callable

import numpy as np


def split_alternately(x: np.ndarray, H: int) -> np.ndarray:
    """Entry c of head h stands at c H + h."""
    b, n, Hk = x.shape
    return x.reshape(b, n, Hk // H, H).transpose(0, 3, 1, 2)


def merged_alternately(x: np.ndarray) -> np.ndarray:
    """The other way."""
    b, H, n, k = x.shape
    return x.transpose(0, 2, 3, 1).reshape(b, n, H * k)


def split_by_view(x: np.ndarray, H: int) -> np.ndarray:
    """The numbers read in the shape of heads, without an exchange of axes."""
    b, n, Hk = x.shape
    return x.reshape(b, H, n, Hk // H)


def merged_by_view(x: np.ndarray) -> np.ndarray:
    """The other way."""
    b, H, n, k = x.shape
    return x.reshape(b, n, H * k)


def taken_apart(split: Callable, merge: Callable) -> dict[str, dict]:
    """Heads are split, put together, or both, in a way of their own; forward and back, or back alone."""
    def const(f: Callable) -> Callable:
        return lambda s, x: f

    return {
        "out": {"merge": const(merge), "merge_back": const(split)},
        "in": {"split": const(split), "split_back": const(merge)},
        "out_back": {"merge_back": const(split)},
        "in_back": {"split_back": const(merge)},
    }


ALTERNATELY = taken_apart(split_alternately, merged_alternately)
BY_VIEW = taken_apart(split_by_view, merged_by_view)
