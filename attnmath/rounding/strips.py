"""What a head is cut into: some queries of some items at a time, so that memory is linear in queries and keys."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from array_api_compat import device

from attnmath._words.arrays import ALL, Array, Scalar, namespace, shape

STRIP = 2**17  # scores of a strip: they stay in the cache
FEWEST = 64  # queries of a strip, unless there are fewer: products with fewer rows are slow
At = tuple[slice, ...]  # the part of an array (..., n, m)


def leading(*arrays: Scalar | None) -> tuple[int, ...]:
    """The leading axes of what these arrays make together."""
    return np.broadcast_shapes(*(shape(x)[:-2] for x in arrays if x is not None))


def items(lead: tuple[int, ...], n: int, m: int) -> Iterator[tuple[At, list[At]]]:
    """The part of some items, with all their queries, and the strips of these; many small items are together."""
    whole = next((k for k in range(len(lead)) if math.prod(lead[k:]) * n * m <= STRIP), len(lead))
    rows = n if whole < len(lead) else max(STRIP // max(m, 1), FEWEST)
    for index in np.ndindex(*lead[:whole]):
        item = (*(slice(i, i + 1) for i in index), *[ALL] * (len(lead) - whole))
        yield (*item, ALL, ALL), [(*item, slice(i, i + rows), ALL) for i in range(0, n, max(rows, 1))]


def part(x: Any, at: At) -> Any:
    """The part of an array that broadcasts; numbers and None as they are."""
    if x is None or shape(x) == ():
        return x
    return x[tuple(ALL if size == 1 else s for size, s in zip(shape(x), at[len(at) - x.ndim:]))]


def zeros(like: Array, size: tuple[int, ...]) -> Array:
    """Zeros of this shape, in the library of another array."""
    return namespace(like).zeros(size, dtype=like.dtype, device=device(like))
