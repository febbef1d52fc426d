"""Numbers on which formulas run unchanged: with 150 digits, or with a rounding planted in every operation."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, Self

import numpy as np

from attnmath._vectors.exact import as_decimals
from attnmath.rounding.formats import Model


class Watched(np.ndarray):
    """An array that sees to its own arithmetic."""

    is_exact = True  # nothing is asked about a dtype
    noise: "Noise"

    def __array_finalize__(self, other: Any) -> None:
        self.noise = getattr(other, "noise", SILENCE)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        found = self.found(ufunc, getattr(ufunc, method), tuple(map(_bare, inputs)), options)
        if out is not None:
            out[0][...] = found
            return out[0]
        return self.like(found)

    def __array_function__(
        self, function: Callable, types: Iterable[type], inputs: Iterable, options: Mapping[str, Any]
    ) -> Any:
        if function is np.empty_like:  # which has no numbers yet
            return self.like(np.zeros(options["shape"]))
        found = super().__array_function__(function, types, inputs, options)
        return found if isinstance(found, tuple) else self.like(found)

    @abstractmethod
    def found(self, ufunc: Any, function: Callable, inputs: tuple, options: dict) -> Any:
        """What a function of NumPy gives."""

    @abstractmethod
    def like(self, x: Any) -> Any:
        """As an array of this kind; what is no number stays."""


def _bare(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, Watched) else x


# ---- 150 digits ---------------------------------------------------------------------------------


class Digits(Watched):
    """An array of Decimal."""

    def found(self, ufunc: Any, function: Callable, inputs: tuple, options: dict) -> Any:
        """With the digits of the context."""
        if ufunc in FUNCTIONS:
            return np.vectorize(FUNCTIONS[ufunc], [object])(*inputs)
        return function(*map(_in_digits, inputs), **options)

    def like(self, x: Any) -> Any:
        """Decimals, whatever they were."""
        return x if np.asarray(x).dtype == bool else in_digits(x)


def in_digits(x: Any) -> Digits:
    """Numbers as they are, in Decimal."""
    return np.asarray(_in_digits(np.asarray(_bare(x))), object).view(Digits)


def _in_digits(x: Any) -> Any:
    return as_decimals(np.asarray(x)) if np.asarray(x).dtype != bool else x


def _circle(x: Decimal, term: Decimal, k: int) -> Decimal:
    """The series of the cosine or the sine, of a small angle."""
    total = term
    while term and term.adjusted() > total.adjusted() - 200:
        term = -term * x * x / ((k + 1) * (k + 2))
        total, k = total + term, k + 2
    return total


def _tanh(x: Decimal) -> Decimal:
    e = (-2 * abs(x)).exp()
    return ((1 - e) / (1 + e)).copy_sign(x)


FUNCTIONS: dict[Any, Callable[[Decimal], Decimal]] = {
    np.cos: lambda x: _circle(x, Decimal(1), 0),
    np.sin: lambda x: _circle(x, x, 1),
    np.tanh: _tanh,
}


# ---- a rounding in every operation --------------------------------------------------------------

EXACTLY = np.negative, np.absolute, np.maximum, np.minimum, np.positive


class Noise:
    """Roundings of a format, up or down by chance."""

    def __init__(self, model: Model, seed: int = 0) -> None:
        self.model, self.rng = model, np.random.default_rng(seed)

    def __call__(self, x: np.ndarray, terms: np.ndarray | float) -> np.ndarray:
        """x with one of its own and one of the sum of the sizes of its terms; zeros stay."""
        size = self.model.entries * abs(x) + self.model.sums * terms + self.model.least_entry
        return np.where((x != 0) & np.isfinite(x), x + size * self.rng.choice([-1.0, 1.0], np.shape(x)), x)


SILENCE = Noise(Model(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))


class Shaken(Watched):
    """An array of float64, each result of which is off."""

    @classmethod
    def of(cls, noise: Noise, x: Any) -> Self:
        """These numbers, and what becomes of them."""
        y = np.array(x, float).view(cls)
        y.noise = noise
        return y

    def found(self, ufunc: Any, function: Callable, inputs: tuple, options: dict) -> Any:
        """What it gives, and a rounding."""
        with np.errstate(all="ignore"):
            x = function(*inputs, **options)
            sizes = partial(function, *map(np.abs, inputs), **options)
            terms = sizes() if ufunc is np.matmul or function == np.add.reduce else 0.0
            return x if np.asarray(x).dtype == bool or ufunc in EXACTLY else self.noise(x, terms)

    def like(self, x: Any) -> Any:
        """As numbers that are off later on."""
        return x if np.asarray(x).dtype == bool else type(self).of(self.noise, x)
