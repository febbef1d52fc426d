"""Is what a layer gave right? Beside each number goes a bound on how far a correct program may have it off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.layer.layer import LayerAnswer, LayerCase, LayerSteps
from attnmath._examine.layer.pieced import right_and_measured
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.steps import Step, Steps
from attnmath._formulas.heads import Weights
from attnmath._words.arrays import T, finite, rowsum
from attnmath.rounding.bounds import softmax_off
from attnmath.rounding.formats import Model, model, ratio
from attnmath.rounding.lemmas import grown


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


class Bounded:
    """An exact array x; a correct program has it within off, entry by entry.

    Every operation rounds once more, in the format f; a product also in each of its sums.
    """

    __array_ufunc__ = None  # NumPy leaves array @ bounded to this class

    def __init__(self, x: Any, off: Any, f: Model) -> None:
        self.x, self.f = np.asarray(x, float), f
        self.off = np.broadcast_to(off, self.x.shape)

    def of(self, other: Any) -> Bounded:
        """Another number, exact unless it has a bound of its own."""
        return other if isinstance(other, Bounded) else Bounded(other, 0.0, self.f)

    def __matmul__(self, other: Any) -> Bounded:
        return _product(self, self.of(other), self.f)

    def __rmatmul__(self, other: Any) -> Bounded:
        return _product(self.of(other), self, self.f)

    def __mul__(self, other: Any) -> Bounded:
        if isinstance(other, float) and other == 1:
            return self
        a, b = self, self.of(other)
        off = abs(a.x) * b.off + a.off * abs(b.x) + a.off * b.off
        return Bounded(a.x * b.x, off, self.f).again()

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Bounded:
        b = self.of(other)
        x = self.x + b.x
        off = Bounded(finite(x), np.where(np.isinf(x), 0.0, self.off + b.off), self.f).again().off
        return Bounded(x, off, self.f)

    __radd__ = __add__

    def begun_with(self, b: Bounded, terms: int) -> Bounded:
        """A product of so many terms whose sums begin with b, and are rounded at its size."""
        return Bounded(self.x, self.off + terms * self.f.sums * abs(b.x), self.f) + b

    def __neg__(self) -> Bounded:
        return Bounded(-self.x, self.off, self.f)

    def __sub__(self, other: Any) -> Bounded:
        return self + -self.of(other)

    def __rsub__(self, other: Any) -> Bounded:
        return -self + other

    def __getitem__(self, key: Any) -> Bounded:
        return Bounded(self.x[key], self.off[key], self.f)

    def swapaxes(self, a: int, b: int) -> Bounded:
        """Two axes exchanged."""
        return Bounded(self.x.swapaxes(a, b), self.off.swapaxes(a, b), self.f)

    def reshape(self, *shape: int) -> Bounded:
        """The same numbers in another shape."""
        return Bounded(self.x.reshape(*shape), self.off.reshape(*shape), self.f)

    def beside(self, other: Bounded) -> Bounded:
        """Features side by side."""
        x, off = (np.concatenate(pair, -1) for pair in ((self.x, other.x), (self.off, other.off)))
        return Bounded(x, off, self.f)

    @property
    def mT(self) -> Bounded:
        """The matrices transposed."""
        return self.swapaxes(-1, -2)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return self.x.shape

    def sum(self, axis: int, keepdims: bool = False) -> Bounded:
        """The sum along an axis, in any order."""
        steps = (self.shape[axis] + 2) * self.f.sums
        off = grown(abs(self.x).sum(axis, keepdims=keepdims), self.off.sum(axis, keepdims=keepdims), steps)
        return Bounded(self.x.sum(axis, keepdims=keepdims), off, self.f).again()

    def __array_namespace__(self, api_version: str | None = None) -> type[BoundedFunctions]:
        """What rowsum asks for."""
        return BoundedFunctions

    def again(self) -> Bounded:
        """Rounded once more, as where a factor is stored, or scaled before a product."""
        return Bounded(self.x, grown(self.x, self.off, self.f.entries, self.f.least_entry), self.f)

    def to(self, f: Model) -> Bounded:
        """In another format from here on."""
        return self if f == self.f else Bounded(self.x, self.off, f).again()


class BoundedFunctions:
    """The functions of arrays that rowsum asks their library for."""

    sum = staticmethod(Bounded.sum)


def _product(a: Bounded, b: Bounded, f: Model) -> Bounded:
    """Each term is rounded once for every sum that it passes; the result is stored."""
    k, size = a.shape[-1] + 2, abs(b.x)
    spread_out = a.off @ (size + b.off) + abs(a.x) @ b.off
    off = grown(abs(a.x) @ size, spread_out, k * f.sums)
    off = off + k * f.least_sum * (off > 0)
    return Bounded(a.x @ b.x, off, f).again()


def softmax_bounded(A: Bounded) -> Bounded:
    """Softmax of every row."""
    _, P, P_off, _ = softmax_off(A.f, A.x, A.off)
    return Bounded(P, P_off, A.f).again()


# ---- how far a correct program may be off -------------------------------------------------------


def _exactly(letter: str) -> Step:
    def step(s: Steps) -> Bounded | None:
        x = LayerSteps.table[letter](s)
        return None if x is None else Bounded(x, 0.0, s.formats.own)

    return step


def _D_either_way(s: Steps) -> Bounded:
    """D, as the row sum of dO * O or of P * dP, whichever may be further off."""
    by_weights, by_output = rowsum(s.P_back * s.dP), rowsum(s.dO * s.O)
    return Bounded(by_weights.x, np.maximum(by_weights.off, by_output.off), by_weights.f)


class BoundedSteps(LayerSteps):
    """The same steps with numbers that say how far a correct program may have them off."""

    table: Mapping[str, Step] = {
        **LayerSteps.table,
        **{x: _exactly(x) for x in ("X", "Z", "dY", *Weights._fields)},
        "R": lambda s: 1.0,
        "QK": lambda s: s.Q.again() @ T(s.keys.again()),
        "P": lambda s: softmax_bounded(s.A.to(s.formats.softmax)).to(s.formats.own),
        "P_back": lambda s: s.P,
        "dP": lambda s: (s.dO @ T(s.values_back)).to(s.formats.softmax),
        "D": _D_either_way,
        "dA": lambda s: (s.P_back.to(s.formats.softmax) * (s.dP - s.D)).to(s.formats.own),
    }

    def __init__(self, case: LayerCase, means: Conventions, f: Formats) -> None:
        super().__init__(case, means)
        self.formats = f

    def right_and_off(self) -> tuple[LayerAnswer, LayerAnswer]:
        """The right answer, and how far a correct program may be off."""
        found: Any = self.layer_answer()
        right = LayerAnswer._make(None if x is None else x.x for x in found)
        return right, LayerAnswer._make(None if x is None else x.off for x in found)


def right_and_off(case: LayerCase, means: Conventions, dtype: str) -> tuple[LayerAnswer, LayerAnswer]:
    """The right answer, and how far a correct program may be off."""
    if means.pieces is not None:
        return right_and_measured(case, means, dtype)
    return BoundedSteps(case, means, formats(dtype, means.inside)).right_and_off()


def right_output(Y: np.ndarray, case: LayerCase, means: Conventions, dtype: str) -> bool:
    """Whether an output is right, up to its bound."""
    if means.pieces is None:
        bounded = BoundedSteps(case, means, formats(dtype, means.inside)).Y
        want, off = bounded.x, bounded.off
    else:
        want, off = (x.Y for x in right_and_off(case, means, dtype))
    return Y.shape == want.shape and ratio(Y, want, off) <= 1
