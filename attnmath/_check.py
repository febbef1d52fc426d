"""Is a derivative right? The complex step decides; it knows no formula."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnmath._leaves import on_leaves
from attnmath._problem import Problem, names_of, parameters_of, takes_each
from attnmath._proof import Proof
from attnmath._returned import each_tangent, gradients, is_due, sentence, values
from attnmath._step import finite, flat
from attnmath._tolerance import CONDITION, ROUNDINGS, UNIT_ROUNDOFF


def check_vjp(
    f_vjp: Callable,
    f: Callable,
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
    Derived in chapters/checking.md.
    """
    if exact:
        from attnmath._exact_check import prove_vjp  # takes longer to import than all formulas

        return prove_vjp(f_vjp, f, x, constants, seed, _vjp_in_floats)
    _vjp_in_floats(f_vjp, f, x, constants, dY, seed)
    return None


def _vjp_in_floats(
    f_vjp: Callable, f: Callable, x: tuple, constants: dict, dY: Any, seed: int, floor: float = 0.0
) -> None:
    """The same; an error of up to the floor is allowed in any case."""
    problem = Problem("check_vjp", f, x, constants)
    dY = problem.cotangent(dY, seed)
    given = dY if takes_each(f_vjp, f, x, dY) else (dY,)
    names = names_of(f_vjp, len(given))[1] if len(given) > 1 else ["dY"]
    f_vjp = on_leaves(f_vjp, *[None] * len(given), *x)
    found = problem.run("f_vjp", f_vjp, [*names, *problem.names], (*given, *problem.x))
    w, Y = problem.weights(dY), finite(flat(problem.Y))
    for k, (name, dx) in enumerate(gradients(problem, found)):
        if not is_due(name, dx, problem.names[k], problem.x[k]):
            continue
        got = values(name, dx, np.shape(problem.x[k]), problem.names[k])
        J = problem.jacobian(k)
        problem.check_analytic(k)
        error = abs(got.ravel() - w @ J)
        level = abs(w) @ abs(Y) / problem.height(k)
        magnitude = max(_largest(abs(w) @ abs(J)), level)
        allowed = max(ROUNDINGS * UNIT_ROUNDOFF * magnitude, floor)
        if _largest(error) > allowed:
            allowed = max(allowed, CONDITION * _largest(abs(w) @ problem.wobble(k)))
        if _largest(error) > allowed:
            j = int(error.argmax())
            problem.check_side(k, w, j, got.ravel()[j], (w @ J)[j])
            raise AssertionError(sentence(name, error, got.shape, allowed))


def check_jvp(
    f_jvp: Callable,
    f: Callable,
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
    if exact:
        from attnmath._exact_check import prove_jvp

        left_out = (None,) * (_number_of_tangents(f_jvp, len(x)) - len(x))
        return prove_jvp(f_jvp, f, x, x_dot, left_out, constants, seed, _jvp_in_floats)
    _jvp_in_floats(f_jvp, f, x, constants, x_dot, seed)
    return None


def _jvp_in_floats(
    f_jvp: Callable, f: Callable, x: tuple, constants: dict, x_dot: Any, seed: int, floor: float = 0.0
) -> None:
    """The same; an error of up to the floor is allowed in any case."""
    left_out = (None,) * (_number_of_tangents(f_jvp, len(x)) - len(x))
    problem = Problem("check_jvp", f, x, constants)
    dots = problem.tangents(x_dot, seed)
    names = [name + "_dot" for name in problem.names]
    f_jvp = on_leaves(f_jvp, *x, *left_out, *x)
    there = [k for k, dot in enumerate(dots) if dot is not None]
    for k in there:
        moving = (d if i == k or d is None else 0 * d for i, d in enumerate(dots))
        _check_along(f_jvp, problem, [k], (*moving, *left_out, *problem.x), dots, names, floor)
    if len(there) > 1:
        _check_along(f_jvp, problem, there, (*dots, *left_out, *problem.x), dots, names, floor)


def _check_along(
    f_jvp: Callable, problem: Problem, ks: list, taken: tuple, dots: list, names: list, floor: float
) -> None:
    """Compare f_jvp where the arguments ks move."""
    given = [*names, *["None"] * (len(taken) - 2 * len(names)), *problem.names]
    Y_dot = problem.run("f_jvp", f_jvp, given, taken)
    along = " along " + (names[ks[0]] if len(ks) == 1 else "all tangents")
    terms = [(problem.jacobian(k), flat(dots[k])) for k in ks]
    want = sum(J @ v for J, v in terms)
    size = sum(abs(J) @ abs(v) for J, v in terms)
    moves = sum(_largest(abs(flat(dots[k]))) / problem.height(k) for k in ks)
    Y = finite(flat(problem.Y))
    for name, got, part, whole in each_tangent(problem, Y_dot, along):
        if len(ks) == 1:
            problem.check_analytic(ks[0])
        error = abs(got.ravel() - want[part])
        level = _largest(abs(Y[whole])) * moves
        allowed = max(ROUNDINGS * UNIT_ROUNDOFF * max(_largest(size[whole]), level), floor)
        if _largest(error) > allowed:
            wobble = sum(problem.wobble(k)[part] @ abs(flat(dots[k])) for k in ks)
            allowed = max(allowed, CONDITION * _largest(wobble))
        if _largest(error) > allowed:
            raise AssertionError(sentence(name, error, got.shape, allowed))


def _largest(x: np.ndarray) -> float:
    return float(x.max(initial=0.0))


def _number_of_tangents(f_jvp: Callable, count: int) -> int:
    """How many tangents f_jvp takes; those of arguments left out will be None."""
    names = [p.name for p in parameters_of(f_jvp)]
    return max(count, sum(name.endswith("_dot") for name in names))
