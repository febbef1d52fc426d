"""Inline relations: which assert and are run, which assume and are listed."""

import pytest

from attnmath.page.__main__ import check_book
from attnmath.page._book import Book
from attnmath.page._chapter import read_text
from attnmath.page._inline import counts, states
from page_book import HEAD, PAGE


@pytest.mark.parametrize("formula", [
    "A = K", "A \\le K", "A \\leq K", "A < K", "A \\ne 0", "A \\approx 1", "h \\in g", "{A = K}", "A ≤ K", "A := K",
    "A \\to 0", "A \\equiv K", "\\sum_{j \\le i} P_{ij} = 1", "A \\stackrel{d}{=} K", "A \\not= K", "A_{i = j}",
])
def test_a_formula_that_states_something(formula):
    assert states(formula)


@pytest.mark.parametrize("formula", ["A", "n \\times m", "\\sum_{j \\le i} P_{ij}", "\\sum_{h \\in g} dA_h", "\\ell",
                                     "\\max_{j = 1} A_{ij}", "\\lfloor h/r \\rfloor", "\\left(A\\right)"])
def test_a_formula_that_states_nothing(formula):
    assert not states(formula)


@pytest.mark.parametrize("text", [
    "If $A = K$, so.", "It is so when $A = K$.", "Let $A = K$.", "for all $i < n$", "with $A = K$", "a head with\n$A = K$",
    "where $A = K$", "at $A = K$", "such that $A = K$", "suppose $A = K$", "given $A = K$", "unless $A = K$",
])
def test_a_relation_that_assumes_is_listed(text):
    chapter = read_text(text)
    assert not chapter.faults and len(chapter.hypotheses) == 1 and not chapter.asserted


@pytest.mark.parametrize("text", [
    "So $A = K$.", "$A = K$", "so that $A = K$", "If so, $A = K$.", "for a head, $A = K$", "outwith $A = K$", "# $A = K$",
    "| $A = K$ |\n| --- |\n", "[$A = K$](b)", "*$A = K$*", ":::{exercise} $A = K$\n:::\n", ":::{note}\n$A = K$\n:::\n",
    "> $A = K$", "- $A = K$", "```{code-cell} python\n---\nmystnb:\n  figure:\n    caption: So $A = K$.\n---\n```\n",
])
def test_a_relation_that_asserts_is_run(text):
    chapter = read_text(text)
    assert not chapter.faults and len(chapter.asserted) == 1 and not chapter.hypotheses


def test_hypotheses_go_on_after_a_comma_or_a_word():
    chapter = read_text("With $a = 1$, $b = 2$ and $c = 3$, or $d = 4$, it is $e = 5$, $f = 6$. So $g = 7$.")
    assert [relation.text[0] for relation in chapter.hypotheses] == ["a", "b", "c", "d"]
    assert [relation.text[0] for relation in chapter.asserted] == ["e", "f", "g"]


def said(text):
    book = Book([read_text(PAGE + text, "chapters/page.md")], {"page": (HEAD,)})
    return [str(fault) for fault in check_book(book, None, set())[1] if "inline:" in str(fault)]


@pytest.mark.parametrize("text", ["So $A = Q K^{\\mathsf T}$.", "$dP = dO\\, V^{\\mathsf T}$", "$P_{ij} \\ge 0$", "if $A = 0$"])
def test_what_holds_passes(text):
    assert said(f"\n{text}\n") == []


@pytest.mark.parametrize("text, place, words", [
    ("So $A = 2 Q K^{\\mathsf T}$.", "8:9", "the sides of '=' differ"),
    ("It is\nso, and $dP = dO\\, V$.", "9:15", "shape"),
    ("So $P_{ij} \\ge 1$.", "8:16", "the sides of '>=' differ"),
    ("So $A = \\xi$.", "8:9", "cannot read"),
    ("So $A = Z$.", "8:9", "Z is not in the cast"),
])
def test_what_does_not_hold_is_a_fault_at_its_place(text, place, words):
    (fault,) = said(f"\n{text}\n")
    assert fault.startswith(f"chapters/page.md:{place}: inline:page_") and words in fault


def test_a_chapter_without_a_cast_may_repeat_a_display():
    def book(text):
        pages = [read_text(PAGE, "chapters/page.md"), read_text(text, "chapters/other.md")]
        return Book(pages, {"page": (HEAD,)})

    def told(book):
        return [str(fault) for fault in check_book(book, None, set())[1] if "other.md" in str(fault)]

    kept = book("So $A = Q K^{\\mathsf T}$, if $n = m$.\n")
    assert told(kept) == [] and counts(kept) == (0, 1, 1)
    (fault,) = told(book("So $A = K Q^{\\mathsf T}$.\n"))
    assert fault.startswith("chapters/other.md:1:") and "put it into words" in fault
