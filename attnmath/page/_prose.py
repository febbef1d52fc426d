"""What stands outside of formulas: words, code and links, in which no mathematics is shown.

A relation among words would be read by people and by nobody else, whether it is written with letters of
the keyboard or of another alphabet. So words have the signs listed here, and no relation.
"""

import ast
import re
import unicodedata

from markdown_it.token import Token

WRITE = "write $$ … $$ (prp:name)"
MATH = re.compile(r"\$\$|\\[(\[]|\\begin\b|<math\b|\\end\{")  # in what Markdown takes for text
ROLES = ("doc", "eq", "ref", "numref", "cite", "cite:t", "cite:p", "py:func", "py:class", "py:mod", "py:obj")
COMMENT = re.compile(r"\s*(<!--((?!-->).)*-->\s*)+", re.S)

RELATIONS = "=<>"
SIGNS = set("\u00a0“”‘’–—…·†「」、。，：；？（）∎√∞±×−")  # beside the letters of the keyboard
ALPHABETS = ("LATIN", "GREEK SMALL LETTER", "GREEK CAPITAL LETTER", "CJK UNIFIED IDEOGRAPH")


def sign(words: str) -> str | None:
    """The first sign that words may not have: a relation, an exponent, a letter of formulas."""
    return next((x for x in words if x in RELATIONS or not (x.isascii() or x in SIGNS or _is_letter(x))), None)


def _is_letter(x: str) -> bool:
    """Of a text: not raised, nor set as in a formula."""
    return unicodedata.name(x, "").startswith(ALPHABETS) and not unicodedata.decomposition(x).startswith("<")


def in_words(words: str, quotes: bool = False) -> str | None:
    """What is wrong with words, or with the words of a caption, a title or a picture."""
    if found := MATH.search(words):
        return f"{found[0]!r} that opens no display; {WRITE}"
    if not quotes and (found := sign(words)):
        return f"{found!r} among words, which nobody runs; put it into words, or {WRITE}"
    return None


def in_code(code: str) -> str | None:
    """What is wrong with code in a paragraph: what Python cannot read is not code."""
    code = code.replace("…", "...")
    if not code.isascii():
        return f"this is not code; put it into words, or {WRITE}"
    if any(x in code for x in RELATIONS) and not re.fullmatch(r"\w+=", code):
        return _not_python(code)
    return None


def in_fence(language: str, code: str) -> str | None:
    """What is wrong with a text, or a program, that is shown and not run."""
    if language == "python":
        return _not_python(code.replace("…", "..."))
    return in_words(code)


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
    if child.type == "myst_role" and child.meta["name"] not in ROLES:
        role = child.meta["name"]
        return f"{{{role}}}", f"the role {role} is not read; mathematics is $…$ or {WRITE[6:]}"
    if child.type == "myst_role":
        text = re.sub(r"\s*<[^<>]*>$", "", text)  # where it leads
    if child.type == "link_open":
        text = str(child.attrs.get("title", ""))
    if child.type in ("text", "text_special", "myst_role", "link_open") and (wrong := in_words(text, quotes)):
        return (MATH.search(text) or [sign(text)])[0], wrong
    if child.type == "code_inline" and not quotes and (wrong := in_code(text)):
        return text, wrong
    return None
