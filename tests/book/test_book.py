"""What the book promises apart from its formulas: pairs, contents, links, commands, licences."""

import ast
import contextlib
import inspect
import io
import os
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from unittest import mock

import nbformat
import pytest
import yaml

import attnmath
from loaded import ROOT, load, nb

CHAPTERS = ROOT / "chapters"
TEXTS = sorted(path for path in CHAPTERS.glob("*.md") if not path.stem.startswith("_"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def tracked():
    """The files of the project: git's list, or in an archive all that are not made."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        names = filter(None, listed.stdout.split("\0"))
        return [ROOT / name for name in names if (ROOT / name).is_file()]
    made = re.compile(r"_build|build|dist|mutants|__pycache__|\.(?!ci$|github$|binder$|gitignore$).*")
    return [path for path in ROOT.rglob("*") if path.is_file()
            and not any(map(made.fullmatch, path.relative_to(ROOT).parts))]


def texts_of_the_project():
    for path in tracked():
        with contextlib.suppress(UnicodeDecodeError):
            yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")


# ---- chapters and their notebooks ------------------------------------------------------------


def test_pairs_agree_and_the_contents_list_every_chapter():
    assert list(nb.check(CHAPTERS)) == []


PAIR = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
    format_version: 0.13
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# A chapter

```{code-cell} ipython3
print(1 + 1)
```
"""
CONTENTS = "root: chapters/pair.ipynb\nparts: []\n"


@pytest.fixture
def pair(tmp_path):
    """A book of one small chapter that passes, as (folder, notebook, save)."""
    folder = tmp_path / "chapters"
    folder.mkdir()
    (tmp_path / "_toc.yml").write_text(CONTENTS)
    (folder / "pair.md").write_text(PAIR)
    book = nb.derive(folder / "pair.md")
    book.cells[1].execution_count = 1
    book.cells[1].outputs = [nbformat.v4.new_output("stream", name="stdout", text="2\n")]

    def save():
        nbformat.write(book, folder / "pair.ipynb")
        return list(nb.check(folder))

    assert save() == []
    return folder, book, save


def stderr(book):
    book.cells[1].outputs.append(nbformat.v4.new_output("stream", name="stderr", text="hm"))


def bitmap(book):
    book.cells[1].outputs.append(nbformat.v4.new_output("display_data", {"image/png": "AA=="}))


def bare_figure(book):
    book.cells[1].outputs.append(nbformat.v4.new_output("display_data", {"image/svg+xml": "<svg/>"}))


def machine_path(book):
    book.cells[1].outputs[0].text = "/ho" "me/somebody/x.py\n"


def address(book):
    book.cells[1].outputs[0].text = "<object at 0x7f0123456789>\n"


def shows(kind, data):
    def spoil(book):
        book.cells[1].outputs.append(nbformat.v4.new_output("display_data", {"text/plain": "x", kind: data}))

    return spoil


def error(book):
    book.cells[1].outputs.append(
        nbformat.v4.new_output("error", ename="E", evalue="e", traceback=[]))


SPOILED = [
    (lambda book: book.cells[1].update(execution_count=None), "not run in order"),
    (lambda book: book.cells[1].update(execution_count=2), "not run in order"),
    (lambda book: book.cells[1].update(source="print(2)"), "differs from the text in its line 1"),
    (lambda book: book.cells[0].update(source="# Another"), "differs from the text"),
    (lambda book: book.cells[0].update(id="other"), "id 'other'"),
    (lambda book: book.cells[0].update(cell_type="raw"), "is raw"),
    (lambda book: book.cells.pop(), "1 cells, the text has 2"),
    (lambda book: book.cells[1].metadata.update(tags=["hide-input"]), "metadata"),
    (lambda book: book.metadata.update(title="x"), "metadata 'title'"),
    (lambda book: book.metadata.pop("kernelspec"), "metadata 'kernelspec'"),
    (stderr, "writes to stderr"),
    (bitmap, "a bitmap"),
    (bare_figure, "a figure without caption"),
    (machine_path, "a path of a machine"),
    (address, "a memory address"),
    (shows("text/latex", "$$A = K$$"), "text/latex in its output"),
    (shows("text/html", "<math><mi>A</mi></math>"), "text/html in its output"),
    (shows("text/markdown", "$$A = K$$"), "mathematics in its output"),
    (shows("text/markdown", "So $A = K$."), "mathematics in its output"),
    (shows("text/markdown", "<b>A</b>"), "mathematics in its output"),
    (error, "stored error E"),
]


@pytest.mark.parametrize(("spoil", "complaint"), SPOILED)
def test_a_spoiled_notebook_is_refused(pair, spoil, complaint):
    _, book, save = pair
    spoil(book)
    assert any(complaint in said for said in save())


@pytest.mark.parametrize(("old", "new", "complaint"), [
    ("print(1 + 1)", "# nbval" "-ignore-output\nprint(1 + 1)", "switches its own validation off"),
    ("print(1 + 1)", ":tags: [raises-exception]\n\nprint(1 + 1)", "raises nothing"),
    ("print(1 + 1)", ":tags: [secret]\n\nprint(1 + 1)", "unknown tags ['secret']"),
    ("print(1 + 1)", "---\nmystnb:\n  figure:\n    caption: c\n---\nprint(1)", "alternative text"),
    ("print(1 + 1)", "---\nmystnb:\n  image:\n    alt: a\n---\nprint(1)", "without a caption"),
    ("name: python3", "name: julia", "kernelspec is not"),
    ("format_version: 0.13", "format_version: 0.12", "format_version"),
])
def test_a_spoiled_text_is_refused_even_when_its_notebook_agrees(pair, old, new, complaint):
    folder, _, _ = pair
    (folder / "pair.md").write_text(PAIR.replace(old, new))
    book = nb.read_text(folder / "pair.md")
    book.cells[1].execution_count = 1
    nbformat.write(book, folder / "pair.ipynb")
    assert any(complaint in said for said in nb.check(folder))


def test_strangers_and_orphans_are_refused(pair):
    folder, _, _ = pair
    (folder / "pair.ipynb").rename(folder / "stranger.ipynb")
    complaints = "\n".join(nb.check(folder))
    assert "stranger.ipynb: a notebook without a text" in complaints
    assert "pair.md: a text with code and no notebook" in complaints


@pytest.mark.parametrize(("contents", "complaint"), [
    ("root: chapters/pair\nparts: []\n", "chapters/pair.ipynb is not listed"),
    (CONTENTS.replace("[]", "[{chapters: [{file: chapters/lost}]}]"), "chapters/lost is no chapter"),
    (CONTENTS.replace("[]", "[{chapters: [{file: chapters/pair.ipynb}]}]"), "is listed twice"),
])
def test_a_wrong_table_of_contents_is_refused(pair, contents, complaint):
    folder, _, _ = pair
    (folder.parent / "_toc.yml").write_text(contents)
    assert any(complaint in said for said in nb.check(folder))


def test_generation_repeats_to_the_byte(pair):
    folder, _, _ = pair
    stored = folder / "pair.ipynb"
    made = []
    for told in ("written", "unchanged"):
        if told == "written":
            stored.unlink()
        run = subprocess.run([sys.executable, ROOT / "tools" / "nb.py", "--chapters", folder, "run", "--fresh"],
                             capture_output=True, text=True)
        assert run.stdout == f"pair.ipynb: {told}\n", run.stderr
        made.append(stored.read_bytes())
    assert made[0] == made[1]
    assert list(nb.check(folder)) == []


def test_an_error_in_a_cell_is_told_with_its_line(pair):
    folder, _, _ = pair
    (folder / "pair.md").write_text(PAIR.replace("print(1 + 1)", "print(1)\n1 / 0"))
    run = subprocess.run([sys.executable, ROOT / "tools" / "nb.py", "--chapters", folder, "run", "pair"],
                         capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stdout == "chapters/pair.md:16: ZeroDivisionError: division by zero\n"


def test_notebooks_for_colab_install_the_package_first(pair, tmp_path):
    folder, book, save = pair
    book.cells[0].source += "\n\n[a](pair.ipynb#b) [c](errata.md) [d](../attnmath/_words/complex_step.py) [e](https://x.y/z.md)"
    save()
    nb.colab(folder, tmp_path / "colab", "https://github.com/a/b", "c0ffee")
    first, second, *_ = nbformat.read(tmp_path / "colab" / "pair.ipynb", as_version=4).cells
    assert first.source == (
        "!git clone --quiet https://github.com/a/b attnmath-book && git -C attnmath-book checkout --quiet c0ffee\n"
        '%pip install --quiet --editable "./attnmath-book[page]"\nimport sys; sys.path.insert(0, "attnmath-book")')
    assert re.findall(r"\]\((.*?)\)", second.source) == [
        "https://colab.research.google.com/github/a/b/blob/colab/pair.ipynb#b",
        "https://github.com/a/b/blob/c0ffee/chapters/errata.md",
        "https://github.com/a/b/blob/c0ffee/attnmath/_words/complex_step.py", "https://x.y/z.md"]


def nb_says(folder, *words):
    run = subprocess.run([sys.executable, ROOT / "tools" / "nb.py", "--chapters", folder, *words],
                         capture_output=True, text=True)
    assert not run.stderr
    return run.returncode, run.stdout


def test_words_are_made_again_without_a_run_unless_the_code_has_changed(pair):
    folder, _, _ = pair
    text = folder / "pair.md"
    assert nb_says(folder, "text") == (0, "pair.ipynb: unchanged\n")
    text.write_text(PAIR.replace("# A chapter", "# Another"))
    assert nb_says(folder, "text") == (0, "pair.ipynb: written\n")
    assert list(nb.check(folder)) == []
    text.write_text(PAIR.replace("1 + 1", "1 + 2"))
    assert nb_says(folder, "text") == (1, "pair.ipynb: its code has changed; run it\n")


def test_code_that_was_changed_in_a_notebook_is_taken_back_into_its_text(pair):
    folder, book, save = pair
    book.cells[0].source = "# Not this"
    book.cells[1].source = "print(2 + 0)"
    save()
    assert nb_says(folder, "code", "pair") == (0, "")
    assert (folder / "pair.md").read_text() == PAIR.replace("1 + 1", "2 + 0")
    twice = PAIR + "\n```{code-cell} ipython3\nprint(1 + 1)\n```\n"
    (folder / "pair.md").write_text(twice)
    assert nb_says(folder, "code", "pair") == (1, "pair.md: the place of the cell pair-002 is not found\n")
    assert (folder / "pair.md").read_text() == twice


def test_saving_in_the_lab_writes_the_notebook_alone():
    assert "formats" not in PROJECT["tool"]["jupytext"]
    assert not any("formats" in yaml.safe_load(path.read_text("utf-8")[4:].split("\n---\n")[0])["jupytext"]
                   for path in nb.texts(CHAPTERS).values())


def lab_config():
    class Config(dict):
        def __getattr__(self, name):
            return self.setdefault(name, Config())

        __setattr__ = dict.__setitem__

    config = Config()
    path = ROOT / "tools" / "jupyter_config.py"
    exec(compile(path.read_text("utf-8"), path, "exec"), {"get_config": lambda: config, "__file__": str(path)})
    return config


def test_the_lab_lists_each_chapter_once_and_opens_the_first():
    config = lab_config()
    listed = [path.stem for path in CHAPTERS.iterdir() if path.suffix in (".md", ".ipynb")
              and not any(fnmatch(path.name, glob) for glob in config.ContentsManager["hide_globs"])]
    assert sorted(listed) == sorted({path.stem for path in CHAPTERS.glob("*.md")})
    assert (ROOT / config.LabApp["default_url"].removeprefix("/lab/tree/")).is_file()
    assert Path(config.ServerApp["root_dir"]) == ROOT     # so that links to the package open
    lab = (ROOT / "Makefile").read_text("utf-8").split("\nlab: $(ENV)")[1].split("\n\n")[0]
    assert "--config=tools/jupyter_config.py" in lab and "-dir" not in lab
    assert "tools/jupyter_config.py" in (ROOT / ".binder" / "postBuild").read_text("utf-8")


# ---- what the chapters may contain -----------------------------------------------------------

CODE = re.compile(r"^(`{3,}|~{3,}).*?^\1[ \t]*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
CONTROL_WORDS = set("""
alpha beta gamma delta epsilon varepsilon eta theta kappa lambda mu nu pi rho sigma tau phi chi psi omega
Gamma Delta Lambda Pi Sigma Phi Psi Omega ell
mathbf mathsf mathbb mathrm operatorname text dot bar hat tilde
sum prod frac tfrac sqrt partial circ otimes cdot times le ge lt gt ne neq approx infty
to in mapsto dots cdots ldots colon quad qquad
langle rangle lfloor rfloor bmod lVert rVert lvert rvert left right big Big bigl bigr Bigl Bigr biggl biggr
exp log ln tanh cos sin max min det dim begin end top
""".split())


def prose(path):
    return CODE.sub("", path.read_text("utf-8"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_formulas_use_plain_latex_only(path):
    words = set(re.findall(r"\\([A-Za-z]+)", prose(path)))
    assert words <= CONTROL_WORDS, "MathJax, GitHub and JupyterLab must all know each of them"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_pictures_have_a_text_for_those_who_cannot_see_them(path):
    text = prose(path)
    assert all(alt.strip() for alt in re.findall(r"!\[([^\]]*)\]\(", text))
    for directive in re.findall(r"^:{3,}\{(?:figure|image)\}.*?^:{3,}$", path.read_text("utf-8"),
                                re.MULTILINE | re.DOTALL):
        assert re.search(r"^:alt: \S", directive, re.MULTILINE)
    assert "<img" not in text


@pytest.mark.parametrize("path", [path for path in TEXTS if path.stem in nb.texts(CHAPTERS)],
                         ids=lambda path: path.stem)
def test_a_table_is_read_as_markdown_of_the_book(path):
    """Without it the book shows a table's formulas and code as they are typed."""
    for cell in nb.read_text(path).cells:
        if cell.cell_type == "code" and re.search(r"^(as|\w+)_table\(", cell.source, re.M):
            assert cell.metadata.get("mystnb", {}).get("markdown_format") == "myst", cell.source


@pytest.mark.parametrize("path", [path for path in TEXTS if path.stem in nb.texts(CHAPTERS)],
                         ids=lambda path: path.stem)
def test_code_on_a_page_is_short(path):
    """Ten lines are read; what draws or checks may be longer and wider: it is folded, or judges an exercise."""
    for cell in nb.read_text(path).cells:
        if cell.cell_type == "code":
            lines = [line for line in cell.source.splitlines() if line.strip()]
            folded = {"hide-input", "remove-input"} & {*cell.metadata.get("tags", [])}
            judge = "with answer(" in cell.source
            assert max(map(len, lines)) <= (100 if folded or judge else 88), cell.source
            assert len(lines) <= 10 + 4 * judge or folded, cell.source


@pytest.mark.parametrize("path", [path for path in TEXTS if path.stem in nb.texts(CHAPTERS)],
                         ids=lambda path: path.stem)
def test_no_cell_computes_with_memory_that_nobody_has_set(path):
    """What `empty` holds depends on what ran before: now and then a product of it overflows, and warns."""
    cells = (cell.source for cell in nb.read_text(path).cells if cell.cell_type == "code")
    assert not any(re.search(r"\b(np|torch)\.empty(_like)?\(|\bnew_empty\(", source) for source in cells)


def figure_faults(source):
    """Why a reader who changes a seed may not see the figure of this cell first, and then a sentence."""
    nodes = list(ast.walk(ast.parse(source)))
    shown = [node.lineno for node in nodes if isinstance(node, ast.Call) and ast.unparse(node) == "plt.show()"]
    if not shown:
        yield "no plt.show()"
    for node in nodes:
        if isinstance(node, ast.Assert) and shown:
            if node.lineno < shown[-1]:
                yield f"asserted before the figure is shown: {ast.unparse(node.test)}"
            elif not node.msg:
                yield f"asserted without a sentence: {ast.unparse(node.test)}"


@pytest.mark.parametrize(("source", "faults"), [
    ("ax.plot(x)\nplt.show()\nassert x, 'No line is left.'", 0),
    ("ax.plot(x)\nplt.show()", 0),
    ("assert x, 'No line is left.'\nplt.show()", 1),
    ("for a in x:\n    assert a\nplt.show()\nassert x", 2),
    ("ax.plot(x)", 1),
])
def test_a_figure_that_is_not_shown_first_is_seen(source, faults):
    assert len(list(figure_faults(source))) == faults


@pytest.mark.parametrize("path", [path for path in TEXTS if path.stem in nb.texts(CHAPTERS)],
                         ids=lambda path: path.stem)
def test_a_figure_is_shown_first_and_what_no_longer_holds_is_then_said(path):
    figures = [cell.source for cell in nb.read_text(path).cells if "figure" in cell.metadata.get("mystnb", {})]
    assert [fault for source in figures for fault in figure_faults(source)] == []


def test_names_inside_a_figure_do_not_depend_on_last_digits():
    from matplotlib.backends.backend_svg import RendererSVG

    from attnmath.book.notebook import _name_by_rounded_numbers

    with mock.patch.object(RendererSVG, "_make_id", RendererSVG._make_id), mock.patch.dict("matplotlib.rcParams", {"svg.hashsalt": "x"}):
        def names(*numbers):
            return {RendererSVG._make_id(None, "p", (x, 7.5)) for x in numbers}

        near = 57.6, 57.6 * (1 + 2.0**-52), 57.6 * (1 - 2.0**-52)
        assert len(names(*near)) == 3
        _name_by_rounded_numbers()
        assert len(names(*near)) == 1 and len(names(57.6, 57.61)) == 2


# ---- functions and their page ----------------------------------------------------------------


def test_the_list_of_functions_is_complete():
    listed = re.findall(r"^\.\. auto\w+:: attnmath\.(\w+)$",
                        (CHAPTERS / "api.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(attnmath.__all__)


def test_a_docstring_becomes_links():
    extension = load(CHAPTERS / "_ext" / "attnmath_book.py")
    lines = ["The weights of *x.", "", "A (..., m), tau (), then", "x -> P (..., m)", "",
             'Of (...) and X -> "Y".', "Derived in chapters/softmax.md, eq:softmax."]
    extension.link_docstring(None, "function", "softmax", None, None, lines)
    assert [line for line in lines if line] == [
        r"The weights of \*x.", "``A (...,\N{NO-BREAK SPACE}m), tau (), then x -> P (...,\N{NO-BREAK SPACE}m)``",
        r'Of (\...) and X -> \"Y\".', "Derived in :doc:`/chapters/softmax`, :eq:`eq:softmax`."]
    call = "forward(module, query, key, value, attention_mask) -> the output"      # wider than a phone
    lines = ["A layer.", "", call]
    extension.link_docstring(None, "function", "layer", None, None, lines)
    assert f"``{call}``" in lines


def test_the_shapes_of_a_formula_are_those_of_its_annotations():
    """All arguments, also where the docstring names another function for the rest."""
    extension = load(CHAPTERS / "_ext" / "attnmath_book.py")
    lines = inspect.getdoc(attnmath.attention_jvp).split("\n")
    assert "then the arguments of attention" in " ".join(lines)
    extension.link_docstring(None, "function", "attention_jvp", attnmath.attention_jvp, None, lines)
    line = next(line for line in lines if "->" in line).replace("\N{NO-BREAK SPACE}", " ")
    assert line.startswith("``Q_dot (..., n, d_k), K_dot (..., m, d_k)") and line.endswith("-> O_dot (..., n, d_v)``")
    assert "gamma () to (..., n, m), R (..., n, m)" in line


def test_a_formula_keeps_its_marks_and_minus_infinity_its_sign():
    from docutils import nodes
    from docutils.utils import new_document
    extension = load(CHAPTERS / "_ext" / "attnmath_book.py")
    document = new_document("page")
    document += nodes.paragraph("", "", nodes.Text("rows ("), nodes.math("", "n"), nodes.Text("/"),
                                nodes.math("", "m"), nodes.Text("), "), nodes.math("", "d"),
                                nodes.Text(" or -inf here, A-b not, "), nodes.literal("", "-inf"))
    transform = extension.KeepTogether(document)
    transform.run()
    assert [node.astext() for node in document.findall(nodes.inline)] == ["(n/m),", "-inf"]
    assert document.astext() == "rows (n/m), d or -inf here, A-b not, -inf"


def test_the_title_of_an_exercise_has_no_brackets_around_it():
    from docutils import nodes
    extension = load(CHAPTERS / "_ext" / "attnmath_book.py")
    for words, at, mended in [((" (", "By hand (compute)", ")"), 0, "· By hand (compute)"),
                              (("Exercise 3.1", " (", "Why", ")"), 1, "Exercise 3.1 · Why"),
                              (("Exercise",), 1, "Exercise")]:
        title = nodes.title("", "", *map(nodes.Text, words))
        extension.MendTitles.unbracket(title, at)
        assert title.astext() == mended


def test_a_shown_function_is_its_source():
    from attnmath.book.notebook import show
    shown = show(attnmath.softmax_vjp).data
    head, *body = shown.split("```python\n")[1].split("\n```")[0].split("\n")
    assert head == "def softmax_vjp(dP, A, tau=1):"
    source = (ROOT / "attnmath" / "_formulas" / "softmax.py").read_text("utf-8")
    assert "\n".join(body) + "\n" in source and body[0] == "    P = softmax(A, tau)"
    assert shown.endswith("\n\n[attnmath/_formulas/softmax.py](../attnmath/_formulas/softmax.py)")


def test_a_check_says_how_far_off_it_was(capsys):
    from attnmath.book.notebook import matrices, within
    within("Two numbers", 1e-3, [[0.0, -1e-4]], 2e-4)
    matrices({"A": [[0.5, 1]], "B": [-3, float("-inf")]})
    printed = capsys.readouterr().out
    assert printed == "Two numbers: off by less than 0.001\nA          B\n1/2  1       -3\n           -inf\n"
    with pytest.raises(AssertionError, match="Two numbers: off by 2.0e-03"):
        within("Two numbers", 1e-3, [1e-4], -2e-3)


# ---- files beside the book -------------------------------------------------------------------


def readme():
    return (ROOT / "README.md").read_text("utf-8")


README_EXAMPLES = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", readme(), re.DOTALL)


@pytest.mark.parametrize("example, output", README_EXAMPLES)
def test_the_readme_s_examples_print_what_it_says(example, output):
    assert readme().count("```python") == len(README_EXAMPLES) == 6
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README.md", "exec"), {})
    assert printed.getvalue() == output


def test_the_readme_links_to_files_that_are_there():
    links = re.findall(r"!?\[([^\]]*)\]\((?!https:)([^)]+)\)", readme())
    assert len(links) >= 4
    assert all((ROOT / target).is_file() for _, target in links)
    assert all(len(text) > 1 for text, _ in links)


def test_pages_and_the_way_to_the_rule_are_short():
    assert not list(load(ROOT / "tools" / "words.py").over(ROOT))


def test_a_page_or_a_way_that_is_too_long_is_seen(tmp_path):
    words = load(ROOT / "tools" / "words.py")
    (tmp_path / "chapters").mkdir()
    (tmp_path / "_toc.yml").write_text(
        "root: chapters/index\nparts:\n- chapters: [{file: chapters/attention.ipynb}, {file: chapters/rounding.ipynb}]\n"
        "- caption: Reference\n  chapters: [{file: chapters/notation}, {file: chapters/ledger}]")
    for stem, n in ("index", 1800), ("attention", 0), ("rounding", 2501), ("notation", 2500), ("ledger", 9999):
        (tmp_path / "chapters" / f"{stem}.md").write_text("word " * n)
    (tmp_path / "chapters" / "attention.md").write_text(
        "---\na: b c\n---\n# Title\n```\ncode here\n```\n$$ A = B $$ (eq:a)\n" + 1798 * "word " + "\n## The rule\n"
        + "word $a$ {eq}`b <c d>` [two words](x)\n## Exercises\n" + "word " * 10)
    assert list(words.over(tmp_path)) == ["attention: 1806 words, 1800 at most", "rounding: 2501 words, 2500 at most"]
    (tmp_path / "chapters" / "index.md").write_text("word " * 4695)
    assert list(words.over(tmp_path))[-1] == (
        "from the first page to the rule for dQ, dK, dV: 6501 words, 6500 at most")


def test_the_readme_has_the_book_s_contents():
    pages = load(ROOT / "tools" / "pages.py")
    assert readme() == pages.contents(ROOT), "make pages"
    files = re.findall(r"^\|.*\[.*\]\((chapters/.*)\) \|$", readme(), re.MULTILINE)
    assert files == [f"{file}{'' if file.endswith('.ipynb') else '.md'}" for _, file, _ in nb.derived.contents(ROOT)]


def test_contents_that_are_out_of_date_are_seen(tmp_path):
    for name in ("chapters", "_config.yml", "_toc.yml"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "README.md").write_text(readme().replace("Start here", "Begin here"), "utf-8")
    assert load(ROOT / "tools" / "pages.py").contents(tmp_path) == readme()


def addresses(config, readme, citation):
    """Where README and CITATION.cff say that the book is, where the configuration has it or not."""
    address = yaml.safe_load(config)["html"]["baseurl"]
    if (f"The book is at <{address}>." in readme) != bool(address) or "The book is at <>" in readme:
        yield "README.md"
    if yaml.safe_load(citation).get("url", "") != address:
        yield "CITATION.cff"


def test_the_published_address_stands_in_one_place():
    config, citation = ((ROOT / name).read_text("utf-8") for name in ("_config.yml", "CITATION.cff"))
    assert list(addresses(config, readme(), citation)) == []
    there = "html: {baseurl: 'https://example.org'}"
    assert list(addresses(there, "Read.", citation.split("\nurl:")[0])) == ["README.md", "CITATION.cff"]
    assert list(addresses(there, "The book is at <https://example.org>.", "url: https://example.org")) == []


def test_the_book_is_built_without_make(tmp_path):
    """README's very commands, on a copy with a short table of contents; pip finds everything installed."""
    commands = re.search(r"Without make.*?```text\n(.*?)```", readme(), re.DOTALL)[1]
    assert commands.count("pip install") == 2 and commands.endswith("jupyter-book build .\n")
    for path in tracked():
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    (tmp_path / "_toc.yml").write_text("""format: jb-book
root: chapters/index.ipynb
parts: [{caption: One head, numbered: true, chapters: [{file: chapters/attention_map.ipynb}]}]
""")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
           "PYTHONPATH": str(tmp_path), "PIP_DRY_RUN": "1", "PIP_NO_INDEX": "1"}
    run = subprocess.run(["bash", "-ec", commands], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    page = (tmp_path / "_build" / "html" / "chapters" / "attention_map.html").read_text("utf-8")
    assert "Fig. 1.1" in page and "in the notebook" not in run.stderr
    source, name = re.search(r'href="../(_modules/attnmath/[\w/]+.html)#(\w+)">attnmath/', page).groups()
    assert f'id="{name}"' in (tmp_path / "_build" / "html" / source).read_text("utf-8")


def test_every_command_in_the_texts_is_in_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *TEXTS]:
        used = re.findall(r"(?:^|`)make(?: [A-Z_]+=\S+)? ([a-z-]+)(?=`|  | [a-z ]+`|$)",
                          path.read_text("utf-8"), re.MULTILINE)
        assert set(used) <= targets, path.name


def test_no_file_knows_a_machine_or_an_index():
    """Nothing that is true in one place only: folders of a machine, hosts of a package index."""
    hosts = "|".join(re.escape(h) for h in ("pypi." "org", "pythonhosted." "org",
                                            "download.pytorch." "org", "npmjs." "org", "+c" "pu"))
    machine = re.compile(rf"(?<![\w.])/(?:tmp|root|home|work|opt)/\w|file:/{{2}}/|{hosts}")
    found = {name: machine.search(text).group() for name, text in texts_of_the_project()
             if machine.search(text)}
    assert found == {}


def test_nothing_is_put_off():
    later = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|raise Not" r"ImplementedError)\b")
    candidates = "tests/helpers/wild_hostile.py", "tests/wild/hostile.py"  # some of which raise it
    assert [name for name, text in texts_of_the_project()
            if later.search(text) and not name.endswith(".svg") and name not in candidates] == []


def test_the_workflow_runs_what_a_developer_runs():
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert "set -eo pipefail" in script
    assert re.search(r"for target in (.*); do\n  echo \"make \$target \(after \$SECONDS s\)\"\n  make \"\$target\"\ndone\n$", script).group(1) == (
        "lint fresh-ledger book accessible test-adapters kernels-slice test")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "book.yml").read_text("utf-8"))
    check = workflow["jobs"]["check"]
    assert [step["run"] for step in check["steps"] if "run" in step] == [".ci/run"]
    assert check["env"]["BOOK_REPOSITORY"] == "${{ github.server_url }}/${{ github.repository }}"
    assert check["steps"][-1]["with"]["path"] == "_build/html"
    assert workflow["jobs"]["publish"]["needs"] == "check"


def locked(path):
    """What a lock says, one package a line."""
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    pairs = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line).groups() for line in lines]
    versions = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}
    assert len(versions) == len(pairs), f"{path.name} names a package twice"
    return versions


def test_the_locks_name_one_version_each_and_cover_the_project():
    """A lock of an extra is installed on top of requirements.lock; two of them may share what they need."""
    versions = locked(ROOT / "requirements.lock")
    for path in ROOT.glob("requirements-*.lock"):
        own = locked(path)
        assert not own.keys() & locked(ROOT / "requirements.lock").keys()
        assert all(versions.setdefault(name, version) == version for name, version in own.items())
    project = PROJECT["project"]
    needed = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    names = {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", need).group()).lower() for need in needed}
    assert names - {"attnmath"} <= set(versions)


def test_one_oldest_python_everywhere():
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    assert "sys.version_info < (3, 11)" in (ROOT / "Makefile").read_text("utf-8")
    assert "Python 3.11 or newer" in readme()


DATA = sorted(path.relative_to(ROOT).as_posix() for path in tracked()
              if path.parts[len(ROOT.parts)] == "attnmath" and path.suffix not in (".py", ".typed"))


def test_data_that_chapters_print_are_prerequisites(tmp_path):
    """After everything was made, a change of a file makes again what reads it."""
    for path in tracked():
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.touch()
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text("utf-8"))
    made = [f"_build/.done/{part}" for part in ("pages", "pairs", "ledger", "made", "notebooks", "html", "book")]
    for number, name in enumerate([".venv/.ready", *made]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        later = (tmp_path / "Makefile").stat().st_mtime + 10 + number
        os.utime(tmp_path / name, (later, later))

    def stale(*new):
        done = subprocess.run(["make", "-n", *(x for name in new for x in ("-W", name)), *made], cwd=tmp_path,
                              capture_output=True, text=True, check=True)
        return {name for name in made if f"touch {name}\n" in done.stdout}

    assert len(DATA) >= 5 and stale() == set()
    for name in [*DATA, "attnmath/_formulas/softmax.py"]:
        assert stale(name) >= {f"_build/.done/{part}" for part in ("notebooks", "pages", "ledger", "made", "html")}, name
    assert "_build/.done/made" in stale("chapters/museum.yml") & stale("chapters/register/blog.yml")
    assert "_build/.done/ledger" in stale("tests/equivalent_misprints.txt")
    assert "_build/.done/html" in stale("chapters/references.bib")
    assert stale("README.md") == {"_build/.done/made", "_build/.done/book"}    # it has the contents
    assert stale("CONTRIBUTING.md") == set()


def test_make_refuses_an_old_python_in_words(tmp_path):
    old = tmp_path / "python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.1\nexit 1\n')
    old.chmod(0o755)
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"))
    (tmp_path / "attnmath").mkdir()
    told = subprocess.run(["make", f"PYTHON={old}", "env"], cwd=tmp_path, capture_output=True, text=True)
    assert told.returncode != 0
    assert "Python 3.9.1 is too old; 3.11 or newer is needed" in told.stdout
    told = subprocess.run(["make", "PYTHON=no-such-python", "env"], cwd=tmp_path, capture_output=True,
                          text=True)
    assert told.returncode != 0
    assert "There is no no-such-python" in told.stdout


def test_the_book_needs_no_network():
    """The two files that a page with formulas loads are in the installed package."""
    extension = load(CHAPTERS / "_ext" / "attnmath_book.py")
    import importlib.metadata
    files = [str(f) for f in importlib.metadata.files("sphinx-mathjax-offline")]
    for name in extension.MATHJAX:
        assert any(f.endswith(f"static/mathjax/{name}") for f in files)
    for path in [*(CHAPTERS / "_static").iterdir(), ROOT / "_config.yml"]:
        if path.suffix in (".css", ".js", ".yml"):
            assert not re.search(r"https?:|//[a-z]+\.", re.sub(r"^\s*(//|#).*$", "", path.read_text("utf-8"),
                                                             flags=re.MULTILINE))


