"""Number formats: how far a rounding goes, and what three kinds of programs round."""

import math
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import is_torch_array

from attnmath._words.arrays import Array


class Format(NamedTuple):
    """Binary digits; exponents of the least and the largest power of two."""

    digits: int
    low: int
    high: int


FORMATS = {
    "float64": Format(53, -1022, 1023),
    "float32": Format(24, -126, 127),
    "bfloat16": Format(8, -126, 127),
    "float16": Format(11, -14, 15),
}


class Model(NamedTuple):
    """Unit roundoffs of a program, float64's added, what underflow may cost, and how far exp and log err."""

    sums: float  # of products and sums inside a matrix product or a row sum
    entries: float  # of all that is done entry by entry: scale, bias, exp, P * (dP - D)
    stored: float  # of P and dA where they are factors, of O and of the gradients
    least_sum: float  # of the three kinds of roundings, in the same order
    least_entry: float
    least_stored: float
    least_weight: float  # of exp
    exp_error: float = 2.0  # in unit roundoffs of entries
    log_error: float = 2.0

    def over_keys(self, m: int) -> float:
        """The roundings of a sum over m keys in tiles of at least four, each with a factor for what was before.

        Four additions, or one and a product with a power of e: two roundings, and those of the power.
        """
        return m * max(1.0, (2 + self.exp_error) / 4)


def unit_roundoff(dtype: Any) -> float:
    """The largest relative error of one rounding to nearest, 2**-p for p binary digits.

    dtype -> u ()

    The dtype is 'float64', 'float32', 'bfloat16' or 'float16', or a dtype of a library that
    has one of these names. Raises ValueError for another.
    Derived in chapters/rounding.md.
    """
    return 2.0 ** -_format("unit_roundoff", "dtype", dtype).digits


def nearest(x: Array, dtype: Any) -> np.ndarray:
    """The numbers of a format that are nearest to x, as float64; halfway, the even one.

    x (...), dtype -> y (...)

    Rounded once, also to bfloat16, which NumPy does not have; inf where x is too large. A
    tensor of PyTorch is read as an array. Raises ValueError for another dtype, TypeError for
    complex numbers.
    Derived in chapters/rounding.md.
    """
    form = _format("nearest", "dtype", dtype)
    x = _numpy(x)
    exponent = np.maximum(np.frexp(x)[1], form.low + 1)
    y = np.ldexp(np.rint(np.ldexp(x, form.digits - exponent)), exponent - form.digits)
    top = math.ldexp(2 - 2.0 ** (1 - form.digits), form.high)
    return np.where(np.abs(y) > top, np.copysign(np.inf, x), y)


def ratio(got: Array, want: Array, bound: Array) -> float:
    """The largest error in units of its bound: up to 1, every entry lies inside.

    got (...), want (...), bound (...) -> r ()

    Equal entries have no error, infinite ones too; NaN has an infinite one, and so has what
    differs where the bound is 0. Raises ValueError unless the three shapes are equal, or if a
    bound is below 0; TypeError for complex numbers.
    Derived in chapters/rounding.md.
    """
    got, want, bound = map(_numpy, (got, want, bound))
    for name, x in (("got", got), ("bound", bound)):
        if x.shape != want.shape:
            raise ValueError(
                f"ratio: {name} has shape {x.shape}; it needs {want.shape}, the shape of want"
            )
    if np.any(bound < 0):
        raise ValueError("ratio: a bound is below 0")
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(got == want, 0.0, np.abs(got - want))
        r = np.where(error == 0, 0.0, error / bound)
    return float(np.where(np.isnan(r), np.inf, r).max(initial=0.0))


TRUNCATED = 2.5  # unit roundoffs of a term that is cut off: 2, and 2 for each four that are aligned with their sum


def model(
    function: str, dtype: Any, accumulate: Any, fused: bool,
    truncate: bool = False, exp_error: float = 2.0, log_error: float = 2.0,
) -> Model:
    """What a program rounds to dtype, and what to the format of its sums."""
    form = _format(function, "dtype", dtype)
    wide = form if accumulate is None else _format(function, "accumulate", accumulate)
    if wide.digits < form.digits:
        raise ValueError(
            f"{function}: accumulate is {_dtype_name(accumulate)}; it needs at least the digits of"
            f" dtype, {_dtype_name(dtype)}"
        )
    for name, x in (("exp_error", exp_error), ("log_error", log_error)):
        if isinstance(x, bool) or not isinstance(x, Real) or not 0 <= x < math.inf:
            raise ValueError(f"{function}: {name} is {x!r}; it needs a number of unit roundoffs from 0")
    if not isinstance(truncate, bool):
        raise ValueError(f"{function}: truncate is {truncate!r}; it needs to be True or False")
    formats = wide, wide if fused else form, form
    own = 2.0**-53  # of the float64 numbers that the bound is computed beside
    # Below its least power of two a number may become 0; float16 keeps its steps, also of exp.
    least = [2.0**-24 if f.digits == 11 else 2.0**f.low for f in formats]
    sums, entries, stored = (2.0**-f.digits + own for f in formats)
    sums *= TRUNCATED if truncate else 1
    return Model(sums, entries, stored, least[0], least[1], least[2], least[1], float(exp_error), float(log_error))


def float64(x: Array) -> Array:
    """x in float64: a tensor of PyTorch without its graph, an array of NumPy otherwise."""
    if is_torch_array(x) and x.is_complex() or not is_torch_array(x) and np.iscomplexobj(x):
        raise TypeError("numbers that are rounded are real, and these are complex")
    return x.detach().double() if is_torch_array(x) else np.asarray(x, dtype=np.float64)


def _numpy(x: Array) -> np.ndarray:
    x = float64(x)
    return x.cpu().numpy() if is_torch_array(x) else x


def _dtype_name(dtype: Any) -> str:
    return getattr(dtype, "__name__", str(dtype)).rpartition(".")[2]


def _format(function: str, name: str, dtype: Any) -> Format:
    if _dtype_name(dtype) not in FORMATS:
        raise ValueError(f"{function}: {name} is {dtype!r}; it needs to be {', '.join(FORMATS)}")
    return FORMATS[_dtype_name(dtype)]
