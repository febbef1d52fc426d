"""Judges a published formula that is wrong, or right only under a condition it did not state.

Its failure is asserted: in every setting where no condition of the display is met, the
formula is ill-typed, or its sides differ by more than `FAILS` of their size. Where the
condition is met, it must hold as any other display does.
"""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from attnmath._exact.sides import differing
from attnmath._words.arrays import is_exact
from attnmath._words.tolerance import PAGE
from attnmath.page.language.chapter import Display
from attnmath.page.language.nodes import Misfit, Node, PageError, Statement, claims, names_in
from attnmath.page.scenes.scene import Scene
from attnmath.page.scenes.values import Value, match
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.trial import Trial, compare, inequality, is_constant, sides_of

FAILS = 1e-3  # of the size of the sides: far above rounding, far below a wrong formula


@dataclass(frozen=True)
class Refuted:
    """A published formula that fails as the display says: where, and by how much."""

    display: Display
    settings: int  # in which it fails
    ill_typed: int  # of these, in which it has no meaning
    least: float  # the smallest and the largest error where it has one,
    most: float  # relative to the size of the sides
    met: int  # settings that meet its condition, in which it holds
    comparisons: int


def refuted(display: Display, found: list) -> Refuted:
    """What was found in the scenes; a PageError if the formula does not fail, or not as it says."""
    met: dict[int, list[Scene]] = defaultdict(list)
    shown: set[int] = set()
    errors: list[float | None] = []
    comparisons = 0
    for scene, (held, failed, count) in found:
        comparisons += count
        errors += failed
        for k, is_more in held.items():
            met[k].append(scene)
            shown |= {k} if is_more else set()
    if not errors:
        raise PageError("value", "it holds in every setting: label it prp:", 0)
    refuse_unmet(display.statements, met)
    for k in met.keys() - shown:
        start = display.statements[k].conditions[0].start
        raise PageError("value", "where the condition is met, both sides are 0", start)
    measured = [e for e in errors if e is not None] or [0.0]
    return Refuted(display, len(errors), errors.count(None), min(measured), max(measured),
                   sum(map(len, met.values())), comparisons)


def refuse_unmet(statements: tuple, met: dict, only: tuple | None = None) -> None:
    """A condition that no setting meets, or only one that makes more zero than it asks."""
    for k, statement in claims(statements):
        if not statement.conditions or only and k not in only:
            continue
        start = statement.conditions[0].start
        if k not in met:
            raise PageError("value", "no setting of the cast meets the condition", start)
        equal = [c for c in statement.conditions if c.relations == ("=",)]
        asked = {letter for c in equal for side in c.members for _, letter in side.names}
        if all(scene.zeros() - asked for scene in met[k]):
            raise PageError("value", "only a degenerate setting meets the condition", start)


def in_scene(book: Book, statements: tuple, scene: Scene) -> tuple[dict[int, bool], list[float | None], int]:
    """The lines whose condition is met, and whether they are more than 0 = 0 there; the errors
    of those that fail; the comparisons."""
    all_outputs = book.outputs(statements, scene.cast)
    met: dict[int, bool] = {}
    errors: list[float | None] = []
    count = 0
    for k, statement in claims(statements):
        lines = (*_named(statements[:k], statement), statement)
        outputs = book.outputs(lines, scene.cast) or all_outputs
        try:
            trial = _trial(lines, scene.paired(outputs))
        except Misfit:
            errors.append(None)
            continue
        if statement.conditions and _is_met(trial, statement):
            sizes = _holds(trial, statement)
            met[k] = any(sizes)
            count += len(sizes)
        else:
            count += 1
            error = _failure(trial, replace(statement, conditions=()))
            if error is not None and error <= FAILS:
                message = f"it holds in the setting {scene.setting.name!r}, up to {error:.0e}: state the condition"
                raise PageError("value", message, statement.start)
            errors.append(error)
    return met, errors, count


def _named(before: tuple, statement: Statement) -> list:
    """The local definitions that a line uses, by itself or through another."""
    kept = [statement]
    for local in filter(lambda s: s.is_local, reversed(before)):
        if local.members[0].base.args in names_in(kept):
            kept.insert(0, local)
    return kept[:-1]


def _trial(statements: tuple, scene: Scene) -> Trial:
    """A local name may fit in this setting, though not where all sizes are distinct."""
    try:
        return Trial(statements, scene)
    except Misfit:
        return Trial(statements, scene.but(pattern=scene))


def _is_met(trial: Trial, statement: Statement) -> bool:
    """Whether a setting meets the conditions; sides of different shapes meet nothing."""
    if bounds := [one.start for one in statement.conditions if one.word == "within"]:
        raise PageError("grammar", "a published formula has no bound", bounds[0])
    try:
        frames = trial.frames(statement, ignore=True)
        met = [all(trial.holds(frame, condition) for condition in statement.conditions) for frame in frames]
    except Misfit:
        return False
    if any(met) and not all(met):
        message = "met at some indices and not at others: give each its setting"
        raise PageError("value", message, statement.conditions[0].start)
    return all(met)


def _holds(trial: Trial, statement: Statement) -> list:
    """For each comparison whether a side is not zero; a PageError if one does not hold."""
    found = []
    for frame in trial.frames(statement, ignore=True):
        for a, relation, b in trial.pairs(frame, statement.members, statement.relations):
            compared = compare(a, relation, b[0])
            found.append(compared.magnitude > 0 or any(map(is_constant, statement.members)))
    return found


def _failure(trial: Trial, statement: Statement) -> float | None:
    """The largest error of a statement, relative to the size of its sides; None if ill-typed."""
    error = 0.0
    try:
        for frame in trial.frames(statement, ignore=True):
            for a, relation, (b, node) in trial.pairs(frame, statement.members, statement.relations):
                error = max(error, _error(a, relation, b, node))
    except Misfit:
        return None
    return error


def _error(a: Value, relation: str, b: Value, node: Node) -> float:
    """How far the sides are apart; in a finite field 1 if they differ."""
    if relation not in ("=", "<=", ">="):
        raise PageError("grammar", f"'{relation}' in a published formula", node.start)
    if is_exact(a.x):
        if relation != "=":
            raise inequality(relation, node.start)
        a, b = match(a, b, "'='")
        return float(differing(a.x, b.x).any())
    both = sides_of(a, relation, b)
    if not np.isfinite([both.x, both.y]).all():
        raise PageError("value", "a side is not finite here", node.start)
    size = np.abs([both.x, both.y]).max(initial=0.0)
    gap = {"=": np.abs(both.gap), "<=": both.gap, ">=": -both.gap}[relation].max(initial=0.0)
    return float(gap / size) if gap > PAGE * both.magnitude else 0.0  # two zeros differ by rounding alone
