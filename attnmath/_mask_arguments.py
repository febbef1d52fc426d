"""What the functions of masks may be given, and one clear sentence for what they may not."""

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj

from attnmath._arguments import _dtype, _library, _sees, below_inf
from attnmath._arrays import Array, is_exact


def check_size(caller: str, name: str, size: Any, least: int = 0) -> None:
    if isinstance(size, bool) or not isinstance(size, int | np.integer):
        raise TypeError(f"{caller}: {name} is {size!r}; it needs to be a whole number")
    if size < least:
        raise ValueError(f"{caller}: {name} is {size}; it needs to be {least} or more")


def places(caller: str, n: int, m: int, align: str) -> tuple:
    """The place of each query among the keys, as a column, and the keys, as a row."""
    check_size(caller, "n", n)
    check_size(caller, "m", m)
    if not isinstance(align, str) or align not in ("lower_right", "upper_left"):
        raise ValueError(
            f"{caller}: align is {align!r}; it needs to be 'lower_right' or 'upper_left'"
        )
    first = m - n if align == "lower_right" else 0
    return np.arange(n)[:, None] + first, np.arange(m)[None, :]


def whole(caller: str, name: str, x: Any, axes: int = 0) -> Array:
    """x as an array of whole numbers with so many axes at least; lists become NumPy's."""
    try:
        x = x if is_array_api_obj(x) else np.asarray(x)
    except ValueError:  # a list of lists of several lengths
        needs = "it needs whole numbers, as many in each row"
        raise ValueError(f"{caller}: {name} is no array; {needs}") from None
    if not array_namespace(x).isdtype(x.dtype, "integral"):
        raise TypeError(
            f"{caller}: {name} has dtype {_dtype(x)}; it needs whole numbers"
        )
    if x.ndim < axes:
        raise ValueError(f"{caller}: {name} has shape (); it needs one axis at least")
    return x


def counts(caller: str, name: str, x: Any, most: int) -> Array:
    """x as an array of whole numbers from 0 to `most`."""
    check_size(caller, "m", most)
    x = whole(caller, name, x)
    outside = (x < 0) | (x > most)
    if _sees(outside, lambda outside: outside):
        raise ValueError(
            f"{caller}: {name} holds {int(x[outside][0])}; it needs numbers from 0 to"
            f" {most}, the number of keys"
        )
    return x


def allowed_and_added(caller: str, mask: Any, added: Any, like: Any) -> tuple:
    """The masks, True = may attend, and the numbers that are added to the scores."""
    masks = mask if isinstance(mask, tuple) else (mask,)
    if not masks:
        raise ValueError(f"{caller}: mask is an empty tuple; it needs one mask at least")
    for x in masks:
        _boolean(caller, x)
    if added is not None:
        _numbers(caller, "added", added)
    zero = _zero(caller, masks, added if like is None else like)
    B = zero if added is None else moved(caller, "added", added, zero)
    masks = [moved(caller, "mask", x, zero) for x in masks]
    broadcasting(caller, [*(("mask", x) for x in masks), ("added", B)])
    return masks, B


def hidden_and_added(caller: str, given: dict, heads: int | None, like: Any) -> tuple:
    """The masks, True = may not attend, and the numbers that are added to the scores."""
    if heads is not None:
        check_size(caller, "heads", heads, 1)
    given = {name: x for name, x in given.items() if x is not None}
    if not given:
        raise ValueError(f"{caller}: both masks are None; it needs one of them")
    for name, x in given.items():
        _hides_or_adds(caller, name, x)
        given[name] = _over_scores(caller, name, x, heads)
    added = [x for x in given.values() if not _is_boolean(x)]
    zero = _zero(caller, given.values(), added[0] if added and like is None else like)
    given = {name: moved(caller, name, x, zero) for name, x in given.items()}
    broadcasting(caller, given.items())
    hidden = [x for x in given.values() if _is_boolean(x)]
    return hidden, sum((x for x in given.values() if not _is_boolean(x)), start=zero)


def _boolean(caller: str, x: Any) -> None:
    if not is_array_api_obj(x):
        raise TypeError(
            f"{caller}: mask is a {type(x).__name__}; it needs to be an array of"
            " booleans, True where a query may attend"
        )
    if not _is_boolean(x):
        raise TypeError(
            f"{caller}: mask has dtype {_dtype(x)}; it needs booleans, True where a"
            " query may attend, as in mask == 1; numbers to be added come second"
        )


def _numbers(caller: str, name: str, x: Any, booleans: str = "") -> None:
    """x is an array of floating-point numbers or -inf."""
    kind = _kind(x)
    if kind:
        raise TypeError(
            f"{caller}: {name} {kind}; it needs to be an array of {booleans}"
            "floating-point numbers, which are added to the scores"
        )
    below_inf(caller, name, x)


def _kind(x: Any) -> str:
    """What x is, if not an array of floating-point numbers."""
    if not is_array_api_obj(x):
        return f"is a {type(x).__name__}"
    kinds = ("real floating", "complex floating")
    return "" if is_exact(x) or array_namespace(x).isdtype(x.dtype, kinds) else f"has dtype {_dtype(x)}"


def _hides_or_adds(caller: str, name: str, x: Any) -> None:
    if is_array_api_obj(x) and _is_boolean(x):
        return
    _numbers(caller, name, x, "booleans, True where a query may not attend, or of ")
    if _sees(x == 1, lambda ones: ones) and not _sees(x, lambda x: (x != 0) & (x != 1)):
        raise ValueError(
            f"{caller}: {name} holds only 0 and 1, which would be added to the scores; a"
            f" mask needs booleans, True where a query may not attend, as in {name} == 1"
        )


def _over_scores(caller: str, name: str, x: Array, heads: int | None) -> Array:
    """x with the axes that it needs to broadcast against (b, heads, n, m), or (n, m)."""
    if name == "key_padding_mask" and x.ndim in (1, 2):
        return x[None, :] if x.ndim == 1 else x[:, None, None, :]
    if name == "attn_mask" and x.ndim == 2:
        return x
    if name == "attn_mask" and x.ndim == 3 and heads and x.shape[0] % heads == 0:
        return x.reshape((-1, heads, *x.shape[1:]))
    needs = "(m,) or (b, m)" if name == "key_padding_mask" else "(n, m) or (b heads, n, m)"
    given = f" and heads is {heads}" if name == "attn_mask" else ""
    raise ValueError(f"{caller}: {name} has shape {tuple(x.shape)}{given}; it needs {needs}")


def _zero(caller: str, masks: Any, like: Array | None) -> Array:
    """The number 0 of the type, library and device that B gets."""
    if like is not None:
        kind = _kind(like)
        if kind:
            raise TypeError(
                f"{caller}: like {kind}; it needs to be an array of floating-point numbers"
            )
        return array_namespace(like).zeros((), dtype=like.dtype, device=device(like))
    own = [x for x in masks if not isinstance(x, np.ndarray)] or list(masks)
    return array_namespace(own[0]).zeros((), device=device(own[0]))


def moved(caller: str, name: str, x: Array, like: Array) -> Array:
    """x in the library of `like`, where NumPy's arrays move; numbers in its type."""
    xp = array_namespace(like)
    if isinstance(x, np.ndarray) and not isinstance(like, np.ndarray):
        x = xp.asarray(x.copy(), device=device(like))
    if array_namespace(x) is not xp:
        raise TypeError(
            f"{caller}: {name} is an array of {_library(x)}; it needs to be one of"
            f" {_library(like)}, as the others are"
        )
    return x if _is_boolean(x) else xp.astype(x, like.dtype)


def broadcasting(caller: str, arrays: Any) -> None:
    """The arrays broadcast; otherwise a sentence about the first that does not."""
    so_far, names = (), []
    for name, x in arrays:
        try:
            so_far = np.broadcast_shapes(so_far, tuple(x.shape))
        except ValueError:
            raise ValueError(
                f"{caller}: {name} has shape {tuple(x.shape)}; it needs one that"
                f" broadcasts against {so_far}, the shape of {' and '.join(names)}"
            ) from None
        names.append(name)


def _is_boolean(x: Array) -> bool:
    return array_namespace(x).isdtype(x.dtype, "bool")
