"""Each exercise judges itself: the printed placeholder, an empty, a constant and a plausible wrong answer are refused.

The wrong answers stand in exercise_slips.txt; the right one is the solution's.
"""

import ast
import contextlib
import io
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from attnmath.book import notebook
from loaded import nb

matplotlib.use("Agg")
derived = nb.derived
CHAPTERS = Path(__file__).resolve().parents[2] / "chapters"
CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```$", re.S | re.M)
OPTIONS = re.compile(r"\A(---\n[\s\S]*?\n---\n|(:.*\n)+)\n?")
SLIPS = Path(__file__).parents[1] / "exercise_slips.txt"


def is_judge(node):
    return isinstance(node, ast.With) and getattr(node.items[0].context_expr.func, "id", "") == "answer"


def cells(stem):
    """(label of the solution it belongs to, or None; source) for each cell of a chapter."""
    text = (CHAPTERS / f"{stem}.md").read_text("utf-8")
    solution = None
    for part in re.split(r"(?m)^(?=```\{code-cell\}|:::\{solution-)", text):
        if start := re.match(r":::\{solution-start\} (\S+)", part):
            solution = start[1]
        elif part.startswith(":::{solution-end}"):
            solution = None
        elif found := CELL.match(part):
            yield solution, OPTIONS.sub("", found[1])


def exercises(stem):
    """label -> (cells before, the learner's lines, the judge, the solution's lines)."""
    before, waiting, found = [], [], {}
    for solution, source in cells(stem):
        tree = ast.parse(source)
        judges = [node for node in tree.body if is_judge(node)]
        if judges and solution is None:
            (judge,) = judges
            lines = ast.unparse(ast.Module(tree.body[:tree.body.index(judge)], []))
            waiting.append((tuple(before), lines, ast.unparse(judge)))
        elif solution is not None and waiting:
            found[solution] = (*waiting.pop(), source)
        before.append(source)
    return found


STEMS = sorted(p.stem for p in CHAPTERS.glob("*.md") if "with answer(" in p.read_text("utf-8")
               and not p.stem.startswith("_"))


class Judged:
    """A chapter's cells, run up to an exercise; the judge's words on an answer."""

    def __init__(self):
        self.run, self.space = [], {}

    def at(self, before):
        with contextlib.redirect_stdout(io.StringIO()):
            for source in before[len(self.run):]:
                exec(compile(source, "cell", "exec"), self.space)
                self.run.append(source)
        matplotlib.pyplot.close("all")
        return dict(self.space)

    @staticmethod
    def says(space, lines, judge):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), np.errstate(all="ignore"):
            exec(compile(lines + "\n" + judge, "cell", "exec"), dict(space))
        return out.getvalue()


def names(lines):
    """The names that the learner gives: (values, functions with their parameters)."""
    tree = ast.parse(lines)
    functions = {node.name: ast.unparse(node.args) for node in tree.body if isinstance(node, ast.FunctionDef)}
    values = [x.id for node in tree.body if isinstance(node, ast.Assign) for t in node.targets
              for x in ast.walk(t) if isinstance(x, ast.Name)]
    return values, functions


def filled(lines, what):
    values, functions = names(lines)
    code = [f"{name} = {what}" for name in values]
    code += [f"def {name}({args}):\n    return {what}" for name, args in functions.items()]
    return "\n".join(code)


def slips():
    found = {}
    text = SLIPS.read_text("utf-8")
    for part in re.split(r"(?m)^## ", text)[1:]:
        label, _, code = part.partition("\n")
        found.setdefault(label.strip(), []).append(code)
    return found


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.filterwarnings("ignore")
def test_each_exercise_refuses_what_is_wrong_and_takes_its_solution(stem, monkeypatch):
    monkeypatch.chdir(CHAPTERS)
    chapter, wrong = Judged(), slips()
    assert len(exercises(stem)) == (CHAPTERS / f"{stem}.md").read_text("utf-8").count("with answer(")
    taken = []
    for label, (before, lines, judge, solution) in exercises(stem).items():
        space = chapter.at(before)
        assert chapter.says(space, solution, judge) == "Right.\n", label
        candidates = [lines, filled(lines, "None"), filled(lines, "0"), filled(lines, "1.0"), *wrong[label]]
        taken += [f"{label}:\n{candidate}" for candidate in candidates
                  if not chapter.says(space, candidate, judge).startswith("Not yet. ")]
    assert not taken, "\n".join(["wrong answers that are called right:", *taken])


def test_each_taught_chapter_has_three_exercises():
    """All three judge themselves (above): one to compute, one to derive, one to break."""
    taught = [Path(file).stem for part, file, number in derived.contents(CHAPTERS.parent)
              if part in ("One head", "The layer", "Learning", "Kernels and second order")]
    kinds = {stem: re.findall(r"^:::\{exercise\} .*\((.*)\)$", (CHAPTERS / f"{stem}.md").read_text("utf-8"), re.M)
             for stem in taught}
    assert len(taught) > 15
    assert not {stem: found for stem, found in kinds.items() if {*found} != {"compute", "derive", "break"}}


def test_a_judge_gives_a_hint_in_place_of_a_traceback(capsys):
    with notebook.answer("Divide by the sum."):
        raise ValueError("shapes\nand more")
    with notebook.answer("Divide by the sum."):
        raise AssertionError("dX: the largest error is 1; allowed 1.3e-13")
    with notebook.answer("Divide by the sum."):
        abs(None)
    with notebook.answer("Divide by the sum."):
        pass
    hints = ["shapes", "dX: the largest error is 1", "it is still None"]
    assert capsys.readouterr().out.splitlines() == [f"Not yet. Divide by the sum. ({x})" for x in hints] + ["Right."]
