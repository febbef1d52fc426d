"""What a display is made of: nodes that remember where they stand, and statements."""

import re
from dataclasses import dataclass, field
from functools import cached_property


class PageError(Exception):
    """A fault of a page, with the offset in the display's text where it stands.

    `kind` is one of grammar, letter, index, shape, value, label, algebra.
    """

    def __init__(self, kind: str, message: str, start: int | None = None):
        super().__init__(message)
        self.kind, self.message, self.start = kind, message, start

    def __reduce__(self):  # so that it can come from another process
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
    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)
    parts: tuple = field(default=(), compare=False)  # spans that misprints act on

    def walk(self):
        yield self
        for arg in self.args:
            for item in arg if isinstance(arg, tuple) else (arg,):
                if isinstance(item, Node):
                    yield from item.walk()

    @cached_property
    def plain(self) -> tuple:
        """The names in this node that carry no prefix: all indices are among them."""
        return tuple({n.args[1] for n in self.walk() if n.kind == "name" and not n.args[0]})


@dataclass(frozen=True)
class Statement:
    """members[0] relations[0] members[1] …, under conditions of the same form."""

    members: tuple
    relations: tuple
    conditions: tuple  # of (word, members, relations, start, end)
    start: int
    end: int
    shape: tuple = ()  # (rows, columns), where the page says it

    @property
    def is_local(self) -> bool:
        return self.relations[0] == ":="

    @property
    def stop(self) -> int:
        """Where its shape, or the last of its conditions, ends."""
        ends = [condition[4] for condition in self.conditions]
        return max([self.end, *ends, *(node.end + 1 for node in self.shape)])  # with its parenthesis

    def stated(self, text: str) -> str:
        """Its own part of a display's text, with its conditions, without the shape beside it."""
        if not self.shape:
            return text[self.start : self.stop]
        rows, columns = self.shape
        return re.sub(r"(\s|&|\\quad)*\($", "", text[self.start : rows.start]) + text[columns.end + 1 : self.stop]

    def nodes(self):
        for member in self.members:
            yield from member.walk()
        for condition in self.conditions:
            for member in condition[1]:
                yield from member.walk()
