"""The ledger is made, not edited: whatever is changed by hand differs from what is found."""

import pickle
import re
from dataclasses import replace

import pytest

from attnmath.page import __main__ as command
from attnmath.page.ledger import rows
from attnmath.page.misprints.misprints import tally

CASTS = """from attnmath.page.scenes.cast import Cast, drawn, made
from attnmath.page.scenes.settings import setting

SCORES = Cast(
    name="scores",
    sizes={"n": 4, "m": 5, "d": 3},
    letters=drawn("Q: n d, K: m d") | made("A: n m"),
    outputs=("A",),
    settings=(setting("random", 1), setting("other sizes", 2, n=3, m=2, d=4)),
)
CASTS = (SCORES,)
"""
PAGE = r"""# A page

$$ A = Q K^{\mathsf T} $$ (prp:scores)

$$ dQ = dA\, K, \quad dK = dA^{\mathsf T} Q $$ (prp:back)

$$ 2^{A_{ij}} = e^{\log(2) \sum_l Q_{il} K_{jl}} $$ (prp:power)
"""


@pytest.fixture
def root(tmp_path, monkeypatch, capsys):
    """A book of one page, and its ledger."""
    (tmp_path / "chapters" / "_casts").mkdir(parents=True)
    (tmp_path / "chapters" / "_casts" / "page.py").write_text(CASTS)
    (tmp_path / "_toc.yml").write_text("root: chapters/page\n")
    (tmp_path / "chapters" / "page.md").write_text(PAGE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "equivalent_misprints.txt").write_text("# none\n")
    monkeypatch.setattr(command, "label_faults", lambda *_: [])
    monkeypatch.setattr("attnmath.page.verdicts.book.ProcessPoolExecutor", Alone)
    assert run(tmp_path) == 0, capsys.readouterr().out
    return tmp_path


class Alone:
    """The pool's work in this process."""

    def __init__(self, workers, mp_context, initializer, initargs):
        initializer(*initargs)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    map = staticmethod(map)


def run(root, *options) -> int:
    return command.main(["ledger", "--root", str(root), *options])


def test_a_ledger_made_again_is_the_same(root, capsys):
    assert run(root, "--compare") == run(root, "--check") == 0
    text = (root / "chapters" / "ledger.md").read_text()
    assert "| measured | 1: exp of what contains so many exponentials" in text and "| proved, " in text
    assert "3 displays, 0 faults" in capsys.readouterr().out


def test_kept_rows_and_fresh_ones_make_the_same_ledger(root, capsys, monkeypatch):
    tried = []
    monkeypatch.setattr(rows, "tally", lambda book, display: tried.append(display.label) or tally(book, display))
    page, path = root / "chapters" / "page.md", root / "chapters" / "ledger.md"
    before = path.read_text()
    assert run(root) == 0 and tried == [] and path.read_text() == before
    page.write_text(PAGE.replace("dA\\, K", "1 \\cdot dA\\, K"))
    assert command.main(["ledger", "page", "--root", str(root)]) == 0 and tried == ["prp:scores", "prp:back"]  # which defines A, and may be noticed there
    kept = path.read_text()
    assert kept != before and run(root, "--compare") == 0 and len(tried) == 2 + 3
    page.write_text(PAGE)
    assert run(root) == 0 and path.read_text() == before


def test_a_row_that_is_not_its_display_s_is_found(root, capsys):
    """Were a row kept too long, a fresh ledger would differ."""
    shelf = next((root / "_build" / "rows").iterdir())
    kept = pickle.loads(shelf.read_bytes())
    key, row = kept["prp:back"]
    kept["prp:back"] = key, replace(row, verdict=replace(row.verdict, comparisons=1))
    shelf.write_bytes(pickle.dumps(kept))
    assert run(root) == 0 and run(root, "--compare") == 1
    assert "was found; run make ledger" in capsys.readouterr().out


@pytest.mark.parametrize("old, new", [
    (r"\| measured \|", "| proved |"),
    (r"Exactly, proved: 2, (.*), measured: 1", r"Exactly, proved: 3, \1, measured: 0"),
    (r"(prp:back \|.*\| )(\d)(\d+)/", r"\g<1>9\3/"),
    (r"Misprints tried: \d+", "Misprints tried: 1"),
    (r"nothing on it is typed", "something on it is typed"),
    (r"\n\Z", ""),
])
def test_what_is_written_by_hand_is_found_though_no_hash_has_changed(root, capsys, old, new):
    path = root / "chapters" / "ledger.md"
    text = path.read_text()
    edited = re.sub(old, new, text, count=1)
    assert edited != text
    path.write_text(edited)
    assert run(root, "--check") == 0 and run(root, "--compare") == 1
    assert re.search(r"ledger.md:\d+: it says .*, and .* was found; run make ledger", capsys.readouterr().out)
    assert path.read_text() == edited  # comparing writes nothing


def test_a_display_that_fails_and_a_misprint_that_survives_are_red(root, capsys):
    page = root / "chapters" / "page.md"
    page.write_text(PAGE.replace("dA\\, K", "dA\\, K \\cdot 2"))
    assert run(root, "--compare") == 1 and "prp:back: value: " in capsys.readouterr().out
    page.write_text(PAGE + "\n$$ \\lVert A \\rVert \\le 1000 $$ (prp:slack)\n")
    assert run(root) == 1 and "prp:slack: survives" in capsys.readouterr().out
    assert "prp:slack" not in (root / "chapters" / "ledger.md").read_text()
