"""The list of misprints that are still true, with the identity that makes each one so."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attnmath.page._book import Book
from attnmath.page._judge import hold
from attnmath.page._misprints import REJECTED, Tally
from attnmath.page._mutations import unset
from attnmath.page._nodes import PageError
from attnmath.page._syntax import parse


class Entry(NamedTuple):
    """A listed survivor: the label, the misprinted statement, why it is still true."""

    label: str
    statement: str
    identity: str
    line: int


def entries(path: Path) -> list[Entry]:
    """`label | misprinted statement | identity` in each line that is no comment."""
    out = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip() and not line.startswith("#"):
            parts = [part.strip() for part in line.split(" | ")]
            if len(parts) != 3:
                raise ValueError(f"{path.name}:{number}: not 'label | misprint | identity'")
            label, statement, identity = parts
            out.append(Entry(label, statement, identity, number))
    return out


def identity_faults(book: Book, listed: list[Entry], path: Path) -> list[str]:
    """Entries whose identity does not hold where their display has to."""
    faults = []
    for label, identity in sorted({(e.label, e.identity) for e in listed}):
        line = next(e.line for e in listed if (e.label, e.identity) == (label, identity))
        try:
            if label not in book.displays:
                raise PageError("label", f"no display {label}")
            scenes = book.stage(book.displays[label])
            with np.errstate(all="ignore"):
                hold(book, "prp:identity", parse(identity), scenes)
        except PageError as error:
            faults.append(f"{path.name}:{line}: {identity}: {error.message}")
    return faults


def report(tallies: list[Tally], listed: list[Entry]) -> tuple[list[str], list[str]]:
    """The lines of the summary, and what is wrong: unlisted survivors, stale entries."""
    published = [one for one in tallies if one.label.startswith("err:")]
    tallies = [one for one in tallies if one not in published]
    rejected: Counter = Counter()
    for one in tallies:
        rejected += one.rejected
    survivors = [s for one in tallies for s in one.survivors]
    known = {(e.label, unset(e.statement)) for e in listed}
    unlisted = [s for s in survivors if (s.label, unset(s.statement)) not in known]
    faults = [f"{s.label}: survives ({s.kind}): {s.statement}" for s in unlisted]
    alive = {(s.label, unset(s.statement)) for s in survivors}
    ran = {one.label for one in tallies}
    faults += [
        f"line {e.line}: {e.label}: no longer survives: {e.statement}"
        for e in listed
        if e.label in ran and (e.label, unset(e.statement)) not in alive
    ]
    kinds = ", ".join(f"{rejected[kind]} by {kind}" for kind in REJECTED)
    lines = [
        f"misprints tried: {sum(one.tried for one in tallies)}"
        f" in {len(tallies)} displays",
        f"rejected: {sum(rejected.values())} ({kinds})",
        f"identities, listed with their reason: {len(survivors) - len(unlisted)}",
        f"not counted, the same statement written otherwise: {sum(one.same for one in tallies)}",
    ]
    lines += [
        f"{one.label}: made true by {'; '.join(one.corrections) or 'no change of one symbol'}"
        f" ({one.tried} tried)"
        for one in published
    ]
    return lines, faults
