"""Judges every misprint of a display: it must be rejected, or be the same statement.

A misprint that survives is either an identity, listed in `tests/equivalent_misprints.txt`
with the identity that makes it one, or a weak check.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attnmath.page import _values as v
from attnmath.page._book import Book
from attnmath.page._cast import Cast
from attnmath.page._chapter import Display
from attnmath.page._conditions import STRENGTHENED
from attnmath.page._corrections import corrections
from attnmath.page._edits import Misprint
from attnmath.page._judge import hold
from attnmath.page._mutations import misprints, squeezed
from attnmath.page._nodes import PageError
from attnmath.page._oracles import Independent
from attnmath.page._syntax import parse, plain
from attnmath.page._trial import LARGEST_FREE, Trial, compare, is_constant
from attnmath.page._values import Value

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
        display = replace(display, text=plain(display.text))
        judged = Judged(book, display, cast)
        out = Tally(display.label, Counter())
        survivors = []
        is_rule = display.kind == "eq"
        for misprint in misprints(display.text, display.statements, cast, is_rule):
            verdict = judged.verdict(misprint)
            if verdict == "same":
                out.same += 1
            elif isinstance(verdict, Survivor):
                survivors.append(verdict)
            else:
                out.rejected[verdict] += 1
        out.survivors = tuple(survivors)
    return out


class Judged:
    """A display in its scenes, ready to be compared with its misprints."""

    def __init__(self, book: Book, display: Display, cast: Cast):
        self.book, self.display, self.cast = book, display, cast
        self.statements = display.statements
        self.scenes = book.stage(display)
        self.free = book.scenes(cast, Independent)
        self.defines = any(s.origin == display.label for s in cast.letters.values())

    def verdict(self, misprint: Misprint) -> str | Survivor:
        """The kind of the rejection, 'same', or the survivor."""
        text = misprint.apply(self.display.text)
        try:
            statements = self.read(misprint, text)
            changed = self.changed(statements)
            if changed == ():
                return "same"
            if self.is_in_condition(misprint) and changed and self.meets_less(statements, changed):
                return "condition"
            if misprint.kind == STRENGTHENED:
                return self.survivor(misprint, text, changed)
            hold(self.book, self.display.label, statements, self.scenes, changed)
        except PageError as error:
            if error.kind != "value" or not self.defines or self.is_noticed(text):
                return error.kind
        if self.is_same(statements):
            return "same"
        return self.survivor(misprint, text, changed)

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
                    return *self.statements[:k], found[0], *self.statements[k + 1 :]
        return parse(text)

    def survivor(self, misprint: Misprint, text: str, changed: tuple | None) -> Survivor:
        """The first line that was changed, as it stands now."""
        shown = parse(text)[(changed or (0,))[0]]
        return Survivor(self.display.label, squeezed(text[shown.start : shown.stop]), misprint.kind)

    def is_in_condition(self, misprint: Misprint) -> bool:
        """Whether a condition changes, which stays one."""
        spans = [c[3:] for s in self.statements for c in s.conditions]
        return any(a < misprint.start and misprint.end <= b for a, b in spans)

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

    def is_noticed(self, text: str) -> bool:
        """Whether the book turns red with this misprint in a definition.

        The scenes then follow the misprint, so some display, or function, must disagree.
        """
        changed = replace(self.display, text=text)
        book = self.book.with_display(changed)
        try:
            for display in (changed, *self.speaking):
                hold(book, display.label, display.statements, book.scenes(self.cast))
        except PageError:
            return True
        return False

    @cached_property
    def speaking(self) -> list[Display]:
        """The other displays that speak of what this one defines, plainest first."""
        scene = self.scenes[0]
        mine = [k for k, s in self.cast.letters.items() if s.origin == self.display.label]
        late = all(scene.definitions[k].is_late for k in mine)
        moved = {letter for k in mine for letter in scene.downstream(k)}
        found = []
        for display in self.book.displays.values():
            if display.label == self.display.label or not self.is_mine(display):
                continue
            names = {n.args for s in display.statements for n in s.nodes() if n.kind == "name"}
            plain = {self.cast.rows.get(name, name) for prefix, name in names if not prefix}
            derived = not late and any(prefix for prefix, _ in names)
            if plain & moved or derived:
                found.append((not plain & set(mine), derived, len(found), display))
        return [display for *_, display in sorted(found, key=lambda item: item[:3])]

    def is_mine(self, display: Display) -> bool:
        """Whether a display is run on this cast, and must hold."""
        casts = self.book.casts.get(Path(display.path).stem, ())
        if display.kind == "err":
            return False
        try:
            return self.cast in casts and self.book.cast_of(display) is self.cast
        except PageError:
            return False

    def changed(self, statements: tuple) -> tuple | None:
        """The statements that a misprint touches; None for all."""
        if len(statements) != len(self.statements):
            return None
        pairs = enumerate(zip(statements, self.statements))
        touched = tuple(k for k, (a, b) in pairs if a != b and not _equal(a, b))
        if any(statements[k].is_local for k in touched):
            return None
        return touched

    def is_same(self, statements: tuple) -> bool:
        """Whether both say the same of any matrices: no misprint, another way to write it."""
        if len(statements) != len(self.statements):
            return False
        return all(self.is_same_in(scene, statements) for scene in self.free)

    def is_same_in(self, scene, statements: tuple) -> bool:
        try:
            old, new = Trial(self.statements, scene), Trial(statements, scene)
            for a, b in zip(self.statements, statements):
                if not _alike(a, b):
                    return False
                if a.is_local:
                    continue
                for f, g in zip(old.frames(a, True), new.frames(b, True), strict=True):
                    _same_members(f, g, a.members, b.members, a.relations)
                    for p, q in zip(a.conditions, b.conditions):
                        _same_members(f, g, p[1], q[1], p[2])
        except (PageError, ValueError):
            return False
        return True


def _same_members(f, g, old: tuple, new: tuple, relations: tuple) -> None:
    """A PageError unless both say the same.

    `x = 0` is also `-x = 0`; beside a constant, the transpose of a matrix says the same.
    """
    constant = len(relations) == 1 and is_constant(old[-1])
    zero = constant and relations == ("=",) and old[-1].kind == "number"
    for x, y in zip(old, new):
        if x != y:
            x, y = f.evaluate(x), g.evaluate(y)
            if not (np.isnan(x.x).any() and np.isnan(y.x).any()):  # a logarithm, signed
                _same(x, y, zero, constant)


def _same(x: Value, y: Value, up_to_sign: bool, up_to_transpose: bool) -> None:
    """A PageError unless x = y; or -y, or their transposes, where that says the same."""
    forms = [y, v.negative(y)] if up_to_sign else [y]
    if up_to_transpose and not y.is_number:
        forms += [form.T for form in forms]
    for form in forms[:-1]:
        try:
            compare(x, "=", form, largest=LARGEST_FREE)
            return
        except PageError:
            continue
    compare(x, "=", forms[-1], largest=LARGEST_FREE)


def _equal(a, b) -> bool:
    parts = [(one.members, one.relations, _conditions(one), one.shape) for one in (a, b)]
    return parts[0] == parts[1]


def _alike(a, b) -> bool:
    """The same relations, on as many sides, under as many conditions of the same form."""
    form = [[(c[0], c[2], len(c[1])) for c in one.conditions] for one in (a, b)]
    same = a.relations == b.relations and len(a.members) == len(b.members) and a.shape == b.shape
    return same and form[0] == form[1]


def _conditions(statement) -> tuple:
    return tuple(condition[:3] for condition in statement.conditions)
