"""Inline mathematics: what a formula may be made of, which one states a relation, and which of these
is a hypothesis.

Every formula is read by `inline.lark`; what that does not know (a macro, another command, another
alphabet) is refused. A relation after one of WORDS, or after another hypothesis and *and* or *or*, says
under which circumstances something holds, or what a letter is: it is listed, if it speaks of what is
given, and not of a derivative or a letter that the page computes. Any other is an assertion, and run
like a display without a label.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from lark import Lark
from lark.exceptions import UnexpectedInput

from attnmath.page._nodes import PageError
from attnmath.page._prose import WRITE
from attnmath.page._syntax import parse, plain

WORDS = ("if", "when", "unless", "let", "for", "at", "where", "with", "suppose", "assume")
HYPOTHESIS = re.compile(rf"(?<![\w-])({'|'.join(WORDS)})( (all|any|every|each|some))?\s+$", re.I)
CHAIN = re.compile(r"\s+(and|or)\s+$")
DISPLAYED = re.compile(r"\\\\|\\(begin|displaystyle|dfrac|tag|label|qquad)(?![A-Za-z])")
MADE = ("ledger", "errata", "sources", "museum")  # made of what was run, and compared to the byte


@lru_cache(maxsize=1)
def _grammar() -> Lark:
    return Lark.open("inline.lark", rel_to=__file__, parser="lalr", propagate_positions=True)


@lru_cache(maxsize=4096)
def states(formula: str) -> bool:
    """Whether there is a relation in a formula, other than in the range of a sum.

    A PageError if the formula is made of anything that inline mathematics does not have.
    """
    try:
        return any(_grammar().parse(formula).find_data("stated"))
    except UnexpectedInput as error:
        at = getattr(error, "pos_in_stream", None)
        at = len(formula) if at is None or at < 0 else at
        found = re.match(r"\\[A-Za-z]+|\\?.|$", formula[at:], re.S)[0]
        what = repr(found) if found else "the end"
        message = f"{what} is not read in a formula among words; say it in words, or {WRITE}"
        raise PageError("grammar", message, at) from None


def is_hypothesis(before: str, since: str | None, formula: str) -> bool:
    """Whether a relation is one, by the words before it; `since` are those after a hypothesis."""
    return bool(HYPOTHESIS.search(before) or since is not None and CHAIN.fullmatch(since)) and _is_given(formula)


def _is_given(formula: str) -> bool:
    """Whether a relation can be read, and no gradient, tangent or derivative stands in it."""
    try:
        nodes = [node for statement in parse(formula) for node in statement.nodes()]
    except PageError:
        return False
    return not any(node.kind == "partial" or node.kind == "name" and node.args[0] for node in nodes)


def posing(book) -> list:
    """Faults: hypotheses on letters that the page computes, which only pose as hypotheses."""
    everywhere = _origins(casts for casts in book.casts.values())
    found = []
    for chapter in (c for c in book.chapters if c.stem not in MADE):
        here = _origins([book.casts.get(chapter.stem, ())])
        for relation in chapter.hypotheses:
            names = {n.args[1] for one in parse(relation.text) for n in one.nodes() if n.kind == "name"}
            of = {name: here if name in here[0] | here[1] else everywhere for name in names}
            if computed := sorted(name for name, (drawn, made) in of.items() if name in made - drawn):
                message = f"{computed[0]} is computed, and no hypothesis; write an assertion, which is run"
                found.append(relation.fault(PageError("letter", message)))
    return found


def _origins(chapters: Iterable) -> tuple[set, set]:
    """The letters, and letters of rows, that casts draw, and those that their displays define."""
    origins: tuple[set, set] = set(), set()
    for cast in (cast for casts in chapters for cast in casts):
        for name in (*cast.letters, *cast.rows):
            origins[not cast.letters[cast.rows.get(name, name)].is_primal].add(name)
    return origins


def unrun(book) -> list:
    """Faults: assertions of chapters without a cast that repeat no line of a display."""
    lines = {line for display in book.displays.values() if display.kind != "err" for line in _lines(display)}
    return [
        relation.fault(PageError("letter", "nothing here is run: this chapter has no cast; put it into words"))
        for chapter in book.chapters
        if not book.casts.get(chapter.stem) and chapter.stem not in MADE
        for relation in chapter.asserted
        if _plain(relation.text) not in lines
    ]


def _lines(display) -> list[str]:
    """The statements of a display, each with its conditions; none if it cannot be read."""
    try:
        return [_plain(statement.stated(display.text)) for statement in display.statements]
    except PageError:
        return []


def _plain(text: str) -> str:
    return re.sub(r"\\\\|\\q?quad|\\[,;!: ]|[\s&]|\{\}|[.,;]$", "", plain(text))


def counts(book) -> tuple[int, int, int]:
    """Inline relations that are run, that repeat a display, and that are hypotheses."""
    chapters = [chapter for chapter in book.chapters if chapter.stem not in MADE]
    asserted = sum(len(chapter.asserted) for chapter in chapters)
    return len(book.relations), asserted - len(book.relations), sum(len(c.hypotheses) for c in chapters)
