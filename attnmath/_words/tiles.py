"""The vocabulary of tiles: cut arrays, go over the tiles in turn, put the parts together."""

from collections.abc import Callable, Iterable, Iterator

from attnmath._words.arrays import ALL, Array, Scalar, constant, namespace, real, rowsum, shape


def tiles(size: tuple, rows: tuple, keys: tuple, pairs: tuple) -> Iterator[tuple]:
    """For each tile its part of every array, in the order of reading: row after row.

    Of `rows` (..., n, k) the queries, of `keys` (..., m, k) the keys, of `pairs`, which
    broadcast against (..., n, m), both. The first of `rows` and of `keys` have all.
    """
    for strip in strips(size, rows, keys, pairs):
        yield from strip


def strips(size: tuple, rows: tuple, keys: tuple, pairs: tuple) -> Iterator[Iterator[tuple]]:
    """The tiles of `tiles`, those with the same queries together."""
    for I in cuts(rows[0].shape[-2], size[0]):
        own = tuple(cut(x, I, ALL) for x in rows)
        yield _strip(size[1], I, own, keys, pairs)


def _strip(size: int, I: slice, own: tuple, keys: tuple, pairs: tuple) -> Iterator[tuple]:
    for J in cuts(keys[0].shape[-2], size):
        yield *own, *(cut(x, J, ALL) for x in keys), *(cut(x, I, J) for x in pairs)


def cuts(count: int, size: int) -> list[slice]:
    """Slices of this size, the last of which may be shorter; one at least."""
    return [slice(k, min(k + size, count)) for k in range(0, max(count, 1), size)]


def cut(x: Scalar | None, I: slice, J: slice) -> Scalar | None:
    """x[..., I, J]; what is there once for all, a number or None stays whole."""
    if x is None or shape(x) == ():
        return x
    I, J = (ALL if size == 1 else s for s, size in zip((I, J), (1, 1, *shape(x))[-2:]))
    return x[J] if len(shape(x)) == 1 else x[..., I, J]


def fold(function: Callable, parts: Iterable) -> tuple:
    """The first part, joined with the second, the result with the third, and so on."""
    parts = iter(parts)
    total = next(parts)
    for part in parts:
        total = function(total, part)
    return total


def together(strips: Iterable[tuple]) -> tuple:
    """What each strip returns, (..., k), put below each other: one array for each result."""
    return tuple(joined(parts, -2) for parts in zip(*strips))


def joined(parts: tuple | list, axis: int) -> Array:
    """Parts side by side along an axis."""
    return parts[0] if len(parts) == 1 else namespace(parts[0]).concat(parts, axis=axis)


def added(parts: Iterable[tuple], size: tuple, rows: tuple, keys: tuple, pairs: tuple) -> list:
    """What each tile returns, in the order of `tiles`, put where it belongs, and added up.

    One result for each of `rows`, `keys` and `pairs`, of its shape. A part that several
    tiles have in common is the sum of what they return for it.
    """
    down, across = (len(cuts(x[0].shape[-2], s)) for x, s in zip((rows, keys), size))
    grids: list = [{} for _ in (*rows, *keys, *pairs)]
    for t, found in enumerate(parts):
        i, j = divmod(t, across)
        places = [(i, 0)] * len(rows) + [(j, 0)] * len(keys) + [place(x, i, j) for x in pairs]
        for grid, at, x in zip(grids, places, found):
            grid[at] = x if x is None or at not in grid else grid[at] + x
    return [whole(grid) for grid in grids]


def place(x: Scalar | None, i: int, j: int) -> tuple:
    """Where the part of x for a tile stands among its parts."""
    sizes = (1, 1) if x is None else (1, 1, *shape(x))[-2:]
    return tuple(0 if size == 1 else k for size, k in zip(sizes, (i, j)))


def whole(grid: dict) -> Array | None:
    """The parts, each at its place (row, column), as one array; None if they are None."""
    rows: dict = {}
    for (i, _), x in grid.items():  # which are in order
        rows.setdefault(i, []).append(x)
    if rows[0][0] is None:
        return None
    return joined([joined(row, -1) for row in rows.values()], -2)


def peak(A: Array) -> Array:
    """The largest real part in each row, as a column, a constant; -inf for an empty row."""
    x = constant(real(A))
    if x.shape[-1] == 0:
        return rowsum(x) - namespace(x).inf
    return namespace(x).max(x, axis=-1, keepdims=True)


def per_row(x: Array, N: Array) -> Array:
    """A column as a number for each row of N, also where N has more leading axes."""
    xp = namespace(N)
    return xp.squeeze(xp.broadcast_to(x, (*N.shape[:-1], 1)), axis=-1)


def larger(x: Array, y: Array) -> Array:
    """The larger of two entries."""
    return namespace(x).maximum(x, y)
