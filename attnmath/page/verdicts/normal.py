"""One form for an expression of a page and for one of the code, and the lines of a page in that form.

An expression is a tuple: ("name", x), ("number", x), ("sum", (sign, term), …), and mul (entry
by entry, with numbers as well), mat (matrix product), div, T, power, call. The order of terms and of
factors stays; scalars stand before a product of matrices, signs and denominators outside.
"""

import inspect
from collections.abc import Callable, Collection
from functools import reduce

import attnmath
from attnmath.page.language.nodes import Node, PageError
from attnmath.page.scenes.cast import Cast
from attnmath.page.scenes.scene import Scene
from attnmath.page.verdicts.promise import code_name
from attnmath.page.verdicts.trial import Trial

ZERO, ONE = ("number", 0.0), ("number", 1.0)


class NormalForm:
    """Builds expressions; `scalars` are the names of numbers, `sizes` those of sizes."""

    def __init__(self, scalars: set, sizes: set):
        self.scalars, self.sizes = scalars | sizes, sizes

    def is_scalar(self, x: tuple) -> bool:
        if x[0] in ("mul", "div"):
            return all(map(self.is_scalar, x[1:]))
        return x[0] == "number" or x[0] == "name" and x[1] in self.scalars

    def add(self, *signed: tuple) -> tuple:
        """The sum of (sign, term)."""
        terms: list = []
        for sign, term in signed:
            inner = term[1:] if term[0] == "sum" else (("+", term),)
            terms += [("+" if sign == own else "-", x) for own, x in inner if x != ZERO]
        if not terms:
            return ZERO
        return terms[0][1] if len(terms) == 1 and terms[0][0] == "+" else ("sum", *terms)

    def neg(self, x: tuple) -> tuple:
        return self.add(("-", x))

    def mul(self, *given: tuple) -> tuple:
        sign = "+"
        factors: list = []
        below: list = []
        for x in self.means(given):
            if x[0] == "sum" and len(x) == 2:
                sign, x = ("-" if sign == "+" else "+"), x[1][1]
            if x[0] == "div":
                x, below = x[1], [*below, x[2]]
            factors += [y for y in (x[1:] if x[0] == "mul" else (x,)) if y != ONE]
        if ZERO in factors:
            return ZERO
        if below:
            return self.add((sign, self.div(self.mul(*factors), self.mul(*below))))
        if len(factors) == 2 and factors[0] == factors[1]:
            factors = [("power", factors[0], ("number", 2.0))]
        out = ("mul", *factors) if len(factors) > 1 else (factors or [ONE])[0]
        return self.add((sign, out))

    def means(self, factors: tuple) -> list:
        """The factors, where 1/d before a row sum makes it a mean."""
        out: list = []
        for x in factors:
            mean = self.div(x, out[-1][2]) if out and out[-1][:2] == ("div", ONE) else x
            out = [*out[:-1], mean] if mean[:2] == ("call", "rowmean") != x[:2] else [*out, x]
        return out

    def mat(self, *given: tuple) -> tuple:
        scalars: list = []
        factors: list = []
        for x in given:
            if x[0] == "sum" and len(x) == 2:
                scalars, x = [*scalars, ("sum", ("-", ONE))], x[1][1]
            if x[0] == "mul":
                own = next(k for k, y in enumerate((*x[1:], ZERO)) if y == ZERO or not self.is_scalar(y))
                scalars, x = [*scalars, *x[1 : own + 1]], self.mul(*x[own + 1 :])
            factors += x[1:] if x[0] == "mat" else (x,)
        if ZERO in factors:
            return ZERO
        return self.mul(*scalars, ("mat", *factors) if len(factors) > 1 else factors[0])

    def div(self, x: tuple, y: tuple) -> tuple:
        if x[0] == "sum" and len(x) == 2:
            return self.neg(self.div(x[1][1], y))
        if x[0] == "div":
            return self.div(x[1], self.mul(x[2], y))
        if x[:2] == ("call", "rowsum") and y[0] == "name" and y[1] in self.sizes:
            return ("call", "rowmean", x[2])
        return x if y == ONE else ("div", x, y)

    def T(self, x: tuple) -> tuple:
        if x[0] == "T":
            return x[1]
        if x[0] == "mat":
            return self.mat(*map(self.T, reversed(x[1:])))
        return x if self.is_scalar(x) else ("T", x)

    def call(self, name: str, *args: tuple) -> tuple:
        return ("call", name, *args)

    def power(self, x: tuple, y: tuple) -> tuple:
        return ("power", x, y)

    def changed(self, x: tuple, change: Callable[[tuple], tuple]) -> tuple:
        """The expression with its parts changed."""
        kind, *parts = x
        if kind in ("name", "number"):
            return x
        if kind == "sum":
            return self.add(*((sign, change(term)) for sign, term in parts))
        start = 1 if kind == "call" else 0
        return getattr(self, kind)(*parts[:start], *map(change, parts[start:]))

    def replaced(self, x: tuple, by: dict) -> tuple:
        """The expression with other expressions for names."""
        return by.get(x[1], x) if x[0] == "name" else self.changed(x, lambda part: self.replaced(part, by))

    def entry(self, x: tuple) -> tuple:
        """The expression as its entries have it, where no transpose is written."""
        if x[0] == "T":
            return self.entry(x[1])
        if x[0] == "mat" and all(part[0] == "T" for part in x[1:]):
            x = ("mat", *x[:0:-1])
        return self.changed(x, self.entry)


def code_of(x: tuple) -> str:
    """An expression in one line of code."""
    kind, *parts = x
    if kind in ("name", "number"):
        return f"{parts[0]:g}" if kind == "number" else parts[0]
    if kind == "sum":
        said = "".join(f" {sign} {code_of(term)}" for sign, term in parts)
        return f"({said.removeprefix(' + ').strip()})"
    if kind in ("call", "T"):
        name, args = ("T", parts) if kind == "T" else (parts[0], parts[1:])
        return f"{name}({', '.join(map(code_of, args))})"
    sign = {"mul": " * ", "mat": " @ ", "div": " / ", "power": "**"}[kind]
    return reduce(lambda a, b: f"({a}{sign}{b})", map(code_of, parts))


# ---- the lines of a display in this form ----------------------------------------------------------

LOOPED = ("h", "g", "t")  # a sum over heads or tiles is one product in code
RANKS = {"inner": 0, "number": 0, "delta": 0, "infinity": 0, "one": 1, "identity": 2, "rowsum": 1, "logsumexp": 1,
         "diag": 2}
SPELLED = {"infinity": "inf", "delta": "delta", "identity": "I"}


def form_of(cast: Cast) -> NormalForm:
    numbers = [k for k in cast.letters if not cast.axes("", k)]
    scalars = {code_name(cast, prefix, k) for k in numbers for prefix in ("", "d", "dot", "dotd")}
    return NormalForm(scalars, set(cast.sizes))


class Page:
    """Reads the lines of a display; calls stay those of the functions `kept`, `returned` is what others make."""

    def __init__(self, statements: tuple, scene: Scene, form: NormalForm, kept: set[str], returned: Callable):
        self.cast, self.form, self.kept, self.returned = scene.cast, form, kept, returned
        self.axes = Trial(statements, scene).axes

    def name(self, node: Node) -> str:
        prefix, letter = node.args
        if letter in self.cast.sizes:
            return letter
        return code_name(self.cast, prefix, self.cast.rows.get(letter, letter))

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
            case "big":
                return self.rank(node.args[-1])
        what = node.args[0] if node.kind == "func" else node.kind
        return RANKS[what] if what in RANKS else max(map(self.rank, node.children))

    def read(self, node: Node) -> tuple:
        form, args = self.form, node.args
        match node.kind:
            case "number":
                return ("number", args[0])
            case "infinity" | "delta" | "identity" | "name":
                return ("name", SPELLED.get(node.kind) or self.name(node))
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
            case "big":
                return self.sum(node)
            case "sqrt" | "func":
                return self.function(*(args if node.kind == "func" else ("sqrt", args)))
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
        last = [n.subs[-1] for n in body.walk() if n.kind == "index"]
        is_column = any(sub.kind == "name" and sub.args == ("", name) for sub in last)
        x = self.read(body)
        return self.form.call("rowsum", x) if is_column and name not in LOOPED else x

    def function(self, name: str, nodes: tuple) -> tuple:
        """A call; of a function that the listing does not call, what that returns."""
        args = [self.read(node) for node in nodes]
        function = getattr(attnmath, name, None)
        if name in self.kept or not inspect.isfunction(function):
            return self.form.call(name, *args)
        lines, out = self.returned(function, args)
        return self.form.replaced(out, settled(self.form, lines)[1])


def settled(form: NormalForm, lines: list, letters: Collection[str] = ()) -> tuple[list, dict]:
    """The lines of the letters of a page, and what other names are, which are put in as is what is given anew."""
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
    return out, by
