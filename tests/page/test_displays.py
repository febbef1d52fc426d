"""The book itself: every display holds, every promise is kept, the ledger is current."""

import pytest

from attnmath._words.tolerance import PAGE
from attnmath.page.__main__ import check_book
from attnmath.page.ledger.ledger import stale
from attnmath.page.ledger.rows import RowKeys, Shelf, identity_faults, listed_in
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.judge import Verdict
from attnmath.page.verdicts.labels import _letters
from attnmath.page.verdicts.published import Refuted


@pytest.fixture(scope="module")
def book(request):
    return Book.at(request.config.rootpath)


def test_every_display_holds_and_every_promise_is_kept(book, request):
    root = request.config.rootpath
    rows, faults = check_book(book, root, set(), Shelf(root, RowKeys(book, root)))
    assert [str(fault) for fault in faults] == []
    verdicts = [row.verdict for row in rows]
    assert len(verdicts) == len(book.displays) >= 200
    holding = [verdict for verdict in verdicts if isinstance(verdict, Verdict)]
    assert max(verdict.error for verdict in holding) <= PAGE
    failing = [verdict for verdict in verdicts if isinstance(verdict, Refuted)]
    assert {one.display.kind for one in failing} <= {"err"}
    assert len(holding) + len(failing) == len(verdicts)


def test_every_letter_of_a_cast_has_its_line(book):
    known = {}
    for stem, casts in book.casts.items():
        for cast in casts:
            known.setdefault(cast.name, (cast, set()))[1].update(_letters(book, stem))
    for name, (cast, listed) in known.items():
        assert set(cast.letters) <= listed, (name, set(cast.letters) - listed)


def test_the_ledger_is_current(book, request):
    root = request.config.rootpath
    assert stale(book, RowKeys(book, root), root) == []


def test_the_listed_identities_hold(book, request):
    """Whether their misprints still survive is asked by `make misprints`."""
    path = request.config.rootpath / "tests" / "equivalent_misprints.txt"
    listed = listed_in(path)
    assert identity_faults(book, listed, path) == []
    assert {entry.label for entry in listed} <= set(book.displays)
