"""False statements in the place of displays: in some setting of the chapter each one fails."""

from dataclasses import replace
from pathlib import Path

import pytest

from attnmath.page.language.chapter import PageFault
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.judge import judge
from attnmath.page.verdicts.proofs import Exactly

EDITS = [
    tuple(part.strip() for part in line.split(" | "))
    for line in (Path(__file__).parents[1] / "false_edits.txt").read_text(encoding="utf-8").split("\n")
    if line and not line.startswith("#")
]


@pytest.fixture(scope="module")
def book(request):
    return Book.at(request.config.rootpath)


@pytest.mark.parametrize("chapter, label, edit", EDITS)
def test_a_false_edit_is_refused(book, chapter, label, edit):
    display = book.displays[label]
    assert display.path == f"chapters/{chapter}.md"
    with pytest.raises(PageFault, match="value: "):
        judge(book, replace(display, text=edit))


def test_infinity_proves_no_inequality(book):
    """It is less than 20 in an empty row, and a letter elsewhere, of which exact numbers know no size."""
    edit = replace(book.displays["prp:empty_row"], text="L_i < 20")
    assert judge(book, edit).comparisons > 0
    assert Exactly(book).proof(edit).word == "measured"
