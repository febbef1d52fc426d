"""What a test calls: examine a function or a layer, and fail with the report."""

from collections.abc import Callable
from typing import Any

__all__ = ["assert_attention_gradients", "assert_layer_gradients"]


def assert_attention_gradients(
    fn: Callable[..., Any], backward: Callable[..., Any] | None = None, *, unlisted: bool = False,
    allow_not_judged: bool = False, **examine: Any,
) -> None:
    """Fail with the report, unless the attention and its gradients are right.

    fn(q, k, v) -> o, backward(do, q, k, v) -> dq, dk, dv

    Everything else is as for examine: options, reference, scale, dtype, seed, ranks, ... A hazard is no
    failure. Raises AssertionError with the report where it is wrong; where too little could be
    judged, unless allow_not_judged=True; where the scale or the order of the heads is not the usual
    one, a mask of True and False is added, or a rate of dropout changes nothing,
    and nobody stated it (scale=, conventions=, reference=); and where it is no attention of the
    list (rotation, cap, window, sink, ...), unless reference= says what it has to be: its output was
    compared with nothing. With unlisted=True such a function passes if its gradients are those of
    its own output. Warns (UserWarning) of options that fn has and that were not tried.
    Derived in chapters/examine.md.
    """
    __tracebackhide__ = True
    from attnmath._examine.examine import examine as examined

    examined(fn, backward, **examine).raise_if_wrong(unlisted=unlisted, allow_not_judged=allow_not_judged)


def assert_layer_gradients(layer: Any, **examine_layer: Any) -> None:
    """Fail with the report, unless the layer and the gradients of its weights are right.

    layer(X, Z) -> Y, or what has an adapter in attnmath.adapters

    Everything else is as for examine_layer. Raises what assert_attention_gradients raises.
    Derived in chapters/examine.md.
    """
    __tracebackhide__ = True
    from attnmath._examine.layer.examine_layer import examine_layer as examined

    examined(layer, **examine_layer).raise_if_wrong()


def __dir__() -> list[str]:
    return __all__
