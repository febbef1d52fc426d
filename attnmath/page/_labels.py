"""A label is a promise: a function, its listing, its test; a letter has its line.

`eq:name` promises `attnmath.name`, a cell of its chapter that shows its source, in the lines
of the display, and a test `test_name`. Every letter on a page has a line in a table: in the notation, or at the
end of its own chapter.
"""

import ast
import re
from pathlib import Path

import attnmath
from attnmath.page._chapter import KINDS, Display, Fault
from attnmath.page._nodes import PageError
from attnmath.page._same_lines import refuse_other_lines
from attnmath.page._syntax import parse
from attnmath.page._vocabulary import is_rule

CHECK = re.compile(r"(check|assert|verify|raises)(_|$)")  # what a test calls that can fail
LETTERS = "\n## Letters of this chapter\n"  # opens the tables at a chapter's end
SKIPPED = re.compile(r"\b(skip|xfail)\b")


def label_faults(book, root: Path | None) -> list[Fault]:
    faults: list[Fault] = []
    seen: dict[str, Display] = {}
    tests = _tests(root) if root else None
    for chapter in book.chapters:
        letters = _letters(book, chapter.stem) if root else None
        for display in chapter.displays:
            other = seen.setdefault(display.label.lower(), display)
            if other is not display:
                faults.append(_fault(display, f"the label stands in {other.path} already"))
            if display.kind == "eq":
                faults += _promises(display, chapter, tests) + _other_lines(book, display)
            if letters is not None and display.kind in KINDS:
                faults += _unlisted(book, display, letters)
    for name in attnmath.__all__ if root else ():
        if is_rule(name) and f"eq:{name}" not in seen:
            faults.append(Fault("attnmath", 1, 1, f"eq:{name}", "no display has this label"))
    return faults


def _fault(display: Display, message: str) -> Fault:
    return display.fault(PageError("label", message))


def _promises(display: Display, chapter, tests: set | None) -> list[Fault]:
    name, faults = display.name, []
    if name not in attnmath.__all__:
        faults.append(_fault(display, f"attnmath has no public function {name}"))
    if name not in chapter.shown:
        faults.append(_fault(display, f"no cell of this chapter has show({name})"))
    if tests is not None and f"test_{name}" not in tests:
        faults.append(_fault(display, f"tests/ has no test_{name} that asserts anything"))
    return faults


def _other_lines(book, display: Display) -> list[Fault]:
    """What the display and the listing of its function do not have in common."""
    try:
        if is_rule(display.name):
            scene = book.scenes(book.cast_of(display))[0]
            refuse_other_lines(display.name, display.statements, scene)
    except PageError as error:
        return [display.fault(error)] if error.kind == "listing" else []  # judged, and reported, elsewhere
    return []


def _tests(root: Path) -> set[str]:
    """The names of the tests that can fail."""
    found = set()
    for path in (root / "tests").glob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found |= {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and _asserts(n)}
    return found


def _asserts(test: ast.FunctionDef) -> bool:
    """Whether a test that is run asserts something of a value, or calls a check."""
    if any(SKIPPED.search(ast.unparse(mark)) for mark in test.decorator_list):
        return False
    nodes = list(ast.walk(test))
    calls = (ast.unparse(n.func).rpartition(".")[2] for n in nodes if isinstance(n, ast.Call))
    claims = [n.test for n in nodes if isinstance(n, ast.Assert)]
    named = any(isinstance(part, ast.Name) for claim in claims for part in ast.walk(claim))
    return named or any(map(CHECK.match, calls))


def _letters(book, stem: str) -> set[str]:
    """The letters in the first cells of the tables of the notation, and of a chapter's own letters.

    A chapter that names another one there has its letters as well.
    """
    texts = {chapter.stem: chapter.text for chapter in book.chapters}
    own = texts.get(stem, "").partition(LETTERS)[2]
    named = re.findall(r"\{doc\}`(?:[^`<]*<)?(\w+)>?`", own)
    tables = [texts.get("notation", ""), own, *(texts.get(name, "").partition(LETTERS)[2] for name in named)]
    cells = re.findall(r"^\s*\|([^|]*)\|", "\n".join(tables), re.M)
    formulas = ",".join(inline for cell in cells for inline in re.findall(r"\$([^$]+)\$", cell))
    return set().union(*map(_read_letter, formulas.split(",")))


def _read_letter(text: str) -> set[str]:
    try:
        statements = parse(f"{text} = 0")
    except PageError:
        return set()
    return {n.args[1] for n in statements[0].nodes() if n.kind == "name"}


def _unlisted(book, display: Display, letters: set[str]) -> list[Fault]:
    try:
        statements = display.statements
    except PageError:
        return []  # judged, and reported, elsewhere
    casts = book.casts.get(Path(display.path).stem, ())
    for statement in statements:
        for node in statement.nodes():
            if node.kind != "name":
                continue
            letter = node.args[1]
            known = any(cast.knows(letter) for cast in casts)
            if known and letter not in letters:
                message = f"{letter} has no line in the notation, nor among the letters of its chapter"
                return [display.fault(PageError("letter", message, node.start))]
    return []
