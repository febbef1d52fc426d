"""The vocabulary of a layer: tokens of a whole batch in one product, heads in turn."""

from collections.abc import Iterable, Iterator

from attnmath._arrays import (
    Array,
    Scalar,
    column,
    flat,
    namespace,
    plus,
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
    H = arrays[0].shape[-3]
    for h in range(H):
        yield tuple(
            x[..., h * x.shape[-3] // H, :, :] if has_heads(x) else x for x in arrays
        )


def gather(heads: Iterable[tuple], like: tuple) -> list:
    """What the heads return, together; what is for several heads is added up.

    Each has an axis of heads as its `like` has, of which the first has all heads.
    """
    H, totals = like[0].shape[-3], [[] for _ in like]
    for h, parts in enumerate(heads):
        for total, part, x in zip(totals, parts, like):
            if len(total) <= (h * x.shape[-3] // H if has_heads(x) else 0):
                total.append(part)
            elif part is not None:
                total[-1] = total[-1] + part
    return [
        namespace(total[0]).stack(total, axis=-3) if has_heads(x) else total[0]
        for total, x in zip(totals, like)
    ]


def has_heads(x: Scalar | None) -> bool:
    """Whether x has an axis of heads: (..., H, n, m)."""
    return x is not None and len(shape(x)) > 2


def lifted(x: Scalar) -> Scalar:
    """A number per head as one for every score: (H,) -> (H, 1, 1)."""
    return column(column(x)) if len(shape(x)) == 1 else x


def lowered(x: Array) -> Array:
    """The other way: (H, 1, 1) -> (H,)."""
    return flat(flat(x)) if x.ndim == 3 else x
