"""What is found of each display: its verdict, its proof, its misprints; kept while its key stays.

A key is one number for all that a row depends on:
- the engine: the files of this module, the versions of all that is installed;
- its own text, the derivation that argues for it, and the misprints that are listed as true;
- the casts of its chapter, and the files of the functions that fill them;
- the displays that define the letters of these casts;
- for a display that defines a letter: all displays that speak of it, with the casts of their chapters;
- for each function that is named in these texts: the files that it is made of.
"""

import os
import pickle
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import SequenceMatcher
from functools import cache, partial
from inspect import isfunction
from pathlib import Path
from types import EllipsisType, NoneType
from typing import Any, NamedTuple

import numpy as np

import attnmath
from attnmath.page.language.chapter import Display, PageFault
from attnmath.page.language.nodes import PageError
from attnmath.page.language.syntax import parse, readable, squeezed
from attnmath.page.ledger.imports import Imports, digest, installed
from attnmath.page.misprints.edits import OTHER_FUNCTION
from attnmath.page.misprints.misprints import Survivor, Tally, tally
from attnmath.page.scenes.evaluate import is_rule
from attnmath.page.verdicts.book import Book, each_cast
from attnmath.page.verdicts.judge import Verdict, hold, judge
from attnmath.page.verdicts.proofs import Exact, Exactly, exactly, prove_display
from attnmath.page.verdicts.published import Refuted

PACKAGE = Path(attnmath.__file__).parent
FACE = "attnmath"  # it leads to all functions: a display names its own


class RowKeys:
    """The keys of a book's displays."""

    def __init__(self, book: Book, root: Path):
        self.book, self.listed = book, listed_in(root / LISTED)
        self.imports = Imports({"attnmath": PACKAGE, "chapters": root / "chapters"})
        self.content = cache(lambda path: digest(path.read_bytes()))
        modules = self.imports.modules
        self.stop = self.imports.files(modules[__name__], stop={modules[FACE]})
        self.engine = digest(installed(), self.contents(self.stop))
        casts = {cast.name: cast for of_chapter in book.casts.values() for cast in of_chapter}
        self.files = cache(lambda path: self.contents(self.imports.files(path, stop=self.stop)))
        self.cast = cache(lambda name: self.described(casts[name]))
        self.of = cache(self._of)  # the key of a display

    def contents(self, files: Collection[Path]) -> list[tuple[str, str]]:
        return sorted((self.imports.place(path), self.content(path)) for path in files)

    def _of(self, display: Display) -> str:
        book, stem = self.book, display.stem
        letters = self.letters(stem)
        listed = [(e.statement, e.identity) for e in self.listed if e.label == display.label]
        texts = [(display.label, display.text), *self.derivation(display), *letters]
        texts += [("", identity) for _, identity in listed]
        defined = {cast.name for cast in book.casts.get(stem, ()) if display.label in origins(cast)}
        stems = [other for other, casts in book.casts.items() if defined & {cast.name for cast in casts}]
        for chapter in book.chapters:
            if chapter.stem in stems:
                texts += [(d.label, d.text) for d in chapter.displays] + self.letters(chapter.stem)
        casts = [(one, [self.cast(cast.name) for cast in book.casts.get(one, ())]) for one in (stem, *stems)]
        return digest(display.path, texts, listed, casts, self.functions(texts))

    def letters(self, stem: str) -> list[tuple[str, str]]:
        """The displays that define the letters of a chapter's casts; what else their labels promise is theirs."""
        labels = sorted({label for cast in self.book.casts.get(stem, ()) for label in origins(cast)})
        found = map(self.book.displays.get, labels)
        return [("", display.text if display else "") for display in found]

    def derivation(self, display: Display) -> list[tuple[str, str]]:
        """What may argue for it, and whether that stands above it on its page."""
        found = self.book.displays.get(f"why:{display.name}")
        if not found or found.path != display.path:
            return []
        return [(found.label, found.text), ("above", "") if found.line < display.line else ("below", "")]

    def functions(self, texts: list[tuple[str, str]]) -> list:
        """The functions that are named, and their files; None for what is no rule."""
        names = set().union(*map(named, texts))
        names |= {OTHER_FUNCTION[name] for name in names & OTHER_FUNCTION.keys()}
        homes = {name: getattr(attnmath, name).__module__ for name in sorted(names) if is_rule(name)}
        known = {name: self.files(self.imports.modules[home]) for name, home in homes.items()}
        return [(name, known.get(name)) for name in sorted(names)]

    def described(self, x: Any) -> Any:
        """A cast in texts; of the functions in it, the files that they are made of."""
        if isinstance(x, str | int | float | slice | EllipsisType | NoneType):
            return repr(x)
        if isinstance(x, tuple | list):
            return [type(x).__name__, *map(self.described, x)]
        if isinstance(x, dict):
            return [(self.described(key), self.described(value)) for key, value in x.items()]
        if is_dataclass(x):
            return [type(x).__name__, *(self.described(getattr(x, field.name)) for field in fields(x))]
        if isfunction(x):
            held = [cell.cell_contents for cell in x.__closure__ or ()]
            place = [x.__qualname__, x.__code__.co_firstlineno]
            files = self.files(Path(x.__code__.co_filename).resolve())
            return [*place, files, self.described([held, x.__defaults__, x.__kwdefaults__])]
        raise TypeError(f"a cast has {x!r}: what is it made of?")


def origins(cast: Any) -> set[str]:
    """The labels of the displays that define letters of a cast."""
    return {spec.origin for spec in cast.letters.values() if not spec.is_primal}


@cache
def named(text: tuple[str, str]) -> frozenset[str]:
    """The functions in a display, and the one that its label promises."""
    label, formula = text
    promised = {label[3:]} if label.startswith("eq:") else set()
    nodes = (node for statement in readable(formula) for node in statement.nodes())
    return frozenset(promised | {node.args[0] for node in nodes if node.kind == "func"})


# ---- the misprints that float64 takes for true: listed with their identity, judged exactly ----------


LISTED = Path("tests") / "equivalent_misprints.txt"


class Entry(NamedTuple):
    """A listed survivor: the label, the misprinted statement, why it is still true."""

    label: str
    statement: str
    identity: str
    line: int


def listed_in(path: Path) -> list[Entry]:
    """`label | misprinted statement | identity` in each line that is no comment; none without a file."""
    found = []
    for at, line in enumerate(path.read_text(encoding="utf-8").split("\n") if path.exists() else [], 1):
        if line.strip() and not line.startswith("#"):
            parts = [part.strip() for part in line.split(" | ")]
            if len(parts) != 3:
                raise ValueError(f"{path.name}:{at}: not 'label | misprint | identity'")
            label, statement, identity = parts
            found.append(Entry(label, statement, identity, at))
    return found


def identity_faults(book: Book, listed: list[Entry], path: Path) -> list[str]:
    """Entries whose identity does not hold where their display has to."""
    faults = []
    lines = {(e.label, e.identity): e.line for e in reversed(listed)}
    for (label, identity), line in sorted(lines.items()):
        try:
            if label not in book.displays:
                raise PageError("label", f"no display {label}")
            with np.errstate(all="ignore"):
                hold(book, "prp:identity", parse(identity), book.stage(book.displays[label]))
        except PageError as error:
            faults.append(f"{path.name}:{line}: {identity}: {error.message}")
    return faults


def proofs_or_faults(alive: Iterable[Entry | Survivor], book: Book, display: Display) -> list[Exact | str]:
    """The misprints of a display that float64 takes for true: proved, or refuted exactly."""
    found: list[Exact | str] = []
    for one in alive:
        try:
            found.append(_proof_of_misprint(book, display, one.statement))
        except PageError as error:
            found.append(f"{one.label}: float64 does not see it: {one.statement}: {error.message}")
    return found


def _proof_of_misprint(book: Book, display: Display, text: str) -> Exact:
    """The proof of a misprinted line; where it defines a letter, of the book with that letter."""
    old = [squeezed(display.text[s.start : s.stop]) for s in display.statements]
    k = max(range(len(old)), key=lambda i: SequenceMatcher(None, old[i], text).ratio())
    start, end = display.statements[k].start, display.statements[k].stop
    changed = replace(display, text=display.text[:start] + text + display.text[end:])
    lines = changed.statements
    if not lines[k].is_local:
        lines = (*(s for s in lines if s.is_local), lines[k])
    with np.errstate(all="ignore"):
        try:
            return exactly(book).statements(display, lines)
        except PageError:
            if display.label not in origins(book.cast_of(display)):
                raise
            return Exactly(book.with_display(changed)).proof(changed)


@dataclass(frozen=True)
class Row:
    """What was found of a display; of an inline relation, and at first, the verdict alone."""

    verdict: Verdict | Refuted
    proof: Exact | None = None
    tally: Tally | None = None
    survivors: tuple[str, ...] = ()  # how far the misprints are proved that float64 takes for true

    def of(self, display: Any) -> "Row":
        """The same, of the display as it stands on its page now."""
        proof = self.proof and replace(self.proof, display=display)
        return replace(self, verdict=replace(self.verdict, display=display), proof=proof)


class Shelf:
    """The rows that were found before by this state of the engine, below the folder of the book."""

    def __init__(self, root: Path, keys: RowKeys, is_empty: bool = False):
        self.keys = keys
        self.rows: dict[str, tuple[str, Row]] = {}
        self.path = root / "_build" / "rows" / f"{keys.engine}.pickle"
        if self.path.exists() and not is_empty:
            self.rows = pickle.loads(self.path.read_bytes())

    def row(self, display: Display) -> Row | None:
        """The row of a display, if nothing has changed that it depends on."""
        key, row = self.rows.get(display.label, ("", None))
        return row.of(display) if row and key == self.keys.of(display) else None

    def keep(self, rows: list[Row]) -> None:
        """These rows besides the others, in place of what another engine found."""
        for row in rows:
            display = row.verdict.display
            self.rows[display.label] = (self.keys.of(display), row.of(None))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(f".{os.getpid()}")
        new.write_bytes(pickle.dumps(self.rows))
        new.replace(self.path)
        for old in self.path.parent.glob("*.pickle"):
            if old != self.path:
                old.unlink(missing_ok=True)


def judged(book: Book, root: Path | None, displays: list[Display], shelf: Shelf | None) -> list[Row | PageFault]:
    """The row of each display with its verdict at least, or its fault."""
    rows: dict[str, Row | PageFault | None] = {d.label: shelf.row(d) if shelf else None for d in displays}
    new = [display for display in displays if not rows[display.label]]
    for display, verdict in zip(new, each_cast(partial(judge, counted=True), book, root, new)):
        rows[display.label] = verdict if isinstance(verdict, PageFault) else Row(verdict)
    if new and shelf:
        shelf.keep([row for d in new if isinstance(row := rows[d.label], Row)])
    return [row for display in displays if (row := rows[display.label])]


def with_proofs(book: Book, root: Path, rows: list[Row], shelf: Shelf) -> tuple[list[Row], list]:
    """The rows with proof and misprints, and what is wrong with them."""
    new = [row.verdict.display for row in rows if not row.proof]
    work = partial(proof_and_misprints, shelf.keys.listed)
    found = dict(zip([d.label for d in new], each_cast(work, book, root, new, at_a_time=3)))
    out, whole, faults = [], [], []
    for row in rows:
        one = found.get(row.verdict.display.label)
        if isinstance(one, PageFault):
            faults.append(one)
        elif one:
            parts, wrong = one
            row = replace(row, **parts)
            faults += wrong
            whole += [row] * (not wrong)
        out.append(row)
    if whole:
        shelf.keep(whole)
    return out, faults


def proof_and_misprints(listed: list[Entry], book: Book, display: Display) -> tuple[dict, list]:
    """What a row has besides the verdict, of a display that holds, and what is wrong with that."""
    proof, tallied = prove_display(book, display), tally(book, display)
    proofs = proofs_or_faults(tallied.survivors, book, display)
    mine = [entry for entry in listed if entry.label == display.label]
    wrong = [one for one in proofs if isinstance(one, str)] + identity_faults(book, mine, LISTED)
    words = tuple(one.word for one in proofs if isinstance(one, Exact))
    return {"proof": proof, "tally": tallied, "survivors": words}, wrong


def survivors(rows: list[Row]) -> str:
    """How many of the misprints that float64 does not see are proved, by how far."""
    counts = Counter(word for row in rows for word in row.survivors)
    return "survivors: " + ", ".join(f"{count} {word}" for word, count in counts.items())
