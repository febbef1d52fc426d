"""How far a correct attention may be off, entry by entry, because its numbers are rounded."""

from numbers import Integral
from typing import Any, NamedTuple

from attnmath._arrays import Array, Scalar, T, flat, shape
from attnmath._rounding_steps import (
    factor,
    gathered,
    inputs,
    output,
    product,
    scores_vjp,
    weights,
)
from attnmath._roundoff import model, nearest, ratio, unit_roundoff

__all__ = ["attention", "attention_vjp", "nearest", "ratio", "unit_roundoff"]


class Bounds(NamedTuple):
    """How far the output of a head and its log-sum-exp may be off."""

    O: Array
    L: Array


class GradientBounds(NamedTuple):
    """How far the gradients may be off, each of its argument's shape; None for B = None."""

    dQ: Array
    dK: Array
    dV: Array
    dB: Array | None
    dgamma: Array


def attention(
    Q: Array, K: Array, V: Array, B: Array | None = None, gamma: Scalar | None = None,
    *, dtype: Any, accumulate: Any = None, fused: bool = True, R: Array | None = None,
) -> Bounds:  # fmt: skip
    """How far a correct head computed in dtype may be from its exact output.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma (),
    R (..., n, m) -> O (..., n, d_v), L (..., n)

    The inputs are the numbers that the implementation was given, so already rounded; they
    are taken into float64, where attention_map gives the answer to compare with.
    With accumulate=None everything is rounded to dtype, sums too. With a wider format for
    accumulate, sums are kept in that; fused=True then rounds to dtype only P and dA, as
    factors of a product, and what is returned, but for L; fused=False rounds every array.
    Sums may be taken in any order, and in tiles of four keys or more. exp and log need to
    be right to 2 unit roundoffs, and nothing may overflow. Where the bound is 0, only the
    exact number is right: rows of B that are -inf everywhere have O = 0 and L = -inf.
    PyTorch's tensors give tensors, all other arrays NumPy's. Raises ValueError for a format
    that is not float64, float32, bfloat16 or float16, otherwise as attention_map.
    Derived in chapters/rounding.md.
    """
    f = model("rounding.attention", dtype, accumulate, fused)
    x = inputs("rounding.attention", Q=Q, K=K, V=V, B=B, gamma=gamma, R=R)
    w = weights(f, x)
    return Bounds(output(f, x, *factor(f, x, w))[1], flat(w.L_off))


def attention_vjp(
    dO: Array, Q: Array, K: Array, V: Array,
    B: Array | None = None, gamma: Scalar | None = None,
    *, dtype: Any, accumulate: Any = None, fused: bool = True, stores: int = 1,
    R: Array | None = None,
) -> GradientBounds:  # fmt: skip
    """How far correct gradients computed in dtype may be from the exact ones.

    dO (..., n, d_v), Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m),
    gamma (), R (..., n, m) -> dQ, dK, dV, dB, dgamma, each of the shape of its argument

    Compare with attention_vjp in float64. The weights may be kept, or found again from L;
    D may be the row sum of dO times the O that was returned, or of P times dP; what is
    shared by broadcasting may be rounded before it is summed, or only after. stores is how
    often the growing sum of a gradient is stored in dtype: once, or once per tile where
    tile after tile is added to the result itself. Raises ValueError for stores that is no
    whole number from 1. Everything else as for attention.
    Derived in chapters/rounding.md.
    """
    f = model("rounding.attention_vjp", dtype, accumulate, fused)
    if not isinstance(stores, Integral) or isinstance(stores, bool) or stores < 1:
        raise ValueError(
            f"rounding.attention_vjp: stores is {stores!r}; it needs to be a whole number from 1"
        )
    x = inputs("rounding.attention_vjp", Q=Q, K=K, V=V, B=B, gamma=gamma, R=R, dO=dO)
    w = weights(f, x)
    n, m = shape(w.P)[-2:]
    P, P_off = factor(f, x, w)
    dA, dA_off = scores_vjp(f, x, w, *output(f, x, P, P_off))
    S, S_off = x.gamma * dA, abs(x.gamma) * dA_off
    off = {
        "Q": (S @ x.K, product(f, S, S_off, x.K, m + 10, stores)),
        "K": (T(S) @ x.Q, product(f, T(S), T(S_off), x.Q, n + 10, stores)),
        "V": (T(P) @ x.dO, product(f, T(P), T(P_off), x.dO, n + 10, stores)),
        "B": (dA, dA_off),
        "gamma": (dA * w.QK, dA_off * abs(w.QK) + (abs(dA) + dA_off) * w.QK_off),
    }
    return GradientBounds(*(gathered(f, *off[k], getattr(x, k)) for k in off))
