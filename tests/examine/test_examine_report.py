"""How a report reads: as text, JSON, HTML, XML; and what it does to a test."""

import json
import re
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from attnmath import examine
from attnmath._examine.problems.case import Conventions
from attnmath._examine.report.report import Finding, Report, TriedProblem

NO_D = Finding(
    "mistake", "D_missing", "the row term D is missing in the way back", "dQ and dK, every row",
    "chapters/attention.md, eq:attention_vjp", "subtract D = rowsum(dO * O) from dP",
    "the error is 3,100 times what rounding allows",
)
HAZARD = Finding("hazard", "finite_mask", "a row masked by a finite number has gradients 64 times too large")
PROBLEMS = (
    TriedProblem("hard, n < m", frozenset({"hard", "n != m"}), {"O": 0.0, "dQ": 0.0}, True),
    TriedProblem("gaussian 1", frozenset({"gaussian"}), {"O": 0.1, "dQ": 3100.0}, False, "dQ[0, 1, 2, 3]"),
    TriedProblem("gaussian 2", frozenset({"gaussian", "mask"}), {"O": 0.1, "dQ": float("inf")}, False),
    TriedProblem("probe: empty", frozenset(), {}, True),
)
WRONG = Report(
    "wrong", "my <attention>", "torch", "float32", Conventions("bhsd", "keep", "upper_left"), (NO_D,),
    (HAZARD,), PROBLEMS, "import numpy as np\nprint(1 < 2)\n", 7.25, 4.0, Conventions(scale="1"), 17,
)
RIGHT = Report("right", "f", "jax", "bfloat16", problems=PROBLEMS[:1], seconds=0.5)
UNJUDGED = Report("not judged", "f", findings=(Finding("contract", "raises", "it raises ValueError: no"),))
every = pytest.mark.parametrize("report", [WRONG, RIGHT, UNJUDGED], ids=lambda r: r.verdict)


def test_the_text_of_a_wrong_one():
    assert str(WRONG) == """\
my <attention> is wrong in the backward (dQ): the row term D is missing in the way back.
  conventions  layout bhsd, mask keep, causal upper-left
  demanded     scale 1
  mistake      the row term D is missing in the way back
    where      dQ and dK, every row
    formula    chapters/attention.md, eq:attention_vjp
    cure       subtract D = rowsum(dO * O) from dP
    evidence   the error is 3,100 times what rounding allows
  hazard       a row masked by a finite number has gradients 64 times too large
  tried        4 problems in 7.2 s, 2 fail: hard 1, gaussian 2 of 2, probe 1; torch, float32;
               constant 4; seed 17

The smallest case that fails, to be pasted:

    import numpy as np
    print(1 < 2)"""


@pytest.mark.parametrize(("change", "sentence"), [
    ({}, ""),
    ({"hazards": (HAZARD,)}, ", with a hazard"),
    ({"hazards": (HAZARD, HAZARD)}, ", with 2 hazards"),
    ({"conventions": Conventions("bshd", "drop", "lower_right", "blocks", "1/sqrt(d_k)", "zero")}, ""),
    ({"conventions": Conventions(causal="upper_left")}, ", for upper-left alignment"),
    ({"conventions": Conventions(causal="upper_left"), "told": Conventions(causal="upper_left")}, ""),
    ({"conventions": Conventions(groups="interleaved", scale="1", empty="nan", inside="float32")},
     ", for groups in which query head h reads head h mod G, for the scale 1,"
     " for rows that may attend to nothing: nan, with a softmax in float32"),
])
def test_the_sentence_of_a_right_one(change, sentence):
    assert replace(RIGHT, **change).sentence == "right: 1 of 1 problem" + sentence


def test_the_sentence_of_a_wrong_one():
    unnamed = Finding("unnamed", "dK", "dK is wrong, and no formula explains it", "rows 48 to 60")
    contract = Finding("contract", "inputs_modified", "it writes into q")
    more = replace(WRONG, findings=(unnamed, NO_D, contract))
    assert more.sentence == "wrong: it writes into q (and 2 more)"
    assert replace(WRONG, findings=()).sentence == "wrong in the backward (dQ)"
    assert UNJUDGED.sentence == "not judged, so nothing is known: it raises ValueError: no"


def test_the_sentence_is_one_short_line_and_the_report_below_has_all():
    words = "it raises ValueError:\n" + "no such kernel " * 40
    long = replace(UNJUDGED, findings=(replace(UNJUDGED.findings[0], title=words),))
    assert "\n" not in long.sentence and len(long.sentence) < 200 and long.sentence.endswith("kernel no…")
    assert str(long).count("kernel") > 40
    exact = replace(UNJUDGED.findings[0], title="x" * 160)
    assert replace(UNJUDGED, findings=(exact,)).sentence.endswith("x" * 160)


def test_where_it_is_wrong_stands_in_the_sentence_if_nothing_else_is_known():
    unnamed = Finding("unnamed", "unnamed", "the mistake has no name here", "dQ; dV")
    assert replace(WRONG, findings=(unnamed,)).sentence == (
        "wrong in the backward (dQ): the mistake has no name here (dQ, dV)")
    assert replace(WRONG, findings=(NO_D,)).sentence == f"wrong in the backward (dQ): {NO_D.title}"


def softmax(A):
    E = np.exp(A - A.max(-1, keepdims=True))
    return E / E.sum(-1, keepdims=True)


def forward(q, k, v):
    return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v


def backward(do, q, k, v, *, without_D=False):
    gamma = 1 / np.sqrt(q.shape[-1])
    P, dP = softmax(q @ k.swapaxes(-1, -2) * gamma), do @ v.swapaxes(-1, -2)
    dA = P * (dP if without_D else dP - (P * dP).sum(-1, keepdims=True))
    return gamma * dA @ k, gamma * dA.swapaxes(-1, -2) @ q, P.swapaxes(-1, -2) @ do


def raises(q, k, v):
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize(("fn", "way_back", "sentence"), [
    (forward, backward, r"right: (\d+) of \1 problems"),
    (forward, partial(backward, without_D=True), r"wrong in the backward \(dQ, dK\): the row term D is missing: dA = P o dP"),
    (forward, None, r"right in its output, and no gradient was judged: (\d+) of \1 problems"),
    (raises, backward, "not judged, so nothing is known: .*RuntimeError: no such kernel.*"),
    (lambda q, k, v: np.tanh(q @ k.swapaxes(-1, -2)) @ v, None, "(wrong|not an attention of the list; ).+"),
])
def test_the_sentence_of_somebody_s_function(fn, way_back, sentence):
    report = examine(fn, way_back, framework="numpy", seed=0, smallest=False)
    assert re.fullmatch(sentence, report.sentence) and len(report.sentence) < 250


def test_lines_to_paste_stay_lines():
    report = replace(RIGHT, hazards=(replace(HAZARD, evidence="import torch\nif True:\n    print(1 < 2)"),))
    assert "    evidence\n      import torch\n      if True:\n          print(1 < 2)\n  tried " in str(report)
    assert '<pre tabindex="0" style="overflow:auto">import torch\nif True:\n    print(1 &lt; 2)</pre>' in report._repr_html_()


def test_a_name_with_an_underscore_stays_as_it_is():
    report = replace(RIGHT, conventions=Conventions(causal="lower_right", scale="1/sqrt(d_k)"))
    assert "  conventions  causal lower-right, scale 1/sqrt(d_k)" in str(report).splitlines()


def test_a_convention_that_was_found_is_no_reason_of_the_verdict():
    found = Finding("convention", "causal", "the alignment is upper-left")
    report = replace(WRONG, findings=(found, NO_D))
    assert report.sentence == WRONG.sentence
    assert "  convention   the alignment is upper-left" in str(report).splitlines()


@every
def test_lines_are_short(report):
    long = replace(report, hazards=(replace(HAZARD, title="word " * 60, cure="and " * 60),))
    assert all(len(line) <= 100 for line in str(long).splitlines())


@pytest.mark.parametrize(("report", "right", "wrong", "status"), [
    (RIGHT, True, False, 0), (WRONG, False, True, 1), (UNJUDGED, False, False, 2),
])
def test_verdict_and_exit_status(report, right, wrong, status):
    assert (report.right, report.wrong, report.status) == (right, wrong, status)


def test_a_test_fails_with_the_report():
    RIGHT.raise_if_wrong()
    with pytest.raises(AssertionError) as wrong:
        WRONG.raise_if_wrong()
    assert str(wrong.value) == str(WRONG)
    with pytest.raises(AssertionError, match="f is not judged, so nothing is known"):
        UNJUDGED.raise_if_wrong()


@every
def test_json_comes_back(report):
    text = report.to_json()
    assert Report.from_json(text) == report
    x = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert x["verdict"] == report.verdict and x["sentence"] == report.sentence


def test_another_report_has_another_json():
    assert Report.from_json(replace(WRONG, seconds=7.5).to_json()) != WRONG


class Elements(HTMLParser):
    """The elements, whether they are closed in order, and the text in them."""

    def __init__(self, text):
        super().__init__()
        self.open, self.names, self.attributes, self.text = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.names.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@every
def test_html_is_closed_escaped_and_without_scripts(report):
    page = Elements(report._repr_html_())
    assert not page.open and "script" not in page.names and "attention" not in page.names
    assert f"{report.candidate} is {report.sentence}." in page.text
    assert all(name in ("style", "scope", "aria-label", "tabindex") for name, _ in page.attributes)


def test_html_is_read_in_light_and_dark():
    assert not re.search(r"#[0-9a-f]{3}|rgb|background|[^t]color:", WRONG._repr_html_(), re.IGNORECASE)


def test_html_names_its_rows_for_those_who_listen():
    page = Elements(WRONG._repr_html_())
    assert page.names.count("th") == page.attributes.count(("scope", "row")) == page.names.count("tr") > 5
    assert ("aria-label", "Examination of my <attention>") in page.attributes
    assert "print(1 < 2)" in page.text


@pytest.mark.parametrize(("report", "counts", "cases"), [
    (WRONG, ("4", "2", "0"), ["verdict", "hard (1 problem)", "gaussian (2 problems)", "probe (1 problem)"]),
    (RIGHT, ("2", "0", "0"), ["verdict", "hard (1 problem)"]),
    (UNJUDGED, ("1", "0", "1"), ["verdict"]),
])
def test_junit(report, counts, cases):
    suite = ElementTree.fromstring(report.to_junit().encode()).find("testsuite")
    assert tuple(suite.get(name) for name in ("tests", "failures", "errors")) == counts
    assert [case.get("name") for case in suite.iter("testcase")] == cases
    assert len(list(suite.iter("failure"))) == int(counts[1]) and len(list(suite.iter("error"))) == int(counts[2])
    assert str(report) == suite.find("system-out").text


def test_junit_says_which_problems_fail():
    suite = ElementTree.fromstring(WRONG.to_junit().encode())
    failure = suite.findall(".//failure")[1]
    assert failure.get("message") == "2 of 2 problems fail"
    assert failure.text == "gaussian 1: O 0.1, dQ 3.1e+03 (dQ[0, 1, 2, 3])\ngaussian 2: O 0.1, dQ inf"


def test_junit_leaves_out_what_xml_cannot_hold():
    odd = replace(UNJUDGED, findings=(Finding("contract", "raises", "it raises \x00\x1b[31mred\ud800"),))
    suite = ElementTree.fromstring(odd.to_junit().encode())
    assert suite.find(".//error").get("message").endswith("it raises [31mred")


@pytest.mark.parametrize(("make", "message"), [
    (lambda: replace(NO_D, kind="bug"), "kind is 'bug'; it needs to be one of contract, mistake"),
    (lambda: replace(RIGHT, verdict="good"), "verdict is 'good'; it needs to be one of right, wrong"),
])
def test_unknown_words_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_at_the_prompt_a_report_is_one_line():
    report = Report("wrong", "f", findings=(Finding("mistake", "D_missing", "the row term is missing"),))
    assert repr(report) == f"<Report of f: {report.sentence}>" and "\n" not in repr(report)
