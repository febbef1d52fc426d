"""Gradients and tangents compared exactly, at a random point of a finite field."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnmath._algebraic import NotAlgebraic, whole
from attnmath._calls import check_generators, check_same, copied, generators, kept, same
from attnmath._compare import compared, first_difference, pairs_of
from attnmath._exact_arrays import ExactArray, exact, letters
from attnmath._graph import gradient, tangent, tracked
from attnmath._leaves import all_leaves, fits, is_branch
from attnmath._numbers import Number
from attnmath._point import Point
from attnmath._problem import names_of, takes_each
from attnmath._proof import Proof
from attnmath._prove import at_point, at_points, check_letters, drawn
from attnmath._reals import ZERO, drawings
from attnmath._returned import tangents
from attnmath._step import each, parts


def prove_vjp(
    f_vjp: Callable, f: Callable, x: tuple, constants: dict, seed: int, check: Callable
) -> Proof:
    """Every gradient that f_vjp returns is that of f, for all numbers; check judges it in float64."""
    parameters, names = names_of(f, len(x))

    def run(point: Point) -> tuple:
        given, named = at_point(point, x, constants)
        state = generators()
        moving, Y = _moving(f, names, given, named)
        dY = each(lambda y: letters(point, np.shape(y)), Y)
        each_dY = dY if takes_each(f_vjp, f, x, dY) else (dY,)
        own = names_of(f_vjp, len(each_dY))[1] if len(each_dY) > 1 else ["dY"]
        found = unchanging("f_vjp", f_vjp, [*own, *names], [*each_dY, *given], named)
        again = unchanging("f_vjp", f_vjp, [*own, *names], [*each_dY, *given], named)
        check_same("f_vjp", found, again)
        check_same("f", Y, unchanging("f", f, names, moving, named))
        check_generators(state)
        found = found if isinstance(found, tuple | list) else (found,)
        if not len(given) <= len(found) <= max(len(given), parameters):
            raise AssertionError(f"f_vjp returns {len(found)} gradients for {len(given)} arguments")
        titles = getattr(found, "_fields", [f"d{name}" for name in names])
        for title, argument, dx in zip(titles, given, found):
            if not fits(dx, argument):
                raise AssertionError(f"{title} needs the fields {', '.join(argument._fields)}")
        titles, got = all_leaves(titles, found[: len(given)], given)
        pairs = [(y, dy) for y, dy in zip(parts(Y), parts(dY)) if y is not None]
        wanted = [_gradient(pairs, part) for part in all_leaves(names, moving, moving)[1]]
        return _named(titles, got), _named(titles, wanted)

    judge = partial(_compared, run, f, x, constants)
    check_letters(x, constants)
    found, points, signs = at_points(judge, seed)
    _confirm(check, f_vjp, f, x, constants, seed)
    return found._replace(points=points, signs=signs)


def _confirm(check: Callable, rule: Callable, f: Callable, x: tuple, constants: dict, seed: int) -> None:
    """What was proved for letters passes the check in float64, where this is possible."""
    given, named = drawn(drawings(seed)[0], x, constants)
    try:
        check(rule, f, tuple(given), named, None, 0, floor=ZERO)  # a 0 may be rounded
    except AssertionError as error:
        raise NotAlgebraic(f"undecided: right for letters, and in float64 {error}") from None
    except (TypeError, ValueError, ArithmeticError, np.linalg.LinAlgError):
        pass  # f loses imaginary parts, or takes letters alone


def prove_jvp(
    f_jvp: Callable, f: Callable, x: tuple, x_dot: Any, left_out: tuple, constants: dict, seed: int,
    check: Callable,
) -> Proof:
    """The tangent that f_jvp returns is that of f, along all tangents at once."""

    def run(point: Point) -> tuple:
        given, named = at_point(point, x, constants)
        state = generators()
        moving, Y = _moving(f, names, given, named)
        dots = [None if dot is None else _tangent_of(point, part)
                for part, dot in zip(given, x_dot or given)]  # fmt: skip
        titles = [*(f"{name}_dot" for name in names), *map(str, left_out), *names]
        found = unchanging("f_jvp", f_jvp, titles, [*dots, *left_out, *given], named)
        check_same("f_jvp", found, unchanging("f_jvp", f_jvp, titles, [*dots, *left_out, *given], named))
        check_same("f", Y, unchanging("f", f, names, moving, named))
        check_generators(state)
        pairs = [(a, dot) for a, dot in zip(all_leaves(names, moving, moving)[1],
                                            all_leaves(names, dots, moving)[1])
                 if isinstance(a, ExactArray) and dot is not None]  # fmt: skip
        wanted = each(lambda y: tangent(y, pairs) if isinstance(y, ExactArray) else 0 * y, Y)
        names_of_parts, got = tangents(Y, found)
        titles = [f"{name}_dot" for name in names_of_parts]
        return _named(titles, got), _named(titles, parts(wanted))

    names = names_of(f, len(x))[1]
    judge = partial(_compared, run, f, x, constants)
    check_letters(x, constants)
    found, points, signs = at_points(judge, seed)
    _confirm(check, f_jvp, f, x, constants, seed)
    return found._replace(points=points, signs=signs)


def _compared(run: Callable, f: Callable, x: tuple, constants: dict, point: Point) -> Proof:
    """What was returned and what is right are the same, name by name.

    A maximum is a constant to the derivatives: what f returns must not depend on it.
    """
    proof = compared(lambda point: _titled(*run(point)), point)
    if point.maxima and _outputs(f, x, constants, point) != _outputs(f, x, constants, point, True):
        wrong = first_difference(list(pairs_of(*_titled(*run(point.again(entries=True))))), point)
        point.again()
        if wrong:
            raise AssertionError(f"refuted: {wrong}")
        raise NotAlgebraic("undecided: f returns what depends on a maximum")
    return proof


def _titled(got: dict, wanted: dict) -> tuple:
    """Both sides, without what is None on both, as tuples whose parts have names."""
    for name in wanted:
        if (got[name] is None) != (wanted[name] is None):
            raise AssertionError(f"{name} is {'None' if got[name] is None else 'not None'}")

    class Titled(tuple):
        _fields = tuple(name for name in wanted if wanted[name] is not None)

    return tuple(Titled(side[name] for name in Titled._fields) for side in (got, wanted))


def _named(titles: Any, found: Any) -> dict:
    return dict(zip(titles, found))


def _moving(f: Callable, names: list, given: list, named: dict) -> tuple[list, Any]:
    """The arguments as what others are differentiated by, and what f makes of them."""
    for name, part in zip(*all_leaves(names, given, given)):
        if part is not None and not isinstance(part, ExactArray):
            needs = "it needs to be an array of float64, a number like 0.5, or a shape"
            raise TypeError(f"{name} is a {type(part).__name__} that stays as it is; {needs}")
    moving = [_tracked(part) for part in given]
    Y = unchanging("f", f, names, moving, named)
    if not all(y is None or isinstance(y, ExactArray | Number | np.ndarray | int | float) for y in parts(Y)):
        raise TypeError("f returns something else than real numbers")
    if all(y is None for y in parts(Y)):
        raise TypeError("f returns nothing")
    return moving, Y


def unchanging(what: str, function: Callable, names: list, given: list, named: dict) -> Any:
    """function(*given, **named), which must leave its arguments as they are."""
    private = [*map(copied, given)], {k: copied(part) for k, part in named.items()}
    found = kept(whole(function, *private[0], **private[1]), what)
    names, before = all_leaves([*names, *named], [*given, *named.values()], [*given, *named.values()])
    after = all_leaves(names, [*private[0], *private[1].values()], [*given, *named.values()])[1]
    for name, a, b in zip(names, before, after):
        if isinstance(a, np.ndarray) and not same(a, b):
            raise AssertionError(f"{what} modifies its argument {name}")
    return found


def _tracked(x: Any) -> Any:
    if is_branch(x):
        return type(x)(*map(_tracked, x))
    return tracked(x) if isinstance(x, ExactArray) else x


def _gradient(pairs: list, part: Any) -> Any:
    """The gradient by one argument; None where there is no letter."""
    if not isinstance(part, ExactArray):
        return None
    outputs = np.concatenate([np.ravel(y) for y, _ in pairs])
    weights = np.concatenate([np.ravel(dy) for _, dy in pairs])
    return gradient(outputs, weights, part)


def _tangent_of(point: Point, part: Any) -> Any:
    """Letters in the shape of an argument, field by field; None for None."""
    if is_branch(part):
        return type(part)(*(_tangent_of(point, field) for field in part))
    return letters(point, part.shape) if isinstance(part, ExactArray) else None


def _outputs(f: Callable, x: tuple, constants: dict, point: Point, entries: bool = False) -> list:
    """What f returns, with constants or with entries in the place of maxima."""
    given, named = at_point(point.again(entries), x, constants)
    there = (y for y in parts(whole(f, *given, **named)) if y is not None)
    return [entry.key for y in there for entry in exact(y, point).flat]
