"""The lines of a display and those of its listing are the same, one by one, in the same order.

Both become one form: what stands on the left, which letters, which operations, in which order,
where each scalar and each transpose is. Rules that choose (cases, masks) compute nothing, and are
not compared. Of a function that goes through tiles, whose lines are those of a tile, the
letters that its own listing gives are compared: they are the display's, in its order.
"""

import inspect
from itertools import zip_longest

import attnmath
from attnmath.page._cast import Cast
from attnmath.page._listing import Reader, Unread, assigned, called
from attnmath.page._nodes import Node, PageError, Statement
from attnmath.page._normal import Form, text
from attnmath.page._promise import code_name, code_names, given
from attnmath.page._scene import Scene
from attnmath.page._trial import Trial

FAMILIES = ("h", "g", "t")  # a sum over heads or tiles is one product in code


def chooses(statements: tuple) -> bool:
    """Whether a rule says where, and computes nothing: by cases, or by counting places."""
    cases = any(side.plain for s in statements for c in s.conditions if c[0] == "if" for side in c[1])
    return cases or all(s.members[-1].kind == "big" and s.members[-1].args[-1].kind == "delta" for s in statements)


def refuse_other_lines(name: str, statements: tuple, scene: Scene) -> None:
    """A PageError at the first line of a display that is not that of its listing."""
    function, names = getattr(attnmath, name), code_names(scene.cast)
    if chooses(statements):
        return
    page = Page(statements, scene)
    if "tile" in inspect.signature(function).parameters:
        refuse_other_order(name, page, statements, set(names))
        return
    form = page.form
    common = {n.args[0] for s in statements for n in s.nodes() if n.kind == "func"} & called(function)
    page.reader, reader = Reader(form, set(names), common), Reader(form, set(names), common)
    try:
        lines, out = reader.lines(function)
        want = [(page.left(s), page.expression(s), s) for s in statements]
    except Unread as error:
        raise PageError("listing", str(error)) from None
    found = out.items() if isinstance(out, dict) else [(want[-1][0], out)]
    lines += [(key, x) for key, x in found if isinstance(x, tuple) and x != ("name", key)]
    lefts = {left for left, _, _ in want}
    inputs = {code_name(scene.cast, *key) for key in given(function, names)}
    lost = sorted((reader.own & set(names)) - lefts - inputs)
    if lost:
        raise PageError("listing", f"the listing of {name} gives {lost[0]}, and no line of the display does")
    got = settled(form, lines, lefts)
    for (left, x, statement), (letter, y) in zip_longest(want, got, fillvalue=("nothing more", ())):
        if letter != left:
            message = f"here the display gives {left}, and the listing of {name} gives {letter}"
            raise PageError("listing", message, statement.start)
        if page.is_entry(statement):
            x, y = form.entry(x), form.entry(y)
        if page.is_number(statement) and y[:2] == ("call", "rowsum"):
            y = y[2]  # a pairing, of which the rest is summed
        if x != y:
            message = f"{left} = {text(x)} on the page, {text(y)} in the listing of {name}"
            raise PageError("listing", message, statement.members[-1].start)


def refuse_other_order(name: str, page: "Page", statements: tuple, known: set) -> None:
    """The same of the letters alone that the listing gives."""
    lefts = [page.left(statement) for statement in statements]
    own = [letter for letter in assigned(getattr(attnmath, name)) if letter in known]
    for letter, after in zip(own, [*own[1:], ""]):
        if letter not in lefts:
            raise PageError("listing", f"the listing of {name} gives {letter}, and no line of the display does")
        if after in lefts and lefts.index(after) < lefts.index(letter):
            message = f"the listing of {name} gives {letter} before {after}, and the display after it"
            raise PageError("listing", message, statements[lefts.index(letter)].start)


def settled(form: Form, lines: list, letters: set) -> list:
    """The lines of the letters of a page; other names, and what is given anew, are put in."""
    last = {name: k for k, (name, _) in enumerate(lines)}
    by: dict = {}
    out = []
    for k, (name, x) in enumerate(lines):
        x = form.replaced(x, by)
        if name in letters and last[name] == k:
            out.append((name, x))
            by.pop(name, None)
        else:
            by[name] = x
    return out


class Page:
    """Reads the lines of a display."""

    def __init__(self, statements: tuple, scene: Scene):
        self.cast: Cast = scene.cast
        self.axes = Trial(statements, scene).axes
        numbers = [k for k, spec in self.cast.letters.items() if not self.cast.axes("", k)]
        scalars = {code_name(self.cast, p, k) for k in numbers for p in ("", "d", "dot", "dotd")}
        self.form = Form(scalars, set(self.cast.sizes))
        self.reader: Reader

    def left(self, statement: Statement) -> str:
        left = statement.members[0]
        left = left.args[0] if left.kind == "index" else left
        if left.kind != "name":
            raise PageError("label", "a line of a rule says what one letter is: letter = …", left.start)
        return self.name(left)

    def name(self, node: Node) -> str:
        prefix, letter = node.args
        if letter in self.cast.sizes:
            return letter
        return code_name(self.cast, prefix, self.cast.rows.get(letter, letter))

    def is_entry(self, statement: Statement) -> bool:
        return statement.members[0].kind == "index" and self.rank(statement.members[0]) == 0

    def is_number(self, statement: Statement) -> bool:
        return statement.members[0].kind == "name" and self.rank(statement.members[0]) == 0

    def expression(self, statement: Statement) -> tuple:
        rules = [member for member in statement.members[1:] if member.kind != "partial"]
        if len(rules) != 1 or statement.relations[-1] not in ("=", ":="):
            raise PageError("label", "a line of a rule has one right side", statement.start)
        return self.read(rules[0])

    def rank(self, node: Node) -> int:
        """How many axes are left: 0 of a number or an entry, 1 of a row or a column, 2 of a matrix."""
        match node.kind:
            case "name":
                if not node.args[0] and not self.cast.knows(node.args[1]) and node.args not in self.axes:
                    return 0  # a size, an index
                axes = self.axes.get(node.args)
                return len(self.cast.axes(*node.args) if axes is None else axes)
            case "index":
                return self.rank(node.args[0]) - len(node.args[1])
            case "inner" | "number" | "delta" | "infinity":
                return 0
            case "identity":
                return 2
            case "one":
                return 1
            case "big":
                return self.rank(node.args[-1])
            case "func" if node.args[0] in ("rowsum", "logsumexp"):
                return 1
            case "func" if node.args[0] == "diag":
                return 2
        parts = [x for arg in node.args for x in (arg if isinstance(arg, tuple) else (arg,))]
        return max(self.rank(x) for x in parts if isinstance(x, Node))

    def read(self, node: Node) -> tuple:
        form, args = self.form, node.args
        match node.kind:
            case "number":
                return ("number", args[0])
            case "infinity":
                return ("name", "inf")
            case "delta":
                return ("name", "delta")
            case "identity":
                return ("name", "I")
            case "name":
                return ("name", self.name(node))
            case "index":
                return self.read(args[0])
            case "transpose":
                return self.read(args[0]) if self.rank(args[0]) == 1 else form.T(self.read(args[0]))
            case "sum":
                return form.add(*((sign, self.read(term)) for sign, term in zip(*args)))
            case "prod":
                return self.product(args[0])
            case "had" | "dot":
                return form.mul(*map(self.read, args))
            case "div" | "power":
                return getattr(form, node.kind)(*map(self.read, args))
            case "inner":
                pair = form.mul(*map(self.read, args))
                return form.call("rowsum", pair) if self.rank(args[0]) == 1 else pair
            case "sqrt":
                return form.call("sqrt", self.read(args[0]))
            case "big":
                return self.sum(node)
            case "func":
                return self.function(*args)
        raise PageError("listing", f"a line with {node.kind} has no counterpart in code", node.start)

    def product(self, factors: tuple) -> tuple:
        """Numbers first; 𝟏 is left out, since code broadcasts or sums; two vectors make a table."""
        form = self.form
        ones = [x for x in factors if x.kind == "one" or x.kind == "transpose" and x.args[0].kind == "one"]
        rest = [x for x in factors if x not in ones]
        numbers = [self.read(x) for x in rest if self.rank(x) == 0]
        others = [x for x in rest if self.rank(x)]
        if not others:
            return form.mul(*numbers)
        join = form.mul if len(others) > 1 and all(self.rank(x) == 1 for x in others) else form.mat
        return form.mul(*numbers, join(*map(self.read, others)))

    def sum(self, node: Node) -> tuple:
        operation, (name, *more), _, _, _, body = node.args
        if operation != "sum" or more:
            raise PageError("listing", "only a sum over one index has a counterpart in code", node.start)
        subs = [n.args[1] for n in body.walk() if n.kind == "index"]
        is_column = any(s[-1].kind == "name" and s[-1].args == ("", name) for s in subs)
        x = self.read(body)
        return self.form.call("rowsum", x) if is_column and name not in FAMILIES else x

    def function(self, name: str, nodes: tuple) -> tuple:
        """A call; of a function that the listing does not call, what that returns."""
        args = [self.read(node) for node in nodes]
        function = getattr(attnmath, name, None)
        if name in self.reader.kept or not inspect.isfunction(function):
            return self.form.call(name, *args)
        lines, out = self.reader.returned(function, args)
        return self.form.replaced(out, dict(settled_all(self.form, lines)))


def settled_all(form: Form, lines: list) -> list:
    """Every name, in terms of the arguments alone."""
    by: dict = {}
    for name, x in lines:
        by[name] = form.replaced(x, by)
    return list(by.items())
