"""Displays in exact arithmetic: what is proved, what is refuted, and what stays measured."""

from dataclasses import replace

import pytest

from attnmath.page.language.chapter import PageFault, read_text
from attnmath.page.language.nodes import PageError
from attnmath.page.ledger.ledger import proof_cell, reason, summary, unproved
from attnmath.page.ledger.rows import Entry, proofs_or_faults
from attnmath.page.scenes.cast import drawn
from attnmath.page.scenes.oracles import roomy
from attnmath.page.scenes.settings import Setting
from attnmath.page.verdicts.book import Book, found_or_fault
from attnmath.page.verdicts.judge import judge
from attnmath.page.verdicts.proofs import Exactly, prove_display
from page_book import HEAD, PAGE, book, last


def proof(display, label="prp:tested"):
    of = book(display, label)
    return Exactly(of).proof(last(of))


PROVED = [
    r"P_{ij} = e^{A_{ij} - L_i}",
    r"dV = P^{\mathsf T} dO",
    r"dA = P \circ (dO V^{\mathsf T} - D \mathbf 1^{\mathsf T})",
    r"\frac{\partial P_{ij}}{\partial A_{kl}} = \delta_{ik} P_{ij} (\delta_{jl} - P_{il})",
    r"\dot P = P \circ (\dot A - \operatorname{rowsum}(P \circ \dot A) \mathbf 1^{\mathsf T})",
    r"\log(P_{ij}) = A_{ij} - L_i",
    r"M M^{-1} = I_{d_k} \quad \text{when } c \ne 0",
    r"\operatorname{softmax}(A + (Q c^{\mathsf T}) \mathbf 1^{\mathsf T}) = P",
    r"V V^{\mathsf T} \ne 2 V V^{\mathsf T}",
    r"\cos(A) \circ \cos(A) + \sin(A) \circ \sin(A) = \mathbf 1_n \mathbf 1_m^{\mathsf T}",
    r"\cos(A + A) = \mathbf 1_n \mathbf 1_m^{\mathsf T} - 2 \sin(A) \circ \sin(A)",
    r"\frac{\partial \sin(A_{ij})}{\partial A_{ij}} = \cos(A_{ij})",
]


@pytest.mark.parametrize("display", PROVED)
def test_what_is_algebraic_is_proved(display):
    one = proof(display)
    assert (one.word, one.measured) == ("proved", {})
    assert one.shapes >= 2 and 0 < one.proof.error < 1e-15


FALSE = [
    r"P_{ij} = (1 + 2^{-30}) e^{A_{ij} - L_i}",
    r"dA = P \circ dO V^{\mathsf T}",
    r"dA = P \circ (dO V^{\mathsf T} - D \mathbf 1^{\mathsf T}) + 2^{-30} dO V^{\mathsf T}",
    r"dV = P^{\mathsf T} dO + 2^{-30} K M V^{\mathsf T} V",
    r"\log(P_{ij}) = A_{ij} - L_i - 2^{-30} A_{ij}",
    r"\cos(A + A) = \mathbf 1_n \mathbf 1_m^{\mathsf T} - 2 \sin(A) \circ \cos(A)",
    r"\cos(A) \circ \cos(A) - \sin(A) \circ \sin(A) = \mathbf 1_n \mathbf 1_m^{\mathsf T}",
    r"V V^{\mathsf T} \ne V V^{\mathsf T} + 0 Q Q^{\mathsf T}",
]


@pytest.mark.parametrize("display", FALSE)
def test_what_is_false_is_refuted_however_small(display):
    with pytest.raises(PageError, match="differ exactly|no product|equal shapes"):
        proof(display)


def test_a_function_that_is_not_what_its_label_promises_is_refuted():
    of = book(r"L_i = \log\Big(\sum_j e^{A_{ij}}\Big)", "eq:log_softmax")
    with pytest.raises(PageError, match="log_softmax"):
        Exactly(of).proof(last(of))


MEASURED = [
    (r"P_{ij} \le 1", "measured", "'<=' is an inequality"),
    (r"\lVert M \rVert_2 \le \lVert M \rVert_F", "measured", "'<=' is an inequality"),
    (r"\lVert M \rVert_2 = \lVert M^{\mathsf T} \rVert_2", "measured", "svdvals"),
    (r"\operatorname{rank}(Q) = \operatorname{rank}(Q^{\mathsf T})", "measured", "a rank at a random point"),
    (r"\sum_j P_{ij} = 1 \ge P_{i1}", "both", "'>=' is an inequality"),
    (r"P_{ij} \approx e^{A_{ij} - L_i} \quad \text{within } 0.125", "measured", "≈ has a bound"),
    (r"\lvert L_i \rvert^2 = L_i^2", "measured", "np.sign"),
]


@pytest.mark.parametrize("display, word, why", MEASURED)
def test_what_is_not_algebraic_says_why(display, word, why):
    one = proof(display)
    assert one.word == word and any(why in text for text in one.measured)
    (row,) = unproved([one])
    assert why in row[2] and ".py:" not in row[2]


def test_a_published_formula_is_refuted_exactly():
    one = proof(r"dA = P \circ dO V^{\mathsf T}", "err:tested")
    assert one.word == "refuted" and proof_cell(book(), one).startswith("refuted")
    with pytest.raises(PageError, match="it holds in the setting"):
        proof(r"dV = P^{\mathsf T} dO", "err:tested")


def test_a_setting_with_rounded_numbers_is_left_out_with_its_reason():
    def rounded(values, sizes):
        values["c"] = values["c"] * (1 / 3)

    of = book(r"c M^{\mathsf T} = (M c^{\mathsf T})^{\mathsf T}")
    of.casts["page"] = (replace(HEAD, settings=(Setting("rounded", 1, change=rounded),)),)
    one = Exactly(of).proof(last(of))
    assert one.word == "measured"
    assert "0.3333333333333333 leaves the algebra" in next(iter(one.measured))


def test_sizes_are_raised_so_that_scores_are_independent():
    for setting in HEAD.settings:
        sizes = {**HEAD.sizes, **roomy(HEAD, setting).sizes}
        assert sizes["d_k"] >= min(sizes["n"], sizes["m"])


def test_a_process_turns_errors_into_faults_and_judges_survivors():
    of = book(r"dA = P \circ dO V^{\mathsf T}")
    assert isinstance(found_or_fault(prove_display, of, last(of)), PageFault)
    of = book(r"dV = P^{\mathsf T} dO")
    alive = [Entry("prp:tested", r"dV = (1 + 2^{-60}) P^{\mathsf T} dO", "", 0),
             Entry("prp:tested", r"dV_{ij} = \sum_k P_{ki} dO_{kj}", "", 0)]
    refuted, proved = proofs_or_faults(alive, of, last(of))
    assert "float64 does not see it" in refuted and proved.word == "proved"


def test_the_summary_counts_words():
    ones = [proof(PROVED[0]), proof(MEASURED[0][0])]
    (line,) = summary(ones)
    assert "proved: 1, refuted: 0, argued: 0, both: 0, measured: 1" in line
    assert reason("'>' of letters leaves the algebra, at _values.py:1 (extreme)") == "'>' of letters leaves the algebra"


ARGUMENT = r"\bar P_{ij} := P_{ij} \quad P_{ij}^2 = P_{ij} \bar P_{ij} \le P_{ij} \le 1"


def argued(argument: str, label: str = "why:tested", above: bool = True) -> Book:
    """An inequality, and a derivation above or below it."""
    parts = [f"\n$$ {argument} $$ ({label})\n", "\n$$ P_{ij}^2 \\le 1 $$ (prp:tested)\n"]
    text = PAGE + "".join(parts if above else parts[::-1])
    return Book([read_text(text, "chapters/page.md")], {"page": (HEAD,)})


@pytest.mark.parametrize("of, word", [
    (argued(ARGUMENT), "argued"),
    (argued(ARGUMENT, "why:another"), "measured"),
    (argued(ARGUMENT, above=False), "measured"),
    (argued(r"P_{ij}^2 = P_{ij} \cdot P_{ij}"), "measured"),  # no inequality is derived there
    (argued(r"1 \ge P_{ij} \ge P_{ij}^2"), "argued"),
    (argued(r"x := 1, \quad P_{ij}^2 \le P_{ij} \le x"), "argued"),
    (argued(r"P_{ij}^2 \le P_{ij}"), "measured"),  # another bound
    (argued(r"P_{ij} \le 1"), "measured"),  # of something else
    (argued(r"P_{ij}^2 \ge 0, \quad 0 \le 1"), "measured"),
    (argued(r"\sum_j P_{ij}^2 \le 1"), "measured"),
])
def test_an_inequality_is_argued_by_the_derivation_of_its_name_above_it(of, word):
    one = Exactly(of).proof(of.displays["prp:tested"])
    assert one.word == word
    assert proof_cell(of, one) == ("argued by {eq}`why:tested`" if word == "argued" else word)
    assert unproved([one])[0][1] == word
    for display in of.displays.values():
        judge(of, display)


@pytest.mark.parametrize("about, word", [("", "argued"), ("theta", "measured")])
def test_a_derivation_may_have_letters_of_its_own_where_the_display_holds_as_well(about, word):
    of = argued(r"\theta_{ij}^2 \ge 0, \quad P_{ij}^2 \le P_{ij} \le 1")
    other = HEAD.plus(drawn("theta: n m"), name="with errors", about=about)  # alone, if it is about them
    of = Book(of.chapters, {"page": (HEAD, other)})
    assert of.cast_of(of.displays["why:tested"]).name == "with errors"
    assert Exactly(of).proof(of.displays["prp:tested"]).word == word


OTHER_BOUNDS = [  # of the display, and not of its derivation: some are false where no setting shows it
    ("ball_bound", r"(s + s \sqrt{c} + \sqrt{c})", r"(s + s \sqrt{c} + 1)"),
    ("ball_bound", r"r := \max_i \lVert x_i \rVert", r"r := \lVert x_2 \rVert"),
    ("query_bound", r"t := \max_{j, l} \lVert k_j - k_l \rVert", r"t := \max_j \lVert k_j - k_1 \rVert"),
    ("query_bound", r"s := \max_{j, l} \lVert v_j - v_l \rVert", r"s := \max_j \lVert v_j - v_2 \rVert"),
    ("key_bound", r"s := \max_i \sum_j P_{ij} \lVert v_j - o_i \rVert^2", r"s := \sum_j P_{1j} \lVert v_j - o_1 \rVert^2"),
    ("key_bound", r"c := \max_j \sum_i P_{ij}", r"c := \sum_i P_{i1}"),
    ("finite_change", "", r"\max_j u_j - \min_j u_j \ge \frac{1}{100}"),
    ("value_bound", "", r"\lVert Q \rVert \le 100"),
    ("value_bound", r"\le \sqrt{c}", r"< \sqrt{c}"),
    ("rounding_weights", r"\rvert \le \bar P_{ij}", r"\rvert \le \frac{1}{2} \bar P_{ij}"),
    ("rounding_output", r"\le \bar O_{ia}", r"\le u \bar O_{ia}"),
    ("rounding_scores_vjp", r"\lvert F_{ij} \rvert &\le", r"\lvert U_{ij} \rvert &\le"),
    ("rounding_vjp", r"\lvert \tilde Q_{ib} \rvert &\le", r"\lvert \tilde Q_{ib} \rvert &<"),
]


@pytest.mark.parametrize("name, old, new", OTHER_BOUNDS)
def test_a_derivation_argues_for_its_own_bound_alone(request, name, old, new):
    book = Book.at(request.config.rootpath)
    display = book.displays[f"prp:{name}"]
    assert book.derivation(display).label == f"why:{name}"
    text = display.text.replace("&:=", ":=")
    assert old in text
    assert book.derivation(replace(display, text=text.replace(old, new) if old else new)) is None


def test_a_false_derivation_argues_for_nothing():
    of = argued(ARGUMENT.replace(r"\le P_{ij} \le", r"\le P_{ij}^3 \le"))
    assert not isinstance(found_or_fault(judge, of, of.displays["prp:tested"]), PageFault)
    found = found_or_fault(judge, of, of.displays["why:tested"])
    assert isinstance(found, PageFault) and "the sides of '<=' differ" in str(found)


def hidden(values, sizes):
    values["M"] = values["M"] * (1 / 3)


def test_a_step_is_proved_only_if_it_is_exact_in_every_setting():
    """A setting that cannot be exact is left out, and the ledger says so beside the display."""
    of = book(r"M K^{\mathsf T} = (K M^{\mathsf T})^{\mathsf T}, \quad L_i < 20")
    of.casts["page"] = (replace(HEAD, settings=(*HEAD.settings, Setting("rounded", 9, change=hidden))),)
    one = Exactly(of).proof(last(of))
    assert one.word == "both" and one.proved == 0
    assert [text[:18] for text in one.measured] == ["in 1 of 6 settings", "'<' is an inequali"]


def test_a_proof_does_not_depend_on_what_was_proved_before(request):
    """The first display takes roots at the points that the second one would meet."""
    book = Book.at(request.config.rootpath)
    first, second = book.displays["prp:finite_change"], book.displays["why:finite_change"]
    exactly = Exactly(book)
    exactly.proof(first)
    assert exactly.proof(second) == Exactly(book).proof(second)
