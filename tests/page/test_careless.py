"""What a careless author does, and that `make book` goes red each time.

The commands are those of the Makefile (a test compares them), run in a copy of the project; the
copy is checked untouched first, so that what is red is red because of the mistake. The pages'
check is run on the chapters that the mistakes are in: `make book` checks those, and all others.
"""

import re
from contextlib import contextmanager

import nbformat
import pytest

import attnmath.page.__main__
import copied
from attnmath.page.__main__ import check_book
from attnmath.page.language.chapter import PageFault
from attnmath.page.verdicts.book import Book
from copied import ROOT, copy_project

PAGES = "-m attnmath.page check"
LEDGER = "-m attnmath.page ledger --check"
PAIRS = "tools/nb.py check"
MADE = "tools/pages.py check"
NOTEBOOKS = "tools/nb.py run"
NBVAL = "-m pytest --quiet --nbval --nbval-current-env --nbval-cell-timeout=60"
BOOK = "-c 'import gc; gc.disable(); from jupyter_book.cli.main import main; main()' build . -q -W -n --keep-going"

SOFTMAX = "chapters/softmax.md"
ATTENTION = "chapters/attention.md"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy, in a folder whose name has a space."""
    return copy_project(tmp_path_factory.mktemp("careless") / "a copy")


def run(folder, command, *more):
    """A command of the Makefile, in a copy."""
    words = command.split()
    if "'" in command:
        code, rest = re.fullmatch(r"-c '([^']*)' (.*)", command).groups()
        words = ["-c", code, *rest.split()]
    return copied.run(folder, *words, *more)


@contextmanager
def edited(folder, edits):
    """Files with one place replaced in each edit (file, old, new), as they were afterwards."""
    before = {}
    try:
        for name, old, new in edits:
            path = folder / name
            text = path.read_text("utf-8")
            before.setdefault(path, text)
            assert text.count(old) >= 1, f"{name} has no {old!r}"
            path.write_text(text.replace(old, new, 1), "utf-8")
        yield
    finally:
        for path, text in before.items():
            path.write_text(text, "utf-8")


def line_of(folder, name, words):
    return (folder / name).read_text("utf-8").split(words)[0].count("\n") + 1


@contextmanager
def notebook(folder, name):
    """A stored notebook to spoil; as it was afterwards."""
    path = folder / "chapters" / f"{name}.ipynb"
    before = path.read_text("utf-8")
    book = nbformat.reads(before, as_version=4)
    try:
        yield book, lambda: path.write_text(nbformat.writes(book) + "\n", "utf-8")
    finally:
        path.write_text(before, "utf-8")


# ---- the commands, and the copy as it is -----------------------------------------------------


def test_these_are_the_commands_of_make_book():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    makefile = makefile.replace("$(NBVAL)", re.search(r"^NBVAL := (.*)", makefile, re.MULTILINE)[1])
    for command in (PAGES, LEDGER, PAIRS, MADE, BOOK):
        assert f"\t$(PY) {command}" in makefile
    nbval = NBVAL.replace("--nbval-current-env", "--nbval-kernel-name=book")    # its fork
    assert f"$(KERNELS) $(PY) {nbval}" in re.search(r"^COMPARED = (.*)", makefile, re.MULTILINE)[1]
    assert makefile.count("\t$(COMPARED)\n") == 2
    checks = re.search(r"^CHECKS := (.*)", makefile, re.MULTILINE)[1].split()
    assert set(checks) == {f"$(DONE)/{part}" for part in ("pages", "pairs", "ledger", "made", "notebooks")}
    assert "\n$(DONE)/book: $(CHECKS) $(DONE)/html\n" in makefile


@pytest.mark.parametrize("command", [LEDGER, PAIRS])
def test_the_copy_passes_untouched(copy, command):
    code, said = run(copy, command)
    assert code == 0, said


def test_the_spoilt_chapters_pass_untouched(copy):
    code, said = run(copy, PAGES, *SPOILT)
    assert code == 0, said


def test_no_chapter_named_means_all_of_them(monkeypatch):
    """What is said of some chapters is said of the whole book as well."""
    asked = []
    monkeypatch.setattr(attnmath.page.__main__, "judged",
                        lambda book, root, displays, shelf: asked.append(displays) or [])
    faults = [PageFault(f"chapters/{stem}.md", 1, 1, "", stem) for stem in ("softmax", "masks")]
    monkeypatch.setattr(attnmath.page.__main__, "label_faults", lambda *_: list(faults))
    book = Book.at(ROOT)
    assert check_book(book, ROOT, set()) == ([], faults)
    assert check_book(book, ROOT, {"softmax"}) == ([], faults[:1])
    everything, some = asked
    assert [d.label for d in everything] == [*book.displays, *book.relations]
    assert some == [d for d in everything if d.path == SOFTMAX] != []


def test_a_notebook_of_the_copy_passes_untouched(copy):
    code, said = run(copy, NBVAL, "chapters/index.ipynb")
    assert code == 0, said


# ---- pages -----------------------------------------------------------------------------------

MISTAKES = {
    "a label deleted": (SOFTMAX, " (prp:logsumexp_shift)", "", "", "label"),
    "a letter that nobody knows": (
        SOFTMAX, "da_j = p_j", "da_j = \\xi_j", "(prp:softmax_row_vjp)", "xi"),
    "a sign": (SOFTMAX, "&= p_j (\\dot a_j - \\langle p", "&= p_j (\\dot a_j + \\langle p",
               "(why:softmax_jvp)", "differ"),
    "no listing": (SOFTMAX, "show(softmax_jvp)", "softmax_jvp", "(eq:softmax_jvp)",
                   "show(softmax_jvp)"),
    "no test": ("tests/formulas/test_softmax.py", "def test_softmax_vjp(", "def test_something(",
                "(eq:softmax_vjp)", "test_softmax_vjp"),
    "not in the notation": ("chapters/notation.md", "| $c$ | $1", "| c | $1", "", "c has no line"),
    "an inline relation that does not hold": (
        SOFTMAX, "So only differences of scores", "So $P = A$. So only differences of scores", "inline:softmax", "differ"),
    "a number of a caption": (SOFTMAX, "has grown by one half", "has grown by one third", "", "'one third' of its caption"),
    "a shape": (SOFTMAX, "p^{\\mathsf T} p \\quad (m", "p^{\\mathsf T} p \\quad (n", "(prp:softmax_jacobian_row)",
                "has the shape"),
    "a formula that MathJax alone reads": (
        ATTENTION, "* $dA_{ij}", '<div class="math">\\[ dA = 0 \\]</div>\n\n* $dA_{ij}', "", "HTML is not read"),
    "the same label twice": (ATTENTION, "(prp:row_statistic)", "(prp:softmax_shift)",
                             "", "softmax_shift"),
}
RENAMED = [("attnmath/__init__.py", "logsumexp_vjp as logsumexp_vjp", "logsumexp_vjp as logsumexp_back")]
SPOILT = ("softmax", "attention", "notation")


@pytest.fixture(scope="module")
def all_mistakes(copy):
    """What the page check says of all these mistakes in one run; each has its own line."""
    with edited(copy, [*(mistake[:3] for mistake in MISTAKES.values()), *RENAMED]):
        return run(copy, PAGES, *SPOILT)


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_on_a_page_is_found_at_its_place(copy, all_mistakes, what):
    code, said = all_mistakes
    _, _, _, label, words = MISTAKES[what]
    assert code == 1
    assert any(words in line and label.strip("()") in line
               and re.match(r"[\w/]+(\.md|\.py)?:\d+:\d+: ", line) for line in said.splitlines()), said


def test_a_renamed_function_is_missed(all_mistakes):
    code, said = all_mistakes
    assert code == 1
    assert re.search(r"chapters/softmax\.md:\d+:\d+: eq:logsumexp_vjp: .*logsumexp_vjp", said), said


def test_a_broken_function_stays_broken_when_its_outputs_are_made_anew(copy):
    path = "attnmath/_formulas/softmax.py"
    source = (copy / path).read_text("utf-8")
    body = source[source.index("def softmax_vjp("):]
    line = re.search(r"^    [^>]*dP - .*$", body, re.MULTILINE)[0]    # no example of the docstring
    with (edited(copy, [(path, line, line.replace("dP - ", "dP + ", 1))]),
          notebook(copy, "index"), notebook(copy, "softmax")):
        run(copy, NOTEBOOKS, "softmax")
        code, said = run(copy, PAGES, "softmax")
        stale, of = run(copy, LEDGER)
    assert code == 1
    assert re.search(r"chapters/softmax\.md:\d+:\d+: eq:softmax_vjp: .*softmax_vjp", said), said
    assert stale == 1
    assert "stale: chapters/softmax.md" in of


def test_a_changed_display_without_a_new_ledger_is_stale(copy):
    with edited(copy, [(SOFTMAX, "e^{a_j + c}", "e^{c + a_j}")]):
        code, said = run(copy, LEDGER)
    assert code == 1
    assert "stale: chapters/softmax.md" in said


# ---- pairs and stored outputs ----------------------------------------------------------------


def test_an_edit_of_the_notebook_alone_is_found(copy):
    with notebook(copy, "softmax") as (book, save):
        book.cells[0].source += "\n\nOne more sentence."
        save()
        code, said = run(copy, PAIRS)
    assert code == 1
    assert "softmax.ipynb: cell 1 differs from the text" in said


def test_an_edit_of_the_text_alone_is_found(copy):
    with edited(copy, [(SOFTMAX, "show(softmax)", "show(softmax)  # as it is")]):
        code, said = run(copy, PAIRS)
    assert code == 1
    assert re.search(r"softmax\.ipynb: cell \d+ differs from the text in its line 1", said)


def test_a_chapter_dropped_from_the_contents_is_found(copy):
    with edited(copy, [("_toc.yml", "      - file: chapters/softmax.ipynb\n", "")]):
        code, said = run(copy, PAIRS)
    assert code == 1
    assert "_toc.yml: chapters/softmax.ipynb is not listed" in said


def test_a_pasted_output_is_found(copy):
    with notebook(copy, "index") as (book, save):
        cell = next(cell for cell in book.cells if cell.get("outputs") and "text" in cell.outputs[0])
        digit = re.search(r"\d", cell.outputs[0].text)[0]
        cell.outputs[0].text = cell.outputs[0].text.replace(digit, str((int(digit) + 1) % 10), 1)
        save()
        pairs, _ = run(copy, PAIRS)
        code, said = run(copy, NBVAL, "chapters/index.ipynb")
    assert pairs == 0
    assert code == 1
    assert "Cell outputs differ" in said


def test_a_notebook_that_never_ran_is_found(copy):
    with notebook(copy, "index") as (book, save):
        for cell in book.cells:
            if cell.cell_type == "code":
                cell.update(outputs=[], execution_count=None)
        save()
        code, said = run(copy, PAIRS)
    assert code == 1
    assert "not run in order" in said


# ---- the rendered book -----------------------------------------------------------------------


SHORT = """format: jb-book
root: chapters/index.ipynb
chapters:
  - file: chapters/softmax.ipynb
  - file: chapters/api
  - file: chapters/bibliography
"""


def test_links_that_lead_nowhere_stop_the_build(copy):
    """In a book of four pages, which also misses those that are not there."""
    contents, functions = ((copy / name).read_text("utf-8") for name in ("_toc.yml", "chapters/api.md"))
    with edited(copy, [("_toc.yml", contents, SHORT),
                       ("chapters/api.md", functions[functions.index("## "):functions.index("## Softmax")], ""),
                       ("chapters/api.md", functions[functions.index("## Back through"):], ""),
                       ("chapters/bibliography.md", "rounding", "rounding {cite}`nobody1999`"),
                       ("chapters/bibliography.md", "derivatives", "{doc}`no_chapter`"),
                       ("chapters/bibliography.md", "letters", "{eq}`eq:no_label`"),
                       ("chapters/api.md", "attnmath.logsumexp_vjp\n", "attnmath.logsumexp\n"),
                       ("attnmath/_formulas/softmax.py", "chapters/softmax.md, eq:softmax_vjp",
                        "chapters/softmax.md, eq:softmax_vjp.\n\n    So :math:`A = K`"),
                       ("attnmath/_formulas/softmax.py", "chapters/softmax.md, eq:softmax_jvp",
                        "chapters/softmax.md, eq:softmax_gone")]):
        code, said = run(copy, BOOK)
    assert code != 0
    assert "formulas that are rendered and were not read: A = K" in said
    for lost in ("nobody1999", "no_chapter", "no_label", "attnmath.logsumexp_vjp", "softmax_gone"):
        assert lost in said
