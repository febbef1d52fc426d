"""The first line of a public function: what it is given is checked, once, and made ready, or refused."""

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from array_api_compat import is_torch_array

from attnmath._given.arguments import Argument, KnownSizes, Shape, arguments, readable_signature
from attnmath._given.kinds import alike
from attnmath._given.letters import compiles, fails
from attnmath._words.arrays import default_scale, is_number, namespace, shape

Seen = list[tuple[Argument, tuple]]  # letters with the shapes that their arrays have


def misused(function: Callable, args: tuple, named: dict[str, Any]) -> str:
    """About a call that has too few arguments, or too many."""
    parameters = inspect.signature(function).parameters.values()
    called = {p: f"{p.name}{'=' * (p.kind is p.KEYWORD_ONLY)}" for p in parameters}
    needed = [name for p, name in called.items() if p.default is p.empty]
    more = [name for p, name in called.items() if p.default is not p.empty]
    dots = [name for name in needed if name.endswith("_dot")]
    needs = f"a tangent for each argument, None where nothing moves, {', '.join(dots)}, and then " * bool(dots)
    needs += _all([name for name in needed if name not in dots])
    takes = f", and takes {_all(more)}" * bool(more)
    try:
        inspect.signature(function).bind(*args, **named)
    except TypeError as error:
        return f"{error}; it needs {needs}{takes}"
    return ""


def no_tuple(letter: Argument, x: Any) -> str:
    """About what should be a named tuple."""
    kind, fields = letter.kind.__name__ + " or None" * letter.optional, ", ".join(letter.kind._fields)
    return f"{letter.name} is a {type(x).__name__}; it needs to be {kind}, a named tuple of {fields}"


def misshapen(letter: Argument, own: tuple, seen: Seen, counts: dict[str, int]) -> str:
    """About an array whose shape does not fit those that were seen before it, and sizes that are given."""
    known, shape = KnownSizes(counts), letter.shape
    for other, its in seen:
        known.takes(other, its)
    axes, has = shape.options[0], f"{letter.name} has shape {own}; "
    if shape.spreads:
        of = "A" if any(other.name == "A" for other, _ in seen) else "the scores"
        return f"{has}it needs one that broadcasts to {axes.need(known)}, the shape of {of}"
    if letter.exact:
        of = f", the shape of {letter.belongs}" if letter.belongs else _to_match(shape, seen)
        return f"{has}it needs {axes.need(known)}{of}"
    if str(shape) == "()":
        return f"{has}it needs to be a number"
    needs = f"{has}it needs {' or '.join(dict.fromkeys(option.written(known) for option in shape.options))}"
    if not known.fits(axes, own):
        return needs + _to_match(shape, seen)
    if not axes.lead and not known.joins(axes.front(own)):
        others = [x.name for x, _ in seen if x.shape.options[0].lead == "" and not x.shape.spreads]
        against = f"broadcast against {known.leads['']}, those of {_all(others)}"
        return f"{has}its leading axes {axes.front(own)} need to {against}"
    a, relation, b = shape.broken(known)
    rule = f"{a} > 0" if relation == ">" else f"{a} that divides {b} = {known.sizes[b]},"
    return f"{needs} with {rule}{_to_match(shape, seen)}"


def _to_match(shape: Shape, seen: Seen) -> str:
    """The arrays that say which sizes are needed: as few as possible, the first ones."""
    wanted = {name for axes in shape.options for name in (*axes.names, f"...{axes.lead}")}
    says = {x: {*x.shape.options[0].names, f"...{x.name}"} for x, _ in seen if not x.shape.spreads and not x.exact}
    found: list = []
    while any(known & wanted for known in says.values()):
        found.append(max(says, key=lambda x: len(says[x] & wanted)))
        wanted -= says[found[-1]]
    of = [f"{x.name} of shape {own}" for x, own in seen if x in found]
    return f" to match {' and '.join(of)}" * bool(of)


def _all(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


class Check:
    """Makes of the arguments of one function what its formula needs, in the order of its parameters.

    A gamma of None becomes 1/sqrt(d_k), with d_k + d_r where a part is turned by itself, and a tangent of
    None zeros, or 0; if one array or number is complex, all arrays become complex.
    """

    def __init__(self, function: Callable):
        self.function, self.name = function, function.__name__
        self.arguments = arguments(function)
        parameters = inspect.signature(function).parameters.values()
        self.names, self.defaults = [p.name for p in parameters], [p.default for p in parameters]
        self.by_position = sum(p.kind is not p.KEYWORD_ONLY for p in parameters)
        needed = [k for k, x in enumerate(self.defaults, 1) if x is inspect.Parameter.empty]
        self.least = max(needed, default=0)
        self.options = [(k, x, x.option) for k, x in enumerate(self.arguments) if x.option]
        self.tuples = any(x.fields for x in self.arguments)
        letters = [(k, x) for k, x in enumerate(x for one in self.arguments for x in one.letters()) if x.shape]
        self.arrays = sorted((x for x in letters if not x[1].option), key=lambda x: x[1].exact or x[1].moves)
        shaped = [x for x in letters if not x[1].moves and (not x[1].option or x[1].option.shaped)]
        self.shaped = sorted(shaped, key=lambda x: 2 if x[1].exact else x[1].shape.spreads)
        self.conditions = [(k, x, c) for k, x in self.shaped if not x.exact for c in x.conditions]
        self.scales = [k for k, x in letters if x.name == "gamma"]
        self.counted = [(k, x) for k, x in enumerate(self.arguments) if x.base is int and not x.optional]
        places = {x.name: k for k, x in letters}
        self.tangents = [(k, x, places[x.belongs]) for k, x in letters if x.moves]

    def __call__(self, args: tuple, named: dict[str, Any], name: str = "") -> list:
        name = name or self.name
        given = self.bound(name, args, named)
        for k, argument, option in self.options:
            if given[k] is not None or not argument.optional:
                given[k] = option.ready(name, argument.name, given[k])
        x, arrays = self.spread(given, name) if self.tuples else (given, self.arrays)
        first = alike(name, arrays, x)
        known = self.known(name, x)
        for k, letter, condition in self.conditions:
            if x[k] is not None and fails(x[k], condition):
                raise ValueError(f"{name}: {condition.refusal(letter.name, x[k])}")
        for k in self.scales:
            x[k] = default_scale(known.features, first) if x[k] is None else x[k]
        for k, letter, of in self.tangents:
            x[k] = moving(name, letter, x[k], x[of])
        return self.gathered(given, x) if self.tuples else x

    def bound(self, function: str, args: tuple, named: dict[str, Any]) -> list:
        """All arguments in the order of the parameters; a TypeError for a wrong call."""
        if not named and self.least <= len(args) <= self.by_position:
            return [*args, *self.defaults[len(args) :]]
        names, defaults = self.names[len(args) :], self.defaults[len(args) :]
        lacks = any(x is inspect.Parameter.empty and name not in named for name, x in zip(names, defaults))
        if lacks or len(args) > self.by_position or not named.keys() <= {*names}:
            raise TypeError(f"{function}: {misused(self.function, args, named)}")
        return [*args, *(named.get(name, x) for name, x in zip(names, defaults))]

    def spread(self, given: list, name: str) -> tuple[list, list]:
        """All arguments, the fields of named tuples one by one; and the letters that are arrays."""
        x: list = []
        absent: list = []
        for letter, one in zip(self.arguments, given):
            if not letter.fields or one is None and letter.optional:
                x += [one] * len(letter.letters())
                absent += letter.fields
            elif isinstance(one, tuple) and getattr(one, "_fields", None) == letter.kind._fields:
                x += one
            else:
                raise TypeError(f"{name}: {no_tuple(letter, one)}")
        return x, [pair for pair in self.arrays if pair[1] not in absent]

    def gathered(self, given: list, x: list) -> list:
        """The named tuples together again; one of tangents also if it was None."""
        parts, found = iter(x), []
        for letter, one in zip(self.arguments, given):
            own = [next(parts) for _ in letter.letters()]
            kind = letter.kind if one is None and letter.moves else type(one)
            found.append(own[0] if not letter.fields else None if kind is type(None) else kind(*own))
        return found

    def known(self, name: str, x: list) -> KnownSizes:
        """What all shapes say together; a ValueError for the first that says something else."""
        counts = {letter.name: x[k] for k, letter in self.counted}
        known = KnownSizes(counts)
        for j, (k, letter) in enumerate(self.shaped):
            one = x[k]
            if one is not None and not known.takes(letter, () if is_number(one) else tuple(one.shape)):
                seen = [(other, shape(x[i])) for i, other in self.shaped[:j] if x[i] is not None]
                raise ValueError(f"{name}: {misshapen(letter, shape(one), seen, counts)}")
        return known


def moving(name: str, letter: Argument, x: Any, of: Any) -> Any:
    """A tangent of the shape of what it belongs to; zeros, or 0, for None."""
    if x is None and (of is None or is_number(of)):
        return None if letter.field else 0
    if x is None:
        return namespace(of).zeros_like(of)
    if of is None or shape(x) != shape(of):
        it, needs = letter.belongs, "to be None, as {} is" if of is None else f"{shape(of)}, the shape of {{}}"
        raise ValueError(f"{name}: {letter.name} has shape {shape(x)}; it needs {needs.format(it)}")
    return x


Formula = TypeVar("Formula", bound=Callable[..., Any])


class Running(threading.local):
    """Whether a checked function is at work: what it calls in its turn is not checked again."""

    inside = False


CALL = Running()


def checked(formula: Formula) -> Formula:
    """The function, with its arguments checked against their annotations, as its first line.

    Formulas call each other by their names, and nothing is checked twice. Values are looked
    at only where there are some: not while a function is traced, compiled or mapped over a
    batch. PyTorch's autocast is off inside, so that results have the format of the arguments.
    """
    check = Check(formula)
    split = check.by_position

    @functools.wraps(formula)
    def public(*args: Any, **named: Any) -> Any:
        traced = compiles()  # then what is inside is checked again: that leaves no trace
        if CALL.inside and not traced:
            return formula(*args, **named)
        x = check(args, named)
        named = dict(zip(check.names[split:], x[split:]))
        with own_format(x):
            if traced:
                return formula(*x[:split], **named)
            CALL.inside = True
            try:
                return formula(*x[:split], **named)
            finally:
                CALL.inside = False

    public.__signature__ = readable_signature(formula, check.arguments)  # type: ignore[attr-defined]
    return public  # type: ignore[return-value]


def own_format(given: list) -> AbstractContextManager:
    """Where PyTorch casts what it multiplies by itself, it does not."""
    x = next((x for x in given if x is not None), None)
    if not is_torch_array(x):
        return nullcontext()
    torch, kind = sys.modules["torch"], x.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)
