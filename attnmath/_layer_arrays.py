"""The vocabulary of a layer: tokens of a whole batch in one product, heads in turn."""

from collections.abc import Iterable, Iterator

from attnmath._arrays import (
    Array,
    Scalar,
    column,
    flat,
    is_writable,
    namespace,
    plus,
    room_like,
    shape,
    sum_to,
)


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


def summed(x: Array, like: Scalar | None) -> Array | None:
    """sum_to, but x itself where nothing is to be summed."""
    return x if like is not None and x.shape == shape(like) else sum_to(x, like)


def each_head(*arrays: Scalar | None) -> Iterator[tuple]:
    """For each head its part of every array (..., H, n, m), the first of which has all.

    Neighbours share where there are fewer parts than heads; all share where there is
    no axis of heads, a number, or None.
    """
    H, counts = arrays[0].shape[-3], [heads_of(x) for x in arrays]
    for h in range(H):
        yield tuple(x[..., h * G // H, :, :] if G else x for x, G in zip(arrays, counts))


def gather(heads: Iterable[tuple], like: tuple) -> list:
    """What the heads return, together; what is for several heads is added up.

    Each has an axis of heads as its `like` has, of which the first has all heads.
    """
    H, totals = like[0].shape[-3], [Total(heads_of(x)) for x in like]
    for h, parts in enumerate(heads):
        for total, part in zip(totals, parts):
            total.take(part, h, H)
        del parts, part  # the next head needs the room
    return [total.whole() for total in totals]


class Total:
    """One result of all heads: G parts along an axis of heads, or a sum if G is 0."""

    def __init__(self, G: int) -> None:
        self.G, self.parts, self.room = G, [], None

    def take(self, part: Array | None, h: int, H: int) -> None:
        """What the head h of H returns: a new part, or more of the last one."""
        if h * self.G % H if self.G else h:
            part = plus(self.parts.pop(), part)
        self.parts.append(part)
        if self.G and (h + 1) * self.G % H == 0 and is_writable(part):
            self._write(h * self.G // H)

    def _write(self, g: int) -> None:
        """Put the part g, which is complete, to where it is wanted, and forget it."""
        if self.room is None:
            *batch, n, k = self.parts[g].shape
            self.room = room_like(self.parts[g], (*batch, self.G, n, k))
        self.room[..., g, :, :] = self.parts[g]
        self.parts[g] = None

    def whole(self) -> Array | None:
        """All parts together."""
        if self.G == 0:
            return self.parts[0]
        if self.room is not None:
            return self.room
        return namespace(self.parts[0]).stack(self.parts, axis=-3)


def heads_of(x: Scalar | None) -> int:
    """The size of the axis of heads of x: H of (..., H, n, m); 0 if it has none."""
    return x.shape[-3] if x is not None and len(shape(x)) > 2 else 0


def lifted(x: Scalar) -> Scalar:
    """A number per head as one for every score: (H,) -> (H, 1, 1)."""
    return column(column(x)) if len(shape(x)) == 1 else x


def lowered(x: Array) -> Array:
    """The other way: (H, 1, 1) -> (H,)."""
    return flat(flat(x)) if x.ndim == 3 else x
