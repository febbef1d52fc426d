"""Is what a layer gave right? Beside each number goes a bound on how far a correct program may have it off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.layer.layer import LayerAnswer, LayerCase, LayerSteps
from attnmath._examine.problems.bounds import softmax_off, where_in_words
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.steps import Step, StepChanges, Steps
from attnmath._formulas.heads import Weights
from attnmath._words.arrays import T, finite, rowsum
from attnmath._words.tolerance import CONSTANT, SHARE
from attnmath.rounding.bounds import grown
from attnmath.rounding.formats import Model, model, ratio

MANY = 16  # numbers of an array whose errors are judged together
FEW_ROUNDINGS = 2.0**-5  # of an array's size in bfloat16: a bound that is reached


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


def right_output(Y: np.ndarray, case: LayerCase, means: Conventions, dtype: str) -> bool:
    """Whether an output is right, up to its bound."""
    want = BoundedSteps(case, means, formats(dtype, means.inside)).Y
    return Y.shape == want.shape and ratio(Y, want.x, want.off) <= 1


# ---- and whether what came is within it ---------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tried:
    """A problem that a layer was given: what came, what is right, how far off it may be."""

    case: LayerCase
    got: LayerAnswer
    want: LayerAnswer
    off: LayerAnswer
    means: Conventions
    short: bool = False  # bfloat16 or float16: judged as a whole too

    @classmethod
    def of(cls, case: LayerCase, got: LayerAnswer, means: Conventions, dtype: str) -> Tried:
        """What came, beside what is right."""
        want, off = BoundedSteps(case, means, formats(dtype, means.inside)).right_and_off()
        return cls(case, got, want, off, means, dtype in ("bfloat16", "float16"))

    @cached_property
    def single(self) -> dict[str, float]:
        """By how much of its bound an entry of each output is off, at most."""
        there = [name for name, x in self.got._asdict().items() if x is not None]
        return {name: ratio(*(getattr(x, name) for x in (self.got, self.want, self.off))) for name in there}

    @cached_property
    def ratios(self) -> dict[str, float]:
        """The same; in a short format also as a whole, by how much of what that may be."""
        return {name: max(r, self.whole(name)) for name, r in self.single.items()}

    def whole(self, name: str) -> float:
        """The root of the sum of the squared errors, in units of what it may be in a short format."""
        error, off = getattr(self.got, name) - getattr(self.want, name), getattr(self.off, name)
        few = error.size < MANY or name == "db_O" or (  # one sum alone, whose bound is reached
            np.linalg.norm(off) < FEW_ROUNDINGS * np.linalg.norm(getattr(self.want, name)))
        if not self.short or few or not np.isfinite(error).all() or not off.any():
            return 0.0
        return float(np.linalg.norm(error) / np.linalg.norm(off) / SHARE)

    @cached_property
    def wrong(self) -> dict[str, np.ndarray]:
        """For each output that is wrong, which entries."""
        bad = {name: self.single[name] > CONSTANT for name, r in self.ratios.items() if r > CONSTANT}
        return {name: ~self.inside(name, getattr(self.want, name), 1.0 if x else SHARE) for name, x in bad.items()}

    def inside(self, name: str, want: np.ndarray, times: float = 1.0, more: float = 0.0) -> np.ndarray:
        """Which entries are as wanted, up to some times the bound and a little more."""
        got, off = getattr(self.got, name), getattr(self.off, name)
        with np.errstate(invalid="ignore"):
            return (got == want) | (abs(got - want) <= times * CONSTANT * off + more)

    def steps(self, changes: Iterable[StepChanges] = ()) -> LayerSteps:
        """The problem solved with these changes."""
        return LayerSteps(self.case, self.means, changes)

    def gives(self, changes: Iterable[StepChanges]) -> bool:
        """Whether wrong steps give what came, in all outputs."""
        s = self.steps(changes)
        return all(self.gives_output(name, s) for name in self.names)

    def gives_output(self, name: str, s: LayerSteps) -> bool:
        """Whether wrong steps give an output as it came, up to roundings.

        A wrong number may be larger than the right one, and so may its roundings.
        """
        try:
            form = getattr(s, name)
        except (ValueError, TypeError, IndexError, AttributeError):  # no such form for these shapes
            return False
        if form is None or form.shape != getattr(self.got, name).shape or not np.isfinite(form).all():
            return False
        return bool(self.inside(name, form, 4.0, self.slack[name] * np.abs(form).max(initial=0.0)).all())

    @cached_property
    def names(self) -> list[str]:
        """The outputs that there are, the wrong ones first."""
        return sorted(self.ratios, key=lambda name: name not in self.wrong)

    @cached_property
    def slack(self) -> dict[str, float]:
        """How far each output may be off, in units of its own size; what is zero takes what others have."""
        most = {x: [np.abs(getattr(part, x)).max() for part in (self.off, self.want)] for x in self.names}
        own = {x: 4 * off / size for x, (off, size) in most.items() if size and x != "db_K"}
        return {x: own.get(x, max(own.values(), default=0.0)) for x in self.names}

    @property
    def size(self) -> int:
        """How much there is to compute."""
        return self.case.X.size * self.case.lengths[2]

    def where(self) -> str:
        """The places of all wrong entries."""
        found = ((name, _four(name, x), _four(name, getattr(self.got, name))) for name, x in self.wrong.items())
        return "; ".join(where_in_words(*x) for x in found)


def _four(name: str, x: np.ndarray) -> np.ndarray:
    """With axes for batch, head, row and column."""
    if name.startswith("db"):
        return x.reshape(1, -1, 1, x.shape[-1])
    return x[None] if name.startswith("dW") else x[:, None]
