"""Small changes of the formula functions: one symbol, word, index or name at a time.

Left out: the checks of arguments, and the words that only ask of which library, kind and size an
array is (PLUMBING). A change is made in the syntax tree, and is a Mutant with the text of the
statement before and after; it is put in place by exchanging the function's code object, which
everyone who has imported the function sees at once.
"""

import ast
import contextlib
import copy
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from changes import ALIKE, alternatives

PACKAGE = Path(__file__).resolve().parent.parent / "attnmath"
# The formulas, and the words in which they are written; masks are booleans, which have no derivatives.
FILES = sorted([*PACKAGE.glob("_formulas/[!_]*.py"), PACKAGE / "_words/arrays.py", PACKAGE / "_words/layers.py"])
MODULES = {path.stem: f"attnmath.{path.parent.name}.{path.stem}" for path in FILES if path.stem != "masks"}
CHECKS = {node.name for path in PACKAGE.glob("_given/*.py") for node in ast.parse(path.read_text("utf-8")).body
          if isinstance(node, ast.FunctionDef)}
PLUMBING = set("""
    namespace number_type real is_complex is_number is_writable is_exact room_like constant shape is_large
""".split())


@dataclass(frozen=True)
class Mutant:
    """A function with one change; the statement before and after is what people read."""

    module: str
    function: str
    place: range  # the lines of the statement, in the module
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.module}.{self.function} | {self.before} | {self.after}"

    @property
    def public(self):
        """The function of the package, with its check, or the method of a class."""
        found = importlib.import_module(MODULES[self.module])
        for name in self.function.split("."):
            found = getattr(found, name)
        return found

    @property
    def original(self):
        """The same without its check."""
        return inspect.unwrap(self.public)

    @property
    def lines(self) -> range:
        """The lines that run if the statement does: all of the function for its first one."""
        lines, first = self.written
        return range(self.place.start, first + len(lines)) if self.place.start == first else self.place

    @property
    def written(self) -> tuple[list[str], int]:
        """The lines of the function from its name on, and where they begin."""
        lines, first = inspect.getsourcelines(self.original)
        above = next(k for k, line in enumerate(lines) if line.lstrip().startswith("def "))
        return lines[above:], first + above

    @property
    def source(self) -> str:
        """The text of the function, with the statement as it is afterwards."""
        lines, first = self.written
        start, stop = self.place.start - first, self.place.stop - first
        indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
        return textwrap.dedent("".join([*lines[:start], f"{indent}{self.after}\n", *lines[stop:]]))


@contextlib.contextmanager
def in_place(mutant: Mutant) -> Iterator[None]:
    """The package with the mutant in it; what it was before comes back at the end."""
    function = mutant.original
    before = function.__code__, function.__defaults__, function.__kwdefaults__
    words = dict(function.__globals__)
    exec(mutant.source, words)
    new = words[function.__name__]
    defaults = defaults_of_check(mutant.public)
    known = defaults[:]
    lacking = {x: word for x, word in vocabulary().items() if x not in function.__globals__}
    function.__globals__.update(lacking)  # a word of another module may have come in
    function.__code__, function.__defaults__, function.__kwdefaults__ = (
        new.__code__, new.__defaults__, new.__kwdefaults__)
    defaults[:] = [x.default for x in inspect.signature(new).parameters.values()] if known else []
    try:
        yield
    finally:
        defaults[:] = known
        function.__code__, function.__defaults__, function.__kwdefaults__ = before
        for word in lacking:
            del function.__globals__[word]


def defaults_of_check(function) -> list:
    """The defaults that the check of a function fills in; none if it has no check."""
    inside = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    return inside["check"].cell_contents.defaults if "check" in inside else []


def vocabulary() -> dict:
    """Every word that may be exchanged for another, as the modules have it."""
    modules = [vars(importlib.import_module(name)) for name in MODULES.values()]
    return {word: found[word] for found in modules for line in ALIKE for word in line if word in found}


def mutants(module: str) -> list:
    """All changes of the functions of a module, no two of which are the same."""
    file = importlib.import_module(MODULES[module]).__file__
    with open(file, encoding="utf-8") as text:
        tree = ast.parse(text.read())
    found = (one for function, name in functions(tree) for one in changed(function, name, module))
    return [one for one in dict.fromkeys(found) if one.before != one.after]


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple]:
    """The functions of a module and the methods of its classes, with their names."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef) and node.name not in PLUMBING and not is_stub(node):
            node.body = node.body[isinstance(getattr(node.body[0], "value", None), ast.Constant):]
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            node.returns, node.decorator_list = None, []
            yield node, prefix + node.name


def is_stub(node: ast.FunctionDef) -> bool:
    """Whether it only says types: `...` is all that it does."""
    return isinstance(node.body[0], ast.Expr) and getattr(node.body[0].value, "value", None) is ...


def changed(function: ast.FunctionDef, name: str, module: str) -> Iterator[Mutant]:
    """The function with each change of each of its parts."""
    for parent, key, node, statement in places(function):
        before, place = header(statement), lines_of(statement)
        for new in alternatives(node, names_before(function, node)):
            with exchanged_part(parent, key, node, new):
                yield Mutant(module, name, place, before, header(statement))


@contextlib.contextmanager
def exchanged_part(parent: ast.AST, key: str, node: ast.AST, new: ast.AST) -> Iterator[None]:
    """The tree with another part in the place of the node."""
    before = getattr(parent, key)
    changed = [new if x is node else x for x in before] if isinstance(before, list) else new
    setattr(parent, key, changed)
    try:
        yield
    finally:
        setattr(parent, key, before)


def lines_of(statement: ast.stmt) -> range:
    """The statement's own lines, without those of the statements that it holds."""
    holds = hasattr(statement, "body")
    return range(statement.lineno, statement.body[0].lineno if holds else statement.end_lineno + 1)


def header(statement: ast.stmt) -> str:
    """The statement's own line, without the statements that it holds."""
    if not hasattr(statement, "body"):
        return " ".join(ast.unparse(statement).split())
    bare = copy.copy(statement)
    bare.body, bare.orelse = [ast.Pass()], []
    return " ".join(ast.unparse(bare).removesuffix("pass").split())


def places(node: ast.AST, statement: ast.stmt | None = None) -> Iterator[tuple]:
    """Every part of the function that may change: its parent, its field, and its statement."""
    statement = node if isinstance(node, ast.stmt) else statement
    for key, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and not is_check(part) and not isinstance(part, ast.Delete):
                if isinstance(part, ast.expr | ast.keyword):
                    yield node, key, part, statement
                yield from places(part, statement)


def is_check(node: ast.AST) -> bool:
    """Whether this is the call of a check of arguments."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CHECKS


def names_before(function: ast.FunctionDef, node: ast.AST) -> list:
    """The arguments and the local names that have a value before the node's line."""
    arguments = [x.arg for x in ast.walk(function.args) if isinstance(x, ast.arg)]
    local = [x.id for x in ast.walk(function) if isinstance(x, ast.Name)
             and isinstance(x.ctx, ast.Store) and x.lineno < node.lineno]
    return [x for x in dict.fromkeys(arguments + local) if x != "_"]
