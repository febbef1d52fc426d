"""A label is a promise: function, listing, test, one name; letters have their lines."""

from dataclasses import replace

import pytest

from attnmath.page.language.chapter import read_text
from attnmath.page.ledger.ledger import decade, hashes, stale
from attnmath.page.ledger.rows import RowKeys
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.labels import label_faults
from page_book import HEAD, PAGE

NOTATION = "| letters | shape |\n| --- | --- |\n| $Q$, $K$ | n |\n| $V, A$ | n |\n| $P$, $O$, $L$, $D$ | n |\n| $q$, $k$, $v$, $o$ | rows |\n"
LISTING = "\n```{code-cell} ipython3\nshow(logsumexp)\n```\n"


def faults(tmp_path, page=PAGE + LISTING, notation=NOTATION, test="def test_logsumexp(): assert x == 1"):
    (tmp_path / "tests").mkdir(exist_ok=True)
    (tmp_path / "tests" / "test_x.py").write_text(test)
    chapters = [read_text(page, "chapters/page.md"), read_text(notation, "chapters/notation.md")]
    found = label_faults(Book(chapters, {"page": (HEAD,)}), tmp_path)
    return [str(f) for f in found if "no display has this label" not in str(f)]


def test_a_page_that_keeps_its_promises(tmp_path):
    assert faults(tmp_path) == []


NO_TEST = r"page.md:4:\d+: eq:logsumexp: .*no test_logsumexp that asserts"
BROKEN = {
    "no listing": (dict(page=PAGE), r"page.md:4:\d+: eq:logsumexp: .*show\(logsumexp\)"),
    "no test": (dict(test="def test_y(): assert x"), NO_TEST),
    "an empty test": (dict(test="def test_logsumexp(): pass"), NO_TEST),
    "a test of nothing": (dict(test="def test_logsumexp(): assert 1 == 1"), NO_TEST),
    "a test that is not run": (dict(test="@pytest.mark.skip\ndef test_logsumexp(): assert x"), NO_TEST),
    "a test in a function": (dict(test="def f():\n  def test_logsumexp(): assert x"), NO_TEST),
    "no function": (
        dict(page=PAGE.replace("eq:logsumexp", "eq:logsumexq") + LISTING),
        r"page.md:4:\d+: eq:logsumexq: .*no public function logsumexq",
    ),
    "twice": (
        dict(page=PAGE + LISTING + "\n$$ A = A $$ (prp:HEAD)\n"),
        "prp:HEAD: label: the label stands in",
    ),
    "no line": (
        dict(page=PAGE + LISTING.replace("\n```{", "\n\n$$ V = V $$ (prp:y)\n\n```{", 1),
             notation=NOTATION.replace("$V, A$", "$A$")),
        r"page.md:\d+:.*V has no line in the notation",
    ),
}


@pytest.mark.parametrize("letters, missing", [
    ("| $V$ | values |", False), ("Those of {doc}`other`.", False), ("| $K$ | keys |", True),
    ("Those of {doc}`the other <other>`.", False), ("Those of {doc}`another`.", True)])
def test_a_letter_may_have_its_line_at_the_end_of_its_chapter(tmp_path, letters, missing):
    page = PAGE + LISTING.replace("\n```{", "\n\n$$ V = V $$ (prp:y)\n\n```{", 1)
    page += f"\n## Letters of this chapter\n\n{letters}\n"
    other = read_text("\n## Letters of this chapter\n\n| $V$ | values |\n", "chapters/other.md")
    notation = read_text(NOTATION.replace("$V, A$", "$A$"), "chapters/notation.md")
    (tmp_path / "tests").mkdir()
    book = Book([read_text(page, "chapters/page.md"), other, notation], {"page": (HEAD,)})
    assert any("V has no line" in str(fault) for fault in label_faults(book, tmp_path)) == missing


@pytest.mark.parametrize("test", ["check_vjp(f)", "t.assert_close(a, b)", "with pytest.raises(E): f()"])
def test_a_test_that_calls_a_check_asserts(tmp_path, test):
    assert faults(tmp_path, test=f"def test_logsumexp():\n    {test}") == []


@pytest.mark.parametrize("change, message", BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_a_fault(tmp_path, change, message):
    import re

    assert any(re.search(message, fault) for fault in faults(tmp_path, **change))


def test_a_public_rule_needs_a_display(tmp_path):
    chapters = [read_text(PAGE, "chapters/page.md")]
    found = label_faults(Book(chapters, {"page": (HEAD,)}), tmp_path)
    assert any("eq:softmax_vjp: no display" in str(f) for f in found)


def test_the_ledger_is_stale_after_an_edit(tmp_path):
    (tmp_path / "chapters").mkdir()


    def book(text, cast=HEAD):
        return Book([read_text(text, "chapters/page.md")], {"page": (cast,)})

    def old(book):
        return stale(book, RowKeys(book, tmp_path), tmp_path)

    lines = [f"| `{k}` | `{v}` |" for k, v in hashes(book(PAGE), RowKeys(book(PAGE), tmp_path)).items()]
    (tmp_path / "chapters" / "ledger.md").write_text("\n".join(lines) + "\n")
    assert old(book(PAGE)) == old(book("A new sentence.\n" + PAGE)) == []
    assert old(book(PAGE.replace("dO \\circ O", "O \\circ dO"))) == ["chapters/page.md"]
    assert old(book(PAGE, replace(HEAD, sizes={**HEAD.sizes, "n": 7}))) == ["chapters/page.md"]
    (tmp_path / "chapters" / "ledger.md").unlink()
    assert old(book(PAGE)) == ["chapters/page.md", "engine", "listed identities"]


@pytest.mark.parametrize("error, shown", [(0.0, "0"), (3e-16, "10⁻¹³"), (2e-13, "10⁻¹²"), (0.5, "10⁰")])
def test_decade(error, shown):
    assert decade(error) == shown
