"""Which axis of an array is which: from the axes (b, h, s, d) of our problems to those of a candidate, and back.

b: the sequences of a batch, h: heads, s: places (n queries or m keys), d: numbers of a vector.
"""

import math
import re

import numpy as np

from attnmath._examine.contract.functions import Broken, Fault

AXIS_ORDERS = ("bhsd", "bshd", "sbhd", "hsd", "shd", "sd")
# Asked for after these: of Q; after a comma of K and V, where they differ; after ">" of the output.
MORE_ORDERS = (
    "bhsd>bshd", "bhsd>bs(hd)", "bshd>bs(hd)", "sbhd>sb(hd)", "shbd", "bhds", "bs(hd)", "sb(hd)", "s(hd)",
    "bhsd,bsd", "bshd,bsd", "bhd,bhsd", "bhd,bshd", "hds", "b(hd)s", "bs(dh)",
)
OURS = "bhsd"


def parts_of_layout(layout: str) -> tuple[str, str, str]:
    """The axes of queries, of keys and values, and of the output: "bhsd,bsd>bs(hd)" names all three."""
    inputs, _, output = layout.partition(">")
    queries, _, keys = inputs.partition(",")
    return queries, keys or queries, output or queries


def axes_of(layout: str, of: str) -> list[str]:
    """The axes of Q, K, V or O (or of their gradients), one by one; "hd" is one axis for both."""
    axes = parts_of_layout(layout)["QKO".index(of.replace("V", "K").removeprefix("d"))]
    return [merged or single for merged, single in re.findall(r"\((\w+)\)|(\w)", axes)]


def forced_sizes(layout: str) -> dict[str, int]:
    """The sizes that a layout has no axis for."""
    queries, keys, _ = parts_of_layout(layout)
    return ({"n": 1} if "s" not in queries else {}) | ({"G": 1} if "h" in queries and "h" not in keys else {})


def to_layout(x: np.ndarray, layout: str, of: str = "Q") -> np.ndarray:
    """(b, h, s, d) -> the axes of the layout; those that it lacks have size 1."""
    axes = axes_of(layout, of)
    letters = "".join(axes)
    lacking = tuple(axis for axis, letter in enumerate(OURS) if letter not in letters)
    left = [letter for letter in OURS if letter in letters]
    if any(x.shape[axis] > 1 for axis in lacking):
        raise Broken(Fault("options", f"its layout {layout} has no axis for this problem"))
    x = x.squeeze(lacking).transpose([left.index(letter) for letter in letters])
    sizes = iter(x.shape)
    return x.reshape([math.prod(next(sizes) for _ in axis) for axis in axes])


def from_layout(x: np.ndarray, layout: str, of: str = "Q", heads: int = 1) -> np.ndarray:
    """The axes of the layout -> (b, h, s, d), with so many heads where they share an axis with d."""
    axes = axes_of(layout, of)
    letters = "".join(axes)
    shape: list[int] = []
    for axis, size in zip(axes, x.shape):
        own = {"h": heads, "d": size // heads}
        shape += [size] if len(axis) == 1 else [own[letter] for letter in axis]
    left = [letter for letter in OURS if letter in letters]
    x = x.reshape(shape).transpose([letters.index(letter) for letter in left])
    return x.reshape([x.shape[left.index(letter)] if letter in left else 1 for letter in OURS])


CONTIGUOUS_ROWS = {("Q", 4): (2, 1, 0, 3), ("K", 4): (0, 2, 1, 3), ("V", 4): (1, 0, 2, 3), ("K", 3): (1, 0, 2)}


def memory_order(of: str, rank: int, contiguous_rows: bool = False) -> tuple[int, ...]:
    """The axes from the slowest to the fastest where a tensor is strided, for each of Q, K and V in another order.

    Of two axes there is one order alone that is not contiguous, so it is that of all. With contiguous rows the
    last axis stays the fastest, as far as there are such orders: what lies otherwise many kernels copy.
    """
    if contiguous_rows and (of, rank) in CONTIGUOUS_ROWS:
        return CONTIGUOUS_ROWS[of, rank]
    axes = tuple(range(rank))
    if of == "K":
        return *axes[:-2][::-1], *axes[:-3:-1]
    return axes[::-1] if of in ("Q", "dO") else axes[-1:] + axes[:-1]


def scores_axes(x: np.ndarray, layout: str) -> np.ndarray:
    """A mask or bias (..., n, m) with the axes b, h, n, m, without those that the layout lacks."""
    x = x.reshape((1,) * (4 - x.ndim) + x.shape)
    return x.squeeze(tuple(axis for axis, letter in enumerate("bh") if letter not in parts_of_layout(layout)[0]))
