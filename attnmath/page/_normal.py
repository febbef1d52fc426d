"""One form for an expression of a page and for one of the code, so that they can be compared.

An expression is a tuple: ("name", x), ("number", x), ("sum", (sign, term), …), and mul (entry
by entry, with numbers as well), mat (matrix product), div, T, power, call. The order of terms and of
factors stays; scalars stand before a product of matrices, signs and denominators outside.
"""

from functools import reduce

ZERO, ONE = ("number", 0.0), ("number", 1.0)


class Form:
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
        sign, factors, below = "+", [], []
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
        scalars, factors = [], []
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

    def replaced(self, x: tuple, by: dict) -> tuple:
        """The expression with other expressions for names."""
        kind, *parts = x
        if kind in ("name", "number"):
            return by.get(x[1], x) if kind == "name" else x
        if kind == "sum":
            return self.add(*((sign, self.replaced(term, by)) for sign, term in parts))
        if kind == "call":
            return self.call(parts[0], *(self.replaced(part, by) for part in parts[1:]))
        return getattr(self, kind)(*(self.replaced(part, by) for part in parts))

    def entry(self, x: tuple) -> tuple:
        """The expression as its entries have it, where no transpose is written."""
        kind, *parts = x
        if kind in ("name", "number"):
            return x
        if kind == "T":
            return self.entry(parts[0])
        if kind == "sum":
            return self.add(*((sign, self.entry(term)) for sign, term in parts))
        if kind == "mat" and all(part[0] == "T" for part in parts):
            parts = parts[::-1]
        start = 1 if kind == "call" else 0
        return getattr(self, kind)(*parts[:start], *map(self.entry, parts[start:]))


def text(x: tuple) -> str:
    """An expression in one line of code."""
    kind, *parts = x
    if kind in ("name", "number"):
        return f"{parts[0]:g}" if kind == "number" else parts[0]
    if kind == "sum":
        said = "".join(f" {sign} {text(term)}" for sign, term in parts)
        return f"({said.removeprefix(' + ').strip()})"
    if kind in ("call", "T"):
        name, args = ("T", parts) if kind == "T" else (parts[0], parts[1:])
        return f"{name}({', '.join(map(text, args))})"
    sign = {"mul": " * ", "mat": " @ ", "div": " / ", "power": "**"}[kind]
    return reduce(lambda a, b: f"({a}{sign}{b})", map(text, parts))
