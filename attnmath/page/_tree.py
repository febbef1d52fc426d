"""From the tree that the grammar gives to nodes: scripts, sums, operations, letters."""

import re

from lark import Token, Tree

from attnmath.page._nodes import Node, PageError

RELATIONS = {"\\le": "<=", "\\leq": "<=", "\\ge": ">=", "\\geq": ">=",
             "\\approx": "~", "\\ne": "!=", "\\neq": "!=", "\\in": "in"}  # fmt: skip
ACCENTS = {"\\bar": "bar ", "\\tilde": "tilde ", "\\hat": "hat ", "\\mathbb": "mathbb "}


def is_tree(item, *names: str) -> bool:
    return isinstance(item, Tree) and item.data in names


def span_of(item) -> tuple[int, int]:
    if isinstance(item, Token):
        return item.start_pos, item.end_pos
    return item.meta.start_pos, item.meta.end_pos


def relation_of(token: Token) -> str:
    return RELATIONS.get(str(token), str(token))


def node_of(tree) -> Node:
    children = tree.children
    start, end = span_of(tree)

    def make(kind, *args, parts=()):
        return Node(kind, args, start, end, tuple(parts))

    match tree.data:
        case "number":
            return make("number", float(children[0]))
        case "one":
            return make("one", None)
        case "dots":
            return make("dots")
        case "block":
            rows = tuple(tuple(map(node_of, row.children)) for row in children)
            return make("block", *rows)
        case "infinity":
            return make("infinity")
        case "t" | "delta":
            what = "a transpose sign" if tree.data == "t" else "a delta without indices"
            raise PageError("grammar", f"{what} stands alone", start)
        case "name":
            return make("name", *_letter(tree))
        case "paren":
            inner = node_of(children[0])
            return Node(inner.kind, inner.args, start, end, inner.parts)
        case "func":
            name = re.search(r"[A-Za-z_\\]+(?=\}?$)", children[0].rstrip()).group()
            name = name.replace("\\_", "_").lstrip("\\")
            return make("func", name, tuple(map(node_of, children[1:])))
        case "frac":
            return make("div", *map(node_of, children))
        case "partial" | "sqrt" | "inner" | "abs":
            return make(tree.data, *map(node_of, children))
        case "norm":
            return make("norm", node_of(children[0]), "F")
        case "factor":
            return _scripts(tree)
        case "sum":
            return _sum(tree)
        case "prod":
            nodes = tuple(map(node_of, children))
            for a, b in zip(children, children[1:]):
                if is_tree(a, "number") and is_tree(b, "number"):
                    message = "two numbers side by side read as one"
                    raise PageError("grammar", message, span_of(b)[0])
            return make("prod", nodes, parts=map(span_of, children))
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
            sign, sign_span = str(child), span_of(child)
            continue
        terms.append((sign, node_of(child)))
        parts.append((sign_span, span_of(child)))
        sign, sign_span = "+", None
    signs = tuple(sign for sign, _ in terms)
    return Node("sum", (signs, tuple(n for _, n in terms)), *span_of(tree), tuple(parts))


def _operations(tree: Tree) -> Node:
    node = node_of(tree.children[0])
    for token, child in zip(tree.children[1::2], tree.children[2::2]):
        kind = {"/": "div", "\\circ": "had", "\\cdot": "dot", "\\otimes": "kron"}[str(token)]
        right = node_of(child)
        if kind == "div" and right.kind == "prod" and not is_tree(child, "paren"):
            message = "'/' divides by one factor; set parentheses or \\frac"
            raise PageError("grammar", message, token.start_pos)
        node = Node(kind, (node, right), node.start, right.end, (span_of(token),))
    return node


def _big(tree: Tree) -> Node:
    op = str(tree.children[0]).lstrip("\\")
    indices, relations, bounds = _range(tree.children[1])
    upper = _script_nodes(tree.children[2])[0] if len(tree.children) == 4 else None
    if upper is not None and (relations != ("=",) or len(indices) != 1):
        message = "an upper limit needs one index with its first value below"
        raise PageError("index", message, upper.start)
    body = node_of(tree.children[-1])
    span = span_of(tree.children[1])
    return Node("big", (op, indices, relations, bounds, upper, body), *span_of(tree), (span,))


def _range(sub: Tree) -> tuple:
    """`_{i, j \\le k}`: the bound indices, the relations, the bounds of the last."""
    tokens = [c for c in sub.children if isinstance(c, Token)]
    relations = tuple(relation_of(token) for token in tokens if token.type == "REL")
    items = [node_of(c) for c in sub.children if not isinstance(c, Token)]
    nodes = [c for c in items if isinstance(c, Node)]
    heads = nodes[: len(nodes) - len(relations)]
    if any(r not in ("=", "<", ">", "<=", ">=", "in") for r in relations):
        raise PageError("grammar", "not a range", span_of(sub)[0])
    names = []
    for node in (n for head in heads for n in _juxtaposed(head)):
        if node.kind != "name" or node.args[0]:
            raise PageError("index", "a sum needs index letters below it", node.start)
        names.append(node.args[1])
    if not names:
        raise PageError("index", "a sum needs index letters below it", span_of(sub)[0])
    return tuple(names), relations, tuple(nodes[len(heads) :])


def _juxtaposed(node: Node) -> tuple:
    return node.args[0] if node.kind == "prod" else (node,)


def _script_nodes(script: Tree) -> list[Node]:
    if any(isinstance(c, Token) and c.type == "REL" for c in script.children):
        message = "a relation stands in a subscript that sums nothing"
        raise PageError("grammar", message, span_of(script)[0])
    nodes = []
    for child in script.children:
        if isinstance(child, Token):
            nodes.append(Node("number", (float(child),), *span_of(child)))
        elif child.data == "t":
            nodes.append(Node("T", (), *span_of(child)))
        elif child.data == "prod":
            nodes += [Node("T", (), *span_of(c)) if is_tree(c, "t") else node_of(c)
                      for c in child.children]  # fmt: skip
        else:
            nodes.append(node_of(child))
    return nodes


def _scripts(tree: Tree) -> Node:
    """Subscripts apply first; then a capital names a letter, T transposes, -1 inverts, and
    anything else is a power."""
    head, scripts = tree.children[0], tree.children[1:]
    for kind in ("sub", "sup"):
        if sum(s.data == kind for s in scripts) > 1:
            raise PageError("grammar", "two scripts in one place", span_of(scripts[-1])[0])
    subs = [n for s in scripts if s.data == "sub" for n in _script_nodes(s)]
    sups = [(n, s) for s in scripts if s.data == "sup" for n in _script_nodes(s)]
    capitals = [n for n, _ in sups if is_tree(head, "name") and _is_capital(n)]
    if sum(n.kind == "T" for n, _ in sups) > 1:
        raise PageError("grammar", "two transpose signs", span_of(scripts[-1])[0])
    start, end = span_of(tree)
    if is_tree(head, "delta"):
        if len(subs) != 2:
            raise PageError("index", "a delta needs two indices", start)
        node = Node("delta", tuple(subs), start, end)
    else:
        node = node_of(head)
        if capitals:
            letter = "^".join([node.args[1], *(n.args[1] for n in capitals)])
            node = Node("name", (node.args[0], letter), node.start, node.end)
        node = _subscripted(node, subs, start, end)
    for sup, script in sups:
        if sup in capitals:
            continue
        node = _raised(node, sup, start, end, span_of(script))
    return node


def _is_capital(node: Node) -> bool:
    return node.kind == "name" and node.args[0] == "" and node.args[1].isupper() \
        and len(node.args[1]) == 1  # fmt: skip


def _subscripted(node: Node, subs: list, start: int, end: int) -> Node:
    if not subs:
        return node
    is_size = node.kind == "name" and node.args == ("", "d")
    is_identity = node.kind == "name" and node.args == ("", "I")
    if not (is_size or is_identity or node.kind in ("one", "norm")):
        return Node("index", (node, tuple(subs)), start, end)
    (sub, *more) = subs
    if more:
        raise PageError("index", "one subscript is enough here", more[0].start)
    if node.kind == "one":
        return Node("one", (sub,), start, end)
    if is_identity:
        return Node("identity", (sub,), start, end)
    if node.kind == "norm":
        order = {("", "F"): "F", (2.0,): 2.0}.get(sub.args)
        if order is None:
            raise PageError("grammar", "only the norms F and 2 are read", sub.start)
        return Node("norm", (node.args[0], order), start, end)
    if sub.kind != "name" or sub.args[0]:
        raise PageError("grammar", "a size is d_ and a letter", sub.start)
    return Node("name", ("", "d_" + sub.args[1]), start, end)


def _raised(node: Node, sup: Node, start: int, end: int, span: tuple) -> Node:
    if sup.kind == "T":
        return Node("transpose", (node,), start, end, (span,))
    if node.kind == "name" and node.args == ("", "e"):
        return Node("func", ("exp", (sup,)), start, end)
    if sup == Node("sum", (("-",), (Node("number", (1.0,)),))):
        return Node("inverse", (node,), start, end, (span,))
    return Node("power", (node, sup), start, end, (span,))
