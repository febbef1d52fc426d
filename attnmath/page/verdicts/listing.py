"""The lines of a listing: the source of a function, read as letters and what they are made of.

What is plumbing is left out: the check of the arguments, reshaping, guards against overflow and
empty rows, sums over axes along which an argument was broadcast. A call of another
function stands for the lines of that function, unless the page names it too; a helper
that is run for each head stands for its lines once.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import attnmath
from attnmath.page.verdicts.normal import ZERO, NormalForm

NONE = ("none",)  # an argument that this cast does not have: nothing is added, nothing multiplied
SAME = ("column row flat ahead lifted lowered nonzero finite constant hide visible places_like buckets_like"
        " looked_up sink_rows alone no_head for_heads").split()
SUMMED = ("sum_to", "summed", "heads_to_bias", "sinks_summed")  # over the axes that an argument does not have
REFERENCE = ("rowmax", "larger", "peak")  # what is subtracted and added again: any would do
OPERATIONS = {ast.Mult: "mul", ast.MatMult: "mat", ast.Div: "div", ast.Pow: "power"}
FUNCTIONS = ("exp", "log", "tanh", "cos", "sin", "sqrt", "rowsum", "rowmean", "diag")


class Unread(Exception):
    """A listing that has no lines to compare, or a line that cannot be read."""


class Reader:
    """Reads functions; `known` says which names are letters, `kept` which calls stay calls."""

    def __init__(self, form: NormalForm, known: set, kept: set):
        self.form, self.known, self.kept = form, known, kept
        self.own: set = set()  # letters that the listing itself gives, in a line of its own

    def lines(self, function: Callable) -> tuple[list, Any]:
        """The lines (letter, expression) of a function, and what it returns."""
        names = inspect.signature(function).parameters
        letters = self.known | {"W", "W_dot"}
        return self._run(function, {k: ("name", k) if k in letters else NONE for k in names}, 0)

    def returned(self, function: Callable, args: list) -> tuple[list, Any]:
        """The same of a function that is called with these arguments."""
        lines: list = []
        return lines, self._helper(function, {}, ({}, 0), lines, args)

    def _run(self, function: Callable, env: dict, depth: int) -> tuple[list, Any]:
        scope = inspect.unwrap(function).__globals__, depth
        lines: list = []
        for statement in body(function):
            match statement:
                case ast.Expr():  # a docstring, or a refusal
                    continue
                case ast.Assign([target], value):
                    self._assign(target, value, env, scope, lines)
                case ast.Return(ast.expr() as value):
                    return lines, self._value(value, env, scope, lines)
                case _:
                    raise Unread(f"{function.__name__} has a line that is no assignment")
        raise Unread(f"{function.__name__} returns nothing")

    def _assign(self, target: ast.expr, value: ast.expr, env: dict, scope: tuple, lines: list) -> None:
        targets = list(target.elts) if isinstance(target, ast.Tuple) else [target]
        names = [x.id for x in targets if isinstance(x, ast.Name)]
        if isinstance(value, ast.Constant) or isinstance(value, ast.Call) and _name(value.func) == "dict":
            return
        if isinstance(value, ast.BoolOp) and _name(value.values[0]) == "given":
            return  # the letters of the way forward, which are arguments
        start, single = len(lines), not isinstance(target, ast.Tuple)
        found = self._value(value, env, scope, lines)
        found = [found] if single else _several(found)
        if len(found) != len(names):
            raise Unread(f"{ast.unparse(target)} gets {len(found)} values")
        if isinstance(value, ast.Call):  # what the function called a letter is called otherwise here
            self._rename(lines, start, names, found)
        for name, x in zip(names, found):
            env[name] = x
            if isinstance(x, dict) and "W" in name:  # the weights of a layer
                lines += [(_field(name, k), y) for k, y in x.items() if y != NONE]
                env[name] = {k: y if y == NONE else ("name", _field(name, k)) for k, y in x.items()}
            elif isinstance(x, tuple):
                lines += [(name, x)] if x not in (NONE, ("name", name)) else []
                env[name] = x if x == NONE else ("name", name)
                if scope[1] == 0 and (single or isinstance(value, ast.Tuple)) and x != ZERO:
                    self.own.add(name)

    def _rename(self, lines: list, start: int, names: list, found: list) -> None:
        made = {name for name, _ in lines[start:]}
        new = {x[1]: name for name, x in zip(names, found)
               if isinstance(x, tuple) and x[0] == "name" and x[1] in made and x[1] != name}
        by = {old: ("name", name) for old, name in new.items()}
        for k in range(start, len(lines)):
            name, x = lines[k]
            lines[k] = (new.get(name, name), self.form.replaced(x, by))
        found[:] = [self.form.replaced(x, by) if isinstance(x, tuple) and x != NONE else x for x in found]

    def _value(self, node: ast.expr, env: dict, scope: tuple, lines: list) -> Any:
        """An expression; a list of them; a dict of them, where a named tuple is returned."""
        form = self.form
        match node:
            case ast.Constant(None | str()):
                return NONE
            case ast.Constant(int() | float() as value):
                return ("number", float(value))
            case ast.Name(name):
                return env.get(name, ("name", name))
            case ast.Attribute(ast.Name(name), field):
                whole = env.get(name, ("name", name))
                if isinstance(whole, dict):
                    return whole.get(field, NONE)
                return ("name", _field(whole[1], field))
            case ast.Attribute(ast.Call() as call, field):
                return self._value(call, env, scope, lines)[field]
            case ast.Tuple(items) | ast.List(items):
                return self._items(items, env, scope, lines)
            case ast.GeneratorExp(ast.Call(ast.Name(name), _)):
                return self._helper(scope[0][name], env, scope, lines)
            case ast.GeneratorExp(ast.Subscript(ast.Call(helper), ast.Slice(ast.Constant(int() as first)))):
                return list(self._helper(scope[0][_name(helper)], env, scope, lines))[first:]
            case ast.UnaryOp(ast.USub(), x):
                return form.neg(self._term(x, env, scope, lines))
            case ast.BinOp(left, op, right):
                a, b = (self._term(x, env, scope, lines) for x in (left, right))
                return self._binary(op, a, b)
            case ast.Call():
                return self._call(node, env, scope, lines)
        raise Unread(f"{ast.unparse(node)} is no formula")

    def _term(self, node: ast.expr, env: dict, scope: tuple, lines: list) -> tuple:
        x = self._value(node, env, scope, lines)
        return ZERO if x == NONE else x

    def _items(self, items: list, env: dict, scope: tuple, lines: list) -> list:
        out: list = []
        for item in items:
            if not isinstance(item, ast.Starred):
                out.append(self._value(item, env, scope, lines))
                continue
            match item.value:
                case ast.Call(ast.Name("map"), [ast.Name(name), *several]):
                    groups = [_several(self._value(x, env, scope, lines)) for x in several]
                    out += [self._word(name, list(x)) for x in zip(*groups)]
                case ast.Subscript(ast.Name("W"), _):
                    out.append(NONE)  # matrices of a layer, whose biases are left out
                case _:
                    out += _several(self._value(item.value, env, scope, lines))
        return out

    def _binary(self, op: ast.operator, a: tuple, b: tuple) -> tuple:
        if isinstance(op, ast.Add | ast.Sub):
            return self.form.add(("+", a), ("+" if isinstance(op, ast.Add) else "-", b))
        if type(op) not in OPERATIONS:
            raise Unread("an operation that no formula has")
        return getattr(self.form, OPERATIONS[type(op)])(a, b)

    def _call(self, node: ast.Call, env: dict, scope: tuple, lines: list) -> Any:
        name = _name(node.func)
        function = scope[0].get(name)
        if inspect.isclass(function) and hasattr(function, "_fields"):
            return dict(zip(function._fields, self._items(node.args, env, scope, lines)))
        if name == "gather":
            return self._value(node.args[0], env, scope, lines)
        if name == "over_heads":
            return self._helper(scope[0][_name(node.args[0])], env, scope, lines)
        if name in REFERENCE:
            return ZERO
        if name == "each_head":
            return []
        args = self._items(node.args, env, scope, lines)
        if name in WORDS:
            return self._word(name, args)
        if name in self.kept:
            return self.form.call(name, *(x for x in args if x != NONE))
        if not inspect.isfunction(function) or not function.__module__.startswith("attnmath"):
            raise Unread(f"{name} is no function of the formulas")
        given = {k.arg: self._value(k.value, env, scope, lines) for k in node.keywords if k.arg}
        return self._helper(function, env, scope, lines, args, given)

    def _helper(self, function: Callable, env: dict, scope: tuple, lines: list, args=(), given=()) -> Any:
        """What another function returns; its lines come before."""
        inner: dict = dict(zip(inspect.signature(function).parameters, args)) | dict(given)
        for name, parameter in inspect.signature(function).parameters.items():
            value = NONE if parameter.default is None else ("number", parameter.default)
            if name in env or parameter.default is parameter.empty:
                value = env.get(name, ("name", name) if name in self.known else NONE)
            inner.setdefault(name, value)
        found, out = self._run(function, inner, scope[1] + 1)
        lines += found
        return out

    def _word(self, name: str, args: list) -> Any:
        """A word of the vocabulary of arrays."""
        return WORDS[name](self.form, *args) if args[0] != NONE else NONE


def _pair(operation: str) -> Callable:
    return lambda form, x, y: x if y == NONE else getattr(form, operation)(x, y)


def _projected(form: NormalForm, X: tuple, W: tuple, b: tuple = NONE) -> tuple:
    return _plus(form, form.mat(X, W), b)


def _plus(form: NormalForm, x: tuple, y: tuple) -> tuple:
    return x if y == NONE else form.add(("+", x), ("+", y))


WORDS: dict = {
    "plus": _plus, "times": _pair("mul"), "inner": _pair("mul"), "divide": _pair("div"), "kron": _pair("mul"),
    "shift": lambda form, x, y: form.add(("+", x), ("-", y)), "T": lambda form, x: form.T(x),
    "collected": lambda form, x, *_: form.call("rowsum", form.mul(x, ("name", "delta"))),
    "turned": lambda form, x, *_: form.mat(x, ("name", "J")),
    "spread": lambda form, x, *_: form.mat(x, ("name", "N")),
    "gathered": lambda form, x, *_: form.mat(x, form.T(("name", "N"))),
    "apply": _pair("mat"), "from_heads": _pair("mat"), "to_heads": _projected,
    **{name: (lambda form, x, y: form.mat(form.T(x), y)) for name in ("over_tokens", "heads_over_tokens")},
    "blocks": lambda form, x: form.mul(("name", "delta"), x), "identity": lambda form, x: ("name", "I"),
    **{name: (lambda form, x, *_: x) for name in SAME},
    **{name: (lambda form, x, like: NONE if like == NONE else x) for name in SUMMED},
    **{name: (lambda form, x, name=name: form.call(name, x)) for name in FUNCTIONS},
}


def _several(found: Any) -> list:
    """What a tuple has, with names or without."""
    return list(found.values() if isinstance(found, dict) else found)


def _name(node: ast.expr) -> str:
    return getattr(node, "id", getattr(node, "attr", ""))


def _field(whole: str, field: str) -> str:
    """W and W_Q: W_Q; dW: dW_Q; W_dot: W_Q_dot."""
    before, _, after = whole.partition("W")
    return before + field + after


def body(function: Callable) -> list[ast.stmt]:
    """The statements of a function, from its source."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    return tree.body if isinstance(tree, ast.FunctionDef) else []


def calls_of(function: Callable, seen: set[str] | None = None) -> set[str]:
    """The names of all functions that a function calls, by itself or through others."""
    seen = set() if seen is None else seen
    for node in (part for statement in body(function) for part in ast.walk(statement)):
        name = _name(node.func) if isinstance(node, ast.Call) else ""
        other = inspect.unwrap(function).__globals__.get(name)
        if inspect.isfunction(other) and other.__module__.startswith(attnmath.__name__) and name not in seen:
            seen.add(name)
            calls_of(other, seen)
    return seen


def assigned(function: Callable) -> list[str]:
    """The names that a function itself gives a value, one in a line, in order, each once."""
    targets = [s.targets[0] for s in body(function) if isinstance(s, ast.Assign)]
    return list(dict.fromkeys(x.id for x in targets if isinstance(x, ast.Name)))
