"""Inline mathematics: which formula states a relation, and which of these is a hypothesis.

A relation after one of WORDS, or after another hypothesis and a comma, *and* or *or*, says
under which circumstances something holds, or what a letter is: it is listed. Any other is
an assertion, and run like a display without a label.
"""

import re

from markdown_it.token import Token

from attnmath.page._nodes import PageError

WORDS = ("if", "when", "whenever", "unless", "let", "for", "at", "where", "with", "suppose", "assume",
         "given", "such that")
HYPOTHESIS = re.compile(rf"(?<![\w-])({'|'.join(WORDS)})( (all|any|every|each|some))?\s+$", re.I)
CHAIN = re.compile(r"\s*(,|,? (and|or))\s+$")
SIGNS = r"=<>≤≥≠≈∈∉⊂⊆≡≅∼∝≪≫"
COMMANDS = ("[lg](eq?|t|l)(slant)?|g[eg]|n?eq?|approx|(not)?in|n?su[bp]set(eq)?|n?sim(eq)?|cong|equiv|propto|doteq"
            "|to|mapsto|(long)?(left)?rightarrow|iff|implies")
RELATION = re.compile(rf"[{SIGNS}]|\\({COMMANDS})(?![A-Za-z])", re.I)
RANGE = re.compile(r"\\(sum|prod|max|min)(\\limits)?\s*_\s*\{[^{}]*\}")  # what a sum runs over
DISPLAYED = re.compile(r"\\\\|\\(begin|displaystyle|dfrac|tag|label|qquad)(?![A-Za-z])")
MATH = re.compile(r"\$\$|\\[(\[]|\\begin\b|<math\b|\\end\{")  # in what Markdown takes for text
MADE = ("ledger", "errata", "sources", "museum")  # made of what was run, and compared to the byte

WRITE = "write $$ … $$ (prp:name)"
ROLES = ("doc", "eq", "ref", "numref", "cite", "cite:t", "cite:p", "py:func", "py:class", "py:mod", "py:obj")
COMMENT = re.compile(r"\s*(<!--((?!-->).)*-->\s*)+", re.S)


def states(formula: str) -> bool:
    """Whether there is a relation in a formula, other than in the range of a sum."""
    return bool(RELATION.search(RANGE.sub("", formula)))


def is_hypothesis(before: str, since: str | None) -> bool:
    """Whether the words before a formula make it one; `since` are those after a hypothesis."""
    return bool(HYPOTHESIS.search(before) or since is not None and CHAIN.fullmatch(since))


def is_split(text: str) -> bool:
    """Whether in a text, in which $ stands for a formula, the sign of a relation is beside one."""
    return bool(re.search(rf"\$\s*[{SIGNS}]|[{SIGNS}]\s*\$", text))


def unread(child: Token) -> tuple[str, str] | None:
    """What in a paragraph could show mathematics that is not run: its words, and what to write."""
    text = child.content
    if child.type == "math_inline_double":
        return "$$", "a display in the middle of a paragraph; give it its own lines"
    if child.type == "html_inline" and not COMMENT.fullmatch(text):
        return text, f"HTML is not read; write Markdown, and mathematics as {WRITE[6:]}"
    if child.type == "image":
        return "![", "a picture is not read; draw it in a cell"
    if child.type == "myst_role" and child.meta["name"] not in ROLES:
        role = child.meta["name"]
        return f"{{{role}}}", f"the role {role} is not read; mathematics is $…$ or {WRITE[6:]}"
    if child.type == "text" and (found := MATH.search(text)):
        return found[0], f"{found[0]!r} that opens no display; {WRITE}"
    return None


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
        ends = [(s.start, max([s.end, *(c[4] for c in s.conditions)])) for s in display.statements]
    except PageError:
        return []
    return [_plain(display.text[start:end]) for start, end in ends]


def _plain(text: str) -> str:
    return re.sub(r"\\\\|\\q?quad|\\[,;!: ]|[\s&]|[.,;]$", "", text)


def counts(book) -> tuple[int, int, int]:
    """Inline relations that are run, that repeat a display, and that are hypotheses."""
    chapters = [chapter for chapter in book.chapters if chapter.stem not in MADE]
    asserted = sum(len(chapter.asserted) for chapter in chapters)
    return len(book.relations), asserted - len(book.relations), sum(len(c.hypotheses) for c in chapters)
