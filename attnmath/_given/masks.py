"""What the functions of masks are given: whole numbers, booleans, and numbers to be added."""

from typing import Annotated, Any

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj

from attnmath._given.arguments import broadcast
from attnmath._given.kinds import dtype, is_boolean, library, what
from attnmath._given.letters import AnyArray, Kind, Option, at_least, below_inf, fails, seen
from attnmath._words.arrays import number_type


def whole_numbers(function: str, name: str, x: Any) -> Any:
    """An array of whole numbers; lists become NumPy's."""
    try:
        x = x if is_array_api_obj(x) else np.asarray(x)
    except ValueError:  # a list of lists of several lengths
        needs = "it needs whole numbers, as many in each row"
        raise ValueError(f"{function}: {name} is no array; {needs}") from None
    if not array_namespace(x).isdtype(x.dtype, "integral"):
        raise TypeError(f"{function}: {name} has dtype {dtype(x)}; it needs whole numbers")
    return x


def boolean_masks(function: str, name: str, x: Any) -> tuple:
    """One array of booleans or several, True = may attend."""
    several = x if isinstance(x, tuple) else (x,)
    if not several:
        raise ValueError(f"{function}: {name} is an empty tuple; it needs one mask at least")
    for mask in several:
        if not is_array_api_obj(mask) or not is_boolean(mask):
            needs = "booleans, True where a query may attend, as in mask == 1; numbers to be added come second"
            raise TypeError(f"{function}: {name} {what(mask)}; it needs to be an array of {needs}")
    return several


def to_add(function: str, name: str, x: Any, booleans: str = "") -> Any:
    """An array of floating-point numbers or -inf."""
    _floating(function, name, x, f"{booleans}floating-point numbers, which are added to the scores")
    if fails(x, below_inf):
        raise ValueError(f"{function}: {below_inf.refusal(name, x)}")
    return x


def to_hide_or_add(function: str, name: str, x: Any) -> Any:
    """An array of booleans, True = may not attend, or of numbers to be added."""
    if is_array_api_obj(x) and is_boolean(x):
        return x
    to_add(function, name, x, "booleans, True where a query may not attend, or of ")
    if seen(x, lambda x: x == 1) and not seen(x, lambda x: (x != 0) & (x != 1)):
        raise ValueError(
            f"{function}: {name} holds only 0 and 1, which would be added to the scores; a mask needs"
            f" booleans, True where a query may not attend, as in {name} == 1"
        )
    return x


def like_array(function: str, name: str, x: Any) -> Any:
    """An array of floating-point numbers."""
    _floating(function, name, x, "floating-point numbers")
    return x


def _floating(function: str, name: str, x: Any, needs: str) -> None:
    if not is_array_api_obj(x) or not number_type(x).is_floating:
        raise TypeError(f"{function}: {name} {what(x)}; it needs to be an array of {needs}")


Mask = Annotated[np.ndarray, "n m"]
Lengths = Annotated[Any, "...", Option(whole_numbers, shaped=True)]
Documents = Annotated[Any, "... n", Option(whole_numbers, shaped=True)]
DocumentsOfKeys = Annotated[Any, "... m", Option(whole_numbers, shaped=True)]
Masks = Annotated[AnyArray | tuple[AnyArray, ...], "to ... n m", Option(boolean_masks)]
Added = Annotated[AnyArray, "to ... n m", Option(to_add)]
Like = Annotated[Kind, "...", Option(like_array)]
PairsMask = Annotated[AnyArray, "n m or b*heads n m", Option(to_hide_or_add)]
KeysMask = Annotated[AnyArray, "m or b m", Option(to_hide_or_add)]
Heads = Annotated[int, at_least(1)]


def refuse_beyond(lengths: Any, m: int) -> None:
    """A ValueError for the first number of keys that is negative, or larger than m."""
    outside = (lengths < 0) | (lengths > m)
    if seen(outside, lambda outside: outside):
        raise ValueError(
            f"padding_mask: lengths holds {int(lengths[outside][0])}; it needs numbers from 0 to {m}, the"
            " number of keys"
        )


def places(n: int, m: int, align: str) -> tuple:
    """The place of each query among the keys, as a column, and the keys, as a row."""
    first = m - n if align == "lower_right" else 0
    return np.arange(n)[:, None] + first, np.arange(m)[None, :]


def of_pairs(documents: Any, documents_of_keys: Any) -> tuple:
    """The documents of the queries as columns, and of the keys as rows: None says the same."""
    keys = documents if documents_of_keys is None else documents_of_keys
    keys = moved("document_mask", "documents_of_keys", keys, documents)
    return documents[..., :, None], keys[..., None, :]


def forbidden(masks: tuple) -> list[tuple[str, Any]]:
    """Where each mask forbids, with the name of the mask."""
    return [(f"mask[{k}]" if len(masks) > 1 else "mask", ~mask) for k, mask in enumerate(masks)]


def hidden_and_added(function: str, given: list[tuple[str, Any]], like: Any) -> tuple[list, Any]:
    """What is hidden, and the sum of what is added to the scores: the numbers among what is there."""
    given = [(name, x) for name, x in given if x is not None]
    if not given:
        raise ValueError(f"{function}: both masks are None; it needs one of them")
    added = [x for _, x in given if not is_boolean(x)]
    like = added[0] if added and like is None else like
    own = [x for _, x in given if not isinstance(x, np.ndarray)] or [given[0][1]]
    of, kind = (own[0], {}) if like is None else (like, {"dtype": like.dtype})
    zero = array_namespace(of).zeros((), device=device(of), **kind)
    given = [(name, moved(function, name, x, zero)) for name, x in given]
    refuse_apart(function, given)
    arrays = [x for _, x in given]
    return [x for x in arrays if is_boolean(x)], sum((x for x in arrays if not is_boolean(x)), start=zero)


def over_scores(name: str, x: Any, heads: int | None) -> Any:
    """x with the axes that it needs to broadcast against (b, heads, n, m), or (n, m)."""
    if x is None:
        return None
    if name == "key_padding_mask" and x.ndim in (1, 2):
        return x[None, :] if x.ndim == 1 else x[:, None, None, :]
    if name == "attn_mask" and x.ndim == 2:
        return x
    if name == "attn_mask" and x.ndim == 3 and heads and x.shape[0] % heads == 0:
        return x.reshape((-1, heads, *x.shape[1:]))
    needs = "(m,) or (b, m)" if name == "key_padding_mask" else "(n, m) or (b heads, n, m)"
    given = f" and heads is {heads}" if name == "attn_mask" else ""
    raise ValueError(f"bias_from_multihead: {name} has shape {tuple(x.shape)}{given}; it needs {needs}")


def moved(function: str, name: str, x: Any, like: Any) -> Any:
    """x in the library of `like`, where NumPy's arrays move; numbers in its type."""
    xp = array_namespace(like)
    if isinstance(x, np.ndarray) and not isinstance(like, np.ndarray):
        x = xp.asarray(x.copy(), device=device(like))
    if array_namespace(x) is not xp:
        raise TypeError(
            f"{function}: {name} is an array of {library(x)}; it needs to be one of {library(like)}, as"
            " the others are"
        )
    return x if is_boolean(x) else xp.astype(x, like.dtype)


def refuse_apart(function: str, arrays: list[tuple[str, Any]]) -> None:
    """A ValueError about the first array that does not broadcast against those before it."""
    so_far: tuple = ()
    for k, (name, x) in enumerate(arrays):
        joined = broadcast(tuple(x.shape), so_far)
        if joined is None:
            before = " and ".join(name for name, _ in arrays[:k])
            needs = f"it needs one that broadcasts against {so_far}, the shape of {before}"
            raise ValueError(f"{function}: {name} has shape {tuple(x.shape)}; {needs}")
        so_far = joined
