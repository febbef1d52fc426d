"""The complex step, and what the checks need to know about arrays and numbers.

f(x + i h x_dot) = f(x) + i h f'(x) x_dot + O(h^2): the imaginary part is the derivative
times h. Nothing is subtracted, so nothing cancels, and h may be so small that its
square is lost.
"""

from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj, is_torch_array

from attnmath._words.arrays import Array
from attnmath._words.named_tuples import each_part, flat_parts
from attnmath._words.tolerance import UNIT_ROUNDOFF

COMPLEX_STEP = 1e-30  # h: h^2 is far below one rounding; h times a usual number is no underflow


def complex_step(f: Callable[..., Any], x: Array | float, x_dot: Array | float) -> Any:
    """The derivative of f at x along x_dot, as exact as f itself.

    x (any shape), x_dot (the shape of x) -> the shape of f(x); a tuple for a tuple

    f must accept complex input and keep its imaginary part: sums, products, quotients,
    exp, log, a maximum chosen by the real part. What casts to real or takes an absolute
    value gives zeros. Raises TypeError unless x is real float64 (an array or a number),
    ValueError if x_dot has another shape.

    >>> from attnmath import complex_step
    >>> round(complex_step(lambda x: x * x * x, 2.0, 1.0), 9)  # 3 x^2
    12.0

    Derived in chapters/checking.md.
    """
    check_functions("complex_step", f=f)
    check_argument("complex_step", "x", x)
    check_argument("complex_step", "x_dot", x_dot)
    check_shape("complex_step", "x_dot", x_dot, np.shape(x), "x")
    if isinstance(x, Real):
        return each_part(derivative, f(complex(x, COMPLEX_STEP * x_dot)))
    xp = array_namespace(x)
    z, z_dot = (xp.astype(a, xp.complex128) for a in (x, COMPLEX_STEP * xp.asarray(x_dot)))
    return each_part(derivative, f(z + 1j * z_dot))


def derivative(y: Any) -> Any:
    """Im y / h; zero for what is real."""
    if not is_array_api_obj(y):
        return y.imag / COMPLEX_STEP
    xp = array_namespace(y)
    is_complex = xp.isdtype(y.dtype, "complex floating")
    return xp.imag(y) / COMPLEX_STEP if is_complex else xp.zeros_like(y)


def check_functions(caller: str, seed: Any = 0, **functions: Any) -> None:
    """A TypeError unless these can be called, and the seed is a whole number."""
    for name, f in functions.items():
        if not callable(f):
            raise TypeError(f"{caller}: {name} is a {type(f).__name__}; it needs to be a function")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"{caller}: seed is {seed!r}; it needs to be a whole number")


def check_argument(caller: str, name: str, x: Any) -> None:
    """A TypeError unless x is a real number or an array of float64."""
    if isinstance(x, bool) or not (isinstance(x, Real) or is_array_api_obj(x)):
        needs = "it needs to be an array or a real number"
        raise TypeError(f"{caller}: {name} is a {type(x).__name__}; {needs}")
    if is_array_api_obj(x) and numpy_of(x).dtype != np.float64:
        needs = "it needs float64, since the check counts roundings"
        raise TypeError(f"{caller}: {name} has dtype {numpy_of(x).dtype}; {needs}")


def check_shape(caller: str, name: str, x: Any, shape: tuple, of: str) -> None:
    """A ValueError unless x has this shape."""
    if np.shape(x) != tuple(shape):
        needs = f"it needs {tuple(shape)}, the shape of {of}"
        raise ValueError(f"{caller}: {name} has shape {tuple(np.shape(x))}; {needs}")


def is_real(y: Any) -> bool:
    """Whether y is a real number or an array of real numbers."""
    return isinstance(y, Real) or (
        is_array_api_obj(y) and numpy_of(y).dtype.kind == "f"
    )


def numpy_of(x: Any) -> np.ndarray:
    """A number or an array of any library as an array of NumPy."""
    return np.asarray(x.detach().cpu().resolve_conj() if is_torch_array(x) else x)


def as_vector(y: Any) -> np.ndarray:
    """All numbers of all parts of y, in one vector."""
    there = [
        numpy_of(part).ravel().astype(float) for part in flat_parts(y) if part is not None
    ]
    return np.concatenate([np.zeros(0), *there])


def without_infinities(x: np.ndarray) -> np.ndarray:
    """x with 0 in the place of infinities."""
    return np.where(np.isfinite(x), x, 0.0)


def in_kind_of(values: np.ndarray, x: Any) -> Any:
    """values as a number or an array, whichever x is."""
    if not is_array_api_obj(x):
        return float(values)
    return array_namespace(x).asarray(values, device=device(x))


def own_numbers(x: Any) -> Any:
    """A copy of x."""
    return in_kind_of(numpy_of(x).copy(), x)


def random_like(x: Any, rng: "np.random.Generator") -> Any:
    """Normally distributed numbers in the shape of x."""
    return in_kind_of(rng.standard_normal(np.shape(x)), x)


def off_by_a_rounding(x: Any, rng: "np.random.Generator") -> Any:
    """x with every entry off by about one rounding."""
    signs = rng.choice([-2.0, 2.0], size=np.shape(x))
    return in_kind_of(numpy_of(x) * (1 + UNIT_ROUNDOFF * signs), x)


def units(x: Any) -> Iterator[Any]:
    """For each entry of x what is 1 there and 0 elsewhere, in the shape of x."""
    for e in np.eye(numpy_of(x).size):
        yield in_kind_of(e.reshape(np.shape(x)), x)


def complex_if_torch(x: Any) -> Any:
    """x; complex if of torch, which multiplies no real matrix by a complex one."""
    return x + 0j if is_torch_array(x) else x
