"""From the LaTeX of a display to a tree of nodes that remember where they stand."""

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from attnmath.page.language.nodes import Condition, Node, PageError, Statement

TERMINALS = {
    "SIGN": "a sign", "OP": "an operation", "REL": "a relation", "LETTER": "a letter", "NUMBER": "a number",
    "LBRACE": "{", "RBRACE": "}", "LPAR": "(", "RPAR": ")", "COMMA": "a comma", "QUAD": "a new statement",
    "BREAK": "a new line", "COND": "a condition", "SHAPE": "a shape", "$END": "the end", "FUNC": "a function",
}
RELATION_OF = {"\\le": "<=", "\\leq": "<=", "\\ge": ">=", "\\geq": ">=",
            "\\approx": "~", "\\ne": "!=", "\\neq": "!=", "\\in": "in"}


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
        raise PageError("grammar", _complaint(text, error), unread_at(text, error)) from None
    _check_layout(text)
    statements: list[Statement] = []
    for line in tree.find_data("line"):
        conditions = tuple(map(_condition, _trees(line, "cond")))
        for item in _trees(line, "stmt", "shape"):
            if item.data == "stmt":
                statements.append(_statement(item, conditions))
            else:
                statements[-1] = replace(statements[-1], shape=_members(item), shape_span=span_of(item))
    return tuple(statements)


def readable(text: str) -> tuple[Statement, ...]:
    """The same; none of a display that cannot be read."""
    try:
        return parse(text)
    except PageError:
        return ()


def unsized(text: str) -> str:
    """A display without what only says how it is set: sizes of brackets, room between lines, empty groups."""
    text = re.sub(r"\\(left|right|[bB]igg?[lr]?)(?![A-Za-z])", "", text)
    return re.sub(r"(?<=\\\\)\[[\d.]+[a-z]+\]|\s*\{\}(?!\s*\[)", "", text)


def unset(text: str) -> str:
    """A statement without any layout: no room, no line, no full stop; not to be read again, but to be compared."""
    return re.sub(r"\\\\|\\q?quad|\\[,;!: ]|[\s&]|\{\}|[.,;]$", "", unsized(text))


def squeezed(text: str) -> str:
    """One line, one blank at a time."""
    return " ".join(text.split())


def unread_at(text: str, error: UnexpectedInput) -> int:
    """Where in a text it cannot be read."""
    position = getattr(error, "pos_in_stream", None)
    return len(text.rstrip()) if position is None or position < 0 else position


def _complaint(text: str, error: UnexpectedInput) -> str:
    named = (getattr(error, name, None) for name in ("accepts", "expected", "allowed"))
    words = sorted({TERMINALS[name] for name in next(filter(None, named), ()) if name in TERMINALS})
    found = re.findall(r"\\?[A-Za-z]+|.|$", text[unread_at(text, error) :], re.S)[0] or "the end"
    return f"cannot read {found!r}" + (f"; here may stand {', '.join(words)}" if words else "")


def _check_layout(text: str) -> None:
    """What TeX sets otherwise, or not at all, though its words could be read."""
    aligned = re.fullmatch(r"\s*\\begin\{aligned\}(.*)\\end\{aligned\}\s*", text, re.S)
    body = aligned[1] if aligned else text
    if re.search(r"\\(begin|end)\{", body):
        raise PageError("grammar", "one aligned around the whole display, or none", 0)
    if not aligned and (broken := re.search(r"&|\\\\", body)):
        raise PageError("grammar", "lines and & need \\begin{aligned} around them", broken.start())
    taken = re.search(r"(\\\\|\\begin\{aligned\})\s*(\[)(?!\d+(\.\d+)?(pt|em|ex)\])", text)
    if taken:
        raise PageError("grammar", "TeX takes [ for an option of what stands before it: write {}[", taken.start(2))
    if len(re.findall(r"\\left\b", text)) != len(re.findall(r"\\right\b", text)):
        raise PageError("grammar", "\\left and \\right go in pairs", 0)


def _statement(tree: Tree, conditions: tuple[Condition, ...]) -> Statement:
    one = Statement(_members(tree), _relations(tree), conditions, *span_of(tree))
    if ":=" in one.relations and (len(one.relations) > 1 or conditions):
        raise PageError("grammar", "':=' names one thing, without a condition", one.start)
    return one


def _condition(tree: Tree) -> Condition:
    word = re.sub(r".*\{\s*|\s*\}", "", _tokens(tree, "COND")[0], flags=re.S)
    return Condition(word, _members(tree), _relations(tree), *span_of(tree))


# ---- parts of the grammar's tree ----------------------------------------------------------------


def _trees(tree: Tree, *names: str) -> list[Tree]:
    """The trees among its children; those of these names."""
    return [item for item in tree.children if isinstance(item, Tree) and (not names or item.data in names)]


def _tokens(tree: Tree, *types: str) -> list[Token]:
    return [item for item in tree.children if isinstance(item, Token) and (not types or item.type in types)]


def _members(tree: Tree) -> tuple[Node, ...]:
    return tuple(map(node_of, _trees(tree)))


def _relations(tree: Tree) -> tuple[str, ...]:
    return tuple(RELATION_OF.get(token, str(token)) for token in _tokens(tree, "REL"))


def span_of(item: Tree | Token) -> tuple[int, int]:
    place = item if isinstance(item, Token) else item.meta
    return int(place.start_pos or 0), int(place.end_pos or 0)


def node_of(tree: Tree) -> Node:
    """The node of a tree: what it is, its parts, its place."""
    kind, span = str(tree.data), span_of(tree)
    match kind:
        case "number":
            return Node(kind, (float(_tokens(tree)[0]),), *span)
        case "one":
            return Node(kind, (None,), *span)
        case "dots" | "infinity":
            return Node(kind, (), *span)
        case "block":
            return Node(kind, tuple(map(_members, _trees(tree))), *span)
        case "t" | "delta":
            what = "a transpose sign" if kind == "t" else "a delta without indices"
            raise PageError("grammar", f"{what} stands alone", span[0])
        case "name":
            prefix = "".join("dot" if token.type == "DOT" else "d" for token in _tokens(tree))
            return Node(kind, (prefix, _letter(_trees(tree)[0])), *span)
        case "paren":
            return replace(node_of(_trees(tree)[0]), start=span[0], end=span[1])
        case "func":
            name = re.findall(r"[A-Za-z_\\]+(?=\}?$)", _tokens(tree)[0].rstrip())[0].replace("\\_", "_")
            return Node(kind, (name.lstrip("\\"), _members(tree)), *span)
        case "frac" | "partial" | "sqrt" | "inner" | "abs":
            return Node("div" if kind == "frac" else kind, _members(tree), *span)
        case "norm":
            return Node(kind, (*_members(tree), "F"), *span)
        case "prod":
            factors = _trees(tree)
            for a, b in zip(factors, factors[1:]):
                if a.data == b.data == "number":
                    raise PageError("grammar", "two numbers side by side read as one", span_of(b)[0])
            return Node(kind, (_members(tree),), *span, tuple(map(span_of, factors)))
    return {"factor": _factor, "sum": _signed, "ops": _operations, "big": _ranged}[kind](tree)


def _letter(tree: Tree) -> str:
    first, *primes = _tokens(tree)
    if first.type == "ACCENT":
        return f"{first[1:]} {_letter(_trees(tree)[0])}"
    return first.lstrip("\\") + "'" * len(primes)


def _signed(tree: Tree) -> Node:
    terms, parts, sign, sign_span = [], [], "+", None
    for child in tree.children:
        if isinstance(child, Token):
            sign, sign_span = str(child), span_of(child)
            continue
        terms.append((sign, node_of(child)))
        parts.append((sign_span, span_of(child)))
        sign, sign_span = "+", None
    return Node("sum", tuple(zip(*terms)), *span_of(tree), tuple(parts))


def _operations(tree: Tree) -> Node:
    first, *rest = _trees(tree)
    node = node_of(first)
    for token, child in zip(_tokens(tree), rest):
        kind = {"/": "div", "\\circ": "had", "\\cdot": "dot", "\\otimes": "kron"}[token]
        right = node_of(child)
        if kind == "div" and right.kind == "prod" and child.data != "paren":
            raise PageError("grammar", "'/' divides by one factor; set parentheses or \\frac", span_of(token)[0])
        node = Node(kind, (node, right), node.start, right.end, (span_of(token),))
    return node


def _ranged(tree: Tree) -> Node:
    (op,), (sub, *sup, body) = _tokens(tree), _trees(tree)
    indices, relations, bounds = _range(sub)
    upper = _script_nodes(sup[0])[0] if sup else None
    if upper is not None and (relations != ("=",) or len(indices) != 1):
        raise PageError("index", "an upper limit needs one index with its first value below", upper.start)
    args = (op.lstrip("\\"), indices, relations, bounds, upper, node_of(body))
    return Node("big", args, *span_of(tree), (span_of(sub),))


def _range(sub: Tree) -> tuple[tuple[str, ...], tuple[str, ...], tuple[Node, ...]]:
    """`_{i, j \\le k}`: the bound indices, the relations, the bounds of the last."""
    relations, nodes = _relations(sub), _members(sub)
    if any(r not in ("=", "<", ">", "<=", ">=", "in") for r in relations):
        raise PageError("grammar", "not a range", span_of(sub)[0])
    heads, bounds = nodes[: len(nodes) - len(relations)], nodes[len(nodes) - len(relations) :]
    letters = [node for head in heads for node in (head.args[0] if head.kind == "prod" else (head,))]
    odd = [node.start for node in letters if node.kind != "name" or node.args[0]]
    if odd or not letters:
        raise PageError("index", "a sum needs index letters below it", odd[0] if odd else span_of(sub)[0])
    return tuple(node.args[1] for node in letters), relations, bounds


def _script_nodes(script: Tree) -> list[Node]:
    if _relations(script):
        raise PageError("grammar", "a relation stands in a subscript that sums nothing", span_of(script)[0])
    nodes = []
    for child in script.children:
        if isinstance(child, Token):
            nodes.append(Node("number", (float(child),), *span_of(child)))
            continue
        for part in child.children if child.data == "prod" else [child]:
            nodes.append(Node("T", (), *span_of(part)) if part.data == "t" else node_of(part))
    return nodes


def _factor(tree: Tree) -> Node:
    """Subscripts apply first; then a capital names a letter, T transposes, -1 inverts, and
    anything else is a power."""
    head, *scripts = _trees(tree)
    if len({script.data for script in scripts}) < len(scripts):
        raise PageError("grammar", "two scripts in one place", span_of(scripts[-1])[0])
    subs = [n for s in scripts if s.data == "sub" for n in _script_nodes(s)]
    sups = [(n, span_of(s)) for s in scripts if s.data == "sup" for n in _script_nodes(s)]
    capitals = [n for n, _ in sups if head.data == "name" and _is_capital(n)]
    if sum(n.kind == "T" for n, _ in sups) > 1:
        raise PageError("grammar", "two transpose signs", span_of(scripts[-1])[0])
    start, end = span_of(tree)
    if head.data == "delta":
        if len(subs) != 2:
            raise PageError("index", "a delta needs two indices", start)
        node = Node("delta", tuple(subs), start, end)
    else:
        node = node_of(head)
        if capitals:
            prefix, letter = node.args
            node = replace(node, args=(prefix, "^".join([letter, *(n.args[1] for n in capitals)])))
        node = _subscripted(node, subs, start, end)
    for sup, span in sups:
        node = node if sup in capitals else _raised(node, sup, start, end, span)
    return node


def _is_capital(node: Node) -> bool:
    return node.kind == "name" and node.args[0] == "" and node.args[1].isupper() and len(node.args[1]) == 1


def _subscripted(node: Node, subs: list[Node], start: int, end: int) -> Node:
    if not subs:
        return node
    is_size = node.kind == "name" and node.args == ("", "d")
    is_identity = node.kind == "name" and node.args == ("", "I")
    if not (is_size or is_identity or node.kind in ("one", "norm")):
        return Node("index", (node, tuple(subs)), start, end)
    sub, *more = subs
    if more:
        raise PageError("index", "one subscript is enough here", more[0].start)
    if node.kind == "one" or is_identity:
        return Node("identity" if is_identity else "one", (sub,), start, end)
    if node.kind == "norm":
        order = {("", "F"): "F", (2.0,): 2.0}.get(sub.args)
        if order is None:
            raise PageError("grammar", "only the norms F and 2 are read", sub.start)
        return Node("norm", (node.args[0], order), start, end)
    if sub.kind != "name" or sub.args[0]:
        raise PageError("grammar", "a size is d_ and a letter", sub.start)
    return Node("name", ("", "d_" + sub.args[1]), start, end)


def _raised(node: Node, sup: Node, start: int, end: int, span: tuple[int, int]) -> Node:
    if sup.kind == "T":
        return Node("transpose", (node,), start, end, (span,))
    if node.kind == "name" and node.args == ("", "e"):
        return Node("func", ("exp", (sup,)), start, end)
    if sup == Node("sum", (("-",), (Node("number", (1.0,)),))):
        return Node("inverse", (node,), start, end, (span,))
    return Node("power", (node, sup), start, end, (span,))
