"""Gradients and tangents compared exactly, at a random point of a finite field."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnmath._algebraic import NotAlgebraic, whole
from attnmath._calls import check_generators, check_same, copied, generators, kept, same
from attnmath._compare import compared, first_difference, pairs_of
from attnmath._differences import agrees, jvp_along, vjp_along
from attnmath._exact_arrays import ExactArray, exact, letters
from attnmath._graph import gradient, tangent, tracked
from attnmath._leaves import all_leaves, fits, is_branch
from attnmath._numbers import Number
from attnmath._point import Point
from attnmath._problem import names_of, takes_each
from attnmath._proof import Proof
from attnmath._prove import at_point, at_points, beside_floats, check_letters, drawn
from attnmath._reals import ZERO, drawings
from attnmath._returned import tangents
from attnmath._step import each, parts
from attnmath._tolerance import CLOSE


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

    return _decided(run, f_vjp, f, x, constants, seed, check, vjp_along)


def _decided(
    run: Callable, rule: Callable, f: Callable, x: tuple, constants: dict, seed: int, check: Callable,
    along: Callable,
) -> Proof:
    """What is found at a point with letters, if float64 does not say otherwise."""
    check_letters(x, constants, seed)
    judge = partial(_compared, run, f, x, constants)
    floats = partial(Checked, check, rule, f, x, constants, seed)
    found, points, signs = beside_floats(lambda: at_points(judge, seed), floats)
    floats().confirm(along)
    return found._replace(points=points, signs=signs)


class Checked:
    """A rule beside its function in float64, at some points of real numbers."""

    def __init__(self, check: Callable, rule: Callable, f: Callable, x: tuple, constants: dict, seed: int) -> None:
        self.check, self.rule, self.f, self.seed = check, rule, f, seed
        self.points = [drawn(draw, x, constants) for draw in drawings(seed)[:7]]

    def error(self, given: list, named: dict, floor: float = ZERO) -> Exception | None:
        """By which the check by the complex step fails there; a 0 may be rounded."""
        try:
            with np.errstate(all="ignore"):
                self.check(self.rule, self.f, tuple(given), named, None, 0, floor=floor)
        except Exception as error:  # f loses imaginary parts, or has no value, or takes letters alone
            return error
        return None

    def run(self) -> bool:
        """Whether f runs somewhere."""
        for given, named in self.points:
            try:
                self.f(*given, **named)
                return True
            except Exception:  # at the next point, perhaps
                continue
        return False

    def agree(self) -> bool:
        """Whether the rule is right at several points, up to the last digits."""
        return all(self.error(*point, floor=CLOSE) is None for point in self.points[:3])

    def differ(self) -> bool:
        """Whether it is wrong at one."""
        return any(isinstance(self.error(*point), AssertionError) for point in self.points[:3])

    def confirm(self, along: Callable) -> None:
        """NotAlgebraic unless the rule is right at the first point where there is something to compare.

        By the complex step; at all points by differences, where this cannot be.
        """
        for point in self.points[:3]:
            error = self.error(*point)
            if error is None:
                return
            if isinstance(error, AssertionError):
                raise NotAlgebraic(f"undecided: right for letters, and in float64 {error}") from None
        found = [self._by_differences(along, *point) for point in self.points]
        if False in found:
            raise NotAlgebraic("undecided: right for letters, and differences in float64 say otherwise")
        if True not in found:
            why = f"{type(error).__name__}: {error}"
            raise NotAlgebraic(f"undecided: no real numbers were found at which f can be checked ({why})")

    def _by_differences(self, along: Callable, given: list, named: dict) -> bool | None:
        try:
            return agrees(along, self.rule, self.f, given, named, self.seed)
        except Exception:  # f has no value there, or takes letters alone
            return None


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
    along = partial(jvp_along, left_out=left_out, dots=x_dot or x)
    return _decided(run, f_jvp, f, x, constants, seed, check, along)


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
