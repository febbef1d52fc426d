"""Who may attend to whom: masks, True = may attend, and the bias B that they become."""

from typing import Annotated, Any, Literal, overload

from attnmath._given.checked import checked
from attnmath._given.letters import Kind, Size, at_least
from attnmath._given.masks import (
    Added,
    Documents,
    DocumentsOfKeys,
    Heads,
    KeysMask,
    Lengths,
    Like,
    Mask,
    Masks,
    PairsMask,
    forbidden,
    hidden_and_added,
    of_pairs,
    over_scores,
    places,
    refuse_beyond,
)
from attnmath._words.arrays import counting, forbid

Align = Literal["lower_right", "upper_left"]


@checked
def causal_mask(
    n: Size, m: Size, *, align: Align = "lower_right"
) -> Mask:
    """Every query may attend to the keys up to its own place.

    n queries, m keys -> mask (n, m), booleans of NumPy, True = may attend

    With align="lower_right" the last query has the place of the last key; if n > m, the
    first n - m queries may attend to nothing. With "upper_left" the first query has the
    place of the first key. Raises TypeError or ValueError for a wrong size or align.

    >>> from attnmath import causal_mask
    >>> causal_mask(2, 3) + 0  # two queries, three keys, which end together
    array([[1, 1, 0],
           [1, 1, 1]])

    Derived in chapters/masks.md, eq:causal_mask.
    """
    place, j = places(n, m, align)
    return j <= place


@checked
def window_mask(
    n: Size, m: Size, w: Annotated[int, at_least(1)], *, align: Align = "lower_right"
) -> Mask:
    """Every query may attend to the last w keys up to its own place.

    n queries, m keys, w >= 1 -> mask (n, m), booleans of NumPy, True = may attend

    w counts the key at the query's own place. Places and errors as for causal_mask.
    Derived in chapters/masks.md, eq:window_mask.
    """
    place, j = places(n, m, align)
    return (place - w < j) & (j <= place)


@checked
def padding_mask(lengths: Lengths, m: Size) -> Annotated[Any, "... 1 m"]:
    """In each sequence, every query may attend to the first keys, those that are there.

    lengths (...), whole numbers from 0 to m -> mask (..., 1, m), True = may attend

    The axis of size 1 is that of the queries. For scores with an axis of heads, give
    lengths (..., 1). Raises TypeError unless lengths are whole numbers, ValueError if
    one is out of range.
    Derived in chapters/masks.md, eq:padding_mask.
    """
    refuse_beyond(lengths, m)
    j = counting(m, lengths)
    return j < lengths[..., None, None]


@checked
def document_mask(
    documents: Documents, documents_of_keys: DocumentsOfKeys | None = None
) -> Annotated[Any, "... n m"]:
    """Every query may attend to the keys of its own document.

    documents (..., n), documents_of_keys (..., m), whole numbers -> mask (..., n, m),
    True = may attend

    Documents are told apart by their numbers. None: the keys are those of the queries'
    tokens. Raises TypeError unless the numbers are whole, ValueError for a wrong shape.
    Derived in chapters/masks.md, eq:document_mask.
    """
    i, j = of_pairs(documents, documents_of_keys)
    return i == j


@overload
def bias(
    mask: Masks, added: Added | None = None, *, like: Like[Kind]
) -> Annotated[Kind, "... n m"]: ...
@overload
def bias(
    mask: Masks, added: Added | None = None, *, like: None = None
) -> Annotated[Any, "... n m"]: ...
@checked
def bias(
    mask: Masks, added: Added | None = None, *, like: Like[Any] | None = None
) -> Annotated[Any, "... n m"]:
    """The bias of a mask: 0, or what is added to the score, and -inf where it forbids.

    mask (..., n, m), booleans, True = may attend; added (..., n, m), like (...)
    -> B (..., n, m)

    mask may be a tuple of masks, all of which must allow. The arrays broadcast. B has
    the library, device and number type of like, or else of added, or else those that
    the masks' library has for numbers; masks of NumPy move there. Raises TypeError for
    a mask that is not boolean, ValueError for a wrong shape, and for NaN or +inf.

    >>> import numpy as np
    >>> from attnmath import bias, causal_mask
    >>> bias(causal_mask(2, 3), like=np.ones(1))
    array([[  0.,   0., -inf],
           [  0.,   0.,   0.]])

    Derived in chapters/masks.md, eq:bias.
    """
    given = [*forbidden(mask), ("added", added)]
    hidden, B = hidden_and_added("bias", given, like)
    return forbid(B, *hidden)


@checked
def bias_from_multihead(
    attn_mask: PairsMask | None = None, key_padding_mask: KeysMask | None = None,
    *, heads: Heads | None = None, like: Like[Any] | None = None,
) -> Annotated[Any, "n m or 1 m or b 1 n m or b 1 1 m or b heads n m"]:
    """The bias of the masks of torch.nn.MultiheadAttention: True = may not attend.

    attn_mask (n, m) or (b heads, n, m), key_padding_mask (m,) or (b, m), like (...)
    -> B (n, m) or (1, m) or (b, 1, n, m) or (b, 1, 1, m) or (b, heads, n, m)

    B has one row if key_padding_mask is given alone, and the axes of a batch if a mask
    has one. Masks of floating-point numbers are added to the scores. B has the library,
    device and number type of like, or else of such a mask, or else those that the
    masks' library has for numbers. Raises TypeError for a mask of whole numbers,
    ValueError for a wrong shape, for NaN or +inf, and for floating-point numbers that
    are 0 and 1 only, which probably were meant as booleans.
    Derived in chapters/masks.md, eq:bias_from_multihead.
    """
    pairs = over_scores("attn_mask", attn_mask, heads)
    keys = over_scores("key_padding_mask", key_padding_mask, heads)
    given = [("attn_mask", pairs), ("key_padding_mask", keys)]
    hidden, B = hidden_and_added("bias_from_multihead", given, like)
    return forbid(B, *hidden)
