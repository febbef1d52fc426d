"""Misprints that float64 takes for true, judged exactly: identities, or faults of the check."""

from dataclasses import replace
from difflib import SequenceMatcher

import numpy as np

from attnmath.page._book import Book
from attnmath.page._chapter import Display
from attnmath.page._listed import Entry
from attnmath.page._mutations import squeezed
from attnmath.page._nodes import PageError
from attnmath.page._proofs import Exact, Exactly, exactly


def proofs_or_faults(alive: list[Entry], book: Book, display: Display) -> list[Exact | str]:
    """The misprints of a display that float64 takes for true: proved, or refuted exactly."""
    found: list[Exact | str] = []
    for entry in alive:
        if entry.label == display.label:
            try:
                found.append(_proof_of_misprint(book, display, entry.statement))
            except PageError as error:
                found.append(f"{entry.label}: float64 does not see it: {entry.statement}: {error.message}")
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
            cast = book.cast_of(display)
            if display.label not in {spec.origin for spec in cast.letters.values()}:
                raise
            return Exactly(book.with_display(changed)).proof(changed)
