"""Notebooks in plain Markdown: what each construct of the texts becomes, and that nothing raw is left."""

import json
import re
from types import SimpleNamespace
from unittest import mock

import nbformat
import pytest

from loaded import ROOT, load, nb

CHAPTERS = ROOT / "chapters"
derived = nb.derived

TOC = """root: chapters/start
parts:
  - caption: One
    numbered: true
    chapters:
      - file: chapters/first.ipynb
      - file: chapters/second.ipynb
  - caption: Two
    chapters:
      - file: chapters/list
"""
FIRST = """# The first chapter

$$
A = B
$$ (prp:one)

$$ C = D $$ (eq:two)

```{code-cell} ipython3
---
mystnb:
  figure:
    name: fig-first
    caption: What {eq}`prp:one` says.
  image:
    alt: A line.
tags: [hide-input]
---
1
```

(a-move)=
## A move by name

After the figure.
"""
SECOND = """# The second chapter

$$ E = F $$ (prp:three)

```{code-cell} ipython3
1
```

## Exercises

:::{exercise} By hand (compute)
:label: ex-hand

Use {eq}`prp:three`.
:::

```{code-cell} ipython3
mine = None
```

:::{solution-start} ex-hand
:class: dropdown
:::

It is {eq}`prp:three`.

```{code-cell} ipython3
mine = 2
```

:::{solution-end}
:::

:::{exercise} In words (derive)
:label: ex-words

Why?
:::

:::{solution} ex-words
:class: dropdown

Because.
:::

## What was checked

```{code-cell} ipython3
:tags: [hide-input]

print("checked")
```
"""
PUBLICATIONS = """
@article{one, author = {Ax, James}, title = {T}, year = {1971}, url = {https://example.org/a}}
@article{two, author = {Jain, S. and {\\'E}t{\\'e}, B.}, title = {T}, year = {2019}, doi = {10.1/x}}
@misc{three, author = {A, B and C, D and E, F}, title = {T}}
"""


@pytest.fixture
def book(tmp_path):
    folder = tmp_path / "chapters"
    folder.mkdir()
    (tmp_path / "_toc.yml").write_text(TOC)
    for name, text in {"start": "# Start", "first": FIRST, "second": SECOND, "list": "# A list"}.items():
        (folder / f"{name}.md").write_text(text)
    (folder / "references.bib").write_text(PUBLICATIONS, "utf-8")
    return derived.Book(folder)


CONSTRUCTS = [
    ("{doc}`first` is", "[The first chapter](first.ipynb) is"),
    ("{doc}`the first\none <first>`", "[the first\none](first.ipynb)"),
    ("{doc}`/chapters/list`", "[A list](list.md)"),
    ("as {eq}`prp:three` says", "as (2.1) says"),
    ("as {eq}`eq:two` says", "as [(1.2)](first.ipynb) says"),
    ("{numref}`fig-first` shows", "[Figure 1.1](first.ipynb) shows"),
    ("{ref}`the move <a-move>`", "[the move](first.ipynb#A-move-by-name)"),
    ("{ref}`a-move`", "[A move by name](first.ipynb#A-move-by-name)"),
    ("{ref}`ex-hand`", "exercise 2.1"),
    ("said {cite}`one`.", "said ([Ax 1971](https://example.org/a))."),
    ("{cite}`two,three`", "([Jain and Été 2019](https://doi.org/10.1/x); A et al.)"),
    ("$$\nE = F\n$$ (prp:three)", "$$\nE = F \\tag{2.1}\n$$"),
    ("$$ E = F $$ (prp:three)", "$$ E = F \\tag{2.1} $$"),
    ("- a\n\n  $$ E = F $$ (prp:three)", "- a\n\n  $$ E = F \\tag{2.1} $$"),
    ("(a-move)=\n## A move", "## A move"),
    ("`{eq}` and ``a`b``", "`{eq}` and ``a`b``"),
    ("```text\n{eq}`prp:one`\n```", "```text\n{eq}`prp:one`\n```"),
    (":::{note}\nSee {eq}`prp:three`.\n\nTwo.\n:::", "> **Note.** See (2.1).\n> \n> Two."),
    ("::::{admonition} Mind\n:class: tip\nThis.\n::::\n\nOn.", "> **Mind.** This.\n\nOn."),
    (":::{exercise} By hand\n:label: ex-hand\n\nDo {eq}`prp:three`.\n:::", "### Exercise 2.1: By hand\n\nDo (2.1)."),
]


@pytest.mark.parametrize(("text", "expected"), CONSTRUCTS)
def test_a_construct_becomes_plain_markdown(book, text, expected):
    assert "\n\n".join(words for _, words in book.pieces(text, "second", "") if words) == expected
    assert derived.raw(expected) == []


@pytest.mark.parametrize("text", [
    "{doc}`nowhere`", "{eq}`prp:nowhere`", "{ref}`words <nowhere>`", "{numref}`fig-nowhere`", "{cite}`nobody`",
    "{term}`weight`", ":::{figure} x.svg\n:::", ":::{exercise} Lost\n:label: ex-lost\n\nWhy?\n:::",
    "$$ A = A $$ (prp:lost)"])
def test_what_is_not_known_is_refused(book, text):
    with pytest.raises(derived.Unknown):
        list(book.pieces(text, "second", ""))


def test_the_unknown_is_told_with_its_chapter(book):
    (book.folder / "second.md").write_text(SECOND.replace("{eq}`prp:three`.\n:::", "{eq}`prp:lost`.\n:::"))
    (book.folder / "second.ipynb").write_text(nbformat.writes(nbformat.v4.new_notebook()))
    assert any(re.match("second.md: .*prp:lost.* is not there", said) for said in nb.check(book.folder))


@pytest.mark.parametrize("text", ["{doc}`first`", "words {eq}`x`", ":::{note}\n", "(target)=\n## A", "$$ A $$ (prp:x)",
                                  "## A\n:::\n"])
def test_what_is_raw_is_seen(text):
    assert derived.raw(text) and derived.raw("Plain `code` before.\n\n" + text)
    assert not derived.raw("```text\n" + text + "\n```")


def test_a_caption_follows_its_figure_and_folded_code_stays_folded(book):
    made = book.notebook(nb.read_text(book.folder / "first.md"), "first").cells
    assert [cell.id for cell in made] == ["first-001", "first-002", "first-002-caption", "first-003"]
    assert made[1].metadata["jupyter"] == {"source_hidden": True}
    assert made[2].source == "**Figure 1.1.** What (1.1) says."


def test_solutions_follow_at_the_end_under_a_heading_that_is_closed(book):
    made = book.notebook(nb.read_text(book.folder / "second.md"), "second").cells
    assert [cell.id.removeprefix("second-") for cell in made] == [
        "001", "002", "003", "004", "007", "008", "solutions", "005-solution", "006", "007-solution"]
    said = {cell.id.removeprefix("second-"): cell for cell in made}
    assert said["solutions"].source == "## Solutions"
    assert said["solutions"].metadata == {"jp-MarkdownHeadingCollapsed": True}
    assert said["005-solution"].source == "### Solution of exercise 2.1\n\nIt is (2.1)."
    assert said["007"].source == "### Exercise 2.2: In words (derive)\n\nWhy?\n\n## What was checked"
    assert said["007-solution"].source == "### Solution of exercise 2.2\n\nBecause."


@pytest.mark.parametrize(("old", "new", "said"), [
    ("mine = None", "given = 1", []),
    ('print("checked")', "given = 2", []),
    ("mine = 2", "mine = lambda x: x + 1", []),
    # The solution reads what is set again below it; what stands below it reads what it sets.
    ("mine = 2\n```", "mine = E + 1\n```", ["second-006 has E"]),
    ('print("checked")', "E = mine", ["second-008 has mine"]),
    ('print("checked")', "def f(x):\n    return mine + x", ["second-008 has mine"]),
])
def test_a_name_that_means_something_else_at_the_end_is_told(book, old, new, said):
    text = SECOND.replace('print("checked")', "E = 5") if "E + 1" in new else SECOND
    assert old in text
    (book.folder / "second.md").write_text(text.replace(old, new))
    made = book.notebook(nb.read_text(book.folder / "second.md"), "second")
    told = list(derived.disturbed(made))
    assert len(told) == len(said) and all(map(str.startswith, told, said))


# ---- every chapter ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def notebooks():
    book = derived.Book(CHAPTERS)
    return {name: book.notebook(nb.read_text(path), name) for name, path in nb.texts(CHAPTERS).items()}


def words(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]


def test_no_role_directive_or_label_is_left_in_any_notebook(notebooks):
    found = {name: derived.raw(source) for name, made in notebooks.items() for source in words(made)
             if derived.raw(source)}
    assert found == {}


def lost(folder, sources):
    """Relative links of some Markdown in this folder that lead to no file, or to no heading of it."""
    for target in (found for source in sources for found in re.findall(r"\]\((?!https?:|mailto:)([^)]*)\)", source)):
        file, _, heading = target.partition("#")
        path = folder / file
        if not path.is_file():
            yield target
        elif heading and path.suffix == ".ipynb":
            book = nb.derive(path.with_suffix(".md"))
            headings = re.findall(r"^#+ (.*)$", "\n".join(words(book)), re.MULTILINE)
            if heading not in {words.replace(" ", "-") for words in headings}:
                yield target


def test_each_relative_link_of_a_notebook_leads_somewhere(notebooks):
    shown = {path.stem: [str(out.get("data", {}).get("text/markdown", "")) for cell in
                         nbformat.read(path, as_version=4).cells for out in cell.get("outputs", ())]
             for path in CHAPTERS.glob("*.ipynb")}
    links = {name: list(lost(CHAPTERS, words(made) + shown[name])) for name, made in notebooks.items()}
    assert {name: found for name, found in links.items() if found} == {}
    assert sum(len(re.findall(r"\]\(\w+\.ipynb", source)) for made in notebooks.values() for source in words(made)) > 200


@pytest.mark.parametrize("target", ["nowhere.ipynb", "../attnmath/_nothing.py", "softmax.ipynb#Nowhere"])
def test_a_lost_link_is_seen(target):
    assert list(lost(CHAPTERS, [f"[words]({target}), [so](softmax.ipynb)"])) == [target]


# ---- what the book makes of it ----------------------------------------------------------------


@pytest.fixture
def extension():
    return load(CHAPTERS / "_ext" / "attnmath_book.py")


def test_the_book_has_the_words_of_the_text_and_the_outputs_of_the_notebook(book, extension):
    path = book.folder / "second.ipynb"
    made = nb.derive(path.with_suffix(".md"))
    cells = nb.code(made)
    for number, cell in enumerate(cells.values(), 1):
        cell.outputs = [nbformat.v4.new_output("stream", text=cell.id)]
        cell.execution_count = number
    env = SimpleNamespace(doc2path=lambda docname: str(path), note_dependency=mock.Mock())
    source = [nbformat.writes(made)]
    extension.read_text(SimpleNamespace(env=env), "chapters/second", source)
    shown = json.loads(source[0])["cells"]
    assert "".join(shown[0]["source"]).endswith("$$ E = F $$ (prp:three)")
    printed = [cell["outputs"][0]["text"] for cell in shown if cell["cell_type"] == "code"]
    assert ["".join(text) for text in printed] == ["second-002", "second-004", "second-006", "second-008"]
    env.note_dependency.assert_called_once_with(str(path.with_suffix(".md")))
    del made.cells[1]
    with mock.patch.object(extension.LOGGER, "warning") as warning:
        extension.read_text(SimpleNamespace(env=env), "chapters/second", [nbformat.writes(made)])
    assert warning.call_args.args[1] == "second-002"


@pytest.mark.parametrize(("number", "warned"), [((1, 1), 0), ((1, 2), 1)])
def test_numbers_that_differ_from_the_page_s_stop_the_build(book, extension, number, warned):
    env = SimpleNamespace(doc2path=lambda docname: f"{docname}.ipynb", toc_fignumbers={
        "chapters/first": {"displaymath": {"equation-prp-one": (1, 1)}, "figure": {"fig-first": number}}})
    with mock.patch.object(extension, "HERE", book.folder / "_ext"), \
            mock.patch.object(extension.LOGGER, "warning") as warning:
        extension.compare_numbers(None, env)
    assert warning.call_count == warned
