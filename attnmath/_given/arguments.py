"""What the annotations of a function say about its arguments, read once: shapes, options, conditions.

    ... n d_k      axes by name, after leading ones that broadcast against those of the others
    ...X n d_k     the leading axes are those of X
    ...heads k     there is an axis of heads if there are leading axes: the last of them
    to ... n m     what broadcasts to the scores
    () or H        one of several; () has no axes
"""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from attnmath._given.letters import Option, ValueCondition, one_of

AXES = re.compile(r"\(\)|(\.\.\.\w*|[\w*]+)( [\w*]+)*")
SIZE_RULES = {">": lambda a, b: a > b, "divides": lambda a, b: b % a == 0}


class ShapeAxes(NamedTuple):
    """Axes by name; `lead` says which stand in front: None none, "" all, "X" those of X, "heads" the last."""

    lead: str | None
    names: tuple[str, ...]

    def written(self, known: "KnownSizes | None" = None) -> str:
        """As a tuple: what is known in numbers, the rest by name."""
        sizes = known.sizes if known else {}
        front = () if self.lead is None else known.leads[self.lead] if known and self.lead else ("...",)
        front = ("H",) if self.lead == "heads" and not known else front
        axes = [str(x) for x in (*front, *(sizes.get(name, name.replace("*", " ")) for name in self.names))]
        return f"({', '.join(axes)}{',' * (len(axes) == 1 and axes != ['...'])})"

    def need(self, known: "KnownSizes") -> tuple:
        """All of its sizes, which are known."""
        front = () if self.lead is None else known.leads[self.lead]
        return (*front, *[known.sizes[name] for name in self.names])

    def front(self, own: tuple) -> tuple:
        """The leading axes of a shape."""
        return own[: len(own) - len(self.names)]


class Shape(NamedTuple):
    """One of several, or what broadcasts to it; and rules for sizes, as in "d_k > 0"."""

    options: tuple[ShapeAxes, ...]
    spreads: bool
    rules: tuple[list[str], ...]

    def __str__(self) -> str:
        return " or ".join(axes.written() for axes in self.options)

    def broken(self, known: "KnownSizes") -> list[str]:
        """The first rule that the sizes break."""
        broken = (x for x in self.rules if not SIZE_RULES[x[1]](known.sizes[x[0]], known.sizes.get(x[2], 0)))
        return next(broken, [])


class KnownSizes:
    """What the arrays seen so far say: sizes by name, the leading axes of each, and of all."""

    def __init__(self, counts: dict[str, int] | None = None) -> None:
        self.sizes: dict[str, int] = {"1": 1} | (counts or {})
        self.leads: dict[str, tuple] = {"": (), "heads": ()}

    def takes(self, letter: Any, own: tuple) -> bool:
        """Whether the shape of a letter fits what is known, which then knows more."""
        shape, axes = letter.shape, letter.shape.options[0]
        if letter.exact:
            return own == axes.need(self)
        if shape.spreads:
            need = axes.need(self) if own else ()
            return len(own) <= len(need) and all(a in (1, b) for a, b in zip(own[::-1], need[::-1]))
        if not self.fits(axes, own) and not any(self.fits(other, own) for other in shape.options[1:]):
            return False
        if axes.lead is not None:
            front = self.leads[letter.name] = axes.front(own)
            if front and not axes.lead and not self.joins(front):
                return False
        return not shape.rules or not shape.broken(self)

    def fits(self, axes: ShapeAxes, own: tuple) -> bool:
        """Whether a shape is this one, but for leading axes that broadcast."""
        names, lead, sizes = axes.names, axes.lead, self.sizes
        front = len(own) - len(names)
        if front < 0 or front and lead is None:
            return False
        for name, size in zip(names, own[front:]):
            if sizes.setdefault(name, size) != size:
                return False
        return not lead or own[:front] == self.leads[lead]

    @property
    def features(self) -> int:
        """How many a score is a sum over: d_k, and d_r more where a part is turned by itself."""
        return self.sizes["d_k"] + self.sizes.get("d_r", 0)

    def joins(self, own: tuple) -> bool:
        """Whether leading axes broadcast against those of all, and so join them."""
        joined = broadcast(own, self.leads[""])
        self.leads[""] = self.leads[""] if joined is None else joined
        self.leads["heads"] = self.leads[""][-1:]
        return joined is not None


def read_shape(text: str, rules: list[str], called: dict[str, str]) -> Shape:
    """The shape that a string says, some of whose names are called otherwise."""
    options, found = text.removeprefix("to ").split(" or "), tuple(rule.split() for rule in rules)
    if not all(map(AXES.fullmatch, options)):
        raise ValueError(f"{text!r} is no shape")
    if any(len(rule) != 3 or rule[1] not in SIZE_RULES for rule in found):
        raise ValueError(f"{rules} are no rules for sizes")
    names = [[] if option == "()" else option.split() for option in options]
    leads: list = [x.pop(0).removeprefix("...") if x and x[0].startswith("...") else None for x in names]
    pairs = ((called.get(lead, lead), tuple(called.get(x, x) for x in own)) for lead, own in zip(leads, names))
    return Shape(tuple(ShapeAxes(*pair) for pair in pairs), text.startswith("to "), found)


def broadcast(own: tuple, others: tuple) -> tuple | None:
    """What two shapes broadcast to, if they do."""
    if own == others or not own:
        return others
    length = max(len(own), len(others))
    pairs = list(zip((1,) * (length - len(own)) + own, (1,) * (length - len(others)) + others))
    return tuple(b if a == 1 else a for a, b in pairs) if all(a == b or 1 in (a, b) for a, b in pairs) else None


PLAIN = bool, int, str
NEEDS = 'an array needs its shape there, as in Annotated[Kind, "... n d_k"]'


class Argument:
    """An argument of a function, or a field of a named tuple that is one, as it is annotated.

    `called` says which sizes have other names here, as in "d_z = d".
    """

    def __init__(self, name: str, hint: Any, called: dict[str, str] | None = None):
        self.name, self.field = name, called is not None
        self.optional = type(None) in get_args(hint)
        hint = reduce(or_, (x for x in get_args(hint) if x is not type(None))) if self.optional else hint
        self.base, *found = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        self.kind = get_origin(self.base) or self.base
        texts = [x for x in found if isinstance(x, str)]
        self.called = (called or {}) | {k: x for k, _, x in (text.partition(" = ") for text in texts) if x}
        self.conditions = [x for x in found if isinstance(x, ValueCondition)]
        self.option = next((x for x in found if isinstance(x, Option)), None)
        if self.kind is Literal:
            self.option = one_of(get_args(self.base))
        self.number = next((kind for kind in (complex, float) if kind in get_args(self.base)), None)
        self.shape: Any = self._shape([text for text in texts if "=" not in text])
        self.fields = [Argument(f"{name}.{key}", x, self.called) for key, x in _fields(self.kind)]
        self._relate(*name.partition("."))

    def _shape(self, texts: list[str]) -> Shape | None:
        rules = [text for text in texts if ">" in text or "divides" in text]
        shapes = [text for text in texts if text not in rules]
        return read_shape(shapes[0], rules, self.called) if len(shapes) == 1 else None

    def _relate(self, whole: str, dot: str, field: str) -> None:
        """What a gradient or a tangent belongs to; whether the shape is that of what was computed."""
        self.moves = whole.endswith("_dot")
        gradient = whole.startswith("d") and not self.option and not self.moves
        self.belongs = whole.removesuffix("_dot") + dot + field if self.moves else whole[1:] * gradient
        leads = self.shape is not None and self.shape.options[0].lead is not None
        self.exact = gradient or self.field and leads and not self.moves
        self.optional = self.optional or self.moves and self.field

    def letters(self) -> "list[Argument]":
        """Itself, or its fields."""
        return self.fields or [self]

    @property
    def words(self) -> str:
        """Its shape, after "() to" where it may be a number or more; or the name of its class."""
        if self.shape is None:
            return inspect.formatannotation(self.kind if self.fields else self.base).rpartition(".")[2]
        return "() to " * (self.number is not None and self.shape.spreads) + str(self.shape)


def arguments(function: Callable) -> list[Argument]:
    """All arguments of a function; a TypeError if one has no shape and needs one."""
    hints = get_type_hints(function, include_extras=True)
    found = [Argument(name, hints.get(name, object)) for name in inspect.signature(function).parameters]
    letters = {x.name: x for one in found for x in one.letters()}
    for x in letters.values():
        if x.shape is None and x.option is None and x.base not in PLAIN:
            raise TypeError(f"{function.__name__}: {x.name} has no shape; {NEEDS}")
        if x.moves and (x.belongs not in letters or letters[x.belongs].shape != x.shape):
            raise TypeError(f"{function.__name__}: {x.name} needs the shape of {x.belongs}, whose tangent it is")
    return found


def _fields(kind: Any) -> Iterator[tuple[str, Any]]:
    """The annotations of the fields of a named tuple."""
    hints = get_type_hints(kind, include_extras=True) if hasattr(kind, "_fields") else {}
    yield from hints.items()


def line_of_shapes(function: Callable) -> str:
    """What goes in: Q (..., n, d_k), …"""
    return ", ".join(f"{x.name} {x.words}" for x in arguments(function) if x.shape or x.fields)


class Words(str):
    """A text that shows without its quotation marks."""

    __repr__ = str.__str__


def readable_signature(function: Callable, given: list[Argument]) -> inspect.Signature:
    """The signature of a function with shapes in the place of annotations, as help shows it."""
    signature = inspect.signature(function)
    pairs = zip(signature.parameters.values(), given)
    new = [p.replace(annotation=Words(f"{x.words}{' | None' * x.optional}")) for p, x in pairs]
    result = " or ".join(x.words for x in results(function))
    return signature.replace(parameters=new, return_annotation=Words(result))


def results(function: Callable) -> list[Argument]:
    """What a function returns: one, or one of several."""
    hint = get_type_hints(function, include_extras=True)["return"]
    whole = Argument("", hint)
    return [whole] if whole.shape or whole.fields else [Argument("", x) for x in get_args(hint)]
