"""What a display is made of: nodes that remember where they stand, and statements; and both written anew.

The local definitions (`:=`) of a display are put in, and summed indices numbered, so that what says the
same is equal.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, count
from typing import Any, NamedTuple

Name = tuple[str, str]  # prefix ('', 'd', 'dot' or 'dotd') and letter


class PageError(Exception):
    """A fault of a page, with the offset in the display's text where it stands.

    `kind` is one of grammar, letter, index, shape, value, label, listing, function, algebra.
    """

    def __init__(self, kind: str, message: str, start: int | None = None):
        super().__init__(message)
        self.kind, self.message, self.start = kind, message, start

    def __reduce__(self) -> tuple:  # so that it can come from another process
        return type(self), (self.kind, self.message, self.start)


class Misfit(PageError):
    """Shapes or indices that cannot fit, however a formula is read: it is ill-typed.

    Any other PageError may come from what this page's notation does not have.
    """


class Inexact(PageError):
    """Something that exact arithmetic does not have: it is measured, and not proved."""


@dataclass(frozen=True)
class Node:
    """One node: what it is, its parts, and the span of text it was read from."""

    kind: str
    args: tuple = ()
    start: int = field(default=0, compare=False, repr=False)
    end: int = field(default=0, compare=False, repr=False)
    parts: tuple = field(default=(), compare=False, repr=False)  # spans that misprints act on

    @cached_property
    def children(self) -> tuple["Node", ...]:
        parts = (arg if isinstance(arg, tuple) else (arg,) for arg in self.args)
        return tuple(part for several in parts for part in several if isinstance(part, Node))

    def walk(self) -> Iterator["Node"]:
        """The node, and all below it, from the left."""
        left = [self]
        while left:
            node = left.pop()
            yield node
            left += node.children[::-1]

    def said(self, text: str) -> str:
        """Its own part of the text that it was read from."""
        return text[self.start : self.end]

    @property
    def base(self) -> "Node":
        """What an index stands at, or the node itself."""
        return self.args[0] if self.kind == "index" else self

    @property
    def subs(self) -> tuple["Node", ...]:
        return self.args[1] if self.kind == "index" else ()

    @cached_property
    def names(self) -> frozenset[Name]:
        return frozenset(node.args for node in self.walk() if node.kind == "name")

    @cached_property
    def bare(self) -> tuple[str, ...]:
        """The names in this node that carry no prefix: all indices are among them."""
        return tuple(letter for prefix, letter in self.names if not prefix)

    @cached_property
    def has_derivative(self) -> bool:
        """Whether a gradient, a tangent or a derivative stands in it."""
        return any(node.kind == "partial" or node.kind == "name" and node.args[0] for node in self.walk())

    def changed(self, change: Callable[["Node"], "Node"]) -> "Node":
        """The node with its children changed."""

        def of(arg: Any) -> Any:
            if isinstance(arg, tuple):
                return tuple(map(of, arg))
            return change(arg) if isinstance(arg, Node) else arg

        return replace(self, args=tuple(map(of, self.args)))


class Condition(NamedTuple):
    """A word (if, for, when, where, and, within), and members with the relations between them."""

    word: str
    members: tuple[Node, ...]
    relations: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Statement:
    """members[0] relations[0] members[1] …, under conditions of the same form."""

    members: tuple[Node, ...]
    relations: tuple[str, ...]
    conditions: tuple[Condition, ...]
    start: int
    end: int
    shape: tuple[Node, ...] = ()  # (rows, columns), where the page says it
    shape_span: tuple[int, int] = field(default=(0, 0), compare=False)  # with its parentheses

    @property
    def is_local(self) -> bool:
        return self.relations[0] == ":="

    @property
    def stop(self) -> int:
        """Where its shape, or the last of its conditions, ends."""
        return max(self.end, self.shape_span[1], *(condition.end for condition in self.conditions))

    def stated(self, text: str) -> str:
        """Its own part of a display's text, with its conditions, without the shape beside it."""
        if not self.shape:
            return text[self.start : self.stop]
        before, after = self.shape_span
        return text[self.start : before] + text[after : self.stop]

    @property
    def sides(self) -> tuple[Node, ...]:
        """Its members, and those of its conditions."""
        return (*self.members, *(side for condition in self.conditions for side in condition.members))

    def nodes(self) -> Iterator[Node]:
        return (node for side in self.sides for node in side.walk())


def claims(statements: Iterable[Statement]) -> list[tuple[int, Statement]]:
    """The statements, each with its number, that are no local definitions."""
    return [(k, one) for k, one in enumerate(statements) if not one.is_local]


def steps(statements: Iterable[Statement]) -> list[tuple[int, int]]:
    """The relations that are claimed, each by the numbers of its statement and of its place there."""
    return [(k, i) for k, one in claims(statements) for i in range(len(one.relations))]


def names_in(parts: Iterable[Statement]) -> set[Name]:
    """The names in statements."""
    return {name for part in parts for side in part.sides for name in side.names}


# ---- definitions put in, summed indices numbered ------------------------------------------------

Definitions = dict[Name, tuple[tuple[str, ...], Node]]  # of a letter: its indices, what it is
NEVER = count()  # no index is a number


def inserted(statements: tuple[Statement, ...]) -> list[Statement]:
    """What a display states, without a letter of its own; no two sums share an index."""
    known: Definitions = {}
    found = []
    for statement in statements:
        if statement.is_local:
            left, body = statement.members
            known[left.base.args] = (tuple(sub.args[1] for sub in left.subs), _put(body, known))
            continue
        found.append(_rewritten(statement, lambda side: _fresh(_put(side, known))))
    return found


def numbered(statements: tuple[Statement, ...]) -> list[Statement]:
    """The same, with the indices of sums numbered from the left of each side: what says the same is equal."""
    return [_rewritten(statement, lambda side: _fresh(side, count())) for statement in inserted(statements)]


def _rewritten(statement: Statement, change: Callable[[Node], Node]) -> Statement:
    conditions = (one._replace(members=tuple(map(change, one.members))) for one in statement.conditions)
    return replace(statement, members=tuple(map(change, statement.members)), conditions=tuple(conditions))


def _put(node: Node, known: Definitions) -> Node:
    """A node with definitions put in."""
    if node.kind == "index" and node.base.kind == "name" and node.base.args in known:
        indices, body = known[node.base.args]
        subs = tuple(_put(sub, known) for sub in node.subs)
        body = _with_indices(_fresh(body), dict(zip(indices, subs)))
        rest = subs[len(indices) :]
        return Node("index", (body, rest), node.start, node.end) if rest else body
    if node.kind == "name" and node.args in known and not known[node.args][0]:
        return known[node.args][1]
    return node.changed(lambda part: _put(part, known))


def _with_indices(node: Node, by: dict[str, Node]) -> Node:
    """A node with other nodes for some of its indices."""
    if node.kind == "name" and not node.args[0] and node.args[1] in by:
        return by[node.args[1]]
    if node.kind == "big":
        by = {name: new for name, new in by.items() if name not in node.args[1]}
    return node.changed(lambda part: _with_indices(part, by))


def _fresh(node: Node, numbers: Iterator[int] = NEVER) -> Node:
    """A node whose summed indices have names that occur nowhere else: the next of these numbers."""
    if node.kind != "big":
        return node.changed(lambda part: _fresh(part, numbers))
    operation, names, *rest = node.args
    new = {name: Node("name", ("", f"{next(numbers)}")) for name in names}
    inner = _with_indices(Node("rest", tuple(rest)), new).changed(lambda part: _fresh(part, numbers))
    return replace(node, args=(operation, tuple(x.args[1] for x in new.values()), *inner.args))


def inequalities(statements: tuple[Statement, ...], chained: bool = False) -> list[tuple]:
    """(smaller, larger, whether strictly, conditions) of neighbours, or also of what a chain puts together."""
    found = []
    for statement in numbered(statements):
        conditions = tuple((one.members, one.relations) for one in statement.conditions)
        for (i, a), (j, b) in combinations(enumerate(statement.members), 2):
            between = set(statement.relations[i:j])
            for sign, ends in (("<", (a, b)), (">", (b, a))):
                if (chained or j == i + 1) and {"="} != between <= {sign, f"{sign}=", "="}:
                    found.append((*ends, sign in between, conditions))
    return found
