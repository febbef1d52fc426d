"""The numbers of an array as Python writes them, to be pasted."""

import numpy as np


def as_literal(x: np.ndarray) -> str:
    """An array's numbers; nothing of what does not fit on a line is left out."""
    if x.dtype == bool:
        return str(x.tolist())
    same = x.size and (x == x.flat[0]).all()
    if same and x.size > 8 and np.isfinite(x.flat[0]):
        return f"[{x.flat[0]!r}] * {x.size}" if x.ndim == 1 else _as_repeated(x.shape, float(x.flat[0]))
    return str(x.tolist()).replace("-inf", 'float("-inf")').replace("nan", 'float("nan")')


def _as_repeated(shape: tuple, number: float) -> str:
    text = f"[{number!r}] * {shape[-1]}"
    for size in reversed(shape[:-1]):
        text = f"[{text}]" if size == 1 else f"[{text}] * {size}"
    return text
