"""The misprints that start at one node: each an edit of the display's text."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from attnmath.page._cast import Cast
from attnmath.page._nodes import Node


class Misprint(NamedTuple):
    """Replace text[start:end] by `new`."""

    kind: str
    start: int
    end: int
    new: str

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]


OTHER_FUNCTION = {"exp": "log", "log": "exp", "softmax": "log_softmax",
                  "log_softmax": "softmax", "tanh": "exp"}  # fmt: skip


def latex(prefix: str, letter: str) -> str:
    accent, _, plain = letter.rpartition(" ")
    is_greek = "^" not in plain and len(plain.rstrip("'")) > 1
    shown = f"\\{plain}" if is_greek else plain
    shown = f"\\{accent} {shown}" if accent else shown
    space = " " if shown.startswith("\\") else ""
    return {"": shown, "d": "d" + shown, "dot": "\\dot" + (space or " ") + shown,
            "dotd": "\\dot{d" + shown + "}"}[prefix]  # fmt: skip


def _name(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    prefix, letter = node.args
    span = (node.start, node.end)
    if prefix == "" and letter in indices and not cast.knows(letter):
        for other in indices:
            yield Misprint("index", *span, other)
        return
    if prefix == "" and letter in cast.sizes:
        for other in cast.sizes:
            yield Misprint("size", *span, other)
        return
    if not cast.knows(letter):
        bare = letter.rpartition(" ")[2].rstrip("'")
        if bare != letter:
            yield Misprint("accent lost", *span, latex(prefix, bare))
        return
    others = cast.rows if letter in cast.rows else cast.letters
    for other in others:
        yield Misprint("letter", *span, latex(prefix, other))
    for other in ("", "d", "dot"):
        yield Misprint("d or dot", *span, latex(other, letter))


def _index(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    base, subs = node.args
    if base.kind == "name" and cast.knows(base.args[1]):
        yield from _name(text, base, cast, indices)
    for sub in subs:
        yield from _subscript(sub, indices)
    for a, b in zip(subs, subs[1:]):
        swapped = text[b.start : b.end] + text[a.end : b.start] + text[a.start : a.end]
        yield Misprint("index", a.start, b.end, swapped)


def _subscript(sub: Node, indices: list) -> Iterator[Misprint]:
    for node in sub.walk():
        if node.kind == "name" and node.args[1] in indices:
            for other in indices:
                yield Misprint("index", node.start, node.end, other)


def _delta(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    for sub in node.args:
        yield from _subscript(sub, indices)


def _number(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    value = node.args[0]
    yield Misprint("number", node.start, node.end, f"{value + 1:g}")


def _transpose(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    start, end = node.parts[0]
    left = re.sub(r"\\mathsf\s*(\{\s*T\s*\}|T)", "", text[start:end])
    left = "" if re.fullmatch(r"\^\{?\s*\}?", left) else left
    yield Misprint("transpose lost", start, end, left + " ")


def _raised(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    yield Misprint("power lost", *node.parts[0], " ")


def _prod(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    for start, end in node.parts:
        yield Misprint("factor lost", start, end, " ")
    for (a, b), (c, d) in zip(node.parts, node.parts[1:]):
        yield Misprint("order", a, d, f"{text[c:d]} {text[a:b]}")
        yield Misprint("product kind", b, c, " \\circ ")


def _operation(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    left, right = node.args
    start, end = node.parts[0]
    yield Misprint("factor lost", left.start, end, " ")
    yield Misprint("factor lost", start, right.end, " ")
    if node.kind == "had":
        yield Misprint("product kind", start, end, " ")
    elif node.kind == "dot":
        yield Misprint("product kind", start, end, " \\circ ")
    if node.kind != "had":
        swapped = text[right.start : right.end] + f" {text[start:end]} "
        yield Misprint("order", left.start, right.end, swapped + text[left.start : left.end])


def _fraction(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    if node.parts:  # a / b
        yield from _operation(text, node, cast, indices)
        return
    top, bottom = (text[n.start : n.end] for n in node.args)
    yield Misprint("factor lost", node.start, node.end, f"{{{top}}}")
    yield Misprint("factor lost", node.start, node.end, f"\\frac{{1}}{{{bottom}}}")
    yield Misprint("order", node.start, node.end, f"\\frac{{{bottom}}}{{{top}}}")


def _func(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    name, args = node.args
    if len(args) == 1:
        inner = text[args[0].start : args[0].end]
        yield Misprint("function lost", node.start, node.end, f"({inner})")
    other = OTHER_FUNCTION.get(name)
    if other and f"{{{name}}}" in text[node.start : node.end]:
        at = node.start + text[node.start : node.end].index(name)
        yield Misprint("function", at, at + len(name), other)


def _wrapper(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    inner = node.args[0]
    yield Misprint("function lost", node.start, node.end, f"({text[inner.start : inner.end]})")


def _sum(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    for k, (sign, (start, end)) in enumerate(node.parts):
        if sign:
            flipped = "-" if text[slice(*sign)] == "+" else "+"
            yield Misprint("sign", *sign, flipped)
            yield Misprint("term lost", sign[0], end, " ")
        else:
            yield Misprint("sign", start, start, "-")
            if len(node.parts) > 1:
                following = node.parts[k + 1][0]
                keep = " " if text[slice(*following)] == "+" else "-"
                yield Misprint("term lost", start, following[1], keep)


def _big(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    op, names, relations, _, _, body = node.args
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
    for bound in node.args[3]:
        if relations[0] not in ("=", "in"):
            yield Misprint("range", bound.end, bound.end, " + 1")
    for name in names:
        for found in re.finditer(rf"(?<![A-Za-z\\]){re.escape(name)}(?![A-Za-z])", text[start:end]):
            for letter in indices:
                yield Misprint("index", start + found.start(), start + found.end(), letter)


def _partial(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    top, bottom = (text[n.start : n.end] for n in node.args)
    swapped = f"\\frac{{\\partial {bottom}}}{{\\partial {top}}}"
    yield Misprint("order", node.start, node.end, swapped)


def _block(text: str, node: Node, cast: Cast, indices: list) -> Iterator[Misprint]:
    for members in (*node.args, tuple(row[0] for row in node.args)):
        for a, b in zip(members, members[1:]):
            swapped = text[b.start : b.end] + text[a.end : b.start] + text[a.start : a.end]
            yield Misprint("order", a.start, b.end, swapped)
            yield Misprint("term lost", a.start, b.start, " ")
        if len(members) > 1:
            yield Misprint("term lost", members[-2].end, members[-1].end, " ")


EDITS = {
    "name": _name, "index": _index, "delta": _delta, "number": _number,
    "transpose": _transpose, "power": _raised, "inverse": _raised, "prod": _prod,
    "had": _operation, "dot": _operation, "kron": _operation, "div": _fraction,
    "func": _func, "sqrt": _wrapper, "norm": _wrapper, "abs": _wrapper, "sum": _sum,
    "big": _big, "partial": _partial, "block": _block,
}  # fmt: skip
