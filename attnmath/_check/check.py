"""Is a derivative right? The complex step decides; it knows no formula."""

from collections.abc import Callable
from typing import Any, Literal, overload

import numpy as np

from attnmath._check.problem import (
    FunctionAtPoint,
    each_gradient,
    each_tangent,
    is_due,
    names_of,
    off_by,
    parameters_of,
    returned_numbers,
    takes_each,
)
from attnmath._exact.outcomes import Proof
from attnmath._words.complex_step import as_vector, check_functions, without_infinities
from attnmath._words.named_tuples import on_leaves
from attnmath._words.tolerance import CONDITION, ROUNDINGS, UNIT_ROUNDOFF


@overload
def check_vjp(
    f_vjp: Callable[..., Any], f: Callable[..., Any], *x: Any, dY: Any = None, seed: int = 0,
    exact: Literal[True], **constants: Any,
) -> Proof: ...
@overload
def check_vjp(
    f_vjp: Callable[..., Any], f: Callable[..., Any], *x: Any, dY: Any = None, seed: int = 0,
    exact: Literal[False] = False, **constants: Any,
) -> None: ...
def check_vjp(
    f_vjp: Callable[..., Any],
    f: Callable[..., Any],
    *x: Any,
    dY: Any = None,
    seed: int = 0,
    exact: bool = False,
    **constants: Any,
) -> Proof | None:
    """Compare every gradient of f_vjp with the complex step of f, entry by entry.

    f(*x, **constants) -> Y, f_vjp(dY, *x, **constants) -> one gradient for each x; or
    f_vjp(*dY, *x, **constants), where f returns a tuple and f_vjp has a name for each part

    An argument is an array of float64, a number, None, which has no gradient (that of a
    number's default is not checked), or a named tuple of these, whose gradient is such
    a tuple and is compared field by field. Arguments left out keep f's defaults and are
    not checked. dY is drawn at random from the seed, or given; a tuple if f returns a
    tuple. f is run once for each entry of x. Raises AssertionError, naming the
    gradient, its error and what is allowed: a small multiple of the unit roundoff times
    the magnitude that is summed up. Raises ValueError or TypeError where f cannot be
    checked, as when it loses the imaginary part of its input (abs, np.linalg.norm, np.var).

    exact=True proves instead that the gradients are right for all numbers in arrays of
    these shapes, with -inf where x has it, and returns the Proof: see prove and
    chapters/proved.md. A dY that is given is not used then. Raises NotAlgebraic where f
    or f_vjp leaves the algebra.

    >>> import numpy as np
    >>> from attnmath import check_vjp
    >>> def square(X):
    ...     return X * X
    >>> X, dY = np.ones((2, 3)), np.ones((2, 3))
    >>> check_vjp(lambda dY, X: 2 * X * dY, square, X, dY=dY)
    >>> check_vjp(lambda dY, X: X * dY, square, X, dY=dY)
    Traceback (most recent call last):
        ...
    AssertionError: dX: the largest error is 1.0e+00 at entry (0, 0); allowed 8.5e-14

    Derived in chapters/checking.md.
    """
    check_functions("check_vjp", seed, f_vjp=f_vjp, f=f)
    if exact:
        from attnmath._check.exactly import prove_vjp  # takes longer to import than all formulas

        return prove_vjp(f_vjp, f, x, constants, seed, _vjp_in_floats)
    _vjp_in_floats(f_vjp, f, x, constants, dY, seed)
    return None


def _vjp_in_floats(
    f_vjp: Callable, f: Callable, x: tuple, constants: dict, dY: Any, seed: int, floor: float = 0.0
) -> None:
    """The same; an error of up to the floor is allowed in any case."""
    problem = FunctionAtPoint("check_vjp", f, x, constants)
    problem.check_entries()
    dY = problem.cotangent(dY, seed)
    given = dY if takes_each(f_vjp, f, x, dY) else (dY,)
    names = names_of(f_vjp, len(given))[1] if len(given) > 1 else ["dY"]
    f_vjp = on_leaves(f_vjp, *[None] * len(given), *x)
    found = problem.run("f_vjp", f_vjp, [*names, *problem.names], (*given, *problem.x))
    w, Y = problem.cotangent_vector(dY), without_infinities(as_vector(problem.Y))
    for k, (name, dx) in enumerate(each_gradient(problem, found)):
        if not is_due(name, dx, problem.names[k], problem.x[k]):
            continue
        got = returned_numbers(name, dx, np.shape(problem.x[k]), problem.names[k])
        J = problem.jacobian(k)
        problem.check_analytic(k)
        error = abs(got.ravel() - w @ J)
        level = float(abs(w) @ abs(Y)) / problem.height(k)
        allowed = max(ROUNDINGS * UNIT_ROUNDOFF * max(_most(abs(w) @ abs(J)), level), floor)
        if _most(error) > allowed:
            allowed = max(allowed, CONDITION * _most(abs(w) @ problem.wobble(k)))
        if _most(error) > allowed:
            j = int(error.argmax())
            problem.check_side(k, w, j, got.ravel()[j], (w @ J)[j])
            raise AssertionError(off_by(name, error, got.shape, allowed))


@overload
def check_jvp(
    f_jvp: Callable[..., Any], f: Callable[..., Any], *x: Any, x_dot: Any = None, seed: int = 0,
    exact: Literal[True], **constants: Any,
) -> Proof: ...
@overload
def check_jvp(
    f_jvp: Callable[..., Any], f: Callable[..., Any], *x: Any, x_dot: Any = None, seed: int = 0,
    exact: Literal[False] = False, **constants: Any,
) -> None: ...
def check_jvp(
    f_jvp: Callable[..., Any],
    f: Callable[..., Any],
    *x: Any,
    x_dot: Any = None,
    seed: int = 0,
    exact: bool = False,
    **constants: Any,
) -> Proof | None:
    """Compare f_jvp with the complex step of f, along one tangent after the other.

    f(*x, **constants) -> Y, f_jvp(*x_dot, *x, **constants) -> Y_dot

    Arguments as for check_vjp. x_dot is a tuple with a tangent for each argument, or
    drawn at random from the seed. The tangents of the other arguments are zeros
    meanwhile; at last all move together. Raises what check_vjp raises; the message
    names the tangent. exact=True proves it instead, as for check_vjp; a tangent of None
    in x_dot stays None.
    Derived in chapters/checking.md.
    """
    check_functions("check_jvp", seed, f_jvp=f_jvp, f=f)
    if exact:
        from attnmath._check.exactly import prove_jvp

        left_out = (None,) * (_number_of_tangents(f_jvp, len(x)) - len(x))
        return prove_jvp(f_jvp, f, x, x_dot, left_out, constants, seed, _jvp_in_floats)
    _jvp_in_floats(f_jvp, f, x, constants, x_dot, seed)
    return None


def _jvp_in_floats(
    f_jvp: Callable, f: Callable, x: tuple, constants: dict, x_dot: Any, seed: int, floor: float = 0.0
) -> None:
    """The same; an error of up to the floor is allowed in any case."""
    left_out = (None,) * (_number_of_tangents(f_jvp, len(x)) - len(x))
    problem = FunctionAtPoint("check_jvp", f, x, constants)
    problem.check_entries()
    dots = problem.tangents(x_dot, seed)
    tangents = [name + "_dot" for name in problem.names]
    names = [*tangents, *map(str, left_out), *problem.names]
    f_jvp = on_leaves(f_jvp, *x, *left_out, *x)
    there = [k for k, dot in enumerate(dots) if dot is not None]
    for ks in [*([k] for k in there), *([there] if len(there) > 1 else [])]:
        moving = (dot if dot is None or k in ks else 0 * dot for k, dot in enumerate(dots))
        Y_dot = problem.run("f_jvp", f_jvp, names, (*moving, *left_out, *problem.x))
        along = " along " + (tangents[ks[0]] if len(ks) == 1 else "all tangents")
        parts = each_tangent(problem, Y_dot, along)
        if len(ks) == 1:
            problem.check_analytic(ks[0])
        _compare_along(problem, {k: as_vector(dots[k]) for k in ks}, parts, floor)


def _compare_along(problem: FunctionAtPoint, moving: dict[int, np.ndarray], parts: list, floor: float) -> None:
    """Compare the parts of a tangent with the Jacobians, where arguments move by these vectors."""
    want, size = (np.sum([f(problem.jacobian(k)) @ f(v) for k, v in moving.items()], 0) for f in (np.asarray, abs))
    moves = sum(_most(abs(v)) / problem.height(k) for k, v in moving.items())
    Y = without_infinities(as_vector(problem.Y))
    for name, got, part, whole in parts:
        error = abs(got.ravel() - want[part])
        allowed = max(ROUNDINGS * UNIT_ROUNDOFF * max(_most(size[whole]), _most(abs(Y[whole])) * moves), floor)
        if _most(error) > allowed:
            wobble = [problem.wobble(k)[part] @ abs(v) for k, v in moving.items()]
            allowed = max(allowed, CONDITION * _most(np.sum(wobble, 0)))
        if _most(error) > allowed:
            raise AssertionError(off_by(name, error, got.shape, allowed))


def _most(x: np.ndarray) -> float:
    return float(x.max(initial=0.0))


def _number_of_tangents(f_jvp: Callable, count: int) -> int:
    """How many tangents f_jvp takes; those of arguments left out will be None."""
    names = [p.name for p in parameters_of(f_jvp)]
    return max(count, sum(name.endswith("_dot") for name in names))
