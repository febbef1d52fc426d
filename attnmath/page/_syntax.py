"""From the LaTeX of a display to a tree of nodes that remember where they stand."""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput


class PageError(Exception):
    """A fault of a page, with the offset in the display's text where it stands.

    `kind` is one of grammar, letter, index, shape, value, label.
    """

    def __init__(self, kind: str, message: str, start: int | None = None):
        super().__init__(message)
        self.kind, self.message, self.start = kind, message, start


@dataclass(frozen=True)
class Node:
    """One node: what it is, its parts, and the span of text it was read from."""

    kind: str
    args: tuple = ()
    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)
    parts: tuple = field(default=(), compare=False)  # spans that misprints act on

    def walk(self):
        yield self
        for arg in self.args:
            for item in arg if isinstance(arg, tuple) else (arg,):
                if isinstance(item, Node):
                    yield from item.walk()


@dataclass(frozen=True)
class Statement:
    """members[0] relations[0] members[1] …, under conditions of the same form."""

    members: tuple
    relations: tuple
    conditions: tuple  # of (word, members, relations, start, end)
    start: int
    end: int

    @property
    def is_local(self) -> bool:
        return self.relations[0] == ":="

    def nodes(self):
        for member in self.members:
            yield from member.walk()
        for condition in self.conditions:
            for member in condition[1]:
                yield from member.walk()


RELATIONS = {"\\le": "<=", "\\leq": "<=", "\\ge": ">=", "\\geq": ">=",
             "\\approx": "~", "\\ne": "!=", "\\neq": "!="}  # fmt: skip
ACCENTS = {"\\bar": "bar ", "\\tilde": "tilde ", "\\hat": "hat "}
WORDS = {
    "SIGN": "a sign", "OP": "an operation", "REL": "a relation", "LETTER": "a letter",
    "NUMBER": "a number", "LBRACE": "{", "RBRACE": "}", "LPAR": "(", "RPAR": ")",
    "QUAD": "a new statement", "BREAK": "a new line", "COND": "a condition",
    "COMMA": "a comma", "$END": "the end", "FUNC": "a function",
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
    statements = []
    for line in tree.find_data("line"):
        conditions = tuple(_condition(t) for t in line.children if _is(t, "cond"))
        for item in line.children:
            if _is(item, "stmt"):
                statements.append(_statement(item, conditions))
    return tuple(statements)


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


def _is(item, *names: str) -> bool:
    return isinstance(item, Tree) and item.data in names


def _span(item) -> tuple[int, int]:
    if isinstance(item, Token):
        return item.start_pos, item.end_pos
    return item.meta.start_pos, item.meta.end_pos


def _relation(token: Token) -> str:
    return RELATIONS.get(str(token), str(token))


def _statement(tree: Tree, conditions: tuple) -> Statement:
    members = tuple(_node(t) for t in tree.children if not isinstance(t, Token))
    tokens = [t for t in tree.children if isinstance(t, Token)]
    return Statement(members, tuple(map(_relation, tokens)), conditions, *_span(tree))


def _condition(tree: Tree) -> tuple:
    word = re.search(r"\{\s*(\w+)\s*\}", tree.children[0]).group(1)
    members = tuple(_node(t) for t in tree.children[1:] if not isinstance(t, Token))
    relations = tuple(_relation(t) for t in tree.children[1:] if isinstance(t, Token))
    return (word, members, relations, *_span(tree))


def _node(tree) -> Node:
    children = tree.children
    start, end = _span(tree)

    def make(kind, *args, parts=()):
        return Node(kind, args, start, end, tuple(parts))

    match tree.data:
        case "number":
            return make("number", float(children[0]))
        case "one":
            return make("one", None)
        case "infinity":
            return make("infinity")
        case "t" | "delta":
            what = "a transpose sign" if tree.data == "t" else "a delta without indices"
            raise PageError("grammar", f"{what} stands alone", start)
        case "name":
            return make("name", *_letter(tree))
        case "paren":
            inner = _node(children[0])
            return Node(inner.kind, inner.args, start, end, inner.parts)
        case "func":
            name = re.search(r"[A-Za-z_\\]+(?=\}?$)", children[0].rstrip()).group()
            name = name.replace("\\_", "_").lstrip("\\")
            return make("func", name, tuple(map(_node, children[1:])))
        case "frac":
            return make("div", *map(_node, children))
        case "partial" | "sqrt" | "inner" | "abs":
            return make(tree.data, *map(_node, children))
        case "norm":
            return make("norm", _node(children[0]), "F")
        case "factor":
            return _scripts(tree)
        case "sum":
            return _sum(tree)
        case "prod":
            nodes = tuple(map(_node, children))
            return make("prod", nodes, parts=map(_span, children))
        case "ops":
            return _operations(tree)
        case "big":
            return _big(tree)
    raise AssertionError(tree.data)


def _letter(tree: Tree) -> tuple[str, str]:
    """(prefix, letter): prefix is '', 'd', 'dot' or 'dotd'."""
    prefix = ""
    for token in tree.children[:-1]:
        prefix += "dot" if token.type == "DOT" else "d"
    return prefix, _plain(tree.children[-1])


def _plain(tree: Tree) -> str:
    first = tree.children[0]
    if first.type == "ACCENT":
        return ACCENTS[str(first)] + _plain(tree.children[1])
    primes = "'" * (len(tree.children) - 1)
    return str(first).lstrip("\\") + primes


def _sum(tree: Tree) -> Node:
    terms, parts, sign, sign_span = [], [], "+", None
    for child in tree.children:
        if isinstance(child, Token):
            sign, sign_span = str(child), _span(child)
            continue
        terms.append((sign, _node(child)))
        parts.append((sign_span, _span(child)))
        sign, sign_span = "+", None
    signs = tuple(sign for sign, _ in terms)
    return Node("sum", (signs, tuple(n for _, n in terms)), *_span(tree), tuple(parts))


def _operations(tree: Tree) -> Node:
    node = _node(tree.children[0])
    for token, child in zip(tree.children[1::2], tree.children[2::2]):
        kind = {"/": "div", "\\circ": "had", "\\cdot": "dot", "\\otimes": "kron"}[str(token)]
        right = _node(child)
        if kind == "div" and right.kind == "prod" and not _is(child, "paren"):
            message = "'/' divides by one factor; set parentheses or \\frac"
            raise PageError("grammar", message, token.start_pos)
        node = Node(kind, (node, right), node.start, right.end, (_span(token),))
    return node


def _big(tree: Tree) -> Node:
    op = str(tree.children[0]).lstrip("\\")
    indices, relations, bounds = _range(tree.children[1])
    upper = _node(tree.children[2].children[0]) if len(tree.children) == 4 else None
    body = _node(tree.children[-1])
    span = _span(tree.children[1])
    return Node("big", (op, indices, relations, bounds, upper, body), *_span(tree), (span,))


def _range(sub: Tree) -> tuple:
    """`_{i, j \\le k}`: the bound indices, the relations, the bounds of the last."""
    items = [c if isinstance(c, Token) else _node(c) for c in sub.children]
    relations = tuple(_relation(c) for c in items if isinstance(c, Token) and c.type == "REL")
    nodes = [c for c in items if isinstance(c, Node)]
    heads = nodes[: len(nodes) - len(relations)]
    names = []
    for node in (n for head in heads for n in _juxtaposed(head)):
        if node.kind != "name" or node.args[0]:
            raise PageError("index", "a sum needs index letters below it", node.start)
        names.append(node.args[1])
    return tuple(names), relations, tuple(nodes[len(heads) :])


def _juxtaposed(node: Node) -> tuple:
    return node.args[0] if node.kind == "prod" else (node,)


def _script_nodes(script: Tree) -> list[Node]:
    if any(isinstance(c, Token) and c.type == "REL" for c in script.children):
        message = "a relation stands in a subscript that sums nothing"
        raise PageError("grammar", message, _span(script)[0])
    nodes = []
    for child in script.children:
        if isinstance(child, Token):
            nodes.append(Node("number", (float(child),), *_span(child)))
        elif child.data == "t":
            nodes.append(Node("T", (), *_span(child)))
        elif child.data == "prod":
            nodes += [Node("T", (), *_span(c)) if _is(c, "t") else _node(c)
                      for c in child.children]  # fmt: skip
        else:
            nodes.append(_node(child))
    return nodes


def _scripts(tree: Tree) -> Node:
    """Subscripts apply first; then capitals name, T transposes, -1 inverts, else a power."""
    head, scripts = tree.children[0], tree.children[1:]
    subs = [n for s in scripts if s.data == "sub" for n in _script_nodes(s)]
    sups = [(n, s) for s in scripts if s.data == "sup" for n in _script_nodes(s)]
    capitals = [n for n, _ in sups if _is_capital(n)]
    start, end = _span(tree)
    first = tree.children[0]
    if _is(first, "delta"):
        if len(subs) != 2:
            raise PageError("index", "a delta needs two indices", start)
        node = Node("delta", tuple(subs), start, end)
    else:
        node = _node(head)
        if capitals and node.kind == "name":
            letter = "^".join([node.args[1], *(n.args[1] for n in capitals)])
            node = Node("name", (node.args[0], letter), node.start, node.end)
        node = _subscripted(node, subs, start, end)
    for sup, script in sups:
        if sup in capitals:
            continue
        node = _raised(node, sup, start, end, _span(script))
    return node


def _is_capital(node: Node) -> bool:
    return node.kind == "name" and node.args[0] == "" and node.args[1].isupper() \
        and len(node.args[1]) == 1  # fmt: skip


def _subscripted(node: Node, subs: list, start: int, end: int) -> Node:
    if not subs:
        return node
    if node.kind == "one":
        return Node("one", (subs[0],), start, end)
    if node.kind == "norm":
        order = subs[0].args[0] if subs[0].kind == "number" else "inf"
        return Node("norm", (node.args[0], order), start, end)
    if node.kind == "name" and node.args == ("", "I"):
        return Node("identity", (subs[0],), start, end)
    if node.kind == "name" and node.args == ("", "d"):
        return Node("name", ("", "d_" + str(subs[0].args[1])), start, end)
    return Node("index", (node, tuple(subs)), start, end)


def _raised(node: Node, sup: Node, start: int, end: int, span: tuple) -> Node:
    if sup.kind == "T":
        return Node("transpose", (node,), start, end, (span,))
    if node.kind == "name" and node.args == ("", "e"):
        return Node("func", ("exp", (sup,)), start, end)
    if sup.kind == "sum" and sup.args[0] == ("-",) and sup.args[1][0].kind == "number":
        return Node("inverse", (node,), start, end, (span,))
    return Node("power", (node, sup), start, end, (span,))
