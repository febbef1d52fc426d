"""Inline relations: which assert and are run, which assume and are listed."""

import pytest

from attnmath.page.__main__ import check_book
from attnmath.page.language.chapter import read_text
from attnmath.page.language.inline import states
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.labels import posing, relation_counts
from page_book import HEAD, PAGE


@pytest.mark.parametrize("formula", [
    "A = K", "A \\le K", "A \\leq K", "A < K", "A \\ne 0", "A \\approx 1", "h \\in g", "A := K",
    "\\sum_{j \\le i} P_{ij} = 1", "\\tanh(A) = K", "\\cos(A) = K", "A = (1, 2)", "i = 1, 2, \\dots, K",
])
def test_a_formula_that_states_something(formula):
    assert states(formula)


@pytest.mark.parametrize("formula", ["A", "n \\times m", "\\sum_{j \\le i} P_{ij}", "\\sum_{h \\in g} dA_h", "\\ell",
                                     "\\max_{j = 1} A_{ij}", "\\lfloor h/r \\rfloor", "\\left(A\\right)",
                                     "\\circ", "\\times n", "n \\times H d_v", "[0, 1)", "(1, 0)", "1{,}024", "h \\bmod G", "a, b; b, a",
                                     "\\frac12 A_{ij}", "\\log_2 e", "-\\infty", "\\partial Y / \\partial X", "A_1, \\dots, A_H", "/N"])
def test_a_formula_that_states_nothing(formula):
    assert not states(formula)


SIGNS = ("leqq leqslant lesssim prec succ coloneqq eqqcolon gets to longmapsto mapsto iff asymp perp models nless equiv"
         " propto sim cong simeq doteq triangleq stackrel{d}{=} overset{a}= not= mid parallel subset vdash ll neq colon")
MACROS = ("\\def\\circ{\\cdot}", "\\renewcommand{\\circ}{\\cdot}", "\\newcommand{\\x}{A}", "\\let\\circ\\cdot", "\\gdef\\a{A}",
          "\\require{cancel}", "\\unicode{x3D}", "\\char\"3D", "\\symbol{61}", "\\color{white} A", "\\style{display:none}{A}",
          "\\href{b}{A}", "\\class{a}{A}", "\\cssId{a}{A}", "\\phantom{A}", "\\cancel{A}", "\\mathchoice{A}{A}{A}{A}", "\\hbox{is}",
          "\\text{is}", "\\mathrm{is}", "\\operatorname{is 7}", "\\begin{array}{c}A\\end{array}", "\\xi", "\\qquad A")
DRAWN = ("{A = K}", "A_{i = j}", "\\bar{-} A", "A^-_- K", "A -_{-} K", "\\frac{\\frac{}{}}{} A", "\\hat{}{} A", "A : K", "A | K", "A & K",
         "A \\text{ for } K", "A \\quad K", "A # K", "A % K", "A \"K", "= 7", "A ≤ K", "A ≔ K", "A ＝ K", "A ⩵ K",
         "γ A", "Aᵀ", "A ∘ K", "‖A‖", "𝐴", "A\u200b")


@pytest.mark.parametrize("formula", [*(f"A \\{sign} K" for sign in SIGNS.split()), *MACROS, *DRAWN])
def test_what_inline_mathematics_does_not_have_is_refused_at_its_place(formula):
    chapter = read_text(f"so\nit is ${formula}$ here", "c.md")
    assert str(chapter.faults[0]).startswith("c.md:2:7: ") and "write $$" in str(chapter.faults[0])
    assert not chapter.asserted and not chapter.hypotheses


@pytest.mark.parametrize("text", [
    "If $A = K$, so.", "It is so when $A = K$.", "Let $A = K$.", "for all $i < n$", "with $A = K$", "a head with\n$A = K$",
    "where $A = K$", "at $A = K$", "suppose $A = K$", "unless $A = K$", "for $(a + b)^2 = a^2 + b^2$",
])
def test_a_relation_that_assumes_is_listed(text):
    chapter = read_text(text)
    assert not chapter.faults and len(chapter.hypotheses) == 1 and not chapter.asserted


@pytest.mark.parametrize("text", [
    "such that $A = K$", "given $A = K$", "whenever $A = K$", "any $A = K$", "with $dQ = 7 dA\\, K$", "if $\\dot A = 0$",
    "for any $dQ = 0$", "where $n = m = dQ$", "at $\\frac{\\partial o_i}{\\partial q_i} = 0$", "for $\\sum_i dk_i = 0$",
    "if $dY = (1, 1)$", "So $A = K$.", "$A = K$", "so that $A = K$", "If so, $A = K$.", "for a head, $A = K$", "outwith $A = K$", "# $A = K$",
    "| $A = K$ |\n| --- |\n", "[$A = K$](b)", "*$A = K$*", ":::{exercise} $A = K$\n:::\n", ":::{note}\n$A = K$\n:::\n",
    "> $A = K$", "- $A = K$", "```{code-cell} python\n---\nmystnb:\n  figure:\n    caption: So $A = K$.\n---\n```\n",
])
def test_a_relation_that_asserts_is_run(text):
    chapter = read_text(text)
    assert not chapter.faults and len(chapter.asserted) == 1 and not chapter.hypotheses


def test_hypotheses_go_on_after_and_or_or():
    chapter = read_text("With $a = 1$ and $b = 2$ or $c = 3$, it is $g = 5$, and $h = 6$. Let $e = 4$, and $k = 7$. At $f = 1$, $m = 7$")
    assert [relation.text[0] for relation in chapter.hypotheses] == ["a", "b", "c", "e", "f"]
    assert [relation.text[0] for relation in chapter.asserted] == ["g", "h", "k", "m"]


@pytest.mark.parametrize("text, letter", [("with $O = 7 V$", "O"), ("if $P_{ij} = 1$", "P"), ("where $o_i = v_i$", "o"),
                                          ("Let $n = 4$ and $L = 0$", "L"), ("at $Q = 0$", ""), ("for $n = 7$", ""), ("if $c = F$", "")])
def test_what_the_page_computes_is_no_hypothesis(text, letter):
    for stem in ("page", "other"):  # a chapter without a cast has the letters of the others
        pages = [read_text(PAGE, "chapters/page.md"), read_text(f"\n{text}\n", f"chapters/{stem}.md")]
        book = Book(pages, {"page": (HEAD,)})
        assert [f"{letter} is computed" in str(fault) for fault in posing(book)] == [True] * bool(letter)


def said(text):
    book = Book([read_text(PAGE + text, "chapters/page.md")], {"page": (HEAD,)})
    return [str(fault) for fault in check_book(book, None, set())[1] if "inline:" in str(fault)]


@pytest.mark.parametrize("text", ["So $A = Q K^{\\mathsf T}$.", "$dP = dO\\, V^{\\mathsf T}$", "$P_{ij} \\ge 0$", "if $Q = 0$"])
def test_what_holds_passes(text):
    assert said(f"\n{text}\n") == []


@pytest.mark.parametrize("text, place, words", [
    ("So $A = 2 Q K^{\\mathsf T}$.", "8:9", "the sides of '=' differ"),
    ("It is\nso, and $dP = dO\\, V$.", "9:15", "shape"),
    ("So $P_{ij} \\ge 1$.", "8:16", "the sides of '>=' differ"),
    ("So $A = (1, 2)$.", "8:11", "cannot read"),
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
    assert told(kept) == [] and relation_counts(kept) == (0, 1, 1)
    (fault,) = told(book("So $A = K Q^{\\mathsf T}$.\n"))
    assert fault.startswith("chapters/other.md:1:") and "put it into words" in fault
