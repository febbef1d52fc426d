"""Judges displays: every statement of every display, in every scene of the casts that know it."""

from dataclasses import dataclass

import numpy as np

from attnmath.page._book import Book
from attnmath.page._cast import Cast
from attnmath.page._chapter import Display, Fault
from attnmath.page._nodes import PageError, Statement
from attnmath.page._oracles import Independent, TorchScene
from attnmath.page._promise import check_function
from attnmath.page._published import Refuted, refuse_unmet, refute
from attnmath.page._scene import Scene
from attnmath.page._trial import Trial, is_constant
from attnmath.page._vacuous import refuse_vacuous


@dataclass(frozen=True)
class Verdict:
    """A display that holds: where it was run, its largest error, what it rests on."""

    display: Display
    cast: str
    scenes: int
    comparisons: int
    error: float  # relative to the magnitude that was summed up
    facts: int | None = None  # steps that hold for the letters of the cast only
    algebra: int | None = None  # steps that hold for any matrices of these shapes


def judge(book: Book, display: Display, counted: bool = False) -> Verdict | Refuted:
    """The verdict on a display that holds; a Fault at its place for one that does not.

    A published formula (err:) has to fail. Facts and algebra are told apart if asked for.
    """
    try:
        with np.errstate(all="ignore"):
            return _judge(book, display, counted)
    except PageError as error:
        raise display.fault(error) from None


def _judge(book: Book, display: Display, counted: bool) -> Verdict | Refuted:
    statements = display.statements
    cast = book.cast_of(display)
    scenes = book.stage(display) + book.stage(display, TorchScene)
    if display.kind == "err":
        refuse_nothing(statements)
        return refute(book, display, cast, scenes)
    found = hold(book, display.label, statements, scenes)
    refuse_vacuous(statements, tuple(book.paired(statements, scene) for scene in book.stage(display)))
    told = steps(book, statements, cast) if counted else ()
    return Verdict(display, cast.name, len(scenes), *found, *told)


def hold(
    book: Book, label: str, statements: tuple, scenes: tuple, only: tuple | None = None
) -> tuple[int, float]:
    """How many comparisons, and the largest error; a PageError where something fails.

    `only` restricts it to some of the statements.
    """
    refuse_nothing(statements)
    comparisons, worst = 0, 0.0
    met: dict[int, list[Scene]] = {}
    told: set[int] = set()  # statements with a side that is not zero
    scenes = tuple(book.paired(statements, scene) for scene in scenes)
    for scene in scenes:
        largest: dict = {}
        for k, compared in Trial(statements, scene).run(only):
            comparisons, worst = comparisons + 1, max(worst, compared.error)
            met.setdefault(k, []).append(scene)
            largest[k] = max(largest.get(k, 0.0), compared.magnitude)
            if compared.tells:
                told.add(k)
        if label.startswith("eq:"):
            worst = max(worst, check_function(label[3:], statements, scene, largest))
    refuse_unmet(statements, met, only)
    refuse_silent(statements, met.keys() - told)
    for k in met:
        refuse_idle(label, statements, k, scenes)
    return comparisons, worst


def refuse_silent(statements: tuple, silent: set) -> None:
    """A condition under which all sides are zero, of a statement that does not say `= 0`."""
    for k in sorted(silent):
        if statements[k].conditions and not any(map(is_constant, statements[k].members)):
            message = "where the condition is met, all sides are 0 in every setting"
            raise PageError("value", message, statements[k].conditions[0][3])


def refuse_idle(label: str, statements: tuple, k: int, scenes: tuple) -> None:
    """A condition without which the statement, and its function, hold in every setting as well."""
    if all(condition[0] == "within" for condition in statements[k].conditions):
        return
    try:
        for scene in scenes:
            found = [compared for _, compared in Trial(statements, scene).run((k,), ignore=True)]
            if label.startswith("eq:"):
                size = max((compared.magnitude for compared in found), default=0.0)
                check_function(label[3:], statements, scene, {k: size})
    except PageError:
        return
    message = "without its condition it holds in every setting as well: delete the condition"
    raise PageError("value", message, statements[k].conditions[0][3])


def refuse_nothing(statements: tuple) -> None:
    """Nothing stated, identical sides, a name that is given and not used."""
    stated = [statement for statement in statements if not statement.is_local]
    if not stated:
        raise PageError("value", "nothing is stated", 0)
    for statement in stated:
        for a, b in zip(statement.members, statement.members[1:]):
            if a == b:
                raise PageError("value", "the sides are identical", b.start)
    for k, statement in enumerate(statements):
        if statement.is_local:
            left = statement.members[0]
            name = left.args[0].args if left.kind == "index" else left.args
            later = [n.args for other in statements[k + 1 :] for n in other.nodes()]
            if name not in later:
                raise PageError("letter", f"{name[-1]} is named and not used", left.start)


def steps(book: Book, statements: tuple, cast: Cast) -> tuple[int, int]:
    """How many steps need a fact, and how many hold for any matrices (algebra)."""
    scenes = book.scenes(cast, Independent)
    facts = algebra = 0
    for k, statement in enumerate(statements):
        if statement.is_local:
            continue
        for i in range(len(statement.relations)):
            if all(_is_free(statements, k, i, scene) for scene in scenes):
                algebra += 1
            else:
                facts += 1
    return facts, algebra


def _is_free(statements: tuple, k: int, i: int, scene: Scene) -> bool:
    statement = statements[k]
    step = Statement(
        statement.members[i : i + 2], statement.relations[i : i + 1], (), 0, 0
    )
    try:
        for _ in Trial((*statements[:k], step), scene).run(only=(k,), ignore=True):
            pass
        return True
    except PageError:
        return False


def verdict_or_fault(
    book: Book, display: Display, counted: bool = False
) -> Verdict | Refuted | Fault:
    try:
        return judge(book, display, counted)
    except Fault as fault:
        return fault
