"""A notebook is run again when its code, its outputs, or what it imports has changed, and only then."""

import nbformat
import pytest

from loaded import ROOT, load, nb

runs = load(ROOT / "tools" / "runs.py")
CODE = "from attnmath import softmax\nprint(softmax)"


@pytest.fixture
def folder(tmp_path):
    """A folder with one notebook, and how to write it with other cells."""
    folder = tmp_path / "chapters"
    folder.mkdir()

    def write(words="Words.", code=CODE, said="a"):
        cell = nbformat.v4.new_code_cell(code, id="b", outputs=[nbformat.v4.new_output("stream", text=said)])
        cells = [nbformat.v4.new_markdown_cell(words, id="a"), cell]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "page.ipynb")

    write()
    return folder, write


@pytest.mark.parametrize("changes, is_changed", [
    ({}, False),
    ({"words": "Other words."}, False),
    ({"code": CODE + " "}, True),
    ({"said": "b"}, True),
])
def test_what_a_notebook_says(folder, changes, is_changed):
    folder, write = folder
    known = runs.Runs(folder)
    known.ran("page")
    write(**changes)
    assert runs.Runs(folder).is_known("page") != is_changed


def changed(path):
    """A number for contents, in which this file has changed."""
    return lambda one: "changed" if one == ROOT / path else "as before"


@pytest.mark.parametrize("path, code, is_changed", [
    ("attnmath/_formulas/softmax.py", CODE, True),
    ("attnmath/_words/arrays.py", CODE, True),
    ("tools/kernels.py", CODE, True),
    ("attnmath/_formulas/flash.py", CODE, False),
    ("attnmath/_formulas/flash.py", "import attnmath\nattnmath.softmax", False),
    ("attnmath/_formulas/flash.py", "import attnmath\ndir(attnmath)", True),
    ("attnmath/_formulas/flash.py", "import attnmath\nattnmath.flash_attention", True),
    ("attnmath/book/museum.json", "open('museum.json')", True),
    ("attnmath/book/museum.json", CODE, False),
    ("attnmath/_formulas/flash.py", "%run anything", True),
])
def test_what_a_notebook_imports(folder, path, code, is_changed):
    folder, write = folder
    write(code=code)
    one, other = runs.Runs(folder), runs.Runs(folder)
    one.content, other.content = changed("nothing"), changed(path)
    assert (one.key("page") != other.key("page")) == is_changed


def test_what_was_compared_is_not_asked_again(folder):
    folder, write = folder
    assert runs.Runs(folder).asked(["page", "not there"]) == ["page"]
    assert runs.Runs(folder).asked(["page"]) == ["page"]     # nobody has answered yet
    runs.Runs(folder).answered()
    assert runs.Runs(folder).asked(["page"]) == []
    write(said="b")
    assert runs.Runs(folder).asked(["page"]) == ["page"]
    write(said="c")                                          # while they are compared
    runs.Runs(folder).answered()
    assert runs.Runs(folder).asked(["page"]) == ["page"]


def test_another_library_asks_for_all(folder, monkeypatch):
    folder, _ = folder
    runs.Runs(folder).ran("page")
    monkeypatch.setattr(runs, "installed", lambda: "another numpy")
    assert not runs.Runs(folder).is_known("page")


def test_every_notebook_of_the_book_names_what_it_imports():
    """None hands the package on as a whole: each is run again for its own modules."""
    known = runs.Runs(ROOT / "chapters")
    for name in nb.texts(ROOT / "chapters"):
        source = "\n".join(cell.source for cell in nb.code(nb.read_text(ROOT / "chapters" / f"{name}.md")).values())
        assert 1 < len(known.imports.files_of(source)) < len(known.imports.modules) - 50, name
