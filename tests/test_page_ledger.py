"""The ledger is made, not edited: whatever is changed by hand differs from what is found."""

import re

import pytest

from attnmath.page import __main__ as command
from attnmath.page._cast import Cast, Letter, Setting

SCORES = Cast(
    name="scores",
    sizes={"n": 4, "m": 5, "d": 3},
    letters={
        "Q": Letter(("n", "d")),
        "K": Letter(("m", "d")),
        "A": Letter(("n", "m"), "prp:scores"),
    },
    outputs=("A",),
    settings=(Setting("random", 1), Setting("other sizes", 2, {"n": 3, "m": 2, "d": 4})),
)
PAGE = r"""# A page

$$ A = Q K^{\mathsf T} $$ (prp:scores)

$$ dQ = dA\, K, \quad dK = dA^{\mathsf T} Q $$ (prp:back)

$$ 2^{A_{ij}} = e^{\log(2) \sum_l Q_{il} K_{jl}} $$ (prp:power)
"""


@pytest.fixture
def root(tmp_path, monkeypatch, capsys):
    """A book of one page, and its ledger."""
    (tmp_path / "chapters").mkdir()
    (tmp_path / "_toc.yml").write_text("root: chapters/page\n")
    (tmp_path / "chapters" / "page.md").write_text(PAGE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "equivalent_misprints.txt").write_text("# none\n")
    monkeypatch.setattr("attnmath.page._casts.CHAPTERS", {"page": (SCORES,)})
    monkeypatch.setattr(command, "label_faults", lambda book, root: [])
    monkeypatch.setattr("attnmath.page._pool.ProcessPoolExecutor", Alone)
    assert run(tmp_path) == 0, capsys.readouterr().out
    return tmp_path


class Alone:
    """The pool's work in this process, which has the casts of the test."""

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


@pytest.mark.parametrize("old, new", [
    (r"\| measured \|", "| proved |"),
    (r"Exactly, proved: 2, (.*), measured: 1", r"Exactly, proved: 3, \1, measured: 0"),
    (r"(prp:back \|.*\| )(\d)(\d+)/", r"\g<1>9\3/"),
    (r"Misprints tried: \d+", "Misprints tried: 1"),
    (r"nothing on it is typed", "something on it is typed"),
    (r"\n\Z", ""),
])  # fmt: skip
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
