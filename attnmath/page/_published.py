"""Judges a published formula that is wrong, or right only under a condition it did not state.

Its failure is asserted: in every setting where no condition of the display is met, the
formula is ill-typed, or its sides differ by more than `FAILS` of their size. Where the
condition is met, it must hold as any other display does.
"""

from dataclasses import dataclass, replace

import numpy as np

from attnmath._tolerance import PAGE
from attnmath.page import _values as v
from attnmath.page._book import ILL_TYPED, Book
from attnmath.page._cast import Cast
from attnmath.page._chapter import Display
from attnmath.page._evaluate import Frame
from attnmath.page._nodes import PageError, Statement
from attnmath.page._scene import Scene
from attnmath.page._trial import Trial, compare
from attnmath.page._values import plain

FAILS = 1e-3  # of the size of the sides: far above rounding, far below a wrong formula


@dataclass(frozen=True)
class Refuted:
    """A published formula that fails as the display says: where, and by how much."""

    display: Display
    cast: str
    settings: int  # in which it fails
    ill_typed: int  # of these, in which it has no meaning
    least: float  # the smallest and the largest error where it has one,
    most: float  # relative to the size of the sides
    met: int  # settings that meet its condition, in which it holds
    comparisons: int

    @property
    def verdict(self) -> str:
        """ill-typed, unequal, both, or conditional."""
        if self.met:
            return "conditional"
        if self.ill_typed == self.settings:
            return "ill-typed"
        return "unequal" if not self.ill_typed else "ill-typed or unequal"


def refute(book: Book, display: Display, cast: Cast, scenes: tuple) -> Refuted:
    """How a published formula fails; a PageError where it does not."""
    met: dict[int, list[Scene]] = {}
    errors, comparisons = [], 0
    for scene in scenes:
        held, failed, count = _in_scene(book, display.statements, scene)
        comparisons += count
        errors += failed
        for k in held:
            met.setdefault(k, []).append(scene)
    if not errors:
        raise PageError("value", "it holds in every setting: label it prp:", 0)
    refuse_unmet(display.statements, met)
    measured = [e for e in errors if e is not None] or [0.0]
    return Refuted(display, cast.name, len(errors), errors.count(None),
                   min(measured), max(measured), sum(map(len, met.values())), comparisons)  # fmt: skip


def refuse_unmet(statements: tuple, met: dict, only: tuple | None = None) -> None:
    """A condition that no setting meets, or only one that makes more zero than it asks."""
    for k, statement in enumerate(statements):
        if statement.is_local or not statement.conditions or only and k not in only:
            continue
        start = statement.conditions[0][3]
        if k not in met:
            raise PageError("value", "no setting of the cast meets the condition", start)
        asked = {n.args[1] for c in statement.conditions if c[2] == ("=",)
                 for m in c[1] for n in m.walk() if n.kind == "name"}  # fmt: skip
        if all(scene.zeros() - asked for scene in met[k]):
            raise PageError("value", "only a degenerate setting meets the condition", start)


def _in_scene(book: Book, statements: tuple, scene: Scene) -> tuple[list, list, int]:
    """The lines whose condition is met, the errors of those that fail, the comparisons."""
    scene = book.paired(statements, scene)
    try:
        trial = Trial(statements, scene)
    except PageError as error:
        return [], [_ill_typed(error)], 0
    met, errors, count = [], [], 0
    for k, statement in enumerate(statements):
        if statement.is_local:
            continue
        if statement.conditions and _is_met(trial, statement):
            count += _holds(trial, statement)
            met.append(k)
        else:
            count += 1
            error = _failure(trial, replace(statement, conditions=()))
            if error is not None and error <= FAILS:
                where = f"in the setting {scene.setting.name!r}"
                message = f"it holds {where}, up to {error:.0e}: state the condition"
                raise PageError("value", message, statement.start)
            errors.append(error)
    return met, errors, count


def _is_met(trial: Trial, statement: Statement) -> bool:
    """Whether a setting meets the conditions; sides of different shapes meet nothing."""
    for condition in statement.conditions:
        if condition[0] == "within":
            raise PageError("grammar", "a published formula has no bound", condition[3])
    met = []
    try:
        for frame in trial.frames(statement, ignore=True):
            met.append(all(trial.holds(frame, c) for c in statement.conditions))
    except PageError as error:
        _ill_typed(error)
        return False
    if any(met) and not all(met):
        message = "met at some indices and not at others: give each its setting"
        raise PageError("value", message, statement.conditions[0][3])
    return all(met)


def _holds(trial: Trial, statement: Statement) -> int:
    """How many comparisons hold; a PageError if one does not."""
    count = 0
    for frame in trial.frames(statement, ignore=True):
        for a, relation, b in trial.pairs(frame, statement.members, statement.relations):
            compare(a, relation, b[0])
            count += 1
    return count


def _failure(trial: Trial, statement: Statement) -> float | None:
    """The largest error of a statement, relative to the size of its sides; None if ill-typed."""
    error = 0.0
    try:
        for frame in trial.frames(statement, ignore=True):
            error = max(error, _largest(trial, frame, statement))
    except PageError as fault:
        return _ill_typed(fault)
    return error


def _largest(trial: Trial, frame: Frame, statement: Statement) -> float:
    error = 0.0
    for a, relation, (b, node) in trial.pairs(frame, statement.members, statement.relations):
        if relation not in ("=", "<=", ">="):
            raise PageError("grammar", f"'{relation}' in a published formula", node.start)
        a, b = v.match(a, b, f"'{relation}'")
        x, y = plain(a.x), plain(b.x)
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise PageError("value", "a side is not finite here", node.start)
        size = max(np.abs(x).max(initial=0.0), np.abs(y).max(initial=0.0))
        gap = {"=": np.abs(x - y), "<=": x - y, ">=": y - x}[relation].max(initial=0.0)
        rounding = PAGE * max(a.m.max(initial=0.0), b.m.max(initial=0.0))
        if gap > rounding:  # two zeros differ by rounding alone
            error = max(error, float(gap / size))
    return error


def _ill_typed(error: PageError) -> None:
    """None for shapes and indices that do not fit; any other error is the page's own."""
    if error.kind not in ILL_TYPED:
        raise error
