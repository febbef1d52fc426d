"""The vocabulary of a layer: tokens of a whole batch in one product, heads in turn."""

import math
from collections.abc import Callable, Iterable, Iterator

from array_api_compat import device

from attnmath._words.arrays import (
    ALL,
    Array,
    Scalar,
    column,
    flat,
    is_writable,
    namespace,
    plus,
    room_like,
    row,
    shape,
    sum_to,
)

LARGE = 2**20  # scores of a head; temporary arrays of so many numbers leave every cache


def apply(X: Array, W: Array) -> Array:
    """X W in one product, whatever the batch: (..., n, d), (d, m) -> (..., n, m)."""
    return namespace(X).tensordot(X, W, axes=1)


def over_tokens(X: Array, Y: Array) -> Array:
    """X^T Y, summed over the batch: (..., n, d), (..., n, m) -> (d, m)."""
    axes = tuple(range(X.ndim - 1))
    return namespace(X).tensordot(X, Y, axes=(axes, axes))


def to_heads(X: Array, W: Array, b: Array | None = None) -> Array:
    """X W_h + 1 b_h for each head: (..., n, d), (H, d, k), (H, k) -> (..., H, n, k)."""
    xp, (H, d, k) = namespace(X), W.shape
    Y = apply(X, xp.reshape(exchanged(W), (d, H * k)))
    Y = plus(Y, None if b is None else xp.reshape(b, (H * k,)))
    return exchanged(xp.reshape(Y, (*X.shape[:-1], H, k)))


def from_heads(O: Array, W: Array) -> Array:
    """The sum of all O_h W_h: (..., H, n, k), (H, k, d) -> (..., n, d)."""
    xp, (H, k, d) = namespace(O), W.shape
    return apply(concatenation(O), xp.reshape(W, (H * k, d)))


def concatenation(O: Array) -> Array:
    """The heads side by side: (..., H, n, k) -> (..., n, H k)."""
    xp, (*batch, H, n, k) = namespace(O), O.shape
    return xp.reshape(exchanged(O), (*batch, n, H * k))


def exchanged(O: Array) -> Array:
    """(..., H, n, k) -> (..., n, H, k), and back."""
    *batch, H, n, k = range(O.ndim)
    return namespace(O).permute_dims(O, (*batch, n, H, k))


def heads_over_tokens(X: Array, O: Array) -> Array:
    """X^T O_h, summed over the batch: (..., n, d), (..., H, n, k) -> (H, d, k)."""
    xp, (H, k) = namespace(X), (O.shape[-3], O.shape[-1])
    products = over_tokens(X, concatenation(O))
    return exchanged(xp.reshape(products, (X.shape[-1], H, k)))


def heads_to_bias(O: Array, b: Array | None) -> Array | None:
    """O_h summed over batch and tokens: (..., H, n, k) -> (H, k), or None if b is."""
    return None if b is None else sum_to(exchanged(O), b)


def each_head(*arrays: Scalar) -> Iterator[tuple]:
    """For each head its part of every array (..., H, n, m), the first of which has all.

    Neighbours share where there are fewer parts than heads; all share where there is
    no axis of heads, a number, or None. If heads are large, for each entry of a batch.
    """
    entries = range(arrays[0].shape[0]) if is_large(arrays) else None
    for h in range(arrays[0].shape[-3]):
        x = of_head(h, arrays)
        if entries is None:
            yield x
        else:
            for s in entries:
                yield tuple(part[s] if axes(part) == 3 else part for part in x)


def of_head(h: int, arrays: tuple) -> tuple:
    """Head h's part of every array, the first of which has all heads."""
    H, counts = arrays[0].shape[-3], [heads_of(x) for x in arrays]
    return tuple(x[..., h * G // H, :, :] if G else x for x, G in zip(arrays, counts))


def over_heads(function: Callable, *arrays: Scalar) -> Array:
    """The sum, over the heads, of the function of their parts of every array."""
    total = function(*of_head(0, arrays))
    for h in range(1, arrays[0].shape[-3]):
        total = total + function(*of_head(h, arrays))
    return total


def is_large(arrays: tuple) -> bool:
    """Whether a head has many scores, and is a batch whose entries can take turns."""
    there = [x for x in arrays if axes(x)]
    batch, heads = arrays[0].shape[:-3], [x for x in there if heads_of(x)]
    scores = math.prod(batch) * max(x.shape[-2] for x in heads) ** 2
    return (
        isinstance(scores, int)  # and not a size that PyTorch traces
        and scores > LARGE
        and len(batch) == 1
        and all(x.shape[:-3] in ((), batch) for x in heads)
        and all(map(is_writable, there))
    )


def gather(heads: Iterable[tuple], like: tuple) -> list:
    """What the heads return, together; what is for several heads is added up.

    Each has an axis of heads as its `like` has, of which the first has all heads.
    """
    totals = [Total(x, like[0].shape[-3]) for x in like]
    for k, parts in enumerate(heads):
        own = [x.shape[0] for x, y in zip(like, parts) if axes(x) == axes(y) + 2 == 4]
        h, s = divmod(k, own[0]) if own else (k, None)  # of a batch's entry, or of all
        for total, part in zip(totals, parts):
            total.take(part, h, s)
        del parts, part  # the next head needs the room
    return [total.whole() for total in totals]


class Total:
    """One result of H heads: parts along an axis of heads as `like` has, or their sum."""

    def __init__(self, like: Scalar, H: int) -> None:
        self.like, self.G, self.H = like, heads_of(like), H
        self.parts: list = []
        self.room: Array = None

    def take(self, part: Array | None, h: int, s: int | None) -> None:
        """What the head h returns, for the batch or for its entry s."""
        turns = s is not None and axes(self.like) == 4
        first = (h * self.G % self.H if self.G else h) == 0 and (turns or not s)
        if self.G and is_writable(part):
            g = h * self.G // self.H
            self._write(part, (s, g) if turns else (..., g, ALL, ALL), first)
        else:
            self.parts.append(part if first else plus(self.parts.pop(), part))

    def _write(self, part: Array, place: tuple, first: bool) -> None:
        """Put a part at once to where it is wanted, or add it there."""
        if self.room is None:
            batch = part.shape[:-2] if place[0] is ... else self.like.shape[:1]
            self.room = room_like(part, (*batch, self.G, *part.shape[-2:]))
        self.room[place] = part if first else self.room[place] + part

    def whole(self) -> Array | None:
        """All parts together."""
        if self.room is not None:
            return self.room
        if self.G == 0:
            return self.parts[0]
        return namespace(self.parts[0]).stack(self.parts, axis=-3)


def axes(x: Scalar | None) -> int:
    """How many axes x has; none if it is a number or None."""
    return 0 if x is None else len(shape(x))


def heads_of(x: Scalar) -> int:
    """The size of the axis of heads of x: H of (..., H, n, m); 0 if it has none."""
    return x.shape[-3] if axes(x) > 2 else 0


def lifted(x: Scalar) -> Scalar:
    """A number per head as one for every score: (H,) -> (H, 1, 1)."""
    return column(column(x)) if len(shape(x)) == 1 else x


def lowered(x: Array) -> Array:
    """The other way: (H, 1, 1) -> (H,)."""
    return flat(flat(x)) if x.ndim == 3 else x


def alone(x: Array) -> Array:
    """Rows as those of a single head: (..., n, k) -> (..., 1, n, k)."""
    return namespace(x).expand_dims(x, axis=-3)


def no_head(x: Array) -> Array:
    """The other way: (..., 1, n, k) -> (..., n, k)."""
    return namespace(x).squeeze(x, axis=-3)


def for_heads(t: Array | None) -> Array | None:
    """Numbers of tokens, the same for all heads: (..., n) -> (..., 1, n); None for None."""
    return None if t is None else t[..., None, :]


def sink_rows(sigma: Scalar, A: Array, *others: Array) -> Array:
    """Sinks as rows beside those of A: with heads (H,) or (H, k) -> (H, 1, k), else (k,) -> (1, k).

    There are heads if A, or another array of the same leading axes, has axes in front. () -> (1, 1).
    """
    if shape(sigma) == ():
        return namespace(A).zeros((1, 1), dtype=A.dtype, device=device(A)) + sigma
    has_heads = any(x.ndim > 2 for x in (A, *others))
    return column(column(sigma)) if sigma.ndim == 1 and has_heads else row(sigma)


def sinks_summed(x: Array, sigma: Scalar) -> Array:
    """The other way: a gradient for each query, (..., n, k), summed to the shape of the sinks."""
    return namespace(x).reshape(sum_to(x, sink_rows(sigma, x)), shape(sigma))
