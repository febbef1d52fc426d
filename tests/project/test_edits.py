"""A formula in four edits, a chapter in six: made in a copy of the project, and each of them left out once."""

import contextlib

import pytest

from copied import copy_project, run

DISPLAY = """
## How even a row is

$$
\\begin{aligned}
P &= \\operatorname{softmax}(A, \\tau) && (n \\times m) \\\\
s &= \\operatorname{rowsum}(P \\circ P) && (n \\times 1)
\\end{aligned}
$$ (eq:purity)

```{code-cell} ipython3
show(purity)
```
"""
LETTER = "| $s$ | $n \\times 1$ | sum of the squares of each row of $P$ | `s` |\n"
FUNCTION = '''

@checked
def purity(A: Rows[Kind], tau: Temperature = 1) -> PerRow[Kind]:
    """How far the weights of each row are from even: the sum of their squares.

    A (..., m), tau () -> s (...)

    It is 1 / m for even weights. Conditions and errors as for softmax.
    Derived in chapters/STEM.md, eq:purity.
    """
    P = softmax(A, tau)
    s = flat(rowsum(P * P))
    return s
'''
TEST = '''

def plain_purity(A, tau=1):
    """The sum of the squares, one by one."""
    P = plain.softmax(A, tau)
    return np.array([sum(p * p for p in row) for row in P.reshape(-1, P.shape[-1])], object).reshape(P.shape[:-1])


def test_purity():
    A = np.array([[0.0, 0.0, 0.0, 0.0], [0.0, np.log(3), -np.inf, -np.inf]])
    assert np.allclose(attnmath.purity(A), [1 / 4, 1 / 16 + 9 / 16])
    assert not np.allclose(attnmath.softmax(A).sum(-1), [1 / 4, 1 / 16 + 9 / 16]), "the squares are forgotten"
'''
CAST = '''"""The weights of softmax, once more."""

CASTS = ("softmax",)
'''
PAGE = """---
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

# Purity: how even is a row?

```{code-cell} ipython3
from attnmath import purity
from attnmath.book.notebook import show
```
""" + DISPLAY + """
## Letters of this chapter

| letter | shape | meaning | code |
| --- | --- | --- | --- |
""" + LETTER + "| $\\tau$ | number | temperature | `tau` |\n"
MODULE = '''"""How even a row of weights is."""

from attnmath._formulas.softmax import softmax
from attnmath._given.checked import checked
from attnmath._given.letters import Kind, PerRow, Rows, Temperature
from attnmath._words.arrays import flat, rowsum
'''
TESTED = '''"""The evenness of rows against sums by hand."""

import numpy as np

import attnmath
import plain
'''


def before(place, *new):
    """What stands before the line that begins with these words, in a file that is there."""
    return lambda text: text.replace(f"\n{place}", "\n" + "".join(new) + place, 1)


def named(module):
    """The public name: what is imported is public."""
    line = f"from attnmath._formulas.{module} import purity as purity\n"
    return before("from attnmath._formulas.softmax", line)


FORMULA = {
    "chapters/softmax.md": lambda text: before("## What to remember", DISPLAY.lstrip(), "\n")(before("| $l$", LETTER)(
        text.replace("from attnmath import (", "from attnmath import (\n    purity,", 1))),
    "attnmath/_formulas/softmax.py": lambda text: text + FUNCTION.replace("STEM", "softmax"),
    "tests/formulas/test_softmax.py": lambda text: "import plain\n" + text + TEST,
    "attnmath/__init__.py": named("softmax"),
}
CHAPTER = {
    "chapters/purity.md": lambda _: PAGE,
    "attnmath/_formulas/purity.py": lambda _: MODULE + FUNCTION.replace("STEM", "purity"),
    "chapters/_casts/purity.py": lambda _: CAST,
    "tests/formulas/test_purity.py": lambda _: TESTED + TEST,
    "_toc.yml": lambda text: text.replace("      - file: chapters/other_texts.ipynb\n",
                                          "      - file: chapters/other_texts.ipynb\n      - file: chapters/purity.ipynb\n"),
    "attnmath/__init__.py": named("purity"),
}
EDITS = {"softmax": FORMULA, "purity": CHAPTER}
both = pytest.mark.parametrize("stem", EDITS)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return copy_project(tmp_path_factory.mktemp("edits") / "copy", "README.md")


@contextlib.contextmanager
def edited(copy, stem, without=None):
    """The edits but for one, taken back afterwards, with all that was made of them."""
    made = ["chapters/api.md", "README.md", f"chapters/{stem}.ipynb"]
    paths = {copy / name: (copy / name).read_bytes() if (copy / name).exists() else None for name in [*EDITS[stem], *made]}
    try:
        for name, edit in EDITS[stem].items():
            path = copy / name
            if name != without:
                old = path.read_text("utf-8") if path.exists() else ""
                new = edit(old)
                assert new != old, f"{name}: the place of the edit is not there"
                path.write_text(new, "utf-8")
        yield
    finally:
        for path, old in paths.items():
            if old is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(old)


def checked(copy, stem):
    """What is said by the checks of a chapter, one after the other, until one fails."""
    tests = [f"tests/formulas/test_{stem}.py", "tests/project/test_public.py", "tests/exact/test_exact_mutants.py"]
    checks = [
        ("-m", "attnmath.page", "check", stem), ("-m", "pytest", "-q", "-k", "purity or asked or floors or sample", *tests),
        ("tools/pages.py", "write"), ("tools/nb.py", "run", stem),
        ("-m", "pytest", "-q", "-k", "purity or contents or short", "tests/book/test_book.py"),
    ]
    for words in checks:
        code, said = run(copy, *words)
        if code:
            return said
    return ""


@both
def test_these_edits_are_enough(stem, copy):
    assert len(FORMULA) == 4 and len(CHAPTER) == 6
    with edited(copy, stem):
        assert checked(copy, stem) == ""
        assert "autofunction:: attnmath.purity\n" in (copy / "chapters" / "api.md").read_text("utf-8")
        assert "def purity(" in (copy / "chapters" / f"{stem}.ipynb").read_text("utf-8")
        code, said = run(copy, "-m", "attnmath.page", "prove", stem)
        assert code == 0, said


FORGOTTEN = {  # and what is said then
    "chapters/softmax.md": "eq:purity", "attnmath/_formulas/softmax.py": "purity", "attnmath/__init__.py": "purity",
    "tests/formulas/test_softmax.py": "tests/ has no test_purity",
    "chapters/purity.md": "no chapter is called purity", "attnmath/_formulas/purity.py": "attnmath._formulas.purity",
    "chapters/_casts/purity.py": "write chapters/_casts/purity.py", "tests/formulas/test_purity.py": "tests/ has no test_purity",
    "_toc.yml": "purity",
}


@pytest.mark.parametrize("stem, name", [(stem, name) for stem in EDITS for name in EDITS[stem]])
def test_an_edit_that_is_forgotten_is_named(stem, name, copy):
    with edited(copy, stem, without=name):
        assert FORGOTTEN[name] in checked(copy, stem)
