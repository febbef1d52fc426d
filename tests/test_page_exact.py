"""Displays in exact arithmetic: what is proved, what is refuted, and what stays measured."""

from dataclasses import replace

import pytest

from attnmath.page._cast import Setting
from attnmath.page._chapter import Fault
from attnmath.page._exact import roomy
from attnmath.page._ledger import proof_cell, reason, summary, unproved
from attnmath.page._listed import Entry
from attnmath.page._nodes import PageError
from attnmath.page._proofs import Exactly, proof_or_fault
from attnmath.page._survivors import proofs_or_faults
from page_book import HEAD, book, last


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
    (r"\lVert M \rVert_2 \le \lVert M \rVert_F", "measured", "svdvals"),
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
    assert one.word == "refuted" and proof_cell(one).startswith("refuted")
    with pytest.raises(PageError, match="it holds in the setting"):
        proof(r"dV = P^{\mathsf T} dO", "err:tested")


def test_a_setting_with_rounded_numbers_is_left_out_with_its_reason():
    def rounded(values, sizes):
        values["c"] = values["c"] * 0.1

    of = book(r"c M^{\mathsf T} = (M c^{\mathsf T})^{\mathsf T}")
    of.casts["page"] = (replace(HEAD, settings=(Setting("rounded", 1, change=rounded),)),)
    one = Exactly(of).proof(last(of))
    assert one.word == "measured"
    assert "0.1 leaves the algebra" in next(iter(one.measured))


def test_sizes_are_raised_so_that_scores_are_independent():
    for setting in HEAD.settings:
        sizes = {**HEAD.sizes, **roomy(HEAD, setting).sizes}
        assert sizes["d_k"] >= min(sizes["n"], sizes["m"])


def test_a_process_turns_errors_into_faults_and_judges_survivors():
    of = book(r"dA = P \circ dO V^{\mathsf T}")
    assert isinstance(proof_or_fault(of, last(of)), Fault)
    of = book(r"dV = P^{\mathsf T} dO")
    alive = [Entry("prp:tested", r"dV = (1 + 2^{-60}) P^{\mathsf T} dO", "", 0),
             Entry("prp:tested", r"dV_{ij} = \sum_k P_{ki} dO_{kj}", "", 0)]  # fmt: skip
    refuted, proved = proofs_or_faults(alive, of, last(of))
    assert "float64 does not see it" in refuted and proved.word == "proved"


def test_the_summary_counts_words():
    ones = [proof(PROVED[0]), proof(MEASURED[0][0])]
    (line,) = summary(ones)
    assert "proved: 1, refuted: 0, both: 0, measured: 1" in line
    assert reason("'>' of letters leaves the algebra, at _values.py:1 (extreme)") == "'>' of letters leaves the algebra"
