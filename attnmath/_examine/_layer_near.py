"""Numbers, and how far a correct program may have them off: the bound runs along with each step."""

import math
from typing import Any, NamedTuple

import numpy as np

from attnmath._arrays import finite, rowmax, rowsum, shift, visible
from attnmath._rounding_steps import grown, spread
from attnmath._roundoff import Model, model


class Formats(NamedTuple):
    """What a program rounds, and what its softmax does."""

    own: Model
    softmax: Model


def formats(dtype: str, inside: str | None = None) -> Formats:
    """A program that rounds every array to dtype; sums of the short formats are kept in float32."""

    def of(name: str) -> Model:
        wide = "float32" if name in ("bfloat16", "float16") else None
        return model("examine_layer", name, wide, False)

    return Formats(of(dtype), of(inside or dtype))


class Near:
    """An exact array x; a correct program has it within off, entry by entry.

    Every operation rounds once more, in the format f; a product also in each of its sums.
    """

    __array_ufunc__ = None  # NumPy leaves array @ near to this class

    def __init__(self, x: Any, off: Any, f: Model) -> None:
        self.x, self.f = np.asarray(x, float), f
        self.off = np.broadcast_to(off, self.x.shape)

    def __matmul__(self, other: Any) -> "Near":
        return _product(self, _near(other, self.f), self.f)

    def __rmatmul__(self, other: Any) -> "Near":
        return _product(_near(other, self.f), self, self.f)

    def __mul__(self, other: Any) -> "Near":
        if isinstance(other, float) and other == 1:
            return self
        a, b = self, _near(other, self.f)
        off = abs(a.x) * b.off + a.off * abs(b.x) + a.off * b.off
        return Near(a.x * b.x, off, self.f).again()

    __rmul__ = __mul__

    def __add__(self, other: Any) -> "Near":
        b = _near(other, self.f)
        x = self.x + b.x
        near = Near(finite(x), np.where(np.isinf(x), 0.0, self.off + b.off), self.f).again()
        return Near(x, near.off, self.f)

    __radd__ = __add__

    def __neg__(self) -> "Near":
        return Near(-self.x, self.off, self.f)

    def __sub__(self, other: Any) -> "Near":
        return self + -_near(other, self.f)

    def __rsub__(self, other: Any) -> "Near":
        return -self + other

    def __getitem__(self, key: Any) -> "Near":
        return Near(self.x[key], self.off[key], self.f)

    def swapaxes(self, a: int, b: int) -> "Near":
        """Two axes exchanged."""
        return Near(self.x.swapaxes(a, b), self.off.swapaxes(a, b), self.f)

    def reshape(self, *shape: int) -> "Near":
        """The same numbers in another shape."""
        return Near(self.x.reshape(*shape), self.off.reshape(*shape), self.f)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return self.x.shape

    def sum(self, axis: int, keepdims: bool = False) -> "Near":
        """The sum along an axis, in any order."""
        steps = (self.shape[axis] + 2) * self.f.sums
        off = grown(abs(self.x).sum(axis, keepdims=keepdims), self.off.sum(axis, keepdims=keepdims), steps)
        return Near(self.x.sum(axis, keepdims=keepdims), off, self.f).again()

    def again(self, times: int = 1) -> "Near":
        """Rounded once more, as where a factor is stored, or scaled before a product."""
        off = grown(self.x, self.off, times * self.f.entries, self.f.least_entry)
        return Near(self.x, off, self.f)

    def to(self, f: Model) -> "Near":
        """In another format from here on."""
        return self if f == self.f else Near(self.x, self.off, f).again()


def _near(x: Any, f: Model) -> Near:
    return x if isinstance(x, Near) else Near(x, 0.0, f)


def _product(a: Near, b: Near, f: Model) -> Near:
    """Each term is rounded once for every sum that it passes; the result is stored."""
    k, size = a.shape[-1] + 2, abs(b.x)
    spread_out = a.off @ (size + b.off) + abs(a.x) @ b.off
    off = grown(abs(a.x) @ size, spread_out, k * f.sums)
    off = off + k * f.least_sum * (off > 0)
    return Near(a.x @ b.x, off, f).again()


def softmax(A: Near) -> Near:
    """Softmax of every row, kept, or found again from the log-sum-exp; as in chapters/rounding.md."""
    f, x, m = A.f, A.x, A.shape[-1]
    top = rowmax(x)
    E = np.exp(shift(x, top))
    total = rowsum(E)
    total = np.where(total == 0, 1.0, total)
    L, P = finite(np.log(total)) + finite(top), E / total
    size = abs(finite(x))
    below = visible(L - finite(x), x)
    eta = f.entries * (below + 4) + f.sums * (3 * below + size + abs(L))
    eta = eta + grown(size, np.where(np.isinf(x), 0.0, A.off), 2 * f.entries)
    r = rowsum(spread(P, below, eta + ((m + 8) * f.sums + f.entries)))
    r = np.log1p(r + m * f.least_weight)
    length = abs(L) + (math.log(max(m, 1)) + 1)
    off = spread(P, below, eta + (r + 4 * f.sums * length + 2 * f.entries))
    return Near(P, visible(off + f.least_weight, x), f).again()
