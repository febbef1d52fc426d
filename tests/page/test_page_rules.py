"""A rule is complete, and it is its listing: a line that is missing, moved or written otherwise is a fault."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from attnmath.page.language.nodes import PageError
from attnmath.page.language.syntax import parse
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.judge import hold
from attnmath.page.verdicts.labels import chooses, label_faults, refuse_other_lines
from attnmath.page.verdicts.promise import check_function

ROOT = Path(__file__).parents[2]


@cache
def the_book() -> Book:
    return Book.at(ROOT)


def rules() -> list[str]:
    return sorted(label for label, display in the_book().displays.items() if display.kind == "eq")


def scenes(label):
    book, display = the_book(), the_book().displays[label]
    return [book.paired(display.statements, scene) for scene in book.scenes(book.cast_of(display))]


def is_refused(label, statements, check) -> bool:
    try:
        with np.errstate(all="ignore"):
            check(label, statements)
    except PageError:
        return True
    return False


def gaps(label, statements):
    for scene in scenes(label):
        check_function(label[3:], statements, scene, {})


def values(label, statements):
    with np.errstate(all="ignore"):
        hold(the_book(), label, statements, the_book().scenes(the_book().cast_of(the_book().displays[label])))


def listing(label, statements):
    refuse_other_lines(label[3:], statements, scenes(label)[0])


@pytest.mark.parametrize("label", rules())
def test_no_line_of_a_rule_can_be_deleted(label):
    lines = the_book().displays[label].statements
    for k in range(len(lines)):
        less = lines[:k] + lines[k + 1 :]
        assert is_refused(label, less, gaps) or is_refused(label, less, values), k


@pytest.mark.parametrize("label", rules())
def test_a_rule_and_its_listing_have_the_same_lines(label):
    lines = the_book().displays[label].statements
    listing(label, lines)
    if chooses(lines):
        return
    for k in range(0 if label.startswith("eq:flash") else len(lines) - 1):
        turned = (*lines[:k], lines[k + 1], lines[k], *lines[k + 2 :])
        assert is_refused(label, turned, listing), k


ATTENTION = "eq:attention_vjp"
BROKEN = {  # label: what is written, what instead, what the sentence says
    "dA is missing": (
        ATTENTION, r"dA &= P \circ (dP - D \mathbf 1^{\mathsf T}) && (n \times m) \\", "",
        "dA is no argument of attention_vjp, and no line above gives it"),
    "P is missing": (
        ATTENTION, r"P &= \operatorname{softmax}(\gamma\, Q K^{\mathsf T} + B), \qquad O = P V \\", "",
        "P is no argument of attention_vjp, and no line above gives it"),
    "a result is missing": (
        ATTENTION, r"dB &= dA && (n \times m) \\", "", "attention_vjp returns dB; no line of the display gives it"),
    "a line that nobody uses": (
        ATTENTION, r"dB &= dA && (n \times m) \\", r"dB &= dA, \quad L = \operatorname{logsumexp}(Q K^{\mathsf T}) \\",
        "L is no result of attention_vjp, and no line below uses it"),
    "a line from itself": (
        ATTENTION, r"dP &= dO\, V^{\mathsf T}", r"dP &= dP", "dP is no argument"),
    "an argument": (
        ATTENTION, r"dB &= dA && (n \times m) \\", r"dB &= dA, \quad Q = Q \\", "Q is an argument of attention_vjp"),
    "a line for later": (
        ATTENTION, r"D &= \operatorname{rowsum}(dO \circ O)", r"D &= \operatorname{rowsum}(dA)",
        "dA is no argument of attention_vjp, and no line above gives it"),
    "two right sides": (ATTENTION, r"dB &= dA", r"dB &= dA = dA", "one right side"),
    "no letter": (ATTENTION, r"dB &= dA", r"2 dB &= 2 dA", "a line of a rule says what one letter is"),
    "one row": (ATTENTION, r"dB &= dA", r"dB_1 &= dA_1", "a line of a rule says what one letter is"),
    "no case for 0": (
        "eq:bias", r"B_{ij} &= -\infty \quad \text{if } \chi_{ij} = 0", "", "no line says what B is at"),
    "no case for 1": (
        "eq:bias", r"B_{ij} &= E_{ij} \quad \text{if } \chi_{ij} = 1 \\", "", "no line says what B is at"),
    "two cases": (
        "eq:padding_mask", r"j > t_s", r"j \ge t_s", "two lines say what chi is at s = 1, j = "),
    "a gap between cases": ("eq:document_mask", r"\phi_i \ne \psi_j", r"\phi_i > \psi_j", "no line says what chi is"),
    "a case for all": (
        "eq:dropout_mask", r" \quad \text{if } U_{ij} \ge \rho", "", "two lines say what R is at"),
}


def changed(label, old, new):
    text = the_book().displays[label].text
    assert text.count(old) == 1
    return parse(re.sub(r"\\\\\s*(?=\\end)", "", text.replace(old, new)))


@pytest.mark.parametrize("label, old, new, sentence", BROKEN.values(), ids=BROKEN)
def test_a_gap_is_a_fault(label, old, new, sentence):
    with pytest.raises(PageError) as caught, np.errstate(all="ignore"):
        gaps(label, changed(label, old, new))
    assert sentence in str(caught.value)


OTHERWISE = {  # true, and not what the listing computes
    "the scale elsewhere": (ATTENTION, r"(\gamma\, dA)^{\mathsf T} Q", r"\gamma\, dA^{\mathsf T} Q"),
    "another row sum": ("eq:multihead_vjp", r"\operatorname{rowsum}(dO_h \circ O_h)",
                        r"\operatorname{rowsum}(P_h \circ dP_h)"),

    "another letter": (ATTENTION, r"\langle dA, Q", r"\langle dB, Q"),
    "factors out": ("eq:softmax_vjp", r"P \circ (dP - \operatorname{rowsum}(P \circ dP) \mathbf 1^{\mathsf T})",
                    r"(P \circ dP - P \circ \operatorname{rowsum}(P \circ dP) \mathbf 1^{\mathsf T})"),
    "another order": ("eq:layer_norm_vjp", r"\alpha \circ dy_i", r"dy_i \circ \alpha"),
    "a sum opened": ("eq:multihead_jvp", r"\sum_h (\dot O_h W^O_h + O_h \dot W^O_h)",
                     r"\sum_h (O_h \dot W^O_h + \dot O_h W^O_h)"),
}


@pytest.mark.parametrize("label, old, new", OTHERWISE.values(), ids=OTHERWISE)
def test_what_the_listing_does_not_compute_is_a_fault(label, old, new):
    lines = changed(label, old, new)
    values(label, lines)  # it is true
    with pytest.raises(PageError, match="listing"):
        listing(label, lines)


def test_tiles_give_their_letters_in_the_order_of_the_display():
    lines = the_book().displays["eq:flash_attention"].statements
    with pytest.raises(PageError, match="gives L before O"):
        listing("eq:flash_attention", (*lines[:-2], lines[-1], lines[-2]))
    with pytest.raises(PageError, match="gives L, and no line"):
        listing("eq:flash_attention", (*lines[:-2], lines[-1]))


def test_another_listing_is_a_fault_of_the_page(monkeypatch):
    book, display = the_book(), the_book().displays["eq:softmax_vjp"]
    other = replace(display, text=display.text.replace(r"\frac{1}{\tau} P", r"P \frac{1}{\tau}"))
    monkeypatch.setitem(book.displays, display.label, other)
    chapters = [replace(c, displays=tuple(other if d is display else d for d in c.displays)) for c in book.chapters]
    monkeypatch.setattr(book, "chapters", chapters)
    faults = [str(fault) for fault in label_faults(book, None) if "listing:" in str(fault)]
    assert faults == []  # a number may stand where it likes in a product
    worse = replace(display, text=display.text.replace("dP - ", "-1 dP - "))
    monkeypatch.setattr(book, "chapters", [replace(c, displays=tuple(worse if d is other else d for d in c.displays)) for c in chapters])
    (fault,) = (str(fault) for fault in label_faults(book, None) if "listing:" in str(fault))
    assert re.match(r"chapters/softmax.md:\d+:\d+: eq:softmax_vjp: listing: dA = ", fault)
