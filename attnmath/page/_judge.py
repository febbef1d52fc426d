"""Judges displays: every statement of every display, in every scene of its cast."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnmath.page._book import Book
from attnmath.page._cast import Cast
from attnmath.page._chapter import Display, Fault
from attnmath.page._nodes import PageError, Statement
from attnmath.page._oracles import Independent, TorchScene
from attnmath.page._promise import check_function
from attnmath.page._scene import Scene
from attnmath.page._trial import Trial


@dataclass(frozen=True)
class Verdict:
    """A display that holds: where it was run, its largest error, what it rests on."""

    display: Display
    cast: str
    scenes: int
    comparisons: int
    error: float  # relative to the magnitude that was summed up
    facts: int  # steps that hold for the letters of the cast only
    algebra: int  # steps that hold for any matrices of these shapes


def judge(book: Book, display: Display) -> Verdict:
    """The verdict on a display that holds; a Fault at its place for one that does not."""
    try:
        with np.errstate(all="ignore"):
            return _judge(book, display)
    except PageError as error:
        raise display.fault(error) from None


def _judge(book: Book, display: Display) -> Verdict:
    statements = display.statements
    cast = book.cast_of(display)
    _refuse_idle(statements)
    scenes = book.scenes(cast) + book.scenes(cast, TorchScene)
    comparisons, worst = 0, 0.0
    met: dict[int, list[Scene]] = {}
    for scene in scenes:
        scene = book.paired(statements, scene)
        largest: dict = {}
        for k, compared in Trial(statements, scene).run():
            comparisons, worst = comparisons + 1, max(worst, compared.error)
            met.setdefault(k, []).append(scene)
            largest[k] = max(largest.get(k, 0.0), compared.magnitude)
        if display.kind == "eq":
            worst = max(worst, check_function(display, scene, largest))
    _refuse_unmet(statements, met)
    facts, algebra = steps(book, statements, cast)
    return Verdict(display, cast.name, len(scenes), comparisons, worst, facts, algebra)


def _refuse_idle(statements: tuple) -> None:
    for statement in statements:
        for a, b in zip(statement.members, statement.members[1:]):
            if a == b:
                raise PageError("value", "the sides are identical", b.start)


def _refuse_unmet(statements: tuple, met: dict) -> None:
    for k, statement in enumerate(statements):
        if statement.is_local or not statement.conditions:
            continue
        start = statement.conditions[0][3]
        if k not in met:
            raise PageError("value", "no setting of the cast meets the condition", start)
        names = {n.args[1] for c in statement.conditions for m in c[1] for n in m.walk()
                 if n.kind == "name"}  # fmt: skip
        if all(scene.zeros() - names for scene in met[k]):
            raise PageError("value", "only a degenerate setting meets the condition", start)


def steps(book: Book, statements: tuple, cast: Cast) -> tuple[int, int]:
    """How many steps need a fact, and how many hold for any matrices (algebra)."""
    scene = book.scenes(cast, Independent)[0]
    facts = algebra = 0
    for k, statement in enumerate(statements):
        if statement.is_local:
            continue
        for i in range(len(statement.relations)):
            if _is_free(statements, k, i, scene):
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


def check_book(book: Book, root: Path | None = None) -> tuple[list[Verdict], list[Fault]]:
    """Every display of every chapter; labels with their functions, listings and tests."""
    from attnmath.page._labels import label_faults

    verdicts: list[Verdict] = []
    faults = [fault for chapter in book.chapters for fault in chapter.faults]
    faults += label_faults(book, root)
    for chapter in book.chapters:
        for display in chapter.displays:
            try:
                verdicts.append(judge(book, display))
            except Fault as fault:
                faults.append(fault)
    return verdicts, faults
