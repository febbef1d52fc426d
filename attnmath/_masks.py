"""Who may attend to whom: masks, True = may attend, and the bias B that they become."""

import math
from typing import Any, Literal

from array_api_compat import array_namespace, device

from attnmath._arrays import Array
from attnmath._mask_arguments import (
    allowed_and_added,
    broadcasting,
    check_size,
    counts,
    hidden_and_added,
    moved,
    places,
    whole,
)

Align = Literal["lower_right", "upper_left"]


def causal_mask(n: int, m: int, *, align: Align = "lower_right") -> Array:
    """Every query may attend to the keys up to its own place.

    n queries, m keys -> mask (n, m), booleans of NumPy, True = may attend

    With align="lower_right" the last query has the place of the last key; if n > m, the
    first n - m queries may attend to nothing. With "upper_left" the first query has the
    place of the first key. Raises TypeError or ValueError for a wrong size or align.
    Derived in chapters/masks.md, eq:causal_mask.
    """
    place, j = places("causal_mask", n, m, align)
    return j <= place


def window_mask(n: int, m: int, w: int, *, align: Align = "lower_right") -> Array:
    """Every query may attend to the last w keys up to its own place.

    n queries, m keys, w >= 1 -> mask (n, m), booleans of NumPy, True = may attend

    w counts the key at the query's own place. Places and errors as for causal_mask.
    Derived in chapters/masks.md, eq:window_mask.
    """
    place, j = places("window_mask", n, m, align)
    check_size("window_mask", "w", w, 1)
    return (place - w < j) & (j <= place)


def padding_mask(lengths: Any, m: int) -> Array:
    """In each sequence, every query may attend to the first keys, those that are there.

    lengths (...), whole numbers from 0 to m -> mask (..., 1, m), True = may attend

    The axis of size 1 is that of the queries. For scores with an axis of heads, give
    lengths (..., 1). Raises TypeError unless lengths are whole numbers, ValueError if
    one is out of range.
    Derived in chapters/masks.md, eq:padding_mask.
    """
    lengths = counts("padding_mask", "lengths", lengths, m)
    j = array_namespace(lengths).arange(m, device=device(lengths))
    return j < lengths[..., None, None]


def document_mask(documents: Any, documents_of_keys: Any = None) -> Array:
    """Every query may attend to the keys of its own document.

    documents (..., n), documents_of_keys (..., m), whole numbers -> mask (..., n, m),
    True = may attend

    Documents are told apart by their numbers. None: the keys are those of the queries'
    tokens. Raises TypeError unless the numbers are whole, ValueError for a wrong shape.
    Derived in chapters/masks.md, eq:document_mask.
    """
    if documents_of_keys is None:
        documents_of_keys = documents
    i = whole("document_mask", "documents", documents, 1)[..., :, None]
    j = whole("document_mask", "documents_of_keys", documents_of_keys, 1)[..., None, :]
    broadcasting("document_mask", [("documents", i), ("documents_of_keys", j)])
    return i == moved("document_mask", "documents_of_keys", j, i)


def bias(mask: Any, added: Array | None = None, *, like: Array | None = None) -> Array:
    """The bias of a mask: 0, or what is added to the score, and -inf where it forbids.

    mask (..., n, m), booleans, True = may attend; added (..., n, m) -> B (..., n, m)

    mask may be a tuple of masks, all of which must allow. The arrays broadcast. B has
    the library, device and number type of like, or else of added, or else those that
    the masks' library has for numbers; masks of NumPy move there. Raises TypeError for
    a mask that is not boolean, ValueError for a wrong shape, and for NaN or +inf.
    Derived in chapters/masks.md, eq:bias.
    """
    masks, B = allowed_and_added("bias", mask, added, like)
    for allowed in masks:
        B = array_namespace(B).where(allowed, B, -math.inf)
    return B


def bias_from_multihead(
    attn_mask: Array | None = None,
    key_padding_mask: Array | None = None,
    *,
    heads: int | None = None,
    like: Array | None = None,
) -> Array:
    """The bias of the masks of torch.nn.MultiheadAttention, where True = may not attend.

    attn_mask (n, m) or (b heads, n, m), key_padding_mask (m) or (b, m) -> B (n, m), or
    (1, m) of the second mask alone; of a batch (b, 1, 1, m), (b, 1, n, m) or (b, heads,
    n, m)

    Masks of floating-point numbers are added to the scores. B has the library, device
    and number type of like, or else of such a mask, or else those that the masks'
    library has for numbers. Raises TypeError for a mask of whole numbers, ValueError
    for a wrong shape, for NaN or +inf, and for floating-point numbers that are 0 and 1
    only, which probably were meant as booleans.
    Derived in chapters/masks.md, eq:bias_from_multihead.
    """
    given = dict(attn_mask=attn_mask, key_padding_mask=key_padding_mask)
    masks, B = hidden_and_added("bias_from_multihead", given, heads, like)
    for hidden in masks:
        B = array_namespace(B).where(hidden, -math.inf, B)
    return B
