"""Conditions that a display may not have; and the casts in which it has to hold."""

import re
from dataclasses import replace

import numpy as np
import pytest

from attnmath.page.language.chapter import PageFault, read_text
from attnmath.page.scenes.cast import Letter
from attnmath.page.scenes.settings import Setting
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.judge import judge
from page_book import HEAD, PAGE, book, last


def refusal(of: Book) -> str:
    with pytest.raises(PageFault) as caught:
        judge(of, last(of))
    return str(caught.value)


@pytest.mark.parametrize("display, words", [
    (r"\sum_j P_{ij} = 1 \quad \text{when } n = m", "8:22: .*holds in every setting as well: delete the condition"),
    (r"P_{ij} = e^{A_{ij} - L_i} \quad \text{if } i \ne j", "delete the condition"),
    (r"dV = P^{\mathsf T} dO, \quad dP = dO V^{\mathsf T} \quad \text{when } M = 0 \text{and } c = 0", "delete the condition"),
    (r"c_l = 2 c_l \quad \text{when } M = 0 \text{and } c = 0", "where the condition is met, all sides are 0"),
    (r"K M = M^{\mathsf T} K^{\mathsf T} \quad \text{when } n = m", "shapes"),
    (r"c M = M c^{\mathsf T} \quad \text{when } V = 0", "no setting of the cast meets the condition"),
    (r"P_{ij} = \frac{1}{m} \quad \text{when } c = 0", "differ"),
])
def test_a_condition_has_to_matter(display, words):
    assert re.search(words, refusal(book(display)))


@pytest.mark.parametrize("display", [
    r"P_{ij} = \frac{1}{m} \quad \text{when } K = 0",
    r"n - 1 = m - 1 \quad \text{when } n = m",
    r"\frac{\partial P_{ij}}{\partial A_{kl}} = P_{ij} (1 - P_{ij}) \quad \text{if } i = k \text{and } j = l",
])
def test_a_condition_that_matters_stands(display):
    of = book(display)
    judge(of, last(of))


def empty(values, sizes):
    values["B"][1] = -np.inf


HIDDEN = replace(
    HEAD,
    name="hidden",
    letters={"B": Letter(("n", "m")), **HEAD.letters, "A": Letter(("n", "m"), "prp:hidden")},
    settings=(Setting("random", 1), Setting("empty row", 2, change=empty)),
)
HIDDEN_PAGE = PAGE.replace(r"\log\Big(\sum_j e^{A_{ij}}\Big)", r"\operatorname{logsumexp}(A)_i")
TWO = HIDDEN_PAGE + "\n$$ A = Q K^{\\mathsf T} + B $$ (prp:hidden)\n"


def two(display: str, *casts, label: str = "prp:tested") -> Book:
    return Book([read_text(TWO + f"\n$$ {display} $$ ({label})\n", "chapters/page.md")], {"page": casts})


@pytest.mark.parametrize("display, words", [
    (r"P_{ij} = \frac{1}{m} \quad \text{when } K = 0 \text{and } Q = Q", "8:62: .*without this part of its condition"),
    (r"P_{ij} = \frac{1}{m} \quad \text{when } Q = Q \text{and } K = 0", "without this part"),
    (r"P_{ij} = \frac{1}{m} \quad \text{when } K = 0 \text{and } n > 0", "without this part"),
    (r"n = m \quad \text{when } n = m", "the condition is what the statement says"),
    (r"n < m \quad \text{when } m > n", "the condition is what"),
    (r"X := 7 dA\, K, \quad X = 7 dA\, K", "8:29: .*the sides are the same, with what they are defined to be"),
    (r"x_i := \sum_j A_{ij}, \quad x_l = \sum_i A_{li}", "the sides are the same"),
    (r"x := \sum_j c_j, \quad y_j := x A_{1j}, \quad y_l = (\sum_i c_i) A_{1l}", "the sides are the same"),
])
def test_a_display_says_something_and_no_more_than_is_needed(display, words):
    assert re.search(words, refusal(book(display)))


@pytest.mark.parametrize("display, words", [
    (r"\sum_j P_{ij} = 1 \quad \text{if } \sum_j P_{ij} = 1", "the condition is what"),
    (r"\sum_j P_{ij} = 1 \quad \text{if } 1 = \sum_l P_{il}", "the condition is what"),
    (r"dA_{ij} + 1 = 7 P_{ij} + 1 \quad \text{if } B_{ij} = -\infty", "P makes no difference|dA makes no difference"),
    (r"c_l + dA_{ij} = c_l + 7 P_{ij} \quad \text{if } B_{ij} = -\infty", "no difference"),
    (r"c_l (1 + dA_{ij}) = c_l (1 + P_{ij}) \quad \text{if } B_{ij} = -\infty", "no difference"),
    ("\\begin{aligned} x_{ij} &:= 1 + P_{ij} \\\\ x_{ij} &= 1 - dA_{ij} \\quad \\text{if } B_{ij} = -\\infty \\end{aligned}", "no difference"),
    (r"dA_{ij} = 0 \quad \text{if } B_{ij} = -\infty \text{and } B_{ij} \le 0", "without this part"),
])
def test_a_condition_does_something_and_does_not_say_it_all(display, words):
    assert re.search(words, refusal(two(display, HIDDEN)))


def names(of: Book) -> list:
    return [cast.name for cast in of.casts_of(last(of))]


def test_a_display_holds_in_every_cast_that_knows_it():
    """The empty row stands in the second cast alone."""
    held = two(r"\sum_j dV_j = \sum_{i, j} P_{ij}\, dO_i", HEAD, HIDDEN)
    assert names(held) == ["small", "hidden"]
    assert judge(held, last(held)).scenes == 2 * (5 + 2)
    false = two(r"\sum_j dV_j = \sum_i dO_i", HEAD, HIDDEN)
    assert "differ" in refusal(false)
    alone = two(r"\sum_j dV_j = \sum_i dO_i", HEAD)
    judge(alone, last(alone))


@pytest.mark.parametrize("change", [
    dict(constants=("V",)),                                         # V is held still
    dict(moving=("O",), has_second=True),                           # other gradients move
    dict(about="B"),                                                # the display does not name B
    dict(letters={**HIDDEN.letters, "V": Letter(("m", "d_k"))},     # V has other axes
         sizes={**HIDDEN.sizes, "d_v": 3}),
    dict(letters={"B": Letter(("n", "m")), "A": HIDDEN.letters["A"], "O": Letter(("n", "d_v"))}),
])
def test_a_cast_with_other_letters_does_not_know_a_display(change):
    of = two(r"V = \frac{2}{2} V", HEAD, replace(HIDDEN, **change))
    for same in (HIDDEN, replace(HIDDEN, about="V")):
        assert names(two(r"V = \frac{2}{2} V", HEAD, same)) == ["small", "hidden"]
    assert names(of) == ["small"]


def test_a_definition_belongs_to_its_own_cast():
    other = two(r"A = Q K^{\mathsf T} + B", HIDDEN, replace(HIDDEN, name="again"))
    assert [c.name for c in other.casts_of(other.displays["prp:hidden"])] == ["hidden"]
    published = two(r"A = Q K^{\mathsf T}", HEAD, HIDDEN, label="err:tested")
    assert names(published) == ["small"]


def test_a_condition_may_be_met_in_one_cast_and_not_in_another():
    of = two(r"O_i = 0 \quad \text{if } L_i = -\infty", HEAD, HIDDEN)
    assert judge(of, last(of)).comparisons == 2
