"""From the LaTeX of a display to a tree of nodes that remember where they stand."""

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from attnmath.page._nodes import PageError, Statement
from attnmath.page._tree import is_tree, node_of, relation_of, span_of

WORDS = {
    "SIGN": "a sign", "OP": "an operation", "REL": "a relation", "LETTER": "a letter",
    "NUMBER": "a number", "LBRACE": "{", "RBRACE": "}", "LPAR": "(", "RPAR": ")",
    "QUAD": "a new statement", "BREAK": "a new line", "COND": "a condition",
    "COMMA": "a comma", "SHAPE": "a shape", "$END": "the end", "FUNC": "a function",
}  # fmt: skip


@lru_cache(maxsize=1)
def _parser() -> Lark:
    grammar = Path(__file__).with_name("grammar.lark").read_text()
    return Lark(grammar, parser="lalr", propagate_positions=True, maybe_placeholders=False)


@lru_cache(maxsize=4096)
def parse(text: str) -> tuple[Statement, ...]:
    """The statements of a display, in order; a PageError of kind grammar if unreadable."""
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        raise PageError("grammar", _complaint(text, error), _offset(text, error)) from None
    _check_layout(text)
    statements = []
    for line in tree.find_data("line"):
        conditions = tuple(_condition(t) for t in line.children if is_tree(t, "cond"))
        for item in line.children:
            if is_tree(item, "stmt"):
                statements.append(_statement(item, conditions))
            elif is_tree(item, "shape"):
                shape = tuple(node_of(t) for t in item.children if not isinstance(t, Token))
                statements[-1] = replace(statements[-1], shape=shape)
    return tuple(statements)


def plain(text: str) -> str:
    """A display without what only says how it is set: sizes of brackets, room between lines, empty groups."""
    text = re.sub(r"\\(left|right|[bB]igg?[lr]?)(?![A-Za-z])", "", text)
    return re.sub(r"(?<=\\\\)\[[\d.]+[a-z]+\]|\s*\{\}(?!\s*\[)", "", text)


def _offset(text: str, error: UnexpectedInput) -> int:
    position = getattr(error, "pos_in_stream", None)
    return len(text.rstrip()) if position is None or position < 0 else position


def _complaint(text: str, error: UnexpectedInput) -> str:
    expected = getattr(error, "accepts", None) or getattr(error, "expected", None)
    expected = expected or getattr(error, "allowed", None) or ()
    words = sorted({WORDS[name] for name in expected if name in WORDS})
    offset = _offset(text, error)
    found = re.match(r"\\?[A-Za-z]+|.|$", text[offset:], re.S).group() or "the end"
    wanted = f"; here may stand {', '.join(words)}" if words else ""
    return f"cannot read {found!r}{wanted}"


def _check_layout(text: str) -> None:
    """What TeX sets otherwise, or not at all, though its words could be read."""
    aligned = re.fullmatch(r"\s*\\begin\{aligned\}(.*)\\end\{aligned\}\s*", text, re.S)
    body = aligned.group(1) if aligned else text
    if re.search(r"\\(begin|end)\{", body):
        raise PageError("grammar", "one aligned around the whole display, or none", 0)
    broken = re.search(r"&|\\\\", body) if not aligned else None
    if broken:
        raise PageError("grammar", "lines and & need \\begin{aligned} around them", broken.start())
    taken = re.search(r"(\\\\|\\begin\{aligned\})\s*(\[)(?!\d+(\.\d+)?(pt|em|ex)\])", text)
    if taken:
        message = "TeX takes [ for an option of what stands before it: write {}["
        raise PageError("grammar", message, taken.start(2))
    if len(re.findall(r"\\left\b", text)) != len(re.findall(r"\\right\b", text)):
        raise PageError("grammar", "\\left and \\right go in pairs", 0)


def _statement(tree: Tree, conditions: tuple) -> Statement:
    members = tuple(node_of(t) for t in tree.children if not isinstance(t, Token))
    tokens = [t for t in tree.children if isinstance(t, Token)]
    relations = tuple(map(relation_of, tokens))
    if ":=" in relations and (len(relations) > 1 or conditions):
        message = "':=' names one thing, without a condition"
        raise PageError("grammar", message, members[0].start)
    return Statement(members, relations, conditions, *span_of(tree))


def _condition(tree: Tree) -> tuple:
    word = re.search(r"\{\s*(\w+)\s*\}", tree.children[0]).group(1)
    members = tuple(node_of(t) for t in tree.children[1:] if not isinstance(t, Token))
    relations = tuple(relation_of(t) for t in tree.children[1:] if isinstance(t, Token))
    return (word, members, relations, *span_of(tree))
