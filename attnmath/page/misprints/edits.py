"""The misprints that start at one node: each an edit of the display's text."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from attnmath.page.language.nodes import Node
from attnmath.page.scenes.cast import Cast


class Misprint(NamedTuple):
    """Replace text[start:end] by `new`."""

    kind: str
    start: int
    end: int
    new: str

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]


OTHER_FUNCTION = {"exp": "log", "log": "exp", "softmax": "log_softmax", "log_softmax": "softmax", "tanh": "exp",
                  "cos": "sin", "sin": "cos"}


def latex(prefix: str, letter: str) -> str:
    accent, _, plain = letter.rpartition(" ")
    is_greek = "^" not in plain and len(plain.rstrip("'")) > 1
    shown = f"\\{plain}" if is_greek else plain
    shown = f"\\{accent} {shown}" if accent else shown
    space = " " if shown.startswith("\\") else ""
    return {"": shown, "d": "d" + shown, "dot": "\\dot" + (space or " ") + shown,
            "dotd": "\\dot{d" + shown + "}"}[prefix]


def _in_name(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    prefix, letter = node.args
    span = (node.start, node.end)
    if prefix == "" and letter in indices and not cast.knows(letter):
        yield from (Misprint("index", *span, other) for other in indices)
        return
    if prefix == "" and letter in cast.sizes:
        yield from (Misprint("size", *span, other) for other in cast.sizes)
        return
    if not cast.knows(letter):
        bare = letter.rpartition(" ")[2].rstrip("'")
        if bare != letter:
            yield Misprint("accent lost", *span, latex(prefix, bare))
        return
    others = cast.rows if letter in cast.rows else cast.letters
    yield from (Misprint("letter", *span, latex(prefix, other)) for other in others)
    yield from (Misprint("d or dot", *span, latex(other, letter)) for other in ("", "d", "dot"))


def _in_index(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    base, subs = node.args
    if base.kind == "name" and cast.knows(base.args[1]):
        yield from _in_name(text, base, cast, indices)
    yield from _subscripts(subs, indices)
    for a, b in zip(subs, subs[1:]):
        yield _swapped("index", text, a, b)


def _swapped(kind: str, text: str, a: Node, b: Node) -> Misprint:
    return Misprint(kind, a.start, b.end, b.said(text) + text[a.end : b.start] + a.said(text))


def _subscripts(subs: tuple, indices: list) -> Iterator[Misprint]:
    for node in (node for sub in subs for node in sub.walk()):
        if node.kind == "name" and node.args[1] in indices:
            yield from (Misprint("index", node.start, node.end, other) for other in indices)


def _in_transpose(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    start, end = node.parts[0]
    left = re.sub(r"\\mathsf\s*(\{\s*T\s*\}|T)", "", text[start:end])
    left = "" if re.fullmatch(r"\^\{?\s*\}?", left) else left
    yield Misprint("transpose lost", start, end, left + " ")


def _in_raised(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    ((start, end),) = node.parts
    yield Misprint("power lost", start, end, " ")


def _in_prod(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    for start, end in node.parts:
        yield Misprint("factor lost", start, end, " ")
    for (a, b), (c, d) in zip(node.parts, node.parts[1:]):
        yield Misprint("order", a, d, f"{text[c:d]} {text[a:b]}")
        yield Misprint("product kind", b, c, " \\circ ")


def _in_operation(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    left, right = node.args
    start, end = node.parts[0]
    yield Misprint("factor lost", left.start, end, " ")
    yield Misprint("factor lost", start, right.end, " ")
    if node.kind in ("had", "dot"):
        yield Misprint("product kind", start, end, {"had": " ", "dot": " \\circ "}[node.kind])
    if node.kind != "had":
        swapped = right.said(text) + f" {text[start:end]} "
        yield Misprint("order", left.start, right.end, swapped + left.said(text))


def _in_fraction(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    if node.parts:  # a / b
        yield from _in_operation(text, node, cast, indices)
        return
    top, bottom = (n.said(text) for n in node.args)
    yield Misprint("factor lost", node.start, node.end, f"{{{top}}}")
    yield Misprint("factor lost", node.start, node.end, f"\\frac{{1}}{{{bottom}}}")
    yield Misprint("order", node.start, node.end, f"\\frac{{{bottom}}}{{{top}}}")


def _in_func(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    name, args = node.args if node.kind == "func" else ("", node.args[:1])
    if len(args) == 1:
        yield Misprint("function lost", node.start, node.end, f"({args[0].said(text)})")
    other = OTHER_FUNCTION.get(name)
    if other and f"{{{name}}}" in node.said(text):
        at = node.start + node.said(text).index(name)
        yield Misprint("function", at, at + len(name), other)


def _in_sum(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    for k, (sign, (start, end)) in enumerate(node.parts):
        if sign:
            at, after = sign
            yield Misprint("sign", at, after, "-" if text[at:after] == "+" else "+")
            yield Misprint("term lost", at, end, " ")
        else:
            yield Misprint("sign", start, start, "-")
            if len(node.parts) > 1:
                following = node.parts[k + 1][0]
                keep = " " if text[slice(*following)] == "+" else "-"
                yield Misprint("term lost", start, following[1], keep)


def _in_big(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    op, names, relations, bounds, _, body = node.args
    start, end = node.parts[0]
    yield Misprint("function lost", node.start, body.start, " ")
    other = {"sum": "prod", "prod": "sum", "max": "min", "min": "max"}[op]
    yield Misprint("function", node.start, node.start + 1 + len(op), f"\\{other}")
    for found in re.finditer(r"\\(?:le|ge|leq|geq)(?![a-z])|[<>=]", text[start:end]):
        for new in ("\\le", "\\ge", "<", ">"):
            if relations[0] != "=":
                yield Misprint("range", start + found.start(), start + found.end(), new + " ")
    if relations and relations[0] != "=":
        yield Misprint("range", start, end, "_{" + ", ".join(names) + "}")
    if not relations:
        others = [letter for letter in indices if letter not in names]
        for limit in (*others, "1"):
            yield from (Misprint("range", start, end, f"_{{{names[0]} {sign} {limit}}}") for sign in ("\\le", ">"))
    for bound in bounds:
        if relations[0] not in ("=", "in"):
            yield Misprint("range", bound.end, bound.end, " + 1")
    for name in names:
        for found in re.finditer(rf"(?<![A-Za-z\\]){re.escape(name)}(?![A-Za-z])", text[start:end]):
            a, b = start + found.start(), start + found.end()
            yield from (Misprint("index", a, b, letter) for letter in indices)


def _in_partial(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    top, bottom = (n.said(text) for n in node.args)
    swapped = f"\\frac{{\\partial {bottom}}}{{\\partial {top}}}"
    yield Misprint("order", node.start, node.end, swapped)


def _in_block(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    for members in (*node.args, tuple(row[0] for row in node.args)):
        for a, b in zip(members, members[1:]):
            yield _swapped("order", text, a, b)
            yield Misprint("term lost", a.start, b.start, " ")
        if len(members) > 1:
            yield Misprint("term lost", members[-2].end, members[-1].end, " ")


EDITS: dict[str, Callable[[str, Node, Cast, list], Iterable[Misprint]]] = {
    "delta": lambda text, node, cast, indices: _subscripts(node.args, indices),
    "number": lambda text, node, *_: [Misprint("number", node.start, node.end, f"{node.args[0] + 1:g}")],
    "name": _in_name, "index": _in_index, "transpose": _in_transpose, "power": _in_raised, "inverse": _in_raised,
    "prod": _in_prod, "had": _in_operation, "dot": _in_operation, "kron": _in_operation, "div": _in_fraction,
    "func": _in_func, "sqrt": _in_func, "norm": _in_func, "abs": _in_func, "sum": _in_sum,
    "big": _in_big, "partial": _in_partial, "block": _in_block,
}
