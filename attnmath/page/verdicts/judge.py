"""Judges displays: every statement of every display, in every scene of the casts that know it."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from attnmath.page.language.chapter import Display
from attnmath.page.language.nodes import Node, PageError, Statement, claims, inserted, names_in, numbered, steps
from attnmath.page.scenes.cast import Cast
from attnmath.page.scenes.oracles import Independent, TorchScene
from attnmath.page.scenes.scene import Scene
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.promise import check_function
from attnmath.page.verdicts.published import Refuted, in_scene, refuse_unmet, refuted
from attnmath.page.verdicts.trial import Trial, is_constant


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
            statements, cast = display.statements, book.cast_of(display)
            scenes = book.stage(display) + book.stage(display, TorchScene)
            if display.kind == "err":
                refuse_nothing(statements)
                return refuted(display, [(scene, in_scene(book, statements, scene)) for scene in scenes])
            found = hold(book, display.label, statements, scenes)
            refuse_vacuous(statements, book.all_paired(statements, book.stage(display)))
            told = facts_and_algebra(book, statements, cast) if counted else ()
            return Verdict(display, cast.name, len(scenes), *found, *told)
    except PageError as error:
        raise display.fault(error) from None


def hold(
    book: Book, label: str, statements: tuple, scenes: tuple, only: tuple | None = None, like: Sequence[Trial] = ()
) -> tuple[int, float]:
    """How many comparisons, and the largest error; a PageError where something fails.

    `only` restricts it to some of the statements; `like` are trials of nearly the same in these scenes.
    """
    refuse_nothing(statements)
    comparisons, worst = 0, 0.0
    met: dict[int, list[Scene]] = defaultdict(list)
    told: set[int] = set()  # statements with a side that is not zero
    scenes = book.all_paired(statements, scenes)
    for scene, other in zip_longest(scenes, like):
        largest: dict[int, float] = defaultdict(float)
        for k, compared in Trial(statements, scene, other).run(only):
            comparisons, worst = comparisons + 1, max(worst, compared.error)
            met[k].append(scene)
            largest[k] = max(largest[k], compared.magnitude)
            told |= {k} if compared.tells else set()
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
            raise PageError("value", message, statements[k].conditions[0].start)


def refuse_idle(label: str, statements: tuple, k: int, scenes: tuple) -> None:
    """A condition without which the statement, and its function, hold in every setting as well."""
    if all(condition.word == "within" for condition in statements[k].conditions):
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
    raise PageError("value", message, statements[k].conditions[0].start)


def refuse_nothing(statements: tuple) -> None:
    """Nothing stated, identical sides, a name that is given and not used."""
    if not claims(statements):
        raise PageError("value", "nothing is stated", 0)
    for _, statement in claims(statements):
        for a, b in zip(statement.members, statement.members[1:]):
            if a == b:
                raise PageError("value", "the sides are identical", b.start)
    for k, statement in enumerate(statements):
        left = statement.members[0]
        if statement.is_local and left.base.args not in names_in(statements[k + 1 :]):
            raise PageError("letter", f"{left.base.args[-1]} is named and not used", left.start)


def facts_and_algebra(book: Book, statements: tuple, cast: Cast) -> tuple[int, int]:
    """How many steps need a fact, and how many hold for any matrices (algebra)."""
    scenes = book.scenes(cast, Independent)
    asked = steps(statements)
    algebra = sum(all(_is_free(statements, k, i, scene) for scene in scenes) for k, i in asked)
    return len(asked) - algebra, algebra


def _is_free(statements: tuple, k: int, i: int, scene: Scene) -> bool:
    members, relations = statements[k].members[i : i + 2], statements[k].relations[i : i + 1]
    step = Statement(members, relations, (), 0, 0)
    try:
        for _ in Trial((*statements[:k], step), scene).run(only=(k,), ignore=True):
            pass
        return True
    except PageError:
        return False


# ---- what says less than it seems to: a condition that does nothing, or says it all ----------------

CHANGES: tuple[Callable[[Node], Node], ...] = (  # under which what is zero stays zero
    lambda x: Node("prod", ((Node("number", (2.5,)), x),), x.start, x.end),
    lambda x: Node("had", (Node("had", (x, x), x.start, x.end), x), x.start, x.end),
)


def refuse_vacuous(statements: tuple, scenes: tuple) -> None:
    """A PageError for what holds by itself, or has a part that makes no difference."""
    forms = zip(claims(statements), numbered(statements), inserted(statements), strict=True)
    for (_, statement), plain, whole in forms:
        pairs = list(_pairs(plain))
        for number, (a, _, b) in enumerate(pairs, 1):
            if a == b:
                start = statement.members[number].start
                raise PageError("value", "the sides are the same, with what they are defined to be", start)
        for condition in plain.conditions:
            says = [one for one in _pairs(condition) if any(_says(one, other) for other in pairs)]
            if condition.word != "within" and says:
                raise PageError("value", "the condition is what the statement says", condition.start)
        refuse_idle_parts(statements, statement, scenes)
        if statement.conditions and not any(map(is_constant, statement.members)):
            refuse_unmoved(whole, scenes)


def _pairs(one: Any) -> Iterator[tuple[Node, str, Node]]:
    """The neighbours in a statement, or in a condition, with the relation between them."""
    return zip(one.members, one.relations, one.members[1:])


def _says(one: tuple, other: tuple) -> bool:
    turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(one[1], one[1])
    return other in (one, (one[2], turned, one[0]))


def refuse_idle_parts(statements: tuple, statement: Statement, scenes: tuple) -> None:
    """A part of a condition without which the same indices of the same settings meet it."""
    parts = [one._replace(members=one.members[i : i + 2], relations=one.relations[i : i + 1])
             for one in statement.conditions if one.word != "within" for i in range(len(one.relations))]
    if len(parts) < 2:
        return
    trials = [Trial(statements, scene) for scene in scenes]
    held = [[trial.holds(frame, part) for part in parts]  # which parts are met, at each place
            for trial in trials for frame in trial.frames(statement, ignore=True)]
    for k, part in enumerate(parts):
        if all(all(met) == all(met[:k] + met[k + 1 :]) for met in held):
            message = "without this part of its condition it says the same in every setting: delete it"
            raise PageError("value", message, part.members[0].start)


def refuse_unmoved(statement: Statement, scenes: tuple) -> None:
    """A letter that moves no side where the condition is met, as what is zero there."""
    cast = scenes[0].cast
    names = {name for member in statement.members for name in _underived(member) if cast.knows(name[1])}
    for name in sorted(names):
        moved = [tuple(_moved(member, name, change) for member in statement.members) for change in CHANGES]
        if not any(_differ(statement, members, scene) for members in moved for scene in scenes):
            message = f"where the condition is met, {''.join(name)} makes no difference to any side"
            raise PageError("value", message, statement.conditions[0].start)


def _underived(node: Node) -> set[tuple]:
    """The names in a node, but for those of derivatives."""
    if node.kind == "name":
        return {node.args}
    return set() if node.kind == "partial" else set().union(*map(_underived, node.children))


def _moved(node: Node, name: tuple, change: Callable[[Node], Node]) -> Node:
    """A node with another value for a letter."""
    if node.base.kind == "name":
        return change(node) if node.base.args == name else node
    if node.kind == "index":
        return replace(node, args=(_moved(node.base, name, change), node.subs))
    return node if node.kind == "partial" else node.changed(lambda part: _moved(part, name, change))


def _differ(statement: Statement, moved: tuple, scene: Scene) -> bool:
    """Whether a side changes at some indices that meet the condition."""
    pairs = [(a, b) for a, b in zip(statement.members, moved) if a != b]
    return any(not np.array_equal(frame.evaluate(a).x, frame.evaluate(b).x)
               for frame in Trial((statement,), scene).frames(statement) for a, b in pairs)
