"""Judges every misprint of a display: it must be rejected, or be the same statement.

A misprint that survives is either an identity, listed in `tests/equivalent_misprints.txt`
with the identity that makes it one, or a weak check. Those that make a published formula true are its
corrections.
"""

import operator
from collections import Counter, deque
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from attnmath.page.language.chapter import Display
from attnmath.page.language.nodes import Node, PageError, Statement, names_in
from attnmath.page.language.syntax import parse, squeezed, unsized
from attnmath.page.misprints.corrections import corrections
from attnmath.page.misprints.edits import Misprint
from attnmath.page.misprints.mutations import STRENGTHENED, misprints
from attnmath.page.scenes import values as v
from attnmath.page.scenes.cast import Cast
from attnmath.page.scenes.evaluate import Frame
from attnmath.page.scenes.oracles import Independent
from attnmath.page.scenes.values import Value
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.judge import hold
from attnmath.page.verdicts.trial import TOO_LARGE_FREE, Trial, compare, is_constant

REJECTED = ("value", "shape", "index", "letter", "grammar", "function", "label", "condition")

ALIGNED = r"\begin{{aligned}}{{}}{}\end{{aligned}}"


class Survivor(NamedTuple):
    label: str
    statement: str  # the misprinted statement, spaces squeezed
    kind: str


@dataclass
class Tally:
    """What became of the misprints of one display."""

    label: str
    rejected: Counter
    same: int = 0
    survivors: tuple = ()
    corrections: tuple = ()  # of a published formula that fails: what makes it true

    @property
    def tried(self) -> int:
        return sum(self.rejected.values()) + len(self.survivors) + len(self.corrections)


def tally(book: Book, display: Display) -> Tally:
    """Tries every misprint of a display that holds; of a published formula that fails, too."""
    with np.errstate(all="ignore"):
        cast = book.cast_of(display)
        if display.kind == "err":
            rejected, better = corrections(book, display, cast)
            return Tally(display.label, rejected, corrections=better)
        display = replace(display, text=unsized(display.text))
        judged = Original(book, display, cast)
        made = misprints(display.text, display.statements, cast, is_rule=display.kind == "eq")
        verdicts = list(map(judged.verdict, made))
    survivors = tuple(one for one in verdicts if isinstance(one, Survivor))
    rejected = Counter(one for one in verdicts if isinstance(one, str))
    same = rejected.pop("same", 0)
    return Tally(display.label, rejected, same, survivors)


class Original:
    """A display in its scenes, ready to be compared with its misprints."""

    def __init__(self, book: Book, display: Display, cast: Cast):
        self.book, self.display, self.cast = book, display, cast
        self.statements = display.statements
        self.scenes = book.stage(display)
        self.mine = {k for k, spec in cast.letters.items() if spec.origin == display.label}  # what it defines

    def verdict(self, misprint: Misprint) -> str | Survivor:
        """The kind of the rejection, 'same', or the survivor."""
        text = misprint.apply(self.display.text)
        statements, changed = self.statements, None
        try:
            statements = self.read(misprint, text)
            changed = self.changed(statements)
            if changed == ():
                return "same"
            if self.is_in_condition(misprint) and changed and self.meets_less(statements, changed):
                return "condition"
            if misprint.kind == STRENGTHENED:
                return self.survivor(misprint, text, changed)
            hold(self.book, self.display.label, statements, self.scenes, changed, self.trials)
        except PageError as error:
            is_final = error.kind != "value" or not self.redefines(statements, changed)
            if is_final or self.is_noticed(text, statements):
                return error.kind
        return "same" if self.is_same(statements) else self.survivor(misprint, text, changed)

    def read(self, misprint: Misprint, text: str) -> tuple:
        """The statements of the text; where one alone is changed, the others are known."""
        whole = self.display.text
        for k, one in enumerate(self.statements):
            others = (*self.statements[:k], *self.statements[k + 1 :])
            is_apart = all(other.stop <= one.start or one.stop <= other.start for other in others)
            if is_apart and one.start <= misprint.start and misprint.end <= one.stop:
                inside = misprint._replace(start=misprint.start - one.start, end=misprint.end - one.start)
                found = parse(ALIGNED.format(inside.apply(whole[one.start : one.stop])))
                if len(found) == 1:
                    return *self.statements[:k], shared(one, found[0]), *self.statements[k + 1 :]
        return parse(text)

    @cached_property
    def trials(self) -> list[Trial]:
        """The display as it is, in its scenes."""
        found = [Trial(self.statements, scene) for scene in self.book.all_paired(self.statements, self.scenes)]
        for trial in found:
            deque(trial.run(), maxlen=0)
        return found

    def survivor(self, misprint: Misprint, text: str, changed: tuple | None) -> Survivor:
        """The first line that was changed, as it stands now."""
        shown = parse(text)[(changed or (0,))[0]]
        return Survivor(self.display.label, squeezed(text[shown.start : shown.stop]), misprint.kind)

    def is_in_condition(self, misprint: Misprint) -> bool:
        """Whether a condition changes, which stays one."""
        conditions = [condition for statement in self.statements for condition in statement.conditions]
        return any(one.start < misprint.start and misprint.end <= one.end for one in conditions)

    def meets_less(self, statements: tuple, changed: tuple) -> bool:
        """Whether a condition is met only where it was, and in some setting at fewer indices."""
        fewer = False
        for scene in self.scenes:
            old, new = Trial(self.statements, scene), Trial(statements, scene)
            for k in changed:
                before, now = ([f.index for f in one.frames(one.statements[k])] for one in (old, new))
                if any(index not in before for index in now):
                    return False
                fewer |= len(now) < len(before)
        return fewer

    def redefines(self, statements: tuple, changed: tuple | None) -> bool:
        """Whether a line that was changed may say what a letter of the scenes is."""
        if changed is None:
            return bool(self.mine)
        lefts = [said[k].members[0].base for said in (self.statements, statements) for k in changed]
        named = {left.args[1] for left in lefts if left.kind == "name"}
        return not self.mine.isdisjoint(self.cast.rows.get(name, name) for name in named)

    def is_noticed(self, text: str, statements: tuple) -> bool:
        """Whether the book turns red with this misprint in a definition.

        The scenes then follow the misprint, so some display, or function, must disagree.
        """
        changed = self.display.reworded(text, statements)
        book = self.book.with_display(changed)
        try:
            for display in (changed, *self.speaking):
                like = self.trials if display is changed else ()
                hold(book, display.label, display.statements, book.scenes(self.cast), like=like)
        except PageError:
            return True
        return False

    @cached_property
    def speaking(self) -> list[Display]:
        """The other displays that speak of what this one defines, plainest first."""
        scene = self.scenes[0]
        late = all(scene.definitions[k].is_late for k in self.mine)
        moved = {letter for k in self.mine for letter in scene.downstream(k)}
        found: list[tuple] = []
        for display in self.book.displays.values():
            if display.label == self.display.label or not self.is_mine(display):
                continue
            names = names_in(display.statements)
            letters = {self.cast.rows.get(name, name) for prefix, name in names if not prefix}
            derived = not late and any(prefix for prefix, _ in names)
            if letters & moved or derived:
                found.append((not letters & self.mine, derived, len(found), display))
        return [display for *_, display in sorted(found, key=lambda item: item[:3])]

    def is_mine(self, display: Display) -> bool:
        """Whether a display is run on this cast, and must hold."""
        if display.kind == "err" or self.cast not in self.book.casts.get(display.stem, ()):
            return False
        try:
            return self.book.cast_of(display) is self.cast
        except PageError:
            return False

    def changed(self, statements: tuple) -> tuple | None:
        """The statements that a misprint touches; None for all."""
        if len(statements) != len(self.statements):
            return None
        pairs = enumerate(zip(statements, self.statements))
        touched = tuple(k for k, (a, b) in pairs if _said(a) != _said(b))
        return None if any(statements[k].is_local for k in touched) else touched

    @cached_property
    def free(self) -> list[Trial]:
        """The display as it is, of any matrices."""
        return [Trial(self.statements, scene) for scene in self.book.scenes(self.cast, Independent)]

    def is_same(self, statements: tuple) -> bool:
        """Whether both say the same of any matrices: no misprint, another way to write it."""
        try:
            forms = [[_form(one) for one in said] for said in (self.statements, statements)]
            return forms[0] == forms[1] and all(self.is_same_in(old, statements) for old in self.free)
        except (PageError, ValueError):
            return False

    def is_same_in(self, old: Trial, statements: tuple) -> bool:
        new = Trial(statements, old.scene, old)
        for a, b in zip(self.statements, statements):
            if a.is_local:
                continue
            pairs: list[Any] = [(a, b), *zip(a.conditions, b.conditions)]
            for f, g in zip(old.frames(a, True), new.frames(b, True), strict=True):
                if not all(_same_members(f, g, p.members, q.members, p.relations) for p, q in pairs):
                    return False
        return True


def _same_members(f: Frame, g: Frame, old: tuple, new: tuple, relations: tuple) -> bool:
    """Whether both say the same.

    `x = 0` is also `-x = 0`; beside a constant, the transpose of a matrix says the same.
    """
    constant = len(relations) == 1 and is_constant(old[-1])
    zero = constant and relations == ("=",) and old[-1].kind == "number"
    for a, b in zip(old, new):
        if a != b:
            x, y = f.evaluate(a), g.evaluate(b)
            forms = [y, v.negative(y)] if zero else [y]
            forms += [form.T for form in forms] if constant and not y.is_number else []
            both_nan = np.isnan(x.x).any() and np.isnan(y.x).any()  # a logarithm, signed
            if not both_nan and not any(_is_equal(x, form) for form in forms):
                return False
    return True


def _is_equal(x: Value, y: Value) -> bool:
    try:
        compare(x, "=", y, largest=TOO_LARGE_FREE)
    except PageError:
        return False
    return True


def shared(old: Statement, new: Statement) -> Statement:
    """The new one with the very parts of the old one where they are equal: what has a value keeps it."""
    pairs = zip(old.conditions, new.conditions)
    kept = [b._replace(members=_shared(a.members, b.members)) for a, b in pairs]
    conditions = (*kept, *new.conditions[len(kept) :])
    return replace(new, members=_shared(old.members, new.members), conditions=conditions)


def _shared(old: Any, new: Any) -> Any:
    if isinstance(old, tuple) and isinstance(new, tuple):
        parts = (*map(_shared, old, new), *new[len(old) :])
        return old if len(parts) == len(old) and all(map(operator.is_, old, parts)) else parts
    if isinstance(old, Node) and isinstance(new, Node):
        args = _shared(old.args, new.args)
        return old if old.kind == new.kind and args is old.args else replace(new, args=args)
    return old if old == new else new


def _said(one: Statement) -> tuple:
    """What a statement says, wherever it stands."""
    return one.members, one.relations, [condition[:3] for condition in one.conditions], one.shape


def _form(one: Statement) -> tuple:
    """Its relations, on how many sides, under how many conditions of which form."""
    conditions = [(condition.word, condition.relations, len(condition.members)) for condition in one.conditions]
    return one.relations, len(one.members), one.shape, conditions
