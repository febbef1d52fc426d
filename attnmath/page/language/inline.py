"""Paragraphs: what a formula among words may be made of, which one states a relation, and what words may have.

Every formula is read by `inline.lark`; what that does not know (a macro, another command, another
alphabet) is refused. A relation after one of ASSUMING, or after another hypothesis and *and* or *or*, says
under which circumstances something holds, or what a letter is: it is listed, if it speaks of what is
given, and not of a derivative or a letter that the page computes. Any other is an assertion, and run
like a display without a label.

A relation among words would be read by people and by nobody else, whether it is written with letters of
the keyboard or of another alphabet. So words, code and links have the signs listed here, and no relation.
"""

import ast
import re
import unicodedata
from functools import lru_cache

from lark import Lark
from lark.exceptions import UnexpectedInput
from markdown_it.token import Token

from attnmath.page.language.nodes import PageError
from attnmath.page.language.syntax import readable, unread_at

ASSUMING = ("if", "when", "unless", "let", "for", "at", "where", "with", "suppose", "assume")
HYPOTHESIS = re.compile(rf"(?<![\w-])({'|'.join(ASSUMING)})( (all|any|every|each|some))?\s+$", re.I)
CHAIN = re.compile(r"\s+(and|or)\s+$")
DISPLAYED = re.compile(r"\\\\|\\(begin|displaystyle|dfrac|tag|label|qquad)(?![A-Za-z])")

WRITE = "write $$ … $$ (prp:name)"
MATH = re.compile(r"\$\$|\\[(\[]|\\begin\b|<math\b|\\end\{")  # in what Markdown takes for text
MYST_ROLES = ("doc", "eq", "ref", "numref", "cite", "cite:t", "cite:p", "py:func", "py:class", "py:mod", "py:obj")
COMMENT = re.compile(r"\s*(<!--((?!-->).)*-->\s*)+", re.S)

RELATIONS = "=<>"
TYPE = set("\u00a0“”‘’–—…·†「」、。，：；？（）∎√∞±×−")  # beside the letters of the keyboard
ALPHABETS = ("LATIN", "GREEK SMALL LETTER", "GREEK CAPITAL LETTER", "CJK UNIFIED IDEOGRAPH")


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
        at = unread_at(formula, error)
        found = re.findall(r"\\[A-Za-z]+|\\?.|$", formula[at:], re.S)[0]
        what = repr(found) if found else "the end"
        message = f"{what} is not read in a formula among words; say it in words, or {WRITE}"
        if DISPLAYED.search(formula):
            message = f"a display in a paragraph; {WRITE}"
        raise PageError("grammar", message, at) from None


def is_hypothesis(before: str, since: str | None, formula: str) -> bool:
    """Whether a relation is one, by the words before it, and has no gradient, tangent or derivative.

    `since` are the words after a hypothesis.
    """
    if not (HYPOTHESIS.search(before) or since is not None and CHAIN.fullmatch(since)):
        return False
    sides = [side for statement in readable(formula) for side in statement.sides]
    return bool(sides) and not any(side.has_derivative for side in sides)


def sign(words: str) -> str | None:
    """The first sign that words may not have: a relation, an exponent, a letter of formulas."""
    return next((x for x in words if x in RELATIONS or not (x.isascii() or x in TYPE or _is_letter(x))), None)


def _is_letter(x: str) -> bool:
    """Of a text: not raised, nor set as in a formula."""
    return unicodedata.name(x, "").startswith(ALPHABETS) and not unicodedata.decomposition(x).startswith("<")


def in_words(words: str, quotes: bool = False) -> str | None:
    """What is wrong with words, or with the words of a caption, a title or a picture."""
    if opened := MATH.search(words):
        return f"{opened[0]!r} that opens no display; {WRITE}"
    if not quotes and (found := sign(words)):
        return f"{found!r} among words, which nobody runs; put it into words, or {WRITE}"
    return None


def in_code(code: str) -> str | None:
    """What is wrong with code in a paragraph: what Python cannot read is not code."""
    code = code.replace("…", "...")
    if not code.isascii():
        return f"this is not code; put it into words, or {WRITE}"
    is_relation = any(x in code for x in RELATIONS) and not re.fullmatch(r"\w+=", code)
    return _not_python(code) if is_relation else None


def in_fence(language: str, code: str) -> str | None:
    """What is wrong with a text, or a program, that is shown and not run."""
    return _not_python(code.replace("…", "...")) if language == "python" else in_words(code)


def _not_python(code: str) -> str | None:
    try:
        ast.parse(code)
    except SyntaxError:
        return f"this is not Python; put it into words, or {WRITE}"
    return None if code.isascii() else f"this is not code; put it into words, or {WRITE}"


def unread(child: Token, quotes: bool = False) -> tuple[str, str] | None:
    """What in a paragraph could show mathematics that is not run: its words, and what to write.

    A page that `quotes` is made of what others wrote, with their signs.
    """
    text = child.content
    if child.type == "math_inline_double":
        return "$$", "a display in the middle of a paragraph; give it its own lines"
    if child.type == "html_inline" and not COMMENT.fullmatch(text):
        return text, f"HTML is not read; write Markdown, and mathematics as {WRITE[6:]}"
    if child.type == "image":
        return "![", "a picture is not read; draw it in a cell"
    if child.type == "myst_role" and child.meta["name"] not in MYST_ROLES:
        role = child.meta["name"]
        return f"{{{role}}}", f"the role {role} is not read; mathematics is $…$ or {WRITE[6:]}"
    if child.type == "myst_role":
        text = re.sub(r"\s*<[^<>]*>$", "", text)  # where it leads
    if child.type == "link_open":
        text = str(child.attrs.get("title", ""))
    if child.type in ("text", "text_special", "myst_role", "link_open") and (wrong := in_words(text, quotes)):
        opened = MATH.search(text)
        return opened[0] if opened else sign(text) or "", wrong
    if child.type == "code_inline" and not quotes and (wrong := in_code(text)):
        return text, wrong
    return None
