"""The book itself: every display holds, every promise is kept, the ledger is current."""

import pytest

from attnmath._tolerance import PAGE
from attnmath.page._book import Book
from attnmath.page._casts import CHAPTERS
from attnmath.page._chapter import Fault
from attnmath.page._judge import judge
from attnmath.page._labels import _letters, label_faults
from attnmath.page._ledger import stale
from attnmath.page._listed import entries, identity_faults, report
from attnmath.page._misprints import tally


@pytest.fixture(scope="module")
def book(request):
    return Book.at(request.config.rootpath)


def test_every_display_holds(book):
    faults = [str(fault) for chapter in book.chapters for fault in chapter.faults]
    verdicts = []
    for display in book.displays.values():
        try:
            verdicts.append(judge(book, display))
        except Fault as fault:
            faults.append(str(fault))
    assert faults == [] and len(verdicts) == len(book.displays) >= 60
    assert max(verdict.error for verdict in verdicts) <= PAGE


def test_every_promise_is_kept(book, request):
    assert [str(f) for f in label_faults(book, request.config.rootpath)] == []


def test_every_letter_of_a_cast_has_its_line(book):
    listed = _letters(book)
    for casts in CHAPTERS.values():
        for cast in casts:
            missing = {letter for letter in cast.letters if letter not in listed}
            assert not missing, (cast.name, missing)


def test_the_ledger_is_current(book, request):
    assert stale(book, request.config.rootpath) == []


def test_the_listed_identities_hold_and_survive(book, request):
    """An entry whose misprint no longer survives, or whose identity is false, must go."""
    path = request.config.rootpath / "tests" / "equivalent_misprints.txt"
    listed = entries(path)
    assert identity_faults(book, listed, path) == []
    labels = sorted({entry.label for entry in listed})
    tallies = [tally(book, book.displays[label]) for label in labels]
    assert report(tallies, listed)[1] == []
