"""Rows of the ledger are kept: as long as nothing has changed that they depend on, and no longer."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import attnmath
from attnmath.page.language.chapter import read_text
from attnmath.page.ledger import rows
from attnmath.page.ledger import rows as module
from attnmath.page.ledger.imports import Imports
from attnmath.page.ledger.rows import LISTED, RowKeys
from attnmath.page.verdicts.book import Book
from loaded import ROOT

STEMS = "softmax", "flash", "index", "attention_map", "scale"
PACKAGE = Path(attnmath.__file__).parent


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The files that keys are made of, to be changed."""
    folder = tmp_path_factory.mktemp("rows")
    shutil.copytree(PACKAGE, folder / "attnmath", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "chapters").mkdir()
    (folder / LISTED).parent.mkdir()
    shutil.copyfile(ROOT / LISTED, folder / LISTED)
    return folder


@pytest.fixture(scope="module")
def whole():
    return Book.at(ROOT)


@pytest.fixture(scope="module")
def book(whole):
    chapters = [chapter for chapter in whole.chapters if chapter.stem in STEMS]
    return Book(chapters, {stem: whole.casts[stem] for stem in STEMS})


def keys_of(copy, book):
    """The engine's key, and that of each display."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PACKAGE", copy / "attnmath")
        keys = RowKeys(book, copy)
        return {"engine": keys.engine} | {label: keys.of(d) for label, d in book.displays.items()}


@pytest.fixture(scope="module")
def before(copy, book):
    return keys_of(copy, book)


def changed(before, after):
    """What has to be found again: the labels."""
    return {label for label in before.keys() | after.keys() if before.get(label) != after.get(label)}


def stems_of(book, labels):
    return {Path(book.displays[label].path).stem if label in book.displays else label for label in labels}


@pytest.mark.parametrize("file, stems", [
    ("_formulas/softmax.py", set(STEMS)),
    ("_formulas/flash.py", {"flash"}),
    ("_formulas/blocks.py", set()),
    ("page/scenes/values.py", {"engine"}),
    ("page/language/grammar.lark", {"engine"}),
    ("page/misprints/edits.py", {"engine"}),
    ("_exact/numbers.py", {"engine"}),
    ("_words/arrays.py", {"engine"}),
    ("page/ledger/rows.py", {"engine"}),
    ("page/ledger/ledger.py", set()),
    ("page/verdicts/labels.py", set()),
    ("_examine/examine.py", set()),
    ("__init__.py", set()),
])
def test_a_file_asks_for_the_rows_that_depend_on_it(copy, book, before, file, stems):
    path = copy / "attnmath" / file
    text = path.read_text("utf-8")
    path.write_text(text + "\n# changed\n", "utf-8")
    after = keys_of(copy, book)
    path.write_text(text, "utf-8")
    assert stems_of(book, changed(before, after)) == stems


def edited(book, stem, old, new):
    """The book with other words in a chapter."""
    (text,) = (chapter.text for chapter in book.chapters if chapter.stem == stem)
    assert text.count(old) >= 1
    chapter = read_text(text.replace(old, new, 1), f"chapters/{stem}.md")
    return Book([chapter if one.stem == stem else one for one in book.chapters], book.casts)


def test_words_ask_for_nothing(copy, book, before):
    assert changed(before, keys_of(copy, edited(book, "softmax", "\n\n", "\n\nA new sentence.\n\n"))) == set()


def test_a_display_asks_for_its_own_row_alone_if_it_defines_no_letter(copy, book, before):
    other = edited(book, "softmax", "e^{a_j + c}", "e^{c + a_j}")
    assert changed(before, keys_of(copy, other)) == {"prp:softmax_shift"} | defining(book, "softmax")


def defining(book, *stems):
    """The displays that define letters of a chapter's casts: their misprints are noticed anywhere on its pages."""
    labels = {label for stem in stems for cast in book.casts[stem] for label in module.origins(cast)}
    return labels & book.displays.keys()


def test_a_display_that_defines_a_letter_asks_for_all_that_may_use_it(copy, book, before):
    other = edited(book, "attention_map", "+ B &&", "+ B + 0 &&")
    labels = changed(before, keys_of(copy, other))
    assert stems_of(book, labels) >= {"attention_map", "index", "scale", "flash"}
    assert "softmax" not in stems_of(book, labels)


def test_a_letter_of_a_cast_asks_for_the_chapters_that_have_the_cast(copy, book, before):
    (cast,) = (cast for cast in book.casts["index"] if cast.name == "head")
    for change in ({"sizes": {**cast.sizes, "n": 7}}, {"settings": cast.settings[1:]}, {"rows": {}}):
        new = replace(cast, **change)
        casts = {stem: tuple(new if one is cast else one for one in book.casts[stem]) for stem in STEMS}
        labels = changed(before, keys_of(copy, Book(book.chapters, casts)))
        assert stems_of(book, labels) == {"index", "attention_map", "scale"}


def test_a_listed_misprint_asks_for_its_display_alone(copy, book, before):
    path = copy / LISTED
    text = path.read_text("utf-8")
    path.write_text(text + "eq:softmax | P = P | P = P\n", "utf-8")
    after = keys_of(copy, book)
    path.write_text(text, "utf-8")
    assert changed(before, after) == {"eq:softmax"}


def test_a_version_asks_for_everything(copy, book, before, monkeypatch):
    monkeypatch.setattr(module, "installed", lambda: "another numpy")
    assert changed(before, keys_of(copy, book)) == {"engine"}


def test_what_a_cast_cannot_be_made_of_is_told(copy, book):
    (cast,) = book.casts["softmax"]
    odd = Book(book.chapters, {**book.casts, "softmax": (replace(cast, names={"A": object()}),)})
    with pytest.raises(TypeError, match="what is it made of"):
        keys_of(copy, odd)


# ---- nothing else is run -----------------------------------------------------------------------


def files_run(work):
    """The files of the package in which something is run."""
    seen = set()

    def note(frame, event, argument):
        seen.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return {Path(name) for name in seen if name.startswith((str(PACKAGE), str(ROOT / "chapters")))}


def files_known(book, display):
    """The files in the key of a display."""
    keys, found = RowKeys(book, ROOT), set()
    contents = keys.contents
    keys.contents = lambda files: found.update(files) or contents(files)
    keys.of(display)
    return found | keys.stop


RUN = "eq:linear_vjp", "eq:cross_entropy_jvp", "prp:scale_place"


@pytest.mark.parametrize("label", RUN)
def test_no_other_file_is_run_than_those_of_the_key(whole, label):
    book = Book(whole.chapters, whole.casts)
    display = book.displays[label]
    known = files_known(book, display)

    def work():
        rows.judge(book, display, True)
        *_, wrong = rows.proof_and_misprints([], book, display)
        assert wrong == []

    assert files_run(work) - known == set()


def test_a_key_without_functions_is_found(whole, monkeypatch):
    book = Book(whole.chapters, whole.casts)
    monkeypatch.setattr(RowKeys, "functions", lambda self, texts: [])
    display = book.displays["eq:linear_vjp"]
    run = files_run(lambda: rows.judge(book, display, True))
    assert {path.name for path in run - files_known(book, display)} >= {"projections.py"}


# ---- imports -----------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    """A package whose modules import each other in every way."""
    files = {
        "__init__.py": "from p.a import f\nfrom p.b import g\n",
        "a.py": "import p.c\n\n\ndef f():\n    from p import g\n",
        "b.py": "g = 1\n",
        "c.py": "X = 'table.json'\n",
        "table.json": "1",
        "late.py": "import importlib\nimportlib.import_module(f'p.deep.{1}')\n",
        "deep/__init__.py": '"""Words."""\n',
        "deep/x.py": "from . import y\n",
        "deep/y.py": "",
        "whole.py": "import p\nprint(p)\n",
        "part.py": "import p as q\nprint(q.g)\n",
    }
    for name, text in files.items():
        path = tmp_path / "p" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return Imports({"p": tmp_path / "p"})


@pytest.mark.parametrize("code, names", [
    ("from p import g", "b.py"),
    ("from p import f", "a.py b.py c.py table.json"),
    ("from p.deep.x import anything", "x.py y.py"),
    ("from p.deep import x", "x.py y.py"),
    ("import p.late", "late.py x.py y.py"),
    ("import p.part", "part.py b.py"),
    ("import p\np.g", "b.py"),
    ("import p\nprint(p)", "__init__.py a.py b.py c.py table.json"),
    ("import p.whole", "whole.py __init__.py a.py b.py c.py table.json"),
    ("import numpy", ""),
])
def test_imports(small, code, names):
    assert {path.name for path in small.files_of(code)} == set(names.split())


def test_what_is_no_python_imports_everything(small):
    assert small.files_of("%matplotlib inline") == set(small.modules.values())
