"""Where an output is wrong: which batch elements, heads, rows and columns."""

import numpy as np

AXES = "batch element", "head", "row", "column"
SPANS = 4  # that are told; of more the first and the last number
PLURAL = {"batch element": "batch elements", "head": "heads", "row": "rows", "column": "columns"}


def spans(index: np.ndarray) -> str:
    """Whole numbers in order as spans: 0, 3 to 5."""
    breaks = np.flatnonzero(np.diff(index) > 1)
    if len(breaks) >= SPANS:
        return f"{len(index)} between {index[0]} and {index[-1]}"
    firsts, lasts = index[[0, *(breaks + 1)]], index[[*breaks, -1]]
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in zip(firsts, lasts))


def place(letter: str, wrong: np.ndarray, got: np.ndarray) -> str:
    """dK, head 1, rows 48 to 60 (exactly zero)."""
    words = [letter]
    for axis, name in enumerate(AXES):
        index = np.flatnonzero(wrong.any(tuple(i for i in range(wrong.ndim) if i != axis)))
        if 0 < len(index) < wrong.shape[axis] and len(index) <= max(2, wrong.shape[axis] * 3 // 4):
            count, many, rest = spans(index).partition(" between ")
            one = f"{PLURAL[name] if len(index) > 1 else name} {count}"
            words.append(f"{count} {PLURAL[name]} between {rest}" if many else one)
    where = ", ".join(words)
    values = got[wrong]
    if np.isnan(values).any():
        return f"{where} (NaN)"
    if np.isinf(values).any():
        return f"{where} (infinite)"
    return f"{where} (exactly zero)" if not values.any() else where
