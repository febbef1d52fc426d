"""The register of the sources: every entry has its verdict and its evidence, and both are there."""

import re
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import pages  # noqa: E402
import register  # noqa: E402

from attnmath.page.verdicts.book import Book  # noqa: E402

TEXT = """# A chapter

## Run as stated

```{code-cell} ipython3
# no heading
assert 1 + 1 == 2
```

### Below it

$$
A = B
$$ (err:slip)

## Words only

We assert nothing.

```{code-cell} ipython3
1 + 1  # assert, or check_vjp(f)
```

```python
assert 1 + 1 == 2
```

## Raised

```{code-cell} ipython3
:tags: [raises-exception]
1 / 0
```
"""
LEDGER = "| {eq}`err:slip` err:slip | {eq}`prp:a` | 8 of 8 | refuted | error 0.5 | none |\n"
ENTRY = {"id": "blog-01", "kind": "formula", "says": "A is B", "verdict": "wrong",
         "evidence": ["err:slip", "source_blog#run-as-stated"], "measured": "0.5",
         "corrected": "$A = C$"}
OTHERS = {**ENTRY, "evidence": ["source_blog#below-it"], "text": "a text", "where": "page 1"}


@pytest.fixture
def book(tmp_path):
    """A register of one entry for each source, as a function of the entries of the blog."""
    folder = tmp_path / "chapters" / "register"
    folder.mkdir(parents=True)
    (tmp_path / "chapters" / "source_blog.md").write_text(TEXT)
    (tmp_path / "chapters" / "ledger.md").write_text(LEDGER)

    def made(*entries, ledger=LEDGER):
        (tmp_path / "chapters" / "ledger.md").write_text(ledger)
        for name in register.SOURCES:
            one = OTHERS if name == "others" else {**ENTRY, "evidence": ["source_blog#below-it"]}
            listed = entries if name == "blog" else ({**one, "id": f"{name}-01"},)
            (folder / f"{name}.yml").write_text(yaml.safe_dump(list(listed)))
        return register.Register(tmp_path)

    return made


def test_an_entry_with_its_evidence_passes(book):
    assert book(ENTRY).faults() == []
    conditional = LEDGER.replace("error 0.5", "conditional: error 0.5")
    assert book({**ENTRY, "verdict": "conditional"}, ledger=conditional).faults() == []


@pytest.mark.parametrize("change, words", [
    ({"id": "blog-02"}, "the id should be blog-01"),
    ({"kind": "remark"}, "kind 'remark'"),
    ({"verdict": "right"}, "verdict 'right'"),
    ({"says": ""}, "no says"),
    ({"says": "A | B"}, "a bar in says"),
    ({"seen": "yes"}, "unknown key seen"),
    ({"evidence": []}, "wrong, and no evidence"),
    ({"measured": ""}, "wrong, and no measured"),
    ({"corrected": ""}, "wrong, and no corrected"),
    ({"verdict": "vacuous", "corrected": ""}, "vacuous, and no corrected"),
    ({"evidence": ["err:slips"]}, "no display err:slips"),
    ({"evidence": ["source_blog#elsewhere"]}, "no heading source_blog#elsewhere"),
    ({"evidence": ["source_none#words-only"]}, "no heading source_none#words-only"),
    ({"evidence": ["source_blog#words-only"]}, "nothing is asserted below source_blog#words-only"),
    ({"evidence": ["source_blog#no-heading"]}, "no heading source_blog#no-heading"),
    ({"evidence": ["err:slip", "source_blog#raised", "source_blog#words-only"]}, "asserted below source_blog#words"),
    ({"verdict": "true"}, "verdict 'true', and the engine found 'wrong': error 0.5"),
    ({"verdict": "conditional"}, "verdict 'conditional', and the engine found 'wrong'"),
    ({"evidence": ["source_blog#run-as-stated"]}, "err:slip: no entry of the register has it"),
])
def test_a_wrong_entry_is_told(book, change, words):
    assert any(words in fault for fault in book({**ENTRY, **change}).faults())


def test_a_conditional_formula_is_not_simply_wrong(book):
    conditional = LEDGER.replace("error 0.5", "conditional: error 0.5")
    faults = book(ENTRY, ledger=conditional).faults()
    assert any("the engine found 'conditional'" in fault for fault in faults)


def test_a_formula_that_the_ledger_does_not_have_is_told(book):
    for verdict in ("wrong", "true"):
        faults = book({**ENTRY, "verdict": verdict}, ledger="").faults()
        assert any("the ledger does not say how err:slip fails" in fault for fault in faults)


def test_what_raises_is_evidence(book):
    assert book({**ENTRY, "evidence": ["err:slip", "source_blog#raised"]}).faults() == []


def test_a_verdict_that_was_taken_back_says_so_and_is_counted(book):
    assert pages.judged(ENTRY) == "**wrong**: 0.5"
    milder = {**ENTRY, "revised": "We first called it worse"}
    assert pages.judged(milder) == "**wrong**: 0.5. *We first called it worse.*"
    assert "By this standard 0 of our first verdicts" in pages.overview(book(ENTRY))
    assert "By this standard 1 of our first verdicts" in pages.overview(book(milder))


def test_a_source_without_entries_is_told(book):
    assert "blog: no entries" in book().faults()


def test_every_entry_of_the_register_stands():
    found = register.Register(ROOT)
    assert found.faults() == []
    assert all(len(found.entries[name]) >= 10 for name in ("blog", "question", "sdpa", "merge"))


@pytest.fixture(scope="module")
def pages_of_the_book():
    return Book.at(ROOT)


def test_what_is_said_to_hold_instead_does(pages_of_the_book):
    assert register.Register(ROOT).unheld(pages_of_the_book) == []


@pytest.mark.parametrize("corrected, words", [
    ("so $dK = dS^{\\mathsf T} K$", "others-07: .*: inline:.*: (shape|value): "),
    ("so $$dK = dK$$", "others-07: .*: a display in the middle"),
])
def test_a_correction_that_does_not_hold_is_told(pages_of_the_book, corrected, words):
    found = register.Register(ROOT)
    found.entries = {"others": [{"id": "others-07", "corrected": corrected}]}
    assert [bool(re.match(words, fault)) for fault in found.unheld(pages_of_the_book)] == [True]


def test_the_pages_made_from_it_are_current(pages_of_the_book):
    for name, text in pages.pages(ROOT, register.Register(ROOT), pages_of_the_book).items():
        assert (ROOT / name).read_text("utf-8") == text, name


def test_every_wrong_statement_is_in_the_errata():
    text = (ROOT / "chapters" / "errata.md").read_text("utf-8")
    found = register.Register(ROOT)
    bad = [e for entries in found.entries.values() for e in entries if e["verdict"] in register.ERRATA]
    assert len(re.findall(r"^\| (?!published|---)", text, re.M)) == len(bad) > 20
    published = {label for label in found.labels if label.startswith("err:")}
    assert published == {label for label in published if f"{{eq}}`{label}`" in text}


def test_the_cheat_sheet_answers_what_was_asked():
    """Inputs, weights and biases, for each of the three kinds of attention."""
    text = (ROOT / "chapters" / "cheat_sheet.md").read_text("utf-8")
    for letter in ("dX", "dZ", "dW^Q_h", "dW^K_h", "dW^V_h", "dW^O_h", "db^Q_h", "db^V_h", "db^O"):
        assert f"| ${letter} = " in text, letter
    for title in ("Self-attention in the encoder", "Encoder–decoder", "Masked self-attention"):
        assert title in text


def test_a_line_that_is_not_there_is_refused():
    book = pages.Book.at(ROOT)
    with pytest.raises(SystemExit, match="has not each of"):
        pages.rows_of(book, "eq:multihead_vjp", {"only": ["dX", "dW"]})
