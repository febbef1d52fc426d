"""Which index runs over what: the free and the summed indices of a statement.

An index takes its range from the axes that it subscripts. It may not run over two
different axes, nor be summed and free in one statement.
"""

from dataclasses import dataclass, field

from attnmath.page._nodes import Misfit, Node, PageError, Statement


@dataclass
class Scope:
    """axis: index letter -> axis name; free: the letters that mean 'for all', in order."""

    axis: dict = field(default_factory=dict)
    free: list = field(default_factory=list)
    summed: set = field(default_factory=set)


def scope(statement: Statement, cast, locals_: dict) -> Scope:
    """The scope of a statement; `locals_` maps (prefix, letter) to the axes of a local."""
    found = Scope()
    members = statement.members[1:] if statement.is_local else statement.members
    for condition in statement.conditions:
        members += condition[1]
    if statement.is_local and statement.members[0].kind == "index":
        for sub in statement.members[0].args[1]:
            if sub.kind != "name" or sub.args[0]:
                raise PageError("index", "':=' needs index letters", sub.start)
            found.free.append(sub.args[1])
    for member in members:
        _visit(member, cast, locals_, (), found)
    for member in members:
        _check_names(member, cast, locals_, found)
    _check_groups(statement, members)
    both = found.summed & set(found.free)
    if both:
        message = f"index {min(both)} is both summed and free"
        raise PageError("index", message, statement.start)
    lost = [i for i in found.free if i not in found.axis]
    if lost:
        raise PageError("index", f"no letter says how far {lost[0]} runs", statement.start)
    return found


def _visit(node: Node, cast, locals_: dict, bound: tuple, found: Scope) -> None:
    if node.kind == "index" and node.args[0].kind == "name":
        base, subs = node.args
        axes = locals_.get(base.args)
        axes = cast.axes(*base.args, at=base.start) if axes is None else axes
        if len(subs) > len(axes):
            raise PageError("index", f"{base.args[1]} has {len(axes)} axes", node.start)
        for sub, axis in zip(subs, axes):
            _mark(sub, axis, cast, bound, found)
    elif node.kind == "index":
        _visit(node.args[0], cast, locals_, bound, found)
        for sub in node.args[1]:
            _mark(sub, None, cast, bound, found)
    elif node.kind == "delta":
        for sub in node.args:
            _mark(sub, None, cast, bound, found)
    elif node.kind == "big":
        _, names, relations, bounds, upper, body = node.args
        if "in" in relations:
            if "G" not in cast.sizes:
                raise PageError("index", "this cast has no groups of heads", node.start)
            _mark(bounds[0], "G", cast, bound, found)
        for name in names:
            if name in bound:
                raise PageError("index", f"index {name} is summed twice", node.start)
        found.summed.update(names)
        for part in (*bounds, upper, body):
            if part is not None:
                _visit(part, cast, locals_, bound + names, found)
    else:
        for arg in node.args:
            for part in arg if isinstance(arg, tuple) else (arg,):
                if isinstance(part, Node):
                    _visit(part, cast, locals_, bound, found)


def _check_names(member: Node, cast, locals_: dict, found: Scope) -> None:
    """A name is an index in use, a size, a local or a letter of the cast."""
    for node in member.walk():
        for factor in node.args[0] if node.kind == "prod" else ():
            if factor.kind == "name" and factor.args[1] in (*found.free, *found.summed):
                message = f"the index {factor.args[1]} stands as a factor"
                raise PageError("index", message, factor.start)
        if node.kind == "name":
            prefix, letter = node.args
            used = letter in found.summed or letter in found.free
            if node.args not in locals_ and not (prefix == "" and used):
                cast.axes(prefix, letter, at=node.start)


def _check_groups(statement: Statement, members: tuple) -> None:
    """`\\in` says which head belongs to which group, below a sum or in a condition."""
    pairs = [(n.args[1], n.args[3], n) for member in members for n in member.walk()
             if n.kind == "big" and "in" in n.args[2]]  # fmt: skip
    for _, sides, relations, start, _ in statement.conditions:
        if "in" in relations:
            names = tuple(side.args[1] if side.kind == "name" else "" for side in sides)
            if relations != ("in",) or names != ("h", "g"):
                raise PageError("index", "'\\in' is written h \\in g", start)
    for names, bounds, node in pairs:
        if names != ("h",) or [b.args for b in bounds] != [("", "g")]:
            raise PageError("index", "'\\in' is written h \\in g", node.start)
    if "in" in statement.relations:
        raise PageError("grammar", "'\\in' stands below a sum or in a condition", statement.start)


def _mark(sub: Node, axis: str | None, cast, bound: tuple, found: Scope) -> None:
    if sub.kind == "sum":
        for term in sub.args[1]:
            _mark(term, axis, cast, bound, found)
        return
    if sub.kind != "name" or sub.args[0]:
        return
    letter = sub.args[1]
    if letter in cast.sizes:
        return
    if letter in cast.letters:
        raise PageError("index", f"{letter} is a letter of the cast, no index", sub.start)
    if letter not in bound and letter not in found.free:
        found.free.append(letter)
    if axis is None:
        return
    for name, over, what in (("h", "H", "heads"), ("g", "G", "groups"), ("s", "batch", "batch")):
        if (letter == name) != (axis == over):
            message = f"{name} runs over the {what}, and {letter} over {axis}"
            raise PageError("index", message, sub.start)
    if found.axis.setdefault(letter, axis) != axis:
        message = f"index {letter} runs over {found.axis[letter]} and over {axis}"
        raise Misfit("index", message, sub.start)
