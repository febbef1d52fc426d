"""How a layer of one's own wants its tokens and its mask."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MASKS = [(kind, axes) for axes in ("b 1 n m", "b n m", "b m", "n m") for kind in ("keep", "drop", "add")]
LAYOUTS = "bnd", "nbd", "nd"


def arity(fn: Callable, functional: bool) -> int:
    """How many arrays of tokens a layer takes: 1 self-attention, 2 X and Z, 3 queries, keys, values."""
    try:
        parameters = inspect.signature(getattr(fn, "forward", fn)).parameters.values()
    except (TypeError, ValueError):
        return 2
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    needed = [p for p in parameters if p.kind in kinds and p.default is p.empty]
    return len(needed) - functional


def wrapped(
    fn: Callable, count: int, layout: str, keyword: str | None = None, mask: tuple[str, str] = ("keep", "b 1 n m")
) -> Callable[..., Any]:
    """call(X, Z, keep, *parameters) for a layer that takes other things."""
    def call(X: Any, Z: Any, keep: Any, *parameters: Any) -> Any:
        tokens = [X, Z, Z][:count]
        options = {keyword: made(keep, mask, X)} if keep is not None else {}
        return _out(fn(*(_in(x, layout) for x in tokens), *parameters, **options), layout)

    return call


def wrapped_back(
    backward: Callable, count: int, layout: str, keyword: str | None = None,
    mask: tuple[str, str] = ("keep", "b 1 n m"),
) -> Callable[..., Any]:  # fmt: skip
    """The same for a way back: backward(dY, X, Z, keep, *parameters) by name."""
    def call(dY: Any, X: Any, Z: Any, keep: Any, *parameters: Any) -> Any:
        tokens = [dY, *[X, Z, Z][:count]]
        options = {keyword: made(keep, mask, X)} if keep is not None else {}
        back = backward(*(_in(x, layout) for x in tokens), *parameters, **options)
        if not isinstance(back, Mapping):
            return back
        return {k: _out(x, layout) if k in ("X", "Z", "dX", "dZ") else x for k, x in back.items()}

    return call


def made(keep: Any, mask: tuple[str, str], like: Any) -> Any:
    """A mask as a layer wants it; raises ValueError where there is no such."""
    kind, axes = mask
    if axes == "b m" and keep.shape[2] != 1 or axes == "n m" and keep.shape[0] != 1:
        raise ValueError(f"a mask of the axes {axes} cannot say this")
    keep = {"b 1 n m": lambda: keep, "b n m": lambda: keep[:, 0], "b m": lambda: keep[:, 0, 0],
            "n m": lambda: keep[0, 0]}[axes]()  # fmt: skip
    if kind != "add":
        return keep if kind == "keep" else ~keep
    if hasattr(keep, "masked_fill"):
        return like.new_zeros(keep.shape).masked_fill(~keep, float("-inf"))
    return (like.ravel()[0] * 0) + keep.__array_namespace__().where(keep, 0.0, -float("inf")).astype(like.dtype)


def _in(x: Any, layout: str) -> Any:
    if layout == "bnd":
        return x
    return x.swapaxes(0, 1) if layout == "nbd" else x[0]


def _out(x: Any, layout: str) -> Any:
    if layout == "bnd" or not hasattr(x, "shape"):
        return x
    return x.swapaxes(0, 1) if layout == "nbd" else x[None]


def layouts(told: str | None) -> Iterator[str]:
    """Those that may be."""
    yield from LAYOUTS if told is None else (told,)
