"""Gradients and tangents proved: at a random point of a finite field, and beside their function in float64."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnmath._check.problem import each_output_tangent, names_of, takes_each
from attnmath._exact.arrays import ExactArray, exact, gradient_of, letters, tangent_of, tracked
from attnmath._exact.floats import drawings
from attnmath._exact.numbers import Number
from attnmath._exact.outcomes import NotAlgebraic, Proof, SidesDiffer
from attnmath._exact.point import Point
from attnmath._exact.prove import at_point, at_points, beside_floats, check_letters, filled_in
from attnmath._exact.sides import (
    check_generators,
    check_same,
    checked_copy,
    compared_at,
    first_difference,
    generators,
    own_copy,
    pairs_of,
    run_algebraic,
    same_result,
)
from attnmath._words.complex_step import as_vector, is_real
from attnmath._words.named_tuples import all_leaves, each_part, flat_parts, has_fields_of
from attnmath._words.tolerance import CENTRAL_STEP, CLEARLY, CLOSE, NEARLY_ZERO


def prove_vjp(f_vjp: Callable, f: Callable, x: tuple, constants: dict, seed: int, check: Callable) -> Proof:
    """Every gradient that f_vjp returns is that of f, for all numbers; check judges it in float64."""
    parameters, names = names_of(f, len(x))

    def run(point: Point) -> tuple:
        given, named = at_point(point, x, constants)
        state = generators()
        moving, Y = _moving(f, names, given, named)
        dY = each_part(lambda y: letters(point, np.shape(y)), Y)
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
            if not has_fields_of(dx, argument):
                raise AssertionError(f"{title} needs the fields {', '.join(argument._fields)}")
        titles, got = all_leaves(titles, found[: len(given)], given)
        pairs = [(y, dy) for y, dy in zip(flat_parts(Y), flat_parts(dY)) if y is not None]
        wanted = [_gradient_by(part, pairs) for part in all_leaves(names, moving, moving)[1]]
        return dict(zip(titles, got)), dict(zip(titles, wanted))

    return _decided(run, f_vjp, f, x, constants, seed, check, vjp_along)


def _decided(
    run: Callable, rule: Callable, f: Callable, x: tuple, constants: dict, seed: int, check: Callable,
    along: Callable,
) -> Proof:
    """What is found at a point with letters, if float64 does not say otherwise."""
    check_letters(x)
    judge = partial(_compared_at, run, f, x, constants)
    floats = partial(Checked, check, rule, f, x, constants, seed)
    found, points, signs = beside_floats(lambda: at_points(judge, seed), floats)
    floats().confirm(along)
    return found._replace(points=points, signs=signs)


def prove_jvp(
    f_jvp: Callable, f: Callable, x: tuple, x_dot: Any, left_out: tuple, constants: dict, seed: int,
    check: Callable,
) -> Proof:
    """The tangent that f_jvp returns is that of f, along all tangents at once."""

    def run(point: Point) -> tuple:
        given, named = at_point(point, x, constants)
        state = generators()
        moving, Y = _moving(f, names, given, named)
        each_letter = partial(each_part, lambda a: letters(point, a.shape) if isinstance(a, ExactArray) else None)
        dots = [None if dot is None else each_letter(part) for part, dot in zip(given, x_dot or given)]
        titles = [*(f"{name}_dot" for name in names), *map(str, left_out), *names]
        found = unchanging("f_jvp", f_jvp, titles, [*dots, *left_out, *given], named)
        check_same("f_jvp", found, unchanging("f_jvp", f_jvp, titles, [*dots, *left_out, *given], named))
        check_same("f", Y, unchanging("f", f, names, moving, named))
        check_generators(state)
        both = zip(all_leaves(names, moving, moving)[1], all_leaves(names, dots, moving)[1])
        pairs = [(a, dot) for a, dot in both if isinstance(a, ExactArray) and dot is not None]
        wanted = each_part(lambda y: tangent_of(y, pairs) if isinstance(y, ExactArray) else 0 * y, Y)
        names_of_parts, got = each_output_tangent(Y, found)
        titles = [f"{name}_dot" for name in names_of_parts]
        return dict(zip(titles, got)), dict(zip(titles, flat_parts(wanted)))

    names = names_of(f, len(x))[1]
    along = partial(jvp_along, left_out=left_out, dots=x_dot or x)
    return _decided(run, f_jvp, f, x, constants, seed, check, along)


def _compared_at(run: Callable, f: Callable, x: tuple, constants: dict, point: Point) -> Proof:
    """What was returned and what is right are the same, name by name.

    A maximum is a constant to the derivatives: what f returns must not depend on it.
    """
    proof = compared_at(lambda point: _titled(*run(point)), point)
    if not point.maxima:
        return proof
    outputs = _outputs(f, x, constants, point.again())
    with point.taking_entries():
        if outputs == _outputs(f, x, constants, point):
            return proof
    with point.taking_entries():
        wrong = first_difference(list(pairs_of(*_titled(*run(point)))), point)
    if wrong:
        raise SidesDiffer(wrong)
    raise NotAlgebraic("undecided: f returns what depends on a maximum")


def _titled(got: dict, wanted: dict) -> tuple:
    """Both sides, without what is None on both, as tuples whose parts have names."""
    for name in wanted:
        if (got[name] is None) != (wanted[name] is None):
            raise AssertionError(f"{name} is {'None' if got[name] is None else 'not None'}")

    class Titled(tuple):
        _fields = tuple(name for name in wanted if wanted[name] is not None)

    return tuple(Titled(side[name] for name in Titled._fields) for side in (got, wanted))


def _moving(f: Callable, names: list, given: list, named: dict) -> tuple[list, Any]:
    """The arguments as what others are differentiated by, and what f makes of them."""
    for name, part in zip(*all_leaves(names, given, given)):
        if part is not None and not isinstance(part, ExactArray):
            needs = "it needs to be an array of float64, a number like 0.5, or a shape"
            raise TypeError(f"{name} is a {type(part).__name__} that stays as it is; {needs}")
    moving = [each_part(lambda a: tracked(a) if isinstance(a, ExactArray) else a, part) for part in given]
    Y = unchanging("f", f, names, moving, named)
    if not all(y is None or isinstance(y, ExactArray | Number | np.ndarray | int | float) for y in flat_parts(Y)):
        raise TypeError("f returns something else than real numbers")
    if all(y is None for y in flat_parts(Y)):
        raise TypeError("f returns nothing")
    return moving, Y


def unchanging(what: str, function: Callable, names: list, given: list, named: dict) -> Any:
    """function(*given, **named), which must leave its arguments as they are."""
    private = [*map(own_copy, given)], {k: own_copy(part) for k, part in named.items()}
    found = checked_copy(run_algebraic(function, *private[0], **private[1]), what)
    names, before = all_leaves([*names, *named], [*given, *named.values()], [*given, *named.values()])
    after = all_leaves(names, [*private[0], *private[1].values()], [*given, *named.values()])[1]
    for name, a, b in zip(names, before, after):
        if isinstance(a, np.ndarray) and not same_result(a, b):
            raise AssertionError(f"{what} modifies its argument {name}")
    return found


def _gradient_by(part: Any, pairs: list) -> Any:
    """The gradient by one argument; None where there is no letter."""
    if not isinstance(part, ExactArray):
        return None
    outputs = np.concatenate([np.ravel(y) for y, _ in pairs])
    weights = np.concatenate([np.ravel(dy) for _, dy in pairs])
    return gradient_of(outputs, weights, part)


def _outputs(f: Callable, x: tuple, constants: dict, point: Point) -> list:
    """What f returns, entry by entry."""
    given, named = at_point(point, x, constants)
    there = (y for y in flat_parts(run_algebraic(f, *given, **named)) if y is not None)
    return [entry.key for y in there for entry in exact(y, point).flat]


class Checked:
    """A rule beside its function at some points of real numbers; check judges it by the complex step."""

    def __init__(self, check: Callable, rule: Callable, f: Callable, x: tuple, constants: dict, seed: int) -> None:
        self.check, self.rule, self.f, self.seed = check, rule, f, seed
        self.points = [filled_in(draw, x, constants) for draw in drawings(seed)[:7]]

    def error(self, given: list, named: dict, floor: float = NEARLY_ZERO) -> Exception | None:
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
        found = [self._agrees(along, *point) for point in self.points]
        if False in found:
            raise NotAlgebraic("undecided: right for letters, and differences in float64 say otherwise")
        if True not in found:
            why = f"{type(error).__name__}: {error}"
            raise NotAlgebraic(f"undecided: no real numbers were found at which f can be checked ({why})")

    def _agrees(self, along: Callable, given: list, named: dict) -> bool | None:
        """Whether the rule agrees with differences of f there; None where there is nothing finite."""
        try:
            with np.errstate(all="ignore"):
                got, want, allowed = along(self.rule, self.f, given, named, np.random.default_rng(self.seed))
            is_finite = np.isfinite(want) & np.isfinite(allowed)
            return bool((abs(got - want)[is_finite] <= allowed[is_finite]).all()) if is_finite.any() else None
        except Exception:  # f has no value there, or takes letters alone
            return None


def vjp_along(f_vjp: Callable, f: Callable, given: list, named: dict, rng: np.random.Generator) -> tuple:
    """The change of a random weighted sum of outputs: by the gradients, by differences, what is allowed."""
    v = [_direction(part, rng) for part in given]
    Y, Y_dot = _central(f, given, named, v)
    dY = each_part(lambda y: rng.standard_normal(np.shape(y)), Y)
    found = f_vjp(*(dY if takes_each(f_vjp, f, given, dY) else (dY,)), *given, **named)
    found = found if isinstance(found, tuple | list) else (found,)
    names = [*map(str, range(len(given)))]
    pairs = zip(all_leaves(names, found, given)[1], all_leaves(names, v, given)[1])
    terms = np.concatenate([np.ravel(dx * part) for dx, part in pairs if part is not None])
    y, dy = as_vector(Y), as_vector(dY)
    weighted = np.where(np.isfinite(y), dy * Y_dot, 0)
    size = abs(terms).sum() + abs(weighted).sum()
    level = abs(dy * y)[np.isfinite(y)].sum()
    allowed = CLEARLY * size + NEARLY_ZERO * (1 + level)
    return tuple(np.array([number]) for number in (terms.sum(), weighted.sum(), allowed))


def jvp_along(
    f_jvp: Callable, f: Callable, given: list, named: dict, rng: np.random.Generator, left_out: tuple, dots: Any
) -> tuple:
    """The tangents along a random direction: those returned, by differences, what is allowed."""
    v = [None if dot is None else _direction(part, rng) for part, dot in zip(given, dots)]
    Y, want = _central(f, given, named, v)
    got = as_vector(f_jvp(*v, *left_out, *given, **named))
    largest = np.maximum(abs(got), abs(want))[np.isfinite(want)].max(initial=0.0)
    return got, want, CLEARLY * largest + NEARLY_ZERO * (1 + abs(as_vector(Y)))


def _direction(x: Any, rng: np.random.Generator) -> Any:
    """Normally distributed numbers in the shape of an argument; None for what has no derivative."""
    return each_part(
        lambda a: np.where(np.isfinite(a), rng.standard_normal(np.shape(a)), 0) if is_real(a) else None, x
    )


def _central(f: Callable, given: list, named: dict, v: list) -> tuple:
    """What f returns, and its central differences along v."""
    h = CENTRAL_STEP
    ahead, behind = (as_vector(f(*(_shifted(*pair, step) for pair in zip(given, v)), **named)) for step in (h, -h))
    return f(*given, **named), (ahead - behind) / (2 * h)


def _shifted(x: Any, v: Any, h: float) -> Any:
    return x if v is None else each_part(lambda a, dot: a if dot is None else a + h * dot, x, v)
