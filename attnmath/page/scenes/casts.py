"""The casts of a book: chapters/_casts/<stem>.py has those of a chapter, as CASTS.

A cast is written in one chapter; another one that has it gives its name there. The shape of a letter
stands in the tables of letters: those of its chapter, the notation's, those of chapters that its own
names. What defines a letter stands on the page of its chapter. A file says what is found in neither.
"""

import hashlib
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from attnmath.page.language.chapter import Chapter, Display, PageFault
from attnmath.page.language.letters import FAMILY_INDICES, NUMBER, Line, Table, near, shapes_in, tables_of
from attnmath.page.language.nodes import Node, PageError, Statement
from attnmath.page.scenes.cast import Cast, Letter, scope

Axes = Callable[[str], tuple[str, ...]]
Written = Mapping[str, tuple[Cast | str, ...]]
FOLDER = "chapters/_casts"


def written(root: Path) -> Written:
    """What the files say, by the stems of their chapters."""
    folder = root / FOLDER
    package = "casts_" + hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    sys.modules[package] = ModuleType(package)
    sys.modules[package].__path__ = [str(folder)]
    importlib.invalidate_caches()
    keeps, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # a file may change twice in a second
    try:
        return {path.stem: _casts_in(path, package) for path in sorted(folder.glob("[!_]*.py"))}
    finally:
        sys.dont_write_bytecode = keeps


def _casts_in(path: Path, package: str) -> tuple[Cast | str, ...]:
    try:
        casts = getattr(importlib.import_module(f"{package}.{path.stem}"), "CASTS", None)
    except Exception as error:
        said = f"{type(error).__name__}: {getattr(error, 'msg', error)}"
        raise PageFault(f"{FOLDER}/{path.name}", _line_of(error, path), 1, "", said) from error
    if not isinstance(casts, tuple) or not all(isinstance(one, Cast | str) for one in casts):
        message = "a file of casts has CASTS, a tuple of casts, or of the names of casts of other chapters"
        raise PageFault(f"{FOLDER}/{path.name}", 1, 1, "", message)
    return tuple(one if isinstance(one, str) else replace(one, file=_place(path, one)) for one in casts)


def _line_of(error: Exception, path: Path) -> int:
    """The last line of a file that had a part in an error."""
    found = [frame.lineno for frame in extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return (error.lineno if isinstance(error, SyntaxError) else None) or [1, *filter(None, found)][-1]


def _place(path: Path, cast: Cast) -> str:
    """The file and the line where a cast has its name."""
    for one in (path, *sorted(path.parent.glob("_*.py"))):
        found = re.search(rf'^.*\bname="{re.escape(cast.name)}"', one.read_text(encoding="utf-8"), re.M)
        if found:
            return f"{FOLDER}/{one.name}:{found.string.count(chr(10), 0, found.start()) + 1}"
    return f"{FOLDER}/{path.name}:1"


def completed(chapters: list[Chapter], casts: Written) -> tuple[dict[str, tuple[Cast, ...]], list[PageFault]]:
    """The casts of each chapter, with what their files do not say; and faults: what is said nowhere."""
    pages, shapes, faults = {c.stem: c for c in chapters}, _Shapes(chapters), _unknown(casts)
    given: dict[str, Cast] = {}
    whole: dict[str, Cast] = {}
    for stem, cast in _each(casts):
        if (first := given.setdefault(cast.name, cast)) is not cast:
            raise _fault(cast, f"the name {cast.name!r} is taken: a cast in {first.file} has it")
        if cast.name not in whole:
            cast = _shaped(cast, shapes.of(cast, stem), faults)
            whole[cast.name] = _defined(cast, pages[stem], faults) if stem in pages else cast

    def named(stem: str) -> list[Cast]:
        names = [one if isinstance(one, str) else one.name for one in casts[stem]]
        return [whole[name] for name in names if name in whole]

    def joined(stem: str, cast: Cast) -> Cast:
        return _joined(cast, shapes.of(cast, stem), pages.get(stem), shapes.new(stem, named(stem)))

    for stem, cast in _each(casts):
        whole[cast.name] = joined(stem, whole[cast.name])
    found = {}
    for stem in casts:
        both = [(one, joined(stem, one)) for one in named(stem)]
        found[stem] = tuple(new if new is old else replace(new, name=f"{new.name} in {stem}") for old, new in both)
    return found, faults


def _unknown(casts: Written) -> list[PageFault]:
    """Faults: names of casts that no chapter has."""
    named = {(stem, one) for stem, of_chapter in casts.items() for one in of_chapter if isinstance(one, str)}
    names = {cast.name for _, cast in _each(casts)}
    return [PageFault(f"{FOLDER}/{stem}.py", 1, 1, "", f"no chapter has a cast {one!r}")
            for stem, one in sorted(named) if one not in names]


def repeated(chapters: list[Chapter], casts: Written) -> list[PageFault]:
    """Faults: shapes in a file of casts that stand in a table; files of chapters that there are not."""
    shapes, stems = _Shapes(chapters), {chapter.stem for chapter in chapters}
    lost = sorted(casts.keys() - stems)
    faults = [PageFault(f"{FOLDER}/{stem}.py", 1, 1, "", f"there is no chapter {stem}.md") for stem in lost]
    for stem, table in shapes.tables.items():
        for letter, lines in table.items():
            axes = {line.axes for line in lines if line.axes and not line.member}
            if len(axes) > 1:
                shapes_said = " and ".join(" × ".join(one) for one in sorted(axes))
                message = f"the table of letters says two shapes of {letter}: {shapes_said}"
                faults.append(PageFault(f"chapters/{stem}.md", 1, 1, "", message))
    for stem, cast in _each(casts):
        for letter, spec in cast.letters.items():
            if spec.axes and spec.axes == shapes.of(cast, stem)(letter):
                message = "has this shape in a table of letters: do not repeat it"
                faults.append(_fault(cast, f"{letter} of the cast {cast.name!r} {message}"))
    return faults


def _each(casts: Written) -> Iterator[tuple[str, Cast]]:
    return ((stem, one) for stem, of_chapter in casts.items() for one in of_chapter if isinstance(one, Cast))


def _fault(cast: Cast, message: str) -> PageFault:
    path, _, line = cast.file.partition(":")
    return PageFault(path or FOLDER, int(line or 1), 1, "", message)


class _Shapes:
    """The shapes in the tables of letters."""

    def __init__(self, chapters: list[Chapter]):
        self.texts = {c.stem: c.text for c in chapters}
        self.tables = {c.stem: shapes_in(tables_of(c.stem, c.text)) for c in chapters}

    def of(self, cast: Cast, stem: str) -> Axes:
        """Of a cast that is written in this chapter: a letter -> its axes, () if no table has them."""
        stem = cast.tables or stem
        tables = [self.tables.get(one, {}) for one in near(stem, self.texts.get(stem, ""))]
        return lambda letter: _axes(cast, letter, tables)

    def new(self, stem: str, casts: list[Cast]) -> list[str]:
        """The letters at the end of a chapter that none of its casts has."""
        return [letter for letter in self.tables.get(stem, ()) if not any(cast.knows(letter) for cast in casts)]


def _axes(cast: Cast, letter: str, tables: list[Table]) -> tuple[str, ...]:
    family, line = _line(cast, next((table[letter] for table in tables if letter in table), []))
    if line.like:
        with_axes = ([one for one in table.get(line.like, []) if one.axes] for table in tables)
        line = min(next(filter(None, with_axes), []), default=Line())
    axes = (*family, *line.axes) if line.axes else ()
    return tuple("*".join(cast.same.get(size, size) for size in axis.split("*")) for axis in axes)


def _line(cast: Cast, lines: list[Line]) -> tuple[tuple[str, ...], Line]:
    """The line that speaks of a letter as this cast has it, and the axis of its family."""
    for index, size in FAMILY_INDICES:
        for line in lines:
            if line.member == index and size in cast.sizes:
                return (size,), line
    return (), min(lines, default=Line())  # without an index, if there is such a line


def _shaped(cast: Cast, axes: Axes, faults: list[PageFault]) -> Cast:
    """The cast with the shapes that its file does not say; a letter that has none goes on as a number."""
    letters = {}
    for letter, spec in cast.letters.items():
        letters[letter] = spec._replace(axes=spec.axes or axes(letter) or NUMBER)
        lost = {size for axis in letters[letter].axes for size in axis.split("*")} - {*cast.sizes, "1"}
        if not spec.axes and not axes(letter):
            message = f"{letter} has no line with a shape in a table of letters: write it there, or here,"
            faults.append(_fault(cast, f"{message} in the cast {cast.name!r}"))
        elif lost:
            message = f"{letter} has the size {min(lost)}, of which the cast {cast.name!r} says nothing"
            faults.append(_fault(cast, message))
            letters[letter] = spec._replace(axes=NUMBER)
    for one in (*cast.outputs, *cast.constants):
        if one not in letters:
            faults.append(_fault(cast, f"{one} is none of the letters of the cast {cast.name!r}: drawn, or made"))
            letters[one] = Letter(axes(one) or NUMBER)
    return replace(cast, letters=letters) if letters != cast.letters else cast


def _defined(cast: Cast, page: Chapter, faults: list[PageFault]) -> Cast:
    """The cast with the labels that its file does not say."""
    found = {}
    for origin in {spec.origin for spec in cast.letters.values() if not spec.is_primal and ":" not in spec.origin}:
        try:
            found[origin] = _definition(cast, origin, page)
        except PageFault as fault:
            faults.append(fault)
    letters = {k: spec._replace(origin=found.get(spec.origin, spec.origin)) for k, spec in cast.letters.items()}
    return replace(cast, letters=letters) if found else cast


def _joined(cast: Cast, axes: Axes, page: Chapter | None, new: list[str]) -> Cast:
    """The cast with the letters of the tables that no cast names, if a display makes them of its own."""
    for display in page.displays if page else ():
        for letter in new if display.kind in ("eq", "prp") else ():
            if cast.knows(letter) or not axes(letter) or set(axes(letter)) - {*cast.sizes, "1"}:
                continue
            larger = replace(cast, letters=cast.letters | {letter: Letter(axes(letter), display.label)})
            try:
                found = define(larger, letter, display.statements)
            except PageError:
                continue
            if found and found.body.names <= {("", name) for name in (*cast.letters, *cast.rows, *found.indices)}:
                cast = larger
    return cast


def _definition(cast: Cast, origin: str, page: Chapter) -> str:
    """The label of the first display of a page that defines all letters with this origin."""
    group = [letter for letter, spec in cast.letters.items() if spec.origin == origin]
    hints = []
    for display in page.displays:
        try:
            if display.kind != "err" and all(_defines(display, cast, letter) for letter in group):
                return display.label
        except PageError as error:
            hints.append(f"; in {display.label}, {error.message}")
    message = f"no display of {page.path} defines {', '.join(group)} of the cast {cast.name!r}"
    raise _fault(cast, f"{message}: write which label does" + (hints[0] if hints else ""))


def _defines(display: Display, cast: Cast, letter: str) -> bool:
    """Whether a display says what a letter is, of each member of a family, by others than itself."""
    found = define(cast, letter, display.statements)
    family = len(cast.letters[letter].axes) - 2
    return found is not None and len(found.indices) >= family and ("", letter) not in found.body.names


@dataclass(frozen=True)
class Definition:
    """`letter_{indices} := body`, as a display of the page gives it."""

    indices: tuple
    body: Node
    ranges: dict  # index -> axis name
    is_grouped: bool = False  # g is the group of h

    @property
    def is_late(self) -> bool:
        """It speaks of gradients or derivatives: found after them, not differentiated."""
        return self.body.has_derivative


def define(cast: Cast, letter: str, statements: tuple[Statement, ...]) -> Definition | None:
    """The first statement whose left side is the letter, or its entries or rows."""
    for statement in statements:
        left, body, *_ = statement.members
        base, subs = left.base, left.subs
        if base.kind != "name" or base.args[0] or statement.relations[0] != "=":
            continue
        if any(sub.kind != "name" or sub.args[0] for sub in subs):
            continue
        if cast.rows.get(base.args[1], base.args[1]) == letter:
            grouped = [c[2] for c in statement.conditions] == [("in",)]
            if statement.conditions and not grouped:
                raise PageError("value", "a definition has no condition", left.start)
            found = scope(statement, cast, {})
            names = tuple(sub.args[1] for sub in subs)
            return Definition(names, body, found.axis, grouped)
    return None
