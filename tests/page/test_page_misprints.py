"""Every kind of misprint is made, and judged; survivors are reported with their kind."""

from collections import Counter

import pytest

from attnmath.page.language.nodes import PageError
from attnmath.page.language.syntax import parse
from attnmath.page.ledger.ledger import report
from attnmath.page.ledger.rows import Entry, identity_faults, listed_in
from attnmath.page.misprints.edits import latex
from attnmath.page.misprints.misprints import Original, Survivor, Tally, tally
from attnmath.page.misprints.mutations import misprints
from attnmath.page.verdicts.judge import judge
from page_book import HEAD, book, last


def texts(display: str) -> dict[str, list[str]]:
    one = last(book(display))
    found: dict = {}
    for misprint in misprints(one.text, one.statements, HEAD):
        found.setdefault(misprint.kind, []).append("".join(misprint.apply(one.text).split()))
    return found


MADE = [
    ("dV = P V", "letter", "dV=AV"),
    ("dV = P V", "letter", "dQ=PV"),
    ("dV = P V", "d or dot", "V=PV"),
    ("dV = P V", "d or dot", r"\dotV=PV"),
    ("dV = P V", "d or dot", "dV=dPV"),
    ("dV = P V", "d or dot", r"dV=P\dotV"),
    ("o_i = v_i", "letter", "q_i=v_i"),
    ("dV = P V", "transpose gained", r"dV=P^{\mathsfT}V"),
    ("dV = P V", "transpose gained", r"dV=(PV)^{\mathsfT}"),
    (r"V = P^{\mathsf T} A", "transpose lost", "V=PA"),
    ("dV = P A V", "factor lost", "dV=AV"),
    ("dV = P A V", "factor lost", "dV=PA"),
    ("dV = P A V", "order", "dV=APV"),
    ("dV = P A V", "product kind", r"dV=P\circAV"),
    (r"A = P \circ dP", "product kind", "A=PdP"),
    (r"A = P \circ dP", "factor lost", "A=P"),
    (r"A = P \circ dP", "factor lost", "A=dP"),
    (r"L = \operatorname{rowsum}(A)", "function lost", "L=(A)"),
    (r"P = \operatorname{softmax}(A)", "function", r"P=\operatorname{log_softmax}(A)"),
    (r"L = \sqrt{L}", "function lost", "L=(L)"),
    ("A = P + dP - B", "sign", "A=P-dP-B"),
    ("A = P + dP - B", "sign", "A=P+dP+B"),
    ("A = P + dP - B", "sign", "A=-P+dP-B"),
    ("A = P + dP - B", "sign", "-A=P+dP-B"),
    ("A = P + dP - B", "term lost", "A=dP-B"),
    ("A = P + dP - B", "term lost", "A=P-B"),
    ("A = P + dP - B", "term lost", "A=P+dP"),
    ("A = P - B", "term lost", "A=-B"),
    ("A_{ij} = P_{ij}", "index", "A_{ji}=P_{ij}"),
    ("A_{ij} = P_{ij}", "index", "A_{jj}=P_{ij}"),
    (r"L_i = \sum_j P_{ij}", "index", r"L_i=\sum_iP_{ij}"),
    (r"L_i = \sum_j P_{ij}", "function lost", "L_i=P_{ij}"),
    (r"L_i = \sum_j P_{ij}", "function", r"L_i=\prod_jP_{ij}"),
    (r"L_i = \sum_{j \le i} P_{ij}", "range", r"L_i=\sum_{j<i}P_{ij}"),
    (r"L_i = \sum_{j \le i} P_{ij}", "range", r"L_i=\sum_{j\gei}P_{ij}"),
    (r"L_i = \sum_{j \le i} P_{ij}", "range", r"L_i=\sum_{j}P_{ij}"),
    ("A = 2 P", "number", "A=3P"),
    ("L_1 = L_i", "number", "L_2=L_i"),
    ("A = P^2", "power lost", "A=P"),
    ("A = P / n", "order", "A=n/P"),
    ("A = P / n", "size", "A=P/m"),
    (r"A = \frac{P}{n}", "factor lost", "A={P}"),
    (r"A = \frac{P}{n}", "order", r"A=\frac{n}{P}"),
    (r"A \le P", "relation", "A=P"),
    (r"A \le P", "relation", r"A\geP"),
    (r"A \le P", "relation", "A<P"),
    ("A = P", "relation", r"A\neP"),
    (r"A = 0 \quad \text{if } K = 0", "condition lost", "A=0"),
    (r"\bar k := Q \quad A = \bar k", "letter", r"\bark:=K\quadA=\bark"),
    (r"\bar k := Q \quad A = \bar k", "accent lost", r"\bark:=Q\quadA=k"),
    ("A = (P + A) V", "pair lost", "A=P+AV"),
    ("A_{ij} = P_{ij}", "pair lost", "A_ij=P_{ij}"),
    (r"A_{ij} = P_{ij} \quad \text{if } i < j", "relation", r"A_{ij}=P_{ij}\quad\text{if}i>j"),
    (r"L = \frac{\partial D}{\partial c}", "order", r"L=\frac{\partialc}{\partialD}"),
    ("A_{ij} = P_{ij}", "index", "A_{1j}=P_{ij}"),
    ("A_{ij} = P_{ij} A_{ij}", "index", "A_{ij}=P_{1j}A_{1j}"),
    ("A_{ij} = P_{ij} A_{ij}", "index", "A_{ij}=P_{ji}A_{ji}"),
    (r"A_{ij} = 0 \quad \text{if } P_{ij} = 0", "index", r"A_{ij}=0\quad\text{if}P_{i1}=0"),
    (r"L_i = \sum_j P_{ij}", "range", r"L_i=\sum_{j\lei}P_{ij}"),
    (r"L_i = \sum_j P_{ij}", "range", r"L_i=\sum_{j>1}P_{ij}"),
    (r"L_i = \sum_{j \le i} P_{ij}", "range", r"L_i=\sum_{j\lei+1}P_{ij}"),
    (r"A_{ij} = 0 \quad \text{if } i < j", "condition weaker", r"A_{ij}=0\quad\text{if}i\lej"),
    (r"A_{ij} = 0 \quad \text{if } P_i = 0", "condition weaker", r"A_{ij}=0\quad\text{if}P_{i1}=0"),
    (r"A = 0 \quad \text{if } K = 0", "condition weaker", r"A=0\quad\text{if}K_1=0"),
    (r"A_{ij} = 0 \quad \text{if } i \le j", "condition stronger", r"A_{ij}=0\quad\text{if}i<j"),
    (r"A_{ij} = 0 \quad \text{if } P_{ij} = 0", "condition stronger", r"A_{ij}=0\quad\text{if}P_{i}=0"),
    (r"A_{ij} = 0 \quad \text{if } P_{ij} = 0", "condition stronger", r"A_{ij}=0\quad\text{if}P=0"),
    (r"A_{ij} = 0 \quad \text{if } P_{ij} = 0", "another condition", r"A_{ij}=0\quad\text{if}i<j"),
    (r"A_{ij} = 0 \quad \text{if } P_{ij} = 0", "another condition", r"A_{ij}=0\quad\text{if}j=m"),
    (r"A = 0 \quad \text{if } P = 0", "another condition", r"A=0\quad\text{when}n=m"),
    (r"A_{ij} = 0 \quad \text{if } P_{ij} = -\infty", "condition weaker", r"A_{ij}=0\quad\text{if}P_{ij}<-10"),
    (r"A = 0 \quad \text{when } P K = K", "condition weaker", r"A=0\quad\text{when}(PK)_{1}=(K)_{1}"),
    (r"A = 0 \quad \text{when } P = \mathbf 1 \mathbf 1^{\mathsf T}", "condition weaker",
     r"A=0\quad\text{when}(P)_{1}=\mathbf1^{\mathsfT}"),
    (r"A \le P", "a tenth", r"A\le\frac{1}{10}(P)"),
    (r"-P \le A \le P", "a tenth", r"\frac{1}{10}(-P)\leA\leP"),
    (r"A > P", "a tenth", r"\frac{1}{10}(A)>P"),
    (r"A \approx P \quad \text{within } 0.5", "a tenth", r"A\approxP\quad\text{within}0.05"),
]


@pytest.mark.parametrize("display, kind, misprint", MADE)
def test_made(display, kind, misprint):
    assert misprint in texts(display).get(kind, [])


def test_a_weakened_relation_and_a_reordering_are_no_misprints():
    found = [t for kind in texts(r"\langle A, P \rangle \le 1").values() for t in kind]
    assert r"\langleP,A\rangle\le1" not in found
    assert not [t for t in texts("A = P")["relation"] if "le" in t]


@pytest.mark.parametrize("display, weaker", [
    (r"\lvert A \rvert \le P", True), (r"P > \lvert A \rvert", True),
    (r"P \le \lvert A \rvert", False), (r"\lvert A \rvert = P", False), (r"0 \le \lvert A \rvert \le P", False)])
def test_a_bound_on_less_than_a_size_is_no_misprint(display, weaker):
    made = {t for found in texts(display).values() for t in found}
    bare = "".join(display.split())
    others = {bare.replace(r"\lvertA\rvert", new) for new in (r"-\lvertA\rvert", "(A)")}
    assert others.isdisjoint(made) if weaker else others <= made


def test_names_in_latex():
    assert latex("", "Q") == "Q" and latex("d", "gamma") == r"d\gamma"
    assert latex("dot", "Q") == r"\dot Q" and latex("dot", "tau") == r"\dot \tau"
    assert latex("", "bar k") == r"\bar k"


SHARP = [
    r"dV = P^{\mathsf T} dO",
    r"dA = P \circ (dO\, V^{\mathsf T} - D \mathbf 1^{\mathsf T})",
    r"dP_{ij} = \langle dO_i, v_j \rangle",
    r"\dot L = \operatorname{rowsum}(P \circ \dot A)",
]


def test_how_a_line_is_set_changes_no_misprint():
    one, two = (tally(whole := book(text), last(whole)) for text in (
        r"\begin{aligned} dA &= P \circ (dO\, V^{\mathsf T} \\ &\quad - D \mathbf 1^{\mathsf T}) \end{aligned}",
        r"\begin{aligned} dA &= P \circ \Bigl(dO\, V^{\mathsf T} \\[4pt] &\quad {} - D \mathbf 1^{\mathsf T}\Bigr)"
        r" \end{aligned}"))
    assert one.rejected == two.rejected and one.survivors == two.survivors == ()


@pytest.mark.parametrize("display", SHARP)
def test_every_misprint_of_a_sharp_display_is_rejected(display):
    one = book(display)
    assert judge(one, last(one)).comparisons
    result = tally(one, last(one))
    assert result.survivors == () and result.tried >= 20
    assert set(result.rejected) >= {"value", "shape"}


def test_what_a_symmetry_allows_survives_and_nothing_else():
    one = book(r"\frac{\partial P_{ij}}{\partial A_{kl}} = \delta_{ik} P_{ij} (\delta_{jl} - P_{il})")
    left = [s.statement.partition("}}{")[0] for s in tally(one, last(one)).survivors]
    assert left == [r"\frac{\partial P_{kj", r"\frac{\partial P_{il"]  # the blocks, and each of them


STRONGER = [  # a condition, and a stronger one; whether some setting tells them apart
    (r"P_{ij} A_{ij} = A_{ij} P_{ij} + 0 P_{ij}", r"i \le j", r"i < j", True),
    (r"c M = 0", r"M_1 = 0", r"M = 0", False),  # M vanishes whole or not at all
]


@pytest.mark.parametrize("claim, condition, stronger, is_told", STRONGER)
def test_a_stronger_condition_has_to_be_told_apart_by_a_setting(claim, condition, stronger, is_told):
    one = book(rf"{claim} \quad \text{{if }} {condition}")
    found = [s.statement for s in tally(one, last(one)).survivors if s.kind == "condition stronger"]
    assert any(s.endswith(stronger) for s in found) != is_told


def test_a_slack_bound_survives_and_is_reported():
    one = book(r"\operatorname{rowsum}(P \circ P) \le 2 L \circ L + 3 \operatorname{rowsum}(P)")
    result = tally(one, last(one))
    assert {"relation", "number", "term lost"} <= {s.kind for s in result.survivors}
    sharp = book(r"\operatorname{rowsum}(P) \le \mathbf 1")
    assert "a tenth" not in {s.kind for s in tally(sharp, last(sharp)).survivors}
    loose = book(r"\operatorname{rowsum}(P) \le 11 \cdot \mathbf 1")
    assert "a tenth" in {s.kind for s in tally(loose, last(loose)).survivors}
    lines, faults = report([result], [])
    assert len(faults) == len(result.survivors) and "survives" in faults[0]
    listed = [Entry(s.label, s.statement, "D = D + 0 D", 1) for s in result.survivors]
    assert report([result], listed)[1] == []


PARTS = [
    r"\begin{aligned} P &= \operatorname{softmax}(A) \\ O &= P V, \quad L_i = 0 \quad \text{if } Q = 0 \end{aligned}",
    r"dP_{ij} = \langle dO_i, v_j \rangle, \quad D_i = \sum_j P_{ij} dP_{ij}",
]


@pytest.mark.parametrize("display", PARTS)
def test_a_statement_read_alone_is_the_same_as_in_its_display(display):
    one = book(display)
    judged = Original(one, last(one), HEAD)

    def said(read, *x):
        try:
            return [(s.members, s.relations, [c[:3] for c in s.conditions]) for s in read(*x)]
        except PageError as error:
            return error.kind

    whole = judged.display.text
    for misprint in misprints(whole, judged.statements, HEAD, True):
        text = misprint.apply(whole)
        assert said(judged.read, misprint, text) == said(parse, text)


def test_another_way_to_write_the_same_is_not_counted():
    one = book(r"dP_{ij} = \sum_l dO_{il} V_{jl}")
    result = tally(one, last(one))
    assert result.same > 0 and result.survivors == ()


def test_an_entry_that_no_longer_survives_is_a_fault():
    one = book(SHARP[0])
    result = tally(one, last(one))
    stale = Entry("prp:tested", "dV = P dO", "D = D + 0 D", 3)
    assert report([result], [stale])[1] == ["line 3: prp:tested: no longer survives: dV = P dO"]


def test_an_entry_does_not_say_how_its_lines_are_broken():
    found = Survivor("prp:tested", r"& A \\ &\quad = P \\ &\qquad + B", "letter")
    entries = [Entry("prp:tested", text, "", 3) for text in (r"A &= P \\ &\quad {} + B", r"A &= P \\ &\quad {} - B")]
    one = Tally("prp:tested", Counter(), survivors=(found,))
    assert report([one], entries[:1])[1] == [] and len(report([one], entries[1:])[1]) == 2


def test_an_identity_in_the_list_must_hold(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text(
        "# a comment\n\n"
        r"prp:tested | dV = P | D = \operatorname{rowsum}(P \circ dP)" "\n"
        r"prp:tested | dV = A | D = \operatorname{rowsum}(P)" "\n"
        r"prp:gone | dV = A | D = \operatorname{rowsum}(P)" "\n"
    )
    listed = listed_in(path)
    assert [e.line for e in listed] == [3, 4, 5]
    faults = identity_faults(book(r"dP = dO\, V^{\mathsf T}"), listed, path)
    assert len(faults) == 2 and "list.txt:4" in faults[1] and "no display prp:gone" in faults[0]


@pytest.mark.parametrize("display", [*SHARP, r"""\begin{aligned}
    X_{ij} &:= \langle dO_i, v_j \rangle - D_i \\ Y_{ij} &:= P_{ij} X_{ij} \\
    dA_{ij} &= Y_{ij} \\ P_{ij} dP_{ij} &= P_{ij} D_i + Y_{ij} \quad \text{if } i \le 2 \end{aligned}"""])
def test_what_a_misprint_takes_over_from_its_display_changes_no_verdict(display, monkeypatch):
    one = book(display)
    found = tally(one, last(one))
    monkeypatch.setattr(Original, "trials", ())
    monkeypatch.setattr("attnmath.page.misprints.misprints.shared", lambda old, new: new)
    assert tally(one, last(one)) == found and found.tried > 20
