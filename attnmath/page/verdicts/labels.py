"""A label is a promise: a function, its listing, its test; a letter has its line.

`eq:name` promises `attnmath.name`, a cell of its chapter that shows its source, in the lines
of the display, and a test `test_name`. Every letter on a page has a line in a table: in the notation, or at the
end of its own chapter. An inline relation is run, repeats a display, or is a hypothesis on what is given.

The lines of a display and of its listing are the same in one form: what stands on the left, which letters,
which operations, in which order, where each scalar and each transpose is. Rules that choose (cases, masks)
compute nothing, and are not compared. Of a function that goes through tiles, whose lines are those of a tile,
the letters that its own listing gives are compared: they are the display's, in its order.
"""

import ast
import inspect
import re
from collections.abc import Callable, Collection, Iterable
from functools import cache
from pathlib import Path

import attnmath
from attnmath.page.language.chapter import LABELLED, MADE, Chapter, Display, PageFault
from attnmath.page.language.letters import letters_in, near, tables_of
from attnmath.page.language.nodes import PageError, names_in
from attnmath.page.language.syntax import readable, unset
from attnmath.page.scenes.cast import Cast
from attnmath.page.scenes.casts import repeated, written
from attnmath.page.scenes.evaluate import is_rule
from attnmath.page.scenes.scene import Scene
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.listing import Reader, Unread, assigned, calls_of
from attnmath.page.verdicts.normal import Page, code_of, form_of, settled
from attnmath.page.verdicts.promise import code_name, code_names, letters_given, rule_line

CHECK = re.compile(r"(check|assert|verify|raises)(_|$)")  # what a test calls that can fail
SKIPPED = re.compile(r"\b(skip|xfail)\b")


def label_faults(book: Book, root: Path | None, wanted: Collection[str] = ()) -> list[PageFault]:
    """Broken promises of the chapters wanted, or of all."""
    faults: list[PageFault] = repeated(book.chapters, written(root)) if root else []
    seen: dict[str, Display] = {}
    tests = _tests(root) if root else None
    for chapter in book.chapters:
        is_wanted = not wanted or chapter.stem in wanted
        letters = _letters(book, chapter.stem) if root and is_wanted else None
        for display in chapter.displays:
            other = seen.setdefault(display.label.lower(), display)
            if other is not display:
                faults.append(_fault(display, f"the label stands in {other.path} already"))
            if display.kind == "eq" and is_wanted:
                faults += _promises(display, chapter, tests) + _other_lines(book, display)
            if letters is not None and display.kind in LABELLED:
                faults += _unlisted(book, display, letters)
    for name in attnmath.__all__ if root else ():
        if is_rule(name) and f"eq:{name}" not in seen:
            faults.append(PageFault("attnmath", 1, 1, f"eq:{name}", "no display has this label"))
    return faults


def _fault(display: Display, message: str) -> PageFault:
    return display.fault(PageError("label", message))


def _promises(display: Display, chapter: Chapter, tests: Callable[[str], bool] | None) -> list[PageFault]:
    name = display.name
    kept = {
        f"attnmath has no public function {name}": name in attnmath.__all__,
        f"no cell of this chapter has show({name})": name in chapter.shown,
        f"tests/ has no test_{name} that asserts anything": tests is None or tests(f"test_{name}"),
    }
    return [_fault(display, message) for message, is_kept in kept.items() if not is_kept]


def _other_lines(book: Book, display: Display) -> list[PageFault]:
    """What the display and the listing of its function do not have in common."""
    try:
        if is_rule(display.name):
            scene = book.scenes(book.cast_of(display))[0]
            refuse_other_lines(display.name, display.statements, scene)
    except PageError as error:
        return [display.fault(error)] if error.kind == "listing" else []  # judged, and reported, elsewhere
    return []


def _tests(root: Path) -> Callable[[str], bool]:
    """Whether there is a test of a name, and it can fail."""
    texts = [path.read_text(encoding="utf-8") for path in (root / "tests").rglob("test_*.py")]
    body = cache(lambda text: ast.parse(text).body)

    def exists(name: str) -> bool:
        parts = (part for text in texts if f"def {name}(" in text for part in body(text))
        return any(isinstance(n, ast.FunctionDef) and n.name == name and _asserts(n) for n in parts)

    return exists


def _asserts(test: ast.FunctionDef) -> bool:
    """Whether a test that is run asserts something of a value, or calls a check."""
    if any(SKIPPED.search(ast.unparse(mark)) for mark in test.decorator_list):
        return False
    nodes = list(ast.walk(test))
    calls = (ast.unparse(n.func).rpartition(".")[2] for n in nodes if isinstance(n, ast.Call))
    claims = [n.test for n in nodes if isinstance(n, ast.Assert)]
    named = any(isinstance(part, ast.Name) for claim in claims for part in ast.walk(claim))
    return named or any(map(CHECK.match, calls))


def _letters(book: Book, stem: str) -> set[str]:
    """The letters in the first cells of the tables of a chapter."""
    texts = {chapter.stem: chapter.text for chapter in book.chapters}
    stems = near(stem, texts.get(stem, ""))
    return set().union(*(letters_in(tables_of(one, texts.get(one, ""))) for one in stems))


def _unlisted(book: Book, display: Display, letters: set[str]) -> list[PageFault]:
    casts = book.casts.get(display.stem, ())
    for node in (n for statement in readable(display.text) for n in statement.nodes() if n.kind == "name"):
        letter = node.args[1]
        if letter not in letters and any(cast.knows(letter) for cast in casts):
            message = f"{letter} has no line in the notation, nor among the letters of its chapter"
            return [display.fault(PageError("letter", message, node.start))]
    return []


# ---- the lines of a display and those of its listing: one by one, in the same order ---------------


def chooses(statements: tuple) -> bool:
    """Whether a rule says where, and computes nothing: by cases, or by counting places."""
    cases = any(side.bare for s in statements for c in s.conditions if c.word == "if" for side in c.members)
    return cases or all(s.members[-1].kind == "big" and s.members[-1].args[-1].kind == "delta" for s in statements)


def refuse_other_lines(name: str, statements: tuple, scene: Scene) -> None:
    """A PageError at the first line of a display that is not that of its listing."""
    function, names = getattr(attnmath, name), code_names(scene.cast)
    if chooses(statements):
        return
    kept = {n.args[0] for s in statements for n in s.nodes() if n.kind == "func"} & calls_of(function)
    form = form_of(scene.cast)
    reader = Reader(form, set(names), kept)
    page = Page(statements, scene, form, kept, reader.returned)
    rules = [rule_line(statement, scene.cast, page.axes) for statement in statements]
    lefts = [code_name(scene.cast, *line.left) for line in rules]
    if "tile" in inspect.signature(function).parameters:
        refuse_other_order(name, lefts, statements, set(names))
        return
    try:
        lines, out = reader.lines(function)
        want = [(left, page.read(line.rule), line.statement) for left, line in zip(lefts, rules)]
    except Unread as error:
        raise PageError("listing", str(error)) from None
    found = out.items() if isinstance(out, dict) else [(want[-1][0], out)]
    lines += [(key, x) for key, x in found if isinstance(x, tuple) and x != ("name", key)]
    inputs = {code_name(scene.cast, *key) for key in letters_given(function, names)}
    lost = sorted((reader.own & set(names)) - {*lefts} - inputs)
    if lost:
        raise PageError("listing", f"the listing of {name} gives {lost[0]}, and no line of the display does")
    got, _ = settled(form, lines, lefts)
    got += [("nothing more", ())] * (len(want) - len(got))
    for (left, x, statement), (letter, y) in zip(want, got, strict=True):
        if letter != left:
            message = f"here the display gives {left}, and the listing of {name} gives {letter}"
            raise PageError("listing", message, statement.start)
        if page.rank(statement.members[0]) == 0:
            if statement.members[0].kind == "index":
                x, y = form.entry(x), form.entry(y)
            elif y[:2] == ("call", "rowsum"):
                y = y[2]  # a pairing, of which the rest is summed
        if x != y:
            message = f"{left} = {code_of(x)} on the page, {code_of(y)} in the listing of {name}"
            raise PageError("listing", message, statement.members[-1].start)


def refuse_other_order(name: str, lefts: list[str], statements: tuple, known: set) -> None:
    """The same of the letters alone that the listing gives."""
    own = [letter for letter in assigned(getattr(attnmath, name)) if letter in known]
    for letter, after in zip(own, [*own[1:], ""]):
        if letter not in lefts:
            raise PageError("listing", f"the listing of {name} gives {letter}, and no line of the display does")
        if after in lefts and lefts.index(after) < lefts.index(letter):
            message = f"the listing of {name} gives {letter} before {after}, and the display after it"
            raise PageError("listing", message, statements[lefts.index(letter)].start)


# ---- inline relations: what they speak of, and what they repeat -----------------------------------


def posing(book: Book) -> list[PageFault]:
    """Faults: hypotheses on letters that the page computes, which only pose as hypotheses."""
    everywhere = _origins(book.casts.values())
    found = []
    for chapter in (c for c in book.chapters if c.stem not in MADE):
        here = _origins([book.casts.get(chapter.stem, ())])
        for relation in chapter.hypotheses:
            letters = {letter for _, letter in names_in(relation.statements)}
            of = {letter: here if letter in here[0] | here[1] else everywhere for letter in letters}
            if computed := sorted(letter for letter, (drawn, made) in of.items() if letter in made - drawn):
                message = f"{computed[0]} is computed, and no hypothesis; write an assertion, which is run"
                found.append(relation.fault(PageError("letter", message)))
    return found


def _origins(chapters: Iterable[Iterable[Cast]]) -> tuple[set[str], set[str]]:
    """The letters, and letters of rows, that casts draw, and those that their displays define."""
    found = {(name, cast.letters[cast.rows.get(name, name)].is_primal)
             for casts in chapters for cast in casts for name in (*cast.letters, *cast.rows)}
    return {name for name, is_drawn in found if is_drawn}, {name for name, is_drawn in found if not is_drawn}


def unrun(book: Book) -> list[PageFault]:
    """Faults: assertions of chapters without a cast that repeat no line of a display."""
    lines = {line for display in book.displays.values() if display.kind != "err" for line in _lines(display)}
    idle = PageError("letter", "nothing here is run: this chapter has no cast; put it into words")
    chapters = [one for one in book.chapters if not book.casts.get(one.stem) and one.stem not in MADE]
    return [one.fault(idle) for chapter in chapters for one in chapter.asserted if unset(one.text) not in lines]


def _lines(display: Display) -> list[str]:
    """The statements of a display, each with its conditions."""
    return [unset(statement.stated(display.text)) for statement in readable(display.text)]


def relation_counts(book: Book) -> tuple[int, int, int]:
    """Inline relations that are run, that repeat a display, and that are hypotheses."""
    chapters = [chapter for chapter in book.chapters if chapter.stem not in MADE]
    asserted = sum(len(chapter.asserted) for chapter in chapters)
    return len(book.relations), asserted - len(book.relations), sum(len(c.hypotheses) for c in chapters)
